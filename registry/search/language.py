"""The query language: its fields, its parser, and queries as values. It does not use the database.

The search box, the command line, JSON and Python share this grammar. `parse_query(text, ORGANS)` returns a
`Query`. `str(query)` returns the text in a normal form, which is independent of the order and spelling of the input.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum

from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.catalog.vocabulary import CHIMERA, MODEL_KINDS, ORGAN_TYPES, PARTIAL, TOWERS, folded_words
from organs.registry.digest import parse_prefix
from organs.registry.entities.query import SUGGESTED, SUGGESTIONS_MAX, TYPED_MAX_LENGTH
from organs.registry.errors import BadDigest, BadName, BadQuery
from organs.registry.measures import MEASURES
from organs.registry.names import nearest, parse_model_name

_PLAIN_VALUE = re.compile(r"[^\s\",]+")


def value_text(value: str) -> str:
    """Return `value` as a query has it: in quotation marks if it has spaces or commas. It must have no such marks."""
    return value if _PLAIN_VALUE.fullmatch(value) else f'"{value}"'


@dataclass(frozen=True, slots=True)
class Choice:
    """`field:value,value`, which matches one of the values; with `negated`, all other values."""

    field: str
    values: tuple[str, ...]
    negated: bool = False

    def __str__(self) -> str:
        values = ",".join(map(value_text, self.values))
        return f"{'-' if self.negated else ''}{self.field}:{values}"


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The numbers from `low` to `high`. A bound may be missing; an open bound is excluded."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False

    def holds(self, value: float) -> bool:
        """Return whether `value` is in the range."""
        above = self.low is None or (value > self.low if self.low_open else value >= self.low)
        below = self.high is None or (value < self.high if self.high_open else value <= self.high)
        return above and below

    def __str__(self) -> str:
        low = "" if self.low is None else _number_text(self.low)
        high = "" if self.high is None else _number_text(self.high)
        return low if low == high else f"{low}-{high}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """A number in one of the ranges, or a missing number if `absent`. With `negated`, all other cases match."""

    field: str
    ranges: tuple[NumberRange, ...]
    absent: bool = False
    negated: bool = False

    def __str__(self) -> str:
        single = self.ranges[0] if len(self.ranges) == 1 and not self.absent and not self.negated else None
        if single is not None and single.low is not None and single.low == single.high and single.low < 0:
            return f"{self.field}={_number_text(single.low)}"
        if single is not None and single.high is None and single.low is not None:
            return f"{self.field}{'>' if single.low_open else '>='}{_number_text(single.low)}"
        if single is not None and single.low is None and single.high is not None:
            return f"{self.field}{'<' if single.high_open else '<='}{_number_text(single.high)}"
        parts = [str(own) for own in self.ranges] + (["none"] if self.absent else [])
        return f"{'-' if self.negated else ''}{self.field}:{','.join(parts)}"

    def holds(self, value: float | None) -> bool:
        """Return whether `value` matches; None is a missing number."""
        matches = self.absent if value is None else any(own.holds(value) for own in self.ranges)
        return matches is not self.negated


@dataclass(frozen=True, slots=True)
class Sort:
    """The field to sort by, and the direction."""

    field: str
    descending: bool

    def __str__(self) -> str:
        return f"{'-' if self.descending else ''}{self.field}"


Term = Choice | Bounds


@dataclass(frozen=True, slots=True)
class Query:
    """A search. All terms must hold."""

    terms: tuple[Term, ...]
    words: tuple[str, ...]
    """Folded prefixes of words in the model's name, title, tags or description."""
    excluded_words: tuple[str, ...]
    """Words after a minus. Several words with `-` between them exclude models that have all of them."""
    like: str | None
    """The prefix of an organ's digest: results are ranked by their likeness to this organ."""
    unique: bool
    """Whether an organ with several places gives only one result."""
    sort: Sort
    base: str | None = None
    """The model to which `likeness` compares: the only model of `fits:` or `kin:`; None without such a model."""

    def __str__(self) -> str:
        return " ".join([*sorted(map(str, self.terms)), *self.suffix()])

    def suffix(self, default_sort: str = "") -> list[str]:
        """Return the parts of the text after the terms: the order, unless it is `default_sort`, then the words."""
        parts = [f"like:{self.like}"] if self.like else []
        parts += ["unique:organ"] if self.unique else []
        parts += [] if self.like or str(self.sort) == default_sort else [f"sort:{self.sort}"]
        return [*parts, *sorted(self.words), *(f"-{word}" for word in sorted(self.excluded_words))]

    def choices(self, field: str) -> list[Choice]:
        """Return the terms that select values of `field`."""
        return [term for term in self.terms if isinstance(term, Choice) and term.field == field]

    @property
    def finds_experts(self) -> bool:
        """Whether the results are single experts of stacks instead of whole tensors."""
        return bool(self.numbers(EXPERT))

    @property
    def mentions_gains(self) -> bool:
        """Whether it filters or sorts by measured gains."""
        return bool(self.numbers(GAIN) or self.choices(ON)) or self.sort.field == GAIN

    def wanted(self, default_sort: str = "") -> set[str]:
        """Return the fields of numbers that it is about: those that it limits, and by which it sorts on request."""
        sort = set() if self.like is not None or str(self.sort) == default_sort else {self.sort.field}
        return sort | {term.field for term in self.terms if isinstance(term, Bounds)}

    def numbers(self, field: str) -> list[Bounds]:
        """Return the terms that limit the number `field`."""
        return [term for term in self.terms if isinstance(term, Bounds) and term.field == field]


