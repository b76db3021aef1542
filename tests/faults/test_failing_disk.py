"""Tests of a disk that fails at the n-th call, once or permanently, during every operation.

`make test` tries some of the calls, the slow form all of them with every error.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from organs.registry.assembly import place_file, plan_model
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.errors import DiskFull, OrganError, StoreError, StoreUnwritable
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName, parse_model_name
from organs.registry.upkeep import sweep, verify
from tests import postgres
from tests.faults.failing import (
    EVERYTHING,
    SteppedFiles,
    assert_comes_back,
    assert_sweeps_leave_no_rest,
    blob_states,
    failing_from,
    failing_once,
    files_below,
    ingest_path,
    litter,
    model_names,
    spoil_two,
    verify_all,
    with_files,
    without_syncing,
    write_model,
    write_relative,
)

KINDS: dict[int, type[OrganError]] = {
    errno.EIO: StoreError,
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.EINTR: StoreError,
    errno.EMFILE: StoreError,
    errno.EROFS: StoreUnwritable,
    errno.EACCES: StoreUnwritable,
}
STRIDES = {"ingest": 11, "heal": 11, "sweep": 1, "repair": 4, "assemble": 7}
"""`make test` lets one in this number of calls fail."""


@dataclass(frozen=True, slots=True)
class Place:
    """A registry with the model `first`; `second` shares organs with it and is not registered."""

    folder: Path
    first: Path
    second: Path

    def opened(self) -> LocalRegistry:
        return without_syncing(LocalRegistry.open(self.folder / "home"))


def take_second(registry: LocalRegistry, place: Place) -> None:
    ingest_path(registry, place.second, name=ModelName("local", "second"))


def take_first_again(registry: LocalRegistry, place: Place) -> None:
    ingest_path(registry, place.first, name=ModelName("local", "first"))


def sweep_it(registry: LocalRegistry, place: Place) -> None:
    sweep(registry.catalog, registry.blobs, dry_run=False)


def repair(registry: LocalRegistry, place: Place) -> None:
    verify(registry.catalog, registry.blobs, read_data=EVERYTHING, repair=True)


def assemble(registry: LocalRegistry, place: Place) -> None:
    with registry.catalog.reading() as session:
        (plan,) = plan_model(session, model_by_name(session, parse_model_name("local/first")))
    target = place.folder / "out" / "first.gguf"
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(b"before")
    files = registry.blobs.backend.files
    try:
        place_file(registry.blobs, plan, target, files=files)
    except OrganError:
        # After the rename the new file is complete, although it may not be durable.
        assert target.read_bytes() in (b"before", place.first.read_bytes())
        raise
    assert target.read_bytes() == place.first.read_bytes()


def untidy(registry: LocalRegistry) -> set[str]:
    litter(registry)
    return set()


def nothing(_registry: LocalRegistry) -> set[str]:
    return set()


Work = Callable[[LocalRegistry, Place], None]
Prepare = Callable[[LocalRegistry], set[str]]
WORKS: dict[str, tuple[Prepare, Work]] = {
    "ingest": (nothing, take_second),
    "heal": (spoil_two, take_first_again),
    "sweep": (untidy, sweep_it),
    "repair": (spoil_two, repair),
    "assemble": (nothing, assemble),
}


@pytest.fixture
def place(tmp_path: Path, migrated_database: Path) -> Place:
    (tmp_path / "home").mkdir()
    shutil.copy(migrated_database, tmp_path / "home")
    first = write_model(tmp_path / "first.gguf")
    made = Place(tmp_path, first, write_relative(tmp_path / "second.gguf", first, 1, 300_000))
    with made.opened() as registry:
        take_first_again(registry, made)
    return made


def copy_home(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    if postgres.is_used():
        postgres.replace_database(target, source)


def attempts(place: Place, prepare: Prepare, first: int, stride: int) -> Iterator[tuple[int, LocalRegistry, set[str]]]:
    """Yield, again and again, a registry in the initial state: the number of the attempt, and the damaged digests."""
    home, kept = place.folder / "home", place.folder / "kept"
    with place.opened() as registry:
        planted = prepare(registry)
    copy_home(home, kept)
    for at in count(first, stride):
        shutil.rmtree(home)
        copy_home(kept, home)
        with place.opened() as registry:
            yield at, registry, planted


def assert_whole(registry: LocalRegistry, place: Place, planted: set[str]) -> None:
    """Assert that no acknowledged model is lost, and that only `planted` blobs are faulty."""
    assert {fault.digest for fault in verify_all(registry).faults} <= planted
    assert {digest for digest, state in blob_states(registry).items() if state == "corrupt"} <= planted
    for name in model_names(registry) if not planted else ():
        assert_comes_back(registry, place.folder / f"{name}.gguf")


def assert_recovers(registry: LocalRegistry, place: Place, work: Work) -> None:
    """Assert that the work succeeds on a good disk, damaged blobs can be repaired, and a sweep leaves nothing."""
    work(registry, place)
    take_first_again(registry, place)
    take_second(registry, place)
    assert_sweeps_leave_no_rest(registry)
    assert_whole(registry, place, set())
    assert sorted(model_names(registry)) == ["first", "second"]


def descriptors(folder: Path) -> list[str]:
    """Return the open files below `folder`, without those of the connections of the database."""
    opened = []
    for link in Path("/proc/self/fd").glob("*"):
        with suppress(FileNotFoundError):  # the descriptor of the listing
            opened.append(os.readlink(link))
    return [name for name in opened if name.startswith(str(folder)) and "registry.sqlite3" not in name]


def failed(work: Work, registry: LocalRegistry, place: Place, files: SteppedFiles, kind: type[OrganError]) -> bool:
    """Return whether the work fails with `files`: it may, with one clean error of ours, and no open files."""
    try:
        work(with_files(registry, files), place)
    except OrganError as error:
        assert isinstance(error, kind | StoreError), repr(error)  # noqa: PT017  # it may also succeed
        return True
    finally:
        assert descriptors(place.folder) == []
    return False


def temporaries(registry: LocalRegistry, place: Place) -> list[str]:
    """Return incomplete files, in the store or beside an assembled file."""
    half = [path.name for path in (place.folder / "out").glob("*.part")]
    return half + [name for name in files_below(registry) if name.startswith("tmp/")]


QUICK = [(work, errno.EIO, STRIDES[work]) for work in WORKS]
QUICK_FULL = [(work, errno.ENOSPC, STRIDES[work]) for work in WORKS]


@pytest.mark.parametrize(
    ("fail", "work", "number", "stride"),
    [
        *(pytest.param(failing_once, *case, id=f"once-{case[0]}") for case in QUICK),
        *(pytest.param(failing_from, *case, id=f"from then on-{case[0]}") for case in QUICK_FULL),
        *(
            pytest.param(fail, work, number, 1, marks=pytest.mark.slow)
            for fail in (failing_once, failing_from)
            for work in WORKS
            for number in KINDS
        ),
    ],
)
def test_a_disk_that_fails_once_or_from_then_on_loses_nothing(
    fail: Callable[[int, int], SteppedFiles], work: str, number: int, stride: int, place: Place
) -> None:
    prepare, do = WORKS[work]
    failures = 0
    first = 1 + (number if fail is failing_once else number + 3) % stride
    for at, registry, planted in attempts(place, prepare, first, stride):
        files = fail(at, number)
        failures += failed(do, registry, place, files, KINDS[number])
        assert_whole(registry, place, planted)
        assert temporaries(registry, place) == [] or fail is failing_from or work == "sweep"
        if at % 4 == 1 or at <= stride:
            assert_recovers(registry, place, do)
        if files.calls < at:
            break
    assert failures >= (0 if work == "repair" else 1)


def test_a_repair_on_a_disk_that_cannot_be_read_sets_nothing_aside(place: Place) -> None:
    with place.opened() as registry:
        for number in (errno.EIO, errno.EMFILE, errno.EACCES):
            broken = with_files(registry, failing_from(1, number))
            report = verify(broken.catalog, broken.blobs, read_data=EVERYTHING, repair=True)
            assert report.faults
            assert report.quarantined == 0
        assert set(blob_states(registry).values()) == {"present"}
        assert_whole(registry, place, set())


def test_an_ingest_on_a_disk_that_cannot_be_read_sets_nothing_aside(place: Place) -> None:
    def broken(_number: int, name: str) -> None:
        if name in ("read_at", "create_direct"):
            raise OSError(errno.EIO, "broken")

    with place.opened() as registry:
        with pytest.raises(StoreError):
            take_first_again(with_files(registry, SteppedFiles(broken)), place)
        assert set(blob_states(registry).values()) == {"present"}
        assert_whole(registry, place, set())


def test_a_file_that_cannot_be_removed_is_swept_later(place: Place) -> None:
    class Sticky(SteppedFiles):
        def unlink(self, path: Path) -> None:
            raise OSError(errno.EIO, "stuck")

    with place.opened() as registry:

        def fail_late(_number: int, name: str) -> None:
            if name == "rename":
                raise OSError(errno.EIO, "broken")

        with pytest.raises(StoreError):
            take_second(with_files(registry, Sticky(fail_late)), place)
        assert [name for name in files_below(registry) if name.startswith("tmp/")]
        assert_recovers(registry, place, take_second)
