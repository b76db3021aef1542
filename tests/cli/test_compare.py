"""`organ compare`, and the lineage that `organ show` prints."""

from __future__ import annotations

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
    assert lines[1].startswith("Change: 0.0")
    assert "over 7 of 7 matrices" in lines[1]
    assert lines[2] == "Same to the last byte: 0 of 10 organs, with vectors."
    for beginning in ("By type: the mean θ of local/base@1 and of local/tuned@1", "By block: ", "Changed most: "):
        assert any(line.startswith(beginning) for line in lines), beginning
    assert "By block: the mean over the block's matrices." in lines
    header = next(line for line in lines if line.startswith("type"))
    assert header.split() == ["type", "θ", "first", "θ", "second", "difference", "likeness", "change", "compared"]
    organs = kin.done("compare", "base", "tuned", "--json").values["types"][2]
    thetas = [f"{organs[name]:.1f}°" for name in ("first_theta", "second_theta")]
    assert next(line for line in lines if line.startswith("organ ")).split()[1:3] == thetas
    assert next(line for line in lines if line.startswith("norm ")).count("≈") == 2, "norms have few values"
    assert next(line for line in lines if line.startswith("tensor")).split() == ["tensor", "type", "likeness", "change"]


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
    values = kin.done("compare", "other", "base", "--json").values
    assert values["shapes_differ"] == [{"name": "blk.0.attn_q.weight", "first": [32, 64], "second": [64, 64]}]
    assert len(values["only_second"]) == 9
    values = kin.done("compare", "base", "adapter", "--json").values
    assert (values["likeness"], values["kinship"], values["changed"]) == (None, "incomparable", [])


@pytest.mark.parametrize(
    ("second", "beginning", "left_out"),
    [
        ("twin", "Every organ is the same to the last byte: ", "Changed most"),
        ("quantised", "Close: 1.000; not proved to be a plain quantisation: ", "Only in"),
        ("stranger", "Not related, ", "changed"),
    ],
)
def test_the_first_line_explains_the_numbers(second: str, beginning: str, left_out: str, kin: OrganCommand) -> None:
    out = kin.done("compare", "base", second).out
    assert out.startswith(beginning)
    assert left_out not in out


def test_the_first_sentence_says_that_most_organs_are_the_same(organ: OrganCommand, tmp_path: Path) -> None:
    strange = related_tensors(seed=5)
    edited = [strange[0], *related_tensors()[1:]]
    filled_with(organ, tmp_path, {"base": FILES["base"], "edited": model_file("Edited", edited)})
    lines = organ.done("compare", "base", "edited").lines
    assert "Same to the last byte" not in "".join(lines), "once is enough"
    assert lines[0].startswith("9 of 10 organs are the same to the last byte. Related, but far apart: ")


def test_differences_of_the_headers_are_a_table(kin: OrganCommand) -> None:
    lines = kin.done("compare", "base", "quantised").lines
    table = lines[lines.index("Other differences.") + 1 :]
    assert [line.split()[0] for line in table] == ["property", "dtypes"]
    assert table[1].split() == ["dtypes", "7", "F16,", "3", "F32", "7", "Q8_0,", "3", "F32"]
    assert "Other differences" not in kin.done("compare", "base", "tuned").out
    differs = kin.done("compare", "base", "quantised", "--json").values["differs"]
    assert differs == [{"what": "dtypes", "first": "7 F16, 3 F32", "second": "7 Q8_0, 3 F32"}]


def test_organs_of_only_one_model_are_named(organ: OrganCommand, tmp_path: Path) -> None:
    longer = [*related_tensors(correlation=0.995), weight_tensor("output.weight", (64, 96))]
    filled_with(organ, tmp_path, {"base": FILES["base"], "longer": model_file("Longer", longer)})
    out = organ.done("compare", "base", "longer").out
    assert "over 7 of 7 and 8 matrices" in out
    assert "0 of 10 and 11 organs" in out
    assert "\nOnly in local/longer@1: output.weight\n" in out
    assert "Only in local/base@1" not in out


def test_show_prints_the_lineage_and_the_findings(kin: OrganCommand) -> None:
    lines = [line.split() for line in kin.done("show", "tuned", "--lineage").lines]
    assert ["role", "model", "relation", "evidence", "change", "likeness", "matrices"] in lines
    parents = [line for line in lines if line[:1] == ["parent"]]
    assert [line[:4] for line in parents] == [["parent", "local/base@1", "finetune", "declared"]]
    assert sum(line[:1] == ["relative"] for line in lines) == 2, "the parent is listed once"
    out = kin.done("show", "stranger", "--lineage").out
    assert "info: It declares no parent, and no registered model has similar weights at the same places." in out
