"""Folders as Ollama, LM Studio, llama.cpp, the Hugging Face tools and GPT4All lay them out."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from organs.ingest.tools.places import Machine
from tests.registry_templates import ZOO_FILES

MEDIA_TYPE = "application/vnd.ollama.image."
COMMIT = "0123456789abcdef0123456789abcdef01234567"
APACHE = "\n  Apache License\n  Version 2.0, January 2004\n  http://www.apache.org/licenses/\n\n  TERMS AND CONDITIONS"


def machine(home: Path, variables: Mapping[str, str] | None = None, platform: str = "linux") -> Machine:
    """Return a machine with this home and nothing else."""
    return Machine(home, variables or {}, platform, root=home / "root")


def ollama_layer(models: Path, kind: str, data: bytes) -> dict[str, object]:
    """Write the blob of a layer below Ollama's folder `models`, and return its entry of a manifest."""
    digest = hashlib.sha256(data).hexdigest()
    path = models / "blobs" / f"sha256-{digest}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"mediaType": MEDIA_TYPE + kind, "digest": f"sha256:{digest}", "size": len(data)}


def ollama_manifest(models: Path, name: str, *layers: Mapping[str, object]) -> Path:
    """Write the manifest `HOST/NAMESPACE/MODEL/TAG`."""
    path = models / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "config": {}, "layers": list(layers)}))
    return path


def hub_repository(cache: Path, repository: str, files: Mapping[str, bytes], commit: str = COMMIT) -> Path:
    """Write a repository into a cache of the Hugging Face tools, as links to blobs; return its folder."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    for name, data in files.items():
        blob = folder / "blobs" / hashlib.sha256(data).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    return folder


def put(path: Path, data: bytes) -> Path:
    """Write a file and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def lay_out_zoo(home: Path) -> None:
    """Lay out the shipped models in `home` as all five tools do; some of them in two tools."""
    zoo = {path.name: path.read_bytes() for path in ZOO_FILES}
    base, small = zoo["Zoo-A-2M-v1.0-F16.gguf"], zoo["Zoo-A-2M-v1.0-Q8_0.gguf"]
    ollama = home / ".ollama" / "models"
    model = ollama_layer(ollama, "model", small)
    texts = [
        ollama_layer(ollama, "template", b"{{ .System }} {{ .Prompt }}"),
        ollama_layer(ollama, "params", b'{"temperature": 0.5}'),
        ollama_layer(ollama, "license", APACHE.encode()),
    ]
    ollama_manifest(ollama, "registry.ollama.ai/library/zoo-a/latest", model, *texts)
    ollama_manifest(ollama, "registry.ollama.ai/library/zoo-a/2m-q8_0", model, *texts)
    adapter = ollama_layer(ollama, "adapter", zoo["Zoo-A-2M-Code-LoRA-v1.0-F32.gguf"])
    ollama_manifest(ollama, "registry.ollama.ai/me/coder/latest", model, adapter)
    hub_repository(home / ".cache" / "huggingface" / "hub", "zoo/Zoo-A-2M-v1.0-GGUF", {"Zoo-A-2M-v1.0-F16.gguf": base})
    flat = home / ".cache" / "llama.cpp"
    put(flat / "zoo_Zoo-A-2M-Code-GGUF_Zoo-A-2M-Code-v1.0-F16.gguf", zoo["Zoo-A-2M-Code-v1.0-F16.gguf"])
    put(flat / "manifest=zoo=Zoo-A-2M-Code-GGUF=latest.json", b"{}")
    studio = home / ".lmstudio" / "models"
    put(studio / "zoo" / "Zoo-C-1M-v1.0-GGUF" / "Zoo-C-1M-v1.0-Q8_0.gguf", zoo["Zoo-C-1M-v1.0-Q8_0.gguf"])
    put(studio / "zoo" / "Zoo-A-2M-v1.0-GGUF" / "Zoo-A-2M-v1.0-F16.gguf", base)
    gpt4all = home / ".local" / "share" / "nomic.ai" / "GPT4All"
    put(gpt4all / "Zoo-A-2M-Prose-v1.0-Q8_0.gguf", zoo["Zoo-A-2M-Prose-v1.0-Q8_0.gguf"])
    put(gpt4all / "incomplete-Zoo-B.gguf", b"half")
    os.link(studio / "zoo" / "Zoo-C-1M-v1.0-GGUF" / "Zoo-C-1M-v1.0-Q8_0.gguf", gpt4all / "Zoo-C.gguf")


ZOO_NAMES = {
    "library/zoo-a-2m-q8_0",
    "local/Zoo-A-2M-Prose-v1.0-Q8_0",
    "me/coder-adapter",
    "zoo/Zoo-A-2M-Code-v1.0-F16",
    "zoo/Zoo-A-2M-v1.0-F16",
    "zoo/Zoo-C-1M-v1.0-Q8_0",
}
"""The names of the models of `lay_out_zoo`, without versions."""
