"""Read and write recipes as text: YAML, or JSON if the text begins with `{`.

Reading reports all errors together, each with its field. The text that is written can be read as the same recipe.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import yaml

from organs.registry.anatomy import BLOCK_DIGITS_MAX, place_of
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.compose.document import NUMBER_PATTERN, Listing, Node, Scalar, Table, read_document
from organs.registry.compose.recipe import (
    ENCODINGS,
    RETIRED_WARNINGS,
    WARNINGS,
    AdapterMerge,
    BlockRange,
    Graft,
    MetadataChange,
    Purification,
    PurifyMethod,
    Recipe,
    Selection,
)
from organs.registry.entities.base import prepared
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.plan import RecipeFile
from organs.registry.errors import BadName, BadQuery, BadRecipe
from organs.registry.names import MODEL_TEXT_MAX_LENGTH, nearest, parse_model_name
from organs.registry.search.language import QUERY_MAX_LENGTH, RECIPE_BASE, SYNONYMS, Query, parse_query

REASONS_MAX = 100
"""Errors of one recipe; after these, reading stops."""
SHOWN_MAX = 60
"""Characters of a quotation in a message."""

_PLAIN_KEY = re.compile(r"[\w.-]{1,60}")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Reasons:
    """A list of the errors of a recipe, so that all are reported together."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.found: list[tuple[str, str]] = []

    def note(self, path: str, sentence: str) -> None:
        """Add an error; raise BadRecipe at REASONS_MAX errors."""
        self.found.append((path, sentence))
        if len(self.found) == REASONS_MAX:
            raise BadRecipe(self.where, [*self.found, ("", f"reading stopped after {REASONS_MAX} errors")])

    def settle(self) -> None:
        """Raise BadRecipe if there are errors."""
        if self.found:
            raise BadRecipe(self.where, self.found)


@dataclass(frozen=True, slots=True)
class Entry:
    """A value at its path. For a refused value, the methods return None; refused items of a list are left out."""

    node: Node
    path: str
    reasons: Reasons

    def refuse(self, sentence: str) -> None:
        """Add an error at this path."""
        self.reasons.note(self.path, sentence)

    def text(self, due: str, at_most: int) -> str | None:
        """Return the text on one line, stripped, of 1 to `at_most` characters.

        `due` describes the expected value in messages.
        """
        if not isinstance(self.node, Scalar) or self.node.text is None:
            self._refuse_kind(due)
            return None
        text = self.node.text.replace("\n", " ").strip()
        if not text:
            self.refuse(f"{due} is missing")
        elif len(text) > at_most:
            self.refuse(f"{due} has at most {at_most} characters; this one has {len(text):,}")
        elif not text.isprintable():
            self.refuse(f"{quoted(text)} has a control character or an unusual space")
        else:
            return text
        return None

    def value(self, due: str) -> str | int | float | bool | None:
        """Return the text, number or boolean; a text without NUL and unpaired surrogates."""
        if not isinstance(self.node, Scalar) or self.node.value is None:
            self._refuse_kind(due)
            return None
        value = self.node.value
        if isinstance(value, str):
            return value if self._is_sound(value) else None
        if not math.isfinite(value):
            self.refuse("the number is too large")
            return None
        return value

    def whole(self) -> int | None:
        """Return the integer; for any other value, return None and add no error."""
        value = self.node.value if isinstance(self.node, Scalar) else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, due: str) -> float | None:
        """Return the finite number."""
        value = self.node.value if isinstance(self.node, Scalar) else None
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._refuse_kind(due)
            return None
        if not math.isfinite(value):
            self.refuse("the number is too large")
            return None
        return float(value)

    def items(self, due: str, at_most: int) -> list[Entry]:
        """Return the entries of the list."""
        if not isinstance(self.node, Listing):
            self._refuse_kind(due)
            return []
        if len(self.node.items) > at_most:
            self.refuse(f"the list has {len(self.node.items):,} items; at most {at_most:,} are allowed")
            return []
        return [Entry(item, f"{self.path}[{index}]", self.reasons) for index, item in enumerate(self.node.items)]

    def one_or_more(self, due: str, at_most: int) -> list[Entry]:
        """Return the entries of the list, which must not be empty; if this is not a list, return only this entry."""
        if not isinstance(self.node, Listing):
            return [self]
        if not self.node.items:
            self.refuse("the list is empty: leave the key out, or add a value")
        return self.items(due, at_most)

    def members(self, keys: tuple[str, ...], synonyms: Mapping[str, str]) -> dict[str, Entry] | None:
        """Return the values of `keys`, and refuse other keys; None if this is not a mapping.

        `synonyms` maps other words to keys; it is used for suggestions.
        """
        due = f"a mapping with {', '.join(keys)}"
        if not isinstance(self.node, Table):
            self._refuse_kind(due)
            return None
        pairs = self.pairs(due)
        for key, entry in pairs.items():
            if key not in keys:
                word = synonyms.get(key.lower())
                close = word if word in keys else nearest(key[:SHOWN_MAX], keys)
                hint = f"did you mean {close}?" if close else f"the keys are {', '.join(keys)}"
                entry.refuse(f"unknown key; {hint}")
        return pairs

    def pairs(self, due: str) -> dict[str, Entry]:
        """Return the values of all keys of the mapping; repeated keys are refused."""
        if not isinstance(self.node, Table):
            self._refuse_kind(due)
            return {}
        entries: dict[str, Entry] = {}
        for key_node, node in self.node.pairs:
            key = key_node.text if isinstance(key_node, Scalar) else None
            if key is None:
                self.refuse(f"a key must be text, not {_kind(key_node)}")
                continue
            path = shown_key(key)
            entry = Entry(node, f"{self.path}.{path}" if self.path else path, self.reasons)
            if key in entries:
                entry.refuse("the key is given twice")
            entries.setdefault(key, entry)
        return entries

    def _is_sound(self, text: str) -> bool:
        if "\0" in text or _SURROGATE.search(text):
            self.refuse("the text has a NUL character or an unpaired surrogate")
            return False
        return True

    def _refuse_kind(self, due: str) -> None:
        kind = _kind(self.node)
        self.refuse(f"{due} is missing" if kind == "nothing" else f"this is {kind}; it should be {due}")


