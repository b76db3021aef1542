"""Server: `organ serve`, and the queue of jobs: `jobs` and `work`."""

from __future__ import annotations

import logging
import os
import socket
import threading
import webbrowser
from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

import click
from werkzeug.serving import is_running_from_reloader, run_simple

from organs.cli.arguments import AFTER_HELP, local_registry, print_more, selected_registry
from organs.cli.console import plain, print_json, print_sentence, print_table
from organs.cli.processes import EXIT_ABANDONED, ended_by_signals, watch_parent
from organs.registry.catalog.cursor import PAGE_MAX
from organs.registry.entities.job import JobSummary
from organs.registry.errors import BadSetting
from organs.web.logs import FIELDS, configure_logs
from organs.web.settings import LOOPBACK_HOSTS, PORT, THREADS, Network, ServerSettings, WebSettings, default_workers

if TYPE_CHECKING:
    from organs.ingest.jobs.runner import JobEvent
    from organs.registry.local import LocalRegistry


ID_MAX = 2**63 - 1

_NUMBERS = ("job", "progress")

jobs_log = logging.getLogger("organs.jobs")
"""The log of jobs, if records are JSON."""
server_log = logging.getLogger("organs.server")
"""The log of the start of a server, if records are JSON."""


@click.command()
@click.option("--once", is_flag=True, help="Exit when the queue is empty. [default: wait for more jobs]")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--with-parent", type=click.IntRange(1), hidden=True, help="End when the process with this id ends.")
def work(once: bool, quiet: bool, with_parent: int | None) -> None:
    """Run the jobs in the queue until interrupted.

    `organ serve` does this by itself; use this command after `organ serve --no-jobs`. Up to three jobs run at the
    same time: one that runs a chimera, one that checks a submission, and one of another kind. Ctrl-C and SIGTERM put
    running jobs back into the queue.
    """
    from organs.ingest.jobs.runner import Runner  # loads all that jobs do, which `organ jobs` does not need

    done: set[int] = set()
    stop = threading.Event()
    if with_parent is not None:
        watch_parent(with_parent)
    with local_registry(waits=True) as registry, ended_by_signals(stop):
        writes_json = registry.settings.log == "json"
        _prepare_work_log(writes_json, quiet)

        def report(event: JobEvent) -> None:
            done.add(event.id)
            if writes_json:
                _log_job(event)
            elif not quiet:
                _print_job(event)

        all_left = Runner(registry, stop, on_event=report).run(once=once)
    if once and not done and not quiet and not writes_json:
        print_sentence("The queue is empty.", err=True)
    if not all_left:
        os._exit(EXIT_ABANDONED)  # a thread still runs a job that is back in the queue


def _prepare_work_log(writes_json: bool, quiet: bool) -> None:
    if writes_json:
        configure_logs("json")
        jobs_log.setLevel(logging.WARNING if quiet else logging.INFO)
    else:
        logging.basicConfig(format="organ work: %(message)s", level=logging.WARNING)


def _print_job(event: JobEvent) -> None:
    seconds = f" after {event.seconds:.1f} s" if event.state != "running" else ""
    because = f": {plain(event.sentence)}" if event.sentence else ""
    print_sentence(f"job {event.id} {plain(event.kind)}: {event.state}{seconds}{because}", err=True)


def _log_job(event: JobEvent) -> None:
    """Write a change of a job to the log. A failed job is a warning."""
    fields: dict[str, object] = {"job": event.id, "kind": event.kind, "state": event.state}
    if event.state != "running":
        fields["seconds"] = round(event.seconds, 3)
    if event.sentence:
        fields["reason"] = event.sentence
    level = logging.WARNING if event.state == "failed" else logging.INFO
    jobs_log.log(level, "job %d %s: %s", event.id, event.kind, event.state, extra={FIELDS: fields})


@click.command()
@click.option(
    "--limit", metavar="N", default=50, show_default=True, type=click.IntRange(1, PAGE_MAX), help="Jobs on a page."
)
@click.option("--after", metavar="NEXT", help=AFTER_HELP)
@click.option(
    "--cancel",
    type=click.IntRange(1, ID_MAX),
    metavar="JOB",
    help="Cancel the job with this id. This has no effect on a job that has ended.",
)
@click.option(
    "--show", type=click.IntRange(1, ID_MAX), metavar="JOB", help="Print the job with this id, and its result, as JSON."
)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
def jobs(limit: int, after: str | None, cancel: int | None, show: int | None, as_json: bool, quiet: bool) -> None:
    """List the jobs, newest first. With --show, print one job; with --cancel, cancel one."""
    if cancel is not None and show is not None:
        raise click.UsageError("--cancel and --show exclude each other")
    with selected_registry() as registry:
        if cancel is not None:
            print_sentence(f"job {cancel} is {plain(registry.cancel_job(cancel).state)}", err=True)
            return
        if show is not None:
            print_json(registry.job(show))
            return
        page = registry.jobs(limit=limit, after=after)
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


def _print_jobs(jobs: Sequence[JobSummary]) -> None:
    if not jobs:
        print_sentence("No jobs.", err=True)
        return
    rows = [
        (job.id, job.kind, job.state, f"{job.progress:.0%}", f"{job.created_at:%Y-%m-%d %H:%M}", job.note)
        for job in jobs
    ]
    print_table(("job", "kind", "state", "progress", "requested", "note"), rows, _NUMBERS, leave_out=("requested",))


