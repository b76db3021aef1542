"""The shipped models in a registry, and the answers that the reference shows."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

from flask.testing import FlaskClient
from sqlalchemy import select
from werkzeug.test import TestResponse

from organs.ingest.jobs.runner import Runner, add_job
from organs.registry.catalog.queries.accounts import token_by_public_id
from organs.registry.catalog.register.accounts import LOCAL, add_contributor
from organs.registry.catalog.register.answers import Asker, claim_prompt, enqueue_prompt
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.submissions import add_submission, add_upload
from organs.registry.catalog.tables import AnswerRow, ChimeraRow, ModelRow, Token, now
from organs.registry.catalog.work import finish
from organs.registry.endpoints.accounts import EXAMPLE_TOKEN
from organs.registry.endpoints.answers import EXAMPLE_KEY
from organs.registry.endpoints.chimeras import EXAMPLE_DONOR
from organs.registry.endpoints.declaration import Endpoint
from organs.registry.endpoints.parameters import EXAMPLE_BASE
from organs.registry.endpoints.submissions import EXAMPLE_SUBMISSIONS as SUBMISSIONS
from organs.registry.endpoints.table import API
from organs.registry.endpoints.uploads import EXAMPLE_BYTES, EXAMPLES
from organs.registry.entities.base import encode
from organs.registry.entities.chat import ChatMessage, ModelReply, PromptArguments, PromptRequest, Replies
from organs.registry.local import LocalRegistry
from organs.registry.tokens import PREFIX
from organs.web import responses
from organs.web.file_responses import OCTETS
from tests.card_images import put_card
from tests.evolutions import add_evolution
from tests.gains import add_gains
from tests.sizes import add_size
from tests.small_models import ingest_file
from tests.web.accounts import authorization, new_token

ZOO = Path(__file__).resolve().parents[3] / "examples" / "zoo"
LISTED_MAX = 1
TEXT_MAX = 120


def ingest_zoo(registry: LocalRegistry, pattern: str = "*.gguf") -> None:
    """Register the shipped models under their own names."""
    for path in sorted(ZOO.glob(pattern)):
        ingest_file(registry, path)


def compose_chimeras(registry: LocalRegistry) -> None:
    """Two chimeras of the shipped models: the feed-forward of A-code in A, of which the reference shows much and which
    was measured, and A with a block purified."""
    base = registry.compose("local/Zoo-A-2M-v1.0-F16")
    coder = base.graft("local/Zoo-A-2M-Code-v1.0-F16", type="organ").plan().register()
    add_gains(registry, coder.model, {"python": 5.7, "javascript": 4.9, "narrative": -2.0})
    purified = base.purify("fractal", type="organ", blocks=3).plan().register()
    add_gains(registry, purified.model, {"python": -3.0})


def put_jobs(registry: LocalRegistry) -> None:
    """Two jobs, of which the first has finished and the second waits."""
    add_job(registry, "report", {"limit": 2})
    Runner(registry, Event()).run(once=True)
    add_job(registry, "report", {"model": "local/Zoo-A-2M-v1.0-Q8_0"})


MANAGING = ("tokens", "make_token", "revoke_token")
"""Operations that need the scope `tokens`."""


def put_accounts(registry: LocalRegistry) -> None:
    """A second contributor, whose one model is the purified chimera, and a token that examples revoke."""
    with registry.catalog.writing() as session:
        ada = add_contributor(session, "ada")
        purified = session.scalars(select(ChimeraRow.model_id).order_by(ChimeraRow.model_id.desc()).limit(1)).one()
        session.get_one(ModelRow, purified).contributor_id = ada.id
        token = Token(
            public_id=EXAMPLE_TOKEN, secret_sha256="0" * 64, scopes="upload", label="laptop", created_at=now()
        )
        token.contributor_id = ada.id
        session.add(token)


def put_uploads(registry: LocalRegistry) -> None:
    """One that is under way, one that has all of its bytes, one that is finished, and one to be removed."""
    with registry.catalog.writing() as session:
        asker = contributor_id(session, LOCAL)
        for name, public_id in EXAMPLES.items():
            row = add_upload(
                session, asker, public_id, kind="file", size_bytes=5, digest=None, name=f"{name}.gguf", pieces=()
            )
            row.received_bytes = 0 if name == "open" else row.size_bytes
            row.state = "complete" if name == "done" else "open"
    registry.settings.uploads.mkdir(exist_ok=True)
    for name in ("done", "full"):
        (registry.settings.uploads / EXAMPLES[name]).write_text(EXAMPLE_BYTES)


def put_submissions(registry: LocalRegistry) -> None:
    """One that was published, one that is ready to be, and one to be withdrawn."""
    said = {"title": "Tiny", "description": None, "license": "apache-2.0", "base": None, "tags": []}
    sizes = {"architecture": "llama", "parameters": 24, "tensors": 1, "size_bytes": 96, "kind": "model"}
    texts = {"given": said | {"tags": None}, "publish": False, "proposed": said | sizes | {"complete": True}}
    finding = {"severity": "note", "code": "chat-template", "sentence": "It has a chat template."}
    with registry.catalog.writing() as session:
        model = session.scalars(select(ModelRow).where(ModelRow.name == "Zoo-A-2M-v1.0-Q8_0")).one()
        for name, number in SUBMISSIONS.items():
            row = add_submission(
                session,
                contributor_id(session, LOCAL),
                "local",
                "Tiny",
                manifest='{"files":[]}',
                description=json.dumps(texts),
                size_bytes=96,
            )
            row.id = int(number)
            row.state, row.findings = "published" if name == "shown" else "ready", json.dumps([finding])
            row.model_id = model.id if name == "shown" else None


def put_answer(registry: LocalRegistry) -> None:
    """The answer to a prompt of somebody without an account."""
    request = PromptRequest(
        model=EXAMPLE_BASE, messages=(ChatMessage(role="user", content="def read("),), tokens=20, seed=1
    )
    reply = ModelReply(model=f"{EXAMPLE_BASE}@1", text="self, path):", tokens=4, prompt_tokens=4, ended="end")
    arguments = PromptArguments(request=request, models=(reply.model,), seconds=60.0)
    with registry.catalog.counting() as session:
        enqueue_prompt(session, arguments, Asker("203.0.113.1", has_account=False))
        claim = claim_prompt(session)
        assert claim is not None
        finish(session, claim, encode(Replies(replies=(reply,))).decode())
        session.get_one(AnswerRow, claim.key[0]).key = EXAMPLE_KEY


def send_example(client: FlaskClient, told: Endpoint[..., Any]) -> TestResponse:
    """The answer to the example request of an operation; of one that writes, by a client that may.

    What only contributors with tokens may is asked with one.
    """
    method = told.method.upper()
    if told.bytes_example is not None:
        headers = {one.name: one.example for one in told.parameters if one.where == "header" and one.required}
        data = told.bytes_example
        return client.open(told.example, method=method, data=data, headers=headers, content_type=OCTETS)
    headers = _managing_token(client) if told.name in MANAGING else {}
    if told.body is None:
        return client.open(told.example, method=method, headers=headers)
    path = told.path.format(**{one.name: one.example for one in told.parameters if one.is_in_path})
    return client.open(path, method=method, data=told.example, content_type="application/json", headers=headers)


def _managing_token(client: FlaskClient) -> dict[str, str]:
    """The header of a contributor who manages tokens, and created the one that examples revoke: `local` has none."""
    with client.application.app_context():
        text = new_token(responses.registry(), "ada", "upload", "tokens")
        with responses.registry().catalog.writing() as session:
            token_by_public_id(session, EXAMPLE_TOKEN).parent_id = token_by_public_id(session, text[5:14]).id
        return authorization(text)


def fill_zoo(registry: LocalRegistry) -> None:
    """Add to a registry with the shipped models what the examples show besides."""
    compose_chimeras(registry)
    shown = registry.model("local/Zoo-A-2M-v1.0-Q8_0")
    put_card(registry, shown.name, text=f"{shown.description}\n\n![Its loss](images/plot.png)")
    size_bytes = shown.size_bytes
    add_size(registry, EXAMPLE_BASE, "Q8_0", size_bytes, 0.0004, model="local/Zoo-A-2M-v1.0-Q8_0", kind="plain")
    for means in ((0.02, 0.03), (-0.01, 0.02, -0.06, -0.03)):
        add_evolution(registry, EXAMPLE_BASE, [EXAMPLE_DONOR], means, names=("python", "documentation"))
    put_accounts(registry)
    put_jobs(registry)
    put_uploads(registry)
    put_submissions(registry)
    put_answer(registry)


def examples(client: FlaskClient, *, administering: bool = False) -> dict[str, Any]:
    """The answers that the reference shows, shortened, to a client that may write; the document is left out.

    Only those of administrators, or only the others.
    """
    found = {}
    for told in API.values():
        if told.answer_name == "Document" or (told.scope == "admin") != administering:
            continue
        answer = send_example(client, told)
        assert answer.status_code == told.status, (told.name, answer.text)
        found[told.name] = shortened(json.loads(answer.text))
    return found


def shortened(value: Any) -> Any:
    """`value` with one item of each list, with long texts cut, and without secrets."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shortened(one) for one in value[:LISTED_MAX]]
    if isinstance(value, str) and value.startswith(PREFIX):
        return f"{PREFIX}…"
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return value[: TEXT_MAX - 1] + "…"
    return value
