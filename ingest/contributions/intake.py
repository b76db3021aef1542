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
from dataclasses import replace
from functools import partial
from threading import Lock

from msgspec import structs
from sqlalchemy.orm import Session

from organs.ingest.contributions.findings import REFUSE, finding_of, findings_json, unaccepted
from organs.ingest.contributions.inspection import (
    Inspection,
    InspectionStopped,
    RefusedByInspection,
    StartInspector,
    confined_inspector,
)
from organs.ingest.contributions.manifest import BadManifest
from organs.ingest.contributions.pieces import LocatedFile, Sources, locate
from organs.ingest.contributions.proposal import (
    FOR_ADMINISTRATORS,
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
from organs.ingest.contributions.submissions import files_of, remove_uploads_of, statements_of
from organs.ingest.dissect import DissectedFile, dissect
from organs.ingest.files import ComposedFile
from organs.ingest.service import Intake, always, ingest_files, publish_model
from organs.ingest.sources import in_order
from organs.registry.catalog.queries.submissions import (
    IN_JOB,
    SubmissionWithJob,
    abandoned_submissions,
    submission_by_id,
    unclaimed_models,
)
from organs.registry.catalog.records import ModelRecord, ParentRecord
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.register.model_changes import withdraw_model
from organs.registry.catalog.register.submissions import change_submission, locked_submission, submissions_waiting_for
from organs.registry.catalog.tables import ContributorRow, ModelRow, SubmissionRow
from organs.registry.catalog.vocabulary import Action
from organs.registry.digest import Digest, model_digest
from organs.registry.entities.job import SubmissionJobResult
from organs.registry.entities.submission import ProposedModel, SubmissionFinding
from organs.registry.errors import OUTAGES, BadInput, OrganError, UnsupportedDType
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.relatives.resolve import declared_parents, stated_relation

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
        submission = submission_by_id(session, submission_id)
    if submission.row.state in IN_JOB:
        report_progress(0.0, "reading the headers")
        job = _Job(registry, submission, report_progress, publish)
        try:
            job.attempt(start_inspector)
            job.conclude()
        except _Withdrawn:
            _log.info("submission %d was withdrawn while it was inspected", submission_id)
        except OUTAGES:
            raise  # the job runs again later, as after the death of its runner
        except BaseException as error:
            if isinstance(error, OrganError) or job.model_id is not None:
                with registry.catalog.writing() as session:
                    row = locked_submission(session, submission_id)
                    if isinstance(error, OrganError) and row.state in IN_JOB:
                        _record_our_fault(session, row)
                    if row.state not in IN_JOB:
                        _withdraw_quarantined(session, job.model_id)
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
            if row.state not in IN_JOB:
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


class _Job:
    """One run of the job on a submission, with its results so far."""

    def __init__(
        self, registry: LocalRegistry, submission: SubmissionWithJob, report_progress: ReportProgress, publish: bool
    ) -> None:
        row = submission.row
        self._registry, self._report_progress, self._publish = registry, report_progress, publish
        self._id, self._contributor_id, self._contributor = row.id, row.contributor_id, submission.contributor
        self._name = ModelName(row.namespace, row.name)
        self._statements = statements_of(row)
        self._findings: list[SubmissionFinding] = []
        self._refused: list[SubmissionFinding] = []
        self.model_id: int | None = None
        """The model, once it is registered."""

    def attempt(self, start_inspector: StartInspector) -> None:
        """Inspect and register; faults of the files become refusing findings."""
        registry = self._registry
        try:
            with registry.catalog.reading() as session:
                row = session.get_one(SubmissionRow, self._id)
                if row.state not in IN_JOB:
                    raise _Withdrawn
                located = locate(session, self._contributor_id, files_of(row))
            size_bytes = sum(file.size_bytes for file in located)
            inspector = start_inspector(size_bytes, registry.settings.requires_sandbox)
            with inspector as inspection, Sources(registry) as sources:
                dissected = self._read(located, sources, inspection)
                proposal = propose(dissected, self._statements.stated)
                self._findings += self._review(dissected, proposal)
                if not self._publish:
                    counted = _ByteProgress(self._report_progress, size_bytes, "checking all weights")
                    self._findings += nonfinite_finding(count_nonfinite_weights(dissected, counted))
                self._record_inspection(proposal)
                if not self._publish:
                    return  # refusals are only reported, because the contributor can still name another base
                self._refused += [finding for finding in self._findings if finding.severity == REFUSE]
                if not self._refused:
                    stored = _ByteProgress(self._report_progress, size_bytes, "storing and measuring")
                    self._register(dissected, proposal, inspection, stored)
        except _NotAccepted:
            pass  # the submission stays `ready`, with its findings
        except BadManifest as error:
            sentences = [f"{where}: {sentence}" if where else sentence for where, sentence in error.reasons]
            self._refused += [SubmissionFinding(REFUSE, "missing-bytes", sentence) for sentence in sentences]
        except RefusedByInspection as error:
            self._refused.append(SubmissionFinding(REFUSE, error.finding, str(error)))
        except BadInput as error:
            self._refused.append(finding_of(error))
        except UnsupportedDType as error:
            self._refused.append(SubmissionFinding(REFUSE, "unsupported-dtype", str(error)))
        except InspectionStopped as error:
            self._refused.append(SubmissionFinding(REFUSE, "limit" if error.is_limit else "crashed", str(error)))

    def _read(self, files: Sequence[LocatedFile], sources: Sources, inspection: Inspection) -> list[DissectedFile]:
        """Return the files, with the headers as the inspector read them."""
        dissected = []
        for number, file in enumerate(files):
            source = sources.file(file)
            advance = partial(self._report_progress, INSPECTED_SHARE * number / len(files), "reading the headers")
            read = dissect(source, inspection.front(source, advance))
            if sum(span.size_bytes for span in read.literals()) > LITERALS_MAX_BYTES:
                limit = f"{LITERALS_MAX_BYTES:,} bytes of short values"
                raise RefusedByInspection("too-large", f"{file.name}: its header has more than {limit}.")
            dissected.append(read)
        return in_order(self._name.name, dissected)

    def _review(self, files: Sequence[DissectedFile], proposal: ProposedModel) -> list[SubmissionFinding]:
        """Return the findings on the headers alone, and on their comparison with the catalog."""
        findings = list(findings_of(files, self._name, proposal))
        header = files[0].header
        is_partial = proposal.kind == "model" and not proposal.complete
        organs = [tensor for file in files for tensor in file.header.tensors] if is_partial else []
        child = identity_of(header, self._name, proposal)
        announced = [digest for file in files if (digest := _announced_digest(file)) is not None]
        digest = model_digest(announced) if len(announced) == len(files) else None
        with self._registry.catalog.reading() as session:
            findings += base_findings(session, proposal.base, organs, child, declared_parents(header))
            findings += name_findings(session, self._name, digest)
            if digest is not None:
                findings += digest_findings(session, digest, self._name, self._contributor_id)
        return findings

    def _record_inspection(self, proposal: ProposedModel) -> None:
        with self._registry.catalog.writing() as session:
            row = locked_submission(session, self._id)
            if row.state not in IN_JOB:
                raise _Withdrawn
            statements = structs.replace(statements_of(row), publish=self._publish, proposed=proposal)
            state = "publishing" if self._publish else row.state
            findings = findings_json(self._findings)
            change_submission(session, row, state, findings=findings, description=statements.encoded())

    def _register(
        self,
        files: Sequence[DissectedFile],
        proposal: ProposedModel,
        inspection: Inspection,
        progress: Callable[[int], None],
    ) -> None:
        """Store and measure the pieces, register the model as quarantined, and compare it with other models.

        Weights that are NaN or infinite are counted while all bytes are hashed, so the finding about them is added
        here, before the model is registered. Raises _NotAccepted.
        """

        def settle(record: ModelRecord) -> ModelRecord:
            for file, stored in zip(files, record.files, strict=True):
                announced = _announced_digest(file)
                if announced is not None and announced != stored.sha256:
                    raise BadInput(f"{file.source.name}: its SHA-256 is {stored.sha256}, not the announced {announced}")
            counts = {placement.name: placement.nonfinite for placement in record.placements if placement.nonfinite}
            self._findings += nonfinite_finding(counts)
            if open_findings := unaccepted(self._findings, self._statements.accepted):
                codes = ", ".join(finding.code for finding in open_findings)
                raise _NotAccepted(f"must be accepted first: {codes}")
            stated, base = self._statements.stated, self._statements.stated.base or ""
            parents = ((parent.text, parent.relation) for parent in record.parents)
            relation = stated_relation(record.kind, base, parents)
            return replace(
                record,
                title=stated.title or record.title,
                description=stated.description or record.description,
                license=stated.license or record.license,
                tags=record.tags if stated.tags is None else stated.tags,
                parents=record.parents if stated.base is None else (ParentRecord(base, relation),),
                contributor=self._contributor,
                state="quarantined",  # until it is published
            )

        models: list[int] = []
        intake = Intake(
            label=f"submitted by {self._contributor}",
            name=self._name,
            new_version=always,  # the inspection has a finding about it
            settle=settle,
            registered=lambda model: models.append(model.id),
            measurer=inspection,
            buffers=BUFFERS,
        )
        report = ingest_files(self._registry, files, intake, progress)
        self.model_id = models[0]  # set after the transaction was committed
        self._report_progress(1.0, "comparing it with other models")
        header = files[0].header
        child = identity_of(header, self._name, proposal)
        with self._registry.catalog.reading() as session:
            model = session.get_one(ModelRow, self.model_id)
            self._findings += organ_findings(session, model, proposal.base, child, declared_parents(header))
            self._findings += digest_findings(session, report.digest, self._name, self._contributor_id)

    def conclude(self) -> None:
        """Record the result, and remove the uploads if the submission has ended."""
        with self._registry.catalog.writing() as session:
            row = locked_submission(session, self._id)
            if row.state not in IN_JOB:
                _withdraw_quarantined(session, self.model_id)
                return
            files = files_of(row)  # read now: they are removed at the end
            if self._refused:
                self._refuse(session, row, self._refused)
            elif self.model_id is not None:
                self._settle(session, row, session.get_one(ModelRow, self.model_id))
            else:
                change_submission(session, row, "ready", findings=findings_json(self._findings))
            has_ended = row.state != "ready"
        if has_ended:
            remove_uploads_of(self._registry, self._contributor_id, files)

    def _settle(self, session: Session, row: SubmissionRow, model: ModelRow) -> None:
        """Publish the registered model, unless an administrator must review it first."""
        if model.state == "removed":
            self._refuse(session, row, [SubmissionFinding(REFUSE, "removed", REMOVED_MEANWHILE)])
            return
        needs_review = (
            session.get_one(ContributorRow, row.contributor_id).state != "active"
            or self._registry.settings.review != "auto"
            or any(finding.code in FOR_ADMINISTRATORS for finding in self._findings)
        )
        if model.state == "quarantined" and not needs_review:
            misfit = misfit_of_base(session, model)
            if misfit is not None:  # its base was registered after the inspection of its header
                self._refuse(session, row, [misfit])
                _withdraw_quarantined(session, model.id, MISFIT)
                return
            publish_model(session, model, self._contributor)
        state = "quarantined" if model.state == "quarantined" else "published"
        change_submission(session, row, state, findings=findings_json(self._findings), model_id=model.id)

    def _refuse(self, session: Session, row: SubmissionRow, refusals: Sequence[SubmissionFinding]) -> None:
        reason = refusals[0].sentence
        change_submission(session, row, "refused", findings=findings_json([*refusals, *self._findings]), reason=reason)
        record_event(session, self._contributor, Action.FAIL_CHECKS, str(self._name), reason, submission=row.id)


def _announced_digest(file: DissectedFile) -> Digest | None:
    """Return the SHA-256 that the contributor announced for a file."""
    return file.source.sha256 if isinstance(file.source, ComposedFile) else None


class _ByteProgress:
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


def _record_our_fault(session: Session, row: SubmissionRow) -> None:
    findings = findings_json([SubmissionFinding(REFUSE, "our-fault", OUR_FAULT)])
    change_submission(session, row, "refused", findings=findings, reason=OUR_FAULT)


def _withdraw_quarantined(session: Session, model_id: int | None, reason: str = WITHDRAWN_MEANWHILE) -> None:
    """Withdraw a quarantined model that is no longer needed, unless another submission waits for it."""
    model = None if model_id is None else session.get(ModelRow, model_id)
    if model is not None and model.state == "quarantined" and not submissions_waiting_for(session, model.id):
        withdraw_model(session, model, reason, "local")
