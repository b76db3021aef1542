"""Tests of reading recipes, valid and invalid."""

from __future__ import annotations

import json
import tracemalloc

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from organs.registry import documents
from organs.registry.compose.recipe import (
    AdapterMerge,
    Graft,
    PurifyMethod,
    Recipe,
    RecipePurification,
    parse_blocks,
    read_recipe,
    recipe_findings,
)
from organs.registry.entities.finding import Finding, Severity
from organs.registry.errors import BadInput, BadRecipe
from tests.compose.bad_recipes import BAD, DIGEST, HINTS
from tests.random_files import PATIENT

MIB = 1024 * 1024
_KEYS = st.sampled_from(["base", "from", "where", "type", "slot", "blocks", "sort", "method", "keep", "grafts", "k"])


@pytest.fixture(params=["SafeLoader", "CSafeLoader"], autouse=True)
def _each_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with the YAML parser written in Python and the one written in C."""
    monkeypatch.setattr(documents, "_LOADER", getattr(yaml, request.param))


def reasons(text: str | bytes) -> list[tuple[str, str]]:
    """Return the fields and messages of the faults of `text`."""
    with pytest.raises(BadRecipe) as caught:
        read_recipe(text)
    return list(caught.value.reasons)


def test_a_recipe_with_everything_is_read() -> None:
    text = """
        # In the order in which it is done.
        base: acme/tiny-base
        name: acme/chimera
        grafts:
          - from: acme/tiny-code
            type: organ
            blocks: 2-5
          - where: "type:organ theta>=45 license:mit"
            sort: -θ
            type: [Organ, norm, organ]
            slot: ["ffn_*", attn_q]
            blocks: [0, 2, 4-5]
        adapters:
          - from: acme/tiny-prose-lora
            scale: 0.8
          - from: acme/other
        purify: {where: "block:5 theta<20", method: fractal}
        encode: f16
        accept: [unrelated-lineage]
        metadata: {general.name: Tiny Chimera, general.tags: [a, b], acme.count: 3, acme.share: 0.5, acme.good: true}
    """
    assert read_recipe(text) == Recipe(
        base="acme/tiny-base",
        name="acme/chimera",
        grafts=(
            Graft(donor="acme/tiny-code", types=("organ",), blocks=((2, 5),)),
            Graft(
                where="type:organ theta>=45 license:mit",
                sort="-theta",
                types=("organ", "norm"),
                slots=("ffn_*", "attn_q"),
                blocks=((0, 0), (2, 2), (4, 5)),
            ),
        ),
        adapters=(AdapterMerge("acme/tiny-prose-lora", 0.8), AdapterMerge("acme/other", 1.0)),
        purify=(RecipePurification(PurifyMethod.FRACTAL, where="block:5 theta<20"),),
        encode="F16",
        accept=("unrelated-lineage",),
        metadata={
            "general.name": "Tiny Chimera",
            "general.tags": ("a", "b"),
            "acme.count": 3,
            "acme.share": 0.5,
            "acme.good": True,
        },
    )


@pytest.mark.parametrize(
    "name", ["acme/tiny", "acme/tiny@2", "tiny", f"sha256:{DIGEST}", DIGEST[:12], "2024", "1e5", "no"]
)
def test_a_model_is_named_as_people_type_it(name: str) -> None:
    assert read_recipe(f"base: {name}\ngrafts:\n- from: {name}").grafts[0].donor == name
    assert read_recipe(f"base: {name}").base == name


def test_numbers_and_booleans_are_distinguished_from_text() -> None:
    changes = read_recipe(
        "base: x\nmetadata: {a: 1, b: 1.0, c: true, d: '1', e: -2e3, f: 18446744073709551615}"
    ).metadata
    assert [repr(value) for value in changes.values()] == ["1", "1.0", "True", "'1'", "-2000.0", str(2**64 - 1)]


def test_a_byte_order_mark_is_tolerated() -> None:
    assert read_recipe(b"\xef\xbb\xbfbase: x") == read_recipe('\ufeff{"base": "x"}') == Recipe(base="x")


def test_a_query_may_stand_on_several_lines() -> None:
    graft = read_recipe("base: x\ngrafts:\n- where: |\n    type:organ\n    theta>=45\n").grafts[0]
    assert graft.where == "type:organ theta>=45"


def test_the_last_of_a_thousand_grafts_is_read() -> None:
    recipe = read_recipe("base: x\ngrafts:\n" + "- {from: a, type: [organ, norm], blocks: [0, 2-5]}\n" * 1000)
    assert len(recipe.grafts) == 1000


@pytest.mark.parametrize(("text", "fields"), [pytest.param(*case[1:], id=case[0]) for case in BAD])
def test_every_fault_of_a_recipe_is_reported_with_its_field(text: str | bytes, fields: list[str]) -> None:
    faults = reasons(text)
    assert [field for field, _ in faults] == fields
    for _, sentence in faults:
        assert 8 < len(sentence) < 400
        assert sentence.isprintable()


@pytest.mark.parametrize(("text", "hint"), HINTS)
def test_the_nearest_right_word_is_named(text: str, hint: str) -> None:
    assert hint in " / ".join(sentence for _, sentence in reasons(text))


def test_all_faults_are_one_error_with_a_list_of_findings() -> None:
    with pytest.raises(BadInput) as caught:
        read_recipe("bse: a\ngrafts: [{from: b, blocks: 5-2}]", "tiny.yaml")
    error = caught.value
    assert isinstance(error, BadRecipe)
    assert str(error) == (
        "tiny.yaml: bse: unknown key; did you mean base?; base: the base model is missing; "
        "grafts[0].blocks: a range goes from the first block to the last: 2-5"
    )
    assert recipe_findings(error)[1:] == [
        Finding(Severity.REFUSE, "bad-recipe", "The base model is missing.", "base"),
        Finding(
            Severity.REFUSE,
            "bad-recipe",
            "A range goes from the first block to the last: 2-5.",
            "grafts[0].blocks",
        ),
    ]


def test_blocks_may_be_separated_by_commas_instead_of_a_list() -> None:
    assert parse_blocks("3") == ((3, 3),)
    assert parse_blocks("0, 2-5,7") == ((0, 0), (2, 5), (7, 7))


@pytest.mark.parametrize("text", ["", ",", "1,", "5-2", "x", "1,-2", "0," * 1001])
def test_blocks_that_are_typed_wrongly_are_refused(text: str) -> None:
    with pytest.raises(BadRecipe, match=r"^blocks: "):
        parse_blocks(text)


def peak_bytes(text: str | bytes) -> tuple[int, list[tuple[str, str]]]:
    """Return the peak memory of refusing `text`, and the message."""
    tracemalloc.start()
    try:
        faults = reasons(text)
        return tracemalloc.get_traced_memory()[1], faults
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [str, bytes])
def test_ten_megabytes_of_yaml_are_refused_without_being_looked_at(kind: type) -> None:
    text = "base: a\ngrafts:\n" + "- {from: b, type: organ}\n" * 420_000
    peak, message = peak_bytes(text if kind is str else text.encode())
    assert message == [("", "the text is longer than 256 KiB")]
    assert peak < MIB // 4


@pytest.mark.parametrize("begin", ["base: a\n", ""])
def test_aliases_that_explode_cost_nothing(begin: str) -> None:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)]
    peak, message = peak_bytes(begin + "".join(lines))
    assert len(message) == 1
    assert "anchors (&) and aliases (*) are not supported" in message[0][1]
    assert peak < MIB


def test_a_yaml_tag_creates_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr("os.system", made.append)
    assert "tags such as" in reasons("base: !!python/object/apply:os.system ['true']")[0][1]
    assert made == []


@PATIENT
@given(st.text() | st.text("ab:-[]{}#&*!|>'\"%@,?~0123e.\\ \n\t") | st.binary(max_size=60))
@example("base: \ud800")
@example('"\\U00110000"')
@example("? ")
def test_any_text_is_a_recipe_or_is_refused_in_words(text: str | bytes) -> None:
    assert refused(text) != ()


@PATIENT
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["a", "2-5", "theta>=4", "organ"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
        max_leaves=12,
    )
)
def test_any_tree_is_a_recipe_or_is_refused_in_words(tree: object) -> None:
    for text in (json.dumps({"base": "a", "grafts": tree, "metadata": tree, "purify": tree}), yaml.safe_dump(tree)):
        assert all(field.isprintable() and sentence for field, sentence in refused(text) or ())


def refused(text: str | bytes) -> tuple[tuple[str, str], ...] | None:
    """Return the faults of `text`; None for a valid recipe."""
    try:
        read_recipe(text)
    except BadRecipe as error:
        return error.reasons
    return None
