"""A separate program that parses and measures submitted files. It runs confined, and is not trusted.

    python -m organs.ingest.contributions.inspector READS WRITES     two descriptors of pipes

It reads untrusted bytes, so it has nothing that an attacker could use: no file, no database, no blob store, no
network, no setting. The bytes come through one pipe, the answers go through the other
(`ingest.contributions.messages`). It ends when the registry closes its end.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from organs.ingest.contributions.findings import finding_of
from organs.ingest.contributions.messages import (
    BYTES_MAX,
    READ_MAX_BYTES,
    BadMessage,
    BytesRead,
    Channel,
    Inspect,
    InspectorRefusal,
    MeasureAnswer,
    MeasureTensor,
    ReadBytes,
    front_messages,
    measurement_values,
)
from organs.ingest.dissect import read_front
from organs.registry.errors import BadInput
from organs.registry.gguf import dtype_by_name
from organs.registry.measure import measure, required_reads

THREADS = min(4, max(2, os.cpu_count() or 2))
"""Number of tensors that are measured at the same time. A sample has at most 33 MiB; decoding it makes copies."""
NO_MEMORY = InspectorRefusal("limit", "The inspection was stopped: it takes more memory than a submission may use.")


def main() -> None:
    """Serve the two pipes that the command line names."""
    channel = Channel(int(sys.argv[1]), int(sys.argv[2]))
    with suppress(BrokenPipeError):  # the registry has ended, or needs nothing more
        serve(channel)
    os._exit(0)  # nothing needs cleanup


def serve(channel: Channel) -> None:
    """Answer requests until the other side closes its end. Raises BadMessage, BrokenPipeError."""
    sending = threading.Lock()
    with ThreadPoolExecutor(THREADS, "measure") as workers:
        while (received := channel.receive(Inspect | MeasureTensor, BYTES_MAX)) is not None:
            request, data = received
            if isinstance(request, Inspect):
                _inspect(channel, request)
            else:
                workers.submit(_measure, channel, sending, request, data).add_done_callback(_end_if_broken)


@dataclass(frozen=True, slots=True)
class _RemoteSource:
    """A file whose bytes the registry sends (`registry.gguf.ByteSource`)."""

    channel: Channel
    name: str
    size_bytes: int

    def read_at(self, offset: int, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = min(size - len(data), READ_MAX_BYTES)
            self.channel.send(ReadBytes(offset + len(data), part))
            answer = self.channel.receive(BytesRead, part)
            if answer is None or len(answer[1]) != part:
                raise BrokenPipeError
            data += answer[1]
        return bytes(data)


def _inspect(channel: Channel, request: Inspect) -> None:
    try:
        for message in front_messages(read_front(_RemoteSource(channel, request.name, request.size_bytes))):
            channel.send(message)
    except BadInput as error:
        finding = finding_of(error)
        channel.send(InspectorRefusal(finding.code, finding.sentence))
    except MemoryError:
        channel.send(NO_MEMORY)


def _measure(channel: Channel, sending: threading.Lock, request: MeasureTensor, data: bytes) -> None:
    dtype = dtype_by_name(request.dtype)
    view, parts, position = memoryview(data), {}, 0
    for offset, size in required_reads(request.shape, dtype):
        parts[offset, size] = view[position : position + size]
        position += size
    if position != len(data):
        raise BadMessage(f"{len(data)} bytes came with a tensor; expected {position}")
    try:
        measurement = measure(lambda offset, size: parts[offset, size], request.shape, dtype)
        answer = MeasureAnswer(request.number, measurement=measurement_values(measurement))
    except MemoryError:
        answer = MeasureAnswer(request.number, refusal=NO_MEMORY)
    with sending:
        channel.send(answer)


def _end_if_broken(done: Future[None]) -> None:
    """End the process after an error: the registry would wait for the answer forever."""
    error = done.exception()
    if error is not None and not isinstance(error, BrokenPipeError):
        traceback.print_exception(error)
        os._exit(1)


if __name__ == "__main__":
    main()
