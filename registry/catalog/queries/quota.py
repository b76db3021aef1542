"""What is kept for a contributor, held against what may be."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.submissions import UNDER_WAY
from organs.registry.catalog.tables import Contributor, Model, Submission, Upload, UploadPiece
from organs.registry.errors import OverQuota

PIECE_ROW_BYTES = 256
"""Counted for each piece of a pack beside its bytes: what its row takes in the database. A pack may have thousands of
them, of a byte each; of uploads that are no packs there are few enough."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Bytes that may be kept for a contributor, and that are."""

    limit_bytes: int
    used_bytes: int
    uploads_bytes: int = 0
    """Of what is used, that of uploads: it goes when models are made of them."""
    submitted_bytes: int = 0
    """Beside what is used: models that have been submitted, and are not made yet."""

    @property
    def left_bytes(self) -> int:
        """0 also where more is kept than may be: a quota can be lowered."""
        return max(0, self.limit_bytes - self.used_bytes)

    def more_bytes(self, size_bytes: int, sent_bytes: int = 0) -> int:
        """How much too much one more model of `size_bytes` would be, of which `sent_bytes` lie in uploads; none or less
        where it fits."""
        models_bytes = self.used_bytes - self.uploads_bytes
        kept_bytes = max(self.used_bytes - sent_bytes, models_bytes + self.submitted_bytes)
        return kept_bytes + size_bytes - self.limit_bytes


def quota_of(session: Session, contributor: Contributor, default_bytes: int) -> Quota:
    """The quota of `contributor`; `default_bytes` is what the server gives to who has none of their own."""
    limit = default_bytes if contributor.quota_bytes is None else contributor.quota_bytes
    uploads_bytes = _upload_bytes(session, contributor.id)
    used = _model_bytes(session, contributor.id) + uploads_bytes
    return Quota(limit, used, uploads_bytes, _submitted_bytes(session, contributor.id))


def used_bytes(session: Session, contributor_id: int) -> int:
    """What counts against a contributor's quota: the files of their models, and their uploads.

    A model counts with the whole size of its files, whatever it shares with others, until it is removed. An upload
    counts with the size that was declared for it, also before its bytes have come, until it is published or forgotten;
    a pack with PIECE_ROW_BYTES more for each of its pieces.
    """
    return _model_bytes(session, contributor_id) + _upload_bytes(session, contributor_id)


def packed_pieces(session: Session, contributor_id: int) -> int:
    """How many pieces the contributor's packs have: no more than may be kept, so that they are counted quickly."""
    packs = select(Upload.id).where(Upload.contributor_id == contributor_id, Upload.kind == "pack")
    counted = select(func.count()).select_from(UploadPiece).where(UploadPiece.upload_id.in_(packs))
    return session.scalar(counted) or 0


def check_model_fits(
    session: Session, contributor: Contributor, default_bytes: int, size_bytes: int, sent_bytes: int = 0
) -> None:
    """Raise OverQuota where one more model of `size_bytes` does not fit, of which `sent_bytes` lie in uploads.

    Models that are to be made of what was submitted count as if they were there: the same uploads may be in several.
    """
    quota = quota_of(session, contributor, default_bytes)
    more_bytes = quota.more_bytes(size_bytes, sent_bytes)
    if more_bytes > 0:
        raise OverQuota(
            f"it has {size_bytes:,} bytes; with all that is kept or submitted that is {more_bytes:,} more than the "
            f"quota of {quota.limit_bytes:,} bytes"
        )


def _model_bytes(session: Session, contributor_id: int) -> int:
    models = select(func.sum(Model.size_bytes)).where(
        Model.contributor_id == contributor_id, Model.state.in_(("visible", "quarantined", "yanked"))
    )
    return int(session.scalar(models) or 0)


def _upload_bytes(session: Session, contributor_id: int) -> int:
    uploads = select(func.sum(Upload.size_bytes)).where(Upload.contributor_id == contributor_id)
    return int(session.scalar(uploads) or 0) + PIECE_ROW_BYTES * packed_pieces(session, contributor_id)


def _submitted_bytes(session: Session, contributor_id: int) -> int:
    submitted = select(func.sum(Submission.size_bytes)).where(
        Submission.contributor_id == contributor_id, Submission.state.in_(UNDER_WAY)
    )
    return int(session.scalar(submitted) or 0)
