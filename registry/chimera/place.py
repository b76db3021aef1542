"""A planned file onto the disk: it appears under its name whole, checked and durable, or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from organs.registry.chimera.plan import FilePlan
from organs.registry.chimera.stream import FileStream
from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob
from organs.registry.store import BlobStore
from organs.registry.store.files import (
    Files,
    UnplacedFile,
    placed,
)

Progress = Callable[[int], None]


def place_file(
    store: BlobStore, plan: FilePlan, path: Path, progress: Progress | None = None, files: Files | None = None
) -> Digest:
    """Write the file that `plan` describes to `path`, replacing what is there; its SHA-256.

    Raises CorruptBlob or MissingBlob when a blob fails, DiskFull, StoreUnwritable; then `path` is as it was.
    """
    with placed(path, plan.size_bytes, files) as file:
        return _write(store, plan, file, progress)


def _write(store: BlobStore, plan: FilePlan, file: UnplacedFile, progress: Progress | None) -> Digest:
    file.truncate(plan.size_bytes)

    def write(offset: int, view: memoryview) -> None:
        file.write_at(view, offset)

    digest = hashlib.sha256()
    with FileStream(store, plan, write) as stream:
        for view in stream:
            digest.update(view)
            if progress is not None:
                progress(len(view))
    found = Digest(digest.hexdigest())
    if plan.sha256 is not None and found != plan.sha256:
        raise CorruptBlob(plan.name, f"its SHA-256 would be {found}, {plan.sha256} is due; nothing was written")
    return found
