"""Comparing and lineage in a browser."""

from __future__ import annotations

import re

import pytest

from tests.browser.addresses import WITHOUT_SCRIPT, Opener, follow
from tests.browser.sites import BASE, TUNED, Site

QUANTISED = "local/Zoo-A-2M-v1.0-Q8_0"
ORGANS, BLOCKS = 38, 4
"""Of each of the two models. Some organs are outside the blocks."""
SCRIPTS = pytest.mark.parametrize("options", [{}, WITHOUT_SCRIPT], ids=["script", "no script"])


@SCRIPTS
def test_two_models_are_compared_by_the_form(options: dict[str, bool], zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/compare", **options)
    page.get_by_label("First model", exact=True).fill(BASE)
    page.get_by_label("Second model", exact=True).fill(TUNED)
    follow(page, page.get_by_role("button", name="Compare"))
    assert page.locator(".network svg").get_by_role("link", name=re.compile("change")).count() == ORGANS
    assert page.get_by_role("region", name="Table by block").locator("tbody tr").count() == BLOCKS + 1
    facts = page.locator("dl.facts").inner_text()
    assert BASE in facts
    assert TUNED in facts


@SCRIPTS
def test_a_node_of_the_lineage_links_to_its_model(options: dict[str, bool], zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/lineage", **options)
    node = page.locator("svg a").filter(has_text="Code-v1.0").first
    name = node.get_attribute("aria-label") or ""
    follow(page, node)
    assert page.locator("h1").inner_text() == name.partition("/")[2]


@SCRIPTS
def test_a_quantisation_in_the_lineage_links_to_its_model(
    options: dict[str, bool], zoo: Site, open_page: Opener
) -> None:
    page = open_page(zoo, "/lineage", **options)
    folded = "local/Zoo-A-2M-v1.0, 2 versions and quantisations"
    assert page.locator("svg").get_by_role("link", name=folded).count() == 1
    follow(page, page.locator("svg").get_by_role("link", name=f"{QUANTISED}@1"))
    assert page.locator(".full-name").inner_text().startswith(f"{QUANTISED}@1")
