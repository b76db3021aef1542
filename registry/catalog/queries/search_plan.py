"""Plan a search: narrow its query to facets and models, and choose the index that answers it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import accumulate, compress, groupby, islice
from operator import add, sub
from operator import and_ as bitwise_and
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Select, and_, false, func, not_, or_, select, true
from sqlalchemy.orm import Session

from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.fitting import Base, Fitting, base_of, fitting
from organs.registry.catalog.search import (
    BASES_MAX,
    NO,
    UNKNOWN,
    YES,
    Choice,
    Interval,
    Numbers,
    Query,
    Sort,
    nearest,
)
from organs.registry.catalog.tables import RANKED_COLUMNS, Contributor, Facet, FacetCount, Model, ModelWord, Placement
from organs.registry.catalog.vocabulary import (
    BIN_DEGREES,
    ORGAN_TYPES,
    REACHABLE_STATES,
    THETA_MAX_DEGREES,
    UNMEASURED,
    folded_words,
    theta_bin,
)
from organs.registry.errors import BadName
from organs.registry.measures import MEASURES
from organs.registry.names import parse_model_name

FACETS_MAX = 20_000
"""That are held, at about a kilobyte each. Where there are more, the database is asked every time."""

FACET_COLUMNS = {
    "type": Facet.type,
    "tower": Facet.tower,
    "slot": Facet.slot,
    "dtype": Facet.dtype,
    "arch": Facet.architecture,
    "license": Facet.license,
}
BINS = (UNMEASURED, *range(0, THETA_MAX_DEGREES, BIN_DEGREES))
"""The lower edges of the bins, in the order in which they are held."""

Mask = Sequence[bool]
"""By the position of a facet, whether it is meant."""


class Filter(Protocol):
    """Which values of a field are wanted."""

    @property
    def field(self) -> str:
        """Its name."""

    def takes(self, value: str) -> bool:
        """Whether a facet with `value` matches."""


@dataclass(frozen=True, slots=True)
class RollUp:
    """The facets that visible placements have, by position, with their counts."""

    positions: Mapping[int, int]
    """By facet id."""
    columns: Mapping[str, Sequence[str]]
    """By field, each facet's value."""
    different: Mapping[str, Sequence[str]]
    """By field, the different values, sorted."""
    bins: Sequence[Sequence[int]]
    """For each of `BINS`: by facet, how many placements lie in it."""
    before: Sequence[Sequence[int]]
    """For each of `BINS`, and the end: by facet, how many placements lie in the bins before it."""

    @property
    def everything(self) -> Mask:
        """All facets."""
        return [True] * len(self.positions)

    def mask(self, filters: Iterable[Filter]) -> Mask:
        """The facets that all `filters` take."""
        mask = self.everything
        for one in filters:
            taken = {value for value in self.different[one.field] if one.takes(value)}
            mask = list(map(bitwise_and, mask, map(taken.__contains__, self.columns[one.field])))
        return mask

    def counts(self, first: int = 0, last: int = len(BINS)) -> Sequence[int]:
        """By facet, the placements in the bins from the `first` up to but without the `last` of `BINS`."""
        return list(map(sub, self.before[last], self.before[first]))

    def shared(self, shares: Sequence[float]) -> Sequence[float]:
        """By facet, the placements of all bins, each taken by its share: `shares` has one for each of `BINS`."""
        total: Sequence[float] = [0] * len(self.positions)
        first = 0
        for share, places in groupby(shares):  # neighbours of one share, most of which are 0 and 1, are one step
            last = first + len(list(places))
            if share:
                part = map(share.__mul__, map(float, self.counts(first, last)))
                total = list(map(add, total, part))
            first = last
        return total

    def histogram(self, mask: Mask) -> dict[int, int]:
        """By the lower edge of each bin that is not empty, the placements of the facets in `mask`."""
        found = {lower: sum(compress(counts, mask)) for lower, counts in zip(BINS, self.bins, strict=True)}
        return {lower: count for lower, count in found.items() if count}


