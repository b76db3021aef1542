"""A mixture of 384 experts: replaced experts are found, one is grafted alone, and llama.cpp runs the result."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from organs.ingest.files import FileSource
from organs.registry.gguf import HeaderSource, TensorSpec, read_header
from organs.registry.gguf.split import whole_metadata
from organs.registry.local import LocalRegistry
from organs.registry.validation.comparison import Budget
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.run import run_chimera, verdict_report
from organs.registry.validation.texts import built_in_texts
from tests.gguf_files import file_bytes, unsigned
from tests.small_models import ingest_file

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"
EXPERTS, UNITS = 384, 32
"""Each expert has 32 of the 512 hidden units of the zoo's feed-forward."""
STACKS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def mixture(changed: Collection[int] = ()) -> bytes:
    """Return the first block of a zoo model as a mixture of experts; `changed` experts have other noise added."""
    with FileSource(ZOO / "Zoo-A-2M-v1.0-F16.gguf") as source:
        header = read_header(source)
        front = HeaderSource(source.read_at(0, header.end), header.file_size_bytes, "zoo")
        metadata = [
            item
            for item in whole_metadata(front, header)
            if item.key not in ("llama.block_count", "llama.feed_forward_length")
        ]
        tensors = {
            tensor.name: (tensor, bytes(source.read_at(header.data_offset + tensor.offset, tensor.size_bytes)))
            for tensor in header.tensors
            if not tensor.name.startswith(("blk.1.", "blk.2.", "blk.3."))
        }
    tensors |= _stacks(tensors, changed)
    metadata += [unsigned("llama.block_count", 1), unsigned("llama.feed_forward_length", UNITS)]
    metadata += [unsigned("llama.expert_count", EXPERTS), unsigned("llama.expert_used_count", 16)]
    return file_bytes(metadata, [(TensorSpec(t.name, t.shape, t.dtype), data) for t, data in tensors.values()])


def _stacks(
    tensors: dict[str, tuple[TensorSpec, bytes]], changed: Collection[int]
) -> dict[str, tuple[TensorSpec, bytes]]:
    """Replace the feed-forward in `tensors`; return the router and the three stacks."""
    random = np.random.default_rng(3)
    router = (0.1 * random.standard_normal((EXPERTS, 192))).astype(np.float32)
    norm = tensors["blk.0.ffn_norm.weight"][0]
    made = {"router": (TensorSpec("blk.0.ffn_gate_inp.weight", (192, EXPERTS), norm.dtype), router.tobytes())}
    for slot in STACKS:
        spec, data = tensors.pop(f"blk.0.{slot.removesuffix('_exps')}.weight")
        matrix = np.frombuffer(data, np.float16).reshape(spec.shape[1], spec.shape[0])
        experts = []
        for number in range(EXPERTS):
            units = slice(number % 16 * UNITS, (number % 16 + 1) * UNITS)
            expert = matrix[:, units] if slot == "ffn_down_exps" else matrix[units]
            noise = 0.05 * np.random.default_rng([number, number in changed]).standard_normal(expert.shape)
            experts.append((expert.astype(np.float64) + noise * matrix.std()).astype(np.float16).tobytes())
        shape = (UNITS, 192, EXPERTS) if slot == "ffn_down_exps" else (192, UNITS, EXPERTS)
        name = f"blk.0.{slot}.weight"
        made[name] = (TensorSpec(name, shape, spec.dtype), b"".join(experts))
    return made


@pytest.mark.long
def test_two_of_384_experts_are_found_and_one_is_grafted_alone_and_runs(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    for name, changed in (("Base", ()), ("Edited", (5, 17))):
        (tmp_path / f"{name}.gguf").write_bytes(mixture(changed))
        ingest_file(registry, tmp_path / f"{name}.gguf")

    result = registry.compare("local/Base", "local/Edited")
    assert [stack.name for stack in result.stacks] == [f"blk.0.{slot}.weight" for slot in STACKS]
    assert [[expert.expert for expert in stack.changed] for stack in result.stacks] == [[5, 17]] * 3
    assert result.experts_sentence == "2 of 384 experts differ in each of 3 stacks: 5 and 17."

    plan = registry.compose("local/Base").graft("local/Edited", experts=17, type="organ").plan()
    assert plan.prediction.similarity is not None
    assert plan.prediction.similarity > 0.99
    made = plan.assemble(tmp_path / "made.gguf")
    assert hashlib.sha256((tmp_path / "made.gguf").read_bytes()).hexdigest() == made.sha256
    assert _data(tmp_path / "made.gguf") == _data_of(mixture((17,)), tmp_path / "expected.gguf")

    budget = Budget(tokens=2048)
    run = run_chimera(registry.catalog, registry.blobs, made.model, built_in_texts(("python",)), LlamaCpp(), budget)
    report = verdict_report(run)
    assert report.zeroed == tuple(f"blk.0.{slot}.weight[17]" for slot in STACKS)
    assert report.chimera.failure is None
    assert report.chimera.written
    assert report.texts[0].ratio == pytest.approx(1.0, abs=0.05), "one of 384 experts changes little"


def _data_of(data: bytes, path: Path) -> dict[str, bytes]:
    path.write_bytes(data)
    return _data(path)


def _data(path: Path) -> dict[str, bytes]:
    """Return the bytes of each tensor of a file."""
    with FileSource(path) as source:
        header = read_header(source)
        return {
            tensor.name: bytes(source.read_at(header.data_offset + tensor.offset, tensor.size_bytes))
            for tensor in header.tensors
        }
