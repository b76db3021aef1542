"""`organ ingest` and `organ push` with folders of other tools: PEFT adapters, and models in safetensors files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.cli.test_push import run
from tests.ingest.memory_registry import FakeRegistry, fake_registry
from tests.ingest.peft_folders import MODULES, base_config, base_file, write_folder
from tests.small_models import small_model


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as running:
        yield running


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "Base.gguf"
    path.write_bytes(base_file())
    return path


def test_a_peft_folder_becomes_an_adapter_and_the_second_run_adds_nothing(organ: OrganCommand, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "my-lora", base=base_config())
    (folder / "README.md").write_text("# Mine")
    first = organ.done("ingest", folder)
    assert first.out.startswith(f"local/my-lora@1: {2 * len(MODULES)} organs, ")
    assert first.err == "  note: converted from a PEFT folder: 14 modules, rank 4, alpha 8\n"
    assert organ.done("ingest", folder).out == "local/my-lora@1: already registered, nothing added\n"
    assert "local/my-lora@1" in organ.done("models", "kind:adapter").out


@pytest.mark.long
def test_the_base_of_a_peft_folder_is_a_registered_model_or_a_path(
    organ: OrganCommand, tmp_path: Path, base: Path
) -> None:
    folder = write_folder(tmp_path / "my-lora", base_model_name_or_path="acme/Unknown")
    refused = organ("ingest", folder)
    assert (refused.status, refused.out) == (1, "")
    assert "name the base: --base MODEL" in refused.err
    organ.done("ingest", "-q", base)
    assert organ.done("ingest", "-q", folder, "--base", "Base").out == "local/my-lora@1\n"
    assert organ.done("ingest", "-q", folder, "--base", base).out == "local/my-lora@1\n"
    planned = organ.done("ingest", "--dry-run", folder, "--base", base)
    assert "my-lora: would be local/my-lora@1, 28 tensors, " in planned.out
    assert organ("ingest", folder, "--base", "Absent").status != 0
    wrong = organ("ingest", base, "--base", "Base")
    assert "--base is for a folder with adapter_config.json" in wrong.err


def test_a_peft_folder_is_measured_like_any_adapter(organ: OrganCommand, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "my-lora", base=base_config())
    measured = organ.done("measure", "--json", folder).values
    assert measured["tensors_count"] == 2 * len(MODULES)


def test_a_pushed_peft_folder_sends_the_adapter_and_names_its_base(
    fake: FakeRegistry, tmp_path: Path, base: Path
) -> None:
    folder = write_folder(tmp_path / "my-lora", base_model_name_or_path="acme/Unknown")
    url = fake.connection.url
    refused = run(tmp_path, url, folder)
    assert refused.status == 1
    assert "name the base: --base MODEL" in refused.err
    sent = run(tmp_path, url, folder, "--base", base, "--license", "mit")
    assert (sent.status, sent.lines[-1]) == (0, f"{url}/models/me/my-lora@1")
    assert fake.manifests[0]["metadata"] == {"license": "mit"}
    again = run(tmp_path, url, folder, "--base", base)
    assert again.lines[0] == "me/my-lora@1: already registered there, nothing was sent"


def safetensors_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"weights")
    return folder


def test_a_model_in_safetensors_files_says_which_command_converts_it(organ: OrganCommand, tmp_path: Path) -> None:
    folder = safetensors_model(tmp_path / "My Model")
    refused = organ("ingest", folder)
    assert refused.status == 1
    assert f"python convert_hf_to_gguf.py '{folder}' --outfile My-Model.gguf --outtype auto" in refused.err


def program(folder: Path, body: str) -> Path:
    path = folder / "convert_hf_to_gguf.py"
    path.write_text(f"#!{sys.executable}\nimport shutil, sys\n{body}\n")
    return path


@pytest.mark.long
def test_an_installed_converter_makes_a_temporary_file_that_is_ingested(
    organ: OrganCommand, registry: LocalRegistry, tmp_path: Path
) -> None:
    folder = safetensors_model(tmp_path / "My Model")
    (tmp_path / "made.gguf").write_bytes(small_model())
    copies = (
        "folder, flag, target, *type = sys.argv[1:]\n"
        f"assert (folder, flag, type) == ({str(folder)!r}, '--outfile', ['--outtype', 'auto'])\n"
        f"shutil.copy({str(tmp_path / 'made.gguf')!r}, target)"
    )
    path = program(tmp_path, copies)
    by_variable = organ("ingest", "--convert", folder, environment={"CONVERT_HF_TO_GGUF": str(path)})
    assert by_variable.out.startswith("local/My-Model@1: 10 organs, ")
    assert list(registry.settings.spool.iterdir()) == []
    path.chmod(0o755)
    by_path = organ("ingest", "--convert", folder, environment={"PATH": str(tmp_path)})
    assert by_path.out == "local/My-Model@1: already registered, nothing added\n"


@pytest.mark.long
def test_the_last_lines_of_a_converter_that_fails_are_shown(
    organ: OrganCommand, registry: LocalRegistry, tmp_path: Path
) -> None:
    folder = safetensors_model(tmp_path / "model")
    failing = program(tmp_path, "sys.exit('x' * 9000 + '\\nModel LlavaForBoth is not supported')")
    ended = organ("ingest", "--convert", folder, environment={"CONVERT_HF_TO_GGUF": str(failing)})
    assert ended.status == 1
    assert "failed with the status 1: " in ended.err
    assert ended.err.endswith("Model LlavaForBoth is not supported\n")
    assert len(ended.err) < 6000
    silent = program(tmp_path, "")
    ended = organ("ingest", "--convert", folder, environment={"CONVERT_HF_TO_GGUF": str(silent)})
    assert "wrote no file: it printed nothing" in ended.err
    assert list(registry.settings.spool.iterdir()) == []


def test_convert_needs_a_converter_and_one_folder_with_a_model(organ: OrganCommand, tmp_path: Path) -> None:
    folder = safetensors_model(tmp_path / "model")
    nowhere = {"PATH": str(tmp_path), "CONVERT_HF_TO_GGUF": ""}
    missing = organ("ingest", "--convert", folder, environment=nowhere)
    assert (missing.status, missing.out) == (1, "")
    assert "no convert_hf_to_gguf.py in PATH: install llama.cpp, or set CONVERT_HF_TO_GGUF" in missing.err
    absent = organ("ingest", "--convert", folder, environment={"CONVERT_HF_TO_GGUF": str(tmp_path / "absent.py")})
    assert absent.status == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    path = program(tmp_path, "")
    refused = organ("ingest", "--convert", empty, environment={"CONVERT_HF_TO_GGUF": str(path)})
    assert "no model in safetensors files to convert" in refused.err
