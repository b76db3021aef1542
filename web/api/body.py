"""The body of a request: an object of JSON, small, plain, and read as strictly as JSON allows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from flask import abort, request

from organs.registry.present.values import Values
from organs.web.api.refusals import Refused

DEPTH_MAX = 8
"""Lists and objects inside each other; what is asked here has five at most."""
BRACKETS_MAX = 250_000
"""Lists and objects in all: of the empty ones, a body of some megabytes would fill hundreds of them in memory."""

_BRACKETS = re.compile(r"[\[\]{}]")


def json_body(members: Sequence[str] | None = None) -> Values:
    """Return the body, an object with some of `members` and no others; with None the caller checks its members.

    Raises Refused (400); answers 415 for what is no JSON by its type or is packed, 413 for what is too large.
    """
    check_json()
    value = _parsed(request.get_data(cache=False))
    if not isinstance(value, dict):
        raise Refused(None, "The body is to be a JSON object.")
    strange = [name for name in value if members is not None and name not in members]
    if strange:
        takes = ", ".join(members or ())
        errors = [(name[:80], f"There is no member {name[:80]!r} here. The body has {takes}.") for name in strange]
        raise Refused(*errors[0], more=errors[1:])
    return value


def check_json() -> None:
    """Answer 415 to a body that is no JSON by its type, or is packed. No form of a page can send such a type."""
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        abort(415, "A packed body is not accepted here: send it plain.")
    if request.mimetype != "application/json":
        abort(415, "The body is to be JSON: send it with Content-Type: application/json.")


def _parsed(body: bytes) -> Any:
    try:
        text = body.decode("utf-8")
        brackets = text.count("[") + text.count("{")
        if brackets > BRACKETS_MAX:
            raise Refused(None, f"The body has more than {BRACKETS_MAX:,} lists and objects.")
        if brackets > DEPTH_MAX and _depth(text) > DEPTH_MAX:
            raise Refused(None, f"The body is nested deeper than {DEPTH_MAX} levels.")
        return json.loads(text, object_pairs_hook=_members, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise Refused(None, "The body is no UTF-8.") from error
    except json.JSONDecodeError as error:
        raise Refused(None, f"The body is no JSON: {error.msg} at character {error.pos}.") from error
    except ValueError as error:  # a number of more digits than Python reads
        raise Refused(None, "The body has a number that is too long.") from error


def _depth(text: str) -> int:
    """At least how deep the brackets go: those inside of texts count too, which no sensible body has."""
    depth = deepest = 0
    for sign in _BRACKETS.findall(text):
        if sign in "[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


def _members(pairs: list[tuple[str, Any]]) -> Values:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Refused(None, "The body has a member twice; which one is meant cannot be told.")
    return found


def _no_constant(name: str) -> NoReturn:
    raise Refused(None, f"The body has {name}, which is no JSON.")
