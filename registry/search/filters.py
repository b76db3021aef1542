"""A query resolved to filters: its terms as conditions in SQL, its names looked up.

Names that do not exist are noted, each with the nearest name. Organs at their places are rows of `placements`, the
experts of stacks are rows of `experts`. Both tables have the columns that filters test, so `Filters.table` is the only
difference between their searches.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, and_, false, func, not_, or_, select
from sqlalchemy.orm import Session, aliased

from organs.registry.anatomy import type_name
from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.model_names import (
    incomplete_model,
    incomplete_models,
    incompleteness,
    meant_models,
    model_of_other_name,
)
from organs.registry.catalog.queries.relatives import kin_of
from organs.registry.catalog.rows import among
from organs.registry.catalog.tables import (
    ContributorRow,
    Expert,
    Facet,
    FacetCount,
    Lineage,
    ModelRow,
    ModelTag,
    ModelWord,
    OrganRow,
    Placement,
)
from organs.registry.catalog.vocabulary import ORGAN_TYPES, REACHABLE_STATES, TEXT_GROUPS, folded_tag, folded_words
from organs.registry.errors import BadName
from organs.registry.measures import MEASURES
from organs.registry.names import ModelName, nearest, parse_model_name
from organs.registry.search.facets import FACET_COLUMNS, FacetFilter, held_roll_up
from organs.registry.search.fitting import FitBase, FitFilter, base_of, fitting, same_models
from organs.registry.search.gains import GainFilter, names_of_texts
from organs.registry.search.language import (
    ABSENT,
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
)

COLUMNS = {measure.field: measure.name for measure in MEASURES.values()} | {
    "size": "size_bytes",
    "block": "block",
    EXPERT: EXPERT,
}
"""The column of placements, or of experts, for each field."""
RANKINGS = {measure.field: measure.ranked_as or measure.name for measure in MEASURES.values()} | {"size": "size_bytes"}
"""The column of the index that sorts by each field. The signal is the sine of θ, so it has the same order."""
CLOSED_FIELDS = ("type", "tower")
"""The fields whose values are the same in every registry."""
MODEL_FIELDS = ("model", "by", "kin", "nonfinite")
"""The fields that filter the model of an organ, beside words."""
MODELS_LISTED_MAX = 5000
"""The most models whose ids are read before a search. A page needs up to seven statements, each of which would evaluate
a SELECT of the models again."""
SAME_SHOWN = 3
"""The most names of models in the note that they are the same model as a base."""


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
class Filters:
    """A resolved query. A matching placement, or expert, meets all of its conditions."""

    table: Any = Placement
    """The table of the results: Placement or Expert."""
    facets: list[FacetFilter] = field(default_factory=list)
    models: ModelFilter | None = None
    """The models to search; None for all."""
    fits: list[FitFilter] = field(default_factory=list)
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
    def all_facets(self) -> list[FacetFilter]:
        """The filters on facets, including those that follow from `fits:`."""
        implied = [(name, term.values(name)) for term in self.fits for name in ("arch", "type", "slot")]
        return [*self.facets, *(FacetFilter(name, values) for name, values in implied if values is not None)]

    def facet_condition(self, entity: Any, facet_ids: Sequence[int] | None) -> ColumnElement[bool]:
        """Return the condition that the facet of `entity` matches; `facet_ids` are those that do, if they are known."""
        if facet_ids is not None:  # PostgreSQL knows how frequent ids are, but not the results of a subquery
            return among(entity.facet_id, facet_ids)
        return entity.facet_id.in_(select(Facet.id).where(*(own.condition for own in self.all_facets)))  # type: ignore[no-any-return]

    def tests(self, entity: Any, facet_ids: Sequence[int] | None = None) -> Iterator[tuple[str, ColumnElement[bool]]]:
        """Yield the conditions on `entity`, the table or an alias of it, each with the column that it tests.

        The column is empty for conditions that no index tests.
        """
        for condition in theta_conditions(self.numbers, entity):
            yield "theta", condition
        for number in self.numbers:
            yield COLUMNS[number.field], placement_condition(number, entity)
        facets = self.all_facets
        types = [own for own in facets if own.field == "type"]
        for own in types:
            yield "", entity.type.not_in(own.values) if own.negated else entity.type.in_(own.values)
        if len(types) < len(facets):
            yield "facet_id", self.facet_condition(entity, facet_ids)
        if self.models is not None:
            yield "model_id", self.models.condition(entity.model_id)
        for choice in self.nonfinite:
            organ = aliased(OrganRow)
            counted = select(organ.id).where(organ.id == entity.organ_id, nonfinite_condition(choice, organ.nonfinite))
            yield "", counted.exists()
        if self.gains is not None:
            organs = self.gains.organs()
            if self.gains.needs_gain:
                yield "", entity.organ_id.in_(select(organs.c.id))
            for term in self.gains.terms:
                outside = select(organs.c.id).where(not_(number_condition(term, organs.c.percent)))
                yield "", entity.organ_id.not_in(outside)
        for fit in self.fits:
            yield "", fit.condition(entity)

    def conditions(self, entity: Any = None, *, without: str = "") -> list[ColumnElement[bool]]:
        """Return the conditions on `entity`, by default the table, except those on the column `without`."""
        return [condition for column, condition in self.tests(entity or self.table) if not column or column != without]


def resolve(session: Session, query: Query) -> Filters:
    """Resolve `query`. An unknown name matches nothing; a note reports it and suggests the nearest name."""
    filters = Filters(
        table=Expert if query.finds_experts else Placement,
        numbers=[term for term in query.terms if isinstance(term, Bounds) and term.field not in (LIKENESS, GAIN)],
        nonfinite=query.choices("nonfinite"),
        likeness=query.numbers(LIKENESS),
    )
    names = Names(session, filters.notes)
    for choice in (choice for name in FACET_COLUMNS for choice in query.choices(name)):
        values = choice.values
        if choice.field not in CLOSED_FIELDS:
            facets = held_roll_up(session)
            if facets is None or len(facets.different[choice.field]) > NAMES_MAX:
                values = names.values(choice, select(FACET_COLUMNS[choice.field]).where(facet_is_counted()))
            else:
                values = names.chosen(choice, facets.different[choice.field])
        filters.facets.append(FacetFilter(choice.field, frozenset(values), choice.negated))
    named = [choice for name in MODEL_FIELDS for choice in query.choices(name)]
    if named or query.words or query.excluded_words:
        key = (tuple(named), query.words, query.excluded_words)  # the order matters to the notes
        filters.models, notes = cached(session, ("models", key), lambda: _models_of(session, query, key))
        filters.notes += notes[: max(0, NOTES_MAX - len(filters.notes))]
    for choice in query.choices("fits"):
        bases: dict[int, FitBase] = {}
        for value, ids in names.models(choice).items():
            known = {model_id: base for model_id in ids if (base := base_of(session, model_id)) is not None}
            bases |= known
            if ids and not known and not choice.negated and len(filters.notes) < NOTES_MAX:
                filters.notes.append(f"{value} states no architecture, so no tensor is known to fit it")
        filters.fits.append(fitting(session, choice, list(bases.values())))
    for base_id in dict.fromkeys(base.id for own in filters.fits if not own.negated for base in own.bases):
        model = session.get_one(ModelRow, base_id)
        if same := same_models(session, model):  # models with the same organs do not fit
            more = f", and {len(same) - SAME_SHOWN} more" if len(same) > SAME_SHOWN else ""
            shown = ", ".join(same[:SAME_SHOWN])
            filters.notes.append(f"the same model as {model.full_name}, tensor by tensor: {shown}{more}")
    filters.base_id = names.base_id(query)
    filters.gains = names.gains(query, filters.base_id)
    return filters


def _models_of(session: Session, query: Query, key: Hashable) -> tuple[ModelFilter, list[str]]:
    """Return the models that `query` names, and notes."""
    notes: list[str] = []
    conditions = Names(session, notes).model_conditions(query)
    for choice in query.choices("nonfinite"):
        # Only `nonfinite:yes` excludes models. The count of a model is unknown if some of its organs were not counted;
        # its other organs may still have NaN or infinite values.
        if set(choice.values) == {YES} and not choice.negated:
            conditions.append(or_(ModelRow.nonfinite_tensors > 0, ModelRow.nonfinite_tensors.is_(None)))
    statement = select(ModelRow.id).where(ModelRow.state == "visible", *conditions)
    rows = session.execute(statement.add_columns(ModelRow.tensors).limit(MODELS_LISTED_MAX + 1)).all()
    if len(rows) <= MODELS_LISTED_MAX:
        ids = array("q", [model_id for model_id, _ in rows])
        return ModelFilter(statement, key, ids, sum(tensors for _, tensors in rows)), notes
    tensors = select(func.coalesce(func.sum(ModelRow.tensors), 0)).where(ModelRow.id.in_(statement))
    return ModelFilter(statement, key, None, int(session.scalar(tensors) or 0)), notes


def placement_condition(term: Bounds, entity: Any = Placement) -> ColumnElement[bool]:
    """Return `term` as a condition on the placements or experts `entity`."""
    return number_condition(term, getattr(entity, COLUMNS[term.field]))


SIGNAL_SLACK_DEGREES = 1e-6
"""The number of degrees by which a bound on the signal is widened when the index tests it on θ. The exact bound is then
tested on the signal."""


def theta_conditions(numbers: Sequence[Bounds], entity: Any) -> list[ColumnElement[bool]]:
    """Return bounds on θ from those on θ and the signal. Each index has θ, so rows outside of them are not fetched."""
    low, high = limits(numbers, "theta")
    return [*([entity.theta >= low] if low is not None else []), *([entity.theta <= high] if high is not None else [])]


def limiting(numbers: Iterable[Bounds], column: str) -> list[Bounds]:
    """Return the terms that limit `column` to ranges and exclude rows without a number."""
    terms = [term for term in numbers if RANKINGS.get(term.field) == column]
    return [term for term in terms if term.ranges and not term.negated and not term.absent]


def limits(numbers: Iterable[Bounds], column: str) -> tuple[float | None, float | None]:
    """Return the least and the greatest value of `column` that its terms allow; None for no limit."""
    lows, highs = [], []
    for term in limiting(numbers, column):
        slack = SIGNAL_SLACK_DEGREES if term.field == "signal" else 0.0
        term_lows = [own.low for own in term.ranges if own.low is not None]
        term_highs = [own.high for own in term.ranges if own.high is not None]
        if len(term_lows) == len(term.ranges):
            lows.append(degrees(term.field, min(term_lows)) - slack)
        if len(term_highs) == len(term.ranges):
            highs.append(degrees(term.field, max(term_highs)) + slack)
    return max(lows, default=None), min(highs, default=None)


def degrees(name: str, value: float) -> float:
    """Return a value of the field `name` in the unit of its index: a signal as its θ in degrees."""
    return math.degrees(math.asin(min(max(value, 0.0), 1.0))) if name == "signal" else value


WHOLE_MAX = 2.0**62
"""Whole numbers of the catalog are smaller; larger bounds would not fit into a column."""


def number_condition(term: Bounds, column: Any) -> ColumnElement[bool]:
    """Return `term` as a condition on `column`; a negated term also matches rows without a number."""
    allowed = []
    for own in term.ranges:
        # PostgreSQL uses no index of a column of whole numbers for a bound with a fraction.
        bounds = _whole(own) if isinstance(column.type, Integer) else own
        above = [] if bounds.low is None else [column > bounds.low if bounds.low_open else column >= bounds.low]
        below = [] if bounds.high is None else [column < bounds.high if bounds.high_open else column <= bounds.high]
        allowed.append(and_(*above, *below))
    condition = or_(*allowed, *([column.is_(None)] if term.absent else []))
    if not term.negated:
        return condition
    return not_(condition) if term.absent else or_(not_(condition), column.is_(None))


def _whole(own: NumberRange) -> NumberRange:
    """Return the range of the whole numbers in `own`, with both bounds included."""
    low = high = None
    if own.low is not None:
        bound = min(max(own.low, -WHOLE_MAX), WHOLE_MAX)
        low = math.floor(bound) + 1 if own.low_open else math.ceil(bound)
    if own.high is not None:
        bound = min(max(own.high, -WHOLE_MAX), WHOLE_MAX)
        high = math.ceil(bound) - 1 if own.high_open else math.floor(bound)
    return NumberRange(low, high)


def nonfinite_condition(choice: Choice, column: Any) -> ColumnElement[bool]:
    """Return the condition of `nonfinite:` on `column`, a count of values or of tensors."""
    conditions = {YES: column > 0, NO: column == 0, UNKNOWN: column.is_(None)}
    condition = func.coalesce(or_(*(conditions[value] for value in choice.values)), false())
    return not_(condition) if choice.negated else condition


def models_with_words(words: Sequence[str]) -> Select[int]:
    """Return a SELECT of the ids of models that have a word with each of the prefixes `words`. Words are folded."""
    assert words
    # A range instead of LIKE, because on every database it uses the index and has the same meaning.
    first, *others = (
        select(ModelWord.model_id).where(ModelWord.word >= word, ModelWord.word < after_prefix(word)) for word in words
    )
    for other in others:
        first = first.where(ModelWord.model_id.in_(other))
    return first


_SURROGATES_BEGIN, _SURROGATES_END = 0xD800, 0xE000


def after_prefix(word: str) -> str:
    """Return the smallest text that sorts after all texts with the prefix `word`."""
    following = ord(word[-1]) + 1
    if _SURROGATES_BEGIN <= following < _SURROGATES_END:
        following = _SURROGATES_END
    return word[:-1] + chr(following) if following <= 0x10FFFF else word + chr(0x10FFFF)


def facet_is_counted() -> ColumnElement[bool]:
    """Return the condition that a visible placement has the facet. Other facets are never shown."""
    return select(FacetCount.facet_id).where(FacetCount.facet_id == Facet.id, FacetCount.placements > 0).exists()


NAMES_MAX = 5000
"""The most names that are searched for a pattern or for another spelling."""
NEAREST_MAX, NEAREST_MAX_LENGTH = 500, 64
"""The most names that an unknown name is compared with, and the length of the longest name that is compared. Names of
a hostile length take up to a millisecond each."""
NOTES_MAX = 5
"""The most notes on unknown names in one answer."""
OTHERS_MAX = 20
"""The most names in a query that are looked up as other names of models."""


class Names:
    """The look-up of the names in a query. Names that do not exist are added to `notes`."""

    def __init__(self, session: Session, notes: list[str]) -> None:
        self.session = session
        self.notes = notes

    def values(self, choice: Choice, existing: Select[Any]) -> tuple[str, ...]:
        """Return the values of the SELECT `existing` that match `choice`, as `chosen` does.

        The SELECT is filtered by name, so the number of other values does not matter. At most `NAMES_MAX` matches of a
        pattern are used; a note says if there are more.
        """
        column = existing.selected_columns[0]
        matching = or_(column.is_(None), column == "", *(_matches_text(value, column) for value in choice.values))
        found = self.session.scalars(existing.where(matching).distinct().limit(NAMES_MAX + 1)).all()
        if len(found) > NAMES_MAX:
            self.notes.append(f"{choice} matches more than {NAMES_MAX} names; only {NAMES_MAX} of them were used")
            found = found[:NAMES_MAX]
        if not all(_matching(choice.values, _by_name(found)).values()):
            found = [*found, *self.session.scalars(existing.distinct().limit(NAMES_MAX))]  # for the nearest name
        return self.chosen(choice, found)

    def chosen(self, choice: Choice, existing: Iterable[str | None]) -> tuple[str, ...]:
        """Return the values of `existing` that match `choice`; `none` matches missing values, returned as ""."""
        by_name = _by_name(existing)
        matches = _matching(choice.values, by_name)
        for value, names in matches.items():
            if not names:
                self._note_missing(choice, value, by_name)
        return tuple(sorted({value for names in matches.values() for name in names for value in by_name[name]}))

    def texts(self, choices: Iterable[Choice]) -> tuple[tuple[tuple[str, ...], bool], ...]:
        """Return for each term `on:` the names of texts that it selects, and whether it is negated.

        A group selects its texts, and a text of its own name. Names and groups without a gain are noted.
        """
        return tuple((tuple(self._texts_of(choice)), choice.negated) for choice in choices)

    def _texts_of(self, choice: Choice) -> Iterator[str]:
        for value in choice.values:
            group = TEXT_GROUPS.get(value.casefold())
            if group is None:
                yield from self.values(replace(choice, values=(value,)), names_of_texts())
                continue
            names = Names(self.session, []).values(replace(choice, values=(value, *group)), names_of_texts())
            if not names:
                self._note_missing(choice, value)
            yield from names

    def gains(self, query: Query, base_id: int | None) -> GainFilter | None:
        """Return the gains that `query` is about, over the model `base_id` or any base; None if it mentions none."""
        if not query.mentions_gains:
            return None
        texts = self.texts(query.choices(ON))
        return GainFilter(texts, base_id, tuple(query.numbers(GAIN)), is_order=query.sort.field == GAIN)

    def base_id(self, query: Query) -> int | None:
        """Return the model that `likeness` in `query` compares with; None if there is none.

        If several models have the name in other case, the first is used, and a note names it.
        """
        if query.base is None:
            return None
        ids = self._newest_models(query.base)
        if len(ids) > 1:
            first = self.session.get_one(ModelRow, ids[0]).full_name
            self.notes.append(f"several models are called {query.base}; the likeness is that to {first}")
        return ids[0] if ids else None

    def models(self, choice: Choice) -> dict[str, list[int]]:
        """Return the ids of the models that each name in `choice` means; a name without a version is its newest one."""
        found = {value: self._newest_models(value) for value in choice.values}
        for value, ids in found.items():
            if not ids:
                self._note_missing(choice, value)
        return found

    def model_conditions(self, query: Query) -> list[ColumnElement[bool]]:
        """Return the conditions of `model:`, `kin:`, `by:` and words on models."""
        conditions = [self._name_condition(choice) for choice in query.choices("model")]
        for choice in query.choices("kin"):
            named = [model_id for ids in self.models(choice).values() for model_id in ids]
            kin = {relative for model_id in named for relative in kin_of(self.session, model_id)}
            conditions.append(_negated(choice, among(ModelRow.id, sorted(kin))))
        for choice in query.choices("by"):
            visible = select(ModelRow.id).where(
                ModelRow.contributor_id == ContributorRow.id, ModelRow.state == "visible"
            )
            names = self.values(choice, select(ContributorRow.name).where(visible.exists()))
            ids = select(ContributorRow.id).where(ContributorRow.name.in_(names))
            conditions.append(_negated(choice, ModelRow.contributor_id.in_(ids)))
        if query.words:
            conditions.append(ModelRow.id.in_(models_with_words(query.words)))
            if not self._is_visible(conditions[-1]):
                self._note_words(query.words)
        return conditions + [ModelRow.id.not_in(models_with_words(words.split("-"))) for words in query.excluded_words]

    def tag_condition(self, choice: Choice) -> ColumnElement[bool]:
        """Return the condition that a model has one of the chosen tags. A tag without `*` is found by an index."""
        conditions: list[ColumnElement[bool]] = []
        for value in choice.values:
            tagged = select(ModelTag.model_id)
            if value.casefold() == ABSENT:
                conditions.append(ModelRow.id.not_in(tagged))
                continue
            name = folded_tag(value)
            tagged = tagged.where(_matches_text(name, ModelTag.tag) if "*" in name else ModelTag.tag == name)
            conditions.append(ModelRow.id.in_(tagged))
            if not choice.negated and not self._is_visible(conditions[-1]):
                self._note_missing(choice, value)
        return _negated(choice, or_(*conditions))

    def made_from_condition(self, choice: Choice) -> ColumnElement[bool]:
        """Return the condition that a model was made from one of the chosen models, by declaration or by record."""
        conditions: list[ColumnElement[bool]] = []
        children = select(Lineage.child_model_id).where(
            Lineage.child_model_id.is_not(None), Lineage.evidence != "measured"
        )
        for value in choice.values:
            parents = select(ModelRow.id).where(ModelRow.state.in_(REACHABLE_STATES))
            if value.casefold() == ABSENT:
                conditions.append(ModelRow.id.not_in(children.where(Lineage.parent_model_id.in_(parents))))
                continue
            named = _matches_model(value)
            if named is not None:
                conditions.append(ModelRow.id.in_(children.where(Lineage.parent_model_id.in_(parents.where(named)))))
            if not choice.negated and (named is None or not self._is_visible(conditions[-1])):
                self._note_missing(choice, value)
        return _negated(choice, or_(*conditions) if conditions else ModelRow.id < 0)

    def _name_condition(self, choice: Choice) -> ColumnElement[bool]:
        """Return the condition that a model has one of the chosen names; `namespace/name` is compared without case."""
        conditions: list[ColumnElement[bool]] = []
        looked_up = 0
        for value in choice.values:
            condition = _matches_model(value)
            exists = condition is not None and self._is_visible(condition)
            if condition is not None and not exists and "*" not in value and looked_up < OTHERS_MAX:
                looked_up += 1
                other = ModelRow.id.in_(self._other_models(parse_model_name(value)))
                exists = self._is_visible(other)
                condition = other if exists else condition
            if condition is not None:
                conditions.append(condition)
            if not exists:
                self._note_missing(choice, value)
        return _negated(choice, or_(*conditions) if conditions else ModelRow.id < 0)

    def _is_visible(self, condition: ColumnElement[bool]) -> bool:
        """Return whether a visible model meets `condition`."""
        statement = select(ModelRow.id).where(ModelRow.state == "visible", condition).limit(1)
        return self.session.scalar(statement) is not None

    def _newest_models(self, value: str) -> list[int]:
        """Return the ids of the models with the name `value`, or of models whose name differs only in case."""
        name = parse_model_name(value)  # the parser of the query checked it
        exactly = and_(ModelRow.namespace == name.namespace, ModelRow.name == name.name)
        for condition in (
            exactly,
            _matches_text(f"{name.namespace}/{name.name}", ModelRow.namespace + "/" + ModelRow.name),
        ):
            rows = select(ModelRow.id, ModelRow.namespace, ModelRow.name).where(
                condition, ModelRow.state.in_(REACHABLE_STATES)
            )
            if name.version is not None:
                rows = rows.where(ModelRow.version == name.version)
            # A yanked version is used only if there is no other.
            rows = rows.order_by(ModelRow.state != "visible", ModelRow.version.desc(), ModelRow.id).limit(NAMES_MAX)
            newest: dict[tuple[str, str], int] = {}
            for model_id, namespace, own_name in self.session.execute(rows):
                newest.setdefault((namespace, own_name), model_id)
            if newest:
                return list(newest.values())[:BASES_MAX]
        return self._other_models(name)

    def _other_models(self, name: ModelName) -> list[int]:
        """Return the id of the model that has `name` beside its own, or else the ids of those that it may mean."""
        other = model_of_other_name(self.session, name)
        if other is not None:
            return [other.id]
        return [model.id for model in meant_models(self.session, name).values()][:BASES_MAX]

    def _note_missing(self, choice: Choice, value: str, existing: Iterable[str] = ()) -> None:
        """Note that nothing has the `value` of `choice`, with the nearest of the names `existing`."""
        if choice.negated or len(self.notes) >= NOTES_MAX:
            return
        note = f"nothing in this registry has {choice.field}:{value}"
        if choice.field == ON:
            note = f"nothing was measured on {value}"
        elif choice.field in ("model", "kin", "fits"):
            with suppress(BadName):
                incomplete = incomplete_model(self.session, parse_model_name(value))
                if incomplete is not None:
                    self.notes.append(str(incompleteness(self.session, incomplete)))
                    return
            note = note if choice.field == "model" else f"no model here is called {value}"
            visible = (
                select(ModelRow.namespace, ModelRow.name).where(ModelRow.state == "visible").distinct().limit(NAMES_MAX)
            )
            existing = (f"{namespace}/{name}" for namespace, name in self.session.execute(visible))
        close = nearest(value, islice(existing, NEAREST_MAX)) if len(value) <= NEAREST_MAX_LENGTH else None
        self.notes.append(f"{note}; the nearest is {choice.field}:{close}" if close else note)

    def _note_words(self, words: Sequence[str]) -> None:
        """Note that no model has `words`; suggest `slot:` or `type:` if they are the name of a slot or a type."""
        incomplete = [
            str(error) for error in incomplete_models(self.session) if set(words) <= set(folded_words(error.name))
        ]
        if incomplete:
            self.notes += incomplete[:NOTES_MAX]
            return
        slots = self.session.scalars(select(Facet.slot).where(facet_is_counted()).distinct().limit(NAMES_MAX))
        slot = max((slot for slot in slots if set(folded_words(slot)) <= set(words)), key=len, default=None)
        kind = next((kind for kind in ORGAN_TYPES if folded_words(type_name(kind)) == [*words]), None)
        hint = f"; to search for tensors in this slot, write slot:{slot}" if slot else ""
        hint = f"; to search for tensors of this type, write type:{kind}" if kind else hint
        noun = "word" if len(words) == 1 else "words"
        self.notes.append(f"no model has the {noun} {' '.join(words)[:NEAREST_MAX_LENGTH]}{hint}")


def _negated(choice: Choice, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return `condition`, or its opposite if `choice` is negated."""
    return not_(condition) if choice.negated else condition


