"""A GGUF file that is read out of an organ directory without ever being written: header, organs, zeros between them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from organs.ingest.buffers import BUFFER_BYTES
from organs.ingest.composed import ComposedFile, Section
from organs.ingest.directory.folder import Folder
from organs.ingest.directory.layout import MANIFEST_FILE
from organs.ingest.files import Origin
from organs.registry.digest import Digest
from organs.registry.gguf import TensorSpec

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
    """A tensor of the virtual file, with the digest that the manifest gives."""

    spec: TensorSpec
    offset_bytes: int
    sha256: Digest | None
    file: str
    """Its own file in the folder."""


class VirtualFile(ComposedFile):
    """One GGUF file of an organ directory. `sha256` is that of the file that the folder was made from, if the manifest
    says it; `remarks` are what was found out when the folder was opened.
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
        """Raise BadSource when one of the files that it is made of was written to or replaced."""
        self._folder.check_unchanged(MANIFEST_FILE)
        super().check_unchanged()

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
        if origin is not None and origin.sha256 != sha256:
            what = f"edited organs: {names_text(origin.edited)}" if origin.edited else "the folder was edited"
            yield f"{origin.name} is not the file that the folder was made from: {what}"
        yield from self._mismatches(organs)

    def _mismatches(self, organs: Mapping[int, Digest]) -> Iterator[str]:
        """The organ files whose bytes do not have the SHA-256 that the manifest states, with both."""
        wrong = [
            (one, found)
            for one in self._organs
            if (found := organs.get(one.offset_bytes)) is not None and one.sha256 not in (None, found)
        ]
        for one, found in wrong[:NAMES_SHOWN_MAX]:
            yield f"{one.file}: its values have the SHA-256 {found}, the manifest states {one.sha256}"
        if len(wrong) > NAMES_SHOWN_MAX:
            yield f"{len(wrong) - NAMES_SHOWN_MAX} more organ files do not have the SHA-256 that the manifest states"

    def _digest(self, organ: PlacedOrgan) -> Digest:
        digest = hashlib.sha256()
        end = organ.offset_bytes + organ.spec.size_bytes
        buffer = memoryview(bytearray(min(BUFFER_BYTES, organ.spec.size_bytes)))
        for begin in range(organ.offset_bytes, end, BUFFER_BYTES):
            view = buffer[: min(BUFFER_BYTES, end - begin)]
            self.read_into(view, begin)
            digest.update(view)
        return Digest(digest.hexdigest())


def names_text(names: Sequence[str]) -> str:
    """The first few of `names`, and how many more there are."""
    more = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
