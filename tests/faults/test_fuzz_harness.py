"""Tests of the fuzzing harness: every fault of a reader is reported, with the number that reproduces it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.fuzzing.run import fuzz
from tests.faults.fuzzing.tally import ACCEPTED, Tally
from tests.faults.hostile.__main__ import main
from tests.faults.hostile.fuzz import LONG_CASES, complaints

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


def test_the_suite_reports_its_failures_with_their_numbers_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--folder", str(tmp_path)]
    assert main(["fuzz", "--cases", "300", *folder]) == 0
    assert "fuzz: 1 cases in " in capsys.readouterr().out
    assert main(["fuzz", "--target", f"{PLANTED}careless_headers", "--cases", "60", *folder]) == 1
    out = capsys.readouterr().out
    assert "WRONG: " in out
    assert "KeyError: 'no such key'" in out
    assert f"hostile fuzz --target {PLANTED}careless_headers --only " in out


def test_too_heavy_damage_and_refusals_that_never_occurred_are_reported() -> None:
    tally = Tally(unheard={"the key occurs twice"})
    tally.outcomes.update({ACCEPTED: 20, "another text": 80})
    assert complaints(tally) == []
    tally.outcomes.update({ACCEPTED: LONG_CASES // 5, "another text": LONG_CASES})
    assert complaints(tally) == ["never refused with: the key occurs twice"]
    tally.outcomes[ACCEPTED] = 0
    assert complaints(tally)[0].startswith("0.0% were accepted")
