"""Files that commands read and write: input models, and output files with their names, places and progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import wraps
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from organs.cli.arguments import local_registry
from organs.cli.console import print_sentence, progress_bar
from organs.registry.amounts import parse_size
from organs.registry.digest import Digest
from organs.registry.errors import BadInput, BadSource

if TYPE_CHECKING:
    from organs.ingest.bases import AdaptedBase
    from organs.ingest.sources import ModelSource
    from organs.registry.compose.models import Parent, RegisteredLibrary
    from organs.registry.output_files import NamedFile, OutputFiles, SourceModel


@dataclass(slots=True)
class InputModels:
    """Opens the models that a command names; `opened` closes them. Files open no registry."""

    opened: ExitStack
    _library: RegisteredLibrary | None = field(default=None, init=False)

    def parent(self, text: str) -> Parent:
        """Return the model in the file `text`, or of that name.

        Raises NotFound, Ambiguous, BadName, BadDigest, BadInput, StoreError.
        """
        from organs.ingest.sources import open_files
        from organs.ingest.transplant import parent_of_files
        from organs.registry.compose.models import RegisteredLibrary

        if is_file(text):
            return parent_of_files(text, open_files(self.opened, one_source(text, "compare")))
        if self._library is None:
            registry = self.opened.enter_context(local_registry())
            session = self.opened.enter_context(registry.catalog.reading())
            self._library = RegisteredLibrary(session, registry.blobs)
        return self._library.parent(text)


def is_file(text: str) -> bool:
    """Return whether `text` is a GGUF file or a folder with a model, not the name of a registered model."""
    from organs.ingest.directory.folder import is_organ_directory
    from organs.ingest.peft import is_adapter_folder
    from organs.ingest.sources import GGUF_SUFFIX

    path = Path(text)
    return text.endswith(GGUF_SUFFIX) or path.is_file() or is_organ_directory(path) or is_adapter_folder(path)


def one_source(text: str, purpose: str) -> ModelSource:
    """Return the single model in the files `text`. Raises BadSource, with the verb `purpose` in its message."""
    from organs.ingest.sources import find_sources

    sources = find_sources([text], purpose)
    if len(sources) != 1:
        raise click.UsageError(f"give one model; {text} has {len(sources)}")
    return sources[0]


def with_bases(sources: Sequence[ModelSource], base: AdaptedBase) -> list[ModelSource]:
    """Return `sources` with the `base` of their PEFT folders."""
    return [source if source.adapter is None else replace(source, base=base) for source in sources]


SUFFIX = ".gguf"


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
            path = Path(output)
            is_folder = output.endswith(os.sep) and metavar != "DIR"
            with _folders_made(path if is_folder else path.parent, path, quiet=options.get("quiet", False)):
                return command(*arguments, output=path, **options)

        return click.option("-o", "--output", required=required, type=click.Path(), metavar=metavar, help=help_text)(
            with_folders
        )

    return decorate


@contextmanager
def _folders_made(folder: Path, output: Path, *, quiet: bool) -> Iterator[None]:
    from organs.registry.store.files import folder_for_placing

    with folder_for_placing(folder) as made:
        yield
    if made and made[0] != output and made[0].is_dir() and not quiet:
        print_sentence(f"created the folder {made[0]}", err=True)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Options that all commands with output files share."""

    output: Path | None = None
    force: bool = False
    dry_run: bool = False
    as_json: bool = False
    quiet: bool = False

    @property
    def prints(self) -> bool:
        """Whether the output is for people."""
        return not (self.as_json or self.quiet)


@dataclass(frozen=True, slots=True)
class WrittenPath:
    """A file that was written, or would be."""

    path: Path
    size_bytes: int
    sha256: Digest | None
    """None if the file was not written and its digest is not known in advance."""
    is_new: bool
    """Whether no earlier file had these bytes: a merged file, new shards, a chimera."""


Targets = Callable[[Path, Sequence[str], bool], list[Path]]
"""Returns where files of these names are written below the output; the flag allows replacing."""


def write_files(
    files: OutputFiles, output: Path, options: OutputOptions, targets_of: Targets | None = None
) -> list[WrittenPath]:
    """Write the files of a registry to `output`, a file or a folder.

    Of several files, one that is already complete at its place stays as it is. Raises BadSource if something is in the
    way.
    """
    names = [file.name for file in files.files]
    targets = gguf_targets(output, names, force=True) if targets_of is None else targets_of(output, names, True)
    complete = [len(targets) > 1 and _is_complete(*pair) for pair in zip(targets, files.files, strict=True)]
    for target, is_complete in zip(targets, complete, strict=True):
        check_free(target, force=options.force or is_complete)
    digests: Sequence[Digest | None] = [file.sha256 for file in files.files]
    quiet = options.dry_run or not options.prints
    with folder_of(targets, dry_run=options.dry_run), progress_bar("write", files.work_bytes, quiet=quiet) as advance:
        if not options.dry_run:
            for file, is_complete in zip(files.files, complete, strict=True):
                advance(file.size_bytes if is_complete else 0)
            missing = [None if done else target for target, done in zip(targets, complete, strict=True)]
            digests = files.place(missing, advance)
    return [
        WrittenPath(target, file.size_bytes, digest, is_new=file.sha256 is None)
        for target, file, digest in zip(targets, files.files, digests, strict=True)
    ]


