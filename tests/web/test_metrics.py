"""Metrics: what is counted, in one process and over several, with no word from outside in a label."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import NoReturn

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from organs.registry.catalog import tables
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.submissions import add_upload
from organs.registry.catalog.tables import now
from organs.registry.errors import DatabaseUnreachable
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.metrics import BUCKETS_SECONDS, watch_errors
from organs.web.settings import WebSettings
from tests import postgres
from tests.clocks import local_clock
from tests.small_models import ingest_file, small_model

ROOT = Path(__file__).resolve().parents[2]

SEVERAL = """
import os, sys
from types import SimpleNamespace
from organs.web.metrics import FOLDER_VARIABLE, child_exit, prepare_metrics
assert "prometheus_client" not in sys.modules, "it looks at the environment when it is imported"
folder = prepare_metrics()
from organs.registry.local import LocalRegistry
from organs.web.app import create_app

def child(requests, stream):
    pid = os.fork()
    if pid:
        return pid
    with LocalRegistry.open() as registry:
        client = create_app(registry).test_client()
        for _ in range(requests):
            assert client.get("/healthz").status_code == 200
        if stream:
            digest = client.get("/api/v1/organs?limit=1").get_json()["items"][0]["digest"]
            client.get(f"/organs/{digest}.raw")
        os._exit(0)

first, second = child(3, stream=True), child(4, stream=False)
for pid in (first, second):
    assert os.waitpid(pid, 0)[1] == 0
def shown():
    with LocalRegistry.open() as registry:
        return create_app(registry).test_client().get("/metrics").text
print([line for line in shown().splitlines() if line.startswith("organ_streams_in_flight")][0])
for pid in (first, second):
    child_exit(None, SimpleNamespace(pid=pid))
print(shown())
print("folder", folder, os.path.isdir(folder))
"""


@pytest.fixture
def client(registry: LocalRegistry, tmp_path: Path) -> Iterator[FlaskClient]:
    """A client of a catalog with one little model."""
    path = tmp_path / "little.gguf"
    path.write_bytes(small_model())
    ingest_file(registry, path)
    with create_app(registry).test_client() as client:
        yield client


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Samples by their name and labels."""


