"""Metrics of the server for Prometheus at `/metrics`, and the health check at `/healthz`."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Flask, Response, current_app, g, request
from msgspec import structs

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.administration import CatalogHealth, catalog_health
from organs.registry.catalog.queries.reports import running_totals
from organs.registry.catalog.slow import SLOW_SECONDS
from organs.registry.checkup import disk_spaces
from organs.registry.entities.server import SlowStatement
from organs.registry.errors import NotAllowed, OrganError
from organs.registry.local import LocalRegistry
from organs.registry.settings import Settings
from organs.web.answer_cache import ANSWERED_HEADER
from organs.web.client_address import client_ip, is_proxied
from organs.web.logs import RecentErrors
from organs.web.responses import reading, registry, settings
from organs.web.security import is_served, requested_host
from organs.web.settings import LOOPBACK_NETWORKS, WebSettings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter


METRICS_KEY, ERRORS_KEY = "organ_metrics", "organ_errors"
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
FIGURES_SECONDS = 2.0
CACHE_COUNTED_SECONDS = 60.0
"""The time between two counts of the files in the local cache of a bucket, which may be some thousands."""
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE"})
OTHER, UNMATCHED = "other", "unmatched"

metrics = Blueprint("metrics", __name__)


class Meters:
    """The metrics of this process."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

        disable_created_metrics()  # type: ignore[no-untyped-call]  # they add a line for each series
        self.collectors = collectors = CollectorRegistry()

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"organ_{name}", meaning, labels, registry=collectors)

        self.requests = counter("requests", "Requests that were answered.", "route", "method", "status")
        self.seconds = Histogram(
            "organ_request_seconds",
            "Seconds until an answer began; of streams, until their first bytes.",
            ("route",),
            buckets=BUCKETS_SECONDS,
            registry=collectors,
        )
        self.remembered = counter("answers_from_memory", "Answers that were sent from the cache.", "route")
        self.streams = Gauge(
            "organ_streams_in_flight", "Downloads in progress.", registry=collectors, multiprocess_mode="livesum"
        )
        self.downloads = counter("downloads", "Models that were sent to their last byte.")
        longer = f"Statements of the database that took longer than {SLOW_SECONDS} s."
        self.slow_statements = counter("slow_statements", longer, "connection")
        together = "Seconds that these statements took together."
        self.slow_seconds = counter("slow_statement_seconds", together, "connection")
        self.errors = counter("logged_errors", "Records of the log with the level ERROR.", "logger")
        self.met: dict[tuple[str, str, int, bool], tuple[Callable[..., None], ...]] = {}
        """The methods that count requests, by the labels of a request. The first takes the seconds."""


def prepare_metrics() -> str:
    """Make the folder in which the processes of a server share their metrics, and return its path.

    Call it before the processes fork. The folder is removed when this process ends.
    """
    folder = tempfile.mkdtemp(prefix="organ-metrics-")
    os.environ[FOLDER_VARIABLE] = folder
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked process calls the same exit hooks
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def child_exit(_server: object, worker: Any) -> None:
    """Remove a process that has ended from the metrics of live processes. A hook of gunicorn."""
    from prometheus_client.multiprocess import mark_process_dead

    if FOLDER_VARIABLE in os.environ:
        mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]


def count_requests(app: Flask) -> None:
    """Count the requests of `app`. Call it before other hooks are set, so that their time counts too."""
    app.extensions[METRICS_KEY] = meters = Meters()

    @app.before_request
    def begin() -> None:
        g.began = perf_counter()

    @app.after_request
    def end(answer: Response) -> Response:
        began = g.get("began")
        route = UNMATCHED if request.url_rule is None else request.url_rule.rule
        method = request.method if request.method in METHODS else OTHER
        is_remembered = ANSWERED_HEADER in answer.headers
        key = (route, method, answer.status_code, is_remembered)
        counters = meters.met.get(key)
        if counters is None:
            request_count = meters.requests.labels(route, method, str(answer.status_code)).inc
            counters = (meters.seconds.labels(route).observe, request_count)
            if is_remembered:
                counters = (*counters, meters.remembered.labels(route).inc)
            meters.met[key] = counters
        observe, *counts = counters
        observe(0.0 if began is None else perf_counter() - began)
        for count in counts:
            count()
        if answer.is_streamed:
            meters.streams.inc()
            answer.response = _CountedStream(answer.response, meters.streams.dec)
        return answer


