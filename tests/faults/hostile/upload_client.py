"""A client that sends hostile uploads over real sockets, all through the API and without checks on this side."""

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
"""Within this time (seconds) every submission ends, and every rate limit is reset."""
AGAIN = (429, 503)
ENDED = ("ready", "published", "quarantined", "refused", "withdrawn")
SMALL_BYTES = 64 * 1024
"""Smaller pieces are sent in a pack."""

Values = dict[str, Any]
Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, and the JSON of the answer, empty if there was none."""

    status: int
    values: Values

    @property
    def is_refusal(self) -> bool:
        """Return whether the answer is a refusal by a fault of the client."""
        return 400 <= self.status < 500


class Refused(Exception):
    """The server refused the data before there was a submission."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status}: {answer.values.get('detail', '')}")
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends as one contributor, one request after another."""

    port: int
    name: str
    token: str
    digests: set[str] = field(default_factory=set)
    """The digests of all sent bytes and pieces."""

    def ask(self, method: str, path: str, body: Any = None, *, data: bytes | None = None, **headers: str) -> Answer:
        """Return the answer of the API at `path` to `body` as JSON, or to the bytes `data`; underscores of headers are
        hyphens. Waits if there are too many requests."""
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
        """Return the values of an answer that is not a refusal; raise Refused otherwise."""
        answer = self.ask(method, path, body, **more)
        if answer.status >= 300:
            raise Refused(answer)
        return answer.values

    def begin(self, kind: str, size_bytes: int, **more: Any) -> str:
        """Open an upload and return its id; the same declaration again continues the first upload."""
        self.digests.update(digest for _, digest in more.get("pieces", ()))
        return str(self.expect("POST", "/uploads", {"kind": kind, "size_bytes": size_bytes, **more})["id"])

    def chunk(self, upload: str, data: bytes, **headers: str) -> Values:
        """Send all bytes in one chunk; `headers` replace its headers."""
        self.digests.add(digest_of(data))
        digest = b64encode(sha256(data).digest()).decode()
        chunk_headers = {
            "Content_Range": f"bytes 0-{len(data) - 1}/{len(data)}",
            "Content_Digest": f"sha-256=:{digest}:",
        }
        return self.expect("PATCH", f"/uploads/{upload}", data=data, **(chunk_headers | headers))

    def finish(self, upload: str) -> str:
        """Finish the upload; return its id."""
        self.expect("PUT", f"/uploads/{upload}")
        return upload

    def file(self, data: bytes, **more: Any) -> str:
        """Send a complete file; return the id of the finished upload."""
        upload = self.begin("file", len(data), **more)
        self.chunk(upload, data)
        return self.finish(upload)

    def pieces(self, pieces: Sequence[bytes]) -> None:
        """Send pieces: the small ones in a pack, the others separately."""
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
        """Submit a manifest; return the outcome of the submission, or raise Refused if there is none."""
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
"""Sends as a contributor, under the name of a model."""


@dataclass(frozen=True, slots=True)
class Attack:
    """What a contributor sends; a file with `is_sound` may be accepted, and is only inspected."""

    kind: str
    name: str
    send: Send
    is_sound: bool = False


def of_file(name: str, upload: str) -> Values:
    """Return the entry of a manifest for an uploaded file."""
    return {"name": name, "upload": upload}


def of_pieces(name: str, data: bytes, spans: Spans) -> Values:
    """Return the entry of a manifest for a file of pieces: offsets and sizes."""
    pieces = [[offset, size, digest_of(data[offset : offset + size])] for offset, size in spans]
    return {"name": name, "size_bytes": len(data), "sha256": digest_of(data), "pieces": pieces}
