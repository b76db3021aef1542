"""One's own account: models in every state, what is under way, the quota, tokens; and tokens for scripts of pages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flask import Response, abort, redirect, request, url_for

from organs.registry.catalog.clock import now
from organs.registry.catalog.register.accounts import PAGE_TOKEN, TOKEN_DAYS_DEFAULT, TOKEN_DAYS_MAX, open_page_token
from organs.registry.catalog.vocabulary import REACHABLE_STATES, SCOPES
from organs.registry.errors import BadInput, NotAllowed
from organs.registry.present.values import Values
from organs.web.accounts import create_own_token, own_account, revoke_own_token
from organs.web.answers import Page, json_answer, paged, plain_page, registry
from organs.web.forms import writing_form
from organs.web.identity import ANY, TOKENS, UPLOAD, identity
from organs.web.pages.blueprint import pages
from organs.web.rates import PAGE_TOKENS, rates

DAYS = (("30", "30 days"), ("90", "90 days"), (str(TOKEN_DAYS_DEFAULT), "a year"))
"""Choices for the life of a new token: the value that the form sends, and its label."""
TOKENS_SHOWN = ("good", "expired")
"""States of tokens that are listed at once; revoked ones are folded away."""


@paged(pages, "/account")
def account() -> Page:
    """What is here of who is logged in; anybody else is asked to log in."""
    _ask_to_log_in()
    values = own_account(whole=True)
    return Page("account.html", values, extra=lambda: _around(values))


@writing_form(pages, "/account/tokens", scope=TOKENS)
def make_token() -> Page:
    """Create a token and show it: on this page only."""
    days = request.form.get("days", str(TOKEN_DAYS_DEFAULT))
    if days and not (days.isascii() and days.isdigit() and len(days) <= len(str(TOKEN_DAYS_MAX))):
        raise BadInput(f"a token is good for 1 to {TOKEN_DAYS_MAX} days")
    scopes, label = request.form.getlist("scope"), request.form.get("label", "")
    values = create_own_token(label, scopes, int(days) if days else None)
    return Page("token.html", values)


@writing_form(pages, "/account/tokens/<token>/revoke", scope=ANY)
def revoke_token(token: str) -> str:
    """Revoke a token, and show the account again: it asks for a log-in if the session ended with the token."""
    revoke_own_token(token)
    return url_for("pages.account")


@writing_form(pages, "/account/page-token", scope=UPLOAD)
def page_token() -> Response:
    """A token for the script of a page, as JSON: narrow, short, and gone with the session. On a server of one's own
    there is none, nor is one needed."""
    account = identity().account
    if account is None:
        return json_answer({"token": None, "expires_at": None, "scopes": [UPLOAD]})
    if account.session_id is None:
        raise NotAllowed("a page's token needs a session")
    rates().hit(PAGE_TOKENS, str(account.contributor_id))
    with registry().catalog.writing() as session:
        made = open_page_token(session, account.session_id, [UPLOAD])
    expires = _earlier(now() + PAGE_TOKEN, account.expires_at)
    return json_answer({"token": made.text, "expires_at": expires.isoformat(), "scopes": [UPLOAD]})


def _ask_to_log_in() -> None:
    if identity().name is None and plain_page():
        abort(redirect(url_for("pages.login", next=request.script_root + request.path), 303))


def _earlier(first: datetime, second: datetime | None) -> datetime:
    return first if second is None else min(first, second)


def _around(values: Values) -> Values:
    limit, used = values["quota"]["limit_bytes"], values["quota"]["used_bytes"]
    own, manages = values["token"], TOKENS in values["scopes"]
    return {
        "left_bytes": max(0, limit - used),
        "reachable": REACHABLE_STATES,
        "shown_tokens": [one for one in values["tokens"] if one["state"] in TOKENS_SHOWN],
        "revoked_tokens": [one for one in values["tokens"] if one["state"] not in TOKENS_SHOWN],
        "revocable": set() if own is None else _revocable(values["tokens"], own["id"]),
        "labels": {one["id"]: one["label"] or one["id"] for one in values["tokens"]},
        "may_give": [scope for scope in SCOPES if scope in values["scopes"] and manages and own is not None],
        "days": [] if own is None else _days(own["expires_at"]),
        "days_default": str(TOKEN_DAYS_DEFAULT),
    }


def _revocable(tokens: Sequence[Values], own: str) -> set[str]:
    """Return the ids of the own token and of its descendants. A token is newer than its parent; `tokens` are newest
    first."""
    family = {own}
    for one in reversed(tokens):
        if one["created_by"] in family:
            family.add(one["id"])
    return family


def _days(expires_at: str | None) -> list[tuple[str, str]]:
    """Return the choices for the life of a new token: none goes beyond the token that creates it."""
    if expires_at is None:
        return [*DAYS, ("", "for ever")]
    left = datetime.fromisoformat(expires_at) - now()
    return [*((days, words) for days, words in DAYS if int(days) < left.days), ("", "as long as this one")]
