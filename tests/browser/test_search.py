"""Search in a browser: typing, narrowing, sorting, paging."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.addresses import WITHOUT_SCRIPT, Opener, follow
from tests.browser.sites import Site

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCRIPTS = pytest.mark.parametrize("options", [{}, WITHOUT_SCRIPT], ids=["script", "no script"])


def query(page: Page) -> str:
    """Return the query in the address."""
    return parse_qs(urlsplit(page.url).query).get("q", [""])[0]


def places(page: Page) -> int:
    """Return the number of results that the page states."""
    found = re.search(r"([\d,]+) results", page.locator("main").inner_text())
    assert found
    return int(found[1].replace(",", ""))


def names(page: Page) -> list[str]:
    """The organs of the list, in order."""
    return page.locator("table.rows tbody th > a").all_inner_texts()


def types(page: Page) -> set[str]:
    """The types of the organs of the list."""
    return {text.lstrip("●◆■│").strip() for text in page.locator("table.rows td .type").all_inner_texts()}


@SCRIPTS
def test_a_query_is_typed_and_entered(options: dict[str, bool], zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/", **options)
    box = page.get_by_role("search", name="Search tensors").locator("input")
    box.fill("block:1 slot:ffn_down")
    with page.expect_navigation():
        box.press("Enter")
    assert urlsplit(page.url).path == "/organs"
    assert set(names(page)) == {"blk.1.ffn_down.weight"}
    assert page.locator("#q").input_value() == "block:1 slot:ffn_down"


@SCRIPTS
def test_a_filter_narrows_the_search_and_is_removed_again(
    options: dict[str, bool], zoo: Site, open_page: Opener
) -> None:
    page = open_page(zoo, "/organs?q=sort:-theta", **options)
    everything = places(page)
    filters = page.get_by_role("complementary", name="Filters")
    follow(page, filters.get_by_role("link", name="attention", exact=True))
    assert query(page) == "type:skeleton"
    assert 0 < places(page) < everything
    assert types(page) == {"attention"}
    follow(page, filters.locator("a[aria-current]"))
    assert places(page) == everything


@SCRIPTS
def test_the_search_begins_with_feed_forward_organs_and_a_filter_adds_others(
    options: dict[str, bool], zoo: Site, open_page: Opener
) -> None:
    page = open_page(zoo, "/organs", **options)
    first = places(page)
    assert types(page) == {"feed-forward"}
    filters = page.get_by_role("complementary", name="Filters")
    follow(page, filters.get_by_role("link", name="attention", exact=True))
    both = places(page)
    assert both > first
    follow(page, filters.locator("a[aria-current]").filter(has_text="feed-forward"))
    assert types(page) == {"attention"}
    assert places(page) == both - first


@SCRIPTS
def test_a_bar_of_the_histogram_sets_and_removes_its_filter(
    options: dict[str, bool], zoo: Site, open_page: Opener
) -> None:
    page = open_page(zoo, "/organs", **options)
    everything = places(page)
    bars = page.get_by_role("list", name="Number of tensors by θ").get_by_role("link")
    tallest = bars.nth(7)
    label = tallest.get_attribute("aria-label")
    follow(page, tallest)
    assert label == f"θ 35° to 40°, tensors: {places(page):,}"
    assert bars.nth(7).get_attribute("aria-current") == "true"
    follow(page, bars.nth(7))
    assert places(page) == everything


@SCRIPTS
def test_a_column_head_sorts_and_shows_the_order(options: dict[str, bool], zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/organs?q=type:organ", **options)
    head = page.get_by_role("columnheader", name="spectral")
    assert head.get_attribute("aria-sort") is None
    follow(page, head.get_by_role("link"))
    assert head.get_attribute("aria-sort") == "descending"
    column = head.evaluate("(head) => head.cellIndex")
    cells = page.locator(f"table.rows tbody tr > :nth-child({column + 1})").all_inner_texts()
    shares = [float(text) for text in cells if text != "–"]
    assert len(shares) > 10
    assert shares == sorted(shares, reverse=True)
    follow(page, head.get_by_role("link"))
    assert head.get_attribute("aria-sort") == "ascending"


@SCRIPTS
def test_the_next_page_continues_and_links_to_the_first(options: dict[str, bool], zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/models?limit=4", **options)
    first = names(page)
    follow(page, page.get_by_role("link", name="next page"))
    assert len(first) == len(names(page)) == 4
    assert set(first) & set(names(page)) == set()
    follow(page, page.get_by_role("link", name="first page"))
    assert names(page)[:4] == first


def test_a_row_is_one_link(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/organs?q=type:organ")
    number = page.locator("table.rows tbody tr").first.locator("td.n").last.bounding_box()
    assert number
    with page.expect_navigation():
        page.mouse.click(number["x"] + number["width"] / 2, number["y"] + number["height"] / 2)
    assert re.fullmatch(r"/organs/[0-9a-f]{64}", urlsplit(page.url).path)


def options(page: Page) -> list[str]:
    """Wait for suggestions, and return their texts."""
    page.locator(".suggestions [role=option]").first.wait_for()
    return page.locator(".suggestions [role=option] > .mono").all_inner_texts()


def test_the_box_of_every_page_suggests_models_and_leads_to_one(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/reports")
    page.keyboard.press("/")
    page.keyboard.type("zoo-a-2m-code")
    assert options(page)[0].startswith("local/Zoo-A-2M-Code")
    box = page.get_by_role("combobox", name="Search models and tensors")
    assert box.get_attribute("aria-expanded") == "true"
    page.keyboard.press("ArrowDown")
    chosen = page.locator(".suggestions [aria-selected=true]")
    assert box.get_attribute("aria-activedescendant") == chosen.get_attribute("id")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert urlsplit(page.url).path.startswith("/models/local/Zoo-A-2M-Code")


def test_a_query_is_completed_word_by_word(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/organs?q=sort:-theta")
    box = page.get_by_role("search", name="Search tensors").locator("input")
    box.fill("block:0 ")
    for typed, wanted, value in (
        ("att", "type:skeleton", "block:0 type:skeleton "),
        ("sor", "sort:", "block:0 type:skeleton sort:"),
        ("-si", "sort:-size", "block:0 type:skeleton sort:-size "),
    ):
        page.keyboard.type(typed)
        page.locator(".suggestions [role=option]").filter(has_text=wanted).first.click()
        assert box.input_value() == value
    page.keyboard.type("ty")
    options(page)
    page.keyboard.press("Escape")
    assert page.locator(".suggestions:visible").count() == 0
    assert box.input_value().endswith(" ty")
    box.fill("type:skeleton")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert types(page) == {"attention"}


def test_a_field_for_a_model_suggests_names(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/compare")
    page.locator("#first").fill("branch")
    assert options(page) == ["local/Zoo-A-2M-Branch-v1.0-Q8_0"]
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert page.locator("#first").input_value() == "local/Zoo-A-2M-Branch-v1.0-Q8_0"


@SCRIPTS
def test_a_query_is_saved_run_and_deleted(options: dict[str, bool], zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/models?q=params<2M", **options)
    follow(page, page.get_by_role("link", name="Save this query"))
    name = "without-script" if options else "with-script"
    page.locator("#name").fill(name)
    follow(page, page.get_by_role("button", name="Save"))
    follow(page, page.get_by_role("link", name=f"@{name}"))
    assert query(page) == "params<2000000"
    follow(page, page.get_by_role("link", name="Search", exact=True).first)
    follow(page, page.get_by_role("button", name=f"Delete the query {name}"))
    assert page.get_by_role("link", name=f"@{name}").count() == 0