def _matches_model(value: str) -> ColumnElement[bool] | None:
    """Return the condition that a model has the name or the pattern `value`; None if it cannot be a name."""
    full_name = ModelRow.namespace + "/" + ModelRow.name
    if "*" in value:
        return _matches_text(value if "/" in value else f"*/{value}", full_name)
    try:
        name = parse_model_name(value)
    except BadName:
        return None
    condition = _matches_text(f"{name.namespace}/{name.name}", full_name)
    return condition if name.version is None else and_(condition, ModelRow.version == name.version)


def _matches_text(value: str, column: Any) -> ColumnElement[bool]:
    """Return the condition that `column` matches `value`; `*` is any text.

    Case is ignored for the letters that the database knows.
    """
    # LIKE distinguishes case on some databases only. With both sides in lower case, the result is the same on all.
    escaped = value.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
    return func.lower(column).like(escaped, escape="\\")


def _by_name(values: Iterable[str | None]) -> dict[str, set[str]]:
    """Return the values by their names in a query. The name of a missing value is `none`."""
    by_name: dict[str, set[str]] = {}
    for value in values:
        by_name.setdefault(value or ABSENT, set()).add(value or "")
    return by_name


def _matching(values: Sequence[str], names: Mapping[str, object]) -> dict[str, set[str]]:
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
