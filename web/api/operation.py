"""How the API serves its endpoints: rights, parameters and body, which are checked; and the answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from urllib.parse import unquote_to_bytes

from flask import Blueprint, Response, abort, request
from werkzeug.exceptions import MethodNotAllowed

from organs.registry.catalog.queries.jobs import job_by_id
from organs.registry.documents import BadDocument, Limits, convert, parse_json, unknown_keys
from organs.registry.endpoints.declaration import ACCEPTED, BODY, ROOT, Endpoint, Values
from organs.registry.entities.base import Entity, Page, RequestBody
from organs.registry.entities.chat import PromptAnswer
from organs.registry.entities.job import Job
from organs.registry.entities.submission import Submission, Upload
from organs.registry.errors import BadDigest, BadName, BadRequest
from organs.registry.names import nearest
from organs.registry.upload_limits import SUBMISSION_MAX_BYTES
from organs.web.auth import UPLOAD, identity, need
from organs.web.error_pages import sentence_of
from organs.web.params import requested
from organs.web.permissions import check_writing, queue_job
from organs.web.responses import conditional, json_answer, next_address, reading

api = Blueprint("api", __name__)
"""The blueprint of the API."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_POST_METHODS = ("OPTIONS", "POST")
_PLACES: dict[type[Entity], str] = {Job: "jobs", Upload: "uploads", Submission: "submissions"}
"""Addresses of the resources of answers with status 202."""

A = TypeVar("A")
Q = ParamSpec("Q")
T = TypeVar("T")


def serves(
    endpoint: Endpoint[..., A], *, receive: Callable[[], None] | None = None
) -> Callable[[Callable[Q, A]], Callable[Q, A]]:
    """Serve `endpoint` by a view, a function that returns its answer. Its parameters are those of the endpoint,
    except headers and plain bytes, which the view reads from the request.

    The view gets checked values of the parameters, and the body as an entity, or its members if the endpoint says so.
    `receive` is called before the body is read, for a body that is larger than others may be.
    """

    def register(view: Callable[Q, A]) -> Callable[Q, A]:
        wanted = [parameter.key for parameter in endpoint.parameters if parameter.where != "header"]
        wanted += [] if endpoint.body is None else [BODY]
        if sorted(inspect.signature(view).parameters) != sorted(wanted):
            raise TypeError(f"the view of {endpoint.name} must have the parameters {', '.join(wanted)}")
        rule, served = endpoint.path.replace("{", "<").replace("}", ">"), _served(endpoint, view, receive)
        if endpoint.is_shadowed:
            api.add_url_rule(
                rule,
                endpoint.name,
                _only_post(served),
                methods=METHODS,
                provide_automatic_options=False,
                merge_slashes=False,
            )
        else:
            api.add_url_rule(rule, endpoint.name, served, methods=[endpoint.method.upper()], merge_slashes=False)
        return view

    return register


def _only_post(answer_post: Callable[..., Response]) -> Callable[..., Response]:
    """Refuse other methods at this address. Otherwise `lookup` in `/organs/lookup` would be read as the digest in
    `/organs/<digest>`.
    """

    @wraps(answer_post)
    def answer(**in_path: str) -> Response:
        if request.method == "OPTIONS":
            return Response(headers={"Allow": ", ".join(_POST_METHODS)})
        if request.method not in _POST_METHODS:
            raise MethodNotAllowed(_POST_METHODS)
        return answer_post(**in_path)

    return answer


