"""Merges beside mergekit: every method on float models, value by value; then time, processor time and memory of both.

    python -m venv /tmp/mk && /tmp/mk/bin/pip install -e . --group bench-mergekit
    /tmp/mk/bin/python -m bench.mergekit BASE.gguf DONOR.gguf DONOR.gguf DONOR.gguf [--dtype bfloat16] [--methods ties]

The models are GGUF files of one architecture in F16, BF16 or F32, such as those that `bench.real_family` makes. Their
values are given to mergekit as safetensors under the names of Hugging Face. mergekit computes in float32 and writes
F16 or BF16; here everything is computed in float64. A value that differs by more than one spacing of the type counts as
different. Both get the same random masks. Of equal differences from the base, which are many in a light fine-tune that
was rounded to F16, mergekit keeps arbitrary ones; `--unrounded` compares the methods without such ties. `--layers`
makes one model of the blocks of the first two, by passthrough and by slerp, from one configuration in both programs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.mergekit_cases import WITHOUT_BASE, mask_words
from organs.registry.anatomy import LLAMA_NAMES, place_of
from organs.registry.gguf import dtype_by_name, read_header
from organs.registry.gguf.quants import decode, quantize
from organs.registry.input_files import FileSource
from organs.registry.transform import blend
from organs.registry.transform.blend import METHODS, PARAMETERS, Operands, blended
from organs.registry.transform.values import Plain

GIVEN: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "linear": ({"weight": [0.5, 0.3, 0.2]}, {}),
    "slerp": ({}, {"t": 0.4}),
    "nuslerp": ({"weight": [0.6, 0.4]}, {}),
    "task_arithmetic": ({"weight": [0.8, 0.6, -0.3]}, {}),
    "ties": ({"weight": [0.6, 0.5, 0.4], "density": [0.5, 0.4, 0.3]}, {}),
    "dare_linear": ({"weight": [0.6, 0.5, 0.4], "density": [0.5, 0.4, 0.3]}, {}),
    "dare_ties": ({"weight": [0.6, 0.5, 0.4], "density": [0.5, 0.4, 0.3]}, {}),
    "della": ({"weight": [0.6, 0.5, 0.4], "density": [0.5, 0.4, 0.3], "epsilon": [0.1, 0.1, 0.1]}, {}),
    "della_linear": ({"weight": [0.6, 0.5, 0.4], "density": [0.5, 0.4, 0.3], "epsilon": [0.1, 0.1, 0.1]}, {}),
    "breadcrumbs": ({"weight": [0.6, 0.5, 0.4], "density": [0.5, 0.4, 0.3], "gamma": [0.02, 0.02, 0.02]}, {}),
    "breadcrumbs_ties": ({"weight": [0.6, 0.5, 0.4], "density": [0.5, 0.4, 0.3], "gamma": [0.02, 0.02, 0.02]}, {}),
    "model_stock": ({}, {}),
    "sce": ({}, {"select_topk": 0.5}),
    "karcher": ({}, {}),
    "arcee_fusion": ({}, {}),
}
DTYPES = {"float16": "F16", "bfloat16": "BF16"}
BITS = {"F16": 11, "BF16": 8}
"""The bits of a number that is written, the first one included."""


def tensors_of(path: Path, dtype: str, seed: int | None = None) -> dict[str, NDArray[np.float32]]:
    """Return the values of all tensors of a GGUF file, by their names in Hugging Face's models.

    They are rounded to the type of the output. With a seed, they get noise of one spacing of it, in float32.
    """
    kind = dtype_by_name(DTYPES[dtype])
    random = np.random.default_rng(seed)
    found = {}
    with FileSource(path) as source:
        header = read_header(source)
        for item in header.tensors:
            place = place_of(item.name)
            name = LLAMA_NAMES[place.slot].format(place.block)
            data = source.read_at(header.data_offset + item.offset, item.size_bytes)
            values = decode(quantize(decode(data, item.dtype), kind), kind).astype(np.float32)
            if seed is not None:
                spacing = np.ldexp(np.float32(1.0), np.frexp(values)[1] - BITS[kind.name])
                values += spacing * (random.random(values.size, np.float32) - np.float32(0.5))
            found[f"{name}.weight"] = values.reshape(tuple(reversed(item.shape)))
    return found


def configuration(path: Path) -> dict[str, Any]:
    """Return the config.json of a model, as far as mergekit reads it."""
    with FileSource(path) as source:
        header = read_header(source)
        names = {item.name for item in header.tensors}
        key = header.architecture or ""
        size = {
            name: header.field(f"{key}.{name}") for name in ("embedding_length", "feed_forward_length", "block_count")
        }
        heads = [header.field(f"{key}.attention.head_count{end}") for end in ("", "_kv")]
        vocabulary = next(item.shape[1] for item in header.tensors if item.name == "token_embd.weight")
    numbers = {name: int(str(one.value)) for name, one in size.items() if one is not None}
    first, second = (int(str(one.value)) if one is not None else 1 for one in heads)
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
        "hidden_size": numbers["embedding_length"], "intermediate_size": numbers["feed_forward_length"],
        "num_hidden_layers": numbers["block_count"], "num_attention_heads": first, "num_key_value_heads": second,
        "tie_word_embeddings": "output.weight" not in names, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
    }  # fmt: skip


def write_for_mergekit(path: Path, folder: Path, tensors: Mapping[str, NDArray[np.float32]], dtype: str) -> None:
    """Write a model as mergekit reads it."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    written = {name: torch.tensor(one).to(getattr(torch, dtype)) for name, one in tensors.items()}
    save_file(written, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(configuration(path)))


