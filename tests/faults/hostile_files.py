"""Three hundred hostile files and organ directories, by command line and by upload: `make hostile-files`.

Each case is ingested by its own process and pushed to a running server. Every process must end within SECONDS_MAX, stay
below MEMORY_MAX_BYTES, print no traceback, and exit with 0, or with 1 and a message. Afterwards a valid model must
still be accepted, and `organ verify --read-data` must find no fault.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import psutil

from organs.ingest.directory.layout import encode_head
from organs.registry.errors import ERRORS
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.gguf.types import DTYPES
from organs.registry.local import LocalRegistry
from organs.registry.upload_limits import OPEN_SUBMISSIONS_MAX
from tests import postgres
from tests.gguf_files import raw_array, raw_field, raw_file, raw_header, raw_tensor, raw_text
from tests.small_models import small_model
from tests.web.accounts import new_token
from tests.web.live_server import ROOT, LiveServer, start_server, stop_server

SECONDS_MAX = 10.0
MEMORY_MAX_BYTES = 600 * 1000**2
STOPPED_SECONDS = 120.0
"""After this time (seconds) a process is killed."""
WATCH_SECONDS = 0.02
SHOWN_MAX = 60

STRING, ARRAY, U32, U64, F32 = 8, 9, 4, 10, 6
ARCHITECTURE = raw_field(b"general.architecture", STRING, raw_text(b"llama"))


@dataclass(frozen=True, slots=True)
class Case:
    """A hostile case: `write` creates a file or a folder at the given path."""

    kind: str
    name: str
    write: Callable[[Path], None]


@dataclass(slots=True)
class Result:
    """The result of one process."""

    status: int | None
    output: str
    seconds: float
    peak_bytes: int

    def faults(self) -> Iterator[str]:
        """Return the faults of the process."""
        if "Traceback" in self.output:
            yield f"traceback: {self.output[-600:]}"
        if self.status not in (0, *{kind.exit_code for kind in ERRORS.values()}):
            yield f"status {self.status}: {self.output[-300:]}"
        if self.status != 0 and not self.output.strip():
            yield "failed without a sentence"
        if self.seconds > SECONDS_MAX:
            yield f"took {self.seconds:.1f} s"
        if self.peak_bytes > MEMORY_MAX_BYTES:
            yield f"took {self.peak_bytes / 1e6:.0f} MB"


@dataclass(slots=True)
class Summary:
    """The results of all processes of one way."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")

    def add(self, case: Case, result: Result) -> None:
        label = f"{case.kind}: {case.name}"
        self.outcomes["accepted" if result.status == 0 else "refused"] += 1
        self.faults += [f"{label}: {fault}" for fault in result.faults()]
        self.slowest = max(self.slowest, (result.seconds, label))
        self.largest = max(self.largest, (result.peak_bytes, label))


# --- files ---


def _file(kind: str, name: str, data: bytes | Callable[[], bytes]) -> Case:
    def write(path: Path) -> None:
        path.with_suffix(".gguf").write_bytes(data if isinstance(data, bytes) else data())

    return Case(kind, name, write)


def _tensors(infos: Sequence[bytes], data: bytes, fields: Sequence[bytes] = (ARCHITECTURE,)) -> bytes:
    return raw_file(fields, infos, data)


