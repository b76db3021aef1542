"""The push of one model to a remote registry: only missing pieces are sent."""

from __future__ import annotations

import base64
import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta, structs

from organs.ingest.contributions.loads import (
    CutFile,
    Load,
    Memory,
    OpenLoad,
    Wanted,
    cut,
    distinct,
    loads,
)
from organs.ingest.contributions.manifest import (
    BadManifest,
    parse_stated_metadata,
)
from organs.ingest.dissect import DissectedFile, places
from organs.ingest.records import is_complete
from organs.ingest.sources import (
    ModelSource,
    open_files,
)
from organs.registry.amounts import size_text
from organs.registry.catalog.queries.accounts import (
    PIECE_ROW_BYTES,
)
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.client.address import API
from organs.registry.client.connection import Connection
from organs.registry.compose.metadata import LICENSE_KEY
from organs.registry.digest import model_digest
from organs.registry.entities.account import Account, Quota
from organs.registry.entities.base import Digest, Entity, ModelText, prepared
from organs.registry.entities.finding import Severity
from organs.registry.entities.submission import (
    FilePiece,
    KnownDigests,
    Submission,
    SubmissionFile,
    SubmissionFinding,
    SubmissionMetadata,
    SubmissionRequest,
    Upload,
    UploadPage,
)
from organs.registry.errors import (
    BadInput,
    BadName,
    BadRecipe,
    BadReply,
    BadSource,
    Busy,
    Conflict,
    NotAllowed,
    NotFound,
    OrganError,
    OverQuota,
    TooMany,
    Unreachable,
)
from organs.registry.names import ModelName, parse_new_name
from organs.registry.upload_limits import SUBMISSION_FILES_MAX, chunk_min_bytes

if TYPE_CHECKING:
    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.compose.recipe import Recipe
    from organs.registry.local import LocalRegistry

ALREADY_THERE = "there"
"""The state of a push if the registry already has the model."""
COMPOSED = "composed"
"""The state of a push if the registry composed the chimera from models that it has."""
WOULD_COMPOSE = "would compose"
"""The state of a dry run for such a chimera."""
PATIENCE_SECONDS = 180.0
"""Seconds of retries without success; then the push stops, and continues when it is run again."""
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 0.25, 8.0
PASSING = (Unreachable, Busy, TooMany)
"""Errors that can be temporary."""


Answer = TypeVar("Answer")


class Stopped(Exception):
    """The push was stopped, by the user or by an error in another thread; raised inside its threads to end them."""


class Patience:
    """The time since the first of several failures; reset by every success."""

    def __init__(self, stop: threading.Event, seconds: float = PATIENCE_SECONDS) -> None:
        self._stop = stop
        self._seconds = seconds
        self._failures = 0
        self._since = time.monotonic()

    def succeeded(self) -> None:
        """Note a success."""
        self._failures = 0
        self._since = time.monotonic()

    def wait(self, error: OrganError) -> None:
        """Wait before the next try; raises `error` after too much time or if retries are useless, Stopped if the push
        was stopped."""
        if isinstance(error, BadReply) or time.monotonic() - self._since > self._seconds:
            raise error
        pause = min(PAUSE_SECONDS * 2.0**self._failures, PAUSE_MAX_SECONDS)
        if isinstance(error, TooMany):
            pause = min(max(pause, error.seconds), self._seconds)
        self._failures += 1
        if self._stop.wait(pause):
            raise Stopped from error


def patiently(stop: threading.Event, ask: Callable[[], Answer]) -> Answer:
    """Return the result of `ask`, with retries after temporary errors."""
    patience = Patience(stop)
    while True:
        try:
            return ask()
        except PASSING as error:
            patience.wait(error)


LEAVE_SECONDS = 3.0
"""Seconds that the threads have to end after an error: a chunk in progress is not awaited."""

T = TypeVar("T")


