"""Problem documents (RFC 9457): errors as JSON, converted from the classes of `registry.errors` and back.

A problem has the standard members, `code`, and `errors` with the single errors. The data of an error, for example
`seconds` of TooMany, are extension members.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from typing import Annotated, get_type_hints

import msgspec
from msgspec import Meta, Struct

from organs.registry.entities.base import prepared
from organs.registry.errors import (
    DETAIL_MAX_LENGTH,
    ERRORS,
    FIELD_MAX_LENGTH,
    BadInput,
    BadToken,
    Busy,
    Code,
    Conflict,
    Detail,
    FieldError,
    NotAllowed,
    NotFound,
    OrganError,
    OverQuota,
    Removed,
    TooMany,
    Unreachable,
)

MEDIA_TYPE = "application/problem+json"
ERRORS_MAX = 40
"""The most entries of `errors` in a document."""
INTERNAL = 500
"""The status of internal errors of the server. Their class, sentence and data are not sent."""
_TITLES = {413: "Content too large", 414: "URI too long", 416: "Range not satisfiable"}
"""Standard phrases that differ between versions of Python or contain an abbreviation."""
_BY_STATUS: dict[int, type[OrganError]] = {
    400: BadInput,
    401: BadToken,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    410: Removed,
    413: OverQuota,
    429: TooMany,
    503: Busy,
}
"""The classes for answers with an unknown code, which come from a newer server or from a proxy."""


class Problem(Struct, frozen=True, kw_only=True):
    """The error in an answer. Further members are the data of the error; docs/errors.md lists them."""

    type: Annotated[str, Meta(max_length=200, description="Always `about:blank`; `code` names the kind of error.")] = (
        "about:blank"
    )
    title: Annotated[str, Meta(max_length=100, description="The standard phrase of the status.")]
    status: Annotated[int, Meta(ge=400, le=599)]
    detail: Detail
    code: Code
    errors: Annotated[tuple[FieldError, ...], Meta(max_length=ERRORS_MAX, description="The single errors.")]


def title_of(status: int) -> str:
    """Return the standard phrase of an HTTP status."""
    return _TITLES.get(status) or HTTPStatus(status).phrase.capitalize()


def code_of(status: int) -> str:
    """Return the code of an answer without an error class: its standard phrase, such as `method-not-allowed`."""
    return title_of(status).lower().replace(" ", "-").replace("'", "")


def problem_of(error: OrganError, status: int | None = None) -> Problem:
    """Return the problem document of `error`; `status` replaces the status of its class."""
    status = status or error.status
    listed = tuple(
        FieldError(
            field=None if entry.field is None else _cut(entry.field, FIELD_MAX_LENGTH),
            code=entry.code,
            detail=_cut(entry.detail),
        )
        for entry in error.errors[:ERRORS_MAX]
    )
    return Problem(title=title_of(status), status=status, detail=_cut(str(error)), code=error.code, errors=listed)


def plain_problem(status: int, detail: str) -> Problem:
    """Return a problem without an error class."""
    return Problem(title=title_of(status), status=status, detail=_cut(detail), code=code_of(status), errors=())


def data_of(error: OrganError) -> Mapping[str, object]:
    """Return the data of `error`: its annotated attributes, with texts cut to the allowed length."""
    values = {name: getattr(error, name) for name in _data_type(error.code).__struct_fields__}
    return {name: _cut(value) if isinstance(value, str) else value for name, value in values.items()}


def encoded(problem: Problem, extensions: Mapping[str, object] | None = None) -> bytes:
    """Return `problem` as JSON with further members."""
    return msgspec.json.encode({**msgspec.structs.asdict(problem), **(extensions or {})})


def error_of(status: int, body: bytes, where: str, wait_seconds: float = 0) -> OrganError:
    """Return the error for an answer with `status` and `body`.

    The code determines the class if it is known and belongs to the status; otherwise the status does. The body is not
    trusted: a body outside of the limits of `Problem` is not a problem document. `where` names the server;
    `wait_seconds` is from the header `Retry-After`.
    """
    try:
        problem = msgspec.json.decode(body, type=prepared(Problem))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problem = plain_problem(status, f"{where} answered {status}")
    kind = ERRORS.get(problem.code)
    if kind is not None and kind.status == status != INTERNAL:
        # Data that do not fit the class come from an older or newer version.
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _restore(kind, problem, msgspec.json.decode(body, type=prepared(_data_type(kind.code))))
    return _error_of_status(status, problem, wait_seconds)


def error_of_document(document: object, where: str) -> OrganError:
    """Return the error for a problem document inside of an answer, as `error_of` does for an answer."""
    body = msgspec.json.encode(document)
    try:
        status = msgspec.json.decode(body, type=prepared(Problem)).status
    except (msgspec.DecodeError, RecursionError):
        status = INTERNAL
    return error_of(status, body, where)


def _error_of_status(status: int, problem: Problem, wait_seconds: float) -> OrganError:
    kind = _BY_STATUS.get(status, BadInput if 400 <= status < INTERNAL else Unreachable)
    if kind is TooMany:
        return TooMany(problem.detail, wait_seconds)
    unknown = {"reason": "", "removed_on": None} if kind is Removed else {}
    return _restore(kind, problem, _data_type(kind.code)(**unknown))


def _restore(kind: type[OrganError], problem: Problem, data: Struct) -> OrganError:
    """Return an error of the class `kind` as it was raised, without a call of its constructor."""
    error = kind.__new__(kind)
    OrganError.__init__(error, problem.detail, errors=problem.errors)
    for name in data.__struct_fields__:
        setattr(error, name, getattr(data, name))
    return error


@cache
def _data_type(code: str) -> type[Struct]:
    """Return a struct with the annotated attributes of the class with that code, to check its data."""
    kind = ERRORS[code]
    hints = get_type_hints(kind, include_extras=True)
    common = get_type_hints(OrganError)
    members = [(name, hint) for name, hint in hints.items() if name not in common]
    return msgspec.defstruct(f"{kind.__name__}Data", members, frozen=True, kw_only=True)


def _cut(text: str, most: int = DETAIL_MAX_LENGTH) -> str:
    """Return at most `most` characters of `text` in valid UTF-8: a name from outside may have surrogates."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"
