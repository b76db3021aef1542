"""Uploads and submissions: one's own, those that wait for review, and where the pieces lie that have come."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import ColumnElement, Row, Select, and_, func, or_, select
from sqlalchemy.orm import Session, undefer

from organs.registry.catalog.cursor import (
    Cursor,
    check_limit,
    cursor_text,
    parse_cursor,
)
from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.events import was_done
from organs.registry.catalog.tables import (
    Blob,
    Chimera,
    Contributor,
    FilePart,
    Job,
    Model,
    ModelFile,
    Organ,
    Placement,
    Submission,
    Upload,
    UploadPiece,
)
from organs.registry.catalog.vocabulary import REACHABLE_STATES, Action
from organs.registry.digest import Digest
from organs.registry.entities import submission as entities
from organs.registry.entities import submission as upload_entities
from organs.registry.entities.submission import (
    CHUNK_LEAST_BYTES,
    CHUNK_MOST_BYTES,
    ChunkSizes,
    ProposedModel,
    SubmissionFinding,
    SubmissionPage,
)
from organs.registry.errors import Conflict, NotFound
from organs.registry.names import ModelName

KNOWN_FOR = timedelta(hours=12)
"""A piece that expires sooner counts as absent: who asks what to send needs some time to send the rest."""
OPEN_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True)
class SentPiece:
    """Where a piece lies: in the file of the spool that has the upload's name."""

    file: str
    offset_bytes: int
    size_bytes: int


def upload_by_public_id(session: Session, public_id: str, contributor_id: int, moment: datetime) -> Upload:
    """The contributor's upload of that name; raises NotFound for one that is another's, expired, or none."""
    own = (Upload.contributor_id == contributor_id, Upload.expires_at > moment)
    found = session.scalars(select(Upload).where(Upload.public_id == public_id, *own)).one_or_none()
    if found is None:
        raise NotFound(f"there is no upload {public_id[:40]!r}")
    return found


def finished_upload(session: Session, public_id: str, contributor_id: int) -> Upload:
    """The contributor's finished upload of that name; raises NotFound, Conflict where it is still open."""
    own = (Upload.public_id == public_id, Upload.contributor_id == contributor_id)
    found = session.scalars(select(Upload).where(*own)).one_or_none()
    if found is None:
        raise NotFound(f"there is no upload {public_id[:40]!r}")
    if found.state != "complete":
        raise Conflict(f"the upload {public_id} is not finished")
    return found


def open_uploads(session: Session, contributor_id: int, moment: datetime) -> Sequence[Upload]:
    """The contributor's uploads that are under way, newest first."""
    own = (Upload.contributor_id == contributor_id, Upload.state == "open", Upload.expires_at > moment)
    return session.scalars(select(Upload).where(*own).order_by(Upload.id.desc()).limit(OPEN_SHOWN_MAX)).all()


def finished_files(session: Session, contributor_id: int, moment: datetime) -> Sequence[Upload]:
    """The contributor's whole files that have come, newest first."""
    own = (Upload.contributor_id == contributor_id, Upload.state == "complete", Upload.kind == "file")
    files = select(Upload).where(*own, Upload.expires_at > moment).order_by(Upload.id.desc())
    return session.scalars(files.limit(OPEN_SHOWN_MAX)).all()


def counted_uploads(session: Session, contributor_id: int, moment: datetime) -> tuple[int, int]:
    """How many uploads of the contributor are under way, and how many are kept in all, expired ones among them."""
    is_open = and_(Upload.state == "open", Upload.expires_at > moment)
    counts = select(func.count().filter(is_open), func.count()).where(Upload.contributor_id == contributor_id)
    are_open, are_kept = session.execute(counts).one()
    return are_open, are_kept


def pieces_of_upload(session: Session, upload_id: int) -> list[tuple[int, int, Digest]]:
    """Offset, size and digest of the pieces of an upload, in order."""
    columns = (UploadPiece.offset_bytes, UploadPiece.size_bytes, UploadPiece.digest)
    rows = select(*columns).where(UploadPiece.upload_id == upload_id).order_by(UploadPiece.offset_bytes)
    return [(offset, size, Digest(digest)) for offset, size, digest in session.execute(rows)]


