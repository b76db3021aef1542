"""Reports in the browser: the same numbers as the command's, with words, a picture, a CSV and Markdown."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from flask.testing import FlaskClient

from organs.registry.entities.base import decode
from organs.registry.entities.report import Report
from organs.registry.local import LocalRegistry
from organs.registry.reports import overview
from organs.registry.reports.formats import markdown
from organs.registry.reports.overview import registry_report
from organs.web.api import reports as api_reports
from organs.web.app import create_app
from organs.web.pages.reports import PAGES
from organs.web.settings import WebSettings
from tests.small_models import ingest_file, small_model
from tests.web.conftest import HOSTILE
from tests.web.page_parser import page_at


def report_of(client: FlaskClient, address: str) -> Report:
    """The report of the API that the JSON address of a page leads to."""
    return decode(client.get(address, follow_redirects=True).data, Report)


SVG = "{http://www.w3.org/2000/svg}"


def test_the_whole_report_is_available_as_markdown(registry: LocalRegistry, family_client: FlaskClient) -> None:
    answer = family_client.get("/reports.md")
    assert answer.mimetype == "text/markdown"
    assert "attachment" in answer.headers["Content-Disposition"]
    with registry.catalog.reading() as session:
        assert answer.text == markdown(registry_report(session))


def test_only_the_owner_sees_the_times_and_the_stored_sizes_of_ingests(
    registry: LocalRegistry, family_client: FlaskClient
) -> None:
    with registry.catalog.reading() as session:
        public, complete = registry_report(session), registry_report(session, complete=True)
    assert report_of(family_client, "/api/v1/reports") == public
    assert "ingest_totals" not in public.sections
    assert family_client.get("/api/v1/reports/ingest_totals").status_code == 404
    assert family_client.get("/reports/ingests.csv?table=ingest_totals").status_code == 400
    assert "stored" not in page_at(family_client, "/reports/ingests").text.partition("The owner")[0]
    with create_app(registry, WebSettings(personal=True)).test_client() as owner:
        for address in ("/api/v1/reports", "/api/v1/reports?limit=49"):
            assert report_of(owner, address).sections["ingest_totals"] == complete.sections["ingest_totals"]
        assert owner.get("/reports.md").text == markdown(complete)
        page = page_at(owner, "/reports/ingests").text
        rows = list(csv.DictReader(io.StringIO(owner.get("/reports/ingests.csv").text)))
    for figure in complete.sections["ingest_totals"].figures.values():
        assert figure.meaning in page
    assert [row["result"] for row in rows] == ["new"] * 3
    assert all(float(row["seconds"]) > 0 for row in rows)


def test_the_scale_law_is_drawn_with_one_dot_for_each_family_and_the_fitted_lines(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    for number in range(4):
        path = tmp_path / f"one-{number}.gguf"
        path.write_bytes(small_model(f"Family {chr(65 + number)}", blocks=2 + number, seed=10 + number))
        ingest_file(registry, path)
    with create_app(registry).test_client() as client:
        answer = client.get("/reports/scale.svg")
        again = client.get("/reports/scale.svg", headers={"If-None-Match": answer.headers["ETag"]})
    assert again.status_code == 304
    root = ElementTree.fromstring(answer.data)
    assert len(list(root.iter(f"{SVG}circle"))) == 4
    assert {"families", "models"} <= {one.text for one in root.iter(f"{SVG}text")}


def test_the_report_on_a_model_is_available_as_markdown_and_csv(family_client: FlaskClient) -> None:
    for ending, begins in (
        ("md", "# Dissection of local/tuned@1"),
        ("csv", "type,tensors_count"),
        ("csv?table=wells", "tensor,type"),
    ):
        assert family_client.get(f"/models/local/tuned@1/report.{ending}").text.startswith(begins)


def test_a_report_is_made_once_until_the_catalog_changes(
    registry: LocalRegistry, family_client: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(
        overview, "registry_report", lambda session, **more: (made.append(1), registry_report(session, **more))[1]
    )
    for address in ("/reports", "/reports/ranking", "/reports/types", "/reports/wells.csv", "/reports.md"):
        assert family_client.get(address).status_code == 200
    assert len(made) == 1
    path = tmp_path / "newcomer.gguf"
    path.write_bytes(small_model("Newcomer", seed=77))
    ingest_file(registry, path)
    assert "local/newcomer@1" in family_client.get("/reports/ranking").text
    assert len(made) == 2


def test_a_report_that_takes_too_long_is_stopped_and_the_page_says_so(
    family_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_reports, "REPORT_SECONDS", -1.0)
    monkeypatch.setattr("organs.registry.catalog.engine.STEPS", 1)
    for address in ("/reports", "/reports/ranking", "/reports/scale"):
        answer = family_client.get(address)
        assert answer.status_code == 503
        assert "was stopped" in answer.text
        assert answer.headers["Cache-Control"] == "no-store"
    late = family_client.get("/reports.json", follow_redirects=True)
    assert (late.status_code, late.mimetype) == (503, "application/problem+json")


def test_an_unknown_report_is_refused(family_client: FlaskClient) -> None:
    for address, status in (
        ("/reports/nothing", 404),
        ("/reports/ranking.csv?table=wells", 400),
        (f"/reports/scale.csv?table={HOSTILE}", 400),
        ("/models/local/nothing/report", 404),
        ("/models/local/nothing/report.md", 404),
        ("/models/local/tuned/report.csv?table=nothing", 400),
    ):
        assert family_client.get(address).status_code == status, address


def test_the_reports_of_an_empty_registry_have_no_pictures(registry: LocalRegistry) -> None:
    with create_app(registry).test_client() as client:
        for key in PAGES:
            assert not page_at(client, f"/reports/{key}").named("img")
            for ending in ("json", "csv"):
                assert client.get(f"/reports/{key}.{ending}", follow_redirects=True).status_code == 200
        assert client.get("/reports/types.svg").status_code == client.get("/reports/scale.svg").status_code == 404
