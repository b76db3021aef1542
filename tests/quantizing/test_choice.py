"""Tests of `registry.quantizing.choice`: the best types for a size, beside all combinations."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from itertools import pairwise

import pytest

from organs.registry.gguf import dtype_by_name
from organs.registry.gguf.types import DType
from organs.registry.quantizing.choice import Option, chosen, hull, total_bytes
from organs.registry.quantizing.limits import Limit

TYPES = ("Q2_K", "Q4_K", "Q6_K", "Q8_0", "F16")


def total_divergence(choice: dict[str, Option]) -> float:
    return sum(option.divergence for option in choice.values())


def some_options(seed: int, organs: int = 5) -> dict[str, list[Option]]:
    """Return options with falling divergences for organs of different sizes."""
    lots = random.Random(seed)
    options = {}
    for number in range(organs):
        values, scale = lots.randrange(1, 9) * 256, lots.uniform(0.1, 10)
        found, divergence = [], scale
        for name in TYPES:
            dtype = dtype_by_name(name)
            found.append(Option(dtype, dtype.size_bytes(values), divergence))
            divergence *= lots.uniform(0.05, 0.7)
        options[f"organ {number}"] = [*found[:-1], Option(dtype_by_name("F16"), 2 * values, 0.0)]
    return options


@pytest.mark.parametrize("seed", range(8))
def test_a_choice_is_as_good_as_the_best_combination_of_its_size(seed: int) -> None:
    options = some_options(seed)
    combinations = [dict(zip(options, choice, strict=True)) for choice in itertools.product(*options.values())]
    sizes = sorted(total_bytes(choice) for choice in combinations)
    for wanted in (sizes[0], sizes[len(sizes) // 3], sizes[len(sizes) // 2], sizes[-1]):
        found = chosen(options, wanted)
        assert found is not None
        size = total_bytes(found)
        assert size <= wanted
        best = min(total_divergence(choice) for choice in combinations if total_bytes(choice) <= size)
        steps = [left.divergence - right.divergence for own in options.values() for left, right in pairwise(hull(own))]
        assert total_divergence(found) <= best + max(steps), "at most one step of a hull away from the best"


@pytest.mark.parametrize("seed", range(8))
def test_a_choice_by_price_is_the_best_of_its_own_size(seed: int) -> None:
    options = {name: hull(own) for name, own in some_options(seed, organs=4).items()}
    everything = [dict(zip(options, choice, strict=True)) for choice in itertools.product(*options.values())]
    for wanted in sorted(total_bytes(choice) for choice in everything)[:: len(everything) // 6]:
        found = chosen(options, wanted)
        assert found is not None
        smaller = chosen(options, total_bytes(found))
        assert smaller == found
    full = chosen(options, 1 << 40)
    assert full is not None
    assert total_divergence(full) == 0


def test_nothing_is_chosen_below_the_smallest_size() -> None:
    options = some_options(1)
    smallest = sum(min(option.size_bytes for option in own) for own in options.values())
    assert chosen(options, smallest - 1) is None
    found = chosen(options, smallest)
    assert found is not None
    assert {option.dtype.name for option in found.values()} == {"Q2_K"}


def test_a_hull_leaves_out_options_that_are_never_the_best() -> None:
    dtype = dtype_by_name("F16")
    points = [(10, 9.0), (20, 8.0), (30, 2.0), (30, 3.0), (40, 2.5), (50, 1.0)]
    assert [(item.size_bytes, item.divergence) for item in hull([Option(dtype, *point) for point in points])] == [
        (10, 9.0),
        (30, 2.0),
        (50, 1.0),
    ]


@pytest.mark.parametrize(("share", "more"), [(1.0, 0), (1.0, 96), (1.0, 20_000), (1.3, 20_000), (0.5, 0)])
def test_the_largest_choice_within_a_limit_is_found_where_more_or_less_is_taken_than_expected(
    share: float, more: int
) -> None:
    options = some_options(3, organs=40)
    smallest = {name: own[0].dtype for name, own in options.items()}
    step = max(after.size_bytes - before.size_bytes for own in options.values() for before, after in pairwise(own))

    def taken(dtypes: Mapping[str, DType]) -> int:
        sizes = (next(o.size_bytes for o in own if o.dtype == dtypes[name]) for name, own in options.items())
        return int(share * sum(sizes)) + more

    def choose(most_bytes: int) -> tuple[dict[str, DType], int] | None:
        found = chosen(options, most_bytes)
        return None if found is None else ({name: o.dtype for name, o in found.items()}, total_bytes(found))

    for most_bytes in range(taken(smallest), 2 * taken(smallest), 4_000):
        of_file = Limit.of_file(most_bytes, taken)
        slack_bytes = 0.005 * most_bytes
        of_memory = Limit(most_bytes, taken, str, "a memory", int(slack_bytes))
        for limit in (of_file, of_memory) if share == 1 else (of_memory,):
            left = most_bytes - taken(limit.closest(choose, smallest, most_bytes))
            assert 0 <= left <= slack_bytes + share * step
