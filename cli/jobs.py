"""`organ jobs` and `organ work`: the queue of jobs."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

import click

from organs.cli.console import is_quiet, output_options, print_json, print_remark
from organs.cli.options import ID_MAX, after_option, flag, limit_option
from organs.cli.processes import EXIT_ABANDONED, ended_by_signals, watch_parent
from organs.cli.registries import local_registry, selected_registry
from organs.cli.tables import print_page
from organs.registry.columns import CellKind, Column
from organs.web.logs import FIELDS, configure_logs

if TYPE_CHECKING:
    from organs.ingest.jobs.runner import JobEvent

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
@limit_option("Jobs on a page.", 50)
@after_option
@click.option(
    "--cancel",
    type=click.IntRange(1, ID_MAX),
    metavar="JOB",
    help="Cancel the job with this id. This has no effect on a job that has ended.",
)
@click.option(
    "--show", type=click.IntRange(1, ID_MAX), metavar="JOB", help="Print the job with this id, and its result, as JSON."
)
@output_options(json="Print the list as JSON.", quiet="Print ids only.")
def jobs(limit: int, after: str | None, cancel: int | None, show: int | None) -> None:
    """List the jobs, newest first. With --show, print one job; with --cancel, cancel one."""
    if cancel is not None and show is not None:
        raise click.UsageError("--cancel and --show exclude each other")

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
        page = registry.jobs(limit=limit, after=after)
    print_page(page, lambda job: job.id, columns, empty="No jobs.")
