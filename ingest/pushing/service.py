"""One model from its files to its page in a registry elsewhere.

Nothing that is kept here or there stands in the way of the next run: what was hashed and what has arrived is known, an
upload goes on at the byte that the registry has, and a model that is there already is not handed in again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from organs.ingest.dissect import DissectedFile, places
from organs.ingest.opening import notes_of, open_files
from organs.ingest.pushing.answers import (
    Finding,
    Submission,
    digests_of_model,
    known_digests,
    name_of_model,
    namespace_of,
)
from organs.ingest.pushing.cutting import CutFile, cut
from organs.ingest.pushing.lanes import in_lanes
from organs.ingest.pushing.loading import Wanted, distinct, loads
from organs.ingest.pushing.remembering import Memory
from organs.ingest.pushing.room import check_room
from organs.ingest.pushing.sending import CHUNK_BYTES, UPLOADS, Misfit, Sender
from organs.ingest.pushing.submitting import followed, hand_in, looked_up, manifest
from organs.ingest.pushing.waiting import patiently
from organs.ingest.records import is_complete, model_digest
from organs.ingest.sources import ModelSource
from organs.ingest.submissions.manifest import BadManifest, parse_stated_metadata
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.client.connection import API, Connection
from organs.registry.digest import Digest
from organs.registry.errors import BadInput, BadName, NotAllowed, NotFound
from organs.registry.names import ModelName, parse_model_name

LANES = 3
"""As many as one contributor has places for at a process of a server that was not told otherwise."""
LOOKUP_MAX = 1000
NOT_CHANGED = "it is there already: what you say of it was not changed; edit it on its page, {address}/edit"
BASE_KEYS = ("name", "repo_url")


class Progress(Protocol):
    """Whoever shows how far a push is."""

    def stage(self, label: str, total_bytes: int | None) -> None:
        """Something begins: bytes to be dealt with, or (None) a wait."""
        ...

    def advance(self, size_bytes: int) -> None:
        """Bytes have been dealt with; fewer than none when they are to be dealt with again."""
        ...

    def say(self, text: str) -> None:
        """What the wait is for just now."""
        ...


@dataclass(frozen=True, slots=True)
class PushOptions:
    """What may be said of a push; what is None is left to the file and to the registry."""

    name: str | None = None
    """`NAMESPACE/NAME`, or a name in one's own namespace."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """`title`, `description`, `license`, `base`, `tags`."""
    chunk_bytes: int = CHUNK_BYTES
    wait: bool = True
    dry_run: bool = False
    acknowledged: tuple[str, ...] = ()
    """Codes of findings with which the model is to be published."""


@dataclass(frozen=True, slots=True)
class PushReport:
    """What came of a push."""

    name: str
    model: str | None
    """As it is registered, with its version; None as long as it is not."""
    address: str | None
    """Of its page."""
    state: str
    """That of the submission; `there` when nothing had to be handed in, `dry run` when nothing was to be sent."""
    submission: str | None = None
    reason: str | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    bytes_sent: int = 0
    bytes_known: int = 0
    pieces_sent: int = 0
    pieces_known: int = 0


def push(
    connection: Connection, source: ModelSource, options: PushOptions, memory: Memory, progress: Progress
) -> PushReport:
    """Bring the model in `source` to the registry of `connection`, which gets only what it lacks.

    Raises BadInput for files that are refused here or there, NotAllowed, OverQuota, Unreachable. A model that the
    registry refuses after a look at it is no error: the report says so.
    """
    check_said(options.metadata)
    stop = threading.Event()
    with ExitStack() as opened:
        files = open_files(opened, source)
        _check_partial(files, options)
        name = model_name(connection, source, options)
        progress.stage("read", sum(file.header.file_size_bytes for file in files))
        one = _Push(connection, name, cut(files, memory, progress.advance), options, memory, progress, stop)
        try:
            return one.run()
        except Misfit:
            for path in source.paths:
                memory.forget_hashed(path)  # it changed in a way that its date and size do not tell
            raise


def check_said(metadata: Mapping[str, Any]) -> None:
    """Raise BadInput for what a registry would refuse to be told of a model, in its sentences."""
    try:
        parse_stated_metadata(dict(metadata))
    except BadManifest as error:
        wrong = (f"{where.removeprefix('metadata.')}: {sentence}" for where, sentence in error.reasons)
        raise BadInput("; ".join(wrong)) from error


def model_name(connection: Connection, source: ModelSource, options: PushOptions) -> ModelName:
    """What the model will be called: as asked for, else the file's name in the namespace of the account.

    Raises BadName, and NotAllowed for a namespace that is another's, before anything is read or sent.
    """
    own = namespace_of(connection.get(f"{API}/account"))
    asked = options.name or source.name.name
    name = parse_model_name(asked if "/" in asked else f"{own}/{asked}")
    if name.version is not None:
        raise BadName("a name that is pushed has no @version: the next free one is given")
    if own != LOCAL and name.namespace.lower() != own.lower():
        raise NotAllowed(f"{name.namespace} is not your namespace: a model of yours is {own}/{name.name}")
    return name


