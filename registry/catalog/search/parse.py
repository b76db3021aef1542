"""Text to `Query`, and queries made narrower, wider or sorted otherwise.

Whatever is wrong is one BadQuery: the term, what is wrong with it, and the nearest that would be right.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from heapq import nlargest
from itertools import pairwise

from organs.registry.catalog.search.fields import ALIASES, ORGANS, SORT_ALIASES, SYNONYMS, Field, Kind, Vocabulary
from organs.registry.catalog.search.terms import Choice, Interval, Numbers, Query, Sort, Term
from organs.registry.catalog.vocabulary import folded_words
from organs.registry.digest import parse_prefix
from organs.registry.errors import BadDigest, BadName, BadQuery
from organs.registry.names import parse_model_name

NUMBER_MAX = 2**63 - 1
"""Databases hold no larger whole numbers."""
ABSENT = "none"

_NUMBER = re.compile(r"(?P<digits>[0-9]{1,19}(\.[0-9]{0,40})?|\.[0-9]{1,40})(?P<unit>[A-Za-z]{0,2})°?", re.ASCII)
_RANGE = re.compile(r"(?P<low>[^-–]*)[-–](?P<high>[^-–]*)")
_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_bound(token: str, field: Field, operator: str, text: str) -> Interval:
    """The interval that a comparison such as `>=45` leaves; raises BadQuery."""
    value = _parse_number(token, field, text)
    if operator == "=":
        return Interval(value, value)
    if operator.startswith(">"):
        return Interval(low=value, low_open=operator == ">")
    return Interval(high=value, high_open=operator == "<")


def parse_numbers(token: str, field: Field, values: Sequence[str]) -> tuple[tuple[Interval, ...], bool]:
    """The intervals that values such as `5-20` and `3` name, and whether `none` is among them; raises BadQuery."""
    intervals = []
    for value in values:
        if value.lower() == ABSENT:
            continue
        match = _RANGE.fullmatch(value)
        low, high = (match["low"], match["high"]) if match and value.strip("-–") else (value, value)
        interval = Interval(
            _parse_number(token, field, low) if low else None, _parse_number(token, field, high) if high else None
        )
        if interval.low is not None and interval.high is not None and interval.low > interval.high:
            raise BadQuery(token, f"a range goes from the smaller number to the larger: {high}-{low}")
        intervals.append(interval)
    return tuple(intervals), len(intervals) < len(values)


def _parse_number(token: str, field: Field, text: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    unit = match["unit"].lower() if match else ""
    if match is None or (unit and field.kind is not Kind.SIZE) or unit.removesuffix("b") not in _UNITS:
        raise BadQuery(token, f"{text[:30]!r} is no number for {field.name}; {_example(field)}")
    value = float(Decimal(match["digits"]) * _UNITS[unit.removesuffix("b")])  # exact: 4.1k is 4100
    if not math.isfinite(value) or value > NUMBER_MAX:
        raise BadQuery(token, f"{text[:30]!r} is too large")
    if field.kind is Kind.WHOLE and not value.is_integer():
        raise BadQuery(token, f"{field.name} is a whole number; {_example(field)}")
    return value


def _example(field: Field) -> str:
    if field.kind is Kind.WHOLE:
        return f"write {field.name}:5-20 or {field.name}>=5"
    if field.kind is Kind.SIZE:
        return f"write {field.name}>=10M"
    return f"write {field.example}"


QUERY_MAX_LENGTH = 2000
TERMS_MAX = 50
VALUES_MAX = 100
"""Of all terms together: what a search costs grows with them."""
VALUE_MAX_LENGTH = 200
WORDS_MAX = 50
"""Each is a look-up of its own."""
COMPARED_MAX_LENGTH = 200
"""Characters of a word whose nearest one is looked for: the longest name of a model has 193."""
LIKELY_MAX = 20
"""Words that it is compared with letter by letter."""

LIKE, UNIQUE, SORT = "like", "unique", "sort"
_TERM = re.compile(r"(?P<minus>-?)(?P<field>[^\W\d][\w]*)(?P<operator>>=|<=|[:=<>])(?P<value>.*)", re.DOTALL)
_LOGIC = frozenset({"AND", "OR", "NOT", "&&", "||"})
_OPERATOR = re.compile(r"[<>=:≤≥]+")
_VALUES = re.compile(r'(?:"[^"]*"|[^,"]*)(?:,(?:"[^"]*"|[^,"]*))*')
_VALUE = re.compile(r'"(?P<quoted>[^"]*)"|(?P<plain>[^,"]+)')


class _Gathered:
    """What has been read of a query so far."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.terms: list[Term] = []
        self.words: dict[str, None] = {}
        self.excluded: dict[str, None] = {}
        self.value_counts: Counter[str] = Counter()
        """By field."""
        self.word_count = 0
        self.like: str | None = None
        self.unique = False
        self.sort: Sort | None = None