def _number_text(value: float) -> str:
    return str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}"  # the language has no exponents


class FieldKind(StrEnum):
    """The kind of values that a field accepts."""

    CHOICE = "choice"
    """One of a fixed list of words."""
    NAME = "name"
    """Any word; `*` in it matches any text."""
    MODEL = "model"
    """The name of one model, with or without a version."""
    NUMBER = "number"
    WHOLE = "whole"
    """A whole number."""
    SIZE = "size"
    """A number of bytes, with an optional unit k, M or G."""


@dataclass(frozen=True, slots=True)
class QueryField:
    """A field of the query language: the values that it accepts, and its meaning in a few words for help texts."""

    name: str
    kind: FieldKind
    meaning: str
    choices: tuple[str, ...] = ()
    example: str = ""
    """A term with a number, for messages."""
    values_max: int | None = None
    """The most values in one query, for fields whose values cost more than a look-up in an index."""
    signed: bool = False
    """Whether a comparison may be with a number below 0."""

    @property
    def is_numeric(self) -> bool:
        return self.kind in (FieldKind.NUMBER, FieldKind.WHOLE, FieldKind.SIZE)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The fields and sort keys of one kind of object."""

    plural: str
    """The name of the list in addresses and in the API: organs."""
    shown_plural: str
    """What people call the objects: tensors."""
    fields: Mapping[str, QueryField]
    sorts: Mapping[str, str]
    """The values of `sort:` and their meaning."""
    default_sort: str
    has_likeness: bool
    """Whether `like:` and `unique:` are allowed."""
    start: str = ""
    """The query that a list for people begins with. It is visible and can be changed; an empty query finds all."""

    def default_sort_of(self, query: Query) -> str:
        """Return the order of `query` without a sort: by falling likeness if it has a base."""
        return self.default_sort if query.base is None or query.like else MOST_ALIKE


BASES_MAX = 10
"""The most models in `fits:` or `kin:` of one query. Every result is compared with each of them."""
LIKENESS = "likeness"
"""The field and the sort that need a base."""
MOST_ALIKE = f"-{LIKENESS}"
"""The default order of results that are compared with a base."""
GAIN, ON = "gain", "on"
"""The fields that select by what validated chimeras gained, and on which texts."""
EXPERT = "expert"
"""The field by which searches find single experts. Without it, they find whole tensors."""
BASE_FIELDS = ("fits", "kin")
"""The fields that name a base."""
RECIPE_BASE = "base"
"""The base of the query of a recipe that is read before its base is known."""

TAG, QUANT, MADE_FROM = "tag", "quant", "base"
"""Fields of models: tags, the quantisation in the name, and the parent."""

ALIASES = {
    "architecture": "arch",
    "contributor": "by",
    "licence": "license",
    "parameters": "params",
    "parent": MADE_FROM,
    "quantisation": QUANT,
    "quantization": QUANT,
    "tags": TAG,
    **{
        alias: measure.field
        for measure in MEASURES.values()
        for alias in (measure.name, *measure.aliases)
        if alias != measure.field
    },
}

SORT_ALIASES = {"created": "new"}
"""Aliases that only `sort:` accepts."""

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
"""Common names of the types, which queries and recipes accept too."""

_ARCH = QueryField("arch", FieldKind.NAME, "the model's architecture: llama, qwen2")
_LICENSE = QueryField("license", FieldKind.NAME, "the license of the model; license:none if the model states none")
_BY = QueryField("by", FieldKind.NAME, "the contributor who added the model")
_MODEL = QueryField("model", FieldKind.NAME, "the model: namespace/name, or acme/*")
_KIN = QueryField(
    "kin",
    FieldKind.MODEL,
    "this model, models with a likeness of 0.5 or more to it, and models related to it by declared or recorded lineage",
    values_max=BASES_MAX,
)
_ON = QueryField(
    ON,
    FieldKind.NAME,
    "a gain or a loss was measured on this kind of text: python, on:code for all kinds of program code, on:prose",
)
_GAIN_EXAMPLE = "gain>=2 or gain:2-10"
_LIKENESS_EXAMPLE = "likeness>=0.9 or likeness:0.5-1"

YES, NO, UNKNOWN = "yes", "no", "unknown"
_NONFINITE = QueryField(
    "nonfinite",
    FieldKind.CHOICE,
    "yes if some weights are NaN or infinite; unknown if an older version registered the tensor without a check",
    (YES, NO, UNKNOWN),
)


def _by_name(*fields: QueryField) -> dict[str, QueryField]:
    return {field.name: field for field in fields}


ORGANS = Vocabulary(
    plural="organs",
    shown_plural="tensors",
    fields=_by_name(
        QueryField(
            "type", FieldKind.CHOICE, "the part of the model: organ is feed-forward, skeleton is attention", ORGAN_TYPES
        ),
        QueryField(
            "slot",
            FieldKind.NAME,
            f"the place in the block, such as {EXAMPLE_SLOTS[0]}; "
            f"{EXAMPLE_SLOTS[0][:4]}* matches each slot that begins with {EXAMPLE_SLOTS[0][:4]}",
        ),
        QueryField(
            "block",
            FieldKind.WHOLE,
            "the number of the block (layer), from 0; block:none for tensors outside the blocks",
        ),
        QueryField(
            EXPERT,
            FieldKind.WHOLE,
            "the number of one expert in a stack of experts, from 0; expert>=0 for all; without this field, only whole "
            "tensors are found",
        ),
        QueryField("tower", FieldKind.CHOICE, "the stack of blocks that the tensor belongs to", TOWERS),
        *(
            QueryField(measure.field, FieldKind.NUMBER, measure.summary, example=measure.example)
            for measure in MEASURES.values()
        ),
        QueryField("size", FieldKind.SIZE, "bytes of the tensor in the file: size>=10M"),
        QueryField("dtype", FieldKind.NAME, "the tensor type: F16, Q8_0"),
        _ARCH,
        _MODEL,
        _LICENSE,
        _BY,
        QueryField(
            "fits",
            FieldKind.MODEL,
            "tensors that fit into this model, by architecture, place and shape; adapters never fit",
            values_max=BASES_MAX,
        ),
        _KIN,
        QueryField(
            LIKENESS,
            FieldKind.NUMBER,
            "the correlation with the tensor at the same place in the model of fits: or kin:",
            example=_LIKENESS_EXAMPLE,
        ),
        QueryField(
            GAIN,
            FieldKind.NUMBER,
            "the measured fall of the perplexity in percent when a donor gave this tensor to the model of fits: or "
            "kin:, or to any model; positive is better, and only settled results count",
            example=_GAIN_EXAMPLE,
            signed=True,
        ),
        _ON,
        _NONFINITE,
    ),
    sorts={measure.field: measure.summary for measure in MEASURES.values()}
    | {"size": "bytes", LIKENESS: "likeness to the model of fits: or kin:", GAIN: "measured gain"},
    default_sort="-theta",
    has_likeness=True,
    start="type:organ sort:-spectral",
)

MODELS = Vocabulary(
    plural="models",
    shown_plural="models",
    fields=_by_name(
        QueryField(
            "kind",
            FieldKind.CHOICE,
            "the kind of model; partial if tensors are missing, chimera if it was composed in this registry",
            (*MODEL_KINDS, PARTIAL, CHIMERA),
        ),
        _MODEL,
        _ARCH,
        _LICENSE,
        _BY,
        QueryField(TAG, FieldKind.NAME, "a tag of the model: medical; tag:none if it has none"),
        QueryField(
            QUANT,
            FieldKind.NAME,
            "the quantisation in the name, or of the tensors: Q4_K_M, Q4_*; quant:none without one",
        ),
        QueryField(
            MADE_FROM,
            FieldKind.NAME,
            "models made from this model, as their files declare or this registry recorded: acme/base, acme/*; "
            "base:none if no parent is registered",
        ),
        QueryField(
            "theta", FieldKind.NUMBER, "mean θ over the tensors, in degrees", example="theta>=45 or theta:35-60"
        ),
        QueryField(
            "signal", FieldKind.NUMBER, "mean of sin θ over the tensors", example="signal>=0.6 or signal:0.5-0.7"
        ),
        QueryField("params", FieldKind.SIZE, "the number of parameters: params>=1M"),
        QueryField("tensors", FieldKind.WHOLE, "the number of tensors"),
        QueryField("size", FieldKind.SIZE, "bytes of the model's files"),
        QueryField("downloads", FieldKind.WHOLE, "downloads of the model or of one of its tensors"),
        QueryField("grafts", FieldKind.WHOLE, "chimeras in this registry that have tensors of the model"),
        _KIN,
        QueryField(
            LIKENESS,
            FieldKind.NUMBER,
            "the mean likeness of its tensors to the model of kin:",
            example=_LIKENESS_EXAMPLE,
        ),
        QueryField(
            GAIN,
            FieldKind.NUMBER,
            "the measured fall of the perplexity in percent, of a chimera against its base or of a base with tensors "
            "of this model; positive is better, and only settled results count",
            example=_GAIN_EXAMPLE,
            signed=True,
        ),
        _ON,
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
        "grafts": "chimeras that have its tensors",
        LIKENESS: "likeness to the model of kin:",
        GAIN: "measured gain",
    },
    default_sort="-new",
    has_likeness=False,
)

VOCABULARIES: Mapping[str, Vocabulary] = {vocabulary.plural: vocabulary for vocabulary in (MODELS, ORGANS)}
"""The vocabularies by the lists that their queries are for."""


def vocabulary_of(kind: str) -> Vocabulary:
    """Return the vocabulary of the list `kind`; raises BadQuery for another name."""
    if kind not in VOCABULARIES:
        raise BadQuery(kind[:80], f"a query is for one of {', '.join(VOCABULARIES)}")
    return VOCABULARIES[kind]


def check_typed(text: str, of: str, limit: int) -> None:
    """Raise BadQuery for a text that is too long for suggestions, and for another `of` or `limit` than they have."""
    if len(text) > TYPED_MAX_LENGTH:
        raise BadQuery("q", f"at most {TYPED_MAX_LENGTH:,} characters")
    if of not in SUGGESTED:
        raise BadQuery("of", f"one of {', '.join(SUGGESTED)}")
    if not 1 <= limit <= SUGGESTIONS_MAX:
        raise BadQuery("limit", f"a whole number from 1 to {SUGGESTIONS_MAX}")


QUERY_MAX_LENGTH = 2000
TERMS_MAX = 50
VALUES_MAX = 100
"""The most values of all terms together. They determine the cost of a search."""
VALUE_MAX_LENGTH = 200
WORDS_MAX = 50
"""The most words of a query. Each is a separate look-up."""

LIKE, UNIQUE, SORT = "like", "unique", "sort"

TERM = re.compile(r"(?P<minus>-?)(?P<field>[^\W\d][\w]*)(?P<operator>>=|<=|[:=<>])(?P<value>.*)", re.DOTALL)
"""A term: a minus, a field, an operator and a value, each in a group."""
_LOGIC = frozenset({"AND", "OR", "NOT", "&&", "||"})
_OPERATOR = re.compile(r"[<>=:≤≥]+")
_VALUES = re.compile(r'(?:"[^"]*"|[^,"]*)(?:,(?:"[^"]*"|[^,"]*))*')
_VALUE = re.compile(r'"(?P<quoted>[^"]*)"|(?P<plain>[^,"]+)')


def parse_query(
    text: str, vocabulary: Vocabulary = ORGANS, default_sort: str | None = None, base: str | None = None
) -> Query:
    """Return the query in `text`; an empty text matches everything. Raises BadQuery.

    `default_sort` replaces the default order for texts without a sort. `base` is the model that `likeness` compares
    with; by default the only model of `fits:`, else the only model of `kin:`.
    """
    if len(text) > QUERY_MAX_LENGTH:
        raise BadQuery(text[:20] + "…", f"a query has at most {QUERY_MAX_LENGTH} characters")
    tokens = list(_tokens(text))
    if len(tokens) > TERMS_MAX:
        raise BadQuery(tokens[TERMS_MAX], f"a query has at most {TERMS_MAX} terms")
    parser = _Parser(vocabulary)
    for token in tokens:
        parser.read(token)
    terms, sort = tuple(parser.terms), parser.sort
    likeness = next((str(term) for term in terms if term.field == LIKENESS), "")
    if parser.like is not None and sort is not None:
        raise BadQuery(f"{SORT}:{sort}", "like: ranks by likeness; leave sort: out")
    if parser.like is not None and likeness:
        raise BadQuery(likeness, "like: ranks by the likeness to one tensor; leave likeness out")
    base = base or _base_of(terms)
    if sort is None:
        by_likeness = base is not None and parser.like is None
        sort = _parse_sort(vocabulary, default_sort or (MOST_ALIKE if by_likeness else vocabulary.default_sort))
    query = Query(terms, tuple(parser.words), tuple(parser.excluded), parser.like, parser.unique, sort, base)
    if query.finds_experts:
        _check_expert_terms(query)
    if base is None and (likeness or sort.field == LIKENESS):
        fields = [field for field in BASE_FIELDS if field in vocabulary.fields]
        several = [field for field in fields if any(not term.negated for term in query.choices(field))]
        reason = f"likeness needs a base: add {' or '.join(f'{field}:MODEL' for field in fields)}"
        if several:
            reason = f"likeness needs one base: name one model in {' or '.join(f'{field}:' for field in several)}"
        raise BadQuery(likeness or f"{SORT}:{sort}", reason)
    return query


def _tokens(text: str) -> Iterator[str]:
    """Yield the parts between spaces that are not inside quotes."""
    token, quoted = "", False
    for char in text:
        if char == '"':
            quoted = not quoted
        if char.isspace() and not quoted:
            if token:
                yield token
            token = ""
        else:
            token += char
    if quoted:
        raise BadQuery(token, 'a quotation mark (") is not closed')
    if token:
        yield token


class _Parser:
    """The parts of a query that were read so far."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.terms: list[Term] = []
        self.words: dict[str, None] = {}
        self.excluded: dict[str, None] = {}
        self.value_counts: Counter[str] = Counter()
        """The number of values by field."""
        self.word_count = 0
        self.like: str | None = None
        self.unique = False
        self.sort: Sort | None = None

    def read(self, token: str) -> None:
        """Read one token; raises BadQuery."""
        match = TERM.fullmatch(token.replace("≥", ">=").replace("≤", "<="))
        if match is None:
            self._read_words(token)
            return
        name = ALIASES.get(match["field"].lower(), match["field"].lower())
        if name in (SORT, LIKE, UNIQUE):
            self._read_order(token, name, match)
            return
        field = self.vocabulary.fields.get(name)
        if field is None:
            raise BadQuery(token, _unknown_field_reason(self.vocabulary, match["field"], token))
        term = _parse_term(token, field, match)
        self.terms.append(term)
        self.value_counts[name] += len(term.values) if isinstance(term, Choice) else len(term.ranges)
        if self.value_counts.total() > VALUES_MAX:
            raise BadQuery(token, f"a query has at most {VALUES_MAX} values")
        if field.values_max is not None and self.value_counts[name] > field.values_max:
            raise BadQuery(token, f"a query has at most {field.values_max} models in {name}:")

    def _read_words(self, token: str) -> None:
        if token in _LOGIC or token.strip("()") != token:
            reason = 'terms need no AND: all of them must hold; write "or" as a comma: type:organ,skeleton'
            raise BadQuery(token, reason)
        if _OPERATOR.match(token.lstrip("-")):
            raise BadQuery(token, "write a field before it, without spaces: theta>=40, type:organ")
        words = folded_words(token)
        if not words:
            raise BadQuery(token, "a word needs a letter or a digit")
        if token.startswith("-"):
            self.excluded["-".join(dict.fromkeys(words))] = None
        else:
            self.words.update(dict.fromkeys(words))
        self.word_count += len(words)
        if self.word_count > WORDS_MAX:
            raise BadQuery(token, f"a query has at most {WORDS_MAX} words")

    def _read_order(self, token: str, name: str, match: re.Match[str]) -> None:
        """Read `sort:`, `like:` or `unique:`, which set the order of results."""
        value = match["value"].strip('"')
        if match["minus"] or match["operator"] not in ":=":
            raise BadQuery(token, f"write {name}:VALUE")
        if (name == SORT and self.sort is not None) or (name == LIKE and self.like is not None):
            raise BadQuery(token, f"{name}: occurs twice")
        if name == SORT:
            self.sort = _parse_sort(self.vocabulary, value)
        elif not self.vocabulary.has_likeness:
            raise BadQuery(token, f"{name}: is for tensors; this is a search for {self.vocabulary.shown_plural}")
        elif name == LIKE:
            try:
                self.like = parse_prefix(value)
            except BadDigest as error:
                raise BadQuery(token, "write a tensor's digest, or at least 8 characters of it") from error
        elif value != "organ":
            raise BadQuery(token, "the only value is unique:organ, which lists each tensor once")
        else:
            self.unique = True


