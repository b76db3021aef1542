"""Read and write recipes as text: YAML, or JSON if the text begins with `{`.

Reading reports all errors together, each with its field. The text that is written can be read as the same recipe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import yaml

from organs.registry.compose.recipe import ENCODINGS, BlockRange, Recipe, Selection
from organs.registry.documents import NUMBER_PATTERN, BadDocument, Limits, convert, parse_yaml
from organs.registry.entities.base import prepared
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.plan import RecipeFile
from organs.registry.errors import BadRecipe

RECIPE_LIMITS = Limits(size_bytes=256 * 1024, depth=16, values=20_000)

_SYNONYMS = {
    "title": "name",
    "base_model": "base",
    "accepted": "accept",
    "donors": "grafts",
    "tensor": "slot",
    "order": "sort",
    "unrelated": "strangers",
    "purification": "purify",
    **dict.fromkeys(("lora", "loras"), "adapters"),
    **dict.fromkeys(("dtype", "encoding"), "encode"),
    **dict.fromkeys(("donor", "model"), "from"),
    **dict.fromkeys(("query", "search"), "where"),
    **dict.fromkeys(("layer", "layers"), "blocks"),
    "expert": "experts",
    **dict.fromkeys(("weight", "strength", "alpha"), "scale"),
}
"""Other words for keys. Misspelt keys are recognised without this table."""
_SELECTION_KEYS = Selection.__struct_encode_fields__


def read_recipe(text: str | bytes, where: str = "recipe") -> Recipe:
    """Return the recipe in `text`: YAML, or JSON if it begins with `{`. `where` names the recipe in errors.

    Raises BadRecipe with all errors. Only the text is checked: models and compatibility are checked by a plan.
    """
    if isinstance(text, bytes) and text.startswith(b"GGUF"):
        raise BadRecipe(where, [("", "this is a GGUF file, not a recipe")])
    try:
        values = parse_yaml(text, RECIPE_LIMITS)
    except BadDocument as error:
        raise BadRecipe(where, error.reasons) from error
    return recipe_of_values(values, where)


def recipe_of_values(values: object, where: str = "recipe") -> Recipe:
    """Return the recipe of the `values` of a recipe file. Raises BadRecipe with all errors."""
    try:
        return convert(values, Recipe, synonyms=_SYNONYMS)
    except BadDocument as error:
        raise BadRecipe(where, error.reasons) from error


def recipe_findings(error: BadRecipe) -> list[Finding]:
    """Return the errors of a recipe as findings, for display with those of a plan."""
    return [
        Finding(
            Severity.REFUSE,
            "bad-recipe",
            f"{sentence[:1].upper()}{sentence[1:]}{'' if sentence.endswith(('.', '?')) else '.'}",
            field,
        )
        for field, sentence in error.reasons
    ]


def parse_blocks(text: str, field: str = "blocks") -> tuple[BlockRange, ...]:
    """Return the ranges in `text`, separated by commas: `0,2-5`. Raises BadRecipe."""
    words = [word.strip() for word in text.split(",")]
    try:
        return convert({"blocks": words[0] if len(words) == 1 else words}, Selection).blocks
    except BadDocument as error:
        raise BadRecipe(field, [(path.removeprefix("blocks"), sentence) for path, sentence in error.reasons]) from error


def recipe_values(recipe: Recipe) -> dict[str, object]:
    """Return the values of a recipe file, in a fixed order, without default values."""
    # JSON has lists for tuples, and refuses NaN.
    values: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(recipe), allow_nan=False))
    for step in (*values.get("grafts", ()), *values.get("purify", ())):
        for key in ("blocks", "experts"):
            if key in step:
                step[key] = [first if first == last else f"{first}-{last}" for first, last in step[key]]
        step |= {key: _one_or_list(step[key]) for key in _SELECTION_KEYS if key in step}
    if "purify" in values:
        values["purify"] = _one_or_list(values["purify"])
    return values


def _one_or_list(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def recipe_json(recipe: Recipe) -> str:
    """Return the recipe as indented JSON with a final line end."""
    return json.dumps(recipe_values(recipe), ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def recipe_file(recipe: Recipe) -> RecipeFile:
    """Return the recipe as an entity, with the members of a recipe file."""
    return msgspec.convert(recipe_values(recipe), prepared(RecipeFile))


def recipe_of(base: str | Recipe | RecipeFile) -> Recipe:
    """Return a recipe itself, the recipe of an entity, or a recipe without steps for the name of a base.

    Raises BadRecipe for an entity with invalid members.
    """
    if isinstance(base, str):
        return Recipe(base)
    return base if isinstance(base, Recipe) else read_recipe(msgspec.json.encode(base))


_OTHER_BREAK = re.compile("[\r\x85\u2028\u2029]")


class _Dumper(yaml.SafeDumper):
    """A dumper that writes lists of plain values on one line, indents other lists, and quotes ambiguous texts."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        # Repeated values are written again, because recipes do not support anchors.
        return True

    def represent_list(self, data: Iterable[object]) -> yaml.SequenceNode:
        flow = all(isinstance(item, str | int | float) for item in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # In other styles, the dumper writes these characters as line breaks, and a reader changes them.
        style = '"' if _OTHER_BREAK.search(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, _Dumper.represent_list)
# `1e5` is text in YAML 1.1, which the dumper implements, and a number in YAML 1.2.
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"{NUMBER_PATTERN.pattern}\Z"), list("-0123456789")
)


