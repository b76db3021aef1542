"""Organ directories written from GGUF files or a registered model."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from threadpoolctl import threadpool_limits

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
    FileEntry,
    Measures,
    Padding,
    Stretch,
    TensorLine,
    manifest_lines,
    readable_metadata,
)
from organs.ingest.directory.opening import HEADERS_MAX_BYTES, says_its_format
from organs.ingest.dissect import DissectedFile, dissect
from organs.registry.anatomy import OrganType
from organs.registry.assembly import FilePlan, FileStream, plan_model
from organs.registry.catalog.queries.model_contents import files_of, placements_of
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.digest import Digest
from organs.registry.documents import Outline
from organs.registry.errors import BadSource, CorruptBlob
from organs.registry.gguf import ByteSource, Header, HeaderSource, TensorInfo, padded, read_header
from organs.registry.gguf.header import Span
from organs.registry.gguf.split import check_split
from organs.registry.input_files import FileSource
from organs.registry.interface import Registry
from organs.registry.local import LocalRegistry
from organs.registry.measure import measure
from organs.registry.measures import MEASURE_NAMES
from organs.registry.names import ModelName
from organs.registry.progress import Progress, no_progress
from organs.registry.store import BlobStore
from organs.registry.store.files import (
    PUBLIC_FILE,
    PUBLIC_FOLDER,
    Buffer,
    Files,
    check_room,
    placing_error,
    temporary_beside,
    translating,
)


@dataclass(frozen=True, slots=True)
class GgufContent:
    """One GGUF file to extract."""

    name: str
    header: Header
    head: ByteSource
    """The beginning of the file: at least the bytes of the header."""
    views: Callable[[], AbstractContextManager[Iterable[memoryview]]]
    """Returns the bytes of the whole file in order; a view is valid until the next view is read."""
    measures: Callable[[TensorInfo], Measures]
    """Measures an organ; safe for several threads."""
    check: Callable[[Digest], None]
    """Called with the digest of the read bytes; raises for a wrong digest."""


def file_contents(files: Sequence[DissectedFile]) -> list[GgufContent]:
    """Return the contents of files on the disk, which must not change before they are read; organs are measured."""
    return [_file_content(file) for file in files]


ShowDownload = Callable[[int], AbstractContextManager[Progress]]
"""Called with the size of a download in bytes. The block of its result gets a function for the number of new bytes."""


def model_contents(
    opened: ExitStack,
    registry: Registry,
    name: ModelName,
    target: Path,
    *,
    replaces: bool,
    show_download: ShowDownload | None,
) -> list[GgufContent]:
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


def registered_contents(registry: LocalRegistry, name: ModelName) -> list[GgufContent]:
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


def _file_content(file: DissectedFile) -> GgufContent:
    def measures(tensor: TensorInfo) -> Measures:
        found = measure(partial(file.read_tensor, tensor), tensor.shape, tensor.dtype)
        return {name: getattr(found, name) for name in MEASURE_NAMES}

    return GgufContent(
        name=file.source.path.name,
        header=file.header,
        head=file.source,
        views=lambda: nullcontext(file.pieces(Span(0, file.header.file_size_bytes))),
        measures=measures,
        check=lambda _digest: file.source.check_unchanged(),
    )


def _blob_content(store: BlobStore, plan: FilePlan, header_bytes: int, measures: dict[str, Measures]) -> GgufContent:
    def check(digest: Digest) -> None:
        if plan.sha256 is not None and digest != plan.sha256:
            raise CorruptBlob(plan.name, f"its SHA-256 would be {digest} instead of {plan.sha256}; nothing was written")

    header_slices = tuple(piece for piece in plan.slices if piece.offset_bytes < header_bytes)
    with FileStream(store, FilePlan(plan.name, header_bytes, None, b"", header_slices)) as stream:
        head = HeaderSource(b"".join(map(bytes, stream)), plan.size_bytes, plan.name)
    return GgufContent(
        name=plan.name,
        header=read_header(head),
        head=head,
        views=lambda: FileStream(store, plan),
        measures=lambda tensor: measures[tensor.name],
        check=check,
    )


MANIFEST_BYTES_PER_TENSOR = 1024
"""Upper estimate for the check of free space; metadata can be three times as large as in the header."""
DISK_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ExtractReport:
    """The written folder, and the name, size and digest of each GGUF file that it was made from."""

    path: Path
    tensors: int
    size_bytes: int
    files: tuple[tuple[str, int, Digest], ...]


def extract(
    contents: Sequence[GgufContent],
    target: Path,
    *,
    force: bool = False,
    progress: Progress = no_progress,
    files: Files | None = None,
) -> ExtractReport:
    """Write `contents`, the files of one model in order, as the organ directory `target`, completely or not at all.

    Memory does not depend on the sizes of tensors. Raises BadSource if the target exists, a source changed, or the
    manifest would be too large to read again; DiskFull, StoreUnwritable; CorruptBlob and MissingBlob from the
    registry.
    """
    _check_limits(contents)
    target = Path(os.path.abspath(target))
    tensors = [tensor for content in contents for tensor in content.header.tensors]
    header_bytes = sum(content.header.end for content in contents)
    organ_bytes = sum(padded(tensor.size_bytes + HEAD_MAX_BYTES, DISK_BLOCK_BYTES) for tensor in tensors)
    disk_bytes = organ_bytes + 4 * header_bytes + len(tensors) * MANIFEST_BYTES_PER_TENSOR
    with staged(target, disk_bytes, replace=force, files=files or Files()) as staging:
        names = organ_files(tensor.name for tensor in tensors)
        used = {name.partition("/")[0] for name in names}
        for kind, folder in FOLDERS.items():
            if kind is not OrganType.OTHER or folder in used:
                staging.make_folder(folder)
        workers = ThreadPoolExecutor(max(2, os.cpu_count() or 2), thread_name_prefix="measure")
        try:
            # `workers` already use all processors.
            with threadpool_limits(1, "blas"), staging.new_file(HEADER_FILE) as header_file:
                work = _Extraction(staging, header_file, iter(names), workers, progress)
                for content in contents:
                    work.add(content)
                lines = [line.measured(measures.result()) for line, measures in work.lines]
        finally:
            workers.shutdown(cancel_futures=True)
        for content, entry in zip(contents, work.files, strict=True):
            content.check(Digest(entry.sha256 or ""))
        outline = Outline()
        with staging.new_file(MANIFEST_FILE) as file:
            for text in manifest_lines(contents[0].header.architecture, work.files, lines):
                data = text.encode("utf-8")
                file.write(data)
                outline.add(data)
        if refusal := outline.refusal(MANIFEST_LIMITS):
            raise BadSource(f"{contents[0].name}: its manifest would not be readable: {refusal}")
    written = tuple((entry.name, entry.size_bytes or 0, Digest(entry.sha256 or "")) for entry in work.files)
    return ExtractReport(target, len(lines), sum(size for _, size, _ in written), written)


def _check_limits(contents: Sequence[GgufContent]) -> None:
    for content in contents:
        if content.header.is_big_endian:
            raise BadSource(f"{content.name}: it is big-endian, and the files of an organ directory are little-endian")
    for name, count, limit in (
        ("tensors", sum(len(content.header.tensors) for content in contents), TENSORS_MAX),
        ("files", len(contents), GGUF_FILES_MAX),
        ("bytes of headers", sum(content.header.end for content in contents), HEADERS_MAX_BYTES),
    ):
        if count > limit:
            raise BadSource(f"{contents[0].name}: {count} {name}; an organ directory holds at most {limit}")


@dataclass(slots=True)
class _Extraction:
    """Writes organ files and headers, and collects the entries of the manifest."""

    staging: Staging
    header_file: StagedFile
    names: Iterator[str]
    workers: ThreadPoolExecutor
    progress: Progress
    files: list[FileEntry] = field(default_factory=list)
    lines: list[tuple[TensorLine, Future[Measures]]] = field(default_factory=list)

    def add(self, content: GgufContent) -> None:
        """Read one GGUF file from front to back, and write its header and its organs."""
        header = content.header
        header_begin = self.header_file.size_bytes
        paddings: list[Padding] = []
        with content.views() as views:
            passage = _Passage(iter(views), self.progress)
            for view in passage.take(header.end):
                self.header_file.write(view)
            paddings += self._copy_padding(passage, header.end, min(header.data_offset, header.file_size_bytes))
            for tensor in header.tensors:
                name = next(self.names)
                digest = hashlib.sha256()
                with self.staging.new_file(name) as file:
                    file.write(encode_head(tensor))
                    for view in passage.take(tensor.size_bytes):
                        digest.update(view)
                        file.write(view)
                offset = header.data_offset + tensor.offset
                line = TensorLine.of(tensor, name, len(self.files), offset, Digest(digest.hexdigest()))
                self.lines.append((line, self.workers.submit(content.measures, tensor)))
                end = offset + tensor.size_bytes
                padded_end = offset + padded(tensor.size_bytes, header.alignment)
                paddings += self._copy_padding(passage, end, min(padded_end, header.file_size_bytes))
        self.files.append(
            FileEntry(
                name=safe_file_name(content.name),
                size_bytes=header.file_size_bytes,
                sha256=Digest(passage.hashed.hexdigest()),
                alignment=header.alignment,
                header=Stretch(header_begin, header.end),
                padding=tuple(paddings),
                metadata=readable_metadata(content.head, header),
            )
        )

    def _copy_padding(self, passage: _Passage, begin: int, end: int) -> Iterator[Padding]:
        """Read the padding between two offsets, and store it if it is not all zeros."""
        data = b"".join(bytes(view) for view in passage.take(end - begin))
        if data.strip(b"\0"):
            yield Padding(begin, Stretch(self.header_file.size_bytes, len(data)))
            self.header_file.write(data)


class _Passage:
    """The bytes of a file, read once in ranges. `hashed` has all bytes so far."""

    def __init__(self, views: Iterator[memoryview], progress: Progress) -> None:
        self._views = views
        self._progress = progress
        self._view = memoryview(b"")
        self.hashed = hashlib.sha256()

    def take(self, size: int) -> Iterator[memoryview]:
        """Yield the next `size` bytes, in pieces."""
        while size > 0:
            if not len(self._view):
                self._view = next(self._views)
                self.hashed.update(self._view)
                self._progress(len(self._view))
            piece, self._view = self._view[:size], self._view[size:]
            size -= len(piece)
            yield piece


SYNCERS = 4
WAITING_MAX = 64
"""Limit of written files that wait for the disk, each with an open descriptor."""


class Staging:
    """A folder that is written under a temporary name beside its target."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self._syncers = ThreadPoolExecutor(SYNCERS, thread_name_prefix="sync")
        self._slots = threading.Semaphore(WAITING_MAX)
        self._syncing: list[Future[None]] = []
        self._folders = [path]

    def make_folder(self, name: str) -> None:
        """Create a folder inside."""
        self._files.make_folder(self.path / name, PUBLIC_FOLDER)
        self._folders.append(self.path / name)

    @contextmanager
    def new_file(self, name: str) -> Iterator[StagedFile]:
        """Yield a new file, written from front to back; it is synced to the disk after the block."""
        descriptor = self._files.create(self.path / name, PUBLIC_FILE)
        try:
            yield StagedFile(descriptor, self._files)
        except BaseException:
            self._files.close(descriptor)
            raise
        self._slots.acquire()
        self._syncing.append(self._syncers.submit(self._sync, descriptor))

    def finish(self) -> None:
        """Write all content to the disk."""
        for future in self._syncing:
            future.result()
        for folder in reversed(self._folders):
            self._files.sync_folder(folder)

    def close(self) -> None:
        """Wait for the threads."""
        self._syncers.shutdown()

    def _sync(self, descriptor: int) -> None:
        try:
            try:
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
        finally:
            self._slots.release()


