"""The page of two models side by side, its form, and what it says when it cannot compare."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from flask.testing import FlaskClient
from sqlalchemy import update

from organs.registry.amounts import weight_change_text
from organs.registry.catalog.tables import Lineage
from organs.registry.entities.base import decode
from organs.registry.entities.comparison import Comparison
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.pages import compare
from tests.gguf_files import file_bytes
from tests.related_models import related_tensors
from tests.small_models import block_metadata, ingest_file, weight_tensor
from tests.web.conftest import HOSTILE
from tests.web.page_parser import found_at, page_at


def comparison_of(client: FlaskClient, address: str) -> Comparison:
    """The comparison of the API that the JSON address of the page leads to."""
    return decode(client.get(address.replace("?", ".json?"), follow_redirects=True).data, Comparison)


KIN = "/compare?first=local/base&second=local/tuned"


@pytest.fixture
def many(registry: LocalRegistry, tmp_path: Path) -> Iterator[FlaskClient]:
    """A client of a catalog with a model, one of more organs, and one that shares no shape with either."""
    more = [weight_tensor(f"blk.{block}.attn_k.weight", (16, 16)) for block in range(compare.NAMES_SHOWN + 5)]
    wide = [weight_tensor("blk.0.attn_q.weight", (32, 64)), weight_tensor("blk.0.ffn_up.weight", (64, 32))]
    for name, tensors in (
        ("plain", related_tensors()),
        ("more", [*related_tensors(correlation=0.9), *more]),
        ("wide", wide),
    ):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(file_bytes(block_metadata(name.capitalize()), tensors))
        ingest_file(registry, path)
    with create_app(registry).test_client() as client:
        yield client


def test_the_page_without_two_names_has_a_form_and_offers_related_models(family_client: FlaskClient) -> None:
    page = page_at(family_client, "/compare")
    (form,) = page.named("form")
    assert (form.attributes["action"], form.attributes["method"]) == ("/compare", "get")
    assert [one.attributes["name"] for one in page.named("input")] == ["first", "second"]
    offered = [one.attributes["value"] for one in page.named("option")]
    assert offered == ["local/stranger@1", "local/tuned@1", "local/base@1"]
    queries = [parse_qs(urlsplit(link).query) for link in page.links() if link.startswith("/compare?first=")]
    assert {"local/base@1", "local/tuned@1"} in [{*query["first"], *query["second"]} for query in queries]
    assert "Enter two models" in page_at(family_client, "/compare?first=local/base").text


def test_a_relation_without_a_measured_change_shows_what_its_likeness_means(
    family_client: FlaskClient, registry: LocalRegistry
) -> None:
    with registry.catalog.writing() as session:
        session.execute(update(Lineage).values(change=None, score=0.9))
    assert weight_change_text(None, 0.9) in page_at(family_client, "/compare").text


def test_the_comparison_has_a_sentence_and_the_change_by_type_and_block(
    family_client: FlaskClient,
) -> None:
    result = comparison_of(family_client, KIN)
    assert result.kinship == "close"
    page = page_at(family_client, KIN)
    assert result.sentence in page.text
    assert f"{result.likeness:.3f}: means over 7 of 7 matrices" in page.text
    for one in (*result.types, *result.blocks):
        if one.likeness is not None:
            assert weight_change_text(one.change) in page.text, one
    assert [one.type for one in result.types] == ["embed", "norm", "organ", "skeleton"]
    assert [(one.first_caution, one.second_caution) for one in result.types if one.type == "norm"] == [("most", "most")]
    assert family_client.get(KIN).text.count('title="uncertain"') == 2
    assert "≈ marks an uncertain θ" in page.text


def test_cells_of_the_grid_and_changed_organs_link_to_both_sides(family_client: FlaskClient) -> None:
    result = comparison_of(family_client, KIN)
    page = page_at(family_client, KIN)
    assert len(re.findall(r"weight: change (?:=|–|<?[\d.e-]+), θ", page.text)) == 10
    assert len(result.changed) == 7
    for side in ("first", "second"):
        addresses = [f"/organs/{getattr(one, f'{side}_digest')}" for one in result.changed]
        assert set(addresses) <= page.links()
        places = found_at(family_client, f"/api/v1{addresses[0]}")["places"]
        assert {place["model"] for place in places} == {getattr(result, side)}


def test_a_link_swaps_the_two_models(family_client: FlaskClient) -> None:
    (swap,) = re.findall(r'<a href="([^"]+)">Swap', family_client.get(KIN).text)
    asked = parse_qs(urlsplit(swap.replace("&amp;", "&")).query)
    assert asked == {"first": ["local/tuned@1"], "second": ["local/base@1"]}
    assert family_client.get(swap.replace("&amp;", "&")).status_code == 200


def test_a_model_compared_with_itself_is_the_same_and_no_change_is_listed(family_client: FlaskClient) -> None:
    page = page_at(family_client, "/compare?first=local/base&second=local/base@1")
    assert "the same model to the last byte" in page.text
    assert page.named("table") == []


def test_a_comparison_that_is_impossible_gets_a_sentence_and_no_grid(many: FlaskClient) -> None:
    page = page_at(many, "/compare?first=local/plain&second=local/wide")
    assert "cannot be compared" in page.text
    assert not [one for one in page.named("a") if "data-reading" in one.attributes]
    assert "Different shapes at the same place: 2" in page.text
    assert "64×64 and 32×64" in page.text


def test_long_lists_are_truncated_and_counted(many: FlaskClient) -> None:
    address = "/compare?first=local/plain&second=local/more"
    result = comparison_of(many, address)
    assert len(result.only_second) == compare.NAMES_SHOWN + 5
    text = page_at(many, address).text
    assert f"Only in the second model: {compare.NAMES_SHOWN + 5}" in text
    assert text.count(".attn_k.weight") - text.count("attn_k.weight: change") >= compare.NAMES_SHOWN
    assert "5 more are in the JSON" in text


@pytest.mark.parametrize("name", ["local/nothing", HOSTILE, "a/b/c", "x@0", "%00", " " * 400])
def test_an_unknown_name_stays_on_the_page_with_the_form(family_client: FlaskClient, name: str) -> None:
    names = {"first": "local/base", "second": f"x{name}"}
    page = page_at(family_client, "/compare", 404, **names)
    assert [one.attributes["value"] for one in page.named("input")] == ["local/base", f"x{name}".strip()]
    assert len([one for one in page.named("p") if one.attributes.get("role") == "alert"]) == 1
    assert [one.attributes.get("src") for one in page.named("script")] == ["/static/catalog.js"]
    assert family_client.get("/compare.csv", query_string=names).status_code == 404


def test_two_unknown_names_are_both_reported(family_client: FlaskClient) -> None:
    page = page_at(family_client, "/compare", 404, first="local/one", second="local/two")
    for name in ("local/one", "local/two"):
        assert f"no model is registered as {name}" in page.text
