"""Kinds of GGUF files: most are language models, others serve them or have another purpose."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from itertools import islice

from organs.registry.anatomy import is_image_tensor


class FileKind(StrEnum):
    """What a GGUF file is for."""

    MODEL = "model"
    ADAPTER = "adapter"
    VOCABULARY = "vocabulary"
    IMATRIX = "imatrix"
    CONTROL_VECTOR = "control-vector"
    PROJECTOR = "projector"
    IMAGE = "image"


WEIGHT_KINDS = (FileKind.MODEL.value, FileKind.PROJECTOR.value, FileKind.IMAGE.value)
"""Kinds of files with weights of their own: they have relatives, can be bases, and have organs to graft."""

ADAPTER_TYPE_KEY, ALPHA_KEY = "adapter.type", "adapter.lora.alpha"
INVOCATION_KEY = "adapter.alora.invocation_tokens"
LORA_TYPE = "lora"
MERGED_TYPE = "lora-merge"
"""The type of adapters with magnitudes (DoRA) or whole tensors. No runtime loads it; as `lora`, it would run wrong."""

KIND_NOTES: dict[str, str] = {
    FileKind.VOCABULARY: "A vocabulary without weights: runtimes use it to test a tokenizer.",
    FileKind.IMATRIX: (
        "An importance matrix: how large the inputs of each weight of a model are. Programs that quantise the model "
        "read it. It is no model: no runtime loads it, and it has no tensors to graft."
    ),
    FileKind.CONTROL_VECTOR: (
        "A control vector: runtimes add it to what the layers of its model compute, to change its tone. It is no "
        "model, and it has no tensors to graft."
    ),
    FileKind.PROJECTOR: (
        "A projector: it turns images or sound into inputs of a language model, which runtimes load beside it. Without "
        "that model it writes no text, so its perplexity is not measured."
    ),
    FileKind.IMAGE: (
        "A model for images, video or sound. It writes no text, so its perplexity is not measured. Its tensors can be "
        "grafted by slot."
    ),
}
"""What a file of a kind is, for people. Models and adapters need no explanation."""

_BY_TYPE = {
    "adapter": FileKind.ADAPTER,
    "imatrix": FileKind.IMATRIX,
    "mmproj": FileKind.PROJECTOR,
}
"""Kinds by `general.type`."""
_BY_ARCHITECTURE = {
    "controlvector": FileKind.CONTROL_VECTOR,
    "clip": FileKind.PROJECTOR,
    **dict.fromkeys(
        (
            *("aura", "chroma", "cosmos", "flux", "flux2", "hidream", "hyvid", "lens", "ltxv", "lumina2", "pig"),
            *("qwen_image", "sd1", "sd3", "sdxl", "wan", "z_image"),
        ),
        FileKind.IMAGE,
    ),
}
"""Kinds by `general.architecture`. Those for images are names that ComfyUI and stable-diffusion.cpp give."""
TENSORS_EXAMINED_MAX = 64
"""Tensors whose names may show that a file without an architecture is a model for images."""


def kind_of(stated: str | None, architecture: str | None, tensors: Iterable[str], *, has_tensors: bool) -> str:
    """Return the kind of a file, a value of `FileKind`.

    `stated` and `architecture` are `general.type` and `general.architecture` of its header; `tensors` are the names of
    its tensors. A split set has the kind of its first file, which may have no tensors: `has_tensors` is about the set.
    """
    kind = _BY_TYPE.get(stated or "") or _BY_ARCHITECTURE.get(architecture or "")
    if kind is None:
        kind = FileKind.MODEL if has_tensors else FileKind.VOCABULARY
        if architecture is None and any(map(is_image_tensor, islice(tensors, TENSORS_EXAMINED_MAX))):
            kind = FileKind.IMAGE
    return kind.value
