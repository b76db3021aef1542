"""Packs: registered models as organ directories, each packed as one uncompressed `.tar` for a day."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar, cast

from organs.ingest.directory.extract import extract, registered_contents
from organs.registry.catalog.queries.jobs import JobFile
from organs.registry.digest import Digest
from organs.registry.errors import MissingBlob
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.progress import Progress, StepProgress
from organs.registry.store.backend import OpenBlob
from organs.registry.store.files import PRIVATE_FOLDER, placed, placing_error, translating
from organs.registry.store.folder import open_stored

FOLDER = "jobs"
KEPT_SECONDS = 24 * 3600.0
TOTAL_MAX_BYTES = 10 * 10**9
"""The limit of all packs together; the oldest are removed, the newest stays."""
WRITING_SECONDS = 3600.0
"""An incomplete pack that is younger counts as in progress."""
_KEY = re.compile(r"[0-9a-f]{32}", re.ASCII)


def packs_folder(home: Path) -> Path:
    """Return the folder of the packs of the registry in `home`; each pack has its own folder inside."""
    return home / FOLDER


def new_pack(home: Path) -> Path:
    """Create an empty folder with a secret name for one pack. Raises DiskFull, StoreUnwritable, StoreError."""
    folder = packs_folder(home) / secrets.token_hex(16)
    with translating(folder, placing_error):
        folder.mkdir(PRIVATE_FOLDER, parents=True)
    return folder


def share_pack(registry: LocalRegistry, path: Path, sha256: Digest, size_bytes: int) -> None:
    """Move the pack with the file `path` to the bucket of the registry, if it has one: other machines send it, too.

    Raises StoreUnreachable, StoreUnwritable.
    """
    bucket = registry.object_folder(FOLDER)
    if bucket is not None:
        bucket.prepare()
        with path.open("rb") as file:
            bucket.put_file(_object_name(path.parent.name, sha256), file, size_bytes)
        shutil.rmtree(path.parent)


def pack_file(home: Path, key: object, name: object) -> Path | None:
    """Return the file `name` of the pack `key`, as in a job's result; None if it was removed."""
    if not isinstance(key, str) or not isinstance(name, str) or not _KEY.fullmatch(key) or "/" in name:
        return None
    path = packs_folder(home) / key / name
    return path if path.is_file() and not path.is_symlink() else None


def open_pack(registry: LocalRegistry, file: JobFile) -> OpenBlob | None:
    """Open the file of a job, which can be in the bucket of the registry; None if it was removed.

    Raises StoreUnreachable.
    """
    bucket = registry.object_folder(FOLDER)
    if bucket is not None:
        try:
            return bucket.open(_object_name(file.pack, file.sha256))
        except MissingBlob:
            return None
    path = pack_file(registry.settings.home, file.pack, file.name)
    try:
        return None if path is None else open_stored(path)
    except FileNotFoundError:
        return None


def has_pack(registry: LocalRegistry, file: JobFile) -> bool:
    """Return whether the file of a job still exists."""
    bucket = registry.object_folder(FOLDER)
    if bucket is not None:
        return bucket.size_of(_object_name(file.pack, file.sha256)) is not None
    return pack_file(registry.settings.home, file.pack, file.name) is not None


def _object_name(key: str, sha256: Digest) -> str:
    return f"{sha256[:2]}/{sha256}.{key[:16]}"


def remove_old_packs(home: Path, now: float | None = None) -> None:
    """Remove packs that are older than a day, and the oldest while all take more than 10 GB.

    A running download continues: it has the file open.
    """
    now = time.time() if now is None else now
    packs = []
    with suppress(OSError):  # the folder is absent or not readable
        for entry in os.scandir(packs_folder(home)):
            if _KEY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError):  # another runner removed it
                    packs.append((entry.stat().st_mtime, _size_bytes(Path(entry.path)), Path(entry.path)))
    made_at = {folder: begun_at for begun_at, _, folder in packs}
    for folder in _too_old(packs, now):
        entries, age_seconds = list(folder.glob("*")), now - made_at[folder]
        # The folder of the extracted files is removed when the pack is complete.
        is_being_written = age_seconds < WRITING_SECONDS and (not entries or any(entry.is_dir() for entry in entries))
        if not is_being_written:
            shutil.rmtree(folder, ignore_errors=True)


