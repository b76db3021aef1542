"""Tests of catalogs made to be slow: every step stays below a bound. A short form of `make worst-shapes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from tests import postgres
from tests.faults.hostile.worst_shapes import Scale, build, counting, is_over, steps_of_pages, steps_of_services
from tests.registry_templates import RegistryTemplates

LITTLE = Scale(tensors=100, repeats=1000, models=20)
STEPS_MAX = 1_000_000
"""The limit of one step at this scale; the most expensive step takes about half. Quadratic steps take ten
million and more."""
PAGES = (
    *("/models/repeats/model", "/api/v1/models/repeats/model", "/api/v1/reports/models/repeats/model"),
    *("/organs?q=unique:organ sort:-theta model:repeats/twin", "/organs?q=fits:repeats/model"),
    *("/api/v1/compare?first=repeats/model&second=repeats/twin", "/api/v1/models/repeats/model/lineage"),
)
"""The long form requests every page."""


def little_shapes(registry: LocalRegistry, folder: Path) -> None:
    """Return small worst shapes."""
    build(registry, folder, LITTLE)


def _steps(registry: LocalRegistry) -> Iterator[tuple[str, Callable[[], int]]]:
    pages = (step for step in steps_of_pages(registry) if step[0] in PAGES)
    services = (step for step in steps_of_services(registry) if ": job " not in step[0])
    return chain(pages, services)


@pytest.fixture
def shapes(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, little_shapes)
    return registry


def test_the_cost_of_a_step_does_not_grow_with_the_product_of_placements(shapes: LocalRegistry) -> None:
    with counting(shapes) as costs:
        for name, call in _steps(shapes):
            with costs.of(name) as sizes:
                sizes.append(call())
    assert {cost.name for cost in costs.taken} >= set(PAGES)
    assert len(costs.taken) > 50
    assert [cost for cost in costs.taken if is_over(cost, STEPS_MAX)] == []
    if not postgres.is_used():  # which counts no steps
        assert max(cost.steps for cost in costs.taken) > LITTLE.repeats, "nothing was counted"
