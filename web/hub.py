"""The Hugging Face hub's routes, read-only, and models as the repositories that its clients know."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Response, g, jsonify, request
from sqlalchemy.orm import Session
from werkzeug.exceptions import HTTPException

from organs.registry.catalog.queries.accounts import contributor_name
from organs.registry.catalog.queries.models import (
    RepositoryQuery,
    file_names_of,
    files_of,
    removal,
    removed_versions,
    repositories_page,
    versions_of,
)
from organs.registry.catalog.queries.organs import BlobRow
from organs.registry.catalog.tables import Model
from organs.registry.compose.chimeras import CARD_VERSION, card
from organs.registry.entities.problem import INTERNAL
from organs.registry.errors import BadName, BadQuery, NotFound, OrganError, Removed
from organs.registry.names import ModelName, parse_model_name
from organs.web.downloads import (
    explaining_faults,
    model_file,
    public_names,
)
from organs.web.error_pages import HIDDEN, logged_status
from organs.web.file_responses import (
    ByteSource,
    Content,
    hand_out,
)
from organs.web.responses import (
    reading,
    settings,
)

README = "README.md"
LIBRARY = "gguf"
"""The library that the hub's clients name for GGUF files."""
LICENSE_TAG = "license:"
COMMIT_LENGTH = 40
BRANCHES = ("main", "HEAD", "refs/heads/main")
"""Names of the newest version."""


class RevisionMissing(NotFound, code="revision-missing"):
    """A repository exists, and has no such revision (routes of the Hugging Face hub)."""


class RevisionRemoved(Removed, RevisionMissing, code="revision-removed"):
    """A repository exists, and the revision was removed (routes of the Hugging Face hub)."""


class EntryMissing(NotFound, code="entry-missing"):
    """A revision exists, and has no such file (routes of the Hugging Face hub)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a repository."""

    path: str
    content: Content
    object_id: str
    """The SHA-1 of the git object: of the file, or of its Git LFS pointer if it is a model's file."""
    pointer: bytes
    """The Git LFS pointer of a model's file; empty for other files."""

    @property
    def is_model(self) -> bool:
        return bool(self.pointer)

    @property
    def raw(self) -> Content:
        """The file as git stores it: the pointer of a model's file, or the file itself."""
        return text_content(self.path, self.pointer, self.object_id) if self.is_model else self.content


@dataclass(frozen=True, slots=True)
class Commit:
    """A version of a model, as a commit for the hub's clients."""

    id: str
    tag: str
    created: str
    """When the version was registered, in ISO 8601."""
    author: str
    """The contributor's name."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A model at one of its versions."""

    name: str
    commit: str
    created: str
    """When the version was registered, in ISO 8601."""
    entries: tuple[Entry, ...]
    commits_by_tag: dict[str, str]
    downloads: int
    tags: list[str]
    """The tags by which the hub's clients filter: the library, the architecture, the license."""

    def entry(self, path: str) -> Entry:
        """Return the file at `path`; raises EntryMissing."""
        for entry in self.entries:
            if entry.path == path:
                return entry
        raise EntryMissing(f"{self.name} has no file {path[:200]!r} at {self.commit[:8]}")


def repository(session: Session, user: str, name: str, revision: str) -> Repository:
    """Return the repository `user/name` at `revision`: a branch, a tag, or a commit by 7 or more of its characters.

    Raises BadName, NotFound, Removed, RevisionMissing, NotAssemblable.
    """
    requested, model, versions = _find_version(session, user, name, revision)
    return Repository(
        name=str(requested),
        commit=commit_of(model),
        created=time_of(model),
        entries=_entries(session, model),
        commits_by_tag={f"v{row.version}": commit_of(row) for row in versions},
        downloads=model.downloads,
        tags=tags_of(model),
    )


