"""A registered model as an image: its GGUF files, texts and configuration, as Ollama has them.

An image is served to `ollama pull`, and written into the folder of Ollama by `organ install`. The first layer is the
GGUF file. An adapter also has its base as a layer, if the base is in this registry. Sources: Ollama's
`manifest/manifest.go`, `types/model/config.go` and `server/images.go`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy.orm import Session

from organs.ingest.tools.facts import license_of
from organs.ingest.tools.ollama import MEDIA_TYPE, TEXTS, RendererChoice
from organs.registry.catalog.queries.model_contents import files_by_model, metadata_of_models, runtime_texts
from organs.registry.catalog.tables import ModelFileRow, ModelRow
from organs.registry.catalog.vocabulary import RUNTIME_TEXT_MAX
from organs.registry.compose.parents import partial_base
from organs.registry.digest import digest_of
from organs.registry.entities.base import prepared
from organs.registry.entities.model import RuntimeText
from organs.registry.errors import OrganError
from organs.registry.gguf.types import FILE_TYPE_KEY, FILE_TYPES, parse_file_type
from organs.registry.kinds import ADAPTER_TYPE_KEY, MERGED_TYPE, FileKind

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
DIGEST_START = "sha256:"
OLLAMA = "Ollama "
"""How the sources of texts begin that came from another Ollama."""
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
LAYERS = {kind: layer for layer, kind in reversed(TEXTS.items())}
"""The layers of texts, by their kinds here."""


class NoImage(OrganError, code="no-image", status=406):
    """A model cannot be an image for Ollama: it has several files, only some organs, or no base."""


@dataclass(frozen=True, slots=True)
class Image:
    """A model as Ollama takes it: its GGUF files by the kind of their layers, its texts and its configuration."""

    model: ModelRow
    files: tuple[tuple[str, ModelFileRow], ...]
    texts: tuple[tuple[str, bytes], ...]
    """By the end of the media type of the layer: `template`, `params`, `license` and others."""
    config: bytes

    @property
    def manifest(self) -> bytes:
        """The manifest, as JSON."""
        files = [_layer(f"{MEDIA_TYPE}{kind}", file.sha256, file.size_bytes) for kind, file in self.files]
        texts = [_text_layer(f"{MEDIA_TYPE}{kind}", data) for kind, data in self.texts]
        return json_bytes(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": _text_layer(CONFIG_TYPE, self.config),
                "layers": [*files, *texts],
            }
        )

    @property
    def text_blobs(self) -> dict[str, bytes]:
        """The configuration and the texts, by digest."""
        return {digest_of(data): data for data in (self.config, *(data for _, data in self.texts))}


def _layer(media_type: str, sha256: str, size_bytes: int) -> dict[str, str | int]:
    return {"mediaType": media_type, "digest": f"{DIGEST_START}{sha256}", "size": size_bytes}


def _text_layer(media_type: str, data: bytes) -> dict[str, str | int]:
    return _layer(media_type, digest_of(data), len(data))


def json_bytes(values: object) -> bytes:
    """Return `values` as compact JSON."""
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def image_of(session: Session, model: ModelRow, projectors: Sequence[ModelRow] = (), *, private: bool = False) -> Image:
    """Return `model` as an image, with the first of `projectors` that has one file. Raises NoImage.

    With `private`, it has the system prompt and the saved messages too: only for the user of this machine.
    """
    (image,) = images(session, [(model, projectors)], private=private)
    if isinstance(image, NoImage):
        raise image
    return image


def has_image(session: Session, model: ModelRow) -> bool:
    """Return whether Ollama can pull `model` from here: an adapter with its base, which must be here as one file."""
    return all(isinstance(image, Image) for image in images(session, [(model, ())]))


def images(
    session: Session, wanted: Sequence[tuple[ModelRow, Sequence[ModelRow]]], *, private: bool = False
) -> Iterator[Image | NoImage]:
    """Yield each model with its projectors as an image, or the reason why it is none."""
    bases = {model.id: partial_base(session, model) for model, _ in wanted if model.kind == "adapter"}
    ids = {row.id for model, others in wanted for row in (model, bases.get(model.id), *others) if row is not None}
    files, facts = files_by_model(session, ids), metadata_of_models(session, ids, FACT_KEYS)
    texts = runtime_texts(session, ids, private=private)
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
        kept = [text for text in texts[model.id] or texts[main.id] if _is_usable(text)]
        own_texts = tuple(_image_texts(model, kept, facts[main.id]))
        yield Image(model, layers, own_texts, _config(main, layers, facts[main.id], kept))


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
        return f"has only some tensors; put them into their base with `organ pull {plain} -o model.gguf`"
    return None if model.kind in (FileKind.MODEL, FileKind.PROJECTOR) else f"is of the kind {model.kind}, and no model"


def _config(
    model: ModelRow,
    layers: Sequence[tuple[str, ModelFileRow]],
    facts: dict[str, str],
    kept: Sequence[RuntimeText],
) -> bytes:
    size_label = str(model.parameters)
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if model.parameters >= unit:
            size_label = f"{model.parameters / unit:.1f}{name}"  # such as 7.6B, as Ollama writes it
            break
    family = model.architecture or "unknown"
    families = [family, *(["clip"] if any(kind == "projector" for kind, _ in layers) else [])]
    encoding = FILE_TYPES.get(parse_file_type(facts.get(FILE_TYPE_KEY, "")))
    chosen = next((item for text in kept if (item := RendererChoice.of(text)) is not None), RendererChoice())
    return json_bytes(
        {
            "model_format": "gguf",
            "model_family": family,
            "model_families": families,
            "model_type": size_label,
            "file_type": encoding or model.quantisation or "unknown",
            **chosen.members,
            "architecture": "amd64",
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [f"{DIGEST_START}{file.sha256}" for _, file in layers]},
        }
    )


def _is_usable(text: RuntimeText) -> bool:
    """Return whether a text came from another Ollama, was not cut, and is JSON where Ollama reads JSON."""
    if not text.source.startswith(OLLAMA) or len(text.text) >= RUNTIME_TEXT_MAX:
        return False
    expected = {"parameters": dict[str, object], "messages": list[object]}.get(text.kind)
    try:
        if expected is not None:
            msgspec.json.decode(text.text.encode("utf-8"), type=prepared(expected))
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _image_texts(model: ModelRow, kept: Sequence[RuntimeText], facts: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the texts for Ollama: those that came with the model from another Ollama, else what the file says.

    Newer versions of Ollama read the chat template from the GGUF file. A template for older versions is only made for
    chat templates that are known exactly, because no chat template is ever translated or run.
    """
    own = [text for text in kept if text.kind in LAYERS]
    known = set[str]()
    for text in own:
        if text.kind == "license" or text.kind not in known:
            known.add(text.kind)
            yield LAYERS[text.kind], text.text.encode("utf-8")
    if not known and facts.get(CHAT_TEMPLATE, "").strip().replace("\n", r"\n") in CHATML:
        yield "template", CHATML_FOR_OLLAMA.encode("utf-8")
        yield "params", json_bytes({"stop": CHATML_STOPS})
    if model.license and ("license" not in known or license_of(own) != model.license):
        yield "license", f"{model.license}\n".encode()
