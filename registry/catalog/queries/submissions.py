"""Uploads with their pieces, and submissions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import ColumnElement, Row, Select, and_, func, or_, select
from sqlalchemy.orm import Session, undefer

from organs.registry.catalog.cursor import check_limit, next_cursor, parse_cursor
from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.events import was_done
from organs.registry.catalog.tables import (
    Blob,
    Chimera,
    Contributor,
    Expert,
    FilePart,
    JobRow,
    Model,
    ModelFile,
    Organ,
    Placement,
    Submission,
    Upload,
    UploadChunk,
    UploadPiece,
)
from organs.registry.catalog.vocabulary import REACHABLE_STATES, Action
from organs.registry.digest import Digest
from organs.registry.entities import submission as entities
from organs.registry.entities import submission as upload_entities
from organs.registry.entities.base import prepared
from organs.registry.entities.submission import ChunkSizes, ProposedModel, SubmissionFinding, SubmissionPage
from organs.registry.errors import Conflict, NotFound
from organs.registry.names import ModelName
from organs.registry.upload_limits import CHUNK_ADVISED_BYTES, CHUNK_MAX_BYTES, chunk_min_bytes

KNOWN_MIN_LIFETIME = timedelta(hours=12)
"""A piece that expires sooner counts as absent, because the client needs time to send the absent pieces."""
UPLOADS_LISTED_MAX = 100


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """The location of a piece: an offset in an upload."""

    upload: str
    offset_bytes: int
    size_bytes: int


def upload_by_public_id(session: Session, public_id: str, contributor_id: int, moment: datetime) -> Upload:
    """Return an upload of the contributor; raises NotFound, also for uploads of others and expired ones."""
    filters = (Upload.contributor_id == contributor_id, Upload.expires_at > moment)
    upload = session.scalars(select(Upload).where(Upload.public_id == public_id, *filters)).one_or_none()
    if upload is None:
        raise NotFound(f"there is no upload {public_id[:40]!r}")
    return upload


def finished_upload(session: Session, public_id: str, contributor_id: int) -> Upload:
    """Return a finished upload of the contributor; raises NotFound, and Conflict if it is not finished."""
    filters = (Upload.public_id == public_id, Upload.contributor_id == contributor_id)
    upload = session.scalars(select(Upload).where(*filters)).one_or_none()
    if upload is None:
        raise NotFound(f"there is no upload {public_id[:40]!r}")
    if upload.state != "complete":
        raise Conflict(f"the upload {public_id} is not finished")
    return upload


def open_uploads(session: Session, contributor_id: int, moment: datetime) -> Sequence[Upload]:
    """Return the unfinished uploads of the contributor, newest first."""
    filters = (Upload.contributor_id == contributor_id, Upload.state == "open", Upload.expires_at > moment)
    return session.scalars(select(Upload).where(*filters).order_by(Upload.id.desc()).limit(UPLOADS_LISTED_MAX)).all()


def finished_files(session: Session, contributor_id: int, moment: datetime) -> Sequence[Upload]:
    """Return the finished uploads of the contributor that are complete files, newest first."""
    files = (
        select(Upload)
        .where(*_finished(contributor_id), Upload.kind == "file", Upload.expires_at > moment)
        .order_by(Upload.id.desc())
    )
    return session.scalars(files.limit(UPLOADS_LISTED_MAX)).all()


def counted_uploads(session: Session, contributor_id: int, moment: datetime) -> tuple[int, int]:
    """Return the numbers of unfinished uploads of the contributor and of all uploads, including expired ones."""
    is_open = and_(Upload.state == "open", Upload.expires_at > moment)
    counts = select(func.count().filter(is_open), func.count()).where(Upload.contributor_id == contributor_id)
    unfinished, total = session.execute(counts).one()
    return unfinished, total


def pieces_of_upload(session: Session, upload_id: int) -> list[tuple[int, int, Digest]]:
    """Return offset, size and digest of each piece of an upload, in order."""
    columns = (UploadPiece.offset_bytes, UploadPiece.size_bytes, UploadPiece.digest)
    rows = select(*columns).where(UploadPiece.upload_id == upload_id).order_by(UploadPiece.offset_bytes)
    return [(offset, size, Digest(digest)) for offset, size, digest in session.execute(rows)]


def pieces_of(session: Session, contributor_id: int, digests: Iterable[str]) -> dict[Digest, StoredPiece]:
    """Return the locations of `digests` in finished uploads of the contributor; other digests are left out."""
    pieces: dict[Digest, StoredPiece] = {}
    for batch in batches(sorted(set(digests))):
        for digest, public_id, offset, size in _pieces_among(session, batch, *_finished(contributor_id)):
            pieces[digest] = StoredPiece(public_id, offset, size)
    return pieces


def known_digests(session: Session, contributor_id: int, digests: Iterable[str], moment: datetime) -> set[Digest]:
    """Return the `digests` that the contributor does not need to send.

    These are blobs that visible or yanked models need for organs, headers or arrays; blobs of the contributor's own
    models; and pieces of their finished uploads. Other blobs of the registry count as absent.
    """
    known: set[Digest] = set()
    is_readable = or_(
        Model.state.in_(REACHABLE_STATES), and_(Model.contributor_id == contributor_id, Model.state != "removed")
    )
    lasting = (*_finished(contributor_id), Upload.expires_at > moment + KNOWN_MIN_LIFETIME)
    for batch in batches(sorted(set(digests))):
        blobs = select(Blob.digest).where(Blob.digest.in_(batch), Blob.state == "present", _needed_by(is_readable))
        known.update(Digest(digest) for digest in session.scalars(blobs))
        known.update(digest for digest, *_ in _pieces_among(session, batch, *lasting))
    return known


def uploads_within(
    session: Session, contributor_id: int, digests: Collection[str], public_ids: Collection[str]
) -> list[tuple[int, str]]:
    """Return id and name of finished uploads whose pieces are all in `digests`, and of those in `public_ids`."""
    removable, candidates = set(digests), dict[int, str]()
    for batch in batches(sorted(removable)):
        upload_ids = select(UploadPiece.upload_id).where(UploadPiece.digest.in_(batch))
        rows = select(Upload.id, Upload.public_id).where(*_finished(contributor_id), Upload.id.in_(upload_ids))
        candidates.update((row.id, row.public_id) for row in session.execute(rows))
    inside = [
        (upload_id, name)
        for upload_id, name in candidates.items()
        if all(digest in removable for _, _, digest in pieces_of_upload(session, upload_id))
    ]
    for batch in batches(sorted(set(public_ids))):
        rows = select(Upload.id, Upload.public_id).where(*_finished(contributor_id), Upload.public_id.in_(batch))
        inside += [(row.id, row.public_id) for row in session.execute(rows) if row.id not in candidates]
    return inside


def expired_uploads(session: Session, moment: datetime, after_id: int, limit: int) -> list[tuple[int, str, int]]:
    """Return id, name and received bytes of the next expired uploads after `after_id`, in any state."""
    columns = (Upload.id, Upload.public_id, Upload.received_bytes)
    statement = select(*columns).where(Upload.expires_at <= moment, Upload.id > after_id)
    rows = session.execute(statement.order_by(Upload.id).limit(limit))
    return [(row.id, row.public_id, row.received_bytes) for row in rows]


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk of an upload that is an object in the bucket."""

    file: str
    """The name of the object."""
    offset_bytes: int
    size_bytes: int

    @property
    def end_bytes(self) -> int:
        """The offset of the first byte after it."""
        return self.offset_bytes + self.size_bytes


