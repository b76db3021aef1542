"""Submissions: made, published or withdrawn by contributors, inspected in a job, reviewed by administrators.

checking -> ready                            inspected, `publish` false
checking -> publishing -> ready              a finding must be accepted before it is published
checking -> publishing -> published          or quarantined, where an administrator must approve it
checking, publishing -> refused              with findings; its uploads are removed

Two processes work on a submission (`docs/design/submissions.md`). A confined inspector parses the files and measures
their tensors. The job's process locates the bytes, sends them to the inspector, checks its answers, computes every
digest, stores the blobs and writes the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock

from msgspec import field, structs
from sqlalchemy.orm import Session

from organs.ingest.checking import count_nonfinite_weights, file_findings, nonfinite_findings
from organs.ingest.contributions.findings import REFUSE, finding_of, findings_json, unaccepted
from organs.ingest.contributions.inspection import (
    Inspection,
    InspectionStopped,
    RefusedByInspection,
    StartInspector,
    confined_inspector,
)
from organs.ingest.contributions.manifest import BadManifest
from organs.ingest.contributions.pieces import LocatedFile, Sources, digests_of, locate
from organs.ingest.contributions.proposal import (
    FOR_ADMINISTRATORS,
    base_findings,
    digest_findings,
    findings_of,
    identity_of,
    misfit_of_base,
    name_findings,
    organ_findings,
    propose,
    submitted,
)
from organs.ingest.contributions.uploads import forget_uploads
from organs.ingest.dissect import DissectedFile, dissect
from organs.ingest.service import Intake, always, ingest_files, publish_model
from organs.ingest.sources import in_order
from organs.registry.catalog.queries.accounts import check_model_fits
from organs.registry.catalog.queries.model_names import check_model_name
from organs.registry.catalog.queries.submissions import (
    IN_JOB,
    UNDER_WAY,
    StoredPiece,
    SubmissionWithJob,
    abandoned_submissions,
    count_open_submissions,
    open_submissions,
    pieces_of_upload,
    same_submissions,
    stored_findings,
    submission_by_id,
    unclaimed_models,
)
from organs.registry.catalog.records import ModelRecord, ParentRecord
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.events import contributor_id, record_event
from organs.registry.catalog.register.jobs import cancel_job, enqueue_job
from organs.registry.catalog.register.model_changes import remove_model, withdraw_model
from organs.registry.catalog.register.submissions import (
    NO_FILES,
    add_submission,
    change_submission,
    hold_contributor,
    locked_submission,
    remove_upload,
    renew_uploads,
    submissions_waiting_for,
)
from organs.registry.catalog.tables import ContributorRow, ModelRow, SubmissionRow, UploadRow
from organs.registry.catalog.vocabulary import Action
from organs.registry.digest import Digest, model_digest
from organs.registry.entities.base import Entity, decode, encode
from organs.registry.entities.job import SubmissionJobResult
from organs.registry.entities.submission import (
    ProposedModel,
    SubmissionFile,
    SubmissionFinding,
    SubmissionMetadata,
    SubmissionRequest,
)
from organs.registry.errors import OUTAGES, BadInput, Conflict, OrganError, OverQuota, UnsupportedDType
from organs.registry.input_files import ComposedFile
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.progress import Progress, StepProgress
from organs.registry.relatives.declared import declared_parents, stated_relation
from organs.registry.upload_limits import OPEN_SUBMISSIONS_MAX


class Statements(Entity):
    """The column `metadata_given` of a submission."""

    stated: SubmissionMetadata = field(default=SubmissionMetadata(), name="given")
    """What the contributor states."""
    publish: bool = True
    """Whether it is published as soon as it has been inspected."""
    proposed: ProposedModel | None = None
    """The proposal made from `stated` and from the headers; None until it is inspected."""
    accepted: tuple[str, ...] = ()
    """Codes of the findings that the contributor accepts."""

    def encoded(self) -> str:
        """Return the text of the column."""
        return encode(self).decode()


def statements_of(row: SubmissionRow) -> Statements:
    """Return what the contributor states about a submission."""
    return decode(row.metadata_given.encode(), Statements)


def files_of(row: SubmissionRow) -> tuple[SubmissionFile, ...]:
    """Return the files of a submission; none after its end, when they are removed."""
    return () if row.manifest == NO_FILES else decode(row.manifest.encode(), SubmissionRequest).files


def whole_uploads(files: Sequence[SubmissionFile]) -> set[str]:
    """Return the ids of the uploads that are whole files."""
    return {file.upload for file in files if file.upload is not None}


def remove_uploads_of(registry: LocalRegistry, contributor_id: int, files: Sequence[SubmissionFile]) -> int:
    """Remove the uploads of a submission that has ended, except those that another open submission of the same
    contributor needs. Return how many were removed.
    """
    with registry.catalog.reading() as session:
        others = open_submissions(session, contributor_id, UNDER_WAY)
        newest_id = max((other.id for other in others), default=0)
        needed = [file for other in others for file in files_of(other)]

    def remove(session: Session, upload_id: int) -> bool:
        """Remove an upload unless a submission that was added meanwhile needs it."""
        upload = session.get(UploadRow, upload_id)
        hold_contributor(session, contributor_id)  # no submission is added before this transaction ends
        added = open_submissions(session, contributor_id, UNDER_WAY, newest_id)
        later = [file for other in added for file in files_of(other)]
        if upload is not None and later:
            stored = {digest for _, _, digest in pieces_of_upload(session, upload_id)}
            if upload.public_id in whole_uploads(later) or stored & digests_of(later):
                return False
        return remove_upload(session, upload_id)

    digests, uploads = digests_of(files) - digests_of(needed), whole_uploads(files) - whole_uploads(needed)
    return forget_uploads(registry, contributor_id, digests, uploads, remove)


INSPECT, PUBLISH = "inspect", "publish"
"""Names of the job kinds."""
WITHDRAWN = "withdrawn by its contributor"
_WITHDRAWABLE = ("checking", "ready", "quarantined")


def submit(registry: LocalRegistry, contributor: str, name: ModelName, request: SubmissionRequest) -> int:
    """Enqueue the inspection of a model, and its publication if it is requested. Return the submission's id.

    While a submission is open, the same request returns the same submission. A submission that was only inspected is
    published now if that is requested. The caller has checked that the namespace belongs to the contributor.
    Raises BadName for a name that standard clients refuse, BadManifest for pieces that have not been uploaded,
    OverQuota, TooMany, QueueFull.
    """
    with registry.catalog.writing() as session:
        owner_id = contributor_id(session, contributor)
    with registry.catalog.reading() as session:
        check_model_name(session, name)
        files = locate(session, owner_id, request.files)
    size_bytes = sum(file.size_bytes for file in files)
    if size_bytes > registry.settings.upload_max_bytes:
        limit = registry.settings.upload_max_bytes
        raise OverQuota(f"the files have {size_bytes:,} bytes; the limit is {limit:,}")
    manifest = encode(SubmissionRequest(files=request.files)).decode()
    metadata = request.metadata or SubmissionMetadata()
    description = Statements(stated=metadata, publish=request.publish, accepted=request.accept or ()).encoded()
    with registry.catalog.writing() as session:
        hold_contributor(session, owner_id)
        for existing in same_submissions(session, owner_id, name, manifest):
            before = statements_of(existing)
            is_requested = existing.state == "ready" or before.publish or not request.publish
            if is_requested and before.stated == metadata:
                if request.publish and existing.state == "ready":
                    change_submission(session, existing, "publishing", description=description)
                    _enqueue(session, existing, PUBLISH, contributor)
                return existing.id
        if contributor != LOCAL:
            _check_room(session, registry, owner_id, files)
        row = add_submission(
            session,
            owner_id,
            name.namespace,
            name.name,
            manifest=manifest,
            description=description,
            size_bytes=size_bytes,
        )
        record_event(session, contributor, Action.SUBMIT, str(name), f"{size_bytes:,} bytes", submission=row.id)
        uploads = {piece.upload for piece in _sent_pieces(files)}
        if renew_uploads(session, owner_id, (), uploads) < len(uploads):
            # A submission that has just ended removed some of them: locate again, which raises for missing pieces.
            located = locate(session, owner_id, request.files)
            renew_uploads(session, owner_id, (), {piece.upload for piece in _sent_pieces(located)})
        _enqueue(session, row, PUBLISH if request.publish else INSPECT, contributor)
        return row.id


def _sent_pieces(files: Sequence[LocatedFile]) -> set[StoredPiece]:
    """Return the pieces of `files` that are in uploads, each once."""
    return {place for file in files for _, _, place in file.pieces if isinstance(place, StoredPiece)}


def _check_room(session: Session, registry: LocalRegistry, owner_id: int, files: Sequence[LocatedFile]) -> None:
    """Raise OverQuota when the contributor may not submit these files.

    A piece in an upload is already counted in the quota, and only once, even if the files contain it several times.
    A piece that is already in the store counts with its whole size.
    """
    if count_open_submissions(session, owner_id) >= OPEN_SUBMISSIONS_MAX:
        raise OverQuota(f"{OPEN_SUBMISSIONS_MAX} submissions are open: publish or withdraw some first")
    owner = session.get_one(ContributorRow, owner_id, with_for_update=True)
    size_bytes = sum(file.size_bytes for file in files)
    sent_bytes = sum(piece.size_bytes for piece in _sent_pieces(files))
    check_model_fits(session, owner, registry.settings.quota_bytes, size_bytes, sent_bytes)


def _enqueue(session: Session, row: SubmissionRow, kind: str, contributor: str) -> None:
    row.job_id = enqueue_job(session, kind, {"submission": row.id}, contributor)
    session.flush()


def publish(
    registry: LocalRegistry,
    contributor: str,
    submission_id: int,
    stated: SubmissionMetadata,
    name: str | None = None,
    accepted: Iterable[str] = (),
) -> None:
    """Publish a submission that was inspected, with changed metadata or under another name.

    Raises NotFound for a submission of another contributor, Conflict when it is not ready, BadInput when it has a
    finding that must be accepted first, BadName, TooMany, QueueFull.
    """
    with registry.catalog.writing() as session:
        row = locked_submission(session, submission_id, contributor_id(session, contributor))
        if row.state != "ready":
            raise Conflict(f"submission {submission_id} is {row.state}: only one that is ready can be published")
        before = statements_of(row)
        all_accepted = tuple(sorted({*accepted, *before.accepted}))
        for finding in unaccepted(stored_findings(row.findings), all_accepted):
            raise BadInput(f"{finding.sentence} To publish it anyway, accept {finding.code}")
        changed = {member: value for member, value in structs.asdict(stated).items() if value is not None}
        description = Statements(stated=structs.replace(before.stated, **changed), accepted=all_accepted).encoded()
        if name is not None:
            check_model_name(session, ModelName(row.namespace, name))
            row.name = name
        change_submission(session, row, "publishing", description=description)
        _enqueue(session, row, PUBLISH, contributor)


def withdraw(registry: LocalRegistry, contributor: str, submission_id: int) -> None:
    """Withdraw a submission and the quarantined model that was made from it. Its uploads stay until they expire.

    Withdrawing it again has no effect. Raises NotFound for a submission of another contributor, Conflict for one that
    has ended in another way.
    """
    with registry.catalog.writing() as session:
        row = locked_submission(session, submission_id, contributor_id(session, contributor))
        if row.state == "withdrawn":
            return
        if row.state not in _WITHDRAWABLE:
            raise Conflict(f"submission {submission_id} is {row.state}: it cannot be withdrawn any more")
        if row.state == "checking" and row.job_id is not None:
            cancel_job(session, row.job_id)
        change_submission(session, row, "withdrawn")
        record_event(session, contributor, Action.WITHDRAW, f"{row.namespace}/{row.name}", submission=row.id)
        _withdraw_quarantined(session, row.model_id, WITHDRAWN, contributor)


def approve_submission(registry: LocalRegistry, submission_id: int, by: str) -> None:
    """Publish the model of a quarantined submission.

    Raises NotFound; Conflict when the submission is in another state, and when the model has only some organs and they
    do not fit its base, which may have been registered after the inspection.
    """
    with registry.catalog.writing() as session:
        model = _waiting_model(session, submission_id)
        misfit = misfit_of_base(session, model)
        if misfit is not None:
            raise Conflict(
                f"{model.full_name} cannot be published: {misfit.sentence[:1].lower()}{misfit.sentence[1:-1]}"
            )
        record_event(session, by, Action.APPROVE, model.full_name, model_id=model.id, submission=submission_id)
        publish_model(session, model, by)
        for row in submissions_waiting_for(session, model.id):
            change_submission(session, row, "published", decided_by=by)


def refuse_submission(registry: LocalRegistry, submission_id: int, reason: str, by: str) -> None:
    """Remove the model of a quarantined submission; its contributor can read the reason.

    The next sweep removes bytes that no other model needs. Raises NotFound, Conflict, and BadValue for a reason that is
    empty or too long.
    """
    with registry.catalog.writing() as session:
        model = _waiting_model(session, submission_id)
        event = (Action.REFUSE, model.full_name, reason[:200])
        record_event(session, by, *event, model_id=model.id, submission=submission_id)
        rows = submissions_waiting_for(session, model.id)
        remove_model(session, model, reason, by)
        for row in rows:
            change_submission(session, row, "refused", reason=reason.strip(), decided_by=by)


def _waiting_model(session: Session, submission_id: int) -> ModelRow:
    row: SubmissionRow = locked_submission(session, submission_id)
    model = None if row.model_id is None else session.get(ModelRow, row.model_id)
    if row.state != "quarantined" or model is None:
        raise Conflict(
            f"submission {submission_id} is {row.state}: only one that is held for review can be approved or refused"
        )
    return model


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
MISFIT = "Its tensors do not fit into its base."

_log = logging.getLogger(__name__)


def process_submission(
    registry: LocalRegistry,
    submission_id: int,
    report_progress: StepProgress,
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
        job = _InspectionJob(registry, submission, report_progress, publish)
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
                withdraw_model(session, model, ABANDONED, LOCAL)


class _Withdrawn(Exception):
    """The submission was withdrawn during its job."""


class _NotAccepted(Exception):
    """A finding must be accepted before the model is registered; the submission stays `ready`, with its findings."""


class _InspectionJob:
    """One run of the job on a submission, with its results so far."""

    def __init__(
        self, registry: LocalRegistry, submission: SubmissionWithJob, report_progress: StepProgress, publish: bool
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
                    weights = [(file.source, file.header) for file in dissected]
                    counted = _byte_progress(self._report_progress, size_bytes, "checking all weights")
                    self._findings += map(submitted, nonfinite_findings(count_nonfinite_weights(weights, counted)))
                with registry.catalog.writing() as session:
                    row = locked_submission(session, self._id)
                    if row.state not in IN_JOB:
                        raise _Withdrawn
                    statements = structs.replace(statements_of(row), publish=self._publish, proposed=proposal)
                    state = "publishing" if self._publish else row.state
                    findings = findings_json(self._findings)
                    change_submission(session, row, state, findings=findings, description=statements.encoded())
                if not self._publish:
                    return  # refusals are only reported, because the contributor can still name another base
                self._refused += [finding for finding in self._findings if finding.severity == REFUSE]
                if not self._refused:
                    stored = _byte_progress(self._report_progress, size_bytes, "storing and measuring")
                    self._register(dissected, proposal, inspection, stored)
        except _NotAccepted:
            pass  # the submission stays `ready`, with its findings
        except BadManifest as error:
            sentences = [f"{where}: {sentence}" if where else sentence for where, sentence in error.reasons]
            self._refused += [SubmissionFinding(REFUSE, "missing-bytes", sentence) for sentence in sentences]
        except RefusedByInspection as error:
            self._refused.append(SubmissionFinding(REFUSE, error.finding, str(error)))
        except (BadInput, UnsupportedDType) as error:
            self._refused.append(finding_of(error))
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
        found = file_findings(files, requires_sandbox=self._registry.settings.requires_sandbox)
        findings = list(findings_of(files, self._name, proposal, found))
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

    def _register(
        self,
        files: Sequence[DissectedFile],
        proposal: ProposedModel,
        inspection: Inspection,
        progress: Progress,
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
            self._findings += map(submitted, nonfinite_findings(counts))
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

        def note_model(_file: DissectedFile, model_id: int, _sha256: Digest) -> None:
            self.model_id = model_id  # after the transaction was committed

        intake = Intake(
            label=f"submitted by {self._contributor}",
            name=self._name,
            new_version=always,  # the inspection has a finding about it
            settle=settle,
            measurer=inspection,
            buffers=BUFFERS,
            progress=progress,
            stored=note_model,
        )
        report = ingest_files(self._registry, files, intake)
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


def _byte_progress(report_progress: StepProgress, total_bytes: int, note: str) -> Progress:
    """Return a function that reports the share of processed bytes, with `note`.

    It can be called by any thread, and raises the errors of `report_progress`.
    """
    lock, done_bytes = Lock(), 0

    def advance(size_bytes: int) -> None:
        nonlocal done_bytes
        with lock:
            done_bytes += size_bytes
            share = min(done_bytes / max(total_bytes, 1), 1.0)
        report_progress(INSPECTED_SHARE + (1 - INSPECTED_SHARE) * share, note)

    advance(0)
    return advance


def _record_our_fault(session: Session, row: SubmissionRow) -> None:
    findings = findings_json([SubmissionFinding(REFUSE, "our-fault", OUR_FAULT)])
    change_submission(session, row, "refused", findings=findings, reason=OUR_FAULT)


def _withdraw_quarantined(
    session: Session, model_id: int | None, reason: str = WITHDRAWN_MEANWHILE, by: str = LOCAL
) -> None:
    """Withdraw a quarantined model that is no longer needed, unless another submission waits for it."""
    model = None if model_id is None else session.get(ModelRow, model_id)
    if model is not None and model.state == "quarantined" and not submissions_waiting_for(session, model.id):
        withdraw_model(session, model, reason, by)
