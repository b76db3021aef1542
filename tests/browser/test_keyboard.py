"""The catalog without a mouse: what is reached, in which order, and that it is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.browser.addresses import ZOO_PAGES, Opener
from tests.browser.sites import BASE, Site

if TYPE_CHECKING:
    from playwright.sync_api import Page

STOPS_MAX = 400
WALKED = ("home", "narrowed", "organ", "models", "model", "chimera", "compared", "lineage", "composing")
# A bar of the histogram wears the outline inside; a node of a graph and an organ of a drawing have a thicker stroke.
FOCUSED = """() => {
  const one = document.activeElement;
  const style = getComputedStyle(one);
  const bar = one.closest(".histogram a");
  const shape = one.querySelector(":scope > .node, :scope > rect.variant, :scope > path:last-of-type");
  const outline = shape && getComputedStyle(shape);
  const styles = [style, ...(bar ? [getComputedStyle(bar.firstElementChild)] : [])];
  const kinds = { skip: ".skip", nav: "header nav a", search: "main input[type=search]", filter: ".filter a",
    row: "table.rows tbody th > a", body: "body" };
  return {
    kind: Object.keys(kinds).find((kind) => one.matches(kinds[kind])) ?? "other",
    is_seen: styles.some((one) => one.outlineStyle !== "none" && parseFloat(one.outlineWidth) > 0)
      || (outline !== null && outline.stroke !== "none" && parseFloat(outline.strokeWidth) >= 2),
    what: one.outerHTML.slice(0, 160),
  };
}"""


def stops(page: Page) -> list[dict[str, object]]:
    """Return the elements that Tab reaches, from the top of the page to its end."""
    found: list[dict[str, object]] = []
    for _ in range(STOPS_MAX):
        page.keyboard.press("Tab")
        stop: dict[str, object] = page.evaluate(FOCUSED)
        if stop["kind"] == "body" or (found and stop["kind"] == "skip"):
            break
        found.append(stop)
    return found


def test_tab_reaches_skip_link_navigation_search_filters_and_rows_in_this_order(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, ZOO_PAGES["narrowed"])
    kinds = [stop["kind"] for stop in stops(page)]
    wanted = ["skip", "nav", "search", "filter", "row"]
    assert [kinds.index(kind) for kind in wanted] == sorted(kinds.index(kind) for kind in wanted)


@pytest.mark.parametrize("name", WALKED)
def test_the_focused_element_is_visibly_focused(name: str, zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, ZOO_PAGES[name])
    found = stops(page)
    assert 5 < len(found) < STOPS_MAX
    assert [stop["what"] for stop in found if not stop["is_seen"]] == []


def test_the_skip_link_skips_the_navigation(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/organs")
    page.keyboard.press("Tab")
    assert page.get_by_role("link", name="Skip to the content").bounding_box()["x"] >= 0  # type: ignore[index]
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


@pytest.mark.parametrize("path", ["/", "/organs", f"/models/{BASE}"])
def test_a_slash_focuses_the_search_box(path: str, zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, path)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find"
    page.keyboard.type("a/b")
    assert page.locator("#find").input_value() == "a/b"


def test_a_slash_opens_the_search_page_if_a_narrow_page_has_no_search_box(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{BASE}", viewport={"width": 390, "height": 780})
    with page.expect_navigation():
        page.keyboard.press("/")
    assert urlsplit(page.url).path == "/search"
    page.wait_for_function("document.activeElement.id === 'q'")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_menu_opens_by_the_keyboard_and_closes_with_escape_and_on_a_click_elsewhere(
    width: int, zoo: Site, open_page: Opener
) -> None:
    page = open_page(zoo, "/lineage", viewport={"width": width, "height": 780})
    summary, here = page.locator(".menu > summary"), page.locator(".menu a[aria-current=page]")
    summary.focus()
    page.keyboard.press("Enter")
    assert here.inner_text() == "Lineage"
    shown = page.locator(".menu a").locator("visible=true").all_inner_texts()
    assert {"Lineage", "Compare", "Reports"} <= set(shown)
    assert ({"Models", "Compose", "Search", "Docs"} <= set(shown)) is (width == 390)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.menu') !== null")
    page.keyboard.press("Escape")
    assert not here.is_visible()
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    summary.click()
    page.mouse.click(5, 700)
    assert not here.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_an_explanation_opens_in_place_by_the_keyboard(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/organs/{organ}")
    what = page.locator("details.what").first
    what.locator("summary").focus()
    page.keyboard.press("Enter")
    assert what.locator("p").first.is_visible()
