"""What a registry answers to a push, checked for its form: what is none is a BadReply, and nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from organs.registry.catalog.queries.accounts import Quota
from organs.registry.errors import BadName, BadReply
from organs.registry.names import ModelName, parse_model_name

FINDINGS_MAX = 200
SENTENCE_MAX_LENGTH = 2000
ENDED = ("ready", "published", "quarantined", "refused", "withdrawn")
"""States of a submission in which the registry does no more by itself. A push asks for publication, so its submission
is `ready` when a finding must be acknowledged first."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload session as the registry sees it."""

    id: str
    received_bytes: int
    complete: bool
    chunk_most_bytes: int | None

    @classmethod
    def of(cls, values: Mapping[str, Any], size_bytes: int) -> Upload:
        """The session in `values`, of something of `size_bytes`."""
        received = values.get("received_bytes")
        if not isinstance(received, int) or isinstance(received, bool) or not 0 <= received <= size_bytes:
            raise _odd("an upload whose received_bytes mean nothing")
        chunk = values.get("chunk_bytes")
        most = chunk.get("most") if isinstance(chunk, dict) else None
        return cls(
            _id(values),
            received,
            values.get("state") == "complete",
            most if isinstance(most, int) and most > 0 else None,
        )


@dataclass(frozen=True, slots=True)
class KeptUpload:
    """An upload that is under way, by what tells it from others."""

    kind: str
    size_bytes: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class Room:
    """What may be kept for whoever asks, and what is."""

    namespace: str
    quota: Quota
    model_max_bytes: int

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Room:
        """The room in an account's `values`."""
        quota = values.get("quota")
        told = quota if isinstance(quota, dict) else {}
        limit, used = _size(told.get("limit_bytes")), _size(told.get("used_bytes"))
        uploads, submitted = _size(told.get("uploads_bytes")), _size(told.get("submitted_bytes"))
        model_max = _size(told.get("model_max_bytes"))
        if limit is None or used is None or uploads is None or submitted is None or model_max is None:
            raise _odd("an account without a quota")
        return cls(namespace_of(values), Quota(limit, used, uploads, submitted), model_max)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the registry has to say of what was handed in."""

    severity: str
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Submission:
    """What becomes of a model that was handed in."""

    id: str
    state: str
    findings: tuple[Finding, ...]
    model: str | None
    path: str | None
    """Of its page, below the registry's address."""
    reason: str | None
    note: str
    progress: float

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Submission:
        """The submission in `values`."""
        listed = values.get("findings")
        findings = listed[:FINDINGS_MAX] if isinstance(listed, list) else []
        progress, path = values.get("progress"), _text(values.get("address"))
        return cls(
            _id(values),
            _text(values.get("state")) or "",
            tuple(_finding(found) for found in findings if isinstance(found, dict)),
            _text(values.get("model")),
            path if path and path.startswith("/") else None,
            _text(values.get("reason")),
            _text(values.get("note")) or "",
            float(progress) if isinstance(progress, int | float) else 0.0,
        )


def known_digests(values: Mapping[str, Any]) -> frozenset[str]:
    """The answer of a lookup."""
    listed = values.get("known")
    if not isinstance(listed, list):
        raise _odd("a lookup without what is known")
    return frozenset(digest for digest in listed if isinstance(digest, str))


def kept_uploads(values: Mapping[str, Any]) -> frozenset[KeptUpload]:
    """The answer to which uploads are under way; what says not enough to be known again is left out."""
    listed = values.get("items")
    items = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    found = ((_text(one.get("kind")), _size(one.get("size_bytes")), _text(one.get("digest"))) for one in items)
    return frozenset(KeptUpload(kind, size, digest) for kind, size, digest in found if kind and size is not None)


def namespace_of(values: Mapping[str, Any]) -> str:
    """The namespace of the account that asks."""
    namespace = _text(values.get("namespace"))
    if not namespace:
        raise _odd("an account without a namespace")
    return namespace


def digests_of_model(values: Mapping[str, Any]) -> list[str]:
    """The digests of a model's files, in order."""
    listed = values.get("files")
    return [str(file.get("sha256")) for file in listed if isinstance(file, dict)] if isinstance(listed, list) else []


def name_of_model(values: Mapping[str, Any]) -> ModelName:
    """What a registered model is called, with its version."""
    try:
        return parse_model_name(_text(values.get("name")) or "")
    except BadName as error:
        raise _odd("a model without a name") from error


def _finding(values: Mapping[str, Any]) -> Finding:
    return Finding(*(_text(values.get(key)) or "" for key in ("severity", "code", "sentence")))


def _id(values: Mapping[str, Any]) -> str:
    found = str(values.get("id"))
    if "id" not in values or not _ID.fullmatch(found):
        raise _odd("something without an id")
    return found


def _text(value: object) -> str | None:
    return value[:SENTENCE_MAX_LENGTH] if isinstance(value, str) else None


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _odd(what: str) -> BadReply:
    return BadReply(f"the registry does not answer as one does: {what}")
