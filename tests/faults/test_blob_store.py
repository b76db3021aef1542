"""Tests of damaged, missing and hidden blobs, from the command to the stored bytes.

The codec has its own tests in `tests/store`. Here the same damage is done to a registry with a model. For sweeps see
`test_sweep.py`.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import delete, select, update

from organs.ingest.dissect import dissect
from organs.registry.catalog.queries.blobs import KnownBlob
from organs.registry.catalog.queries.organs import reachable_digests
from organs.registry.catalog.tables import Blob, InlineBlob, ModelRow, Placement
from organs.registry.digest import digest_of
from organs.registry.errors import DiskFull, MissingBlob, StoreError, StoreUnwritable
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import all_blobs, verify
from tests.cli.in_process import OrganCommand
from tests.faults.failing import (
    assert_comes_back,
    assert_no_orphans,
    blob_rows,
    failing_from,
    failing_once,
    files_below,
    flip_bit,
    ingest_path,
    let_time_pass,
    model_names,
    overwrite,
    run_sweep,
    verify_all,
    with_files,
    without_syncing,
    write_model,
)
from tests.gguf_files import file_bytes
from tests.small_models import EXPERTS, assemble_model, block_metadata, weight_tensor

STACK = "blk.0.ffn_up_exps.weight"
"""The stack of experts in the models of these tests."""


@pytest.fixture
def model(tmp_path: Path, registry: LocalRegistry) -> Path:
    """Return the file of an ingested model."""
    path = write_model(tmp_path / "little.gguf")
    ingest_path(registry, path)
    return path


def in_file(registry: LocalRegistry, which: int = 0) -> KnownBlob:
    """Return a blob in a file of the store."""
    return [row for row in blob_rows(registry) if row.file is not None][which]


def inline(registry: LocalRegistry) -> KnownBlob:
    """Return a blob in the database."""
    return next(row for row in blob_rows(registry) if row.inline is not None and row.size_bytes > 1000)


def stored_bytes(registry: LocalRegistry, row: KnownBlob) -> bytes:
    if row.inline is not None:
        return row.inline
    assert row.file is not None
    return (registry.settings.blobs / row.file).read_bytes()


def damage(registry: LocalRegistry, row: KnownBlob, stored: bytes) -> None:
    """Put `stored` in place of the bytes of the blob."""
    if row.file is not None:
        overwrite(registry.settings.blobs / row.file, stored)
        return
    with registry.catalog.writing() as session:
        session.execute(update(InlineBlob).where(InlineBlob.blob_id == row.id).values(stored=stored))


def record_size(registry: LocalRegistry, row: KnownBlob, stored_bytes: int) -> None:
    """Change the stored size in the row."""
    with registry.catalog.writing() as session:
        session.execute(update(Blob).where(Blob.id == row.id).values(stored_bytes=stored_bytes))


def assert_found(registry: LocalRegistry, row: KnownBlob, tmp_path: Path, reason: str = "") -> None:
    """Assert that verify names the blob and its use, and that assembling refuses and writes nothing."""
    (fault,) = verify_all(registry).faults
    assert fault.digest == row.digest
    assert reason in fault.reason
    assert fault.needed_by
    assert all(name.startswith("local/little@1: ") for name in fault.needed_by)
    folder = tmp_path / "refused"
    with pytest.raises(StoreError):
        assemble_model(registry, "local/little", folder)
    assert list(folder.iterdir()) == []


def assert_sound(registry: LocalRegistry, model: Path) -> None:
    """Assert that there is no fault and no extra file, and that the model is assembled."""
    assert verify_all(registry).faults == []
    assert_no_orphans(registry)
    assert_comes_back(registry, model, "local/little")


@pytest.mark.folder
@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_blob_that_is_cut_or_longer_is_detected_without_reading_it(
    is_recorded: bool, registry: LocalRegistry, tmp_path: Path
) -> None:
    for row in (in_file(registry), inline(registry)):
        stored = stored_bytes(registry, row)
        for other in (b"", stored[:10], stored[: len(stored) // 2], stored[:-1], stored + b"\0", stored * 2):
            damage(registry, row, other)
            if is_recorded:
                record_size(registry, row, len(other))
            assert [fault.digest for fault in verify(registry.catalog, registry.blobs).faults] == [row.digest]
            assert_found(registry, row, tmp_path)
        damage(registry, row, stored)
        record_size(registry, row, len(stored))


@pytest.mark.folder
def test_a_flipped_bit_in_any_region_never_gives_a_wrong_file(
    model: Path, registry: LocalRegistry, tmp_path: Path
) -> None:
    generator, folder = random.Random(47), tmp_path / "out"
    for row in (in_file(registry), inline(registry)):
        good = stored_bytes(registry, row)
        spots = [0, 4, 8, 20, 30, 60, 70, 100, *(generator.randrange(120, len(good)) for _ in range(4)), len(good) - 1]
        for spot in spots:
            damage(registry, row, flip_bit(good, 8 * spot + generator.randrange(8)))
            try:
                (back,) = assemble_model(registry, "local/little", folder)
            except StoreError:
                assert list(folder.iterdir()) == []
                assert [fault.digest for fault in verify_all(registry).faults] == [row.digest]
            else:  # a few bits of a Zstandard frame have no meaning
                assert back.read_bytes() == model.read_bytes()
                back.unlink()
        damage(registry, row, good)
    assert verify_all(registry).faults == []


@pytest.mark.folder
def test_a_blob_that_was_set_aside_is_replaced(
    model: Path, registry: LocalRegistry, tmp_path: Path, organ: OrganCommand
) -> None:
    for row in (in_file(registry), inline(registry)):
        damage(registry, row, flip_bit(stored_bytes(registry, row), 8 * 40))
    assert "2 blobs set aside" in organ("verify", "--read-data", "--repair").out
    result = organ("verify")
    assert result.status == 7, "set aside is not healed"
    assert "2 faulty" in result.out
    assert organ("ingest", model).status == 0
    assert organ("verify", "--read-data").status == 0
    assert_sound(registry, model)


@pytest.mark.folder
@pytest.mark.parametrize("kind", [in_file, inline])
def test_lost_bytes_of_a_model_are_restored_by_another_model(
    kind: Callable[[LocalRegistry], KnownBlob], model: Path, registry: LocalRegistry, tmp_path: Path
) -> None:
    row = kind(registry)
    damage(registry, row, bytes(row.stored_bytes))
    data = bytearray(model.read_bytes())
    data[-4:] = b"\0\0\x80\x3f"  # another last norm: another model, with every other organ the same
    relative = tmp_path / "relative.gguf"
    relative.write_bytes(data)
    report = ingest_path(registry, relative)
    assert (report.created, report.new_blobs) == (True, 2)
    assert_comes_back(registry, model, "local/little@1")
    assert verify_all(registry).faults == []


@pytest.mark.folder
def test_missing_bytes_are_reported_by_organ_and_restored(
    model: Path, registry: LocalRegistry, tmp_path: Path, organ: OrganCommand
) -> None:
    matrices = [row for row in blob_rows(registry) if row.file is not None]
    for row in matrices:
        (registry.settings.blobs / (row.file or "")).unlink()
    with registry.catalog.writing() as session:
        session.execute(delete(InlineBlob))
    result = organ("verify")
    assert result.status == 7
    names = {
        line.removeprefix("  needed by local/little@1: ") for line in result.out.splitlines() if "needed by" in line
    }
    with registry.catalog.reading() as session:
        tensors = set(session.scalars(select(Placement.name)))
    experts = {f"{STACK}, expert {number}" for number in range(EXPERTS)}
    assert names == tensors - {STACK} | experts | {"header of little.gguf"}
    assert len([line for line in result.out.splitlines() if line[:64].isalnum()]) == len(blob_rows(registry))
    refused = organ("assemble", "local/little", "-o", tmp_path / "back.gguf")
    assert refused.status == 7
    assert "verify" in refused.err
    assert not (tmp_path / "back.gguf").exists()
    assert organ("ingest", model).status == 0
    assert organ("verify", "--read-data").status == 0
    assert_sound(registry, model)


@pytest.mark.usefixtures("model")
def test_a_missing_expert_is_named_as_a_part_of_its_stack(registry: LocalRegistry) -> None:
    def stack() -> KnownBlob:
        (row,) = (row for row in all_blobs(registry.catalog) if row.parts)
        return row

    with registry.catalog.writing() as session:
        session.execute(delete(InlineBlob).where(InlineBlob.blob_id == stack().parts[1].id))
    with registry.blobs.reader(stack()) as reader, pytest.raises(MissingBlob, match=r"part 1 of \w{12}, \w{12}, is "):
        reader.read()


def by_a_symlink(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def by_a_second_name(path: Path) -> None:
    os.link(path, path.with_suffix(".moved"))


def by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.folder
@pytest.mark.parametrize(
    "replaced", [by_a_symlink, by_a_second_name, by_a_folder, by_a_pipe], ids=lambda by: by.__name__
)
def test_a_blob_whose_path_is_occupied_is_refused_and_restored(
    replaced: Callable[[Path], None], model: Path, registry: LocalRegistry, tmp_path: Path
) -> None:
    row = in_file(registry)
    path = registry.settings.blobs / (row.file or "")
    replaced(path)
    assert_found(registry, row, tmp_path, "its path is")
    assert ingest_path(registry, model).new_blobs == 1
    assert verify_all(registry).faults == []
    assert_comes_back(registry, model)
    let_time_pass(registry)
    run_sweep(registry)
    assert verify_all(registry).faults == []


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_store_without_permission_is_reported_by_every_operation(
    number: int, tmp_path: Path, registry: LocalRegistry
) -> None:
    path = write_model(tmp_path / "little.gguf")
    with pytest.raises(StoreUnwritable, match="no access to"):
        ingest_path(with_files(registry, failing_from(1, number)), path)
    assert (model_names(registry), blob_rows(registry)) == ([], [])
    ingest_path(registry, path)
    locked = with_files(registry, failing_from(1, number))
    report = verify_all(locked)
    assert {fault.digest for fault in report.faults} == {row.digest for row in blob_rows(registry) if row.file}
    with pytest.raises(StoreUnwritable):
        assemble_model(locked, "local/little", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    assert verify_all(registry).faults == []


def write_small(folder: Path) -> Path:
    """Write a model with two blobs in files and three in rows."""
    path = folder / "little.gguf"
    matrices = [weight_tensor(f"blk.0.{name}.weight", (256, 160)) for name in ("attn_q", "ffn_up")]
    path.write_bytes(file_bytes(block_metadata(), [*matrices, weight_tensor("output_norm.weight", (256,))]))
    return path


@pytest.mark.folder
@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, StoreError), (errno.ENOSPC, DiskFull)])
def test_a_disk_that_fails_once_fails_the_ingest_and_leaves_nothing(
    number: int, kind: type[StoreError], tmp_path: Path, registry: LocalRegistry
) -> None:
    path = write_small(tmp_path)
    without_syncing(registry)
    for at in count(1):
        failing = failing_once(at, number)
        try:
            ingest_path(with_files(registry, failing), path)
        except kind:
            assert (model_names(registry), blob_rows(registry), files_below(registry)) == ([], [], [])
            shutil.rmtree(registry.settings.blobs, ignore_errors=True)
        else:
            assert failing.calls < at, "a failure that was not told"
            break
    assert at > 20
    assert_sound(registry, path)


def test_hidden_organs_are_answered_as_absent(model: Path, registry: LocalRegistry) -> None:
    with FileSource(model) as source:
        file = dissect(source)
        spans = [
            span for tensor in file.header.tensors for span in (file.tensor_span(tensor), *file.expert_spans(tensor))
        ]
        organs = {digest_of(source.read_at(span.offset, span.size_bytes)) for span in spans}
    with registry.catalog.reading() as session:
        every = set(session.scalars(select(Blob.digest)))
    assert organs < every, "headers and vocabularies are nobody's to ask for"
    requested = every | {digest_of(b"never seen")}
    with registry.catalog.reading() as session:
        assert reachable_digests(session, requested) == organs
    for state in ("quarantined", "removed"):
        with registry.catalog.writing() as session:
            session.execute(update(ModelRow).values(state=state))
            session.execute(update(Placement).values(visible=False))
        with registry.catalog.reading() as session:
            assert reachable_digests(session, requested) == set()
