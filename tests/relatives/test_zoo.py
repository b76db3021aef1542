"""Tests with the zoo, whose kinship is known: the registry finds exactly the true relatives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from organs.registry.local import LocalRegistry
from tests.registry_templates import RegistryTemplates, add_zoo_models
from tests.related_models import declared_pairs, measured_pairs

A = "Zoo-A-2M-v1.0-F16"
QUANTISED = "Zoo-A-2M-v1.0-Q8_0"
CODE, PROSE = "Zoo-A-2M-Code-v1.0-F16", "Zoo-A-2M-Prose-v1.0-Q8_0"
EARLY, MIDDLE = "Zoo-A-2M-v0.1-Q8_0", "Zoo-A-2M-v0.3-Q8_0"
BRANCH = "Zoo-A-2M-Branch-v1.0-Q8_0"
B, C = "Zoo-B-2M-v1.0-Q8_0", "Zoo-C-1M-v1.0-Q8_0"
ADAPTER = "Zoo-A-2M-Code-LoRA-v1.0-F32"
KIN = (A, QUANTISED, CODE, PROSE, EARLY, MIDDLE, BRANCH)


@pytest.fixture(scope="module")
def zoo(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    """Return a registry with the whole zoo."""
    with templates.open_copy(add_zoo_models, tmp_path_factory.mktemp("zoo") / "home") as registry:
        yield registry


def test_exactly_the_true_relatives_are_found_and_every_declared_parent_is_linked(zoo: LocalRegistry) -> None:
    pairs = measured_pairs(zoo)
    assert set(pairs) == {frozenset((first, second)) for first in KIN for second in KIN if first != second}
    assert {pair for pair, (relation, _) in pairs.items() if relation == "quantized"} == {frozenset((A, QUANTISED))}

    assert declared_pairs(zoo) == {
        (QUANTISED, A, "quantized"),
        (CODE, A, "finetune"),
        (PROSE, A, "finetune"),
        (BRANCH, EARLY, "finetune"),
        (ADAPTER, A, "adapter"),
    }


def test_findings_report_where_declared_and_measured_disagree(zoo: LocalRegistry) -> None:
    found = {name: [finding.code for finding in zoo.model(name).findings] for name in (*KIN, B, C, ADAPTER)}
    assert {name: codes for name, codes in found.items() if codes} == {
        QUANTISED: ["source-not-settled"],  # it was made from weights in F32
        PROSE: ["source-not-settled"],
        BRANCH: ["parent-loosely-related"],
        B: ["no-known-relatives"],
        C: ["no-known-relatives"],
    }
