"""The browser of this machine, driven by Playwright: found, never downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
VARIABLE = "CHROMIUM"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--font-render-hinting=none", "--force-color-profile=srgb"),
)
"""No connection that a page did not ask for, and the same pixels in every run."""


class NoBrowser(Exception):
    """No browser can be started; the message names the missing part in one sentence."""


def find_chromium() -> str:
    """The path of the browser: what CHROMIUM names, else the first of NAMES on the path. Raises NoBrowser."""
    named = os.environ.get(VARIABLE)
    candidates = (named,) if named else NAMES
    for name in candidates:
        if path := shutil.which(name):
            return path
    raise NoBrowser(
        f"There is no {' or '.join(candidates)} here: install Chromium (Debian: apt install chromium), "
        f"or set {VARIABLE} to its path."
    )


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window. Raises NoBrowser."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        raise NoBrowser("Playwright is not installed: pip install --group browser") from error
    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()
