"""Plan a search: narrow its query to facets and models, and choose the index that answers it."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import accumulate, compress, groupby, islice
from operator import add, sub
from operator import and_ as bitwise_and
from typing import Any, Protocol

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Subquery,
    and_,
    false,
    func,
    not_,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.orm import Session, aliased

from organs.registry.anatomy import type_name
from organs.registry.catalog.cache import cached
from organs.registry.catalog.cursor import Cursor
from organs.registry.catalog.engine import among
from organs.registry.catalog.queries.model_names import (
    incomplete_model,
    incomplete_models,
    incompleteness,
    meant_models,
    model_of_other_name,
)
from organs.registry.catalog.queries.relatives import kin_of
from organs.registry.catalog.tables import (
    RANKED_COLUMNS,
    Contributor,
    Facet,
    FacetCount,
    Lineage,
    Model,
    ModelTag,
    ModelWord,
    Organ,
    Placement,
)
from organs.registry.catalog.vocabulary import (
    BIN_DEGREES,
    ORGAN_TYPES,
    REACHABLE_STATES,
    TEXT_GROUPS,
    THETA_MAX_DEGREES,
    UNMEASURED,
    folded_tag,
    folded_words,
    theta_bin,
)
from organs.registry.errors import BadName
from organs.registry.measures import MEASURES
from organs.registry.names import ModelName, nearest, parse_model_name
from organs.registry.search.fitting import Base, Fitting, base_of, fitting, same_models
from organs.registry.search.gains import GainFilter, names_of_texts
from organs.registry.search.language import (
    BASES_MAX,
    EXPERT,
    GAIN,
    LIKENESS,
    NO,
    ON,
    UNKNOWN,
    YES,
    Bounds,
    Choice,
    NumberRange,
    Query,
    Sort,
)

FACETS_MAX = 20_000
"""The most facets that are kept in memory, about a kilobyte each. If there are more, each search reads the database."""

FACET_COLUMNS = {
    "type": Facet.type,
    "tower": Facet.tower,
    "slot": Facet.slot,
    "dtype": Facet.dtype,
    "arch": Facet.architecture,
    "license": Facet.license,
}
BINS = (UNMEASURED, *range(0, THETA_MAX_DEGREES, BIN_DEGREES))
"""The lower edges of the bins, in the order of a roll-up."""

Mask = Sequence[bool]
"""Whether each facet is selected, by its position."""


class Filter(Protocol):
    """A filter on the values of one field."""

    @property
    def field(self) -> str:
        """The name of the field."""

    def takes(self, value: str) -> bool:
        """Return whether a facet with `value` matches."""


@dataclass(frozen=True, slots=True)
class RollUp:
    """The facets of visible placements, by position, with their counts."""

    positions: Mapping[int, int]
    """Position by facet id."""
    columns: Mapping[str, Sequence[str]]
    """The value of each facet, by field."""
    different: Mapping[str, Sequence[str]]
    """The different values, sorted, by field."""
    bins: Sequence[Sequence[int]]
    """For each of `BINS`, the number of placements in it, by facet."""
    before: Sequence[Sequence[int]]
    """For each of `BINS`, and for the end, the number of placements in all bins before it, by facet."""

    @property
    def everything(self) -> Mask:
        """A mask that selects all facets."""
        return [True] * len(self.positions)

    def mask(self, filters: Iterable[Filter]) -> Mask:
        """Return a mask of the facets that match all `filters`."""
        mask = self.everything
        for condition in filters:
            values = {value for value in self.different[condition.field] if condition.takes(value)}
            mask = list(map(bitwise_and, mask, map(values.__contains__, self.columns[condition.field])))
        return mask

    def counts(self, first: int = 0, last: int = len(BINS)) -> Sequence[int]:
        """Return the number of placements in `BINS[first:last]`, by facet."""
        return list(map(sub, self.before[last], self.before[first]))

    def shared(self, shares: Sequence[float]) -> Sequence[float]:
        """Return the weighted number of placements, by facet; `shares` has one weight for each of `BINS`."""
        total: Sequence[float] = [0] * len(self.positions)
        first = 0
        for share, group in groupby(shares):  # neighbours with the same share are one step; most shares are 0 or 1
            last = first + len(list(group))
            if share:
                part = map(share.__mul__, map(float, self.counts(first, last)))
                total = list(map(add, total, part))
            first = last
        return total

    def histogram(self, mask: Mask) -> dict[int, int]:
        """Return the number of placements of the facets in `mask`, by the lower edge of each bin that is not empty."""
        sizes = {lower: sum(compress(counts, mask)) for lower, counts in zip(BINS, self.bins, strict=True)}
        return {lower: count for lower, count in sizes.items() if count}


def sums(values: Sequence[str], counts: Sequence[float], mask: Mask) -> dict[str, float]:
    """Return the sum of the counts where `mask` is true, by value."""
    totals: dict[str, float] = {}
    for value, count in zip(compress(values, mask), compress(counts, mask), strict=True):
        totals[value] = totals.get(value, 0) + count
    return totals


def held_roll_up(session: Session) -> RollUp | None:
    """Return the cached roll-up, as `session` sees it; None if there are more than `FACETS_MAX` facets."""
    return cached(session, "facets", lambda: _read_if_small(session))


def roll_up(session: Session) -> RollUp:
    """Return the roll-up, for any number of facets."""
    return held_roll_up(session) or _read(session)


def _read_if_small(session: Session) -> RollUp | None:
    number = session.scalar(select(func.count()).select_from(select(Facet.id).limit(FACETS_MAX + 1).subquery()))
    return _read(session) if (number or 0) <= FACETS_MAX else None


def _read(session: Session) -> RollUp:
    indexes = {lower: index for index, lower in enumerate(BINS)}
    counts: dict[int, list[int]] = {}
    for facet_id, lower, count in session.execute(
        select(FacetCount.facet_id, FacetCount.theta_bin, FacetCount.placements).where(FacetCount.placements > 0)
    ):
        counts.setdefault(facet_id, [0] * len(BINS))[indexes[lower]] += count
    statement = select(Facet.id, *FACET_COLUMNS.values()).order_by(Facet.id)
    facets: list[Any] = [row for row in session.execute(statement) if row[0] in counts]
    sums_before = [list(accumulate(counts[row[0]], initial=0)) for row in facets]
    columns = {name: [row[index] for row in facets] for index, name in enumerate(FACET_COLUMNS, 1)}
    return RollUp(
        positions={row[0]: position for position, row in enumerate(facets)},
        columns=columns,
        different={name: sorted(set(column)) for name, column in columns.items()},
        bins=[[counts[row[0]][index] for row in facets] for index in range(len(BINS))],
        before=[list(column) for column in zip(*sums_before, strict=True)] or [[]] * (len(BINS) + 1),
    )


_SURROGATES_BEGIN, _SURROGATES_END = 0xD800, 0xE000


def models_with_words(words: Sequence[str]) -> Select[int]:
    """Return a SELECT of the ids of models that have a word with each of the prefixes `words`. Words are folded."""
    assert words
    first, *others = [_models_with_prefix(word) for word in words]
    for other in others:
        first = first.where(ModelWord.model_id.in_(other))
    return first


def _models_with_prefix(word: str) -> Select[int]:
    # A range instead of LIKE, because on every database it uses the index and has the same meaning.
    return select(ModelWord.model_id).where(and_(ModelWord.word >= word, ModelWord.word < _after_prefix(word)))


def _after_prefix(word: str) -> str:
    """Return the smallest text that sorts after all texts with the prefix `word`."""
    following = ord(word[-1]) + 1
    if _SURROGATES_BEGIN <= following < _SURROGATES_END:
        following = _SURROGATES_END
    return word[:-1] + chr(following) if following <= 0x10FFFF else word + chr(0x10FFFF)


NAMES_MAX = 5000
"""The most names that are searched for a pattern or for another spelling."""
NEAREST_MAX, NEAREST_MAX_LENGTH = 500, 64
"""The most names that an unknown name is compared with, and the length of the longest name that is compared. Names of
a hostile length take up to a millisecond each."""
NOTES_MAX = 5
"""The most notes on unknown names in one answer."""
SAME_SHOWN = 3
"""The most names of models in the note that they are the same model as a base."""
ABSENT = "none"

CLOSED_FIELDS = ("type", "tower")
"""The fields whose values are the same in every registry."""
MODEL_FIELDS = ("model", "by", "kin", "nonfinite")
"""The fields that filter the model of an organ, beside words."""


@dataclass(frozen=True, slots=True)
class FacetFilter:
    """A filter on a column of facets: the values that match, or with `negated` those that do not."""

    field: str
    values: frozenset[str]
    negated: bool

    def takes(self, value: str) -> bool:
        """Return whether a facet with `value` matches."""
        return (value in self.values) is not self.negated

    @property
    def condition(self) -> ColumnElement[bool]:
        """The filter in SQL."""
        column = FACET_COLUMNS[self.field]
        return column.not_in(sorted(self.values)) if self.negated else column.in_(sorted(self.values))


MODELS_LISTED_MAX = 5000
"""The most models whose ids are read before a search. A page needs up to seven statements, each of which would evaluate
a SELECT of the models again."""


@dataclass(frozen=True, slots=True)
class ModelFilter:
    """The models to search."""

    statement: Select[int]
    """A SELECT of their ids."""
    key: Hashable
    """A key for caches. Filters with equal keys have the same models."""
    ids: Sequence[int] | None
    """Their ids; None if there are more than MODELS_LISTED_MAX."""
    tensors: int
    """Their number of tensors."""

    def condition(self, column: Any) -> ColumnElement[bool]:
        """Return the condition that `column` is the id of one of the models."""
        return column.in_(self.statement) if self.ids is None else among(column, self.ids)


@dataclass(slots=True)
class Narrowed:
    """A resolved query. A matching placement, or expert, meets all of its conditions."""

    finds_experts: bool = False
    """Whether the results are experts instead of placements."""
    facets: list[FacetFilter] = field(default_factory=list)
    models: ModelFilter | None = None
    """The models to search; None for all."""
    fitting: list[Fitting] = field(default_factory=list)
    numbers: list[Bounds] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    nonfinite: list[Choice] = field(default_factory=list)
    """The filters by NaN and infinite values; `models` already excludes models without matching organs."""
    base_id: int | None = None
    """The model that `likeness` compares with; None without a base."""
    likeness: list[Bounds] = field(default_factory=list)
    """The filters by likeness. They are not part of the conditions in SQL."""
    gains: GainFilter | None = None
    """The gains that the query filters or sorts by; None if it does not mention them."""

    @property
    def facet_filters(self) -> list[FacetFilter]:
        """The filters on facets, including those that follow from `fits:`."""
        implied = [(name, term.values(name)) for term in self.fitting for name in ("arch", "type", "slot")]
        return [*self.facets, *(FacetFilter(name, values, False) for name, values in implied if values is not None)]

    @property
    def facet_conditions(self) -> list[ColumnElement[bool]]:
        """The filters on facets in SQL."""
        return [condition.condition for condition in self.facet_filters]


def narrow(session: Session, query: Query) -> Narrowed:
    """Resolve `query`. An unknown name matches nothing; a note reports it and suggests the nearest name."""
    narrowed = Narrowed(
        finds_experts=query.finds_experts,
        numbers=[term for term in query.terms if isinstance(term, Bounds) and term.field not in (LIKENESS, GAIN)],
        nonfinite=query.choices("nonfinite"),
        likeness=query.numbers(LIKENESS),
    )
    for name in FACET_COLUMNS:
        for choice in query.choices(name):
            values = choice.values
            if name not in CLOSED_FIELDS:
                values = _facet_values(session, choice, narrowed.notes)
            narrowed.facets.append(FacetFilter(name, frozenset(values), choice.negated))
    narrowed.models, notes = _models_of(session, query)
    narrowed.notes += notes[: max(0, NOTES_MAX - len(narrowed.notes))]
    for choice in query.choices("fits"):
        narrowed.fitting.append(fitting(session, choice, _bases(session, choice, narrowed.notes)))
    narrowed.notes += _same_notes(session, [term for term in narrowed.fitting if not term.negated])
    narrowed.base_id = base_id_of(session, query, narrowed.notes)
    narrowed.gains = gains_of(session, query, narrowed.base_id, narrowed.notes)
    return narrowed


def _models_of(session: Session, query: Query) -> tuple[ModelFilter | None, tuple[str, ...]]:
    """Return the models that `query` names, None for all, and notes."""
    named = [choice for name in MODEL_FIELDS for choice in query.choices(name)]
    if not (named or query.words or query.excluded_words):
        return None, ()
    key = (tuple(named), query.words, query.excluded_words)  # the order matters to the notes

    def read() -> tuple[ModelFilter, tuple[str, ...]]:
        notes: list[str] = []
        conditions = [*model_conditions(session, query, notes), *map(_may_have, query.choices("nonfinite"))]
        statement = select(Model.id).where(Model.state == "visible", *conditions)
        rows = session.execute(statement.add_columns(Model.tensors).limit(MODELS_LISTED_MAX + 1)).all()
        if len(rows) <= MODELS_LISTED_MAX:
            ids = array("q", [model_id for model_id, _ in rows])
            return ModelFilter(statement, key, ids, sum(tensors for _, tensors in rows)), tuple(notes)
        tensors = select(func.coalesce(func.sum(Model.tensors), 0)).where(Model.id.in_(statement))
        return ModelFilter(statement, key, None, int(session.scalar(tensors) or 0)), tuple(notes)

    return cached(session, ("models", key), read)


def gains_of(session: Session, query: Query, base_id: int | None, notes: list[str]) -> GainFilter | None:
    """Return the gains that `query` is about, over the model `base_id` or any base; None if it does not mention them.

    Texts without a gain are noted.
    """
    if not query.mentions_gains:
        return None
    texts = known_texts(session, query.choices(ON), notes)
    return GainFilter(texts, base_id, tuple(query.numbers(GAIN)), is_order=query.sort.field == GAIN)


def known_texts(
    session: Session, choices: Iterable[Choice], notes: list[str]
) -> tuple[tuple[tuple[str, ...], bool], ...]:
    """Return for each term `on:` the names of texts that it selects, and whether it is negated.

    A group selects its texts, and a text of its own name. Names and groups without a gain are noted.
    """
    return tuple((tuple(_texts_of(session, choice, notes)), choice.negated) for choice in choices)


def _texts_of(session: Session, choice: Choice, notes: list[str]) -> Iterator[str]:
    for value in choice.values:
        group = TEXT_GROUPS.get(value.casefold())
        if group is None:
            yield from known_values(session, replace(choice, values=(value,)), names_of_texts(), notes)
            continue
        names = known_values(session, replace(choice, values=(value, *group)), names_of_texts(), [])
        if not names and not choice.negated and len(notes) < NOTES_MAX:
            notes.append(_missing_note(ON, value, ()))
        yield from names


def _same_notes(session: Session, fitting: Iterable[Fitting]) -> Iterator[str]:
    """Yield a note for each base that has the same organs as other models, which therefore do not fit."""
    for base in dict.fromkeys(base.id for term in fitting for base in term.bases):
        model = session.get_one(Model, base)
        names = same_models(session, model)
        if names:
            more = f", and {len(names) - SAME_SHOWN} more" if len(names) > SAME_SHOWN else ""
            yield f"the same model as {model.full_name}, organ by organ: {', '.join(names[:SAME_SHOWN])}{more}"


def base_id_of(session: Session, query: Query, notes: list[str]) -> int | None:
    """Return the model that `likeness` in `query` compares with; None if there is none.

    If several models have the name in other case, the first is used, and a note names it.
    """
    if query.base is None:
        return None
    ids = _newest_models(session, query.base)
    if len(ids) > 1:
        notes.append(f"several models are called {query.base}; the likeness is that to {_full_name(session, ids[0])}")
    return ids[0] if ids else None


def _full_name(session: Session, model_id: int) -> str:
    return session.get_one(Model, model_id).full_name


def known_values(session: Session, choice: Choice, existing: Select[Any], notes: list[str]) -> tuple[str, ...]:
    """Return the values of the SELECT `existing` that match `choice`. `none` matches missing values, returned as "".

    The SELECT is filtered by name, so the number of other values does not matter. At most `NAMES_MAX` matches of a
    pattern are used; a note says if there are more.
    """
    column = existing.selected_columns[0]
    matching = or_(column.is_(None), column == "", *(_matches_text(value, column) for value in choice.values))
    values = session.scalars(existing.where(matching).distinct().limit(NAMES_MAX + 1)).all()
    if len(values) > NAMES_MAX:
        notes.append(f"{choice} matches more than {NAMES_MAX} names; only {NAMES_MAX} of them were used")
    by_name = _values_by_name(values[:NAMES_MAX])
    if not all(_matching(choice.values, list(by_name)).values()):
        by_name = _values_by_name([*values[:NAMES_MAX], *session.scalars(existing.distinct().limit(NAMES_MAX))])
    return _choose_values(choice, by_name, notes)


def _facet_values(session: Session, choice: Choice, notes: list[str]) -> tuple[str, ...]:
    """Return the values of facets that match `choice`."""
    facets = held_roll_up(session)
    if facets is None or len(facets.different[choice.field]) > NAMES_MAX:
        existing = select(FACET_COLUMNS[choice.field]).where(_is_counted())
        return known_values(session, choice, existing, notes)
    return _choose_values(choice, _values_by_name(facets.different[choice.field]), notes)


def _choose_values(choice: Choice, by_name: Mapping[str, set[str]], notes: list[str]) -> tuple[str, ...]:
    """Return the values whose names match `choice`, sorted, and note the names that do not exist."""
    matches = _matching(choice.values, list(by_name))
    if not choice.negated:
        for value, names in matches.items():
            if not names and len(notes) < NOTES_MAX:
                notes.append(_missing_note(choice.field, value, by_name))
    return tuple(sorted({value for names in matches.values() for name in names for value in by_name[name]}))


def model_conditions(session: Session, query: Query, notes: list[str]) -> list[ColumnElement[bool]]:
    """Return the conditions of `model:`, `by:`, `kin:` and words on models, and note names that do not exist."""
    conditions = [_name_condition(session, choice, notes) for choice in query.choices("model")]
    conditions += [_kin_condition(session, choice, notes) for choice in query.choices("kin")]
    for choice in query.choices("by"):
        visible = select(Model.id).where(Model.contributor_id == Contributor.id, Model.state == "visible")
        names = known_values(session, choice, select(Contributor.name).where(visible.exists()), notes)
        ids = select(Contributor.id).where(Contributor.name.in_(names))
        condition = Model.contributor_id.in_(ids)
        conditions.append(not_(condition) if choice.negated else condition)
    if query.words:
        conditions.append(Model.id.in_(models_with_words(query.words)))
        _note_words(session, query.words, notes)
    conditions += [Model.id.not_in(models_with_words(words.split("-"))) for words in query.excluded_words]
    return conditions


def tag_condition(session: Session, choice: Choice, notes: list[str]) -> ColumnElement[bool]:
    """Return the condition that a model has one of the chosen tags. A tag without `*` is found by the index of tags."""
    conditions: list[ColumnElement[bool]] = []
    for value in choice.values:
        tagged = select(ModelTag.model_id)
        if value.casefold() == ABSENT:
            conditions.append(Model.id.not_in(tagged))
            continue
        name = folded_tag(value)
        tagged = tagged.where(_matches_text(name, ModelTag.tag) if "*" in name else ModelTag.tag == name)
        conditions.append(Model.id.in_(tagged))
        _note_missing(session, choice, value, conditions[-1], notes)
    return not_(or_(*conditions)) if choice.negated else or_(*conditions)


def made_from_condition(session: Session, choice: Choice, notes: list[str]) -> ColumnElement[bool]:
    """Return the condition that a model was made from one of the chosen models, by declaration or by record."""
    conditions: list[ColumnElement[bool]] = []
    for value in choice.values:
        parents = select(Model.id).where(Model.state.in_(REACHABLE_STATES))
        if value.casefold() == ABSENT:
            conditions.append(Model.id.not_in(_children(parents)))
            continue
        named = _matches_pattern(value) if "*" in value else _matches_name(value)
        if named is None:
            notes += [_missing_note(choice.field, value, ())] if not choice.negated and len(notes) < NOTES_MAX else []
            continue
        conditions.append(Model.id.in_(_children(parents.where(named))))
        _note_missing(session, choice, value, conditions[-1], notes)
    condition = or_(*conditions) if conditions else Model.id < 0
    return not_(condition) if choice.negated else condition


def _children(parents: Select[int]) -> Select[Any]:
    """Return a SELECT of the ids of the models that were made from `parents`."""
    edges = select(Lineage.child_model_id).where(Lineage.child_model_id.is_not(None), Lineage.evidence != "measured")
    return edges.where(Lineage.parent_model_id.in_(parents))


def _note_missing(
    session: Session, choice: Choice, value: str, condition: ColumnElement[bool], notes: list[str]
) -> None:
    """Add a note if no visible model meets `condition`, which `value` selects."""
    if choice.negated or len(notes) >= NOTES_MAX:
        return
    if session.scalar(select(Model.id).where(Model.state == "visible", condition).limit(1)) is None:
        notes.append(_missing_note(choice.field, value, ()))


def _kin_condition(session: Session, choice: Choice, notes: list[str]) -> ColumnElement[bool]:
    """Return the condition that a model is one of the chosen models or their kin."""
    ids: set[int] = set()
    for value in choice.values:
        named = _newest_models(session, value)
        ids.update(*(kin_of(session, model_id) for model_id in named))
        if not named and not choice.negated and len(notes) < NOTES_MAX:
            notes.append(_missing_model_note(session, choice, value))
    condition = among(Model.id, sorted(ids))
    return not_(condition) if choice.negated else condition


def nonfinite_condition(choice: Choice, column: Any) -> ColumnElement[bool]:
    """Return the condition of `nonfinite:` on `column`, a count of values or of tensors."""
    conditions = {YES: column > 0, NO: column == 0, UNKNOWN: column.is_(None)}
    condition = or_(*(conditions[value] for value in choice.values))
    return not_(func.coalesce(condition, false())) if choice.negated else func.coalesce(condition, false())


def _may_have(choice: Choice) -> ColumnElement[bool]:
    """Return the condition that a model may have an organ that matches `choice`, a term of `nonfinite:`.

    Only `nonfinite:yes` excludes models. The count of a model is unknown if some of its organs were not counted. Its
    other organs may still have NaN or infinite values.
    """
    is_yes_only = set(choice.values) == {YES} and not choice.negated
    return or_(Model.nonfinite_tensors > 0, Model.nonfinite_tensors.is_(None)) if is_yes_only else true()


def _note_words(session: Session, words: Sequence[str], notes: list[str]) -> None:
    """Add a note if no model has the words; it suggests `slot:` or `type:` if they are the name of a slot or a type."""
    matches = select(Model.id).where(Model.state == "visible", Model.id.in_(models_with_words(words)))
    if session.scalar(matches.limit(1)) is not None:
        return
    incomplete = [str(error) for error in incomplete_models(session) if set(words) <= set(folded_words(error.name))]
    if incomplete:
        notes += incomplete[:NOTES_MAX]
        return
    slots = session.scalars(select(Facet.slot).where(_is_counted()).distinct().limit(NAMES_MAX))
    slot = max((slot for slot in slots if set(folded_words(slot)) <= set(words)), key=len, default=None)
    kind = next((kind for kind in ORGAN_TYPES if folded_words(type_name(kind)) == [*words]), None)
    hint = f"; to search for organs in this slot, write slot:{slot}" if slot else ""
    hint = f"; to search for organs of this type, write type:{kind}" if kind else hint
    noun = "word" if len(words) == 1 else "words"
    notes.append(f"no model has the {noun} {' '.join(words)[:NEAREST_MAX_LENGTH]}{hint}")


def _incomplete_note(session: Session, value: str) -> str | None:
    """Return the sentence about the incomplete model with the name `value`; None if there is none."""
    with suppress(BadName):
        model = incomplete_model(session, parse_model_name(value))
        return None if model is None else str(incompleteness(session, model))
    return None


def _is_counted() -> ColumnElement[bool]:
    """Return the condition that a visible placement has the facet. Other facets are never shown."""
    return select(FacetCount.facet_id).where(FacetCount.facet_id == Facet.id, FacetCount.placements > 0).exists()


OTHERS_MAX = 20
"""The most names in a query that are looked up as other names of models."""


def _name_condition(session: Session, choice: Choice, notes: list[str]) -> ColumnElement[bool]:
    """Return the condition that a model has one of the chosen names; `namespace/name` is compared without case."""
    conditions: list[ColumnElement[bool]] = []
    looked_up = 0
    for value in choice.values:
        condition = _matches_pattern(value) if "*" in value else _matches_name(value)
        exists = condition is not None and session.scalar(
            select(Model.id).where(Model.state == "visible", condition).limit(1)
        )
        if condition is not None and not exists and "*" not in value and looked_up < OTHERS_MAX:
            looked_up += 1
            other = Model.id.in_(_other_models(session, parse_model_name(value)))
            exists = session.scalar(select(Model.id).where(Model.state == "visible", other).limit(1))
            condition = other if exists else condition
        if condition is not None:
            conditions.append(condition)
        if not exists and not choice.negated and len(notes) < NOTES_MAX:
            missing = _incomplete_note(session, value) or _missing_note("model", value, _model_names(session))
            notes.append(missing)
    condition = or_(*conditions) if conditions else Model.id < 0
    return not_(condition) if choice.negated else condition


def _bases(session: Session, choice: Choice, notes: list[str]) -> list[Base]:
    """Return the models that `fits:` names. A name without a version is its newest version."""
    bases: dict[int, Base] = {}
    for value in choice.values:
        models = _newest_models(session, value)
        known = {model_id: base for model_id in models if (base := base_of(session, model_id)) is not None}
        bases |= known
        if known or choice.negated or len(notes) >= NOTES_MAX:
            continue
        if models:
            notes.append(f"{value} states no architecture, so no organ is known to fit it")
        else:
            notes.append(_missing_model_note(session, choice, value))
    return list(bases.values())


def _missing_model_note(session: Session, choice: Choice, value: str) -> str:
    missing = f"no model here is called {value}" + _nearest_hint(choice.field, value, _model_names(session))
    return _incomplete_note(session, value) or missing


def _newest_models(session: Session, value: str) -> list[int]:
    """Return the ids of the models with the name `value`, or of models whose name differs only in case."""
    name = parse_model_name(value)  # the parser of the query checked it
    exactly = and_(Model.namespace == name.namespace, Model.name == name.name)
    for condition in (exactly, _matches_text(f"{name.namespace}/{name.name}", Model.namespace + "/" + Model.name)):
        rows = select(Model.id, Model.namespace, Model.name).where(condition, Model.state.in_(REACHABLE_STATES))
        if name.version is not None:
            rows = rows.where(Model.version == name.version)
        # A yanked version is used only if there is no other.
        ordered = session.execute(
            rows.order_by(Model.state != "visible", Model.version.desc(), Model.id).limit(NAMES_MAX)
        )
        newest: dict[tuple[str, str], int] = {}
        for model_id, namespace, own_name in ordered:
            newest.setdefault((namespace, own_name), model_id)
        if newest:
            return list(newest.values())[:BASES_MAX]
    return _other_models(session, name)


def _other_models(session: Session, name: ModelName) -> list[int]:
    """Return the id of the model that has `name` beside its own, or else the ids of those that it may mean."""
    other = model_of_other_name(session, name)
    if other is not None:
        return [other.id]
    return [model.id for model in meant_models(session, name).values()][:BASES_MAX]


def _model_names(session: Session) -> list[str]:
    visible = select(Model.namespace, Model.name).where(Model.state == "visible")
    return [f"{namespace}/{name}" for namespace, name in session.execute(visible.distinct().limit(NAMES_MAX))]


def _matches_pattern(value: str) -> ColumnElement[bool]:
    return _matches_text(value if "/" in value else f"*/{value}", Model.namespace + "/" + Model.name)


def _matches_text(value: str, column: Any) -> ColumnElement[bool]:
    """Return the condition that `column` matches `value`; `*` is any text.

    Case is ignored for the letters that the database knows.
    """
    # LIKE distinguishes case on some databases only. With both sides in lower case, the result is the same on all.
    escaped = value.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
    return func.lower(column).like(escaped, escape="\\")


def _values_by_name(values: Iterable[str | None]) -> dict[str, set[str]]:
    """Return the values by their names in a query. The name of a missing value is `none`."""
    by_name: dict[str, set[str]] = {}
    for value in values:
        by_name.setdefault(value or ABSENT, set()).add(value or "")
    return by_name


def _matches_name(value: str) -> ColumnElement[bool] | None:
    try:
        name = parse_model_name(value)
    except BadName:
        return None
    condition = _matches_text(f"{name.namespace}/{name.name}", Model.namespace + "/" + Model.name)
    return condition if name.version is None else and_(condition, Model.version == name.version)


def _matching(values: Sequence[str], names: Sequence[str]) -> dict[str, set[str]]:
    """Return the names that match each value, without regard to case; `*` is any text."""
    matches = {}
    folded = [(name, name.casefold()) for name in names]
    for value in values:
        folded_value = value.casefold()
        if "*" in value:
            pattern = folded_value.replace("[", "[[]").replace("?", "[?]")
            matches[value] = {name for name, text in folded if fnmatchcase(text, pattern)}
        else:
            matches[value] = {name for name, text in folded if text == folded_value}
    return matches


def _missing_note(name: str, value: str, existing: Iterable[str]) -> str:
    missing = f"nothing was measured on {value}" if name == ON else f"nothing in this registry has {name}:{value}"
    return missing + _nearest_hint(name, value, existing)


def _nearest_hint(name: str, value: str, existing: Iterable[str]) -> str:
    close = nearest(value, islice(existing, NEAREST_MAX)) if len(value) <= NEAREST_MAX_LENGTH else None
    return f"; the nearest is {name}:{close}" if close else ""


COLUMNS = {measure.field: measure.name for measure in MEASURES.values()} | {
    "size": "size_bytes",
    "block": "block",
    EXPERT: EXPERT,
}
"""The column of placements, or of experts, for each field."""
RANKINGS = {measure.field: measure.ranked_as or measure.name for measure in MEASURES.values()} | {"size": "size_bytes"}
"""The column of the index that sorts by each field. The signal is the sine of θ, so it has the same order."""
SIGNAL_SLACK_DEGREES = 1e-6
"""The number of degrees by which a bound on the signal is widened when the index tests it on θ. The exact bound is then
tested on the signal."""


WHOLE_MAX = 2.0**62
"""Whole numbers of the catalog are smaller; larger bounds would not fit into a column."""


def placement_condition(term: Bounds, entity: Any = Placement) -> ColumnElement[bool]:
    """Return `term` as a condition on the placements `entity`."""
    return number_condition(term, getattr(entity, COLUMNS[term.field]))


def number_condition(term: Bounds, column: Any) -> ColumnElement[bool]:
    """Return `term` as a condition on `column`; a negated term also matches rows without a number."""
    allowed = [_within(interval, column) for interval in term.ranges]
    allowed += [column.is_(None)] if term.absent else []
    condition = or_(*allowed)
    if not term.negated:
        return condition
    return not_(condition) if term.absent else or_(not_(condition), column.is_(None))


def index_conditions(numbers: Sequence[Bounds], entity: Any = Placement) -> list[ColumnElement[bool]]:
    """Return bounds on θ from those on θ and the signal. Each index has θ, so rows outside of them are not fetched."""
    low, high = stretch(numbers, "theta")
    return [*([entity.theta >= low] if low is not None else []), *([entity.theta <= high] if high is not None else [])]


def conditions_on(column: str, numbers: Sequence[Bounds], entity: Any) -> list[ColumnElement[bool]]:
    """Return the conditions on one column of the placements `entity`."""
    bounds = index_conditions(numbers, entity) if column == "theta" else []
    return bounds + [placement_condition(term, entity) for term in numbers if COLUMNS[term.field] == column]


def ranges(numbers: Iterable[Bounds], column: str) -> list[Bounds]:
    """Return the terms that limit `column` to intervals and exclude rows without a number."""
    terms = [term for term in numbers if RANKINGS.get(term.field) == column]
    return [term for term in terms if term.ranges and not term.negated and not term.absent]


def wants_missing_only(numbers: Iterable[Bounds], column: str) -> bool:
    """Return whether a term matches only rows without a number in `column`."""
    terms = [term for term in numbers if RANKINGS.get(term.field) == column and not term.negated]
    return any(term.absent and not term.ranges for term in terms)


def stretch(numbers: Iterable[Bounds], column: str) -> tuple[float | None, float | None]:
    """Return the least and the greatest value of `column` that `ranges` allow; None for no bound."""
    low: float | None = None
    high: float | None = None
    for term in ranges(numbers, column):
        lows = [interval.low for interval in term.ranges]
        highs = [interval.high for interval in term.ranges]
        least = None if None in lows else min(_ranked(term, bound, -1) for bound in lows if bound is not None)
        most = None if None in highs else max(_ranked(term, bound, 1) for bound in highs if bound is not None)
        low = least if low is None else low if least is None else max(low, least)
        high = most if high is None else high if most is None else min(high, most)
    return low, high


def degrees(field: str, value: float) -> float:
    """Return the θ in degrees for a value of the field `theta` or `signal`."""
    return value if field == "theta" else math.degrees(math.asin(min(max(value, 0.0), 1.0)))


def _ranked(term: Bounds, value: float, direction: int) -> float:
    """Return a bound in the unit of the index; the slack widens it in `direction` (-1 or 1)."""
    return degrees("signal", value) + direction * SIGNAL_SLACK_DEGREES if term.field == "signal" else value


def _within(interval: NumberRange, column: Any) -> ColumnElement[bool]:
    if isinstance(column.type, Integer):
        return _within_whole(interval, column)
    conditions = []
    if interval.low is not None:
        conditions.append(column > interval.low if interval.low_open else column >= interval.low)
    if interval.high is not None:
        conditions.append(column < interval.high if interval.high_open else column <= interval.high)
    return and_(*conditions)


def _within_whole(interval: NumberRange, column: Any) -> ColumnElement[bool]:
    """Return the condition on a column of whole numbers: PostgreSQL uses no index of it for a bound with a fraction."""
    conditions = []
    if interval.low is not None:
        low = min(max(interval.low, -WHOLE_MAX), WHOLE_MAX)
        conditions.append(column >= (math.floor(low) + 1 if interval.low_open else math.ceil(low)))
    if interval.high is not None:
        high = min(max(interval.high, -WHOLE_MAX), WHOLE_MAX)
        conditions.append(column <= (math.ceil(high) - 1 if interval.high_open else math.floor(high)))
    return and_(*conditions)


def count_by_type(session: Session, narrowed: Narrowed) -> dict[str, int]:
    """Return the number of visible placements whose facet matches, by type. A bin of θ that may match counts fully."""
    facets = held_roll_up(session)
    if facets is None:
        return _count_in_database(session, narrowed)
    filters = narrowed.facet_filters
    first, last = 0, len(BINS)
    if ranges(narrowed.numbers, "theta"):
        low, high = stretch(narrowed.numbers, "theta")
        first = BINS.index(theta_bin(low or 0.0))
        last = last if high is None else max(first, bisect_right(BINS, high))

    def count() -> dict[str, int]:
        counted = sums(facets.columns["type"], facets.counts(first, last), facets.mask(filters))
        return {kind: int(number) for kind, number in sorted(counted.items()) if number}

    return cached(session, ("by type", frozenset(filters), first, last), count)


def _count_in_database(session: Session, narrowed: Narrowed) -> dict[str, int]:
    statement = select(Facet.type, func.sum(FacetCount.placements)).join(FacetCount, FacetCount.facet_id == Facet.id)
    statement = statement.where(*narrowed.facet_conditions)
    if ranges(narrowed.numbers, "theta"):
        low, high = stretch(narrowed.numbers, "theta")
        statement = statement.where(FacetCount.theta_bin >= theta_bin(low or 0.0))
        if high is not None:
            statement = statement.where(FacetCount.theta_bin <= high)
    counted = session.execute(statement.group_by(Facet.type).order_by(Facet.type))
    return {kind: int(number) for kind, number in counted if number}


def matches(narrowed: Narrowed, entity: Any, *, without: Collection[str] = ()) -> list[ColumnElement[bool]]:
    """Return the conditions on the placements or experts `entity`, except those on the columns `without`."""
    conditions = index_conditions(narrowed.numbers, entity) if "theta" not in without else []
    conditions += [placement_condition(term, entity) for term in narrowed.numbers if COLUMNS[term.field] not in without]
    types = [choice for choice in narrowed.facet_filters if choice.field == "type"]
    conditions += [entity.type.not_in(term.values) if term.negated else entity.type.in_(term.values) for term in types]
    if len(types) < len(narrowed.facet_filters) and "facet_id" not in without:
        conditions.append(entity.facet_id.in_(select(Facet.id).where(*narrowed.facet_conditions)))
    if narrowed.models is not None and "model_id" not in without:
        conditions.append(narrowed.models.condition(entity.model_id))
    for choice in narrowed.nonfinite:
        organ = aliased(Organ)
        counted = select(organ.id).where(organ.id == entity.organ_id, nonfinite_condition(choice, organ.nonfinite))
        conditions.append(counted.exists())
    conditions += _gain_conditions(narrowed.gains, entity)
    return conditions + [fitting.condition(entity) for fitting in narrowed.fitting]


def _gain_conditions(gains: GainFilter | None, entity: Any) -> list[ColumnElement[bool]]:
    if gains is None:
        return []
    organs = gains.organs()
    conditions = [entity.organ_id.in_(select(organs.c.id))] if gains.needs_gain else []
    for term in gains.terms:
        outside = select(organs.c.id).where(not_(number_condition(term, organs.c.percent)))
        conditions.append(entity.organ_id.not_in(outside))
    return conditions


Ranked = tuple[float | None, int]
"""The sort value and the id of a placement or an expert."""


def after_cursor(rows: Iterable[Ranked], sort: Sort, after: Cursor | None) -> list[Ranked]:
    """Return `rows` in the order `sort`, without a value last; those after the cursor."""
    direction = -1 if sort.descending else 1

    def position(value: float | None, row_id: int) -> tuple[bool, float, int]:
        return value is None, direction * (value or 0.0), direction * row_id

    ordered = sorted(rows, key=lambda row: position(*row))
    if after is None:
        return ordered
    return [row for row in ordered if position(*row) > position(after.value, after.id)]


def ranges_after(
    narrowed: Narrowed, entity: Any, sort: Sort, after: Cursor | None
) -> Iterator[list[ColumnElement[bool]]]:
    """Yield the conditions of the matches after `after`, one list for each range of the index of `sort`, in its order.

    `entity` is Placement or Expert.

    First the rows with the value of the cursor, then those beyond it, last those without a value. A comparison of
    (value, id) is equivalent to the first two, but SQLite would read all rows with the same value.
    """
    measure = RANKINGS[sort.field]
    column = getattr(entity, measure)
    step = [] if after is None else [entity.id < after.id if sort.descending else entity.id > after.id]
    if (after is None or after.value is not None) and not wants_missing_only(narrowed.numbers, measure):
        low, high = stretch(narrowed.numbers, measure)
        first = [column.is_not(None)]
        if after is not None and after.value is not None:
            # Beside bounds on the column, SQLite would not use the index for the equality.
            if all(term.holds(after.value) for term in narrowed.numbers if COLUMNS[term.field] == measure):
                yield [column == after.value, *step, *matches(narrowed, entity, without={measure})]
            first = [column < after.value if sort.descending else column > after.value]
        bounds = [*([column >= low] if low is not None else []), *([column <= high] if high is not None else [])]
        yield [*first, *(bounds if measure != "theta" else []), *matches(narrowed, entity)]
    if not ranges(narrowed.numbers, measure):
        yield [
            column.is_(None),
            *(step if after is not None and after.value is None else []),
            *matches(narrowed, entity),
        ]


def sorted_after(matched: Subquery, sort: Sort, after: Cursor | None, limit: int) -> Select[Any]:
    """Return a SELECT of the next `limit` rows of `matched`, a subquery of `value` and `id`, in the order of `sort`.

    Rows without a value come last.
    """
    value, row_id = matched.c.value, matched.c.id
    rows = select(value, row_id)
    if after is not None:
        step = row_id < after.id if sort.descending else row_id > after.id
        position, last = tuple_(value, row_id), tuple_(after.value, after.id)
        is_after = position < last if sort.descending else position > last
        is_missing = value.is_(None)
        rows = rows.where(and_(is_missing, step) if after.value is None else or_(is_after, is_missing))
    order = (value.desc(), row_id.desc()) if sort.descending else (value, row_id)
    return rows.order_by(value.is_(None), *order).limit(limit)


GATHER_MAX = 20_000
"""The most placements that are fetched to count or to compare them. This takes some tens of milliseconds."""
SORTED_MAX_FACTOR = 5
"""A page may fetch this many times GATHER_MAX and sort them, if to read the index in its order would take longer."""
PASSED_COST, FETCHED_COST = 0.25, 2.0
"""Relative costs of an index entry that is skipped and of a row that is fetched."""
CORRELATION = 8
"""The factor by which matches may be rarer near the page than on average."""


GAINED = "organ"
"""The driver, an index of placements, that reads the organs with a gain."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to answer a query: read the index `driver`, then sort. Without a driver, read the index of the ranking."""

    types: tuple[str, ...]
    driver: str | None
    over: frozenset[str] = frozenset()
    """Without a driver: types that are read through the index of θ, because few placements are within its bounds."""
    rows: int | None = None
    """About how many placements the driver reads; None if it is not known."""