def _parse_sort(vocabulary: Vocabulary, text: str) -> Sort:
    descending, name = text.startswith("-"), text.removeprefix("-").lower()
    name = SORT_ALIASES.get(name, ALIASES.get(name, name))
    if name not in vocabulary.sorts:
        close = nearest(name, vocabulary.sorts)
        hint = f"; did you mean sort:{'-' if descending else ''}{close}?" if close else ""
        raise BadQuery(
            f"sort:{text}", f"{vocabulary.shown_plural} can be sorted by {', '.join(vocabulary.sorts)}{hint}"
        )
    return Sort(name, descending)


def _parse_term(token: str, field: QueryField, match: re.Match[str]) -> Term:
    operator, negated = match["operator"], bool(match["minus"])
    if field.is_numeric and operator != ":":
        if negated:
            raise BadQuery(token, "a minus cannot negate a comparison: use the opposite comparison")
        return Bounds(field.name, (_parse_comparison(token, field, operator, match["value"]),))
    if field.is_numeric:
        ranges, absent = _parse_ranges(token, field, _split_values(token, match["value"]))
        return Bounds(field.name, ranges, absent, negated)
    if operator not in ":=":
        raise BadQuery(token, f"{field.name} is a name, not a number: write {field.name}:VALUE")
    values = _split_values(token, match["value"])
    if field.kind is FieldKind.CHOICE:
        values = [_parse_choice(token, field, value) for value in values]
    for value in values if field.kind is FieldKind.MODEL else ():
        if "*" in value:
            raise BadQuery(token, f"{field.name}: takes complete names of models, without *")
        try:
            parse_model_name(value)
        except BadName as error:
            raise BadQuery(token, str(error)) from error
    return Choice(field.name, tuple(dict.fromkeys(values)), negated)


