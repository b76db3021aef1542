"""Tests of split sets: complete sets in any order, and all faults of a set, reported together."""

from __future__ import annotations

from itertools import permutations

import pytest

from organs.registry.errors import BadSplit
from organs.registry.gguf import Header, KeyValue, MemorySource, ValueType, read_header
from organs.registry.gguf.split import (
    REASONS_MAX,
    ShardName,
    check_split,
    has_left_over_keys,
    is_shard,
    parse_shard_name,
)
from tests.gguf_files import file_bytes, tensor, text, unsigned

Shard = tuple[str, Header]


def shard(
    number: int,
    count: int,
    names: tuple[str, ...],
    total: int,
    architecture: str | None = None,
    kind: ValueType = ValueType.UINT16,
) -> Shard:
    """Return one shard of a set, with its expected file name."""
    entries = [KeyValue("split.no", kind, number), KeyValue("split.count", kind, count)]
    entries.append(KeyValue("split.tensors.count", ValueType.INT32, total))
    if architecture is not None:
        entries.insert(0, text("general.architecture", architecture))
    data = file_bytes(entries, [tensor(name) for name in names])
    return f"m-{number + 1:05d}-of-{count:05d}.gguf", read_header(MemorySource(data))


def whole_set() -> list[Shard]:
    return [
        shard(0, 4, ("a", "b"), 5, "llama"),
        shard(1, 4, ("c",), 5),
        shard(2, 4, (), 5),
        shard(3, 4, ("d", "e"), 5),
    ]


def reasons(shards: list[Shard]) -> tuple[str, ...]:
    with pytest.raises(BadSplit) as caught:
        check_split("m", shards)
    assert str(caught.value).startswith("m: not a complete split set: ")
    assert len(caught.value.errors) <= REASONS_MAX + 1
    assert len(str(caught.value)) < 5_000
    return tuple(fault.detail for fault in caught.value.errors)


def test_a_complete_set_is_ordered_whatever_its_input_order() -> None:
    shards = whole_set()
    for order in permutations(range(4)):
        result = check_split("m", [shards[index] for index in order])
        assert [order[index] for index in result] == [0, 1, 2, 3]


