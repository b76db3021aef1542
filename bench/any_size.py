"""Measure the files that the registry chooses for a size beside llama.cpp's own mixes of the same size.

    python -m bench.any_size FOLDER --library LIBRARIES            everything that is not measured yet
    python -m bench.any_size FOLDER --library LIBRARIES --only SmolLM2 --mixes Q4_K_M
    python -m bench.any_size FOLDER --print                        only the tables

FOLDER has the models of SOURCES, which `bench.sized_models` describes, and `texts` of `bench.real_family`. LIBRARIES is
the folder of any release of llama.cpp's shared libraries (`libggml*.so`, `libllama*.so`), which quantise the plain
mixes: for example `bins/linux-x64` in the npm package `@node-llama-cpp/linux-x64`.

For each model and mix three files of the same size are compared:

    plain     llama.cpp's mix, written by `llama_model_quantize` without an importance matrix
    chosen    the registry's choice at the bytes of the plain mix (`organ quantize --like`)
    error     the choice by the squared error of the weights, weighted by an importance matrix, by the same encoders

Every file is scored beside its source, on windows of three texts that no search saw, because a search has the built-in
texts. The windows are cut into SEEDS sets without a common token. The table has the divergence of each set: the mean
over all its tokens of the Kullback-Leibler divergence of the next token's distribution from that of the source.

The logits of the sources stay in `FOLDER/logits`, 50 MB for each window of SmolLM2, so each is computed once. Each
measurement is a line of `FOLDER/any-size.jsonl`, and what is there is not measured again.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from organs.registry.quantizing.choice import Option, chosen
from organs.registry.quantizing.groups import FAST

from organs.registry.gguf import (
    DType,
    KeyValue,
    TensorSpec,
    ValueType,
    carry_over,
    dtype_by_name,
    encode_header,
    padded,
    read_header,
)
from organs.registry.gguf.importance import ImportanceMatrix, read_importances
from organs.registry.gguf.quants import dequantize, encode
from organs.registry.input_files import FileSource
from organs.registry.validation.decoder import Decoder, LoadedModel, opened
from organs.registry.validation.runtime import WINDOW_TOKENS
from organs.registry.validation.scorer import Likelihoods, compared, joined
from organs.registry.validation.texts import read_text, spread_order

SEEDS = 3
TEXTS = ("code", "docs", "prose")
MIXES = {"Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18}
"""llama.cpp's mixes with their numbers (`llama_ftype`)."""
RESULTS = "any-size.jsonl"
THREADS = 2
ERROR_RUNS, ERROR_VALUES = 16, 1 << 18
"""The runs of rows of a matrix, and the values in all of them, on which errors are computed."""
QUANTIZATION_KEY = "general.quantization_version"
QUANTISED_KEYS_BYTES = 96
"""More than this key adds to a header, with its padding."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model in full precision: its file, and the windows of each text in a set."""

    file: str
    windows: int
    text: str


