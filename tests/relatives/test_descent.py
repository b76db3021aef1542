"""Tests of the direction of measured edges: which model of a family is the base, and which a sibling or a blend."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from organs.registry.catalog.queries.relatives import Edge
from organs.registry.relatives.descent import Descent, Records, descents

WEIGHTS = 20_000
Model = NDArray[np.float64]


def tuned(base: Model, energy: float, seed: int) -> Model:
    """Return `base` with a change of this energy in a random direction."""
    change = np.random.default_rng(seed).standard_normal(WEIGHTS)
    return base + change * np.sqrt(energy * (base @ base) / (change @ change))


def found(
    models: dict[int, Model],
    dtypes: dict[int, str] | None = None,
    same: Collection[str] = (),
    records: Records | None = None,
    **matched: float,
) -> dict[str, Descent]:
    """Return what the measured edges between all `models` say, by `younger-older`.

    Pairs in `same` are recognised as encodings of the same weights; `matched` has shares of equal blocks by `_y_o`.
    """
    links = []
    for older, younger in combinations(sorted(models), 2):
        own, other = models[younger], models[older]
        change = float(2 * ((own - other) @ (own - other)) / (own @ own + other @ other))
        relation = "quantized" if f"{younger}-{older}" in same else "relative"
        links.append(Edge(younger, older, relation, change, matched.get(f"_{younger}_{older}")))
    described = descents(links, dict.fromkeys(models, "F16") | (dtypes or {}), records)
    return {f"{younger}-{older}": descent for (younger, older), descent in described.items()}


BASE = np.random.default_rng(0).standard_normal(WEIGHTS)
CODE, DOCS, DRIFT = tuned(BASE, 7.5e-6, 1), tuned(BASE, 7.5e-6, 2), tuned(BASE, 4e-4, 3)


def test_the_base_of_fine_tunes_is_named_in_any_order_of_arrival() -> None:
    for order in ([0, 1, 2, 3], [3, 0, 2, 1], [2, 3, 1, 0]):
        models = dict(zip(order, (BASE, CODE, DOCS, DRIFT), strict=True))
        base, *others = order
        edges = found(models)
        for other in others:
            assert edges[f"{max(base, other)}-{min(base, other)}"] == Descent("finetune", base)
        siblings = [f"{max(pair)}-{min(pair)}" for pair in combinations(others, 2)]
        assert {edges[pair] for pair in siblings} == {Descent("sibling")}


def test_two_models_have_no_direction() -> None:
    assert found({1: BASE, 2: CODE}) == {"2-1": Descent("relative")}


def test_an_edge_without_a_change_does_not_name_a_parent() -> None:
    links = [
        Edge(4, 1, "quantized", 2e-6), Edge(2, 1, "relative", 7.5e-6), Edge(3, 1, "relative", 7.5e-6),
        Edge(3, 2, "relative", 1.5e-5), Edge(4, 2, "relative", None), Edge(4, 3, "relative", 9e-6),
    ]  # fmt: skip
    edges = descents(links, {1: "F16", 2: "F16", 3: "F16", 4: "BF16"})
    assert (edges[2, 1], edges[4, 2]) == (Descent("finetune", 1), Descent("relative"))
    assert (edges[3, 1], edges[4, 3]) == (Descent("finetune", 1), Descent("relative"))


def test_a_fine_tune_of_a_fine_tune_is_below_it() -> None:
    edges = found({1: BASE, 2: CODE, 3: DOCS, 4: DRIFT, 5: tuned(CODE, 2e-6, 5)})
    assert (edges["5-2"], edges["2-1"]) == (Descent("finetune", 2), Descent("finetune", 1))
    assert edges["5-1"] == Descent("relative")


def test_fine_tunes_in_similar_directions_are_siblings_although_they_are_nearer_to_each_other() -> None:
    far = BASE + 0.6 * np.sqrt(4e-4 / 7.5e-6) * (CODE - BASE) + 0.8 * (DRIFT - BASE)
    edges = found({1: BASE, 2: CODE, 3: DOCS, 4: far})
    assert (far - CODE) @ (far - CODE) < (far - BASE) @ (far - BASE)
    assert (edges["4-1"], edges["4-2"]) == (Descent("finetune", 1), Descent("sibling"))


def test_the_mean_of_two_fine_tunes_is_not_their_base() -> None:
    edges = found({1: BASE, 2: CODE, 3: DOCS, 4: (CODE + DOCS) / 2, 5: DRIFT})
    assert {edges[pair] for pair in ("2-1", "3-1", "5-1")} == {Descent("finetune", 1)}
    assert {edges[pair] for pair in ("4-1", "4-2", "4-3", "5-4")} == {Descent("relative")}


def test_a_recorded_chimera_is_only_alike_and_changes_nothing_between_other_models() -> None:
    little, much = (np.concatenate((CODE[:end], BASE[end:])) for end in (WEIGHTS // 30, WEIGHTS * 29 // 30))
    family = {1: BASE, 2: CODE, 3: DOCS}
    chimeras = family | {4: much, 5: little}
    assert found(chimeras)["5-4"].parent is not None, "the weights alone name a parent"
    records = Records({4: frozenset({1, 2}), 5: frozenset({1, 2})}, frozenset({4, 5}))
    edges = found(chimeras, records=records)
    assert {edges[pair] for pair in ("5-4", "4-3", "5-3")} == {Descent("sibling")}
    assert {pair: edges[pair] for pair in ("2-1", "3-1", "3-2")} == found(family)
    assert found(family, records=Records({2: frozenset({9})}))["2-1"] == Descent("relative"), "its source is known"
    later = found({3: CODE, 4: much}, {3: "Q4_K"}, records=records, _4_3=0.99)
    assert later == {"4-3": Descent("relative")}, "a chimera that was made later is not the source of a quantisation"
    assert found({4: much, 7: CODE}, {7: "Q4_K"}, records=records, _7_4=0.99) == {"7-4": Descent("quantized", 4)}


def test_the_same_weights_in_two_float_types_are_one_model() -> None:
    half = {number: model.astype(np.float16).astype(np.float64) for number, model in ((2, BASE), (4, CODE))}
    dtypes = {1: "F32", 2: "F16", 3: "F32", 4: "F16", 5: "F32"}
    edges = found({1: BASE, 3: CODE, 5: DOCS} | half, dtypes, same=("2-1", "4-3"))
    assert (edges["2-1"], edges["4-3"]) == (Descent("quantized"), Descent("quantized"))
    parents = [{edges[f"{model}-1"].parent, edges[f"{model}-2"].parent} - {None} for model in (3, 4, 5)]
    assert all(len(found) == 1 and found < {1, 2, 3} for found in parents), "one variant of the base is the parent"
    assert edges["5-3"] == edges["5-4"] == Descent("sibling")


def test_a_quantisation_has_the_source_that_encoding_proves_and_no_other() -> None:
    models = {1: BASE, 2: CODE, 3: DOCS, 4: tuned(CODE, 5e-3, 6)}
    dtypes = {4: "Q4_K"}
    edges = found(models, dtypes, _4_1=0.2, _4_2=0.99, _4_3=0.1)
    assert [edges[pair] for pair in ("4-1", "4-2", "4-3")] == [
        Descent("relative"), Descent("quantized", 2), Descent("relative"),
    ]  # fmt: skip
    assert (edges["2-1"], edges["3-1"]) == (Descent("finetune", 1), Descent("finetune", 1))
    unknown = found(models, dtypes, _4_1=0.01, _4_2=0.014, _4_3=0.01)
    assert {unknown[pair] for pair in ("4-1", "4-2", "4-3")} == {Descent("relative")}, "never a wrong source"


def test_only_the_nearest_source_is_likely_if_encoding_was_not_tried() -> None:
    links = [Edge(3, 1, "quantized", 5.01e-3), Edge(3, 2, "quantized", 5e-3), Edge(2, 1, "relative", 7e-6)]
    edges = descents(links, {1: "F16", 2: "F16", 3: "Q4_K"})
    assert (edges[3, 1], edges[3, 2]) == (Descent("relative"), Descent("quantized"))


def test_a_model_with_exactly_the_values_of_a_quantisation_was_made_from_it() -> None:
    links = [Edge(2, 1, "quantized", 3e-9)]
    assert descents(links, {1: "Q4_1", 2: "F16"}) == {(2, 1): Descent("dequantized", 1)}
    assert descents(links, {1: "F32", 2: "Q4_1"}) == {(2, 1): Descent("dequantized", 2)}


def test_a_dequantised_model_may_be_the_base_of_fine_tunes_and_is_no_fine_tune() -> None:
    family = {1: BASE, 2: CODE, 3: DOCS, 4: BASE}
    edges = found(family, {4: "Q4_1"})
    assert (edges["4-1"], edges["2-1"]) == (Descent("dequantized", 4), Descent("finetune", 1))
    coarse = tuned(BASE, 5e-3, 8)
    edges = found(family | {4: coarse, 5: coarse}, {4: "Q4_1"})
    assert (edges["5-4"], edges["5-1"].parent) == (Descent("dequantized", 4), None)