def quoted(text: str) -> str:
    """Return `text` for a message: shortened, in quotation marks, with control characters escaped."""
    return repr(text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…")


def shown_key(key: str) -> str:
    """Return `key` as a part of a path."""
    return key if _PLAIN_KEY.fullmatch(key) else quoted(key)


def _kind(node: Node) -> str:
    if isinstance(node, Table):
        return "a mapping"
    if isinstance(node, Listing):
        return "a list"
    if node.value is None:
        return "nothing"
    if isinstance(node.value, bool):
        return "true" if node.value else "false"
    return f"the text {quoted(node.value)}" if isinstance(node.value, str) else "a number"


CHOICES_MAX = 1000
"""Items in one list of types, slots or blocks."""
WORD_MAX_LENGTH = 200
SELECTION_KEYS = ("type", "slot", "blocks", "experts")
"""The keys of a selection."""
MEASURED_FIELDS = ("type", "slot", "block", "tower", "dtype", "size", "theta", "signal", "z", "spectral", "rank")
"""Fields of queries that depend only on the organ, not on its model."""

_BLOCKS = re.compile(rf"([0-9]{{1,{BLOCK_DIGITS_MAX}}})(?:\s*-\s*([0-9]{{1,{BLOCK_DIGITS_MAX}}}))?")
_SLOT = re.compile(r"[^\s\"?\[\],\x80-\U0010ffff]+")


def read_selection(members: Mapping[str, Entry]) -> Selection:
    """Return the selection by `type`, `slot`, `blocks` and `experts` of a step."""
    types = [_type(entry) for entry in _choices(members, "type", f"one of {', '.join(GRAFTED_TYPES)}")]
    slots = [_slot(entry) for entry in _choices(members, "slot", "a slot, or a list of slots")]
    return Selection(
        types=tuple(dict.fromkeys(word for word in types if word is not None)),
        slots=tuple(dict.fromkeys(word for word in slots if word is not None)),
        blocks=_ranges(members, "blocks", "a", "block"),
        experts=_ranges(members, "experts", "an", "expert"),
    )


def read_query(entry: Entry) -> tuple[str, Query | None]:
    """Return the text of the query in `entry`, and the parsed query; None if it is refused."""
    text = entry.text("a query", QUERY_MAX_LENGTH)
    if text is None:
        return "", None
    try:
        return text, parse_query(text, base=RECIPE_BASE)
    except BadQuery as error:
        entry.refuse(str(error))
        return text, None


def read_sort(entry: Entry, text: str, query: Query | None) -> str:
    """Return the order in `entry` for the results of the query `text`."""
    sort = entry.text("a measure to rank by, such as -likeness", WORD_MAX_LENGTH)
    if sort is None:
        return ""
    if query is not None and query.like is not None:
        entry.refuse("like: in the query already ranks by likeness: remove sort")
    elif query is not None and sorts_itself(text):
        entry.refuse(f"the query already has sort:{query.sort}: remove one of the two")
    try:
        return str(parse_query("", default_sort=sort, base=RECIPE_BASE).sort)
    except BadQuery as error:
        entry.refuse(error.reason)
        return ""


def sorts_itself(text: str) -> bool:
    """Return whether the valid query `text` has an order of its own."""
    # A parsed query always has an order. The order of a query without sort: depends on the default.
    by_theta, by_size = (parse_query(text, default_sort=sort, base=RECIPE_BASE).sort for sort in ("theta", "size"))
    return by_theta == by_size


def read_measured_query(entry: Entry) -> str:
    """Return the query in `entry` on organs of one model: by type, place and measures, not by model."""
    text, query = read_query(entry)
    if query is None:
        return ""
    foreign = [term.field for term in query.terms if term.field not in MEASURED_FIELDS]
    ranks = [*(["like"] if query.like is not None else []), *(["unique"] if query.unique else [])]
    ranks += ["sort"] if query.like is None and sorts_itself(text) else []
    if foreign or ranks:
        entry.refuse(f"{[*foreign, *ranks][0]}: cannot be used here; the fields are {', '.join(MEASURED_FIELDS)}")
    if query.words or query.excluded_words:
        word = [*query.words, *query.excluded_words][0]
        entry.refuse(f"{quoted(word)} searches models by name; this query narrows the organs of one model")
    return text


def _choices(members: Mapping[str, Entry], key: str, due: str) -> list[Entry]:
    return members[key].one_or_more(due, CHOICES_MAX) if key in members else []


def _type(entry: Entry) -> str | None:
    word = entry.text(f"one of {', '.join(GRAFTED_TYPES)}", WORD_MAX_LENGTH)
    kind = word and SYNONYMS.get(word.lower(), word.lower())
    if word is None or kind in GRAFTED_TYPES:
        return kind
    if _is_comma_list(entry, word):
        return None
    close = nearest(word, GRAFTED_TYPES)
    hint = f"; did you mean {close}?" if close in GRAFTED_TYPES else ""
    entry.refuse(f"{quoted(word)} is not a type for selections: the types are {', '.join(GRAFTED_TYPES)}{hint}")
    return None


def _slot(entry: Entry) -> str | None:
    word = entry.text("a slot", WORD_MAX_LENGTH)
    if word is None or _is_comma_list(entry, word):
        return None
    place = place_of(word)
    if not _SLOT.fullmatch(word):
        entry.refuse(f"{quoted(word)} is not a slot: write one word, without ? [ ] and quotation marks; * is any text")
    elif word in GRAFTED_TYPES:
        entry.refuse(f"{word} is a type: write type: {word}")
    elif place.slot != word:
        block = "" if place.block is None else f", its block {place.block}"
        entry.refuse(f"{quoted(word)} is a tensor's name: its slot is {place.slot}{block}")
    else:
        return word
    return None


def _ranges(members: Mapping[str, Entry], key: str, article: str, noun: str) -> tuple[BlockRange, ...]:
    due = f"{article} {noun} such as 3, a range such as 2-5, or a list of these"
    ranges = [_range(entry, article, noun, due) for entry in _choices(members, key, due)]
    return tuple(dict.fromkeys(numbers for numbers in ranges if numbers is not None))


def _range(entry: Entry, article: str, noun: str, due: str) -> BlockRange | None:
    value = entry.whole()
    if value is not None and 0 <= value < 10**BLOCK_DIGITS_MAX:
        return (value, value)
    word = str(value) if value is not None else entry.text(due, WORD_MAX_LENGTH)
    if word is None or _is_comma_list(entry, word):
        return None
    match = _BLOCKS.fullmatch(word.replace("–", "-"))
    if match is None:
        entry.refuse(f"{quoted(word)} is not {article} {noun}: write {due}")
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        entry.refuse(f"a range goes from the first {noun} to the last: {last}-{first}")
        return None
    return (first, last)


def _is_comma_list(entry: Entry, word: str) -> bool:
    """Return whether a text has several words with commas; if so, refuse it."""
    if "," in word:
        entry.refuse(f"write several values as a list: [{', '.join(part.strip() for part in word[:60].split(','))}]")
    return "," in word


KEY_MAX_LENGTH = 255
CHANGES_MAX = 1000
WHOLE_MIN, WHOLE_MAX = -(2**63), 2**64 - 1
"""Limits of the 64-bit integers of GGUF."""
FIXED_KEYS = (
    *("general.type", "general.architecture", "general.alignment"),
    *("general.quantization_version", "general.file_type"),
)
"""Keys that describe the file; their values depend on its organs."""
FIXED_PREFIXES = ("tokenizer.", "split.", "general.base_model.", "organ_registry.")
"""Keys of the base's vocabulary, of split files, of the parents, and of this registry."""

_VALUE_DUE = "text, a number, true or false, or a list of texts"


def read_metadata(entry: Entry) -> tuple[MetadataChange, ...]:
    """Return the changes in the mapping `entry`, in its order."""
    pairs = entry.pairs("a mapping of metadata keys to values")
    if len(pairs) > CHANGES_MAX:
        entry.refuse(f"the mapping has {len(pairs):,} keys; at most {CHANGES_MAX:,} are allowed")
        return ()
    changes = []
    for key, value_entry in pairs.items():
        _check_key(key, value_entry)
        value = _value(value_entry)
        if value is not None:
            changes.append(MetadataChange(key, value))
    return tuple(changes)


def _check_key(key: str, entry: Entry) -> None:
    if not (0 < len(key) <= KEY_MAX_LENGTH and key.isascii() and key.isprintable()):
        entry.refuse(f"a key has 1 to {KEY_MAX_LENGTH} characters of printable ASCII, such as general.name")
    elif key in FIXED_KEYS:
        entry.refuse("the key follows from the organs and cannot be set")
    elif key.startswith(FIXED_PREFIXES):
        prefix = next(prefix for prefix in FIXED_PREFIXES if key.startswith(prefix))
        entry.refuse(f"keys that begin with {prefix} cannot be set")


def _value(entry: Entry) -> str | int | float | bool | tuple[str, ...] | None:
    if isinstance(entry.node, Listing):
        texts = [_listed_text(item) for item in entry.items(_VALUE_DUE, CHANGES_MAX)]
        return tuple(text for text in texts if text is not None)
    value = entry.value(_VALUE_DUE)
    if isinstance(value, int) and not isinstance(value, bool) and not WHOLE_MIN <= value <= WHOLE_MAX:
        entry.refuse("the number is too large for 64 bits")
        return None
    return value


def _listed_text(entry: Entry) -> str | None:
    text = entry.value("a text")
    if text is None or isinstance(text, str):
        return text
    entry.refuse("this list can only have texts: put the value in quotation marks")
    return None


STEPS_MAX = 1000
"""Grafts, adapters or purifications of one recipe; codes that it accepts."""
CODE_MAX_LENGTH = 64
SCALE_MAX, SCALE_DEFAULT = 100.0, 1.0

RECIPE_KEYS = ("base", "name", "grafts", "adapters", "purify", "encode", "accept", "metadata")
GRAFT_KEYS = ("from", "where", "sort", "strangers", *SELECTION_KEYS)
ADAPTER_KEYS = ("from", "scale")
PURIFY_KEYS = ("method", "where", *SELECTION_KEYS, "keep")
METHODS = tuple(method.value for method in PurifyMethod)

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

_Step = TypeVar("_Step")


def read_recipe(text: str | bytes, where: str = "recipe") -> Recipe:
    """Return the recipe in `text`: YAML, or JSON if it begins with `{`. `where` names the recipe in errors.

    Raises BadRecipe with all errors. Only the text is checked: models and compatibility are checked by a plan.
    """
    reasons = Reasons(where)
    members = Entry(read_document(text, where), "", reasons).members(RECIPE_KEYS, _SYNONYMS)
    if members is None:
        raise BadRecipe(where, reasons.found)
    if "base" not in members:
        reasons.note("base", "the base model is missing")
    recipe = Recipe(
        base=_model(members["base"]) if "base" in members else "",
        grafts=_each(members.get("grafts"), "a list of grafts, each after a -", _read_graft),
        adapters=_each(members.get("adapters"), "a list of adapters, each after a -", _read_adapter),
        purify=_read_purifications(members.get("purify")),
        encode=_encoding(members["encode"]) if "encode" in members else ENCODINGS[0],
        accept=tuple(dict.fromkeys(_each(members.get("accept"), "a list of codes such as [unrelated-lineage]", _code))),
        metadata=read_metadata(members["metadata"]) if "metadata" in members else (),
        name=_name(members["name"]) if "name" in members else None,
    )
    reasons.settle()
    return recipe


def recipe_findings(error: BadRecipe) -> list[Finding]:
    """Return the errors of a recipe as findings, for display with those of a plan."""
    return [Finding(Severity.REFUSE, "bad-recipe", _as_sentence(sentence), field) for field, sentence in error.reasons]


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}"


