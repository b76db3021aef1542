"""Configurations of mergekit as recipes: the same models, methods and parameters, by the names of this registry.

A file may have several documents; each is a recipe, and later ones may name earlier ones. What cannot be done here is
refused by name, with what would help.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

from organs.registry.anatomy import BLOCK_DIGITS_MAX, LLAMA_BIASES, LLAMA_NAMES
from organs.registry.compose.layers import BLOCKS_MAX
from organs.registry.compose.recipe import RECIPE_LIMITS, TEMPLATE_KEY, Recipe, check_text, recipe_of_values
from organs.registry.compose.selection import in_ranges, range_text
from organs.registry.documents import (
    BadDocument,
    PlainScalar,
    Reason,
    joined,
    parse_yaml_documents,
    quoted,
    unknown_keys,
)
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
PASSTHROUGH, SCALE = "passthrough", "scale"
"""The method that takes the blocks as they are, and its parameter, a factor of their values."""
OUTPUT_SLOTS = ("output_norm", "output")
"""The tensors after the blocks, which come from the last slice; all others outside of blocks come from the first."""

_BLOCK = "model.layers.{}."
_NAMES = {slot: f"{name}.weight" for slot, name in LLAMA_NAMES.items()} | {
    f"{slot}.bias": f"{LLAMA_NAMES[slot]}.bias" for slot in LLAMA_BIASES
}
"""The names of tensors in Hugging Face's models, by slot; the first {} is the block, a second one the expert."""


def read_recipes(
    text: str | bytes,
    where: str,
    block_count: Callable[[str], int],
    with_files: Callable[[object], object] = lambda values: values,
) -> list[Recipe]:
    """Return the recipes in `text`: one in our grammar, or the documents of a mergekit configuration, in order.

    `block_count` returns the number of blocks of a model, `with_files` the values of a recipe with what its files say.
    Raises BadRecipe with all errors.
    """
    check_text(text, where)
    try:
        documents = parse_yaml_documents(text, RECIPE_LIMITS)
    except BadDocument as error:
        raise BadRecipe(where, error.reasons) from error
    if not any(isinstance(document, dict) and METHOD_KEY in document for document in documents):
        if len(documents) > 1:
            raise BadRecipe(where, [("", "only configurations of mergekit have several documents")])
        try:
            values = with_files(documents[0])
        except BadDocument as error:
            raise BadRecipe(where, error.reasons) from error
        return [recipe_of_values(values, where)]
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
        counts[str(values.get("name"))] = configuration.count
    return recipes


_Value = float | list[float]
"""A number, true or false; or a gradient."""
_Parameters = Mapping[str, list[tuple[str, _Value]]]
"""The values of each parameter, with the text in the names of the tensors that each is for. The first that fits counts;
an empty text is in all names."""


@dataclass(slots=True)
class _Source:
    """A model of a configuration, with its parameters and those that it inherits."""

    model: str
    adapter: str | None
    parameters: _Parameters


_Slice = tuple[int, int | None, list[_Source]]
"""The first block, the one after the last (None for all), and the sources."""


