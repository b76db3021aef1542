"""Sizes on the page of a model: the chart, the table, what fits into a memory, and the form that makes one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from flask.testing import FlaskClient
from sqlalchemy import delete, select, update

from organs.registry.catalog.queries.jobs import active_jobs
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.tables import JobRow, Lineage, ModelMetadata, ModelRow, SizeRow, now
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.charts.plots import SizeDivergence, sizes_chart
from organs.web.settings import WebSettings
from tests.registry_templates import RegistryTemplates, add_three_models
from tests.sizes import add_size
from tests.web.accounts import log_in, new_token, send_form

BASE, SVG = "/models/local/base", "{http://www.w3.org/2000/svg}"


@pytest.fixture
def sized(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    """Return a registry in which `local/base` has three sizes; two of them are registered models."""
    templates.fill(registry, add_three_models)
    add_size(registry, "local/base", "4.5bpw", 20_000_000, 0.05)
    add_size(registry, "local/base", "Q4_K_M-best", 30_000_000, 0.004, model="local/tuned")
    add_size(registry, "local/base", "Q4_K_M", 30_100_000, 0.01, model="local/stranger", kind="plain")
    return registry


@pytest.fixture
def client(sized: LocalRegistry) -> Iterator[FlaskClient]:
    with create_app(sized).test_client() as client:
        yield client


def section(client: FlaskClient, query: str = "", model: str = BASE) -> str:
    """Return the section of sizes on the page of a model, as text with single spaces."""
    page = client.get(f"{model}{query}").text
    begin = page.index('<h2 id="sizes">')
    own = page[begin : page.index("<h2", begin + 1)]
    return " ".join(re.sub("<[^>]+>", " ", own).split())


def test_the_page_shows_the_sizes_from_the_smallest_with_their_divergence(client: FlaskClient) -> None:
    text = section(client)
    rows = ("4.5bpw 20.0 MB, chosen", "Q4_K_M-best 30.0 MB, chosen", "Q4_K_M 30.1 MB, mix of llama.cpp")
    assert [text.index(row) for row in rows] == sorted(text.index(row) for row in rows)
    assert "0.050 ± 0.003 0.45 93.0% +5.0% –" in text
    page = client.get(BASE).text
    assert 'href="/models/local/tuned@1.gguf" download' in page
    assert 'src="/models/local/base@1/sizes.svg"' in page


def test_a_size_links_to_its_source_and_other_models_have_a_sentence(client: FlaskClient) -> None:
    page = client.get("/models/local/tuned").text
    assert "This is a smaller file of" in page
    assert 'href="/models/local/base@1#sizes"' in page
    command = "organ quantize local/base --like Q4_K_M"
    assert command in section(client), "nobody may write here"
    for model in ("sizes.svg", "@1/sizes.svg"):
        assert client.get(f"/models/local/stranger{'/' if model[0] == 's' else ''}{model}").status_code == 404


def test_a_quantisation_that_was_not_measured_links_to_the_sizes_of_its_source(sized: LocalRegistry) -> None:
    with sized.catalog.writing() as session:
        child, base = (model_by_text(session, name).id for name in ("local/stranger", "local/base"))
        session.execute(update(SizeRow).where(SizeRow.model_id == child).values(model_id=None))
        edge = {"child_model_id": child, "parent_model_id": base, "relation": "quantized", "evidence": "declared"}
        session.add(Lineage(created_at=now(), **edge))
    with create_app(sized).test_client() as client:
        assert "This is a smaller file of" in section(client, model="/models/local/stranger")
        with sized.catalog.writing() as session:
            session.execute(delete(SizeRow))
        assert "No smaller size of this model" in section(client, model="/models/local/stranger")


def test_registered_quantisations_are_shown_as_not_measured(sized: LocalRegistry) -> None:
    with sized.catalog.writing() as session:
        session.execute(delete(SizeRow))
        for name, word in (("stranger", "Q2_K"), ("tuned", "Q8_0")):
            child = model_by_text(session, f"local/{name}")
            child.stem, child.quantisation, child.size_bytes = "base", word, 5_000 * len(name)
    with create_app(sized).test_client() as client:
        text = section(client)
        assert "was not measured here" in text
        for row in ("Q8_0 25.0 kB, not measured", "Q2_K 40.0 kB, not measured"):
            assert row in text
        curve = client.get("/api/v1/models/local/base/sizes").get_json()
        assert [(point["kind"], point["divergence"]) for point in curve["points"]] == [("found", None)] * 2
        assert client.get(f"{BASE}/sizes.svg").status_code == 404, "nothing to draw"
    add_size(sized, "local/base", "Q2_K", 40_000, model="local/stranger", kind="plain")
    with create_app(sized).test_client() as client:
        text = section(client)
        assert "Q8_0 25.0 kB, not measured" in text
        assert "Q2_K 40.0 kB, mix of llama.cpp" in text
    add_size(sized, "local/base", "Q8_0", 25_000, kind="plain")
    with create_app(sized).test_client() as client:
        assert "Q8_0 25.0 kB, not measured" in section(client), "its file is there, whatever was measured"


def test_a_memory_is_asked_for_where_nothing_was_measured(sized: LocalRegistry) -> None:
    with sized.catalog.writing() as session:
        session.execute(delete(SizeRow))
    with create_app(sized).test_client() as client:
        text = section(client, "?memory=8")
        assert "organ quantize local/base --fits 8GB --context 4096" in text


def test_the_api_and_the_page_have_the_same_sizes(client: FlaskClient) -> None:
    curve = client.get("/api/v1/models/local/base/sizes").get_json()
    assert [point["tag"] for point in curve["points"]] == ["4.5bpw", "Q4_K_M-best", "Q4_K_M"]
    assert curve["points"][1] == {
        "kind": "chosen", "label": "Q4_K_M-best", "tag": "Q4_K_M-best", "size_bytes": 30_000_000,
        "model": "local/tuned@1", "bits": 30.0, "divergence": 0.004, "divergence_margin": 0.0002,
        "divergence_99": 9 * 0.004, "same_top": 0.93, "ratio": 1.004, "tokens": 9000,
        "memory_bytes": None, "memory_context": None,
    }  # fmt: skip
    assert client.get("/api/v1/models/local/tuned/sizes").get_json()["points"] == []
    assert client.get("/api/v1/models/local/nobody/sizes").status_code == 404


def test_the_chart_has_a_line_of_chosen_sizes_and_named_crosses(client: FlaskClient) -> None:
    answer = client.get(f"{BASE}/sizes.svg?fits=30000000")
    assert answer.mimetype == "image/svg+xml"
    root = ElementTree.fromstring(answer.data)
    looks = [one.get("class") for one in root.iter(f"{SVG}path")]
    assert (looks.count("curve"), looks.count("cross"), looks.count("dotted")) == (1, 1, 1)
    assert len(list(root.iter(f"{SVG}circle"))) == 2
    words = [one.text for one in root.iter(f"{SVG}text")]
    assert {"Q4_K_M", "size in MB", "divergence in nats, logarithmic", "0.01"} <= set(words)
    for odd in ("x", "9" * 40, "-1"):
        assert client.get(f"{BASE}/sizes.svg?fits={odd}").status_code == 200


@pytest.mark.parametrize(
    "points",
    [
        [(5, 1e-9)],
        [(10**12, 30.0), (10**12, 30.0)],
        [(1, 1e-300), (2**62, 1e300)],
        [(10**9, 0.1), (10**9 + 1, 0.1000001)],
    ],
)
def test_any_numbers_can_be_drawn(points: list[tuple[int, float]]) -> None:
    svg = sizes_chart([SizeDivergence(*point, "x<y", is_plain=bool(place % 2)) for place, point in enumerate(points)])
    for shape in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        assert "nan" not in str(shape.get("d"))
        assert "inf" not in str(shape.get("d"))


def test_the_largest_file_that_fits_is_marked(
    sized: LocalRegistry, client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sized.catalog.writing() as session:
        model_by_text(session, "local/base").size_bytes = 60_000_000
    monkeypatch.setattr("organs.web.pages.sizes.estimated_memory", lambda *_: Estimate)
    for memory, label in (("0.130", "Q4_K_M-best"), ("0.1301", "Q4_K_M")):
        text = section(client, f"?memory={memory}&context=512")
        assert f"The largest of these files that fits {float(memory):g} GB" in text
        assert f"Download {label}, " in text
        assert f"--fits {float(memory):g}GB --context 512" in text
        assert f"<strong>fits {float(memory):g} GB</strong>" in client.get(f"{BASE}?memory={memory}&context=512").text
    text = section(client, "?memory=0.125")
    assert "None of these files fits 0.125 GB with a context of 4,096 tokens" in text, "4.5bpw has no file"
    assert "at most 90.0 MB for the cache" in text
    text = section(client, "?memory=0.16")
    assert "This model itself fits 0.16 GB with a context of 4,096 tokens" in text
    assert "--fits" not in text
    assert "Download Q4" not in text
    with sized.catalog.writing() as session:
        row = session.scalars(select(SizeRow).where(SizeRow.tag == "Q4_K_M-best")).one()
        row.reading = json.dumps({**json.loads(row.reading), "memory_bytes": 100_000_000, "memory_context": 1024})
    text = section(client, "?memory=0.1&context=1024")
    assert "is that for Q4_K_M-best. llama.cpp takes 100.0 MB for it with 1,024 tokens, by its own count" in text
    assert "None of these files" in section(client, "?memory=0.1&context=1025")
    assert "is that for Q4_K_M-best" in section(client, "?memory=0.13&context=512"), "or by the estimate"
    with sized.catalog.writing() as session:
        base = model_by_text(session, "local/base")
        session.add(
            ModelMetadata(
                model_id=base.id, position=10_000, type="uint32", key=f"{base.architecture}.context_length", value="700"
            )
        )
    assert "The model was trained for at most 700 tokens" in section(client, "?memory=0.13&context=701")
    assert "with a context of 700 tokens" in section(client, "?memory=0.13")


class Estimate:
    """An estimate of 100 MB beside the file."""

    context, cache_bytes, is_most, buffers_bytes, beside_bytes = 512, 90_000_000, True, 10_000_000, 100_000_000


def test_a_header_without_plain_numbers_gives_no_estimate(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("organs.web.pages.sizes.estimated_memory", lambda *_: None)
    text = section(client, "?memory=8")
    assert "nothing is estimated" in text
    assert "Download" not in text
    assert "organ memory local/base --context 4096" in text


@pytest.mark.parametrize(
    "query",
    ["memory=x", "memory=-1", "memory=nan", "memory=inf", "memory=1e9", "memory=8&context=0", "memory=8&context=x"],
)
def test_an_impossible_memory_is_refused(query: str, client: FlaskClient) -> None:
    answer = client.get(f"{BASE}?{query}")
    assert answer.status_code == 400
    assert "tokens" in answer.text


def jobs(registry: LocalRegistry) -> list[dict[str, Any]]:
    with registry.catalog.reading() as session:
        return [job.arguments for job in active_jobs(session, "quantize")]


def test_who_may_write_starts_a_size_on_the_page(sized: LocalRegistry) -> None:
    app = create_app(sized)
    ada = log_in(app, new_token(sized, "ada", "upload"))
    assert "Make this size" in section(ada)
    answer = send_form(ada, f"{BASE}/sizes", BASE, size="6.5 bits")
    assert (answer.status_code, answer.headers["Location"]) == (303, f"{BASE}@1#sizes")
    assert jobs(sized) == [{"model": "local/base@1", "bits": 6.5}]
    assert "A size for 6.5bpw is queued: job 1" in section(ada)
    assert "is queued" not in section(app.test_client())
    wrong = send_form(ada, f"{BASE}/sizes", BASE, size="huge", minutes="7")
    assert wrong.status_code == 400
    form = wrong.text.partition('id="make-size"')[2].partition("</form>")[0]
    assert "✕ &#39;huge&#39; is not a size: write for example 4 GB, 4.5 bits or Q4_K_M.</span>" in form
    assert 'name="size" value="huge"' in form, "what was typed is kept"
    assert 'name="minutes" value="7"' in form
    reader = log_in(app, new_token(sized, "bob", "read"))
    assert "Make this size" not in section(reader)
    assert send_form(reader, f"{BASE}/sizes", BASE, size="4 GB").status_code == 403
    assert len(jobs(sized)) == 1
    assert 'data-follow="/jobs/1.json"' in ada.get(BASE).text
    problem = json.dumps({"code": "too-little-time", "minutes": 12})
    with sized.catalog.writing() as session:
        session.execute(update(JobRow).values(state="failed", note="it takes 11 minutes", problem=problem))
    assert "The last size, for 6.5bpw, was not made: it takes 11 minutes: job 1" in section(ada)
    assert "11 minutes" not in section(reader)
    again = f'<a class="button" href="{BASE}@1?minutes=12&amp;size=6.5+bits#make-size">Try again with 12 minutes</a>'
    assert again in ada.get(BASE).text
    assert again in ada.get("/jobs/1").text
    filled = ada.get(f"{BASE}@1?minutes=12&size=6.5+bits").text
    assert ('value="6.5 bits" list' in filled, 'name="minutes" value="12"' in filled) == (True, True)
    assert '<input type="hidden" name="plain" value="Q4_K_M">' in filled
    with sized.catalog.writing() as session:
        session.execute(update(JobRow).values(problem=problem.replace("12", "3000")))
    too_long = ada.get(BASE).text
    assert "Try again with" not in too_long, "the form takes a day at the most"
    assert '<input type="hidden" name="plain" value="Q4_K_M">' in too_long
    assert send_form(ada, f"{BASE}/sizes", BASE, plain="Q4_K_M").status_code == 303
    assert jobs(sized) == [{"model": "local/base@1", "type": "Q4_K_M"}]
    answer = send_form(ada, f"{BASE}/sizes", BASE, fits="1", memory="0.5", context="512", minutes="3", twice="on")
    assert answer.status_code == 303
    assert jobs(sized)[-1:] == [
        {
            "model": "local/base@1",
            "memory_bytes": 500_000_000,
            "context": 512,
            "minutes": 3.0,
            "accept": ["rounded-twice"],
        }
    ]
    assert "A size for a memory of 500.0 MB is queued" in section(ada)
    for memory in ("1e-10", "nan", "1e9"):
        answer = send_form(ada, f"{BASE}/sizes", BASE, fits="1", memory=memory, context="512")
        assert answer.status_code == 400, "it would be no bytes, or no number"
    for minutes in ("0", "x", "1e9"):
        assert send_form(ada, f"{BASE}/sizes", BASE, size="6 bits", minutes=minutes).status_code == 400


def test_a_quantised_model_is_rounded_again_only_if_that_is_accepted(sized: LocalRegistry) -> None:
    with sized.catalog.writing() as session:
        session.execute(update(ModelRow).where(ModelRow.name == "base").values(quantisation="Q4_1"))
    ada = log_in(create_app(sized), new_token(sized, "ada", "upload"))
    for how in ({"size": "6.5 bits"}, {"fits": "1", "memory": "0.5", "context": "512"}, {"plain": "Q4_K_M"}):
        refused = send_form(ada, f"{BASE}/sizes", BASE, **how)
        assert (refused.status_code, refused.text.count("mark this box to round its weights")) == (409, 1), how
    assert jobs(sized) == []
    assert send_form(ada, f"{BASE}/sizes", BASE, size="6.5 bits", twice="on").status_code == 303


def test_a_read_only_server_shows_the_command(sized: LocalRegistry) -> None:
    with create_app(sized, WebSettings(read_only=True)).test_client() as client:
        assert "On the registry's machine, organ quantize local/base --like Q4_K_M" in section(client).replace(
            "&#39;", "'"
        )
        assert client.post(f"{BASE}/sizes", data={"size": "4 GB"}).status_code in (400, 403)


def test_hostile_labels_are_text(sized: LocalRegistry) -> None:
    add_size(sized, "local/base", "<script>alert(1)</script>", 25_000_000, 0.02, kind="plain")
    with create_app(sized).test_client() as client:
        assert "<script>alert(1)" not in client.get(BASE).text
        assert b"<script>" not in client.get(f"{BASE}/sizes.svg").data
