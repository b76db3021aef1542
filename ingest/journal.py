"""The journal of an interrupted measurement: the next run with the same source continues after it."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import platformdirs

from organs.registry.errors import Busy, StoreUnwritable
from organs.registry.measure import Measurement
from organs.registry.measure.spectral import METHOD as SPECTRAL_METHOD
from organs.registry.measure.zmeasure import METHOD as Z_METHOD

LINE_MAX_BYTES = 64 * 1024
_FORMAT = f"organ measure 1 {Z_METHOD} {SPECTRAL_METHOD}"

Key: TypeAlias = tuple[str, str]
"""The version of a file (see `file_version`), and the name of a tensor."""


class _Line(msgspec.Struct, frozen=True):
    file: str
    tensor: str
    measurement: Measurement


def journal_path(sources: Sequence[str]) -> Path:
    """Return the path of the journal for the files with these addresses, in the user's cache folder."""
    name = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:32]
    return Path(platformdirs.user_cache_dir("organ-registry")) / "measure" / f"{name}.jsonl"


def file_version(address: str, size_bytes: int, version: str) -> str:
    """Return a digest that changes when the file at `address` changes, if its server sends its `version`."""
    return hashlib.sha256(f"{address}\n{size_bytes}\n{version}".encode()).hexdigest()


@dataclass(slots=True)
class Journal:
    """The measurements of a run so far. Each is written at once, so a run that is killed loses at most one."""

    known: dict[Key, Measurement]
    """The measurements of earlier runs."""
    _path: Path
    _descriptor: int

    def add(self, key: Key, measurement: Measurement) -> None:
        """Write a measurement; raises StoreUnwritable."""
        line = msgspec.json.encode(_Line(*key, measurement)) + b"\n"
        try:
            os.write(self._descriptor, line)
        except OSError as error:
            raise StoreUnwritable(f"the journal cannot be written: {error.strerror}") from error

    def delete(self) -> None:
        """Delete the journal: all its measurements were used."""
        with suppress(OSError):
            self._path.unlink()


@contextmanager
def open_journal(path: Path) -> Iterator[Journal]:
    """Open the journal at `path`, or create it.

    A journal of other methods, and an incomplete last line, are discarded. Raises Busy if another process measures the
    same source, StoreUnwritable.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreUnwritable(f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb+", buffering=0) as file:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy("another process measures this source: wait until it is done") from error
        known, size_bytes = _read_lines(path)
        file.truncate(size_bytes)
        if not size_bytes:
            file.write(_FORMAT.encode() + b"\n")
        yield Journal(known, path, descriptor)


def read_journal(path: Path) -> dict[Key, Measurement]:
    """Return the measurements in the journal at `path`; none if there is no journal."""
    try:
        return _read_lines(path)[0]
    except OSError:
        return {}


def _read_lines(path: Path) -> tuple[dict[Key, Measurement], int]:
    """Return the measurements in the valid lines at the beginning, and the size of these lines in bytes."""
    known: dict[Key, Measurement] = {}
    decoder = msgspec.json.Decoder(_Line)
    with path.open("rb") as file:
        first = file.readline(LINE_MAX_BYTES)
        if first != _FORMAT.encode() + b"\n":
            return {}, 0
        size_bytes = len(first)
        while (line := file.readline(LINE_MAX_BYTES)).endswith(b"\n"):
            try:
                entry = decoder.decode(line)
            except msgspec.DecodeError:
                break
            known[entry.file, entry.tensor] = entry.measurement
            size_bytes += len(line)
    return known, size_bytes
