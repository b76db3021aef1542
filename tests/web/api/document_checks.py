"""Answers held against the OpenAPI document."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from werkzeug.test import TestResponse

from organs.registry.endpoints.table import API
from organs.registry.entities.problem import MEDIA_TYPE
from organs.web.api.document import document


@cache
def _described() -> dict[str, Any]:
    return document("1")


def faults(schema: str, value: Any) -> list[str]:
    """Return the parts of `value` that the schema of that name does not allow."""
    validator = Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": _described()["components"]},
        format_checker=Draft202012Validator.FORMAT_CHECKER,
    )
    return [f"{'/'.join(map(str, one.path))}: {one.message[:300]}" for one in validator.iter_errors(value)]


def assert_as_described(name: str, answer: TestResponse) -> Any:
    """Status, type, headers and shape of an answer are those of the operation `name`; gives what it holds."""
    operation = API[name]
    responses = _described()["paths"][operation.path][operation.method]["responses"]
    assert str(answer.status_code) in responses, (name, answer.status_code, answer.text[:300])
    is_answer = answer.status_code == operation.status
    assert answer.mimetype == ("application/json" if is_answer else MEDIA_TYPE)
    value = json.loads(answer.text, parse_constant=lambda _: math.nan)
    assert faults(operation.answer_name if is_answer else "Problem", value) == [], name
    if is_answer:
        for header in responses[str(operation.status)].get("headers", {}):
            assert header in answer.headers or header == "Link", (name, header)
    return value


def assert_refused(answer: TestResponse, status: int, field: str | None) -> str:
    """Check that the answer is a problem document about `field`, and return its detail."""
    value = answer.get_json()
    assert answer.status_code == value["status"] == status, answer.text[:300]
    assert answer.mimetype == MEDIA_TYPE
    assert faults("Problem", value) == []
    assert answer.headers["Cache-Control"] == "no-store"
    assert [one["field"] for one in value["errors"][:1]] in ([field], [] if field is None else [field]), value
    assert len(value["detail"]) > 10
    assert "Traceback" not in value["detail"]
    return str(value["detail"])
