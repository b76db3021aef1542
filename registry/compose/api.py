"""Compose from Python: build a recipe step by step, plan it, and make the chimera."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from msgspec import structs

from organs.registry import notebook
from organs.registry.amounts import plural_text, size_text
from organs.registry.catalog.engine import Catalog
from organs.registry.columns import Column
from organs.registry.compose.blend_steps import BLEND_DEFAULT
from organs.registry.compose.build import Progress, make
from organs.registry.compose.files import ModelLookup, with_files
from organs.registry.compose.lock import Lock
from organs.registry.compose.parents import RegisteredLibrary
from organs.registry.compose.plan import Plan, planned_recipe
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import Recipe, recipe_of_values, recipe_yaml
from organs.registry.digest import Digest
from organs.registry.documents import BadDocument
from organs.registry.entities.finding import FINDING_COLUMNS, Findings, Severity
from organs.registry.entities.plan import (
    PART_COLUMNS,
    MadeChimera,
    PlannedChimera,
    PlannedRecipe,
    PlanPart,
    Screen,
)
from organs.registry.errors import BadRecipe, NotComposable
from organs.registry.output_files import NamedFile, OutputFiles
from organs.registry.store import BlobStore

Words = str | Iterable[str] | None
"""One word, several separated by commas, or a list of words; None selects all."""
Blocks = str | int | Iterable[int] | None
"""Blocks as text (`"2-5"`, `"0,2-5"`), one number, or a list; None selects all."""
_STEPS = {"grafts": "graft", "blends": "blend", "adapters": "adapter"}
"""Names of steps that differ from their key in a recipe."""
NO_LOCK_YET = "there is no lock before its tensors are computed: make the chimera, then ask for its lock"


@dataclass(frozen=True, slots=True, repr=False)
class RecipeBuilder(ABC):
    """A recipe that is built step by step. Every step returns a new builder and leaves the old one unchanged."""

    recipe: Recipe
    registry: ModelLookup
    """The registry of its models."""

    @abstractmethod
    def plan(self) -> RecipePlan:
        """Return the plan; no chimera is made. Raises NotFound for a base that is not registered."""

    def layers(self, blocks: Blocks, *, donor: str | None = None) -> Self:
        """Add blocks to the result, in their order: those of the base, or of the model `donor`.

        Without this step the result has the blocks of the base. Each block can be there several times; the registry
        stores it once.
        """
        run = {"blocks": blocks if isinstance(blocks, int) else _words(blocks), "from": donor}
        return self._with(layers=(*self.recipe.layers, *self._read(layers=[run]).layers))

    def graft(
        self,
        donor: str | None = None,
        *,
        where: str | None = None,
        type: Words = None,  # noqa: A002  # the recipe's word
        slot: Words = None,
        blocks: Blocks = None,
        experts: Blocks = None,
        sort: str = "",
        strangers: bool = False,
    ) -> Self:
        """Take organs from the model `donor`, or from the best models that the query `where` finds.

        The results of a query are in the order `sort`, by default `-likeness`: the most similar organs first. They are
        organs of kin of the base, unless the query names models (`model:acme/tiny`) or `strangers` is true. `type`,
        `slot` and `blocks` select the places; by default all places that fit. With `experts`, only these experts of the
        selected stacks are taken. Like every step, it raises BadRecipe for invalid values, for example a graft with
        both a donor and a query.
        """
        query = {"where": where, "sort": sort or None, "strangers": strangers or None}
        graft = {"from": donor, **query, **_selection(type, slot, blocks, experts)}
        return self._with(grafts=(*self.recipe.grafts, *self._read(grafts=[graft]).grafts))

    def blend(
        self,
        donor: str | None = None,
        *,
        method: str = BLEND_DEFAULT,
        models: Sequence[Mapping[str, object]] = (),
        type: Words = None,  # noqa: A002  # the recipe's word
        slot: Words = None,
        blocks: Blocks = None,
        where: str = "",
        seed: int = 0,
        **parameters: object,
    ) -> Self:
        """Blend organs of the base with those of the model `donor`, or of several `models`.

        `models` are `{"from": NAME, "weight": 0.6}`. The methods and `parameters` are those of mergekit (lambda is
        `lambda_`): a number, a list of numbers along the depth, or a list of rules, such as `{"type": "organ", "value":
        0.5}`. By default, `weight` times the difference of the donor from the base is added to the base.
        """
        named = {name.removesuffix("_"): value for name, value in parameters.items()}
        step = {
            "method": method,
            "from": donor,
            "models": list(models) or None,
            "where": where or None,
            "seed": seed or None,
        }
        blend = {**step, **named, **_selection(type, slot, blocks, None)}
        return self._with(blends=(*self.recipe.blends, *self._read(blends=[blend]).blends))

    def adapter(self, name: str, scale: float = 1.0) -> Self:
        """Add the low-rank adapter `name` to the tensors that it adapts, `scale` times."""
        merge = {"from": name, "scale": scale}
        return self._with(adapters=(*self.recipe.adapters, *self._read(adapters=[merge]).adapters))

    def purify(
        self,
        method: str = "fractal",
        *,
        where: str = "",
        type: Words = None,  # noqa: A002  # the recipe's word
        slot: Words = None,
        blocks: Blocks = None,
        experts: Blocks = None,
        keep: float | None = None,
    ) -> Self:
        """Purify organs of the result. `method` is `spectral` or `fractal`; `spectral` keeps `keep` of the energy."""
        step = {"method": method, "where": where or None, "keep": keep, **_selection(type, slot, blocks, experts)}
        return self._with(purify=(*self.recipe.purify, *self._read(purify=[step]).purify))

    def experts(
        self,
        keep: Blocks = None,
        *,
        drop: Blocks = None,
        blocks: Blocks = None,
        count: int | None = None,
        saliency: str | Path | None = None,
        by: str | None = None,
    ) -> Self:
        """Keep only some experts of the result: those of `keep`, all but those of `drop`, or the `count` most salient.

        `saliency` is a JSON file with a list of numbers for each block, the file of an importance matrix, or the name
        of a registered one, of which the `energy` of the hidden units counts, or the number of `tokens` (`by`). It is
        read now, and the recipe has the experts that are kept. `blocks` selects the blocks; by default all that have
        experts.
        """
        step = {"keep": _ranges(keep), "drop": _ranges(drop), "blocks": _ranges(blocks), "count": count, "by": by}
        step = {key: value for key, value in step.items() if value is not None}
        values: Any = {"base": self.recipe.base, "experts": step}
        if saliency is not None or count is not None:
            step |= {} if saliency is None else {"saliency": str(saliency)}
            try:
                values = with_files(values, Path(), self.registry)
            except BadDocument as error:
                raise BadRecipe(
                    "experts", [(path.removeprefix("experts."), text) for path, text in error.reasons]
                ) from error
        return self._with(experts=(*self.recipe.experts, *self._read(experts=values["experts"]).experts))

    def quantize(
        self,
        dtype: str,
        *,
        type: Words = None,  # noqa: A002  # the recipe's word
        slot: Words = None,
        blocks: Blocks = None,
    ) -> Self:
        """Write the matrices of the result as a tensor type (`Q5_K`), or as llama.cpp mixes types (`Q4_K_M`).

        Norms, biases and routers keep their types. `type`, `slot` and `blocks` select matrices; of several steps that
        select one, the last counts. A name that is a mix and a type, such as Q6_K, is the mix if nothing is selected.
        """
        step = {"as": dtype, **_selection(type, slot, blocks, None)}
        return self._with(quantize=(*self.recipe.quantize, *self._read(quantize=[step]).quantize))

    def imatrix(self, name: str) -> Self:
        """Weigh the errors of rounding by the registered importance matrix `name` in the steps of `quantize`."""
        return self._with(imatrix=self._read(imatrix=name).imatrix)

    def encode(self, dtype: str) -> Self:
        """Choose the tensor type of computed organs.

        `same` is that of the organ which each replaces, `finer` the smallest that keeps 90% of the change, and others
        are names of types, such as Q8_0.
        """
        return self._with(encode=self._read(encode=dtype).encode)

    def source(self, source: str) -> Self:
        """Choose the weights from which blends and adapters are computed.

        `proved` are those of the model from which the base is proved to be quantised, if one is; `given` are the base's
        own. The name of that model refuses any other.
        """
        return self._with(source=self._read(source=source).source)

    def accept(self, *codes: str) -> Self:
        """Accept warnings by their codes, which are listed in `registry.compose.recipe.WARNINGS`."""
        more = self._read(accept=list(codes)).accept
        return self._with(accept=tuple(dict.fromkeys((*self.recipe.accept, *more))))

    def metadata(self, key: str, value: str | int | float | bool | list[str]) -> Self:
        """Set a metadata key of the result; an earlier value is replaced."""
        others = {name: value for name, value in self.recipe.metadata.items() if name != key}
        return self._with(metadata=others | self._read(metadata={key: value}).metadata)

    def named(self, name: str) -> Self:
        """Set the name under which the chimera is registered: `namespace/name`."""
        return self._with(name=self._read(name=name).name)

    def yaml(self) -> str:
        """Return the recipe as YAML."""
        return recipe_yaml(self.recipe)

    def __repr__(self) -> str:
        recipe = self.recipe
        counts = (
            *((recipe.layers, "layer run"), (recipe.grafts, "graft"), (recipe.blends, "blend")),
            *((recipe.adapters, "adapter"), (recipe.purify, "purification"), (recipe.experts, "pruning")),
            (recipe.quantize, "tensor type"),
        )
        steps = ", ".join(plural_text(len(steps), item, f"{item}s") for steps, item in counts if steps)
        return f"<{type(self).__name__} on {recipe.base!r}: {steps or 'no steps yet'}>"

    def _repr_html_(self) -> str:
        return notebook.document(notebook.preformatted(self.yaml()))

    def _read(self, **members: object) -> Recipe:
        """Read one step by the rules of recipe files, with the same errors."""
        values = {key: _without_none(value) for key, value in members.items()}
        try:
            return recipe_of_values({"base": self.recipe.base, **values}, "step")
        except BadRecipe as error:
            # The step was read as the only item of its list, so its number is left out of the message.
            (key,) = members
            prefix = re.compile(rf"^{key}(?:\[\d+\])?\.?")
            reasons = [(prefix.sub("", field), sentence) for field, sentence in error.reasons]
            raise BadRecipe(_STEPS.get(key, key), reasons) from error

    def _with(self, **changes: object) -> Self:
        return replace(self, recipe=structs.replace(self.recipe, **changes))


def _selection(types: Words, slots: Words, blocks: Blocks, experts: Blocks) -> dict[str, object]:
    return {
        "type": _words(types),
        "slot": _words(slots),
        "blocks": _ranges(blocks),
        "experts": _ranges(experts),
    }


def _ranges(numbers: Blocks) -> object:
    return numbers if isinstance(numbers, int) else _words(numbers)


def _words(words: str | Iterable[str | int] | None) -> object:
    """Return a word, a list of words, or None. An empty list is returned as it is, and refused by the reader."""
    if words is None or (isinstance(words, str) and "," not in words):
        return words
    return [part.strip() for part in words.split(",")] if isinstance(words, str) else [*words]


def _without_none(value: object) -> object:
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


@dataclass(frozen=True, slots=True, repr=False)
class Composition(RecipeBuilder):
    """A recipe that is built on the models of a local registry."""

    catalog: Catalog
    blobs: Callable[[], BlobStore]

    def plan(self) -> ChimeraPlan:
        """Return the plan; no chimera is made. Raises NotFound for a base that is not registered."""
        store = self.blobs()
        with self.catalog.reading() as session:
            return ChimeraPlan(plan_recipe(self.recipe, RegisteredLibrary(session, store)), self.catalog, store)


class RecipePlan(ABC):
    """The plan of a recipe: every tensor of the result, findings, sizes, and a screen."""

    def __init__(self, recipe: Recipe, planned: PlannedRecipe) -> None:
        """Take a `planned` recipe that has a plan with all organs."""
        assert planned.plan is not None
        self.recipe = recipe
        self.planned = planned
        self._plan = planned.plan

    @property
    def chimera(self) -> PlannedChimera:
        """The planned chimera, with all organs."""
        return self._plan

    @property
    def findings(self) -> Findings:
        """Refusals, warnings and information, in this order."""
        return self.planned.findings

    @property
    def can_be_made(self) -> bool:
        """Whether there are no refusals and all warnings are accepted."""
        return self.planned.can_be_made

    @property
    def parts(self) -> tuple[PlanPart, ...]:
        """The tensors of the result, in order."""
        return self._plan.parts

    @property
    def screen(self) -> Screen:
        """What the weights say about the changes; it is no grade."""
        return self._plan.screen

    @property
    def size_bytes(self) -> int:
        """The size of the file in bytes."""
        return self._plan.size_bytes

    @property
    def file_name(self) -> str:
        """The name of the file, by convention."""
        return self._plan.file

    @abstractmethod
    def accepting_all(self) -> Self:
        """Return the plan of the same recipe with all of its warnings accepted."""

    @abstractmethod
    def work_bytes(self, *, with_file: bool) -> int:
        """Return the number of bytes that `progress` counts, with or without a written file."""

    @abstractmethod
    def register(self, progress: Progress | None = None) -> MadeChimera:
        """Make and register the chimera."""

    @abstractmethod
    def assemble(self, path: str | Path, progress: Progress | None = None) -> MadeChimera:
        """Make and register the chimera, and write its file to `path`, replacing an existing file."""

    @abstractmethod
    def lock(self) -> Lock:
        """Return the lock; no chimera is made.

        Raises NotComposable if the plan cannot be made, or if it computes organs: then the lock is known only after
        the computation. Make the chimera, then get its lock from the registry.
        """

    @abstractmethod
    def files(self) -> OutputFiles:
        """Return the file of the chimera, for a plan that computes no organs.

        A local registry makes and registers the chimera when the file is written. A remote registry only sends the
        parts, so no account is necessary. Raises NotComposable, NotAssemblable.
        """

    def check(self) -> None:
        """Raise NotComposable unless the plan can be made."""
        if not self.can_be_made:
            raise NotComposable([refusal.sentence for refusal in self.planned.refusals], list(self.planned.unaccepted))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._headline()}>"

    def _repr_html_(self) -> str:
        changed = [part for part in self.parts if part.acts]
        return notebook.document(
            notebook.heading(self._headline()),
            notebook.paragraph(self.screen.sentence),
            notebook.paragraph(self.screen.size),
            notebook.table(FINDING_COLUMNS, self.findings) if self.findings else "",
            notebook.table((Column("name", "tensor"), *PART_COLUMNS[2:]), changed) if changed else "",
        )

    def _headline(self) -> str:
        plan, refusals = self._plan, len(self.planned.refusals)
        unaccepted = sum(finding.severity is Severity.WARN and not finding.accepted for finding in self.findings)
        return ", ".join(
            [
                f"{plan.changed} of {plural_text(plan.organs, 'tensor', 'tensors')} of {plan.base}",
                size_text(plan.size_bytes),
                *([plural_text(refusals, "refusal", "refusals")] if refusals else []),
                *([plural_text(unaccepted, "warning to accept", "warnings to accept")] if unaccepted else []),
                *(["can be made"] if self.can_be_made else []),
            ]
        )


class ChimeraPlan(RecipePlan):
    """The plan of a recipe on the models of a local registry."""

    def __init__(self, plan: Plan, catalog: Catalog, store: BlobStore) -> None:
        super().__init__(plan.recipe, planned_recipe(plan, every_part=True))
        self.plan, self.catalog, self.store = plan, catalog, store

    def accepting_all(self) -> ChimeraPlan:
        """Return the plan of the same recipe with all its warnings accepted; the plan is not computed again."""
        return ChimeraPlan(self.plan.accepting_all(), self.catalog, self.store)

    def work_bytes(self, *, with_file: bool) -> int:
        """Return the size of the file plus that of the computed organs: both are hashed or written once."""
        return self.size_bytes + sum(part.spec.size_bytes for part in self.plan.parts if part.computation is not None)

    def register(self, progress: Progress | None = None) -> MadeChimera:
        """Make and register the chimera without writing its file; raises as `assemble` does."""
        return make(self.catalog, self.store, self.plan, progress=progress)

    def assemble(self, path: str | Path, progress: Progress | None = None) -> MadeChimera:
        """Make and register the chimera, and write its file to `path`, replacing an existing file.

        Raises NotComposable for refusals and warnings that are not accepted, BadOrgan, StoreError, DiskFull; then
        nothing is registered and `path` is unchanged.
        """
        return make(self.catalog, self.store, self.plan, path=Path(path), progress=progress)

    def lock(self) -> Lock:
        """Return the lock; no chimera is made. Raises NotComposable if the plan cannot be made or computes organs."""
        self.check()
        if self.plan.computations:
            raise NotComposable([NO_LOCK_YET], [])
        return self.plan.lock()

    def files(self) -> OutputFiles:
        """Return the file of the chimera; writing it makes and registers the chimera, as `assemble` does."""
        self.check()
        return _ChimeraFile(self)


class _ChimeraFile(OutputFiles):
    """The file of a planned chimera, which is made when the file is written."""

    def __init__(self, plan: ChimeraPlan) -> None:
        super().__init__([NamedFile(plan.file_name, plan.size_bytes, None)])
        self._plan = plan

    @property
    def work_bytes(self) -> int:
        return self._plan.work_bytes(with_file=True)

    def place(
        self, targets: Sequence[Path | None], progress: Callable[[int], None] | None = None
    ) -> tuple[Digest | None, ...]:
        (target,) = targets
        if target is None:
            return (None,)
        made = self._plan.assemble(
            target, None if progress is None else lambda _action, size_bytes: progress(size_bytes)
        )
        return (made.sha256,)
