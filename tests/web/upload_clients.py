"""Clients that upload over the API: a contributor with a token who sends chunks."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from organs.registry.catalog.register.accounts import add_contributor, create_token
from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry

UPLOADS = "/api/v1/uploads"
OCTETS = "application/octet-stream"


def new_contributor_token(
    registry: LocalRegistry, name: str, scopes: Collection[str] = ("upload",), quota: int | None = None
) -> str:
    """The token of a new contributor."""
    with registry.catalog.writing() as session:
        made = add_contributor(session, name, quota_bytes=quota)
        return create_token(session, made.id, scopes, "test").text


def content_digest(data: bytes) -> str:
    """`Content-Digest` of a chunk."""
    return f"sha-256=:{b64encode(hashlib.sha256(data).digest()).decode()}:"


@dataclass(frozen=True, slots=True)
class UploadClient:
    """Sends with a token."""

    client: FlaskClient
    token: str

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def ask(self, method: str, path: str = "", body: Any = None, **headers: str) -> TestResponse:
        """The answer at `path` below the uploads, to a body of JSON."""
        return self.client.open(UPLOADS + path, method=method, json=body, headers={**self._headers, **headers})

    def begin(self, data: bytes, **more: Any) -> str:
        """The id of a new upload for `data`, a piece unless told otherwise."""
        body = {"kind": "piece", "size_bytes": len(data), "digest": digest_of(data), **more}
        answer = self.ask("POST", body=body)
        assert answer.status_code == 202, answer.text
        assert answer.headers["Location"] == f"{UPLOADS}/{answer.json['id']}"  # type: ignore[index]
        return str(answer.get_json()["id"])

    def chunk(self, upload: str, data: bytes, begin: int, end: int, **headers: str) -> TestResponse:
        """Send these bytes of `data`; `headers` go before what they ought to be, with `_` for `-`."""
        sent = {
            "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}",
            "Content-Digest": content_digest(data[begin:end]),
        }
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        kind = sent.pop("Content-Type", OCTETS)
        return self.client.patch(
            f"{UPLOADS}/{upload}", data=data[begin:end], content_type=kind, headers={**self._headers, **sent}
        )

    def received(self, upload: str) -> int:
        """Return the number of received bytes."""
        return int(self.ask("GET", f"/{upload}").get_json()["received_bytes"])

    def finish(self, upload: str, query: str = "") -> TestResponse:
        """All has been sent."""
        return self.ask("PUT", f"/{upload}{query}")
