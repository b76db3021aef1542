"""Readers of the folders of other tools, independent of this project.

They read as the tools do: Ollama's `GetModel` in `server/images.go`, LM Studio's folders `PUBLISHER/REPOSITORY/FILE`.
The cache of the Hugging Face tools is read by `huggingface_hub` itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any


@dataclass
class OllamaModel:
    """A model as Ollama loads it."""

    config: dict[str, Any]
    model: bytes = b""
    adapters: list[bytes] = field(default_factory=list)
    projectors: list[bytes] = field(default_factory=list)
    template: str | None = None
    system: str | None = None
    params: dict[str, Any] | None = None
    messages: list[Any] | None = None
    licenses: list[str] = field(default_factory=list)


def read_ollama(models: Path) -> dict[str, OllamaModel]:
    """Return the models in Ollama's folder by `HOST/NAMESPACE/MODEL:TAG`; every blob must be there, whole and right."""

    def blob(layer: dict[str, Any]) -> bytes:
        data = (models / "blobs" / layer["digest"].replace(":", "-")).read_bytes()
        assert (len(data), f"sha256:{sha256(data).hexdigest()}") == (layer["size"], layer["digest"])
        return data

    found: dict[str, OllamaModel] = {}
    for path in models.glob("manifests/*/*/*/*"):
        manifest = json.loads(path.read_bytes())
        assert manifest["schemaVersion"] == 2
        config = manifest["config"]
        model = OllamaModel(json.loads(blob(config)) if config.get("digest") else {})
        for layer in manifest["layers"]:
            data = blob(layer)
            match layer["mediaType"].removeprefix("application/vnd.ollama.image."):
                case "model":
                    model.model = data
                case "adapter":
                    model.adapters.append(data)
                case "projector":
                    model.projectors.append(data)
                case "template" | "prompt":
                    model.template = data.decode()
                case "system":
                    model.system = data.decode()
                case "params":
                    model.params = json.loads(data)
                case "messages":
                    model.messages = json.loads(data)
                case "license":
                    model.licenses.append(data.decode())
                case other:
                    raise AssertionError(f"Ollama knows no layer {other}")
        found["{}/{}/{}:{}".format(*path.relative_to(models / "manifests").parts)] = model
    return found


def read_lmstudio(models: Path) -> dict[str, bytes]:
    """Return the files of LM Studio by `PUBLISHER/REPOSITORY/FILE`."""
    return {str(path.relative_to(models)): path.read_bytes() for path in models.glob("*/*/*.gguf")}
