"""Models as people give them to a command: a file, an organ directory, or the name of a registered one."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click

from organs.cli.place import folder_registry
from organs.ingest.directory.folder import is_organ_directory
from organs.ingest.opening import open_files
from organs.ingest.sources import GGUF_SUFFIX, ModelSource, find_sources
from organs.ingest.transplant import parent_of_files
from organs.registry.compose.library import RegisteredLibrary
from organs.registry.compose.parent import Parent


@dataclass(slots=True)
class GivenModels:
    """Opens what is asked for; `opened` closes it. A registry is opened only where a name is given."""

    opened: ExitStack
    _library: RegisteredLibrary | None = field(default=None, init=False)

    def parent(self, text: str) -> Parent:
        """The model that `text` means. Raises NotFound, Ambiguous, BadName, BadDigest, BadInput, StoreError."""
        if is_file(text):
            return parent_of_files(text, open_files(self.opened, one_source(text, "compare")))
        if self._library is None:
            registry = self.opened.enter_context(folder_registry())
            session = self.opened.enter_context(registry.catalog.reading())
            self._library = RegisteredLibrary(session, registry.blobs)
        return self._library.parent(text)


def is_file(text: str) -> bool:
    """Whether `text` means a GGUF file or an organ directory, not the name of a registered model."""
    path = Path(text)
    return text.endswith(GGUF_SUFFIX) or path.is_file() or is_organ_directory(path)


def one_source(text: str, purpose: str) -> ModelSource:
    """The one model in the files that `text` names; raises BadSource, with the verb `purpose`."""
    sources = find_sources([text], purpose)
    if len(sources) != 1:
        raise click.UsageError(f"one model at a time; {text} gives {len(sources)}")
    return sources[0]