def count_faults(app: Flask, registry: LocalRegistry) -> None:
    """Count the slow statements of `registry`, and the errors that `watch_errors` sees."""
    meters: Meters = app.extensions[METRICS_KEY]

    def count_statement(statement: SlowStatement) -> None:
        meters.slow_statements.labels(statement.connection).inc()
        meters.slow_seconds.labels(statement.connection).inc(statement.seconds)

    registry.catalog.slow.observe(count_statement)
    app.extensions[ERRORS_KEY] = RecentErrors(lambda logger: meters.errors.labels(logger).inc())


def watch_errors(app: Flask) -> RecentErrors:
    """Keep and count the errors that this process logs, and return them. Call it once in each process of a server."""
    errors = recent_errors(app)
    logging.getLogger().addHandler(errors)
    return errors


def recent_errors(app: Flask) -> RecentErrors:
    """Return the newest errors that this process logged since `watch_errors`."""
    errors: RecentErrors = app.extensions[ERRORS_KEY]
    return errors


@metrics.get("/metrics")
def show() -> Response:
    """Return all metrics in the text format of Prometheus.

    If the catalog cannot be read in time, `organ_catalog_up` is 0 and its numbers are left out.
    """
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    _check_allowed(settings())
    meters: Meters = current_app.extensions[METRICS_KEY]
    catalog, moment = None, datetime.now(UTC)
    try:
        with reading(FIGURES_SECONDS) as session:
            moment = database_now(session)
            catalog = catalog_health(session, moment)
    except OrganError as error:
        current_app.logger.warning("the metrics lack the numbers of the catalog: %s", error)
    collectors = meters.collectors
    if FOLDER_VARIABLE in os.environ:
        collectors = CollectorRegistry()
        MultiProcessCollector(collectors)  # type: ignore[no-untyped-call]
    body = generate_latest(collectors) + generate_latest(_registry_collectors(catalog, moment))
    return Response(body, content_type=CONTENT_TYPE_LATEST)


def _check_allowed(settings: WebSettings) -> None:
    """Raise NotAllowed unless the client is in a network that may read the metrics.

    If no network was configured, only this machine may read them, and the host must be a name of this server or an IP
    address. Otherwise a page of a foreign site whose name resolves to this machine could read them with the browser of
    a user of this machine. A request that a proxy forwarded is then refused, even if no proxy was configured, because
    its address is that of the proxy's machine.
    """
    networks = settings.metrics
    if networks is None:
        is_own_host = is_served(request, settings.hosts)
        with suppress(ValueError):
            ip_address(requested_host(request).strip("[]"))
            is_own_host = True
        is_direct = not settings.proxies and not is_proxied()
        networks = LOOPBACK_NETWORKS if is_own_host and is_direct else ()
    client = client_ip()
    if client is None or not any(client in network for network in networks):
        raise NotAllowed("the metrics are for the operators of this server: start it with --metrics NETWORK")


