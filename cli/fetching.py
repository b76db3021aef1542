"""A model of a registry elsewhere brought here: its files, one file in shards, its base with its organs, a lock's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from organs.cli.console import progress_bar
from organs.cli.files import SUFFIX, check_fits, check_free, folder_of, gguf_targets
from organs.registry.amounts import parse_size
from organs.registry.digest import Digest
from organs.registry.errors import BadInput

if TYPE_CHECKING:
    from organs.cli.composing import Asked
    from organs.registry.client.fetching import FileToFetch
    from organs.registry.client.locked import LockedFile
    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.compose.lock import Lock
    from organs.registry.compose.recipe import Recipe


class Targets(Protocol):
    """Where files of these names go; raises BadSource for what is in the way."""

    def __call__(self, output: Path, names: Sequence[str], *, force: bool) -> list[Path]: ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that is here now, or would be."""

    path: Path
    size_bytes: int
    sha256: Digest | None
    """None where nothing was fetched and nobody knows it beforehand."""
    is_new: bool
    """Whether nobody has had these bytes before."""


def fetch_files(
    remote: RemoteRegistry,
    files: Sequence[tuple[str, FileToFetch]],
    output: Path,
    asked: Asked,
    targets_of: Targets = gguf_targets,
) -> list[Fetched]:
    """The files, each with its name. Of several, one that an attempt before has brought is left as it is."""
    from organs.registry.client.fetching import fetch  # with HTTP, which a folder needs not

    targets = targets_of(output, [name for name, _ in files], force=True)
    came = [len(files) > 1 and _is_there(target, file) for (_, file), target in zip(files, targets, strict=True)]
    for target, has_come in zip(targets, came, strict=True):
        check_free(target, force=asked.force or has_come)
    found = []
    with folder_of(targets, dry_run=asked.dry_run), _bar(sum(file.size_bytes for _, file in files), asked) as advance:
        for (_, file), target, has_come in zip(files, targets, came, strict=True):
            digest = file.sha256
            if has_come:
                advance(file.size_bytes)
            elif not asked.dry_run:
                digest = fetch(remote.connection, file, target, advance)
            found.append(Fetched(target, file.size_bytes, digest, file.sha256 is None))
    return found


def fetch_shards(
    remote: RemoteRegistry, model: str, file: FileToFetch, output: Path, size: str, asked: Asked
) -> list[Fetched]:
    """The model called `model`, which is `file`, in shards of at most `size` of tensors each."""
    from organs.registry.client.cutting import fetch_in_shards, file_in_shards

    shard_bytes = shard_size(size)
    stem = output.name.removesuffix(SUFFIX) if output.name.endswith(SUFFIX) else model
    cut = file_in_shards(remote.connection, file, stem, shard_bytes)
    if cut is None:
        return fetch_files(remote, [(f"{stem}{SUFFIX}", file)], output, asked)
    targets = gguf_targets(output, [shard.name for shard in cut.shards], force=asked.force)
    digests: Sequence[Digest | None] = [None] * len(targets)
    with folder_of(targets, dry_run=asked.dry_run), _bar(cut.room_bytes, asked) as advance:
        if not asked.dry_run:
            digests = fetch_in_shards(remote.connection, cut, targets, advance)
    sizes = (shard.size_bytes for shard in cut.shards)
    return [Fetched(*one, is_new=True) for one in zip(targets, sizes, digests, strict=True)]


def fetch_with_its_base(
    remote: RemoteRegistry, recipe: Recipe, accept: Sequence[str], output: Path, asked: Asked
) -> Fetched:
    """A model that has only some organs, in its base: planned there, made here. Ends with a status of 1 if refused."""
    from organs.cli.composing import shown

    plan = remote.compose(recipe).accept(*accept).plan()
    target = gguf_targets(output, [plan.file_name], force=asked.force)[0]
    shown(plan, target, asked)
    if asked.dry_run:
        return Fetched(target, plan.size_bytes, None, is_new=True)
    return fetch_lock(remote, plan.lock(), target, asked)


def fetch_lock(remote: RemoteRegistry, lock: Lock, target: Path, asked: Asked) -> Fetched:
    """The file of `lock`, to `target`."""
    from organs.registry.client.locked import fetch_locked, locked_file

    file: FileToFetch | LockedFile = locked_file(remote, lock)
    check_fits(target, file.size_bytes)
    digest = None
    if not asked.dry_run:
        with _bar(file.size_bytes, asked) as advance:
            digest = fetch_locked(remote.connection, file, target, advance)
    return Fetched(target, file.size_bytes, digest, is_new=True)


def fetch_beside(
    opened: ExitStack, remote: RemoteRegistry, model: str, output: Path, asked: Asked
) -> list[tuple[str, Path]]:
    """The files of `model` as they came in, whole and checked, each with its name and where it is: beside `output`.

    There must be room for them and for as much again. They are gone when `opened` is closed; what a lost line, or an
    error behind it, has left is gone on with by the next call.
    """
    from organs.registry.client.fetching import check_all_fits, fetched

    own = remote.own_files(model)
    files = [file for _, file in own.files]
    target = Path(os.path.abspath(output))
    place = target.parent / f".{target.name}"  # nothing gets this name: `output` itself may be a folder
    size_bytes = sum(file.size_bytes for file in files)
    check_all_fits(remote.url, files, place, 2 * size_bytes)
    with _bar(size_bytes, asked) as advance:
        paths = [opened.enter_context(fetched(remote.connection, file, place, advance)) for file in files]
    return [(name, path) for (name, _), path in zip(own.files, paths, strict=True)]


def shard_size(text: str) -> int:
    """The bytes that `text` after --shards stands for."""
    try:
        return parse_size(text)
    except BadInput as error:
        raise click.UsageError(str(error)) from error


def _is_there(target: Path, file: FileToFetch) -> bool:
    """Whether the whole of `file`, to the last byte, is at `target`."""
    if file.sha256 is None or file.check is not None or not target.is_file() or target.is_symlink():
        return False
    with target.open("rb") as found:
        return (
            os.fstat(found.fileno()).st_size == file.size_bytes
            and file_digest(found, "sha256").hexdigest() == file.sha256
        )


def _bar(total_bytes: int, asked: Asked) -> AbstractContextManager[Callable[[int], None]]:
    return progress_bar("fetch", total_bytes, quiet=asked.dry_run or not asked.prints)
