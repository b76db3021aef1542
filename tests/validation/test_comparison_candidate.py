"""Tests of the files to be scored, and of the windows that fit all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from organs.registry.errors import BadInput
from organs.registry.validation.comparison import (
    file_candidate,
    window_that_fits,
)
from tests.gguf_files import file_bytes, tensor, text
from tests.validation.changed_models import A


def test_a_window_has_the_size_of_the_smallest_context() -> None:
    chimera, base = (replace(file_candidate(A), context_tokens=context) for context in (99, 80))
    assert window_that_fits(256, chimera, base) == window_that_fits(256, base, chimera) == 80
    assert window_that_fits(64, chimera, base) == 64
    for pair in ((replace(chimera, context_tokens=31), base), (chimera, replace(base, context_tokens=0))):
        with pytest.raises(BadInput, match="at least 32 are needed"):
            window_that_fits(256, *pair)


def test_a_header_without_a_context_length_limits_nothing(tmp_path: Path) -> None:
    path = tmp_path / "silent.gguf"
    path.write_bytes(file_bytes([text("general.architecture", "llama")], [tensor("a")]))
    silent = file_candidate(path)
    assert silent.context_tokens is None
    assert window_that_fits(4096, silent, silent) == 4096
