"""Forms of pages that write: a page has a token in a hidden field and in a cookie, and gets both back.

No page of elsewhere can read the token, nor does a browser send the cookie for it. Of a browser that is logged in the
token is worked out from its session, and good for no other; else it is random, and means only that the form was made
for this browser.

    {{ form_token() }}                                   in a template, inside of <form method="post">

    @writing_form(pages, "/jobs/<job>/cancel")
    def cancel(job: str) -> str: ...                     the address that is shown then, or a page with what is wrong
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from functools import wraps
from typing import Any

from flask import Blueprint, Response, abort, after_this_request, g, redirect, request
from markupsafe import Markup

from organs.web.auth import (
    UPLOAD,
    identity,
    session_secret,
)
from organs.web.memory import reveal_headers
from organs.web.permissions import (
    check_anybody,
    check_writing,
)
from organs.web.responses import (
    Page,
    respond,
)

FIELD, COOKIE = "form_token", "organ_form"
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
TOKEN_BYTES = 32
COOKIE_SECONDS = 30 * 24 * 3600
TOO_OLD = "This form is from no page that was made for this browser, or is too old: load the page again, and send it."
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_HIDDEN = Markup('<input type="hidden" name="{}" value="{}">')

FormView = Callable[..., str | Page | Response]


def form_token() -> Markup:
    """The hidden field of a form that writes. A page that has one is kept by nobody but its browser."""
    if "form_token" not in g:
        reveal_headers()  # the next client that asks for this page must not get this browser's token
        own = _session_token()
        g.form_token = own or _cookie() or secrets.token_urlsafe(TOKEN_BYTES)
        if own is None:
            after_this_request(_with_cookie)
    return _HIDDEN.format(FIELD, g.form_token)


def writing_form(blueprint: Blueprint, address: str, scope: str | None = UPLOAD) -> Callable[[FormView], FormView]:
    """Take forms at `address` (POST): the view gives the address that is shown then, or a page that says what is wrong,
    or the answer itself.

    403 where the server only reads, for what another site's page sends, and without the token; 415 for what is no form.
    Who asks must be good for `scope`, unless that is None.
    """

    def register(view: FormView) -> FormView:
        @wraps(view)
        def answer(**arguments: Any) -> Response:
            if scope is None:
                check_anybody()
            else:
                check_writing(scope)
            _check_token()
            found = view(**arguments)
            if isinstance(found, Response):
                shown: object = found
            else:
                shown = redirect(found, 303) if isinstance(found, str) else respond(found)
            assert isinstance(shown, Response)
            shown.headers["Cache-Control"] = "no-store"
            return shown

        blueprint.add_url_rule(address, view.__name__, answer, methods=["POST"])
        return view

    return register


def _check_token() -> None:
    if request.mimetype not in FORM_TYPES:
        abort(415, "What is sent here is to be a form.")
    sent, kept = request.form.get(FIELD, ""), _session_token() or _cookie()
    if kept is None or not hmac.compare_digest(sent.encode(), kept.encode()):
        abort(403, TOO_OLD)


def _session_token() -> str | None:
    """The token of a browser that is logged in."""
    secret = session_secret()
    if secret is None or identity().account is None:
        return None
    return hmac.digest(secret.encode(), b"form", "sha256").hex()


def _cookie() -> str | None:
    """The token that the browser has, if it is one."""
    value = request.cookies.get(COOKIE, "")
    return value if _TOKEN.fullmatch(value) else None


def _with_cookie(answer: Response) -> Response:
    """The token as a cookie that no script reads and no other site's page has sent."""
    answer.set_cookie(
        COOKIE,
        g.form_token,
        max_age=COOKIE_SECONDS,
        path=request.script_root or "/",
        secure=request.is_secure,
        httponly=True,
        samesite="Strict",
    )
    answer.headers["Cache-Control"] = "private, no-cache"
    answer.vary.add("Cookie")
    return answer
