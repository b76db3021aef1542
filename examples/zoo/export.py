"""Export trained weights to GGUF files by the project's own writer, with complete metadata."""

import json
from pathlib import Path

import plan
import torch
from network import NORM_EPSILON, ROPE_BASE
from torch import Tensor

from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_name, write_file
from organs.registry.gguf.quants import quantize

PUBLISHER = "organ registry"
LICENSE = "apache-2.0"
FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7, "BF16": 32}
QUANTIZATION_VERSION = 2
TOTAL_LIMIT_BYTES = 24_000_000
NORMAL_TOKEN, CONTROL_TOKEN = 1, 3
START_ID, END_ID = 0, 1


def export_all(family: plan.Family, work: Path, folder: Path) -> None:
    """Write every file of the family whose weights are in the cache folder `work`; check the size of the zoo."""
    folder.mkdir(parents=True, exist_ok=True)
    for shipped in family.shipped:
        weights = work / f"{shipped.run}-{shipped.step}.pt"
        if weights.exists():
            size_bytes = export(shipped, torch.load(weights), work / "tokenizer.json", folder)
            print(f"{shipped.file_name}: {size_bytes:,} bytes")
    total_bytes = sum(path.stat().st_size for path in folder.glob("*.gguf"))
    print(f"together {total_bytes:,} bytes")
    assert family is not plan.ZOO or total_bytes <= TOTAL_LIMIT_BYTES, "the zoo has outgrown its limit"


def export(shipped: plan.Shipped, weights: dict[str, Tensor], tokenizer: Path, folder: Path) -> int:
    """Write one file; return its size in bytes."""
    run = plan.run_named(shipped.run)
    if shipped.merged:
        weights = _merged(run, weights)
    if run.adapter is not None and not shipped.merged:
        metadata = [*_general(shipped, run, "adapter"), *_adapter(run.adapter.alpha)]
        tensors = [_tensor(_adapter_name(name), values, "F32") for name, values in weights.items() if "lora" in name]
    else:
        metadata = [*_general(shipped, run, "model"), *_dimensions(run), *_tokenizer(tokenizer)]
        tensors = [_tensor(_file_name(name), values, shipped.encoding) for name, values in _in_order(weights).items()]
    with (folder / shipped.file_name).open("wb") as stream:
        return write_file(stream, metadata, tensors)


