"""`organ transplant` and `organ graft`: files in, a file or a folder out, no registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.digest import digest_of
from tests.cli.in_process import OrganCommand
from tests.cli.parents import Parents
from tests.small_models import expert_model


@pytest.fixture
def organ(tmp_path: Path) -> OrganCommand:
    """The command with a registry that is not there."""
    return OrganCommand(tmp_path / "nothing")


def test_feed_forward_organs_are_taken_by_default_and_blocks_types_and_slots_can_be_chosen(
    organ: OrganCommand, parents: Parents, out: Path, tmp_path: Path
) -> None:
    def changed(*options: str) -> list[str]:
        command = ("transplant", parents.base, parents.tuned, "-o", out / "t.gguf", "--dry-run", "--json")
        return [part["name"] for part in organ.done(*command, *options).values["plan"]["parts"]]

    assert changed() == [f"blk.{block}.ffn_{slot}.weight" for block in (0, 1) for slot in ("up", "down")]
    assert changed("--layers", "1") == ["blk.1.ffn_up.weight", "blk.1.ffn_down.weight"]
    assert changed("--blocks", "0-1", "--slot", "ffn_up") == ["blk.0.ffn_up.weight", "blk.1.ffn_up.weight"]
    assert changed("--type", "skeleton", "--layers", "0") == ["blk.0.attn_q.weight"]
    assert changed("--slot", "attn_*") == [
        f"blk.{block}.{slot}.weight" for block in (0, 1) for slot in ("attn_norm", "attn_q")
    ]
    assert not (tmp_path / "nothing").exists(), "no registry was opened"


def test_single_experts_can_be_chosen(organ: OrganCommand, out: Path, tmp_path: Path) -> None:
    base, donor = (tmp_path / f"{name}.gguf" for name in ("Mixture", "Kin"))
    base.write_bytes(expert_model("Mixture"))
    donor.write_bytes(expert_model("Kin", mixed={2: 0.1, 5: 0.1}))
    command = ("transplant", base, donor, "-o", out / "t.gguf", "--type", "organ")
    plan = organ.done(*command, "--slot", "ffn_*_exps", "--experts", "2,5", "--json").values["plan"]
    assert {part["name"]: part["experts"] for part in plan["parts"]} == {
        f"blk.{block}.ffn_{slot}_exps.weight": [{"model": str(donor), "experts": [2, 5]}]
        for block in (0, 1)
        for slot in ("gate", "up")
    }
    assert "grafted (experts 2 and 5)" in organ.done(*command, "--experts", "2", "--experts", "5", "--force").out
    refused = organ(*command, "--experts", "")
    assert refused.status == 1
    assert "grafts[0].experts[0]: '' is not an expert: write an expert such as 3" in refused.err


def test_the_lock_and_every_byte_equal_those_of_the_registry_and_of_a_graft_between_folders(
    organ: OrganCommand, composer: OrganCommand, parents: Parents, out: Path
) -> None:
    block = ("--layers", "1", "-o")
    made = organ.done(
        "transplant", parents.base, parents.tuned, *block, out / "t.gguf", "--lock", out / "t.lock", "--json"
    ).values["made"]
    composer.done("compose", parents.graft(), "-o", out / "c.gguf", "--lock", out / "c.lock")
    assert (out / "t.lock").read_bytes() == (out / "c.lock").read_bytes()
    for name in ("base", "tuned"):
        organ.done("extract", parents.folder / f"{name}.gguf", "-o", out / name)
    organ.done("graft", out / "base", out / "tuned", "--type", "organ", *block, out / "folders")
    organ.done("graft", parents.base, out / "tuned", *block, out / "mixed", "-q")
    organ.done("assemble", out / "folders", "-o", out / "f.gguf")
    assert (out / "mixed" / "manifest.json").read_text() == (out / "folders" / "manifest.json").read_text()
    for file in ("t.gguf", "c.gguf", "f.gguf"):
        assert digest_of((out / file).read_bytes()) == made["sha256"]


def test_several_donors_take_their_blocks_in_turn(organ: OrganCommand, parents: Parents, out: Path) -> None:
    command = ("transplant", parents.base, parents.tuned, parents.stranger, "-o", out / "t.gguf", "-y")
    ended = organ.done(*command, "--layers", "0", "--layers", "1", "--json")
    assert [(part["block"], part["model"]) for part in ended.values["plan"]["parts"]] == [
        (0, str(parents.tuned)), (0, str(parents.tuned)), (1, str(parents.stranger)), (1, str(parents.stranger)),
    ]  # fmt: skip
    ended = organ(*command, "--force")
    assert ended.status == 5
    assert "refuse overlapping-grafts: " in ended.out
