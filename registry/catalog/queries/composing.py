"""What composing reads: tensors of a model with all that decides whether they fit, and candidates for each place."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, func, select, true
from sqlalchemy.orm import Session

from organs.registry.anatomy import OrganType, Place, Tower
from organs.registry.catalog.queries.models import composed_among, find_model, model_by_name, model_summary
from organs.registry.catalog.records import OrganKey
from organs.registry.catalog.tables import (
    Blob,
    Chimera,
    Computation,
    Fingerprint,
    Lineage,
    Measurement,
    Model,
    ModelFile,
    Organ,
    Placement,
)
from organs.registry.catalog.upsert import batches
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import Digest, looks_like_prefix, parse_prefix
from organs.registry.entities.model import ModelSummary
from organs.registry.errors import Ambiguous, BadDigest, BadName, NotFound
from organs.registry.measures import THETA_METHOD
from organs.registry.names import parse_model_name

CHILDREN_MAX = 1000
"""Edges to chimeras that were made of one model."""


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A tensor of a model. `shape` is row length first."""

    name: str
    place: Place
    dtype: str
    shape: tuple[int, ...]
    digest: Digest
    organ_id: int
    blob_id: int
    theta: float | None
    spectral_signal: float | None
    fingerprint: bytes | None
    mean: float | None
    standard_deviation: float | None
    nonfinite: int | None


def tensor_rows(session: Session, model_id: int) -> list[TensorRow]:
    """The tensors of a model, in the order of its files."""
    statement = (
        select(
            *(Placement.name, Placement.type, Placement.tower, Placement.block, Placement.slot),
            *(Placement.dtype, Organ.shape, Blob.digest, Organ.id, Blob.id),
            *(Placement.theta, Placement.spectral_signal, Fingerprint.values),
            *(Measurement.mean, Measurement.standard_deviation, Organ.nonfinite),
        )
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Blob, Blob.id == Organ.blob_id)
        .outerjoin(Fingerprint, Fingerprint.organ_id == Organ.id)
        .outerjoin(Measurement, and_(Measurement.organ_id == Organ.id, Measurement.method == THETA_METHOD))
        .where(Placement.model_id == model_id)
        .order_by(Placement.position)
    )
    return [
        TensorRow(
            name,
            Place(OrganType(kind), Tower(tower), block, slot),
            dtype,
            tuple(map(int, shape.split("x"))),
            Digest(digest),
            *more,
        )
        for name, kind, tower, block, slot, dtype, shape, digest, *more in session.execute(statement)
    ]


def header_bytes_of(session: Session, model_id: int) -> int:
    """Return the size of the header of a model's first file."""
    statement = select(ModelFile.header_bytes).where(ModelFile.model_id == model_id, ModelFile.position == 0)
    return session.scalar(statement) or 0


def model_by_digest(session: Session, prefix: str) -> Model:
    """The model whose bytes, whose file or whose lock has a digest that begins with `prefix`; the oldest visible one.

    Raises BadDigest, NotFound, Ambiguous where several digests begin so.
    """
    bare = parse_prefix(prefix)
    conditions: list[ColumnElement[bool]] = [
        Model.digest.startswith(bare),
        Model.id.in_(select(ModelFile.model_id).where(ModelFile.sha256.startswith(bare))),
        Model.id.in_(select(Chimera.model_id).where(Chimera.lock_id.startswith(bare))),
    ]
    for condition in conditions:
        statement = select(Model).where(condition, Model.state.in_(REACHABLE_STATES))
        found = session.scalars(statement.order_by(Model.state != "visible", Model.id).limit(100)).all()
        if len({model.digest for model in found}) > 1:
            raise Ambiguous(f"{bare} begins the digests of several models: type more of it")
        if found:
            return found[0]
    raise NotFound(f"no model or chimera has a digest that begins with {bare}")


def is_digest(text: str) -> bool:
    """Whether a person who types `text` for a model means its digest: names may look alike, so only with `sha256:`."""
    return text.startswith("sha256:") and looks_like_prefix(text)


def model_by_text(session: Session, text: str) -> Model:
    """The model that a person means: a name, or `sha256:` and a digest of its bytes, of its file or of its lock.

    Raises BadName, BadDigest, NotFound, Ambiguous.
    """
    return model_by_digest(session, text) if is_digest(text) else model_by_name(session, parse_model_name(text))