def sums(values: Sequence[str], counts: Sequence[float], mask: Mask) -> dict[str, float]:
    """By value, the sum of its counts where `mask` is true."""
    found: dict[str, float] = {}
    for value, count in zip(compress(values, mask), compress(counts, mask), strict=True):
        found[value] = found.get(value, 0) + count
    return found


def held_roll_up(session: Session) -> RollUp | None:
    """The roll-up as `session` sees it; None where there are too many facets to hold."""
    return cached(session, "facets", lambda: _small_enough(session))


def roll_up(session: Session) -> RollUp:
    """The same, however many facets there are."""
    return held_roll_up(session) or _read(session)


def _small_enough(session: Session) -> RollUp | None:
    number = session.scalar(select(func.count()).select_from(select(Facet.id).limit(FACETS_MAX + 1).subquery()))
    return _read(session) if (number or 0) <= FACETS_MAX else None


def _read(session: Session) -> RollUp:
    places = {lower: place for place, lower in enumerate(BINS)}
    counts: dict[int, list[int]] = {}
    for facet_id, lower, count in session.execute(
        select(FacetCount.facet_id, FacetCount.theta_bin, FacetCount.placements).where(FacetCount.placements > 0)
    ):
        counts.setdefault(facet_id, [0] * len(BINS))[places[lower]] += count
    kept = select(Facet.id, *FACET_COLUMNS.values()).order_by(Facet.id)
    facets: list[Any] = [row for row in session.execute(kept) if row[0] in counts]
    sums_before = [list(accumulate(counts[row[0]], initial=0)) for row in facets]
    columns = {name: [row[place] for row in facets] for place, name in enumerate(FACET_COLUMNS, 1)}
    return RollUp(
        positions={row[0]: position for position, row in enumerate(facets)},
        columns=columns,
        different={name: sorted(set(column)) for name, column in columns.items()},
        bins=[[counts[row[0]][place] for row in facets] for place in range(len(BINS))],
        before=[list(column) for column in zip(*sums_before, strict=True)] or [[]] * (len(BINS) + 1),
    )


_SURROGATES_BEGIN, _SURROGATES_END = 0xD800, 0xE000


def models_with_words(words: Sequence[str]) -> Select[int]:
    """SELECT of the ids of the models that have, for each of `words`, a word that begins so. Words are folded."""
    assert words
    first, *others = [_having(word) for word in words]
    for other in others:
        first = first.where(ModelWord.model_id.in_(other))
    return first


def _having(word: str) -> Select[int]:
    # A range instead of LIKE: it uses the index on every database, and means the same on all.
    return select(ModelWord.model_id).where(and_(ModelWord.word >= word, ModelWord.word < _behind(word)))


def _behind(word: str) -> str:
    """The least text that is greater than everything that begins with `word`."""
    following = ord(word[-1]) + 1
    if _SURROGATES_BEGIN <= following < _SURROGATES_END:
        following = _SURROGATES_END
    return word[:-1] + chr(following) if following <= 0x10FFFF else word + chr(0x10FFFF)


NAMES_MAX = 5000
"""Names that are looked through for a pattern, or for another spelling."""
NEAREST_MAX, NEAREST_MAX_LENGTH = 500, 64
"""Names that a missing one is compared with, and its length up to which it is: made to be alike, long names take up to
a millisecond each."""
NOTES_MAX = 5
"""Names that nothing has and that are spoken of."""
ABSENT = "none"

CLOSED_FIELDS = ("type", "tower")
"""Their values are the same in every registry."""
MODEL_FIELDS = ("model", "by", "nonfinite")
"""What is asked of the model that an organ is in, beside words."""


@dataclass(frozen=True, slots=True)
class FacetFilter:
    """Which values of a facet's column are wanted, or with `negated` unwanted."""

    field: str
    values: frozenset[str]
    negated: bool

    def takes(self, value: str) -> bool:
        """Whether a facet with `value` matches."""
        return (value in self.values) is not self.negated

    @property
    def condition(self) -> ColumnElement[bool]:
        """The same in SQL."""
        column = FACET_COLUMNS[self.field]
        return column.not_in(sorted(self.values)) if self.negated else column.in_(sorted(self.values))


