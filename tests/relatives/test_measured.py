"""Tests of measured relatives of a new model, for any header."""

from __future__ import annotations

import threading
from itertools import permutations
from pathlib import Path

import pytest
from sqlalchemy import select, update

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.tables import Lineage, ModelRow, Placement
from organs.registry.errors import OrganError
from organs.registry.gguf import KeyValue, TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.relatives import find_relatives, measured
from organs.registry.similarity import NOISE
from tests.gguf_files import file_bytes, text
from tests.related_models import ingest_all, ingest_bytes, measured_pairs, model_file, related_tensors
from tests.small_models import Tensors, block_metadata, ingest_file, weight_tensor

FAMILY = {
    "base": model_file("Base", related_tensors()),
    "quantised": model_file("Base", related_tensors(dtype="Q8_0")),
    "tuned": model_file("Tuned", related_tensors(correlation=0.99)),
    "far": model_file("Far", related_tensors(correlation=0.6, other_seed=2)),
    "stranger": model_file("Stranger", related_tensors(seed=5)),
}
TOLERANCE = 4 * NOISE / 7**0.5
"""The noise of the mean of seven matrices."""


def found(registry: LocalRegistry, name: str) -> list[tuple[str, str]]:
    with registry.catalog.reading() as session:
        model = model_by_text(session, name)
        relatives = find_relatives(session, model)
        return [(session.get_one(ModelRow, edge.model_id).name, edge.relation) for edge in relatives]


@pytest.mark.parametrize("order", list(permutations(FAMILY))[::50])
def test_every_order_of_ingest_finds_the_same_pairs(
    order: tuple[str, ...], registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_all(registry, tmp_path, **{name: FAMILY[name] for name in order})
    alike = {("base", "quantised"): 1.0, ("base", "tuned"): 0.99, ("quantised", "tuned"): 0.99}
    alike |= {(name, "far"): 0.6 for name in ("base", "quantised", "tuned")}
    expected = {frozenset(pair): ("relative", pytest.approx(score, abs=TOLERANCE)) for pair, score in alike.items()}
    expected[frozenset(("base", "quantised"))] = ("quantized", pytest.approx(1.0, abs=TOLERANCE))
    assert measured_pairs(registry) == expected


def turned(tensors: Tensors) -> Tensors:
    """Return the matrices with their shapes exchanged."""
    return [
        (TensorSpec(spec.name, spec.shape[::-1], spec.dtype), data)
        for spec, data in tensors
        if len(set(spec.shape)) == 2
    ]


HALVES = [weight_tensor(f"blk.0.attn_q.weight.lora_{half}", shape) for half, shape in (("a", (64, 8)), ("b", (8, 64)))]
OPAQUE = [(TensorSpec("blk.0.ffn_up.weight", (128, 64), dtype_by_name("Q1_0")), bytes(range(18)) * 64)]
BLOCKS, ADAPTER = block_metadata("Alike"), [text("general.type", "adapter")]


@pytest.mark.parametrize(
    ("metadata", "tensors", "others", "are_related"),
    [
        (BLOCKS, related_tensors(), related_tensors(), True),
        (BLOCKS, OPAQUE, OPAQUE, True),
        (BLOCKS, related_tensors(), turned(related_tensors()), False),
        (BLOCKS, *[[weight_tensor("output_norm.weight", (512,), dtype="F32")]] * 2, False),
        (ADAPTER, HALVES, HALVES, False),
        ([], [], [], False),
    ],
    ids=["equal weights", "equal weights that are not read", "other shapes", "vectors", "adapters", "vocabularies"],
)
def test_two_models_are_related_by_the_matrices_of_whole_models(
    metadata: list[KeyValue],
    tensors: Tensors,
    others: Tensors,
    are_related: bool,
    registry: LocalRegistry,
    tmp_path: Path,
) -> None:
    for name, own in (("one", tensors), ("two", others)):
        ingest_bytes(registry, tmp_path, name, file_bytes([*metadata, text("general.description", name)], own))
    assert measured_pairs(registry) == ({frozenset(("one", "two")): ("relative", 1.0)} if are_related else {})


def test_the_parent_of_a_measured_edge_is_the_older_model(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_all(registry, tmp_path, tuned=FAMILY["tuned"], base=FAMILY["base"])
    assert found(registry, "base") == [("tuned", "relative")]
    with registry.catalog.reading() as session:
        (edge,) = session.scalars(select(Lineage).where(Lineage.evidence == "measured")).all()
        older, newer = (model_by_text(session, name).id for name in ("tuned", "base"))
    assert (edge.parent_model_id, edge.child_model_id) == (older, newer)


def test_a_model_with_a_longer_vocabulary_is_compared_by_its_other_organs(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    longer = [weight_tensor("token_embd.weight", (64, 128), seed=9), *related_tensors(correlation=0.99)[1:]]
    ingest_all(registry, tmp_path, base=FAMILY["base"], longer=longer)
    ((relation, score),) = measured_pairs(registry).values()
    assert (relation, score) == ("relative", pytest.approx(0.99, abs=0.01))
    with registry.catalog.reading() as session:
        (relative,) = find_relatives(session, model_by_text(session, "longer"))
    assert (relative.similarity.organ_count, relative.similarity.first_count) == (6, 7)


def test_a_donor_is_related_by_its_grafted_organs(registry: LocalRegistry, tmp_path: Path) -> None:
    strange = dict(related_tensors(seed=5))
    grafted = [(spec, data if "ffn" in spec.name else strange[spec]) for spec, data in related_tensors()]
    ingest_all(registry, tmp_path, base=FAMILY["base"], grafted=grafted)
    ((relation, score),) = measured_pairs(registry).values()
    assert (relation, score) == ("relative", pytest.approx(4 / 7, abs=TOLERANCE))


def test_a_hidden_model_is_not_found(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "base", FAMILY["base"])
    with registry.catalog.writing() as session:
        session.execute(update(ModelRow).values(state="quarantined"))
        session.execute(update(Placement).values(visible=False))
    ingest_bytes(registry, tmp_path, "tuned", FAMILY["tuned"])
    assert measured_pairs(registry) == {}


def test_a_new_model_with_many_relatives_keeps_the_most_similar(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, alike in enumerate((0.5, 0.95, 0.7, 0.99, 0.6)):
        ingest_bytes(
            registry,
            tmp_path,
            f"kin{number}",
            model_file("Kin", related_tensors(correlation=alike, other_seed=10 + number)),
        )
    monkeypatch.setattr(measured, "COMPARED_MAX", 2)
    ingest_bytes(registry, tmp_path, "base", FAMILY["base"])
    assert [name for name, _ in found(registry, "base")] == ["kin3", "kin1"]
    assert {pair for pair in measured_pairs(registry) if "base" in pair} == {
        frozenset(("base", "kin3")),
        frozenset(("base", "kin1")),
    }


def test_two_relatives_ingested_concurrently_find_each_other(registry: LocalRegistry, tmp_path: Path) -> None:
    names = ("base", "tuned", "far")
    for name in names:
        (tmp_path / f"{name}.gguf").write_bytes(FAMILY[name])
    together = threading.Barrier(len(names))
    errors: list[OrganError] = []

    def ingest(name: str) -> None:
        together.wait()
        try:
            ingest_file(registry, tmp_path / f"{name}.gguf")
        except OrganError as error:
            errors.append(error)

    threads = [threading.Thread(target=ingest, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert set(measured_pairs(registry)) == {
        frozenset(("base", "tuned")),
        frozenset(("base", "far")),
        frozenset(("tuned", "far")),
    }
