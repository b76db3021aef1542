"""From a query or a recipe to a file that runs: planned, made, run in llama.cpp, judged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.compose.api import (
    ChimeraPlan,
)
from organs.registry.entities.finding import Severity
from organs.registry.entities.validation import RunReport, VerdictReport
from organs.registry.errors import NotComposable
from organs.registry.local import LocalRegistry
from organs.registry.validation.comparison import ValidationBudget
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.run import (
    run_chimera,
)
from organs.registry.validation.texts import built_in_texts
from tests.journeys.test_round_trip import ZOO_FILES
from tests.registry_templates import RegistryTemplates, add_zoo_models

A, CODE, B = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16", "Zoo-B-2M-v1.0-Q8_0"
LORA = "Zoo-A-2M-Code-LoRA-v1.0-F32"
FILES = {path.stem: path for path in ZOO_FILES}


@pytest.fixture(scope="module")
def zoo(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with templates.open_copy(add_zoo_models, tmp_path_factory.mktemp("zoo") / "home") as registry:
        yield registry


def tried(
    registry: LocalRegistry, plan: ChimeraPlan, tokens: int = 2048, kinds: tuple[str, ...] = ("python", "documentation")
) -> VerdictReport:
    made, texts = plan.register(), built_in_texts(kinds)
    return run_chimera(registry.catalog, registry.blobs, made.model, texts, LlamaCpp(), ValidationBudget(tokens=tokens))


def on_python(reading: RunReport) -> float:
    score = reading.scores[0]
    assert score.text == "python"
    assert score.perplexity is not None
    return score.perplexity


def warnings(plan: ChimeraPlan) -> list[str]:
    return [finding.code for finding in plan.findings if finding.severity is not Severity.INFO]


@pytest.mark.long
def test_grafting_the_feed_forward_of_a_fine_tune_gives_no_warning_and_improves_the_base(zoo: LocalRegistry) -> None:
    plan = zoo.compose(A).graft(CODE, type="organ").named("me/coder").plan()
    assert warnings(plan) == []
    found = tried(zoo, plan)
    assert found.verdict == "gains"
    assert on_python(found.donors[0]) < on_python(found.chimera) < on_python(found.base)


@pytest.mark.long
def test_grafting_the_feed_forward_of_a_stranger_gives_an_early_warning_and_breaks_the_model(
    zoo: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    composition = zoo.compose(A).graft(B, type="organ").named("me/stranger")
    opened: list[int] = []
    opening = zoo.blobs.open
    monkeypatch.setattr(zoo.blobs, "open", lambda blob: (opened.append(blob.size_bytes), opening(blob))[1])
    plan = composition.plan()
    assert warnings(plan) == ["unrelated-lineage"]
    assert sum(opened) < 200_000  # headers with their vocabulary: no organ has been read
    with pytest.raises(NotComposable, match="accept unrelated-lineage"):
        plan.register()
    found = tried(zoo, composition.accept("unrelated-lineage").plan())
    assert found.verdict == "broken"


@pytest.mark.long
def test_one_weak_block_of_a_stranger_passes_for_nothing(zoo: LocalRegistry) -> None:
    plan = zoo.compose(A).graft(B, type="organ", blocks=3).accept("unrelated-lineage").named("me/block").plan()
    assert tried(zoo, plan).verdict in ("inert", "undecided")


@pytest.mark.long
def test_a_merged_adapter_scores_like_the_adapter_applied_at_run_time(zoo: LocalRegistry, tmp_path: Path) -> None:
    zoo.compose(A).adapter(LORA).named("me/adapted").plan().assemble(tmp_path / "adapted.gguf")
    merged, at_run_time = (zoo_runtime(*files) for files in ((tmp_path / "adapted.gguf",), (FILES[A], FILES[LORA])))
    assert merged == pytest.approx(at_run_time, rel=2e-3)
    assert merged != pytest.approx(zoo_runtime(FILES[A]), rel=1e-2)


def zoo_runtime(*files: Path) -> list[float]:
    """Return the perplexities of a model, or of a model with an adapter, as the zoo's own script measures them."""
    script = ZOO_FILES[0].with_name("runtime.py")
    done = subprocess.run(
        [sys.executable, script, "--tokens", "80", *files], capture_output=True, text=True, check=True
    )
    return list(json.loads(done.stdout.splitlines()[-1])["perplexity"].values())
