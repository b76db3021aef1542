"""Compare adapters that PEFT and mlx-lm merge with what the registry makes of their folders, and train one.

    python -m bench.peft_adapters models    some minutes: small models of each architecture, with random adapters
    python -m bench.peft_adapters models --base FILE.gguf    the same for a llama model in F16
    python -m bench.peft_adapters zoo       some minutes: train, push, compose and validate an adapter of the zoo

It needs torch, PEFT and mlx-lm, which the program does not. Use an environment of its own:

    python -m venv /tmp/peft && /tmp/peft/bin/pip install -e '.[validate]' --group bench-peft

`models` saves models of transformers with random weights, writes them as GGUF files in F16, and attaches adapters with
random values. A recipe merges the folder of each adapter. The change of each tensor is compared with that by PEFT or
mlx-lm, and the logits of 200 tokens in llama.cpp with those in torch: of the base alone, of the merged file, and of the
base with the adapter loaded. `zoo` trains an adapter of the zoo's base on Python's library, pushes
its folder to a server, composes a chimera there, and validates it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, get_peft_model

from bench.load import served
from organs.ingest.adapted_base import AdaptedBase, base_in
from organs.ingest.add import add_model
from organs.ingest.peft import open_adapter
from organs.registry import open_registry
from organs.registry.validation.decoder import Decoder, LoadedModel, ModelRefused

TOKENS = 200
VOCABULARY = 512
BLOCKS = 6
"""The last of six blocks of gemma3 sees all tokens; the other five see a window."""
WIDTH, INNER, HEAD_WIDTH = 128, 320, 32
EXPERTS = 8
RANK, ALPHA = 8, 16
ZOO = Path(__file__).parent.parent / "examples" / "zoo" / "Zoo-A-2M-v1.0-F16.gguf"
ZOO_TRAINING_SECONDS = 240.0
BATCH, LENGTH, RATE = 8, 128, 1e-3
PERMUTED = ("llama", "granite", "granitemoe", "mistral3", "smollm3")
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Case:
    """A model with an adapter."""

    kind: str
    """`model_type` of transformers."""
    architecture: str
    heads: int
    kv_heads: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """More settings of the model."""
    adapter: Mapping[str, Any] = field(default_factory=dict)
    """More settings of the adapter; with `fine_tune_type`, it is one of MLX."""
    dtype: torch.dtype = torch.float32
    """The type in which the adapter is saved."""
    what: str = "all linear layers"
    scale: float = 1.0
    """The scale with which the adapter is merged."""


DENSE = {"target_modules": LINEAR}
MOE = {"num_experts_per_tok": 2, "norm_topk_prob": True, "num_experts": EXPERTS, "moe_intermediate_size": 96}
STACKS = {"target_modules": [*LINEAR[:4]], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2, "logits_scaling": 2.0}
NORMS = ["input_layernorm", "post_attention_layernorm", "norm"]
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.0}
CASES = (
    Case("llama", "llama", 4, 4),
    Case("llama", "llama", 8, 2, what="grouped heads", dtype=torch.bfloat16),
    Case(
        "llama",
        "llama",
        4,
        2,
        adapter={
            "use_rslora": True,
            "lora_alpha": 6,
            "rank_pattern": {"k_proj": 4, r".*\.layers\.[0-2]\..*up_proj": 3},
            "alpha_pattern": {"layers.1.self_attn.q_proj": 16, r"layers\.(0|2|5)\.mlp\.\w+_proj": 9},
        },
        what="rsLoRA, other ranks and alphas by expressions",
    ),
    Case(
        "llama",
        "llama",
        4,
        1,
        adapter={"target_modules": [*LINEAR, "embed_tokens", "lm_head"]},
        what="embeddings, output",
    ),
    Case("llama", "llama", 4, 2, adapter={"use_dora": True}, what="DoRA"),
    Case("llama", "llama", 4, 2, adapter={"use_dora": True}, what="DoRA, scale 0.5", scale=0.5),
    Case("qwen2", "qwen2", 4, 2, adapter={"use_dora": True, "use_rslora": True}, what="DoRA and rsLoRA"),
    Case(
        "llama", "llama", 4, 2, adapter={"modules_to_save": ["embed_tokens", "lm_head", *NORMS]}, what="whole modules"
    ),
    Case(
        "qwen2",
        "qwen2",
        4,
        2,
        adapter={"target_modules": LINEAR[4:], "modules_to_save": ["q_proj", "k_proj"]},
        what="whole queries and keys with biases",
    ),
    Case(
        "gemma2",
        "gemma2",
        4,
        2,
        {"head_dim": HEAD_WIDTH, "query_pre_attn_scalar": HEAD_WIDTH},
        {"modules_to_save": NORMS},
        what="whole norms",
    ),
    Case("llama", "llama", 4, 2, adapter={"alora_invocation_tokens": [5, 9, 7]}, what="activated LoRA"),
    Case("mistral", "llama", 8, 4, {"head_dim": HEAD_WIDTH}, what="wide heads"),
    Case("qwen2", "qwen2", 4, 2, dtype=torch.float16),
    Case("qwen3", "qwen3", 8, 2, {"head_dim": HEAD_WIDTH}),
    Case("gemma", "gemma", 4, 1, {"head_dim": HEAD_WIDTH}),
    Case("gemma2", "gemma2", 4, 2, {"head_dim": HEAD_WIDTH, "query_pre_attn_scalar": HEAD_WIDTH}),
    Case("gemma3_text", "gemma3", 4, 2, {"head_dim": HEAD_WIDTH, "query_pre_attn_scalar": HEAD_WIDTH}),
    Case("granite", "granite", 4, 2, GRANITE),
    Case("smollm3", "smollm3", 4, 2, {"pad_token_id": 0, "tie_word_embeddings": True}),
    Case(
        "ministral3",
        "mistral3",
        4,
        2,
        {
            "head_dim": HEAD_WIDTH,
            "rope_parameters": {**PLAIN_ROPE, "original_max_position_embeddings": 512},
        },
    ),
    Case("olmo2", "olmo2", 4, 2),
    Case(
        "phi3",
        "phi3",
        4,
        2,
        {"pad_token_id": 0},
        {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]},
    ),
    Case(
        "qwen3_moe", "qwen3moe", 8, 2, {"head_dim": HEAD_WIDTH, **MOE}, {"target_modules": LINEAR[:4]}, what="attention"
    ),
    Case("qwen3_moe", "qwen3moe", 8, 2, {"head_dim": HEAD_WIDTH, **MOE}, STACKS, what="attention and experts"),
    Case(
        "qwen3_moe",
        "qwen3moe",
        8,
        2,
        {"head_dim": HEAD_WIDTH, **MOE},
        {"target_modules": [], "target_parameters": ["mlp.experts.down_proj", "mlp.gate.weight"], "use_rslora": True},
        what="down of the experts, router",
    ),
    Case(
        "qwen2_moe",
        "qwen2moe",
        4,
        4,
        {**MOE, "shared_expert_intermediate_size": 160, "norm_topk_prob": False},
        {"target_modules": [*LINEAR, "shared_expert_gate"]},
        what="attention, shared expert",
    ),
    Case("mixtral", "llama", 4, 2, {"num_local_experts": EXPERTS}, STACKS, what="attention and experts"),
    Case(
        "granitemoe",
        "granitemoe",
        4,
        2,
        {**GRANITE, "num_local_experts": EXPERTS, "num_experts_per_tok": 2},
        {"target_modules": LINEAR[:4], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
        what="attention and experts",
    ),
    Case(
        "gpt_oss",
        "gpt-oss",
        4,
        2,
        {"head_dim": HEAD_WIDTH, "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "rope_parameters": PLAIN_ROPE},
        STACKS,
        what="attention and experts",
    ),
    Case("llama", "llama", 4, 2, adapter={"fine_tune_type": "lora"}, what="MLX"),
    Case("llama", "llama", 4, 2, adapter={"fine_tune_type": "dora"}, what="MLX, DoRA"),
    Case(
        "qwen3_moe",
        "qwen3moe",
        8,
        2,
        {"head_dim": HEAD_WIDTH, **MOE},
        {"fine_tune_type": "lora"},
        what="MLX, attention, router and experts",
    ),
)


class AdaptedDecoder(Decoder):
    """llama.cpp with a model, and with an adapter loaded as `--lora` loads it."""

    def __init__(self, model: Path, adapter: Path | None = None) -> None:
        self.model = LoadedModel(str(model))
        super().__init__(self.model, TOKENS + 56)
        self._adapter, self.invocation_tokens = None, 0
        if adapter is None:
            return
        library = self._library
        library.llama_adapter_lora_init.restype = ctypes.c_void_p
        library.llama_adapter_lora_init.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
        self._adapter = ctypes.c_void_p(library.llama_adapter_lora_init(self.model.pointer, str(adapter).encode()))
        if not self._adapter.value:
            raise ModelRefused(f"llama.cpp does not load {adapter}")
        library.llama_adapter_get_alora_n_invocation_tokens.restype = ctypes.c_uint64
        library.llama_adapter_get_alora_n_invocation_tokens.argtypes = (ctypes.c_void_p,)
        self.invocation_tokens = int(library.llama_adapter_get_alora_n_invocation_tokens(self._adapter))
        adapters, scales = (ctypes.c_void_p * 1)(self._adapter), (ctypes.c_float * 1)(1.0)
        library.llama_set_adapters_lora.argtypes = (
            *(ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
            *(ctypes.c_size_t, ctypes.POINTER(ctypes.c_float)),
        )
        assert library.llama_set_adapters_lora(self._context, adapters, 1, scales) == 0

    def close(self) -> None:
        """Free the context and the model."""
        super().close()
        self.model.close()

    def all_logits(self, tokens: Sequence[int]) -> Logits:
        """Return the logits after each of `tokens`."""
        return np.concatenate([rows.copy() for rows in self.logits([*tokens, 0])])


def main() -> None:
    """Run the requested part, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("models", "zoo"))
    parser.add_argument("--folder", type=Path, help="where to keep the files; by default a temporary folder")
    parser.add_argument("--base", type=Path, help="a llama model in F16: compare adapters of this model instead")
    parser.add_argument("--only", default="", help="only the cases with this text in their model or adapter")
    parser.add_argument("--seconds", type=float, default=ZOO_TRAINING_SECONDS, help="how long to train")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    with ExitStack() as opened:
        folder = options.folder or Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="organ-bench-")))
        folder.mkdir(exist_ok=True)
        if options.part == "models":
            compare_models(folder, options.only, options.base)
        else:
            train_and_share(folder, options.seconds)


