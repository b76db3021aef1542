"""`organ jobs` and `organ work`: the queue of jobs."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

import click

from organs.cli.console import (
    is_quiet,
    organ_command,
    output_options,
    print_commands,
    print_facts,
    print_json,
    print_remark,
    printed_for_programs,
)
from organs.cli.options import ID_MAX, after_option, flag, limit_option
from organs.cli.processes import EXIT_ABANDONED, ended_by_signals, watch_parent
from organs.cli.registries import local_registry, selected_registry
from organs.cli.tables import print_page
from organs.registry.columns import CellKind, Column
from organs.web.logs import FIELDS, configure_logs

if TYPE_CHECKING:
    from organs.ingest.jobs.runner import JobEvent
    from organs.registry.entities.job import Job

jobs_log = logging.getLogger("organs.jobs")
"""The log of jobs, if records are JSON."""


@click.command()
@flag("--once", "Exit when the queue is empty. [default: wait for more jobs]")
@output_options(quiet="Print errors only.")
@click.option("--with-parent", type=click.IntRange(1), hidden=True, help="End when the process with this id ends.")
def work(once: bool, with_parent: int | None) -> None:
    """Run the jobs in the queue until interrupted.

    `organ serve` does this by itself; use this command after `organ serve --no-jobs`. Up to three jobs run at the
    same time: one that runs a chimera, one that checks a submission, and one of another kind. Ctrl-C and SIGTERM put
    running jobs back into the queue.
    """
    from organs.ingest.jobs.runner import Runner  # loads all that jobs do, which `organ jobs` does not need

    done: set[int] = set()
    is_silent = is_quiet()  # asked here, because jobs report from threads of their own
    stop = threading.Event()
    if with_parent is not None:
        watch_parent(with_parent)
    with local_registry(waits=True) as registry, ended_by_signals(stop):
        writes_json = registry.settings.log == "json"
        if writes_json:
            configure_logs("json")
            jobs_log.setLevel(logging.WARNING if is_silent else logging.INFO)
        else:
            logging.basicConfig(format="organ work: %(message)s", level=logging.WARNING)

        def report(event: JobEvent) -> None:
            done.add(event.id)
            if writes_json:
                fields: dict[str, object] = {"job": event.id, "kind": event.kind, "state": event.state}
                if event.state != "running":
                    fields["seconds"] = round(event.seconds, 3)
                if event.sentence:
                    fields["reason"] = event.sentence
                level = logging.WARNING if event.state == "failed" else logging.INFO
                jobs_log.log(level, "job %d %s: %s", event.id, event.kind, event.state, extra={FIELDS: fields})
            elif not is_silent:
                seconds = f" after {event.seconds:.1f} s" if event.state != "running" else ""
                because = f": {event.sentence}" if event.sentence else ""
                print_remark(f"job {event.id} {event.kind}: {event.state}{seconds}{because}")

        all_left = Runner(registry, stop, on_event=report).run(once=once)
    if once and not done and not is_silent and not writes_json:
        print_remark("The queue is empty.")
    if not all_left:
        os._exit(EXIT_ABANDONED)  # a thread still runs a job that is back in the queue


@click.command()
@click.argument("job", required=False, type=click.IntRange(1, ID_MAX))
@limit_option("Jobs on a page.", 50)
@after_option
@click.option(
    "--cancel",
    type=click.IntRange(1, ID_MAX),
    metavar="JOB",
    help="Cancel the job with this id. This has no effect on a job that has ended.",
)
@click.option("--show", type=click.IntRange(1, ID_MAX), metavar="JOB", help="The same as JOB with --json.")
@output_options(json="Print the list, or the job with its arguments and its result, as JSON.", quiet="Print ids only.")
def jobs(job: int | None, limit: int, after: str | None, cancel: int | None, show: int | None) -> None:
    """List the jobs, newest first, or show the one with the id JOB. With --cancel, cancel one."""
    if sum(number is not None for number in (job, cancel, show)) > 1:
        raise click.UsageError("JOB, --cancel and --show exclude each other")

    columns = (
        Column("id", "job", CellKind.FIGURE),
        Column("kind"),
        Column("state"),
        Column("progress", kind=CellKind.FIGURE, shown=lambda job: f"{job.progress:.0%}"),
        Column("created_at", "requested", CellKind.MINUTE, 1),
        Column("note"),
    )
    with selected_registry() as registry:
        if cancel is not None:
            print_remark(f"job {cancel} is {registry.cancel_job(cancel).state}")
            return
        if show is not None:
            print_json(registry.job(show))
            return
        if job is not None:
            found = registry.job(job)
            if not printed_for_programs(found, [found.id]):
                _print_job(found)
            return
        page = registry.jobs(limit=limit, after=after)
    print_page(page, lambda job: job.id, columns, empty="No jobs.")


def _print_job(job: Job) -> None:
    """Print what a job is about and how far it is, for people."""
    facts = [("job", f"{job.id}, {job.kind}"), ("state", f"{job.state}, {job.progress:.0%}")]
    facts += [("note", job.note)] if job.note else []
    facts += [(name, value) for name, value in job.arguments.items() if isinstance(value, str)]
    facts += [("requested", f"{job.created_at:%Y-%m-%d %H:%M}, by {job.contributor}")]
    facts += [("ended", f"{job.finished_at:%Y-%m-%d %H:%M}")] if job.finished_at is not None else []
    print_facts(facts)
    click.echo()
    commands = [(organ_command("jobs", str(job.id), "--json"), "with its arguments and its result")]
    commands += [(organ_command("jobs", "--cancel", str(job.id)), "cancel it")] if job.is_active else []
    print_commands(commands)
