"""Organ directories opened, checked as a whole, and read as GGUF files without writing them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from organs.ingest.directory.folder import Folder
from organs.ingest.directory.layout import (
    HEAD_MAX_BYTES,
    HEADER_FILE,
    MANIFEST_FILE,
    ORGAN_SUFFIX,
    parse_head,
)
from organs.ingest.directory.manifest import (
    MANIFEST_LIMITS,
    TENSORS_MAX,
    GgufEntry,
    Manifest,
    Reasons,
    TensorEntry,
    parse_manifest,
)
from organs.ingest.directory.metadata import readable_metadata, same_metadata
from organs.ingest.files import (
    BUFFER_BYTES,
    BytesInMemory,
    ComposedFile,
    Origin,
    Section,
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
from organs.registry.gguf.types import ALIGNMENT_DEFAULT, ALIGNMENT_KEY, ALIGNMENT_MAX
from organs.registry.gguf.write import Metadata

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
class PlacedOrgan:
    """A tensor of the virtual file, with its digest in the manifest."""

    spec: TensorSpec
    offset_bytes: int
    sha256: Digest | None
    file: str
    """Its file in the folder."""


class VirtualFile(ComposedFile):
    """One GGUF file of an organ directory. `sha256` is the digest of the file that the folder was made from, if the
    manifest states it; `remarks` are notes on changes, from opening the folder.
    """

    def __init__(
        self,
        folder: Folder,
        name: str,
        size_bytes: int,
        sections: Sequence[Section],
        organs: Sequence[PlacedOrgan],
        sha256: Digest | None,
        remarks: Sequence[str],
    ) -> None:
        super().__init__(folder.path / name, size_bytes, sections, sha256)
        self.remarks = tuple(remarks)
        self._folder = folder
        self._organs = tuple(organs)

    def check_unchanged(self) -> None:
        """Raise BadSource if a file of the folder that it uses was written or replaced."""
        self._folder.check_unchanged(MANIFEST_FILE)
        super().check_unchanged()

    def organ_digests(self) -> dict[int, Digest]:
        """Return the digest of each organ by its offset; reads all organs."""
        return {organ.offset_bytes: self._digest(organ) for organ in self._organs}

    def origin(self, organs: Mapping[int, Digest]) -> Origin | None:
        """Return the original file of the folder, if the manifest names it; `organs` are digests by offset."""
        if self.sha256 is None:
            return None
        edited = (
            organ.spec.name
            for organ in self._organs
            if organ.sha256 not in (None, organs.get(organ.offset_bytes, organ.sha256))
        )
        return Origin(self.path.name, self.sha256, tuple(edited))

    def notes(self, sha256: Digest, organs: Mapping[int, Digest]) -> Iterator[str]:
        """Yield notes for people, from the digest `sha256` of the file and those of its `organs` by offset."""
        yield from self.remarks
        origin = self.origin(organs)
        if origin is not None and origin.sha256 != sha256:
            reason = f"edited organs: {names_text(origin.edited)}" if origin.edited else "the folder was edited"
            yield f"{origin.name} is not the file that the folder was made from: {reason}"
        yield from self._mismatches(organs)

    def _mismatches(self, organs: Mapping[int, Digest]) -> Iterator[str]:
        """Yield a sentence for each organ file whose SHA-256 differs from the manifest, with both digests."""
        mismatches = [
            (organ, actual)
            for organ in self._organs
            if (actual := organs.get(organ.offset_bytes)) is not None and organ.sha256 not in (None, actual)
        ]
        for item, actual in mismatches[:NAMES_SHOWN_MAX]:
            yield f"{item.file}: the SHA-256 of its values is {actual}, but the manifest states {item.sha256}"
        if len(mismatches) > NAMES_SHOWN_MAX:
            yield f"{len(mismatches) - NAMES_SHOWN_MAX} more organ files differ from the SHA-256 in the manifest"

    def _digest(self, organ: PlacedOrgan) -> Digest:
        digest = hashlib.sha256()
        end = organ.offset_bytes + organ.spec.size_bytes
        buffer = memoryview(bytearray(min(BUFFER_BYTES, organ.spec.size_bytes)))
        for begin in range(organ.offset_bytes, end, BUFFER_BYTES):
            view = buffer[: min(BUFFER_BYTES, end - begin)]
            self.read_into(view, begin)
            digest.update(view)
        return Digest(digest.hexdigest())


HEADERS_MAX_BYTES = 256 * 1024 * 1024
"""Limit of the headers of all GGUF files of a folder together; they are held in memory while it is open. The largest
vocabularies in use take 20 MB, and only the first file of a split set has a vocabulary."""


@dataclass(frozen=True, slots=True)
class Organ:
    """A tensor as its file describes it, with the offset of its bytes."""

    entry: TensorEntry
    spec: TensorSpec
    data_offset_bytes: int


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
    manifest = _read_manifest(folder)
    reasons = Reasons()
    manifest = _with_found_files(folder, manifest, reasons)
    reasons.raise_if_any(where)
    organs = _read_organs(folder, manifest, reasons)
    headers = _read_stored_headers(folder, manifest.files, reasons)
    reasons.raise_if_any(where)
    organs_of: list[list[Organ]] = [[] for _ in manifest.files]
    for organ in organs:
        organs_of[organ.entry.gguf].append(organ)
    files = []
    for number, entry in enumerate(manifest.files):
        try:
            files.append(
                _open_file(folder, entry, organs_of[number], headers[number], () if number else manifest.notes)
            )
        except ValueError as error:
            reasons.add(f"{entry.name}: {error}")
    reasons.raise_if_any(where)
    return files


def _read_manifest(folder: Folder) -> Manifest:
    size = folder.size_bytes(MANIFEST_FILE)
    where = str(folder.path)
    try:
        if size > MANIFEST_LIMITS.size_bytes:
            raise ValueError(f"it has {size:,} bytes; at most {MANIFEST_LIMITS.size_bytes:,} are read")
        values = parse_json(folder.read_at(MANIFEST_FILE, 0, size), MANIFEST_LIMITS)
    except ValueError as error:
        raise BadDirectory(where, [f"{MANIFEST_FILE}: {error}"]) from error
    return parse_manifest(values, where, f"{folder.path.resolve().name or 'model'}.gguf")


def _with_found_files(folder: Folder, manifest: Manifest, reasons: Reasons) -> Manifest:
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
        reasons.add(f"more than {TENSORS_MAX} organ files")
        return manifest
    by_name, by_file = _grouped(files, partial(_name_inside, folder)), _grouped(files, _file_stem)
    by_name.pop("", None)
    tensors = [
        _with_found_file(entry, by_name, by_file, reasons) if number in lost else entry
        for number, entry in enumerate(manifest.tensors)
    ]
    tensors_text = plural_text(len(lost), "tensor was", "tensors were")
    note = f"{tensors_text} found by the name in the file: the manifest has no path to it in the folder"
    return replace(manifest, tensors=tuple(tensors), notes=(*manifest.notes, note))


def _with_found_file(
    entry: TensorEntry, by_name: Mapping[str, list[str]], by_file: Mapping[str, list[str]], reasons: Reasons
) -> TensorEntry:
    """Return `entry` with the only file that has its name inside, or else the only one that is called like its file."""
    stated = entry.stated or entry.file
    found = by_name.get(entry.name) or (by_file.get(_file_stem(stated)) if stated else by_file.get(entry.name)) or []
    if len(found) == 1:
        name = "" if not stated and entry.name not in by_name else entry.name
        return replace(entry, file=found[0], name=name)
    path = f"; its path in the manifest is {stated[:80]!r}" if stated and entry.name else ""
    if found:
        reasons.add(f"{entry.label}: {names_text(found)} have this tensor, and the manifest does not say which{path}")
    else:
        reasons.add(f"{entry.label}: no organ file has this tensor{path}")
    return entry


def _grouped(files: Iterable[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for file in files:
        groups.setdefault(key(file), []).append(file)
    return groups


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


def _read_organs(folder: Folder, manifest: Manifest, reasons: Reasons) -> list[Organ]:
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
        organs.append(Organ(entry, spec, begin))
    _check_names(organs, reasons)
    listed = {entry.file for entry in manifest.tensors}
    for file in folder.organ_files():
        if file not in listed:
            reasons.add(f"{file!r} is not in the manifest")
    return organs


def _check_names(organs: Sequence[Organ], reasons: Reasons) -> None:
    """Check that a tensor whose name only its file has does not have that of another."""
    names = Counter(organ.spec.name for organ in organs)
    for organ in organs:
        if not organ.entry.name and names[organ.spec.name] > 1:
            reasons.add(f"{organ.entry.file} has the name {organ.spec.name!r}, as another file")


def _read_stored_headers(folder: Folder, files: Sequence[GgufEntry], reasons: Reasons) -> list[_StoredHeader | None]:
    """Return the header of each file. Files can use the same bytes, so the limit applies to the total of read bytes."""
    headers = []
    left_bytes = HEADERS_MAX_BYTES
    for entry in files:
        headers.append(_read_stored_header(folder, entry, left_bytes, reasons))
        left_bytes -= 0 if entry.header is None else min(left_bytes, entry.header.size_bytes)
    return headers


def _read_stored_header(folder: Folder, entry: GgufEntry, left_bytes: int, reasons: Reasons) -> _StoredHeader | None:
    if entry.header is None:
        return None
    assert entry.size_bytes is not None
    stretches = [entry.header, *(padding.kept for padding in entry.paddings)]
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
    folder: Folder, entry: GgufEntry, organs: Sequence[Organ], header: _StoredHeader | None, notes: Sequence[str]
) -> VirtualFile:
    misfit = _misfit_reason(entry, organs, header)
    if header is not None and misfit is None:
        return _file_with_stored_header(folder, entry, organs, header.header)
    literal, alignment = _encode_fresh_header(entry, organs, header)
    sections = [Section(0, len(literal), BytesInMemory(literal))]
    placed = []
    offset = len(literal)
    for organ in organs:
        sections.append(_organ_section(folder, organ, offset))
        placed.append(PlacedOrgan(organ.spec, offset, organ.entry.sha256, organ.entry.file))
        offset += padded(organ.spec.size_bytes, alignment)
    remarks = [*notes, f"the header of {entry.name} is rewritten: {misfit}"]
    return VirtualFile(folder, entry.name, offset, sections, placed, entry.sha256, remarks)


def _misfit_reason(entry: GgufEntry, organs: Sequence[Organ], header: _StoredHeader | None) -> str | None:
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


def _file_with_stored_header(folder: Folder, entry: GgufEntry, organs: Sequence[Organ], header: Header) -> VirtualFile:
    assert entry.header is not None
    headers = FolderFile(folder, HEADER_FILE)
    sections = [Section(0, header.end, headers, entry.header.offset_bytes)]
    placed = []
    for organ, tensor in zip(organs, header.tensors, strict=True):
        offset = header.data_offset + tensor.offset
        sections.append(_organ_section(folder, organ, offset))
        placed.append(PlacedOrgan(organ.spec, offset, organ.entry.sha256, organ.entry.file))
    for padding in entry.paddings:
        stretch = padding.kept
        sections.append(Section(padding.offset_bytes, stretch.size_bytes, headers, stretch.offset_bytes))
    sections.sort(key=lambda section: section.offset_bytes)
    position = 0
    for section in sections:
        if section.offset_bytes < position:
            raise ValueError(f"padding at {section.offset_bytes} overlaps a tensor or other padding")
        position = section.offset_bytes + section.size_bytes
    if position > header.file_size_bytes:
        raise ValueError(f"padding ends at {position}, but the file ends at {header.file_size_bytes}")
    return VirtualFile(folder, entry.name, header.file_size_bytes, sections, placed, entry.sha256, ())


def _organ_section(folder: Folder, organ: Organ, offset: int) -> Section:
    return Section(offset, organ.spec.size_bytes, FolderFile(folder, organ.entry.file), organ.data_offset_bytes)


def _encode_fresh_header(entry: GgufEntry, organs: Sequence[Organ], header: _StoredHeader | None) -> tuple[bytes, int]:
    """Return a new header with its padding, and the alignment; raises ValueError for invalid metadata."""
    metadata = _merge_metadata(entry, header)
    alignment = header.header.alignment if header is not None else ALIGNMENT_DEFAULT
    for item in metadata:
        if isinstance(item, KeyValue) and item.key == ALIGNMENT_KEY:
            value = item.value
            if item.type is not ValueType.UINT32 or not isinstance(value, int):
                raise ValueError(f"{ALIGNMENT_KEY} is not a uint32")
            if not 1 <= value <= ALIGNMENT_MAX or value & (value - 1):
                raise ValueError(f"{ALIGNMENT_KEY} is {str(value)[:40]}, not a power of two up to {ALIGNMENT_MAX}")
            alignment = value
    return encode_header(metadata, [organ.spec for organ in organs], alignment), alignment


def _merge_metadata(entry: GgufEntry, header: _StoredHeader | None) -> list[Metadata]:
    if header is None:
        absent = [pair for pair in entry.pairs if isinstance(pair, str)]
        if absent:
            raise ValueError(f"metadata without a value, and no usable header to take it from: {names_text(absent)}")
        return [pair for pair in entry.pairs if isinstance(pair, KeyValue)]
    raw = {field.key: carry_over(header.source, field) for field in header.header.fields}
    if entry.readable is None:
        return list(raw.values())
    entries_by_key = {item["key"]: item for item in readable_metadata(header.source, header.header)}
    metadata: list[Metadata] = []
    for pair, value in zip(entry.pairs, entry.readable, strict=True):
        key = pair if isinstance(pair, str) else pair.key
        if key in entries_by_key and same_metadata([value], [entries_by_key[key]]):
            metadata.append(raw[key])
        elif isinstance(pair, str):
            raise ValueError(f"metadata without a value in the manifest or the header: {key[:80]!r}")
        else:
            metadata.append(pair)
    return metadata


def directory_size_bytes(path: Path) -> int:
    """Return the bytes to read in the folder, for progress; unreadable files count as 0."""
    return sum(file.stat().st_size for file in path.rglob("*.bin") if file.is_file())
