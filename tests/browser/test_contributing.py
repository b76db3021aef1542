"""Contributing in a browser: logged in by a token, a file sent with a reload in the middle, published, yanked; and
pages of elsewhere that want to do it for somebody."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.generated import Architecture, write_model
from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.register.accounts import add_contributor, create_token
from organs.registry.local import LocalRegistry
from tests.browser.addresses import PHONE_WIDTHS, Opener, phone
from tests.browser.sites import BASE, ZOO, Site
from tests.browser.test_accessibility import assert_accessible
from tests.small_models import ingest_file
from tests.web.live_server import running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

SHAPE = Architecture(2, 512, 1024, 512, 1536, 30_000, 64)
"""41 MB: five chunks and a bit."""
PATIENCE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Shop:
    """A catalog that takes what contributors send, and ada's token."""

    site: Site
    token: str
    folder: Path
    admin: str


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    with LocalRegistry.open(folder / "home") as registry:
        ingest_file(registry, ZOO / "Zoo-A-2M-v1.0-F16.gguf")
        with registry.catalog.writing() as session:
            add_contributor(session, "ada")
            token = create_token(session, contributor_by_name(session, "ada").id, ("read", "upload"), "browser").text
            root = add_contributor(session, "root")
            admin = create_token(session, root.id, ("upload", "admin"), "a-label-that-is-long-enough-to-fold").text
    write_model(folder / "Large.gguf", SHAPE)
    with running_server(folder / "home", folder / "log", options=["--accounts"]) as live:
        yield Shop(Site(live), token, folder, admin)
    assert token not in (folder / "log").read_text()


@pytest.fixture
def unwatched(browser: Browser) -> Iterator[Page]:
    """A page on which things are meant to go wrong."""
    context = browser.new_context()
    page = context.new_page()
    page.on("dialog", lambda dialog: dialog.accept())
    yield page
    context.close()


def uploading(page: Page, shop: Shop) -> Page:
    """The page for uploads, logged in."""
    page.goto(shop.site.at("/login?next=/upload"))
    log_in(page, shop)
    page.wait_for_url("**/upload")
    return page


def log_in(page: Page, shop: Shop, token: str | None = None) -> None:
    page.get_by_label("Token", exact=True).fill(token or shop.token)
    page.get_by_role("main").get_by_role("button", name="Log in").click()


def test_log_in_returns_to_the_page_that_required_it(shop: Shop, open_page: Opener) -> None:
    page = open_page(shop.site, "/upload")
    page.get_by_role("main").get_by_role("link", name="log in").click()
    log_in(page, shop)
    page.wait_for_url("**/upload")
    page.locator(".menu > summary").click()
    assert page.get_by_role("link", name="Account: ada").is_visible()
    assert shop.token not in page.content()
    page.get_by_role("button", name="Log out").click()
    page.goto(shop.site.at("/upload"))
    assert page.get_by_role("main").get_by_role("link", name="log in").is_visible()


def test_an_upload_continues_after_a_reload_and_becomes_a_model(shop: Shop, unwatched: Page) -> None:
    page = uploading(unwatched, shop)
    sent: list[str] = []

    def hold(route: Route) -> None:
        if route.request.method == "PATCH":
            sent.append(route.request.headers["content-range"])
            if len(sent) > 2:
                return  # it never gets there
        route.continue_()

    page.route("**/api/v1/uploads/*", hold)
    page.set_input_files("#files", shop.folder / "Large.gguf")
    wait_until(page, lambda: len(sent) == 3)
    page.reload()
    assert page.get_by_text("Choose the same file again").is_visible()
    page.set_input_files("#files", shop.folder / "Large.gguf")
    wait_until(page, lambda: len(sent) == 4)
    assert sent[3] == sent[2]
    assert page.locator("#sending [data-note]").inner_text() == "sending, 16.8 of 46.5 MB"
    assert page.locator("#sending progress").evaluate("bar => bar.value") == pytest.approx(16.78 / 46.46, abs=0.001)
    page.reload()
    page.unroute("**/api/v1/uploads/*")
    again: list[str] = []
    page.on("request", lambda one: again.append(one.headers["content-range"]) if one.method == "PATCH" else None)
    page.set_input_files("#files", shop.folder / "Large.gguf")
    page.wait_for_url("**/submissions/*", timeout=PATIENCE_MS)
    assert again[0] == sent[2]
    assert not set(again) & set(sent[:2])
    publish(page)
    assert page.get_by_role("link", name="ada/Large@1").is_visible()


