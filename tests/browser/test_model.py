"""The page of a model in a browser: its drawing is pointed at, walked by keys, coloured anew, scrolled and printed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.browser.addresses import WITHOUT_SCRIPT, Opener, follow, phone
from tests.browser.sites import BASE, BLOCKS, ODD, TUNED, WIDE, Site

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

NARROW_DESK = {"viewport": {"width": 520, "height": 600}}
SCRIPTS = pytest.mark.parametrize("options", [{}, WITHOUT_SCRIPT], ids=["script", "no script"])
ORGANS = 38
"""Of each model of the zoo; the drawing shows all of them."""
FOCUSED = "document.activeElement.querySelector(':scope > title')?.textContent.split(':')[0] ?? ''"
"""The name of the focused organ, or nothing if the focus is elsewhere."""
REACHED_BY_ARROWS = """(first) => {
  const reached = new Set([first]);
  for (const link of reached)
    for (const key of ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"]) {
      link.focus();
      link.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
      reached.add(document.activeElement);
    }
  return reached.size;
}"""
"""The number of organs that arrow keys reach from the first one."""
IS_VISIBLE = """(link) => {
  const box = link.getBoundingClientRect();
  const found = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  return found !== null && link.contains(found);
}"""
SHOWN_TEXT = """(text) => {
  const style = getComputedStyle(text);
  const scale = text.getScreenCTM().a ** 2 + text.getScreenCTM().b ** 2;
  return { pixels: parseFloat(style.fontSize) * Math.sqrt(scale), fill: style.fill, display: style.display };
}"""


def drawing(page: Page) -> Locator:
    """The organs of the drawing, as links."""
    return page.locator(".network svg").get_by_role("link")


def organ(page: Page, name: str) -> Locator:
    """The link of one organ of the drawing, found by its accessible name."""
    return page.locator(".network svg").get_by_role("link", name=re.compile(rf"(^|: ){re.escape(name)}([:,]|$)"))


def caption(page: Page) -> str:
    return page.locator(".network figcaption").inner_text()


def text_of(found: Locator) -> str:
    """The text of an element of an SVG."""
    return found.text_content() or ""


def label(link: Locator) -> str:
    return text_of(link.locator("title"))


def press(page: Page, keys: str) -> list[str]:
    """Press the keys, and return the organ that has the focus after each."""
    focused = []
    for key in keys.split():
        page.keyboard.press(key)
        focused.append(page.evaluate(FOCUSED))
    return focused


@SCRIPTS
def test_an_organ_of_the_drawing_links_to_its_page_and_back(
    options: dict[str, bool], zoo: Site, open_page: Opener
) -> None:
    page = open_page(zoo, f"/models/{BASE}", **options)
    follow(page, organ(page, "blk.2.ffn_down.weight"))
    assert re.fullmatch(r"/organs/[0-9a-f]{16,64}", urlsplit(page.url).path)
    assert page.locator("h1").inner_text() == "blk.2.ffn_down.weight"
    page.go_back()
    assert urlsplit(page.url).path.startswith("/models/local/")


def test_the_label_of_an_organ_is_shown_when_it_is_pointed_at_or_focused(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{BASE}?by=theta")
    assert "Point at a tensor to read its values" in caption(page)
    organ(page, "blk.1.attn_k.weight").hover()
    assert re.fullmatch(r"blk\.1\.attn_k\.weight: θ \d+\.\d°.*", caption(page))
    organ(page, "blk.3.ffn_up.weight").focus()
    assert caption(page) == label(organ(page, "blk.3.ffn_up.weight"))
    press(page, "ArrowUp")
    assert caption(page).startswith("blk.2.ffn_up.weight: θ ")


def test_jobs_are_followed_in_all_places_that_show_them_without_loading_the_page_again(
    zoo: Site, open_page: Opener
) -> None:
    place = '<p data-job="{0}" data-state="running" data-follow="/jobs/{0}.json"><span data-note></span></p>'
    places = "".join(place.format(job) for job in (1, 2, 1))

    def add_places(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("</h1>", f"</h1>{places}", 1))

    def tell(route: Route) -> None:
        job = int(route.request.url.rpartition("/")[2].removesuffix(".json"))
        route.fulfill(json={"id": job, "state": "running", "progress": 0.5, "note": f"step {job}"})

    page = open_page(zoo, "/search")
    page.route("**/models/**", add_places)
    page.route("**/jobs/*.json", tell)
    page.goto(zoo.at(f"/models/{BASE}"))
    page.evaluate("window.isFirst = true")
    page.locator("[data-note]", has_text="step").nth(2).wait_for()
    assert page.locator("[data-note]").all_inner_texts() == ["step 1", "step 2", "step 1"]
    assert page.evaluate("window.isFirst") is True


def test_a_hovered_or_focused_organ_has_a_stronger_outline(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{BASE}")
    outline = "(link) => parseFloat(getComputedStyle(link.querySelector('path:last-of-type')).strokeWidth)"
    hovered, focused = organ(page, "blk.0.ffn_up.weight"), organ(page, "blk.1.attn_norm.weight")
    assert max(hovered.evaluate(outline), focused.evaluate(outline)) < 1
    page.keyboard.press("Tab")  # so that what is focused counts as focused by the keyboard
    focused.focus()
    hovered.hover()
    assert min(hovered.evaluate(outline), focused.evaluate(outline)) >= 2


def test_the_drawing_is_one_tab_stop_that_keeps_its_place(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{BASE}")
    page.get_by_role("list", name="Colour the tensors by").get_by_role("link").last.focus()
    first, after = press(page, "Tab Tab")
    assert first
    assert after == ""
    assert press(page, "Shift+Tab") == [first]
    moved = press(page, "ArrowDown ArrowRight")[-1]
    assert moved not in ("", first)
    assert press(page, "Tab Shift+Tab") == ["", moved]


def test_arrow_keys_move_to_the_neighbours_and_stop_at_the_edges(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{BASE}")
    organ(page, "blk.0.attn_q.weight").focus()
    top = page.evaluate("window.scrollY")
    assert press(page, "ArrowRight ArrowRight ArrowDown ArrowLeft ArrowUp") == [
        "blk.0.attn_norm.weight",
        "blk.0.ffn_norm.weight",
        "blk.1.ffn_norm.weight",
        "blk.1.attn_norm.weight",
        "blk.0.attn_norm.weight",
    ]
    assert page.evaluate("window.scrollY") == top
    organ(page, "blk.3.attn_output.weight").focus()
    assert press(page, "ArrowLeft ArrowUp") == ["blk.3.attn_output.weight", "blk.2.attn_output.weight"]
    organ(page, "token_embd.weight").focus()
    assert press(page, "ArrowUp") == ["token_embd.weight"]
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.locator("h1").inner_text() == "token_embd.weight"


@pytest.mark.parametrize("model", [BASE, TUNED])
def test_arrow_keys_reach_every_organ_of_the_drawing(model: str, zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{model}")
    assert drawing(page).count() == ORGANS
    assert drawing(page).first.evaluate(REACHED_BY_ARROWS) == ORGANS


def test_arrow_keys_reach_every_organ_of_a_drawing_of_unknown_organs(odd: Site, open_page: Opener) -> None:
    page = open_page(odd, f"/models/{ODD}")
    organs = page.locator(".network a")
    assert organs.count() == drawing(page).count() + 1 > 10
    assert drawing(page).first.evaluate(REACHED_BY_ARROWS) == organs.count()


def test_without_the_script_tab_reaches_every_organ(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{BASE}", **WITHOUT_SCRIPT)
    page.get_by_role("list", name="Colour the tensors by").get_by_role("link").last.focus()
    *focused, after = press(page, "Tab " * (ORGANS + 1))
    assert len(set(focused)) == ORGANS
    assert "" not in focused
    assert after == ""


@SCRIPTS
def test_the_switch_colours_the_organs_by_another_reading(
    options: dict[str, bool], zoo: Site, open_page: Opener
) -> None:
    page = open_page(zoo, f"/models/{TUNED}", **options)
    switch = page.get_by_role("list", name="Colour the tensors by")
    patterns = {"spectral signal": r"0\.\d{3}", "size": r"[\d.]+k", "θ": r"\d+\.\d°", "change": r"0\.\d+"}
    colours = set()
    for name, pattern in patterns.items():
        follow(page, switch.get_by_role("link", name=name, exact=True))
        assert switch.locator("a[aria-current]").inner_text() == name
        shape = organ(page, "blk.1.ffn_down.weight")
        number = text_of(shape.locator("text"))
        assert re.fullmatch(pattern, number)
        assert label(shape).startswith(f"blk.1.ffn_down.weight: {name} {number}")
        colours.add(shape.locator("path").last.evaluate("(path) => getComputedStyle(path).fill"))
    assert len(colours) == len(patterns)
    assert page.locator("section[aria-labelledby=anatomy]").get_by_role("link", name=BASE).is_visible()


def test_the_drawing_of_a_chimera_shows_the_donor_of_each_organ(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/chimeras/{lock}")
    donors = page.get_by_role("list", name="Donors").get_by_role("listitem")
    lines = [line.strip().partition(":")[0] for line in donors.all_inner_texts()]
    assert lines == [f"{BASE}@1, the base", f"A {TUNED}@1", f"B {TUNED}@1"]
    grafted, base = organ(page, "blk.0.ffn_down.weight"), organ(page, "blk.0.attn_q.weight")
    assert text_of(grafted.locator("text")) == "A"
    assert text_of(organ(page, "blk.3.ffn_up.weight").locator("text")) == "B"
    assert base.locator("text").count() == 0
    grafted.hover()
    assert caption(page).startswith(f"A, from {TUNED}@1, grafted: blk.0.ffn_down.weight")
    key = donors.nth(1).locator(".key").evaluate("(key) => getComputedStyle(key).backgroundColor")
    assert grafted.locator("path").last.evaluate("(path) => getComputedStyle(path).fill") == key


@pytest.mark.parametrize("options", [NARROW_DESK, phone()], ids=["desk", "phone"])
def test_a_wide_drawing_scrolls_in_its_frame_and_not_the_page(
    options: dict[str, Any], odd: Site, open_page: Opener
) -> None:
    page = open_page(odd, f"/models/{WIDE}", **options)
    frame = page.get_by_role("region", name="Drawing of the network")
    width, visible = frame.evaluate("(frame) => [frame.scrollWidth, frame.clientWidth]")
    assert width > visible + 100
    assert frame.get_attribute("tabindex") == "0"
    last = organ(page, "blk.20.post_ffw_norm.weight")
    last.focus()
    assert frame.evaluate("(frame) => frame.scrollLeft") > 50
    assert last.evaluate(IS_VISIBLE)
    assert page.evaluate("document.scrollingElement.scrollLeft") == 0
    assert page.evaluate("document.scrollingElement.scrollWidth") <= options["viewport"]["width"]


def test_an_organ_that_arrow_keys_focus_is_in_view(odd: Site, open_page: Opener) -> None:
    page = open_page(odd, f"/models/{WIDE}", **phone())
    organ(page, f"blk.{BLOCKS - 1}.attn_q.weight").focus()
    for key in ("ArrowUp",) * (BLOCKS - 1) + ("ArrowRight",) * 12:
        page.keyboard.press(key)
        assert page.evaluate(f"({IS_VISIBLE})(document.activeElement)"), page.evaluate(FOCUSED)


def test_on_a_phone_the_names_of_slots_and_blocks_are_legible(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{BASE}", **phone())
    names = page.locator(".network text.slot:not(.minor), .network text.block, .network text.end")
    assert names.count() == 7 + 4 + 1, "the names of vectors are left out"
    for text in names.all():
        shown = text.evaluate(SHOWN_TEXT)
        assert shown["fill"] != "none"
        assert shown["display"] != "none"
        assert shown["pixels"] >= 9


def test_the_page_of_a_model_prints_on_one_sheet(zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, f"/models/{BASE}")
    printed = page.pdf(format="A4", print_background=False)
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) == 1


@SCRIPTS
def test_a_chimera_and_its_base_answer_a_prompt(options: dict[str, Any], zoo: Site, open_page: Opener) -> None:
    page = open_page(zoo, "/chimeras/{lock}", **options)
    page.get_by_label("Prompt").fill("def ")
    assert page.get_by_role("checkbox", name=re.compile("beside")).is_checked()
    page.get_by_role("button", name="Ask").click()
    page.wait_for_url(re.compile("/answers/[0-9a-f]{32}"))
    page.get_by_text("Complete.").wait_for(timeout=60_000)
    answers = page.locator("[data-reply]")
    assert answers.count() == 2
    assert all(answers.nth(number).locator("[data-text]").inner_text().strip() for number in range(2))
    assert page.locator(".said").first.inner_text().strip() == "def"
    page.get_by_role("button", name="Delete now").click()
    page.wait_for_url(re.compile("/models/"))
