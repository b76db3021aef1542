"""The system calls of the store, which tests can record and make fail, and files that are written atomically."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob, DiskFull, MissingBlob, OrganError, StoreError, StoreUnwritable
from organs.registry.progress import Progress, no_progress
from organs.registry.store.memory import own_memory

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""Errors of file systems without hard links."""
_UNWRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}

Buffer = bytes | bytearray | memoryview

PRIVATE_FOLDER, PRIVATE_FILE, PRIVATE_BLOB = 0o700, 0o600, 0o400
"""Modes of files of a registry: other users of the machine must not read submissions before publication."""
LEFT_SECONDS, LEFT_FOLDER_SECONDS = 2, 60
"""A temporary file, or folder, that is older and not locked was left by a killed process."""
KEPT_SECONDS = 7 * 24 * 3600
"""How long the copy of an interrupted fetch stays, and the folder of a killed process where folders have no locks."""
PUBLIC_FOLDER, PUBLIC_FILE = 0o777, 0o644
"""Modes of files that are written to a path of the user; the umask applies to them."""


class Files:
    """Thin wrappers of `os`. Every method may raise OSError, which `translated` turns into errors of this project."""

    def make_folder(self, path: Path, mode: int = PRIVATE_FOLDER) -> None:
        """Create `path`, and missing parents with the default mode."""
        path.mkdir(mode, parents=True, exist_ok=True)

    def create(self, path: Path, mode: int = PRIVATE_FILE) -> int:
        """Create a file and open it for writing and reading; it must not exist."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, mode)

    def create_direct(self, path: Path, mode: int = PRIVATE_FILE) -> int:
        """Create a file for writes that bypass the page cache; a plain file if the file system does not allow it."""
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(path, flags | getattr(os, "O_DIRECT", 0), mode)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        # The file may have been created before the flag was refused.
        with suppress(FileNotFoundError):
            os.unlink(path)
        return os.open(path, flags, mode)

    def write_direct(self, descriptor: int, block: Buffer, offset: int) -> None:
        """Write an aligned block to a file of `create_direct`; without O_DIRECT if the file system refuses it."""
        try:
            self.write_at(descriptor, [block], offset)
        except OSError as error:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & getattr(os, "O_DIRECT", 0):
                raise
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            self.write_at(descriptor, [block], offset)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut the file, or fill it with zeros, to `size` bytes."""
        os.ftruncate(descriptor, size)

    def write_at(self, descriptor: int, pieces: Sequence[Buffer], offset: int) -> int:
        """Write all `pieces` from `offset` on; return the number of bytes."""
        total = sum(len(piece) for piece in pieces)
        done = os.pwritev(descriptor, pieces, offset)
        while done < total:  # a signal or a nearly full disk can end a write early
            rest = memoryview(b"".join(pieces))[done:]
            done += os.pwrite(descriptor, rest, offset + done)
        return total

    def make_read_only(self, descriptor: int) -> None:
        """Set the mode 0400: a blob never changes."""
        os.fchmod(descriptor, PRIVATE_BLOB)

    def sync(self, descriptor: int) -> None:
        """Wait until the bytes are on disk."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def name_new(self, source: Path, target: Path) -> None:
        """Rename `source`, or raise FileExistsError if something is at `target`, also if it came at this moment."""
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(target):  # such a file system has no atomic way
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
            os.rename(source, target)
        else:
            os.unlink(source)

    def sync_folder(self, path: Path) -> None:
        """Wait until the names in `path` are on disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def open_to_read(self, path: Path) -> int:
        """Open the file of a blob. It must be a regular file with one name; links and devices are refused."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(descriptor)
            raise CorruptBlob(path.name, "its path is not a regular file of the store")
        return descriptor

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def version(self, descriptor: int) -> tuple[int, int, int]:
        """Return the inode, and when bytes and status of the file last changed, in nanoseconds since the epoch.

        The times alone do not tell files apart that were written within one tick of the system's clock (4 to 10 ms).
        """
        status = os.fstat(descriptor)
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns

    def read_at(self, descriptor: int, offset: int, size: int) -> bytes:
        return os.pread(descriptor, size, offset)

    def free_bytes(self, path: Path) -> int:
        """Return the number of free bytes for this user."""
        return shutil.disk_usage(path).free


ALIGNMENT = 4096
"""An alignment that all file systems accept for direct writes."""
BUFFER_BYTES = 4 * 1024 * 1024


class AlignedBuffers:
    """A pool of page-aligned buffers, because the first use of new memory is slow. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[mmap.mmap] = []

    def get(self) -> mmap.mmap:
        """Return a buffer of `BUFFER_BYTES`."""
        with self._lock:
            return self._free.pop() if self._free else own_memory(BUFFER_BYTES)

    def give_back(self, buffer: mmap.mmap) -> None:
        """Return `buffer` to the pool."""
        with self._lock:
            self._free.append(buffer)


