"""Tests of plans: every byte of a future file, by digest."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update

from organs.registry.assembly import plan_merged, plan_model, plan_shards
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.tables import ModelRow
from organs.registry.errors import MissingBlob, NotAssemblable
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests import postgres
from tests.gguf_files import file_bytes, tensor
from tests.small_models import ingest_file


def test_a_model_that_must_not_be_assembled_has_no_plan_in_any_form(registry: LocalRegistry, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(file_bytes([], [tensor("a")]))
    ingest_file(registry, tmp_path / "a.gguf")
    with registry.catalog.writing() as session:
        session.execute(update(ModelRow).values(unassemblable=("first reason", "second reason")))
    with registry.catalog.reading() as session:
        model = model_by_name(session, parse_model_name("a"))
        for plan in (
            lambda: plan_model(session, model),
            lambda: plan_shards(session, registry.blobs, model, "new", 300),
            lambda: plan_merged(session, registry.blobs, model, "merged.gguf"),
        ):
            with pytest.raises(NotAssemblable, match="local/a cannot be assembled: first reason; second") as caught:
                plan()
            assert [fault.detail for fault in caught.value.errors] == ["first reason", "second reason"]


def test_a_blob_without_a_row_is_missing(registry: LocalRegistry, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(file_bytes([], [tensor("a")]))
    ingest_file(registry, tmp_path / "a.gguf")
    # Bypass the constraint that prevents this, as in a damaged database.
    with closing(registry.catalog.writer.raw_connection()) as connection:
        cursor = connection.cursor()
        cursor.execute("SET session_replication_role = replica" if postgres.is_used() else "PRAGMA foreign_keys = OFF")
        cursor.execute("DELETE FROM blobs")
        assert cursor.rowcount == 2
        connection.commit()
        connection.invalidate()
    with registry.catalog.reading() as session, pytest.raises(MissingBlob, match="has no row any more"):
        plan_model(session, model_by_name(session, parse_model_name("a")))
