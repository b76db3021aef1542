"""Models as the repositories that clients of the Hugging Face hub, llama.cpp and Ollama know.

A model is a repository with its name, and its versions are tags. The quantisations of one model are also one
repository: `me/coder` has the files of `me/coder-Q4_K_M` and `me/coder-Q8_0`, each of the newest visible version, and
those of `me/coder` itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from organs.registry.amounts import size_text
from organs.registry.catalog.queries.accounts import contributor_name
from organs.registry.catalog.queries.model_contents import files_by_model
from organs.registry.catalog.queries.model_lists import is_projector, quantisations_of
from organs.registry.catalog.queries.model_names import find_model, removal, removed_versions, versions_of
from organs.registry.catalog.tables import ModelFileRow, ModelRow
from organs.registry.compose.chimeras import CARD_VERSION, card
from organs.registry.errors import NotFound, Removed
from organs.registry.gguf.split import ShardName, parse_shard_name
from organs.registry.names import ModelName, parse_model_name, plain_quantisation, split_quantisation
from organs.registry.quantizing.tags import command_for
from organs.web.downloads import SUFFIX, literal_file, model_file, public_names
from organs.web.file_responses import FileContent
from organs.web.responses import reading

README = "README.md"
LIBRARY = "gguf"
"""The library that the hub's clients name for GGUF files."""
LICENSE_TAG = "license:"
COMMIT_LENGTH = 40
TAG_MAX_LENGTH = 96
BRANCHES = ("main", "HEAD", "refs/heads/main")
"""Names of the newest version."""
COMMON = ("Q4_K_M", "Q8_0")
"""The quantisations that llama.cpp prefers if none is requested."""


class RevisionMissing(NotFound, code="revision-missing"):
    """A repository exists, and has no such revision (routes of the Hugging Face hub)."""


class RevisionRemoved(Removed, RevisionMissing, code="revision-removed"):
    """A repository exists, and the revision was removed (routes of the Hugging Face hub)."""


class EntryMissing(NotFound, code="entry-missing"):
    """A revision exists, and has no such file (routes of the Hugging Face hub)."""


@dataclass(frozen=True, slots=True)
class RepositoryEntry:
    """A file of a repository."""

    path: str
    content: FileContent
    object_id: str
    """The SHA-1 of the git object: of the file, or of its Git LFS pointer if it is a model's file."""
    pointer: bytes
    """The Git LFS pointer of a model's file; empty for other files."""

    @property
    def is_model(self) -> bool:
        return bool(self.pointer)

    @property
    def raw(self) -> FileContent:
        """The file as git stores it: the pointer of a model's file, or the file itself."""
        return literal_file(self.path, self.pointer, tag=self.object_id) if self.is_model else self.content


@dataclass(frozen=True, slots=True)
class Commit:
    """A version of a model, or the present quantisations of one, as a commit for the hub's clients."""

    id: str
    title: str
    created: str
    """When the newest version in it was registered, in ISO 8601."""
    author: str
    """The contributor's name."""


@dataclass(frozen=True, slots=True)
class Member:
    """A model in a repository, and its files."""

    model: ModelRow
    entries: tuple[RepositoryEntry, ...]

    @property
    def is_projector(self) -> bool:
        """Whether it is the vision or audio part of the other members."""
        return is_projector(self.model)

    @property
    def quantisations(self) -> tuple[str, ...]:
        """The quantisations at the end of its name and of the names of its files."""
        names = [self.model.quantisation]
        for entry in self.entries:
            if entry.is_model:
                shard = parse_shard_name(entry.path)
                stem = entry.path.removesuffix(SUFFIX) if shard is None else shard.stem
                names.append(split_quantisation(stem)[1])
        return tuple(name for name in names if name is not None)


@dataclass(frozen=True, slots=True)
class Repository:
    """A model at one of its versions, or the present quantisations of a model."""

    name: str
    commit: str
    created: str
    """When the newest version in it was registered, in ISO 8601."""
    members: tuple[Member, ...]
    readme: RepositoryEntry | None
    commits_by_tag: dict[str, str]
    downloads: int
    tags: list[str]
    """The tags by which the hub's clients filter: the library, the architecture, the license."""

    @property
    def entries(self) -> tuple[RepositoryEntry, ...]:
        """The files in order: those of the models, and the README."""
        files = [entry for member in self.members for entry in member.entries]
        return (*files, *((self.readme,) if self.readme else ()))

    def entry(self, path: str) -> RepositoryEntry:
        """Return the file at `path`; raises EntryMissing."""
        for entry in self.entries:
            if entry.path == path:
                return entry
        raise EntryMissing(f"{self.name} has no file {path[:200]!r} at {self.commit[:8]}")

    def member(self, tag: str) -> Member | None:
        """Return the model whose files have the quantisation `tag` in their names; None if no model has.

        `Q4_K_M` is also `I1-Q4_K_M` and the like, if there is no file of exactly this quantisation.
        For `latest` it is the model that is called as the repository, or has a quantisation of COMMON, or the first.
        """
        models = [member for member in self.members if not member.is_projector] or list(self.members)
        if tag != "latest":
            return _of_quantisation(models, tag)
        own = [member for member in models if self.name == f"{member.model.namespace}/{member.model.name}"]
        common = [member for quantisation in COMMON if (member := _of_quantisation(models, quantisation))]
        return [*own, *common, *models][0]