def pieces_of(session: Session, contributor_id: int, digests: Iterable[str]) -> dict[Digest, SentPiece]:
    """Where those of `digests` lie that are in finished uploads of the contributor."""
    found: dict[Digest, SentPiece] = {}
    for batch in batches(sorted(set(digests))):
        for digest, public_id, offset, size in _pieces_among(session, batch, *_finished(contributor_id)):
            found[digest] = SentPiece(public_id, offset, size)
    return found


def piece_of(session: Session, contributor_id: int, digest: str) -> SentPiece | None:
    """Where one piece lies; None where no finished upload of the contributor has it."""
    return pieces_of(session, contributor_id, (digest,)).get(Digest(digest))


def known_digests(session: Session, contributor_id: int, digests: Iterable[str], moment: datetime) -> set[Digest]:
    """Those of `digests` that the contributor need not send.

    They are blobs that visible or yanked models need, for organs, headers or arrays; blobs of models of the
    contributor's own; pieces of its own finished uploads. Whatever else is here counts as absent.
    """
    found: set[Digest] = set()
    told = or_(
        Model.state.in_(REACHABLE_STATES), and_(Model.contributor_id == contributor_id, Model.state != "removed")
    )
    lasting = (*_finished(contributor_id), Upload.expires_at > moment + KNOWN_FOR)
    for batch in batches(sorted(set(digests))):
        blobs = select(Blob.digest).where(Blob.digest.in_(batch), Blob.state == "present", _needed_by(told))
        found.update(Digest(digest) for digest in session.scalars(blobs))
        found.update(digest for digest, *_ in _pieces_among(session, batch, *lasting))
    return found


def uploads_within(
    session: Session, contributor_id: int, digests: Collection[str], public_ids: Collection[str]
) -> list[tuple[int, str]]:
    """Ids and names of the contributor's finished uploads all of whose pieces are in `digests`, or that are named."""
    wanted, candidates = set(digests), dict[int, str]()
    for batch in batches(sorted(wanted)):
        having = select(UploadPiece.upload_id).where(UploadPiece.digest.in_(batch))
        rows = select(Upload.id, Upload.public_id).where(*_finished(contributor_id), Upload.id.in_(having))
        candidates.update((row.id, row.public_id) for row in session.execute(rows))
    inside = [
        (upload_id, name)
        for upload_id, name in candidates.items()
        if all(digest in wanted for _, _, digest in pieces_of_upload(session, upload_id))
    ]
    for batch in batches(sorted(set(public_ids))):
        rows = select(Upload.id, Upload.public_id).where(*_finished(contributor_id), Upload.public_id.in_(batch))
        inside += [(row.id, row.public_id) for row in session.execute(rows) if row.id not in candidates]
    return inside


def expired_uploads(session: Session, moment: datetime, after_id: int, limit: int) -> list[tuple[int, str]]:
    """The next uploads behind `after_id` whose time is over, whatever their state: ids and names."""
    statement = select(Upload.id, Upload.public_id).where(Upload.expires_at <= moment, Upload.id > after_id)
    return [(row.id, row.public_id) for row in session.execute(statement.order_by(Upload.id).limit(limit))]


def upload_names(session: Session) -> set[str]:
    """What the files of all uploads are called."""
    return set(session.scalars(select(Upload.public_id)))


def _pieces_among(
    session: Session, batch: Sequence[str], *conditions: ColumnElement[bool]
) -> Iterator[tuple[Digest, str, int, int]]:
    """Digest, upload, offset and size of the pieces of `batch` that lie in uploads that meet the conditions.

    By digest first: joined, a database begins with the contributor, and reads all pieces of theirs for each batch.
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


def _needed_by(told: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether a model of those needs the blob. Each half stops at the first that does."""
    organs = (
        select(Organ.id)
        .join(Placement, Placement.organ_id == Organ.id)
        .join(Model, Model.id == Placement.model_id)
        .where(Organ.blob_id == Blob.id, told)
        .exists()
    )
    parts = (
        select(FilePart.file_id)
        .join(ModelFile, ModelFile.id == FilePart.file_id)
        .join(Model, Model.id == ModelFile.model_id)
        .where(FilePart.blob_id == Blob.id, told)
        .exists()
    )
    return or_(organs, parts)


