"""Experts of stacks: the parts of a stack's blob, and a row for each expert at its place."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NUMBER = sa.Float(53).with_variant(sa.REAL(), "sqlite")
FLAG = sa.Boolean().with_variant(sa.Integer(), "sqlite")
MEASURES = ("theta", "magnitude", "signal", "spectral_signal", "stable_rank", "effective_rank")
TYPES = "'skeleton', 'organ', 'embed', 'norm', 'adapter', 'other'"
TOWERS = "'text', 'encoder', 'decoder', 'vision', 'audio'"


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.TEXT(), "sqlite")


def _reference(column: str, table: str) -> sa.Column[int]:
    key = sa.ForeignKey(f"{table}.id", name=f"fk_experts_{column}_{table}")
    return sa.Column(column, COUNT, key, nullable=False)


def upgrade() -> None:
    """Apply."""
    stack = sa.ForeignKey("blobs.id", name="fk_blob_parts_blob_id_blobs", ondelete="CASCADE")
    op.create_table(
        "blob_parts",
        sa.Column("blob_id", COUNT, stack, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("part_id", COUNT, sa.ForeignKey("blobs.id", name="fk_blob_parts_part_id_blobs"), nullable=False),
        sa.PrimaryKeyConstraint("blob_id", "position", name="pk_blob_parts"),
        sqlite_strict=True,
    )
    op.create_index("ix_blob_parts_part_id", "blob_parts", ["part_id"])
    op.create_table(
        "experts",
        sa.Column("id", COUNT, primary_key=True),
        _reference("placement_id", "placements"),
        sa.Column("expert", sa.Integer(), nullable=False),
        _reference("model_id", "models"),
        sa.Column("type", _text(16), nullable=False),
        sa.Column("tower", _text(16), nullable=False),
        sa.Column("block", COUNT),
        sa.Column("slot", _text(64), nullable=False),
        _reference("organ_id", "organs"),
        sa.Column("visible", FLAG, nullable=False),
        _reference("facet_id", "facets"),
        sa.Column("dtype", _text(16), nullable=False),
        sa.Column("size_bytes", COUNT, nullable=False),
        *(sa.Column(measure, NUMBER) for measure in MEASURES),
        sa.UniqueConstraint("placement_id", "expert", name="uq_experts_placement_id_expert"),
        sa.CheckConstraint(f"type IN ({TYPES})", name=op.f("ck_experts_type_known")),
        sa.CheckConstraint(f"tower IN ({TOWERS})", name=op.f("ck_experts_tower_known")),
        sa.CheckConstraint("length(slot) <= 64", name=op.f("ck_experts_slot_length")),
        sa.CheckConstraint("length(dtype) <= 16", name=op.f("ck_experts_dtype_length")),
        sqlite_strict=True,
    )
    for measure in ("theta", "magnitude", "spectral_signal", "stable_rank", "effective_rank", "size_bytes"):
        columns = ("visible", measure, "id", "expert", "facet_id", "block", "model_id", "theta")
        op.create_index(f"ix_experts_{measure}", "experts", list(dict.fromkeys(columns)))
    op.create_index("ix_experts_expert", "experts", ["expert", "visible", "facet_id", "block", "model_id", "theta"])
    op.create_index("ix_experts_model", "experts", ["model_id", "placement_id", "expert"])
    op.create_index("ix_experts_organ", "experts", ["organ_id", "visible", "model_id"])
    op.create_index("ix_experts_facet_id", "experts", ["facet_id"])
