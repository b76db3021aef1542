"""Organs by digest, by model, and shared by models."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from msgspec import structs
from sqlalchemy import ColumnElement, Row, and_, func, or_, select
from sqlalchemy.orm import Session, aliased

from organs.registry.anatomy import OrganType, Place, Slot, Tower, expert_name
from organs.registry.catalog.cursor import check_limit, next_cursor, parse_cursor
from organs.registry.catalog.queries.blobs import KnownBlob
from organs.registry.catalog.queries.chimeras import derived_organs, made_organs
from organs.registry.catalog.queries.model_contents import has_public_place, placements_of
from organs.registry.catalog.queries.storage import organ_storage
from organs.registry.catalog.records import OrganKey
from organs.registry.catalog.rows import batches, entity_of, rows_among, scalars_among
from organs.registry.catalog.tables import (
    COARSE_FINGERPRINT_BYTES,
    Blob,
    BlobPart,
    ChimeraRow,
    Expert,
    Fingerprint,
    MeasurementRow,
    ModelMetadata,
    ModelRow,
    OrganRow,
    Placement,
)
from organs.registry.digest import Digest, parse_prefix
from organs.registry.entities import organ as entities
from organs.registry.entities.organ import PLACES_MAX, KnownOrgan, KnownOrgans, OrganPage, OtherForm, PlacedOrgan
from organs.registry.errors import Ambiguous, NotFound
from organs.registry.measures import MEASURES, THETA_METHOD, theta_caution

ORGANS_AT_ONCE = 200
"""Organs to count or to measure again that are read together."""
KNOWN_MAX = 4000
"""The most organs in one list. The same bytes, for example zeros, can have very many shapes."""


def measured_organs(session: Session, blobs: Iterable[KnownBlob]) -> set[OrganKey]:
    """Return digest, dtype and shape of the measured organs of `blobs`."""
    digests = {blob.id: blob.digest for blob in blobs}
    statement = select(OrganRow.blob_id, OrganRow.dtype, OrganRow.shape).join(
        MeasurementRow, MeasurementRow.organ_id == OrganRow.id
    )
    rows = rows_among(session, statement, OrganRow.blob_id, digests)
    return {(digests[blob_id], dtype, shape) for blob_id, dtype, shape in rows}


def organs_by_prefix(session: Session, text: str, *, visible: bool = False) -> Sequence[Row[OrganRow, Blob]]:
    """Return the organs whose digest begins with `text`, by id: one blob, with a row for each dtype and shape.

    With `visible`, only organs of visible or yanked models are found. Raises BadDigest; NotFound; Ambiguous if several
    digests have this prefix.
    """
    prefix = parse_prefix(text)
    # A range instead of LIKE: every database uses the index for it, and compares in the same way.
    statement = (
        select(OrganRow, Blob)
        .join(Blob, Blob.id == OrganRow.blob_id)
        .where(Blob.digest >= prefix, Blob.digest < prefix[:-1] + chr(ord(prefix[-1]) + 1))
        .order_by(OrganRow.id)
        .limit(100)
    )
    if visible:
        statement = statement.where(has_public_place())
    rows = session.execute(statement).all()
    digests = sorted({blob.digest for _, blob in rows})
    if not digests:
        raise NotFound(f"no tensor's digest begins with {prefix}")
    if len(digests) > 1:
        raise Ambiguous(f"{len(digests)} digests begin with {prefix}: {digests[0][:16]}…, {digests[1][:16]}…")
    return rows


def uncounted_organs(session: Session, after_id: int) -> Sequence[OrganRow]:
    """Return the next organs after `after_id` without a number of NaN and infinite values."""
    uncounted = select(OrganRow).where(OrganRow.nonfinite.is_(None), OrganRow.id > after_id)
    return session.scalars(uncounted.order_by(OrganRow.id).limit(ORGANS_AT_ONCE)).all()


def partly_measured_organs(session: Session, after_id: int) -> Sequence[OrganRow]:
    """Return the next organs after `after_id` whose fingerprint is coarse, or for which a method lacks some measures.

    They were measured by an older version of the program, which did not have these measures.
    """
    conditions = []
    for method in {measure.method for measure in MEASURES.values()}:
        names = [measure.name for measure in MEASURES.values() if measure.method == method]
        first, *others = (getattr(MeasurementRow, name) for name in names)
        conditions += [and_(MeasurementRow.method == method, first.is_not(None), other.is_(None)) for other in others]
    incomplete = select(MeasurementRow.organ_id).where(or_(*conditions), MeasurementRow.organ_id == OrganRow.id)
    coarse = select(Fingerprint.organ_id).where(is_coarse(), Fingerprint.organ_id == OrganRow.id)
    statement = select(OrganRow).where(OrganRow.id > after_id, incomplete.exists() | coarse.exists())
    return session.scalars(statement.order_by(OrganRow.id).limit(ORGANS_AT_ONCE)).all()


def is_coarse() -> ColumnElement[bool]:
    """Return whether a row of `Fingerprint` was written by an older version, in SQL."""
    return func.length(Fingerprint.values) == COARSE_FINGERPRINT_BYTES


def measurements_in(
    session: Session, model_id: int
) -> Sequence[Row[Placement, OrganRow, MeasurementRow | None, bytes | None]]:
    """Return the tensors of a model in order, with a row for each method: also with organ, result and fingerprint.

    A tensor that was not measured has one row, without a result.
    """
    statement = (
        select(Placement, OrganRow, MeasurementRow, Fingerprint.values)
        .join(OrganRow, OrganRow.id == Placement.organ_id)
        .outerjoin(MeasurementRow, MeasurementRow.organ_id == OrganRow.id)
        .outerjoin(Fingerprint, Fingerprint.organ_id == OrganRow.id)
        .where(Placement.model_id == model_id)
        .order_by(Placement.position, MeasurementRow.method)
    )
    return session.execute(statement).all()


def places_of_organ(session: Session, organ_id: int) -> Sequence[Row[Placement, ModelRow]]:
    """Return the places of the organ in visible models, oldest first; in yanked models if no visible model has it."""
    statement = select(Placement, ModelRow).join(ModelRow, ModelRow.id == Placement.model_id)
    statement = statement.where(Placement.organ_id == organ_id).order_by(Placement.id).limit(PLACES_MAX)
    return _visible_or_yanked(session, statement, Placement)


def _visible_or_yanked(session: Session, statement: Any, table: type[Placement | Expert]) -> Sequence[Any]:
    visible = session.execute(statement.where(table.visible)).all()
    return visible or session.execute(statement.where(ModelRow.state == "yanked")).all()


def reachable_digests(session: Session, digests: Iterable[str]) -> set[Digest]:
    """Return the `digests` of organs of visible or yanked models.

    Organs of other models are not disclosed.
    """
    statement = select(Blob.digest).join(OrganRow, OrganRow.blob_id == Blob.id).where(has_public_place())
    return set(map(Digest, scalars_among(session, statement, Blob.digest, digests)))


def reachable_organs(session: Session, digests: Iterable[Digest], limit: int) -> list[KnownOrgan]:
    """Return the organs of visible and yanked models among `digests`, by digest and id; at most `limit`.

    Organs of other models are not disclosed. Several organs of one digest differ by dtype or shape.
    """
    columns = (Blob.digest, OrganRow.dtype, OrganRow.shape, OrganRow.elements, Blob.size_bytes)
    # An organ has θ only in the row of its method.
    measures = (func.max(MeasurementRow.theta), func.max(MeasurementRow.spectral_signal))
    statement = (
        select(*columns, *measures)
        .join(OrganRow, OrganRow.blob_id == Blob.id)
        .outerjoin(MeasurementRow, MeasurementRow.organ_id == OrganRow.id)
        .where(has_public_place())
        .group_by(*columns, OrganRow.id)
        .order_by(Blob.digest, OrganRow.id)
        .limit(limit)
    )
    rows = islice(rows_among(session, statement, Blob.digest, digests), limit)
    return [
        KnownOrgan(
            digest=Digest(digest),
            dtype=dtype,
            shape=shape_of(shape),
            elements=elements,
            size_bytes=size,
            theta=theta,
            spectral_signal=spectral,
        )
        for digest, dtype, shape, elements, size, theta, spectral in rows
    ]


def known_organs(session: Session, digests: Sequence[Digest]) -> KnownOrgans:
    """Return the organs of visible or yanked models among `digests`, and the remaining digests."""
    organs = reachable_organs(session, digests, KNOWN_MAX)
    known_digests = {organ.digest for organ in organs}
    notes: tuple[str, ...] = ()
    if len(organs) >= KNOWN_MAX:
        known_digests |= reachable_digests(session, digests)
        notes = (f"Only {KNOWN_MAX:,} tensors are listed: some of these bytes have many dtypes and shapes.",)
    absent = tuple(digest for digest in dict.fromkeys(digests) if digest not in known_digests)
    return KnownOrgans(items=tuple(organs), next=None, notes=notes, absent=absent)


def organ_detail(
    session: Session, prefix: str, *, visible: bool = False, shows_storage: bool = False
) -> entities.Organ:
    """Return the organ whose digest begins with `prefix`; raises NotFound, Ambiguous, BadDigest.

    Bytes with several dtypes or shapes are several organs: the first is described, the others are in `also`. With
    `visible`, only organs of visible or yanked models are found. Only with `shows_storage` does the description
    say how the organ is stored, which tells what else the registry has.
    """
    rows = organs_by_prefix(session, prefix, visible=visible)
    organ, blob = rows[0]
    stored = select(func.count(), func.coalesce(func.sum(Blob.stored_bytes), 0))
    stored = stored.join(BlobPart, BlobPart.part_id == Blob.id).where(BlobPart.blob_id == blob.id)
    experts, experts_bytes = session.execute(stored).one()
    measurements: dict[int, list[entities.OrganMeasurement]] = {row.id: [] for row, _ in rows}
    by_method = select(MeasurementRow).order_by(MeasurementRow.method)
    for measured in scalars_among(session, by_method, MeasurementRow.organ_id, measurements):
        measurements[measured.organ_id].append(entity_of(entities.OrganMeasurement, measured))
    forms = [
        OtherForm(dtype=row.dtype, shape=shape_of(row.shape), measurements=tuple(measurements[row.id]))
        for row, _ in rows
    ]
    places = [
        placed_organ(placement, model, row.shape, blob.digest, row.nonfinite)
        for row, _ in rows
        for placement, model in places_of_organ(session, row.id)
    ]
    for row, _ in rows:
        of_experts = expert_rows().where(Expert.organ_id == row.id).order_by(Expert.id).limit(PLACES_MAX)
        places += (placed_expert(*found) for found in _visible_or_yanked(session, of_experts, Expert))
    return entity_of(
        entities.Organ,
        organ,
        **structs.asdict(forms[0]),
        digest=Digest(blob.digest),
        size_bytes=blob.size_bytes,
        stored_bytes=(int(experts_bytes) or blob.stored_bytes) if shows_storage else None,
        experts=experts,
        codec=f"{blob.codec}/{blob.codec_version}" if shows_storage else None,
        storage=organ_storage(session, blob.id) if shows_storage else None,
        state=blob.state,
        also=tuple(forms[1:]),
        places=tuple(places),
        made=made_organs(session, blob.digest),
        made_into=derived_organs(session, blob.digest),
    )


def placed_organ(
    place: Placement | Expert, model: ModelRow, shape: str, digest: str, nonfinite: int | None, **more: object
) -> PlacedOrgan:
    """Return an organ at its place in `model`; an expert needs the `name` of its stack."""
    lengths = shape_of(shape)
    return entity_of(
        PlacedOrgan,
        place,
        digest=digest,
        model=model.full_name,
        shape=lengths,
        architecture=model.architecture,
        license=model.license,
        nonfinite=nonfinite,
        theta_caution=theta_caution(place.theta, place.dtype, math.prod(lengths)),
        model_state=model.state,
        **more,
    )


def placed_expert(
    expert: Expert, name: str, model: ModelRow, shape: str, digest: str, nonfinite: int | None, **more: object
) -> PlacedOrgan:
    """Return an expert of a stack called `name` in `model`."""
    return placed_organ(expert, model, shape, digest, nonfinite, name=name, **more)


def expert_rows() -> Any:
    """Return a SELECT of the arguments of `placed_expert`."""
    return (
        select(Expert, Placement.name, ModelRow, OrganRow.shape, Blob.digest, OrganRow.nonfinite)
        .join(Placement, Placement.id == Expert.placement_id)
        .join(ModelRow, ModelRow.id == Expert.model_id)
        .join(OrganRow, OrganRow.id == Expert.organ_id)
        .join(Blob, Blob.id == OrganRow.blob_id)
    )


def organs_of_model(session: Session, model: ModelRow, limit: int | None = None) -> tuple[PlacedOrgan, ...]:
    """Return the organs of `model` in the order of its files, all or the first `limit`."""
    return tuple(
        placed_organ(placement, model, shape, digest, nonfinite)
        for placement, shape, digest, nonfinite in placements_of(session, model.id, limit)
    )


def shape_of(text: str) -> tuple[int, ...]:
    """Return the shape of a text in the tables, such as `192x512`."""
    return tuple(map(int, text.split("x")))


def organ_page_of_model(session: Session, model: ModelRow, limit: int, after: str | None = None) -> OrganPage:
    """Return the next `limit` organs of `model` after the cursor `after`, in file order. Raises BadQuery."""
    check_limit(limit)
    query = f"tensors of {model.full_name}"
    position = -1 if after is None else parse_cursor(query, after).id
    rows = placements_of(session, model.id, limit + 1, position)
    items = tuple(
        placed_organ(placement, model, shape, digest, nonfinite) for placement, shape, digest, nonfinite in rows[:limit]
    )
    return OrganPage(items=items, next=next_cursor(query, [placement.position for placement, *_ in rows], limit))


PROBED_MAX = 64
"""The most organs of a model that are searched in other models."""
OLDEST_MAX = 100
"""The most models that are read for each of these organs, the oldest first."""
COUNTED_MAX = 8
"""The most models whose shared organs are all counted, those with most of the probed organs first."""
PAIRS_MAX = 100_000
"""The most pairs of an organ and another model that are read to count the models that share organs with a model."""
IN_COMMON_MAX = 200_000
"""The most pairs of equal places with the same organ, in a model and in others, that are read."""

_BY_ORGAN = "INDEXED BY ix_placements_organ"
_BY_MODEL = "INDEXED BY ix_placements_model"


@dataclass(frozen=True, slots=True)
class SharedOrgans:
    """The distinct organs of a model, and those that other visible models also have."""

    organs: int
    size_bytes: int
    shared_organs: int
    shared_bytes: int
    other_models: int
    """Other visible models with at least one of the organs."""
    is_lower_bound: bool
    """Whether there may be more other models: the count stopped after PAIRS_MAX pairs of an organ and a model."""


def organs_placed_by(session: Session, model_id: int) -> Sequence[int]:
    """Return the ids of the distinct organs of a model, in order."""
    statement = select(Placement.organ_id).with_hint(Placement, _BY_MODEL, "sqlite")
    return sorted(set(session.scalars(statement.where(Placement.model_id == model_id))))


def experts_placed_by(session: Session, model_id: int) -> Sequence[int]:
    """Return the ids of the distinct organs that are experts of a model, in order."""
    return sorted(set(session.scalars(select(Expert.organ_id).where(Expert.model_id == model_id))))


def organs_without_place(session: Session, organ_ids: Iterable[int], but: int | None = None) -> list[int]:
    """Return the `organ_ids` that no model has, in any state. The model `but` is ignored."""
    unplaced = select(OrganRow.id).where(~_has_place(True, but), ~_has_place(False, but), ~_is_expert(but))
    return list(scalars_among(session, unplaced.order_by(OrganRow.id), OrganRow.id, organ_ids))


def count_unseen(session: Session, organ_ids: Iterable[int]) -> int:
    """Return how many of the distinct `organ_ids` no visible model has. Call it before a new model has rows."""
    statement = select(func.count(OrganRow.id)).where(~_has_place(True))
    parts = batches(sorted(set(organ_ids)))
    return sum(session.scalar(statement.where(OrganRow.id.in_(part))) or 0 for part in parts)


def models_with_most_organs_of(
    session: Session, model: ModelRow, lock_key: str
) -> tuple[int, list[tuple[ModelRow, int]]]:
    """Return the number of distinct organs of `model`, and the visible models of others that share most of them.

    Each comes with the number of shared organs. Models with equal numbers are ordered by age, the oldest first.
    Chimeras, composed in this registry or with a lock under `lock_key` in their header, are left out, because their
    organs come from other models.

    The search has a bounded cost for any catalog: it looks for PROBED_MAX organs spread over the model in the
    OLDEST_MAX oldest models that have each organ. Then it counts all shared organs of the COUNTED_MAX best models. A
    model that has half of the organs is missed only if more than OLDEST_MAX older models have the same organs.
    """
    organ_ids = organs_placed_by(session, model.id)
    hits: Counter[int] = Counter()
    for organ_id in organ_ids[:: max(1, -(-len(organ_ids) // PROBED_MAX))]:
        hits.update(other for _, other in _models_with(session, (organ_id,), model.id, OLDEST_MAX))
    composed = select(ChimeraRow.model_id).where(ChimeraRow.model_id == ModelRow.id)
    locked = select(ModelMetadata.model_id).where(ModelMetadata.model_id == ModelRow.id, ModelMetadata.key == lock_key)
    others = select(ModelRow).where(func.lower(ModelRow.namespace) != model.namespace.lower())
    others = others.where(~composed.exists(), ~locked.exists())
    candidates = sorted(
        scalars_among(session, others, ModelRow.id, hits), key=lambda other: (-hits[other.id], other.id)
    )
    sharing = [
        (candidate, len(set(organ_ids).intersection(organs_placed_by(session, candidate.id))))
        for candidate in candidates[:COUNTED_MAX]
    ]
    return len(organ_ids), sorted(sharing, key=lambda pair: (-pair[1], pair[0].id))


def shared_of(session: Session, model_id: int) -> SharedOrgans:
    """Return the organs that a model shares with other visible models, each counted once."""
    rows = select(Placement.organ_id, Placement.size_bytes).with_hint(Placement, _BY_MODEL, "sqlite")
    sizes = {row.organ_id: row.size_bytes for row in session.execute(rows.where(Placement.model_id == model_id))}
    shared: set[int] = set()
    models: set[int] = set()
    budget = PAIRS_MAX
    for batch in batches(sorted(sizes)):
        shared.update(_in_other_models(session, batch, model_id))
        pairs = _models_with(session, batch, model_id, budget) if budget else []
        models.update(other for _, other in pairs)
        budget -= len(pairs)
    return SharedOrgans(
        organs=len(sizes),
        size_bytes=sum(sizes.values()),
        shared_organs=len(shared),
        shared_bytes=sum(sizes[organ_id] for organ_id in shared),
        other_models=len(models),
        is_lower_bound=budget == 0,
    )


def organ_counts(session: Session, model_ids: Collection[int]) -> dict[int, tuple[int, int]]:
    """Return how many distinct organs each of the models has, and how many of them no other public model has.

    Models without organs are left out.
    """
    counts = {}
    for model_id in sorted(set(model_ids)):
        organ_ids = organs_placed_by(session, model_id)
        known = 0
        for batch in batches(organ_ids):
            visible = set(_in_other_models(session, batch, model_id))
            rest = [organ_id for organ_id in batch if organ_id not in visible]
            hidden = _models_with(session, rest, model_id, PAIRS_MAX, visible=False)
            is_yanked = select(ModelRow.id).where(ModelRow.state == "yanked")
            yanked = set(scalars_among(session, is_yanked, ModelRow.id, (other for _, other in hidden)))
            known += len(visible | {organ_id for organ_id, other in hidden if other in yanked})
        if organ_ids:
            counts[model_id] = (len(organ_ids), len(organ_ids) - known)
    return counts


def models_in_common(session: Session, model_id: int) -> dict[Slot, set[str]]:
    """Return, for places of a model, the full names of other visible models with the same organ at that place.

    At most IN_COMMON_MAX pairs of a place and a model are read.
    """
    own, other = aliased(Placement), aliased(Placement)
    same = and_(other.slot == own.slot, other.tower == own.tower, other.organ_id == own.organ_id)
    names: dict[Slot, set[str]] = {}
    # Two queries are needed: an index serves only the equality of two columns, and NULL is not equal to NULL.
    for same_block in (other.block == own.block, and_(own.block.is_(None), other.block.is_(None))):
        statement = (
            select(own.tower, own.block, own.slot, ModelRow.namespace, ModelRow.name, ModelRow.version)
            .with_hint(own, _BY_MODEL, "sqlite")
            .with_hint(other, "INDEXED BY ix_placements_place", "sqlite")
            .join(other, and_(same, same_block))
            .join(ModelRow, ModelRow.id == other.model_id)
            .where(own.model_id == model_id, other.model_id != model_id, other.visible)
            .limit(IN_COMMON_MAX)
        )
        for tower, block, slot, namespace, name, version in session.execute(statement):
            names.setdefault((tower, block, slot), set()).add(f"{namespace}/{name}@{version}")
    return names


def _models_with(
    session: Session, organ_ids: Collection[int], excluded_id: int, limit: int, *, visible: bool = True
) -> Sequence[tuple[int, int]]:
    """Return up to `limit` different pairs of an organ and a model with it, the oldest first, without `excluded_id`.

    The query skips through the index from one model to the next, without reading all places of a model.
    """
    place = aliased(Placement)
    next_model = select(func.min(place.model_id)).with_hint(place, _BY_ORGAN, "sqlite")
    next_model = next_model.where(place.visible if visible else ~place.visible)
    first = next_model.where(place.organ_id == OrganRow.id).correlate(OrganRow).scalar_subquery()
    pairs = (
        select(OrganRow.id.label("organ_id"), first.label("model_id"))
        .where(OrganRow.id.in_(organ_ids))
        .cte(recursive=True)
    )
    following = next_model.where(place.organ_id == pairs.c.organ_id, place.model_id > pairs.c.model_id)
    further = select(pairs.c.organ_id, following.correlate(pairs).scalar_subquery())
    pairs = pairs.union_all(further.where(pairs.c.model_id.is_not(None)))
    others = select(pairs.c.organ_id, pairs.c.model_id).where(pairs.c.model_id != excluded_id)
    return [(organ_id, other) for organ_id, other in session.execute(others.limit(limit))]


def _in_other_models(session: Session, organ_ids: Sequence[int], model_id: int) -> Sequence[int]:
    """Return the organs that another visible model has."""
    statement = select(OrganRow.id).where(OrganRow.id.in_(organ_ids), _has_place(True, model_id))
    return session.scalars(statement).all()


def _has_place(visible: bool, excluded_id: int | None = None) -> ColumnElement[bool]:
    """Return the condition that the outer OrganRow has a visible (or hidden) place in another model."""
    place = aliased(Placement)
    places = select(place.id).with_hint(place, _BY_ORGAN, "sqlite")
    places = places.where(place.organ_id == OrganRow.id, place.visible if visible else ~place.visible)
    if excluded_id is None:
        return places.exists()
    # Two ranges of the index are used, because `<>` would read all places of the excluded model.
    return or_(places.where(place.model_id < excluded_id).exists(), places.where(place.model_id > excluded_id).exists())


def _is_expert(excluded_id: int | None) -> ColumnElement[bool]:
    """Return the condition that the outer OrganRow is an expert of a model other than `excluded_id`."""
    places = select(Expert.id).where(Expert.organ_id == OrganRow.id)
    return (places if excluded_id is None else places.where(Expert.model_id != excluded_id)).exists()


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A tensor of a model. `shape` begins with the row length."""

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
    """Return the tensors of a model, in the order of its files."""
    statement = _select_tensors(Placement).where(Placement.model_id == model_id).order_by(Placement.position)
    return [_tensor_row(*row) for row in session.execute(statement)]


