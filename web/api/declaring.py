"""What somebody is going to send, as the body of a request declares it."""

from __future__ import annotations

from typing import Any, TypeGuard

from organs.ingest.uploads.sessions import Declared
from organs.registry.catalog.register.uploads import Pieces
from organs.registry.catalog.vocabulary import UPLOAD_KINDS
from organs.registry.digest import Digest, parse_digest
from organs.registry.errors import BadDigest, BadInput
from organs.web.api.body import json_body
from organs.web.api.refusals import Refused

NAME_MAX_LENGTH = 255


def asked_declaration() -> Declared:
    """The body; raises Refused (400) for what cannot be sent. Whether it may be, the catalog knows."""
    given = json_body(("kind", "size_bytes", "digest", "name", "pieces"))
    kind, size_bytes = given.get("kind"), given.get("size_bytes")
    if kind not in UPLOAD_KINDS:
        raise Refused("kind", f"kind is to be {', '.join(UPLOAD_KINDS[:-1])} or {UPLOAD_KINDS[-1]}.")
    if not _is_size(size_bytes):
        raise Refused("size_bytes", "size_bytes is to be a whole number from 1 on.")
    digest, name, pieces = given.get("digest"), given.get("name"), given.get("pieces")
    try:
        return Declared(
            kind,
            size_bytes,
            None if digest is None else _digest(digest, "digest"),
            None if name is None else _name(name),
            () if pieces is None else _pieces(pieces),
        )
    except Refused:
        raise
    except BadInput as error:
        raise Refused(None, f"{error}.") from error


def _is_size(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 62


def _digest(value: Any, field: str) -> Digest:
    try:
        return parse_digest(value if isinstance(value, str) else "")
    except BadDigest as error:
        raise Refused(field, f"{field} is to be a SHA-256 digest of 64 hexadecimal characters.") from error


def _name(value: Any) -> str:
    """What a file is called: shown to people, and never a path."""
    is_name = isinstance(value, str) and 1 <= len(value) <= NAME_MAX_LENGTH and value.isprintable()
    if not is_name or "/" in value or "\\" in value or value in (".", ".."):
        raise Refused("name", f"name is to be what a file is called, of 1 to {NAME_MAX_LENGTH} characters, no path.")
    return str(value)


def _pieces(value: Any) -> Pieces:
    if not isinstance(value, list) or not value:
        raise Refused("pieces", "pieces is to be a list of [size_bytes, digest].")
    found = []
    for place, one in enumerate(value):
        if not (isinstance(one, list) and len(one) == 2 and _is_size(one[0])):
            raise Refused(f"pieces[{place}]", "a piece is [size_bytes, digest].")
        found.append((int(one[0]), _digest(one[1], f"pieces[{place}]")))
    return tuple(found)
