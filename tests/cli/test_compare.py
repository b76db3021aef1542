"""`organ compare`, and the lineage that `organ show` prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.in_process import OrganCommand
from tests.gguf_files import file_bytes, text
from tests.related_models import model_file, parent_entries, related_tensors
from tests.small_models import weight_tensor

FILES = {
    "base": model_file("Base", related_tensors()),
    "tuned": model_file("Tuned", related_tensors(correlation=0.995), parent_entries("Base")),
    "twin": model_file("Twin", related_tensors()),
    "stranger": model_file("Stranger", related_tensors(seed=5)),
    "quantised": model_file("Base", related_tensors(dtype="Q8_0")),
    "other": model_file("Other", [weight_tensor("blk.0.attn_q.weight", (32, 64))]),
    "adapter": file_bytes(
        [text("general.architecture", "llama"), text("general.type", "adapter"), text("general.name", "Adapter")],
        [weight_tensor("blk.0.attn_q.weight.lora_a", (64, 8)), weight_tensor("blk.0.attn_q.weight.lora_b", (8, 64))],
    ),
}


@pytest.fixture(scope="module")
def kin(tmp_path_factory: pytest.TempPathFactory) -> OrganCommand:
    """The command with a registry that holds a little family. Tests that add to it bring their own."""
    folder = tmp_path_factory.mktemp("kin")
    return filled_with(OrganCommand(folder / "home"), folder, FILES)


def filled_with(organ: OrganCommand, folder: Path, files: dict[str, bytes]) -> OrganCommand:
    for name, data in files.items():
        (folder / f"{name}.gguf").write_bytes(data)
    organ.done("ingest", *(folder / f"{name}.gguf" for name in files))
    return organ


def test_two_models_are_shown_side_by_side_with_a_sentence_for_every_table(kin: OrganCommand) -> None:
    lines = kin.done("compare", "base", "tuned").lines
    assert lines[0] == "Almost identical, like a model and its light fine-tune, or two fine-tunes of one model."
    assert re.fullmatch(r"Change: 0\.0.* over 7 of 7 matrices.*", lines[1])
    assert lines[2] == "Same to the last byte: 0 of 10 tensors, with vectors."
    for beginning in ("By type: the mean θ of local/base@1 and of local/tuned@1", "By block: ", "Changed most: "):
        assert any(line.startswith(beginning) for line in lines), beginning
    headings = [line.split() for line in lines if line.startswith(("type ", "tensor "))]
    assert headings == [
        ["type", "θ", "first", "θ", "second", "difference", "likeness", "change", "compared"],
        ["tensor", "type", "likeness", "change"],
    ]
    assert next(line for line in lines if line.startswith("norm ")).count("≈") == 2, "norms have few values"


def test_models_that_cannot_be_compared_give_one_sentence(kin: OrganCommand) -> None:
    for first, second, sentence in (
        (
            "base",
            "local/base@1",
            "local/base@1 and local/base@1 are the same model to the last byte: ",
        ),
        ("base", "other", "local/base@1 and local/other@1 cannot be compared: no matrix "),
        ("adapter", "base", "local/adapter@1 is an adapter: adapters are not compared, because they are not the"),
    ):
        ended = kin.done("compare", first, second)
        assert ended.out.startswith(sentence)
        assert len(ended.lines) == 1


@pytest.mark.parametrize(
    ("second", "beginning", "left_out"),
    [
        ("twin", "Every tensor is the same to the last byte: ", "Changed most"),
        ("quantised", "Close: 1.000; not proved to be a plain quantisation: ", "Only in"),
        ("stranger", "Not related, ", "changed"),
    ],
)
def test_the_first_line_explains_the_numbers(second: str, beginning: str, left_out: str, kin: OrganCommand) -> None:
    out = kin.done("compare", "base", second).out
    assert out.startswith(beginning)
    assert left_out not in out


def test_organs_that_are_the_same_and_organs_of_only_one_model_are_counted_and_named(
    organ: OrganCommand, tmp_path: Path
) -> None:
    strange, *_ = related_tensors(seed=5)
    longer = [strange, *related_tensors()[1:], weight_tensor("output.weight", (64, 96))]
    filled_with(organ, tmp_path, {"base": FILES["base"], "longer": model_file("Longer", longer)})
    lines = organ.done("compare", "base", "longer").lines
    assert lines[0].startswith("9 of 10 and 11 tensors are the same to the last byte. Related, but far apart: ")
    assert not any("Same to the last byte" in line for line in lines), "once is enough"
    assert [line for line in lines if line.startswith("Only in ")] == ["Only in local/longer@1: output.weight"]


def test_differences_of_the_headers_are_a_table(kin: OrganCommand) -> None:
    lines = kin.done("compare", "base", "quantised").lines
    header, row = (line.split() for line in lines[lines.index("Other differences.") + 1 :])
    assert (header[0], row) == ("property", ["dtypes", "7", "F16,", "3", "F32", "7", "Q8_0,", "3", "F32"])


def test_show_prints_the_lineage_and_the_findings(kin: OrganCommand) -> None:
    lines = [line.split() for line in kin.done("show", "tuned", "--lineage").lines]
    assert ["role", "model", "relation", "evidence", "change", "likeness", "matrices"] in lines
    parents = [line for line in lines if line[:1] == ["parent"]]
    assert [line[:4] for line in parents] == [["parent", "local/base@1", "finetune", "declared"]]
    assert sum(line[:1] == ["relative"] for line in lines) == 2, "the parent is listed once"
    out = kin.done("show", "stranger", "--lineage").out
    assert "info: It declares no parent, and no registered model has similar weights at the same places." in out
