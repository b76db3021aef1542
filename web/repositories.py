"""Models as the repositories that clients of the hub know: commits, tags, files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import BlobRow
from organs.registry.catalog.queries.contributors import contributor_name
from organs.registry.catalog.queries.downloads import versions_of
from organs.registry.catalog.queries.models import files_of
from organs.registry.catalog.queries.removed import removal, removed_versions
from organs.registry.catalog.tables import Model
from organs.registry.errors import NotFound, Removed
from organs.registry.names import ModelName, parse_model_name
from organs.registry.present.card import CARD_VERSION, card
from organs.registry.present.chimera import chimera_values
from organs.web.contents import model_file, public_names
from organs.web.streams import ByteSource, Content

README = "README.md"
LIBRARY = "gguf"
"""The library that the hub's clients name for GGUF files."""
LICENSE_TAG = "license:"
COMMIT_LENGTH = 40
BRANCHES = ("main", "HEAD", "refs/heads/main")
"""Names of the newest version."""


class RevisionMissing(NotFound):
    """The repository is there, the revision is not."""


class RevisionRemoved(RevisionMissing, Removed):
    """The repository is there, the revision was removed."""


class EntryMissing(NotFound):
    """The revision is there, the file is not."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a repository."""

    path: str
    content: Content
    object_id: str
    """The SHA-1 that git gives to the file, or to the pointer that stands for a large one."""
    pointer: bytes
    """The Git LFS pointer that stands in git for a model's file; empty for other files, which have none."""

    @property
    def is_model(self) -> bool:
        return bool(self.pointer)

    @property
    def raw(self) -> Content:
        """The file as git keeps it: the pointer of a model's file, else the file itself."""
        return text_content(self.path, self.pointer, self.object_id) if self.is_model else self.content


@dataclass(frozen=True, slots=True)
class Commit:
    """A version as the hub's clients know it."""

    id: str
    tag: str
    created: str
    """When the version was registered, by ISO 8601."""
    author: str
    """The contributor's name."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A model at one of its versions."""

    name: str
    commit: str
    created: str
    """When the version was registered, by ISO 8601."""
    entries: tuple[Entry, ...]
    commits_by_tag: dict[str, str]
    downloads: int
    tags: list[str]
    """By which the hub's clients filter: the library, the architecture, the licence."""

    def entry(self, path: str) -> Entry:
        """The file at `path`; raises EntryMissing."""
        for entry in self.entries:
            if entry.path == path:
                return entry
        raise EntryMissing(f"{self.name} has no file {path[:200]!r} at {self.commit[:8]}")


def repository(session: Session, user: str, name: str, revision: str) -> Repository:
    """Return the repository `user/name` at `revision`: a branch, a tag, or a commit by 7 or more of its characters.

    Raises BadName, NotFound, Removed, RevisionMissing, NotAssemblable.
    """
    requested, model, versions = _chosen(session, user, name, revision)
    return Repository(
        name=str(requested),
        commit=commit_of(model),
        created=time_of(model),
        entries=_entries(session, model),
        commits_by_tag={f"v{one.version}": commit_of(one) for one in versions},
        downloads=model.downloads,
        tags=tags_of(model),
    )


def history(session: Session, user: str, name: str, revision: str) -> list[Commit]:
    """Return the commits of the repository up to `revision`, newest first. Raises what `repository` does."""
    _, model, versions = _chosen(session, user, name, revision)
    shown = sorted((one for one in versions if one.version <= model.version), key=lambda one: -one.version)
    authors = {author_id: contributor_name(session, author_id) for author_id in {one.contributor_id for one in shown}}
    return [Commit(commit_of(one), f"v{one.version}", time_of(one), authors[one.contributor_id]) for one in shown]


def time_of(model: Model) -> str:
    """Return when a version was registered, as the hub writes times."""
    return model.created_at.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def tags_of(model: Model) -> list[str]:
    """Return the tags by which the hub's clients find a model."""
    own = [model.architecture, model.license and f"{LICENSE_TAG}{model.license.lower()}"]
    return [LIBRARY, *(tag for tag in own if tag)]


def _chosen(session: Session, user: str, name: str, revision: str) -> tuple[ModelName, Model, Sequence[Model]]:
    """Return the name, the version that `revision` means, and all versions of the repository `user/name`."""
    requested = parse_model_name(f"{user}/{name}")
    versions = versions_of(session, ModelName(requested.namespace, requested.name)) if requested.version is None else ()
    if not versions:
        raise _gone(session, requested, None) or NotFound(f"no model is registered as {requested}")
    model = next((one for one in versions if _is_meant(one, versions[0], revision)), None)
    if model is None:
        raise _gone(session, requested, revision) or RevisionMissing(f"{requested} has no revision {revision[:80]!r}")
    return requested, model, versions


def commit_of(model: Model) -> str:
    """The commit of a version: of its name, its bytes and the form of its README, so no two versions share one."""
    text = f"{model.full_name}\n{model.digest}\ncard {CARD_VERSION}\n"
    return hashlib.sha256(text.encode()).hexdigest()[:COMMIT_LENGTH]


def _gone(session: Session, requested: ModelName, revision: str | None) -> Removed | None:
    """What to tell of the newest removed version, or of the one that is `revision`, if there is one."""
    gone = removed_versions(session, requested) if requested.version is None else ()
    if revision is None:
        return removal(gone[0]) if gone else None
    meant = next((one for one in gone if _is_meant(one, None, revision)), None)
    return None if meant is None else RevisionRemoved(str(removal(meant)))


def _is_meant(model: Model, newest: Model | None, revision: str) -> bool:
    if revision in BRANCHES:
        return model is newest
    if revision in (f"v{model.version}", f"refs/tags/v{model.version}"):
        return True
    return 7 <= len(revision) <= COMMIT_LENGTH and commit_of(model).startswith(revision.lower())


def _entries(session: Session, model: Model) -> tuple[Entry, ...]:
    files = files_of(session, model.id)
    named = list(zip(public_names([file.name for file in files]), files, strict=True))
    entries = []
    for name, file in named:
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{file.sha256}\nsize {file.size_bytes}\n"
        data = pointer.encode("ascii")
        entries.append(Entry(name, model_file(model, file, name, immutable=False), _git_id(data), data))
    if README not in (name for name, _ in named):
        made = chimera_values(session, model)
        # Verdicts come later, and a revision keeps its text.
        text = card(model, named, None if made is None else made | {"verdicts": None}).encode()
        object_id = _git_id(text)
        entries.append(Entry(README, text_content(README, text, object_id), object_id, b""))
    return tuple(entries)


def text_content(name: str, text: bytes, tag: str) -> Content:
    """Return a small file in memory as content with that ETag."""
    return Content(name, len(text), tag, _opener(text))


def _git_id(data: bytes) -> str:
    """The object id that git gives to a file with these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class _Text:
    """Bytes in memory as a source."""

    data: bytes

    @property
    def faults(self) -> list[BlobRow]:
        return []

    def __enter__(self) -> _Text:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def __iter__(self) -> Iterator[memoryview]:
        yield memoryview(self.data)


def _opener(text: bytes) -> Callable[[int, int], ByteSource]:
    def open_text(begin: int, end: int) -> ByteSource:
        return _Text(text[begin:end])

    return open_text
