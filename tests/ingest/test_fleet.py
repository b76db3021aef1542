"""Tests of fleets: plans, workers that do units, and drivers that start workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import undefer

from organs.ingest.fleet import worker
from organs.ingest.fleet.driver import LocalProcesses, drive
from organs.ingest.fleet.plan import ExpandedPlan, expand_plan, read_plan, source_of
from organs.ingest.fleet.worker import Outage, UnitWorker
from organs.registry.catalog import work as queue
from organs.registry.catalog.queries.evolutions import trials_of
from organs.registry.catalog.queries.fleet import fleet_run
from organs.registry.catalog.register.fleet import NewUnit, claim_unit, put_back_units, start_run
from organs.registry.catalog.tables import FleetUnit, Ingest
from organs.registry.catalog.work import WorkCancelled
from organs.registry.entities.fleet import FleetRun
from organs.registry.errors import BadInput, BadReply, BadSource, Busy, NotFound, OrganError, Unreachable
from organs.registry.local import LocalRegistry
from tests import postgres
from tests.evolving.zoo_evolution import CODE, add_two_models
from tests.evolving.zoo_evolution import begun as begun_evolution
from tests.related_models import family_files
from tests.small_models import ingest_file, small_model, small_shards

ROOT = Path(__file__).resolve().parents[2]
INGEST = 'name = "zoo"\n[[work]]\ndo = "ingest"\nfrom = ["models"]\n'


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with two small models."""
    folder = tmp_path / "models"
    folder.mkdir()
    for number in range(2):
        (folder / f"m{number}.gguf").write_bytes(small_model(f"M {number}", seed=number))
    return folder


def expanded(registry: LocalRegistry, folder: Path, text: str = INGEST) -> ExpandedPlan:
    (folder / "plan.toml").write_text(text)
    return expand_plan(registry, read_plan(folder / "plan.toml"), folder)


def begun(registry: LocalRegistry, folder: Path, text: str = INGEST) -> int:
    plan = expanded(registry, folder, text)
    with registry.catalog.writing() as session:
        return start_run(session, plan.name, plan.digest, plan.units)[0]


@pytest.fixture
def run(registry: LocalRegistry, models: Path) -> int:
    """A run that ingests the two models."""
    return begun(registry, models.parent)


def state(registry: LocalRegistry, run: int) -> FleetRun:
    with registry.catalog.reading() as session:
        return fleet_run(session, run)


def units(registry: LocalRegistry) -> list[FleetUnit]:
    with registry.catalog.reading() as session:
        return list(session.scalars(select(FleetUnit).order_by(FleetUnit.number).options(undefer(FleetUnit.result))))


