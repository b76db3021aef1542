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
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean, median
from typing import Any

import numpy as np
import psutil
from sqlalchemy.orm import Session

from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.entities.sizes import QuantizationRequest
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
from organs.registry.local import LocalRegistry
from organs.registry.quantizing.choice import Option, chosen
from organs.registry.quantizing.groups import FAST
from organs.registry.validation.decoder import Decoder, LoadedModel, opened
from organs.registry.validation.runtime import WINDOW_TOKENS
from organs.registry.validation.scorer import Likelihoods, compared, joined
from organs.registry.validation.texts import read_text, spread_order

SEEDS = 3
TEXTS = ("code", "docs", "prose")
MIXES = {"Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18}
"""llama.cpp's mixes with their numbers (`llama_ftype`)."""
KINDS = ("plain", "chosen", "error")
RESULTS, SEARCHES = "any-size.jsonl", "searches.jsonl"
MINUTES = 6.0
"""The time that a search may take for its measurements."""
SAMPLED_SECONDS = 0.5
ESTIMATED = 10
INTERRUPTED_AFTER = 5
"""The measurements that a search stores before it is interrupted."""
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


@dataclass(frozen=True, slots=True)
class SearchReading:
    """A search of the registry: what it took, and what it measured."""

    model: str
    mix: str
    seconds: float
    peak_bytes: int
    """The most memory that it and its children had at a time (resident, looked at every SAMPLED_SECONDS)."""
    measured: int
    """The measurements that it stored."""
    again: int
    """The measurements that were stored already when it made them."""
    interrupted_at: list[int]
    """How many were stored at each interruption."""


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

    def chosen(self, model: str, mix: str, interruptions: int) -> Path:
        """Return the file that the registry chooses at the bytes of the plain mix."""
        target = self.folder / "chosen" / f"{model.replace(' ', '-')}-{mix}.gguf"
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            reading = searched(self.folder, model, mix, self.plain(model, mix).stat().st_size, target, interruptions)
            with (self.folder / SEARCHES).open("a") as stream:
                stream.write(json.dumps(asdict(reading)) + "\n")
        return target

    def searches(self) -> list[SearchReading]:
        """Return what is known of the searches."""
        path = self.folder / SEARCHES
        lines = path.read_text().splitlines() if path.exists() else []
        return [SearchReading(**json.loads(line)) for line in lines]

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
    if sys.argv[1:2] in (["--quantize"], ["--search"]):
        (quantize if sys.argv[1] == "--quantize" else search)(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--library", type=Path, help="the folder of llama.cpp's shared libraries")
    parser.add_argument("--only", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--interruptions", type=int, default=2, help="of the first search of each model")
    parser.add_argument(
        "--estimate", type=Path, help="a large model: only compare the expected time with the first groups"
    )
    parser.add_argument("--print", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if options.estimate is not None:
        print(estimated(options.folder, options.estimate))
        return
    bench = Bench(options.folder, options.library)
    if not options.print:
        for model, mix, kind in product(options.only, options.mixes, options.kinds):
            if not bench.has(model, mix, kind):
                stops = 0 if any(one.model == model for one in bench.searches()) else options.interruptions
                file = {
                    "plain": lambda: bench.plain(model, mix),  # noqa: B023
                    "chosen": lambda: bench.chosen(model, mix, stops),  # noqa: B023
                    "error": lambda: bench.by_error(model, mix),  # noqa: B023
                }[kind]()
                bench.measure(model, mix, kind, file)
    print("\n".join(tables(bench)))


def searched(folder: Path, model: str, mix: str, size_bytes: int, target: Path, interruptions: int) -> SearchReading:
    """Run a search in a process of its own, kill it as often as told on the way, and go on to the end."""
    home, log = folder / "home" / model.replace(" ", "-"), target.with_suffix(".log")
    log.unlink(missing_ok=True)
    arguments = [
        str(home),
        str(folder / SOURCES[model].file),
        str(size_bytes),
        f"sized-{mix.lower()}",
        str(MINUTES),
        str(target),
    ]
    command = [sys.executable, "-m", "bench.any_size", "--search", *arguments]
    begun, peak, stops = time.monotonic(), 0, []
    for run in range(interruptions + 1):
        known = len(stored(log))
        with subprocess.Popen(command, env=dict(os.environ, MEASURED_LOG=str(log))) as process:
            while process.poll() is None:
                time.sleep(SAMPLED_SECONDS)
                peak = max(peak, tree_bytes(process.pid))
                if run < interruptions and len(stored(log)) >= known + INTERRUPTED_AFTER:
                    process.send_signal(signal.SIGTERM if run else signal.SIGKILL)
                    process.wait()
                    stops.append(len(stored(log)))
        if process.returncode == 0:
            break
        assert run < interruptions, f"the search ended with {process.returncode}"
    lines = stored(log)
    again = len(lines) - len(set(lines))
    return SearchReading(model, mix, round(time.monotonic() - begun, 1), peak, len(set(lines)), again, stops)


def estimated(folder: Path, source: Path) -> str:
    """Begin a search for a large model, stop it after ESTIMATED groups, and say what it expected and what it took."""
    log, output = folder / "estimate.log", folder / "estimate.txt"
    log.unlink(missing_ok=True)
    arguments = [str(folder / "home" / "estimate"), str(source), str(source.stat().st_size // 3), "estimated", "600"]
    command = [sys.executable, "-m", "bench.any_size", "--search", *arguments, str(folder / "estimate.gguf")]
    times: list[float] = []
    with output.open("w") as stream:
        environment = dict(os.environ, MEASURED_LOG=str(log), PYTHONUNBUFFERED="1")
        with subprocess.Popen(command, env=environment, stdout=stream) as process:
            while process.poll() is None and len(times) < ESTIMATED + 1:
                time.sleep(SAMPLED_SECONDS)
                times += [time.monotonic()] * (len(stored(log)) - len(times))
            process.kill()
    found = re.search(r"measuring .*groups?, about .*", output.read_text())
    assert found is not None, f"{output}: no estimate"
    seconds = (times[ESTIMATED] - times[0]) / ESTIMATED
    return f"{source.name}: expected: {found[0]}; {ESTIMATED} groups took {seconds:.1f} s each"


def stored(log: Path) -> list[str]:
    """Return the measurements that a search has stored: a group of organs and a type in each line."""
    return log.read_text().splitlines() if log.exists() else []


def tree_bytes(pid: int) -> int:
    """Return the resident memory of a process and of its children, without files that others share with it."""
    total = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                total += each.memory_info().rss
    return total


def search(home: str, source: str, size_bytes: str, name: str, minutes: str, target: str) -> None:
    """Choose a file of a size in a registry, and write it; MEASURED_LOG gets a line for each stored measurement."""
    from organs.registry.quantizing import sensitivity as module

    plain = module.record_sensitivity

    def logged(session: Session, *values: Any, **named: Any) -> None:
        with Path(os.environ["MEASURED_LOG"]).open("a") as stream:
            stream.write(f"{values} {sorted(named.items())}\n")
        plain(session, *values, **named)

    module.record_sensitivity = logged
    with LocalRegistry.open(Path(home)) as registry:
        for found in find_sources([source]):
            model = ingest_model(registry, found).model
        request = QuantizationRequest(model=model, size_bytes=int(size_bytes), name=name, minutes=float(minutes))
        sized = registry.quantize(request, print)
        part = Path(target).with_suffix(".part")
        registry.assemble(sized.chimera.model, part)
        part.rename(target)
        print(sized)


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
    squared change of the products with the matrix. An embedding that is no output has no importances: they are 1, as in
    llama.cpp. The error is computed on some of the rows, spread over the matrix.
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
                weights = np.ones(row, np.float32)
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


def tables(bench: Bench) -> Iterator[str]:
    """Yield the lines of all tables, as far as something is measured."""
    yield "| model | mix | bytes | plain | chosen | by error | chosen / plain, by set | by error / plain | same top |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    ratios: dict[str, list[float]] = {}
    for model, mix in product(SOURCES, MIXES):
        plain, chosen_, error = (bench.of(model, mix, kind) for kind in KINDS)
        if not plain:
            continue
        sets = quotients(chosen_, plain)
        ratios.setdefault(mix, []).extend(sets)
        by_set = f"{fmean(sets):.2f} ({' '.join(f'{one:.2f}' for one in sets)})" if sets else "-"
        by_error = f"{fmean(quotients(error, plain)):.2f}" if error else "-"
        same = " / ".join(f"{fmean(r.same_top for r in own):.1%}" for own in (plain, chosen_) if own)
        size = f"{plain[0].size_bytes:,}" + (f" / {chosen_[0].size_bytes:,}" if chosen_ else "")
        means = " | ".join(f"{fmean(r.divergence for r in own):.5f}" if own else "-" for own in (plain, chosen_, error))
        yield f"| {model} | {mix} | {size} | {means} | {by_set} | {by_error} | {same} |"
    yield ""
    yield "| mix | median of chosen / plain | largest | models and sets |"
    yield "|---|---:|---:|---:|"
    for mix, found in ratios.items():
        if found:
            yield f"| {mix} | {median(found):.2f} | {max(found):.2f} | {len(found)} |"
    yield ""
    yield "| model | bytes at the divergence of the plain " + " | ".join(MIXES) + " |"
    yield "|---|" + "---:|" * len(MIXES)
    for model in SOURCES:
        cells = [equal_bytes(bench, model, mix) for mix in MIXES]
        if any(cells):
            yield f"| {model} | " + " | ".join("-" if cell is None else f"{cell:.2f}" for cell in cells) + " |"
    yield ""
    yield "| model | size of | time of the search | memory | measured | again | interrupted after |"
    yield "|---|---|---:|---:|---:|---:|---|"
    for one in bench.searches():
        stops = ", ".join(map(str, one.interrupted_at)) or "-"
        memory = f"{one.peak_bytes / 1e9:.1f} GB"
        yield f"| {one.model} | {one.mix} | {one.seconds:.0f} s | {memory} | {one.measured} | {one.again} | {stops} |"


def quotients(ours: Sequence[Reading], plain: Sequence[Reading]) -> list[float]:
    """Return the divergences divided by those of the plain mix, set by set."""
    return [own.divergence / theirs.divergence for own, theirs in zip(ours, plain, strict=False)]


def equal_bytes(bench: Bench, model: str, mix: str) -> float | None:
    """Return the bytes of a chosen file that diverges as the plain mix does, divided by those of the plain mix.

    Between the measured files, the logarithm of the divergence is taken as linear in the bytes. None outside of them.
    """
    plain = bench.of(model, mix, "plain")
    files = [own for each in MIXES if (own := bench.of(model, each, "chosen"))]
    points = sorted((math.log(fmean(r.divergence for r in own)), own[0].size_bytes) for own in files)
    wanted = math.log(fmean(r.divergence for r in plain)) if plain else math.inf
    if len(points) < 2 or not points[0][0] <= wanted <= points[-1][0]:
        return None
    return float(np.interp(wanted, *zip(*points, strict=True))) / plain[0].size_bytes


if __name__ == "__main__":
    main()
