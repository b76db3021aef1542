"""Importance matrices beside independent ones: the correlation of every weight, and the time that the callback takes.

    python -m bench.real_family FOLDER --dithered            first: make the family
    python -m bench.imatrix FOLDER                           compare with the network of the training, in torch
    python -m bench.imatrix FOLDER --program llama-imatrix   and with llama.cpp's own program
    python -m bench.imatrix FOLDER --time                    the time of chunks with and without the callback, in turns

Needs the extra `validate` and the group `bench-real`. The network is that of `examples/zoo/network.py` with the values
of the file; it sees the same tokens in the same chunks. Prints tables as Markdown.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.real_family import MODEL, decoded, network_of
from organs.registry.gguf.importance import read_importances
from organs.registry.input_files import FileSource
from organs.registry.validation.collector import CollectionOrder, CollectionText, ProductObserver, text_chunks
from organs.registry.validation.comparison import file_candidate
from organs.registry.validation.decoder import Decoder, opened
from organs.registry.validation.imatrix import CHUNK_TOKENS, collect_importances
from organs.registry.validation.texts import read_text
from organs.registry.validation.weights import Weights

Means = Mapping[str, NDArray[np.floating[Any]]]
"""The mean squares of the inputs of the columns, by the name of the weight."""
HEADINGS = ("beside", "weights", "chunks", "least correlation", "largest relative difference of a sum", "of all sums")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the family")
    parser.add_argument("--model", type=Path, help="a file, instead of the base in F16; only with --program or --time")
    parser.add_argument("--text", default="code", help="the text, of those in the folder")
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--program", help="the path of llama-imatrix")
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    model = options.model or options.folder / f"{MODEL}-F16.gguf"
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        chunks = cut(model, read_text(options.folder / "texts" / f"{options.text}.txt").text, options.chunks, text)
        if options.time:
            print_times(model, chunks)
            return
        target = Path(folder) / "own.gguf"
        collect_importances(file_candidate(model), [read_text(text)], target)
        own = means_of(target)
        rows = []
        if options.program:
            other = Path(folder) / "other.gguf"
            command = [options.program, "-m", model, "-f", text, "-o", other, "-c", CHUNK_TOKENS, "--process-output"]
            subprocess.run([*map(str, command), "--no-ppl"], check=True, stdout=subprocess.DEVNULL)
            rows.append(("llama-imatrix", len(chunks), compared(own, means_of(other))))
        if options.model is None:
            rows.append(("torch", len(chunks), compared(own, means_by_network(model, chunks))))
    print("| " + " | ".join(HEADINGS) + " |\n" + "|---" * len(HEADINGS) + "|")
    for name, count, figures in rows:
        print(f"| {name} | {figures[0]} | {count} | {figures[1]:.6f} | {figures[2]:.1e} | {figures[3]:.1e} |")


def cut(model: Path, text: str, count: int, target: Path) -> list[list[int]]:
    """Write the beginning of a text that has `count` chunks to `target`, and return their tokens."""
    with opened(str(model)) as loaded:
        first = loaded.first_tokens()
        tokens = loaded.tokens(text)[: count * CHUNK_TOKENS + CHUNK_TOKENS // 2]
        target.write_text(loaded.text(tokens), encoding="utf-8")
        part = CollectionText(text=target.read_text(encoding="utf-8"), template=None)
        order = CollectionOrder(
            model=str(model), texts=(part,), chunk_tokens=CHUNK_TOKENS, seconds=None, decoders=1, descriptor=-1
        )
        chunks = text_chunks(loaded, order)
    assert len(chunks) == count
    assert all(chunk[: len(first)] == first for chunk in chunks)
    return chunks


def means_of(path: Path) -> Means:
    with FileSource(path) as source:
        return read_importances(source).by_tensor


def means_by_network(path: Path, chunks: Sequence[Sequence[int]]) -> Means:
    """Return the mean squares by torch: of all matrices of the blocks, and of the output matrix."""
    import torch

    network, sums = network_of(decoded(path)), dict[str, NDArray[np.float64]]()
    plain: Callable[[Any, str], Any] = network._linear
    normed: Callable[[Any, str], Any] = network._norm

    def add(state: Any, name: str) -> None:
        squares = state.double().square().sum((0, 1)).numpy()
        sums[f"{name}.weight"] = sums.get(f"{name}.weight", 0.0) + squares

    def linear(state: Any, name: str) -> Any:
        add(state, name)
        return plain(state, name)

    def norm(state: Any, name: str) -> Any:
        result = normed(state, name)
        if name == "output_norm":
            add(result, "token_embd")  # it is the output matrix, too
        return result

    network._linear, network._norm = linear, norm
    with torch.no_grad():
        for chunk in chunks:
            network(torch.tensor([chunk]))
    tokens = sum(map(len, chunks))
    return {name: values / tokens for name, values in sums.items()}


def compared(own: Means, other: Means) -> tuple[int, float, float, float]:
    """Return the number of weights, and of all the least correlation, the largest difference, and that of the sums."""
    assert set(own) == set(other), sorted(set(own) ^ set(other))
    pairs = [(own[name].astype(np.float64), np.asarray(other[name], np.float64)) for name in own]
    correlations = [float(np.corrcoef(ours, theirs)[0, 1]) for ours, theirs in pairs]
    differences = [float(np.abs(ours - theirs).max() / theirs.max()) for ours, theirs in pairs]
    totals = [abs(float(ours.sum() / theirs.sum()) - 1.0) for ours, theirs in pairs]
    return len(pairs), min(correlations), max(differences), max(totals)


def print_times(path: Path, chunks: Sequence[Sequence[int]]) -> None:
    """Print the time of the chunks with and without the callback, in turns, on one thread."""
    with opened(str(path)) as model, Weights(path) as weights:
        observer = ProductObserver(model.library, weights)
        decoders = {
            "without": Decoder(model, CHUNK_TOKENS),
            "with": Decoder(model, CHUNK_TOKENS, observer=observer),
        }
        seconds: dict[str, list[float]] = {name: [] for name in decoders}
        for chunk in chunks:
            for name, decoder in decoders.items():
                begun = time.thread_time()
                decoder.evaluate(chunk)
                seconds[name].append(time.thread_time() - begun)
        observer.check(len(chunks[0]))
        for decoder in decoders.values():
            decoder.close()
    without, with_callback = (float(np.median(seconds[name])) for name in ("without", "with"))
    print("| model | processor time of a chunk, s | with the callback | more |\n|---|---|---|---|")
    print(f"| {path.stem} | {without:.2f} | {with_callback:.2f} | {with_callback / without - 1:.1%} |")


if __name__ == "__main__":
    main()
