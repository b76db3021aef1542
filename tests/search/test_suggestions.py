"""Tests of suggestions while a query or a name is typed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from organs.registry.entities.query import SUGGESTED, SUGGESTIONS_MAX
from organs.registry.local import LocalRegistry
from organs.registry.search.language import MODELS, ORGANS, VOCABULARIES, parse_query
from tests.search.catalogs import RandomModel, RandomPlacement, write_models

ROW = RandomPlacement(type="skeleton", slot="attn_q")
HOSTILE = 'a"<b>, %_\\'
CATALOG = (
    RandomModel((ROW,), name="Coder-7B-F16", title="Tiny Coder", tags=("Code", "small talk", HOSTILE), grafts=2),
    RandomModel((ROW,), name="Coder-7B-Q8_0", version=1),
    RandomModel((ROW,), name="Coder-7B-Q8_0", version=2, tags=("code",)),
    RandomModel((), namespace="lab", name="Decoder", title="Reads codes", architecture="qwen2", license="llama 3"),
)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with LocalRegistry.open(tmp_path_factory.mktemp("tagged")) as registry:
        write_models(registry, list(CATALOG))
        yield registry


def texts(registry: LocalRegistry, typed: str, of: str, limit: int = SUGGESTIONS_MAX) -> list[str]:
    return [suggestion.text for suggestion in registry.suggestions(typed, of=of, limit=limit).items]


CODERS = ["acme/Coder-7B-F16", "acme/Coder-7B-Q8_0"]


@pytest.mark.parametrize(
    ("typed", "of", "expected"),
    [
        ("coder", "names", CODERS),
        ("acme/cod", "names", CODERS),
        ("tiny", "names", CODERS[:1]),
        ("7b q8", "names", CODERS[1:]),
        ("code", "names", [*CODERS, "lab/Decoder"]),
        ("nobody", "names", []),
        ("", "names", [CODERS[0], "lab/Decoder", CODERS[1]]),
        ("cod", "all", [*CODERS, "lab/Decoder", "tag:code"]),
        ("ll", "all", ["arch:llama"]),
        ("", "all", []),
        ("att", "organs", ["type:skeleton"]),
        ("type:f", "organs", ["type:organ"]),
        ("-type:norm,emb", "organs", ["-type:norm,embed"]),
        ("slot:attn", "organs", ["slot:attn_q"]),
        ("architec", "organs", ["arch:"]),
        ("thet", "organs", ["theta>="]),
        ("-thet", "organs", []),
        ("uni", "organs", ["unique:"]),
        ("unique:", "organs", ["unique:organ"]),
        ("sort:sp", "organs", ["sort:-spectral", "sort:spectral"]),
        ("sort:-sp", "organs", ["sort:-spectral"]),
        ("fits:dec", "organs", ["fits:lab/Decoder"]),
        ("theta>=4", "organs", []),
        ("tag:", "models", ["tag:code", 'tag:"small talk"']),
        ('tag:"sm', "models", ['tag:"small talk"']),
        ("quant:f", "models", ["quant:F16"]),
        ("by:al", "models", ["by:alice"]),
        ("kind:ch", "models", ["kind:chimera"]),
        ("base:lab", "models", ["base:lab/Decoder"]),
        ("fits:", "models", []),
        ("att", "models", []),
    ],
)
def test_suggestions_begin_with_what_was_typed(typed: str, of: str, expected: list[str], tagged: LocalRegistry) -> None:
    assert texts(tagged, typed, of) == expected


@pytest.mark.parametrize("of", VOCABULARIES)
def test_every_suggestion_for_a_query_can_be_part_of_one(of: str, tagged: LocalRegistry) -> None:
    vocabulary = VOCABULARIES[of]
    typed = ["", "-", *"acdlmt", *(f"{field}:" for field in [*MODELS.fields, *ORGANS.fields, "sort", "unique", "like"])]
    found = [item for text in typed for item in tagged.suggestions(text, of=of, limit=SUGGESTIONS_MAX).items]
    assert len(found) > 50
    for item in found:
        ends = {":": "x/y" if item.text.strip("-:") in ("fits", "kin") else None, "=": "1"}
        completed = item.text + (ends.get(item.text[-1]) or "")
        if item.kind != "field" or completed != item.text:
            base = "kin:x/y " if "likeness" in completed else ""
            parse_query(base + completed, vocabulary)


def test_suggestions_are_not_more_than_asked(tagged: LocalRegistry) -> None:
    for of in SUGGESTED:
        assert len(texts(tagged, "c", of, 1)) <= 1
    assert len(texts(tagged, "cod", "all", 2)) == 2
