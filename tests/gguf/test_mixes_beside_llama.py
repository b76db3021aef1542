"""Mixes beside llama.cpp's own quantiser (npm): the same type and the same bytes for every organ."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.mixes import compared, write_generated

pytestmark = pytest.mark.npm

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"


@pytest.mark.parametrize("mix", ["Q2_K", "Q3_K_M", "Q4_0", "Q4_K_M", "Q5_K_S", "Q6_K", "Q8_0", "IQ4_XS", "BF16"])
@pytest.mark.parametrize("model", ["Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16"])
def test_every_organ_of_a_trained_model_is_that_of_llama_cpp(model: str, mix: str, tmp_path: Path) -> None:
    line = compared(ZOO / f"{model}.gguf", mix, None, tmp_path / "theirs.gguf")
    *_, organs, equal, differ = (cell.strip() for cell in line.strip("|").split("|"))
    assert (equal, differ) == (organs, "–"), line


@pytest.mark.parametrize("mix", ["Q2_K_S", "Q3_K_L", "Q4_K_M", "IQ2_XS", "IQ3_M", "IQ1_S", "Q4_0"])
def test_every_organ_of_a_mixture_is_that_of_llama_cpp_by_importances(mix: str, tmp_path: Path) -> None:
    write_generated(tmp_path / "mixture.gguf", tmp_path / "importances.gguf")
    line = compared(tmp_path / "mixture.gguf", mix, tmp_path / "importances.gguf", tmp_path / "theirs.gguf")
    *_, organs, equal, differ = (cell.strip() for cell in line.strip("|").split("|"))
    assert (equal, differ) == (organs, "–"), line
