"""Copies of files on servers, fetched one at a time into the folder of the registry.

A copy is removed after its ingest. An interrupted fetch continues: the name of a copy contains the address, the size
and the version of the file, and a copy grows from its beginning in windows. Each window is on disk before the next is
written, so after a power cut only the last window can be wrong; it is fetched again. If the server names neither a
version nor a digest of the file, two answers could be of two versions: then the copy comes from one answer, and an
interrupted fetch begins again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from organs.ingest.urls import RemoteFile
from organs.registry.digest import Digest, digest_of
from organs.registry.errors import BadInput, BadSource, Busy
from organs.registry.gguf.header import range_digest
from organs.registry.input_files import FileSource
from organs.registry.progress import Progress
from organs.registry.store.files import (
    KEPT_SECONDS,
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    Files,
    check_room,
    lock_file,
    translating,
)

if TYPE_CHECKING:
    from organs.registry.client.ranges import RangedFile

PIECE_BYTES = 4 * 1024 * 1024
"""Bytes of one request."""
REQUESTS = 8
"""Requests in parallel, and pieces of a window."""
WINDOW_BYTES = REQUESTS * PIECE_BYTES


@contextmanager
def spooled(
    folder: Path, remote: RemoteFile, file: RangedFile, sha256: Digest | None, progress: Progress
) -> Iterator[FileSource]:
    """Fetch `file`, which is `remote` opened, into `folder`; return a context manager for the open copy.

    The copy is removed at the end of the block, and if it is refused (BadInput); after other errors it stays for the
    next run, if that can continue it. `progress` is called with 0 after each write. Raises BadSource if the file
    changes on the server or does not have the SHA-256 `sha256`, Unreachable, DiskFull, StoreUnwritable, Busy if another
    process fetches the file.
    """
    is_continued = bool(file.version) or sha256 is not None
    address, version = digest_of(remote.url.encode()), f"{file.size_bytes}\n{file.version}\n{sha256}"
    path = folder / f"{address[:32]}.{digest_of(version.encode())[:16]}"
    with translating(path):
        Files().make_folder(folder, PRIVATE_FOLDER)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        lock_file(descriptor, path, Busy(f"{remote}: another process fetches this file: wait until it is done"))
        oldest = time.time() - KEPT_SECONDS
        for other in folder.iterdir():  # copies of earlier versions of the file, and those that nothing has continued
            with suppress(OSError):  # another process removes it
                if other != path and (other.name.startswith(address[:32]) or other.stat().st_mtime < oldest):
                    other.unlink()
        _fetch(descriptor, path, file, progress, is_continued=is_continued)
        with FileSource(path, (Path(remote.name), str(remote))) as copy:
            if sha256 is not None and (found := range_digest(copy, 0, copy.size_bytes)) != sha256:
                raise BadSource(f"{remote}: the fetched bytes have the SHA-256 {found}, but the server states {sha256}")
            yield copy
        _remove(path)
    except BaseException as error:
        if isinstance(error, BadInput) or not is_continued:
            _remove(path)
        raise
    finally:
        os.close(descriptor)


def _fetch(descriptor: int, path: Path, file: RangedFile, progress: Progress, *, is_continued: bool) -> None:
    """Fetch the bytes that are missing in the copy; all bytes with one request unless it is continued."""
    # All windows before the last one are certainly right.
    copied_bytes = min(os.fstat(descriptor).st_size, file.size_bytes) if is_continued else 0
    begin = max(0, (copied_bytes - 1) // WINDOW_BYTES * WINDOW_BYTES)

    def write(offset: int, *pieces: bytes) -> None:
        with translating(path):
            Files().write_at(descriptor, pieces, offset)
            if is_continued:
                os.fsync(descriptor)
        progress(0)

    with translating(path):
        os.ftruncate(descriptor, begin)
        check_room(path.parent, file.size_bytes - begin, Files())
    if not is_continued:
        file.read_all(write)
        return
    with ThreadPoolExecutor(REQUESTS, thread_name_prefix="fetch") as threads:
        for window in range(begin, file.size_bytes, WINDOW_BYTES):
            end = min(window + WINDOW_BYTES, file.size_bytes)
            offsets = range(window, end, PIECE_BYTES)
            pieces = [threads.submit(file.read_at, at, min(PIECE_BYTES, end - at)) for at in offsets]
            write(window, *(piece.result() for piece in pieces))


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
