"""Routes of pages: views with their JSON and CSV twins, and forms that write.

    @paged("/models", csv=True, api="models")
    def models() -> WebPage: ...                         HTML, JSON of an API operation, and CSV

    @writing_form("/jobs/<job>/cancel")
    def cancel(job: str) -> str: ...                     the address to redirect to, or a page with the error

    {{ form_token() }}                                   in a template, inside <form method="post">

A form has a token in a hidden field and in a cookie. Both are sent back and must be equal. Other sites cannot read the
token, and browsers do not send the cookie with requests from other sites. For a logged-in browser, the token is derived
from the session and is valid only for that session. Otherwise it is random, and only proves that the form was made for
this browser.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import urlencode

import msgspec
from flask import (
    Blueprint,
    Response,
    abort,
    after_this_request,
    current_app,
    g,
    redirect,
    render_template,
    request,
    url_for,
)
from markupsafe import Markup
from sqlalchemy.orm import Session

from organs.registry.catalog import tables
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.columns import Column
from organs.registry.endpoints.table import API
from organs.registry.entities.base import Page
from organs.registry.entities.report import Cell
from organs.registry.errors import NAMES_MAX, Ambiguous, BadDigest, BadName, NotFound, SeveralModels
from organs.registry.names import parse_model_name
from organs.registry.reports.formats import sheet
from organs.registry.search.language import QUERY_MAX_LENGTH
from organs.web.answer_cache import reveal_headers
from organs.web.api.uploads import current_contributor_id, receiving
from organs.web.auth import UPLOAD, identity, session_secret
from organs.web.permissions import check_anybody, check_writing
from organs.web.responses import (
    CSV_SUFFIX,
    JSON_SUFFIX,
    conditional,
    json_answer,
    model_address,
    next_address,
    plain_page,
    wants_csv,
    wants_json,
    with_parameters,
)
from organs.web.security import BODY_MAX_BYTES

pages = Blueprint("pages", __name__)
"""The blueprint of all pages."""

FIELD, COOKIE = "form_token", "organ_form"
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
TOKEN_BYTES = 32
COOKIE_SECONDS = 30 * 24 * 3600
TOO_OLD = "This form has expired or was not made for this browser. Load the page again, and send the form once more."
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_HIDDEN = Markup('<input type="hidden" name="{}" value="{}">')

Context = dict[str, Any]
"""Variables of a template by name."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A list as CSV."""

    keys: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class WebPage:
    """The result of a view."""

    template: str
    context: Context | Callable[[], Context]
    """Variables of the template. A function is called only if the answer is HTML."""
    sheet: Callable[[], Sheet] | None = None
    next: str | None = None
    """The `after` of the next page of a list."""
    status: int = 200
    body: object = None
    """The JSON twin of a page without an operation of the API: plain values; or of a page that depends on the session
    of the browser, which the API ignores, so that the twin cannot redirect to it: the entity that the API returns."""


View = Callable[..., WebPage | Response]
FormView = Callable[..., str | WebPage | Response]


GAINS = {"gain": "gain", "best": "gain", "worst": "loss"}
"""Members with a gain, which has three columns in a CSV file, and the beginning of the names of these columns."""


def sheet_of(columns: Iterable[str | Column], items: Iterable[object]) -> Sheet:
    """Return members of `items` as CSV: values as in JSON, lists with spaces, shapes as 4096x1024."""
    names = [column if isinstance(column, str) else column.name for column in columns]

    def cells(item: object, name: str) -> Iterator[Cell]:
        value = msgspec.to_builtins(getattr(item, name))
        if name in GAINS:
            yield from (value and value[key] for key in ("percent", "margin", "text"))
        else:
            yield ("x" if name == "shape" else " ").join(map(str, value)) if isinstance(value, list | tuple) else value

    endings = {name: ("", "_margin", "_on") if name in GAINS else ("",) for name in names}
    keys = [GAINS.get(name, name) + ending for name in names for ending in endings[name]]
    return Sheet(keys, [[cell for name in names for cell in cells(item, name)] for item in items])


def list_links(following: str | None, *kept: str, path: str | None = None) -> dict[str, str | None]:
    """Return the addresses of the next and of the first page of a list, by default of the requested one.

    `following` is the `next` of this page. The addresses keep `limit` and the parameters `kept`.
    """
    path = path or request.script_root + request.path
    parameters = {name: request.args.get(name, "").strip() for name in (*kept, "limit")}
    return {
        "following": following and with_parameters(path, parameters, after=following),
        "first": with_parameters(path, parameters) if request.args.get("after") else None,
    }


def list_page(
    template: str,
    page: Page[Any],
    *kept: str,
    columns: Sequence[str | Column] = (),
    extra: Mapping[str, object] | None = None,
) -> WebPage:
    """Return the page of a list, with links to the next and the first page that keep the parameters `kept`.

    `columns` are those of its CSV, and `extra` are further values for its HTML.
    """
    return WebPage(
        template,
        lambda: {"items": page.items, **list_links(page.next, *kept), **(extra or {})},
        sheet=lambda: sheet_of(columns, page),
        next=page.next,
        body=page,
    )


UNKNOWN_MODEL = (NotFound, BadName, BadDigest, Ambiguous)
"""Errors about the name of a model that a person typed. The form is shown again with the error."""


