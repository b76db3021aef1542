"""The page and the JSON of what is stored how: for the owner of a registry and for administrators."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import add_contributor
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_bytes, model_file, related_tensors
from tests.web.accounts import authorization, log_in, new_token
from tests.web.page_parser import parse_page

TENSOR = "blk.0.ffn_up.weight"
STORED_WORDS = ("stored size", "stored here", "codec", "stored by its difference", "/storage")


def fill_relatives(registry: LocalRegistry, folder: Path) -> None:
    """A base and a fine-tune that is stored by its difference to it."""
    ingest_bytes(registry, folder, "base", model_file("Base", related_tensors()))
    ingest_bytes(registry, folder, "tuned", model_file("Tuned", related_tensors(correlation=0.9995)))


@pytest.fixture
def relatives(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, fill_relatives)
    return registry


@pytest.fixture
def local(relatives: LocalRegistry) -> Iterator[FlaskClient]:
    """The browser of the owner, on the owner's machine."""
    with create_app(relatives, WebSettings(personal=True)).test_client() as client:
        yield client


@pytest.fixture
def visitor(relatives: LocalRegistry) -> Iterator[FlaskClient]:
    """Somebody without an account, on a server with accounts."""
    with create_app(relatives, WebSettings(personal=False)).test_client() as client:
        yield client


def digest_of_organ(registry: LocalRegistry, model: str) -> str:
    return next(organ.digest for organ in registry.organs_of(model) if organ.name == TENSOR)


def test_the_owner_sees_totals_families_models_and_encodings(local: FlaskClient, relatives: LocalRegistry) -> None:
    page = local.get("/storage")
    assert page.status_code == 200
    assert "on the disk" in page.text
    links = parse_page(page.text).links()
    assert {"/models/local/base@1", "/models/local/tuned@1"} <= set(links)
    for heading in ("By family", "By model", "How parts are stored", "by difference"):
        assert heading in page.text
    answer = local.get("/api/v1/storage")
    assert answer.get_json()["stored_bytes"] == relatives.storage().stored_bytes
    assert local.get("/storage.json").get_json() == answer.get_json()


def test_the_owner_finds_the_page_from_the_first_page_and_the_reports(local: FlaskClient) -> None:
    for address in ("/", "/reports"):
        assert "/storage" in parse_page(local.get(address).text).links(), address


@pytest.mark.parametrize(("table", "first"), [("models", "name"), ("families", "name"), ("encodings", "way")])
def test_each_table_is_a_csv(local: FlaskClient, table: str, first: str) -> None:
    rows = list(csv.DictReader(io.StringIO(local.get(f"/storage.csv?table={table}").text)))
    assert next(iter(rows[0])) == first
    assert all(int(row["stored_bytes"]) > 0 for row in rows)
    assert local.get("/storage.csv?table=nothing").status_code == 400


def test_a_limit_cuts_the_lists(local: FlaskClient) -> None:
    answer = local.get("/api/v1/storage?limit=1").get_json()
    assert (len(answer["models"]), answer["models_left_out"]) == (1, 1)
    assert "1 model with fewer bytes is in the CSV" in local.get("/storage?limit=1").text
    for address in ("/storage?limit=0", "/api/v1/storage?limit=1001", "/api/v1/storage?more=1"):
        assert local.get(address).status_code == 400, address


def test_an_empty_registry_has_a_page(registry: LocalRegistry) -> None:
    with create_app(registry, WebSettings(personal=True)).test_client() as client:
        assert "The registry is empty" in client.get("/storage").text


def test_the_owner_sees_how_a_model_and_an_organ_are_stored(local: FlaskClient, relatives: LocalRegistry) -> None:
    child, parent = (digest_of_organ(relatives, name) for name in ("tuned", "base"))
    page = local.get(f"/organs/{child}")
    assert "Stored by its difference to" in page.text
    assert any(link.startswith(f"/organs/{parent[:12]}") for link in parse_page(page.text).links())
    assert local.get(f"/api/v1/organs/{child}").get_json()["storage"]["parent"]["digest"] == parent
    assert "stored by difference" in local.get("/models/local/tuned@1").text
    assert local.get("/api/v1/models/local/tuned").get_json()["storage"]["parents"][0]["name"] == "local/base@1"


def test_nobody_else_sees_stored_sizes_and_parents(visitor: FlaskClient, relatives: LocalRegistry) -> None:
    child = digest_of_organ(relatives, "tuned")
    assert visitor.get("/storage").status_code == 303
    assert visitor.get("/storage.csv").status_code == visitor.get("/storage.json").status_code == 401
    assert visitor.get("/api/v1/storage").status_code == 401
    for address in ("/", "/reports", f"/organs/{child}", "/models/local/tuned@1", "/models/local/tuned/report"):
        text = visitor.get(address).text.lower()
        assert [word for word in STORED_WORDS if word in text] == [], address
    organ = visitor.get(f"/api/v1/organs/{child}").get_json()
    assert (organ["stored_bytes"], organ["codec"], organ["storage"]) == (None, None, None)
    assert visitor.get("/api/v1/models/local/tuned").get_json()["storage"] is None
    report = visitor.get("/api/v1/reports/models/local/tuned").get_json()
    assert "stored_bytes" not in report["sections"]["model"]["figures"]


def test_a_contributor_sees_no_stored_sizes_and_an_administrator_all(
    visitor: FlaskClient, relatives: LocalRegistry
) -> None:
    with relatives.catalog.writing() as session:
        add_contributor(session, "ada")
        add_contributor(session, "root")
        hide_model(session, model_by_name(session, parse_model_name("local/base")), "quarantined", "no", "local")
    child = digest_of_organ(relatives, "tuned")
    ada = authorization(new_token(relatives, "ada", "upload", "read"))
    assert visitor.get("/api/v1/storage", headers=ada).status_code == 403
    assert visitor.get(f"/api/v1/organs/{child}", headers=ada).get_json()["storage"] is None
    root = new_token(relatives, "root", "admin")
    names = [row["name"] for row in visitor.get("/api/v1/storage", headers=authorization(root)).get_json()["models"]]
    assert set(names) == {"local/base@1", "local/tuned@1"}
    assert visitor.get(f"/api/v1/organs/{child}", headers=authorization(root)).get_json()["storage"]["parent"]
    browser = log_in(visitor.application, root)
    page = browser.get("/storage")
    assert page.status_code == 200
    assert "held for review" in page.text
    assert "/models/local/base@1" not in parse_page(page.text).links()
    assert "/storage" in parse_page(browser.get("/admin").text).links()
