"""A recipe under way: what is built of it step by step, wherever it is planned and made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from organs.registry import notebook
from organs.registry.compose.phrases import counted
from organs.registry.compose.reading import read_recipe
from organs.registry.compose.recipe import Recipe
from organs.registry.compose.writing import recipe_yaml
from organs.registry.errors import BadRecipe

Words = str | Iterable[str] | None
"""One word, several with commas between them, or a list of words; None narrows nothing."""
Blocks = str | int | Iterable[int] | None
"""`"2-5"`, `"0,2-5"`, 3, or a list of blocks."""
_STEPS = {"grafts": "graft", "adapters": "adapter"}
"""What one of a list is called, where the list's name does not say."""


@dataclass(frozen=True, slots=True, repr=False)
class RecipeBuilder:
    """A recipe under way. Every step gives a new one, so that a beginning can be gone on with in several ways."""

    recipe: Recipe

    def graft(
        self,
        donor: str | None = None,
        *,
        where: str | None = None,
        type: Words = None,  # noqa: A002  # the recipe's word
        slot: Words = None,
        blocks: Blocks = None,
        sort: str = "",
    ) -> Self:
        """Take organs from the model `donor`, or from whichever models the query `where` finds best.

        `type`, `slot` and `blocks` select the places; without any, all that fit. As every step, it raises BadRecipe for
        what means nothing, such as a graft with both a donor and a query.
        """
        graft = {"from": donor, "where": where, "sort": sort or None, **_selection(type, slot, blocks)}
        return self._with(grafts=(*self.recipe.grafts, *self._read(grafts=[graft]).grafts))

    def adapter(self, name: str, scale: float = 1.0) -> Self:
        """Add the low-rank adapter `name` to what it adapts, `scale` times."""
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
        keep: float | None = None,
    ) -> Self:
        """Purify organs of the result: `spectral`, which keeps a share of the energy, or `fractal`."""
        step = {"method": method, "where": where or None, "keep": keep, **_selection(type, slot, blocks)}
        return self._with(purify=(*self.recipe.purify, *self._read(purify=[step]).purify))

    def encode(self, dtype: str) -> Self:
        """Write computed organs as `dtype` where their own type cannot be written: Q8_0, F16, BF16 or F32."""
        return self._with(encode=self._read(encode=dtype).encode)

    def accept(self, *codes: str) -> Self:
        """Accept warnings by their codes, which are listed in `registry.compose.codes`."""
        more = self._read(accept=list(codes)).accept
        return self._with(accept=tuple(dict.fromkeys((*self.recipe.accept, *more))))

    def metadata(self, key: str, value: str | int | float | bool | list[str]) -> Self:
        """Set a metadata key of the result; one that was set before is set anew."""
        others = (change for change in self.recipe.metadata if change.key != key)
        return self._with(metadata=(*others, *self._read(metadata={key: value}).metadata))

    def named(self, name: str) -> Self:
        """Register it as `namespace/name`."""
        return self._with(name=self._read(name=name).name)

    def yaml(self) -> str:
        """The recipe as YAML."""
        return recipe_yaml(self.recipe)

    def __repr__(self) -> str:
        recipe = self.recipe
        counts = ((recipe.grafts, "graft"), (recipe.adapters, "adapter"), (recipe.purify, "purification"))
        steps = ", ".join(counted(len(steps), one, f"{one}s") for steps, one in counts if steps)
        return f"<{type(self).__name__} on {recipe.base!r}: {steps or 'no steps yet'}>"

    def _repr_html_(self) -> str:
        return notebook.document(notebook.preformatted(self.yaml()))

    def _read(self, **members: object) -> Recipe:
        """One step by itself, read as a recipe file is: the same rules, and the same sentences for what breaks them."""
        given = {key: _without_nothing(value) for key, value in members.items()}
        try:
            return read_recipe(json.dumps({"base": self.recipe.base, **given}), "step")
        except BadRecipe as error:
            # It was read as the only one of its list: its place in there would say nothing, or something wrong.
            (key,) = members
            own = re.compile(rf"^{key}(?:\[\d+\])?\.?")
            reasons = [(own.sub("", field), sentence) for field, sentence in error.reasons]
            raise BadRecipe(_STEPS.get(key, key), reasons) from error

    def _with(self, **changes: object) -> Self:
        return replace(self, recipe=replace(self.recipe, **changes))  # type: ignore[arg-type]


def _selection(types: Words, slots: Words, blocks: Blocks) -> dict[str, object]:
    return {
        "type": _words(types),
        "slot": _words(slots),
        "blocks": blocks if isinstance(blocks, int) else _words(blocks),
    }


def _words(given: str | Iterable[str | int] | None) -> object:
    """A word or a list of them. An empty list stays one: the reader refuses it, for it would select everything."""
    if given is None or (isinstance(given, str) and "," not in given):
        return given
    return [word.strip() for word in given.split(",")] if isinstance(given, str) else [*given]


def _without_nothing(value: object) -> object:
    if isinstance(value, list):
        return [_without_nothing(one) for one in value]
    return {key: one for key, one in value.items() if one is not None} if isinstance(value, dict) else value
