"""Models made by changing bytes of the zoo, and runtimes with fixed answers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from organs.registry.anatomy import place_of
from organs.registry.entities.validation import VerdictReport
from organs.registry.gguf import (
    KeyValue,
    MemorySource,
    RawKeyValue,
    TensorSpec,
    ValueType,
    carry_over,
    dtype_by_name,
    read_header,
)
from organs.registry.gguf.quants import decode, quantize
from organs.registry.validation.comparison import CHANGED, GRAFTED, file_candidate, validate
from organs.registry.validation.weights import CHAT_TEMPLATE_KEY, Weights, grafted_organs, is_feed_forward
from tests.gguf_files import file_bytes, text, unsigned

ADD_BOS_KEY = "tokenizer.ggml.add_bos_token"
ZOO = Path(__file__).parents[2] / "examples" / "zoo"
A = ZOO / "Zoo-A-2M-v1.0-Q8_0.gguf"
A_F16 = ZOO / "Zoo-A-2M-v1.0-F16.gguf"
A_PROSE = ZOO / "Zoo-A-2M-Prose-v1.0-Q8_0.gguf"
B = ZOO / "Zoo-B-2M-v1.0-Q8_0.gguf"
LORA = ZOO / "Zoo-A-2M-Code-LoRA-v1.0-F32.gguf"


def feed_forward(path: Path, blocks: Iterable[int] | None = None) -> tuple[str, ...]:
    """Return the names of the feed-forward organs of some blocks or of all."""
    wanted = None if blocks is None else set(blocks)
    with Weights(path) as weights:
        return tuple(
            name
            for name in weights.spots
            if is_feed_forward(name) and (wanted is None or place_of(name).block in wanted)
        )


def graft(base: Path, donor: Path, names: Iterable[str], target: Path) -> Path:
    """Write `base` with the tensors `names` of `donor`, which have the same dtypes and shapes."""
    data = bytearray(base.read_bytes())
    with Weights(base) as ours, Weights(donor) as theirs:
        for name in names:
            here, there = ours.spots[name], theirs.spots[name]
            assert (here.info.dtype, here.info.shape) == (there.info.dtype, there.info.shape)
            data[here.offset : here.offset + here.info.size_bytes] = b"".join(map(bytes, there.chunks()))
    target.write_bytes(data)
    return target


def with_f64(model: Path, name: str, target: Path) -> Path:
    """Write `model` with the tensor `name` in F64, which llama.cpp cannot multiply."""
    metadata, tensors = _taken_apart(model)
    wide = dtype_by_name("F64")
    changed = [
        (TensorSpec(name, spec.shape, wide), quantize(decode(data, spec.dtype), wide))
        if spec.name == name
        else (spec, data)
        for spec, data in tensors
    ]
    target.write_bytes(file_bytes(metadata, changed))
    return target


def with_chat_template(model: Path, template: str, target: Path) -> Path:
    """Write `model`, which has no chat template, with one."""
    metadata, tensors = _taken_apart(model)
    target.write_bytes(file_bytes([*metadata, text(CHAT_TEMPLATE_KEY, template)], tensors))
    return target


def with_first_token(model: Path, target: Path, *, adds: bool | None) -> Path:
    """Write `model` so that its texts begin with a special token or not; with None, it does not say so."""
    metadata, tensors = _taken_apart(model)
    kept = [entry for entry in metadata if entry.key != ADD_BOS_KEY]
    stated = [] if adds is None else [KeyValue(ADD_BOS_KEY, ValueType.BOOL, adds)]
    target.write_bytes(file_bytes([*kept, *stated], tensors))
    return target


def with_experts(model: Path, target: Path, *, experts: int, used: int) -> Path:
    """Write `model` as a mixture: each feed-forward matrix as a stack of equal experts, of which a token uses some."""
    entries, tensors = _taken_apart(model)
    mixed, plain, random = [], dtype_by_name("F32"), np.random.default_rng(0)
    for spec, data in tensors:
        place = place_of(spec.name)
        if not is_feed_forward(spec.name):
            mixed.append((spec, data))
            continue
        stack = TensorSpec(f"blk.{place.block}.{place.slot}_exps.weight", (*spec.shape, experts), spec.dtype)
        mixed.append((stack, bytes(data) * experts))
        if place.slot == "ffn_up":
            router = TensorSpec(f"blk.{place.block}.ffn_gate_inp.weight", (spec.shape[0], experts), plain)
            mixed.append((router, random.standard_normal((experts, spec.shape[0])).astype("<f4").tobytes()))
    counts = [unsigned("llama.expert_count", experts), unsigned("llama.expert_used_count", used)]
    target.write_bytes(file_bytes([*entries, *counts], mixed))
    return target


def _taken_apart(model: Path) -> tuple[list[KeyValue | RawKeyValue], list[tuple[TensorSpec, bytes]]]:
    source = MemorySource(model.read_bytes())
    header = read_header(source)
    tensors = [
        (
            TensorSpec(info.name, info.shape, info.dtype),
            source.read_at(header.data_offset + info.offset, info.size_bytes),
        )
        for info in header.tensors
    ]
    return [carry_over(source, field) for field in header.fields], tensors


def script(folder: Path, body: str, arguments: str = "{model} {text} {tokens}") -> str:
    """Return a command template for a Python script that sets `model`, `text` and `tokens` and runs `body`."""
    path = folder / "runtime.py"
    path.write_text(f"import json, os, sys, time\nmodel, text, tokens = sys.argv[1:4]\n{body}\n")
    return f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(path))} {arguments}"


def validate_files(
    chimera: Path, base: Path, donors: Sequence[Path], grafted: Iterable[str] | None, *more: Any, **options: Any
) -> VerdictReport:
    """Validate models in files; with None for `grafted`, by the changed organs."""
    names = grafted_organs(chimera, base) if grafted is None else grafted
    act = CHANGED if grafted is None else GRAFTED
    others = [file_candidate(donor) for donor in donors]
    return validate(file_candidate(chimera), file_candidate(base), others, names, *more, act=act, **options)
