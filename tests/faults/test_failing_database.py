"""Tests with a full, read-only or locked database, and with many concurrent writers."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from organs.registry.catalog import engine
from organs.registry.errors import Busy, DiskFull, StoreUnwritable
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.upkeep import all_blobs
from tests import postgres
from tests.faults.failing import (
    SteppedCatalog,
    act_at_step,
    assert_comes_back,
    assert_no_orphans,
    assert_sweeps_leave_no_rest,
    blob_rows,
    ingest_path,
    model_names,
    verify_all,
    write_model,
    write_relative,
)
from tests.search.test_facets import recounted, rolled_up
from tests.small_models import row_counts

ROOT = Path(__file__).resolve().parents[2]
MODELS = 6


@pytest.fixture
def first(tmp_path: Path, registry: LocalRegistry) -> Path:
    """Return the file of a registered model."""
    path = write_model(tmp_path / "first.gguf")
    ingest_path(registry, path, name=ModelName("local", "first"))
    return path


def database(registry: LocalRegistry) -> Path:
    return registry.settings.home / "registry.sqlite3"


def assert_only_first(registry: LocalRegistry, first: Path) -> None:
    assert model_names(registry) == ["first"]
    assert verify_all(registry).faults == []
    assert_comes_back(registry, first)


def assert_recovers(registry: LocalRegistry, second: Path) -> None:
    assert ingest_path(registry, second, name=ModelName("local", "second")).created
    assert_sweeps_leave_no_rest(registry)


@pytest.mark.sqlite
@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_database_that_is_full_at_any_page_loses_nothing(
    stride: int, first: Path, registry: LocalRegistry, tmp_path: Path
) -> None:
    second = write_model(tmp_path / "second.gguf", seed=1)
    with closing(sqlite3.connect(database(registry))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
    full = more = 0
    while full * stride == more:
        more += stride
        with LocalRegistry.open(registry.settings.home) as small:
            event.listen(small.catalog.writer, "connect", _limited(pages + more - 1))
            try:
                ingest_path(small, second, name=ModelName("local", "second"))
            except DiskFull as error:
                assert "the disk of the database is full" in str(error)  # noqa: PT017
                full += 1
                assert_only_first(registry, first)
    assert full >= 2
    assert sorted(model_names(registry)) == ["first", "second"]
    assert_sweeps_leave_no_rest(registry)


def _limited(pages: int) -> object:
    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    return limit


@pytest.mark.sqlite
def test_a_database_that_cannot_be_written_is_reported_and_still_read(
    first: Path, registry: LocalRegistry, tmp_path: Path
) -> None:
    second = write_model(tmp_path / "second.gguf", seed=1)
    url = f"sqlite:///file:{database(registry)}?mode=ro&uri=true"
    with LocalRegistry.open(registry.settings.home) as usual:
        settings = replace(usual.settings, database_url=url)
    with LocalRegistry.from_settings(settings) as locked:
        assert_only_first(locked, first)
        with pytest.raises(StoreUnwritable, match="database cannot be written"):
            ingest_path(locked, second)
    assert_only_first(registry, first)
    assert_recovers(registry, second)


def test_a_database_locked_at_any_transaction_fails_only_the_ingest(
    first: Path, registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = write_model(tmp_path / "second.gguf", seed=1)
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_MS", 20)
    held = number = 0
    while held == number:
        number += 1
        with (
            LocalRegistry.open(registry.settings.home) as hasty,
            ExitStack() as lock,
        ):

            def take(lock: ExitStack = lock, home: Path = registry.settings.home) -> None:
                lock.enter_context(postgres.locked_database(home))

            stepped = SteppedCatalog(hasty.catalog, act_at_step(number, take))
            try:
                ingest_path(
                    LocalRegistry(hasty.settings, stepped, hasty.blobs), second, name=ModelName("local", "second")
                )
            except Busy:
                held += 1
                lock.close()
                assert_only_first(registry, first)
    assert held > 4
    assert sorted(model_names(registry)) == ["first", "second"]
    assert verify_all(registry).faults == []


# Real limits of the system, with the real command.


def limited_to(size_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


@pytest.mark.folder
@pytest.mark.parametrize(
    "size_bytes", [90_000, *(pytest.param(size, marks=pytest.mark.slow) for size in (20_000, 200_000))]
)
def test_a_limit_on_the_size_of_files_is_reported_and_loses_nothing(
    size_bytes: int, first: Path, registry: LocalRegistry, tmp_path: Path
) -> None:
    second = write_model(tmp_path / "second.gguf", seed=1)
    home = str(registry.settings.home)
    command = [sys.executable, "-m", "organs.cli", "--home", home, "ingest", "--json", str(second)]
    # Under the limit, Python would leave truncated .pyc files, which later programs cannot read.
    environment = os.environ | postgres.environment(registry.settings.home) | {"PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: limited_to(size_bytes),
    )
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    if postgres.is_used():  # only the store writes files; its full disk ends the command
        assert "is full: File too large" in result.stderr
    else:
        assert json.loads(result.stdout)["error"]
    assert_only_first(registry, first)
    assert_recovers(registry, second)


SMALL_DISK = """
import sys
from pathlib import Path
from organs.registry import store
from organs.registry.errors import OrganError
from organs.registry.local import LocalRegistry
from tests.faults.failing import *