def history(session: Session, user: str, name: str, revision: str) -> list[Commit]:
    """Return the commits of the repository up to `revision`, newest first. Raises as `repository` does."""
    _, model, versions = _find_version(session, user, name, revision)
    shown = sorted((row for row in versions if row.version <= model.version), key=lambda row: -row.version)
    authors = {author_id: contributor_name(session, author_id) for author_id in {row.contributor_id for row in shown}}
    return [Commit(commit_of(row), f"v{row.version}", time_of(row), authors[row.contributor_id]) for row in shown]


def time_of(model: Model) -> str:
    """Return the time when a version was registered, in the format of the hub."""
    return model.created_at.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def tags_of(model: Model) -> list[str]:
    """Return the tags by which the hub's clients find a model."""
    own = [model.architecture, model.license and f"{LICENSE_TAG}{model.license.lower()}"]
    return [LIBRARY, *(tag for tag in own if tag)]


def _find_version(session: Session, user: str, name: str, revision: str) -> tuple[ModelName, Model, Sequence[Model]]:
    """Return the name, the version that `revision` means, and all versions of the repository `user/name`."""
    requested = parse_model_name(f"{user}/{name}")
    versions = versions_of(session, ModelName(requested.namespace, requested.name)) if requested.version is None else ()
    if not versions:
        raise _removal_notice(session, requested, None) or NotFound(f"no model is registered as {requested}")
    model = next((row for row in versions if _matches_revision(row, versions[0], revision)), None)
    if model is None:
        raise _removal_notice(session, requested, revision) or RevisionMissing(
            f"{requested} has no revision {revision[:80]!r}"
        )
    return requested, model, versions


def commit_of(model: Model) -> str:
    """Return the commit id of a version: a hash of its name, its digest and the version of the card's format.

    No two versions have the same id.
    """
    text = f"{model.full_name}\n{model.digest}\ncard {CARD_VERSION}\n"
    return hashlib.sha256(text.encode()).hexdigest()[:COMMIT_LENGTH]


def _removal_notice(session: Session, requested: ModelName, revision: str | None) -> Removed | None:
    """Return the notice about the newest removed version, or about `revision`, if there is one."""
    removed = removed_versions(session, requested) if requested.version is None else ()
    if revision is None:
        return removal(removed[0]) if removed else None
    model = next((row for row in removed if _matches_revision(row, None, revision)), None)
    if model is None:
        return None
    notice = removal(model)
    return RevisionRemoved(model.full_name, notice.reason, notice.removed_on)


def _matches_revision(model: Model, newest: Model | None, revision: str) -> bool:
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
        text = card(session, model, named).encode()
        object_id = _git_id(text)
        entries.append(Entry(README, text_content(README, text, object_id), object_id, b""))
    return tuple(entries)


def text_content(name: str, text: bytes, tag: str) -> Content:
    """Return a small file in memory as content with the ETag `tag`."""
    return Content(name, len(text), tag, _text_opener(text))


def _git_id(data: bytes) -> str:
    """Return the object id that git gives to a file with these bytes."""
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
        """Close nothing: no file is open."""

    def __iter__(self) -> Iterator[memoryview]:
        yield memoryview(self.data)


def _text_opener(text: bytes) -> Callable[[int, int], ByteSource]:
    def open_text(begin: int, end: int) -> ByteSource:
        return _Text(text[begin:end])

    return open_text


hub = Blueprint("hub", __name__)

PATHS_MAX = 1000
LIST_DEFAULT = 100
LIST_MAX = 500
"""The most repositories or commits on one page. A client that requests more gets this many, and the next address."""
TOO_MANY = 429
"""The status after which these clients try again. After 503 they stop."""
NUMBER_MAX_LENGTH = 6
UNKNOWN_FILTERS = ("pipeline_tag", "inference_provider", "inference")
"""Filters of the hub that match no model of this registry."""
MODELS = "/api/models"
REPOSITORY = f"{MODELS}/<user>/<name>"
IMAGE_TYPES = ("application/vnd.docker.", "application/vnd.oci.", "application/vnd.ollama.")
"""Media types that clients of the protocol of container registries accept, such as Ollama."""
NO_IMAGES = (
    "This registry does not serve Ollama's protocol yet. Download the GGUF file instead, at /models/{name}.gguf or "
    "with `organ pull {name}`, and import it with `ollama create`."
)


