"""Tests of linking declared parents, for any order of ingests."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from organs.registry.catalog.queries.administration import model_in_any_state
from organs.registry.catalog.register.model_changes import remove_model
from organs.registry.gguf import KeyValue, ValueType
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.relatives import declared, relinking_children
from tests.gguf_files import file_bytes, text
from tests.related_models import declared_pairs, ingest_all, model_file, parent_entries, related_tensors
from tests.small_models import block_metadata, weight_tensor

BASE = model_file("Base", related_tensors())
COPY = model_file("Base", related_tensors(dtype="Q8_0"), parent_entries("Base"))
OTHER_COPY = model_file("base", related_tensors(dtype="Q8_0", correlation=0.9999), parent_entries("BASE"))
TUNED = model_file("Tuned", related_tensors(correlation=0.99), parent_entries("base"))


@pytest.mark.parametrize("order", list(permutations(("base", "copy", "other", "tuned")))[::8])
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


def base_file(seed: int, version: str = "") -> bytes:
    return model_file("Base", related_tensors(seed=seed), [text("general.version", version)] if version else [])


def child_of(*names: str, seed: int = 0, correlation: float = 1.0, **more: str) -> bytes:
    """Return a file that declares parents of these names."""
    return model_file("Tuned", related_tensors(seed=seed, correlation=correlation), parent_entries(*names, **more))


def adapter_of(name: str) -> bytes:
    kind = [text("general.type", "adapter"), text("adapter.type", "lora"), *parent_entries(name)]
    halves = [weight_tensor(f"blk.0.ffn_up.weight.lora_{half}", shape) for half, shape in LORA.items()]
    return file_bytes([*block_metadata("LoRA"), *kind], halves)


LORA = {"a": (64, 4), "b": (4, 96)}
BY_ADDRESS = [
    KeyValue("general.base_model.count", ValueType.UINT32, 1),
    text("general.base_model.0.repo_url", "https://hub.example/local/Some-Base"),
]
TOWER = file_bytes([text("general.architecture", "clip"), text("general.name", "Base")], related_tensors())
HOSTILE = ["a\0b", "x" * 5_000, "'; DROP TABLE models; --", "%", "\N{ZERO WIDTH SPACE}"]
MEAN = model_file("Base", related_tensors(correlation=0.9975))
"""Nearly the mean of base and fine-tune, with the header of the base."""
LINKED: dict[str, tuple[dict[str, bytes], set[tuple[str, str | None]]]] = {
    "the most alike of the copies that are there, and no copy of itself": (
        {"copy": COPY, "other": OTHER_COPY, "tuned": TUNED},
        {("copy", None), ("other", None), ("tuned", "other")},
    ),
    "the named version": (
        {"v1": base_file(1, "v1"), "v2": base_file(2, "v2"), "tuned": child_of("Base", seed=1, version="v2")},
        {("tuned", "v2")},
    ),
    "the most similar of equally good namesakes": (
        {f"v{number}": base_file(number) for number in (1, 2, 3)}
        | {"tuned": child_of("Base", seed=2, correlation=0.9)},
        {("tuned", "v2")},
    ),
    "the model with the declared name rather than a nearer one with its title": (
        {"tuned": TUNED, "mean": MEAN, "base": BASE},
        {("tuned", "base")},
    ),
    "the model with the fewest other words in its name": (
        {"base-code-f16": MEAN, "tuned": TUNED, "base-f16": BASE},
        {("tuned", "base-f16")},
    ),
    "an unquantised model rather than one with the declared name": (
        {"base-q8": model_file("Base", related_tensors(dtype="Q8_0")), "tuned": TUNED, "mine": BASE},
        {("tuned", "mine")},
    ),
    "a complete model rather than a part": (
        {"part": model_file("Base", related_tensors()[:5]), "tuned": TUNED, "base": BASE},
        {("tuned", "base")},
    ),
    "the base of an adapter": ({"lora": adapter_of("Base"), "base": BASE}, {("lora", "base")}),
    "the first base of an adapter": (
        {"mine": BASE, "lora": adapter_of("Base"), "theirs": base_file(4)},
        {("lora", "mine")},
    ),
    "the first base of an adapter also if it is another one": (
        {"theirs": base_file(4), "lora": adapter_of("Base"), "mine": BASE},
        {("lora", "theirs")},
    ),
    "no namesake of another architecture or without weights": (
        {"tower": TOWER, "words": file_bytes(block_metadata("Base")), "tuned": TUNED},
        {("tuned", None)},
    ),
    "a parent with an address and no name": (
        {"tuned": model_file("Tuned", related_tensors(correlation=0.99), BY_ADDRESS), "Some-Base": BASE},
        {("tuned", "Some-Base")},
    ),
    "each of several parents, once": (
        {
            "base": BASE,
            "merged": model_file("Merged", related_tensors(seed=3), parent_entries("Base", "Absent", "Other", "Base")),
            "other": model_file("Other", related_tensors(seed=5)),
        },
        {("merged", "base"), ("merged", None), ("merged", "other")},
    ),
    "models that name each other": (
        {
            "hen": model_file("Hen", related_tensors(), parent_entries("Egg")),
            "egg": model_file("Egg", related_tensors(seed=2), parent_entries("Hen")),
        },
        {("hen", "egg"), ("egg", "hen")},
    ),
    **{
        f"a name in any case and without accents, {name} for {title}": (
            {"tuned": child_of(name), "base": model_file(title, related_tensors())},
            {("tuned", "base")},
        )
        for name, title in (("BÄSE", "Base"), ("ＢＡＳＥ", "base"), ("Bäse", "BÄSE"))
    },
    **{
        f"nothing for a hostile name, {name[:30]!a}": ({"tuned": child_of(name), "base": BASE}, {("tuned", None)})
        for name in HOSTILE
    },
}


@pytest.mark.parametrize("linked", LINKED)
def test_a_declared_parent_is_linked(linked: str, registry: LocalRegistry, tmp_path: Path) -> None:
    files, expected = LINKED[linked]
    ingest_all(registry, tmp_path, **files)
    assert {(child, parent) for child, parent, _ in declared_pairs(registry)} == expected


def test_the_children_of_a_removed_model_are_linked_to_the_next_best_one(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_all(registry, tmp_path, base=BASE, mine=MEAN, tuned=TUNED)
    for parent in ("base", "mine"):
        assert declared_pairs(registry) == {("tuned", parent, "finetune")}
        with registry.catalog.writing() as session:
            model = model_in_any_state(session, parse_model_name(f"local/{parent}"))
            with relinking_children(session, model):
                remove_model(session, model, "a test", "local")
    assert declared_pairs(registry) == {("tuned", None, "finetune")}


def test_the_nearest_texts_are_examined_first(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared, "TEXTS_MAX", 1)
    ingest_all(registry, tmp_path, more=child_of("Base with many more words"), tuned=TUNED, base=BASE)
    assert ("tuned", "base", "finetune") in declared_pairs(registry)


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
