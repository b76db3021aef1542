"""The jobs on submissions: inspect the files, register a model, and publish it or hold it for review.

checking -> ready                            inspected, `publish` false
checking -> publishing -> ready              a finding must be accepted before it is published
checking -> publishing -> published          or quarantined, where an administrator must approve it
checking, publishing -> refused              with findings; its uploads are removed

Two processes work on a submission (`docs/design/inspection.md`). A confined inspector parses the files and measures
their tensors. This process locates the bytes, sends them to the inspector, checks its answers, computes every
digest, stores the blobs and writes the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock

from sqlalchemy.orm import Session

from organs.ingest.contributions.findings import (
    REFUSE,
    finding_of,
    findings_json,
    unaccepted,
)
from organs.ingest.contributions.inspection import (
    Inspection,
    Refused,
    StartInspector,
    Stopped,
    confined_inspector,
)
from organs.ingest.contributions.manifest import (
    BadManifest,
    StatedMetadata,
)
from organs.ingest.contributions.pieces import (
    LocatedFile,
    Sources,
    composed_file,
    locate,
)
from organs.ingest.contributions.proposal import (
    FOR_ADMINISTRATORS,
    Proposal,
    base_findings,
    count_nonfinite_weights,
    digest_findings,
    findings_of,
    identity_of,
    misfit_of_base,
    name_findings,
    nonfinite_finding,
    organ_findings,
    propose,
)
from organs.ingest.contributions.submissions import (
    accepted_of,
    manifest_of,
    metadata_json,
    read_manifest,
    remove_uploads_of,
    stated_metadata_of,
)
from organs.ingest.dissect import DissectedFile, dissect
from organs.ingest.files import ComposedFile
from organs.ingest.service import Intake, always, ingest_files, publish_model
from organs.ingest.sources import in_order
from organs.registry.catalog.queries.submissions import (
    abandoned_submissions,
    submission_by_id,
    unclaimed_models,
)
from organs.registry.catalog.records import ModelRecord, ParentRecord
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.register.models import withdraw_model
from organs.registry.catalog.register.submissions import change_submission, locked_submission, submissions_waiting_for
from organs.registry.catalog.tables import Contributor, Model, Submission
from organs.registry.catalog.vocabulary import Action
from organs.registry.digest import Digest, model_digest
from organs.registry.entities.job import SubmissionJobResult
from organs.registry.entities.submission import SubmissionFinding
from organs.registry.errors import OUTAGES, BadInput, OrganError, UnsupportedDType
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.relatives.resolve import declared_parents, stated_relation

UNDER_WAY = ("checking", "publishing")
INSPECTED_SHARE = 0.05
"""Share of a job's progress for reading the headers."""
BUFFERS = 12
"""Number of buffers of 4 MiB. It limits the memory of the process that runs jobs."""
LITERALS_MAX_BYTES = 64 * 1024 * 1024
"""Limit of a file's header without large arrays and texts, which is read into memory."""
OUR_FAULT = "The inspection failed because of an error of this registry. Your upload is kept: submit it again."
REMOVED_MEANWHILE = "An administrator removed it during the inspection."
CANCELLED = "The job that inspected it was cancelled."
ABANDONED = "Its submission ended before it was published."
WITHDRAWN_MEANWHILE = "It was withdrawn before it was published."
MISFIT = "Its organs do not fit into its base."

ReportProgress = Callable[[float, str], None]

_log = logging.getLogger(__name__)


def process_submission(
    registry: LocalRegistry,
    submission_id: int,
    report_progress: ReportProgress,
    *,
    publish: bool,
    start_inspector: StartInspector = confined_inspector,
) -> SubmissionJobResult:
    """Inspect a submission, and with `publish` register it as a model. Return its `submission` id and its new `state`.

    A submission that was processed before is left unchanged. Raises OUTAGES, OrganError for another fault of the
    registry, after recording it in the submission, and the errors of `report_progress`.
    """
    with registry.catalog.reading() as session:
        state = submission_by_id(session, submission_id).row.state
    if state in UNDER_WAY:
        report_progress(0.0, "reading the headers")
        outcome = _Outcome()
        try:
            _attempt(
                registry, submission_id, report_progress, outcome, publish=publish, start_inspector=start_inspector
            )
            _conclude(registry, submission_id, outcome)
        except _Withdrawn:
            _log.info("submission %d was withdrawn while it was inspected", submission_id)
        except OUTAGES:
            raise  # the job runs again later, as after the death of its runner
        except OrganError:
            with registry.catalog.writing() as session:
                _record_our_fault(session, locked_submission(session, submission_id))
            _withdraw_unwanted(registry, submission_id, outcome)
            raise
        except BaseException:
            _withdraw_unwanted(registry, submission_id, outcome)
            raise
    with registry.catalog.reading() as session:
        return SubmissionJobResult(submission=submission_id, state=submission_by_id(session, submission_id).row.state)