@hub.get(MODELS)
def models() -> Response:
    """List repositories, newest first or with `sort=downloads` by downloads, in pages by `cursor`."""
    limit, after = _requested_limit(), request.args.get("cursor") or None
    query = _repository_query()
    if query is None:
        return _list([], None)
    with reading(settings().search_seconds) as session:
        rows, after = repositories_page(session, query, limit, after)
        files = file_names_of(session, [row.id for row in rows]) if _wants_files() else {}
    return _list([_listed_model(row, files.get(row.id)) for row in rows], after)


@hub.get(REPOSITORY)
@hub.get(f"{REPOSITORY}/revision/<path:revision>")
def model(user: str, name: str, revision: str = "main") -> Response:
    """Describe a repository and its files."""
    repository = _read_repository(user, name, revision)
    values = _repository_values(
        repository.name, repository.commit, repository.created, repository.downloads, repository.tags
    )
    siblings = [_sibling(entry, detailed="blobs" in request.args) for entry in repository.entries]
    return _answer({**values, "siblings": siblings}, repository)


@hub.get(f"{REPOSITORY}/auth-check")
def auth_check(user: str, name: str) -> Response:
    """Answer whether the user may read the repository: every visible repository is public."""
    return _answer({}, _read_repository(user, name, "main"))


@hub.get(f"{REPOSITORY}/commits/<path:revision>")
def commits(user: str, name: str, revision: str) -> Response:
    """List the versions up to a revision, newest first, in pages by `limit` and `p`, which counts from 0."""
    limit, page = _requested_limit(), _requested_number("p", 0)
    with reading() as session:
        listed = history(session, user, name, revision)
    values = [
        {
            "id": commit.id,
            "title": f"{user}/{name}@{commit.tag.removeprefix('v')}",
            "message": "",
            "authors": [{"user": commit.author, "avatar": ""}],
            "date": commit.created,
        }
        for commit in listed[page * limit : (page + 1) * limit]
    ]
    return _list(values, str(page + 1) if len(listed) > (page + 1) * limit else None, "p")


@hub.get(f"{REPOSITORY}/refs")
def refs(user: str, name: str) -> Response:
    """List branches and tags."""
    repository = _read_repository(user, name, "main")
    tags = [
        {"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": commit}
        for tag, commit in repository.commits_by_tag.items()
    ]
    main = {"name": "main", "ref": "refs/heads/main", "targetCommit": repository.commit}
    return _answer({"branches": [main], "converts": [], "tags": tags, "pullRequests": []}, repository)


@hub.get(f"{REPOSITORY}/tree/<revision>")
@hub.get(f"{REPOSITORY}/tree/<revision>/<path:path>")
def tree(user: str, name: str, revision: str, path: str = "") -> Response:
    """List the files of a revision. There are no folders, so every path below is empty."""
    repository = _read_repository(user, name, revision)
    if path.strip("/"):
        raise EntryMissing(f"{repository.name} has no folders")
    return _answer([_tree_entry(entry) for entry in repository.entries], repository)


@hub.post(f"{REPOSITORY}/paths-info/<revision>")
def paths_info(user: str, name: str, revision: str) -> Response:
    """List those of the requested paths that exist."""
    repository = _read_repository(user, name, revision)
    body = request.get_json(silent=True) if request.is_json else None
    paths = (body.get("paths") if isinstance(body, dict) else None) or request.form.getlist("paths")
    requested = {path for path in paths[:PATHS_MAX] if isinstance(path, str)} if isinstance(paths, list) else set()
    return _answer([_tree_entry(entry) for entry in repository.entries if entry.path in requested], repository)