def compare_models(folder: Path, only: str, base: Path | None) -> None:
    """Print a row of a table for each case."""
    print(
        "| model | heads | adapter | change of weights | base: mean, largest | merged | adapter | same token | effect |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|---:|")
    for number, case in enumerate(CASES if base is None else cases_of(base)):
        if only in f"{case.kind} {case.what}":
            place = folder / f"{number}-{case.kind}"
            place.mkdir()
            print(compare(case, place, number, base), flush=True)
            if base is not None:
                shutil.rmtree(place)


def cases_of(base: Path) -> list[Case]:
    """Return cases for a llama model in a GGUF file."""
    reader = gguf.GGUFReader(base)
    heads, kv_heads = (reader.fields[f"llama.attention.{key}"].contents() for key in ("head_count", "head_count_kv"))
    forms: dict[str, dict[str, Any]] = {
        "all linear layers": {},
        "rsLoRA, alphas by an expression": {"use_rslora": True, "alpha_pattern": {r"layers\.(1|2)\d\..*": 4}},
        "DoRA": {"use_dora": True},
        "whole norms": {"modules_to_save": NORMS},
        "whole feed-forward of a block": {"target_modules": LINEAR[:4], "modules_to_save": ["layers.3.mlp.up_proj"]},
        "MLX": {"fine_tune_type": "lora"},
        "MLX, DoRA": {"fine_tune_type": "dora"},
    }
    return [Case("llama", "llama", heads, kv_heads, adapter=adapter, what=what) for what, adapter in forms.items()]