@dataclass(slots=True)
class _Configuration:
    """One document. Faults are collected in `reasons`."""

    document: Any
    block_count: Callable[[str], int]
    reasons: list[Reason] = field(default_factory=list)
    count: int = 0
    """The blocks of the result."""

    def recipe(self) -> dict[str, Any]:
        """Return the values of a recipe; they have no meaning if there are reasons."""
        document = self.document
        if not isinstance(document, dict):
            self._fault("", "each document is an object")
            return {}
        self.reasons += unknown_keys(document, KEYS)
        document = {key: value for key, value in document.items() if value is not None}
        method = str(document.get(METHOD_KEY, ""))
        if method != PASSTHROUGH and method not in METHODS:
            self._fault(METHOD_KEY, f"{quoted(method)} is not one of {', '.join((*METHODS, PASSTHROUGH))}")
        self._check_tokenizer(document)
        slices = self._slices(document)
        if self.reasons:
            return {}
        base = self._base(document, method, slices)
        values: dict[str, Any] = {} if self.reasons else self._steps(base, method, slices)
        if self.reasons:
            return {}
        dtype = document.get("out_dtype", document.get("dtype"))
        if dtype is not None and str(dtype) not in DTYPES:
            self._fault("dtype", f"{quoted(str(dtype))} is not one of {', '.join(DTYPES)}")
        values |= {"encode": DTYPES.get(str(dtype))} if dtype is not None else {}
        values |= {"name": document["name"]} if "name" in document else {}
        template = document.get("chat_template")
        values |= {"metadata": {TEMPLATE_KEY: template}} if _is_template(template) else {}
        return values

    def _steps(self, base: str, method: str, slices: Sequence[_Slice]) -> dict[str, Any]:
        """Return the base, the layers, the grafts and the blends of a recipe."""
        runs, blends = [], []
        spans = [(first, self.block_count(base) if end is None else end, models) for first, end, models in slices]
        for number, (_, end, models) in enumerate(spans):
            giver = models[0].model if method == PASSTHROUGH else base
            if end > (has := self.block_count(giver)):
                self._fault(f"slices[{number}]", f"{giver} has the blocks 0 to {has - 1}")
        count = self.count = sum(end - first for first, end, _ in spans)
        if count > BLOCKS_MAX and not self.reasons:
            self._fault("slices", f"a result has at most {BLOCKS_MAX:,} blocks")
        if self.reasons:
            return {}
        position = 0
        for number, (first, end, models) in enumerate(spans):
            giver = models[0].model if method == PASSTHROUGH else base
            runs.append({"blocks": range_text((first, end - 1))} | ({} if giver == base else {"from": giver}))
            blocks = (position, position + end - first)
            position = blocks[1]
            is_whole = len(spans) == 1
            selections: list[dict[str, Any]] = [{}]
            if not is_whole and number == 0:
                outside = [slot for slot, name in LLAMA_NAMES.items() if "{}" not in name and slot not in OUTPUT_SLOTS]
                selections.append({"slot": outside, "blocks": None})
            if not is_whole and number + 1 == len(spans):
                selections.append({"slot": list(OUTPUT_SLOTS), "blocks": None})
            blend = self._blend(method, base, models, None if is_whole else blocks, count)
            blends += [blend | selection for selection in selections if blend]
        is_same = [span[:2] for span in spans] == list(pairwise([0, *(end for _, end, _ in spans)]))
        is_same = is_same and count == self.block_count(base) and all("from" not in run for run in runs)
        last = spans[-1][2][0].model
        values: dict[str, Any] = {"base": base}
        values |= {} if is_same else {"layers": runs}
        if method == PASSTHROUGH and last != base:
            values |= {"grafts": [{"from": last, "slot": list(OUTPUT_SLOTS)}]}
        return values | ({"blends": [_without_none(blend) for blend in blends]} if blends else {})

    def _fault(self, path: str, sentence: str) -> None:
        self.reasons.append((path, sentence))

    def _base(self, document: Mapping[str, Any], method: str, slices: Sequence[_Slice]) -> str:
        """Return the base; for a method that computes without one, the first model may be it."""
        first = slices[0][2][0].model
        base = document.get("base_model")
        if base is None:
            needs_base = method != PASSTHROUGH and METHODS[method].needs_base
            if needs_base:
                self._fault("base_model", f"{method} needs a base: write base_model: MODEL")
            elif needs_base is None:
                instead = f"merge_method: slerp, base_model: {quoted(first)}, and the second model's share as t"
                self._fault("base_model", f"{method} is not possible without a base: add one, or write {instead}")
            return first
        if not isinstance(base, str) or not base:
            self._fault("base_model", "it is the name of a model")
        elif "+" in base:
            sentence = "a base has no adapter: add it in a recipe with adapters, and name the model that this makes"
            self._fault("base_model", f"{quoted(base)}: {sentence}")
        return str(base)

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
        template = document.get("chat_template")
        if template not in (None, "base", "auto") and not _is_template(template):
            self._fault("chat_template", f"{quoted(str(template))} is only a name: write the text of the template")

    def _slices(self, document: Mapping[str, Any]) -> list[_Slice]:
        """Return the slices; models without slices are one slice."""
        shared = self._parameters(document.get("parameters"), "parameters", {})
        if ("models" in document) == ("slices" in document):
            self._fault("", "it has either models or slices")
            return []
        if "models" in document:
            if document.get(METHOD_KEY) == PASSTHROUGH and len(document["models"] or ()) != 1:
                self._fault("models", "a passthrough without slices has one model")
            return [(0, None, list(self._sources(document["models"], "models", shared)))]
        found: list[_Slice] = []
        slices = document["slices"]
        if not isinstance(slices, list) or not slices:
            self._fault("slices", "it is a list of slices")
            return []
        for number, item in enumerate(slices):
            at = f"slices[{number}]"
            if not isinstance(item, dict) or not isinstance(item.get("sources"), list) or not item["sources"]:
                self._fault(at, "a slice has sources")
                continue
            self.reasons += unknown_keys(item, ("sources", "parameters"), at)
            own = self._parameters(item.get("parameters"), f"{at}.parameters", shared)
            if document.get(METHOD_KEY) == PASSTHROUGH and len(item["sources"]) > 1:
                self._fault(at, "a slice of a passthrough has one source")
            ranges = [source.get("layer_range") if isinstance(source, dict) else None for source in item["sources"]]
            if any(one != ranges[0] for one in ranges):
                self._fault(
                    at, "its sources have different ranges of blocks: make a model of layers from one of them first"
                )
            elif (bounds := _bounds(ranges[0])) is None:
                self._fault(f"{at}.sources[0].layer_range", "write it as [first, after the last]")
            else:
                found.append((*bounds, list(self._sources(item["sources"], f"{at}.sources", own))))
        return found

    def _sources(self, models: object, at: str, shared: _Parameters) -> Iterator[_Source]:
        if not isinstance(models, list) or not models:
            self._fault(at, "it is a list of models")
            return
        for number, item in enumerate(models):
            place = f"{at}[{number}]"
            name = item.get("model") if isinstance(item, dict) else None
            model, _, adapter = name.partition("+") if isinstance(name, str) else ("", "", "")
            if not model:
                self._fault(joined(place, "model"), "the name of a model is missing")
                continue
            self.reasons += unknown_keys(item, ("model", "parameters", "layer_range"), place)
            parameters = self._parameters(item.get("parameters"), joined(place, "parameters"), shared)
            yield _Source(model, adapter or None, parameters)

    def _parameters(self, parameters: object, at: str, inherited: _Parameters) -> _Parameters:
        """Return parameters; inherited values are for the tensors that the own ones leave out."""
        if parameters is None:
            return inherited
        if not isinstance(parameters, dict):
            self._fault(at, "it is an object")
            return inherited
        known = {name: value for name, value in parameters.items() if name not in WITHOUT_EFFECT}
        self.reasons += unknown_keys((name for name in known if name != "scale"), tuple(PARAMETERS), at)
        own = {name: list(self._values(value, joined(at, name))) for name, value in known.items()}
        return {**inherited, **{name: [*values, *inherited.get(name, [])] for name, values in own.items()}}

    def _values(self, setting: object, at: str) -> Iterator[tuple[str, _Value]]:
        """Yield the values of a parameter, as in `_Parameters`."""
        rules = setting if isinstance(setting, list) and any(isinstance(item, dict) for item in setting) else None
        for number, item in enumerate([{"value": setting}] if rules is None else rules):
            place = at if rules is None else f"{at}[{number}]"
            if not isinstance(item, dict):
                self._fault(place, "a list has numbers, or objects with filter and value")
                continue
            self.reasons += unknown_keys(item, ("filter", "value"), place)
            text, value = item.get("filter"), _value(item.get("value"))
            if text is not None and not isinstance(text, str):
                self._fault(joined(place, "filter"), "it is a part of the names of tensors")
            elif text is not None and _is_of_experts(text):
                several = "it is a part of the names of single experts, which have one value together"
                self._fault(joined(place, "filter"), f"{several}: write more of the name, such as layers.3. or experts")
            elif value is None:
                self._fault(place if rules is None else joined(place, "value"), "it is a number, or a list of numbers")
            else:
                yield "" if text in (None, "*") else text, value

    def _blend(
        self, method: str, base: str, sources: Sequence[_Source], blocks: tuple[int, int] | None, count: int
    ) -> dict[str, Any]:
        """Return a blend of `blocks` of the result, the first and the one after the last; None for all tensors.

        Gradients go along these blocks. It is empty for a passthrough that changes nothing.
        """
        if method == PASSTHROUGH:
            (source,) = sources
            if source.adapter is None and SCALE not in source.parameters:
                return {}
            parameters = {"weight": source.parameters.get(SCALE, [("", 1.0)])}
            sources = [_Source(source.model, source.adapter, parameters)]
            method, shared = "linear", {"normalize": False}
        else:
            shared = {}
        one = METHODS[method]
        donors = [item for item in sources if one.needs_base is False or item.adapter or item.model != base]
        models = []
        for donor in donors:
            settings = {
                name: _setting(values, one.defaults[name], blocks, count)
                for name, values in donor.parameters.items()
                if name in one.defaults
            }
            shared |= {name: value for name, value in settings.items() if not PARAMETERS[name].is_each}
            own = {name: value for name, value in settings.items() if PARAMETERS[name].is_each}
            models.append({"from": donor.model, "adapter": donor.adapter, "parameters": own or None})
        ranged = None if blocks is None else f"{blocks[0]}-{blocks[1] - 1}"
        return {"method": method, "models": models, "parameters": shared or None, "blocks": ranged}