def _split_values(token: str, text: str) -> list[str]:
    """Return the values between the commas."""
    if not _VALUES.fullmatch(text):
        raise BadQuery(token, "separate values by commas, and put values with spaces in quotation marks")
    parts = [match["quoted"] if match["plain"] is None else match["plain"] for match in _VALUE.finditer(text)]
    values = [part.strip() for part in parts if part.strip()]
    if not values:
        raise BadQuery(token, "a value is missing after it")
    if len(values) > VALUES_MAX:
        raise BadQuery(token, f"a query has at most {VALUES_MAX} values")
    for value in values:
        if len(value) > VALUE_MAX_LENGTH or not value.isprintable():
            raise BadQuery(token, f"a value is printable text of at most {VALUE_MAX_LENGTH} characters")
    return values


def _parse_choice(token: str, field: QueryField, value: str) -> str:
    for known in (value.lower(), SYNONYMS.get(value.lower(), "")):
        if known in field.choices:
            return known
    close = nearest(value, field.choices)
    hint = f"; did you mean {field.name}:{close}?" if close else ""
    raise BadQuery(token, f"{field.name} is one of {', '.join(field.choices)}{hint}")


NUMBER_MAX = 2**63 - 1
"""The largest whole number that databases store."""
ABSENT = "none"
"""The value that matches missing values."""

