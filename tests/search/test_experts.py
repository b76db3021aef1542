"""Tests of the search for single experts: which are found, their order, pages, and terms that do not apply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.catalog.tables import ModelRow
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.local import LocalRegistry
from organs.registry.search import plan as search_plan
from tests.compose.test_experts import add_mixtures
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_bytes
from tests.small_models import EXPERTS, expert_model

STACKS = 4
"""The stacks of each model: gate and up in two blocks."""


@pytest.fixture(scope="module")
def registry(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    """Return a registry with a mixture of experts, and one in which experts 2 and 5 differ."""
    with templates.open_copy(add_mixtures, tmp_path_factory.mktemp("experts") / "home") as opened:
        yield opened


def find(registry: LocalRegistry, text: str, size: int = 1000) -> list[PlacedOrgan]:
    """Return all results of a query, read in pages of `size`."""
    organs, after = [], None
    while True:
        page = registry.search(text, limit=size, after=after)
        organs += page.items
        after = page.next
        if after is None:
            return organs


def keys(organs: list[PlacedOrgan]) -> list[tuple[str, str, int | None]]:
    return [(organ.model, organ.name, organ.expert) for organ in organs]


def test_experts_are_found_only_with_the_field_expert(registry: LocalRegistry) -> None:
    assert all(organ.expert is None for organ in find(registry, "type:organ"))
    assert len(find(registry, "slot:ffn_up_exps")) == 4
    assert len(find(registry, "expert>=0")) == 2 * STACKS * EXPERTS
    found = find(registry, "expert:5 type:organ")
    assert {organ.expert for organ in found} == {5}
    assert len(found) == 2 * STACKS
    assert {(organ.shape, organ.dtype) for organ in found} == {((64, 48), "F16")}
    assert {organ.expert for organ in find(registry, "-expert:0-5")} == {6, 7}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("expert:3 block:1", 4),
        ("expert:3 slot:ffn_up_exps", 4),
        ("expert:3 type:skeleton", 0),
        ("expert:3 model:local/Edited", 4),
        ("expert:99", 0),
        ("expert:1,3 edited", 8),
        ("expert:3 dtype:F16 arch:llama license:apache-2.0", 8),
        ("expert:3 unique:organ", 4),
        ("expert:2 unique:organ", 8),
    ],
)
def test_other_filters_apply_to_experts(registry: LocalRegistry, text: str, count: int) -> None:
    assert len(find(registry, text)) == count


@pytest.mark.parametrize("gather", [0, 20_000])
@pytest.mark.parametrize("sort", ["-spectral", "theta", "-theta", "size", "-size"])
@pytest.mark.parametrize("text", ["expert>=0", "expert:2-5 theta>=30 block:0", "expert:2,5 unique:organ"])
def test_results_are_in_order_and_pages_neither_repeat_nor_skip(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch, gather: int, sort: str, text: str
) -> None:
    monkeypatch.setattr(search_plan, "GATHER_MAX", gather)
    whole = find(registry, f"{text} sort:{sort}")
    assert len(whole) > 6
    assert keys(find(registry, f"{text} sort:{sort}", size=3)) == keys(whole)
    assert len(set(keys(whole))) == len(whole)
    name = {"spectral": "spectral_signal", "size": "size_bytes"}.get(sort.lstrip("-"), sort.lstrip("-"))
    values = [getattr(organ, name) for organ in whole]
    assert values == sorted(values, reverse=sort.startswith("-"))


def test_experts_are_compared_with_those_of_the_base_at_the_same_number(registry: LocalRegistry) -> None:
    found = find(registry, "kin:local/Mixture model:local/Edited expert>=0 sort:likeness")
    changed, same = found[: 2 * STACKS], found[2 * STACKS :]
    assert {organ.expert for organ in changed} == {2, 5}
    assert all(organ.likeness is not None and abs(organ.likeness) < 0.4 for organ in changed)
    assert {organ.likeness for organ in same} == {1.0}
    assert len(find(registry, "kin:local/Mixture model:local/Edited expert>=0 likeness<0.5")) == 2 * STACKS


def test_like_ranks_experts_by_likeness_to_one(registry: LocalRegistry) -> None:
    expert = find(registry, "expert:2 model:local/Edited block:1 slot:ffn_up_exps")[0]
    found = find(registry, f"like:{expert.digest} expert>=0")
    assert (found[0].digest, found[0].likeness) == (expert.digest, pytest.approx(1.0))
    assert len(found) == 2 * STACKS * EXPERTS
    likeness = [organ.likeness for organ in found]
    assert likeness == sorted(likeness, reverse=True)


@pytest.mark.parametrize("text", ["expert:3 type:organ", "expert:2-5 theta>=34.5", "expert:3 slot:ffn_up_exps block:1"])
def test_experts_are_counted(registry: LocalRegistry, text: str) -> None:
    counts, found = registry.count(text), find(registry, text)
    assert (counts.total, counts.exact, counts.uncounted) == (len(found), True, ())
    assert counts.fields["dtype"] == {"F16": len(found)}


def test_too_many_experts_and_those_of_a_likeness_are_not_counted(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = registry.count("kin:local/Mixture model:local/Edited expert>=0 likeness<0.999")
    assert (counts.total, counts.fields, counts.uncounted != ()) == (None, {}, True)
    monkeypatch.setattr(search_plan, "GATHER_MAX", 10)
    counts = registry.count("expert>=0 type:organ")
    assert (counts.total, counts.fields, counts.theta, counts.uncounted) == (None, {}, (), ("expert>=0",))


def test_experts_of_hidden_models_are_not_found(tmp_path: Path) -> None:
    with LocalRegistry.open(tmp_path / "home") as registry:
        ingest_bytes(registry, tmp_path, "m", expert_model())
        assert find(registry, "expert:3")
        with registry.catalog.writing() as session:
            hide_model(session, session.scalars(select(ModelRow)).one(), "yanked", "test", "local")
        assert find(registry, "expert:3") == []