def plan_of(session: Session, narrowed: Narrowed, sort: Sort | None, limit: int) -> Plan:
    """Return the cheapest plan for a page of `limit` placements; without `sort`, for all matches."""
    ranking = None if sort is None else RANKINGS[sort.field]
    all_by_type = count_by_type(session, Narrowed())
    by_type = count_by_type(session, narrowed)
    types = tuple(kind for kind in ORGAN_TYPES if by_type.get(kind) and _may_match(session, narrowed, kind))
    matching = sum(by_type[kind] for kind in types)
    drivers = _drivers(session, narrowed, types, ranking)
    if min([matching, *drivers.values()]) == 0:
        return Plan((), None)
    if sort is None:
        drivers.setdefault("facet_id", sum(all_by_type[kind] for kind in types))
    best = min(drivers, key=lambda name: drivers[name], default=None)
    if best is None or drivers[best] > GATHER_MAX * (1 if sort is None else SORTED_MAX_FACTOR):
        return Plan(types, None, _types_by_theta(session, narrowed, ranking, types, limit))
    if sort is None:
        return Plan(types, best, rows=drivers[best])
    within = count_by_type(session, Narrowed(numbers=narrowed.numbers)) if ranking == "theta" else all_by_type
    entries = sum(within[kind] for kind in types)
    # Filters are assumed to be independent, except facets and θ, which are counted together.
    share = matching / max(entries, 1)
    for name, count in drivers.items():
        if name not in ("facet_id", "theta"):
            share *= count / max(sum(all_by_type.values()), 1)
    for term in narrowed.fitting:
        share *= term.share(types) if term.models(types) is None else 1.0
    in_order = PASSED_COST * min(CORRELATION * limit / max(share, 1 / max(entries, 1)), entries)
    if FETCHED_COST * drivers[best] < in_order:
        return Plan(types, best, rows=drivers[best])
    return Plan(types, None, _types_by_theta(session, narrowed, ranking, types, limit))


