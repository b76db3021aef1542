"""Tests of organ directories: limits over all files together, and folders of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from organs.ingest.directory import opening
from organs.registry.errors import BadDirectory, BadSource
from tests.ingest.directory_cases import change_manifest, extract_directory, gguf_bytes_of, small_directory
from tests.small_models import small_model


def test_headers_of_all_files_together_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small_directory(tmp_path)

    def name_it_thrice(manifest: dict[str, Any]) -> None:
        (file,) = manifest["files"]
        manifest["files"] = [file, *({**file, "name": f"{number}.gguf"} for number in range(2))]

    header_bytes = (folder / "header.bin").stat().st_size
    monkeypatch.setattr(opening, "HEADERS_MAX_BYTES", 2 * header_bytes)
    assert gguf_bytes_of(folder) == [small_model()]
    change_manifest(folder, name_it_thrice)
    with pytest.raises(BadDirectory, match="the headers of all files take more than"):
        gguf_bytes_of(folder)


def test_a_folder_with_a_foreign_manifest_is_never_replaced(tmp_path: Path) -> None:
    source, project = tmp_path / "a.gguf", tmp_path / "project"
    source.write_bytes(small_model())
    (project / "other").mkdir(parents=True)
    (project / "other" / "thesis.txt").write_text("years")
    (project / "manifest.json").write_text('{"name": "a web application"}')
    for force in (False, True):
        with pytest.raises(BadSource, match="other content"):
            extract_directory(source, project, force=force)
    assert (project / "other" / "thesis.txt").read_text() == "years"
