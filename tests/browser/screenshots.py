"""The pictures of the documentation, taken anew: `python -m tests.browser.screenshots [FOLDER]`."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.chromium import chromium
from tests.browser.sites import BASE, TUNED, Site, serving_zoo
from tests.web.live_server import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = ROOT / "docs"
SIZE_MAX_BYTES = 200_000
DESK = {"viewport": {"width": 1280, "height": 860}, "device_scale_factor": 1}
DATES = """(day) => document.querySelectorAll("dd, td").forEach((one) => {
  if (/^\\d{4}-\\d\\d-\\d\\d$/.test(one.textContent)) one.textContent = day;
})"""
DAY = "2026-01-01"
"""What pictures show as the day of every date, so that a day by itself changes none of them."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A page as it is seen in a window."""

    name: str
    path: str


PICTURES = (
    Picture("catalog-organs", "/organs?q=type:organ sort:-spectral"),
    Picture("catalog-chimera", "/chimeras/{lock}"),
    Picture("catalog-compose", f"/compose?base={BASE}&donor={TUNED}&graft=from:{TUNED}+type:organ+blocks:1-3"),
)


def take(browser: Browser, site: Site, picture: Picture) -> bytes:
    """The picture as a PNG."""
    context = browser.new_context(**DESK)
    try:
        page = context.new_page()
        page.goto(site.at(picture.path), wait_until="networkidle")
        page.evaluate(DATES, DAY)
        return page.screenshot()
    finally:
        context.close()


def take_all(folder: Path) -> None:
    """Write every picture into `folder`; one that is too large is a mistake of ours."""
    with tempfile.TemporaryDirectory() as scratch, serving_zoo(Path(scratch)) as site, chromium() as browser:
        for picture in PICTURES:
            data = take(browser, site, picture)
            assert len(data) <= SIZE_MAX_BYTES, f"{picture.name} has {len(data):,} bytes"
            (folder / f"{picture.name}.png").write_bytes(data)
            print(f"{picture.name}.png: {len(data):,} bytes")


if __name__ == "__main__":
    take_all(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
