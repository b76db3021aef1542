"""Tests of the search for models, compared with a scan of every model, in every order, page by page."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry.columns import FIRST, Column
from organs.registry.entities.model import COLUMNS, ModelPage
from organs.registry.entities.query import SUGGESTED
from organs.registry.errors import BadQuery
from organs.registry.local import LocalRegistry
from organs.registry.search.counts import model_counts
from organs.registry.search.language import MODELS, Choice, parse_query
from organs.registry.search.models import folded_models, search_models
from tests.search.catalogs import (
    Many,
    RandomModel,
    write_models,
)
from tests.search.oracle import expected_models
from tests.search.queries import query_texts


def page_of(
    registry: LocalRegistry, text: str, limit: int = 1000, after: str | None = None, *, ranked: bool = False
) -> ModelPage:
    with registry.catalog.reading() as session:
        return search_models(session, parse_query(text, MODELS), limit, after, ranked=ranked)


def found(registry: LocalRegistry, text: str, *, ranked: bool = False) -> list[str]:
    return [model.name.partition("@")[0] for model in page_of(registry, text, ranked=ranked).items]


@pytest.mark.parametrize(
    "column", [column for column in COLUMNS if column.sort and column.name not in FIRST], ids=lambda column: column.sort
)
def test_models_are_sorted_by_the_column_of_the_word(column: Column, many: Many) -> None:
    models = page_of(many[0], f"sort:-{column.sort}").items
    values = [value for model in models if (value := getattr(model, column.name)) is not None]
    assert values == sorted(values, reverse=True)


@pytest.mark.long
@settings(deadline=None, max_examples=60)
@given(text=query_texts(MODELS), ranked=st.booleans(), random_=st.randoms(use_true_random=False))
def test_a_search_for_models_equals_a_scan_of_every_model_page_by_page(
    text: str, ranked: bool, random_: random.Random, many: Many
) -> None:
    registry, placed = many
    expected = expected_models(placed, parse_query(text, MODELS), ranked=ranked)
    names: list[str] = []
    after = None
    for _ in itertools.count():
        limit = random_.choice((1, 2, 3, 7, 1000))
        page = page_of(registry, text, limit, after, ranked=ranked)
        names += [model.name for model in page]
        after = page.next
        if after is None:
            break
        assert len(page.items) == limit
        assert len(names) < 10_000, "a walk without an end"
    assert names == [placed.models[row.id].full_name for row in expected]


PATTERNS = {
    "model:acme/*": ["acme/tiny_code", "acme/tiny-code"],
    "model:ACME/*": ["acme/tiny_code", "acme/tiny-code"],
    "model:*/tiny*": ["Other/tinyXcode", "acme/tiny_code", "acme/tiny-code"],
    "model:tiny*": ["Other/tinyXcode", "acme/tiny_code", "acme/tiny-code"],
    "model:tiny_*": ["acme/tiny_code"],
    "model:*y_c*": ["acme/tiny_code"],
    "model:*%*": [],
    "model:*\\*": [],
    "model:*\\_*": [],
    "model:other/tinyxCODE*": ["Other/tinyXcode"],
    "model:other/tinyXcode": ["Other/tinyXcode"],
    "model:Other/tinyXcode": ["Other/tinyXcode"],
    "model:Other/tinyXcode@1": ["Other/tinyXcode"],
    "model:Other/tinyXcode@2": [],
    "model:tİny*": [],
    "model:tıny*": [],
    "model:acme/tiny_codeß*": [],
}


def test_a_pattern_means_the_same_on_every_database(registry: LocalRegistry) -> None:
    names = (("acme", "tiny-code"), ("acme", "tiny_code"), ("Other", "tinyXcode"))
    write_models(registry, [RandomModel((), namespace=namespace, name=name) for namespace, name in names])
    for text, expected in PATTERNS.items():
        assert found(registry, text) == expected, text
        assert sorted([*expected, *found(registry, f"-{text}")]) == sorted(found(registry, "")), text


@pytest.mark.parametrize("stated", ["STRASSE", "Straße", "İx", "ΣΑΣ", "mit"])
def test_names_beyond_ascii_are_found_in_any_case(stated: str, registry: LocalRegistry) -> None:
    write_models(registry, [RandomModel((), license=stated, architecture=stated, contributor=stated)])
    for field in ("license", "arch", "by"):
        for value in (stated, stated.casefold(), stated.casefold()[:-1] + "*"):
            assert found(registry, f"{field}:{value}") == ["acme/tiny"], value
            assert found(registry, f"-{field}:{value}") == []


def test_only_complete_models_are_ranked_and_their_cursors_belong_to_the_ranking(registry: LocalRegistry) -> None:
    write_models(
        registry,
        [
            RandomModel((), name="a"),
            RandomModel((), name="b", complete=False),
            RandomModel((), name="c", kind="adapter"),
            RandomModel((), name="d"),
        ],
    )
    assert found(registry, "", ranked=True) == ["acme/d", "acme/a"]
    after = page_of(registry, "", 1, ranked=True).next
    assert after is not None
    with pytest.raises(BadQuery, match="another query"):
        page_of(registry, "", after=after)


@pytest.mark.parametrize("state", ["quarantined", "yanked", "removed"])
def test_a_hidden_model_is_in_no_list_and_no_note(state: str, registry: LocalRegistry) -> None:
    hidden = RandomModel(
        (),
        namespace="hidden",
        name="secret",
        architecture="secretarch",
        license="secretlicense",
        contributor="secretary",
        state=state,
        tags=("secrettag",),
    )
    write_models(registry, [RandomModel(()), hidden])
    for text in (
        *("", "secret", "model:hidden/secre", "model:hidden/secret", "model:secre*", "arch:secretarc", "by:secretar"),
        *("license:secretlicenc", "-arch:llama", "-secret"),
    ):
        page = page_of(registry, text)
        assert [model.name for model in page.items] in ([], ["acme/tiny@1"])
        assert "nearest" not in repr(page.notes), text
    for of in SUGGESTED:
        for text in ("", "secret", "hidden/s", "tag:", "arch:s", "by:s", "license:s", "model:s", "quant:"):
            assert "secret" not in repr(registry.suggestions(text, of=of)), (of, text)


QUANTISED = (
    RandomModel((), namespace="acme", name="Coder-7B-F16", size_bytes=14_000, parameters=7_000_000_000, tags=("Code",)),
    RandomModel((), namespace="acme", name="Other", parameters=100, license=None, contributor="bob"),
    RandomModel(
        (), namespace="acme", name="Coder-7B-Q4_K_M", size_bytes=4000, parameters=7_000_000_000, tags=("code",)
    ),
    RandomModel((), namespace="elsewhere", name="Coder-7B-Q8_0", size_bytes=7000, architecture="qwen2"),
    RandomModel((), namespace="acme", name="Coder-7B-Q4_K_M", version=2, size_bytes=4100, parameters=7_000_000_000),
)


def test_quantisations_and_versions_are_folded_at_the_place_of_the_first_on_every_page(registry: LocalRegistry) -> None:
    write_models(registry, list(QUANTISED))
    with registry.catalog.reading() as session:
        query = parse_query("sort:new", MODELS)
        pages = [first := folded_models(session, query, 2), folded_models(session, query, 2, first.next)]
    assert [[item.title for item in page] for page in pages] == [["Coder-7B", "Other"], ["Coder-7B"]]
    assert pages[1].next is None
    coder = pages[0].items[0]
    assert (coder.label, coder.model.name) == ("F16", "acme/Coder-7B-F16@1")
    assert [(other.label, other.model.name) for other in coder.others] == [
        ("Q4_K_M", "acme/Coder-7B-Q4_K_M@1"),
        ("Q4_K_M", "acme/Coder-7B-Q4_K_M@2"),
    ]


def test_only_models_that_match_are_folded(registry: LocalRegistry) -> None:
    write_models(registry, list(QUANTISED))
    with registry.catalog.reading() as session:
        (item,) = folded_models(session, parse_query("quant:q4_* tag:CODE", MODELS), 10)
    assert (item.model.name, item.others) == ("acme/Coder-7B-Q4_K_M@1", ())


def test_the_counts_of_a_facet_ignore_its_own_filter(registry: LocalRegistry) -> None:
    write_models(registry, list(QUANTISED))
    with registry.catalog.reading() as session:
        counts = model_counts(session, parse_query("quant:Q4_K_M coder", MODELS))
    assert counts.total == 2
    assert counts.exact
    assert counts.fields["quant"] == {"Q4_K_M": 2, "F16": 1, "Q8_0": 1}
    assert counts.fields["tag"] == {"code": 1, "none": 1}
    assert counts.fields["arch"] == {"llama": 2}
    assert counts.fields["params"] == {"4000000000": 2}


@pytest.mark.long
@settings(deadline=None, max_examples=30)
@given(text=query_texts(MODELS))
def test_the_counts_of_a_facet_equal_searches_for_its_values(text: str, many: Many) -> None:
    registry, _ = many
    query = parse_query(text, MODELS)
    with registry.catalog.reading() as session:
        counts = model_counts(session, query)
    assert counts.total == len(page_of(registry, text).items)
    for name in ("arch", "quant", "by", "tag"):
        others = replace(query, terms=tuple(term for term in query.terms if term.field != name))
        for value, count in counts.fields[name].items():
            chosen = replace(others, terms=(*others.terms, Choice(name, (value,))))
            assert len(page_of(registry, str(chosen)).items) == count, (name, value)
