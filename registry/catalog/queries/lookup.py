"""Many organs by their digests at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.tables import Blob, Measurement, Model, Organ, Placement
from organs.registry.catalog.upsert import batches
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import Digest


@dataclass(frozen=True, slots=True)
class KnownOrgan:
    """An organ in short."""

    digest: Digest
    dtype: str
    shape: str
    elements: int
    size_bytes: int
    theta: float | None
    """Degrees, 0 noise to 90 signal."""
    spectral_signal: float | None


def reachable_organs(session: Session, digests: Iterable[Digest], limit: int) -> list[KnownOrgan]:
    """The organs of visible and yanked models among `digests`, by digest and then the oldest first; at most `limit`.

    Everything else counts as absent, so that nobody learns what is kept for others. Several organs of one digest differ
    by dtype or shape.
    """
    found: list[KnownOrgan] = []
    placed = select(Placement.id).join(Model, Model.id == Placement.model_id)
    for batch in batches(sorted(set(digests))):
        statement = (
            select(
                *(Blob.digest, Organ.dtype, Organ.shape, Organ.elements, Blob.size_bytes),
                func.max(Measurement.theta),  # one method gives it, so it stands in one row of an organ's
                func.max(Measurement.spectral_signal),
            )
            .join(Organ, Organ.blob_id == Blob.id)
            .outerjoin(Measurement, Measurement.organ_id == Organ.id)
            .where(
                Blob.digest.in_(batch),
                placed.where(Placement.organ_id == Organ.id, Model.state.in_(REACHABLE_STATES)).exists(),
            )
            .group_by(Blob.digest, Organ.id, Organ.dtype, Organ.shape, Organ.elements, Blob.size_bytes)
            .order_by(Blob.digest, Organ.id)
            .limit(limit - len(found))
        )
        found += [
            KnownOrgan(Digest(digest), dtype, shape, elements, size, theta, spectral)
            for digest, dtype, shape, elements, size, theta, spectral in session.execute(statement)
        ]
        if len(found) >= limit:
            break
    return found