# Plans.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "missing required field `name`"),
        ('name = "42"\n[[work]]\ndo = "measure"\nmodels = ["*"]', "printable ASCII characters, and a letter"),
        ('name = "a"\nwork = []', "length >= 1"),
        ('name = "a"\n[[work]]\ndo = "evolve"\nmodels = ["*"]', "Invalid enum value 'evolve'"),
        ('name = "a"\n[[work]]\ndo = "ingest"', "work 1: ingest needs the list 'from'"),
        ('name = "a"\n[[work]]\ndo = "ingest"\nfrom = ["x"]\nmodels = ["y"]', "takes 'from', not 'models'"),
        ('name = "a"\n[[work]]\ndo = "ingest"\nfrom = ["missing"]', "missing: nothing to ingest"),
        ('name = "a"\n[[work]]\ndo = "ingest"\nfrom = ["https://u:p@h/m.gguf"]', "https://h/m.gguf: an address"),
        ('name = "a"\n[[work]]\ndo = "ingest"\nfrom = ["https://h/m.gguf?sig=1"]', "no user, password, query"),
        ('name = "a"\n[[work]]\ndo = "measure"\nmodels = ["local/none*"]', "no registered model has the name"),
        ('name = "a"\n[[work]]\ndo = "validate"\nchimeras = ["local/none"]', "local/none"),
    ],
)
def test_a_plan_that_is_not_valid_is_refused_with_one_sentence(
    text: str, message: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    with pytest.raises((BadInput, NotFound)) as caught:
        expanded(registry, tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "u:p" not in str(caught.value)
    assert "sig=1" not in str(caught.value)


def test_a_plan_that_is_too_large_or_missing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("organs.ingest.fleet.plan.PLAN_MAX_BYTES", 10)
    (tmp_path / "plan.toml").write_text(INGEST)
    with pytest.raises(BadInput, match="at most 10 bytes"):
        read_plan(tmp_path / "plan.toml")
    with pytest.raises(BadSource, match="No such file"):
        read_plan(tmp_path / "other.toml")


def test_each_model_and_each_shard_of_a_folder_is_a_unit(
    registry: LocalRegistry, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in small_shards("split", 3).items():
        (models / name).write_bytes(data)
    plan = expanded(registry, tmp_path)
    names = [Path(unit.source).name for unit in plan.units]
    assert names == ["m0.gguf", "m1.gguf", *(f"split-0000{number}-of-00003.gguf" for number in (1, 2, 3))]
    assert [unit.size_bytes for unit in plan.units] == [(models / name).stat().st_size for name in names]
    twice = INGEST.replace('["models"]', '["models", "models/m*.gguf", "models/split-00002-of-00003.gguf"]')
    assert expanded(registry, tmp_path, twice).digest == plan.digest
    shard = source_of(str(models / "split-00002-of-00003.gguf"), None)
    assert [path.name for path in shard.paths] == ["split-00002-of-00003.gguf"]
    assert str(shard.name) == "local/split"
    monkeypatch.setattr("organs.ingest.fleet.plan.UNITS_MAX", 4)
    with pytest.raises(BadInput, match="at most 4 units"):
        expanded(registry, tmp_path)


@pytest.mark.long
def test_models_are_measured_one_by_one_and_repacked_by_family(registry: LocalRegistry, tmp_path: Path) -> None:
    for name, data in family_files(["base", "tuned"]).items():
        (tmp_path / f"{name}.gguf").write_bytes(data)
        ingest_file(registry, tmp_path / f"{name}.gguf")
    (tmp_path / "stranger.gguf").write_bytes(small_model())
    ingest_file(registry, tmp_path / "stranger.gguf")
    text = 'name = "a"\n[[work]]\ndo = "measure"\nmodels = ["local/base", "local/tun*@1"]\n'
    text += '[[work]]\ndo = "repack"\nmodels = ["*"]\n'
    found = [(unit.work, unit.source) for unit in expanded(registry, tmp_path, text).units]
    assert found == [
        ("measure", "local/base@1"),
        ("measure", "local/tuned@1"),
        ("repack", "local/base@1 local/tuned@1"),
        ("repack", "local/stranger@1"),
    ]
    run = begun(registry, tmp_path, text)
    UnitWorker(registry, "w").work_until_done(run)
    assert (state(registry, run).done, state(registry, run).failures) == (4, ())
    measured = json.loads(units(registry)[0].result or "")
    assert measured["model"] == "local/base@1"
    assert set(measured["differences"].values()) <= {0.0, None}
    assert json.loads(units(registry)[2].result or "")["organs"] > 0


# Workers.


def failing(error: BaseException) -> Callable[..., worker.Result]:
    def work(*_: object) -> worker.Result:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "expected", "attempts", "note"),
    [
        (Busy("locked"), "queued", 1, "locked"),
        (Unreachable("no answer"), "queued", 1, "no answer"),
        (BadReply("other bytes"), "failed", 1, "other bytes"),
        (BadInput("no"), "failed", 1, "no"),
        (WorkCancelled(), "queued", 0, ""),
        (ZeroDivisionError("secret"), "failed", 1, "an internal error (ZeroDivisionError); the log of the worker has"),
    ],
)
def test_the_class_of_an_error_decides_what_becomes_of_the_unit(
    error: BaseException,
    expected: str,
    attempts: int,
    note: str,
    registry: LocalRegistry,
    run: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "WORK", {"ingest": failing(error)})
    assert UnitWorker(registry, "w").work_on(run, 1)
    row = units(registry)[0]
    assert (row.state, row.attempts) == (expected, attempts)
    assert row.note.startswith(note)
    assert "secret" not in row.note


def test_a_worker_stops_when_its_unit_returns_to_the_queue(
    registry: LocalRegistry, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "RENEW_SECONDS", 0.02)

    def work(_registry: LocalRegistry, _source: str, report: worker.Report, _hub: object) -> worker.Result:
        with registry.catalog.writing() as session:
            put_back_units(session, run, [1])
        forever = threading.Event()
        while True:
            report()
            forever.wait(0.01)

    monkeypatch.setattr(worker, "WORK", {"ingest": work})
    assert UnitWorker(registry, "w").work_on(run, 1)
    assert (units(registry)[0].state, units(registry)[0].attempts) == ("queued", 0)
    assert not UnitWorker(registry, "w").work_on(run, 9)


def test_an_ingest_that_is_stopped_is_recorded_as_interrupted(registry: LocalRegistry, run: int) -> None:
    stop = threading.Event()
    stop.set()
    assert UnitWorker(registry, "w", stop=stop).work_on(run, 1)
    assert (units(registry)[0].state, units(registry)[0].attempts) == ("queued", 0)
    with registry.catalog.reading() as session:
        assert session.scalars(select(Ingest.state)).all() == ["interrupted"]


def test_a_short_outage_is_waited_for_and_a_long_one_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "OUTAGE_SECONDS", 0.0)
    outage = Outage()
    outage.go_on(Busy("locked"))
    outage.end()
    outage.go_on(Busy("locked"))
    with pytest.raises(Busy):
        outage.go_on(Busy("locked"))


