"""Stacks of experts: each expert is stored, measured and recorded as an organ of its own; the stack stays exact."""

from __future__ import annotations

import hashlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from organs.registry import experts
from organs.registry.anatomy import Slot
from organs.registry.assembly import place_file, plan_organ, plan_shards
from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.organs import ModelExpert, model_experts, organ_detail
from organs.registry.catalog.register import models
from organs.registry.catalog.register import organs as organ_rows
from organs.registry.catalog.register.model_changes import hide_model, remove_model
from organs.registry.catalog.register.organs import begin_ingest, insert_experts, record_blobs, record_stacks
from organs.registry.catalog.tables import Blob, BlobPart, Expert, InlineBlob, ModelRow, OrganRow, Placement
from organs.registry.digest import Digest, digest_of
from organs.registry.experts import split_stacks
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.relatives import comparison
from organs.registry.store import BlobStore
from organs.registry.store.files import Files
from organs.registry.upkeep import Fault, Share, sweep, verify
from tests.faults.failing import blob_rows, flip_bit
from tests.gguf_files import file_bytes
from tests.small_models import (
    EXPERTS,
    assemble_model,
    assert_round_trip,
    block_metadata,
    block_tensors,
    expert_model,
    expert_stack,
    ingest_file,
    row_counts,
)

EVERYTHING = Share(1, 1)
STACK = "blk.1.ffn_up_exps.weight"
EXPERT_BYTES = 64 * 48 * 2


def _write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / f"{name}.gguf"
    path.write_bytes(data)
    return path


def _experts(registry: LocalRegistry, model: str, stack: str = STACK) -> list[tuple[int, str, Expert]]:
    """Return number, digest and row of each expert of a stack."""
    with registry.catalog.reading() as session:
        row = model_by_name(session, parse_model_name(model))
        statement = (
            select(Expert.expert, Blob.digest, Expert)
            .join(Placement, Placement.id == Expert.placement_id)
            .join(OrganRow, OrganRow.id == Expert.organ_id)
            .join(Blob, Blob.id == OrganRow.blob_id)
            .where(Placement.model_id == row.id, Placement.name == stack)
            .order_by(Expert.expert)
        )
        return [(number, digest, expert) for number, digest, expert in session.execute(statement)]


@pytest.fixture
def mixture(registry: LocalRegistry, tmp_path: Path) -> Path:
    """The file of a model with stacks, which is in the registry."""
    path = _write(tmp_path, "Mixture", expert_model())
    assert ingest_file(registry, path).known_bytes == 0
    return path


def faults_of(registry: LocalRegistry, share: Share = EVERYTHING) -> list[Fault]:
    return list(verify(registry.catalog, registry.blobs, read_data=share).faults)


def test_each_expert_is_an_organ_with_its_own_digest_and_measures(registry: LocalRegistry, mixture: Path) -> None:
    _, stack = expert_stack(STACK)
    experts = _experts(registry, "local/Mixture")
    assert [number for number, _, _ in experts] == list(range(EXPERTS))
    for number, digest, row in experts:
        data = stack[number * EXPERT_BYTES : (number + 1) * EXPERT_BYTES]
        assert digest == hashlib.sha256(data).hexdigest()
        assert row.size_bytes == EXPERT_BYTES
        assert row.theta is not None
        assert row.spectral_signal is not None
        assert (row.type, row.slot, row.block, row.visible) == ("organ", "ffn_up_exps", 1, True)
        with registry.catalog.reading() as session:
            organ = organ_detail(session, digest, visible=True)
        assert organ.shape == (64, 48)
        assert organ.nonfinite == 0
    with registry.catalog.writing() as session:
        hide_model(session, session.scalars(select(ModelRow)).one(), "yanked", "test", "local")
    assert not any(row.visible for _, _, row in _experts(registry, "local/Mixture"))


def test_the_stack_keeps_its_digest_and_has_no_bytes_of_its_own(
    registry: LocalRegistry, mixture: Path, tmp_path: Path
) -> None:
    _, data = expert_stack(STACK)
    digest = Digest(hashlib.sha256(data).hexdigest())
    with registry.catalog.reading() as session:
        row = blobs_by_digest(session, [digest])[digest]
    assert (row.stored_bytes, row.file, row.inline) == (0, None, None)
    assert [part.size_bytes for part in row.parts] == [EXPERT_BYTES] * EXPERTS
    assert place_file(registry.blobs, plan_organ(row), tmp_path / "stack.raw") == digest
    with registry.blobs.open(row) as reader:
        assert reader.read(EXPERT_BYTES - 10, 20) == data[EXPERT_BYTES - 10 : EXPERT_BYTES + 10]
        assert b"".join(map(bytes, reader.stream())) == data
        reader.verify()


