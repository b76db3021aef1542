"""Blobs as files in a local folder: `ab/<sha256>.<nonce>`. After a crash each file is either complete or absent."""

from __future__ import annotations

import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from organs.registry.digest import Digest
from organs.registry.errors import Busy, CorruptBlob, DiskFull
from organs.registry.store.backend import FileVersion, StrayFile, checked_name, is_physical, new_file_name
from organs.registry.store.files import (
    PRIVATE_FILE,
    AlignedBuffers,
    Buffer,
    DirectWriter,
    Files,
    copy_bytes,
    lock_file,
    make_durable_folder,
    translating,
)

FREE_MARGIN_BYTES = 16 * 1024 * 1024
"""Bytes that stay free on the disk for the database and other programs."""


class BlobFolder:
    """The blob files below one folder. It implements `BlobBackend`."""

    is_remote = False

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.root = root
        self.files = files or Files()
        self.buffers = AlignedBuffers()
        self._temporary = root / "tmp"
        self._durable: set[Path] = set()
        """Folders that this process knows to be durable."""
        self._making_folder = threading.Lock()

    def prepare(self) -> None:
        """Create the folders, durably; raises StoreUnwritable."""
        with translating(self.root), self._making_folder:
            if not self._temporary.is_dir():
                make_durable_folder(self.files, self.root)
                # It is created last: if it exists, the root is durable, even if a process was killed in between.
                self.files.make_folder(self._temporary)

    def is_prepared(self) -> bool:
        """Return whether the folder was prepared for blobs. The folder of an unmounted disk is not prepared."""
        return self._temporary.is_dir()

    def begin(self, digest: Digest, expected_bytes: int, front_bytes: int = 0) -> PendingFile:
        """Create a temporary file that will become the blob `digest`; raises DiskFull if it does not fit.

        The first `front_bytes` of the file are written last.
        """
        self.prepare()
        with translating(self.root):
            free = self.files.free_bytes(self.root)
        if free < expected_bytes + FREE_MARGIN_BYTES:
            needed = f"{expected_bytes / 1e6:.1f} MB and a reserve of {FREE_MARGIN_BYTES / 1e6:.0f} MB are needed"
            raise DiskFull(f"the disk of {self.root} has {free / 1e6:.1f} MB free: {needed}")
        return PendingFile(self, digest, front_bytes)

    def open(self, file: str) -> StoredFile:
        """Open the file with the physical name `file`; raises MissingBlob, CorruptBlob."""
        path = self.path(file)
        with translating(path):
            return StoredFile(self.files, path, self.files.open_to_read(path))

    def remove(self, name: str) -> None:
        """Remove the file of no row, if it still exists. A folder with this name stays: the store did not create it.

        Raises CorruptBlob if `name` is neither a physical name nor the name of a temporary file.
        """
        folder, _, rest = name.partition("/")
        is_temporary = folder == self._temporary.name and "/" not in rest and rest not in ("", ".", "..")
        path = self.root / name if is_temporary else self.path(name)
        with translating(path):
            try:
                self.files.unlink(path)
            except FileNotFoundError:
                return
            except OSError:
                if path.is_symlink() or not path.is_dir():
                    raise

    def path(self, file: str) -> Path:
        """Return the path of the physical name `file`; raises CorruptBlob for another text."""
        return self.root / checked_name(file)

    def size_of(self, file: str) -> int | None:
        """Return the size of the file `file`; None if it does not exist or is not a regular file."""
        try:
            descriptor = self.files.open_to_read(self.path(file))
        except (OSError, CorruptBlob):
            return None
        try:
            return self.files.size(descriptor)
        finally:
            self.files.close(descriptor)

    def write(self, file: str, size_bytes: int, pieces: Iterator[Buffer]) -> None:
        """Write the whole file `file`, sync it, and rename it to its name."""
        path = self.path(file)

        def fill(descriptor: int) -> None:
            done = 0
            for piece in pieces:
                done += self.files.write_at(descriptor, [piece], done)
            if done != size_bytes:
                raise CorruptBlob(path.name, f"it ends at byte {done}, {size_bytes} bytes are expected")

        self._write_and_place(path, fill)

    def copy_from(self, source: BlobFolder, file: str, size_bytes: int) -> None:
        """Copy the file `file` of another folder; the system may share the bytes. Raises the errors of `copy_file`."""
        path = source.path(file)
        with translating(path):
            descriptor = source.files.open_to_read(path)
        try:
            actual_bytes = source.files.size(descriptor)
            if actual_bytes != size_bytes:
                raise CorruptBlob(path.name, f"{actual_bytes} bytes are stored, the catalog says {size_bytes}")

            def fill(copy: int) -> None:
                done = copy_bytes(descriptor, copy, 0, size_bytes)
                if done < size_bytes:
                    raise CorruptBlob(path.name, f"it ends at byte {done}, {size_bytes} bytes are expected")

            self._write_and_place(self.path(file), fill)
        finally:
            source.files.close(descriptor)

    def uncached(self) -> BlobFolder:
        """Return this folder: it has no cache."""
        return self

    def _write_and_place(self, path: Path, fill: Callable[[int], None]) -> None:
        """Create a temporary file, let `fill` write to its descriptor, sync it and rename it to `path`."""
        files = self.files
        temporary = self._temporary / f"{path.name}.{secrets.token_hex(4)}"
        with translating(path):
            try:
                descriptor = files.create(temporary)
                try:
                    fill(descriptor)
                    files.make_read_only(descriptor)
                    files.sync(descriptor)
                finally:
                    files.close(descriptor)
                self.make_folder_of(path)
                files.rename(temporary, path)
                files.sync_folder(path.parent)
            except BaseException:
                with suppress(OSError):  # it was renamed already, or never created
                    files.unlink(temporary)
                raise

    def walk(self) -> Iterator[StrayFile]:
        """Yield every file of the store, including temporary files. Files may be created and removed meanwhile."""
        with translating(self.root):
            for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
                if not folder.is_dir() or folder.is_symlink():
                    continue
                for path in sorted(folder.iterdir()):
                    name = f"{folder.name}/{path.name}"
                    file = name if is_physical(name) else None
                    if not file and folder != self._temporary:
                        continue
                    try:
                        status = path.lstat()
                    except FileNotFoundError:
                        continue  # a writer has placed or discarded it since the folder was listed
                    if not stat.S_ISDIR(status.st_mode):
                        yield StrayFile(name, file, status.st_mtime, status.st_size)

    @contextmanager
    def sweeping(self) -> Iterator[None]:
        """Lock the store for one sweep; the lock ends with the process. Raises Busy, StoreUnwritable."""
        self.prepare()
        path = self.root / "sweep.lock"
        with translating(path):
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
        try:
            lock_file(lock, path, Busy("another sweep of this store is running"))
            yield
        finally:
            os.close(lock)

    def make_folder_of(self, path: Path) -> None:
        """Create the folder of `path`, durably."""
        with self._making_folder:
            if path.parent in self._durable:
                return
            # This is also done for an existing folder: its creator may have died before the folder was durable.
            self.files.make_folder(path.parent)
            self.files.sync_folder(self.root)
            self._durable.add(path.parent)


