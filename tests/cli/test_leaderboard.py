"""`organ leaderboard`, `organ compose --propose`, and the gains in lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from tests.cli.crowded import add_validated_chimeras
from tests.cli.in_process import OrganCommand


@pytest.fixture
def organ(composer: OrganCommand, kept: LocalRegistry) -> OrganCommand:
    """The command with two validated chimeras."""
    add_validated_chimeras(kept)
    return composer


def test_the_leaderboard_has_donor_organs_gain_and_largest_loss(organ: OrganCommand) -> None:
    header, *rows = organ.done("leaderboard", "base").lines
    assert header.split()[:3] == ["gain", "change", "chimera"]
    assert [row.split()[:4] for row in rows] == [["+5.0%", "±", "1.0%", "python"], ["perplexity", "×", "10", "python"]]
    assert rows[0].split()[6:9] == ["local/tuned@1", "feed-forward", "0-1"]
    assert "local/stranger@1  feed-forward 0-1" in rows[1]
    assert "−2.0% ± 1.0% narrative" in rows[0]
    assert "perplexity × 41 narrative" in rows[1]


def test_the_proposed_recipe_makes_the_best_graft_again(organ: OrganCommand, out: Path) -> None:
    proposed = organ.done("compose", "--propose", "base", "--on", "code")
    assert proposed.lines[0] == (
        "# Measured gain of me/mixed@1: +5.0% ± 1.0% python. Largest loss: −2.0% ± 1.0% narrative."
    )
    assert "name:" not in proposed.out
    recipe = out / "proposed.yaml"
    recipe.write_text(proposed.out, encoding="utf-8")
    organ.done("compose", recipe, "--name", "me/again", "--yes")
    digests = {organ.done("show", name, "--json").values["digest"] for name in ("me/mixed", "me/again")}
    assert len(digests) == 1


def test_without_a_gain_the_command_names_the_next_step_and_proposes_nothing(organ: OrganCommand) -> None:
    ended = organ.done("leaderboard", "tuned", "--on", "poetry")
    assert ended.out == ""
    assert "note: nothing was measured on poetry" in ended.err
    assert "No validated chimera has a settled gain or loss over tuned on poetry. Validate a chimera" in ended.err
    refused = organ("compose", "--propose", "base", "--on", "narrative").err
    assert "no graft on base has a measured gain on narrative and parents" in refused


def test_lists_show_gains_if_the_query_mentions_them(organ: OrganCommand) -> None:
    header, *rows = organ.done("search", "fits:base", "type:organ", "gain>0").lines
    assert header.split()[:2] == ["change", "gain"]
    assert all("+5.0% ± 1.0% python" in row for row in rows)
    assert len(rows) == 8, "of the donor and of the chimera"
    header, *rows = organ.done("models", "on:prose", "sort:-gain").lines
    assert "gain" in header
    assert [row for row in rows if "local/tuned@1" in row and "−2.0% ± 1.0% narrative" in row]
    assert "gain" not in organ.done("search", "type:organ").lines[0]
