"""Administration on pages and over the API: what waits, what is decided, and what the event log says.

Who may do it is in the table of `authorisation.py`.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import select
from werkzeug.test import TestResponse

from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import add_contributor
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.catalog.register.submissions import add_submission
from organs.registry.catalog.tables import EventRow, JobRow, Lineage, ModelRow, Placement, SubmissionRow, now
from organs.registry.catalog.vocabulary import Action
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.web.app import create_app
from organs.web.metrics import watch_errors
from organs.web.settings import WebSettings
from tests.card_images import image_bytes, put_card
from tests.registry_templates import RegistryTemplates
from tests.small_models import ingest_file, small_model
from tests.web.accounts import authorization, log_in, new_token, send_form
from tests.web.api.document_checks import assert_refused
from tests.web.conftest import FORMULA, HOSTILE
from tests.web.page_parser import ParsedPage, found_at, page_at, parse_page

ROOT = "/api/v1/admin"
PAGES = ("/admin", "/admin/health", "/admin/quarantine", "/admin/events", "/admin/contributors", "/admin/fleet")


@dataclass(frozen=True, slots=True)
class Site:
    """A registry in which two models of ann wait, with clients of each kind."""

    registry: LocalRegistry
    app: Flask
    admin: FlaskClient
    token: str
    uploader: str

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        """The answer of the API, to the administrator unless told otherwise."""
        headers = authorization(token or self.token)
        more = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
        return self.app.test_client().open(path, method=method, headers=headers, **more)

    def send(self, form: str, page: str = "contributors", **fields: object) -> TestResponse:
        """The answer to a form of a page of administrators."""
        return send_form(self.admin, f"/admin/{form}", f"/admin/{page}", **fields)

    def page(self, path: str) -> ParsedPage:
        """A page of administrators."""
        return page_at(self.admin, f"/admin/{path}")

    def states(self) -> tuple[list[str], list[str]]:
        """Of the submissions and of the models."""
        with self.registry.catalog.reading() as session:
            return (
                list(session.scalars(select(SubmissionRow.state).order_by(SubmissionRow.id))),
                list(session.scalars(select(ModelRow.state).order_by(ModelRow.id))),
            )


def add_waiting(registry: LocalRegistry, folder: Path) -> None:
    """Add two models of ann's that wait, each with a submission."""
    finding = {"severity": "warn", "code": "odd", "sentence": HOSTILE}
    with registry.catalog.writing() as session:
        ann = add_contributor(session, "ann").id
    for number in range(2):
        path = folder / f"m{number}.gguf"
        path.write_bytes(small_model(HOSTILE, seed=number))
        ingest_file(registry, path, f"ann/m{number}")
        with registry.catalog.writing() as session:
            model = model_by_name(session, parse_model_name(f"ann/m{number}"))
            hide_model(session, model, "quarantined", "It waits.", "local")
            sent = {"manifest": "{}", "description": json.dumps({"given": {}, "publish": True, "proposed": None})}
            submission = add_submission(session, ann, "ann", path.stem, size_bytes=model.size_bytes, **sent)
            submission.state, submission.findings = "quarantined", json.dumps([finding])
            submission.model_id = model.id


@pytest.fixture
def site(registry: LocalRegistry, templates: RegistryTemplates) -> Site:
    templates.fill(registry, add_waiting)
    uploader, token = new_token(registry, "ann", "upload"), new_token(registry, "root", "admin")
    app = create_app(registry)
    return Site(registry, app, log_in(app, token), token, uploader)


def test_pages_of_administrators_are_answered_like_unknown_ones_to_everyone_else(site: Site) -> None:
    someone = log_in(site.app, site.uploader)
    absent = someone.get("/nowhere").text
    for address in PAGES:
        assert someone.get(address).text == absent, address
    for settings in (WebSettings(personal=True), WebSettings(read_only=True)):
        client = create_app(site.registry, settings).test_client()
        assert {client.get(address).status_code for address in PAGES} == {404}, "the command does it there"
    assert {site.admin.get(address).status_code for address in PAGES} == {200}


