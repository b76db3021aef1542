"""Verdicts of a runtime on the page of a chimera: differences with their errors and the number of scored tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.register.chimeras import add_verdict
from organs.registry.entities.base import decode
from organs.registry.entities.verdict import VerdictReport
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.pages.chimeras import differences, score_rows, scored_lengths
from tests.related_models import ingest_bytes, model_file, related_tensors
from tests.web.page_parser import parse_page


def report(**more: Any) -> dict[str, Any]:
    """A report as `organ validate` keeps one of a chimera in which nothing was grafted."""
    score = {"text": "code", "perplexity": 26.7, "standard_error": 5.7, "tokens": 255}
    reading = {"name": "local/base@1", "failure": None, "scores": [score], "written": None, "log": ""}
    values = {"name": "code", "digest": "0" * 64, "ratio": 0.94, "recovered": None}
    measured = {"ratio_error": 0.03, "tokens": 255} if more else {}
    return {
        "model": "local/made@1",
        "verdict": "gains",
        "reason": "It is better.",
        "runtime": "llama.cpp",
        "tokens": 255,
        "base": reading,
        "chimera": reading,
        "control": None,
        "control_remark": "Nothing was grafted.",
        "donors": [],
        "zeroed": [],
        "zeroed_because": "grafted",
        "texts": [values | measured],
        **more,
    }


def read(values: dict[str, Any]) -> VerdictReport:
    return decode(json.dumps(values).encode(), VerdictReport)


def test_the_difference_is_shown_with_its_error_and_the_tokens_of_each_text() -> None:
    found = read(report(tokens_remark="Fewer."))
    assert differences(found) == ["−6% ± 3%"]
    assert scored_lengths(found) == "255 tokens of code"
    assert found.tokens_remark == "Fewer."
    assert [row.role for row in score_rows(found)] == ["base", "chimera"]


def test_an_older_report_without_differences_is_shown_without_them() -> None:
    found = read(report())
    assert differences(found) == [None]
    assert scored_lengths(found) == "255 tokens of code at most"
    assert found.tokens_remark is None


def test_the_page_has_a_row_of_differences_and_omits_a_missing_control(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "base", model_file("Base", related_tensors()))
    made = registry.compose("local/base").purify("fractal", type="organ").accept("likely-degraded").plan().register()
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, made.lock_id)[0]
        told = json.dumps(report(tokens_remark="Fewer than asked for."))
        add_verdict(session, model.id, "llama.cpp", "gains", "It is better.", told)
    with create_app(registry).test_client() as client:
        text = " ".join(parse_page(client.get(f"/chimeras/{made.lock_id}").text).text.split())
    assert "−6% ± 3%" in text
    assert "over 255 tokens of code" in text
    assert "Fewer than asked for." in text
    assert "recovered of what zeroing" not in text


def test_a_verdict_with_an_unreadable_report_is_shown_with_its_reason(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "base", model_file("Base", related_tensors()))
    made = registry.compose("local/base").purify("fractal", type="organ").accept("likely-degraded").plan().register()
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, made.lock_id)[0]
        add_verdict(session, model.id, "llama.cpp", "gains", "It is better.", "{}")
    with create_app(registry).test_client() as client:
        page = client.get(f"/chimeras/{made.lock_id}")
    assert page.status_code == 200
    assert "It is better." in page.text
    (verdict,) = registry.chimera(made.lock_id).verdicts
    assert (verdict.verdict, verdict.report) == ("gains", None)
