"""The jobs on submissions: what the confined program says becomes the state of a submission.

checking -> ready                            looked at, `publish` false
checking -> publishing -> published          or quarantined, where an administrator is to look at it
checking, publishing -> refused              with findings; its uploads are forgotten
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session

from ingest.publishing import publish_model
from ingest.submissions.cleanup import remove_uploads_of
from ingest.submissions.confined import Order, Stopped, Worker, in_child
from ingest.submissions.findings import REFUSE, Finding, findings_json, parse_findings
from ingest.submissions.neighbours import FOR_ADMINISTRATORS, unfit_for_its_base
from ingest.submissions.serialize import metadata_json, read_manifest, stated_metadata_of
from registry.catalog.actions import Action
from registry.catalog.queries.submissions import (
    abandoned_submissions,
    forsaken_models,
    submission_by_id,
)
from registry.catalog.register.events import record_event
from registry.catalog.register.states import withdraw_model
from registry.catalog.register.submissions import (
    change_submission,
    locked_submission,
    release_ingest,
    submissions_waiting_for,
)
from registry.catalog.tables import Contributor, Model, Submission
from registry.errors import OrganError
from registry.registry import Registry

LOOKED_AT = ("checking", "publishing")
LOOKED_SHARE = 0.05
"""Of a job that also publishes: reading the headers, about."""
OUR_FAULT = "It could not be looked at, and that is our fault, not yours. What you sent is kept: submit it again."
REMOVED_MEANWHILE = "An administrator removed it while it was looked at."
CANCELLED = "The job that looked at it was cancelled."
ABANDONED = "Its submission ended before it was published."
WITHDRAWN_MEANWHILE = "It was withdrawn before it was published."
MISFIT = "Its organs do not fit into its base."

Tell = Callable[[float, str], None]

_log = logging.getLogger(__name__)


class NotWanted(Exception):
    """The submission was withdrawn while it was worked at."""


def attend_to(
    registry: Registry, submission_id: int, tell: Tell, *, publish: bool, worker: Worker = in_child
) -> dict[str, Any]:
    """Look at a submission, and with `publish` make a model of it; its `submission` and `state` afterwards.

    What was dealt with already is left as it is. Raises OrganError for a fault of ours, after saying so to the
    contributor, and what `tell` raises.
    """
    with registry.catalog.reading() as session:
        row = submission_by_id(session, submission_id).row
        order = Order(submission_id, publish, row.size_bytes)
    if row.state in LOOKED_AT:
        tell(0.0, "reading the headers")
        heard = _Heard(registry, order, tell)
        try:
            _work(registry, order, heard, worker)
        except NotWanted:
            _log.info("submission %d was withdrawn while it was looked at", submission_id)
        else:
            _conclude(registry, order, heard)
    with registry.catalog.reading() as session:
        return {"submission": submission_id, "state": submission_by_id(session, submission_id).row.state}


def settle_abandoned(registry: Registry) -> None:
    """Say what became of submissions whose job ended without a word: a runner that died, a job that was cancelled."""
    with registry.catalog.reading() as session:
        abandoned = abandoned_submissions(session)
    for submission_id, job_state, _ in abandoned:
        with registry.catalog.writing() as session:
            row = locked_submission(session, submission_id)
            if row.state not in LOOKED_AT:
                continue
            if job_state == "cancelled":
                change_submission(session, row, "withdrawn", reason=CANCELLED)
            else:
                _say_our_fault(session, row)
            # Its program may have registered a model before it ended, and nobody was left to say so.
            for model in forsaken_models(session, row):
                withdraw_model(session, model, ABANDONED, "local")


@dataclass(slots=True)
class _Heard:
    """What the program has said so far; takes its lines. Raises NotWanted."""

    registry: Registry
    order: Order
    tell: Tell
    findings: list[Finding] = field(default_factory=list)
    refused: list[Finding] = field(default_factory=list)
    is_looked_at: bool = False
    fault: str | None = None
    ingest_id: int | None = None
    model_id: int | None = None

    def __call__(self, line: dict[str, Any]) -> None:
        if "progress" in line:
            self.tell(LOOKED_SHARE + (1 - LOOKED_SHARE) * float(line["progress"]), str(line["note"]))
        elif "looked" in line:
            self.is_looked_at = True
            self.findings += parse_findings(line["looked"]["findings"])
            self._note_looked(line["looked"]["proposed"])
        elif "ingest" in line:
            self.ingest_id = int(line["ingest"])
        elif "registered" in line:
            self.model_id = int(line["registered"]["model"])
            self.findings += parse_findings(line["registered"]["findings"])
        elif "refused" in line:
            self.refused += parse_findings(line["refused"])
        elif "fault" in line:
            self.fault = str(line["fault"])

    def _note_looked(self, proposed: dict[str, Any]) -> None:
        with self.registry.catalog.writing() as session:
            row = locked_submission(session, self.order.submission)
            if row.state not in LOOKED_AT:
                raise NotWanted
            said = metadata_json(stated_metadata_of(row), publish=self.order.publish, proposed=proposed)
            state = "publishing" if self.order.publish else row.state
            change_submission(session, row, state, findings=findings_json(self.findings), said=said)
        self.tell(LOOKED_SHARE, "taking it apart" if self.order.publish else "looked at")


def _work(registry: Registry, order: Order, heard: _Heard, worker: Worker) -> None:
    """Let the program do the order; what it had leased is given back when it was ended before its own end."""
    try:
        worker(registry, order, heard)
    except Stopped as error:
        _release(registry, order, heard)
        heard.refused.append(Finding(REFUSE, "limit" if error.is_limit else "crashed", str(error)))
    except BaseException:
        _release(registry, order, heard)
        raise


def _release(registry: Registry, order: Order, heard: _Heard) -> None:
    if heard.ingest_id is not None:
        with registry.catalog.writing() as session:
            heard.model_id = release_ingest(session, heard.ingest_id) or heard.model_id
            if locked_submission(session, order.submission).state not in LOOKED_AT:
                _let_go(session, heard.model_id)


def _conclude(registry: Registry, order: Order, heard: _Heard) -> None:
    said_nothing = heard.model_id is None and not heard.refused and (order.publish or not heard.is_looked_at)
    if heard.fault is not None or said_nothing:
        with registry.catalog.writing() as session:
            _say_our_fault(session, locked_submission(session, order.submission))
        raise OrganError(heard.fault or "the program that looked at it said nothing")
    with registry.catalog.writing() as session:
        row = locked_submission(session, order.submission)
        if row.state not in LOOKED_AT:
            _let_go(session, heard.model_id)
            return
        owner_id, kept = row.contributor_id, row.manifest  # which goes when it has ended
        if heard.model_id is not None:
            _settle(session, registry, row, session.get_one(Model, heard.model_id), heard.findings)
        elif heard.refused:
            _refuse(session, row, [*heard.refused, *heard.findings])
        else:
            change_submission(session, row, "ready")
        ended = row.state != "ready"
    if ended:
        remove_uploads_of(registry, owner_id, read_manifest(kept))


def _settle(session: Session, registry: Registry, row: Submission, model: Model, found: list[Finding]) -> None:
    """A model was made: it is published, unless somebody is to look at it first."""
    if model.state == "removed":
        _refuse(session, row, [Finding(REFUSE, "removed", REMOVED_MEANWHILE), *found])
        return
    is_suspended = session.get_one(Contributor, row.contributor_id).state != "active"
    awaits = is_suspended or registry.settings.review != "auto" or any(one.code in FOR_ADMINISTRATORS for one in found)
    if model.state == "quarantined" and not awaits:
        unfit = unfit_for_its_base(session, model)
        if unfit is not None:  # its base came after its header was looked at
            _refuse(session, row, [unfit, *found])
            _let_go(session, model.id, MISFIT)
            return
        publish_model(session, model, _name_of(session, row))
    state = "quarantined" if model.state == "quarantined" else "published"
    change_submission(session, row, state, findings=findings_json(found), model_id=model.id)


def _refuse(session: Session, row: Submission, found: list[Finding]) -> None:
    reason = next(one.sentence for one in found if one.severity == REFUSE)
    change_submission(session, row, "refused", findings=findings_json(found), reason=reason)
    name, model = _name_of(session, row), f"{row.namespace}/{row.name}"
    record_event(session, name, Action.FAIL_CHECKS, model, reason, submission=row.id)


def _say_our_fault(session: Session, row: Submission) -> None:
    if row.state in LOOKED_AT:
        found = findings_json([Finding(REFUSE, "our-fault", OUR_FAULT)])
        change_submission(session, row, "refused", findings=found, reason=OUR_FAULT)


def _let_go(session: Session, model_id: int | None, reason: str = WITHDRAWN_MEANWHILE) -> None:
    """It was withdrawn or refused: what was made of it goes, unless another submission waits for the same."""
    model = None if model_id is None else session.get(Model, model_id)
    if model is not None and model.state == "quarantined" and not submissions_waiting_for(session, model.id):
        withdraw_model(session, model, reason, "local")


def _name_of(session: Session, row: Submission) -> str:
    return submission_by_id(session, row.id).contributor