def _of_quantisation(models: Sequence[Member], tag: str) -> Member | None:
    """Return the first model of exactly the quantisation `tag`, or else the first one of it that was made specially."""
    wanted = tag.upper()
    exact = (member for member in models if wanted in member.quantisations)
    special = (member for member in models if wanted in map(plain_quantisation, member.quantisations))
    return next(exact, None) or next(special, None)


@dataclass(frozen=True, slots=True)
class RepositoryRevision:
    """The models of a repository at a revision, and all versions of the model with its name."""

    name: ModelName
    models: tuple[ModelRow, ...]
    versions: Sequence[ModelRow]

    @property
    def is_group(self) -> bool:
        """Whether it has the quantisations of a model."""
        return len(self.models) > 1 or self.models[0].name != self.name.name

    @property
    def commit(self) -> str:
        """The id of the commit. It changes when a model in it changes."""
        if not self.is_group:
            return commit_of(self.models[0])
        lines = ["quantisations 1", str(self.name), *map(commit_of, self.models)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:COMMIT_LENGTH]

    @property
    def newest(self) -> ModelRow:
        return max(self.models, key=lambda model: (model.created_at, model.id))


def repository(session: Session, user: str, name: str, revision: str) -> Repository:
    """Return the repository `user/name` at `revision`: a branch, a tag, or a commit by 7 or more of its characters.

    A tag is a version, such as `v2`, or a quantisation or a size of the same model: `Q4_K_M`, `4.5bpw`. Raises BadName,
    NotFound, Removed, RevisionMissing, NotAssemblable.
    """
    found = _find_revision(session, user, name, revision)
    members = _members(session, found)
    tags = dict.fromkeys(tag for model in found.models for tag in tags_of(model))
    return Repository(
        name=str(found.name),
        commit=found.commit,
        created=time_of(found.newest),
        members=members,
        readme=_readme(session, found, members),
        commits_by_tag={f"v{row.version}": commit_of(row) for row in found.versions},
        downloads=sum(model.downloads for model in found.models),
        tags=list(tags),
    )


def history(session: Session, user: str, name: str, revision: str) -> list[Commit]:
    """Return the commits of the repository up to `revision`, newest first. Raises as `repository` does.

    The quantisations of a model are one commit, before those of the versions of the model with that name.
    """
    found = _find_revision(session, user, name, revision)
    shown = sorted(
        (row for row in found.versions if found.is_group or row.version <= found.models[0].version),
        key=lambda row: -row.version,
    )
    dated = [*([found.newest] if found.is_group else []), *shown]
    authors = {author_id: contributor_name(session, author_id) for author_id in {row.contributor_id for row in dated}}
    commits = [Commit(commit_of(row), row.full_name, time_of(row), authors[row.contributor_id]) for row in shown]
    if found.is_group:
        author = authors[found.newest.contributor_id]
        commits.insert(0, Commit(found.commit, str(found.name), time_of(found.newest), author))
    return commits


def check_repository(session: Session, user: str, name: str) -> None:
    """Raise BadName, NotFound or Removed as `repository` does, without reading the files."""
    requested = parse_model_name(f"{user}/{name}")
    if requested.version is not None or find_model(session, requested) is None:
        _find_revision(session, user, name, BRANCHES[0])


def read_repository(user: str, name: str, revision: str) -> Repository:
    """Return `repository` in a session of its own."""
    with reading() as session:
        return repository(session, user, name, revision)


def time_of(model: ModelRow) -> str:
    """Return the time when a version was registered, in the format of the hub."""
    return model.created_at.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def tags_of(model: ModelRow) -> list[str]:
    """Return the tags by which the hub's clients find a model."""
    own = [model.architecture, model.license and f"{LICENSE_TAG}{model.license.lower()}"]
    return [LIBRARY, *(tag for tag in own if tag)]


def commit_of(model: ModelRow) -> str:
    """Return the commit id of a version: a hash of its name, its digest and the version of the card's format.

    No two versions have the same id.
    """
    text = f"{model.full_name}\n{model.digest}\ncard {CARD_VERSION}\n"
    return hashlib.sha256(text.encode()).hexdigest()[:COMMIT_LENGTH]


