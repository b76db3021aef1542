"""Sources of an ingest: files, folders, patterns, split sets and organ directories, found and opened.

Models in safetensors files are converted to GGUF by the program of llama.cpp, `convert_hf_to_gguf.py`. The program is
another project's, runs with the rights of the user, and can run code that the folder brings. It is started only if a
person asks for it.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from organs.ingest.adapted_base import AdaptedBase
from organs.ingest.directory.layout import MANIFEST_FILE
from organs.ingest.directory.opening import Folder, directory_size_bytes, is_organ_directory, open_directory
from organs.ingest.dissect import DissectedFile, OpenGguf, check_tensor_sizes, dissect
from organs.ingest.peft import adapter_folder, adapter_size_bytes, is_adapter_folder, open_adapter
from organs.ingest.safetensors import SAFETENSORS_SUFFIX, is_model_folder, quantised_by
from organs.ingest.urls import Hub, RemoteFile, find_remote, is_url
from organs.registry.digest import Digest
from organs.registry.entities.model import RuntimeText
from organs.registry.errors import BadGguf, BadSource, BadSplit, ConversionFailed
from organs.registry.gguf import read_header
from organs.registry.gguf.split import ShardName, check_split, is_shard, parse_shard_name
from organs.registry.input_files import FileSource, OpenFile, ReadableFile
from organs.registry.names import ModelName, name_from_text, namespace_from_text
from organs.registry.store.files import temporary_folder

GGUF_SUFFIX = ".gguf"
CONVERT = "Convert a safetensors model first, with llama.cpp: convert_hf_to_gguf.py FOLDER --outfile MODEL.gguf"
LOCAL_NAMESPACE = "local"
G = TypeVar("G", bound=OpenGguf)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The files of one model (one GGUF, or the shards of a split set) and its future name.

    An organ directory and an adapter folder have one path, that of the folder.
    """

    paths: tuple[Path, ...]
    name: ModelName
    remote: tuple[RemoteFile, ...] = ()
    """The files on a server; then there are no `paths`. A model in a registry has neither."""
    other_names: tuple[ModelName, ...] = ()
    """Further names that the tool has for the same bytes, the best first."""
    tool: str = ""
    """The tool that keeps the files (`ingest.tools`); empty for files that a person named."""
    texts: tuple[RuntimeText, ...] = ()
    """Texts that the tool keeps beside the model."""
    digests: tuple[Digest, ...] = ()
    """The SHA-256 of each file as the tool states it, not checked; empty if it is unknown."""
    base: AdaptedBase | None = None
    """The base of an adapter folder, if its facts do not come from the folder."""
    card: Path | None = None
    """The file with its card (`ingest.cards`), for a model that is new."""

    @property
    def locations(self) -> tuple[str, ...]:
        """The paths or the addresses of the files, or the name of a model in a registry."""
        return tuple(map(str, self.remote or self.paths or (self.name,)))

    @property
    def is_registered(self) -> bool:
        """Whether it is a model in a registry, without files."""
        return not self.remote and not self.paths

    @property
    def adapter(self) -> Path | None:
        """The adapter folder; None for another source."""
        return self.paths[0] if len(self.paths) == 1 and is_adapter_folder(self.paths[0]) else None

    @property
    def label(self) -> str:
        """The name of the source for messages."""
        first, *others = self.locations
        return first + (f" and {len(others)} more shards" if others else "")


class Skipped(NamedTuple):
    """Files of folders that are not ingested."""

    files: int
    safetensors: int
    """Number of safetensors files among them."""


def find_sources(
    arguments: Iterable[str],
    purpose: str = "ingest",
    hub: Hub | None = None,
    problems: list[BadSource] | None = None,
) -> list[ModelSource]:
    """Return the models in `arguments`: paths of files and folders (searched recursively), patterns, and addresses.

    A shard selects its whole set. Each file is used once. Addresses (`ingest.urls`) come last, and are read through
    `hub`; without it, they are refused. Raises BadSource for an argument without files, or adds it to `problems` if
    these are given; `purpose` is the verb of its message.
    """
    paths: dict[Path, None] = {}
    remote: dict[str, None] = {}
    for argument in arguments:
        if is_url(argument) and not os.path.lexists(argument):
            remote[argument] = None
            continue
        try:
            paths.update(dict.fromkeys(_found(argument, purpose)))
        except BadSource as error:
            if problems is None:
                raise
            problems.append(error)
    sources = group_models(paths, LOCAL_NAMESPACE)
    for address in remote:
        if hub is None:
            raise BadSource(f"{address[:200]}: an address; to {purpose} the model, download it first")
        model = find_remote(address, hub)
        namespace = LOCAL_NAMESPACE if model.namespace is None else namespace_from_text(model.namespace)
        sources.append(ModelSource((), ModelName(namespace, name_from_text(model.stem)), model.files))
    return sources


