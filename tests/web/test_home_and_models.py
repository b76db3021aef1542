"""The first page, the list of models and a model's page."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from flask.testing import FlaskClient

from organs.ingest.service import ingest_model
from organs.ingest.tools import find_tool_models, sources_of
from organs.registry.amounts import weight_change_text
from organs.registry.local import LocalRegistry
from organs.registry.reports.overview import registry_report
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.gguf_files import raw_file, raw_tensor, text
from tests.ingest.tool_layouts import machine, ollama_layer, ollama_manifest
from tests.related_models import ingest_bytes, model_file, related_tensors
from tests.small_models import block_tensors, ingest_file, small_model
from tests.web.accounts import log_in, new_token
from tests.web.conftest import LOOP_BOMB
from tests.web.page_parser import found_at, page_at, parse_page


def test_the_home_page_shows_families_with_quantisations_under_their_model(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    base = related_tensors()
    for name, tensors in {
        "Tiny-v1-F16": base,
        "Tiny-v1-Q8_0": base,
        "Tiny-Code": related_tensors(correlation=0.99),
        "Other": block_tensors(2, seed=9),
    }.items():
        ingest_bytes(registry, tmp_path, name, model_file(name, tensors))
    with create_app(registry).test_client() as client:
        html = client.get("/").text
    page = parse_page(html)
    figures = re.sub(r"<[^>]+>", " ", html[html.index('<dl class="figures">') : html.index("</dl>")]).split()
    assert figures[:4] == ["models", "4", "family", "1"]
    family = html[html.index('id="family-1"') : html.index('id="singles"')]
    assert re.sub(r"<[^>]+>", "", family[family.index(">") + 1 : family.index("</h3>")]) == "Tiny"
    rows = [re.findall(r'<a href="/models/([^"]+)"', row) for row in family.split("<tr>")[2:]]
    assert rows == [
        ["local/Tiny-Code@1", "local/Tiny-Code@1"],
        ["local/Tiny-v1-Q8_0@1", "local/Tiny-v1-Q8_0@1", "local/Tiny-v1-F16@1"],
    ]
    shared = re.search(r"([0-9.]+) (\w+) saved by storing equal parts once", family)
    assert shared is not None, "two models have the same organs"
    assert "local/Other@1" in html[html.index('id="singles"') :]
    assert "/lineage?model=local/Tiny-v1-F16@1" in page.links()
    assert "θ" not in page.text[: page.text.index("Search the parts")]
    with registry.catalog.reading() as session:
        (sentence,) = registry_report(session).sections["families"].before
    assert sentence.startswith("This registry has 1 family of two models or more")


def test_the_page_of_a_model_without_its_quantisation_leads_to_its_quantisations(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    for seed, name in enumerate(("tiny-F16", "tiny-Q8_0", "other-Q8_0")):
        ingest_bytes(registry, tmp_path, name, small_model(seed=seed))
    with create_app(registry).test_client() as client:
        answer = client.get("/models/local/other")
        assert (answer.status_code, answer.headers["Location"]) == (302, "/models/local/other-Q8_0@1")
        assert found_at(client, "/api/v1/models/local/other")["name"] == "local/other-Q8_0@1"
        answer = client.get("/models/local/tiny")
        query = parse_qs(urlsplit(answer.headers["Location"]).query)["q"]
        assert (answer.status_code, query) == (302, ["model:local/tiny-F16,local/tiny-Q8_0"])
        links = page_at(client, "/models/local/tiny").links()
        assert {"/models/local/tiny-F16@1", "/models/local/tiny-Q8_0@1"} <= links
        problem = client.get("/api/v1/models/local/tiny")
        assert (problem.status_code, problem.get_json()["code"]) == (404, "several-models")
        assert problem.get_json()["names"] == ["local/tiny-F16", "local/tiny-Q8_0"]


def test_a_page_lists_the_other_names_and_the_chimeras_of_a_base(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "base", model_file("base", related_tensors()))
    ingest_bytes(registry, tmp_path, "tuned", model_file("tuned", related_tensors(correlation=0.99)))
    assert ingest_bytes(registry, tmp_path, "again", model_file("base", related_tensors())) == "local/base@1"
    registry.compose("again").graft("tuned", type="organ").plan().accepting_all().register()
    counts = [(registry.model(name).chimeras, registry.model(name).grafts) for name in ("base", "tuned")]
    assert counts == [(1, 0), (1, 1)]
    with create_app(registry).test_client() as client:
        text = page_at(client, "/models/local/base").words
    assert re.search(r"also known as\s*local/again", text)
    assert re.search(r"chimeras with it\s*1", text)


def test_a_renamed_model_is_found_at_its_old_address_and_its_texts_are_inert(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    models = tmp_path / ".ollama" / "models"
    texts = {"model": small_model(), "template": LOOP_BOMB.encode(), "license": b"<script>x</script>"}
    layers = [ollama_layer(models, kind, data) for kind, data in texts.items()]
    old = ingest_file(registry, models / "blobs" / str(layers[0]["digest"]).replace(":", "-")).model
    ollama_manifest(models, "registry.ollama.ai/library/tiny/latest", *layers)
    (source,) = sources_of(find_tool_models(machine(tmp_path), ["ollama"]))
    assert ingest_model(registry, source).model == "library/tiny@1"
    plain = old.partition("@")[0]
    with create_app(registry).test_client() as client:
        for address in (f"/models/{old}", f"/models/{plain}"):
            answer = client.get(f"{address}?by=theta")
            assert (answer.status_code, answer.headers["Location"]) == (302, "/models/library/tiny@1?by=theta")
        page = client.get("/models/library/tiny").text
        assert "<script>x" not in page
        assert "&lt;script&gt;x&lt;/script&gt;" in page
        assert found_at(client, f"/api/v1/models/{old}")["name"] == "library/tiny@1"
        assert client.get(f"/{plain}/resolve/main/x").status_code == 404
        assert client.get(f"/api/models/{plain}").status_code == 200


EMPTY_PAGES = ("/", "/organs", "/models", "/compare", "/lineage", "/compose", "/chimeras", "/leaderboard")


def test_the_page_of_an_empty_registry_shows_the_command_to_run(registry: LocalRegistry) -> None:
    with create_app(registry, WebSettings(personal=True)).test_client() as client:
        for address in EMPTY_PAGES:
            answer = client.get(address)
            assert answer.status_code == 200
            assert "organ ingest FILE.gguf" in answer.text, address
        assert "organ scan" in client.get("/").text


def test_the_pages_of_an_empty_shared_registry_say_how_to_push_to_it(registry: LocalRegistry) -> None:
    shared = create_app(registry, WebSettings(personal=False))
    visitor, ada = shared.test_client(), log_in(shared, new_token(registry, "ada"))
    reader = create_app(registry, WebSettings(personal=False, read_only=True)).test_client()
    for address in EMPTY_PAGES:
        pages = [page_at(client, address) for client in (visitor, ada, reader)]
        assert all("organ ingest" not in page.text for page in pages), address
        for page in pages[:2]:
            assert "organ --registry http://localhost push FILE.gguf" in page.text, address
        assert "/upload" in pages[1].links(), address
    assert "/login?next=/upload" in page_at(visitor, "/").links()
    assert "log in" not in reader.get("/").text.lower()


def test_a_model_of_unknown_tensor_types_has_no_commands_that_run_it(registry: LocalRegistry, tmp_path: Path) -> None:
    kept = raw_file(
        [text("general.architecture", "llama").encode()], [raw_tensor(b"output.weight", (256,), 156)], bytes(96)
    )
    for name, data in (("kept", kept), ("read", small_model())):
        (tmp_path / f"{name}.gguf").write_bytes(data)
        ingest_file(registry, tmp_path / f"{name}.gguf")
    with create_app(registry).test_client() as client:
        pages = [client.get(f"/models/local/{name}").text for name in ("kept", "read")]
    assert ["Run it with Ollama" in page for page in pages] == [False, True]
    assert all("Download the file" in page for page in pages)


def test_kin_of_a_model_have_a_column_for_their_change(family_client: FlaskClient) -> None:
    base, tuned = found_at(family_client, "/api/v1/models?q=kin:local/base")["items"]
    assert (base["name"], base["change"], tuned["name"]) == ("local/base@1", 0.0, "local/tuned@1")
    assert 1.0 == base["likeness"] > tuned["likeness"] > 0.98
    page = family_client.get("/models?q=kin:local/base").text
    rows = re.findall(r'<tr><th scope="row">.*?</tr>', page, re.DOTALL)
    heads = page.count('<th scope="col"')
    for row, model in zip(rows, (base, tuned), strict=True):
        assert heads == row.count("<td") + 1
        assert f'</th><td class="n">{weight_change_text(model["change"])}</td>' in row
    assert family_client.get("/models").text.count('<th scope="col"') == heads - 1
    header, first, _ = family_client.get("/models.csv?q=kin:local/base").text.splitlines()
    assert dict(zip(header.split(","), first.split(","), strict=True))["likeness"] == "1.0"
    assert "/models?q=kin:local/base@1" in page_at(family_client, "/models/local/base").links()


def test_the_list_of_models_has_the_day_on_which_each_was_registered(family_client: FlaskClient) -> None:
    days = [one["created_at"][:10] for one in found_at(family_client, "/api/v1/models")["items"]]
    page = family_client.get("/models").text
    assert re.findall(r'<td class="n hide-small">(\d{4}-\d\d-\d\d)</td>', page) == days


def test_the_head_of_a_column_shows_the_sort_order_and_links_to_its_reverse(family_client: FlaskClient) -> None:
    heads = parse_page(family_client.get("/models?q=sort:-theta").text)
    assert [one.attributes["aria-sort"] for one in heads.named("th") if "aria-sort" in one.attributes] == ["descending"]
    assert "/models?q=sort:theta" in heads.links()
    assert "/models?q=sort:-size" in heads.links()


def test_a_wrong_query_for_models_stays_on_the_page_with_the_error(family_client: FlaskClient) -> None:
    page = page_at(family_client, "/models?q=block:3", 400)
    assert "block is a field of organs" in page.text
    assert page.named("input")[0].attributes["value"] == "block:3"
    small = page_at(family_client, "/models?limit=0", 400)
    assert "from 1 to 1000" in small.text
    assert "Nothing is registered" not in small.text


def test_the_json_of_a_page_names_a_missing_parameter(family_client: FlaskClient) -> None:
    for given, missing in (("first", "second"), ("second", "first")):
        answer = family_client.get(f"/compare.json?{given}=local/tuned", follow_redirects=True)
        assert (answer.status_code, answer.get_json()["errors"][0]["field"]) == (400, missing)
    assert family_client.get("/models/local/tuned?by=taste").status_code == 400


def test_a_name_without_its_namespace_leads_to_the_page_of_the_model(family_client: FlaskClient) -> None:
    for name in ("tuned", "tuned@1"):
        answer = family_client.get(f"/models/{name}?by=theta")
        assert (answer.status_code, answer.headers["Location"]) == (302, f"/models/local/{name}?by=theta")
    assert family_client.get("/models/nothing:8b").status_code == 404


def drawn_readings(client: FlaskClient, address: str) -> dict[str, str]:
    """Return the labels of the organs in the drawing at `address`, by the name of the organ."""
    labels = re.findall(r"<title>([^<]+: [^<]+)</title>", client.get(address).text)
    return dict(label.split(": ", 1) for label in labels)


def test_the_drawing_has_every_block_every_slot_and_a_link_to_every_organ(family_client: FlaskClient) -> None:
    page = family_client.get("/models/local/tuned").text
    assert re.findall(r'<text class="block"[^>]*>(\d+)</text>', page) == ["0", "1"]
    slots = set(re.findall(r'<text class="slot[^"]*"[^>]*>(\w+)</text>', page))
    assert slots == {"attn_q", "ffn_up", "ffn_down", "attn_norm"}
    items = found_at(family_client, "/api/v1/models/local/tuned/organs?limit=1000")["items"]
    assert drawn_readings(family_client, "/models/local/tuned").keys() == {one["name"] for one in items}
    assert {f"/organs/{one['digest'][:16]}" for one in items} <= parse_page(page).links()


def test_the_change_against_the_declared_parent_is_shown_first_and_against_another_model_on_request(
    family_client: FlaskClient,
) -> None:
    tuned, organ = "/models/local/tuned", "blk.0.ffn_up.weight"
    assert 'Compared with <a href="/models/local/base@1"' in family_client.get(tuned).text
    assert re.match(r"change 0\.\d+, θ", drawn_readings(family_client, tuned)[organ])
    assert re.match(r"spectral signal 0\.\d+, θ", drawn_readings(family_client, f"{tuned}?by=spectral")[organ])
    labels = drawn_readings(family_client, f"{tuned}?against=local/stranger").values()
    changes = [float(found[1]) for label in labels if (found := re.match(r"change ([\d.]+), ", label))]
    assert changes
    assert min(changes) > 1.4
    assert family_client.get(f"{tuned}?against=local/nobody").status_code == 404
    assert "one of donor, change, spectral, theta, size" in page_at(family_client, f"{tuned}?by=charm", 400).text


def test_a_chat_template_is_shown_and_never_rendered(hostile_client: FlaskClient) -> None:
    page = page_at(hostile_client, "/models/local/hostile")
    assert LOOP_BOMB in page.text
    assert "{{ 7*7 }}" in page.text


def test_a_slash_at_the_end_of_an_address_is_ignored(family_client: FlaskClient) -> None:
    answer = family_client.get("/models/local/tuned/?by=theta")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/models/local/tuned?by=theta")
    for path in ("/nothing/at/all/", "//evil.example/", "/models/local/tuned/x/", "/api/v1/models/"):
        assert "Location" not in family_client.get(path).headers
