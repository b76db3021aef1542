"""The shipped models in a registry, and the answers that the reference shows."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from ingest.jobs.asking import ask_for
from ingest.jobs.runner import Runner
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


def compose_chimeras(registry: Registry) -> None:
    """Two chimeras of the shipped models: the feed-forward of A-code in A, of which the reference shows much, and A
    with a block purified."""
    base = registry.compose("local/Zoo-A-2M-v1.0-F16")
    base.graft("local/Zoo-A-2M-Code-v1.0-F16", type="organ").plan().register()
    base.purify("fractal", type="organ", blocks=3).plan().register()


def put_jobs(registry: Registry) -> None:
    """Two jobs, of which the first has finished and the second waits."""
    ask_for(registry, "report", {"limit": 2})
    Runner(registry, Event()).run(once=True)
    ask_for(registry, "report", {"model": "local/Zoo-A-2M-v1.0-Q8_0"})


def asked(client: FlaskClient, told: Operation) -> TestResponse:
    """The answer to the example request of an operation; of one that writes, by a client that may."""
    method = told.method.upper()
    if told.body is None:
        return client.open(told.example, method=method)
    return client.open(told.path, method=method, data=told.example, content_type="application/json")


def examples(client: FlaskClient) -> dict[str, Any]:
    """The answers that the reference shows, shortened, to a client that may write; the document is left out."""
    found = {}
    for told in operations():
        if told.answer == "Document":
            continue
        answer = asked(client, told)
        assert answer.status_code == told.status, (told.name, answer.text)
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
