"""`organ fleet`: work on many models with many processes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from organs.cli.console import (
    is_for_people,
    organ_command,
    output_options,
    print_facts,
    print_hint,
    print_remark,
    print_sentence,
    printed_for_programs,
    prints_json,
    status_line,
)
from organs.cli.inputs import hub_of_environment
from organs.cli.main import CommandGroup
from organs.cli.options import flag
from organs.cli.processes import EXIT_ABANDONED, ended_by_signals, watch_parent
from organs.cli.registries import local_registry, local_session
from organs.cli.tables import print_table
from organs.registry.amounts import plural_text, size_text
from organs.registry.columns import CellKind, Column
from organs.registry.errors import OrganError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from organs.ingest.fleet.driver import Workers
    from organs.ingest.fleet.worker import UnitWorker
    from organs.registry.entities.fleet import FleetRun
    from organs.registry.local import LocalRegistry

FAILURES_PRINTED = 20
LISTED_MAX = 50
WORKERS_MAX = 256
SCHEMES = ("tcp", "tls", "ucx", "ws", "wss")
_RUN = click.argument("run", required=False, metavar="[RUN]")


@click.group(cls=CommandGroup)
def fleet() -> None:
    """Ingest, measure, repack or validate many models with many processes, on one machine or on many; or measure how
    sensitive a large model is to rounding.

    What is done, and what is still to do, is in the database of the registry. RUN is the number of a run or its name;
    by default it is the newest run.
    """


def scheduler_address(value: str) -> str:
    """Return the address of a scheduler with its scheme. Raises BadParameter."""
    address = value if "://" in value else f"tcp://{value}"
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in SCHEMES and parts.hostname and parts.port
    except ValueError:
        is_address = False
    if not is_address:
        raise click.BadParameter(f"{value!r} is not an address such as tcp://HOST:8786.")
    return address


def _driving(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of commands that do the work of a run."""
    for option in (
        output_options(json="Print as JSON.", quiet="Print errors only."),
        flag("--retry", "Also do the units again that failed or were set aside."),
        click.option(
            "--scheduler",
            metavar="ADDRESS",
            type=scheduler_address,
            help="Use the workers of a Dask scheduler instead, such as tcp://HOST:8786.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(1, WORKERS_MAX),
            help="The number of processes on this machine. [default: one for each core]",
        ),
    ):
        command = option(command)
    return command


