"""The parent process of the server: gunicorn, which starts the workers, and the process that runs jobs."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger

from organs.registry.local import LocalRegistry
from organs.registry.settings import (
    BLOBS_VARIABLE,
    CACHE_VARIABLE,
    DATABASE_VARIABLE,
    HOME_VARIABLE,
    LOG_VARIABLE,
    Settings,
)
from organs.web.app import create_app
from organs.web.file_responses import allow_streams, worker_exit
from organs.web.logs import configure_logs
from organs.web.metrics import FOLDER_VARIABLE, child_exit, prepare_metrics, watch_errors
from organs.web.rate_limits import SharedCounts
from organs.web.server.worker import EventLoopWorker
from organs.web.settings import ServerSettings, WebSettings

GRACEFUL_SECONDS = 30
COLLECT_AFTER = (20_000, 20, 50)
"""Thresholds of the garbage collector (`gc.set_threshold`): new objects before generation 0 is collected, collections
of generation 0 before generation 1 is, and of generation 1 before generation 2 is. Python's are 700, 10 and 10."""
BACKLOG = 2048
"""Maximum number of connections that wait to be accepted. The system may allow fewer (net.core.somaxconn)."""


def serve_forever(registry: LocalRegistry, settings: ServerSettings, web: WebSettings | None = None) -> None:
    """Serve the catalog of `registry` until SIGTERM or SIGINT, then exit the process.

    Requests in progress have GRACEFUL_SECONDS to end. The registry's connections must be closed before the call,
    because a database connection must not be shared with a forked process.
    """
    prepare_metrics()
    configure_logs(registry.settings.log)
    Server(registry, settings, web).run()


class ServerLog(Logger):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's log without a handler of its own, so that its records are written like all others."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.propagate = True


class Server(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn with our settings. It reads neither the command line nor configuration files of gunicorn."""

    def __init__(self, registry: LocalRegistry, settings: ServerSettings, web: WebSettings | None = None) -> None:
        self._registry = registry
        self._web = web
        self._counts = SharedCounts()  # created before the fork, so that all workers share it
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
            "logger_class": ServerLog,
            "proc_name": "organ serve",
            "control_socket_disable": True,
            "child_exit": child_exit,
            "worker_exit": worker_exit,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def run(self) -> None:
        """Serve, and run jobs in another process if the settings say so. Exits the process."""
        if self.limits.jobs:
            KeepingArbiter(self, self._registry.settings).run()
        else:
            super().run()

    def load(self) -> Any:
        app = create_app(self._registry, self._web, self._counts)
        allow_streams(app, self.limits.threads)
        watch_errors(app)
        # Collecting the loaded objects stopped a worker for 70 ms at a time.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        return app


PAUSE_SECONDS, PAUSE_MAX_SECONDS = 1.0, 60.0
"""The first and the longest pause before the process is started again after it ended by itself. Each pause is twice as
long as the pause before it."""
WELL_SECONDS = 60.0
"""A process that ran longer than this is started again after the shortest pause."""
END_SECONDS = 30.0
"""Time in which the process must put its jobs back after SIGTERM; a little more than it needs."""
KILLED_SECONDS = 5.0
"""Longest wait for the end of a process that was killed."""
COMMAND = ("-P", "-m", "organs.cli", "work")
"""Arguments of Python. With -P it does not import a folder `cli` that is by chance in the working directory."""


class RunnerProcess:
    """One process of `organ work` for the registry of `settings`. `look_after` starts it again when it has ended."""

    def __init__(self, settings: Settings, log: Any, command: Sequence[str] = COMMAND) -> None:
        self._settings = settings
        self._log = log
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._pause = PAUSE_SECONDS
        self._not_before = 0.0

    def look_after(self) -> None:
        """Start the process if it does not run. Before each new start there is a pause, longer after each failure."""
        now = time.monotonic()
        if self._process is not None:
            if self._process.poll() is None:
                return
            was_well = now - self._began > WELL_SECONDS
            self._pause = PAUSE_SECONDS if was_well else min(self._pause * 2, PAUSE_MAX_SECONDS)
            self._log.error("the runner of jobs has ended; it is started again in %g s", self._pause)
            self._process, self._not_before = None, now + self._pause
        if now < self._not_before:
            return
        self._began = now
        arguments = [sys.executable, *self._command, "--with-parent", str(os.getpid())]
        try:
            self._process = subprocess.Popen(  # noqa: S603  # our own program
                arguments, stdin=subprocess.DEVNULL, env=_environment(self._settings)
            )
        except OSError as error:
            self._pause = min(self._pause * 2, PAUSE_MAX_SECONDS)
            self._not_before = now + self._pause
            self._log.error("the runner of jobs cannot be started: %s", error)

    def end(self) -> None:
        """Send SIGTERM to the process; `wait` waits for its end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait for the end of the process, and kill it after END_SECONDS."""
        if self._process is None:
            return
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(KILLED_SECONDS)


class KeepingArbiter(Arbiter):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's arbiter, which also starts the runner of jobs again when it has ended."""

    def __init__(self, app: Any, settings: Settings) -> None:
        super().__init__(app)
        # In JSON each job is a record of the log; as text only errors are printed.
        self.runner = RunnerProcess(settings, self.log, COMMAND if settings.log == "json" else (*COMMAND, "--quiet"))

    def manage_workers(self) -> None:
        """Check the workers and the runner; called once a second."""
        super().manage_workers()
        self.runner.look_after()

    def stop(self, graceful: bool = True) -> None:
        """Stop the runner together with the workers."""
        self.runner.end()
        super().stop(graceful)
        self.runner.wait()


def _environment(settings: Settings) -> dict[str, str]:
    """Return the environment of this process with the location of the served registry."""
    variables = {name: value for name, value in os.environ.items() if name != FOLDER_VARIABLE}
    return variables | {
        HOME_VARIABLE: str(settings.home),
        DATABASE_VARIABLE: settings.database_url,
        BLOBS_VARIABLE: settings.bucket or f"file://{settings.blobs}",
        CACHE_VARIABLE: str(settings.blob_cache_bytes),
        LOG_VARIABLE: settings.log,
        # The import path of this process: it may run from its source, which need not be the working directory.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