def by_index(rows: Any, name: str) -> Any:
    """Return `rows` of placements, read through their index `name`."""
    # SQLite has no statistics on a new catalog and would guess. The counts of facets are exact.
    return rows.with_hint(Placement, f"INDEXED BY ix_placements_{name}", "sqlite")


def _drivers(session: Session, narrowed: Narrowed, types: tuple[str, ...], ranking: str | None) -> dict[str, int]:
    """Return the number of placements to fetch through each index that a filter narrows.

    Bounds that are not stored are counted up to `GATHER_MAX`; indexes with more are left out.
    """
    drivers = {}
    if filters := narrowed.facet_filters:
        drivers["facet_id"] = sum(count_by_type(session, Narrowed(facets=filters)).values())
    model_counts = [sum(models.values()) for term in narrowed.fitting if (models := term.models(types)) is not None]
    if narrowed.models is not None:
        model_counts.append(narrowed.models.tensors)
    if model_counts:
        drivers["model"] = min(model_counts)
    counted = {}
    if narrowed.gains is not None and narrowed.gains.needs_gain:
        counted[GAINED] = _count_gained(session, narrowed.gains)
    for column in (*RANKED_COLUMNS, "block"):
        if column == ranking or not _index_filters(narrowed, column):
            continue
        if column == "theta" and index_conditions(narrowed.numbers):
            within = count_by_type(session, Narrowed(numbers=narrowed.numbers))
            drivers[column] = sum(within.get(kind, 0) for kind in types)
        else:
            counted[column] = _count_range(session, narrowed, types, column)
    return drivers | {name: count for name, count in counted.items() if count <= GATHER_MAX}