def _merged(run: plan.Run, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights without the adapter, with its product added to each matrix that has one."""
    assert run.adapter is not None
    scale = run.adapter.alpha / run.adapter.rank
    merged = {name: values for name, values in weights.items() if "lora" not in name}
    for name in merged:
        if f"{name}.lora_b" in weights:
            merged[name] = merged[name] + scale * weights[f"{name}.lora_b"] @ weights[f"{name}.lora_a"]
    return merged


def _general(shipped: plan.Shipped, run: plan.Run, kind: str) -> list[KeyValue]:
    entries = [
        _text("general.architecture", run.shape.architecture),
        _text("general.type", kind),
        _text("general.name", shipped.title),
        _text("general.author", PUBLISHER),
        _text("general.version", shipped.version),
        _text("general.organization", PUBLISHER),
        _text("general.basename", shipped.base_name),
        _text("general.description", shipped.description),
        _text("general.size_label", shipped.size_label),
        _text("general.license", LICENSE),
        _texts("general.tags", ["zoo", *shipped.tags]),
        _texts("general.languages", ["en"]),
    ]
    if shipped.finetune:
        entries.append(_text("general.finetune", shipped.finetune))
    if shipped.parent:
        title, version = shipped.parent
        entries += [
            _number("general.base_model.count", 1),
            _text("general.base_model.0.name", title),
            _text("general.base_model.0.version", version),
            _text("general.base_model.0.organization", PUBLISHER),
        ]
    entries.append(_number("general.file_type", FILE_TYPES[shipped.encoding]))
    if shipped.encoding == "Q8_0":
        entries.append(_text("general.quantized_by", PUBLISHER))
        entries.append(_number("general.quantization_version", QUANTIZATION_VERSION))
    return entries


def _adapter(alpha: float) -> list[KeyValue]:
    return [_text("adapter.type", "lora"), KeyValue("adapter.lora.alpha", ValueType.FLOAT32, alpha)]


def _dimensions(run: plan.Run) -> list[KeyValue]:
    shape, prefix = run.shape, run.shape.architecture
    return [
        _number(f"{prefix}.context_length", shape.context),
        _number(f"{prefix}.embedding_length", shape.width),
        _number(f"{prefix}.block_count", shape.blocks),
        _number(f"{prefix}.feed_forward_length", shape.feed_forward),
        _number(f"{prefix}.attention.head_count", shape.heads),
        _number(f"{prefix}.attention.head_count_kv", shape.kv_heads),
        KeyValue(f"{prefix}.attention.layer_norm_rms_epsilon", ValueType.FLOAT32, NORM_EPSILON),
        KeyValue(f"{prefix}.rope.freq_base", ValueType.FLOAT32, ROPE_BASE),
        _number(f"{prefix}.rope.dimension_count", shape.head_width),
        _number(f"{prefix}.vocab_size", shape.vocabulary),
    ]


def _tokenizer(path: Path) -> list[KeyValue]:
    model = json.loads(path.read_text())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = [CONTROL_TOKEN if index in (START_ID, END_ID) else NORMAL_TOKEN for index in range(len(tokens))]
    return [
        _text("tokenizer.ggml.model", "gpt2"),
        _text("tokenizer.ggml.pre", "gpt-2"),
        _texts("tokenizer.ggml.tokens", tokens),
        KeyValue("tokenizer.ggml.token_type", ValueType.ARRAY, kinds, element_type=ValueType.INT32),
        _texts("tokenizer.ggml.merges", [" ".join(pair) for pair in model["merges"]]),
        _number("tokenizer.ggml.bos_token_id", START_ID),
        _number("tokenizer.ggml.eos_token_id", END_ID),
        KeyValue("tokenizer.ggml.add_bos_token", ValueType.BOOL, True),
        KeyValue("tokenizer.ggml.add_eos_token", ValueType.BOOL, False),
    ]


def _in_order(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors in order: embedding, output norm, output, then block after block, each norm before its
    matrices.
    """
    slots = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")

    def place(name: str) -> tuple[int, int]:
        if not name.startswith("blk."):
            return (-1, ("token_embd", "output_norm", "output").index(name))
        _, block, slot, *_ = name.split(".")
        return (int(block), slots.index(slot))

    return {name: weights[name] for name in sorted(weights, key=place)}


def _file_name(name: str) -> str:
    """Return the name of a tensor in the file: `NAME.weight`; a bias has its own ending."""
    return name if name.endswith(".bias") else f"{name}.weight"


def _adapter_name(name: str) -> str:
    """`blk.0.attn_q.lora_a` -> `blk.0.attn_q.weight.lora_a`, as llama.cpp wants it."""
    base, _, side = name.rpartition(".")
    return f"{base}.weight.{side}"


def _tensor(name: str, values: Tensor, encoding: str) -> tuple[TensorSpec, bytes]:
    """Return the tensor to write. Vectors (norms) stay F32, as in every file of llama.cpp.

    In a BF16 file they have the values of BF16, because the model that such a file is made from is BF16 as a whole.
    """
    dtype = dtype_by_name(encoding if values.ndim > 1 else "F32")
    if encoding == "BF16":
        values = values.bfloat16()
    data = quantize(values.float().flatten().numpy(), dtype)
    return TensorSpec(name, tuple(reversed(values.shape)), dtype), data


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key, ValueType.STRING, value)


def _texts(key: str, values: list[str]) -> KeyValue:
    return KeyValue(key, ValueType.ARRAY, values, element_type=ValueType.STRING)


def _number(key: str, value: int) -> KeyValue:
    return KeyValue(key, ValueType.UINT32, value)
