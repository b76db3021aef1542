"""The content of a page as plain text with its structure: what a reader sees, without the looks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import groupby

HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
BEGINNINGS = {**HEADINGS, "li": "- ", "td": "| ", "th": "| "}
ENDINGS = {"button": ")", "dt": ": ", "td": " ", "th": " ", "summary": " "}
BLOCKS = {"p", "li", "dt", "tr", "caption", "summary", "legend", "figcaption", "form", "pre", "svg", *HEADINGS}
"""Elements that begin and end a line."""
LAST = {*BLOCKS, "dd", "title", "text"} - {"dt"}
"""Elements that end a line."""
UNREAD = {"script", "style", "defs"}
TRACKED = {*UNREAD, "a", "pre", "svg", "tr"}
SHOWN = {
    "form": ("method", "action"),
    "img": ("src", "alt"),
    "input": ("type", "name", "value", "placeholder", "checked", "aria-invalid"),
    "option": ("value", "selected"),
    "progress": ("value", "max", "aria-label"),
    "select": ("name",),
    "svg": ("aria-label",),
    "textarea": ("name",),
}
"""The attributes that are shown, by element. The links and buttons also have their `aria-label` and `aria-current`."""
DIGEST = re.compile(r"\b(?=\d*[a-f])[0-9a-f]{10,64}\b")
LONG = 12
"""Rows of a table, or items of a list: of more than so many in sequence, only the first and the last ones are kept."""


class _Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self.line = ""
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if attributes.get("name") == "form_token":
            return
        if tag in BLOCKS and "tr" not in self.open:
            self.end_line()
        if tag in TRACKED:
            self.open.append(tag)
        label = f"{attributes['aria-label']}: " if "aria-label" in attributes else ""
        if tag == "a":
            self.links.append(attributes.get("href", ""))
            self.line += "[" + "*" * ("aria-current" in attributes) + label
        elif tag == "button":
            self.line += " (" + label
        elif tag == "span":
            self.line += " / " if attributes.get("class", "").startswith("sub") else " "
        elif tag in SHOWN:
            shown = " ".join(f'{name}="{attributes[name]}"' for name in SHOWN[tag] if name in attributes)
            self.line += f" <{tag} {shown}> "
        self.line += BEGINNINGS.get(tag, "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self.end_line()
        if tag in self.open:
            while self.open.pop() != tag:
                pass
        if tag == "a":
            self.line = f"{self.line.rstrip()}]({self.links.pop()})"
        self.line += ENDINGS.get(tag, "")
        if tag in LAST and not {"tr", "a"} & {*self.open}:
            self.end_line()
        elif tag in ("title", "text"):
            self.line += "; "
        elif tag == "a" and "svg" in self.open:
            self.end_line()

    def handle_data(self, data: str) -> None:
        if UNREAD & {*self.open}:
            return
        first, *others = data.split("\n") if "pre" in self.open else [data]
        self.line += first
        for line in others:
            self.end_line()
            self.line = line

    def end_line(self) -> None:
        line = self.line.rstrip() if "pre" in self.open else " ".join(self.line.replace("\u200b", "").split())
        if line:
            self.lines.append(line)
        self.line = ""


def outline(html: str) -> str:
    """Return the content of the page `html`, line by line. Digests are numbered in the order of their appearance."""
    reader = _Outline()
    reader.feed(html)
    reader.close()
    reader.end_line()
    text = "".join(f"{line}\n" for line in _abridged(reader.lines))
    numbers: dict[str, int] = {}
    return DIGEST.sub(lambda found: f"digest-{numbers.setdefault(found[0][:10], len(numbers) + 1)}", text)


def _abridged(lines: list[str]) -> Iterator[str]:
    for mark, group in groupby(lines, lambda line: line[:2]):
        found = list(group)
        if mark in ("| ", "- ") and len(found) > LONG:
            found[LONG // 2 : -2] = [f"{mark}… {len(found) - LONG // 2 - 2} more"]
        yield from found
