"""What a contributor does with submissions: ask for one, publish one that was only looked at, withdraw one."""

from __future__ import annotations

from sqlalchemy.orm import Session

from ingest.submissions.keeping import kept_given, said_json, wants_publishing
from ingest.submissions.manifest import Given, Manifest
from ingest.submissions.pieces import InSpool, LocatedFile, locate
from registry.catalog.actions import Action
from registry.catalog.queries.quota import check_model_fits
from registry.catalog.queries.submissions import count_open_submissions, same_submissions
from registry.catalog.register.accounts import LOCAL
from registry.catalog.register.contributors import contributor_id
from registry.catalog.register.events import record_event
from registry.catalog.register.jobs import cancel_job, enqueue_job
from registry.catalog.register.states import withdraw_model
from registry.catalog.register.submissions import (
    add_submission,
    change_submission,
    hold_contributor,
    locked_submission,
    submissions_waiting_for,
)
from registry.catalog.register.uploads import renew_uploads
from registry.catalog.tables import Contributor, Model, Submission
from registry.errors import Conflict, OverQuota, TooMany
from registry.names import ModelName
from registry.registry import Registry

INSPECT, PUBLISH = "inspect", "publish"
"""The kinds of the jobs."""
OPEN_MAX = 50
"""Submissions of one contributor that have not ended."""
AGAIN_SECONDS = 60.0
WITHDRAWN = "withdrawn by its contributor"
_WITHDRAWABLE = ("checking", "ready", "quarantined")


def submit(registry: Registry, contributor: str, name: ModelName, manifest: Manifest) -> int:
    """Let a model be looked at, and published if the manifest says so; the id of the submission.

    The same asked for again, while it has not ended, is the same submission; one that was only looked at is published
    now if the manifest says so. Who calls has checked that the namespace is the contributor's. Raises BadManifest for
    pieces that are not here, OverQuota, TooMany, QueueFull.
    """
    with registry.catalog.writing() as session:
        owner_id = contributor_id(session, contributor)
    with registry.catalog.reading() as session:
        files = locate(session, owner_id, registry.settings.uploads, manifest)
    size_bytes = sum(file.size_bytes for file in files)
    if size_bytes > registry.settings.upload_max_bytes:
        most = registry.settings.upload_max_bytes
        raise OverQuota(f"the files have {size_bytes:,} bytes; {most:,} are the most that is taken")
    kept, said = manifest.files_json(), said_json(manifest.given, publish=manifest.publish)
    with registry.catalog.writing() as session:
        hold_contributor(session, owner_id)
        same = _same(session, owner_id, name, kept, manifest)
        if same is not None:
            if manifest.publish and same.state == "ready":
                change_submission(session, same, "publishing", said=said)
                _enqueue(session, same, PUBLISH, contributor)
            return same.id
        if contributor != LOCAL:
            _check_room(session, registry, owner_id, files)
        row = add_submission(
            session, owner_id, name.namespace, name.name, manifest=kept, said=said, size_bytes=size_bytes
        )
        record_event(session, contributor, Action.SUBMIT, str(name), f"{size_bytes:,} bytes", submission=row.id)
        uploads = _uploads_of(files)
        if renew_uploads(session, owner_id, (), uploads) < len(uploads):
            # Some went with a submission that has just ended: what is not here otherwise is told.
            again = locate(session, owner_id, registry.settings.uploads, manifest)
            renew_uploads(session, owner_id, (), _uploads_of(again))
        _enqueue(session, row, PUBLISH if manifest.publish else INSPECT, contributor)
        return row.id


def publish(registry: Registry, contributor: str, submission_id: int, given: Given, name: str | None = None) -> None:
    """Publish a submission that was looked at: with other words than were given before, and under another name.

    Raises NotFound for those of others, Conflict where it is not ready, TooMany, QueueFull.
    """
    with registry.catalog.writing() as session:
        row = locked_submission(session, submission_id, contributor_id(session, contributor))
        if row.state != "ready":
            raise Conflict(f"submission {submission_id} is {row.state}: only one that is ready can be published")
        said = said_json(given.over(kept_given(row)), publish=True)
        row.name = row.name if name is None else name
        change_submission(session, row, "publishing", said=said)
        _enqueue(session, row, PUBLISH, contributor)


def withdraw(registry: Registry, contributor: str, submission_id: int) -> None:
    """Take a submission back: what was made of it goes; what was sent for it is kept until it expires.

    One that is withdrawn already stays so. Raises NotFound for those of others, Conflict for what has ended otherwise.
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


def _same(session: Session, owner_id: int, name: ModelName, kept: str, manifest: Manifest) -> Submission | None:
    for row in same_submissions(session, owner_id, name, kept):
        is_asked_for = row.state == "ready" or wants_publishing(row) or not manifest.publish
        if is_asked_for and kept_given(row) == manifest.given:
            return row
    return None


def _uploads_of(files: list[LocatedFile]) -> set[str]:
    """The uploads that some of the files' pieces lie in."""
    return {piece.at.path.name for file in files for piece in file.pieces if isinstance(piece.at, InSpool)}


def _check_room(session: Session, registry: Registry, owner_id: int, files: list[LocatedFile]) -> None:
    """Raise TooMany, OverQuota. What lies in uploads counts already, but once, however often a file has it; what is
    known here counts with its whole size.
    """
    if count_open_submissions(session, owner_id) >= OPEN_MAX:
        sentence = f"{OPEN_MAX} submissions have not ended: publish or withdraw some first"
        raise TooMany(sentence, AGAIN_SECONDS)
    size_bytes = sum(file.size_bytes for file in files)
    sent = {piece.at: piece.size_bytes for file in files for piece in file.pieces if isinstance(piece.at, InSpool)}
    owner = session.get_one(Contributor, owner_id, with_for_update=True)
    check_model_fits(session, owner, registry.settings.quota_bytes, size_bytes, sum(sent.values()))


def _enqueue(session: Session, row: Submission, kind: str, contributor: str) -> None:
    row.job_id = enqueue_job(session, kind, {"submission": row.id}, contributor)
    session.flush()
