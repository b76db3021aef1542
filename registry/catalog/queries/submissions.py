"""Uploads with their pieces, and submissions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session, undefer

from organs.registry.catalog.queries.events import was_done
from organs.registry.catalog.rows import batches, count, entity_of, first, page_of_rows, scalars_among
from organs.registry.catalog.tables import (
    Blob,
    ChimeraRow,
    ContributorRow,
    Expert,
    FilePart,
    JobRow,
    ModelFileRow,
    ModelRow,
    OrganRow,
    Placement,
    SubmissionRow,
    UploadChunk,
    UploadPiece,
    UploadRow,
)
from organs.registry.catalog.vocabulary import REACHABLE_STATES, Action
from organs.registry.digest import Digest
from organs.registry.entities import submission as entities
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


def upload_by_public_id(session: Session, public_id: str, contributor_id: int, moment: datetime) -> UploadRow:
    """Return an upload of the contributor; raises NotFound, also for uploads of others and expired ones."""
    return _own_upload(session, public_id, contributor_id, UploadRow.expires_at > moment)


def finished_upload(session: Session, public_id: str, contributor_id: int) -> UploadRow:
    """Return a finished upload of the contributor; raises NotFound, and Conflict if it is not finished."""
    upload = _own_upload(session, public_id, contributor_id)
    if upload.state != "complete":
        raise Conflict(f"the upload {public_id} is not finished")
    return upload


def _own_upload(session: Session, public_id: str, contributor_id: int, *conditions: ColumnElement[bool]) -> UploadRow:
    own = select(UploadRow).where(
        UploadRow.public_id == public_id, UploadRow.contributor_id == contributor_id, *conditions
    )
    upload = session.scalars(own).one_or_none()
    if upload is None:
        raise NotFound(f"there is no upload {public_id[:40]!r}")
    return upload


def open_uploads(session: Session, contributor_id: int, moment: datetime) -> Sequence[UploadRow]:
    """Return the unfinished uploads of the contributor, newest first."""
    return _newest_uploads(session, contributor_id, moment, UploadRow.state == "open")


def finished_files(session: Session, contributor_id: int, moment: datetime) -> Sequence[UploadRow]:
    """Return the finished uploads of the contributor that are complete files, newest first."""
    return _newest_uploads(session, contributor_id, moment, UploadRow.state == "complete", UploadRow.kind == "file")


def _newest_uploads(
    session: Session, contributor_id: int, moment: datetime, *conditions: ColumnElement[bool]
) -> Sequence[UploadRow]:
    own = select(UploadRow).where(
        UploadRow.contributor_id == contributor_id, UploadRow.expires_at > moment, *conditions
    )
    return session.scalars(own.order_by(UploadRow.id.desc()).limit(UPLOADS_LISTED_MAX)).all()


def counted_uploads(session: Session, contributor_id: int, moment: datetime) -> tuple[int, int]:
    """Return the numbers of unfinished uploads of the contributor and of all uploads, including expired ones."""
    is_open = and_(UploadRow.state == "open", UploadRow.expires_at > moment)
    counts = select(func.count().filter(is_open), func.count()).where(UploadRow.contributor_id == contributor_id)
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
    wanted = sorted(set(digests))
    is_readable = or_(
        ModelRow.state.in_(REACHABLE_STATES),
        and_(ModelRow.contributor_id == contributor_id, ModelRow.state != "removed"),
    )
    places = (
        select(OrganRow.id).join(table, table.organ_id == OrganRow.id).join(ModelRow, ModelRow.id == table.model_id)
        for table in (Placement, Expert)
    )
    files = select(FilePart.file_id).join(ModelFileRow, ModelFileRow.id == FilePart.file_id)
    parts = files.join(ModelRow, ModelRow.id == ModelFileRow.model_id).where(FilePart.blob_id == Blob.id, is_readable)
    # Each subquery stops at its first match.
    is_needed = or_(
        *(place.where(OrganRow.blob_id == Blob.id, is_readable).exists() for place in places), parts.exists()
    )
    blobs = select(Blob.digest).where(Blob.state == "present", is_needed)
    lasting = (*_finished(contributor_id), UploadRow.expires_at > moment + KNOWN_MIN_LIFETIME)
    known = set(map(Digest, scalars_among(session, blobs, Blob.digest, wanted)))
    for batch in batches(wanted):
        known.update(digest for digest, *_ in _pieces_among(session, batch, *lasting))
    return known


def uploads_within(
    session: Session, contributor_id: int, digests: Collection[str], public_ids: Collection[str]
) -> list[tuple[int, str]]:
    """Return id and name of finished uploads whose pieces are all in `digests`, and of those in `public_ids`."""
    removable, candidates = set(digests), dict[int, str]()
    for batch in batches(sorted(removable)):
        upload_ids = select(UploadPiece.upload_id).where(UploadPiece.digest.in_(batch))
        rows = select(UploadRow.id, UploadRow.public_id).where(*_finished(contributor_id), UploadRow.id.in_(upload_ids))
        candidates.update((row.id, row.public_id) for row in session.execute(rows))
    inside = [
        (upload_id, name)
        for upload_id, name in candidates.items()
        if all(digest in removable for _, _, digest in pieces_of_upload(session, upload_id))
    ]
    for batch in batches(sorted(set(public_ids))):
        rows = select(UploadRow.id, UploadRow.public_id).where(
            *_finished(contributor_id), UploadRow.public_id.in_(batch)
        )
        inside += [(row.id, row.public_id) for row in session.execute(rows) if row.id not in candidates]
    return inside


def expired_uploads(session: Session, moment: datetime, after_id: int, limit: int) -> list[tuple[int, str, int]]:
    """Return id, name and received bytes of the next expired uploads after `after_id`, in any state."""
    columns = (UploadRow.id, UploadRow.public_id, UploadRow.received_bytes)
    statement = select(*columns).where(UploadRow.expires_at <= moment, UploadRow.id > after_id)
    rows = session.execute(statement.order_by(UploadRow.id).limit(limit))
    return [(row.id, row.public_id, row.received_bytes) for row in rows]


def chunks_of_upload(session: Session, public_id: str) -> tuple[int, Sequence[UploadChunk]]:
    """Return the number of received bytes of an upload, and its chunks in the bucket in order; 0 without a row."""
    chunks = (
        select(UploadChunk)
        .join(UploadRow, UploadRow.id == UploadChunk.upload_id)
        .where(UploadRow.public_id == public_id)
    )
    received_bytes = session.scalar(select(UploadRow.received_bytes).where(UploadRow.public_id == public_id))
    return received_bytes or 0, session.scalars(chunks.order_by(UploadChunk.offset_bytes)).all()


def known_chunk_files(session: Session, files: Sequence[str]) -> set[str]:
    """Return which of `files` are chunks of uploads."""
    return set(session.scalars(select(UploadChunk.file).where(UploadChunk.file.in_(files))))


def upload_names(session: Session) -> set[str]:
    """Return the names of the files of all uploads."""
    return set(session.scalars(select(UploadRow.public_id)))


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
        uploads = select(UploadRow.id, UploadRow.public_id).where(UploadRow.id.in_(ids), *conditions)
        names.update((row.id, row.public_id) for row in session.execute(uploads))
    for digest, upload_id, offset, size in rows:
        if upload_id in names:
            yield Digest(digest), names[upload_id], offset, size


def _finished(contributor_id: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return UploadRow.contributor_id == contributor_id, UploadRow.state == "complete"


UNDER_WAY = ("checking", "ready", "publishing")
"""States of submissions whose bytes are only in the uploads."""
OPEN = (*UNDER_WAY, "quarantined")
IN_JOB = ("checking", "publishing")
"""States of submissions that a job processes."""


@dataclass(frozen=True, slots=True)
class SubmissionWithJob:
    """A submission with its contributor, its model and the progress of its job."""

    row: SubmissionRow
    contributor: str
    model: ModelRow | None
    job: JobRow | None
    """None if it was removed or never existed."""

    def entity(self) -> entities.Submission:
        """Return the submission as its contributor sees it."""
        row, model = self.row, self.model
        job = self.job if row.state in IN_JOB else None
        proposed = json.loads(row.metadata_given).get("proposed")
        is_public = model is not None and model.state in REACHABLE_STATES
        return entity_of(
            entities.Submission,
            row,
            findings=stored_findings(row.findings),
            proposed=None if proposed is None else msgspec.convert(proposed, prepared(ProposedModel)),
            model=None if model is None else model.full_name,
            address=f"/models/{model.full_name}" if is_public and model is not None else None,
            job=row.job_id,
            progress=1.0 if row.state not in IN_JOB else 0.0 if job is None else job.progress,
            note="" if job is None else job.note,
        )


def submission_by_id(session: Session, submission_id: int, contributor_id: int | None = None) -> SubmissionWithJob:
    """Return the submission; with `contributor_id`, submissions of others are not found. Raises NotFound."""
    statement = submissions_with_job().where(SubmissionRow.id == submission_id)
    if contributor_id is not None:
        statement = statement.where(SubmissionRow.contributor_id == contributor_id)
    row = session.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"you have no submission {submission_id}")
    return SubmissionWithJob(*row)


def submissions_page(session: Session, limit: int, after: str | None, contributor_id: int) -> SubmissionPage:
    """Return the next `limit` submissions of a contributor after the cursor `after`, newest first. Raises BadQuery."""
    statement = submissions_with_job().where(SubmissionRow.contributor_id == contributor_id)
    rows, following = page_of_rows(session, statement, "submissions", limit, after)
    return SubmissionPage(items=tuple(SubmissionWithJob(*row).entity() for row in rows), next=following)


def submissions_with_job() -> Select[SubmissionRow, str, ModelRow | None, JobRow | None]:
    """Return a SELECT of submissions, each with the name of its contributor, its model and its job."""
    statement: Any = select(SubmissionRow, ContributorRow.name, ModelRow, JobRow)
    return (  # type: ignore[no-any-return]
        statement.join(ContributorRow, ContributorRow.id == SubmissionRow.contributor_id)
        .outerjoin(ModelRow, ModelRow.id == SubmissionRow.model_id)
        .outerjoin(JobRow, JobRow.id == SubmissionRow.job_id)
    )


def stored_findings(text: str) -> tuple[SubmissionFinding, ...]:
    """Return the findings of a submission from their JSON."""
    return msgspec.json.decode(text, type=prepared(tuple[SubmissionFinding, ...]))


def upload_entity(row: UploadRow) -> entities.Upload:
    """Return an upload as its contributor sees it."""
    least = max(CHUNK_ADVISED_BYTES, chunk_min_bytes(row.size_bytes))
    return entity_of(entities.Upload, row, chunk_bytes=ChunkSizes(least=least, most=CHUNK_MAX_BYTES))


def known_contributor_id(session: Session, name: str) -> int | None:
    """Return the id of the contributor of exactly that name, or None."""
    return session.scalar(select(ContributorRow.id).where(ContributorRow.name == name))


def open_submissions(
    session: Session, contributor_id: int, states: Sequence[str] = OPEN, after_id: int = 0
) -> Sequence[SubmissionRow]:
    """Return submissions of the contributor in `states` after `after_id`, oldest first, with their manifests."""
    filters = (SubmissionRow.contributor_id == contributor_id, SubmissionRow.id > after_id)
    statement = select(SubmissionRow).where(*filters, SubmissionRow.state.in_(states))
    return session.scalars(statement.order_by(SubmissionRow.id).options(undefer(SubmissionRow.manifest))).all()


def same_submissions(session: Session, contributor_id: int, name: ModelName, manifest: str) -> Sequence[SubmissionRow]:
    """Return open submissions of the contributor with exactly these files under that name, oldest first."""
    same = (
        SubmissionRow.namespace == name.namespace,
        SubmissionRow.name == name.name,
        SubmissionRow.manifest == manifest,
    )
    statement = select(SubmissionRow).where(
        SubmissionRow.contributor_id == contributor_id, SubmissionRow.state.in_(OPEN)
    )
    return session.scalars(statement.where(*same).order_by(SubmissionRow.id)).all()


def count_open_submissions(session: Session, contributor_id: int) -> int:
    """Return the number of open submissions of the contributor."""
    return count(session, SubmissionRow, SubmissionRow.contributor_id == contributor_id, SubmissionRow.state.in_(OPEN))


def abandoned_submissions(session: Session, limit: int = 100) -> Sequence[tuple[int, str | None, str | None]]:
    """Return submissions whose job has ended without a result: id, and state and note of the job if it still exists.

    The runner died twice, the job was cancelled, or an unexpected error occurred.
    """
    ended = or_(JobRow.id.is_(None), JobRow.state.in_(("failed", "cancelled", "finished")))
    statement = (
        select(SubmissionRow.id, JobRow.state, JobRow.note)
        .outerjoin(JobRow, JobRow.id == SubmissionRow.job_id)
        .where(SubmissionRow.state.in_(IN_JOB), ended)
        .order_by(SubmissionRow.id)
        .limit(limit)
    )
    return [(submission_id, state, note) for submission_id, state, note in session.execute(statement)]


def unclaimed_models(session: Session, row: SubmissionRow) -> Sequence[ModelRow]:
    """Return quarantined models with contributor and name of `row` that no open submission needs or may need.

    Models that an administrator has hidden, and chimeras, are not returned.
    """
    is_open = (SubmissionRow.contributor_id == row.contributor_id, SubmissionRow.state.in_(OPEN))
    same = (SubmissionRow.namespace == row.namespace, SubmissionRow.name == row.name)
    waiting = select(SubmissionRow.id).where(
        *is_open, *same, or_(SubmissionRow.model_id.is_(None), SubmissionRow.model_id == ModelRow.id)
    )
    composed = select(ChimeraRow.model_id).where(ChimeraRow.model_id == ModelRow.id)
    same_model = (
        ModelRow.contributor_id == row.contributor_id,
        ModelRow.namespace == row.namespace,
        ModelRow.name == row.name,
    )
    unclaimed = (~waiting.exists(), ~was_done(Action.QUARANTINE, Action.YANK), ~composed.exists())
    return session.scalars(select(ModelRow).where(*same_model, ModelRow.state == "quarantined", *unclaimed)).all()


def is_any_abandoned(session: Session) -> bool:
    """Return whether there are abandoned submissions."""
    return bool(abandoned_submissions(session, 1))


def refused_with_digest(session: Session, digest: Digest, contributor_id: int) -> SubmissionRow | None:
    """Return the contributor's newest submission of exactly these bytes that an administrator refused, or None."""
    refused = (SubmissionRow.contributor_id == contributor_id, SubmissionRow.state == "refused")
    statement = select(SubmissionRow).join(ModelRow, ModelRow.id == SubmissionRow.model_id)
    statement = statement.where(*refused, SubmissionRow.decided_by.is_not(None), ModelRow.digest == digest)
    return first(session, statement.order_by(SubmissionRow.id.desc()))
