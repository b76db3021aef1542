"""The pages under test, by what they are called in the names of tests, and the steps between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.browser.sites import ADAPTER, BASE, ODD, TUNED, WIDE

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

Opener = Callable[..., "Page"]
"""Opens a path of a site in a context of its own: `open_page(site, "/organs", **options of the context)`."""

ZOO_PAGES = {
    "home": "/",
    "search": "/search",
    "found": "/search?q=zoo",
    "organs": "/organs",
    "narrowed": "/organs?q=type:organ+theta>=30+sort:-spectral&limit=10",
    "found nothing": "/organs?q=nobodyknowsthis",
    "refused query": "/organs?q=theta>=much",
    "organ": "/organs/{organ}",
    "models": "/models",
    "model": f"/models/{BASE}",
    "model by θ": f"/models/{TUNED}?by=theta",
    "edit a model": f"/models/{BASE}/edit",
    "adapter": f"/models/{ADAPTER}",
    "compare": "/compare",
    "compared": f"/compare?first={BASE}&second={TUNED}",
    "compose": "/compose",
    "composing": f"/compose?base={BASE}&cell=organ:2&graft=from:{TUNED}+type:organ+blocks:1",
    "composing with a donor": f"/compose?base={BASE}&donor={TUNED}&graft=from:{TUNED}+type:organ+blocks:1",
    "try": f"/models/{BASE}/try",
    "chimeras": "/chimeras",
    "chimera": "/chimeras/{lock}",
    "chimera by change": "/chimeras/{lock}?by=change",
    "leaderboard": "/leaderboard",
    "leaderboard of a base": f"/leaderboard?base={BASE}&on=code",
    "organs with a gain": "/organs?q=gain>0+sort:-gain",
    "evolutions": "/evolutions",
    "evolution": "/evolutions/1",
    "evolution to be removed": "/evolutions/1?remove=1",
    "trial": "/evolutions/1/trials/1",
    "interrupted evolution": "/evolutions/2",
    "lineage": "/lineage",
    "values": "/organs/{organ}/weights",
    "reports": "/reports",
    "ranking": "/reports/ranking",
    "types": "/reports/types",
    "components": "/reports/components",
    "scale": "/reports/scale",
    "wells": "/reports/wells",
    "ingests": "/reports/ingests",
    "report on a model": f"/models/{BASE}/report",
    "jobs": "/jobs",
    "log in": "/login",
    "account": "/account",
    "contributors": "/contributors",
    "contributor": "/contributors/local",
    "API": "/api",
    "error": "/nowhere",
}
ODD_PAGES = {
    "home": "/",
    "organs": "/organs",
    "models": "/models",
    "wide model": f"/models/{WIDE}",
    "hostile model": f"/models/{ODD}",
    "hostile query": '/organs?q="><script>alert(1)</script>',
    "compare": "/compare",
    "compared": f"/compare?first={ODD}&second={WIDE}",
    "composing on a hostile model": f"/compose?base={ODD}&cell=organ:1",
    "composing on a wide model": f"/compose?base={WIDE}&cell=organ:1",
    "lineage": "/lineage",
    "ranking": "/reports/ranking",
    "report on a model": f"/models/{ODD}/report",
}
EMPTY_PAGES = {
    name: ZOO_PAGES[name]
    for name in (
        "home",
        "search",
        "organs",
        "models",
        "compare",
        "compose",
        "chimeras",
        "leaderboard",
        "lineage",
        "reports",
        "API",
    )
}
PHONE_WIDTHS = (360, 390)
WITHOUT_SCRIPT = {"java_script_enabled": False}


def phone(width: int = 390) -> dict[str, Any]:
    """The options of a context that is a phone of so many pixels."""
    return {"viewport": {"width": width, "height": 800}, "is_mobile": True, "has_touch": True}


def follow(page: Page, link: Locator) -> None:
    """Click a link and wait for where it leads."""
    with page.expect_navigation():
        link.click()
