"""Composition without a registry: from models in files or organ directories to one file, with the same planner."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from threadpoolctl import threadpool_limits

from organs.ingest.dissect import DissectedFile
from organs.ingest.sources import ModelSource, open_files
from organs.registry.anatomy import Slot, expert_name, place_of
from organs.registry.compose.extraction import ReadableModel
from organs.registry.compose.lock import Lock
from organs.registry.compose.parents import (
    Parent,
    Part,
)
from organs.registry.compose.plan import Plan, PlannedPart
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.plan import GRAFTED
from organs.registry.errors import BadQuery, NotFound
from organs.registry.experts import expert_shape
from organs.registry.gguf import HeaderSource, TensorInfo, read_header
from organs.registry.gguf.header import range_digest
from organs.registry.input_files import BytesInMemory, ComposedFile, OpenFile, Section, read_pieces
from organs.registry.measure import count_nonfinite_in, measure
from organs.registry.progress import Progress, no_progress
from organs.registry.search.gains import DonorGain
from organs.registry.store.files import (
    Files,
    placed,
)
from organs.registry.transform import Plain


def place_virtual(file: OpenFile, path: Path, progress: Progress = no_progress, files: Files | None = None) -> Digest:
    """Write `file` to `path`, replacing an existing file, and return its SHA-256.

    Raises BadSource if a source changes meanwhile, DiskFull, StoreUnwritable; then `path` is unchanged.
    """
    with placed(path, file.size_bytes, files, progress) as target:
        for piece in read_pieces(file, 0, file.size_bytes):
            target.write(piece)
        file.check_unchanged()
    return target.sha256


@dataclass(frozen=True, slots=True)
class Transplant:
    """The result of a recipe on files; `file` can be read while the files of the parents are open."""

    plan: Plan
    lock: Lock
    file: ComposedFile


@dataclass(slots=True)
class FileLibrary:
    """Models in files by name. Each is hashed and measured on first use."""

    opened: ExitStack
    """Closes the files of the models."""
    sources: Mapping[str, ModelSource]
    _parents: dict[str, tuple[Parent, list[DissectedFile]]] = field(default_factory=dict)

    def parent(self, text: str) -> Parent:
        """Return the model `text`; raises NotFound, BadInput."""
        return self._open(text)[0]

    def organs(self, query: str, base: str | None = None) -> Iterator[PlacedOrgan]:
        """Raise BadQuery: files cannot be searched."""
        raise BadQuery(query, "files cannot be searched: ingest them, and compose in the registry")

    def stored(self, parts: Collection[Part]) -> None:
        """Return None: nothing is stored, and only grafts are made from files."""

    def source_of(self, model: Parent, named: str | None = None) -> None:
        """Return None: nothing is proved of files."""

    def measured(self, base: Parent, donors: Sequence[Parent]) -> dict[str, DonorGain]:
        """Return nothing: gains are known for registered models only."""
        return {}

    def experts(self, parent: Parent, stacks: Collection[str], numbers: Collection[int]) -> dict[tuple[str, int], Part]:
        """Return the experts `numbers` of the tensors `stacks`, measured, by stack and number."""
        _, files = self._open(parent.label)
        wanted = [
            (file, tensor, number)
            for file in files
            for tensor in file.header.tensors
            if tensor.name in stacks
            for number in sorted(numbers)
            if number < file.stacks.get(tensor.name, 0)
        ]
        keys = [(tensor.name, number) for _, tensor, number in wanted]
        return dict(zip(keys, _measured(wanted), strict=True))

    def in_common(self, base: Parent) -> dict[Slot, set[str]]:
        """Return an empty dictionary: files have no queries."""
        return {}

    def place_of(self, parent: Parent, name: str) -> tuple[DissectedFile, TensorInfo]:
        """Return the file of the tensor `name` of `parent`, and its entry in the header."""
        _, files = self._open(parent.label)
        return next((file, tensor) for file in files for tensor in file.header.tensors if tensor.name == name)

    def readable(self, text: str) -> ReadableModel:
        """Return the model `text` with its weights; raises NotFound, BadInput."""
        parent = self.parent(text)
        tensors = {tensor.name: (file, tensor) for file in self._open(text)[1] for tensor in file.header.tensors}

        def plain(part: Part, _opened: ExitStack) -> Plain:
            file, tensor = tensors[part.name]
            return Plain(lambda offset, size: file.read_tensor(tensor, offset, size), part.dtype, part.shape)

        return ReadableModel(parent, plain)

    def _open(self, text: str) -> tuple[Parent, list[DissectedFile]]:
        if text not in self.sources:
            raise NotFound(f"no file has the name {text}")
        if text not in self._parents:
            files = open_files(self.opened, self.sources[text])
            self._parents[text] = (parent_of_files(text, files), files)
        return self._parents[text]


def transplant(plan: Plan, library: FileLibrary, path: Path) -> Transplant:
    """Return the file that `plan` makes from the models in `library`; `path` is its future path.

    Raises NotComposable if it cannot be made, BadInput for invalid files.
    """
    plan.check()
    only_grafts = all(item.acts == (GRAFTED,) for item in plan.computations.values())
    assert only_grafts, "files are grafted; adapters and purification are the registry's"
    digests = {}
    for part in plan.parts:
        if part.computation is not None:
            stack = list(_expert_sections(part, plan.base, 0, library))
            size_bytes = part.source.size_bytes
            file_of_stack = ComposedFile(Path(part.before.name), size_bytes, stack)
            digests[part.before.name] = range_digest(file_of_stack, 0, size_bytes)
    lock = plan.lock(digests)
    data = plan.header(lock)
    header = read_header(HeaderSource(data, plan.size_bytes, str(path)))
    sections = [Section(0, len(data), BytesInMemory(data))]
    for part, tensor in zip(plan.parts, header.tensors, strict=True):
        offset = header.data_offset + tensor.offset
        if part.computation is None:
            file, source = library.place_of(part.donor or plan.base, part.source.name)
            sections.append(Section(offset, tensor.size_bytes, file.source, file.tensor_span(source).offset))
        else:
            sections += _expert_sections(part, plan.base, offset, library)
    return Transplant(plan, lock, ComposedFile(path, plan.size_bytes, sections))


def parent_of_files(label: str, files: Sequence[DissectedFile]) -> Parent:
    """Return a model in files as a parent: every tensor is hashed and measured as in an ingest."""
    tensors = [(file, tensor, None) for file in files for tensor in file.header.tensors]
    first = files[0]
    header = first.source.read_at(0, first.header.end)
    return Parent(
        label=label,
        header=first.header,
        source=HeaderSource(header, first.header.file_size_bytes, first.source.name),
        header_digest=digest_of(header),
        parts=_measured(tensors),
        unassemblable=tuple(reason for file in files for reason in file.front.unassemblable),
    )


def _measured(organs: Sequence[tuple[DissectedFile, TensorInfo, int | None]]) -> tuple[Part, ...]:
    """Read and measure tensors, or the experts with the last number, with several threads."""
    with (
        threadpool_limits(1, "blas"),
        ThreadPoolExecutor(max(2, os.cpu_count() or 2), thread_name_prefix="transplant") as workers,
    ):
        return tuple(workers.map(lambda organ: _part(*organ), organs))


def _part(file: DissectedFile, tensor: TensorInfo, expert: int | None) -> Part:
    name, shape, span = tensor.name, tensor.shape, file.tensor_span(tensor)
    if expert is not None:
        name, shape, span = expert_name(name, expert), expert_shape(shape), file.expert_span(tensor, expert)
    digest = hashlib.sha256()

    def read(offset: int, size: int) -> bytes:
        return file.source.read_at(span.offset + offset, size)

    def hash_pieces() -> Iterator[memoryview]:
        for piece in file.pieces(span):
            digest.update(piece)
            yield piece

    measurement = measure(read, shape, tensor.dtype)
    nonfinite = count_nonfinite_in(hash_pieces(), tensor.dtype)
    return Part(
        name=name,
        place=place_of(tensor.name),
        dtype=tensor.dtype,
        shape=shape,
        digest=Digest(digest.hexdigest()),
        theta=measurement.theta,
        spectral_signal=measurement.spectral_signal,
        fingerprint=measurement.fingerprint,
        mean=measurement.mean,
        standard_deviation=measurement.standard_deviation,
        nonfinite=nonfinite,
    )


def _expert_sections(part: PlannedPart, base: Parent, offset: int, library: FileLibrary) -> Iterator[Section]:
    """Yield a section for each expert of a stack to which other models give experts."""
    assert part.computation is not None
    count = part.source.shape[-1]
    size = part.source.size_bytes // count
    origins = [library.place_of(part.donor or base, part.source.name)] * count
    for graft in part.expert_grafts:
        for expert in graft.experts:
            origins[expert] = library.place_of(graft.donor, graft.after.name)
    for expert, (file, source) in enumerate(origins):
        yield Section(offset + expert * size, size, file.source, file.tensor_span(source).offset + expert * size)
