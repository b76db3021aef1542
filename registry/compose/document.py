"""Reading a document as a tree of plain values: YAML, or JSON where it begins with `{`; bounded before it is built."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import yaml

from organs.registry.errors import BadRecipe

TEXT_MAX_BYTES = 256 * 1024


DEPTH_MAX = 16
"""Of mappings and lists inside each other."""


VALUES_MAX = 20_000
"""Texts, numbers, keys, lists and mappings of one document together."""


DIGITS_MAX = 300
"""What is longer is beyond every number here; Python alone would take thousands of digits to say so."""


REASON_MAX = 200
"""Characters of a parser's own words, which may quote what it read."""


NUMBER_PATTERN = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<rest>(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
"""A number as JSON writes it; with an empty `rest` it is a whole one."""


_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


_JSON_SIGN = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{},:]', re.DOTALL)


_LOADER: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


_ALIASES = "anchors (&) and aliases (*) are not taken; a text that begins with & or * stands in quotation marks"


_TAB = "a tab stands there; YAML is indented with spaces"


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value. `text` is what it reads as where text is due: `2024` is both in YAML; None where it is no text."""

    value: str | int | float | bool | None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A list."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping as it is written: keys may stand twice, and need not be text."""

    pairs: tuple[tuple[Node, Node], ...]


Node = Scalar | Listing | Table


def read_document(text: str | bytes, where: str) -> Node:
    """The tree that `text` holds. Raises BadRecipe, with one reason that names no field."""
    plain = _decoded(text, where)
    if plain.lstrip().startswith("{"):
        return _read_json(plain, where)
    return _read_yaml(plain, where)


def _decoded(text: str | bytes, where: str) -> str:
    # Characters are counted first: of a text of 10 MB no copy is made.
    if len(text) > TEXT_MAX_BYTES:
        _refuse(where, f"the text is longer than {TEXT_MAX_BYTES // 1024} KiB")
    try:
        raw = text.encode("utf-8") if isinstance(text, str) else text
        plain = raw.decode("utf-8")
    except UnicodeError as error:
        raise BadRecipe(where, [("", "the text is no UTF-8")]) from error
    if len(raw) > TEXT_MAX_BYTES:
        _refuse(where, f"the text is longer than {TEXT_MAX_BYTES // 1024} KiB")
    if "\0" in plain:
        _refuse(where, "a NUL character is in the text")
    plain = plain.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    if not plain.strip():
        _refuse(where, "the text is empty")
    return plain


def _refuse(where: str, sentence: str) -> NoReturn:
    raise BadRecipe(where, [("", sentence)])


def _read_json(text: str, where: str) -> Node:
    _check_json_size(text, where)
    try:
        tree = json.loads(
            text, object_pairs_hook=_table, parse_int=_number, parse_float=_number, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        sentence = f"what begins with {{ is read as JSON; line {error.lineno}, column {error.colno}: {error.msg}"
        raise BadRecipe(where, [("", sentence)]) from error
    except ValueError as error:
        raise BadRecipe(where, [("", str(error))]) from error
    return _json_node(tree)


def _check_json_size(text: str, where: str) -> None:
    """Refuses what is deep or full before any of it is built; strings are stepped over."""
    depth = values = 0
    for match in _JSON_SIGN.finditer(text):
        sign = match[0]
        values += sign in "[{,:"
        depth += (sign in "[{") - (sign in "]}")
        _check_size(depth, values, where)


def _check_size(depth: int, values: int, where: str) -> None:
    if depth > DEPTH_MAX:
        _refuse(where, f"lists and mappings stand inside each other more than {DEPTH_MAX} deep")
    if values > VALUES_MAX:
        _refuse(where, f"the text holds more than {VALUES_MAX:,} values")


def _table(pairs: list[tuple[str, object]]) -> Table:
    return Table(tuple((Scalar(key, key), _json_node(value)) for key, value in pairs))


def _json_node(value: object) -> Node:
    """The node of what the parser or one of its hooks gave."""
    if isinstance(value, list):
        return Listing(tuple(_json_node(item) for item in value))
    if isinstance(value, str):
        return Scalar(value, value)
    if isinstance(value, Table | Scalar):
        return value
    assert value is None or isinstance(value, bool)
    return Scalar(value)


def _number(written: str) -> Scalar:
    return Scalar(_number_value(written))


def _number_value(written: str) -> int | float:
    """The number that `written`, which fits the pattern, stands for; infinity where it is out of all bounds."""
    match = NUMBER_PATTERN.fullmatch(written)
    assert match is not None
    if match["rest"]:
        return float(written)
    return int(written) if len(written) <= DIGITS_MAX else math.copysign(math.inf, -1 if written[0] == "-" else 1)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _read_yaml(text: str, where: str) -> Node:
    open_nodes: list[list[Node]] = [[]]
    values = documents = 0
    for event in _events(text, where):
        values += isinstance(event, yaml.NodeEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        _check_event(event, documents, where)
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append([])
        elif isinstance(event, yaml.ScalarEvent):
            open_nodes[-1].append(_yaml_scalar(event.value, is_plain=event.implicit[0]))
        elif isinstance(event, yaml.CollectionEndEvent):
            nodes = tuple(open_nodes.pop())
            is_table = isinstance(event, yaml.MappingEndEvent)
            open_nodes[-1].append(
                Table(tuple(zip(nodes[::2], nodes[1::2], strict=True))) if is_table else Listing(nodes)
            )
        _check_size(len(open_nodes) - 1, values, where)
    if not open_nodes[0]:
        _refuse(where, "the text is empty")
    return open_nodes[0][0]


def _events(text: str, where: str) -> Iterator[yaml.Event]:
    """What the parser sees, piece by piece, before anything is composed of it."""
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise BadRecipe(where, [("", f"{place}{_problem(error, text)}")]) from error
    # Of the parser written in Python, a character's number beyond Unicode and a version of many digits come out so.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        reason = error.reason if isinstance(error, yaml.reader.ReaderError) else "a number in it is out of bounds"
        raise BadRecipe(where, [("", f"the text is no YAML: {reason}")]) from error


def _problem(error: yaml.MarkedYAMLError, text: str) -> str:
    """Return what is wrong, by the characters at the places that the parser names."""
    begin, mark = error.context_mark, error.problem_mark
    if begin is not None and text[begin.index : begin.index + 1] in ("&", "*"):
        return _ALIASES
    lines = text.split("\n")  # a line end of another kind hides a tab, and the parser's own words stand
    if mark is not None and mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t":
        return _TAB
    return str(error.problem)[:REASON_MAX]


def _check_event(event: yaml.Event, documents: int, where: str) -> None:
    line = event.start_mark.line + 1 if event.start_mark else 0
    if documents > 1:
        _refuse(where, f"line {line}: a second document begins; a recipe is one")
    if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
        _refuse(where, f"line {line}: {_ALIASES}")
    if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
        _refuse(where, f"line {line}: tags such as {event.tag[:40]!r} are not taken: write the value alone")


def _yaml_scalar(written: str, *, is_plain: bool) -> Scalar:
    if not is_plain:
        return Scalar(written, written)
    if written in _NULLS:
        return Scalar(None)
    if written in _BOOLEANS:
        return Scalar(_BOOLEANS[written], written)
    if NUMBER_PATTERN.fullmatch(written):
        return Scalar(_number_value(written), written)
    return Scalar(written, written)