def _served(
    endpoint: Endpoint[..., Any], view: Callable[..., Any], receive: Callable[[], None] | None
) -> Callable[..., Response]:
    """Return the function that checks a request, calls the view and answers with its entity."""
    queried = [parameter for parameter in endpoint.parameters if parameter.where == "query"]
    known = [parameter.name for parameter in queried]
    repeatable = frozenset(parameter.name for parameter in queried if parameter.is_repeatable)
    in_path = [parameter for parameter in endpoint.parameters if parameter.is_in_path]

    @wraps(view)
    def answer(**texts: str) -> Response:
        if endpoint.writes:
            check_writing(endpoint.scope or UPLOAD)
        elif endpoint.scope is None or (endpoint.is_open_locally and identity().is_local):
            identity()  # refuses a request with an invalid token
        else:
            need(endpoint.scope)
        _check_address(known, repeatable)
        if endpoint.body is not None:
            _check_json()
        values = {parameter.key: parameter.value([texts[parameter.name]]) for parameter in in_path}
        values |= requested(endpoint)
        if receive is not None:
            receive()
        if endpoint.body is not None:
            values[BODY] = json_body(endpoint.body) if endpoint.reads_body else _members(endpoint.body)
        value = view(**values)
        response = json_answer(value, endpoint.status)
        if endpoint.writes:
            response.headers["Cache-Control"] = "no-store"
        if endpoint.status == ACCEPTED and isinstance(value, Job | Upload | Submission):
            response.headers["Location"] = f"{ROOT}/{_PLACES[type(value)]}/{value.id}"
        if endpoint.status == ACCEPTED and isinstance(value, PromptAnswer):
            response.headers["Location"] = f"{ROOT}/answers/{value.key}"
        if isinstance(value, Page) and value.next is not None and not endpoint.writes:
            response.headers["Link"] = f'<{next_address(value.next)}>; rel="next"'
        return conditional(response) if endpoint.method == "get" else response

    return answer


def _check_address(known: Sequence[str], repeatable: Collection[str]) -> None:
    """Raise BadRequest for parameters that are unknown or repeated, and for an address that is not UTF-8."""
    try:
        unquote_to_bytes(request.query_string).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(None, "The address has escaped bytes that are not UTF-8.") from error
    for name, values in request.args.lists():
        if name not in known:
            close = nearest(name[:80], known)
            suggestion = f"; did you mean {close}?" if close else "."
            known_names = f"Known parameters: {', '.join(known)}" if known else "There are none"
            raise BadRequest(name[:80], f"Unknown parameter {name[:80]!r}{suggestion} {known_names}.")
        if len(values) > 1 and name not in repeatable:
            raise BadRequest(name, f"{name} occurs {len(values)} times; it may occur once.")


def checked(parse: Callable[[str], T], text: str, field: str) -> T:
    """Return the name or the digest in `text`, read by `parse`. Raises BadRequest about `field` if it is not valid."""
    try:
        return parse(text)
    except BadDigest as error:
        raise BadRequest(field, sentence_of(error, capital=True)) from error
    except BadName as error:
        raise BadRequest(field, str(error)) from error


BODY_LIMITS = Limits(SUBMISSION_MAX_BYTES, depth=8)
"""The limits of JSON in bodies; the size of most bodies has a lower limit."""


def json_body(kind: type[T]) -> T:
    """Return the body as an entity of that class. Raises BadRequest with all members that are not valid.

    The answer is 415 for a body that is not JSON, and 413 for a body that is too large.
    """
    try:
        return convert(_json_object(), kind)
    except BadDocument as error:
        raise _bad_request(error) from error


def _members(kind: type[Entity]) -> Values:
    """Return the members of the body, for a view that checks their values; of a recipe, the view also checks the names.

    Raises as `json_body` does.
    """
    try:
        values = _json_object()
        unknown = list(unknown_keys(values, kind.__struct_encode_fields__)) if issubclass(kind, RequestBody) else []
        if unknown:
            raise BadDocument(unknown)
    except BadDocument as error:
        raise _bad_request(error) from error
    return values


def _json_object() -> dict[str, object]:
    _check_json()
    values = parse_json(request.get_data(cache=False), BODY_LIMITS)
    if not isinstance(values, dict):
        raise BadDocument([("", "it must be a JSON object")])
    return values


def _bad_request(error: BadDocument) -> BadRequest:
    first, *more = ((path, f"{path or 'The body'}: {sentence}.") for path, sentence in error.reasons)
    return BadRequest(*first, more=more)


def _check_json() -> None:
    """Abort with 415 for a body that is not JSON. The form of a page cannot send this type."""
    if request.mimetype != "application/json":
        abort(415, "The body must be JSON: send it with Content-Type: application/json.")


def queued(kind: str, arguments: Entity | Mapping[str, object]) -> Job:
    """Put a job of that kind into the queue, with arguments from the request, and return it.

    Raises BadInput for invalid arguments, QueueFull (503) if too many jobs wait, TooMany (429) if too many jobs of the
    client wait.
    """
    job_id = queue_job(kind, arguments)
    with reading() as session:
        return job_by_id(session, job_id)