def settle_abandoned(registry: LocalRegistry) -> None:
    """End submissions whose job ended without a result, because its runner was killed or the job was cancelled."""
    with registry.catalog.reading() as session:
        abandoned = abandoned_submissions(session)
    for submission_id, job_state, _ in abandoned:
        with registry.catalog.writing() as session:
            row = locked_submission(session, submission_id)
            if row.state not in UNDER_WAY:
                continue
            if job_state == "cancelled":
                change_submission(session, row, "withdrawn", reason=CANCELLED)
            else:
                _record_our_fault(session, row)
            # The job may have registered a model and ended before it recorded that.
            for model in unclaimed_models(session, row):
                withdraw_model(session, model, ABANDONED, "local")


class _Withdrawn(Exception):
    """The submission was withdrawn during its job."""


class _NotAccepted(Exception):
    """A finding must be accepted before the model is registered."""


@dataclass(slots=True)
class _Outcome:
    """The results of a submission so far."""

    findings: list[SubmissionFinding] = field(default_factory=list)
    refused: list[SubmissionFinding] = field(default_factory=list)
    model_id: int | None = None


@dataclass(frozen=True, slots=True)
class _Submission:
    """The values of a submission, read from the catalog."""

    id: int
    name: ModelName
    contributor: str
    contributor_id: int
    stated: StatedMetadata
    accepted: tuple[str, ...]
    files: list[LocatedFile]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def _attempt(
    registry: LocalRegistry,
    submission_id: int,
    report_progress: ReportProgress,
    outcome: _Outcome,
    *,
    publish: bool,
    start_inspector: StartInspector,
) -> None:
    """Inspect and register; faults of the files become refusing findings."""
    try:
        submission = _load(registry, submission_id)
        with ExitStack() as opened:
            inspection = opened.enter_context(
                start_inspector(submission.size_bytes, registry.settings.requires_sandbox)
            )
            sources = opened.enter_context(Sources(registry))
            files = _read_files(submission, sources, inspection, report_progress)
            proposal = propose(files, submission.stated)
            outcome.findings += _review(registry, files, submission, proposal)
            if not publish:
                progress = _Progress(report_progress, submission.size_bytes, "checking all weights")
                outcome.findings += nonfinite_finding(count_nonfinite_weights(files, progress))
            _record_inspection(registry, submission, proposal, outcome.findings, publish=publish)
            if not publish:
                return  # refusals are only reported, because the contributor can still name another base
            outcome.refused += [finding for finding in outcome.findings if finding.severity == REFUSE]
            if not outcome.refused:
                _register(registry, files, submission, proposal, inspection, report_progress, outcome)
    except _NotAccepted:
        pass  # the submission stays `ready`, with its findings
    except BadManifest as error:
        sentences = [f"{where}: {sentence}" if where else sentence for where, sentence in error.reasons]
        outcome.refused += [SubmissionFinding(REFUSE, "missing-bytes", sentence) for sentence in sentences]
    except Refused as error:
        outcome.refused.append(SubmissionFinding(REFUSE, error.finding, str(error)))
    except BadInput as error:
        outcome.refused.append(finding_of(error))
    except UnsupportedDType as error:
        outcome.refused.append(SubmissionFinding(REFUSE, "unsupported-dtype", str(error)))
    except Stopped as error:
        outcome.refused.append(SubmissionFinding(REFUSE, "limit" if error.is_limit else "crashed", str(error)))


def _load(registry: LocalRegistry, submission_id: int) -> _Submission:
    with registry.catalog.reading() as session:
        submission = submission_by_id(session, submission_id)
        row: Submission = submission.row
        files = locate(session, row.contributor_id, manifest_of(row))
        name = ModelName(row.namespace, row.name)
        stated, accepted = stated_metadata_of(row), accepted_of(row)
        return _Submission(row.id, name, submission.contributor, row.contributor_id, stated, accepted, files)


