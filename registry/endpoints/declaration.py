"""How an endpoint is declared, and how a client calls it.

    @GROUP.get("/jobs/{job}", "Get a job", refusals=(404,))
    def job(job: JobNumber) -> Job:
        '''Return the progress of a job.'''

The function has no code: its name is the name of the operation, its docstring the description, its return type the
answer, and its parameters are those of the request. A parameter named in the path stands there, one with `InHeader` is
a header, `body` is the JSON body, `data` a body of plain bytes; all others stand in the query. The types have the
limits, descriptions and examples. The server checks numbers, choices, switches and lengths; patterns are for the
document, and the views read names and digests. The server's route, the OpenAPI document and the client's call follow
from this.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Meta

from organs.registry.catalog.vocabulary import UPLOAD
from organs.registry.entities.base import Entity, Schema, schema_name
from organs.registry.errors import BadQuery, BadRequest, NotFound

ROOT = "/api/v1"
"""The address of the API below that of the server."""
CREATED, ACCEPTED = 201, 202
COMMON_REFUSALS = (400, 401, 413, 414, 415, 421, 429, 503)
"""The statuses with which any request can be refused."""
BODY, BYTES_BODY = "body", "data"
DOCUMENT = "Document"
DIGITS_MAX = 19

Values = Mapping[str, object]
"""A JSON object whose members the server reads itself. A body of the type `SomeRequest | Values` may be either."""


P = ParamSpec("P")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class InHeader:
    """Part of the annotation of a parameter that is sent as the header `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the path, the query or a header."""

    key: str
    """The name of the function's parameter."""
    name: str
    """The name in the address, or that of the header."""
    where: str
    """`path`, `query` or `header`."""
    description: str
    schema: Schema
    example: str
    required: bool
    default: Any
    is_repeatable: bool
    is_switch: bool
    """Whether it is a boolean, which is 1 or 0 in the address."""

    @property
    def is_in_path(self) -> bool:
        return self.where == "path"

    @property
    def is_free_text(self) -> bool:
        """Whether it is a text of a search or a filter: spaces around it do not matter; empty, it is no filter."""
        is_text = self.where == "query" and self.schema["type"] == "string"
        return is_text and not self.schema.keys() & {"pattern", "enum"}

    def is_absent(self, texts: Sequence[str]) -> bool:
        """Return whether an address with `texts` lacks the parameter; an empty filter or choice counts as absent."""
        if self.is_free_text:
            return not any(text.strip() for text in texts)
        is_choice = "enum" in self.schema and not self.is_switch
        return not any(texts) if is_choice else not texts

    def value(self, texts: Sequence[str]) -> Any:
        """Return the value of the parameter, which an address has as `texts`.

        Raises BadQuery for text of another form, BadRequest if a required parameter is absent, NotFound for a number in
        the path that is not one.
        """
        if self.is_absent(texts):
            if self.required:
                raise BadRequest(self.name, f"{self.name} is missing. {self.description}")
            return self.default
        if self.is_repeatable:
            return list(texts)
        text = texts[0]
        if self.is_switch:
            if text not in ("0", "1"):
                raise BadQuery(self.name, "0 or 1")
            return text == "1"
        if self.schema["type"] == "integer":
            return self._number(text)
        choices = self.schema.get("enum")
        if choices is not None and text not in choices:
            due = f"one of {', '.join(choices)}"
            if self.is_in_path:
                raise NotFound(f"there is no {self.name} {text[:80]!r}: {due}")
            raise BadQuery(self.name, due)
        longest = self.schema.get("maxLength", len(text))
        if self.where == "query" and len(text) > longest:
            raise BadQuery(self.name, f"at most {longest:,} characters")
        return text.strip() if self.is_free_text else text

    def _number(self, text: str) -> int:
        least, most = self.schema["minimum"], self.schema["maximum"]
        number = whole_number(text, least, most)
        if number is not None:
            return number
        if self.is_in_path:
            raise NotFound(f"{text[:40]!r} is not the number of a {self.name}")
        raise BadQuery(self.name, f"a whole number from {least} to {most}")


def whole_number(text: str, least: int, most: int) -> int | None:
    """Return the number in `text`; None unless it has only digits and is from `least` to `most`."""
    is_number = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
    return int(text) if is_number and least <= int(text) <= most else None


class Requester(Protocol):
    """A connection to a registry: `registry.client.connection.Connection`."""

    def send(
        self, kind: type[Any], method: str, path: str, body: Entity | Values | None, data: Any, headers: dict[str, str]
    ) -> Any:
        """Send a request and return the entity of the class `kind` in the answer."""


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[P, A]):
    """One method of one address of the API. A call sends the request: `jobs.job(connection, 5)`."""

    declared: Callable[P, A]
    method: str
    """In lower case, as in OpenAPI."""
    path: str
    """The path with names in braces."""
    name: str
    group: str
    summary: str
    description: str
    answer: type[A]
    parameters: tuple[Parameter, ...]
    refusals: tuple[int, ...]
    example: str
    """The address of an example request, or its body."""
    body: type[Entity] | None = None
    reads_body: bool = True
    """Whether the server reads the body as the class `body`; otherwise the view gets its members."""
    bytes_example: str | None = None
    """The body of the example if it is plain bytes instead of JSON."""
    status: int = 200
    """Status of a successful answer."""
    writes: bool = False
    """Whether it writes or runs something."""
    scope: str | None = None
    """The scope that the token must have; None if no token is needed."""
    is_open_locally: bool = False
    """Whether the user of a personal server needs no token."""
    is_shadowed: bool = False
    """Whether another endpoint would match the address with other methods; those are refused."""

    @property
    def answer_name(self) -> str:
        """The name of the schema of the answer; `Document` for the OpenAPI document, which is not an entity."""
        return schema_name(self.answer) if isinstance(self.answer, type) else DOCUMENT

    @property
    def is_list(self) -> bool:
        return any(parameter.name == "after" for parameter in self.parameters)

    def __call__(self, connection: Requester, /, *args: P.args, **values: P.kwargs) -> A:
        """Send the request and return the entity in the answer. Values that are None are left out.

        Raises what `Connection` raises.
        """
        if self.answer is bytes:
            raise TypeError(f"{self.name} answers with bytes: download them from its address")
        bound = inspect.signature(self.declared).bind(*args, **values).arguments
        body, data = bound.pop(BODY, None), bound.pop(BYTES_BODY, None)
        in_headers = [parameter for parameter in self.parameters if parameter.where == "header"]
        texts = {parameter.name: bound.pop(parameter.key, None) for parameter in in_headers}
        headers = {name: text for name, text in texts.items() if text is not None}
        answer: A = connection.send(self.answer, self.method.upper(), self.address(**bound), body, data, headers)
        return answer

    def address(self, **values: object) -> str:
        """Return the address of a request with these values, without the server's."""
        in_path = {}
        for parameter in self.parameters:
            if parameter.is_in_path:
                text = str(values.pop(parameter.key))
                if text in ("", ".", ".."):  # a client or a proxy would resolve it to another address
                    raise BadRequest(parameter.name, f"{text!r} cannot be part of an address")
                in_path[parameter.name] = quote(text, safe="@")
        pairs = [
            (name, int(item) if isinstance(item, bool) else item)
            for name, value in values.items()
            for item in (value if isinstance(value, list | tuple) else (value,))
            if item is not None
        ]
        return self.path.format(**in_path) + (f"?{urlencode(pairs)}" if pairs else "")


@dataclass(frozen=True, slots=True)
class Group:
    """Endpoints of one subject, with its text in the OpenAPI document."""

    name: str
    text: str
    root: str = ROOT
    endpoints: dict[str, Endpoint[..., Any]] = field(default_factory=dict)

    def get(self, path: str, summary: str, **options: Any) -> Callable[[Callable[P, A]], Endpoint[P, A]]:
        """Declare an endpoint that reads. The options are those of `declare`."""
        return self.declare("get", path, summary, **options)

    def ask(self, path: str, summary: str, **options: Any) -> Callable[[Callable[P, A]], Endpoint[P, A]]:
        """Declare an endpoint that reads by POST, because its parameters are a body."""
        return self.declare("post", path, summary, is_shadowed=True, **options)

    def write(self, method: str, path: str, summary: str, **options: Any) -> Callable[[Callable[P, A]], Endpoint[P, A]]:
        """Declare an endpoint that writes, removes, or starts a job."""
        return self.declare(method, path, summary, writes=True, **options)

    def declare(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        example: str | None = None,
        bytes_example: str | None = None,
        status: int = 200,
        refusals: Sequence[int] = (),
        scope: str | None = None,
        writes: bool = False,
        is_open_locally: bool = False,
        is_shadowed: bool = False,
    ) -> Callable[[Callable[P, A]], Endpoint[P, A]]:
        """Declare an endpoint at `path` below the root of the group.

        `example` is the query of an example request, with another path before it if needed, or the body if there is
        one. `refusals` are the statuses of errors, without those that any request can have. With `scope`, the token
        must have that scope, by default `upload` for an endpoint that writes. With `is_open_locally`, the user of a
        personal server needs no token.
        """
        scope = scope or (UPLOAD if writes else None)

        def declared(function: Callable[P, A]) -> Endpoint[P, A]:
            hints = get_type_hints(function, include_extras=True)
            answer, body = hints.pop("return"), hints.pop(BODY, None)
            hints.pop(BYTES_BODY, None)
            defaults = inspect.signature(function).parameters
            parameters = tuple(_parameter(key, hint, defaults[key].default, path) for key, hint in hints.items())
            bodies = get_args(body) if get_origin(body) in (Union, types.UnionType) else (body,)
            description = " ".join((function.__doc__ or "").split())
            if writes:
                description += f" Needs a token {'of any scope' if scope == ANY else f'with the scope `{scope}`'}."
            possible = {*COMMON_REFUSALS, *refusals, *((403,) if scope else ())}
            if body is None:
                places = {parameter.name: parameter.example for parameter in parameters if parameter.is_in_path}
                address, _, query = (example or "").rpartition("?")
                shown = self.root + (address or path.format(**places)) + (f"?{query}" if query else "")
            else:
                shown = example or ""
            endpoint = Endpoint(
                declared=function,
                method=method,
                path=self.root + path,
                name=function.__name__,
                group=self.name,
                summary=summary,
                description=description,
                answer=answer,
                parameters=parameters,
                refusals=tuple(sorted(possible)),
                example=shown,
                body=bodies[0],
                reads_body=len(bodies) == 1,
                bytes_example=bytes_example,
                status=status,
                writes=writes,
                scope=scope,
                is_open_locally=is_open_locally,
                is_shadowed=is_shadowed,
            )
            if self.endpoints.setdefault(endpoint.name, endpoint) is not endpoint:
                raise TypeError(f"{self.name} has two endpoints with the name {endpoint.name}")
            return endpoint

        return declared


ANY = "any"
"""The scope of an endpoint that every token may call. It is not a scope of tokens."""


def _parameter(key: str, hint: Any, default: Any, path: str) -> Parameter:
    required = default is inspect.Parameter.empty
    if get_origin(hint) in (Union, types.UnionType):  # `Something | None`
        (hint,) = (item for item in get_args(hint) if item is not types.NoneType)
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    header = next((note.name for note in notes if isinstance(note, InHeader)), None)
    description = next((note.description for note in notes if isinstance(note, Meta) and note.description), "")
    examples = next((note.examples for note in notes if isinstance(note, Meta) and note.examples), None)
    schema = msgspec.json.schema(hint)
    is_switch = schema.get("type") == "boolean"
    of_texts = schema.get("type") == "array" and schema["items"].get("type") == "string"
    of_numbers = schema.get("type") == "integer" and {"minimum", "maximum"} <= schema.keys()
    if not (of_texts or of_numbers or schema.get("type") == "string" or (is_switch and not required)):
        raise TypeError(f"{key}: a parameter is a text, texts, a whole number with bounds, or a switch with a default")
    if is_switch:
        schema = {"type": "string", "enum": ["0", "1"], "default": str(int(default))}
    elif not required and default not in (None, "", ()):
        schema["default"] = default
    return Parameter(
        key=key,
        name=header or key,
        where="header" if header else "path" if f"{{{key}}}" in path else "query",
        description=description,
        schema={name: value for name, value in schema.items() if name not in ("description", "examples")},
        example=str(examples[0]) if examples else "",
        required=required,
        default=None if required else default,
        is_repeatable=schema["type"] == "array",
        is_switch=is_switch,
    )
