"""A model in quarantine counts as absent: every route answers as it would if the model had never been sent.

Two registries are equal but for one model of ada's that waits for review in the first. Each request is sent to both, by
somebody without an account and by another contributor, and names what only that model has: its digests, its name, its
likeness. The answers are equal to the byte, but for times, random ids, and what a process counts of itself. So are the
statements to the database: a different number of them would take another time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from organs.ingest.service import Intake, ingest_files
from organs.ingest.sources import find_sources, open_files
from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.queries.model_contents import placements_of
from organs.registry.catalog.records import ModelRecord
from organs.registry.catalog.register.submissions import add_submission
from organs.registry.catalog.tables import ModelRow, OtherName
from organs.registry.endpoints.table import API
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.file_responses import COUNTING_KEY
from organs.web.pages.routes import FIELD
from tests.card_images import put_card
from tests.registry_templates import RegistryTemplates
from tests.related_models import model_file, related_tensors
from tests.search.test_query_plans import spoken
from tests.submissions import process_and_read, submit_model, whole_file
from tests.web import owned_catalog as ada
from tests.web.accounts import new_token
from tests.web.authorisation import Uncounted
from tests.web.good_requests import BODIES as GOOD_BODIES
from tests.web.good_requests import PLAIN_ARGUMENTS, header_digest
from tests.web.owned_catalog import fill_owned_catalog
from tests.web.test_token_rights import Browser

SECRET = "ada/secret"
FILE = model_file("Secret", related_tensors(correlation=0.97, seed=0))
"""Nearly the weights of the visible models, so that searches by likeness would find it."""
SUBMISSION = 90
_MARK = re.compile(r"(PRAGMA user_version =) \d+")
"""Every change of the catalog marks it with another random number."""
_CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00|Z)?"), "TIME"),
    (re.compile(r"orgs_[0-9A-Za-z]{49}|orgp_[0-9A-Za-z]{58}"), "TOKEN"),
    (re.compile(r"(?<=value=\")[A-Za-z0-9_-]{43,64}(?=\")"), "FORM"),
    (re.compile(r"(?<=class=\"sub mono\">)[0-9A-Za-z]{9}|(?<=account/tokens/)[0-9A-Za-z]{9}"), "TOKEN"),
    (re.compile(r"(?<=uploads/)[A-Za-z0-9_-]{22}|(?<=\"id\": \")[A-Za-z0-9_-]{22}(?=\")"), "UPLOAD"),
    (re.compile(r"(?<=\"id\":\")[A-Za-z0-9_-]{9,22}(?=\")"), "ID"),
    (re.compile(r"(?<=http://)127\.0\.0\.1:\d+"), "HOST"),
)
"""The parts that differ between any two answers."""


@dataclass(frozen=True)
class Secret:
    """The values that name the model in a request."""

    organ: str
    header: str
    file: str
    model: str
    place: str

    @property
    def digests(self) -> tuple[str, ...]:
        return (self.organ, self.header, self.file, self.model)


class Twins:
    """Both registries, with their servers."""

    def __init__(self, with_secret: LocalRegistry, without: LocalRegistry) -> None:
        self.registries = (with_secret, without)
        self.apps = tuple(_application(registry) for registry in self.registries)
        self.tokens = [new_token(registry, "bob", "upload", "read") for registry in self.registries]
        self.secret = _secret(with_secret)
        self.browsers = [
            Browser(app, registry, token)
            for app, registry, token in zip(self.apps, self.registries, self.tokens, strict=True)
        ]

    def ask(self, by_bob: bool, method: str, address: str, **options: Any) -> list[tuple[int, str, list[str]]]:
        """Status, body and statements of both answers, without what always differs."""
        answers = []
        for number, app in enumerate(self.apps):
            is_api = address.startswith("/api/v1")
            client = self.browsers[number]._client if by_bob and not is_api else app.test_client()
            sent = dict(options)
            if by_bob and is_api:
                sent["headers"] = {"Authorization": f"Bearer {self.tokens[number]}"}
            if "data" in sent:
                sent["data"] = {**sent["data"], FIELD: self.browsers[number]._field if by_bob else "n" * 43}
            with (
                spoken(self.registries[number]) as statements,
                client.open(address, method=method, **sent) as answer,
            ):
                text = self._comparable(answer)
            plain = [_MARK.sub(r"\1 N", statement) for statement, _ in statements]
            answers.append((answer.status_code, text, plain))
        return answers

    def _comparable(self, answer: TestResponse) -> str:
        body = answer.get_data()
        # The length itself changes with a time whose fraction of a second is zero and so is not written.
        unsent = int(answer.headers.get("Content-Length", len(body))) - len(body)
        text = f"{answer.headers.get('Location', '')}\n{unsent}\n{body.decode('utf-8', 'replace')}"
        for pattern, word in _CHANGING:
            text = pattern.sub(word, text)
        return text


def _application(registry: LocalRegistry) -> Flask:
    app = create_app(registry, counts=Uncounted())
    del app.extensions[COUNTING_KEY]
    return app


def _put_secret(registry: LocalRegistry, folder: Path) -> None:
    """Register the model as a submission does that waits for an administrator."""
    path = folder / "secret.gguf"
    path.write_bytes(FILE)
    (source,) = find_sources([str(path)])

    def settle(record: ModelRecord) -> ModelRecord:
        return replace(record, contributor="ada", state="quarantined")

    with ExitStack() as opened:
        intake = Intake("submitted by ada", replace(source.name, namespace="ada"), settle=settle)
        ingest_files(registry, open_files(opened, source), intake)
    with registry.catalog.writing() as session:
        model = session.query(ModelRow).filter_by(namespace="ada", name="secret").one()
        owner = contributor_by_name(session, "ada").id
        row = add_submission(
            session, owner, "ada", "secret", manifest='{"files":[]}', description="{}", size_bytes=len(FILE)
        )
        row.id, row.state, row.model_id = SUBMISSION, "quarantined", model.id
        session.add(OtherName(namespace="ada", name="alias-F16", version=1, model_id=model.id))
    put_card(registry, "ada/secret")


def _secret(registry: LocalRegistry) -> Secret:
    with registry.catalog.reading() as session:
        model = session.query(ModelRow).filter_by(namespace="ada", name="secret").one()
        shown = session.query(ModelRow).filter_by(state="visible")
        visible = {digest for one in shown for _, _, digest, _ in placements_of(session, one.id)}
        placement, _, organ, _ = next(row for row in placements_of(session, model.id) if row[2] not in visible)
        return Secret(organ, header_digest(FILE), sha256(FILE).hexdigest(), model.digest, placement.name)


@pytest.fixture(scope="module")
def twins(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    folder = tmp_path_factory.mktemp("twins")
    with (
        templates.open_copy(fill_owned_catalog, folder / "with") as one,
        templates.open_copy(fill_owned_catalog, folder / "without") as other,
    ):
        _put_secret(one, folder)
        yield Twins(one, other)


ARGUMENTS: dict[str, Callable[[Secret], tuple[str, ...]]] = {
    **{name: lambda _, value=value: (value,) for name, value in PLAIN_ARGUMENTS.items()},  # type: ignore[misc]
    **dict.fromkeys(("namespace", "user", "contributor"), lambda _: ("ada",)),
    **dict.fromkeys(("name", "short"), lambda _: ("secret", "secret@1", "alias-F16", "alias", "alias:f16")),
    "digest": lambda secret: (secret.organ, secret.organ[:12], secret.header),
    "header": lambda secret: (secret.header,),
    "lock": lambda secret: (secret.model, secret.file),
    "submission": lambda _: (str(SUBMISSION),),
    "file": lambda _: ("secret.gguf",),
    "path": lambda _: ("secret.gguf",),
    "revision": lambda _: ("main", "v1"),
    "token": lambda _: ("aaaaaaaaa",),
    "upload": lambda _: ("nobodySentAnythingHere",),
    "job": lambda _: ("99",),
    "run": lambda _: ("99",),
}
"""What stands for each name that rules have in angle brackets. A rule with another name fails until it is here."""

WITHOUT_QUERY = frozenset(
    ("/", "/index.json", "/api", "/api.json", "/login", "/login.json", "/upload", "/upload.json", "/healthz")
)
"""Pages that take nothing by which a model could be named."""
FOR_OPERATORS = ("/metrics",)
"""What only the networks of those who run the server may read."""


def queries(secret: Secret) -> list[dict[str, str]]:
    """Queries that name the model, its organ, or its likeness."""
    found = [{"q": f"like:{secret.organ}"}, {"q": f"model:{SECRET}"}, {"q": "secret"}, {"q": f"fits:{SECRET}"}]
    found += [{"first": SECRET, "second": ada.VISIBLE}, {"first": ada.VISIBLE, "second": SECRET}]
    found += [{"base": SECRET}, {"base": ada.VISIBLE, "donor": SECRET}, {"base": SECRET, "donor": ada.VISIBLE}]
    found += [{"base": ada.VISIBLE, "graft": f"from:{SECRET} type:organ"}]
    found += [{name: value} for name in ("model", "against", "digest") for value in (SECRET, *secret.digests)]
    return found


def bodies(secret: Secret, method: str, rule: str) -> list[Any]:
    """What is sent there: the model and its organs in every place where one can be named."""
    good = GOOD_BODIES.get((method, rule))
    text = json.dumps(good)
    found = [good]
    for name in (ada.VISIBLE, ada.BASE, ada.MIXED, f"{ada.MIXED}@1"):
        for other in (SECRET, f"sha256:{secret.model}", f"sha256:{secret.organ}"):
            found.append(json.loads(text.replace(f'"{name}"', f'"{other}"')))
    found.append(json.loads(text.replace("0" * 64, secret.organ)))
    if rule == "/api/v1/uploads":
        found += [{"kind": "piece", "size_bytes": 5, "digest": digest} for digest in secret.digests]
        found += [{"kind": "file", "size_bytes": len(FILE), "digest": secret.file, "name": "secret.gguf"}]
    if rule == "/api/v1/uploads/lookup":
        found += [{"digests": list(secret.digests)}]
    if rule == "/api/v1/organs/lookup":
        found += [{"digests": list(secret.digests)}]
    if (method, rule) == ("PUT", "/api/v1/models/<namespace>/<name>"):
        pieces = [[0, len(FILE), secret.file]]
        file = {"name": "secret.gguf", "size_bytes": len(FILE), "sha256": secret.file, "pieces": pieces}
        found += [{"files": [file], "metadata": {}, "publish": False}]
    unique = {json.dumps(body, sort_keys=True): body for body in found}
    return list(unique.values())


def addresses(secret: Secret, rule: Rule) -> list[str]:
    """The rule with the model in each of its places."""
    unknown = rule.arguments - ARGUMENTS.keys()
    assert not unknown, f"{rule.rule}: say in ARGUMENTS what stands for {unknown}"
    values = {name: ARGUMENTS[name](secret) for name in rule.arguments}
    found = []
    for number in range(max((len(one) for one in values.values()), default=1)):
        built = rule.build({name: one[min(number, len(one) - 1)] for name, one in values.items()})
        assert built is not None, rule.rule
        found.append(built[1])
    return list(dict.fromkeys(found))


def requests(twins: Twins, *, every_page: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every method of every rule, with the model in its address, and in its query or its body.

    Without `every_page`, pages that have a twin as JSON are sent no queries: the twin is.
    """
    rules = {rule.rule for rule in twins.apps[0].url_map.iter_rules()}
    taken = {operation.path: {one.name for one in operation.parameters} for operation in API.values()}
    for rule in twins.apps[0].url_map.iter_rules():
        if rule.endpoint == "static" or rule.rule in FOR_OPERATORS:
            continue
        own = addresses(twins.secret, rule)
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            if method != "GET":
                kind = "json" if rule.rule.startswith("/api/") else "data"
                sent = [{} if body is None else {kind: body} for body in bodies(twins.secret, method, rule.rule)]
            elif rule.rule in taken:
                named = taken[rule.rule]
                known = [one for one in queries(twins.secret) if one.keys() <= named]
                sent = [{}, *({"query_string": one} for one in known)]
            elif (
                (f"{rule.rule}.json" in rules and not every_page)
                or rule.arguments
                or rule.rule in WITHOUT_QUERY
                or rule.rule.startswith("/reports")
            ):
                sent = [{}]
            else:
                sent = [{}, *({"query_string": one} for one in queries(twins.secret))]
            for address in own:
                yield from ((method, address, {"data": {}, **one} if "data" in one else one) for one in sent)