def compare(case: Case, folder: Path, seed: int, file: Path | None) -> str:
    """Return the row of a case. Differences of logits are in percent of their standard deviation."""
    torch.manual_seed(seed)
    model = new_model(case) if file is None else model_of(file)
    model.save_pretrained(folder / "base")
    if file is None:
        write_base(case, model, folder / "base.gguf")
    else:
        (folder / "base.gguf").symlink_to(file.resolve())
    tokens = np.random.default_rng(seed).integers(10, VOCABULARY, TOKENS).tolist()
    base = torch_logits(model, tokens)
    merged = merged_model(case, str(folder / "base"), folder / "adapter")
    wanted = torch_logits(merged, tokens)
    base_error = difference(llama_logits(folder / "base.gguf", tokens), base)
    write_adapter(folder / "adapter", folder / "adapter.gguf", base_in(folder / "base.gguf"))
    changes = "refused"
    if "alora_invocation_tokens" not in case.adapter:
        merge(case, folder)
        changes = f"{largest_difference_of_changes(case, folder, merged):.0e}"
    cells = []
    same = 0.0
    for name, adapter in (("merged.gguf", None), ("base.gguf", folder / "adapter.gguf")):
        if not (folder / name).exists() or (adapter and case.scale != 1.0):
            cells.append("-")
            continue
        try:
            invocation = len(case.adapter.get("alora_invocation_tokens", ())) if adapter else 0
            result = llama_logits(folder / name, tokens, adapter, invocation)
        except ModelRefused:
            cells.append("refused")
            continue
        mean, largest = difference(result, wanted)
        same = float((result.argmax(1) == wanted.argmax(1)).mean())
        cells.append(f"{mean:.2%}, {largest:.2%}")
    effect = f"{difference(wanted, base)[0]:.0%}"
    return (
        f"| {case.kind} | {case.heads} / {case.kv_heads} | {case.what}, {str(case.dtype).removeprefix('torch.')} | "
        f"{changes} | {base_error[0]:.2%}, {base_error[1]:.2%} | {' | '.join(cells)} | {same:.1%} | {effect} |"
    )


