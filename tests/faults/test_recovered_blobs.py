"""Tests of recovered blobs: a blob with wrong bytes is used again when its bytes are right again.

The damage is real: bits of a blob's file, or of its row, are flipped and flipped back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import select, update

from organs.registry import upkeep
from organs.registry.assembly import first_header
from organs.registry.backup import back_up
from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.tables import Blob, EventRow
from organs.registry.compose.build import plan_lock
from organs.registry.compose.lock import Lock, LockedTensor
from organs.registry.digest import Digest, digest_of
from organs.registry.errors import CorruptBlob, NotAssemblable
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.store import BlobStore
from organs.registry.store.blobs import LOOK_AGAIN_SECONDS, SecondLooks
from organs.registry.store.files import Files
from organs.registry.upkeep import set_aside, take_back, verify
from tests.cli.in_process import OrganCommand
from tests.faults.failing import EVERYTHING, flip_bit, verify_all
from tests.faults.test_blob_store import damage, in_file, inline, stored_bytes
from tests.postgres import open_on_sqlite

Kind = Callable[[LocalRegistry], KnownBlob]
MODEL = "local/little"
HEAD_MAX_BYTES = 4096
"""The plain size of these blobs. A longer read in one call is a chunk."""


@pytest.fixture
def data(filled_home: Path) -> bytes:
    """Return the bytes of the model's file."""
    return (filled_home.parent / "little.gguf").read_bytes()


def flip(registry: LocalRegistry, row: KnownBlob) -> bytes:
    """Flip one bit of the last stored byte; return the original stored bytes."""
    stored = stored_bytes(registry, row)
    damage(registry, row, flip_bit(stored, 8 * (len(stored) - 1)))
    return stored


def current(registry: LocalRegistry, row: KnownBlob) -> KnownBlob:
    with registry.catalog.reading() as session:
        return blobs_by_digest(session, [row.digest])[row.digest]


def flipped_and_set_aside(registry: LocalRegistry, kind: Kind = in_file) -> tuple[KnownBlob, bytes]:
    """Return a blob that was set aside because of a flipped bit, and its original stored bytes."""
    row = kind(registry)
    stored = flip(registry, row)
    assert verify(registry.catalog, registry.blobs, read_data=EVERYTHING, repair=True).quarantined == 1
    assert current(registry, row).state == "corrupt"
    return current(registry, row), stored


def flipped_and_back(registry: LocalRegistry, kind: Kind = in_file) -> KnownBlob:
    """Return a blob that was set aside because of a flipped bit, and that has its original bytes again."""
    row, stored = flipped_and_set_aside(registry, kind)
    damage(registry, row, stored)
    return current(registry, row)


def events(registry: LocalRegistry) -> list[str]:
    """Return the events about stored bytes, oldest first, each with the first word of its text."""
    with registry.catalog.reading() as session:
        statement = select(EventRow.action, EventRow.text).where(EventRow.action.like("%blob")).order_by(EventRow.id)
        return [f"{action} {text.split(',')[0]}" for action, text in session.execute(statement)]


def taken_back(row: KnownBlob) -> list[str]:
    return [f"set aside blob {row.digest}", f"take back blob {row.digest}"]


@pytest.mark.folder
@pytest.mark.parametrize("kind", [in_file, inline])
@pytest.mark.parametrize(
    "words", [["assemble", MODEL, "-o", "back.gguf"], ["extract", MODEL, "-o", "folder"]], ids=["assemble", "extract"]
)
def test_a_command_that_reads_a_repaired_blob_takes_it_back_into_use(
    words: list[str], kind: Kind, filled: LocalRegistry, organ: OrganCommand, data: bytes, tmp_path: Path
) -> None:
    row = flipped_and_back(filled, kind)
    done = organ(*words[:-1], tmp_path / words[-1])
    assert done.status == 0, done.err
    if words[0] == "assemble":
        assert (tmp_path / "back.gguf").read_bytes() == data
    assert current(filled, row).state == "present"
    assert events(filled) == taken_back(row)


@pytest.mark.folder
@pytest.mark.parametrize("kind", [in_file, inline])
def test_a_blob_with_wrong_bytes_stays_set_aside(
    kind: Kind, filled: LocalRegistry, organ: OrganCommand, tmp_path: Path
) -> None:
    row, _ = flipped_and_set_aside(filled, kind)
    refused = organ("assemble", MODEL, "-o", tmp_path / "back.gguf")
    assert refused.status == 7
    assert row.digest[:12] in refused.err
    assert not (tmp_path / "back.gguf").exists()
    assert current(filled, row).state == "corrupt"
    assert events(filled) == [f"set aside blob {row.digest}"]


@pytest.mark.folder
@pytest.mark.parametrize("kind", [in_file, inline])
def test_verify_reports_a_repaired_blob_and_takes_it_back_with_repair(
    kind: Kind, filled: LocalRegistry, organ: OrganCommand
) -> None:
    row = flipped_and_back(filled, kind)
    looked = organ("verify")
    assert looked.status == 0
    assert "1 blobs that were set aside have the right bytes again; the next read" in looked.out
    assert json.loads(organ("verify", "--json").out)["recovered"] == [row.digest]
    assert current(filled, row).state == "corrupt", "without --repair, verify changes nothing"
    assert "in use again" in organ("verify", "--repair").out
    assert current(filled, row).state == "present"
    assert events(filled) == taken_back(row)
    assert "set aside" not in organ("verify").out


