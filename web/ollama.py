"""The protocol of container registries as Ollama uses it, read-only; and the manifest of older versions of llama.cpp.

A model with one GGUF file is an image: a manifest names its layers by their SHA-256, and a layer is a blob. The first
layer is the GGUF file. An adapter also has its base as a layer, if the base is in this registry.

Ollama requires that the answer to a request for a blob has a `Location` header, also with status 200. It ignores the
status of an answer to a request for a range, so a small blob is never refused: its refusal would look like its bytes.
After 404 it prints only "file does not exist", so other problems have other statuses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from flask import Blueprint, Response, g, request, url_for
from sqlalchemy.orm import Session
from werkzeug.exceptions import HTTPException

from organs.registry.catalog.queries.model_contents import files_by_model, metadata_of_models, runtime_texts
from organs.registry.catalog.queries.model_names import reachable_file, versions_of
from organs.registry.catalog.tables import ModelFileRow, ModelRow
from organs.registry.catalog.vocabulary import RUNTIME_TEXT_MAX
from organs.registry.compose.parents import partial_base
from organs.registry.digest import Digest, digest_of, parse_digest
from organs.registry.entities.base import prepared
from organs.registry.entities.model import RuntimeText
from organs.registry.errors import BadDigest, BadName, NotFound, OrganError, Removed
from organs.registry.gguf.types import FILE_TYPE_KEY, FILE_TYPES, parse_file_type
from organs.registry.kinds import ADAPTER_TYPE_KEY, MERGED_TYPE, FileKind
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

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.ollama.image."
IMAGE_TYPES = ("application/vnd.docker.", "application/vnd.oci.", "application/vnd.ollama.")
"""Media types that clients of container registries accept."""
LATEST = "latest"
VERSIONS_MAX = 100
"""The most versions of a model that have images: the newest."""
OLLAMA = "Ollama "
"""How the sources of texts begin that came from another Ollama."""
DIGEST_START = "sha256:"
CHAT_TEMPLATE = "tokenizer.chat_template"
FACT_KEYS = (CHAT_TEMPLATE, FILE_TYPE_KEY, ADAPTER_TYPE_KEY)
"""Keys of the header from which an image has facts."""
CHATML_TURNS = (
    r"{% for message in messages %}"
    r"{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    r"{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_DEFAULT = r"{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
CHATML = frozenset({CHATML_TURNS, CHATML_DEFAULT + CHATML_TURNS})
"""The chat templates of ChatML. They are compared as texts and never run."""
CHATML_FOR_OLLAMA = (
    "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
)
CHATML_STOPS = ("<|im_start|>", "<|im_end|>")


class NoImage(OrganError, code="no-image", status=406):
    """A model cannot be an image for Ollama: it has several files, only some organs, or no base."""


class TagMissing(OrganError, code="tag-missing", status=400):
    """A model exists, and no version or quantisation of it has this tag (routes for Ollama)."""


@dataclass(frozen=True, slots=True)
class Image:
    """A model as Ollama takes it: its GGUF files by the kind of their layers, its texts and its configuration."""

    model: ModelRow
    files: tuple[tuple[str, ModelFileRow], ...]
    texts: dict[str, bytes]
    """By `template`, `params` or `license`, which is the end of the media type of the layer."""
    config: bytes

    @property
    def manifest(self) -> bytes:
        """The manifest, as JSON."""
        files = [_layer(f"{LAYER_TYPE}{kind}", file.sha256, file.size_bytes) for kind, file in self.files]
        texts = [_text_layer(f"{LAYER_TYPE}{kind}", data) for kind, data in self.texts.items()]
        return _json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": _text_layer(CONFIG_TYPE, self.config),
                "layers": [*files, *texts],
            }
        )

    @property
    def small_blobs(self) -> dict[str, bytes]:
        """The manifest and all blobs that are not files of a model, by digest."""
        return {digest_of(data): data for data in (self.manifest, self.config, *self.texts.values())}


def _layer(media_type: str, sha256: str, size_bytes: int) -> dict[str, str | int]:
    return {"mediaType": media_type, "digest": f"{DIGEST_START}{sha256}", "size": size_bytes}


def _text_layer(media_type: str, data: bytes) -> dict[str, str | int]:
    return _layer(media_type, digest_of(data), len(data))


def _json(values: object) -> bytes:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def image_of(session: Session, model: ModelRow, projectors: Sequence[ModelRow] = ()) -> Image:
    """Return `model` as an image, with the first of `projectors` that has one file. Raises NoImage."""
    (image,) = _images(session, [(model, projectors)])
    if isinstance(image, NoImage):
        raise image
    return image


def has_image(session: Session, model: ModelRow) -> bool:
    """Return whether Ollama can pull `model` from here: an adapter with its base, which must be here as one file."""
    return all(isinstance(image, Image) for image in _images(session, [(model, ())]))


def _images(session: Session, wanted: Sequence[tuple[ModelRow, Sequence[ModelRow]]]) -> Iterator[Image | NoImage]:
    """Yield each model with its projectors as an image, or the reason why it is none."""
    bases = {model.id: partial_base(session, model) for model, _ in wanted if model.kind == "adapter"}
    ids = {row.id for model, others in wanted for row in (model, bases.get(model.id), *others) if row is not None}
    files, facts = files_by_model(session, ids), metadata_of_models(session, ids, FACT_KEYS)
    texts = runtime_texts(session, {model.id for model, _ in wanted})
    for model, projectors in wanted:
        base = bases.get(model.id)
        reason = _reason(model, base, files, facts)
        if reason is not None:
            yield NoImage(f"{model.full_name} {reason}")
            continue
        kinds = [("model", model)] if model.kind != "adapter" or base is None else [("model", base), ("adapter", model)]
        kinds += [("projector", other) for other in projectors if len(files[other.id]) == 1][:1]
        main = kinds[0][1]
        layers = tuple((kind, files[row.id][0]) for kind, row in kinds)
        own_texts = _image_texts(model, texts[model.id], facts[main.id])
        yield Image(model, layers, own_texts, _config(main, layers, facts[main.id]))


def _reason(
    model: ModelRow, base: ModelRow | None, files: dict[int, list[ModelFileRow]], facts: dict[int, dict[str, str]]
) -> str | None:
    """Return why a model is no image, as the rest of a sentence; None if it is one."""
    plain = f"{model.namespace}/{model.name}"
    count = len(files[model.id])
    if model.unassemblable:
        return "cannot be assembled; its page says why"
    if count > 1:
        return (
            f"is split into {count} files, and Ollama takes one; merge them with `organ pull {plain} -o model.gguf`, "
            "then use `ollama create`"
        )
    if model.kind == "adapter":
        if facts[model.id].get(ADAPTER_TYPE_KEY) == MERGED_TYPE:
            return "is an adapter that only a merge can apply; merge it into its base"
        if base is None or len(files[base.id]) != 1 or base.unassemblable:
            return "is an adapter, and its base is not in this registry as one file; pull the base from elsewhere"
        return None
    if not model.complete:
        return f"has only some organs; put them into their base with `organ pull {plain} -o model.gguf`"
    return None if model.kind in (FileKind.MODEL, FileKind.PROJECTOR) else f"is of the kind {model.kind}, and no model"


def _config(model: ModelRow, layers: Sequence[tuple[str, ModelFileRow]], facts: dict[str, str]) -> bytes:
    size_label = str(model.parameters)
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if model.parameters >= unit:
            size_label = f"{model.parameters / unit:.1f}{name}"  # such as 7.6B, as Ollama writes it
            break
    family = model.architecture or "unknown"
    families = [family, *(["clip"] if any(kind == "projector" for kind, _ in layers) else [])]
    encoding = FILE_TYPES.get(parse_file_type(facts.get(FILE_TYPE_KEY, "")))
    return _json(
        {
            "model_format": "gguf",
            "model_family": family,
            "model_families": families,
            "model_type": size_label,
            "file_type": encoding or model.quantisation or "unknown",
            "architecture": "amd64",
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [f"{DIGEST_START}{file.sha256}" for _, file in layers]},
        }
    )


def _image_texts(model: ModelRow, kept: Sequence[RuntimeText], facts: dict[str, str]) -> dict[str, bytes]:
    """Return the texts for Ollama: those that came with the model from another Ollama, else what the file says.

    A text that was cut is left out, and so are parameters that are not JSON. Newer versions of Ollama read the chat
    template from the GGUF file. A template for older versions is only sent for chat templates that are known exactly,
    because no chat template is ever translated or run.
    """
    texts: dict[str, bytes] = {}
    for text in reversed(kept):  # of several texts of a kind, the first is taken
        if not text.source.startswith(OLLAMA) or len(text.text) >= RUNTIME_TEXT_MAX:
            continue
        kind, data = "params" if text.kind == "parameters" else text.kind, text.text.encode("utf-8")
        try:
            if kind == "params":
                msgspec.json.decode(data, type=prepared(dict[str, Any]))
        except (msgspec.DecodeError, RecursionError):
            continue
        texts[kind] = data
    if not texts and facts.get(CHAT_TEMPLATE, "").strip().replace("\n", r"\n") in CHATML:
        texts = {"template": CHATML_FOR_OLLAMA.encode("utf-8"), "params": _json({"stop": CHATML_STOPS})}
    if model.license:
        texts.setdefault("license", f"{model.license}\n".encode())
    return texts


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
    return _document(_json({"name": found.name, "tags": names}), "application/json")


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
        found = (image.small_blobs.get(sha256) for image in _all_images(session, user, name))
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
    for image in _images(session, wanted):
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
    answer = _document(_json(values), "application/json")
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
