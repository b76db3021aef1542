"""The pages on which a chimera is put together: every state is an address, every wrong step a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry.catalog.tables import JobRow
from organs.registry.compose.recipe import read_recipe
from organs.registry.compose.steps import PARAMETERS, read_steps
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.pages.chimera_names import proposed_name
from organs.web.settings import WebSettings
from tests.gguf_files import file_bytes
from tests.random_files import BESIDE_FIXTURES
from tests.related_models import ingest_all, related_tensors
from tests.small_models import block_metadata, block_tensors, ingest_file
from tests.web.accounts import form_token, send_form
from tests.web.conftest import HOSTILE
from tests.web.page_parser import ParsedPage, found_at, page_at, parse_page

BASE, TUNED, STRANGER = (f"local/{name}@1" for name in ("base", "tuned", "stranger"))
GRAFT = ("graft", f"from:{TUNED} type:organ blocks:1")
STRANGE = ("graft", f"from:{STRANGER} type:organ blocks:1")


def address(*steps: tuple[str, str], base: str = BASE, path: str = "/compose") -> str:
    return f"{path}?{urlencode([('base', base), *steps])}"


def page_of(client: FlaskClient, *steps: tuple[str, str], status: int = 200) -> ParsedPage:
    return page_at(client, address(*steps), status)


def values_of(client: FlaskClient, *steps: tuple[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = found_at(client, address(*steps, path="/compose.json"))
    return found


def steps_in(link: str) -> list[tuple[str, str]]:
    return parse_qsl(urlsplit(link).query, strict_parsing=True)


def links_with(page: ParsedPage, *steps: tuple[str, str]) -> list[str]:
    """The links of the page to a compose page that has all of `steps`."""
    found = [link for link in page.links() if urlsplit(link).path == "/compose" and urlsplit(link).query]
    return [link for link in found if {*steps} <= {*steps_in(link)}]


@pytest.fixture
def writing(family_client: FlaskClient, registry: LocalRegistry) -> Iterator[FlaskClient]:
    """A client of the same catalog behind a server that writes."""
    with create_app(registry, WebSettings(personal=True)).test_client() as client:
        yield client


def jobs(registry: LocalRegistry) -> list[tuple[str, dict[str, Any]]]:
    with registry.catalog.reading() as session:
        return [(job.kind, json.loads(job.arguments)) for job in session.query(JobRow).order_by(JobRow.id)]


def test_candidates_are_sorted_by_likeness_by_default(
    family_client: FlaskClient, registry: LocalRegistry, tmp_path: Path
) -> None:
    further = related_tensors(correlation=0.9)
    ingest_all(registry, tmp_path, nearer=related_tensors(correlation=0.999), further=further)
    items = values_of(family_client, ("cell", "organ:1"))["candidates"]["items"]
    assert [one["model"] for one in items] == ["local/nearer@1", TUNED, "local/further@1", STRANGER]
    found = values_of(family_client, ("cell", "organ:1"), ("order", "-theta"))["candidates"]["items"]
    assert {one["model"] for one in found} == {one["model"] for one in items}
    tops = [max(organ["theta"] for organ in one["organs"]) for one in found]
    assert tops == sorted(tops, reverse=True)


def test_another_donor_for_the_same_cell_replaces_the_first(family_client: FlaskClient) -> None:
    (link,) = links_with(page_of(family_client, GRAFT, ("cell", "organ:1")), STRANGE)
    assert [text for name, text in steps_in(link) if name == "graft"] == [STRANGE[1]]


def test_a_graft_of_the_embedding_says_that_it_is_also_the_output(family_client: FlaskClient) -> None:
    findings = values_of(family_client, ("graft", f"from:{TUNED} type:embed"))["findings"]
    assert ["token_embd.weight"] in [one["organs"] for one in findings if one["code"] == "tied-output"]


def test_an_invalid_cell_is_400(family_client: FlaskClient) -> None:
    for cell in ("organ", "organ:-1", "organ:99999999999", HOSTILE):
        answer = family_client.get(address(("cell", cell), path="/compose.json"), follow_redirects=True)
        assert answer.status_code == 400, cell
        assert answer.get_json()["errors"][0]["field"] == "cell"


def test_a_cell_that_the_base_lacks_has_no_candidates(family_client: FlaskClient) -> None:
    for cell in ("organ:77", "organ:0:vision", "embed:3"):
        text = page_of(family_client, ("cell", cell)).text
        assert "No other model here has another tensor that fits this place" in text, cell


def test_submitting_a_form_opens_the_page_with_its_step(family_client: FlaskClient) -> None:
    for fields, step in (
        ({"add": "graft", "from": TUNED, "type": "organ", "blocks": "1", "where": "", "sort": ""}, GRAFT),
        (
            {"add": "graft", "where": "type:organ theta>=4", "sort": "-theta"},
            ("graft", 'where:"type:organ theta>=4" sort:-theta'),
        ),
        (
            {"add": "graft", "where": "likeness>=0.9", "sort": "-likeness", "strangers": "true"},
            ("graft", "where:likeness>=0.9 sort:-likeness strangers:true"),
        ),
        ({"add": "adapter", "from": "local/x", "scale": "0.5"}, ("adapter", "from:local/x scale:0.5")),
        ({"add": "purify", "method": "spectral", "keep": "0.9"}, ("purify", "method:spectral keep:0.9")),
        (
            {"add": "purify", "method": "fractal", "type": "organ", "experts": "5,17"},
            ("purify", "method:fractal type:organ experts:5,17"),
        ),
        (
            {"add": "blend", "from": f"{TUNED}, local/x", "weight": "0.5", "method": "ties"},
            ("blend", 'method:ties weight:0.5 models:"[{\\"from\\":\\"local/tuned@1\\"},{\\"from\\":\\"local/x\\"}]"'),
        ),
        ({"add": "encode", "dtype": "F16"}, ("encode", "F16")),
        ({"add": "source", "weights": "given"}, ("source", "given")),
        ({"add": "meta", "key": "general.name", "value": "A & B"}, ("meta", "general.name=A & B")),
    ):
        answer = family_client.get("/compose", query_string={"base": BASE, **fields})
        assert answer.status_code == 303, fields
        location = answer.headers["Location"]
        assert location.startswith("/compose?")
        assert steps_in(location) == [("base", BASE), step]
    assert family_client.get(f"/compose?base={BASE}&add=magic").status_code == 400


def test_creating_queues_the_recipe_and_opens_what_its_job_makes(writing: FlaskClient, registry: LocalRegistry) -> None:
    fields = [("base", BASE), GRAFT, ("meta", 'general.description="two\\nlines"'), ("name", "local/mine")]
    answer = send_form(writing, "/compose", address(GRAFT), **dict(fields))
    assert (answer.status_code, answer.headers["Location"]) == (303, "/jobs/1?opens=model")
    assert answer.headers["Cache-Control"] == "no-store"
    ((kind, arguments),) = jobs(registry)
    assert kind == "compose"
    assert read_recipe(json.dumps(arguments["recipe"])) == read_steps(fields)
    page = parse_page(writing.get("/jobs/1?opens=model").text).text
    assert page.index("The page of local/mine opens by itself when it is made.") < page.index("Cancel this job")
    send_form(writing, "/compose", address(GRAFT), base=BASE, graft=GRAFT[1], name="my coder!")
    assert jobs(registry)[-1][1]["recipe"]["name"] == "my-coder"
    send_form(writing, "/compose", address(GRAFT), base=BASE, graft=GRAFT[1], name="")
    assert jobs(registry)[-1][1]["proposed_name"] == "base-with-tuned"
    assert "name" not in jobs(registry)[-1][1]["recipe"]
    assert 'placeholder="base-with-tuned"' in writing.get(address(GRAFT)).text


def test_the_proposed_name_says_what_the_donors_add(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_all(registry, tmp_path, **{own: related_tensors() for own in ("base-with-tuned", "base-with-tuned-2")})
    cases: list[tuple[str, list[str], str | None]] = [
        ("local/SmolLM2-135M-Instruct-F16@1", ["me/SmolLM2-135M-Code-F16@2"], "SmolLM2-135M-Instruct-with-Code"),
        ("local/Zoo-v1.0-F16@1", ["x/Zoo-Code-v1.0-Q8_0@1", "x/Zoo-Prose-F16@1"], "Zoo-v1.0-with-Code-Prose"),
        ("local/tiny.Q4_1@1", ["a/tiny-b@1", "a/tiny-c@1", "a/tiny-d@1"], "tiny-with-b-c-more"),
        ("local/tiny-F16@1", ["a/tiny-Q8_0@1"], "tiny-with-tiny"),
        ("local/base-F16@1", ["local/tuned@1"], "base-with-tuned-3"),
        ("local/" + "a" * 96 + "@1", ["b/" + "c" * 96 + "@1"], f"{'a' * 40}-with-{'c' * 34}"),
        ("local/base@1", [], None),
    ]
    with registry.catalog.reading() as session:
        for base, donors, name in cases:
            assert proposed_name(session, "local", base, donors) == name


def test_an_impossible_recipe_is_not_queued_and_the_page_says_why(
    writing: FlaskClient, registry: LocalRegistry
) -> None:
    token = form_token(writing, address(GRAFT))
    for steps, status, told in (
        ([("base", BASE), STRANGE], 409, "unrelated-lineage"),
        ([("base", BASE), ("graft", "rubbish")], 400, "cannot be read"),
        ([("base", "local/nobody"), GRAFT], 404, "nobody"),
        ([GRAFT], 400, "Choose a base first"),
        ([("base", BASE), GRAFT, ("name", "mine@2")], 400, "version"),
    ):
        answer = writing.post("/compose", data={"form_token": token, **dict(steps)})
        assert answer.status_code == status, steps
        assert told in parse_page(answer.text).text
    assert jobs(registry) == []


def test_a_hostile_text_in_any_step_is_text(hostile_client: FlaskClient) -> None:
    attack = [(name, HOSTILE) for name in PARAMETERS if name != "base"]
    answer = hostile_client.get(address(*attack, base="local/hostile"))
    assert answer.status_code == 400
    assert HOSTILE in parse_page(answer.text).text
    assert "<script>alert" not in answer.text


NAMES = st.sampled_from([*PARAMETERS, "cell", "order", "q", "add", "donor", "share", "find"])


@settings(BESIDE_FIXTURES, max_examples=20)
@given(steps=st.lists(st.tuples(NAMES, st.text(max_size=40)), max_size=6))
def test_every_address_with_any_steps_is_answered(family_client: FlaskClient, steps: list[tuple[str, str]]) -> None:
    asked = urlencode([("base", BASE), *steps])
    for path in ("/compose", "/compose.json", "/compose/fits"):
        assert family_client.get(f"{path}?{asked}").status_code < 500, path


def test_a_click_gives_parts_of_the_selected_donor_and_a_second_click_gives_them_back(
    family_client: FlaskClient,
) -> None:
    page = page_of(family_client, ("donor", TUNED))
    for step in ("type:organ blocks:0", "type:organ", "type:skeleton,organ,norm blocks:1", "slot:output_norm"):
        assert len(links_with(page, ("graft", f"from:{TUNED} {step}"), ("donor", TUNED))) == 1, step
    after = page_of(family_client, ("donor", TUNED), ("graft", f"from:{TUNED} type:organ"))
    links = [link for link in after.links() if ("donor", TUNED) in steps_in(link)]
    assert ("graft", f"from:{TUNED} type:organ blocks:0") in {step for link in links for step in steps_in(link)}
    assert any("graft" not in dict(steps_in(link)) for link in links)
    assert "feed-forward from tuned" in after.text


def test_a_weight_blends_and_a_band_gives_several_blocks(family_client: FlaskClient) -> None:
    half = ("blend", f"from:{TUNED} type:organ blocks:1 weight:0.5")
    band = [("graft", f"from:{TUNED} type:skeleton,organ"), ("graft", f"from:{TUNED} type:norm blocks:0-1")]
    for steps, fields, expected in (
        ([GRAFT], {"add": "share", "share": "0.5"}, [half]),
        ([half], {"add": "share", "share": "1"}, [GRAFT]),
        ([], {"add": "share", "share": "0.5"}, [("share", "0.5")]),
        ([("share", "0.5")], {"add": "cells", "type": "organ", "blocks": "1"}, [half, ("share", "0.5")]),
        ([], {"add": "cells", "type": "", "blocks": "0-1"}, band),
        ([], {"add": "cells", "type": "norm", "blocks": ""}, [("graft", f"from:{TUNED} type:norm")]),
    ):
        answer = family_client.get(address(*steps, ("donor", TUNED), *fields.items()))
        assert answer.status_code == 303, fields
        found = [step for step in steps_in(answer.headers["Location"]) if step[0] not in ("base", "donor")]
        assert found == expected, fields
    for wrong in ([("donor", TUNED), ("add", "cells"), ("blocks", "5-2")], [("add", "cells")], [("add", "share")]):
        assert family_client.get(address(*wrong)).status_code == 400, wrong


def test_donors_are_found_by_words_and_those_that_do_not_fit_are_counted(family_client: FlaskClient) -> None:
    page = page_of(family_client, ("find", "stranger"))
    assert "unrelated: produces garbage" in page.text
    assert "tuned" not in page.text
    assert "Nothing that fits this base matches" in page_of(family_client, ("find", "nobody")).text
    assert "magic" in page_of(family_client, ("find", "sort:magic")).text


def test_a_block_of_several_towers_is_grafted_by_its_own_tower(registry: LocalRegistry, tmp_path: Path) -> None:
    for name, seed in (("two", 0), ("other", 1)):
        text, vision = block_tensors(1, seed=seed), block_tensors(1, seed=seed + 5)
        own = [(replace(spec, name=f"v.{spec.name}"), plain) for spec, plain in vision if "blk" in spec.name]
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(file_bytes(block_metadata(name), [*text, *own]))
        ingest_file(registry, path)
    with create_app(registry).test_client() as client:
        page = page_at(client, address(("cell", "organ:0:vision"), base="local/two@1"))
        (link,) = links_with(page, ("graft", 'where:"model:local/other@1 tower:vision" type:organ'))
        plan = found_at(client, link.replace("/compose?", "/compose.json?"))["plan"]
        assert {part["tower"] for part in plan["parts"]} == {"vision"}
