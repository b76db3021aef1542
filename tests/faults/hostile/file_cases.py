"""Hostile files and organ directories, by kind: each with a name, and a function that writes it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from random import Random

from organs.ingest.directory.layout import encode_head
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.gguf.types import DTYPES
from tests.faults.hostile.headers import BAD_HEADERS
from tests.gguf_files import raw_array, raw_field, raw_file, raw_tensor, raw_text

STRING, ARRAY, U32 = 8, 9, 4
ARCHITECTURE = raw_field(b"general.architecture", STRING, raw_text(b"llama"))
ONE = [raw_tensor(b"t", (8,))]

Write = Callable[[Path], None]
"""Creates the file or the folder of a case at the path; a file gets the ending `.gguf`."""
Data = tuple[str, bytes | Callable[[], bytes]]
"""The name of a case and its file, or what makes it, where it is large."""


def as_files(make: Callable[[], Iterator[Data]]) -> Callable[[], Iterator[tuple[str, Write]]]:
    """Return the cases of `make`, each with the function that writes its file."""

    def cases() -> Iterator[tuple[str, Write]]:
        for name, data in make():
            yield name, lambda path, data=data: _write(path, data)

    return cases


def _write(path: Path, data: bytes | Callable[[], bytes]) -> None:
    path.with_suffix(".gguf").write_bytes(data if isinstance(data, bytes) else data())


def _file(infos: Sequence[bytes] = ONE, data: bytes = bytes(64), fields: Sequence[bytes] = ()) -> bytes:
    """Return a file of an architecture with more fields."""
    return raw_file([ARCHITECTURE, *fields], infos, data)


def aliasing() -> Iterator[Data]:
    """Yield tensors that share bytes: the same, overlapping, nested, permuted, or with holes between them."""
    data = bytes(range(256)) * 16
    for offsets in permutations((0, 32, 64, 96), 4):
        if offsets != (0, 32, 64, 96):
            infos = [raw_tensor(b"t%d" % number, (8,), offset=offset) for number, offset in enumerate(offsets)]
            yield f"order {offsets}", _file(infos, data)
    for overlap in (0, 1, 4, 28, 31, 32, 33, 63):
        infos = [raw_tensor(b"a", (16,)), raw_tensor(b"b", (16,), offset=64 - overlap)]
        yield f"overlap of {overlap} bytes", _file(infos, data)
    for count in (2, 100, 10_000):
        infos = [raw_tensor(b"t%d" % number, (32,)) for number in range(count)]
        yield f"{count:,} tensors on the same bytes", _file(infos, data)
    nested = [raw_tensor(b"outer", (1024,)), raw_tensor(b"inner", (8,), offset=512)]
    yield "a tensor inside another", _file(nested, data)
    yield "a tensor that wraps into the header", _file([raw_tensor(b"t", (8,), offset=2**64 - 4096)], data)
    for gap in (32, 4096, 2**31, 2**40):
        infos = [raw_tensor(b"a", (8,)), raw_tensor(b"b", (8,), offset=32 + gap)]
        yield f"a hole of {gap:,} bytes", _file(infos, data)


def repeats() -> Iterator[Data]:
    """Yield the same organ, name, key or value very often."""

    def many(count: int, elements: int, value: int) -> bytes:
        size = -(-elements * 4 // 32) * 32
        infos = [raw_tensor(b"blk.%d.ffn_up.weight" % n, (elements,), offset=n * size) for n in range(count)]
        return _file(infos, bytes([value]) * (size * count))

    for count, elements, value in (
        *((1_000, 1, 0), (1_000, 1, 63), (10_000, 1, 1), (50_000, 1, 0), (65_535, 1, 64), (65_536, 1, 7)),
        *((65_537, 1, 7), (100_000, 8, 0), (20_000, 8, 63), (4_000, 64, 0), (2_000, 1024, 60), (300, 32_768, 0)),
    ):
        yield f"{count:,} tensors of {elements:,} elements of {value}", partial(many, count, elements, value)
    for count in (2, 1_000, 60_000):
        infos = [raw_tensor(b"same", (8,), offset=32 * number) for number in range(count)]
        yield f"a name {count:,} times", lambda infos=infos, count=count: _file(infos, bytes(32 * count))
        same = [raw_field(b"key", U32, bytes(4))] * count
        yield f"a key {count:,} times", lambda same=same: _file(data=bytes(32), fields=same)
    for count in (60_000, 200_000):
        keys = [raw_field(b"key.%d" % number, U32, bytes(4)) for number in range(count)]
        yield f"{count:,} keys", lambda keys=keys: _file(data=bytes(32), fields=keys)


def no_numbers() -> Iterator[Data]:
    """Yield weights of every tensor type whose bits are NaN, infinite, denormal, or as large as possible."""
    patterns = {
        "all bits set": b"\xff",
        "float16 infinity": b"\x00\x7c",
        "float32 infinity": b"\x00\x00\x80\x7f",
        "largest float16": b"\xff\x7b",
    }
    for dtype in DTYPES.values():
        elements = max(dtype.block_elements, 32) * 8
        size = dtype.size_bytes(elements)
        shape = (elements // 4, 4) if elements // 4 % dtype.block_elements == 0 else (elements,)
        for name, pattern in patterns.items():
            data = (pattern * size)[:size].ljust(-(-size // 32) * 32, b"\0")
            yield f"{dtype.name}, {name}", _file([raw_tensor(b"blk.0.ffn_up.weight", shape, dtype.id)], data)
    random = Random(5)
    for bad in ("nan", "inf", "-inf"):
        values = [random.gauss(0, 0.05) for _ in range(64 * 64)]
        values[777] = float(bad)
        data = struct.pack("<4096f", *values)
        yield f"one {bad} among 4,096 numbers", _file([raw_tensor(b"blk.0.ffn_up.weight", (64, 64))], data)


def headers() -> Iterator[Data]:
    """Yield the headers of which tests of the parser read all forms."""
    for fault, bad in BAD_HEADERS.items():
        yield fault, bad.files[0]


def nested_arrays() -> Iterator[Data]:
    """Yield arrays of arrays, and large arrays with all their bytes."""

    def array(element: int, elements: bytes, count: int, key: bytes = b"tokenizer.ggml.tokens") -> bytes:
        return _file(data=bytes(32), fields=[raw_field(key, ARRAY, raw_array(element, elements, count))])

    for depth in (1, 2, 10, 1_000, 20_000, 1_000_000):
        inner = struct.pack("<IQ", ARRAY, 1) * (depth - 1) + struct.pack("<IQI", U32, 1, 7)
        yield f"{depth:,} deep", lambda inner=inner: array(ARRAY, inner, 1, b"deep")
    yield "100,000 empty ones", array(ARRAY, struct.pack("<IQ", U32, 0) * 100_000, 100_000, b"wide")
    for name, element, size, count in (
        *(("bytes", 0, 1, 30_000_000), ("numbers", 12, 8, 3_000_000), ("flags", 7, 1, 10_000_000)),
        ("empty texts", STRING, 8, 3_000_000),
    ):
        yield f"{count:,} {name}", partial(lambda e, s, c: array(e, bytes(s * c), c), element, size, count)
    for value in (2, 255):
        yield f"flags of {value}", array(7, bytes([value]) * 8, 8, b"flags")


def lying_metadata() -> Iterator[Data]:
    """Yield valid containers with impossible metadata of the architecture, the tokenizer or the set."""
    tensors = [raw_tensor(b"blk.0.ffn_up.weight", (32, 2)), raw_tensor(b"token_embd.weight", (32, 2), offset=256)]

    def valid(key: str, kind: int, value: bytes) -> bytes:
        return _file(tensors, bytes(512), [raw_field(key.encode(), kind, value)])

    for name in (
        *("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"),
        *("attention.head_count_kv", "expert_count", "expert_used_count", "rope.dimension_count", "vocab_size"),
    ):
        for value in (0, 2**31 - 1, 2**32 - 1):
            yield f"llama.{name} is {value:,}", valid(f"llama.{name}", U32, struct.pack("<I", value))
    for kind in (*range(13), 13, 2**32 - 1):
        entry = raw_field(b"general.architecture", kind, bytes(16))
        yield f"an architecture of type {kind}", raw_file([entry], tensors, bytes(512))
    for alignment in (0, 1, 3, 13, 2**20, 2**21, 2**31):
        yield f"an alignment of {alignment:,}", valid("general.alignment", U32, struct.pack("<I", alignment))
    for key, value in (("split.count", 2**16 - 1), ("split.no", 2**16 - 1), ("split.tensors.count", 2**31 - 1)):
        kind, form = (2, "<H") if value < 2**16 else (5, "<i")
        yield f"{key} is {value:,}", valid(key, kind, struct.pack(form, value))
    for text in (
        *(b"\xff\xfe", b"a\0b", b"\x1b[2J", b"../../etc/passwd", b"A" * 60_000, "\u202egpj".encode()),
        *(b"{{7*7}}", b" "),
    ):
        entry = raw_field(b"general.architecture", STRING, raw_text(text))
        yield f"an architecture called {text[:12]!r}", raw_file([entry], tensors, bytes(512))
        yield f"a model called {text[:12]!r}", valid("general.name", STRING, raw_text(text))
        yield f"a tensor called {text[:12]!r}", _file([raw_tensor(text, (8,))], bytes(32))
    template = raw_text(b"{% for i in range(10**9) %}x{% endfor %}" * 20_000)
    yield "a chat template of 800 kB that loops", valid("tokenizer.chat_template", STRING, template)
    for block in (2**31, 2**63, 10**30):
        yield f"block {block:,}", _file([raw_tensor(b"blk.%d.ffn_up.weight" % block, (8,))], bytes(32))


LINE = {"name": "t", "file": "organs/t.bin"}
MANIFESTS: dict[str, Callable[[], str]] = {
    "no JSON": lambda: "not json",
    "empty": lambda: "",
    "a number": lambda: "7",
    "a list": lambda: "[]",
    "NaN": lambda: '{"format": "organ-directory", "version": NaN, "tensors": []}',
    "a huge number": lambda: '{"format": "organ-directory", "version": ' + "9" * 5_000 + "}",
    "100,000 deep lists": lambda: "[" * 100_000,
    "100,000 deep objects": lambda: '{"a":' * 100_000,
    "two million objects": lambda: '{"tensors": [' + "{}," * 2_000_000 + "{}]}",
    "300,000 keys": lambda: json.dumps({f"k{number}": 0 for number in range(300_000)}),
    "a string of 60 MB": lambda: '{"format": "' + "x" * 60_000_000 + '"}',
    "more than 64 MiB": lambda: " " * (65 * 1024 * 1024),
    "a lone surrogate": lambda: '{"format": "organ-directory", "version": 1, "tensors": [{"name": "\\ud800"}]}',
    "bytes that are not UTF-8": lambda: '{"format": "\udcff\udcfe"}',
}
"""Manifests that are no manifests, by their fault; created when they are written, because some are large."""
EDITS: dict[str, dict[str, object]] = {
    "a version of 99": {"version": 99},
    "tensors is null": {"tensors": None},
    "tensors is a number": {"tensors": 5},
    "a tensor is a list": {"tensors": [[]]},
    "no tensors": {"tensors": []},
    "the same tensor 1,000 times": {"tensors": [LINE] * 1_000},
    "65,537 tensors of one file": {"tensors": [{"name": f"t{n}", "file": "organs/t.bin"} for n in range(65_537)]},
    "a wrong sha256": {"tensors": [LINE | {"sha256": "0" * 64}]},
    "a sha256 that is no digest": {"tensors": [LINE | {"sha256": "zz"}]},
    "negative sizes": {"tensors": [LINE | {"size_bytes": -1, "offset_bytes": -5}]},
    "a size of 2**70": {"tensors": [LINE | {"size_bytes": 2**70}]},
    "a gguf number of -1": {"tensors": [LINE | {"gguf": -1}]},
    "a gguf number of 2**64": {"tensors": [LINE | {"gguf": 2**64}]},
    "files without a header": {"files": [{"name": "a.gguf"}] * 5_000},
    "a file called ..": {"files": [{"name": "../../a.gguf"}]},
    "metadata of 100,000 entries": {"metadata": {f"k.{n}": n for n in range(100_000)}},
    "metadata with nested lists": {"metadata": {"a": [[[[1]]]]}},
    "metadata of mixed lists": {"metadata": {"a": [1, "x", None]}},
    "an alignment of 3": {"metadata": {"general.architecture": "llama", "general.alignment": 3}},
    "measures that are text": {"tensors": [LINE | {"measures": {"theta": "ninety"}}]},
    "measures that are huge": {"tensors": [LINE | {"measures": {"theta": 1e308, "magnitude": -1e308}}]},
    "a header file that is absent": {
        "header_file": "header.bin",
        "files": [{"name": "a.gguf", "header": {"offset_bytes": 0, "size_bytes": 99}}],
    },
}
"""Values of a manifest beside a valid organ file."""
NAMES = (
    *("../outside.bin", "/etc/passwd", "C:\\x.bin", "CON.bin", "organs/../../x.bin", "a\0b.bin", "organs//t.bin"),
    *("x" * 5_000, ".", "organs"),
)


def directories() -> Iterator[tuple[str, Write]]:
    """Yield organ directories with a wrong manifest, wrong files or links."""
    for name, text in MANIFESTS.items():
        yield f"a manifest: {name}", lambda path, text=text: _manifest_text(path, text())
    for name, values in EDITS.items():
        yield name, lambda path, values=values: _good(path, **values)
    for name in NAMES:
        yield f"a file called {name[:20]!r}", lambda path, name=name: _good(path, tensors=[{"name": "t", "file": name}])
    for target in ("/etc/passwd", "itself", "/dev/zero"):
        place = "t.bin" if target == "itself" else target
        yield f"a link to {target}", lambda path, place=place: _with_file(path, lambda file: file.symlink_to(place))
    yield "a FIFO", lambda path: _with_file(path, os.mkfifo)
    yield "a tensor file of zeros, 200 MB, sparse", lambda path: _with_file(path, _sparse)
    for name, size in (("a tensor file with a head alone", 20), ("an empty tensor file", 0)):
        yield name, lambda path, size=size: _with_file(path, lambda file: _cut(file, size))
    yield "organ files that nobody names", _unnamed
    yield "folders 200 deep", lambda path: (path / "/".join("d" * 200)).mkdir(parents=True)
    yield "3,000 empty files", _empty_files
    yield "4,096 tensors of one element", lambda path: _equal_organs(path, 4_096)


def _manifest_text(path: Path, text: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "manifest.json").write_text(text, encoding="utf-8", errors="surrogateescape")


def _manifest(path: Path, **values: object) -> None:
    manifest = {"format": "organ-directory", "version": 1, "metadata": {"general.architecture": "llama"}} | values
    _manifest_text(path, json.dumps(manifest))


def _organ(path: Path, name: str, shape: tuple[int, ...] = (8,)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    spec = TensorSpec(name, shape, dtype_by_name("F32"))
    path.write_bytes(encode_head(spec) + bytes(spec.size_bytes))


def _good(path: Path, **values: object) -> None:
    """Write a directory of one organ, with other values of its manifest."""
    _organ(path / "organs" / "t.bin", "t")
    _manifest(path, **({"tensors": [LINE]} | values))


def _with_file(path: Path, make: Callable[[Path], None]) -> None:
    """Write a directory whose organ file is made by `make`."""
    (path / "organs").mkdir(parents=True)
    make(path / "organs" / "t.bin")
    _manifest(path, tensors=[LINE])


def _sparse(file: Path) -> None:
    head = encode_head(TensorSpec("t", (50_000_000,), dtype_by_name("F32")))
    file.write_bytes(head)
    os.truncate(file, len(head) + 200_000_000)


def _cut(file: Path, size: int) -> None:
    _organ(file, "t")
    os.truncate(file, size)


def _unnamed(path: Path) -> None:
    for number in range(2_000):
        _organ(path / "organs" / f"{number}.bin", f"t{number}")
    _good(path)


def _empty_files(path: Path) -> None:
    path.mkdir()
    for number in range(3_000):
        (path / f"{number}.gguf").touch()


def _equal_organs(path: Path, count: int) -> None:
    for number in range(count):
        _organ(path / "organs" / f"{number}.bin", f"blk.{number}.ffn_up.weight", (1,))
    _manifest(path, tensors=[{"name": f"blk.{n}.ffn_up.weight", "file": f"organs/{n}.bin"} for n in range(count)])


KINDS: dict[str, Callable[[], Iterator[tuple[str, Write]]]] = {
    "aliasing": as_files(aliasing),
    "repeats": as_files(repeats),
    "no numbers": as_files(no_numbers),
    "headers": as_files(headers),
    "nested arrays": as_files(nested_arrays),
    "lying metadata": as_files(lying_metadata),
    "directories": directories,
}
"""The kinds of hostile files, in their order."""
