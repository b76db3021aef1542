"""A model's page in a browser: the grid is walked, coloured anew, scrolled in its frame, and printed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.browser.addresses import WITHOUT_SCRIPT, Opener, follow, phone
from tests.browser.sites import BASE, TUNED, WIDE, Site

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

NARROW_DESK = {"viewport": {"width": 520, "height": 600}}
HEADS = (("thead th", 0), ("thead th", 12), ("tbody th", 14))
"""The corner, a head of a column and one of a row."""
FROM_CORNER = """() => {
  const cell = document.activeElement.getBoundingClientRect();
  const corner = document.querySelector(".grid thead th").getBoundingClientRect();
  return [cell.left - corner.right, cell.top - corner.bottom];
}"""
"""Distances of the focused cell from the corner, to the right and down, in pixels."""
SCRIPTS = pytest.mark.parametrize("options", [{}, WITHOUT_SCRIPT], ids=["script", "no script"])


def cell(page: Page, block: int, column: int) -> Locator:
    """The link of a cell of the grid, both counted from 0."""
    return page.locator(".grid tbody tr").nth(block).locator("td").nth(column).locator("a")


def box(found: Locator) -> dict[str, float]:
    """Return the position of an element on the screen."""
    rectangle: Any = found.bounding_box()
    assert rectangle
    return dict(rectangle)


def test_a_cell_links_to_its_organ_and_back(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{BASE}")
    said = cell(page, 2, 0).get_attribute("aria-label")
    assert said is not None
    follow(page, cell(page, 2, 0))
    assert re.fullmatch(r"/organs/[0-9a-f]{64}", urlsplit(page.url).path)
    assert page.locator("h1").inner_text() == said.partition(":")[0]
    page.go_back()
    assert urlsplit(page.url).path.startswith("/models/local/")


def test_a_cell_shows_its_name_and_number_when_it_is_pointed_at_or_focused(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{BASE}")
    shown = "(link) => getComputedStyle(link, '::after').content"
    link = cell(page, 1, 1)
    assert link.evaluate(shown) == "none"
    link.hover()
    assert "°" in link.evaluate(shown)
    other = cell(page, 1, 2)
    page.keyboard.press("Tab")  # so that what is focused counts as focused by the keyboard
    other.focus()
    assert "°" in other.evaluate(shown)


def test_arrow_keys_walk_the_grid_and_stop_at_its_edges(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{BASE}")
    at = "[document.activeElement.closest('tr').sectionRowIndex, document.activeElement.closest('td').cellIndex]"
    cell(page, 0, 0).focus()
    visited = []
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
        visited.append(page.evaluate(at))
    assert visited == [[0, 2], [1, 2], [1, 1], [1, 1], [0, 1], [0, 1]]


@SCRIPTS
def test_the_switch_colours_the_cells_by_another_measure(
    options: dict[str, bool], zoo: Site, open_page: Opener
) -> None:
    page = open_page(zoo, f"/models/{TUNED}", **options)
    switch = page.get_by_role("list", name="Colour the cells by")
    for label, pattern in (("spectral signal", r"0\.\d{3}"), ("size", r"[\d.]+k"), ("change of θ", r"[+-−].*°")):
        follow(page, switch.get_by_role("link", name=label))
        assert switch.locator("a[aria-current]").inner_text() == label
        assert re.fullmatch(pattern, cell(page, 1, 0).inner_text())


@pytest.mark.parametrize("options", [NARROW_DESK, phone()], ids=["desk", "phone"])
def test_a_wide_grid_scrolls_in_its_frame_and_keeps_its_heads_visible(
    options: dict[str, Any], odd: Site, open_page: Opener
) -> None:
    page = open_page(odd, f"/models/{WIDE}", **options)
    frame = page.locator(".anatomy")
    before = box(cell(page, 3, 3))
    right, down = frame.evaluate("(frame) => { frame.scrollTo(120, 200); return [frame.scrollLeft, frame.scrollTop]; }")
    assert (right, down) == (120, 200)
    assert page.evaluate("document.scrollingElement.scrollLeft") == 0
    edge, after = box(frame), box(cell(page, 3, 3))
    assert (before["x"] - after["x"], before["y"] - after["y"]) == (120, 200)
    corner, slot, block = (box(page.locator(f".grid {part}").nth(index)) for part, index in HEADS)
    assert abs(slot["y"] - edge["y"]) <= 2
    assert 0 <= block["x"] - edge["x"] <= 10
    assert (corner["x"], corner["y"]) == (block["x"], slot["y"])


def test_a_focused_cell_is_not_hidden_behind_the_heads_of_the_grid(odd: Site, open_page: Opener) -> None:
    page = open_page(odd, f"/models/{WIDE}", **phone())
    cell(page, 20, 15).focus()
    for key in ("ArrowLeft",) * 14 + ("ArrowUp",) * 18:
        page.keyboard.press(key)
        right, below = page.evaluate(FROM_CORNER)
        assert right >= -1, f"{-right} pixels are behind the column of blocks after {key}"
        assert below >= -1, f"{-below} pixels are behind the row of slots after {key}"


def test_the_page_of_a_model_prints_on_one_sheet(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{BASE}")
    printed = page.pdf(format="A4", print_background=False)
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) == 1