class _Push:
    """The steps of one push, and what they share."""

    def __init__(
        self,
        connection: Connection,
        name: ModelName,
        files: Sequence[CutFile],
        options: PushOptions,
        memory: Memory,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self._connection, self._name, self._files = connection, name, files
        self._options, self._memory, self._progress, self._stop = options, memory, progress, stop
        self._digest = model_digest([file.sha256 for file in files])

    def run(self) -> PushReport:
        if (there := self._there()) is not None:
            return there
        pieces = distinct(self._files)
        if (earlier := self._handed_in_earlier()) is not None:
            return self._report(self._followed(earlier), {}, pieces, 0)
        known = self._known(list(pieces))
        missing = {digest: piece for digest, piece in pieces.items() if digest not in known}
        there_already = {digest: piece for digest, piece in pieces.items() if digest in known}
        if missing:
            check_room(self._connection, self._name, self._files, missing, _size_bytes(there_already), self._stop)
        if self._options.dry_run:
            return self._report(None, missing, there_already, _size_bytes(missing))
        sent_bytes = self._send(missing)
        for file in self._files:
            file.file.source.check_unchanged()
        document = manifest(self._files, self._options.metadata, self._options.acknowledged)
        submission = hand_in(self._connection, self._name, document, self._stop)
        self._memory.keep_submission(*self._key, submission.id)
        return self._report(self._followed(submission), missing, there_already, sent_bytes)

    @property
    def _key(self) -> tuple[str, str, str]:
        return self._connection.url, str(self._name), self._digest

    def _there(self) -> PushReport | None:
        """The report when the newest model of this name has these very files."""
        try:
            values = self._connection.get(f"{API}/models/{self._name.namespace}/{self._name.name}")
        except NotFound:
            return None
        if digests_of_model(values) != [file.sha256 for file in self._files]:
            return None
        model = name_of_model(values)
        pieces, address = distinct(self._files), f"{self._connection.url}/models/{model}"
        unheard = (NOT_CHANGED.format(address=address),) if self._options.metadata else ()
        return PushReport(
            name=str(self._name),
            model=str(model),
            address=address,
            state="there",
            notes=(*self._notes(), *unheard),
            bytes_known=_size_bytes(pieces),
            pieces_known=len(pieces),
        )

    def _handed_in_earlier(self) -> Submission | None:
        """The submission of these files that an earlier run made, if the registry still has something to do with it."""
        earlier = self._memory.submission(*self._key)
        if earlier is None or self._options.dry_run:
            return None
        try:
            submission = looked_up(self._connection, earlier)
        except NotFound:
            return None
        under_way = submission.state == "quarantined" or not submission.has_ended
        return submission if under_way else None

    def _known(self, digests: Sequence[Digest]) -> frozenset[str]:
        self._progress.stage("look up", None)
        known: frozenset[str] = frozenset()
        for begin in range(0, len(digests), LOOKUP_MAX):
            known |= patiently(self._stop, partial(self._looked_up, list(digests[begin : begin + LOOKUP_MAX])))
        return known & frozenset(digests)

    def _looked_up(self, digests: list[Digest]) -> frozenset[str]:
        return known_digests(self._connection.send("POST", f"{UPLOADS}/lookup", {"digests": digests}))

    def _send(self, missing: Mapping[Digest, Wanted]) -> int:
        """Send what is missing; the bytes that have travelled for it."""
        if not missing:
            return 0
        self._progress.stage("send", _size_bytes(missing))
        sender = Sender(self._connection, self._stop, self._progress.advance, self._options.chunk_bytes)
        in_lanes(loads(list(missing.values())), sender.send, LANES, self._stop)
        return sender.sent_bytes

    def _followed(self, submission: Submission) -> Submission:
        """`submission` at its end, or as it is when nobody waits."""
        if not self._options.wait:
            return submission
        self._progress.stage("check", None)
        ended = followed(self._connection, submission, self._stop, self._say)
        if ended.state != "quarantined":
            self._memory.forget_submission(*self._key)
        return ended

    def _say(self, submission: Submission) -> None:
        done = f", {submission.progress:.0%}" if 0 < submission.progress < 1 else ""
        self._progress.say(f"{submission.note or submission.state}{done}")

    def _report(
        self,
        submission: Submission | None,
        missing: Mapping[Digest, Wanted],
        there_already: Mapping[Digest, Wanted],
        sent_bytes: int,
    ) -> PushReport:
        path = None if submission is None else submission.path or f"/submissions/{submission.id}"
        return PushReport(
            name=str(self._name),
            model=None if submission is None else submission.model,
            address=None if path is None else f"{self._connection.url}{path}",
            state="dry run" if submission is None else submission.state,
            submission=None if submission is None else submission.id,
            reason=None if submission is None else submission.reason,
            findings=() if submission is None else submission.findings,
            notes=self._notes(),
            bytes_sent=sent_bytes,
            bytes_known=_size_bytes(there_already),
            pieces_sent=len(missing),
            pieces_known=len(there_already),
        )

    def _notes(self) -> tuple[str, ...]:
        digests = {index: file.sha256 for index, file in enumerate(self._files)}
        pieces = {
            (index, span.offset): digest for index, file in enumerate(self._files) for span, digest in file.pieces
        }
        return notes_of([file.file for file in self._files], digests, pieces)


def _check_partial(files: Sequence[DissectedFile], options: PushOptions) -> None:
    """Raise BadInput for a part of a model that names no base, before anything is read or sent."""
    header = files[0].header
    if is_complete(header, [place for file in files for place in places(file.header)]) or options.metadata.get("base"):
        return
    if any(header.text(f"general.base_model.0.{key}") for key in BASE_KEYS):
        return
    raise BadInput(
        f"{files[0].source.name}: only some organs of a model, and its header names no base: say --base NAMESPACE/NAME"
    )


def _size_bytes(pieces: Mapping[Digest, Wanted]) -> int:
    return sum(piece.span.size_bytes for piece in pieces.values())