@pytest.mark.long
@pytest.mark.parametrize(
    ("by_bob", "every_page"),
    [(True, False), *(pytest.param(one, True, marks=pytest.mark.slow) for one in (False, True))],
)
def test_every_route_answers_as_if_the_model_had_never_been_sent(twins: Twins, by_bob: bool, every_page: bool) -> None:
    compared = 0
    for method, address, options in requests(twins, every_page=every_page):
        first, second = twins.ask(by_bob, method, address, **options)
        assert first == second, (method, address, options)
        compared += 1
    assert compared > 400


def test_a_contributor_who_sends_the_same_bytes_learns_nothing_about_it(
    templates: RegistryTemplates, tmp_path: Path
) -> None:
    """Neither by the findings, nor by what the new model's page says of it: the bytes were here already."""
    found = []
    for name in ("with", "without"):
        with templates.open_copy(fill_owned_catalog, tmp_path / name) as registry:
            if name == "with":
                _put_secret(registry, tmp_path)
            submission_id = submit_model(registry, "bob/same", [whole_file(registry, "bob", FILE)], license="mit")
            row = process_and_read(registry, submission_id).row
            client = _application(registry).test_client()
            model = client.get("/api/v1/models/bob/same").get_json()
            figures = client.get("/api/v1").get_json()["figures"]
            found.append((row.state, json.loads(row.findings), {**model, "created_at": "", "changed_at": ""}, figures))
    assert found[0] == found[1]