def _is_template(template: object) -> bool:
    """Return whether a value is the text of a chat template, and not the name of one."""
    return isinstance(template, str) and ("{{" in template or "{%" in template)


def _bounds(values: object) -> tuple[int, int] | None:
    """Return the two numbers of a `layer_range`; None if it is none."""
    digits = rf"[0-9]{{1,{BLOCK_DIGITS_MAX}}}"
    if not isinstance(values, list) or len(values) != 2 or not all(re.fullmatch(digits, str(item)) for item in values):
        return None
    first, end = (int(str(number)) for number in values)
    return (first, end) if first < end else None


def _value(written: object) -> _Value | None:
    """Return the value of a parameter; None if it is none."""
    if isinstance(meaning := written.value if isinstance(written, PlainScalar) else written, bool):
        return meaning
    numbers = [_number(item) for item in written] if isinstance(written, list) else [_number(written)]
    finite = [number for number in numbers if number is not None]
    if not finite or len(finite) < len(numbers):
        return None
    return finite if isinstance(written, list) else finite[0]


def _number(written: object) -> float | None:
    """Return a finite number; None for all else."""
    try:
        number = float(str(written))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _setting(
    values: Sequence[tuple[str, _Value]], default: float | None, blocks: tuple[int, int] | None, count: int
) -> Any:
    """Return the values of a parameter in our grammar: one, or rules; None if no tensor has one."""
    rules: list[dict[str, Any]] = []
    for text, value in [*values, *([] if default is None else [("", default)])]:
        along = list(_along(value, blocks, count)) if isinstance(value, list) and blocks is not None else value
        if not text:
            return [*rules, {"value": along}] if rules else along
        rules += [{**selection, "value": along} for selection in _selections(text, count)]
    return rules or None


