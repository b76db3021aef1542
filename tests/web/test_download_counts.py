"""Downloads are counted when a model's last byte was taken, together, and by no write a request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from sqlalchemy import select

from organs.registry.catalog.register.counts import add_downloads
from organs.registry.catalog.tables import DailyDownloads, ModelRow, now
from organs.registry.errors import Busy
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.file_responses import (
    COUNTING_KEY,
    DownloadCounts,
)
from organs.web.settings import WebSettings
from tests.faults.failing import SteppedCatalog
from tests.gguf_files import text, unsigned
from tests.registry_templates import RegistryTemplates
from tests.small_models import ingest_file, small_model
from tests.web.live_server import running_server, wait_until

WHOLE = "/models/local/little.gguf"
HUB = "/local/little/resolve/main/little.gguf"
SEED = [text("general.type", "model"), unsigned("acme.number", 1)]


def fill(registry: LocalRegistry, folder: Path) -> None:
    (folder / "little.gguf").write_bytes(small_model(more=SEED))
    ingest_file(registry, folder / "little.gguf")


@pytest.fixture
def filled(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, fill)
    return registry


@pytest.fixture
def client(filled: LocalRegistry) -> Iterator[FlaskClient]:
    with create_app(filled).test_client() as client:
        yield client


def counted(registry: LocalRegistry) -> int:
    """The sum that the model has, which is that of its days."""
    with registry.catalog.reading() as session:
        days = session.execute(select(DailyDownloads.day, DailyDownloads.downloads)).all()
        total = session.scalars(select(ModelRow.downloads)).one()
    assert total == sum(downloads for _, downloads in days)
    assert {day for day, _ in days} <= {now().date().isoformat()}
    return total


def flushed(client: FlaskClient, registry: LocalRegistry) -> int:
    client.application.extensions[COUNTING_KEY].flush()
    return counted(registry)


def test_a_completely_sent_file_counts_as_one_download(client: FlaskClient, filled: LocalRegistry) -> None:
    size = len(small_model(more=SEED))
    addresses = (WHOLE, "/models/local/little@1.gguf", "/models/local/little/files/little.gguf", HUB)
    for number, address in enumerate(addresses):
        assert len(client.get(address).data) == size
        assert counted(filled) == 4 * number, "nothing is written by the request"
        for part in (f"bytes={size // 2}-", "bytes=-7", f"bytes=0-{size - 1}"):
            answer = client.get(address, headers={"Range": part}, buffered=True)
            assert (answer.status_code, answer.data != b"") == (206, True)
        assert flushed(client, filled) == 4 * (number + 1), "a part that reaches the end is the rest of a download"


def test_head_cached_aborted_and_partial_requests_are_not_counted(client: FlaskClient, filled: LocalRegistry) -> None:
    with client.get(WHOLE) as answer:
        tag = answer.headers["ETag"]  # and not a byte is taken
    client.head(WHOLE)
    assert client.get(WHOLE, headers={"If-None-Match": tag}).status_code == 304
    assert client.get(WHOLE, headers={"Range": "bytes=0-1000"}).data
    assert client.get(WHOLE, headers={"Range": "bytes=999999999-"}).status_code == 416
    assert client.get("/local/little/resolve/main/README.md").data
    digest = client.get("/api/v1/models/local/little/organs?limit=1000").get_json()["items"][0]["digest"]
    assert client.get(f"/organs/{digest}.raw").data
    with client.get(WHOLE) as answer:
        pieces = answer.iter_encoded()
        next(pieces)
    assert flushed(client, filled) == 0


def test_a_read_only_server_counts_no_downloads(filled: LocalRegistry) -> None:
    with create_app(filled, WebSettings(read_only=True)).test_client() as client:
        assert client.get(WHOLE).data
        assert flushed(client, filled) == 0


def test_counts_are_written_together_after_a_delay(filled: LocalRegistry) -> None:
    writes: list[int] = []
    watched = SteppedCatalog(filled.catalog, lambda: writes.append(1))
    downloads = DownloadCounts(watched, create_app(filled).logger, seconds=0.05)
    for _ in range(50):
        downloads.count(1)
    wait_until(lambda: counted(filled) == 50)
    assert len(writes) < 10


def test_counts_that_cannot_be_written_are_kept_for_the_next_time(
    filled: LocalRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    class Held:
        def writing(self) -> None:
            raise Busy("the database another process has locked the database")

    downloads = DownloadCounts(Held(), create_app(filled).logger, 3600)  # type: ignore[arg-type]
    downloads.count(1)
    downloads.flush()
    assert "1 downloads could not be counted yet" in caplog.text
    downloads._catalog = filled.catalog
    downloads.count(1)
    downloads.flush()
    downloads.flush()
    assert counted(filled) == 2


def test_the_days_are_summed_and_removed_models_are_left_out(filled: LocalRegistry) -> None:
    with filled.catalog.writing() as session:
        add_downloads(session, {(1, "2026-01-01"): 2, (1, "2026-01-02"): 3, (77, "2026-01-01"): 9})
        add_downloads(session, {(1, "2026-01-02"): 4})
    with filled.catalog.reading() as session:
        rows = session.execute(select(DailyDownloads.model_id, DailyDownloads.day, DailyDownloads.downloads)).all()
        assert [tuple(row) for row in rows] == [(1, "2026-01-01", 2), (1, "2026-01-02", 7)]
        assert session.scalars(select(ModelRow.downloads)).one() == 9


def test_download_counts_are_in_the_hub_api_and_in_the_metrics(client: FlaskClient, filled: LocalRegistry) -> None:
    assert client.get(HUB).data
    flushed(client, filled)
    assert client.get("/api/models/local/little").get_json()["downloads"] == 1
    assert "\norgan_downloads_total 1.0\n" in client.get("/metrics").text


@pytest.mark.slow
def test_a_worker_that_ends_leaves_nothing_uncounted(filled: LocalRegistry, tmp_path: Path) -> None:
    with running_server(filled.settings.home, tmp_path / "log") as live:
        assert live.get(WHOLE) == small_model(more=SEED)
        assert b"\norgan_downloads_total 1.0\n" in live.get("/metrics")
    assert counted(filled) == 1, (tmp_path / "log").read_text()
