"""Submissions: made, published or withdrawn by contributors, reviewed by administrators, and cleaned up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import field, structs
from sqlalchemy.orm import Session

from organs.ingest.contributions.findings import unaccepted
from organs.ingest.contributions.pieces import LocatedFile, digests_of, locate
from organs.ingest.contributions.proposal import misfit_of_base
from organs.ingest.contributions.uploads import forget_uploads
from organs.ingest.service import publish_model
from organs.registry.catalog.queries.accounts import check_model_fits
from organs.registry.catalog.queries.model_names import check_model_name
from organs.registry.catalog.queries.submissions import (
    UNDER_WAY,
    StoredPiece,
    count_open_submissions,
    open_submissions,
    pieces_of_upload,
    same_submissions,
    stored_findings,
)
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
from organs.registry.entities.base import Entity, decode, encode
from organs.registry.entities.submission import ProposedModel, SubmissionFile, SubmissionMetadata, SubmissionRequest
from organs.registry.errors import BadInput, Conflict, OverQuota
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.upload_limits import OPEN_SUBMISSIONS_MAX


class Statements(Entity, frozen=True, kw_only=True):
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
    size_bytes, sent_bytes = (
        sum(file.size_bytes for file in files),
        sum(piece.size_bytes for piece in _sent_pieces(files)),
    )
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
        model = None if row.model_id is None else session.get(ModelRow, row.model_id)
        change_submission(session, row, "withdrawn")
        record_event(session, contributor, Action.WITHDRAW, f"{row.namespace}/{row.name}", submission=row.id)
        if model is not None and model.state == "quarantined" and not submissions_waiting_for(session, model.id):
            withdraw_model(session, model, WITHDRAWN, contributor)


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
