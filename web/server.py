"""The catalog behind gunicorn: processes of threads, with limits that keep slow clients from stopping the others."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field
from typing import Any

from gunicorn.app.base import BaseApplication

from organs.registry.registry import Registry
from organs.web.app import create_app
from organs.web.counting import worker_exit
from organs.web.metrics import child_exit, prepare_metrics
from organs.web.rates import SharedCounts
from organs.web.runner import KeepingArbiter
from organs.web.settings import WebSettings
from organs.web.streams import allow_streams
from organs.web.worker import EventLoopWorker

WORKERS_MAX = 4
THREADS = 16
GRACEFUL_SECONDS = 30
PORT = 8935
COLLECT_AFTER = (20_000, 20, 50)
"""Objects, and collections of each generation, after which the next is collected; 700, 10 and 10 by default."""
BACKLOG = 2048
"""Connections that wait to be accepted; the system may allow fewer (net.core.somaxconn)."""


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
    """Requests that each worker answers at once. Downloads need none of them; uploads keep at most half."""
    head_seconds: float = 10
    """Within which the header of a request must come."""
    body_seconds: float = 20
    """Within which a body must come, unless it comes at 16 KiB a second."""
    send_seconds: float = 30
    """Within which a client must read each 64 KiB of an answer."""
    idle_seconds: int = 75
    """That a connection may be idle between two requests: longer than proxies keep their end of it, usually a minute,
    so that none of them sends a request while we close ours, which would be lost."""
    jobs: bool = False
    """Whether a process beside the others works at the queue of jobs."""


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
        self.proxies = web.proxies if web is not None else 0
        super().__init__()

    def load_config(self) -> None:
        limits = self.limits
        host = f"[{limits.host}]" if ":" in limits.host else limits.host
        settings: dict[str, Any] = {
            "bind": f"{host}:{limits.port}",
            "workers": limits.workers,
            "worker_class": EventLoopWorker,
            "backlog": BACKLOG,
            "graceful_timeout": GRACEFUL_SECONDS,
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
        allow_streams(app, self.limits.threads)
        _collect_seldom()
        return app


def _collect_seldom() -> None:
    """Keep the garbage collector from walking through all that was loaded: it stopped a worker for 70 ms at a time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
