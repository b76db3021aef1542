"""Descriptions as HTML: what is harmless is dressed, everything else is the text that it is."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry.card_text import (
    BRACKETS_MAX,
    CELLS_MAX,
    LINES_MAX,
    MARKS_MAX,
    NESTING_MAX,
    WORK_MAX,
)
from organs.registry.entities.published import DESCRIPTION_MAX
from organs.web.render import OPENING_MAX, markdown, opening

TAGS = set(
    re.findall(r"\w+", "p h3 h4 h5 h6 ul ol li blockquote pre code em strong a hr br table thead tbody tr th td")
)
FRAME = {"class": "frame", "tabindex": "0", "role": "region", "aria-label": "Table"}


class Reader(HTMLParser):
    """Fails at any tag and attribute that is not ours; remembers where links lead, and how deep it went."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str | None] = []
        self.open: list[str] = []
        self.deepest = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        assert tag in TAGS or (tag, told) == ("div", FRAME), tag
        if tag == "a":
            assert told.keys() == {"href", "rel"}
            assert {"nofollow", "noopener"} <= set((told["rel"] or "").split())
            self.links.append(told["href"])
        elif tag == "ol":
            assert told.keys() <= {"start"}
        elif tag in ("th", "td"):
            assert told in ({}, {"class": "n"})
        elif tag != "div":
            assert told.keys() <= ({"class"} if tag == "p" else set())
        if tag not in ("hr", "br"):
            self.open.append(tag)
            self.deepest = max(self.deepest, len(self.open))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    handle_startendtag = handle_starttag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(markdown(text))
    reader.close()
    assert not reader.open
    assert all(re.match(r"https?://[^\"<>\s]+\Z", link or "", re.IGNORECASE) for link in reader.links)
    return reader


TABLE = """<div class="frame" tabindex="0" role="region" aria-label="Table">
<table>
<thead>
<tr>
<th>a</th>
<th class="n">b</th>
</tr>
</thead>
<tbody>
<tr>
<td><code>&lt;i&gt;</code></td>
<td class="n">|</td>
</tr>
</tbody>
</table>
</div>
"""


@pytest.mark.parametrize(
    ("text", "html"),
    [
        (
            "# Weaver\n\nSpins *fine* **yarns**.",
            "<h3>Weaver</h3>\n<p>Spins <em>fine</em> <strong>yarns</strong>.</p>\n",
        ),
        ("- a\n- b", "<ul>\n<li>a</li>\n<li>b</li>\n</ul>\n"),
        ("7. a", '<ol start="7">\n<li>a</li>\n</ol>\n'),
        ("```py\n<b>\n```", "<pre><code>&lt;b&gt;\n</code></pre>\n"),
        ("a & b < c", "<p>a &amp; b &lt; c</p>\n"),
        ("|a|b|\n|-|-:|\n|`<i>`|\\||", TABLE),
        ("", ""),
    ],
)
def test_plain_markdown_is_converted_to_html(text: str, html: str) -> None:
    read(text)
    assert markdown(text) == html


@pytest.mark.parametrize("text", ["[a](https://example.org/x?y=1)", "<https://example.org/x?y=1>"])
def test_links_to_other_sites_are_kept(text: str) -> None:
    assert read(text).links == ["https://example.org/x?y=1"]


@pytest.mark.parametrize(
    "text",
    [
        "[a](javascript:alert(1))", "[a](JaVaScRiPt:alert(1))", "[a](&#106;avascript:alert(1))", "[a](java\tscript:x)",
        "[a](data:text/html,<script>)", "[a](vbscript:x)", "[a](file:///etc/passwd)", "[a](/account)", "[a](//evil)",
        "[a](https://user:pass@evil)", "<javascript:alert(1)>", "<mailto:a@b.c>",
        "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!-- x -->", "<?php ?>", "<![CDATA[x]]>",
        "<a href='https://x'>y</a>", "a <b>c</b>", "&lt;script&gt;", "&#60;script&#62;", "&lt;img src=x&gt;",
        "[a]: javascript:alert(1)\n\n[a]", "[x][a]\n\n[a]: https://example.org", "![a](javascript:x)", "\0<script>",
        "```\"><script>alert(1)</script>\nx\n```", "# <script>", "`<script>`", "[<script>](javascript:x)",
        "|<script>|\n|-|\n|[a](javascript:x)|", "|a|\n|:-\" onclick=x:|", '|a|\n|-|\n|" style="x|',
    ],
)  # fmt: skip
def test_harmful_markup_stays_text(text: str) -> None:
    assert read(text).links == []


