"""Downloads in the OpenAPI document; `web.downloads` serves them outside of `/api/v1`."""

from __future__ import annotations

from dataclasses import dataclass

from organs.registry.entities.base import Schema
from organs.web.api.operation import (
    DIGEST,
    NAME,
    NAMESPACE,
    Parameter,
)

GROUP = "Downloads"

SHAPE_PATTERN = "^[0-9]+(x[0-9]+){0,3}$"
_TEXT: Schema = {"type": "string"}


@dataclass(frozen=True, slots=True)
class Download:
    """An address that sends bytes."""

    path: str
    name: str
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    example: str


_TOLD_APART = (
    Parameter(
        "dtype",
        "The dtype of the organ, if several organs have the same bytes.",
        {"type": "string", "maxLength": 16},
        "F32",
    ),
    Parameter(
        "shape",
        "The same, by shape.",
        {"type": "string", "pattern": SHAPE_PATTERN, "maxLength": 96},
        "192",
    ),
)
_NAME_INSIDE = Parameter("name", "The tensor's name in the file: one of its names in a model.", _TEXT, "")
_FILE = Parameter("file", "One of the model's files.", _TEXT, "Zoo-A-2M-v1.0-Q8_0.gguf", where="path", required=True)
_ORGAN, _MODEL = "aadb682ed7753b5f", "local/Zoo-A-2M-v1.0-Q8_0"

DOWNLOADS = (
    Download(
        "/organs/{digest}.raw",
        "organ_raw",
        "An organ's bytes",
        "The plain bytes, as in the model's file.",
        (DIGEST, *_TOLD_APART),
        f"/organs/{_ORGAN}.raw",
    ),
    Download(
        "/organs/{digest}.bin",
        "organ_bin",
        "An organ as a file",
        "The file format of organ directories: a head with name, dtype and shape, then the plain bytes.",
        (DIGEST, *_TOLD_APART, _NAME_INSIDE),
        f"/organs/{_ORGAN}.bin",
    ),
    Download(
        "/organs/{digest}.npy",
        "organ_npy",
        "An organ's values for NumPy",
        "The values as float32. 409 for a dtype that the registry cannot decode.",
        (DIGEST, *_TOLD_APART),
        f"/organs/{_ORGAN}.npy",
    ),
    Download(
        "/models/{namespace}/{name}.gguf",
        "model_gguf",
        "A model as one file",
        "The original file, byte for byte. Shards are merged.",
        (NAMESPACE, NAME),
        f"/models/{_MODEL}.gguf",
    ),
    Download(
        "/models/{namespace}/{name}/files/{file}",
        "model_file",
        "A file of a model",
        "One of the original files, by its name.",
        (NAMESPACE, NAME, _FILE),
        f"/models/{_MODEL}/files/Zoo-A-2M-v1.0-Q8_0.gguf",
    ),
)
