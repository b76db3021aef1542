"""Tests of faults of organs that are stored by their difference to others: wrong bytes, and work beside each other.

`make test-long` lets other work happen at some of the steps of a repack and of an ingest, the slow form at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from organs.registry import references
from organs.registry.assembly import FilePlan, FileStream, check_readable, plan_model
from organs.registry.backup import back_up
from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest
from organs.registry.catalog.queries.events import newest_events
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.relatives import models_to_repack, models_with_blobs
from organs.registry.catalog.register import organs
from organs.registry.catalog.register.organs import replace_stored_bytes
from organs.registry.catalog.tables import Blob, ModelRow
from organs.registry.digest import Digest
from organs.registry.errors import Busy, CorruptBlob, DiskFull, FaultyParent, MissingBlob, OrganError
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.references import repack
from organs.registry.store import BlobReader, StoredBlob
from organs.registry.store.codec import codec_for
from organs.registry.upkeep import set_aside, verify
from tests.faults.failing import (
    EVERYTHING,
    MomentCatalog,
    SteppedCatalog,
    SteppedFiles,
    act_at_step,
    blob_rows,
    blob_states,
    files_below,
    flip_bit,
    overwrite,
    verify_all,
    without_syncing,
)
from tests.faults.families import (
    assert_models_come_back,
    assert_settles,
    assert_whole,
    dependants,
    remove,
    repack_all,
    sweep_at_once,
)
from tests.postgres import open_on_sqlite
from tests.registry_templates import RegistryTemplates, add_family, add_family_backwards
from tests.related_models import family_files, ingest_bytes

SOURCES = family_files()
LATER = family_files(["retuned"])
Beside = Callable[[LocalRegistry, Path], None]
"""Work on a registry; the folder is for its files."""
EVERY, SOME = pytest.param(1, marks=pytest.mark.slow), 41
"""How many steps of an operation lie between two at which something else happens."""


@pytest.fixture
def family(templates: RegistryTemplates, tmp_path: Path) -> Iterator[LocalRegistry]:
    """Return a registry with the models of a family and references of every form."""
    with templates.open_copy(add_family, tmp_path / "home") as registry:
        yield registry


@pytest.fixture
def backwards(templates: RegistryTemplates, tmp_path: Path) -> Iterator[LocalRegistry]:
    """Return a registry with the same models, of which a repack stores most organs again."""
    with templates.open_copy(add_family_backwards, tmp_path / "home") as registry:
        yield registry


# Wrong and missing bytes.


def root_of(registry: LocalRegistry) -> KnownBlob:
    """Return the blob in a file, stored alone, on which most others depend."""
    alone = [row for row in blob_rows(registry) if row.parent is None and row.file is not None]
    return max(alone, key=lambda row: len(dependants(registry, row)))


def damage(registry: LocalRegistry, row: KnownBlob) -> None:
    """Overwrite some bytes of a blob in a file."""
    path = registry.settings.blobs / (row.file or "")
    data = path.read_bytes()
    overwrite(path, data[:-300] + bytes(byte ^ 0xFF for byte in data[-300:-200]) + data[-200:])


def damage_end(registry: LocalRegistry, row: KnownBlob) -> None:
    """Overwrite the last bytes of a blob in a file."""
    path = registry.settings.blobs / (row.file or "")
    overwrite(path, path.read_bytes()[:-9] + b"wrong end")


def repair(registry: LocalRegistry) -> None:
    verify(registry.catalog, registry.blobs, read_data=EVERYTHING, repair=True)


def lose(registry: LocalRegistry, row: KnownBlob) -> None:
    """Remove the file of a blob."""
    (registry.settings.blobs / (row.file or "")).unlink()


@pytest.mark.folder
@pytest.mark.parametrize("is_removed", [False, True], ids=["shown", "removed"])
@pytest.mark.parametrize("spoil", [damage, lose])
def test_a_faulty_parent_is_reported_with_its_dependants_and_healed_by_its_file(
    spoil: Callable[[LocalRegistry, KnownBlob], None], is_removed: bool, family: LocalRegistry, tmp_path: Path
) -> None:
    parent = root_of(family)
    below = dependants(family, parent)
    assert {row.depth for row in below} == {1, 2}
    if is_removed:
        remove(family, "base")
        sweep_at_once(family)
    spoil(family, parent)
    report = verify_all(family)
    assert {fault.digest for fault in report.faults} == {parent.digest, *(row.digest for row in below)}
    for fault in report.faults:
        assert parent.digest[:12] in fault.reason
        assert fault.digest in fault.reason
        assert fault.needed_by, "also a parent in no model is needed by others"
    repaired = verify(family.catalog, family.blobs, read_data=EVERYTHING, repair=True)
    assert (repaired.quarantined, len(repaired.faults)) == (1, len(report.faults))
    assert [digest for digest, state in blob_states(family).items() if state == "corrupt"] == [parent.digest]
    assert len(verify(family.catalog, family.blobs).faults) == len(report.faults), "also without reading everything"
    with pytest.raises(OrganError):
        assert_models_come_back(family, SOURCES, tmp_path / "back")
    sweep_at_once(family)
    ingest_bytes(family, tmp_path, "base", SOURCES["base"])
    assert_whole(family, SOURCES, tmp_path / "back")
    assert set(blob_states(family).values()) == {"present"}
    with family.catalog.reading() as session:
        assert "take back blob" in [event.action for event in newest_events(session, 100)]
    assert_settles(family, SOURCES, tmp_path / "back")


@pytest.mark.folder
def test_a_healed_organ_gets_its_parent_back(family: LocalRegistry, tmp_path: Path) -> None:
    repack_all(family)
    child = next(row for row in blob_rows(family) if row.file and row.depth == 1)
    with family.catalog.reading() as session:
        assert not models_to_repack(session)
        models = models_with_blobs(session, [child.id])
        names = {session.get_one(ModelRow, model_id).name for model_id in models}
    size_bytes = sum(row.stored_bytes for row in blob_rows(family))
    damage(family, child)
    set_aside(family.catalog, [child])
    for name in names:
        ingest_bytes(family, tmp_path, name, SOURCES[name])
    with family.catalog.reading() as session:
        assert set(models_to_repack(session)) == models
    assert sum(row.stored_bytes for row in blob_rows(family)) > 1.1 * size_bytes
    repack(family.catalog, family.blobs, sorted(models))
    assert sum(row.stored_bytes for row in blob_rows(family)) <= 1.01 * size_bytes


@pytest.mark.folder
def test_a_model_beside_a_faulty_relative_is_stored_alone_and_the_parent_is_healed_by_its_own_file(
    family: LocalRegistry, tmp_path: Path
) -> None:
    parent = root_of(family)
    damage(family, parent)
    faulty = {parent.digest, *(row.digest for row in dependants(family, parent))}
    ingest_bytes(family, tmp_path, "retuned", LATER["retuned"])  # its parents cannot be read
    assert {fault.digest for fault in verify_all(family).faults} == faulty
    repair(family)
    ingest_bytes(family, tmp_path, "base", SOURCES["base"])
    (healed,) = (row for row in blob_rows(family) if row.digest == parent.digest)
    assert healed.parent is None
    assert_whole(family, SOURCES | LATER, tmp_path / "back")


@pytest.mark.folder
@pytest.mark.parametrize("spoil", [damage, lose])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_faulty_child_is_reported_alone_and_is_stored_alone_again(
    depth: int, spoil: Callable[[LocalRegistry, KnownBlob], None], family: LocalRegistry, tmp_path: Path
) -> None:
    child = next(
        row for row in blob_rows(family) if row.depth == depth and row.file is not None and not dependants(family, row)
    )
    spoil(family, child)
    repaired = verify(family.catalog, family.blobs, read_data=EVERYTHING, repair=True)
    assert [fault.digest for fault in repaired.faults] == [child.digest]
    (name,) = {needed.partition("/")[2].partition("@")[0] for needed in repaired.faults[0].needed_by}
    ingest_bytes(family, tmp_path, name, SOURCES[name])
    (healed,) = (row for row in blob_rows(family) if row.digest == child.digest)
    assert (healed.parent, healed.state) == (None, "present")
    assert_whole(family, SOURCES, tmp_path / "back")


@pytest.mark.folder
def test_a_flipped_bit_anywhere_in_a_parent_never_gives_a_wrong_file(family: LocalRegistry, tmp_path: Path) -> None:
    parent = root_of(family)
    path = family.settings.blobs / (parent.file or "")
    good = path.read_bytes()
    for spot in [0, 30, 61, 90, *range(130, len(good), len(good) // 9), len(good) - 1]:
        overwrite(path, flip_bit(good, 8 * spot + spot % 8))
        try:
            assert_models_come_back(family, SOURCES, tmp_path / "back")
        except OrganError:
            assert parent.digest in {fault.digest for fault in verify_all(family).faults}
    overwrite(path, good)
    assert_whole(family, SOURCES, tmp_path / "back")


@pytest.mark.folder
def test_a_repack_leaves_organs_with_faulty_bytes_as_they_are(backwards: LocalRegistry) -> None:
    alone = max((row for row in blob_rows(backwards) if row.file), key=lambda row: row.stored_bytes)
    damage(backwards, alone)
    faults = {fault.digest for fault in verify_all(backwards).faults}
    assert repack_all(backwards).repacked > 0
    assert {fault.digest for fault in verify_all(backwards).faults} <= faults
    assert blob_states(backwards)[alone.digest] == "present"
    with backwards.catalog.reading() as session:
        assert not models_to_repack(session), "a repack of faulty bytes would never end"


@pytest.mark.folder
@pytest.mark.parametrize("number", [1, 2, 3, 4, 8])
def test_a_repack_whose_commit_fails_ends_and_keeps_every_file_that_a_row_names(
    number: int, backwards: LocalRegistry, tmp_path: Path
) -> None:
    commits = count(1)

    def fail(moment: str) -> None:
        if moment == "commit" and next(commits) >= number:
            raise DiskFull("the disk of the database is full")

    full = LocalRegistry(backwards.settings, MomentCatalog(backwards.catalog, fail), backwards.blobs)
    with pytest.raises(DiskFull):
        repack_all(full)
    assert_whole(backwards, SOURCES, tmp_path / "back")
    with backwards.catalog.reading() as session:
        assert models_to_repack(session), "the next repack examines these models again"
    assert_settles(backwards, SOURCES, tmp_path / "back")


@pytest.mark.folder
@pytest.mark.parametrize("spoil", [damage, lose])
def test_a_download_names_the_faulty_parent_and_not_its_dependants(
    spoil: Callable[[LocalRegistry, KnownBlob], None], family: LocalRegistry
) -> None:
    parent = root_of(family)
    spoil(family, parent)
    plan = plan_of(family, "tuned-coarse")
    with FileStream(family.blobs, plan) as stream, pytest.raises((CorruptBlob, MissingBlob)):
        for _ in stream:
            pass
    assert {row.digest for row in stream.faults} == {parent.digest}
    set_aside(family.catalog, stream.faults)
    assert [digest for digest, state in blob_states(family).items() if state == "corrupt"] == [parent.digest]
    (child,) = [
        piece.blob for piece in plan_of(family, "tuned-coarse").slices if parent.digest in chain_of(piece.blob)
    ][:1]
    with pytest.raises((CorruptBlob, MissingBlob)):
        check_readable(family.blobs, child, "the tensor")


def chain_of(row: KnownBlob) -> list[str]:
    """Return the digests of the parents of a blob."""
    return [] if row.parent is None else [row.parent.digest, *chain_of(row.parent)]


# Removal.


@pytest.mark.folder
def test_an_organ_is_readable_at_once_when_its_parent_is_healed(family: LocalRegistry, tmp_path: Path) -> None:
    parent = root_of(family)
    child = next(row for row in dependants(family, parent) if row.file and row.depth == 1)
    damage(family, parent)
    set_aside(family.catalog, [child])
    for _ in range(2):
        (row,) = (row for row in blob_rows(family) if row.id == child.id)
        with pytest.raises(FaultyParent, match=parent.digest[:12]):
            family.blobs.open(row)
    set_aside(family.catalog, [parent])
    ingest_bytes(family, tmp_path, "base", SOURCES["base"])
    (row,) = (row for row in blob_rows(family) if row.id == child.id)
    family.blobs.open(row).close()


def test_a_removed_model_keeps_the_parents_of_others_until_these_are_gone(
    family: LocalRegistry, tmp_path: Path
) -> None:
    parent = root_of(family)
    left = dict(SOURCES)
    for name in ("base", "half", "coarse", "coarsest", "tuned"):
        remove(family, name)
        del left[name]
        sweep_at_once(family)
        assert parent.digest in blob_states(family)
        assert_whole(family, left, tmp_path / "back")
    remove(family, "tuned-coarse")
    sweep_at_once(family)
    assert (blob_rows(family), files_below(family)) == ([], [])


# Work beside each other.


def sweep_beside(registry: LocalRegistry, _folder: Path) -> None:
    sweep_at_once(registry)


def verify_beside(registry: LocalRegistry, _folder: Path) -> None:
    assert verify(registry.catalog, registry.blobs, read_data=EVERYTHING, repair=True).faults == []


def repack_beside(registry: LocalRegistry, _folder: Path) -> None:
    repack_all(registry)


def ingest_beside(registry: LocalRegistry, folder: Path) -> None:
    ingest_bytes(registry, folder, "retuned", LATER["retuned"])


def remove_beside(registry: LocalRegistry, _folder: Path) -> None:
    remove(registry, "tuned")
    sweep_at_once(registry)


def back_up_beside(registry: LocalRegistry, folder: Path) -> None:
    try:
        report = back_up(registry.catalog, registry.blobs, registry.settings, folder / "copy", read_back=True)
    except Busy:
        return  # the repack is removing a file
    assert report.faults == []
    with open_on_sqlite(folder / "copy") as copy:
        assert_whole(copy, SOURCES, folder / "of-copy")


def at_every_step(
    templates: RegistryTemplates, folder: Path, work: Callable[[LocalRegistry], object], beside: Beside, stride: int
) -> int:
    """Do `work` on a registry again and again, with `beside` at another step of it each time; return their number.

    A step is the beginning or the end of a session of the catalog.
    """
    for number in count(1, stride):
        place = folder / str(number)
        with templates.open_copy(add_family_backwards, place / "home") as registry:
            happened = False

            def act(place: Path = place) -> None:
                nonlocal happened
                happened = True
                with LocalRegistry.open(place / "home") as other:
                    beside(other, place)

            quick = without_syncing(registry)
            stepped = SteppedCatalog(quick.catalog, act_at_step(number, act))
            work(LocalRegistry(quick.settings, stepped, quick.blobs))
            if not happened:
                return number
            assert_whole(registry, SOURCES | LATER, place / "back")
            assert_settles(registry, SOURCES | LATER, place / "back")
    raise AssertionError


@pytest.mark.folder
@pytest.mark.parametrize("stride", [SOME, EVERY])
@pytest.mark.parametrize(
    "beside",
    [sweep_beside, verify_beside, repack_beside, ingest_beside, remove_beside, back_up_beside],
)
def test_other_work_at_any_step_of_a_repack_loses_nothing(
    beside: Beside, stride: int, templates: RegistryTemplates, tmp_path: Path
) -> None:
    assert at_every_step(templates, tmp_path, repack_all, beside, stride) > 40


@pytest.mark.folder
@pytest.mark.parametrize("stride", [SOME, EVERY])
@pytest.mark.parametrize("beside", [sweep_beside, repack_beside, remove_beside])
def test_other_work_at_any_step_of_an_ingest_against_parents_loses_nothing(
    beside: Beside, stride: int, templates: RegistryTemplates, tmp_path: Path
) -> None:
    def ingest(registry: LocalRegistry) -> None:
        ingest_bytes(registry, tmp_path, "retuned", LATER["retuned"])

    assert at_every_step(templates, tmp_path, ingest, beside, stride) > 8


@pytest.mark.parametrize("is_announced", [True, False])
def test_only_the_announcement_of_a_repack_saves_its_files_from_a_sweep_before_their_rows(
    is_announced: bool, backwards: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_organ = backwards.blobs.put_organ

    def put_and_sweep(*arguments: Any) -> StoredBlob:
        stored = put_organ(*arguments)
        sweep_at_once(backwards)
        return stored

    monkeypatch.setattr(backwards.blobs, "put_organ", put_and_sweep)
    if not is_announced:
        monkeypatch.setattr(organs, "begin_ingest", lambda *_: 0)
    assert repack_all(backwards).repacked > 0
    assert (verify_all(backwards).faults == []) is is_announced


@pytest.mark.folder
@pytest.mark.parametrize("stride", [3 * SOME, EVERY])
def test_a_repack_at_any_write_of_a_backup_leaves_the_copy_complete(
    stride: int, templates: RegistryTemplates, tmp_path: Path
) -> None:
    for number in count(1, stride):
        place = tmp_path / str(number)
        with templates.open_copy(add_family_backwards, place / "home") as registry:
            repacked = 0

            def repack_then(call: int, _name: str, registry: LocalRegistry = registry, number: int = number) -> None:
                nonlocal repacked
                if call == number:
                    repacked = repack_all(registry).repacked

            files = SteppedFiles(repack_then)
            folder = place / "copy"
            report = back_up(registry.catalog, registry.blobs, registry.settings, folder, read_back=True, files=files)
            assert report.faults == []
            if not repacked:
                return
            with open_on_sqlite(folder) as copy:
                assert_whole(copy, SOURCES, place / "back")
            assert_settles(registry, SOURCES, place / "back")
    raise AssertionError


@pytest.mark.folder
@pytest.mark.parametrize("is_marked", [False, True], ids=["new", "set-aside"])
@pytest.mark.parametrize("spoil", [damage, lose])
def test_a_backup_has_the_dependants_of_a_faulty_parent_and_reports_them(
    spoil: Callable[[LocalRegistry, KnownBlob], None], is_marked: bool, family: LocalRegistry, tmp_path: Path
) -> None:
    parent = root_of(family)
    below = dependants(family, parent)
    spoil(family, parent)
    set_aside(family.catalog, [parent, *(below if is_marked else [])])
    folder = tmp_path / "copy"
    report = back_up(family.catalog, family.blobs, family.settings, folder)
    assert {fault.digest for fault in report.faults} == {parent.digest, *(row.digest for row in below)}
    assert all(fault.needed_by for fault in report.faults if fault.digest != parent.digest)
    with open_on_sqlite(folder) as copy:
        ingest_bytes(copy, tmp_path, "base", SOURCES["base"])
        repair(copy)
        assert_whole(copy, SOURCES, tmp_path / "back")
        assert set(blob_states(copy).values()) == {"present"}


@pytest.mark.folder
def test_a_backup_keeps_a_sound_copy_of_an_organ_that_cannot_be_checked(family: LocalRegistry, tmp_path: Path) -> None:
    parent = root_of(family)
    child = next(row for row in dependants(family, parent) if row.file and row.depth == 1)
    folder = tmp_path / "copy"
    back_up(family.catalog, family.blobs, family.settings, folder)
    sound = (folder / "blobs" / str(child.file)).read_bytes()
    damage_end(family, child)
    repair(family)
    lose(family, parent)
    repair(family)
    assert {blob_states(family)[row.digest] for row in (parent, child)} == {"corrupt"}
    assert back_up(family.catalog, family.blobs, family.settings, folder, read_back=True).faults == []
    assert (folder / "blobs" / str(child.file)).read_bytes() == sound


@pytest.mark.folder
def test_a_backup_reports_an_organ_that_cannot_be_checked(family: LocalRegistry, tmp_path: Path) -> None:
    parent = root_of(family)
    child = next(row for row in dependants(family, parent) if row.file and row.depth == 1)
    damage_end(family, child)
    repair(family)
    path = family.settings.blobs / str(parent.file)
    data = path.read_bytes()
    overwrite(path, data[:200] + bytes(len(data) - 240) + data[-40:])  # no one has read it since
    report = back_up(family.catalog, family.blobs, family.settings, tmp_path / "copy")
    assert child.digest in {fault.digest for fault in report.faults}


@pytest.mark.folder
def test_a_backup_of_blobs_reports_none_that_arrived_meanwhile(family: LocalRegistry, tmp_path: Path) -> None:
    parent = root_of(family)
    below = dependants(family, parent)
    lose(family, parent)
    arrived: list[str] = []

    def ingest_once(_size_bytes: int) -> None:
        if not arrived:
            arrived.append(ingest_bytes(family, tmp_path, "other", family_files(["base"], seed=5)["base"]))

    report = back_up(
        family.catalog, family.blobs, family.settings, tmp_path / "copy", blobs_only=True, progress=ingest_once
    )
    assert {fault.digest for fault in report.faults} == {parent.digest, *(row.digest for row in below)}


# Readers while organs are stored again.


def plan_of(registry: LocalRegistry, name: str) -> FilePlan:
    with registry.catalog.reading() as session:
        (plan,) = plan_model(session, model_by_name(session, parse_model_name(f"local/{name}")))
    return plan


@pytest.mark.folder
@pytest.mark.parametrize(("views", "name"), [(0, "tuned"), (1, "coarse"), (4, "tuned-coarse")])
def test_a_download_goes_on_while_a_repack_and_a_sweep_replace_its_files(
    views: int, name: str, backwards: LocalRegistry, tmp_path: Path
) -> None:
    with (
        LocalRegistry.open(tmp_path / "home") as other,
        FileStream(backwards.blobs, plan_of(backwards, name)) as stream,
    ):
        rest = iter(stream)
        begun = b"".join(bytes(view) for view in islice(rest, views))
        before = set(files_below(backwards))
        assert repack_all(other).repacked > 0
        sweep_at_once(other)
        assert before - set(files_below(backwards)), "files are gone"
        assert begun + b"".join(bytes(view) for view in rest) == SOURCES[name]


@pytest.mark.folder
def test_an_organ_that_was_left_by_its_parent_is_read_from_its_present_bytes(
    family: LocalRegistry, tmp_path: Path
) -> None:
    plan = plan_of(family, "tuned")
    rows = {row.digest: row for row in blob_rows(family)}
    (child, *_) = (rows[piece.blob.digest] for piece in plan.slices if piece.blob.parent and piece.blob.file)
    assert child.parent is not None
    with family.blobs.reader(child) as reader:
        stored = family.blobs.put_organ(child.digest, child.size_bytes, codec_for("BF16"), BytesIO(reader.read()).read)
    with family.catalog.writing() as session:
        assert replace_stored_bytes(session, child, stored)
    lose(family, child.parent)  # as a sweep removes it after its last dependant, before the old file of the child
    with pytest.raises(FaultyParent), BlobReader(family.blobs, child):
        """The old file is still there."""
    with family.blobs.reader(child) as reader:
        reader.verify()


@pytest.mark.folder
def test_a_doomed_organ_is_not_made_a_parent(backwards: LocalRegistry, tmp_path: Path) -> None:
    doomed: list[int] = []

    def doom(session: Session, before: KnownBlob, blob: StoredBlob) -> bool:
        if blob.parent is not None:
            doomed.append(blobs_by_digest(session, [blob.parent.digest])[Digest(blob.parent.digest)].id)
            session.execute(update(Blob).where(Blob.id == doomed[-1]).values(state="doomed"))
            result = replace_stored_bytes(session, before, blob)
            session.execute(update(Blob).where(Blob.id == doomed[-1]).values(state="present"))
            return result
        return replace_stored_bytes(session, before, blob)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(references, "replace_stored_bytes", doom)
        report = repack_all(backwards)
    assert report.repacked == 0
    assert report.skipped >= len(doomed) > 0
    assert_settles(backwards, SOURCES, tmp_path / "back")


@pytest.mark.folder
@pytest.mark.parametrize("refused", [0, 1])
def test_a_repack_ends_if_members_wait_for_one_that_stays_as_it_is(
    refused: int, backwards: LocalRegistry, tmp_path: Path
) -> None:
    numbers = count()

    def refuse(session: Session, before: KnownBlob, blob: StoredBlob) -> bool:
        return next(numbers) % 12 != refused and replace_stored_bytes(session, before, blob)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(references, "replace_stored_bytes", refuse)
        assert repack_all(backwards).skipped > 0
    assert_settles(backwards, SOURCES, tmp_path / "back")
