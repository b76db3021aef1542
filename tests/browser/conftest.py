"""Servers, the browser and its pages. The tests of this folder run when `-m browser` asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.addresses import Opener
from tests.browser.chromium import NoBrowser, chromium
from tests.browser.page_monitor import LISTENING, Watch
from tests.browser.sites import Site, serving_nothing, serving_odd, serving_zoo

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent
DESKTOP = {"viewport": {"width": 1280, "height": 900}}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: needs Chromium and Playwright; run by `make test-browser`")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is in this folder, and leave it out unless it was asked for."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.browser)
    if "browser" not in str(config.getoption("markexpr")):
        items[:] = [item for item in items if HERE not in item.path.parents]
        config.hook.pytest_deselected(items=ours)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests; each page has a context of its own."""
    missing = ""
    try:
        with chromium() as opened:
            yield opened
    except NoBrowser as error:
        missing = str(error)
    if missing:  # outside, so that the sentence stands alone
        pytest.fail(missing, pytrace=False)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The catalog of the shipped models."""
    with serving_zoo(tmp_path_factory.mktemp("zoo")) as site:
        yield site


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The catalog with the hostile and the very wide model."""
    with serving_odd(tmp_path_factory.mktemp("odd")) as site:
        yield site


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The catalog of nothing."""
    with serving_nothing(tmp_path_factory.mktemp("empty")) as site:
        yield site


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Opener]:
    """A function that opens pages; whatever went wrong on any of them fails the test."""
    contexts, watches = [], []

    def opened(site: Site, path: str, **options: Any) -> Page:
        context = browser.new_context(**{**DESKTOP, **options})
        context.add_init_script(LISTENING)
        page = context.new_page()
        watch = Watch(site.address)
        watch.over(page)
        contexts.append(context)
        watches.append(watch)
        page.goto(site.at(path))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [complaint for watch in watches for complaint in watch.complaints] == []
