"""`organ purify`."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.cli.parents import Parents
from tests.small_models import row_counts


@pytest.fixture
def organ(composer: OrganCommand) -> OrganCommand:
    return composer


def test_the_feed_forward_organs_are_purified_with_theta_before_and_after(organ: OrganCommand, out: Path) -> None:
    ended = organ.done(
        "purify", "base", "--method", "fractal", "--blocks", "1", "--name", "acme/pure", "-o", out / "p.gguf"
    )
    screen, registered = (ended.out.index(text) for text in ("screen: Purified tensors", "acme/pure@1: registered"))
    assert screen < registered
    assert "this usually raises the perplexity; measure it. Measured on " in ended.out.replace("\n", " ")
    heading, *rows = [line.split() for line in ended.lines[-3:]]
    assert heading == ["block", "slot", "dtype", "θ", "before", "θ"]
    computed = organ.done("show", "acme/pure", "--json").values["chimera"]["computed"]
    assert rows == [
        ["1", slot, "F16", f"{one['theta_before']:.1f}°", f"{one['theta']:.1f}°"]
        for slot, one in zip(("ffn_up", "ffn_down"), computed, strict=True)
    ]


def test_organs_can_be_chosen_by_type_slot_and_measure(organ: OrganCommand) -> None:
    def chosen(*options: str) -> list[str]:
        ended = organ.done("purify", "base", "--method", "spectral", "--dry-run", "--json", *options)
        return [part["name"] for part in ended.values["plan"]["parts"]]

    assert len(chosen()) == 4
    assert chosen("--type", "skeleton", "--layers", "0") == ["blk.0.attn_q.weight"]
    assert chosen("--slot", "attn_*", "--blocks", "1", "--keep", "0.9")[0] == "blk.1.attn_norm.weight"
    assert chosen("--where", "type:embed theta>0", "-y") == ["token_embd.weight"]


@pytest.mark.long
def test_a_file_and_a_folder_are_purified_without_the_registry(
    organ: OrganCommand, parents: Parents, out: Path, kept: LocalRegistry
) -> None:
    step = ("--method", "spectral", "--keep", "0.8", "--blocks", "1")
    made = organ.done("purify", "base", *step, "-o", out / "registered.gguf", "--json").values["made"]
    before = row_counts(kept)
    folder = out / "folder"
    organ.done("extract", parents.base, "-o", folder)
    assert organ.done("purify", parents.base, *step, "-o", out / "file.gguf", "-q").lines == [str(out / "file.gguf")]
    values = organ.done("purify", folder, *step, "-o", out / "pure", "--json").values
    organ.done("assemble", out / "pure", "-o", out / "from-folder.gguf")
    assert {digest_of(path.read_bytes()) for path in out.glob("*.gguf")} == {made["sha256"]}
    assert [values["made"][fact] for fact in ("size_bytes", "lock_id")] == [made["size_bytes"], made["lock_id"]]
    names = (values["made"]["model"], values["plan"]["name"], values["plan"]["base"])
    assert names == (None, None, str(folder)), "a temporary registry's names mean nothing"
    output = organ.done("purify", folder, *step, "-o", out / "pure", "--force").out
    assert output.startswith(f"{folder}; licenses")
    assert "local/" not in output
    assert row_counts(kept) == before
    expected = ["file.gguf", "folder", "from-folder.gguf", "pure", "registered.gguf"]
    assert sorted(path.name for path in out.iterdir()) == expected, "the temporary registry is gone"


def test_wrong_choices_are_findings(organ: OrganCommand) -> None:
    for options, said in (
        (("--method", "spectral", "--keep", "2"), "above 0 and at most 1"),
        (("--method", "spectral", "--blocks", "x"), "is not a block"),
        (("--method", "spectral", "--blocks", "9"), "no-such-block"),
        (("--method", "spectral", "--where", "model:a"), "cannot be used here"),
    ):
        ended = organ("purify", "base", *options)
        assert ended.status == (5 if said == "no-such-block" else 1)
        assert said.lower() in (ended.out + ended.err).lower(), options
