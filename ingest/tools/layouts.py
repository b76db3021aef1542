"""Where other tools expect the files of a model: what `organ install` writes, in this order.

Sources: Ollama's `manifest/paths.go` and `types/model/name.go`; the cache of `huggingface_hub`, which llama.cpp's
`common/hf-cache.cpp` has too; LM Studio's documentation of its models directory.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy.orm import Session

from organs.ingest.sources import GGUF_SUFFIX, is_gguf_name
from organs.ingest.tools.findings import is_folder
from organs.ingest.tools.folders import HUB_FOLDER
from organs.ingest.tools.ollama import OllamaName, blob_path, manifests_of, parse_ollama_name
from organs.ingest.tools.ollama_image import image_of
from organs.ingest.tools.places import Machine, hub_cache, lmstudio_folders, ollama_folders
from organs.registry.assembly import FilePlan, check_assemblable, plan_file
from organs.registry.catalog.queries.model_contents import files_of
from organs.registry.catalog.queries.model_lists import is_projector, quantisations_of
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import CACHE, LINK, MODEL_FILE, TEXT_FILE
from organs.registry.digest import Digest, digest_of
from organs.registry.errors import BadInput
from organs.registry.gguf.split import ShardName
from organs.registry.kinds import FileKind
from organs.registry.names import (
    LOCAL,
    OLLAMA_HOST,
    OLLAMA_NAMESPACE,
    OLLAMA_TAG,
    ModelName,
    parse_new_name,
    split_quantisation,
)
from organs.registry.store.files import PUBLIC_FILE

COMMIT_LENGTH = 40
READ_ONLY = 0o444


class NoInstallation(BadInput, code="no-installation"):
    """A tool cannot run a model: it is an adapter, has several files, or only some organs."""


@dataclass(frozen=True, slots=True)
class ToolFile:
    """A file of an installation: of a model, with a text, or a link."""

    path: Path
    content: FilePlan | bytes | str
    """The plan of a model's file, the bytes of a text, or the target of a link."""
    model_id: int
    is_shared: bool = False
    """Whether several models may need it: its name is that of its bytes, or that of a repository."""
    mode: int = PUBLIC_FILE
    """The permissions of a file."""

    @property
    def kind(self) -> str:
        """A word of OUTSIDE_KINDS."""
        return LINK if isinstance(self.content, str) else TEXT_FILE if isinstance(self.content, bytes) else MODEL_FILE

    @property
    def size_bytes(self) -> int:
        """The size of the file; of a link, of its target's name."""
        return self.content.size_bytes if isinstance(self.content, FilePlan) else len(os.fsencode(self.content))

    @property
    def sha256(self) -> Digest:
        """The SHA-256 of the bytes; of a link, of its target."""
        if isinstance(self.content, FilePlan):
            assert self.content.sha256 is not None, "a registered file has a digest"
            return self.content.sha256
        return digest_of(os.fsencode(self.content))

    @property
    def is_reference(self) -> bool:
        """Whether it is the reference of a repository of the hub. Other files may be in a folder of this name."""
        return self.is_shared and self.path.parent.name == "refs"

    @property
    def data(self) -> bytes | None:
        """The bytes of a text, or the target of a link; None for a file of a model."""
        return None if isinstance(self.content, FilePlan) else os.fsencode(self.content)


@dataclass(frozen=True, slots=True)
class ToolLayout:
    """The files of a model in the folder of a tool."""

    tool: str
    """The option of the tool; empty for a plain folder."""
    folder: Path
    name: str
    """The name of the model in the tool."""
    parts: tuple[ToolFile, ...]
    """In the order of writing: the tool sees the model with the last one."""
    command: str
    """The line that runs the model."""

    @property
    def main(self) -> Path:
        """The path of the model's file, or of its first shard."""
        return _main(self.parts)


def _main(parts: Sequence[ToolFile]) -> Path:
    return next(part.path for part in parts if part.model_id == parts[-1].model_id)


