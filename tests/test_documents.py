"""Tests of the reader of untrusted documents: its limits, and the faults that it finds."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from organs.registry import documents
from organs.registry.documents import (
    KEYS_MAX,
    ONE_OR_MORE,
    REASONS_MAX,
    BadDocument,
    Limits,
    Outline,
    Parse,
    PlainScalar,
    Reason,
    convert,
    parse_json,
    parse_yaml,
)

LIMITS = Limits(size_bytes=64 * 1024 * 1024, depth=12)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{} {}", "not JSON"),
        (b'{"a": 1, "a": 2}', "is given twice"),
        (b"NaN", "NaN is not JSON"),
        (b"[-Infinity]", "not JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ("[1]".encode("utf-16"), r"not UTF-8|no JSON"),
        (b"[" * (LIMITS.depth + 1), "nested deeper"),
        (b"[" * 500_000, "nested deeper"),
        (b'{"a":' * 100_000, "nested deeper"),
        (b"[" + b"{}," * 2_000_000 + b"0]", "of memory"),
        (b"{" + b",".join(b'"%x":0' % number for number in range(KEYS_MAX + 100)) + b"}", "different keys"),
        (b" " * (LIMITS.size_bytes + 1), "at most"),
        (b"1" * 5_000, "digits"),
        (b'"' + b'\\"' * 1_000_000, "not JSON"),
        (b'"' * 1_000_001, "not JSON"),
    ],
)
def test_invalid_or_too_large_json_is_refused_in_a_sentence(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parse_json(data, LIMITS)
    assert len(str(caught.value)) < 300


SHAPES: dict[str, bytes] = {
    "objects": b"{},",
    "lists": b"[],",
    "nested lists": b"[[[[]]]],",
    "objects with one member": b'{"a":0},',
    "objects with eight members": b'{"a":0,"b":1,"c":2,"d":3,"e":4,"f":5,"g":6,"h":7},',
    "objects of texts": b'{"name":"blk.0","file":"blk_0.bin"},',
    "lists of one text": b'["ab"],',
    "texts": b'"ab",',
    "whole numbers": b"999,",
    "numbers": b"0.5,",
    "nulls": b"null,",
    "spaces": b"{ } , ",
}


def peak_bytes(data: bytes) -> tuple[int, str]:
    """Return the peak memory of parsing `data` besides `data` itself, and the reason of a refusal, if any."""
    tracemalloc.start()
    try:
        parse_json(data, LIMITS)
    except ValueError as error:
        return tracemalloc.get_traced_memory()[1], str(error)
    else:
        return tracemalloc.get_traced_memory()[1], ""
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", SHAPES)
def test_reading_any_json_stays_within_the_memory_limit(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 2_000_000
    monkeypatch.setattr(documents, "MEMORY_MAX_BYTES", limit)
    monkeypatch.setattr(documents, "MEMORY_MAX_RATIO", 0)
    monkeypatch.setattr(documents, "CHUNK_BYTES", 4096)
    taken, accepted = 0, 0
    for count in (int(1_000 * 1.5**step) for step in range(23)):
        data = b"[" + SHAPES[shape] * count + b"0]"
        peak, refused = peak_bytes(data)
        if refused:
            assert "of memory" in refused
            assert peak < 100_000 + len(data), "and it is refused before anything is built"
            break
        taken, accepted = peak, len(data)
    assert 0 < taken < 1.3 * limit + 2 * accepted, "the text itself besides, and what of it is being turned into text"
    assert taken > limit / 6, "nor is much less refused"


@pytest.mark.parametrize("begin", range(6))
def test_brackets_within_text_across_chunks_are_not_counted(begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "CHUNK_BYTES", 7)
    value = [" " * begin, '[{",:\\', '\\"' * 20, {"\\": "]", 'a\\"[': ["{" * 50, "\\" * 30]}, "é[" * 9, ""]
    data = json.dumps(value, ensure_ascii=False).encode()
    outline = Outline()
    outline.add(data)
    assert (outline.objects, outline.lists, outline.members, outline.commas) == (1, 2, 2, 7)
    assert (outline.depth, outline.level, outline.empty) == (3, 0, 0)
    assert parse_json(data, LIMITS) == value


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a": 1, "a": 2}', "a"),
        ('{"a": [0, {"b": {"c d": 1, "c d": 1}}]}', "a[1].b.'c d'"),
        ("a:\n- {b: 1, b: 2}", "a[0].b"),
        ("1: a\n'1': b", "1"),
    ],
)
def test_a_repeated_key_is_refused_with_its_path(text: str, path: str) -> None:
    with pytest.raises(BadDocument, match="is given twice") as caught:
        parse_yaml(text, LIMITS)
    assert [where for where, _ in caught.value.reasons] == [path]


def test_the_number_of_values_is_limited_in_json_and_yaml() -> None:
    for text in ("[a, {b: c}]", '{"a": ["b", "c", "d"]}'):
        parse_yaml(text, Limits(100, 4, values=5))
        with pytest.raises(BadDocument, match="more than 4 values"):
            parse_yaml(text, Limits(100, 4, values=4))


def test_a_plain_scalar_of_yaml_is_text_and_a_number() -> None:
    values = parse_yaml("[2024, '2024', true, 1e5, 0x10, no, on, 12:30, 2024-01-01, 012, 1_000, .inf, ~]", LIMITS)
    odd = ["0x10", "no", "on", "12:30", "2024-01-01", "012", "1_000", ".inf"]
    assert values == ["2024", "2024", "true", "1e5", *odd, None]
    assert [item.value for item in values if isinstance(item, PlainScalar)] == [2024, True, 1e5]


def even(number: int) -> int:
    """Return half of an even number."""
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number // 2


def pair(value: list[object]) -> tuple[object, ...]:
    """Return two values."""
    if len(value) != 2:
        raise BadDocument([("[2]", "there is no third"), ("", "a pair has two")])
    return tuple(value)


class Part(Struct, frozen=True, forbid_unknown_fields=True, rename={"kind": "type"}):
    """A part of a document."""

    name: Annotated[str, Meta(min_length=1, max_length=5)]
    kind: Literal["new", "old"] = "new"
    half: Annotated[int, Parse(even, int, "an even number")] = 0

    def faults(self) -> Iterator[Reason]:
        """Yield a fault of two fields together."""
        if self.kind == "old" and self.half:
            yield "half", "only new parts are halved"
        if self.name == "none":
            yield "", "it is no part"


class Order(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A document."""

    parts: Annotated[tuple[Part, ...], Meta(max_length=3)] = ()
    words: Annotated[tuple[str, ...], Meta(min_length=1), ONE_OR_MORE] = ()
    halves: Annotated[tuple[Annotated[int, Parse(even, int)], ...], ONE_OR_MORE] = ()
    either: Part | Annotated[tuple[Part, ...], Meta(max_length=2)] | None = None
    extra: Annotated[dict[str, str | int | float | bool | tuple[str, ...]], Meta(max_length=2)] | None = None
    ratio: Annotated[float, Meta(gt=0, le=1)] = 1.0
    pair: Annotated[tuple[object, ...], Parse(pair, list[object])] = ()
    exact: bool = False


