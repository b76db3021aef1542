"""Files that commands write: their names, places and progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from organs.cli.console import F, is_chosen, is_quiet, kept_flag, print_remark, progress_bar
from organs.registry.digest import Digest
from organs.registry.errors import BadSource

if TYPE_CHECKING:
    from organs.registry.output_files import NamedFile, OutputFiles, SourceModel

SUFFIX = ".gguf"


def force_option(help_text: str) -> Callable[[F], F]:
    """Return the option --force, which allows to replace what is in the way of files."""
    return kept_flag("--force", help=help_text)


def output_option(metavar: str, help_text: str, *, required: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that adds the option -o of a command, and creates the missing folders of its path.

    The command gets the path as `output`. DIR is a folder that the command itself creates. Any other output that ends
    in / is a folder for files, which is created here. Folders that stay empty are removed at the end.
    """

    def decorate(command: Callable[..., Any]) -> Any:
        @wraps(command)
        def with_folders(*arguments: Any, output: str | None, **options: Any) -> Any:
            if output is None:
                return command(*arguments, output=None, **options)
            from organs.registry.store.files import folder_for_placing

            path = Path(output)
            is_folder = output.endswith(os.sep) and metavar != "DIR"
            with folder_for_placing(path if is_folder else path.parent) as made:
                result = command(*arguments, output=path, **options)
            if made and made[0] != path and made[0].is_dir() and not is_quiet():
                print_remark(f"created the folder {made[0]}")
            return result

        return click.option("-o", "--output", required=required, type=click.Path(), metavar=metavar, help=help_text)(
            with_folders
        )

    return decorate


@dataclass(frozen=True, slots=True)
class WrittenPath:
    """A file that was written, or would be."""

    path: Path
    size_bytes: int
    sha256: Digest | None
    """None if the file was not written and its digest is not known in advance."""
    is_new: bool = False
    """Whether no earlier file had these bytes: a merged file, new shards, a chimera."""

    @property
    def values(self) -> dict[str, object]:
        """The file as it is printed as JSON."""
        return {"file": str(self.path), "size_bytes": self.size_bytes, "sha256": self.sha256}


def write_files(
    files: OutputFiles,
    output: Path,
    *,
    dry_run: bool = False,
    quiet: bool | None = None,
    targets: Sequence[Path] | None = None,
) -> list[WrittenPath]:
    """Write the files of a registry to `output`, a file or a folder.

    Of several files, one that is already complete at its place stays as it is. Raises BadSource if something is in the
    way. `targets` are the places of the files, if not those of GGUF files. `quiet` hides the progress, by default
    that of commands that print for programs.
    """
    targets = targets or gguf_targets(output, [file.name for file in files.files], checks=False)
    complete = [len(targets) > 1 and _is_complete(*pair) for pair in zip(targets, files.files, strict=True)]
    for target, is_complete in zip(targets, complete, strict=True):
        if not is_complete:
            check_free(target)
    digests: Sequence[Digest | None] = [file.sha256 for file in files.files]
    if not dry_run:
        with folder_of(targets), progress_bar("write", files.work_bytes, quiet=quiet) as advance:
            for file, is_complete in zip(files.files, complete, strict=True):
                advance(file.size_bytes if is_complete else 0)
            missing = [None if done else target for target, done in zip(targets, complete, strict=True)]
            digests = files.place(missing, advance)
    return [
        WrittenPath(target, file.size_bytes, digest, is_new=file.sha256 is None)
        for target, file, digest in zip(targets, files.files, digests, strict=True)
    ]


def _is_complete(target: Path, file: NamedFile) -> bool:
    """Return whether exactly the bytes of `file` are at `target`, and their digest proves them."""
    if not file.is_proven or file.sha256 is None or not target.is_file() or target.is_symlink():
        return False
    with target.open("rb") as data:
        return (
            os.fstat(data.fileno()).st_size == file.size_bytes
            and file_digest(data, "sha256").hexdigest() == file.sha256
        )


def print_beside_file(model: SourceModel | None) -> None:
    """Print on stderr what the files of `model` cannot contain: that it was yanked, and its findings."""
    if model is None:
        return
    if model.yanked is not None:
        print_remark(f"{model.name} was yanked: {model.yanked}")
    for finding in model.findings:
        print_remark(finding.sentence, f"{finding.severity.value}: ")


def stem_of(output: Path) -> str | None:
    """Return the beginning of the names of new files if `output` is a file; None for a folder."""
    return output.name.removesuffix(SUFFIX) if output.name.endswith(SUFFIX) else None


def gguf_targets(output: Path, names: Sequence[str], *, checks: bool = True) -> list[Path]:
    """Return where each of the GGUF files `names` is written. With `checks`, raises BadSource if one is in the way.

    `output` names a file if it ends in .gguf, or for one file in a suffix of letters.
    """
    from organs.registry.gguf.split import parse_shard_name

    is_file_name = output.name.endswith(SUFFIX) or (len(names) == 1 and output.suffix[1:].isalpha())
    targets = []
    for name in names:
        if output.is_dir() or not is_file_name:
            target = output / Path(name).name
        elif len(names) == 1:
            target = output
        else:
            shard = parse_shard_name(name)
            suffix = name if shard is None else f"-{shard.number:05d}-of-{shard.count:05d}{SUFFIX}"
            target = output.with_name(output.name.removesuffix(SUFFIX) + suffix)
        targets.append(target)
        folder = target.parent
        if checks:
            check_free(target)
        can_be_made = len(names) > 1 and folder == output and folder.parent.is_dir() and not os.path.lexists(folder)
        if not folder.is_dir() and not can_be_made:
            raise BadSource(
                f"{folder}: no such folder; to write a file, give a name that ends in {SUFFIX}; to create the folder, "
                f"write {folder}{os.sep}"
            )
    return targets


def check_free(target: Path) -> None:
    """Raise BadSource if something is in the way of the file `target`."""
    if target.is_dir():
        raise BadSource(f"{target}: this is a folder")
    if target.exists() and not is_chosen("force"):
        raise BadSource(f"{target}: already exists; --force replaces it")


def check_folder_free(target: Path) -> None:
    """Raise BadSource if something is in the way of the organ directory `target`; an empty folder is not."""
    if os.path.lexists(target) and not is_chosen("force") and not (target.is_dir() and not any(target.iterdir())):
        raise BadSource(f"{target}: already exists; --force replaces an organ directory")


def folder_of(targets: Sequence[Path]) -> AbstractContextManager[object]:
    """Create the folder of `targets` while they are written, where `gguf_targets` allowed it to be missing."""
    from organs.registry.store.files import folder_for_placing

    return folder_for_placing(targets[0].parent)


def check_fits(target: Path, size_bytes: int) -> None:
    """Raise DiskFull if `size_bytes` do not fit on the disk of `target`."""
    from organs.registry.store.files import Files, check_room, placing_error, translating

    with translating(target, placing_error):
        check_room(target.parent, size_bytes, Files())


def write_text(target: Path, text: str) -> None:
    """Write `text` to `target` completely or not at all, replacing what is there."""
    from organs.registry.store.files import placed

    data = text.encode("utf-8")
    with placed(target, len(data)) as file:
        file.write(data)
