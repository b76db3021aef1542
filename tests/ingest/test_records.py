"""Tests of the recorded facts of a model: its kind, whether it is complete, parents, metadata and digest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import select

from organs.ingest.records import is_complete
from organs.registry.anatomy import place_of
from organs.registry.catalog.tables import ModelFileRow, ModelMetadata, ModelRow
from organs.registry.digest import digest_of
from organs.registry.gguf import Header, KeyValue, MemorySource, RawKeyValue, ValueType, read_header
from organs.registry.kinds import KIND_NOTES
from organs.registry.local import LocalRegistry
from organs.registry.relatives.declared import PARENTS_MAX, declared_parents
from tests.gguf_files import every_value_type, file_bytes, tensor, text, unsigned
from tests.small_models import Tensors, block_metadata, block_tensors, ingest_file, small_shards


def header_of(entries: Sequence[KeyValue | RawKeyValue], tensors: Tensors) -> Header:
    return read_header(MemorySource(file_bytes(entries, tensors)))


def registered(registry: LocalRegistry, folder: Path, data: bytes) -> ModelRow:
    (folder / "a.gguf").write_bytes(data)
    ingest_file(registry, folder / "a.gguf")
    with registry.catalog.reading() as session:
        model = session.scalars(select(ModelRow)).one()
        session.expunge(model)
    return model


@pytest.mark.parametrize(
    ("entries", "name", "kind", "organ_type"),
    [
        ([text("general.type", "adapter")], "blk.0.attn_q.weight.lora_a", "adapter", "adapter"),
        ([text("general.type", "imatrix")], "blk.0.attn_q.weight.in_sum2", "imatrix", "other"),
        ([text("general.architecture", "controlvector")], "direction.1", "control-vector", "other"),
        ([text("general.architecture", "clip")], "v.blk.0.attn_q.weight", "projector", "skeleton"),
        ([text("general.type", "mmproj")], "mm.0.weight", "projector", "organ"),
        ([text("general.architecture", "flux")], "double_blocks.0.img_in.lin.weight", "image", "other"),
        ([], "model.diffusion_model.input_blocks.4.1.transformer_blocks.0.ff.net.0.proj", "image", "other"),
        ([], "blk.0.attn_q.weight", "model", "skeleton"),
    ],
)
def test_files_for_other_purposes_have_their_kinds_and_are_never_incomplete(
    entries: list[KeyValue], name: str, kind: str, organ_type: str
) -> None:
    header = header_of(entries, [tensor(name, (8, 8))])
    assert (header.kind(), is_complete([header]), place_of(name).type) == (kind, True, organ_type)


def test_a_file_without_tensors_is_a_vocabulary_and_its_report_says_what_that_is(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    model = registered(registry, tmp_path, file_bytes([text("general.architecture", "llama")]))
    assert (model.kind, model.complete, model.tensors) == ("vocabulary", True, 0)
    assert KIND_NOTES["vocabulary"] in str(registry.report("a"))


def test_a_model_with_every_announced_block_is_complete() -> None:
    """Blocks that predict further tokens may be left out."""
    for present, announced, further, complete in (
        (2, 2, 0, True),
        (2, 3, 0, False),
        (2, None, 0, True),
        (2, 1, 0, True),
        (2, 2**32 - 1, 0, False),
        (0, 2, 0, False),
        (2, 3, 1, True),
        (1, 3, 1, False),
    ):
        entries = block_metadata(blocks=announced or 0)[: 3 if announced is None else 4]
        entries.append(unsigned("llama.nextn_predict_layers", further))
        assert is_complete([header_of(entries, block_tensors(present))]) == complete, (present, announced, further)


@pytest.mark.parametrize("kind", ["token_embd", "attn"])
def test_a_model_without_an_embedding_or_without_attention_is_not_complete(kind: str) -> None:
    tensors = [(spec, data) for spec, data in block_tensors(2) if kind not in spec.name or "norm" in spec.name]
    assert not is_complete([header_of(block_metadata(), tensors)])


def test_the_number_of_declared_parents_is_checked_and_limited() -> None:
    entries = [text(f"general.base_model.{number}.name", f"Parent {number}") for number in range(100)]
    for kind, count, kept in (
        (ValueType.UINT32, 3, 3),
        (ValueType.UINT32, 2**32 - 1, PARENTS_MAX),
        (ValueType.INT64, -5, 0),
        (ValueType.STRING, "3", 0),
        (ValueType.BOOL, True, 0),
    ):
        parents = declared_parents(header_of([KeyValue("general.base_model.count", kind, count), *entries], []))
        assert [parent.name for parent in parents] == [f"Parent {number}" for number in range(kept)], count


def test_card_entries_of_the_wrong_type_are_left_empty(registry: LocalRegistry, tmp_path: Path) -> None:
    keys = ("general.name", "general.license", "general.description", "general.architecture", "general.type")
    model = registered(registry, tmp_path, file_bytes([unsigned(key, 1) for key in keys], [tensor("a")]))
    assert (model.title, model.license, model.description, model.architecture) == (None, None, None, None)


def test_metadata_is_recorded_as_text_in_order(registry: LocalRegistry, tmp_path: Path) -> None:
    odd = [
        KeyValue("odd.nan", ValueType.FLOAT32, float("nan")),
        text("odd.nul", "a\0b"),
        text("odd.raw", b"\xff"),
        text("odd.long", "x" * 100_000),
    ]
    entries = [*every_value_type(), *odd]
    registered(registry, tmp_path, file_bytes(entries, [tensor("a")]))
    with registry.catalog.reading() as session:
        rows = session.scalars(select(ModelMetadata).order_by(ModelMetadata.position)).all()
    assert [row.key for row in rows] == [entry.key for entry in entries]
    expected = {
        "scalar.uint64": ("uint64", "18446744073709551615"),
        "scalar.bool": ("bool", "true"),
        "scalar.float32": ("float32", "1.5"),
        "scalar.string": ("string", "Grüße, 世界"),
        "array.string": ("array of string", "[3 × string]"),
        "odd.nan": ("float32", "nan"),
        "odd.nul": ("string", "a␀b"),
        "odd.raw": ("string", "\\xff"),
        "odd.long": ("string", "[string of 100000 bytes]"),
    }
    shown = {row.key: (row.type, row.value) for row in rows}
    assert {key: shown[key] for key in expected} == expected


def test_the_digest_of_a_split_model_covers_its_files_in_order(registry: LocalRegistry, tmp_path: Path) -> None:
    shards = small_shards(count=3)
    for name, data in shards.items():
        (tmp_path / name).write_bytes(data)
    ingest_file(registry, tmp_path / "m-00002-of-00003.gguf")
    with registry.catalog.reading() as session:
        model = session.scalars(select(ModelRow)).one()
        files = session.scalars(select(ModelFileRow).order_by(ModelFileRow.position)).all()
    digests = [digest_of(data) for data in shards.values()]
    assert [(file.name, file.sha256) for file in files] == list(zip(shards, digests, strict=True))
    assert model.digest == digest_of("".join(f"{digest}\n" for digest in digests).encode())