class PendingFile:
    """A blob file that is being written in order. `place` makes it durable and visible."""

    def __init__(self, store: BlobFolder, digest: Digest, front_bytes: int) -> None:
        self._store = store
        self._files = store.files
        self.file = new_file_name(digest)
        self._path = store.root / "tmp" / self.file.partition("/")[2]
        with translating(self._path):
            self._descriptor = self._files.create_direct(self._path)
        self._writer = DirectWriter(self._files, self._descriptor, store.buffers, front_bytes)

    def append(self, pieces: Sequence[Buffer]) -> None:
        """Append `pieces`."""
        with translating(self._path):
            self._writer.append(pieces)

    def place(self, front: bytes = b"") -> str:
        """Write the front, sync, rename, sync the folder; return the physical name. A power cut then loses nothing."""
        target = self._store.root / self.file
        with translating(target):
            self._writer.finish(front)
            self._files.make_read_only(self._descriptor)
            self._files.sync(self._descriptor)
            self._store.make_folder_of(target)
            self._files.rename(self._path, target)
            self._path = target
            self._files.sync_folder(target.parent)
            self._close()
        return self.file

    def discard(self) -> None:
        """Remove the temporary file. It is called after any error and is safe to call twice."""
        self._writer.close()
        # If this fails, a sweep will remove the file; the first error is more important.
        with suppress(OSError):
            self._close()
        with suppress(OSError):
            self._files.unlink(self._path)

    def _close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._files.close(descriptor)


def open_stored(path: Path) -> StoredFile:
    """Open a file for reads from several threads; raises OSError."""
    return StoredFile(Files(), path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))


class StoredFile:
    """The open file of a blob, for reads from several threads."""

    def __init__(self, files: Files, path: Path, descriptor: int) -> None:
        self._files = files
        self._path = path
        self._descriptor = descriptor
        try:
            self.size_bytes = files.size(descriptor)
        except OSError:
            self.close()
            raise

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`; raises CorruptBlob if the file is shorter."""
        with translating(self._path):
            data = self._files.read_at(self._descriptor, offset, size)
        if len(data) != size:
            raise CorruptBlob(
                self._path.name, f"it ends at byte {offset + len(data)}, {offset + size} bytes are expected"
            )
        return data

    @property
    def version(self) -> FileVersion:
        """The name of the file, its inode and the times of its last change: it changes with every write."""
        with translating(self._path):
            return self._path.name, *self._files.version(self._descriptor)

    def drop_cached(self, offset: int, size: int) -> bool:
        """Return False: nothing is cached."""
        return False

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
