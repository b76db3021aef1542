"""The command: `python -m tests.faults.fuzzing headers --cases 1000000 --workers 2`.

Progress goes to standard error, the result to standard output. Exits with 1 if a case failed, if too few or too many
were accepted, or if a long run never met one of the refusals.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.faults.fuzzing.run import fuzz
from tests.faults.fuzzing.tally import Tally
from tests.faults.fuzzing.targets import TARGETS, build_target

LONG_CASES = 100_000
"""A run with this number of cases must meet every refusal."""
ACCEPTED_SHARES = (0.05, 0.40)
SHOWN = 10
PROGRESS_SECONDS = 5.0


def main(words: list[str] | None = None) -> int:
    """Parse the arguments, run, print; return the exit status."""
    options = _parser().parse_args(words)
    if options.only is not None:
        return _one(options.target, options.only, options.write)
    begin = time.monotonic()
    progress = _Progress(options.cases, begin)
    tally = fuzz(options.target, options.cases, first=options.first, workers=options.workers, progress=progress)
    _print(options.target, tally, time.monotonic() - begin)
    return 1 if complaints(tally) else 0


def complaints(tally: Tally) -> list[str]:
    """Return the faults of a run, one sentence each."""
    low, high = ACCEPTED_SHARES
    sentences = [f"case {failure.case}: {failure.kind}" for failure in tally.failures]
    if not low <= tally.accepted_share <= high:
        sentences.append(f"{tally.accepted_share:.1%} were accepted: the damage is too heavy or too light to find much")
    if tally.cases >= LONG_CASES and tally.unheard:
        sentences += [f"never refused with: {text}" for text in sorted(tally.unheard)]
    return sentences


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzzing", description=__doc__)
    parser.add_argument("target", help=f"{', '.join(TARGETS)}, or module:maker")
    parser.add_argument("--cases", type=int, default=20_000, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--only", type=int, metavar="CASE", help="try this case alone and say all about it")
    parser.add_argument("--write", type=Path, metavar="FILE", help="with --only: write the bytes of the case there")
    return parser


def _one(target: str, case: int, write: Path | None) -> int:
    if write is not None:
        write.write_bytes(build_target(target).material(case))
    tally = fuzz(target, 1, first=case)
    for outcome in tally.outcomes:
        print(f"case {case}: {outcome}, {tally.slowest_seconds * 1000:.1f} ms, {tally.extra_bytes / 1e6:.1f} MB")
    for failure in tally.failures:
        print(f"case {failure.case}: {failure.kind}\n{failure.text}")
    return 1 if tally.failures else 0


def _print(target: str, tally: Tally, seconds: float) -> None:
    failures = f"{len(tally.failures)} FAILURES" if tally.failures else "no failure"
    print(
        f"{target}: {tally.cases:,} cases, {failures}, {tally.accepted_share:.1%} accepted; slowest "
        f"{tally.slowest_seconds * 1000:.0f} ms (case {tally.slowest_case}); at most {tally.extra_bytes / 1e6:.1f} MB "
        f"more than warm; {tally.cases / seconds:,.0f} cases/s"
    )
    for outcome, count in tally.refused(SHOWN):
        print(f"{count / max(1, tally.cases):8.2%}  {outcome}")
    for failure in tally.failures:
        print(f"case {failure.case}: {failure.kind}: {failure.text.strip().splitlines()[-1]}")
        print(f"    python -m tests.faults.fuzzing {target} --only {failure.case}")
    for complaint in complaints(tally)[len(tally.failures) :]:
        print(complaint)


class _Progress:
    """Prints a progress line at intervals."""

    def __init__(self, cases: int, begin: float) -> None:
        self._cases = cases
        self._begin = begin
        self._told = begin

    def __call__(self, tally: Tally) -> None:
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS:
            self._told = now
            rate = tally.cases / (now - self._begin)
            line = f"{tally.cases:,} of {self._cases:,} cases, {rate:,.0f}/s, {len(tally.failures)} failures"
            print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