def _types_by_theta(
    session: Session, narrowed: Narrowed, ranking: str | None, types: tuple[str, ...], limit: int
) -> frozenset[str]:
    """Return the types that are cheaper to read through the index of θ, as in `Plan.over`."""
    if ranking in (None, "theta") or not index_conditions(narrowed.numbers):
        return frozenset()
    all_by_type = count_by_type(session, Narrowed())
    within = count_by_type(session, Narrowed(numbers=narrowed.numbers))
    by_type = count_by_type(session, narrowed)

    def is_cheaper_by_theta(kind: str) -> bool:
        entries = min(CORRELATION * limit * all_by_type[kind] / by_type[kind], all_by_type[kind])
        return FETCHED_COST * within[kind] < PASSED_COST * entries

    return frozenset(filter(is_cheaper_by_theta, types))


def _may_match(session: Session, narrowed: Narrowed, kind: str) -> bool:
    """Return whether the ranges overlap the numbers of the type `kind`. For example, norms have no spectral signal."""
    for column in RANKED_COLUMNS:
        if column == "theta" or not ranges(narrowed.numbers, column):
            continue
        least, most = _extremes(session, kind, column)
        low, high = stretch(narrowed.numbers, column)
        if least is None or most is None or (low is not None and low > most) or (high is not None and high < least):
            return False
    return True