def in_lanes(items: Iterable[T], do: Callable[[T], None], count: int, stop: threading.Event) -> None:
    """Call `do` for each of `items`, `count` at a time. The first error or an interrupt sets `stop` and is raised.

    `do` must check `stop` and raise if it is set.
    """
    waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    size = min(count, waiting.qsize())
    lanes = [threading.Thread(target=_lane, args=(waiting, do, ended), daemon=True, name="push") for _ in range(size)]
    for lane in lanes:
        lane.start()
    try:
        for _ in lanes:
            failure = ended.get()
            if failure is not None:
                raise failure
    except BaseException:
        stop.set()
        deadline = time.monotonic() + LEAVE_SECONDS
        for lane in lanes:
            lane.join(max(0.0, deadline - time.monotonic()))
        raise


def _lane(
    waiting: queue.SimpleQueue[T], do: Callable[[T], None], ended: queue.SimpleQueue[BaseException | None]
) -> None:
    try:
        while True:
            do(waiting.get_nowait())
    except queue.Empty:
        ended.put(None)
    except BaseException as error:  # noqa: BLE001  # passed to the waiting thread, which raises it
        ended.put(error)


UNSENT = "nothing was sent"


def check_room(
    connection: Connection,
    name: ModelName,
    files: Sequence[CutFile],
    missing: Mapping[Digest, Wanted],
    known_bytes: int,
    stop: threading.Event,
) -> None:
    """Raise OverQuota if the model `name` of `files` is larger than the limit, or than the free quota.

    `missing` are the pieces to send, `known_bytes` the size of the others.
    """
    account = patiently(stop, partial(connection.read, Account, f"{API}/account"))
    size_bytes = sum(file.size_bytes for file in files)
    if size_bytes > account.quota.upload_max_bytes:
        limit = size_text(account.quota.upload_max_bytes)
        raise OverQuota(f"{name} has {size_text(size_bytes)}; {connection.url} takes at most {limit}: {UNSENT}")
    if account.namespace == LOCAL:
        return  # the local account has no quota
    uploads = patiently(stop, partial(connection.read, UploadPage, f"{API}/uploads"))
    _check_quota(name, account.quota, size_bytes, missing, known_bytes, uploads.items)


def _check_quota(
    name: ModelName,
    quota: Quota,
    size_bytes: int,
    missing: Mapping[Digest, Wanted],
    known_bytes: int,
    uploads: Sequence[Upload],
) -> None:
    """Check the quota as it will be after the submission: the files count with their whole size, their uploads do not.

    `uploads` of an earlier run already count. Known pieces can be in finished uploads; their size is at most that of
    all uploads without the open ones.
    """
    new_bytes = sum(_counted_bytes(load) for load in loads(list(missing.values())) if not _has_upload(load, uploads))
    finished_bytes = max(0, quota.uploads_bytes - sum(upload.size_bytes for upload in uploads))
    sent_bytes = sum(piece.span.size_bytes for piece in missing.values()) + min(known_bytes, finished_bytes)
    new_quota = structs.replace(
        quota, used_bytes=quota.used_bytes + new_bytes, uploads_bytes=quota.uploads_bytes + new_bytes
    )
    more_bytes = new_quota.more_bytes(size_bytes, sent_bytes)
    if more_bytes > 0:
        others_size = size_text(quota.limit_bytes + more_bytes - size_bytes)
        others = f"together with your other {others_size}, " if quota.used_bytes + quota.submitted_bytes else ""
        raise OverQuota(
            f"{name} has {size_text(size_bytes)}; {others}that is {size_text(more_bytes)} more than your quota of "
            f"{size_text(quota.limit_bytes)}: {UNSENT}"
        )


def _counted_bytes(load: Load) -> int:
    return load.size_bytes + (PIECE_ROW_BYTES * len(load.pieces) if load.is_pack else 0)


def _has_upload(load: Load, uploads: Sequence[Upload]) -> bool:
    """Return whether an upload of exactly this load is open. A pack is read only if an upload has its size."""
    same_size = [upload for upload in uploads if upload.size_bytes == load.size_bytes]
    if not same_size:
        return False
    request = load.opened().request
    return any((upload.kind, upload.digest) == (request.kind, request.digest) for upload in same_size)


