"""Tests of the ledger of fleets: claims, leases, deaths, and the figures of a run. They also pass on PostgreSQL."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.fleet import (
    count_unfinished,
    due_units,
    fleet_run,
    fleet_runs,
    has_live_workers,
    run_id_of,
    unfinished_runs,
)
from organs.registry.catalog.register import fleet
from organs.registry.catalog.register.fleet import (
    ATTEMPTS_MAX,
    NewUnit,
    UnitClaim,
    claim_unit,
    end_worker,
    finish_unit,
    postpone_unit,
    put_back_units,
    remove_run,
    retry_units,
    set_dashboard,
    start_run,
)
from organs.registry.catalog.tables import FleetRunRow, FleetUnit
from organs.registry.catalog.work import UNITS, fail, put_back
from organs.registry.errors import BadInput, BadValue, Conflict, NoSuchRun

DIGEST = "ab" * 32


def begin(session: Session, count: int = 3, digest: str = DIGEST, name: str = "zoo") -> int:
    units = [NewUnit("ingest", f"/models/{number}.gguf", 100) for number in range(1, count + 1)]
    return start_run(session, name, digest, units)[0]


def claim(session: Session, run: int, worker: str = "a", number: int | None = None) -> UnitClaim | None:
    return claim_unit(session, run, worker, "1, codecs 1", number)


def claimed(session: Session, run: int, worker: str = "a", number: int | None = None) -> UnitClaim:
    result = claim(session, run, worker, number)
    assert result is not None
    return result


def let_expire(session: Session) -> None:
    past = database_now(session) - timedelta(seconds=1)
    session.execute(update(FleetUnit).where(FleetUnit.lease_expires_at.is_not(None)).values(lease_expires_at=past))


def unit(session: Session, number: int = 1) -> FleetUnit:
    session.flush()
    session.expire_all()
    return session.scalars(select(FleetUnit).where(FleetUnit.number == number)).one()


def test_the_same_plan_continues_its_run(session: Session) -> None:
    run = begin(session)
    assert begin(session) == run
    assert begin(session, digest="cd" * 32) == run + 1
    assert (run_id_of(session, None), run_id_of(session, "zoo"), run_id_of(session, "1")) == (2, 2, 1)
    for text in ("3", "other", "9" * 30, "²"):
        with pytest.raises(NoSuchRun):
            run_id_of(session, text)


def test_a_plan_without_units_or_with_too_many_is_refused(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "UNITS_MAX", 2)
    for count in (0, 3):
        with pytest.raises(BadInput, match="1 to 2 units"):
            begin(session, count)
    with pytest.raises(BadValue), session.begin_nested():
        start_run(session, "zoo", DIGEST, [NewUnit("ingest", "/models/\udcff.gguf")])
    assert fleet_runs(session, 10).items == ()


def test_each_unit_is_claimed_once_in_the_order_of_the_plan_or_by_its_number(session: Session) -> None:
    run = begin(session)
    assert claimed(session, run, number=2).source == "/models/2.gguf"
    assert claim(session, run, number=2) is None
    assert [claimed(session, run).key[1] for _ in range(2)] == [1, 3]
    assert claim(session, run) is None
    assert (due_units(session, run, 9), count_unfinished(session, run)) == ([], 3)


def test_a_unit_ends_with_a_result_of_limited_size_and_keeps_its_own_size(session: Session) -> None:
    run = begin(session)
    found = claimed(session, run)
    with pytest.raises(BadInput, match="65,536 bytes"):
        finish_unit(session, found, '"' + "x" * 65536 + '"')
    assert finish_unit(session, found, json.dumps({"model": "local/a@1"}), 250)
    assert not finish_unit(session, found, "{}")
    row = unit(session)
    assert (row.state, row.size_bytes, row.holder, row.finished_at is None) == ("done", 100, None, False)


def test_a_unit_whose_worker_died_is_claimed_again_and_the_dead_worker_cannot_end_it(session: Session) -> None:
    run = begin(session, 1)
    dead = claimed(session, run, "dead")
    assert claim(session, run) is None
    let_expire(session)
    assert due_units(session, run, 9) == [1]
    assert due_units(session, run, 9, but=[1]) == due_units(session, run, 9, among=[]) == []
    alive = claimed(session, run, "alive")
    assert not finish_unit(session, dead, "{}")
    assert finish_unit(session, alive, "{}")
    assert (unit(session).attempts, unit(session).deaths, unit(session).worker) == (2, 1, "alive")


def test_the_third_death_sets_a_unit_aside_by_name_and_the_rest_goes_on(session: Session) -> None:
    run = begin(session, 2)
    for number in range(UNITS.deaths_max):
        assert claimed(session, run, f"worker {number}").key[1] == 1
        assert end_worker(session, run, f"worker {number}", died=True)
    assert claimed(session, run).key[1] == 2
    assert (unit(session).state, unit(session).note) == ("set_aside", "its worker died 3 times")
    (failure,) = fleet_run(session, run).failures
    assert (failure.source, failure.state) == ("/models/1.gguf", "set_aside")


def test_a_worker_that_ends_on_purpose_loses_no_attempt(session: Session) -> None:
    run = begin(session, 3)
    found = claimed(session, run, "a")
    claimed(session, run, "b")
    claimed(session, run, "c")
    assert put_back(session, found)
    assert end_worker(session, run, "b", died=False)
    assert not end_worker(session, run, "nobody", died=True)
    put_back_units(session, run, [3])
    assert [(unit(session, number).state, unit(session, number).attempts) for number in (1, 2, 3)] == [
        ("queued", 0)
    ] * 3
    assert claimed(session, run).key[1] == 1


def test_a_temporary_error_delays_the_unit_longer_each_time_until_it_fails(session: Session) -> None:
    run = begin(session, 1)
    delays = []
    for _ in range(ATTEMPTS_MAX):
        found = claimed(session, run)
        assert postpone_unit(session, found, "the store does not answer")
        moment = database_now(session)
        due_at = unit(session).lease_expires_at
        if due_at is not None:
            delays.append((due_at - moment).total_seconds())
            assert claim(session, run) is None
        let_expire(session)
    assert [round(delay) for delay in delays] == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert (unit(session).state, unit(session).note) == ("failed", "after 10 attempts: the store does not answer")


def test_failed_units_and_those_set_aside_are_queued_again_as_new_ones(session: Session) -> None:
    run = begin(session, 3)
    first, second = claimed(session, run), claimed(session, run)
    fail(session, first, "no")
    finish_unit(session, second, "{}")
    assert retry_units(session, run) == 1
    assert retry_units(session, run) == 0
    row = unit(session)
    assert (row.state, row.attempts, row.deaths, row.note, row.finished_at) == ("queued", 0, 0, "", None)
    assert unit(session, 2).state == "done"


def test_a_run_is_described_with_its_counts_its_speed_and_its_workers(session: Session) -> None:
    run = begin(session, 4)
    waiting = fleet_run(session, run)
    assert (waiting.queued, waiting.units, waiting.size_bytes, waiting.ends_at) == (4, 4, 400, None)
    for worker in ("a", "b"):
        found = claimed(session, run, worker)
        finish_unit(session, found, "{}")
    claimed(session, run, "b")
    set_dashboard(session, run, "javascript:alert(1)")
    now = fleet_run(session, run)
    assert now.dashboard is None
    assert (now.done, now.running, now.queued, now.done_bytes, now.is_over) == (2, 1, 1, 200, False)
    assert now.units_a_minute > 0
    assert now.ends_at is not None
    assert {worker.name: (worker.units, worker.running) for worker in now.workers} == {"a": (1, 0), "b": (2, 1)}
    set_dashboard(session, run, "http://10.0.0.1:8787/status")
    assert fleet_run(session, run).dashboard == "http://10.0.0.1:8787/status"


def test_a_run_is_removed_only_while_no_worker_does_a_unit_of_it(session: Session) -> None:
    run = begin(session, 2)
    claimed(session, run)
    with pytest.raises(Conflict, match=r"^units of run 1 are running: stop its command first$"):
        remove_run(session, run)
    let_expire(session)
    assert unfinished_runs(session, "zoo") == [run]
    assert not has_live_workers(session, run)
    remove_run(session, run)
    assert session.scalars(select(FleetUnit)).all() == []
    assert unfinished_runs(session, "zoo") == []


def test_old_runs_without_open_units_are_removed_when_another_begins(session: Session) -> None:
    for number in range(2):
        run = begin(session, 1, f"{number}" * 64, f"run {number}")
    found = claimed(session, run)
    finish_unit(session, found, "{}")
    session.execute(update(FleetRunRow).values(created_at=database_now(session) - timedelta(days=91)))
    begin(session, 1, "3" * 64, "new")
    assert [run.name for run in fleet_runs(session, 9)] == ["new", "run 0"]
    assert session.scalars(select(FleetUnit.state)).all() == ["queued", "queued"]


def test_runs_are_listed_in_pages_newest_first(session: Session) -> None:
    for number in range(3):
        begin(session, 1, f"{number}" * 64, f"run {number}")
    page = fleet_runs(session, 2)
    assert [run.name for run in page] == ["run 2", "run 1"]
    rest = fleet_runs(session, 2, page.next)
    assert ([run.name for run in rest], rest.next) == (["run 0"], None)
    with pytest.raises(NoSuchRun):
        fleet_run(session, 9)
