"""A monitor of an open page that records everything that a page of the catalog must never do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Dialog, Page, Request

LISTENING = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
document.addEventListener("securitypolicyviolation", (event) => console.error("policy: " + event.violatedDirective));
"""
"""Run in every page before its own script: sums layout shifts, reports what the policy stopped."""


@dataclass(slots=True)
class Watch:
    """The errors of a page, as sentences."""

    address: str
    """Of the catalog: `http://host:port`. Whatever is asked of another is wrong."""
    complaints: list[str] = field(default_factory=list)
    pages_asked: set[str] = field(default_factory=set)

    def over(self, page: Page) -> None:
        """Listen to `page` from now on."""
        # Lambdas, because Playwright writes an attribute of its own onto the owner of a method.
        page.on("console", lambda message: self._console(message))
        page.on("pageerror", lambda error: self.complaints.append(f"a script failed: {error}"))
        page.on("dialog", lambda dialog: self._dialog(dialog))
        page.on("request", lambda request: self._request(request))

    def _console(self, message: ConsoleMessage) -> None:
        """Errors and warnings, but not the one that an error page was answered with its status."""
        where = message.location["url"]
        refused = message.text.startswith("Failed to load resource") and where in self.pages_asked
        if message.type in ("error", "warning") and not refused:
            self.complaints.append(f"console: {message.text} ({where})")

    def _dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"a dialog opened: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        if request.is_navigation_request():
            self.pages_asked.add(request.url)
        if not request.url.startswith((f"{self.address}/", "data:", "blob:")):
            self.complaints.append(f"asked elsewhere: {request.url}")


def shifted(page: Page) -> float:
    """The sum of the layout shifts since the page began, when two frames have been drawn."""
    frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(window.shifts))))"
    return float(page.evaluate(frames))


def transferred_bytes(page: Page) -> int:
    """Return the bytes that the page and all that it loaded have transferred, with headers."""
    script = """() => ["navigation", "resource"].flatMap((type) => performance.getEntriesByType(type))
      .reduce((sum, entry) => sum + entry.transferSize, 0)"""
    return int(page.evaluate(script))
