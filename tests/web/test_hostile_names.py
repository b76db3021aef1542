"""Hostile names on every page: whatever a stranger can store is inert in each page, twin, sheet, drawing and list.

A registry is filled with texts that attack whoever shows them, wherever a text can be stored. Then every rule of the
URL map that answers GET is asked, and every list of the command line.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import add_contributor, create_token
from organs.registry.catalog.register.events import contributor_id, record_event
from organs.registry.catalog.register.model_changes import hide_model, remove_model
from organs.registry.catalog.register.submissions import add_submission, add_upload
from organs.registry.catalog.vocabulary import Action
from organs.registry.entities.problem import MEDIA_TYPE
from organs.registry.gguf import ValueType
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.reports.formats import FORMULA_STARTS
from organs.web.app import create_app
from organs.web.pages.model import SBOM_TYPE
from organs.web.settings import WebSettings
from tests.cli.in_process import OrganCommand
from tests.evolutions import add_evolution
from tests.fleets import put_run
from tests.gguf_files import array, file_bytes, text
from tests.registry_templates import RegistryTemplates
from tests.related_models import parent_entries
from tests.small_models import block_metadata, block_tensors, ingest_file, weight_tensor
from tests.web.accounts import log_in, new_token
from tests.web.conftest import hostile_models
from tests.web.good_requests import PLAIN_ARGUMENTS
from tests.web.page_parser import ParsedPage, parse_page

MARK = "zqx"
"""Stands in every hostile text, so that it is known where one is shown."""
ACTIVE = f"{MARK}\"'><script>alert(1)</script><svg onload=alert(1)><img src=x onerror=alert(1)>"
ADDRESS = f"javascript:alert('{MARK}')"
TERMINAL = f"{MARK}\x1b[31m\x1b]0;owned\x07\x9b2J\rover\u202egnp.exe\u2066\u200b\ufeff\u2028"
TEMPLATE = f"{MARK}{{{{ 7191*7 }}}}{{% for _ in range(10**9) %}}{{% endfor %}}${{7191*7}}<%= 7191*7 %>"
FRACTION = re.compile(r"[0-9]\.[0-9]+")
HEADERS = f"{MARK}\r\nSet-Cookie: owned=1\r\n\r\n<h1>"
FORMULAS = tuple(f'{start}HYPERLINK("http://{MARK}.example")' for start in ("=", "+", "-", "@", "\t=", "\r="))
LONG = MARK + "x" * 100_000
COCKTAIL = f"{ACTIVE}{ADDRESS}{TERMINAL}{TEMPLATE}{HEADERS}"
TEXTS = (COCKTAIL, ADDRESS, FORMULAS[0], LONG)
INVISIBLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Control characters and invisible characters, without the line feed."""
NUMBER = re.compile(r"-?[0-9.e+-]+")
UPLOAD = "hostileUpload000000000"

MODEL = "/models/<namespace>/<name>"
SHOWN = (
    *("/", "/models", "/models.csv", "/lineage", "/account.json", "/admin/events"),
    *("/admin/events.csv", "/admin/quarantine", "/jobs", "/jobs/<job>", "/upload", "/submissions/<submission>"),
    *(
        "/admin/contributors",
        "/admin/fleet/<run>",
        MODEL,
        f"{MODEL}.csv",
        f"{MODEL}/edit",
        f"{MODEL}/report",
        "/chimeras/<lock>",
    ),
    *("/evolutions", "/evolutions/<evolution>", "/evolutions/<evolution>/trials/<trial>"),
    "/evolutions/<evolution>/front.svg",
    *("/organs/<digest>", "/organs", "/api/v1/models", "/api/models", "/api/models/<user>/<name>"),
)
"""Pages that must show a hostile text: otherwise the registry of this test is not hostile enough."""


