"""Tests of the constraints of tables, and of the times that they return."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import Column, Integer, LargeBinary, String, Text, insert, select, text, update
from sqlalchemy.exc import StatementError

from organs.registry.catalog.tables import (
    Base,
    Blob,
    FleetUnit,
    Lineage,
    ModelRow,
    Number,
    Texts,
    Timestamp,
    UploadChunk,
    UploadRow,
)
from organs.registry.errors import CatalogError
from organs.registry.local import LocalRegistry

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
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
    """Return a registry with a row in every table."""
    with registry.catalog.writing() as session:
        for table in Base.metadata.sorted_tables:
            session.execute(insert(table), [sample_row(table.name)])
    return registry


def put(registry: LocalRegistry, column: Any, value: object) -> None:
    """Set a column of the one row of its table, past everything that checks the value in Python."""
    with registry.catalog.writing() as session:
        statement = text(f'UPDATE {column.table.name} SET "{column.name}" = :value')
        session.execute(statement, {"value": value})


COLUMNS = [column for table in Base.metadata.sorted_tables for column in table.columns]
KNOWN = [column for column in COLUMNS if column.info.get("name") == "known"]
"""The columns that have one of a few words."""


def test_a_word_that_is_not_in_the_vocabulary_is_refused(filled: LocalRegistry) -> None:
    for column in KNOWN:
        for word in ("", "unheard-of", "VISIBLE", "norm ", "present\n"):
            with pytest.raises(CatalogError, match=f"{column.name}_known"):
                put(filled, column, word)


def test_text_that_is_too_long_is_refused_though_sqlite_would_take_it(filled: LocalRegistry) -> None:
    for column in COLUMNS:
        limit = column.type.length if isinstance(column.type, String) else None
        if limit is None:
            continue
        with pytest.raises(CatalogError, match=rf"{column.name}_(length|known)|character varying\({limit}\)"):
            put(filled, column, "ü" * (limit + 1))
        if column not in KNOWN:
            put(filled, column, "ü" * limit)


def test_integers_have_64_bits_except_those_that_stay_small() -> None:
    small = {str(column) for column in COLUMNS if type(column.type) is Integer}
    assert small == {
        "blob_parts.position",
        "blobs.codec_version",
        "card_images.height",
        "card_images.width",
        "evolution_trials.number",
        "evolution_trials.of_number",
        "evolutions.blocks",
        "experts.expert",
        "fleet_units.number",
        "other_names.version",
        "model_files.position",
        "model_metadata.position",
        "models.version",
        "outside_files.mode",
        "runtime_texts.position",
    }


def test_nan_is_never_stored_in_a_table(filled: LocalRegistry) -> None:
    numbers = [column for column in COLUMNS if isinstance(column.type, Number)]
    assert len(numbers) > 20

    def put_nan(column: Column[Any]) -> None:
        with filled.catalog.writing() as session:
            session.execute(update(column.table).values({column.name: float("nan")}))

    for column in numbers:
        if not column.nullable:
            with pytest.raises(CatalogError, match=r"NOT NULL|not-null constraint"):
                put_nan(column)
            continue
        put_nan(column)
        with filled.catalog.reading() as session:
            assert session.execute(select(column)).all() == [(None,)]


def test_a_value_beyond_its_limits_is_refused(filled: LocalRegistry) -> None:
    for column, value, constraint in (
        *((Blob.digest, digest, r"digest_length|character varying\(64\)") for digest in ("", "ab" * 31, "ab" * 33)),
        (Blob.size_bytes, -1, "sizes_positive"),
        (Blob.stored_bytes, -1, "sizes_positive"),
        (ModelRow.version, 0, "version_positive"),
        (UploadRow.received_bytes, 2, "received_within_size"),
        (UploadChunk.size_bytes, 0, "size_positive"),
        (FleetUnit.deaths, -1, "counts_positive"),
        (Lineage.child_organ_id, 1, "one_child"),
        (Lineage.child_model_id, None, "one_child"),
    ):
        with pytest.raises(CatalogError, match=constraint):
            put(filled, column.property.columns[0], value)


def test_a_time_is_the_same_moment_in_every_zone_and_needs_one(filled: LocalRegistry) -> None:
    with filled.catalog.writing() as session:
        zone = timezone(timedelta(hours=-7))
        session.get_one(ModelRow, 1).created_at = datetime(2026, 1, 2, 5, 30, 15, 250_000, tzinfo=zone)
    with filled.catalog.reading() as session:
        made = session.scalars(select(ModelRow.created_at).where(ModelRow.created_at > NOON)).one()
    assert made.isoformat() == "2026-01-02T12:30:15.250000+00:00"
    with pytest.raises((StatementError, AssertionError), match="times are aware"), filled.catalog.writing() as session:
        session.get_one(ModelRow, 1).created_at = datetime(2026, 1, 2, 12)  # noqa: DTZ001