SOURCES = {
    "Sized F16": Source("zoo/sized/Sized-6M-v1.0-F16.gguf", 16, "trained, llama, 5.8 M"),
    "Sized BF16": Source("zoo/sized/Sized-6M-v1.0-BF16.gguf", 16, "the same in BF16"),
    "SmolLM2": Source("SmolLM2-135M-Instruct-F16.gguf", 3, "SmolLM2-135M-Instruct dithered, llama, 135 M"),
    "Gemma": Source("gemma-3-270m-dithered-F16.gguf", 2, "Gemma 3 270M dithered, gemma3, 268 M"),
    "Generated": Source("Generated-151M-F16.gguf", 3, "generated weights, qwen2, 151 M"),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The comparison of a file with its source on one set of windows."""

    model: str
    mix: str
    kind: str
    seed: int
    size_bytes: int
    tokens: int
    divergence: float
    """The mean over the tokens, in nats."""
    same_top: float
    """The share of the tokens for which both find the same token the most likely one."""
    ratio: float
    """The perplexity, divided by that of the source."""
    seconds: float


class Bench:
    """The measurements of a folder."""

    def __init__(self, folder: Path, library: Path | None) -> None:
        self.folder, self.library = folder, library
        self._results = folder / RESULTS
        lines = self._results.read_text().splitlines() if self._results.exists() else []
        self.readings = [Reading(**json.loads(line)) for line in lines]

    def has(self, model: str, mix: str, kind: str) -> bool:
        """Return whether all sets of a file are measured."""
        return sum((r.model, r.mix, r.kind) == (model, mix, kind) for r in self.readings) >= SEEDS

    def plain(self, model: str, mix: str) -> Path:
        """Return the file of llama.cpp's mix, made by its library in a process of its own if it is not there."""
        target = self.folder / "plain" / f"{model.replace(' ', '-')}-{mix}.gguf"
        if not target.exists():
            assert self.library is not None, "the plain mixes need --library"
            target.parent.mkdir(exist_ok=True)
            part = target.with_suffix(".part")
            arguments = [str(self.library), str(self.folder / SOURCES[model].file), str(part), str(MIXES[mix])]
            command = [sys.executable, "-m", "bench.any_size", "--quantize", *arguments]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
            part.rename(target)
        return target

    def by_error(self, model: str, mix: str) -> Path:
        """Return the file of the choice by weighted errors, at the bytes of the plain mix."""
        target = self.folder / "error" / f"{model.replace(' ', '-')}-{mix}.gguf"
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            source = self.folder / SOURCES[model].file
            size_bytes = self.plain(model, mix).stat().st_size
            write_mix(source, target, error_choice(source, self._options(model), size_bytes))
        return target

    def _options(self, model: str) -> dict[str, list[Option]]:
        """Return the types of each matrix with their errors, computed once."""
        known = self.folder / "error" / f"{model.replace(' ', '-')}.json"
        if not known.exists():
            matrix = self.folder / "imatrix" / f"{model.replace(' ', '-')}.gguf"
            if not matrix.exists():
                matrix.parent.mkdir(exist_ok=True)
                command = ["imatrix", str(self.folder / SOURCES[model].file), "-o", str(matrix)]
                subprocess.run([sys.executable, "-m", "organs.cli", *command], check=True)
            with FileSource(matrix) as file:
                found = weighted_errors(self.folder / SOURCES[model].file, read_importances(file))
            known.write_text(json.dumps(found))
        errors = json.loads(known.read_text())
        return {
            name: [Option(dtype_by_name(dtype), size, error) for dtype, (size, error) in own.items()]
            for name, own in errors.items()
        }

    def measure(self, model: str, mix: str, kind: str, file: Path) -> None:
        """Score a file beside its source, and keep a reading for each set of windows."""
        source, begun = SOURCES[model], time.monotonic()
        logits = self._source_logits(model)
        found: list[tuple[Likelihoods, Likelihoods]] = []
        with scoring(file) as decoders, ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(lambda stored: _against(decoders, *stored), logits))
        seconds = time.monotonic() - begun
        for seed in range(SEEDS):
            mine = [
                pair for number, pair in enumerate(found) if number % (SEEDS * source.windows) // source.windows == seed
            ]
            base, own = joined([pair[0] for pair in mine]), joined([pair[1] for pair in mine])
            assert own.divergences is not None
            assert own.same_top is not None
            reading = Reading(
                model, mix, kind, seed, file.stat().st_size, len(own.surprises), float(own.divergences.mean()),
                float(own.same_top.mean()), float(np.exp((own.surprises - base.surprises).mean())),
                round(seconds / SEEDS, 1),
            )  # fmt: skip
            self.readings.append(reading)
            with self._results.open("a") as stream:
                stream.write(json.dumps(asdict(reading)) + "\n")
        print(f"{model} {mix} {kind}: {seconds:.0f} s", flush=True)

    def _source_logits(self, model: str) -> list[tuple[list[int], Path]]:
        """Return the tokens of each window, text by text, and the file of the logits of the source, computed once."""
        source, folder = SOURCES[model], self.folder / "logits" / model.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        windows, file = [], self.folder / source.file
        with scoring(file) as decoders, ThreadPoolExecutor(THREADS) as pool:
            for text in TEXTS:
                windows += windows_of(
                    decoders.model, read_text(self.folder / "texts" / f"{text}.txt").text, source.windows
                )
            paths = [folder / f"{number:03d}.npy" for number in range(len(windows))]

            def compute(tokens: list[int], path: Path) -> None:
                if not path.exists():
                    with decoders.one() as decoder:
                        values = np.concatenate([rows.copy() for rows in decoder.logits(tokens)])
                    np.save(path.with_suffix(".part.npy"), values)
                    path.with_suffix(".part.npy").rename(path)

            list(pool.map(compute, windows, paths))
        return list(zip(windows, paths, strict=True))

    def of(self, model: str, mix: str, kind: str) -> list[Reading]:
        """Return the readings of a file in the order of the sets."""
        found = [r for r in self.readings if (r.model, r.mix, r.kind) == (model, mix, kind)]
        return sorted(found, key=lambda reading: reading.seed)