def parse_blocks(text: str, field: str = "blocks") -> tuple[BlockRange, ...]:
    """Return the ranges in `text`, separated by commas: `0,2-5`. Raises BadRecipe."""
    reasons = Reasons(field)
    words = [Scalar(word.strip(), word.strip()) for word in text.split(",")]
    entry = Entry(words[0] if len(words) == 1 else Listing(tuple(words)), "", reasons)
    selection = read_selection({"blocks": entry})
    reasons.settle()
    return selection.blocks


def _model(entry: Entry) -> str:
    return entry.text("a model's name", MODEL_TEXT_MAX_LENGTH) or ""


def _each(entry: Entry | None, due: str, read: Callable[[Entry], _Step | None]) -> tuple[_Step, ...]:
    """Return the results of `read` for the items of the list `entry`."""
    return () if entry is None else _steps(entry.items(due, STEPS_MAX), read)


def _steps(entries: Iterable[Entry], read: Callable[[Entry], _Step | None]) -> tuple[_Step, ...]:
    return tuple(step for step in map(read, entries) if step is not None)


def _read_graft(entry: Entry) -> Graft | None:
    members = entry.members(GRAFT_KEYS, _SYNONYMS)
    if members is None:
        return None
    if "from" not in members and "where" not in members:
        entry.refuse("it needs a donor (from: MODEL) or a query (where: QUERY)")
    if "from" in members and "where" in members:
        members["where"].refuse("use either from or where; model: in the query limits it to one model")
    donor = _model(members["from"]) if "from" in members else None
    text, query = read_query(members["where"]) if "where" in members else (None, None)
    if query is not None and query.finds_experts:
        members["where"].refuse("the query ranks whole tensors: leave expert: out, and select experts with experts:")
    sort = ""
    if "sort" in members and text is None:
        members["sort"].refuse("sort needs where: QUERY")
    elif "sort" in members and text is not None:
        sort = read_sort(members["sort"], text, query)
    strangers = "strangers" in members and _switch(members["strangers"])
    if strangers and text is None:
        members["strangers"].refuse("strangers needs where: QUERY; from: MODEL takes the organs of any model")
    return Graft(read_selection(members), donor, text, sort, strangers)


