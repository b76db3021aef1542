"""The query language: its fields, its parser, and queries as values. Pure.

The search box, the command line, JSON and Python share this grammar. `parse_query(text, ORGANS)` gives a `Query`;
`str(query)` is its text again, in one form whatever the order and spelling of the original.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from enum import StrEnum
from heapq import nlargest
from itertools import pairwise

from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.catalog.vocabulary import MODEL_KINDS, ORGAN_TYPES, TOWERS, folded_words
from organs.registry.digest import parse_prefix
from organs.registry.errors import BadDigest, BadName, BadQuery
from organs.registry.measures import MEASURES
from organs.registry.names import parse_model_name

_PLAIN_VALUE = re.compile(r"[^\s\",]+")


@dataclass(frozen=True, slots=True)
class Choice:
    """`field:value,value`: one of the values, or with `negated` none of them."""

    field: str
    values: tuple[str, ...]
    negated: bool = False

    def __str__(self) -> str:
        values = ",".join(value if _PLAIN_VALUE.fullmatch(value) else f'"{value}"' for value in self.values)
        return f"{'-' if self.negated else ''}{self.field}:{values}"


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`, either of which may be missing or, when it is open, excluded."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number in one of the intervals, or no number where `absent` allows it; with `negated` all other cases."""

    field: str
    intervals: tuple[Interval, ...]
    absent: bool = False
    negated: bool = False

    def __str__(self) -> str:
        one = self.intervals[0] if len(self.intervals) == 1 and not self.absent and not self.negated else None
        if one is not None and one.high is None and one.low is not None:
            return f"{self.field}{'>' if one.low_open else '>='}{_number(one.low)}"
        if one is not None and one.low is None and one.high is not None:
            return f"{self.field}{'<' if one.high_open else '<='}{_number(one.high)}"
        parts = [_range(interval) for interval in self.intervals] + (["none"] if self.absent else [])
        return f"{'-' if self.negated else ''}{self.field}:{','.join(parts)}"


@dataclass(frozen=True, slots=True)
class Sort:
    """By which field, and from which end."""

    field: str
    descending: bool

    def __str__(self) -> str:
        return f"{'-' if self.descending else ''}{self.field}"


Term = Choice | Numbers


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for: all terms hold at once."""

    terms: tuple[Term, ...]
    words: tuple[str, ...]
    """Folded; each begins a word of the model's name, title, tags or description."""
    excluded_words: tuple[str, ...]
    """What stood behind one minus: a word, or several with `-` between them, which a model must not have at once."""
    like: str | None
    """The beginning of an organ's digest: rank by likeness to it."""
    unique: bool
    """One result an organ, however many places it has."""
    sort: Sort

    def __str__(self) -> str:
        return self.text()

    def text(self, *, unless_sorted: str = "") -> str:
        """The query's text; the sort is left out where it is `unless_sorted`."""
        return " ".join([*sorted(map(str, self.terms)), *self.behind_terms(unless_sorted)])

    def behind_terms(self, unless_sorted: str = "") -> list[str]:
        """What stands behind the terms in the query's text: its order, then its words."""
        parts = [f"like:{self.like}"] if self.like else []
        parts += ["unique:organ"] if self.unique else []
        parts += [] if self.like or str(self.sort) == unless_sorted else [f"sort:{self.sort}"]
        return [*parts, *sorted(self.words), *(f"-{word}" for word in sorted(self.excluded_words))]

    def choices(self, field: str) -> list[Choice]:
        """The terms that choose by name in `field`."""
        return [term for term in self.terms if isinstance(term, Choice) and term.field == field]

    def numbers(self, field: str) -> list[Numbers]:
        """The terms that bound the number `field`."""
        return [term for term in self.terms if isinstance(term, Numbers) and term.field == field]


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}"  # the language has no exponents


def _range(interval: Interval) -> str:
    low = "" if interval.low is None else _number(interval.low)
    high = "" if interval.high is None else _number(interval.high)
    return low if low == high else f"{low}-{high}"


