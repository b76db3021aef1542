"""Configurations of mergekit as recipes: the same models, methods and parameters, by the names of this registry.

A file may have several documents; each is a recipe, and later ones may name earlier ones. What cannot be done here is
refused by name, with what would help.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from organs.registry.anatomy import LLAMA_BIASES, LLAMA_NAMES
from organs.registry.compose.recipe import RECIPE_LIMITS, Recipe, recipe_of_values
from organs.registry.documents import BadDocument, Reason, joined, parse_yaml_documents, quoted, unknown_keys
from organs.registry.errors import BadRecipe
from organs.registry.transform.blend import METHODS, PARAMETERS

METHOD_KEY = "merge_method"
KEYS = (
    *("name", "models", "slices", METHOD_KEY, "base_model", "parameters", "dtype", "out_dtype"),
    *("tokenizer_source", "tokenizer", "chat_template"),
)
DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
WITHOUT_EFFECT = ("int8_mask",)
"""Parameters about memory only."""
NEEDS_LAYERS = "it changes the number or the order of the blocks, which recipes cannot do yet"

_BLOCK_FILTER = re.compile(r"(?:model\.)?layers\.(\d{1,5})\.?(.*)")


def read_recipes(text: str | bytes, where: str, block_count: Callable[[str], int]) -> list[Recipe]:
    """Return the recipes in `text`: one in our grammar, or the documents of a mergekit configuration, in order.

    `block_count` returns the number of blocks of a model. Raises BadRecipe with all errors.
    """
    try:
        documents = parse_yaml_documents(text, RECIPE_LIMITS)
    except BadDocument as error:
        raise BadRecipe(where, error.reasons) from error
    if not any(isinstance(document, dict) and METHOD_KEY in document for document in documents):
        if len(documents) > 1:
            raise BadRecipe(where, [("", "only configurations of mergekit have several documents")])
        return [recipe_of_values(documents[0], where)]
    recipes: list[Recipe] = []
    counts: dict[str, int] = {}

    def count_of(model: str) -> int:
        if model not in counts:
            counts[model] = block_count(model)
        return counts[model]

    for number, document in enumerate(documents):
        at = where if len(documents) == 1 else f"{where}, document {number + 1}"
        configuration = _Configuration(document, count_of)
        values = configuration.recipe()
        if configuration.reasons:
            raise BadRecipe(at, configuration.reasons)
        if number + 1 < len(documents) and "name" not in values:
            raise BadRecipe(at, [("name", "a document before the last one needs a name")])
        recipes.append(recipe_of_values(values, at))
        counts[str(values.get("name"))] = count_of(values["base"])
    return recipes


@dataclass(slots=True)
class _Source:
    """A model of a configuration, with its parameters."""

    model: str
    adapter: str | None
    parameters: Mapping[str, Any]


_Slice = tuple[int, int | None, list[_Source]]
"""The first block, the one after the last (None for all), and the sources."""


@dataclass(slots=True)
class _Configuration:
    """One document. Faults are collected in `reasons`."""

    document: Any
    block_count: Callable[[str], int]
    reasons: list[Reason] = field(default_factory=list)

    def recipe(self) -> dict[str, Any]:
        """Return the values of a recipe; they have no meaning if there are reasons."""
        document = self.document
        if not isinstance(document, dict):
            self._fault("", "each document is an object")
            return {}
        self.reasons += unknown_keys(document, KEYS)
        method = str(document.get(METHOD_KEY, ""))
        if method == "passthrough":
            self._fault(METHOD_KEY, f"passthrough: {NEEDS_LAYERS}")
        elif method not in METHODS:
            self._fault(METHOD_KEY, f"{quoted(method)} is not one of {', '.join(METHODS)}")
        self._check_tokenizer(document)
        slices = self._slices(document)
        if self.reasons:
            return {}
        sources = [source for _, _, models in slices for source in models]
        base = str(document["base_model"]) if "base_model" in document else sources[0].model
        count = self._count(base, slices)
        if self.reasons:
            return {}
        blends: list[dict[str, Any]] = []
        for first, last, models in slices:
            is_whole = len(slices) == 1
            blends.append(self._blend(method, base, models, first, last, count, is_whole=is_whole))
            if not is_whole and first == 0:  # the tensors outside the blocks are those of the first slice
                outside = [slot for slot, name in LLAMA_NAMES.items() if "{}" not in name]
                blends.append(
                    self._blend(method, base, models, 0, 0, count, is_whole=True) | {"slot": outside, "blocks": None}
                )
        values: dict[str, Any] = {"base": base, "blends": [_without_none(blend) for blend in blends]}
        dtype = document.get("out_dtype", document.get("dtype"))
        if dtype is not None and str(dtype) not in DTYPES:
            self._fault("dtype", f"{quoted(str(dtype))} is not one of {', '.join(DTYPES)}")
        values |= {"encode": DTYPES.get(str(dtype))} if dtype is not None else {}
        values |= {"name": document["name"]} if "name" in document else {}
        return values

    def _fault(self, path: str, sentence: str) -> None:
        self.reasons.append((path, sentence))

    def _check_tokenizer(self, document: Mapping[str, Any]) -> None:
        tokenizer = document.get("tokenizer")
        source = tokenizer.get("source", "base") if isinstance(tokenizer, dict) else document.get("tokenizer_source")
        if source not in (None, "base", document.get("base_model")):
            sentence = (
                f"{quoted(str(source))}: tokenizers are not merged; the base's is kept: write tokenizer_source: base"
            )
            self._fault("tokenizer", sentence)
        elif isinstance(tokenizer, dict) and set(tokenizer) - {"source"}:
            self._fault("tokenizer", "tokens are not changed: the tokenizer is that of the base")
        if document.get("chat_template") not in (None, "base", "auto"):
            self._fault("chat_template", "the chat template is that of the base; it cannot be set yet")

    def _slices(self, document: Mapping[str, Any]) -> list[_Slice]:
        """Return the slices; models without slices are one slice."""
        shared = self._parameters(document.get("parameters"), "parameters")
        if ("models" in document) == ("slices" in document):
            self._fault("", "it has either models or slices")
            return []
        if "models" in document:
            return [(0, None, list(self._sources(document["models"], "models", shared)))]
        found: list[_Slice] = []
        slices = document["slices"]
        for number, item in enumerate(slices if isinstance(slices, list) else []):
            at = f"slices[{number}]"
            if not isinstance(item, dict) or not isinstance(item.get("sources"), list) or not item["sources"]:
                self._fault(at, "a slice has sources")
                continue
            own = {**shared, **self._parameters(item.get("parameters"), f"{at}.parameters")}
            ranges = [source.get("layer_range") if isinstance(source, dict) else None for source in item["sources"]]
            if any(one != ranges[0] for one in ranges):
                self._fault(at, f"its sources have different ranges of blocks: {NEEDS_LAYERS}")
            elif (bounds := _bounds(ranges[0])) is None:
                self._fault(f"{at}.sources[0].layer_range", "write it as [first, after the last]")
            else:
                found.append((*bounds, list(self._sources(item["sources"], f"{at}.sources", own))))
        return found

    def _sources(self, models: object, at: str, shared: Mapping[str, Any]) -> Iterator[_Source]:
        if not isinstance(models, list) or not models:
            self._fault(at, "it is a list of models")
            return
        for number, item in enumerate(models):
            place = f"{at}[{number}]"
            if not isinstance(item, dict) or not isinstance(item.get("model"), str):
                self._fault(joined(place, "model"), "the name of a model is missing")
                continue
            self.reasons += unknown_keys(item, ("model", "parameters", "layer_range"), place)
            model, _, adapter = item["model"].partition("+")
            parameters = self._parameters(item.get("parameters"), joined(place, "parameters"))
            yield _Source(model, adapter or None, {**shared, **parameters})

    def _parameters(self, parameters: object, at: str) -> dict[str, Any]:
        if parameters is None:
            return {}
        if not isinstance(parameters, dict):
            self._fault(at, "it is an object")
            return {}
        known = {name: value for name, value in parameters.items() if name not in WITHOUT_EFFECT}
        self.reasons += unknown_keys((name for name in known if name != "scale"), tuple(PARAMETERS), at)
        return known

    def _count(self, base: str, slices: Sequence[_Slice]) -> int:
        """Return the number of blocks of the base; slices must have all of them, in order."""
        count = self.block_count(base)
        ends = [(first, count if end is None else end) for first, end, _ in slices]
        has_gap = any(one[1] != other[0] for one, other in pairwise(ends))
        if has_gap or ends[0][0] != 0 or ends[-1][1] != count:
            self._fault("slices", f"{base} has the blocks 0 to {count - 1}, and the slices others: {NEEDS_LAYERS}")
        return count

    def _blend(
        self,
        method: str,
        base: str,
        sources: Sequence[_Source],
        first: int,
        end: int | None,
        count: int,
        *,
        is_whole: bool,
    ) -> dict[str, Any]:
        """Return a blend of the blocks from `first` to before `end`, with gradients along them."""
        one = METHODS[method]
        donors = [item for item in sources if one.needs_base is False or item.adapter or item.model != base]
        blocks = None if is_whole else (first, end or count)
        models = []
        shared: dict[str, Any] = {}
        for donor in donors:
            settings = {
                name: self._setting(value, blocks, count)
                for name, value in donor.parameters.items()
                if name in one.defaults
            }
            shared |= {name: value for name, value in settings.items() if not PARAMETERS[name].is_each}
            own = {name: value for name, value in settings.items() if PARAMETERS[name].is_each}
            models.append({"from": donor.model, "adapter": donor.adapter, "parameters": own or None})
        ranged = None if blocks is None else f"{blocks[0]}-{blocks[1] - 1}"
        return {"method": method, "models": models, "parameters": shared or None, "blocks": ranged}

    def _setting(self, value: Any, blocks: tuple[int, int] | None, count: int) -> Any:
        """Return the value of a parameter in our grammar: filters become slots, gradients of slices become rules."""
        if not isinstance(value, list):
            return value
        if not any(isinstance(item, dict) for item in value):
            return value if blocks is None else list(_along(value, blocks))
        rules: list[dict[str, Any]] = []
        for item in value:
            if not isinstance(item, dict):
                self._fault("parameters", "a list has numbers, or objects with filter and value")
                continue
            selected = _selected(str(item["filter"])) if item.get("filter") is not None else {}
            if selected is None:
                continue  # no tensor has such a name
            inner = self._setting(item.get("value"), blocks, count)
            is_rules = isinstance(inner, list) and any(isinstance(rule, dict) for rule in inner)
            many = inner if is_rules else [{"value": inner}]
            rules += [{**selected, **rule} for rule in many]
        return rules


def _bounds(values: object) -> tuple[int, int] | None:
    """Return the two numbers of a `layer_range`; None if it is none."""
    if not isinstance(values, list) or len(values) != 2 or not all(str(number).isdecimal() for number in values):
        return None
    first, end = (int(str(number)) for number in values)
    return (first, end) if first < end else None


def _along(numbers: Sequence[Any], blocks: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Yield the rules of a gradient over a slice."""
    values = [float(str(number)) for number in numbers]
    first, end = blocks
    for block in range(first, end):
        position = (block - first) / max(1, end - 1 - first) * (len(values) - 1)
        before = min(int(position), len(values) - 1)
        after = min(before + 1, len(values) - 1)
        yield {"blocks": block, "value": values[before] + (values[after] - values[before]) * (position - before)}
    yield {"value": values[0]}


def _selected(text: str) -> dict[str, Any] | None:
    """Return the selection of the tensors whose name contains `text`; None if there are none."""
    match = _BLOCK_FILTER.fullmatch(text)
    blocks = {} if match is None else {"blocks": match[1]}
    rest = text if match is None else match[2]
    slots = []
    for slot, name in LLAMA_NAMES.items():
        if match is not None and "{}" not in name:
            continue
        if rest in f"{name}.weight":
            slots.append(slot)
        if slot in LLAMA_BIASES and rest in f"{name}.bias":
            slots.append(f"{slot}.bias")
    return {"slot": slots, **blocks} if slots else None


def _without_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _without_none(value) for key, value in values.items() if value is not None}
    return [_without_none(value) for value in values] if isinstance(values, list) else values
