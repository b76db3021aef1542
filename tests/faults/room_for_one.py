"""Shards of a large model, ingested on a disk with room for one of them, by processes that are killed.

    python -m tests.faults.room_for_one                                     8 shards of 300 MB, ten kills
    python -m tests.faults.room_for_one --shards 4 --megabytes 1 --kills 3  a small one

Each shard is generated when it is its turn, in random order, and ingested by `organ ingest --delete-after`. Some of
these processes get SIGKILL at a random moment and are started again. After each kill, the file must be there unchanged,
or its stored bytes must rebuild it. At the end the assembled shards must be identical, and llama.cpp must load the
merged file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

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
from organs.registry.upkeep import Share, verify
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.runtime import ScoringRequest
from organs.registry.validation.texts import built_in_texts
from tests import postgres

ROOT = Path(__file__).resolve().parents[2]
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
    """One run, in the folder `scratch`."""

    scratch: Path
    seed: int
    kills_left: int
    kills: int = 0
    after_removal: int = 0
    """Kills after which the file was gone already."""
    most_files: int = 0
    most_bytes: int = 0
    digests: dict[str, Digest] = field(default_factory=dict)

    @property
    def inbox(self) -> Path:
        return self.scratch / "inbox"

    @property
    def home(self) -> Path:
        return self.scratch / "home"

    def ingest(self, shards: Sequence[Shard]) -> None:
        """Ingest `shards` in random order, with kills."""
        chance = random.Random(self.seed)
        order = list(shards)
        chance.shuffle(order)
        self.inbox.mkdir()
        seconds = 0.0
        with self._watched():
            for number, shard in enumerate(order):
                path = self.inbox / shard.name
                self.digests[shard.name] = write_shard(path, shard)
                share = -(-self.kills_left // max(1, len(order) - number))
                # The first shard shows how long an ingest takes.
                for _ in range(share if number else 0):
                    if not self._kill(path, chance.uniform(0, seconds)):
                        break
                begun = time.monotonic()
                if path.exists():
                    self._succeed(path)
                    seconds = max(seconds, time.monotonic() - begun)
                assert not path.exists(), f"{path.name} is still there"
                self._check_stored(shard.name)

    def check(self, shards: Sequence[Shard]) -> None:
        """Check everything that is stored, and that the assembled shards are identical."""
        with LocalRegistry.open(self.home) as registry:
            report = verify(registry.catalog, registry.blobs, read_data=Share(1, 1))
            assert (report.faults, report.miscounted) == ([], {})
            with registry.catalog.reading() as session:
                (model,) = session.scalars(select(ModelRow))
                assert (model.state, model.shards) == ("visible", None)
                rows = session.scalars(select(ModelFileRow).order_by(ModelFileRow.position)).all()
                plans = [plan_file(session, row) for row in rows]
            assert [plan.name for plan in plans] == [shard.name for shard in shards]
            for plan in plans:
                self._check_assembled(registry, plan)

    def load_merged(self) -> str:
        """Merge the shards to one file; return what llama.cpp generated with it."""
        merged = self.scratch / "merged.gguf"
        self._organ("assemble", STEM, "--merge", "-o", str(merged))
        texts = built_in_texts(("python",))
        reading = LlamaCpp().read(ScoringRequest(merged, texts, (range(1),), writes=True), lambda *_: None)
        size = merged.stat().st_size
        merged.unlink()
        assert reading.failure is None, reading.failure
        return (
            f"llama.cpp loads the merged file of {size / 1e6:,.0f} MB and generates {len(reading.written or '')} bytes"
        )

    def _check_assembled(self, registry: LocalRegistry, plan: FilePlan) -> None:
        back = self.scratch / "back.gguf"
        place_file(registry.blobs, plan, back)
        assert file_digest(back) == self.digests[plan.name], f"{plan.name} is another file"
        back.unlink()

    def _kill(self, path: Path, seconds: float) -> bool:
        """Kill an ingest of `path` after `seconds`; return whether the file is still there."""
        process = self._start("ingest", "--delete-after", str(path))
        time.sleep(seconds)
        if process.poll() is None:
            process.kill()
            self.kills, self.kills_left = self.kills + 1, self.kills_left - 1
        process.communicate()
        if path.exists():
            assert file_digest(path) == self.digests[path.name], f"{path.name} was changed"
            return True
        self.after_removal += 1
        self._check_stored(path.name)
        return False

    def _check_stored(self, name: str) -> None:
        """Assert that the stored bytes of a file that is gone rebuild it."""
        with LocalRegistry.open(self.home) as registry:
            with registry.catalog.reading() as session:
                row = session.scalars(select(ModelFileRow).where(ModelFileRow.name == name)).one()
                plan = plan_file(session, row)
            assert plan.sha256 == self.digests[name]
            prove_file(registry.blobs, plan)

    def _succeed(self, path: Path) -> None:
        self._organ("ingest", "--delete-after", str(path))

    def _organ(self, *arguments: str) -> None:
        process = self._start(*arguments)
        _, err = process.communicate()
        assert process.returncode == 0, err

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "organs.cli", "--home", str(self.home), *arguments]
        environment = os.environ | postgres.environment(self.home)
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Count the shards on disk during the block: in the inbox and in the spool of the registry."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(0.005):
                sizes = [_size(path) for folder in (self.inbox, self.home / "spool") for path in folder.glob("*")]
                self.most_files = max(self.most_files, len(sizes))
                self.most_bytes = max(self.most_bytes, sum(sizes))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=300, help="the size of a shard")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to work; a new folder in it is removed at the end")
    options = parser.parse_args()
    postgres.use_in_process()
    begun = time.monotonic()
    with TemporaryDirectory(dir=options.folder) as scratch:
        run = Run(Path(scratch), options.seed, options.kills)
        shards = model_shards(options.shards, options.megabytes)
        largest = max(shard.size_bytes for shard in shards)
        run.ingest(shards)
        ingested = time.monotonic()
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        run.check(shards)
        loaded = run.load_merged()
        stored = sum(path.stat().st_size for path in (run.home / "blobs").rglob("*") if path.is_file())
    total = sum(shard.size_bytes for shard in shards)
    assert run.most_files == 1, "two shards were on disk"
    assert run.most_bytes <= largest
    print(
        f"{len(shards)} shards, {total / 1e6:,.0f} MB, ingested in {ingested - begun:.0f} s with {run.kills} kills, "
        f"{run.after_removal} of them after the file was removed; nothing lost"
    )
    print(
        f"at most {run.most_files} shard on disk ({run.most_bytes / 1e6:,.0f} MB); stored in {stored / 1e6:,.0f} MB; "
        f"peak memory of an ingest {memory / 1e6:,.0f} MB"
    )
    print(f"{len(shards)} assembled shards are identical; {loaded}; {time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
