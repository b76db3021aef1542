"""`organ serve`: the catalog behind gunicorn, on this machine unless told otherwise."""

from __future__ import annotations

import socket
import webbrowser
from typing import Any

import click
from gunicorn.app.base import BaseApplication

from registry.errors import BadSetting
from registry.registry import Registry
from web.app import create_app

PORT = 8935
THREADS = 8


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535))
@click.option("-o", "--open", "open_browser", is_flag=True, help="Open the catalog in a browser.")
def serve(host: str, port: int, open_browser: bool) -> None:
    """Browse the registry in a web browser."""
    shown_host = f"[{host}]" if ":" in host else host
    address = f"http://{shown_host}:{port}/"
    _check_free(host, port)
    with Registry.open() as registry:
        registry.catalog.close()  # connections must not cross the fork; each worker opens its own
        click.echo(f"The catalog is at {address} (Ctrl-C ends it)", err=True)
        if open_browser:
            webbrowser.open(address)
        _Server(registry, f"{shown_host}:{port}").run()


def _check_free(host: str, port: int) -> None:
    """Say in one sentence what gunicorn would try five times and then tell in a page of log."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise BadSetting(f"{host} port {port}: {error.strerror}; choose another with --host and --port") from error


class _Server(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn with our settings: threads, because streams must not block each other."""

    def __init__(self, registry: Registry, bind: str) -> None:
        self._registry = registry
        self._settings: dict[str, Any] = {
            "bind": bind,
            "worker_class": "gthread",
            "threads": THREADS,
            "loglevel": "warning",
            "graceful_timeout": 30,
            "proc_name": "organ serve",
            "control_socket_disable": True,
        }
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._settings.items():
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    def load(self) -> Any:
        return create_app(self._registry)
