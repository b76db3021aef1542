"""Tests of an ingest that is killed or interrupted at any moment: models stay complete, the rest is reused or swept."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.generated import Architecture, write_model
from organs.registry.local import LocalRegistry
from tests import postgres
from tests.faults.failing import (
    assert_comes_back,
    assert_no_orphans,
    assert_sweeps_leave_no_rest,
    blob_rows,
    ingest_path,
    model_names,
    verify_all,
)
from tests.faults.failing import write_model as write_small_model

ROOT = Path(__file__).resolve().parents[2]
MIDDLE = Architecture(2, 512, 1024, 512, 1536, 32_000, 128)
"""43 MB, 33 of them in one tensor of more chunks than are under way at once."""
LARGE = Architecture(12, 1024, 2048, 1024, 3072, 100_000, 128)
"""580 MB in 134 tensors."""
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Home:
    """A registry's folder with a small model that must survive everything."""

    folder: Path
    small: Path

    @classmethod
    def made(cls, folder: Path) -> Home:
        folder.mkdir()
        home = cls(folder, write_small_model(folder / "small.gguf"))
        with LocalRegistry.open(folder) as registry:
            ingest_path(registry, home.small)
        return home

    def start(self, path: Path) -> subprocess.Popen[str]:
        """Start `organ ingest` of `path` in a new process."""
        command = [sys.executable, "-m", "organs.cli", "--home", str(self.folder), "ingest", "--json", str(path)]
        environment = os.environ | postgres.environment(self.folder)
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def stored_bytes(self) -> int:
        """Return the bytes of the files in the folder of the store."""
        total = 0
        for folder, _, names in os.walk(self.folder / "blobs"):
            for name in names:
                with suppress(FileNotFoundError):  # renamed since it was listed
                    total += os.stat(os.path.join(folder, name)).st_size
        return total

    def wait_for_write(self, process: subprocess.Popen[str], size_bytes: float = 1) -> None:
        """Wait until the store's folder has this number of bytes more than now, or the process has ended."""
        wanted, deadline = self.stored_bytes() + size_bytes, time.monotonic() + PATIENCE_SECONDS
        while self.stored_bytes() < wanted and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def assert_sound(self, path: Path) -> bool:
        """Assert that every registered model is assembled; return whether that of `path` is among them."""
        with LocalRegistry.open(self.folder) as registry:
            names = model_names(registry)
            report = verify_all(registry)
            assert report.faults == []
            assert names[0] == "little"
            assert_comes_back(registry, self.small, "local/little")
            if len(names) > 1:
                assert_comes_back(registry, path)
            return len(names) > 1

    def digests(self) -> frozenset[str]:
        """Return the digests of all blobs with a row."""
        with LocalRegistry.open(self.folder) as registry:
            return frozenset(row.digest for row in blob_rows(registry))


def finished(process: subprocess.Popen[str]) -> dict[str, int]:
    """Return the report of a successful ingest."""
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    report: dict[str, int] = json.loads(out)
    return report


def kill(process: subprocess.Popen[str], sign: signal.Signals = signal.SIGKILL) -> str:
    """Send the signal `sign` and wait for the end; return stderr."""
    process.send_signal(sign)
    return process.communicate(timeout=PATIENCE_SECONDS)[1]


@pytest.fixture(scope="module")
def middle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "middle.gguf"
    assert write_model(path, MIDDLE) > 40_000_000
    return path


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The figures of an undisturbed ingest of `middle`."""

    seconds: float
    """Seconds from its first write on."""
    stored_bytes: int
    """Stored bytes; those of the small model are negligible."""
    digests: frozenset[str]


@pytest.fixture(scope="module")
def undisturbed(middle: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    home = Home.made(tmp_path_factory.mktemp("undisturbed") / "home")
    process = home.start(middle)
    home.wait_for_write(process)
    begun = time.monotonic()
    assert finished(process)["created"]
    return Undisturbed(time.monotonic() - begun, home.stored_bytes(), home.digests())


@pytest.mark.folder
@pytest.mark.parametrize(("rounds", "seed"), [(3, 1), pytest.param(100, 2, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_loses_no_model_and_leaves_no_lasting_files(
    rounds: int, seed: int, middle: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    generator = random.Random(seed)
    home, homes = Home.made(tmp_path / "home"), 1
    for _ in range(rounds):
        process = home.start(middle)
        if generator.random() < 0.9:
            home.wait_for_write(process)
            time.sleep(generator.uniform(0, undisturbed.seconds))
        else:
            time.sleep(generator.uniform(0, 1))  # while it starts
        kill(process)
        if home.assert_sound(middle):
            home, homes = Home.made(tmp_path / f"home-{homes}"), homes + 1
    finished(home.start(middle))
    with LocalRegistry.open(home.folder) as registry:
        assert_sweeps_leave_no_rest(registry)
    assert home.digests() == undisturbed.digests
    assert home.assert_sound(middle)


@pytest.mark.folder
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_an_interrupted_ingest_cleans_up_and_continues_in_the_next_run(
    share: float, middle: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    home = Home.made(tmp_path / "home")
    process = home.start(middle)
    home.wait_for_write(process, max(1, share * undisturbed.stored_bytes))
    stderr = kill(process, signal.SIGINT)
    assert "Traceback" not in stderr
    known = home.assert_sound(middle)
    if not known:  # otherwise it was faster
        assert process.returncode == 130
        assert "run the same command again" in stderr
    with LocalRegistry.open(home.folder) as registry:
        assert_no_orphans(registry)
        found = sum(row.size_bytes for row in blob_rows(registry))
    report = finished(home.start(middle))
    assert report["new_bytes"] <= middle.stat().st_size + home.small.stat().st_size - found
    assert home.digests() == undisturbed.digests
    assert home.assert_sound(middle)


def test_an_interrupt_while_a_large_tensor_is_written_leaves_no_temporary(
    middle: Path, registry: LocalRegistry
) -> None:
    def press_once(_size_bytes: int) -> None:
        if not pressed:
            pressed.append(True)
            signal.pthread_kill(main, signal.SIGINT)

    pressed: list[bool] = []
    main = threading.main_thread().ident or 0
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ingest_path(registry, middle, press_once)
    finally:
        signal.signal(signal.SIGINT, before)
    assert_no_orphans(registry)
    assert model_names(registry) == []


@pytest.mark.slow
def test_a_kill_at_nine_tenths_costs_at_most_one_batch_of_the_work(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    size = write_model(path, LARGE)
    home = Home.made(tmp_path / "home")
    before = home.stored_bytes()
    process = home.start(path)
    home.wait_for_write(process, 0.9 * 0.666 * size)  # the compression ratio of such weights is known
    kill(process)
    written = home.stored_bytes() - before
    report = finished(home.start(path))
    share = written / sum_of_stored(home)
    print(f"killed at {share:.3f} of the bytes; the re-run wrote {report['new_bytes'] / size:.3f} of them")
    assert 0.85 < share < 0.96
    assert report["new_bytes"] - (1 - share) * size < 64 << 20
    assert home.assert_sound(path)


def sum_of_stored(home: Home) -> int:
    with LocalRegistry.open(home.folder) as registry:
        return sum(row.stored_bytes for row in blob_rows(registry) if row.file is not None)
