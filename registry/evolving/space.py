"""The space of an evolution: what donors may give to a base, as parameters with bounds, and the recipe of a choice.

A space is a YAML document with the names of a recipe. Its blends, grafts and adapters have ranges in the place of
numbers:

    base: me/base
    donors: [me/code, me/docs]          # or a query for models: kin:me/base
    texts: [mine/code, mine/docs.txt]   # files, folders, or names of built-in texts
    limits: {chat: 5}                   # chat may become at most 5% worse
    blends:
      - {weight: [0, 1.2], depths: 3}   # for each donor and type three weights along the depth

Without steps, all donors are blended so, and adapters among them get a scale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from organs.registry.anatomy import type_name
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.compose.blend_steps import BLEND_DEFAULT, BLENDED_MAX
from organs.registry.compose.recipe import (
    RECIPE_LIMITS,
    SCALE_MAX,
    Recipe,
    TypeRule,
    check_text,
    document_yaml,
    recipe_of_values,
)
from organs.registry.compose.selection import MODEL, WORD_MAX_LENGTH, choice, in_ranges, several
from organs.registry.documents import BadDocument, Parse, Reason, convert, line, parse_yaml
from organs.registry.entities.base import prepared
from organs.registry.errors import BadRecipe
from organs.registry.names import MODEL_TEXT_MAX_LENGTH
from organs.registry.search.language import QUERY_MAX_LENGTH
from organs.registry.transform.blend import METHODS
from organs.registry.validation.runtime import TEXTS_MAX

STEP = 0.05
"""Weights, densities and scales are multiples of it, so that recipes are short and equal trials are found."""
PARAMETERS_MAX = 200
DEPTHS_MAX = 16
STEPS_MAX = 16
"""The most steps of each kind in a space."""
ACCEPTED_MAX = 64
TRIALS_MAX = 10_000
"""The most trials of a search, also of one that states only minutes."""
MINUTES_LEAST, MINUTES_MAX = 1.0, 14 * 1440.0
MINUTES = 30.0
"""The time of an evolution that states neither minutes nor trials."""
LIMIT_MAX = 1000.0
CHAT_LIMIT = 5.0
GOALS = ("mean", "front")
"""The mean change of all texts; or each text for itself: then the results are those of which none is better on all."""
SAMPLERS = ("tpe", "random")
"""The tree-structured Parzen estimator of Optuna, or values at random, which is there for comparison."""
BLENDED = tuple(name for name, method in METHODS.items() if method.needs_base and "weight" in method.defaults)
"""The methods that add changes of donors to the base: with all weights 0, the base stays."""
ALONG_DEPTH = ("skeleton", "organ")
"""The types that have weights along the depth. Others have one, and in blends one together."""
NO_MODEL = ""
"""The choice of a graft that leaves the tensors of the base."""
Values = Mapping[str, float | str]
"""A choice: a value for each parameter, by its key."""


def _range(bounds: Sequence[float]) -> tuple[float, float]:
    low, high = bounds
    if not low < high:
        raise ValueError(f"the second number must be above the first: [{low:g}, {high:g}]")
    if not all(abs(bound) <= SCALE_MAX for bound in bounds):
        raise ValueError(f"numbers from -{SCALE_MAX:g} to {SCALE_MAX:g} are allowed")
    if any(abs(bound / STEP - round(bound / STEP)) > 1e-6 for bound in bounds):
        raise ValueError(f"write multiples of {STEP:g}: [{low:g}, {high:g}]")
    return low, high


Range = Annotated[
    tuple[float, float],
    Parse(
        _range,
        Annotated[tuple[float, ...], Meta(min_length=2, max_length=2)],
        "two numbers such as [0, 1.2], the smallest and the largest",
    ),
]
_TYPE = Annotated[str, line(f"one of {', '.join(GRAFTED_TYPES)}", WORD_MAX_LENGTH, choice(GRAFTED_TYPES, str.lower))]
_METHOD = Annotated[str, line(f"one of {', '.join(BLENDED)}", WORD_MAX_LENGTH, choice(BLENDED, str.lower))]
_TEXT = Annotated[str, line("a file, a folder or the name of a built-in text", MODEL_TEXT_MAX_LENGTH)]
_TEXTS = Annotated[tuple[_TEXT, ...], several(_TEXT)]
_MODELS = Annotated[tuple[str, ...], Meta(max_length=BLENDED_MAX)]
Depths = Annotated[int, Meta(ge=1, le=DEPTHS_MAX)]


class BlendSpace(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Changes of models that are added to the base: a weight for each model and type, or several along the depth."""

    models: Annotated[tuple[str, ...], several(Annotated[str, MODEL])] = ()
    """By default the donors of the space."""
    method: Annotated[tuple[str, ...], several(_METHOD)] = (BLEND_DEFAULT,)
    """Of several methods, each trial has one."""
    types: Annotated[tuple[str, ...], several(_TYPE)] = msgspec.field(default=GRAFTED_TYPES, name="type")
    depths: Depths = 3
    """The weights along the depth of attention and feed-forward, between which it is interpolated."""
    weight: Range = (0.0, 1.2)
    density: Range | None = None
    """The share of each change that stays, for methods with a density; by default all of it."""

    def faults(self) -> Iterator[Reason]:
        """Yield what is wrong with the members together."""
        if self.density is not None and not 0.0 <= self.density[0] <= self.density[1] <= 1.0:
            yield "density", "a density is from 0 to 1"
        if self.density is not None and not any("density" in METHODS[name].defaults for name in self.method):
            yield "density", f"{', '.join(self.method)} has no density"


