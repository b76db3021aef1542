"""Tags of sizes: the words by which clients of Ollama, llama.cpp and the hub name one, and the names of their models.

The model of a size is called after its source, with the tag at its end, so that it is one of the quantisations of the
source: `me/coder-4.5bpw` is `me/coder:4.5bpw` to Ollama and llama.cpp, and a revision of the repository to the hub.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.tables import ModelRow
from organs.registry.entities.sizes import QuantizationRequest
from organs.registry.errors import BadInput
from organs.registry.gguf.mixes import MIXES
from organs.registry.names import (
    NAME_MAX_LENGTH,
    ModelName,
    plain_quantisation,
    size_in_tag,
    split_quantisation,
)

BY_IMPORTANCES = "imatrix"
"""The word before the tag of a size that was made by an importance matrix: `imatrix-Q4_K_M`."""
BEST = "best"
"""The word behind the name of a mix, for the types that were chosen for the size of that mix: `Q4_K_M-best`."""


def tag_of(request: QuantizationRequest, like_bytes: int | None = None) -> str:
    """Return the tag of the size that `request` describes: `Q4_K_M`, `Q4_K_M-best`, `4.5bpw`, `2.1GB`.

    `like_bytes` is the size of the model that `like` names; None if it names a mix.
    """
    if request.imatrix is not None:
        return f"{BY_IMPORTANCES}-{tag_of(replace(request, imatrix=None), like_bytes)}"
    if request.type is not None:
        return request.type.upper()
    if request.bits is not None:
        return f"{_rounded_up(request.bits):g}bpw"
    if request.size_bytes is None and like_bytes is None:
        return f"{(request.like or '').upper()}-{BEST}"
    size_bytes = like_bytes if request.size_bytes is None else request.size_bytes
    assert size_bytes is not None
    if size_bytes >= 10**9:
        return f"{_rounded_up(size_bytes / 1e9):g}GB"
    return f"{_rounded_up(size_bytes / 1e6):g}MB"


def _rounded_up(value: float) -> float:
    """Return `value` with at most three digits behind the point, and with at most four digits, rounded up."""
    digits = max(0, min(3, 3 - math.floor(math.log10(value)))) if value > 0 else 3
    scale = 10.0**digits
    return math.ceil(value * scale - 1e-6) / scale


def name_of_size(source: ModelRow, tag: str, contributor: str) -> ModelName:
    """Return the name by convention of the size `tag` of `source`, made by `contributor`.

    A source that is quantised itself keeps its quantisation in the name. The name is in the namespace of the source if
    the contributor may write there, otherwise in their own: then it is no quantisation of the source to clients,
    because a namespace has only what its owner made.
    """
    namespace = source.namespace if contributor in (LOCAL, source.namespace) else contributor
    stem = source.stem_of_sizes[: NAME_MAX_LENGTH - len(tag) - 1].rstrip("._-")
    return ModelName(namespace, f"{stem}-{tag}")


def command_for(model: str, tag: str) -> str | None:
    """Return the command that makes the size `tag` of `model`, a name; None if the tag is no size."""
    size = size_in_tag(tag)
    if size is not None:
        number, unit = size
        if number == 0:
            return None
        if unit == "bpw":
            return f"organ quantize {model} --bpw {number:g}"
        return f"organ quantize {model} --size {number:g}{unit}"
    stem, quantisation = split_quantisation(f"x-{tag}")
    if stem != "x" or quantisation is None:
        return None
    plain = plain_quantisation(quantisation)
    if plain not in MIXES:
        return None
    option = "--like" if quantisation.endswith(f"-{BEST.upper()}") else "--type"
    return f"organ quantize {model} {option} {plain}"


def request_for(model: str, text: str) -> QuantizationRequest:
    """Return the request for a size that a person typed: `4 GB`, `4.5 bits`, or `Q4_K_M` for the size of that mix.

    Raises BadInput for other texts.
    """
    tag = "".join(text.split()).upper()
    tag = f"{tag.removesuffix('S').removesuffix('BIT')}BPW" if tag.endswith(("BIT", "BITS")) else tag
    size = size_in_tag(tag)
    if size is not None and size[0] > 0:
        number, unit = size
        if unit == "bpw":
            return QuantizationRequest(model=model, bits=number)
        return QuantizationRequest(model=model, size_bytes=int(number * (10**9 if unit == "GB" else 10**6)))
    if size is None and split_quantisation(f"x-{tag}") == ("x", tag) and plain_quantisation(tag) == tag:
        return QuantizationRequest(model=model, like=tag)
    raise BadInput(f"{text[:40]!r} is not a size: write for example 4 GB, 4.5 bits or Q4_K_M")
