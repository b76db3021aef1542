"""Parents from GGUF files: those of the zoo, and synthetic ones with any header and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from organs.registry.anatomy import OrganType, place_of
from organs.registry.compose.parents import (
    Parent,
    Part,
    Replacement,
)
from organs.registry.digest import digest_of
from organs.registry.gguf import KeyValue, MemorySource, TensorSpec, ValueType, dtype_by_name, read_header
from organs.registry.gguf.quants import can_quantize, quantize
from organs.registry.gguf.tokenizer import tokenizer_reasons
from organs.registry.measure import measure
from tests.gguf_files import file_bytes, text, unsigned
from tests.small_models import Tensors, token_array

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"
A, CODE, B, C, LORA = (
    f"Zoo-{name}.gguf"
    for name in ("A-2M-v1.0-F16", "A-2M-Code-v1.0-F16", "B-2M-v1.0-Q8_0", "C-1M-v1.0-Q8_0", "A-2M-Code-LoRA-v1.0-F32")
)

WIDTH = 64
VOCABULARY = 96
HeaderValue = str | int | float | bool | Sequence[int] | None


@cache
def zoo(name: str) -> Parent:
    """Return a model of the zoo, read and measured once."""
    return parent_of(ZOO / name)


def parent_of(path: Path) -> Parent:
    """Return the parent of a GGUF file; its label is the stem of the file."""
    return parent_from(path.read_bytes(), path.stem)


def parent_from(data: bytes, label: str) -> Parent:
    """Return the parent of the bytes of a GGUF file, measured as by an ingest."""
    source = MemorySource(data, label)
    header = read_header(source)
    parts = []
    for tensor in header.tensors:
        plain = source.read_at(header.data_offset + tensor.offset, tensor.size_bytes)
        measurement = measure(lambda at, size, plain=plain: plain[at : at + size], tensor.shape, tensor.dtype)
        place, digest = place_of(tensor.name), digest_of(plain)
        parts.append(
            Part(
                *(tensor.name, place, tensor.dtype, tensor.shape, digest),
                *(
                    measurement.theta,
                    measurement.spectral_signal,
                    measurement.fingerprint,
                    measurement.mean,
                    measurement.standard_deviation,
                ),
            )
        )
    unassemblable = tuple(tokenizer_reasons(source, header))
    return Parent(label, header, source, digest_of(data[: header.end]), tuple(parts), unassemblable)


def synthetic_parent(
    label: str = "Base", *, tensors: Tensors | None = None, tokens: bool = True, **said: HeaderValue
) -> Parent:
    """Return a little Llama whose header has the usual entries and `said`; None removes a key.

    Keywords are keys below `llama.` with two underscores for a dot: `attention__head_count=8`. Keywords that begin with
    `general__`, `tokenizer__` or `adapter__` are complete keys.
    """
    keys: dict[str, HeaderValue] = {
        "general.architecture": "llama",
        "general.license": "apache-2.0",
        **_hyperparameters(),
    }
    for name, value in said.items():
        key = name.replace("__", ".")
        keys[key if key.startswith(("general.", "tokenizer.", "adapter.")) else f"llama.{key}"] = value
    entries = [_entry(key, value) for key, value in keys.items() if value is not None]
    if tokens:
        entries.append(token_array([b"token %d" % number for number in range(VOCABULARY)]))
    return parent_from(file_bytes(entries, model_tensors() if tensors is None else tensors), label)


def model_tensors(
    seed: int = 0,
    *,
    blocks: int = 2,
    width: int = WIDTH,
    dtypes: Mapping[str, str] | None = None,
    more: Iterable[tuple[str, tuple[int, ...]]] = (),
    without: Iterable[str] = (),
) -> Tensors:
    """Return Gaussian tensors of a little Llama: matrices in F16 and vectors in F32, except for `dtypes` by name."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (width, VOCABULARY), "output_norm.weight": (width,)}
    for block in range(blocks):
        square, wide = (width, width), (width, 2 * width)
        vectors = dict.fromkeys(("attn_norm", "ffn_norm"), (width,))
        matrices = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), square)
        organs = {"ffn_gate": wide, "ffn_up": wide, "ffn_down": (2 * width, width)}
        for name, shape in (vectors | matrices | organs).items():
            shapes[f"blk.{block}.{name}.weight"] = shape
    shapes.update(more)
    left = set(without)
    return [_tensor(name, shape, seed, dtypes or {}) for name, shape in shapes.items() if name not in left]


def replacements_from(
    base: Parent, donor: Parent, *types: OrganType, slots: Iterable[str] = (), blocks: Iterable[int] = ()
) -> list[Replacement]:
    """Return all organs of the donor for places of these types, slots (then `by_slot`) and blocks in the base."""
    named, within = set(slots), set(blocks)
    return [
        Replacement(part, donor.by_slot[part.slot], donor, by_slot=bool(named))
        for part in base.parts
        if (not types or part.place.type in types) and (not named or part.place.slot in named)
        if (not within or part.place.block in within) and part.slot in donor.by_slot
    ]


def _hyperparameters() -> dict[str, HeaderValue]:
    return {
        "llama.block_count": 2,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": 2 * WIDTH,
        "llama.context_length": 256,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10_000.0,
        "llama.rope.dimension_count": 16,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
    }


def _entry(key: str, value: HeaderValue) -> KeyValue:
    if isinstance(value, str):
        return text(key, value)
    if isinstance(value, bool):
        return KeyValue(key, ValueType.BOOL, value)
    if isinstance(value, int):
        return unsigned(key, value)
    if isinstance(value, float):
        return KeyValue(key, ValueType.FLOAT32, value)
    assert value is not None
    return KeyValue(key, ValueType.ARRAY, value, ValueType.UINT32)


def _tensor(name: str, shape: tuple[int, ...], seed: int, dtypes: Mapping[str, str]) -> tuple[TensorSpec, bytes]:
    kind = dtype_by_name(dtypes.get(name, "F16" if len(shape) > 1 else "F32"))
    spec = TensorSpec(name, shape, kind)
    values = 0.05 * np.random.default_rng([seed, *name.encode()]).standard_normal(spec.elements)
    if kind.name == "F64":
        return spec, values.tobytes()
    return spec, bytes(quantize(values.astype(np.float32), kind)) if can_quantize(kind) else bytes(spec.size_bytes)
