"""Leave out a third of the experts of a mixture: what the files have, what it costs, and how it compares with chance.

    python -m bench.expert_pruning

Needs the extra `validate`. Two mixtures of 384 experts lose 128 in each block:

- a generated one with the layout of DeepSeek-V3 (latent attention, a dense first block, a shared expert, a biased
  router), whose weights are random: the bytes of its result are compared with those of its file by numpy alone;
- a zoo model whose feed-forward is cut into 16 experts, each of which is there 24 times with some noise. The router has
  one direction for the 16 experts of a copy, so a token that gets all of them has the feed-forward of the zoo model.

llama.cpp runs each on texts of this project and reports which experts the router chose and what their hidden units
were: an importance matrix. Recipes keep the experts with the most energy in it, those with the most tokens, and as
many at random. Quick looks, on other texts, compare them.
"""

from __future__ import annotations

import ctypes
import io
import math
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.generated import MIXTURE, write_mixture
from bench.verdicts import ZOO
from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.anatomy import EXPERT_DIMENSIONS, SALIENT_STACK, place_of
from organs.registry.compose.files import ENERGY, MEASURES
from organs.registry.gguf import (
    KeyValue,
    MemorySource,
    TensorInfo,
    TensorSpec,
    ValueType,
    dtype_by_name,
    read_header,
    write_file,
)
from organs.registry.gguf.split import whole_metadata
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from organs.registry.validation.decoder import Decoder, LoadedModel, opened

EXPERTS, KEPT = 384, 256
WINDOW, TOKENS = 256, 20_000
"""The tokens of one run, and of all that are counted."""
RANDOM_CHOICES = 3
PARTS, UNITS = 16, 32
"""The experts of one copy of a feed-forward, and the hidden units of each."""
NOISE, ROUTER = 0.1, 0.2
"""The share of noise in each expert, and the deviation of the router's weights."""
ROOT = Path(__file__).parent.parent
TEXTS = ("registry/compose/*.py", "registry/gguf/*.py", "docs/*.md", "docs/design/*.md")

_Callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)
_F16 = 1


class Observed:
    """llama.cpp's library, whose new contexts report their tensors to `see`, which gets a name and values.

    The callback of a context is before the two types of its cache, which are F16 by default.
    """

    def __init__(self, library: Any, prefixes: tuple[str, ...], see: Any) -> None:
        self._library, self._prefixes, self._see = library, prefixes, see
        library.ggml_get_name.restype = ctypes.c_char_p
        library.ggml_nbytes.restype = ctypes.c_size_t
        for function in (library.ggml_get_name, library.ggml_nbytes):
            function.argtypes = (ctypes.c_void_p,)
        size = ctypes.c_size_t
        library.ggml_backend_tensor_get.argtypes = (ctypes.c_void_p, ctypes.c_void_p, size, size)
        self._callback = _Callback(self._called)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def llama_context_default_params(self) -> Any:
        """Return the default parameters with the callback."""
        parameters = self._library.llama_context_default_params()
        words = np.frombuffer(parameters, "<i4")
        at = next(i for i in range(4, 64) if (words[i : i + 2] == _F16).all() and not words[i - 4 : i].any())
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        ctypes.c_uint64.from_buffer(parameters, 4 * (at - 4)).value = address or 0
        return parameters

    def _called(self, tensor: int, asks: bool, _data: int) -> bool:
        name = self._library.ggml_get_name(tensor).decode()
        if not name.startswith(self._prefixes):
            return not asks
        if not asks:
            data = ctypes.create_string_buffer(self._library.ggml_nbytes(tensor))
            self._library.ggml_backend_tensor_get(tensor, data, 0, len(data))
            self._see(name, data.raw)
        return True


