"""Verdicts on the page of a chimera: by kind of text, with margins and the number of scored tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.register.chimeras import add_verdict
from organs.registry.entities.base import decode
from organs.registry.entities.validation import VerdictReport
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.pages.chimeras import TextRow, runs_of, text_rows
from tests.related_models import ingest_bytes, model_file, related_tensors
from tests.web.page_parser import parse_page


def report(**more: Any) -> dict[str, Any]:
    """Return the report on a chimera in which nothing was grafted; without `more`, as earlier versions stored it."""
    score = {"text": "python", "perplexity": 26.7, "standard_error": 5.7, "tokens": 4080}
    reading = {"name": "local/base@1", "failure": None, "scores": [score], "written": None, "log": ""}
    values = {"name": "python", "digest": "0" * 64, "ratio": 0.94, "recovered": None}
    measured = {"verdict": "gains", "settled": True, "ratio_error": 0.003, "ratio_margin": 0.007, "tokens": 4080}
    return {
        "model": "local/made@1",
        "verdict": "gains",
        "reason": "It is better.",
        "runtime": "llama.cpp",
        "tokens": 4080,
        "base": reading,
        "chimera": reading,
        "control": None,
        "control_remark": "Nothing was grafted.",
        "donors": [],
        "zeroed": [],
        "zeroed_because": "grafted",
        "texts": [values | (measured if more else {})],
        **more,
    }


def read(values: dict[str, Any]) -> VerdictReport:
    return decode(json.dumps(values).encode(), VerdictReport)


def test_each_kind_of_text_has_a_change_with_its_margin_and_a_verdict() -> None:
    (row,) = text_rows(read(report(seconds=12.0)))
    assert row == TextRow("python", ["26.7", "26.7"], "−6.0% ± 0.7%", "gains", True, None, 4080)
    assert [role for role, _ in runs_of(read(report()))] == ["base", "chimera"]


def test_a_runtime_that_only_writes_has_no_rows_of_dashes() -> None:
    wrote = report(seconds=12.0)
    wrote["texts"][0] |= {"ratio": None, "tokens": 0}
    assert text_rows(read(wrote)) == []


def test_a_report_of_an_earlier_version_is_shown_without_changes() -> None:
    (row,) = text_rows(read(report()))
    assert (row.change, row.verdict, row.tokens) == ("–", "", 0)


def chimera_with_verdict(registry: LocalRegistry, folder: Path, *verdict: str) -> str:
    """Return the name of a new chimera with this verdict: its runtime, kind, reason and report."""
    ingest_bytes(registry, folder, "base", model_file("Base", related_tensors()))
    made = registry.compose("local/base").purify("fractal", type="organ").plan().register()
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, made.lock_id)[0]
        add_verdict(session, model.id, *verdict)
    return made.model


def test_the_page_has_a_row_for_each_kind_of_text_and_omits_a_missing_control(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    made = chimera_with_verdict(
        registry, tmp_path, "llama.cpp", "gains", "It is better.", json.dumps(report(seconds=12.0))
    )
    with create_app(registry).test_client() as client:
        text = " ".join(parse_page(client.get(f"/models/{made}").text).text.split())
    assert "−6.0% ± 0.7%" in text
    assert "4.1 k" in text
    assert "Nothing was grafted." in text
    assert "recovered" not in text


def test_the_verdict_of_a_runtime_that_only_writes_is_not_shown_as_a_measurement(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    made = chimera_with_verdict(registry, tmp_path, "my-runtime", "writes", "It writes.", "{}")
    with create_app(registry).test_client() as client:
        assert "not measured" in client.get("/chimeras").text
        page = client.get(f"/models/{made}").text
        assert "writes readable text in a runtime that measures nothing" in page
        assert "Measurement: writes" not in page


def test_a_verdict_with_an_unreadable_report_is_shown_with_its_reason(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "base", model_file("Base", related_tensors()))
    made = registry.compose("local/base").purify("fractal", type="organ").plan().register()
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, made.lock_id)[0]
        add_verdict(session, model.id, "llama.cpp", "gains", "It is better.", "{}")
    with create_app(registry).test_client() as client:
        page = client.get(f"/models/{made.model}")
    assert page.status_code == 200
    assert "It is better." in page.text
    (verdict,) = registry.chimera(made.lock_id).verdicts
    assert (verdict.verdict, verdict.report) == ("gains", None)
