"""Organs: one by digest, many with their places, those of a model in pages, those that models share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, func, or_, select
from sqlalchemy.orm import Session, aliased

from organs.registry.anatomy import Slot
from organs.registry.catalog.cursor import (
    Cursor,
    check_limit,
    cursor_text,
    parse_cursor,
)
from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.chimeras import made_organs, organs_made_of
from organs.registry.catalog.queries.models import placements_of
from organs.registry.catalog.tables import (
    Blob,
    BlobLease,
    Chimera,
    FilePart,
    Ingest,
    InlineBlob,
    Measurement,
    Model,
    ModelFile,
    ModelMetadata,
    Organ,
    Placement,
)
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import Digest, parse_prefix
from organs.registry.entities.organ import KnownOrgan, KnownOrgans, OrganPage, OtherForm, PlacedOrgan
from organs.registry.entities.organ import Measurement as MeasurementEntity
from organs.registry.entities.organ import Organ as OrganDetail
from organs.registry.errors import Ambiguous, NotFound
from organs.registry.measures import MEASURE_NAMES, MEASURES

NAMES_MAX = 20
"""Places of a blob that are listed for people, of each kind."""


@dataclass(frozen=True, slots=True)
class BlobRow:
    """A blob's row as plain values; `inline` has the stored bytes of a small blob."""

    id: int
    digest: Digest
    size_bytes: int
    stored_bytes: int
    codec: str
    codec_version: int
    file: str | None
    state: str
    inline: bytes | None

    @property
    def is_set_aside(self) -> bool:
        """Whether its bytes were found wrong or missing when they were last read."""
        return self.state == "corrupt"


def blobs_by_digest(session: Session, digests: Iterable[str]) -> dict[Digest, BlobRow]:
    """The rows of `digests`, whatever their state; those without a row are left out."""
    found: dict[Digest, BlobRow] = {}
    for batch in batches(sorted(set(digests))):
        for row in _rows(session, _blob_rows().where(Blob.digest.in_(batch))):
            found[row.digest] = row
    return found


def blobs_by_id(session: Session, ids: Iterable[int]) -> dict[int, BlobRow]:
    """The rows of `ids`."""
    found: dict[int, BlobRow] = {}
    for batch in batches(sorted(set(ids))):
        for row in _rows(session, _blob_rows().where(Blob.id.in_(batch))):
            found[row.id] = row
    return found


def blob_sizes(session: Session, digests: Iterable[str]) -> dict[Digest, int]:
    """Plain sizes in bytes of the blobs of `digests` that are intact; the others are left out."""
    found: dict[Digest, int] = {}
    for batch in batches(sorted(set(digests))):
        statement = select(Blob.digest, Blob.size_bytes).where(Blob.digest.in_(batch), Blob.state == "present")
        found.update((Digest(digest), size) for digest, size in session.execute(statement))
    return found


def blobs_after(session: Session, digest: str, limit: int = 500) -> list[BlobRow]:
    """The next rows in the order of digests, behind `digest`."""
    return list(_rows(session, _blob_rows().where(Blob.digest > digest).order_by(Blob.digest).limit(limit)))


def known_files(session: Session) -> set[str]:
    """The physical names that rows point at."""
    return {file for file in session.scalars(select(Blob.file)) if file is not None}


def unneeded_blobs(session: Session, state: str, untouched_since: datetime, now: datetime) -> Sequence[Blob]:
    """Blobs in `state` that nothing refers to, no living ingest leases, and nobody touched since."""
    return session.scalars(unneeded(now).where(Blob.state == state, Blob.touched_at < untouched_since)).all()


def unneeded(now: datetime) -> Select[Blob]:
    """SELECT of the blobs that nothing refers to: one anti-join a kind of reference, each answered by an index."""
    leased = select(BlobLease.blob_id).join(Ingest).where(Ingest.state == "running", Ingest.lease_expires_at > now)
    dependent = aliased(Blob)
    return select(Blob).where(
        ~select(Organ.id).where(Organ.blob_id == Blob.id).exists(),
        ~select(FilePart.file_id).where(FilePart.blob_id == Blob.id).exists(),
        ~select(dependent.id).where(dependent.depends_on == Blob.id).exists(),
        Blob.id.not_in(leased),
    )