def donors_of(method: str, models: Sequence[str]) -> list[str]:
    """Return which of the models, of which the first is the base, are blended."""
    most = METHODS[method].donors[1] or 3
    return list(models[:most] if method in WITHOUT_BASE else models[1 : most + 1])


def merged_by_mergekit(method: str, dtype: str, folder: Path, models: Sequence[str]) -> tuple[Path, dict[str, float]]:
    """Run mergekit in a process of its own; return its folder, and what it took."""
    each, shared = GIVEN[method]
    listed = [
        {"model": str(folder / name), "parameters": {key: values[at] for key, values in each.items()}}
        for at, name in enumerate(donors_of(method, models))
    ]
    wanted: dict[str, Any] = {
        "models": listed,
        "merge_method": method,
        "parameters": dict(shared),
        "dtype": "float32",
        "out_dtype": dtype,
    }
    wanted |= {} if method in WITHOUT_BASE else {"base_model": str(folder / models[0])}
    if method == "nuslerp":
        wanted["base_model"] = str(folder / models[0])
    (folder / "merge.json").write_text(json.dumps(wanted))
    out = folder / f"out-{method}"
    return out, timed([sys.executable, "-m", "bench.mergekit", "--run", str(folder / "merge.json"), str(out)])


def timed(command: Sequence[str]) -> dict[str, float]:
    """Run a command; return its seconds, the seconds of the processor, and the peak of memory in bytes."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(errors.decode()[-2000:])
    return {
        "seconds": time.monotonic() - begin,
        "processor": usage.ru_utime + usage.ru_stime,
        "bytes": usage.ru_maxrss * 1024.0,
    }


def run_mergekit(configuration_path: str, out: str) -> None:
    """Run mergekit in this process, with the random masks of `mask_words`."""
    import torch
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge

    def bernoulli(chances: Any, *_: Any, **__: Any) -> Any:
        words = torch.tensor(mask_words(chances.numel()).reshape(chances.shape))
        return (words < chances.double()).to(chances.dtype)

    torch.bernoulli = bernoulli
    wanted = MergeConfiguration.model_validate(json.loads(Path(configuration_path).read_text()))
    run_merge(wanted, out, MergeOptions(copy_tokenizer=False))


def merged_here(
    method: str, tensors: Mapping[str, Mapping[str, NDArray[np.float32]]], models: Sequence[str]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield the name and the values of each merged tensor."""
    each, shared = GIVEN[method]
    donors = donors_of(method, models)
    f32 = dtype_by_name("F32")

    def drawn(operands: Operands, _number: int, start: int, chances: NDArray[np.float64]) -> NDArray[np.bool_]:
        words = mask_words(operands.size)[start : start + chances.size]
        return words.reshape(chances.shape) < chances.astype(np.float32)

    blend.drawn = drawn
    settings = {
        name: each.get(name, shared.get(name, [value] * len(donors) if PARAMETERS[name].is_each else value))
        for name, value in METHODS[method].defaults.items()
    }
    for name, base in tensors[models[0]].items():
        plains = []
        for values in (base, *(tensors[donor][name] for donor in donors)):
            data = memoryview(values.tobytes())
            plains.append(Plain(lambda offset, size, data=data: data[offset : offset + size], f32, values.shape[::-1]))
        yield name, np.concatenate(list(blended(method, plains[0], plains[1:], settings))).reshape(base.shape)


def compare(method: str, dtype: str, values: NDArray[np.float64], theirs: NDArray[np.float32]) -> tuple[int, int]:
    """Return how many values differ by more than one spacing of the type, and how many differ at all."""
    kind = dtype_by_name(DTYPES[dtype])
    ours = decode(quantize(values.reshape(-1), kind), kind).astype(np.float64)
    flat = theirs.reshape(-1).astype(np.float64)
    larger = np.maximum(np.abs(ours), np.abs(flat))
    smallest = 2.0**-24 if dtype == "float16" else 2.0**-133
    with np.errstate(divide="ignore"):
        spacing = np.maximum(
            2.0 ** (np.floor(np.log2(np.where(larger > 0, larger, 1e-300))) + 1 - BITS[kind.name]), smallest
        )
    difference = np.abs(ours - flat)
    return int(np.count_nonzero(difference > spacing * 1.0001)), int(np.count_nonzero(difference))