UNDER_WAY = ("checking", "ready", "publishing")
"""States in which the bytes still lie with the uploads."""
OPEN = (*UNDER_WAY, "quarantined")
_LIST = "submissions"
_LOOKED_AT = ("checking", "publishing")


@dataclass(frozen=True, slots=True)
class FoundSubmission:
    """A submission with who sent it, what became of it, and how far its job is."""

    row: Submission
    contributor: str
    model: Model | None
    job_state: str | None
    """None where its job is forgotten, or never was."""
    progress: float
    note: str

    def entity(self) -> entities.Submission:
        """Return the submission as its contributor sees it."""
        row, model = self.row, self.model
        is_under_way = row.state in _LOOKED_AT
        proposed = json.loads(row.metadata_given)["proposed"]
        is_shown = model is not None and model.state in REACHABLE_STATES
        return entities.Submission(
            id=row.id,
            namespace=row.namespace,
            name=row.name,
            state=row.state,
            findings=stored_findings(row.findings),
            proposed=None if proposed is None else msgspec.convert(proposed, ProposedModel),
            model=None if model is None else model.full_name,
            address=f"/models/{model.full_name}" if is_shown and model is not None else None,
            reason=row.reason,
            job=row.job_id,
            progress=self.progress if is_under_way else 1.0,
            note=self.note if is_under_way else "",
            created_at=row.created_at,
            changed_at=row.changed_at,
        )


def submission_by_id(session: Session, submission_id: int, contributor_id: int | None = None) -> FoundSubmission:
    """The submission; with a contributor, those of all others count as absent. Raises NotFound."""
    statement = _found().where(Submission.id == submission_id)
    if contributor_id is not None:
        statement = statement.where(Submission.contributor_id == contributor_id)
    row = session.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"there is no submission {submission_id} of yours")
    return _of_row(row)


def submissions_page(
    session: Session,
    limit: int,
    after: str | None = None,
    *,
    contributor_id: int | None = None,
    state: str | None = None,
) -> SubmissionPage:
    """The next `limit` behind `after`, newest first: of one contributor, or in one state. Raises BadQuery."""
    check_limit(limit)
    statement = _found()
    if contributor_id is not None:
        statement = statement.where(Submission.contributor_id == contributor_id)
    if state is not None:
        statement = statement.where(Submission.state == state)
    if after is not None:
        statement = statement.where(Submission.id < parse_cursor(_LIST, after).id)
    rows = session.execute(statement.order_by(Submission.id.desc()).limit(limit + 1)).all()
    items = tuple(_of_row(row).entity() for row in rows[:limit])
    more = len(rows) > limit
    return SubmissionPage(items=items, next=cursor_text(_LIST, Cursor(None, items[-1].id)) if more else None)


def stored_findings(text: str) -> tuple[SubmissionFinding, ...]:
    """Return the findings that a submission holds as JSON."""
    return msgspec.json.decode(text, type=tuple[SubmissionFinding, ...])


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
        chunk_bytes=ChunkSizes(least=CHUNK_LEAST_BYTES, most=CHUNK_MOST_BYTES),
    )


def known_contributor_id(session: Session, name: str) -> int | None:
    """The id of the contributor of exactly that name, if there is one."""
    return session.scalar(select(Contributor.id).where(Contributor.name == name))


def open_submissions(
    session: Session, contributor_id: int, states: Sequence[str] = OPEN, after_id: int = 0
) -> Sequence[Submission]:
    """The contributor's submissions in `states` that came after one, oldest first, with their manifests."""
    own = (Submission.contributor_id == contributor_id, Submission.id > after_id)
    statement = select(Submission).where(*own, Submission.state.in_(states))
    return session.scalars(statement.order_by(Submission.id).options(undefer(Submission.manifest))).all()


