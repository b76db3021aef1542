"""Tests of the lock: its canonical text, its digest as its name, and refusal of any other text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.compose import lock as lock_module
from organs.registry.compose.lock import FORMAT, LOCK_KEY, Lock, LockedTensor, lock_of, locked_header, parse_lock
from organs.registry.digest import Digest, digest_of
from organs.registry.documents import Limits
from organs.registry.errors import BadLock
from organs.registry.gguf import KeyValue, MemorySource, TensorSpec, ValueType, dtype_by_name, read_header
from tests.gguf_files import file_bytes, tensor, text, unsigned
from tests.random_files import PATIENT

ZEROS, ONES = Digest("0" * 64), Digest("1" * 64)
SMALL = Lock(
    header=ZEROS,
    tensors=(LockedTensor(TensorSpec("a.weight", (32, 2), dtype_by_name("Q8_0")), ONES),),
    sets=(
        KeyValue("general.name", ValueType.STRING, 'Grüße "x"'),
        KeyValue("acme.n", ValueType.UINT32, 3),
        KeyValue("acme.tags", ValueType.ARRAY, ["a", "ü"], element_type=ValueType.STRING),
    ),
    drops=("general.doi", "general.url"),
)
SMALL_TEXT = (
    '{"drop":["general.doi","general.url"],"format":"organ-registry lock 1","header":"' + "0" * 64 + '",'
    '"set":[["general.name","string","Gr\\u00fc\\u00dfe \\"x\\""],["acme.n","uint32",3],'
    '["acme.tags","texts",["a","\\u00fc"]]],'
    '"tensors":[["a.weight","Q8_0",[32,2],"' + "1" * 64 + '"]]}'
)
EMPTY = {"drop": [], "format": FORMAT, "header": ZEROS, "set": [], "tensors": []}


def written(**members: object) -> str:
    """Return a canonical lock document with other values for `members`."""
    return json.dumps(EMPTY | members, sort_keys=True, separators=(",", ":"))


def locks() -> st.SearchStrategy[Lock]:
    """Generate locks as plans make them."""
    letters = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=30)
    digests = st.binary(max_size=4).map(digest_of)
    dtypes = st.sampled_from(["F32", "F16", "BF16", "Q8_0", "Q4_K", "IQ4_NL"]).map(dtype_by_name)
    shapes = st.lists(st.integers(1, 9), min_size=1, max_size=4)
    specs = st.builds(
        lambda name, dtype, shape: TensorSpec(name, (shape[0] * dtype.block_elements, *shape[1:]), dtype),
        *(letters, dtypes, shapes),
    )
    tensors = st.lists(st.builds(LockedTensor, specs, digests), unique_by=lambda one: one.spec.name, max_size=4)
    texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
    values = st.one_of(
        texts.map(lambda value: (ValueType.STRING, value, None)),
        st.booleans().map(lambda value: (ValueType.BOOL, value, None)),
        st.integers(0, 2**64 - 1).map(lambda value: (ValueType.UINT64, value, None)),
        st.integers(-(2**31), 2**31 - 1).map(lambda value: (ValueType.INT32, value, None)),
        st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda value: (ValueType.FLOAT32, value, None)),
        st.floats(allow_nan=False, allow_infinity=False).map(lambda value: (ValueType.FLOAT64, value, None)),
        st.lists(texts, max_size=3).map(lambda value: (ValueType.ARRAY, value, ValueType.STRING)),
        st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3).map(
            lambda value: (ValueType.ARRAY, value, ValueType.INT32)
        ),
        st.lists(st.booleans(), max_size=3).map(lambda value: (ValueType.ARRAY, value, ValueType.BOOL)),
    )

    sets = st.lists(
        st.tuples(letters, values).map(lambda pair: KeyValue(f"set {pair[0]}", *pair[1])),
        unique_by=lambda entry: entry.key,
        max_size=4,
    )
    drops = st.lists(letters.map("drop {}".format), unique=True, max_size=4).map(sorted)
    return st.builds(Lock, digests, tensors.map(tuple), sets.map(tuple), drops.map(tuple))


def test_the_canonical_form_is_exactly_this() -> None:
    assert SMALL.canonical() == SMALL_TEXT
    assert SMALL.id == digest_of(SMALL_TEXT.encode("ascii"))
    assert parse_lock(SMALL_TEXT) == SMALL


@given(locks())
def test_a_written_lock_reads_back_as_the_same_lock(lock: Lock) -> None:
    text = lock.canonical()
    assert text.isascii()
    again = parse_lock(text)
    assert again == lock
    assert again.canonical() == text
    assert again.id == lock.id


@pytest.mark.parametrize(
    "text",
    [
        SMALL_TEXT + "\n",
        SMALL_TEXT.replace(",", ", ", 1),
        SMALL_TEXT.replace("\\u00fc", "\\u00FC"),
        SMALL_TEXT.replace("\\u00fc", "ü"),
        SMALL_TEXT.replace('"a.weight"', '"\\u0061.weight"'),
        SMALL_TEXT.replace('{"drop"', '{"drop":[],"drop"'),
        SMALL_TEXT.replace('["acme.n","uint32",3]', '["acme.n","uint32",3.0]'),
        SMALL_TEXT.replace('"uint32",3]', '"uint32",03]'),
        SMALL_TEXT.replace(ONES, ONES[:-1] + "A"),
        '{"tensors":[],' + written()[1:].replace(',"tensors":[]', ""),
    ],
)
def test_any_other_writing_of_a_lock_is_refused(text: str) -> None:
    assert text != SMALL_TEXT
    with pytest.raises(BadLock):
        parse_lock(text)


HOSTILE = [
    *("", " ", "null", "5", '"a"', "[]", "{}", "{", "\ud800", "é", "\0", "[" * 100_000, '{"a":' * 100_000),
    written(format="organ-registry lock 2"),
    written(more=1),
    written(header="0" * 63),
    written(header="G" * 64),
    written(drop=["b", "a"]),
    written(drop=["a", "a"]),
    written(drop=[""]),
    written(drop=["ü"]),
    written(drop=["k" * 65_536]),
    written(drop=["a"], set=[["a", "bool", True]]),
    written(set=[["a", "bool", True], ["a", "bool", True]]),
    written(set=[[LOCK_KEY, "string", "x"]]),
    written(set=[["a", "array", []]]),
    written(set=[["a", "int9", 1]]),
    written(set=[["a", "uint32", True]]),
    written(set=[["a", "uint32", -1]]),
    written(set=[["a", "uint8", 256]]),
    written(set=[["a", "uint64", 2**64]]),
    written(set=[["a", "bool", 1]]),
    written(set=[["a", "string", 5]]),
    written(set=[["a", "string", "\ud800"]]),
    written(set=[["a", "float32", 1]]),
    written(set=[["a", "float32", 1e300]]),
    written(set=[["a", "float32", 10**400]]),
    written(set=[["a", "float64", float("nan")]]),
    written(set=[["a", "float64", 0]]).replace(",0]", ",1e999]"),
    written(set=[["a", "float64", 0]]).replace(",0]", f",{'9' * 5000}]"),
    written(set=[["a", "texts", "ab"]]),
    *(
        written(set=[["a", kind, [1]]])
        for kind in ("[string]", "[array]", "[bool]", "[float32]", "[int9]", "int32", "[")
    ),
    *(
        written(set=[["a", "[uint8]", value]])
        for value in (1, [256], [-1], [True], [1.0], ["1"], [[1]], {"a": 1}, None)
    ),
    written(set=[["a", "[float64]", [0]]]).replace("[0]", "[1e999]"),
    written(set=[["a", "texts", [1]]]),
    written(set=[["a", "texts", ["\ud800"]]]),
    written(tensors=[["a", "F32", [1], ZEROS]] * 2),
    written(tensors=[["", "F32", [1], ZEROS]]),
    written(tensors=[["a" * 128, "F32", [1], ZEROS]]),
    written(tensors=[["a", "TYPE_156", [1], ZEROS]]),
    written(tensors=[["a", "F33", [1], ZEROS]]),
    written(tensors=[["a", "F32", [], ZEROS]]),
    written(tensors=[["a", "F32", [1] * 5, ZEROS]]),
    written(tensors=[["a", "F32", [0], ZEROS]]),
    written(tensors=[["a", "F32", [2**63], ZEROS]]),
    written(tensors=[["a", "F32", [2**40, 2**40], ZEROS]]),
    written(tensors=[["a", "F32", [10**4000], ZEROS]]),
    written(tensors=[["a", "Q8_0", [16, 2], ZEROS]]),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_that_is_not_a_lock_is_refused_with_a_message(text: str) -> None:
    with pytest.raises(BadLock, match="it is "):
        parse_lock(text)


def test_a_lock_that_is_too_long_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "LIMITS", Limits(len(SMALL_TEXT), depth=8))
    assert parse_lock(SMALL_TEXT) == SMALL
    with pytest.raises(BadLock, match=f"{len(SMALL_TEXT)}"):
        parse_lock(SMALL_TEXT + " ")


@PATIENT
@given(st.integers(0, len(SMALL_TEXT) - 1), st.text(max_size=3), st.integers(0, 5))
def test_a_damaged_lock_is_refused_or_another_lock(begin: int, piece: str, length: int) -> None:
    damaged = SMALL_TEXT[:begin] + piece + SMALL_TEXT[begin + length :]
    try:
        lock = parse_lock(damaged)
    except BadLock:
        return
    assert lock.canonical() == damaged


def test_the_lock_is_written_to_the_header_that_it_describes_and_read_from_it() -> None:
    base = MemorySource(file_bytes([text("general.architecture", "llama"), text("general.url", "x")], [tensor("a")]))
    header = locked_header(read_header(base), base, SMALL)
    data = header + bytes(64)
    source = MemorySource(data + bytes(4))
    found = read_header(source)
    assert [field.key for field in found.fields][-1] == LOCK_KEY
    assert lock_of(found, source) == SMALL
    assert [(spec.name, spec.shape, spec.dtype) for spec in found.tensors] == [
        (locked.spec.name, locked.spec.shape, locked.spec.dtype) for locked in SMALL.tensors
    ]


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [unsigned(LOCK_KEY, 5)],
        [text(LOCK_KEY, "{}")],
        [text(LOCK_KEY, SMALL_TEXT + " ")],
        [text(LOCK_KEY, b"\xff")],
        [text(LOCK_KEY, written(set=[["a", "float32", 1e300]]))],
        [KeyValue(LOCK_KEY, ValueType.ARRAY, [SMALL_TEXT], element_type=ValueType.STRING)],
    ],
)
def test_a_header_with_a_lock_of_another_program_has_no_lock(entries: list[KeyValue]) -> None:
    source = MemorySource(file_bytes([text("general.architecture", "llama"), *entries], [tensor("a")]))
    assert lock_of(read_header(source), source) is None
