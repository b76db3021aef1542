"""A recipe as URL parameters, one for each step: `graft=from:acme/coder type:organ blocks:2-5`.

Layers, grafts, blends, adapters, purifications, choices of experts and tensor types are words `key:value`, separated by
spaces. The keys are those of recipe files; the items of a list are separated by commas. A value with spaces or
quotation marks is a JSON string: `where:"type:organ theta>=40"`. Metadata is `key=value`. Numbers, true and
false are text only if they are in quotation marks. A list or an object in a blend is JSON in a JSON string. The result
is checked by the rules of recipe files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from organs.registry.compose.recipe import RECIPE_LIMITS, Recipe, recipe_of_values, recipe_values
from organs.registry.documents import (
    NUMBER_PATTERN,
    SHOWN_MAX,
    BadDocument,
    Reason,
    joined,
    parse_json,
    plain_scalar,
    quoted,
)
from organs.registry.entities.plan import STEP_MAX_LENGTH
from organs.registry.errors import BadRecipe

STEPS_MAX = 64
"""Parameters of one recipe, including its base and its name."""

LISTS = {
    "layer": "layers",
    "graft": "grafts",
    "blend": "blends",
    "adapter": "adapters",
    "purify": "purify",
    "expert": "experts",
    "quantize": "quantize",
    "accept": "accept",
    "meta": "metadata",
}
"""Parameters that can be repeated, each with the key of its list in a recipe."""
SINGLE = ("base", "name", "imatrix", "encode", "source")
PARAMETERS = (
    *("base", "layer", "graft", "blend", "adapter", "purify", "expert", "quantize"),
    *("imatrix", "encode", "source", "accept", "meta", "name"),
)
"""All parameters, in their order in an address."""

Step = tuple[str, str]
"""A parameter (one of `PARAMETERS`) and its text."""

_WORD = re.compile(r'(?P<key>[^\s:"]+):(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<bare>[^\s"]*))(?:\s+|\Z)')
_SPLIT = ("type", "slot", "blocks", "experts", "drop")
_TEXTS = ("from", "adapter", "where")
"""Members that are never lists."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_META_KEY = re.compile(r'(?P<quoted>"(?:[^"\\]|\\.)*")=|(?P<bare>[^="]+)=')
_PLACEHOLDERS: Mapping[str, Any] = {
    "layer": {"blocks": 0},
    "graft": {"from": "any"},
    "blend": {"from": "any", "weight": 1.0},
    "adapter": {"from": "any"},
    "purify": {"method": "fractal"},
    "expert": {"drop": 0},
    "quantize": {"as": "F16"},
}
"""Replacements for steps that cannot be read, so that the other steps keep their numbers."""
_ADVICE = 'write words such as type:organ, and values with spaces in quotation marks: where:"type:organ theta>=40"'


def step_texts(recipe: Recipe) -> list[Step]:
    """Return the parameters of `recipe`, without default values."""
    values = recipe_values(recipe)
    texts: list[Step] = []
    for parameter in PARAMETERS:
        value = values.get(LISTS.get(parameter, parameter))
        if value is None:
            continue
        if parameter == "meta":
            assert isinstance(value, Mapping)
            texts += [(parameter, _meta_text(key, item)) for key, item in value.items()]
        elif parameter in LISTS:
            steps = value if isinstance(value, list) else [value]
            texts += [(parameter, step_text(step) if isinstance(step, Mapping) else str(step)) for step in steps]
        else:
            texts.append((parameter, str(value)))
    return texts


def read_steps(steps: Iterable[Step]) -> Recipe:
    """Return the recipe from the parameters `steps`. Unknown and empty parameters are ignored.

    Raises BadRecipe with all errors; their paths are those of a recipe file: `grafts[1].blocks`.
    """
    reasons: list[Reason] = []
    known = [(parameter, text) for parameter, text in steps if parameter in PARAMETERS and text.strip()]
    if len(known) > STEPS_MAX:
        reasons.append(("", f"an address has at most {STEPS_MAX} steps; use a recipe file for more"))
    values = _recipe_values(known[:STEPS_MAX], reasons)
    try:
        recipe = recipe_of_values(values, "address")
    except BadRecipe as error:
        raise BadRecipe("address", [*reasons, *error.reasons]) from error
    if reasons:
        raise BadRecipe("address", reasons)
    return recipe


def step_text(members: Mapping[str, object]) -> str:
    """Return the text of a step with these keys and values."""
    return " ".join(f"{key}:{_word(value)}" for key, value in members.items())


def step_paths(steps: Iterable[Step]) -> Iterator[str]:
    """Yield the path in findings of each step: `grafts[0]`."""
    counts: dict[str, int] = {}
    for parameter, _ in steps:
        number = counts[parameter] = counts.get(parameter, -1) + 1
        yield f"{LISTS[parameter]}[{number}]" if parameter in LISTS else parameter


def _recipe_values(steps: Iterable[Step], reasons: list[Reason]) -> dict[str, Any]:
    """Return the values of a recipe file; add a reason for each step that cannot be read."""
    lists: dict[str, list[Any]] = {}
    singles: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    for parameter, text in steps:
        path = f"{LISTS[parameter]}[{len(lists.get(parameter, ()))}]" if parameter in LISTS else parameter
        try:
            if len(text) > STEP_MAX_LENGTH:
                raise BadDocument(
                    [(path, f"a step has at most {STEP_MAX_LENGTH:,} characters; this one has {len(text):,}")]
                )
            if parameter in SINGLE:
                if parameter in singles:
                    raise BadDocument([(path, f"{parameter} is given twice")])
                singles[parameter] = text
            elif parameter == "meta":
                key, value = _read_meta(text.strip())
                if key in metadata:
                    raise BadDocument([(joined("metadata", key), "the key is given twice")])
                metadata[key] = value
            else:
                lists_of = (*_SPLIT, "keep") if parameter == "expert" else _SPLIT
                value = text if parameter == "accept" else _read_step(text.strip(), path, lists_of)
                lists.setdefault(parameter, []).append(value)
        except BadDocument as error:
            reasons += error.reasons
            if parameter in _PLACEHOLDERS:
                lists.setdefault(parameter, []).append(_PLACEHOLDERS[parameter])
    values: dict[str, Any] = {**singles, **{LISTS[parameter]: items for parameter, items in lists.items()}}
    return values | ({"metadata": metadata} if metadata else {})


def _read_step(text: str, path: str, lists: Collection[str]) -> dict[str, Any]:
    """Return the members of a step, of which `lists` are words with commas. Raises BadDocument."""
    members: dict[str, Any] = {}
    position = 0
    while position < len(text):
        match = _WORD.match(text, position)
        if match is None:
            raise BadDocument([(path, f"{quoted(text[position:])} cannot be read: {_ADVICE}")])
        position = match.end()
        key = match["key"]
        if key in members:
            raise BadDocument([(joined(path, key), f"{quoted(key)} is given twice in the step")])
        value = match["bare"] if match["quoted"] is None else _unquoted(match["quoted"], path)
        words = [word.strip() for word in value.split(",")]
        if key in lists:
            members[key] = words if len(words) > 1 else words[0]
        elif value.startswith("[") and key not in _TEXTS:
            members[key] = _listed(value, joined(path, key))
        else:
            members[key] = value if match["bare"] is None else plain_scalar(value)
    return members


def _unquoted(text: str, path: str) -> str:
    """Return the text inside quotation marks. Raises BadDocument."""
    try:
        return str(json.loads(text))
    except ValueError:
        sentence = f"a backslash can only precede a quotation mark or a backslash: {text[:SHOWN_MAX]}"
        raise BadDocument([(path, sentence)]) from None


def _listed(text: str, path: str) -> Any:
    """Return the list in `text`. Raises BadDocument."""
    try:
        return parse_json(text.encode(), RECIPE_LIMITS)
    except (BadDocument, UnicodeEncodeError):
        raise BadDocument([(path, f"{quoted(text)} is not a list in JSON")]) from None


def _read_meta(text: str) -> tuple[str, Any]:
    """Return the key and the value of a metadata entry. Raises BadDocument."""
    match = _META_KEY.match(text)
    if match is None:
        sentence = f"{quoted(text)} cannot be read: write key=value, such as general.name=Tiny"
        raise BadDocument([("metadata", sentence)])
    key = match["bare"] if match["quoted"] is None else _unquoted(match["quoted"], "metadata")
    value = text[match.end() :]
    if not value.startswith(('"', "[")):
        return key, plain_scalar(value)
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        sentence = f'{quoted(value)} is not JSON: write a text as "text", a list as ["a", "b"]'
        raise BadDocument([(joined("metadata", key), sentence)]) from None


def _word(value: object) -> str:
    if isinstance(value, list) and any(isinstance(item, dict | float) for item in value):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        value = ",".join(str(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if isinstance(value, float) else str(value)
    is_bare = text and not any(sign == '"' or sign.isspace() for sign in text)
    return text if is_bare else json.dumps(text, ensure_ascii=False)


def _meta_text(key: str, value: object) -> str:
    name = key if _BARE_KEY.fullmatch(key) else json.dumps(key)
    return f"{name}={_meta_word(value)}"


def _meta_word(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    is_misread = value in ("true", "false") or NUMBER_PATTERN.fullmatch(value) or value.startswith(('"', "["))
    is_plain = value == value.strip() != "" and value.isprintable() and not is_misread
    return value if is_plain else json.dumps(value)