def _along(numbers: Sequence[float], blocks: tuple[int, int], count: int) -> Iterator[float]:
    """Yield the value of a gradient over a slice for each block of the model; before and after it, those of its ends.

    In a slice of one block, it is the last number.
    """
    first, end = blocks
    steps = end - 1 - first
    for block in range(count):
        share = min(max(block - first, 0) / steps, 1.0) if steps else 1.0
        position = share * (len(numbers) - 1)
        before = min(int(position), len(numbers) - 1)
        after = min(before + 1, len(numbers) - 1)
        yield numbers[before] + (numbers[after] - numbers[before]) * (position - before)


def _selections(text: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield selections which together are the tensors whose name contains `text`, in a model of `count` blocks."""
    whole = [block for block in range(count) if text in _BLOCK.format(block)]
    if whole:
        yield {"blocks": in_ranges(whole)}
    rest = [block for block in range(count) if block not in whole]
    slots: dict[tuple[int, ...], list[str]] = {}
    for slot, name in _NAMES.items():
        if "{}" in name:
            blocks = tuple(block for block in rest if text in name.replace("{}", str(block), 1))
            if blocks:
                slots.setdefault(() if len(blocks) == count else blocks, []).append(slot)
        elif text in name:
            slots.setdefault((), []).append(slot)
    for numbers, selected in slots.items():
        yield {"slot": selected} | ({"blocks": in_ranges(numbers)} if numbers else {})


def _is_of_experts(text: str) -> bool:
    """Return whether the names of some experts of a stack contain `text`, and those of others do not."""
    numbers = re.findall("[0-9]+", text)[:2]  # no name has more
    stacks = [name for name in _NAMES.values() if name.count("{}") > 1]
    return any(
        text in name.format(block, expert) and text not in name.format(block, "{}")
        for name, block, expert in product(stacks, [*numbers, ""], numbers)
    )


def _without_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _without_none(value) for key, value in values.items() if value is not None}
    return [_without_none(value) for value in values] if isinstance(values, list) else values
