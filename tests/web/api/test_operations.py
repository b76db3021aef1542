"""What the API answers: paging, look-up, models, comparison, reports, and what goes with every answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import update

from registry.catalog.tables import Model, Placement
from registry.digest import digest_of
from registry.registry import Registry
from tests.trips import ingest_file, little_model
from tests.web.api.against import assert_refused
from web.app import create_app

MODEL = "/api/v1/models/local/Zoo-A-2M-v1.0-Q8_0"
STRANGER = "0" * 64


def test_pages_of_organs_meet_without_gap_or_overlap(zoo: FlaskClient) -> None:
    whole = zoo.get("/api/v1/organs?limit=1000&q=type:organ").get_json()["items"]
    assert _paged(zoo, "/api/v1/organs?limit=7&q=type:organ") == whole
    assert len(whole) > 100


def test_pages_of_a_models_organs_are_in_the_order_of_its_files(zoo: FlaskClient) -> None:
    whole = zoo.get("/models/local/Zoo-A-2M-v1.0-Q8_0.json").get_json()["placements"]
    assert _paged(zoo, f"{MODEL}/organs?limit=5") == whole
    assert len(whole) == 38


def test_pages_of_ranked_models_leave_out_adapters(zoo: FlaskClient) -> None:
    ranked = _paged(zoo, "/api/v1/models?limit=4&ranked=1")
    assert len(ranked) == 9
    thetas = [model["mean_theta"] for model in ranked]
    assert thetas == sorted(thetas, reverse=True)
    assert len(_paged(zoo, "/api/v1/models?limit=4")) == 10


def _paged(client: FlaskClient, address: str) -> list[Any]:
    """All items behind the links to the next page."""
    found: list[Any] = []
    following: str | None = address
    while following is not None:
        answer = client.get(following)
        values = answer.get_json()
        found += values["items"]
        link = answer.headers.get("Link")
        assert (link is None) == (values["next"] is None)
        following = None if link is None else link.removeprefix("<").removesuffix('>; rel="next"')
    return found


def test_a_place_in_one_list_is_none_in_another(zoo: FlaskClient, document: dict[str, Any]) -> None:
    after = zoo.get(f"{MODEL}/organs?limit=5").get_json()["next"]
    other = zoo.get(f"/api/v1/models/local/Zoo-B-2M-v1.0-Q8_0/organs?after={after}")
    assert "another query" in assert_refused(document, other, 400, "after")


def test_facets_come_beside_a_page_only_when_they_are_asked_for(zoo: FlaskClient) -> None:
    assert "facets" not in zoo.get("/api/v1/organs?q=type:norm").get_json()
    beside = zoo.get("/api/v1/organs?q=type:norm&counts=1").get_json()["facets"]
    assert beside == zoo.get("/api/v1/facets?q=type:norm").get_json()
    assert beside["total"] == 81


def test_an_organ_is_found_by_the_beginning_of_its_digest(zoo: FlaskClient) -> None:
    organ = zoo.get("/api/v1/organs/aadb682e").get_json()
    assert organ == zoo.get(f"/api/v1/organs/{organ['digest']}").get_json()
    assert {place["model"] for place in organ["places"]} == {
        "local/Zoo-A-2M-v1.0-F16@1",
        "local/Zoo-A-2M-v1.0-Q8_0@1",
    }


def test_lookup_tells_what_is_here_in_one_question(zoo: FlaskClient) -> None:
    organs = zoo.get("/api/v1/organs?limit=1000").get_json()["items"]
    here = list(dict.fromkeys(organ["digest"] for organ in organs))
    asked = [*here, "sha256:" + STRANGER, here[0]]
    found = zoo.post("/api/v1/organs/lookup", json={"digests": asked}).get_json()
    assert found["absent"] == [STRANGER]
    assert sorted({one["digest"] for one in found["items"]}) == sorted(here)
    thetas = {organ["digest"]: organ["theta"] for organ in organs}
    assert {one["digest"]: one["theta"] for one in found["items"]} == thetas


def test_lookup_takes_a_thousand_digests(zoo: FlaskClient) -> None:
    digests = [digest_of(str(number).encode()) for number in range(1000)]
    assert zoo.post("/api/v1/organs/lookup", json={"digests": digests}).get_json()["absent"] == digests


def test_line_59_what_is_not_visible_counts_as_absent(registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "little.gguf"
    path.write_bytes(little_model())
    ingest_file(registry, path)
    with create_app(registry).test_client() as client:
        organs = client.get("/api/v1/models/local/little/organs").get_json()["items"]
        digests = sorted({organ["digest"] for organ in organs})
        seen = client.post("/api/v1/organs/lookup", json={"digests": digests}).get_json()
        assert seen["absent"] == []
        assert len(seen["items"]) == len(digests)
        with registry.catalog.writing() as session:
            session.execute(update(Model).values(state="quarantined"))
            session.execute(update(Placement).values(visible=False))
        hidden = client.post("/api/v1/organs/lookup", json={"digests": digests}).get_json()
        never = client.post("/api/v1/organs/lookup", json={"digests": [STRANGER]}).get_json()
        assert hidden["absent"] == digests
        assert hidden["items"] == never["items"] == []
        for address in ("/api/v1/models/local/little", f"/api/v1/organs/{digests[0]}"):
            assert client.get(address).status_code == 404


def test_a_model_is_known_with_and_without_its_version(zoo: FlaskClient) -> None:
    assert zoo.get(MODEL).get_json() == zoo.get(f"{MODEL}@1").get_json()
    assert zoo.get(f"{MODEL}@2").status_code == 404
    page = zoo.get("/models/local/Zoo-A-2M-v1.0-Q8_0.json").get_json()
    model = zoo.get(MODEL).get_json()
    assert "placements" not in model
    assert model == {name: page[name] for name in model}


def test_the_twin_of_a_search_says_the_same(zoo: FlaskClient) -> None:
    page = zoo.get("/organs.json?q=type:organ&limit=3").get_json()
    answer = zoo.get("/api/v1/organs?q=type:organ&limit=3&counts=1").get_json()
    assert answer == {name: page[name] for name in answer}


def test_a_comparison_needs_two_models(zoo: FlaskClient, document: dict[str, Any]) -> None:
    pair = "first=local/Zoo-A-2M-v1.0-Q8_0&second=local/Zoo-A-2M-Prose-v1.0-Q8_0"
    assert zoo.get(f"/api/v1/compare?{pair}").get_json()["kinship"] == "close"
    assert_refused(document, zoo.get("/api/v1/compare?first=local/Zoo-A-2M-v1.0-Q8_0"), 400, "second")
    assert_refused(document, zoo.get("/api/v1/compare?first=a b&second=x/y"), 400, "first")
    assert_refused(document, zoo.get(f"/api/v1/compare?{pair}x"), 404, None)


def test_a_section_of_the_report_is_the_report_with_that_section_alone(zoo: FlaskClient) -> None:
    whole = zoo.get("/api/v1/reports?limit=3").get_json()
    for key, section in whole["sections"].items():
        assert zoo.get(f"/api/v1/reports/{key}?limit=3").get_json()["sections"] == {key: section}
    assert len(whole["sections"]["ranking"]["items"]) == 3
    assert zoo.get("/api/v1/reports/nothing").status_code == 404


def test_a_report_is_made_once_until_the_catalog_changes(registry: Registry, tmp_path: Path) -> None:
    with create_app(registry).test_client() as client:
        before = client.get("/api/v1/reports").get_json()
        assert before == client.get("/api/v1/reports").get_json()
        path = tmp_path / "little.gguf"
        path.write_bytes(little_model())
        ingest_file(registry, path)
        after = client.get("/api/v1/reports").get_json()
        assert after["sections"]["figures"]["figures"]["models_count"] == 1
        assert before["sections"]["figures"]["figures"]["models_count"] == 0


@pytest.mark.parametrize("address", ["", "/organs", "/facets", "/models", "/reports", "/openapi.json"])
def test_what_has_not_changed_is_not_sent_again(zoo: FlaskClient, address: str) -> None:
    first = zoo.get(f"/api/v1{address}")
    tag = first.headers["ETag"]
    assert not tag.startswith("W/")
    again = zoo.get(f"/api/v1{address}", headers={"If-None-Match": tag})
    assert (again.status_code, again.data) == (304, b"")
    assert again.headers["ETag"] == tag
    assert zoo.get(f"/api/v1{address}", headers={"If-None-Match": '"other"'}).data == first.data


@pytest.mark.parametrize("address", ["", "/organs?limit=1", "/models", "/openapi.json"])
def test_head_is_get_without_the_body(zoo: FlaskClient, address: str) -> None:
    whole, head = zoo.get(f"/api/v1{address}"), zoo.head(f"/api/v1{address}")
    assert (head.status_code, head.data) == (200, b"")
    for name in ("ETag", "Content-Type", "Content-Length", "Link"):
        assert head.headers.get(name) == whole.headers.get(name)


def test_options_and_405_say_what_is_allowed(zoo: FlaskClient, document: dict[str, Any]) -> None:
    for address, allowed in (("/organs", {"GET", "HEAD", "OPTIONS"}), ("/organs/lookup", {"POST", "OPTIONS"})):
        options = zoo.options(f"/api/v1{address}")
        assert options.status_code == 200
        assert set(options.headers["Allow"].split(", ")) == allowed
        refused = zoo.delete(f"/api/v1{address}")
        assert_refused(document, refused, 405, None)
        assert set(refused.headers["Allow"].split(", ")) == allowed
    assert zoo.get("/api/v1/organs/lookup").status_code == 405


def test_pages_of_other_origins_cannot_read_answers(zoo: FlaskClient) -> None:
    origin = {"Origin": "https://elsewhere.example"}
    answer = zoo.get("/api/v1/models", headers=origin)
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    wanted = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    for one in (answer, zoo.options("/api/v1/organs/lookup", headers=wanted)):
        assert [name for name, _ in one.headers if name.lower().startswith("access-control")] == []


def test_line_106_the_api_heeds_no_cookies_and_sets_none(zoo: FlaskClient) -> None:
    zoo.set_cookie("session", "x")
    answer = zoo.get("/api/v1/organs?limit=1")
    assert answer.status_code == 200
    assert "Set-Cookie" not in answer.headers
    assert "Cookie" not in answer.headers.get("Vary", "")
