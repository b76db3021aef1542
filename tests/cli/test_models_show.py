"""`organ models` and `organ show`."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.records import Edits
from organs.registry.catalog.register.model_changes import edit_model
from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.cli.in_process import OrganCommand
from tests.gguf_files import file_bytes
from tests.small_models import block_metadata, block_tensors, small_model, weight_tensor


def test_kin_of_a_model_are_listed_with_their_change_the_most_similar_first(composer: OrganCommand) -> None:
    _, *rows = composer.done("models", "kin:base").lines
    assert [row.split()[1] for row in rows] == ["local/base@1", "local/tuned@1"]
    assert [float(row.split()[0]) for row in rows] == pytest.approx([0, 0.01], abs=0.01)


def test_an_uncertain_mean_theta_and_a_partial_model_are_marked(filled: OrganCommand, tmp_path: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(file_bytes([], [weight_tensor("blk.0.a", (64, 8))]))
    (tmp_path / "part.gguf").write_bytes(file_bytes(block_metadata(blocks=7), block_tensors(2)))
    filled.done("ingest", tmp_path / "small.gguf", tmp_path / "part.gguf")
    listed = filled.done("models")
    rows = [row.split() for row in listed.lines]
    assert [row[0] for row in rows if any("≈" in cell for cell in row)] == ["local/small@1"]
    assert ["local/part@1", "partial"] in [row[:2] for row in rows]
    assert listed.err.startswith("≈ marks an uncertain θ")
    assert filled.done("show", "part").lines[1].startswith("partial model  llama, ")


def test_a_model_is_shown_with_its_types_and_its_tensors(filled: OrganCommand) -> None:
    summary = filled.done("show", "little").out
    assert summary.startswith("local/little@1  Little\nmodel    llama, 47.3 k parameters in 10 tensors, ")
    assert len(summary.splitlines()) <= 20
    assert "organ show little --tensors  # 10 tensors\n" in summary
    assert "organ chat little Hello      # ask it something\n" in summary
    assert "blk." not in summary
    lines = [line.split() for line in summary.splitlines()]
    assert ["license", "apache-2.0"] in lines
    (file,) = [line for line in lines if line[:1] == ["file"]]
    assert file[1:2] + file[-1:] == ["little.gguf,", f"sha256:{digest_of(small_model())[:12]}"]
    out = filled.done("show", "little", "--tensors").out
    assert out.startswith(summary)
    for expected in ("skeleton", "blk.1.ffn_down.weight", "128×64", "F16", "output_norm.weight"):
        assert expected in out


def test_an_organ_is_found_by_the_beginning_of_its_digest(filled: OrganCommand) -> None:
    _, data = weight_tensor("blk.0.attn_q.weight", (64, 64))
    digest = digest_of(data)
    for typed in (digest, digest[:8], f"sha256:{digest}", digest[:12].upper()):
        out = filled.done("show", typed).out
        assert out.startswith(
            "blk.0.attn_q.weight of local/little@1, an attention tensor (type:skeleton)\n"
            f"sha256:{digest}\ncontent   F16 64x64, 4096 values, 8.2 kB, present\nstored    "
        )
        assert f"organ search like:{digest[:12]} " in out
    out = filled.done("show", digest, "--measures").out
    for expected in (
        "method z1, the Z-measure: ",
        "θ in degrees: 0 uniform, about 34 Gaussian, 90 heavy tails",
        "method mp1, the spectral measures: ",
        "docs/numbers.md explains",
    ):
        assert expected in out


def test_a_description_keeps_its_lines_and_versions_show_the_number_of_different_organs(
    filled: OrganCommand, registry: LocalRegistry, tmp_path: Path
) -> None:
    changed = file_bytes(block_metadata(), [*block_tensors(seed=2)[:-1], block_tensors(seed=1)[-1]])
    for data in (file_bytes(block_metadata(), block_tensors(seed=2)), changed):
        (tmp_path / "twice.gguf").write_bytes(data)
        filled.done("ingest", "--new-version", tmp_path / "twice.gguf")
    with registry.catalog.writing() as session:
        model = model_by_name(session, parse_model_name("local/twice"))
        edit_model(session, model, Edits(description="# What\n\n\tlicense  mit\x1b[2J"), "local")
    out = filled.done("show", "twice").out
    assert "\n  # What\n\n      license  mit\\u001b[2J\nmodel    llama, " in out
    newest, first = (filled.done("show", f"twice@{version}").out for version in (2, 1))
    assert "also local/twice@1" in newest
    assert ", 1 tensor differs from the version before\n" in first


def test_a_name_that_looks_like_a_digest_is_a_name_first(organ: OrganCommand, tmp_path: Path) -> None:
    (tmp_path / "deadbeef.gguf").write_bytes(small_model())
    organ.done("ingest", tmp_path / "deadbeef.gguf")
    assert organ.done("show", "deadbeef").out.startswith("local/deadbeef@1")
    ended = organ("show", "sha256:deadbeef")
    assert ended.status == 3
    assert "no tensor's digest begins with deadbeef" in ended.err