def _switch(entry: Entry) -> bool:
    """Return the boolean in `entry`; refuse any other value and return False."""
    value = entry.value("true or false")
    if value is not None and not isinstance(value, bool):
        entry.refuse(f"{quoted(str(value))} is not true or false")
    return value is True


def _read_adapter(entry: Entry) -> AdapterMerge | None:
    members = entry.members(ADAPTER_KEYS, _SYNONYMS)
    if members is None:
        return None
    if "from" not in members:
        entry.refuse("from: ADAPTER is missing")
    adapter = _model(members["from"]) if "from" in members else ""
    scale = members["scale"].number("a number such as 0.8") if "scale" in members else SCALE_DEFAULT
    if scale is not None and (scale == 0 or abs(scale) > SCALE_MAX):
        members["scale"].refuse(f"{scale:g} is not a scale: it must be from -{SCALE_MAX:g} to {SCALE_MAX:g}, and not 0")
    return AdapterMerge(adapter, SCALE_DEFAULT if scale is None else scale)


def _read_purifications(entry: Entry | None) -> tuple[Purification, ...]:
    if entry is None:
        return ()
    return _steps(entry.items("", STEPS_MAX) if isinstance(entry.node, Listing) else [entry], _read_purification)


def _read_purification(entry: Entry) -> Purification | None:
    members = entry.members(PURIFY_KEYS, _SYNONYMS)
    if members is None:
        return None
    method = _method(entry, members)
    return Purification(
        selection=read_selection(members),
        method=method or PurifyMethod.SPECTRAL,
        where=read_measured_query(members["where"]) if "where" in members else "",
        keep=_keep(members["keep"], method) if "keep" in members else None,
    )