def main() -> None:
    """Measure what is missing, and print the tables."""
    if sys.argv[1:2] == ["--quantize"]:
        quantize(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--library", type=Path, help="the folder of llama.cpp's shared libraries")
    parser.add_argument("--only", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES))
    parser.add_argument("--kinds", nargs="+", choices=("plain",), default=["plain"])
    parser.add_argument("--print", action="store_true", help="measure nothing")
    options = parser.parse_args()
    bench = Bench(options.folder, options.library)
    if not options.print:
        for model in options.only:
            for mix in options.mixes:
                if not bench.has(model, mix, "plain"):
                    bench.measure(model, mix, "plain", bench.plain(model, mix))
    print("\n".join(plain_table(bench)))


class Decoders:
    """Decoders of a loaded model, one for each thread."""

    def __init__(self, model: LoadedModel, stack: ExitStack) -> None:
        self.model, self._free = model, SimpleQueue[Decoder]()
        for _ in range(THREADS):
            self._free.put(stack.enter_context(closing(Decoder(model, WINDOW_TOKENS))))

    @contextmanager
    def one(self) -> Iterator[Decoder]:
        """Lend a decoder."""
        decoder = self._free.get()
        try:
            yield decoder
        finally:
            self._free.put(decoder)


@contextmanager
def scoring(file: Path) -> Iterator[Decoders]:
    """Load a model with its decoders."""
    with ExitStack() as stack:
        yield Decoders(stack.enter_context(opened(str(file))), stack)


def windows_of(model: LoadedModel, text: str, windows: int) -> list[list[int]]:
    """Return windows that are spread over a text, as the registry cuts them: `windows` for each set, set after set."""
    first, tokens = model.first_tokens(), model.tokens(text)
    cut = [
        [*first, *tokens[start : start + WINDOW_TOKENS - len(first)]]
        for start in range(0, len(tokens), WINDOW_TOKENS - 1)
    ]
    whole = [window for window in cut if len(window) == WINDOW_TOKENS]
    assert len(whole) >= SEEDS * windows, "a text is too short"
    return [whole[place] for place in spread_order(len(whole))[: SEEDS * windows]]


def _against(decoders: Decoders, tokens: list[int], path: Path) -> tuple[Likelihoods, Likelihoods]:
    """Return the likelihoods of a window by the source and by a model."""
    reference, place, pairs = np.load(path, mmap_mode="r"), 0, []
    with decoders.one() as decoder:
        for logits in decoder.logits(tokens):
            theirs = np.asarray(reference[place : place + len(logits)])
            pairs.append(compared(theirs, logits, tokens[place + 1 : place + 1 + len(logits)]))
            place += len(logits)
    return joined([pair[0] for pair in pairs]), joined([pair[1] for pair in pairs])


def quantize(library: str, source: str, target: str, mix: str) -> None:
    """Quantise a file by llama.cpp's library. Only the first two members of its parameters are set."""

    class Parameters(ctypes.Structure):
        _fields_ = (("threads", ctypes.c_int32), ("file_type", ctypes.c_int32), ("others", ctypes.c_uint8 * 1024))

    folder = Path(library)
    base, llama = next(folder.glob("libggml-base*.so")), next(folder.glob("libllama.*so"))
    ctypes.CDLL(str(base), mode=ctypes.RTLD_GLOBAL)
    backends = ctypes.CDLL(str(next(folder.glob("libggml.*so"))), mode=ctypes.RTLD_GLOBAL)
    backends.ggml_backend_load_all_from_path(library.encode())
    functions = ctypes.CDLL(str(llama))
    functions.llama_model_quantize_default_params.restype = Parameters
    parameters = functions.llama_model_quantize_default_params()
    parameters.threads, parameters.file_type = 1, int(mix)
    functions.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Parameters)]
    status = functions.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters))
    if status:
        sys.exit(f"llama.cpp's quantiser ended with status {status}")