@hub.get("/<user>/<name>/resolve/<revision>/<path:path>")
def resolve(user: str, name: str, revision: str, path: str) -> Response:
    """Send a file."""
    with explaining_faults(path):
        repository = _read_repository(user, name, revision)
        entry = repository.entry(path)
        headers = {
            "X-Repo-Commit": repository.commit,
            "X-Linked-Etag": f'"{entry.content.tag}"',
            "X-Linked-Size": str(entry.content.size_bytes),
        }
        return hand_out(replace(entry.content, immutable=revision == repository.commit), headers, TOO_MANY)


@hub.get("/<user>/<name>/raw/<revision>/<path:path>")
def raw(user: str, name: str, revision: str, path: str) -> Response:
    """Send a file as git stores it: for a model's file, the Git LFS pointer."""
    with explaining_faults(path):
        repository = _read_repository(user, name, revision)
        return hand_out(repository.entry(path).raw, {"X-Repo-Commit": repository.commit}, TOO_MANY)


@hub.get("/v2/<user>/<name>/manifests/<tag>")
def manifest(user: str, name: str, tag: str) -> Response:
    """Return the file that llama.cpp should take for `-hf USER/NAME:TAG`: by quantisation, or the first.

    Ollama requests the same address for a manifest of a container registry. An answer with status 200 would look like
    an empty model, and Ollama would report success. After 406 it fails with the text of the answer.
    """
    if any(accepted.startswith(IMAGE_TYPES) for accepted, _ in request.accept_mimetypes):
        parsed = parse_model_name(f"{user}/{name}")
        answer = _error(406, NO_IMAGES.format(name=parsed))
        answer.data, answer.content_type = f"{NO_IMAGES.format(name=parsed)}\n", "text/plain; charset=utf-8"
    else:
        answer = _answer(*_model_file(user, name, tag))
    answer.vary.add("Accept")
    return answer


def _model_file(user: str, name: str, tag: str) -> tuple[dict[str, Any], Repository]:
    repository = _read_repository(user, name, "main")
    files = [entry for entry in repository.entries if entry.is_model]
    if tag != "latest":
        files = [entry for entry in files if tag.lower() in entry.path.lower()]
    if not files:
        raise EntryMissing(f"{repository.name} has no file of {tag[:80]}")
    return {"ggufFile": {"rfilename": files[0].path, "size": files[0].content.size_bytes}}, repository


@hub.errorhandler(OrganError)
def _refused(error: OrganError) -> Response:
    missing = 410 if isinstance(error, Removed) else 404
    if isinstance(error, RevisionMissing):
        return _error(missing, str(error), "RevisionNotFound")
    if isinstance(error, EntryMissing):
        return _error(404, str(error), "EntryNotFound")
    if isinstance(error, NotFound | BadName):
        return _error(missing, str(error), "RepoNotFound")
    status = logged_status(error)
    return _error(status, HIDDEN if status == INTERNAL else str(error))


@hub.errorhandler(HTTPException)
def _http_error(error: HTTPException) -> Response:
    if error.response is not None or error.code is None or error.code < 400:
        return error.get_response()  # type: ignore[return-value]
    return _error(error.code, error.description or error.name)


def _error(status: int, sentence: str, code: str | None = None) -> Response:
    g.not_cached = True
    answer = jsonify(error=sentence)
    answer.status_code = status
    if code is not None:
        answer.headers["X-Error-Code"] = code
    answer.headers["X-Error-Message"] = "".join(letter if " " <= letter <= "~" else "?" for letter in sentence)[:500]
    return answer


def _answer(values: Any, repository: Repository) -> Response:
    g.not_cached = True
    answer = jsonify(values)
    answer.headers["X-Repo-Commit"] = repository.commit
    answer.headers["Cache-Control"] = "no-cache"
    return answer


