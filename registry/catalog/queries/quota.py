"""What is kept for a contributor, held against what may be."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from registry.catalog.tables import Contributor, Model, Upload


@dataclass(frozen=True, slots=True)
class Quota:
    """Bytes that may be kept for a contributor, and that are."""

    limit_bytes: int
    used_bytes: int

    @property
    def left_bytes(self) -> int:
        """0 also where more is kept than may be: a quota can be lowered."""
        return max(0, self.limit_bytes - self.used_bytes)


def quota_of(session: Session, contributor: Contributor, default_bytes: int) -> Quota:
    """The quota of `contributor`; `default_bytes` is what the server gives to who has none of their own."""
    limit = default_bytes if contributor.quota_bytes is None else contributor.quota_bytes
    return Quota(limit, used_bytes(session, contributor.id))


def used_bytes(session: Session, contributor_id: int) -> int:
    """What counts against a contributor's quota: the files of their models, and their uploads.

    A model counts with the whole size of its files, whatever it shares with others, until it is removed. An upload
    counts with the size that was declared for it, also before its bytes have come, until it is published or forgotten.
    """
    models = select(func.sum(Model.size_bytes)).where(
        Model.contributor_id == contributor_id, Model.state.in_(("visible", "quarantined", "yanked"))
    )
    uploads = select(func.sum(Upload.size_bytes)).where(Upload.contributor_id == contributor_id)
    return int(session.scalar(models) or 0) + int(session.scalar(uploads) or 0)
