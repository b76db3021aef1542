"""Pages of chimeras, their files, and what other pages say of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
from flask.testing import FlaskClient
from sqlalchemy import select

from organs.ingest.jobs.runner import Runner, add_job
from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.queries.jobs import active_jobs
from organs.registry.catalog.register.chimeras import add_verdict, record_quick_look
from organs.registry.catalog.tables import GainRow, ModelRow
from organs.registry.compose.lock import parse_lock
from organs.registry.compose.recipe import read_recipe
from organs.registry.entities.base import decode, encode
from organs.registry.entities.plan import PlanPart
from organs.registry.entities.validation import QuickLook, TextLook, VerdictReport
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.pages.anatomy import (
    legend,
    marks,
)
from organs.web.pages.chimeras import runs_of, text_rows
from organs.web.pages.jobs import missing_runtime
from organs.web.settings import WebSettings
from tests.related_models import ingest_bytes, model_file, related_tensors
from tests.small_models import block_tensors
from tests.web.conftest import HOSTILE, HOSTILE_LINK, hostile_report
from tests.web.page_parser import parse_page

TEXTS = ("recipe.yaml", "lock.json", "card.md", "Modelfile")


@pytest.fixture
def composed(registry: LocalRegistry, tmp_path: Path) -> dict[str, str]:
    """The locks of two chimeras: `graft`, of the base and its fine-tune, purified in part, and `child`, made of it."""
    ingest_bytes(registry, tmp_path, "base", model_file("Base", related_tensors()))
    ingest_bytes(registry, tmp_path, "tuned", model_file("Tuned", related_tensors(correlation=0.995)))
    ingest_bytes(registry, tmp_path, "stranger", model_file("Stranger", block_tensors(2, seed=9)))
    recipe = registry.compose(read_recipe("base: local/base\nname: local/mixed\n"))
    graft = recipe.graft("local/tuned", type="organ", blocks=0).purify("fractal", slot="ffn_up", blocks=0)
    made = graft.plan().register()
    child = registry.compose("local/stranger").graft("local/mixed", type="norm").accept("unrelated-lineage")
    return {"graft": made.lock_id, "child": child.plan().register().lock_id}


@pytest.fixture
def client(registry: LocalRegistry, composed: dict[str, str]) -> Iterator[FlaskClient]:
    """A client of a server that only reads."""
    with create_app(registry).test_client() as client:
        yield client


@pytest.fixture
def writer(registry: LocalRegistry, composed: dict[str, str]) -> Iterator[FlaskClient]:
    with create_app(registry, WebSettings(personal=True)).test_client() as client:
        yield client


def put_verdict(registry: LocalRegistry, lock: str, verdict: str = "gains") -> None:
    """A verdict as `organ validate` keeps one."""
    scores = {"base": (33.3, 40.8), "chimera": (31.3, 43.1), "control": (64032.0, 2441.0), "donor": (27.8, 66.5)}

    def read(role: str, name: str) -> dict[str, Any]:
        pairs = zip(("python", "narrative"), scores[role], strict=True)
        listed = [{"text": text, "perplexity": one, "standard_error": 2.5, "tokens": 128} for text, one in pairs]
        return {"name": name, "failure": None, "scores": listed, "written": None, "log": ""}

    report = {
        "model": "local/mixed@1",
        "verdict": verdict,
        "reason": "It is better.",
        "runtime": "llama.cpp",
        "tokens": 128,
        "base": read("base", "local/base@1"),
        "chimera": read("chimera", "local/mixed@1"),
        "control": read("control", "control"),
        "control_remark": None,
        "donors": [read("donor", "local/tuned@1")],
        "zeroed": ["blk.0.ffn_up.weight"],
        "texts": [
            {"name": one, "digest": "0" * 64, "ratio": 0.94, "recovered": 0.97} for one in ("python", "narrative")
        ],
    }
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, lock)[0]
        add_verdict(session, model.id, "llama.cpp", verdict, "It is better.", json.dumps(report))


def words(html: str) -> str:
    """The text of a page on one line."""
    return " ".join(parse_page(html).text.split())


def test_the_gallery_shows_parents_verdict_and_a_picture_and_the_api_lists_the_newest_first(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    put_verdict(registry, composed["graft"])
    values = client.get("/chimeras.json", follow_redirects=True).get_json()
    assert [one["lock_id"] for one in values["items"]] == [composed["child"], composed["graft"]]
    assert values["items"][1]["verdict"] == "gains"
    assert values["items"][0]["verdict"] is None
    page = client.get("/chimeras").text
    assert "/models/local/mixed@1" in parse_page(page).links()
    assert re.search(r"local/base ?× local/tuned feed-forward 0 ", words(page))
    assert "gains measured" in words(page)
    (graft,) = [one for one in values["items"] if one["lock_id"] == composed["graft"]]
    assert graft["blocks"] == 2
    assert {"model": "local/tuned@1", "type": "organ", "blocks": [0]} in graft["parts"]
    pictures = [one for one in parse_page(page).named("svg") if one.attributes.get("class") == "strip"]
    assert len(pictures) == 2
    assert "feed-forward 0 from local/tuned@1" in str(pictures[0].attributes["aria-label"]) + str(
        pictures[1].attributes["aria-label"]
    )
    first = client.get("/chimeras.json?limit=1", follow_redirects=True).get_json()
    assert [one["lock_id"] for one in first["items"]] == [composed["child"]]
    second = client.get(f"/chimeras.json?limit=1&after={first['next']}", follow_redirects=True).get_json()
    assert ([one["lock_id"] for one in second["items"]], second["next"]) == ([composed["graft"]], None)


def test_a_list_without_chimeras_says_how_to_make_one_and_home_counts_them(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_bytes(registry, tmp_path, "base", model_file("Base", related_tensors()))
    with create_app(registry).test_client() as client:
        assert "compose RECIPE.yaml" in client.get("/chimeras").text
        registry.compose("local/base").purify("fractal", type="organ").plan().register()
        home = client.get("/").text
        assert {"/chimeras", "/compose"} <= parse_page(home).links()
        assert "chimera" in words(home)


@pytest.mark.usefixtures("composed")
def test_the_page_marks_every_cell_that_differs_from_the_base(client: FlaskClient) -> None:
    html = client.get("/models/local/mixed").text
    labels = re.findall(r"<title>(.*, θ .*)</title>", html)
    changed = [label for label in labels if label.startswith(("A, ", "B, "))]
    assert [label.partition(", θ")[0] for label in sorted(changed)] == [
        "A, from local/tuned@1, grafted, then purified: blk.0.ffn_up.weight",
        "B, from local/tuned@1, grafted: blk.0.ffn_down.weight",
    ]
    assert len(labels) == 10, "norms and caps are drawn too"
    text = words(html)
    assert "A local/tuned@1: 1 organ grafted, then purified" in text
    assert "local/base@1, the base" in text


def test_the_page_shows_every_known_fact_about_the_chimera(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    address = f"/chimeras/{composed['graft']}"
    put_verdict(registry, composed["graft"])
    html = client.get("/models/local/mixed").text
    text, links = words(html), parse_page(html).links()
    values = client.get(f"{address}.json", follow_redirects=True).get_json()
    for said in (values["recipe_yaml"].strip().splitlines()[0], values["screen"]["sentence"], values["license"]):
        assert said in text
    for line in (
        "llama-cli -m",
        "ollama run --insecure localhost/local/mixed:v1",
        "llama-server -hf local/mixed",
        "organ assemble local/mixed@1",
        "hf download",
    ):
        assert line in text, line
    for line in values["python"].splitlines():
        assert line.strip() in text, line
    assert "31.3" in text
    assert "64,032" in text
    assert "0.970" in text
    for finding in values["findings"]:
        assert finding["code"] in text
    for one in values["computed"]:
        assert f"/organs/{one['digest']}" in links
    assert {f"{address}/{name}" for name in TEXTS} <= links
    assert "/models/local/mixed@1.gguf" in links
    assert {"/models/local/base@1", "/models/local/tuned@1"} <= links
    assert "/lineage?model=local/mixed@1" in {link.replace("%2F", "/") for link in links}


def test_the_file_of_a_chimera_has_the_same_name_everywhere(client: FlaskClient, composed: dict[str, str]) -> None:
    address = f"/chimeras/{composed['graft']}"
    values = client.get(f"{address}.json", follow_redirects=True).get_json()
    name = values["file"]["name"]
    text = words(client.get("/models/local/mixed").text)
    lines = (f"-o {name} 'http://localhost/models/local/mixed@1.gguf'", f"llama-cli -m {name}", f"FROM ./{name}")
    places = [text.index(line) for line in lines]
    assert places == sorted(places), "first it is got"
    answer = client.head("/models/local/mixed@1.gguf")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}"'


def test_composing_begins_with_the_verdict_on_the_same_chimera(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    address = "/compose?base=local/stranger&graft=from:local/mixed+type:norm"
    assert "is the same chimera" not in words(client.get(address).text)
    put_verdict(registry, composed["child"])
    text = words(client.get(address).text)
    assert re.search(r"Measured: local/\S+ is the same chimera\. It was run on [\d-]+: gains\. It is better\.", text)
    assert "is the same chimera" not in words(client.get(f"{address}+blocks:0").text)


def test_the_card_of_a_chimera_shows_its_screen_until_it_is_measured(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    screen = client.get(f"/chimeras/{composed['graft']}.json", follow_redirects=True).get_json()["screen"]
    before = words(client.get("/models/local/mixed").text)
    assert f"From the weights: {screen['sentence']}" in before[: before.index("Anatomy")]
    assert "organ validate local/mixed@1" in before[before.index("Not run yet") :]
    put_verdict(registry, composed["graft"])
    after = words(client.get("/models/local/mixed").text)
    card, rest = after[: after.index("Anatomy")], after[after.index("Anatomy") :]
    assert "gains runs, and is better than its base on at least one text" in card
    assert "From the weights" not in card
    assert rest.index("Measurement: gains It is better.") < rest.index(screen["sentence"])
    assert "From the weights" not in words(client.get("/models/local/base").text)


def test_a_quick_look_stands_on_the_card_with_its_texts_and_says_if_the_weights_misled(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    text = TextLook(
        name="python", digest="0" * 64, base_perplexity=8.0, perplexity=12.0, ratio=1.5, ratio_margin=0.03, windows=4,
        window_count=9, tokens=1020, divergence=0.5, divergence_tokens=255, same_top=0.75,
    )  # fmt: skip
    look = QuickLook(
        sentence="Not usable: +50% ± 3% perplexity on python.", usable=False, runtime="llama.cpp", window_tokens=256,
        seconds=30.0, tokens_per_second=270.0, texts=(text,),
    )  # fmt: skip
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, composed["graft"])[0]
        record_quick_look(session, model.id, encode(look).decode())
    page = words(client.get("/models/local/mixed").text)
    assert "by a quick look Change of the perplexity against the base, by kind of text python+50% ± 3%" in page
    assert "textbasechimerachange of perplexitydivergencesame top tokentokens" in page
    assert "python8.012.0+50% ± 3%0.575%1,020" in page
    assert "The measurement says otherwise." in page
    assert "not usable" in words(client.get("/").text)


def test_the_address_of_a_lock_leads_to_the_page_of_its_model_with_the_chosen_reading(
    client: FlaskClient, composed: dict[str, str]
) -> None:
    for address, target in (
        (f"/chimeras/{composed['graft']}", "/models/local/mixed@1"),
        (f"/chimeras/{composed['graft'][:12]}?by=size", "/models/local/mixed@1?by=size"),
    ):
        answer = client.get(address)
        assert (answer.status_code, answer.headers["Location"]) == (302, target)
        assert client.get(target).status_code == 200


def test_the_lineage_is_shown_in_both_directions(client: FlaskClient, composed: dict[str, str]) -> None:
    (child,) = [
        one
        for one in client.get("/chimeras.json", follow_redirects=True).get_json()["items"]
        if one["lock_id"] == composed["child"]
    ]
    values = client.get(f"/chimeras/{composed['graft']}.json", follow_redirects=True).get_json()
    assert values["made_into"] == [{"model": child["name"], "acts": ["grafted"]}]
    mixed = words(client.get("/models/local/mixed").text)
    assert "baselocal/base@1 donorlocal/tuned@1 grafted, then purified" in mixed
    assert child["name"] in mixed[mixed.index("Used in") :]
    last = words(client.get(f"/models/{child['name']}").text)
    assert "baselocal/stranger@1 donorlocal/mixed@1 grafted" in last
    assert "Used in" not in last
    tuned = words(client.get("/models/local/tuned").text)
    assert "local/mixed@1" in tuned[tuned.index("Used in") :]


def test_the_graph_draws_and_names_every_recorded_edge(client: FlaskClient) -> None:
    values = client.get("/api/v1/families").get_json()
    recorded = {
        (edge["child"], edge["parent"], edge["relation"])
        for family in values["items"]
        for edge in family["edges"]
        if edge["evidence"] == "recorded"
    }
    assert {("local/mixed@1", "local/base@1", "grafted"), ("local/mixed@1", "local/tuned@1", "grafted")} <= recorded
    html = client.get("/lineage?model=local/mixed").text
    bases = {child for child, _, _ in recorded}
    assert len(re.findall(r'<text class="words[^>]*>grafted', html)) == len(bases)
    assert html.count('<circle class="donor') == 1 + len(recorded) - len(bases), "the key, and a line for each donor"
    assert "grafted, recorded" in words(html)


def test_the_edge_from_a_purified_model_to_its_source_says_purified(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "base", model_file("Base", related_tensors()))
    registry.compose("local/base").purify("fractal", type="organ").plan().register()
    with create_app(registry).test_client() as client:
        html = client.get("/lineage").text
        assert re.search(r'<text class="words[^>]*>purified', html)
        assert "purified, recorded" in words(html)


def test_computed_organs_and_their_sources_link_to_each_other(client: FlaskClient, composed: dict[str, str]) -> None:
    (made,) = client.get(f"/chimeras/{composed['graft']}.json", follow_redirects=True).get_json()["computed"]
    source = made["source"]["digest"]
    page = client.get(f"/organs/{made['digest']}").text
    assert "purified (fractal)" in words(page)
    assert f"/organs/{source}" in parse_page(page).links()
    back = client.get(f"/organs/{source}").text
    assert f"/organs/{made['digest']}" in parse_page(back).links()
    assert "Organs computed from it" in words(back)
    assert client.get(f"/api/v1/organs/{source}").get_json()["made"] == []


def test_every_text_is_served_as_an_attachment_and_never_as_a_page(
    client: FlaskClient, composed: dict[str, str]
) -> None:
    lock = composed["graft"]
    for name in TEXTS:
        answer = client.get(f"/chimeras/{lock}/{name}")
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}"'
        assert answer.headers["ETag"] == f'"{hashlib.sha256(answer.data).hexdigest()}"'
        assert ("immutable" in answer.headers["Cache-Control"]) is (name == "lock.json")
        short = client.get(f"/chimeras/{lock[:12]}/{name}")
        assert short.data == answer.data
        assert short.headers["Cache-Control"] == "no-cache", "another lock may begin so one day"
        again = client.get(f"/chimeras/{lock}/{name}", headers={"If-None-Match": answer.headers["ETag"]})
        assert (again.status_code, again.data) == (304, b"")
        part = client.get(f"/chimeras/{lock}/{name}", headers={"Range": "bytes=2-5"})
        assert (part.status_code, part.data) == (206, answer.data[2:6])


def test_the_lock_matches_its_address_and_the_recipe_gives_the_same_lock(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    lock = composed["graft"]
    assert parse_lock(client.get(f"/chimeras/{lock}/lock.json", follow_redirects=True).text).id == lock
    recipe = read_recipe(client.get(f"/chimeras/{lock}/recipe.yaml").text)
    made = registry.compose(recipe).plan().register()
    assert (made.lock_id, made.created) == (lock, False)


def test_an_unknown_lock_is_404_everywhere(client: FlaskClient) -> None:
    for lock in (
        "0" * 64,
        "zz",
        "1234567",
        "0" * 65,
        "%00",
        "..%2f..",
        "A'B\"C<D>",
        "\u0660" * 8,
        "sha256:" + "0" * 64,
    ):
        for address in (f"/chimeras/{lock}", *(f"/chimeras/{lock}/{name}" for name in TEXTS)):
            assert client.get(address).status_code == 404, address
        assert client.get(f"/chimeras/{lock}.json", follow_redirects=True).status_code in (400, 404), lock
    assert client.get("/chimeras/01234567/passwd").status_code == 404


def test_two_names_of_one_lock_have_the_same_page(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    text = client.get(f"/chimeras/{composed['graft']}/recipe.yaml").text
    other = registry.compose(read_recipe(text.replace("local/mixed", "local/other"))).plan().register()
    assert other.lock_id == composed["graft"]
    values = client.get(f"/chimeras/{other.lock_id}.json", follow_redirects=True).get_json()
    assert (values["model"], values["also"]) == ("local/mixed@1", ["local/other@1"])
    assert "local/mixed@1 has the same bytes." in words(client.get("/models/local/other").text)
    assert "local/other@1 has the same bytes." in words(client.get("/models/local/mixed").text)


def test_a_client_without_an_account_gets_no_button_and_its_form_is_refused(
    client: FlaskClient, composed: dict[str, str]
) -> None:
    address = f"/chimeras/{composed['graft']}"
    html = client.get("/models/local/mixed").text
    assert not parse_page(html).named("form")
    assert "organ validate local/mixed@1" in words(html)
    assert client.post(f"{address}/validate").status_code == 401


def token_of(html: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', html)
    assert found is not None
    return found[1]


def test_the_button_queues_one_validation_and_the_page_shows_it(
    writer: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    address, page = f"/chimeras/{composed['graft']}", "/models/local/mixed@1"
    html = writer.get(page).text
    assert missing_runtime() is None, "the tests have the runtime"
    assert f"{address}/validate" in parse_page(html).links()
    token = token_of(html)
    assert writer.post(f"{address}/validate", data={"form_token": "x"}).status_code == 403
    answer = writer.post(f"{address}/validate", data={"form_token": token})
    assert (answer.status_code, answer.headers["Location"]) == (303, f"{page}#verdict")
    with registry.catalog.reading() as session:
        (job,) = active_jobs(session, "validate")
        assert job.arguments["chimera"] == "local/mixed@1"
    html = writer.get(page).text
    assert f"/jobs/{job.id}" in parse_page(html).links()
    assert f"{address}/validate" not in parse_page(html).links(), "one at a time"
    writer.post(f"{address}/validate", data={"form_token": token})
    with registry.catalog.reading() as session:
        assert [one.id for one in active_jobs(session, "validate")] == [job.id]
    child = f"/chimeras/{composed['child']}"
    other = writer.get(child, follow_redirects=True).text
    assert f"{child}/validate" in parse_page(other).links(), "the other chimera has no validation under way"


@pytest.mark.folder
def test_the_chimera_of_a_job_is_linked_from_its_page_and_downloads_with_ranges(
    writer: FlaskClient, registry: LocalRegistry
) -> None:
    add_job(registry, "extract", {"model": "local/mixed"})
    made = add_job(registry, "graft", {"base": "local/base", "donor": "local/tuned", "type": "organ"})
    Runner(registry, Event()).run(once=True)
    name = writer.get(f"/jobs/{made}.json").get_json()["result"]["model"]
    assert f"/models/{name}" in parse_page(writer.get(f"/jobs/{made}").text).links()
    page = writer.get("/jobs/1").text
    assert "/jobs/1/files/mixed.tar" in parse_page(page).links()
    whole = writer.get("/jobs/1/files/mixed.tar")
    result = writer.get("/jobs/1.json").get_json()["result"]
    assert hashlib.sha256(whole.data).hexdigest() == result["sha256"] == whole.headers["ETag"].strip('"')
    part = writer.get("/jobs/1/files/mixed.tar", headers={"Range": "bytes=512-1023"})
    assert (part.status_code, part.data) == (206, whole.data[512:1024])
    assert writer.head("/jobs/1/files/mixed.tar").headers["Content-Length"] == str(result["size_bytes"])
    for address in (
        "/jobs/1/files/other.tar",
        "/jobs/1/files/..%2f..%2fregistry.sqlite3",
        f"/jobs/{made}/files/mixed.tar",
    ):
        assert writer.get(address).status_code == 404, address
    assert "pack" not in result, "the key is nobody's business"
    (pack,) = (registry.settings.home / "jobs").glob("*/mixed.tar")
    pack.unlink()
    assert writer.get("/jobs/1/files/mixed.tar").status_code == 404
    assert "files/mixed.tar" not in writer.get("/jobs/1").text


def test_hostile_texts_are_shown_unchanged(hostile_client: FlaskClient) -> None:
    (one,) = hostile_client.get("/chimeras.json", follow_redirects=True).get_json()["items"]
    html = hostile_client.get(f"/chimeras/{one['lock_id']}", follow_redirects=True).text
    assert HOSTILE in parse_page(html).text
    assert HOSTILE_LINK in parse_page(html).text
    assert HOSTILE not in html
    assert hostile_client.get("/jobs/3").status_code == 200
    for name in TEXTS:
        answer = hostile_client.get(f"/chimeras/{one['lock_id']}/{name}")
        assert "\n" not in answer.headers["Content-Disposition"]
        assert answer.status_code == 200


def test_missing_scores_are_dashes_and_failures_are_words() -> None:
    report = decode(json.dumps(hostile_report()).encode(), VerdictReport)
    assert [role for role, _ in runs_of(report)] == ["base", "chimera", "donor"]
    assert text_rows(report)[0].perplexities[:2] == ["1.0e+300", "–"]
    assert report.chimera.failure is not None
    assert report.chimera.failure.reason == HOSTILE


def test_letters_continue_after_z() -> None:
    parts = [
        PlanPart(
            name=f"text 0 {n}",
            type="organ",
            tower="text",
            block=0,
            slot=str(n),
            model=f"local/{n}@1",
            acts=("grafted",),
            dtype_before="F32",
            dtype="F32",
            theta_before=None,
            theta=1.0,
            spectral_signal=None,
            size_bytes_before=4,
            size_bytes=4,
            digest=None,
        )
        for n in range(60)
    ]
    lines = legend(parts, "local/0@1")
    letters = [line.mark for line in lines]
    assert (letters[0], letters[25], letters[26], letters[59]) == ("A", "Z", "A2", "H3")
    assert len(set(letters)) == 60
    assert lines[0].is_base
    assert not lines[1].is_base
    by_name = marks(parts, lines)
    assert by_name["text 0 26"].mark == "A2"
    assert [line.tone for line in lines[:9]] == ["g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7", "g0"]
    merged = msgspec.structs.replace(parts[0], acts=("adapter",), adapters=("local/lora@1",))
    (line,) = legend([merged], "local/0@1")
    assert (line.model, line.is_base, line.words) == ("local/lora@1", False, "adapter added")
    assert marks([merged], [line]) == {"text 0 0": line}
    both = msgspec.structs.replace(parts[1], acts=("grafted", "adapter"), adapters=("local/lora@1",))
    (line,) = legend([both], "local/0@1")
    assert (line.models, line.model) == (("local/1@1", "local/lora@1"), "local/1@1 + local/lora@1")


def test_chimeras_are_ranked_by_their_largest_settled_gain_page_by_page(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    put_verdict(registry, composed["graft"])
    orders = {
        order: [one["lock_id"] for one in client.get(f"/api/v1/chimeras?order={order}").get_json()["items"]]
        for order in ("new", "gain")
    }
    with registry.catalog.writing() as session:
        model, base = (
            session.scalars(select(ModelRow).where(ModelRow.name == name)).one() for name in ("mixed", "base")
        )
        session.add(
            GainRow(
                model_id=model.id, base_model_id=base.id, grafted="feed-forward 0-1", text_digest="0" * 64,
                percent=-3.0, margin=1.0, tokens=1000, settled=True, text="python",
            )
        )  # fmt: skip
    first = client.get("/api/v1/chimeras?order=gain&limit=1").get_json()
    second = client.get(f"/api/v1/chimeras?order=gain&limit=1&after={first['next']}").get_json()
    assert first["items"][0]["name"] == "local/mixed@1"
    assert second["next"] is None
    assert set(orders["new"]) == {one["lock_id"] for one in (*first["items"], *second["items"])}
    assert [(one["text"], one["percent"]) for one in first["items"][0]["gains"]] == [("python", -3.0)]
    assert "−3.0% ± 1.0%" in client.get("/chimeras").text
    assert client.get("/chimeras?order=oldest").status_code == 400
