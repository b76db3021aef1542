"""Answers held against the OpenAPI document."""

from __future__ import annotations

import json
import math
from typing import Any

from jsonschema import Draft202012Validator
from werkzeug.test import TestResponse

from organs.web.api.operation import Operation


def faults(document: dict[str, Any], schema: str, value: Any) -> list[str]:
    """What of `value` the schema of that name does not allow."""
    validator = Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": document["components"]},
        format_checker=Draft202012Validator.FORMAT_CHECKER,
    )
    return [f"{'/'.join(map(str, one.path))}: {one.message[:300]}" for one in validator.iter_errors(value)]


def assert_as_described(document: dict[str, Any], told: Operation, answer: TestResponse) -> Any:
    """Status, type, headers and shape of an answer are those of its operation; gives what it holds."""
    described = document["paths"][told.path][told.method]["responses"]
    assert str(answer.status_code) in described, (told.name, answer.status_code, answer.text[:300])
    assert answer.mimetype == "application/json"
    value = json.loads(answer.text, parse_constant=lambda name: math.nan)
    schema = told.answer if answer.status_code == told.status else "Error"
    assert faults(document, schema, value) == [], told.name
    if answer.status_code == told.status:
        for header in described[str(told.status)].get("headers", {}):
            assert header in answer.headers or header == "Link", (told.name, header)
    return value


def assert_refused(document: dict[str, Any], answer: TestResponse, status: int, field: str | None) -> str:
    """The answer is the one shape of refusals, about `field`; gives its sentence."""
    value = answer.get_json()
    assert answer.status_code == value["status"] == status, answer.text[:300]
    assert faults(document, "Error", value) == []
    assert answer.headers["Cache-Control"] == "no-store"
    assert value["errors"][0]["field"] == field, value
    assert value["error"] == value["errors"][0]["sentence"]
    assert len(value["error"]) > 10
    assert "Traceback" not in value["error"]
    return str(value["error"])
