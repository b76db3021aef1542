"""Organ directories opened, checked as a whole, and read as GGUF files without writing them.

Their files are read below an open folder, by checked relative paths.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from organs.ingest.directory.layout import (
    FOLDERS,
    FORMAT,
    HEAD_MAX_BYTES,
    HEADER_FILE,
    MANIFEST_FILE,
    ORGAN_SUFFIX,
    parse_head,
    path_segments,
)
from organs.ingest.directory.manifest import (
    MANIFEST_LIMITS,
    TENSORS_MAX,
    DirectoryManifest,
    GgufEntry,
    Reasons,
    TensorEntry,
    parse_manifest,
    readable_metadata,
    same_metadata,
)
from organs.registry.amounts import names_text, plural_text
from organs.registry.digest import Digest
from organs.registry.documents import parse_json
from organs.registry.errors import BadDirectory, BadGguf, BadSource
from organs.registry.gguf import (
    Header,
    HeaderSource,
    KeyValue,
    TensorSpec,
    ValueType,
    carry_over,
    encode_header,
    padded,
    read_header,
)
from organs.registry.gguf.header import range_digest
from organs.registry.gguf.types import ALIGNMENT_DEFAULT, ALIGNMENT_KEY, ALIGNMENT_MAX
from organs.registry.gguf.write import Metadata
from organs.registry.input_files import BytesInMemory, ComposedFile, FileIdentity, Origin, Section, fill

OPEN_FILES_MAX = 64
"""Limit of open files: a model can have thousands of tensors, a process often only 1,024 descriptors."""
PEEK_BYTES = 1024

_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY


@dataclass(slots=True)
class _Open:
    descriptor: int
    readers: int = 0


class Folder:
    """An organ directory that is open for reads from several threads. A context manager.

    A file must not change after its first use.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder `path`; raises BadSource."""
        self.path = path
        self.identities: dict[str, FileIdentity] = {}
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, _Open] = OrderedDict()
        try:
            self._descriptor = os.open(path, _FOLDER)
        except OSError as error:
            raise BadSource(f"{path}: {error.strerror}") from error

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def size_bytes(self, file: str) -> int:
        """Return the size of `file`; raises BadSource for anything but a regular file, and for links."""
        with self._borrow(file):
            return self.identities[file].size_bytes

    def is_missing(self, file: str) -> bool:
        """Return whether nothing is at the path `file`; False for anything that is no regular file."""
        try:
            with self._parent(file) as (parent, name):
                os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            return error.errno == errno.ENOENT
        return False

    def read_at(self, file: str, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes of `file`; raises BadSource if it is shorter."""
        data = bytearray(size)
        self.read_into(file, memoryview(data), offset)
        return bytes(data)

    def read_into(self, file: str, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset` of `file`; raises BadSource if it is shorter."""
        with self._borrow(file) as descriptor:
            fill(buffer, descriptor, offset, str(self.path / file))

    def check_unchanged(self, file: str) -> None:
        """Raise BadSource if `file` was written or replaced since its first use."""
        try:
            with self._parent(file) as (parent, name):
                now = FileIdentity.of(os.stat(name, dir_fd=parent, follow_symlinks=False))
        except OSError as error:
            raise BadSource(f"{self.path / file}: removed while it was read: {error.strerror}") from error
        if now != self.identities[file]:
            raise BadSource(f"{self.path / file}: changed while it was read; nothing was registered")

    def organ_files(self) -> Iterator[str]:
        """Yield the files in the folders of organs whose names are those of organ files."""
        for folder in FOLDERS.values():
            try:
                with os.scandir(self.path / folder) as entries:
                    names = [entry.name for entry in entries if entry.name.lower().endswith(ORGAN_SUFFIX)]
            except OSError:
                continue  # absent; files that the manifest names in it are reported as missing
            yield from (f"{folder}/{name}" for name in sorted(names))

    def close(self) -> None:
        """Close all descriptors; safe to call twice."""
        with self._lock:
            for item in self._opened.values():
                os.close(item.descriptor)
            self._opened.clear()
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    @contextmanager
    def _borrow(self, file: str) -> Iterator[int]:
        """Yield a descriptor of `file` that stays open inside the block."""
        with self._lock:
            item = self._opened.get(file)
            if item is None:
                item = self._opened[file] = _Open(self._open(file))
            self._opened.move_to_end(file)
            item.readers += 1
            for other, idle in list(self._opened.items())[: max(0, len(self._opened) - OPEN_FILES_MAX)]:
                if not idle.readers:
                    os.close(idle.descriptor)
                    del self._opened[other]
        try:
            yield item.descriptor
        finally:
            with self._lock:
                item.readers -= 1

    def _open(self, file: str) -> int:
        try:
            with self._parent(file) as (parent, name):
                # Before opening: opening a FIFO blocks, opening a device may act.
                self._refuse_irregular(file, os.stat(name, dir_fd=parent, follow_symlinks=False))
                descriptor = os.open(name, _FILE, dir_fd=parent)
        except OSError as error:
            raise BadSource(f"{self.path / file}: {error.strerror}") from error
        try:
            status = os.fstat(descriptor)
            self._refuse_irregular(file, status)
            if self.identities.setdefault(file, FileIdentity.of(status)) != FileIdentity.of(status):
                raise BadSource(f"{self.path / file}: changed while it was read; nothing was registered")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _refuse_irregular(self, file: str, status: os.stat_result) -> None:
        if stat.S_ISLNK(status.st_mode):
            raise BadSource(f"{self.path / file}: a symbolic link; links are not followed")
        if not stat.S_ISREG(status.st_mode):
            raise BadSource(f"{self.path / file}: not a regular file")

    @contextmanager
    def _parent(self, file: str) -> Iterator[tuple[int, str]]:
        """Open the folder of `file` without following links; yield its descriptor, and the file's name in it."""
        *folders, name = path_segments(file)
        with ExitStack() as opened:
            parent = self._descriptor
            for folder in folders:
                parent = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
                opened.callback(os.close, parent)
            yield parent, name


def is_organ_directory(path: Path) -> bool:
    """Return whether the folder `path` has a manifest, and folders of organs or the format of this program."""
    if not os.path.lexists(path / MANIFEST_FILE):
        return False
    return any((path / folder).is_dir() for folder in FOLDERS.values()) or says_its_format(path)


def says_its_format(path: Path) -> bool:
    """Return whether the manifest in the folder `path` begins with the format of this program."""
    with suppress(OSError):
        descriptor = os.open(path / MANIFEST_FILE, _FILE)
        try:
            return stat.S_ISREG(os.fstat(descriptor).st_mode) and f'"{FORMAT}"'.encode() in os.read(
                descriptor, PEEK_BYTES
            )
        finally:
            os.close(descriptor)
    return False


NAMES_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A file of the folder."""

    folder: Folder
    file: str

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.folder.read_into(self.file, buffer, offset)

    def check_unchanged(self) -> None:
        self.folder.check_unchanged(self.file)


@dataclass(frozen=True, slots=True)
class OrganFile:
    """A file of a tensor, with the offset of its bytes, and what the manifest has about it."""

    entry: TensorEntry
    spec: TensorSpec
    data_offset_bytes: int


class VirtualFile(ComposedFile):
    """One GGUF file of an organ directory. `sha256` is the digest of the file that the folder was made from, if the
    manifest states it; `remarks` are notes on changes, from opening the folder; `organs` are the files by offset.
    """

    def __init__(
        self,
        folder: Folder,
        entry: GgufEntry,
        size_bytes: int,
        sections: Sequence[Section],
        organs: Mapping[int, OrganFile],
        remarks: Sequence[str] = (),
    ) -> None:
        placed = [
            Section(offset, organ.spec.size_bytes, FolderFile(folder, organ.entry.file), organ.data_offset_bytes)
            for offset, organ in organs.items()
        ]
        in_order = sorted([*sections, *placed], key=lambda section: section.offset_bytes)
        position = 0
        for section in in_order:
            if section.offset_bytes < position:
                raise ValueError(f"padding at {section.offset_bytes} overlaps a tensor or other padding")
            position = section.offset_bytes + section.size_bytes
        if position > size_bytes:
            raise ValueError(f"padding ends at {position}, but the file ends at {size_bytes}")
        super().__init__(folder.path / entry.name, size_bytes, in_order, entry.sha256)
        self.remarks = tuple(remarks)
        self._folder = folder
        self._organs = organs

    def check_unchanged(self) -> None:
        """Raise BadSource if a file of the folder that it uses was written or replaced."""
        self._folder.check_unchanged(MANIFEST_FILE)
        super().check_unchanged()

    def organ_digests(self) -> dict[int, Digest]:
        """Return the digest of each organ by its offset; reads all organs."""
        return {offset: range_digest(self, offset, organ.spec.size_bytes) for offset, organ in self._organs.items()}

    def origin(self, organs: Mapping[int, Digest]) -> Origin | None:
        """Return the original file of the folder, if the manifest names it; `organs` are digests by offset."""
        if self.sha256 is None:
            return None
        return Origin(self.path.name, self.sha256, tuple(organ.spec.name for organ, _ in self._edited(organs)))

    def notes(self, sha256: Digest, organs: Mapping[int, Digest]) -> Iterator[str]:
        """Yield notes for people, from the digest `sha256` of the file and those of its `organs` by offset."""
        yield from self.remarks
        origin = self.origin(organs)
        if origin is not None and origin.sha256 != sha256:
            reason = f"edited tensors: {names_text(origin.edited)}" if origin.edited else "the folder was edited"
            yield f"{origin.name} is not the file that the folder was made from: {reason}"
        edited = [*self._edited(organs)]
        for organ, actual in edited[:NAMES_SHOWN_MAX]:
            stated = organ.entry.sha256
            yield f"{organ.entry.file}: the SHA-256 of its values is {actual}, but the manifest states {stated}"
        if len(edited) > NAMES_SHOWN_MAX:
            yield f"{len(edited) - NAMES_SHOWN_MAX} more tensor files differ from the SHA-256 in the manifest"

    def _edited(self, organs: Mapping[int, Digest]) -> Iterator[tuple[OrganFile, Digest]]:
        """Yield the organs whose digest differs from the manifest, with that digest."""
        for offset, organ in self._organs.items():
            actual = organs.get(offset)
            if actual is not None and organ.entry.sha256 not in (None, actual):
                yield organ, actual


HEADERS_MAX_BYTES = 256 * 1024 * 1024
"""Limit of the headers of all GGUF files of a folder together; they are held in memory while it is open. The largest
vocabularies in use take 20 MB, and only the first file of a split set has a vocabulary."""


@dataclass(frozen=True, slots=True)
class _StoredHeader:
    """The header in the folder."""

    source: HeaderSource
    header: Header


def open_directory(folder: Folder) -> list[VirtualFile]:
    """Return the GGUF files of the open `folder`, in order; they can be read while it is open.

    Raises BadDirectory with all reasons, BadSource if it cannot be read.
    """
    where = str(folder.path)
    reasons = Reasons()
    manifest = _with_found_files(folder, _read_manifest(folder), reasons)
    reasons.raise_if_any(where)
    organs = _read_organs(folder, manifest, reasons)
    headers = []
    left_bytes = HEADERS_MAX_BYTES
    for entry in manifest.files:  # several files can use the same bytes: the limit applies to the total of read bytes
        headers.append(_read_stored_header(folder, entry, left_bytes, reasons))
        left_bytes -= 0 if entry.header is None else min(left_bytes, entry.header.size_bytes)
    reasons.raise_if_any(where)
    organs_of: list[list[OrganFile]] = [[] for _ in manifest.files]
    for organ in organs:
        organs_of[organ.entry.gguf].append(organ)
    files = []
    for number, entry in enumerate(manifest.files):
        notes = () if number else manifest.notes
        try:
            files.append(_open_file(folder, entry, organs_of[number], headers[number], notes))
        except ValueError as error:
            reasons.add(f"{entry.name}: {error}")
    reasons.raise_if_any(where)
    return files


def _read_manifest(folder: Folder) -> DirectoryManifest:
    size = folder.size_bytes(MANIFEST_FILE)
    where = str(folder.path)
    try:
        if size > MANIFEST_LIMITS.size_bytes:
            raise ValueError(f"it has {size:,} bytes; at most {MANIFEST_LIMITS.size_bytes:,} are read")
        values = parse_json(folder.read_at(MANIFEST_FILE, 0, size), MANIFEST_LIMITS)
    except ValueError as error:
        raise BadDirectory(where, [f"{MANIFEST_FILE}: {error}"]) from error
    return parse_manifest(values, where, f"{folder.path.resolve().name or 'model'}.gguf")


def _with_found_files(folder: Folder, manifest: DirectoryManifest, reasons: Reasons) -> DirectoryManifest:
    """Return a manifest of another tool with the file of each tensor whose path leads to none in the folder.

    Only the files in the folders of organs are looked at: no name becomes a path.
    """
    if not manifest.is_foreign:
        return manifest
    lost = {number for number, entry in enumerate(manifest.tensors) if not entry.file or folder.is_missing(entry.file)}
    if not lost:
        return manifest
    files = [*islice(folder.organ_files(), TENSORS_MAX + 1)]
    if len(files) > TENSORS_MAX:
        reasons.add(f"more than {TENSORS_MAX} tensor files")
        return manifest
    by_name: dict[str, list[str]] = {}
    by_file: dict[str, list[str]] = {}
    for file in files:
        by_file.setdefault(_file_stem(file), []).append(file)
        if name := _name_inside(folder, file):
            by_name.setdefault(name, []).append(file)
    tensors = list(manifest.tensors)
    for number in sorted(lost):
        entry = tensors[number]
        stated = entry.stated or entry.file
        # The only file that has its name inside, or else the only one that is called like its file.
        found = by_name.get(entry.name) or by_file.get(_file_stem(stated) if stated else entry.name, [])
        if len(found) == 1:
            name = "" if not stated and entry.name not in by_name else entry.name
            tensors[number] = replace(entry, file=found[0], name=name)
            continue
        label = entry.name or repr(entry.stated[:80])
        path = f"; its path in the manifest is {stated[:80]!r}" if stated and entry.name else ""
        if found:
            reasons.add(f"{label}: {names_text(found)} have this tensor, and the manifest does not say which{path}")
        else:
            reasons.add(f"{label}: no tensor file has this tensor{path}")
    tensors_text = plural_text(len(lost), "tensor was", "tensors were")
    note = f"{tensors_text} found by the name in the file: the manifest has no path to it in the folder"
    return replace(manifest, tensors=tuple(tensors), notes=(*manifest.notes, note))


def _name_inside(folder: Folder, file: str) -> str:
    """Return the name of the tensor in `file`; empty if it cannot be read as one."""
    try:
        size = folder.size_bytes(file)
        return parse_head(folder.read_at(file, 0, min(size, HEAD_MAX_BYTES)), size)[0].name
    except (BadSource, ValueError):
        return ""


def _file_stem(path: str) -> str:
    """Return the last part of a path of any system, without `.bin`."""
    return path.replace("\\", "/").rpartition("/")[2].removesuffix(ORGAN_SUFFIX)


def _read_organs(folder: Folder, manifest: DirectoryManifest, reasons: Reasons) -> list[OrganFile]:
    organs = []
    for entry in manifest.tensors:
        try:
            size = folder.size_bytes(entry.file)
            spec, begin = parse_head(folder.read_at(entry.file, 0, min(size, HEAD_MAX_BYTES)), size)
        except BadSource as error:
            reasons.add(f"{entry.name or 'a tensor'}: {str(error).removeprefix(f'{folder.path}/')}")
            continue
        except ValueError as error:
            reasons.add(f"{entry.file}: {error}")
            continue
        if spec.name != entry.name and entry.name:
            reasons.add(f"{entry.file} has the name {spec.name!r}, but the manifest has {entry.name!r}")
        organs.append(OrganFile(entry, spec, begin))
    names = Counter(organ.spec.name for organ in organs)
    for organ in organs:  # a name that only the file has must not be that of another
        if not organ.entry.name and names[organ.spec.name] > 1:
            reasons.add(f"{organ.entry.file} has the name {organ.spec.name!r}, as another file")
    listed = {entry.file for entry in manifest.tensors}
    for file in folder.organ_files():
        if file not in listed:
            reasons.add(f"{file!r} is not in the manifest")
    return organs


def _read_stored_header(folder: Folder, entry: GgufEntry, left_bytes: int, reasons: Reasons) -> _StoredHeader | None:
    if entry.header is None:
        return None
    assert entry.size_bytes is not None
    stretches = [entry.header, *(padding.kept for padding in entry.padding or ())]
    try:
        size = folder.size_bytes(HEADER_FILE)
        if any(stretch.offset_bytes + stretch.size_bytes > size for stretch in stretches):
            raise ValueError(f"it has {size} bytes, but the manifest needs more")
        if entry.header.size_bytes > entry.size_bytes:
            raise ValueError(f"a header of {entry.header.size_bytes} bytes in a file of {entry.size_bytes}")
        if entry.header.size_bytes > left_bytes:
            raise ValueError(f"the headers of all files take more than {HEADERS_MAX_BYTES} bytes")
        data = folder.read_at(HEADER_FILE, entry.header.offset_bytes, entry.header.size_bytes)
        source = HeaderSource(data, entry.size_bytes, f"{HEADER_FILE} for {entry.name}")
        header = read_header(source)
        if header.end != len(data):
            raise ValueError(f"the header of {entry.name} ends at {header.end}, but the manifest states {len(data)}")
    except BadSource as error:
        reasons.add(str(error).removeprefix(f"{folder.path}/"))
    except BadGguf as error:
        reasons.add(str(error))
    except ValueError as error:
        reasons.add(f"{HEADER_FILE}: {error}")
    else:
        return _StoredHeader(source, header)
    return None


def _open_file(
    folder: Folder, entry: GgufEntry, organs: Sequence[OrganFile], stored: _StoredHeader | None, notes: Sequence[str]
) -> VirtualFile:
    misfit = _misfit_reason(entry, organs, stored)
    if stored is not None and entry.header is not None and misfit is None:
        header, in_folder = stored.header, FolderFile(folder, HEADER_FILE)
        offsets = [header.data_offset + tensor.offset for tensor in header.tensors]
        sections = [Section(0, header.end, in_folder, entry.header.offset_bytes)]
        for padding in entry.padding or ():
            kept = padding.kept
            sections.append(Section(padding.offset_bytes, kept.size_bytes, in_folder, kept.offset_bytes))
        placed = dict(zip(offsets, organs, strict=True))
        return VirtualFile(folder, entry, header.file_size_bytes, sections, placed)
    fresh, alignment = _encode_fresh_header(entry, organs, stored)
    placed, offset = {}, len(fresh)
    for organ in organs:
        placed[offset] = organ
        offset += padded(organ.spec.size_bytes, alignment)
    remarks = [*notes, f"the header of {entry.name} is rewritten: {misfit}"]
    return VirtualFile(folder, entry, offset, [Section(0, len(fresh), BytesInMemory(fresh))], placed, remarks)


def _misfit_reason(entry: GgufEntry, organs: Sequence[OrganFile], header: _StoredHeader | None) -> str | None:
    """Return why the header in the folder cannot be used, or None."""
    if header is None:
        return "the folder has no header"
    expected = {tensor.name: (tensor.shape, tensor.dtype) for tensor in header.header.tensors}
    if list(expected) != [organ.spec.name for organ in organs]:
        return "tensors were added, removed or moved"
    changed = [organ.spec.name for organ in organs if expected[organ.spec.name] != (organ.spec.shape, organ.spec.dtype)]
    if changed:
        return f"another type or shape: {names_text(changed)}"
    if entry.readable is not None and not same_metadata(
        list(entry.readable), readable_metadata(header.source, header.header)
    ):
        return "its metadata was changed in the manifest"
    return None


def _encode_fresh_header(
    entry: GgufEntry, organs: Sequence[OrganFile], header: _StoredHeader | None
) -> tuple[bytes, int]:
    """Return a new header with its padding, and the alignment; raises ValueError for invalid metadata."""
    metadata: list[Metadata] = []
    alignment = ALIGNMENT_DEFAULT
    if header is None:
        absent = [pair for pair in entry.pairs if isinstance(pair, str)]
        if absent:
            raise ValueError(f"metadata without a value, and no usable header to take it from: {names_text(absent)}")
        metadata += [pair for pair in entry.pairs if isinstance(pair, KeyValue)]
    else:
        alignment = header.header.alignment
        raw = {field.key: carry_over(header.source, field) for field in header.header.fields}
        if entry.readable is None:
            metadata += raw.values()
        entries_by_key = {item["key"]: item for item in readable_metadata(header.source, header.header)}
        for pair, shown in zip(entry.pairs, entry.readable or (), strict=entry.readable is not None):
            key = pair if isinstance(pair, str) else pair.key
            if key in entries_by_key and same_metadata([shown], [entries_by_key[key]]):
                metadata.append(raw[key])
            elif isinstance(pair, str):
                raise ValueError(f"metadata without a value in the manifest or the header: {key[:80]!r}")
            else:
                metadata.append(pair)
    for item in metadata:
        if isinstance(item, KeyValue) and item.key == ALIGNMENT_KEY:
            value = item.value
            if item.type is not ValueType.UINT32 or not isinstance(value, int):
                raise ValueError(f"{ALIGNMENT_KEY} is not a uint32")
            if not 1 <= value <= ALIGNMENT_MAX or value & (value - 1):
                raise ValueError(f"{ALIGNMENT_KEY} is {str(value)[:40]}, not a power of two up to {ALIGNMENT_MAX}")
            alignment = value
    return encode_header(metadata, [organ.spec for organ in organs], alignment), alignment


def directory_size_bytes(path: Path) -> int:
    """Return the bytes to read in the folder, for progress; unreadable files count as 0."""
    return sum(file.stat().st_size for file in path.rglob("*.bin") if file.is_file())
