"""A registry that is served from this process, as `organ serve` serves one, and how often its answers are cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from wsgiref.types import WSGIApplication

from werkzeug.serving import WSGIRequestHandler, make_server

from organs.ingest.jobs.kinds import INTAKE, WORK
from organs.ingest.jobs.runner import Runner
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.settings import WebSettings


@dataclass(frozen=True, slots=True)
class ServedRegistry:
    """A registry that is served."""

    url: str
    registry: LocalRegistry


class _Quiet(WSGIRequestHandler):
    """Says nothing of what it is asked."""

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002  # as its parent calls it
        pass


@contextmanager
def serve_application(application: WSGIApplication) -> Iterator[str]:
    """The address at which `application` answers."""
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def working(registry: LocalRegistry, *lanes: str) -> Iterator[None]:
    """Do the jobs of these lanes as long as the block runs."""
    stop = Event()
    worker = threading.Thread(target=Runner(registry, stop, lanes).run, daemon=True)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


@contextmanager
def serve_registry(registry: LocalRegistry) -> Iterator[ServedRegistry]:
    """`registry` served to this machine, with its jobs done, but neither validations nor repacks."""
    app = create_app(registry, WebSettings(personal=True))
    with serve_application(app.wsgi_app) as url, working(registry, WORK, INTAKE):
        yield ServedRegistry(url, registry)
