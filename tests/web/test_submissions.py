"""Submissions over the API: whose they are, what they answer, and what others see of them: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from organs.ingest.contributions.findings import NONFINITE
from organs.registry.local import LocalRegistry
from organs.registry.upload_limits import SUBMISSION_MAX_BYTES
from organs.web.app import create_app
from tests.small_models import small_model
from tests.submissions import process_and_read, whole_file
from tests.test_nonfinite_weights import odd_model
from tests.web.accounts import log_in, new_token, program, send_form
from tests.web.page_parser import parse_page

MODEL = small_model("Tiny")


@pytest.fixture
def client(registry: LocalRegistry) -> Iterator[FlaskClient]:
    with create_app(registry).test_client() as client:
        yield client


@pytest.fixture
def ann(registry: LocalRegistry, client: FlaskClient) -> FlaskClient:
    """A client that sends a token of ann's."""
    return program(client.application, new_token(registry, "ann"))


@pytest.fixture
def eve(registry: LocalRegistry, client: FlaskClient) -> FlaskClient:
    """A client that sends a token of eve's."""
    return program(client.application, new_token(registry, "eve"))


@pytest.fixture
def browser(registry: LocalRegistry, client: FlaskClient) -> FlaskClient:
    """A browser in which ann is logged in."""
    return log_in(client.application, new_token(registry, "ann"))


def put(who: FlaskClient, body: Any, name: str = "ann/tiny") -> TestResponse:
    return who.put(f"/api/v1/models/{name}", json=body)


def get(who: FlaskClient, address: str) -> TestResponse:
    return who.get(f"/api/v1{address}")


def inspected(registry: LocalRegistry, who: FlaskClient, data: bytes) -> str:
    """The address of a submission of ann's that waits for her after its inspection."""
    body = {"files": [whole_file(registry, "ann", data)], "publish": False}
    number = put(who, body).get_json()["id"]
    process_and_read(registry, number, publish=False)
    return f"/submissions/{number}"


def test_a_contributor_submits_reads_and_publishes_a_model(
    registry: LocalRegistry, client: FlaskClient, ann: FlaskClient
) -> None:
    body = {"files": [whole_file(registry, "ann", MODEL)], "metadata": {"license": "MIT"}, "publish": False}
    answer = put(ann, body, "ANN/tiny")
    made = answer.get_json()
    here = f"/submissions/{made['id']}"
    assert (answer.status_code, answer.headers["Location"]) == (202, f"/api/v1{here}")
    assert (made["namespace"], made["state"], made["progress"], made["proposed"]) == ("ann", "checking", 0.0, None)
    process_and_read(registry, made["id"], publish=False)
    looked = get(ann, here).get_json()
    assert (looked["state"], looked["proposed"]["license"], looked["model"]) == ("ready", "MIT", None)
    renamed = ann.post(f"/api/v1{here}/publish", json={"metadata": {"title": "T"}, "name": "small"})
    assert (renamed.status_code, renamed.get_json()["state"]) == (202, "publishing")
    assert ann.delete(f"/api/v1{here}").status_code == 409
    process_and_read(registry, made["id"])
    done = get(ann, here).get_json()
    assert (done["state"], done["model"], done["address"]) == ("published", "ann/small@1", "/models/ann/small@1")
    page = get(client, "/models/ann/small").get_json()
    assert (page["title"], page["license"]) == ("T", "MIT")


def test_a_submission_of_another_account_is_answered_like_an_unknown_submission(
    registry: LocalRegistry, ann: FlaskClient, eve: FlaskClient
) -> None:
    number = put(ann, {"files": [whole_file(registry, "ann", MODEL)]}).get_json()["id"]
    for method, action in (("GET", ""), ("DELETE", ""), ("POST", "/publish")):
        refused, absent = (
            eve.open(f"/api/v1/submissions/{one}{action}", method=method, json={} if action else None)
            for one in (number, 999)
        )
        assert (refused.status_code, absent.status_code) == (404, 404), method
        assert refused.get_json()["detail"].replace(str(number), "999") == absent.get_json()["detail"]
    for who, seen in ((ann, [number]), (eve, [])):
        assert [one["id"] for one in get(who, "/submissions").get_json()["items"]] == seen


