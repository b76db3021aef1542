"""Measure the pages of the catalog in Chromium: bytes transferred, and the time of the largest paint.

    python -m bench.pages                       serves the shipped models, and two chimeras of them
    python -m bench.pages --site http://HOST:PORT /models/NAME ...
    python -m bench.pages --rounds 10

Each page is loaded with an empty cache, in turns with the other pages. The median of the rounds is shown.
Needs Chromium, and `pip install --group browser`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.addresses import ZOO_PAGES, phone
from tests.browser.chromium import chromium
from tests.browser.page_monitor import transferred_bytes
from tests.browser.sites import serving_zoo

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WINDOWS = {"desktop": {"viewport": {"width": 1280, "height": 900}}, "phone": phone()}
LARGEST_PAINT = """() => new Promise((done) => new PerformanceObserver((list) => {
  const entries = list.getEntries();
  done(entries[entries.length - 1].startTime);
}).observe({ type: "largest-contentful-paint", buffered: true }))"""


def main() -> None:
    """Serve or open the catalog, load its pages, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", help="the address of a catalog that is already served")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="paths of pages; default: all kinds of pages")
    options = parser.parse_args()
    with addresses(options.site, options.paths) as pages, chromium() as browser:
        measure(browser, pages, options.rounds)


@contextmanager
def addresses(site: str | None, paths: list[str]) -> Iterator[dict[str, str]]:
    """Yield the addresses of the pages by name; without `site`, serve the shipped models meanwhile."""
    if site is not None:
        yield {path: site.rstrip("/") + path for path in paths or ["/"]}
        return
    with tempfile.TemporaryDirectory() as folder, serving_zoo(Path(folder)) as zoo:
        chosen = {path: path for path in paths} or ZOO_PAGES
        yield {name: zoo.at(path) for name, path in chosen.items()}


def measure(browser: Browser, pages: dict[str, str], rounds: int) -> None:
    """Print the bytes, and the median time of the largest paint in milliseconds, of each page in each window."""
    sizes: dict[tuple[str, str], int] = {}
    paints: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, address in pages.items():
            for window in WINDOWS:
                size, paint = load(browser, address, window)
                sizes[name, window] = size
                paints.setdefault((name, window), []).append(paint)
    print(f"{'page':<28}{'window':<10}{'kB':>8}{'largest paint, ms':>20}")
    for (name, window), size in sizes.items():
        print(f"{name:<28}{window:<10}{size / 1000:>8.1f}{statistics.median(paints[name, window]):>20.0f}")
    slowest = max(statistics.median(times) for times in paints.values())
    print(f"most: {max(sizes.values()) / 1000:.1f} kB, {slowest:.0f} ms")


def load(browser: Browser, address: str, window: str) -> tuple[int, float]:
    """Load a page with an empty cache; return the bytes transferred, and the largest paint in milliseconds."""
    context = browser.new_context(**WINDOWS[window])
    try:
        page = context.new_page()
        page.goto(address, wait_until="networkidle")
        return transferred_bytes(page), float(page.evaluate(LARGEST_PAINT))
    finally:
        context.close()


if __name__ == "__main__":
    main()