def parse_query(text: str, vocabulary: Vocabulary = ORGANS, default_sort: str | None = None) -> Query:
    """The query that `text` asks; an empty text asks for everything. Raises BadQuery.

    `default_sort` is taken where the text has none, instead of the vocabulary's own.
    """
    if len(text) > QUERY_MAX_LENGTH:
        raise BadQuery(text[:20] + "…", f"a query has at most {QUERY_MAX_LENGTH} characters")
    tokens = list(_tokens(text))
    if len(tokens) > TERMS_MAX:
        raise BadQuery(tokens[TERMS_MAX], f"a query has at most {TERMS_MAX} terms")
    gathered = _Gathered(vocabulary)
    for token in tokens:
        _read(gathered, token)
    if gathered.like is not None and gathered.sort is not None:
        raise BadQuery(f"sort:{gathered.sort}", "like: ranks by likeness; leave sort: out")
    sort = gathered.sort or _sort(vocabulary, default_sort or vocabulary.default_sort)
    return Query(
        terms=tuple(gathered.terms),
        words=tuple(gathered.words),
        excluded_words=tuple(gathered.excluded),
        like=gathered.like,
        unique=gathered.unique,
        sort=sort,
    )


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the one of `known` that `word` was probably meant to be: alike by `cutoff` at least, 0 to 1.

    Comparing two words takes up to a millisecond where somebody chose them for that, so no more than LIKELY_MAX are
    compared, those that share most pairs of letters with `word`, and no long word.
    """
    if len(word) > COMPARED_MAX_LENGTH:
        return None
    by_fold = {one.casefold(): one for one in known}
    folded = word.casefold()
    likely = list(by_fold)
    if len(likely) > LIKELY_MAX:
        pairs = _pairs(folded)
        likely = nlargest(LIKELY_MAX, likely, key=lambda one: len(pairs & _pairs(one)))
    close = get_close_matches(folded, likely, n=1, cutoff=cutoff)
    return by_fold[close[0]] if close else None


def _pairs(word: str) -> set[tuple[str, str]]:
    return set(pairwise(word))


def _tokens(text: str) -> Iterator[str]:
    """What stands between spaces that are not inside quotes."""
    token, quoted = "", False
    for sign in text:
        if sign == '"':
            quoted = not quoted
        if sign.isspace() and not quoted:
            if token:
                yield token
            token = ""
        else:
            token += sign
    if quoted:
        raise BadQuery(token, 'a quotation mark (") is open')
    if token:
        yield token


def _read(gathered: _Gathered, token: str) -> None:
    plain = token.replace("≥", ">=").replace("≤", "<=")
    match = _TERM.fullmatch(plain)
    if match is None:
        _read_words(gathered, token)
        return
    name = ALIASES.get(match["field"].lower(), match["field"].lower())
    if name in (SORT, LIKE, UNIQUE):
        _read_order(gathered, token, name, match)
        return
    field = gathered.vocabulary.fields.get(name)
    if field is None:
        raise BadQuery(token, _no_field(gathered.vocabulary, match["field"]))
    term = _term(token, field, match)
    gathered.terms.append(term)
    gathered.value_counts[name] += len(term.values) if isinstance(term, Choice) else len(term.intervals)
    if gathered.value_counts.total() > VALUES_MAX:
        raise BadQuery(token, f"a query has at most {VALUES_MAX} values")
    if field.values_max is not None and gathered.value_counts[name] > field.values_max:
        raise BadQuery(token, f"a query has at most {field.values_max} models behind {name}:")


def _read_words(gathered: _Gathered, token: str) -> None:
    if token in _LOGIC or token.strip("()") != token:
        raise BadQuery(token, 'all terms hold at once, without AND; "or" is a comma: type:organ,skeleton')
    if _OPERATOR.match(token.lstrip("-")):
        raise BadQuery(token, "a field stands before it, without spaces: theta>=40, type:organ")
    excluded = token.startswith("-") and len(token) > 1
    found = folded_words(token)
    if not found:
        raise BadQuery(token, "no letter and no digit is in it")
    if excluded:
        gathered.excluded["-".join(dict.fromkeys(found))] = None
    else:
        gathered.words.update(dict.fromkeys(found))
    gathered.word_count += len(found)
    if gathered.word_count > WORDS_MAX:
        raise BadQuery(token, f"a query has at most {WORDS_MAX} words")


def _read_order(gathered: _Gathered, token: str, name: str, match: re.Match[str]) -> None:
    """`sort:`, `like:` and `unique:`, which say how rather than what."""
    vocabulary, value = gathered.vocabulary, match["value"].strip('"')
    if match["minus"] or match["operator"] not in ":=":
        raise BadQuery(token, f"write {name}:VALUE")
    if (name == SORT and gathered.sort is not None) or (name == LIKE and gathered.like is not None):
        raise BadQuery(token, f"{name}: stands there twice")
    if name == SORT:
        gathered.sort = _sort(vocabulary, value)
    elif not vocabulary.likeness:
        raise BadQuery(token, f"{name}: is for organs, these are {vocabulary.what}")
    elif name == LIKE:
        try:
            gathered.like = parse_prefix(value)
        except BadDigest as error:
            raise BadQuery(token, "write an organ's digest, or at least 8 characters of it") from error
    elif value != "organ":
        raise BadQuery(token, "only unique:organ is known: each organ once")
    else:
        gathered.unique = True


def _sort(vocabulary: Vocabulary, text: str) -> Sort:
    descending, name = text.startswith("-"), text.removeprefix("-").lower()
    name = SORT_ALIASES.get(name, ALIASES.get(name, name))
    if name not in vocabulary.sorts:
        close = nearest(name, vocabulary.sorts)
        meant = f"; did you mean sort:{'-' if descending else ''}{close}?" if close else ""
        raise BadQuery(f"sort:{text}", f"{vocabulary.what} sort by {_listed(vocabulary.sorts)}{meant}")
    return Sort(name, descending)


def _term(token: str, field: Field, match: re.Match[str]) -> Choice | Numbers:
    operator, negated = match["operator"], bool(match["minus"])
    if field.is_numeric:
        if operator != ":":
            if negated:
                raise BadQuery(token, "a comparison cannot be turned round by a minus: use the opposite comparison")
            return Numbers(field.name, (parse_bound(token, field, operator, match["value"]),))
        intervals, absent = parse_numbers(token, field, _values(token, match["value"]))
        return Numbers(field.name, intervals, absent, negated)
    if operator not in ":=":
        raise BadQuery(token, f"{field.name} is a name, not a number: write {field.name}:VALUE")
    values = _values(token, match["value"])
    if field.kind is Kind.CHOICE:
        values = [_choice(token, field, value) for value in values]
    elif field.kind is Kind.MODEL:
        for value in values:
            _check_name(token, field, value)
    return Choice(field.name, tuple(dict.fromkeys(values)), negated)


def _values(token: str, text: str) -> list[str]:
    """What stands between the commas."""
    if not _VALUES.fullmatch(text):
        raise BadQuery(token, "values stand between commas, those with spaces in quotation marks")
    found = [match["quoted"] if match["plain"] is None else match["plain"] for match in _VALUE.finditer(text)]
    values = [value.strip() for value in found if value.strip()]
    if not values:
        raise BadQuery(token, "a value is missing behind it")
    if len(values) > VALUES_MAX:
        raise BadQuery(token, f"a query has at most {VALUES_MAX} values")
    for value in values:
        if len(value) > VALUE_MAX_LENGTH or not value.isprintable():
            raise BadQuery(token, f"a value is printable text of at most {VALUE_MAX_LENGTH} characters")
    return values


def _choice(token: str, field: Field, value: str) -> str:
    if value.lower() in field.choices:
        return value.lower()
    close = SYNONYMS.get(value.lower()) or nearest(value, field.choices)
    meant = f"; did you mean {field.name}:{close}?" if close in field.choices else ""
    raise BadQuery(token, f"{field.name} is one of {_listed(field.choices)}{meant}")


def _check_name(token: str, field: Field, value: str) -> None:
    if "*" in value:
        raise BadQuery(token, f"{field.name}: takes whole names of models, without *")
    try:
        parse_model_name(value)
    except BadName as error:
        raise BadQuery(token, str(error)) from error


def _no_field(vocabulary: Vocabulary, name: str) -> str:
    known = [*vocabulary.fields, SORT, *([LIKE, UNIQUE] if vocabulary.likeness else [])]
    elsewhere = vocabulary is not ORGANS and ALIASES.get(name, name) in ORGANS.fields
    if elsewhere:
        return f"{name} is a field of organs; {vocabulary.what} have {_listed(known)}"
    close = nearest(name, [*known, *ALIASES])
    meant = f"did you mean {ALIASES.get(close, close)}:?" if close else f"the fields are {_listed(known)}"
    return f"no field is called {name!r}; {meant}"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def short_text(query: Query, vocabulary: Vocabulary = ORGANS) -> str:
    """The query's text as people would type it: without the sort that it would have anyway."""
    return query.text(unless_sorted=vocabulary.default_sort)


