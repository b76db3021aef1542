"""The page and the JSON of what is stored how: for the owner of a registry and for administrators."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_all, related_tensors
from tests.web.accounts import authorization, log_in, new_token
from tests.web.page_parser import found_at, page_at

TENSOR = "blk.0.ffn_up.weight"
STORED_WORDS = ("stored size", "stored here", "codec", "stored by its difference", "/storage")


def fill_relatives(registry: LocalRegistry, folder: Path) -> None:
    """A base and a fine-tune that is stored by its difference to it."""
    ingest_all(registry, folder, base=related_tensors(), tuned=related_tensors(correlation=0.9995))


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
    page = page_at(local, "/storage")
    assert {"/models/local/base@1", "/models/local/tuned@1"} <= page.links()
    for heading in ("on the disk", "By family", "By model", "How parts are stored", "by difference"):
        assert heading in page.text
    values = found_at(local, "/api/v1/storage")
    assert values["stored_bytes"] == relatives.storage().stored_bytes
    assert values == found_at(local, "/storage.json")
    for address in ("/", "/reports"):
        assert "/storage" in page_at(local, address).links(), address


def test_each_table_is_a_csv(local: FlaskClient) -> None:
    for table, first in (("models", "name"), ("families", "name"), ("encodings", "way")):
        rows = list(csv.DictReader(io.StringIO(local.get(f"/storage.csv?table={table}").text)))
        assert next(iter(rows[0])) == first
        assert all(int(row["stored_bytes"]) > 0 for row in rows)
    assert local.get("/storage.csv?table=nothing").status_code == 400


def test_a_limit_cuts_the_lists(local: FlaskClient) -> None:
    values = found_at(local, "/api/v1/storage?limit=1")
    assert (len(values["models"]), values["models_left_out"]) == (1, 1)
    assert "1 model with fewer bytes is in the CSV" in page_at(local, "/storage?limit=1").text
    for address in ("/storage?limit=0", "/api/v1/storage?limit=1001", "/api/v1/storage?more=1"):
        assert local.get(address).status_code == 400, address


def test_nobody_else_sees_stored_sizes_and_parents(visitor: FlaskClient, relatives: LocalRegistry) -> None:
    child = digest_of_organ(relatives, "tuned")
    for address in ("/", "/reports", f"/organs/{child}", "/models/local/tuned@1", "/models/local/tuned/report"):
        text = visitor.get(address).text.lower()
        assert [word for word in STORED_WORDS if word in text] == [], address
    organ = found_at(visitor, f"/api/v1/organs/{child}")
    assert (organ["stored_bytes"], organ["codec"], organ["storage"]) == (None, None, None)
    assert found_at(visitor, "/api/v1/models/local/tuned")["storage"] is None
    report = found_at(visitor, "/api/v1/reports/models/local/tuned")
    assert "stored_bytes" not in report["sections"]["model"]["figures"]


def test_a_contributor_sees_no_stored_sizes_and_an_administrator_all(
    visitor: FlaskClient, relatives: LocalRegistry
) -> None:
    with relatives.catalog.writing() as session:
        hide_model(session, model_by_name(session, parse_model_name("local/base")), "quarantined", "no", "local")
    ada, root = new_token(relatives, "ada", "upload", "read"), new_token(relatives, "root", "admin")

    def asked(token: str, address: str) -> Any:
        return visitor.get(f"/api/v1/{address}", headers=authorization(token)).get_json()

    organ = f"organs/{digest_of_organ(relatives, 'tuned')}"
    assert asked(ada, organ)["storage"] is None
    assert asked(root, organ)["storage"]["parent"]
    assert {row["name"] for row in asked(root, "storage")["models"]} == {"local/base@1", "local/tuned@1"}
    browser = log_in(visitor.application, root)
    page = page_at(browser, "/storage")
    assert "held for review" in page.text
    assert "/models/local/base@1" not in page.links()
    assert "/storage" in page_at(browser, "/admin").links()
