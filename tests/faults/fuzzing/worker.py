"""One child process: `python -m tests.faults.fuzzing.worker TARGET FIRST END BEAT [SKIPPED ...]`.

It tries the cases from FIRST to END, writes the number of each into the file BEAT before it begins, and writes progress
and results to standard output as pickles. Its limits apply to each case:

- a second of processor time: a timer that counts nothing else, so that a busy machine causes no failure, and a check of
  the clock afterwards for a case that could not be interrupted;
- 64 MB of memory beyond that of the warm process: the address space is limited to that, and the touched memory is
  checked at intervals.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import re
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Collection
from pathlib import Path

from tests.faults.fuzzing.tally import Failure, Tally
from tests.faults.fuzzing.targets import Target, build_target

CASE_MAX_SECONDS = 1.0
EXTRA_MAX_BYTES = 64_000_000
REPORT_CASES = 500
FAILURES_MAX = 20
"""A worker stops after this number of failures."""
BEAT = struct.Struct("<q")

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class TooSlow(BaseException):
    """The case has used its second. Not an Exception, so that no handler takes it for an error of the case."""


def main(target_name: str, first: int, end: int, beat_file: str, skipped: Collection[int]) -> None:
    """Try the cases and report."""
    target = build_target(target_name)
    target.warm_up()
    gc.collect()
    signal.signal(signal.SIGPROF, _too_slow)
    with open(beat_file, "r+b") as file, mmap.mmap(file.fileno(), BEAT.size) as beat:
        warm_bytes = _limit_memory()
        tally, failed = Tally(), 0
        for case in range(first, end):
            if case in skipped:
                continue
            BEAT.pack_into(beat, 0, case)
            _try(target, case, tally)
            if tally.cases >= REPORT_CASES or tally.failures:
                failed += len(tally.failures)
                _report(tally, case + 1, warm_bytes)
                tally = Tally()
            if failed >= FAILURES_MAX:
                break
        _report(tally, end, warm_bytes)


def _try(target: Target, case: int, tally: Tally) -> None:
    signal.setitimer(signal.ITIMER_PROF, CASE_MAX_SECONDS)
    begin = time.process_time()
    outcome, failure = None, None
    try:
        outcome = target.try_case(case)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # handed on: it is what this program looks for
        failure = Failure(case, _kind(error), "".join(traceback.format_exception(error)))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - begin
    if failure is None and seconds > CASE_MAX_SECONDS:
        failure = Failure(case, "hang", f"{seconds:.1f} s of processor time, {CASE_MAX_SECONDS} s are allowed")
    tally.time(case, seconds)
    if failure is not None:
        tally.failures.append(failure)
    else:
        assert outcome is not None
        tally.outcomes[outcome] += 1


def _kind(error: BaseException) -> str:
    if isinstance(error, TooSlow):
        return "hang"
    if isinstance(error, MemoryError):
        return "memory"
    return "wrong" if isinstance(error, AssertionError) else "crash"


def _report(tally: Tally, reached: int, warm_bytes: int) -> None:
    tally.extra_bytes = max(0, _peak_bytes() - warm_bytes)
    _forget_peak()
    if tally.extra_bytes > EXTRA_MAX_BYTES:
        text = f"{tally.extra_bytes / 1e6:.0f} MB more than warm in one of the cases before this one"
        tally.failures.append(Failure(reached, "memory", text))
    pickle.dump((reached, tally), sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _limit_memory() -> int:
    """Limit the process to EXTRA_MAX_BYTES more than it has; return its resident memory in bytes."""
    if not _STATUS.exists():
        return _peak_bytes()
    _forget_peak()
    limit = _status_bytes("VmSize") + EXTRA_MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return _status_bytes("VmRSS")


def _forget_peak() -> None:
    """Reset the peak to the resident memory, so that one large case is reported once."""
    if _CLEAR.exists():
        _CLEAR.write_text("5")


def _peak_bytes() -> int:
    """Return the peak of resident memory, not by ru_maxrss if possible: that begins with the value of the parent."""
    if _STATUS.exists():
        return _status_bytes("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status_bytes(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def _too_slow(_number: int, _frame: object) -> None:
    raise TooSlow


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], {int(case) for case in sys.argv[5:]})
