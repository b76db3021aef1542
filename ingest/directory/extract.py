"""Organ directories written from GGUF files or a registered model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from threadpoolctl import threadpool_limits

from organs.ingest.directory.folder import (
    StagedFile,
    Staging,
    check_target,
    staged,
    total,
)
from organs.ingest.directory.layout import (
    FOLDERS,
    HEAD_MAX_BYTES,
    HEADER_FILE,
    MANIFEST_FILE,
    encode_head,
    organ_files,
    safe_file_name,
)
from organs.ingest.directory.manifest import (
    GGUF_FILES_MAX,
    MANIFEST_LIMITS,
    TENSORS_MAX,
    Measures,
    Padding,
    Stretch,
    WrittenGguf,
    WrittenTensor,
    manifest_lines,
)
from organs.ingest.directory.metadata import readable_metadata
from organs.ingest.directory.opening import HEADERS_MAX_BYTES
from organs.ingest.dissect import DissectedFile, dissect
from organs.ingest.files import BUFFER_BYTES, FileSource
from organs.registry.anatomy import OrganType
from organs.registry.assembly import (
    FilePlan,
    FileStream,
    plan_model,
)
from organs.registry.catalog.queries.model_contents import files_of, placements_of
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.digest import Digest
from organs.registry.documents import Outline
from organs.registry.errors import BadSource, CorruptBlob
from organs.registry.gguf import ByteSource, Header, HeaderSource, TensorInfo, read_header
from organs.registry.gguf.split import check_split
from organs.registry.interface import Registry
from organs.registry.local import LocalRegistry
from organs.registry.measure import measure
from organs.registry.measures import MEASURE_NAMES
from organs.registry.names import ModelName
from organs.registry.store import BlobStore
from organs.registry.store.files import Files


@dataclass(frozen=True, slots=True)
class Content:
    """One GGUF file to extract."""

    name: str
    header: Header
    head: ByteSource
    """The beginning of the file: at least the bytes of the header."""
    views: Callable[[], AbstractContextManager[Iterator[memoryview]]]
    """Returns the bytes of the whole file in order; a view is valid until the next view is read."""
    measures: Callable[[TensorInfo], Measures]
    """Measures an organ; safe for several threads."""
    check: Callable[[Digest], None]
    """Called with the digest of the read bytes; raises for a wrong digest."""


def file_contents(files: Sequence[DissectedFile]) -> list[Content]:
    """Return the contents of files on the disk, which must not change before they are read; organs are measured."""
    return [
        Content(
            name=file.source.path.name,
            header=file.header,
            head=file.source,
            views=partial(_file_views, file),
            measures=partial(_measure_tensor, file),
            check=partial(_check_unchanged, file),
        )
        for file in files
    ]


ShowDownload = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Called with the size of a download in bytes. The block of its result gets a function for the number of new bytes."""


def model_contents(
    opened: ExitStack,
    registry: Registry,
    name: ModelName,
    target: Path,
    *,
    replaces: bool = False,
    show_download: ShowDownload | None = None,
) -> list[Content]:
    """Return the contents of a registered model, for an organ directory `target`. Each chunk is checked.

    The stored measures of a local registry are used. Files of a remote registry are downloaded beside `target`,
    checked, and deleted when `opened` closes. Raises NotFound, NotAssemblable, CorruptBlob, MissingBlob, Unreachable;
    BadSource if `target` exists and is not replaced.
    """
    if isinstance(registry, LocalRegistry):
        return registered_contents(registry, name)
    from organs.registry.client.remote import RemoteRegistry  # loads HTTP, which local registries do not need

    assert isinstance(registry, RemoteRegistry)
    check_target(Path(os.path.abspath(target)), replace=replaces)
    files = opened.enter_context(registry.downloaded(str(name), target, show_download))
    dissected = [dissect(opened.enter_context(FileSource(file.path))) for file in files]
    if len(dissected) > 1:
        check_split(str(name), [(file.name, split.header) for file, split in zip(files, dissected, strict=True)])
    contents = zip(file_contents(dissected), files, strict=True)
    return [replace(content, name=file.name) for content, file in contents]


def registered_contents(registry: LocalRegistry, name: ModelName) -> list[Content]:
    """Return the contents of a model in a local registry, with the stored measures. Each chunk is checked.

    Raises NotFound, NotAssemblable, CorruptBlob, MissingBlob.
    """
    with registry.catalog.reading() as session:
        model = model_by_name(session, name)
        plans = plan_model(session, model)
        header_sizes = [file.header_bytes for file in files_of(session, model.id)]
        measures: dict[str, Measures] = {
            placement.name: {name: getattr(placement, name) for name in MEASURE_NAMES}
            for placement, *_ in placements_of(session, model.id)
        }
    return [_blob_content(registry.blobs, plan, size, measures) for plan, size in zip(plans, header_sizes, strict=True)]


