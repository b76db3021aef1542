"""Measure what grafting single experts costs.

    python -m bench.expert_grafts

Needs the extra `validate`. The base is the first block of a zoo model as a mixture of 384 experts. Experts of a donor
with random weights replace more and more of its experts, and llama.cpp measures the perplexity.
"""

from __future__ import annotations

import io
import math
import random
import tempfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

from bench.verdicts import ZOO
from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.gguf import (
    HeaderSource,
    KeyValue,
    MemorySource,
    TensorSpec,
    ValueType,
    dtype_by_name,
    read_header,
    write_file,
)
from organs.registry.gguf.split import whole_metadata
from organs.registry.local import LocalRegistry
from organs.registry.validation.comparison import ValidationBudget
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.run import run_chimera
from organs.registry.validation.texts import built_in_texts

EXPERTS, UNITS, WIDTH = 384, 32, 192
"""Each expert has 32 of the 512 hidden units of the zoo's feed-forward."""
USED = 16
"""The experts that a token uses."""
STACKS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
NOISE = 0.05
"""The share of noise in each expert, so that no two are equal."""
REPLACED = (4, 12, 24, 48, 96, 192, 288)
TEXTS = built_in_texts(("python", "documentation"))


def main() -> None:
    """Make the models, graft, validate, and print a table."""
    order = random.Random(3).sample(range(EXPERTS), EXPERTS)
    print("nats per token\nexperts  on Python, documentation (verdict)")
    with tempfile.TemporaryDirectory() as folder, LocalRegistry.open(Path(folder, "home")) as registry:
        for name, noise in (("Base", NOISE), ("Random", 1.0)):
            path = Path(folder, f"{name}.gguf")
            path.write_bytes(mixture(range(EXPERTS) if noise > NOISE else (), noise))
            (source,) = find_sources([str(path)])
            ingest_model(registry, source)
        for count in REPLACED:
            numbers = ",".join(map(str, sorted(order[:count])))
            graft = registry.compose("local/Base").graft("local/Random", type="organ", experts=numbers)
            model = graft.plan().accepting_all().register().model
            report = run_chimera(registry.catalog, registry.blobs, model, TEXTS, LlamaCpp(), ValidationBudget())
            losses = "  ".join(f"{math.log(text.ratio):.3f}" for text in report.texts if text.ratio is not None)
            print(f"{count:7}  {losses}  ({report.verdict})", flush=True)


def mixture(changed: Collection[int] = (), noise: float = NOISE) -> bytes:
    """Return a file with the first block of a zoo model as a mixture of experts.

    The experts `changed` have other noise, with this share: 1 for weights that are random.
    """
    data = (ZOO / "Zoo-A-2M-v1.0-F16.gguf").read_bytes()
    source = MemorySource(data)
    header = read_header(source)
    left_out = ("llama.block_count", "llama.feed_forward_length")
    front = HeaderSource(data[: header.end], len(data), "zoo")
    metadata = [item for item in whole_metadata(front, header) if item.key not in left_out]
    counts = {
        "llama.block_count": 1,
        "llama.feed_forward_length": UNITS,
        "llama.expert_count": EXPERTS,
        "llama.expert_used_count": USED,
    }
    metadata += [KeyValue(key, ValueType.UINT32, count) for key, count in counts.items()]
    tensors = {
        tensor.name: (
            TensorSpec(tensor.name, tensor.shape, tensor.dtype),
            source.read_at(header.data_offset + tensor.offset, tensor.size_bytes),
        )
        for tensor in header.tensors
        if not tensor.name.startswith(("blk.1.", "blk.2.", "blk.3."))
    }
    router = (0.1 * np.random.default_rng(3).standard_normal((EXPERTS, WIDTH))).astype(np.float32)
    router_spec = TensorSpec("blk.0.ffn_gate_inp.weight", (WIDTH, EXPERTS), dtype_by_name("F32"))
    dense = {slot: tensors.pop(f"blk.0.{slot.removesuffix('_exps')}.weight") for slot in STACKS}
    stacks = [_stack(slot, *dense[slot], changed, noise) for slot in STACKS]
    stream = io.BytesIO()
    write_file(stream, metadata, [*tensors.values(), (router_spec, router.tobytes()), *stacks])
    return stream.getvalue()


def _stack(
    slot: str, spec: TensorSpec, data: bytes, changed: Collection[int], noise: float
) -> tuple[TensorSpec, bytes]:
    """Return a stack whose experts are parts of a feed-forward matrix, mixed with noise of the same deviation."""
    matrix = np.frombuffer(data, np.float16).reshape(spec.shape[1], spec.shape[0]).astype(np.float64)
    experts = []
    for number in range(EXPERTS):
        units = slice(number % USED * UNITS, (number % USED + 1) * UNITS)
        expert = matrix[:, units] if slot == "ffn_down_exps" else matrix[units]
        share = noise if number in changed else NOISE
        random_values = np.random.default_rng([number, number in changed]).standard_normal(expert.shape)
        mixed = math.sqrt(1.0 - share * share) * expert + share * matrix.std() * random_values
        experts.append(mixed.astype(np.float16).tobytes())
    shape = (UNITS, WIDTH, EXPERTS) if slot == "ffn_down_exps" else (WIDTH, UNITS, EXPERTS)
    return TensorSpec(f"blk.0.{slot}.weight", shape, dtype_by_name("F16")), b"".join(experts)


if __name__ == "__main__":
    main()