def test_the_health_page_begins_with_what_needs_action(site: Site) -> None:
    with site.registry.catalog.writing() as session:
        owner, moment = contributor_by_name(session, "ann").id, now()
        for state, note in (("queued", ""), ("failed", HOSTILE)):
            session.add(
                JobRow(
                    kind="report", state=state, contributor_id=owner, attempts=1, arguments="{}", progress=0, note=note,
                    created_at=moment - timedelta(hours=3), finished_at=moment if state == "failed" else None,
                )
            )  # fmt: skip
    errors = watch_errors(site.app)
    try:
        logging.getLogger("organs.web.test").error("failed: %s", HOSTILE)
    finally:
        logging.getLogger().removeHandler(errors)
    health = site.ask("GET", f"{ROOT}/health").get_json()
    states = [(check["name"], check["state"]) for check in health["checks"]]
    assert states[0] == ("queue", "failed")
    assert {("reviews", "warning"), ("failed jobs", "warning"), ("errors", "warning")} <= set(states)
    assert states[-1][1] == "ok"
    assert "the oldest for 3 h, and none runs" in health["checks"][0]["sentence"]
    assert (health["queue"]["waiting"], health["queue"]["failed"], health["failed_jobs"][0]["note"]) == (1, 1, HOSTILE)
    assert health["intake"]["submissions"]["quarantined"] == 2
    assert health["storage"]["disks"][0]["name"] == "registry"
    page = site.page("health").words
    assert page.index("failed queue: 1 job waits") < page.index("Queue Jobs by kind and state") < page.index("Errors")


def test_the_new_organs_of_a_waiting_submission_are_those_that_nothing_published_has(site: Site) -> None:
    with site.registry.catalog.writing() as session:
        model, other = session.scalars(select(ModelRow).order_by(ModelRow.id)).all()
        base = {"parent_text": "acme/loom", "relation": "finetune", "evidence": "declared", "created_at": now()}
        session.add(Lineage(child_model_id=model.id, **base))
        shared, own = (
            session.scalars(select(Placement).where(Placement.model_id == one.id).order_by(Placement.id)).all()
            for one in (model, other)
        )
        own[0].organ_id = shared[0].organ_id
    waiting = found_at(site.admin, "/admin/quarantine.json")["items"][0]["model"]
    assert waiting["base"] == "acme/loom"
    assert waiting["organs_new"] == waiting["organs"] == waiting["tensors"], "m1 has one of them, and waits too"
    assert site.ask("POST", f"{ROOT}/submissions/2/approve").status_code == 200
    waiting = found_at(site.admin, "/admin/quarantine.json")["items"][0]["model"]
    assert waiting["organs_new"] + 1 == waiting["organs"]


def test_an_administrator_publishes_and_refuses_from_the_page(site: Site) -> None:
    digest = put_card(site.registry, "ann/m0")
    address = f"/models/ann/m0@1/images/{digest}.png"
    for page in ("/admin/quarantine", "/submissions/1"):
        assert f'<img src="{address}" alt="A plot"' in site.admin.get(page).text
    assert site.admin.get(address).status_code == 200
    other = put_card(site.registry, "ann/m1", image_bytes(size=(4, 4)))
    waiting = [one["model"]["images"] for one in found_at(site.admin, "/admin/quarantine.json")["items"]]
    assert [[image["digest"] for image in images] for images in waiting] == [[digest], [other]]
    answer = site.send("submissions/1/approve", "quarantine")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/admin/quarantine?decided=1")
    assert "ann/m0@1 was published." in site.page("quarantine?decided=1").words
    assert site.send("submissions/2/refuse", "quarantine", reason=HOSTILE).status_code == 303
    page = site.page("quarantine?decided=2").words
    assert re.search(r"Submission 2, ann/.*m1, was refused", page)
    assert "No submissions to review." in page
    for nothing in ("77", "x", "-1"):
        assert 'role="status"' not in site.admin.get(f"/admin/quarantine?decided={nothing}").text, nothing
    assert site.states() == (["published", "refused"], ["visible", "removed"])
    assert site.send("submissions/1/approve").status_code == 409
    assert site.send("submissions/77/approve").status_code == 404
    log = site.page("events?contributor=root").text
    assert "approve" in log
    assert HOSTILE in log