def _extremes(session: Session, kind: str, column: str) -> tuple[float | None, float | None]:
    """Return the least and the greatest number of the type `kind` in `column`, which are the ends of its index."""

    def find() -> tuple[float | None, float | None]:
        measure = getattr(Placement, column)
        rows = select(measure).where(Placement.visible, Placement.type == kind, measure.is_not(None)).limit(1)
        ends = [by_index(rows, column).order_by(order) for order in (measure, measure.desc())]
        least, most = (session.scalar(end) for end in ends)
        return least, most

    return cached(session, ("extremes", kind, column), find)


def _count_gained(session: Session, gains: GainFilter) -> int:
    """Return how many placements have an organ with a gain, at most `GATHER_MAX + 1`."""
    rows = select(Placement.id).where(Placement.organ_id.in_(select(gains.organs().c.id)), Placement.visible)
    limited = by_index(rows, GAINED).limit(GATHER_MAX + 1).subquery()
    return session.scalar(select(func.count()).select_from(limited)) or 0


def _index_filters(narrowed: Narrowed, column: str) -> list[ColumnElement[bool]]:
    """Return the conditions on `column` that its index can test."""
    if column == "theta" and (bounds := index_conditions(narrowed.numbers)):
        return bounds
    terms = [term for term in narrowed.numbers if not term.negated and term.field != "signal"]
    return [placement_condition(term) for term in terms if COLUMNS[term.field] == column]


def _count_range(session: Session, narrowed: Narrowed, types: tuple[str, ...], column: str) -> int:
    """Return how many placements match the filters by `column`, at most `GATHER_MAX + 1`."""

    def count() -> int:
        rows = select(Placement.id).where(*_index_filters(narrowed, column))
        if column != "block":
            rows = rows.where(Placement.visible, Placement.type.in_(types))
        limited = by_index(rows, column).limit(GATHER_MAX + 1).subquery()
        return session.scalar(select(func.count()).select_from(limited)) or 0

    terms = frozenset(term for term in narrowed.numbers if RANKINGS.get(term.field, term.field) == column)
    return cached(session, ("range", column, terms, types if column != "block" else None), count)
