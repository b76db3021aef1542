"""Rows of blobs, of the ingests that lease them, of organs with their measures, and of the experts of stacks.

A row is written after its bytes are durable. The row of an existing organ stays unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, select, union_all, update
from sqlalchemy.orm import Session

from organs.registry.anatomy import OrganType, Place, Tower, is_expert_stack
from organs.registry.catalog.engine import Catalog, database_now
from organs.registry.catalog.queries.blobs import (
    DEPTH_MAX,
    UNDOOMED,
    KnownBlob,
    blobs_by_digest,
    blobs_by_id,
    heights_of_blobs,
    leased,
    unneeded,
    unneeded_blobs,
)
from organs.registry.catalog.queries.organs import is_coarse, organ_ids, shape_of
from organs.registry.catalog.queries.relatives import models_with_blobs
from organs.registry.catalog.records import OrganKey, PlacementRecord
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.counts import add_to_totals, blob_changes, is_counted
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.rows import (
    batches,
    execute_quietly,
    first,
    insert_missing,
    insert_missing_returning,
    scalars_among,
)
from organs.registry.catalog.tables import (
    Blob,
    BlobLease,
    BlobPart,
    Expert,
    Fingerprint,
    Ingest,
    InlineBlob,
    MeasurementRow,
    ModelRow,
    OrganRow,
    Placement,
)
from organs.registry.catalog.vocabulary import STACK_CODEC, Action, shown_text
from organs.registry.catalog.work import WorkCancelled, keeping
from organs.registry.digest import Digest
from organs.registry.errors import MissingBlob, OrganError
from organs.registry.experts import expert_shape
from organs.registry.measure import Measurement as Measured
from organs.registry.measures import MEASURE_NAMES, MEASURES, SPECTRAL_METHOD, THETA_METHOD
from organs.registry.store import BlobAddress, StoredBlob

STACK_VERSION = 1
STACKS_A_STATEMENT = 16
"""Stacks whose rows are read and written together; each has up to some hundred parts."""

LEASE = timedelta(hours=1)
"""The time for which an ingest protects its blobs from the sweep without renewing its lease."""


def begin_ingest(session: Session, source: str) -> int:
    """Add a running ingest; return its id."""
    moment = database_now(session)
    row = Ingest(source=shown_text(source), state="running", started_at=moment, lease_expires_at=moment + LEASE)
    session.add(row)
    session.flush()
    return row.id


def renew_ingest(session: Session, ingest_id: int) -> bool:
    """Renew the lease of an ingest: it expires LEASE from now."""
    session.execute(update(Ingest).where(Ingest.id == ingest_id).values(lease_expires_at=database_now(session) + LEASE))
    return True


@contextmanager
def leased_ingest(catalog: Catalog, source: str) -> Iterator[int]:
    """Add an ingest and return its id; a thread renews its lease during the block."""
    with catalog.writing() as session:
        ingest_id = begin_ingest(session, source)
    renewal = partial(renew_ingest, ingest_id=ingest_id)
    with keeping(catalog, renewal, f"ingest {ingest_id} keeper", LEASE.total_seconds() / 4):
        yield ingest_id


@contextmanager
def recorded_ingest(catalog: Catalog, source: str) -> Iterator[int]:
    """Do the same for a block that ends with `end_ingest`; if it raises, record the failure."""
    with leased_ingest(catalog, source) as ingest_id:
        try:
            yield ingest_id
        except BaseException as error:
            state = "interrupted" if isinstance(error, KeyboardInterrupt | WorkCancelled) else "failed"
            # The caller must get the first error, also if the catalog cannot record the failure.
            with suppress(OrganError), catalog.writing() as session:
                end_ingest(session, ingest_id, state, json.dumps({"error": str(error)[:1000]}))
            raise


def end_ingest(
    session: Session, ingest_id: int, state: str, report: str | None = None, model_id: int | None = None
) -> None:
    """Record the end of an ingest and remove its leases. The rows of its model now protect its blobs from the sweep."""
    session.execute(
        update(Ingest)
        .where(Ingest.id == ingest_id)
        .values(state=state, finished_at=database_now(session), report=report, model_id=model_id)
    )
    session.execute(delete(BlobLease).where(BlobLease.ingest_id == ingest_id))


def forget_ingest(session: Session, ingest_id: int) -> None:
    """Delete the row of an ingest that has registered nothing."""
    session.execute(delete(BlobLease).where(BlobLease.ingest_id == ingest_id))
    session.execute(delete(Ingest).where(Ingest.id == ingest_id))


def detach_ingests(session: Session, model_id: int) -> None:
    """Make the ingests of the stored shards of a model independent of it: the ingest of the last shard registers it."""
    session.execute(update(Ingest).where(Ingest.model_id == model_id).values(model_id=None))


def record_blobs(session: Session, ingest_id: int, blobs: Sequence[StoredBlob]) -> list[str]:
    """Write the rows of durable `blobs` and lease them to the ingest; return the names of files to remove.

    A digest that another ingest has recorded meanwhile keeps its row. A row that is corrupt or doomed, or that is a
    stack, gets the new stored bytes. No row points at the returned files: remove them after the commit. Raises
    MissingBlob if the parent of a blob was removed, or got a parent of its own, since the blob was encoded.
    """
    before = blobs_by_digest(session, [blob.digest for blob in blobs])
    new = [blob for blob in blobs if blob.digest not in before]
    # The part of a stack cannot be a stack itself, so its bytes are stored although they are the bytes of a stack.
    replaced = {
        blob.digest: blob
        for blob in blobs
        if (row := before.get(blob.digest)) is not None and (row.state != "present" or row.codec == STACK_CODEC)
    }
    parents = _parent_ids(session, [*new, *replaced.values()])
    moment = database_now(session)
    new_rows = [_values(blob, moment, parents) for blob in new]
    inserted = insert_missing_returning(session, Blob, "digest", new_rows)
    for digest, blob in replaced.items():
        _replace(session, before[digest].id, blob, moment, parents)
    healed = [before[digest] for digest in replaced if before[digest].is_set_aside]
    for row in healed:
        _record_event(session, Action.TAKE_BACK, row)
    # They are stored alone now: a repack finds their parents again.
    mark_repacked(session, sorted(models_with_blobs(session, [row.id for row in healed])), None)
    removed = [before[digest] for digest in replaced if is_counted(before[digest].state)]
    added = {blob.digest: blob for blob in reversed(blobs) if blob.digest in inserted} | replaced
    add_to_totals(session, blob_changes(added.values(), removed))
    rows = blobs_by_digest(session, [blob.digest for blob in blobs])
    used_files = {row.file for row in rows.values()}
    written_files = [blob.file for blob in blobs] + [row.file for row in before.values()]
    inline = [
        {"blob_id": rows[blob.digest].id, "stored": blob.inline}
        for blob in blobs
        if blob.inline is not None and rows[blob.digest].file is None
    ]
    insert_missing(session, InlineBlob, inline)
    # A parent was doomed if the lease of the ingest had expired.
    lease_blobs(session, ingest_id, [*(row.id for row in rows.values()), *parents.values()])
    return [file for file in written_files if file is not None and file not in used_files]


def _parent_ids(session: Session, blobs: Sequence[StoredBlob]) -> dict[Digest, int]:
    """Return the ids of the parents of `blobs` by digest; raises MissingBlob if one cannot be a parent any more."""
    digests = {blob.digest: Digest(blob.parent.digest) for blob in blobs if blob.parent is not None}
    rows = blobs_by_digest(session, {*digests, *digests.values()})
    for digest, parent in digests.items():
        own, row = rows.get(digest), rows.get(parent)
        height, is_circle = 0, False
        if own is not None and row is not None:
            height = heights_of_blobs(session, [own.id])[own.id]
            is_circle = any(above.id == own.id for above in row.lineage)
        if row is None or row.parts or is_circle or row.depth + 1 + height > DEPTH_MAX:
            raise MissingBlob(
                f"the tensor {parent[:12]}, to which a tensor was stored as a difference, was removed or stored again "
                "while the ingest was suspended: run it again"
            )
    return {parent: rows[parent].id for parent in digests.values()}


def replace_stored_bytes(session: Session, before: KnownBlob, blob: StoredBlob) -> bool:
    """Point the row of a blob at other stored bytes; the caller removes the file of `before` after the commit.

    Return False, without a change, if the row points at other stored bytes than `before`, if a running ingest needs the
    blob, if its new parent is doomed or set aside, or if there would be too many references in a row.
    """
    current = _current_row(session, before)
    if current is None or current.state != "present" or current.parts or is_leased(session, current.id):
        return False
    parent = None if blob.parent is None else blobs_by_digest(session, [blob.parent.digest]).get(blob.parent.digest)
    if blob.parent is not None and (parent is None or parent.state != "present"):
        return False
    try:
        parents = _parent_ids(session, [blob])
    except MissingBlob:
        return False
    add_to_totals(session, blob_changes([blob], [current]))
    _replace(session, current.id, blob, database_now(session), parents)
    if blob.inline is not None:
        insert_missing(session, InlineBlob, [{"blob_id": current.id, "stored": blob.inline}])
    return True


def mark_repacked(session: Session, model_ids: Sequence[int], moment: datetime | None) -> None:
    """Record when a repack examined the organs of these models; None if the next one should examine them."""
    for batch in batches(sorted(model_ids)):
        session.execute(update(ModelRow).where(ModelRow.id.in_(batch)).values(repacked_at=moment))


def is_leased(session: Session, blob_id: int) -> bool:
    """Return whether a running ingest needs a blob."""
    return first(session, leased(database_now(session)).where(BlobLease.blob_id == blob_id)) is not None


def record_stacks(session: Session, ingest_id: int, stacks: Mapping[Digest, Sequence[Digest]]) -> None:
    """Write the rows of stacks, by digest with the digests of their parts in order, and lease them to the ingest.

    A row with stored bytes becomes a stack, unless it is a part of a stack, or another ingest may make it one. A later
    sweep removes its file, which running readers may still need. Raises MissingBlob if parts were swept, or became
    stacks, meanwhile.
    """
    all_parts = {part for parts in stacks.values() for part in parts}
    for batch in batches(sorted(stacks), STACKS_A_STATEMENT):
        parts = blobs_by_digest(session, {part for digest in batch for part in stacks[digest]})
        if any(part not in parts or parts[part].parts for digest in batch for part in stacks[digest]):
            raise MissingBlob("experts were swept or replaced while the ingest was suspended: run it again")
        before = blobs_by_digest(session, batch)
        used = _parts_or_leased(session, ingest_id, [row.id for row in before.values()])
        kept = {digest for digest, row in before.items() if row.id in used or digest in all_parts}
        _write_stacks(
            session,
            {digest: [parts[part] for part in stacks[digest]] for digest in batch if digest not in kept},
            before,
        )
        stack_ids = session.scalars(select(Blob.id).where(Blob.digest.in_(batch))).all()
        lease_blobs(session, ingest_id, [*stack_ids, *(row.id for row in parts.values())])


def _parts_or_leased(session: Session, ingest_id: int, blob_ids: Sequence[int]) -> set[int]:
    """Return the blobs that are parts of a stack, parents of others, or that another running ingest needs."""
    needed: Any = union_all(
        select(BlobPart.part_id).where(BlobPart.part_id.in_(blob_ids)),
        select(Blob.depends_on).where(Blob.depends_on.in_(blob_ids)),
        leased(database_now(session)).where(BlobLease.blob_id.in_(blob_ids), Ingest.id != ingest_id),
    )
    return set(session.scalars(needed))


def _write_stacks(
    session: Session, stacks: Mapping[Digest, Sequence[KnownBlob]], before: Mapping[Digest, KnownBlob]
) -> None:
    moment = database_now(session)
    blobs = [
        StoredBlob(digest, sum(part.size_bytes for part in parts), 0, STACK_CODEC, STACK_VERSION)
        for digest, parts in stacks.items()
    ]
    insert_missing(session, Blob, [_values(blob, moment) for blob in blobs if blob.digest not in before])
    for blob in blobs:
        row = before.get(blob.digest)
        if row is not None and (row.codec != STACK_CODEC or row.state != "present"):
            add_to_totals(session, blob_changes([], [row] if is_counted(row.state) else []))
            _replace(session, row.id, blob, moment)
    ids = dict(session.execute(select(Blob.digest, Blob.id).where(Blob.digest.in_(stacks))).all())
    rows = [
        {"blob_id": ids[digest], "position": position, "part_id": part.id}
        for digest, parts in stacks.items()
        for position, part in enumerate(parts)
    ]
    insert_missing(session, BlobPart, rows)


def lease_blobs(session: Session, ingest_id: int, blob_ids: Sequence[int]) -> None:
    """Protect blobs from the sweep until the ingest ends; doomed blobs become present again."""
    columns = select(Blob.size_bytes, Blob.stored_bytes, Blob.codec)
    doomed: list[Row[int, int, str]] = []
    moment = database_now(session)
    for batch in batches(sorted(set(blob_ids))):
        is_doomed = (Blob.id.in_(batch), Blob.state == "doomed")
        doomed += session.execute(columns.where(*is_doomed))
        insert_missing(session, BlobLease, [{"ingest_id": ingest_id, "blob_id": blob_id} for blob_id in batch])
        session.execute(update(Blob).where(Blob.id.in_(batch)).values(touched_at=moment))
        session.execute(update(Blob).where(*is_doomed).values(state="present"))
    add_to_totals(session, blob_changes(doomed))


def mark_corrupt(session: Session, checked: KnownBlob) -> bool:
    """Set the blob aside: its bytes are checked against its digest before each use, and an ingest stores them again.

    Return False, without a change, if the row points at other stored bytes than those that were checked.
    """
    current = _current_row(session, checked)
    if current is None:
        return False
    session.execute(update(Blob).where(Blob.id == current.id).values(state="corrupt"))
    add_to_totals(session, blob_changes([] if is_counted(current.state) else [current]))
    if not current.is_set_aside:
        _record_event(session, Action.SET_ASIDE, current)
    return True


def mark_present(session: Session, checked: BlobAddress) -> bool:
    """Undo `mark_corrupt` for a blob whose bytes were read completely and are right.

    Return False, without a change, if the row points at other stored bytes or is no longer set aside.
    """
    current = _current_row(session, checked)
    if current is None or not current.is_set_aside:
        return False
    session.execute(update(Blob).where(Blob.id == current.id).values(state="present"))
    _record_event(session, Action.TAKE_BACK, current)
    return True


def _record_event(session: Session, action: Action, row: KnownBlob) -> None:
    record_event(session, LOCAL, action, f"{row.digest}, {row.size_bytes} bytes")


def doom_blobs(session: Session, grace: timedelta) -> Sequence[Blob]:
    """Doom the blobs that nothing needs and no writer used within the grace period; return them.

    A later sweep reclaims them, unless a writer uses them before.
    """
    moment = database_now(session)
    doomed = unneeded_blobs(session, UNDOOMED, moment - grace, moment)
    for blob in doomed:
        blob.state = "doomed"
        blob.touched_at = moment
    add_to_totals(session, blob_changes([], doomed))
    return doomed


def reclaim_blob(session: Session, blob_id: int) -> str | None:
    """Delete the row of a blob that is still doomed and unneeded; return the name of its file.

    The caller removes the file after the commit. The name is empty for an inline blob. The result is None if the blob
    is in use again.
    """
    statement = unneeded(database_now(session)).where(Blob.id == blob_id, Blob.state == "doomed")
    blob = session.scalars(statement).one_or_none()
    if blob is None:
        return None
    file = blob.file or ""
    for table in (BlobLease, InlineBlob, BlobPart):
        session.execute(delete(table).where(table.blob_id == blob_id))
    session.execute(delete(Blob).where(Blob.id == blob_id))
    return file


def _current_row(session: Session, checked: BlobAddress) -> KnownBlob | None:
    """Return the current row of `checked`; None if it is deleted or points at other stored bytes."""
    current = blobs_by_digest(session, [checked.digest]).get(checked.digest)
    is_same = current is not None and (current.file, current.inline) == (checked.file, checked.inline)
    return current if is_same else None


def _values(
    blob: StoredBlob, moment: datetime, parents: Mapping[Digest, int] = MappingProxyType({})
) -> dict[str, object]:
    return {
        "digest": blob.digest,
        "size_bytes": blob.size_bytes,
        "stored_bytes": blob.stored_bytes,
        "codec": blob.codec,
        "codec_version": blob.codec_version,
        "file": blob.file,
        "state": "present",
        "depends_on": None if blob.parent is None else parents[blob.parent.digest],
        "created_at": moment,
        "touched_at": moment,
    }


def _replace(
    session: Session,
    blob_id: int,
    blob: StoredBlob,
    moment: datetime,
    parents: Mapping[Digest, int] = MappingProxyType({}),
) -> None:
    for table in (InlineBlob, BlobPart):
        session.execute(delete(table).where(table.blob_id == blob_id))
    values = _values(blob, moment, parents)
    del values["digest"], values["created_at"]
    session.execute(update(Blob).where(Blob.id == blob_id).values(values))


def organ_key(placement: PlacementRecord) -> OrganKey:
    """Return the key of the organ of `placement`."""
    return placement.digest, placement.dtype, shape_text(placement.shape)


def shape_text(shape: Sequence[int]) -> str:
    """Return the text of a shape in the tables, row length first: `192x512`."""
    return "x".join(map(str, shape))


def register_organs(
    session: Session, placements: Iterable[PlacementRecord], blobs: Mapping[Digest, KnownBlob]
) -> dict[OrganKey, int]:
    """Add the missing organs of `placements`, with measurements and fingerprints; return the ids of all."""
    firsts: dict[OrganKey, PlacementRecord] = {}
    nonfinite: dict[OrganKey, int] = {}
    for placement in placements:
        key = organ_key(placement)
        if firsts.setdefault(key, placement).measurement is None and placement.measurement is not None:
            firsts[key] = placement
        if placement.nonfinite is not None:
            nonfinite[key] = placement.nonfinite
    rows = [
        {
            "blob_id": blobs[placement.digest].id,
            "dtype": placement.dtype,
            "shape": key[2],
            "elements": prod(placement.shape),
            "nonfinite": nonfinite.get(key),
        }
        for key, placement in firsts.items()
    ]
    insert_missing(session, OrganRow, rows)
    ids = organ_ids(session, firsts)
    record_nonfinite(session, {ids[key]: count for key, count in nonfinite.items()})
    measured = [(ids[key], one.measurement) for key, one in firsts.items() if one.measurement is not None]
    insert_missing(session, MeasurementRow, [row for one in measured for row in _measurement_rows(*one)])
    fingerprints = [
        {"organ_id": organ_id, "values": reading.fingerprint}
        for organ_id, reading in measured
        if reading.fingerprint is not None
    ]
    insert_missing(session, Fingerprint, fingerprints)
    return ids


def measures_of(session: Session, ids: Collection[int]) -> dict[int, dict[str, float | None]]:
    """Return the measures of each organ, by name, from all of its methods."""
    numbers: dict[int, dict[str, float | None]] = {organ_id: {} for organ_id in ids}
    for row in scalars_among(session, select(MeasurementRow), MeasurementRow.organ_id, numbers):
        values = ((name, getattr(row, name)) for name in MEASURE_NAMES)
        numbers[row.organ_id].update((name, value) for name, value in values if value is not None)
    return numbers


def record_counts(session: Session, placements: Iterable[PlacementRecord]) -> None:
    """Write the numbers of NaN and infinite values in `placements` into the rows of their organs, where unknown."""
    counts = {organ_key(placement): placement.nonfinite for placement in placements if placement.nonfinite is not None}
    record_nonfinite(session, {organ_id: counts[key] for key, organ_id in organ_ids(session, counts).items()})


def record_nonfinite(session: Session, counts: Mapping[int, int]) -> None:
    """Write the number of NaN and infinite values of each organ, by id, where it is unknown."""
    by_count: dict[int, list[int]] = {}
    for organ_id, count in counts.items():
        by_count.setdefault(count, []).append(organ_id)
    for count, counted in sorted(by_count.items()):
        for batch in batches(sorted(counted)):
            unknown = update(OrganRow).where(OrganRow.id.in_(batch), OrganRow.nonfinite.is_(None))
            session.execute(unknown.values(nonfinite=count))


def record_measures(session: Session, measured: Mapping[int, Measured]) -> set[int]:
    """Write the measures of organs, by id, where they are missing, and copy them to the placements of these organs.

    Return the ids of the organs that got a value.

    Measures that have a value stay unchanged. An organ and its placements always have the same measures, because both
    are written in one transaction. Executes one UPDATE per table for each missing measure.
    """
    missing: dict[str, list[dict[str, object]]] = {}
    changed = set()
    for row in scalars_among(session, select(MeasurementRow), MeasurementRow.organ_id, measured):
        for measure in MEASURES.values():
            value = getattr(measured[row.organ_id], measure.name)
            if measure.method == row.method and value is not None and getattr(row, measure.name) is None:
                missing.setdefault(measure.name, []).append({"of_organ": row.organ_id, "value": value})
                changed.add(row.organ_id)
    connection = session.connection()  # a session accepts a list of parameters only for an update by primary key
    for name, values in missing.items():
        for table in (MeasurementRow, Placement, Expert):
            statement = update(table).where(table.organ_id == bindparam("of_organ"), getattr(table, name).is_(None))
            if table is MeasurementRow:
                statement = statement.where(MeasurementRow.method == MEASURES[name].method)
            connection.execute(statement.values({name: bindparam("value")}), values)
    return changed


def replace_fingerprints(session: Session, measured: Mapping[int, Measured]) -> set[int]:
    """Write the fingerprints of organs, by id, whose present one is coarse. Return the ids of these organs."""
    coarse = select(Fingerprint.organ_id).where(is_coarse())
    changed = set()
    for organ_id in list(scalars_among(session, coarse, Fingerprint.organ_id, measured)):
        if (fingerprint := measured[organ_id].fingerprint) is not None:
            session.execute(update(Fingerprint).where(Fingerprint.organ_id == organ_id).values(values=fingerprint))
            changed.add(organ_id)
    return changed


def count_nonfinite_tensors(session: Session, model_id: int | None = None) -> None:
    """Write the number of tensors with NaN or infinite values into models where it is unknown.

    Models with organs that were not counted are left out. With `model_id`, only that model is updated.
    """
    placed = select(func.count()).select_from(Placement).join(OrganRow, OrganRow.id == Placement.organ_id)
    placed = placed.where(Placement.model_id == ModelRow.id)
    uncounted = placed.where(OrganRow.nonfinite.is_(None)).scalar_subquery()
    affected = placed.where(OrganRow.nonfinite > 0).scalar_subquery()
    models = update(ModelRow).where(ModelRow.nonfinite_tensors.is_(None), uncounted == 0)
    models = models if model_id is None else models.where(ModelRow.id == model_id)
    execute_quietly(session, models.values(nonfinite_tensors=affected))


def _measurement_rows(organ_id: int, reading: Measured) -> list[dict[str, object]]:
    """Return a row for each method: the Z-measure with the moments of the sample, and the spectral reading."""
    blank: dict[str, object] = {"organ_id": organ_id, "reason": None} | dict.fromkeys(_Z_NUMBERS + _SPECTRAL_NUMBERS)
    counts = ("method", "sample_size", "nan_count", "infinite_count", "constant")
    row = blank | {name: getattr(reading, name) for name in (*counts, *_Z_NUMBERS)}
    if reading.reason is not None:
        row["reason"] = shown_text(reading.reason, 256)
    if reading.spectral_method is None:
        return [row]
    spectral = {name: getattr(reading, name) for name in _SPECTRAL_NUMBERS}
    sampled = (reading.spectral_rows or 0) * (reading.spectral_columns or 0)
    spectral |= {"method": reading.spectral_method, "sample_size": sampled}
    return [row, blank | {"nan_count": 0, "infinite_count": 0, "constant": False} | spectral]


_Z_NUMBERS = (
    *(measure.name for measure in MEASURES.values() if measure.method == THETA_METHOD),
    *("entropy", "kurtosis", "coherence", "mean", "standard_deviation", "minimum", "maximum"),
)
_SPECTRAL_NUMBERS = tuple(measure.name for measure in MEASURES.values() if measure.method == SPECTRAL_METHOD)


_COPIED = ("model_id", "type", "tower", "block", "slot", "visible", "facet_id", "dtype")
"""The columns that an expert has from the placement of its stack."""


def insert_experts(session: Session, model: ModelRow, measured: Mapping[OrganKey, Measured]) -> int:
    """Add the experts of `model` that have no rows yet, with their organs; return their number.

    `measured` has the measurements of experts that were not measured before.
    """
    without_experts = (
        select(Placement, OrganRow.shape, OrganRow.blob_id)
        .with_hint(Placement, "INDEXED BY ix_placements_model", "sqlite")
        .join(OrganRow, OrganRow.id == Placement.organ_id)
        .join(Blob, Blob.id == OrganRow.blob_id)
        .where(Placement.model_id == model.id, Blob.codec == STACK_CODEC)
        .where(~select(Expert.id).where(Expert.placement_id == Placement.id).exists())
        .order_by(Placement.position)
    )
    count = 0
    # Some stacks at a time: the largest models have tens of thousands of experts.
    for batch in batches(session.execute(without_experts).all(), 8):
        blobs = blobs_by_id(session, {blob_id for _, _, blob_id in batch})
        for placement, shape, blob_id in batch:
            count += _insert_experts_of(session, placement, shape_of(shape), blobs[blob_id].parts, measured)
    return count


def _insert_experts_of(
    session: Session,
    stack: Placement,
    shape: tuple[int, ...],
    parts: Sequence[KnownBlob],
    measured: Mapping[OrganKey, Measured],
) -> int:
    place = Place(OrganType(stack.type), Tower(stack.tower), stack.block, stack.slot)
    if not is_expert_stack(place) or len(shape) != 3 or len(parts) != shape[2]:
        return 0  # the same bytes in another shape, or at another place
    records = []
    for part in parts:
        one = PlacementRecord(
            name=stack.name,
            place=place,
            digest=part.digest,
            dtype=stack.dtype,
            shape=expert_shape(shape),
            size_bytes=part.size_bytes,
            offset_bytes=0,
            measurement=None,
        )
        reading = measured.get(organ_key(one))
        records.append(one if reading is None else replace(one, measurement=reading, nonfinite=reading.nonfinite))
    organs = register_organs(session, records, {part.digest: part for part in parts})
    numbers = measures_of(session, set(organs.values()))
    copied = {name: getattr(stack, name) for name in _COPIED}
    rows = []
    for expert, record in enumerate(records):
        organ_id = organs[organ_key(record)]
        row = {"placement_id": stack.id, "expert": expert, "organ_id": organ_id, "size_bytes": record.size_bytes}
        rows.append(row | copied | dict.fromkeys(MEASURE_NAMES) | numbers[organ_id])
    insert_missing(session, Expert, rows)
    return len(rows)
