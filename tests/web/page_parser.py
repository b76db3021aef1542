"""A parser of the pages of the catalog, for tests that look at all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from flask.testing import FlaskClient


@dataclass(slots=True)
class Element:
    """A start tag."""

    name: str
    attributes: dict[str, str | None]


@dataclass(slots=True)
class ParsedPage:
    """An HTML page: its elements, and what stands between them."""

    elements: list[Element] = field(default_factory=list)
    text: str = ""

    def named(self, name: str) -> list[Element]:
        """The elements of that name."""
        return [element for element in self.elements if element.name == name]

    @property
    def words(self) -> str:
        """The text on one line, without the places where a name may wrap."""
        return " ".join(self.text.replace("\u200b", "").split())

    def links(self) -> set[str]:
        """Every address that the page leads to or loads."""
        names = ("href", "src", "action")
        return {value for one in self.elements for name in names if (value := one.attributes.get(name)) is not None}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parsed = ParsedPage()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.parsed.elements.append(Element(tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.parsed.text += data


def parse_page(html: str) -> ParsedPage:
    """`html` as a browser would cut it into elements and text."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.parsed


def page_at(client: FlaskClient, address: str, status: int = 200, **query: str) -> ParsedPage:
    """The page at `address`, to which it may redirect; fails if the answer has another status."""
    answer = client.get(address, query_string=query or None, follow_redirects=True)
    assert answer.status_code == status, (address, answer.status, answer.text)
    return parse_page(answer.text)


def found_at(client: FlaskClient, address: str) -> Any:
    """The JSON at `address`, to which it may redirect."""
    answer = client.get(address, follow_redirects=True)
    assert answer.status_code == 200, (address, answer.status, answer.text)
    return answer.get_json()