def reasons(text: str, lenient: bool = False) -> list[Reason]:
    """Return the faults of a document."""
    with pytest.raises(BadDocument) as caught:
        convert(parse_yaml(text, LIMITS), Order, lenient=lenient, synonyms={"share": "ratio"})
    return list(caught.value.reasons)


def test_a_document_becomes_a_struct() -> None:
    text = """
        parts: [{name: 2024, half: 4}, {name: "2", type: old}]
        words: true
        halves: [2, 4]
        either: [{name: a}]
        extra: {text: no, list: [1, a]}
        ratio: 1
        exact: true
    """
    assert convert(parse_yaml(text, LIMITS), Order) == Order(
        parts=(Part("2024", "new", 2), Part("2", "old")),
        words=("true",),
        halves=(1, 2),
        either=(Part("a"),),
        extra={"text": "no", "list": ("1", "a")},
        ratio=1.0,
        exact=True,
    )
    one = convert(parse_json(b'{"halves": 6, "either": {"name": "a"}, "extra": {"n": 1, "t": true}}', LIMITS), Order)
    assert one == Order(halves=(3,), either=Part("a"), extra={"n": 1, "t": True})
    assert convert(parse_json(b'{"either": null, "words": "a"}', LIMITS), Order) == Order(words=("a",))


