"""A source, opened: the files of one model in order, dissected; they lie there or are read out of a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from organs.ingest.directory.folder import Folder, is_organ_directory
from organs.ingest.directory.opening import directory_size_bytes, open_directory
from organs.ingest.dissect import DissectedFile, dissect
from organs.ingest.files import FileSource, OpenFile
from organs.ingest.sources import CONVERT, SAFETENSORS_SUFFIX, ModelSource
from organs.ingest.tensor_count import check_tensor_sizes
from organs.registry.digest import Digest
from organs.registry.errors import BadSource, BadSplit
from organs.registry.gguf.split import check_split, is_shard


def open_files(opened: ExitStack, source: ModelSource) -> list[DissectedFile]:
    """The files of `source`, open as long as `opened` is; raises BadInput for what is refused."""
    files = [dissect(file) for path in source.paths for file in _open(opened, path)]
    return in_order(source.name.name, files)


def in_order(name: str, files: Sequence[DissectedFile]) -> list[DissectedFile]:
    """Return the files of the one model `name`, shards in their order.

    Raises BadSplit for what is no whole split set, TooManyTensors.
    """
    check_tensor_sizes(name, (tensor.size_bytes for file in files for tensor in file.header.tensors))
    if len(files) == 1 and not is_shard(files[0].header):
        return list(files)
    if all(not is_shard(file.header) for file in files):
        raise BadSplit(name, ["there are several files, but none says in its header that it is a shard"])
    order = check_split(name, [(file.source.path.name, file.header) for file in files])
    return [files[index] for index in order]


def source_size_bytes(source: ModelSource) -> int:
    """What there is to read, for progress; what cannot be looked at counts as nothing."""
    return sum(
        directory_size_bytes(path) if path.is_dir() else path.stat().st_size if path.is_file() else 0
        for path in source.paths
    )


def notes_of(
    files: Sequence[DissectedFile], digests: Mapping[int, Digest], pieces: Mapping[tuple[int, int], Digest]
) -> tuple[str, ...]:
    """What a person should know of `files`, when each (by index) and its pieces (and by offset) have these digests."""
    own = by_file(len(files), pieces)
    return tuple(note for index, file in enumerate(files) for note in file.source.notes(digests[index], own[index]))


def by_file(count: int, pieces: Mapping[tuple[int, int], Digest]) -> list[dict[int, Digest]]:
    """The digests of pieces by offset, for each of `count` files, from those by file and offset."""
    own: list[dict[int, Digest]] = [{} for _ in range(count)]
    for (index, offset), digest in pieces.items():
        own[index][offset] = digest
    return own


def _open(opened: ExitStack, path: Path) -> Sequence[OpenFile]:
    if path.suffix.lower() == SAFETENSORS_SUFFIX and path.is_file():
        raise BadSource(f"{path}: a safetensors file; this program reads GGUF. {CONVERT}")
    if not is_organ_directory(path):
        return [opened.enter_context(FileSource(path))]
    return open_directory(opened.enter_context(Folder(path)))