def aliasing() -> Iterator[Case]:
    """Yield tensors that share bytes: the same, overlapping, nested, permuted, or with holes between them."""
    data = bytes(range(256)) * 16
    for offsets in permutations((0, 32, 64, 96), 4):
        if offsets != (0, 32, 64, 96):
            infos = [raw_tensor(b"t%d" % number, (8,), offset=offset) for number, offset in enumerate(offsets)]
            yield _file("aliasing", f"order {offsets}", _tensors(infos, data))
    for overlap in (0, 1, 4, 28, 31, 32, 33, 63):
        infos = [raw_tensor(b"a", (16,)), raw_tensor(b"b", (16,), offset=64 - overlap)]
        yield _file("aliasing", f"overlap of {overlap} bytes", _tensors(infos, data))
    for count in (2, 100, 10_000):
        infos = [raw_tensor(b"t%d" % number, (32,)) for number in range(count)]
        yield _file("aliasing", f"{count:,} tensors on the same bytes", lambda infos=infos: _tensors(infos, data))
    nested = [raw_tensor(b"outer", (1024,)), raw_tensor(b"inner", (8,), offset=512)]
    yield _file("aliasing", "a tensor inside another", _tensors(nested, data))
    header = [raw_tensor(b"t", (8,), offset=2**64 - 4096)]
    yield _file("aliasing", "a tensor that wraps into the header", _tensors(header, data))
    for gap in (32, 4096, 2**31, 2**40):
        infos = [raw_tensor(b"a", (8,)), raw_tensor(b"b", (8,), offset=32 + gap)]
        yield _file("aliasing", f"a hole of {gap:,} bytes", _tensors(infos, data))


