"""A contributor that sends uploads to a registry without the web."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from organs.ingest.contributions import uploads
from organs.ingest.contributions.uploads import Chunk, receive
from organs.registry.catalog.register.accounts import add_contributor
from organs.registry.catalog.tables import UploadRow
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.submission import UploadRequest
from organs.registry.local import LocalRegistry

DATA = bytes(range(256)) * 40


def wanted(
    kind: str, size_bytes: int, *, pieces: Sequence[tuple[int, Digest]] = (), **values: str | None
) -> UploadRequest:
    """Return a request as the API reads it."""
    members = {name: value for name, value in values.items() if value is not None}
    listed = {"pieces": [list(piece) for piece in pieces]} if pieces else {}
    return msgspec.convert({"kind": kind, "size_bytes": size_bytes} | members | listed, UploadRequest)


@dataclass(frozen=True, slots=True)
class Sender:
    """A contributor with this id, and the registry to which it sends."""

    registry: LocalRegistry
    id: int

    @classmethod
    def named(cls, registry: LocalRegistry, name: str) -> Sender:
        """Add a contributor."""
        with registry.catalog.writing() as session:
            return cls(registry, add_contributor(session, name).id)

    def on(self, registry: LocalRegistry) -> Sender:
        """Return the same contributor that sends to the same database through another object or machine."""
        return replace(self, registry=registry)

    def open(self, request: UploadRequest) -> str:
        return uploads.open_upload(self.registry, self.id, request).public_id

    def begin(self, data: bytes = DATA, kind: str = "file", name: str | None = None) -> str:
        """Open an upload for `data`; return its name."""
        digest = digest_of(data) if kind == "piece" else None
        return self.open(wanted(kind, len(data), digest=digest, name=name))

    def send(self, upload: str, begin: int, end: int, data: bytes = DATA) -> int:
        """Send these bytes of `data` in portions of 700; return the number of received bytes."""
        portions = (data[at : min(at + 700, end)] for at in range(begin, end, 700))
        return receive(self.registry, self.id, upload, chunk_of(data, begin, end), portions).received_bytes

    def finish(self, upload: str, digest: Digest | None = None) -> UploadRow:
        return uploads.finish(self.registry, self.id, upload, digest)

    def sent(self, data: bytes, kind: str = "piece") -> str:
        """Send and finish an upload of `data`; return its name."""
        return self._complete(self.begin(data, kind), data)

    def sent_pack(self, pieces: Sequence[bytes]) -> str:
        """Send and finish a pack of pieces; return its name."""
        data = b"".join(pieces)
        pack = wanted("pack", len(data), pieces=[(len(piece), digest_of(piece)) for piece in pieces])
        return self._complete(self.open(pack), data)

    def look_up(self, upload: str) -> UploadRow:
        return uploads.look_up(self.registry, self.id, upload)

    def received(self, upload: str) -> int:
        return self.look_up(upload).received_bytes

    def cancel(self, upload: str) -> UploadRow:
        return uploads.cancel(self.registry, self.id, upload)

    def _complete(self, upload: str, data: bytes) -> str:
        self.send(upload, 0, len(data), data)
        return self.finish(upload).public_id


def chunk_of(data: bytes, begin: int, end: int, *, wrong: bool = False) -> Chunk:
    """Return the description of a chunk of `data`, on request with the digest of other bytes."""
    return Chunk(begin, end, len(data), hashlib.sha256(data[begin:end] + b"x" * wrong).digest())