PROXIES_MAX = 8
ALL_INTERFACES = ("0.0.0.0", "::", "")  # noqa: S104  # for comparison, not to listen on


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535), help="The port to listen on.")
@click.option("-o", "--open", "open_browser", is_flag=True, help="Open the catalog in a browser.")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=default_workers,
    help="The number of server processes. [default: one for each core, at most 4]",
)
@click.option(
    "--threads",
    default=THREADS,
    show_default=True,
    type=click.IntRange(4, 256),
    help="The number of requests that each process answers at the same time.",
)
@click.option(
    "--allow-host",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="Answer requests for this host name; * allows every name. Repeatable.",
)
@click.option(
    "--proxies",
    default=0,
    show_default=True,
    type=click.IntRange(0, PROXIES_MAX),
    help="The number of proxies in front of the server. Their X-Forwarded-For and X-Forwarded-Proto are trusted.",
)
@click.option(
    "--metrics",
    "metrics_networks",
    multiple=True,
    metavar="NETWORK",
    callback=lambda _context, _option, texts: tuple(parse_network(text) for text in texts),
    help="Let this address or network read /metrics, such as 10.0.0.0/8. Repeatable. "
    "[default: this machine; none behind proxies]",
)
@click.option("--accounts", is_flag=True, help="Require an account for every change, even from this machine.")
@click.option("--read-only", is_flag=True, help="Refuse every change, and run no jobs.")
@click.option("--no-jobs", is_flag=True, help="Do not run jobs. Run them with `organ work`.")
@click.option(
    "--reload", is_flag=True, help="For developers: one process that restarts when the code changes; no jobs."
)
def serve(
    host: str,
    port: int,
    open_browser: bool,
    workers: int,
    threads: int,
    allowed: tuple[str, ...],
    proxies: int,
    metrics_networks: tuple[Network, ...],
    accounts: bool,
    read_only: bool,
    no_jobs: bool,
    reload: bool,
) -> None:
    """Serve the catalog for web browsers and programs.

    By default, only this machine can reach the server, and its users need no account.

    With another --host, or with --allow-host, --proxies or --accounts, every change and every job needs an account. The
    server answers only requests for this machine's loopback names (such as localhost), for HOST, and for each NAME of
    --allow-host.

    A second process runs the jobs. After SIGTERM, the server finishes the open requests, for at most 30 seconds.
    """
    from organs.web.server.processes import serve_forever

    shown_host = f"[{host}]" if ":" in host else host
    address = f"http://{shown_host}:{port}/"
    personal = not accounts and is_personal(host, allowed, proxies)
    hosts = served_hosts(shown_host, allowed)
    web = WebSettings(hosts, personal, read_only, proxies, metrics=metrics_networks or None)
    if not reload:
        check_free(host, port)
    with local_registry(waits=True) as registry:
        registry.catalog.close()  # connections must not cross the fork; each worker opens its own
        writes_json = registry.settings.log == "json" and not reload
        if not is_running_from_reloader():  # otherwise the first process printed this
            _announce(host, address, allowed, writes_json)
            if not personal and not writes_json:
                print_sentence("Accounts are made on this machine: organ contributor add NAME", err=True)
            if open_browser:
                webbrowser.open(address)
        if reload:
            _serve_developer(registry, host, port, web)
        else:
            server = ServerSettings(host, port, workers, threads, jobs=not no_jobs, logs_requests=writes_json)
            serve_forever(registry, server, web)


def _announce(host: str, address: str, allowed: Sequence[str], writes_json: bool) -> None:
    """Print the address of the catalog, or write it to the log."""
    if writes_json:
        configure_logs("json")
        server_log.setLevel(logging.INFO)
        server_log.info("The catalog is at %s", address)
    else:
        print_sentence(f"The catalog is at {address} (Ctrl-C ends it)", err=True)
    if host in ALL_INTERFACES and not allowed:
        advice = "To answer other machines, allow a host name: --allow-host NAME, or * for every name"
        if writes_json:
            server_log.warning(advice)
        else:
            print_sentence(advice, err=True)


def parse_network(text: str) -> Network:
    """Return the network written in `text`; a single address is one too. Raises BadParameter, which ends with 2."""
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise click.BadParameter(f"{text[:100]!r} is not an address or a network such as 10.0.0.0/8") from error


def served_hosts(shown_host: str, allowed: Sequence[str]) -> frozenset[str]:
    """Return the host names that requests may use for a server on `shown_host` (an IPv6 address in brackets)."""
    own = () if shown_host.strip("[]") in ALL_INTERFACES else (shown_host,)
    return LOOPBACK_HOSTS | {name.lower() for name in (*own, *allowed)}


def is_personal(host: str, allowed: Sequence[str], proxies: int = 0) -> bool:
    """Return whether only this machine reaches the server: on the loopback, without proxies or other host names."""
    if allowed or proxies:
        return False
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _serve_developer(registry: LocalRegistry, host: str, port: int, web: WebSettings) -> None:
    from organs.web.app import create_app

    run_simple(host, port, create_app(registry, web), use_reloader=True, threaded=True)


def check_free(host: str, port: int) -> None:
    """Raise BadSetting if the port is in use, before the server tries to listen on it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise BadSetting(f"{host} port {port}: {error.strerror}; choose another with --host and --port") from error
