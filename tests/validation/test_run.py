"""Tests of registered chimeras in llama.cpp: the control, stored results, and the reported figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.catalog.queries.chimeras import verdicts_of
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.compose.api import Composition
from organs.registry.digest import digest_of
from organs.registry.entities.base import decode, encode
from organs.registry.entities.verdict import VerdictReport
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.sandbox.process import Limits
from organs.registry.validation.command import CommandRuntime
from organs.registry.validation.comparison import ScoreKey
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.run import (
    CatalogScores,
    RunResult,
    run_chimera,
    verdict_report,
)
from organs.registry.validation.runtime import (
    NoVerdict,
    Runtime,
    Score,
)
from organs.registry.validation.texts import built_in_texts
from tests.registry_templates import RegistryTemplates, add_zoo_models
from tests.validation.changed_models import script

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"
A, CODE, B, LORA = (
    f"Zoo-{name}" for name in ("A-2M-v1.0-F16", "A-2M-Code-v1.0-F16", "B-2M-v1.0-Q8_0", "A-2M-Code-LoRA-v1.0-F32")
)
BLOCK_3 = ["blk.3.ffn_down.weight", "blk.3.ffn_gate.weight", "blk.3.ffn_up.weight"]


@pytest.fixture(scope="module")
def kin(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with templates.open_copy(add_zoo_models, tmp_path_factory.mktemp("zoo") / "home") as opened:
        yield opened


def made(composition: Composition) -> str:
    return composition.accept("unrelated-lineage", "likely-degraded").plan().register().model


def tried(kin: LocalRegistry, model: str, runtime: Runtime | None = None, tokens: int = 128) -> RunResult:
    return run_chimera(kin.catalog, kin.blobs, model, built_in_texts(), runtime or LlamaCpp(), tokens)


@pytest.mark.long
def test_a_useless_block_beside_a_weak_adapter_or_a_purification_is_not_coherent(kin: LocalRegistry) -> None:
    stranger = kin.compose(A).graft(B, type="organ", blocks=3)
    adapted = made(stranger.adapter(LORA, 0.1).named("me/adapted"))
    purified = made(stranger.purify("spectral", type="organ", blocks="0-2", keep=0.999).named("me/purified"))
    for model in (adapted, purified):
        validation = tried(kin, model).validation
        assert sorted(validation.grafted) == BLOCK_3
        assert validation.verdict.kind in ("inert", "undecided")


def test_without_a_graft_there_is_no_control_and_the_reason_is_reported(kin: LocalRegistry) -> None:
    validation = tried(kin, made(kin.compose(A).adapter(LORA).named("me/adapter-alone")))
    report = verdict_report(validation)
    assert (report.control, report.zeroed, report.verdict) == (None, (), "gains")
    assert "Nothing was grafted" in report.reason
    assert report.donors == ()


@pytest.mark.long
def test_the_report_has_the_error_of_each_difference_and_the_tokens_that_were_scored(kin: LocalRegistry) -> None:
    model = made(kin.compose(A).graft(CODE, type="organ").named("me/coder"))
    first, again = (verdict_report(tried(kin, model, tokens=300)) for _ in range(2))
    assert first.texts == again.texts, "what was kept tells the same"
    assert [text.tokens for text in first.texts] == [255, 255]
    assert "the smallest context of these models has 256" in (first.tokens_remark or "")
    for text in first.texts:
        assert text.ratio_error is not None
        assert 0.0 < text.ratio_error < 0.05
    assert first.texts[0].ratio is not None
    assert first.texts[0].ratio < 1.0
    assert "±" in first.reason
    assert decode(encode(first), VerdictReport) == first


def test_a_base_that_crashes_the_runtime_is_an_error_and_nothing_is_stored(kin: LocalRegistry, tmp_path: Path) -> None:
    model = made(kin.compose(A).graft(CODE, type="organ", blocks=1).named("me/unlucky"))
    runtime = CommandRuntime(script(tmp_path, "sys.exit(3)"), Limits(wall_seconds=30.0))
    with pytest.raises(NoVerdict, match="the base does not run, so there is no verdict: the runtime ended with 3"):
        tried(kin, model, runtime)
    with kin.catalog.reading() as session:
        assert verdicts_of(session, model_by_name(session, parse_model_name(model)).id) == []


@pytest.mark.parametrize("surprises", [None, (1.25, 0.0, 7.1234)])
def test_a_cached_score_is_returned_unchanged(kin: LocalRegistry, surprises: tuple[float, ...] | None) -> None:
    key = ScoreKey(digest_of(repr(surprises).encode()), digest_of(b"text"), 32, "a stand-in, 1")
    score = Score("code", 26.7, 1.5, 32, surprises)
    CatalogScores(kin.catalog).put(key, score)
    assert CatalogScores(kin.catalog).get(key) == score
