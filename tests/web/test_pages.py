"""The pages say what the registry has, in HTML and as JSON, and nothing from outside acts in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from ingest.service import ingest_model
from ingest.sources import ModelSource
from registry.gguf import KeyValue, ValueType
from registry.names import ModelName
from registry.registry import Registry
from tests.builders import file_bytes
from tests.trips import block_metadata, block_tensors
from web.app import create_app
from web.shown import THETA_STEPS, theta_class

HOSTILE = '"><script>alert(1)</script>{{ 7*7 }}'
STYLE = Path(__file__).parents[2] / "web" / "static" / "style.css"


@pytest.fixture
def client(registry: Registry, tmp_path: Path) -> Iterator[FlaskClient]:
    """A client of a catalog with one model whose metadata is hostile."""
    path = tmp_path / "little.gguf"
    hostile = [
        KeyValue("general.name", ValueType.STRING, HOSTILE),
        KeyValue("general.description", ValueType.STRING, HOSTILE),
        KeyValue("tokenizer.chat_template", ValueType.STRING, "{% for _ in range(10**9) %}{% endfor %}" + HOSTILE),
    ]
    metadata = [entry for entry in block_metadata(blocks=2) if entry.key not in {one.key for one in hostile}]
    path.write_bytes(file_bytes([*metadata, *hostile], block_tensors(2, 64)))
    ingest_model(registry, ModelSource((path,), ModelName("local", "little")))
    with create_app(registry).test_client() as client:
        yield client


def digest_of_first_organ(client: FlaskClient) -> str:
    return str(client.get("/models/local/little.json").get_json()["placements"][0]["digest"])


def addresses(client: FlaskClient) -> list[str]:
    """Every page that there is."""
    return ["/", "/models/local/little@1", "/models/local/little", f"/organs/{digest_of_first_organ(client)}"]


def test_every_page_answers_in_html_and_has_a_twin_in_json(client: FlaskClient) -> None:
    for address in addresses(client):
        page = client.get(address)
        assert (page.status_code, page.mimetype) == (200, "text/html"), address
        twin = re.search(r'<footer><a href="([^"]+)"', page.text)
        assert twin is not None
        answer = client.get(twin[1])
        assert (answer.status_code, answer.mimetype) == (200, "application/json"), twin[1]


def test_every_link_of_every_page_leads_somewhere(client: FlaskClient) -> None:
    for address in addresses(client):
        for target in set(re.findall(r'(?:href|src)="(/[^"]*)"', client.get(address).text)):
            with client.get(target) as answer:
                assert answer.status_code == 200, (address, target)


def test_home_counts_and_lists_the_models(client: FlaskClient) -> None:
    values = client.get("/index.json").get_json()
    assert values["models"] == 1
    assert [model["name"] for model in values["ranked"] + values["others"]] == ["local/little@1"]
    assert "local/little@1" in client.get("/").text


def test_an_empty_registry_says_the_one_command_to_run(registry: Registry) -> None:
    with create_app(registry).test_client() as client:
        assert "organ ingest FILE.gguf" in client.get("/").text


def test_the_grid_has_a_row_a_block_and_a_cell_a_slot(client: FlaskClient) -> None:
    page = client.get("/models/local/little").text
    grid = page[page.index('<table class="grid">') : page.index("</table>")]
    assert re.findall(r'<th scope="row">([^<]+)</th>', grid) == ["0", "1"]
    slots = len(re.findall(r'<th scope="col"><span>', grid))
    assert slots > 1
    assert len(re.findall(r"<td", grid)) == 2 * slots


def test_line_104_hostile_metadata_is_text_on_every_page(client: FlaskClient) -> None:
    for address in addresses(client):
        page = client.get(address).text
        assert "<script" not in page, address
    assert "&lt;script&gt;alert(1)" in client.get("/models/local/little").text


def test_line_105_a_chat_template_is_shown_and_never_rendered(client: FlaskClient) -> None:
    page = client.get("/models/local/little").text
    assert "{% for _ in range(10**9) %}" in page
    assert "{{ 7*7 }}" in page


@pytest.mark.parametrize(
    "address", ["/models/local/nothing", "/models/.../x", "/organs/zz", "/organs/0123456789", "/no"]
)
def test_what_is_not_there_is_404_in_the_form_that_was_asked_for(client: FlaskClient, address: str) -> None:
    page = client.get(address)
    assert (page.status_code, page.mimetype) == (404, "text/html")
    twin = client.get(f"{address}.json")
    assert twin.status_code == 404
    assert twin.get_json()["ok"] is False
    assert set(twin.get_json()) == {"ok", "error", "errors", "status"}
    assert page.headers["Cache-Control"] == twin.headers["Cache-Control"] == "no-store"


def test_every_answer_has_the_strict_policy(client: FlaskClient) -> None:
    for address in [*addresses(client), "/healthz", "/no", "/index.json"]:
        headers = client.get(address).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'self'"), address
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_no_page_needs_a_script_or_an_inline_style_or_another_host(client: FlaskClient) -> None:
    for address in addresses(client):
        page = client.get(address).text
        assert not re.search(r"<script|\sstyle=|\son\w+=|https?://", page), address


def test_health_answers_while_the_database_does(client: FlaskClient) -> None:
    assert client.get("/healthz").get_json() == {"ok": True}


def test_theta_has_a_class_of_the_stylesheet_from_end_to_end() -> None:
    known = set(re.findall(r"^\.(t\d+|tn) ", STYLE.read_text(), re.MULTILINE))
    thetas = [None, -1.0, 0.0, 45.0, 89.99, 90.0, 1e9]
    assert {theta_class(theta) for theta in thetas} <= known
    assert known == {"tn", *(f"t{step}" for step in range(THETA_STEPS))}
    assert [theta_class(theta) for theta in (0.0, 90.0, None)] == ["t0", f"t{THETA_STEPS - 1}", "tn"]


def test_text_on_every_colour_of_theta_reads_well() -> None:
    for background, ink in re.findall(r"^\.t\d+ \{ background: (#\w{6}); color: (#\w{6}); \}", STYLE.read_text(), re.M):
        lighter, darker = sorted((luminance(background), luminance(ink)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, background


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
