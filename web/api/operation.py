"""Routes of the API with their descriptions: parameters and body, which are checked; answer; rights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, TypeVar, get_type_hints
from urllib.parse import unquote_to_bytes

from flask import Blueprint, Response, abort, request
from werkzeug.exceptions import MethodNotAllowed

from organs.registry.catalog.cursor import CURSOR_MAX_LENGTH, PAGE_MAX
from organs.registry.catalog.queries.chimeras import ORDERS as CHIMERA_ORDERS
from organs.registry.catalog.queries.jobs import job_by_id
from organs.registry.documents import BadDocument, Limits, convert, parse_json, unknown_keys
from organs.registry.entities.base import Entity, Page, RequestBody, Schema, schema_name
from organs.registry.entities.job import Job
from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT
from organs.registry.entities.storage import ROWS_DEFAULT as STORAGE_ROWS_DEFAULT
from organs.registry.entities.submission import Submission, Upload
from organs.registry.errors import BadDigest, BadName, BadRequest
from organs.registry.names import nearest
from organs.registry.relatives.families import FAMILIES_DEFAULT, FAMILIES_MAX
from organs.registry.search.language import MODELS, ORGANS, QUERY_MAX_LENGTH, Vocabulary
from organs.registry.upload_limits import SUBMISSION_MAX_BYTES
from organs.web.auth import ANY, UPLOAD, identity, need
from organs.web.error_pages import sentence_of
from organs.web.params import LIMIT_DEFAULT
from organs.web.permissions import check_writing, queue_job
from organs.web.responses import conditional, declare_parameters, json_answer, next_address, reading

ROOT = "/api/v1"

api = Blueprint("api", __name__)
"""The blueprint of the API."""

COMMON_REFUSALS = (400, 401, 413, 414, 415, 421, 429, 503)
"""The statuses with which any request can be refused."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_POST_METHODS = ("OPTIONS", "POST")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the path, the query or a header."""

    name: str
    description: str
    schema: Schema
    example: str
    where: str = "query"
    required: bool = False
    is_repeatable: bool = False

    @property
    def is_in_path(self) -> bool:
        return self.where == "path"


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


path_parameter = partial(Parameter, where="path", required=True)
MODEL_TEXT: Schema = {"type": "string", "maxLength": 203}
"""The schema of the name of a model, or of `sha256:` and a digest."""


def number_parameter(name: str, example: str = "1") -> Parameter:
    """Return a parameter in the path: the number of a job, a submission or the like."""
    schema: Schema = {"type": "string", "pattern": "^[0-9]{1,19}$"}
    return path_parameter(name, f"The number of the {name}.", schema, example)


Answer = str | type[Entity]
"""The entity of the answer, or the name of a schema."""
View = Callable[..., Entity | Schema]
"""It returns an entity; the view of the OpenAPI document returns the document."""
V = TypeVar("V", bound=View)
T = TypeVar("T")

ACCEPTED = 202
_PLACES: dict[type[Entity], str] = {Job: "jobs", Upload: "uploads", Submission: "submissions"}
"""Addresses of the resources of answers with status 202."""
_NEEDS = " Needs a token with the scope `{}`."
_NEEDS_ANY = " Needs a token of any scope."

_operations: list[Operation] = []
_entities: dict[str, type[Entity]] = {}


def operations() -> tuple[Operation, ...]:
    """Return all declared operations, in the order of the reference."""
    return tuple(_operations)


def entities() -> tuple[type[Entity], ...]:
    """Return the entities that operations return or accept."""
    return tuple(_entities.values())


def named(kind: Answer) -> str:
    """Return the name of the schema of `kind`. If it is an entity, add its schema to the document."""
    if isinstance(kind, str):
        return kind
    _entities[schema_name(kind)] = kind
    return schema_name(kind)


def declare(spec: Operation) -> None:
    """Add an operation to the document, with the error statuses that are possible for every request."""
    declare_parameters(spec.name, [parameter.name for parameter in spec.parameters if not parameter.is_in_path])
    _operations.append(replace(spec, refusals=tuple(sorted({*COMMON_REFUSALS, *spec.refusals}))))