def _found(argument: str, purpose: str) -> list[Path]:
    """Return the models in a path or a pattern. Raises BadSource if there are none."""
    try:
        matches = list(_expand(argument)) if argument else []  # an empty path would be the current folder
    except OSError as error:
        raise BadSource(f"{argument[:200]}: {error.strerror}") from error
    if matches:
        return matches
    if is_model_folder(Path(argument)):
        refuse_unconvertible(Path(argument))
        raise BadSource(f"{argument}: a model in safetensors files. Convert it first: {convert_command(argument)}")
    hint = f". {CONVERT}" if skipped_files([argument]).safetensors else ""
    if Path(argument).is_dir():
        reason = "the folder has no GGUF files and no tensors"
    else:
        reason = "no file matches the pattern" if glob.has_magic(argument) else "no such file or folder"
    raise BadSource(f"{argument}: nothing to {purpose}: {reason}{hint}")


def convert_command(folder: str) -> str:
    """Return the command that converts the safetensors model in `folder` with the program of llama.cpp."""
    name = name_from_text(Path(folder).resolve().name)
    words = ("python", "convert_hf_to_gguf.py", folder, "--outfile", f"{name}{GGUF_SUFFIX}", "--outtype", "auto")
    return shlex.join(words)


def refuse_unconvertible(folder: Path) -> None:
    """Raise BadSource for a folder whose weights are quantised in a way that the program of llama.cpp cannot read."""
    if quantisation := quantised_by(folder):
        raise BadSource(
            f"{folder}: its weights are quantised by {quantisation}, which convert_hf_to_gguf.py cannot read. Take the "
            "original model without quantisation, and convert that"
        )


def skipped_files(arguments: Iterable[str]) -> Skipped:
    """Count the files below the folders among `arguments` that are not ingested. Hidden files are not counted."""
    files = {
        path
        for argument in arguments
        if argument and (folder := Path(argument)).is_dir() and not _is_model_in_folder(folder)
        for path in _visible_files(folder)
        if not is_gguf_name(path.name) and parse_part_name(path.name) is None
    }
    return Skipped(len(files), sum(path.suffix.lower() == SAFETENSORS_SUFFIX for path in files))


def is_gguf_name(name: str) -> bool:
    """Return whether the name of a file is that of a GGUF file, in any case."""
    return name.lower().endswith(GGUF_SUFFIX)