# Drivers.


def start_with(code: str, environment: Mapping[str, str]) -> Callable[[str], subprocess.Popen[bytes]]:
    """Return a function that starts a worker process which runs `code` and then works."""
    worked = f"""
import os, signal, sys
from organs.ingest.fleet import worker
from organs.registry.local import LocalRegistry
{code}
with LocalRegistry.open() as registry:
    worker.UnitWorker(registry, sys.argv[2]).work_until_done(int(sys.argv[1]))
"""

    def start(name: str) -> subprocess.Popen[bytes]:
        path = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        return subprocess.Popen([sys.executable, "-c", worked, "1", name], env={**os.environ, **path, **environment})

    return start


@pytest.mark.long
def test_a_driver_that_is_stopped_returns_all_units_to_the_queue(registry: LocalRegistry, run: int) -> None:
    stop = threading.Event()
    slow = "import time\nworker.WORK = {'ingest': lambda *_: time.sleep(600)}"
    start = start_with(slow, postgres.environment(registry.settings.home))

    def stop_when_busy() -> None:
        while state(registry, run).running < 2:
            stop.wait(0.05)
        stop.set()

    watch = threading.Thread(target=stop_when_busy)
    watch.start()
    done = drive(registry, run, LocalProcesses(registry, run, 2, start), stop, lambda _run: None, print)
    watch.join()
    assert (done.queued, done.running) == (2, 0)
    assert [(row.attempts, row.deaths) for row in units(registry)] == [(0, 0), (0, 0)]


def test_workers_that_end_at_once_are_an_error(registry: LocalRegistry, run: int) -> None:

    def start(_name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["false"])

    with pytest.raises(OrganError, match="the workers end at once, with the status 1"):
        drive(registry, run, LocalProcesses(registry, run, 2, start), threading.Event(), lambda _run: None, print)
    assert state(registry, run).queued == 2


def test_a_dead_process_counts_against_its_unit_at_once(registry: LocalRegistry, run: int) -> None:

    def start(name: str) -> subprocess.Popen[bytes]:
        with registry.catalog.writing() as session:
            claim_unit(session, run, name, "1", 1)
        return subprocess.Popen(["sh", "-c", "kill -9 $$"])

    workers = LocalProcesses(registry, run, 1, start)
    while units(registry)[0].state != "set_aside":
        workers.keep_busy(2)
    assert (units(registry)[0].deaths, units(registry)[0].note) == (3, "its worker died 3 times")
    assert units(registry)[1].deaths == 0
    workers.end()


@pytest.mark.long
def test_processes_share_the_trials_of_an_evolution_and_do_each_once(registry: LocalRegistry) -> None:
    add_two_models(registry)
    number = begun_evolution(registry, trials=4, blends=[{"type": "organ", "depths": 2, "models": CODE}])
    names = [NewUnit("evolve", f"{evolution} {slot}") for evolution, slot in ((number, 1), (number, 2), (99, 1))]
    with registry.catalog.writing() as session:
        run, _ = start_run(session, "evolution", "ab" * 32, names)
    start = start_with("", postgres.environment(registry.settings.home))
    done = drive(registry, run, LocalProcesses(registry, run, 2, start), threading.Event(), lambda _run: None, print)
    assert (done.done, [failure.note for failure in done.failures]) == (2, ["there is no evolution 99"])
    assert json.loads(units(registry)[0].result or "") == {"evolution": number}
    found = registry.evolution(number)
    assert [trial.number for trial in found.history] == list(range(1, len(found.history) + 1))
    assert [trial.role for trial in found.history][:5] == ["start", "proposed", "proposed", "proposed", "check"]
    with registry.catalog.reading() as session:
        trials = trials_of(session, number)
        assert [(row.state, row.attempts, row.deaths) for row in trials] == [("done", 1, 0)] * len(trials)
        assert {str(row.worker)[-2:] for row in trials} == {"-1", "-2"}
    assert (found.state, found.phase) == ("running", "result"), "the command makes the result"
