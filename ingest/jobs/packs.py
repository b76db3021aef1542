"""What jobs leave behind to be downloaded: files below the registry's folder, for a day, and not too many."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

from organs.registry.store.files import PRIVATE_FOLDER
from organs.registry.store.placing import placing_error

FOLDER = "jobs"
KEPT_SECONDS = 24 * 3600.0
TOTAL_MAX_BYTES = 10 * 10**9
"""Of all packs together; the oldest give way, the newest stays."""
WRITING_SECONDS = 3600.0
"""For so long a pack that is not whole is taken to be in the making."""
_KEY = re.compile(r"[0-9a-f]{32}", re.ASCII)


def packs_folder(home: Path) -> Path:
    """Where the packs of the registry in `home` lie, each in a folder of its own."""
    return home / FOLDER


def new_pack(home: Path) -> Path:
    """A new, empty folder for one pack; its name is not to be guessed. Raises DiskFull, StoreUnwritable, StoreError."""
    folder = packs_folder(home) / secrets.token_hex(16)
    try:
        folder.mkdir(PRIVATE_FOLDER, parents=True)
    except OSError as error:
        raise placing_error(error, folder) from error
    return folder


def pack_file(home: Path, key: object, name: object) -> Path | None:
    """The file `name` of the pack `key`, as a job's result names them; None where it is not there any more."""
    if not isinstance(key, str) or not isinstance(name, str) or not _KEY.fullmatch(key) or "/" in name:
        return None
    path = packs_folder(home) / key / name
    return path if path.is_file() and not path.is_symlink() else None


def remove_old_packs(home: Path, now: float | None = None) -> None:
    """Remove packs that are older than a day, and the oldest while all take more than 10 GB.

    A download that is under way goes on: it holds the file.
    """
    now = time.time() if now is None else now
    found = sorted(_packs(packs_folder(home)), reverse=True)
    taken = 0
    for place, (made_at, size_bytes, folder) in enumerate(found):
        taken += size_bytes
        is_too_much = place > 0 and taken > TOTAL_MAX_BYTES
        if now - made_at > KEPT_SECONDS or (is_too_much and not _is_being_written(folder, now - made_at)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_being_written(folder: Path, age_seconds: float) -> bool:
    """Whether somebody is still at it: the folder that a pack is made of goes when the pack is whole."""
    entries = list(folder.glob("*"))
    return age_seconds < WRITING_SECONDS and (not entries or any(one.is_dir() for one in entries))


def _packs(folder: Path) -> list[tuple[float, int, Path]]:
    """When each was made, in seconds since the epoch, and its size in bytes."""
    found = []
    with suppress(OSError):  # there is none yet, or none that can be read
        for entry in os.scandir(folder):
            if _KEY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError):  # another runner was quicker
                    found.append((entry.stat().st_mtime, _size_bytes(Path(entry.path)), Path(entry.path)))
    return found


def _size_bytes(folder: Path) -> int:
    """Of all that lies in it, also in what a pack is being made of."""
    size_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # what was packed goes meanwhile
                size_bytes += os.lstat(os.path.join(parent, name)).st_size
    return size_bytes