@dataclass(slots=True)
class Narrowed:
    """A query, resolved. All of it holds at once."""

    facets: list[FacetFilter] = field(default_factory=list)
    models: Select[int] | None = None
    """SELECT of the ids of the models to look in; None for all."""
    models_key: Hashable = None
    """What the query says of models: the same SELECT wherever it is the same."""
    fitting: list[Fitting] = field(default_factory=list)
    numbers: list[Numbers] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    nonfinite: list[Choice] = field(default_factory=list)
    """What is asked of weights that are NaN or infinite; `models` leaves out models that have no such organ."""

    @property
    def facet_filters(self) -> list[FacetFilter]:
        """What is asked of facets, and what follows for them from the rest."""
        follows = [(name, one.values(name)) for one in self.fitting for name in ("arch", "type", "slot")]
        return [*self.facets, *(FacetFilter(name, values, False) for name, values in follows if values is not None)]

    @property
    def facet_conditions(self) -> list[ColumnElement[bool]]:
        """The same in SQL."""
        return [one.condition for one in self.facet_filters]


def narrow(session: Session, query: Query) -> Narrowed:
    """`query` against the registry. A name that nothing has is noted, with the nearest one, and finds nothing."""
    narrowed = Narrowed(
        numbers=[term for term in query.terms if isinstance(term, Numbers)], nonfinite=query.choices("nonfinite")
    )
    for name in FACET_COLUMNS:
        for choice in query.choices(name):
            values = choice.values
            if name not in CLOSED_FIELDS:
                values = _facet_values(session, choice, narrowed.notes)
            narrowed.facets.append(FacetFilter(name, frozenset(values), choice.negated))
    conditions = model_conditions(session, query, narrowed.notes)
    conditions += [_may_have(choice) for choice in narrowed.nonfinite]
    if conditions:
        narrowed.models = select(Model.id).where(Model.state == "visible", *conditions)
        named = [choice for name in MODEL_FIELDS for choice in query.choices(name)]
        narrowed.models_key = (frozenset(named), frozenset(query.words), frozenset(query.excluded_words))
    for choice in query.choices("fits"):
        narrowed.fitting.append(fitting(session, choice, _bases(session, choice, narrowed.notes)))
    return narrowed


def known_values(session: Session, choice: Choice, there: Select[Any], notes: list[str]) -> tuple[str, ...]:
    """Those of the values `there` that the choice means; what is not stated goes by `none`, and comes back as empty.

    They are looked up by name, so that however many others there are they are found; of more than `NAMES_MAX` that
    fit a pattern only so many are taken, which is noted.
    """
    column = there.selected_columns[0]
    meant = or_(column.is_(None), column == "", *(_spelled(value, column) for value in choice.values))
    found = session.scalars(there.where(meant).distinct().limit(NAMES_MAX + 1)).all()
    if len(found) > NAMES_MAX:
        notes.append(f"{choice} fits more than {NAMES_MAX} names; only so many were looked at")
    spoken = _spoken(found[:NAMES_MAX])
    if not all(_matching(choice.values, list(spoken)).values()):
        spoken = _spoken([*found[:NAMES_MAX], *session.scalars(there.distinct().limit(NAMES_MAX))])
    matches = _matching(choice.values, list(spoken))
    _note_missing(choice, matches, notes, list(spoken))
    return tuple(sorted({value for names in matches.values() for name in names for value in spoken[name]}))


def _facet_values(session: Session, choice: Choice, notes: list[str]) -> tuple[str, ...]:
    """Those of the values of facets that the choice means."""
    held = held_roll_up(session)
    if held is None or len(held.different[choice.field]) > NAMES_MAX:
        there = select(FACET_COLUMNS[choice.field]).where(_is_counted())
        return known_values(session, choice, there, notes)
    spoken = _spoken(held.different[choice.field])
    matches = _matching(choice.values, list(spoken))
    _note_missing(choice, matches, notes, list(spoken))
    return tuple(sorted({value for names in matches.values() for name in names for value in spoken[name]}))