def samples(text: str) -> Samples:
    """Every sample by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def asked(client: FlaskClient) -> Samples:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.content_type.startswith("text/plain")
    return samples(answer.text)


def count(found: Samples, name: str, **labels: str) -> float:
    return found.get((name, tuple(sorted(labels.items()))), 0.0)


def status(registry: LocalRegistry, settings: WebSettings, peer: str, **headers: str) -> int:
    """Of `/metrics`, asked from `peer`."""
    client = create_app(registry, settings).test_client()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.get("/metrics", headers=named, environ_base={"REMOTE_ADDR": peer}).status_code


@pytest.mark.parametrize(
    ("peer", "host", "expected"),
    [
        ("127.0.0.1", "localhost:8935", 200),
        ("::1", "[::1]", 200),
        ("::ffff:127.0.0.1", "10.0.0.7:8935", 200),
        ("127.0.0.1", "elsewhere.example", 403),
        ("10.0.0.9", "localhost", 403),
        ("fe80::1%eth0", "localhost", 403),
        ("", "localhost", 403),
    ],
)
def test_metrics_are_served_to_this_machine_and_refused_to_pages_of_other_sites(
    peer: str, host: str, expected: int, registry: LocalRegistry
) -> None:
    assert status(registry, WebSettings(), peer, Host=host) == expected


def test_metrics_are_refused_to_clients_of_an_unconfigured_proxy(registry: LocalRegistry) -> None:
    for header in ("X_Forwarded_For", "X_Forwarded_Proto", "Forwarded", "Via"):
        assert status(registry, WebSettings(), "127.0.0.1", Host="localhost", **{header: "9.9.9.9"}) == 403, header


def test_metrics_behind_a_proxy_are_only_for_named_addresses(registry: LocalRegistry) -> None:
    hosts = frozenset({"atlas.example"})
    behind = WebSettings(hosts, proxies=1)
    assert status(registry, behind, "127.0.0.1", Host="atlas.example", X_Forwarded_For="9.9.9.9") == 403
    assert status(registry, behind, "127.0.0.1", Host="atlas.example") == 403
    named = WebSettings(hosts, proxies=1, metrics=(ip_network("10.0.0.0/8"),))
    assert status(registry, named, "127.0.0.1", Host="organs:8935", X_Forwarded_For="10.1.2.3") == 200
    assert status(registry, named, "10.1.2.3", Host="organs:8935") == 200
    assert status(registry, named, "127.0.0.1", Host="atlas.example", X_Forwarded_For="10.1.2.3, 9.9.9.9") == 403
    assert status(registry, named, "127.0.0.1", Host="localhost") == 403, "the networks replace the default"


def test_requests_are_counted_by_route_method_and_status(client: FlaskClient) -> None:
    client.get("/models/local/little")
    client.get("/models/local/nothing")
    client.get("/models/local/nothing")
    client.delete("/models")
    found = asked(client)
    route = "/models/<namespace>/<name>"
    assert count(found, "organ_requests_total", route=route, method="GET", status="200") == 1
    assert count(found, "organ_requests_total", route=route, method="GET", status="404") == 2
    assert count(found, "organ_requests_total", route="unmatched", method="DELETE", status="405") == 1
    assert count(found, "organ_request_seconds_count", route=route) == 3
    last = count(found, "organ_request_seconds_bucket", route=route, le=str(BUCKETS_SECONDS[-1]))
    assert last == 3


def test_cached_answers_are_counted(client: FlaskClient) -> None:
    for _ in range(3):
        client.get("/api/v1/models")
    found = asked(client)
    assert count(found, "organ_answers_from_memory_total", route="/api/v1/models") == 2


def test_streams_are_counted_while_they_last(client: FlaskClient) -> None:
    digest = client.get("/api/v1/organs?limit=1").get_json()["items"][0]["digest"]
    with client.get(f"/organs/{digest}.raw") as first, client.get(f"/organs/{digest}.npy") as second:
        assert count(asked(client), "organ_streams_in_flight") == 2
        assert first.data
        assert second.data
    client.head(f"/organs/{digest}.raw")
    assert count(asked(client), "organ_streams_in_flight") == 0


def test_the_metrics_of_the_registry_equal_the_figures_of_the_home_page(client: FlaskClient) -> None:
    figures = client.get("/api/v1").get_json()["figures"]
    found = asked(client)
    assert figures["models"] == 1
    assert figures.pop("size_bytes") >= count(found, "organ_registry_size_bytes") > 0, "files have headers too"
    assert {name: count(found, f"organ_registry_{name}") for name in figures} == figures


def test_no_label_holds_text_from_outside(client: FlaskClient) -> None:
    marks = ("zzmark", "ZZMETHOD")
    client.get(f"/{marks[0]}/x?{marks[0]}=1")
    client.get(f"/models/local/{marks[0]}")
    client.open("/models", method=marks[1])
    client.get("/models", headers={"Host": marks[0]})
    text = client.get("/metrics").text
    for mark in marks:
        assert mark.lower() not in text.lower()
    assert count(samples(text), "organ_requests_total", route="unmatched", method="other", status="405") == 1


def test_the_queue_and_the_intake_are_counted(client: FlaskClient, registry: LocalRegistry) -> None:
    moment = now()
    rows = (("queued", 90, None), ("failed", 90, 1), ("failed", 90, 25))
    with registry.catalog.writing() as session:
        local = contributor_id(session, "local")
        for state, age, ended in rows:
            job = tables.JobRow(
                kind="report", state=state, contributor_id=local, attempts=0, arguments="{}", progress=0
            )
            job.note, job.created_at = "", moment - timedelta(hours=age)
            job.finished_at = None if ended is None else moment - timedelta(hours=ended)
            session.add(job)
        add_upload(session, local, "a" * 22, kind="file", size_bytes=500, digest=None, name="x", pieces=())
    with local_clock(10):
        found = asked(client)
    assert count(found, "organ_jobs", kind="report", state="failed") == 2
    assert count(found, "organ_jobs_failed_last_day") == 1
    assert (count(found, "organ_jobs_waiting"), count(found, "organ_jobs_running")) == (1, 0)
    assert 90 * 3600 <= count(found, "organ_oldest_waiting_job_age_seconds") < 91 * 3600
    assert (count(found, "organ_open_uploads"), count(found, "organ_open_upload_bytes")) == (1, 500)
    assert count(found, "organ_models", state="visible") == 1
    assert count(found, "organ_submissions", state="quarantined") == count(found, "organ_corrupt_blobs") == 0
    assert count(found, "organ_disk_free_bytes", folder="registry") > 0
    assert count(found, "organ_database_size_bytes") > 0


def test_slow_statements_and_logged_errors_are_counted(client: FlaskClient, registry: LocalRegistry) -> None:
    handler = watch_errors(client.application)
    try:
        logging.getLogger("organs.web.test").error("the blob cannot be read")
    finally:
        logging.getLogger().removeHandler(handler)
    registry.catalog.slow.watch(registry.catalog.reader, "reader", slow_seconds=0)
    client.get("/models")
    found = asked(client)
    assert count(found, "organ_logged_errors_total", logger="organs.web.test") == 1
    assert count(found, "organ_slow_statements_total", connection="reader") >= 2
    assert count(found, "organ_slow_statement_seconds_total", connection="reader") >= 0


def test_without_the_database_the_server_is_not_healthy_and_its_own_metrics_stay(
    client: FlaskClient, registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert count(asked(client), "organ_catalog_up") == 1
    assert client.get("/healthz").get_json() == {"ok": True}

    def fail(*_: object) -> NoReturn:
        raise DatabaseUnreachable("the database does not answer: try again later")

    monkeypatch.setattr(Catalog, "reading", fail)
    answer = client.get("/healthz", headers={"Host": "10.0.0.7"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    found = asked(client)
    assert (count(found, "organ_catalog_up"), ("organ_registry_models", ()) in found) == (0, False)
    assert count(found, "organ_requests_total", route="/healthz", method="GET", status="503") == 1


@pytest.mark.long
def test_the_metrics_of_several_processes_are_summed(client: FlaskClient, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL],
        cwd=ROOT,
        env=environment | postgres.environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, _, rest = done.stdout.partition("\n")
    shown, _, folder = rest.partition("folder ")
    assert before == "organ_streams_in_flight 1.0", "what a process had under way counts until its end is told"
    found = samples(shown)
    assert count(found, "organ_requests_total", route="/healthz", method="GET", status="200") == 7
    assert count(found, "organ_streams_in_flight") == 0
    path, there = folder.split()
    assert there == "True"
    assert not Path(path).exists(), "the folder goes with the process that made it"
