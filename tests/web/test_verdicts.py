"""What a runtime showed, as the page of a chimera has it: differences with their errors, and how much was scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.register.chimeras import add_verdict
from organs.registry.registry import Registry
from organs.web.app import create_app
from organs.web.pages.verdicts import scored
from tests.kin import ingest_bytes, kin_file, kin_tensors
from tests.web.pages import parsed


def report(**more: Any) -> dict[str, Any]:
    """A report as `organ validate` keeps one of a chimera in which nothing was grafted."""
    score = {"text": "code", "perplexity": 26.7, "standard_error": 5.7, "tokens": 255}
    reading = {"name": "local/base@1", "failure": None, "scores": [score], "written": None, "log": ""}
    values = {"name": "code", "digest": "0" * 64, "ratio": 0.94, "recovered": None}
    measured = {"ratio_error": 0.03, "tokens": 255} if more else {}
    return {
        "tokens": 255,
        "base": reading,
        "chimera": reading,
        "control": None,
        "control_remark": "Nothing was grafted.",
        "donors": [],
        "texts": [values | measured],
        **more,
    }


def test_the_difference_is_shown_with_its_error_and_the_tokens_of_each_text() -> None:
    found = scored(report(tokens_remark="Fewer."))
    assert found["differences"] == ["−6% ± 3%"]
    assert found["lengths"] == "255 tokens of code"
    assert found["remarks"] == ["Nothing was grafted.", "Fewer."]
    assert found["controlled"] is False


def test_a_report_of_before_differences_were_measured_is_shown_without() -> None:
    found = scored(report())
    assert found["differences"] == [None]
    assert found["lengths"] == "255 tokens of code at most"
    assert found["remarks"] == ["Nothing was grafted."]


def test_the_page_has_a_row_of_differences_and_none_of_a_control_that_is_not_there(
    registry: Registry, tmp_path: Path
) -> None:
    ingest_bytes(registry, tmp_path, "base", kin_file("Base", kin_tensors()))
    made = registry.compose("local/base").purify("fractal", type="organ").accept("likely-degraded").plan().register()
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, made.lock_id)[0]
        told = json.dumps(report(tokens_remark="Fewer than asked for."))
        add_verdict(session, model.id, "llama.cpp", "gains", "It is better.", told)
    with create_app(registry).test_client() as client:
        text = " ".join(parsed(client.get(f"/chimeras/{made.lock_id}").text).text.split())
    assert "−6% ± 3%" in text
    assert "over 255 tokens of code" in text
    assert "Fewer than asked for." in text
    assert "recovered of what zeroing" not in text