def model_conditions(session: Session, query: Query, notes: list[str]) -> list[ColumnElement[bool]]:
    """What `model:`, `by:` and words ask of models; names that nothing has are put into `notes`."""
    conditions = [_named(session, choice, notes) for choice in query.choices("model")]
    for choice in query.choices("by"):
        shown = select(Model.id).where(Model.contributor_id == Contributor.id, Model.state == "visible")
        names = known_values(session, choice, select(Contributor.name).where(shown.exists()), notes)
        ids = select(Contributor.id).where(Contributor.name.in_(names))
        condition = Model.contributor_id.in_(ids)
        conditions.append(not_(condition) if choice.negated else condition)
    if query.words:
        conditions.append(Model.id.in_(models_with_words(query.words)))
        _note_words(session, query.words, notes)
    conditions += [Model.id.not_in(models_with_words(words.split("-"))) for words in query.excluded_words]
    return conditions


def nonfinite_condition(choice: Choice, column: Any) -> ColumnElement[bool]:
    """Whether `column`, a count of values or of tensors, is as `nonfinite:` asks."""
    meant = {YES: column > 0, NO: column == 0, UNKNOWN: column.is_(None)}
    condition = or_(*(meant[value] for value in choice.values))
    return not_(func.coalesce(condition, false())) if choice.negated else func.coalesce(condition, false())


def _may_have(choice: Choice) -> ColumnElement[bool]:
    """Models that may have an organ as `choice` asks: those with other organs have such ones too.

    Where some organs of a model were not counted, the model's count is unknown, and others may have such values.
    """
    only_odd = set(choice.values) == {YES} and not choice.negated
    return or_(Model.nonfinite_tensors > 0, Model.nonfinite_tensors.is_(None)) if only_odd else true()


def _note_words(session: Session, words: Sequence[str], notes: list[str]) -> None:
    """Say so when no model has the words, and when they are the name of a slot."""
    found = select(Model.id).where(Model.state == "visible", Model.id.in_(models_with_words(words)))
    if session.scalar(found.limit(1)) is not None:
        return
    slots = session.scalars(select(Facet.slot).where(_is_counted()).distinct().limit(NAMES_MAX))
    meant = max((slot for slot in slots if set(folded_words(slot)) <= set(words)), key=len, default=None)
    also = f"; a place of organs is found by slot:{meant}" if meant else ""
    notes.append(f"no model has the words {' '.join(words)[:NEAREST_MAX_LENGTH]}{also}")


def _is_counted() -> ColumnElement[bool]:
    """A facet that a visible placement has: nobody is told of the others."""
    return select(FacetCount.facet_id).where(FacetCount.facet_id == Facet.id, FacetCount.placements > 0).exists()


def _named(session: Session, choice: Choice, notes: list[str]) -> ColumnElement[bool]:
    """Models of the chosen names, `namespace/name` without case."""
    conditions: list[ColumnElement[bool]] = []
    for value in choice.values:
        condition = _pattern(value) if "*" in value else _exactly(value)
        there = condition is not None and session.scalar(
            select(Model.id).where(Model.state == "visible", condition).limit(1)
        )
        if condition is not None:
            conditions.append(condition)
        if not there and not choice.negated and len(notes) < NOTES_MAX:
            notes.append(_missing("model", value, _names(session)))
    condition = or_(*conditions) if conditions else Model.id < 0
    return not_(condition) if choice.negated else condition


