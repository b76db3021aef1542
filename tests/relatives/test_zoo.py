"""Tests with the zoo, whose kinship is known: the registry finds exactly the true relatives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from organs.registry.anatomy import Slot, place_of
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.entities.model import Model
from organs.registry.gguf import MemorySource, read_header
from organs.registry.gguf.quants import dequantize
from organs.registry.local import LocalRegistry
from organs.registry.models import model_page
from organs.registry.similarity import FINGERPRINT_ROUNDING, NOISE
from tests.registry_templates import RegistryTemplates, add_zoo_models
from tests.related_models import declared_pairs, measured_pairs

ZOO = Path(__file__).parents[2] / "examples" / "zoo"
A = "Zoo-A-2M-v1.0-F16"
QUANTISED = "Zoo-A-2M-v1.0-Q8_0"
CODE, PROSE = "Zoo-A-2M-Code-v1.0-F16", "Zoo-A-2M-Prose-v1.0-Q8_0"
EARLY, MIDDLE = "Zoo-A-2M-v0.1-Q8_0", "Zoo-A-2M-v0.3-Q8_0"
BRANCH = "Zoo-A-2M-Branch-v1.0-Q8_0"
B, C = "Zoo-B-2M-v1.0-Q8_0", "Zoo-C-1M-v1.0-Q8_0"
ADAPTER = "Zoo-A-2M-Code-LoRA-v1.0-F32"
KIN = (A, QUANTISED, CODE, PROSE, EARLY, MIDDLE, BRANCH)
MATRICES = 29


@pytest.fixture(scope="module")
def zoo(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    """Return a registry with the whole zoo."""
    with templates.open_copy(add_zoo_models, tmp_path_factory.mktemp("zoo") / "home") as registry:
        yield registry


def page(zoo: LocalRegistry, name: str) -> Model:
    with zoo.catalog.reading() as session:
        return model_page(session, model_by_text(session, name))


def values_of(name: str) -> dict[Slot, np.ndarray[Any, np.dtype[np.float32]]]:
    """Return all weights of the matrices of a file, by their places."""
    source = MemorySource((ZOO / f"{name}.gguf").read_bytes())
    header = read_header(source)
    values = {}
    for tensor in header.tensors:
        place = place_of(tensor.name)
        data = source.read_at(header.data_offset + tensor.offset, tensor.size_bytes)
        if len(tensor.shape) > 1:
            values[place.tower.value, place.block, place.slot] = dequantize(data, tensor.dtype)
    return values


def test_exactly_the_relatives_of_a_are_found_and_one_has_the_same_weights(zoo: LocalRegistry) -> None:
    pairs = measured_pairs(zoo)
    assert set(pairs) == {frozenset((first, second)) for first in KIN for second in KIN if first != second}
    assert {pair for pair, (relation, _) in pairs.items() if relation == "quantized"} == {frozenset((A, QUANTISED))}


def test_similarities_agree_with_whole_tensors_within_the_noise(zoo: LocalRegistry) -> None:
    base = values_of(A)
    for name in (QUANTISED, CODE, PROSE, EARLY, MIDDLE, BRANCH, B):
        other = values_of(name)
        whole = float(np.mean([np.corrcoef(base[slot], other[slot])[0, 1] for slot in base]))
        comparison = zoo.compare(A, name)
        assert comparison.organs.compared == len(base) == MATRICES
        # An estimate from 256 values has the standard error (1 - r²) / 16; the limit is four for the mean of 29.
        tolerance = 4 * NOISE * (1 - whole**2) / MATRICES**0.5 + FINGERPRINT_ROUNDING
        assert comparison.likeness == pytest.approx(whole, abs=tolerance), name


def test_a_declared_parent_resolves_to_the_right_file(zoo: LocalRegistry) -> None:
    assert declared_pairs(zoo) == {
        (QUANTISED, A, "quantized"),
        (CODE, A, "finetune"),
        (PROSE, A, "finetune"),
        (BRANCH, EARLY, "finetune"),
        (ADAPTER, A, "adapter"),
    }


def test_findings_report_where_declared_and_measured_disagree(zoo: LocalRegistry) -> None:
    found = {name: [finding.code for finding in page(zoo, name).findings] for name in (*KIN, B, C, ADAPTER)}
    assert {name: codes for name, codes in found.items() if codes} == {
        QUANTISED: ["source-not-settled"],  # it was made from weights in F32
        PROSE: ["source-not-settled"],
        BRANCH: ["parent-loosely-related"],
        B: ["no-known-relatives"],
        C: ["no-known-relatives"],
    }