def test_a_decision_over_the_api_is_answered_with_its_result(site: Site) -> None:
    found = site.ask("POST", f"{ROOT}/submissions/1/approve").get_json()
    assert (found["state"], found["address"]) == ("published", "/models/ann/m0@1")
    found = site.ask("POST", f"{ROOT}/submissions/2/refuse", {"reason": "Not theirs."}).get_json()
    assert (found["state"], found["address"], found["reason"]) == ("refused", None, "Not theirs.")
    assert site.ask("POST", f"{ROOT}/submissions/1/approve").status_code == 409
    for number in ("0", "x", "9" * 20, "%00", "77"):
        assert site.ask("POST", f"{ROOT}/submissions/{number}/approve").status_code == 404, number
    removal = {"version": 1, "reason": "Not theirs."}
    found = site.ask("POST", f"{ROOT}/models/ann/m0/remove", removal).get_json()
    assert (found["model"], found["state"], found["organs"]) == ("ann/m0@1", "removed", found["places"])
    assert found["blobs"] > 0
    assert site.states()[1] == ["removed", "removed"]


def test_an_invalid_value_is_refused_with_its_field(site: Site) -> None:
    for path, body, status, field in (
        ("/submissions/1/refuse", {}, 400, "reason"),
        ("/models/ann/m0/remove", {"reason": "x"}, 400, "version"),
        ("/models/ann/m0/remove", {"version": 1}, 400, "reason"),
        ("/models/ann/m0/remove", {"version": 7, "reason": "x"}, 404, None),
        ("/models/ann/m0@1/remove", {"version": 1, "reason": "x"}, 400, "name"),
        ("/models/ann/nothing/remove", {"version": 1, "reason": "x"}, 404, None),
        ("/contributors", {"name": "ANN"}, 400, None),
        ("/contributors", {"name": "a\0"}, 400, "name"),
        ("/contributors", {"name": "new", "quota": "1G"}, 400, "quota"),
    ):
        assert_refused(site.ask("POST", ROOT + path, body), status, field)
    assert site.states() == (["quarantined"] * 2, ["quarantined"] * 2)


def test_contributors_are_added_and_changed_over_the_api(site: Site) -> None:
    added = site.ask("POST", f"{ROOT}/contributors", {"name": "eve", "quota": 5}).get_json()
    quota = {"limit_bytes": 5, "used_bytes": 0, "uploads_bytes": 0, "submitted_bytes": 0}
    assert (added["quota"], added["has_own_quota"]) == (quota, True)
    changed = site.ask("PATCH", f"{ROOT}/contributors/EVE", {"quota": None}).get_json()
    assert changed["has_own_quota"] is False
    listed = site.ask("GET", f"{ROOT}/contributors?limit=2").get_json()
    assert listed["items"][0]["name"] == "eve"
    assert listed["next"] is not None
    for name, body, status, field in (
        ("ann", {}, 400, None),
        ("ann", {"state": "gone"}, 400, "state"),
        ("ann", {"state": None}, 400, "state"),
        ("nobody", {"quota": 5}, 404, None),
    ):
        assert_refused(site.ask("PATCH", f"{ROOT}/contributors/{name}", body), status, field)


def test_a_contributor_is_suspended_and_resumed_and_gets_a_quota_on_the_page(site: Site) -> None:
    def row() -> Any:
        items = found_at(site.admin, "/admin/contributors.json")["items"]
        return next(one for one in items if one["name"] == "ann")

    someone = log_in(site.app, site.uploader)
    assert site.send("contributors/ann/state", state="suspended").status_code == 303
    assert someone.get("/account").status_code == 303, "from the next request on"
    assert site.ask("GET", "/api/v1/account", token=site.uploader).status_code == 401
    assert "Resume" in site.page("contributors").text
    assert site.send("contributors/ann/state", state="active").status_code == 303
    assert site.send("contributors/ann/quota", quota="2G").status_code == 303
    assert (row()["state"], row()["quota"]["limit_bytes"]) == ("active", 2 * 10**9)
    assert site.send("contributors/ann/quota", quota="").status_code == 303
    assert row()["has_own_quota"] is False
    for form, fields, status in (
        ("ann/state", {"state": "gone"}, 400),
        ("ann/quota", {"quota": "much"}, 400),
        ("local/state", {"state": "suspended"}, 403),
        ("nobody/state", {"state": "suspended"}, 404),
    ):
        assert site.send(f"contributors/{form}", **fields).status_code == status, form


