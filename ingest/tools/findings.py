"""Findings of a search in the folder of a tool: models, problems, notes; and names from repositories."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from organs.ingest.sources import ModelSource
from organs.registry.names import repository_base, split_quantisation

ENTRIES_MAX = 200_000
"""The most entries of a folder with its subfolders that are read."""
DEPTH_MAX = 8
PROBLEMS_MAX = 100
"""The most sentences about one folder."""
TEXT_SHOWN = 200
"""The most characters of a name from outside in a sentence."""

_GENERIC = frozenset({"model", "ggml-model", "ggml", "gguf", "weights", "mmproj", "mmproj-model"})
"""Names of files that say nothing about the model."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What one folder of a tool has."""

    folder: Path
    is_there: bool
    sources: tuple[ModelSource, ...] = ()
    problems: tuple[str, ...] = ()
    """Models that cannot be read, each in a sentence."""
    notes: tuple[str, ...] = ()
    """Models that have no GGUF file, each in a sentence."""
    tool: str = ""
    """The option of the tool; empty for a folder that a person named."""


class Remarks:
    """Collects sentences about one folder; the first PROBLEMS_MAX are kept and the others counted."""

    def __init__(self) -> None:
        self._sentences: dict[str, None] = {}
        self._left_out = 0

    def add(self, sentence: str) -> None:
        """Add a sentence, once."""
        if sentence in self._sentences:
            return
        if len(self._sentences) < PROBLEMS_MAX:
            self._sentences[sentence] = None
        else:
            self._left_out += 1

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences in order."""
        more = [f"and {self._left_out} more problems of this kind"] if self._left_out else []
        return (*self._sentences, *more)


def walk_files(
    folder: Path, wanted: Callable[[str], bool], problems: Remarks, depth_max: int = DEPTH_MAX
) -> Iterator[Path]:
    """Yield the files below `folder` whose names are `wanted`, in order; links to folders are followed once.

    Folders that cannot be read, and broken links, become `problems`.
    """
    visited: set[tuple[int, int]] = set()
    budget = ENTRIES_MAX
    waiting = [(folder, 0)]
    while waiting:
        current, depth = waiting.pop()
        try:
            status = current.stat()
            with os.scandir(current) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            problems.add(f"{current}: {error.strerror}")
            continue
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        budget -= len(entries)
        if budget < 0:
            problems.add(f"{folder}: more than {ENTRIES_MAX:,} entries; the others were not read")
            return
        folders = []
        for entry in entries:
            path, is_subfolder = Path(entry.path), False
            with suppress(OSError):
                is_subfolder = entry.is_dir()
            if is_subfolder:
                folders += [(path, depth + 1)] if depth < depth_max else []
            elif wanted(entry.name):
                if reason := unreadable(path):
                    problems.add(f"{path}: {reason}")
                else:
                    yield path
        waiting += reversed(folders)


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder, or may be one that this user cannot read, which gives a problem later."""
    try:
        return path.is_dir()
    except OSError:
        return True


def unreadable(path: Path) -> str:
    """Return why the file cannot be read, in a few words; empty if it can."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return "a link to a file that is not there" if path.is_symlink() else "no such file"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or "not a valid path"
    if not is_file:
        return "not a file"
    return "" if os.access(path, os.R_OK) else "Permission denied"


def name_in_repository(repository: str, stem: str) -> str:
    """Return the name of a model from its repository and its file: that of the file, if it says what the model is.

    `model-Q4_K_M` or `Q4_K_M` in `tiny-GGUF` is `tiny-Q4_K_M`; `mmproj-F16` is `tiny-mmproj-F16`.
    """
    base = repository_base(repository)
    plain, quantisation = split_quantisation(stem)
    is_only_quantisation = split_quantisation(f"x-{stem}") == ("x", stem.upper())
    if is_only_quantisation:
        return f"{base}-{stem}"
    if plain.lower() not in _GENERIC:
        return stem
    middle = "-mmproj" if plain.lower().startswith("mmproj") else ""
    return f"{base}{middle}" + (f"-{quantisation}" if quantisation else "")


def shown(text: str) -> str:
    """Return a text from outside for a sentence."""
    return text if len(text) <= TEXT_SHOWN else text[: TEXT_SHOWN - 1] + "…"