def put_hostile_texts(registry: LocalRegistry, folder: Path) -> None:
    """Models, accounts, submissions, events and jobs in which every text that a stranger can store is an attack."""
    hostile_models(registry, folder)
    names = (
        '"><script>alert(1)</script>',
        "=1+1",
        "@SUM(1)",
        "{{ 7191*7 }}",
        "javascript:alert(1)",
        "<svg onload=alert(1)>",
    )
    for number, said in enumerate(TEXTS):
        entries = [
            text(key, said)
            for key in (
                *("general.architecture", "general.name", "general.author", "general.description", "general.license"),
                *("general.url", "general.repo_url", "general.size_label", "general.version", "general.basename"),
                *("general.organization", "general.quantized_by", "tokenizer.chat_template", f"acme.{MARK}<script>"),
            )
        ]
        tags = array("general.tags", ValueType.STRING, [one.encode() for one in (COCKTAIL, ADDRESS, *FORMULAS)])
        tensors = [*block_tensors(1, seed=number), *(weight_tensor(f"{name}{MARK}", (64, 64)) for name in names)]
        path = folder / f"{number}.gguf"
        path.write_bytes(file_bytes([*entries, tags, *parent_entries(said[:500], ADDRESS, repo_url=ADDRESS)], tensors))
        ingest_file(registry, path, f"local/text-{number}")
    for seed, state in enumerate(("yanked", "removed")):
        path = folder / f"{state}.gguf"
        path.write_bytes(file_bytes([text("general.architecture", "llama")], block_tensors(1, seed=100 + seed)))
        ingest_file(registry, path, f"local/{state}")
    with registry.catalog.writing() as session:
        hide_model(session, model_by_name(session, parse_model_name("local/yanked")), "yanked", COCKTAIL, "local")
        remove_model(session, model_by_name(session, parse_model_name("local/removed")), COCKTAIL, "local")
        add_contributor(session, MARK)
        create_token(session, contributor_id(session, MARK), ["read"], ACTIVE[:60])
        owner = contributor_id(session, "local")
        said = {
            "title": COCKTAIL[:200],
            "description": COCKTAIL,
            "license": ACTIVE[:90],
            "base": ADDRESS[:90],
            "tags": [ACTIVE[:60]],
        }
        sizes = {
            "architecture": ACTIVE,
            "parameters": 24,
            "tensors": 1,
            "size_bytes": 96,
            "kind": "model",
            "complete": True,
        }
        texts = {"given": said, "publish": False, "proposed": said | sizes}
        finding = {"severity": "warn", "code": ACTIVE, "sentence": COCKTAIL}
        model = model_by_name(session, parse_model_name("local/text-0"))
        for state in ("ready", "quarantined"):
            row = add_submission(
                session, owner, "local", "sent", manifest='{"files":[]}', description=json.dumps(texts), size_bytes=96
            )
            row.state, row.findings = state, json.dumps([finding])
            row.model_id = model.id if state == "quarantined" else None
        add_upload(session, owner, UPLOAD, kind="file", size_bytes=5, digest=None, name=COCKTAIL[:255], pieces=())
        record_event(session, "local", Action.EDIT, ACTIVE, COCKTAIL)
    put_run(registry, COCKTAIL, ACTIVE[:90])
    hostile = (ACTIVE[:80], FORMULAS[0])
    for seed, name in enumerate(("plain", "other")):
        path = folder / f"{name}.gguf"
        path.write_bytes(file_bytes(block_metadata(), block_tensors(2, seed=200 + seed)))
        ingest_file(registry, path, f"local/{name}")
    add_evolution(registry, "plain", ["other"], names=hostile, note=COCKTAIL, accept=["unrelated-lineage"])


@pytest.fixture
def registry_of_texts(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, put_hostile_texts)
    return registry


@pytest.fixture
def client(registry_of_texts: LocalRegistry) -> Iterator[FlaskClient]:
    """A client that sees everything: it works at the server's own machine."""
    with create_app(registry_of_texts, WebSettings(personal=True)).test_client() as client:
        yield client


def known_values(client: FlaskClient, name: str) -> dict[str, str]:
    """A value for each name that the rules have in angle brackets, for the model of that name."""
    model = client.get(f"/api/v1/models/local/{name}").get_json()
    organs = client.get(f"/api/v1/models/local/{name}/organs?limit=1000").get_json()["items"]
    chimera = client.get("/chimeras.json", follow_redirects=True).get_json()["items"][0]["lock_id"]
    submission = client.get("/api/v1/submissions").get_json()["items"][0]["id"]
    return {
        **PLAIN_ARGUMENTS,
        **dict.fromkeys(("namespace", "user", "contributor"), "local"),
        **dict.fromkeys(("name", "short"), name),
        **dict.fromkeys(("file", "path"), model["files"][0]["name"]),
        "lock": chimera,
        "header": client.get(f"/chimeras/{chimera}/lock.json").get_json(force=True)["header"],
        "upload": UPLOAD,
        "digest": organs[-1]["digest"],
        "job": "1",
        "submission": str(submission),
    }


@pytest.fixture
def answers(client: FlaskClient, registry_of_texts: LocalRegistry) -> Iterator[list[tuple[str, str, TestResponse]]]:
    """The rule, the address and the answer of every page, for each of the hostile models where it is about one."""
    got = []
    admin = log_in(create_app(registry_of_texts), new_token(registry_of_texts, "root", "admin"))
    values = [known_values(client, f"text-{number}") for number in range(len(TEXTS))]
    for rule in client.application.url_map.iter_rules():
        if "GET" not in (rule.methods or ()) or rule.endpoint == "static":
            continue
        built = [rule.build({name: known[name] for name in rule.arguments}) for known in values]
        for address in dict.fromkeys(one[1] for one in built if one is not None):
            asker = admin if rule.rule.startswith("/admin") else client
            answer = asker.get(address, follow_redirects=rule.rule in ("/chimeras/<lock>", "/models/<short>"))
            got.append((rule.rule, address, answer))
    yield got
    for _, _, answer in got:
        answer.close()


