"""A file that is put together onto the disk: it appears under its name whole, checked and durable, or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from organs.ingest.buffers import BUFFER_BYTES
from organs.ingest.files import OpenFile
from organs.registry.digest import Digest
from organs.registry.store.files import Files
from organs.registry.store.placing import UnplacedFile, placed

Progress = Callable[[int], None]


def place_virtual(file: OpenFile, path: Path, progress: Progress | None = None, files: Files | None = None) -> Digest:
    """Write `file` to `path`, replacing what is there; its SHA-256.

    Raises BadSource when what it is read from changes meanwhile, DiskFull, StoreUnwritable; then `path` is as it was.
    """
    with placed(path, file.size_bytes, files) as target:
        digest = _write(file, target, progress)
        file.check_unchanged()
        return digest


def _write(file: OpenFile, target: UnplacedFile, progress: Progress | None) -> Digest:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(BUFFER_BYTES, file.size_bytes)))
    for begin in range(0, file.size_bytes, BUFFER_BYTES):
        view = buffer[: min(BUFFER_BYTES, file.size_bytes - begin)]
        file.read_into(view, begin)
        digest.update(view)
        target.write_at(view, begin)
        if progress is not None:
            progress(len(view))
    return Digest(digest.hexdigest())
