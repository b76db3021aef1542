"""Opens the registry that an example works on: the folder that is named, or a temporary one; the zoo in it if empty."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ingest.service import ingest_all
from ingest.sources import find_sources
from registry import Registry

ZOO = Path(__file__).resolve().parent / "zoo"


@contextmanager
def opened(arguments: Sequence[str]) -> Iterator[Registry]:
    """The registry in the folder `arguments[0]`, or without one in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, Registry.open(arguments[0] if arguments else folder) as registry:
        if not registry.models(limit=1):
            for outcome in ingest_all(registry, find_sources([str(ZOO)])):
                assert outcome.error is None, outcome.error
        yield registry