def _find_revision(session: Session, user: str, name: str, revision: str) -> RepositoryRevision:
    requested = parse_model_name(f"{user}/{name}")
    if requested.version is not None:
        raise NotFound(f"no model is registered as {requested}")
    versions = versions_of(session, requested)
    model = next((row for row in versions if _matches_revision(row, revision)), None)
    if model is not None:
        return RepositoryRevision(requested, (model,), versions)
    newest = [row for row in versions[:1] if row.state == "visible"]
    main = newest + [row for row in quantisations_of(session, requested) if row.name != requested.name]
    present = RepositoryRevision(requested, tuple(main or versions[:1]), versions)
    if present.models and (revision in BRANCHES or _begins(present.commit, revision)):
        return present
    for tag, row in quantisations_by_tag(session, requested).items() if present.models else ():
        alone = RepositoryRevision(requested, (row,), versions)
        if revision.casefold() in (tag.casefold(), f"refs/tags/{tag}".casefold()) or _begins(alone.commit, revision):
            return alone
    removed = removed_versions(session, requested)
    if not present.models:
        raise removal(removed[0]) if removed else NotFound(f"no model is registered as {requested}")
    gone = next((row for row in removed if _matches_revision(row, revision)), None)
    if gone is not None:
        notice = removal(gone)
        raise RevisionRemoved(gone.full_name, notice.reason, notice.removed_on)
    raise RevisionMissing(f"{requested} has no revision {revision[:80]!r}{how_to_make(present.models, revision)}")


def quantisations_by_tag(session: Session, name: ModelName) -> dict[str, ModelRow]:
    """Return the other quantisations and the sizes of the model `name`, by the ends of their names."""
    stems = dict.fromkeys((split_quantisation(name.name)[0], name.name))
    rows = [row for stem in stems for row in quantisations_of(session, replace(name, name=stem))]
    return {
        row.name[len(row.stem) + 1 :]: row
        for row in rows
        if row.stem in stems and row.name not in stems and not is_projector(row)
    }


def commits_of_quantisations(session: Session, user: str, name: str) -> dict[str, str]:
    """Return the commits of the revisions that have only one quantisation or size of a model, by their tags."""
    requested = parse_model_name(f"{user}/{name}")
    rows = quantisations_by_tag(session, requested)
    return {tag: RepositoryRevision(requested, (row,), ()).commit for tag, row in rows.items()}


def how_to_make(models: Sequence[ModelRow], tag: str) -> str:
    """Return the end of a sentence: the command that makes the size `tag` from the largest of `models`.

    It is empty if the tag is no size.
    """
    source = max(models, key=lambda model: model.size_bytes)
    command = command_for(f"{source.namespace}/{source.name}", tag[:TAG_MAX_LENGTH])
    return "" if command is None else f": nobody computed this size here yet; `{command}` does"


def _matches_revision(model: ModelRow, revision: str) -> bool:
    """Return whether `revision` is the tag or the commit of a version."""
    return revision in (f"v{model.version}", f"refs/tags/v{model.version}") or _begins(commit_of(model), revision)


def _begins(commit: str, revision: str) -> bool:
    return 7 <= len(revision) <= COMMIT_LENGTH and commit.startswith(revision.lower())


def _members(session: Session, found: RepositoryRevision) -> tuple[Member, ...]:
    files = files_by_model(session, [model.id for model in found.models])
    members: list[Member] = []
    used: set[str] = set()
    for model in found.models:
        if model.name == found.name.name:
            names = public_names([file.name for file in files[model.id]])
        else:
            names = _quantisation_names(model, files[model.id], used)
        used |= set(names)
        entries = []
        for name, file in zip(names, files[model.id], strict=True):
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{file.sha256}\nsize {file.size_bytes}\n"
            data = pointer.encode("ascii")
            entries.append(RepositoryEntry(name, model_file(model, file, name, immutable=False), _git_id(data), data))
        members.append(Member(model, tuple(entries)))
    return tuple(members)


def _quantisation_names(model: ModelRow, files: Sequence[ModelFileRow], used: Collection[str]) -> list[str]:
    """Return the names of the files of a quantisation: that of the model, so that they have the quantisation.

    If a file of the model without a quantisation has the same name, they also have the version.
    """
    for stem in (model.name, f"{model.name}-v{model.version}", f"{model.name}-v{model.version}-{model.digest[:16]}"):
        count = len(files)
        names = [f"{stem}{SUFFIX}"] if count == 1 else [str(ShardName(stem, n, count)) for n in range(1, count + 1)]
        if not set(names) & set(used):
            return names
    raise AssertionError("a file is called after its own digest")


def _readme(session: Session, found: RepositoryRevision, members: Sequence[Member]) -> RepositoryEntry | None:
    """Return the README; None if a file of a model has this name."""
    paths = [entry.path for member in members for entry in member.entries]
    if README in paths:
        return None
    model = members[0].model
    if model.name == found.name.name:
        files = files_by_model(session, [model.id])[model.id]
        text = card(session, model, list(zip(paths, files, strict=False)))
    else:  # all texts are names, which have no markup, and numbers
        lines = ["---", f"library_name: {LIBRARY}", "---", "", f"# {found.name.name}", ""]
        lines += ["The quantisations of one model. Each is a model of its own, with a card.", ""]
        lines += ["| file | model | size |", "|---|---|---|"]
        lines += [
            f"| `{entry.path}` | `{member.model.full_name}` | {size_text(entry.content.size_bytes)} |"
            for member in members
            for entry in member.entries
        ]
        text = "\n".join([*lines, ""])
    object_id = _git_id(text.encode())
    return RepositoryEntry(README, literal_file(README, text.encode(), tag=object_id), object_id, b"")


def _git_id(data: bytes) -> str:
    """Return the object id that git gives to a file with these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
