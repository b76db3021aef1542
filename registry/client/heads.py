"""The header of a file that is elsewhere: only its beginning is fetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from organs.registry.client.connection import Connection
from organs.registry.client.fetching import TRIES, FileToFetch, backoff
from organs.registry.errors import BadGguf, BadInput, BadReply, Unreachable
from organs.registry.gguf import Header, HeaderSource, read_header

HEAD_MAX_BYTES = 64 * 1024 * 1024
"""The largest headers, with vocabularies of a quarter of a million words, have some 16 MB."""
CHUNK_BYTES = 64 * 1024


@dataclass(slots=True)
class _Beginning:
    """A file of which as much has come as was read (`registry.gguf.ByteSource`)."""

    name: str
    size_bytes: int
    chunks: Iterator[bytes]
    data: bytearray = field(default_factory=bytearray)

    def read_at(self, offset: int, size: int) -> bytes:
        end = offset + size
        if end > HEAD_MAX_BYTES:
            raise BadGguf(self.name, "header", offset, f"it is longer than {HEAD_MAX_BYTES} bytes")
        while len(self.data) < end:
            chunk = next(self.chunks, b"")
            if not chunk:
                raise Unreachable(f"{self.name} ends too early")
            self.data += chunk
        return bytes(self.data[offset:end])


def fetch_head(
    connection: Connection, file: FileToFetch, sleep: Callable[[float], None] = time.sleep
) -> tuple[Header, HeaderSource]:
    """The header of `file`, and the source that it was read of, which has nothing behind the header.

    What it says is the registry's word until the whole file has come. Raises BadReply for what is no header,
    Unreachable for a line that is cut every time.
    """
    for attempt in range(1, TRIES):
        try:
            return _fetched(connection, file)
        except BadReply:
            raise
        except Unreachable:
            sleep(backoff(attempt))
    return _fetched(connection, file)


def _fetched(connection: Connection, file: FileToFetch) -> tuple[Header, HeaderSource]:
    with (
        connection.download(file.path) as reply,
        closing(reply.stream(CHUNK_BYTES)) as chunks,  # type: ignore[type-var]  # a generator has `close`
    ):
        if reply.status != 200:
            raise BadReply(f"{connection.url} answers {reply.status} where a file was promised")
        beginning = _Beginning("the file that comes", file.size_bytes, chunks)
        try:
            header = read_header(beginning)
            head = beginning.read_at(0, header.end)
        except BadInput as error:
            raise BadReply(f"what came is no sound file: {error}") from error
    return header, HeaderSource(head, file.size_bytes, beginning.name)