def test_a_model_with_two_other_experts_stores_only_these(
    registry: LocalRegistry, mixture: Path, tmp_path: Path
) -> None:
    report = ingest_file(registry, _write(tmp_path, "Edited", expert_model("Edited", changed={2: 50, 5: 51})))
    stacks = 4
    assert report.new_bytes < stacks * 2 * EXPERT_BYTES + 4096
    pairs = zip(_experts(registry, "local/Mixture"), _experts(registry, "local/Edited"), strict=True)
    assert [number for (number, digest, _), (_, other, _) in pairs if digest != other] == [2, 5]
    (back,) = assemble_model(registry, "local/Edited", tmp_path / "out")
    assert back.read_bytes() == (tmp_path / "Edited.gguf").read_bytes()


@pytest.mark.long
def test_a_comparison_has_few_stacks_in_memory(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest_file(registry, _write(tmp_path, "Mixture", expert_model(blocks=10)))
    ingest_file(registry, _write(tmp_path, "Edited", expert_model("Edited", blocks=10, changed={2: 50, 5: 51})))
    loaded: list[int] = []

    def counted(*arguments: Any) -> dict[Slot, list[ModelExpert]]:
        experts = model_experts(*arguments)
        loaded.append(sum(map(len, experts.values())))
        return experts

    monkeypatch.setattr(comparison, "model_experts", counted)
    stacks = registry.compare("local/Mixture", "local/Edited").stacks
    assert [[expert.expert for expert in stack.changed] for stack in stacks] == [[2, 5]] * 20
    assert sum(loaded) == 2 * 20 * EXPERTS
    assert max(loaded) <= comparison.STACKS_IN_MEMORY * EXPERTS


@pytest.mark.long
def test_two_ingests_of_models_that_share_experts_in_opposite_orders_both_finish(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest_file(registry, _write(tmp_path, "First", expert_model("First", seed=9)))  # adds their facets
    meeting = Barrier(2)

    def meet(session: Session, model: ModelRow, measured: Any) -> int:
        with suppress(BrokenBarrierError):  # if the database has one writer at a time
            meeting.wait(0.5)
        return insert_experts(session, model, measured)

    monkeypatch.setattr(models, "insert_experts", meet)
    names = [f"blk.{block}.ffn_{slot}_exps.weight" for block in range(4) for slot in ("gate", "up")]
    paths = []
    for number, name in enumerate(("Forward", "Backward")):
        stacks = [expert_stack(stack, changed={0: 50 + number}) for stack in names[:: 1 - 2 * number]]
        data = file_bytes(block_metadata(name), [*block_tensors(seed=number), *stacks])
        paths.append(_write(tmp_path, name, data))
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(partial(ingest_file, registry), paths))
    assert [report.model for report in reports] == ["local/Forward@1", "local/Backward@1"]
    assert len(registry.search("expert>=0", limit=200)) == (2 * len(names) + 4) * EXPERTS
    assert faults_of(registry) == []


def test_verify_reads_stacks_and_names_the_expert_of_a_damaged_blob(registry: LocalRegistry, mixture: Path) -> None:
    assert faults_of(registry) == []
    digest = _experts(registry, "local/Mixture")[3][1]
    with registry.catalog.writing() as session:
        session.execute(update(Blob).where(Blob.digest == digest).values(stored_bytes=7))
    found = [(fault.digest, fault.needed_by) for fault in faults_of(registry)]
    assert found == [(digest, (f"local/Mixture@1: {STACK}, expert 3",))]


class _CountingFiles(Files):
    """A disk that counts how often each file is opened."""

    def __init__(self) -> None:
        self.opened: Counter[str] = Counter()

    def open_to_read(self, path: Path) -> int:
        self.opened[path.name] += 1
        return super().open_to_read(path)


@pytest.mark.folder
def test_verify_reads_the_file_of_each_expert_once(registry: LocalRegistry, tmp_path: Path) -> None:
    spec = TensorSpec(STACK, (256, 160, 4), dtype_by_name("F16"))  # experts of 80 KiB, each in a file of its own
    stacks = [(spec, np.random.default_rng(1).bytes(spec.size_bytes))]
    ingest_file(registry, _write(tmp_path, "Large", file_bytes(block_metadata(), stacks)))
    files = _CountingFiles()
    report = verify(registry.catalog, BlobStore(registry.settings.blobs, files), read_data=Share(1, 1))
    assert list(files.opened.values()) == [1] * 4
    assert report.read_bytes == sum(row.size_bytes for row in blob_rows(registry))


def test_shares_read_each_expert_once_and_one_of_them_finds_a_damaged_one(
    registry: LocalRegistry, mixture: Path
) -> None:
    rows = blob_rows(registry)
    shares = [Share(number, 7) for number in range(1, 8)]
    reports = [verify(registry.catalog, registry.blobs, read_data=share) for share in shares]
    assert sum(report.read_bytes for report in reports) == sum(row.size_bytes for row in rows)
    digest = _experts(registry, "local/Mixture")[3][1]
    (row,) = (row for row in rows if row.digest == digest)
    assert row.inline is not None
    with registry.catalog.writing() as session:
        damaged = flip_bit(row.inline, 8 * len(row.inline) - 1)
        session.execute(update(InlineBlob).where(InlineBlob.blob_id == row.id).values(stored=damaged))
    reports = [verify(registry.catalog, registry.blobs, read_data=share) for share in shares]
    assert [[fault.digest for fault in report.faults] for report in reports].count([digest]) == 1
    assert sum(len(report.faults) for report in reports) == 1
    whole = sum(row.size_bytes for row in rows)
    assert sum(report.read_bytes for report in reports) == whole - row.size_bytes


def test_verify_finds_a_stack_whose_parts_are_in_another_order(registry: LocalRegistry, mixture: Path) -> None:
    digest = hashlib.sha256(expert_stack(STACK)[1]).hexdigest()
    parts = update(BlobPart).where(BlobPart.blob_id == select(Blob.id).where(Blob.digest == digest).scalar_subquery())
    with registry.catalog.writing() as session:
        for position, other in ((0, 100), (1, 0), (100, 1)):
            session.execute(parts.where(BlobPart.position == position).values(position=other))
    assert [(fault.digest, fault.needed_by) for fault in faults_of(registry)] == [
        (digest, (f"local/Mixture@1: {STACK}",))
    ]


def test_another_ingest_adds_only_experts_that_were_not_recorded(registry: LocalRegistry, mixture: Path) -> None:
    before, experts = row_counts(registry), [(number, digest) for number, digest, _ in _experts(registry, "Mixture")]
    assert not ingest_file(registry, mixture).created
    after = row_counts(registry)
    assert after == before | {"ingests": before["ingests"] + 1, "known_files": after["known_files"]}
    with registry.catalog.writing() as session:
        session.execute(Expert.__table__.delete())
    assert not ingest_file(registry, mixture).created
    assert [(number, digest) for number, digest, _ in _experts(registry, "Mixture")] == experts


def test_removing_a_model_frees_the_experts_that_no_other_model_has(
    registry: LocalRegistry, mixture: Path, tmp_path: Path
) -> None:
    kept = row_counts(registry)
    ingest_file(registry, _write(tmp_path, "Edited", expert_model("Edited", changed={2: 50})))
    with registry.catalog.writing() as session:
        remove_model(session, session.scalars(select(ModelRow).where(ModelRow.name == "Edited")).one(), "test", "local")
    for _ in range(4):  # the stacks first, then their experts
        sweep(registry.catalog, registry.blobs, grace=timedelta(0), dry_run=False)
    counts = row_counts(registry)
    for table in ("blobs", "blob_parts", "experts", "organs", "measurements", "fingerprints"):
        assert counts[table] == kept[table], table
    assemble_model(registry, "local/Mixture", tmp_path / "out")
    assert faults_of(registry) == []


@pytest.mark.parametrize(("shape", "count"), [((64, 48, 2), 2), ((64, 4, 8), 0), ((64, 48, 1), 0), ((64, 48), 0)])
def test_a_stack_is_split_only_if_its_experts_are_large_enough(
    registry: LocalRegistry, tmp_path: Path, shape: tuple[int, ...], count: int
) -> None:
    spec = TensorSpec(STACK, shape, dtype_by_name("F16"))
    data = bytes(range(256)) * (spec.size_bytes // 256)
    path = _write(tmp_path, "Odd", file_bytes(block_metadata(), [(spec, data)]))
    assert_round_trip(registry, path, tmp_path / "out")
    assert len(_experts(registry, "local/Odd")) == count


def test_experts_of_zeros_that_equal_a_stack_of_zeros_are_stored(registry: LocalRegistry, tmp_path: Path) -> None:
    small, large = (TensorSpec(STACK, (64, rows, 2), dtype_by_name("F16")) for rows in (48, 96))
    for name, spec in (
        ("Small", small),
        ("Large", large),
        ("Again", small),
    ):  # an expert of Large is the stack of Small
        data = bytes(spec.size_bytes)
        path = _write(tmp_path, name, file_bytes(block_metadata(name), [(spec, data)]))
        assert_round_trip(registry, path, tmp_path / f"out-{name}")
    for name in ("Small", "Large", "Again"):
        (back,) = assemble_model(registry, f"local/{name}", tmp_path / f"again-{name}")
        assert back.read_bytes() == (tmp_path / f"{name}.gguf").read_bytes()
    assert faults_of(registry) == []


def test_an_expert_of_a_later_batch_stays_a_blob_if_its_bytes_are_those_of_an_earlier_stack(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(organ_rows, "STACKS_A_STATEMENT", 1)
    half, whole = (
        TensorSpec(f"blk.{block}.ffn_up_exps.weight", (64, 48 << block, 2), dtype_by_name("F16")) for block in (0, 1)
    )
    zeros = bytes(half.size_bytes)
    data = zeros + b"\x1f\x3c" * (half.size_bytes // 2)
    assert digest_of(zeros) < digest_of(data), "the stack of zeros is recorded before the stack of which it is a part"
    path = _write(tmp_path, "Zeros", file_bytes(block_metadata("Zeros"), [(half, zeros), (whole, data)]))
    assert_round_trip(registry, path, tmp_path / "out")
    with registry.catalog.reading() as session:
        row = blobs_by_digest(session, [digest_of(zeros)])[digest_of(zeros)]
    assert row.parts == ()
    assert faults_of(registry) == []


def test_a_blob_that_another_running_ingest_stored_does_not_become_a_stack(registry: LocalRegistry) -> None:
    zeros, other, half = bytes(200_000), bytes(range(250)) * 800, bytes(100_000)
    with registry.catalog.writing() as session:
        first, second = begin_ingest(session, "first"), begin_ingest(session, "second")
    for ingest, blobs in ((first, [zeros, other]), (second, [half])):
        with registry.catalog.writing() as session:
            record_blobs(session, ingest, [registry.blobs.put(data) for data in blobs])
    with registry.catalog.writing() as session:
        record_stacks(session, second, {digest_of(zeros): [digest_of(half)] * 2})
    with registry.catalog.writing() as session:
        record_stacks(session, first, {digest_of(zeros + other): [digest_of(zeros), digest_of(other)]})
    with registry.catalog.reading() as session:
        rows = blobs_by_digest(session, [digest_of(zeros), digest_of(zeros + other)])
    assert rows[digest_of(zeros)].parts == ()
    assert registry.blobs.open(rows[digest_of(zeros + other)]).read() == zeros + other


def test_a_file_of_many_small_experts_fills_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (dtype_by_name("F16"), (64, 32, 4)), (dtype_by_name("F16"), (256, 256, 4))
    tensors = [TensorSpec(f"blk.{n}.ffn_up_exps.weight", (small if n % 2 else large)[1], small[0]) for n in range(8)]
    assert list(split_stacks(tensors).values()) == [4] * 8
    monkeypatch.setattr(experts, "SMALL_EXPERTS_MAX", 9)
    assert [int(name.split(".")[1]) for name in split_stacks(tensors)] == [0, 1, 2, 3, 4, 6]
    monkeypatch.setattr(experts, "EXPERTS_MAX", 12)
    assert [int(name.split(".")[1]) for name in split_stacks(tensors)] == [0, 1, 2]


def test_experts_of_shards_that_arrive_one_at_a_time_are_found_when_the_last_is_there(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    with LocalRegistry.open(tmp_path / "other") as other:
        ingest_file(other, _write(tmp_path, "Mixture", expert_model()))
        with other.catalog.reading() as session:
            model = model_by_name(session, parse_model_name("local/Mixture"))
            plans = plan_shards(session, other.blobs, model, "Split", 100_000)
        shards = tmp_path / "shards"
        shards.mkdir()
        for plan in plans:
            place_file(other.blobs, plan, shards / plan.name)
    assert len(plans) > 2
    files = {plan.name: (shards / plan.name).read_bytes() for plan in plans}
    for path in shards.iterdir():
        path.unlink()
    for name in sorted(files, reverse=True):
        assert registry.search("expert>=0").items == ()
        (shards / name).write_bytes(files[name])
        ingest_file(registry, shards / name)
        (shards / name).unlink()
    assert len(registry.search("expert>=0", limit=100)) == 4 * EXPERTS
    assert len(registry.search("expert:3 arch:llama license:apache-2.0")) == 4
    for path in assemble_model(registry, "local/Split", tmp_path / "out"):
        assert path.read_bytes() == files[path.name]
