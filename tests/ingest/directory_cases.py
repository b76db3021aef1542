"""Organ directories for tests: created, read and changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from organs.ingest.directory.extract import ExtractReport, extract, file_contents
from organs.ingest.directory.layout import encode_head
from organs.ingest.sources import directory_source, find_sources, open_files
from organs.registry.gguf import TensorSpec
from tests.small_models import small_model

UP = "organs/blk_0_ffn_up.bin"
UP_NAME = "blk.0.ffn_up.weight"


def extract_directory(path: Path, target: Path, **options: Any) -> ExtractReport:
    """Extract the model at `path` into `target`."""
    with ExitStack() as opened:
        (source,) = find_sources([str(path)])
        return extract(file_contents(open_files(opened, source)), target, **options)


def small_directory(folder: Path) -> Path:
    """Create the organ directory of a small model."""
    file = folder / "little.gguf"
    file.write_bytes(small_model())
    extract_directory(file, folder / "little")
    file.unlink()
    return folder / "little"


def gguf_bytes_of(path: Path) -> list[bytes]:
    """Return the GGUF files of an organ directory as bytes."""
    with ExitStack() as opened:
        files = open_files(opened, directory_source(path))
        return [file.source.read_at(0, file.source.size_bytes) for file in files]


def manifest_of(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def write_manifest(folder: Path, values: Any) -> None:
    (folder / "manifest.json").write_text(json.dumps(values), encoding="utf-8")


def change_manifest(folder: Path, change: Callable[[Any], object]) -> None:
    """Apply `change` to the parsed manifest and write it."""
    values = manifest_of(folder)
    change(values)
    write_manifest(folder, values)


def write_organ(path: Path, spec: TensorSpec, data: bytes) -> None:
    """Write the file of a tensor as a simple script would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_head(spec) + data)