@contextmanager
def _file_views(file: DissectedFile) -> Iterator[Iterator[memoryview]]:
    yield _views_of(file)


def _views_of(file: DissectedFile) -> Iterator[memoryview]:
    size = file.header.file_size_bytes
    buffer = memoryview(bytearray(min(BUFFER_BYTES, size)))
    for begin in range(0, size, BUFFER_BYTES):
        view = buffer[: min(BUFFER_BYTES, size - begin)]
        file.source.read_into(view, begin)
        yield view


def _measure_tensor(file: DissectedFile, tensor: TensorInfo) -> Measures:
    begin = file.tensor_span(tensor).offset

    def read(offset: int, size: int) -> bytes:
        return file.source.read_at(begin + offset, size)

    measurement = measure(read, tensor.shape, tensor.dtype)
    return {name: getattr(measurement, name) for name in MEASURE_NAMES}


def _check_unchanged(file: DissectedFile, _digest: Digest) -> None:
    file.source.check_unchanged()


def _blob_content(store: BlobStore, plan: FilePlan, header_bytes: int, measures: dict[str, Measures]) -> Content:
    header_slices = tuple(piece for piece in plan.slices if piece.offset_bytes < header_bytes)
    collected = bytearray()
    with FileStream(store, FilePlan(plan.name, header_bytes, None, b"", header_slices)) as stream:
        for view in stream:
            collected += view
    head = HeaderSource(bytes(collected), plan.size_bytes, plan.name)
    return Content(
        name=plan.name,
        header=read_header(head),
        head=head,
        views=partial(_plan_views, store, plan),
        measures=lambda tensor: measures[tensor.name],
        check=partial(_check_digest, plan),
    )


@contextmanager
def _plan_views(store: BlobStore, plan: FilePlan) -> Iterator[Iterator[memoryview]]:
    with FileStream(store, plan) as stream:
        yield iter(stream)


def _check_digest(plan: FilePlan, digest: Digest) -> None:
    if plan.sha256 is not None and digest != plan.sha256:
        raise CorruptBlob(plan.name, f"its SHA-256 would be {digest} instead of {plan.sha256}; nothing was written")


Progress = Callable[[int], None]

MANIFEST_BYTES_PER_TENSOR = 1024
"""Upper estimate for the check of free space; metadata can be three times as large as in the header."""


@dataclass(frozen=True, slots=True)
class ExtractReport:
    """The written folder, and the name, size and digest of each GGUF file that it was made from."""

    path: Path
    tensors: int
    size_bytes: int
    files: tuple[tuple[str, int, Digest], ...]


def extract(
    contents: Sequence[Content],
    target: Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
    files: Files | None = None,
) -> ExtractReport:
    """Write `contents`, the files of one model in order, as the organ directory `target`, completely or not at all.

    Memory does not depend on the sizes of tensors. Raises BadSource if the target exists, a source changed, or the
    manifest would be too large to read again; DiskFull, StoreUnwritable; CorruptBlob and MissingBlob from the
    registry.
    """
    _check_limits(contents)
    target = Path(os.path.abspath(target))
    with staged(target, _disk_bytes(contents), replace=force, files=files) as staging:
        work = _Extraction(contents, staging, progress or _no_progress)
        work.run()
    sizes = tuple((file.name, file.size_bytes, file.sha256) for file in work.ggufs)
    return ExtractReport(target, len(work.tensors), sum(size for _, size, _ in sizes), sizes)


def _check_limits(contents: Sequence[Content]) -> None:
    for content in contents:
        if content.header.is_big_endian:
            raise BadSource(f"{content.name}: it is big-endian, and the files of an organ directory are little-endian")
    tensors = sum(len(content.header.tensors) for content in contents)
    for name, count, limit in (
        ("tensors", tensors, TENSORS_MAX),
        ("files", len(contents), GGUF_FILES_MAX),
        ("bytes of headers", sum(content.header.end for content in contents), HEADERS_MAX_BYTES),
    ):
        if count > limit:
            raise BadSource(f"{contents[0].name}: {count} {name}; an organ directory holds at most {limit}")


def _disk_bytes(contents: Sequence[Content]) -> int:
    tensors = [tensor.size_bytes for content in contents for tensor in content.header.tensors]
    headers = sum(content.header.end for content in contents)
    return total([size + HEAD_MAX_BYTES for size in tensors]) + 4 * headers + len(tensors) * MANIFEST_BYTES_PER_TENSOR