def _read_files(
    submission: _Submission, sources: Sources, inspection: Inspection, report_progress: ReportProgress
) -> list[DissectedFile]:
    files = []
    for number, file in enumerate(submission.files):
        source = composed_file(sources, file)
        advance = partial(report_progress, INSPECTED_SHARE * number / len(submission.files), "reading the headers")
        dissected = dissect(source, inspection.front(source, advance))
        if sum(span.size_bytes for span in dissected.literals()) > LITERALS_MAX_BYTES:
            limit = f"{LITERALS_MAX_BYTES:,} bytes of short values"
            raise Refused("too-large", f"{file.name}: its header has more than {limit}.")
        files.append(dissected)
    return in_order(submission.name.name, files)


def _review(
    registry: LocalRegistry, files: Sequence[DissectedFile], submission: _Submission, proposal: Proposal
) -> list[SubmissionFinding]:
    """Return the findings on the headers alone, and on their comparison with the catalog."""
    findings = list(findings_of(files, submission.name, proposal))
    digests = [_announced_digest(file) for file in files]
    is_partial = proposal.kind == "model" and not proposal.complete
    organs = [tensor for file in files for tensor in file.header.tensors] if is_partial else []
    header = files[0].header
    child = identity_of(header, submission.name, proposal)
    with registry.catalog.reading() as session:
        findings += base_findings(session, proposal.base, organs, child, declared_parents(header))
        known = [announced for announced in digests if announced is not None]
        digest = model_digest(known) if len(known) == len(digests) else None
        findings += name_findings(session, submission.name, digest)
        if digest is not None:
            findings += digest_findings(session, digest, submission.name, submission.contributor_id)
    return findings


def _announced_digest(file: DissectedFile) -> Digest | None:
    """Return the SHA-256 that the contributor announced for a file."""
    return file.source.sha256 if isinstance(file.source, ComposedFile) else None


def _record_inspection(
    registry: LocalRegistry,
    submission: _Submission,
    proposal: Proposal,
    findings: Sequence[SubmissionFinding],
    *,
    publish: bool,
) -> None:
    with registry.catalog.writing() as session:
        row = locked_submission(session, submission.id)
        if row.state not in UNDER_WAY:
            raise _Withdrawn
        metadata = metadata_json(
            stated_metadata_of(row),
            publish=publish,
            proposed=proposal.values(),
            accepted=accepted_of(row),
        )
        state = "publishing" if publish else row.state
        change_submission(session, row, state, findings=findings_json(findings), description=metadata)


def _register(
    registry: LocalRegistry,
    files: Sequence[DissectedFile],
    submission: _Submission,
    proposal: Proposal,
    inspection: Inspection,
    report_progress: ReportProgress,
    outcome: _Outcome,
) -> None:
    """Store and measure the pieces, register the model as quarantined, and compare it with other models.

    Weights that are NaN or infinite are counted while all bytes are hashed, so the finding about them is added here,
    before the model is registered. Raises _NotAccepted.
    """

    def settle(record: ModelRecord) -> ModelRecord:
        for file, stored in zip(files, record.files, strict=True):
            announced = _announced_digest(file)
            if announced is not None and announced != stored.sha256:
                raise BadInput(f"{file.source.name}: its SHA-256 is {stored.sha256}, not the announced {announced}")
        counts = {placement.name: placement.nonfinite for placement in record.placements if placement.nonfinite}
        outcome.findings += nonfinite_finding(counts)
        if open_findings := unaccepted(outcome.findings, submission.accepted):
            raise _NotAccepted(f"must be accepted first: {', '.join(finding.code for finding in open_findings)}")
        return _with_stated(record, submission)

    models: list[int] = []
    intake = Intake(
        label=f"submitted by {submission.contributor}",
        name=submission.name,
        new_version=always,  # the inspection has a finding about it
        settle=settle,
        registered=lambda model: models.append(model.id),
        measurer=inspection,
        buffers=BUFFERS,
    )
    progress = _Progress(report_progress, submission.size_bytes, "storing and measuring")
    report = ingest_files(registry, files, intake, progress)
    outcome.model_id = models[0]  # set after the transaction was committed
    report_progress(1.0, "comparing it with other models")
    with registry.catalog.reading() as session:
        model = session.get_one(Model, outcome.model_id)
        header = files[0].header
        child = identity_of(header, submission.name, proposal)
        outcome.findings += organ_findings(session, model, proposal.base, child, declared_parents(header))
        outcome.findings += digest_findings(session, report.digest, submission.name, submission.contributor_id)


