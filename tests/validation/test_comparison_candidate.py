"""Tests of the files to be scored, and of the windows that fit all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from organs.registry.errors import BadInput
from organs.registry.validation.comparison import (
    ModelFacts,
    RunnableModel,
    file_candidate,
    window_that_fits,
)
from organs.registry.validation.runtime import WINDOW_TOKENS
from tests.gguf_files import file_bytes, tensor, text, unsigned
from tests.validation.changed_models import A


def test_a_window_has_the_size_of_the_smallest_context() -> None:
    def candidate(context: int) -> RunnableModel:
        return replace(file_candidate(A), facts=ModelFacts(context))

    chimera, base = candidate(99), candidate(80)
    assert window_that_fits(chimera, base) == window_that_fits(base, chimera) == 80
    for pair in ((candidate(31), base), (chimera, candidate(0))):
        with pytest.raises(BadInput, match="at least 32 are needed"):
            window_that_fits(*pair)


def test_a_header_without_a_context_length_limits_nothing(tmp_path: Path) -> None:
    path = tmp_path / "silent.gguf"
    path.write_bytes(file_bytes([text("general.architecture", "llama")], [tensor("a")]))
    silent = file_candidate(path)
    assert silent.facts.context_tokens is None
    assert window_that_fits(silent, silent) == WINDOW_TOKENS


def test_the_facts_of_a_header_are_those_of_the_running_model(tmp_path: Path) -> None:
    path = tmp_path / "mixture.gguf"
    metadata = [
        text("general.architecture", "qwen3moe"),
        text("tokenizer.chat_template", "{{ messages }}"),
        unsigned("qwen3moe.expert_count", 8),
        unsigned("qwen3moe.expert_used_count", 2),
    ]
    path.write_bytes(file_bytes(metadata, [tensor("blk.0.ffn_up_exps.weight", (4, 4, 8)), tensor("a", (10,))]))
    facts = file_candidate(path).facts
    assert facts == ModelFacts(None, "{{ messages }}", 2 * 16 + 10)
    assert file_candidate(A).facts.chat_template is None
