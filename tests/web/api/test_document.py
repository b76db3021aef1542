"""The OpenAPI document is valid, describes every route and nothing else, and says what is answered."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from markupsafe import escape
from openapi_spec_validator import validate

from organs.registry.endpoints.declaration import Endpoint
from organs.registry.endpoints.table import API
from organs.registry.local import LocalRegistry
from organs.web.api.document import example_answers
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.gguf_files import file_bytes, raw_file, text, unsigned
from tests.small_models import block_metadata, block_tensors, ingest_file, token_array, weight_tensor
from tests.web.api.document_checks import assert_as_described, faults
from tests.web.api.zoo import send_example

DOCS = Path(__file__).resolve().parents[3] / "docs" / "api.md"
CURL = re.compile(r"curl (?P<options>.*?)'?localhost:8935(?P<address>[^'\s]+)'?", re.DOTALL)


@pytest.mark.long
def test_the_document_is_valid_openapi(document: dict[str, Any]) -> None:
    validate(document)
    assert document["openapi"].startswith("3.1")


def test_the_document_describes_exactly_the_routes_of_the_api(zoo: FlaskClient, document: dict[str, Any]) -> None:
    rules = {rule.rule: rule.methods or set() for rule in zoo.application.url_map.iter_rules()}
    served = {re.sub(r"<(\w+)>", r"{\1}", rule) for rule in rules if rule.startswith("/api/v1")}
    described = {path for path in document["paths"] if path.startswith("/api/v1")}
    assert described == served
    assert len(described) >= 14


def test_every_described_download_is_served(zoo: FlaskClient, document: dict[str, Any]) -> None:
    downloads = {path for path in document["paths"] if not path.startswith("/api/v1")}
    assert len(downloads) == 5
    digest = zoo.get("/api/v1/organs?limit=1").get_json()["items"][0]["digest"]
    name = "Zoo-A-2M-v1.0-Q8_0"
    for path in downloads:
        address = path.format(digest=digest, namespace="local", name=name, file=f"{name}.gguf")
        described = document["paths"][path]["get"]["responses"]
        for headers, status in (({}, "200"), ({"Range": "bytes=0-9"}, "206"), ({"If-Match": '"x"'}, "412")):
            with zoo.get(address, headers=headers) as answer:
                assert str(answer.status_code) == status, address
                assert described[status].get("headers", {}).keys() <= {key for key, _ in answer.headers}, address


@pytest.mark.folder
@pytest.mark.parametrize("operation", API.values(), ids=lambda operation: operation.name)
def test_the_answer_to_every_example_is_as_described(
    request: pytest.FixtureRequest, operation: Endpoint[..., Any]
) -> None:
    is_of_jobs = operation.group in ("Jobs", "Evolutions")  # which a server that only reads does not show
    name = "writing_zoo" if operation.scope or is_of_jobs else "zoo"
    answer = send_example(
        request.getfixturevalue("administered_zoo" if operation.scope == "admin" else name), operation
    )
    assert answer.status_code == operation.status, answer.text[:300]
    value = assert_as_described(operation.name, answer)
    if operation.is_list:
        if operation.name == "model_families":
            return  # the zoo is one family
        assert value["next"] is not None, "the example shows a next page"
        assert 'rel="next"' in answer.headers["Link"]


@pytest.mark.parametrize("operation", API.values(), ids=lambda operation: operation.name)
def test_the_example_answer_in_the_document_is_as_described(operation: Endpoint[..., Any]) -> None:
    if operation.answer_name == "Document":
        assert operation.name not in example_answers()
    else:
        assert faults(operation.answer_name, example_answers()[operation.name]) == []


def test_a_planted_mistake_in_an_answer_is_found(zoo: FlaskClient) -> None:
    value = zoo.get("/api/v1/organs?limit=2").get_json()
    assert faults("OrganPage", value) == []
    value["items"][1]["theta"] = "45"
    assert faults("OrganPage", value) != []
    assert faults("OrganPage", {**value, "more": 1}) != []


@pytest.mark.long
def test_odd_models_are_as_described(registry: LocalRegistry, tmp_path: Path) -> None:
    adapter = [text("general.type", "adapter"), text("adapter.type", "lora"), text("general.architecture", "llama")]
    files = {
        "empty-metadata": file_bytes([], block_tensors(1)),
        "adapter": file_bytes(adapter, [weight_tensor("blk.0.attn_q.weight.lora_a", (8, 8))]),
        "vocabulary": file_bytes([*block_metadata(), token_array([b"a", b"b"])], []),
        "nothing": raw_file(),
        "unmeasured": file_bytes(
            [*block_metadata()], [weight_tensor("output.weight", (2,)), weight_tensor("x", (1,), dtype="F64")]
        ),
        "odd-version": file_bytes([*block_metadata("x" * 5000), unsigned("llama.context_length", 1)], block_tensors(1)),
    }
    for name, data in files.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(data)
        ingest_file(registry, path)
    with create_app(registry).test_client() as client:
        assert client.get("/api/v1").get_json()["figures"]["models"] == len(files)
        _assert_all_as_described(client)


def _assert_all_as_described(client: FlaskClient) -> None:
    """Ask for everything that lists lead to."""

    def ask(operation: str, /, **more: str) -> Any:
        path = API[operation].path
        parts = {key: value for key, value in more.items() if f"{{{key}}}" in path}
        query = {key: value for key, value in more.items() if key not in parts}
        answer = client.get(path.format(**parts), query_string=query)
        assert answer.status_code == 200, (operation, more, answer.text[:300])
        return assert_as_described(operation, answer)

    for name in ("root", "facets", "report"):
        ask(name)
    for section in ask("report")["sections"]:
        assert list(ask("report_section", section=section)["sections"]) == [section]
    models = ask("models", limit="1000")["items"]
    digests = []
    for model in models:
        namespace, _, name = model["name"].partition("/")
        for operation in ("model", "model_lineage", "report_on_model", "model_organs"):
            found = ask(operation, namespace=namespace, name=name)
        digests += [organ["digest"] for organ in found["items"]]
        ask("compare", first=model["name"], second=models[0]["name"])
    for digest in dict.fromkeys(digests):
        ask("organ", digest=digest)
    ask("organs", counts="1", limit="1000")
    ask("models", ranked="1")


def test_every_command_in_the_documentation_succeeds(zoo: FlaskClient) -> None:
    commands = [command for command in DOCS.read_text(encoding="utf-8").split("curl") if "localhost" in command]
    found = [match for command in commands if (match := CURL.match("curl" + command))]
    assert len(found) == len(commands) >= 5
    for match in found:
        sent = re.search(r"-d '([^']*)'", match["options"])
        method, data = ("GET", None) if sent is None else ("POST", sent[1])
        with zoo.open(match["address"], method=method, data=data, content_type="application/json") as answer:
            assert answer.status_code == 200, match[0]


def test_every_operation_says_what_it_needs_and_how_it_is_refused(document: dict[str, Any]) -> None:
    for path, item in document["paths"].items():
        for method, described in item.items():
            assert "429" in described["responses"], (method, path)
    for name in ("json-429", "words-429"):
        assert "Retry-After" in document["components"]["responses"][name]["headers"]
    for operation in API.values():
        if operation.writes:
            described = document["paths"][operation.path][operation.method]
            assert {"401", "403"} <= described["responses"].keys(), operation.name
            assert described["security"] == [{"token": [operation.scope]}], operation.name


def test_the_reference_shows_every_operation(zoo: FlaskClient, document: dict[str, Any]) -> None:
    page = zoo.get("/api")
    assert (page.status_code, page.mimetype) == (200, "text/html")
    for path, item in document["paths"].items():
        for one in item.values():
            assert f'id="{one["operationId"]}"' in page.text, path
            assert f">{escape(one['summary'])}</h3>" in page.text
    for shown in ('<a href="/api" aria-current="page">API</a>', "Content-Range: bytes 0-4/5", "--data-binary @FILE"):
        assert shown in page.text
    assert "https://" not in page.text
    assert zoo.get("/api.json").get_json() == document


def test_the_commands_of_the_reference_have_the_address_of_the_server(registry: LocalRegistry) -> None:
    settings = WebSettings(hosts=frozenset({"registry.example", "other.example"}), proxies=1)
    with create_app(registry, settings).test_client() as client:
        for host, scheme in (("registry.example", "https"), ("other.example:8443", "https"), ("other.example", "http")):
            headers = {"Host": host, "X-Forwarded-Proto": scheme, "X-Forwarded-For": "192.0.2.7"}
            page = client.get("/api", headers=headers)
            commands = [unescape(line) for line in re.findall(r">(curl [^<]+)<", page.text)]
            assert len(commands) > 40
            for line in commands:
                assert f"{scheme}://{host}/api/v1" in line, line
