"""The Hugging Face hub's routes, read-only. `web.repositories` has the repositories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Response, g, jsonify, request
from werkzeug.exceptions import HTTPException

from organs.registry.catalog.queries.model_contents import files_by_model
from organs.registry.catalog.queries.model_lists import RepositoryQuery, repositories_page
from organs.registry.entities.problem import INTERNAL
from organs.registry.errors import BadName, BadQuery, NotFound, OrganError, Removed
from organs.web.downloads import explaining_faults, public_names
from organs.web.error_pages import HIDDEN, logged_status, with_wait
from organs.web.file_responses import hand_out
from organs.web.repositories import (
    LIBRARY,
    LICENSE_TAG,
    README,
    EntryMissing,
    Repository,
    RepositoryEntry,
    RevisionMissing,
    commit_of,
    commits_of_quantisations,
    history,
    read_repository,
    tags_of,
    time_of,
)
from organs.web.repositories import repository as repository_at
from organs.web.responses import reading, searching
from organs.web.settings import RETRY_SECONDS

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


@hub.get(MODELS)
def models() -> Response:
    """List repositories, newest first or with `sort=downloads` by downloads, in pages by `cursor`."""
    limit, after = _requested_limit(), request.args.get("cursor") or None
    query = _repository_query()
    if query is None:
        return _list([], None)
    with searching() as session:
        rows, after = repositories_page(session, query, limit, after)
        files = None
        if request.args.get("full", "").lower() in ("1", "true") or "siblings" in request.args.getlist("expand"):
            files = files_by_model(session, [row.id for row in rows])
    listed = []
    for row in rows:
        name = f"{row.namespace}/{row.name}"
        values = _repository_values(name, commit_of(row), time_of(row), row.downloads, tags_of(row))
        if files is not None:
            names = public_names([file.name for file in files[row.id]])
            values["siblings"] = [{"rfilename": path} for path in [*names, *({README} - set(names))]]
        listed.append(values)
    return _list(listed, after)


@hub.get(REPOSITORY)
@hub.get(f"{REPOSITORY}/revision/<path:revision>")
def model(user: str, name: str, revision: str = "main") -> Response:
    """Describe a repository and its files."""
    repository = read_repository(user, name, revision)
    values = _repository_values(
        repository.name, repository.commit, repository.created, repository.downloads, repository.tags
    )
    siblings = []
    for entry in repository.entries:
        sibling: dict[str, Any] = {"rfilename": entry.path}
        if "blobs" in request.args:
            size = entry.content.size_bytes
            sibling |= {"size": size, "blobId": entry.object_id}
            if entry.is_model:
                sibling["lfs"] = {"sha256": entry.content.tag, "size": size, "pointerSize": len(entry.pointer)}
        siblings.append(sibling)
    return _answer({**values, "siblings": siblings}, repository)


@hub.get(f"{REPOSITORY}/auth-check")
def auth_check(user: str, name: str) -> Response:
    """Answer whether the user may read the repository: every visible repository is public."""
    return _answer({}, read_repository(user, name, "main"))


@hub.get(f"{REPOSITORY}/commits/<path:revision>")
def commits(user: str, name: str, revision: str) -> Response:
    """List the versions up to a revision, newest first, in pages by `limit` and `p`, which counts from 0."""
    limit, page = _requested_limit(), _requested_number("p", 0)
    with reading() as session:
        listed = history(session, user, name, revision)
    values = [
        {
            "id": commit.id,
            "title": commit.title,
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
    with reading() as session:
        repository = repository_at(session, user, name, "main")
        commits = repository.commits_by_tag | commits_of_quantisations(session, user, name)
    tags = [{"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": commit} for tag, commit in commits.items()]
    main = {"name": "main", "ref": "refs/heads/main", "targetCommit": repository.commit}
    return _answer({"branches": [main], "converts": [], "tags": tags, "pullRequests": []}, repository)


@hub.get(f"{REPOSITORY}/tree/<revision>")
@hub.get(f"{REPOSITORY}/tree/<revision>/<path:path>")
def tree(user: str, name: str, revision: str, path: str = "") -> Response:
    """List the files of a revision. There are no folders, so every path below is empty."""
    repository = read_repository(user, name, revision)
    if path.strip("/"):
        raise EntryMissing(f"{repository.name} has no folders")
    return _answer([_tree_entry(entry) for entry in repository.entries], repository)


@hub.post(f"{REPOSITORY}/paths-info/<revision>")
def paths_info(user: str, name: str, revision: str) -> Response:
    """List those of the requested paths that exist."""
    repository = read_repository(user, name, revision)
    body = request.get_json(silent=True) if request.is_json else None
    paths = (body.get("paths") if isinstance(body, dict) else None) or request.form.getlist("paths")
    requested = {path for path in paths[:PATHS_MAX] if isinstance(path, str)} if isinstance(paths, list) else set()
    return _answer([_tree_entry(entry) for entry in repository.entries if entry.path in requested], repository)


@hub.get("/<user>/<name>/resolve/<revision>/<path:path>")
def resolve(user: str, name: str, revision: str, path: str) -> Response:
    """Send a file."""
    with explaining_faults(path):
        repository = read_repository(user, name, revision)
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
        repository = read_repository(user, name, revision)
        return hand_out(repository.entry(path).raw, {"X-Repo-Commit": repository.commit}, TOO_MANY)


@hub.errorhandler(OrganError)
def _refused(error: OrganError) -> Response:
    return with_wait(_error(*hub_error(error)), error)


def hub_error(error: OrganError) -> tuple[int, str, str | None]:
    """Return the status, the sentence and the hub's code of an error; the code is None if the hub has none for it."""
    missing = 410 if isinstance(error, Removed) else 404
    if isinstance(error, RevisionMissing):
        return missing, str(error), "RevisionNotFound"
    if isinstance(error, EntryMissing):
        return 404, str(error), "EntryNotFound"
    if isinstance(error, NotFound | BadName):
        return missing, str(error), "RepoNotFound"
    status = logged_status(error)
    return status, HIDDEN if status == INTERNAL else str(error), None


@hub.errorhandler(HTTPException)
def _http_error(error: HTTPException) -> Response:
    if error.response is not None or error.code is None or error.code < 400:
        return error.get_response()  # type: ignore[return-value]
    return _error(error.code, error.description or error.name)


def _error(status: int, sentence: str, code: str | None = None) -> Response:
    return error_answer({"error": sentence}, status, sentence, code)


def error_answer(values: dict[str, object], status: int, sentence: str, code: str | None) -> Response:
    """Return `values` as the answer of an error, with the headers that the hub's clients read."""
    g.not_cached = True
    answer = jsonify(values)
    answer.status_code = status
    if status == 503:
        answer.headers["Retry-After"] = str(RETRY_SECONDS)
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


def _tree_entry(entry: RepositoryEntry) -> dict[str, Any]:
    size = entry.content.size_bytes
    values = {"type": "file", "path": entry.path, "size": size, "oid": entry.object_id}
    if entry.is_model:
        values["lfs"] = {"oid": entry.content.tag, "size": size, "pointerSize": len(entry.pointer)}
    return values
