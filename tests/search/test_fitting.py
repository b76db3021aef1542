"""Tests of `fits:` against its definition, and of the counts of fitting organs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from organs.registry.catalog.cursor import PAGE_MAX
from organs.registry.entities.plan import FitCount, FittingModels
from organs.registry.local import LocalRegistry
from organs.registry.search import fitting
from organs.registry.search import plan as search_plan
from organs.registry.search.fitting import batches_of_models
from tests.search.catalogs import Many, RandomModel, RandomPlacement, write_models
from tests.search.oracle import fits

BASE = RandomModel(
    (
        RandomPlacement(type="skeleton", slot="attn_q", organ=1),
        RandomPlacement(slot="ffn_up", organ=2),
        RandomPlacement(slot="ffn_up", block=1, organ=3),
        RandomPlacement(type="norm", slot="attn_norm", shape="64", dtype="F32", organ=4),
        RandomPlacement(type="embed", block=None, slot="token_embd", organ=5),
    ),
    name="base",
)
"""Four types, a place outside blocks, a vector, and two blocks."""


def donor(*rows: RandomPlacement, **more: Any) -> RandomModel:
    return RandomModel(rows, name="donor", **more)


def found(registry: LocalRegistry, text: str) -> list[str]:
    """Return the model and slot of each result."""
    return sorted(f"{organ.model.partition('@')[0]} {organ.slot}" for organ in registry.search(text, limit=PAGE_MAX))


# The definition, part by part.


UP, NORM = RandomPlacement(slot="ffn_up", organ=9), RandomPlacement(type="norm", slot="attn_norm", shape="64", organ=9)
FITTING: dict[str, tuple[RandomPlacement, dict[str, Any], bool]] = {
    "another tensor of the same shape": (UP, {}, True),
    "another type of tensor": (replace(UP, dtype="Q4_K", theta=None), {}, True),
    "a tensor outside of the blocks": (replace(UP, type="embed", block=None, slot="token_embd"), {}, True),
    "the same organ": (replace(UP, organ=2), {}, False),
    "the tensor of another block": (replace(UP, organ=3), {}, True),
    "a block that the base has not": (replace(UP, block=2), {}, False),
    "no block": (replace(UP, block=None), {}, False),
    "a block for a tensor outside of the blocks": (replace(UP, type="embed", block=0, slot="token_embd"), {}, False),
    "another slot": (replace(UP, slot="ffn_down"), {}, False),
    "another tower": (replace(UP, tower="vision"), {}, False),
    "another shape": (replace(UP, shape="64x128"), {}, False),
    "a vector for a matrix": (replace(UP, shape="64", dtype="F32"), {}, False),
    "another architecture": (UP, {"architecture": "qwen2"}, False),
    "the architecture in another case": (UP, {"architecture": "LLAMA"}, False),
    "no architecture": (UP, {"architecture": None}, False),
    "an incomplete adapter": (UP, {"kind": "adapter", "complete": False}, True),
    "a tensor of the type adapter": (replace(UP, type="adapter"), {}, False),
    "a quarantined model": (UP, {"state": "quarantined"}, False),
    "a yanked model": (UP, {"state": "yanked"}, False),
    "a vector in F32": (replace(NORM, dtype="F32"), {}, True),
    "a vector in F16": (NORM, {}, False),
    "a vector in I32": (replace(NORM, dtype="I32"), {}, False),
    **{
        f"a matrix in {dtype}": (replace(UP, dtype=dtype), {}, False)
        for dtype in ("F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K", "TYPE_156", "F16_BE")
    },
}


def test_an_organ_fits_where_the_base_has_another_of_its_shape(registry: LocalRegistry) -> None:
    donors = [
        replace(donor(replace(row, organ=row.organ if row.organ < 9 else number), **more), name=f"donor{number}")
        for number, (row, more, _) in enumerate(FITTING.values(), 10)
    ]
    write_models(registry, [BASE, *donors])
    fitting_names = {organ.model for organ in registry.search("fits:acme/base", limit=PAGE_MAX)}
    does = {case: f"acme/donor{number}@1" in fitting_names for number, case in enumerate(FITTING, 10)}
    assert does == {case: fits for case, (_, _, fits) in FITTING.items()}


def test_the_dtype_of_the_base_fits_except_f64_and_a_matrix_of_one_row_counts_as_a_vector(
    registry: LocalRegistry,
) -> None:
    ours, theirs, expected = [], [], []
    for number, (shape, base_dtype, dtype, does) in enumerate(
        (
            *(("64x64", "F16", "F16", True), ("64x64", "I32", "I32", True), ("64x64", "F64", "F64", False)),
            *(("64x64", "TYPE_156", "TYPE_156", False), ("64x64", "F32_BE", "F32_BE", False)),
            *(("64", "I32", "I32", True), ("64", "F64", "F64", False), ("64x1", "F16", "F16", True)),
            *(("64x1", "F32", "F32", True), ("64x1", "F32", "F16", False)),
        )
    ):
        row = RandomPlacement(slot=f"slot{number}", shape=shape, dtype=base_dtype, organ=number)
        ours.append(row)
        theirs.append(replace(row, dtype=dtype, organ=100 + number))
        expected += [f"acme/donor {row.slot}"] if does else []
    write_models(registry, [replace(BASE, rows=tuple(ours)), donor(*theirs)])
    assert found(registry, "fits:acme/base") == expected


def test_attention_fits_only_with_equal_heads_and_feed_forward_only_with_equal_experts(registry: LocalRegistry) -> None:
    heads = ["attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"]
    heads += ["rope.dimension_count", "attention.sliding_window"]
    stated = [{}, *({key: value} for key in (*heads, "expert_count", "expert_used_count") for value in "84")]
    other = (("qwen2.attention.head_count", "9"), ("llama.block_count", "3"))
    models = []
    for number, facts in enumerate(stated):
        rows = RandomPlacement(type="skeleton", slot="attn_q", organ=number), replace(UP, organ=100 + number)
        metadata = *((f"llama.{key}", value) for key, value in facts.items()), *(other if number % 2 else ())
        models.append(RandomModel(rows, name=f"m{number}", metadata=metadata))
    write_models(registry, models)
    for number, ours in enumerate(stated):
        expected = []
        for position, theirs in enumerate(stated):
            differing = {key for key in (*ours, *theirs) if ours.get(key) != theirs.get(key)}
            slots = ["attn_q"] * differing.isdisjoint(heads) + ["ffn_up"] * (differing <= set(heads))
            expected += [f"acme/m{position} {slot}" for slot in slots if position != number]
        assert found(registry, f"fits:acme/m{number}") == sorted(expected), ours


# Names of bases.


def test_an_unknown_or_hidden_name_finds_nothing_and_the_nearest_is_named(
    registry: LocalRegistry,
) -> None:
    write_models(
        registry,
        [
            BASE,
            donor(RandomPlacement(slot="ffn_up", organ=9)),
            replace(BASE, namespace="hidden", name="xyz", state="quarantined"),
        ],
    )
    for name, nearest in (
        ("acme/bas", "; the nearest is fits:acme/base"),
        ("hidden/xy", ""),
        ("hidden/xyz", ""),
        ("acme/base@7", "; the nearest is fits:acme/base"),
    ):
        page = registry.search(f"fits:{name}")
        assert (page.items, page.notes) == ((), (f"no model here is called {name}{nearest}",))
        assert registry.count(f"fits:{name}").total == 0
        assert len(registry.search(f"-fits:{name}")) == 6
        assert registry.search(f"-fits:{name}").notes == ()
    assert found(registry, "fits:acme/bas,acme/base") == ["acme/donor ffn_up"]


def test_a_name_means_its_exact_case_or_else_every_case(registry: LocalRegistry) -> None:
    write_models(registry, [BASE, replace(BASE, namespace="Acme", rows=()), donor(UP)])
    assert found(registry, "fits:Acme/base") == []
    page = registry.search("fits:ACME/BASE model:acme/donor")
    assert [organ.slot for organ in page] == ["ffn_up"]
    assert page.notes == ("several models are called ACME/BASE; the likeness is that to acme/base@1",)


def test_a_base_without_an_architecture_is_reported(registry: LocalRegistry) -> None:
    others = donor(RandomPlacement(slot="ffn_up", organ=9), architecture=None)
    write_models(registry, [replace(BASE, architecture=None), others])
    page = registry.search("fits:acme/base")
    assert page.items == ()
    assert page.notes == ("acme/base states no architecture, so no tensor is known to fit it",)
    assert registry.fitting("acme/base") == FittingModels(base="acme/base@1", items=(), more=False)


# Combination with other filters, and counts.


def test_counts_include_the_fit_filter_unless_too_many_organs_fit(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        RandomPlacement(slot="ffn_up", organ=8, theta=41),
        RandomPlacement(slot="ffn_up", block=1, organ=9, theta=61),
        RandomPlacement(slot="no", organ=7),
    ]
    write_models(registry, [BASE, donor(*rows, license="gpl")])
    counts = registry.count("fits:acme/base theta>=60")
    assert (counts.total, counts.exact, counts.uncounted) == (1, True, ())
    assert counts.theta_counts == {40: 1, 60: 1}, "without the filter by θ"
    assert counts.fields["license"] == {"gpl": 1}
    monkeypatch.setattr(search_plan, "GATHER_MAX", 0)
    registry.catalog.cache.clear()
    counts = registry.count("fits:acme/base type:organ")
    assert (counts.total, counts.exact, counts.uncounted) == (None, False, ("fits:acme/base",))
    assert counts.fields["slot"] == {"ffn_up": 4, "no": 1}


# Random catalogs, compared with the definition for every row.


@pytest.mark.long
@pytest.mark.parametrize("sampled", [1, 6000])
@pytest.mark.parametrize("gathered", [0, 20_000])
def test_the_search_finds_every_row_that_fits_by_definition(
    gathered: int, sampled: int, many: Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, placed = many
    monkeypatch.setattr(fitting, "SAMPLED_MAX", sampled)
    monkeypatch.setattr(search_plan, "GATHER_MAX", gathered)
    registry.catalog.cache.clear()
    found_any = 0
    for base in placed.models.values():
        if base.state not in ("visible", "yanked"):
            continue
        expected = {row_id for row_id, (row, model) in placed.visible.items() if fits(row, model, base)}
        for text, ids in (("fits:", expected), ("-fits:", placed.visible.keys() - expected)):
            page = placed.found(registry.search(f"{text}{base.full_name}", limit=PAGE_MAX))
            assert sorted(page) == sorted(ids)
        assert registry.count(f"fits:{base.full_name}").total in (None, len(expected))
        by_model = {model.model: model.types for model in registry.fitting(base.full_name).items}
        fitting_models = [placed.rows[row_id][1] for row_id in expected]
        assert by_model == {model.full_name: type_fits(model, base) for model in fitting_models}
        found_any += len(expected) > 1
    assert found_any > 10


def type_fits(model: RandomModel, base: RandomModel) -> dict[str, FitCount]:
    base_organs = {(row.tower, row.block, row.slot, row.organ) for row in base.rows}
    counted = {}
    for kind in {row.type for row in model.rows}:
        rows = [row for row in model.rows if row.type == kind]
        equal = sum((row.tower, row.block, row.slot, row.organ) in base_organs for row in rows)
        counted[kind] = FitCount(sum(fits(row, model, base) for row in rows), equal, len(rows))
    return counted


# Models that fit, for the page of a base.


def test_models_that_fit_come_newest_first_up_to_a_limit(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [
        replace(BASE, name=f"n{number}", rows=(RandomPlacement(slot="ffn_up", organ=number),))
        for number in range(10, 16)
    ]
    strangers = [
        replace(BASE, name=f"x{number}", rows=(RandomPlacement(slot="no", organ=number),)) for number in range(20, 23)
    ]
    write_models(registry, [BASE, *others[:3], *strangers, *others[3:]])
    fitting_page = registry.fitting("acme/base", limit=4)
    assert [model.model for model in fitting_page.items] == [f"acme/n{number}@1" for number in (15, 14, 13, 12)]
    assert fitting_page.more
    fitting_page = registry.fitting("acme/base", limit=6)
    assert [model.model for model in fitting_page.items][3:] == [f"acme/n{number}@1" for number in (12, 11, 10)]
    assert not fitting_page.more
    monkeypatch.setattr(fitting, "EXAMINED_MAX", 3)
    fitting_page = registry.fitting("acme/base")
    assert (len(fitting_page.items), fitting_page.more) == (3, True)


@pytest.mark.parametrize(("tensors", "sizes"), [(1, [2, 2, 2]), (4, [4, 2]), (1000, [6])])
def test_models_are_examined_in_batches_as_large_as_the_base(tensors: int, sizes: list[int]) -> None:
    found = batches_of_models(range(6), dict.fromkeys(range(6), 1), tensors, models_min=2)
    assert [len(batch) for batch in found] == sizes


def test_a_type_is_whole_if_every_organ_fits_or_is_the_same(registry: LocalRegistry) -> None:
    same = tuple(replace(row, organ=row.organ + (10 if row.type == "organ" and row.block else 0)) for row in BASE.rows)
    write_models(registry, [BASE, donor(*same, RandomPlacement(type="skeleton", slot="attn_k", organ=30))])
    (model,) = registry.fitting("acme/base").items
    assert list(model.types.items()) == [
        ("skeleton", FitCount(0, 1, 2)),
        ("organ", FitCount(1, 1, 2)),
        ("embed", FitCount(0, 1, 1)),
        ("norm", FitCount(0, 1, 1)),
    ]
    assert [kind for kind, counts in model.types.items() if counts.whole] == ["organ", "embed", "norm"]
