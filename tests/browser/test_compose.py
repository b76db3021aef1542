"""Composing in a browser, with a script and without: base, cell, graft, create, job, chimera."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from organs.registry.local import LocalRegistry
from tests.browser.addresses import PHONE_WIDTHS, WITHOUT_SCRIPT, Opener, phone
from tests.browser.sites import BASE, TUNED, ZOO, Site
from tests.browser.test_accessibility import assert_accessible
from tests.small_models import ingest_file
from tests.web.live_server import running_server

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

SCRIPTS = pytest.mark.parametrize("options", [{}, WITHOUT_SCRIPT], ids=["script", "no script"])
FILES = ("Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16", "Zoo-B-2M-v1.0-Q8_0", "Zoo-A-2M-Code-LoRA-v1.0-F32")
STRANGER = "local/Zoo-B-2M-v1.0-Q8_0"
BENCH = f"/compose?base={BASE}@1"
FULL = (
    f"{BENCH}&cell=organ:2&graft=from:{STRANGER}@1+type:organ+blocks:1&adapter=from:local/{FILES[3]}@1+scale:0.8"
    "&purify=method:fractal+type:skeleton+blocks:0&graft=rubbish"
)
PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A catalog of its own, for what is created here stays."""
    folder = tmp_path_factory.mktemp("workshop")
    with LocalRegistry.open(folder / "home") as registry:
        for name in FILES:
            ingest_file(registry, ZOO / f"{name}.gguf")
    with running_server(folder / "home", folder / "log") as live:
        yield Site(live)


def steps(page: Page, parameter: str) -> list[str]:
    """Return the values of `parameter` in the address."""
    return parse_qs(urlsplit(page.url).query).get(parameter, [])


def swapped(page: Page, click: Locator, expected: str) -> None:
    """Click, and wait until the address has `expected`, whether the page was loaded or only its main part."""
    click.click()
    page.wait_for_url(re.compile(re.escape(expected)), timeout=PATIENCE_MS)
    page.wait_for_selector("main:not([aria-busy])")


@SCRIPTS
def test_a_chimera_is_made_by_clicks_and_its_page_is_opened(
    options: dict[str, Any], workshop: Site, open_page: Opener
) -> None:
    page = open_page(workshop, "/compose", **options)
    swapped(page, page.get_by_role("link", name=f"{BASE}@1", exact=True).first, "base=")
    swapped(page, page.get_by_role("link", name=f"Choose {TUNED}@1"), "donor=")
    swapped(page, page.get_by_role("link", name=re.compile("^block 2, feed-forward: click to give it from")), "graft=")
    assert steps(page, "graft") == [f"from:{TUNED}@1 type:organ blocks:2"]
    swapped(page, page.get_by_role("link", name=re.compile("^block 1, all types: click to give")), "blocks:1")
    page.get_by_role("link", name=re.compile("^all feed-forward: click to give")).click()
    page.get_by_role("link", name=re.compile("^all feed-forward: from .*give it back")).wait_for()
    page.get_by_role("link", name=re.compile("^block 0, feed-forward: from .*give it back")).click()
    page.get_by_role("link", name=re.compile("^block 0, feed-forward: click to give")).wait_for()
    name = f"local/clicked-{'plain' if options else 'script'}"
    page.get_by_label("Name of the chimera").fill(name)
    page.get_by_role("button", name="Create the chimera").click()
    page.wait_for_url(re.compile(f"/models/{name}@1"), timeout=2 * PATIENCE_MS)
    assert name.partition("/")[2] in page.locator("h1").inner_text()


def test_a_slider_blends_and_shift_gives_a_band(workshop: Site, open_page: Opener) -> None:
    page = open_page(workshop, f"{BENCH}&donor={TUNED}@1")
    swapped(page, page.get_by_role("link", name=re.compile("^block 0, feed-forward")), "blocks:0")
    page.get_by_role("link", name=re.compile("^block 2, feed-forward")).click(modifiers=["Shift"])
    page.wait_for_url(re.compile("blocks:0-2"))
    page.wait_for_selector("main:not([aria-busy])")
    page.get_by_role("slider", name="Weight").fill("0.5")
    page.wait_for_url(re.compile("blend="))
    assert steps(page, "blend") == [f"from:{TUNED}@1 type:organ blocks:0-2 weight:0.5"]
    assert steps(page, "graft") == []


@SCRIPTS
def test_a_warning_is_accepted_and_a_step_is_removed(
    options: dict[str, Any], workshop: Site, open_page: Opener
) -> None:
    page = open_page(workshop, f"{BENCH}&graft=from:{STRANGER}@1+type:organ+blocks:1", **options)
    assert page.get_by_role("button", name="Create the chimera").count() == 0
    swapped(page, page.get_by_role("link", name="accept unrelated-lineage"), "accept=unrelated-lineage")
    assert page.get_by_role("button", name="Create the chimera").is_visible()
    swapped(page, page.get_by_role("link", name=re.compile("^Remove accept")), "graft=")
    page.wait_for_function("!location.search.includes('accept')")
    assert steps(page, "accept") == []