def oldest_living_ingest(session: Session, now: datetime) -> datetime | None:
    """When the oldest of the ingests began that run and have kept their lease; None when there is none."""
    living = select(func.min(Ingest.started_at)).where(Ingest.state == "running", Ingest.lease_expires_at > now)
    return session.scalar(living)


def reachable_digests(session: Session, digests: Iterable[str]) -> set[Digest]:
    """Which of `digests` are organs of visible or yanked models: what anybody may be told. Others count as absent."""
    found: set[Digest] = set()
    for batch in batches(sorted(set(digests))):
        placed = select(Placement.id).join(Model, Model.id == Placement.model_id)
        placed = placed.where(Placement.organ_id == Organ.id, Model.state.in_(REACHABLE_STATES))
        statement = select(Blob.digest).join(Organ, Organ.blob_id == Blob.id)
        statement = statement.where(Blob.digest.in_(batch), placed.exists())
        found.update(Digest(digest) for digest in session.scalars(statement))
    return found


def names_of_blob(session: Session, blob_id: int) -> list[str]:
    """Where a blob is needed, for people: `namespace/name@version: tensor`, and the files that have it elsewhere.

    Elsewhere is the header, a metadata array, or padding that is not zero.
    """
    tensors = (
        select(Model.namespace, Model.name, Model.version, Placement.name)
        .join(Placement, Placement.model_id == Model.id)
        .join(Organ, Organ.id == Placement.organ_id)
        .where(Organ.blob_id == blob_id)
        .order_by(Model.id, Placement.position)
        .limit(NAMES_MAX)
    )
    having = select(FilePart.file_id).where(FilePart.blob_id == blob_id)  # by its index, not file by file
    files = (
        select(Model.namespace, Model.name, Model.version, ModelFile.name)
        .join(ModelFile, ModelFile.model_id == Model.id)
        .where(ModelFile.id.in_(having))
        .order_by(Model.id, ModelFile.position)
        .limit(NAMES_MAX)
    )
    return [
        *(f"{owner}/{name}@{version}: {tensor}" for owner, name, version, tensor in session.execute(tensors)),
        *(f"{owner}/{name}@{version}: header of {file}" for owner, name, version, file in session.execute(files)),
    ]


def _blob_rows() -> Select[*tuple[Any, ...]]:
    """Columns, not objects: an ingest asks this for every organ."""
    columns = (Blob.id, Blob.digest, Blob.size_bytes, Blob.stored_bytes, Blob.codec, Blob.codec_version)
    statement = select(*columns, Blob.file, Blob.state, InlineBlob.stored)
    return statement.outerjoin(InlineBlob, InlineBlob.blob_id == Blob.id)


def _rows(session: Session, statement: Select[*tuple[Any, ...]]) -> Iterator[BlobRow]:
    for row in session.execute(statement):
        yield BlobRow(*row)


KNOWN_MAX = 4000
"""Organs that are listed: bytes such as zeros can have very many shapes."""


def measured_organs(session: Session, blobs: Iterable[BlobRow]) -> set[tuple[str, str, str]]:
    """Digest, dtype and shape of the organs of `blobs` that have been measured."""
    digests = {blob.id: blob.digest for blob in blobs}
    found: set[tuple[str, str, str]] = set()
    for batch in batches(sorted(digests)):
        statement = (
            select(Organ.blob_id, Organ.dtype, Organ.shape)
            .join(Measurement, Measurement.organ_id == Organ.id)
            .where(Organ.blob_id.in_(batch))
        )
        found.update((digests[blob_id], dtype, shape) for blob_id, dtype, shape in session.execute(statement))
    return found


def organs_by_prefix(session: Session, text: str, *, visible: bool = False) -> Sequence[Row[Organ, Blob]]:
    """The organs whose digest begins with `text`, in the order of their ids: one blob, one row a dtype and shape.

    With `visible`, only organs of models that are visible or yanked: the others count as absent. Raises BadDigest,
    NotFound, and Ambiguous when several digests begin so.
    """
    prefix = parse_prefix(text)
    # A range instead of LIKE: it uses the index on every database, and means the same on all.
    statement = (
        select(Organ, Blob)
        .join(Blob, Blob.id == Organ.blob_id)
        .where(Blob.digest >= prefix, Blob.digest < prefix[:-1] + chr(ord(prefix[-1]) + 1))
        .order_by(Organ.id)
        .limit(100)
    )
    if visible:
        placed = select(Placement.id).join(Model, Model.id == Placement.model_id)
        placed = placed.where(Placement.organ_id == Organ.id, Model.state.in_(REACHABLE_STATES))
        statement = statement.where(placed.exists())
    rows = session.execute(statement).all()
    digests = sorted({blob.digest for _, blob in rows})
    if not digests:
        raise NotFound(f"no organ's digest begins with {prefix}")
    if len(digests) > 1:
        raise Ambiguous(f"{len(digests)} digests begin with {prefix}: {digests[0][:16]}…, {digests[1][:16]}…")
    return rows


