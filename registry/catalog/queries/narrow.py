"""A query's terms against what is registered: facets, models (also by their words), and what is tested one by one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, false, func, not_, or_, select, true
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.facets import (
    FACET_COLUMNS,
    held_roll_up,
)
from organs.registry.catalog.queries.fitting import (
    Base,
    Fitting,
    base_of,
    fitting,
)
from organs.registry.catalog.search import Choice, Numbers, Query
from organs.registry.catalog.search.fields import BASES_MAX, NO, UNKNOWN, YES
from organs.registry.catalog.search.parse import nearest
from organs.registry.catalog.tables import Contributor, Facet, FacetCount, Model, ModelWord
from organs.registry.catalog.vocabulary import REACHABLE_STATES, folded_words
from organs.registry.errors import BadName
from organs.registry.names import parse_model_name

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
    models_asked: Hashable = None
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
        narrowed.models_asked = (frozenset(named), frozenset(query.words), frozenset(query.excluded_words))
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