def weighted_errors(path: Path, importances: ImportanceMatrix) -> dict[str, dict[str, tuple[int, float]]]:
    """Return for each matrix of a model in F16 or BF16 the types that fit its rows, with bytes and error.

    The error is the sum of the squared changes of the weights, each times the importance of its column: the expected
    squared change of the products with the matrix. An embedding that is no output has no importances; a token reads one
    of its rows. The error is computed on some of the rows, spread over the matrix.
    """
    found: dict[str, dict[str, tuple[int, float]]] = {}
    with FileSource(path) as file:
        header = read_header(file)
        for tensor in header.tensors:
            if tensor.dtype.name == "F32":
                continue
            row, rows = tensor.shape[0], tensor.elements // tensor.shape[0]
            row_bytes = tensor.size_bytes // rows
            step = max(1, min(rows, ERROR_VALUES // ERROR_RUNS // row))
            starts = sorted({(rows - step) * run // (ERROR_RUNS - 1) for run in range(ERROR_RUNS)})
            pieces = [
                file.read_at(header.data_offset + tensor.offset + start * row_bytes, step * row_bytes)
                for start in starts
            ]
            values = dequantize(b"".join(pieces), tensor.dtype)
            if importances.fits(tensor.name, tensor.shape):
                weights = importances.of(tensor.name, row)
            else:
                weights = np.full(row, 1.0 / rows, np.float32)
            own = {tensor.dtype.name: (padded(tensor.size_bytes, header.alignment), 0.0)}
            for name in FAST:
                dtype = dtype_by_name(name)
                if row % dtype.block_elements == 0:
                    changes = (dequantize(encode(values, dtype), dtype) - values).reshape(-1, row)
                    error = (
                        float((np.square(changes, dtype=np.float64) @ weights).sum()) * tensor.elements / values.size
                    )
                    own[name] = padded(dtype.size_bytes(tensor.elements), header.alignment), error
            found[tensor.name] = own
            print(f"{path.name}: errors of {tensor.name}", end="\r", flush=True)
    return found


def error_choice(path: Path, options: Mapping[str, Sequence[Option]], size_bytes: int) -> dict[str, DType]:
    """Return the types with the smallest sum of errors in a file of at most `size_bytes`."""
    with FileSource(path) as file:
        header = read_header(file)
        rest = sum(padded(t.size_bytes, header.alignment) for t in header.tensors if t.name not in options)
        choice = chosen(options, size_bytes - header.data_offset - QUANTISED_KEYS_BYTES - rest)
    assert choice is not None, f"{path}: no types are small enough for {size_bytes:,} bytes"
    return {name: option.dtype for name, option in choice.items()}


def write_mix(source: Path, target: Path, dtypes: Mapping[str, DType]) -> None:
    """Write a file with matrices in other types, and the metadata of the source."""
    part = target.with_suffix(".part")
    with FileSource(source) as file, part.open("wb") as stream:
        header = read_header(file)
        specs = [TensorSpec(t.name, t.shape, dtypes.get(t.name, t.dtype)) for t in header.tensors]
        fields = [carry_over(file, field) for field in header.fields if field.key != QUANTIZATION_KEY]
        stream.write(encode_header([*fields, KeyValue(QUANTIZATION_KEY, ValueType.UINT32, 2)], specs, header.alignment))
        for tensor, spec in zip(header.tensors, specs, strict=True):
            data = file.read_at(header.data_offset + tensor.offset, tensor.size_bytes)
            if spec.dtype != tensor.dtype:
                data = encode(dequantize(data, tensor.dtype), spec.dtype)
            stream.write(data.ljust(padded(len(data), header.alignment), b"\0"))
    part.rename(target)


def plain_table(bench: Bench) -> Iterable[str]:
    """Yield the table of the plain mixes: the sets of windows, one after another."""
    yield "| model | mix | bytes | divergence, by set | mean | same top | perplexity |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for model in SOURCES:
        for mix in MIXES:
            if readings := bench.of(model, mix, "plain"):
                sets = " / ".join(f"{reading.divergence:.5f}" for reading in readings)
                mean = statistics.fmean(reading.divergence for reading in readings)
                same = statistics.fmean(reading.same_top for reading in readings)
                ratio = statistics.geometric_mean(reading.ratio for reading in readings) - 1.0
                size = readings[0].size_bytes
                yield f"| {model} | {mix} | {size:,} | {sets} | {mean:.5f} | {same:.1%} | {ratio:+.2%} |"


if __name__ == "__main__":
    main()