@pytest.mark.folder
def test_a_plan_takes_a_repaired_blob_back_and_the_lock_of_a_damaged_one_is_refused(filled: LocalRegistry) -> None:
    row, stored = flipped_and_set_aside(filled)
    elements = row.size_bytes // 2
    with filled.catalog.reading() as session:
        header = first_header(session, filled.blobs, model_by_text(session, MODEL))
    spec = TensorSpec("blk.0.ffn_up.weight", (elements,), dtype_by_name("F16"))
    lock = Lock(Digest(header.file.header_sha256), (LockedTensor(spec, row.digest),), (), ())
    with filled.catalog.reading() as session, pytest.raises(NotAssemblable, match="is damaged"):
        plan_lock(session, filled.blobs, lock, "again.gguf")
    damage(filled, row, stored)
    with filled.catalog.reading() as session:
        plan_lock(session, filled.blobs, lock, "again.gguf")
    assert current(filled, row).state == "present"


@pytest.mark.folder
def test_a_backup_takes_a_repaired_blob_back_and_copies_it_again(filled: LocalRegistry, tmp_path: Path) -> None:
    row = in_file(filled)
    stored = flip(filled, row)
    folder = tmp_path / "copy"
    back_up(filled.catalog, filled.blobs, filled.settings, folder)  # copies the wrong bytes, whose size is right
    set_aside(filled.catalog, [row])
    report = back_up(filled.catalog, filled.blobs, filled.settings, folder)
    assert [fault.digest for fault in report.faults] == [row.digest]
    damage(filled, row, stored)
    assert back_up(filled.catalog, filled.blobs, filled.settings, folder).faults == []
    assert current(filled, row).state == "present"
    with open_on_sqlite(folder) as copy:
        assert verify_all(copy).faults == []


class UnsteadyFiles(Files):
    """A disk that returns one wrong bit in every chunk while `is_bad`; its files never change."""

    def __init__(self) -> None:
        self.is_bad = False
        self.chunks_read = 0

    def read_at(self, descriptor: int, offset: int, size: int) -> bytes:
        data = super().read_at(descriptor, offset, size)
        if size <= HEAD_MAX_BYTES:
            return data
        self.chunks_read += 1
        return flip_bit(data, 8 * (len(data) - 1)) if self.is_bad else data


class Clock:
    """A clock that the test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class Unsteady:
    """The blobs of a registry on an unsteady disk, with the clock of their repeated checks."""

    registry: LocalRegistry
    row: KnownBlob
    files: UnsteadyFiles
    clock: Clock
    store: BlobStore

    def opens(self) -> bool:
        """Return whether a request for the blob that is set aside is served."""
        try:
            self.store.open(current(self.registry, self.row)).close()
        except CorruptBlob:
            return False
        return True


@pytest.fixture
def unsteady(filled: LocalRegistry) -> Unsteady:
    row, files, clock = in_file(filled), UnsteadyFiles(), Clock()
    store = BlobStore(filled.settings.blobs, files, partial(take_back, filled.catalog), SecondLooks(clock))
    set_aside(filled.catalog, [row])
    return Unsteady(filled, row, files, clock, store)


@pytest.mark.folder
def test_a_faulty_blob_is_read_at_most_once_a_minute(unsteady: Unsteady) -> None:
    unsteady.files.is_bad = True
    assert not any(unsteady.opens() for _ in range(10))
    assert unsteady.files.chunks_read == 1
    unsteady.files.is_bad = False
    assert not unsteady.opens(), "its bytes may be right again, but it was read less than a minute ago"
    unsteady.clock.now += LOOK_AGAIN_SECONDS
    assert unsteady.opens()
    assert unsteady.files.chunks_read == 2
    assert events(unsteady.registry) == taken_back(unsteady.row)


@pytest.mark.folder
def test_an_unstable_blob_is_not_taken_back_at_every_read(unsteady: Unsteady) -> None:
    assert unsteady.opens()
    for _ in range(5):
        set_aside(unsteady.registry.catalog, [unsteady.row])
        assert unsteady.opens(), "each chunk is checked when it is read"
    assert unsteady.files.chunks_read == 1
    assert events(unsteady.registry) == [*taken_back(unsteady.row), f"set aside blob {unsteady.row.digest}"]
    unsteady.clock.now += LOOK_AGAIN_SECONDS
    assert unsteady.opens()
    assert current(unsteady.registry, unsteady.row).state == "present"


@pytest.mark.folder
def test_a_rewritten_file_is_read_again_immediately(unsteady: Unsteady) -> None:
    unsteady.files.is_bad = True
    assert not unsteady.opens()
    unsteady.files.is_bad = False
    damage(unsteady.registry, unsteady.row, stored_bytes(unsteady.registry, unsteady.row))
    assert unsteady.opens()


@pytest.mark.folder
def test_one_of_concurrent_readers_checks_the_blob_and_all_read_it(unsteady: Unsteady) -> None:
    row, readers = current(unsteady.registry, unsteady.row), 4
    together = Barrier(readers)

    def read(_number: int) -> bytes:
        together.wait()
        with unsteady.store.open(row) as reader:
            return reader.read()

    with ThreadPoolExecutor(readers) as pool:
        found = set(pool.map(read, range(readers)))
    assert [digest_of(plain) for plain in found] == [row.digest]
    assert unsteady.files.chunks_read == 1 + readers
    assert events(unsteady.registry) == taken_back(row)


@pytest.mark.folder
def test_a_repaired_blob_is_read_while_the_database_is_locked(
    unsteady: Unsteady, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "TAKE_BACK_PAUSE_SECONDS", 0.0)
    with unsteady.registry.catalog.writing() as session:
        session.execute(update(Blob).values(state=Blob.state))
        assert unsteady.opens()
    assert current(unsteady.registry, unsteady.row).state == "corrupt"
    unsteady.clock.now += LOOK_AGAIN_SECONDS
    assert unsteady.opens()
    assert current(unsteady.registry, unsteady.row).state == "present"
