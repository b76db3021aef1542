"""`organ compat`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.in_process import OrganCommand
from tests.cli.parents import Parents
from tests.related_models import model_file, related_tensors
from tests.small_models import block_tensors

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"


@pytest.fixture
def organ(composer: OrganCommand) -> OrganCommand:
    return composer


def test_a_relative_fits_in_every_type_and_is_reported_as_related(organ: OrganCommand) -> None:
    ended = organ.done("compat", "base", "tuned")
    rows = [line.split() for line in ended.lines]
    assert [row[:4] for row in rows[1:5]] == [
        ["skeleton", "2", "2", "kin"], ["organ", "4", "4", "kin"], ["embed", "1", "1", "kin"], ["norm", "3", "3", "–"]
    ]  # fmt: skip
    assert all(re.fullmatch(r"0\.0\d+", row[4]) for row in rows[1:4])
    assert any(line.startswith("info related-lineage: ") for line in ended.lines)
    assert organ.done("compat", "base", "tuned", "-q").lines == ["skeleton", "organ", "embed", "norm"]


def test_files_and_folders_are_compared_like_registered_models(
    organ: OrganCommand, parents: Parents, tmp_path: Path
) -> None:
    of_names = organ.done("compat", "base", "tuned", "--json").values
    organ.done("extract", parents.tuned, "-o", tmp_path / "tuned")
    of_files = organ.done("compat", parents.base, tmp_path / "tuned", "--json").values
    for facts in (of_names, of_files):
        facts["types"] = [(one["type"], one["fitting"], one["total"]) for one in facts["types"]]
    assert of_names["types"] == of_files["types"]
    assert f"{parents.tuned} " in organ.done("compat", "base", parents.tuned).out


def test_organs_that_do_not_fit_get_a_reason_and_another_architecture_one_sentence(
    organ: OrganCommand, parents: Parents, tmp_path: Path
) -> None:
    (tmp_path / "wide.gguf").write_bytes(model_file("Wide", block_tensors(width=96)))
    ended = organ.done("compat", "base", tmp_path / "wide.gguf")
    assert ["organ", "0", "4", "–", "–", "width-differs"] in [line.split() for line in ended.lines]
    assert "refuse width-differs: " in ended.out
    assert organ.done("compat", "base", tmp_path / "wide.gguf", "-q").out == ""
    other = tmp_path / "other.gguf"
    other.write_bytes(model_file("Other", block_tensors(1)).replace(b"llama", b"gemma"))
    sentence = f"gemma and llama are different architectures: no tensor of {other} fits {parents.base}."
    for words, status in ((("compat",), 0), (("transplant", "-o", tmp_path / "x.gguf"), 5)):
        ended = organ(*words, parents.base, other)
        assert (ended.status, ended.lines[0]) == (status, sentence)
        assert "architecture-differs" not in ended.out


@pytest.mark.long
def test_without_a_donor_the_models_that_fit_are_listed_chimeras_last(
    organ: OrganCommand, parents: Parents, tmp_path: Path
) -> None:
    (tmp_path / "wide.gguf").write_bytes(model_file("Wide", block_tensors(width=96)))
    organ.done("ingest", tmp_path / "wide.gguf")
    organ.done("compose", parents.graft(), "--name", "acme/mixed")
    names = ["local/tuned@1", "acme/mixed@1", "local/stranger@1"]
    assert organ.done("compat", "base", "-q").lines == names
    assert "4/4 (2 equal)" in organ.done("compat", "base").out
    ended = organ.done("compat", "base", "--limit", "1")
    assert len(ended.lines) == 2
    assert "--limit" in ended.err
    assert organ.done("compat", "wide").err == "No registered model fits into local/wide@1.\n"


def test_a_copy_under_another_name_is_the_same_model(organ: OrganCommand, tmp_path: Path) -> None:
    (tmp_path / "copy.gguf").write_bytes(model_file("Copy", related_tensors()))
    organ.done("ingest", tmp_path / "copy.gguf")
    first, *_ = organ.done("compat", "base").lines[1:]
    assert first.split()[:4] == ["local/copy@1", "the", "same", "model"]
    assert organ.done("compat", "base", "-q").lines == ["local/tuned@1", "local/stranger@1"]
    ended = organ.done("search", "fits:base", "type:organ")
    assert "note: the same model as local/base@1, tensor by tensor: local/copy@1" in ended.err
    assert "info same-model: " in organ.done("compat", "base", "copy").out


def test_an_adapter_fits_completely_or_not_at_all(organ: OrganCommand) -> None:
    base, adapter = (ZOO / f"Zoo-{name}.gguf" for name in ("A-2M-v1.0-F16", "A-2M-Code-LoRA-v1.0-F32"))
    assert organ.done("compat", base, adapter).out.startswith("info adapter-rank: ")
    assert organ.done("compat", "base", adapter).out.startswith("refuse adapter-misfit: ")


def test_a_registered_adapter_is_offered_with_the_command_that_merges_it(organ: OrganCommand, tmp_path: Path) -> None:
    base, adapter = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-LoRA-v1.0-F32"
    organ.done("ingest", ZOO / f"{base}.gguf", ZOO / f"{adapter}.gguf")
    alone = organ.done("compat", adapter)
    assert alone.err.endswith(f"It is an adapter: name its base first: organ compat BASE local/{adapter}@1\n")
    command = f'echo \'{{"base": "{base}", "adapters": [{{"from": "{adapter}"}}]}}\' | organ compose - --name merged'
    assert organ.done("compat", base, adapter).err == f"Merge it into the base: {command}\n"
    (recipe := tmp_path / "recipe.json").write_text(command.removeprefix("echo '").partition("'")[0])
    organ.done("compose", recipe, "--dry-run")
