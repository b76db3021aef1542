"""A catalog with something of everything that belongs to somebody, and askers of each kind: all of it is ada's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from flask import Flask
from flask.testing import FlaskClient

from organs.ingest.contributions.uploads import spool_of
from organs.ingest.jobs.packs import packs_folder, share_pack
from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.queries.chimeras import chimera_of
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import LOCAL, store_query
from organs.registry.catalog.register.jobs import enqueue_job
from organs.registry.catalog.register.model_changes import hide_model, remove_model
from organs.registry.catalog.register.submissions import add_submission, add_upload, record_received
from organs.registry.catalog.tables import JobRow, ModelRow, now
from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.web.auth import COOKIE
from organs.web.pages.routes import COOKIE as FORM_COOKIE
from organs.web.pages.routes import FIELD
from tests.card_images import put_card
from tests.evolutions import add_evolution
from tests.fleets import put_run
from tests.related_models import model_file, related_tensors
from tests.sizes import add_size
from tests.small_models import ingest_file
from tests.web.accounts import child_token, form_token, new_token, program, session_of

ASKERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "reader": ("eve", ("read",)),
    "owner": ("ada", ("upload",)),
    "sparing": ("ada", ("read",)),
    "other": ("bob", ("upload",)),
    "admin": ("root", ("admin",)),
    "keeper": ("root", ("upload", "admin")),
    "manager": ("ada", ("upload", "tokens")),
}
"""Whose tokens they have, and what those are good for."""
VISIBLE, HIDDEN, MIXED, GONE, BASE = "ada/open", "ada/hidden", "ada/mixed", "ada/gone", "local/base"
"""Models; the hidden one is a chimera that waits in quarantine, the mixed one is a chimera that does not. One that was
there for everybody was removed."""
READY, WAITING = 1, 2
"""Submissions."""
QUEUED, PACKED = 1, 2
"""Jobs."""
SENT = b"organ"
OPEN, FULL = "belongingsOpen-0000001", "belongingsFull-0000001"
"""Uploads of SENT, of which nothing and everything has come."""
PACK_FILE, PACK_KEY = "open.zip", "0" * 32


def fill_owned_catalog(registry: LocalRegistry, folder: Path) -> None:
    """Ada's models, submissions, jobs and uploads, and a base that is nobody's."""
    for name, alike in ((VISIBLE, 1.0), (BASE, 0.995), (GONE, 0.9)):
        path = folder / f"{name.replace('/', '-')}.gguf"
        path.write_bytes(model_file(name.partition("/")[2], related_tensors(correlation=alike)))
        ingest_file(registry, path, name)
    for name, block in ((MIXED, 0), (HIDDEN, 1)):
        registry.compose(VISIBLE).graft(BASE, blocks=block).named(name).plan().register()
    for name in (VISIBLE, HIDDEN):
        put_card(registry, name)
    add_size(registry, VISIBLE, "4bpw", 40_000, 0.02, model=HIDDEN)
    for owner, _ in ASKERS.values():
        new_token(registry, owner)  # which adds the contributor
    _put_submissions(registry)
    _put_uploads(registry)
    _put_jobs(registry)
    put_run(registry)
    add_evolution(registry, VISIBLE, [BASE], contributor="ada", state="running")


def _put_submissions(registry: LocalRegistry) -> None:
    said = {"title": None, "description": None, "license": "mit", "base": None, "tags": None}
    texts = json.dumps({"given": said, "publish": False, "proposed": None})
    with registry.catalog.writing() as session:
        ada = contributor_by_name(session, "ada").id
        for model in session.query(ModelRow).filter_by(namespace="ada"):
            model.contributor_id = ada
        for number, name, state in ((READY, "next", "ready"), (WAITING, "hidden", "quarantined")):
            row = add_submission(session, ada, "ada", name, manifest='{"files":[]}', description=texts, size_bytes=96)
            row.id, row.state = number, state
        hidden = model_by_name(session, parse_model_name(HIDDEN))
        row.model_id = hidden.id
        hide_model(session, hidden, "quarantined", "It waits.", LOCAL)
        remove_model(session, model_by_name(session, parse_model_name(GONE)), "It was not theirs.", LOCAL)


def _put_uploads(registry: LocalRegistry) -> None:
    registry.settings.uploads.mkdir(exist_ok=True)
    for public_id in (OPEN, FULL):
        (registry.settings.uploads / public_id).touch()
    with spool_of(registry).locked(FULL) as file:
        file.write(SENT, 0)
        stored = file.sync()
    with registry.catalog.writing() as session:
        ada = contributor_by_name(session, "ada").id
        for public_id in (OPEN, FULL):
            digest, name = digest_of(SENT), f"{public_id}.gguf"
            row = add_upload(session, ada, public_id, kind="file", size_bytes=len(SENT), digest=digest, name=name)
        record_received(session, row.id, 0, len(SENT), stored)


def _put_jobs(registry: LocalRegistry) -> None:
    pack = packs_folder(registry.settings.home) / PACK_KEY
    pack.mkdir(parents=True)
    (pack / PACK_FILE).write_bytes(SENT)
    share_pack(registry, pack / PACK_FILE, digest_of(SENT), len(SENT))
    with registry.catalog.writing() as session:
        store_query(session, "ada", "models", "small", "params<1G")
        enqueue_job(session, "report", {}, "ada")
        row = session.get_one(JobRow, enqueue_job(session, "extract", {"model": f"{VISIBLE}@1"}, "ada"))
        row.state, row.progress, row.started_at, row.finished_at = "finished", 1.0, now(), now()
        row.result = json.dumps(
            {"pack": PACK_KEY, "file": PACK_FILE, "size_bytes": len(SENT), "sha256": digest_of(SENT)}
        )


class Askers:
    """Programs and browsers of each kind at one application, whose tokens have been used just now.

    `nobody` is among them, and has neither token nor session.
    """

    def __init__(self, registry: LocalRegistry, app: Flask) -> None:
        self.app = app
        self.tokens = {asker: new_token(registry, owner, *scopes) for asker, (owner, scopes) in ASKERS.items()}
        self.spare = child_token(registry, self.tokens["manager"], "upload")
        self._cookies = {"nobody": (FORM_COOKIE, "n" * 43)}
        self.fields = {"nobody": {FIELD: "n" * 43}}
        """What forms of each browser have in them."""
        for asker, token in self.tokens.items():
            assert self.program(asker).get("/api/v1/account").status_code == 200
            self._cookies[asker] = (COOKIE, session_of(registry, token))
            self.fields[asker] = {FIELD: form_token(self.browser(asker))}

    def program(self, asker: str) -> FlaskClient:
        """A client that sends the token of `asker`."""
        return program(self.app, self.tokens[asker]) if asker in self.tokens else self.app.test_client()

    def browser(self, asker: str) -> FlaskClient:
        """A client that is logged in as `asker`."""
        client = self.app.test_client()
        client.set_cookie(*self._cookies[asker])
        return client


def lock_ids(registry: LocalRegistry) -> dict[str, str]:
    """The digests of the locks of both chimeras, by their names."""
    found: dict[str, Any] = {}
    with registry.catalog.reading() as session:
        for row in session.query(ModelRow).filter(ModelRow.name.in_(("mixed", "hidden"))):
            found[f"{row.namespace}/{row.name}"] = getattr(chimera_of(session, row.id), "lock_id", "")
    return found


def copy_uploads(source: Path, target: Path) -> None:
    """Let the folder `target` be what `source` is."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
