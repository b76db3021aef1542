"""Pages of chimeras, their files, and what other pages say of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import msgspec
import pytest
from flask.testing import FlaskClient

from organs.ingest.jobs.runner import Runner, add_job
from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.queries.jobs import active_jobs
from organs.registry.catalog.register.chimeras import add_verdict, record_quick_look
from organs.registry.catalog.register.jobs import claim_job, job_json
from organs.registry.catalog.work import finish
from organs.registry.compose.chimeras import chimera_page
from organs.registry.compose.lock import parse_lock
from organs.registry.compose.recipe import read_recipe
from organs.registry.entities.base import encode
from organs.registry.entities.plan import PlanPart
from organs.registry.entities.validation import QuickLook
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.pages.anatomy import legend, marks
from organs.web.pages.jobs import missing_runtime
from organs.web.settings import WebSettings
from tests.gains import add_gains
from tests.registry_templates import RegistryTemplates, add_three_models
from tests.web.accounts import form_token
from tests.web.page_parser import found_at, page_at
from tests.web.shown_pages import unusable_look
from tests.web.test_verdicts import from_source, report

TEXTS = ("recipe.yaml", "lock.json", "card.md", "Modelfile")
MIXED = "/models/local/mixed@1"


def add_chimeras(registry: LocalRegistry, folder: Path) -> None:
    """`local/mixed`, of a base and its fine-tune, purified in part, and `local/child`, made of it and a stranger."""
    add_three_models(registry, folder)
    graft = registry.compose("local/base").graft("local/tuned", type="organ", blocks=0).named("local/mixed")
    graft.purify("fractal", slot="ffn_up", blocks=0).plan().register()
    child = registry.compose("local/stranger").graft("local/mixed", type="norm").named("local/child")
    child.accept("unrelated-lineage").plan().register()


@pytest.fixture
def composed(registry: LocalRegistry, templates: RegistryTemplates) -> dict[str, str]:
    """The locks of these chimeras by their names."""
    templates.fill(registry, add_chimeras)
    with registry.catalog.reading() as session:
        child, mixed = chimera_page(session, 2).items
    return {"mixed": mixed.lock_id, "child": child.lock_id}


@pytest.fixture
def client(registry: LocalRegistry, composed: dict[str, str]) -> Iterator[FlaskClient]:
    """A client of a server that only reads."""
    with create_app(registry).test_client() as client:
        yield client


@pytest.fixture
def writer(registry: LocalRegistry, composed: dict[str, str]) -> Iterator[FlaskClient]:
    with create_app(registry, WebSettings(personal=True)).test_client() as client:
        yield client


def put_verdict(registry: LocalRegistry, lock: str) -> None:
    """A verdict as `organ validate` keeps one."""
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, lock)[0]
        add_verdict(session, model.id, "llama.cpp", "gains", "It is better.", json.dumps(report(seconds=12.0)))


@pytest.mark.parametrize(("order", "names"), [("new", ["child", "mixed"]), ("gain", ["mixed", "child"])])
def test_chimeras_are_listed_by_age_or_by_their_largest_gain_page_by_page(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str], order: str, names: list[str]
) -> None:
    add_gains(registry, "local/mixed", {"python": 3.0})
    first = found_at(client, f"/chimeras.json?order={order}&limit=1")
    second = found_at(client, f"/chimeras.json?order={order}&limit=1&after={first['next']}")
    listed = [*first["items"], *second["items"]]
    assert [one["lock_id"] for one in listed] == [composed[name] for name in names]
    assert second["next"] is None


def test_composing_begins_with_the_verdict_on_the_same_chimera(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    address = "/compose?base=local/stranger&graft=from:local/mixed+type:norm"
    assert "local/child@1 is the same chimera. It was not run yet." in page_at(client, address).words
    put_verdict(registry, composed["child"])
    measured = r"local/child@1 is the same chimera\. It was run on [\d-]+: gains\. It is better\."
    assert re.search(measured, page_at(client, address).words)
    assert "is the same chimera" not in page_at(client, f"{address}+blocks:0").words


def test_the_card_of_a_chimera_shows_its_screen_until_it_is_measured(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    screen = registry.chimera(composed["mixed"]).screen
    assert screen is not None
    card, _, rest = page_at(client, MIXED).words.partition("Anatomy")
    assert f"From the weights: {screen.sentence}" in card
    assert "Not run yet" in rest
    put_verdict(registry, composed["mixed"])
    assert "From the weights" not in page_at(client, MIXED).words.partition("Anatomy")[0]


def test_a_quick_look_that_refutes_the_screen_says_so(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, composed["mixed"])[0]
        record_quick_look(session, model.id, encode(unusable_look()).decode())
    assert "The measurement says otherwise." in page_at(client, MIXED).words


def test_a_quick_look_that_was_not_started_says_what_it_needs_and_offers_it(
    writer: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    look = QuickLook(
        sentence="Not started: too large.", usable=None, runtime="llama.cpp", window_tokens=256, seconds=0.0,
        seconds_needed=421.0, tokens_per_second=None,
    )  # fmt: skip
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, composed["mixed"])[0]
        record_quick_look(session, model.id, encode(look).decode())
    card, _, rest = page_at(writer, MIXED).words.partition("Anatomy")
    for part in (card, rest):
        assert "Not started: too large." in part
        assert "Measure for 8 minutes" in part
    assert "Measure for" not in page_at(create_app(registry).test_client(), MIXED).words, "only for those who may write"
    address, token = f"/chimeras/{composed['mixed']}/quick-look", form_token(writer, MIXED)
    assert writer.post(address, data={"form_token": token, "minutes": "61"}).status_code == 400
    for _ in range(2):
        answer = writer.post(address, data={"form_token": token, "minutes": "8"})
        assert (answer.status_code, answer.headers["Location"]) == (303, f"{MIXED}#verdict")
    with registry.catalog.writing() as session:
        (job,) = active_jobs(session, "quick-look")
        assert job.arguments == {"chimera": "local/mixed@1", "seconds": 480.0}
        claim = claim_job(session, ["quick-look"])
        assert claim is not None
        finish(session, claim, job_json(msgspec.to_builtins(look), "result"))
    page = page_at(writer, f"/jobs/{job.id}")
    assert "quick-look: not started" in page.words
    assert MIXED in page.links()


def test_of_a_quantisation_the_divergence_comes_first_on_its_page(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    made = report(seconds=12.0, from_source=from_source("local/base@1"))
    made["texts"][0] |= {"divergence": 0.2, "divergence_margin": 0.01, "divergence_99": 1.5, "same_top": 0.9}
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, composed["mixed"])[0]
        add_verdict(session, model.id, "llama.cpp", "coherent", "It is near.", json.dumps(made))
    first, _, rest = "".join(page_at(client, MIXED).words.split()).partition("coherent")
    numbers = "divergence0.012±0.001nats99%oftokensbelow0.11natssametoptoken94.2%"
    assert f"{numbers}changeofperplexity+0.8%±0.5%" in first
    assert "0.20±0.011.590.0%" in rest.partition("Divergenceandperplexitybykindoftext")[2]


def test_the_address_of_a_lock_leads_to_the_page_of_its_model_with_the_chosen_reading(
    client: FlaskClient, composed: dict[str, str]
) -> None:
    for address, target in ((composed["mixed"], MIXED), (f"{composed['mixed'][:12]}?by=size", f"{MIXED}?by=size")):
        answer = client.get(f"/chimeras/{address}")
        assert (answer.status_code, answer.headers["Location"]) == (302, target)
        assert client.get(target).status_code == 200


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_served_as_an_attachment_and_never_as_a_page(
    client: FlaskClient, composed: dict[str, str], name: str
) -> None:
    address = f"/chimeras/{composed['mixed']}/{name}"
    answer = client.get(address)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}"'
    assert answer.headers["ETag"] == f'"{hashlib.sha256(answer.data).hexdigest()}"'
    assert ("immutable" in answer.headers["Cache-Control"]) is (name == "lock.json")
    short = client.get(f"/chimeras/{composed['mixed'][:12]}/{name}")
    assert short.data == answer.data
    assert short.headers["Cache-Control"] == "no-cache", "another lock may begin so one day"


def test_the_lock_matches_its_address_and_the_recipe_gives_the_same_lock_under_any_name(
    client: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    lock = composed["mixed"]
    assert parse_lock(client.get(f"/chimeras/{lock}/lock.json").text).id == lock
    recipe = client.get(f"/chimeras/{lock}/recipe.yaml").text
    for text, created in ((recipe, False), (recipe.replace("local/mixed", "local/other"), True)):
        made = registry.compose(read_recipe(text)).plan().register()
        assert (made.lock_id, made.created) == (lock, created)
    values = found_at(client, f"/chimeras/{lock}.json")
    assert (values["model"], values["also"]) == ("local/mixed@1", ["local/other@1"])
    assert "local/mixed@1 has the same bytes." in page_at(client, "/models/local/other").words


@pytest.mark.parametrize(
    "lock",
    ["0" * 64, "zz", "1234567", "0" * 65, "%00", "..%2f..", "A'B\"C<D>", "\u0660" * 8, "sha256:" + "0" * 64],
)
def test_an_unknown_lock_is_404_everywhere(client: FlaskClient, lock: str) -> None:
    for address in (f"/chimeras/{lock}", *(f"/chimeras/{lock}/{name}" for name in (*TEXTS, "passwd"))):
        assert client.get(address).status_code == 404, address
    assert client.get(f"/chimeras/{lock}.json", follow_redirects=True).status_code in (400, 404)


def test_the_button_queues_one_validation_and_the_page_shows_it(
    writer: FlaskClient, registry: LocalRegistry, composed: dict[str, str]
) -> None:
    address, child = (f"/chimeras/{composed[name]}/validate" for name in ("mixed", "child"))
    assert missing_runtime() is None, "the tests have the runtime"
    assert address in page_at(writer, MIXED).links()
    token = form_token(writer, MIXED)
    assert writer.post(address, data={"form_token": "x"}).status_code == 403
    for _ in range(2):
        answer = writer.post(address, data={"form_token": token, "minutes": "30"})
        assert (answer.status_code, answer.headers["Location"]) == (303, f"{MIXED}#verdict")
    with registry.catalog.reading() as session:
        (job,) = active_jobs(session, "validate")
        assert (job.arguments["chimera"], job.arguments["minutes"]) == ("local/mixed@1", 30.0)
    links = page_at(writer, MIXED).links()
    assert writer.get(MIXED).text.count(f'data-job="{job.id}"') == 2, "at the top, and where the button was"
    assert "Not run yet" not in page_at(writer, MIXED).words.partition("Anatomy")[2]
    assert f"/jobs/{job.id}" in links
    assert address not in links, "one at a time"
    assert child in page_at(writer, "/models/local/child").links(), "no validation of the other chimera is active"


@pytest.mark.folder
def test_the_file_of_a_job_downloads_with_ranges_until_it_is_removed(
    writer: FlaskClient, registry: LocalRegistry
) -> None:
    add_job(registry, "extract", {"model": "local/mixed"})
    made = add_job(registry, "graft", {"base": "local/base", "donor": "local/tuned", "type": "organ"})
    Runner(registry, Event()).run(once=True)
    name, result = (found_at(writer, f"/jobs/{job}.json")["result"] for job in (made, 1))
    assert f"/models/{name['model']}" in page_at(writer, f"/jobs/{made}").links()
    file = "/jobs/1/files/mixed.tar"
    assert file in page_at(writer, "/jobs/1").links()
    whole = writer.get(file)
    assert hashlib.sha256(whole.data).hexdigest() == result["sha256"] == whole.headers["ETag"].strip('"')
    part = writer.get(file, headers={"Range": "bytes=512-1023"})
    assert (part.status_code, part.data) == (206, whole.data[512:1024])
    assert writer.head(file).headers["Content-Length"] == str(result["size_bytes"])
    for address in (
        "/jobs/1/files/other.tar",
        "/jobs/1/files/..%2f..%2fregistry.sqlite3",
        f"/jobs/{made}/files/mixed.tar",
    ):
        assert writer.get(address).status_code == 404, address
    assert "pack" not in result, "the key is nobody's business"
    (pack,) = (registry.settings.home / "jobs").glob("*/mixed.tar")
    pack.unlink()
    assert writer.get(file).status_code == 404
    assert file not in page_at(writer, "/jobs/1").links()


def part_of(number: int, acts: tuple[str, ...] = (), adapters: tuple[str, ...] = ()) -> PlanPart:
    """A part of a plan that is from the model of that number."""
    return PlanPart(
        name=f"text 0 {number}", type="organ", tower="text", block=0, slot=str(number), model=f"local/{number}@1",
        acts=acts or ("grafted",), adapters=adapters, dtype_before="F32", dtype="F32", theta_before=None, theta=1.0,
        spectral_signal=None, size_bytes_before=4, size_bytes=4, digest=None,
    )  # fmt: skip


def test_each_donor_has_a_letter_and_a_colour_and_letters_continue_after_z() -> None:
    parts = [part_of(number) for number in range(60)]
    lines = legend(parts, "local/0@1")
    letters = [line.mark for line in lines]
    assert (letters[0], letters[25], letters[26], letters[59]) == ("A", "Z", "A2", "H3")
    assert len(set(letters)) == 60
    assert [line.is_base for line in lines[:2]] == [True, False]
    assert marks(parts, lines)["text 0 26"].mark == "A2"
    assert [line.tone for line in lines[:9]] == ["g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7", "g0"]


def test_an_adapter_is_named_in_the_legend_alone_on_the_base_and_with_the_donor_elsewhere() -> None:
    merged = part_of(0, ("adapter",), ("local/lora@1",))
    (line,) = legend([merged], "local/0@1")
    assert (line.model, line.is_base, line.words) == ("local/lora@1", False, "adapter added")
    assert marks([merged], [line]) == {"text 0 0": line}
    (line,) = legend([msgspec.structs.replace(merged, acts=("grafted", "adapter"))], "local/1@1")
    assert (line.models, line.model) == (("local/0@1", "local/lora@1"), "local/0@1 + local/lora@1")