POLL_SECONDS, POLL_MAX_SECONDS = 0.2, 2.0


def submission_request(
    files: Sequence[CutFile], metadata: SubmissionMetadata, accepted: Sequence[str] = ()
) -> SubmissionRequest:
    """Return the submission: the files with their pieces, the metadata, and the accepted findings."""
    listed = (
        SubmissionFile(
            name=file.name,
            size_bytes=file.size_bytes,
            sha256=file.sha256,
            pieces=tuple(
                FilePiece(offset=span.offset, size_bytes=span.size_bytes, digest=digest) for span, digest in file.pieces
            ),
        )
        for file in files
    )
    return SubmissionRequest(files=tuple(listed), metadata=metadata, accept=tuple(accepted) or None)


def submit(connection: Connection, name: ModelName, request: SubmissionRequest, stop: threading.Event) -> Submission:
    """Submit a model as `name`; raises the refusals of the registry, Unreachable."""
    path = f"{API}/models/{name.namespace}/{name.name}"
    return patiently(stop, lambda: connection.put(Submission, path, request))


def followed(
    connection: Connection, submission: Submission, stop: threading.Event, notify: Callable[[Submission], None]
) -> Submission:
    """Wait for the end of `submission` and return it; call `notify` with each state. Raises Unreachable, NotFound."""
    patience = Patience(stop)
    pause = POLL_SECONDS
    while not submission.has_ended:
        notify(submission)
        if stop.wait(pause):
            raise Stopped
        pause = min(pause * 1.5, POLL_MAX_SECONDS)
        try:
            submission = looked_up(connection, submission.id)
            patience.succeeded()
        except PASSING as error:
            patience.wait(error)
    return submission


def looked_up(connection: Connection, submission: int) -> Submission:
    """Return the submission of that id; raises NotFound if it does not exist or belongs to another contributor."""
    return connection.read(Submission, f"{API}/submissions/{submission}")


UPLOADS = f"{API}/uploads"
CHUNK_BYTES = 8 * 1024 * 1024
DAMAGED_MAX = 3
"""Times that an upload can refuse a chunk or disappear before the push fails."""

Advance = Callable[[int], None]


class Misfit(BadInput, code="bytes-differ"):
    """The received bytes of an upload do not have the declared digest."""


