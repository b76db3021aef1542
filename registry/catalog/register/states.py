"""What becomes of a model after it was registered: shown, hidden, removed. Its bytes never change.

    quarantined -> visible <-> yanked         any of them -> removed, and nothing from there

Counts over visible placements, the running totals and the grafts of donors follow in the same transaction.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Delete, Update, delete, func, or_, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import now
from organs.registry.catalog.queries.events import was_done
from organs.registry.catalog.queries.shared_organs import count_unseen, organs_placed_by, organs_without_place
from organs.registry.catalog.register.chimeras import count_grafts
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.register.facets import add_to_totals, count_placements
from organs.registry.catalog.tables import (
    Chimera,
    Computation,
    FilePart,
    Fingerprint,
    Lineage,
    Measurement,
    Model,
    ModelFile,
    ModelMetadata,
    ModelWord,
    Organ,
    Placement,
    Verdict,
)
from organs.registry.catalog.upsert import batches
from organs.registry.catalog.vocabulary import Action, checked_text
from organs.registry.entities.published import REASON_MAX
from organs.registry.errors import BadValue, Conflict

"""Characters of why a model is hidden or removed: it stands in a banner."""
_ACTIONS = {"quarantined": Action.QUARANTINE, "yanked": Action.YANK}


def show_model(session: Session, model: Model, by: str) -> None:
    """Make a quarantined or yanked model visible; one that is visible stays as it is. `by` is a contributor's name.

    Who publishes wants `ingest.service`, which also looks for its relatives. Raises Conflict for a removed model.
    """
    session.refresh(model, with_for_update=True)
    check_is_here(model)
    if model.state == "visible":
        return
    action = Action.RESTORE if model.state == "yanked" else Action.PUBLISH
    _count(session, model, 1)
    _change(session, model, "visible", None, action, by)


def hide_model(session: Session, model: Model, state: str, reason: str, by: str) -> None:
    """Yank a visible model, or quarantine a visible or yanked one; in that state already, only the reason is new.

    A yanked model is shown to who asks for it by name and version or by digest, and nowhere else; a quarantined one to
    nobody but its owner and administrators. Raises Conflict for a removed model and a way that there is not, BadValue
    for a reason that is empty or longer than 1,000 characters.
    """
    assert state in _ACTIONS
    session.refresh(model, with_for_update=True)
    check_is_here(model)
    reason = _checked_reason(reason)
    if model.state == "quarantined" and state == "yanked":
        raise Conflict(f"{model.full_name} is not published yet, so there is nothing to yank")
    if model.state == "visible":
        _count(session, model, -1)
    if state == "quarantined":
        _lead_nowhere(session, model)
    _change(session, model, state, reason, _ACTIONS[state], by)


def withdraw_model(session: Session, model: Model, reason: str, by: str) -> None:
    """Take a quarantined model away because its contributor no longer wants it. Where an administrator had a say in its
    state before, that is no withdrawal: it stays known as removed. Raises as `remove_model`.
    """
    hidden = session.scalar(select(Model.id).where(Model.id == model.id, was_done(*_ACTIONS.values())))
    action = Action.REMOVE_WITHDRAWN if hidden is None else Action.REMOVE
    remove_model(session, model, reason, by, action)


def remove_model(session: Session, model: Model, reason: str, by: str, action: Action = Action.REMOVE) -> None:
    """Take everything of a model away but its name, version, digest, sizes and the reason, for good.

    Bytes that no other model has are free for the sweep afterwards. A chimera keeps the organs that it has of the
    model, and that it came from it; that an organ was computed from one that goes is only known by its digest then.
    Raises Conflict for a model that is removed already, BadValue for a reason that is empty or too long.
    """
    session.refresh(model, with_for_update=True)
    check_is_here(model)
    reason = _checked_reason(reason)
    if model.state == "visible":
        _count(session, model, -1)
    organ_ids = organs_placed_by(session, model.id)
    _lead_nowhere(session, model)
    _forget(session, model)
    _forget_organs(session, organs_without_place(session, organ_ids))
    _dissected_elsewhere(session, model)
    for name in ("title", "description", "license"):
        setattr(model, name, None)
    model.tags = model.flags = model.unassemblable = "[]"
    _change(session, model, "removed", reason, action, by)
    session.expire_all()  # what was loaded of it is gone


def check_is_here(model: Model) -> None:
    """Raise Conflict for a model that was removed."""
    if model.state == "removed":
        raise Conflict(f"{model.full_name} was removed: it cannot be changed any more")


def _checked_reason(reason: str) -> str:
    if not reason.strip():
        raise BadValue("say why: people who use the model will read it")
    return checked_text(reason.strip(), "the reason", REASON_MAX)


def _change(session: Session, model: Model, state: str, reason: str | None, action: Action, by: str) -> None:
    model.state, model.state_reason, model.changed_at = state, reason, now()
    record_event(session, by, action, model.full_name, reason or "", model_id=model.id)
    session.flush()


def _count(session: Session, model: Model, sign: int) -> None:
    """Let everything that counts visible models count `model` from now on, or with `sign` -1 no longer."""
    organ_ids = organs_placed_by(session, model.id)
    places = session.execute(select(Placement.facet_id, Placement.theta).where(Placement.model_id == model.id)).all()
    seen_first = count_unseen(session, organ_ids) if sign > 0 else 0
    _execute(session, update(Placement).where(Placement.model_id == model.id).values(visible=sign > 0))
    seen_no_more = 0 if sign > 0 else count_unseen(session, organ_ids)
    count_placements(session, places, sign)
    organs = seen_first - seen_no_more
    add_to_totals(session, {"models": sign, "placements": sign * len(places), "organs": organs})
    count_grafts(session, model, sign)


def _lead_nowhere(session: Session, model: Model) -> None:
    """Let the models that declare it as their parent name a model that is not here; they are led when one comes."""
    edges = update(Lineage).where(Lineage.parent_model_id == model.id, Lineage.evidence == "declared")
    _execute(session, edges.values(parent_model_id=None))


def _forget(session: Session, model: Model) -> None:
    """Delete the rows that belong to a model. What was recorded of those that were made of it stays."""
    files = select(ModelFile.id).where(ModelFile.model_id == model.id)
    child, parent = Lineage.child_model_id == model.id, Lineage.parent_model_id == model.id
    for statement in (
        delete(Placement).where(Placement.model_id == model.id),
        delete(FilePart).where(FilePart.file_id.in_(files)),
        delete(ModelFile).where(ModelFile.model_id == model.id),
        delete(ModelMetadata).where(ModelMetadata.model_id == model.id),
        delete(ModelWord).where(ModelWord.model_id == model.id),
        delete(Lineage).where(or_(child, parent & (Lineage.evidence == "measured"))),
        delete(Verdict).where(Verdict.model_id == model.id),
        delete(Chimera).where(Chimera.model_id == model.id),
    ):
        _execute(session, statement)


def _forget_organs(session: Session, organ_ids: list[int]) -> None:
    """Delete organs that no model has, with how they were computed and what was measured of them."""
    for batch in batches(organ_ids):
        for statement in (
            delete(Lineage).where(or_(Lineage.child_organ_id.in_(batch), Lineage.parent_organ_id.in_(batch))),
            delete(Computation).where(Computation.organ_id.in_(batch)),
            delete(Measurement).where(Measurement.organ_id.in_(batch)),
            delete(Fingerprint).where(Fingerprint.organ_id.in_(batch)),
            delete(Organ).where(Organ.id.in_(batch)),
        ):
            _execute(session, statement)


def _dissected_elsewhere(session: Session, model: Model) -> None:
    """Say of the organs that came with it first, and are still here, that they came with the oldest that is left."""
    oldest = select(func.min(Placement.model_id)).where(Placement.organ_id == Lineage.child_organ_id)
    edges = update(Lineage).where(Lineage.parent_model_id == model.id, Lineage.child_organ_id.is_not(None))
    _execute(session, edges.values(parent_model_id=oldest.scalar_subquery()))


def _execute(session: Session, statement: Delete | Update) -> None:
    # Rows by the ten thousand: the session need not look which of them it holds.
    options: dict[str, Any] = {"synchronize_session": False}
    session.execute(statement, execution_options=options)
