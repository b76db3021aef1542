"""Hostile requests: each is refused in one clear sentence, in the one shape, and never breaks the server."""

from __future__ import annotations

import json

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.endpoints.table import API
from tests.random_files import BESIDE_FIXTURES
from tests.web.api.document_checks import assert_refused, faults

DIGEST = "0" * 64
LOOKUP = "/api/v1/organs/lookup"
JSON = "application/json"

ADDRESSES: list[tuple[str, int, str | None]] = [
    ("/api/v1/organs?limit=0", 400, "limit"),
    ("/api/v1/organs?limit=%D9%A3", 400, "limit"),
    ("/api/v1/organs?limit=1e3", 400, "limit"),
    ("/api/v1/organs?limit=1&limit=2", 400, "limit"),
    ("/api/v1/organs?after=%00", 400, "after"),
    ("/api/v1/organs?after=WzEsMiwzXQ", 400, "after"),
    ("/api/v1/organs?after=" + "A" * 5000, 400, "after"),
    ("/api/v1/organs?counts=yes", 400, "counts"),
    ("/api/v1/models?ranked=true", 400, "ranked"),
    ("/api/v1/organs?lmit=3", 400, "lmit"),
    ("/api/v1/organs?q[]=a", 400, "q[]"),
    ("/api/v1/organs?" + "x" * 5000 + "=1", 400, "x" * 80),
    ("/api/v1/organs?%C3=1", 400, None),
    ("/api/v1/organs?q=type:nothing", 400, "q"),
    ("/api/v1/organs?q=theta%3E=nan", 400, "q"),
    ("/api/v1/organs?q=sort:id;DROP+TABLE+models", 400, "q"),
    ("/api/v1/organs?q=" + "a" * 5000, 400, "q"),
    ("/api/v1/organs?q=" + "a" * 10_000, 414, None),
    ("/api/v1/leaderboard?on=" + "a" * 3000, 400, "on"),
    ("/api/v1/openapi.json?x", 400, "x"),
    ("/api/v1/compare?first=&second=local/a", 400, "first"),
    ("/api/v1/models/lookup?digest=%20abcdabcd", 400, "digest"),
    (f"/api/v1/organs/{DIGEST}", 404, None),
    ("/api/v1/organs/..%2f..%2fetc%2fpasswd", 404, None),
    ("/api/v1/organs/%FF%FF%FF%FF%FF%FF%FF%FF", 400, "digest"),
    ("/api/v1/models/a%2Fb/c", 404, None),
    ("/api/v1/models/local/..%5cx", 400, "name"),
    ("/api/v1/models/local/a%00b", 400, "name"),
    ("/api/v1/models/local/%FF", 400, "name"),
    ("/api/v1//models", 404, None),
    ("/api/v1/nothing", 404, None),
    ("/api/v1/chimeras/%3Cscript%3E", 400, "lock"),
    (f"/api/v1/headers/{DIGEST}", 404, None),
    (f"/api/v1/headers/{DIGEST[:12]}", 400, "header"),
    ("/api/v1/compatibility?base=local/base", 400, "donor"),
    ("/api/v2", 404, None),
    ("/api/v1/compare", 400, "first"),
]

DEEP = "[" * 100_000 + "]" * 100_000
BODIES: list[tuple[bytes | str, str, int, str | None]] = [
    (b"", JSON, 400, None),
    (b"null", JSON, 400, None),
    (b"{}", JSON, 400, "digests"),
    (b'{"digests": "' + DIGEST.encode() + b'"}', JSON, 400, "digests"),
    (json.dumps({"digests": [DIGEST] * 1001}), JSON, 400, "digests"),
    (json.dumps({"digests": [DIGEST, 1]}), JSON, 400, "digests[1]"),
    (json.dumps({"digests": ["\uff10" * 64]}), JSON, 400, "digests[0]"),
    (json.dumps({"digests": ["\ud800"]}), JSON, 400, "digests[0]"),
    (json.dumps({"digests": [DIGEST], "more": 1}), JSON, 400, "more"),
    (json.dumps({"digests": [DIGEST], "a" * 1000: 1}), JSON, 400, f"'{'a' * 59}…'"),
    (f'{{"digests": ["{DIGEST}"], "digests": []}}', JSON, 400, "digests"),
    (b'{"digests": NaN}', JSON, 400, None),
    (b'{"digests": [1e999]}', JSON, 400, "digests[0]"),
    (DEEP, JSON, 400, None),
    ('{"digests":' * 9 + "1" + "}" * 9, JSON, 400, None),
    (b"x" * 300_000, JSON, 413, None),
    (b'{"digests": []}', "text/plain", 415, None),
    (b'{"digests": []}', "", 415, None),
]


@pytest.mark.parametrize(("address", "status", "field"), ADDRESSES, ids=lambda value: str(value)[:60])
def test_a_hostile_address_is_answered_in_one_sentence(
    zoo: FlaskClient, address: str, status: int, field: str | None
) -> None:
    sentence = assert_refused(zoo.get(address), status, field)
    assert "\0" not in sentence
    assert len(sentence) < 1000


@pytest.mark.parametrize(("body", "kind", "status", "field"), BODIES, ids=lambda value: str(value)[:40])
def test_a_hostile_body_is_answered_in_one_sentence(
    zoo: FlaskClient, body: bytes | str, kind: str, status: int, field: str | None
) -> None:
    answer = zoo.post(LOOKUP, data=body, content_type=kind)
    assert len(assert_refused(answer, status, field)) < 1000


def test_the_error_for_a_misspelt_parameter_suggests_the_right_name(zoo: FlaskClient) -> None:
    assert "did you mean limit?" in zoo.get("/api/v1/organs?limt=3").get_json()["detail"]


def test_a_cursor_cannot_inject_a_query(zoo: FlaskClient) -> None:
    after = zoo.get("/api/v1/organs?limit=1").get_json()["next"]
    for changed in (after + "'", after[:-2], after.swapcase(), "'; DROP TABLE models; --"):
        assert_refused(zoo.get("/api/v1/organs", query_string={"limit": "1", "after": changed}), 400, "after")


@BESIDE_FIXTURES
@given(name=st.sampled_from(list(API)), data=st.data())
def test_any_text_anywhere_is_answered_without_a_server_error(
    writing_zoo: FlaskClient, name: str, data: st.DataObject
) -> None:
    endpoint = API[name]
    anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    values = {one.name: data.draw(anything, label=one.name) for one in endpoint.parameters}
    path = endpoint.path
    for one in endpoint.parameters:
        if one.is_in_path:
            path = path.replace(f"{{{one.name}}}", values.pop(one.name).replace("?", "").replace("#", "") or "x")
    method = endpoint.method.upper()
    if endpoint.body is None:
        answer = writing_zoo.open(path, method=method, query_string=values)
    else:
        body = data.draw(st.dictionaries(anything, st.lists(anything, max_size=3), max_size=3))
        answer = writing_zoo.open(path, method=method, json=body)
    if answer.status_code == 308 or answer.mimetype != JSON:
        return  # a dot or a slash led out of the API
    assert answer.status_code < 500 or (endpoint.writes and answer.status_code == 503)  # the queue may be full
    if answer.status_code != endpoint.status:
        assert faults("Problem", answer.get_json()) == []
