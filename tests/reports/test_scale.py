"""What is said about θ and size is no more than the points bear."""

from __future__ import annotations

import math

import pytest

from registry.registry import Registry
from registry.reports.scale import Point, scale_tables, scale_verdict


def points(*pairs: tuple[float, float]) -> list[Point]:
    return [Point(f"m{index}", 1, log, theta) for index, (log, theta) in enumerate(pairs)]


def many(slope: float, count: int = 12, wobble: float = 0.1) -> list[Point]:
    logs = [6 + 3 * index / (count - 1) for index in range(count)]
    return points(*((log, 40 + slope * log + (wobble if index % 2 else -wobble)) for index, log in enumerate(logs)))


@pytest.mark.parametrize("families", [[], points((6, 40))])
def test_one_family_says_nothing_about_size(families: list[Point]) -> None:
    assert "nothing can be said about size" in scale_verdict(families, len(families))


def test_models_of_one_size_say_nothing_about_size() -> None:
    said = scale_verdict(points((6, 40), (6, 41)), 2)
    assert said == "All 2 families have the same number of parameters, so nothing can be said about size."


@pytest.mark.parametrize("families", [many(5.0, count=9), [Point("m", 1, 6 + n / 20, 40 + n) for n in range(12)]])
def test_few_families_or_a_narrow_range_show_no_law_however_straight_the_line(families: list[Point]) -> None:
    assert "cannot show a law" in scale_verdict(families, 40)


def test_a_slope_within_its_margin_is_no_trend() -> None:
    assert "no trend that could be told from chance" in scale_verdict(many(0.0, wobble=3.0), 12)


@pytest.mark.parametrize(("slope", "way"), [(2.0, "rises by 2.0°"), (-2.0, "falls by 2.0°")])
def test_a_trend_is_said_with_its_margin_and_what_it_does_not_say(slope: float, way: str) -> None:
    said = scale_verdict(many(slope), 30)
    assert way in said
    assert "±" in said
    assert "It does not say that size is the reason" in said


def test_relatives_are_one_point(filled: Registry) -> None:
    with filled.catalog.reading() as session:
        scale, families = scale_tables(session, 50)
    values = {row["family"]: row for row in families.values()["items"]}
    assert {name: row["models_count"] for name, row in values.items()} == {"local/tall@1": 1, "local/little@1": 2}
    once, by_itself = scale.values()["items"]
    assert (once["points_count"], by_itself["points_count"]) == (2, 3)
    little, tall = values["local/little@1"], values["local/tall@1"]
    decades = math.log10(tall["mean_parameters_count"] / little["mean_parameters_count"])
    slope = (tall["mean_theta_degrees"] - little["mean_theta_degrees"]) / decades
    assert once["slope_degrees_per_decade"] == pytest.approx(slope)
    assert once["slope_standard_error_degrees_per_decade"] is None


def test_a_list_of_families_that_is_cut_says_so(filled: Registry) -> None:
    with filled.catalog.reading() as session:
        _, families = scale_tables(session, 1)
    assert len(families.rows) == 1
    assert "The 1 largest of 2 are listed." in families.before[0]
