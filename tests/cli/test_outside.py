"""`organ install`, `uninstall`, `reclaim`, `restore` and `run`, as a user calls them one after another."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from organs.registry import input_files
from tests.cli.in_process import OrganCommand
from tests.cli.test_scan import EMPTY
from tests.ingest.tool_layouts import ollama_layer, ollama_manifest, put
from tests.ingest.tool_readers import read_ollama
from tests.small_models import small_model

SETTLED = 0.06
"""After so many seconds, a file's times show each change."""


def test_a_model_goes_from_ollama_and_back_and_the_disk_is_free_meanwhile(
    organ: OrganCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "user"
    ollama = home / ".ollama" / "models"
    for name, value in (EMPTY | {"HOME": str(home)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(input_files, "SETTLED_NS", 0)  # the files are new, and are to be remembered
    layers = [ollama_layer(ollama, "model", small_model()), ollama_layer(ollama, "template", b"{{ .Prompt }}")]
    ollama_manifest(ollama, "registry.ollama.ai/library/tiny/latest", *layers)
    plain = put(home / "models" / "other.gguf", small_model(seed=2))

    time.sleep(SETTLED)
    organ.done("ingest", "--ollama")
    planned = organ.done("install", "library/tiny", "--to", "ollama", "--as", "me/copy", "--dry-run")
    assert planned.lines[-1].startswith("library/tiny@1: would be in Ollama as me/copy:latest; ")
    assert len(read_ollama(ollama)) == 1
    done = organ.done("install", "library/tiny", "--to", "ollama", "--as", "me/copy")
    assert done.err == "run it: ollama run me/copy:latest\n"
    first, second = read_ollama(ollama).values()
    assert (first.model, first.template) == (second.model, second.template)
    scanned = organ.done("scan")
    assert ["library/tiny@1", "Ollama", "me/copy:latest"] in [line.split() for line in scanned.lines]
    assert "did you mean library/tiny?" in organ("uninstall", "library/tinny").err
    organ.done("uninstall", "library/tiny", "--from", "ollama")
    assert len(read_ollama(ollama)) == 1

    listed = organ("reclaim", "--ollama", home / "models")
    assert (listed.status, plain.is_file()) == (0, True)
    assert {line.split()[-1] for line in listed.lines[1:3]} == {"yet", "library/tiny@1"}
    kept = organ.done("reclaim", "--ollama", home / "models", "--keep", "1G", "--json").values
    assert (kept["removable"], len(kept["stays"])) == ([], 2)
    organ.done("reclaim", "--ollama", home / "models", "--yes")
    assert (read_ollama(ollama), plain.exists()) == ({}, False)
    assert any(line.startswith("2 models were reclaimed") for line in organ.done("scan").lines)
    assert organ("admin", "remove", "local/other", "--reason", "x", "-y").status == 5

    capfd.readouterr()
    assert organ("run", "other", "--", "cmp", "{}", put(tmp_path / "expected", small_model(seed=2))).status == 0
    assert organ("run", "--keep", "1G", "other", "sh", "-c", "exit 7", "{}").status == 7
    path = Path(organ.done("run", "other").lines[0])
    assert path.read_bytes() == small_model(seed=2)

    assert organ.done("storage", "--json").values["run_files_bytes"] == len(small_model(seed=2))
    assert "files that organ run keeps" in organ.done("storage").out

    listed = organ.done("restore", "--dry-run", "--json")
    assert [one["tool"] for one in listed.values["items"]] == ["ollama", ""], "what was stored first"
    organ.done("restore", "other")
    assert (plain.read_bytes(), read_ollama(ollama)) == (small_model(seed=2), {})
    organ.done("restore")
    assert read_ollama(ollama).keys() == {"registry.ollama.ai/library/tiny:latest"}
    plain.write_bytes(b"another")
    organ.done("restore")
