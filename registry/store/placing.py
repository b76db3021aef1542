"""A file that appears under its name whole and durable, or not at all; and the folder for such files."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from organs.registry.errors import DiskFull, OrganError, StoreUnwritable
from organs.registry.store.files import PUBLIC_FILE, PUBLIC_FOLDER, Buffer, Files, translated

_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class UnplacedFile:
    """The file while it is written, under a name of its own beside its place."""

    def __init__(self, descriptor: int, files: Files) -> None:
        self._descriptor = descriptor
        self._files = files

    def truncate(self, size_bytes: int) -> None:
        """Zeros up to `size_bytes`, wherever nothing else is written."""
        self._files.truncate(self._descriptor, size_bytes)

    def write_at(self, data: Buffer, offset_bytes: int) -> None:
        """Write all of `data` from `offset_bytes` on."""
        self._files.write_at(self._descriptor, [data], offset_bytes)


@contextmanager
def placed(path: Path, size_bytes: int, files: Files | None = None) -> Iterator[UnplacedFile]:
    """A file for the block to write, which then replaces what is at `path`: written, synced, renamed, its name synced.

    A block that raises leaves `path` as it was and nothing beside it. Raises DiskFull, at once when `size_bytes` do
    not fit, StoreUnwritable, StoreError. After an error of the very last sync the file may be there already, whole.
    """
    files = files or Files()
    temporary = temporary_beside(path)
    try:
        check_room(path.parent, size_bytes, files)
        descriptor = files.create(temporary, PUBLIC_FILE)
        try:
            yield UnplacedFile(descriptor, files)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(temporary, path)
        files.sync_folder(path.parent)
    except OSError as error:
        _forget(files, temporary)
        raise placing_error(error, path) from error
    except BaseException:
        _forget(files, temporary)
        raise


@contextmanager
def folder_for_placing(path: Path, files: Files | None = None) -> Iterator[None]:
    """The folder `path` for the block to place files in: made, durable, if it is not there; its parent must be.

    One that was made here is gone again when the block raises and has placed nothing. Raises DiskFull,
    StoreUnwritable, StoreError.
    """
    files = files or Files()
    fresh = not path.is_dir()
    if not path.parent.is_dir():
        raise StoreUnwritable(f"{path.parent}: no such folder")
    try:
        if fresh:
            files.make_folder(path, PUBLIC_FOLDER)
            files.sync_folder(path.parent)
        yield
    except BaseException as error:
        if fresh:
            with suppress(OSError):  # files are in it, or it was never made
                path.rmdir()
        if isinstance(error, OSError):
            raise placing_error(error, path) from error
        raise


def temporary_beside(path: Path) -> Path:
    """A name for what will be at `path`; the name there may itself be as long as any can be."""
    return path.parent / f".organ-{secrets.token_hex(8)}.part"


def check_room(folder: Path, size_bytes: int, files: Files) -> None:
    """Raise DiskFull when `size_bytes` do not fit on the disk of `folder`; OSError when it cannot be looked at."""
    free = files.free_bytes(folder)
    if free < size_bytes:
        raise DiskFull(f"the disk of {folder} is full: {size_bytes} bytes wanted, {free} free")


def placing_error(error: OSError, path: Path) -> OrganError:
    """Our error for what the operating system said while something was brought to `path`."""
    if error.errno in _NO_FOLDER:
        return StoreUnwritable(f"{path.parent} is no folder that can be written to: {error.strerror}")
    return translated(error, path)


def _forget(files: Files, temporary: Path) -> None:
    with suppress(OSError):  # never made, placed already, or gone with the disk; the first error tells what happened
        files.unlink(temporary)
