"""`organ ingest` and `organ push` with folders of other tools: PEFT adapters, and models in safetensors files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.cli.test_push import run
from tests.cli.test_scan import EMPTY
from tests.ingest.memory_registry import FakeRegistry, fake_registry
from tests.ingest.peft_folders import MODULES, base_config, base_file, write_folder
from tests.ingest.tool_layouts import ollama_layer, ollama_manifest
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


def test_a_peft_folder_is_measured_and_ingested_as_an_adapter(organ: OrganCommand, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "my-lora", base=base_config())
    assert organ.done("measure", "--json", folder).values["tensors_count"] == 2 * len(MODULES)
    first = organ.done("ingest", folder)
    assert first.out.startswith(f"local/my-lora@1: {2 * len(MODULES)} tensors, ")
    assert first.err == "  note: converted from a PEFT folder: 14 modules, rank 4, alpha 8\n"
    assert organ.done("ingest", folder).out == "local/my-lora@1: already registered, nothing added\n"


@pytest.mark.long
def test_the_base_of_a_peft_folder_is_a_registered_model_or_a_path(
    organ: OrganCommand, tmp_path: Path, base: Path
) -> None:
    folder = write_folder(tmp_path / "my-lora", base_model_name_or_path="acme/Unknown")
    refused = organ("ingest", folder)
    assert (refused.status, refused.out) == (1, "")
    assert "name the base: --base MODEL" in refused.err
    organ.done("ingest", "-q", base)
    for given in ("Base", base):
        assert organ.done("ingest", "-q", folder, "--base", given).out == "local/my-lora@1\n"
    planned = organ.done("ingest", "--dry-run", folder, "--base", base)
    assert "my-lora: would be local/my-lora@1, 28 tensors, " in planned.out
    wrong = organ("ingest", base, "--base", "Base")
    assert "--base is for a folder with adapter_config.json" in wrong.err


def test_of_several_folders_an_empty_one_is_named_and_adapters_come_after_their_bases(
    organ: OrganCommand, tmp_path: Path
) -> None:
    for name in ("models", "empty"):
        (tmp_path / name).mkdir()
    folder = write_folder(tmp_path / "models" / "a-lora")
    (tmp_path / "models" / "Little-Base.gguf").write_bytes(base_file())
    ended = organ("ingest", "-q", tmp_path / "empty", folder, tmp_path / "models")
    assert (ended.status, ended.lines) == (1, ["local/Little-Base@1", "local/a-lora@1"])
    reason = "the folder has no GGUF files and no tensors\n"
    assert ended.err.startswith(f"organ: {tmp_path / 'empty'}: nothing to ingest: {reason}")
    ollama = tmp_path / "user" / ".ollama" / "models"
    ollama_manifest(ollama, "registry.ollama.ai/library/tiny/latest", ollama_layer(ollama, "model", base_file()))
    place = EMPTY | {"HOME": str(tmp_path / "user")}
    of_tool = organ("ingest", "-q", "--dry-run", tmp_path / "empty", "--ollama", environment=place)
    assert (of_tool.status, ended.err.startswith(of_tool.err)) == (1, True)
    assert (reason in of_tool.err, of_tool.lines) == (True, ["local/Little-Base@1"]), "which has the same bytes"
    ended = organ("scan", tmp_path / "empty", tmp_path / "models")
    assert (ended.status, ended.lines[0]) == (1, f"1 model in {tmp_path / 'models'}")
    assert f"organ: {tmp_path / 'empty'}: nothing to scan: {reason}" in ended.err


def test_a_pushed_peft_folder_sends_the_adapter_and_names_its_base(
    fake: FakeRegistry, tmp_path: Path, base: Path
) -> None:
    folder = write_folder(tmp_path / "my-lora", base_model_name_or_path="acme/Unknown")
    url = fake.connection.url
    sent = run(tmp_path, url, folder, "--base", base, "--license", "mit")
    assert (sent.status, sent.lines[-1]) == (0, f"{url}/models/me/my-lora@1")
    assert fake.manifests[0]["metadata"] == {"license": "mit"}


def safetensors_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"weights")
    return folder


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
    assert by_variable.out.startswith("local/My-Model@1: 10 tensors, ")
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
    assert list(registry.settings.spool.iterdir()) == []


def test_convert_needs_a_converter_that_writes_a_file_and_a_folder_with_a_model(
    organ: OrganCommand, tmp_path: Path
) -> None:
    folder = safetensors_model(tmp_path / "My Model")
    command = f"python convert_hf_to_gguf.py '{folder}' --outfile My-Model.gguf --outtype auto"
    assert command in organ("ingest", folder).err
    (empty := tmp_path / "empty").mkdir()
    silent = str(program(tmp_path, ""))
    for path, converter, said in (
        (folder, "", "no convert_hf_to_gguf.py in PATH: install llama.cpp, or set CONVERT_HF_TO_GGUF"),
        (folder, str(tmp_path / "absent.py"), "absent.py"),
        (folder, silent, "wrote no file: it printed nothing"),
        (empty, silent, "no model in safetensors files to convert"),
    ):
        environment = {"PATH": str(empty), "CONVERT_HF_TO_GGUF": converter}
        refused = organ("ingest", "--convert", path, environment=environment)
        assert (refused.status, refused.out) == (1, "")
        assert said in refused.err
