"""A load through an upload session, in chunks, from where the registry is: it decides the offset, never we."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable
from contextlib import suppress

from organs.ingest.pushing.answers import Upload
from organs.ingest.pushing.loading import Load, OpenLoad
from organs.ingest.pushing.waiting import PASSING, Patience, Stopped
from organs.registry.client.connection import API, Connection
from organs.registry.errors import BadInput, BadReply, BadSource, Conflict, NotFound, OrganError

UPLOADS = f"{API}/uploads"
CHUNK_BYTES = 8 * 1024 * 1024
DAMAGED_MAX = 3
"""Times that one session may refuse a chunk, or vanish, before that is believed."""

Advance = Callable[[int], None]


class Misfit(BadInput):
    """All bytes of a load have arrived, and they are not those that its digest names."""


class Sender:
    """Sends loads; safe from several threads, one load in each. `sent_bytes` is what travelled, repeats included."""

    def __init__(
        self, connection: Connection, stop: threading.Event, advance: Advance, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        """`advance` is told of bytes that the registry has, also of those that it had before."""
        self._connection = connection
        self._stop = stop
        self._advance = advance
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self.sent_bytes = 0

    def send(self, load: Load) -> None:
        """Bring `load` to the registry. Raises what it refuses, Unreachable when it is away for too long, BadSource,
        and Stopped when the push was ended."""
        opened = load.opened()
        patience = Patience(self._stop)
        session: Upload | None = None
        told = refused = 0
        while True:
            self._check_not_stopped()
            try:
                session = self._next(opened, session)
            except (*PASSING, Conflict) as error:  # a chunk that was cut may be held on to for a while
                patience.wait(error)
                session = session and self._where(session, opened)
                continue
            except (BadInput, NotFound) as error:
                refused += 1
                if session is None or isinstance(error, BadSource | Misfit) or refused > DAMAGED_MAX:
                    raise
                session = None  # a chunk that was damaged on its way, or a session that is no more
                patience.wait(error)
                continue
            if session.received_bytes > told or session.complete:
                patience.succeeded()
            reached = opened.span.size_bytes if session.complete else session.received_bytes
            self._advance(reached - told)
            told = reached
            if session.complete:
                return

    def _next(self, load: OpenLoad, session: Upload | None) -> Upload:
        """One step further: a session, a chunk, the end."""
        size_bytes = load.span.size_bytes
        if session is None:
            return Upload.of(self._connection.send("POST", UPLOADS, dict(load.asked)), size_bytes)
        if session.received_bytes < size_bytes:
            return self._chunk(load, session)
        self._finish(session)
        return Upload(session.id, size_bytes, True, session.chunk_most_bytes)

    def _chunk(self, load: OpenLoad, session: Upload) -> Upload:
        begin, size_bytes = session.received_bytes, load.span.size_bytes
        data = load.read(begin, min(self._chunk_bytes, session.chunk_most_bytes or self._chunk_bytes))
        headers = {
            "Content-Range": f"bytes {begin}-{begin + len(data) - 1}/{size_bytes}",
            "Content-Digest": f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:",
        }
        with self._lock:
            self.sent_bytes += len(data)
        reply = self._connection.send_bytes("PATCH", f"{UPLOADS}/{session.id}", data, headers)
        after = Upload.of(reply.values, size_bytes)
        if after.received_bytes == begin:
            raise BadReply("the registry takes no more bytes of an upload, and does not say why")
        return after

    def _finish(self, session: Upload) -> None:
        try:
            self._connection.send("PUT", f"{UPLOADS}/{session.id}")
        except BadInput as error:
            with suppress(OrganError):
                self._connection.send("DELETE", f"{UPLOADS}/{session.id}")  # else the next run would find it again
            raise Misfit(str(error)) from error

    def _where(self, session: Upload, load: OpenLoad) -> Upload | None:
        """The session as the registry sees it now; as it was when that cannot be told, None when it is no more."""
        try:
            return Upload.of(self._connection.get(f"{UPLOADS}/{session.id}"), load.span.size_bytes)
        except NotFound:
            return None
        except OrganError:
            return session

    def _check_not_stopped(self) -> None:
        if self._stop.is_set():
            raise Stopped
