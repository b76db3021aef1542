"""`organ scan`, and `organ ingest` with the options of other tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.in_process import OrganCommand
from tests.ingest.tool_layouts import lay_out_zoo, ollama_layer, ollama_manifest, put
from tests.small_models import small_model

EMPTY = dict.fromkeys(
    (
        *("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    ),
    "",
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose home is empty."""
    (tmp_path / "user").mkdir()
    return EMPTY | {"HOME": str(tmp_path / "user")}


def test_a_scan_shows_folders_families_copies_and_the_command_that_ingests_them(
    organ: OrganCommand, environment: dict[str, str], tmp_path: Path
) -> None:
    home = tmp_path / "user"
    lay_out_zoo(home)
    ended = organ("scan", environment=environment)
    assert (ended.status, ended.err) == (0, "")
    assert ended.lines[0] == f"Hugging Face: 1 model in {home}/.cache/huggingface/hub"
    assert "Zoo-A-2M: llama, 5 models, 13.1 MB" in ended.lines
    rows = [line.split() for line in ended.lines]
    assert ["zoo/Zoo-A-2M-v1.0", "F16", "4.1", "MB", "Hugging", "Face,", "LM", "Studio"] in rows
    assert ["me/coder-adapter", "adapter", "F32", "447.1", "kB", "Ollama"] in rows
    assert "8 files, 18.6 MB on the disk, 4.1 MB of them are second copies; links to the same bytes save 1.4 MB." in (
        ended.lines
    )
    assert ended.lines[-1] == ("To register them: organ ingest --ollama --lmstudio --llama-cpp --hf-cache --gpt4all")
    assert organ("models", "-q").out == "", "a scan registers nothing"


def test_a_scan_of_a_folder_shows_its_files_as_those_of_tools(
    organ: OrganCommand, environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "my models"
    for name, data in (("tiny", small_model()), ("other/copy", small_model()), ("bad", b"GGUF")):
        put(folder / f"{name}.gguf", data)
    (folder / "linked.gguf").symlink_to("tiny.gguf")
    organ.done("extract", folder / "tiny.gguf", "-o", folder / "organs-of-tiny")
    put(tmp_path / "user" / ".cache" / "gpt4all" / "tiny.gguf", small_model(seed=2))
    ended = organ("scan", folder, environment=environment)
    rows = [line.split("  ") for line in ended.lines]
    assert ended.lines[0] == f"4 models in {folder}"
    (row,) = [[cell.strip() for cell in row if cell] for row in rows if "F16" in " ".join(row)]
    assert row == ["local/linked", "F16", "95.7 kB", f"{folder}, {folder}/other"]
    assert (
        "3 files, 191.5 kB on the disk, 95.7 kB of them are second copies; links to the same bytes save 95.7 kB."
        in (ended.lines)
    )
    assert ended.lines[-1] == f"To register them: organ ingest '{folder}'"
    assert sorted(ended.err.splitlines()) == [
        f"note: 1 model is not in a GGUF file: {folder}/organs-of-tiny",
        f"organ: {folder}/bad.gguf: version at byte 4: the file ends here: 4 bytes are needed, 0 left",
    ]
    both = organ("scan", folder / "tiny.gguf", "--gpt4all", "--read", "--json", environment=environment).values
    assert both["distinct_bytes"] > 0, "of the tensors, which were read"
    assert [(part["tool"], part["models"]) for part in both["folders"] if part["exists"]] == [("", 1), ("gpt4all", 1)]


def test_a_scan_without_models_lists_where_it_searched(
    organ: OrganCommand, environment: dict[str, str], tmp_path: Path
) -> None:
    ended = organ("scan", environment=environment)
    assert ended.status == 0
    assert ended.lines[0] == "No model of these tools was found. Searched:"
    assert f"  {tmp_path}/user/.ollama/models" in ended.lines
    assert ended.lines[-1] == "For any other folder: organ scan FOLDER, organ ingest FOLDER."
    ingested = organ("ingest", "--gpt4all", environment=environment)
    assert ingested.status == 1
    assert "no model of GPT4All on this machine" in ingested.err
    assert f"{tmp_path}/user/.cache/gpt4all: not there" in ingested.err


def test_a_model_that_cannot_be_read_gets_one_sentence_and_the_others_are_ingested(
    organ: OrganCommand, environment: dict[str, str], tmp_path: Path
) -> None:
    models = tmp_path / "user" / ".ollama" / "models"
    ollama_manifest(models, "registry.ollama.ai/library/good/latest", ollama_layer(models, "model", small_model()))
    ollama_manifest(models, "registry.ollama.ai/library/cloud/latest")
    bad = put(models / "manifests" / "registry.ollama.ai" / "library" / "bad" / "latest", b"\x1b[31m{")
    ended = organ("ingest", "--all-tools", environment=environment)
    assert ended.status == 1
    assert ended.out.startswith("library/good@1: 10 tensors")
    assert sorted(ended.err.splitlines()) == [
        "note: Ollama cloud:latest: it has no weights here",
        "organ: Ollama bad:latest: its manifest is not the JSON of a manifest",
    ]
    bad.unlink()
    scanned = organ("scan", environment=environment)
    assert scanned.lines[-1] == "Registered already: 1 of 1 different models."


def test_the_texts_of_ollama_are_shown_with_a_model(
    organ: OrganCommand, environment: dict[str, str], tmp_path: Path
) -> None:
    models = tmp_path / "user" / ".ollama" / "models"
    layers = [ollama_layer(models, "model", small_model()), ollama_layer(models, "template", b"Be \x1b[31mred.\n" * 40)]
    ollama_manifest(models, "registry.ollama.ai/library/tiny/latest", *layers)
    assert organ("ingest", "--ollama", "-q", environment=environment).out == "library/tiny@1\n"
    (line,) = [line for line in organ.done("show", "library/tiny").lines if line.startswith("template ")]
    assert line.startswith("template  Be \\u001b[31mred. Be ")
    assert line.endswith("… (Ollama tiny:latest)")


def test_added_known_and_second_copies_are_counted_and_a_model_is_shown_with_its_other_names(
    organ: OrganCommand, environment: dict[str, str], tmp_path: Path
) -> None:
    models = tmp_path / "user" / ".ollama" / "models"
    ollama_manifest(models, "registry.ollama.ai/library/zoo/latest", ollama_layer(models, "model", small_model()))
    put(tmp_path / "user" / ".lmstudio" / "models" / "acme" / "Zoo-A-GGUF" / "Zoo-A-F16.gguf", small_model())
    put(tmp_path / "files" / "Zoo-A-2M-v1.0-F16.gguf", small_model())
    put(tmp_path / "files" / "other.gguf", small_model(seed=2))
    ended = organ("ingest", "--all-tools", environment=environment)
    assert ended.lines[-1] == "1 model was added; 1 file was a second copy. See: organ models"
    later = organ.done("ingest", tmp_path / "files")
    assert later.lines[-1] == "1 model was added; 1 model was already registered. See: organ models"
    shown = organ.done("show", "zoo:latest")
    assert shown.lines[0].startswith("acme/Zoo-A-F16@1")
    assert "also known as  library/zoo, local/Zoo-A-2M-v1.0-F16" in shown.lines
