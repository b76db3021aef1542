"""Shards of a large model on a disk with room for one of them, with kills: `make room-for-one`.

Each shard is generated when it is its turn, in random order, and ingested by `organ ingest --delete-after`. Some of
these processes get SIGKILL at a random moment and are started again. After each kill, the file must be there unchanged,
or its stored bytes must rebuild it. At the end the assembled shards must be identical, and llama.cpp must load the
merged file.
"""

from __future__ import annotations

import hashlib
import random
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from sqlalchemy import select

from bench.generated import weights
from organs.registry.assembly import FilePlan, place_file, plan_file, prove_file
from organs.registry.catalog.tables import ModelFileRow, ModelRow
from organs.registry.digest import Digest
from organs.registry.gguf import (
    HeaderSource,
    KeyValue,
    TensorSpec,
    ValueType,
    dtype_by_name,
    encode_header,
    padded,
    read_header,
)
from organs.registry.gguf.split import Shard, cut, whole_metadata
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.runtime import ScoringRequest
from organs.registry.validation.texts import built_in_texts
from tests.faults.hostile.harness import Arena, Case, Options, Suite
from tests.web.live_server import ROOT

ZOO_MODEL = ROOT / "examples" / "zoo" / "Zoo-A-2M-v1.0-F16.gguf"
"""The tokenizer of the generated model is from this one, so that llama.cpp loads it."""
ALIGNMENT = 32
BLOCKS_A_SHARD = 3
HEAD = 64
STEM = "big"


def model_shards(count: int, megabytes: float) -> list[Shard]:
    """Return the headers and tensors of `count` shards of about `megabytes` MB each."""
    width = max(128, round((megabytes * 1e6 / BLOCKS_A_SHARD / 24) ** 0.5 / 128) * 128)
    blocks = count * BLOCKS_A_SHARD
    numbers = {
        "embedding_length": width,
        "block_count": blocks,
        "feed_forward_length": 3 * width,
        "attention.head_count": width // HEAD,
        "attention.head_count_kv": width // HEAD // 2,
        "rope.dimension_count": HEAD,
    }
    with FileSource(ZOO_MODEL) as zoo:
        header = read_header(zoo)
        changed = {f"llama.{key}" for key in numbers}
        kept = [entry for entry in whole_metadata(zoo, header) if entry.key not in changed]
        vocabulary = next(tensor for tensor in header.tensors if tensor.name == "token_embd.weight").shape[1]
    sizes = [KeyValue(f"llama.{key}", ValueType.UINT32, value) for key, value in numbers.items()]
    data = encode_header([*kept, *sizes], [], ALIGNMENT)
    source = HeaderSource(data, len(data))
    tensors, shard_bytes = _tensors(width, blocks, vocabulary)
    shards = cut(source, read_header(source), tensors, STEM, shard_bytes)
    assert shards is not None
    assert len(shards) == count
    return shards


