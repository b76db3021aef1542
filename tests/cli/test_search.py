"""`organ search`, and how commands that take a query read their arguments."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from organs.cli.options import _MINUS_TERM
from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.search.catalogs import RandomModel, RandomPlacement, digest, random_models, write_models
from tests.small_models import weight_tensor

ITEM = {
    "digest",
    "model",
    "name",
    "type",
    "tower",
    "block",
    "slot",
    "expert",
    "dtype",
    "shape",
    "size_bytes",
    "theta",
    "theta_caution",
    "magnitude",
    "signal",
    "spectral_signal",
    "stable_rank",
    "effective_rank",
    "architecture",
    "license",
    "likeness",
    "change",
    "gain",
    "nonfinite",
    "model_state",
}


def test_organs_are_a_table_for_people(filled: OrganCommand) -> None:
    ended = filled.done("search", "type:organ", "slot:ffn_up", "sort:theta")
    header, *rows = ended.lines
    assert header.split() == (
        ["organ", "model", "tensor", "type", "dtype", "shape", "size", "θ", "|Z|", "spectral", "stable", "rank"]
    )
    assert len(rows) == 2
    assert {row.split()[2] for row in rows} == {"blk.0.ffn_up.weight", "blk.1.ffn_up.weight"}
    assert ended.err == ""


def test_organs_as_json_have_items_the_next_cursor_and_notes(filled: OrganCommand) -> None:
    values = filled.done("search", "slot:ffn_up", "--limit", 1, "--json").values
    assert values.keys() == {"items", "next", "notes", "facets"}
    assert values["facets"] is None
    (item,) = values["items"]
    assert item.keys() == ITEM
    assert (item["shape"], item["size_bytes"], item["likeness"]) == ([64, 128], 16384, None)
    more = filled.done("search", "slot:ffn_up", "--limit", 1, "--after", values["next"], "--json").values
    assert more["next"] is None
    assert {item["block"], more["items"][0]["block"]} == {0, 1}


def test_quiet_prints_only_digests(filled: OrganCommand) -> None:
    ended = filled.done("search", "-q", "slot:attn_q", "sort:theta")
    expected = {digest_of(weight_tensor(f"blk.{block}.attn_q.weight", (64, 64))[1]) for block in range(2)}
    assert set(ended.lines) == expected
    assert ended.err == ""


def test_a_search_without_a_query_begins_with_feed_forward_organs_except_for_programs(filled: OrganCommand) -> None:
    ended = filled.done("search")
    assert len(ended.lines) == 1 + 4
    assert all(" organ " in line for line in ended.lines[1:])
    assert ended.err == "feed-forward organs first; all organs: organ search sort:-theta\n"
    everything = filled.done("search", "sort:-theta", "--json").values["items"]
    assert filled.done("search", "--json").values["items"] == everything
    assert len(everything) > 4


def test_the_hint_after_a_page_is_the_command_for_the_next_page(registry: LocalRegistry, organ: OrganCommand) -> None:
    write_models(registry, random_models(20, seed=4))
    for words in (
        ["-type:norm sort:-size"],
        ["-type:norm", "-coder"],
        ["-coder"],
        ["sort:-theta"],
        ['by:"carol smith"', "sort:z"],
    ):
        seen: list[str] = []
        command = ["search", *words, "--limit", "9"]
        while True:
            ended = organ.done(*command)
            seen += ended.lines[1:]
            hints = [line for line in ended.err.splitlines() if not line.startswith(("note: ", "≈"))]
            if not hints:
                break
            said, _, hint = "\n".join(hints).partition(": ")
            assert said == "more" or said.startswith("more of ")
            first, *command = shlex.split(hint)
            assert first == "organ"
        whole = organ.done("search", *words, "--limit", 1000).lines[1:]
        assert [line.split() for line in seen] == [line.split() for line in whole]
        assert len(seen) > 9


def test_facets_are_counted_beside_the_page(filled: OrganCommand) -> None:
    ended = filled.done("search", "type:organ", "--facets", "--limit", 1)
    assert "results: 4 (each place of an organ counts)" in ended.lines
    assert "any type:  organ 4, norm 3, skeleton 2, embed 1" in ended.lines
    assert "slot:      ffn_down 2, ffn_up 2" in ended.lines
    assert any("█" in line and "°" in line for line in ended.lines)
    facets = filled.done("search", "type:organ", "--facets", "--json").values["facets"]
    assert facets.keys() == {"total", "exact", "uncounted", "hurried", "fields", "theta"}
    assert facets["fields"].keys() == {"type", "slot", "dtype", "arch", "license"}
    assert (facets["total"], facets["exact"], facets["uncounted"]) == (4, True, [])
    assert sum(bin_["count"] for bin_ in facets["theta"]) == 4
    assert facets["fields"]["license"] == {"apache-2.0": 4}


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
    assert header.split()[:2] == ["likeness", "organ"]
    assert first.split()[:2] == ["1.000", digest(1)[:12]]
    assert second.split()[1] == digest(2)[:12]


def test_with_a_base_organs_are_shown_with_their_change_the_most_similar_first(composer: OrganCommand) -> None:
    header, *rows = composer.done("search", "fits:base", "type:organ").lines
    assert header.split()[:3] == ["change", "organ", "model"]
    assert [row.split()[2] for row in rows] == ["local/tuned@1"] * 4 + ["local/stranger@1"] * 4
    values = [float(row.split()[0]) for row in rows]
    assert values[:4] == sorted(values[:4])
    assert values[3] < 0.04 < 1.4 < values[4]
    by_rank = composer.done("search", "fits:base", "type:organ", "likeness>=0.9", "sort:-rank").lines
    assert "stable rank" in by_rank[0]
    assert len(by_rank) == 5
    quiet = composer.done("search", "-q", "fits:base", "type:organ", "likeness<0.5").lines
    assert set(quiet) == set(composer.done("search", "-q", "model:stranger", "type:organ").lines)
    assert "likeness needs a base: add fits:MODEL or kin:MODEL" in composer("search", "likeness>=0.5").err
    assert composer.done("search", "fits:base", "type:organ", "--json").values["items"][0]["likeness"] > 0.98


def test_organs_that_fit_a_model_are_found_counted_and_explained(registry: LocalRegistry, organ: OrganCommand) -> None:
    others = (
        RandomPlacement(organ=2),
        RandomPlacement(organ=3, slot="ffn_down"),
        RandomPlacement(organ=4, shape="64x32"),
    )
    write_models(registry, [RandomModel((RandomPlacement(organ=1),), name="base"), RandomModel(others, name="donor")])
    assert organ.done("search", "-q", "fits:acme/base").lines == [digest(2)]
    assert "results: 1 (each place of an organ counts)" in organ.done("search", "fits:acme/base", "--facets").out
    assert (
        "note: no model here is called acme/bas; the nearest is fits:acme/base"
        in organ.done("search", "fits:acme/bas").err
    )
    assert "fits:" in organ.done("search", "--help").out


def test_a_search_without_results_says_so_and_names_the_nearest_value(filled: OrganCommand) -> None:
    ended = filled.done("search", "slot:ffn_upp")
    assert ended.out == ""
    assert ended.err.splitlines() == [
        "note: nothing in this registry has slot:ffn_upp; the nearest is slot:ffn_up",
        "Nothing matches. organ search --help lists the fields.",
    ]
    assert filled.done("search", "slot:ffn_upp", "--json").values["items"] == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tpye:organ"], "organ: 'tpye:organ': there is no field 'tpye'; did you mean type:?"),
        (["theta", ">=", "40"], "organ: '>=': write a field before it, without spaces: theta>=40, type:organ"),
        (["sort:block"], "organ: 'sort:block': organs can be sorted by theta, signal, z, spectral, rank, erank, size"),
        (["--after", "nonsense"], "organ: 'after': this is not a cursor: use the cursor of the previous page"),
        (["like:123"], "organ: 'like:123': write an organ's digest, or at least 8 characters of it"),
        (["like:12345678"], "organ: no organ's digest begins with 12345678"),
    ],
)
def test_an_invalid_query_gives_an_error_of_one_line(words: list[str], sentence: str, organ: OrganCommand) -> None:
    ended = organ("search", *words)
    assert (ended.status, ended.out) == (3 if "begins with" in sentence else 1, "")
    assert ended.err.startswith(sentence)
    assert len(ended.err.splitlines()) <= 2


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


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "9223372036854775808", "many"])
def test_a_page_has_from_one_to_a_thousand_organs(limit: str, organ: OrganCommand) -> None:
    assert organ("search", "--limit", limit).status == 2


def test_the_help_lists_every_field_and_every_sort_order(organ: OrganCommand) -> None:
    out = organ.done("search", "--help").out
    for name in ("type:", "slot:", "block:", "spectral:", "license:", "unique:organ", "like:DIGEST", "-type:norm"):
        assert name in out


@pytest.mark.parametrize(
    "word", ["-type:norm", "-coder", "-qwen2", "-zoo-a", "-stable_rank:none", "-θ:40", "-ärzte", "-z:1"]
)
def test_a_word_with_a_minus_is_a_term_not_an_option(word: str, filled: OrganCommand) -> None:
    assert _MINUS_TERM.fullmatch(word)
    assert filled.done("search", word, "--json", "--limit", 5).values["items"] is not None
    assert filled.done("search", "--json", "type:organ", word).values["items"] is not None
    assert filled.done("search", "--json", "--", word).values["items"] is not None


@pytest.mark.parametrize("word", ["-q", "-h", "--json", "--facets", "--limit", "-", "--"])
def test_an_option_is_not_a_term(word: str) -> None:
    assert not _MINUS_TERM.fullmatch(word)


def test_an_unknown_option_is_wrong_usage(organ: OrganCommand) -> None:
    assert organ("search", "--unheard-of").status == 2
    assert organ("search", "-x").status == 2


def test_the_text_of_a_query_is_printed_without_control_characters(filled: OrganCommand) -> None:
    ended = filled("search", 'slot:"[31m"')
    assert "\x1b" not in ended.err + ended.out
    ended = filled("search", "x\x1b[31m:y")
    assert "\x1b" not in ended.err


def test_json_is_one_object_in_strict_json(registry: LocalRegistry, organ: OrganCommand, tmp_path: Path) -> None:
    write_models(registry, random_models(30, seed=9))
    printed = organ.done("search", "--json", "--facets", "--limit", 1000).out
    (tmp_path / "page.json").write_text(printed)
    values = json.loads((tmp_path / "page.json").read_text())
    assert len(values["items"]) == values["facets"]["total"]
