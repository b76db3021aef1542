"""Ollama: models named by manifests, `manifests/HOST/NAMESPACE/MODEL/TAG`, with their layers in `blobs`.

A manifest is JSON with a list of layers: the model, adapters and projectors are GGUF files; template, parameters and
licenses are texts. A layer is named by its SHA-256. Nothing in a manifest is trusted: names
of blobs must be digests, and sizes and bytes are compared. Source: Ollama's `manifest/` and `server/images.go`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from organs.ingest.sources import ModelSource
from organs.ingest.tools.findings import Findings, Remarks, is_folder, shown, unreadable, walk_files
from organs.ingest.tools.places import Machine, ollama_folders
from organs.registry.catalog.vocabulary import OTHER_NAMES_MAX, RUNTIME_TEXT_MAX, RUNTIME_TEXTS_MAX
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.base import prepared
from organs.registry.entities.model import RuntimeText
from organs.registry.errors import BadName
from organs.registry.names import (
    OLLAMA_HOST,
    OLLAMA_NAMESPACE,
    OLLAMA_TAG,
    ModelName,
    name_from_text,
    ollama_name,
    split_quantisation,
)

MANIFESTS_MAX = 10_000
LAYERS_MAX = 4096
TEXT_MAX_BYTES = 1 << 20
"""The largest manifest, and the largest layer that is read as a text."""
NAME_MAX = 96
"""The longest name of a renderer or a parser."""
MEDIA_TYPE = "application/vnd.ollama.image."
PARTS = {"model": "", "adapter": "adapter", "projector": "projector", "draft": "draft"}
"""Layers that are GGUF files, with what they add to the name."""
TEXTS = {
    "template": "template",
    "prompt": "template",
    "params": "parameters",
    "license": "license",
    "system": "system",
    "messages": "messages",
}
"""Layers that are texts, with their kinds here. The kinds in PRIVATE_TEXT_KINDS never leave this machine."""
RENDERER = "renderer"
"""The kind of the text that has a RendererChoice as JSON."""
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})", re.ASCII)
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}", re.ASCII)


class RendererChoice(msgspec.Struct, omit_defaults=True):
    """What the configuration of a model says about its prompts: programs in Ollama that are used for a template.

    Newer models of Ollama have these names instead of a template.
    """

    renderer: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    parser: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    requires: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    """The oldest version of Ollama that runs the model."""

    @property
    def members(self) -> dict[str, str]:
        """The members that are not empty."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}

    @classmethod
    def of(cls, text: RuntimeText) -> RendererChoice | None:
        """Return the choice in a text that is kept with a model; None for a text of another kind."""
        return cls.read(text.text.encode("utf-8")) if text.kind == RENDERER else None

    @classmethod
    def read(cls, data: bytes) -> RendererChoice | None:
        """Return the choice in the configuration `data`; None if it has none or cannot be read."""
        try:
            choice = msgspec.json.decode(data, type=prepared(cls))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return choice if choice.members else None


class _Layer(msgspec.Struct):
    media_type: str = msgspec.field(name="mediaType", default="")
    digest: str = ""
    size: int = -1


class _Manifest(msgspec.Struct):
    stated_layers: Annotated[list[_Layer], Meta(max_length=LAYERS_MAX)] | None = msgspec.field(
        name="layers", default=None
    )
    """None for a model that runs in the cloud."""
    config: _Layer | None = None

    @property
    def layers(self) -> list[_Layer]:
        return self.stated_layers or []


@dataclass(frozen=True, slots=True)
class OllamaName:
    """The name of a model in Ollama."""

    host: str
    namespace: str
    model: str
    tag: str

    def __str__(self) -> str:
        """Return the name as `ollama list` prints it."""
        path = f"{self.model}:{self.tag}"
        if self.host.lower() != OLLAMA_HOST:
            return f"{self.host}/{self.namespace}/{path}"
        return path if self.namespace.lower() == OLLAMA_NAMESPACE else f"{self.namespace}/{path}"

    @property
    def model_name(self) -> ModelName:
        """The name in a registry."""
        return ollama_name(self.host, self.namespace, self.model, self.tag)

    @property
    def rank(self) -> tuple[bool, bool, int, int, str]:
        """The order of names of the same bytes: the first says most about the model."""
        has_quantisation = split_quantisation(self.model_name.name)[1] is not None
        return (not has_quantisation, self.tag == OLLAMA_TAG, -len(self.tag), len(str(self)), str(self))


NAME_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}", re.ASCII)