def _registry_collectors(catalog: CatalogHealth | None, moment: datetime) -> CollectorRegistry:
    """Return the numbers of the catalog at `moment`, by the database's clock, if it was read, and of the disks."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

    families: dict[str, GaugeMetricFamily] = {}

    def add(name: str, meaning: str, value: float, **labels: str) -> None:
        if name not in families:
            families[name] = GaugeMetricFamily(f"organ_{name}", meaning, labels=list(labels))
        families[name].add_metric(list(labels.values()), value)

    add("catalog_up", f"1 if the catalog was read within {FIGURES_SECONDS:g} s.", catalog is not None)
    for disk in disk_spaces(registry().settings):
        add("disk_free_bytes", "Free bytes on the disk of a folder.", disk.free_bytes, folder=disk.name)
        add("disk_size_bytes", "Bytes of the disk of a folder.", disk.size_bytes, folder=disk.name)
    cache_bytes = cached_blob_bytes(registry().settings)
    if cache_bytes is not None:
        add("blob_cache_bytes", "Bytes in the local cache of the bucket.", cache_bytes)
    if catalog is not None:
        for name, value in structs.asdict(catalog.totals).items():
            add(f"registry_{name}", f"The registry's {name}, as on its first page.", value)
        queue, intake = catalog.queue, catalog.intake
        for row in queue.jobs:
            add("jobs", "Jobs by kind and state. Old jobs are removed.", row.jobs, kind=row.kind, state=row.state)
        add("jobs_waiting", "Jobs that wait for a runner.", queue.waiting)
        add("jobs_running", "Jobs that run.", queue.running)
        add("jobs_failed_last_day", "Jobs that failed in the last 24 hours.", queue.failed)
        waiting_since = queue.waiting_since
        age = 0.0 if waiting_since is None else max(0.0, (moment - waiting_since).total_seconds())
        add("oldest_waiting_job_age_seconds", "Age of the oldest waiting job; 0 if none waits.", age)
        add("open_uploads", "Uploads whose bytes have not all arrived.", intake.uploads)
        add("open_upload_bytes", "The sum of the declared sizes of open uploads.", intake.upload_bytes)
        add("open_upload_received_bytes", "Bytes of open uploads that arrived.", intake.received_bytes)
        for state, count in intake.submissions.items():
            add("submissions", "Submissions by state; quarantined: held for review.", count, state=state)
        for state, count in intake.models.items():
            add("models", "Models by state; quarantined: held for review.", count, state=state)
        add("corrupt_blobs", "Blobs whose bytes are wrong or missing.", catalog.corrupt_blobs)
        add("database_size_bytes", "Bytes of the database.", catalog.database.size_bytes)

    class CatalogNumbers:
        def collect(self) -> Iterable[GaugeMetricFamily]:
            return families.values()

    collectors = CollectorRegistry()
    collectors.register(CatalogNumbers())
    return collectors


def cached_blob_bytes(settings: Settings) -> int | None:
    """Return the bytes in the local cache of the bucket, counted once a minute; None without such a cache."""
    if settings.bucket is None or not settings.blob_cache_bytes:
        return None
    return _cache_size(settings.blob_cache, int(monotonic() / CACHE_COUNTED_SECONDS))


@lru_cache(maxsize=1)
def _cache_size(folder: Path, _minute: int) -> int:
    from organs.registry.store.bucket import cache_size_bytes

    return cache_size_bytes(folder)


class _CountedStream:
    """The pieces of a stream. The first call of `close` also calls `ended`."""

    def __init__(self, pieces: Any, ended: Callable[[], None]) -> None:
        self._pieces = pieces
        self._ended: Callable[[], None] | None = ended
        if hasattr(pieces, "pause"):  # the pieces are a web.file_responses.FileBody
            self.pause, self.busy_status, self.opens_later = pieces.pause, pieces.busy_status, pieces.opens_later

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def close(self) -> None:
        """Close the stream. May be called twice."""
        ended, self._ended = self._ended, None
        try:
            if hasattr(self._pieces, "close"):
                self._pieces.close()
        finally:
            if ended is not None:
                ended()


health = Blueprint("health", __name__)


@health.get("/healthz")
def healthz() -> dict[str, bool]:
    """Answer 200 if a query succeeds. Answer 503 with Retry-After if the database does not answer."""
    with reading() as session:
        running_totals(session)
    return {"ok": True}