_NUMBER = re.compile(r"(?P<digits>[0-9]{1,19}(\.[0-9]{0,40})?|\.[0-9]{1,40})(?P<unit>[A-Za-z]{0,2})°?", re.ASCII)
_RANGE = re.compile(r"(?P<low>[^-–]*)[-–](?P<high>[^-–]*)")
_MINUS = ("-", "−")
_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def _parse_comparison(token: str, field: QueryField, operator: str, text: str) -> NumberRange:
    """Return the range of a comparison such as `>=45`."""
    is_negative = field.signed and text.strip().startswith(_MINUS)
    value = _parse_number(token, field, text.strip()[1:] if is_negative else text)
    value = -value if is_negative else value
    if operator == "=":
        return NumberRange(value, value)
    if operator.startswith(">"):
        return NumberRange(low=value, low_open=operator == ">")
    return NumberRange(high=value, high_open=operator == "<")


def _parse_ranges(token: str, field: QueryField, values: Sequence[str]) -> tuple[tuple[NumberRange, ...], bool]:
    """Return the ranges of values such as `5-20` and `3`, and whether `none` is one of them."""
    ranges = []
    for value in values:
        if value.lower() == ABSENT:
            continue
        if field.signed and value.strip().startswith(_MINUS):
            number = value.strip()[1:]
            raise BadQuery(token, f"write a number below 0 as {field.name}<=-{number} or {field.name}=-{number}")
        match = _RANGE.fullmatch(value)
        texts = (match["low"], match["high"]) if match and value.strip("-–") else (value, value)
        low, high = (_parse_number(token, field, text) if text else None for text in texts)
        if low is not None and high is not None and low > high:
            raise BadQuery(token, f"a range goes from the smaller number to the larger: {texts[1]}-{texts[0]}")
        ranges.append(NumberRange(low, high))
    return tuple(ranges), len(ranges) < len(values)


