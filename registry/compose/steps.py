"""A recipe as URL parameters, one for each step: `graft=from:acme/coder type:organ blocks:2-5`.

Grafts, adapters and purifications are words `key:value`, separated by spaces. The keys are those of recipe files; the
items of a list are separated by commas. A value with spaces or quotation marks is a JSON string:
`where:"type:organ theta>=40"`. Metadata is `key=value`. Numbers, true and false are text only if they are in quotation
marks. The result is checked by the rules of recipe files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from organs.registry.compose.document import DIGITS_MAX, NUMBER_PATTERN
from organs.registry.compose.recipe import Recipe
from organs.registry.compose.recipe_io import SHOWN_MAX, Reasons, Value, quoted, read_recipe, recipe_values, shown_key
from organs.registry.errors import BadRecipe

STEPS_MAX = 64
"""Parameters of one recipe, including its base and its name."""
TEXT_MAX_LENGTH = 6000
"""Characters of one parameter; enough for the longest query in quotation marks."""

LISTS = {"graft": "grafts", "adapter": "adapters", "purify": "purify", "accept": "accept", "meta": "metadata"}
"""Parameters that can be repeated, each with the key of its list in a recipe."""
SINGLE = ("base", "name", "encode")
PARAMETERS = ("base", "graft", "adapter", "purify", "encode", "accept", "meta", "name")
"""All parameters, in their order in an address."""

Step = tuple[str, str]
"""A parameter (one of `PARAMETERS`) and its text."""

_WORD = re.compile(r'(?P<key>[^\s:"]+):(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<bare>[^\s"]*))(?:\s+|\Z)')
_SPLIT = ("type", "slot", "blocks", "experts")
_NUMBERS = ("scale", "keep")
_SWITCHES = ("strangers",)
_BARE_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_META_KEY = re.compile(r'(?P<quoted>"(?:[^"\\]|\\.)*")=|(?P<bare>[^="]+)=')
_PLACEHOLDERS: Mapping[str, Value] = {
    "graft": {"from": "any"},
    "adapter": {"from": "any"},
    "purify": {"method": "fractal"},
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


def read_steps(steps: Iterable[Step], where: str = "address") -> Recipe:
    """Return the recipe from the parameters `steps`. Unknown and empty parameters are ignored.

    Raises BadRecipe with all errors; their paths are those of a recipe file: `grafts[1].blocks`.
    """
    reasons = Reasons(where)
    known = [(parameter, text) for parameter, text in steps if parameter in PARAMETERS and text.strip()]
    if len(known) > STEPS_MAX:
        reasons.note("", f"an address has at most {STEPS_MAX} steps; use a recipe file for more")
        known = known[:STEPS_MAX]
    document = _document(known, reasons)
    try:
        recipe = read_recipe(json.dumps(document), where)
    except BadRecipe as error:
        raise BadRecipe(where, [*reasons.found, *error.reasons]) from error
    reasons.settle()
    return recipe


def step_text(members: Mapping[str, Value]) -> str:
    """Return the text of a step with these keys and values."""
    return " ".join(f"{key}:{_word(value)}" for key, value in members.items())


def step_paths(steps: Iterable[Step]) -> Iterator[str]:
    """Yield the path in findings of each step: `grafts[0]`."""
    counts: dict[str, int] = {}
    for parameter, _ in steps:
        number = counts[parameter] = counts.get(parameter, -1) + 1
        yield f"{LISTS[parameter]}[{number}]" if parameter in LISTS else parameter


def _document(steps: Sequence[Step], reasons: Reasons) -> dict[str, Value]:
    """Return the recipe as the values of a recipe file."""
    lists: dict[str, list[Value]] = {}
    document: dict[str, Value] = {}
    metadata: dict[str, Value] = {}
    for parameter, text in steps:
        path = f"{LISTS[parameter]}[{len(lists.get(parameter, ()))}]" if parameter in LISTS else parameter
        if len(text) > TEXT_MAX_LENGTH:
            reasons.note(path, f"a step has at most {TEXT_MAX_LENGTH:,} characters; this one has {len(text):,}")
            text = ""
        if parameter in SINGLE:
            if parameter in document:
                reasons.note(path, f"{parameter} is given twice")
            document.setdefault(parameter, text)
        elif parameter == "meta":
            _read_meta(text, metadata, reasons)
        else:
            value = text if parameter == "accept" else _read(parameter, text, path, reasons)
            lists.setdefault(parameter, []).append(value)
    document |= {LISTS[parameter]: values for parameter, values in lists.items()}
    return document | ({"metadata": metadata} if metadata else {})


def _read(parameter: str, text: str, path: str, reasons: Reasons) -> Value:
    """Return the members of a step, or a placeholder if it cannot be read."""
    members: dict[str, Value] = {}
    position, plain = 0, text.strip()
    while position < len(plain):
        match = _WORD.match(plain, position)
        if match is None:
            reasons.note(path, f"{quoted(plain[position:])} cannot be read: {_ADVICE}")
            return _PLACEHOLDERS[parameter]
        position = match.end()
        key, value = match["key"], match["bare"]
        if match["quoted"] is not None:
            value = _unquoted(match["quoted"], path, reasons)
        if value is None:
            return _PLACEHOLDERS[parameter]
        if key in members:
            reasons.note(f"{path}.{shown_key(key)}", f"{quoted(key)} is given twice in the step")
        members.setdefault(key, _member(key, value))
    return members or _PLACEHOLDERS[parameter]


def _unquoted(text: str, path: str, reasons: Reasons) -> str | None:
    """Return the text inside quotation marks; None if it is refused."""
    try:
        return str(json.loads(text))
    except ValueError:
        reasons.note(path, f"a backslash can only precede a quotation mark or a backslash: {text[:SHOWN_MAX]}")
        return None


def _member(key: str, text: str) -> Value:
    if key in _SPLIT:
        words = [word.strip() for word in text.split(",")]
        return words if len(words) > 1 else words[0]
    if key in _SWITCHES and text in ("true", "false"):
        return text == "true"
    number = float(text) if key in _NUMBERS and NUMBER_PATTERN.fullmatch(text) else math.inf
    return number if math.isfinite(number) else text


def _read_meta(text: str, metadata: dict[str, Value], reasons: Reasons) -> None:
    plain = text.strip()
    match = _META_KEY.match(plain)
    if match is None:
        reasons.note("metadata", f"{quoted(plain)} cannot be read: write key=value, such as general.name=Tiny")
        return
    key: str | None = match["bare"]
    if match["quoted"] is not None:
        key = _unquoted(match["quoted"], "metadata", reasons)
    if key is None:
        return
    path = f"metadata.{shown_key(key)}"
    if key in metadata:
        reasons.note(path, "the key is given twice")
    metadata.setdefault(key, _meta_value(plain[match.end() :], path, reasons))


def _meta_value(text: str, path: str, reasons: Reasons) -> Value:
    """Return the value of `text`; an empty text or 0 if it is refused."""
    if text.startswith(('"', "[")):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            reasons.note(path, f'{quoted(text)} is not JSON: write a text as "text", a list as ["a", "b"]')
            return ""
        return value  # type: ignore[no-any-return]  # the rules of recipes refuse other types
    if text in ("true", "false"):
        return text == "true"
    match = NUMBER_PATTERN.fullmatch(text)
    if match is None:
        return text
    number = float(text) if match["rest"] else int(text) if len(text) <= DIGITS_MAX else math.inf
    if not math.isfinite(number):
        reasons.note(path, "the number is too large")
        return 0
    return number


def _word(value: Value) -> str:
    if isinstance(value, list | tuple):
        value = ",".join(str(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if isinstance(value, float) else str(value)
    is_bare = text and not any(sign == '"' or sign.isspace() for sign in text)
    return text if is_bare else json.dumps(text, ensure_ascii=False)


def _meta_text(key: str, value: Value) -> str:
    name = key if _BARE_KEY.fullmatch(key) else json.dumps(key)
    return f"{name}={_meta_word(value)}"


def _meta_word(value: Value) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    is_misread = value in ("true", "false") or NUMBER_PATTERN.fullmatch(value) or value.startswith(('"', "["))
    is_plain = value == value.strip() != "" and value.isprintable() and not is_misread
    return value if is_plain else json.dumps(value)
