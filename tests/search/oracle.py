"""A slow search that examines every row, as the expected result for searches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from organs.registry.catalog.vocabulary import unique_words
from organs.registry.names import split_quantisation
from organs.registry.search.language import Bounds, Choice, Query
from organs.registry.similarity import correlation
from tests.search.catalogs import RandomGain, RandomModel, RandomPlacement, WrittenCatalog

PLACES = {
    "theta": "theta",
    "signal": "signal",
    "z": "magnitude",
    "spectral": "spectral_signal",
    "rank": "stable_rank",
    "erank": "effective_rank",
    "size": "size_bytes",
    "block": "block",
}
FACTS = {
    "skeleton": (
        *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
        *("rope.dimension_count", "attention.sliding_window"),
    ),
    "organ": ("expert_count", "expert_used_count"),
}
MODELS = {
    "theta": "mean_theta",
    "signal": "mean_signal",
    "params": "parameters",
    "size": "size_bytes",
    "downloads": "downloads",
    "grafts": "grafts",
}


@dataclass(frozen=True, slots=True)
class Expected:
    """A placement or model in the expected result: its id and sort value."""

    id: int
    value: float | None


def expected_organs(placed: WrittenCatalog, query: Query) -> list[Expected]:
    """Return the visible placements that `query` finds, in order."""
    results = [
        Expected(
            row_id,
            _value(placed, query, row, model),
        )
        for row_id, (row, model) in placed.visible.items()
        if matches(placed, query, row, model)
    ]
    if query.unique:
        firsts: dict[int, int] = {}
        for result in results:
            organ = placed.rows[result.id][0].organ
            firsts[organ] = min(result.id, firsts.get(organ, result.id))
        results = [match for match in results if firsts[placed.rows[match.id][0].organ] == match.id]
    return sorted_by_value(results, query, "theta" if query.sort.field == "signal" else None, placed)


def _value(placed: WrittenCatalog, query: Query, row: RandomPlacement, model: RandomModel) -> float | None:
    """Return what a placement is sorted by."""
    if query.sort.field == "likeness":
        return likeness(placed, query, row, model)
    if query.sort.field == "gain":
        return organ_gain(placed, query, row.organ)
    value: float | None = getattr(row, PLACES[query.sort.field])
    return value


def expected_models(placed: WrittenCatalog, query: Query, *, ranked: bool = False) -> list[Expected]:
    """Return the visible models that `query` finds, in order."""
    results = [
        Expected(model_id, _model_value(placed, query, model, model_id, query.sort.field))
        for model_id, model in placed.models.items()
        if model.state == "visible"
        and all(_holds_for_model(placed, query, term, model, model_id) for term in query.terms)
        and _has_words(query, model)
        and (not ranked or (model.complete and model.kind == "model"))
    ]
    results = [result for result in results if result.value is not None or query.sort.field != "gain"]
    return sorted_by_value(results, query)


def sorted_by_value(
    found: list[Expected], query: Query, by: str | None = None, placed: WrittenCatalog | None = None
) -> list[Expected]:
    """Sort by value, then id, both in the direction of the sort; rows without a value come last."""

    def value(one: Expected) -> float | None:
        # The signal is the sine of θ. Near 90°, several angles have the same sine, so the angle decides.
        return one.value if by is None or placed is None else getattr(placed.rows[one.id][0], by)

    down = query.sort.descending
    valued = sorted(
        (match for match in found if match.value is not None), key=lambda one: (value(one), one.id), reverse=down
    )
    return valued + sorted((match for match in found if match.value is None), key=lambda one: one.id, reverse=down)


def matches(
    placed: WrittenCatalog, query: Query, row: RandomPlacement, model: RandomModel, but: str | None = None
) -> bool:
    """Return whether a placement matches the words and all terms except those on the field `but`."""
    return _matches_all(placed, query, [term for term in query.terms if term.field != but], row, model)


def _matches_all(
    placed: WrittenCatalog, query: Query, terms: Sequence[Choice | Bounds], row: RandomPlacement, model: RandomModel
) -> bool:
    if query.sort.field == "gain" and organ_gain(placed, query, row.organ) is None:
        return False
    return all(_holds(placed, query, term, row, model) for term in terms) and _has_words(query, model)


def kin(placed: WrittenCatalog, model_id: int) -> set[int]:
    """Return the ids of the kin of a model, by the definition; hidden models do not join others."""
    open_ids = {other for other, model in placed.models.items() if model.state in ("visible", "yanked")}
    links = [(edge.child, edge.parent) for edge in placed.edges if edge.evidence != "measured"]
    links = [(child, parent) for child, parent in links if {child, parent} <= open_ids]
    up, family = {model_id}, set[int]()
    while not up <= family:
        family |= up
        up = {parent for child, parent in links if child in family}
    while not family <= up:
        up |= family
        family = {child for child, parent in links if parent in up}
    return up | {other for other in placed.models if (model_likeness(placed, model_id, other) or 0) >= 0.5}


def model_likeness(placed: WrittenCatalog, first: int, second: int) -> float | None:
    """Return the measured likeness of two models, or of a model and itself."""
    scores = [
        edge.score
        for edge in placed.edges
        if edge.evidence == "measured" and {edge.child, edge.parent} == {first, second}
    ]
    return 1.0 if first == second else next(iter(scores), None)


@cache
def base_id(placed: WrittenCatalog, query: Query) -> int | None:
    """Return the id of the base of `query`: visible versions first, then the newest, then the oldest row."""
    bases = [] if query.base is None else bases_of(placed, query.base)
    ids = [model_id for model_id, model in placed.models.items() if any(model is base for base in bases)]
    ids.sort(key=lambda model_id: (placed.models[model_id].state != "visible", -placed.models[model_id].version))
    return ids[0] if ids else None


def likeness(placed: WrittenCatalog, query: Query, row: RandomPlacement, model: RandomModel) -> float | None:
    """Return the likeness of a placement to the organ of the base at the same place, by the definition."""
    base = base_id(placed, query)
    if base is None:
        return None
    place = (row.tower, row.block, row.slot)
    own = [other for other in placed.models[base].rows if (other.tower, other.block, other.slot) == place]
    if not own or own[-1].shape != row.shape:
        return None
    whole = model_likeness(placed, base, next(number for number, other in placed.models.items() if other is model))
    prints = [placed.prints.get(organ) for organ in (own[-1].organ, row.organ)]
    if "x" not in row.shape or own[-1].fingerprint == "constant":
        return whole
    if own[-1].organ == row.organ:
        return 1.0
    correlated = None if None in prints else correlation(prints[0] or b"", prints[1] or b"")
    return whole if correlated is None else correlated


TEXT_GROUPS = {"code": ("python", "javascript"), "prose": ("documentation", "encyclopedic", "narrative")}


@cache
def _gains(placed: WrittenCatalog, query: Query) -> list[RandomGain]:
    """Return the settled gains of visible chimeras that the base and the terms `on:` of a query select."""
    base = base_id(placed, query)
    rows = [row for row in placed.gains if row.settled and placed.models[row.chimera].state == "visible"]
    rows = [row for row in rows if base is None or row.base == base]
    for term in query.choices("on"):
        names = [name for value in term.values for name in TEXT_GROUPS.get(value.casefold(), (value,))]
        rows = [
            row
            for row in rows
            if any(_fits(name.casefold(), row.text.casefold()) for name in names) is not term.negated
        ]
    return rows


def organ_gain(placed: WrittenCatalog, query: Query, organ: int) -> float | None:
    """Return the largest gain that is attributed to an organ."""
    return max((row.percent for row in _gains(placed, query) if organ in row.organs), default=None)


def model_gain(placed: WrittenCatalog, query: Query, model_id: int) -> float | None:
    """Return the largest gain of a chimera, or of a model as the only donor of a chimera."""
    own = (row.percent for row in _gains(placed, query) if model_id in (row.chimera, row.donor))
    return max(own, default=None)


def _gain_matches(query: Query, term: Choice | Bounds, gain: float | None) -> bool:
    """Return whether a gain is within the bounds; a term `on:` without bounds needs some gain."""
    if isinstance(term, Bounds):
        return number_matches(term, gain)
    return gain is not None or bool(query.numbers("gain"))


def fits(row: RandomPlacement, model: RandomModel, base: RandomModel) -> bool:
    """Return whether the placement `row` of `model` can be grafted into `base`, by the definition."""
    if model is base or not base.architecture or model.architecture != base.architecture or row.type == "adapter":
        return False
    base_tensors = [
        tensor for tensor in base.rows if (tensor.tower, tensor.block, tensor.slot) == (row.tower, row.block, row.slot)
    ]
    if row.shape not in {tensor.shape for tensor in base_tensors} or row.organ in {
        tensor.organ for tensor in base_tensors
    }:
        return False
    keys = [f"{base.architecture}.{name}" for name in FACTS.get(row.type, ())]
    if any(dict(model.metadata).get(key) != dict(base.metadata).get(key) for key in keys):
        return False
    if row.dtype in {tensor.dtype for tensor in base_tensors} - {"F64"}:
        return True
    is_vector = row.elements == int(row.shape.split("x")[0])
    return row.dtype == "F32" if is_vector else row.dtype not in ("F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K")


def bases_of(placed: WrittenCatalog, value: str) -> list[RandomModel]:
    """Return the newest version of each model named `value`, or named so in other case if there is none."""
    name, _, version = value.partition("@")
    full_name = name if "/" in name else f"local/{name}"
    there = [model for model in placed.models.values() if model.state in ("visible", "yanked")]
    there = [model for model in there if version in ("", str(model.version))]
    alike = [model for model in there if f"{model.namespace}/{model.name}".lower() == full_name.lower()]
    same = [model for model in alike if f"{model.namespace}/{model.name}" == full_name] or alike
    newest: dict[tuple[str, str], RandomModel] = {}
    for one in sorted(same, key=lambda one: (one.state == "visible", one.version)):
        newest[one.namespace, one.name] = one
    return list(newest.values())


def value_counts(placed: WrittenCatalog, query: Query, field: str) -> dict[str, int]:
    """Return the counts of a field's values without the filter on that field, the largest first."""
    counts: Counter[str] = Counter()
    for row, model in placed.visible.values():
        if matches(placed, query, row, model, but=field):
            counts[_text(field, row, model)] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def histogram(placed: WrittenCatalog, query: Query) -> dict[int | None, int]:
    """Return the placements by the lower edge of their θ bin, without filters on θ and the signal."""
    terms = [term for term in query.terms if term.field not in ("theta", "signal")]
    counts: Counter[int | None] = Counter()
    for row, model in placed.visible.values():
        if _matches_all(placed, query, terms, row, model):
            counts[None if row.theta is None else min(85, int(row.theta // 5) * 5)] += 1
    return dict(sorted(counts.items(), key=lambda item: (item[0] is None, item[0] or 0)))


def _holds(
    placed: WrittenCatalog, query: Query, term: Choice | Bounds, row: RandomPlacement, model: RandomModel
) -> bool:
    if term.field == "likeness" and isinstance(term, Bounds):
        return number_matches(term, likeness(placed, query, row, model))
    if term.field in ("gain", "on"):
        return _gain_matches(query, term, organ_gain(placed, query, row.organ))
    if term.field == "kin" and isinstance(term, Choice):
        return _is_kin(placed, term, model)
    if isinstance(term, Bounds):
        return number_matches(term, getattr(row, PLACES[term.field]))
    if term.field == "fits":
        bases = [base for value in term.values for base in bases_of(placed, value)]
        return any(fits(row, model, base) for base in bases) is not term.negated
    return _chosen(term, row, model)


def _is_kin(placed: WrittenCatalog, term: Choice, model: RandomModel) -> bool:
    bases = [base for value in term.values for base in bases_of(placed, value)]
    ids = {number for number, other in placed.models.items() if any(other is base for base in bases)}
    family = set().union(*(kin(placed, number) for number in ids))
    return any(placed.models[number] is model for number in family) is not term.negated


def _holds_for_model(
    placed: WrittenCatalog, query: Query, term: Choice | Bounds, model: RandomModel, model_id: int
) -> bool:
    if term.field in ("gain", "on"):
        return _gain_matches(query, term, model_gain(placed, query, model_id))
    if isinstance(term, Bounds):
        return number_matches(term, _model_value(placed, query, model, model_id, term.field))
    if term.field == "base" and isinstance(term, Choice):
        return _is_made_from(placed, term, model_id)
    return _is_kin(placed, term, model) if term.field == "kin" else _chosen(term, None, model)


def _is_made_from(placed: WrittenCatalog, term: Choice, model_id: int) -> bool:
    parents = [
        placed.models[edge.parent] for edge in placed.edges if edge.child == model_id and edge.evidence != "measured"
    ]
    reachable = [parent for parent in parents if parent.state in ("visible", "yanked")]
    inside = any(
        not reachable if value == "none" else any(_is_named(parent, value) for parent in reachable)
        for value in term.values
    )
    return inside is not term.negated


def _model_value(placed: WrittenCatalog, query: Query, model: RandomModel, model_id: int, field: str) -> float | None:
    if field == "gain":
        return model_gain(placed, query, model_id)
    if field == "likeness":
        base = base_id(placed, query)
        return None if base is None else model_likeness(placed, base, model_id)
    return model_number(model, model_id, field)


def model_number(model: RandomModel, model_id: int, field: str) -> float | None:
    if field == "new":
        return model_id
    number: float | None = len(model.rows) if field == "tensors" else getattr(model, MODELS[field])
    return number


def number_matches(term: Bounds, value: float | None) -> bool:
    """Return whether a number matches a term; a minus inverts the result."""
    if value is None:
        return term.absent is not term.negated
    inside = False
    for interval in term.ranges:
        above = interval.low is None or (value > interval.low if interval.low_open else value >= interval.low)
        below = interval.high is None or (value < interval.high if interval.high_open else value <= interval.high)
        inside = inside or (above and below)
    return inside is not term.negated


def _chosen(term: Choice, row: RandomPlacement | None, model: RandomModel) -> bool:
    if term.field == "model":
        inside = any(_is_named(model, value) for value in term.values)
    else:
        own_texts = model.tags or ("none",) if term.field == "tag" else (_text(term.field, row, model),)
        inside = any(_fits(value.casefold(), own.casefold()) for own in own_texts for value in term.values)
    return inside is not term.negated


def _text(field: str, row: RandomPlacement | None, model: RandomModel) -> str:
    if field == "arch":
        return model.architecture or "none"
    if field == "license":
        return model.license or "none"
    if field == "by":
        return model.contributor
    if field == "quant":
        return split_quantisation(model.name)[1] or "none"
    if field == "kind":
        return model.kind if model.complete else "partial"
    if field == "nonfinite":
        count = model.nonfinite if row is None else row.nonfinite
        return "unknown" if count is None else "yes" if count else "no"
    return str(getattr(row, field))


def _is_named(model: RandomModel, value: str) -> bool:
    if "*" in value:
        full = f"{model.namespace}/{model.name}".lower()
        return _fits(value.lower() if "/" in value else f"*/{value.lower()}", full)
    name, _, version = value.partition("@")
    full_name = name if "/" in name else f"local/{name}"
    same = full_name.lower() == f"{model.namespace}/{model.name}".lower()
    return same and version in ("", str(model.version))


def _fits(pattern: str, text: str) -> bool:
    """Return whether `text` matches `pattern`, in which `*` means any text."""
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), text, re.DOTALL) is not None


def _has_words(query: Query, model: RandomModel) -> bool:
    own = unique_words([model.namespace, model.name, model.title, *model.tags, model.description])

    def begins(words: Sequence[str]) -> bool:
        return all(any(own_word.startswith(word) for own_word in own) for word in words)

    return begins(query.words) and not any(begins(words.split("-")) for words in query.excluded_words)