def ollama_layout(session: Session, model: ModelRow, machine: Machine, called: str | None) -> ToolLayout:
    """Return the files of a model in Ollama: blobs, then the manifest. `called` is a name as Ollama's. Raises NoImage.

    An adapter has its base as the first layer.
    """
    folders = ollama_folders(machine)
    folder = next((folder for folder in folders if is_folder(folder / "manifests")), folders[0])
    name = _spelled(folder, parse_ollama_name(called) if called else _ollama_name_of(model))
    if (count := len(files_of(session, model.id))) > 1:
        raise NoInstallation(
            f"{model.full_name} is split into {count} files, and Ollama takes one: organ assemble "
            f"{model.namespace}/{model.name} --merge -o FILE.gguf, then organ ingest FILE.gguf"
        )
    image = image_of(session, model, _projectors(session, model), private=True)
    parts = [
        ToolFile(blob_path(folder, row.sha256), plan_file(session, row), row.model_id, is_shared=True)
        for _, row in image.files
    ]
    parts += [
        ToolFile(blob_path(folder, digest), data, model.id, is_shared=True) for digest, data in image.text_blobs.items()
    ]
    manifest = folder / "manifests" / name.host / name.namespace / name.model / name.tag
    parts.append(ToolFile(manifest, image.manifest, model.id))
    return ToolLayout("ollama", folder, str(name), tuple(parts), f"ollama run {name}")


def _ollama_name_of(model: ModelRow) -> OllamaName:
    """Return the name of a model in Ollama: `me/coder:Q4_K_M` for `me/coder-Q4_K_M`."""
    stem, quantisation = split_quantisation(model.name)
    tag = model.name[len(stem) + 1 :] if quantisation else OLLAMA_TAG
    namespace = OLLAMA_NAMESPACE if model.namespace == LOCAL else model.namespace
    return parse_ollama_name(f"{OLLAMA_HOST}/{namespace.replace('.', '-')}/{stem}:{tag}")


def _spelled(folder: Path, name: OllamaName) -> OllamaName:
    """Return `name` as its manifest, or that of its namesakes, is spelled: Ollama ignores upper and lower case."""
    path = folder / "manifests"
    spelled: list[str] = []
    for part in (name.host, name.namespace, name.model, name.tag):
        known = sorted(os.listdir(path)) if os.path.isdir(path) else []
        exact = part in known
        spelled.append(part if exact else next((one for one in known if one.lower() == part.lower()), part))
        path /= spelled[-1]
    return OllamaName(*spelled)


def hub_layout(session: Session, model: ModelRow, machine: Machine, called: str | None, *, tool: str) -> ToolLayout:
    """Return the files of a model in the cache of the Hugging Face tools: blobs, `refs/main`, links in a snapshot.

    All models that are installed into one repository have one snapshot.
    """
    llama_cache = machine.folder("LLAMA_CACHE") if tool == "llama-cpp" else None
    cache = llama_cache or hub_cache(machine)
    name = parse_new_name(called) if called else ModelName(model.namespace, split_quantisation(model.name)[0])
    repository = cache / f"{HUB_FOLDER}{name.namespace}--{name.name}"
    commit = hashlib.sha256(f"installed as {name}".encode()).hexdigest()[:COMMIT_LENGTH]
    blobs, links = [], []
    for row, plan in _named_plans(session, model):
        blobs.append(ToolFile(repository / "blobs" / str(plan.sha256), plan, row.id, is_shared=True))
        link = repository / "snapshots" / commit / plan.name
        links.append(ToolFile(link, os.path.relpath(blobs[-1].path, link.parent), row.id))
    reference = ToolFile(repository / "refs" / "main", commit.encode("ascii"), model.id, is_shared=True)
    first = links[0].path
    stem, quantisation = split_quantisation(model.name)
    tag = f":{model.name[len(stem) + 1 :]}" if quantisation else ""
    command = f"llama-cli --offline -hf {name}{tag}"
    if model.kind == FileKind.ADAPTER:
        command = f"llama-cli -m BASE.gguf --lora {shlex.quote(str(first))}"
    elif tool == "hf-cache":
        command = f"HF_HUB_OFFLINE=1 hf download {name} {shlex.quote(first.name)}"
    return ToolLayout(
        "hf-cache" if llama_cache is None else tool, cache, str(name), (*blobs, reference, *links), command
    )


