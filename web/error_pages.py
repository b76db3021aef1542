"""Answers to errors: a problem document for programs, plain text for CSV, an error page with advice for people."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from flask import Flask, Response, current_app, render_template, request
from werkzeug.exceptions import HTTPException

from organs.registry.entities.problem import (
    INTERNAL,
    MEDIA_TYPE,
    Problem,
    data_of,
    encoded,
    plain_problem,
    problem_of,
    title_of,
)
from organs.registry.errors import BadDigest, BadName, BadQuery, Busy, FieldError, OrganError, TooMany
from organs.web.responses import (
    API_PREFIX,
    wants_csv,
    wants_json,
)

RETRY_SECONDS = 5
HIDDEN = "The server failed to answer this request. Its log has the details."
"""The sentence of every error with status 500: what went wrong inside is for the administrator."""
PARAMETERS = frozenset(("add", "after", "against", "by", "cell", "counts", "every_part", "first", "limit", "order"))
PARAMETERS |= {"ranked", "second", "table"}
"""Parameters that a BadQuery may name itself; any other term stands in the query `q`."""
_DETAILS = {
    404: "There is nothing at this address.",
    405: "This address does not accept this method.",
    413: "The body of the request is too large.",
}
"""Sentences on error pages and in problem documents for errors of HTTP itself, by status."""
_ADVICE = {
    400: "Correct the address or the form, and try again.",
    401: "Log in, or send a valid token.",
    403: "Ask the administrator of this registry if you need access.",
    404: "Check the address, or use the search.",
    405: "Go back to the page that you came from.",
    409: "Load the page again to see the present state.",
    410: "Search for another version or model.",
    413: "Send less at once.",
    414: "Shorten the query.",
    421: "Use the address that the administrator gave you.",
    429: "Wait a little, then load the page again.",
    500: "If it happens again, tell the administrator.",
    503: "Wait a few seconds, then load the page again.",
}
"""What a person can do about an error page, by status."""


def answer_errors(app: Flask) -> None:
    """Let `app` answer errors in the form that the address asks for."""
    app.register_error_handler(OrganError, refused)
    app.register_error_handler(HTTPException, _http_error)


def status_of(error: OrganError) -> int:
    """Return the status of the answer to the present request, which raised `error`.

    It is that of the class. Only for the address of a page, a name or digest that is not valid is one that leads
    nowhere (404).
    """
    is_page = not request.path.startswith(API_PREFIX)
    return 404 if is_page and isinstance(error, BadName | BadDigest) else error.status


def refused(error: OrganError, extensions: Mapping[str, object] | None = None) -> Response:
    """Return the answer to a request that raised `error`; `extensions` are further members of the problem document."""
    status = logged_status(error)
    if status == INTERNAL:
        return error_answer(status, HIDDEN)
    problem, field = problem_of(error, status), _field_of(error)
    if not problem.errors and field is not None:
        listed = (FieldError(field=field, code=problem.code, detail=problem.detail),)
        problem = msgspec.structs.replace(problem, errors=listed)
    answer = _answer(problem, {**data_of(error), **(extensions or {})})
    if isinstance(error, TooMany):
        answer.headers["Retry-After"] = str(max(1, round(error.seconds)))
    return answer


def logged_status(error: OrganError) -> int:
    """Return the status of the answer to a request that raised `error`, which is logged if the server is the cause."""
    status = status_of(error)
    if isinstance(error, Busy):
        current_app.logger.warning("refused: %s", error)
    elif status >= INTERNAL:
        current_app.logger.error("%s", error, exc_info=error)
    return status


def error_answer(status: int, detail: str) -> Response:
    """Return the answer to a request that HTTP itself refuses, with the code of its status."""
    return _answer(plain_problem(status, detail), {})


def _answer(problem: Problem, extensions: Mapping[str, object]) -> Response:
    status = problem.status
    if wants_json(request.path):
        answer = current_app.response_class(encoded(problem, extensions) + b"\n", content_type=MEDIA_TYPE)
    elif wants_csv(request.path):
        answer = current_app.response_class(f"{problem.detail}\n", mimetype="text/plain")
    else:
        answer = current_app.response_class(error_page(status, problem.detail))
    answer.status_code = status
    if status == 401:
        answer.headers["WWW-Authenticate"] = 'Bearer realm="organ registry"'
    if status == 503:
        answer.headers["Retry-After"] = str(RETRY_SECONDS)
    return answer


def error_page(status: int, detail: str) -> str:
    """Return the page for people: what happened, and what to do."""
    begins = detail.partition(" ")[0].isalpha()  # else with a name or a field, which stays as it is
    sentence = f"{detail[:1].upper()}{detail[1:]}".rstrip() if begins else detail
    if not sentence.endswith((".", "?", "!")):
        sentence += "."
    advice = _ADVICE.get(status)
    return render_template("error.html", sentence=sentence, advice=advice, status=status, title=title_of(status))


def _field_of(error: OrganError) -> str | None:
    """Return the parameter or member that an error is about which does not say so itself."""
    match error:
        case BadDigest():
            return "digest"
        case BadName():
            return "name"
        case BadQuery():
            return error.term if error.term in PARAMETERS else "q"
        case _:
            return None


def _http_error(error: HTTPException) -> Response:
    if error.code is None or error.response is not None or 300 <= error.code < 400:
        return error.get_response()  # type: ignore[return-value]  # a redirect, or an answer that was made already
    stated = error.description if error.description != type(error).description else None
    answer = error_answer(error.code, stated or _DETAILS.get(error.code) or error.description or error.name)
    allowed = getattr(error, "valid_methods", None)
    if allowed:
        answer.headers["Allow"] = ", ".join(allowed)
    return answer