def _visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files below `folder` that are neither hidden nor part of an organ directory or an adapter folder."""
    for parent, folders, files in os.walk(folder):
        directory = Path(parent)
        folders[:] = [
            name for name in folders if not name.startswith(".") and not _is_model_in_folder(directory / name)
        ]
        yield from (directory / name for name in files if not name.startswith("."))


def _is_model_in_folder(path: Path) -> bool:
    """Return whether the folder is one model: an organ directory or an adapter folder."""
    return is_organ_directory(path) or is_adapter_folder(path)


def directory_source(path: Path) -> ModelSource:
    """Return the model in the organ directory or the PEFT folder `path`, named after its folder."""
    return ModelSource((path,), ModelName(LOCAL_NAMESPACE, name_from_text(path.resolve().name)))


def _expand(argument: str) -> Iterator[Path]:
    path = Path(argument)
    if path.is_dir():
        found = [file for file in path.rglob("*.[gG][gG][uU][fF]*") if file.is_file()]
        files = [file for file in found if is_gguf_name(file.name)]
        directories = [file.parent for file in path.rglob(MANIFEST_FILE) if is_organ_directory(file.parent)]
        yield from sorted([*files, *first_parts(found), *directories, *_find_adapters(path)])
    elif path.exists() or path.is_symlink():
        yield adapter_folder(path) or path
    elif glob.has_magic(argument):
        matches = (Path(match) for match in sorted(glob.glob(argument, recursive=True)))
        yield from (match for match in matches if not match.is_dir() or _is_model_in_folder(match))


def _find_adapters(folder: Path) -> Iterator[Path]:
    """Yield the adapter folders in `folder`; those inside of another one are its earlier checkpoints, and left out."""
    if is_adapter_folder(folder):
        yield folder
        return
    for parent, folders, _ in os.walk(folder):
        adapters = [name for name in folders if is_adapter_folder(Path(parent, name))]
        folders[:] = [name for name in folders if name not in adapters]
        yield from (Path(parent, name) for name in adapters)


def group_models(paths: Iterable[Path], namespace: str) -> list[ModelSource]:
    """Return the models in files and organ directories, named after them; shards with all others beside them."""
    sources: dict[tuple[Path, ShardName | str], ModelSource] = {}
    for path in paths:
        if path.is_dir():
            sources[path, ""] = directory_source(path)
            continue
        shard = parse_shard_name(path.name)
        if shard is None or shard.count > 1 << 16:
            key: ShardName | str = path.name
            files: tuple[Path, ...] = (path,)
            stem = path.name.removesuffix(GGUF_SUFFIX)
        else:
            key = ShardName(shard.stem, 0, shard.count)
            beside = path.parent.glob(f"{glob.escape(shard.stem)}-*-of-{shard.count:05d}{GGUF_SUFFIX}")
            shards = ((other, parse_shard_name(other.name)) for other in sorted(beside))
            files = tuple(other for other, name in shards if name is not None and name.stem == shard.stem) or (path,)
            stem = shard.stem
        sources.setdefault((path.parent, key), ModelSource(files, ModelName(namespace, name_from_text(stem))))
    return list(sources.values())


def open_files(opened: ExitStack, source: ModelSource) -> list[DissectedFile]:
    """Open the files of `source`; `opened` closes them. Raises BadInput for invalid files."""
    return in_order(source.name.name, open_unordered(opened, source))


def open_unordered(opened: ExitStack, source: ModelSource) -> list[DissectedFile]:
    """Open the files of `source` as `open_files` does, in the order of their names; shards may be missing."""
    return [dissect(file) for path in source.paths for file in open_path(opened, path, source.base)]


def open_headers(opened: ExitStack, source: ModelSource) -> list[OpenGguf]:
    """Open the files of `source`, on the disk or on a server, and read only their headers; raises as `open_files`.

    The files are in the order of their names, and shards may be missing: see `in_order`.
    """
    sources: list[ReadableFile] = [file.open() for file in source.remote]
    sources += [file for path in source.paths for file in open_path(opened, path, source.base)]
    return [OpenGguf(file, read_header(file)) for file in sources]


def in_order(name: str, files: Sequence[G]) -> list[G]:
    """Return the files of the one model `name`, shards in their order.

    Raises BadSplit for an incomplete split set, TooManyTensors.
    """
    check_tensor_sizes(name, (tensor.size_bytes for file in files for tensor in file.header.tensors))
    if len(files) == 1 and not is_shard(files[0].header):
        return list(files)
    if all(not is_shard(file.header) for file in files):
        raise BadSplit(name, ["there are several files, but no header says that its file is a shard"])
    order = check_split(name, [(file.source.path.name, file.header) for file in files])
    return [files[index] for index in order]


def source_size_bytes(source: ModelSource) -> int:
    """Return the bytes to read, for progress; unreadable files count as 0."""
    total = 0
    for path in source.paths:
        if is_adapter_folder(path):
            total += adapter_size_bytes(path)
        elif path.is_dir():
            total += directory_size_bytes(path)
        elif path.is_file():
            total += path.stat().st_size
    return total


def open_path(opened: ExitStack, path: Path, base: AdaptedBase | None = None) -> Sequence[OpenFile]:
    """Open a file, or the files in an organ directory or an adapter folder; raises BadInput. `opened` closes them."""
    if path.suffix.lower() == SAFETENSORS_SUFFIX and path.is_file():
        refuse_unconvertible(path.parent)
        raise BadSource(f"{path}: a safetensors file; this program reads GGUF. {CONVERT}")
    if is_organ_directory(path):
        return open_directory(opened.enter_context(Folder(path)))
    if is_adapter_folder(path):
        return [open_adapter(opened, path, base)]
    file = opened.enter_context(FileSource(path))
    if part := parse_part_name(path.name):  # refuse it, unless it is a whole file of that name
        try:
            read_header(file)
        except BadGguf as error:
            raise BadSource(joining_sentence(file.path, part)) from error
    return [file]


LISTED_MAX = 50
"""The most parts that a command lists."""
_PART_NAME = re.compile(
    r"(?P<whole>.+\.gguf)[-._](?:(?P<word>part|split)[-._]?(?:[0-9]{1,5}(?:[-_]?of[-_]?(?P<count>[0-9]{1,5}))?|[a-z]{1,2})"
    r"|[0-9]{2,3}|a[a-z])",
    re.ASCII | re.IGNORECASE,
)
_NUMBER = re.compile(r"([0-9]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartName:
    """The name of a file that was cut by bytes, as `split` does it: `model.gguf.part1of2`, `model.gguf.001`.

    Shards are GGUF files, but such parts are not: they must be joined first.
    """

    whole: str
    """The name of the whole file."""
    count: int | None
    """The number of parts, if it is stated."""
    is_sure: bool
    """Whether the name has the word for a part; another file can also end in a number."""


def parse_part_name(name: str) -> PartName | None:
    """Return what the file name `name` says about a part of a GGUF file; None if it is not that of a part."""
    match = _PART_NAME.fullmatch(name)
    if match is None:
        return None
    return PartName(match["whole"], int(match["count"]) if match["count"] else None, match["word"] is not None)


def first_parts(files: Iterable[Path]) -> list[Path]:
    """Return the first part of each GGUF file of which `files` has parts, unless the whole file is there too."""
    sets: dict[Path, list[Path]] = {}
    sure = set()
    for path in files:
        part = parse_part_name(path.name)
        if part is not None:
            whole = path.with_name(part.whole)
            sets.setdefault(whole, []).append(path)
            sure |= {whole} if part.is_sure else set()
    cut = {whole: parts for whole, parts in sets.items() if (len(parts) > 1 or whole in sure) and not whole.exists()}
    return [min(parts, key=_order) for parts in cut.values()]


def joining_sentence(path: Path, part: PartName) -> str:
    """Return the sentence on a part at `path`: that it is one, and the command that joins it with those beside it."""
    parsed = [(other, parse_part_name(other.name)) for other in path.parent.iterdir()]
    parts = sorted((other for other, name in parsed if name is not None and name.whole == part.whole), key=_order)
    subject = f"{path}: a part of a GGUF file that was cut by bytes"
    if part.count is not None and len(parts) < part.count:
        there = f"{len(parts)} of its {part.count} parts {'is' if len(parts) == 1 else 'are'} here"
        return f"{subject}; only {there}. When all are, join them in their order with cat"
    whole = shlex.quote(str(path.with_name(part.whole)))
    listed = shlex.join(map(str, parts)) if len(parts) <= LISTED_MAX else f"$(ls -v {whole}[-._]*)"
    return f"{subject}. Join all parts first: cat {listed} > {whole}"


def _order(path: Path) -> list[tuple[int, str]]:
    """Return the key by which `part10of12` follows `part9of12`."""
    return [(int(text), "") if text.isdigit() else (-1, text) for text in _NUMBER.split(path.name)]


PROGRAM = "convert_hf_to_gguf.py"
LAST_LINES, LAST_BYTES = 8, 4096
"""How much of the program's output is in the error if it fails."""


