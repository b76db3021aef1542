"""Who may receive and who may give: well-known bases, and what models have in one cell of a base."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, true
from sqlalchemy.orm import Session

from organs.registry.catalog.tables import Blob, Fingerprint, Lineage, Model, Organ, Placement


@dataclass(frozen=True, slots=True)
class CellOrgan:
    """An organ of a model in a cell: a type in a block."""

    model: str
    """`namespace/name@version`."""
    license: str | None
    name: str
    slot: str
    dtype: str
    shape: tuple[int, ...]
    """Row length first."""
    digest: str
    size_bytes: int
    theta: float | None
    spectral_signal: float | None
    fingerprint: bytes | None


def cell_organs(
    session: Session, model_ids: Collection[int], kind: str, tower: str, block: int | None
) -> list[CellOrgan]:
    """What the models `model_ids` have of the type `kind` in that block of that tower, in the order of their files."""
    statement = (
        select(Placement, Model, Organ.shape, Blob.digest, Fingerprint.values)
        .join(Model, Model.id == Placement.model_id)
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Blob, Blob.id == Organ.blob_id)
        .outerjoin(Fingerprint, Fingerprint.organ_id == Organ.id)
        .with_hint(Placement, "INDEXED BY ix_placements_model", "sqlite")
        .where(Placement.model_id.in_(model_ids), Placement.type == kind, Placement.tower == tower)
        .where(Placement.block.is_(None) if block is None else Placement.block == block)
        .order_by(Placement.model_id, Placement.position)
    )
    return [
        CellOrgan(
            model=model.full_name,
            license=model.license,
            name=placement.name,
            slot=placement.slot,
            dtype=placement.dtype,
            shape=tuple(map(int, shape.split("x"))),
            digest=digest,
            size_bytes=placement.size_bytes,
            theta=placement.theta,
            spectral_signal=placement.spectral_signal,
            fingerprint=fingerprint,
        )
        for placement, model, shape, digest, fingerprint in session.execute(statement)
    ]


def known_bases(session: Session, limit: int) -> Sequence[Model]:
    """Visible whole models that others come from, or are measured to be related to: those with most edges first."""
    edges = func.count().label("edges")
    counted = (
        select(Lineage.parent_model_id.label("model_id"), edges)
        .where(Lineage.parent_model_id.is_not(None))
        .group_by(Lineage.parent_model_id)
        .subquery()
    )
    statement = (
        select(Model)
        .join(counted, counted.c.model_id == Model.id)
        .where(Model.state == "visible", Model.complete.is_(true()), Model.kind == "model")
        .order_by(counted.c.edges.desc(), Model.id.desc())
    )
    return session.scalars(statement.limit(limit)).all()
