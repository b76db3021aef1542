"""Fleets with a scheduler of Dask, and workers in this process. `make test-fleet` runs them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from organs.cli import fleet
from organs.ingest.fleet import driver, worker
from organs.ingest.fleet.driver import DaskCluster, drive
from organs.ingest.fleet.plan import expand_plan, read_plan
from organs.registry.catalog.register.fleet import NewUnit, start_run
from organs.registry.entities.fleet import FleetRun
from organs.registry.errors import OrganError, Unreachable
from organs.registry.local import LocalRegistry
from tests.evolving.zoo_evolution import CODE, add_two_models, begun
from tests.small_models import small_model

pytestmark = [pytest.mark.fleet, pytest.mark.filterwarnings("default")]


@pytest.fixture
def scheduler(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a scheduler with two workers that open `registry` as their environment says."""
    from distributed import LocalCluster

    monkeypatch.setenv("ORGAN_HOME", str(registry.settings.home))
    fleet._worker_of_process.cache_clear()
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address
    fleet._worker_of_process.cache_clear()


@pytest.fixture
def run(registry: LocalRegistry, tmp_path: Path) -> int:
    """A run that ingests six models, of which one is not valid."""
    (tmp_path / "models").mkdir()
    for number in range(5):
        (tmp_path / "models" / f"m{number}.gguf").write_bytes(small_model(f"M {number}", seed=number))
    (tmp_path / "models" / "m9.gguf").write_bytes(b"not a model")
    (tmp_path / "plan.toml").write_text('name = "zoo"\n[[work]]\ndo = "ingest"\nfrom = ["models"]\n')
    plan = expand_plan(registry, read_plan(tmp_path / "plan.toml"), tmp_path)
    with registry.catalog.writing() as session:
        return start_run(session, plan.name, plan.digest, plan.units)[0]


def driven(registry: LocalRegistry, run: int, address: str, on_message: Callable[[str], None] = print) -> FleetRun:
    cluster = DaskCluster(registry, run, address, fleet.do_unit)
    return drive(registry, run, cluster, threading.Event(), lambda _run: None, on_message)


def test_the_workers_of_a_cluster_do_all_units_and_no_path_is_in_a_task(
    registry: LocalRegistry, run: int, scheduler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from distributed import Client

    sent = []
    submit = Client.submit

    def record(client: Client, *arguments: object, **options: object) -> object:
        sent.append((arguments, options))
        return submit(client, *arguments, **options)

    monkeypatch.setattr(Client, "submit", record)
    done = driven(registry, run, scheduler)
    assert (done.done, done.failed, done.is_over) == (5, 1, True)
    assert Path(done.failures[0].source).name == "m9.gguf"
    assert driven(registry, run, scheduler).done == 5
    assert {arguments[0] for arguments, _ in sent} == {fleet.do_unit}
    assert {arguments[2] for arguments, _ in sent} == {1, 2, 3, 4, 5, 6}
    assert all(str(tmp_path) not in repr(part) for part in sent)


def test_the_workers_of_a_cluster_share_the_trials_of_an_evolution(registry: LocalRegistry, scheduler: str) -> None:
    add_two_models(registry)
    number = begun(registry, trials=3, blends=[{"type": "organ", "depths": 2, "models": CODE}])
    with registry.catalog.writing() as session:
        units = [NewUnit("evolve", f"{number} {slot}") for slot in (1, 2)]
        run, _ = start_run(session, "evolution", "ab" * 32, units)
    done = driven(registry, run, scheduler)
    assert (done.done, done.failures) == (2, ())
    found = registry.evolution(number)
    assert (found.trials, found.phase) == (3, "result")
    assert {trial.state for trial in found.history} == {"done"}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("ORGAN_REVIEW", "never", "can begin a unit: ORGAN_REVIEW is 'never'"),
        ("ORGAN_HOME", "another", "does not have run 1; the worker needs the ORGAN_HOME"),
    ],
)
def test_workers_that_cannot_open_their_registry_are_an_error(
    name: str,
    value: str,
    sentence: str,
    registry: LocalRegistry,
    run: int,
    scheduler: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(driver, "REFUSALS_MAX", 3)
    with pytest.raises(OrganError, match=sentence):
        driven(registry, run, scheduler)


def test_a_task_that_was_lost_is_submitted_again(
    registry: LocalRegistry, run: int, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client, Future

    monkeypatch.setattr(driver, "LOST_SECONDS", 0.5)
    submit, lost = Client.submit, []

    def lose(client: Client, *arguments: object, **options: object) -> object:
        if len(lost) < 3:
            lost.append(Future(options["key"], client))
            return lost[-1]
        return submit(client, *arguments, **options)

    monkeypatch.setattr(Client, "submit", lose)
    assert driven(registry, run, scheduler).done == 5


def test_without_a_scheduler_the_driver_waits_for_a_limited_time(
    registry: LocalRegistry, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "OUTAGE_SECONDS", 0.0)
    monkeypatch.setattr(driver, "CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(driver, "PAUSE_SECONDS", 0.1)
    messages: list[str] = []
    with pytest.raises(Unreachable, match=r"tcp://127\.0\.0\.1:9 does not answer"):
        driven(registry, run, "tcp://127.0.0.1:9", messages.append)
    assert [message.partition("; ")[2] for message in messages] == ["trying again for 10 minutes"]
    assert logging.getLogger("distributed").level == logging.CRITICAL
