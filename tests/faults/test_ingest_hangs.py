"""Tests that an ingest never hangs: with minimal buffers, when its threads cannot start, or when one dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from organs.ingest import hashing, pipeline
from organs.ingest.hashing import Stages
from organs.registry.local import LocalRegistry
from organs.registry.store.folder import PendingFile
from tests.faults.failing import (
    assert_comes_back,
    assert_no_orphans,
    ingest_path,
    model_names,
    verify_all,
    without_syncing,
    write_model,
)
from tests.gguf_files import file_bytes
from tests.small_models import Tensors, block_metadata, weight_tensor

PATIENCE_SECONDS = 60.0
KEPT = 2
"""Chunks of a piece that are kept, and the number of all buffers."""
MEBI = 1 << 20


def ended(work: Callable[[], object]) -> BaseException | None:
    """Return the exception of `work`, which must end."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # handed on to the caller
            raised.append(error)

    thread = threading.Thread(target=run, name="a test", daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "it stands still"
    return raised[0] if raised else None


def large_and_small() -> Tensors:
    """Return tensors with more chunks than are kept, with as many, with one, with almost none, and equal ones, in mixed
    order.
    """
    sizes = [16, 8, 2 * KEPT * MEBI, 32, (2 * KEPT + 1) * MEBI, 2 * MEBI + 32, 8, 2 * MEBI + 64]
    named = [weight_tensor(f"blk.{number}.ffn_up.weight", (size,)) for number, size in enumerate(sizes)]
    return [*named, (weight_tensor("output.weight", (sizes[2],))[0], named[2][1])]


def test_an_ingest_with_minimal_buffers_finishes(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "HELD_CHUNKS_MAX", KEPT)
    monkeypatch.setattr(pipeline, "BUFFERS", KEPT)
    monkeypatch.setattr(pipeline, "PIECES_AHEAD", 1)
    monkeypatch.setattr(pipeline, "SYNCERS", 1)
    monkeypatch.setattr(pipeline, "WRITERS_MAX", 1)
    monkeypatch.setattr(pipeline, "CHUNKS_MAX", 1)
    path = tmp_path / "little.gguf"
    path.write_bytes(file_bytes(block_metadata(), large_and_small()))
    quick = without_syncing(registry)
    for _ in range(2):
        assert ended(lambda: ingest_path(quick, path)) is None
    assert_comes_back(quick, path)


@pytest.mark.folder
def test_few_pieces_hold_memory_while_the_disk_is_slow(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, enough, too_many, is_slow = (threading.Lock(), *(threading.Event() for _ in range(3)))
    opened: list[int] = [0]
    """The number of open files after each change."""
    begin, place = PendingFile.__init__, PendingFile.place

    def count(change: int) -> None:
        with lock:
            opened.append(opened[-1] + change)
            if opened[-1] >= pipeline.WRITERS_MAX:
                enough.set()
            if opened[-1] > pipeline.WRITERS_MAX:
                too_many.set()

    def count_begun(pending: PendingFile, *arguments: Any) -> None:
        begin(pending, *arguments)
        count(1)

    def place_slowly(pending: PendingFile, front: bytes = b"") -> str:
        if not is_slow.is_set():  # nothing is placed before all places are taken, and time for one more has passed
            enough.wait(PATIENCE_SECONDS)
            too_many.wait(0.2)
            is_slow.set()
        file = place(pending, front)
        count(-1)
        return file

    monkeypatch.setattr(PendingFile, "__init__", count_begun)
    monkeypatch.setattr(PendingFile, "place", place_slowly)
    path = tmp_path / "many.gguf"
    many = [
        weight_tensor(f"blk.{number}.ffn_up.weight", (256, 256), number) for number in range(3 * pipeline.WRITERS_MAX)
    ]
    path.write_bytes(file_bytes(block_metadata(), many))
    ingest_path(registry, path)
    assert opened[-1] == 0
    assert max(opened) == pipeline.WRITERS_MAX


@pytest.mark.folder
@pytest.mark.parametrize("name", ["reader", "feeder", "file-hash", "ingest_0", "sync_0"])
def test_an_ingest_fails_when_a_thread_cannot_start_and_succeeds_later(
    name: str, registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        real(thread)

    path = write_model(tmp_path / "little.gguf")
    monkeypatch.setattr(threading.Thread, "start", start)
    assert isinstance(ended(lambda: ingest_path(registry, path)), RuntimeError)
    monkeypatch.undo()
    assert model_names(registry) == []
    assert ingest_path(registry, path).created
    assert_no_orphans(registry)
    assert verify_all(registry).faults == []


def test_an_ingest_whose_file_cannot_be_hashed_fails_instead_of_recording_a_wrong_digest(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Stages.timed

    def fail(stages: Stages, stage: str, size_bytes: int = 0) -> AbstractContextManager[None]:
        if stage == "hash file":
            raise MemoryError
        return timed(stages, stage, size_bytes)

    monkeypatch.setattr(Stages, "timed", fail)
    path = write_model(tmp_path / "little.gguf")
    assert isinstance(ended(lambda: ingest_path(registry, path)), MemoryError)
    assert model_names(registry) == []
