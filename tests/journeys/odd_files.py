"""GGUF files of every legal kind, from an empty header to a vocabulary of 152,000 tokens."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable

import gguf
import numpy as np

from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_id, padded
from organs.registry.gguf.types import ALIGNMENT_MAX, DTYPES
from tests.gguf_files import (
    array,
    every_value_type,
    file_bytes,
    raw_field,
    raw_file,
    raw_tensor,
    raw_text,
    tensor,
    text,
    unsigned,
    vocabulary,
)
from tests.small_models import small_model, token_array, weight_tensor

ARCHITECTURE = text("general.architecture", "llama")
ODD_NAMES = (
    "../../x",
    "/etc/passwd",
    "C:\\x",
    "CON",
    "con.weight",
    ".",
    "..",
    ".weight",
    "a.b",
    "a_b",
    "A.B",
    " ",
    "%s",
)


def block_bytes(dtype_id: int, elements: int, seed: int) -> bytes:
    """Bytes of a tensor type: numbers for floats, anything at all for the others, as no block is invalid."""
    dtype = dtype_by_id(dtype_id)
    random_numbers = np.random.default_rng([seed, dtype_id])
    values = random_numbers.standard_normal(elements)
    floats = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
    if dtype.name in floats:
        return values.astype(floats[dtype.name]).tobytes()
    if dtype.name == "BF16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return random_numbers.bytes(dtype.size_bytes(elements))


def large_vocabulary(seed: int = 0) -> bytes:
    """A file with 152,000 tokens, some of them not UTF-8, their merges, and one tensor."""
    tokens = vocabulary(152_000)
    merges = [b"%b %b" % (tokens[index], tokens[-index]) for index in range(1, 151_001)]
    entries = [
        ARCHITECTURE,
        token_array(tokens),
        array("tokenizer.ggml.token_type", ValueType.INT32, [1 + index % 5 for index in range(152_000)]),
        token_array(merges, "merges"),
        text("tokenizer.chat_template", "{{ messages }}" * 10_000),
    ]
    return file_bytes(entries, [weight_tensor("token_embd.weight", (64, 96), seed=seed)])


def _aligned(alignment: int) -> bytes:
    return file_bytes([ARCHITECTURE], [tensor("a", (5,)), tensor("b", (31,)), tensor("c", (1,))], alignment)


def _cut_padding(alignment: int, kept: int) -> bytes:
    whole = file_bytes([ARCHITECTURE], [tensor("a", (5,)), tensor("b", (3,))], alignment)
    return whole[: len(whole) - padded(12, alignment) + 12 + kept]


def _odd_padding(alignment: int = 64) -> bytes:
    data = bytearray(file_bytes([ARCHITECTURE], [tensor("a", (5,)), tensor("b", (8,)), tensor("c", (3,))], alignment))
    begin = len(data) - 3 * alignment
    for offset in (begin - 1, begin + 20, begin + 63, begin + 2 * 64 + 12, begin + 3 * 64 - 1):
        assert data[offset] == 0
        data[offset] = 0xAB
    return bytes(data)


def _random_padding() -> bytes:
    data = bytearray(file_bytes([ARCHITECTURE], [tensor("a", (5,))], ALIGNMENT_MAX))
    data[-(ALIGNMENT_MAX - 20) :] = random.Random(0).randbytes(ALIGNMENT_MAX - 20)
    return bytes(data)


def _without_tensors(tail: str, alignment: int) -> bytes:
    entries = [ARCHITECTURE, unsigned("general.alignment", alignment), text("odd", "length")]
    whole, bare = (raw_file([entry.encode() for entry in entries], alignment=size) for size in (alignment, 1))
    end = len(bare)
    assert len(whole) > end
    middle = (end + len(whole)) // 2
    return {"none": whole[:end], "half": whole[:middle], "noise": whole[:-1] + b"\xff"}[tail]


def _every_dtype(data: Callable[[TensorSpec], bytes]) -> bytes:
    specs = [TensorSpec(f"blk.{one.id}.ffn_down.weight", (2 * one.block_elements, 3), one) for one in DTYPES.values()]
    return file_bytes([ARCHITECTURE], [(spec, data(spec)) for spec in specs])


def _every_value() -> bytes:
    fields = [
        *(entry.encode() for entry in every_value_type()),
        ARCHITECTURE.encode(),
        raw_field(b"odd.nan", ValueType.FLOAT32, b"\x01\x00\xa0\x7f"),
        raw_field(b"odd.bool", ValueType.BOOL, b"\x17"),
        KeyValue("odd.inf", ValueType.FLOAT64, float("-inf")).encode(),
        raw_field(b"odd.text", ValueType.STRING, raw_text(b"a\0\xff\0")),
    ]
    return raw_file(fields, [raw_tensor(b"a", (8,))], bytes(range(32)))


def _odd_keys() -> bytes:
    keys = ["command-r.context_length", "UPPER.case", "spaces in it", "~!@#$%^&*()", "x" * 65_535]
    entries = [text("general.architecture", "command-r"), *(unsigned(key, 1) for key in keys)]
    return file_bytes(entries, [tensor("a")])


def _several_chunks() -> bytes:
    values = (0.02 * np.random.default_rng(0).standard_normal(5_000_000)).astype(np.float16)
    large = TensorSpec("output.weight", (1_000, 5_000), dtype_by_id(1))
    return file_bytes([ARCHITECTURE], [tensor("a.weight", (7,)), (large, values.tobytes()), tensor("b.weight", (3,))])


def _named(names: Iterable[str]) -> bytes:
    return file_bytes([ARCHITECTURE], [tensor(name) for name in names])


ODD_FILES: dict[str, Callable[[], bytes]] = {
    "little": small_model,
    **{f"alignment {size}": lambda size=size: _aligned(size) for size in (1, 2, 8, 16, 128, 4096, ALIGNMENT_MAX)},
    **{f"no padding at the end, alignment {size}": lambda size=size: _cut_padding(size, 0) for size in (8, 32, 4096)},
    **{f"{kept} bytes of padding at the end": lambda kept=kept: _cut_padding(32, kept) for kept in (1, 7, 19)},
    "padding that is not zero": _odd_padding,
    "a mebibyte of random padding": _random_padding,
    "no tensors": lambda: file_bytes([ARCHITECTURE]),
    **{
        f"no tensors, alignment {size}, padding: {tail}": lambda size=size, tail=tail: _without_tensors(tail, size)
        for size in (8, 4096)
        for tail in ("none", "half", "noise")
    },
    "a header of 24 bytes": lambda: b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
    "a vocabulary alone": lambda: file_bytes(
        [ARCHITECTURE, token_array(vocabulary(5_000)), array("tokenizer.ggml.scores", ValueType.FLOAT32, [0.1] * 5_000)]
    ),
    "every tensor type": lambda: _every_dtype(lambda spec: block_bytes(spec.dtype.id, spec.elements, 7)),
    "zeros of every tensor type": lambda: _every_dtype(lambda spec: bytes(spec.size_bytes)),
    "unknown tensor types": lambda: raw_file(
        [], [raw_tensor(b"a", (256,), 156), raw_tensor(b"b", (9,), 4, 128)], bytes(178)
    ),
    "every type of value, and numbers that are not finite": _every_value,
    "keys with every sign": _odd_keys,
    "texts of odd bytes": lambda: file_bytes(
        [text("a", b"\xff\0\xfe"), text("b", "\u202e\n\0"), ARCHITECTURE], [tensor("a")]
    ),
    "a long text": lambda: file_bytes([text("chat", "x" * 200_000), ARCHITECTURE], [tensor("a")]),
    "names that are trouble as paths": lambda: _named([*ODD_NAMES, "'; DROP TABLE organs; --"]),
    "long names": lambda: _named(["blk.0." + "x" * 121, "y" * 127]),
    "version 2": lambda: small_model().replace(b"GGUF\3", b"GGUF\2", 1),
    "equal organs": lambda: file_bytes([ARCHITECTURE], [(tensor(f"blk.{n}.a")[0], bytes(16)) for n in range(40)]),
    "a tensor of several chunks": _several_chunks,
}


def file_of_every_type(path: str) -> dict[str, tuple[gguf.GGMLQuantizationType, bytes]]:
    """Write a file with a tensor of each type by the gguf package to `path`; return types and bytes by name."""
    writer = gguf.GGUFWriter(path, "llama")
    written = {}
    for kind, (block_elements, _) in gguf.GGML_QUANT_SIZES.items():
        data = block_bytes(int(kind), 16 * block_elements * 40, 0)
        raw = np.frombuffer(data, np.uint8).reshape(40, -1)
        name = f"blk.{int(kind)}.ffn_up.weight"
        writer.add_tensor(name, raw, raw_shape=raw.shape, raw_dtype=kind)
        written[name] = (kind, data)
    write(writer)
    return written


def write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
