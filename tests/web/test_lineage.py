"""The lineage on a model's page, and that a declared name is text and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from registry.registry import Registry
from tests.kin import ingest_bytes, kin_file, kin_tensors, parent_entries
from web.app import create_app

HOSTILE = '"><script>alert(1)</script>{{ 7*7 }}'


@pytest.fixture
def client(registry: Registry, tmp_path: Path) -> Iterator[FlaskClient]:
    """A client of a catalog with two relatives, one of which names a hostile parent."""
    ingest_bytes(registry, tmp_path, "base", kin_file("Base", kin_tensors()))
    ingest_bytes(registry, tmp_path, "tuned", kin_file("Tuned", kin_tensors(alike=0.995), parent_entries(HOSTILE)))
    with create_app(registry).test_client() as client:
        yield client


def test_a_models_page_lists_its_relatives_and_findings(client: FlaskClient) -> None:
    page = client.get("/models/local/tuned").text
    assert "<h2>Lineage</h2>" in page
    assert '<th scope="row">relative</th><td class="wrap">local/base@1</td>' in page
    assert '<th scope="col" class="n">matrices</th>' in page
    relative = page[page.index('<td class="wrap">local/base@1</td>') :].split("</tr>")[0]
    assert relative.endswith('<td class="n">7</td>')
    assert "47,296 parameters in 10 tensors" in page
    assert "nothing that either declares says why" in page
    values = client.get("/models/local/tuned.json").get_json()
    assert [edge["direction"] for edge in values["lineage"]] == ["parent", "relative"]
    assert [one["code"] for one in values["findings"]] == ["parent-not-registered", "close-relative-not-declared"]


def test_a_declared_parent_cannot_act_in_the_page(client: FlaskClient) -> None:
    page = client.get("/models/local/tuned").text
    assert "<script>" not in page
    assert "{{ 7*7 }}" in page, "shown as it is, not run"
    assert "&lt;script&gt;" in page