def remove_old_objects(registry: LocalRegistry) -> None:
    """Remove packs from the bucket as `remove_old_packs` does. Raises StoreUnreachable."""
    bucket = registry.object_folder(FOLDER)
    if bucket is not None:
        packs = [(found.modified_at, found.size_bytes, found.name) for found in bucket.walk()]
        for name in _too_old(packs, time.time()):
            bucket.remove(name)


P = TypeVar("P", Path, str)


def _too_old(packs: Sequence[tuple[float, int, P]], now: float) -> Iterator[P]:
    """Yield the packs that are older than a day, and the oldest while all take more than 10 GB.

    `packs` has the time of each, in seconds since the epoch, and its size in bytes.
    """
    total_bytes = 0
    for index, (made_at, size_bytes, pack) in enumerate(sorted(packs, reverse=True)):
        total_bytes += size_bytes
        if now - made_at > KEPT_SECONDS or (index > 0 and total_bytes > TOTAL_MAX_BYTES):
            yield pack


def _size_bytes(folder: Path) -> int:
    """Return the size of all files inside, also of a pack in progress."""
    size_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # packed files are removed meanwhile
                size_bytes += os.lstat(os.path.join(parent, name)).st_size
    return size_bytes


READ_BYTES = 1024 * 1024
FILE_MODE, FOLDER_MODE = 0o644, 0o755
MEMBER_BYTES = 4 * tarfile.BLOCKSIZE
"""The most bytes of the head and the padding of a file in a tar."""


def make_pack(registry: LocalRegistry, name: ModelName, report_progress: StepProgress) -> JobFile:
    """Extract a model and pack it; return the pack. Raises as `registered_contents` and `extract` do.

    In the progress each byte counts twice: read from the store, and written to the pack.
    """
    report_progress(0.0, "reading the headers")
    contents = registered_contents(registry, name)
    total, done = 2 * sum(content.header.file_size_bytes for content in contents), 0

    def advance(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        report_progress(min(done / max(total, 1), 1.0), "extracting" if 2 * done <= total else "packing")

    remove_old_packs(registry.settings.home)
    pack = new_pack(registry.settings.home)
    try:
        directory = pack / f"{name.name}.organs"
        extract(contents, directory, progress=advance)
        path = pack / f"{name.name}.tar"
        sha256, size_bytes = write_tar(directory, path, advance)
        shutil.rmtree(directory)
        share_pack(registry, path, sha256, size_bytes)
    except BaseException:
        shutil.rmtree(pack, ignore_errors=True)
        raise
    remove_old_packs(registry.settings.home)
    remove_old_objects(registry)
    return JobFile(pack.name, path.name, size_bytes, sha256)


def write_tar(directory: Path, path: Path, advance: Progress) -> tuple[Digest, int]:
    """Write `directory` as the uncompressed tar `path`, with a fixed owner and time. Return its SHA-256 and its size.

    Each file is deleted when it was written, so that the disk does not hold it twice. Raises DiskFull, StoreUnwritable.
    """
    files = sorted(directory.rglob("*"))
    needed_bytes = tarfile.RECORDSIZE + sum(MEMBER_BYTES + file.stat().st_size for file in files)
    with (
        placed(path, needed_bytes, progress=advance) as target,
        tarfile.open(fileobj=cast(IO[bytes], target), mode="w|", bufsize=READ_BYTES, format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in files:
            info = tarfile.TarInfo(f"{directory.name}/{file.relative_to(directory)}")
            if file.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, FOLDER_MODE
                tar.addfile(info)
            else:
                info.size, info.mode = file.stat().st_size, FILE_MODE
                with file.open("rb") as content:
                    tar.addfile(info, content)
                file.unlink()
    return target.sha256, target.size_bytes