def _bases(session: Session, choice: Choice, notes: list[str]) -> list[Base]:
    """The models that stand behind `fits:`, of each name the newest where no version is asked for."""
    bases: dict[int, Base] = {}
    for value in choice.values:
        models = _newest(session, value)
        found = {model_id: base for model_id in models if (base := base_of(session, model_id)) is not None}
        bases |= found
        if found or choice.negated or len(notes) >= NOTES_MAX:
            continue
        if models:
            notes.append(f"{value} states no architecture, so nothing is known to fit it")
        else:
            notes.append(f"no model here is called {value}" + _nearest(choice.field, value, _names(session)))
    return list(bases.values())


def _newest(session: Session, value: str) -> list[int]:
    """The ids of the models that `value` names: of that very name, or else of the same without case."""
    name = parse_model_name(value)  # checked when the query was read
    exactly = and_(Model.namespace == name.namespace, Model.name == name.name)
    for spelled in (exactly, _spelled(f"{name.namespace}/{name.name}", Model.namespace + "/" + Model.name)):
        rows = select(Model.id, Model.namespace, Model.name).where(spelled, Model.state.in_(REACHABLE_STATES))
        if name.version is not None:
            rows = rows.where(Model.version == name.version)
        # As everywhere: a version that was withdrawn only where there is no other.
        ordered = session.execute(rows.order_by(Model.state != "visible", Model.version.desc()).limit(NAMES_MAX))
        newest: dict[tuple[str, str], int] = {}
        for model_id, namespace, own in ordered:
            newest.setdefault((namespace, own), model_id)
        if newest:
            return list(newest.values())[:BASES_MAX]
    return []


def _names(session: Session) -> list[str]:
    shown = select(Model.namespace, Model.name).where(Model.state == "visible")
    return [f"{owner}/{name}" for owner, name in session.execute(shown.distinct().limit(NAMES_MAX))]


def _pattern(value: str) -> ColumnElement[bool]:
    return _spelled(value if "/" in value else f"*/{value}", Model.namespace + "/" + Model.name)


def _spelled(value: str, column: Any) -> ColumnElement[bool]:
    """Whether a text is `value`, where `*` stands for anything; without case, as far as the database knows letters."""
    # LIKE heeds case on one database and not on another; both sides in lower case mean the same on all.
    escaped = value.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
    return func.lower(column).like(escaped, escape="\\")


def _spoken(values: Iterable[str | None]) -> dict[str, set[str]]:
    """The values by the names that people write for them."""
    spoken: dict[str, set[str]] = {}
    for value in values:
        spoken.setdefault(value or ABSENT, set()).add(value or "")
    return spoken


def _exactly(value: str) -> ColumnElement[bool] | None:
    try:
        name = parse_model_name(value)
    except BadName:
        return None
    spelled = _spelled(f"{name.namespace}/{name.name}", Model.namespace + "/" + Model.name)
    return spelled if name.version is None else and_(spelled, Model.version == name.version)


def _matching(values: Sequence[str], there: Sequence[str]) -> dict[str, set[str]]:
    """For each value, which of `there` it means, without case; `*` stands for anything."""
    found = {}
    folded = [(one, one.casefold()) for one in there]
    for value in values:
        wanted = value.casefold()
        if "*" in value:
            pattern = wanted.replace("[", "[[]").replace("?", "[?]")
            found[value] = {one for one, name in folded if fnmatchcase(name, pattern)}
        else:
            found[value] = {one for one, name in folded if name == wanted}
    return found


def _note_missing(choice: Choice, matches: dict[str, set[str]], notes: list[str], there: Sequence[str]) -> None:
    if choice.negated:
        return
    for value, found in matches.items():
        if not found and len(notes) < NOTES_MAX:
            notes.append(_missing(choice.field, value, there))


def _missing(name: str, value: str, there: Iterable[str]) -> str:
    return f"nothing here has {name}:{value}" + _nearest(name, value, there)


def _nearest(name: str, value: str, there: Iterable[str]) -> str:
    close = nearest(value, islice(there, NEAREST_MAX)) if len(value) <= NEAREST_MAX_LENGTH else None
    return f"; the nearest is {name}:{close}" if close else ""