def _parse_number(token: str, field: QueryField, text: str) -> float:
    example = {
        FieldKind.WHOLE: f"write {field.name}:5-20 or {field.name}>=5",
        FieldKind.SIZE: f"write {field.name}>=10M",
    }.get(field.kind, f"write {field.example}")
    match = _NUMBER.fullmatch(text.strip())
    unit = match["unit"].lower() if match else ""
    if match is None or (unit and field.kind is not FieldKind.SIZE) or unit.removesuffix("b") not in _UNITS:
        raise BadQuery(token, f"{text[:30]!r} is not a number for {field.name}; {example}")
    value = float(Decimal(match["digits"]) * _UNITS[unit.removesuffix("b")])  # exact: 4.1k is 4100
    if not math.isfinite(value) or value > NUMBER_MAX:
        raise BadQuery(token, f"{text[:30]!r} is too large")
    if field.kind is FieldKind.WHOLE and not value.is_integer():
        raise BadQuery(token, f"{field.name} is a whole number; {example}")
    return value


def _unknown_field_reason(vocabulary: Vocabulary, name: str, token: str) -> str:
    orders = [SORT, *([LIKE, UNIQUE] if vocabulary.has_likeness else [])]
    names = [*vocabulary.fields, *orders]
    if vocabulary is not ORGANS and ALIASES.get(name, name) in ORGANS.fields:
        return f"{name} is a field of tensors; {vocabulary.shown_plural} have {', '.join(names)}"
    close = nearest(name, [*orders, *vocabulary.fields, *ALIASES])
    if close:
        return f"there is no field {name!r}; did you mean {ALIASES.get(close, close)}:?"
    reason = f"there is no field {name!r}; the fields are {', '.join(names)}"
    try:
        is_ollama_name = ":" in token and parse_model_name(token).version is None  # as Ollama prints it: zoo:latest
    except BadName:
        is_ollama_name = False
    return f"{reason}; to search for a model of this name, write model:{token}" if is_ollama_name else reason