def expert_tensor_rows(
    session: Session, model_id: int, stacks: Collection[str], numbers: Collection[int]
) -> dict[tuple[str, int], TensorRow]:
    """Return the experts `numbers` of the tensors `stacks` of a model, by stack and number."""
    statement = _select_tensors(Expert).add_columns(Expert.expert).join(Placement, Placement.id == Expert.placement_id)
    rows = {}
    for names in batches(sorted(stacks)):
        selected = statement.where(Placement.model_id == model_id, Placement.name.in_(names))
        for numbers_in_batch in batches(sorted(numbers)):
            for *row, number in session.execute(selected.where(Expert.expert.in_(numbers_in_batch))):
                tensor = _tensor_row(*row)
                rows[tensor.name, number] = replace(tensor, name=expert_name(tensor.name, number))
    return rows


def _select_tensors(table: type[Placement] | type[Expert]) -> Any:
    return (
        select(
            *(Placement.name, table.type, table.tower, table.block, table.slot),
            *(table.dtype, OrganRow.shape, Blob.digest, OrganRow.id, Blob.id),
            *(table.theta, table.spectral_signal, Fingerprint.values),
            *(MeasurementRow.mean, MeasurementRow.standard_deviation, OrganRow.nonfinite),
        )
        .select_from(table)
        .join(OrganRow, OrganRow.id == table.organ_id)
        .join(Blob, Blob.id == OrganRow.blob_id)
        .outerjoin(Fingerprint, Fingerprint.organ_id == OrganRow.id)
        .outerjoin(MeasurementRow, and_(MeasurementRow.organ_id == OrganRow.id, MeasurementRow.method == THETA_METHOD))
    )


