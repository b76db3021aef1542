"""A mixture of 384 experts: replaced experts are found, one is grafted alone, and llama.cpp runs the result."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bench.expert_grafts import STACKS, mixture
from organs.registry.local import LocalRegistry
from organs.registry.validation.comparison import ValidationBudget
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.run import run_chimera
from organs.registry.validation.texts import built_in_texts
from tests.small_models import ingest_file, tensors_of


@pytest.mark.slow
def test_two_of_384_experts_are_found_and_one_is_grafted_alone_and_runs(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    for name, changed in (("Base", ()), ("Edited", (5, 17))):
        (tmp_path / f"{name}.gguf").write_bytes(mixture(changed))
        ingest_file(registry, tmp_path / f"{name}.gguf")

    result = registry.compare("local/Base", "local/Edited")
    assert [stack.name for stack in result.stacks] == [f"blk.0.{slot}.weight" for slot in STACKS]
    assert [[expert.expert for expert in stack.changed] for stack in result.stacks] == [[5, 17]] * 3
    assert result.experts_sentence == "2 of 384 experts differ in each of 3 stacks: 5 and 17."

    plan = registry.compose("local/Base").graft("local/Edited", experts=17, type="organ").plan()
    assert (plan.screen.likeness or 0.0) > 0.99
    made = plan.assemble(tmp_path / "made.gguf")
    assert hashlib.sha256((tmp_path / "made.gguf").read_bytes()).hexdigest() == made.sha256
    (tmp_path / "expected.gguf").write_bytes(mixture((17,)))
    assert tensors_of(tmp_path / "made.gguf") == tensors_of(tmp_path / "expected.gguf")

    budget = ValidationBudget(tokens=2048)
    report = run_chimera(registry.catalog, registry.blobs, made.model, built_in_texts(("python",)), LlamaCpp(), budget)
    assert report.zeroed == tuple(f"blk.0.{slot}.weight[17]" for slot in STACKS)
    assert report.chimera.failure is None
    assert report.chimera.written
    assert report.texts[0].ratio == pytest.approx(1.0, abs=0.05), "one of 384 experts changes little"
