"""Tests of the stream of a planned file: bytes in order, each checked; every file handle is closed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from organs.registry.assembly import (
    FilePlan,
    FileStream,
    PlannedSlice,
    plan_model,
)
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.errors import CorruptBlob
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.gguf_files import file_bytes
from tests.registry_templates import RegistryTemplates
from tests.small_models import ingest_file, weight_tensor

CHUNK = 4 << 20


def mixed_model() -> bytes:
    """Return small inline organs between large ones, one of several chunks."""
    numbers = np.random.default_rng(1).integers(-9, 9, 2 * CHUNK + 12_345, dtype=np.int8).tobytes()
    long = TensorSpec("blk.1.ffn_up.weight", (len(numbers),), dtype_by_name("I8"))
    return file_bytes(
        [],
        [
            weight_tensor("token_embd.weight", (256, 300)),
            weight_tensor("blk.0.attn_norm.weight", (5,)),
            (long, numbers),
            weight_tensor("blk.1.attn_norm.weight", (7,)),
            weight_tensor("output.weight", (256, 300)),
        ],
    )


def add_mixed_model(registry: LocalRegistry, folder: Path) -> None:
    (folder / "a.gguf").write_bytes(mixed_model())
    ingest_file(registry, folder / "a.gguf")


@pytest.fixture
def data() -> bytes:
    return mixed_model()


@pytest.fixture
def plan(registry: LocalRegistry, templates: RegistryTemplates) -> FilePlan:
    templates.fill(registry, add_mixed_model)
    with registry.catalog.reading() as session:
        (planned,) = plan_model(session, model_by_name(session, parse_model_name("a")))
    return planned


def largest_file(registry: LocalRegistry) -> Path:
    return max(registry.settings.blobs.glob("??/*"), key=lambda path: path.stat().st_size)


def open_blobs(registry: LocalRegistry) -> list[str]:
    links = (os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if _is_open(number))
    return [link for link in links if link.startswith(str(registry.settings.blobs))]


def _is_open(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_bytes_come_in_order_with_any_number_of_threads(
    workers: int, registry: LocalRegistry, plan: FilePlan, data: bytes
) -> None:
    with FileStream(registry.blobs, plan, workers=workers) as stream:
        assert b"".join(map(bytes, stream)) == data
    assert open_blobs(registry) == []


def test_a_literal_comes_first_and_gaps_are_zeros(registry: LocalRegistry, plan: FilePlan) -> None:
    blob = max(plan.slices, key=lambda piece: piece.size_bytes).blob
    small_plan = FilePlan("made", 600_000, None, b"literal", (PlannedSlice(100, 50, blob, 0),))
    with FileStream(registry.blobs, plan) as stream:
        model_data = b"".join(map(bytes, stream))
    largest = max(plan.slices, key=lambda piece: piece.size_bytes)
    plain = model_data[largest.offset_bytes : largest.offset_bytes + largest.size_bytes]
    with FileStream(registry.blobs, small_plan) as stream:
        content = b"".join(map(bytes, stream))
    assert content == (b"literal".ljust(100, b"\0") + plain[:50]).ljust(600_000, b"\0")


@pytest.mark.folder
def test_a_reader_that_stops_early_leaves_nothing_open(registry: LocalRegistry, plan: FilePlan) -> None:
    before = set(threading.enumerate())
    with FileStream(registry.blobs, plan) as stream:
        for view in stream:
            if len(view) == CHUNK:
                break
        assert open_blobs(registry) != []
    assert open_blobs(registry) == []
    assert set(threading.enumerate()) <= before


def flip_first(path: Path) -> None:
    flip(path, 0)


def flip_middle(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def flip_last(path: Path) -> None:
    flip(path, path.stat().st_size - 1)


def flip(path: Path, place: int) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[place] ^= 0x20
    path.write_bytes(data)


@pytest.mark.folder
@pytest.mark.parametrize("damage", [flip_first, flip_middle, flip_last])
def test_a_flipped_bit_stops_the_stream_before_its_bytes_go_out(
    damage: Callable[[Path], None], registry: LocalRegistry, plan: FilePlan, data: bytes
) -> None:
    damage(largest_file(registry))
    received = bytearray()

    def receive() -> None:
        with FileStream(registry.blobs, plan) as stream:
            for view in stream:
                received.extend(view)

    with pytest.raises(CorruptBlob):
        receive()
    assert len(received) < len(data)
    assert received == data[: len(received)], "what went out before is right"
    assert open_blobs(registry) == []
