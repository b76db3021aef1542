"""Removal of local files whose bytes are stored: each file is proved first, by reading its stored bytes back."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from organs.ingest.dissect import DissectedFile
from organs.ingest.sources import ModelSource
from organs.registry.assembly import plan_file, prove_file
from organs.registry.catalog.queries.model_contents import files_of
from organs.registry.digest import Digest
from organs.registry.errors import BadSource, MissingBlob, StoreError
from organs.registry.gguf.split import is_shard, parse_shard_name
from organs.registry.input_files import FileIdentity, FileSource
from organs.registry.local import LocalRegistry


def check_removable(source: ModelSource) -> None:
    """Raise BadSource if `source` has a path that is never removed: a folder, a symbolic link, a file of another tool.

    Other files are left to the ingest, which opens them. Files on a server are not removed.
    """
    if source.tool:
        raise BadSource(f"{source.label}: {source.tool} still needs it; --delete-after does not remove it")
    for path in source.paths:
        if path.is_symlink():
            raise BadSource(
                f"{path}: a symbolic link; --delete-after removes only files themselves: name the file that it leads "
                "to, or leave out the option"
            )
        if path.is_dir():
            raise BadSource(f"{path}: an organ directory or a PEFT folder; --delete-after removes only GGUF files")


@dataclass(slots=True)
class SourceFiles:
    """Notes the files of a source that are stored, and removes them if their stored bytes rebuild them."""

    registry: LocalRegistry
    is_named: bool
    """Whether the person named the model."""
    removes: bool
    """Whether files are removed."""
    stored: list[str] = field(default_factory=list)
    """The names of the stored files."""
    removed: list[Path] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Why files are still there, in sentences."""

    def add(self, file: DissectedFile, model_id: int, sha256: Digest) -> None:
        """Note a file of the model with that id; read its stored bytes back, compare their SHA-256, and remove it.

        The file is kept, with a sentence in `kept`, if its stored bytes are damaged, if it was changed or replaced
        after it was read, if the system does not allow to remove it, and if it is a shard without the file name of one
        and its model was not named: it may have begun another model. A copy of a file on a server is left to its
        owner.
        """
        source = file.source
        self.stored.append(source.name)
        if not self.removes or not isinstance(source, FileSource) or source.path != source.location:
            return
        if is_shard(file.header) and parse_shard_name(source.path.name) is None and not self.is_named:
            self.kept.append(
                f"{source.name}: kept, because its file name is not that of a shard; name its model: --name"
            )
            return
        try:
            with self.registry.catalog.reading() as session:
                row = next((row for row in files_of(session, model_id) if row.sha256 == sha256), None)
                if row is None:
                    raise MissingBlob(f"the model has no file with the SHA-256 {sha256}")
                plan = plan_file(session, row)
            prove_file(self.registry.blobs, plan)
            if FileIdentity.of(os.lstat(source.location)) != source.identity:
                self.kept.append(f"{source.name}: kept, because it was changed after it was stored")
                return
            os.unlink(source.location)
        except StoreError as error:
            self.kept.append(f"{source.name}: kept, because its stored bytes are damaged: {error}")
        except OSError as error:
            self.kept.append(f"{source.name}: it is stored, but cannot be removed: {error.strerror}")
        else:
            self.removed.append(source.location)