@fleet.command()
@click.argument("plan", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_driving
@flag("-n", "--dry-run", "Print the units of the plan; change nothing.")
def run(plan: Path, workers: int | None, scheduler: str | None, retry: bool, dry_run: bool) -> int:
    """Do the work of PLAN, a TOML file, with many processes.

    The same plan with unchanged files continues where it stopped: after Ctrl-C, after a crash, on another machine. With
    --scheduler, the workers of a Dask cluster do the work. They open the registry that their own environment names.

    The exit status is 1 if units failed or were set aside.
    """
    from organs.ingest.fleet.plan import expand_plan, read_plan
    from organs.registry.catalog.register.fleet import start_run

    with local_registry(waits=True) as registry:
        stated = read_plan(plan)
        with ExitStack() as opened, status_line("plan"):
            hub = opened.enter_context(hub_of_environment()) if stated.has_addresses else None
            expanded = expand_plan(registry, stated, plan.absolute().parent, hub)
        if dry_run:
            units = expanded.units
            values = [{"work": unit.work, "source": unit.source, "size_bytes": unit.size_bytes} for unit in units]
            if not printed_for_programs(values):
                print_table((Column("work"), Column("source"), Column("size_bytes", "size", CellKind.SIZE)), units)
            return 0

        def begin(session: Session) -> tuple[int, bool]:
            return start_run(session, expanded.name, expanded.digest, expanded.units)

        return do_run(registry, begin, workers, scheduler, retry=retry)


@fleet.command()
@_RUN
@_driving
def resume(run: str | None, workers: int | None, scheduler: str | None, retry: bool) -> int:
    """Continue RUN without its plan.

    With --retry, the units that failed or were set aside are done again. The exit status is 1 if units failed or were
    set aside.
    """
    from organs.registry.catalog.queries.fleet import run_id_of

    with local_registry(waits=True) as registry:
        return do_run(registry, lambda session: (run_id_of(session, run), False), workers, scheduler, retry=retry)


@fleet.command()
@_RUN
@output_options(json="Print as JSON.")
def status(run: str | None) -> None:
    """Show the progress of RUN, its failures and its workers."""
    from organs.registry.catalog.queries.fleet import fleet_run, run_id_of

    with local_session() as session:
        result = fleet_run(session, run_id_of(session, run))
    if not printed_for_programs(result):
        _print_run(result)


@fleet.command("list")
@output_options(json="Print as JSON.")
def list_runs() -> None:
    """List the newest runs with their progress."""
    from organs.registry.catalog.queries.fleet import fleet_runs

    with local_session() as session:
        runs = fleet_runs(session, LISTED_MAX).items
    if not printed_for_programs(runs):
        columns = (
            Column("id", "run", CellKind.FIGURE),
            Column("name"),
            Column("created_at", "begun (UTC)", CellKind.MINUTE),
            Column("units", kind=CellKind.COUNT),
            Column("done", kind=CellKind.COUNT),
            Column("failed", kind=CellKind.COUNT, shown=lambda run: run.failed + run.set_aside),
        )
        if runs:
            print_table(columns, runs)
        else:
            print_remark("There are no runs. To begin one: organ fleet run PLAN")


@fleet.command()
@click.argument("run", metavar="RUN")
def remove(run: str) -> None:
    """Remove RUN from the list. What its units have done stays."""
    from organs.registry.catalog.queries.fleet import run_id_of
    from organs.registry.catalog.register.fleet import remove_run

    with local_session(writes=True) as session:
        run_id = run_id_of(session, run)
        remove_run(session, run_id)
    print_remark(f"run {run_id} removed")


@fleet.command(hidden=True)
@click.argument("run", type=click.IntRange(1))
@click.option("--digest", required=True)
@click.option("--name", required=True)
@click.option("--with-parent", type=click.IntRange(1), required=True)
def work(run: int, digest: str, name: str, with_parent: int) -> None:
    """Do units of a run until none is left. `organ fleet run` starts this process."""
    from organs.ingest.fleet.driver import STOP_SECONDS
    from organs.ingest.fleet.worker import UnitWorker

    stop = threading.Event()

    def end() -> None:
        stop.set()
        limit = threading.Timer(STOP_SECONDS, os._exit, (EXIT_ABANDONED,))
        limit.daemon = True
        limit.start()

    logging.basicConfig(format="organ fleet: %(message)s", level=logging.ERROR)
    watch_parent(with_parent, end)
    with local_registry(waits=True) as registry, hub_of_environment() as hub, ended_by_signals(stop):
        worker = UnitWorker(registry, name, hub, stop)
        worker.check_run(run, digest)
        worker.work_until_done(run)


def do_unit(run_id: int, number: int, digest: str) -> None:
    """Do a unit in a worker of Dask, with the registry of its environment. This is the task that drivers submit.

    Raises OrganError if the registry cannot be opened or does not have the run, or the database does not answer.
    """
    try:
        worker = _worker_of_process()
        worker.check_run(run_id, digest)
        worker.work_on(run_id, number)
    except OrganError as error:
        raise OrganError(str(error)) from None  # every class of errors would have to survive its way over the network


@cache
def _worker_of_process() -> UnitWorker:
    """Return the worker of this process. Its registry and its connections stay open until the process ends."""
    from organs.ingest.fleet.driver import worker_name
    from organs.ingest.fleet.worker import UnitWorker

    opened = ExitStack()
    return UnitWorker(local_registry("a worker", waits=True), worker_name(), opened.enter_context(hub_of_environment()))


def do_run(
    registry: LocalRegistry,
    begin: Callable[[Session], tuple[int, bool]],
    count: int | None,
    scheduler: str | None,
    *,
    retry: bool,
    is_printed: bool = True,
) -> int:
    """Do the open units of the run that `begin` returns, and whether it is new; print it, and return the exit status.

    Errors of the options and of a missing package come before the run begins.
    """
    from organs.ingest.fleet.driver import DaskCluster, LocalProcesses, check_extra, drive
    from organs.registry.catalog.queries.fleet import fleet_run, run_digest, unfinished_runs
    from organs.registry.catalog.register.fleet import retry_units

    if scheduler is not None:
        if count is not None:
            raise click.UsageError("--workers and --scheduler exclude each other: the cluster has its own workers.")
        check_extra()
    is_shown = is_printed and is_for_people()
    with registry.catalog.writing() as session:
        run_id, is_new = begin(session)
        again = retry_units(session, run_id) if retry else 0
        before = fleet_run(session, run_id)
        digest = run_digest(session, run_id) or ""
        others = [other for other in unfinished_runs(session, before.name) if other != run_id] if is_new else []
    if is_shown:
        for other in others:
            print_remark(f"run {other} of the same name is not complete: resume it later, or remove it")
        open_units = plural_text(before.queued + before.running, "unit", "units")
        how = "begins" if is_new else "is over" if before.is_over else "continues"
        more = f", {again} of them again" if again else ""
        print_remark(f"run {run_id} of {before.name} {how}: {open_units} to do{more}")

    def start(name: str) -> subprocess.Popen[bytes]:
        options = ["--digest", digest, "--name", name, "--with-parent", str(os.getpid())]
        command = [sys.executable, "-P", "-m", "organs.cli", "fleet", "work", str(run_id), *options]
        # A group of its own: Ctrl-C goes to the driver, which ends its workers.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603  # our own words

    workers: Workers
    if scheduler is not None:
        workers = DaskCluster(registry, run_id, scheduler, do_unit)
    else:
        workers = LocalProcesses(registry, run_id, count or min(os.cpu_count() or 1, WORKERS_MAX), start)

    def show_progress(run: FleetRun) -> None:
        ended, failed = run.done + run.failed + run.set_aside, run.failed + run.set_aside
        share = f"{100 * ended // run.units}% " if run.units else ""
        failures = f", {failed} failed" if failed else ""
        speed = f", {run.units_a_minute:g} a minute" if run.units_a_minute else ""
        show(f"{share}{ended:,} of {run.units:,} units{failures}, {run.running} running{speed}")

    def say(message: str) -> None:
        if is_shown:
            print_remark(message)

    stop = threading.Event()
    with ended_by_signals(stop), status_line("fleet") as show:
        result = drive(registry, run_id, workers, stop, show_progress, say)
    if stop.is_set() and not result.is_over:
        raise KeyboardInterrupt
    if is_printed and not printed_for_programs(result):
        _print_run(result)
    elif result.failures and not prints_json():
        _print_failures(result)
    return int(bool(result.failed or result.set_aside))


def _print_run(run: FleetRun) -> None:
    states = [("done", run.done), ("failed", run.failed), ("set aside", run.set_aside)]
    states += [("running", run.running), ("queued", run.queued)]
    counts = ", ".join(f"{count:,} {state}" for state, count in states if count)
    print_sentence(f"run {run.id} of {run.name}: {counts or 'no units'}")
    facts = [("begun", f"{run.created_at:%Y-%m-%d %H:%M} UTC")]
    if run.done_bytes:
        facts.append(("files", f"{size_text(run.done_bytes)} of {size_text(run.size_bytes)}"))
    if run.units_a_minute:
        facts.append(("speed", f"{run.units_a_minute:g} units a minute, {size_text(run.bytes_a_second)} a second"))
    if run.ends_at is not None:
        facts.append(("ended" if run.is_over else "will end about", f"{run.ends_at:%Y-%m-%d %H:%M} UTC"))
    if run.workers:
        facts.append(("workers", f"{len(run.workers) + run.workers_left_out:,}"))
    if run.dashboard:
        facts.append(("Dask", run.dashboard))
    print_facts(facts)
    if run.failures:
        click.echo()
        _print_failures(run)


def _print_failures(run: FleetRun) -> None:
    columns = (
        Column("number", "unit", CellKind.FIGURE),
        Column("work"),
        Column("source"),
        Column("state", shown=lambda unit: unit.state.replace("_", " ")),
        Column("note", "reason", CellKind.PROSE),
    )
    shown = run.failures[:FAILURES_PRINTED]
    print_table(columns, shown)
    left_out = len(run.failures) + run.failures_left_out - len(shown)
    if left_out:
        print_remark(f"{left_out:,} more failures: see --json")
    print_hint("again", organ_command("fleet", "resume", str(run.id), "--retry"))
