"""Answers to errors: a problem document for programs, plain text for CSV, a page with advice for people."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import msgspec
from flask import Flask, Response, current_app, redirect, render_template, request
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as BaseResponse

from organs.registry.endpoints.table import API
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
from organs.registry.errors import (
    BadDigest,
    BadName,
    BadQuery,
    Busy,
    DatabaseUnreachable,
    FieldError,
    OrganError,
    StoreUnreachable,
    TooMany,
)
from organs.web.responses import API_PREFIX, wants_csv, wants_json
from organs.web.settings import RETRY_SECONDS

HIDDEN = "The server failed to answer this request. Its log has the details."
"""The message of every error with status 500. Only the administrator may read the details."""
PARAMETERS = {"add", "against", "by", "table"} | {
    parameter.name for endpoint in API.values() for parameter in endpoint.parameters if parameter.where == "query"
}
"""Parameters that a BadQuery can name: of pages, and of the API. Any other term is a part of the query `q`."""
_DETAILS = {
    404: "There is nothing at this address.",
    405: "This address does not accept this method.",
    413: "The body of the request is too large.",
}
"""Messages on error pages and in problem documents for errors of HTTP, by status."""
_ADVICE = {
    400: "Correct the address or the form, and try again.",
    401: "Log in, or send a valid token.",
    403: "Ask the administrator of this registry if you need access.",
    404: "Check the address, or use the search.",
    405: "Go back to the page that you came from.",
    409: "Load the page again to see the present state.",
    410: "Search for another version or model.",
    413: "Send a smaller body.",
    414: "Shorten the query.",
    421: "Use the address that the administrator gave you.",
    429: "Wait a little, then load the page again.",
    500: "If it happens again, tell the administrator.",
    503: "Wait a few seconds, then load the page again.",
}
"""Advice on error pages, by status."""


def answer_errors(app: Flask) -> None:
    """Make `app` answer errors in the format that belongs to the requested address."""
    app.register_error_handler(OrganError, refused)
    app.register_error_handler(HTTPException, _http_error)


def status_of(error: OrganError) -> int:
    """Return the status of the answer to the current request, which raised `error`.

    It is the status of the error's class. Only for an invalid name or digest in the address of a page it is 404.
    """
    is_page = not request.path.startswith(API_PREFIX)
    return 404 if is_page and isinstance(error, BadName | BadDigest) else error.status


def sentence_of(error: OrganError, *, capital: bool = False) -> str:
    """Return the text of an error with one full stop; with `capital`, it begins with a capital letter."""
    text = str(error).rstrip("?.")
    return f"{text[:1].upper()}{text[1:]}." if capital else f"{text}."


def refused(error: OrganError, extensions: Mapping[str, object] | None = None) -> Response:
    """Return the answer to a request that raised `error`; `extensions` are further members of the problem document."""
    status = logged_status(error)
    if status == INTERNAL:
        return error_answer(status, HIDDEN)
    problem, field = problem_of(error, status), None
    match error:
        case BadDigest():
            field = "digest"
        case BadName():
            field = "name"
        case BadQuery():
            field = error.term if error.term in PARAMETERS else "q"
    if not problem.errors and field is not None:
        field_errors = (FieldError(field=field, code=problem.code, detail=problem.detail),)
        problem = msgspec.structs.replace(problem, errors=field_errors)
    return with_wait(_answer(problem, {**data_of(error), **(extensions or {})}), error)


def with_wait(answer: Response, error: OrganError) -> Response:
    """Return `answer`; if a client has sent too many requests, with the seconds to wait."""
    if isinstance(error, TooMany):
        answer.headers["Retry-After"] = str(max(1, round(error.seconds)))
    return answer


def logged_status(error: OrganError) -> int:
    """Return the status of the answer to a request that raised `error`. Logs errors that the server caused."""
    status = status_of(error)
    if isinstance(error, Busy | DatabaseUnreachable | StoreUnreachable):
        current_app.logger.warning("refused: %s", error)
    elif status >= INTERNAL:
        current_app.logger.error("%s", error, exc_info=error)
    return status


def error_answer(status: int, detail: str) -> Response:
    """Return the answer for an error of HTTP. `status` determines the code of the problem."""
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
    """Return the error page: the message, and advice for the status."""
    begins_with_word = detail.partition(" ")[0].isalpha()  # otherwise with a name or a field, which is not changed
    sentence = f"{detail[:1].upper()}{detail[1:]}".rstrip() if begins_with_word else detail
    if not sentence.endswith((".", "?", "!")):
        sentence += "."
    advice = _ADVICE.get(status)
    return render_template("error.html", sentence=sentence, advice=advice, status=status, title=title_of(status))


def _without_slash() -> BaseResponse | None:
    """Return a redirect to the address without slashes at its end, if there is a page at it."""
    path = request.path.rstrip("/")
    if request.method not in ("GET", "HEAD") or path in ("", request.path) or path.startswith(("//", API_PREFIX)):
        return None
    adapter = current_app.create_url_adapter(request)
    if adapter is None or not adapter.test(path, "GET"):
        return None
    query = request.query_string.decode("ascii", "replace")
    return redirect(request.script_root + quote(path, safe="/@:") + (f"?{query}" if query else ""))


def _http_error(error: HTTPException) -> Response:
    if error.code is None or error.response is not None or 300 <= error.code < 400:
        return error.get_response()  # type: ignore[return-value]  # a redirect, or an answer that the view made
    if error.code == 404 and (moved := _without_slash()) is not None:
        return moved  # type: ignore[return-value]
    own_text = error.description if error.description != type(error).description else None
    answer = error_answer(error.code, own_text or _DETAILS.get(error.code) or error.description or error.name)
    methods = getattr(error, "valid_methods", None)
    if methods:
        answer.headers["Allow"] = ", ".join(methods)
    return answer