def print_beside_file(model: SourceModel | None) -> None:
    """Print on stderr what the files of `model` cannot contain: that it was yanked, and its findings."""
    if model is None:
        return
    if model.yanked is not None:
        print_sentence(f"{model.name} was yanked: {model.yanked}", err=True)
    for finding in model.findings:
        print_sentence(finding.sentence, f"{finding.severity.value}: ", err=True)


def _is_complete(target: Path, file: NamedFile) -> bool:
    """Return whether exactly the bytes of `file` are at `target`, and their digest proves them."""
    if not file.is_proven or file.sha256 is None or not target.is_file() or target.is_symlink():
        return False
    with target.open("rb") as data:
        return (
            os.fstat(data.fileno()).st_size == file.size_bytes
            and file_digest(data, "sha256").hexdigest() == file.sha256
        )


def shard_size(text: str | None) -> int | None:
    """Return the size in bytes of the option --shards; None if it is missing or empty."""
    if not text:
        return None
    try:
        return parse_size(text)
    except BadInput as error:
        raise click.UsageError(str(error)) from error


def stem_of(output: Path) -> str | None:
    """Return the beginning of the names of new files if `output` is a file; None for a folder."""
    return output.name.removesuffix(SUFFIX) if output.name.endswith(SUFFIX) else None


def is_file_name(output: Path, count: int = 1) -> bool:
    """Return whether `output`, for `count` files, names a file: it ends in .gguf, or for one file in any letters."""
    return output.name.endswith(SUFFIX) or (count == 1 and output.suffix[1:].isalpha())


def gguf_targets(output: Path, names: Sequence[str], *, force: bool) -> list[Path]:
    """Return where each of the GGUF files `names` is written. Raises BadSource if something is in the way."""
    targets = [_target(output, name, len(names)) for name in names]
    for target in targets:
        folder = target.parent
        check_free(target, force=force)
        can_be_made = len(names) > 1 and folder == output and folder.parent.is_dir() and not os.path.lexists(folder)
        if not folder.is_dir() and not can_be_made:
            raise BadSource(
                f"{folder}: no such folder; to write a file, give a name that ends in {SUFFIX}; to create the folder, "
                f"write {folder}{os.sep}"
            )
    return targets


def check_free(target: Path, *, force: bool) -> None:
    """Raise BadSource if something is in the way of the file `target`."""
    if target.is_dir():
        raise BadSource(f"{target}: this is a folder")
    if target.exists() and not force:
        raise BadSource(f"{target}: already exists; --force replaces it")


def check_folder_free(target: Path, *, force: bool) -> None:
    """Raise BadSource if something is in the way of the organ directory `target`; an empty folder is not."""
    if os.path.lexists(target) and not force and not (target.is_dir() and not any(target.iterdir())):
        raise BadSource(f"{target}: already exists; --force replaces an organ directory")


def folder_of(targets: Sequence[Path], *, dry_run: bool) -> AbstractContextManager[object]:
    """Create the folder of `targets` while they are written, where `gguf_targets` allowed it to be missing."""
    from organs.registry.store.files import folder_for_placing

    return nullcontext() if dry_run or not targets else folder_for_placing(targets[0].parent)


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of `folder`, which exists."""
    from organs.registry.store.files import Files

    return Files().free_bytes(folder)


def check_fits(target: Path, size_bytes: int) -> None:
    """Raise DiskFull if `size_bytes` do not fit on the disk of `target`."""
    from organs.registry.store.files import Files, check_room, placing_error

    try:
        check_room(target.parent, size_bytes, Files())
    except OSError as error:
        raise placing_error(error, target) from error


def write_text(target: Path, text: str) -> None:
    """Write `text` to `target` completely or not at all, replacing what is there."""
    from organs.registry.store.files import placed

    data = text.encode("utf-8")
    with placed(target, len(data)) as file:
        file.write_at(data, 0)


def _target(output: Path, name: str, count: int) -> Path:
    from organs.registry.gguf.split import parse_shard_name

    if output.is_dir() or not is_file_name(output, count):
        return output / Path(name).name
    if count == 1:
        return output
    shard = parse_shard_name(name)
    suffix = name if shard is None else f"-{shard.number:05d}-of-{shard.count:05d}{SUFFIX}"
    return output.with_name(output.name.removesuffix(SUFFIX) + suffix)
