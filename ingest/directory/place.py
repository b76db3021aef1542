"""A virtual file onto the disk: it appears under its name whole, checked and durable, or not at all."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ingest.buffers import BUFFER_BYTES
from ingest.directory.virtual import VirtualFile
from registry.digest import Digest
from registry.errors import DiskFull
from registry.store.files import Files, translated

Progress = Callable[[int], None]


def place_virtual(
    file: VirtualFile, path: Path, progress: Progress | None = None, files: Files | None = None
) -> Digest:
    """Write `file` to `path`, replacing what is there; its SHA-256.

    Raises BadSource when the folder changes meanwhile, DiskFull, StoreUnwritable; then `path` is as it was.
    """
    files = files or Files()
    temporary = path.parent / f".organ-{secrets.token_hex(8)}.part"
    try:
        free = files.free_bytes(path.parent)
        if free < file.size_bytes:
            raise DiskFull(f"the disk of {path.parent} is full: {file.size_bytes} bytes wanted, {free} free")
        descriptor = files.create(temporary)
        try:
            digest = _write(file, files, descriptor, progress)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        file.check_unchanged()
        files.rename(temporary, path)
        files.sync_folder(path.parent)
    except OSError as error:
        _forget(files, temporary)
        raise translated(error, path) from error
    except BaseException:
        _forget(files, temporary)
        raise
    return digest


def _write(file: VirtualFile, files: Files, descriptor: int, progress: Progress | None) -> Digest:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(BUFFER_BYTES, file.size_bytes)))
    for begin in range(0, file.size_bytes, BUFFER_BYTES):
        view = buffer[: min(BUFFER_BYTES, file.size_bytes - begin)]
        file.read_into(view, begin)
        digest.update(view)
        files.write_at(descriptor, [view], begin)
        if progress is not None:
            progress(len(view))
    return Digest(digest.hexdigest())


def _forget(files: Files, temporary: Path) -> None:
    with suppress(OSError):  # never made, placed already, or gone with the disk; the first error tells what happened
        files.unlink(temporary)