def _base_of(terms: Iterable[Term]) -> str | None:
    """Return the only model of `fits:`; else the only model of `kin:`; else None."""
    for field in BASE_FIELDS:
        chosen = [term for term in terms if isinstance(term, Choice) and term.field == field and not term.negated]
        names = {value for term in chosen for value in term.values}
        if len(names) == 1:
            return names.pop()
    return None


def _check_expert_terms(query: Query) -> None:
    """Raise BadQuery for terms that do not apply to single experts."""
    for term in query.terms:
        if isinstance(term, Bounds) and term.field == EXPERT and term.absent:
            raise BadQuery(str(term), f"leave {EXPERT}: out to find whole tensors")
        if term.field == "fits":
            raise BadQuery(str(term), f"{EXPERT}: finds single experts; name the base with kin: instead of fits:")
    if query.mentions_gains:
        raise BadQuery(f"{EXPERT}:", "gains are measured for whole tensors, not for single experts")


def on_term(texts: str) -> Choice:
    """Return the term `on:` for names of texts with commas between them; raises BadQuery without a name."""
    values = [value.strip() for value in texts.split(",") if value.strip()]
    if not values or any('"' in value for value in values):
        raise BadQuery(f"on {texts[:30]!r}", "write names of texts, such as python or code, with commas between them")
    return Choice(ON, tuple(values))