def chunks_of_upload(session: Session, public_id: str) -> tuple[int, list[StoredChunk]]:
    """Return the number of received bytes of an upload, and its chunks in the bucket in order; 0 without a row."""
    columns = (UploadChunk.file, UploadChunk.offset_bytes, UploadChunk.size_bytes)
    chunks = select(*columns).join(Upload, Upload.id == UploadChunk.upload_id).where(Upload.public_id == public_id)
    received_bytes = session.scalar(select(Upload.received_bytes).where(Upload.public_id == public_id))
    rows = session.execute(chunks.order_by(UploadChunk.offset_bytes))
    return received_bytes or 0, [StoredChunk(file, offset, size) for file, offset, size in rows]


def known_chunk_files(session: Session, files: Sequence[str]) -> set[str]:
    """Return which of `files` are chunks of uploads."""
    return set(session.scalars(select(UploadChunk.file).where(UploadChunk.file.in_(files))))


def upload_names(session: Session) -> set[str]:
    """Return the names of the files of all uploads."""
    return set(session.scalars(select(Upload.public_id)))


def _pieces_among(
    session: Session, batch: Sequence[str], *conditions: ColumnElement[bool]
) -> Iterator[tuple[Digest, str, int, int]]:
    """Yield digest, upload, offset and size of the pieces of `batch` in uploads that meet the conditions.

    Two statements are used: for a join, a database would read all pieces of the contributor for each batch.
    """
    columns = (UploadPiece.digest, UploadPiece.upload_id, UploadPiece.offset_bytes, UploadPiece.size_bytes)
    rows = session.execute(select(*columns).where(UploadPiece.digest.in_(batch))).all()
    names: dict[int, str] = {}
    for ids in batches(sorted({row.upload_id for row in rows})):
        uploads = select(Upload.id, Upload.public_id).where(Upload.id.in_(ids), *conditions)
        names.update((row.id, row.public_id) for row in session.execute(uploads))
    for digest, upload_id, offset, size in rows:
        if upload_id in names:
            yield Digest(digest), names[upload_id], offset, size