class Kind(StrEnum):
    """What stands behind a field's colon."""

    CHOICE = "choice"
    """One of a few words that are always the same."""
    NAME = "name"
    """A word that depends on what is registered; `*` stands for any text in it."""
    MODEL = "model"
    """The name of one model, with a version or without."""
    NUMBER = "number"
    WHOLE = "whole"
    """A whole number."""
    SIZE = "size"
    """Bytes, with k, M or G behind the number if need be."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field, what it takes, and what it means, in a few words for people."""

    name: str
    kind: Kind
    meaning: str
    choices: tuple[str, ...] = ()

    example: str = ""
    """Of a number in a query."""
    values_max: int | None = None
    """In one query, where each costs more than a look at an index."""

    @property
    def is_numeric(self) -> bool:
        return self.kind in (Kind.NUMBER, Kind.WHOLE, Kind.SIZE)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What one kind of thing can be asked for."""

    what: str
    """In the plural, for people: organs."""
    fields: Mapping[str, Field]
    sorts: Mapping[str, str]
    """Words behind `sort:` and their meaning."""
    default_sort: str
    likeness: bool
    """Whether `like:` and `unique:` mean something."""


BASES_MAX = 10
"""Models behind `fits:` in one query: what is found is compared with each."""

PARTIAL = "partial"
"""The kind that is shown of a model of which only some organs are here."""
CHIMERA = "chimera"
"""The kind that is shown of a model that was composed here."""

ALIASES = {
    "architecture": "arch",
    "contributor": "by",
    "licence": "license",
    "parameters": "params",
    **{alias: one.field for one in MEASURES.values() for alias in (one.name, *one.aliases) if alias != one.field},
}

SORT_ALIASES = {"created": "new"}
"""Words behind `sort:` alone."""

SYNONYMS = {
    "attention": "skeleton",
    "attn": "skeleton",
    "embedding": "embed",
    "feed-forward": "organ",
    "feedforward": "organ",
    "ffn": "organ",
    "layernorm": "norm",
    "lora": "adapter",
    "mlp": "organ",
}
"""What the field calls our types: suggested, not taken."""

_ARCH = Field("arch", Kind.NAME, "the model's architecture: llama, qwen2")
_LICENSE = Field("license", Kind.NAME, "the model's licence; none where it states none")
_BY = Field("by", Kind.NAME, "who added the model")
_MODEL = Field("model", Kind.NAME, "the model: namespace/name, or acme/*")

YES, NO, UNKNOWN = "yes", "no", "unknown"
_NONFINITE = Field(
    "nonfinite",
    Kind.CHOICE,
    "whether some weights are NaN or infinite; unknown where an older version registered them",
    (YES, NO, UNKNOWN),
)


def _by_name(*fields: Field) -> dict[str, Field]:
    return {field.name: field for field in fields}


ORGANS = Vocabulary(
    what="organs",
    fields=_by_name(
        Field("type", Kind.CHOICE, "the system that it belongs to", ORGAN_TYPES),
        Field(
            "slot",
            Kind.NAME,
            f"the place in its block: {EXAMPLE_SLOTS[0]}; {EXAMPLE_SLOTS[0][:4]}* for all that begin so",
        ),
        Field("block", Kind.WHOLE, "the layer's number, from 0; none outside the blocks"),
        Field("tower", Kind.CHOICE, "the stack of blocks that it is in", TOWERS),
        *(Field(one.field, Kind.NUMBER, one.summary, example=one.example) for one in MEASURES.values()),
        Field("size", Kind.SIZE, "bytes in the file: size>=10M"),
        Field("dtype", Kind.NAME, "the type of its values: F16, Q8_0"),
        _ARCH,
        _MODEL,
        _LICENSE,
        _BY,
        Field(
            "fits",
            Kind.MODEL,
            "what can be grafted into this model, by architecture, place and shape; adapters never",
            values_max=BASES_MAX,
        ),
        _NONFINITE,
    ),
    sorts={one.field: one.summary for one in MEASURES.values()} | {"size": "bytes"},
    default_sort="-theta",
    likeness=True,
)

MODELS = Vocabulary(
    what="models",
    fields=_by_name(
        Field(
            "kind",
            Kind.CHOICE,
            "what was registered; partial where organs are missing, chimera what was composed here",
            (*MODEL_KINDS, PARTIAL, CHIMERA),
        ),
        _MODEL,
        _ARCH,
        _LICENSE,
        _BY,
        Field("theta", Kind.NUMBER, "mean θ over its tensors, in degrees", example="theta>=45 or theta:35-60"),
        Field("signal", Kind.NUMBER, "mean of sin θ over its tensors", example="signal>=0.6 or signal:0.5-0.7"),
        Field("params", Kind.SIZE, "parameters: params>=1M"),
        Field("tensors", Kind.WHOLE, "how many organs it has"),
        Field("size", Kind.SIZE, "bytes of its files"),
        Field("downloads", Kind.WHOLE, "how often it was fetched, whole or an organ of it"),
        Field("grafts", Kind.WHOLE, "chimeras here that have organs of it"),
        _NONFINITE,
    ),
    sorts={
        "new": "when it was registered",
        "theta": "mean θ",
        "signal": "mean signal",
        "params": "parameters",
        "tensors": "organs",
        "size": "bytes",
        "downloads": "downloads",
        "grafts": "chimeras that have organs of it",
    },
    default_sort="-new",
    likeness=False,
)


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


__all__ = [
    "MODELS",
    "ORGANS",
    "Choice",
    "Field",
    "Interval",
    "Numbers",
    "Query",
    "Sort",
    "Vocabulary",
    "parse_query",
]