def uncounted_organs(session: Session, after_id: int, limit: int = 200) -> Sequence[Organ]:
    """The next organs behind `after_id` of which it is unknown how many values are NaN or infinite."""
    statement = select(Organ).where(Organ.nonfinite.is_(None), Organ.id > after_id).order_by(Organ.id).limit(limit)
    return session.scalars(statement).all()


def partly_measured_organs(session: Session, after_id: int, limit: int = 200) -> Sequence[Organ]:
    """Return the next organs behind `after_id` of which a method has given some of its measures, but not all.

    They were measured by a version of this program that did not know the others.
    """
    lacking = []
    for method in {one.method for one in MEASURES.values()}:
        first, *others = (getattr(Measurement, one.name) for one in MEASURES.values() if one.method == method)
        lacking += [and_(Measurement.method == method, first.is_not(None), other.is_(None)) for other in others]
    incomplete = select(Measurement.organ_id).where(or_(*lacking), Measurement.organ_id == Organ.id)
    statement = select(Organ).where(Organ.id > after_id, incomplete.exists()).order_by(Organ.id).limit(limit)
    return session.scalars(statement).all()


def measurements_of(session: Session, organ_id: int) -> Sequence[Measurement]:
    """What each method read from the organ."""
    statement = select(Measurement).where(Measurement.organ_id == organ_id).order_by(Measurement.method)
    return session.scalars(statement).all()


def places_of_organ(session: Session, organ_id: int, limit: int = 100) -> Sequence[Row[Placement, Model]]:
    """Where the organ sits in visible models, oldest first; in yanked ones if no visible model has it."""
    statement = select(Placement, Model).join(Model, Model.id == Placement.model_id)
    statement = statement.where(Placement.organ_id == organ_id).order_by(Placement.id).limit(limit)
    visible = session.execute(statement.where(Placement.visible)).all()
    return visible or session.execute(statement.where(Model.state == "yanked")).all()


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
            KnownOrgan(
                digest=Digest(digest),
                dtype=dtype,
                shape=shape_of(shape),
                elements=elements,
                size_bytes=size,
                theta=theta,
                spectral_signal=spectral,
            )
            for digest, dtype, shape, elements, size, theta, spectral in session.execute(statement)
        ]
        if len(found) >= limit:
            break
    return found


def known_organs(session: Session, digests: Sequence[Digest]) -> KnownOrgans:
    """Return which of `digests` are organs of visible or yanked models, in short, and which are not."""
    organs = reachable_organs(session, digests, KNOWN_MAX)
    known = {organ.digest for organ in organs}
    notes: tuple[str, ...] = ()
    if len(organs) >= KNOWN_MAX:
        known |= reachable_digests(session, digests)
        notes = (f"Only {KNOWN_MAX:,} organs are listed: some of these bytes have many dtypes and shapes.",)
    absent = tuple(digest for digest in dict.fromkeys(digests) if digest not in known)
    return KnownOrgans(items=tuple(organs), next=None, notes=notes, absent=absent)


def organ_detail(session: Session, prefix: str, *, visible: bool = False) -> OrganDetail:
    """Return the organ whose digest begins with `prefix`; raises NotFound, Ambiguous, BadDigest.

    Bytes that have several dtypes or shapes are several organs: the first is described, the others are in `also`.
    With `visible`, only organs of visible or yanked models count.
    """
    rows = organs_by_prefix(session, prefix, visible=visible)
    organ, blob = rows[0]
    return OrganDetail(
        digest=Digest(blob.digest),
        dtype=organ.dtype,
        shape=shape_of(organ.shape),
        elements=organ.elements,
        nonfinite=organ.nonfinite,
        size_bytes=blob.size_bytes,
        stored_bytes=blob.stored_bytes,
        codec=f"{blob.codec}/{blob.codec_version}",
        state=blob.state,
        measurements=_measurements(session, organ),
        also=tuple(
            OtherForm(dtype=other.dtype, shape=shape_of(other.shape), measurements=_measurements(session, other))
            for other, _ in rows[1:]
        ),
        places=tuple(
            placed_organ(placement, model, one.shape, blob.digest, one.nonfinite)
            for one, _ in rows
            for placement, model in places_of_organ(session, one.id)
        ),
        made=made_organs(session, blob.digest),
        made_into=organs_made_of(session, blob.digest),
    )


