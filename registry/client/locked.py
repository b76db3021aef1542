"""The file of a lock, made here of what a registry elsewhere has: the base's header, and every organ by its digest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from organs.registry.client import answers
from organs.registry.client.address import API, parse_full_name
from organs.registry.client.connection import Connection, Reply
from organs.registry.client.fetching import (
    CUTS_MAX,
    FILE_CHUNK_BYTES,
    TRIES,
    FileToFetch,
    PartialFile,
    Progress,
    backoff,
    fetch,
    fetch_head,
    partial_file,
)
from organs.registry.client.files import (
    check_lock,
    own_file,
)
from organs.registry.client.shape import Each, Members, check, digest
from organs.registry.compose.lock import Lock, LockedTensor, sound_header
from organs.registry.digest import Digest, digest_of
from organs.registry.errors import BadReply, NotAssemblable, NotFound, Unreachable
from organs.registry.gguf import padded
from organs.registry.store.files import NamedFile, OutputFiles

if TYPE_CHECKING:
    from organs.registry.client.remote import RemoteRegistry

ASKED_AT_ONCE = 1000
"""Digests of which the registry says at once whether it has them."""
MISSING_SHOWN = 20
_KNOWN: Members = {"absent": Each(digest)}


@dataclass(frozen=True, slots=True)
class LockedFile:
    """The file of a lock, all parts of which are there."""

    lock: Lock
    header: bytes
    """With its padding."""
    alignment: int
    size_bytes: int


class FetchedLock(OutputFiles):
    """The file of a lock, which is downloaded whole or assembled on this machine."""

    def __init__(self, connection: Connection, lock: Lock, source: FileToFetch | LockedFile) -> None:
        sha256 = source.sha256 if isinstance(source, FileToFetch) else None
        super().__init__([NamedFile(f"{lock.id}.gguf", source.size_bytes, sha256)])
        self._connection, self._source = connection, source

    def place(self, targets: Sequence[Path | None], progress: Progress | None = None) -> tuple[Digest | None, ...]:
        (target,) = targets
        return (None if target is None else fetch_locked(self._connection, self._source, target, progress),)


def locked_file(remote: RemoteRegistry, lock: Lock) -> FileToFetch | LockedFile:
    """The file of `lock`: of the chimera that is registered there, or of its parts; only headers are fetched yet.

    Raises NotAssemblable with all that is missing there, BadLock for a lock that describes no sound file, BadReply.
    """
    try:
        return replace(remote.whole_file(f"sha256:{lock.id}"), check=check_lock(lock.id))
    except NotFound:
        return file_of_parts(remote, lock)


def file_of_parts(remote: RemoteRegistry, lock: Lock) -> LockedFile:
    """The file of `lock`, of the base's header and the organs that are there; raises as `locked_file`."""
    missing = []
    try:
        values = remote.connection.get(f"{API}/headers/{lock.header}")
    except NotFound:
        values = None
        missing = [f"no model there has the header {lock.header[:12]} of its base"]
    missing += _missing(remote.connection, lock)
    if missing or values is None:
        raise NotAssemblable(f"the lock {lock.id[:12]}", missing)
    check(values, answers.SUMMARY, "model")
    base = remote.own_files(str(parse_full_name(values["name"]))).files[0][1]
    header, source = fetch_head(remote.connection, base)
    if digest_of(source.header) != lock.header:
        raise BadReply(f"{remote.url} gives another header than {lock.header}")
    data, size_bytes = sound_header(header, source, lock)
    return LockedFile(lock, data, header.alignment, size_bytes)


