"""Reports and charts in a browser."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.browser.addresses import ZOO_PAGES, Opener, follow, phone
from tests.browser.sites import BASE, Site

CHARTED = ("organ", "model", "values", "types", "scale")


def test_the_contents_link_to_every_report_and_back(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/reports")
    for label in page.locator("dl.contents a").all_inner_texts():
        follow(page, page.get_by_role("link", name=label, exact=True))
        assert page.locator("main table").count() >= 1
        follow(page, page.locator("p.kicker").get_by_role("link", name="Reports"))
        assert urlsplit(page.url).path == "/reports"


def test_a_model_of_the_ranking_links_to_its_page(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/reports/ranking")
    follow(page, page.locator("main table").get_by_role("link", name=BASE))
    assert page.locator("h1").inner_text().startswith(BASE)


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
