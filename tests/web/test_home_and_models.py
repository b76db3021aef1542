"""The first page, the list of models and a model's page."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from flask.testing import FlaskClient

from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
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
from tests.web.page_parser import parse_page


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
        answer = client.get("/models/local/tiny")
        assert answer.status_code == 302
        assert client.get(answer.headers["Location"]).status_code == 200
        query = parse_qs(urlsplit(answer.headers["Location"]).query)["q"]
        assert query == ["model:local/tiny-F16,local/tiny-Q8_0"]
        listed = client.get("/api/v1/models", query_string={"q": query[0]}).get_json()["items"]
        assert sorted(one["name"] for one in listed) == ["local/tiny-F16@1", "local/tiny-Q8_0@1"]
        problem = client.get("/api/v1/models/local/tiny")
        assert (problem.status_code, problem.get_json()["code"]) == (404, "several-models")
        assert problem.get_json()["names"] == ["local/tiny-F16", "local/tiny-Q8_0"]
        assert client.get("/api/v1/models/local/other").get_json()["name"] == "local/other-Q8_0@1"


def test_a_page_lists_the_other_names_and_the_chimeras_of_a_base(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "base", model_file("base", related_tensors()))
    ingest_bytes(registry, tmp_path, "tuned", model_file("tuned", related_tensors(correlation=0.99)))
    (tmp_path / "again.gguf").write_bytes(model_file("base", related_tensors()))
    (source,) = find_sources([str(tmp_path / "again.gguf")])
    assert ingest_model(registry, source).model == "local/base@1"
    registry.compose("again").graft("tuned", type="organ").plan().accepting_all().register()
    assert [(registry.model(name).chimeras, registry.model(name).grafts) for name in ("base", "tuned")] == [
        (1, 0),
        (1, 1),
    ]
    with create_app(registry).test_client() as client:
        text = " ".join(parse_page(client.get("/models/local/base").text).text.split())
    assert re.search(r"also known as\s*local/again", text)
    assert re.search(r"chimeras with it\s*1", text)


def test_a_renamed_model_is_found_at_its_old_address_and_its_texts_are_inert(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    models = tmp_path / ".ollama" / "models"
    layers = [ollama_layer(models, "model", small_model())]
    layers += [
        ollama_layer(models, "template", LOOP_BOMB.encode()),
        ollama_layer(models, "license", b"<script>x</script>"),
    ]
    blob = models / "blobs" / str(layers[0]["digest"]).replace(":", "-")
    old = ingest_file(registry, blob).model
    ollama_manifest(models, "registry.ollama.ai/library/tiny/latest", *layers)
    (source,) = sources_of(find_tool_models(machine(tmp_path), ["ollama"]))
    assert ingest_model(registry, source).model == "library/tiny@1"
    with create_app(registry).test_client() as client:
        for address in (f"/models/{old}", f"/models/{old.partition('@')[0]}"):
            answer = client.get(f"{address}?by=theta")
            assert (answer.status_code, answer.headers["Location"]) == (302, "/models/library/tiny@1?by=theta")
        for address in (f"/models/{old}", "/models/library/tiny"):
            html = client.get(address, follow_redirects=True).text
            assert "library/tiny@1" in re.sub(r"\s+|</?wbr>", "", html[html.index("<h1") : html.index("</h1>")]), (
                address
            )
            assert "<script>x" not in html
            assert "&lt;script&gt;x&lt;/script&gt;" in html
        assert client.get(f"/api/v1/models/{old}").get_json()["name"] == "library/tiny@1"
        assert client.get(f"/{old.partition('@')[0]}/resolve/main/x").status_code == 404
        assert client.get(f"/api/models/{old.partition('@')[0]}").status_code == 200


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
        pages = [parse_page(client.get(address).text) for client in (visitor, ada)]
        for page in pages:
            assert "organ --registry http://localhost push FILE.gguf" in page.text, address
            assert "organ ingest" not in page.text, address
        assert "/upload" in pages[1].links(), address
        assert "organ ingest" not in reader.get(address).text, address
    assert "/login?next=/upload" in parse_page(visitor.get("/").text).links()
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


def test_models_are_searched_sorted_and_paged(family_client: FlaskClient) -> None:
    ranked = family_client.get("/api/v1/models?q=sort:-theta&limit=2").get_json()
    rest = family_client.get(f"/api/v1/models?q=sort:-theta&limit=2&after={ranked['next']}").get_json()
    thetas = [model["mean_theta"] for model in ranked["items"] + rest["items"]]
    assert len(thetas) == 3
    assert thetas == sorted(thetas, reverse=True)
    assert rest["next"] is None
    assert [one["name"] for one in family_client.get("/api/v1/models?q=tuned").get_json()["items"]] == ["local/tuned@1"]


def test_kin_of_a_model_have_a_column_for_their_change(family_client: FlaskClient) -> None:
    items = family_client.get("/api/v1/models?q=kin:local/base").get_json()["items"]
    assert [one["name"] for one in items] == ["local/base@1", "local/tuned@1"]
    assert 1.0 == items[0]["likeness"] > items[1]["likeness"] > 0.98
    assert 0.0 == items[0]["change"] < items[1]["change"] < 0.02
    page = family_client.get("/models?q=kin:local/base").text
    (first, second) = re.findall(r'<tr><th scope="row">.*?</tr>', page, re.DOTALL)
    heads = page.count('<th scope="col"')
    assert heads == first.count("<td") + 1
    assert '</th><td class="n">0</td>' in first
    assert f'</th><td class="n">{weight_change_text(items[1]["change"])}</td>' in second
    assert family_client.get("/models").text.count('<th scope="col"') == heads - 1
    header, base, _ = family_client.get("/models.csv?q=kin:local/base").text.splitlines()
    assert dict(zip(header.split(","), base.split(","), strict=True))["likeness"] == "1.0"
    assert "/models?q=kin:local/base@1" in parse_page(family_client.get("/models/local/base").text).links()


def test_the_list_of_models_has_the_day_on_which_each_was_registered(family_client: FlaskClient) -> None:
    days = [one["created_at"][:10] for one in family_client.get("/api/v1/models").get_json()["items"]]
    page = family_client.get("/models").text
    assert re.findall(r'<td class="n hide-small">(\d{4}-\d\d-\d\d)</td>', page) == days
    assert len(days) == 3


def test_the_head_of_a_column_shows_the_sort_order_and_links_to_its_reverse(family_client: FlaskClient) -> None:
    heads = parse_page(family_client.get("/models?q=sort:-theta").text)
    assert [one.attributes["aria-sort"] for one in heads.named("th") if "aria-sort" in one.attributes] == ["descending"]
    assert "/models?q=sort:theta" in heads.links()
    assert "/models?q=sort:-size" in heads.links()


def test_a_wrong_query_for_models_stays_on_the_page_with_the_error(family_client: FlaskClient) -> None:
    answer = family_client.get("/models?q=block:3")
    assert answer.status_code == 400
    assert "block is a field of organs" in answer.text
    assert parse_page(answer.text).named("input")[0].attributes["value"] == "block:3"
    assert family_client.get("/api/v1/models?q=block:3").get_json()["errors"][0]["field"] == "q"
    small = family_client.get("/models?limit=0")
    assert small.status_code == 400
    assert "from 1 to 1000" in small.text
    assert "Nothing is registered" not in small.text


def test_the_json_of_a_page_names_a_wrong_parameter(family_client: FlaskClient) -> None:
    for address, field in (
        ("/api/v1/models?limit=0", "limit"),
        ("/api/v1/organs?after=x", "after"),
        ("/compare.json?first=local/tuned", "second"),
        ("/compare.json?second=local/tuned", "first"),
    ):
        answer = family_client.get(address, follow_redirects=True)
        assert (answer.status_code, answer.get_json()["errors"][0]["field"]) == (400, field), address
    assert family_client.get("/models/local/tuned?by=taste").status_code == 400


def test_a_name_without_its_namespace_leads_to_the_page_of_the_model(family_client: FlaskClient) -> None:
    for name in ("tuned", "tuned@1"):
        answer = family_client.get(f"/models/{name}?by=theta")
        assert (answer.status_code, answer.headers["Location"]) == (302, f"/models/local/{name}?by=theta")
    assert family_client.get("/models/nothing:8b").status_code == 404


def test_models_as_csv_have_one_line_for_each_model(family_client: FlaskClient) -> None:
    answer = family_client.get("/models.csv")
    assert answer.mimetype == "text/csv"
    assert "attachment" in answer.headers["Content-Disposition"]
    lines = answer.text.splitlines()
    assert lines[0].startswith("name,title,kind,architecture")
    assert [line.partition(",")[0] for line in lines[1:]] == ["local/stranger@1", "local/tuned@1", "local/base@1"]


def drawn_readings(client: FlaskClient, address: str) -> dict[str, str]:
    """Return the labels of the organs in the drawing at `address`, by the name of the organ."""
    labels = re.findall(r"<title>([^<]+: [^<]+)</title>", client.get(address).text)
    return dict(label.split(": ", 1) for label in labels)


def test_the_drawing_has_every_block_every_slot_and_a_link_to_every_organ(family_client: FlaskClient) -> None:
    page = family_client.get("/models/local/tuned").text
    assert re.findall(r'<text class="block"[^>]*>(\d+)</text>', page) == ["0", "1"]
    assert set(re.findall(r'<text class="slot[^"]*"[^>]*>(\w+)</text>', page)) == {
        "attn_q",
        "ffn_up",
        "ffn_down",
        "attn_norm",
    }
    answer = family_client.get("/api/v1/models/local/tuned/organs?limit=1000").get_json()
    organs = {one["name"]: one["digest"] for one in answer["items"]}
    assert drawn_readings(family_client, "/models/local/tuned").keys() == organs.keys()
    links = parse_page(page).links()
    for digest in organs.values():
        assert f"/organs/{digest[:16]}" in links
        assert family_client.get(f"/organs/{digest[:16]}").status_code == 200


def test_the_change_against_the_declared_parent_is_shown_first(family_client: FlaskClient) -> None:
    assert 'Compared with <a href="/models/local/base@1"' in family_client.get("/models/local/tuned").text
    change = drawn_readings(family_client, "/models/local/tuned")["blk.0.ffn_up.weight"]
    assert re.match(r"change 0\.\d+, θ", change), change
    spectral = drawn_readings(family_client, "/models/local/tuned?by=spectral")["blk.0.ffn_up.weight"]
    assert re.match(r"spectral signal 0\.\d+, θ", spectral)


def test_changes_are_measured_from_the_named_model(family_client: FlaskClient) -> None:
    labels = drawn_readings(family_client, "/models/local/tuned?against=local/stranger").values()
    changes = [float(found[1]) for label in labels if (found := re.match(r"change ([\d.]+), ", label))]
    assert changes
    assert min(changes) > 1.4
    assert family_client.get("/models/local/tuned?against=local/nobody").status_code == 404


def test_a_models_page_lists_its_relatives_and_findings(family_client: FlaskClient) -> None:
    values = family_client.get("/models/local/tuned.json", follow_redirects=True).get_json()
    assert {(edge["direction"], edge["model"]) for edge in values["lineage"]} >= {
        ("parent", "local/base@1"),
        ("relative", "local/base@1"),
    }
    page = parse_page(family_client.get("/models/local/tuned").text)
    assert "Lineage" in page.text
    assert "/models/local/base@1" in page.links()


def test_a_chat_template_is_shown_and_never_rendered(hostile_client: FlaskClient) -> None:
    page = parse_page(hostile_client.get("/models/local/hostile").text)
    assert LOOP_BOMB in page.text
    assert "{{ 7*7 }}" in page.text
    assert "49" not in page.text.partition("7*7")[0][-5:]


def test_an_unknown_way_to_colour_the_cells_is_refused(family_client: FlaskClient) -> None:
    answer = family_client.get("/models/local/tuned?by=charm")
    assert answer.status_code == 400
    assert "one of donor, change, spectral, theta, size" in answer.text


def test_the_health_check_succeeds_while_the_database_answers(family_client: FlaskClient) -> None:
    assert family_client.get("/healthz").get_json() == {"ok": True}


def test_a_slash_at_the_end_of_an_address_is_ignored(family_client: FlaskClient) -> None:
    answer = family_client.get("/models/local/tuned/?by=theta")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/models/local/tuned?by=theta")
    for path in ("/nothing/at/all/", "//evil.example/", "/models/local/tuned/x/", "/api/v1/models/"):
        assert "Location" not in family_client.get(path).headers
