"""Read documents of strangers, JSON or YAML: within limits, into plain values, then into structs.

    LIMITS = Limits(size_bytes=256 * 1024, depth=16)
    values = parse_json(data, LIMITS)       # or parse_yaml
    order = convert(values, Order)          # a msgspec struct

The limits are checked before any value is built. `convert` finds all faults together, each with its path, such as
`grafts[0].blocks`. Both raise BadDocument; the caller turns its `reasons` into an error of its own. The fields of a
struct have their bounds in `Meta`, as everywhere, and further checks in `Parse`; a check of several fields is in the
method `faults` of the struct, which is called when each of its fields is valid:

    class Order(Struct, forbid_unknown_fields=True):
        name: Annotated[str, Parse(model_name, due="a model's name")]
        count: Annotated[int, Meta(ge=1, le=9)] = 1
        parts: Annotated[tuple[str, ...], Meta(max_length=100), ONE_OR_MORE] = ()

        def faults(self) -> Iterator[Reason]:
            if self.count < len(self.parts):
                yield "parts", "there are more parts than pieces"

A struct whose keys are known only when the program runs has them in one field, a dict, and in the class variable
`gathers` the name of the field and the keys: objects may have them as members of their own, or in that field.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NoReturn, TypeVar, Union, cast, get_args, get_origin

import msgspec
import yaml
from msgspec import UNSET, Meta, Struct, inspect

from organs.registry.entities.base import prepared
from organs.registry.names import nearest

REASONS_MAX = 100
"""Faults of one document; after these, reading stops."""
SHOWN_MAX = 60
"""Characters of a quotation in a sentence."""
KEYS_MAX = 200_000
"""Different keys of one JSON text: each takes memory of its own, repeated ones do not."""
MEMORY_MAX_BYTES = 64 * 1024 * 1024
MEMORY_MAX_RATIO = 4
"""The memory that the values of a JSON text may take: a fixed number of bytes, and more for each byte of the text. The
three bytes of `{},` take 72; a line for a tensor in an organ directory has 560 and takes 1,700."""
DIGITS_MAX = 300
"""Digits of an integer in YAML; a longer integer counts as infinite."""
CHUNK_BYTES = 256 * 1024
"""Bytes of JSON that are scanned at a time: the parts of a chunk take many times its size in memory."""

NUMBER_PATTERN = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<rest>(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
"""A number as in JSON; with an empty `rest` it is an integer."""

Reason = tuple[str, str]
"""A path, such as `grafts[0].blocks` (empty for the whole document), and a sentence."""
T = TypeVar("T")


class BadDocument(ValueError):
    """A document is refused; `reasons` has all its faults."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        super().__init__("; ".join(f"{path}: {sentence}" if path else sentence for path, sentence in reasons))
        self.reasons = tuple(reasons)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one kind of document, besides those of memory, which are the same for all."""

    size_bytes: int
    depth: int
    """Levels of nested lists and objects."""
    values: int | None = None
    """Texts, numbers, keys, lists and objects."""

    def refusal(self, depth: int, values: int) -> str | None:
        """Return why a document with these counts is refused, or None."""
        if depth > self.depth:
            return f"its lists and objects are nested deeper than {self.depth} levels"
        if self.values is not None and values > self.values:
            return f"it has more than {self.values:,} values"
        return None


def parse_json(data: bytes, limits: Limits) -> Any:
    """Return the value of the JSON text `data`. Raises BadDocument.

    A byte order mark is allowed. NaN is refused, and repeated keys, because parsers differ on which one counts.
    """
    if len(data) > limits.size_bytes:
        _refuse(f"it has {len(data):,} bytes; at most {limits.size_bytes:,} are read")
    outline = Outline()
    outline.add(data)
    if refusal := outline.refusal(limits):
        _refuse(refusal)
    if outline.members > KEYS_MAX:
        _check_keys(data)
    repeated: list[tuple[object, str]] = []
    try:
        value = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=lambda pairs: _object_of(pairs, repeated),
            parse_constant=lambda name: _refuse(f"{name} is not JSON"),
        )
    except UnicodeDecodeError:
        _refuse("it is not UTF-8")
    except json.JSONDecodeError as error:
        _refuse(f"it is not JSON: line {error.lineno}, column {error.colno}: {error.msg}")
    except BadDocument:
        raise
    except ValueError:  # the only other error of the parser
        _refuse("it has an integer of more than 4,300 digits")
    _refuse_repeated(value, repeated)
    return value


def parse_yaml(text: str | bytes, limits: Limits) -> Any:
    """Return the value of `text`: YAML, or JSON if it begins with `{`. Aliases, anchors and tags are refused.

    A plain scalar that can be text, and a number or a boolean, is a PlainScalar. Raises BadDocument.
    """
    documents = parse_yaml_documents(text, limits)
    if len(documents) > 1:
        _refuse("a second document begins; only one is read")
    return documents[0]


def parse_yaml_documents(text: str | bytes, limits: Limits) -> list[Any]:
    """Return the values of all documents of a YAML file, at least one, as `parse_yaml` does. Raises BadDocument."""
    # The length is checked first, so that a very long text is not copied.
    if len(text) <= limits.size_bytes:
        try:
            data = text.encode("utf-8") if isinstance(text, str) else text
            plain = data.decode("utf-8-sig")
        except UnicodeError:
            _refuse("it is not UTF-8")
    if len(text) > limits.size_bytes or len(data) > limits.size_bytes:
        _refuse(f"the text is longer than {limits.size_bytes // 1024} KiB")
    if "\0" in plain:
        _refuse("it has a NUL character")
    if plain.lstrip().startswith("{"):
        return [parse_json(plain.encode(), limits)]
    return _values_of_events(_yaml_events(plain), limits)


class PlainScalar(str):
    """A scalar of YAML without quotation marks, such as `2024`: it is text, and also the number or boolean `value`."""

    value: float | bool

    def __new__(cls, text: str, value: float | bool) -> PlainScalar:
        """Return `text` with its other meaning."""
        scalar = super().__new__(cls, text)
        scalar.value = value
        return scalar


def plain_scalar(written: str) -> str:
    """Return text without quotation marks, as a PlainScalar if it is a number as in JSON, true or false.

    A number that is too large has the value infinity.
    """
    if written in _BOOLEANS:
        return PlainScalar(written, _BOOLEANS[written])
    match = NUMBER_PATTERN.fullmatch(written)
    if match is None:
        return written
    if match["rest"] or len(written) > DIGITS_MAX:
        return PlainScalar(written, float(written))
    return PlainScalar(written, int(written))


def _refuse(sentence: str, path: str = "") -> NoReturn:
    raise BadDocument([(path, sentence)]) from None


def _object_of(pairs: Iterable[tuple[Any, Any]], repeated: list[tuple[object, str]]) -> dict[str, Any]:
    """Return the object of `pairs`; add it to `repeated` with the first key that it has twice."""
    values: dict[str, Any] = {}
    twice = None
    for key, value in pairs:
        if key in values and twice is None:
            twice = key
        values[key] = value
    if twice is not None:
        repeated.append((values, twice))
    return values


def _refuse_repeated(document: object, repeated: Sequence[tuple[object, str]]) -> None:
    wanted = {id(found): key for found, key in repeated}
    rest = [("", document)] if wanted else []
    while rest:
        path, value = rest.pop()
        if id(value) in wanted:
            key = wanted[id(value)]
            _refuse("the key is given twice", joined(path, key))
        if isinstance(value, dict):
            rest += [(joined(path, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            rest += [(f"{path}[{number}]", item) for number, item in enumerate(value)]


_OBJECT_BYTES, _MEMBER_BYTES, _LIST_BYTES, _SLOT_BYTES, _TEXT_BYTES, _NUMBER_BYTES = 80, 40, 72, 9, 50, 32
"""Bytes that CPython needs for an empty object; each member of an object; an empty list; a place in a list; an empty
text, to which each byte of the text is added; and a number."""
_BACKSLASHES = re.compile(rb"\\*+")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


@dataclass(slots=True)
class Outline:
    """Counts of the parts of a JSON text, without parsing it. In a text that is not JSON, the counts before its first
    error are right, and a parser stops there.
    """

    size_bytes: int = 0
    bone_bytes: int = 0
    """Bytes outside of strings, with one quote of each string."""
    strings: int = 0
    objects: int = 0
    lists: int = 0
    empty: int = 0
    """Objects and lists without any content, not even a space."""
    members: int = 0
    commas: int = 0
    level: int = 0
    """How deep lists and objects are nested at the end of the text."""
    depth: int = 0
    """How deep they are nested at most."""

    def add(self, data: bytes) -> None:
        """Count `data`, which has only whole tokens."""
        self.size_bytes += len(data)
        for inside, pieces in _split_at_quotes(data):
            structure = b'"'.join(pieces[inside::2])
            self.bone_bytes += len(structure)
            self.strings += len(pieces) // 2
            self.objects += structure.count(b"{")
            self.lists += structure.count(b"[")
            self.empty += structure.count(b"{}") + structure.count(b"[]")
            self.members += structure.count(b":")
            self.commas += structure.count(b",")
            for bracket in structure.translate(None, _NO_BRACKETS):
                if bracket in b"[{":
                    self.level += 1
                    self.depth = max(self.depth, self.level)
                else:
                    self.level -= 1

    def refusal(self, limits: Limits) -> str | None:
        """Return why a text with these counts is refused, or None."""
        if self.size_bytes > limits.size_bytes:
            return f"it has {self.size_bytes:,} bytes; at most {limits.size_bytes:,} are read"
        memory, most = self._memory_bytes(), MEMORY_MAX_BYTES + MEMORY_MAX_RATIO * self.size_bytes
        if memory > most:
            return f"its values would take about {memory:,} bytes of memory; at most {most:,} are allowed"
        return limits.refusal(self.depth, self.objects + self.lists + self.members + self.commas)

    def _memory_bytes(self) -> int:
        texts = max(0, self.strings - self.members)  # a repeated key is kept once
        containers = self.objects + self.lists
        numbers = max(0, self.commas + 1 - texts - self.empty)
        return (
            _OBJECT_BYTES * self.objects
            + _MEMBER_BYTES * self.members
            + _LIST_BYTES * self.lists
            + _SLOT_BYTES * (self.commas + containers)
            + _TEXT_BYTES * texts
            + _NUMBER_BYTES * numbers
            + self.size_bytes
            - self.bone_bytes
        )


def _check_keys(data: bytes) -> None:
    keys: set[int] = set()
    for inside, pieces in _split_at_quotes(data):
        strings, after = pieces[1 - inside :: 2], pieces[2 - inside :: 2]
        # Hashes, because keys can have any length.
        keys.update(hash(item) for item, rest in zip(strings, after, strict=False) if rest.lstrip().startswith(b":"))
        if len(keys) > KEYS_MAX:
            _refuse(f"it has more than {KEYS_MAX:,} different keys")


def _split_at_quotes(data: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Yield for each chunk of `data` 1 if it begins inside a string, else 0; and its parts, split at the quotes.

    Parts inside and outside of strings alternate. Escaped quotes and backslashes are left out.
    """
    begin, inside = 0, 0
    while begin < len(data):
        end = begin + CHUNK_BYTES
        if data[end - 1 : end] == b"\\":  # the escaped character belongs to this chunk
            run = _BACKSLASHES.match(data, end)
            assert run is not None
            end = run.end() + 1
        pieces = data[begin:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield inside, pieces
        inside = (inside + len(pieces) - 1) % 2
        begin = end


_LOADER: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_ALIASES = "anchors (&) and aliases (*) are not supported; put a text that begins with & or * in quotation marks"
_TAB = "a tab is not allowed; indent YAML with spaces"


def _yaml_events(text: str) -> Iterator[yaml.Event]:
    """Yield the events of the parser, before any value is built."""
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        begin, mark = error.context_mark, error.problem_mark
        lines = text.split("\n")  # with other line ends a tab is not found; then the parser's message is used
        # The parser's message can quote the document.
        problem = str(error.problem)[:200]
        if begin is not None and text[begin.index : begin.index + 1] in ("&", "*"):
            problem = _ALIASES
        elif mark is not None and mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t":
            problem = _TAB
        place = mark or begin
        _refuse(f"line {place.line + 1}, column {place.column + 1}: {problem}" if place else problem)
    # The Python parser raises these for characters beyond Unicode and for versions of many digits.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        reason = error.reason if isinstance(error, yaml.reader.ReaderError) else "a number is out of bounds"
        _refuse(f"it is not YAML: {reason}")


def _values_of_events(events: Iterable[yaml.Event], limits: Limits) -> list[Any]:
    opened: list[list[Any]] = [[]]
    repeated: list[tuple[object, str]] = []
    values = 0
    for event in events:
        line = event.start_mark.line + 1 if event.start_mark else 0
        values += isinstance(event, yaml.NodeEvent)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            _refuse(f"line {line}: {_ALIASES}")
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
            _refuse(f"line {line}: tags such as {event.tag[:40]!r} are not supported: write only the value")
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append([])
        elif isinstance(event, yaml.ScalarEvent):
            is_plain, text = event.implicit[0], event.value
            opened[-1].append(text if not is_plain else None if text in _NULLS else plain_scalar(text))
        elif isinstance(event, yaml.CollectionEndEvent):
            items: Any = opened.pop()
            if isinstance(event, yaml.MappingEndEvent):
                keys = items[::2]
                for key in keys:
                    if not isinstance(key, str):
                        _refuse(f"line {line}: a key must be text, not {_named(key)}")
                items = _object_of(zip(map(str, keys), items[1::2], strict=True), repeated)
            opened[-1].append(items)
        if refusal := limits.refusal(len(opened) - 1, values):
            _refuse(refusal)
    if not opened[0]:
        _refuse("it is empty")
    for document in opened[0]:
        _refuse_repeated(document, repeated)
    return opened[0]


@dataclass(frozen=True, slots=True)
class Parse:
    """Part of the annotation of a field whose value is made by a function: `Annotated[Place, Parse(place_of)]`."""

    function: Callable[[Any], object]
    """Return the value of the field. Raises ValueError with a sentence, or BadDocument with paths below the field."""
    source: object = str
    """The type of the value that the function takes."""
    due: str = ""
    """The expected value in sentences, such as "a model's name"."""


ONE_OR_MORE = "one or more"
"""Part of the annotation of a tuple: a single value counts as a list of one."""


def line(due: str, at_most: int, check: Callable[[str], object] = str) -> Parse:
    """Return the reader of a text on one line, stripped, of 1 to `at_most` characters, which `check` gets."""

    def read(text: str) -> object:
        stripped = text.replace("\n", " ").strip()
        if not stripped:
            raise ValueError(f"{due} is missing")
        if len(stripped) > at_most:
            raise ValueError(f"{due} has at most {at_most:,} characters; this one has {len(stripped):,}")
        if not stripped.isprintable():
            raise ValueError(f"{quoted(stripped)} has a control character or an unusual space")
        return check(stripped)

    return Parse(read, str, due)


def convert(values: object, kind: type[T], *, lenient: bool = False, synonyms: Mapping[str, str] | None = None) -> T:
    """Return `values`, which a parser returned, as `kind`, a struct. Raises BadDocument with all faults.

    Unknown keys are refused where the struct forbids them; `synonyms` maps other words to keys, for the suggestion.
    With `lenient`, unknown keys are ignored, and a member that may be absent counts as absent if it has another type:
    other tools may use it differently.
    """
    reader = _Reader(lenient, synonyms or {})
    value = reader.read(values, kind, "")
    if reader.reasons:
        raise BadDocument(reader.reasons)
    return cast(T, value)


def unknown_keys(
    values: Iterable[str], known: Sequence[str], path: str = "", synonyms: Mapping[str, str] | None = None
) -> Iterator[Reason]:
    """Yield a reason for each of the keys `values` of the object at `path` that is not `known`."""
    for key in values:
        if key not in known:
            word = (synonyms or {}).get(key.lower())
            close = word if word in known else nearest(key[:SHOWN_MAX], known)
            hint = f"did you mean {close}?" if close else f"the keys are {', '.join(known)}"
            yield joined(path, key), f"unknown key; {hint}"


def quoted(text: str) -> str:
    """Return `text` for a sentence: shortened, in quotation marks, with control characters escaped."""
    return repr(str(text) if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…")


def joined(path: str, key: str) -> str:
    """Return the path of the member `key` of the object at `path`."""
    shown = key if re.fullmatch(r"[\w.-]{1,60}", key) else quoted(key)
    return f"{path}.{shown}" if path else shown


class _Reader:
    """Converts values, and collects the faults. A refused value is UNSET, as is all that contains it."""

    def __init__(self, lenient: bool, synonyms: Mapping[str, str]) -> None:
        self.lenient = lenient
        self.synonyms = synonyms
        self.reasons: list[Reason] = []

    def read(self, value: object, kind: object, path: str, due: str = "", quiet: bool = False) -> Any:
        """Return `value` at `path` as `kind`, or UNSET. With `quiet`, a value of another type is no fault."""
        bare, notes = _without_notes(kind)
        origin, arguments = get_origin(bare) or bare, get_args(bare)
        parse = next((note for note in notes if isinstance(note, Parse)), None)
        if parse is not None:
            return self._parse(value, parse, path, quiet)
        if origin in (Union, types.UnionType):
            if value is None and types.NoneType in arguments:
                return None
            alternatives = [item for item in arguments if item is not types.NoneType]
            fitting = [item for item in alternatives if _is_of_shape(value, item)]
            if fitting or len(alternatives) == 1:
                return self.read(value, (fitting or alternatives)[0], path, due, quiet)
        elif origin in (tuple, list) and (origin is list or arguments[-1] is Ellipsis):
            if isinstance(value, list):
                return self._items(value, arguments[0], origin, path) if self._has_length(value, notes, path) else UNSET
            if ONE_OR_MORE in notes:
                item = self.read(value, arguments[0], path, due, quiet)
                return UNSET if item is UNSET else origin([item])
        elif origin is dict and isinstance(value, dict):
            return self._dict(value, arguments, path) if self._has_length(value, notes, path) else UNSET
        elif isinstance(origin, type) and issubclass(origin, Struct):
            names = origin.__struct_encode_fields__
            if isinstance(value, list) and origin.__struct_config__.array_like and len(value) == len(names):
                return self._struct(dict(zip(names, value, strict=True)), origin, path)
            if isinstance(value, dict) and not origin.__struct_config__.array_like:
                return self._struct(value, origin, path)
        return self._leaf(value, kind, path, due, quiet)

    def _refuse(self, path: str, sentence: str) -> Any:
        self.reasons.append((path, sentence))
        if len(self.reasons) == REASONS_MAX:
            raise BadDocument([*self.reasons, ("", f"reading stopped after {REASONS_MAX} errors")])
        return UNSET

    def _parse(self, value: object, parse: Parse, path: str, quiet: bool) -> Any:
        source = self.read(value, parse.source, path, parse.due, quiet)
        if source is UNSET:
            return UNSET
        try:
            return parse.function(source)
        except BadDocument as error:
            for below, sentence in error.reasons:
                self._refuse(f"{path}{'' if below.startswith('[') or not below else '.'}{below}", sentence)
        except ValueError as error:
            if not quiet:
                self._refuse(path, str(error))
        return UNSET

    def _has_length(self, value: Sequence[object] | Mapping[str, object], notes: Sequence[object], path: str) -> bool:
        bounds = [note for note in notes if isinstance(note, Meta)]
        least = max((note.min_length or 0 for note in bounds), default=0)
        most = min((note.max_length for note in bounds if note.max_length is not None), default=None)
        if least == 1 and not value:
            self._refuse(path, "the list is empty: it needs at least one value")
        elif len(value) < least or (most is not None and len(value) > most):
            allowed = (
                f"{least:,} or more" if most is None else f"{least:,} to {most:,}" if least else f"at most {most:,}"
            )
            self._refuse(path, f"it has {len(value):,} entries; {allowed} are allowed")
        else:
            return True
        return False

    def _items(self, values: list[Any], kind: object, collection: Callable[[list[Any]], Any], path: str) -> Any:
        items = [self._item(value, kind, path, number) for number, value in enumerate(values)]
        return UNSET if any(item is UNSET for item in items) else collection(items)

    def _item(self, value: object, kind: object, path: str, number: int) -> Any:
        if _is_plain(kind):
            with suppress(msgspec.ValidationError):  # there can be many; only wrong ones are read by member
                return msgspec.convert(value, prepared(kind))
        return self.read(value, kind, f"{path}[{number}]")

    def _dict(self, values: dict[str, Any], kinds: Sequence[object], path: str) -> Any:
        key_kind, kind = kinds
        members = {
            self.read(key, key_kind, joined(path, key)): self.read(value, kind, joined(path, key))
            for key, value in values.items()
        }
        return UNSET if UNSET in members or any(value is UNSET for value in members.values()) else members

    def _struct(self, values: dict[str, Any], kind: type[Struct], path: str) -> Any:
        fields = _fields(kind)
        gathering, keys = getattr(kind, "gathers", ("", ()))
        inside = {key: value for key, value in values.items() if key in keys}
        if inside and isinstance(values.get(gathering, {}), dict):
            outside = {key: value for key, value in values.items() if key not in keys}
            values = outside | {gathering: {**values.get(gathering, {}), **inside}}
        if kind.__struct_config__.forbid_unknown_fields and not self.lenient:
            for reason in unknown_keys(values, [*(field.encode_name for field in fields), *keys], path, self.synonyms):
                self._refuse(*reason)
        members: dict[str, Any] = {}
        is_whole = True
        for field in fields:
            place = path if inside and field.name == gathering else joined(path, field.encode_name)
            if field.encode_name in values:
                before = len(self.reasons)
                is_quiet = self.lenient and not field.required
                value = self.read(values[field.encode_name], field.type, place, quiet=is_quiet)
                if value is not UNSET:
                    members[field.name] = value
                elif len(self.reasons) > before:
                    is_whole = False
            elif field.required:
                due = next((note.due for note in _without_notes(field.type)[1] if isinstance(note, Parse)), "")
                self._refuse(place, f"{due or 'it'} is missing")
                is_whole = False
        if not is_whole:
            return UNSET
        made = kind(**members)
        for below, sentence in getattr(made, "faults", tuple)():
            self._refuse(f"{path}.{below}" if path and below else path or below, sentence)
        return made

    def _leaf(self, value: object, kind: object, path: str, due: str, quiet: bool) -> Any:
        for meaning in (value.value, str(value)) if isinstance(value, PlainScalar) else (value,):
            try:
                made = msgspec.convert(meaning, prepared(kind))
            except msgspec.ValidationError:
                continue
            if isinstance(made, float) and not math.isfinite(made):
                return self._refuse(path, "NaN is not a number" if math.isnan(made) else "the number is too large")
            if isinstance(made, str) and ("\0" in made or _SURROGATE.search(made)):
                return self._refuse(path, "the text has a NUL character or an unpaired surrogate")
            return made
        if quiet:
            return UNSET
        due = due or due_text(kind)
        return self._refuse(
            path, f"{due} is missing" if value is None else f"this is {_named(value)}; it should be {due}"
        )


_SURROGATE = re.compile("[\ud800-\udfff]")


@cache
def _fields(kind: type[Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    prepared(kind)
    return msgspec.structs.fields(kind)


@cache
def _is_plain(kind: object) -> bool:
    """Return whether `kind` is a struct of numbers, texts with a pattern for all of it, and such structs."""
    if not (isinstance(kind, type) and issubclass(kind, Struct)) or hasattr(kind, "faults"):
        return False
    for field in _fields(kind):
        bare, notes = _without_notes(field.type)
        patterns = [note.pattern for note in notes if isinstance(note, Meta) and note.pattern is not None]
        is_checked_text = any(pattern.startswith("^") and "$" in pattern for pattern in patterns)
        if any(isinstance(note, Parse) for note in notes):
            return False
        if not (bare in (int, bool) or is_checked_text or _is_plain(bare)):
            return False
    return True


def _without_notes(kind: object) -> tuple[Any, tuple[object, ...]]:
    """Return a type without `Annotated`, and its annotations."""
    if get_origin(kind) is Annotated:
        bare, *notes = get_args(kind)
        return bare, tuple(notes)
    return kind, ()


def _is_of_shape(value: object, kind: object) -> bool:
    """Return whether `kind`, of a union, is a struct or dict for an object, or a list or tuple for a list."""
    bare, _notes = _without_notes(kind)
    origin = get_origin(bare) or bare
    if isinstance(value, dict):
        return origin is dict or (isinstance(origin, type) and issubclass(origin, Struct))
    return isinstance(value, list) and origin in (list, tuple)


def _named(value: object) -> str:
    """Return `value` for a sentence."""
    if isinstance(value, PlainScalar):
        return _named(value.value)
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    if isinstance(value, int | float):
        return f"the number {value}" if abs(value) < 10**18 else "a very large number"
    return "an object" if isinstance(value, dict) else "a list"


@cache
def due_text(kind: object) -> str:
    """Return what a value of `kind` is, for sentences: `a whole number from 1 to 9`."""
    return _due(inspect.type_info(cast(Any, kind)))


def _due(info: inspect.Type) -> str:
    if isinstance(info, inspect.Metadata):
        return _due(info.type)
    if isinstance(info, inspect.UnionType):
        return " or ".join(dict.fromkeys(_due(item) for item in info.types if not isinstance(item, inspect.NoneType)))
    if isinstance(info, inspect.BoolType):
        return "true or false"
    if isinstance(info, inspect.IntType | inspect.FloatType):
        noun = "a whole number" if isinstance(info, inspect.IntType) else "a number"
        above, to = ("from", "to") if info.ge is not None and info.le is not None else ("of at least", "of at most")
        bounds = ((above, info.ge), ("above", info.gt), (to, info.le), ("below", info.lt))
        return " ".join([noun, *(f"{word} {bound:,}" for word, bound in bounds if bound is not None)])
    if isinstance(info, inspect.StrType):
        least = f"{info.min_length:,} to " if info.min_length else "at most "
        length = "" if info.max_length is None else f" of {least}{info.max_length:,} characters"
        form = "" if info.pattern is None else f" that matches {info.pattern}"
        return f"a text{length}{form}"
    if isinstance(info, inspect.LiteralType | inspect.EnumType):
        values = info.values if isinstance(info, inspect.LiteralType) else [item.value for item in info.cls]
        return f"one of {', '.join(map(str, values))}"
    if isinstance(info, inspect.StructType):
        collection = "a list of" if info.array_like else "an object with"
        return f"{collection} {', '.join(field.encode_name for field in info.fields)}"
    if isinstance(info, inspect.DictType):
        return "an object"
    if isinstance(info, inspect.ListType | inspect.VarTupleType | inspect.TupleType):
        return "a list"
    return f"a value of the type {type(info).__name__.removesuffix('Type').lower()}"
