"""Tests of the table of measures: all its consequences, and organs that lack a measure."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, select, update

from organs.registry.catalog.tables import Fingerprint, Lineage, MeasurementRow, Placement
from organs.registry.entities.base import schemas
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.local import LocalRegistry
from organs.registry.measure import Measurement as Measured
from organs.registry.measures import MEASURES, RANKED_MEASURES, Measure
from organs.registry.search.language import ALIASES, ORGANS, parse_query
from organs.registry.similarity import coarse_rows
from organs.registry.upkeep import measure_missing
from tests.cli.in_process import OrganCommand
from tests.related_models import ingest_bytes, model_file, related_tensors

DOCS = Path(__file__).resolve().parents[1] / "docs" / "numbers.md"
ZOO = Path(__file__).resolve().parents[1] / "examples" / "zoo"


@pytest.mark.parametrize("one", MEASURES.values(), ids=lambda one: one.name)
def test_a_measure_is_computed_stored_searchable_described_and_documented(one: Measure) -> None:
    assert one.name in {field.name for field in fields(Measured)}
    for table in (Placement.__table__, MeasurementRow.__table__):
        assert table.columns[one.name].nullable
    indexed = {column.name for index in Placement.__table__.indexes for column in list(index.columns)[2:3]}
    assert (one.name in indexed) == (one.name in RANKED_MEASURES) == (one.ranked_as is None)
    assert ORGANS.fields[one.field].meaning == ORGANS.sorts[one.field] == one.summary
    assert all(ALIASES.get(alias, alias) == one.field for alias in (one.name, *one.aliases))
    parse_query(one.example.split()[0])
    member = schemas([PlacedOrgan])["PlacedOrgan"]["properties"][one.name]["anyOf"][0]
    assert member["description"].startswith(one.meaning)
    assert (member["minimum"], member.get("maximum")) == (one.low, one.high)
    assert one.label in DOCS.read_text("utf-8").replace("*", "")


def test_organs_of_an_earlier_version_get_the_missing_measure(filled: LocalRegistry) -> None:
    registry = filled
    organ = OrganCommand(registry.settings.home)
    organ.done("ingest", ZOO / "Zoo-A-2M-v1.0-F16.gguf")  # its norms are too short for a magnitude
    before = {organ.digest: organ for organ in registry.search("type:organ sort:-erank")}
    assert all(organ.effective_rank is not None for organ in before.values())
    with registry.catalog.writing() as session:
        for table in (MeasurementRow, Placement):
            session.execute(update(table).values(effective_rank=None))
    assert {organ.effective_rank for organ in registry.search("type:organ")} == {None}
    assert organ.done("measure", "--missing").out.endswith(" tensors measured\n")
    after = {organ.digest: organ for organ in registry.search("type:organ sort:-erank")}
    assert after == before
    assert organ.done("measure", "--missing").out == "every tensor has all measures that it can have\n"
    assert organ("measure", "--missing", "x.gguf").status == 2


def test_fingerprints_and_edges_of_earlier_versions_are_measured_again(registry: LocalRegistry, tmp_path: Path) -> None:
    organ = OrganCommand(registry.settings.home)
    for name, share in (("base", 1.0), ("tuned", 0.999)):
        ingest_bytes(registry, tmp_path, name, model_file(name.title(), related_tensors(correlation=share)))
    present = registry.compare("base", "tuned")
    with registry.catalog.writing() as session:
        rows = session.scalars(select(Fingerprint)).all()
        for row, coarse in zip(rows, coarse_rows([row.values for row in rows]), strict=True):
            row.values = coarse.tobytes()
        session.execute(update(Lineage).values(change=None))
    earlier = registry.compare("base", "tuned")
    assert earlier.likeness == pytest.approx(present.likeness, abs=0.001)
    assert earlier.change is None
    assert "organ measure --missing" in organ.done("compare", "base", "tuned").out
    assert organ.done("measure", "--missing").out.endswith(" tensors measured\n")
    assert registry.compare("base", "tuned") == present
    with registry.catalog.reading() as session:
        measured = select(Lineage.change).where(Lineage.evidence == "measured")
        assert session.scalars(measured).all() == [present.change]


def test_only_missing_measures_are_written_with_one_statement_per_table(
    filled: LocalRegistry,
) -> None:
    with filled.catalog.writing() as session:
        session.execute(update(MeasurementRow).values(effective_rank=None))
        session.execute(update(MeasurementRow).where(MeasurementRow.stable_rank.is_not(None)).values(stable_rank=1.5))
    updates: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        if statement.startswith("UPDATE") and "catalog_version" not in statement:
            updates.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        report = measure_missing(filled.catalog, filled.blobs)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert (report.measured > 2, report.unreadable) == (True, 0)
    assert len(updates) == 3, "one UPDATE per table for the measure that is missing, for any number of tensors"
    with filled.catalog.reading() as session:
        rows = session.scalars(select(MeasurementRow).where(MeasurementRow.effective_rank.is_not(None))).all()
        assert {row.stable_rank for row in rows} == {1.5}
