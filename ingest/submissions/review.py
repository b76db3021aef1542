"""An administrator approves or refuses a model that is in quarantine."""

from __future__ import annotations

from sqlalchemy.orm import Session

from organs.ingest.publishing import publish_model
from organs.ingest.submissions.neighbours import unfit_for_its_base
from organs.registry.catalog.actions import Action
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.register.states import remove_model
from organs.registry.catalog.register.submissions import change_submission, locked_submission, submissions_waiting_for
from organs.registry.catalog.tables import Model, Submission
from organs.registry.errors import Conflict
from organs.registry.registry import Registry


def approve_submission(registry: Registry, submission_id: int, by: str) -> None:
    """Publish the model of a quarantined submission.

    Raises NotFound; Conflict when the submission is in another state, and when the model has only some organs and they
    do not fit its base, which may have been registered after the inspection.
    """
    with registry.catalog.writing() as session:
        model = _waiting_model(session, submission_id)
        unfit = unfit_for_its_base(session, model)
        if unfit is not None:
            raise Conflict(f"{model.full_name} cannot be published: {unfit.sentence[:1].lower()}{unfit.sentence[1:-1]}")
        record_event(session, by, Action.APPROVE, model.full_name, model_id=model.id, submission=submission_id)
        publish_model(session, model, by)
        for row in submissions_waiting_for(session, model.id):
            change_submission(session, row, "published", decided_by=by)


def refuse_submission(registry: Registry, submission_id: int, reason: str, by: str) -> None:
    """Remove the model of a quarantined submission; its contributor reads the reason.

    The next sweep removes bytes that no other model needs. Raises NotFound, Conflict, and BadValue for a reason that is
    empty or too long.
    """
    with registry.catalog.writing() as session:
        model = _waiting_model(session, submission_id)
        about = (model.full_name, reason[:200])
        record_event(session, by, Action.REFUSE, *about, model_id=model.id, submission=submission_id)
        rows = submissions_waiting_for(session, model.id)
        remove_model(session, model, reason, by)
        for row in rows:
            change_submission(session, row, "refused", reason=reason.strip(), decided_by=by)


def _waiting_model(session: Session, submission_id: int) -> Model:
    row: Submission = locked_submission(session, submission_id)
    model = None if row.model_id is None else session.get(Model, row.model_id)
    if row.state != "quarantined" or model is None:
        raise Conflict(
            f"submission {submission_id} is {row.state}: only one that is quarantined can be approved or refused"
        )
    return model
