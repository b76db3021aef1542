"""Tests of linking declared parents, for any order of ingests."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from sqlalchemy import select

from organs.registry.catalog.tables import Lineage
from organs.registry.gguf import KeyValue, ValueType
from organs.registry.local import LocalRegistry
from organs.registry.relatives import declared
from tests.gguf_files import file_bytes, text
from tests.related_models import declared_pairs, ingest_bytes, model_file, parent_entries, related_tensors
from tests.small_models import block_metadata, weight_tensor

BASE = model_file("Base", related_tensors())
COPY = model_file("Base", related_tensors(dtype="Q8_0"), parent_entries("Base"))
OTHER_COPY = model_file("base", related_tensors(dtype="Q8_0", correlation=0.9999), parent_entries("BASE"))
TUNED = model_file("Tuned", related_tensors(correlation=0.99), parent_entries("base"))


def ingest_all(registry: LocalRegistry, folder: Path, **files: bytes) -> None:
    for name, data in files.items():
        ingest_bytes(registry, folder, name, data)


@pytest.mark.parametrize("order", list(permutations(("base", "copy", "other", "tuned")))[::5])
def test_every_order_of_ingest_gives_the_same_edges(
    order: tuple[str, ...], registry: LocalRegistry, tmp_path: Path
) -> None:
    files = {"base": BASE, "copy": COPY, "other": OTHER_COPY, "tuned": TUNED}
    ingest_all(registry, tmp_path, **{name: files[name] for name in order})
    assert declared_pairs(registry) == {
        ("copy", "base", "quantized"),
        ("other", "base", "quantized"),
        ("tuned", "base", "finetune"),
    }


def test_a_copy_that_names_itself_does_not_descend_from_itself_or_from_another_copy(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_all(registry, tmp_path, copy=COPY, other=OTHER_COPY, tuned=TUNED)
    pairs = declared_pairs(registry)
    assert {("copy", None, "quantized"), ("other", None, "quantized")} < pairs
    assert ("tuned", "other", "finetune") in pairs, "the most alike of the copies that are there"


def test_the_named_version_is_linked(registry: LocalRegistry, tmp_path: Path) -> None:
    versions = {
        f"v{number}": model_file("Base", related_tensors(seed=number), [text("general.version", f"v{number}")])
        for number in (1, 2)
    }
    child = model_file("Tuned", related_tensors(seed=1), parent_entries("Base", version="v2"))
    ingest_all(registry, tmp_path, **versions, tuned=child)
    assert declared_pairs(registry) == {("tuned", "v2", "finetune")}


@pytest.mark.parametrize("first", ["mine", "theirs"])
def test_a_later_model_of_the_same_name_does_not_take_over_an_adapter(
    first: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    files = {"mine": BASE, "theirs": model_file("Base", related_tensors(seed=4))}
    second = "theirs" if first == "mine" else "mine"
    low_rank = [
        weight_tensor("blk.0.ffn_up.weight.lora_a", (64, 4)),
        weight_tensor("blk.0.ffn_up.weight.lora_b", (4, 96)),
    ]
    kind = [text("general.type", "adapter"), text("adapter.type", "lora"), *parent_entries("Base")]
    adapter = file_bytes([*block_metadata("LoRA"), *kind], low_rank)
    ingest_all(registry, tmp_path, **{first: files[first]}, lora=adapter, **{second: files[second]})
    assert ("lora", first) in {(child, parent) for child, parent, _ in declared_pairs(registry)}


def test_the_most_similar_of_equally_good_namesakes_is_linked(registry: LocalRegistry, tmp_path: Path) -> None:
    versions = {f"v{number}": model_file("Base", related_tensors(seed=number)) for number in (1, 2, 3)}
    child = model_file("Tuned", related_tensors(seed=2, correlation=0.9, other_seed=9), parent_entries("Base"))
    ingest_all(registry, tmp_path, **versions, tuned=child)
    assert declared_pairs(registry) == {("tuned", "v2", "finetune")}


def test_a_complete_model_is_preferred_to_a_partial_one(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_all(registry, tmp_path, part=model_file("Base", related_tensors()[:5]), tuned=TUNED, base=BASE)
    assert declared_pairs(registry) == {("tuned", "base", "finetune")}


def test_an_adapter_is_linked_to_its_base(registry: LocalRegistry, tmp_path: Path) -> None:
    halves = [
        weight_tensor(f"blk.0.attn_q.weight.lora_{half}", shape) for half, shape in (("a", (64, 8)), ("b", (8, 64)))
    ]
    entries = [text("general.architecture", "llama"), text("general.type", "adapter"), *parent_entries("Base")]
    ingest_all(registry, tmp_path, adapter=file_bytes(entries, halves), base=BASE)
    assert declared_pairs(registry) == {("adapter", "base", "adapter")}


def test_a_namesake_of_another_architecture_is_not_linked(registry: LocalRegistry, tmp_path: Path) -> None:
    tower = file_bytes([text("general.architecture", "clip"), text("general.name", "Base")], related_tensors())
    words = file_bytes(block_metadata("Base"))
    ingest_all(registry, tmp_path, tower=tower, words=words, tuned=TUNED)
    assert declared_pairs(registry) == {("tuned", None, "finetune")}


def test_a_parent_without_a_name_is_found_by_its_address(registry: LocalRegistry, tmp_path: Path) -> None:
    entries = [
        KeyValue("general.base_model.count", ValueType.UINT32, 1),
        text("general.base_model.0.repo_url", "https://hub.example/local/Some-Base"),
    ]
    tuned = model_file("Tuned", related_tensors(correlation=0.99), entries)
    ingest_all(registry, tmp_path, **{"tuned": tuned, "Some-Base": model_file("Anything", related_tensors())})
    assert declared_pairs(registry) == {("tuned", "Some-Base", "finetune")}


def test_models_that_name_each_other_are_both_linked(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_all(
        registry,
        tmp_path,
        hen=model_file("Hen", related_tensors(), parent_entries("Egg")),
        egg=model_file("Egg", related_tensors(seed=2), parent_entries("Hen")),
    )
    assert declared_pairs(registry) == {("hen", "egg", "finetune"), ("egg", "hen", "finetune")}


@pytest.mark.parametrize("name", ["a\0b", "x" * 5_000, "'; DROP TABLE models; --", "%", "\N{ZERO WIDTH SPACE}"])
def test_a_hostile_name_of_a_parent_is_not_linked(name: str, registry: LocalRegistry, tmp_path: Path) -> None:
    child = model_file("Tuned", related_tensors(), parent_entries(name))
    ingest_all(registry, tmp_path, tuned=child, base=BASE)
    assert declared_pairs(registry) == {("tuned", None, "finetune")}


def test_edges_over_the_limit_are_linked_by_the_next_ingest_of_that_name(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared, "EDGES_MAX", 2)
    children = {
        f"t{number}": model_file(f"T{number}", related_tensors(), parent_entries("Base")) for number in range(3)
    }
    ingest_all(registry, tmp_path, **children, base=BASE)
    assert declared_pairs(registry) == {
        ("t0", "base", "finetune"),
        ("t1", "base", "finetune"),
        ("t2", None, "finetune"),
    }
    ingest_all(registry, tmp_path, far=model_file("Base", related_tensors(correlation=0.5)))
    assert declared_pairs(registry) == {(f"t{number}", "base", "finetune") for number in range(3)}


def test_the_nearest_texts_are_examined_first(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared, "TEXTS_MAX", 1)
    more = model_file("More", related_tensors(), parent_entries("Base with many more words"))
    ingest_all(registry, tmp_path, more=more, tuned=TUNED, base=BASE)
    assert ("tuned", "base", "finetune") in declared_pairs(registry)


@pytest.mark.parametrize(("declared", "title"), [("BÄSE", "Base"), ("ＢＡＳＥ", "base"), ("Bäse", "BÄSE")])
def test_a_name_is_found_in_any_case_and_without_accents(
    declared: str, title: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    child = model_file("Tuned", related_tensors(), parent_entries(declared))
    ingest_all(registry, tmp_path, tuned=child, base=model_file(title, related_tensors()))
    assert declared_pairs(registry) == {("tuned", "base", "finetune")}


def test_each_of_several_parents_is_linked_once(registry: LocalRegistry, tmp_path: Path) -> None:
    child = model_file("Merged", related_tensors(seed=3), parent_entries("Base", "Absent", "Stranger", "Base"))
    ingest_all(registry, tmp_path, base=BASE, merged=child, stranger=model_file("Stranger", related_tensors(seed=5)))
    assert declared_pairs(registry) == {
        ("merged", "base", "finetune"),
        ("merged", None, "finetune"),
        ("merged", "stranger", "finetune"),
    }
    with registry.catalog.reading() as session:
        texts = session.scalars(select(Lineage.parent_text).where(Lineage.evidence == "declared"))
        assert sorted(str(text) for text in texts) == ["Absent", "Base", "Stranger"]
