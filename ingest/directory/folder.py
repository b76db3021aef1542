"""Files below an open folder, read by checked relative paths; and folders written completely or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from organs.ingest.directory.layout import FOLDERS, FORMAT, MANIFEST_FILE, ORGAN_SUFFIX, path_segments
from organs.ingest.files import FileIdentity
from organs.registry.errors import BadSource
from organs.registry.store.files import (
    PUBLIC_FILE,
    PUBLIC_FOLDER,
    Buffer,
    Files,
    check_room,
    placing_error,
    temporary_beside,
)

OPEN_FILES_MAX = 64
"""Limit of open files: a model can have thousands of tensors, a process often only 1,024 descriptors."""
PEEK_BYTES = 1024

_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY


@dataclass(slots=True)
class _Open:
    descriptor: int
    readers: int = 0


class Folder:
    """An organ directory that is open for reads from several threads. A context manager.

    A file must not change after its first use.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder `path`; raises BadSource."""
        self.path = path
        self.identities: dict[str, FileIdentity] = {}
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, _Open] = OrderedDict()
        try:
            self._descriptor = os.open(path, _FOLDER)
        except OSError as error:
            raise BadSource(f"{path}: {error.strerror}") from error

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def size_bytes(self, file: str) -> int:
        """Return the size of `file`; raises BadSource for anything but a regular file, and for links."""
        with self._borrow(file):
            return self.identities[file].size_bytes

    def is_missing(self, file: str) -> bool:
        """Return whether nothing is at the path `file`; False for anything that is no regular file."""
        try:
            with self._parent(file) as (parent, name):
                os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            return error.errno == errno.ENOENT
        return False

    def read_at(self, file: str, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes of `file`; raises BadSource if it is shorter."""
        data = bytearray(size)
        self.read_into(file, memoryview(data), offset)
        return bytes(data)

    def read_into(self, file: str, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset` of `file`; raises BadSource if it is shorter."""
        done = 0
        with self._borrow(file) as descriptor:
            while done < len(buffer):
                try:
                    read = os.preadv(descriptor, [buffer[done:]], offset + done)
                except OSError as error:
                    raise BadSource(f"{self.path / file}: {error.strerror} at byte {offset + done}") from error
                if not read:
                    raise BadSource(
                        f"{self.path / file}: ends at byte {offset + done}, shorter than when it was opened"
                    )
                done += read

    def check_unchanged(self, file: str) -> None:
        """Raise BadSource if `file` was written or replaced since its first use."""
        try:
            with self._parent(file) as (parent, name):
                now = FileIdentity.of(os.stat(name, dir_fd=parent, follow_symlinks=False))
        except OSError as error:
            raise BadSource(f"{self.path / file}: removed while it was read: {error.strerror}") from error
        if now != self.identities[file]:
            raise BadSource(f"{self.path / file}: changed while it was read; nothing was registered")

    def organ_files(self) -> Iterator[str]:
        """Yield the files in the folders of organs whose names are those of organ files."""
        for folder in FOLDERS.values():
            try:
                with os.scandir(self.path / folder) as entries:
                    names = [entry.name for entry in entries if entry.name.lower().endswith(ORGAN_SUFFIX)]
            except OSError:
                continue  # absent; files that the manifest names in it are reported as missing
            yield from (f"{folder}/{name}" for name in sorted(names))

    def close(self) -> None:
        """Close all descriptors; safe to call twice."""
        with self._lock:
            for item in self._opened.values():
                os.close(item.descriptor)
            self._opened.clear()
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    @contextmanager
    def _borrow(self, file: str) -> Iterator[int]:
        """Yield a descriptor of `file` that stays open inside the block."""
        with self._lock:
            item = self._opened.get(file)
            if item is None:
                item = self._opened[file] = _Open(self._open(file))
            self._opened.move_to_end(file)
            item.readers += 1
            self._close_idle()
        try:
            yield item.descriptor
        finally:
            with self._lock:
                item.readers -= 1

    def _close_idle(self) -> None:
        for file, item in list(self._opened.items())[: max(0, len(self._opened) - OPEN_FILES_MAX)]:
            if not item.readers:
                os.close(item.descriptor)
                del self._opened[file]

    def _open(self, file: str) -> int:
        try:
            with self._parent(file) as (parent, name):
                # Before opening: opening a FIFO blocks, opening a device may act.
                self._refuse_irregular(file, os.stat(name, dir_fd=parent, follow_symlinks=False))
                descriptor = os.open(name, _FILE, dir_fd=parent)
        except OSError as error:
            raise BadSource(f"{self.path / file}: {error.strerror}") from error
        try:
            status = os.fstat(descriptor)
            self._refuse_irregular(file, status)
            if self.identities.setdefault(file, FileIdentity.of(status)) != FileIdentity.of(status):
                raise BadSource(f"{self.path / file}: changed while it was read; nothing was registered")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _refuse_irregular(self, file: str, status: os.stat_result) -> None:
        if stat.S_ISLNK(status.st_mode):
            raise BadSource(f"{self.path / file}: a symbolic link; links are not followed")
        if not stat.S_ISREG(status.st_mode):
            raise BadSource(f"{self.path / file}: not a regular file")

    @contextmanager
    def _parent(self, file: str) -> Iterator[tuple[int, str]]:
        """Open the folder of `file` without following links; yield its descriptor, and the file's name in it."""
        *folders, name = path_segments(file)
        with ExitStack() as opened:
            parent = self._descriptor
            for folder in folders:
                parent = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
                opened.callback(os.close, parent)
            yield parent, name


def is_organ_directory(path: Path) -> bool:
    """Return whether the folder `path` has a manifest, and folders of organs or the format of this program."""
    if not os.path.lexists(path / MANIFEST_FILE):
        return False
    return any((path / folder).is_dir() for folder in FOLDERS.values()) or says_its_format(path)


def says_its_format(path: Path) -> bool:
    """Return whether the manifest in the folder `path` begins with the format of this program."""
    with suppress(OSError):
        descriptor = os.open(path / MANIFEST_FILE, _FILE)
        try:
            return stat.S_ISREG(os.fstat(descriptor).st_mode) and f'"{FORMAT}"'.encode() in os.read(
                descriptor, PEEK_BYTES
            )
        finally:
            os.close(descriptor)
    return False


SYNCERS = 4
WAITING_MAX = 64
"""Limit of written files that wait for the disk, each with an open descriptor."""


class Staging:
    """A folder that is written under a temporary name beside its target."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self._syncers = ThreadPoolExecutor(SYNCERS, thread_name_prefix="sync")
        self._slots = threading.Semaphore(WAITING_MAX)
        self._syncing: list[Future[None]] = []
        self._folders = [path]

    def make_folder(self, name: str) -> None:
        """Create a folder inside."""
        self._files.make_folder(self.path / name, PUBLIC_FOLDER)
        self._folders.append(self.path / name)

    @contextmanager
    def new_file(self, name: str) -> Iterator[StagedFile]:
        """Yield a new file, written from front to back; it is synced to the disk after the block."""
        descriptor = self._files.create(self.path / name, PUBLIC_FILE)
        try:
            yield StagedFile(descriptor, self._files)
        except BaseException:
            self._files.close(descriptor)
            raise
        self._slots.acquire()
        self._syncing.append(self._syncers.submit(self._sync, descriptor))

    def finish(self) -> None:
        """Write all content to the disk."""
        for future in self._syncing:
            future.result()
        for folder in reversed(self._folders):
            self._files.sync_folder(folder)

    def close(self) -> None:
        """Wait for the threads."""
        self._syncers.shutdown()

    def _sync(self, descriptor: int) -> None:
        try:
            try:
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
        finally:
            self._slots.release()


class StagedFile:
    """A file that is written from front to back."""

    def __init__(self, descriptor: int, files: Files) -> None:
        self.size_bytes = 0
        self._descriptor = descriptor
        self._files = files

    def write(self, *pieces: Buffer) -> None:
        """Append `pieces`."""
        self.size_bytes += self._files.write_at(self._descriptor, pieces, self.size_bytes)


@contextmanager
def staged(target: Path, size_bytes: int, *, replace: bool, files: Files | None = None) -> Iterator[Staging]:
    """Yield a folder to fill, which becomes `target` at the end of the block; an error removes it.

    With `replace`, an existing organ directory of this format is replaced; an empty folder is always replaced. Raises
    BadSource for anything else at `target`, DiskFull if `size_bytes` do not fit, StoreUnwritable.
    """
    files = files or Files()
    check_target(target, replace=replace)
    temporary = temporary_beside(target)
    try:
        check_room(target.parent, size_bytes, files)
        files.make_folder(temporary, PUBLIC_FOLDER)
        staging = Staging(temporary, files)
        try:
            yield staging
            staging.finish()
        finally:
            staging.close()
        check_target(target, replace=replace)  # it may exist by now
        _place(temporary, target, files)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise placing_error(error, target) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def check_target(target: Path, *, replace: bool) -> None:
    """Raise BadSource for an existing target, as `staged` does."""
    if not target.parent.is_dir():
        raise BadSource(f"{target.parent}: no such folder")
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise BadSource(f"{target}: exists, and is not a folder")
    if any(target.iterdir()):
        if not says_its_format(target):  # stricter than for reading: the old folder is deleted
            raise BadSource(f"{target}: a folder with other content; choose a new one")
        if not replace:
            raise BadSource(f"{target}: already exists; --force replaces it")


def _place(temporary: Path, target: Path, files: Files) -> None:
    old = None
    if target.is_dir() and any(target.iterdir()):
        old = target.parent / f".organ-{secrets.token_hex(8)}.old"
        files.rename(target, old)
    try:
        files.rename(temporary, target)
    except OSError:
        if old is not None:
            with suppress(OSError):  # another program wrote the target; the old folder is beside it
                files.rename(old, target)
        raise
    files.sync_folder(target.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
