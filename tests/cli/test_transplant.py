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


def test_the_lock_and_every_byte_equal_those_of_the_registry(
    organ: OrganCommand, composer: OrganCommand, parents: Parents, out: Path
) -> None:
    organ.done(
        *("transplant", parents.base, parents.tuned, "--layers", "1"), "-o", out / "t.gguf", "--lock", out / "t.lock"
    )
    composer.done("compose", parents.graft(), "-o", out / "c.gguf", "--lock", out / "c.lock")
    assert (out / "t.gguf").read_bytes() == (out / "c.gguf").read_bytes()
    assert (out / "t.lock").read_bytes() == (out / "c.lock").read_bytes()
    values = organ.done("transplant", parents.base, parents.tuned, "-o", out / "j.gguf", "--json").values
    assert values["made"]["sha256"] == digest_of((out / "j.gguf").read_bytes())
    assert values["made"]["lock_id"] == values["plan"]["lock_id"]


def test_a_graft_between_folders_equals_the_extracted_transplant(
    organ: OrganCommand, parents: Parents, out: Path
) -> None:
    for name in ("base", "tuned"):
        organ.done("extract", parents.folder / f"{name}.gguf", "-o", out / name)
    organ.done("graft", out / "base", out / "tuned", "--layers", "1", "--type", "organ", "-o", out / "both")
    organ.done("transplant", parents.base, parents.tuned, "--layers", "1", "-o", out / "t.gguf")
    organ.done("assemble", out / "both", "-o", out / "from-folder.gguf")
    assert (out / "from-folder.gguf").read_bytes() == (out / "t.gguf").read_bytes()
    organ.done("graft", parents.base, out / "tuned", "--layers", "1", "-o", out / "mixed", "-q")
    assert (out / "mixed" / "manifest.json").read_text() == (out / "both" / "manifest.json").read_text()


def test_several_donors_take_their_blocks_in_turn(organ: OrganCommand, parents: Parents, out: Path) -> None:
    command = ("transplant", parents.base, parents.tuned, parents.stranger, "-o", out / "t.gguf", "-y")
    ended = organ.done(*command, "--layers", "0", "--layers", "1", "--json")
    assert [(part["block"], part["model"]) for part in ended.values["plan"]["parts"]] == [
        (0, str(parents.tuned)), (0, str(parents.tuned)), (1, str(parents.stranger)), (1, str(parents.stranger)),
    ]  # fmt: skip
    ended = organ(*command, "--force")
    assert ended.status == 5
    assert "refuse overlapping-grafts: " in ended.out


def test_a_warning_stops_it_until_it_is_accepted(organ: OrganCommand, parents: Parents, out: Path) -> None:
    command = ("transplant", parents.base, parents.stranger, "-o", out / "t.gguf")
    ended = organ(*command)
    assert (ended.status, list(out.iterdir())) == (5, [])
    assert "warn unrelated-lineage: " in ended.out
    assert ended.err.splitlines()[-1].endswith(" --accept unrelated-lineage")
    organ.done(*command, "--accept", "unrelated-lineage")
    assert organ(*command, "--accept", "Not A Code", "--force").status == 1


def test_a_graft_replaces_only_an_empty_folder_or_an_organ_directory(
    organ: OrganCommand, parents: Parents, out: Path
) -> None:
    (out / "empty").mkdir()
    organ.done("graft", parents.base, parents.tuned, "-o", out / "empty")
    (out / "mine").mkdir()
    (out / "mine" / "file").write_bytes(b"mine")
    for options in ([], ["--force"]):
        ended = organ("graft", parents.base, parents.tuned, "-o", out / "mine", *options)
        assert ended.status == 1
        assert [path.name for path in (out / "mine").iterdir()] == ["file"]


def test_organs_that_do_not_fit_are_refused_with_the_reason(organ: OrganCommand, parents: Parents, out: Path) -> None:
    for options, code, status in ((("--layers", "7"), "no-such-block", 5), (("--layers", "x"), "bad-recipe", 1)):
        ended = organ("transplant", parents.base, parents.tuned, "-o", out / "t.gguf", *options)
        assert ended.status == status
        assert f"refuse {code}: " in ended.out + ended.err
    ended = organ("transplant", parents.base, parents.base, "-o", out / "t.gguf")
    assert "refuse own-donor: " in ended.out
    assert list(out.iterdir()) == []
