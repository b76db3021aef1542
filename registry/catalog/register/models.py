"""Models: register one with all of its rows in one transaction; show, hide, edit or remove it.

The bytes of a registered model never change.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import fmean
from typing import Any

from sqlalchemy import Delete, Update, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import (
    batches,
    insert_missing,
    insert_or_add,
)
from organs.registry.catalog.queries.events import was_done, was_public
from organs.registry.catalog.queries.models import (
    check_model_name,
    find_model,
    free_names,
    incomplete_model,
    incompleteness,
    model_of_other_name,
    next_version,
    quarantined_model,
    runtime_texts,
    visible_model_with_digest,
)
from organs.registry.catalog.queries.organs import (
    BlobRow,
    blobs_by_digest,
    count_unseen,
    experts_placed_by,
    organs_placed_by,
    organs_without_place,
)
from organs.registry.catalog.queries.relatives import first_dependants, parents_of
from organs.registry.catalog.records import (
    Edits,
    FileRecord,
    ModelRecord,
    OrganKey,
    PlacementRecord,
)
from organs.registry.catalog.register.chimeras import count_grafts
from organs.registry.catalog.register.events import contributor_id, record_event
from organs.registry.catalog.register.facets import FacetKey, add_to_totals, bounded_keys, count_placements, facet_ids
from organs.registry.catalog.register.organs import (
    count_nonfinite_tensors,
    insert_experts,
    mark_repacked,
    measures_of,
    organ_key,
    record_counts,
    register_organs,
)
from organs.registry.catalog.tables import (
    Blob,
    Chimera,
    Computation,
    DailyDownloads,
    Expert,
    Facet,
    FilePart,
    Fingerprint,
    Gain,
    GainOrgan,
    KnownFile,
    Lineage,
    Measurement,
    Model,
    ModelFile,
    ModelMetadata,
    ModelTag,
    ModelWord,
    Organ,
    OtherName,
    Placement,
    RuntimeText,
    Verdict,
    now,
)
from organs.registry.catalog.vocabulary import (
    RUNTIME_TEXT_MAX,
    RUNTIME_TEXTS_MAX,
    Action,
    checked_text,
    folded_tag,
    shown_text,
    unique_words,
)
from organs.registry.digest import Digest, model_digest
from organs.registry.entities import model as entities
from organs.registry.entities.published import (
    BASE_MAX,
    DESCRIPTION_MAX,
    LICENSE_MAX,
    REASON_MAX,
    TAG_MAX,
    TAGS_MAX,
    TITLE_MAX,
)
from organs.registry.errors import BadName, BadValue, Conflict, MissingBlob
from organs.registry.gguf.file_types import FILE_TYPE_KEY, parse_file_type, quantisation
from organs.registry.names import LOCAL, ModelName, parse_model_name


@dataclass(frozen=True, slots=True)
class Registered:
    """The row of a model, and whether it is new."""

    model: Model
    created: bool


def register_model(session: Session, record: ModelRecord, *, keep_name: bool) -> Registered:
    """Write `record` with its organs, placements, files, lineage, facets and event; its blobs must have rows.

    The same bytes are registered only once under one name; without `keep_name`, also only once under all names. If the
    name already has other bytes, the model becomes its next version. Raises MissingBlob if blobs were swept meanwhile,
    and BadValue for a name that cannot be stored.
    """
    _check_text_of(record.name)
    existing = existing_model(session, record, keep_name)
    if existing is not None:
        _read_quantisation(existing, record)
        if existing.nonfinite_tensors is None:
            record_counts(session, record.placements)
            count_nonfinite_tensors(session, existing.id)
        insert_experts(session, existing, record.experts)  # none if an older version registered the model
        return Registered(existing, created=False)
    blobs = _blobs_of(session, record)
    organs = register_organs(session, record.placements, blobs)
    new_organs = count_unseen(session, list(organs.values()))
    measured = measures_of(session, set(organs.values()))
    model = _insert_model(session, record, measured, organs)
    facets = _facets_of(session, model, record.placements)
    placements: list[Placement] = []
    for position, file in enumerate(record.files):
        placements += _insert_file(session, model, position, file, blobs, organs, measured, facets, len(placements))
    insert_experts(session, model, record.experts)
    _insert_metadata(session, model, record)
    _insert_parents(session, model, record)
    insert_words(session, model, record.tags)
    if model.state == "visible":
        count_placements(session, placements)
        add_to_totals(session, {"models": 1, "placements": len(placements), "organs": new_organs})
    action = Action.SUBMIT if model.state == "quarantined" else record.action
    record_event(session, record.contributor, action, model.full_name, model_id=model.id)
    session.flush()
    return Registered(model, created=True)


SHARD_POSITIONS = 1 << 17
"""The step between the positions of the first placements of two shards of an incomplete model. It is twice the limit of
tensors of a model, so that positions of different files are different before, during and after `complete_model`."""


def add_shard(session: Session, record: ModelRecord, number: int, shards: int) -> Model:
    """Write the single file of `record`, with its organs and placements, as shard `number`, from 0, of `shards`.

    Return the incomplete model of that name, which the first shard creates. Its blobs must have rows. The model is
    hidden until `complete_model`. Raises MissingBlob as `register_model` does.
    """
    blobs = _blobs_of(session, record)
    organs = register_organs(session, record.placements, blobs)
    measured = measures_of(session, set(organs.values()))
    model = incomplete_model(session, record.name)
    if model is None:
        model = _insert_model(session, replace(record, state="incomplete"), measured, organs)
        model.shards = shards
    first = number * SHARD_POSITIONS
    facets = dict(enumerate(_facets_of(session, model, record.placements), first))
    _insert_file(session, model, number, record.files[0], blobs, organs, measured, facets, first)
    insert_experts(session, model, record.experts)
    _sum_up(session, model)
    session.flush()
    return model


def complete_model(session: Session, model: Model, record: ModelRecord) -> None:
    """Make an incomplete model visible, all shards of which are stored; `record` has its metadata, and no files.

    Afterwards its rows are those of a model whose files were registered together.
    """
    model.kind, model.complete = record.kind, record.complete
    model.architecture = _storable(record.architecture, 96)
    model.license = _storable(record.license, 96)
    model.title, model.description = _storable(record.title), _storable(record.description)
    model.size_label = _storable(record.size_label, 96)
    model.tags = json.dumps([shown_text(tag, 96) for tag in record.tags])
    model.flags = json.dumps([shown_text(flag) for flag in record.flags])
    model.unassemblable = json.dumps([shown_text(reason) for reason in record.unassemblable])
    model.created_at, model.shards, model.nonfinite_tensors = now(), None, None
    _number_placements(session, model)
    _move_facets(session, model, architecture=model.architecture or "", license=model.license or "")
    _sum_up(session, model)
    session.flush()
    count_nonfinite_tensors(session, model.id)
    session.refresh(model)
    _insert_metadata(session, model, record)
    _insert_parents(session, model, record)
    insert_words(session, model, record.tags)
    session.flush()
    _add_to_counts(session, model, 1)
    model.state = "visible"
    _read_quantisation(model, record, _stored_matrices(session, model))
    record_event(session, record.contributor, record.action, model.full_name, model_id=model.id)
    session.flush()


def _number_placements(session: Session, model: Model) -> None:
    """Number the placements of all files of a model without gaps."""
    counted = select(Placement.file_id, func.count()).where(Placement.model_id == model.id).group_by(Placement.file_id)
    counts = dict(session.execute(counted).all())
    first = 0
    for file in session.scalars(select(ModelFile).where(ModelFile.model_id == model.id).order_by(ModelFile.position)):
        moved = Placement.position - (file.position * SHARD_POSITIONS - first)
        _execute(session, update(Placement).where(Placement.file_id == file.id).values(position=moved))
        first += counts.get(file.id, 0)


def _check_text_of(name: ModelName) -> None:
    """Raise BadValue if a database cannot store the name, or cannot even compare it."""
    checked_text(name.namespace, "the namespace", 96)
    checked_text(name.name, "the name", 96)


def _stored_matrices(session: Session, model: Model) -> list[tuple[str, int]]:
    """Return the bytes of the matrices that a model has now, by dtype."""
    sizes = select(Organ.dtype, func.sum(Blob.size_bytes)).join(Placement, Placement.organ_id == Organ.id)
    own = sizes.join(Blob, Blob.id == Organ.blob_id).where(Placement.model_id == model.id, Organ.shape.contains("x"))
    return [(dtype, int(size_bytes)) for dtype, size_bytes in session.execute(own.group_by(Organ.dtype))]


def _sum_up(session: Session, model: Model) -> None:
    """Write the sums and means over the files and placements that a model has now, and the digest of its files."""
    files = select(ModelFile.sha256, ModelFile.size_bytes).where(ModelFile.model_id == model.id)
    rows = session.execute(files.order_by(ModelFile.position)).all()
    model.digest = model_digest([Digest(row.sha256) for row in rows])
    model.size_bytes = sum(row.size_bytes for row in rows)
    places = (
        select(Placement.theta, Placement.signal, Organ.elements)
        .join(Organ, Organ.id == Placement.organ_id)
        .where(Placement.model_id == model.id)
        .order_by(Placement.position)
    )
    placed = session.execute(places).all()
    model.tensors, model.parameters = len(placed), sum(row.elements for row in placed)
    thetas = [row.theta for row in placed if row.theta is not None]
    signals = [row.signal for row in placed if row.signal is not None]
    model.mean_theta = fmean(thetas) if thetas else None
    model.mean_signal = fmean(signals) if signals else None


def _blobs_of(session: Session, record: ModelRecord) -> dict[Digest, BlobRow]:
    digests = _digests(record)
    blobs = blobs_by_digest(session, digests)
    if swept := digests - blobs.keys():
        raise MissingBlob(f"{len(swept)} blobs were swept while the ingest was suspended: run it again")
    return blobs


def _facets_of(session: Session, model: Model, placements: Iterable[PlacementRecord]) -> list[int]:
    """Return the id of the facet of each of `placements`."""
    keys = bounded_keys(_facet_key(model, placement) for placement in placements)
    ids = facet_ids(session, keys)
    return [ids[key] for key in keys]


def existing_model(session: Session, record: ModelRecord, keep_name: bool) -> Model | None:
    """Return the model that `register_model` would return instead of registering a new one, or None."""
    existing = visible_model_with_digest(session, record.digest, record.name if keep_name else None)
    if existing is None and record.contributor == LOCAL:
        other = model_of_other_name(session, record.name)
        existing = other if other is not None and (other.digest, other.state) == (record.digest, "visible") else None
    if existing is None and record.state == "quarantined":
        existing = quarantined_model(session, record.digest, record.name, record.contributor)
    return existing


INDEXED_TAGS_MAX = 100
"""The most tags of one model that `tag:` finds. A header may state thousands."""


def insert_words(session: Session, model: Model, tags: Sequence[str]) -> None:
    """Write the words and the tags by which searches find `model`, also those of its other names."""
    others = select(OtherName.namespace, OtherName.name).where(OtherName.model_id == model.id)
    names = [part for row in session.execute(others) for part in row]
    words = unique_words([model.namespace, model.name, model.title, *tags, model.description, *names])
    insert_missing(session, ModelWord, [{"word": word, "model_id": model.id} for word in words])
    folded = list(dict.fromkeys(filter(None, map(folded_tag, tags))))
    insert_missing(session, ModelTag, [{"tag": name, "model_id": model.id} for name in folded[:INDEXED_TAGS_MAX]])


def _digests(record: ModelRecord) -> set[Digest]:
    parts = {part.digest for file in record.files for part in file.parts}
    return parts | {placement.digest for placement in record.placements}


def _insert_model(
    session: Session,
    record: ModelRecord,
    measured: Mapping[int, Mapping[str, float | None]],
    organs: Mapping[OrganKey, int],
) -> Model:
    name = record.name
    check_model_name(session, name)
    thetas = _values(record, measured, organs, "theta")
    signals = _values(record, measured, organs, "signal")
    model = Model(
        namespace=name.namespace,
        name=name.name,
        version=next_version(session, name),
        digest=record.digest,
        state=record.state,
        kind=record.kind,
        complete=record.complete,
        contributor_id=contributor_id(session, record.contributor),
        architecture=_storable(record.architecture, 96),
        title=_storable(record.title),
        description=_storable(record.description),
        license=_storable(record.license, 96),
        size_label=_storable(record.size_label, 96),
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
    _read_quantisation(model, record)
    session.add(model)
    session.flush()
    return model


def _read_quantisation(model: Model, record: ModelRecord, matrices: Iterable[tuple[str, int]] | None = None) -> None:
    """Read the quantisation of a complete model whose name has none from its header and its `matrices`."""
    if model.quantisation is not None or model.kind != "model" or model.state == "incomplete":
        return
    if matrices is None:
        matrices = ((one.dtype, one.size_bytes) for one in record.placements if len(one.shape) > 1)
    stated = next((value for key, _, value in record.metadata if key == FILE_TYPE_KEY), "")
    model.quantisation = quantisation(parse_file_type(stated), matrices)


def _nonfinite_tensors(session: Session, record: ModelRecord, organs: Mapping[OrganKey, int]) -> int | None:
    """Return the number of tensors with NaN or infinite values; None if they were not counted in some tensor."""
    counts: dict[int, int | None] = {}
    for batch in batches(sorted(set(organs.values()))):
        rows = session.execute(select(Organ.id, Organ.nonfinite).where(Organ.id.in_(batch)))
        counts.update({organ_id: count for organ_id, count in rows})  # noqa: C416  # rows are not plain tuples
    placed = [counts[organs[organ_key(placement)]] for placement in record.placements]
    return None if None in placed else sum(count != 0 for count in placed)


def _values(
    record: ModelRecord,
    measured: Mapping[int, Mapping[str, float | None]],
    organs: Mapping[OrganKey, int],
    measure: str,
) -> list[float]:
    values = (measured[organs[organ_key(placement)]].get(measure) for placement in record.placements)
    return [value for value in values if value is not None]


def _insert_file(
    session: Session,
    model: Model,
    position: int,
    file: FileRecord,
    blobs: Mapping[Digest, BlobRow],
    organs: Mapping[OrganKey, int],
    measured: Mapping[int, Mapping[str, float | None]],
    facets: Sequence[int] | Mapping[int, int],
    first_position: int,
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
    for order, placement in enumerate(file.placements, first_position):
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
    place, architecture, license = record.place, model.architecture or "", model.license or ""
    return FacetKey(place.type.value, place.tower.value, place.slot, record.dtype, architecture, license)


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
        parent_model = None if parent.digest is None else visible_model_with_digest(session, parent.digest, None)
        if parent.digest is not None and parent_model is None:
            continue
        session.add(
            Lineage(
                child_model_id=model.id,
                parent_model_id=None if parent_model is None else parent_model.id,
                parent_text=shown_text(parent.text),
                relation=parent.relation,
                evidence="declared" if parent_model is None else "recorded",
                created_at=model.created_at,
            )
        )
    # The placement already says that the organ is in this model. The lineage only names the first model that had it.
    new_organ_ids = (
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
        for organ_id in session.scalars(new_organ_ids)
    ]
    if rows:
        session.execute(insert(Lineage), rows)


def _storable(text: str | None, limit: int = 4096) -> str | None:
    return None if text is None else shown_text(text, limit)


def add_downloads(session: Session, counted: Mapping[tuple[int, str], int]) -> None:
    """Add downloads, by model id and day (YYYY-MM-DD, UTC), to the daily counts and to the sums of the models."""
    sums: Counter[int] = Counter()
    for (model_id, _), downloads in counted.items():
        sums[model_id] += downloads
    existing: set[int] = set()
    for batch in batches(sorted(sums)):
        existing.update(session.scalars(select(Model.id).where(Model.id.in_(batch))))
    rows = [
        {"model_id": model_id, "day": day, "downloads": downloads}
        for (model_id, day), downloads in sorted(counted.items())
        if model_id in existing
    ]
    insert_or_add(session, DailyDownloads, ["model_id", "day"], "downloads", rows)
    for model_id in sorted(existing):
        added = Model.downloads + sums[model_id]
        session.execute(update(Model).where(Model.id == model_id).values(downloads=added))


@dataclass(frozen=True, slots=True)
class MeasuredEdge:
    """The measured likeness of two models. The parent is the model registered first, not necessarily the ancestor."""

    child_id: int
    parent_id: int
    relation: str
    score: float
    """The mean correlation, -1 to 1."""
    compared: int
    """The number of matrices in the mean."""
    change: float | None = None
    """The mean change of these matrices; None if it is not known."""


def record_measured(session: Session, edges: Iterable[MeasuredEdge]) -> None:
    """Write measured edges."""
    rows = [
        {
            "child_model_id": edge.child_id,
            "parent_model_id": edge.parent_id,
            "relation": edge.relation,
            "evidence": "measured",
            "score": edge.score,
            "compared": edge.compared,
            "change": edge.change,
            "created_at": now(),
        }
        for edge in edges
    ]
    if rows:
        session.execute(insert(Lineage), rows)


def replace_measured(session: Session, edges: Mapping[int, MeasuredEdge]) -> None:
    """Write measured edges again, by the ids of their rows; those of removed models are gone."""
    for row_id, edge in edges.items():
        values = {"relation": edge.relation, "score": edge.score, "compared": edge.compared, "change": edge.change}
        session.execute(update(Lineage).where(Lineage.id == row_id).values(values))


def record_matched(session: Session, shares: Mapping[int, float]) -> None:
    """Write the shares of equal blocks into measured edges, by the ids of their rows."""
    for row_id, share in shares.items():
        session.execute(update(Lineage).where(Lineage.id == row_id).values(matched=share))


def resolve_declared_edge(session: Session, edge: Lineage, parent_id: int | None) -> None:
    """Set the parent model of a declared edge; None if its text names no model of this registry."""
    assert edge.evidence == "declared"
    edge.parent_model_id = parent_id
    session.flush()


_ACTIONS = {"quarantined": Action.QUARANTINE, "yanked": Action.YANK}


def show_model(session: Session, model: Model, by: str) -> None:
    """Make a quarantined or yanked model visible; a visible model stays unchanged. `by` is a contributor's name.

    To publish a model, use `ingest.service`, which also searches for its relatives. Raises Conflict for a removed
    model, Incomplete.
    """
    session.refresh(model, with_for_update=True)
    _check_changeable(session, model)
    if model.state == "visible":
        return
    action = Action.RESTORE if model.state == "yanked" else Action.PUBLISH
    _add_to_counts(session, model, 1)
    _set_state(session, model, "visible", None, action, by)


def hide_model(session: Session, model: Model, state: str, reason: str, by: str) -> None:
    """Yank a visible model, or quarantine a visible or yanked model; if it has this state already, change the reason.

    A yanked model is only found by name and version or by digest; a quarantined model is only shown to its owner and
    to administrators. Raises Conflict for a removed model and for a change that is not allowed, and BadValue for a
    reason that is empty or longer than 1,000 characters.
    """
    assert state in _ACTIONS
    session.refresh(model, with_for_update=True)
    _check_changeable(session, model)
    reason = _checked_reason(reason)
    if model.state == "quarantined" and state == "yanked":
        raise Conflict(f"{model.full_name} is not published yet, so there is nothing to yank")
    if model.state == "visible":
        _add_to_counts(session, model, -1)
    if state == "quarantined":
        _detach_children(session, model)
    _set_state(session, model, state, reason, _ACTIONS[state], by)


def withdraw_model(session: Session, model: Model, reason: str, by: str) -> None:
    """Remove a quarantined model that its contributor withdraws.

    If the model was quarantined or yanked by an action before, the event is an ordinary removal. Raises the errors of
    `remove_model`.
    """
    hidden_id = session.scalar(select(Model.id).where(Model.id == model.id, was_done(*_ACTIONS.values())))
    action = Action.REMOVE_WITHDRAWN if hidden_id is None else Action.REMOVE
    remove_model(session, model, reason, by, action)


def remove_model(session: Session, model: Model, reason: str, by: str, action: Action = Action.REMOVE) -> None:
    """Delete a model except its name, version, digest, sizes and the reason. This cannot be undone.

    The next sweeps remove bytes that no other model has. A chimera keeps the organs that it has from the model,
    and its lineage. Computed organs refer to deleted organs only by digest. Raises Conflict if the model is removed
    already, and BadValue for a reason that is empty or too long.
    """
    session.refresh(model, with_for_update=True)
    _check_not_removed(model)
    reason = _checked_reason(reason)
    if model.state == "visible":
        _add_to_counts(session, model, -1)
    organ_ids = {*organs_placed_by(session, model.id), *experts_placed_by(session, model.id)}
    _detach_children(session, model)
    _delete_rows(session, model)
    unplaced = organs_without_place(session, organ_ids)
    blob_ids: set[int] = set()
    for batch in batches(unplaced):
        blob_ids.update(session.scalars(select(Organ.blob_id).where(Organ.id.in_(batch))))
    _delete_organs(session, unplaced)
    # Where these organs stay as parents of others, a repack may find better ones.
    mark_repacked(session, sorted(first_dependants(session, blob_ids)), None)
    _update_first_models(session, model)
    for name in ("title", "description", "license"):
        setattr(model, name, None)
    model.tags = model.flags = model.unassemblable = "[]"
    _set_state(session, model, "removed", reason, action, by)
    session.expire_all()  # loaded rows of the model are deleted


def _check_not_removed(model: Model) -> None:
    """Raise Conflict for a model that was removed."""
    if model.state == "removed":
        raise Conflict(f"{model.full_name} was removed: it cannot be changed")


def _check_changeable(session: Session, model: Model) -> None:
    """Raise Conflict for a model that was removed, Incomplete for an incomplete one."""
    _check_not_removed(model)
    if model.state == "incomplete":
        raise incompleteness(session, model)


def _checked_reason(reason: str) -> str:
    if not reason.strip():
        raise BadValue("a reason is missing: people who use the model will read it")
    return checked_text(reason.strip(), "the reason", REASON_MAX)


def _set_state(session: Session, model: Model, state: str, reason: str | None, action: Action, by: str) -> None:
    model.state, model.state_reason, model.changed_at = state, reason, now()
    record_event(session, by, action, model.full_name, reason or "", model_id=model.id)
    session.flush()


def _add_to_counts(session: Session, model: Model, sign: int) -> None:
    """Add `model` to all counts of visible models; with `sign` -1, subtract it."""
    organ_ids = organs_placed_by(session, model.id)
    places = session.execute(select(Placement.facet_id, Placement.theta).where(Placement.model_id == model.id)).all()
    new_organs = count_unseen(session, organ_ids) if sign > 0 else 0
    for table in (Placement, Expert):
        _execute(session, update(table).where(table.model_id == model.id).values(visible=sign > 0))
    hidden_organs = 0 if sign > 0 else count_unseen(session, organ_ids)
    count_placements(session, places, sign)
    changes = {"models": sign, "placements": sign * len(places), "organs": new_organs - hidden_organs}
    add_to_totals(session, changes)
    count_grafts(session, model, sign)


def _detach_children(session: Session, model: Model) -> None:
    """Clear the parent of models that declare `model`. It is set again when a model of that name is registered."""
    edges = update(Lineage).where(Lineage.parent_model_id == model.id, Lineage.evidence == "declared")
    _execute(session, edges.values(parent_model_id=None))


def _delete_rows(session: Session, model: Model) -> None:
    """Delete the rows of a model. The lineage of models that were made from it is kept."""
    files = select(ModelFile.id).where(ModelFile.model_id == model.id)
    child, parent = Lineage.child_model_id == model.id, Lineage.parent_model_id == model.id
    for statement in (
        delete(Expert).where(Expert.model_id == model.id),
        delete(Placement).where(Placement.model_id == model.id),
        delete(FilePart).where(FilePart.file_id.in_(files)),
        delete(ModelFile).where(ModelFile.model_id == model.id),
        delete(ModelMetadata).where(ModelMetadata.model_id == model.id),
        delete(ModelWord).where(ModelWord.model_id == model.id),
        delete(RuntimeText).where(RuntimeText.model_id == model.id),
        delete(ModelTag).where(ModelTag.model_id == model.id),
        delete(Lineage).where(or_(child, parent & (Lineage.evidence == "measured"))),
        delete(Verdict).where(Verdict.model_id == model.id),
        delete(Gain).where(or_(Gain.model_id == model.id, Gain.base_model_id == model.id)),
        delete(GainOrgan).where(GainOrgan.model_id == model.id),
        delete(Chimera).where(Chimera.model_id == model.id),
    ):
        _execute(session, statement)


def _delete_organs(session: Session, organ_ids: list[int]) -> None:
    """Delete organs that no model has, with their computations and measurements."""
    for batch in batches(organ_ids):
        for statement in (
            delete(Lineage).where(or_(Lineage.child_organ_id.in_(batch), Lineage.parent_organ_id.in_(batch))),
            delete(Computation).where(Computation.organ_id.in_(batch)),
            delete(GainOrgan).where(GainOrgan.organ_id.in_(batch)),
            delete(Measurement).where(Measurement.organ_id.in_(batch)),
            delete(Fingerprint).where(Fingerprint.organ_id.in_(batch)),
            delete(Organ).where(Organ.id.in_(batch)),
        ):
            _execute(session, statement)


def _update_first_models(session: Session, model: Model) -> None:
    """Set the oldest remaining model as the first model of the organs of `model` that other models have."""
    oldest = select(func.min(Placement.model_id)).where(Placement.organ_id == Lineage.child_organ_id)
    edges = update(Lineage).where(Lineage.parent_model_id == model.id, Lineage.child_organ_id.is_not(None))
    _execute(session, edges.values(parent_model_id=oldest.scalar_subquery()))


def _execute(session: Session, statement: Delete | Update) -> None:
    # The session does not update its loaded objects, because there can be tens of thousands of rows.
    options: dict[str, Any] = {"synchronize_session": False}
    session.execute(statement, execution_options=options)


def record_texts(session: Session, model: Model, texts: Sequence[entities.RuntimeText]) -> int:
    """Add the texts that `model` does not have yet, within RUNTIME_TEXTS_MAX; return how many were added."""
    stored = runtime_texts(session, [model.id])[model.id]
    known = {(row.kind, row.text) for row in stored}
    added = 0
    for item in texts:
        content = shown_text(item.text, RUNTIME_TEXT_MAX)
        if (item.kind, content) in known or len(stored) + added >= RUNTIME_TEXTS_MAX:
            continue
        known.add((item.kind, content))
        row = RuntimeText(model_id=model.id, position=len(stored) + added, kind=item.kind, text=content)
        row.source = shown_text(item.source, 255)
        session.add(row)
        added += 1
    session.flush()
    return added


def rename_model(session: Session, model: Model, name: ModelName, by: str) -> None:
    """Give a visible model another name, as the next version of that name. The old name still leads to it.

    The bytes of chimeras that were made from it stay as they are: their locks name organs by digest. Raises BadName.
    """
    session.refresh(model, with_for_update=True)
    _check_changeable(session, model)
    check_model_name(session, name)
    old, quantisation_before = model.full_name, model.quantisation
    session.add(OtherName(namespace=model.namespace, name=model.name, version=model.version, model_id=model.id))
    version = next_version(session, name)
    model.namespace, model.name, model.version = name.namespace, name.name, version
    model.quantisation = model.quantisation or quantisation_before
    model.changed_at = now()
    session.flush()
    _rename_origins(session, model, old)
    _execute(session, delete(ModelWord).where(ModelWord.model_id == model.id))
    insert_words(session, model, json.loads(model.tags))
    record_event(session, by, Action.RENAME, model.full_name, f"before: {old}", model_id=model.id)
    session.flush()


def add_other_names(session: Session, model: Model, names: Iterable[ModelName]) -> None:
    """Let those of `names` that lead to no model lead to `model`, at most OTHER_NAMES_MAX; the others stay as they are.

    The transaction holds the lock of the writers, so no other process can take a name meanwhile.
    """
    for name in free_names(session, model, names):
        row = OtherName(namespace=name.namespace, name=name.name, version=next_version(session, name))
        row.model_id = model.id
        session.add(row)
        session.flush()
    insert_words(session, model, json.loads(model.tags))


def _rename_origins(session: Session, model: Model, old: str) -> None:
    """Write the new name of `model` into the origins of the chimeras that were made from it."""
    children = select(Lineage.child_model_id).where(Lineage.parent_model_id == model.id)
    used = Chimera.model_id.in_(children.where(Lineage.child_model_id.is_not(None)))
    for chimera in session.scalars(select(Chimera).where(or_(used, Chimera.base_model_id == model.id))):
        origins = json.loads(chimera.origins)
        origins["parents"] = [model.full_name if label == old else label for label in origins["parents"]]
        chimera.origins = json.dumps(origins, ensure_ascii=False, separators=(",", ":"))


def record_known_files(session: Session, digests: Mapping[str, Digest]) -> None:
    """Write the SHA-256 of files on this machine, by their stamps, so that they need not be read again."""
    insert_missing(session, KnownFile, [{"stamp": stamp, "sha256": sha256} for stamp, sha256 in digests.items()])


def forget_unused(session: Session) -> None:
    """Delete the stamps of files that no model has, and other names that lead to nothing.

    The other names of a removed model stay, because a request for them is answered with the reason of the removal, like
    a request for its own name. They are deleted if it was never public.
    """
    _execute(session, delete(KnownFile).where(KnownFile.sha256.not_in(select(ModelFile.sha256))))
    never_public = select(Model.id).where(Model.state == "removed", ~was_public())
    _execute(session, delete(OtherName).where(OtherName.model_id.in_(never_public)))


SHOWN_MAX = 80
"""The most characters of a value in the text of an event."""


def edit_model(session: Session, model: Model, edits: Edits, by: str) -> list[str]:
    """Change the description of `model`; return the changes, a few words each.

    Nothing is written if no value changes. A base is resolved to the registered model of that name, if there is one,
    and replaces the base that the file declares. Raises Conflict for a removed model and for a model as its own base,
    and BadValue for values that are too long or not text.
    """
    session.refresh(model, with_for_update=True)
    _check_changeable(session, model)
    _check(edits)
    changed = list(_changed(session, model, edits))
    if not changed:
        return []
    if edits.license is not None and (edits.license or None) != model.license:
        _move_facets(session, model, license=edits.license)
        model.license = edits.license or None
    if edits.title is not None:
        model.title = edits.title or None
    if edits.description is not None:
        model.description = edits.description or None
    if edits.tags is not None:
        model.tags = json.dumps(edits.tags)
    if edits.base is not None and edits.base != declared_base(session, model):
        _replace_base(session, model, edits.base)
    session.execute(delete(ModelWord).where(ModelWord.model_id == model.id))
    session.execute(delete(ModelTag).where(ModelTag.model_id == model.id))
    insert_words(session, model, json.loads(model.tags))
    model.changed_at = now()
    record_event(session, by, Action.EDIT, model.full_name, "; ".join(changed), model_id=model.id)
    session.flush()
    return changed


def declared_base(session: Session, model: Model) -> str:
    """Return the text of the first parent that `model` declares; empty if it declares none."""
    edges = parents_of(session, [model.id], ("declared",))
    return (edges[0].parent_text or "") if edges else ""


def _check(edits: Edits) -> None:
    for text, name, limit in (
        (edits.title, "the title", TITLE_MAX),
        (edits.description, "the description", DESCRIPTION_MAX),
        (edits.license, "the license", LICENSE_MAX),
        (edits.base, "the base", BASE_MAX),
        *((tag, "a tag", TAG_MAX) for tag in edits.tags or ()),
    ):
        checked_text(text or "", name, limit)
    if len(edits.tags or ()) > TAGS_MAX:
        raise BadValue(f"{len(edits.tags or ())} tags are too many; {TAGS_MAX} are allowed")


def _changed(session: Session, model: Model, edits: Edits) -> Iterator[str]:
    """Yield the old and the new value, shortened, of each difference."""
    before = {
        "title": model.title,
        "description": model.description,
        "license": model.license,
        "tags": ", ".join(json.loads(model.tags)),
        "base": declared_base(session, model),
    }
    for name, old in before.items():
        new = getattr(edits, name)
        text = ", ".join(new) if isinstance(new, tuple) else new
        if text is not None and text != (old or ""):
            yield f"{name} {_short(old)} -> {_short(text)}"


def _short(text: str | None) -> str:
    if not text:
        return "(nothing)"
    return repr(text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…")


def _move_facets(session: Session, model: Model, **values: str) -> None:
    """Give the placements of `model` the facets that have `values` (architecture, license), and move the counts."""
    rows = select(Placement.facet_id, Placement.theta).where(Placement.model_id == model.id)
    if model.state == "visible":
        count_placements(session, session.execute(rows).all(), -1)
    columns = [getattr(Facet, name) for name in FacetKey._fields]
    used_ids = select(Placement.facet_id).where(Placement.model_id == model.id)
    keys = {
        facet_id: FacetKey(*key)
        for facet_id, *key in session.execute(select(Facet.id, *columns).where(Facet.id.in_(used_ids)))
    }
    # An incomplete model, whose shards came one by one, may have more than a model may have.
    new_keys = dict(zip(keys, bounded_keys(key._replace(**values) for key in keys.values()), strict=True))
    ids = facet_ids(session, new_keys.values())
    places = select(Placement.id, Placement.facet_id).where(Placement.model_id == model.id)
    moved = [{"id": row_id, "facet_id": ids[new_keys[facet_id]]} for row_id, facet_id in session.execute(places)]
    if moved:
        # Row by row, because one statement for each facet would read all placements of the model each time.
        session.execute(update(Placement), moved)
        facet = select(Placement.facet_id).where(Placement.id == Expert.placement_id).scalar_subquery()
        _execute(session, update(Expert).where(Expert.model_id == model.id).values(facet_id=facet))
    if model.state == "visible":
        count_placements(session, session.execute(rows).all())


def _replace_base(session: Session, model: Model, base: str) -> None:
    """Replace the declared parents by `base`; remove them if it is empty."""
    declared = parents_of(session, [model.id], ("declared",))
    relation = declared[0].relation if declared else "adapter" if model.kind == "adapter" else "finetune"
    parent = _registered(session, base) if base else None
    if parent is not None and parent.id == model.id:
        raise Conflict(f"{model.full_name} cannot be its own base")
    for edge in declared:
        session.delete(edge)
    if base:
        parent_id = None if parent is None else parent.id
        edge = Lineage(child_model_id=model.id, parent_model_id=parent_id, parent_text=base, relation=relation)
        edge.evidence, edge.created_at = "declared", now()
        session.add(edge)
    session.flush()


def _registered(session: Session, base: str) -> Model | None:
    if "/" not in base:
        return None  # a name without a namespace is not a name in this registry
    try:
        return find_model(session, parse_model_name(base))
    except BadName:
        return None
