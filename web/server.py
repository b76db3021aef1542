"""The catalog behind gunicorn: processes of threads, with limits that keep slow clients from stopping the others."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field
from typing import Any

from gunicorn.app.base import BaseApplication

from registry.registry import Registry
from web.app import create_app
from web.counting import worker_exit
from web.metrics import child_exit, prepare_metrics
from web.rates import SharedCounts
from web.runner import KeepingArbiter
from web.settings import WebSettings
from web.streams import allow_streams
from web.worker import PatientWorker

WORKERS_MAX = 4
THREADS = 16
GRACEFUL_SECONDS = 30
PORT = 8935
COLLECT_AFTER = (20_000, 20, 50)
"""Objects, and collections of each generation, after which the next is collected; 700, 10 and 10 by default."""
BACKLOG = 512
CONNECTIONS = 512
"""Of each worker: with the files of its streams they stay below the 1,024 that a process may open by default."""


def default_workers() -> int:
    """A process a core, at most four: searches are bound by Python."""
    return max(1, min(WORKERS_MAX, os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the catalog is served."""

    host: str = "127.0.0.1"
    """Without brackets, also where it is an IPv6 address."""
    port: int = PORT
    workers: int = field(default_factory=default_workers)
    threads: int = THREADS
    """Requests at once, of each worker. A quarter of them is kept free of downloads."""
    head_seconds: float = 10
    """Within which the header of a request must come."""
    body_seconds: float = 20
    """After which a body must have come, or come fast."""
    send_seconds: float = 30
    """Within which a client must take each piece of an answer."""
    idle_seconds: int = 75
    """That a connection may be idle between two requests: longer than proxies keep their end of it, usually a minute,
    so that none of them sends a request while we close ours, which would be lost."""
    jobs: bool = False
    """Whether a process beside the others works at the queue of jobs."""

    @property
    def streams(self) -> int:
        """Downloads at once, of each worker."""
        return max(1, self.threads - max(2, self.threads // 4))


def serve_forever(registry: Registry, settings: ServerSettings, web: WebSettings | None = None) -> None:
    """Serve the catalog of `registry` until SIGTERM or SIGINT; what is under way has 30 s to end. Exits the process.

    The registry's connections must be closed: they must not cross the fork.
    """
    prepare_metrics()
    Server(registry, settings, web).run()


class Server(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn with our settings; nothing of the command line or of its files is read."""

    def __init__(self, registry: Registry, settings: ServerSettings, web: WebSettings | None = None) -> None:
        self._registry = registry
        self._web = web
        self._counts = SharedCounts()  # before the fork: all workers count together
        self.limits = settings
        super().__init__()

    def load_config(self) -> None:
        limits = self.limits
        host = f"[{limits.host}]" if ":" in limits.host else limits.host
        settings: dict[str, Any] = {
            "bind": f"{host}:{limits.port}",
            "workers": limits.workers,
            "worker_class": PatientWorker,
            "threads": limits.threads,
            "backlog": BACKLOG,
            "worker_connections": CONNECTIONS,
            "graceful_timeout": GRACEFUL_SECONDS,
            "keepalive": limits.idle_seconds,
            "http_parser": "python",
            "secure_scheme_headers": {},  # what of a proxy is believed, ProxyFix knows
            "forwarder_headers": "",  # a client behind a proxy of this machine could say where links lead
            "loglevel": "warning",
            "proc_name": "organ serve",
            "control_socket_disable": True,
            "child_exit": child_exit,
            "worker_exit": worker_exit,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def run(self) -> None:
        """Serve, with a runner of jobs beside if that is wanted; exits the process."""
        if self.limits.jobs:
            KeepingArbiter(self, self._registry.settings).run()
        else:
            super().run()

    def load(self) -> Any:
        app = create_app(self._registry, self._web, self._counts)
        allow_streams(app, self.limits.streams)
        _collect_seldom()
        return app


def _collect_seldom() -> None:
    """Keep the garbage collector from walking through all that was loaded: it stopped a worker for 70 ms at a time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
