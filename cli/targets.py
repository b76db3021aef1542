"""Where files are written: the names that they get, and what must not be in the way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from organs.registry.errors import BadSource
from organs.registry.gguf.split import parse_shard_name
from organs.registry.store.files import Files
from organs.registry.store.placing import check_room, folder_for_placing, placed, placing_error

SUFFIX = ".gguf"


def gguf_targets(output: Path, names: Sequence[str], *, force: bool) -> list[Path]:
    """Where each of the GGUF files `names` goes; raises BadSource for what is in the way."""
    targets = [_target(output, name, len(names)) for name in names]
    for target in targets:
        folder = target.parent
        check_free(target, force=force)
        can_be_made = len(names) > 1 and folder == output and folder.parent.is_dir() and not os.path.lexists(folder)
        if not folder.is_dir() and not can_be_made:
            raise BadSource(f"{folder}: no such folder; a file's name ends in {SUFFIX}")
    return targets


def check_free(target: Path, *, force: bool) -> None:
    """Raise BadSource where something is in the way of the file `target`."""
    if target.is_dir():
        raise BadSource(f"{target}: a folder is there")
    if target.exists() and not force:
        raise BadSource(f"{target}: there already; --force replaces it")


def check_folder_free(target: Path, *, force: bool) -> None:
    """Raise BadSource where something is in the way of the organ directory `target`; an empty folder is not."""
    if os.path.lexists(target) and not force and not (target.is_dir() and not any(target.iterdir())):
        raise BadSource(f"{target}: there already; --force replaces an organ directory")


def folder_of(targets: Sequence[Path], *, dry_run: bool) -> AbstractContextManager[None]:
    """The folder of `targets` while they are written; made where `gguf_targets` has let it be missing."""
    return nullcontext() if dry_run or not targets else folder_for_placing(targets[0].parent)


def free_bytes(folder: Path) -> int:
    """Room on the disk of `folder`, which is there."""
    return Files().free_bytes(folder)


def check_fits(target: Path, size_bytes: int) -> None:
    """Raise DiskFull where `size_bytes` do not fit on the disk of `target`."""
    try:
        check_room(target.parent, size_bytes, Files())
    except OSError as error:
        raise placing_error(error, target) from error


def write_text(target: Path, text: str) -> None:
    """Write `text` to `target`, whole or not at all, replacing what is there."""
    data = text.encode("utf-8")
    with placed(target, len(data)) as file:
        file.write_at(data, 0)


def _target(output: Path, name: str, count: int) -> Path:
    if output.is_dir() or not output.name.endswith(SUFFIX):
        return output / Path(name).name
    if count == 1:
        return output
    shard = parse_shard_name(name)
    suffix = name if shard is None else f"-{shard.number:05d}-of-{shard.count:05d}{SUFFIX}"
    return output.with_name(output.name.removesuffix(SUFFIX) + suffix)
