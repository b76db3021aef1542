"""The files that a registry, local or remote, can write: their names and sizes are known before a byte is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from organs.registry.digest import Digest
from organs.registry.entities.finding import Finding
from organs.registry.progress import Progress, no_progress


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a registry can write."""

    name: str
    size_bytes: int
    sha256: Digest | None
    """The digest of the file; None if it is only known after the file was written."""
    is_proven: bool = field(default=True, compare=False)
    """Whether `sha256` alone proves the content; otherwise more is checked while the file is fetched."""


@dataclass(frozen=True, slots=True)
class SourceModel:
    """The registered model whose files are written."""

    name: str
    """The full name, with the version."""
    is_chimera: bool
    yanked: str | None
    """The reason for which it was yanked; None if it is not yanked."""
    findings: tuple[Finding, ...] = ()
    """What its files cannot contain: a stated license other than the header's, yanked or removed parents."""
    has_license: bool = True
    """Whether the license in the header of its file is the stated one, or no license is stated."""

    @property
    def needs_card(self) -> bool:
        """Whether the card has facts for its users that the files do not contain."""
        return bool(self.findings) or not self.has_license or self.yanked is not None


class OutputFiles(ABC):
    """Files that a registry can write. Their names and sizes are known, but no byte was read yet."""

    def __init__(self, files: Iterable[NamedFile], model: SourceModel | None = None) -> None:
        self.files = tuple(files)
        self.model = model
        """None for an organ, and for a file that belongs to no registered model."""

    @property
    def work_bytes(self) -> int:
        """The number of bytes that `place` reports to its progress callback."""
        return sum(file.size_bytes for file in self.files)

    @abstractmethod
    def place(self, targets: Sequence[Path | None], progress: Progress = no_progress) -> tuple[Digest | None, ...]:
        """Write each file to its target, replace existing files, and return the SHA-256 of each file.

        A file with the target None is not written. Every byte is checked, and a file gets its name only when it is
        complete. The folders of the targets must exist. Raises StoreError, DiskFull, and for a remote registry
        Unreachable and BadReply; then the target is unchanged.
        """