def paged(address: str, *, csv: bool = False, api: str | Callable[[], str] | None = None) -> Callable[[View], View]:
    """Serve a view at `address`. `csv` adds its list as CSV. The JSON address redirects to the API operation `api`.

    The operation has the same path parameters as the view. If `api` is a function, it returns the name of the operation
    for the request. The view returns a page or another answer, for example a redirect. Its name is the name of the
    endpoint: `url_for("pages.organs")`.
    """

    def register(view: View) -> View:
        @wraps(view)
        def answer(**arguments: Any) -> Response:
            return _answer(view(**arguments))

        def redirect_to_api(**arguments: Any) -> Response:
            """Redirect to the operation of the API, with the query parameters that the operation has."""
            operation = api() if callable(api) else str(api)
            known = {parameter.name for parameter in API[operation].parameters if not parameter.is_in_path}
            query = [(name, value) for name, value in request.args.items(multi=True) if name in known]
            location = url_for(f"api.{operation}", **arguments) + (f"?{urlencode(query)}" if query else "")
            return current_app.response_class(status=302, headers={"Location": location}, mimetype="text/plain")

        name = view.__name__
        twin = "/index" if address == "/" else address
        pages.add_url_rule(address, name, answer)
        pages.add_url_rule(twin + JSON_SUFFIX, f"{name}_json", answer if api is None else redirect_to_api)
        if csv:
            pages.add_url_rule(twin + CSV_SUFFIX, f"{name}_csv", answer)
        return view

    return register


def _answer(page: WebPage | Response) -> Response:
    """Return `page` as HTML, JSON or CSV: the end of the address decides. Another answer is returned as it is."""
    if isinstance(page, Response):
        return page
    if wants_csv(request.path):
        assert page.sheet is not None
        rows = page.sheet()
        answer = current_app.response_class(sheet(rows.keys, rows.rows), mimetype="text/csv")
        answer.headers["Content-Disposition"] = f'attachment; filename="{request.path.rpartition("/")[2]}"'
    elif wants_json(request.path):
        answer = json_answer(page.body)
    else:
        context = page.context() if callable(page.context) else page.context
        answer = current_app.response_class(render_template(page.template, **context))
    if page.next is not None:
        answer.headers["Link"] = f'<{next_address(page.next)}>; rel="next"'
    answer.status_code = page.status
    return conditional(answer) if page.status == 200 else answer


def canonical_model(session: Session, name: str) -> tables.ModelRow:
    """Return the model with the name in the address; only pages have addresses without the namespace.

    A page redirects from another name of a model to its own name, and from a name that can mean several models to the
    list of these. JSON and CSV are answered under each name.
    """
    requested = parse_model_name(name)
    try:
        model = model_by_name(session, requested)
    except SeveralModels as error:
        if not plain_page():
            raise
        query = f"model:{','.join(error.names)}"
        if len(error.names) == NAMES_MAX or len(query) > QUERY_MAX_LENGTH:
            query = f"model:*{requested.name}*"
        abort(redirect(url_for("pages.models", q=query), 302))
    if plain_page() and (model.namespace, model.name) != (requested.namespace, requested.name):
        abort(redirect(with_parameters(model_address(model.full_name), request.args.to_dict()), 302))
    return model


def form_token() -> Markup:
    """Return the hidden field of a form that writes. Only the browser may cache a page with this field."""
    if "form_token" not in g:
        reveal_headers()  # another client must not get a cached page with the token of this browser
        from_session = _session_token()
        g.form_token = from_session or _cookie_token() or secrets.token_urlsafe(TOKEN_BYTES)
        if from_session is None:
            after_this_request(_set_cookie)
    return _HIDDEN.format(FIELD, g.form_token)


def writing_form(
    address: str, scope: str | None = UPLOAD, *, files_max_bytes: int = 0
) -> Callable[[FormView], FormView]:
    """Accept forms at `address` (POST).

    The view returns the address to redirect to, a page with the error, or an answer. The user needs `scope`, unless it
    is None. A form with files, of `files_max_bytes` together, holds one of the places for uploads
    if it is longer than other forms may be.

    The answer is 403 on a read-only server, for a request from another site, and without a valid token. It is 415 for
    a body that is not a form.
    """

    def register(view: FormView) -> FormView:
        @wraps(view)
        def answer(**arguments: Any) -> Response:
            if scope is None:
                check_anybody()
            else:
                check_writing(scope)
            if request.mimetype not in FORM_TYPES:
                abort(415, "This address accepts forms only.")
            with ExitStack() as held:
                if files_max_bytes and (request.content_length or 0) > BODY_MAX_BYTES:
                    held.enter_context(receiving(current_contributor_id()))
                    request.max_content_length = BODY_MAX_BYTES + files_max_bytes
                held.callback(request.close)  # the files of the form
                received, expected = request.form.get(FIELD, ""), _session_token() or _cookie_token()
                if expected is None or not hmac.compare_digest(received.encode(), expected.encode()):
                    abort(403, TOO_OLD)
                result = view(**arguments)
            response = redirect(result, 303) if isinstance(result, str) else _answer(result)
            assert isinstance(response, Response)
            response.headers["Cache-Control"] = "no-store"
            return response

        pages.add_url_rule(address, view.__name__, answer, methods=["POST"])
        return view

    return register


def _session_token() -> str | None:
    """Return the token derived from the session; None without a log-in."""
    secret = session_secret()
    if secret is None or identity().account is None:
        return None
    return hmac.digest(secret.encode(), b"form", "sha256").hex()


def _cookie_token() -> str | None:
    """Return the token in the browser's cookie, if it is well-formed."""
    value = request.cookies.get(COOKIE, "")
    return value if _TOKEN.fullmatch(value) else None


def _set_cookie(answer: Response) -> Response:
    """Set the token as a cookie. Scripts cannot read it, and pages of other sites cannot send it."""
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
