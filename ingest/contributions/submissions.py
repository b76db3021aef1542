"""Submissions: made, published or withdrawn by contributors, reviewed by administrators, and cleaned up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from sqlalchemy.orm import Session

from organs.ingest.contributions.findings import (
    unaccepted,
)
from organs.ingest.contributions.manifest import (
    Manifest,
    StatedMetadata,
    parse_manifest,
)
from organs.ingest.contributions.pieces import (
    InUpload,
    LocatedFile,
    locate,
)
from organs.ingest.contributions.proposal import misfit_of_base
from organs.ingest.contributions.uploads import forget_uploads
from organs.ingest.service import publish_model
from organs.registry.catalog.queries.accounts import check_model_fits
from organs.registry.catalog.queries.models import check_model_name
from organs.registry.catalog.queries.submissions import (
    UNDER_WAY,
    count_open_submissions,
    open_submissions,
    pieces_of_upload,
    same_submissions,
    stored_findings,
)
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.events import contributor_id, record_event
from organs.registry.catalog.register.jobs import cancel_job, enqueue_job
from organs.registry.catalog.register.models import (
    remove_model,
    withdraw_model,
)
from organs.registry.catalog.register.submissions import (
    add_submission,
    change_submission,
    hold_contributor,
    locked_submission,
    submissions_waiting_for,
)
from organs.registry.catalog.register.uploads import remove_upload, renew_uploads
from organs.registry.catalog.tables import Contributor, Model, Submission, Upload
from organs.registry.catalog.vocabulary import Action
from organs.registry.digest import Digest
from organs.registry.errors import BadInput, Conflict, OverQuota
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.upload_limits import OPEN_SUBMISSIONS_MAX

STATED, PROPOSED, _PUBLISH, ACCEPTED = "given", "proposed", "publish", "accepted"
"""Members of the column `metadata_given`: the metadata that the contributor states, the proposal made from it
and from the headers, whether the submission is published as soon as it has been inspected, and the codes of findings
that the contributor accepts."""


def manifest_of(row: Submission) -> Manifest:
    """Return the manifest of a submission. Raises BadManifest after its end, when the manifest is removed."""
    return read_manifest(row.manifest)


def read_manifest(text: str) -> Manifest:
    """Return the manifest that the column holds as `text`."""
    return parse_manifest(json.loads(text))


def stated_metadata_of(row: Submission) -> StatedMetadata:
    """Return the metadata that the contributor states."""
    values = json.loads(row.metadata_given)[STATED]
    tags = values["tags"]
    return StatedMetadata(**{**values, "tags": None if tags is None else tuple(tags)})


def metadata_json(
    stated: StatedMetadata,
    *,
    publish: bool,
    proposed: Mapping[str, object] | None = None,
    accepted: Iterable[str] = (),
) -> str:
    """Return the text of the column `metadata_given`."""
    values = {STATED: asdict(stated), _PUBLISH: publish, PROPOSED: proposed, ACCEPTED: sorted(accepted)}
    return json.dumps(values)


def accepted_of(row: Submission) -> tuple[str, ...]:
    """Return the codes of findings that the contributor accepts; none in a row of an older version."""
    return tuple(json.loads(row.metadata_given).get(ACCEPTED, ()))


def wants_publishing(row: Submission) -> bool:
    """Return whether the contributor asked for the submission to be published."""
    return bool(json.loads(row.metadata_given)[_PUBLISH])


def remove_uploads_of(registry: LocalRegistry, contributor_id: int, manifest: Manifest) -> int:
    """Remove the uploads of a submission that has ended, except those that another open submission of the same
    contributor needs. Return how many were removed.
    """
    digests: set[Digest] = set()
    uploads: set[str] = set()
    with registry.catalog.reading() as session:
        others = open_submissions(session, contributor_id, UNDER_WAY)
        newest_id = max((other.id for other in others), default=0)
        for other in others:
            needed = manifest_of(other)
            digests |= needed.digests()
            uploads |= needed.uploads()

    def remove(session: Session, upload_id: int) -> bool:
        return not _is_needed(session, contributor_id, upload_id, newest_id) and remove_upload(session, upload_id)

    return forget_uploads(registry, contributor_id, manifest.digests() - digests, manifest.uploads() - uploads, remove)


def _is_needed(session: Session, contributor_id: int, upload_id: int, newest_id: int) -> bool:
    """Return whether a submission that was added after `newest_id` needs the upload.

    The contributor's row is locked, so that no submission is added before the transaction ends.
    """
    upload = session.get(Upload, upload_id)
    hold_contributor(session, contributor_id)
    later = [manifest_of(submission) for submission in open_submissions(session, contributor_id, UNDER_WAY, newest_id)]
    if upload is None or not later:
        return False
    stored = {digest for _, _, digest in pieces_of_upload(session, upload_id)}
    return any(upload.public_id in item.uploads() or stored & item.digests() for item in later)


INSPECT, PUBLISH = "inspect", "publish"
"""Names of the job kinds."""
WITHDRAWN = "withdrawn by its contributor"
_WITHDRAWABLE = ("checking", "ready", "quarantined")


def submit(registry: LocalRegistry, contributor: str, name: ModelName, manifest: Manifest) -> int:
    """Enqueue the inspection of a model, and its publication if the manifest asks for it. Return the submission's id.

    While a submission is open, the same request returns the same submission. A submission that was only inspected is
    published now if the manifest asks for it. The caller has checked that the namespace belongs to the contributor.
    Raises BadName for a name that standard clients refuse, BadManifest for pieces that have not been uploaded,
    OverQuota, TooMany, QueueFull.
    """
    with registry.catalog.writing() as session:
        owner_id = contributor_id(session, contributor)
    with registry.catalog.reading() as session:
        check_model_name(session, name)
        files = locate(session, owner_id, manifest)
    size_bytes = sum(file.size_bytes for file in files)
    if size_bytes > registry.settings.upload_max_bytes:
        limit = registry.settings.upload_max_bytes
        raise OverQuota(f"the files have {size_bytes:,} bytes; the limit is {limit:,}")
    files_json = manifest.files_json()
    metadata = metadata_json(manifest.stated, publish=manifest.publish, accepted=manifest.accepted)
    with registry.catalog.writing() as session:
        hold_contributor(session, owner_id)
        existing = _find_same(session, owner_id, name, files_json, manifest)
        if existing is not None:
            if manifest.publish and existing.state == "ready":
                change_submission(session, existing, "publishing", description=metadata)
                _enqueue(session, existing, PUBLISH, contributor)
            return existing.id
        if contributor != LOCAL:
            _check_room(session, registry, owner_id, files)
        row = add_submission(
            session,
            owner_id,
            name.namespace,
            name.name,
            manifest=files_json,
            description=metadata,
            size_bytes=size_bytes,
        )
        record_event(session, contributor, Action.SUBMIT, str(name), f"{size_bytes:,} bytes", submission=row.id)
        uploads = _uploads_of(files)
        if renew_uploads(session, owner_id, (), uploads) < len(uploads):
            # A submission that has just ended removed some of them: locate again, which raises for missing pieces.
            located = locate(session, owner_id, manifest)
            renew_uploads(session, owner_id, (), _uploads_of(located))
        _enqueue(session, row, PUBLISH if manifest.publish else INSPECT, contributor)
        return row.id


def publish(
    registry: LocalRegistry,
    contributor: str,
    submission_id: int,
    stated: StatedMetadata,
    name: str | None = None,
    accepted: tuple[str, ...] = (),
) -> None:
    """Publish a submission that was inspected, with changed metadata or under another name.

    Raises NotFound for a submission of another contributor, Conflict when it is not ready, BadInput when it has a
    finding that must be accepted first, BadName, TooMany, QueueFull.
    """
    with registry.catalog.writing() as session:
        row = locked_submission(session, submission_id, contributor_id(session, contributor))
        if row.state != "ready":
            raise Conflict(f"submission {submission_id} is {row.state}: only one that is ready can be published")
        all_accepted = {*accepted, *accepted_of(row)}
        for finding in unaccepted(stored_findings(row.findings), all_accepted):
            raise BadInput(f"{finding.sentence} To publish it anyway, accept {finding.code}")
        metadata = metadata_json(stated.over(stated_metadata_of(row)), publish=True, accepted=all_accepted)
        if name is not None:
            check_model_name(session, ModelName(row.namespace, name))
            row.name = name
        change_submission(session, row, "publishing", description=metadata)
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
        model = None if row.model_id is None else session.get(Model, row.model_id)
        change_submission(session, row, "withdrawn")
        record_event(session, contributor, Action.WITHDRAW, f"{row.namespace}/{row.name}", submission=row.id)
        if model is not None and model.state == "quarantined" and not submissions_waiting_for(session, model.id):
            withdraw_model(session, model, WITHDRAWN, contributor)


def _find_same(
    session: Session, owner_id: int, name: ModelName, files_json: str, manifest: Manifest
) -> Submission | None:
    for row in same_submissions(session, owner_id, name, files_json):
        is_requested = row.state == "ready" or wants_publishing(row) or not manifest.publish
        if is_requested and stated_metadata_of(row) == manifest.stated:
            return row
    return None


def _uploads_of(files: list[LocatedFile]) -> set[str]:
    """Return the ids of the uploads that hold pieces of the files."""
    return {piece.at.name for file in files for piece in file.pieces if isinstance(piece.at, InUpload)}


def _check_room(session: Session, registry: LocalRegistry, owner_id: int, files: list[LocatedFile]) -> None:
    """Raise OverQuota when the contributor may not submit these files.

    A piece in an upload is already counted in the quota, and only once, even if the files contain it several times.
    A piece that is already in the store counts with its whole size.
    """
    if count_open_submissions(session, owner_id) >= OPEN_SUBMISSIONS_MAX:
        raise OverQuota(f"{OPEN_SUBMISSIONS_MAX} submissions are open: publish or withdraw some first")
    size_bytes = sum(file.size_bytes for file in files)
    sent = {piece.at: piece.size_bytes for file in files for piece in file.pieces if isinstance(piece.at, InUpload)}
    owner = session.get_one(Contributor, owner_id, with_for_update=True)
    check_model_fits(session, owner, registry.settings.quota_bytes, size_bytes, sum(sent.values()))


def _enqueue(session: Session, row: Submission, kind: str, contributor: str) -> None:
    row.job_id = enqueue_job(session, kind, {"submission": row.id}, contributor)
    session.flush()


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
        name_and_reason = (model.full_name, reason[:200])
        record_event(session, by, Action.REFUSE, *name_and_reason, model_id=model.id, submission=submission_id)
        rows = submissions_waiting_for(session, model.id)
        remove_model(session, model, reason, by)
        for row in rows:
            change_submission(session, row, "refused", reason=reason.strip(), decided_by=by)


def _waiting_model(session: Session, submission_id: int) -> Model:
    row: Submission = locked_submission(session, submission_id)
    model = None if row.model_id is None else session.get(Model, row.model_id)
    if row.state != "quarantined" or model is None:
        raise Conflict(
            f"submission {submission_id} is {row.state}: only one that is held for review can be approved or refused"
        )
    return model