def _tensors(width: int, blocks: int, vocabulary: int) -> tuple[list[TensorSpec], int]:
    """Return the tensors, and the most bytes of tensors in a shard: those of its blocks, and the embedding."""
    weight, norm = dtype_by_name("BF16"), dtype_by_name("F32")
    tensors = [
        TensorSpec("token_embd.weight", (width, vocabulary), weight),
        TensorSpec("output_norm.weight", (width,), norm),
    ]
    others = sum(padded(tensor.size_bytes, ALIGNMENT) for tensor in tensors)
    for block in range(blocks):
        matrices = {
            "attn_q": (width, width),
            "attn_k": (width, width // 2),
            "attn_v": (width, width // 2),
            "attn_output": (width, width),
            "ffn_gate": (width, 3 * width),
            "ffn_up": (width, 3 * width),
            "ffn_down": (3 * width, width),
        }
        tensors += [TensorSpec(f"blk.{block}.{name}.weight", (width,), norm) for name in ("attn_norm", "ffn_norm")]
        tensors += [TensorSpec(f"blk.{block}.{name}.weight", shape, weight) for name, shape in matrices.items()]
    total = sum(padded(tensor.size_bytes, ALIGNMENT) for tensor in tensors)
    a_block = (total - others) // blocks
    return tensors, max(BLOCKS_A_SHARD * a_block, others + (BLOCKS_A_SHARD - 1) * a_block) + others % a_block


def write_shard(path: Path, shard: Shard) -> Digest:
    """Write the shard, with the same weights in every call; return its SHA-256."""
    digest = hashlib.sha256()
    with path.open("wb") as stream:

        def write(data: bytes | memoryview) -> None:
            digest.update(data)
            stream.write(data)

        write(shard.header)
        for tensor in shard.tensors:
            for piece in weights(tensor, np.random.default_rng(list(tensor.name.encode()))):
                write(piece.data.cast("B"))
            write(bytes(padded(tensor.size_bytes, ALIGNMENT) - tensor.size_bytes))
    return Digest(digest.hexdigest())


def file_digest(path: Path) -> Digest:
    with path.open("rb") as stream:
        return Digest(hashlib.file_digest(stream, "sha256").hexdigest())


@dataclass(slots=True)
class Run:
    """One run."""

    arena: Arena
    options: Options
    shards: list[Shard]
    chance: random.Random
    kills: int = 0
    after_removal: int = 0
    """Kills after which the file was gone already."""
    longest_seconds: float = 0.0
    """The seconds of an undisturbed ingest."""
    most_files: int = 0
    most_bytes: int = 0
    digests: dict[str, Digest] = field(default_factory=dict)
    left: int = 0
    """The shards that are not ingested yet."""

    @property
    def inbox(self) -> Path:
        return self.arena.folder / "inbox"

    def ingest(self, shard: Shard) -> str:
        """Ingest a shard, with its share of the kills; the first one shows how long an ingest takes."""
        path = self.inbox / shard.name
        self.digests[shard.name] = write_shard(path, shard)
        share = -(-(self.options.kills - self.kills) // self.left) if self.digests.keys() != {shard.name} else 0
        self.left -= 1
        killed = 0
        while killed < share and path.exists():
            self._kill(path)
            killed += 1
        begun = time.monotonic()
        if path.exists():
            self.arena.must_run("ingest", "--delete-after", path)
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - begun)
        assert not path.exists(), f"{path.name} is still there"
        self._check_stored(shard.name)
        return "stored"

    def assemble(self, shard: Shard) -> str:
        """Assemble a shard: it has the bytes that were ingested."""
        back = self.arena.folder / "back.gguf"
        with LocalRegistry.open(self.arena.home) as registry:
            place_file(registry.blobs, self._plan(registry, shard.name), back)
        assert file_digest(back) == self.digests[shard.name], f"{shard.name} is another file"
        back.unlink()
        return "identical"

    def load_merged(self) -> str:
        """Merge the shards to one file, with which llama.cpp must generate."""
        with LocalRegistry.open(self.arena.home) as registry, registry.catalog.reading() as session:
            (model,) = session.scalars(select(ModelRow))
            assert (model.state, model.shards) == ("visible", None)
            names = session.scalars(select(ModelFileRow.name).order_by(ModelFileRow.position)).all()
        assert names == [shard.name for shard in self.shards]
        merged = self.arena.folder / "merged.gguf"
        self.arena.must_run("assemble", STEM, "--merge", "-o", merged)
        texts = built_in_texts(("python",))
        reading = LlamaCpp().read(ScoringRequest(merged, texts, (range(1),), writes=True), lambda *_: None)
        assert reading.failure is None, reading.failure
        size = merged.stat().st_size
        self.arena.report.figures.append(f"{size / 1e6:,.0f} MB generate {len(reading.written or '')} bytes")
        return "loaded by llama.cpp"

    def _kill(self, path: Path) -> None:
        """Kill an ingest of `path`; the file is there unchanged, or its stored bytes rebuild it."""
        process = self.arena.start(self.arena.organ("ingest", "--delete-after", path))
        time.sleep(self.chance.uniform(0, self.longest_seconds))
        self.kills += process.poll() is None
        self.arena.kill(process)
        if path.exists():
            assert file_digest(path) == self.digests[path.name], f"{path.name} was changed"
        else:
            self.after_removal += 1
            self._check_stored(path.name)

    def _check_stored(self, name: str) -> None:
        """Check that the stored bytes of a file that is gone rebuild it."""
        with LocalRegistry.open(self.arena.home) as registry:
            plan = self._plan(registry, name)
            assert plan.sha256 == self.digests[name]
            prove_file(registry.blobs, plan)

    def _plan(self, registry: LocalRegistry, name: str) -> FilePlan:
        with registry.catalog.reading() as session:
            return plan_file(session, session.scalars(select(ModelFileRow).where(ModelFileRow.name == name)).one())

    def count_files(self, is_over: threading.Event) -> None:
        """Count the shards on disk until it is over: in the inbox and in the spool of the registry."""
        while not is_over.wait(0.005):
            folders = (self.inbox, self.arena.home / "spool")
            sizes = [_size(path) for folder in folders for path in folder.glob("*")]
            self.most_files = max(self.most_files, len(sizes))
            self.most_bytes = max(self.most_bytes, sum(sizes))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[Iterator[Case]]:
    """Prepare the shards; afterwards check how many were on disk at a time, and all stored bytes."""
    shards = model_shards(options.shards, options.megabytes)
    run = Run(arena, options, shards, random.Random(options.seed), left=len(shards))
    run.inbox.mkdir()
    is_over = threading.Event()
    watcher = threading.Thread(target=run.count_files, args=(is_over,))

    def cases() -> Iterator[Case]:
        watcher.start()
        for shard in run.chance.sample(shards, len(shards)):
            yield Case("ingest", shard.name, partial(run.ingest, shard))
        is_over.set()
        for shard in shards:
            yield Case("assemble", shard.name, partial(run.assemble, shard))
        yield Case("run", "merged", run.load_merged)

    try:
        yield cases()
    finally:
        is_over.set()
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    arena.report.figures += [
        f"{run.kills} kills, {run.after_removal} of them after the file was removed",
        f"at most {run.most_files} shard on disk ({run.most_bytes / 1e6:,.0f} MB)",
        f"peak memory of an ingest {memory / 1e6:,.0f} MB",
    ]
    largest = max(shard.size_bytes for shard in shards)
    arena.report.expect(run.most_files == 1, f"{run.most_files} shards were on disk")
    arena.report.expect(run.most_bytes <= largest, f"{run.most_bytes:,} bytes were on disk")
    arena.check_registry()


SUITE = Suite(opened, {"shards": 8, "megabytes": 300.0, "kills": 10, "seed": 1})
"""`megabytes` is the size of a shard."""