def _finished(contributor_id: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return Upload.contributor_id == contributor_id, Upload.state == "complete"


def _needed_by(is_included: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that an included model needs the blob. Each subquery stops at its first match."""
    organs = (
        select(Organ.id)
        .join(Placement, Placement.organ_id == Organ.id)
        .join(Model, Model.id == Placement.model_id)
        .where(Organ.blob_id == Blob.id, is_included)
        .exists()
    )
    experts = (
        select(Organ.id)
        .join(Expert, Expert.organ_id == Organ.id)
        .join(Model, Model.id == Expert.model_id)
        .where(Organ.blob_id == Blob.id, is_included)
        .exists()
    )
    parts = (
        select(FilePart.file_id)
        .join(ModelFile, ModelFile.id == FilePart.file_id)
        .join(Model, Model.id == ModelFile.model_id)
        .where(FilePart.blob_id == Blob.id, is_included)
        .exists()
    )
    return or_(organs, experts, parts)


UNDER_WAY = ("checking", "ready", "publishing")
"""States of submissions whose bytes are only in the uploads."""
OPEN = (*UNDER_WAY, "quarantined")
_LIST = "submissions"
IN_JOB = ("checking", "publishing")
"""States of submissions that a job processes."""


@dataclass(frozen=True, slots=True)
class SubmissionRow:
    """A submission with its contributor, its model and the progress of its job."""

    row: Submission
    contributor: str
    model: Model | None
    job_state: str | None
    """None if the job was removed or never existed."""
    progress: float
    note: str

    def entity(self) -> entities.Submission:
        """Return the submission as its contributor sees it."""
        row, model = self.row, self.model
        is_in_job = row.state in IN_JOB
        proposed = json.loads(row.metadata_given)["proposed"]
        is_public = model is not None and model.state in REACHABLE_STATES
        return entities.Submission(
            id=row.id,
            namespace=row.namespace,
            name=row.name,
            state=row.state,
            findings=stored_findings(row.findings),
            proposed=None if proposed is None else msgspec.convert(proposed, prepared(ProposedModel)),
            model=None if model is None else model.full_name,
            address=f"/models/{model.full_name}" if is_public and model is not None else None,
            reason=row.reason,
            job=row.job_id,
            progress=self.progress if is_in_job else 1.0,
            note=self.note if is_in_job else "",
            created_at=row.created_at,
            changed_at=row.changed_at,
        )


def submission_by_id(session: Session, submission_id: int, contributor_id: int | None = None) -> SubmissionRow:
    """Return the submission; with `contributor_id`, submissions of others are not found. Raises NotFound."""
    statement = _submissions().where(Submission.id == submission_id)
    if contributor_id is not None:
        statement = statement.where(Submission.contributor_id == contributor_id)
    row = session.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"you have no submission {submission_id}")
    return _of_row(row)


def submissions_page(
    session: Session,
    limit: int,
    after: str | None = None,
    *,
    contributor_id: int | None = None,
    state: str | None = None,
) -> SubmissionPage:
    """Return the next `limit` submissions after the cursor `after`, newest first, with filters. Raises BadQuery."""
    check_limit(limit)
    statement = _submissions()
    if contributor_id is not None:
        statement = statement.where(Submission.contributor_id == contributor_id)
    if state is not None:
        statement = statement.where(Submission.state == state)
    if after is not None:
        statement = statement.where(Submission.id < parse_cursor(_LIST, after).id)
    rows = session.execute(statement.order_by(Submission.id.desc()).limit(limit + 1)).all()
    items = tuple(_of_row(row).entity() for row in rows[:limit])
    return SubmissionPage(items=items, next=next_cursor(_LIST, [row[0].id for row in rows], limit))


def stored_findings(text: str) -> tuple[SubmissionFinding, ...]:
    """Return the findings of a submission from their JSON."""
    return msgspec.json.decode(text, type=prepared(tuple[SubmissionFinding, ...]))


def upload_entity(row: Upload) -> upload_entities.Upload:
    """Return an upload as its contributor sees it."""
    return upload_entities.Upload(
        id=row.public_id,
        kind=row.kind,
        name=row.name,
        digest=None if row.digest is None else Digest(row.digest),
        size_bytes=row.size_bytes,
        received_bytes=row.received_bytes,
        state=row.state,
        expires_at=row.expires_at,
        chunk_bytes=ChunkSizes(least=max(CHUNK_ADVISED_BYTES, chunk_min_bytes(row.size_bytes)), most=CHUNK_MAX_BYTES),
    )


def known_contributor_id(session: Session, name: str) -> int | None:
    """Return the id of the contributor of exactly that name, or None."""
    return session.scalar(select(Contributor.id).where(Contributor.name == name))


def open_submissions(
    session: Session, contributor_id: int, states: Sequence[str] = OPEN, after_id: int = 0
) -> Sequence[Submission]:
    """Return submissions of the contributor in `states` after `after_id`, oldest first, with their manifests."""
    filters = (Submission.contributor_id == contributor_id, Submission.id > after_id)
    statement = select(Submission).where(*filters, Submission.state.in_(states))
    return session.scalars(statement.order_by(Submission.id).options(undefer(Submission.manifest))).all()


def same_submissions(session: Session, contributor_id: int, name: ModelName, manifest: str) -> Sequence[Submission]:
    """Return open submissions of the contributor with exactly these files under that name, oldest first."""
    same = (Submission.namespace == name.namespace, Submission.name == name.name, Submission.manifest == manifest)
    statement = select(Submission).where(Submission.contributor_id == contributor_id, Submission.state.in_(OPEN))
    return session.scalars(statement.where(*same).order_by(Submission.id)).all()


def count_open_submissions(session: Session, contributor_id: int) -> int:
    """Return the number of open submissions of the contributor."""
    count = select(func.count()).select_from(Submission).where(Submission.contributor_id == contributor_id)
    return session.scalar(count.where(Submission.state.in_(OPEN))) or 0


def abandoned_submissions(session: Session, limit: int = 100) -> Sequence[tuple[int, str | None, str | None]]:
    """Return submissions whose job has ended without a result: id, and state and note of the job if it still exists.

    The runner died twice, the job was cancelled, or an unexpected error occurred.
    """
    ended = or_(JobRow.id.is_(None), JobRow.state.in_(("failed", "cancelled", "finished")))
    statement = (
        select(Submission.id, JobRow.state, JobRow.note)
        .outerjoin(JobRow, JobRow.id == Submission.job_id)
        .where(Submission.state.in_(IN_JOB), ended)
        .order_by(Submission.id)
        .limit(limit)
    )
    return [(submission_id, state, note) for submission_id, state, note in session.execute(statement)]


def unclaimed_models(session: Session, row: Submission) -> Sequence[Model]:
    """Return quarantined models with contributor and name of `row` that no open submission needs or may need.

    Models that an administrator has hidden, and chimeras, are not returned.
    """
    is_open = (Submission.contributor_id == row.contributor_id, Submission.state.in_(OPEN))
    same = (Submission.namespace == row.namespace, Submission.name == row.name)
    waiting = select(Submission.id).where(
        *is_open, *same, or_(Submission.model_id.is_(None), Submission.model_id == Model.id)
    )
    composed = select(Chimera.model_id).where(Chimera.model_id == Model.id)
    same_model = (Model.contributor_id == row.contributor_id, Model.namespace == row.namespace, Model.name == row.name)
    unclaimed = (~waiting.exists(), ~was_done(Action.QUARANTINE, Action.YANK), ~composed.exists())
    return session.scalars(select(Model).where(*same_model, Model.state == "quarantined", *unclaimed)).all()


def is_any_abandoned(session: Session) -> bool:
    """Return whether there are abandoned submissions."""
    return bool(abandoned_submissions(session, 1))


def refused_with_digest(session: Session, digest: Digest, contributor_id: int) -> Submission | None:
    """Return the contributor's newest submission of exactly these bytes that an administrator refused, or None."""
    refused = (Submission.contributor_id == contributor_id, Submission.state == "refused")
    statement = (
        select(Submission)
        .join(Model, Model.id == Submission.model_id)
        .where(*refused, Submission.decided_by.is_not(None), Model.digest == digest)
    )
    return session.scalars(statement.order_by(Submission.id.desc()).limit(1)).one_or_none()


def _of_row(row: Row[Submission, str, Model, str, float, str]) -> SubmissionRow:
    submission, contributor, model, job_state, progress, note = row
    return SubmissionRow(submission, contributor, model, job_state, progress or 0.0, note or "")


def _submissions() -> Select[Submission, str, Model, str, float, str]:
    columns = (Submission, Contributor.name, Model, JobRow.state, JobRow.progress, JobRow.note)
    statement: Select[Submission, str, Model, str, float, str] = select(*columns)
    return (
        statement.join(Contributor, Contributor.id == Submission.contributor_id)
        .outerjoin(Model, Model.id == Submission.model_id)
        .outerjoin(JobRow, JobRow.id == Submission.job_id)
    )