@SCRIPTS
def test_a_step_entered_by_hand_is_added_to_the_others(
    options: dict[str, Any], workshop: Site, open_page: Opener
) -> None:
    page = open_page(workshop, f"{BENCH}&graft=from:{TUNED}@1+type:organ+blocks:0", **options)
    page.get_by_text("More steps:").click()
    page.get_by_text("Graft, by donor or by query").click()
    page.get_by_label("or a query that selects the tensors").fill("type:skeleton theta>=1")
    page.get_by_label("ranked by").fill("-theta")
    page.locator("#graft-blocks").fill("1-2")
    swapped(page, page.get_by_role("button", name="Add the graft"), "where")
    assert steps(page, "graft")[1] == 'where:"type:skeleton theta>=1" sort:-theta blocks:1-2'
    assert steps(page, "add") == []


def test_the_script_swaps_the_page_keeps_the_focus_and_goes_back(workshop: Site, open_page: Opener) -> None:
    page = open_page(workshop, BENCH)
    page.evaluate("window.notLoadedAnew = true")
    cell = page.get_by_role("link", name=re.compile("block 1, feed-forward"))
    cell.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("cell=organ:1"), timeout=PATIENCE_MS)
    page.wait_for_selector("main:not([aria-busy])")
    assert page.evaluate("document.activeElement.id") == "cell-organ:1"
    swapped(page, page.get_by_role("link", name=f"Give this part {TUNED}@1"), "graft=")
    assert page.evaluate("document.activeElement.dataset.key") == f"donor {TUNED}@1"
    assert "Steps: 1. Refusals and warnings: 0." in page.locator("body > p[role=status]").inner_text()
    page.go_back()
    page.wait_for_selector("text=Nothing yet: it is the base")
    assert steps(page, "graft") == []
    assert page.evaluate("window.notLoadedAnew") is True


def test_links_of_the_left_page_are_inactive_until_the_previous_page_is_loaded(
    workshop: Site, open_page: Opener
) -> None:
    page = open_page(workshop, BENCH)
    page.evaluate("window.notLoadedAnew = true")
    swapped(page, page.get_by_role("link", name=re.compile("block 1, feed-forward")), "cell=organ:1")
    swapped(page, page.get_by_role("link", name=f"Give this part {TUNED}@1"), "graft=")
    page.evaluate("window.realFetch = window.fetch; window.fetch = () => new Promise(() => {}); 0")
    page.evaluate("history.back()")
    page.wait_for_selector("main[inert][aria-busy]")
    page.evaluate("history.forward()")
    page.wait_for_selector("main:not([inert]):not([aria-busy])")
    assert page.get_by_role("button", name="Create the chimera").is_visible()
    page.evaluate("window.fetch = window.realFetch; 0")
    page.evaluate("history.back()")
    page.wait_for_selector("text=Nothing yet: it is the base")
    assert page.evaluate("document.querySelector('main').inert") is False
    assert page.evaluate("window.notLoadedAnew") is True


def test_on_a_phone_the_link_to_create_is_always_visible(workshop: Site, open_page: Opener) -> None:
    page = open_page(workshop, f"{BENCH}&graft=from:{TUNED}@1+type:organ+blocks:1&cell=organ:2", **phone())
    way = page.locator(".sofar a", has_text="Create")
    page.evaluate("window.scrollTo(0, 1500)")
    box = way.bounding_box()
    assert box is not None
    assert 0 <= box["y"] < 100
    way.click()
    page.wait_for_timeout(300)
    field = page.get_by_label("Name of the chimera").bounding_box()
    assert field is not None
    assert box["y"] + box["height"] <= field["y"] < 800


@pytest.mark.parametrize("path", ["/compose", FULL, f"/compose/fits?base={BASE}&donor={STRANGER}"])
def test_a_page_of_composing_is_accessible(path: str, workshop: Site, open_page: Opener) -> None:
    page = open_page(workshop, path)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert_accessible(page)


@pytest.mark.parametrize("path", ["/compose", FULL, f"/compose/fits?base={BASE}&donor={STRANGER}"])
def test_a_page_of_composing_fits_a_phone(path: str, workshop: Site, open_page: Opener) -> None:
    page = open_page(workshop, path, **phone())
    for width in (*PHONE_WIDTHS, 1024, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width


def test_the_drawing_says_what_a_click_does_when_a_part_is_pointed_at_or_focused(
    workshop: Site, open_page: Opener
) -> None:
    page = open_page(workshop, BENCH)
    shown = page.locator(".cells .pointed")
    page.get_by_role("link", name=re.compile("block 1, feed-forward")).hover()
    assert shown.inner_text() == "block 1, feed-forward: from the base; click for its donors"
    page.get_by_role("link", name=re.compile("block 2, attention")).focus()
    assert shown.inner_text().startswith("block 2, attention")


def test_arrow_keys_walk_the_parts_and_stop_at_the_edges(workshop: Site, open_page: Opener) -> None:
    page = open_page(workshop, BENCH)
    page.get_by_role("link", name=re.compile("block 0, attention")).focus()
    visited = []
    for key in ("ArrowLeft", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
        visited.append(page.evaluate("document.activeElement.id"))
    assert visited[:2] == ["cell-skeleton:0", "cell-skeleton:1"]
    assert {where.partition(":")[2] for where in visited[2:4]} == {"1"}
    assert len(set(visited[:4])) >= 3
