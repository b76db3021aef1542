"""Opens the registry that an example works on: the one that is named, or a temporary one with the zoo in it.

A name is a folder, or the address of a registry elsewhere; a folder that is empty gets the zoo too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from organs.ingest.service import ingest_all
from organs.ingest.sources import find_sources
from organs.registry import LocalRegistry, open_registry
from organs.registry.client.remote import RemoteRegistry

ZOO = Path(__file__).resolve().parent / "zoo"


@contextmanager
def opened(arguments: Sequence[str]) -> Iterator[LocalRegistry | RemoteRegistry]:
    """The registry at `arguments[0]`, or without one in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, open_registry(arguments[0] if arguments else folder) as registry:
        if isinstance(registry, LocalRegistry) and not registry.models(limit=1):
            for outcome in ingest_all(registry, find_sources([str(ZOO)])):
                assert outcome.error is None, outcome.error
        yield registry
