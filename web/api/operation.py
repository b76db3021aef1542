"""A route of the API together with its description: what it takes, what it answers, what it refuses.

    @operation("/organs/{digest}", group="Organs", answer="Organ", parameters=(DIGEST,), refusals=(404, 409), ...)
    def organ(digest: str) -> Values: ...

The view gives plain values; the wrapper checks what all requests have in common, and makes JSON, `Link` and ETag. The
OpenAPI document is made from what is said here, so that neither can say something else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any
from urllib.parse import unquote_to_bytes

from flask import Response, request
from werkzeug.exceptions import MethodNotAllowed

from organs.registry.catalog.search.parse import nearest
from organs.registry.entities.base import Entity, schema_name
from organs.registry.errors import BadRequest
from organs.registry.present.values import Values
from organs.web.api.blueprint import ROOT, api
from organs.web.api.schemas.values import Schema
from organs.web.auth import (
    identity,
    need,
)
from organs.web.responses import (
    conditional,
    declare_parameters,
    json_answer,
    next_address,
)

COMMON_REFUSALS = (400, 401, 413, 414, 415, 421, 429, 503)
"""The statuses with which any request can be refused."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_POST_METHODS = ("OPTIONS", "POST")


@dataclass(frozen=True, slots=True)
class Parameter:
    """Something that stands in the address."""

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
    """As OpenAPI writes it: names in braces."""
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
    """The body of the example where that is plain bytes, no JSON."""
    status: int = 200
    """Of an answer that is no refusal."""
    writes: bool = False
    """Whether it writes or runs something (`web.api.writing`)."""
    scope: str | None = None
    """What the token of who asks must be good for; None where anybody may ask."""


Answer = str | type[Entity]
"""The entity that is answered, or the name of a schema."""
View = Callable[..., Entity | Values]

_operations: list[Operation] = []
_entities: dict[str, type[Entity]] = {}


def operations() -> tuple[Operation, ...]:
    """All that have been declared, in the order of the reference."""
    return tuple(_operations)


def entities() -> tuple[type[Entity], ...]:
    """Return the entities that operations answer or take."""
    return tuple(_entities.values())


def named(kind: Answer) -> str:
    """Return the name of the schema of `kind`; that of an entity goes into the document."""
    if isinstance(kind, str):
        return kind
    _entities[schema_name(kind)] = kind
    return schema_name(kind)


def declare(told: Operation) -> None:
    """Let the reference have an operation, with what any request can be refused for."""
    declare_parameters(told.name, [one.name for one in told.parameters if not one.is_in_path])
    _operations.append(replace(told, refusals=tuple(sorted({*COMMON_REFUSALS, *told.refusals}))))


def operation(
    path: str,
    *,
    group: str,
    summary: str,
    answer: Answer,
    example: str,
    parameters: Sequence[Parameter] = (),
    refusals: Sequence[int] = (),
    body: Answer | None = None,
    scope: str | None = None,
) -> Callable[[View], View]:
    """Serve a view at `path` below the root of the API: GET, or POST where it takes a body. Its docstring describes it.

    A view whose values have a `next` is a page of a list. With a `scope` it is only for those whose token is good for
    it.
    """

    def register(view: View) -> View:
        told = Operation(
            method="get" if body is None else "post",
            path=ROOT + path,
            name=view.__name__,
            group=group,
            summary=summary,
            description=" ".join((view.__doc__ or "").split()),
            answer=named(answer),
            parameters=tuple(parameters),
            refusals=tuple(refusals) if scope is None else (403, *refusals),
            is_list=any(parameter.name == "after" for parameter in parameters),
            example=example,
            body=None if body is None else named(body),
            scope=scope,
        )
        declare(told)
        rule = told.path.replace("{", "<").replace("}", ">")
        if body is None:
            api.add_url_rule(rule, told.name, _serve(told, view), merge_slashes=False)
        else:
            answer_post = only_post(_serve(told, view))
            api.add_url_rule(
                rule, told.name, answer_post, methods=METHODS, provide_automatic_options=False, merge_slashes=False
            )
        return view

    return register


def only_post(answer_post: Callable[..., Response]) -> Callable[..., Response]:
    """Refuse other methods here: `/organs/lookup` would otherwise be taken for the digest of `/organs/<digest>`."""

    @wraps(answer_post)
    def answer(**arguments: Any) -> Response:
        if request.method == "OPTIONS":
            return Response(headers={"Allow": ", ".join(_POST_METHODS)})
        if request.method not in _POST_METHODS:
            raise MethodNotAllowed(_POST_METHODS)
        return answer_post(**arguments)

    return answer


def _serve(told: Operation, view: View) -> Callable[..., Response]:
    known = tuple(parameter.name for parameter in told.parameters if not parameter.is_in_path)
    repeatable = frozenset(parameter.name for parameter in told.parameters if parameter.is_repeatable)

    @wraps(view)
    def answer(**arguments: Any) -> Response:
        if told.scope is None:
            identity()  # a token that is sent is good, or the request is refused
        else:
            need(told.scope)
        check_address(known, repeatable)
        value = view(**arguments)
        made = json_answer(value)
        following = _next(value) if told.is_list else None
        if following is not None:
            made.headers["Link"] = f'<{next_address(following)}>; rel="next"'
        return conditional(made) if told.method == "get" else made

    return answer


def _next(value: Entity | Values) -> str | None:
    following: str | None = value["next"] if isinstance(value, dict) else value.next  # type: ignore[attr-defined]
    return following


def check_address(known: Sequence[str], repeatable: Collection[str] = ()) -> None:
    """Raise BadRequest for parameters that are unknown or repeated, and for an address that is not UTF-8."""
    sent = request.query_string
    if not sent:
        return
    if b"%" in sent:
        try:
            unquote_to_bytes(sent).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadRequest(None, "The address has escaped bytes that are no UTF-8.") from error
    for name, values in request.args.lists():
        if name not in known:
            raise BadRequest(name[:80], _unknown(name, known))
        if len(values) > 1 and name not in repeatable:
            raise BadRequest(name, f"{name} is given {len(values)} times; once is enough.")


def _unknown(name: str, known: Sequence[str]) -> str:
    close = nearest(name[:80], known)
    meant = f"; did you mean {close}?" if close else "."
    takes = f"It takes {', '.join(known)}" if known else "It takes none"
    return f"There is no parameter {name[:80]!r} here{meant} {takes}."