def main() -> None:
    """Compare all methods and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float16")
    parser.add_argument(
        "--unrounded", action="store_true", help="add noise of one spacing: no two differences are equal"
    )
    parser.add_argument("--layers", action="store_true", help="compare models of the blocks of two")
    parser.add_argument("--methods", nargs="+", choices=tuple(GIVEN), default=tuple(GIVEN))
    parser.add_argument("--run", nargs=2, metavar=("CONFIGURATION", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_mergekit(*options.run)
        return
    from safetensors.numpy import load_file

    names = [path.stem for path in options.models]
    with tempfile.TemporaryDirectory() as scratch:
        tensors = {
            path.stem: tensors_of(path, options.dtype, number if options.unrounded else None)
            for number, path in enumerate(options.models)
        }
        for path in options.models:
            kept_dtype = "float32" if options.unrounded else options.dtype
            write_for_mergekit(path, Path(scratch, path.stem), tensors[path.stem], kept_dtype)
        if options.layers:
            compare_layers(options.models[:2], options.dtype, Path(scratch))
            return
        print("| method | values | beyond one spacing | different | here, s | mergekit: s | processor, s | MB |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for method in options.methods:
            out, took = merged_by_mergekit(method, options.dtype, Path(scratch), names)
            theirs = (
                read_safetensors(out)
                if options.dtype == "bfloat16"
                else {name: one for file in out.glob("*.safetensors") for name, one in load_file(str(file)).items()}
            )
            begin, far, different, count = time.process_time(), 0, 0, 0
            here = 0.0
            for name, values in merged_here(method, tensors, names):
                here += time.process_time() - begin
                beyond, unequal = compare(method, options.dtype, values, theirs[name].astype(np.float32))
                far, different, count = far + beyond, different + unequal, count + values.size
                begin = time.process_time()
            figures = f"{here:.1f} | {took['seconds']:.1f} | {took['processor']:.1f} | {took['bytes'] / 1e6:.0f}"
            print(
                f"| {method} | {count:,} | {far:,} ({100 * far / count:.4f}%) | {different:,} | {figures} |", flush=True
            )


def compare_layers(models: Sequence[Path], dtype: str, scratch: Path) -> None:
    """Make models of the blocks of two by the same configurations here and by mergekit, and compare all tensors."""
    from organs.ingest.service import ingest_model
    from organs.ingest.sources import find_sources
    from organs.registry.compose.mergekit import read_recipes
    from organs.registry.local import LocalRegistry

    first, second = (path.stem for path in models)
    count = int(configuration(models[0])["num_hidden_layers"])
    scale = {"scale": [{"filter": "down_proj", "value": 0.5}, {"value": 1.0}]}
    whole, last = [0, count], [count - 2, count]
    both = [{"model": name, "layer_range": whole} for name in (first, second)]
    wanted: dict[str, dict[str, Any]] = {
        "passthrough": {"slices": [{"sources": [one]} for one in both]},
        "passthrough, scaled": {
            "slices": [{"sources": [both[0]]}, {"sources": [both[1] | {"layer_range": last, "parameters": scale}]}]
        },
        "slerp of all blocks, and of the last two again": {
            "merge_method": "slerp", "base_model": first, "parameters": {"t": 0.25},
            "slices": [{"sources": both}, {"sources": [one | {"layer_range": last} for one in both]}],
        },
    }  # fmt: skip
    with LocalRegistry.open(scratch / "home") as registry:
        for source in find_sources([str(path) for path in models]):
            ingest_model(registry, source)
        for what, members in wanted.items():
            paths = text = json.dumps({"merge_method": "passthrough", **members, "dtype": dtype})
            (recipe,) = read_recipes(text, what, lambda _: count)
            registry.compose(recipe).plan().accepting_all().assemble(scratch / "layers.gguf")
            for name in (first, second):
                paths = paths.replace(json.dumps(name), json.dumps(str(scratch / name)))
            (scratch / "merge.json").write_text(paths)
            out = scratch / "out-layers"
            shutil.rmtree(out, ignore_errors=True)
            timed([sys.executable, "-m", "bench.mergekit", "--run", str(scratch / "merge.json"), str(out)])
            ours, theirs = tensors_of(scratch / "layers.gguf", dtype), read_safetensors(out)
            assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
            unequal = [name for name, values in ours.items() if not np.array_equal(values, theirs[name])]
            far = sum(compare("slerp", dtype, ours[name].astype(float), theirs[name])[0] for name in unequal)
            blocks = 1 + max(int(name.split(".")[2]) for name in ours if name.startswith("model.layers."))
            equal = f"{len(ours) - len(unequal)} of {len(ours)} tensors are equal"
            print(f"{what}: {blocks} blocks, {equal}, {far} values are beyond one spacing")


def read_safetensors(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of a folder as float32, also those in BF16."""
    from safetensors.torch import load_file

    return {
        name: one.float().numpy() for file in folder.glob("*.safetensors") for name, one in load_file(str(file)).items()
    }


if __name__ == "__main__":
    main()
