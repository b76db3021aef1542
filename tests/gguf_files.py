"""GGUF files for tests: valid, hostile, and huge ones without bytes; and organs with a place."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from organs.registry.digest import Digest
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.gguf import (
    DType,
    Header,
    KeyValue,
    RawKeyValue,
    TensorSpec,
    ValueType,
    dtype_by_name,
    padded,
    write_file,
)
from organs.registry.measures import theta_caution

F32 = dtype_by_name("F32")


@dataclass(slots=True)
class SparseSource:
    """`front`, followed by zeros up to `size_bytes`; counts the bytes read."""

    front: bytes
    size_bytes: int
    name: str = "sparse.gguf"
    read_bytes: int = 0
    furthest: int = 0

    def read_at(self, offset: int, size: int) -> bytes:
        assert offset >= 0
        assert offset + size <= self.size_bytes, "read beyond the end"
        self.read_bytes += size
        self.furthest = max(self.furthest, offset + size)
        return self.front[offset : offset + size].ljust(size, b"\0")


def raw_text(text: bytes, size: int | None = None) -> bytes:
    """Return a GGUF string; `size` is its claimed length."""
    return struct.pack("<Q", len(text) if size is None else size) + text


def raw_field(key: bytes, value_type: int, value: bytes) -> bytes:
    """Return a metadata entry with an encoded value."""
    return raw_text(key) + struct.pack("<I", value_type) + value


def raw_array(element_type: int, elements: bytes, count: int) -> bytes:
    """Return the value of an array entry that claims `count` elements."""
    return struct.pack("<IQ", element_type, count) + elements


def raw_tensor(
    name: bytes, shape: Sequence[int] = (1,), dtype_id: int = 0, offset: int = 0, dimensions: int | None = None
) -> bytes:
    """Return a tensor info; `dimensions` is the claimed number of dimensions."""
    count = len(shape) if dimensions is None else dimensions
    return raw_text(name) + struct.pack(f"<I{len(shape)}QIQ", count, *shape, dtype_id, offset)


def raw_header(
    fields: Iterable[bytes] = (),
    tensors: Iterable[bytes] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    field_count: int | None = None,
    tensor_count: int | None = None,
) -> bytes:
    """Return a header without its padding, with the claimed counts."""
    entries, infos = list(fields), list(tensors)
    counts = (
        len(infos) if tensor_count is None else tensor_count,
        len(entries) if field_count is None else field_count,
    )
    return magic + struct.pack("<IQQ", version, *counts) + b"".join(entries) + b"".join(infos)


def raw_file(
    fields: Iterable[bytes] = (), tensors: Iterable[bytes] = (), data: bytes = b"", alignment: int = 32
) -> bytes:
    """Return a header, its padding and `data`."""
    header = raw_header(fields, tensors)
    return header.ljust(padded(len(header), alignment), b"\0") + data


def file_bytes(
    metadata: Iterable[KeyValue | RawKeyValue] = (),
    tensors: Sequence[tuple[TensorSpec, bytes]] = (),
    alignment: int = 32,
) -> bytes:
    """Return a complete valid file of our own writer."""
    stream = io.BytesIO()
    size = write_file(stream, metadata, tensors, alignment)
    assert size == stream.tell()
    return stream.getvalue()


def tensor(name: str, shape: tuple[int, ...] = (4,), dtype: DType = F32) -> tuple[TensorSpec, bytes]:
    """Return a tensor with its own byte pattern, so that a mix-up is detected."""
    spec = TensorSpec(name, shape, dtype)
    seed = sum(name.encode()) % 251
    pattern = bytes((seed + step) % 256 for step in range(256))
    return spec, (pattern * (spec.size_bytes // 256 + 1))[: spec.size_bytes]


def text(key: str, value: str | bytes) -> KeyValue:
    return KeyValue(key, ValueType.STRING, value)


def unsigned(key: str, value: int, kind: ValueType = ValueType.UINT32) -> KeyValue:
    return KeyValue(key, kind, value)


def array(key: str, element_type: ValueType, values: Sequence[int] | Sequence[float] | Sequence[bytes]) -> KeyValue:
    return KeyValue(key, ValueType.ARRAY, values, element_type)


def every_value_type() -> list[KeyValue]:
    """Return one entry of each scalar type and one array of each element type, with the limits of their ranges."""
    extremes: dict[ValueType, tuple[int, int]] = {
        ValueType.UINT8: (0, 2**8 - 1),
        ValueType.INT8: (-(2**7), 2**7 - 1),
        ValueType.UINT16: (0, 2**16 - 1),
        ValueType.INT16: (-(2**15), 2**15 - 1),
        ValueType.UINT32: (0, 2**32 - 1),
        ValueType.INT32: (-(2**31), 2**31 - 1),
        ValueType.UINT64: (0, 2**64 - 1),
        ValueType.INT64: (-(2**63), 2**63 - 1),
    }
    entries = [KeyValue(f"scalar.{kind.name.lower()}", kind, high) for kind, (_, high) in extremes.items()]
    entries += [array(f"array.{kind.name.lower()}", kind, (low, high)) for kind, (low, high) in extremes.items()]
    entries += [
        KeyValue("scalar.float32", ValueType.FLOAT32, 1.5),
        KeyValue("scalar.float64", ValueType.FLOAT64, -0.1),
        KeyValue("scalar.bool", ValueType.BOOL, value=True),
        text("scalar.string", "Grüße, 世界"),
        array("array.float32", ValueType.FLOAT32, (0.25, -1e38)),
        array("array.float64", ValueType.FLOAT64, (0.1, 1e308)),
        array("array.bool", ValueType.BOOL, (True, False, True)),
        array("array.string", ValueType.STRING, (b"a", b"", "世界".encode())),
    ]
    return entries


def vocabulary(count: int) -> list[bytes]:
    """Return `count` different tokens; every 97th is not UTF-8 and every 1,009th has a NUL."""
    return [
        b"%d\xff\xfe" % index if index % 97 == 0 else b"%d\0" % index if index % 1009 == 0 else b"\xc4\xa0tok%d" % index
        for index in range(count)
    ]


def assert_invariants(header: Header) -> None:
    """Assert the invariants of `Header`: every tensor inside the file, contiguous, in listing order; unique names and
    keys.
    """
    assert header.version in (2, 3)
    assert header.alignment & (header.alignment - 1) == 0
    assert 0 < header.end <= header.file_size_bytes
    assert header.data_offset == padded(header.end, header.alignment)
    expected = 0
    for info in header.tensors:
        assert 1 <= len(info.shape) <= 4
        assert min(info.shape) >= 1
        assert info.shape[0] % info.dtype.block_elements == 0 or info.dtype.is_foreign
        assert info.offset == expected
        expected += padded(info.size_bytes, header.alignment)
    assert header.last_byte <= header.file_size_bytes <= padded(header.last_byte, header.alignment)
    assert len({info.name for info in header.tensors}) == len(header.tensors)
    assert len({field.key for field in header.fields}) == len(header.fields)
    for field in header.fields:
        assert 24 < field.offset <= field.offset + field.size_bytes <= header.end


def placed_organ(
    slot: str,
    block: int | None = 0,
    kind: str = "organ",
    tower: str = "text",
    *,
    theta: float | None = 40.0,
    dtype: str = "F16",
    shape: tuple[int, ...] = (64, 64),
) -> PlacedOrgan:
    """Return an organ at a place, as in a search result."""
    return PlacedOrgan(
        digest=Digest("d" * 64),
        model="local/tuned@1",
        name=f"{tower} {block} {slot}",
        type=kind,
        tower=tower,
        block=block,
        slot=slot,
        dtype=dtype,
        shape=shape,
        size_bytes=100,
        theta=theta,
        magnitude=None,
        signal=None,
        spectral_signal=0.5,
        stable_rank=None,
        architecture=None,
        license=None,
        nonfinite=0,
        theta_caution=theta_caution(theta, dtype, math.prod(shape)),
    )


def importance_file(matrix: Mapping[str, NDArray[np.float32]], count: int = 8) -> bytes:
    """Return an importance matrix as llama.cpp writes it: sums of squares and counts of each weight."""
    tensors = []
    for name, values in matrix.items():
        matrices = np.atleast_2d(values)
        counts = np.full(len(matrices), count, np.float32)
        shape = (matrices.shape[1], len(matrices))
        tensors.append((TensorSpec(f"{name}.in_sum2", shape, F32), (matrices * np.float32(count)).tobytes()))
        tensors.append((TensorSpec(f"{name}.counts", (1, len(matrices)), F32), counts.tobytes()))
    return file_bytes([text("general.type", "imatrix")], tensors)


def importance_records(matrix: Mapping[str, NDArray[np.float32]], count: int = 8) -> bytes:
    """Return an importance matrix in the former format of llama.cpp."""
    records = [struct.pack("<i", len(matrix))]
    for name, values in matrix.items():
        sums = (values.reshape(-1) * np.float32(count)).tobytes()
        records += [struct.pack("<i", len(name)), name.encode(), struct.pack("<ii", count, values.size), sums]
    return b"".join(records) + struct.pack("<ii", 8, 5) + b"texts"
