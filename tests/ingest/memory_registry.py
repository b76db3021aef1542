"""A registry in memory that accepts pushes like the API, and can fail on request."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from organs.registry.client.connection import Connection
from organs.registry.digest import digest_of
from organs.web.api.document import example_answers
from tests.client.scripted_server import Answer, ReceivedRequest, ScriptedServer, as_json, as_problem, scripted_server

Values = dict[str, Any]
MOMENT = "2026-01-31T12:00:00Z"


def upload_id(number: int) -> str:
    """Return the id of an upload."""
    return f"upload-{number:015}"


_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def quota(limit_bytes: int, **more: int) -> Values:
    """Return the quota of an account and its use."""
    nothing = {"used_bytes": 0, "uploads_bytes": 0, "submitted_bytes": 0, "upload_max_bytes": 1 << 40}
    return {"limit_bytes": limit_bytes} | nothing | more


@dataclass(slots=True)
class Session:
    """The state of an upload."""

    request: Values
    data: bytearray = field(default_factory=bytearray)
    complete: bool = False

    def values(self, public_id: str) -> Values:
        state = "complete" if self.complete else "open"
        return {
            **{name: self.request.get(name) for name in ("kind", "size_bytes", "digest", "name")},
            "id": public_id,
            "received_bytes": len(self.data),
            "state": state,
            "expires_at": MOMENT,
            "chunk_bytes": {"least": 1 << 23, "most": 1 << 26},
        }


@dataclass(slots=True)
class FakeRegistry:
    """A registry with its stored bytes, its received requests, and its planned failures."""

    server: ScriptedServer | None = None
    blobs: dict[str, bytes] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    submissions: dict[int, Values] = field(default_factory=dict)
    models: dict[str, Values] = field(default_factory=dict)
    manifests: list[Values] = field(default_factory=list)
    outcome: Values = field(default_factory=lambda: {"state": "published"})
    """The outcome of the next submission."""
    fails: Callable[[ReceivedRequest], Answer | None] = lambda _request: None
    """Called before each request is handled; an answer is returned immediately and nothing is done."""
    quota: Values = field(default_factory=lambda: quota(1 << 40))
    """The quota that the account reports."""
    received_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def __call__(self, request: ReceivedRequest) -> Answer:
        with self.lock:
            failure = self.fails(request)
            if failure is not None:
                return failure
            return self._answer(request, request.path.removeprefix("/api/v1"))

    @property
    def connection(self) -> Connection:
        assert self.server is not None
        return Connection(self.server.url, sleep=lambda _seconds: None)

    def requests_to(self, method: str, beginning: str) -> list[ReceivedRequest]:
        """Return the received requests of `method` whose paths begin so."""
        assert self.server is not None
        path = f"/api/v1{beginning}"
        return [
            request for request in self.server.requests if request.method == method and request.path.startswith(path)
        ]

    def file(self, index: int = 0, submission: int = -1) -> bytes:
        """Return a submitted file, assembled from its pieces."""
        manifest_file = self.manifests[submission]["files"][index]
        data = bytearray(manifest_file["size_bytes"])
        for offset, size_bytes, digest in manifest_file["pieces"]:
            assert len(self.blobs[digest]) == size_bytes
            data[offset : offset + size_bytes] = self.blobs[digest]
        assert digest_of(data) == manifest_file["sha256"]
        return bytes(data)

    def _answer(self, request: ReceivedRequest, path: str) -> Answer:
        if path == "/account":
            account = {"contributor": "me", "namespace": "me", "scopes": ["upload"], "token": None}
            return as_json(account | {"quota": self.quota})
        if path == "/uploads/lookup":
            return as_json({"known": [digest for digest in request.values["digests"] if digest in self.blobs]})
        if path == "/uploads" and request.method == "GET":
            kept = [
                session.request | session.values(name)
                for name, session in self.sessions.items()
                if not session.complete
            ]
            return as_json({"items": kept, "next": None})
        if path == "/uploads":
            return self._open(request.values)
        if path.startswith("/uploads/"):
            return self._session(request, path.removeprefix("/uploads/"))
        if path.startswith("/submissions/"):
            values = self.submissions.get(int(path.removeprefix("/submissions/")))
            return _nothing() if values is None else as_json(values)
        if path.startswith("/models/"):
            return self._model(request, path.removeprefix("/models/"))
        return _nothing()

    def _open(self, request: Values) -> Answer:
        for public_id, session in self.sessions.items():
            if session.request == request and not session.complete:
                return as_json(session.values(public_id), 202)
        public_id = upload_id(next(self.numbers))
        self.sessions[public_id] = Session(request)
        return as_json(self.sessions[public_id].values(public_id), 202)

    def _session(self, request: ReceivedRequest, public_id: str) -> Answer:
        session = self.sessions.get(public_id)
        if session is None:
            return _nothing()
        if request.method == "PATCH":
            return self._chunk(request, session, public_id)
        if request.method == "PUT":
            return self._finish(session, public_id)
        if request.method == "DELETE":
            del self.sessions[public_id]
        return as_json(session.values(public_id))

    def _chunk(self, request: ReceivedRequest, session: Session, public_id: str) -> Answer:
        match = _RANGE.fullmatch(request.headers["Content-Range"])
        assert match is not None
        begin, last, size_bytes = map(int, match.groups())
        assert (last - begin + 1, size_bytes) == (len(request.body), session.request["size_bytes"])
        digest = base64.b64encode(hashlib.sha256(request.body).digest()).decode()
        assert request.headers["Content-Digest"] == f"sha-256=:{digest}:"
        if begin != len(session.data):
            return as_json(session.values(public_id), 416)
        session.data += request.body
        self.received_bytes += len(request.body)
        return as_json(session.values(public_id), 202)

    def _finish(self, session: Session, public_id: str) -> Answer:
        pieces = session.request.get("pieces") or [[session.request["size_bytes"], session.request["digest"]]]
        position, found = 0, {}
        for size_bytes, digest in pieces:
            data = bytes(session.data[position : position + size_bytes])
            position += size_bytes
            if digest_of(data) != digest:
                return as_problem(400, "its bytes have another digest")
            found[digest] = data
        self.blobs |= found
        session.complete = True
        return as_json(session.values(public_id), 201)

    def _model(self, request: ReceivedRequest, name: str) -> Answer:
        if request.method == "GET":
            return as_json(self.models[name]) if name in self.models else _nothing()
        self.manifests.append(request.values)
        number = next(self.numbers)
        version = self.models.get(name, {}).get("version", 0) + 1
        published = {"model": f"{name}@{version}", "address": f"/models/{name}@{version}"}
        namespace, _, plain_name = name.partition("/")
        begun: Values = {
            "id": number,
            "namespace": namespace,
            "name": plain_name,
            "state": "checking",
            "findings": [],
            "proposed": None,
            "model": None,
            "address": None,
            "reason": None,
            "job": 1,
            "progress": 0.5,
            "note": "look",
            "created_at": MOMENT,
            "changed_at": MOMENT,
        }
        ended = begun | {"progress": 1.0, "note": ""} | self.outcome
        if ended["state"] == "published":
            ended |= published
            own = {"files": request.values["files"], "name": f"{name}@{version}", "version": version}
            self.models[name] = example_answers()["model"] | own
        self.submissions[number] = ended
        return as_json(begun, 202)


def _nothing() -> Answer:
    return as_problem(404, "nothing is kept here")


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """Yield a registry in memory that runs during the block."""
    fake = FakeRegistry()
    with scripted_server(fake) as server:
        fake.server = server
        yield fake