def _tensor_row(
    name: str, kind: str, tower: str, block: int | None, slot: str, dtype: str, shape: str, digest: str, *more: Any
) -> TensorRow:
    place = Place(OrganType(kind), Tower(tower), block, slot)
    return TensorRow(name, place, dtype, tuple(map(int, shape.split("x"))), Digest(digest), *more)


def organ_ids(session: Session, keys: Collection[OrganKey]) -> dict[OrganKey, int]:
    """Return the ids of the registered organs among `keys`."""
    statement = select(OrganRow.id, Blob.digest, OrganRow.dtype, OrganRow.shape).join(Blob, Blob.id == OrganRow.blob_id)
    rows = rows_among(session, statement, Blob.digest, {digest for digest, _, _ in keys})
    ids = {(digest, dtype, shape): organ_id for organ_id, digest, dtype, shape in rows}
    return {key: ids[key] for key in keys if key in ids}


def cell_organs(
    session: Session, model_ids: Collection[int], kind: str, tower: str, block: int | None
) -> list[tuple[PlacedOrgan, bytes | None]]:
    """Return the organs of the type `kind` in one block of one tower of the models, each with its fingerprint.

    They are in the order of the files.
    """
    statement = (
        select(Placement, ModelRow, OrganRow.shape, Blob.digest, OrganRow.nonfinite, Fingerprint.values)
        .join(ModelRow, ModelRow.id == Placement.model_id)
        .join(OrganRow, OrganRow.id == Placement.organ_id)
        .join(Blob, Blob.id == OrganRow.blob_id)
        .outerjoin(Fingerprint, Fingerprint.organ_id == OrganRow.id)
        .with_hint(Placement, "INDEXED BY ix_placements_model", "sqlite")
        .where(Placement.model_id.in_(model_ids), Placement.type == kind, Placement.tower == tower)
        .where(Placement.block.is_(None) if block is None else Placement.block == block)
        .order_by(Placement.model_id, Placement.position)
    )
    return [
        (placed_organ(placement, model, shape, digest, nonfinite), fingerprint)
        for placement, model, shape, digest, nonfinite, fingerprint in session.execute(statement)
    ]