def recipe_yaml(recipe: Recipe) -> str:
    """Return the recipe as YAML, with one line for each value, and with quotation marks around ambiguous texts."""
    return yaml.dump(
        recipe_values(recipe),
        Dumper=_Dumper,
        width=120,
        allow_unicode=True,
        sort_keys=False,
        default_flow_style=False,
    )


def recipe_python(recipe: Recipe, file_name: str) -> str:
    """Return a program that makes the recipe and writes the file `file_name` to the current folder."""
    calls = [
        *(
            _call(
                *("graft", graft.donor),
                {"where": graft.where, **_selected(graft), "sort": graft.sort, "strangers": graft.strangers},
            )
            for graft in recipe.grafts
        ),
        *(
            _call("adapter", merge.adapter, {"scale": None if merge.scale == 1 else merge.scale})
            for merge in recipe.adapters
        ),
        *(
            _call("purify", step.method.value, {"where": step.where, **_selected(step), "keep": step.keep})
            for step in recipe.purify
        ),
        *([f"encode({recipe.encode!r})"] if recipe.encode != ENCODINGS[0] else []),
        *(
            f"metadata({key!r}, {list(value) if isinstance(value, tuple) else value!r})"
            for key, value in recipe.metadata.items()
        ),
        *([f"accept({', '.join(map(repr, recipe.accept))})"] if recipe.accept else []),
        *([f"named({recipe.name!r})"] if recipe.name is not None else []),
    ]
    lines = [
        "from organs.registry import open_registry",
        "",
        "with open_registry() as registry:",
        f"    chimera = registry.compose({recipe.base!r})",
        *(f"    chimera = chimera.{call}" for call in calls),
        f"    chimera.plan().assemble({file_name!r})",
    ]
    return "\n".join(lines) + "\n"


def _selected(selection: Selection) -> dict[str, str]:
    """Return the arguments of a selection, with the items of each separated by commas."""
    blocks, experts = (
        ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
        for ranges in (selection.blocks, selection.experts)
    )
    return {"type": ",".join(selection.types), "slot": ",".join(selection.slots), "blocks": blocks, "experts": experts}


def _call(verb: str, first: str | None, named: Mapping[str, object]) -> str:
    """Return the text of a call without arguments that are empty, None or false."""
    arguments = [] if first is None else [repr(first)]
    arguments += [f"{name}={value!r}" for name, value in named.items() if value not in (None, "", False)]
    return f"{verb}({', '.join(arguments)})"
