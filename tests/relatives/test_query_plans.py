"""Tests of query plans: no statement about relatives reads a whole table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.local import LocalRegistry
from organs.registry.relatives import record_relatives, resolve_declared
from organs.registry.relatives.lineage import lineage_of
from tests.related_models import ingest_bytes, model_file, parent_entries, related_tensors
from tests.search.test_query_plans import plan, planner, spoken

LARGE = re.compile(
    r"SCAN (placements|organs|fingerprints|lineage|model_metadata|model_words|blobs)\b(?! USING COVERING)"
)


@pytest.mark.sqlite
def test_every_statement_uses_an_index(registry: LocalRegistry, tmp_path: Path) -> None:
    for number in range(3):
        file = model_file("Base", related_tensors(correlation=0.9, other_seed=number + 3))
        ingest_bytes(registry, tmp_path, f"base{number}", file)
    ingest_bytes(registry, tmp_path, "tuned", model_file("Tuned", related_tensors(), parent_entries("Base", "Absent")))
    with spoken(registry) as heard, registry.catalog.writing() as session:
        model = model_by_text(session, "tuned")
        record_relatives(session, model)
        resolve_declared(session, model)
        lineage_of(session, model)
    selects = {statement: given for statement, given in heard if statement.lstrip().startswith("SELECT")}
    assert len(selects) >= 8
    with planner(registry) as connection:
        steps = [step for statement, given in selects.items() for step in plan(connection, statement, given)]
    assert [step for step in steps if LARGE.search(step)] == []
    assert sum("ix_placements_place (slot=? AND block=? AND tower=?)" in step for step in steps) >= 1
