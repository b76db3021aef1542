"""A contributor submits a model, publishes one that was only inspected, or withdraws one."""

from __future__ import annotations

import json

from sqlalchemy.orm import Session

from organs.ingest.submissions.findings import Finding, unacknowledged
from organs.ingest.submissions.manifest import Manifest, StatedMetadata
from organs.ingest.submissions.pieces import InSpool, LocatedFile, locate
from organs.ingest.submissions.serialize import acknowledged_of, metadata_json, stated_metadata_of, wants_publishing
from organs.registry.catalog.actions import Action
from organs.registry.catalog.queries.models import check_model_name
from organs.registry.catalog.queries.quota import check_model_fits
from organs.registry.catalog.queries.submissions import count_open_submissions, same_submissions
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.contributors import contributor_id
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.register.jobs import cancel_job, enqueue_job
from organs.registry.catalog.register.states import withdraw_model
from organs.registry.catalog.register.submissions import (
    add_submission,
    change_submission,
    hold_contributor,
    locked_submission,
    submissions_waiting_for,
)
from organs.registry.catalog.register.uploads import renew_uploads
from organs.registry.catalog.tables import Contributor, Model, Submission
from organs.registry.errors import BadInput, Conflict, OverQuota
from organs.registry.names import ModelName
from organs.registry.registry import Registry

INSPECT, PUBLISH = "inspect", "publish"
"""Names of the job kinds."""
OPEN_MAX = 50
"""How many open submissions one contributor may have."""
WITHDRAWN = "withdrawn by its contributor"
_WITHDRAWABLE = ("checking", "ready", "quarantined")


def submit(registry: Registry, contributor: str, name: ModelName, manifest: Manifest) -> int:
    """Enqueue the inspection of a model, and its publication if the manifest asks for it. Return the submission's id.

    The same request, while its submission is open, returns the same submission; one that was only inspected is
    published now if the manifest asks for it. The caller has checked that the namespace belongs to the contributor.
    Raises BadName for a name that stock clients refuse, BadManifest for pieces that have not been uploaded, OverQuota,
    TooMany, QueueFull.
    """
    with registry.catalog.writing() as session:
        owner_id = contributor_id(session, contributor)
    with registry.catalog.reading() as session:
        check_model_name(session, name)
        files = locate(session, owner_id, registry.settings.uploads, manifest)
    size_bytes = sum(file.size_bytes for file in files)
    if size_bytes > registry.settings.upload_max_bytes:
        most = registry.settings.upload_max_bytes
        raise OverQuota(f"the files have {size_bytes:,} bytes; {most:,} are the most that is taken")
    files_json = manifest.files_json()
    metadata = metadata_json(manifest.stated, publish=manifest.publish, acknowledged=manifest.acknowledged)
    with registry.catalog.writing() as session:
        hold_contributor(session, owner_id)
        same = _same(session, owner_id, name, files_json, manifest)
        if same is not None:
            if manifest.publish and same.state == "ready":
                change_submission(session, same, "publishing", said=metadata)
                _enqueue(session, same, PUBLISH, contributor)
            return same.id
        if contributor != LOCAL:
            _check_room(session, registry, owner_id, files)
        row = add_submission(
            session, owner_id, name.namespace, name.name, manifest=files_json, said=metadata, size_bytes=size_bytes
        )
        record_event(session, contributor, Action.SUBMIT, str(name), f"{size_bytes:,} bytes", submission=row.id)
        uploads = _uploads_of(files)
        if renew_uploads(session, owner_id, (), uploads) < len(uploads):
            # A submission that has just ended removed some of them: locate again, which raises for missing pieces.
            again = locate(session, owner_id, registry.settings.uploads, manifest)
            renew_uploads(session, owner_id, (), _uploads_of(again))
        _enqueue(session, row, PUBLISH if manifest.publish else INSPECT, contributor)
        return row.id


def publish(
    registry: Registry,
    contributor: str,
    submission_id: int,
    stated: StatedMetadata,
    name: str | None = None,
    acknowledged: tuple[str, ...] = (),
) -> None:
    """Publish a submission that was inspected, with changed metadata or under another name.

    Raises NotFound for a submission of another contributor, Conflict when it is not ready, BadInput when it has a
    finding that must be acknowledged first, BadName, TooMany, QueueFull.
    """
    with registry.catalog.writing() as session:
        row = locked_submission(session, submission_id, contributor_id(session, contributor))
        if row.state != "ready":
            raise Conflict(f"submission {submission_id} is {row.state}: only one that is ready can be published")
        agreed = {*acknowledged, *acknowledged_of(row)}
        for finding in unacknowledged([Finding(**one) for one in json.loads(row.findings)], agreed):
            raise BadInput(f"{finding.sentence} To publish it all the same, acknowledge {finding.code}")
        said = metadata_json(stated.over(stated_metadata_of(row)), publish=True, acknowledged=agreed)
        if name is not None:
            check_model_name(session, ModelName(row.namespace, name))
            row.name = name
        change_submission(session, row, "publishing", said=said)
        _enqueue(session, row, PUBLISH, contributor)


def withdraw(registry: Registry, contributor: str, submission_id: int) -> None:
    """Withdraw a submission and the quarantined model that was made of it. Its uploads stay until they expire.

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


def _same(session: Session, owner_id: int, name: ModelName, files_json: str, manifest: Manifest) -> Submission | None:
    for row in same_submissions(session, owner_id, name, files_json):
        is_requested = row.state == "ready" or wants_publishing(row) or not manifest.publish
        if is_requested and stated_metadata_of(row) == manifest.stated:
            return row
    return None


def _uploads_of(files: list[LocatedFile]) -> set[str]:
    """Return the ids of the uploads that hold pieces of the files."""
    return {piece.at.path.name for file in files for piece in file.pieces if isinstance(piece.at, InSpool)}


def _check_room(session: Session, registry: Registry, owner_id: int, files: list[LocatedFile]) -> None:
    """Raise OverQuota when the contributor may not submit these files.

    A piece in an upload is already counted in the quota, but only once, however often the files contain it. A piece
    that is already in the store counts with its whole size.
    """
    if count_open_submissions(session, owner_id) >= OPEN_MAX:
        raise OverQuota(f"{OPEN_MAX} submissions have not ended: publish or withdraw some first")
    size_bytes = sum(file.size_bytes for file in files)
    sent = {piece.at: piece.size_bytes for file in files for piece in file.pieces if isinstance(piece.at, InSpool)}
    owner = session.get_one(Contributor, owner_id, with_for_update=True)
    check_model_fits(session, owner, registry.settings.quota_bytes, size_bytes, sum(sent.values()))


def _enqueue(session: Session, row: Submission, kind: str, contributor: str) -> None:
    row.job_id = enqueue_job(session, kind, {"submission": row.id}, contributor)
    session.flush()