def test_on_a_slow_connection_the_bar_moves_before_a_chunk_is_complete(shop: Shop, unwatched: Page) -> None:
    page = uploading(unwatched, shop)
    slow = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 2_000_000}
    page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", slow)
    bodies: list[str] = []
    page.on("requestfinished", lambda one: bodies.append(one.method))
    page.set_input_files("#files", shop.folder / "Large.gguf")
    note, size = page.locator("#sending [data-note]"), (shop.folder / "Large.gguf").stat().st_size / 1e6
    assert note.inner_text().startswith("sending, ")
    wait_until(page, lambda: not note.inner_text().startswith("sending, 0 "))
    gone = re.fullmatch(rf"sending, (\d+\.\d) of {size:.1f} MB", note.inner_text())
    assert gone is not None
    assert 0 < float(gone[1]) < 8 * 2**20 / 1e6
    assert 0 < page.locator("#sending progress").evaluate("bar => bar.value") < 8 * 2**20 / size / 1e6
    assert "PATCH" not in bodies


def wait_until(page: Page, holds: Callable[[], bool]) -> None:
    """Let the page go on until `holds`: its policy lets no test put questions into it."""
    for _ in range(PATIENCE_MS // 50):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it never held")


def publish(page: Page) -> None:
    page.get_by_role("button", name="Publish").wait_for(timeout=PATIENCE_MS)
    page.get_by_label("Description, in Markdown").fill(
        "**Bold**, [out](https://example.org), [in](javascript:alert(1))"
    )
    page.get_by_label(re.compile("License")).fill("Apache-2.0")
    assert_accessible(page)
    page.get_by_role("button", name="Publish").click()
    page.get_by_text("is in the catalog").wait_for(timeout=PATIENCE_MS)


def test_another_file_of_the_same_name_and_size_starts_a_new_upload(shop: Shop, unwatched: Page) -> None:
    page = uploading(unwatched, shop)
    first, second = bytearray((shop.folder / "Large.gguf").read_bytes()), shop.folder / "Twin.gguf"
    second.write_bytes(first)
    page.route("**/api/v1/uploads/*", lambda route: route.continue_() if "bytes 0-" in _range(route) else None)
    page.set_input_files("#files", second)
    bar = page.locator("#sending progress")
    wait_until(page, lambda: float(bar.evaluate("bar => bar.value")) > 0.1)
    page.unroute("**/api/v1/uploads/*")
    page.reload()
    first[1 << 20] ^= 1
    second.write_bytes(first)
    ranges: list[str] = []
    page.on("request", lambda one: ranges.append(one.headers["content-range"]) if one.method == "PATCH" else None)
    page.set_input_files("#files", second)
    page.wait_for_url("**/submissions/*", timeout=PATIENCE_MS)
    assert ranges[0].startswith("bytes 0-")
    page.get_by_role("button", name="Withdraw").click()
    page.get_by_role("heading", name="Withdrawn").wait_for()


def _range(route: Route) -> str:
    return str(route.request.headers.get("content-range", "bytes 0-"))


def test_a_file_that_is_not_a_model_is_refused_with_findings(shop: Shop, open_page: Opener) -> None:
    page = open_page(shop.site, "/login?next=/upload")
    log_in(page, shop)
    page.wait_for_url("**/upload")
    page.set_input_files("#files", {"name": "bad.gguf", "mimeType": "", "buffer": b"GGUF" + b"\xff" * 4000})
    page.wait_for_url("**/submissions/*", timeout=PATIENCE_MS)
    page.get_by_role("heading", name="Refused").wait_for(timeout=PATIENCE_MS)
    assert page.locator(".findings .refuse").count() >= 1
    assert_accessible(page)


def test_a_model_is_yanked_with_a_reason_and_restored(shop: Shop, open_page: Opener) -> None:
    page = open_page(shop.site, "/login?next=/upload")
    log_in(page, shop)
    page.wait_for_url("**/upload")
    page.set_input_files("#files", ZOO / "Zoo-A-2M-Code-v1.0-F16.gguf")
    page.wait_for_url("**/submissions/*", timeout=PATIENCE_MS)
    publish(page)
    page.get_by_role("main").get_by_role("link", name=re.compile("ada.Zoo")).first.click()
    assert page.get_by_role("link", name="out", exact=True).get_attribute("href") == "https://example.org"
    assert page.locator("a[href^=javascript]").count() == 0
    page.get_by_text("Yank this version").click()
    page.get_by_label(re.compile("[Rr]eason|[Ww]hy")).fill("trained on the wrong text")
    page.get_by_role("button", name=re.compile("Yank")).click()
    page.get_by_text("trained on the wrong text").first.wait_for()
    assert_accessible(page)
    page.goto(shop.site.at("/models?q=Code"))
    assert page.get_by_role("link", name="ada/Zoo-A-2M-Code-v1.0-F16@1").count() == 0
    page.go_back()
    page.get_by_role("button", name=re.compile("Restore")).click()
    page.goto(shop.site.at("/models?q=Code"))
    assert page.get_by_role("link", name=re.compile("Zoo-A-2M-Code")).count() == 1


@pytest.mark.parametrize("elsewhere", ["http://elsewhere.example/", "http://127.0.0.1:1024/"])
def test_a_page_of_another_site_cannot_act_for_the_logged_in_account(
    elsewhere: str, shop: Shop, unwatched: Page
) -> None:
    """Also one of the same site, another port of this machine, to which the browser does send the cookie."""
    page = uploading(unwatched, shop)
    attack = f'<form id="f" method="post" action="{shop.site.at("/logout")}"><input name="form_token" value="x"></form>'
    page.route(f"{elsewhere}**", lambda route: route.fulfill(content_type="text/html", body=attack))
    page.goto(elsewhere)
    with page.expect_navigation() as answered:
        page.evaluate("document.getElementById('f').submit()")
    assert answered.value.status == 403
    page.goto(shop.site.at("/account"))
    assert page.get_by_role("heading", name="ada").is_visible()


@pytest.mark.parametrize("width", PHONE_WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_of_contributors_fit_a_phone_and_are_accessible(
    width: int, scheme: str, shop: Shop, open_page: Opener
) -> None:
    page = open_page(shop.site, "/login?next=/upload", **phone(width), color_scheme=scheme)
    assert_accessible(page)
    log_in(page, shop)
    page.wait_for_url("**/upload")
    for path in ("/upload", "/account", "/contributors", "/contributors/ada", f"/models/{BASE}"):
        page.goto(shop.site.at(path))
        assert_accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth + 1"), path


def test_on_a_phone_lists_of_administrators_are_complete_and_the_buttons_of_owners_are_above_the_lineage(
    shop: Shop, open_page: Opener
) -> None:
    page = open_page(shop.site, "/login?next=/account", **phone(390))
    log_in(page, shop, shop.admin)
    page.wait_for_url("**/account")
    for path in ("/account", "/admin", "/admin/health", "/admin/events"):
        page.goto(shop.site.at(path))
        for frame in page.locator(".frame").all():
            assert frame.evaluate("one => one.scrollWidth <= one.clientWidth + 1"), path
    page.goto(shop.site.at(f"/models/{BASE}"))
    assert_accessible(page)
    page.get_by_role("link", name="Yank", exact=True).click()
    assert page.locator("#manage").is_visible()
    lines = page.locator(".own-links").bounding_box()
    anatomy = page.locator("#anatomy").bounding_box()
    assert lines is not None
    assert anatomy is not None
    assert lines["y"] < anatomy["y"]
