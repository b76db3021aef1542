"""Composing from Python: a recipe built step by step, its plan, and the chimera made of it.

plan = registry.compose("acme/base").graft("acme/coder", type="organ", blocks="2-5").plan()
plan.findings
plan.assemble("chimera.gguf")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from organs.registry.catalog.engine import Catalog
from organs.registry.compose.building import RecipeBuilder
from organs.registry.compose.finding import Finding
from organs.registry.compose.library import RegisteredLibrary
from organs.registry.compose.making import Made, Progress, make
from organs.registry.compose.plan import Plan, PlannedPart
from organs.registry.compose.planning import plan_recipe
from organs.registry.compose.prediction import Prediction
from organs.registry.compose.recipe import Recipe
from organs.registry.compose.showing import headline, plan_html
from organs.registry.store import BlobStore


@dataclass(frozen=True, slots=True, repr=False)
class Composition(RecipeBuilder):
    """A recipe under way, on the models of a registry."""

    catalog: Catalog
    blobs: Callable[[], BlobStore]

    def plan(self) -> ChimeraPlan:
        """What it comes to: nothing is made yet. Raises NotFound for a base that is not registered."""
        store = self.blobs()
        with self.catalog.reading() as session:
            return ChimeraPlan(plan_recipe(self.recipe, RegisteredLibrary(session, store)), self.catalog, store)


@dataclass(frozen=True, slots=True)
class ChimeraPlan:
    """What a recipe comes to: every tensor of the result, findings, sizes, and a prediction."""

    plan: Plan
    catalog: Catalog
    store: BlobStore

    @property
    def recipe(self) -> Recipe:
        return self.plan.recipe

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All that was found: refusals, warnings, and what will change."""
        return self.plan.findings

    @property
    def can_be_made(self) -> bool:
        """Whether nothing refuses it and every warning is accepted."""
        return self.plan.can_be_made

    @property
    def parts(self) -> tuple[PlannedPart, ...]:
        """The tensors of the result, in order."""
        return self.plan.parts

    @property
    def prediction(self) -> Prediction:
        return self.plan.prediction

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return self.plan.size_bytes

    def __repr__(self) -> str:
        return f"<ChimeraPlan {headline(self.plan)}>"

    def _repr_html_(self) -> str:
        return plan_html(self.plan)

    def register(self, progress: Progress | None = None) -> Made:
        """Make and register the chimera; its file is streamed whenever somebody asks. Raises as `assemble` does."""
        return make(self.catalog, self.store, self.plan, progress=progress)

    def assemble(self, path: str | Path, progress: Progress | None = None) -> Made:
        """Make and register the chimera, and write its file to `path`, replacing what is there.

        Raises NotComposable for refusals and warnings that are not accepted, BadOrgan, StoreError, DiskFull; then
        nothing is registered and `path` is as it was.
        """
        return make(self.catalog, self.store, self.plan, path=Path(path), progress=progress)
