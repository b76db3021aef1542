"""Tests of the choice of donors: whole groups, one model a group, the best weakest organ, no place twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from organs.registry.anatomy import OrganType
from organs.registry.compose import planner
from organs.registry.compose.parents import Library, Parent, Part, RegisteredLibrary
from organs.registry.compose.planner import Draft, query_of
from organs.registry.compose.recipe import Recipe, read_recipe
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.errors import CorruptBlob
from organs.registry.local import LocalRegistry
from tests.compose.memory_library import MemoryLibrary, as_registered, found_organ
from tests.compose.parents import model_tensors, synthetic_parent
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_bytes, model_file, parent_entries, related_tensors
from tests.small_models import block_tensors

WAYS = ("gate", "up", "down")


@cache
def base() -> Parent:
    return as_registered(synthetic_parent(), "local/base@1")


@cache
def donor(seed: int = 1, without: tuple[str, ...] = ()) -> Parent:
    tensors = model_tensors(seed, without=without)
    return as_registered(synthetic_parent(tensors=tensors), f"local/d{seed}@1", seed + 1)


def ffn(block: int, *ways: str) -> list[str]:
    """Return the names of the feed-forward organs of a block."""
    return [f"blk.{block}.ffn_{way}.weight" for way in ways or WAYS]


def choose(base: Parent, recipe: Recipe, library: Library) -> Draft:
    """Return a draft with the grafts of `recipe`."""
    draft = Draft(base, recipe, library)
    draft.graft()
    return draft


def chosen(recipe: str, *donors: Parent, order: Sequence[tuple[Parent, str]] = ()) -> Draft:
    """Return the result of the grafts `recipe` (YAML); a query finds the organs in `order`."""
    return choose(
        base(), _recipe(recipe), MemoryLibrary((base(), *donors), [found_organ(*_part(*entry)) for entry in order])
    )


def _recipe(grafts: str) -> Recipe:
    return read_recipe(f"base: {base().label}\ngrafts: {grafts}")


def _part(parent: Parent, name: str) -> tuple[Parent, Part]:
    return parent, parent.by_name[name]


def taken(made: Draft) -> dict[str, str]:
    """Return the donor of each place."""
    return {replacement.before.name: replacement.donor.label for replacement in made.replacements}


def codes(made: Draft) -> list[tuple[str, str, str]]:
    return [(finding.severity.value, finding.code, finding.field) for finding in made.findings]


def test_a_donor_gives_only_the_selected_organs() -> None:
    made = chosen("[{from: local/d1@1, type: organ, blocks: 1}]", donor())
    assert taken(made) == dict.fromkeys(ffn(1), "local/d1@1")
    assert all(replacement.after == donor().by_name[replacement.before.name] for replacement in made.replacements)
    assert not any(replacement.by_slot for replacement in made.replacements)
    assert made.findings == []


def test_organs_selected_by_slot_may_split_a_group() -> None:
    made = chosen("[{from: local/d1@1, slot: ffn_up, blocks: 0}]", donor())
    assert [(replacement.before.name, replacement.by_slot) for replacement in made.replacements] == [
        ("blk.0.ffn_up.weight", True)
    ]


def test_a_weight_brings_its_companions_along_but_not_the_scales_of_single_experts() -> None:
    scale, bias = "blk.0.ffn_up.scale", "blk.0.ffn_up.bias"
    more = [(scale, (1,)), (bias, (128,)), ("blk.0.ffn_up_exps.weight", (64, 4, 2)), ("blk.0.ffn_up_exps.scale", (2,))]
    ours, theirs = (
        as_registered(synthetic_parent(tensors=model_tensors(seed, more=more)), f"local/{name}@1", seed + 1)
        for seed, name in enumerate(("scaled", "other"))
    )
    library = MemoryLibrary((ours, theirs), [found_organ(theirs, theirs.by_name[name]) for name in (*ffn(0), bias)])
    for graft, expected in (
        ("{from: local/other@1, slot: ffn_up, blocks: 0}", {*ffn(0, "up"), scale, bias}),
        ("{where: 'theta>=1', slot: ffn_up, blocks: 0}", {*ffn(0, "up"), scale, bias}),
        ("{from: local/other@1, slot: ffn_up_exps, experts: 0}", {"blk.0.ffn_up_exps.weight"}),
    ):
        assert taken(choose(ours, read_recipe(f"base: {ours.label}\ngrafts: [{graft}]"), library)).keys() == expected
    both = "[{from: local/other@1, slot: ffn_up, blocks: 0}, {from: local/other@1, slot: ffn_up.bias}]"
    made = choose(ours, read_recipe(f"base: {ours.label}\ngrafts: {both}"), library)
    assert (taken(made).keys(), codes(made)) == ({*ffn(0, "up"), scale, bias}, [])


def test_a_tensor_called_scale_without_a_weight_is_like_others() -> None:
    norm = "blk.0.attn_norm.query.scale"
    ours, theirs = (
        as_registered(synthetic_parent(tensors=model_tensors(seed, more=[(norm, (64,))])), f"local/{seed}@1", seed + 1)
        for seed in (3, 4)
    )
    norms = [part for part in theirs.parts if part.place.type is OrganType.NORM]
    library = MemoryLibrary((ours, theirs), [found_organ(theirs, part) for part in norms])
    recipe = read_recipe(f"base: {ours.label}\ngrafts: [{{where: 'theta>=0', type: norm}}]")
    assert norm in taken(choose(ours, recipe, library))


def test_the_base_gives_nothing_to_itself_under_any_name() -> None:
    twin = as_registered(synthetic_parent(), "local/twin@1")
    for label in (base().label, twin.label):
        made = chosen(f"[{{from: {label}, type: organ}}]", twin)
        assert (taken(made), codes(made)) == ({}, [("refuse", "own-donor", "grafts[0]")])


@pytest.mark.parametrize(
    ("graft", "code", "field"),
    [
        ("{from: local/nobody}", "unknown-donor", "grafts[0].from"),
        ("{from: local/d1@1, blocks: 7-9}", "no-such-block", "grafts[0].blocks"),
        ("{from: local/d1@1, slot: ssm_a}", "nothing-selected", "grafts[0]"),
        ("{where: 'theta>=1', blocks: 7}", "no-such-block", "grafts[0].blocks"),
        ("{where: 'theta>=1'}", "empty-query", "grafts[0].where"),
    ],
)
def test_a_graft_of_no_organs_is_refused_with_its_path(graft: str, code: str, field: str) -> None:
    made = chosen(f"[{graft}]", donor())
    assert (taken(made), codes(made)) == ({}, [("refuse", code, field)])


def test_a_slot_that_the_base_lacks_is_reported_with_the_nearest_one() -> None:
    (finding,) = chosen("[{from: local/d1@1, slot: fnn_up}]", donor()).findings
    assert finding.sentence == "local/base@1 has no tensor in this selection; did you mean ffn_up?"


def test_of_two_grafts_for_one_place_the_first_applies() -> None:
    made = chosen("[{from: local/d1@1, type: organ}, {from: local/d2@1, slot: ffn_up}]", donor(), donor(2))
    assert set(taken(made).values()) == {"local/d1@1"}
    (finding,) = made.findings
    assert (finding.code, finding.field) == ("overlapping-grafts", "grafts[1]")
    assert finding.organs == (*ffn(0, "up"), *ffn(1, "up"))
    assert "Both grafts[1] and grafts[0] replace" in finding.sentence


def test_a_whole_donor_without_a_selected_organ_is_refused_and_a_part_of_one_gives_what_it_has() -> None:
    complete = donor(1, tuple(ffn(1, "down")))
    made = chosen("[{from: local/d1@1, type: organ}]", complete)
    assert codes(made) == [("refuse", "organ-absent", "grafts[0]")]
    part = Parent(
        *(complete.label, complete.header, complete.source, complete.header_digest, complete.parts), complete=False
    )
    made = chosen("[{from: local/d1@1, type: organ}]", part)
    assert codes(made) == [("info", "kept-organs", "grafts[0]")]
    assert taken(made).keys() == {*ffn(0), *ffn(1, "gate", "up")}


def test_an_organ_without_a_place_in_the_base_is_refused() -> None:
    more = model_tensors(1, more=[("blk.1.ffn_norm_exps.weight", (64,))])
    surplus = as_registered(synthetic_parent(tensors=more), "local/d1@1", 2)
    made = chosen("[{from: local/d1@1, blocks: 1}]", surplus)
    assert ("refuse", "slot-absent", "grafts[0]") in codes(made)
    assert [finding.organs for finding in made.findings] == [("blk.1.ffn_norm_exps.weight",)]


def test_a_donor_without_any_selected_organ_is_refused() -> None:
    nothing = donor(1, (*ffn(0), *ffn(1)))
    made = chosen("[{from: local/d1@1, type: organ}]", nothing)
    assert codes(made) == [("refuse", "nothing-to-graft", "grafts[0]")]


CHOICES = {
    "the model with the best weakest organ": (
        *("blocks: 0", [(1, ffn(0, "gate", "up")), (2, ffn(0)), (1, ffn(0, "down"))]),
        *({0: 2}, None),
    ),
    "the first result of a tie": ("blocks: 0", [(seed, [name]) for name in ffn(0) for seed in (1, 2)], {0: 1}, None),
    "the first result of another tie": (
        *("blocks: 0", [(seed, [name]) for name in ffn(0) for seed in (2, 1)]),
        *({0: 2}, None),
    ),
    "one model for each group": ("", [(1, ffn(0)), (2, [*ffn(1), *ffn(0)])], {0: 1, 1: 2}, None),
    "no group that no model has completely": (
        *("", [(1, [*ffn(0), *ffn(1, "gate", "up")]), (2, ffn(1, "down"))]),
        *({0: 1}, ("kept-organs", tuple(ffn(1)))),
    ),
    "nothing of incomplete groups": ("blocks: 0", [(1, ffn(0, "gate", "up"))], {}, ("empty-query", ())),
}
"""The selection; donors and organs in the order of the results; the donor of each block; and the finding, if any."""


@pytest.mark.parametrize("case", CHOICES)
def test_a_query_takes(case: str) -> None:
    selection, results, donors, finding = CHOICES[case]
    order = [(donor(seed), name) for seed, names in results for name in names]
    made = chosen(f"[{{where: 'type:organ', {selection}}}]", donor(1), donor(2), order=order)
    assert taken(made) == {name: f"local/d{seed}@1" for block, seed in donors.items() for name in ffn(block)}
    assert [(found.code, found.organs) for found in made.findings] == ([finding] if finding else [])


def test_an_organ_that_is_the_bases_own_already_completes_a_group() -> None:
    # A search without `fits:`, which would not change the result.
    shared = {spec.name: (spec, data) for spec, data in model_tensors()}[ffn(0, "down")[0]]
    tensors = [shared if spec.name == shared[0].name else (spec, data) for spec, data in model_tensors(1)]
    kin = as_registered(synthetic_parent(tensors=tensors), "local/kin@1", 2)
    made = chosen("[{where: 'type:organ', blocks: 0}]", kin, order=[(kin, name) for name in ffn(0, "gate", "up")])
    assert taken(made) == dict.fromkeys(ffn(0), "local/kin@1")


def test_a_query_that_finds_too_much_is_cut_and_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "EXAMINED_MAX", 3)
    first, two = donor(1), donor(2)
    order = [(first, name) for name in ffn(0)] + [(two, name) for name in ffn(1)]
    made = chosen("[{where: 'type:organ', blocks: 0}]", first, two, order=order)
    assert taken(made) == dict.fromkeys(ffn(0), "local/d1@1")
    assert codes(made) == [("info", "query-cut", "grafts[0].where")]


def test_the_query_selects_organs_that_fit_the_base() -> None:
    recipe = _recipe("[{where: 'theta>=1 coder', type: [organ, norm], slot: ffn_*, blocks: [0, 1], sort: -spectral}]")
    query = query_of(base(), recipe.grafts[0])
    assert query == (
        "theta>=1 coder fits:local/base@1 kin:local/base@1 type:organ,norm slot:ffn_* block:0-0,1-1 sort:-spectral"
    )
    shelf = MemoryLibrary((base(),))
    choose(base(), recipe, shelf)
    without_kin = query.replace("kin:local/base@1 ", "")
    assert shelf.queries == [query, without_kin], "kin have nothing, so a second search finds strangers to name"


def test_an_unreadable_blob_is_an_error_and_not_a_finding() -> None:
    class Broken(MemoryLibrary):
        def parent(self, text: str) -> Parent:
            raise CorruptBlob("of the header", "a bit is wrong")

    with pytest.raises(CorruptBlob):
        choose(base(), _recipe("[{from: x}]"), Broken(()))


def test_only_the_organs_that_decide_the_groups_are_examined() -> None:
    order = [(donor(), name) for block in range(2) for name in ffn(block)]
    shelf = MemoryLibrary((base(), donor()), [found_organ(*_part(*entry)) for entry in (*order, *order)])
    looked_at = []

    class Counting(MemoryLibrary):
        def organs(self, query: str, base: str | None = None) -> Iterator[PlacedOrgan]:
            for organ in shelf.organs(query, base):
                looked_at.append(organ)
                yield organ

    for grafts in ("[{where: 'type:organ', blocks: 0-1}]", "[{where: 'theta>=1', type: organ, blocks: 0-1}]"):
        looked_at.clear()
        made = choose(base(), _recipe(grafts), Counting(shelf.parents))
        assert taken(made) == dict.fromkeys([*ffn(0), *ffn(1)], "local/d1@1")
        assert len(looked_at) == len(order)


NEAR, FAR, DECLARED, STRANGER = (f"local/{name}@1" for name in ("near", "far", "declared", "stranger"))


def add_kin_and_a_stranger(registry: LocalRegistry, folder: Path) -> None:
    """Add a base, two relatives, a child by declaration alone, and a stranger with heavy tails, which raise θ."""
    for name, tensors, more in (
        ("base", related_tensors(), []),
        ("near", related_tensors(correlation=0.99), []),
        ("far", related_tensors(correlation=0.7), []),
        ("declared", related_tensors(correlation=0.1, other_seed=5), parent_entries("Base")),
        (
            "stranger",
            [
                (spec, (np.frombuffer(data, np.float32) ** 3 * 100).tobytes())
                for spec, data in block_tensors(2, seed=9, dtype="F32")
            ],
            [],
        ),
    ):
        ingest_bytes(registry, folder, name, model_file(name.capitalize(), tensors, more))


def donors_by_query(library: RegisteredLibrary, where: str, **more: object) -> tuple[set[str], list[tuple[str, str]]]:
    """Return the donors of the grafts that `where` selects in a registry, and the refusals."""
    recipe = read_recipe(json.dumps({"base": "base", "grafts": [{"where": where, **more}]}))
    made = choose(library.parent("base"), recipe, library)
    refusals = [(finding.code, finding.sentence) for finding in made.findings if finding.severity.value == "refuse"]
    return {replacement.donor.label for replacement in made.replacements}, refusals


@pytest.fixture
def kin(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, add_kin_and_a_stranger)
    return registry


def test_a_recipe_by_query_never_takes_organs_of_a_stranger_unless_it_says_so(kin: LocalRegistry) -> None:
    assert {organ.model for organ in kin.search("type:organ sort:-theta", limit=4)} == {STRANGER}
    with kin.catalog.reading() as session:
        library = RegisteredLibrary(session, kin.blobs)
        assert donors_by_query(library, "type:organ", sort="-theta", strangers=True) == ({STRANGER}, [])

        for more in ({}, {"sort": "-likeness"}, {"sort": "-likeness", "strangers": True}):
            assert donors_by_query(library, "type:organ", **more) == ({NEAR}, [])
        assert donors_by_query(library, "type:organ likeness<0.9") == ({FAR}, [])
        assert donors_by_query(library, "type:organ", sort="likeness") == ({DECLARED}, [])
        donors, refusals = donors_by_query(library, "type:organ", sort="-theta")
        assert (donors <= {NEAR, FAR, DECLARED}, refusals) == (True, [])

        assert donors_by_query(library, f"type:organ model:{STRANGER}") == ({STRANGER}, [])
        donors, ((code, sentence),) = donors_by_query(library, "type:organ model:local/str*")
        assert (donors, code) == (set(), "only-strangers")
        assert f"not kin of local/base@1: {STRANGER}. To use them, add strangers: true" in sentence
        assert donors_by_query(library, "type:organ model:local/str*", strangers=True) == ({STRANGER}, [])
