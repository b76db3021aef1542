"""Routes of the API with their descriptions: rights, parameters and body, which are checked; and the answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeVar, get_type_hints
from urllib.parse import unquote_to_bytes

from flask import Blueprint, Response, abort, request
from werkzeug.exceptions import MethodNotAllowed

from organs.registry.catalog.queries.jobs import job_by_id
from organs.registry.documents import BadDocument, Limits, convert, parse_json, unknown_keys
from organs.registry.entities.base import Entity, Page, RequestBody, Schema, schema_name
from organs.registry.entities.job import Job
from organs.registry.entities.submission import Submission, Upload
from organs.registry.errors import BadDigest, BadName, BadRequest
from organs.registry.names import nearest
from organs.registry.upload_limits import SUBMISSION_MAX_BYTES
from organs.web.auth import ANY, UPLOAD, identity, need
from organs.web.error_pages import sentence_of
from organs.web.params import Parameter
from organs.web.permissions import check_writing, queue_job
from organs.web.responses import conditional, json_answer, next_address, reading

ROOT = "/api/v1"

api = Blueprint("api", __name__)
"""The blueprint of the API."""

COMMON_REFUSALS = (400, 401, 413, 414, 415, 421, 429, 503)
"""The statuses with which any request can be refused."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_POST_METHODS = ("OPTIONS", "POST")


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one address."""

    method: str
    path: str
    """The path as in OpenAPI, with names in braces."""
    name: str
    group: str
    summary: str
    description: str
    answer: str
    """Name of the schema of the answer."""
    parameters: tuple[Parameter, ...]
    refusals: tuple[int, ...]
    is_list: bool
    example: str
    """The address of an example request, or its body."""
    body: str | None = None
    """Name of the schema of the body."""
    bytes_example: str | None = None
    """The body of the example if it is plain bytes instead of JSON."""
    status: int = 200
    """Status of a successful answer."""
    writes: bool = False
    """Whether it writes or runs something (`writing_operation`)."""
    scope: str | None = None
    """The scope that the token must have; None if no token is needed."""
    is_open_locally: bool = False
    """Whether the user of a personal server needs no token."""


View = Callable[..., Entity | Schema]
"""It returns an entity; the view of the OpenAPI document returns the document."""
V = TypeVar("V", bound=View)
T = TypeVar("T")

ACCEPTED = 202
_PLACES: dict[type[Entity], str] = {Job: "jobs", Upload: "uploads", Submission: "submissions"}
"""Addresses of the resources of answers with status 202."""
_NEEDS = " Needs a token with the scope `{}`."
_NEEDS_ANY = " Needs a token of any scope."

_operations: dict[str, Operation] = {}
_entities: dict[str, type[Entity]] = {}


def operations() -> Mapping[str, Operation]:
    """Return all operations by name, in the order of the reference."""
    return _operations


def entities() -> list[type[Entity]]:
    """Return the entities that operations return or accept."""
    return list(_entities.values())


def _named(kind: type[Entity]) -> str:
    """Return the name of the schema of an entity, and add the schema to the document."""
    _entities[schema_name(kind)] = kind
    return schema_name(kind)


def operation(
    group: str,
    path: str,
    summary: str,
    *parameters: Parameter,
    method: str | None = None,
    body: type[Entity] | None = None,
    bytes_example: str | None = None,
    example: str | None = None,
    answer: str | None = None,
    status: int = 200,
    refusals: Sequence[int] = (),
    scope: str | None = None,
    is_open_locally: bool = False,
    writes: bool = False,
    is_shadowed: bool = False,
) -> Callable[[V], V]:
    """Serve a view at `path` below the root of the API by `method`, by default GET, or POST if it has a body.

    The docstring of the view is the description of the operation, and the entity that it returns is the answer, or
    `answer` names a schema. `example` is the body of an example request, or its address if there is no body, by default
    with the examples of the parameters in the path. `refusals` are the statuses of errors, without those that any
    request can have.

    A view whose entity has `next` is a page of a list. With `scope`, the token must have that scope; with
    `is_open_locally`, the user of a personal server needs no token. `is_shadowed` is for an address that another
    operation would match with other methods: those methods are refused.
    """

    def register(view: V) -> V:
        description = " ".join((view.__doc__ or "").split())
        if writes:
            description += _NEEDS_ANY if scope == ANY else _NEEDS.format(scope)
        examples = {parameter.name: parameter.example for parameter in parameters if parameter.is_in_path}
        possible = {*COMMON_REFUSALS, *refusals, *((403,) if scope else ())}
        spec = Operation(
            method=method or ("get" if body is None else "post"),
            path=ROOT + path,
            name=view.__name__,
            group=group,
            summary=summary,
            description=description,
            answer=answer or _named(get_type_hints(view)["return"]),
            parameters=parameters,
            refusals=tuple(sorted(possible)),
            is_list=any(parameter.name == "after" for parameter in parameters),
            example=(ROOT + path).format(**examples) if example is None else example,
            body=None if body is None else _named(body),
            bytes_example=bytes_example,
            status=status,
            writes=writes,
            scope=scope,
            is_open_locally=is_open_locally,
        )
        _operations[spec.name] = spec
        rule, served = spec.path.replace("{", "<").replace("}", ">"), _served(spec, view)
        if is_shadowed or (body is not None and not writes):
            api.add_url_rule(
                rule,
                spec.name,
                _only_post(served),
                methods=METHODS,
                provide_automatic_options=False,
                merge_slashes=False,
            )
        else:
            api.add_url_rule(rule, spec.name, served, methods=[spec.method.upper()], merge_slashes=False)
        return view

    return register


writing_operation = partial(operation, method="post", scope=UPLOAD, writes=True)
"""Serve a view that writes or runs something, by default by POST with the scope `upload`: see `operation`."""


def _only_post(answer_post: Callable[..., Response]) -> Callable[..., Response]:
    """Refuse other methods at this address. Otherwise `lookup` in `/organs/lookup` would be read as the digest in
    `/organs/<digest>`.
    """

    @wraps(answer_post)
    def answer(**arguments: Any) -> Response:
        if request.method == "OPTIONS":
            return Response(headers={"Allow": ", ".join(_POST_METHODS)})
        if request.method not in _POST_METHODS:
            raise MethodNotAllowed(_POST_METHODS)
        return answer_post(**arguments)

    return answer


def _served(spec: Operation, view: View) -> Callable[..., Response]:
    """Return the function that checks a request, calls the view and answers with its entity."""
    known = tuple(
        parameter.name
        for parameter in spec.parameters
        if (parameter.where == "query" if spec.writes else not parameter.is_in_path)
    )
    repeatable = frozenset(parameter.name for parameter in spec.parameters if parameter.is_repeatable)

    @wraps(view)
    def answer(**arguments: Any) -> Response:
        if spec.writes:
            check_writing(spec.scope or UPLOAD)
        elif spec.scope is None or (spec.is_open_locally and identity().is_local):
            identity()  # refuses a request with an invalid token
        else:
            need(spec.scope)
        _check_address(known, repeatable)
        if spec.writes and spec.body is not None:
            _check_json()
        value = view(**arguments)
        response = json_answer(value, spec.status)
        if spec.writes:
            response.headers["Cache-Control"] = "no-store"
        if spec.status == ACCEPTED and isinstance(value, Job | Upload | Submission):
            response.headers["Location"] = f"{ROOT}/{_PLACES[type(value)]}/{value.id}"
        if isinstance(value, Page) and value.next is not None and not spec.writes:
            response.headers["Link"] = f'<{next_address(value.next)}>; rel="next"'
        return conditional(response) if spec.method == "get" else response

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


R = TypeVar("R", bound=RequestBody)
BODY_LIMITS = Limits(SUBMISSION_MAX_BYTES, depth=8)
"""The limits of JSON in bodies; the size of most bodies has a lower limit."""


def json_body(kind: type[Entity] | None = None) -> dict[str, object]:
    """Return the body, an object with no members other than those of `kind`. With None, the caller checks the names.

    The caller checks the values. Raises BadRequest. The answer is 415 for a body that is not JSON, and 413 for a body
    that is too large.
    """
    _check_json()
    try:
        values = parse_json(request.get_data(cache=False), BODY_LIMITS)
        if not isinstance(values, dict):
            raise BadDocument([("", "it must be a JSON object")])
        if unknown := [] if kind is None else list(unknown_keys(values, kind.__struct_encode_fields__)):
            raise BadDocument(unknown)
    except BadDocument as error:
        raise _bad_request(error) from error
    return values


def read_body(kind: type[R]) -> R:
    """Return the body as a request of that class. Raises BadRequest with all members that are not valid, and the
    errors of `json_body`.
    """
    try:
        return convert(json_body(), kind)
    except BadDocument as error:
        raise _bad_request(error) from error


def _bad_request(error: BadDocument) -> BadRequest:
    first, *more = ((path, f"{path or 'The body'}: {sentence}.") for path, sentence in error.reasons)
    return BadRequest(*first, more=more)


def _check_json() -> None:
    """Abort with 415 for a body that is not JSON. The form of a page cannot send this type."""
    if request.mimetype != "application/json":
        abort(415, "The body must be JSON: send it with Content-Type: application/json.")


YAML = "yaml"


def requested_recipe() -> dict[str, object]:
    """Return the body as arguments of the job `compose`: `recipe`, or `recipe_text` if the body is `{"yaml": TEXT}`."""
    body = json_body()
    if YAML not in body:
        return {"recipe": body}
    if len(body) > 1:
        raise BadRequest(YAML, f"{YAML} holds the whole recipe; other members are not allowed beside it.")
    if not isinstance(body[YAML], str) or not body[YAML]:
        raise BadRequest(YAML, f"{YAML} must be a text: the recipe.")
    return {"recipe_text": body[YAML]}


def queued(kind: str, arguments: Mapping[str, object]) -> Job:
    """Put a job of that kind into the queue, with arguments from the request, and return it.

    Raises BadInput for invalid arguments, QueueFull (503) if too many jobs wait, TooMany (429) if too many jobs of the
    client wait.
    """
    job_id = queue_job(kind, arguments)
    with reading() as session:
        return job_by_id(session, job_id)