def repeats() -> Iterator[Case]:
    """Yield the same organ, name, key or value very often."""

    def many(count: int, elements: int, value: int) -> bytes:
        size = -(-elements * 4 // 32) * 32
        infos = [
            raw_tensor(f"blk.{number}.ffn_up.weight".encode(), (elements,), offset=number * size)
            for number in range(count)
        ]
        return _tensors(infos, bytes([value]) * (size * count))

    for count, elements, value in (
        *((1_000, 1, 0), (1_000, 1, 63), (10_000, 1, 1), (50_000, 1, 0), (65_535, 1, 64), (65_536, 1, 7)),
        *((65_537, 1, 7), (100_000, 8, 0), (20_000, 8, 63), (4_000, 64, 0), (2_000, 1024, 60), (300, 32_768, 0)),
    ):
        name = f"{count:,} tensors of {elements:,} elements of {value}"
        yield _file("repeats", name, lambda c=count, e=elements, v=value: many(c, e, v))
    for count in (2, 1_000, 60_000):
        infos = [raw_tensor(b"same", (8,), offset=32 * number) for number in range(count)]
        yield _file("repeats", f"a name {count:,} times", lambda infos=infos, c=count: _tensors(infos, bytes(32 * c)))
        fields = [ARCHITECTURE, *(raw_field(b"key", U32, bytes(4)) for _ in range(count))]
        yield _file(
            "repeats", f"a key {count:,} times", lambda f=fields: _tensors([raw_tensor(b"t", (8,))], bytes(32), f)
        )
    for count in (60_000, 200_000):
        fields = [ARCHITECTURE, *(raw_field(b"key.%d" % number, U32, bytes(4)) for number in range(count))]
        yield _file("repeats", f"{count:,} keys", lambda f=fields: _tensors([raw_tensor(b"t", (8,))], bytes(32), f))


def no_numbers() -> Iterator[Case]:
    """Yield weights of every tensor type whose bits are NaN, infinite, denormal, or as large as possible."""
    patterns = {
        "all bits set": lambda size: b"\xff" * size,
        "float16 infinity": lambda size: (b"\x00\x7c" * size)[:size],
        "float32 infinity": lambda size: (b"\x00\x00\x80\x7f" * size)[:size],
        "largest float16": lambda size: (b"\xff\x7b" * size)[:size],
    }
    for dtype in DTYPES.values():
        elements = max(dtype.block_elements, 32) * 8
        size = dtype.size_bytes(elements)
        for name, pattern in patterns.items():
            info = raw_tensor(
                b"blk.0.ffn_up.weight",
                (elements // 4, 4) if elements // 4 % dtype.block_elements == 0 else (elements,),
                dtype.id,
            )
            yield _file(
                "no numbers",
                f"{dtype.name}, {name}",
                _tensors([info], pattern(size).ljust(size + 32, b"\0")[: -(-size // 32) * 32]),
            )
    random = Random(5)
    for bad in ("nan", "inf", "-inf"):
        values = [random.gauss(0, 0.05) for _ in range(64 * 64)]
        values[777] = float(bad)
        info = raw_tensor(b"blk.0.ffn_up.weight", (64, 64))
        yield _file("no numbers", f"one {bad} among 4,096 numbers", _tensors([info], struct.pack("<4096f", *values)))


def huge_counts() -> Iterator[Case]:
    """Yield counts and lengths without bytes in the file."""
    body = raw_tensor(b"t", (8,))
    for count in (2, 2**16, 2**31, 2**32 + 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1):
        yield _file(
            "huge counts",
            f"{count:,} tensors claimed",
            raw_header([ARCHITECTURE], [body], tensor_count=count) + bytes(64),
        )
        yield _file(
            "huge counts",
            f"{count:,} entries claimed",
            raw_header([ARCHITECTURE], [body], field_count=count) + bytes(64),
        )
        text = raw_field(b"k", STRING, raw_text(b"abc", size=count))
        yield _file("huge counts", f"a text of {count:,} bytes", raw_file([ARCHITECTURE, text], [body], bytes(64)))
        key = raw_text(b"k", size=count) + struct.pack("<I", U32) + bytes(4)
        yield _file("huge counts", f"a key of {count:,} bytes", raw_file([ARCHITECTURE, key], [body], bytes(64)))
        for element in (0, STRING, 12):
            values = raw_field(b"k", ARRAY, raw_array(element, bytes(16), count))
            yield _file(
                "huge counts",
                f"an array of {count:,} of type {element}",
                raw_file([ARCHITECTURE, values], [body], bytes(64)),
            )
        yield _file(
            "huge counts", f"a row of {count:,}", raw_file([ARCHITECTURE], [raw_tensor(b"t", (count,))], bytes(64))
        )
        yield _file(
            "huge counts",
            f"a shape of {count:,} squared",
            raw_file([ARCHITECTURE], [raw_tensor(b"t", (count, count))], bytes(64)),
        )
    for dimensions in (0, 5, 2**16, 2**32 - 1):
        info = raw_tensor(b"t", (8,), dimensions=dimensions)
        yield _file("huge counts", f"{dimensions:,} dimensions", raw_file([ARCHITECTURE], [info], bytes(64)))


def nested_arrays() -> Iterator[Case]:
    """Yield arrays of arrays, and large arrays with all their bytes."""
    for depth in (1, 2, 10, 1_000, 20_000, 1_000_000):
        value = struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQI", U32, 1, 7)
        entry = raw_field(b"deep", ARRAY, value)
        yield _file(
            "nested arrays",
            f"{depth:,} deep",
            lambda e=entry: _tensors([raw_tensor(b"t", (8,))], bytes(32), [ARCHITECTURE, e]),
        )
    wide = raw_field(b"wide", ARRAY, raw_array(ARRAY, struct.pack("<IQ", U32, 0) * 100_000, 100_000))
    yield _file(
        "nested arrays", "100,000 empty ones", _tensors([raw_tensor(b"t", (8,))], bytes(32), [ARCHITECTURE, wide])
    )
    for name, element, size, count in (
        *(("bytes", 0, 1, 30_000_000), ("numbers", 12, 8, 3_000_000), ("flags", 7, 1, 10_000_000)),
        ("empty texts", STRING, 8, 3_000_000),
    ):
        yield _file(
            "nested arrays",
            f"{count:,} {name}",
            lambda e=element, s=size, c=count: _tensors(
                [raw_tensor(b"t", (8,))],
                bytes(32),
                [ARCHITECTURE, raw_field(b"tokenizer.ggml.tokens", ARRAY, raw_array(e, bytes(s * c), c))],
            ),
        )
    for value in (2, 255):
        flags = raw_field(b"flags", ARRAY, raw_array(7, bytes([value]) * 8, 8))
        yield _file(
            "nested arrays", f"flags of {value}", _tensors([raw_tensor(b"t", (8,))], bytes(32), [ARCHITECTURE, flags])
        )


def lying_metadata() -> Iterator[Case]:
    """Yield valid containers with impossible metadata of the architecture, the tokenizer or the set."""
    numbers = (
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "expert_count",
        "expert_used_count",
        "rope.dimension_count",
        "vocab_size",
    )
    tensors = [raw_tensor(b"blk.0.ffn_up.weight", (32, 2)), raw_tensor(b"token_embd.weight", (32, 2), offset=256)]
    for name in numbers:
        for value in (0, 2**31 - 1, 2**32 - 1):
            entry = raw_field(b"llama." + name.encode(), U32, struct.pack("<I", value))
            yield _file(
                "lying metadata", f"llama.{name} is {value:,}", _tensors(tensors, bytes(512), [ARCHITECTURE, entry])
            )
    for kind in (*range(13), 13, 2**32 - 1):
        entry = raw_field(b"general.architecture", kind, bytes(16))
        yield _file("lying metadata", f"an architecture of type {kind}", _tensors(tensors, bytes(512), [entry]))
    for alignment in (0, 1, 3, 13, 2**20, 2**21, 2**31):
        entry = raw_field(b"general.alignment", U32, struct.pack("<I", alignment))
        yield _file(
            "lying metadata", f"an alignment of {alignment:,}", _tensors(tensors, bytes(512), [ARCHITECTURE, entry])
        )
    for key, value in (("split.count", 2**16 - 1), ("split.no", 2**16 - 1), ("split.tensors.count", 2**31 - 1)):
        entry = raw_field(key.encode(), 2 if value < 2**16 else 5, struct.pack("<H" if value < 2**16 else "<i", value))
        yield _file("lying metadata", f"{key} is {value:,}", _tensors(tensors, bytes(512), [ARCHITECTURE, entry]))
    for name in (
        b"\xff\xfe",
        b"a\0b",
        b"\x1b[2J",
        b"../../etc/passwd",
        b"A" * 60_000,
        "\u202egpj".encode(),
        b"{{7*7}}",
        b" ",
    ):
        entry = raw_field(b"general.architecture", STRING, raw_text(name))
        yield _file("lying metadata", f"an architecture called {name[:12]!r}", _tensors(tensors, bytes(512), [entry]))
        called = raw_field(b"general.name", STRING, raw_text(name))
        yield _file(
            "lying metadata", f"a model called {name[:12]!r}", _tensors(tensors, bytes(512), [ARCHITECTURE, called])
        )
        yield _file("lying metadata", f"a tensor called {name[:12]!r}", _tensors([raw_tensor(name, (8,))], bytes(32)))
    template = raw_field(
        b"tokenizer.chat_template", STRING, raw_text(b"{% for i in range(10**9) %}x{% endfor %}" * 20_000)
    )
    yield _file(
        "lying metadata",
        "a chat template of 800 kB that loops",
        _tensors(tensors, bytes(512), [ARCHITECTURE, template]),
    )
    for block in (2**31, 2**63, 10**30):
        info = raw_tensor(f"blk.{block}.ffn_up.weight".encode(), (8,))
        yield _file("lying metadata", f"block {block:,}", _tensors([info], bytes(32)))


# --- directories ---


def _folder(name: str, fill: Callable[[Path], None]) -> Case:
    def write(path: Path) -> None:
        path.mkdir()
        fill(path)

    return Case("directories", name, write)


def _manifest(path: Path, **values: object) -> None:
    manifest = {"format": "organ-directory", "version": 1, "metadata": {"general.architecture": "llama"}} | values
    (path / "manifest.json").write_text(json.dumps(manifest))


def _organ(path: Path, name: str, shape: tuple[int, ...] = (8,), data: bytes | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    spec = TensorSpec(name, shape, dtype_by_name("F32"))
    path.write_bytes(encode_head(spec) + (bytes(spec.size_bytes) if data is None else data))


def directories() -> Iterator[Case]:
    """Yield organ directories with a wrong manifest, wrong files or links."""
    line = {"name": "t", "file": "organs/t.bin"}

    def good(path: Path, **values: object) -> None:
        _organ(path / "organs" / "t.bin", "t")
        _manifest(path, **({"tensors": [line]} | values))

    def manifests() -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield manifests by their fault; created when they are written, because some are large."""
        yield "no JSON", lambda: "not json"
        yield "empty", lambda: ""
        yield "a number", lambda: "7"
        yield "a list", lambda: "[]"
        yield "NaN", lambda: '{"format": "organ-directory", "version": NaN, "tensors": []}'
        yield "a huge number", lambda: '{"format": "organ-directory", "version": ' + "9" * 5_000 + "}"
        yield "100,000 deep lists", lambda: "[" * 100_000
        yield "100,000 deep objects", lambda: '{"a":' * 100_000
        yield "two million objects", lambda: '{"tensors": [' + "{}," * 2_000_000 + "{}]}"
        yield "300,000 keys", lambda: json.dumps({f"k{number}": 0 for number in range(300_000)})
        yield "a string of 60 MB", lambda: '{"format": "' + "x" * 60_000_000 + '"}'
        yield "more than 64 MiB", lambda: " " * (65 * 1024 * 1024)
        yield (
            "a lone surrogate",
            lambda: '{"format": "organ-directory", "version": 1, "tensors": [{"name": "\\ud800"}]}',
        )
        yield "bytes that are not UTF-8", lambda: '{"format": "\udcff\udcfe"}'

    def write_text(path: Path, text: Callable[[], str]) -> None:
        (path / "manifest.json").write_text(text(), encoding="utf-8", errors="surrogateescape")

    for name, text in manifests():
        yield _folder(f"a manifest: {name}", lambda path, text=text: write_text(path, text))
    edits: dict[str, dict[str, object]] = {
        "a version of 99": {"version": 99},
        "tensors is null": {"tensors": None},
        "tensors is a number": {"tensors": 5},
        "a tensor is a list": {"tensors": [[]]},
        "no tensors": {"tensors": []},
        "the same tensor 1,000 times": {"tensors": [line] * 1_000},
        "65,537 tensors of one file": {"tensors": [{"name": f"t{n}", "file": "organs/t.bin"} for n in range(65_537)]},
        "a wrong sha256": {"tensors": [line | {"sha256": "0" * 64}]},
        "a sha256 that is no digest": {"tensors": [line | {"sha256": "zz"}]},
        "negative sizes": {"tensors": [line | {"size_bytes": -1, "offset_bytes": -5}]},
        "a size of 2**70": {"tensors": [line | {"size_bytes": 2**70}]},
        "a gguf number of -1": {"tensors": [line | {"gguf": -1}]},
        "a gguf number of 2**64": {"tensors": [line | {"gguf": 2**64}]},
        "files without a header": {"files": [{"name": "a.gguf"}] * 5_000},
        "a file called ..": {"files": [{"name": "../../a.gguf"}]},
        "metadata of 100,000 entries": {"metadata": {f"k.{n}": n for n in range(100_000)}},
        "metadata with nested lists": {"metadata": {"a": [[[[1]]]]}},
        "metadata of mixed lists": {"metadata": {"a": [1, "x", None]}},
        "an alignment of 3": {"metadata": {"general.architecture": "llama", "general.alignment": 3}},
        "measures that are text": {"tensors": [line | {"measures": {"theta": "ninety"}}]},
        "measures that are huge": {"tensors": [line | {"measures": {"theta": 1e308, "magnitude": -1e308}}]},
        "a header file that is absent": {
            "header_file": "header.bin",
            "files": [{"name": "a.gguf", "header": {"offset_bytes": 0, "size_bytes": 99}}],
        },
    }
    for name, values in edits.items():
        yield _folder(name, lambda path, values=values: good(path, **values))
    for name in (
        "../outside.bin",
        "/etc/passwd",
        "C:\\x.bin",
        "CON.bin",
        "organs/../../x.bin",
        "a\0b.bin",
        "organs//t.bin",
        "x" * 5_000,
        ".",
        "organs",
    ):
        yield _folder(
            f"a file called {name[:20]!r}", lambda path, name=name: good(path, tensors=[{"name": "t", "file": name}])
        )
    yield _folder("a link to /etc/passwd", lambda path: _link(path, "/etc/passwd"))
    yield _folder("a link to itself", lambda path: _link(path, "t.bin"))
    yield _folder("a link to /dev/zero", lambda path: _link(path, "/dev/zero"))
    yield _folder("a FIFO", _fifo)
    yield _folder("an organ file of zeros, 200 MB, sparse", _sparse)
    yield _folder("an organ file with a head alone", lambda path: _cut(path, 20))
    yield _folder("an empty organ file", lambda path: _cut(path, 0))
    yield _folder(
        "organ files that nobody names",
        lambda path: [_organ(path / "organs" / f"{n}.bin", f"t{n}") for n in range(2_000)] and good(path),
    )
    yield _folder("folders 200 deep", lambda path: (path / "/".join("d" * 200)).mkdir(parents=True))
    yield _folder("3,000 empty files", lambda path: [(path / f"{n}.gguf").touch() for n in range(3_000)] and None)
    yield _folder("4,096 organs of one element", lambda path: _equal_organs(path, 4_096))


def _link(path: Path, target: str) -> None:
    (path / "organs").mkdir()
    (path / "organs" / "t.bin").symlink_to(target)
    _manifest(path, tensors=[{"name": "t", "file": "organs/t.bin"}])


def _fifo(path: Path) -> None:
    (path / "organs").mkdir()
    os.mkfifo(path / "organs" / "t.bin")
    _manifest(path, tensors=[{"name": "t", "file": "organs/t.bin"}])


def _sparse(path: Path) -> None:
    _organ(path / "organs" / "t.bin", "t", (50_000_000,), b"")
    with (path / "organs" / "t.bin").open("r+b") as file:
        file.truncate(len(encode_head(TensorSpec("t", (50_000_000,), dtype_by_name("F32")))) + 200_000_000)
    _manifest(path, tensors=[{"name": "t", "file": "organs/t.bin"}])


def _cut(path: Path, size: int) -> None:
    _organ(path / "organs" / "t.bin", "t")
    os.truncate(path / "organs" / "t.bin", size)
    _manifest(path, tensors=[{"name": "t", "file": "organs/t.bin"}])


def _equal_organs(path: Path, count: int) -> None:
    for number in range(count):
        _organ(path / "organs" / f"{number}.bin", f"blk.{number}.ffn_up.weight", (1,))
    _manifest(path, tensors=[{"name": f"blk.{n}.ffn_up.weight", "file": f"organs/{n}.bin"} for n in range(count)])


def cases() -> list[Case]:
    """Return all cases."""
    kinds = (aliasing, repeats, no_numbers, huge_counts, nested_arrays, lying_metadata, directories)
    return [case for kind in kinds for case in kind()]


# --- running them ---


def run(command: Sequence[str], environment: dict[str, str], folder: Path) -> Result:
    """Run one process; measure the time and the memory of it and its children."""
    begun = time.monotonic()
    with (folder / "output").open("w+b") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=folder
        )
        timer = threading.Timer(STOPPED_SECONDS, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    return Result(process.returncode, text, time.monotonic() - begun, usage.ru_maxrss * 1024)


class MemoryWatch:
    """The peak memory of any process of a server, sampled again and again in a thread."""

    def __init__(self, live: LiveServer) -> None:
        self._root = psutil.Process(live.process.pid)
        self._stop = threading.Event()
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def take(self) -> int:
        """Return the peak since the last call."""
        peak, self.peak_bytes = self.peak_bytes, 0
        return peak

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(WATCH_SECONDS):
            try:
                for process in self._root.children(recursive=True):
                    self.peak_bytes = max(self.peak_bytes, process.memory_info().rss)
            except psutil.NoSuchProcess:
                continue


def main() -> None:
    """Run all cases both ways; exit with 1 after any fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", help="only cases of this kind")
    parser.add_argument("--way", choices=("command", "upload"), help="only this way")
    options = parser.parse_args()
    chosen = [case for case in cases() if options.kind in (None, case.kind)]
    faults: list[str] = []
    with TemporaryDirectory() as name:
        for way, by in (("command", by_command_line), ("upload", by_upload)):
            if options.way in (None, way):
                folder = Path(name, way)
                folder.mkdir()
                begun = time.monotonic()
                summary = by(folder, chosen)
                _print(way, summary, len(chosen), time.monotonic() - begun)
                faults += [f"{way}: {fault}" for fault in summary.faults]
    for fault in faults[:SHOWN_MAX]:
        print("WRONG:", fault)
    sys.exit(1 if faults else 0)


def by_command_line(folder: Path, chosen: Sequence[Case]) -> Summary:
    """Run `organ ingest` for each, in one common registry; two processes at a time."""
    home = folder / "home"
    LocalRegistry.open(home).close()
    summary = Summary()
    _in_turns(
        folder,
        chosen,
        summary,
        lambda path, place: run(_organ_command(home, "ingest", str(path)), _environment(home), place),
    )
    _check_registry(home, folder, summary)
    return summary


def by_upload(folder: Path, chosen: Sequence[Case]) -> Summary:
    """Run `organ push` for each to a server, one after another, and watch its processes."""
    home = folder / "home"
    with LocalRegistry.open(home) as registry:  # a submission with warnings stays open, and counts for its contributor
        owners = range(0, len(chosen), OPEN_SUBMISSIONS_MAX)
        tokens = [new_token(registry, f"eve{number}") for number in owners for _ in range(OPEN_SUBMISSIONS_MAX)]
    turns = iter(tokens)
    live = start_server(home, folder / "server.log", options=["--accounts"])
    summary, watch = Summary(), MemoryWatch(live)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ORGAN_REGISTRY": live.address}

    def push(path: Path, place: Path) -> Result:
        own = environment | {"ORGAN_TOKEN": next(turns)}
        result = run([sys.executable, "-m", "organs.cli", "push", str(path), "--license", "mit"], own, place)
        result.peak_bytes = max(result.peak_bytes, watch.take())
        return result

    try:
        _in_turns(folder, chosen, summary, push, lanes=1)
        live.health_seconds()
    finally:
        watch.close()
        stop_server(live)
    log = (folder / "server.log").read_text(errors="replace")
    summary.faults += [f"in the server's log: {word}" for word in ("Traceback", "an inspector failed") if word in log]
    _check_registry(home, folder, summary)
    return summary


def _in_turns(
    folder: Path, chosen: Sequence[Case], summary: Summary, act: Callable[[Path, Path], Result], lanes: int = 2
) -> None:
    """Write each case into its own folder, act on it, remove it."""
    waiting: queue.SimpleQueue[tuple[int, Case]] = queue.SimpleQueue()
    for numbered in enumerate(chosen):
        waiting.put(numbered)
    lock = threading.Lock()

    def work() -> None:
        while True:
            try:
                number, case = waiting.get_nowait()
            except queue.Empty:
                return
            with TemporaryDirectory(dir=folder) as name:
                target = Path(name, f"case-{number}")
                case.write(target)
                (path,) = Path(name).iterdir()
                place = Path(name, "work")
                place.mkdir()
                result = act(path, place)
            with lock:
                summary.add(case, result)

    threads = [threading.Thread(target=work) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _check_registry(home: Path, folder: Path, summary: Summary) -> None:
    """Check that a valid model is accepted, and that all stored bytes are valid."""
    good = folder / "good.gguf"
    good.write_bytes(small_model("Good", seed=1))
    for words in (
        ("ingest", str(good)),
        ("verify", "--read-data"),
        ("models",),
        ("search", "sort:-theta"),
        ("report",),
    ):
        result = run(_organ_command(home, *words), _environment(home), folder)
        summary.faults += [f"afterwards, organ {words[0]}: {fault}" for fault in result.faults()]
        if result.status != 0:
            summary.faults.append(f"afterwards, organ {words[0]} failed: {result.output[-500:]}")


def _organ_command(home: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "organs.cli", "--home", str(home), *words]


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **postgres.environment(home)}


def _print(way: str, summary: Summary, count: int, seconds: float) -> None:
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in sorted(summary.outcomes.items()))
    print(f"{way}: {count} cases in {seconds:.0f} s: {outcomes}; {len(summary.faults)} faults")
    print(f"  slowest {summary.slowest[0]:.1f} s ({summary.slowest[1]})")
    print(f"  largest {summary.largest[0] / 1e6:.0f} MB ({summary.largest[1]})", flush=True)


if __name__ == "__main__":
    main()
