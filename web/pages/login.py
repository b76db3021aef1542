"""Logging in by a token, and out again. Each log-in is a session of its own, which ends on the server too."""

from __future__ import annotations

from http import HTTPStatus

from flask import Response, abort, after_this_request, request, url_for

from organs.registry.catalog.register.accounts import SESSION, end_session, open_session
from organs.registry.errors import BadToken
from organs.registry.present.values import Values
from organs.web.answers import Page, paged, registry, settings
from organs.web.forms import writing_form
from organs.web.identity import account_by_text, cookie_name, identity, used
from organs.web.pages.blueprint import pages
from organs.web.rates import LOG_INS, rates
from organs.web.returning import asked_next, checked_next
from organs.web.writing import ONLY_READS

TOKEN_FIELD_MAX = 200
"""Characters; more is no token."""
NO_PAGE_TOKEN = "this is the token of a page: log in with your own, which begins with orgp_"  # noqa: S105  # a sentence


@paged(pages, "/login")
def login() -> Page:
    """The form; who is logged in is told so."""
    if settings().read_only:
        abort(404, ONLY_READS)
    return Page("login.html", _values(asked_next()))


@writing_form(pages, "/login", scope=None)
def log_in() -> str | Page:
    """Open a session for the owner of the token, and go on. Each contributor has a rate of log-ins; see `web.rates`."""
    following = checked_next(request.form.get("next"))
    try:
        account = account_by_text(request.form.get("token", "")[:TOKEN_FIELD_MAX].strip())
        if account.session_id is not None:
            raise BadToken(NO_PAGE_TOKEN)
    except BadToken as error:
        told = {"problem": _sentence(str(error))}
        return Page("login.html", _values(following), lambda: told, status=HTTPStatus.UNAUTHORIZED)
    rates().hit(LOG_INS, str(account.contributor_id))
    used(account)
    before = identity().account
    with registry().catalog.writing() as session:
        if before is not None and before.session_id is not None:
            end_session(session, before.session_id)
        secret = open_session(session, account)
    after_this_request(lambda answer: _with_session(answer, secret))
    return following or url_for("pages.account")


@writing_form(pages, "/logout", scope=None)
def log_out() -> str:
    """End the session, here and in the browser."""
    account = identity().account
    if account is not None and account.session_id is not None:
        with registry().catalog.writing() as session:
            end_session(session, account.session_id)
    after_this_request(_without_session)
    return url_for("pages.home")


def _values(following: str | None) -> Values:
    return {"next": following, "contributor": identity().name}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _with_session(answer: Response, secret: str) -> Response:
    """The cookie is the browser's until the session ends; a session is never one that the browser came with."""
    answer.set_cookie(
        cookie_name(),
        secret,
        max_age=int(SESSION.total_seconds()),
        path="/",
        secure=request.is_secure,
        httponly=True,
        samesite="Lax",
    )
    return answer


def _without_session(answer: Response) -> Response:
    answer.delete_cookie(cookie_name(), path="/", secure=request.is_secure, httponly=True, samesite="Lax")
    return answer