def parse_ollama_name(text: str) -> OllamaName:
    """Return the name `[[HOST/]NAMESPACE/]MODEL[:TAG]`, with what Ollama adds to it. Raises BadName."""
    path, _, last = text.rpartition("/")
    model, colon, tag = last.partition(":")
    host, _, namespace = path.rpartition("/")
    name = OllamaName(host or OLLAMA_HOST, namespace or OLLAMA_NAMESPACE, model, tag if colon else OLLAMA_TAG)
    patterns = ((_HOST, name.host), (_NAMESPACE, name.namespace), (NAME_PART, name.model), (NAME_PART, name.tag))
    if not all(pattern.fullmatch(part) for pattern, part in patterns):
        raise BadName(
            f"{shown(text)!r} is not a name of Ollama: it is [NAMESPACE/]MODEL[:TAG], of at most 80 letters, digits, "
            "and - _ . each, and a namespace has no dot; choose one with --as"
        )
    return name


def manifests_of(folder: Path) -> dict[Path, frozenset[str] | None]:
    """Return the digests of the layers of each manifest in Ollama's `folder`; None for one that cannot be read."""
    manifests: dict[Path, frozenset[str] | None] = {}
    ignored = Remarks()
    for path in islice(walk_files(folder / "manifests", lambda _name: True, ignored), MANIFESTS_MAX):
        manifest = _read_manifest(OllamaName("", "", path.name, ""), path, ignored)
        manifests[path] = None
        if manifest is not None:
            layers = [*manifest.layers, *([manifest.config] if manifest.config else [])]
            found = (_DIGEST.fullmatch(layer.digest) for layer in layers)
            manifests[path] = frozenset(match[1] for match in found if match)
    return manifests


def blob_path(folder: Path, digest: str) -> Path:
    """Return the path of a blob in Ollama's `folder`, which older versions call `sha256:` and the digest."""
    path, older = (folder / "blobs" / f"sha256{separator}{digest}" for separator in "-:")
    return older if os.path.lexists(older) and not os.path.lexists(path) else path


@dataclass(slots=True)
class _Blob:
    """A GGUF file in `blobs`, with all names and texts that manifests give it."""

    path: Path
    digest: Digest
    part: str
    names: list[OllamaName] = field(default_factory=list)
    numbers: dict[OllamaName, int] = field(default_factory=dict)
    texts: dict[OllamaName, tuple[RuntimeText, ...]] = field(default_factory=dict)


def find_ollama(machine: Machine) -> Iterator[Findings]:
    """Yield the models of Ollama, named by their manifests; each blob once, by its most precise name."""
    for folder in ollama_folders(machine):
        manifests = folder / "manifests"
        if not is_folder(manifests):
            yield Findings(folder, is_there=False)
            continue
        problems, notes, blobs = Remarks(), Remarks(), dict[Digest, _Blob]()
        files = walk_files(manifests, lambda name: not name.startswith("."), problems)
        for path in islice(files, MANIFESTS_MAX):
            parts = path.relative_to(manifests).parts
            if len(parts) != 4 or not all(map(_PART.fullmatch, parts)):
                problems.add(f"{shown(str(path))}: not the name of a model; a manifest is HOST/NAMESPACE/MODEL/TAG")
                continue
            _add_manifest(folder, OllamaName(*parts), path, blobs, problems, notes)
        sources = tuple(_source(blob) for blob in blobs.values())
        yield Findings(folder, is_there=True, sources=sources, problems=problems.sentences, notes=notes.sentences)


def _add_manifest(
    folder: Path, name: OllamaName, path: Path, blobs: dict[Digest, _Blob], problems: Remarks, notes: Remarks
) -> None:
    manifest = _read_manifest(name, path, problems)
    if manifest is None:
        return
    found: list[_Blob] = []
    numbers: dict[str, int] = {}
    for layer in manifest.layers:
        part = layer.media_type.removeprefix(MEDIA_TYPE)
        if part not in PARTS or not layer.media_type.startswith(MEDIA_TYPE):
            continue
        blob = _checked_blob(folder, name, layer, problems)
        numbers[part] = numbers.get(part, 0) + 1
        if blob is not None:
            kept = blobs.setdefault(blob[1], _Blob(*blob, part))
            kept.names.append(name)
            kept.numbers[name] = numbers[part]
            found.append(kept)
    if not numbers:
        kinds = {layer.media_type.removeprefix(MEDIA_TYPE) for layer in manifest.layers}
        why = "its weights are separate tensors, not a GGUF file" if "tensor" in kinds else "it has no weights here"
        notes.add(f"Ollama {name}: {why}")
    texts = tuple(_texts(folder, name, manifest, problems)) if found else ()
    for kept in found:
        kept.texts[name] = texts