COLUMNS = {one.field: one.name for one in MEASURES.values()} | {"size": "size_bytes", "block": "block"}
"""Field to the placement's column."""
RANKINGS = {one.field: one.ranked_as or one.name for one in MEASURES.values()} | {"size": "size_bytes"}
"""Field to the column of the index that ranks by it: the signal is the sine of θ, and has the same order."""
SIGNAL_SLACK_DEGREES = 1e-6
"""A bound on the signal is tested on the signal; the bound on θ beside it is for the index and must not cut."""


def placement_condition(term: Numbers, entity: Any = Placement) -> ColumnElement[bool]:
    """`term` as a condition on the placements `entity`."""
    return number_condition(term, getattr(entity, COLUMNS[term.field]))


def number_condition(term: Numbers, column: Any) -> ColumnElement[bool]:
    """`term` as a condition on `column`. A minus means the exact opposite: what has no number is then in."""
    allowed = [_within(interval, column) for interval in term.intervals]
    allowed += [column.is_(None)] if term.absent else []
    condition = or_(*allowed)
    if not term.negated:
        return condition
    return not_(condition) if term.absent else or_(not_(condition), column.is_(None))


def index_conditions(numbers: Sequence[Numbers], entity: Any = Placement) -> list[ColumnElement[bool]]:
    """What bounds on θ and the signal say of θ, which every ranking's index holds: rows that fail are never fetched."""
    low, high = stretch(numbers, "theta")
    return [*([entity.theta >= low] if low is not None else []), *([entity.theta <= high] if high is not None else [])]


def ranges(numbers: Iterable[Numbers], column: str) -> list[Numbers]:
    """The terms that leave a stretch of the ranking by `column`, and nothing without a number."""
    found = [term for term in numbers if RANKINGS.get(term.field) == column]
    return [term for term in found if term.intervals and not term.negated and not term.absent]


def wants_missing_only(numbers: Iterable[Numbers], column: str) -> bool:
    """Whether a term asks for no number in `column`, and nothing else."""
    found = [term for term in numbers if RANKINGS.get(term.field) == column and not term.negated]
    return any(term.absent and not term.intervals for term in found)


def stretch(numbers: Iterable[Numbers], column: str) -> tuple[float | None, float | None]:
    """The least and the greatest value of `column` that `ranges` leave; None where there is no bound."""
    low: float | None = None
    high: float | None = None
    for term in ranges(numbers, column):
        lows = [one.low for one in term.intervals]
        highs = [one.high for one in term.intervals]
        least = None if None in lows else min(_ranked(term, one, -1) for one in lows if one is not None)
        most = None if None in highs else max(_ranked(term, one, 1) for one in highs if one is not None)
        low = least if low is None else low if least is None else max(low, least)
        high = most if high is None else high if most is None else min(high, most)
    return low, high


def degrees(field: str, value: float) -> float:
    """The θ that `value` of the field `theta` or `signal` means."""
    return value if field == "theta" else math.degrees(math.asin(min(max(value, 0.0), 1.0)))


def _ranked(term: Numbers, value: float, direction: int) -> float:
    """`value` in the unit of the ranking's column."""
    return degrees("signal", value) + direction * SIGNAL_SLACK_DEGREES if term.field == "signal" else value


def _within(interval: Interval, column: Any) -> ColumnElement[bool]:
    conditions = []
    if interval.low is not None:
        conditions.append(column > interval.low if interval.low_open else column >= interval.low)
    if interval.high is not None:
        conditions.append(column < interval.high if interval.high_open else column <= interval.high)
    return and_(*conditions)


def count_by_type(session: Session, narrowed: Narrowed) -> dict[str, int]:
    """Visible placements of each type whose facet matches; every bin of θ that may match counts as a whole."""
    held = held_roll_up(session)
    if held is None:
        return _counted_by_the_database(session, narrowed)
    filters = narrowed.facet_filters
    first, last = 0, len(BINS)
    if ranges(narrowed.numbers, "theta"):
        low, high = stretch(narrowed.numbers, "theta")
        first = BINS.index(theta_bin(low or 0.0))
        last = last if high is None else max(first, bisect_right(BINS, high))

    def count() -> dict[str, int]:
        counted = sums(held.columns["type"], held.counts(first, last), held.mask(filters))
        return {kind: int(number) for kind, number in sorted(counted.items()) if number}

    return cached(session, ("by type", frozenset(filters), first, last), count)


