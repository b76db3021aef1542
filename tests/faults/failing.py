"""Helpers for tests of faults: a model with blobs in files and in rows, a disk and a catalog that fail on request."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from organs.ingest.service import IngestReport, always, ingest_model
from organs.ingest.sources import ModelSource
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest
from organs.registry.catalog.queries.reports import (
    counted_totals,
    running_totals,
)
from organs.registry.catalog.register.organs import (
    begin_ingest,
    end_ingest,
    record_blobs,
)
from organs.registry.catalog.tables import Blob, Ingest, ModelRow
from organs.registry.digest import Digest, digest_of
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.progress import Progress, no_progress
from organs.registry.settings import GRACE
from organs.registry.store import BlobStore, StoredBlob
from organs.registry.store.files import Files
from organs.registry.upkeep import Share, SweepReport, VerifyReport, all_blobs, sweep, take_back, verify
from tests.gguf_files import file_bytes
from tests.small_models import assemble_model, block_metadata, block_tensors, expert_stack, token_array

EVERYTHING = Share(1, 1)
LARGE, SMALL = 80_000, 1000
"""Plain sizes of a blob in a file and of a blob in a row."""
NAME = ModelName("local", "little")
CALLS = (
    "make_folder",
    "create",
    "create_direct",
    "truncate",
    "write_at",
    "make_read_only",
    "sync",
    "close",
    "rename",
    "sync_folder",
    "unlink",
    "open_to_read",
    "size",
    "read_at",
    "free_bytes",
)
"""The methods of `Files` that the store calls."""


def model_bytes(seed: int = 0, blocks: int = 1, width: int = 256) -> bytes:
    """Return a model whose matrices are files of the store, and whose norms, experts and vocabulary are rows."""
    tokens = token_array([b"token %d" % index for index in range(600)])
    stack = expert_stack("blk.0.ffn_up_exps.weight", seed)
    return file_bytes([*block_metadata(blocks=blocks), tokens], [*block_tensors(blocks, width, seed), stack])


def write_model(path: Path, seed: int = 0, blocks: int = 1) -> Path:
    """Write `model_bytes` to the file `path`."""
    path.write_bytes(model_bytes(seed, blocks))
    return path


def write_relative(path: Path, other: Path, seed: int, shared_bytes: int) -> Path:
    """Write another model whose last bytes, with some of its organs, are those of the model in `other`."""
    path.write_bytes(model_bytes(seed)[:-shared_bytes] + other.read_bytes()[-shared_bytes:])
    return path


def ingest_path(
    registry: LocalRegistry, path: Path, progress: Progress = no_progress, name: ModelName = NAME
) -> IngestReport:
    """Ingest `path` without checking it first."""
    return ingest_model(registry, ModelSource((path,), name), name, progress, new_version=always)


class SteppedFiles(Files):
    """The real calls; `before` is called with the number (from 1) and the name of each, and may raise."""

    def __init__(self, before: Callable[[int, str], None]) -> None:
        self.calls = 0
        self._before = before
        self._lock = threading.Lock()

    def step(self, name: str) -> None:
        with self._lock:
            self.calls += 1
            number = self.calls
        self._before(number, name)


def _stepped(name: str) -> Callable[..., Any]:
    real = getattr(Files, name)

    def call(self: SteppedFiles, *arguments: Any) -> Any:
        if name == "close":  # a descriptor is released, whatever close returns
            real(self, *arguments)
            return self.step(name)
        self.step(name)
        return real(self, *arguments)

    return call


for _name in CALLS:
    setattr(SteppedFiles, _name, _stepped(_name))


def failing_once(at: int, number: int) -> SteppedFiles:
    """Return files whose call `at` fails with the error `number`; later calls work."""

    def before(call: int, _name: str) -> None:
        if call == at:
            raise OSError(number, os.strerror(number))

    return SteppedFiles(before)


def failing_from(at: int, number: int) -> SteppedFiles:
    """Return files of which every call from `at` on fails with the error `number`."""

    def before(call: int, _name: str) -> None:
        if call >= at:
            raise OSError(number, os.strerror(number))

    return SteppedFiles(before)


def with_files(registry: LocalRegistry, files: Files) -> LocalRegistry:
    """Return the same registry on a disk with `files`."""
    blobs = BlobStore(
        registry.settings.blobs, files, partial(take_back, registry.catalog), current=partial(current_blob, registry)
    )
    return LocalRegistry(registry.settings, registry.catalog, blobs)


def current_blob(registry: LocalRegistry, digest: Digest) -> KnownBlob | None:
    """Return the present row of a blob, as the store of the registry reads it."""
    with registry.catalog.reading() as session:
        return blobs_by_digest(session, [digest]).get(digest)


def blob_rows(registry: LocalRegistry) -> list[KnownBlob]:
    """Return the rows of all blobs that have stored bytes, all but stacks, by digest."""
    return sorted((row for row in all_blobs(registry.catalog) if not row.parts), key=attrgetter("digest"))


def files_below(registry: LocalRegistry) -> list[str]:
    """Return the files in the folder of the store, without its lock: physical names and `tmp/...`."""
    root = registry.settings.blobs
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.parent != root)


def model_names(registry: LocalRegistry) -> list[str]:
    """Return the names of all models in any state."""
    with registry.catalog.reading() as session:
        return list(session.scalars(select(ModelRow.name).order_by(ModelRow.id)))


def assert_no_orphans(registry: LocalRegistry) -> None:
    """Assert that every blob row has its file, that no other file exists, and that the running totals are right."""
    assert files_below(registry) == sorted(row.file for row in blob_rows(registry) if row.file is not None)
    with registry.catalog.reading() as session:
        assert running_totals(session) == counted_totals(session)


def assert_comes_back(registry: LocalRegistry, source: Path, model: str | None = None) -> None:
    """Assert that a model is assembled to the bytes of its file; it has the name of the file unless it is given."""
    with TemporaryDirectory() as folder:
        (back,) = assemble_model(registry, model or f"local/{source.stem}", Path(folder))
        assert back.read_bytes() == source.read_bytes(), f"{source.name} comes back as another file"


def assert_sweeps_leave_no_rest(registry: LocalRegistry, sweeps: int = 2) -> None:
    """Assert that sweeps remove what no model needs when all leases and periods have expired, and nothing else."""
    let_leases_expire(registry)
    let_time_pass(registry)
    for _ in range(sweeps):
        run_sweep(registry)
    assert_no_orphans(registry)
    assert verify_all(registry).faults == []


def let_time_pass(registry: LocalRegistry, time: timedelta = timedelta(days=3)) -> None:
    """Move all recorded times and file times back by `time`; leases of ingests do not change."""
    earlier = datetime.now(UTC) - time
    with registry.catalog.writing() as session:
        session.execute(update(Blob).values(touched_at=earlier, created_at=earlier))
        session.execute(update(Ingest).values(started_at=earlier))
    for name in files_below(registry):
        os.utime(registry.settings.blobs / name, (earlier.timestamp(), earlier.timestamp()))


def let_leases_expire(registry: LocalRegistry) -> None:
    """Let every running ingest look like one that died long ago."""
    with registry.catalog.writing() as session:
        session.execute(update(Ingest).values(lease_expires_at=datetime.now(UTC) - timedelta(days=1)))


class UnsyncedFiles(Files):
    """The real calls, except those that wait for the disk."""

    def sync(self, descriptor: int) -> None:
        """Do nothing: a later sync is simulated."""

    def sync_folder(self, path: Path) -> None:
        """Do nothing: a later sync is simulated."""


def without_syncing(registry: LocalRegistry) -> LocalRegistry:
    """Let the registry not wait for the disk, for tests with very many transactions that do not test durability."""
    with closing(registry.catalog.writer.raw_connection()) as connection:
        if isinstance(connection.driver_connection, sqlite3.Connection):  # another server syncs as it is told
            connection.driver_connection.execute("PRAGMA synchronous = OFF")
    return with_files(registry, UnsyncedFiles())


def spoil_two(registry: LocalRegistry) -> set[str]:
    """Damage a blob in a file and remove the file of another; return their digests."""
    spoiled, gone, *_ = (row for row in blob_rows(registry) if row.file is not None)
    path = registry.settings.blobs / (spoiled.file or "")
    overwrite(path, flip_bit(path.read_bytes(), 8 * 5000))
    (registry.settings.blobs / (gone.file or "")).unlink()
    return {spoiled.digest, gone.digest}


def overwrite(path: Path, data: bytes) -> None:
    """Write into the file of a blob, which is read-only."""
    path.chmod(0o644)
    path.write_bytes(data)


def flip_bit(data: bytes, bit: int) -> bytes:
    """Return `data` with one bit flipped."""
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


class Crash(BaseException):
    """A simulated death of the process."""


class MomentCatalog(Catalog):
    """The catalog of a registry; `meet` is called at each moment of its sessions, and may raise.

    The moments are "reading" and "read", or "transaction", "commit" and "committed".
    """

    meet: Callable[[str], object]

    def __init__(self, catalog: Catalog, meet: Callable[[str], object]) -> None:
        super().__init__(catalog.reader, catalog.writer)
        object.__setattr__(self, "meet", meet)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        self.meet("reading")
        with super().reading() as session:
            yield session
        self.meet("read")

    @contextmanager
    def writing(self) -> Iterator[Session]:
        self.meet("transaction")
        with super().writing() as session:
            yield session
            session.flush()
            self.meet("commit")
        self.meet("committed")


class SteppedCatalog(MomentCatalog):
    """The catalog of a registry; `step` is called before and after every session."""

    def __init__(self, catalog: Catalog, step: Callable[[], None]) -> None:
        super().__init__(catalog, lambda moment: None if moment == "commit" else step())


def act_at_step(number: int, act: Callable[[], None]) -> Callable[[], None]:
    """Return a step that calls `act` when it is called for the `number`-th time."""
    steps = iter(range(1, 1_000_000))

    def step() -> None:
        if next(steps) == number:
            act()

    return step


def crash() -> None:
    raise Crash


def run_sweep(registry: LocalRegistry, grace: timedelta = GRACE) -> SweepReport:
    return sweep(registry.catalog, registry.blobs, grace=grace, dry_run=False)


def verify_all(registry: LocalRegistry) -> VerifyReport:
    return verify(registry.catalog, registry.blobs, read_data=EVERYTHING)


def random_bytes(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng([size, seed]).bytes(size)


def add_unneeded_blobs(registry: LocalRegistry, *blobs: StoredBlob) -> None:
    """Record blobs without any use, as a failed ingest leaves them."""
    with registry.catalog.writing() as session:
        ingest_id = begin_ingest(session, "a test")
        assert record_blobs(session, ingest_id, blobs) == []
        end_ingest(session, ingest_id, "failed")


def litter(registry: LocalRegistry, seed: int = 0) -> None:
    """Create two doomed blobs, two that will be doomed, an orphan and a temporary file; all long untouched."""
    for more in (0, 1):
        large, small = random_bytes(LARGE + more, seed), random_bytes(SMALL + more, seed)
        add_unneeded_blobs(registry, registry.blobs.put(large), registry.blobs.put(small))
        let_time_pass(registry)
        if not more:
            run_sweep(registry)
    registry.blobs.put(random_bytes(LARGE + 2, seed))
    (registry.settings.blobs / "tmp" / f"{digest_of(b'half')}.0123456789abcdef").write_bytes(b"half")
    let_time_pass(registry)


def blob_states(registry: LocalRegistry) -> dict[str, str]:
    return {row.digest: row.state for row in blob_rows(registry)}
