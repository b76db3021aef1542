"""Tests of plans: every byte of a future file, by digest."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update

from organs.registry.assembly import (
    FilePlan,
    plan_model,
)
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.tables import ModelRow
from organs.registry.digest import digest_of
from organs.registry.errors import MissingBlob, NotAssemblable
from organs.registry.gguf import ValueType
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests import postgres
from tests.gguf_files import array, file_bytes, tensor, vocabulary
from tests.small_models import ingest_file, small_model


def planned(registry: LocalRegistry, name: str) -> list[FilePlan]:
    with registry.catalog.reading() as session:
        return plan_model(session, model_by_name(session, parse_model_name(name)))


def test_a_plan_covers_the_file_in_order_and_without_overlap(registry: LocalRegistry, tmp_path: Path) -> None:
    tokens = array("tokenizer.ggml.tokens", ValueType.STRING, vocabulary(1_000))
    data = bytearray(small_model(more=[tokens]))
    (tmp_path / "a.gguf").write_bytes(data)
    ingest_file(registry, tmp_path / "a.gguf")
    (plan,) = planned(registry, "a")
    assert (plan.name, plan.size_bytes, plan.sha256) == ("a.gguf", len(data), digest_of(bytes(data)))
    assert plan.literal == b""
    position = 0
    for piece in plan.slices:
        assert piece.offset_bytes >= position
        assert not data[position : piece.offset_bytes].strip(b"\0"), "between slices there are zeros"
        assert 0 <= piece.blob_offset_bytes <= piece.blob.size_bytes - piece.size_bytes
        position = piece.offset_bytes + piece.size_bytes
    assert position <= plan.size_bytes
    assert len(plan.slices) == 10 + 3, "ten tensors; the header before and behind the vocabulary, and the vocabulary"


def test_a_plan_of_only_a_header_has_one_slice(registry: LocalRegistry, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(file_bytes())
    ingest_file(registry, tmp_path / "a.gguf")
    (plan,) = planned(registry, "a")
    assert [piece.size_bytes for piece in plan.slices] == [24]
    assert plan.size_bytes == 32


def test_a_model_that_must_not_be_assembled_has_no_plan(registry: LocalRegistry, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(file_bytes([], [tensor("a")]))
    ingest_file(registry, tmp_path / "a.gguf")
    with registry.catalog.writing() as session:
        session.execute(update(ModelRow).values(unassemblable=("first reason", "second reason")))
    with pytest.raises(NotAssemblable, match="local/a cannot be assembled: first reason; second reason") as caught:
        planned(registry, "a")
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
    with pytest.raises(MissingBlob, match="has no row any more"):
        planned(registry, "a")
