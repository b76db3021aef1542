"""Tests of the files to be scored, and of the number of tokens that fit all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from organs.registry.errors import BadInput
from organs.registry.validation.comparison import (
    file_candidate,
    length_that_fits,
)
from tests.gguf_files import file_bytes, tensor, text
from tests.validation.changed_models import A


@pytest.mark.parametrize(("contexts", "fits"), [((40, 99, 80), 39), ((99, 40, 80), 39), ((99, 80, 8), 79)])
def test_a_too_small_context_counts_unless_it_is_that_of_a_donor(contexts: tuple[int, ...], fits: int) -> None:
    chimera, base, donor = (replace(file_candidate(A), context_tokens=context) for context in contexts)
    assert length_that_fits(128, chimera, base, [donor]).tokens == fits
    for pair in ((replace(chimera, context_tokens=32), base), (chimera, replace(base, context_tokens=0))):
        with pytest.raises(BadInput, match="at least 33 are needed"):
            length_that_fits(128, *pair, [])


def test_a_header_without_a_context_length_limits_nothing(tmp_path: Path) -> None:
    path = tmp_path / "silent.gguf"
    path.write_bytes(file_bytes([text("general.architecture", "llama")], [tensor("a")]))
    silent = file_candidate(path)
    assert silent.context_tokens is None
    assert length_that_fits(4096, silent, silent, [silent]).tokens == 4096
