"""The protocol of container registries as Ollama uses it, read-only; and the manifest of older versions of llama.cpp.

A model with one GGUF file is an image: a manifest names its layers by their SHA-256, and a layer is a blob. The first
layer is the GGUF file: `organs.ingest.tools.ollama_image`.

Ollama requires that the answer to a request for a blob has a `Location` header, also with status 200. It ignores the
status of an answer to a request for a range, so a small blob is never refused: its refusal would look like its bytes.
After 404 it prints only "file does not exist", so other problems have other statuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flask import Blueprint, Response, g, request, url_for
from sqlalchemy.orm import Session
from werkzeug.exceptions import HTTPException

from organs.ingest.tools.ollama_image import (
    DIGEST_START,
    MANIFEST_TYPE,
    Image,
    NoImage,
    image_of,
    images,
    json_bytes,
)
from organs.registry.catalog.queries.model_names import reachable_file, versions_of
from organs.registry.catalog.tables import ModelRow
from organs.registry.digest import Digest, digest_of, parse_digest
from organs.registry.errors import BadDigest, BadName, NotFound, OrganError, Removed
from organs.registry.names import ModelName, split_quantisation
from organs.web.downloads import explaining_faults, model_file
from organs.web.error_pages import with_wait
from organs.web.file_responses import hand_out, requested_span
from organs.web.hub import TOO_MANY, error_answer, hub_error
from organs.web.repositories import (
    EntryMissing,
    Member,
    Repository,
    RevisionMissing,
    check_repository,
    commits_of_quantisations,
    how_to_make,
    quantisations_by_tag,
    repository,
)
from organs.web.responses import reading, searching

IMAGE_TYPES = ("application/vnd.docker.", "application/vnd.oci.", "application/vnd.ollama.")
"""Media types that clients of container registries accept."""
LATEST = "latest"
VERSIONS_MAX = 100
"""The most versions of a model that have images: the newest."""


class TagMissing(OrganError, code="tag-missing", status=400):
    """A model exists, and no version or quantisation of it has this tag (routes for Ollama)."""


def ollama_line(name: str, host_url: str, file: str = "") -> str:
    """Return the command with which Ollama pulls the model `name`, such as `me/coder@2`, from `host_url` and runs it.

    Without TLS it needs `--insecure`. If `file` is not empty, Ollama cannot pull the model: the line imports `file`.
    """
    if file:
        plain = name.partition("@")[0]
        return f"echo FROM ./{file} > Modelfile && ollama create {plain} -f Modelfile && ollama run {plain}"
    scheme, _, host = host_url.rstrip("/").partition("://")
    plain, _, version = name.partition("@")
    return f"ollama run {'' if scheme == 'https' else '--insecure '}{host}/{plain}{f':v{version}' if version else ''}"


def llama_server_line(name: str, host_url: str) -> str:
    """Return the command with which llama.cpp loads the newest version of the model `name` from `host_url`."""
    return f"HF_ENDPOINT={host_url.rstrip('/')} llama-server -hf {tagged_name(name)}"


def tagged_name(name: str) -> str:
    """Return the name of a model with its quantisation as a tag: `me/coder:Q4_K_M` for `me/coder-Q4_K_M@2`."""
    plain, _, _ = name.partition("@")
    namespace, _, own = plain.partition("/")
    stem, quantisation = split_quantisation(own)
    return f"{namespace}/{stem}:{own[len(stem) + 1 :]}" if quantisation else plain


ollama = Blueprint("ollama", __name__)

REPOSITORY = "/v2/<user>/<name>"


@ollama.get("/v2/")
def ping() -> Response:
    """Answer that this server has the protocol. No account is necessary."""
    return _document(b"{}", "application/json")


@ollama.get(f"{REPOSITORY}/tags/list")
def tags(user: str, name: str) -> Response:
    """List the tags: the newest version, the versions, and the quantisations."""
    with reading() as session:
        found = repository(session, user, name, "main")
        others = commits_of_quantisations(session, user, name)
    own = [row.model.quantisation for row in found.members if not row.is_projector and row.model.quantisation]
    quantisations = {tag.upper(): tag for tag in (*own, *others)}
    names = [LATEST, *found.commits_by_tag, *quantisations.values()]
    return _document(json_bytes({"name": found.name, "tags": names}), "application/json")


@ollama.get(f"{REPOSITORY}/manifests/<tag>")
def manifest(user: str, name: str, tag: str) -> Response:
    """Return the manifest of an image, or the file that older versions of llama.cpp should take for `-hf`.

    Both use this address. Clients of container registries accept their media types, or are called `ollama`.
    """
    accepts_images = any(accepted.startswith(IMAGE_TYPES) for accepted, _ in request.accept_mimetypes)
    if not accepts_images and not request.headers.get("User-Agent", "").startswith("ollama/"):
        answer = _gguf_file(user, name, tag)
    elif tag.startswith(DIGEST_START):
        answer = _small_blob(user, name, tag)
    else:
        with reading() as session:
            data = _tagged_image(session, user, name, tag).manifest
        answer = _document(data, MANIFEST_TYPE, tag=digest_of(data))
        answer.headers["Docker-Content-Digest"] = f"{DIGEST_START}{digest_of(data)}"
    answer.vary.update(("Accept", "User-Agent"))
    return answer


@ollama.get(f"{REPOSITORY}/blobs/<digest>")
def blob(user: str, name: str, digest: str) -> Response:
    """Send a blob: the file of a model, or one of the small blobs of the images of this repository."""
    sha256 = _parsed_digest(digest)
    with reading() as session:
        check_repository(session, user, name)
        row = reachable_file(session, sha256)
    if row is None:
        return _small_blob(user, name, digest)
    with explaining_faults(digest):
        content = model_file(*row, row[1].name, immutable=True)
        return hand_out(content, _blob_headers(user, name, digest), TOO_MANY)


@ollama.get(f"{REPOSITORY}/chunksums/<digest>")
def chunksums(user: str, name: str, digest: str) -> Response:
    """Return the parts in which a blob can be downloaded and checked: one part with all of its bytes.

    Some versions of Ollama request it for blobs of 64 MB or more.
    """
    sha256 = _parsed_digest(digest)
    with reading() as session:
        check_repository(session, user, name)
        row = reachable_file(session, sha256)
    if row is None:
        raise EntryMissing(f"{user}/{name} has no file with the digest {digest}")
    answer = _document(f"{digest} 0-{row[1].size_bytes - 1}\n".encode("ascii"), "text/plain; charset=utf-8")
    location = url_for("ollama.blob", user=user, name=name, digest=digest)
    answer.headers["Content-Location"] = f"{request.host_url.rstrip('/')}{location}"
    return answer


def _parsed_digest(text: str) -> Digest:
    """Return the digest in `text`, `sha256:` and 64 digits in lower case. Raises BadDigest."""
    return parse_digest(text.removeprefix(DIGEST_START))


def _blob_headers(user: str, name: str, digest: str) -> dict[str, str]:
    location = url_for("ollama.blob", user=user, name=name, digest=digest)
    return {"Location": location, "Docker-Content-Digest": digest}


def _small_blob(user: str, name: str, digest: str) -> Response:
    sha256 = _parsed_digest(digest)
    with searching() as session:
        found = (_small_blobs(image).get(sha256) for image in _all_images(session, user, name))
        data = next((item for item in found if item is not None), None)
    if data is None:
        raise EntryMissing(f"{user}/{name} has no blob with the digest {digest}")
    is_manifest = request.endpoint == "ollama.manifest"
    answer = _document(data, MANIFEST_TYPE if is_manifest else "application/octet-stream", tag=sha256)
    answer.headers.update(_blob_headers(user, name, digest))
    answer.headers["Accept-Ranges"] = "bytes"
    span = None if request.method == "HEAD" else requested_span(request.headers.get("Range"), len(data))
    if span is not None:
        answer.status_code, answer.data = 206 if span else 416, data[span.start : span.stop]
        place = f"{span.start}-{span.stop - 1}" if span else "*"
        answer.headers["Content-Range"] = f"bytes {place}/{len(data)}"
    return answer


def _small_blobs(image: Image) -> dict[str, bytes]:
    """Return all blobs of an image that are not files of a model, and its manifest, by digest."""
    return {digest_of(image.manifest): image.manifest, **image.text_blobs}


def _all_images(session: Session, user: str, name: str) -> Iterator[Image]:
    """Yield the images of the quantisations and of the newest versions of a repository."""
    found = repository(session, user, name, "main")
    projectors = _projectors(found)
    wanted: list[tuple[ModelRow, Sequence[ModelRow]]] = [
        (row.model, projectors) for row in found.members if not row.is_projector or len(found.members) == 1
    ]
    wanted += [(row, ()) for row in versions_of(session, ModelName(user, name))[:VERSIONS_MAX]]
    known = {row.id for row, _ in wanted}
    others = quantisations_by_tag(session, ModelName(user, name)).values()
    wanted += [(row, ()) for row in others if row.id not in known]
    for image in images(session, wanted):
        if isinstance(image, Image):
            yield image


def _projectors(found: Repository) -> list[ModelRow]:
    return [row.model for row in found.members if row.is_projector]


def _tagged_image(session: Session, user: str, name: str, tag: str) -> Image:
    """Return the image with a tag: `latest`, a quantisation, a size such as `4.5bpw`, a version or a commit.

    Raises BadName, NotFound, Removed, NoImage, TagMissing.
    """
    found = repository(session, user, name, "main")
    member = None if tag in found.commits_by_tag else found.member(tag)
    if member is not None:
        return image_of(session, member.model, _projectors(found) if not member.is_projector else ())
    try:
        version = repository(session, user, name, tag).members[0].model
    except Removed:
        raise
    except RevisionMissing as error:
        hint = how_to_make([row.model for row in found.members], tag)
        reason = f"{found.name} has no tag {tag[:80]!r}{hint}; its tags are at /v2/{found.name}/tags/list"
        raise TagMissing(reason) from error
    if version.id in {row.id for row in versions_of(session, ModelName(user, name))[VERSIONS_MAX:]}:
        raise NoImage(f"{version.full_name} is too old: Ollama can pull the newest {VERSIONS_MAX} versions")
    return image_of(session, version)


def _gguf_file(user: str, name: str, tag: str) -> Response:
    """Return the files that llama.cpp downloads from the hub's routes: the model, and its projector."""
    with reading() as session:
        found = repository(session, user, name, "main")
        tags = [
            known
            for known in quantisations_by_tag(session, ModelName(user, name))
            if known.casefold() == tag.casefold()
        ]
    member = found.member(tag)
    if member is None:
        hint = how_to_make([row.model for row in found.members], tag)
        if tags:
            hint = f": it is {user}/{split_quantisation(name)[0]}:{tags[0]}"
        raise EntryMissing(f"{found.name} has no file of {tag[:80]}{hint}")
    if member.model.kind == "adapter":
        raise EntryMissing(f"{found.name} is an adapter; download it, and load it beside its base with --lora")
    values: dict[str, Any] = {"ggufFile": _file_values(member)}
    projector = next((row for row in found.members if row.is_projector and row is not member), None)
    if projector is not None:
        values["mmprojFile"] = _file_values(projector)
    answer = _document(json_bytes(values), "application/json")
    answer.headers["X-Repo-Commit"] = found.commit
    return answer


