"""Random texts of queries with every field and every form."""

from __future__ import annotations

from hypothesis import strategies as st

from organs.registry.search.language import (
    MODELS,
    ORGANS,
    FieldKind,
    QueryField,
    Vocabulary,
)

VALUES: dict[str, tuple[str, ...]] = {
    "slot": ("ffn_up", "attn_*", "*norm", "token_embd", "nothing", '"what?is[this]*"', "*?is*", "f?n*", "FFN_UP"),
    "dtype": ("F16", "q8_0", "Q*", "F32", "IQ1_S"),
    "arch": ("llama", "Qwen2", "none", "q*", "phi"),
    "license": ("mit", "none", '"llama 3, community"', "apache*", "gpl"),
    "tag": ("letters", "CODE", "größe", "gr*", "none", "nothing"),
    "quant": ("Q8_0", "q8*", "none", "F16"),
    "base": ("acme/tiny", "acme/*", "tiny*", "zoo.lab/tiny@1", "none", "acme/tiny@77", "a/b/c"),
    "by": ("alice", "BOB", '"carol smith"', "c*", "nobody"),
    "fits": ("acme/tiny", "A-2M", "zoo.lab/b.c", "Acme/tiny-Q8_0@1", "ACME/tiny@1", "local/tiny_code", "acme/tiny@77"),
    "kin": ("acme/tiny", "A-2M", "zoo.lab/b.c", "Acme/tiny-Q8_0@1", "acme/tiny@77"),
    "on": ("python", "Prose", "code", '"My notes*"', "*", "nothing"),
    "model": ("acme/tiny", "acme/*", "tiny*", "b.c", "zoo.lab/tiny@1", "*_code", "acme/tiny@77", "*", "a/b/c"),
}
NUMBERS: dict[str, tuple[str, ...]] = {
    "theta": ("0", "4.999", "5", "39.5", "40", "45", "45.0", "60°", "85", "89.9999999", "90", "95"),
    "signal": ("0", "0.5", ".7071067811865475", "0.7071067811865476", "1", "2"),
    "z": ("0", "0.9", "1", "1.02"),
    "spectral": ("0", "0.25", "0.3", "0.30000000000000004", "1"),
    "rank": ("1", "12.5", "100", "200"),
    "erank": ("1", "12.5", "100", "200"),
    "gain": ("0", "2.5", "5", "7"),
    "likeness": ("0", "0.05", "0.5", "0.7", "1"),
    "block": ("0", "1", "6", "7", "300"),
    "expert": ("0", "1", "5", "17"),
    "size": ("0", "1", "4096", "4.096k", "2M", "3GB", "9000000T", "4611686018427387904"),
    "params": ("0", "1k", "7G", "500"),
    "tensors": ("0", "3", "12"),
    "downloads": ("0", "7", "1000"),
    "grafts": ("0", "2"),
}
WORDS = ("zoo", "coder", "farm", "arzte", "Ä", "fine", "istan", "σισυφοσ", "2m", "xyz", "letters-code")


def query_texts(vocabulary: Vocabulary = ORGANS, *, unique: bool = True) -> st.SearchStrategy[str]:
    """Generate a text that `parse_query` accepts, for whole tensors: experts have tests of their own."""
    terms = st.sampled_from(sorted(vocabulary.fields.keys() - {"expert"})).flatmap(
        lambda name: _terms(vocabulary.fields[name])
    )
    words = st.builds("{}{}".format, st.sampled_from(("", "", "-")), st.sampled_from(WORDS))
    sorts = st.builds("sort:{}{}".format, st.sampled_from(("", "-")), st.sampled_from(sorted(vocabulary.sorts)))
    parts = st.tuples(
        st.lists(terms, max_size=4),
        st.lists(words, max_size=1),
        st.lists(sorts, max_size=1),
        st.lists(st.just("unique:organ"), max_size=1 if unique and vocabulary.has_likeness else 0),
    ).map(lambda lists: [part for value in lists for part in value])
    bases = st.sampled_from(
        [f"{name}:{value}" for name in ("fits", "kin") if name in vocabulary.fields for value in VALUES[name]]
    )
    return st.builds(_with_base, parts, bases).flatmap(st.permutations).map(" ".join)


def _with_base(parts: list[str], base: str) -> list[str]:
    """Return `parts`; if they use the likeness, with `base` as the only base."""
    if not any("likeness" in part for part in parts):
        return parts
    return [base, *(part for part in parts if not part.startswith(("fits", "kin")))]


def _terms(field: QueryField) -> st.SearchStrategy[str]:
    minus = st.sampled_from(("", "", "-"))
    if field.is_numeric:
        number = st.sampled_from(NUMBERS[field.name])
        spans = st.tuples(number, number).map(lambda two: "-".join(sorted(two, key=_value)))
        some = st.lists(st.one_of(number, spans, st.just("none")), min_size=1, max_size=3).map(",".join)
        signed = st.builds("{}{}".format, st.sampled_from(("", "-", "−") if field.signed else ("",)), number)
        bounds = st.builds("{}{}{}".format, st.just(field.name), st.sampled_from((">", ">=", "<", "<=", "=")), signed)
        return st.one_of(bounds, st.builds("{}{}:{}".format, minus, st.just(field.name), some))
    values = field.choices if field.kind is FieldKind.CHOICE else VALUES[field.name]
    some = st.lists(st.sampled_from(values), min_size=1, max_size=3).map(",".join)
    return st.builds("{}{}{}{}".format, minus, st.just(field.name), st.sampled_from((":", ":", "=")), some)


def _value(text: str) -> float:
    digits = text.rstrip("kMGTB°")
    unit = text[len(digits) :].rstrip("B°")
    return float(digits) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit]


assert set(VALUES) | set(NUMBERS) >= {
    name
    for vocabulary in (ORGANS, MODELS)
    for name, field in vocabulary.fields.items()
    if field.kind is not FieldKind.CHOICE
}