class GraftSpace(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Tensors of whole models: for each type and band of blocks, those of the base or of one of the models."""

    models: Annotated[tuple[str, ...], several(Annotated[str, MODEL])] = ()
    types: Annotated[tuple[str, ...], several(_TYPE)] = msgspec.field(default=("organ", "skeleton"), name="type")
    depths: Depths = 3
    """The bands of blocks."""


class AdapterSpace(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An adapter with a scale in a range; at 0 it is left out."""

    adapter: Annotated[str, MODEL] = msgspec.field(name="from")
    scale: Range = (0.0, 1.5)


class SearchSpace(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A base, donors, the steps whose numbers are searched, the texts that count, and when the search ends."""

    base: Annotated[str, line("the base model", MODEL_TEXT_MAX_LENGTH)]
    donors: Annotated[
        tuple[str, ...],
        several(Annotated[str, line("a model, or a query such as kin:me/base", QUERY_MAX_LENGTH)]),
    ] = ()
    """By default, without steps, the relatives of the base."""
    name: Annotated[str, line("a name such as me/best", MODEL_TEXT_MAX_LENGTH)] | None = None
    texts: _TEXTS = ()
    """By default the built-in texts of quick looks."""
    weights: Annotated[dict[str, Annotated[float, Meta(gt=0, le=1000)]], Meta(max_length=TEXTS_MAX)] = {}
    """How much a text counts in the mean, by its name; 1 for others."""
    limits: Annotated[dict[str, Annotated[float, Meta(gt=-100, le=LIMIT_MAX)]], Meta(max_length=TEXTS_MAX)] | None = (
        None
    )
    """By how many percent the perplexity on a text may rise, by its name. A text that is only here is only a guard. By
    default a chat in the template of the base, by CHAT_LIMIT, if it has one."""
    goal: Annotated[str, line(f"one of {', '.join(GOALS)}", WORD_MAX_LENGTH, choice(GOALS, str.lower))] = GOALS[0]
    blends: Annotated[tuple[BlendSpace, ...], Meta(max_length=STEPS_MAX)] = ()
    grafts: Annotated[tuple[GraftSpace, ...], Meta(max_length=STEPS_MAX)] = ()
    adapters: Annotated[tuple[AdapterSpace, ...], Meta(max_length=STEPS_MAX)] = ()
    quantize: Annotated[tuple[TypeRule, ...], several(TypeRule)] = ()
    """The tensor types of the result, as in a recipe. The trials have those of the base."""
    minutes: Annotated[float, Meta(ge=MINUTES_LEAST, le=MINUTES_MAX)] | None = None
    trials: Annotated[int, Meta(ge=1, le=TRIALS_MAX)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    sampler: Annotated[str, line(f"one of {', '.join(SAMPLERS)}", WORD_MAX_LENGTH, choice(SAMPLERS, str.lower))] = (
        SAMPLERS[0]
    )
    accept: Annotated[tuple[str, ...], Meta(max_length=ACCEPTED_MAX)] = ()
    """Codes of warnings that are accepted, as in a recipe."""

    @property
    def allowed_seconds(self) -> float | None:
        """The time of the evolution; None if only the number of its trials is limited."""
        minutes = MINUTES if self.minutes is None and self.trials is None else self.minutes
        return None if minutes is None else 60.0 * minutes


def read_space(text: str | bytes, where: str = "space") -> SearchSpace:
    """Return the space in `text`: YAML, or JSON if it begins with `{`. Raises BadRecipe with all faults."""
    check_text(text, where)
    try:
        values = parse_yaml(text, RECIPE_LIMITS)
    except BadDocument as error:
        raise BadRecipe(where, error.reasons) from error
    return space_of_values(values, where)


def space_of_values(values: object, where: str = "space") -> SearchSpace:
    """Return the space of plain values, in which a list may be a tuple. Raises BadRecipe with all faults."""
    synonyms = {"text": "texts", "donor": "donors", "from": "models", "guards": "limits", "scale": "weight"}
    try:
        return convert(_with_lists(values), SearchSpace, synonyms=synonyms)
    except BadDocument as error:
        raise BadRecipe(where, error.reasons) from error


def _with_lists(values: object) -> object:
    """Return values with lists in the place of tuples, which Python has and documents have not."""
    if isinstance(values, dict):
        return {key: _with_lists(value) for key, value in values.items()}
    return [_with_lists(value) for value in values] if isinstance(values, list | tuple) else values


def as_space(space: SearchSpace | Mapping[str, object]) -> SearchSpace:
    """Return a space, or that of the values of a document. Raises BadRecipe with all faults."""
    return space if isinstance(space, SearchSpace) else space_of_values(space)


def space_to_json(space: SearchSpace) -> str:
    """Return the space as JSON for the catalog."""
    return msgspec.json.encode(space).decode()


def space_from_json(text: str) -> SearchSpace:
    """Return the space that was stored as `text`."""
    return msgspec.json.decode(text, type=prepared(SearchSpace))


@dataclass(frozen=True, slots=True)
class SearchParameter:
    """A value that trials choose: a number in a range, or one of several words."""

    key: str
    """Unique in its space."""
    label: str
    """For people."""
    part: str
    """The part of the result that it belongs to, for people: what one donor gives to one type of tensors."""
    group: str
    """What one donor gives to all types and depths: the first trials have one value for a group."""
    low: float = 0.0
    high: float = 0.0
    words: tuple[str, ...] = ()
    """The words to choose from; empty for a number."""
    neutral: float | str = 0.0
    """The value with which the base stays."""

    def rounded(self, value: float) -> float:
        """Return a number as a multiple of STEP within the bounds."""
        return round(min(self.high, max(self.low, STEP * round(value / STEP))), 6)


@dataclass(frozen=True)
class Choices:
    """The parameters of a space whose donors are known, for a base with some number of blocks."""

    space: SearchSpace
    """With the full names of all models in its steps."""
    blocks: int

    @property
    def models(self) -> tuple[str, ...]:
        """The donors of all steps: models, then adapters."""
        names = [name for blend in self.space.blends for name in blend.models]
        names += [name for graft in self.space.grafts for name in graft.models]
        names += [step.adapter for step in self.space.adapters]
        return tuple(dict.fromkeys(names))

    @property
    def parameters(self) -> tuple[SearchParameter, ...]:
        """All parameters, in the order of the steps."""
        return (*self._of_blends(), *self._of_grafts(), *self._of_adapters())

    def _of_blends(self) -> Iterator[SearchParameter]:
        for number, step in enumerate(self.space.blends):
            if len(step.method) > 1:
                name = f"method of blend {number + 1}" if len(self.space.blends) > 1 else "method"
                key = f"blends[{number}].method"
                yield SearchParameter(key, name, name, key, words=step.method, neutral=step.method[0])
            for model in step.models:
                for kinds in _weighed_together(step.types):
                    for depth, where in self._depths(kinds[0], step.depths):
                        part = f"{self._short(model)}, {' and '.join(map(type_name, kinds))}"
                        group = f"blends[{number}].{model}"
                        key = f"{group}.{kinds[0]}.{depth}"
                        yield SearchParameter(key, f"weight of {part}{where}", part, group, *step.weight)
                if step.density is not None:
                    part = f"{self._short(model)}, density"
                    key = f"blends[{number}].{model}.density"
                    yield SearchParameter(key, part, part, key, *step.density, neutral=1.0)

    def _of_grafts(self) -> Iterator[SearchParameter]:
        for number, step in enumerate(self.space.grafts):
            for kind in step.types:
                for depth, where in self._depths(kind, step.depths):
                    part = f"grafted {type_name(kind)}{where}"
                    key = f"grafts[{number}].{kind}.{depth}"
                    yield SearchParameter(key, part, part, key, words=(NO_MODEL, *step.models), neutral=NO_MODEL)

    def _of_adapters(self) -> Iterator[SearchParameter]:
        for number, step in enumerate(self.space.adapters):
            part = f"{self._short(step.adapter)}, adapter"
            key = f"adapters[{number}]"
            yield SearchParameter(key, f"scale of {part}", part, key, *step.scale)

    def _short(self, model: str) -> str:
        """Return the name of a model without its namespace and version, if no other model of the space has it."""
        short = [name.rpartition("/")[2].partition("@")[0] for name in self.models]
        own = model.rpartition("/")[2].partition("@")[0]
        return own if short.count(own) < 2 else model

    def _depths(self, kind: str, depths: int) -> Iterator[tuple[int, str]]:
        """Yield the places of a type along the depth, each with the end of its label; one if it is not along it."""
        count = min(depths, max(1, self.blocks)) if kind in ALONG_DEPTH else 1
        yield from ((depth, f" at {depth + 1} of {count}" if count > 1 else "") for depth in range(count))

    def recipe(self, values: Values, name: str | None = None) -> Recipe:
        """Return the recipe of a choice, with the acceptances of the space, and without its tensor types.

        Steps that leave the base as it is are left out, so that equal choices have equal recipes.
        """
        document: dict[str, Any] = {"base": self.space.base, "accept": list(self.space.accept)}
        steps = {
            "blends": [*self._blends(values)],
            "grafts": [*self._grafts(values)],
            "adapters": [
                {"from": step.adapter, "scale": values[f"adapters[{number}]"]}
                for number, step in enumerate(self.space.adapters)
                if values[f"adapters[{number}]"]
            ],
        }
        document |= {key: found for key, found in steps.items() if found}
        document |= {} if name is None else {"name": name}
        return recipe_of_values(document, "the recipe of a trial")

    def _blends(self, values: Values) -> Iterator[dict[str, Any]]:
        for number, step in enumerate(self.space.blends):
            method = str(values.get(f"blends[{number}].method", step.method[0]))
            weights: dict[str, dict[tuple[str, ...], list[float]]] = {}
            together = _weighed_together(step.types)
            for model in step.models:
                for kinds in together:
                    depths = (depth for depth, _ in self._depths(kinds[0], step.depths))
                    keys = (f"blends[{number}].{model}.{kinds[0]}.{depth}" for depth in depths)
                    weights.setdefault(model, {})[kinds] = [float(values[key]) for key in keys]
            together = [kinds for kinds in together if any(any(weights[model][kinds]) for model in step.models)]
            models = [model for model in step.models if any(any(weights[model][kinds]) for kinds in together)]
            if not models:
                continue
            donors = []
            for model in models:
                rules = [{"type": [*kinds], "value": _one_or_list(weights[model][kinds])} for kinds in together]
                donor: dict[str, Any] = {"from": model, "weight": rules}
                if step.density is not None and "density" in METHODS[method].defaults:
                    donor["density"] = values[f"blends[{number}].{model}.density"]
                donors.append(donor)
            yield {"method": method, "type": [kind for kinds in together for kind in kinds], "models": donors}

    def _grafts(self, values: Values) -> Iterator[dict[str, Any]]:
        for number, step in enumerate(self.space.grafts):
            for kind in step.types:
                bands = [*self._depths(kind, step.depths)]
                for depth, _ in bands:
                    model = values[f"grafts[{number}].{kind}.{depth}"]
                    if model == NO_MODEL:
                        continue
                    first, last = (self.blocks * at // len(bands) for at in (depth, depth + 1))
                    where = {"blocks": in_ranges(range(first, last))} if len(bands) > 1 else {}
                    yield {"from": model, "type": kind, **where}

    @property
    def neutral(self) -> dict[str, float | str]:
        """The choice of the base itself, or the nearest one if a range is without 0."""
        return {
            one.key: one.neutral if isinstance(one.neutral, str) else one.rounded(one.neutral)
            for one in self.parameters
        }

    def starts(self) -> dict[str, dict[str, float | str]]:
        """Return the choices to begin with, by what they are for people: each donor alone, and the mean of all."""
        found = {f"{self._short(model)} alone": self._with_weights({model: 1.0}) for model in self.models}
        if len(self.models) > 1:
            found["mean of all"] = self._with_weights(dict.fromkeys(self.models, 1.0 / len(self.models)))
        starts, neutral = dict[str, dict[str, float | str]](), self.neutral
        for label, values in found.items():
            if values not in (neutral, *starts.values()):
                starts[label] = values
        return starts

    def _with_weights(self, weights: Mapping[str, float]) -> dict[str, float | str]:
        """Return the choice in which models have these weights; whole models are grafted where no blend has them."""
        values = self.neutral
        for one in self.parameters:
            model = self._model_of(one.key)
            if one.words and set(one.words) & set(weights):
                values[one.key] = max((word for word in one.words if word in weights), key=lambda word: weights[word])
            elif model is not None and model in weights and not one.words and not one.key.endswith(".density"):
                values[one.key] = one.rounded(weights[model])
        return values

    def _model_of(self, key: str) -> str | None:
        """Return the model to which a number belongs."""
        for number, step in enumerate(self.space.blends):
            for model in step.models:
                if key.startswith(f"blends[{number}].{model}."):
                    return model
        for number, adapter in enumerate(self.space.adapters):
            if key == f"adapters[{number}]":
                return adapter.adapter
        return None

    def without(self, values: Values) -> dict[str, dict[str, float | str]]:
        """Return, for each part of a choice that changes the base, the choice without it; the largest weights first."""
        parts = dict[str, dict[str, float | str]]()
        for one in self.parameters:
            if not one.key.endswith((".method", ".density")) and values[one.key] != one.neutral:
                parts.setdefault(one.part, {})[one.key] = one.neutral
        size = {part: max(_size(values[key]) for key in omitted) for part, omitted in parts.items()}
        return {part: {**values, **parts[part]} for part in sorted(parts, key=lambda part: -size[part])}


def _size(value: float | str) -> float:
    return 1.0 if isinstance(value, str) else abs(value)


def _weighed_together(types: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the types that have a weight of their own, and those that have one together."""
    others = tuple(kind for kind in types if kind not in ALONG_DEPTH)
    return [*((kind,) for kind in types if kind in ALONG_DEPTH), *([others] if others else [])]


def _one_or_list(numbers: Sequence[float]) -> float | list[float]:
    return numbers[0] if len(set(numbers)) == 1 else list(numbers)


def space_yaml(space: SearchSpace) -> str:
    """Return the space as YAML, as a file of a user has it."""
    return document_yaml(json.loads(space_to_json(space)))
