"""`organ serve`, `work` and `jobs`: the catalog in a browser, and the queue of jobs."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from types import FrameType
from typing import TYPE_CHECKING

import click
from werkzeug.serving import is_running_from_reloader, run_simple

from organs.cli.arguments import local_registry, print_more, selected_registry
from organs.cli.console import plain, print_json, print_table
from organs.registry.catalog.cursor import PAGE_MAX
from organs.registry.entities.job import JobSummary
from organs.registry.errors import BadSetting
from organs.web.settings import LOOPBACK_HOSTS, PORT, THREADS, Network, ServerSettings, WebSettings, default_workers

if TYPE_CHECKING:
    from organs.registry.local import LocalRegistry


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
    with local_registry() as registry, _ended_by_signals(stop):
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
    with selected_registry() as registry:
        if cancel is not None:
            click.echo(f"job {cancel} is {plain(registry.cancel_job(cancel).state)}", err=True)
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


PROXIES_MAX = 8
EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  # compared with, not bound to


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535))
@click.option("-o", "--open", "open_browser", is_flag=True, help="Open the catalog in a browser.")
@click.option(
    "--workers", type=click.IntRange(1, 64), default=default_workers, help="Processes. [default: a core, at most 4]"
)
@click.option(
    "--threads", default=THREADS, show_default=True, type=click.IntRange(4, 256), help="Requests at once, of each."
)
@click.option(
    "--allow-host", "allowed", multiple=True, metavar="NAME", help="A name to be served under; * for any. Repeatable."
)
@click.option(
    "--proxies",
    default=0,
    show_default=True,
    type=click.IntRange(0, PROXIES_MAX),
    help="Proxies in front, whose X-Forwarded-For and -Proto are believed.",
)
@click.option(
    "--metrics",
    "metrics_networks",
    multiple=True,
    metavar="NETWORK",
    callback=lambda _context, _option, texts: tuple(parse_network(text) for text in texts),
    help="Who may read /metrics: an address, or a network such as 10.0.0.0/8. Repeatable. "
    "[default: this machine; nobody behind proxies]",
)
@click.option("--accounts", is_flag=True, help="Nobody writes without an account, from this machine neither.")
@click.option("--read-only", is_flag=True, help="Have nothing that writes or runs something, and show no jobs.")
@click.option("--no-jobs", is_flag=True, help="Leave the queue of jobs alone: `organ work` elsewhere does them.")
@click.option(
    "--reload", is_flag=True, help="For developers: one process, started anew when the code changes; no jobs."
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
    """Browse the registry in a web browser.

    Requests are answered that ask for this machine by a name of the loopback, by HOST, or by a NAME that is allowed.
    What writes or runs something needs an account; where HOST is the loopback, no NAME is allowed and no proxy is in
    front, whoever works at this machine needs none, unless --accounts says so. A process beside the server does what
    is queued. SIGTERM lets what is under way end, for 30 seconds at most.
    """
    from organs.web.server.processes import serve_forever

    shown_host = f"[{host}]" if ":" in host else host
    address = f"http://{shown_host}:{port}/"
    personal = not accounts and is_personal(host, allowed, proxies)
    hosts = served_hosts(shown_host, allowed)
    web = WebSettings(hosts, personal, read_only, proxies, metrics=metrics_networks or None)
    if not reload:
        check_free(host, port)
    with local_registry() as registry:
        registry.catalog.close()  # connections must not cross the fork; each worker opens its own
        if not is_running_from_reloader():  # then it was said, and opened, before
            click.echo(f"The catalog is at {address} (Ctrl-C ends it)", err=True)
            if host in EVERYWHERE and not allowed:
                click.echo("Others must ask for it by a name that you allow: --allow-host NAME, or * for any", err=True)
            if open_browser:
                webbrowser.open(address)
        if reload:
            _serve_developer(registry, host, port, web)
        else:
            serve_forever(registry, ServerSettings(host, port, workers, threads, jobs=not no_jobs), web)


def parse_network(text: str) -> Network:
    """Return the network written in `text`; a single address is one too. Raises BadParameter, which ends with 2."""
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise click.BadParameter(f"{text[:100]!r} is not an address or a network such as 10.0.0.0/8") from error


def served_hosts(shown_host: str, allowed: Sequence[str]) -> frozenset[str]:
    """The names that requests may ask for, of a server that listens on `shown_host` (an IPv6 address in brackets)."""
    own = () if shown_host.strip("[]") in EVERYWHERE else (shown_host,)
    return LOOPBACK_HOSTS | {name.lower() for name in (*own, *allowed)}


def is_personal(host: str, allowed: Sequence[str], proxies: int = 0) -> bool:
    """Whether only this machine can ask: it listens on the loopback, behind no proxy, and not for other names."""
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
    """Say in one sentence what gunicorn would try five times and then tell in a page of log."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise BadSetting(f"{host} port {port}: {error.strerror}; choose another with --host and --port") from error
