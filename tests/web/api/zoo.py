"""The shipped models in a registry, and the answers that the reference shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from registry.registry import Registry
from tests.trips import ingest_file
from web.api.operation import Operation, operations

ZOO = Path(__file__).resolve().parents[3] / "examples" / "zoo"
LISTED_MAX = 1
TEXT_MAX = 120


def ingest_zoo(registry: Registry, pattern: str = "*.gguf") -> None:
    """Register the shipped models under their own names."""
    for path in sorted(ZOO.glob(pattern)):
        ingest_file(registry, path)


def asked(client: FlaskClient, told: Operation) -> TestResponse:
    """The answer to the example request of an operation."""
    if told.body is None:
        return client.get(told.example)
    return client.post(told.path, data=told.example, content_type="application/json")


def examples(client: FlaskClient) -> dict[str, Any]:
    """The answers that the reference shows, shortened; the document itself is left out."""
    found = {}
    for told in operations():
        if told.answer == "Document":
            continue
        answer = asked(client, told)
        assert answer.status_code == 200, (told.name, answer.text)
        found[told.name] = shortened(json.loads(answer.text))
    return found


def shortened(value: Any) -> Any:
    """`value` with one item of each list and with long texts cut."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shortened(one) for one in value[:LISTED_MAX]]
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return value[: TEXT_MAX - 1] + "…"
    return value