def short_text(query: Query, vocabulary: Vocabulary = ORGANS) -> str:
    """Return the text of the query without the default sort, as people type it."""
    return " ".join([*sorted(map(str, query.terms)), *query.suffix(vocabulary.default_sort_of(query))])


def toggled_texts(query: Query, field: str, values: Iterable[str], vocabulary: Vocabulary = ORGANS) -> dict[str, str]:
    """Return the short text of the query after a click on each value, by value.

    The click adds the value to `field`, or removes it.
    """
    own = [term for term in query.choices(field) if not term.negated]
    selected = [value for term in own for value in term.values]
    terms = [str(term) for term in query.terms if term not in own]
    suffix = query.suffix(vocabulary.default_sort_of(query))
    texts = {}
    for value in values:
        others = [other for other in selected if other.casefold() != value.casefold()]
        toggled = others if len(others) < len(selected) else [*selected, value]
        choice = [str(Choice(field, tuple(toggled)))] if toggled else []
        texts[value] = " ".join([*sorted([*terms, *choice]), *suffix])
    return texts


def has_choice(query: Query, field: str, value: str) -> bool:
    """Return whether the query selects `value` in `field`."""
    terms = (term for term in query.choices(field) if not term.negated)
    return any(value.casefold() == selected.casefold() for term in terms for selected in term.values)


def bounded(query: Query, field: str, low: float | None, high: float | None) -> Query:
    """Return the query with `low` <= `field` < `high` instead of its other terms about `field`."""
    terms = [term for term in query.terms if term.field != field]
    if low is not None:
        terms.append(Bounds(field, (NumberRange(low),)))
    if high is not None:
        terms.append(Bounds(field, (NumberRange(high=high, high_open=True),)))
    return replace(query, terms=tuple(terms))


def without(query: Query, part: object, vocabulary: Vocabulary = ORGANS) -> Query:
    """Return the query without `part`, a term or a word; if that was its base, also without likeness."""
    terms = tuple(term for term in query.terms if term != part)
    base, sort = _base_of(terms), query.sort
    if base is None:
        terms = tuple(term for term in terms if term.field != LIKENESS)
        sort = _parse_sort(vocabulary, vocabulary.default_sort) if sort.field == LIKENESS else sort
    return replace(
        query,
        terms=terms,
        words=tuple(word for word in query.words if word != part),
        excluded_words=tuple(word for word in query.excluded_words if f"-{word}" != part),
        sort=sort,
        base=base,
    )


def sorted_by(query: Query, field: str) -> Query:
    """Return the query sorted by `field`, largest first; smallest first if it is largest first already."""
    descending = not (query.sort.field == field and query.sort.descending)
    return replace(query, sort=Sort(field, descending), like=None)
