"""Tests of damaged headers and blobs, a short form of `make fuzz`, and of the harness: every planted fault is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.fuzzing.blob_check import FORGED
from tests.faults.fuzzing.run import fuzz
from tests.faults.fuzzing.worker import CASE_MAX_SECONDS, EXTRA_MAX_BYTES, FAILURES_MAX
from tests.faults.hostile.__main__ import main
from tests.faults.hostile.fuzz import ACCEPTED_SHARES, OUTCOMES_MIN

PLANTED = "tests.faults.fuzzing.faulty_readers:"
ONE, FEW, SOME, MANY = 1, 60, 200, 600
DEADLY = 40
"""Cases of which a few kill the process: each needs a new one."""
STANDSTILL_SECONDS = 5.0


@pytest.mark.parametrize(("target", "cases"), [("headers", 20_000), ("blobs", 4000)])
def test_damaged_bytes_are_refused_with_a_sentence_or_keep_every_promise(target: str, cases: int) -> None:
    tally = fuzz(target, cases)
    assert [f"case {failure.case}: {failure.text}" for failure in tally.failures] == []
    assert tally.cases == cases
    low, high = ACCEPTED_SHARES
    assert low <= tally.accepted_share <= high
    assert len(tally.outcomes) >= OUTCOMES_MIN
    assert tally.slowest_seconds <= CASE_MAX_SECONDS
    assert tally.extra_bytes <= EXTRA_MAX_BYTES
    assert target == "headers" or tally.outcomes[FORGED] > cases // 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cases", "kind", "said"),
    [
        ("endless_headers", ONE, "hang", "TooSlow"),
        ("waiting_headers", ONE, "hang", "the process was killed"),
        ("dying_headers", DEADLY, "crash", "SIGSEGV"),
        ("hungry_headers", FEW, "memory", "MemoryError"),
        ("careless_headers", SOME, "crash", "KeyError: 'no such key'"),
        ("recursing_headers", FEW, "crash", "RecursionError"),
        ("lying_headers", MANY, "wrong", "AssertionError"),
        ("lenient_headers", SOME, "wrong", "AssertionError"),
        ("lying_blobs", SOME, "wrong", "a wrong"),
        ("trusting_blobs", SOME, "wrong", "verify and the bytes disagree"),
        ("unchecked_blobs", SOME, "wrong", "read gives a wrong byte"),
    ],
)
def test_a_planted_fault_is_caught_and_reproduced_by_its_number(fault: str, cases: int, kind: str, said: str) -> None:
    tally = fuzz(PLANTED + fault, cases, standstill_seconds=STANDSTILL_SECONDS)
    failures = tally.failures
    assert {failure.kind for failure in failures} == {kind}
    assert any(said in failure.text for failure in failures)
    assert tally.cases == cases or len(failures) == FAILURES_MAX
    (again,) = fuzz(PLANTED + fault, 1, first=failures[-1].case, standstill_seconds=STANDSTILL_SECONDS).failures
    assert (again.case, again.kind) == (failures[-1].case, kind)


def test_the_suite_reports_its_failures_with_their_numbers_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"{PLANTED}careless_headers"
    assert main(["fuzz", "--target", target, "--cases", "60", "--folder", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "WRONG: " in out
    assert "KeyError: 'no such key'" in out
    assert f"hostile fuzz --target {target} --only " in out
