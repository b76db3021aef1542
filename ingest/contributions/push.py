"""The push of one model to a remote registry: only missing pieces are sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import structs

from organs.ingest.contributions.manifest import BadManifest, parse_stated_metadata
from organs.ingest.contributions.sending import (
    CHUNK_BYTES,
    PASSING,
    CutFile,
    Load,
    Memory,
    Misfit,
    Patience,
    PushStopped,
    Sender,
    SentSubmission,
    SourcePiece,
    T,
    cut,
    distinct,
    file_key,
    in_lanes,
    loads,
    patiently,
    submission_key,
)
from organs.ingest.records import is_complete
from organs.ingest.sources import ModelSource, open_files
from organs.registry.amounts import names_text, size_text
from organs.registry.catalog.queries.accounts import PIECE_ROW_BYTES
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.client.address import in_path, parse_full_name
from organs.registry.client.connection import Connection
from organs.registry.compose.metadata import LICENSE_KEY
from organs.registry.digest import model_digest
from organs.registry.endpoints import accounts, models, submissions, uploads
from organs.registry.entities.base import Digest, prepared
from organs.registry.entities.finding import Severity
from organs.registry.entities.model import Model
from organs.registry.entities.organ import Digests
from organs.registry.entities.published import ModelEditRequest
from organs.registry.entities.submission import (
    Submission,
    SubmissionFile,
    SubmissionFinding,
    SubmissionMetadata,
    SubmissionRequest,
    Upload,
)
from organs.registry.errors import (
    BadInput,
    BadName,
    BadRecipe,
    BadReply,
    Conflict,
    NotAllowed,
    NotFound,
    OrganError,
    OverQuota,
    Unreachable,
)
from organs.registry.names import ModelName, parse_model_name, parse_new_name

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
LANES = 3
"""Parallel uploads: the default limit of a server for one contributor."""
LOOKUP_MAX = 1000
POLL_SECONDS, POLL_MAX_SECONDS = 0.2, 2.0
BASE_KEYS = ("name", "repo_url")
NOT_CHANGED = (
    "the registry already has this model; its description was not changed. Edit it on its page: {address}/edit"
)
UNSENT = "nothing was sent"
NOT_ALL_IMAGES = "{model} is registered, but images of its card were not sent: {error}. Push it again for them"
NO_IMAGE = "an image of its card is not shown: {}"
WITH_IMAGES = ("published", "quarantined")
"""States of submissions whose model has a card."""
IMAGES_LATER = "the images of its card are sent when the model is registered: push it again then"


class PushProgress(Protocol):
    """Shows the progress of a push."""

    def stage(self, label: str, total_bytes: int | None) -> None:
        """Begin a stage of `total_bytes`; None for a wait."""

    def advance(self, size_bytes: int) -> None:
        """Count finished bytes; a negative number if they must be sent again."""

    def say(self, text: str) -> None:
        """Show the reason for waiting."""


class SilentProgress:
    """Shows nothing (`PushProgress`)."""

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
    images: Mapping[str, bytes] = field(default_factory=dict)
    """Images that the description shows, by their names."""
    lacking_images: tuple[str, ...] = ()
    """Why other images that it shows are not sent."""

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
    connection: Connection, source: ModelSource, options: PushOptions, memory: Memory, progress: PushProgress
) -> PushReport:
    """Push the model in `source` to the registry of `connection`; only missing pieces are sent.

    Raises BadInput for files that are invalid or refused, NotAllowed, OverQuota, Unreachable. A refusal by
    the registry after the inspection does not raise an error: the report has the state.
    """
    _check_statements(options)
    with ExitStack() as opened:
        files = open_files(opened, source)
        header = files[0].header
        if (
            not options.metadata.get("base")
            and not is_complete([file.header for file in files])
            and not any(header.text(f"general.base_model.0.{key}") for key in BASE_KEYS)
        ):
            raise BadInput(
                f"{files[0].source.name}: only some tensors of a model, and its header names no base; "
                "add --base NAMESPACE/NAME"
            )
        name = model_name(connection, source, options)
        progress.stage("read", sum(file.header.file_size_bytes for file in files))
        try:
            return _Push(connection, name, cut(files, memory, progress.advance), options, memory, progress).run()
        except Misfit:
            for path in source.paths:
                memory.forget(file_key(path))  # the file changed, but its date and size did not
            raise


def _check_statements(options: PushOptions) -> None:
    """Raise BadInput, with the sentences of the registry, for a title, license or other text that it would refuse."""
    try:
        parse_stated_metadata(dict(options.metadata))
    except BadManifest as error:
        sentences = (f"{where.removeprefix('metadata.')}: {sentence}" for where, sentence in error.reasons)
        raise BadInput("; ".join(sentences)) from error


def push_chimera(
    remote: RemoteRegistry, local: LocalRegistry, source: ModelSource, options: PushOptions, progress: PushProgress
) -> PushReport | str:
    """Compose a chimera of `local` in the registry `remote` from its parents there; return the report.

    No organ is sent. The parents are found by the digests of their bytes, so the result is the same chimera. If its
    recipe cannot be used there, return the reason, which is empty for a model that is no chimera. Raises what `push`
    raises, Conflict if the registry does not have all parents, and BadReply if it makes another chimera of them.
    """
    from organs.registry.compose.recipe import renamed

    found = _recipe_of(local, source.name)
    if isinstance(found, str):
        return found
    recipe, digests, lock_id = found
    _check_statements(options)
    name, stop = model_name(remote.connection, source, options), threading.Event()

    def their_name(digest: str) -> str | None:
        with suppress(NotFound):
            return patiently(stop, lambda: remote.model_page(f"sha256:{digest}").name)
        return None

    their_names = {digest: their_name(digest) for digest in digests.values()}
    missing = [parent for parent, digest in digests.items() if their_names[digest] is None]
    if missing:
        raise Conflict(
            f"{source.name} is made from {names_text(missing)}, which {remote.url} does not have: push "
            f"{'it' if len(missing) == 1 else 'them'} first, or wait for the review. To publish it without its recipe, "
            "write its file with organ assemble, and push that"
        )
    try:
        theirs = structs.replace(renamed(recipe, lambda digest: their_names[digest] or digest), name=str(name))
        plan = patiently(stop, lambda: remote.compose(theirs).plan())
    except (BadRecipe, NotFound) as error:
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
    address, notes = f"{remote.url}/models/{made.model}", tuple[str, ...]()
    registered = parse_model_name(made.model)
    if registered.namespace.lower() == name.namespace.lower():
        _write_statements(remote.connection, registered, address, options)
        notes = tuple(_send_images(remote.connection, made.model, options, progress, stop))
    elif options.metadata:
        notes = (NOT_CHANGED.format(address=address),)
    return PushReport(str(name), made.model, address, COMPOSED if made.created else ALREADY_THERE, notes=notes)


def _write_statements(connection: Connection, name: ModelName, address: str, options: PushOptions) -> None:
    """Write what the contributor states about a composed chimera, whose header is that of its base; its base is known.

    Raises Unreachable if the registry did not take it: the chimera is published then.
    """
    stated = {key: value for key, value in options.metadata.items() if key != "base"}
    if not stated:
        return
    edits = msgspec.convert(stated | {"version": name.version}, prepared(ModelEditRequest))
    try:
        models.edit(connection, *in_path(name), edits)
    except OrganError as error:
        texts = ", ".join(stated)
        raise Unreachable(f"{address} is published, but without your {texts}: {error}. Push it again") from error


def _send_images(
    connection: Connection, model: str, options: PushOptions, progress: PushProgress, stop: threading.Event
) -> Iterator[str]:
    """Send the images of the card of `model`; yield why an image is not shown."""
    yield from (NO_IMAGE.format(reason) for reason in options.lacking_images)
    if options.images:
        progress.stage("send images", sum(map(len, options.images.values())))
    for name, data in options.images.items():
        send = partial(models.send_image, connection, *in_path(parse_full_name(model)), name, data=data)
        try:
            patiently(stop, send)
        except (BadInput, OverQuota, NotFound) as error:
            yield NO_IMAGE.format(error)
        except OrganError as error:  # the model is registered: the push has not failed
            yield NOT_ALL_IMAGES.format(model=model, error=error)
            return
        progress.advance(len(data))


def _is_its_card(model: Model, options: PushOptions) -> bool:
    """Return whether a registered model of the account has the card of these options."""
    described = options.metadata.get("description")
    return isinstance(described, str) and bool(options.images) and described.strip() == (model.description or "")


def _has_statements(model: Model, options: PushOptions) -> bool:
    """Return whether a registered model has the title, the license, the tags and the base of these options."""
    stated = parse_stated_metadata(dict(options.metadata))  # as the registry reads it
    pairs = ((stated.title, model.title), (stated.license, model.license), (stated.tags, model.tags))
    bases = {edge.text for edge in model.lineage if edge.direction == "parent"}
    return all(not new or new == old for new, old in pairs) and (not stated.base or stated.base in bases)


def _recipe_of(local: LocalRegistry, name: ModelName) -> tuple[Recipe, Mapping[str, str], Digest] | str:
    """Return the recipe of a chimera with the digests of its parents instead of their names, these digests by name, and
    its lock.

    Return the reason if this recipe would not make the same chimera elsewhere; it is empty for other models.
    """
    from organs.registry.catalog.queries.model_names import model_by_name, model_by_text
    from organs.registry.compose.chimeras import chimera_of_model
    from organs.registry.compose.recipe import recipe_of, renamed, with_versions
    from organs.registry.entities.plan import SOURCE

    with local.catalog.reading() as session:
        chimera = chimera_of_model(session, model_by_name(session, name))
        if chimera is None:
            return ""
        parents = [parent.model for parent in chimera.parents]
        recipe = with_versions(recipe_of(chimera.recipe), parents)
        if any(graft.donor is None for graft in recipe.grafts):
            return "its recipe has a query, which can find other tensors there"
        if any(SOURCE in parent.acts for parent in chimera.parents):
            return "it was computed with the source of a quantisation, which is proved only here"
        resolved: dict[str, str] = {}

        def digest_of(text: str) -> str:
            model = model_by_text(session, text)
            resolved[model.full_name] = model.digest
            return model.digest

        try:
            renamed_recipe = renamed(recipe, digest_of)
        except OrganError as error:
            return f"one of its parents is not known here any more: {error}"
        if resolved.keys() != set(parents):
            return "the names in its recipe mean other models now"
        return renamed_recipe, resolved, chimera.lock_id


def model_name(connection: Connection, source: ModelSource, options: PushOptions) -> ModelName:
    """Return the model's name: the requested one, else the file's name in the namespace of the account.

    Raises BadName, and NotAllowed for another contributor's namespace, before anything is read or sent.
    """
    namespace = accounts.account(connection).namespace
    requested = options.name or source.name.name
    name = parse_new_name(requested if "/" in requested else f"{namespace}/{requested}")
    if name.version is not None:
        raise BadName("leave out @version: the registry assigns the next free version")
    if namespace != LOCAL and name.namespace.lower() != namespace.lower():
        raise NotAllowed(f"{name.namespace} is not your namespace: use {namespace}/{name.name}")
    return name


@dataclass(frozen=True, slots=True)
class _Push:
    """The steps of one push, and their shared state."""

    connection: Connection
    name: ModelName
    files: Sequence[CutFile]
    options: PushOptions
    memory: Memory
    progress: PushProgress
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def key(self) -> str:
        """The key of its submission in the memory."""
        digest = model_digest([file.sha256 for file in self.files])
        return submission_key(self.connection.url, str(self.name), digest)

    def run(self) -> PushReport:
        pieces = distinct(self.files)
        digests = [file.sha256 for file in self.files]
        registered = None  # the newest model of this name
        with suppress(NotFound):
            registered = models.model(self.connection, *in_path(self.name))
        if registered is not None and [file.sha256 for file in registered.files] == digests:
            address = f"{self.connection.url}/models/{registered.name}"
            about_card = tuple[str, ...]()
            is_its_card = _is_its_card(registered, self.options) and not self.options.dry_run
            if is_its_card:
                about_card = self._image_notes(registered.name)  # an earlier push may have ended before it sent them
            if self.options.metadata and not (is_its_card and _has_statements(registered, self.options)):
                about_card = (*about_card, NOT_CHANGED.format(address=address))
            return PushReport(
                name=str(self.name),
                model=registered.name,
                address=address,
                state=ALREADY_THERE,
                notes=(*self._notes(), *about_card),
                bytes_known=_size_bytes(pieces.values()),
                pieces_known=len(pieces),
            )
        sent, earlier = self.memory.read(self.key, SentSubmission), None
        if sent is not None and not self.options.dry_run:
            with suppress(NotFound):
                earlier = submissions.submission(self.connection, sent.submission)
        if earlier is not None and (earlier.state == "quarantined" or not earlier.has_ended):
            return self._report(self._followed(earlier), [], pieces.values(), 0)
        self.progress.stage("look up", None)
        known_digests: set[Digest] = set()
        for begin in range(0, len(pieces), LOOKUP_MAX):
            body = Digests(digests=tuple(pieces)[begin : begin + LOOKUP_MAX])
            known_digests.update(self._ask(partial(uploads.lookup_uploads, self.connection, body)).known)
        missing = [piece for digest, piece in pieces.items() if digest not in known_digests]
        known = [piece for digest, piece in pieces.items() if digest in known_digests]
        if missing:
            self._check_room(missing, _size_bytes(known))
        if self.options.dry_run:
            return self._report(None, missing, known, _size_bytes(missing))
        sender = Sender(self.connection, self.stop, self.progress.advance, self.options.chunk_bytes)
        if missing:
            self.progress.stage("send", _size_bytes(missing))
            in_lanes(loads(missing), sender.send, LANES, self.stop)
        for file in self.files:
            file.file.source.check_unchanged()
        files = (
            SubmissionFile(
                name=file.file.source.path.name, size_bytes=file.size_bytes, sha256=file.sha256, pieces=file.pieces
            )
            for file in self.files
        )
        metadata = msgspec.convert(self.options.metadata, prepared(SubmissionMetadata))
        request = SubmissionRequest(files=tuple(files), metadata=metadata, accept=self.options.accepted or None)
        submission = self._ask(lambda: submissions.submit_model(self.connection, *in_path(self.name), request))
        self.memory.write(self.key, SentSubmission(submission=submission.id))
        return self._report(self._followed(submission), missing, known, sender.sent_bytes)

    def _ask(self, ask: Callable[[], T]) -> T:
        return patiently(self.stop, ask)

    def _check_room(self, missing: Sequence[SourcePiece], known_bytes: int) -> None:
        """Raise OverQuota if the model is larger than the limit, or than the free quota.

        The quota is checked as it will be after the submission: the files count with their whole size, their uploads do
        not. Uploads of an earlier run already count. Known pieces, of `known_bytes`, can be in finished uploads; their
        size is at most that of all uploads without the open ones.
        """
        account = self._ask(lambda: accounts.account(self.connection))
        quota = account.quota
        size_bytes = sum(file.size_bytes for file in self.files)
        model = f"{self.name} has {size_text(size_bytes)}"
        if size_bytes > quota.upload_max_bytes:
            limit = size_text(quota.upload_max_bytes)
            raise OverQuota(f"{model}; {self.connection.url} takes at most {limit}: {UNSENT}")
        if account.namespace == LOCAL:
            return  # the local account has no quota
        begun = self._ask(lambda: uploads.uploads(self.connection)).items
        new = [load for load in loads(missing) if not _has_upload(load, begun)]
        new_bytes = sum(load.size_bytes + PIECE_ROW_BYTES * len(load.pieces) * load.is_pack for load in new)
        finished_bytes = max(0, quota.uploads_bytes - sum(upload.size_bytes for upload in begun))
        after = structs.replace(
            quota, used_bytes=quota.used_bytes + new_bytes, uploads_bytes=quota.uploads_bytes + new_bytes
        )
        more_bytes = after.more_bytes(size_bytes, _size_bytes(missing) + min(known_bytes, finished_bytes))
        if more_bytes > 0:
            others_size = size_text(quota.limit_bytes + more_bytes - size_bytes)
            others = f"together with your other {others_size}, " if quota.used_bytes + quota.submitted_bytes else ""
            raise OverQuota(
                f"{model}; {others}that is {size_text(more_bytes)} more than your quota of "
                f"{size_text(quota.limit_bytes)}: {UNSENT}"
            )

    def _followed(self, submission: Submission) -> Submission:
        """Return `submission` at its end, or immediately if the push does not wait."""
        if not self.options.wait:
            return submission
        self.progress.stage("check", None)
        patience, pause = Patience(self.stop), POLL_SECONDS
        while not submission.has_ended:
            done = f", {submission.progress:.0%}" if 0 < submission.progress < 1 else ""
            self.progress.say(f"{submission.note or submission.state}{done}")
            if self.stop.wait(pause):
                raise PushStopped
            pause = min(pause * 1.5, POLL_MAX_SECONDS)
            try:
                submission = submissions.submission(self.connection, submission.id)
                patience.succeeded()
            except PASSING as error:
                patience.wait(error)
        if submission.state != "quarantined":
            self.memory.forget(self.key)
        return submission

    def _report(
        self,
        submission: Submission | None,
        missing: Sequence[SourcePiece],
        known: Iterable[SourcePiece],
        sent_bytes: int,
    ) -> PushReport:
        known = list(known)
        report = PushReport(
            name=str(self.name),
            model=None,
            address=None,
            state="dry run",
            license=self.options.license or self.files[0].file.header.text(LICENSE_KEY),
            notes=self._notes(),
            bytes_sent=sent_bytes,
            bytes_known=_size_bytes(known),
            pieces_sent=len(missing),
            pieces_known=len(known),
        )
        if submission is None:
            return report
        image_notes: tuple[str, ...] = (IMAGES_LATER,) if self.options.images else ()
        if submission.model is not None and submission.state in WITH_IMAGES:
            image_notes = self._image_notes(submission.model)
        return replace(
            report,
            notes=(*report.notes, *image_notes),
            model=submission.model,
            address=self.connection.url + (submission.address or f"/submissions/{submission.id}"),
            state=submission.state,
            submission=submission.id,
            reason=submission.reason,
            findings=submission.findings,
        )

    def _image_notes(self, model: str) -> tuple[str, ...]:
        """Send the images of the card of the registered `model`; return why some are not shown."""
        return tuple(_send_images(self.connection, model, self.options, self.progress, self.stop))

    def _notes(self) -> tuple[str, ...]:
        return tuple(
            note
            for cut_file in self.files
            for note in cut_file.file.source.notes(
                cut_file.sha256, {piece.offset: piece.digest for piece in cut_file.pieces}
            )
        )


def _has_upload(load: Load, uploads: Sequence[Upload]) -> bool:
    """Return whether an upload of exactly this load is open. A pack is read only if an upload has its size."""
    same_size = [upload for upload in uploads if upload.size_bytes == load.size_bytes]
    if not same_size:
        return False
    request = load.opened().request
    return any((upload.kind, upload.digest) == (request.kind, request.digest) for upload in same_size)


def _size_bytes(pieces: Iterable[SourcePiece]) -> int:
    return sum(piece.size_bytes for piece in pieces)
