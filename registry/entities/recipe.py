"""Recipes as JSON: what is written in a recipe file, member by member. Members that have their default are left out.

`registry.compose.recipe_io` reads recipes and reports what is wrong with them; these classes describe what it writes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from organs.registry.entities.base import ITEMS_MAX, Entity, Text, Texts

Words = Text | Texts
"""One word, or a list of words."""
Blocks = int | Text | Annotated[tuple[int | Text, ...], Meta(max_length=ITEMS_MAX)]
"""A block, a range such as `2-5`, or a list of both."""


class _Selection(Entity, frozen=True, kw_only=True, omit_defaults=True):
    type: Annotated[Words, Meta(description="One type of organ, or a list.")] | None = None
    slot: Annotated[Words, Meta(description="One slot, or a list; `*` stands for any text.")] | None = None
    blocks: Annotated[Blocks, Meta(description="A block, a range such as `2-5`, or a list of both.")] | None = None


class GraftStep(_Selection, frozen=True, kw_only=True, omit_defaults=True, rename={"donor": "from"}):
    """Organs of a donor, or of the models that a query finds."""

    donor: Annotated[Text, Meta(description="The model that gives.")] | None = None
    where: Annotated[Text, Meta(description="A query, instead of a donor.")] | None = None
    sort: Annotated[Text, Meta(description="The order of what the query finds.")] | None = None


class AdapterStep(Entity, frozen=True, kw_only=True, omit_defaults=True, rename={"adapter": "from"}):
    """A low-rank adapter that is merged."""

    adapter: Text
    scale: float = 1.0


class PurifyStep(_Selection, frozen=True, kw_only=True, omit_defaults=True):
    """Organs of the result that are purified."""

    method: Annotated[Text, Meta(description="`spectral` or `fractal`.")]
    where: Annotated[Text, Meta(description="A query that narrows the selection.")] | None = None
    keep: Annotated[float, Meta(description="The share of the energy that `spectral` keeps.")] | None = None


class RecipeFile(Entity, frozen=True, kw_only=True, omit_defaults=True):
    """A recipe: what is made, in names and words."""

    base: Annotated[Text, Meta(description="The model that receives.")]
    name: Annotated[Text, Meta(description="The name under which it is registered.")] | None = None
    grafts: Annotated[tuple[GraftStep, ...], Meta(max_length=ITEMS_MAX)] = ()
    adapters: Annotated[tuple[AdapterStep, ...], Meta(max_length=ITEMS_MAX)] = ()
    purify: PurifyStep | Annotated[tuple[PurifyStep, ...], Meta(max_length=ITEMS_MAX)] | None = None
    encode: Annotated[Text, Meta(description="The type of computed organs whose own cannot be written.")] | None = None
    accept: Annotated[Texts, Meta(description="Codes of warnings that are accepted.")] = ()
    metadata: Annotated[dict[Text, str | int | float | bool | Texts], Meta(max_length=ITEMS_MAX)] = msgspec.field(
        default_factory=dict
    )


class RecipeRequest(RecipeFile, frozen=True, kw_only=True, omit_defaults=True):
    """A recipe, or `{"yaml": TEXT}` with all of it. Errors name the field."""

    base: Annotated[Text, Meta(description="The model that receives.")] = ""
    yaml: Annotated[Text, Meta(description="The recipe as YAML, and nothing else.")] | None = None
