"""A model with all that belongs to it, in one transaction: the only point at which an ingest becomes visible."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import fmean

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import now
from organs.registry.catalog.queries.blobs import BlobRow, blobs_by_digest
from organs.registry.catalog.queries.models import check_model_name, quarantined_model, visible_model_with_digest
from organs.registry.catalog.queries.shared_organs import count_unseen
from organs.registry.catalog.records import FileRecord, ModelRecord, OrganKey, PlacementRecord
from organs.registry.catalog.register.events import contributor_id, record_event
from organs.registry.catalog.register.facets import FacetKey, add_to_totals, bounded_keys, count_placements, facet_ids
from organs.registry.catalog.register.organs import count_nonfinite_tensors, organ_key, record_counts, register_organs
from organs.registry.catalog.tables import (
    DailyDownloads,
    FilePart,
    Lineage,
    Measurement,
    Model,
    ModelFile,
    ModelMetadata,
    ModelWord,
    Organ,
    Placement,
)
from organs.registry.catalog.upsert import batches, insert_missing, insert_or_add
from organs.registry.catalog.vocabulary import Action, checked_text, different_words, shown_text
from organs.registry.digest import Digest
from organs.registry.errors import MissingBlob
from organs.registry.measures import MEASURE_NAMES


@dataclass(frozen=True, slots=True)
class Registered:
    """The model's row, and whether it is new."""

    model: Model
    created: bool


def register_model(session: Session, record: ModelRecord, *, keep_name: bool) -> Registered:
    """Write `record` with its organs, placements, files, lineage, facets and event; its blobs must have rows.

    The same bytes under the same name are not registered twice; with `keep_name` false, nor under another name. A
    name that stands for other bytes gets the next version.
    """
    same = registered_already(session, record, keep_name)
    if same is not None:
        if same.nonfinite_tensors is None:
            record_counts(session, record.placements)
            count_nonfinite_tensors(session, same.id)
        return Registered(same, created=False)
    wanted = _digests(record)
    blobs = blobs_by_digest(session, wanted)
    if swept := wanted - blobs.keys():
        raise MissingBlob(f"{len(swept)} blobs were swept while the ingest slept; run it again")
    organs = register_organs(session, record.placements, blobs)
    unseen = count_unseen(session, list(organs.values()))
    measured = _measured(session, organs)
    model = _insert_model(session, record, measured, organs)
    keys = bounded_keys(_facet_key(model, placement) for placement in record.placements)
    ids = facet_ids(session, keys)
    facets = [ids[key] for key in keys]
    placements: list[Placement] = []
    for position, file in enumerate(record.files):
        placements += _insert_file(session, model, position, file, blobs, organs, measured, facets, len(placements))
    _insert_metadata(session, model, record)
    _insert_parents(session, model, record)
    insert_words(session, model, record.tags)
    if model.state == "visible":
        count_placements(session, placements)
        add_to_totals(session, {"models": 1, "placements": len(placements), "organs": unseen})
    action = Action.SUBMIT if model.state == "quarantined" else record.action
    record_event(session, record.contributor, action, model.full_name, model_id=model.id)
    session.flush()
    return Registered(model, created=True)


def registered_already(session: Session, record: ModelRecord, keep_name: bool) -> Model | None:
    """Return the model that `register_model` would return instead of registering a new one, or None."""
    same = visible_model_with_digest(session, record.digest, record.name if keep_name else None)
    if same is None and record.state == "quarantined":
        same = quarantined_model(session, record.digest, record.name, record.contributor)
    return same


def insert_words(session: Session, model: Model, tags: Sequence[str]) -> None:
    """Write the words that `model`, with these tags, is found by."""
    words = different_words([model.namespace, model.name, model.title, *tags, model.description])
    insert_missing(session, ModelWord, [{"word": word, "model_id": model.id} for word in words])


def _digests(record: ModelRecord) -> set[Digest]:
    parts = {part.digest for file in record.files for part in file.parts}
    return parts | {placement.digest for placement in record.placements}


