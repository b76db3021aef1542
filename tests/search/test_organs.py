"""Tests of the search for organs, compared with a scan of every row: results, order, pages, visibility."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from organs.registry.catalog.cursor import PAGE_MAX
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.catalog.tables import ModelRow
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.errors import BadQuery, NotFound
from organs.registry.local import LocalRegistry
from organs.registry.search import filters as search_filters
from organs.registry.search import likeness
from organs.registry.search import plan as search_plan
from organs.registry.search.filters import placement_condition
from organs.registry.search.language import Bounds, NumberRange, parse_query
from organs.registry.similarity import correlations
from tests.search.catalogs import (
    Many,
    RandomModel,
    RandomPlacement,
    WrittenCatalog,
    digest,
    random_models,
    write_models,
)
from tests.search.oracle import expected_organs, matches
from tests.search.queries import query_texts

SEARCHES = settings(deadline=None, max_examples=60)
PLANS = ("in order", "gathered", "as it comes")


def force(patch: pytest.MonkeyPatch, plan: str) -> None:
    """Force one of the two plans, or let the cost decide. One plan selects models as if they were too many to list."""
    if plan == "gathered":
        patch.setattr(search_filters.ModelFilter, "condition", lambda models, column: column.in_(models.statement))
    patch.setattr(search_plan, "GATHER_MAX", 0 if plan == "in order" else 20_000)
    patch.setattr(search_plan, "FETCHED_COST", 0.0 if plan == "gathered" else 2.0)


def test_the_bounds_on_whole_numbers_are_whole() -> None:
    """PostgreSQL uses no index of a column of whole numbers for a bound of another type."""
    for interval, bounds in (
        (NumberRange(1.0, 3.0, low_open=True, high_open=True), [2, 2]),
        (NumberRange(1.5, 3.5), [2, 3]),
        (NumberRange(low=-1e300, high=1e300), [-(2**62), 2**62]),
    ):
        values = list(placement_condition(Bounds("size", (interval,))).compile().params.values())
        assert (values, {type(value) for value in values}) == (bounds, {int})


def walk(registry: LocalRegistry, text: str, sizes: Iterator[int]) -> list[PlacedOrgan]:
    """Return the results of all pages in sequence."""
    organs: list[PlacedOrgan] = []
    after: str | None = None
    while True:
        limit = next(sizes)
        page = registry.search(text, limit=limit, after=after)
        organs += page.items
        if page.next is None:
            assert len(page) <= limit
            return organs
        assert len(page) == limit
        assert len(organs) < 10_000, "a walk without an end"
        after = page.next


@pytest.mark.long
@SEARCHES
@given(text=query_texts(), plan=st.sampled_from(PLANS), random_=st.randoms(use_true_random=False))
def test_a_search_equals_a_scan_of_every_row_page_by_page(
    text: str, plan: str, random_: random.Random, many: Many
) -> None:
    registry, placed = many
    expected = expected_organs(placed, parse_query(text))
    sizes = (random_.choice((1, 2, 3, 7, 50, 1000)) for _ in itertools.count())
    with pytest.MonkeyPatch.context() as patch:
        force(patch, plan)
        organs = walk(registry, text, sizes)
    assert placed.found(organs) == [row.id for row in expected]


def test_a_search_result_has_the_values_of_its_rows(registry: LocalRegistry) -> None:
    row = RandomPlacement(slot="attn_q", type="skeleton", block=7, shape="64x128", theta=30.0, spectral_signal=0.25)
    write_models(registry, [RandomModel((row,), license=None, version=3)])
    (organs,) = registry.search("")
    assert organs == PlacedOrgan(
        digest=digest(1),
        model="acme/tiny@3",
        name="0.attn_q",
        type="skeleton",
        tower="text",
        block=7,
        slot="attn_q",
        dtype="F16",
        shape=(64, 128),
        size_bytes=4096,
        theta=30.0,
        magnitude=0.9,
        signal=row.signal,
        spectral_signal=0.25,
        stable_rank=12.5,
        effective_rank=18.75,
        architecture="llama",
        license=None,
        nonfinite=0,
    )


@pytest.mark.parametrize("text", ["", "sort:theta", "sort:-spectral", "unique:organ sort:z", "type:organ sort:size"])
@pytest.mark.parametrize("plan", PLANS)
def test_models_added_between_pages_neither_repeat_nor_hide_a_result(
    plan: str, text: str, registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, plan)
    placed = write_models(registry, random_models(12, seed=3))
    before = [row.id for row in expected_organs(placed, parse_query(text))]
    seen: list[int] = []
    after = None
    for seed in itertools.count(100):
        page = registry.search(text, limit=9, after=after)
        seen += placed.found(page)
        after = page.next
        if after is None:
            break
        fresh = [replace(late, name=f"late-{seed}-{number}") for number, late in enumerate(random_models(2, seed=seed))]
        write_models(
            registry, [replace(model, rows=tuple(_as_new(row) for row in model.rows)) for model in fresh], placed, seed
        )
    assert len(set(seen)) == len(seen)
    assert [row_id for row_id in seen if row_id in set(before)] == before


def _as_new(row: RandomPlacement) -> RandomPlacement:
    return replace(row, organ=row.organ + 10**6 + random.Random(repr(row)).randrange(10**6))


def test_an_unknown_value_finds_nothing_and_the_nearest_is_named(registry: LocalRegistry) -> None:
    write_models(registry, [RandomModel((RandomPlacement(),), namespace="acme", name="tiny", contributor="alice")])
    for text, note in (
        ("slot:ffn_upp", "nothing in this registry has slot:ffn_upp; the nearest is slot:ffn_up"),
        ("dtype:F61", "nothing in this registry has dtype:F61; the nearest is dtype:F16"),
        ("arch:lama", "nothing in this registry has arch:lama; the nearest is arch:llama"),
        ("by:alic", "nothing in this registry has by:alic; the nearest is by:alice"),
        ("model:acme/tinny", "nothing in this registry has model:acme/tinny; the nearest is model:acme/tiny"),
        ("license:zzz", "nothing in this registry has license:zzz"),
        ("model:zzz/*", "nothing in this registry has model:zzz/*"),
    ):
        page = registry.search(text)
        assert (page.items, page.notes) == ((), (note,))
        assert len(registry.search(f"-{text}")) == 1
        assert registry.search(f"-{text}").notes == ()


def test_at_most_five_unknown_values_are_reported(registry: LocalRegistry) -> None:
    write_models(registry, [RandomModel((RandomPlacement(),))])
    for field in ("slot", "model", "by"):
        values = ",".join(f"x{number}" for number in range(100))
        assert len(registry.search(f"{field}:{values}").notes) == 5


# Visibility.

HIDDEN = RandomModel(
    (RandomPlacement(slot="secret_slot", dtype="Q8_0", organ=2), RandomPlacement(organ=3)),
    namespace="hidden",
    name="secret",
    architecture="secretarch",
    license="secretlicense",
    title="Secretive",
    contributor="secretary",
)


@pytest.mark.parametrize("state", ["quarantined", "yanked", "removed"])
def test_a_hidden_model_is_in_no_result_count_or_note(state: str, registry: LocalRegistry) -> None:
    seen = RandomModel((RandomPlacement(), RandomPlacement(slot="ffn_down", organ=4)))
    write_models(registry, [seen, replace(HIDDEN, state=state)])
    for text in (
        *("", "sort:theta", "unique:organ", "secretive", "model:hidden/secret", "model:hidden/*", "by:secretary"),
        *(
            "slot:secret_slo",
            "slot:secret_slot",
            "arch:secretarc",
            "license:secretlicense",
            "by:secretar",
            "dtype:Q8_1",
        ),
        *("model:hidden/secre", "theta>=0", "block:0", "-type:norm", "like:" + digest(1)[:12]),
    ):
        page = registry.search(text)
        assert all(organ.model == "acme/tiny@1" for organ in page)
        counts = registry.count(text)
        assert counts.total in (0, 2)
        answer = repr((page, counts)).replace(text, "").replace("secretive", "")
        for word in ("hidden", "the nearest is slot:secret", "secretarch", "secretlicense", "secretary", "Q8_0"):
            assert word not in answer, (text, word)


def test_the_digest_of_a_hidden_organ_counts_as_absent(registry: LocalRegistry) -> None:
    write_models(
        registry,
        [
            RandomModel((RandomPlacement(organ=-1),)),
            replace(HIDDEN, rows=(RandomPlacement(organ=-2),), state="quarantined"),
        ],
    )
    with pytest.raises(NotFound, match=f"no tensor's digest begins with {digest(-2)}"):
        registry.search(f"like:{digest(-2)}")
    assert [organ.digest for organ in registry.search("like:12345678")] == [digest(-1)], "it makes nothing ambiguous"


def test_values_of_a_model_that_is_no_longer_visible_are_not_suggested(registry: LocalRegistry) -> None:
    write_models(registry, [RandomModel((RandomPlacement(),)), replace(HIDDEN, state="visible")])
    assert registry.search("arch:secretarc").notes == (
        "nothing in this registry has arch:secretarc; the nearest is arch:secretarch",
    )
    with registry.catalog.writing() as session:
        model = session.scalars(select(ModelRow).where(ModelRow.namespace == "hidden")).one()
        hide_model(session, model, "quarantined", "a reason", "local")
    for text in ("arch:secretarc", "slot:secret_slo", "license:secretlicenc", "by:secretar", "model:hidden/secre"):
        assert registry.search(text).notes == (f"nothing in this registry has {text}",)


# Similar organs.


def alike_by_hand(placed: WrittenCatalog, text: str, organ: int) -> list[tuple[float, int]]:
    """Return the correlation and id of all comparable placements by examining each of them."""
    query = parse_query(text)
    own = placed.prints[organ]
    slots = {row.slot for row, _ in placed.visible.values() if row.organ == organ}
    shape = next(row.shape for row, _ in placed.visible.values() if row.organ == organ)
    pairs: list[tuple[float, int]] = []
    firsts: set[int] = set()
    for row_id, (row, model) in sorted(placed.visible.items()):
        if row.slot not in slots or row.shape != shape or row.organ not in placed.prints:
            continue
        if not matches(placed, query, row, model) or (query.unique and row.organ in firsts):
            continue
        firsts.add(row.organ)
        (value,) = correlations(own, [placed.prints[row.organ]])
        if value is not None:
            pairs.append((value, row_id))
    return sorted(pairs, reverse=True)


@pytest.mark.long
@pytest.mark.parametrize(
    "more", ["", "unique:organ", "arch:llama", "-fits:acme/tiny", "block:0 -dtype:F16", "theta>=40 unique:organ"]
)
def test_similar_organs_are_ranked_by_correlation_within_slot_and_shape(more: str, many: Many) -> None:
    registry, placed = many
    tried = 0
    for organ in sorted({row.organ for row, _ in placed.visible.values()}):
        if organ not in placed.prints or len(set(placed.prints[organ])) == 1:
            continue
        text = f"like:{digest(organ)[:16]} {more}"
        expected = alike_by_hand(placed, text, organ)
        page = registry.search(text, limit=PAGE_MAX)
        assert placed.found(page) == [row_id for _, row_id in expected]
        assert [organ.likeness for organ in page] == [value for value, _ in expected]
        assert placed.found(walk(registry, text, itertools.cycle((1, 3)))) == [row_id for _, row_id in expected]
        tried += len(expected) > 2
    assert tried > 3


def test_a_limited_comparison_starts_with_the_same_block_and_is_reported(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [RandomPlacement(organ=number, block=number % 4) for number in range(1, 41)]
    placed = write_models(registry, [RandomModel(tuple(rows))])
    organ = next(number for number in placed.prints if number % 4 == 3 and len(set(placed.prints[number])) > 1)
    text = f"like:{digest(organ)}"
    assert registry.search(text).notes == ()
    comparable = [number for number in placed.prints if number % 4 == 3]
    monkeypatch.setattr(likeness, "COMPARED_MAX", len(comparable))
    page = registry.search(text)
    assert {organ.block for organ in page} == {3}
    assert page.notes == (
        f"only the first {len(comparable)} tensors of its slot and shape were compared: narrow the query",
    )


def test_an_organ_that_cannot_be_compared_is_refused(many: Many) -> None:
    registry, placed = many
    bare = next(row.organ for row, _ in placed.visible.values() if row.organ not in placed.prints)
    with pytest.raises(BadQuery, match="this tensor has no fingerprint: it has fewer than 256 values, or a dtype"):
        registry.search(f"like:{digest(bare)}")
    with pytest.raises(NotFound, match="no tensor's digest begins with 12345678"):
        registry.search("like:12345678")


# Invalid numbers and texts.


def test_the_cursor_of_another_query_is_refused(many: Many) -> None:
    registry, _ = many
    after = registry.search("sort:theta", limit=1).next
    assert after is not None
    for text in ("sort:-theta", "sort:signal", "type:organ sort:theta", "unique:organ sort:theta"):
        with pytest.raises(BadQuery, match="another query"):
            registry.search(text, after=after)
    assert registry.search("sort:theta  ", after=after)