def find_model_by_text(session: Session, text: str) -> Model | None:
    """Return the model that a person means, or None; no nearest name is looked for, which takes long."""
    try:
        return model_by_digest(session, text) if is_digest(text) else find_model(session, parse_model_name(text))
    except (NotFound, Ambiguous, BadName, BadDigest):
        return None


def model_with_header(session: Session, header: Digest) -> Model | None:
    """The oldest model whose first file begins with the header `header`, a visible one if there is one."""
    statement = (
        select(Model)
        .join(ModelFile, ModelFile.model_id == Model.id)
        .where(ModelFile.header_sha256 == header, ModelFile.position == 0, Model.state.in_(REACHABLE_STATES))
        .order_by(Model.state != "visible", Model.id)
    )
    return session.scalars(statement.limit(1)).one_or_none()


def computed_organs(session: Session, keys: Collection[str]) -> dict[str, Digest]:
    """Of the computations `keys`, those that were made here, with the digests of their organs."""
    statement = (
        select(Computation.key, Blob.digest)
        .join(Organ, Organ.id == Computation.organ_id)
        .join(Blob, Blob.id == Organ.blob_id)
        .where(Computation.key.in_(keys), Blob.state == "present")
    )
    return {key: Digest(digest) for key, digest in session.execute(statement)}


def chimera_of(session: Session, model_id: int) -> Chimera | None:
    """What is known of a model that was composed here; None of any other."""
    return session.get(Chimera, model_id)


def count_chimeras(session: Session) -> int:
    """How many visible models were composed here."""
    statement = select(func.count()).select_from(Chimera).join(Model, Model.id == Chimera.model_id)
    return session.scalar(statement.where(Model.state == "visible")) or 0


def organ_ids(session: Session, keys: Collection[OrganKey]) -> dict[OrganKey, int]:
    """The ids of the organs `keys`; those that are not registered are left out."""
    found: dict[OrganKey, int] = {}
    for batch in batches(sorted({digest for digest, _, _ in keys})):
        statement = select(Organ.id, Blob.digest, Organ.dtype, Organ.shape).join(Blob, Blob.id == Organ.blob_id)
        for organ_id, *key in session.execute(statement.where(Blob.digest.in_(batch))):
            if tuple(key) in keys:
                found[key[0], key[1], key[2]] = organ_id
    return found


def recorded_parents(session: Session, model_id: int) -> list[tuple[Model, str]]:
    """The registered models that a chimera was made of, each with the act, in the order in which they were recorded."""
    statement = (
        select(Model, Lineage.relation)
        .join(Lineage, Lineage.parent_model_id == Model.id)
        .where(Lineage.child_model_id == model_id, Lineage.evidence == "recorded", Model.state.in_(REACHABLE_STATES))
        .order_by(Lineage.id)
    )
    return [(model, relation) for model, relation in session.execute(statement)]


def recorded_children(session: Session, model_id: int) -> list[tuple[Model, str]]:
    """Return the chimeras that were made of a model, each with the act, in the order in which they were recorded."""
    statement = (
        select(Model, Lineage.relation)
        .join(Lineage, Lineage.child_model_id == Model.id)
        .where(Lineage.parent_model_id == model_id, Lineage.evidence == "recorded", Model.state.in_(REACHABLE_STATES))
        .order_by(Lineage.id)
        .limit(CHILDREN_MAX)
    )
    return [(model, relation) for model, relation in session.execute(statement)]


def names_of_chimeras(session: Session) -> frozenset[str]:
    """The full names of all models that were composed here."""
    statement = select(Model.namespace, Model.name, Model.version).join(Chimera, Chimera.model_id == Model.id)
    return frozenset(f"{namespace}/{name}@{version}" for namespace, name, version in session.execute(statement))


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


def known_bases(session: Session, limit: int) -> tuple[ModelSummary, ...]:
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
    found = session.scalars(statement.limit(limit)).all()
    composed = composed_among(session, [model.id for model in found])
    return tuple(model_summary(model, composed=model.id in composed) for model in found)
