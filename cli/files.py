"""Files that commands read and write: models in files, folders or the registry, and names of output files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import folder_registry
from organs.registry.errors import BadSource

if TYPE_CHECKING:
    from organs.ingest.sources import ModelSource
    from organs.registry.compose.models import Parent, RegisteredLibrary


@dataclass(slots=True)
class InputModels:
    """Opens what is asked for; `opened` closes it. A registry is opened only where a name is given."""

    opened: ExitStack
    _library: RegisteredLibrary | None = field(default=None, init=False)

    def parent(self, text: str) -> Parent:
        """The model that `text` means. Raises NotFound, Ambiguous, BadName, BadDigest, BadInput, StoreError."""
        from organs.ingest.sources import open_files
        from organs.ingest.transplant import parent_of_files
        from organs.registry.compose.models import RegisteredLibrary

        if is_file(text):
            return parent_of_files(text, open_files(self.opened, one_source(text, "compare")))
        if self._library is None:
            registry = self.opened.enter_context(folder_registry())
            session = self.opened.enter_context(registry.catalog.reading())
            self._library = RegisteredLibrary(session, registry.blobs)
        return self._library.parent(text)


def is_file(text: str) -> bool:
    """Whether `text` means a GGUF file or an organ directory, not the name of a registered model."""
    from organs.ingest.directory.folder import is_organ_directory
    from organs.ingest.sources import GGUF_SUFFIX

    path = Path(text)
    return text.endswith(GGUF_SUFFIX) or path.is_file() or is_organ_directory(path)


def one_source(text: str, purpose: str) -> ModelSource:
    """The one model in the files that `text` names; raises BadSource, with the verb `purpose`."""
    from organs.ingest.sources import find_sources

    sources = find_sources([text], purpose)
    if len(sources) != 1:
        raise click.UsageError(f"one model at a time; {text} gives {len(sources)}")
    return sources[0]


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
    from organs.registry.store.files import folder_for_placing

    return nullcontext() if dry_run or not targets else folder_for_placing(targets[0].parent)


def free_bytes(folder: Path) -> int:
    """Room on the disk of `folder`, which is there."""
    from organs.registry.store.files import Files

    return Files().free_bytes(folder)


def check_fits(target: Path, size_bytes: int) -> None:
    """Raise DiskFull where `size_bytes` do not fit on the disk of `target`."""
    from organs.registry.store.files import Files, check_room, placing_error

    try:
        check_room(target.parent, size_bytes, Files())
    except OSError as error:
        raise placing_error(error, target) from error


def write_text(target: Path, text: str) -> None:
    """Write `text` to `target`, whole or not at all, replacing what is there."""
    from organs.registry.store.files import placed

    data = text.encode("utf-8")
    with placed(target, len(data)) as file:
        file.write_at(data, 0)


def _target(output: Path, name: str, count: int) -> Path:
    from organs.registry.gguf.split import parse_shard_name

    if output.is_dir() or not output.name.endswith(SUFFIX):
        return output / Path(name).name
    if count == 1:
        return output
    shard = parse_shard_name(name)
    suffix = name if shard is None else f"-{shard.number:05d}-of-{shard.count:05d}{SUFFIX}"
    return output.with_name(output.name.removesuffix(SUFFIX) + suffix)