@dataclass(frozen=True, slots=True)
class ModelExpert:
    """An expert of a model, with the values that comparisons need."""

    number: int
    digest: Digest
    shape: str
    theta: float | None
    fingerprint: bytes | None


def model_experts(session: Session, model_id: int, places: Collection[Slot]) -> dict[Slot, list[ModelExpert]]:
    """Return the experts of a model at those of `places` that have some, in the order of their numbers."""
    statement: Any = (
        select(
            *(Expert.tower, Expert.block, Expert.slot, Expert.expert),
            *(Blob.digest, OrganRow.shape, Expert.theta, Fingerprint.values),
        )
        .join(OrganRow, OrganRow.id == Expert.organ_id)
        .join(Blob, Blob.id == OrganRow.blob_id)
        .outerjoin(Fingerprint, Fingerprint.organ_id == OrganRow.id)
        .where(Expert.model_id == model_id)
        .order_by(Expert.placement_id, Expert.expert)
    )
    blocks = sorted({block for _, block, _ in places if block is not None})
    stacks = select(Placement.id).with_hint(Placement, "INDEXED BY ix_placements_model", "sqlite")
    stacks = stacks.where(Placement.model_id == model_id, Placement.slot.in_(sorted({slot for _, _, slot in places})))
    stacks = stacks.where(or_(Placement.block.in_(blocks), Placement.block.is_(None)))
    statement = statement.where(Expert.placement_id.in_(stacks))
    experts: dict[Slot, list[ModelExpert]] = {place: [] for place in places}
    rows = session.execute(statement.with_hint(Expert, "INDEXED BY ix_experts_model", "sqlite"))
    for tower, block, slot, number, digest, *more in rows:
        if (tower, block, slot) in experts:
            experts[tower, block, slot].append(ModelExpert(number, Digest(digest), *more))
    return {place: found for place, found in experts.items() if found}
