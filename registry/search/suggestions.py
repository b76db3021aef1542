"""Suggestions while a query, or the name of a model, is typed.

Each answer reads a bounded number of rows through an index, whatever the size of the catalog: the words of models,
their tags, and the facets. It has only what visible models have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from sqlalchemy import exists, or_, select
from sqlalchemy.orm import Session

from organs.registry.anatomy import type_name
from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.model_names import is_newest
from organs.registry.catalog.tables import ContributorRow, Facet, ModelRow, ModelTag, ModelWord
from organs.registry.catalog.vocabulary import TEXT_GROUPS, folded_tag, folded_words, shown_text
from organs.registry.entities.query import (
    ANYTHING,
    MODEL_NAMES,
    SUGGESTIONS_DEFAULT,
    Suggestion,
    Suggestions,
)
from organs.registry.search.filters import after_prefix, facet_is_counted
from organs.registry.search.gains import names_of_texts
from organs.registry.search.language import (
    ALIASES,
    MADE_FROM,
    ON,
    QUANT,
    SORT,
    SYNONYMS,
    TAG,
    TERM,
    UNIQUE,
    VOCABULARIES,
    FieldKind,
    QueryField,
    Vocabulary,
    value_text,
)

WORDS_MAX = 4
"""The most words of a name that are looked up."""
CANDIDATES_MAX = 300
"""The most models that are read for each word: those whose words come first in the alphabet."""
VALUES_MAX = 5000
"""The most different values of a field, and the most models, that are read to suggest values."""
MEANING_MAX = 100
BESIDE_MAX = 2
"""The most tags, and the most architectures, that are suggested beside models."""
MODEL, TAG_KIND, ARCHITECTURE, FIELD, VALUE = "model", "tag", "architecture", "field", "value"
_FACETS = {"arch": Facet.architecture, "license": Facet.license, "slot": Facet.slot, "dtype": Facet.dtype}
_NEWEST_FIRST = (ModelRow.created_at.desc(), ModelRow.id.desc())
"""An order that an index of visible models has."""
_MODEL_FIELDS = ("model", MADE_FROM, "kin", "fits")


def suggestions(session: Session, typed: str, of: str, limit: int = SUGGESTIONS_DEFAULT) -> Suggestions:
    """Return what `typed` may mean: the beginning of `of`, one of `SUGGESTED`; of a query, the word at the cursor."""
    typed = typed.strip()
    found: Iterable[Suggestion]
    if of == MODEL_NAMES:
        found = _models(session, typed, limit)
    elif of == ANYTHING:
        found = _anything(session, typed, limit)
    else:
        found = _words(session, typed, VOCABULARIES[of], limit)
    return Suggestions(items=tuple(islice(found, limit)))


def _models(session: Session, typed: str, limit: int, *, before: str = "") -> list[Suggestion]:
    """Return the models whose name or title has words that begin with those of `typed`, the best first."""
    words = list(dict.fromkeys(folded_words(typed)))[:WORDS_MAX]
    columns = (ModelRow.namespace, ModelRow.name, ModelRow.title, ModelRow.architecture)
    statement = select(ModelRow.id, *columns, ModelRow.downloads, ModelRow.grafts)
    statement = statement.where(ModelRow.state == "visible", is_newest())
    if words:
        # One statement, which is the same for hidden models: their number would show in the time of two.
        matching = [
            select(ModelWord.model_id).where(ModelWord.word >= word, ModelWord.word < after_prefix(word))
            for word in words
        ]
        found = [select(one.limit(CANDIDATES_MAX).subquery().c.model_id) for one in matching]
        rows = list(session.execute(statement.where(or_(*(ModelRow.id.in_(ids) for ids in found)))))
    else:
        rows = list(session.execute(statement.order_by(*_NEWEST_FIRST).limit(limit)))
    ranked = []
    for row in rows:
        own = folded_words(f"{row.namespace} {row.name} {row.title or ''}")
        if all(any(part.startswith(word) for part in own) for word in words):
            full_name = f"{row.namespace}/{row.name}"
            begins = any(text.casefold().startswith(typed.casefold()) for text in (row.name, full_name))
            ranked.append(((not begins, -row.grafts, -row.downloads, -row.id), full_name, row))
    ranked.sort(key=lambda item: item[0])
    return [
        Suggestion(kind=MODEL, text=before + name, meaning=_meaning(row.title, row.architecture))
        for _, name, row in ranked[:limit]
    ]


def _meaning(*texts: str | None) -> str:
    return " · ".join(shown_text(text)[:MEANING_MAX] for text in texts if text)


def _anything(session: Session, typed: str, limit: int) -> Iterator[Suggestion]:
    """Yield models, then tags and architectures, for a search whose kind is not known yet."""
    if not typed:
        return
    beside = [*_tags(session, typed, BESIDE_MAX), *_architectures(session, typed)]
    yield from _models(session, typed, max(1, limit - len(beside)))
    yield from beside


def _tags(session: Session, typed: str, limit: int) -> Iterator[Suggestion]:
    for tag in _tags_from(session, folded_tag(typed), limit):
        yield Suggestion(kind=TAG_KIND, text=f"{TAG}:{value_text(tag)}", meaning="models with this tag")


def _tags_from(session: Session, prefix: str, limit: int) -> Iterator[str]:
    """Yield the tags of visible models that begin with `prefix`, each by a look-up in the index."""
    is_visible = exists().where(ModelRow.id == ModelTag.model_id, ModelRow.state == "visible")
    statement = select(ModelTag.tag).where(is_visible).order_by(ModelTag.tag).limit(1)
    within = [ModelTag.tag >= prefix, ModelTag.tag < after_prefix(prefix)] if prefix else []
    last: str | None = None
    for _ in range(limit):
        last = session.scalar(statement.where(*within, *([] if last is None else [ModelTag.tag > last])))
        if last is None:
            return
        if '"' not in last:  # a query cannot have it
            yield last


def _architectures(session: Session, typed: str) -> Iterator[Suggestion]:
    for name in islice(_beginning(_facet_values(session, "arch"), typed), BESIDE_MAX):
        yield Suggestion(kind=ARCHITECTURE, text=f"arch:{value_text(name)}", meaning="models of this architecture")


def _facet_values(session: Session, field: str) -> list[str]:
    """Return the values of `field` that visible organs have, sorted."""
    column = _FACETS[field]
    statement = select(column).where(column != "", facet_is_counted()).distinct().order_by(column).limit(VALUES_MAX)
    return cached(session, ("suggested values", field), lambda: list(session.scalars(statement)))


def _beginning(values: Iterable[str], typed: str) -> Iterator[str]:
    return (value for value in values if value.casefold().startswith(typed.casefold()))


def _words(session: Session, typed: str, vocabulary: Vocabulary, limit: int) -> Iterator[Suggestion]:
    """Yield the words of a query that begin with `typed`, the word at the cursor."""
    minus, rest = ("-", typed[1:]) if typed.startswith("-") else ("", typed)
    term = TERM.fullmatch(rest)
    if term is None:
        fields = [found for name in _fields(vocabulary) if (found := _field(vocabulary, name, rest, minus)) is not None]
        if not rest or minus:
            yield from fields
            return
        more = [*_values(session, vocabulary, "type", rest, limit), *fields] if "type" in vocabulary.fields else fields
        models = _models(session, rest, limit, before="model:")
        yield from more[: max(limit - len(models), limit // 2)]
        if TAG in vocabulary.fields:
            yield from _tags(session, rest, BESIDE_MAX)
        yield from _architectures(session, rest)
        yield from models
        return
    name = ALIASES.get(term["field"].lower(), term["field"].lower())
    earlier, comma, last = term["value"].rpartition(",")
    before = f"{minus}{term['field']}{term['operator']}{earlier}{comma}"
    if term["operator"] in ":=":
        for found in _values(session, vocabulary, name, last.removeprefix('"'), limit):
            yield Suggestion(kind=found.kind, text=before + found.text.partition(":")[2], meaning=found.meaning)


def _fields(vocabulary: Vocabulary) -> Iterator[str]:
    yield from vocabulary.fields
    yield SORT
    yield from (UNIQUE,) if vocabulary.has_likeness else ()


def _field(vocabulary: Vocabulary, name: str, typed: str, minus: str) -> Suggestion | None:
    """Return the field `name` if it, or another name of it, begins with `typed`; terms that order have no minus."""
    names = (name, *(alias for alias, field in ALIASES.items() if field == name))
    if not any(own.startswith(typed.casefold()) for own in names):
        return None
    field: QueryField | None = vocabulary.fields.get(name)
    if field is None:
        meaning = "the order of the results" if name == SORT else f"{UNIQUE}:organ lists each tensor once"
        return None if minus else Suggestion(kind=FIELD, text=f"{name}:", meaning=meaning)
    if field.is_numeric and minus:
        return None
    return Suggestion(kind=FIELD, text=f"{minus}{name}{'>=' if field.is_numeric else ':'}", meaning=field.meaning)


def _values(session: Session, vocabulary: Vocabulary, name: str, typed: str, limit: int) -> Iterator[Suggestion]:
    """Yield the values of the field `name` that begin with `typed`, as terms."""
    if name in _MODEL_FIELDS and name in vocabulary.fields:
        yield from _models(session, typed, limit, before=f"{name}:")
        return
    for value, meaning in islice(_plain_values(session, vocabulary, name, typed, limit), limit):
        yield Suggestion(kind=VALUE, text=f"{name}:{value_text(value)}", meaning=meaning)


def _plain_values(
    session: Session, vocabulary: Vocabulary, name: str, typed: str, limit: int
) -> Iterator[tuple[str, str]]:
    """Yield the values of a field of words with their meanings."""
    field = vocabulary.fields.get(name)
    if name == SORT:
        yield from _sorts(vocabulary, typed)
    elif name == UNIQUE and vocabulary.has_likeness:
        yield from ((value, "each tensor once") for value in _beginning(("organ",), typed))
    elif field is None or field.is_numeric:
        return
    elif field.kind is FieldKind.CHOICE:
        for value in field.choices:
            names = (value, type_name(value), *(word for word, meant in SYNONYMS.items() if meant == value))
            if any(_beginning(names, typed)):
                yield value, type_name(value) if type_name(value) != value else ""
    elif name == TAG:
        yield from ((tag, "") for tag in _tags_from(session, folded_tag(typed), limit))
    else:
        yield from ((value, "") for value in _beginning(_known_values(session, name), typed))


def _sorts(vocabulary: Vocabulary, typed: str) -> Iterator[tuple[str, str]]:
    minus, word = ("-", typed[1:]) if typed.startswith("-") else ("", typed)
    found = [(name, meaning) for name, meaning in vocabulary.sorts.items() if name.startswith(word.casefold())]
    yield from ((f"-{name}", f"{meaning}, largest first") for name, meaning in found)
    if not minus:
        yield from ((name, f"{meaning}, smallest first") for name, meaning in found)


def _known_values(session: Session, name: str) -> list[str]:
    """Return the values of the field `name` that visible models or organs have, sorted."""
    if name in _FACETS:
        return _facet_values(session, name)
    if name == ON:
        return sorted({*TEXT_GROUPS, *session.scalars(names_of_texts().distinct().limit(VALUES_MAX))})
    newest = select(ModelRow.id).where(ModelRow.state == "visible").order_by(*_NEWEST_FIRST).limit(VALUES_MAX)
    if name == QUANT:
        statement = select(ModelRow.quantisation).where(ModelRow.id.in_(newest.scalar_subquery())).distinct()
    else:
        owners = select(ModelRow.contributor_id).where(ModelRow.id.in_(newest.scalar_subquery()))
        statement = select(ContributorRow.name).where(ContributorRow.id.in_(owners))
    return cached(session, ("suggested values", name), lambda: sorted(filter(None, session.scalars(statement))))
