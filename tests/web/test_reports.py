"""Reports in the browser: the same numbers as the command's, with words, a picture, a CSV and Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
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
from tests.web.page_parser import found_at, page_at


def report_of(client: FlaskClient, address: str) -> Report:
    """The report of the API that the JSON address of a page leads to."""
    return decode(client.get(address, follow_redirects=True).data, Report)


SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def families(registry: LocalRegistry, tmp_path: Path) -> Iterator[FlaskClient]:
    """A client of a catalog with four strangers of two sizes."""
    for number in range(4):
        path = tmp_path / f"one-{number}.gguf"
        path.write_bytes(small_model(f"Family {chr(65 + number)}", blocks=2 + number, seed=10 + number))
        ingest_file(registry, path)
    with create_app(registry).test_client() as client:
        yield client


def test_the_first_page_has_the_figures_and_links_to_every_report(family_client: FlaskClient) -> None:
    page = page_at(family_client, "/reports")
    assert {f"/reports/{key}" for key in PAGES} <= page.links()
    figures = report_of(family_client, "/reports.json").sections["figures"].figures
    assert figures["models_count"].value == 3
    assert [figure.meaning for figure in figures.values() if figure.meaning not in page.text] == []


@pytest.mark.parametrize("key", PAGES)
def test_every_report_has_its_text_its_rows_and_its_other_formats(families: FlaskClient, key: str) -> None:
    page = page_at(families, f"/reports/{key}")
    assert list(report_of(families, f"/reports/{key}.json").sections) == [key]
    for name in set(PAGES[key][2]) - {"ingest_totals"}:  # which only the owner sees
        section = report_of(families, f"/api/v1/reports/{name}").sections[name]
        assert [words for words in (*section.before, *section.after) if words not in page.text] == []
        rows = list(csv.DictReader(io.StringIO(families.get(f"/reports/{key}.csv?table={name}").text)))
        assert len(rows) == len(section.items) > 0
        assert list(rows[0]) == list(section.items[0])


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
        page = page_at(owner, "/reports/ingests")
        rows = list(csv.DictReader(io.StringIO(owner.get("/reports/ingests.csv").text)))
    for figure in complete.sections["ingest_totals"].figures.values():
        assert figure.meaning in page.text
    assert "/models/local/base@1" in page.links()
    assert [row["result"] for row in rows] == ["new"] * 3
    assert all(float(row["seconds"]) > 0 for row in rows)


def test_names_of_models_and_tensors_are_links_to_them(family_client: FlaskClient) -> None:
    ranking = page_at(family_client, "/reports/ranking").links()
    assert {f"/models/local/{name}@1" for name in ("base", "tuned", "stranger")} <= ranking
    wells = report_of(family_client, "/reports/wells.json").sections["wells"].items
    links = [link for link in page_at(family_client, "/reports/wells").links() if link.startswith("/organs?")]
    found = [found_at(family_client, "/api/v1" + link)["items"] for link in links]
    assert sorted((one["name"], one["model"]) for (one,) in found) == sorted(
        (row["tensor"], row["model"]) for row in wells
    )


def test_the_picture_of_types_has_one_row_for_each_type_and_the_right_size(family_client: FlaskClient) -> None:
    page = family_client.get("/reports/types").text
    (image,) = re.findall(r"<img[^>]+>", page)
    root = ElementTree.fromstring(family_client.get("/reports/types.svg").data)
    assert f'src="/reports/types.svg" width="{root.attrib["width"]}" height="{root.attrib["height"]}"' in image
    written = {one.text for one in root.iter(f"{SVG}text")}
    assert {"◆ attention", "● feed-forward", "│ ≈norm", "■ embedding"} <= written


def test_the_scale_law_is_drawn_with_one_dot_for_each_family_and_the_fitted_lines(families: FlaskClient) -> None:
    listed = report_of(families, "/api/v1/reports/families").sections["families"].items
    answer = families.get("/reports/scale.svg")
    root = ElementTree.fromstring(answer.data)
    assert len(list(root.iter(f"{SVG}circle"))) == len(listed) == 4
    assert {"families", "models"} <= {one.text for one in root.iter(f"{SVG}text")}
    again = families.get("/reports/scale.svg", headers={"If-None-Match": answer.headers["ETag"]})
    assert again.status_code == 304


def test_too_few_families_are_drawn_without_a_line(family_client: FlaskClient) -> None:
    root = ElementTree.fromstring(family_client.get("/reports/scale.svg").data)
    assert len(list(root.iter(f"{SVG}circle"))) == 2
    assert "families" not in {one.text for one in root.iter(f"{SVG}text")}


def test_the_report_on_a_model_is_linked_from_its_page(family_client: FlaskClient) -> None:
    address = "/models/local/tuned@1/report"
    assert address in page_at(family_client, "/models/local/tuned").links()
    page = page_at(family_client, address)
    titles = [section.title for section in report_of(family_client, f"{address}.json").sections.values()]
    assert [title for title in titles if title not in page.text] == []
    assert "/models/local/base@1" in page.links(), "a relative"
    for ending, begins in (
        ("md", "# Dissection of local/tuned@1"),
        ("csv", "type,tensors_count"),
        ("csv?table=wells", "tensor,type"),
    ):
        assert family_client.get(f"{address}.{ending}").text.startswith(begins)


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


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/reports/nothing", 404),
        ("/reports/ranking.csv?table=wells", 400),
        (f"/reports/scale.csv?table={HOSTILE}", 400),
        ("/models/local/nothing/report", 404),
        ("/models/local/nothing/report.md", 404),
        ("/models/local/tuned/report.csv?table=nothing", 400),
    ],
)
def test_an_unknown_report_is_refused(family_client: FlaskClient, address: str, status: int) -> None:
    assert family_client.get(address).status_code == status


def test_the_reports_of_an_empty_registry_show_the_next_step(registry: LocalRegistry) -> None:
    with create_app(registry).test_client() as client:
        assert "organ ingest FILE.gguf" in page_at(client, "/reports").text
        for key in PAGES:
            assert not page_at(client, f"/reports/{key}").named("img")
            for ending in ("json", "csv"):
                assert client.get(f"/reports/{key}.{ending}", follow_redirects=True).status_code == 200
        assert client.get("/reports/types.svg").status_code == client.get("/reports/scale.svg").status_code == 404
