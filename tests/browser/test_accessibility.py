"""axe-core on every page: light and dark, desk and phone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.addresses import EMPTY_PAGES, ODD_PAGES, ZOO_PAGES, Opener
from tests.browser.sites import Site

if TYPE_CHECKING:
    from playwright.sync_api import Page

REFUSED_IMPACTS = ("serious", "critical")
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 800}
COLOURS = {"rules": ["color-contrast", "link-in-text-block"]}
"""The rules that depend on the colour scheme; the other rules do not look at colours."""
EVERY_WAY = ((DESK, "light", {}), (PHONE, "light", {}), (DESK, "dark", COLOURS), (PHONE, "dark", COLOURS))
SMALL_TARGETS = ".histogram"
"""Bars on a phone are narrower than 24 pixels; the search box above takes the same bounds (WCAG 2.5.8, equivalent)."""
RUN = """async ([rules, small]) => {
  const all = { type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] };
  const runOnly = rules ? { type: "rule", values: rules } : all;
  const { violations } = await axe.run(document, { runOnly, resultTypes: ["violations"] });
  const meant = (rule, node) => rule === "target-size" && document.querySelector(node.target[0])?.closest(small);
  return violations.map(({ id, impact, help, nodes }) => ({
    rule: `${impact} ${id}: ${help}`,
    places: nodes.filter((node) => !meant(id, node)).map((node) => node.html.slice(0, 160)),
  })).filter((one) => one.places.length > 0);
}"""


def assert_accessible(page: Page, ways: Sequence[tuple[Any, Any, dict[str, list[str]]]] = EVERY_WAY) -> None:
    """Nothing serious in light and dark, on a desk and on a phone; what is moderate is printed."""
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    found: dict[str, list[str]] = {}
    for size, scheme, only in ways:
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=scheme)
        for one in page.evaluate(RUN, [only.get("rules"), SMALL_TARGETS]):
            found.setdefault(one["rule"], []).append(f"{size['width']} {scheme}: {one['places'][:3]}")
    print(*found.items(), sep="\n")
    assert {rule: where for rule, where in found.items() if rule.startswith(REFUSED_IMPACTS)} == {}


@pytest.mark.parametrize("name", ZOO_PAGES)
def test_a_page_of_the_zoo_is_accessible(name: str, zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, ZOO_PAGES[name])
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert_accessible(page)


@pytest.mark.parametrize("name", ["organs", "wide model", "hostile model"])
def test_a_page_of_hostile_and_wide_models_is_accessible(name: str, odd: Site, open_page: Opener) -> None:
    assert_accessible(open_page(odd, ODD_PAGES[name]), EVERY_WAY[:2])


@pytest.mark.parametrize("name", EMPTY_PAGES)
def test_a_page_of_an_empty_registry_is_accessible(name: str, empty: Site, open_page: Opener) -> None:
    assert_accessible(open_page(empty, EMPTY_PAGES[name]), EVERY_WAY[1:3])
