"""Random recipes for hypothesis."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from organs.registry.anatomy import place_of
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.compose.blend_steps import Blend, BlendDonor, SettingRule
from organs.registry.compose.recipe import (
    ENCODINGS,
    FIXED_KEYS,
    FIXED_PREFIXES,
    GIVEN,
    PROVED,
    WARNINGS,
    WHOLE_MAX,
    WHOLE_MIN,
    AdapterMerge,
    ExpertChoice,
    Graft,
    PurifyMethod,
    Recipe,
    RecipePurification,
)

MISREAD = (
    "no",
    "on",
    "true",
    "null",
    "~",
    "1e5",
    "0x10",
    "012",
    "12:30",
    "2024-01-01",
    "5",
    "- a",
    "a: b",
    "a #b",
    "*",
)
"""Texts that some reader of YAML takes for another type."""

_WORDS = string.ascii_lowercase + "_*"
_CODES = tuple(WARNINGS)
_QUERIES = ("type:organ theta>=45", "like:0123456789ab", 'license:"llama 3" -coder', "sort:-size", "block:0-3,7 #5")
_RANKED = ("type:organ theta>=45", "unique:organ prose", 'model:"a: b"')
_MEASURES = ("", "theta>=45", "type:organ block:5", "-slot:a*,b -spectral:none")


def recipes() -> st.SearchStrategy[Recipe]:
    """Generate valid recipes that can be written."""
    return st.builds(
        Recipe,
        base=_models(),
        grafts=_several(_grafts()),
        blends=_several(_blends()),
        adapters=_several(st.builds(AdapterMerge, _models(), _scales())),
        purify=_several(_purifications()),
        experts=_several(_expert_choices()),
        encode=st.sampled_from(ENCODINGS),
        source=st.sampled_from((PROVED, GIVEN)) | _models(),
        accept=st.lists(st.sampled_from(_CODES), unique=True, max_size=3).map(tuple),
        metadata=_changes(),
        name=st.none() | st.sampled_from(("tiny", "acme/tiny", "2024", "no", "1e5")),
    )


def _several(steps: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(steps, max_size=3).map(tuple)


def _models() -> st.SearchStrategy[str]:
    printable = st.characters(exclude_categories=("C", "Z"))
    texts = st.text(printable | st.just(" "), min_size=1, max_size=40).map(str.strip).filter(bool)
    return texts | st.sampled_from(MISREAD)


def _grafts() -> st.SearchStrategy[Graft]:
    by_donor = st.builds(Graft, donor=_models(), **_selections())
    by_query = st.builds(Graft, where=st.sampled_from(_QUERIES), **_selections())
    ranked = st.builds(Graft, where=st.sampled_from(_RANKED), sort=st.sampled_from(("-theta", "size")), **_selections())
    return by_donor | by_query | ranked


def _selections() -> dict[str, st.SearchStrategy[object]]:
    """Return the strategies of the members of a selection."""
    slots = st.text(_WORDS, min_size=1, max_size=12) | st.sampled_from(("null", "5", "a.bias", "x+y", "~"))
    plain = slots.filter(lambda slot: slot not in GRAFTED_TYPES and place_of(slot).slot == slot)
    return {
        "types": st.lists(st.sampled_from(GRAFTED_TYPES), unique=True, max_size=4).map(tuple),
        "slots": st.lists(plain, unique=True, max_size=3).map(tuple),
        "blocks": _ranges(),
        "experts": _ranges(),
    }


def _ranges(least: int = 0) -> st.SearchStrategy[tuple[object, ...]]:
    ends = st.tuples(st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1)).map(sorted).map(tuple)
    listed = st.lists(ends | ends.map(lambda ends: (ends[0], ends[0])), unique=True, min_size=least, max_size=3)
    return listed.map(tuple)


def _blends() -> st.SearchStrategy[Blend]:
    place = {name: members for name, members in _selections().items() if name != "experts"}
    numbers = st.floats(0.25, 1.0)
    gradients = st.lists(numbers, min_size=1, max_size=3).map(tuple)
    rules = st.lists(st.builds(SettingRule, value=numbers | gradients, **place), min_size=1, max_size=3).map(tuple)
    settings = numbers | gradients | rules
    each = st.dictionaries(st.sampled_from(("density", "weight")), settings).map(lambda own: {"weight": 0.5, **own})
    donors = st.builds(BlendDonor, model=_models(), adapter=st.none() | _models(), parameters=each)
    shared = st.fixed_dictionaries({}, optional={"normalize": st.booleans(), "lambda": settings})
    several = st.builds(
        Blend,
        method=st.sampled_from(("ties", "dare_ties")),
        models=st.lists(donors, min_size=1, max_size=3).map(tuple),
        parameters=shared,
        seed=st.integers(0, 2**32 - 1),
        where=st.just("") | st.sampled_from(_MEASURES),
        **place,
    )
    one = st.builds(Blend, donor=_models(), parameters=settings.map(lambda weight: {"weight": weight}), **place)
    return several | one | st.builds(Blend, method=st.just("slerp"), donor=_models(), parameters=st.just({"t": 0.5}))


def _expert_choices() -> st.SearchStrategy[ExpertChoice]:
    blocks = _ranges()
    return st.builds(ExpertChoice, keep=_ranges(1), blocks=blocks) | st.builds(
        ExpertChoice, drop=_ranges(1), blocks=blocks
    )


def _scales() -> st.SearchStrategy[float]:
    return st.just(1.0) | st.floats(-100, 100).filter(bool)


def _purifications() -> st.SearchStrategy[RecipePurification]:
    keeps = st.none() | st.floats(0, 1, exclude_min=True)
    spectral, fractal = (st.just(method) for method in (PurifyMethod.SPECTRAL, PurifyMethod.FRACTAL))
    queries = st.sampled_from(_MEASURES)
    return st.builds(RecipePurification, spectral, queries, keeps, **_selections()) | st.builds(
        RecipePurification, fractal, queries, **_selections()
    )


def _changes() -> st.SearchStrategy[dict[str, object]]:
    printable = st.characters(min_codepoint=0x20, max_codepoint=0x7E)
    keys = (st.text(printable, min_size=1, max_size=255) | st.sampled_from(MISREAD)).filter(
        lambda key: key not in FIXED_KEYS and not key.startswith(FIXED_PREFIXES)
    )
    texts = (
        st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))
        | st.text(" a:#\n\r\t'\"\\\x1b\x85\u2028\ufeff", max_size=12)
        | st.sampled_from(MISREAD)
    )
    numbers = st.integers(WHOLE_MIN, WHOLE_MAX) | st.floats(allow_nan=False, allow_infinity=False)
    values = texts | numbers | st.booleans() | st.lists(texts, max_size=4).map(tuple)
    return st.dictionaries(keys, values, max_size=4)
