"""Verdicts on the page of a chimera: by kind of text, with margins and the number of scored tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.register.chimeras import add_verdict
from organs.registry.entities.base import decode
from organs.registry.entities.validation import VerdictReport
from organs.registry.local import LocalRegistry
from organs.registry.validation.verdict import TIME_OVER
from organs.web.app import create_app
from organs.web.pages.chimeras import minutes_offered, runs_of, text_rows
from tests.related_models import ingest_bytes, model_file, related_tensors
from tests.web.conftest import HOSTILE, hostile_report
from tests.web.page_parser import page_at


def report(**more: Any) -> dict[str, Any]:
    """Return the report on a chimera in which nothing was grafted; without `more`, as earlier versions stored it."""
    values = {"name": "python", "digest": "0" * 64, "ratio": 0.94, "recovered": None}
    measured = {"verdict": "gains", "settled": True, "ratio_error": 0.003, "ratio_margin": 0.007, "tokens": 4080}
    return {
        "model": "local/made@1",
        "verdict": "gains",
        "reason": "It is better.",
        "runtime": "llama.cpp",
        "tokens": 4080,
        "base": run_of("local/base@1", 26.7),
        "chimera": run_of("local/made@1", 25.1),
        "control": None,
        "control_remark": "Nothing was grafted.",
        "donors": [],
        "zeroed": [],
        "zeroed_because": "grafted",
        "texts": [values | (measured if more else {})],
        **more,
    }


def from_source(source: str) -> dict[str, Any]:
    """Return what a report on a quantisation says of its distance from its source."""
    numbers = {"divergence": 0.0123, "divergence_margin": 0.0011, "divergence_99": 0.11, "same_top": 0.942}
    return {"source": source, **numbers, "divergence_tokens": 4080, "ratio": 1.008, "ratio_margin": 0.005}


def run_of(name: str, perplexity: float) -> dict[str, Any]:
    """The run of a model that has this perplexity."""
    score = {"text": "python", "perplexity": perplexity, "standard_error": 5.7, "tokens": 4080}
    return {"name": name, "failure": None, "scores": [score], "written": None, "log": ""}


def read(values: dict[str, Any]) -> VerdictReport:
    return decode(json.dumps(values).encode(), VerdictReport)


def test_a_runtime_that_only_writes_has_no_rows_of_dashes() -> None:
    wrote = report(seconds=12.0)
    wrote["texts"][0] |= {"ratio": None, "tokens": 0}
    assert text_rows(read(wrote)) == []


def test_a_report_of_an_earlier_version_is_shown_without_changes() -> None:
    (row,) = text_rows(read(report()))
    assert (row.change, row.verdict, row.tokens) == ("–", "", 0)


def test_missing_scores_are_dashes_and_failures_are_words() -> None:
    verdict = read(hostile_report())
    assert [role for role, _ in runs_of(verdict)] == ["base", "chimera", "donor"]
    assert text_rows(verdict)[0].perplexities[:2] == ["1.0e+300", "–"]
    assert verdict.chimera.failure is not None
    assert verdict.chimera.failure.reason == HOSTILE


@pytest.fixture
def made(registry: LocalRegistry, tmp_path: Path) -> str:
    """The name of a chimera without a verdict."""
    ingest_bytes(registry, tmp_path, "base", model_file("Base", related_tensors()))
    return registry.compose("local/base").purify("fractal", type="organ").plan().register().model


def client_with_verdict(registry: LocalRegistry, name: str, runtime: str, verdict: str, told: Any) -> FlaskClient:
    """A client of the catalog after the chimera `name` got this verdict with the report `told`."""
    lock = registry.model(name).composed
    assert lock is not None
    with registry.catalog.writing() as session:
        model = chimeras_by_lock(session, lock.lock_id)[0]
        add_verdict(session, model.id, runtime, verdict, "It is better.", json.dumps(told))
    return create_app(registry).test_client()


def test_the_verdict_of_a_runtime_that_only_writes_is_not_shown_as_a_measurement(
    registry: LocalRegistry, made: str
) -> None:
    client = client_with_verdict(registry, made, "my-runtime", "writes", {})
    assert "not measured" in page_at(client, "/chimeras").words
    page = page_at(client, f"/models/{made}").words
    assert "writes readable text in a runtime that measures nothing" in page
    assert "Measurement: writes" not in page


def test_an_undecided_verdict_shows_what_was_measured_and_why_it_is_open(registry: LocalRegistry, made: str) -> None:
    few = report(seconds=601.0, verdict="undecided", reason=f"{TIME_OVER}: python (3 of 20 windows).")
    early = {"ratio": None, "ratio_margin": None, "early_ratio": 0.99, "early_margin": 0.05}
    few["texts"][0] |= {"verdict": "undecided", "windows": 3, "window_count": 20} | early
    client = client_with_verdict(registry, made, "llama.cpp", "undecided", few)
    card = page_at(client, f"/models/{made}").words.partition("Anatomy")[0]
    assert "The time was over after 3 of 20 windows of python: not enough to tell." in card
    assert "python26.7 → 25.1−1% ± 5%3 of 20 windows" in card
    assert minutes_offered(read(few)) == 30
    assert [minutes_offered(None), minutes_offered(read(report(seconds=4000.0)))] == [10, 60]


def test_a_verdict_with_an_unreadable_report_is_shown_with_its_reason(registry: LocalRegistry, made: str) -> None:
    client = client_with_verdict(registry, made, "llama.cpp", "gains", {})
    assert "It is better." in page_at(client, f"/models/{made}").words
    composed = registry.model(made).composed
    assert composed is not None
    (verdict,) = registry.chimera(composed.lock_id).verdicts
    assert (verdict.verdict, verdict.report) == ("gains", None)
