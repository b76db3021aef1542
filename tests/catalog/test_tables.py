"""Tests of the constraints of tables, and of the times that they return."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, String, delete, insert, select, text, update
from sqlalchemy.exc import StatementError

from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.tables import (
    Base,
    Blob,
    ContributorRow,
    EventRow,
    Facet,
    FacetCount,
    FilePart,
    FleetUnit,
    Ingest,
    InlineBlob,
    JobRow,
    Lineage,
    ModelFileRow,
    ModelMetadata,
    ModelRow,
    Number,
    OrganRow,
    Placement,
    SubmissionRow,
    Texts,
    UploadRow,
    VerdictRow,
)
from organs.registry.errors import CatalogError
from organs.registry.gguf.types import SIZE_MAX
from organs.registry.local import LocalRegistry
from tests import postgres

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
DIGEST = "ab" * 32
FOREIGN_KEY, NOT_NULL = "FOREIGN KEY|foreign key constraint", "NOT NULL|not-null constraint"
"""The messages of SQLite and of PostgreSQL."""

ROWS: dict[str, dict[str, Any]] = {
    "contributors": {"id": 1, "name": "ada", "created_at": NOON},
    "ingests": {"id": 1, "source": "a.gguf", "state": "running", "started_at": NOON, "lease_expires_at": NOON},
    "blobs": {
        "id": 1,
        "digest": DIGEST,
        "size_bytes": 16,
        "stored_bytes": 9,
        "codec": "raw",
        "codec_version": 1,
        "file": None,
        "state": "present",
        "created_at": NOON,
        "touched_at": NOON,
    },
    "blob_parts": {"blob_id": 1, "position": 0, "part_id": 1},
    "inline_blobs": {"blob_id": 1, "stored": b"stored"},
    "blob_leases": {"ingest_id": 1, "blob_id": 1},
    "organs": {"id": 1, "blob_id": 1, "dtype": "F32", "shape": "4", "elements": 4},
    "measurements": {"organ_id": 1, "method": "z1", "sample_size": 4},
    "fingerprints": {"organ_id": 1, "values": b"values"},
    "models": {
        "id": 1,
        "namespace": "local",
        "name": "a",
        "version": 1,
        "digest": DIGEST,
        "state": "visible",
        "kind": "model",
        "complete": True,
        "contributor_id": 1,
        "parameters": 4,
        "tensors": 1,
        "size_bytes": 16,
        "tags": (),
        "flags": (),
        "unassemblable": (),
        "created_at": NOON,
    },
    "model_files": {
        "id": 1,
        "model_id": 1,
        "position": 0,
        "name": "a.gguf",
        "size_bytes": 16,
        "sha256": DIGEST,
        "header_sha256": DIGEST,
        "header_bytes": 8,
    },
    "file_parts": {"file_id": 1, "offset_bytes": 0, "size_bytes": 8, "blob_id": 1, "blob_offset_bytes": 0},
    "model_metadata": {"model_id": 1, "position": 0, "key": "k", "type": "string", "value": "v"},
    "runtime_texts": {"model_id": 1, "position": 0, "kind": "template", "source": "Ollama tiny", "text": "{{ . }}"},
    "other_names": {"namespace": "local", "name": "abc-F16", "version": 1, "model_id": 1, "stem": "abc"},
    "known_files": {"stamp": "ab" * 32, "sha256": "cd" * 32},
    "facets": {
        "id": 1,
        "type": "norm",
        "tower": "text",
        "slot": "output_norm",
        "dtype": "F32",
        "architecture": "llama",
        "license": "mit",
    },
    "facet_counts": {"facet_id": 1, "theta_bin": 40, "placements": 1},
    "model_words": {"word": "a", "model_id": 1},
    "model_tags": {"tag": "a", "model_id": 1},
    "placements": {
        "id": 1,
        "model_id": 1,
        "position": 0,
        "file_id": 1,
        "offset_bytes": 32,
        "name": "output_norm.weight",
        "type": "norm",
        "tower": "text",
        "slot": "output_norm",
        "organ_id": 1,
        "facet_id": 1,
        "visible": True,
        "dtype": "F32",
        "size_bytes": 16,
    },
    "experts": {
        "id": 1,
        "placement_id": 1,
        "expert": 0,
        "model_id": 1,
        "type": "organ",
        "tower": "text",
        "slot": "ffn_up_exps",
        "organ_id": 1,
        "visible": True,
        "facet_id": 1,
        "dtype": "F32",
        "size_bytes": 16,
    },
    "lineage": {
        "id": 1,
        "child_model_id": 1,
        "parent_text": "somebody/base",
        "relation": "finetune",
        "evidence": "declared",
        "created_at": NOON,
    },
    "events": {"id": 1, "at": NOON, "contributor_id": 1, "action": "ingest", "model_id": 1, "text": "local/a@1"},
    "totals": {"name": "models", "value": 1},
    "catalog_version": {"id": 2, "number": 1},
    "rate_counts": {"key": "ab" * 16, "expires_at": NOON, "count": 3},
    "named_leases": {"name": "sweep", "holder": "ab" * 16, "expires_at": NOON},
    "chimeras": {
        "model_id": 1,
        "lock_id": DIGEST,
        "base_model_id": 1,
        "recipe": "{}",
        "findings": "[]",
        "screen": None,
        "origins": "{}",
    },
    "computations": {"key": DIGEST, "organ_id": 1, "made": "{}"},
    "verdicts": {
        "id": 1,
        "model_id": 1,
        "runtime": "llama.cpp",
        "verdict": "gains",
        "reason": "because",
        "report": "{}",
        "created_at": NOON,
    },
    "scores": {
        "id": 1,
        "file_digest": DIGEST,
        "text_digest": DIGEST,
        "tokens": 128,
        "runtime": "llama.cpp",
        "reading": "{}",
        "perplexity": 26.7,
        "created_at": NOON,
    },
    "jobs": {
        "id": 1,
        "kind": "report",
        "state": "queued",
        "contributor_id": 1,
        "attempts": 0,
        "arguments": "{}",
        "progress": 0.0,
        "note": "",
        "created_at": NOON,
    },
    "fleet_runs": {"id": 1, "name": "zoo", "digest": DIGEST, "created_at": NOON},
    "fleet_units": {
        "run_id": 1,
        "number": 1,
        "work": "ingest",
        "source": "/models/a.gguf",
        "state": "queued",
        "attempts": 0,
        "deaths": 0,
        "note": "",
        "created_at": NOON,
    },
    "gains": {
        "id": 1,
        "model_id": 1,
        "base_model_id": 1,
        "grafted": "feed-forward 0-3",
        "text_digest": DIGEST,
        "percent": 5.5,
        "margin": 0.7,
        "tokens": 4096,
        "settled": True,
        "text": "python",
    },
    "gain_organs": {"organ_id": 1, "model_id": 1},
    "daily_downloads": {"model_id": 1, "day": "2026-01-02", "downloads": 1},
    "tokens": {
        "id": 1,
        "contributor_id": 1,
        "public_id": "abcdefghi",
        "secret_sha256": DIGEST,
        "scopes": "read upload",
        "label": "laptop",
        "created_at": NOON,
    },
    "web_sessions": {"id": 1, "secret_sha256": DIGEST, "token_id": 1, "created_at": NOON, "expires_at": NOON},
    "page_tokens": {
        "id": 1,
        "secret_sha256": DIGEST,
        "session_id": 1,
        "scopes": "upload",
        "created_at": NOON,
        "expires_at": NOON,
    },
    "uploads": {
        "id": 1,
        "public_id": "abcdefghijklmnopqrstuv",
        "contributor_id": 1,
        "kind": "file",
        "size_bytes": 16,
        "received_bytes": 0,
        "state": "open",
        "created_at": NOON,
        "expires_at": NOON,
    },
    "upload_chunks": {"upload_id": 1, "offset_bytes": 0, "size_bytes": 1, "file": "ab/cd"},
    "upload_pieces": {"upload_id": 1, "offset_bytes": 0, "digest": DIGEST, "size_bytes": 16},
    "submissions": {
        "id": 1,
        "contributor_id": 1,
        "namespace": "ada",
        "name": "a",
        "state": "checking",
        "manifest": "{}",
        "metadata_given": "{}",
        "findings": "[]",
        "size_bytes": 16,
        "created_at": NOON,
        "changed_at": NOON,
    },
}
"""A row of each table, in an order in which they can be inserted."""


@pytest.fixture
def filled(registry: LocalRegistry) -> LocalRegistry:
    fill(registry)
    return registry


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[LocalRegistry]:
    """Return one registry for all tests whose changes are refused."""
    home = tmp_path_factory.mktemp("refusing")
    shutil.copy(migrated_database, home)
    with LocalRegistry.open(home) as registry:
        fill(registry)
        yield registry


def fill(registry: LocalRegistry) -> None:
    with registry.catalog.writing() as session:
        for table, row in ROWS.items():
            session.execute(insert(Base.metadata.tables[table]), [row])


def change(registry: LocalRegistry, table: type[Base], **values: object) -> None:
    """Set `values` in the one row of `table`, past everything that checks them in Python."""
    assignments = ", ".join(f'"{name}" = :{name}' for name in values)
    with registry.catalog.writing() as session:
        session.execute(text(f"UPDATE {table.__tablename__} SET {assignments}"), values)


def put(registry: LocalRegistry, table: str, column: str, value: object) -> None:
    """Set one column of the one row of `table` to any value."""
    with registry.catalog.writing() as session:
        session.execute(text(f'UPDATE {table} SET "{column}" = :value'), {"value": value})


@pytest.mark.parametrize(
    ("table", "column"),
    [
        (Ingest, "state"),
        (Blob, "state"),
        (ModelRow, "state"),
        (ModelRow, "kind"),
        (Placement, "type"),
        (Placement, "tower"),
        (Lineage, "relation"),
        (Lineage, "evidence"),
        (JobRow, "state"),
        (FleetUnit, "state"),
        (FleetUnit, "work"),
        (ContributorRow, "state"),
        (UploadRow, "kind"),
        (UploadRow, "state"),
        (SubmissionRow, "state"),
        (VerdictRow, "verdict"),
    ],
)
@pytest.mark.parametrize("word", ["", "unheard-of", "VISIBLE", "norm ", "present\n"])
def test_a_word_that_is_not_in_the_vocabulary_is_refused(
    table: type[Base], column: str, word: str, refusing: LocalRegistry
) -> None:
    with pytest.raises(CatalogError, match=f"{column}_known"):
        change(refusing, table, **{column: word})


def test_the_sample_rows_cover_every_table(filled: LocalRegistry) -> None:
    assert ROWS.keys() == Base.metadata.tables.keys()


COLUMNS = [column for table in Base.metadata.tables.values() for column in table.columns]
LIMITED = [column for column in COLUMNS if isinstance(column.type, String) and column.type.length is not None]


@pytest.mark.parametrize("column", [pytest.param(column, id=str(column)) for column in LIMITED])
def test_text_that_is_too_long_is_refused_though_sqlite_would_take_it(
    column: Column[str], filled: LocalRegistry
) -> None:
    assert isinstance(column.type, String)
    assert column.type.length is not None
    table, limit = column.table.name, column.type.length
    with pytest.raises(CatalogError, match=rf"{column.name}_(length|known)|character varying\({limit}\)"):
        put(filled, table, column.name, "ü" * (limit + 1))
    if f"ck_{table}_{column.name}_known" not in {str(check.name) for check in column.table.constraints}:
        put(filled, table, column.name, "ü" * limit)


def test_integers_have_64_bits_except_those_that_stay_small() -> None:
    small = {str(column) for column in COLUMNS if type(column.type) is Integer}
    assert small == {
        "blob_parts.position",
        "blobs.codec_version",
        "experts.expert",
        "fleet_units.number",
        "other_names.version",
        "model_files.position",
        "model_metadata.position",
        "models.version",
        "runtime_texts.position",
    }


WRONG: dict[str, tuple[object, ...]] = {
    "INTEGER": ("abc", "1.5", 1.5, b"1", "", float("inf")),
    "REAL": ("abc", "", b"1.5"),
    "TEXT": (b"abc",),
    "BLOB": ("abc", 5, 1.5),
}
"""Values that a column must refuse, by the SQLite type. A number in a text column becomes its text."""
WRONG_ON_POSTGRESQL: dict[str, tuple[object, ...]] = {
    "INTEGER": ("abc", "1.5", b"1", "", float("inf")),
    "BIGINT": ("abc", "1.5", b"1", "", float("inf")),
    "FLOAT": ("abc", "", b"1.5"),
    "BOOLEAN": ("abc", 5, 1.5, b"1", ""),
    "TIMESTAMP WITH TIME ZONE": ("abc", "", 5, 1.5, b"1"),
    "BYTEA": (5, 1.5),
}
"""The same by the PostgreSQL type. A column of whole numbers rounds other numbers; a text column takes any value."""
REFUSED = r"cannot store|datatype mismatch|invalid (input|byte)|out of range|but expression is of type"


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(
            column, id=str(column), marks=pytest.mark.sqlite if isinstance(column.type, String | Texts) else ()
        )
        for column in COLUMNS
    ],
)
def test_a_value_of_another_type_is_refused(column: Column[Any], refusing: LocalRegistry) -> None:
    type_name = column.type.compile(refusing.catalog.writer.dialect)
    wrong = WRONG_ON_POSTGRESQL[type_name.partition("(")[0]] if postgres.is_used() else WRONG[type_name]
    assert wrong
    for value in wrong:
        with pytest.raises(CatalogError, match=REFUSED):
            put(refusing, column.table.name, column.name, value)


def test_nan_is_never_stored_in_a_table(filled: LocalRegistry) -> None:
    numbers = [column for column in COLUMNS if isinstance(column.type, Number)]
    assert len(numbers) > 20

    def put_nan(column: Column[Any]) -> None:
        with filled.catalog.writing() as session:
            session.execute(update(column.table).values({column.name: float("nan")}))

    for column in numbers:
        if not column.nullable:
            with pytest.raises(CatalogError, match=NOT_NULL):
                put_nan(column)
            continue
        put_nan(column)
        with filled.catalog.reading() as session:
            assert session.execute(select(column)).all() == [(None,)]


@pytest.mark.parametrize("digest", ["", "ab" * 31, "ab" * 33])
def test_a_digest_has_64_characters(digest: str, filled: LocalRegistry) -> None:
    with pytest.raises(CatalogError, match=r"digest_length|character varying\(64\)"):
        change(filled, Blob, digest=digest)


@pytest.mark.parametrize("column", ["size_bytes", "stored_bytes"])
def test_a_blob_has_no_negative_size(column: str, filled: LocalRegistry) -> None:
    change(filled, Blob, **{column: 0})
    with pytest.raises(CatalogError, match="sizes_positive"):
        change(filled, Blob, **{column: -1})


@pytest.mark.parametrize("version", [0, -1])
def test_versions_count_from_one(version: int, filled: LocalRegistry) -> None:
    with pytest.raises(CatalogError, match="version_positive"):
        change(filled, ModelRow, version=version)


@pytest.mark.parametrize(("model", "organ"), [(None, None), (1, 1)])
def test_the_child_of_an_edge_is_a_model_or_an_organ(
    model: int | None, organ: int | None, filled: LocalRegistry
) -> None:
    change(filled, Lineage, child_model_id=None, child_organ_id=1)
    with pytest.raises(CatalogError, match="one_child"):
        change(filled, Lineage, child_model_id=model, child_organ_id=organ)


@pytest.mark.parametrize(
    ("table", "different"),
    [
        (ContributorRow, {"id": 2}),
        (Blob, {"id": 2}),
        (OrganRow, {"id": 2}),
        (ModelRow, {"id": 2}),
        (ModelFileRow, {"id": 2}),
        (FilePart, {"size_bytes": 7}),
        (ModelMetadata, {"key": "other"}),
        (Placement, {"id": 2}),
        (Facet, {"id": 2}),
        (FacetCount, {"placements": 2}),
        (InlineBlob, {"stored": b"other"}),
    ],
)
def test_a_duplicate_row_is_refused(table: type[Base], different: dict[str, Any], filled: LocalRegistry) -> None:
    row = ROWS[table.__tablename__] | different
    with pytest.raises(CatalogError, match=r"UNIQUE|unique constraint"), filled.catalog.writing() as session:
        session.execute(insert(table), [row])


def test_two_blobs_never_share_a_physical_file(filled: LocalRegistry) -> None:
    change(filled, Blob, file="ab/name")
    with (
        pytest.raises(CatalogError, match=r"UNIQUE.*blobs\.file|unique constraint \"uq_blobs_file\""),
        filled.catalog.writing() as session,
    ):
        session.execute(insert(Blob), [ROWS["blobs"] | {"id": 2, "digest": "cd" * 32, "file": "ab/name"}])


@pytest.mark.parametrize(
    ("table", "column"),
    [
        (InlineBlob, "blob_id"),
        (OrganRow, "blob_id"),
        (FilePart, "blob_id"),
        (FilePart, "file_id"),
        (Placement, "organ_id"),
        (Placement, "model_id"),
        (Placement, "file_id"),
        (ModelFileRow, "model_id"),
        (ModelMetadata, "model_id"),
        (ModelRow, "contributor_id"),
        (Lineage, "child_model_id"),
        (Lineage, "parent_model_id"),
        (EventRow, "contributor_id"),
        (Blob, "depends_on"),
        (Ingest, "model_id"),
    ],
)
def test_a_reference_to_a_missing_row_is_refused(table: type[Base], column: str, refusing: LocalRegistry) -> None:
    with pytest.raises(CatalogError, match=FOREIGN_KEY):
        change(refusing, table, **{column: 404})


@pytest.mark.parametrize("table", [Blob, OrganRow, ModelRow, ModelFileRow, ContributorRow])
def test_a_referenced_row_cannot_be_deleted(table: type[Base], filled: LocalRegistry) -> None:
    with pytest.raises(CatalogError, match=FOREIGN_KEY), filled.catalog.writing() as session:
        session.execute(delete(table))


@pytest.mark.parametrize(("table", "column"), [(ModelRow, "digest"), (Blob, "codec"), (Placement, "slot")])
def test_a_required_column_is_never_null(table: type[Base], column: str, filled: LocalRegistry) -> None:
    with pytest.raises(CatalogError, match=NOT_NULL):
        change(filled, table, **{column: None})


def test_sizes_beyond_32_bits_are_stored(filled: LocalRegistry) -> None:
    change(filled, Blob, size_bytes=SIZE_MAX)
    change(filled, Placement, offset_bytes=SIZE_MAX, block=999_999_999)
    with filled.catalog.reading() as session:
        assert session.scalars(select(Blob.size_bytes)).one() == SIZE_MAX
        assert session.scalars(select(Placement.offset_bytes)).one() == SIZE_MAX


def test_times_are_read_as_aware_utc(filled: LocalRegistry) -> None:
    with filled.catalog.reading() as session:
        made = session.scalars(select(ModelRow.created_at)).one()
        ends = session.scalars(select(Ingest.finished_at)).one()
    assert (made, made.utcoffset()) == (NOON, timedelta(0))
    assert ends is None


def test_a_time_of_another_zone_is_read_as_the_same_moment(filled: LocalRegistry) -> None:
    zone = timezone(timedelta(hours=-7))
    with filled.catalog.writing() as session:
        session.get_one(ModelRow, 1).created_at = datetime(2026, 1, 2, 5, 30, 15, 250_000, tzinfo=zone)
    with filled.catalog.reading() as session:
        made = session.scalars(select(ModelRow.created_at)).one()
        assert session.scalars(select(ModelRow.id).where(ModelRow.created_at > NOON)).all() == [1]
    assert made.isoformat() == "2026-01-02T12:30:15.250000+00:00"


def test_a_time_without_a_zone_is_refused(filled: LocalRegistry) -> None:
    with pytest.raises((StatementError, AssertionError), match="times are aware"), filled.catalog.writing() as session:
        session.get_one(ModelRow, 1).created_at = datetime(2026, 1, 2, 12)  # noqa: DTZ001


def test_a_new_row_gets_the_current_time(registry: LocalRegistry) -> None:
    before = datetime.now(UTC)
    with registry.catalog.writing() as session:
        contributor_id(session, "ada")
    with registry.catalog.reading() as session:
        assert before <= session.scalars(select(ContributorRow.created_at)).one() <= datetime.now(UTC)


def test_the_bytes_of_an_inline_blob_are_deleted_with_its_row(filled: LocalRegistry) -> None:
    with filled.catalog.writing() as session:
        session.execute(insert(Blob), [ROWS["blobs"] | {"id": 2, "digest": "cd" * 32}])
        session.execute(insert(InlineBlob), [{"blob_id": 2, "stored": b"more"}])
        session.execute(delete(Blob).where(Blob.id == 2))
        assert session.scalars(select(InlineBlob.blob_id)).all() == [1]