def test_weights_that_are_not_finite_are_published_only_after_they_are_accepted(
    registry: LocalRegistry, ann: FlaskClient
) -> None:
    body = {"files": [whole_file(registry, "ann", odd_model())], "metadata": {"license": "MIT"}}
    number = put(ann, body).get_json()["id"]
    here = f"/submissions/{number}"
    process_and_read(registry, number)
    inspected = get(ann, here).get_json()
    assert (inspected["state"], inspected["model"]) == ("ready", None)
    (finding,) = (one for one in inspected["findings"] if one["code"] == NONFINITE)
    assert (finding["severity"], "blk.0.ffn_up.weight (3)" in finding["sentence"]) == ("warn", True)
    refused = ann.post(f"/api/v1{here}/publish", json={})
    assert (refused.status_code, f"accept {NONFINITE}" in refused.text) == (400, True)
    unknown = ann.post(f"/api/v1{here}/publish", json={"accept": ["no-license"]})
    assert (unknown.status_code, unknown.get_json()["errors"][0]["field"]) == (400, "accept")
    again = put(ann, body | {"accept": [NONFINITE]})  # as a push that is run again
    assert (again.get_json()["id"], again.get_json()["state"]) == (number, "publishing")
    process_and_read(registry, number)
    assert get(ann, here).get_json()["state"] == "published"


def test_the_form_that_publishes_asks_to_accept_the_finding(
    registry: LocalRegistry, ann: FlaskClient, browser: FlaskClient
) -> None:
    here = inspected(registry, ann, odd_model())
    assert f'name="accept" value="{NONFINITE}" required' in browser.get(here).text
    form = {"name": "tiny", "title": "Tiny", "license": "MIT"}
    assert send_form(browser, f"{here}/publish", here, **form).status_code == 400
    assert get(ann, here).get_json()["state"] == "ready"
    assert send_form(browser, f"{here}/publish", here, **form, accept=NONFINITE).status_code == 303
    assert get(ann, here).get_json()["state"] == "publishing"


def test_the_form_offers_the_license_of_the_header_and_refuses_an_unknown_one(
    registry: LocalRegistry, ann: FlaskClient, browser: FlaskClient
) -> None:
    here = inspected(registry, ann, MODEL.replace(b"apache-2.0", b"my own one"))
    page = parse_page(browser.get(here).text)
    (field,) = [one.attributes for one in page.elements if one.attributes.get("name") == "license"]
    assert (field["value"], field["list"]) == ("my own one", "licenses")
    offered = [one.attributes["value"] or "" for one in page.named("option")]
    assert {"apache-2.0", "llama3.2", "gpl-3.0", "other"} < set(offered)
    form = {"name": "tiny", "title": "Tiny"}
    wrong = send_form(browser, f"{here}/publish", here, **form, license="mit-ish")
    assert (wrong.status_code, "Unknown license" in wrong.text) == (400, True)
    assert send_form(browser, f"{here}/publish", here, **form, license="my own one").status_code == 303
    assert get(ann, here).get_json()["state"] == "publishing"


def test_files_without_a_submission_are_shown_and_can_be_removed(
    registry: LocalRegistry, ann: FlaskClient, browser: FlaskClient
) -> None:
    used, left = whole_file(registry, "ann", MODEL), whole_file(registry, "ann", b"forgotten")["upload"]
    assert put(ann, {"files": [used]}).status_code == 202
    assert [one["id"] for one in browser.get("/upload.json").get_json()["finished"]] == [left]
    assert browser.get("/upload").text.count("Remove</button>") == 1
    assert send_form(browser, f"/uploads/{left}/cancel", "/upload").status_code == 303
    assert browser.get("/upload.json").get_json()["finished"] == []
    assert not (registry.settings.uploads / left).exists()


def test_the_page_of_a_submission_states_its_next_version_and_links_to_its_files(
    registry: LocalRegistry, ann: FlaskClient, browser: FlaskClient
) -> None:
    for seed, publish in ((1, True), (2, False)):
        body = {"files": [whole_file(registry, "ann", small_model("Tiny", seed=seed))], "publish": publish}
        number = put(ann, body).get_json()["id"]
        process_and_read(registry, number, publish=publish)
        here = f"/submissions/{number}"
        assert ("This becomes version 2 of" in browser.get(here).text) is not publish
        assert "#finished" not in browser.get(here).text
    assert send_form(browser, f"{here}/withdraw", here).status_code == 303
    assert "/upload#finished" in browser.get(here).text
    assert 'id="finished"' in browser.get("/upload").text


def test_errors_are_reported_by_field_and_larger_bodies_than_of_a_submission_are_not_read(ann: FlaskClient) -> None:
    bad = put(ann, {"files": [{"name": "../x"}], "publish": 3})
    assert [one["field"] for one in bad.get_json()["errors"]] == ["files[0].name", "publish"]
    pieces = [[number, 1, "0" * 64] for number in range(60_000)]
    many = put(ann, {"files": [{"name": "a.gguf", "size_bytes": 60_000, "sha256": "0" * 64, "pieces": pieces}]})
    assert many.get_json()["errors"][0]["field"] == "files[0].pieces[0]", "none of them is here"
    large = " " * (SUBMISSION_MAX_BYTES + 1)
    refused = ann.put("/api/v1/models/ann/tiny", data=large, content_type="application/json")
    assert refused.status_code == 413
