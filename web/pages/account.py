"""Log-in and log-out, the user's own account, and the public pages of contributors."""

from __future__ import annotations

import re
from datetime import datetime
from http import HTTPStatus
from urllib.parse import urlsplit

from flask import Response, abort, after_this_request, request, url_for

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.accounts import MODELS_MAX, visible_models_of
from organs.registry.catalog.queries.model_lists import model_summaries
from organs.registry.catalog.register.accounts import PAGE_TOKEN, SESSION, end_session, open_page_token, open_session
from organs.registry.catalog.vocabulary import REACHABLE_STATES, SCOPES
from organs.registry.endpoints import accounts as endpoints
from organs.registry.entities.account import CONTRIBUTOR_COLUMNS, TOKEN_DAYS_DEFAULT, TOKEN_DAYS_MAX, TokenRequest
from organs.registry.errors import BadInput, BadToken, NotAllowed
from organs.web.answer_cache import reveal_headers
from organs.web.api import accounts
from organs.web.auth import ANY, TOKENS, UPLOAD, account_by_text, cookie_name, identity, used
from organs.web.error_pages import sentence_of
from organs.web.pages.routes import (
    WebPage,
    list_page,
    paged,
    writing_form,
)
from organs.web.params import requested
from organs.web.permissions import ONLY_READS, log_in_first
from organs.web.rate_limits import LOG_INS, PAGE_TOKENS, rates
from organs.web.responses import json_answer, reading, registry, searching, settings, with_parameters

NEXT_MAX_LENGTH = 2000
_LOCAL_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]*")
"""A path from the root, in visible ASCII. Browsers read a backslash as a slash, and remove tabs and line ends."""
_NOT_A_TARGET = ("/login", "/logout")


def checked_next(text: str | None) -> str | None:
    """Return `text` if it is a path of this site, with or without a query; otherwise None."""
    if not text or len(text) > NEXT_MAX_LENGTH or not _LOCAL_PATH.fullmatch(text):
        return None
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    return text if not parts.scheme and not parts.netloc else None


def _requested_next() -> str | None:
    """Return the address after the log-in: `next`, or the page of this site in the Referer header; else None."""
    target = request.args.get("next")
    if target is not None:
        return checked_next(target)
    reveal_headers()
    try:
        referer = urlsplit(request.headers.get("Referer", ""))
    except ValueError:
        return None
    if referer.netloc.lower() != request.environ.get("HTTP_HOST", "").lower():
        return None
    if referer.path.removeprefix(request.script_root) in _NOT_A_TARGET:
        return None
    return checked_next(referer.path + (f"?{referer.query}" if referer.query else ""))


DAYS = (("30", "30 days"), ("90", "90 days"), (str(TOKEN_DAYS_DEFAULT), "a year"))
"""Choices for the life of a new token: the value that the form sends, and its label."""
TOKENS_SHOWN = ("good", "expired")
"""States of the tokens that are listed. Revoked tokens are in a closed section."""


@paged("/account")
def account() -> WebPage:
    """Show the user's account; redirect to the log-in without one."""
    log_in_first()
    overview = accounts.account_overview()
    own, manages = overview.token, TOKENS in overview.scopes
    revocable = set() if own is None else {own.id}  # the sent token, and the tokens that were made with it
    for token in reversed(overview.tokens):  # newest first, and a token is newer than its parent
        if token.created_by in revocable:
            revocable.add(token.id)
    context = {
        "account": overview,
        "reachable": REACHABLE_STATES,
        "shown_tokens": [token for token in overview.tokens if token.state in TOKENS_SHOWN],
        "revoked_tokens": [token for token in overview.tokens if token.state not in TOKENS_SHOWN],
        "revocable": revocable,
        "labels": {token.id: token.label or token.id for token in overview.tokens},
        "may_give": [scope for scope in SCOPES if scope in overview.scopes and manages and own is not None],
        "days": [] if own is None else _days(own.expires_at),
        "days_default": str(TOKEN_DAYS_DEFAULT),
    }
    return WebPage("account.html", context, body=overview)


@writing_form("/account/tokens", scope=TOKENS)
def make_token() -> WebPage:
    """Create a token and show it. Only this page shows it."""
    days = request.form.get("days", str(TOKEN_DAYS_DEFAULT))
    if days and not (days.isascii() and days.isdigit() and len(days) <= len(str(TOKEN_DAYS_MAX))):
        raise BadInput(f"a token can be valid for 1 to {TOKEN_DAYS_MAX} days")
    token_request = TokenRequest(
        scopes=tuple(request.form.getlist("scope")),
        label=request.form.get("label", ""),
        days=int(days) if days else None,
    )
    return WebPage("token.html", {"created": accounts.create_own_token(token_request)})