def assert_inert(address: str, page: ParsedPage) -> None:
    """Nothing in the page runs, and nothing leads where it should not."""
    for element in page.elements:
        acting = [name for name in element.attributes if name.startswith("on") or name in ("style", "srcdoc")]
        assert acting == [], (address, element)
    scripts = {one.attributes.get("src") for one in page.named("script")}
    assert scripts <= {f"/static/{name}.js" for name in ("catalog", "suggest", "compose", "try", "upload")}, address
    assert page.named("iframe") + page.named("object") + page.named("embed") + page.named("base") == [], address
    for link in page.links():
        assert re.match(r"(?:/(?!/)|#|\?|https?://[^\"'<>\s]+\Z)", link) or link == "", (address, link)


def assert_inert_svg(address: str, said: str) -> None:
    """The drawing runs nothing."""
    for element in ElementTree.fromstring(said).iter():
        assert not str(element.tag).endswith(("script", "foreignObject")), address
        assert [name for name in element.attrib if name.startswith("on")] == [], address


def assert_inert_sheet(address: str, said: str) -> None:
    """No cell is a formula."""
    for row in csv.reader(io.StringIO(said, newline="")):
        for cell in row:
            assert not cell.startswith(FORMULA_STARTS) or NUMBER.fullmatch(cell), (address, cell[:100])


CHECKS: dict[str, Callable[[str, str], object]] = {
    "text/html": lambda address, said: assert_inert(address, parse_page(said)),
    "text/csv": assert_inert_sheet,
    "image/svg+xml": assert_inert_svg,
    **dict.fromkeys(("application/json", SBOM_TYPE, MEDIA_TYPE), lambda _address, said: json.loads(said)),
    **dict.fromkeys(("text/plain", "text/markdown", "application/yaml"), lambda _address, said: said),
}
"""By the type of an answer. A browser shows the last ones as text, because it may not sniff their type."""


def test_hostile_texts_are_inert_on_every_page(answers: list[tuple[str, str, TestResponse]]) -> None:
    shown = set()
    for rule, address, answer in answers:
        assert answer.status_code < 500, (address, answer.status)
        assert "owned" not in answer.headers.get("Set-Cookie", ""), address
        assert [name for name, value in answer.headers if INVISIBLE.search(value)] == [], address
        assert answer.headers["X-Content-Type-Options"] == "nosniff", address
        if answer.mimetype not in ("application/octet-stream", "image/png"):
            assert "50337" not in FRACTION.sub("", answer.text), (address, "a template in a text was run")
            CHECKS[answer.mimetype](address, answer.text)
            shown |= {rule} if MARK in answer.text or "alert(1)" in answer.text else set()
    missing = sorted(set(SHOWN) - shown)
    assert not missing, missing


@pytest.mark.parametrize("path", ["/models/local/removed", "/models/local/yanked", "/models/local/removed.json"])
def test_a_hostile_reason_is_inert_wherever_it_is_shown(path: str, client: FlaskClient) -> None:
    answer = client.get(path, follow_redirects=True)
    assert answer.status_code in (200, 410)
    assert MARK in answer.text
    if answer.mimetype == "text/html":
        assert_inert(path, parse_page(answer.text))


LISTS = (
    *(
        ["models"],
        ["search", "theta>=0"],
        ["show", "local/text-0"],
        ["show", "local/yanked"],
        ["show", "local/removed"],
    ),
    *(["compare", "local/text-0", "local/text-1"], ["report"], ["report", "local/text-0"], ["jobs"], ["verify"]),
    *(["compat", "local/text-0", "local/text-1"], ["contributor", "list"], ["token", "list"], ["sweep"]),
    *(["admin", "events"], ["admin", "submissions"], ["evolutions"], ["evolutions", "1"]),
)


def test_hostile_texts_are_inert_in_every_list_of_the_command_line(registry_of_texts: LocalRegistry) -> None:
    organ = OrganCommand(registry_of_texts.settings.home)
    shown = []
    for arguments in LISTS:
        for more in ([], ["--json"]) if arguments[0] in ("models", "search", "show") else ([],):
            ended = organ(*arguments, *more)
            assert ended.status in (0, 1, 3), (arguments, ended.err)
            assert INVISIBLE.search(ended.out + ended.err) is None, arguments
            assert "Traceback" not in ended.err, arguments
            shown += [arguments[0]] if MARK in ended.out + ended.err else []
    assert {"models", "search", "show", "admin", "token", "contributor", "evolutions"} <= set(shown)
