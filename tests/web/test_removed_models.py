"""What is told of models that were removed: 410 with when and why, of what everybody saw before; else as if never."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.register.model_changes import hide_model, remove_model
from organs.registry.catalog.tables import ModelRow, now
from organs.registry.catalog.vocabulary import Action
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.web.app import create_app
from tests.registry_templates import RegistryTemplates
from tests.small_models import ingest_file, small_model
from tests.web.accounts import log_in, new_token
from tests.web.api.document_checks import assert_refused
from tests.web.page_parser import page_at

WHY = "It was <b>not</b> theirs."
TWICE, ONCE, UNSEEN = "ada/twice", "ada/once", "ada/unseen"


def removals(registry: LocalRegistry, folder: Path) -> None:
    """Of `twice` the first version was removed, of `once` the only one; `unseen` waited, and was never seen."""
    for seed, name in enumerate((TWICE, TWICE, ONCE, UNSEEN)):
        path = folder / f"{seed}.gguf"
        path.write_bytes(small_model(seed=seed))
        ingest_file(registry, path, name)
    with registry.catalog.writing() as session:
        record_event(session, "local", Action.SUBMIT, UNSEEN, model_id=named(session, UNSEEN).id)
        for name in (f"{TWICE}@1", ONCE, UNSEEN):
            remove_model(session, named(session, name), WHY, "local")


def named(session: Session, name: str) -> ModelRow:
    return model_by_name(session, parse_model_name(name))


@pytest.fixture
def removed(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, removals)
    return registry


@pytest.fixture
def client(removed: LocalRegistry) -> FlaskClient:
    return create_app(removed).test_client()


def test_every_address_of_a_removed_model_answers_gone_with_the_day_and_the_reason(client: FlaskClient) -> None:
    sentence = f"{ONCE}@1 was removed on {now().date().isoformat()}: {WHY}"
    for page in (
        f"/models/{ONCE}",
        f"/models/{ONCE}@1",
        f"/models/{ONCE}.gguf",
        f"/compare?first={ONCE}&second={TWICE}",
    ):
        assert sentence in page_at(client, page, 410).text, page
        assert WHY not in client.get(page).text, "it is text"
    for address in (f"/api/v1/models/{ONCE}", f"/models/{ONCE}.json", f"/models/{ONCE}/report.json"):
        assert assert_refused(client.get(address, follow_redirects=True), 410, None) == sentence
    assert client.get(f"/models/{TWICE}@1").status_code == 410
    assert client.get(f"/models/{TWICE}.json", follow_redirects=True).get_json()["name"] == f"{TWICE}@2"


def test_clients_of_the_hub_get_the_removal_in_their_own_error_format(client: FlaskClient) -> None:
    for address, status, code in (
        (f"/api/models/{ONCE}", 410, "RepoNotFound"),
        (f"/{ONCE}/resolve/v1/little.gguf", 410, "RepoNotFound"),
        (f"/api/models/{TWICE}/revision/v1", 410, "RevisionNotFound"),
        (f"/api/models/{TWICE}/revision/v3", 404, "RevisionNotFound"),
        (f"/api/models/{UNSEEN}", 404, "RepoNotFound"),
    ):
        answer = client.get(address)
        assert (answer.status_code, answer.headers["X-Error-Code"]) == (status, code), address
    assert WHY in client.get(f"/api/models/{TWICE}/revision/v1").headers["X-Error-Message"]


def test_a_model_removed_before_publication_is_answered_like_an_unknown_model(client: FlaskClient) -> None:
    for address in ("/models/{}", "/models/{}.json", "/models/{}.gguf", "/api/v1/models/{}", "/models/{}/report"):
        hidden, absent = (client.get(address.format(name), follow_redirects=True) for name in (UNSEEN, "ada/anseen"))
        assert hidden.status_code == absent.status_code == 404, address
        assert hidden.text.replace(UNSEEN, "ada/anseen") == absent.text, address


def test_a_published_model_that_is_back_in_review_is_gone_only_after_its_removal(
    removed: LocalRegistry, client: FlaskClient
) -> None:
    name = f"{TWICE}@2"
    with removed.catalog.writing() as session:
        model = named(session, name)
        record_event(session, "ada", Action.SUBMIT, name, model_id=model.id)
        hide_model(session, model, "quarantined", "It waits again.", "local")
    assert client.get(f"/models/{name}").status_code == 404
    token = new_token(removed, "ada")
    assert log_in(client.application, token).get(f"/models/{name}/edit").status_code == 200
    with removed.catalog.writing() as session:
        remove_model(session, session.get_one(ModelRow, model.id), WHY, "local")
    assert client.get(f"/models/{name}").status_code == 410
