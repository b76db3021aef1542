"""`organ search`, and how commands that take a query read their arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from organs.registry.search.language import MODELS, ORGANS
from tests.cli.in_process import OrganCommand
from tests.search.catalogs import RandomModel, RandomPlacement, digest, write_models


def test_a_search_without_a_query_begins_with_feed_forward_organs_except_for_programs(filled: OrganCommand) -> None:
    ended = filled.done("search")
    assert len(ended.lines) == 1 + 4
    assert all(" organ " in line for line in ended.lines[1:])
    assert ended.err == "feed-forward tensors first; all tensors: organ search sort:-theta\n"
    everything = filled.done("search", "sort:-theta", "--json").values["items"]
    assert filled.done("search", "--json").values["items"] == everything
    assert len(everything) > 4


def test_facets_are_counted_beside_the_page(filled: OrganCommand) -> None:
    ended = filled.done("search", "type:organ", "--facets", "--limit", 1)
    assert "results: 4 (each place of a tensor counts)" in ended.lines
    assert "any type:  organ 4, norm 3, skeleton 2, embed 1" in ended.lines
    assert "slot:      ffn_down 2, ffn_up 2" in ended.lines
    assert any("█" in line and "°" in line for line in ended.lines)
    facets = filled.done("search", "type:organ", "--facets", "--json").values["facets"]
    assert facets["fields"].keys() == {"type", "slot", "dtype", "arch", "license"}
    assert (facets["total"], sum(bin_["count"] for bin_ in facets["theta"])) == (4, 4)


def test_an_estimated_count_is_marked_as_an_estimate(filled: OrganCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("organs.registry.search.plan.GATHER_MAX", 0)
    lines = filled.done("search", "theta>=1", "--facets").lines
    assert any(line.startswith("results: about ") for line in lines)


def test_similar_organs_are_shown_with_their_likeness(registry: LocalRegistry, organ: OrganCommand) -> None:
    write_models(
        registry,
        [RandomModel((RandomPlacement(organ=1), RandomPlacement(organ=2), RandomPlacement(organ=3, slot="ffn_down")))],
    )
    header, first, second = organ.done("search", f"like:{digest(1)[:12]}").lines
    assert header.split()[:2] == ["likeness", "digest"]
    assert first.split()[:2] == ["1.000", digest(1)[:12]]
    assert second.split()[1] == digest(2)[:12]


@pytest.mark.parametrize(
    ("command", "term", "nearest"), [("search", "slot:ffn_upp", "slot:ffn_up"), ("models", "arch:lama", "arch:llama")]
)
def test_a_search_without_results_names_the_nearest_value(
    command: str, term: str, nearest: str, filled: OrganCommand
) -> None:
    ended = filled.done(command, term)
    assert ended.out == ""
    assert ended.err.startswith(f"note: nothing in this registry has {term}; the nearest is {nearest}\n")


@pytest.mark.parametrize(
    ("command", "words", "made", "query"),
    [
        ("search", ["type:organ", "theta"], "=35", "theta>=35"),
        ("search", ["θ"], "35.5", "θ>=35.5"),
        ("models", ["size"], "=1M", "size>=1M"),
    ],
)
def test_a_bound_that_the_shell_took_for_a_redirection_is_recognised(
    command: str,
    words: list[str],
    made: str,
    query: str,
    organ: OrganCommand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"write a bound in quotes: '{words[-1]}>=35'" in organ.done(command, *words).err
    (tmp_path / made).touch()
    ended = organ(command, *words)
    assert (ended.status, ended.out) == (2, "")
    assert f"created the file '{made}'. Delete that file, and quote the query: '{query}'" in ended.err
    assert organ(command, "type:organ" if command == "search" else "zoo").status == 0, "no field stands alone"


@pytest.mark.parametrize(
    "word", ["-type:norm", "-coder", "-qwen2", "-zoo-a", "-stable_rank:none", "-θ:40", "-ärzte", "-z:1"]
)
def test_a_word_with_a_minus_is_a_term_not_an_option(word: str, filled: OrganCommand) -> None:
    for words in ((word,), ("type:organ", word), ("--", word)):
        assert filled.done("search", "--json", *words).values["items"] is not None


def test_a_saved_query_is_run_by_its_name_alone_and_with_more_terms(filled: OrganCommand) -> None:
    ended = filled.done("search", "--save", "feed-forward", "type:organ", "block:0")
    assert (ended.out, ended.err) == ("", "saved: organ search @feed-forward\n")
    for more in ([], ["slot:ffn_up"]):
        expected = filled.done("search", "-q", "type:organ", "block:0", *more).lines
        assert filled.done("search", "-q", "@feed-forward", *more).lines == expected
        assert expected
    assert filled.done("search", "--saved").out == "@feed-forward  type:organ block:0\n"
    assert filled.done("models", "--saved", "--json").values == {"items": []}
    ended = filled("search", "@feed-forwad")
    assert (ended.status, ended.out) == (3, "")
    assert "did you mean @feed-forward?" in ended.err
    assert filled.done("search", "--forget", "@feed-forward", "-q").lines == ["feed-forward"]
    assert filled("search", "--forget", "feed-forward").status == 3
    assert filled("search", "--save", "nothing").status == filled("search", "--save", "a", "--saved").status == 2
    assert filled.done("search", "--saved").out == ""


def test_the_help_lists_every_field(organ: OrganCommand) -> None:
    for command, fields in (("search", ORGANS.fields), ("models", MODELS.fields)):
        out = organ.done(command, "--help").out
        assert [name for name in fields if f"{name}:" not in out] == []