def _measured(session: Session, organs: Mapping[OrganKey, int]) -> dict[int, dict[str, float | None]]:
    """The rankable numbers of each organ, from whichever of its methods gives them."""
    numbers: dict[int, dict[str, float | None]] = {organ_id: {} for organ_id in organs.values()}
    for batch in batches(sorted(numbers)):
        for row in session.scalars(select(Measurement).where(Measurement.organ_id.in_(batch))):
            own = numbers[row.organ_id]
            for name in MEASURE_NAMES:
                value = getattr(row, name)
                if value is not None:
                    own[name] = value
    return numbers


def _insert_model(
    session: Session,
    record: ModelRecord,
    measured: Mapping[int, Mapping[str, float | None]],
    organs: Mapping[OrganKey, int],
) -> Model:
    name = record.name
    newest = session.scalar(
        select(func.max(Model.version)).where(Model.namespace == name.namespace, Model.name == name.name)
    )
    check_model_name(session, name)
    thetas = _values(record, measured, organs, "theta")
    signals = _values(record, measured, organs, "signal")
    model = Model(
        namespace=checked_text(name.namespace, "the namespace", 96),
        name=checked_text(name.name, "the name", 96),
        version=(newest or 0) + 1,
        digest=record.digest,
        state=record.state,
        kind=record.kind,
        complete=record.complete,
        contributor_id=contributor_id(session, record.contributor),
        architecture=_shown(record.architecture, 96),
        title=_shown(record.title),
        description=_shown(record.description),
        license=_shown(record.license, 96),
        size_label=_shown(record.size_label, 96),
        tags=json.dumps([shown_text(tag, 96) for tag in record.tags]),
        parameters=sum(prod(placement.shape) for placement in record.placements),
        tensors=len(record.placements),
        size_bytes=sum(file.size_bytes for file in record.files),
        mean_theta=fmean(thetas) if thetas else None,
        mean_signal=fmean(signals) if signals else None,
        flags=json.dumps([shown_text(flag) for flag in record.flags]),
        unassemblable=json.dumps([shown_text(reason) for reason in record.unassemblable]),
        nonfinite_tensors=_nonfinite_tensors(session, record, organs),
        created_at=now(),
    )
    session.add(model)
    session.flush()
    return model


def _nonfinite_tensors(session: Session, record: ModelRecord, organs: Mapping[OrganKey, int]) -> int | None:
    """How many tensors have values that are NaN or infinite; None where those of some were not counted."""
    counts: dict[int, int | None] = {}
    for batch in batches(sorted(set(organs.values()))):
        rows = session.execute(select(Organ.id, Organ.nonfinite).where(Organ.id.in_(batch)))
        counts.update({organ_id: count for organ_id, count in rows})  # noqa: C416  # rows are no plain tuples
    found = [counts[organs[organ_key(placement)]] for placement in record.placements]
    return None if None in found else sum(count != 0 for count in found)


def _values(
    record: ModelRecord,
    measured: Mapping[int, Mapping[str, float | None]],
    organs: Mapping[OrganKey, int],
    number: str,
) -> list[float]:
    found = (measured[organs[organ_key(placement)]].get(number) for placement in record.placements)
    return [value for value in found if value is not None]


def _insert_file(
    session: Session,
    model: Model,
    position: int,
    file: FileRecord,
    blobs: Mapping[Digest, BlobRow],
    organs: Mapping[OrganKey, int],
    measured: Mapping[int, Mapping[str, float | None]],
    facets: Sequence[int],
    first: int,
) -> list[Placement]:
    row = ModelFile(
        model_id=model.id,
        position=position,
        name=shown_text(file.name, 255),
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        header_sha256=file.header_sha256,
        header_bytes=file.header_bytes,
    )
    session.add(row)
    session.flush()
    session.add_all(
        FilePart(
            file_id=row.id,
            offset_bytes=part.offset_bytes,
            size_bytes=part.size_bytes,
            blob_id=blobs[part.digest].id,
            blob_offset_bytes=part.blob_offset_bytes,
        )
        for part in file.parts
    )
    placements = []
    for order, placement in enumerate(file.placements, first):
        organ_id = organs[organ_key(placement)]
        placements.append(_placement(model, row, order, placement, organ_id, facets[order], measured[organ_id]))
    session.add_all(placements)
    session.flush()
    return placements