def same_submissions(session: Session, contributor_id: int, name: ModelName, manifest: str) -> Sequence[Submission]:
    """The contributor's open submissions of just these files under that name, oldest first."""
    same = (Submission.namespace == name.namespace, Submission.name == name.name, Submission.manifest == manifest)
    own = select(Submission).where(Submission.contributor_id == contributor_id, Submission.state.in_(OPEN), *same)
    return session.scalars(own.order_by(Submission.id)).all()


def count_open_submissions(session: Session, contributor_id: int) -> int:
    """How many submissions of the contributor have not ended."""
    own = select(func.count()).select_from(Submission).where(Submission.contributor_id == contributor_id)
    return session.scalar(own.where(Submission.state.in_(OPEN))) or 0


def abandoned_submissions(session: Session, limit: int = 100) -> Sequence[tuple[int, str | None, str | None]]:
    """Ids of submissions whose job has ended without a word of what became of them; its state and note, if it is there.

    Such are those of a runner that died twice, of a job that was cancelled, and of a fault of ours.
    """
    ended = or_(Job.id.is_(None), Job.state.in_(("failed", "cancelled", "finished")))
    statement = (
        select(Submission.id, Job.state, Job.note)
        .outerjoin(Job, Job.id == Submission.job_id)
        .where(Submission.state.in_(_LOOKED_AT), ended)
        .order_by(Submission.id)
        .limit(limit)
    )
    return [(row[0], row[1], row[2]) for row in session.execute(statement)]


def forsaken_models(session: Session, row: Submission) -> Sequence[Model]:
    """Quarantined models of the submission's contributor and name that no open submission waits for, nor may be about
    to. Those that an administrator has hidden, and chimeras, are none.
    """
    own = (Submission.contributor_id == row.contributor_id, Submission.state.in_(OPEN))
    same = (Submission.namespace == row.namespace, Submission.name == row.name)
    waiting = select(Submission.id).where(
        *own, *same, or_(Submission.model_id.is_(None), Submission.model_id == Model.id)
    )
    composed = select(Chimera.model_id).where(Chimera.model_id == Model.id)
    mine = (Model.contributor_id == row.contributor_id, Model.namespace == row.namespace, Model.name == row.name)
    unwanted = (~waiting.exists(), ~was_done(Action.QUARANTINE, Action.YANK), ~composed.exists())
    return session.scalars(select(Model).where(*mine, Model.state == "quarantined", *unwanted)).all()


def is_any_abandoned(session: Session) -> bool:
    """Whether there are any such."""
    return bool(abandoned_submissions(session, 1))


def refused_with_digest(session: Session, digest: Digest, contributor_id: int) -> Submission | None:
    """The contributor's newest submission of exactly these bytes whose model an administrator refused."""
    own = (Submission.contributor_id == contributor_id, Submission.state == "refused")
    statement = (
        select(Submission)
        .join(Model, Model.id == Submission.model_id)
        .where(*own, Submission.decided_by.is_not(None), Model.digest == digest)
    )
    return session.scalars(statement.order_by(Submission.id.desc()).limit(1)).one_or_none()


def _of_row(row: Row[Submission, str, Model, str, float, str]) -> FoundSubmission:
    submission, contributor, model, job_state, progress, note = row
    return FoundSubmission(submission, contributor, model, job_state, progress or 0.0, note or "")


def _found() -> Select[Submission, str, Model, str, float, str]:
    columns = (Submission, Contributor.name, Model, Job.state, Job.progress, Job.note)
    statement: Select[Submission, str, Model, str, float, str] = select(*columns)
    return (
        statement.join(Contributor, Contributor.id == Submission.contributor_id)
        .outerjoin(Model, Model.id == Submission.model_id)
        .outerjoin(Job, Job.id == Submission.job_id)
    )
