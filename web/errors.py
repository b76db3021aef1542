"""What goes wrong, as an answer: one shape for JSON, one page for people, and the status that fits."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Flask, Response, current_app, jsonify, render_template, request
from werkzeug.exceptions import HTTPException

from organs.registry.errors import (
    Ambiguous,
    BadDigest,
    BadInput,
    BadName,
    BadQuery,
    BadToken,
    Busy,
    Conflict,
    NotAllowed,
    NotAssemblable,
    NotComposable,
    NotFound,
    OrganError,
    OverQuota,
    Removed,
    TooCostly,
    TooMany,
    TooSlow,
    UnsupportedDType,
)
from organs.web.responses import (
    wants_csv,
    wants_json,
)

STATUS: tuple[tuple[type[OrganError], int], ...] = (
    (BadToken, 401),
    (NotAllowed, 403),
    (TooMany, 429),
    (OverQuota, 413),
    (Removed, 410),
    (NotFound, 404),
    (TooCostly, 413),
    (BadName, 404),
    (BadDigest, 404),
    (Ambiguous, 409),
    (Conflict, 409),
    (NotAssemblable, 409),
    (NotComposable, 409),
    (UnsupportedDType, 409),
    (BadInput, 400),
    (Busy, 503),
    (TooSlow, 503),
)
"""The first kind that fits decides; anything else is 500, and its sentence stays in the log."""
RETRY_SECONDS = 5
_WORDS = "add after against by cell counts every_part first limit order ranked second table"
PARAMETERS = frozenset(_WORDS.split())
"""Parameters that a BadQuery may name itself; any other term stands in the query `q`."""


def answer_errors(app: Flask) -> None:
    """Let `app` answer errors in the form that was asked for."""
    app.register_error_handler(OrganError, refused)
    app.register_error_handler(HTTPException, _http_error)


def status_of(error: OrganError) -> int:
    """The status of an answer to a request that raised `error`."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def refused(error: OrganError) -> Response:
    """The answer to a request that raised `error`."""
    status = status_of(error)
    if isinstance(error, Busy):
        current_app.logger.warning("refused: %s", error)
    elif status >= 500:
        current_app.logger.error("%s", error, exc_info=error)
    sentence = str(error) if status != 500 else "The registry cannot answer just now; its log says why."
    code = error.CODE if isinstance(error, TooCostly) else None
    answer = error_answer(status, sentence, field=_field(error), code=code)
    if isinstance(error, TooMany):
        answer.headers["Retry-After"] = str(max(1, round(error.seconds)))
    return answer


def _field(error: OrganError) -> str | None:
    if not isinstance(error, BadQuery):
        return None
    return error.term if error.term in PARAMETERS else "q"


def error_answer(
    status: int,
    sentence: str,
    *,
    field: str | None = None,
    errors: Sequence[tuple[str | None, str]] = (),
    code: str | None = None,
) -> Response:
    """Return a refusal; `field` is the parameter that it is about, `errors` has several pairs of field and sentence.

    `code` names the kind for programs, where its status does not.
    """
    if wants_json(request.path):
        listed = [{"field": name, "sentence": said} for name, said in errors or ((field, sentence),)]
        answer = jsonify(ok=False, error=sentence, errors=listed, status=status, **({"code": code} if code else {}))
    elif wants_csv(request.path):
        answer = current_app.response_class(f"{sentence}\n", mimetype="text/plain")
    else:
        page = render_template("error.html", sentence=sentence, status=status, title=_title(status))
        answer = current_app.response_class(page)
    answer.status_code = status
    if status == 401:
        answer.headers["WWW-Authenticate"] = 'Bearer realm="organ registry"'
    if status == 503:
        answer.headers["Retry-After"] = str(RETRY_SECONDS)
    return answer


def _http_error(error: HTTPException) -> Response:
    if error.code is None or error.response is not None or 300 <= error.code < 400:
        return error.get_response()  # type: ignore[return-value]  # a redirect, or an answer that was made already
    answer = error_answer(error.code, error.description or error.name)
    allowed = getattr(error, "valid_methods", None)
    if allowed:
        answer.headers["Allow"] = ", ".join(allowed)
    return answer


def _title(status: int) -> str:
    return _TITLES.get(status, "This did not work" if status < 500 else "Something broke here")


_TITLES = {
    400: "This was not understood",
    401: "Who is it?",
    403: "Not allowed",
    404: "Nothing is kept here",
    405: "Not this way",
    409: "Not possible as it stands",
    410: "It was removed",
    413: "Too large",
    414: "Too long an address",
    415: "Not in this form",
    421: "Another name",
    429: "Too often",
    503: "Busy just now",
}
