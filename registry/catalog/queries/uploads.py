"""Uploads: whose they are, where the pieces lie that have come, and what need not be sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from organs.registry.catalog.tables import Blob, FilePart, Model, ModelFile, Organ, Placement, Upload, UploadPiece
from organs.registry.catalog.upsert import batches
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import Digest
from organs.registry.errors import Conflict, NotFound

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
