"""Tests of the recorded facts of a model: its kind, whether it is complete, its parents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from organs.registry.catalog.tables import FilePart, Lineage, ModelFileRow, ModelMetadata, ModelRow, Placement
from organs.registry.digest import digest_of
from organs.registry.gguf import KeyValue, ValueType
from organs.registry.kinds import KIND_NOTES
from organs.registry.local import LocalRegistry
from organs.registry.relatives.declared import PARENTS_MAX
from tests.gguf_files import array, every_value_type, file_bytes, tensor, text, unsigned, vocabulary
from tests.small_models import block_metadata, block_tensors, ingest_file, small_model, small_shards, weight_tensor


def registered(registry: LocalRegistry, folder: Path, data: bytes, name: str = "a.gguf") -> ModelRow:
    (folder / name).write_bytes(data)
    ingest_file(registry, folder / name)
    with registry.catalog.reading() as session:
        model = session.scalars(select(ModelRow).order_by(ModelRow.id.desc()).limit(1)).one()
        session.expunge(model)
    return model


def parents(registry: LocalRegistry) -> list[tuple[str | None, str, str]]:
    with registry.catalog.reading() as session:
        rows = session.scalars(select(Lineage).where(Lineage.child_model_id.is_not(None)).order_by(Lineage.id))
        return [(row.parent_text, row.relation, row.evidence) for row in rows]


def test_the_card_of_a_model_comes_from_its_header(registry: LocalRegistry, tmp_path: Path) -> None:
    more = [text("general.description", "A little one"), text("general.size_label", "30K")]
    model = registered(registry, tmp_path, small_model("Little", more=more))
    assert (model.kind, model.state, model.complete, model.version) == ("model", "visible", True, 1)
    assert (model.title, model.architecture, model.license) == ("Little", "llama", "apache-2.0")
    assert (model.description, model.size_label) == ("A little one", "30K")
    assert model.digest == digest_of(small_model("Little", more=more))


def test_an_adapter_has_the_kind_adapter(registry: LocalRegistry, tmp_path: Path) -> None:
    entries = [
        text("general.architecture", "llama"),
        text("general.type", "adapter"),
        text("adapter.type", "lora"),
        KeyValue("adapter.lora.alpha", ValueType.FLOAT32, 16.0),
        unsigned("general.base_model.count", 1),
        text("general.base_model.0.name", "Base"),
        text("general.base_model.0.organization", "Somebody"),
    ]
    halves = [
        weight_tensor(f"blk.0.attn_q.weight.lora_{half}", shape) for half, shape in (("a", (64, 4)), ("b", (4, 64)))
    ]
    model = registered(registry, tmp_path, file_bytes(entries, halves))
    assert (model.kind, model.complete) == ("adapter", True)
    assert parents(registry) == [("Somebody/Base", "adapter", "declared")]
    with registry.catalog.reading() as session:
        assert {row.type for row in session.scalars(select(Placement))} == {"adapter"}


@pytest.mark.parametrize(
    ("entries", "name", "kind", "organ_type"),
    [
        ([text("general.type", "imatrix")], "blk.0.attn_q.weight.in_sum2", "imatrix", "other"),
        ([text("general.architecture", "controlvector")], "direction.1", "control-vector", "other"),
        ([text("general.architecture", "clip")], "v.blk.0.attn_q.weight", "projector", "skeleton"),
        ([text("general.type", "mmproj")], "mm.0.weight", "projector", "organ"),
        ([text("general.architecture", "flux")], "double_blocks.0.img_in.lin.weight", "image", "other"),
        ([], "model.diffusion_model.input_blocks.4.1.transformer_blocks.0.ff.net.0.proj", "image", "other"),
        ([text("general.architecture", "llama")], "blk.0.attn_q.weight", "model", "skeleton"),
        ([], "blk.0.attn_q.weight", "model", "skeleton"),
        ([text("general.architecture", "llama")], None, "vocabulary", None),
    ],
)
def test_files_for_other_purposes_have_their_kinds_and_are_never_incomplete(
    entries: list[KeyValue],
    name: str | None,
    kind: str,
    organ_type: str | None,
    registry: LocalRegistry,
    tmp_path: Path,
) -> None:
    tensors = [] if name is None else [tensor(name, (8, 8))]
    model = registered(registry, tmp_path, file_bytes(entries, tensors))
    assert (model.kind, model.complete, model.tensors) == (kind, True, len(tensors))
    with registry.catalog.reading() as session:
        assert [row.type for row in session.scalars(select(Placement))] == [organ_type] * len(tensors)
    assert ("no runtime can load it" in " ".join(model.flags)) == (kind == "model" and not entries)
    assert KIND_NOTES.get(kind, "") in str(registry.report("a"))


@pytest.mark.parametrize(
    ("present", "announced", "complete"),
    [(2, 2, True), (2, 3, False), (2, None, True), (2, 1, True), (2, 2**32 - 1, False), (0, 2, False)],
)
def test_a_model_with_every_announced_block_is_complete(
    present: int, announced: int | None, complete: bool, registry: LocalRegistry, tmp_path: Path
) -> None:
    entries = block_metadata(blocks=announced or 0)[: 3 if announced is None else 4]
    model = registered(registry, tmp_path, file_bytes(entries, block_tensors(present)))
    assert model.complete == complete
    assert ("its header states" in " ".join(model.flags)) == (present not in (0, announced) and announced is not None)


def test_a_model_without_the_block_that_predicts_further_tokens_is_complete(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    entries = [*block_metadata(blocks=3), unsigned("llama.nextn_predict_layers", 1)]
    model = registered(registry, tmp_path, file_bytes(entries, block_tensors(2)))
    assert (model.complete, "no tensors of block 2, which predicts" in " ".join(model.flags)) == (True, True)
    lacking = registered(registry, tmp_path, file_bytes(entries, block_tensors(1)), "b.gguf")
    assert (lacking.complete, "no tensors of block 1-2" in " ".join(lacking.flags)) == (False, True)


@pytest.mark.parametrize(
    ("model", "tokens", "is_noted"), [("gpt2", 96, False), ("gpt2", 95, True), ("none", 95, False)]
)
def test_an_embedding_with_other_tokens_than_the_vocabulary_is_noted(
    model: str, tokens: int, is_noted: bool, registry: LocalRegistry, tmp_path: Path
) -> None:
    more = [text("tokenizer.ggml.model", model), array("tokenizer.ggml.tokens", ValueType.STRING, vocabulary(tokens))]
    flags = registered(registry, tmp_path, small_model(more=more)).flags
    assert (
        f"its embedding token_embd.weight has 96 rows, but the vocabulary {tokens} tokens" in " ".join(flags)
    ) == is_noted


@pytest.mark.parametrize("kind", ["token_embd", "attn"])
def test_a_model_without_an_embedding_or_without_attention_is_not_complete(
    kind: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    tensors = [(spec, data) for spec, data in block_tensors(2) if kind not in spec.name or "norm" in spec.name]
    model = registered(registry, tmp_path, file_bytes(block_metadata(), tensors))
    assert (model.kind, model.complete) == ("model", False)


@pytest.mark.parametrize(
    ("count", "kept"),
    [
        pytest.param(unsigned("general.base_model.count", 3), 3, id="as many as stated, in their order"),
        pytest.param(unsigned("general.base_model.count", 2**32 - 1), PARENTS_MAX, id="more than are read"),
        (KeyValue("general.base_model.count", ValueType.INT64, -5), 0),
        (text("general.base_model.count", "3"), 0),
        (KeyValue("general.base_model.count", ValueType.BOOL, value=True), 0),
    ],
)
def test_the_number_of_declared_parents_is_checked_and_limited(
    count: KeyValue, kept: int, registry: LocalRegistry, tmp_path: Path
) -> None:
    entries = [text(f"general.base_model.{number}.name", f"Parent {number}") for number in range(100)]
    registered(registry, tmp_path, small_model(more=[count, *entries]))
    assert parents(registry) == [(f"Parent {number}", "finetune", "declared") for number in range(kept)]


@pytest.mark.parametrize("value", [1, 1.5, True])
def test_card_entries_of_the_wrong_type_are_left_empty(value: Any, registry: LocalRegistry, tmp_path: Path) -> None:
    kind = {int: ValueType.UINT32, float: ValueType.FLOAT32, bool: ValueType.BOOL}[type(value)]
    keys = ("general.name", "general.license", "general.description", "general.architecture", "general.type")
    model = registered(registry, tmp_path, file_bytes([KeyValue(key, kind, value) for key in keys], [tensor("a")]))
    assert (model.title, model.license, model.description, model.architecture) == (None, None, None, None)


def test_nul_and_over_long_text_in_a_card_are_corrected(registry: LocalRegistry, tmp_path: Path) -> None:
    entries = [text("general.name", "a\0b" + "x" * 5_000), text("general.license", "l\0" * 100)]
    model = registered(registry, tmp_path, file_bytes(entries, [tensor("a")]))
    assert (model.title or "").startswith("a␀b")
    assert (len(model.title or ""), len(model.license or "")) == (4096, 96)


def test_metadata_is_recorded_as_text_in_order(registry: LocalRegistry, tmp_path: Path) -> None:
    odd = [
        KeyValue("odd.nan", ValueType.FLOAT32, float("nan")),
        KeyValue("odd.inf", ValueType.FLOAT64, float("inf")),
        text("odd.nul", "a\0b"),
        text("command-r.context_length", "a hyphen"),
        text("odd.raw", b"\xff"),
        text("odd.long", "x" * 100_000),
    ]
    entries = [*every_value_type(), *odd]
    model = registered(registry, tmp_path, file_bytes(entries, [tensor("a")]))
    with registry.catalog.reading() as session:
        rows = session.scalars(
            select(ModelMetadata).where(ModelMetadata.model_id == model.id).order_by(ModelMetadata.position)
        ).all()
    assert [row.key for row in rows] == [entry.key for entry in entries]
    expected = {
        "scalar.uint64": ("uint64", "18446744073709551615"),
        "scalar.int8": ("int8", "127"),
        "scalar.bool": ("bool", "true"),
        "scalar.float32": ("float32", "1.5"),
        "scalar.string": ("string", "Grüße, 世界"),
        "array.string": ("array of string", "[3 × string]"),
        "odd.nan": ("float32", "nan"),
        "odd.inf": ("float64", "inf"),
        "odd.nul": ("string", "a␀b"),
        "odd.raw": ("string", "\\xff"),
        "odd.long": ("string", "[string of 100000 bytes]"),
    }
    shown = {row.key: (row.type, row.value) for row in rows}
    assert {key: shown[key] for key in expected} == expected


def test_placements_record_the_place_and_offset_of_each_tensor(registry: LocalRegistry, tmp_path: Path) -> None:
    data = small_model()
    registered(registry, tmp_path, data)
    with registry.catalog.reading() as session:
        placements = session.scalars(select(Placement).order_by(Placement.position)).all()
    assert [placement.position for placement in placements] == list(range(10))
    for placement, (spec, own) in zip(placements, block_tensors(), strict=True):
        assert (placement.name, placement.dtype, placement.size_bytes) == (spec.name, spec.dtype.name, len(own))
        assert data[placement.offset_bytes : placement.offset_bytes + len(own)] == own
    assert {(row.type, row.block) for row in placements if row.slot == "ffn_up"} == {("organ", 0), ("organ", 1)}


def test_the_parts_of_a_file_are_its_header_its_arrays_and_its_odd_padding(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    tokens = array("tokenizer.ggml.tokens", ValueType.STRING, vocabulary(2_000))
    data = bytearray(file_bytes([tokens, text("general.architecture", "llama")], [tensor("a", (5,))]))
    data[-1] = 9
    registered(registry, tmp_path, bytes(data))
    with registry.catalog.reading() as session:
        file = session.scalars(select(ModelFileRow)).one()
        parts = session.scalars(select(FilePart).order_by(FilePart.offset_bytes)).all()
    assert (file.name, file.size_bytes, file.sha256) == ("a.gguf", len(data), digest_of(bytes(data)))
    assert file.header_sha256 == digest_of(bytes(data[: file.header_bytes]))
    before, array_part, after, padding = parts
    assert before.offset_bytes == 0
    assert before.size_bytes == array_part.offset_bytes
    assert array_part.offset_bytes + array_part.size_bytes == after.offset_bytes
    assert after.offset_bytes + after.size_bytes == file.header_bytes
    assert padding.offset_bytes == len(data) - 12
    assert before.blob_id == after.blob_id == padding.blob_id != array_part.blob_id
    assert (before.blob_offset_bytes, after.blob_offset_bytes) == (0, before.size_bytes)


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
    assert model.name == "m"
