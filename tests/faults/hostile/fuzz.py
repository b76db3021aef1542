"""Damaged headers and blobs, each given by its number: `make fuzz`.

A case must be accepted with all promises kept, or refused with a sentence. A run is wrong if a case failed, if too few
or too many were accepted, or if a long run
ended in few different ways. To try one case alone and keep its bytes:

    python -m tests.faults.hostile fuzz --only 4711 --write case.gguf
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.faults.fuzzing.run import fuzz
from tests.faults.fuzzing.tally import Tally
from tests.faults.fuzzing.targets import build_target
from tests.faults.hostile.harness import Arena, Case, Options, Suite

BATCH_CASES = 50_000
LONG_CASES = 100_000
"""A run with this number of cases must end in OUTCOMES_MIN different ways."""
OUTCOMES_MIN = 30
ACCEPTED_SHARES = (0.05, 0.40)
SHOWN = 10
NONE = -1


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[list[Case]]:
    """Try the numbers in batches; afterwards look at all outcomes."""
    total, begun = Tally(), time.monotonic()

    def act(first: int, cases: int) -> str:
        tally = fuzz(options.target, cases, first=first, workers=options.workers)
        total.add(tally)
        print(f"{first + cases:,}: {len(total.failures)} failures", flush=True)
        again = f"python -m tests.faults.hostile fuzz --target {options.target} --only"
        assert not tally.failures, "; ".join(
            f"{failure.kind}: {failure.text.strip().splitlines()[-1]}: {again} {failure.case}"
            for failure in tally.failures
        )
        return "without a failure"

    if options.only != NONE:
        if options.write:
            Path(options.write).write_bytes(build_target(options.target).material(options.only))
        yield [Case(options.target, str(options.only), partial(act, options.only, 1))]
        for failure in total.failures:
            print(failure.text)
    else:
        end = options.first + options.cases
        yield [
            Case(options.target, f"{first:,} and more", partial(act, first, min(BATCH_CASES, end - first)))
            for first in range(options.first, end, BATCH_CASES)
        ]
        arena.report.faults += complaints(total)
    rate = total.cases / (time.monotonic() - begun)
    arena.report.figures += [
        f"{total.cases:,} cases, {rate:,.0f} a second, {total.accepted_share:.1%} accepted",
        f"slowest {total.slowest_seconds * 1000:.0f} ms (case {total.slowest_case})",
        f"at most {total.extra_bytes / 1e6:.1f} MB more than warm",
        *(f"{count / max(1, total.cases):8.2%}  {outcome}" for outcome, count in total.refused(SHOWN)),
    ]


def complaints(tally: Tally) -> list[str]:
    """Return what is wrong with the outcomes of a run, besides its failures."""
    low, high = ACCEPTED_SHARES
    sentences = []
    if not low <= tally.accepted_share <= high:
        sentences.append(f"{tally.accepted_share:.1%} were accepted: the damage is too heavy or too light to find much")
    if tally.cases >= LONG_CASES and len(tally.outcomes) < OUTCOMES_MIN:
        sentences.append(f"only {len(tally.outcomes)} kinds of outcomes: the damage is too uniform to find much")
    return sentences


SUITE = Suite(opened, {"target": "headers", "cases": 20_000, "first": 0, "workers": 1, "only": NONE, "write": ""})
"""`target` is "headers", "blobs" or `module:maker`; with `only`, `write` names a file for the bytes of the case."""
