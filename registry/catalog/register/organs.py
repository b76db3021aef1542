"""Organs with their measurements and fingerprints. An organ that is known already is left as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import BlobRow, blobs_by_digest
from organs.registry.catalog.records import OrganKey, PlacementRecord
from organs.registry.catalog.tables import Fingerprint, Measurement, Model, Organ, Placement
from organs.registry.catalog.upsert import batches, insert_missing
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.digest import Digest
from organs.registry.measure import Measurement as Measured
from organs.registry.measures import MEASURES, SPECTRAL_METHOD, THETA_METHOD


def organ_key(placement: PlacementRecord) -> OrganKey:
    """The key of the organ that `placement` places."""
    return placement.digest, placement.dtype, shape_text(placement.shape)


def shape_text(shape: Sequence[int]) -> str:
    """A shape as the tables hold it, row length first: `192x512`."""
    return "x".join(map(str, shape))


def register_organs(
    session: Session, placements: Iterable[PlacementRecord], blobs: Mapping[Digest, BlobRow]
) -> dict[OrganKey, int]:
    """Make sure that every placement's organ has a row, its measurements and its fingerprint; their ids."""
    firsts: dict[OrganKey, PlacementRecord] = {}
    nonfinite: dict[OrganKey, int] = {}
    for placement in placements:
        held = firsts.setdefault(organ_key(placement), placement)
        if held.measurement is None and placement.measurement is not None:
            firsts[organ_key(placement)] = placement
        if placement.nonfinite is not None:
            nonfinite[organ_key(placement)] = placement.nonfinite
    rows = [
        {
            "blob_id": blobs[Digest(digest)].id,
            "dtype": dtype,
            "shape": shape,
            "elements": _elements(firsts[key].shape),
            "nonfinite": nonfinite.get(key),
        }
        for key in firsts
        for digest, dtype, shape in [key]
    ]
    rows.sort(key=itemgetter("blob_id"))  # in one order for everybody: two who bring the same never wait in a ring
    insert_missing(session, Organ, rows)
    ids = _ids(session, firsts, blobs)
    record_nonfinite(session, {ids[key]: count for key, count in nonfinite.items()})
    measured = [(ids[key], first.measurement) for key, first in firsts.items() if first.measurement is not None]
    readings = [row for organ_id, reading in measured for row in _measurement_rows(organ_id, reading)]
    insert_missing(session, Measurement, readings)
    prints = [
        {"organ_id": organ_id, "values": reading.fingerprint}
        for organ_id, reading in measured
        if reading.fingerprint is not None
    ]
    insert_missing(session, Fingerprint, prints)
    return ids


def record_counts(session: Session, placements: Iterable[PlacementRecord]) -> None:
    """Write how many values of organs that are registered are NaN or infinite, as `placements` say."""
    counts = {organ_key(one): one.nonfinite for one in placements if one.nonfinite is not None}
    blobs = blobs_by_digest(session, [digest for digest, _, _ in counts])
    ids = _ids(session, [key for key in counts if key[0] in blobs], blobs)
    record_nonfinite(session, {ids[key]: count for key, count in counts.items() if key in ids})


def record_nonfinite(session: Session, counts: Mapping[int, int]) -> None:
    """Write how many values of each organ, by id, are NaN or infinite, where that is not known yet."""
    by_count: dict[int, list[int]] = {}
    for organ_id, count in counts.items():
        by_count.setdefault(count, []).append(organ_id)
    for count, organ_ids in sorted(by_count.items()):
        for batch in batches(sorted(organ_ids)):
            unknown = update(Organ).where(Organ.id.in_(batch), Organ.nonfinite.is_(None))
            session.execute(unknown.values(nonfinite=count))


def record_measures(session: Session, measured: Mapping[int, Measured]) -> None:
    """Write measures of organs, by id, that are registered without them; also where their placements copy them."""
    for organ_id, reading in sorted(measured.items()):
        for one in MEASURES.values():
            value = getattr(reading, one.name)
            if value is None:
                continue
            mine = Measurement.organ_id == organ_id, Measurement.method == one.method
            missing = update(Measurement).where(*mine, getattr(Measurement, one.name).is_(None))
            session.execute(missing.values({one.name: value}))
            copies = update(Placement).where(Placement.organ_id == organ_id, getattr(Placement, one.name).is_(None))
            session.execute(copies.values({one.name: value}), execution_options={"synchronize_session": False})


def count_nonfinite_tensors(session: Session, model_id: int | None = None) -> None:
    """Write how many tensors have such values into the models of which that was unknown and all organs are counted.

    With `model_id`, only into that model.
    """
    placed = select(func.count()).select_from(Placement).join(Organ, Organ.id == Placement.organ_id)
    placed = placed.where(Placement.model_id == Model.id)
    uncounted = placed.where(Organ.nonfinite.is_(None)).scalar_subquery()
    odd = placed.where(Organ.nonfinite > 0).scalar_subquery()
    models = update(Model).where(Model.nonfinite_tensors.is_(None), uncounted == 0)
    models = models if model_id is None else models.where(Model.id == model_id)
    session.execute(models.values(nonfinite_tensors=odd), execution_options={"synchronize_session": False})


def _elements(shape: Sequence[int]) -> int:
    elements = 1
    for length in shape:
        elements *= length
    return elements


def _ids(session: Session, keys: Iterable[OrganKey], blobs: Mapping[Digest, BlobRow]) -> dict[OrganKey, int]:
    wanted = {blobs[Digest(digest)].id: digest for digest, _, _ in keys}
    ids: dict[OrganKey, int] = {}
    for batch in batches(sorted(wanted)):
        for organ in session.execute(
            select(Organ.id, Organ.blob_id, Organ.dtype, Organ.shape).where(Organ.blob_id.in_(batch))
        ):
            ids[wanted[organ.blob_id], organ.dtype, organ.shape] = organ.id
    return ids


def _measurement_rows(organ_id: int, reading: Measured) -> list[dict[str, object]]:
    """One row a method: the Z-measure with the sample's moments, and the spectral reading where there is one."""
    blank: dict[str, object] = dict.fromkeys(_NUMBERS)
    rows = [
        blank
        | {
            "organ_id": organ_id,
            "method": reading.method,
            "sample_size": reading.sample_size,
            "nan_count": reading.nan_count,
            "infinite_count": reading.infinite_count,
            "constant": reading.constant,
            "reason": None if reading.reason is None else shown_text(reading.reason, 256),
        }
        | {name: getattr(reading, name) for name in _Z_NUMBERS}
    ]
    if reading.spectral_method is not None:
        sampled = (reading.spectral_rows or 0) * (reading.spectral_columns or 0)
        rows.append(
            blank
            | {
                "organ_id": organ_id,
                "method": reading.spectral_method,
                "sample_size": sampled,
                "nan_count": 0,
                "infinite_count": 0,
                "constant": False,
                "reason": None,
            }
            | {name: getattr(reading, name) for name in _SPECTRAL_NUMBERS}
        )
    return rows


_Z_NUMBERS = (
    *(one.name for one in MEASURES.values() if one.method == THETA_METHOD),
    *("entropy", "kurtosis", "coherence", "mean", "standard_deviation", "minimum", "maximum"),
)
_SPECTRAL_NUMBERS = tuple(one.name for one in MEASURES.values() if one.method == SPECTRAL_METHOD)
_NUMBERS = (*_Z_NUMBERS, *_SPECTRAL_NUMBERS)