@writing_form("/account/tokens/<token>/revoke", scope=ANY)
def revoke_token(token: str) -> str:
    """Revoke a token, and show the account again. If this also ended the session, the log-in is shown."""
    accounts.revoke_token(token)
    return url_for("pages.account")


@writing_form("/account/page-token", scope=UPLOAD)
def page_token() -> Response:
    """Return a token for a script of a page as JSON. It has a narrow scope and ends soon, or with the session."""
    account = identity().account
    if account is None:
        return json_answer({"token": None, "expires_at": None, "scopes": [UPLOAD]})
    if account.session_id is None:
        raise NotAllowed("a page token needs a session")
    rates().hit(PAGE_TOKENS, str(account.contributor_id))
    with registry().catalog.writing() as session:
        token = open_page_token(session, account.session_id, [UPLOAD])
        expires = database_now(session) + PAGE_TOKEN
        if account.expires_at is not None:
            expires = min(expires, account.expires_at)
    return json_answer({"token": token.text, "expires_at": expires.isoformat(), "scopes": [UPLOAD]})


def _days(expires_at: datetime | None) -> list[tuple[str, str]]:
    """Return the choices for the life of a new token. It cannot be longer than that of the token that creates it."""
    if expires_at is None:
        return [*DAYS, ("", "no expiry")]
    with reading() as session:
        left = expires_at - database_now(session)
    return [*((days, words) for days, words in DAYS if int(days) < left.days), ("", "until this token expires")]


TOKEN_FIELD_MAX = 200
"""Most characters that are read. No token is longer."""
NO_PAGE_TOKEN = "this is the token of a page: log in with your own token, which begins with orgp_"  # noqa: S105  # a message, not a token


@paged("/login")
def login() -> WebPage:
    """Show the log-in form."""
    if settings().read_only:
        abort(404, ONLY_READS)
    values = {"next": _requested_next(), "contributor": identity().name}
    return WebPage("login.html", values, body=values)


@writing_form("/login", scope=None)
def log_in() -> str | WebPage:
    """Open a session for the account of the token, and redirect. Log-ins are limited (`web.rate_limits`)."""
    following = checked_next(request.form.get("next"))
    try:
        account = account_by_text(request.form.get("token", "")[:TOKEN_FIELD_MAX].strip())
        if account.session_id is not None:
            raise BadToken(NO_PAGE_TOKEN)
    except BadToken as error:
        values = {"next": following, "contributor": identity().name, "problem": sentence_of(error, capital=True)}
        return WebPage("login.html", values, status=HTTPStatus.UNAUTHORIZED)
    rates().hit(LOG_INS, str(account.contributor_id))
    used(account)
    previous = identity().account
    with registry().catalog.writing() as session:
        if previous is not None and previous.session_id is not None:
            end_session(session, previous.session_id)
        secret = open_session(session, account)

    @after_this_request
    def set_session(answer: Response) -> Response:
        """Set the session cookie. The session is always new; it is never the session that the browser sent."""
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

    return following or url_for("pages.account")


@writing_form("/logout", scope=None)
def log_out() -> str:
    """End the session, here and in the browser."""
    account = identity().account
    if account is not None and account.session_id is not None:
        with registry().catalog.writing() as session:
            end_session(session, account.session_id)

    @after_this_request
    def delete_session(answer: Response) -> Response:
        answer.delete_cookie(cookie_name(), path="/", secure=request.is_secure, httponly=True, samesite="Lax")
        return answer

    return url_for("pages.home")


@paged("/contributors", csv=True, api="contributors")
def contributors() -> WebPage:
    """Show the contributors with visible models, newest first."""
    csv = with_parameters(url_for("pages.contributors_csv"), {}, limit="1000")
    page = accounts.contributors(**requested(endpoints.contributors))
    return list_page(
        "contributors.html", page, columns=CONTRIBUTOR_COLUMNS, extra={"csv": csv, "columns": CONTRIBUTOR_COLUMNS[1:]}
    )


@paged("/contributors/<contributor>", api="contributor")
def contributor(contributor: str) -> WebPage:
    """Show a contributor with the newest models."""
    person = accounts.contributor(contributor)
    with searching() as session:
        newest = model_summaries(session, visible_models_of(session, person.name))
    all_models = url_for("pages.models", q=f'by:"{person.name}"') if person.models > MODELS_MAX else None
    return WebPage("contributor.html", {"contributor": person, "newest": newest, "all_models": all_models})