@dataclass(slots=True)
class StagedFile:
    """A file that is written from front to back."""

    descriptor: int
    files: Files
    size_bytes: int = 0

    def write(self, *pieces: Buffer) -> None:
        """Append `pieces`."""
        self.size_bytes += self.files.write_at(self.descriptor, pieces, self.size_bytes)


@contextmanager
def staged(
    target: Path,
    size_bytes: int,
    *,
    replace: bool,
    files: Files,
    is_replaceable: Callable[[Path], bool] = says_its_format,
) -> Iterator[Staging]:
    """Yield a folder to fill, which becomes `target` at the end of the block; an error removes it.

    With `replace`, a folder that `is_replaceable` is replaced: by default an organ directory of this format. An empty
    folder is always replaced. Raises BadSource for anything else at `target`, DiskFull if `size_bytes` do not fit,
    StoreUnwritable.
    """
    check_target(target, replace=replace, is_replaceable=is_replaceable)
    temporary = temporary_beside(target)
    with translating(target, placing_error):
        try:
            check_room(target.parent, size_bytes, files)
            files.make_folder(temporary, PUBLIC_FOLDER)
            staging = Staging(temporary, files)
            try:
                yield staging
                staging.finish()
            finally:
                staging.close()
            check_target(target, replace=replace, is_replaceable=is_replaceable)  # it may exist by now
            _place(temporary, target, files)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def check_target(target: Path, *, replace: bool, is_replaceable: Callable[[Path], bool] = says_its_format) -> None:
    """Raise BadSource for an existing target, as `staged` does."""
    if not target.parent.is_dir():
        raise BadSource(f"{target.parent}: no such folder")
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise BadSource(f"{target}: exists, and is not a folder")
    if any(target.iterdir()):
        if not is_replaceable(target):  # stricter than for reading: the old folder is deleted
            raise BadSource(f"{target}: a folder with other content; choose a new one")
        if not replace:
            raise BadSource(f"{target}: already exists; --force replaces it")


def _place(temporary: Path, target: Path, files: Files) -> None:
    old = None
    if target.is_dir() and any(target.iterdir()):
        old = target.parent / f".organ-{secrets.token_hex(8)}.old"
        files.rename(target, old)
    try:
        files.rename(temporary, target)
    except OSError:
        if old is not None:
            with suppress(OSError):  # another program wrote the target; the old folder is beside it
                files.rename(old, target)
        raise
    files.sync_folder(target.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
