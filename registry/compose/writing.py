"""A `Recipe` as text: YAML for people, JSON for programs. Either reads back to the same recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

import yaml

from organs.registry.compose.document import NUMBER_PATTERN
from organs.registry.compose.recipe import (
    ENCODINGS,
    AdapterMerge,
    BlockRange,
    Graft,
    MetadataChange,
    Purification,
    Recipe,
    Selection,
)

YAML_WIDTH = 120

_OTHER_BREAK = re.compile("[\r\x85\u2028\u2029]")

Value = str | int | float | bool | Sequence["Value"] | Mapping[str, "Value"]


def recipe_values(recipe: Recipe) -> dict[str, Value]:
    """The recipe as a document holds it: in one order, what is the default left out."""
    values: dict[str, Value] = {"base": recipe.base}
    if recipe.name is not None:
        values["name"] = recipe.name
    if recipe.grafts:
        values["grafts"] = [_graft(graft) for graft in recipe.grafts]
    if recipe.adapters:
        values["adapters"] = [_adapter(adapter) for adapter in recipe.adapters]
    if recipe.purify:
        values["purify"] = _one_or_list([_purification(step) for step in recipe.purify])
    if recipe.encode != ENCODINGS[0]:
        values["encode"] = recipe.encode
    if recipe.accept:
        values["accept"] = list(recipe.accept)
    if recipe.metadata:
        values["metadata"] = {change.key: _plain(change) for change in recipe.metadata}
    return values


def recipe_json(recipe: Recipe) -> str:
    """The recipe as JSON, indented, with a line's end behind it."""
    return json.dumps(recipe_values(recipe), ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def recipe_yaml(recipe: Recipe) -> str:
    """The recipe as YAML: one line for each value, texts that could be misread in quotation marks."""
    return yaml.dump(
        recipe_values(recipe),
        Dumper=_Dumper,
        width=YAML_WIDTH,
        allow_unicode=True,
        sort_keys=False,
        default_flow_style=False,
    )


class _Dumper(yaml.SafeDumper):
    """Writes lists of plain values on one line and indents the others; quotes what any YAML would misread."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        # The same text twice is written twice: anchors are not read.
        return True

    def represent_list(self, data: Iterable[object]) -> yaml.SequenceNode:
        flow = all(isinstance(item, str | int | float) for item in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # In any other style the dumper writes these as breaks of lines, and a reader makes another break of them.
        style = '"' if _OTHER_BREAK.search(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, _Dumper.represent_list)
# `1e5` is text for the YAML of 2005, which the dumper follows, and a number for everyone since.
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"{NUMBER_PATTERN.pattern}\Z"), list("-0123456789")
)


def _graft(graft: Graft) -> dict[str, Value]:
    values: dict[str, Value] = {}
    if graft.donor is not None:
        values["from"] = graft.donor
    if graft.where is not None:
        values["where"] = graft.where
    if graft.sort:
        values["sort"] = graft.sort
    return values | _selection(graft.selection)


def _adapter(merge: AdapterMerge) -> dict[str, Value]:
    values: dict[str, Value] = {"from": merge.adapter}
    return values if merge.scale == 1 else {**values, "scale": merge.scale}


def _purification(step: Purification) -> dict[str, Value]:
    values: dict[str, Value] = {"method": step.method.value}
    if step.where:
        values["where"] = step.where
    values |= _selection(step.selection)
    return values if step.keep is None else {**values, "keep": step.keep}


def _selection(selection: Selection) -> dict[str, Value]:
    values: dict[str, Value] = {}
    if selection.types:
        values["type"] = _one_or_list(selection.types)
    if selection.slots:
        values["slot"] = _one_or_list(selection.slots)
    if selection.blocks:
        values["blocks"] = _one_or_list([_blocks(block) for block in selection.blocks])
    return values


def _blocks(block: BlockRange) -> Value:
    first, last = block
    return first if first == last else f"{first}-{last}"


def _plain(change: MetadataChange) -> Value:
    return list(change.value) if isinstance(change.value, tuple) else change.value


def _one_or_list(values: Sequence[Value]) -> Value:
    return values[0] if len(values) == 1 else list(values)