def _method(entry: Entry, members: Mapping[str, Entry]) -> PurifyMethod | None:
    """Return the method of purification; None if it is refused."""
    if "method" not in members:
        entry.refuse(f"method: {' or '.join(METHODS)} is missing")
        return None
    word = _choice(members["method"], METHODS, str.lower)
    return None if word is None else PurifyMethod(word)


def _keep(entry: Entry, method: PurifyMethod | None) -> float | None:
    keep = entry.number("a share such as 0.9")
    if keep is not None and not 0 < keep <= 1:
        entry.refuse(f"the kept share of the energy is above 0 and at most 1, not {keep:g}")
    if method is PurifyMethod.FRACTAL:
        entry.refuse("keep is for spectral; fractal chooses its own share")
    return keep


def _encoding(entry: Entry) -> str:
    return _choice(entry, ENCODINGS, str.upper) or ""


def _choice(entry: Entry, words: tuple[str, ...], fold: Callable[[str], str]) -> str | None:
    """Return the word in `entry` if it is one of `words`, in upper or lower case; else refuse it and return None."""
    due = f"one of {', '.join(words)}"
    word = entry.text(due, MODEL_TEXT_MAX_LENGTH)
    if word is None or fold(word) in words:
        return word and fold(word)
    close = nearest(word, words)
    entry.refuse(f"{quoted(word)} is not {due}{f'; did you mean {close}?' if close else ''}")
    return None


