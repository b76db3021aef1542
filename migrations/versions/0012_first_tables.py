"""The tables of revision 0012, in which earlier ones were brought together. Older databases cannot be opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = None
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NUMBER = sa.Float(53).with_variant(sa.REAL(), "sqlite")
FLAG = sa.Boolean().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite")
MEASURES = ("theta", "magnitude", "spectral_signal", "stable_rank", "effective_rank", "size_bytes")
TYPES = ("skeleton", "organ", "embed", "norm", "adapter", "other")
TOWERS = ("text", "encoder", "decoder", "vision", "audio")


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.TEXT(), "sqlite")


def _column(
    name: str,
    kind: sa.types.TypeEngine[Any],
    *,
    null: bool = False,
    default: str | sa.TextClause | None = None,
    to: str | None = None,
    cascade: bool = False,
    known: Sequence[str] = (),
    exact: bool = False,
) -> sa.Column[Any]:
    """Return a column: a reference `to` another table, or a text among `known` ones or of an exact length."""
    info = {"to": to, "cascade": cascade, "known": known, "exact": exact}
    return sa.Column(name, kind, nullable=null, server_default=default, info=info)


def _create(
    table: str,
    *columns: sa.Column[Any],
    key: Sequence[str] = ("id",),
    unique: Sequence[Sequence[str]] = (),
    checks: Mapping[str, str] | None = None,
    indexes: Sequence[Sequence[str]] = (),
) -> None:
    constraints: list[sa.Constraint] = [sa.PrimaryKeyConstraint(*key, name=op.f(f"pk_{table}"))]
    conditions = dict(checks or {})
    for column in columns:
        name, to, known = column.name, column.info["to"], column.info["known"]
        if to:
            deletes = "CASCADE" if column.info["cascade"] else None
            reference = op.f(f"fk_{table}_{name}_{to}")
            constraints.append(sa.ForeignKeyConstraint([name], [f"{to}.id"], name=reference, ondelete=deletes))
        if known:
            conditions[f"{name}_known"] = f"{name} IN ({', '.join(map(repr, known))})"
        elif isinstance(column.type, sa.String) and column.type.length:
            conditions[f"{name}_length"] = (
                f"length({name}) {'=' if column.info['exact'] else '<='} {column.type.length}"
            )
    constraints += [sa.CheckConstraint(text, name=op.f(f"ck_{table}_{name}")) for name, text in conditions.items()]
    constraints += [sa.UniqueConstraint(*names, name=op.f(f"uq_{table}_{'_'.join(names)}")) for names in unique]
    op.create_table(table, *columns, *constraints, sqlite_strict=True)
    for names in indexes:
        op.create_index(op.f(f"ix_{table}_{'_'.join(names)}"), table, list(names))


def upgrade() -> None:
    """Apply."""
    _create(
        "blobs",
        _column("id", COUNT),
        _column("digest", _text(64), exact=True),
        _column("size_bytes", COUNT),
        _column("stored_bytes", COUNT),
        _column("codec", _text(32)),
        _column("codec_version", sa.Integer()),
        _column("file", _text(128), null=True),
        _column("state", _text(16), known=("present", "doomed", "corrupt")),
        _column("depends_on", COUNT, null=True, to="blobs"),
        _column("created_at", TIME),
        _column("touched_at", TIME),
        unique=[("digest",), ("file",)],
        checks={"sizes_positive": "size_bytes >= 0 AND stored_bytes >= 0"},
        indexes=[("depends_on",), ("state", "touched_at")],
    )
    _create(
        "contributors",
        _column("id", COUNT),
        _column("name", _text(96)),
        _column("created_at", TIME),
        _column("state", _text(16), default=sa.text("'active'"), known=("active", "suspended")),
        _column("quota_bytes", COUNT, null=True),
        unique=[("name",)],
    )
    _create(
        "facets",
        _column("id", COUNT),
        _column("type", _text(16), known=TYPES),
        _column("tower", _text(16), known=TOWERS),
        _column("slot", _text(64)),
        _column("dtype", _text(16)),
        _column("architecture", _text(96)),
        _column("license", _text(96)),
        unique=[("type", "tower", "slot", "dtype", "architecture", "license")],
    )
    _create(
        "scores",
        _column("id", COUNT),
        _column("file_digest", _text(64)),
        _column("text_digest", _text(64)),
        _column("tokens", COUNT),
        _column("runtime", _text(256)),
        _column("reading", sa.Text()),
        _column("perplexity", NUMBER, null=True),
        _column("created_at", TIME),
        unique=[("file_digest", "text_digest", "tokens", "runtime")],
    )
    _create(
        "totals",
        _column("name", _text(16), known=("models", "placements", "organs", "blobs", "size_bytes", "stored_bytes")),
        _column("value", COUNT),
        key=("name",),
    )
    _create(
        "blob_parts",
        _column("blob_id", COUNT, to="blobs", cascade=True),
        _column("position", sa.Integer()),
        _column("part_id", COUNT, to="blobs"),
        key=("blob_id", "position"),
        indexes=[("part_id",)],
    )
    _create(
        "facet_counts",
        _column("facet_id", COUNT, to="facets"),
        _column("theta_bin", COUNT),
        _column("placements", COUNT),
        key=("facet_id", "theta_bin"),
    )
    _create(
        "inline_blobs",
        _column("blob_id", COUNT, to="blobs", cascade=True),
        _column("stored", sa.LargeBinary()),
        key=("blob_id",),
    )
    _create(
        "jobs",
        _column("id", COUNT),
        _column("kind", _text(32)),
        _column("state", _text(16), known=("queued", "running", "finished", "failed", "cancelled")),
        _column("contributor_id", COUNT, to="contributors"),
        _column("attempts", COUNT),
        _column("arguments", sa.Text()),
        _column("progress", NUMBER),
        _column("note", _text(4096)),
        _column("result", sa.Text(), null=True),
        _column("problem", sa.Text(), null=True),
        _column("created_at", TIME),
        _column("started_at", TIME, null=True),
        _column("finished_at", TIME, null=True),
        _column("lease_expires_at", TIME, null=True),
        indexes=[("contributor_id",)],
    )
    op.create_index("ix_jobs_state_kind", "jobs", ["state", "kind", "id"])
    _create(
        "models",
        _column("id", COUNT),
        _column("namespace", _text(96)),
        _column("name", _text(96)),
        _column("version", sa.Integer()),
        _column("digest", _text(64)),
        _column("state", _text(16), known=("visible", "quarantined", "yanked", "removed")),
        _column("kind", _text(16), known=("model", "adapter", "vocabulary")),
        _column("complete", FLAG),
        _column("contributor_id", COUNT, to="contributors"),
        _column("architecture", _text(96), null=True),
        _column("title", _text(4096), null=True),
        _column("description", _text(4096), null=True),
        _column("license", _text(96), null=True),
        _column("size_label", _text(96), null=True),
        _column("tags", sa.Text()),
        _column("parameters", COUNT),
        _column("tensors", COUNT),
        _column("size_bytes", COUNT),
        _column("mean_theta", NUMBER, null=True),
        _column("mean_signal", NUMBER, null=True),
        _column("flags", sa.Text()),
        _column("unassemblable", sa.Text()),
        _column("created_at", TIME),
        _column("state_reason", _text(4096), null=True),
        _column("changed_at", TIME, null=True),
        _column("downloads", COUNT, default="0"),
        _column("grafts", COUNT, default="0"),
        _column("nonfinite_tensors", COUNT, null=True),
        unique=[("namespace", "name", "version")],
        checks={"version_positive": "version >= 1"},
        indexes=[
            ("contributor_id",),
            ("digest",),
            ("state", "created_at"),
            ("state", "downloads"),
            ("state", "grafts"),
            ("state", "mean_theta"),
        ],
    )
    _create(
        "organs",
        _column("id", COUNT),
        _column("blob_id", COUNT, to="blobs"),
        _column("dtype", _text(16)),
        _column("shape", _text(96)),
        _column("elements", COUNT),
        _column("nonfinite", COUNT, null=True),
        unique=[("blob_id", "dtype", "shape")],
    )
    _create(
        "tokens",
        _column("id", COUNT),
        _column("contributor_id", COUNT, to="contributors"),
        _column("public_id", _text(9), exact=True),
        _column("secret_sha256", _text(64), exact=True),
        _column("scopes", _text(64)),
        _column("label", _text(96)),
        _column("created_at", TIME),
        _column("expires_at", TIME, null=True),
        _column("revoked_at", TIME, null=True),
        _column("last_used_at", TIME, null=True),
        _column("parent_id", COUNT, null=True, to="tokens"),
        unique=[("public_id",)],
        indexes=[("contributor_id",), ("parent_id",)],
    )
    _create(
        "uploads",
        _column("id", COUNT),
        _column("public_id", _text(22), exact=True),
        _column("contributor_id", COUNT, to="contributors"),
        _column("kind", _text(16), known=("piece", "pack", "file")),
        _column("name", _text(255), null=True),
        _column("digest", _text(64), null=True),
        _column("size_bytes", COUNT),
        _column("received_bytes", COUNT),
        _column("state", _text(16), known=("open", "complete")),
        _column("created_at", TIME),
        _column("expires_at", TIME),
        unique=[("public_id",)],
        checks={"received_within_size": "received_bytes BETWEEN 0 AND size_bytes"},
        indexes=[("contributor_id", "state"), ("state", "expires_at")],
    )
    _create(
        "chimeras",
        _column("model_id", COUNT, to="models"),
        _column("lock_id", _text(64)),
        _column("base_model_id", COUNT, to="models"),
        _column("recipe", sa.Text()),
        _column("findings", sa.Text()),
        _column("prediction", sa.Text()),
        _column("origins", sa.Text()),
        key=("model_id",),
        indexes=[("base_model_id",), ("lock_id",)],
    )
    _create(
        "computations",
        _column("key", _text(64)),
        _column("organ_id", COUNT, to="organs"),
        _column("made", sa.Text()),
        key=("key",),
        indexes=[("organ_id",)],
    )
    _create(
        "daily_downloads",
        _column("model_id", COUNT, to="models"),
        _column("day", _text(10), exact=True),
        _column("downloads", COUNT),
        key=("model_id", "day"),
    )
    _create(
        "events",
        _column("id", COUNT),
        _column("at", TIME),
        _column("contributor_id", COUNT, to="contributors"),
        _column("action", _text(32)),
        _column("model_id", COUNT, null=True, to="models"),
        _column("text", _text(4096)),
        indexes=[("at",), ("contributor_id",), ("model_id",)],
    )
    _create(
        "fingerprints",
        _column("organ_id", COUNT, to="organs"),
        _column("values", sa.LargeBinary(length=256)),
        key=("organ_id",),
    )
    _create(
        "gain_organs",
        _column("organ_id", COUNT, to="organs"),
        _column("model_id", COUNT, to="models"),
        key=("organ_id", "model_id"),
        indexes=[("model_id",)],
    )
    _create(
        "gains",
        _column("id", COUNT),
        _column("model_id", COUNT, to="models"),
        _column("base_model_id", COUNT, to="models"),
        _column("donor_model_id", COUNT, null=True, to="models"),
        _column("grafted", _text(4096)),
        _column("text_digest", _text(64)),
        _column("percent", NUMBER),
        _column("margin", NUMBER),
        _column("tokens", COUNT),
        _column("settled", FLAG),
        _column("text", _text(96)),
        unique=[("model_id", "text_digest")],
        indexes=[("base_model_id", "percent"), ("donor_model_id",)],
    )
    _create(
        "ingests",
        _column("id", COUNT),
        _column("source", _text(4096)),
        _column("state", _text(16), known=("running", "finished", "failed", "interrupted")),
        _column("started_at", TIME),
        _column("finished_at", TIME, null=True),
        _column("lease_expires_at", TIME),
        _column("model_id", COUNT, null=True, to="models"),
        _column("report", sa.Text(), null=True),
        indexes=[("model_id",)],
    )
    _create(
        "lineage",
        _column("id", COUNT),
        _column("child_model_id", COUNT, null=True, to="models"),
        _column("child_organ_id", COUNT, null=True, to="organs"),
        _column("parent_model_id", COUNT, null=True, to="models"),
        _column("parent_organ_id", COUNT, null=True, to="organs"),
        _column("parent_text", _text(4096), null=True),
        _column(
            "relation",
            _text(16),
            known=("finetune", "quantized", "adapter", "grafted", "purified", "merged", "dissected", "relative"),
        ),
        _column("evidence", _text(16), known=("declared", "recorded", "measured")),
        _column("score", NUMBER, null=True),
        _column("compared", COUNT, null=True),
        _column("created_at", TIME),
        checks={"one_child": "(child_model_id IS NULL) <> (child_organ_id IS NULL)"},
        indexes=[("child_model_id",), ("child_organ_id",), ("parent_model_id",), ("parent_organ_id",)],
    )
    _create(
        "measurements",
        _column("organ_id", COUNT, to="organs"),
        _column("method", _text(16)),
        _column("sample_size", COUNT),
        _column("entropy", NUMBER, null=True),
        _column("kurtosis", NUMBER, null=True),
        _column("coherence", NUMBER, null=True),
        _column("mean", NUMBER, null=True),
        _column("standard_deviation", NUMBER, null=True),
        _column("minimum", NUMBER, null=True),
        _column("maximum", NUMBER, null=True),
        _column("nan_count", COUNT),
        _column("infinite_count", COUNT),
        _column("constant", FLAG),
        _column("reason", _text(256), null=True),
        _column("theta", NUMBER, null=True),
        _column("magnitude", NUMBER, null=True),
        _column("signal", NUMBER, null=True),
        _column("spectral_signal", NUMBER, null=True),
        _column("stable_rank", NUMBER, null=True),
        _column("effective_rank", NUMBER, null=True),
        key=("organ_id", "method"),
    )
    _create(
        "model_files",
        _column("id", COUNT),
        _column("model_id", COUNT, to="models"),
        _column("position", sa.Integer()),
        _column("name", _text(255)),
        _column("size_bytes", COUNT),
        _column("sha256", _text(64)),
        _column("header_sha256", _text(64)),
        _column("header_bytes", COUNT),
        unique=[("model_id", "position")],
        indexes=[("sha256",)],
    )
    _create(
        "model_metadata",
        _column("model_id", COUNT, to="models"),
        _column("position", sa.Integer()),
        _column("key", _text(4096)),
        _column("type", _text(32)),
        _column("value", _text(4096)),
        key=("model_id", "position"),
    )
    _create(
        "model_words",
        _column("word", _text(64)),
        _column("model_id", COUNT, to="models"),
        key=("word", "model_id"),
        indexes=[("model_id",)],
    )
    _create(
        "submissions",
        _column("id", COUNT),
        _column("contributor_id", COUNT, to="contributors"),
        _column("namespace", _text(96)),
        _column("name", _text(96)),
        _column(
            "state",
            _text(16),
            known=("checking", "ready", "publishing", "quarantined", "published", "refused", "withdrawn"),
        ),
        _column("manifest", sa.Text()),
        _column("metadata_given", sa.Text()),
        _column("findings", sa.Text()),
        _column("size_bytes", COUNT),
        _column("job_id", COUNT, null=True),
        _column("model_id", COUNT, null=True, to="models"),
        _column("decided_by", COUNT, null=True, to="contributors"),
        _column("reason", _text(4096), null=True),
        _column("created_at", TIME),
        _column("changed_at", TIME),
        indexes=[("contributor_id", "id"), ("model_id",), ("state", "id")],
    )
    _create(
        "upload_pieces",
        _column("upload_id", COUNT, to="uploads", cascade=True),
        _column("offset_bytes", COUNT),
        _column("digest", _text(64), exact=True),
        _column("size_bytes", COUNT),
        key=("upload_id", "offset_bytes"),
        indexes=[("digest",)],
    )
    _create(
        "verdicts",
        _column("id", COUNT),
        _column("model_id", COUNT, to="models"),
        _column("runtime", _text(256)),
        _column("verdict", _text(16), known=("broken", "undecided", "inert", "degraded", "gains", "coherent")),
        _column("reason", _text(4096)),
        _column("report", sa.Text()),
        _column("strength", COUNT, default="0"),
        _column("created_at", TIME),
        indexes=[("model_id",)],
    )
    _create(
        "web_sessions",
        _column("id", COUNT),
        _column("secret_sha256", _text(64), exact=True),
        _column("token_id", COUNT, to="tokens"),
        _column("created_at", TIME),
        _column("expires_at", TIME),
        unique=[("secret_sha256",)],
        indexes=[("expires_at",), ("token_id",)],
    )
    _create(
        "blob_leases",
        _column("ingest_id", COUNT, to="ingests", cascade=True),
        _column("blob_id", COUNT, to="blobs"),
        key=("ingest_id", "blob_id"),
        indexes=[("blob_id",)],
    )
    _create(
        "file_parts",
        _column("file_id", COUNT, to="model_files"),
        _column("offset_bytes", COUNT),
        _column("size_bytes", COUNT),
        _column("blob_id", COUNT, to="blobs"),
        _column("blob_offset_bytes", COUNT),
        key=("file_id", "offset_bytes"),
        indexes=[("blob_id",)],
    )
    _create(
        "page_tokens",
        _column("id", COUNT),
        _column("secret_sha256", _text(64), exact=True),
        _column("session_id", COUNT, to="web_sessions", cascade=True),
        _column("scopes", _text(64)),
        _column("created_at", TIME),
        _column("expires_at", TIME),
        unique=[("secret_sha256",)],
        indexes=[("session_id",)],
    )
    _create(
        "placements",
        _column("id", COUNT),
        _column("model_id", COUNT, to="models"),
        _column("position", COUNT),
        _column("file_id", COUNT, to="model_files"),
        _column("offset_bytes", COUNT),
        _column("name", _text(64)),
        _column("type", _text(16), known=TYPES),
        _column("tower", _text(16), known=TOWERS),
        _column("block", COUNT, null=True),
        _column("slot", _text(64)),
        _column("organ_id", COUNT, to="organs"),
        _column("visible", FLAG),
        _column("facet_id", COUNT, to="facets"),
        _column("dtype", _text(16)),
        _column("size_bytes", COUNT),
        _column("theta", NUMBER, null=True),
        _column("magnitude", NUMBER, null=True),
        _column("signal", NUMBER, null=True),
        _column("spectral_signal", NUMBER, null=True),
        _column("stable_rank", NUMBER, null=True),
        _column("effective_rank", NUMBER, null=True),
        indexes=[("block",), ("facet_id",), ("file_id",)],
    )
    for measure in MEASURES:
        columns = dict.fromkeys(("visible", "type", measure, "id", "facet_id", "block", "model_id", "theta"))
        op.create_index(f"ix_placements_{measure}", "placements", list(columns))
    op.create_index("ix_placements_model", "placements", ["model_id", "position"], unique=True)
    op.create_index("ix_placements_organ", "placements", ["organ_id", "visible", "model_id"])
    op.create_index("ix_placements_place", "placements", ["slot", "block", "tower", "organ_id", "model_id", "visible"])
    _create(
        "experts",
        _column("id", COUNT),
        _column("placement_id", COUNT, to="placements"),
        _column("expert", sa.Integer()),
        _column("model_id", COUNT, to="models"),
        _column("type", _text(16), known=TYPES),
        _column("tower", _text(16), known=TOWERS),
        _column("block", COUNT, null=True),
        _column("slot", _text(64)),
        _column("organ_id", COUNT, to="organs"),
        _column("visible", FLAG),
        _column("facet_id", COUNT, to="facets"),
        _column("dtype", _text(16)),
        _column("size_bytes", COUNT),
        _column("theta", NUMBER, null=True),
        _column("magnitude", NUMBER, null=True),
        _column("signal", NUMBER, null=True),
        _column("spectral_signal", NUMBER, null=True),
        _column("stable_rank", NUMBER, null=True),
        _column("effective_rank", NUMBER, null=True),
        unique=[("placement_id", "expert")],
        indexes=[("facet_id",)],
    )
    for measure in MEASURES:
        columns = dict.fromkeys(("visible", measure, "id", "expert", "facet_id", "block", "model_id", "theta"))
        op.create_index(f"ix_experts_{measure}", "experts", list(columns))
    op.create_index("ix_experts_expert", "experts", ["expert", "visible", "facet_id", "block", "model_id", "theta"])
    op.create_index("ix_experts_model", "experts", ["model_id", "placement_id", "expert"])
    op.create_index("ix_experts_organ", "experts", ["organ_id", "visible", "model_id"])