def fetch_locked(
    connection: Connection,
    asked: FileToFetch | LockedFile,
    target: Path,
    progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Digest:
    """Bring the file to `target`, replacing what is there; its SHA-256.

    It is checked organ by organ, and gone on with where it was cut, as by `registry.client.fetching.fetch`, which says
    what is raised; then `target` is as it was.
    """
    if isinstance(asked, FileToFetch):
        return fetch(connection, asked, target, progress, sleep)
    key = f"{connection.url} lock {asked.lock.id}"
    with partial_file(target, key, asked.size_bytes) as begun:
        work = _Making(connection, asked, begun, progress or _nobody, sleep)
        begun.take_up(asked.size_bytes, work.progress)
        was_there = begun.size_bytes
        work.fill()
        try:
            work.check()
        except BadReply:
            if not was_there:
                raise
            work.progress(-begun.size_bytes)
            begun.begin_again()  # what lay there need not have been of this file
            work.fill()
            work.check()
        begun.place(target)
        return begun.sha256


@dataclass(slots=True)
class _Making:
    """One file under way, from its first byte to its last."""

    connection: Connection
    asked: LockedFile
    begun: PartialFile
    progress: Progress
    sleep: Callable[[float], None]
    cuts: int = 0
    """In all organs."""

    def fill(self) -> None:
        """Until all bytes are there."""
        try:
            self._literal(self.asked.header, 0)
            offset = len(self.asked.header)
            for one in self.asked.lock.tensors:
                self._organ(one, offset)
                end = offset + one.spec.size_bytes
                offset += padded(one.spec.size_bytes, self.asked.alignment)
                self._literal(b"\0" * (offset - end), end)
        except BadReply:
            self.begun.is_kept = False
            raise
        except BaseException:
            self.begun.is_kept = True
            raise
        self.begun.is_kept = False

    def check(self) -> None:
        """Raise BadReply unless it holds the header and all organs of the lock."""
        with own_file(self.begun.path) as source:
            is_due = source.read_at(0, len(self.asked.header)) == self.asked.header
        if not is_due:
            raise BadReply(f"what came is not of the lock {self.asked.lock.id}; nothing was written")
        check_lock(self.asked.lock.id)(self.begun.path)

    def _literal(self, data: bytes, offset: int) -> None:
        """The bytes of the file from `offset` on, as far as they are not there."""
        rest = data[max(0, self.begun.size_bytes - offset) :]
        if rest:
            self.begun.append(rest)
            self.progress(len(rest))

    def _organ(self, one: LockedTensor, offset: int) -> None:
        failures = 0
        end = offset + one.spec.size_bytes
        while (before := self.begun.size_bytes) < end:
            try:
                self._ask(one, before - offset, end)
                error = Unreachable(f"{self.connection.url} ends the organ {one.digest[:12]} too early, every time")
            except BadReply:
                raise
            except Unreachable as cut:
                error = cut
            if self.begun.size_bytes == end:
                return
            failures = 0 if self.begun.size_bytes > before else failures + 1
            self.cuts += 1
            if failures >= TRIES or self.cuts >= CUTS_MAX:
                raise error
            if failures:
                self.sleep(backoff(failures))

    def _ask(self, one: LockedTensor, begin: int, end: int) -> None:
        """One request, for what of an organ is missing: all from `begin` on."""
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        with self.connection.download(f"/organs/{one.digest}.raw", headers) as reply:
            whole = f"bytes {begin}-{one.spec.size_bytes - 1}/{one.spec.size_bytes}"
            if reply.status != (206 if begin else 200) or (begin and reply.headers.get("content-range") != whole):
                raise BadReply(f"{self.connection.url} gives something else than the organ {one.digest[:12]}")
            for chunk in _chunks(reply):
                if self.begun.size_bytes + len(chunk) > end:
                    raise BadReply(f"{self.connection.url} sends more than the organ {one.digest[:12]} has")
                self.begun.append(chunk)
                self.progress(len(chunk))


def _chunks(reply: Reply) -> Iterator[bytes]:
    with closing(reply.stream(FILE_CHUNK_BYTES)) as chunks:  # type: ignore[type-var]  # a generator has `close`
        yield from chunks


def _missing(connection: Connection, lock: Lock) -> list[str]:
    """One sentence for each tensor that has no organ there, up to a limit."""
    digests = list(dict.fromkeys(one.digest for one in lock.tensors))
    absent: set[str] = set()
    for first in range(0, len(digests), ASKED_AT_ONCE):
        asked = {"digests": digests[first : first + ASKED_AT_ONCE]}
        values = connection.send("POST", f"{API}/organs/lookup", asked)
        check(values, _KNOWN, "organs")
        absent |= set(values["absent"])
    reasons = [
        f"the organ {one.digest[:12]} of {one.spec.name} is not there" for one in lock.tensors if one.digest in absent
    ]
    more = len(reasons) - MISSING_SHOWN
    return reasons[:MISSING_SHOWN] + ([f"and {more} more"] if more > 0 else [])


def _nobody(_size_bytes: int) -> None:
    """Nobody watches."""
