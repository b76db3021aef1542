"""Drivers of fleets: they keep workers busy until the ledger of a run has no open unit.

A driver believes only the ledger. It may be killed at any time: the next one continues from the ledger. Workers are
processes of this machine (`LocalProcesses`), or those of a Dask cluster (`DaskCluster`).
"""

from __future__ import annotations

import logging
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from organs.ingest.fleet.worker import OUTAGE_SECONDS, TEMPORARY, Outage
from organs.registry.catalog.queries.fleet import (
    count_unfinished,
    due_units,
    fleet_run,
    has_dead_workers,
    has_live_workers,
    run_digest,
)
from organs.registry.catalog.register.fleet import end_worker, put_back_units, recover_units, set_dashboard
from organs.registry.entities.fleet import FleetRun
from organs.registry.errors import MissingExtra, OrganError, Unreachable
from organs.registry.local import LocalRegistry

if TYPE_CHECKING:
    from distributed import Client, Future

EXTRA = "fleet"
WATCH_SECONDS = 2.0
"""The time between two reports of the progress."""
PAUSE_SECONDS = 5.0
"""The time before the next attempt if the database does not answer."""
STOP_SECONDS = 20.0
"""The time in which the workers of this machine must put their units back."""

_log = logging.getLogger(__name__)


class Workers(Protocol):
    """The workers of a driver."""

    def keep_busy(self, unfinished: int) -> None:
        """Start what can be started, with that number of open units, and wait a moment for a change."""

    def end(self) -> None:
        """Return the units of these workers to the queue, and end what was started."""


def drive(
    registry: LocalRegistry,
    run_id: int,
    workers: Workers,
    stop: threading.Event,
    on_progress: Callable[[FleetRun], None],
    on_message: Callable[[str], None],
) -> FleetRun:
    """Keep `workers` busy until all units have ended, or `stop` is set; return the run.

    `on_message` is called with a sentence when something does not answer, and when workers are ended. Raises an error
    of the database or the scheduler that lasts longer than OUTAGE_SECONDS, and errors of workers that cannot work at
    all.
    """
    outage, reported = Outage(), 0.0
    try:
        while not stop.is_set():
            try:
                with registry.catalog.reading() as session:
                    unfinished = count_unfinished(session, run_id)
                if not unfinished:
                    break
                workers.keep_busy(unfinished)
                if time.monotonic() - reported > WATCH_SECONDS:
                    with registry.catalog.reading() as session:
                        has_dead = has_dead_workers(session, run_id)
                    if has_dead:
                        with registry.catalog.writing() as session:
                            recover_units(session, run_id)
                    with registry.catalog.reading() as session:
                        on_progress(fleet_run(session, run_id))
                    reported = time.monotonic()
                outage.end()
            except TEMPORARY as error:
                if outage.go_on(error):
                    problem = str(error).removesuffix(": try again later")
                    on_message(f"{problem}; trying again for {OUTAGE_SECONDS / 60:g} minutes")
                stop.wait(PAUSE_SECONDS)
        if stop.is_set():
            on_message("stopping: the units that run return to the queue")
    finally:
        workers.end()
    with registry.catalog.reading() as session:
        return fleet_run(session, run_id)


IDLE_DEATHS_MAX = 5
"""The most processes in a row that may end without a unit before the driver gives up."""
POLL_SECONDS = 0.2
StartWorker = Callable[[str], "subprocess.Popen[bytes]"]
"""Starts a process that does units under this name until none is left."""


@dataclass(slots=True)
class LocalProcesses:
    """A number of processes on this machine. One that dies is replaced."""

    registry: LocalRegistry
    run_id: int
    count: int
    start: StartWorker
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    idle_deaths: int = 0
    unfinished: int = 0

    def keep_busy(self, unfinished: int) -> None:
        """Replace processes that have ended. Raises OrganError if they end before they do anything."""
        if unfinished != self.unfinished:
            self.unfinished, self.idle_deaths = unfinished, 0
        for name, process in list(self.processes.items()):
            status = process.poll()
            if status is not None:
                with self.registry.catalog.writing() as session:
                    had_unit = end_worker(session, self.run_id, name, died=status != 0)
                del self.processes[name]
                self.idle_deaths = 0 if had_unit else self.idle_deaths + 1
                if self.idle_deaths > IDLE_DEATHS_MAX:
                    raise OrganError(f"the workers end at once, with the status {status}: see their messages above")
        while len(self.processes) < min(self.count, unfinished):
            name = worker_name()
            self.processes[name] = self.start(name)
        with suppress(subprocess.TimeoutExpired):
            next(iter(self.processes.values())).wait(POLL_SECONDS)

    def end(self) -> None:
        """End all processes, with SIGTERM first."""
        for process in self.processes.values():
            process.terminate()
        until = time.monotonic() + STOP_SECONDS
        for process in self.processes.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with suppress(OrganError), self.registry.catalog.writing() as session:  # otherwise the leases expire
            for name in self.processes:
                end_worker(session, self.run_id, name, died=False)
        self.processes.clear()


def worker_name() -> str:
    """Return a new name for a process: that of its machine, and a random text."""
    return f"{socket.gethostname()[:64]}-{secrets.token_hex(4)}"


