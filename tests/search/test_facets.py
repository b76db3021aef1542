"""Tests of facet counts: the stored counts equal a recount after any ingest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from sqlalchemy import select

from organs.registry.catalog.tables import Facet, FacetCount, ModelRow, Placement
from organs.registry.catalog.vocabulary import theta_bin
from organs.registry.entities.organ import FacetCounts
from organs.registry.local import LocalRegistry
from organs.registry.search import counts
from organs.registry.search import plan as search_plan
from organs.registry.search.language import parse_query
from tests.gguf_files import file_bytes, tensor, text
from tests.search.catalogs import (
    Many,
    RandomModel,
    RandomPlacement,
    WrittenCatalog,
    write_models,
)
from tests.search.oracle import expected_organs, histogram, value_counts
from tests.search.queries import query_texts
from tests.small_models import block_tensors, ingest_file, small_model, weight_tensor

FIELDS = (Facet.type, Facet.tower, Facet.slot, Facet.dtype, Facet.architecture, Facet.license)


def rolled_up(registry: LocalRegistry) -> dict[tuple[object, ...], int]:
    statement = (
        select(*FIELDS, FacetCount.theta_bin, FacetCount.placements).join(Facet).where(FacetCount.placements > 0)
    )
    with registry.catalog.reading() as session:
        return {tuple(key): count for *key, count in session.execute(statement)}


def recounted(registry: LocalRegistry) -> dict[tuple[object, ...], int]:
    counts: Counter[tuple[object, ...]] = Counter()
    with registry.catalog.reading() as session:
        rows = session.execute(select(Placement, ModelRow).join(ModelRow, ModelRow.id == Placement.model_id)).all()
        for placement, model in rows:
            assert placement.visible
            lower = -1 if placement.theta is None else min(85, int(placement.theta / 5) * 5)
            place = (placement.type, placement.tower, placement.slot, placement.dtype)
            counts[(*place, model.architecture or "", model.license or "", lower)] += 1
    return dict(counts)


def test_the_counts_equal_a_recount_after_several_ingests(registry: LocalRegistry, tmp_path: Path) -> None:
    bare = file_bytes(
        [text("general.architecture", "gpt2")], [tensor("what.is.this"), weight_tensor("blk.0.attn_q", (64,))]
    )
    for name, data in [
        ("a.gguf", small_model("A")),
        ("b.gguf", small_model("B", seed=1)),
        ("relative.gguf", small_model("A, retouched", blocks=3)),
        ("bare.gguf", bare),
        ("empty.gguf", file_bytes([text("general.name", "Nothing")])),
        ("nameless.gguf", file_bytes([], block_tensors(1, dtype="F32"))),
    ]:
        (tmp_path / name).write_bytes(data)
        assert ingest_file(registry, tmp_path / name).created
        assert rolled_up(registry) == recounted(registry)
    assert sum(rolled_up(registry).values()) == 10 + 10 + 14 + 2 + 6


@pytest.mark.parametrize(
    ("theta", "expected"),
    [(None, -1), (0.0, 0), (4.999, 0), (5.0, 5), (34.2, 30), (85.0, 85), (89.9, 85), (90.0, 85)],
)
def test_theta_is_counted_in_bins_of_five_degrees(theta: float | None, expected: int) -> None:
    assert theta_bin(theta) == expected


# Counts of a search.


FIELDS_SHOWN = ("type", "slot", "dtype", "arch", "license")


def compare_counts(registry: LocalRegistry, placed: WrittenCatalog, text: str) -> FacetCounts:
    """Assert that the counts equal a scan of all rows, or are marked as not exact and within the bins."""
    query = parse_query(text)
    counts = registry.count(text)
    total = len(expected_organs(placed, replace(query, unique=False)))
    if not counts.exact:
        assert counts.total is None or counts.uncounted == ()
        return counts
    assert counts.uncounted == ()
    assert counts.total == total
    for field in FIELDS_SHOWN:
        assert list(counts.fields[field].items()) == list(value_counts(placed, query, field).items()), field
    assert list(counts.theta_counts.items()) == list(histogram(placed, query).items())
    return counts


def lower_the_cap(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit for exact counting and clear the cache."""
    monkeypatch.setattr(search_plan, "GATHER_MAX", 3)
    monkeypatch.setattr(counts, "GATHER_MAX", 3)
    registry.catalog.cache.clear()


@pytest.mark.long
@settings(deadline=None, max_examples=60)
@given(text=query_texts())
def test_counts_marked_exact_equal_a_recount(text: str, many: Many) -> None:
    compare_counts(*many, text)


@pytest.mark.parametrize(
    ("text", "stays_exact"),
    [
        *(
            (text, True)
            for text in ("", "type:organ slot:ffn_up", "theta>=40", "theta:none", "-theta:none", "theta<45")
        ),
        *((text, True) for text in ("signal:none type:organ", "theta<45", "theta<=90", "theta>90", "theta>=95")),
        *((text, False) for text in ("theta<90", "theta>=90", "theta>40", "theta<=45", "theta:40-45", "theta=45")),
        ("signal>0.5", False),
    ],
)
def test_counts_are_exact_except_for_a_bound_inside_a_very_full_bin(
    text: str, stays_exact: bool, many: Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare_counts(*many, text).exact
    lower_the_cap(many[0], monkeypatch)
    assert compare_counts(*many, text).exact == stays_exact


@pytest.mark.parametrize(
    ("text", "inner", "outer"),
    [
        ("theta>41", "theta>=45", "theta>=40"),
        ("theta<=42.5 type:organ", "theta<40 type:organ", "theta<45 type:organ"),
        ("theta:12-47", "theta:15-44.9999", "theta:10-49.9999"),
        ("signal>=0.5", "theta>=35", "theta>=30"),
        ("-theta:41-44", "-theta:40-44.9999", "-theta:44-44"),
    ],
)
def test_an_estimate_is_between_the_counts_of_the_surrounding_bins(
    text: str, inner: str, outer: str, many: Many, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, placed = many
    lower_the_cap(registry, monkeypatch)
    least, most = (len(expected_organs(placed, parse_query(query))) for query in (inner, outer))
    total = registry.count(text).total
    assert total is not None
    assert least <= total <= most


def test_filters_beyond_the_counting_cap_are_reported_as_uncounted(many: Many, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, placed = many
    lower_the_cap(registry, monkeypatch)
    counts = registry.count("block:0 spectral>=0.3 type:organ coder theta>=40")
    assert (counts.total, counts.exact) == (None, False)
    assert counts.uncounted == ("block:0", "spectral>=0.3", "the filter by model")
    rest = parse_query("type:organ theta>=40")
    assert counts.fields == {field: value_counts(placed, rest, field) for field in FIELDS_SHOWN}
    assert counts.theta_counts == histogram(placed, rest)
    assert compare_counts(registry, placed, "type:organ theta>=40").exact


def test_at_most_a_hundred_values_of_a_field_are_shown(registry: LocalRegistry) -> None:
    rows = tuple(RandomPlacement(slot=f"slot{number:03}", organ=number) for number in range(1, 104))
    write_models(registry, [RandomModel((*rows, replace(rows[-1], block=1)))])
    counts = registry.count("")
    assert (counts.total, len(counts.fields["slot"])) == (104, 100)
    assert list(counts.fields["slot"].items())[:2] == [("slot103", 2), ("slot001", 1)]
