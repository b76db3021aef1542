"""Tests of new files from a model's tensors: one file from shards, or shards of a size. Only headers are new."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from organs.registry.assembly import (
    FilePlan,
    place_file,
    plan_merged,
    plan_shards,
)
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.digest import digest_of
from organs.registry.errors import NotAssemblable
from organs.registry.gguf import (
    Header,
    KeyValue,
    MemorySource,
    RawKeyValue,
    ValueType,
    read_header,
)
from organs.registry.gguf import (
    split as shards,
)
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.gguf_files import every_value_type, file_bytes, tensor, text, unsigned
from tests.small_models import assemble_model, block_tensors, ingest_file, small_model

Contents = tuple[Header, dict[str, bytes]]


def registered(registry: LocalRegistry, folder: Path, data: bytes, name: str = "a.gguf") -> None:
    (folder / name).write_bytes(data)
    ingest_file(registry, folder / name)


def shards_of(registry: LocalRegistry, size_bytes: int, name: str = "a", stem: str = "new") -> list[FilePlan]:
    with registry.catalog.reading() as session:
        row = model_by_name(session, parse_model_name(name))
        return plan_shards(session, registry.blobs, row, stem, size_bytes)


def merged_of(registry: LocalRegistry, name: str = "a") -> list[FilePlan]:
    with registry.catalog.reading() as session:
        return plan_merged(session, registry.blobs, model_by_name(session, parse_model_name(name)), "merged.gguf")


def written(registry: LocalRegistry, plans: Sequence[FilePlan], folder: Path) -> list[Contents]:
    """Return the files of `plans`, written and read again."""
    folder.mkdir(exist_ok=True)
    files = []
    for plan in plans:
        place_file(registry.blobs, plan, folder / plan.name)
        data = (folder / plan.name).read_bytes()
        assert len(data) == plan.size_bytes
        header = read_header(MemorySource(data, plan.name))
        begins = {info.name: (header.data_offset + info.offset, info.size_bytes) for info in header.tensors}
        files.append((header, {name: data[begin : begin + size] for name, (begin, size) in begins.items()}))
    return files


def values(header: Header) -> list[tuple[str, object]]:
    return [(field.key, field.value) for field in header.fields]


TENSORS = [tensor(f"blk.{index}.attn_q.weight", (24,)) for index in range(7)]
"""96 bytes each; 96 if padded to 32, 128 if padded to 64."""
METADATA: list[KeyValue | RawKeyValue] = [text("general.architecture", "llama"), *every_value_type()]


@pytest.mark.parametrize(
    ("size_bytes", "alignment", "expected"),
    [
        (96, 32, [1] * 7),
        (192, 32, [2, 2, 2, 1]),
        (300, 1, [3, 3, 1]),
        (3 * 128, 64, [3, 3, 1]),
        (1, 4096, [1] * 7),
        (671, 32, [6, 1]),
    ],
)
def test_shards_are_filled_in_order_up_to_the_size(
    size_bytes: int, alignment: int, expected: list[int], registry: LocalRegistry, tmp_path: Path
) -> None:
    registered(registry, tmp_path, file_bytes(METADATA, TENSORS, alignment))
    plans = shards_of(registry, size_bytes)
    count = len(expected)
    assert [plan.name for plan in plans] == [f"new-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    contents = written(registry, plans, tmp_path / "out")
    assert [len(header.tensors) for header, _ in contents] == expected
    assert {header.alignment for header, _ in contents} == {alignment}
    together = {name: data for _, tensors in contents for name, data in tensors.items()}
    assert together == {spec.name: data for spec, data in TENSORS}
    assert list(together) == [spec.name for spec, _ in TENSORS]


def test_a_single_file_that_fits_into_one_shard_stays_that_file(registry: LocalRegistry, tmp_path: Path) -> None:
    data = file_bytes(METADATA, TENSORS)
    registered(registry, tmp_path, data)
    for plans in (shards_of(registry, 672), merged_of(registry)):
        (plan,) = plans
        assert plan.sha256 == digest_of(data)
        ((header, _),) = written(registry, [plan], tmp_path / "out")
        assert header.field("split.count") is None


def test_a_set_that_would_have_too_many_shards_is_refused(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(registry, tmp_path, file_bytes(METADATA, TENSORS))
    assert shards.SHARDS_MAX == 2**16 - 1, "what split.count can say"
    monkeypatch.setattr(shards, "SHARDS_MAX", 6)
    with pytest.raises(NotAssemblable, match="7 shards"):
        shards_of(registry, 96)


def test_left_over_keys_of_a_split_are_in_the_file_and_not_in_the_merged_one(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    tensors = block_tensors(2)
    numbers = zip(shards.SPLIT_KEYS, (0, 3, len(tensors)), strict=True)
    data = small_model(more=[KeyValue(key, ValueType.UINT16, value) for key, value in numbers])
    registered(registry, tmp_path, data)
    assert [path.read_bytes() for path in assemble_model(registry, "a", tmp_path / "out")] == [data]
    ((header, merged),) = written(registry, merged_of(registry), tmp_path / "merged")
    assert values(header) == values(read_header(MemorySource(small_model())))
    assert merged == {spec.name: data for spec, data in tensors}
    with registry.catalog.reading() as session:
        (flag,) = model_by_name(session, parse_model_name("a")).flags
    assert "--merge" in flag


def test_odd_padding_and_an_old_version_are_written_in_the_current_form(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    odd, data = tensor("odd", (3,))
    file = bytearray(file_bytes(METADATA, [*TENSORS, (odd, data)])[:-20])  # without the padding at its end
    file[4] = 2  # the version
    registered(registry, tmp_path, bytes(file))
    contents = written(registry, shards_of(registry, 1), tmp_path / "out")
    assert {header.version for header, _ in contents} == {3}
    assert contents[-1][1]["odd"] == data
    assert all(header.file_size_bytes % 32 == 0 for header, _ in contents)


def test_an_alignment_stated_only_by_the_first_shard_applies_to_the_merged_file(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    for number, alignment in ((0, 64), (1, 32)):
        split = [
            unsigned("split.no", number, ValueType.UINT16),
            unsigned("split.count", 2, ValueType.UINT16),
            KeyValue("split.tensors.count", ValueType.INT32, 2),
        ]
        data = file_bytes(split, [tensor(f"blk.{number}.attn_q.weight", (24,))], alignment)
        (tmp_path / f"m-{number + 1:05d}-of-00002.gguf").write_bytes(data)
    ingest_file(registry, tmp_path / "m-00001-of-00002.gguf")
    ((header, tensors),) = written(registry, merged_of(registry, "m"), tmp_path / "out")
    assert header.alignment == 64
    assert len(tensors) == 2
