"""Tests of concurrent changes of submissions by an administrator, the contributor, jobs and other submissions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.ingest.contributions import (
    submissions,
)
from organs.ingest.contributions.manifest import (
    BadManifest,
)
from organs.ingest.contributions.submissions import (
    files_of,
    refuse_submission,
    remove_uploads_of,
    settle_abandoned,
    withdraw,
)
from organs.registry.catalog.queries.submissions import known_contributor_id, open_submissions
from organs.registry.catalog.register.accounts import set_contributor_state
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.jobs import cancel_job
from organs.registry.catalog.register.model_changes import hide_model, remove_model
from organs.registry.catalog.tables import ModelRow
from organs.registry.entities.submission import SubmissionFile
from organs.registry.local import LocalRegistry
from tests.small_models import small_model
from tests.submissions import (
    file_of_pieces,
    process_and_read,
    put_upload,
    submission_row,
    submit_and_process,
    submit_model,
    whole_file,
)

LITTLE = small_model()


def sent(registry: LocalRegistry, data: bytes = LITTLE) -> int:
    """Submit a model as ann and run its job; return the id."""
    return submit_and_process(registry, "ann/tiny", data).row.id


def model_of(registry: LocalRegistry, session: Session, submission_id: int) -> ModelRow:
    return session.get_one(ModelRow, submission_row(registry, submission_id).row.model_id)


def set_state(registry: LocalRegistry, state: str) -> None:
    """Suspend ann, or make her active again."""
    with registry.catalog.writing() as session:
        contributor_id(session, "ann")
        set_contributor_state(session, "ann", state)


def ended(registry: LocalRegistry, submission_id: int) -> tuple[str, set[str]]:
    """Return the state of a submission and the codes of its findings."""
    row = submission_row(registry, submission_id).row
    return row.state, {finding["code"] for finding in json.loads(row.findings)}


def states(registry: LocalRegistry) -> list[str]:
    with registry.catalog.reading() as session:
        return list(session.scalars(select(ModelRow.state).order_by(ModelRow.id)))


@pytest.mark.long
@pytest.mark.parametrize(("yanker", "state"), [("local", "quarantined"), ("ann", "published")])
def test_a_model_that_an_administrator_yanked_waits_when_it_is_submitted_again(
    yanker: str, state: str, registry: LocalRegistry
) -> None:
    first = sent(registry)
    with registry.catalog.writing() as session:
        hide_model(session, model_of(registry, session, first), "yanked", "bad", yanker)
    again, codes = ended(registry, sent(registry))
    assert (again, "yanked-before" in codes) == (state, yanker == "local")


@pytest.mark.long
def test_a_withdrawn_submission_does_not_count_as_removed_by_an_administrator(registry: LocalRegistry) -> None:
    set_state(registry, "suspended")
    first = sent(registry)
    withdraw(registry, "ann", first)
    set_state(registry, "active")
    second = sent(registry)
    state, codes = ended(registry, second)
    assert (state, "removed-before" in codes, states(registry)) == ("published", False, ["removed", "visible"])
    with registry.catalog.writing() as session:
        remove_model(session, model_of(registry, session, second), "bad", "local")
    state, codes = ended(registry, sent(registry))
    assert (state, "removed-before" in codes) == ("quarantined", True)


@pytest.mark.long
def test_only_the_sender_of_refused_bytes_is_informed_and_waits(registry: LocalRegistry) -> None:
    manual = LocalRegistry(replace(registry.settings, review="manual"), registry.catalog, registry.blobs)
    refuse_submission(manual, sent(manual), "No thanks.", "local")
    others = submit_model(registry, "eve/tiny", [whole_file(registry, "eve", LITTLE)], publish=False)
    process_and_read(registry, others, publish=False)
    process_and_read(registry, again := submit_model(registry, "eve/tiny", [whole_file(registry, "eve", LITTLE)]))
    for submission_id, of_ann in ((others, False), (again, False), (sent(registry), True)):
        state, codes = ended(registry, submission_id)
        assert state == ("ready" if submission_id == others else "quarantined" if of_ann else "published")
        assert ("refused-before" in codes, "removed-before" in codes) == (of_ann, False)
    refusals = [
        finding
        for finding in json.loads(submission_row(registry, submission_id).row.findings)
        if finding["code"] == "refused-before"
    ]
    assert [(finding["severity"], finding["sentence"][-12:]) for finding in refusals] == [("note", ": No thanks.")]


@pytest.mark.long
def test_the_model_of_an_abandoned_job_is_removed(registry: LocalRegistry) -> None:
    """A model that an administrator has hidden, or that another submission waits for, stays."""
    set_state(registry, "suspended")
    hidden, waits = (sent(registry, small_model(name)) for name in ("Hidden", "Waits"))
    with registry.catalog.writing() as session:
        hide_model(session, model_of(registry, session, hidden), "quarantined", "It is looked at.", "local")
    left = submit_model(registry, "ann/tiny", [whole_file(registry, "ann", LITTLE)])

    def is_left(_share: float, note: str) -> None:
        if note == "comparing it with other models":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        process_and_read(registry, left, report_progress=is_left)
    assert states(registry) == ["quarantined"] * 3
    with registry.catalog.writing() as session:
        cancel_job(session, submission_row(registry, left).row.job_id or 0)
    settle_abandoned(registry)
    assert states(registry) == ["quarantined", "quarantined", "removed"]
    assert (submission_row(registry, left).row.state, submission_row(registry, waits).row.state) == (
        "withdrawn",
        "quarantined",
    )


def test_a_submission_that_ends_after_registration_leaves_no_model(registry: LocalRegistry) -> None:
    submission_id = submit_model(registry, "ann/tiny", [whole_file(registry, "ann", LITTLE)])

    def cancels(_share: float, note: str) -> None:
        if note == "comparing it with other models":
            with registry.catalog.writing() as session:
                cancel_job(session, submission_row(registry, submission_id).row.job_id or 0)
            settle_abandoned(registry)

    after = process_and_read(registry, submission_id, report_progress=cancels)
    assert (after.row.state, states(registry)) == ("withdrawn", ["removed"])


def test_a_model_registered_after_its_submission_was_settled_is_removed(registry: LocalRegistry) -> None:
    submission_id = submit_model(registry, "ann/tiny", [whole_file(registry, "ann", LITTLE)])

    def is_left(_share: float, note: str) -> None:
        if note != "comparing it with other models":
            return
        with registry.catalog.writing() as session:
            cancel_job(session, submission_row(registry, submission_id).row.job_id or 0)
        with registry.catalog.writing() as session:
            forsaken = session.scalars(select(ModelRow)).one()
            hide_model(session, forsaken, "quarantined", "as if it came later", "local")
        settle_abandoned(registry)
        assert states(registry) == ["quarantined"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        process_and_read(registry, submission_id, report_progress=is_left)
    assert (submission_row(registry, submission_id).row.state, states(registry)) == ("withdrawn", ["removed"])


def withdrawn_in_pieces(registry: LocalRegistry) -> tuple[int, dict[str, Any], tuple[SubmissionFile, ...]]:
    """Submit a model as ann in two pieces and withdraw it.

    Return her id, the file of the manifest, and the stored files.
    """
    half = len(LITTLE) // 2
    put_upload(registry, "ann", [LITTLE[:half], LITTLE[half:]])
    file = file_of_pieces(LITTLE, [(0, half), (half, len(LITTLE) - half)])
    first = submit_model(registry, "ann/one", [file])
    with registry.catalog.reading() as session:
        owner = known_contributor_id(session, "ann") or 0
        files = files_of(open_submissions(session, owner)[0])
    withdraw(registry, "ann", first)
    return owner, file, files


def test_uploads_that_a_concurrent_submission_needs_are_not_forgotten(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, file, files = withdrawn_in_pieces(registry)
    later: list[int] = []

    def forget_late(*given: object) -> int:
        later.append(submit_model(registry, "ann/two", [file]))
        return forget_uploads(*given)

    forget_uploads = submissions.forget_uploads
    monkeypatch.setattr(submissions, "forget_uploads", forget_late)
    assert remove_uploads_of(registry, owner, files) == 0
    assert process_and_read(registry, later[0]).row.state == "published"


def test_a_submission_whose_pieces_are_removed_meanwhile_is_refused(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, file, files = withdrawn_in_pieces(registry)
    locate, located = submissions.locate, list[object]()

    def located_before(*given: object) -> object:
        found = locate(*given)  # type: ignore[arg-type]
        if not located:
            located.append(found)
            assert remove_uploads_of(registry, owner, files) == 1
        return found

    monkeypatch.setattr(submissions, "locate", located_before)
    with pytest.raises(BadManifest, match="send them first"):
        submit_model(registry, "ann/two", [file])
