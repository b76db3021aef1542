"""Changes of registered models: show, hide, withdraw, remove, rename and edit one.

The bytes of a registered model never change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec
from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.chimeras import stored_origins
from organs.registry.catalog.queries.events import was_done
from organs.registry.catalog.queries.model_contents import runtime_texts
from organs.registry.catalog.queries.model_lists import declared_base
from organs.registry.catalog.queries.model_names import (
    check_model_name,
    find_model,
    free_names,
    incompleteness,
    next_version,
)
from organs.registry.catalog.queries.organs import (
    experts_placed_by,
    organs_placed_by,
    organs_without_place,
)
from organs.registry.catalog.queries.outside import has_reclaimed_files
from organs.registry.catalog.queries.relatives import first_dependants, parents_of
from organs.registry.catalog.records import (
    Edits,
)
from organs.registry.catalog.register.card_images import drop_unnamed_images
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.register.models import add_to_counts, insert_words, move_facets
from organs.registry.catalog.register.organs import (
    mark_repacked,
)
from organs.registry.catalog.rows import batches, execute_quietly, scalars_among
from organs.registry.catalog.tables import (
    CardImageRow,
    ChimeraRow,
    ComputationRow,
    Derivation,
    Expert,
    FilePart,
    Fingerprint,
    GainOrgan,
    GainRow,
    Lineage,
    MeasurementRow,
    ModelFileRow,
    ModelMetadata,
    ModelRow,
    ModelTag,
    ModelWord,
    OrganRow,
    OtherName,
    Placement,
    RuntimeTextRow,
    SizeRow,
    VerdictRow,
    now,
)
from organs.registry.catalog.vocabulary import (
    RUNTIME_TEXT_MAX,
    RUNTIME_TEXTS_MAX,
    Action,
    checked_text,
    shown_text,
)
from organs.registry.entities import model as entities
from organs.registry.entities.base import encode
from organs.registry.entities.published import (
    BASE_MAX,
    DESCRIPTION_MAX,
    LICENSE_MAX,
    REASON_MAX,
    TAG_MAX,
    TAGS_MAX,
    TITLE_MAX,
)
from organs.registry.errors import BadName, BadValue, Conflict
from organs.registry.names import ModelName, parse_model_name

_ACTIONS = {"quarantined": Action.QUARANTINE, "yanked": Action.YANK}


def show_model(session: Session, model: ModelRow, by: str) -> None:
    """Make a quarantined or yanked model visible; a visible model stays unchanged. `by` is a contributor's name.

    To publish a model, use `ingest.service`, which also searches for its relatives. Raises Conflict for a removed
    model, Incomplete.
    """
    session.refresh(model, with_for_update=True)
    _check_changeable(session, model)
    if model.state == "visible":
        return
    action = Action.RESTORE if model.state == "yanked" else Action.PUBLISH
    add_to_counts(session, model, 1)
    _set_state(session, model, "visible", None, action, by)


def hide_model(session: Session, model: ModelRow, state: str, reason: str, by: str) -> None:
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
        add_to_counts(session, model, -1)
    if state == "quarantined":
        _detach_children(session, model)
    _set_state(session, model, state, reason, _ACTIONS[state], by)


def withdraw_model(session: Session, model: ModelRow, reason: str, by: str) -> None:
    """Remove a quarantined model that its contributor withdraws.

    If the model was quarantined or yanked by an action before, the event is an ordinary removal. Raises the errors of
    `remove_model`.
    """
    hidden_id = session.scalar(select(ModelRow.id).where(ModelRow.id == model.id, was_done(*_ACTIONS.values())))
    action = Action.REMOVE_WITHDRAWN if hidden_id is None else Action.REMOVE
    remove_model(session, model, reason, by, action)


def remove_model(session: Session, model: ModelRow, reason: str, by: str, action: Action = Action.REMOVE) -> None:
    """Delete a model except its name, version, digest, sizes and the reason. This cannot be undone.

    The next sweeps remove bytes that no other model has. A chimera keeps the organs that it has from the model,
    and its lineage. Computed organs refer to deleted organs only by digest. Raises Conflict if the model is removed
    already or files of it were reclaimed, and BadValue for a reason that is empty or too long.
    """
    session.refresh(model, with_for_update=True)
    _check_not_removed(model)
    if has_reclaimed_files(session, model.id):
        raise Conflict(f"files of {model.full_name} were reclaimed, and are only here: organ restore writes them first")
    reason = _checked_reason(reason)
    if model.state == "visible":
        add_to_counts(session, model, -1)
    organ_ids = {*organs_placed_by(session, model.id), *experts_placed_by(session, model.id)}
    _detach_children(session, model)
    _delete_rows(session, model)
    unplaced = organs_without_place(session, organ_ids)
    blob_ids = set(scalars_among(session, select(OrganRow.blob_id), OrganRow.id, unplaced))
    _delete_organs(session, unplaced)
    # Where these organs stay as parents of others, a repack may find better ones.
    mark_repacked(session, sorted(first_dependants(session, blob_ids)), None)
    # The oldest remaining model becomes the first model of the organs that other models have.
    oldest = select(func.min(Placement.model_id)).where(Placement.organ_id == Lineage.child_organ_id)
    edges = update(Lineage).where(Lineage.parent_model_id == model.id, Lineage.child_organ_id.is_not(None))
    execute_quietly(session, edges.values(parent_model_id=oldest.scalar_subquery()))
    for name in ("title", "description", "license"):
        setattr(model, name, None)
    model.tags = model.flags = model.unassemblable = ()
    _set_state(session, model, "removed", reason, action, by)
    session.expire_all()  # loaded rows of the model are deleted


def _check_not_removed(model: ModelRow) -> None:
    """Raise Conflict for a model that was removed."""
    if model.state == "removed":
        raise Conflict(f"{model.full_name} was removed: it cannot be changed")


def _check_changeable(session: Session, model: ModelRow) -> None:
    """Raise Conflict for a model that was removed, Incomplete for an incomplete one."""
    _check_not_removed(model)
    if model.state == "incomplete":
        raise incompleteness(session, model)


def _checked_reason(reason: str) -> str:
    if not reason.strip():
        raise BadValue("a reason is missing: people who use the model will read it")
    return checked_text(reason.strip(), "the reason", REASON_MAX)


def _set_state(session: Session, model: ModelRow, state: str, reason: str | None, action: Action, by: str) -> None:
    model.state, model.state_reason, model.changed_at = state, reason, now()
    record_event(session, by, action, model.full_name, reason or "", model_id=model.id)
    session.flush()


def _detach_children(session: Session, model: ModelRow) -> None:
    """Clear the parent of models that declare `model`. It is set again when a model of that name is registered."""
    edges = update(Lineage).where(Lineage.parent_model_id == model.id, Lineage.evidence == "declared")
    execute_quietly(session, edges.values(parent_model_id=None))


def _delete_rows(session: Session, model: ModelRow) -> None:
    """Delete the rows of a model. The lineage of models that were made from it is kept."""
    files = select(ModelFileRow.id).where(ModelFileRow.model_id == model.id)
    execute_quietly(session, delete(Expert).where(Expert.model_id == model.id))
    execute_quietly(session, delete(Placement).where(Placement.model_id == model.id))
    execute_quietly(session, delete(FilePart).where(FilePart.file_id.in_(files)))
    child, parent = Lineage.child_model_id == model.id, Lineage.parent_model_id == model.id
    execute_quietly(session, delete(Lineage).where(or_(child, parent & (Lineage.evidence == "measured"))))
    execute_quietly(session, delete(GainRow).where(GainRow.base_model_id == model.id))
    execute_quietly(session, delete(SizeRow).where(SizeRow.source_model_id == model.id))
    execute_quietly(session, update(SizeRow).where(SizeRow.model_id == model.id).values(model_id=None))
    for table in (
        ModelFileRow,
        ModelMetadata,
        ModelWord,
        RuntimeTextRow,
        ModelTag,
        CardImageRow,
        VerdictRow,
        GainRow,
        GainOrgan,
        ChimeraRow,
    ):
        execute_quietly(session, delete(table).where(table.model_id == model.id))


def _delete_organs(session: Session, organ_ids: list[int]) -> None:
    """Delete organs that no model has, with their computations and measurements."""
    for batch in batches(organ_ids):
        ends = or_(Lineage.child_organ_id.in_(batch), Lineage.parent_organ_id.in_(batch))
        execute_quietly(session, delete(Lineage).where(ends))
        ends = or_(Derivation.organ_id.in_(batch), Derivation.source_id.in_(batch))
        execute_quietly(session, delete(Derivation).where(ends))
        for table in (ComputationRow, GainOrgan, MeasurementRow, Fingerprint):
            execute_quietly(session, delete(table).where(table.organ_id.in_(batch)))
        execute_quietly(session, delete(OrganRow).where(OrganRow.id.in_(batch)))


def record_texts(session: Session, model: ModelRow, texts: Sequence[entities.RuntimeText]) -> None:
    """Add the texts that `model` does not have yet, at most RUNTIME_TEXTS_MAX in all."""
    rows = list(session.scalars(select(RuntimeTextRow).where(RuntimeTextRow.model_id == model.id)))
    for item in texts:
        content = shown_text(item.text, RUNTIME_TEXT_MAX)
        same = next((row for row in rows if is_stored_text(item.kind, content, row.kind, row.text)), None)
        if same is None and len(rows) < RUNTIME_TEXTS_MAX:
            row = RuntimeTextRow(model_id=model.id, position=len(rows), kind=item.kind, text=content)
            row.source = shown_text(item.source, 255)
            session.add(row)
            rows.append(row)
        elif same is not None and same.text == content.strip():
            same.text = content
    session.flush()


def is_stored_text(kind: str, text: str, stored_kind: str, stored_text: str) -> bool:
    """Return whether a stored text is this one. Versions before 2026-12 left out the spaces around it."""
    return kind == stored_kind and text.strip() == stored_text.strip()


def inherit_texts(session: Session, model: ModelRow, parent_ids: Sequence[int], *, has_own_template: bool) -> None:
    """Give a chimera the texts of its base, the first of `parent_ids`, and the licenses of all parents.

    With an own template, it does not get what belongs to the template of the base: also its parameters, which have the
    stop words, and saved messages.
    """
    texts = runtime_texts(session, parent_ids, private=True)
    inherited = [
        text
        for position, parent_id in enumerate(parent_ids)
        for text in texts[parent_id]
        if text.kind == "license" or (position == 0 and (text.kind == "system" or not has_own_template))
    ]
    record_texts(session, model, inherited)


def rename_model(session: Session, model: ModelRow, name: ModelName, by: str) -> None:
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
    execute_quietly(session, delete(ModelWord).where(ModelWord.model_id == model.id))
    insert_words(session, model, model.tags)
    record_event(session, by, Action.RENAME, model.full_name, f"before: {old}", model_id=model.id)
    session.flush()


def add_other_names(session: Session, model: ModelRow, names: Iterable[ModelName]) -> None:
    """Let those of `names` that lead to no model lead to `model`, at most OTHER_NAMES_MAX; the others stay as they are.

    The transaction holds the lock of the writers, so no other process can take a name meanwhile.
    """
    for name in free_names(session, model, names):
        row = OtherName(namespace=name.namespace, name=name.name, version=next_version(session, name))
        row.model_id = model.id
        session.add(row)
        session.flush()
    insert_words(session, model, model.tags)


def _rename_origins(session: Session, model: ModelRow, old: str) -> None:
    """Write the new name of `model` into the origins of the chimeras that were made from it."""
    children = select(Lineage.child_model_id).where(Lineage.parent_model_id == model.id)
    used = ChimeraRow.model_id.in_(children.where(Lineage.child_model_id.is_not(None)))
    for chimera in session.scalars(select(ChimeraRow).where(or_(used, ChimeraRow.base_model_id == model.id))):
        origins = stored_origins(chimera)
        parents = tuple(model.full_name if label == old else label for label in origins.parents)
        chimera.origins = encode(msgspec.structs.replace(origins, parents=parents)).decode()


SHOWN_MAX = 80
"""The most characters of a value in the text of an event."""


def edit_model(session: Session, model: ModelRow, edits: Edits, by: str) -> list[str]:
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
        move_facets(session, model, license=edits.license)
        model.license = edits.license or None
    if edits.title is not None:
        model.title = edits.title or None
    if edits.description is not None:
        model.description = edits.description or None
        drop_unnamed_images(session, model)
    if edits.tags is not None:
        model.tags = edits.tags
    if edits.base is not None and edits.base != (declared_base(session, model) or ""):
        _replace_base(session, model, edits.base)
    for table in (ModelWord, ModelTag):
        session.execute(delete(table).where(table.model_id == model.id))
    insert_words(session, model, model.tags)
    model.changed_at = now()
    record_event(session, by, Action.EDIT, model.full_name, "; ".join(changed), model_id=model.id)
    session.flush()
    return changed


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


def _changed(session: Session, model: ModelRow, edits: Edits) -> Iterator[str]:
    """Yield the old and the new value, shortened, of each difference."""

    def short(text: str | None) -> str:
        if not text:
            return "(nothing)"
        return repr(text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…")

    for name in ("title", "description", "license", "tags", "base"):
        old = declared_base(session, model) if name == "base" else getattr(model, name)
        before, after = (
            ", ".join(value) if isinstance(value, tuple) else value for value in (old, getattr(edits, name))
        )
        if after is not None and after != (before or ""):
            yield f"{name} {short(before)} -> {short(after)}"


def _replace_base(session: Session, model: ModelRow, base: str) -> None:
    """Replace the declared parents by `base`; remove them if it is empty."""
    declared = parents_of(session, [model.id], ("declared",))
    relation = declared[0].relation if declared else "adapter" if model.kind == "adapter" else "finetune"
    parent = None
    if "/" in base:  # a name without a namespace is not a name in this registry
        with suppress(BadName):
            parent = find_model(session, parse_model_name(base))
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
