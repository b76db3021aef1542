"""`organ work` runs the jobs of the queue; `organ jobs` lists and cancels them."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from organs.cli.arguments import (
    folder_registry,
    print_more,
    remote_registry,
)
from organs.cli.console import plain, print_json, print_table
from organs.registry.catalog.search.cursor import PAGE_MAX
from organs.registry.entities.job import Job, JobPage, JobSummary

PARENT_SECONDS = 0.5
"""Between two looks whether the server is still there."""
ID_MAX = 2**63 - 1
EXIT_ABANDONED = 1

_NUMBERS = ("job", "progress")


@click.command()
@click.option("--once", is_flag=True, help="Exit when the queue is empty.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--with-parent", type=click.IntRange(1), hidden=True, help="End when the process of this id does.")
def work(once: bool, quiet: bool, with_parent: int | None) -> None:
    """Run the jobs that wait in the queue, one of each lane at a time, until interrupted.

    `organ serve` does this by itself. Ctrl-C and SIGTERM put running jobs back into the queue.
    """
    from organs.ingest.jobs.runner import Runner, Told  # all that jobs do: `organ jobs` needs none of it

    done: set[int] = set()

    def tell(told: Told) -> None:
        done.add(told.id)
        if not quiet:
            seconds = f" after {told.seconds:.1f} s" if told.became != "running" else ""
            because = f": {plain(told.sentence)}" if told.sentence else ""
            click.echo(f"job {told.id} {plain(told.kind)}: {told.became}{seconds}{because}", err=True)

    logging.basicConfig(format="organ work: %(message)s", level=logging.WARNING)
    stop = threading.Event()
    if with_parent is not None:
        threading.Thread(target=_watch_parent, args=(with_parent,), daemon=True).start()
    with folder_registry() as registry, _ended_by_signals(stop):
        all_left = Runner(registry, stop, tell=tell).run(once=once)
    if once and not done and not quiet:
        click.echo("Nothing waits in the queue.", err=True)
    if not all_left:
        os._exit(EXIT_ABANDONED)  # a thread still works at what waits in the queue again


@click.command()
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, PAGE_MAX), help="Jobs on a page.")
@click.option("--after", metavar="PLACE", help="Continue after this page (its `next` value).")
@click.option(
    "--cancel",
    type=click.IntRange(1, ID_MAX),
    metavar="JOB",
    help="Cancel this job. A job that has ended does not change.",
)
@click.option("--show", type=click.IntRange(1, ID_MAX), metavar="JOB", help="Print this job with its result as JSON.")
@click.option("--json", "as_json", is_flag=True, help="The list as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
def jobs(limit: int, after: str | None, cancel: int | None, show: int | None, as_json: bool, quiet: bool) -> None:
    """List the jobs, newest first, or cancel one."""
    if cancel is not None and show is not None:
        raise click.UsageError("--cancel and --show exclude each other")
    if cancel is not None:
        click.echo(f"job {cancel} is {plain(_cancelled(cancel).state)}", err=True)
        return
    if show is not None:
        print_json(_job(show))
        return
    page = _page(limit, after)
    if as_json:
        print_json(page)
        return
    if quiet:
        for job in page:
            click.echo(job.id)
    else:
        _print_jobs(page.items)
    if page.next is not None:
        print_more("jobs", "", [*(["-q"] if quiet else []), "--limit", str(limit)], page.next)


def _page(limit: int, after: str | None) -> JobPage:
    from organs.registry.catalog.queries.jobs import newest_jobs

    remote = remote_registry()
    if remote is not None:
        with remote:
            return remote.jobs(limit, after)
    with folder_registry() as registry, registry.catalog.reading() as session:
        return newest_jobs(session, limit, after)


def _job(job: int) -> Job:
    from organs.registry.catalog.queries.jobs import job_by_id

    remote = remote_registry()
    if remote is not None:
        with remote:
            return remote.job(job)
    with folder_registry() as registry, registry.catalog.reading() as session:
        return job_by_id(session, job)


def _cancelled(job: int) -> Job:
    from organs.registry.catalog.queries.jobs import job_by_id
    from organs.registry.catalog.register.jobs import cancel_job

    remote = remote_registry()
    if remote is not None:
        with remote:
            return remote.cancel_job(job)
    with folder_registry() as registry, registry.catalog.writing() as session:
        cancel_job(session, job)
        return job_by_id(session, job)


def _print_jobs(found: Sequence[JobSummary]) -> None:
    if not found:
        click.echo("No jobs.", err=True)
        return
    rows = [
        (job.id, job.kind, job.state, f"{job.progress:.0%}", f"{job.created_at:%Y-%m-%d %H:%M}", job.note)
        for job in found
    ]
    print_table(("job", "kind", "state", "progress", "requested", "note"), rows, _NUMBERS)


@contextmanager
def _ended_by_signals(stop: threading.Event) -> Iterator[None]:
    """Inside the block the first SIGINT or SIGTERM sets `stop`; a second SIGINT acts at once."""

    def end(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch_parent(parent: int) -> None:
    """End when the server is gone, however it went: its port is free, and its next start brings a runner of its own."""
    forever = threading.Event()
    while os.getppid() == parent:
        forever.wait(PARENT_SECONDS)
    os._exit(EXIT_ABANDONED)
