"""Parameters of addresses, read and checked. `registry.endpoints` declare those of the API, which pages share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flask import request
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.tables import ModelRow
from organs.registry.endpoints.declaration import Endpoint, whole_number
from organs.registry.entities.base import WHOLE_MAX
from organs.registry.errors import BadQuery, NotFound
from organs.registry.names import parse_model_name
from organs.web.responses import wants_csv


def requested(endpoint: Endpoint[..., Any], *names: str, **defaults: object) -> dict[str, Any]:
    """Return the parameters in the query of this request as values for the view of `endpoint`.

    With `names`, only those are read: a page ignores the others. A page may have other `defaults`. A CSV file has the
    longest list unless the request has a `limit`. Raises BadQuery, and BadRequest if a required parameter is missing.
    """
    values = {}
    for parameter in endpoint.parameters:
        if parameter.where != "query" or (names and parameter.name not in names):
            continue
        texts = request.args.getlist(parameter.name)
        values[parameter.key] = parameter.value(texts)
        if parameter.is_absent(texts):
            if parameter.name == "limit" and wants_csv(request.path):
                values[parameter.key] = parameter.schema["maximum"]
            elif parameter.key in defaults:
                values[parameter.key] = defaults[parameter.key]
    return values


def requested_choice(name: str, choices: Sequence[str]) -> str:
    """Return the parameter `name` of a page, one of `choices`; the first choice if it is missing. Raises BadQuery."""
    value = request.args.get(name) or choices[0]
    if value not in choices:
        raise BadQuery(name, f"one of {', '.join(choices)}")
    return value


def parsed_number(text: str, thing: str, refusal: type[NotFound] = NotFound) -> int:
    """Return the number in an address of a `thing`, such as a job. Raises `refusal` for an invalid number."""
    number = whole_number(text, 1, WHOLE_MAX)
    if number is None:
        raise refusal(f"{text[:40]!r} is not the number of a {thing}")
    return number


def addressed_model(session: Session, namespace: str, name: str) -> ModelRow:
    """Return the visible model with the name in the address. Raises BadName, NotFound, Removed."""
    return model_by_name(session, parse_model_name(f"{namespace}/{name}"))
