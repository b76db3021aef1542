"""Tests of `fits:` against its definition, and of the counts of fitting organs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from organs.registry.catalog.cursor import PAGE_MAX
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.tables import ModelRow
from organs.registry.entities.plan import FitCount, FittingModels
from organs.registry.errors import BadQuery
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.search import fitting
from organs.registry.search import plan as search_plan
from organs.registry.search.fitting import batches_of_models, fitting_models
from tests.registry_templates import RegistryTemplates, add_zoo_models
from tests.search.catalogs import RandomModel, RandomPlacement, WrittenCatalog, write_models, write_random_catalog
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


def models_fitting(registry: LocalRegistry, name: str, limit: int = 50) -> FittingModels:
    with registry.catalog.reading() as session:
        return fitting_models(session, model_by_name(session, parse_model_name(name)), limit)


# The definition, part by part.


UP, NORM = RandomPlacement(slot="ffn_up", organ=9), RandomPlacement(type="norm", slot="attn_norm", shape="64", organ=9)
FITTING: dict[str, tuple[RandomPlacement, dict[str, Any], bool]] = {
    "another organ of the same shape": (UP, {}, True),
    "another type of tensor": (replace(UP, dtype="Q4_K", theta=None), {}, True),
    "an organ outside of the blocks": (replace(UP, type="embed", block=None, slot="token_embd"), {}, True),
    "the same organ": (replace(UP, organ=2), {}, False),
    "the organ of another block": (replace(UP, organ=3), {}, True),
    "a block that the base has not": (replace(UP, block=2), {}, False),
    "no block": (replace(UP, block=None), {}, False),
    "a block for an organ outside of the blocks": (replace(UP, type="embed", block=0, slot="token_embd"), {}, False),
    "another slot": (replace(UP, slot="ffn_down"), {}, False),
    "another tower": (replace(UP, tower="vision"), {}, False),
    "another shape": (replace(UP, shape="64x128"), {}, False),
    "a vector for a matrix": (replace(UP, shape="64", dtype="F32"), {}, False),
    "another architecture": (UP, {"architecture": "qwen2"}, False),
    "the architecture in another case": (UP, {"architecture": "LLAMA"}, False),
    "no architecture": (UP, {"architecture": None}, False),
    "an incomplete adapter": (UP, {"kind": "adapter", "complete": False}, True),
    "an organ of the type adapter": (replace(UP, type="adapter"), {}, False),
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


@pytest.mark.parametrize("case", FITTING)
def test_an_organ_fits_where_the_base_has_another_of_its_shape(case: str, registry: LocalRegistry) -> None:
    row, more, does = FITTING[case]
    write_models(registry, [BASE, donor(row, **more)])
    assert found(registry, "fits:acme/base") == ([f"acme/donor {row.slot}"] if does else [])


@pytest.mark.parametrize(
    ("shape", "dtype", "does"),
    [
        *(("64x64", "F16", True), ("64x64", "I32", True), ("64x64", "F64", False), ("64x64", "TYPE_156", False)),
        *(("64x64", "F32_BE", False), ("64", "I32", True), ("64", "F64", False), ("64x1", "F16", True)),
    ],
)
def test_the_dtype_of_the_base_fits_except_f64(shape: str, dtype: str, does: bool, registry: LocalRegistry) -> None:
    row = RandomPlacement(slot="ffn_up", shape=shape, dtype=dtype)
    write_models(registry, [replace(BASE, rows=(row,)), donor(replace(row, organ=9))])
    assert found(registry, "fits:acme/base") == (["acme/donor ffn_up"] if does else [])


@pytest.mark.parametrize(("dtype", "does"), [("F32", True), ("F16", False)])
def test_a_matrix_of_one_row_counts_as_a_vector(dtype: str, does: bool, registry: LocalRegistry) -> None:
    row = RandomPlacement(slot="ffn_up", shape="64x1", dtype="F32")
    write_models(registry, [replace(BASE, rows=(row,)), donor(replace(row, dtype=dtype, organ=9))])
    assert found(registry, "fits:acme/base") == (["acme/donor ffn_up"] if does else [])


HEADS = [
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("rope.dimension_count", "attention.sliding_window"),
]
EXPERTS = ["expert_count", "expert_used_count"]


@pytest.mark.parametrize("key", [*HEADS, *EXPERTS])
@pytest.mark.parametrize(
    ("ours", "theirs", "does"),
    [("8", "8", True), ("8", "4", False), ("8", None, False), (None, "8", False), (None, None, True)],
)
def test_attention_fits_only_with_equal_heads_and_feed_forward_only_with_equal_experts(
    ours: str | None, theirs: str | None, does: bool, key: str, registry: LocalRegistry
) -> None:
    def stated(value: str | None) -> tuple[tuple[str, str], ...]:
        return (("general.name", "x"), *([(f"llama.{key}", value)] if value else []))

    rows = RandomPlacement(type="skeleton", slot="attn_q", organ=8), UP
    write_models(registry, [replace(BASE, metadata=stated(ours)), donor(*rows, metadata=stated(theirs))])
    assert ("acme/donor attn_q" in found(registry, "fits:acme/base")) == (does or key in EXPERTS)
    assert ("acme/donor ffn_up" in found(registry, "fits:acme/base")) == (does or key in HEADS)


def test_metadata_of_another_architecture_is_ignored(registry: LocalRegistry) -> None:
    rows = (RandomPlacement(type="skeleton", slot="attn_q", organ=8),)
    write_models(
        registry, [BASE, donor(*rows, metadata=(("qwen2.attention.head_count", "8"), ("llama.block_count", "3")))]
    )
    assert found(registry, "fits:acme/base") == ["acme/donor attn_q"]


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
    assert page.notes == ("acme/base states no architecture, so no organ is known to fit it",)
    assert models_fitting(registry, "acme/base") == FittingModels(base="acme/base@1", items=(), more=False)


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


def test_models_cannot_be_searched_by_fit(registry: LocalRegistry) -> None:
    write_models(registry, [BASE])
    with pytest.raises(BadQuery, match="fits is a field of organs; models have kind, model"):
        registry.models("fits:acme/base")


# Random catalogs, compared with the definition for every row.


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalRegistry, WrittenCatalog]]:
    with LocalRegistry.open(tmp_path_factory.mktemp("many")) as registry:
        yield registry, write_random_catalog(registry, 60, seed=5)


@pytest.mark.long
@pytest.mark.parametrize("sampled", [1, 6000])
@pytest.mark.parametrize("gathered", [0, 20_000])
def test_the_search_finds_every_row_that_fits_by_definition(
    gathered: int, sampled: int, many: tuple[LocalRegistry, WrittenCatalog], monkeypatch: pytest.MonkeyPatch
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
        by_model = {model.model: model.types for model in models_fitting(registry, base.full_name).items}
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


def test_models_that_fit_come_newest_first_up_to_a_limit(registry: LocalRegistry) -> None:
    others = [
        replace(BASE, name=f"n{number}", rows=(RandomPlacement(slot="ffn_up", organ=number),))
        for number in range(10, 16)
    ]
    strangers = [
        replace(BASE, name=f"x{number}", rows=(RandomPlacement(slot="no", organ=number),)) for number in range(20, 23)
    ]
    write_models(registry, [BASE, *others[:3], *strangers, *others[3:]])
    fitting_page = models_fitting(registry, "acme/base", 4)
    assert [model.model for model in fitting_page.items] == [f"acme/n{number}@1" for number in (15, 14, 13, 12)]
    assert fitting_page.more
    fitting_page = models_fitting(registry, "acme/base", 6)
    assert [model.model for model in fitting_page.items][3:] == [f"acme/n{number}@1" for number in (12, 11, 10)]
    assert not fitting_page.more
    with pytest.raises(BadQuery, match="a page has 1 to 1000 results"):
        models_fitting(registry, "acme/base", 0)


@pytest.mark.parametrize(("tensors", "sizes"), [(1, [2, 2, 2]), (4, [4, 2]), (1000, [6])])
def test_models_are_examined_in_batches_as_large_as_the_base(tensors: int, sizes: list[int]) -> None:
    found = batches_of_models(range(6), dict.fromkeys(range(6), 1), tensors, models_min=2)
    assert [len(batch) for batch in found] == sizes


def test_the_number_of_examined_models_is_limited(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [
        replace(BASE, name=f"n{number}", rows=(RandomPlacement(slot="ffn_up", organ=number),))
        for number in range(10, 16)
    ]
    write_models(registry, [BASE, *others])
    monkeypatch.setattr(fitting, "EXAMINED_MAX", 3)
    fitting_page = models_fitting(registry, "acme/base")
    assert (len(fitting_page.items), fitting_page.more) == (3, True)


def test_a_type_is_whole_if_every_organ_fits_or_is_the_same(registry: LocalRegistry) -> None:
    same = tuple(replace(row, organ=row.organ + (10 if row.type == "organ" and row.block else 0)) for row in BASE.rows)
    write_models(registry, [BASE, donor(*same, RandomPlacement(type="skeleton", slot="attn_k", organ=30))])
    (model,) = models_fitting(registry, "acme/base").items
    assert list(model.types.items()) == [
        ("skeleton", FitCount(0, 1, 2)),
        ("organ", FitCount(1, 1, 2)),
        ("embed", FitCount(0, 1, 1)),
        ("norm", FitCount(0, 1, 1)),
    ]
    assert [kind for kind, counts in model.types.items() if counts.whole] == ["organ", "embed", "norm"]


# The zoo, whose fits are known.


@pytest.fixture(scope="module")
def zoo(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with templates.open_copy(add_zoo_models, tmp_path_factory.mktemp("zoo") / "home") as registry:
        yield registry


def test_in_the_zoo_exactly_the_models_of_equal_width_fit(
    zoo: LocalRegistry,
) -> None:
    with zoo.catalog.reading() as session:
        names = {model.name for model in session.query(ModelRow)}
    wide = {name for name in names if "-2M-" in name and "LoRA" not in name}
    assert len(wide) == 8
    for name in sorted(names):
        fitting_page = models_fitting(zoo, f"local/{name}")
        fitting_names = {parse_model_name(model.model).name for model in fitting_page.items}
        assert fitting_names == (wide - {name} if name in wide else set()), name
        assert all(model.types["organ"].whole for model in fitting_page.items)
        assert {
            parse_model_name(organ.model).name for organ in zoo.search(f"fits:local/{name}", limit=PAGE_MAX)
        } == fitting_names
