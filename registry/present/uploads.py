"""Uploads as plain values, for their contributor."""

from __future__ import annotations

from collections.abc import Iterable

from organs.registry.catalog.register.submissions import (
    CHUNK_LEAST_BYTES,
    CHUNK_MOST_BYTES,
)
from organs.registry.catalog.tables import Upload
from organs.registry.present.values import Values


def upload_values(upload: Upload) -> Values:
    """How far it is, and what its next chunk may be."""
    return {
        "id": upload.public_id,
        "kind": upload.kind,
        "name": upload.name,
        "digest": upload.digest,
        "size_bytes": upload.size_bytes,
        "received_bytes": upload.received_bytes,
        "state": upload.state,
        "expires_at": upload.expires_at.isoformat(),
        "chunk_bytes": {"least": CHUNK_LEAST_BYTES, "most": CHUNK_MOST_BYTES},
    }


def uploads_values(uploads: Iterable[Upload]) -> Values:
    """All of a contributor's that are under way: one page."""
    return {"items": [upload_values(one) for one in uploads], "next": None}