@contextmanager
def converted(folder: Path, program: str, python: str, spool: Path) -> Iterator[ModelSource]:
    """Convert the model in `folder` with `program`; return a context manager for the file, which it removes.

    The file is in a new folder inside of `spool`. A `program` that is not executable is run by `python`. Raises
    BadSource if the folder has no model in safetensors files or one that cannot be converted, ConversionFailed with the
    last lines of the program, StoreUnwritable.
    """
    if not is_model_folder(folder):
        raise BadSource(f"{folder}: no model in safetensors files to convert: it has no config.json or no weights")
    refuse_unconvertible(folder)
    name = name_from_text(folder.resolve().name)
    with temporary_folder(spool) as work:
        file, log = work / f"{name}{GGUF_SUFFIX}", work / "log"
        start = [program] if os.access(program, os.X_OK) else [python, program]
        command = [*start, str(folder.resolve()), "--outfile", str(file), "--outtype", "auto"]
        try:
            with log.open("wb") as output:
                done = subprocess.run(  # noqa: S603  # the person names the program
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False
                )
        except OSError as error:
            raise ConversionFailed(f"{start[0]}: {error.strerror}") from error
        if done.returncode:
            raise ConversionFailed(f"{start[0]} failed with the status {done.returncode}: {_last_lines(log)}")
        if not file.is_file():
            raise ConversionFailed(f"{program} ended without an error, but wrote no file: {_last_lines(log)}")
        yield ModelSource((file,), ModelName(LOCAL_NAMESPACE, name))


def _last_lines(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return " | ".join(line.strip() for line in lines[-LAST_LINES:] if line.strip()) or "it printed nothing"