FAULTS: dict[str, tuple[list[Shard], str]] = {
    "one of four is missing": (whole_set()[:2] + whole_set()[3:], "1 of 4 shards missing: 00003"),
    "three of four are missing": (whole_set()[1:2], "3 of 4 shards missing: 00001, 00003, 00004"),
    "no shards": ([], "there are no shards"),
    "a shard twice": ([*whole_set(), whole_set()[2]], "repeats shard 3"),
    "a file that is no shard": (
        [*whole_set(), ("plain.gguf", read_header(MemorySource(file_bytes([unsigned("n", 1)], [tensor("z")]))))],
        "plain.gguf is not a shard",
    ),
    "a shard of a larger set": (
        [*whole_set()[:3], shard(3, 5, ("d", "e"), 5)],
        "m-00004-of-00005.gguf says 5 for split.count, but m-00001-of-00004.gguf says 4",
    ),
    "another count of tensors": ([*whole_set()[:3], shard(3, 4, ("d", "e"), 9)], "says 9 for split.tensors.count, but"),
    "another architecture": (
        [*whole_set()[:3], shard(3, 4, ("d", "e"), 5, "gpt2")],
        "is of the architecture gpt2, but m-00001-of-00004.gguf of llama",
    ),
    "a tensor twice": (
        [*whole_set()[:3], shard(3, 4, ("a", "e"), 5)],
        "has the tensor a, as m-00001-of-00004.gguf has",
    ),
    "a number beyond the count": ([*whole_set()[:3], shard(4, 4, ("d", "e"), 5)], "says that it is number 4 of 4"),
    "a negative number": (
        [*whole_set()[1:], shard(-1, 4, ("a", "b"), 5, kind=ValueType.INT32)],
        "says that it is number -1 of 4",
    ),
    "a set of no shards": ([shard(0, 0, ("a",), 1, kind=ValueType.INT32)], "number 0 of 0"),
    "a set of fewer than no shards": ([shard(0, -1, ("a",), 1, kind=ValueType.INT32)], "number 0 of -1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_set_is_reported(fault: str) -> None:
    shards, said = FAULTS[fault]
    assert any(said in reason for reason in reasons(shards))


@pytest.mark.parametrize("announced", [-1, 0, 4, 6, 2**31 - 1])
def test_a_wrong_count_of_tensors_is_reported(announced: int) -> None:
    names = [("a", "b"), ("c",), (), ("d", "e")]
    messages = reasons([shard(index, 4, tensor_names, announced) for index, tensor_names in enumerate(names)])
    assert messages == (f"m-00004-of-00004.gguf announces {announced} tensors, but with it there are 5",)


@pytest.mark.parametrize(
    ("count", "kind"),
    [
        (65_535, ValueType.UINT16),
        (99_999, ValueType.UINT32),
        (2**64 - 1, ValueType.UINT64),
        (2**63 - 1, ValueType.INT64),
    ],
)
def test_a_set_that_claims_very_many_shards_is_refused_in_a_few_words(count: int, kind: ValueType) -> None:
    messages = reasons([shard(0, count, ("a",), 1, kind=kind)])
    assert messages == (f"{count - 1} of {count} shards missing: 00002, 00003, 00004, 00005, 00006 ...",)


@pytest.mark.parametrize("count", [100, REASONS_MAX + 1, REASONS_MAX])
def test_many_wrong_shards_give_a_dozen_reasons_and_the_number_of_further_ones(count: int) -> None:
    messages = reasons([shard(200, count, (), 0) for _ in range(count)])
    more = count - REASONS_MAX
    assert len(messages) == REASONS_MAX + (1 if more else 0)
    assert (messages[-1] == f"and {more} more") == (more > 0)


def left_over(names: tuple[str, ...], announced: int | None, number: int = 0, blocks: int = 1) -> Header:
    """Return the header of a file with these tensors that says that it is one of three shards."""
    entries = [
        text("general.architecture", "llama"),
        unsigned("llama.block_count", blocks),
        KeyValue("split.no", ValueType.UINT16, number),
        KeyValue("split.count", ValueType.UINT16, 3),
    ]
    if announced is not None:
        entries.append(KeyValue("split.tensors.count", ValueType.INT32, announced))
    return read_header(MemorySource(file_bytes(entries, [tensor(f"{name}.weight") for name in names])))


WHOLE = ("token_embd", "blk.0.attn_q", "output_norm", "output")


def test_a_file_with_all_tensors_is_no_shard_whatever_its_left_over_keys_say() -> None:
    for header in (
        left_over(WHOLE, 4),
        left_over(WHOLE, 4, number=2),
        left_over(WHOLE[:3], 3),
        left_over(WHOLE, 3),
        left_over(WHOLE, None),
    ):
        assert (is_shard(header), has_left_over_keys(header)) == (False, True)


def test_the_first_shard_of_a_set_stays_a_shard() -> None:
    for header in (
        left_over(WHOLE, 5),
        left_over(WHOLE, None, number=1),
        left_over(WHOLE, None, blocks=2),
        left_over(WHOLE[:3], None),
        left_over((*WHOLE[:2], WHOLE[3]), None),
        left_over(WHOLE[1:], 2),
        left_over(WHOLE, 4, blocks=2),
        left_over((WHOLE[0], *WHOLE[2:]), 3),
        left_over(WHOLE[1:], 3, number=1),
        left_over((), 0),
    ):
        assert (is_shard(header), has_left_over_keys(header)) == (True, False)


def test_a_shard_name_is_parsed_and_written_back() -> None:
    parsed = parse_shard_name("Llama-3-8B.Q4_K-00002-of-00003.gguf")
    assert parsed == ShardName("Llama-3-8B.Q4_K", 2, 3)
    assert str(parsed) == "Llama-3-8B.Q4_K-00002-of-00003.gguf"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "model.gguf",
        "model-1-of-3.gguf",
        "model-00001-of-00003.safetensors",
        "-00001-of-00003.gguf",
        "model-00001-of-00003.gguf\n",
        "model-٠٠٠٠١-of-00003.gguf",
        "model-000001-of-000003.gguf",
    ],
)
def test_any_other_name_is_not_a_shard_name(name: str) -> None:
    assert parse_shard_name(name) is None


def test_a_hostile_name_is_rejected_in_a_short_time() -> None:
    assert parse_shard_name("-00001-of" * 50_000 + ".gguf") is None
