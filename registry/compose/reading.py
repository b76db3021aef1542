"""A recipe's text to `Recipe`. All that is wrong is told at once, each with its field and the nearest right word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from organs.registry.catalog.search.parse import nearest
from organs.registry.compose.codes import WARNINGS
from organs.registry.compose.document import Listing, Scalar, read_document
from organs.registry.compose.fields import Entry, Reasons, quoted
from organs.registry.compose.finding import Finding, Severity
from organs.registry.compose.overrides import read_metadata
from organs.registry.compose.recipe import (
    ENCODINGS,
    AdapterMerge,
    BlockRange,
    Graft,
    Purification,
    PurifyMethod,
    Recipe,
)
from organs.registry.compose.selecting import SELECTION_KEYS, read_measured_query, read_query, read_selection, read_sort
from organs.registry.errors import BadName, BadRecipe
from organs.registry.names import MODEL_TEXT_MAX_LENGTH, parse_model_name

STEPS_MAX = 1000
"""Grafts, adapters or purifications of one recipe; codes that it accepts."""
CODE_MAX_LENGTH = 64
SCALE_MAX, SCALE_DEFAULT = 100.0, 1.0

RECIPE_KEYS = ("base", "name", "grafts", "adapters", "purify", "encode", "accept", "metadata")
GRAFT_KEYS = ("from", "where", "sort", *SELECTION_KEYS)
ADAPTER_KEYS = ("from", "scale")
PURIFY_KEYS = ("method", "where", *SELECTION_KEYS, "keep")
METHODS = tuple(method.value for method in PurifyMethod)

_MEANT = {
    "title": "name",
    "base_model": "base",
    "accepted": "accept",
    "donors": "grafts",
    "tensor": "slot",
    "order": "sort",
    "purification": "purify",
    **dict.fromkeys(("lora", "loras"), "adapters"),
    **dict.fromkeys(("dtype", "encoding"), "encode"),
    **dict.fromkeys(("donor", "model"), "from"),
    **dict.fromkeys(("query", "search"), "where"),
    **dict.fromkeys(("layer", "layers"), "blocks"),
    **dict.fromkeys(("weight", "strength", "alpha"), "scale"),
}
"""What people write, and the key that has it here; what is only misspelt is found without it."""

_Step = TypeVar("_Step")


def read_recipe(text: str | bytes, where: str = "recipe") -> Recipe:
    """The recipe that `text` holds: YAML, or JSON where it begins with `{`. `where` names it in what is said of it.

    Raises BadRecipe with all that is wrong. Only the text is looked at: whether there are such models, and whether
    anything fits, is found later.
    """
    reasons = Reasons(where)
    members = Entry(read_document(text, where), "", reasons).members(RECIPE_KEYS, _MEANT)
    if members is None:
        raise BadRecipe(where, reasons.found)
    if "base" not in members:
        reasons.note("base", "the model that receives is missing")
    recipe = Recipe(
        base=_model(members["base"]) if "base" in members else "",
        grafts=_each(members.get("grafts"), "a list of grafts, each with a - before it", _graft),
        adapters=_each(members.get("adapters"), "a list of adapters, each with a - before it", _adapter),
        purify=_purifications(members.get("purify")),
        encode=_encoding(members["encode"]) if "encode" in members else ENCODINGS[0],
        accept=tuple(dict.fromkeys(_each(members.get("accept"), "a list of codes such as [unrelated-lineage]", _code))),
        metadata=read_metadata(members["metadata"]) if "metadata" in members else (),
        name=_name(members["name"]) if "name" in members else None,
    )
    reasons.settle()
    return recipe


def recipe_findings(error: BadRecipe) -> list[Finding]:
    """What is wrong with a recipe as findings, which are shown like those of a composition."""
    return [Finding(Severity.REFUSE, "bad-recipe", _as_sentence(sentence), field) for field, sentence in error.reasons]


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}"


def parse_blocks(text: str, field: str = "blocks") -> tuple[BlockRange, ...]:
    """The ranges that `text` names with commas between them, as people type it: `0,2-5`. Raises BadRecipe."""
    reasons = Reasons(field)
    words = [Scalar(word.strip(), word.strip()) for word in text.split(",")]
    entry = Entry(words[0] if len(words) == 1 else Listing(tuple(words)), "", reasons)
    selection = read_selection({"blocks": entry})
    reasons.settle()
    return selection.blocks


def _model(entry: Entry) -> str:
    return entry.text("a model's name", MODEL_TEXT_MAX_LENGTH) or ""


def _each(entry: Entry | None, due: str, read: Callable[[Entry], _Step | None]) -> tuple[_Step, ...]:
    """What `read` makes of each item of the list `entry`."""
    return () if entry is None else _steps(entry.items(due, STEPS_MAX), read)


def _steps(entries: Iterable[Entry], read: Callable[[Entry], _Step | None]) -> tuple[_Step, ...]:
    return tuple(step for step in map(read, entries) if step is not None)


def _graft(entry: Entry) -> Graft | None:
    members = entry.members(GRAFT_KEYS, _MEANT)
    if members is None:
        return None
    if "from" not in members and "where" not in members:
        entry.refuse("from: MODEL or where: QUERY is missing")
    if "from" in members and "where" in members:
        members["where"].refuse("from and where exclude each other: model: in the query keeps to one model")
    donor = _model(members["from"]) if "from" in members else None
    text, query = read_query(members["where"]) if "where" in members else (None, None)
    sort = ""
    if "sort" in members and text is None:
        members["sort"].refuse("there is nothing to rank without where: QUERY")
    elif "sort" in members and text is not None:
        sort = read_sort(members["sort"], text, query)
    return Graft(read_selection(members), donor, text, sort)


def _adapter(entry: Entry) -> AdapterMerge | None:
    members = entry.members(ADAPTER_KEYS, _MEANT)
    if members is None:
        return None
    if "from" not in members:
        entry.refuse("from: ADAPTER is missing")
    adapter = _model(members["from"]) if "from" in members else ""
    scale = members["scale"].number("a number such as 0.8") if "scale" in members else SCALE_DEFAULT
    if scale is not None and (scale == 0 or abs(scale) > SCALE_MAX):
        members["scale"].refuse(f"a scale is not 0, and from -{SCALE_MAX:g} to {SCALE_MAX:g}: {scale:g}")
    return AdapterMerge(adapter, SCALE_DEFAULT if scale is None else scale)


def _purifications(entry: Entry | None) -> tuple[Purification, ...]:
    if entry is None:
        return ()
    return _steps(entry.items("", STEPS_MAX) if isinstance(entry.node, Listing) else [entry], _purification)


def _purification(entry: Entry) -> Purification | None:
    members = entry.members(PURIFY_KEYS, _MEANT)
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
    """How to purify; None where that was refused."""
    if "method" not in members:
        entry.refuse(f"method: {' or '.join(METHODS)} is missing")
        return None
    word = _one_of(members["method"], METHODS, str.lower)
    return None if word is None else PurifyMethod(word)


def _keep(entry: Entry, method: PurifyMethod | None) -> float | None:
    keep = entry.number("a share such as 0.9")
    if keep is not None and not 0 < keep <= 1:
        entry.refuse(f"the share of the energy that is kept is above 0 and at most 1: {keep:g}")
    if method is PurifyMethod.FRACTAL:
        entry.refuse("keep is for spectral; fractal finds its own measure")
    return keep


def _encoding(entry: Entry) -> str:
    return _one_of(entry, ENCODINGS, str.upper) or ""


def _one_of(entry: Entry, words: tuple[str, ...], fold: Callable[[str], str]) -> str | None:
    """The one of `words` in `entry`, in whichever case it is written."""
    due = f"one of {', '.join(words)}"
    word = entry.text(due, MODEL_TEXT_MAX_LENGTH)
    if word is None or fold(word) in words:
        return word and fold(word)
    close = nearest(word, words)
    entry.refuse(f"{quoted(word)} is not {due}{f'; did you mean {close}?' if close else ''}")
    return None


def _code(entry: Entry) -> str | None:
    word = entry.text("a code such as unrelated-lineage", CODE_MAX_LENGTH)
    if word is None or word in WARNINGS:
        return word
    close = nearest(word, WARNINGS)
    entry.refuse(f"{quoted(word)} is no code of a warning{f'; did you mean {close}?' if close else ''}")
    return None


def _name(entry: Entry) -> str | None:
    text = entry.text("a name such as acme/chimera", MODEL_TEXT_MAX_LENGTH)
    if text is None:
        return None
    try:
        if parse_model_name(text).version is not None:
            entry.refuse("a name has no version here: the registry numbers them")
    except BadName as error:
        entry.refuse(str(error))
    return text