class Sender:
    """Sends loads; safe for several threads with one load each. `sent_bytes` includes repeated bytes."""

    def __init__(
        self, connection: Connection, stop: threading.Event, advance: Advance, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        """Create a sender; `advance` is called with the number of bytes that arrived, also those of earlier runs."""
        self._connection = connection
        self._stop = stop
        self._advance = advance
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self.sent_bytes = 0

    def send(self, load: Load) -> None:
        """Send `load` to the registry. Raises its refusals, Unreachable if it does not answer for too long, BadSource,
        and Stopped if the push was stopped."""
        opened = load.opened()
        patience = Patience(self._stop)
        upload: Upload | None = None
        reported = refused = 0
        while True:
            self._check_not_stopped()
            try:
                upload = self._do_next_step(opened, upload)
            except (*PASSING, Conflict) as error:  # the server may hold an incomplete chunk for a while
                patience.wait(error)
                upload = upload and self._look_up(upload, opened)
                continue
            except (BadInput, NotFound) as error:
                refused += 1
                if upload is None or isinstance(error, BadSource | Misfit) or refused > DAMAGED_MAX:
                    raise
                upload = None  # the chunk was damaged in transit, or the upload is gone
                patience.wait(error)
                continue
            if upload.received_bytes > reported or upload.is_complete:
                patience.succeeded()
            received = opened.span.size_bytes if upload.is_complete else upload.received_bytes
            self._advance(received - reported)
            reported = received
            if upload.is_complete:
                return

    def _do_next_step(self, load: OpenLoad, upload: Upload | None) -> Upload:
        """Do the next step: open the upload, send a chunk, or finish."""
        size_bytes = load.span.size_bytes
        if upload is None:
            return _check_received(self._connection.post(Upload, UPLOADS, load.request), size_bytes)
        if upload.received_bytes < size_bytes:
            return self._send_chunk(load, upload)
        self._finish(upload)
        return structs.replace(upload, received_bytes=size_bytes, state="complete")

    def _send_chunk(self, load: OpenLoad, upload: Upload) -> Upload:
        begin, size_bytes = upload.received_bytes, load.span.size_bytes
        data = load.read(begin, max(min(self._chunk_bytes, upload.chunk_bytes.most), chunk_min_bytes(size_bytes)))
        headers = {
            "Content-Range": f"bytes {begin}-{begin + len(data) - 1}/{size_bytes}",
            "Content-Digest": f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:",
        }
        with self._lock:
            self.sent_bytes += len(data)
        updated = _check_received(
            self._connection.send_bytes(Upload, "PATCH", f"{UPLOADS}/{upload.id}", data, headers), size_bytes
        )
        if updated.received_bytes == begin:
            raise BadReply("the registry refuses more bytes of an upload without a reason")
        return updated

    def _finish(self, upload: Upload) -> None:
        try:
            self._connection.put(Upload, f"{UPLOADS}/{upload.id}")
        except BadInput as error:
            with suppress(OrganError):
                self._connection.delete(Upload, f"{UPLOADS}/{upload.id}")  # otherwise the next run would continue it
            raise Misfit(str(error)) from error

    def _look_up(self, upload: Upload, load: OpenLoad) -> Upload | None:
        """Return the current state of `upload`; the last known if the registry does not answer, None if it is gone."""
        try:
            return _check_received(self._connection.read(Upload, f"{UPLOADS}/{upload.id}"), load.span.size_bytes)
        except NotFound:
            return None
        except OrganError:
            return upload

    def _check_not_stopped(self) -> None:
        if self._stop.is_set():
            raise Stopped


def _check_received(upload: Upload, size_bytes: int) -> Upload:
    """Return `upload`; raise BadReply if its received bytes exceed `size_bytes`."""
    if upload.received_bytes > size_bytes:
        raise BadReply(f"the registry reports {upload.received_bytes} received bytes of {size_bytes}")
    return upload


LANES = 3
"""Parallel uploads: the default limit of a server for one contributor."""
LOOKUP_MAX = 1000
NOT_CHANGED = (
    "the registry already has this model; its description was not changed. Edit it on its page: {address}/edit"
)
BASE_KEYS = ("name", "repo_url")


class Progress(Protocol):
    """Shows the progress of a push."""

    def stage(self, label: str, total_bytes: int | None) -> None:
        """Begin a stage of `total_bytes`; None for a wait."""
        ...

    def advance(self, size_bytes: int) -> None:
        """Count finished bytes; a negative number if they must be sent again."""
        ...

    def say(self, text: str) -> None:
        """Show the reason for waiting."""
        ...


class SilentProgress:
    """Shows nothing (`Progress`)."""

    def stage(self, label: str, total_bytes: int | None) -> None:
        """Ignore the stage."""

    def advance(self, size_bytes: int) -> None:
        """Ignore the bytes."""

    def say(self, text: str) -> None:
        """Ignore the text."""


@dataclass(frozen=True, slots=True)
class PushOptions:
    """The options of a push; for None, the file or the registry decides."""

    name: str | None = None
    """`NAMESPACE/NAME`, or a name in the account's own namespace."""
    metadata: Mapping[str, str | list[str]] = field(default_factory=dict)
    """`title`, `description`, `license`, `base`, `tags`."""
    chunk_bytes: int = CHUNK_BYTES
    wait: bool = True
    dry_run: bool = False
    accepted: tuple[str, ...] = ()
    """Codes of accepted findings."""

    @property
    def license(self) -> str | None:
        """The stated license."""
        stated = self.metadata.get("license")
        return stated if isinstance(stated, str) else None


@dataclass(frozen=True, slots=True)
class PushReport:
    """The result of a push."""

    name: str
    model: str | None
    """Its registered name with the version; None before publication."""
    address: str | None
    """Address of its page."""
    state: str
    """State of the submission; `there` if the registry already has the model, `composed` if it composed the chimera,
    `dry run` or `would compose` if nothing was sent."""
    submission: int | None = None
    reason: str | None = None
    findings: tuple[SubmissionFinding, ...] = ()
    license: str | None = None
    """The license that was sent: the stated one, else that in the header of the file. None if nothing was sent."""
    notes: tuple[str, ...] = ()
    bytes_sent: int = 0
    bytes_known: int = 0
    pieces_sent: int = 0
    pieces_known: int = 0


def push(
    connection: Connection, source: ModelSource, options: PushOptions, memory: Memory, progress: Progress
) -> PushReport:
    """Push the model in `source` to the registry of `connection`; only missing pieces are sent.

    Raises BadInput for files that are invalid or refused, NotAllowed, OverQuota, Unreachable. A refusal by
    the registry after the inspection does not raise an error: the report has the state.
    """
    check_metadata(options.metadata)
    stop = threading.Event()
    with ExitStack() as opened:
        files = open_files(opened, source)
        _check_partial(files, options)
        name = model_name(connection, source, options)
        progress.stage("read", sum(file.header.file_size_bytes for file in files))
        steps = _Push(connection, name, cut(files, memory, progress.advance), options, memory, progress, stop)
        try:
            return steps.run()
        except Misfit:
            for path in source.paths:
                memory.forget_hashed(path)  # the file changed, but its date and size did not
            raise


def check_metadata(metadata: Mapping[str, str | list[str]]) -> None:
    """Raise BadInput for metadata that a registry would refuse, with the same messages."""
    try:
        parse_stated_metadata(dict(metadata))
    except BadManifest as error:
        sentences = (f"{where.removeprefix('metadata.')}: {sentence}" for where, sentence in error.reasons)
        raise BadInput("; ".join(sentences)) from error


def push_chimera(
    remote: RemoteRegistry, local: LocalRegistry, source: ModelSource, options: PushOptions, progress: Progress
) -> PushReport | str:
    """Compose a chimera of `local` in the registry `remote` from its parents there; return the report.

    No organ is sent. The parents are found by the digests of their bytes, so the result is the same chimera. If it
    cannot be composed there, return the reason, which is empty for a model that is no chimera. Raises what `push`
    raises, and BadReply if the registry makes another chimera of the same parents.
    """
    from organs.registry.compose.recipe import renamed

    found = _recipe_of(local, source.name)
    if isinstance(found, str):
        return found
    recipe, lock_id = found
    name, stop = model_name(remote.connection, source, options), threading.Event()

    def their_name(digest: str) -> str:
        return patiently(stop, lambda: remote.model_page(f"sha256:{digest}").name)

    try:
        theirs = replace(renamed(recipe, their_name), name=str(name))
        plan = patiently(stop, lambda: remote.compose(theirs).plan())
    except NotFound:
        return "the registry does not have all of its parents: push them first"
    except BadRecipe as error:
        return str(error)
    if not plan.can_be_made or plan.chimera.lock_id not in (None, lock_id):
        serious = [finding.sentence for finding in plan.findings if finding.severity is not Severity.INFO]
        return serious[0] if serious else "its recipe makes another chimera there"
    if options.dry_run:
        return PushReport(str(name), None, None, WOULD_COMPOSE)
    progress.stage("compose", plan.work_bytes(with_file=False))
    made = plan.register(lambda _note, size_bytes: progress.advance(size_bytes))
    if made.lock_id != lock_id:
        raise BadReply(f"{remote.url} made {made.model} of the same parents, but with the lock {made.lock_id}")
    address = f"{remote.url}/models/{made.model}"
    ignored = f"a composed chimera keeps its own description; edit it on its page: {address}/edit"
    notes = (ignored,) if options.metadata else ()
    return PushReport(str(name), made.model, address, COMPOSED if made.created else ALREADY_THERE, notes=notes)


def _recipe_of(local: LocalRegistry, name: ModelName) -> tuple[Recipe, Digest] | str:
    """Return the recipe of a chimera, with the digests of its parents instead of their names, and its lock.

    Return the reason if this recipe would not make the same chimera elsewhere; it is empty for other models.
    """
    from organs.registry.catalog.queries.models import model_by_name, model_by_text
    from organs.registry.compose.chimeras import chimera_of_model
    from organs.registry.compose.recipe import renamed, with_versions
    from organs.registry.compose.recipe_io import recipe_of

    with local.catalog.reading() as session:
        chimera = chimera_of_model(session, model_by_name(session, name))
        if chimera is None:
            return ""
        parents = [parent.model for parent in chimera.parents]
        recipe = with_versions(recipe_of(chimera.recipe), parents)
        if any(graft.donor is None for graft in recipe.grafts):
            return "its recipe has a query, which can find other organs there"
        resolved: set[str] = set()

        def digest_of(text: str) -> str:
            model = model_by_text(session, text)
            resolved.add(model.full_name)
            return model.digest

        try:
            renamed_recipe = renamed(recipe, digest_of)
        except OrganError as error:
            return f"one of its parents is not known here any more: {error}"
        if resolved != set(parents):
            return "the names in its recipe mean other models now"
        return renamed_recipe, chimera.lock_id


def model_name(connection: Connection, source: ModelSource, options: PushOptions) -> ModelName:
    """Return the model's name: the requested one, else the file's name in the namespace of the account.

    Raises BadName, and NotAllowed for another contributor's namespace, before anything is read or sent.
    """
    namespace = connection.read(Account, f"{API}/account").namespace
    requested = options.name or source.name.name
    name = parse_new_name(requested if "/" in requested else f"{namespace}/{requested}")
    if name.version is not None:
        raise BadName("leave out @version: the registry assigns the next free version")
    if namespace != LOCAL and name.namespace.lower() != namespace.lower():
        raise NotAllowed(f"{name.namespace} is not your namespace: use {namespace}/{name.name}")
    return name


class _ModelFile(Entity, frozen=True, kw_only=True):
    sha256: Digest


class _ModelFiles(Entity, frozen=True, kw_only=True):
    """The fields of a registered model that identify its files."""

    name: ModelText
    files: Annotated[tuple[_ModelFile, ...], Meta(max_length=SUBMISSION_FILES_MAX)]


class _Push:
    """The steps of one push, and their shared state."""

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
        if (registered := self._find_registered()) is not None:
            return registered
        pieces = distinct(self._files)
        if (earlier := self._find_earlier_submission()) is not None:
            return self._report(self._wait_for_end(earlier), {}, pieces, 0)
        known = self._look_up_known(list(pieces))
        missing = {digest: piece for digest, piece in pieces.items() if digest not in known}
        known_pieces = {digest: piece for digest, piece in pieces.items() if digest in known}
        if missing:
            check_room(self._connection, self._name, self._files, missing, _size_bytes(known_pieces), self._stop)
        if self._options.dry_run:
            return self._report(None, missing, known_pieces, _size_bytes(missing))
        sent_bytes = self._send(missing)
        for file in self._files:
            file.file.source.check_unchanged()
        metadata = msgspec.convert(self._options.metadata, prepared(SubmissionMetadata))
        request = submission_request(self._files, metadata, self._options.accepted)
        submission = submit(self._connection, self._name, request, self._stop)
        self._memory.store_submission(*self._key, submission.id)
        return self._report(self._wait_for_end(submission), missing, known_pieces, sent_bytes)

    @property
    def _key(self) -> tuple[str, str, str]:
        return self._connection.url, str(self._name), self._digest

    def _find_registered(self) -> PushReport | None:
        """Return the report if the newest model of this name has the same files; else None."""
        try:
            files = self._connection.read(_ModelFiles, f"{API}/models/{self._name.namespace}/{self._name.name}")
        except NotFound:
            return None
        if [file.sha256 for file in files.files] != [file.sha256 for file in self._files]:
            return None
        model = files.name
        pieces, address = distinct(self._files), f"{self._connection.url}/models/{model}"
        unused_metadata = (NOT_CHANGED.format(address=address),) if self._options.metadata else ()
        return PushReport(
            name=str(self._name),
            model=model,
            address=address,
            state=ALREADY_THERE,
            notes=(*self._notes(), *unused_metadata),
            bytes_known=_size_bytes(pieces),
            pieces_known=len(pieces),
        )

    def _find_earlier_submission(self) -> Submission | None:
        """Return the open submission of these files from an earlier run, or None."""
        earlier = self._memory.submission(*self._key)
        if earlier is None or self._options.dry_run:
            return None
        try:
            submission = looked_up(self._connection, earlier)
        except NotFound:
            return None
        is_open = submission.state == "quarantined" or not submission.has_ended
        return submission if is_open else None

    def _look_up_known(self, digests: Sequence[Digest]) -> frozenset[str]:
        self._progress.stage("look up", None)
        known: frozenset[str] = frozenset()
        for begin in range(0, len(digests), LOOKUP_MAX):
            known |= patiently(self._stop, partial(self._request_known, list(digests[begin : begin + LOOKUP_MAX])))
        return known & frozenset(digests)

    def _request_known(self, digests: list[Digest]) -> frozenset[str]:
        return frozenset(self._connection.post(KnownDigests, f"{UPLOADS}/lookup", {"digests": digests}).known)

    def _send(self, missing: Mapping[Digest, Wanted]) -> int:
        """Send the missing pieces; return the number of sent bytes."""
        if not missing:
            return 0
        self._progress.stage("send", _size_bytes(missing))
        sender = Sender(self._connection, self._stop, self._progress.advance, self._options.chunk_bytes)
        in_lanes(loads(list(missing.values())), sender.send, LANES, self._stop)
        return sender.sent_bytes

    def _wait_for_end(self, submission: Submission) -> Submission:
        """Return `submission` at its end, or immediately if the push does not wait."""
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
        known_pieces: Mapping[Digest, Wanted],
        sent_bytes: int,
    ) -> PushReport:
        path = None if submission is None else submission.address or f"/submissions/{submission.id}"
        return PushReport(
            name=str(self._name),
            model=None if submission is None else submission.model,
            address=None if path is None else f"{self._connection.url}{path}",
            state="dry run" if submission is None else submission.state,
            submission=None if submission is None else submission.id,
            reason=None if submission is None else submission.reason,
            findings=() if submission is None else submission.findings,
            license=self._options.license or self._files[0].file.header.text(LICENSE_KEY),
            notes=self._notes(),
            bytes_sent=sent_bytes,
            bytes_known=_size_bytes(known_pieces),
            pieces_sent=len(missing),
            pieces_known=len(known_pieces),
        )

    def _notes(self) -> tuple[str, ...]:
        return tuple(
            note
            for cut_file in self._files
            for note in cut_file.file.source.notes(
                cut_file.sha256, {span.offset: digest for span, digest in cut_file.pieces}
            )
        )


def _check_partial(files: Sequence[DissectedFile], options: PushOptions) -> None:
    """Raise BadInput for a partial model without a base, before anything is read or sent."""
    header = files[0].header
    if is_complete(header, [place for file in files for place in places(file.header)]) or options.metadata.get("base"):
        return
    if any(header.text(f"general.base_model.0.{key}") for key in BASE_KEYS):
        return
    raise BadInput(
        f"{files[0].source.name}: only some organs of a model, and its header names no base; add --base NAMESPACE/NAME"
    )


def _size_bytes(pieces: Mapping[Digest, Wanted]) -> int:
    return sum(piece.span.size_bytes for piece in pieces.values())
