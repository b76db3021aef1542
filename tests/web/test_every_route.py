"""Rules for every route: no content from outside is active, the policy is strict, and links work."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from organs.registry.entities.problem import MEDIA_TYPE, Problem
from organs.registry.reports.formats import FORMULA_STARTS
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.registry_templates import RegistryTemplates
from tests.web.conftest import HOSTILE, hostile_models
from tests.web.good_requests import PLAIN_ARGUMENTS
from tests.web.page_parser import parse_page

QUERIES = {
    "/organs": (f"q={HOSTILE}", "q=like:{digest}", "q=type:organ theta>=30 sort:-spectral&limit=2", "limit=<b>"),
    "/models": (f"q={HOSTILE}", "q=kind:model"),
    "/models/<namespace>/<name>": (
        "by=change",
        "by=alike",
        "by=size",
        "by=spectral",
        f"by={HOSTILE}",
        f"against={HOSTILE}",
    ),
    "/compare": ("first=local/hostile&second=local/plain", f"first={HOSTILE}&second={HOSTILE}"),
    "/chimeras": ("limit=1", f"after={HOSTILE}"),
    "/chimeras/<lock>": ("by=change", "by=spectral", f"by={HOSTILE}"),
    "/compose": (
        "base=local/hostile",
        "base=local/plain&cell=organ:0&graft=from:local/hostile",
        f"base=local/plain&graft={HOSTILE}&name={HOSTILE}&meta={HOSTILE}&cell=norm:0",
        "base=local/plain&add=graft&from=local/hostile",
        f"base={HOSTILE}&q={HOSTILE}",
    ),
    "/leaderboard": ("base=local/hostile", "on=code,prose", f"base={HOSTILE}&on={HOSTILE}&after={HOSTILE}"),
    "/api/v1/leaderboard": ("base=local/hostile&limit=1", f"base={HOSTILE}&on={HOSTILE}&after={HOSTILE}"),
    "/api/v1/fitting": ("base=local/hostile", f"base={HOSTILE}"),
    "/compose/fits": ("base=local/plain&donor=local/hostile", f"base=local/plain&donor={HOSTILE}"),
    "/lineage": ("model=local/plain", f"model={HOSTILE}"),
}
"""More ways to ask for a page, by its rule; its twins are asked the same."""


def arguments(client: FlaskClient) -> dict[str, str]:
    """A value for each name that rules have in angle brackets."""
    file = client.get("/api/v1/models/local/hostile").get_json()["files"][0]["name"]
    organs = client.get("/api/v1/models/local/hostile/organs?limit=1000").get_json()["items"]
    (chimera,) = client.get("/api/v1/chimeras").get_json()["items"]
    return {
        **PLAIN_ARGUMENTS,
        **dict.fromkeys(("namespace", "contributor", "user"), "local"),
        **dict.fromkeys(("name", "short"), "hostile"),
        **dict.fromkeys(("file", "path"), file),
        **dict.fromkeys(("job", "submission"), "1"),
        "lock": chimera["lock_id"],
        "header": client.get(f"/chimeras/{chimera['lock_id']}/lock.json").get_json(force=True)["header"],
        "upload": "nobodySentAnythingHere",
        "digest": organs[-1]["digest"],
    }


def addresses(client: FlaskClient) -> list[str]:
    """At least one address for every rule."""
    known = arguments(client)
    found = []
    for rule in client.application.url_map.iter_rules():
        if "GET" not in (rule.methods or ()) or rule.endpoint == "static":
            continue
        missing = rule.arguments - known.keys()
        assert not missing, f"{rule.rule}: say in `arguments` what stands for {missing}"
        built = rule.build({name: known[name] for name in rule.arguments})
        assert built is not None
        path = built[1]
        page = re.sub(r"\.(json|csv)$", "", rule.rule)
        asked = [query.replace("{digest}", known["digest"]) for query in QUERIES.get(page, ())]
        found += [path, *(f"{path}?{query}" for query in asked)]
    return found


@pytest.fixture(scope="module")
def answers(
    templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[tuple[str, TestResponse]]]:
    """Each address of a catalog with hostile texts, and the answer."""
    with (
        templates.open_copy(hostile_models, tmp_path_factory.mktemp("hostile") / "home") as registry,
        create_app(registry, WebSettings(personal=True)).test_client() as client,
    ):
        answers = [(address, client.get(address)) for address in addresses(client)]
        yield answers
        for _, answer in answers:
            answer.close()


def test_every_address_of_a_hostile_catalog_is_answered(answers: list[tuple[str, TestResponse]]) -> None:
    broken = [(address, answer.status) for address, answer in answers if answer.status_code >= 500]
    assert broken == []
    assert sum(answer.status_code == 200 for _, answer in answers) > 20


def test_static_files_are_compressed_for_clients_that_accept_it(family_client: FlaskClient) -> None:
    plain = family_client.get("/static/style.css", headers={"Accept-Encoding": "gzip;q=0"})
    packed = family_client.get("/static/style.css", headers={"Accept-Encoding": "br, gzip"})
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.data) == plain.data
    assert len(packed.data) < len(plain.data) / 3
    assert plain.headers["Vary"] == packed.headers["Vary"] == "Accept-Encoding"
    assert packed.content_type == "text/css; charset=utf-8"
    tags = [one.headers["ETag"] for one in (plain, packed)]
    assert tags[0] != tags[1]
    headers = {"Accept-Encoding": "gzip", "If-None-Match": tags[1]}
    assert family_client.get("/static/style.css", headers=headers).status_code == 304
    assert family_client.get("/static/../app.py").status_code == 404


def test_no_page_runs_or_loads_anything_from_outside(answers: list[tuple[str, TestResponse]]) -> None:
    answered = [(address, answer) for address, answer in answers if answer.mimetype == "text/html"]
    assert not any(parse_page(answer.text).named("script") for _, answer in answered if answer.status_code == 302)
    pages = [(address, answer.text) for address, answer in answered if answer.status_code != 302]
    assert len(pages) > 10
    for address, html in pages:
        page = parse_page(html)
        for element in page.elements:
            assert not [name for name in element.attributes if name.startswith("on")], (address, element)
            assert "style" not in element.attributes, (address, element)
        scripts = [one.attributes.get("src") for one in page.named("script")]
        assert scripts[:2] == ["/static/catalog.js", "/static/suggest.js"], address
        assert scripts[2:] in ([], ["/static/compose.js"], ["/static/upload.js"]), address
        assert not page.named("iframe") + page.named("object") + page.named("embed") + page.named("base"), address
        outside = [link for link in page.links() if not link.startswith(("/", "#", "?")) or link.startswith("//")]
        assert [link for link in outside if not re.match(r"https?://[^\"'<>\s]+\Z", link)] == [], address
        assert not any(link.lower().startswith("javascript:") for link in page.links()), address


def test_no_cell_of_any_sheet_is_a_formula(answers: list[tuple[str, TestResponse]]) -> None:
    sheets = [(address, answer.text) for address, answer in answers if answer.mimetype == "text/csv"]
    assert len(sheets) >= 2
    for address, sheet in sheets:
        for row in csv.reader(io.StringIO(sheet, newline="")):
            for cell in row:
                assert not cell.startswith(FORMULA_STARTS) or _is_number(cell), (address, cell)


def test_every_drawing_is_xml_without_active_content(answers: list[tuple[str, TestResponse]]) -> None:
    for address, answer in answers:
        if answer.mimetype != "image/svg+xml":
            continue
        for element in ElementTree.fromstring(answer.data).iter():
            assert not str(element.tag).endswith("script"), address
            assert not [name for name in element.attrib if name.startswith("on")], address


def test_every_answer_has_the_strict_policy(answers: list[tuple[str, TestResponse]]) -> None:
    for address, answer in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'"), address
        assert "unsafe" not in policy, address
        assert answer.headers["X-Content-Type-Options"] == "nosniff", address
        assert answer.headers["X-Frame-Options"] == "DENY", address
        if answer.status_code >= 400:
            assert answer.headers["Cache-Control"] == "no-store", address


def no_json(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")


def test_every_answer_in_json_is_strict_json(answers: list[tuple[str, TestResponse]]) -> None:
    for address, answer in answers:
        if answer.mimetype == "application/json":
            assert isinstance(json.loads(answer.text, parse_constant=no_json), dict | list), address


def test_every_page_has_a_title_a_language_one_heading_and_labels(answers: list[tuple[str, TestResponse]]) -> None:
    for address, answer in answers:
        if answer.mimetype != "text/html" or answer.status_code == 302:
            continue
        page = parse_page(answer.text)
        assert page.named("html")[0].attributes["lang"] == "en", address
        assert answer.text.partition("</head>")[0].count("<title>") == 1, address
        assert len(page.named("h1")) == len(page.named("main")) == 1, address
        labelled = {one.attributes.get("for") for one in page.named("label")}
        for field in page.named("input") + page.named("select"):
            assert field.attributes.get("type") == "hidden" or field.attributes.get("id") in labelled, address
        for image in page.named("img"):
            assert image.attributes.get("alt"), address
            assert {"width", "height"} <= image.attributes.keys(), (address, "it would shift the page")


@pytest.mark.parametrize(
    ("address", "resource"),
    [
        ("/organs.json?q=type:norm&limit=2&by=theta", "/api/v1/organs?q=type%3Anorm&limit=2"),
        ("/models.json?ranked=1&unknown=1", "/api/v1/models?ranked=1"),
        ("/organs/0123456789.json?by=theta", "/api/v1/organs/0123456789"),
        ("/index.json", "/api/v1"),
    ],
)
def test_the_json_of_a_page_is_a_resource_of_the_api(family_client: FlaskClient, address: str, resource: str) -> None:
    answer = family_client.get(address)
    assert (answer.status_code, answer.headers["Location"]) == (302, resource)


def test_every_link_of_every_page_works_and_pages_link_to_their_other_forms(family_client: FlaskClient) -> None:
    composing = (
        "/compose?base=local/base&graft=from:local/tuned&accept=unrelated-lineage",
        "/compose/fits?base=local/base&donor=local/tuned",
    )
    lists = ("/organs", "/models", "/models/local/tuned", "/compare?first=local/base&second=local/tuned", "/lineage")
    seen: set[str] = set()
    twins = dict.fromkeys((*composing, *lists), 0)
    kinds = {"csv": "text/csv", "json": "application/json"}
    waiting = ["/", *twins]
    while waiting and len(seen) < 400:
        address = waiting.pop(0)
        with family_client.get(address, follow_redirects=True) as answer:
            assert answer.status_code == 200, address
            form = address.partition("?")[0].rpartition(".")[2]
            assert form not in kinds or answer.mimetype == kinds[form], address
            if answer.mimetype != "text/html":
                continue
            links = parse_page(answer.text).links()
            if address in twins:
                twins[address] = sum(bool(re.match(r"[^?]+\.(json|csv)(\?|$)", link)) for link in links)
            for link in sorted(links):
                plain = link.partition("#")[0]
                if plain.startswith("/") and plain not in seen:
                    seen.add(plain)
                    waiting.append(plain)
    assert len(seen) > 60
    assert all(twins[one] >= 1 + (one in lists) for one in twins), twins


@pytest.mark.parametrize(
    "address", ["/models/local/nothing", "/models/.../x", "/organs/zz", "/organs/0123456789", "/no"]
)
def test_an_unknown_address_is_404_in_the_requested_format(family_client: FlaskClient, address: str) -> None:
    page = family_client.get(address)
    assert (page.status_code, page.mimetype) == (404, "text/html")
    twin = family_client.get(f"{address}.json", follow_redirects=True)
    # The API says which parameter is wrong where a text cannot be a digest or a name.
    assert twin.status_code == (400 if address in ("/organs/zz", "/models/.../x") else 404)
    assert set(Problem.__struct_fields__) <= set(twin.get_json())
    assert twin.mimetype == MEDIA_TYPE
    assert page.headers["Cache-Control"] == twin.headers["Cache-Control"] == "no-store"


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"-?[0-9.e+-]+", cell) is not None