def _counted_by_the_database(session: Session, narrowed: Narrowed) -> dict[str, int]:
    statement = select(Facet.type, func.sum(FacetCount.placements)).join(FacetCount, FacetCount.facet_id == Facet.id)
    statement = statement.where(*narrowed.facet_conditions)
    if ranges(narrowed.numbers, "theta"):
        low, high = stretch(narrowed.numbers, "theta")
        statement = statement.where(FacetCount.theta_bin >= theta_bin(low or 0.0))
        if high is not None:
            statement = statement.where(FacetCount.theta_bin <= high)
    counted = session.execute(statement.group_by(Facet.type).order_by(Facet.type))
    return {kind: int(number) for kind, number in counted if number}


GATHER_MAX = 20_000
"""Placements that are fetched one by one to be sorted: some tens of milliseconds."""
PASSED_COST, FETCHED_COST = 0.25, 2.0
"""An index entry that is passed over, and a row that is fetched, against each other."""
CORRELATION = 8
"""How much rarer matches may be where the page lies than on the average."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a query will be answered. `driver` is None for the way in order."""

    types: tuple[str, ...]
    driver: str | None
    over: frozenset[str] = frozenset()
    """Types of which hardly anything lies within the bounds on θ: in order, theirs is come by through those."""


def plan_of(session: Session, narrowed: Narrowed, sort: Sort | None, limit: int) -> Plan:
    """The cheaper way to a page of `limit` placements; without a `sort`, to all that match."""
    own = None if sort is None else RANKINGS[sort.field]
    everything = count_by_type(session, Narrowed())
    by_type = count_by_type(session, narrowed)
    types = tuple(kind for kind in ORGAN_TYPES if by_type.get(kind) and _may_match(session, narrowed, kind))
    matching = sum(by_type[kind] for kind in types)
    drivers = _drivers(session, narrowed, types, own)
    if min([matching, *drivers.values()]) == 0:
        return Plan((), None)
    if sort is None:
        drivers.setdefault("facet_id", sum(everything[kind] for kind in types))
    best = min(drivers, key=lambda name: drivers[name], default=None)
    if best is None or drivers[best] > GATHER_MAX:
        return Plan(types, None, _over(session, narrowed, own, types, limit))
    if sort is None:
        return Plan(types, best)
    within = count_by_type(session, Narrowed(numbers=narrowed.numbers)) if own == "theta" else everything
    walked = sum(within[kind] for kind in types)
    # As if one filter had nothing to do with another; facets and θ are counted together.
    share = matching / max(walked, 1)
    for name, count in drivers.items():
        if count <= GATHER_MAX and name not in ("facet_id", "theta"):
            share *= count / max(sum(everything.values()), 1)
    for one in narrowed.fitting:
        share *= one.share(types) if one.models(types) is None else 1.0
    in_order = PASSED_COST * min(CORRELATION * limit / max(share, 1 / max(walked, 1)), walked)
    if FETCHED_COST * drivers[best] < in_order:
        return Plan(types, best)
    return Plan(types, None, _over(session, narrowed, own, types, limit))


def by_index(rows: Any, name: str) -> Any:
    """`rows` of placements, come by through their index `name`."""
    # Its planner has no statistics of a new catalog and would guess; ours has counts.
    return rows.with_hint(Placement, f"INDEXED BY ix_placements_{name}", "sqlite")


