"""The one model of a path, as commands find and ingest it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from organs.ingest.service import IngestReport, ingest_model
from organs.ingest.sources import ModelSource, find_sources
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name


def source_of(path: Path) -> ModelSource:
    (source,) = find_sources([str(path)])
    return source


def ingest_path(registry: LocalRegistry, path: Path, name: str | None = None, **options: Any) -> IngestReport:
    """Ingest the model at `path`, under `name` or its own name; `options` are those of `ingest_model`."""
    return ingest_model(registry, source_of(path), None if name is None else parse_model_name(name), **options)
