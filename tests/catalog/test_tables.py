"""Tests of the constraints of tables, and of the times that they return."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, LargeBinary, String, Text, delete, insert, select, text, update
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import InstrumentedAttribute

from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.tables import (
    Base,
    Blob,
    ContributorRow,
    Facet,
    FacetCount,
    FilePart,
    FleetUnit,
    Ingest,
    InlineBlob,
    Lineage,
    ModelFileRow,
    ModelMetadata,
    ModelRow,
    Number,
    OrganRow,
    Placement,
    Texts,
    Timestamp,
    UploadChunk,
    UploadRow,
)
from organs.registry.errors import CatalogError
from organs.registry.gguf.types import SIZE_MAX
from organs.registry.local import LocalRegistry
from tests import postgres

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
FOREIGN_KEY, NOT_NULL = "FOREIGN KEY|foreign key constraint", "NOT NULL|not-null constraint"
"""The messages of SQLite and of PostgreSQL."""

SPECIAL: dict[str, dict[str, Any]] = {"lineage": {"child_model_id": 1}, "catalog_version": {"id": 2}}
"""Values of the sample rows that the columns alone do not determine."""


def sample_row(name: str) -> dict[str, Any]:
    """Return a row with a valid value in each required column; it refers to the sample rows of other tables."""
    columns = Base.metadata.tables[name].columns
    return {column.name: _sample(column) for column in columns if not column.nullable} | SPECIAL.get(name, {})


def _sample(column: Column[Any]) -> object:
    check = column.info.get("check", "")
    if column.info.get("name") == "known":
        return re.findall("'(.*?)'", check)[0]
    if isinstance(column.type, String):
        exact_length = re.search("= (.*)", check)
        return "a" * (int(exact_length[1]) if exact_length else 1)
    return {Timestamp: NOON, LargeBinary: b"bytes", Texts: (), Text: "{}"}.get(type(column.type), 1)


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
        for table in Base.metadata.sorted_tables:
            session.execute(insert(table), [sample_row(table.name)])


def change(registry: LocalRegistry, table: type[Base], **values: object) -> None:
    """Set `values` in the one row of `table`, past everything that checks them in Python."""
    assignments = ", ".join(f'"{name}" = :{name}' for name in values)
    with registry.catalog.writing() as session:
        session.execute(text(f"UPDATE {table.__tablename__} SET {assignments}"), values)


def put(registry: LocalRegistry, table: str, column: str, value: object) -> None:
    """Set one column of the one row of `table` to any value."""
    with registry.catalog.writing() as session:
        session.execute(text(f'UPDATE {table} SET "{column}" = :value'), {"value": value})


def each(columns: list[Column[Any]]) -> list[Any]:
    return [pytest.param(column, id=str(column)) for column in columns]


COLUMNS = [column for table in Base.metadata.sorted_tables for column in table.columns]
LIMITED = [column for column in COLUMNS if isinstance(column.type, String) and column.type.length is not None]
KNOWN = [column for column in COLUMNS if column.info.get("name") == "known"]
"""The columns that have one of a few words."""
REFERENCES = [column for column in COLUMNS if column.foreign_keys and str(column) != "lineage.child_organ_id"]
"""The references to other rows, without one that a CHECK refuses before."""


@pytest.mark.parametrize("column", each(KNOWN))
def test_a_word_that_is_not_in_the_vocabulary_is_refused(column: Column[str], refusing: LocalRegistry) -> None:
    for word in ("", "unheard-of", "VISIBLE", "norm ", "present\n"):
        with pytest.raises(CatalogError, match=f"{column.name}_known"):
            put(refusing, column.table.name, column.name, word)


@pytest.mark.parametrize("column", each(LIMITED))
def test_text_that_is_too_long_is_refused_though_sqlite_would_take_it(
    column: Column[str], filled: LocalRegistry
) -> None:
    assert isinstance(column.type, String)
    assert column.type.length is not None
    table, limit = column.table.name, column.type.length
    with pytest.raises(CatalogError, match=rf"{column.name}_(length|known)|character varying\({limit}\)"):
        put(filled, table, column.name, "ü" * (limit + 1))
    if column not in KNOWN:
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


@pytest.mark.parametrize(
    ("column", "value", "constraint"),
    [
        *((Blob.digest, digest, r"digest_length|character varying\(64\)") for digest in ("", "ab" * 31, "ab" * 33)),
        (Blob.size_bytes, -1, "sizes_positive"),
        (Blob.stored_bytes, -1, "sizes_positive"),
        (ModelRow.version, 0, "version_positive"),
        (UploadRow.received_bytes, 2, "received_within_size"),
        (UploadChunk.size_bytes, 0, "size_positive"),
        (FleetUnit.deaths, -1, "counts_positive"),
    ],
)
def test_a_value_beyond_its_limits_is_refused(
    column: InstrumentedAttribute[object], value: object, constraint: str, refusing: LocalRegistry
) -> None:
    with pytest.raises(CatalogError, match=constraint):
        change(refusing, column.class_, **{column.key: value})


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
        (Blob, {"id": 2, "digest": "cd" * 32, "file": "ab/name"}),
    ],
)
def test_a_duplicate_row_is_refused(table: type[Base], different: dict[str, Any], filled: LocalRegistry) -> None:
    change(filled, Blob, file="ab/name")
    row = sample_row(table.__tablename__) | different
    with pytest.raises(CatalogError, match=r"UNIQUE|unique constraint"), filled.catalog.writing() as session:
        session.execute(insert(table), [row])


@pytest.mark.parametrize("column", each(REFERENCES))
def test_a_reference_to_a_missing_row_is_refused(column: Column[int], refusing: LocalRegistry) -> None:
    with pytest.raises(CatalogError, match=FOREIGN_KEY):
        put(refusing, column.table.name, column.name, 404)


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
        session.execute(insert(Blob), [sample_row("blobs") | {"id": 2, "digest": "cd" * 32}])
        session.execute(insert(InlineBlob), [{"blob_id": 2, "stored": b"more"}])
        session.execute(delete(Blob).where(Blob.id == 2))
        assert session.scalars(select(InlineBlob.blob_id)).all() == [1]
