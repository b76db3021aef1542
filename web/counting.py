"""How often models are fetched: counted in memory, and added to the catalog together, seldom.

A model is fetched when the last byte of its file was taken: by a 200, or by a 206 that reaches the end; of a model in
shards, its first one counts. A write for each would make every download wait for the others, so what is counted waits
for up to FLUSH_SECONDS; a process that is killed loses that much. Where the server only reads, nothing is counted.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from logging import Logger
from typing import Any

from flask import Flask, current_app

from organs.registry.catalog.clock import now
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.register.downloads import add_downloads
from organs.registry.errors import OrganError
from organs.registry.registry import Registry
from organs.web.answers import settings
from organs.web.metrics import METRICS_KEY, Meters

COUNTING_KEY = "organ_counting"
FLUSH_SECONDS = 10.0


class Downloads:
    """What this process has counted and not yet added to the catalog."""

    def __init__(self, catalog: Catalog, logger: Logger, seconds: float = FLUSH_SECONDS) -> None:
        self._catalog = catalog
        self._logger = logger
        self._seconds = seconds
        self._counted: Counter[tuple[int, str]] = Counter()
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def count(self, model_id: int) -> None:
        """A model was fetched just now."""
        with self._lock:
            self._counted[model_id, now().date().isoformat()] += 1
            self._wait()

    def flush(self) -> None:
        """Add what was counted to the catalog; what cannot be added is kept for the next time."""
        with self._writing:
            with self._lock:
                counted, self._counted = self._counted, Counter()
            if not counted:
                return
            try:
                with self._catalog.writing() as session:
                    add_downloads(session, counted)
            except OrganError as error:
                self._logger.warning("%d downloads could not be counted yet: %s", counted.total(), error)
                with self._lock:
                    self._counted += counted

    def _wait(self) -> None:
        """Let a thread write in a while; one is enough."""
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self._due)
            self._timer.daemon = True
            self._timer.start()

    def _due(self) -> None:
        with self._lock:
            self._timer = None
        self.flush()
        with self._lock:
            if self._counted:
                self._wait()


def count_downloads(app: Flask, registry: Registry) -> None:
    """Let `app` count what it hands out."""
    app.extensions[COUNTING_KEY] = Downloads(registry.catalog, app.logger)


def counter_of(model_id: int | None) -> Callable[[], None] | None:
    """What to call when the last byte of that model was taken, after the request; None where nothing is counted."""
    downloads: Downloads | None = current_app.extensions.get(COUNTING_KEY)
    if model_id is None or downloads is None or settings().read_only:
        return None
    meters: Meters = current_app.extensions[METRICS_KEY]

    def count() -> None:
        meters.downloads.inc()
        downloads.count(model_id)

    return count


def worker_exit(_server: object, worker: Any) -> None:
    """gunicorn's hook: a process that ends adds what it has counted."""
    app = getattr(worker, "wsgi", None)
    downloads = app.extensions.get(COUNTING_KEY) if isinstance(app, Flask) else None
    if downloads is not None:
        downloads.flush()
