"""Documents as trees of plain values: YAML, or JSON if the text begins with `{`. Limits are checked before values are
built."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import yaml

from organs.registry.documents import Outline
from organs.registry.errors import BadRecipe

TEXT_MAX_BYTES = 256 * 1024


DEPTH_MAX = 16
"""Levels of nested mappings and lists."""


VALUES_MAX = 20_000
"""Texts, numbers, keys, lists and mappings of one document."""


DIGITS_MAX = 300
"""Digits of an integer; a longer integer counts as infinite."""


REASON_MAX = 200
"""Characters of the parser's message in an error; the message can quote the document."""


NUMBER_PATTERN = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<rest>(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
"""A number as in JSON; with an empty `rest` it is an integer."""


_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


_LOADER: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


_ALIASES = "anchors (&) and aliases (*) are not supported; put a text that begins with & or * in quotation marks"


_TAB = "a tab is not allowed; indent YAML with spaces"


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value. `text` is its text, or None if it is not text. In YAML, `2024` is both a number and text."""

    value: str | int | float | bool | None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A list."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping as it was written: keys can be repeated, and can be values other than text."""

    pairs: tuple[tuple[Node, Node], ...]


Node = Scalar | Listing | Table


def read_document(text: str | bytes, where: str) -> Node:
    """Return the tree of `text`. Raises BadRecipe with one reason, which has no field."""
    plain = _decoded(text, where)
    if plain.lstrip().startswith("{"):
        return _read_json(plain, where)
    return _read_yaml(plain, where)


def _decoded(text: str | bytes, where: str) -> str:
    # The length is checked first, so that a very long text is not copied.
    if isinstance(text, bytes) and text.startswith(b"GGUF"):
        _refuse(where, "this is a GGUF file, not a recipe")
    if len(text) > TEXT_MAX_BYTES:
        _refuse(where, f"the text is longer than {TEXT_MAX_BYTES // 1024} KiB")
    try:
        raw = text.encode("utf-8") if isinstance(text, str) else text
        plain = raw.decode("utf-8")
    except UnicodeError as error:
        raise BadRecipe(where, [("", "the text is not UTF-8")]) from error
    if len(raw) > TEXT_MAX_BYTES:
        _refuse(where, f"the text is longer than {TEXT_MAX_BYTES // 1024} KiB")
    if "\0" in plain:
        _refuse(where, "the text has a NUL character")
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
        sentence = f"a text that begins with {{ is read as JSON; line {error.lineno}, column {error.colno}: {error.msg}"
        raise BadRecipe(where, [("", sentence)]) from error
    except ValueError as error:
        raise BadRecipe(where, [("", str(error))]) from error
    return _json_node(tree)


def _check_json_size(text: str, where: str) -> None:
    """Refuse too many levels or values before any value is built."""
    outline = Outline()
    outline.add(text.encode())
    _check_size(outline.depth, outline.objects + outline.lists + outline.members + outline.commas, where)


def _check_size(depth: int, values: int, where: str) -> None:
    if depth > DEPTH_MAX:
        _refuse(where, f"lists and mappings are nested more than {DEPTH_MAX} levels deep")
    if values > VALUES_MAX:
        _refuse(where, f"the text has more than {VALUES_MAX:,} values")


def _table(pairs: list[tuple[str, object]]) -> Table:
    return Table(tuple((Scalar(key, key), _json_node(value)) for key, value in pairs))


def _json_node(value: object) -> Node:
    """Return the node for a value of the parser or of one of its hooks."""
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
    """Return the number in `written`, which matches the pattern; infinity if it is too large."""
    match = NUMBER_PATTERN.fullmatch(written)
    assert match is not None
    if match["rest"]:
        return float(written)
    return int(written) if len(written) <= DIGITS_MAX else math.copysign(math.inf, -1 if written[0] == "-" else 1)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


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
    """Return the events of the parser, before any value is built."""
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise BadRecipe(where, [("", f"{place}{_problem(error, text)}")]) from error
    # The Python parser raises these for characters beyond Unicode and for versions of many digits.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        reason = error.reason if isinstance(error, yaml.reader.ReaderError) else "a number is out of bounds"
        raise BadRecipe(where, [("", f"the text is not YAML: {reason}")]) from error


def _problem(error: yaml.MarkedYAMLError, text: str) -> str:
    """Return the reason of a parser's error, from the characters at its positions."""
    begin, mark = error.context_mark, error.problem_mark
    if begin is not None and text[begin.index : begin.index + 1] in ("&", "*"):
        return _ALIASES
    lines = text.split("\n")  # with other line ends a tab is not found; then the parser's message is used
    if mark is not None and mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t":
        return _TAB
    return str(error.problem)[:REASON_MAX]


def _check_event(event: yaml.Event, documents: int, where: str) -> None:
    line = event.start_mark.line + 1 if event.start_mark else 0
    if documents > 1:
        _refuse(where, f"line {line}: a second document begins; a recipe is one document")
    if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
        _refuse(where, f"line {line}: {_ALIASES}")
    if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
        _refuse(where, f"line {line}: tags such as {event.tag[:40]!r} are not supported: write only the value")


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