store.folder.FREE_MARGIN_BYTES = 0
folder, first, second = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
ballast = folder / "ballast"
with LocalRegistry.open(folder / "home") as registry:
    ingest_path(registry, first, name=ModelName("local", "first"))
    refused = 0
    for number in range(1, 40, 6):
        def fill(call, _name, number=number):
            if call == number:
                with ballast.open("wb", buffering=0) as stream:
                    try:
                        while stream.write(bytes(4096)):
                            pass
                    except OSError:
                        pass
        try:
            ingest_path(with_files(registry, SteppedFiles(fill)), second, name=ModelName("local", "second"))
        except OrganError as error:
            refused += 1
        ballast.unlink(missing_ok=True)
        assert verify_all(registry).faults == []
        for name in model_names(registry):
            assert_comes_back(registry, {"first": first, "second": second}[name])
        if len(model_names(registry)) == 2:
            break
    ingest_path(registry, second, name=ModelName("local", "second"))
    assert_sweeps_leave_no_rest(registry)
    print(refused)
"""


def small_disk(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a file system of 6 MB mounted at `folder`, in its own namespace."""
    mount = 'mount -t tmpfs -o size=6m organ "$0" && exec "$@"'
    words = ["unshare", "-rm", "sh", "-c", mount, str(folder), *command]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def may_mount() -> bool:
    """Return whether this system permits a small disk; else a limit on files replaces it."""
    try:
        return small_disk(Path("/mnt"), "true").returncode == 0
    except FileNotFoundError:
        return False


def test_a_disk_that_fills_up_at_any_call_loses_nothing(tmp_path: Path) -> None:
    first, second = write_model(tmp_path / "first.gguf"), write_model(tmp_path / "second.gguf", seed=1)
    folder = tmp_path / "disk"
    folder.mkdir()
    words = (sys.executable, "-c", SMALL_DISK, str(folder), str(first), str(second))
    mounted = may_mount()
    if mounted:
        result = small_disk(folder, *words)
    else:
        result = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, check=False, preexec_fn=lambda: limited_to(2_000_000)
        )
    assert result.returncode == 0, result.stderr
    if mounted:
        assert int(result.stdout) > 2


# Many concurrent writers.

EIGHT = """
import os, sys
from pathlib import Path
from tests.faults.failing import ModelName, LocalRegistry, ingest_path

children = []
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        status = 2
        try:
            with LocalRegistry.open() as registry:
                status = int(not ingest_path(registry, Path(name), name=ModelName("local", Path(name).stem)).created)
        finally:
            os._exit(status)
    children.append(child)
print(*sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.folder
def test_eight_processes_register_each_file_once_and_keep_the_counts_right(
    tmp_path: Path, registry: LocalRegistry
) -> None:
    shared = write_model(tmp_path / "shared", seed=99)
    paths = [write_relative(tmp_path / f"model-{seed}.gguf", shared, seed, 400_000) for seed in range(MODELS)]
    result = subprocess.run(
        [sys.executable, "-c", EIGHT, *map(str, paths), str(paths[0]), str(paths[0])],
        env=os.environ | postgres.environment(registry.settings.home),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.split() == ["0"] * MODELS + ["1"] * 2, result.stderr
    counts = row_counts(registry)
    assert (counts["models"], counts["placements"], counts["events"]) == (MODELS, 7 * MODELS, MODELS)
    assert (counts["blob_leases"], counts["contributors"]) == (0, 1)
    assert counts["organs"] < counts["placements"], "what they share is there once"
    stacks = sum(bool(row.parts) for row in all_blobs(registry.catalog))
    assert counts["blobs"] == len({row.digest for row in blob_rows(registry)}) + stacks
    assert rolled_up(registry) == recounted(registry)
    for path in paths:
        assert_comes_back(registry, path)
    assert_no_orphans(registry)
    assert verify_all(registry).faults == []
