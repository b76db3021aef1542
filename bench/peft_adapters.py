"""Compare PEFT adapters in torch with the same folders in llama.cpp, and train one from beginning to end.

    python -m bench.peft_adapters models    a minute: one small model of each architecture, with random adapters
    python -m bench.peft_adapters zoo       some minutes: train, push, compose and validate an adapter of the zoo

It needs torch and PEFT, which the program does not. Use an environment of its own:

    python -m venv /tmp/peft && /tmp/peft/bin/pip install -e '.[validate]' --group bench-peft

`models` saves models of transformers with random weights, writes them as GGUF files in F16, attaches adapters whose
factors are all random, and compares the logits of 200 tokens: of the base alone, with the adapter, and with the adapter
without the order of rows that llama models need. `zoo` trains an adapter of the zoo's base on Python's library, pushes
its folder to a server, composes a chimera there, and validates it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
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
from organs.ingest.peft import open_adapter
from organs.registry.gguf import read_header
from organs.registry.input_files import FileSource
from organs.registry.validation.decoder import Decoder, LoadedModel

TOKENS = 200
VOCABULARY = 512
BLOCKS = 6
"""The last of six blocks of gemma3 sees all tokens; the other five see a window."""
WIDTH, INNER, HEAD_WIDTH = 128, 320, 32
RANK, ALPHA = 8, 16
ZOO = Path(__file__).parent.parent / "examples" / "zoo" / "Zoo-A-2M-v1.0-F16.gguf"
ZOO_TRAINING_SECONDS = 240.0
BATCH, LENGTH, RATE = 8, 128, 1e-3
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
    """More settings of the adapter."""
    dtype: torch.dtype = torch.float32
    """The type in which the adapter is saved."""
    what: str = "all linear layers"


CASES = (
    Case("llama", "llama", 4, 4),
    Case("llama", "llama", 8, 2, what="all linear layers, grouped heads", dtype=torch.bfloat16),
    Case(
        "llama",
        "llama",
        4,
        2,
        adapter={
            "use_rslora": True,
            "lora_alpha": 6,
            "rank_pattern": {"k_proj": 4},
            "alpha_pattern": {"layers.1.self_attn.q_proj": 16},
        },
        what="rsLoRA, other ranks and alphas for some modules",
    ),
    Case(
        "llama",
        "llama",
        4,
        1,
        adapter={"target_modules": [*LINEAR, "embed_tokens", "lm_head"]},
        what="also embeddings and output",
    ),
    Case("mistral", "llama", 8, 4, {"head_dim": HEAD_WIDTH}, what="all linear layers, wide heads"),
    Case("qwen2", "qwen2", 4, 2, dtype=torch.float16),
    Case("qwen3", "qwen3", 8, 2, {"head_dim": HEAD_WIDTH}),
    Case("gemma", "gemma", 4, 1, {"head_dim": HEAD_WIDTH}),
    Case("gemma2", "gemma2", 4, 2, {"head_dim": HEAD_WIDTH, "query_pre_attn_scalar": HEAD_WIDTH}),
    Case("gemma3_text", "gemma3", 4, 2, {"head_dim": HEAD_WIDTH, "query_pre_attn_scalar": HEAD_WIDTH}),
)


class AdaptedDecoder(Decoder):
    """llama.cpp with a model, and with an adapter loaded as `--lora` loads it."""

    def __init__(self, model: Path, adapter: Path | None = None) -> None:
        self.model = LoadedModel(str(model))
        super().__init__(self.model, TOKENS + 56)
        self._adapter = None
        if adapter is None:
            return
        library = self._library
        library.llama_adapter_lora_init.restype = ctypes.c_void_p
        library.llama_adapter_lora_init.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
        self._adapter = ctypes.c_void_p(library.llama_adapter_lora_init(self.model.pointer, str(adapter).encode()))
        assert self._adapter, f"llama.cpp refuses {adapter}"
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
    parser.add_argument("--seconds", type=float, default=ZOO_TRAINING_SECONDS, help="how long to train")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    with ExitStack() as opened:
        folder = options.folder or Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="organ-bench-")))
        folder.mkdir(exist_ok=True)
        if options.part == "models":
            compare_models(folder)
        else:
            train_and_share(folder, options.seconds)


def compare_models(folder: Path) -> None:
    """Print a row of a table for each case."""
    print("| model | heads | adapter | products | base: mean, largest | adapted: mean, largest | same token | effect |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for number, case in enumerate(CASES):
        place = folder / f"{number}-{case.kind}"
        place.mkdir()
        print(compare(case, place, number), flush=True)


def compare(case: Case, folder: Path, seed: int) -> str:
    """Return the row of a case. Differences of logits are in percent of their standard deviation."""
    torch.manual_seed(seed)
    model = new_model(case)
    model.save_pretrained(folder / "base")
    write_base(case, model, folder / "base.gguf")
    tokens = np.random.default_rng(seed).integers(3, VOCABULARY, TOKENS).tolist()
    base = torch_logits(model, tokens)
    adapted = save_adapter(case, str(folder / "base"), folder / "adapter")
    wanted = torch_logits(adapted, tokens)
    write_adapter(folder / "adapter", folder / "adapter.gguf")
    result = llama_logits(folder / "base.gguf", tokens, folder / "adapter.gguf")
    base_error = difference(llama_logits(folder / "base.gguf", tokens), base)
    mean, largest = difference(result, wanted)
    same = (result.argmax(1) == wanted.argmax(1)).mean()
    effect = f"{difference(wanted, base)[0]:.0%}"
    products = largest_difference_of_products(case, adapted, folder / "adapter.gguf")
    if case.architecture == "llama":
        unpermute(folder / "adapter.gguf", case)
        unordered = llama_logits(folder / "base.gguf", tokens, folder / "adapter.gguf")
        effect += f" (unordered: error {difference(unordered, wanted)[0]:.0%})"
    return (
        f"| {case.kind} | {case.heads} / {case.kv_heads} | {case.what}, {str(case.dtype).removeprefix('torch.')} | "
        f"{products:.0e} | {base_error[0]:.2%}, {base_error[1]:.2%} | {mean:.2%}, {largest:.2%} | "
        f"{same:.1%} | {effect} |"
    )


def largest_difference_of_products(case: Case, adapted: Any, file: Path) -> float:
    """Return the largest difference between s * B @ A in PEFT and in the file, relative to the largest value."""
    reader = gguf.GGUFReader(file)
    alpha = reader.fields["adapter.lora.alpha"].contents()
    tensors = {tensor.name: tensor.data.astype(np.float64) for tensor in reader.tensors}
    (number,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == case.architecture)
    names = gguf.get_tensor_name_map(number, BLOCKS)
    largest = 0.0
    for name, module in adapted.base_model.model.named_modules():
        if not hasattr(module, "get_delta_weight"):
            continue
        wanted = module.get_delta_weight("default").detach().double().numpy()
        heads = {"q_proj": case.heads, "k_proj": case.kv_heads}.get(name.rpartition(".")[2])
        if case.architecture == "llama" and heads:
            wanted = wanted[row_order(len(wanted), heads)]
        own = names.get_name(name)
        first, second = (tensors.pop(f"{own}.weight.lora_{half}") for half in "ab")
        product = (first @ second.T if own == "token_embd" else second @ first) * alpha / second.shape[1]
        largest = max(largest, float(np.abs(product - wanted).max() / np.abs(wanted).max()))
    assert not tensors, f"tensors that PEFT does not have: {list(tensors)}"
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


def save_adapter(case: Case, base: str, folder: Path) -> Any:
    """Save an adapter of random factors, and return the model that PEFT loads from its folder."""
    settings = {"r": RANK, "lora_alpha": ALPHA, "target_modules": LINEAR, "task_type": "CAUSAL_LM", **case.adapter}
    model = get_peft_model(_loaded(base), LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.08)
                parameter.data = parameter.data.to(case.dtype)
    model.save_pretrained(folder)
    return PeftModel.from_pretrained(_loaded(base), folder).float().eval()


def _loaded(base: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager", dtype=torch.float32)


def torch_logits(model: Any, tokens: Sequence[int]) -> Logits:
    """Return the logits of a model of transformers after each of `tokens`."""
    with torch.no_grad():
        return np.asarray(model(torch.tensor([tokens])).logits[0].float().numpy())


def llama_logits(model: Path, tokens: Sequence[int], adapter: Path | None = None) -> Logits:
    """Return the logits of llama.cpp after each of `tokens`."""
    with closing(AdaptedDecoder(model, adapter)) as decoder:
        return decoder.all_logits(tokens)


def write_adapter(folder: Path, target: Path) -> None:
    """Write the adapter of a PEFT folder as the registry reads it."""
    with ExitStack() as opened:
        file = open_adapter(opened, folder)
        target.write_bytes(file.read_at(0, file.size_bytes))


def row_order(rows: int, heads: int) -> list[int]:
    """Return the row of transformers at each row of a GGUF file: in each head, row 2i is i, and 2i + 1 is half + i."""
    width = rows // heads
    return [head * width + row // 2 + (row % 2) * (width // 2) for head in range(heads) for row in range(width)]


def write_base(case: Case, model: Any, target: Path) -> None:
    """Write a model of transformers as a GGUF file: matrices in float16, vectors in float32."""
    writer = gguf.GGUFWriter(target, case.architecture)
    add_parameters(writer, case, model.config)
    (number,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == case.architecture)
    names = gguf.get_tensor_name_map(number, BLOCKS)
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values = parameter.float().numpy()
        heads = {"q_proj": case.heads, "k_proj": case.kv_heads}.get(name.split(".")[-2])
        if case.architecture == "llama" and heads:
            values = values[row_order(len(values), heads)]
        if case.architecture.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert own is not None, name
        writer.add_tensor(own, values.astype(np.float16 if values.ndim == 2 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")


def unpermute(path: Path, case: Case) -> None:
    """Put the rows of the adapter's queries and keys into the order of transformers, which is wrong in a GGUF file."""
    data = bytearray(path.read_bytes())
    with FileSource(path) as file:
        header = read_header(file)
    for tensor in header.tensors:
        heads = {"attn_q": case.heads, "attn_k": case.kv_heads}.get(tensor.name.split(".")[2])
        if heads and tensor.name.endswith("lora_b"):
            begin = header.data_offset + tensor.offset
            stored = np.float16 if tensor.dtype.name == "F16" else np.float32
            rows = np.frombuffer(data[begin : begin + tensor.size_bytes], stored).reshape(tensor.shape[::-1])
            order = np.argsort(row_order(len(rows), heads))
            data[begin : begin + tensor.size_bytes] = rows[order].tobytes()
    path.write_bytes(data)


def train_and_share(folder: Path, seconds: float) -> None:
    """Train an adapter of the zoo's base, push its folder, compose a chimera, validate it, and print all steps."""
    base, adapter = folder / "Zoo-A", folder / "Zoo-A-Library-LoRA"
    model = zoo_model()
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


def zoo_model() -> Any:
    """Return the zoo's base as a model of transformers, with the rows of queries and keys in its order."""
    reader = gguf.GGUFReader(ZOO)
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
