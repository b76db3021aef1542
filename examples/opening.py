"""Open the registry for an example: by its folder or its address, or a temporary registry with the models of the zoo.

If the folder has no models, the models of the zoo are ingested into it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from organs.ingest.service import ingest_all
from organs.ingest.sources import find_sources
from organs.registry import LocalRegistry, Registry, open_registry

ZOO = Path(__file__).resolve().parent / "zoo"


@contextmanager
def opened(arguments: Sequence[str]) -> Iterator[Registry]:
    """Open the registry at `arguments[0]`; without it, one in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder, open_registry(arguments[0] if arguments else folder) as registry:
        if isinstance(registry, LocalRegistry) and not registry.models(limit=1):
            for outcome in ingest_all(registry, find_sources([str(ZOO)])):
                assert outcome.error is None, outcome.error
        yield registry