def operation(
    path: str,
    *,
    group: str,
    summary: str,
    example: str | None = None,
    answer: str | None = None,
    method: str | None = None,
    parameters: Sequence[Parameter] = (),
    refusals: Sequence[int] = (),
    body: Answer | None = None,
    bytes_example: str | None = None,
    status: int = 200,
    scope: str | None = None,
    is_open_locally: bool = False,
    writes: bool = False,
    is_shadowed: bool = False,
) -> Callable[[V], V]:
    """Serve a view at `path` below the root of the API by `method`, by default GET, or POST if it has a body.

    The docstring of the view is the description of the operation, and the entity that it returns is the answer, or
    `answer` names a schema. `example` is the body of an example request, or its address if there is no body, by default
    with the examples of the parameters in the path.

    A view whose entity has `next` is a page of a list. With `scope`, the token must have that scope; with
    `is_open_locally`, the user of a personal server needs no token. `is_shadowed` is for an address that another
    operation would match with other methods: those methods are refused.
    """

    def register(view: V) -> V:
        description = " ".join((view.__doc__ or "").split())
        if writes:
            description += _NEEDS_ANY if scope == ANY else _NEEDS.format(scope)
        examples = {parameter.name: parameter.example for parameter in parameters if parameter.is_in_path}
        spec = Operation(
            method=method or ("get" if body is None else "post"),
            path=ROOT + path,
            name=view.__name__,
            group=group,
            summary=summary,
            description=description,
            answer=named(answer or get_type_hints(view)["return"]),
            parameters=tuple(parameters),
            refusals=(*((403,) if scope else ()), *((429,) if writes else ()), *refusals),
            is_list=any(parameter.name == "after" for parameter in parameters),
            example=(ROOT + path).format(**examples) if example is None else example,
            body=None if body is None else named(body),
            bytes_example=bytes_example,
            status=status,
            writes=writes,
            scope=scope,
            is_open_locally=is_open_locally,
        )
        declare(spec)
        rule, served = spec.path.replace("{", "<").replace("}", ">"), _served(spec, view)
        if is_shadowed or (body is not None and not writes):
            api.add_url_rule(
                rule,
                spec.name,
                only_post(served),
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


def only_post(answer_post: Callable[..., Response]) -> Callable[..., Response]:
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
        check_address(known, repeatable)
        if spec.writes and spec.body is not None:
            check_json()
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


def check_address(known: Sequence[str], repeatable: Collection[str] = ()) -> None:
    """Raise BadRequest for parameters that are unknown or repeated, and for an address that is not UTF-8."""
    query_string = request.query_string
    if not query_string:
        return
    if b"%" in query_string:
        try:
            unquote_to_bytes(query_string).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRequest(None, "The address has escaped bytes that are not UTF-8.") from error
    for name, values in request.args.lists():
        if name not in known:
            raise BadRequest(name[:80], _unknown_text(name, known))
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


def _unknown_text(name: str, known: Sequence[str]) -> str:
    close = nearest(name[:80], known)
    suggestion = f"; did you mean {close}?" if close else "."
    known_names = f"Known parameters: {', '.join(known)}" if known else "There are none"
    return f"Unknown parameter {name[:80]!r}{suggestion} {known_names}."


R = TypeVar("R", bound=RequestBody)
BODY_LIMITS = Limits(SUBMISSION_MAX_BYTES, depth=8)
"""The limits of JSON in bodies; the size of most bodies has a lower limit."""


def json_body(members: type[RequestBody] | Sequence[str] | None = None) -> dict[str, object]:
    """Return the body, an object with no members other than `members`. With None, the caller checks the names.

    A class means the members of that request. The caller checks the values. Raises BadRequest. The answer is 415
    for a body that is compressed or not JSON, and 413 for a body that is too large.
    """
    check_json()
    try:
        values = parse_json(request.get_data(cache=False), BODY_LIMITS)
        if not isinstance(values, dict):
            raise BadDocument([("", "it must be a JSON object")])
        known = members.__struct_encode_fields__ if isinstance(members, type) else members
        if unknown := [] if known is None else list(unknown_keys(values, known)):
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


def check_json() -> None:
    """Abort with 415 for a body that is not JSON, or is compressed. The form of a page cannot send this type."""
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        abort(415, "The body must not be compressed.")
    if request.mimetype != "application/json":
        abort(415, "The body must be JSON: send it with Content-Type: application/json.")


_EXAMPLE = "Zoo-A-2M-v1.0-Q8_0"
_SWITCH: Schema = {"type": "string", "enum": ["0", "1"], "default": "0"}
_QUERY: Schema = {"type": "string", "maxLength": QUERY_MAX_LENGTH}
_NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", "maxLength": 96}
_VERSIONED: Schema = {
    "type": "string",
    "pattern": "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(@[1-9][0-9]{0,8})?$",
    "maxLength": 106,
}
_FULL_NAME: Schema = {
    "type": "string",
    "pattern": "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(@[1-9][0-9]{0,8})?$",
    "maxLength": 203,
}


def _fields(vocabulary: Vocabulary) -> str:
    fields = "; ".join(f"`{field.name}:` {field.meaning}" for field in vocabulary.fields.values())
    sorts = ", ".join(f"`sort:{name}`" for name in vocabulary.sorts)
    return f"{fields}. {sorts}, descending with a minus: `sort:-theta`. Other words are searched in names and texts."


def _limit(default: int, label: str) -> Parameter:
    schema: Schema = {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": default}
    return Parameter("limit", f"{label}, from 1 to {PAGE_MAX:,}.", schema, "2")


ORGAN_QUERY = Parameter("q", f"The query. {_fields(ORGANS)}", _QUERY, "type:organ sort:-spectral")
MODEL_QUERY = Parameter("q", f"The query. {_fields(MODELS)}", _QUERY, "kind:model sort:-theta")
LIMIT = _limit(LIMIT_DEFAULT, "Results on a page")
ROWS = _limit(ROWS_DEFAULT, "Rows of a table of models")
ORGAN_ROWS = _limit(ORGANS_DEFAULT, "Rows of a list of organs")
STORAGE_ROWS = _limit(STORAGE_ROWS_DEFAULT, "Families, and models")
AFTER = Parameter(
    "after",
    "The `next` of the previous page; valid for the same query only.",
    {"type": "string", "maxLength": CURSOR_MAX_LENGTH},
    "",
)
PLACE = Parameter(
    "after",
    "The `next` of the previous page: the number of items before this one.",
    {"type": "string", "pattern": "^[0-9]{1,7}$"},
    "",
)
FAMILIES = Parameter(
    "limit",
    f"Families on a page, from 1 to {FAMILIES_MAX}.",
    {"type": "integer", "minimum": 1, "maximum": FAMILIES_MAX, "default": FAMILIES_DEFAULT},
    "2",
)
COUNTS = Parameter("counts", "1 to include counts for the whole search.", _SWITCH, "1")
EVERY_PART = Parameter(
    "every_part", "1 to list every organ of the result in `parts`, also the unchanged ones.", _SWITCH, "0"
)
CHIMERA_ORDER = Parameter(
    "order",
    "`new` for the newest first, `gain` for the largest measured gain first.",
    {"type": "string", "enum": list(CHIMERA_ORDERS), "default": CHIMERA_ORDERS[0]},
    "gain",
)
ANY_BASE = Parameter(
    "base",
    "Only chimeras of this base: its name, or `sha256:` and a digest of its file.",
    MODEL_TEXT,
    "local/Zoo-A-2M-v1.0-F16",
)
ON_TEXTS = Parameter(
    "on",
    "Only gains on these kinds of text, separated by commas, such as `python` or `code`; without it, on any text.",
    _QUERY,
    "code",
)
LOCK_TOO = Parameter(
    "lock", "1 to include the lock, if the chimera can be made and no organ must be computed first.", _SWITCH, "0"
)
RANKED = Parameter("ranked", "1 for complete models only, by descending mean θ unless the query sorts.", _SWITCH, "1")
DIGEST = path_parameter(
    "digest",
    "The organ's digest, or at least its first 8 characters.",
    {"type": "string", "pattern": "^[0-9a-f]{8,64}$"},
    "aadb682ed7753b5f",
)
JOB = number_parameter("job")
NAMESPACE = path_parameter("namespace", "The model's namespace.", _NAME, "local")
NAME = path_parameter(
    "name", "The model's name, or `name@3` for a version; without one, the newest.", _VERSIONED, _EXAMPLE
)
FIRST = Parameter(
    "first", "A model, `namespace/name` or `namespace/name@version`.", _FULL_NAME, f"local/{_EXAMPLE}", required=True
)
SECOND = Parameter(
    "second", "The model that it is compared with.", _FULL_NAME, "local/Zoo-B-2M-v1.0-Q8_0", required=True
)
OF_MODEL = Parameter("model", "A model, to get only its family.", _FULL_NAME, "")
MODEL_DIGEST = Parameter(
    "digest",
    "The digest of a model, its file or its lock, or at least the first 8 characters, with or without `sha256:`.",
    {"type": "string", "pattern": "^(sha256:)?[0-9a-fA-F]{8,64}$"},
    "75ae85f27135e26b",
    required=True,
)
HEADER = path_parameter(
    "header",
    "The SHA-256 of a file's header, from its first byte to the last tensor info, as in locks.",
    {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "d517a753c035f3e0e718e07860437468c6bb95c4c74b68a7937177925b8e3bd3",
)
LOCK = path_parameter(
    "lock",
    "The digest of the chimera's lock, or at least its first 8 characters.",
    {"type": "string", "pattern": "^(sha256:)?[0-9a-fA-F]{8,64}$"},
    "75ae85f27135e26b",
)
BASE = Parameter(
    "base",
    "The model that receives organs: its name, or `sha256:` and a digest of its file.",
    MODEL_TEXT,
    "local/Zoo-A-2M-v1.0-F16",
    required=True,
)
DONOR = Parameter(
    "donor",
    "The model that gives organs, or an adapter.",
    MODEL_TEXT,
    "local/Zoo-B-2M-v1.0-Q8_0",
    required=True,
)


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
