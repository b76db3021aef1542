"""Evolutions of a shipped model, as small as they can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from organs.registry.evolving.search import begin_evolution, chosen_texts
from organs.registry.evolving.space import space_of_values
from organs.registry.local import LocalRegistry
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.texts import ScoredText
from tests.registry_templates import ZOO_FILES
from tests.small_models import ingest_file

A, CODE = "local/Zoo-A-2M-v1.0-F16@1", "local/Zoo-A-2M-Code-v1.0-F16@1"
STEP = {"type": "organ", "depths": 1, "weight": [0.5, 0.55]}
"""Of two weights, so that several trials have the same."""


def begun(registry: LocalRegistry, own: tuple[ScoredText, ...] | None = None, **values: Any) -> int:
    """Begin an evolution of A, by default with CODE and one trial for python, and return it; `own` are texts."""
    space = space_of_values(
        {"base": A, "blends": [{**STEP, "models": CODE}], "texts": ["python"], "limits": {}, "trials": 1} | values
    )
    found = chosen_texts(space, Path()) if own is None else (space, own)
    return begin_evolution(registry.catalog, registry.blobs, *found, LlamaCpp())


def add_two_models(registry: LocalRegistry) -> None:
    """Add A and CODE only."""
    for path in ZOO_FILES:
        if path.stem in ("Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16"):
            ingest_file(registry, path)