class DirectWriter:
    """Writes a file in order; only its first `front_bytes` are written last. Raises OSError as `files` does."""

    def __init__(self, files: Files, descriptor: int, buffers: AlignedBuffers, front_bytes: int) -> None:
        self._files = files
        self._descriptor = descriptor
        self._buffers = buffers
        self._buffer: mmap.mmap | None = buffers.get()
        self._filled = 0
        self._offset = -(-front_bytes // ALIGNMENT) * ALIGNMENT
        """The offset at which the buffer will be written."""
        self._front = bytearray(self._offset)
        self._front_filled = front_bytes

    def append(self, pieces: Sequence[Buffer]) -> None:
        """Write `pieces` one after another."""
        for piece in pieces:
            view = memoryview(piece).cast("B")
            if room := len(self._front) - self._front_filled:
                begin = view[:room]
                self._front[self._front_filled : self._front_filled + len(begin)] = begin
                self._front_filled += len(begin)
                view = view[room:]
            while view:
                view = self._into_buffer(view)

    def finish(self, front: Buffer) -> None:
        """Write the rest, then `front`, which must have `front_bytes` bytes. The caller syncs."""
        self._front[: len(front)] = front
        size = self._front_filled if self._front_filled < len(self._front) else self._offset + self._filled
        if self._filled:
            self._flush()
        self._offset = 0
        rest = memoryview(self._front)
        while rest:
            rest = self._into_buffer(rest)
        if self._filled:
            self._flush()
        self._files.truncate(self._descriptor, size)
        self.close()

    def close(self) -> None:
        """Return the buffer to the pool; safe to call twice."""
        if self._buffer is not None:
            self._buffers.give_back(self._buffer)
            self._buffer = None

    def _into_buffer(self, view: memoryview) -> memoryview:
        assert self._buffer is not None
        piece = view[: BUFFER_BYTES - self._filled]
        self._buffer[self._filled : self._filled + len(piece)] = piece
        self._filled += len(piece)
        if self._filled == BUFFER_BYTES:
            self._flush()
        return view[len(piece) :]

    def _flush(self) -> None:
        assert self._buffer is not None
        padded = -(-self._filled // ALIGNMENT) * ALIGNMENT
        with memoryview(self._buffer) as view, view[:padded] as block:
            self._files.write_direct(self._descriptor, block, self._offset)
        self._offset += self._filled
        self._filled = 0


STEP_BYTES = 64 * 1024 * 1024
PLAIN_STEP_BYTES = 1024 * 1024
_NO_RANGE_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
"""Errors of systems that do not support `copy_file_range`, or not for these files."""


def copy_bytes(source: int, target: int, begin: int, end: int) -> int:
    """Copy bytes to the same place in another file; return `end`, or where the source ended.

    The system copies them if it can, and may share them. Raises OSError.
    """
    position = begin
    has_system_copy = hasattr(os, "copy_file_range")
    while position < end:
        if has_system_copy:
            try:
                copied = os.copy_file_range(source, target, min(STEP_BYTES, end - position), position, position)
            except OSError as error:
                if error.errno not in _NO_RANGE_COPY:
                    raise
                has_system_copy = False
                continue
        else:
            copied = os.pwrite(target, os.pread(source, min(PLAIN_STEP_BYTES, end - position), position), position)
        if copied == 0:
            break
        position += copied
    return position


def make_durable_folder(files: Files, path: Path) -> None:
    """Create `path` and its parents, each on disk before the next one; raises OSError.

    If an earlier process died in between, only its last folder can be lost in a power cut. Therefore the name of the
    last existing folder is synced too. This is skipped if its parent is not readable, because then another user
    created the folder.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    existing = missing[-1].parent if missing else path
    with suppress(PermissionError):
        files.sync_folder(existing.parent)
    for folder in reversed(missing):
        files.make_folder(folder)
        files.sync_folder(folder.parent)


def translated(error: OSError, path: Path) -> OrganError:
    """Return the error of this project for an error of the operating system about `path`."""
    reason = error.strerror or str(error)
    if error.errno in FULL:
        return DiskFull(f"the disk of {path.parent} is full: {reason}")
    if error.errno in _UNWRITABLE:
        return StoreUnwritable(f"no access to {path}: {reason}")
    if error.errno == errno.ENOENT:
        return MissingBlob(f"{path.name} is missing from the store")
    if error.errno == errno.ELOOP:
        return CorruptBlob(path.name, "its path is a symbolic link")
    return StoreError(f"{path}: {reason}")


@contextmanager
def translating(path: Path, error_of: Callable[[OSError, Path], OrganError] = translated) -> Iterator[None]:
    """Raise errors of the operating system about `path` as errors of this project."""
    try:
        yield
    except OSError as error:
        raise error_of(error, path) from error


def lock_file(descriptor: int, path: Path, busy: OrganError) -> None:
    """Lock an open file until it is closed. Each opening has its own lock, so it also excludes other threads.

    Raises `busy` if it is locked, and the error for an error of the operating system.
    """
    with translating(path):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy from error


_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class NewFile:
    """A file of `placed` that is written in order and hashed; `progress` gets the size of what was written."""

    def __init__(self, writer: DirectWriter, progress: Progress) -> None:
        self._writer, self._progress = writer, progress
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._hashed = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: Buffer) -> None:
        """Write the next bytes; another thread writes them while this one hashes them."""
        written = self._writing.submit(self._writer.append, [data])
        self._hashed.update(data)
        written.result()
        self.size_bytes += len(data)
        self._progress(len(data))

    @property
    def sha256(self) -> Digest:
        """SHA-256 of all bytes so far."""
        return Digest(self._hashed.hexdigest())

    def close(self) -> None:
        """End the thread; `sha256` stays."""
        self._writing.shutdown()


@contextmanager
def placed(
    path: Path,
    size_bytes: int,
    files: Files | None = None,
    progress: Progress = no_progress,
    mode: int = PUBLIC_FILE,
    *,
    replaces: bool = True,
    folder: Path | None = None,
) -> Iterator[NewFile]:
    """Return a context manager for a new file at `path`, which the block writes in order, past the page cache.

    It is written in `folder`, by default that of `path`, which must be on the same disk.

    At the end of the block it is synced and renamed to `path`; what is there is replaced, or raises StoreError. If the
    block raises, `path` is unchanged and no other file remains. Raises DiskFull, immediately if `size_bytes` do not
    fit; StoreUnwritable; StoreError. The last step is a sync of the folder. If it fails, the new file may already be
    complete at `path`.
    """
    files = files or Files()
    temporary = temporary_beside(path if folder is None else folder / path.name)
    with translating(path, placing_error):
        try:
            check_room(path.parent, size_bytes, files)
            descriptor = files.create_direct(temporary, mode)
            with suppress(OSError):  # so that `remove_temporaries` sees that it is written
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            writer = DirectWriter(files, descriptor, AlignedBuffers(), 0)
            try:
                with closing(NewFile(writer, progress)) as file:
                    yield file
                writer.finish(b"")
                files.sync(descriptor)
            finally:
                writer.close()
                files.close(descriptor)
            (files.rename if replaces else files.name_new)(temporary, path)
            files.sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):  # never created, placed already, or lost with the disk; the first error is reported
                files.unlink(temporary)
            raise


FICLONE = 0x40049409
"""The request of Linux that makes a file share the bytes of another one (`ioctl_ficlone(2)`)."""


def placed_clone(source: Path, path: Path, sha256: Digest, mode: int = PUBLIC_FILE) -> bool:
    """Place a file at `path` that shares the bytes of `source` (a reflink); return whether that was possible.

    The file system must support it, nothing may be at `path`, and the shared bytes must have the SHA-256 `sha256`.
    Raises StoreError for other errors.
    """
    temporary = temporary_beside(path)
    files = Files()
    with translating(path, placing_error):
        descriptor = files.create(temporary, mode)
        try:
            with source.open("rb") as original:
                fcntl.ioctl(descriptor, FICLONE, original.fileno())
            with open(descriptor, "rb", closefd=False) as copy:
                is_same = hashlib.file_digest(copy, "sha256").hexdigest() == sha256
            if is_same:
                files.sync(descriptor)
                files.name_new(temporary, path)
                files.sync_folder(path.parent)
        except OSError:
            return False  # the caller writes the file, which explains errors
        else:
            return is_same
        finally:
            files.close(descriptor)
            with suppress(FileNotFoundError):
                files.unlink(temporary)


@contextmanager
def folder_for_placing(path: Path, files: Files | None = None) -> Iterator[list[Path]]:
    """Return a context manager that creates the folder `path` and its missing parents, durably.

    The block gets the new folders, the outermost first, and writes files to `path`. At the end, a new folder that is
    empty is removed again. Raises DiskFull, StoreUnwritable, StoreError for the folders, not for errors of the block.
    """
    made: list[Path] = []
    files = files or Files()
    try:
        with translating(path, placing_error):
            try:
                for folder in reversed([folder for folder in (path, *path.parents) if not folder.is_dir()]):
                    made.append(folder)  # before it is created
                    files.make_folder(folder, PUBLIC_FOLDER)
                    files.sync_folder(folder.parent)
            except FileExistsError as error:
                raise StoreUnwritable(f"{made[-1]}: exists, and is not a folder") from error
        yield made
    finally:
        for folder in reversed(made):
            with suppress(OSError):  # it has files, or was never created
                folder.rmdir()


def temporary_beside(path: Path) -> Path:
    """Return a temporary path in the folder of `path`. Its name is short: that of `path` may have maximal length."""
    return path.parent / f".organ-{secrets.token_hex(8)}.part"


def remove_temporaries(folder: Path) -> None:
    """Remove files of `temporary_beside` that killed processes left in `folder`: no process has them locked."""
    latest = time.time() - LEFT_SECONDS
    for path in folder.glob(".organ-*.part"):
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if status.st_mtime < latest:
                path.unlink()


@contextmanager
def temporary_folder(within: Path, prefix: str = "work-") -> Iterator[Path]:
    """Return a context manager for a new folder inside of `within`, which is removed at its end.

    It is locked until then, and folders that killed processes left are removed. Raises StoreUnwritable.
    """
    with translating(within):
        Files().make_folder(within, PRIVATE_FOLDER)
        for other in within.glob(f"{prefix}*"):
            with suppress(OSError):  # another process works in it, or removes it
                _remove_if_left(other)
        folder = TemporaryDirectory(prefix=prefix, dir=within)
    with ExitStack() as lock:
        with suppress(OSError):  # a file system without locks of folders
            lock.enter_context(_locked(Path(folder.name)))
        with folder as path:
            yield Path(path)


def _remove_if_left(folder: Path) -> None:
    """Remove a folder that no process has locked; without locks, an old one. Raises OSError."""
    age = time.time() - folder.lstat().st_mtime
    if age < LEFT_FOLDER_SECONDS:
        return
    try:
        with _locked(folder, fcntl.LOCK_NB):
            shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return
    except OSError:
        if age < KEPT_SECONDS:
            raise
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[None]:
    """Hold the lock of a folder during the block. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(descriptor)


def check_room(folder: Path, size_bytes: int, files: Files) -> None:
    """Raise DiskFull if `size_bytes` do not fit on the disk of `folder`; OSError if it cannot be read."""
    free = files.free_bytes(folder)
    if free < size_bytes:
        raise DiskFull(f"the disk of {folder} is full: {size_bytes} bytes are needed, {free} are free")


def placing_error(error: OSError, path: Path) -> OrganError:
    """Return the error of this project for an error of the operating system while a file was placed at `path`."""
    if error.errno in _NO_FOLDER:
        return StoreUnwritable(f"{path.parent} is not a folder that can be written to: {error.strerror}")
    return translated(error, path)
