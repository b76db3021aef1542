"""The manifest of what has arrived, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from organs.ingest.pushing.answers import Submission
from organs.ingest.pushing.cutting import CutFile
from organs.ingest.pushing.waiting import PASSING, Patience, Stopped, patiently
from organs.registry.client.connection import API, Connection
from organs.registry.names import ModelName

POLL_SECONDS, POLL_MAX_SECONDS = 0.2, 2.0


def manifest(files: Sequence[CutFile], metadata: Mapping[str, Any], acknowledged: Sequence[str] = ()) -> dict[str, Any]:
    """What is handed in: every file with its pieces, what is said of the model, which findings are accepted."""
    listed = [
        {
            "name": file.name,
            "size_bytes": file.size_bytes,
            "sha256": file.sha256,
            "pieces": [[span.offset, span.size_bytes, digest] for span, digest in file.pieces],
        }
        for file in files
    ]
    document = {"files": listed, "metadata": dict(metadata), "publish": True}
    return document | ({"acknowledge": list(acknowledged)} if acknowledged else {})


def hand_in(connection: Connection, name: ModelName, document: Mapping[str, Any], stop: threading.Event) -> Submission:
    """Hand `document` in as `name`; raises what the registry refuses, Unreachable."""
    path = f"{API}/models/{name.namespace}/{name.name}"
    return Submission.of(patiently(stop, lambda: connection.send("PUT", path, dict(document))))


def followed(
    connection: Connection, submission: Submission, stop: threading.Event, told: Callable[[Submission], None]
) -> Submission:
    """`submission` when it has ended; `told` of each look at it. Raises Unreachable, NotFound."""
    patience = Patience(stop)
    pause = POLL_SECONDS
    while not submission.has_ended:
        told(submission)
        if stop.wait(pause):
            raise Stopped
        pause = min(pause * 1.5, POLL_MAX_SECONDS)
        try:
            submission = looked_up(connection, submission.id)
            patience.succeeded()
        except PASSING as error:
            patience.wait(error)
    return submission


def looked_up(connection: Connection, submission: str) -> Submission:
    """The submission of that id; raises NotFound for one that is no more, or another's."""
    return Submission.of(connection.get(f"{API}/submissions/{submission}"))
