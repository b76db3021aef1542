"""What is worth knowing when a push is run again: digests of files, and submissions that are under way.

It lies in the user's cache and may vanish at any time. What is found there is checked for its form and compared with
the file; whether the digests are right the registry finds out, as it does for everybody's.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from organs.ingest.files import FileIdentity
from organs.registry.digest import Digest, parse_digest
from organs.registry.errors import BadDigest
from organs.registry.gguf.pieces import Span

ENTRIES_MAX = 256
"""Files and submissions that are remembered; the oldest go first."""
ENTRY_MAX_BYTES = 64 * 1024 * 1024
SETTLED_SECONDS = 2.0
"""A file that was written this short a time ago may be written again within the same tick of its clock."""


@dataclass(frozen=True, slots=True)
class Hashed:
    """The digests of a file and of its pieces, in file order."""

    file: Digest
    pieces: tuple[Digest, ...]


class Memory:
    """A folder of small JSON files. Where it cannot be written nothing is remembered."""

    def __init__(self, folder: Path | None) -> None:
        """`folder` is made when something is kept; None remembers nothing."""
        self._folder = folder

    def hashed(self, path: Path, identity: FileIdentity, spans: Sequence[Span]) -> Hashed | None:
        """The digests of the file at `path`, when it is the same as it was and was cut at the same places."""
        entry = self._read(_file_key(path))
        if entry.get("file") != _identity(identity) or entry.get("spans") != _spans(spans):
            return None
        try:
            found = Hashed(parse_digest(entry["sha256"]), tuple(parse_digest(text) for text in entry["pieces"]))
        except (BadDigest, KeyError, TypeError, AttributeError):
            return None
        return found if len(found.pieces) == len(spans) else None

    def keep_hashed(self, path: Path, identity: FileIdentity, spans: Sequence[Span], hashed: Hashed) -> None:
        """Remember the digests of the file at `path`, unless it was written only just now."""
        if time.time() - identity.modified_ns / 1e9 < SETTLED_SECONDS:
            return
        entry = {"file": _identity(identity), "spans": _spans(spans), "sha256": hashed.file, "pieces": hashed.pieces}
        self._write(_file_key(path), entry)

    def forget_hashed(self, path: Path) -> None:
        """Read the file at `path` again the next time."""
        self._remove(_file_key(path))

    def submission(self, url: str, name: str, digest: str) -> str | None:
        """The id under which the model `digest` was handed in to the registry at `url` as `name`, if it was."""
        found = self._read(_submission_key(url, name, digest)).get("submission")
        return found if isinstance(found, str) else None

    def keep_submission(self, url: str, name: str, digest: str, submission: str) -> None:
        """Remember what was handed in."""
        self._write(_submission_key(url, name, digest), {"submission": submission})

    def forget_submission(self, url: str, name: str, digest: str) -> None:
        """It came to an end."""
        self._remove(_submission_key(url, name, digest))

    def _read(self, key: str) -> dict[str, Any]:
        if self._folder is None:
            return {}
        try:
            with open(self._folder / key, "rb") as file:
                entry = json.loads(file.read(ENTRY_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return entry if isinstance(entry, dict) else {}

    def _write(self, key: str, entry: dict[str, Any]) -> None:
        if self._folder is None:
            return
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".new-")
            with os.fdopen(descriptor, "w") as file:
                json.dump(entry, file)
            os.replace(temporary, self._folder / key)
            self._prune()

    def _prune(self) -> None:
        assert self._folder is not None
        entries = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in entries[ENTRIES_MAX:]:
            path.unlink()

    def _remove(self, key: str) -> None:
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / key).unlink()


def _identity(identity: FileIdentity) -> list[int]:
    return [identity.device, identity.inode, identity.size_bytes, identity.modified_ns]


def _spans(spans: Sequence[Span]) -> list[list[int]]:
    return [[span.offset, span.size_bytes] for span in spans]


def _file_key(path: Path) -> str:
    return "file-" + _short(os.fsencode(path.resolve()))


def _submission_key(url: str, name: str, digest: str) -> str:
    return "submission-" + _short(f"{url}\n{name}\n{digest}".encode())


def _short(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32] + ".json"
