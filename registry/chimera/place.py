"""A planned file onto the disk: it appears under its name whole, checked and durable, or not at all."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path

from registry.chimera.plan import FilePlan
from registry.chimera.stream import FileStream
from registry.digest import Digest
from registry.errors import CorruptBlob, DiskFull
from registry.store import BlobStore
from registry.store.files import Files, translated

Progress = Callable[[int], None]


def place_file(
    store: BlobStore, plan: FilePlan, path: Path, progress: Progress | None = None, files: Files | None = None
) -> Digest:
    """Write the file that `plan` describes to `path`, replacing what is there; its SHA-256.

    Raises CorruptBlob or MissingBlob when a blob fails, DiskFull, StoreUnwritable; then `path` is as it was.
    """
    files = files or Files()
    temporary = path.parent / f".organ-{secrets.token_hex(8)}.part"  # the file's own name may be as long as any can be
    try:
        free = files.free_bytes(path.parent)
        if free < plan.size_bytes:
            raise DiskFull(f"the disk of {path.parent} is full: {plan.size_bytes} bytes wanted, {free} free")
        descriptor = files.create(temporary)
    except OSError as error:
        raise translated(error, path) from error
    try:
        try:
            digest = _write(store, plan, files, descriptor, progress)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(temporary, path)
        files.sync_folder(path.parent)
    except OSError as error:
        _forget(files, temporary)
        raise translated(error, path) from error
    except BaseException:
        _forget(files, temporary)
        raise
    return digest


def _write(store: BlobStore, plan: FilePlan, files: Files, descriptor: int, progress: Progress | None) -> Digest:
    files.truncate(descriptor, plan.size_bytes)  # zeros, wherever nothing else is written

    def write(offset: int, view: memoryview) -> None:
        files.write_at(descriptor, [view], offset)

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


def _forget(files: Files, temporary: Path) -> None:
    try:
        files.unlink(temporary)
    except OSError:
        return  # never placed, or gone with the disk; the first error tells what happened
