"""Tests of query plans: no statement about relatives reads a whole table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.relatives import record_relatives, resolve_declared
from organs.registry.relatives.lineage import lineage_of
from tests.related_models import ingest_bytes, model_file, parent_entries, related_tensors

LARGE = re.compile(
    r"SCAN (placements|organs|fingerprints|lineage|model_metadata|model_words|blobs)\b(?! USING COVERING)"
)


@pytest.mark.sqlite
def test_every_statement_uses_an_index(registry: LocalRegistry, tmp_path: Path) -> None:
    for number in range(3):
        file = model_file("Base", related_tensors(correlation=0.9, other_seed=number + 3))
        ingest_bytes(registry, tmp_path, f"base{number}", file)
    ingest_bytes(registry, tmp_path, "tuned", model_file("Tuned", related_tensors(), parent_entries("Base", "Absent")))
    statements: dict[str, Any] = {}

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements[statement] = parameters

    event.listen(registry.catalog.writer, "before_cursor_execute", note)
    with registry.catalog.writing() as session:
        model = model_by_name(session, parse_model_name("tuned"))
        record_relatives(session, model)
        resolve_declared(session, model)
        lineage_of(session, model)
        event.remove(registry.catalog.writer, "before_cursor_execute", note)
        questions = {text: values for text, values in statements.items() if text.lstrip().startswith("SELECT")}
        assert len(questions) >= 8
        connection = session.connection()
        plans = {
            text: [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)]
            for text, values in questions.items()
        }
    steps = [step for plan in plans.values() for step in plan]
    assert [step for step in steps if LARGE.search(step)] == []
    assert sum("ix_placements_place (slot=? AND block=? AND tower=?)" in step for step in steps) >= 1
