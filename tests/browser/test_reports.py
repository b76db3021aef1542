"""Reports and charts in a browser."""

from __future__ import annotations

import pytest

from tests.browser.addresses import ZOO_PAGES, Opener, phone
from tests.browser.sites import Site

CHARTED = ("organ", "model by θ", "values", "types", "scale")


@pytest.mark.parametrize("name", CHARTED)
def test_a_chart_has_the_size_reserved_for_it(name: str, zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, ZOO_PAGES[name], **phone())
    chart = page.locator("main img").first
    kept = chart.bounding_box()
    chart.scroll_into_view_if_needed()
    page.wait_for_function("(chart) => chart.complete && chart.naturalWidth > 0", arg=chart.element_handle())
    drawn = chart.bounding_box()
    assert kept
    assert drawn
    assert (kept["width"], kept["height"]) == (drawn["width"], drawn["height"])
    assert chart.get_attribute("alt")