def toggled_texts(query: Query, field: str, values: Iterable[str], vocabulary: Vocabulary = ORGANS) -> dict[str, str]:
    """By value the short text of the query with it among the choices of `field`, or without where it stands already."""
    chosen = [one for term in query.choices(field) if not term.negated for one in term.values]
    terms = [str(term) for term in query.terms if not _chooses(term, field)]
    behind = query.behind_terms(vocabulary.default_sort)
    found = {}
    for value in values:
        left = [one for one in chosen if one.casefold() != value.casefold()]
        kept = left if len(left) < len(chosen) else [*chosen, value]
        choice = [str(Choice(field, tuple(kept)))] if kept else []
        found[value] = " ".join([*sorted([*terms, *choice]), *behind])
    return found


def has_choice(query: Query, field: str, value: str) -> bool:
    """Whether `value` is among what the query chooses in `field`."""
    chosen = {one.casefold() for term in query.choices(field) if not term.negated for one in term.values}
    return value.casefold() in chosen


def bounded(query: Query, field: str, low: float | None, high: float | None) -> Query:
    """With the number `field` from `low` up to but without `high`, instead of all that was said of it."""
    terms = [term for term in query.terms if term.field != field]
    if low is not None:
        terms.append(Numbers(field, (Interval(low),)))
    if high is not None:
        terms.append(Numbers(field, (Interval(high=high, high_open=True),)))
    return replace(query, terms=tuple(terms))


def without(query: Query, part: object) -> Query:
    """Without the term `part`, or without the word that it is."""
    return replace(
        query,
        terms=tuple(term for term in query.terms if term != part),
        words=tuple(word for word in query.words if word != part),
        excluded_words=tuple(word for word in query.excluded_words if f"-{word}" != part),
    )


def sorted_by(query: Query, field: str) -> Query:
    """Sorted by `field`, the largest first; the other way round where it is so already."""
    descending = not (query.sort.field == field and query.sort.descending)
    return replace(query, sort=Sort(field, descending), like=None)


def _chooses(term: object, field: str) -> bool:
    return isinstance(term, Choice) and term.field == field and not term.negated