def test_a_contributor_is_added_in_the_browser_and_the_first_token_is_shown_once(site: Site) -> None:
    answer = site.send("contributors/new", name="zoe", scope=["read", "upload"], days="30")
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store")
    (token,) = re.findall(r"orgp_\w+", answer.text)
    assert "zoe" in log_in(site.app, token).get("/account").text
    for page in ("contributors", "events"):
        assert token not in site.page(page).text
    log = site.ask("GET", f"{ROOT}/events?limit=3").get_json()["items"]
    assert [event["action"] for event in log] == ["log in", "create token", "add contributor"]
    assert log[1]["contributor"] == log[2]["contributor"] != "zoe"


def test_a_wrong_contributor_is_not_added_and_the_form_is_shown_again(site: Site) -> None:
    for wrong in ({"name": "ANN"}, {"name": "a b"}, {"scope": "admin"}, {"scope": []}, {"days": "0"}, {"days": ""}):
        refused = site.send("contributors/new", **{"name": "max", "scope": "read", "days": "30"} | wrong)
        assert refused.status_code == 400, wrong
        assert 'role="alert"' in refused.text
        assert parse_page(refused.text).named("form")
    names = [row["name"] for row in site.ask("GET", f"{ROOT}/contributors?limit=1000").get_json()["items"]]
    assert "max" not in names


def test_the_event_log_can_be_filtered_paged_and_read_as_csv(site: Site) -> None:
    with site.registry.catalog.writing() as session:
        add_contributor(session, "eve", by="root")
        record_event(session, "root", Action.SET_QUOTA, FORMULA)
    first = site.ask("GET", f"{ROOT}/events?limit=1").get_json()
    assert first["items"][0]["text"] == FORMULA
    twin = site.admin.get("/admin/events.json?contributor=ROOT&action=Add+Contributor")
    assert [one["text"] for one in twin.get_json()["items"]] == ["eve"]
    assert site.ask("GET", f"{ROOT}/events?contributor=root&action=set+quota").get_json()["items"] == first["items"]
    assert site.ask("GET", f"{ROOT}/events?contributor=%00&action={HOSTILE}").get_json()["items"] == []
    following = next(link for link in site.page("events?contributor=root&limit=1").links() if "after=" in link)
    assert "contributor=root" in following
    assert site.admin.get(following).status_code == 200
    moved = following.replace("contributor=root", "contributor=ann")
    assert site.admin.get(moved).status_code == 400, "a place in one list is none in another"
    with site.admin.get("/admin/events.csv") as answer:
        rows = list(csv.reader(io.StringIO(answer.text)))
    assert rows[0] == ["id", "at", "contributor", "action", "model", "text"]
    assert rows[1][-1] == f"'{FORMULA}"


def test_the_name_of_every_action_fits_into_its_column() -> None:
    assert max(map(len, Action)) <= 32


def test_the_event_log_has_no_tokens_sessions_or_addresses(site: Site) -> None:
    site.ask("POST", "/api/v1/account/tokens", {"label": "new", "scopes": ["admin"]})
    with site.registry.catalog.reading() as session:
        texts = [f"{one.action} {one.text}" for one in session.scalars(select(EventRow))]
    actions = {text.split(" ")[0] for text in texts}
    assert {"add", "create", "ingest", "quarantine", "log"} <= actions
    assert not [text for text in texts if "orgp_" in text or "orgs_" in text or "127.0.0.1" in text]


def test_nothing_in_the_product_changes_or_removes_an_event() -> None:
    root = Path(__file__).resolve().parents[2]
    changing = re.compile(
        r"(update|delete)\(\s*(tables\.)?EventRow\b|EventRow\.__table__|\bevents\b.*(UPDATE|DELETE)", re.I
    )
    assert changing.search("session.execute(delete(EventRow).where(EventRow.id == 1))")
    texts = {
        str(path.relative_to(root)): path.read_text("utf-8")
        for folder in ("registry", "ingest", "cli", "web")
        for path in (root / folder).rglob("*.py")
    }
    assert [path for path, text in texts.items() if changing.search(text)] == []
    users = {path for path, text in texts.items() if re.search(r"\bEventRow\b", text)}
    assert users == {
        "registry/catalog/tables.py",
        "registry/catalog/register/events.py",
        "registry/catalog/queries/events.py",
    }
