"""What is said of a model is changed by its owner: title, description, licence, tags, base. Its bytes never are."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import now
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.catalog.queries.relatives import parents_of
from organs.registry.catalog.records import (
    Edits,
)
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.register.facets import FacetKey, count_placements, facet_ids
from organs.registry.catalog.register.models import insert_words
from organs.registry.catalog.register.states import check_is_here
from organs.registry.catalog.tables import Facet, Lineage, Model, ModelWord, Placement
from organs.registry.catalog.vocabulary import Action, checked_text
from organs.registry.entities.published import BASE_MAX, DESCRIPTION_MAX, LICENSE_MAX, TAG_MAX, TAGS_MAX, TITLE_MAX
from organs.registry.errors import BadName, BadValue, Conflict, NotFound
from organs.registry.names import parse_model_name

SHOWN_MAX = 80
"""Characters of a value in the event."""


def edit_model(session: Session, model: Model, edits: Edits, by: str) -> list[str]:
    """Change what is said of `model` and what it is found by; what was changed, a few words each.

    Nothing is written where all is as it should be. A base is led to the registered model of that name, if there is
    one, and replaces what the file declares. Raises Conflict for a removed model and for one that would be its own
    base, BadValue for what is too long or no text.
    """
    session.refresh(model, with_for_update=True)
    check_is_here(model)
    _check(edits)
    changed = list(_changed(session, model, edits))
    if not changed:
        return []
    if edits.license is not None and (edits.license or None) != model.license:
        _move_facets(session, model, edits.license)
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
    insert_words(session, model, json.loads(model.tags))
    model.changed_at = now()
    record_event(session, by, Action.EDIT, model.full_name, "; ".join(changed), model_id=model.id)
    session.flush()
    return changed


def declared_base(session: Session, model: Model) -> str:
    """The parent that `model` declares first, in its words; empty where it declares none."""
    edges = parents_of(session, [model.id], ("declared",))
    return (edges[0].parent_text or "") if edges else ""


def _check(edits: Edits) -> None:
    for text, what, limit in (
        (edits.title, "the title", TITLE_MAX),
        (edits.description, "the description", DESCRIPTION_MAX),
        (edits.license, "the licence", LICENSE_MAX),
        (edits.base, "the base", BASE_MAX),
        *((tag, "a tag", TAG_MAX) for tag in edits.tags or ()),
    ):
        checked_text(text or "", what, limit)
    if len(edits.tags or ()) > TAGS_MAX:
        raise BadValue(f"{len(edits.tags or ())} tags were given; {TAGS_MAX} are allowed")


def _changed(session: Session, model: Model, edits: Edits) -> Iterator[str]:
    """Before and after, shortened, of what is not as it was."""
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


def _move_facets(session: Session, model: Model, licence: str) -> None:
    """Give the placements of `model` the facets that have `licence`, and move the counts."""
    rows = select(Placement.facet_id, Placement.theta).where(Placement.model_id == model.id)
    if model.state == "visible":
        count_placements(session, session.execute(rows).all(), -1)
    columns = [getattr(Facet, name) for name in FacetKey._fields]
    own = select(Placement.facet_id).where(Placement.model_id == model.id)
    held = {
        facet_id: FacetKey(*key)
        for facet_id, *key in session.execute(select(Facet.id, *columns).where(Facet.id.in_(own)))
    }
    ids = facet_ids(session, [key._replace(license=licence) for key in held.values()])
    places = select(Placement.id, Placement.facet_id).where(Placement.model_id == model.id)
    moved = [
        {"id": row_id, "facet_id": ids[held[facet_id]._replace(license=licence)]}
        for row_id, facet_id in session.execute(places)
    ]
    if moved:
        session.execute(update(Placement), moved)  # row by row: a statement a facet would read the model for each
    if model.state == "visible":
        count_placements(session, session.execute(rows).all())


def _replace_base(session: Session, model: Model, base: str) -> None:
    """Declare `base`, or nothing, instead of what is declared now."""
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
        return None  # a bare name is a name elsewhere, not one in `local`
    try:
        return model_by_name(session, parse_model_name(base))
    except (BadName, NotFound):
        return None
