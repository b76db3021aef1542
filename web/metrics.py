"""Metrics of the server for Prometheus at `/metrics`, and the health check at `/healthz`."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from time import perf_counter
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Flask, Response, current_app, g, request
from msgspec import structs

from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.reports import running_totals
from organs.registry.entities.about import RegistryTotals
from organs.registry.errors import NotAllowed
from organs.web.answer_cache import ANSWERED_HEADER
from organs.web.client_address import client_ip, is_proxied
from organs.web.responses import (
    reading,
    settings,
)
from organs.web.security import is_served, requested_host
from organs.web.settings import LOOPBACK_NETWORKS, WebSettings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


METRICS_KEY = "organ_metrics"
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
FIGURES_SECONDS = 2.0
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE"})
OTHER, UNMATCHED = "other", "unmatched"

metrics = Blueprint("metrics", __name__)


@dataclass(frozen=True, slots=True)
class Meters:
    """The metrics of this process, and a cache of the methods that count requests, by the labels of a request."""

    collectors: CollectorRegistry
    requests: Counter
    seconds: Histogram
    remembered: Counter
    streams: Gauge
    downloads: Counter
    met: dict[tuple[str, str, int, bool], _LabelledCounters]


@dataclass(frozen=True, slots=True)
class _LabelledCounters:
    count: Callable[[], None]
    observe: Callable[[float], None]
    recall: Callable[[], None] | None


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
    app.extensions[METRICS_KEY] = meters = _make_meters()

    @app.before_request
    def begin() -> None:
        g.began = perf_counter()

    @app.after_request
    def end(answer: Response) -> Response:
        began = g.get("began")
        key = (_route(), _method(), answer.status_code, ANSWERED_HEADER in answer.headers)
        counters = meters.met.get(key)
        if counters is None:
            counters = meters.met[key] = _label_counters(meters, *key)
        counters.count()
        counters.observe(0.0 if began is None else perf_counter() - began)
        if counters.recall is not None:
            counters.recall()
        if answer.is_streamed and request.endpoint != "static":
            meters.streams.inc()
            answer.response = _CountedStream(answer.response, meters.streams.dec)
        return answer


@metrics.get("/metrics")
def show() -> Response:
    """Return all metrics in the text format of Prometheus."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    _check_allowed(settings())
    meters: Meters = current_app.extensions[METRICS_KEY]
    with reading(FIGURES_SECONDS) as session:
        totals = cached(session, "totals", lambda: running_totals(session))
    collectors = meters.collectors
    if FOLDER_VARIABLE in os.environ:
        collectors = CollectorRegistry()
        MultiProcessCollector(collectors)  # type: ignore[no-untyped-call]
    body = generate_latest(collectors) + generate_latest(_registry_collectors(totals))
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
        is_own_host = is_served(request, settings.hosts) or _is_address(requested_host(request))
        is_direct = not settings.proxies and not is_proxied()
        networks = LOOPBACK_NETWORKS if is_own_host and is_direct else ()
    client = client_ip()
    if client is None or not any(client in network for network in networks):
        raise NotAllowed("the metrics are for the operators of this server: start it with --metrics NETWORK")


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _make_meters() -> Meters:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

    disable_created_metrics()  # type: ignore[no-untyped-call]  # they add a line for each series
    collectors = CollectorRegistry()
    return Meters(
        collectors,
        Counter("organ_requests", "Requests that were answered.", ("route", "method", "status"), registry=collectors),
        Histogram(
            "organ_request_seconds",
            "Seconds until an answer began; of streams, until their first bytes.",
            ("route",),
            buckets=BUCKETS_SECONDS,
            registry=collectors,
        ),
        Counter("organ_answers_from_memory", "Answers that were sent from the cache.", ("route",), registry=collectors),
        Gauge("organ_streams_in_flight", "Downloads in progress.", registry=collectors, multiprocess_mode="livesum"),
        Counter("organ_downloads", "Models that were sent to their last byte.", registry=collectors),
        {},
    )


def _label_counters(meters: Meters, route: str, method: str, status: int, is_remembered: bool) -> _LabelledCounters:
    return _LabelledCounters(
        meters.requests.labels(route, method, str(status)).inc,
        meters.seconds.labels(route).observe,
        meters.remembered.labels(route).inc if is_remembered else None,
    )


def _route() -> str:
    return UNMATCHED if request.url_rule is None else request.url_rule.rule


def _method() -> str:
    return request.method if request.method in METHODS else OTHER


def _registry_collectors(totals: RegistryTotals) -> CollectorRegistry:
    """Return the collectors of the current totals of the registry."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

    @dataclass(frozen=True)
    class Totals:
        def collect(self) -> Iterable[GaugeMetricFamily]:
            for name, value in structs.asdict(totals).items():
                yield GaugeMetricFamily(
                    f"organ_registry_{name}", f"The registry's {name}, as on its first page.", value
                )

    collectors = CollectorRegistry()
    collectors.register(Totals())
    return collectors


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
    """Answer 200 if a query succeeds."""
    with reading() as session:
        running_totals(session)
    return {"ok": True}
