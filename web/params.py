"""Parsing and checks of query parameters: query, limit, place, choices and switches."""

from __future__ import annotations

from collections.abc import Sequence

from flask import request

from organs.registry.catalog.cursor import PAGE_MAX
from organs.registry.errors import BadQuery, NotFound
from organs.registry.search.language import Query, Vocabulary, parse_query
from organs.web.responses import wants_csv

LIMIT_DEFAULT = 50
ID_MAX = 2**63 - 1
PLACE_MAX = 1_000_000


def requested_query(vocabulary: Vocabulary, default_sort: str | None = None) -> Query:
    """Return the query in `q`. Raises BadQuery."""
    return parse_query(request.args.get("q", ""), vocabulary, default_sort)


def requested_limit(default: int = LIMIT_DEFAULT, most: int = PAGE_MAX) -> int:
    """Return the number of requested results: `limit`, otherwise `most` for CSV and `default` for other answers.

    Raises BadQuery.
    """
    text = request.args.get("limit", str(most if wants_csv(request.path) else default))
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= most):
        raise BadQuery("limit", f"a whole number from 1 to {most}")
    return int(text)


def requested_after() -> str | None:
    """Return the parameter `after`, which is the `next` of the previous page, or None."""
    return request.args.get("after") or None


def requested_gains() -> tuple[str | None, str | None]:
    """Return the base and the kinds of text that a leaderboard is about: `base` and `on`; None for all."""
    base, on = (request.args.get(name, "").strip() or None for name in ("base", "on"))
    return base, on


def requested_place() -> int:
    """Return the number of items before the requested page, for a list whose `next` is a number. Raises BadQuery."""
    text = request.args.get("after", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 7 and int(text) <= PLACE_MAX):
        raise BadQuery("after", "a whole number, the `next` of the previous page")
    return int(text)


def requested_choice(name: str, choices: Sequence[str]) -> str:
    """Return the parameter `name`, one of `choices`; the first choice if it is missing. Raises BadQuery."""
    value = request.args.get(name) or choices[0]
    if value not in choices:
        raise BadQuery(name, f"one of {', '.join(choices)}")
    return value


def requested_switch(name: str) -> bool:
    """Return whether the parameter `name` is 1; a missing parameter counts as 0. Raises BadQuery."""
    value = request.args.get(name, "0")
    if value not in ("0", "1"):
        raise BadQuery(name, "0 or 1")
    return value == "1"


def parsed_number(text: str, thing: str, refusal: type[NotFound] = NotFound) -> int:
    """Return the number in an address of a `thing`, such as a job. Raises `refusal` for an invalid number."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 1 <= int(text) <= ID_MAX):
        raise refusal(f"{text[:40]!r} is not the number of a {thing}")
    return int(text)