def test_a_quote_in_an_address_does_not_end_it() -> None:
    assert read('[a](https://x"onmouseover=alert(1))').links == ["https://x%22onmouseover=alert(1)"]


@pytest.mark.parametrize(
    ("text", "shown", "links"),
    [
        ("![a](https://example.org/x.png)", "a", ["https://example.org/x.png"]),
        ("![](https://example.org/x.png)", "image", ["https://example.org/x.png"]),
        ("![*a* <b>](img/x.png)", "*a* &lt;b&gt; (an image that is not here)", []),
        ("[![a](https://example.org/x.png)](https://example.org)", "a", ["https://example.org"]),
        ("[![a](x.png)](LICENSE)", "a", []),
        ("[a](docs/use.md#how) [b](#c)", "a b", []),
    ],
)
def test_images_are_links_or_their_texts_and_links_beside_the_card_are_texts(
    text: str, shown: str, links: list[str]
) -> None:
    assert read(text).links == links
    assert re.sub("<.*?>", "", markdown(text)).strip() == shown


@pytest.mark.parametrize(
    "text",
    ["[" * 99_000, "[a](" * 20_000, "*" * 99_000, "*_" * 40_000, ">" * 99_000, "> - " * 20_000, "<" * 99_000,
     "`" * 99_000, "".join(f"{'`' * length} " for length in range(350)), "&amp;" * 15_000, "\\" * 99_000,
     "<http://a.b>" * 6_000, "|" * 99_000, "|" * 10_000 + "\n" + "|-" * 10_000, "|a|\n|-|\n" + "|\n" * 30_000,
     "- a\n" * 20_000,
     "|a" * 99 + "|\n" + "|-" * 99 + "|\n" + "|\n" * 1_900, ("[" * 199 + "a" * 4_000 + "\n\n") * 16, "#\n" * 30_000],
)  # fmt: skip
def test_slow_and_deeply_nested_markup_is_bounded(text: str) -> None:
    assert read(text).deepest <= NESTING_MAX + 6
    assert len(markdown(text)) < 10 * DESCRIPTION_MAX


def test_text_beyond_the_bounds_is_shown_as_typed() -> None:
    for text in ("a\n" * LINES_MAX + "<b>", "|" * (CELLS_MAX // 2 + 1) + "\n<b>"):
        assert markdown(text) == f'<p class="wrap as-typed">{text[:-3]}&lt;b&gt;</p>'
    for text in ("[" * (BRACKETS_MAX + 1) + "<b>", "_" * (MARKS_MAX + 1) + "<b>"):
        assert markdown(f"{text}\n\n*a*") == f"<p>{text[:-3]}&lt;b&gt;</p>\n<p><em>a</em></p>\n"
    block = "[" * BRACKETS_MAX + "*a*" + "b" * (WORK_MAX // BRACKETS_MAX - BRACKETS_MAX - 3)
    assert markdown(f"{block}\n\n[*a*").endswith("<em>a</em>" + "b" * 3893 + "</p>\n<p>[*a*</p>\n")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([*"[]()<>!*_`#-&;:|\\\"' \n", "|-|-:|\n", "a", "http://x", "javascript:", "<b", "&#"]),
        max_size=60,
    )
)
def test_any_text_gives_only_allowed_tags(parts: list[str]) -> None:
    read("".join(parts))


def test_the_opening_ends_between_blocks_and_nothing_is_left_out() -> None:
    first, rest = opening("# Title\n\nOne **line**.\n\n## More\n\n" + "word " * OPENING_MAX + "\n\nEnd.")
    assert first == "<h3>Title</h3>\n<p>One <strong>line</strong>.</p>\n"
    assert rest.startswith("<h4>More</h4>")
    assert rest.endswith("<p>End.</p>\n")
    assert opening("Short.") == ("<p>Short.</p>\n", "")


@pytest.mark.parametrize(
    "text", ["word " * OPENING_MAX, "# Title\n\n" + "word " * OPENING_MAX, "*" * OPENING_MAX + " <b>" * 99]
)
def test_the_beginning_of_a_long_first_block_is_plain_text(text: str) -> None:
    first, rest = opening(text)
    assert first.startswith('<p class="wrap as-typed">')
    assert len(re.sub("<.*?>", "", first)) <= 2 * OPENING_MAX
    assert rest == markdown(text)
    assert "<b>" not in first + rest