def _measurements(session: Session, organ: Organ) -> tuple[MeasurementEntity, ...]:
    return tuple(
        MeasurementEntity(**{name: getattr(row, name) for name in MeasurementEntity.__struct_fields__})
        for row in measurements_of(session, organ.id)
    )


def placed_organ(placement: Placement, model: Model, shape: str, digest: str, nonfinite: int | None) -> PlacedOrgan:
    """Return an organ at its place in `model`."""
    return PlacedOrgan(
        digest=Digest(digest),
        model=model.full_name,
        name=placement.name,
        type=placement.type,
        tower=placement.tower,
        block=placement.block,
        slot=placement.slot,
        dtype=placement.dtype,
        shape=shape_of(shape),
        size_bytes=placement.size_bytes,
        architecture=model.architecture,
        license=model.license,
        nonfinite=nonfinite,
        model_state=model.state,
        **{name: getattr(placement, name) for name in MEASURE_NAMES},
    )


def organs_of_model(session: Session, model: Model, limit: int | None = None) -> tuple[PlacedOrgan, ...]:
    """Return the organs of `model` at their places, in the order of its files; the first `limit`, or all."""
    return tuple(
        placed_organ(placement, model, shape, digest, nonfinite)
        for placement, shape, digest, nonfinite in placements_of(session, model.id, limit)
    )


def shape_of(text: str) -> tuple[int, ...]:
    """Return the shape in a column, such as `192x512`."""
    return tuple(map(int, text.split("x")))


def organ_page_of_model(session: Session, model: Model, limit: int, after: str | None = None) -> OrganPage:
    """Return the next `limit` organs of `model` in the order of its files, behind `after`; raises BadQuery."""
    check_limit(limit)
    listed = f"organs of {model.full_name}"
    statement = (
        select(Placement, Organ.shape, Blob.digest, Organ.nonfinite)
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Blob, Blob.id == Organ.blob_id)
        .where(Placement.model_id == model.id)
        .order_by(Placement.position)
        .limit(limit + 1)
    )
    if after is not None:
        statement = statement.where(Placement.position > parse_cursor(listed, after).id)
    rows = session.execute(statement).all()
    shown = rows[:limit]
    place = Cursor(None, shown[-1][0].position) if len(rows) > limit else None
    items = tuple(
        placed_organ(placement, model, shape, digest, nonfinite) for placement, shape, digest, nonfinite in shown
    )
    return OrganPage(items=items, next=cursor_text(listed, place) if place else None)


PROBED_MAX = 64
"""Organs of a model by which models that share them are looked for."""
OLDEST_MAX = 100
"""Models that are looked at for each of these organs, the oldest first."""
COUNTED_MAX = 8
"""Models of which all shared organs are counted, those with most of the probed organs first."""
PAIRS_MAX = 100_000
"""Pairs of an organ and another model that has it, which are read to count the models that share organs with one."""
IN_COMMON_MAX = 200_000
"""Places of other models that have the same organ as one model there."""

_BY_ORGAN = "INDEXED BY ix_placements_organ"
_BY_MODEL = "INDEXED BY ix_placements_model"


@dataclass(frozen=True, slots=True)
class SharedWith:
    """Another model, and how many different organs it has in common with the one that was asked about."""

    model: Model
    shared: int


@dataclass(frozen=True, slots=True)
class Shared:
    """The different organs of a model, and those of them that visible other models have too."""

    organs: int
    size_bytes: int
    shared_organs: int
    shared_bytes: int
    other_models: int
    """Other visible models that have one of the organs or more."""
    is_least: bool
    """Whether there may be more such models: counting stopped after PAIRS_MAX pairs of an organ and a model."""


@dataclass(frozen=True, slots=True)
class OrganCounts:
    """How many different organs a model has."""

    different: int = 0
    new: int = 0
    """Those that no other model has which is visible or yanked."""