def test_all_faults_are_reported_with_their_paths() -> None:
    text = """
        parts: [{nme: a}, {name: longer, half: 3}, {name: a, type: old, half: 2, x y: 1}]
        part: 1
        share: 1
        words: []
        halves: [a, 3, 2]
        either: [{name: none}, 5]
        extra: {a: [b, {}], b: {}}
        ratio: 1.5
        pair: [1]
        exact: 1
    """
    assert reasons(text) == [
        ("part", "unknown key; did you mean parts?"),
        ("share", "unknown key; did you mean ratio?"),
        ("parts[0].nme", "unknown key; did you mean name?"),
        ("parts[0].name", "it is missing"),
        ("parts[1].name", "this is the text 'longer'; it should be a text of 1 to 5 characters"),
        ("parts[1].half", "3 is odd"),
        ("parts[2].'x y'", "unknown key; the keys are name, type, half"),
        ("parts[2].half", "only new parts are halved"),
        ("words", "the list is empty: it needs at least one value"),
        ("halves[0]", "this is the text 'a'; it should be a whole number"),
        ("halves[1]", "3 is odd"),
        ("either[0]", "it is no part"),
        ("either[1]", "this is the number 5; it should be an object with name, type, half"),
        ("extra.a[1]", "this is an object; it should be a text"),
        ("extra.b", "this is an object; it should be a text or a whole number or a number or true or false or a list"),
        ("ratio", "this is the number 1.5; it should be a number above 0 of at most 1"),
        ("pair[2]", "there is no third"),
        ("pair", "a pair has two"),
        ("exact", "this is the number 1; it should be true or false"),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[a]",
            ("", "this is a list; it should be an object with parts, words, halves, either, extra, ratio, pair, exact"),
        ),
        ("parts:", ("parts", "a list is missing")),
        ("parts: [{name: a}, {name: b}, {name: c}, {name: d}]", ("parts", "it has 4 entries; at most 3 are allowed")),
        ("parts: [{name: a, type: odd}]", ("parts[0].type", "this is the text 'odd'; it should be one of new, old")),
        ("parts: [{name: a, half: x}]", ("parts[0].half", "this is the text 'x'; it should be an even number")),
        ("extra: {a: b, c: d, e: f}", ("extra", "it has 3 entries; at most 2 are allowed")),
        ("ratio: 1e999", ("ratio", "this is a very large number; it should be a number above 0 of at most 1")),
        ('{"words": ["\\ud800"]}', ("words[0]", "the text has a NUL character or an unpaired surrogate")),
    ],
)
def test_a_fault_is_told_in_one_sentence(text: str, reason: Reason) -> None:
    assert reasons(text) == [reason]


def test_a_document_of_another_tool_is_read_leniently() -> None:
    text = "parts: [{name: a, type: odd, x: 1, half: 3}]\nwords: {}\nratio: many\nother: 1\nexact: true"
    assert convert(parse_yaml(text, LIMITS), Order, lenient=True) == Order(parts=(Part("a"),), exact=True)
    text = "parts: [{type: new}, {name: 'longer'}]\nhalves: [1]"
    assert [path for path, _ in reasons(text, lenient=True)] == ["parts[0].name", "parts[1].name", "halves[0]"]


def test_the_number_of_faults_is_limited() -> None:
    found = reasons("".join(f"k{number}: 1\n" for number in range(5000)))
    assert len(found) == REASONS_MAX + 1
    assert found[-1] == ("", f"reading stopped after {REASONS_MAX} errors")
