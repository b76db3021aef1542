"""Tests of the fuzzing harness: every fault of a reader is reported, with the number that reproduces it."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.faults.fuzzing.__main__ import LONG_CASES, complaints, main
from tests.faults.fuzzing.run import fuzz
from tests.faults.fuzzing.tally import ACCEPTED, Failure, Tally

PLANTED = "tests.faults.fuzzing.faulty_readers:"
ONE, FEW, SOME = 1, 60, 200
DEADLY = 40
"""Cases of which a few kill the process: each needs a new one."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cases", "kind", "said"),
    [
        ("endless_headers", ONE, "hang", "TooSlow"),
        ("hungry_headers", FEW, "memory", "MemoryError"),
        ("careless_headers", SOME, "crash", "KeyError: 'no such key'"),
        ("recursing_headers", FEW, "crash", "RecursionError"),
        ("lying_headers", SOME, "wrong", "AssertionError"),
        ("lenient_headers", SOME, "wrong", "AssertionError"),
        ("lying_blobs", SOME, "wrong", "a wrong"),
        ("trusting_blobs", SOME, "wrong", "verify and the bytes disagree"),
        ("unchecked_blobs", SOME, "wrong", "read gives a wrong byte"),
    ],
)
def test_a_planted_fault_is_caught(fault: str, cases: int, kind: str, said: str) -> None:
    tally = fuzz(PLANTED + fault, cases)
    assert tally.failures, "the fault was not seen"
    assert {failure.kind for failure in tally.failures} == {kind}
    assert any(said in failure.text for failure in tally.failures)


def test_a_reader_that_hangs_is_stopped_by_wall_clock_time() -> None:
    (failure,) = fuzz(PLANTED + "waiting_headers", 1, standstill_seconds=2.0).failures
    assert failure.kind == "hang"
    assert "the process was killed" in failure.text


def test_cases_after_a_crash_of_the_process_are_still_tried() -> None:
    tally = fuzz(PLANTED + "dying_headers", DEADLY)
    assert tally.cases == DEADLY
    assert 1 < len(tally.failures) == len({failure.case for failure in tally.failures}) < DEADLY
    assert {failure.kind for failure in tally.failures} == {"crash"}
    assert all("SIGSEGV" in failure.text for failure in tally.failures)


@pytest.mark.parametrize("fault", ["careless_headers", "lying_blobs"])
def test_the_number_of_a_failure_reproduces_it(fault: str) -> None:
    failures = fuzz(PLANTED + fault, SOME).failures
    (again,) = fuzz(PLANTED + fault, 1, first=failures[-1].case).failures
    assert (again.case, again.kind) == (failures[-1].case, failures[-1].kind)


def test_the_command_reports_the_result_and_exits_with_1_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["headers", "--cases", "300"]) == 0
    out = capsys.readouterr().out
    assert "headers: 300 cases, no failure, " in out
    assert main([PLANTED + "careless_headers", "--cases", "60"]) == 1
    out = capsys.readouterr().out
    assert " FAILURES" in out
    assert f"python -m tests.faults.fuzzing {PLANTED}careless_headers --only " in out


def test_a_long_run_reports_refusals_that_never_occurred() -> None:
    tally = Tally(unheard={"the key occurs twice"})
    tally.outcomes.update({ACCEPTED: 20, "another text": 80})
    assert complaints(tally) == []
    tally.outcomes.update({ACCEPTED: LONG_CASES // 5, "another text": LONG_CASES})
    assert complaints(tally) == ["never refused with: the key occurs twice"]
    tally.outcomes[ACCEPTED] = 0
    tally.failures.append(Failure(7, "hang", "too long"))
    assert [complaint.split(":")[0] for complaint in islice(complaints(tally), 2)] == [
        "case 7",
        "0.0% were accepted",
    ]