def merge(case: Case, folder: Path) -> None:
    """Register the base and the adapter's folder, and write the chimera in F32 as `merged.gguf`."""
    with open_registry(folder / "home") as registry:
        add_model(registry, folder / "base.gguf", name="local/base")
        add_model(registry, folder / "adapter", name="local/adapter", base=str(folder / "base.gguf"))
        composition = registry.compose("base").adapter("adapter", case.scale).encode("F32")
        plan = composition.accept("adapter-base-differs").named("bench/merged").plan()
        plan.assemble(folder / "merged.gguf")


def largest_difference_of_changes(case: Case, folder: Path, merged: Any) -> float:
    """Return the largest norm of the difference of a change of a tensor from PEFT's, relative to that of PEFT's."""
    before, after = (
        {tensor.name: np.array(tensor.data, np.float64) for tensor in gguf.GGUFReader(folder / name).tensors}
        for name in ("base.gguf", "merged.gguf")
    )
    largest = 0.0
    for name, wanted in tensors_of(case, merged):
        change = wanted.astype(np.float64) - before[name]
        norm = np.linalg.norm(change)
        if norm < 1e-6 * np.linalg.norm(before[name]):
            assert np.array_equal(after[name], before[name]), name
            continue
        largest = max(largest, float(np.linalg.norm(after[name] - before[name] - change) / norm))
    assert 0.0 < largest < 1e-3, largest
    return largest