def _read_manifest(name: OllamaName, path: Path, problems: Remarks) -> _Manifest | None:
    if not path.is_file():
        problems.add(f"Ollama {name}: {path} is not a file")
        return None
    data = _read_limited(path, name, "manifest", problems)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=prepared(_Manifest))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problems.add(f"Ollama {name}: its manifest is not the JSON of a manifest")
        return None


def _read_limited(path: Path, name: OllamaName, what: str, problems: Remarks) -> bytes | None:
    """Return the bytes of a small file of the model `name`; None, with a problem, if they cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(TEXT_MAX_BYTES + 1)
    except OSError as error:
        problems.add(f"Ollama {name}: {path}: {error.strerror}")
        return None
    if len(data) > TEXT_MAX_BYTES:
        problems.add(f"Ollama {name}: its {what} has more than {TEXT_MAX_BYTES:,} bytes")
        return None
    return data


def _checked_blob(folder: Path, name: OllamaName, layer: _Layer, problems: Remarks) -> tuple[Path, Digest] | None:
    """Return the path and the stated digest of a layer; None, with a problem, if its blob cannot be used."""
    match = _DIGEST.fullmatch(layer.digest)
    if match is None:
        problems.add(f"Ollama {name}: {shown(layer.digest)!r} in its manifest is not a SHA-256")
        return None
    path = blob_path(folder, match[1])
    if reason := unreadable(path):
        problems.add(f"Ollama {name}: {path}: {reason}; ollama pull {name} fetches it again")
        return None
    size = path.stat().st_size
    if layer.size >= 0 and size != layer.size:
        problems.add(f"Ollama {name}: {path} has {size:,} bytes, and its manifest says {layer.size:,}")
        return None
    return path, Digest(match[1])


def _texts(folder: Path, name: OllamaName, manifest: _Manifest, problems: Remarks) -> Iterator[RuntimeText]:
    """Yield the texts of a manifest, in the order of TEXTS, and the choice of a renderer. They are kept exactly."""
    ordered = list(TEXTS)
    layers = [
        (ordered.index(kind), layer)
        for layer in manifest.layers
        if (kind := layer.media_type.removeprefix(MEDIA_TYPE)) in TEXTS and layer.media_type.startswith(MEDIA_TYPE)
    ]
    chosen = {
        (TEXTS[ordered[position]], layer.digest): (position, layer)
        for position, layer in sorted(layers, key=lambda pair: pair[0])
    }
    source = f"Ollama {name}"
    for position, layer in list(chosen.values())[:RUNTIME_TEXTS_MAX]:
        kind = TEXTS[ordered[position]]
        data = _read_text_layer(folder, name, layer, kind, problems)
        try:
            text = "" if data is None else data.decode("utf-8")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            problems.add(f"Ollama {name}: its {kind} is not a text, and is not kept")
        elif text.strip():
            yield RuntimeText(kind=kind, source=source, text=text[:RUNTIME_TEXT_MAX])
    if manifest.config is not None and manifest.config.digest:
        data = _read_text_layer(folder, name, manifest.config, "configuration", problems)
        choice = None if data is None else RendererChoice.read(data)
        if choice is not None:
            yield RuntimeText(kind=RENDERER, source=source, text=msgspec.json.encode(choice).decode())


def _read_text_layer(folder: Path, name: OllamaName, layer: _Layer, what: str, problems: Remarks) -> bytes | None:
    """Return the bytes of a small layer; None, with a problem, if they cannot be read or are not those of its name."""
    blob = _checked_blob(folder, name, layer, problems)
    data = None if blob is None else _read_limited(blob[0], name, what, problems)
    if blob is None or data is None:
        return None
    if digest_of(data) != blob[1]:
        problems.add(f"Ollama {name}: {blob[0]} has other bytes than its name says")
        return None
    return data


def _source(blob: _Blob) -> ModelSource:
    best, *others = sorted(set(blob.names), key=lambda name: name.rank)
    own = _part_name(blob, best)
    names = dict.fromkeys(_part_name(blob, name) for name in others[:OTHER_NAMES_MAX])
    return ModelSource(
        (blob.path,),
        own,
        other_names=tuple(name for name in names if name != own),
        texts=blob.texts.get(best) or next((texts for texts in blob.texts.values() if texts), ()),
        digests=(blob.digest,),
    )


def _part_name(blob: _Blob, name: OllamaName) -> ModelName:
    """Return the name here of a layer of the model `name`."""
    model = name.model_name
    if not PARTS[blob.part]:
        return model
    number = blob.numbers[name]
    ending = PARTS[blob.part] + (f"-{number}" if number > 1 else "")
    return ModelName(model.namespace, name_from_text(f"{model.name}-{ending}"))