def _with_stated(record: ModelRecord, submission: _Submission) -> ModelRecord:
    """Return the record with the stated metadata, quarantined until it is published."""
    stated = submission.stated
    base = stated.base or ""
    relation = stated_relation(record.kind, base, ((parent.text, parent.relation) for parent in record.parents))
    return replace(
        record,
        title=stated.title or record.title,
        description=stated.description or record.description,
        license=stated.license or record.license,
        tags=record.tags if stated.tags is None else stated.tags,
        parents=record.parents if stated.base is None else (ParentRecord(base, relation),),
        contributor=submission.contributor,
        state="quarantined",
    )


class _Progress:
    """Reports the share of processed bytes, with `note`. For any thread; raises the errors of `report_progress`."""

    def __init__(self, report_progress: ReportProgress, size_bytes: int, note: str) -> None:
        self._report_progress = report_progress
        self._note = note
        self._size_bytes = max(size_bytes, 1)
        self._done_bytes = 0
        self._lock = Lock()
        self(0)

    def __call__(self, size_bytes: int) -> None:
        with self._lock:
            self._done_bytes += size_bytes
            share = min(self._done_bytes / self._size_bytes, 1.0)
        self._report_progress(INSPECTED_SHARE + (1 - INSPECTED_SHARE) * share, self._note)


def _conclude(registry: LocalRegistry, submission_id: int, outcome: _Outcome) -> None:
    with registry.catalog.writing() as session:
        row = locked_submission(session, submission_id)
        if row.state not in UNDER_WAY:
            _withdraw_quarantined(session, outcome.model_id)
            return
        owner_id, manifest = row.contributor_id, row.manifest  # read now: the manifest is removed at the end
        if outcome.refused:
            _refuse(session, row, [*outcome.refused, *outcome.findings])
        elif outcome.model_id is not None:
            _settle(session, registry, row, session.get_one(Model, outcome.model_id), outcome.findings)
        else:
            change_submission(session, row, "ready", findings=findings_json(outcome.findings))
        has_ended = row.state != "ready"
    if has_ended:
        remove_uploads_of(registry, owner_id, read_manifest(manifest))


def _settle(
    session: Session, registry: LocalRegistry, row: Submission, model: Model, findings: list[SubmissionFinding]
) -> None:
    """Publish the registered model, unless an administrator must review it first."""
    if model.state == "removed":
        _refuse(session, row, [SubmissionFinding(REFUSE, "removed", REMOVED_MEANWHILE), *findings])
        return
    is_suspended = session.get_one(Contributor, row.contributor_id).state != "active"
    needs_review = (
        is_suspended
        or registry.settings.review != "auto"
        or any(finding.code in FOR_ADMINISTRATORS for finding in findings)
    )
    if model.state == "quarantined" and not needs_review:
        misfit = misfit_of_base(session, model)
        if misfit is not None:  # its base was registered after the inspection of its header
            _refuse(session, row, [misfit, *findings])
            _withdraw_quarantined(session, model.id, MISFIT)
            return
        publish_model(session, model, _contributor_name(session, row))
    state = "quarantined" if model.state == "quarantined" else "published"
    change_submission(session, row, state, findings=findings_json(findings), model_id=model.id)


def _refuse(session: Session, row: Submission, findings: list[SubmissionFinding]) -> None:
    reason = next(finding.sentence for finding in findings if finding.severity == REFUSE)
    change_submission(session, row, "refused", findings=findings_json(findings), reason=reason)
    name, model = _contributor_name(session, row), f"{row.namespace}/{row.name}"
    record_event(session, name, Action.FAIL_CHECKS, model, reason, submission=row.id)


def _record_our_fault(session: Session, row: Submission) -> None:
    if row.state in UNDER_WAY:
        document = findings_json([SubmissionFinding(REFUSE, "our-fault", OUR_FAULT)])
        change_submission(session, row, "refused", findings=document, reason=OUR_FAULT)


def _withdraw_unwanted(registry: LocalRegistry, submission_id: int, outcome: _Outcome) -> None:
    """Withdraw the registered model if its submission has ended meanwhile."""
    if outcome.model_id is not None:
        with registry.catalog.writing() as session:
            if locked_submission(session, submission_id).state not in UNDER_WAY:
                _withdraw_quarantined(session, outcome.model_id)


def _withdraw_quarantined(session: Session, model_id: int | None, reason: str = WITHDRAWN_MEANWHILE) -> None:
    """Withdraw a quarantined model that is no longer needed, unless another submission waits for it."""
    model = None if model_id is None else session.get(Model, model_id)
    if model is not None and model.state == "quarantined" and not submissions_waiting_for(session, model.id):
        withdraw_model(session, model, reason, "local")


def _contributor_name(session: Session, row: Submission) -> str:
    return submission_by_id(session, row.id).contributor
