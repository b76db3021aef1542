"""A blob's file from one store into another, under the same name: there whole and durable, or not at all.

The system copies it, which on file systems that can share bytes (Btrfs, XFS) takes no room. It is never a second name
of the same file: the store takes a file with two names for one that somebody has put into its place.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from organs.registry.errors import CorruptBlob
from organs.registry.store.files import translated
from organs.registry.store.local import LocalStore

STEP_BYTES = 64 * 1024 * 1024
PLAIN_STEP_BYTES = 1024 * 1024
_NOT_HERE = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP}
"""What systems say that cannot copy from file to file by themselves."""


def has_copy(target: LocalStore, file: str, size_bytes: int) -> bool:
    """Whether `target` has that file, and it is a file of that size."""
    try:
        descriptor = target.files.open_to_read(target.path(file))
    except (OSError, CorruptBlob):
        return False
    try:
        return target.files.size(descriptor) == size_bytes
    finally:
        target.files.close(descriptor)


def copy_blob(source: LocalStore, target: LocalStore, file: str, size_bytes: int) -> None:
    """Copy that file, replacing what `target` has of that name.

    Raises MissingBlob, CorruptBlob where it has another size, DiskFull, StoreUnwritable, StoreError.
    """
    path = source.path(file)
    try:
        descriptor = source.files.open_to_read(path)
    except OSError as error:
        raise translated(error, path) from error
    try:
        found = source.files.size(descriptor)
        if found != size_bytes:
            raise CorruptBlob(path.name, f"{found} bytes are stored, the catalog says {size_bytes}")
        _place(descriptor, target, file, size_bytes)
    finally:
        source.files.close(descriptor)


def _place(source: int, target: LocalStore, file: str, size_bytes: int) -> None:
    place, files = target.path(file), target.files
    temporary = target.root / "tmp" / f"{place.name}.{secrets.token_hex(4)}"
    try:
        descriptor = files.create(temporary)
        try:
            _copy_bytes(source, descriptor, size_bytes, place)
            files.make_read_only(descriptor)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        target.make_folder_of(place)
        files.rename(temporary, place)
        files.sync_folder(place.parent)
    except BaseException as error:
        with suppress(OSError):  # placed already, or never made
            files.unlink(temporary)
        if isinstance(error, OSError):
            raise translated(error, place) from error
        raise


def _copy_bytes(source: int, target: int, size_bytes: int, place: Path) -> None:
    done = 0
    by_system = hasattr(os, "copy_file_range")
    while done < size_bytes:
        if by_system:
            try:
                copied = os.copy_file_range(source, target, min(STEP_BYTES, size_bytes - done), done, done)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                by_system = False
                continue
        else:
            copied = os.pwrite(target, os.pread(source, min(PLAIN_STEP_BYTES, size_bytes - done), done), done)
        if copied == 0:
            raise CorruptBlob(place.name, f"it ends at byte {done}, {size_bytes} are due")
        done += copied