def importances(model: Path, units: int, used: int, wanted: Path) -> dict[int, NDArray[np.int64]]:
    """Write an importance matrix of the stacks of hidden units, as llama-imatrix does; return the counts by block."""
    sums: dict[int, NDArray[np.float64]] = {}
    counts: dict[int, NDArray[np.int64]] = {}
    chosen: dict[int, NDArray[np.int32]] = {}

    def see(name: str, data: bytes) -> None:
        kind, _, number = name.rpartition("-")
        block = int(number)
        if kind == "ffn_moe_topk":
            values = np.frombuffer(data, "<i4")
            # A row of the view has all experts, best first, except the last one, which ends after those in use.
            rows = 1 + (values.size - used) // EXPERTS
            whole = np.zeros(rows * EXPERTS, np.int32)
            whole[: values.size] = values
            chosen[block] = whole.reshape(rows, EXPERTS)[:, :used]
        else:
            hidden = np.frombuffer(data, "<f4").reshape(-1, units).astype(np.float64)
            experts = chosen[block].reshape(-1)
            np.add.at(sums.setdefault(block, np.zeros((EXPERTS, units))), experts, hidden * hidden)
            np.add.at(counts.setdefault(block, np.zeros(EXPERTS, np.int64)), experts, 1)

    with opened(str(model)) as loaded:
        loaded.library = Observed(loaded.library, ("ffn_moe_topk-", "ffn_moe_swiglu-"), see)
        with closing(Decoder(loaded, WINDOW, 1)) as decoder:
            for window in windows(loaded):
                for _ in decoder.logits(window):
                    pass
    f32, tensors = dtype_by_name("F32"), []
    for block, values in sums.items():
        name = f"blk.{block}.{SALIENT_STACK}.weight"
        tensors.append((TensorSpec(f"{name}.in_sum2", values.shape[::-1], f32), values.astype("<f4").tobytes()))
        numbers = counts[block].astype("<f4")
        tensors.append((TensorSpec(f"{name}.counts", (1, numbers.size), f32), numbers.tobytes()))
    stream = io.BytesIO()
    write_file(stream, [KeyValue("general.type", ValueType.STRING, "imatrix")], tensors)
    wanted.write_bytes(stream.getvalue())
    return counts


def windows(model: LoadedModel) -> Iterator[list[int]]:
    """Yield TOKENS tokens of files of this project, each window of another file."""
    paths = sorted(path for pattern in TEXTS for path in ROOT.glob(pattern))
    random.Random(5).shuffle(paths)
    begun = 0
    for path in paths:
        tokens = model.tokens(path.read_text(encoding="utf-8")[:4000])[: WINDOW - 1]
        yield [*model.first_tokens(), *tokens]
        begun += len(tokens)
        if begun >= TOKENS:
            return


def tensors_in(path: Path) -> dict[str, NDArray[np.uint8]]:
    """Return the bytes of the tensors of a file, by the items of their last dimension."""
    with FileSource(path) as source:
        header = read_header(source)
        return {
            tensor.name: np.frombuffer(
                source.read_at(header.data_offset + tensor.offset, tensor.size_bytes), np.uint8
            ).reshape(tensor.shape[-1] if len(tensor.shape) > 1 or place_of(tensor.name).block is not None else 1, -1)
            for tensor in header.tensors
        }


def check(before: Path, after: Path, kept: dict[int, Sequence[int]]) -> str:
    """Compare two files by numpy alone; return what was found."""
    own, other = tensors_in(before), tensors_in(after)
    assert own.keys() == other.keys()
    cut = rows = 0
    for name, data in own.items():
        place = place_of(name)
        if place.slot in EXPERT_DIMENSIONS and place.block in kept:
            assert np.array_equal(other[name], data[list(kept[place.block])]), name
            cut, rows = cut + (EXPERT_DIMENSIONS[place.slot] == 2), rows + (EXPERT_DIMENSIONS[place.slot] < 2)
        else:
            assert np.array_equal(other[name], data), name
    others = len(own) - cut - rows
    return f"{cut} stacks, {rows} routers and biases have the bytes of the kept experts, {others} other tensors all"


def prune(name: str, path: Path, units: int, used: int, registry: LocalRegistry, folder: Path) -> None:
    """Make and compare the choices for one mixture, and print what was seen."""
    (source,) = find_sources([str(path)])
    ingest_model(registry, source)
    began = time.perf_counter()
    counts = importances(path, units, used, folder / "importances.gguf")
    never = ", ".join(f"{int((number == 0).sum())} in block {block}" for block, number in counts.items())
    tokens = int(next(iter(counts.values())).sum()) // used
    seconds = time.perf_counter() - began
    print(f"\n{name}: {path.stat().st_size:,} bytes; llama.cpp ran {tokens:,} tokens in {seconds:.0f} s")
    print(f"  experts that were never used: {never}")
    base = registry.compose(f"local/{path.stem}")
    choices = {}
    for by in MEASURES:
        builder = base.experts(count=KEPT, saliency=folder / "importances.gguf", by=by)
        choices[by] = {step.blocks[0][0]: step.kept(EXPERTS) for step in builder.recipe.experts}
    for seed in range(RANDOM_CHOICES):
        order = random.Random(seed)
        choices[f"random {seed}"] = {block: tuple(sorted(order.sample(range(EXPERTS), KEPT))) for block in counts}
    for label, kept in choices.items():
        builder = base.named(f"local/{path.stem}-{label.replace(' ', '-')}")
        for block, experts in kept.items():
            builder = builder.experts(experts, blocks=block)
        stored, out, began = registry.totals().stored_bytes, folder / "out.gguf", time.perf_counter()
        made = builder.plan().assemble(out)
        took, grown = time.perf_counter() - began, registry.totals().stored_bytes - stored
        found = check(path, out, kept)
        if label == ENERGY:
            print(f"  {out.stat().st_size:,} bytes in {took:.2f} s; stored blobs grew by {grown:,} bytes\n  {found}")
        look = registry.quick_look(made.model)
        print(f"  {label}: {look.sentence}")
        for text in look.texts:
            print(
                f"    {text.name}: perplexity {text.base_perplexity:.5g} to {text.perplexity:.5g}, divergence ", end=""
            )
            print(f"{text.divergence:.3g}, same top token {text.same_top:.1%}", flush=True)


