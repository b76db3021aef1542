"""Who sends hostile uploads over real sockets: everything goes through the API, nothing is checked on this side."""

from __future__ import annotations

import http.client
import json
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from organs.registry.digest import digest_of

API = "/api/v1"
JSON, OCTETS = "application/json", "application/octet-stream"
ANSWER_SECONDS = 60.0
POLL_SECONDS = 0.25
ENDED_SECONDS = 300.0
"""Within this time everything that was submitted has ended, and every limit is one no more."""
AGAIN = (429, 503)
ENDED = ("ready", "published", "quarantined", "refused", "withdrawn")
SMALL_BYTES = 64 * 1024
"""Pieces below travel together."""

Values = dict[str, Any]
Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, and the JSON that came with it; nothing where none came."""

    status: int
    values: Values

    @property
    def is_refusal(self) -> bool:
        """Whether it says no, and that the fault is the asker's."""
        return 400 <= self.status < 500


class Refused(Exception):
    """The server has said no before there was a submission."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status}: {answer.values.get('detail', '')}")
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends as one contributor, one thing after another."""

    port: int
    name: str
    token: str
    digests: set[str] = field(default_factory=set)
    """Of all bytes that were sent, and of all pieces."""

    def ask(self, method: str, path: str, body: Any = None, *, data: bytes | None = None, **headers: str) -> Answer:
        """The answer at `path` below the API to `body` as JSON, or to `data` as it is; underscores of headers are
        hyphens. Waits where there is too much going on."""
        sent = json.dumps(body).encode() if data is None and body is not None else data
        given = {"Content-Type": JSON if data is None else OCTETS, "Authorization": f"Bearer {self.token}"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        until = time.monotonic() + ENDED_SECONDS
        while True:
            answer, again_seconds = self._once(method, API + path, sent, given)
            if answer.status not in AGAIN or time.monotonic() > until:
                return answer
            time.sleep(min(again_seconds, 5.0))

    def expect(self, method: str, path: str, body: Any = None, **more: Any) -> Values:
        """The values of an answer that is no refusal; raises Refused."""
        answer = self.ask(method, path, body, **more)
        if answer.status >= 300:
            raise Refused(answer)
        return answer.values

    def begin(self, kind: str, size_bytes: int, **more: Any) -> str:
        """The id of an upload; what is begun twice for the same goes on where it was."""
        self.digests.update(digest for _, digest in more.get("pieces", ()))
        return str(self.expect("POST", "/uploads", {"kind": kind, "size_bytes": size_bytes, **more})["id"])

    def chunk(self, upload: str, data: bytes, **headers: str) -> Values:
        """All of it in one chunk; `headers` say something else of it."""
        self.digests.add(digest_of(data))
        digest = b64encode(sha256(data).digest()).decode()
        said = {"Content_Range": f"bytes 0-{len(data) - 1}/{len(data)}", "Content_Digest": f"sha-256=:{digest}:"}
        return self.expect("PATCH", f"/uploads/{upload}", data=data, **(said | headers))

    def finish(self, upload: str) -> str:
        """All has come; its id."""
        self.expect("PUT", f"/uploads/{upload}")
        return upload

    def file(self, data: bytes, **more: Any) -> str:
        """The id of a finished upload of a whole file."""
        upload = self.begin("file", len(data), **more)
        self.chunk(upload, data)
        return self.finish(upload)

    def pieces(self, pieces: Sequence[bytes]) -> None:
        """Send pieces: the small ones in a pack, the others each by itself."""
        small = list(dict.fromkeys(piece for piece in pieces if len(piece) < SMALL_BYTES))
        if small:
            named = [[len(piece), digest_of(piece)] for piece in small]
            upload = self.begin("pack", sum(map(len, small)), pieces=named)
            self.chunk(upload, b"".join(small))
            self.finish(upload)
        for piece in pieces:
            if len(piece) >= SMALL_BYTES:
                upload = self.begin("piece", len(piece), digest=digest_of(piece))
                self.chunk(upload, piece)
                self.finish(upload)

    def submit(self, model: str, manifest: Any, *, data: bytes | None = None, **headers: str) -> Values:
        """What became of a submission; raises Refused where there is none."""
        if data is not None:
            headers.setdefault("Content_Type", JSON)
        made = self.expect("PUT", f"/models/{model}", manifest, data=data, **headers)
        until = time.monotonic() + ENDED_SECONDS
        while made["state"] not in ENDED:
            assert time.monotonic() < until, f"submission {made['id']} is {made['state']}, and never ends"
            time.sleep(POLL_SECONDS)
            made = self.expect("GET", f"/submissions/{made['id']}")
        return made

    def _once(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[Answer, float]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        try:
            connection.request(method, path, data, dict(headers))
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        try:
            values = json.loads(text)
        except ValueError:
            values = {}
        again = answer.getheader("Retry-After") or "1"
        return Answer(answer.status, values if isinstance(values, dict) else {}), float(again)


Send = Callable[[Sender, str], Values]
"""Sends as somebody, under the name of a model."""


@dataclass(frozen=True, slots=True)
class Case:
    """Something hostile, or with `is_sound` a file that may be taken, and is only looked at."""

    kind: str
    what: str
    send: Send
    is_sound: bool = False


def of_file(name: str, upload: str) -> Values:
    """A file of a manifest that is an upload."""
    return {"name": name, "upload": upload}


def of_pieces(name: str, data: bytes, spans: Spans) -> Values:
    """A file of a manifest that is put together of stretches: offsets and sizes."""
    pieces = [[offset, size, digest_of(data[offset : offset + size])] for offset, size in spans]
    return {"name": name, "size_bytes": len(data), "sha256": digest_of(data), "pieces": pieces}