def _placement(
    model: Model,
    file: ModelFile,
    order: int,
    record: PlacementRecord,
    organ_id: int,
    facet_id: int,
    numbers: Mapping[str, float | None],
) -> Placement:
    return Placement(
        model_id=model.id,
        position=order,
        file_id=file.id,
        offset_bytes=record.offset_bytes,
        name=record.name,
        type=record.place.type.value,
        tower=record.place.tower.value,
        block=record.place.block,
        slot=record.place.slot,
        organ_id=organ_id,
        facet_id=facet_id,
        visible=model.state == "visible",
        dtype=record.dtype,
        size_bytes=record.size_bytes,
        **numbers,
    )


def _facet_key(model: Model, record: PlacementRecord) -> FacetKey:
    place = record.place
    named = (model.architecture or "", model.license or "")
    return FacetKey(place.type.value, place.tower.value, place.slot, record.dtype, *named)


def _insert_metadata(session: Session, model: Model, record: ModelRecord) -> None:
    rows = [
        {
            "model_id": model.id,
            "position": position,
            "key": shown_text(key),
            "type": kind,
            "value": shown_text(value),
        }
        for position, (key, kind, value) in enumerate(record.metadata)
    ]
    if rows:
        session.execute(insert(ModelMetadata), rows)


def _insert_parents(session: Session, model: Model, record: ModelRecord) -> None:
    for parent in record.parents:
        made_from = None if parent.digest is None else visible_model_with_digest(session, parent.digest, None)
        if parent.digest is not None and made_from is None:
            continue
        session.add(
            Lineage(
                child_model_id=model.id,
                parent_model_id=None if made_from is None else made_from.id,
                parent_text=shown_text(parent.text),
                relation=parent.relation,
                evidence="declared" if made_from is None else "recorded",
                created_at=model.created_at,
            )
        )
    # That each organ came out of this model is the placement itself; the first model that brought it is recorded once.
    fresh = (
        select(Placement.organ_id)
        .join(Organ, Organ.id == Placement.organ_id)
        .where(Placement.model_id == model.id)
        .where(~select(Lineage.id).where(Lineage.child_organ_id == Placement.organ_id).exists())
        .distinct()
    )
    rows = [
        {
            "child_organ_id": organ_id,
            "parent_model_id": model.id,
            "relation": "dissected",
            "evidence": "recorded",
            "created_at": model.created_at,
        }
        for organ_id in session.scalars(fresh)
    ]
    if rows:
        session.execute(insert(Lineage), rows)


def _shown(text: str | None, limit: int = 4096) -> str | None:
    return None if text is None else shown_text(text, limit)


def add_downloads(session: Session, counted: Mapping[tuple[int, str], int]) -> None:
    """Add what was `counted`, by a model's id and a day (YYYY-MM-DD, UTC), to the days and to the models' sums."""
    sums: Counter[int] = Counter()
    for (model_id, _), downloads in counted.items():
        sums[model_id] += downloads
    known: set[int] = set()
    for batch in batches(sorted(sums)):
        known.update(session.scalars(select(Model.id).where(Model.id.in_(batch))))
    rows = [
        {"model_id": model_id, "day": day, "downloads": downloads}
        for (model_id, day), downloads in sorted(counted.items())
        if model_id in known
    ]
    insert_or_add(session, DailyDownloads, ["model_id", "day"], "downloads", rows)
    for model_id in sorted(known):
        added = Model.downloads + sums[model_id]
        session.execute(update(Model).where(Model.id == model_id).values(downloads=added))
