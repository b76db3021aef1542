"""Models: register one with all of its rows in one transaction; show, hide, edit or remove it.

The bytes of a registered model never change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest
from organs.registry.catalog.queries.events import was_public
from organs.registry.catalog.queries.model_contents import files_of
from organs.registry.catalog.queries.model_names import (
    check_model_name,
    incomplete_model,
    model_of_other_name,
    next_version,
    quarantined_model,
    visible_model_with_digest,
)
from organs.registry.catalog.queries.organs import count_unseen, organs_placed_by
from organs.registry.catalog.records import (
    FileRecord,
    ModelRecord,
    OrganKey,
    PlacementRecord,
)
from organs.registry.catalog.register.chimeras import count_grafts
from organs.registry.catalog.register.counts import FacetKey, add_to_totals, bounded_keys, count_placements, facet_ids
from organs.registry.catalog.register.events import contributor_id, record_event
from organs.registry.catalog.register.organs import (
    count_nonfinite_tensors,
    insert_experts,
    measures_of,
    organ_key,
    record_counts,
    register_organs,
)
from organs.registry.catalog.rows import execute_quietly, insert_all, insert_missing
from organs.registry.catalog.tables import (
    Blob,
    Expert,
    Facet,
    FilePart,
    KnownFile,
    Lineage,
    ModelFileRow,
    ModelMetadata,
    ModelRow,
    ModelTag,
    ModelWord,
    OrganRow,
    OtherName,
    Placement,
    now,
)
from organs.registry.catalog.vocabulary import (
    TEXT_MAX,
    Action,
    checked_text,
    folded_tag,
    shown_text,
    unique_words,
)
from organs.registry.digest import Digest, model_digest
from organs.registry.entities.published import DESCRIPTION_MAX
from organs.registry.errors import MissingBlob
from organs.registry.gguf.types import FILE_TYPE_KEY, parse_file_type, quantisation
from organs.registry.measures import MEASURE_NAMES
from organs.registry.names import LOCAL


@dataclass(frozen=True, slots=True)
class Registered:
    """The row of a model, and whether it is new."""

    model: ModelRow
    created: bool


def register_model(session: Session, record: ModelRecord, *, keep_name: bool) -> Registered:
    """Write `record` with its organs, placements, files, lineage, facets and event; its blobs must have rows.

    The same bytes are registered only once under one name; without `keep_name`, also only once under all names. If the
    name already has other bytes, the model becomes its next version. Raises MissingBlob if blobs were swept meanwhile,
    and BadValue for a name that cannot be stored.
    """
    checked_text(record.name.namespace, "the namespace", 96)
    checked_text(record.name.name, "the name", 96)
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
    model = _insert_model(session, record)
    facets = iter(_facets_of(session, model, record.placements))
    first_position = 0
    for position, file in enumerate(record.files):
        _insert_file(session, model, position, file, blobs, organs, facets, first_position)
        first_position += len(file.placements)
    _sum_up(session, model)
    insert_experts(session, model, record.experts)
    _insert_metadata(session, model, record)
    _insert_parents(session, model, record)
    insert_words(session, model, record.tags)
    if model.state == "visible":
        placements = count_placements(session, model.id)
        add_to_totals(session, {"models": 1, "placements": placements, "organs": new_organs})
    action = Action.SUBMIT if model.state == "quarantined" else record.action
    record_event(session, record.contributor, action, model.full_name, model_id=model.id)
    session.flush()
    return Registered(model, created=True)


SHARD_POSITIONS = 1 << 17
"""The step between the positions of the first placements of two shards of an incomplete model. It is twice the limit of
tensors of a model, so that positions of different files are different before, during and after `complete_model`."""


def add_shard(session: Session, record: ModelRecord, number: int, shards: int) -> ModelRow:
    """Write the single file of `record`, with its organs and placements, as shard `number`, from 0, of `shards`.

    Return the incomplete model of that name, which the first shard creates. Its blobs must have rows. The model is
    hidden until `complete_model`. Raises MissingBlob as `register_model` does.
    """
    blobs = _blobs_of(session, record)
    organs = register_organs(session, record.placements, blobs)
    model = incomplete_model(session, record.name)
    if model is None:
        model = _insert_model(session, replace(record, state="incomplete"))
        model.shards = shards
    facets = iter(_facets_of(session, model, record.placements))
    _insert_file(session, model, number, record.files[0], blobs, organs, facets, number * SHARD_POSITIONS)
    insert_experts(session, model, record.experts)
    _sum_up(session, model)
    session.flush()
    return model


def complete_model(session: Session, model: ModelRow, record: ModelRecord) -> None:
    """Make an incomplete model visible, all shards of which are stored; `record` has its metadata, and no files.

    Afterwards its rows are those of a model whose files were registered together.
    """
    for name, value in _described(record).items():
        setattr(model, name, value)
    model.created_at, model.shards = now(), None
    # The placements of all files are numbered without gaps.
    counted = select(Placement.file_id, func.count()).where(Placement.model_id == model.id).group_by(Placement.file_id)
    counts = dict(session.execute(counted).all())
    first_position = 0
    for file in files_of(session, model.id):
        moved = Placement.position - (file.position * SHARD_POSITIONS - first_position)
        execute_quietly(session, update(Placement).where(Placement.file_id == file.id).values(position=moved))
        first_position += counts.get(file.id, 0)
    move_facets(session, model, architecture=model.architecture or "", license=model.license or "")
    _sum_up(session, model)
    _insert_metadata(session, model, record)
    _insert_parents(session, model, record)
    insert_words(session, model, record.tags)
    session.flush()
    add_to_counts(session, model, 1)
    model.state = "visible"
    sizes = select(OrganRow.dtype, func.sum(Blob.size_bytes)).join(Placement, Placement.organ_id == OrganRow.id)
    own = sizes.join(Blob, Blob.id == OrganRow.blob_id).where(
        Placement.model_id == model.id, OrganRow.shape.contains("x")
    )
    matrices = session.execute(own.group_by(OrganRow.dtype))
    _read_quantisation(model, record, [(dtype, int(size_bytes)) for dtype, size_bytes in matrices])
    record_event(session, record.contributor, record.action, model.full_name, model_id=model.id)
    session.flush()


def _sum_up(session: Session, model: ModelRow) -> None:
    """Write the sums and means over the files and placements that a model has now, and the digest of its files."""
    model.nonfinite_tensors = None
    session.flush()
    files = files_of(session, model.id)
    model.digest = model_digest([Digest(file.sha256) for file in files])
    model.size_bytes = sum(file.size_bytes for file in files)
    places = (
        select(Placement.theta, Placement.signal, OrganRow.elements)
        .join(OrganRow, OrganRow.id == Placement.organ_id)
        .where(Placement.model_id == model.id)
        .order_by(Placement.position)
    )
    placed = session.execute(places).all()
    model.tensors, model.parameters = len(placed), sum(row.elements for row in placed)
    thetas = [row.theta for row in placed if row.theta is not None]
    signals = [row.signal for row in placed if row.signal is not None]
    model.mean_theta = fmean(thetas) if thetas else None
    model.mean_signal = fmean(signals) if signals else None
    session.flush()
    count_nonfinite_tensors(session, model.id)
    session.refresh(model)


def _blobs_of(session: Session, record: ModelRecord) -> dict[Digest, KnownBlob]:
    digests = {part.digest for file in record.files for part in file.parts}
    digests |= {placement.digest for placement in record.placements}
    blobs = blobs_by_digest(session, digests)
    if swept := digests - blobs.keys():
        raise MissingBlob(f"{len(swept)} blobs were swept while the ingest was suspended: run it again")
    return blobs


def _facets_of(session: Session, model: ModelRow, placements: Iterable[PlacementRecord]) -> list[int]:
    """Return the id of the facet of each of `placements`."""
    of_model = (model.architecture or "", model.license or "")
    keys = bounded_keys(
        FacetKey(one.place.type.value, one.place.tower.value, one.place.slot, one.dtype, *of_model)
        for one in placements
    )
    ids = facet_ids(session, keys)
    return [ids[key] for key in keys]


def existing_model(session: Session, record: ModelRecord, keep_name: bool) -> ModelRow | None:
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


def insert_words(session: Session, model: ModelRow, tags: Sequence[str]) -> None:
    """Write the words and the tags by which searches find `model`, also those of its other names."""
    others = select(OtherName.namespace, OtherName.name).where(OtherName.model_id == model.id)
    names = [part for row in session.execute(others) for part in row]
    words = unique_words([model.namespace, model.name, *names, model.title, *tags, model.description])
    insert_missing(session, ModelWord, [{"word": word, "model_id": model.id} for word in words])
    folded = list(dict.fromkeys(filter(None, map(folded_tag, tags))))
    insert_missing(session, ModelTag, [{"tag": name, "model_id": model.id} for name in folded[:INDEXED_TAGS_MAX]])


def _insert_model(session: Session, record: ModelRecord) -> ModelRow:
    """Add the row of a model, without the sums of `_sum_up`."""
    name = record.name
    check_model_name(session, name)
    model = ModelRow(
        namespace=name.namespace,
        name=name.name,
        version=next_version(session, name),
        digest=record.digest,
        state=record.state,
        contributor_id=contributor_id(session, record.contributor),
        parameters=0,
        tensors=0,
        size_bytes=0,
        created_at=now(),
        **_described(record),
    )
    _read_quantisation(model, record)
    session.add(model)
    session.flush()
    return model


def _described(record: ModelRecord) -> dict[str, object]:
    """Return the columns of a model that its header describes."""

    def shown(text: str | None, limit: int = TEXT_MAX) -> str | None:
        return None if text is None else shown_text(text, limit)

    return {
        "kind": record.kind,
        "complete": record.complete,
        "architecture": shown(record.architecture, 96),
        "license": shown(record.license, 96),
        "size_label": shown(record.size_label, 96),
        "title": shown(record.title),
        "description": shown(record.description, DESCRIPTION_MAX),
        "tags": tuple(shown_text(tag, 96) for tag in record.tags),
        "flags": tuple(map(shown_text, record.flags)),
        "unassemblable": tuple(map(shown_text, record.unassemblable)),
    }


def _read_quantisation(model: ModelRow, record: ModelRecord, matrices: Iterable[tuple[str, int]] | None = None) -> None:
    """Read the quantisation of a complete model whose name has none from its header and its `matrices`."""
    if model.quantisation is not None or model.kind != "model" or model.state == "incomplete":
        return
    if matrices is None:
        matrices = ((one.dtype, one.size_bytes) for one in record.placements if len(one.shape) > 1)
    stated = next((value for key, _, value in record.metadata if key == FILE_TYPE_KEY), "")
    model.quantisation = quantisation(parse_file_type(stated), matrices)


def _insert_file(
    session: Session,
    model: ModelRow,
    position: int,
    file: FileRecord,
    blobs: Mapping[Digest, KnownBlob],
    organs: Mapping[OrganKey, int],
    facets: Iterator[int],
    first_position: int,
) -> None:
    row = ModelFileRow(
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
    organ_ids = [organs[organ_key(placement)] for placement in file.placements]
    measured = measures_of(session, organ_ids)
    placements = [
        {
            "model_id": model.id,
            "position": order,
            "file_id": row.id,
            "offset_bytes": placement.offset_bytes,
            "name": placement.name,
            "type": placement.place.type.value,
            "tower": placement.place.tower.value,
            "block": placement.place.block,
            "slot": placement.place.slot,
            "organ_id": organ_id,
            "facet_id": next(facets),
            "visible": model.state == "visible",
            "dtype": placement.dtype,
            "size_bytes": placement.size_bytes,
        }
        | dict.fromkeys(MEASURE_NAMES)
        | measured[organ_id]
        for order, (placement, organ_id) in enumerate(zip(file.placements, organ_ids, strict=True), first_position)
    ]
    session.flush()
    insert_all(session, Placement, placements)


def _insert_metadata(session: Session, model: ModelRow, record: ModelRecord) -> None:
    rows = [
        {"model_id": model.id, "position": position, "key": shown_text(key), "type": kind, "value": shown_text(value)}
        for position, (key, kind, value) in enumerate(record.metadata)
    ]
    insert_all(session, ModelMetadata, rows)


def _insert_parents(session: Session, model: ModelRow, record: ModelRecord) -> None:
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
        .join(OrganRow, OrganRow.id == Placement.organ_id)
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
    insert_all(session, Lineage, rows)


def add_to_counts(session: Session, model: ModelRow, sign: int) -> None:
    """Add `model` to all counts of visible models; with `sign` -1, subtract it."""
    organ_ids = organs_placed_by(session, model.id)
    new_organs = count_unseen(session, organ_ids) if sign > 0 else 0
    for table in (Placement, Expert):
        execute_quietly(session, update(table).where(table.model_id == model.id).values(visible=sign > 0))
    hidden_organs = 0 if sign > 0 else count_unseen(session, organ_ids)
    placements = count_placements(session, model.id, sign)
    organs = new_organs - hidden_organs
    add_to_totals(session, {"models": sign, "placements": sign * placements, "organs": organs})
    count_grafts(session, model, sign)


def record_known_files(session: Session, digests: Mapping[str, Digest]) -> None:
    """Write the SHA-256 of files on this machine, by their stamps, so that they need not be read again."""
    insert_missing(session, KnownFile, [{"stamp": stamp, "sha256": sha256} for stamp, sha256 in digests.items()])


def forget_unused(session: Session) -> None:
    """Delete the stamps of files that no model has, and other names that lead to nothing.

    The other names of a removed model stay, because a request for them is answered with the reason of the removal, like
    a request for its own name. They are deleted if it was never public.
    """
    execute_quietly(session, delete(KnownFile).where(KnownFile.sha256.not_in(select(ModelFileRow.sha256))))
    never_public = select(ModelRow.id).where(ModelRow.state == "removed", ~was_public())
    execute_quietly(session, delete(OtherName).where(OtherName.model_id.in_(never_public)))


def move_facets(session: Session, model: ModelRow, **values: str) -> None:
    """Give the placements of `model` the facets that have `values` (architecture, license), and move the counts."""
    if model.state == "visible":
        count_placements(session, model.id, -1)
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
        execute_quietly(session, update(Expert).where(Expert.model_id == model.id).values(facet_id=facet))
    if model.state == "visible":
        count_placements(session, model.id)
