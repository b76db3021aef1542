"""Rules for every page: it fits, does not shift, loads nothing from outside, and has a dark scheme."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.addresses import EMPTY_PAGES, ODD_PAGES, PHONE_WIDTHS, ZOO_PAGES, Opener, phone
from tests.browser.page_monitor import shifted, transferred_bytes
from tests.browser.sites import Site

if TYPE_CHECKING:
    from playwright.sync_api import Page

SHIFT_MAX = 0.01
TRANSFER_MAX_BYTES = 200_000
"""Of a page with all that it loads, with an empty cache."""
DESK_WIDTHS = (1024, 1280, 1600)
REFUSALS = {"refused query", "error"}
"""Pages that are answered with 400 or 404; all others with 200."""


def assert_fits(page: Page, width: int) -> None:
    """Nothing but what stands in a frame can be scrolled sideways."""
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width


def assert_still(page: Page) -> None:
    """Nothing moved while the page came."""
    page.wait_for_load_state("load")
    assert shifted(page) < SHIFT_MAX


@pytest.mark.parametrize("name", ZOO_PAGES)
def test_a_page_of_the_zoo_has_one_heading_fits_a_desktop_is_small_and_does_not_shift(
    name: str, zoo: Site, open_page: Opener
) -> None:
    page = open_page(zoo, ZOO_PAGES[name])
    page.wait_for_load_state("networkidle")
    assert transferred_bytes(page) < TRANSFER_MAX_BYTES
    status = page.evaluate("performance.getEntriesByType('navigation')[0].responseStatus")
    assert (status >= 400) == (name in REFUSALS)
    assert page.locator("h1").count() == 1
    assert_still(page)
    for width in DESK_WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert_fits(page, width)


@pytest.mark.parametrize("name", ZOO_PAGES)
def test_a_page_of_the_zoo_fits_a_phone_and_does_not_shift(name: str, zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, ZOO_PAGES[name], **phone())
    assert_still(page)
    for width in PHONE_WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert_fits(page, width)


@pytest.mark.parametrize("name", ODD_PAGES)
def test_a_page_of_hostile_and_wide_models_fits_everywhere_and_runs_nothing(
    name: str, odd: Site, open_page: Opener
) -> None:
    page = open_page(odd, ODD_PAGES[name])
    assert_still(page)
    for width in (*PHONE_WIDTHS, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert_fits(page, width)


@pytest.mark.parametrize("name", EMPTY_PAGES)
def test_a_page_of_an_empty_registry_names_the_next_step_and_fits(name: str, empty: Site, open_page: Opener) -> None:
    page = open_page(empty, EMPTY_PAGES[name], **phone(360))
    assert_fits(page, 360)
    if name != "API":
        assert page.get_by_text("organ ingest FILE.gguf").is_visible()


@pytest.mark.parametrize("name", ZOO_PAGES)
def test_the_dark_scheme_swaps_paper_and_ink(name: str, zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, ZOO_PAGES[name])
    light = brightness(page)
    page.emulate_media(color_scheme="dark")
    dark = brightness(page)
    assert light["paper"] > 200 > 60 > light["ink"]
    assert dark["ink"] > 200 > 60 > dark["paper"]


def brightness(page: Page) -> dict[str, float]:
    """The mean of red, green and blue of paper and ink, 0 to 255."""
    script = """() => {
      const style = getComputedStyle(document.body);
      const mean = (colour) => colour.match(/\\d+/g).slice(0, 3).reduce((sum, one) => sum + Number(one), 0) / 3;
      return { paper: mean(style.backgroundColor), ink: mean(style.color) };
    }"""
    found: dict[str, float] = page.evaluate(script)
    return found
