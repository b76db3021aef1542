"""Figures of the server for Prometheus at `/metrics`, and its health at `/healthz`."""

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
    """What is counted in this process, and the label sets that were met: one dictionary look-up finds them again."""

    collectors: CollectorRegistry
    requests: Counter
    seconds: Histogram
    remembered: Counter
    streams: Gauge
    downloads: Counter
    met: dict[tuple[str, str, int, bool], _Met]


@dataclass(frozen=True, slots=True)
class _Met:
    count: Callable[[], None]
    observe: Callable[[float], None]
    recall: Callable[[], None] | None


def prepare_metrics() -> str:
    """Make the folder through which the processes of a server share their figures; call it before they fork.

    It is removed when this process ends. Answers its path.
    """
    folder = tempfile.mkdtemp(prefix="organ-metrics-")
    os.environ[FOLDER_VARIABLE] = folder
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked process ends with the same hooks
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def child_exit(_server: object, worker: Any) -> None:
    """Stop counting the requests of a process that has ended (gunicorn's hook)."""
    from prometheus_client.multiprocess import mark_process_dead

    if FOLDER_VARIABLE in os.environ:
        mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]


def count_requests(app: Flask) -> None:
    """Count the requests of `app`; to be called before other hooks are set, so that their time counts too."""
    app.extensions[METRICS_KEY] = meters = _meters()

    @app.before_request
    def begin() -> None:
        g.began = perf_counter()

    @app.after_request
    def end(answer: Response) -> Response:
        began = g.get("began")
        key = (_route(), _method(), answer.status_code, ANSWERED_HEADER in answer.headers)
        met = meters.met.get(key)
        if met is None:
            met = meters.met[key] = _meet(meters, *key)
        met.count()
        met.observe(0.0 if began is None else perf_counter() - began)
        if met.recall is not None:
            met.recall()
        if answer.is_streamed and request.endpoint != "static":
            meters.streams.inc()
            answer.response = _Watched(answer.response, meters.streams.dec)
        return answer


@metrics.get("/metrics")
def show() -> Response:
    """Return all counts in the text format of Prometheus."""
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
    body = generate_latest(collectors) + generate_latest(_of_registry(totals))
    return Response(body, content_type=CONTENT_TYPE_LATEST)


def _check_allowed(settings: WebSettings) -> None:
    """Raise NotAllowed unless the client is in a network that may read the metrics.

    Where no network was configured, that is this machine, and the host must be a name of this server or an IP address:
    otherwise a page of another site, whose name leads to this machine, could read them with the browser of somebody who
    works here. A request that a proxy forwarded is refused, also where no proxy was configured: it seems to come from
    the proxy's machine.
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


def _meters() -> Meters:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

    disable_created_metrics()  # type: ignore[no-untyped-call]  # when each series began, a line more for each
    own = CollectorRegistry()
    return Meters(
        own,
        Counter("organ_requests", "Requests that were answered.", ("route", "method", "status"), registry=own),
        Histogram(
            "organ_request_seconds",
            "Seconds until an answer began; of streams, until their first bytes.",
            ("route",),
            buckets=BUCKETS_SECONDS,
            registry=own,
        ),
        Counter("organ_answers_from_memory", "Answers that were kept from before.", ("route",), registry=own),
        Gauge("organ_streams_in_flight", "Downloads under way.", registry=own, multiprocess_mode="livesum"),
        Counter("organ_downloads", "Models that were sent to their last byte.", registry=own),
        {},
    )


def _meet(meters: Meters, route: str, method: str, status: int, is_remembered: bool) -> _Met:
    return _Met(
        meters.requests.labels(route, method, str(status)).inc,
        meters.seconds.labels(route).observe,
        meters.remembered.labels(route).inc if is_remembered else None,
    )


def _route() -> str:
    return UNMATCHED if request.url_rule is None else request.url_rule.rule


def _method() -> str:
    return request.method if request.method in METHODS else OTHER


def _of_registry(totals: RegistryTotals) -> CollectorRegistry:
    """Return the current figures of the registry."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

    @dataclass(frozen=True)
    class Figures:
        def collect(self) -> Iterable[GaugeMetricFamily]:
            for name, value in structs.asdict(totals).items():
                yield GaugeMetricFamily(
                    f"organ_registry_{name}", f"The registry's {name}, as on its first page.", value
                )

    registry = CollectorRegistry()
    registry.register(Figures())
    return registry


class _Watched:
    """The pieces of a stream; `close` says once that it is over."""

    def __init__(self, pieces: Any, over: Callable[[], None]) -> None:
        self._pieces = pieces
        self._over: Callable[[], None] | None = over
        if hasattr(pieces, "pause"):  # as web.file_responses.FileBody
            self.pause, self.busy_status, self.opens_later = pieces.pause, pieces.busy_status, pieces.opens_later

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def close(self) -> None:
        """Close the stream itself; it may be called twice."""
        over, self._over = self._over, None
        try:
            if hasattr(self._pieces, "close"):
                self._pieces.close()
        finally:
            if over is not None:
                over()


health = Blueprint("health", __name__)


@health.get("/healthz")
def healthz() -> dict[str, bool]:
    """Answer 200 if a query succeeds."""
    with reading() as session:
        running_totals(session)
    return {"ok": True}
