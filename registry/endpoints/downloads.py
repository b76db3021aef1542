"""Downloads: the bytes of tensors and of models' files, outside of the API. `address` returns the address of each."""

from __future__ import annotations

from typing import Annotated

from organs.registry.endpoints.declaration import Group
from organs.registry.endpoints.parameters import EXAMPLE_MODEL, Name, Namespace, OrganDigest, note

GROUP = Group(
    "Downloads",
    "Files and tensors as bytes, at addresses outside of `/api/v1`. Errors are pages for people.",
    root="",
)
SHAPE_PATTERN = "^[0-9]+(x[0-9]+){0,3}$"
OfDtype = Annotated[str, note("The dtype of the tensor, if several tensors have the same bytes.", "F32", max_length=16)]
OfShape = Annotated[
    str,
    note(
        "The shape of the tensor, if several tensors have the same bytes.", "192", pattern=SHAPE_PATTERN, max_length=96
    ),
]
NameInside = Annotated[str, note("The name of the tensor in the file: one of the names that it has in models.")]
FileName = Annotated[str, note("One of the model's files.", f"{EXAMPLE_MODEL}.gguf")]


@GROUP.get("/organs/{digest}.raw", "A tensor's bytes")
def organ_raw(digest: OrganDigest, dtype: OfDtype | None = None, shape: OfShape | None = None) -> bytes:
    """The plain bytes, as in the model's file."""


@GROUP.get("/organs/{digest}.bin", "A tensor as a file")
def organ_bin(
    digest: OrganDigest, dtype: OfDtype | None = None, shape: OfShape | None = None, name: NameInside | None = None
) -> bytes:
    """The file format of organ directories: a header with name, dtype and shape, then the plain bytes."""


@GROUP.get("/organs/{digest}.npy", "A tensor's values for NumPy")
def organ_npy(digest: OrganDigest, dtype: OfDtype | None = None, shape: OfShape | None = None) -> bytes:
    """The values as float32. 409 for a dtype that the registry cannot decode."""


@GROUP.get("/models/{namespace}/{name}.gguf", "A model as one file")
def model_gguf(namespace: Namespace, name: Name) -> bytes:
    """The original file, byte for byte. Shards are merged."""


@GROUP.get("/models/{namespace}/{name}/files/{file}", "A file of a model")
def model_file(namespace: Namespace, name: Name, file: FileName) -> bytes:
    """One of the original files, by its name."""