def _code(entry: Entry) -> str | None:
    word = entry.text("a code such as unrelated-lineage", CODE_MAX_LENGTH)
    if word is None or word in WARNINGS or word in RETIRED_WARNINGS:
        return word
    close = nearest(word, WARNINGS)
    entry.refuse(f"{quoted(word)} is not the code of a warning{f'; did you mean {close}?' if close else ''}")
    return None


def _name(entry: Entry) -> str | None:
    text = entry.text("a name such as acme/chimera", MODEL_TEXT_MAX_LENGTH)
    if text is None:
        return None
    try:
        if parse_model_name(text).version is not None:
            entry.refuse("remove the version: the registry numbers versions")
    except BadName as error:
        entry.refuse(str(error))
    return text


YAML_WIDTH = 120

_OTHER_BREAK = re.compile("[\r\x85\u2028\u2029]")

Value = str | int | float | bool | Sequence["Value"] | Mapping[str, "Value"]


def recipe_values(recipe: Recipe) -> dict[str, Value]:
    """Return the values of a recipe file, in a fixed order, without default values."""
    values: dict[str, Value] = {"base": recipe.base}
    if recipe.name is not None:
        values["name"] = recipe.name
    if recipe.grafts:
        values["grafts"] = [_graft_values(graft) for graft in recipe.grafts]
    if recipe.adapters:
        values["adapters"] = [_adapter_values(adapter) for adapter in recipe.adapters]
    if recipe.purify:
        values["purify"] = _one_or_list([_purification_values(step) for step in recipe.purify])
    if recipe.encode != ENCODINGS[0]:
        values["encode"] = recipe.encode
    if recipe.accept:
        values["accept"] = list(recipe.accept)
    if recipe.metadata:
        values["metadata"] = {change.key: _plain(change) for change in recipe.metadata}
    return values