def _list(values: list[dict[str, Any]], after: str | None, parameter: str = "cursor") -> Response:
    """Return a page of a list; `after` is the value of `parameter` on the next page."""
    g.not_cached = True
    answer = jsonify(values)
    answer.headers["Cache-Control"] = "no-cache"
    if after is not None:
        arguments = [(key, value) for key, value in request.args.items(multi=True) if key != parameter]
        # Clients use this text without resolving it, so it must be an absolute address.
        answer.headers["Link"] = f'<{request.base_url}?{urlencode([*arguments, (parameter, after)])}>; rel="next"'
    return answer


def _requested_limit() -> int:
    return min(max(1, _requested_number("limit", LIST_DEFAULT)), LIST_MAX)


def _requested_number(parameter: str, default: int) -> int:
    """Return the whole number in `parameter`. Raises BadQuery."""
    text = request.args.get(parameter) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_MAX_LENGTH):
        raise BadQuery(parameter, "use a whole number")
    return int(text)


def _repository_query() -> RepositoryQuery | None:
    """Return the query of the request, or None if no model can match it.

    Known values of `filter` are tags of the hub: `gguf`, `license:NAME`, and the architecture. `sort` has no effect
    for values that this registry does not count. Raises BadQuery.
    """
    values = request.args
    known: dict[str, str] = {}
    for text in [*values.getlist("filter"), *values.getlist("library")]:
        for tag in text.split(","):
            field = "license" if tag.startswith(LICENSE_TAG) else "architecture"
            value = tag.removeprefix(LICENSE_TAG)
            if tag != LIBRARY and known.setdefault(field, value) != value:
                return None
    if any(values.get(name) for name in UNKNOWN_FILTERS) or values.get("gated") == "true":
        return None
    search, author = values.get("search", ""), values.get("author", "")
    return RepositoryQuery(search, author, **known, by_downloads=values.get("sort") == "downloads")


def _wants_files() -> bool:
    return request.args.get("full", "").lower() in ("1", "true") or "siblings" in request.args.getlist("expand")


def _listed_model(row: Model, files: list[str] | None) -> dict[str, Any]:
    values = _repository_values(
        f"{row.namespace}/{row.name}", commit_of(row), time_of(row), row.downloads, tags_of(row)
    )
    if files is not None:
        names = public_names(files)
        values["siblings"] = [{"rfilename": name} for name in [*names, *({README} - set(names))]]
    return values


def _repository_values(name: str, commit: str, created: str, downloads: int, tags: list[str]) -> dict[str, Any]:
    return {
        "_id": commit[:24],
        "id": name,
        "modelId": name,
        "author": name.partition("/")[0],
        "sha": commit,
        "lastModified": created,
        "createdAt": created,
        "private": False,
        "gated": False,
        "disabled": False,
        "downloads": downloads,
        "likes": 0,
        "library_name": LIBRARY,
        "tags": tags,
    }


def _read_repository(user: str, name: str, revision: str) -> Repository:
    with reading() as session:
        return repository(session, user, name, revision)


def _sibling(entry: Entry, *, detailed: bool) -> dict[str, Any]:
    if not detailed:
        return {"rfilename": entry.path}
    values = {"rfilename": entry.path, "size": entry.content.size_bytes, "blobId": entry.object_id}
    if entry.is_model:
        size = entry.content.size_bytes
        values["lfs"] = {"sha256": entry.content.tag, "size": size, "pointerSize": len(entry.pointer)}
    return values


def _tree_entry(entry: Entry) -> dict[str, Any]:
    size = entry.content.size_bytes
    values = {"type": "file", "path": entry.path, "size": size, "oid": entry.object_id}
    if entry.is_model:
        values["lfs"] = {"oid": entry.content.tag, "size": size, "pointerSize": len(entry.pointer)}
    return values