def lmstudio_layout(session: Session, model: ModelRow, machine: Machine, called: str | None) -> ToolLayout:
    """Return the files of a model in LM Studio: `PUBLISHER/REPOSITORY/FILE.gguf`. Raises NoInstallation."""
    if model.kind == FileKind.ADAPTER:
        raise NoInstallation(
            f"{model.full_name} is an adapter, and LM Studio loads none: merge it into its base with a recipe "
            "(`adapters:`), and install the result"
        )
    folders = lmstudio_folders(machine)
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    stem = split_quantisation(model.name)[0]
    name = parse_new_name(called) if called else ModelName(model.namespace, f"{stem}-GGUF")
    place = folder / name.namespace / name.name
    parts = tuple(ToolFile(place / plan.name, plan, row.id) for row, plan in _named_plans(session, model))
    return ToolLayout("lmstudio", folder, str(name), parts, f"lms load {name}/{_main(parts).name}")


def folder_layout(session: Session, model: ModelRow, folder: Path, called: str | None) -> ToolLayout:
    """Return the files of a model in a plain folder, called after the model."""
    if called is not None:
        if Path(called).name != called or called.startswith("."):
            raise NoInstallation(f"{called[:200]!r} is not the name of a file: choose one with --as")
        called = called[: -len(GGUF_SUFFIX)] if is_gguf_name(called) else called
    plans = _named_plans(session, model, called)
    parts = tuple(ToolFile(folder / plan.name, plan, row.id) for row, plan in plans)
    lora = "-m BASE.gguf --lora" if model.kind == FileKind.ADAPTER else "-m"
    command = f"llama-cli {lora} {shlex.quote(str(_main(parts)))}"
    return ToolLayout("", folder, called or model.name, parts, command)


def cache_layout(session: Session, model: ModelRow, folder: Path) -> ToolLayout:
    """Return the files of a model in the folder where `organ run` keeps files; a model has its own folder in it."""
    own = folder / model.digest
    parts = tuple(ToolFile(own / plan.name, plan, row.id, mode=READ_ONLY) for row, plan in _named_plans(session, model))
    return ToolLayout(CACHE, folder, model.full_name, parts, "")


LAYOUTS: dict[str, Callable[[Session, ModelRow, Machine, str | None], ToolLayout]] = {
    "ollama": ollama_layout,
    "lmstudio": lmstudio_layout,
    "llama-cpp": lambda *values: hub_layout(*values, tool="llama-cpp"),
    "hf": lambda *values: hub_layout(*values, tool="hf-cache"),
}
"""By the words of `--to`."""


def _named_plans(session: Session, model: ModelRow, called: str | None = None) -> Iterator[tuple[ModelRow, FilePlan]]:
    """Yield the files of the projectors of a model, then its own, each called after its model."""
    for row in (*_projectors(session, model), model):
        check_assemblable(row)
        stem = called if called and row is model else row.name
        rows = files_of(session, row.id)
        for number, file in enumerate(rows, 1):
            name = f"{stem}.gguf" if len(rows) == 1 else str(ShardName(stem, number, len(rows)))
            yield row, replace(plan_file(session, file), name=name)


def check_whole(model: ModelRow) -> None:
    """Raise NoInstallation for a model that has not all of its organs."""
    if not model.complete and model.kind != FileKind.ADAPTER:
        raise NoInstallation(
            f"{model.full_name} has fewer tensors than its header says, so nothing loads it: organ show "
            f"{model.namespace}/{model.name} says what is missing; organ assemble writes a partial model with its base"
        )


def _projectors(session: Session, model: ModelRow) -> Sequence[ModelRow]:
    """Return the first projector of a model in the registry, if it has one of one file."""
    if is_projector(model) or model.kind != FileKind.MODEL:
        return ()
    rows = quantisations_of(session, ModelName(model.namespace, model.stem))
    return [row for row in rows if is_projector(row) and len(files_of(session, row.id)) == 1][:1]


def is_needed(
    tool: str, folder: Path, path: Path, manifests: Mapping[Path, Collection[str] | None] | None = None
) -> bool:
    """Return whether a tool still needs a shared file: a manifest has its digest, or a snapshot a link to it.

    A manifest of Ollama that cannot be read may need it. `manifests` are those of `manifests_of`, if they are known.
    """
    if tool == "ollama":
        digest = path.name.removeprefix("sha256")[1:]
        known = manifests_of(folder) if manifests is None else manifests
        return any(digests is None or digest in digests for digests in known.values())
    repository = path.parent.parent
    snapshots = repository / "snapshots"
    if path.parent.name == "refs":
        return any(True for commit in _entries(snapshots) for _ in _entries(commit))
    return any(link.is_symlink() and link.resolve() == path.resolve() for link in snapshots.rglob("*"))


def _entries(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())