def recipe_json(recipe: Recipe) -> str:
    """Return the recipe as indented JSON with a final line end."""
    return json.dumps(recipe_values(recipe), ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def recipe_yaml(recipe: Recipe) -> str:
    """Return the recipe as YAML, with one line for each value, and with quotation marks around ambiguous texts."""
    return yaml.dump(
        recipe_values(recipe),
        Dumper=_Dumper,
        width=YAML_WIDTH,
        allow_unicode=True,
        sort_keys=False,
        default_flow_style=False,
    )


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


def _graft_values(graft: Graft) -> dict[str, Value]:
    values: dict[str, Value] = {}
    if graft.donor is not None:
        values["from"] = graft.donor
    if graft.where is not None:
        values["where"] = graft.where
    if graft.sort:
        values["sort"] = graft.sort
    if graft.strangers:
        values["strangers"] = True
    return values | _selection(graft.selection)


def _adapter_values(merge: AdapterMerge) -> dict[str, Value]:
    values: dict[str, Value] = {"from": merge.adapter}
    return values if merge.scale == 1 else {**values, "scale": merge.scale}


def _purification_values(step: Purification) -> dict[str, Value]:
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
    if selection.experts:
        values["experts"] = _one_or_list([_blocks(expert) for expert in selection.experts])
    return values


def _blocks(block: BlockRange) -> Value:
    first, last = block
    return first if first == last else f"{first}-{last}"


def _plain(change: MetadataChange) -> Value:
    return list(change.value) if isinstance(change.value, tuple) else change.value


def _one_or_list(values: Sequence[Value]) -> Value:
    return values[0] if len(values) == 1 else list(values)


def recipe_python(recipe: Recipe, file_name: str) -> str:
    """Return a program that makes the recipe and writes the file `file_name` to the current folder."""
    calls = [
        *(_call("graft", _graft_call(graft)) for graft in recipe.grafts),
        *(_call("adapter", _adapter_call(adapter)) for adapter in recipe.adapters),
        *(_call("purify", _purify_call(item)) for item in recipe.purify),
        *([_call("encode", {"": recipe.encode})] if recipe.encode != ENCODINGS[0] else []),
        *(f"metadata({item.key!r}, {_plain_value(item.value)!r})" for item in recipe.metadata),
        *([f"accept({', '.join(map(repr, recipe.accept))})"] if recipe.accept else []),
        *([_call("named", {"": recipe.name})] if recipe.name is not None else []),
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


def _call(verb: str, arguments: Mapping[str, object]) -> str:
    """Return the text of a call without empty arguments and None. The key of a positional argument is empty."""
    present = {name: value for name, value in arguments.items() if value not in (None, "")}
    return f"{verb}({', '.join(f'{name}={value!r}' if name else repr(value) for name, value in present.items())})"


def _graft_call(graft: Graft) -> dict[str, object]:
    call = {"": graft.donor, "where": graft.where, **_selection_call(graft.selection), "sort": graft.sort}
    return call | {"strangers": True if graft.strangers else None}


def _adapter_call(merge: AdapterMerge) -> dict[str, object]:
    return {"": merge.adapter, "scale": None if merge.scale == 1 else merge.scale}


def _purify_call(step: Purification) -> dict[str, object]:
    return {"": step.method.value, "where": step.where, **_selection_call(step.selection), "keep": step.keep}


def _selection_call(selection: Selection) -> dict[str, object]:
    blocks, experts = (
        ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
        for ranges in (selection.blocks, selection.experts)
    )
    return {"type": ",".join(selection.types), "slot": ",".join(selection.slots), "blocks": blocks, "experts": experts}


def _plain_value(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