def _file_values(member: Member) -> dict[str, str | int]:
    entry = member.entries[0]
    return {"rfilename": entry.path, "size": entry.content.size_bytes}


def _document(data: bytes, media_type: str, tag: str | None = None) -> Response:
    g.not_cached = True
    answer = Response(data, content_type=media_type)
    answer.headers["Cache-Control"] = "no-cache"
    answer.headers["Docker-Distribution-Api-Version"] = "registry/2.0"
    if tag is not None:
        answer.set_etag(tag)
    return answer


@ollama.errorhandler(OrganError)
def _refused(error: OrganError) -> Response:
    if isinstance(error, BadDigest):
        return _error(400, str(error), "DIGEST_INVALID")
    status, sentence, hub_code = hub_error(error)
    if isinstance(error, BadName):
        code = "NAME_INVALID"
    elif isinstance(error, NotFound) and request.endpoint == "ollama.manifest":
        code = "MANIFEST_UNKNOWN"
    elif isinstance(error, NotFound):
        code = "BLOB_UNKNOWN" if isinstance(error, EntryMissing) else "NAME_UNKNOWN"
    else:
        code = "TOOMANYREQUESTS" if status == TOO_MANY else error.code.upper().replace("-", "_")
    return with_wait(_error(status, sentence, code, hub_code), error)


@ollama.errorhandler(HTTPException)
def _http_error(error: HTTPException) -> Response:
    if error.response is not None or error.code is None or error.code < 400:
        return error.get_response()  # type: ignore[return-value]
    return _error(error.code, error.description or error.name, "UNKNOWN")


def _error(status: int, sentence: str, code: str, hub_code: str | None = None) -> Response:
    return error_answer({"errors": [{"code": code, "message": sentence}]}, status, sentence, hub_code)