WINDOW = 4
"""Tasks for each thread of the cluster that are submitted before they are done."""
CONNECT_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""The longest wait for a task before the driver looks at the ledger again."""
LOST_SECONDS = 30.0
"""A task that has not claimed its unit after this time may be lost: its unit is submitted again."""
COALESCE_SECONDS = 0.02
"""The driver waits so long after a task is done, so that it submits several tasks at once."""
REFUSALS_MAX = 50
"""The most tasks in a row that may fail before they claim their unit, while no worker does a unit."""
REFUSAL_SECONDS = 0.05
"""The pause after a refusal. It grows with their number, so that a worker with a wrong environment is not busy."""


def check_extra() -> None:
    """Raise MissingExtra without the package `distributed`."""
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        message = f"a scheduler needs the package distributed: pip install 'organ-registry[{EXTRA}]'"
        raise MissingExtra(message, EXTRA) from error


class DaskCluster:
    """The workers of a Dask cluster, which open the registry of their own environment.

    A task has only the number of a run and of a unit, and the digest of the plan. Its end, in any way, only means that
    the driver looks at the ledger. Dask may run a task twice, or never: the claim in the ledger decides.
    """

    def __init__(
        self,
        registry: LocalRegistry,
        run_id: int,
        address: str,
        task: Callable[[int, int, str], None],
    ) -> None:
        """`address` is that of the scheduler. Raises MissingExtra without the package `distributed`.

        `task` is called by a worker with the number of the run, that of a unit, and the digest of the plan.
        """
        check_extra()
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # the driver says it in one sentence
        self._registry, self._run_id, self._address, self._task = registry, run_id, address, task
        with registry.catalog.reading() as session:
            self._digest = run_digest(session, run_id) or ""
        self._client: Client | None = None
        self._scheduler_id = ""
        self._threads = 0
        """Threads of all workers."""
        self._looked = 0.0
        """When the driver last looked at the scheduler."""
        self._submitted: dict[int, tuple[Future, float]] = {}
        """The task of each unit, and when it was submitted."""
        self._refusals = 0

    def keep_busy(self, unfinished: int) -> None:
        """Submit units up to the window, and wait until one ends. Raises Unreachable without a scheduler."""
        client = self._connected()
        with _translated(self._address):
            if time.monotonic() - self._looked > LOOK_SECONDS:
                scheduler = client.scheduler_info(n_workers=-1)
                self._looked = time.monotonic()
                self._threads = sum(worker["nthreads"] for worker in scheduler["workers"].values())
                if scheduler["id"] != self._scheduler_id:
                    self._scheduler_id = scheduler["id"]
                    self._submitted.clear()  # another scheduler does not know the tasks of the last one
            if not self._threads:
                raise Unreachable(f"the scheduler {self._address} has no workers: start some with `dask worker`")
            self._submit(client, min(WINDOW * self._threads, unfinished))
            self._wait(client)

    def _connected(self) -> Client:
        from distributed import Client

        if self._client is not None and self._client.status == "running":
            return self._client
        with _translated(self._address):
            lost, self._client = self._client, None
            if lost is not None:
                lost.close(timeout=1)
            self._client = Client(self._address, timeout=CONNECT_SECONDS, set_as_default=False, name="organ-fleet")
        link = None
        with suppress(KeyError, ValueError, OSError):  # this scheduler has no dashboard
            link = self._client.dashboard_link
        if link:
            with self._registry.catalog.writing() as session:
                set_dashboard(session, self._run_id, link)
        return self._client

    def _submit(self, client: Client, window: int) -> None:
        """Submit units until `window` tasks are. Tasks that have not begun for LOST_SECONDS are submitted again."""
        until = time.monotonic() - LOST_SECONDS
        old = [number for number, (_, begun) in self._submitted.items() if begun < until]
        if old:
            with self._registry.catalog.reading() as session:
                lost = due_units(session, self._run_id, len(self._submitted), among=old)
            client.cancel([self._submitted.pop(number)[0] for number in lost])
        count = window - len(self._submitted)
        if count <= 0:
            return
        with self._registry.catalog.reading() as session:
            numbers = due_units(session, self._run_id, count, but=self._submitted)
        for number in numbers:
            key = f"fleet-{self._run_id}-{number}-{secrets.token_hex(4)}"
            future = client.submit(self._task, self._run_id, number, self._digest, key=key, pure=False, retries=0)
            self._submitted[number] = (future, time.monotonic())

    def _wait(self, client: Client) -> None:
        """Wait until a task ends. Raises OrganError if all fail before their unit begins, and no worker does a unit."""
        from distributed import wait

        if not self._submitted:
            time.sleep(LOOK_SECONDS)
            return
        futures = [future for future, _ in self._submitted.values()]
        with suppress(TimeoutError), client.as_current():
            wait(futures, timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED")
            time.sleep(COALESCE_SECONDS)
        for number, (future, _) in list(self._submitted.items()):
            if not future.done():
                continue
            del self._submitted[number]
            self._refusals = self._refusals + 1 if future.status == "error" else 0
            if self._refusals > REFUSALS_MAX:
                with self._registry.catalog.reading() as session:
                    is_working = has_live_workers(session, self._run_id)
                if not is_working:
                    error = future.exception(timeout=CONNECT_SECONDS)
                    reason = str(error) if isinstance(error, OrganError) else type(error).__name__
                    raise OrganError(f"no worker of {self._address} can begin a unit: {reason}")
        time.sleep(min(REFUSAL_SECONDS * self._refusals, LOOK_SECONDS))

    def end(self) -> None:
        """Cancel all tasks. Units that run return to the queue, and their workers stop at their next step."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Unreachable), _translated(self._address):
                if client.status == "running":
                    client.cancel([future for future, _ in self._submitted.values()])
                client.close(timeout=1)
        with suppress(OrganError), self._registry.catalog.writing() as session:  # otherwise the leases expire
            put_back_units(session, self._run_id, list(self._submitted))
        self._submitted.clear()


@contextmanager
def _translated(address: str) -> Iterator[None]:
    """Raise errors of the connection to the scheduler as Unreachable."""
    from distributed.client import ClosedClientError

    try:
        yield
    except (OSError, CancelledError, ClosedClientError) as error:
        raise Unreachable(f"the scheduler {address} does not answer ({type(error).__name__})") from error