def difference(first: Logits, second: Logits) -> tuple[float, float]:
    """Return the mean and the largest absolute difference, as parts of the standard deviation of `second`."""
    distance = np.abs(first.astype(np.float64) - second) / second.std()
    return float(distance.mean()), float(distance.max())


def new_model(case: Case) -> Any:
    """Return a model with random weights that are representable in float16."""
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": case.heads,
        "num_key_value_heads": case.kv_heads,
        "max_position_embeddings": 512,
        "initializer_range": 0.08,
        **case.settings,
    }
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(case.kind, **settings), attn_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms and biases
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(parameter.half().float())
            assert torch.isfinite(parameter).all(), name
    return model.eval()


def merged_model(case: Case, base: str, folder: Path) -> Any:
    """Save an adapter of random values, and return the base into which PEFT merged it from its folder.

    An activated adapter is merged as if it were always active.
    """
    if "fine_tune_type" in case.adapter:
        return merged_by_mlx(case, base, folder)
    settings = {"r": RANK, "lora_alpha": ALPHA, "target_modules": LINEAR, "task_type": "CAUSAL_LM", **case.adapter}
    model = get_peft_model(_loaded(base), LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_magnitude" in name:
                parameter.copy_(parameter * (1.0 + 0.2 * torch.randn_like(parameter)))
            elif "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.08)
            elif "modules_to_save" in name:
                parameter.copy_(parameter + torch.randn_like(parameter) * 0.05)
            else:
                continue
            parameter.data = parameter.data.to(case.dtype)
    model.save_pretrained(folder)
    loaded = PeftModel.from_pretrained(_loaded(base), folder).float().eval()
    for module in loaded.modules():
        if hasattr(module, "scale_layer") and case.scale != 1.0:
            module.scale_layer(case.scale)
        if hasattr(module, "lora_variant"):
            module.lora_variant.pop("default", None) if "alora_invocation_tokens" in case.adapter else None
    return loaded.merge_and_unload().eval()


def merged_by_mlx(case: Case, base: str, folder: Path) -> Any:
    """Save an adapter of random values as mlx-lm does, and return the base with the weights that mlx-lm fuses."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm.utils import load_model

    kind, parameters = case.adapter["fine_tune_type"], {"rank": RANK, "scale": ALPHA / RANK, "dropout": 0.0}
    more = {"num_experts": EXPERTS, "rope_theta": 1e4} if case.kind == "qwen3_moe" else {}
    model, _ = load_model(Path(base), model_config=more)
    model.freeze()
    blocks = len(model.layers)
    linear_to_lora_layers(model, blocks, parameters, use_dora=kind == "dora")
    mx.random.seed(0)
    trained = {}
    for name, value in tree_flatten(model.trainable_parameters()):
        random = mx.random.normal(value.shape)
        trained[name] = value * (1.0 + 0.2 * random) if name.endswith(".m") else 0.08 * random
    model.load_weights(list(trained.items()), strict=False)
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), trained)
    config = {"fine_tune_type": kind, "lora_parameters": parameters, "num_layers": blocks, "model": base}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    merged = _loaded(base).eval()
    state = merged.state_dict()
    for name, module in model.named_modules():
        if not hasattr(module, "fuse"):
            continue
        values = torch.from_numpy(np.array(module.fuse().weight))
        if "switch_mlp" not in name:
            state[f"{name}.weight"].copy_(values)
            continue
        stack = state[
            name.replace("switch_mlp", "experts")
            .replace("gate_proj", "gate_up_proj")
            .replace(".up_proj", ".gate_up_proj")
        ]
        rows = {"gate_proj": slice(0, values.shape[1]), "up_proj": slice(values.shape[1], None)}
        stack[:, rows.get(name.rpartition(".")[2], slice(None))] = values
    return merged


def _loaded(base: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager", dtype=torch.float32)


def torch_logits(model: Any, tokens: Sequence[int]) -> Logits:
    """Return the logits of a model of transformers after each of `tokens`."""
    with torch.no_grad():
        return np.asarray(model(torch.tensor([tokens])).logits[0].float().numpy())


def llama_logits(model: Path, tokens: Sequence[int], adapter: Path | None = None, invocation: int = 0) -> Logits:
    """Return the logits of llama.cpp after each of `tokens`; the adapter has `invocation` tokens that activate it."""
    with closing(AdaptedDecoder(model, adapter)) as decoder:
        assert decoder.invocation_tokens == invocation
        return decoder.all_logits(tokens)


def write_adapter(folder: Path, target: Path, base: AdaptedBase | None = None) -> None:
    """Write the adapter of a PEFT folder as the registry reads it."""
    with ExitStack() as opened:
        file = open_adapter(opened, folder, base)
        target.write_bytes(file.read_at(0, file.size_bytes))


def row_order(rows: int, heads: int) -> list[int]:
    """Return the row of transformers at each row of a GGUF file: in each head, row 2i is i, and 2i + 1 is half + i."""
    width = rows // heads
    return [head * width + row // 2 + (row % 2) * (width // 2) for head in range(heads) for row in range(width)]


def write_base(case: Case, model: Any, target: Path) -> None:
    """Write a model of transformers as a GGUF file: matrices in float16, vectors in float32."""
    writer = gguf.GGUFWriter(target, case.architecture)
    add_parameters(writer, case, model.config)
    for name, values in tensors_of(case, model):
        is_matrix = values.ndim > 1 and "ffn_gate_inp" not in name and name.endswith(".weight")
        writer.add_tensor(name, values.astype(np.float16 if is_matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors_of(case: Case, model: Any) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the tensors of a model of transformers as they are in a GGUF file, in float32."""
    (number,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == case.architecture)
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values = parameter.float().numpy()
        heads = {"q_proj": case.heads, "k_proj": case.kv_heads}.get(name.split(".")[-2])
        if case.architecture in PERMUTED and heads:
            values = values[row_order(len(values), heads)]
        if case.architecture.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        name = name.replace("block_sparse_moe.router.", "mlp.gate.").replace("block_sparse_moe.", "mlp.")
        for piece, part in pieces_of(case, name, values):
            own = names.get_name(piece, (".weight", ".bias"))
            assert own is not None, piece
            yield own, part.reshape(-1) if own.endswith("ffn_gate_inp_shexp.weight") else part


def pieces_of(case: Case, name: str, values: NDArray[np.float32]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the parts of a parameter: gate and up of a stack are one parameter of transformers."""
    name = name.replace("_proj_bias", "_proj.bias")
    name = name if name.endswith((".weight", ".bias")) else f"{name}.weight"
    is_interleaved = case.architecture == "gpt-oss"
    if is_interleaved and ".experts." in name and name.endswith(".weight"):
        values = values.swapaxes(1, 2)
    if ".experts.gate_up_proj" not in name:
        yield name, values
        return
    rows = values.shape[1]
    for index, half in enumerate(("gate", "up")):
        chosen = slice(index, None, 2) if is_interleaved else slice(index * rows // 2, (index + 1) * rows // 2)
        yield name.replace("gate_up", half), values[:, chosen]


def add_parameters(writer: gguf.GGUFWriter, case: Case, config: Any) -> None:
    """Add the dimensions of a model, and a vocabulary without tokens."""
    head_width = getattr(config, "head_dim", None) or WIDTH // case.heads
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(case.heads)
    writer.add_head_count_kv(case.kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_rope_dimension_count(head_width)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if case.architecture in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if case.architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if case.architecture.startswith("granite"):
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", INNER))
    if case.architecture == "gpt-oss":
        writer.add_sliding_window(config.sliding_window)
    if case.architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")


def train_and_share(folder: Path, seconds: float) -> None:
    """Train an adapter of the zoo's base, push its folder, compose a chimera, validate it, and print all steps."""
    base, adapter = folder / "Zoo-A", folder / "Zoo-A-Library-LoRA"
    model = model_of(ZOO)
    model.save_pretrained(base)
    with closing(AdaptedDecoder(ZOO)) as decoder:
        tokens = [token for text in library_texts() for token in decoder.model.tokens(text)]
        check = tokens[:TOKENS]
        print(f"base, torch and llama.cpp: {_figures(decoder.all_logits(check), torch_logits(model, check))}")
    train(base, adapter, tokens, seconds)
    write_adapter(adapter, folder / "adapter.gguf")
    wanted = torch_logits(PeftModel.from_pretrained(_loaded(str(base)), adapter).eval(), check)
    print(f"adapted, torch and llama.cpp: {_figures(llama_logits(ZOO, check, folder / 'adapter.gguf'), wanted)}")
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"base: {ZOO.stem}\nname: local/library\nadapters:\n  - from: {adapter.name}\n")
    with _served(folder / "home") as organ:
        organ("push", str(ZOO))
        organ("push", str(adapter))
        organ("push", str(adapter))
        organ("compose", str(recipe))
        organ("validate", "local/library")


def _figures(first: Logits, second: Logits) -> str:
    mean, largest = difference(first, second)
    same = (first.argmax(1) == second.argmax(1)).mean()
    return f"mean {mean:.3%}, largest {largest:.2%} of the deviation, the same token at {same:.1%} of {len(first)}"


def model_of(file: Path) -> Any:
    """Return a llama model of a GGUF file as one of transformers, with the rows of queries and keys in its order."""
    reader = gguf.GGUFReader(file)
    fields = {key: item.contents() for key, item in reader.fields.items() if key.startswith("llama.")}
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    config = transformers.LlamaConfig(
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager", dtype=torch.float32)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors = {tensor.name: np.array(tensor.data, np.float32) for tensor in reader.tensors}
    for name, parameter in model.named_parameters():
        values = tensors[names.get_name(name, try_suffixes=(".weight",)) or ""]
        count = {"q_proj": heads, "k_proj": kv_heads}.get(name.split(".")[-2])
        if count:
            values = values[np.argsort(row_order(len(values), count))]
        parameter.data = torch.from_numpy(values.copy())
    return model.eval()


def library_texts() -> Iterator[str]:
    """Yield modules of Python's library, in the order of their names."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield path.read_text(encoding="utf-8", errors="replace")


def train(base: Path, adapter: Path, tokens: Sequence[int], seconds: float) -> None:
    """Train an adapter of all linear layers for `seconds` seconds on one thread, and save it."""
    torch.manual_seed(0)
    settings = {"r": RANK, "lora_alpha": ALPHA, "target_modules": LINEAR, "task_type": "CAUSAL_LM"}
    model = get_peft_model(_loaded(str(base)), LoraConfig(**settings))
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=RATE)
    stream, random = torch.tensor(tokens), np.random.default_rng(0)
    begun, losses = time.monotonic(), []
    while time.monotonic() - begun < seconds:
        starts = random.integers(TOKENS, len(stream) - LENGTH, BATCH)
        batch = torch.stack([stream[start : start + LENGTH] for start in starts])
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    few = max(1, len(losses) // 10)
    first, last = np.mean(losses[:few]), np.mean(losses[-few:])
    print(f"trained on {len(tokens):,} tokens: {len(losses)} steps, loss {first:.3f} to {last:.3f}")
    model.save_pretrained(adapter)


@contextmanager
def _served(home: Path) -> Iterator[Callable[..., None]]:
    """Run `organ serve` over the empty folder `home`; return a function that runs an `organ` command against it."""
    with served(home) as server:
        environment = {**os.environ, "ORGAN_REGISTRY": f"http://127.0.0.1:{server.port}", "COLUMNS": "200"}

        def organ(*arguments: str) -> None:
            print("$ organ " + " ".join(arguments), flush=True)
            subprocess.run([sys.executable, "-m", "organs.cli", *arguments], env=environment, check=False)

        yield organ


if __name__ == "__main__":
    main()
