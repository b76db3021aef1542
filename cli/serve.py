"""`organ serve`: the web catalog."""

from __future__ import annotations

import logging
import socket
import webbrowser
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import click
from werkzeug.serving import is_running_from_reloader, run_simple

from organs.cli.console import print_remark
from organs.cli.options import flag, size_bytes
from organs.cli.registries import local_registry
from organs.registry.entities.chat import MESSAGE_MAX_CHARACTERS, TOKENS_MAX
from organs.registry.errors import BadSetting
from organs.web.logs import configure_logs
from organs.web.settings import (
    LOOPBACK_HOSTS,
    PORT,
    THREADS,
    Network,
    PromptLimits,
    ServerSettings,
    WebSettings,
    default_workers,
)

server_log = logging.getLogger("organs.server")
"""The log of the start of a server, if records are JSON."""
PROXIES_MAX = 8
PROMPTS = PromptLimits()
ALLOW_HOST = "To answer other machines, allow a host name: --allow-host NAME, or * for every name"
ALL_INTERFACES = ("0.0.0.0", "::", "")  # noqa: S104  # for comparison, not to listen on


def parse_network(text: str) -> Network:
    """Return the network written in `text`; a single address is one too. Raises BadParameter, which ends with 2."""
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise click.BadParameter(f"{text[:100]!r} is not an address or a network such as 10.0.0.0/8") from error


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535), help="The port to listen on.")
@flag("-o", "--open", "open_browser", "Open the catalog in a browser.")
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
    type=parse_network,
    help="Let this address or network read /metrics, such as 10.0.0.0/8. Repeatable. "
    "[default: this machine; none behind proxies]",
)
@flag("--accounts", "Require an account for every change, even from this machine.")
@click.option(
    "--try/--no-try",
    "tries",
    default=None,
    help="Let visitors send prompts to models, which llama.cpp answers. "
    "[default: only on a server that only this machine can reach]",
)
@click.option(
    "--try-model",
    "try_model",
    metavar="SIZE",
    type=size_bytes,
    default="4GB",
    show_default=True,
    help="The largest model that answers prompts.",
)
@click.option(
    "--try-characters",
    type=click.IntRange(1, MESSAGE_MAX_CHARACTERS),
    default=PROMPTS.characters_max,
    show_default=True,
    help="The longest conversation of a prompt.",
)
@click.option(
    "--try-tokens",
    type=click.IntRange(1, TOKENS_MAX),
    default=PROMPTS.tokens_max,
    show_default=True,
    help="The longest answer, in tokens.",
)
@click.option(
    "--try-seconds",
    type=click.FloatRange(1, 3600),
    default=PROMPTS.seconds,
    show_default=True,
    help="The longest time in which an answer is written.",
)
@click.option(
    "--try-hourly",
    type=click.IntRange(1, 100_000),
    default=PROMPTS.hourly,
    show_default=True,
    help="The most answers in an hour for one account, or for one address without an account.",
)
@flag("--read-only", "Refuse every change, and run no jobs.")
@flag("--no-jobs", "Do not run jobs. Run them with `organ work`.")
@flag("--reload", "For developers: one process that restarts when the code changes; no jobs.")
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
    tries: bool | None,
    try_model: int,
    try_characters: int,
    try_tokens: int,
    try_seconds: float,
    try_hourly: int,
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
    limits = PromptLimits(try_model, try_characters, try_tokens, try_seconds, try_hourly)
    web = WebSettings(
        served_hosts(shown_host, allowed),
        personal,
        read_only,
        proxies,
        prompts=limits if answers_prompts(tries, personal=personal, read_only=read_only) else None,
        metrics=metrics_networks or None,
    )
    if not reload:
        check_port_free(host, port)
    with local_registry(waits=True) as registry:
        registry.catalog.close()  # connections must not cross the fork; each worker opens its own
        writes_json = registry.settings.log == "json" and not reload
        if not is_running_from_reloader():  # otherwise the first process printed this
            advice = [ALLOW_HOST] if host in ALL_INTERFACES and not allowed else []
            if writes_json:
                configure_logs("json")
                server_log.setLevel(logging.INFO)
                server_log.info("The catalog is at %s", address)
                for sentence in advice:
                    server_log.warning(sentence)
            else:
                advice += [] if personal else ["Accounts are made on this machine: organ contributor add NAME"]
                for sentence in (f"The catalog is at {address} (Ctrl-C ends it)", *advice):
                    print_remark(sentence)
            if open_browser:
                webbrowser.open(address)
        if reload:
            from organs.web.app import create_app

            run_simple(host, port, create_app(registry, web), use_reloader=True, threaded=True)
        else:
            server = ServerSettings(host, port, workers, threads, jobs=not no_jobs, logs_requests=writes_json)
            serve_forever(registry, server, web)


def answers_prompts(tries: bool | None, *, personal: bool, read_only: bool) -> bool:
    """Return whether the server answers prompts: as `--try` says, or if only this machine reaches it and it can.

    Raises NoRuntime if `--try` is given without llama.cpp, BadSetting together with --read-only.
    """
    from organs.registry.validation.llama import EXTRA, NOT_INSTALLED, LlamaCpp
    from organs.registry.validation.runtime import NoRuntime

    if not tries:
        return tries is None and personal and not read_only and LlamaCpp.is_installed()
    if read_only:
        raise BadSetting("--try and --read-only exclude each other: a prompt is a change of the queue")
    if not LlamaCpp.is_installed():
        raise NoRuntime(NOT_INSTALLED, EXTRA)
    return True


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


def check_port_free(host: str, port: int) -> None:
    """Raise BadSetting if the port is in use, before the server tries to listen on it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise BadSetting(f"{host} port {port}: {error.strerror}; choose another with --host and --port") from error
