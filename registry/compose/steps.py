"""A recipe as short texts, one a step, as an address has them: `graft=from:acme/coder type:organ blocks:2-5`.

Grafts, adapters and purifications are words `key:value` with spaces between them; the keys are those of a recipe file,
lists have commas. A value with spaces or quotation marks stands in quotation marks and is written as in JSON:
`where:"type:organ theta>=40"`. Metadata is `key=value`: a value that reads as a number or as true or false is one, and
in quotation marks it is text. What the texts say is then held against the rules of recipe files.
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
"""Texts of one recipe; its base and its name are among them."""
TEXT_MAX_LENGTH = 6000
"""Of one text: a query of the longest kind in quotation marks fits."""

LISTS = {"graft": "grafts", "adapter": "adapters", "purify": "purify", "accept": "accept", "meta": "metadata"}
"""What may stand several times, and the key that a recipe has for all of them."""
SINGLE = ("base", "name", "encode")
PARAMETERS = ("base", "graft", "adapter", "purify", "encode", "accept", "meta", "name")
"""In the order in which they are written."""

Step = tuple[str, str]
"""One of `PARAMETERS`, and the text behind it."""

_WORD = re.compile(r'(?P<key>[^\s:"]+):(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<bare>[^\s"]*))(?:\s+|\Z)')
_SPLIT = ("type", "slot", "blocks")
_NUMBERS = ("scale", "keep")
_BARE_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_META_KEY = re.compile(r'(?P<quoted>"(?:[^"\\]|\\.)*")=|(?P<bare>[^="]+)=')
_STAND_INS: Mapping[str, Value] = {
    "graft": {"from": "any"},
    "adapter": {"from": "any"},
    "purify": {"method": "fractal"},
}
"""For a step that cannot be read, so that all others are still looked at, under their own numbers."""
_DUE = 'a step is words such as type:organ; a value with spaces stands in quotation marks, where:"type:organ theta>=40"'


def step_texts(recipe: Recipe) -> list[Step]:
    """The texts that read back as `recipe`; what is the default is left out."""
    values = recipe_values(recipe)
    found: list[Step] = []
    for parameter in PARAMETERS:
        value = values.get(LISTS.get(parameter, parameter))
        if value is None:
            continue
        if parameter == "meta":
            assert isinstance(value, Mapping)
            found += [(parameter, _meta_text(key, one)) for key, one in value.items()]
        elif parameter in LISTS:
            steps = value if isinstance(value, list) else [value]
            found += [(parameter, step_text(one) if isinstance(one, Mapping) else str(one)) for one in steps]
        else:
            found.append((parameter, str(value)))
    return found


def read_steps(steps: Iterable[Step], where: str = "address") -> Recipe:
    """The recipe that the texts say. Those of other parameters than ours, and empty ones, are left out.

    Raises BadRecipe with all that is wrong, under the paths that a recipe file would have: `grafts[1].blocks`.
    """
    reasons = Reasons(where)
    kept = [(parameter, text) for parameter, text in steps if parameter in PARAMETERS and text.strip()]
    if len(kept) > STEPS_MAX:
        reasons.note("", f"an address holds at most {STEPS_MAX} steps; a recipe file takes more")
        kept = kept[:STEPS_MAX]
    document = _document(kept, reasons)
    try:
        recipe = read_recipe(json.dumps(document), where)
    except BadRecipe as error:
        raise BadRecipe(where, [*reasons.found, *error.reasons]) from error
    reasons.settle()
    return recipe


def step_text(members: Mapping[str, Value]) -> str:
    """The text of a step with these keys and values."""
    return " ".join(f"{key}:{_word(value)}" for key, value in members.items())


def step_paths(steps: Iterable[Step]) -> Iterator[str]:
    """For each of `steps` the path under which findings speak of it: `grafts[0]`."""
    counts: dict[str, int] = {}
    for parameter, _ in steps:
        number = counts[parameter] = counts.get(parameter, -1) + 1
        yield f"{LISTS[parameter]}[{number}]" if parameter in LISTS else parameter


def _document(steps: Sequence[Step], reasons: Reasons) -> dict[str, Value]:
    """The recipe file that the texts stand for."""
    lists: dict[str, list[Value]] = {}
    found: dict[str, Value] = {}
    metadata: dict[str, Value] = {}
    for parameter, text in steps:
        path = f"{LISTS[parameter]}[{len(lists.get(parameter, ()))}]" if parameter in LISTS else parameter
        if len(text) > TEXT_MAX_LENGTH:
            reasons.note(path, f"a step has at most {TEXT_MAX_LENGTH:,} characters, this has {len(text):,}")
            text = ""
        if parameter in SINGLE:
            if parameter in found:
                reasons.note(path, f"{parameter} stands there twice")
            found.setdefault(parameter, text)
        elif parameter == "meta":
            _read_meta(text, metadata, reasons)
        else:
            value = text if parameter == "accept" else _read(parameter, text, path, reasons)
            lists.setdefault(parameter, []).append(value)
    found |= {LISTS[parameter]: values for parameter, values in lists.items()}
    return found | ({"metadata": metadata} if metadata else {})


def _read(parameter: str, text: str, path: str, reasons: Reasons) -> Value:
    """What the words of a step say, or a stand-in where they say nothing that can be read."""
    members: dict[str, Value] = {}
    place, plain = 0, text.strip()
    while place < len(plain):
        match = _WORD.match(plain, place)
        if match is None:
            reasons.note(path, f"{quoted(plain[place:])} is not understood: {_DUE}")
            return _STAND_INS[parameter]
        place = match.end()
        key, value = match["key"], match["bare"]
        if match["quoted"] is not None:
            value = _unquoted(match["quoted"], path, reasons)
        if value is None:
            return _STAND_INS[parameter]
        if key in members:
            reasons.note(f"{path}.{shown_key(key)}", f"{quoted(key)} stands in the step twice")
        members.setdefault(key, _member(key, value))
    return members or _STAND_INS[parameter]


def _unquoted(text: str, path: str, reasons: Reasons) -> str | None:
    """What a text in quotation marks says; None where that was refused."""
    try:
        return str(json.loads(text))
    except ValueError:
        reasons.note(path, f"a backslash stands before a quotation mark or another backslash alone: {text[:SHOWN_MAX]}")
        return None


def _member(key: str, text: str) -> Value:
    if key in _SPLIT:
        words = [word.strip() for word in text.split(",")]
        return words if len(words) > 1 else words[0]
    number = float(text) if key in _NUMBERS and NUMBER_PATTERN.fullmatch(text) else math.inf
    return number if math.isfinite(number) else text


def _read_meta(text: str, metadata: dict[str, Value], reasons: Reasons) -> None:
    plain = text.strip()
    match = _META_KEY.match(plain)
    if match is None:
        reasons.note("metadata", f"{quoted(plain)} is not understood: write key=value, general.name=Tiny")
        return
    key: str | None = match["bare"]
    if match["quoted"] is not None:
        key = _unquoted(match["quoted"], "metadata", reasons)
    if key is None:
        return
    path = f"metadata.{shown_key(key)}"
    if key in metadata:
        reasons.note(path, "the key stands there twice")
    metadata.setdefault(key, _meta_value(plain[match.end() :], path, reasons))


def _meta_value(text: str, path: str, reasons: Reasons) -> Value:
    """The value that `text` stands for; where it is refused, the text."""
    if text.startswith(('"', "[")):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            reasons.note(path, f'{quoted(text)} begins as JSON, and is none: a text is written "so", a list ["a", "b"]')
            return ""
        return value  # type: ignore[no-any-return]  # what else it holds, the rules of recipes refuse
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
        value = ",".join(str(one) for one in value)
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
