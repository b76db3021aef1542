"""The routes of the Hugging Face hub, read-only: with `HF_ENDPOINT` set to this server, its clients pull models here.

A model is a repository, a version is a commit: `main` is the newest, `v1`, `v2` are tags. A repository has the model's
files and a README. What is missing is told by `X-Error-Code`, which the clients turn into their own errors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flask import Blueprint, Response, g, jsonify, request
from werkzeug.exceptions import HTTPException

from registry.errors import BadName, NotFound, OrganError, Removed
from web.answers import reading
from web.contents import told_in_words
from web.errors import refused
from web.repositories import Entry, EntryMissing, Repository, RevisionMissing, repository
from web.streams import hand_out

hub = Blueprint("hub", __name__)

PATHS_MAX = 1000
TOO_MANY = 429
"""What these clients try again after; they give up at 503."""
REPOSITORY = "/api/models/<user>/<name>"


@hub.get(REPOSITORY)
@hub.get(f"{REPOSITORY}/revision/<path:revision>")
def model(user: str, name: str, revision: str = "main") -> Response:
    """What a repository is, and its files."""
    found = _found(user, name, revision)
    return _answer(
        {
            "_id": found.commit[:24],
            "id": found.name,
            "modelId": found.name,
            "author": user,
            "sha": found.commit,
            "lastModified": found.created,
            "createdAt": found.created,
            "private": False,
            "gated": False,
            "disabled": False,
            "downloads": found.downloads,
            "likes": 0,
            "library_name": "gguf",
            "tags": ["gguf"],
            "siblings": [_sibling(entry, detailed="blobs" in request.args) for entry in found.entries],
        },
        found,
    )


@hub.get(f"{REPOSITORY}/refs")
def refs(user: str, name: str) -> Response:
    """Branches and tags."""
    found = _found(user, name, "main")
    tags = [
        {"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": commit} for tag, commit in found.commits_by_tag.items()
    ]
    main = {"name": "main", "ref": "refs/heads/main", "targetCommit": found.commit}
    return _answer({"branches": [main], "converts": [], "tags": tags, "pullRequests": []}, found)


@hub.get(f"{REPOSITORY}/tree/<revision>")
@hub.get(f"{REPOSITORY}/tree/<revision>/<path:path>")
def tree(user: str, name: str, revision: str, path: str = "") -> Response:
    """The files of a revision; there are no folders, so below a path there is nothing."""
    found = _found(user, name, revision)
    if path.strip("/"):
        raise EntryMissing(f"{found.name} has no folders")
    return _answer([_listed(entry) for entry in found.entries], found)


@hub.post(f"{REPOSITORY}/paths-info/<revision>")
def paths_info(user: str, name: str, revision: str) -> Response:
    """Those of the paths that there are."""
    found = _found(user, name, revision)
    sent = request.get_json(silent=True) if request.is_json else None
    paths = (sent.get("paths") if isinstance(sent, dict) else None) or request.form.getlist("paths")
    wanted = {path for path in paths[:PATHS_MAX] if isinstance(path, str)} if isinstance(paths, list) else set()
    return _answer([_listed(entry) for entry in found.entries if entry.path in wanted], found)


@hub.get("/<user>/<name>/resolve/<revision>/<path:path>")
def resolve(user: str, name: str, revision: str, path: str) -> Response:
    """A file."""
    with told_in_words(path):
        found = _found(user, name, revision)
        entry = found.entry(path)
        more = {
            "X-Repo-Commit": found.commit,
            "X-Linked-Etag": f'"{entry.content.tag}"',
            "X-Linked-Size": str(entry.content.size_bytes),
        }
        return hand_out(replace(entry.content, immutable=revision == found.commit), more, TOO_MANY)


@hub.get("/v2/<user>/<name>/manifests/<tag>")
def manifest(user: str, name: str, tag: str) -> Response:
    """The file that llama.cpp should take for `-hf USER/NAME:TAG`: by quantisation, or the first."""
    found = _found(user, name, "main")
    files = [entry for entry in found.entries if entry.is_model]
    if tag != "latest":
        files = [entry for entry in files if tag.lower() in entry.path.lower()]
    if not files:
        raise EntryMissing(f"{found.name} has no file of {tag[:80]}")
    return _answer({"ggufFile": {"rfilename": files[0].path, "size": files[0].content.size_bytes}}, found)


@hub.errorhandler(OrganError)
def _refused(error: OrganError) -> Response:
    missing = 410 if isinstance(error, Removed) else 404
    if isinstance(error, RevisionMissing):
        return _error(missing, str(error), "RevisionNotFound")
    if isinstance(error, EntryMissing):
        return _error(404, str(error), "EntryNotFound")
    if isinstance(error, NotFound | BadName):
        return _error(missing, str(error), "RepoNotFound")
    status = refused(error).status_code
    return _error(status, str(error) if status != 500 else "The registry cannot answer just now; its log says why.")


@hub.errorhandler(HTTPException)
def _http_error(error: HTTPException) -> Response:
    if error.response is not None or error.code is None or error.code < 400:
        return error.get_response()  # type: ignore[return-value]
    return _error(error.code, error.description or error.name)


def _error(status: int, sentence: str, code: str | None = None) -> Response:
    g.unkept = True
    answer = jsonify(error=sentence)
    answer.status_code = status
    if code is not None:
        answer.headers["X-Error-Code"] = code
    answer.headers["X-Error-Message"] = "".join(one if " " <= one <= "~" else "?" for one in sentence)[:500]
    return answer


def _answer(values: Any, found: Repository) -> Response:
    g.unkept = True
    answer = jsonify(values)
    answer.headers["X-Repo-Commit"] = found.commit
    answer.headers["Cache-Control"] = "no-cache"
    return answer


def _found(user: str, name: str, revision: str) -> Repository:
    with reading() as session:
        return repository(session, user, name, revision)


def _sibling(entry: Entry, *, detailed: bool) -> dict[str, Any]:
    if not detailed:
        return {"rfilename": entry.path}
    values = {"rfilename": entry.path, "size": entry.content.size_bytes, "blobId": entry.object_id}
    if entry.is_model:
        size = entry.content.size_bytes
        values["lfs"] = {"sha256": entry.content.tag, "size": size, "pointerSize": entry.pointer_bytes}
    return values


def _listed(entry: Entry) -> dict[str, Any]:
    size = entry.content.size_bytes
    values = {"type": "file", "path": entry.path, "size": size, "oid": entry.object_id}
    if entry.is_model:
        values["lfs"] = {"oid": entry.content.tag, "size": size, "pointerSize": entry.pointer_bytes}
    return values
