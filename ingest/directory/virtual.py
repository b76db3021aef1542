"""A GGUF file that is read out of an organ directory without ever being written: header, organs, zeros between them."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingest.buffers import BUFFER_BYTES
from ingest.directory.folder import Folder
from ingest.directory.layout import MANIFEST_FILE
from ingest.files import Origin
from registry.digest import Digest
from registry.errors import BadSource
from registry.gguf import TensorSpec

NAMES_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Section:
    """Bytes at `offset_bytes` of the GGUF: from a file of the folder, or at hand."""

    offset_bytes: int
    size_bytes: int
    file: str | None
    file_offset_bytes: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class PlacedOrgan:
    """A tensor of the virtual file, with the digest that the manifest gives."""

    spec: TensorSpec
    offset_bytes: int
    sha256: Digest | None


class VirtualFile:
    """One GGUF file of an organ directory; reads like a plain file, from several threads.

    `sections` rise by offset and do not overlap; all else is zeros.
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
        self.path = folder.path / name
        self.name = str(self.path)
        self.size_bytes = size_bytes
        self.sha256 = sha256
        """Of the file that the folder was made from, if the manifest says it."""
        self.remarks = tuple(remarks)
        """What was found out when the folder was opened."""
        self._folder = folder
        self._sections = tuple(section for section in sections if section.size_bytes)
        self._offsets = [section.offset_bytes for section in self._sections]
        self._organs = tuple(organs)

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`; raises BadSource when they are not there."""
        if offset + size > self.size_bytes:
            raise BadSource(f"{self.name}: ends at byte {self.size_bytes}, {offset + size} are wanted")
        data = bytearray(size)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BadSource when a file of the folder does not give its bytes."""
        if offset + len(buffer) > self.size_bytes:
            raise BadSource(f"{self.name}: ends at byte {self.size_bytes}, {offset + len(buffer)} are wanted")
        position = offset
        for section in self._between(offset, offset + len(buffer)):
            begin = max(offset, section.offset_bytes)
            end = min(offset + len(buffer), section.offset_bytes + section.size_bytes)
            _zero(buffer[position - offset : begin - offset])
            self._read_section(section, buffer[begin - offset : end - offset], begin - section.offset_bytes)
            position = end
        _zero(buffer[position - offset :])

    def check_unchanged(self) -> None:
        """Raise BadSource when one of the files that it is made of was written to or replaced."""
        self._folder.check_unchanged(MANIFEST_FILE)
        for file in dict.fromkeys(section.file for section in self._sections if section.file is not None):
            self._folder.check_unchanged(file)

    def close(self) -> None:
        """Nothing of its own is open: the folder is closed by whoever opened it."""

    def organ_digests(self) -> dict[int, Digest]:
        """The digest of each organ by its offset; reads them all."""
        return {one.offset_bytes: self._digest(one) for one in self._organs}

    def origin(self, organs: Mapping[int, Digest]) -> Origin | None:
        """The file that the folder was made from, if the manifest says which; `organs` are digests by offset."""
        if self.sha256 is None:
            return None
        edited = (
            one.spec.name for one in self._organs if one.sha256 not in (None, organs.get(one.offset_bytes, one.sha256))
        )
        return Origin(self.path.name, self.sha256, tuple(edited))

    def notes(self, sha256: Digest, organs: Mapping[int, Digest]) -> Iterator[str]:
        """What a person should know, when the whole has the digest `sha256`, and the organs, by offset, `organs`."""
        yield from self.remarks
        origin = self.origin(organs)
        if origin is None or origin.sha256 == sha256:
            return
        what = f"edited organs: {names_text(origin.edited)}" if origin.edited else "the folder was edited"
        yield f"{origin.name} is not the file that the folder was made from: {what}"

    def _digest(self, organ: PlacedOrgan) -> Digest:
        digest = hashlib.sha256()
        end = organ.offset_bytes + organ.spec.size_bytes
        buffer = memoryview(bytearray(min(BUFFER_BYTES, organ.spec.size_bytes)))
        for begin in range(organ.offset_bytes, end, BUFFER_BYTES):
            view = buffer[: min(BUFFER_BYTES, end - begin)]
            self.read_into(view, begin)
            digest.update(view)
        return Digest(digest.hexdigest())

    def _between(self, begin: int, end: int) -> Iterator[Section]:
        index = max(0, bisect_right(self._offsets, begin) - 1)
        for section in self._sections[index : bisect_right(self._offsets, end)]:
            if section.offset_bytes < end and section.offset_bytes + section.size_bytes > begin:
                yield section

    def _read_section(self, section: Section, buffer: memoryview, begin: int) -> None:
        if section.file is None:
            buffer[:] = section.data[begin : begin + len(buffer)]
        else:
            self._folder.read_into(section.file, buffer, section.file_offset_bytes + begin)


def names_text(names: Sequence[str]) -> str:
    """The first few of `names`, and how many more there are."""
    more = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def _zero(buffer: memoryview) -> None:
    if len(buffer):
        buffer[:] = bytes(len(buffer))
