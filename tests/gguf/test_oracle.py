"""Tests against the `gguf` package: each reads the files of the other with equal values."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from organs.registry.gguf import MemorySource, ValueType, dtype_by_id, read_array, read_header
from organs.registry.gguf.header import Field, Header
from organs.registry.gguf.read import scalar_format
from organs.registry.gguf.split import check_split, parse_shard_name
from organs.registry.gguf.types import DTYPES, big_endian
from tests.gguf_files import array, assert_invariants, every_value_type, file_bytes, tensor, text, unsigned, vocabulary

ALIGNMENTS = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
QUANT_TYPES = list(gguf.GGML_QUANT_SIZES)

Fill = Callable[[Any], None]


def written_by_gguf(path: Path, fill: Fill, alignment: int | None = None, *, is_big_endian: bool = False) -> bytes:
    """Return the bytes of a file of the package's writer."""
    order = gguf.GGUFEndian.BIG if is_big_endian else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def assert_equal_to_reader(data: bytes, path: Path) -> Header:
    """Assert that our reader and the package agree in every entry, every tensor and every byte of `data`."""
    path.write_bytes(data)
    source = MemorySource(data)
    header = read_header(source)
    assert_invariants(header)
    reader = gguf.GGUFReader(path)
    theirs = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert [field.key for field in header.fields] == list(theirs)
    for field in header.fields:
        assert plain(source, field) == plain_of_reader(theirs[field.key]), field.key
    assert header.data_offset == reader.data_offset
    assert len(header.tensors) == len(reader.tensors)
    for ours, other in zip(header.tensors, reader.tensors, strict=True):
        assert ours.name == other.name
        assert list(ours.shape) == other.shape.tolist()
        other_dtype = dtype_by_id(int(other.tensor_type))
        assert ours.dtype == (big_endian(other_dtype) if header.is_big_endian else other_dtype)
        begin = header.data_offset + ours.offset
        assert begin == other.data_offset
        assert data[begin : begin + ours.size_bytes] == other.data.tobytes()
    return header


def plain(source: MemorySource, field: Field) -> tuple[list[int], list[bytes]]:
    """Return the types and encoded values of one of our fields; strings without their lengths."""
    if field.is_array:
        assert field.element_type is not None
        kinds = [field.type, field.element_type][: 2 if field.count else 1]
        values = read_array(source, field)
        return [int(kind) for kind in kinds], [
            value
            if isinstance(value, bytes)
            else struct.pack(scalar_format(field.element_type, field.is_big_endian), value)
            for value in values
        ]
    return [int(field.type)], [source.read_at(field.offset, field.size_bytes)]


def plain_of_reader(field: Any) -> tuple[list[int], list[bytes]]:
    return [int(kind) for kind in field.types], [field.parts[index].tobytes() for index in field.data]


@pytest.mark.parametrize("kind", QUANT_TYPES, ids=lambda kind: str(kind.name))
def test_a_tensor_of_every_dtype_is_read_by_the_gguf_package_as_we_wrote_it(kind: Any, tmp_path: Path) -> None:
    dtype = DTYPES[kind.value]
    block = dtype.block_elements
    shapes = [(block * 2, 3), (block, 2, 3), (block,), (block, 1, 2, 2)]
    data = file_bytes([], [tensor(f"t{index}", shape, dtype) for index, shape in enumerate(shapes)])
    assert_equal_to_reader(data, tmp_path / "ours.gguf")


def test_a_big_endian_file_is_read_as_the_gguf_package_wrote_it(tmp_path: Path) -> None:
    def fill(writer: Any) -> None:
        writer.add_uint32("llama.block_count", 2)
        writer.add_float32("llama.rope.freq_base", 10_000.0)
        writer.add_array("a.numbers", [1, 2, 3])
        writer.add_token_list(["<s>", "caf\u00e9", "x" * 300])
        writer.add_tensor("output_norm.weight", np.arange(5, dtype=np.float32))
        writer.add_tensor("output.weight", np.arange(64, dtype=np.float16).reshape(2, 32))

    data = written_by_gguf(tmp_path / "theirs.gguf", fill, is_big_endian=True)
    header = assert_equal_to_reader(data, tmp_path / "again.gguf")
    assert (header.integer("llama.block_count"), header.field("llama.rope.freq_base").value) == (2, 10_000.0)
    assert [tensor.dtype.name for tensor in header.tensors] == ["F32_BE", "F16_BE"]


EMPTY_ARRAYS = [array(f"empty.{kind.name}", kind, []) for kind in ValueType if kind is not ValueType.ARRAY]
ODD_TENSORS = [tensor("a", (5,)), tensor("b", (3, 3))]
OLD_VERSION = file_bytes(every_value_type(), ODD_TENSORS)
UNPADDED = file_bytes([], ODD_TENSORS)
OURS = {
    **{f"alignment {one}": file_bytes([], [tensor("a", (1,)), tensor("b", (700,))], one) for one in ALIGNMENTS},
    "every type of value": file_bytes([*every_value_type(), *EMPTY_ARRAYS], [tensor("a")]),
    "tokens that are not UTF-8": file_bytes([array("tokenizer.ggml.tokens", ValueType.STRING, vocabulary(3000))]),
    "no tensors": file_bytes(),
    "a key of the maximum length": file_bytes([unsigned("k" * 65_535, 5)]),
    "an alignment behind others": file_bytes([unsigned("n", 1), unsigned("general.alignment", 64)], ODD_TENSORS, 64),
    "keys with hyphens": file_bytes(
        [text("general.architecture", "command-r"), unsigned("command-r.context_length", 9)]
    ),
    "version 2": OLD_VERSION[:4] + b"\2\0\0\0" + OLD_VERSION[8:],
    "no padding at the end": UNPADDED[: read_header(MemorySource(UNPADDED)).last_byte],
}


@pytest.mark.parametrize("name", OURS)
def test_our_file_is_read_by_the_gguf_package_with_equal_values(name: str, tmp_path: Path) -> None:
    assert_equal_to_reader(OURS[name], tmp_path / "ours.gguf")


def test_a_set_that_the_gguf_package_split_is_read_as_one_model(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2)
    for index in range(5):
        writer.add_tensor(f"blk.{index}.ffn_up.weight", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("model-*.gguf"), reverse=True)
    shards = [(path.name, read_header(MemorySource(path.read_bytes()))) for path in paths]
    assert [str(parse_shard_name(path.name)) for path in paths] == [path.name for path in paths]
    order = check_split("model", shards)
    assert order == (2, 1, 0)
    names = [info.name for index in order for info in shards[index][1].tensors]
    assert names == [f"blk.{index}.ffn_up.weight" for index in range(5)]
