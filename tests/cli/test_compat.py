"""`organ compat`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.in_process import OrganCommand
from tests.cli.parents import Parents
from tests.related_models import model_file
from tests.small_models import block_tensors

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"


@pytest.fixture
def organ(composer: OrganCommand) -> OrganCommand:
    return composer


def test_a_relative_fits_in_every_type_and_is_reported_as_related(organ: OrganCommand) -> None:
    ended = organ.done("compat", "base", "tuned")
    rows = [line.split() for line in ended.lines]
    assert rows[1:5] == [["skeleton", "2", "2"], ["organ", "4", "4"], ["embed", "1", "1"], ["norm", "3", "3"]]
    assert any(line.startswith("info related-lineage: ") for line in ended.lines)
    assert organ.done("compat", "base", "tuned", "-q").lines == ["skeleton", "organ", "embed", "norm"]


def test_a_stranger_fits_with_a_warning(organ: OrganCommand) -> None:
    values = organ.done("compat", "base", "stranger", "--json").values
    assert (values["base"], values["donor"]) == ("local/base@1", "local/stranger@1")
    (of_organs,) = [one for one in values["types"] if one["type"] == "organ"]
    assert (of_organs["fitting"], of_organs["total"], of_organs["refused"]) == (4, 4, False)
    assert "unrelated-lineage" in [one["code"] for one in of_organs["findings"]]


def test_files_and_folders_are_compared_like_registered_models(
    organ: OrganCommand, parents: Parents, tmp_path: Path
) -> None:
    of_names = organ.done("compat", "base", "tuned", "--json").values
    organ.done("extract", parents.tuned, "-o", tmp_path / "tuned")
    of_files = organ.done("compat", parents.base, tmp_path / "tuned", "--json").values
    for one, other in zip(of_names["types"], of_files["types"], strict=True):
        assert (one["type"], one["fitting"], one["total"]) == (other["type"], other["fitting"], other["total"])
    mixed = organ.done("compat", "base", parents.tuned).out
    assert f"{parents.tuned} " in mixed
    assert "local/base@1" in mixed


def test_a_type_that_does_not_fit_gets_a_reason(organ: OrganCommand, tmp_path: Path) -> None:
    (tmp_path / "wide.gguf").write_bytes(model_file("Wide", block_tensors(width=96)))
    ended = organ.done("compat", "base", tmp_path / "wide.gguf")
    assert ["organ", "0", "4", "width-differs"] in [line.split() for line in ended.lines]
    assert "refuse width-differs: " in ended.out
    assert organ.done("compat", "base", tmp_path / "wide.gguf", "-q").out == ""


def test_without_a_donor_the_models_that_fit_are_listed_newest_first(
    organ: OrganCommand, parents: Parents, tmp_path: Path
) -> None:
    (tmp_path / "wide.gguf").write_bytes(model_file("Wide", block_tensors(width=96)))
    organ.done("ingest", tmp_path / "wide.gguf")
    organ.done("compose", parents.graft(), "--name", "acme/mixed")
    names = ["acme/mixed@1", "local/tuned@1", "local/stranger@1"]
    assert organ.done("compat", "base", "-q").lines == names
    values = organ.done("compat", "base", "--json").values
    assert [item["model"] for item in values["items"]] == names
    assert values["items"][0]["types"]["organ"] == {"fitting": 2, "equal": 2, "total": 4}
    assert "4/4 (2 equal)" in organ.done("compat", "base").out
    ended = organ.done("compat", "base", "--limit", "1")
    assert len(ended.lines) == 2
    assert "--limit" in ended.err
    assert organ.done("compat", "wide").err == "No registered model fits into local/wide@1.\n"


def test_a_name_that_is_not_registered_ends_with_3(organ: OrganCommand) -> None:
    for arguments in (("nobody",), ("base", "nobody"), ("base", "missing.gguf")):
        ended = organ("compat", *arguments)
        assert (ended.status, ended.out) == (1 if "missing.gguf" in arguments else 3, "")
        assert ended.err.startswith("organ: ")


def test_an_adapter_fits_completely_or_not_at_all(organ: OrganCommand) -> None:
    base, adapter = (ZOO / f"Zoo-{name}.gguf" for name in ("A-2M-v1.0-F16", "A-2M-Code-LoRA-v1.0-F32"))
    values = organ.done("compat", base, adapter, "--json").values
    assert (values["types"], [one["severity"] for one in values["findings"]]) == ([], ["info"])
    assert organ.done("compat", base, adapter).out.startswith("info adapter-rank: ")
    assert "refuse adapter-misfit: " in organ.done("compat", "base", adapter).out


def test_every_line_of_likeness_names_its_type(organ: OrganCommand) -> None:
    findings = organ.done("compat", "base", "tuned", "--json").values["findings"]
    told = [one["field"] for one in findings if one["code"] == "related-lineage"]
    assert told == ["skeleton", "organ", "embed"]