def _drivers(session: Session, narrowed: Narrowed, types: tuple[str, ...], own: str | None) -> dict[str, int]:
    """The indexes that a filter narrows, and how many placements would be fetched by each: more than are worth it is
    as good as all."""
    drivers = {}
    if filters := narrowed.facet_filters:
        drivers["facet_id"] = sum(count_by_type(session, Narrowed(facets=filters)).values())
    of_models = [sum(models.values()) for one in narrowed.fitting if (models := one.models(types)) is not None]
    if narrowed.models is not None:
        of_models.append(_count_of_models(session, narrowed.models, narrowed.models_key))
    if of_models:
        drivers["model"] = min(of_models)
    for column in (*RANKED_COLUMNS, "block"):
        if column == own or not _narrowing(narrowed, column):
            continue
        if column == "theta" and index_conditions(narrowed.numbers):
            within = count_by_type(session, Narrowed(numbers=narrowed.numbers))
            drivers[column] = sum(within.get(kind, 0) for kind in types)
        else:
            drivers[column] = _count_range(session, narrowed, types, column)
    return drivers


def _over(session: Session, narrowed: Narrowed, own: str | None, types: tuple[str, ...], limit: int) -> frozenset[str]:
    if own in (None, "theta") or not index_conditions(narrowed.numbers):
        return frozenset()
    everything = count_by_type(session, Narrowed())
    within = count_by_type(session, Narrowed(numbers=narrowed.numbers))
    by_type = count_by_type(session, narrowed)

    def is_over(kind: str) -> bool:
        walked = min(CORRELATION * limit * everything[kind] / by_type[kind], everything[kind])
        return FETCHED_COST * within[kind] < PASSED_COST * walked

    return frozenset(filter(is_over, types))


def _may_match(session: Session, narrowed: Narrowed, kind: str) -> bool:
    """Whether placements of the type `kind` have numbers such as are asked for: norms have no spectral signal."""
    for column in RANKED_COLUMNS:
        if column == "theta" or not ranges(narrowed.numbers, column):
            continue
        least, most = _extremes(session, kind, column)
        low, high = stretch(narrowed.numbers, column)
        if least is None or most is None or (low is not None and low > most) or (high is not None and high < least):
            return False
    return True


def _extremes(session: Session, kind: str, column: str) -> tuple[float | None, float | None]:
    """The least and the greatest number in `column` that the type `kind` has: the two ends of its ranking."""

    def find() -> tuple[float | None, float | None]:
        measure = getattr(Placement, column)
        rows = select(measure).where(Placement.visible, Placement.type == kind, measure.is_not(None)).limit(1)
        ends = [by_index(rows, column).order_by(order) for order in (measure, measure.desc())]
        least, most = (session.scalar(end) for end in ends)
        return least, most

    return cached(session, ("extremes", kind, column), find)


def _count_of_models(session: Session, models: Select[int], key: Hashable) -> int:
    """How many placements the models have that are asked for."""
    tensors = select(func.coalesce(func.sum(Model.tensors), 0)).where(Model.id.in_(models))
    return cached(session, ("models", key), lambda: int(session.scalar(tensors) or 0))


def _narrowing(narrowed: Narrowed, column: str) -> list[ColumnElement[bool]]:
    """What is asked of `column` that its index can answer."""
    if column == "theta" and (bounds := index_conditions(narrowed.numbers)):
        return bounds
    terms = [term for term in narrowed.numbers if not term.negated and term.field != "signal"]
    return [placement_condition(term) for term in terms if COLUMNS[term.field] == column]


def _count_range(session: Session, narrowed: Narrowed, types: tuple[str, ...], column: str) -> int:
    """How many placements have the number that is asked for, counted up to what is worth gathering."""

    def count() -> int:
        rows = select(Placement.id).where(*_narrowing(narrowed, column))
        if column != "block":
            rows = rows.where(Placement.visible, Placement.type.in_(types))
        limited = by_index(rows, column).limit(GATHER_MAX + 1).subquery()
        return session.scalar(select(func.count()).select_from(limited)) or 0

    terms = frozenset(term for term in narrowed.numbers if RANKINGS.get(term.field, term.field) == column)
    return cached(session, ("range", column, terms, types if column != "block" else None), count)
