"""The pages on which a chimera is put together: every state is an address, every wrong step a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry.amounts import weight_change_text
from organs.registry.catalog.tables import JobRow
from organs.registry.compose.recipe import read_recipe
from organs.registry.compose.screen import KNOWN, ChangeKind
from organs.registry.compose.steps import PARAMETERS, read_steps
from organs.registry.entities.plan import CellTotals
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.pages.anatomy import (
    cell_grid,
    letters,
)
from organs.web.settings import WebSettings
from tests.gguf_files import file_bytes
from tests.random_files import BESIDE_FIXTURES
from tests.related_models import ingest_bytes, model_file, related_tensors
from tests.small_models import block_metadata, block_tensors, ingest_file
from tests.web.accounts import send_form
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


def test_without_a_base_each_model_is_offered_once_and_waiting_steps_are_kept(family_client: FlaskClient) -> None:
    page = page_at(family_client, f"/compose?{urlencode([GRAFT])}")
    offered = [one.attributes["href"] for one in page.named("a") if "base=local" in (one.attributes.get("href") or "")]
    assert len(offered) == len({*offered}) == 3
    assert links_with(page, ("base", BASE), GRAFT)
    hidden = [one.attributes.get("value") for one in page.named("input") if one.attributes.get("type") == "hidden"]
    assert GRAFT[1] in hidden
    assert GRAFT[1] in page.text
    found = page_at(family_client, "/compose?q=tuned")
    assert links_with(found, ("base", TUNED))
    assert not links_with(found, ("base", BASE))


def test_an_unknown_base_is_404_and_other_bases_are_offered(family_client: FlaskClient) -> None:
    for name, status in (("local/nobody", 404), ("!!", 400), ("sha256:0123456789abcdef", 404), (HOSTILE, 400)):
        assert links_with(page_at(family_client, address(base=name), 404), ("base", BASE))
        assert family_client.get(address(base=name, path="/compose.json"), follow_redirects=True).status_code == status


@pytest.mark.long
def test_every_cell_of_the_base_links_to_its_candidates(family_client: FlaskClient) -> None:
    cells = {one["cell"] for one in values_of(family_client)["cells"]}
    assert cells >= {"organ:0", "organ:1", "skeleton:0", "norm:1"}
    page = page_of(family_client)
    for cell in cells:
        (link,) = links_with(page, ("cell", cell))
        assert "Donors" in page_at(family_client, link).text


def test_each_candidate_is_shown_in_plain_words_with_its_change_and_a_link_that_grafts_it(
    family_client: FlaskClient,
) -> None:
    nearest, stranger = values_of(family_client, ("cell", "organ:1"))["candidates"]["items"]
    assert (nearest["model"], stranger["model"]) == (TUNED, STRANGER)
    assert nearest["likeness"] > 0.9 > 0.3 > stranger["likeness"]
    page = page_of(family_client, ("cell", "organ:1"))
    assert "Donors for feed-forward, block 1" in page.text
    assert "skeleton" not in page.text
    assert f">{weight_change_text(nearest['change'])}</td>" in family_client.get(address(("cell", "organ:1"))).text
    (link,) = links_with(page, GRAFT)
    plan = values_of(family_client, *steps_in(link)[1:])["plan"]
    assert {(part["model"], part["type"], part["block"]) for part in plan["parts"]} == {(TUNED, "organ", 1)}


def test_candidates_are_sorted_by_likeness_by_default(
    family_client: FlaskClient, registry: LocalRegistry, tmp_path: Path
) -> None:
    for name, correlation in (("nearer", 0.999), ("further", 0.9)):
        ingest_bytes(registry, tmp_path, name, model_file(name, related_tensors(correlation=correlation)))
    items = values_of(family_client, ("cell", "organ:1"))["candidates"]["items"]
    assert [one["model"] for one in items] == ["local/nearer@1", TUNED, "local/further@1", STRANGER]
    for order, key in (("-theta", "theta"), ("-spectral", "spectral_signal")):
        found = values_of(family_client, ("cell", "organ:1"), ("order", order))["candidates"]["items"]
        assert {one["model"] for one in found} == {one["model"] for one in items}
        tops = [max(organ["theta"] for organ in one["organs"]) for one in found]
        assert key != "theta" or tops == sorted(tops, reverse=True)
    page = page_of(family_client, ("cell", "organ:1"))
    (chosen,) = [one for one in page.named("a") if (one.attributes.get("data-key") or "") == "order change"]
    assert chosen.attributes["aria-current"] == "true"


def test_another_donor_for_the_same_cell_replaces_the_first(family_client: FlaskClient) -> None:
    (link,) = links_with(page_of(family_client, GRAFT, ("cell", "organ:1")), STRANGE)
    assert [text for name, text in steps_in(link) if name == "graft"] == [STRANGE[1]]


def test_models_that_fit_are_shown_with_their_change_and_one_link_for_each_type(family_client: FlaskClient) -> None:
    (one, *_) = values_of(family_client)["fitting"]["items"]
    assert one["model"] == TUNED
    assert f">{weight_change_text(one['change'])}</td>" in family_client.get(address()).text
    for kind in ("organ", "skeleton"):
        assert links_with(page_of(family_client), ("graft", f"from:{TUNED} type:{kind}"))


@pytest.mark.parametrize(
    ("writes", "steps", "links"),
    [
        (True, [], []),
        (True, [GRAFT], ["#steps", "#create"]),
        (True, [STRANGE], ["#steps", "#findings"]),
        (False, [GRAFT], ["#steps", "#recipe"]),
    ],
    ids=["no step", "it can be made", "a warning is open", "nobody may write"],
)
def test_the_next_thing_to_do_is_linked_at_the_top(
    registry: LocalRegistry, family_client: FlaskClient, writes: bool, steps: list[tuple[str, str]], links: list[str]
) -> None:
    with create_app(registry, WebSettings(personal=writes)).test_client() as client:
        html = client.get(address(*steps)).text
    found = re.search(r'<p class="sofar.*?</p>', html, re.DOTALL)
    assert (re.findall(r'href="#([^"]+)"', found[0]) if found else []) == [link[1:] for link in links]
    assert all(f'id="{link[1:]}"' in html for link in links)


def test_cells_that_change_are_marked_by_a_letter_that_the_legend_explains(family_client: FlaskClient) -> None:
    page = page_of(family_client, GRAFT, ("purify", "method:fractal type:skeleton blocks:0"))
    said = [one.attributes.get("aria-label") or "" for one in page.named("a")]
    assert [one for one in said if one.startswith("block 1, feed-forward") and one.endswith(f"from {TUNED}")]
    assert [one for one in said if one.startswith("block 0, attention") and one.endswith("purified")]
    assert f"A {TUNED}: grafted" in page.text
    assert "✱ purified" in page.text


def test_each_step_has_a_link_that_removes_it(family_client: FlaskClient) -> None:
    steps = [GRAFT, ("purify", "method:fractal blocks:0 type:organ"), ("meta", "general.name=Mine")]
    page = page_of(family_client, *steps)
    for step in steps:
        left = [("base", BASE), *(one for one in steps if one != step)]
        assert [link for link in page.links() if urlsplit(link).path == "/compose" and steps_in(link) == left], step


def test_every_finding_is_shown_with_its_code_and_a_refused_plan_has_no_screen(family_client: FlaskClient) -> None:
    assert "From the weights: Related" in page_of(family_client, GRAFT).text
    steps = (STRANGE, ("graft", "from:local/nobody type:organ blocks:0"), ("graft", f"from:{TUNED} blocks:99"))
    findings = values_of(family_client, *steps)["findings"]
    page = page_of(family_client, *steps)
    assert {one["severity"] for one in findings} == {"refuse", "warn", "info"}
    for one in findings:
        assert one["sentence"] in page.text
        assert one["code"] in page.text
    assert all(word in page.text for word in ("✕ refused", "▲ warning", "i note"))
    assert "Create the chimera" not in page.text
    assert "From the weights" not in page.text


def test_a_graft_of_the_embedding_says_that_it_is_also_the_output(family_client: FlaskClient) -> None:
    findings = values_of(family_client, ("graft", f"from:{TUNED} type:embed"))["findings"]
    assert ["token_embd.weight"] in [one["organs"] for one in findings if one["code"] == "tied-output"]


def test_a_warning_has_a_link_that_accepts_it_and_a_link_that_undoes_this(family_client: FlaskClient) -> None:
    accepted = ("accept", "unrelated-lineage")
    page = page_of(family_client, STRANGE)
    assert "It cannot be created yet" in page.text
    (link,) = links_with(page, accepted)
    assert values_of(family_client, *steps_in(link)[1:])["can_be_made"] is True
    page = page_of(family_client, STRANGE, accepted)
    assert "▲ accepted" in page.text
    back = [("base", BASE), STRANGE]
    assert [link for link in page.links() if urlsplit(link).path == "/compose" and steps_in(link) == back]


def test_the_page_shows_numbers_and_the_recipe_of_its_address(family_client: FlaskClient) -> None:
    values = values_of(family_client, GRAFT)
    page = page_of(family_client, GRAFT)
    assert values["plan"]["screen"]["sentence"] in page.text
    yaml = values["yaml"]
    assert yaml in page.text
    assert read_recipe(yaml) == read_steps([("base", BASE), GRAFT])
    assert "organ compose recipe.yaml -o " in page.text
    assert f"chimera.graft({TUNED!r}, type='organ', blocks='1')" in page.text


def test_invalid_steps_get_an_error_beside_them_and_the_others_are_drawn(family_client: FlaskClient) -> None:
    wrong = ("graft", "rubbish")
    page = page_of(family_client, GRAFT, wrong, ("purify", "method:magic"), status=400)
    assert "'rubbish' cannot be read" in page.text
    assert "'magic' is not one of spectral, fractal" in page.text
    assert f"from {TUNED}" in " ".join(one.attributes.get("aria-label") or "" for one in page.named("a"))
    assert "Create the chimera" not in page.text
    twin = family_client.get(address(GRAFT, wrong, path="/compose.json"), follow_redirects=True)
    assert (twin.status_code, twin.get_json()["code"]) == (400, "bad-recipe")
    assert [one["field"] for one in twin.get_json()["errors"]] == ["grafts[1]"]


@pytest.mark.parametrize("cell", ["x", "organ", "organ:", "organ:-1", "organ:1e9", ":2", "organ:99999999999", HOSTILE])
def test_an_invalid_cell_is_400(family_client: FlaskClient, cell: str) -> None:
    answer = family_client.get(address(("cell", cell), path="/compose.json"), follow_redirects=True)
    assert answer.status_code == 400
    assert answer.get_json()["errors"][0]["field"] == "cell"


def test_a_cell_that_the_base_lacks_has_no_candidates(family_client: FlaskClient) -> None:
    for cell in ("organ:77", "organ:0:vision", "embed:3"):
        text = page_of(family_client, ("cell", cell)).text
        assert "No other model has a different organ that fits here" in text, cell


def test_the_page_begins_with_what_fits_until_there_is_a_step(family_client: FlaskClient) -> None:
    for steps, first in (((), "whole"), ((GRAFT,), "anatomy")):
        headings = re.findall(r'<h2 id="(\w+)"', family_client.get(address(*steps)).text)
        assert sorted(("whole", "anatomy"), key=headings.index)[0] == first
        assert headings.count("whole") == 1


def test_a_wrong_name_can_be_corrected_where_it_was_typed(family_client: FlaskClient) -> None:
    page = family_client.get("/compose?base=base&graft=from:tuned+type:organ&name=my+name!").text
    form = page[page.index('<form class="create"') :]
    assert 'value="my name!"' in form
    assert "is not a name: use letters and digits" in form[: form.index("</form>")]
    assert 'name="graft"' in form[: form.index("</form>")]


@pytest.mark.parametrize(
    ("fields", "step"),
    [
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
        ({"add": "encode", "dtype": "F16"}, ("encode", "F16")),
        ({"add": "meta", "key": "general.name", "value": "A & B"}, ("meta", "general.name=A & B")),
    ],
)
def test_submitting_a_form_opens_the_page_with_its_step(
    family_client: FlaskClient, fields: dict[str, str], step: tuple[str, str]
) -> None:
    answer = family_client.get("/compose", query_string={"base": BASE, **fields})
    assert answer.status_code == 303
    location = answer.headers["Location"]
    assert location.startswith("/compose?")
    assert steps_in(location) == [("base", BASE), step]


def test_the_forms_say_what_a_purification_costs_and_an_unknown_form_is_refused(family_client: FlaskClient) -> None:
    assert KNOWN[ChangeKind.PURIFIED].sentence in page_of(family_client).text
    assert family_client.get(f"/compose?base={BASE}&add=magic").status_code == 400


def test_a_form_keeps_the_parameters_of_the_address(family_client: FlaskClient) -> None:
    page = page_of(family_client, GRAFT, ("meta", "a=b c"), ("accept", "other-scale"), ("cell", "organ:0"))
    hidden = [
        (one.attributes["name"], one.attributes["value"])
        for one in page.named("input")
        if one.attributes.get("type") == "hidden"
    ]
    assert hidden.count(GRAFT) == hidden.count(("cell", "organ:0")) > 2


def test_creating_queues_the_recipe_and_shows_its_job(writing: FlaskClient, registry: LocalRegistry) -> None:
    fields = [("base", BASE), GRAFT, ("meta", 'general.description="two\\nlines"'), ("name", "local/mine")]
    answer = send_form(writing, "/compose", address(GRAFT), **dict(fields))
    assert (answer.status_code, answer.headers["Location"]) == (303, "/jobs/1")
    assert answer.headers["Cache-Control"] == "no-store"
    ((kind, arguments),) = jobs(registry)
    assert kind == "compose"
    assert read_recipe(json.dumps(arguments["recipe"])) == read_steps(fields)


@pytest.mark.parametrize(
    ("steps", "status", "told"),
    [
        ([("base", BASE)], 409, "Nothing of local/base@1 is replaced"),
        ([("base", BASE), STRANGE], 409, "unrelated-lineage"),
        ([("base", BASE), ("graft", "rubbish")], 400, "cannot be read"),
        ([("base", "local/nobody"), GRAFT], 404, "nobody"),
        ([GRAFT], 400, "Choose a base first"),
        ([("base", BASE), GRAFT, ("name", "a name")], 400, "'a name' is not a name"),
    ],
    ids=lambda one: str(one)[:50],
)
def test_an_impossible_recipe_is_not_queued_and_the_page_says_why(
    writing: FlaskClient, registry: LocalRegistry, steps: list[tuple[str, str]], status: int, told: str
) -> None:
    answer = send_form(writing, "/compose", address(GRAFT), **dict(steps))
    assert answer.status_code == status
    assert told in parse_page(answer.text).text
    assert jobs(registry) == []


def test_a_client_without_an_account_gets_no_form_and_sees_another_way(family_client: FlaskClient) -> None:
    page = page_of(family_client, GRAFT)
    assert [one for one in page.named("form") if one.attributes.get("method") == "post"] == []
    assert "Log in to create it" in page.text


def test_the_page_of_two_models_shows_what_fits_and_what_the_weights_say(family_client: FlaskClient) -> None:
    asked = f"base={BASE}&donor={STRANGER}"
    told = found_at(family_client, f"/compose/fits.json?{asked}")
    text = page_at(family_client, f"/compose/fits?{asked}").text
    assert any(one["code"] == "unrelated-lineage" for one in told["findings"])
    for one in told["findings"]:
        assert one["sentence"] in text
    (of_organs,) = [one["screen"] for one in told["types"] if one["type"] == "organ"]
    assert of_organs["sentence"].partition(":")[0] in text
    assert family_client.get("/compose/fits").status_code == 200
    for name in ("base", "donor"):
        page_at(family_client, "/compose/fits", 404, **{"base": BASE, "donor": STRANGER, name: "local/nobody"})


def test_model_and_organ_pages_link_to_composing(family_client: FlaskClient) -> None:
    assert links_with(page_at(family_client, "/models/local/base"), ("base", BASE))
    digest = found_at(family_client, "/api/v1/models/local/tuned/organs?limit=1000")["items"][-1]["digest"]
    links = links_with(page_at(family_client, f"/organs/{digest}"))
    (link,) = [one for one in links if steps_in(one)[0][0] == "graft"]
    assert "Steps that need a base" in page_at(family_client, link).text


def test_a_hostile_text_in_any_step_is_text(hostile_client: FlaskClient) -> None:
    attack = [(name, HOSTILE) for name in PARAMETERS if name != "base"]
    answer = hostile_client.get(address(*attack, base="local/hostile"))
    assert answer.status_code == 400
    assert HOSTILE in parse_page(answer.text).text
    assert "<script>alert" not in answer.text


NAMES = st.sampled_from([*PARAMETERS, "cell", "order", "q", "add"])


@settings(BESIDE_FIXTURES, max_examples=20)
@given(steps=st.lists(st.tuples(NAMES, st.text(max_size=40)), max_size=6))
def test_every_address_with_any_steps_is_answered(family_client: FlaskClient, steps: list[tuple[str, str]]) -> None:
    asked = urlencode([("base", BASE), *steps])
    for path in ("/compose", "/compose.json", "/compose/fits"):
        assert family_client.get(f"{path}?{asked}").status_code < 500, path


def test_a_base_with_very_many_blocks_is_drawn_in_part() -> None:
    cells = [
        CellTotals(
            cell=f"organ:{block}", type="organ", block=block, tower="text", slots=(), models=(), purified=0, organs=1,
            changed=0, to_compute=0, theta_before=30.0, theta=30.0, theta_taken=30.0, size_bytes_before=1, size_bytes=1,
        )
        for block in range(1000)
    ]  # fmt: skip
    grid = cell_grid(cells, {}, "", lambda name: name)
    assert (len(grid["rows"]), grid["left_out"]) == (600, 400)


def test_parents_have_letters_and_the_base_has_none() -> None:
    given_letters = letters(["base", *(f"donor {number}" for number in range(30))])
    assert "base" not in given_letters
    assert [given_letters[f"donor {number}"] for number in (0, 1, 25, 26)] == ["A", "B", "Z", "A2"]


def test_a_block_of_several_towers_is_grafted_by_its_own_tower(registry: LocalRegistry, tmp_path: Path) -> None:
    for name, seed in (("two", 0), ("other", 1)):
        text, vision = block_tensors(1, seed=seed), block_tensors(1, seed=seed + 5)
        own = [(replace(spec, name=f"v.{spec.name}"), plain) for spec, plain in vision if "blk" in spec.name]
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(file_bytes(block_metadata(name), [*text, *own]))
        ingest_file(registry, path)
    with create_app(registry).test_client() as client:
        page = page_at(client, address(("cell", "organ:0:vision"), base="local/two@1"))
        (link,) = links_with(page, ("graft", 'where:"model:local/other@1 tower:vision" type:organ blocks:0'))
        plan = found_at(client, link.replace("/compose?", "/compose.json?"))["plan"]
        assert {part["tower"] for part in plan["parts"]} == {"vision"}
