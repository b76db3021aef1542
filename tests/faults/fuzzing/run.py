"""Runs cases in child processes, each supervised from outside: a crash or hang is a failure with a number."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from tests.faults.fuzzing.tally import Failure, Tally
from tests.faults.fuzzing.worker import BEAT, FAILURES_MAX

ROOT = Path(__file__).resolve().parents[3]
STANDSTILL_SECONDS = 60.0
"""The wall clock limit of a case: it waits for something, or cannot be interrupted."""
WATCH_SECONDS = 0.1


def fuzz(
    target: str,
    cases: int,
    *,
    first: int = 0,
    workers: int = 1,
    standstill_seconds: float = STANDSTILL_SECONDS,
) -> Tally:
    """Try `cases` cases from the number `first` on, in `workers` processes."""
    bounds = [first + cases * index // workers for index in range(workers + 1)]
    total, lock = Tally(), threading.Lock()

    def add(part: Tally) -> None:
        with lock:
            total.add(part)

    shares = [_Share(target, begin, end, standstill_seconds, add) for begin, end in pairwise(bounds) if begin < end]
    threads = [threading.Thread(target=share.run) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total.failures.sort(key=lambda failure: failure.case)
    return total


class _Share:
    """Cases for one process at a time; a new process continues after one that died."""

    def __init__(
        self, target: str, first: int, end: int, standstill_seconds: float, add: Callable[[Tally], None]
    ) -> None:
        self._target = target
        self._reached = first
        self._end = end
        self._standstill_seconds = standstill_seconds
        self._add = add
        self._skipped: set[int] = set()

    def run(self) -> None:
        """Until the share is done, or too many processes have died of it."""
        with tempfile.TemporaryDirectory(prefix="fuzzing-") as folder:
            while self._reached < self._end and len(self._skipped) < FAILURES_MAX:
                death = self._run_one(Path(folder))
                if death is None:
                    return
                self._skipped.add(death.case)
                self._add(Tally(failures=[death]))

    def _run_one(self, folder: Path) -> Failure | None:
        """Run a process to its end; return how it died, if it did."""
        beat, errors = folder / "beat", folder / "errors"
        beat.write_bytes(BEAT.pack(-1))
        words = [self._target, str(self._reached), str(self._end), str(beat), *map(str, sorted(self._skipped))]
        with (
            errors.open("wb") as error_file,
            subprocess.Popen(
                [sys.executable, "-m", "tests.faults.fuzzing.worker", *words],
                cwd=ROOT,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(folder)},
                stdout=subprocess.PIPE,
                stderr=error_file,
            ) as process,
        ):
            still = threading.Event()
            watch = threading.Thread(target=self._watch, args=(process, beat, still))
            watch.start()
            assert process.stdout is not None
            with suppress(EOFError, pickle.UnpicklingError):  # the end, also in the middle of a report
                while True:
                    self._reached, part = pickle.load(process.stdout)
                    self._add(part)
            status = process.wait()
            watch.join()
        if status == 0:
            return None
        case = BEAT.unpack(beat.read_bytes())[0]
        if case < 0:
            raise RuntimeError(f"the worker died before its first case:\n{errors.read_text(errors='replace')}")
        if still.is_set():
            return Failure(case, "hang", f"no end within {self._standstill_seconds} s; the process was killed")
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return Failure(case, "crash", f"the process died by {how}\n{errors.read_text(errors='replace')}")

    def _watch(self, process: subprocess.Popen[bytes], beat: Path, still: threading.Event) -> None:
        at, since = -1, time.monotonic()
        while process.poll() is None:
            time.sleep(WATCH_SECONDS)
            case = BEAT.unpack(beat.read_bytes())[0]
            if case != at:
                at, since = case, time.monotonic()
            elif case >= 0 and time.monotonic() - since > self._standstill_seconds:
                still.set()
                process.kill()
                return
