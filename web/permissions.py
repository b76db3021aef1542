"""Permissions to write, rights of the contributor of a model, and jobs of an account."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from flask import abort, redirect, request, url_for
from sqlalchemy.orm import Session

from organs.ingest.jobs.runner import add_job
from organs.registry.catalog.queries.events import yanked_by
from organs.registry.catalog.queries.model_names import model_by_name, own_model
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.tables import ModelRow
from organs.registry.entities.base import Entity
from organs.registry.errors import Conflict, NotAllowed
from organs.registry.names import ModelName
from organs.web.auth import ADMIN, UPLOAD, RequestUser, identity, need
from organs.web.responses import plain_page, registry, settings

ONLY_READS = "This server is read-only."
NO_JOBS = "Log in to see jobs."
ELSEWHERE = "Requests from pages of other sites are not allowed."
_OWN_SITES = ("same-origin", "none")
"""Values of `Sec-Fetch-Site` that browsers send for requests of our own pages and for a typed address."""


def may_write(scope: str = UPLOAD) -> bool:
    """Return whether the user may write. Pages show their forms only in that case."""
    return not settings().read_only and identity().may(scope)


def may_see_storage() -> bool:
    """Return whether the user may see stored sizes: the user of this machine, and administrators.

    To others, stored sizes would tell which bytes the registry has already.
    """
    return identity().is_local or identity().may(ADMIN)


def may_see_jobs() -> bool:
    """Return whether the user may see jobs: their own or all."""
    return may_write() or may_write(ADMIN)


def whose_jobs() -> str | None:
    """Return the account whose jobs the user may see. None means all jobs, for administrators and `local`.

    Answers 404 to users who may not see jobs, because jobs show requests and errors.
    """
    if not may_see_jobs():
        abort(404, NO_JOBS)
    client = identity()
    return None if client.is_local or client.may(ADMIN) else client.name


def check_writing(scope: str = UPLOAD) -> RequestUser:
    """Return the user if they may write. Answer 403 on a read-only server, and to requests from pages of other sites.

    Raises BadToken (401) without an account, NotAllowed (403) for a token without the `scope`.
    """
    if settings().read_only:
        abort(403, ONLY_READS)
    client = need(scope)
    _check_origin()
    return client


def check_admin() -> None:
    """Allow the current page only for administrators.

    Redirects a user without an account to the log-in, and answers 404 to users without the scope.
    """
    if settings().read_only:
        abort(404, ONLY_READS)
    client = identity()
    if client.may(ADMIN):
        return
    if client.name is not None:
        abort(404)  # the same message as for an address that does not exist
    log_in_first()
    need(ADMIN)


def log_in_first() -> None:
    """Redirect a page for people to the log-in if the user has no account and can log in."""
    if identity().name is None and plain_page() and not settings().read_only:
        abort(redirect(url_for("pages.login", next=request.script_root + request.path), 303))


def check_anybody() -> None:
    """Answer 403 on a read-only server, and to requests from pages of other sites. No account is needed."""
    if settings().read_only:
        abort(403, ONLY_READS)
    _check_origin()


def _check_origin() -> None:
    """Answer 403 to a request from a page of another site."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in _OWN_SITES:
        abort(403, ELSEWHERE)
    for name in ("Origin", "Referer"):
        address = request.headers.get(name)
        if address is not None and not _is_own(address):
            abort(403, ELSEWHERE)


def _is_own(address: str) -> bool:
    """Return whether `address` has the requested host and port. It is False for `null`, which is a hidden origin."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == request.environ.get("HTTP_HOST", "").lower()


NOT_YOURS = "This model belongs to another contributor."


def is_shown_all(namespace: str) -> bool:
    """Return whether the user may see all models in `namespace`, including models that are held for review."""
    return identity().owns(namespace) or identity().may(ADMIN)


def may_edit(namespace: str) -> bool:
    """Return whether the user may edit the models in `namespace`."""
    return identity().owns(namespace) and may_write(UPLOAD)


def may_yank(namespace: str) -> bool:
    """Return whether the user may yank and restore the models in `namespace`."""
    return may_edit(namespace) or may_write(ADMIN)


def known_model(session: Session, name: ModelName, first: str = "visible") -> ModelRow:
    """Return the model with that name if the user may see it.

    Raises NotFound, with the same message if the model is hidden. Without a version, a user who may see all models of
    the namespace gets a version in the state `first` if there is one, and of several the newest.
    """
    return own_model(session, name, first) if is_shown_all(name.namespace) else model_by_name(session, name)


def model_to_edit(session: Session, name: ModelName) -> ModelRow:
    """Return a model that the user may edit. Raises NotFound; NotAllowed (403) for a model of another account."""
    model = known_model(session, name)  # the name can be another name of a model in another namespace
    return _check_allowed(model, may_edit(model.namespace))


def model_to_yank(session: Session, name: ModelName) -> ModelRow:
    """Return a model that the user may yank. Raises Conflict if an administrator yanked it."""
    model = known_model(session, name)
    _check_allowed(model, may_yank(model.namespace))
    return _check_yanker(session, model)


def model_to_restore(session: Session, name: ModelName) -> ModelRow:
    """Return a model that the user may restore. Raises Conflict if an administrator yanked it or must review it."""
    model = known_model(session, name, "yanked")
    _check_allowed(model, may_yank(model.namespace))
    if model.state == "quarantined" and not may_write(ADMIN):
        raise Conflict(f"{model.full_name} is held for review; an administrator must approve it first")
    return _check_yanker(session, model)


def _check_yanker(session: Session, model: ModelRow) -> ModelRow:
    """Raise Conflict if an administrator yanked the model, unless the user is an administrator."""
    yanker = yanked_by(session, model.id) if model.state == "yanked" else None
    allowed_yankers = (model.namespace.lower(), (identity().name or "").lower())
    if yanker is not None and yanker.lower() not in allowed_yankers and not may_write(ADMIN):
        raise Conflict(f"{model.full_name} was yanked by an administrator; only an administrator can restore it")
    return model


def _check_allowed(model: ModelRow, is_allowed: bool) -> ModelRow:
    if not is_allowed:
        is_own = identity().owns(model.namespace)
        raise NotAllowed(f"this needs a token with the scope {UPLOAD}" if is_own else NOT_YOURS)
    return model


def queue_job(kind: str, arguments: Entity | Mapping[str, object]) -> int:
    """Add a job of the user to the end of the queue and return its id. The user must be allowed to write.

    Raises as `add_job`.
    """
    return add_job(registry(), kind, arguments, user_name())


def user_name() -> str:
    """Return the name of the user, who has an account, for the records."""
    name = identity().name
    assert name is not None, "the user has no account"
    return name


def planner() -> str:
    """Return the namespace for a chimera of the user: their own, or `local` without an account."""
    return identity().name or LOCAL
