"""Submissions as pages and the API ask for them: each its contributor's own, and absent to everybody else."""

from __future__ import annotations

from typing import Any

from organs.ingest.contributions import submissions
from organs.ingest.contributions.intake import settle_abandoned
from organs.ingest.contributions.manifest import (
    Manifest,
    StatedMetadata,
)
from organs.registry.catalog.queries.submissions import (
    FoundSubmission,
    is_any_abandoned,
    known_contributor_id,
    submission_by_id,
    submissions_page,
)
from organs.registry.entities.submission import SubmissionPage
from organs.registry.errors import BadInput, BadName, NotAllowed, NotFound
from organs.registry.names import ModelName, parse_model_name
from organs.web.auth import (
    ADMIN,
    UPLOAD,
    identity,
    need,
)
from organs.web.responses import (
    reading,
    registry,
    settings,
)

ID_MAX = 2**63 - 1
NOBODY = 0
"""No contributor's id: `local` in a registry that has nothing yet."""


def submit(namespace: str, name: str, manifest: Manifest) -> FoundSubmission:
    """Let a model of who asks be looked at. Raises NotAllowed for the namespace of another, BadName, and what
    `ingest.contributions.submissions.submit` does."""
    who = need(UPLOAD).name or ""
    return own_submission(submissions.submit(registry(), who, own_name(namespace, name), manifest))


def publish(
    submission_id: int, given: StatedMetadata, name: str | None = None, acknowledged: tuple[str, ...] = ()
) -> FoundSubmission:
    """Publish a submission of who asks that was looked at, under another `name` in its namespace if one is given."""
    if name is not None:
        plain_name(name)
    submissions.publish(registry(), need(UPLOAD).name or "", submission_id, given, name, acknowledged)
    return own_submission(submission_id)


def withdraw(submission_id: int) -> FoundSubmission:
    """Take a submission of who asks back."""
    submissions.withdraw(registry(), need(UPLOAD).name or "", submission_id)
    return own_submission(submission_id)


def own_submission(submission_id: int) -> FoundSubmission:
    """A submission of who asks; raises NotFound for those of others, in the words for what is absent."""
    owner_id = _owner_id()
    with reading(settings().search_seconds) as session:
        return submission_by_id(session, submission_id, owner_id)


def shown_submission(submission_id: int) -> FoundSubmission:
    """A submission of who asks, and to administrators those of all others; raises NotFound."""
    if not identity().may(ADMIN) or settings().read_only:
        return own_submission(submission_id)
    with reading(settings().search_seconds) as session:
        return submission_by_id(session, submission_id)


def own_submissions(limit: int, after: str | None = None) -> SubmissionPage:
    """Those of who asks, newest first; raises BadQuery."""
    owner_id = _owner_id()
    with reading(settings().search_seconds) as session:
        return submissions_page(session, limit, after, contributor_id=owner_id)


def own_name(namespace: str, name: str) -> ModelName:
    """The name of a model in the asker's own namespace, which `local` has all of; raises NotAllowed, BadName."""
    who = need(UPLOAD)
    if not who.owns(namespace):
        raise NotAllowed(f"{namespace[:96]} is not your namespace: a model of yours is {who.name}/{name[:96]}")
    plain_name(name)
    return parse_model_name(f"{namespace if who.is_local else who.name}/{name}")


def plain_name(name: str) -> str:
    """`name`, which is one of a model, without namespace and version; raises BadName."""
    if "/" in name or "@" in name:
        raise BadName(f"{name[:100]!r} is no name of a model: the version is given here, and the namespace is yours")
    return parse_model_name(f"namespace/{name}").name


def parsed_submission(text: str) -> int:
    """The number of a submission that stands in an address; raises NotFound."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 1 <= int(text) <= ID_MAX):
        raise NotFound(f"there is no submission {text[:20]} of yours")
    return int(text)


def checked_name(value: Any) -> str | None:
    """The other name that a body asks for, if any; raises BadInput, BadName."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadInput("name is a text")
    return plain_name(value)


def _owner_id() -> int:
    """Who asks. What became of submissions whose job ended without a word is said first."""
    who = need(UPLOAD)
    with reading() as session:
        is_due = is_any_abandoned(session)
    if is_due and not settings().read_only:
        settle_abandoned(registry())
    if who.account is not None:
        return who.account.contributor_id
    with reading() as session:
        return known_contributor_id(session, who.name or "") or NOBODY
