"""From a query or a recipe to a file that runs: planned, made, run in llama.cpp, judged."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from organs.ingest.sources import find_sources
from organs.ingest.transplant import FileLibrary, place_virtual, transplant
from organs.registry.compose.api import (
    ChimeraPlan,
    Composition,
)
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import Graft, Recipe
from organs.registry.entities.finding import Severity
from organs.registry.entities.validation import RunReport, VerdictReport
from organs.registry.errors import NotComposable
from organs.registry.gguf import MemorySource, read_header
from organs.registry.gguf.quants import dequantize
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


def test_merging_an_adapter_equals_the_float64_sum_within_the_rounding_of_the_dtype(
    zoo: LocalRegistry, tmp_path: Path
) -> None:
    zoo.compose(A).adapter(LORA, 0.7).named("me/merged").plan().assemble(tmp_path / "merged.gguf")
    base, lora, merged = (values_of(path) for path in (FILES[A], FILES[LORA], tmp_path / "merged.gguf"))
    changed = [name for name in base if f"{name}.lora_a" in lora]
    assert len(changed) == 28
    for name in changed:
        a, b = lora[f"{name}.lora_a"], lora[f"{name}.lora_b"]
        due = base[name] + 0.7 * (16 / 8) * (b @ a)
        spacing = np.spacing(np.abs(due).astype(np.float16)).astype(np.float64)
        assert np.all(np.abs(merged[name] - due) <= 0.5001 * spacing)
    for name in base.keys() - set(changed):
        assert np.array_equal(base[name], merged[name])


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


def test_a_transplant_of_two_files_has_the_lock_and_the_bytes_of_the_registered_chimera(
    zoo: LocalRegistry, tmp_path: Path
) -> None:
    made = zoo.compose(A).graft(CODE, type="organ", blocks="1-2").named("me/middle").plan().assemble(tmp_path / "one")
    recipe = Recipe("base", grafts=(Graft(donor="donor", types=("organ",), blocks=((1, 2),)),))
    with ExitStack() as opened:
        sources = {"base": find_sources([str(FILES[A])])[0], "donor": find_sources([str(FILES[CODE])])[0]}
        library = FileLibrary(opened, sources)
        found = transplant(plan_recipe(recipe, library), library, tmp_path / "two")
        place_virtual(found.file, tmp_path / "two")
    assert found.lock.id == made.lock_id
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert hashlib.sha256((tmp_path / "two").read_bytes()).hexdigest() == made.sha256


@pytest.mark.parametrize("method", ["spectral", "fractal"])
def test_purified_organs_keep_mean_and_deviation_name_their_source_and_show_both_angles(
    zoo: LocalRegistry, method: str, tmp_path: Path
) -> None:
    steps: Composition = zoo.compose(A).purify(method, type="organ", blocks="0-1")
    made = steps.named(f"me/{method}").plan().assemble(tmp_path / "pure.gguf")
    before, after = values_of(FILES[A]), values_of(tmp_path / "pure.gguf")
    assert len(made.computed) == 6
    for name, measurement in made.computed.items():
        deviation = float(np.std(before[name]))
        assert abs(np.mean(after[name]) - np.mean(before[name])) < 1e-3 * deviation
        assert abs(np.std(after[name]) - deviation) < 1e-3 * deviation
        assert measurement.theta is not None
        assert not np.array_equal(before[name], after[name])


def values_of(path: Path) -> dict[str, NDArray[np.float64]]:
    """Every tensor of a file, rows as in its matrix."""
    source = MemorySource(path.read_bytes())
    header = read_header(source)
    found = {}
    for tensor in header.tensors:
        data = source.read_at(header.data_offset + tensor.offset, tensor.size_bytes)
        found[tensor.name] = dequantize(data, tensor.dtype).reshape(tensor.shape[::-1]).astype(np.float64)
    return found