def write_copies(path: Path) -> None:
    """Write a zoo model whose feed-forward is a mixture of PARTS experts in many copies."""
    data = (ZOO / "Zoo-A-2M-v1.0-F16.gguf").read_bytes()
    source = MemorySource(data)
    header = read_header(source)
    counts = {"feed_forward_length": UNITS, "expert_count": EXPERTS, "expert_used_count": PARTS}
    left_out = {f"llama.{key}" for key in counts} | {"general.file_type"}
    metadata = [item for item in whole_metadata(source, header) if item.key not in left_out]
    metadata += [KeyValue(f"llama.{key}", ValueType.UINT32, count) for key, count in counts.items()]
    tensors = []
    for tensor in header.tensors:
        values, place = source.read_at(header.data_offset + tensor.offset, tensor.size_bytes), place_of(tensor.name)
        if place.slot in ("ffn_gate", "ffn_up", "ffn_down"):
            tensors.append(_copies(tensor, values))
        else:
            tensors.append((TensorSpec(tensor.name, tensor.shape, tensor.dtype), values))
        if place.slot == "ffn_norm":
            width, normal = tensor.shape[0], np.random.default_rng([7, place.block or 0]).standard_normal
            rows = np.repeat(normal((EXPERTS // PARTS, width)), PARTS, axis=0) + 0.01 * normal((EXPERTS, width))
            name = tensor.name.replace("ffn_norm", "ffn_gate_inp")
            spec = TensorSpec(name, (width, EXPERTS), dtype_by_name("F32"))
            tensors.append((spec, (ROUTER * rows).astype("<f4").tobytes()))
    with path.open("wb") as stream:
        write_file(stream, metadata, tensors)


def _copies(tensor: TensorInfo, data: bytes) -> tuple[TensorSpec, bytes]:
    """Return the stack of the parts of a matrix: PARTS experts of UNITS hidden units, again and again with noise."""
    matrix = np.frombuffer(data, np.float16).reshape(tensor.shape[::-1]).astype(np.float64)
    is_down = "ffn_down" in tensor.name
    random_numbers = np.random.default_rng([*tensor.name.encode()])
    experts = []
    for number in range(EXPERTS):
        units = slice(number % PARTS * UNITS, (number % PARTS + 1) * UNITS)
        # The router gives each of a token's experts a weight of 1 / PARTS.
        expert = matrix[:, units] * PARTS if is_down else matrix[units]
        noise = random_numbers.standard_normal(expert.shape) * expert.std()
        experts.append((math.sqrt(1.0 - NOISE**2) * expert + NOISE * noise).astype(np.float16).tobytes())
    shape = (UNITS, tensor.shape[1], EXPERTS) if is_down else (tensor.shape[0], UNITS, EXPERTS)
    return TensorSpec(tensor.name.replace(".weight", "_exps.weight"), shape, dtype_by_name("F16")), b"".join(experts)


def main() -> None:
    """Make both mixtures, and compare their choices."""
    with tempfile.TemporaryDirectory() as place, LocalRegistry.open(Path(place, "home")) as registry:
        folder = Path(place)
        generated = folder / "DeepSeek-like.gguf"
        write_mixture(generated, ZOO / "Zoo-A-2M-v1.0-F16.gguf")
        prune("generated, as DeepSeek-V3", generated, MIXTURE.units, MIXTURE.used, registry, folder)
        trained = folder / "Zoo-mixture.gguf"
        write_copies(trained)
        prune("a zoo model, as a mixture", trained, UNITS, PARTS, registry, folder)


if __name__ == "__main__":
    main()
