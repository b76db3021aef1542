"""A route of the API that writes or runs something, together with its description.

    @writing_operation("/reports", group="Reports", answer=Job, status=202, body=ReportRequest, ...)
    def keep_report() -> Job:
        return queued("report", json_body(ReportRequest))

It wants a token that is good for its scope, `upload` unless told otherwise: 401 without one, 403 with another. On a
server of one's own the machine's own programs and pages need none (`web.auth`). With a body, that is JSON by its
type, else 415. What answers 202 answers a job, or what else goes on, whose address stands in `Location`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from flask import Response

from organs.registry.catalog.queries.jobs import job_by_id
from organs.registry.entities.base import Entity
from organs.registry.entities.job import Details, Job
from organs.registry.present.values import Values
from organs.web.api.blueprint import ROOT, api
from organs.web.api.operation import (
    METHODS,
    Answer,
    Operation,
    Parameter,
    View,
    check_address,
    declare,
    named,
    only_post,
)
from organs.web.api.params import check_json
from organs.web.auth import (
    ANY,
    UPLOAD,
)
from organs.web.permissions import ask, check_writing
from organs.web.responses import (
    json_answer,
    reading,
)

ACCEPTED = 202
_PLACES = {"Job": "jobs", "Upload": "uploads", "Submission": "submissions"}
"""Where what is answered with 202 can be asked for again, by the name of its schema."""
_NEEDS = "It needs a token with the scope `{}`."
_NEEDS_ANY = "It needs a token, of whatever scope."


def writing_operation(
    path: str,
    *,
    group: str,
    summary: str,
    answer: Answer,
    example: str,
    method: str = "post",
    parameters: Sequence[Parameter] = (),
    refusals: Sequence[int] = (),
    body: Answer | None = None,
    bytes_example: str | None = None,
    status: int = 200,
    scope: str = UPLOAD,
    is_shadowed: bool = False,
) -> Callable[[View], View]:
    """Serve a view at `path` below the root of the API by `method`: post, put, patch or delete. Its docstring
    describes it. `example` is the body of an example request, or without a body its address. At an address that could
    be read as another operation's (`is_shadowed`), nothing else is answered.
    """

    def register(view: View) -> View:
        needs = _NEEDS_ANY if scope == ANY else _NEEDS.format(scope)
        told = Operation(
            method=method,
            path=ROOT + path,
            name=view.__name__,
            group=group,
            summary=summary,
            description=f"{' '.join((view.__doc__ or '').split())} {needs}",
            answer=named(answer),
            parameters=tuple(parameters),
            refusals=(403, 429, *refusals),
            is_list=False,
            example=example,
            body=None if body is None else named(body),
            bytes_example=bytes_example,
            status=status,
            writes=True,
            scope=scope,
        )
        declare(told)
        rule = told.path.replace("{", "<").replace("}", ">")
        if is_shadowed:
            answer_post = only_post(_serve(told, view))
            api.add_url_rule(
                rule, told.name, answer_post, methods=METHODS, provide_automatic_options=False, merge_slashes=False
            )
        else:
            api.add_url_rule(rule, told.name, _serve(told, view), methods=[method.upper()], merge_slashes=False)
        return view

    return register


def queued(kind: str, arguments: Details) -> Job:
    """Put a job of that kind into the queue, with arguments from outside, and return it.

    Raises BadInput for what the kind does not take, QueueFull (503) when too many wait, TooMany (429) when too many of
    the asker's do.
    """
    job_id = ask(kind, arguments)
    with reading() as session:
        return job_by_id(session, job_id)


def _serve(told: Operation, view: View) -> Callable[..., Response]:
    known = tuple(parameter.name for parameter in told.parameters if parameter.where == "query")

    @wraps(view)
    def answer(**arguments: Any) -> Response:
        check_writing(told.scope or UPLOAD)
        check_address(known)
        if told.body is not None:
            check_json()
        values = view(**arguments)
        made = json_answer(values, told.status)
        made.headers["Cache-Control"] = "no-store"
        if told.answer in _PLACES and told.status == ACCEPTED:
            made.headers["Location"] = f"{ROOT}/{_PLACES[told.answer]}/{_id(values)}"
        return made

    return answer


def _id(value: Entity | Values) -> object:
    return value["id"] if isinstance(value, dict) else value.id  # type: ignore[attr-defined]
