"""Tests of the query language: meaning of each form, written form, and the message for an invalid query."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from organs.registry.errors import BadQuery
from organs.registry.search.language import (
    ALIASES,
    BASES_MAX,
    MODELS,
    NUMBER_MAX,
    ORGANS,
    QUERY_MAX_LENGTH,
    TERMS_MAX,
    VALUE_MAX_LENGTH,
    VALUES_MAX,
    WORDS_MAX,
    Bounds,
    Choice,
    FieldKind,
    NumberRange,
    Query,
    Sort,
    Vocabulary,
    parse_query,
    short_text,
)
from tests.random_files import PATIENT
from tests.search.queries import query_texts

DIGEST = "ab" * 32


def parts(query: Query) -> tuple[object, ...]:
    """Return the parts of a query, without the order of its terms and words."""
    return (
        sorted(map(str, query.terms)),
        sorted(map(repr, query.terms)),
        sorted(query.words),
        sorted(query.excluded_words),
        query.like,
        query.unique,
        query.sort,
    )


def one_term(text: str, vocabulary: Vocabulary = ORGANS) -> Choice | Bounds:
    (term,) = parse_query(text, vocabulary).terms
    return term


def refusal(text: str, vocabulary: Vocabulary = ORGANS) -> str:
    with pytest.raises(BadQuery) as caught:
        parse_query(text, vocabulary)
    return str(caught.value)


# Valid forms.


def test_an_empty_query_selects_everything_by_descending_theta() -> None:
    for text in ("", "   ", "\t\n"):
        assert parse_query(text) == Query((), (), (), None, False, Sort("theta", True))
    assert parse_query("", MODELS).sort == Sort("new", True)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("type:organ", Choice("type", ("organ",))),
        ("TYPE:Organ", Choice("type", ("organ",))),
        ("-type:norm,embed", Choice("type", ("norm", "embed"), negated=True)),
        ("slot:FFN_up", Choice("slot", ("FFN_up",))),
        ('license:"llama 3, community",mit', Choice("license", ("llama 3, community", "mit"))),
        ("by:a:b", Choice("by", ("a:b",))),
        ("model:acme/tiny@2,acme/*", Choice("model", ("acme/tiny@2", "acme/*"))),
        ("-fits:acme/base@2,Little", Choice("fits", ("acme/base@2", "Little"), negated=True)),
        ("slot:,a,,b,", Choice("slot", ("a", "b"))),
        ("theta>=45", Bounds("theta", (NumberRange(low=45),))),
        ("theta<45", Bounds("theta", (NumberRange(high=45, high_open=True),))),
        ("theta:45", Bounds("theta", (NumberRange(45, 45),))),
        ("theta≥45°", Bounds("theta", (NumberRange(low=45),))),
        ("θ≤45.5", Bounds("theta", (NumberRange(high=45.5),))),
        ("theta:.5-1.", Bounds("theta", (NumberRange(0.5, 1),))),
        ("-theta:none", Bounds("theta", (), absent=True, negated=True)),
        ("-theta:40-45,NONE", Bounds("theta", (NumberRange(40, 45),), absent=True, negated=True)),
        ("block:0,3,7-9", Bounds("block", (NumberRange(0, 0), NumberRange(3, 3), NumberRange(7, 9)))),
        ("size=4.1k", Bounds("size", (NumberRange(4100, 4100),))),
        ("size:1.5k-2GB", Bounds("size", (NumberRange(1500, 2_000_000_000),))),
        ("size<1t", Bounds("size", (NumberRange(high=1e12, high_open=True),))),
        ("size>=9223372036854774784", Bounds("size", (NumberRange(low=float(2**63 - 1024)),))),
        ("theta:35-", Bounds("theta", (NumberRange(low=35),))),
        ("theta:-60", Bounds("theta", (NumberRange(high=60),))),
        ("block:none,-60", Bounds("block", (NumberRange(high=60),), absent=True)),
    ],
)
def test_a_term_is_parsed(text: str, term: Choice | Bounds) -> None:
    assert one_term(text) == term


@pytest.mark.parametrize("vocabulary", [ORGANS, MODELS], ids=["organs", "models"])
def test_every_field_can_be_selected_and_excluded(vocabulary: Vocabulary) -> None:
    for name, field in vocabulary.fields.items():
        value = field.choices[0] if field.kind is FieldKind.CHOICE else "5"
        for text, negated in (
            (f"{name}:{value}", False),
            (f"-{name}:{value}", True),
            (f"{name.upper()}={value}", False),
        ):
            (term,) = parse_query(text, vocabulary, base="acme/base").terms
            assert (term.field, term.negated) == (name, negated)
            assert isinstance(term, Bounds) == field.is_numeric


@pytest.mark.parametrize("vocabulary", [ORGANS, MODELS], ids=["organs", "models"])
def test_every_sort_works_in_both_directions(vocabulary: Vocabulary) -> None:
    for name in vocabulary.sorts:
        assert parse_query(f"sort:{name}", vocabulary, base="acme/base").sort == Sort(name, False)
        assert parse_query(f"sort=-{name.upper()}", vocabulary, base="acme/base").sort == Sort(name, True)
    assert parse_query(f"sort:{vocabulary.default_sort}", vocabulary) == parse_query("", vocabulary)


def test_every_alias_is_a_field_of_organs_or_models() -> None:
    assert set(ALIASES.values()) <= set(ORGANS.fields) | set(MODELS.fields)
    assert not set(ALIASES) & (set(ORGANS.fields) | set(MODELS.fields))
    for alias, name in ALIASES.items():
        vocabulary = ORGANS if name in ORGANS.fields else MODELS
        assert one_term(f"{alias}:5", vocabulary) == one_term(f"{name}:5", vocabulary)
    assert parse_query("sort:-magnitude").sort == Sort("z", True)
    assert parse_query("sort:-created", MODELS).sort == Sort("new", True)


def test_words_are_folded_and_deduplicated() -> None:
    assert parse_query("Coder CODER Zoo-A Größe v1.0").words == ("coder", "zoo", "a", "grosse", "v1", "0")
    assert parse_query('"two words"').words == ("two", "words")
    assert parse_query("5:20").words == ("5", "20")


def test_the_words_after_one_minus_are_excluded_together() -> None:
    assert parse_query("-coder -Zoo-A --x").excluded_words == ("coder", "zoo-a", "x")
    assert parse_query("-coder").words == ()


def test_like_and_unique_are_parsed() -> None:
    assert parse_query(f"like:sha256:{DIGEST}").like == DIGEST
    assert parse_query("like:ABCDEF12").like == "abcdef12"
    assert parse_query("like:abcdef12 type:organ").sort == Sort("theta", True)
    assert parse_query("unique:organ").unique
    assert not parse_query("").unique


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("", None),
        ("fits:acme/base", "acme/base"),
        ("kin:acme/base@2", "acme/base@2"),
        ("fits:acme/base kin:acme/other", "acme/base"),
        ("fits:a,b kin:acme/base", "acme/base"),
        ("fits:a fits:b", None),
        ("kin:a,b", None),
        ("-fits:acme/base -kin:acme/base", None),
    ],
)
def test_the_base_of_a_likeness_is_the_only_model_of_fits_or_of_kin(text: str, base: str | None) -> None:
    query = parse_query(text)
    assert query.base == base
    order = Sort("theta", True) if base is None else Sort("likeness", True)
    assert query.sort == order, "with a base, the most similar tensors come first"
    assert short_text(query) == " ".join(sorted(text.split()))
    if base is None:
        assert "likeness needs" in refusal(f"{text} likeness>=0.5")
    else:
        assert parse_query(f"{text} likeness>=0.5 sort:-theta").numbers("likeness") == [
            Bounds("likeness", (NumberRange(low=0.5),))
        ]


def test_an_order_and_a_likeness_to_an_organ_keep_their_place_beside_a_base() -> None:
    assert short_text(parse_query("fits:a sort:-theta")) == "fits:a sort:-theta"
    assert short_text(parse_query("fits:a sort:-likeness")) == "fits:a"
    assert parse_query("fits:a", default_sort="size").sort == Sort("size", False)
    assert parse_query("like:abcdef12 fits:a").sort == Sort("theta", True)
    assert parse_query("kin:a", MODELS).sort == Sort("likeness", True)
    assert parse_query("type:organ", base="a").sort == Sort("likeness", True)


# Invalid queries.


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tpye:organ", "'tpye:organ': there is no field 'tpye'; did you mean type:?"),
        ("-blok:5", "'-blok:5': there is no field 'blok'; did you mean block:?"),
        ("magnitud>1", "'magnitud>1': there is no field 'magnitud'; did you mean z:?"),
        ("srot:theta", "'srot:theta': there is no field 'srot'; did you mean sort:?"),
        (
            "qqq:1",
            "there is no field 'qqq'; the fields are type, slot, block, expert, tower, theta, signal, z, spectral",
        ),
        ("qqq:8b", "gain, on, nonfinite, sort, like, unique; to search for a model of this name, write model:qqq:8b"),
        (
            "type:orgn",
            "'type:orgn': type is one of skeleton, organ, embed, norm, adapter, other; did you mean type:organ?",
        ),
        ("fits:acme/*", "'fits:acme/*': fits: takes complete names of models, without *"),
        (
            "fits:a/b/c",
            "'a/b' is not a namespace: use letters and digits, with . _ - between them, at most 96 characters",
        ),
        ("fits:acme/base@0", "'0' is not a version: use a whole number from 1"),
        ('fits:"a b"', "'a b' is not a name"),
        ("fits>=acme/base", "fits is a name, not a number: write fits:VALUE"),
        ("slot<=a", "slot is a name, not a number: write slot:VALUE"),
        ("type:", "'type:': a value is missing after it"),
        ('slot:""', "a value is missing after it"),
        ("theta>=", "'' is not a number for theta; write theta>=45 or theta:35-60"),
        ("theta>=-5", "'-5' is not a number for theta"),
        ("theta>=4,5", "'4,5' is not a number for theta"),
        ("theta>=1e3", "'1e3' is not a number for theta"),
        ("theta>=inf", "'inf' is not a number for theta"),
        ("theta>=10M", "'10M' is not a number for theta"),
        ("theta>=٤٥", "'٤٥' is not a number for theta"),
        ("theta=>45", "is not a number for theta"),
        ("theta:60-35", "a range goes from the smaller number to the larger: 35-60"),
        ("theta:1-2-3", "'1-2-3' is not a number for theta"),
        ("-theta>=45", "a minus cannot negate a comparison: use the opposite comparison"),
        ("block>=2.5", "block is a whole number; write block:5-20 or block>=5"),
        ("block:a", "'a' is not a number for block; write block:5-20 or block>=5"),
        ("size>=10X", "'10X' is not a number for size; write size>=10M"),
        ("theta >= 45", "'>=': write a field before it, without spaces: theta>=40, type:organ"),
        ("theta: 45", "'theta:': a value is missing after it"),
        ("gain:-5", "'gain:-5': write a number below 0 as gain<=-5 or gain=-5"),
        ("gain>=5%", "'5%' is not a number for gain; write gain>=2 or gain:2-10"),
        (":x", "write a field before it, without spaces: theta>=40, type:organ"),
        ("-", "'-': a word needs a letter or a digit"),
        ('license:"open', 'a quotation mark (") is not closed'),
        ("sort:", "tensors can be sorted by theta, signal, z, spectral, rank, erank, size"),
        (
            "sort:-thta",
            (
                "'sort:-thta': tensors can be sorted by theta, signal, z, spectral, rank, erank, size, likeness, "
                "gain; did you mean sort:-theta?"
            ),
        ),
        ("sort:theta,signal", "tensors can be sorted by theta"),
        ("sort>theta", "write sort:VALUE"),
        ("-sort:theta", "write sort:VALUE"),
        ("like:12345", "write a tensor's digest, or at least 8 characters of it"),
        ("-like:abcdef12", "write like:VALUE"),
        ("like:abcdef12 sort:theta", "'sort:theta': like: ranks by likeness; leave sort: out"),
        ("likeness>=0.5", "'likeness>=0.5': likeness needs a base: add fits:MODEL or kin:MODEL"),
        ("type:organ sort:-likeness", "'sort:-likeness': likeness needs a base: add fits:MODEL or kin:MODEL"),
        ("fits:a,b sort:likeness", "likeness needs one base: name one model in fits:"),
        ("fits:a,b kin:c,d likeness:0-1", "likeness needs one base: name one model in fits: or kin:"),
        ("like:abcdef12 fits:a likeness>0.5", "like: ranks by the likeness to one tensor; leave likeness out"),
        ("fits:a likeness>=high", "'high' is not a number for likeness; write likeness>=0.9 or likeness:0.5-1"),
        ("unique:model", "the only value is unique:organ, which lists each tensor once"),
        ("slot:a\x07b", "a value is printable text of at most 200 characters"),
        ("expert:none", "leave expert: out to find whole tensors"),
        ("expert:3 fits:local/Mixture", "name the base with kin: instead of fits:"),
        ("expert:3 gain>=1", "gains are measured for whole tensors"),
        ("sort:theta sort:z", "occurs twice"),
        ("like:abcdef12 like:abcdef12", "occurs twice"),
        ('license:a"b"c', "separate values by commas"),
        *((f"type:organ {token} coder", 'write "or" as a comma') for token in ("AND", "NOT", "&&", "(type:organ)")),
        *((f"size:1-{number}", "is too large") for number in (2**63, 2**63 - 1, "10000000T", "9223372037G")),
        ("size>=" + "9" * 400, "is not a number"),
        ("theta>=0." + "1" * 400, "is not a number"),
        (f"type:organ slot:{'x' * 300} theta>=5", f"'slot:{'x' * 75}"),
    ],
)
def test_an_invalid_query_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    message = refusal(text)
    assert sentence in message
    assert len(message) < 400
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "slot:ffn_up",
            "slot is a field of tensors; models have kind, model, arch, license, by, tag, quant, base, theta",
        ),
        ("kindd:model", "did you mean kind:?"),
        ("sort:rank", "models can be sorted by new, theta, signal, params, tensors, size, downloads, grafts"),
        ("likeness>=0.5", "likeness needs a base: add kin:MODEL"),
        ("like:abcdef12", "like: is for tensors; this is a search for models"),
        ("unique:organ", "unique: is for tensors; this is a search for models"),
    ],
)
def test_a_query_for_models_refuses_what_only_organs_have(text: str, sentence: str) -> None:
    assert sentence in refusal(text, MODELS)


@pytest.mark.parametrize(
    ("fits", "does_not", "sentence"),
    [
        ("x" * QUERY_MAX_LENGTH, "x" * (QUERY_MAX_LENGTH + 1), "a query has at most 2000 characters"),
        ("block:1 " * TERMS_MAX, "block:1 " * (TERMS_MAX + 1), "a query has at most 50 terms"),
        ("slot:" + "a," * VALUES_MAX, "slot:" + "a," * (VALUES_MAX + 1), "at most 100 values"),
        ("block:1,2 " * 50, "block:1,2 " * 49 + "block:1,2,3", "a query has at most 100 values"),
        ("slot:" + "a" * VALUE_MAX_LENGTH, "slot:" + "a" * (VALUE_MAX_LENGTH + 1), "at most 200 characters"),
        ("fits:" + "a," * BASES_MAX, "fits:" + ",".join("abcdefghijk"), "a query has at most 10 models in fits:"),
        ("fits:a,b " * 5, "fits:a,b " * 5 + "-fits:a", "a query has at most 10 models in fits:"),
        ("-".join(["ab"] * WORDS_MAX), "-".join(["ab"] * (WORDS_MAX + 1)), "a query has at most 50 words"),
        ("-" + "-".join(["ab"] * WORDS_MAX), "-" + "-".join(["ab"] * (WORDS_MAX + 1)), "a query has at most 50 words"),
    ],
)
def test_every_part_of_a_query_has_a_limit(fits: str, does_not: str, sentence: str) -> None:
    assert parse_query(fits)
    assert sentence in refusal(does_not)


# Queries written as text.


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("", "sort:-theta"),
        ("Coder theta≥45 type:Organ", "theta>=45 type:organ sort:-theta coder"),
        ("-x b a sort:size", "sort:size a b -x"),
        ("unique:organ like:ABCDEF12", "like:abcdef12 unique:organ"),
        ('by:"carol smith","a,b",x', 'by:"carol smith","a,b",x sort:-theta'),
        ("θ:40-45,none", "theta:40-45,none sort:-theta"),
        ("-θ:40", "-theta:40 sort:-theta"),
        ("theta<45.50°", "theta<45.5 sort:-theta"),
        ("gain>-2 gain=−6.5", "gain=-6.5 gain>-2 sort:-theta"),
        ("size>=10M", "size>=10000000 sort:-theta"),
        ("size>=9000000T", "size>=9000000000000000000 sort:-theta"),
        ("signal>=0.0000001", "signal>=0.0000001 sort:-theta"),
        ("signal:0.00000000000000000001-1", "signal:0.00000000000000000001-1 sort:-theta"),
        ("size>=.0000000000000000123k", "size>=0.0000000000000123 sort:-theta"),
    ],
)
def test_a_query_is_written_back_in_one_form(typed: str, canonical: str) -> None:
    assert str(parse_query(typed)) == canonical
    assert str(parse_query(canonical)) == canonical


@pytest.mark.long
@pytest.mark.parametrize("vocabulary", [ORGANS, MODELS], ids=["organs", "models"])
@PATIENT
@given(data=st.data())
def test_a_written_query_parses_to_the_same_query(vocabulary: Vocabulary, data: st.DataObject) -> None:
    query = parse_query(data.draw(query_texts(vocabulary)), vocabulary)
    again = parse_query(str(query), vocabulary)
    assert parts(again) == parts(query)
    assert str(again) == str(query)


@PATIENT
@given(st.floats(0, 2**62, allow_subnormal=False), st.sampled_from((">", ">=", "<", "<=", ":")))
@example(1e-7, ">=")
@example(float(2**62), "<")
def test_any_number_is_written_back_exactly(value: float, operator: str) -> None:
    query = parse_query(f"theta{operator}{value:.17f}")
    assert parts(parse_query(str(query))) == parts(query)


_SIGNS = st.sampled_from([*":=<>≥≤-,\"*%_?\\@/.&'()#;\x00\n\t  ", "θ", "°", "–", "İ", "ß", "\ud800", "٤"])
_PIECES = st.sampled_from(["type", "theta", "block", "sort", "like", "unique", "organ", "none", "1", "45", "9" * 19])


@PATIENT
@given(st.one_of(st.text(max_size=300), st.lists(st.one_of(_SIGNS, _PIECES), max_size=40).map("".join)))
@example('"' * 2000)
@example("theta:" + "-" * 1900)
@example("a-" * 1000)
@example("(" * 2000)
@example("\U0001fdfa " * 20)
def test_any_text_is_a_query_or_refused(text: str) -> None:
    for vocabulary in (ORGANS, MODELS):
        try:
            query = parse_query(text, vocabulary)
        except BadQuery:
            continue
        assert parts(parse_query(str(query), vocabulary)) == parts(query)
        for term in query.terms:
            if isinstance(term, Bounds):
                bounds = [
                    bound for interval in term.ranges for bound in (interval.low, interval.high) if bound is not None
                ]
                assert all(math.isfinite(bound) and 0 <= bound <= NUMBER_MAX for bound in bounds)


# Terms of other query languages.


@pytest.mark.parametrize(
    ("word", "meant"), [("attention", "skeleton"), ("FFN", "organ"), ("mlp", "organ"), ("lora", "adapter")]
)
def test_a_common_synonym_of_a_type_is_the_type(word: str, meant: str) -> None:
    assert parse_query(f"type:{word}") == parse_query(f"type:{meant}")