@dataclass(slots=True)
class _Extraction:
    contents: Sequence[Content]
    staging: Staging
    progress: Progress
    ggufs: list[WrittenGguf] = field(default_factory=list)
    tensors: list[WrittenTensor] = field(default_factory=list)
    _measuring: list[Future[Measures]] = field(default_factory=list)

    def run(self) -> None:
        names = organ_files(tensor.name for content in self.contents for tensor in content.header.tensors)
        used = {name.partition("/")[0] for name in names}
        for kind, folder in FOLDERS.items():
            if kind is not OrganType.OTHER or folder in used:
                self.staging.make_folder(folder)
        workers = ThreadPoolExecutor(max(2, os.cpu_count() or 2), thread_name_prefix="measure")
        try:
            # `workers` already use all processors.
            with threadpool_limits(1, "blas"), self.staging.new_file(HEADER_FILE) as header_file:
                file_names = iter(names)
                for number, content in enumerate(self.contents):
                    self._extract_file(number, content, file_names, header_file, workers)
                self.tensors = [
                    replace(tensor, measures=measured.result())
                    for tensor, measured in zip(self.tensors, self._measuring, strict=True)
                ]
        finally:
            workers.shutdown(cancel_futures=True)
        for content, gguf in zip(self.contents, self.ggufs, strict=True):
            content.check(gguf.sha256)
        self._write_manifest()

    def _extract_file(
        self, number: int, content: Content, names: Iterator[str], header_file: StagedFile, workers: ThreadPoolExecutor
    ) -> None:
        header = content.header
        header_begin = header_file.size_bytes
        with content.views() as views:
            bytes_in_order = _Passage(views, self.progress)
            for view in bytes_in_order.take(header.end):
                header_file.write(view)
            paddings = list(_copy_padding(bytes_in_order, _until_data(content), header_file))
            for tensor in header.tensors:
                self._write_organ(number, content, tensor, next(names), bytes_in_order)
                self._measuring.append(workers.submit(content.measures, tensor))
                paddings += _copy_padding(bytes_in_order, _until_next(content, tensor), header_file)
        self.ggufs.append(
            WrittenGguf(
                name=safe_file_name(content.name),
                size_bytes=header.file_size_bytes,
                sha256=bytes_in_order.digest(),
                alignment=header.alignment,
                header=Stretch(header_begin, header.end),
                paddings=tuple(paddings),
                metadata=readable_metadata(content.head, header),
            )
        )

    def _write_organ(
        self, number: int, content: Content, tensor: TensorInfo, name: str, bytes_in_order: _Passage
    ) -> None:
        digest = hashlib.sha256()
        with self.staging.new_file(name) as file:
            file.write(encode_head(tensor))
            for view in bytes_in_order.take(tensor.size_bytes):
                digest.update(view)
                file.write(view)
        offset = content.header.data_offset + tensor.offset
        sha256 = Digest(digest.hexdigest())
        self.tensors.append(WrittenTensor(tensor, name, number, offset, sha256, _UNMEASURED))

    def _write_manifest(self) -> None:
        architecture = self.contents[0].header.architecture
        outline = Outline()
        with self.staging.new_file(MANIFEST_FILE) as file:
            for line in manifest_lines(architecture, self.ggufs, self.tensors):
                data = line.encode("utf-8")
                file.write(data)
                outline.add(data)
        if refusal := outline.refusal(MANIFEST_LIMITS):
            raise BadSource(f"{self.contents[0].name}: its manifest would not be readable: {refusal}")


class _Passage:
    """The bytes of a file, read once in ranges, and hashed as a whole."""

    def __init__(self, views: Iterator[memoryview], progress: Progress) -> None:
        self._views = views
        self._progress = progress
        self._view = memoryview(b"")
        self._digest = hashlib.sha256()

    def take(self, size: int) -> Iterator[memoryview]:
        """Yield the next `size` bytes, in pieces."""
        while size:
            if not len(self._view):
                self._view = next(self._views)
                self._digest.update(self._view)
                self._progress(len(self._view))
            piece, self._view = self._view[:size], self._view[size:]
            size -= len(piece)
            yield piece

    def digest(self) -> Digest:
        """Return the SHA-256 of all bytes so far."""
        return Digest(self._digest.hexdigest())


_UNMEASURED: Measures = dict.fromkeys(MEASURE_NAMES)


def _until_data(content: Content) -> tuple[int, int]:
    header = content.header
    return header.end, min(header.data_offset, header.file_size_bytes)


def _until_next(content: Content, tensor: TensorInfo) -> tuple[int, int]:
    """Return the range from the end of `tensor` to the next tensor or the end of the file."""
    header = content.header
    end = header.data_offset + tensor.offset + tensor.size_bytes
    padding = -tensor.size_bytes % header.alignment
    return end, min(end + padding, header.file_size_bytes)


def _copy_padding(bytes_in_order: _Passage, between: tuple[int, int], header_file: StagedFile) -> Iterator[Padding]:
    """Read the padding `between` two offsets, and store it if it is not all zeros."""
    begin, end = between
    data = b"".join(bytes(view) for view in bytes_in_order.take(end - begin))
    if data.strip(b"\0"):
        yield Padding(begin, Stretch(header_file.size_bytes, len(data)))
        header_file.write(data)


def _no_progress(_size_bytes: int) -> None:
    """Ignore progress."""