def organs_placed_by(session: Session, model_id: int) -> Sequence[int]:
    """Return the ids of the different organs of a model, in order."""
    statement = select(Placement.organ_id).with_hint(Placement, _BY_MODEL, "sqlite")
    return sorted(set(session.scalars(statement.where(Placement.model_id == model_id))))


def organs_without_place(session: Session, organ_ids: Iterable[int], but: int | None = None) -> list[int]:
    """Return those of `organ_ids` that no model has, whatever its state; the model `but` does not count."""
    found: list[int] = []
    for batch in batches(sorted(set(organ_ids))):
        unplaced = (~_has_place(True, but), ~_has_place(False, but))
        found += session.scalars(select(Organ.id).where(Organ.id.in_(batch), *unplaced).order_by(Organ.id))
    return found


def count_unseen(session: Session, organ_ids: Iterable[int]) -> int:
    """Return how many of the different `organ_ids` no visible model has; called before a new model has rows."""
    count = func.count(Organ.id)
    different = batches(sorted(set(organ_ids)))
    return sum(session.scalar(select(count).where(Organ.id.in_(one), ~_has_place(True))) or 0 for one in different)


def models_with_most_organs_of(session: Session, model: Model, lock_key: str) -> tuple[int, list[SharedWith]]:
    """Return the number of different organs of `model`, and the visible models of others that share most of them.

    Models with as many shared organs are ordered by age, the oldest first. Chimeras, composed here or with a lock under
    `lock_key` in their header, are left out, because their organs are those of other models.

    The search is bounded whatever the catalog holds: it looks for PROBED_MAX organs spread over the model, in the
    OLDEST_MAX oldest models that have each, and counts the organs of the COUNTED_MAX best. A model that has half of the
    organs is missed only if more than OLDEST_MAX older models have the same organs.
    """
    own = organs_placed_by(session, model.id)
    hits: Counter[int] = Counter()
    for organ_id in own[:: max(1, -(-len(own) // PROBED_MAX))]:
        hits.update(other for _, other in _models_with(session, (organ_id,), model.id, OLDEST_MAX))
    candidates = _not_composed_by_others(session, hits, model, lock_key)
    candidates.sort(key=lambda one: (-hits[one.id], one.id))
    mine = set(own)
    found = [
        SharedWith(one, len(mine.intersection(organs_placed_by(session, one.id)))) for one in candidates[:COUNTED_MAX]
    ]
    return len(own), sorted(found, key=lambda one: (-one.shared, one.model.id))


def shared_of(session: Session, model_id: int) -> Shared:
    """Return what a model shares with other visible models, each organ counted once."""
    rows = select(Placement.organ_id, Placement.size_bytes).with_hint(Placement, _BY_MODEL, "sqlite")
    sizes = {row.organ_id: row.size_bytes for row in session.execute(rows.where(Placement.model_id == model_id))}
    shared: set[int] = set()
    models: set[int] = set()
    left = PAIRS_MAX
    for batch in batches(sorted(sizes)):
        shared.update(_in_other_models(session, batch, model_id))
        pairs = _models_with(session, batch, model_id, left) if left else []
        models.update(other for _, other in pairs)
        left -= len(pairs)
    return Shared(
        organs=len(sizes),
        size_bytes=sum(sizes.values()),
        shared_organs=len(shared),
        shared_bytes=sum(sizes[organ_id] for organ_id in shared),
        other_models=len(models),
        is_least=left == 0,
    )


def organ_counts(session: Session, model_ids: Collection[int]) -> dict[int, OrganCounts]:
    """Return how many different organs each of the models has, and how many of them are new.

    Models without organs are left out. Organs of models that are neither visible nor yanked count as absent.
    """
    found = {}
    for model_id in sorted(set(model_ids)):
        own = organs_placed_by(session, model_id)
        if own:
            known = sum(len(_in_shown_models(session, batch, model_id)) for batch in batches(own))
            found[model_id] = OrganCounts(len(own), len(own) - known)
    return found


def models_in_common(session: Session, model_id: int) -> dict[Slot, set[str]]:
    """Return, for places of a model, the full names of the other visible models that have the very same organ there.

    At most IN_COMMON_MAX pairs of a place and a model are read.
    """
    own, other = aliased(Placement), aliased(Placement)
    same = and_(other.slot == own.slot, other.tower == own.tower, other.organ_id == own.organ_id)
    found: dict[Slot, set[str]] = {}
    # Two queries, because only an equality of two columns is answered by an index, and NULL is equal to nothing.
    for same_block in (other.block == own.block, and_(own.block.is_(None), other.block.is_(None))):
        statement = (
            select(own.tower, own.block, own.slot, Model.namespace, Model.name, Model.version)
            .with_hint(own, _BY_MODEL, "sqlite")
            .with_hint(other, "INDEXED BY ix_placements_place", "sqlite")
            .join(other, and_(same, same_block))
            .join(Model, Model.id == other.model_id)
            .where(own.model_id == model_id, other.model_id != model_id, other.visible)
            .limit(IN_COMMON_MAX)
        )
        for tower, block, slot, namespace, name, version in session.execute(statement):
            found.setdefault((tower, block, slot), set()).add(f"{namespace}/{name}@{version}")
    return found


def _not_composed_by_others(session: Session, model_ids: Collection[int], model: Model, lock_key: str) -> list[Model]:
    """Those of the models that are in another namespace than `model` and are no chimeras."""
    composed = select(Chimera.model_id).where(Chimera.model_id == Model.id)
    locked = select(ModelMetadata.model_id).where(ModelMetadata.model_id == Model.id, ModelMetadata.key == lock_key)
    found: list[Model] = []
    for batch in batches(sorted(model_ids)):
        statement = select(Model).where(Model.id.in_(batch), func.lower(Model.namespace) != model.namespace.lower())
        found += session.scalars(statement.where(~composed.exists(), ~locked.exists()))
    return found


def _models_with(
    session: Session, organ_ids: Collection[int], but: int, limit: int, *, visible: bool = True
) -> Sequence[tuple[int, int]]:
    """At most `limit` pairs of an organ and a model other than `but` that has it; each pair once, the oldest first.

    The query skips through the index: from one model straight to the next, over all places of the first.
    """
    place = aliased(Placement)
    next_model = select(func.min(place.model_id)).with_hint(place, _BY_ORGAN, "sqlite")
    next_model = next_model.where(place.visible if visible else ~place.visible)
    first = next_model.where(place.organ_id == Organ.id).correlate(Organ).scalar_subquery()
    pairs = (
        select(Organ.id.label("organ_id"), first.label("model_id")).where(Organ.id.in_(organ_ids)).cte(recursive=True)
    )
    following = next_model.where(place.organ_id == pairs.c.organ_id, place.model_id > pairs.c.model_id)
    further = select(pairs.c.organ_id, following.correlate(pairs).scalar_subquery())
    pairs = pairs.union_all(further.where(pairs.c.model_id.is_not(None)))
    others = select(pairs.c.organ_id, pairs.c.model_id).where(pairs.c.model_id != but)
    return [(organ_id, other) for organ_id, other in session.execute(others.limit(limit))]


def _in_other_models(session: Session, organ_ids: Sequence[int], model_id: int) -> Sequence[int]:
    """Those of the organs that another visible model has."""
    statement = select(Organ.id).where(Organ.id.in_(organ_ids), _has_place(True, model_id))
    return session.scalars(statement).all()


def _has_place(visible: bool, but: int | None = None) -> ColumnElement[bool]:
    """Whether the Organ of the statement around it has a visible, or a hidden, place in any model other than `but`."""
    place = aliased(Placement)
    places = select(place.id).with_hint(place, _BY_ORGAN, "sqlite")
    places = places.where(place.organ_id == Organ.id, place.visible if visible else ~place.visible)
    if but is None:
        return places.exists()
    # Two ranges of the index instead of `<>`, which would walk over all places of the model itself.
    return or_(places.where(place.model_id < but).exists(), places.where(place.model_id > but).exists())


def _in_shown_models(session: Session, organ_ids: Sequence[int], model_id: int) -> set[int]:
    """Those of the organs that another visible or yanked model has."""
    found = set(_in_other_models(session, organ_ids, model_id))
    left = [organ_id for organ_id in organ_ids if organ_id not in found]
    hidden = _models_with(session, left, model_id, PAIRS_MAX, visible=False)
    yanked: set[int] = set()
    for batch in batches(sorted({other for _, other in hidden})):
        yanked.update(session.scalars(select(Model.id).where(Model.id.in_(batch), Model.state == "yanked")))
    return found | {organ_id for organ_id, other in hidden if other in yanked}
