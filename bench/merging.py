"""Merge quantised models: what is kept of a change that is merged in 4 and 8 bits, with the source and without.

    python -m bench.real_family FOLDER --dithered      first: train the family, of which the base is no 4-bit model
    python -m bench.merging FOLDER                     merge, prove and measure; print tables as Markdown

Needs the extra `validate`. A registry in a temporary folder has the family in F16, Q8_0 and Q4_K_M. First each
quantisation is proved: the table has the seconds for 1 GB of the source, and what is found in a copy with altered
weights. Then a LoRA is merged into the base in Q8_0 and Q4_K_M, and the mean of two fine-tunes: computed with the given
weights, with those of the proved source, and in finer types. Beside them are the merge in F16 that is quantised
afterwards, and the merge of which each changed tensor is F16, as llama.cpp's tool for adapters writes it.

A gain is the change of the perplexity from that of the base in the same encoding, by llama.cpp, paired by windows: the
mean over both texts that the fine-tunes were trained for (code for the LoRA, both for the mean), with its error.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from bench.real_family import ENCODINGS, MODEL, Tensors, decoded, write_model
from bench.real_models import divided
from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.compose.api import Composition
from organs.registry.entities.comparison import Proof
from organs.registry.errors import NotFound
from organs.registry.gguf import read_header
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.runtime import ScoringRequest
from organs.registry.validation.texts import ScoredText

RELATIVES = ("Code", "Docs")
QUANTISED = ENCODINGS[-2:]
ALTERED, ALTERED_TENSORS = 14_706, 3
"""The 4-bit weights that are altered in a copy, and the tensors in which they are."""
MERGES: Mapping[str, tuple[str, ...]] = {"LoRA": ("code",), "mean": ("code", "docs")}
"""The merges, with the texts on which they should gain."""
Losses = dict[str, list[float]]
"""The mean nats for a token in each window, by text."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the family")
    parser.add_argument("--windows", type=int, default=40, help="the windows of 512 tokens of each text")
    options = parser.parse_args()
    texts = [text for text in divided(options.folder / "texts")[1] if text.name != "prose"]
    with tempfile.TemporaryDirectory(prefix="merging-") as place, LocalRegistry.open(Path(place) / "home") as registry:
        paths = [options.folder / f"{MODEL}-{name}F16.gguf" for name in ("", *(f"{one}-" for one in RELATIVES))]
        paths += [path.with_name(path.name.replace("F16", kind)) for path in paths for kind in QUANTISED]
        paths += [options.folder / f"{MODEL}-LoRA-F32.gguf", altered(options.folder, Path(place))]
        for path in paths:
            for source in find_sources([str(path)]):
                ingest_model(registry, source)
        unproved = dict(made(registry, options.folder, Path(place), "given"))
        print_proofs(registry, [path for path in paths if "-Q" in path.name])
        proved = dict(made(registry, options.folder, Path(place), "proved"))
        print_merges({**unproved, **proved}, options.folder, texts, options.windows)


def altered(folder: Path, target: Path) -> Path:
    """Write a copy of the base in 4 bits of which the lowest bit of some weights is another one; return its path."""
    path = target / f"{MODEL}-altered-Q4_K_M.gguf"
    shutil.copy(folder / f"{MODEL}-Q4_K_M.gguf", path)
    with FileSource(path) as source:
        header = read_header(source)
    chosen = [tensor for tensor in header.tensors if tensor.dtype.name == "Q4_K"][:ALTERED_TENSORS]
    data = np.memmap(path, mode="r+")
    for number, tensor in enumerate(chosen):
        places = np.random.default_rng(number).choice(tensor.elements // 2, ALTERED // len(chosen), replace=False)
        begin = header.data_offset + tensor.offset
        weights = tensor.dtype.block_elements // 2
        head = tensor.dtype.block_bytes - weights
        data[begin + places // weights * tensor.dtype.block_bytes + head + places % weights] ^= 1
    data.flush()
    return path


def print_proofs(registry: LocalRegistry, paths: Sequence[Path]) -> None:
    """Prove the source of each quantisation, and print what is found and how long it takes."""
    print("| quantisation | source | exact | same | not explained | seconds | seconds for 1 GB of the source |")
    print("|---|---|---|---|---|---|---|")
    for path in paths:
        begun = time.monotonic()
        try:
            proof: Proof | None = registry.prove(path.stem)
        except NotFound:
            proof = None
        seconds = time.monotonic() - begun
        size = sum(2 * math.prod(organ.shape) for organ in registry.organs_of(path.stem) if organ.dtype.startswith("Q"))
        cells = ["none found", "", "", ""]
        if proof is not None:
            others = ", ".join(organ.name for organ in proof.others)
            cells = [proof.source, f"{proof.exact} of {proof.organs}", str(proof.same), others or "none"]
        print(f"| {' | '.join([path.stem, *cells, f'{seconds:.1f}', f'{seconds / size * 1e9:.0f}'])} |", flush=True)
    print()


def made(registry: LocalRegistry, folder: Path, place: Path, source: str) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Yield the merges by encoding, kind and way of computing, as files in `place`."""
    for encoding in QUANTISED:
        for kind in MERGES:
            ways = {"given": ("same", "finer", "F16"), "proved": ("same",)}[source]
            for encode in ways:
                steps = merging(kind, encoding)
                plan = steps(registry.compose(f"{MODEL}-{encoding}").source(source).encode(encode)).plan()
                path = place / f"{encoding}-{kind}-{source}-{encode}.gguf"
                plan.accepting_all().assemble(path)
                kept = ", ".join(f"{item.dtype} {item.kept:.0%}" for item in plan.chimera.kept)
                print(f"{path.stem}: {path.stat().st_size:,} bytes, keeps {kept}", flush=True)
                yield (encoding, kind, source, encode), path
            if source == "proved":
                values, path = merged(folder, kind), place / f"{encoding}-{kind}-afterwards.gguf"
                write_model(folder / f"{MODEL}-F16.gguf", path, MODEL, values, encoding, {})
                yield (encoding, kind, "F16, then quantised", ""), path
    print()


def merging(kind: str, encoding: str) -> Callable[[Composition], Composition]:
    """Return the steps of a merge."""
    if kind == "LoRA":
        return lambda base: base.adapter(f"{MODEL}-LoRA-F32")
    models = [{"from": f"{MODEL}-{name}-{encoding}", "weight": 0.5} for name in RELATIVES]
    return lambda base: base.blend(models=models)


def merged(folder: Path, kind: str) -> Tensors:
    """Return the merge of the models in F16."""
    base = decoded(folder / f"{MODEL}-F16.gguf")
    if kind == "mean":
        others = [decoded(folder / f"{MODEL}-{name}-F16.gguf") for name in RELATIVES]
        return {name: sum(other[name] for other in others) / np.float32(len(others)) for name in base}
    factors = decoded(folder / f"{MODEL}-LoRA-F32.gguf")
    for name in list(base):
        if f"{name}.lora_a" in factors:
            a, b = factors[f"{name}.lora_a"], factors[f"{name}.lora_b"]
            base[name] = base[name] + np.float32(16.0 / len(a)) * (b @ a)
    return base


def print_merges(
    merges: Mapping[tuple[str, ...], Path], folder: Path, texts: Sequence[ScoredText], windows: int
) -> None:
    """Measure all merges, and print their sizes and gains."""
    bases = {encoding: folder / f"{MODEL}-{encoding}.gguf" for encoding in QUANTISED}
    losses = {path: scored(path, texts, windows) for path in (*bases.values(), *merges.values())}
    print("| base | merge | computed with | written as | size | of the base | gain | of the gain in Q8_0 |")
    print("|---|---|---|---|---|---|---|---|")
    best = {
        kind: gain(losses[merges[QUANTISED[0], kind, "proved", "same"]], losses[bases[QUANTISED[0]]], MERGES[kind])[0]
        for kind in MERGES
    }
    for (encoding, kind, source, encode), path in sorted(merges.items()):
        size, base_size = path.stat().st_size, bases[encoding].stat().st_size
        mean, error = gain(losses[path], losses[bases[encoding]], MERGES[kind])
        cells = [encoding, kind, source, encode, f"{size / 1e6:.1f} MB", f"{size / base_size:.3f}"]
        cells += [f"{100 * mean:+.2f}% ± {100 * error:.2f}", f"{mean / best[kind]:.0%}"]
        print(f"| {' | '.join(cells)} |")


def scored(path: Path, texts: Sequence[ScoredText], windows: int) -> Losses:
    """Return the losses of a model in windows that are spread over each text."""
    request = ScoringRequest(path, tuple(texts), (range(windows),) * len(texts))
    reading = LlamaCpp().read(request, lambda text, done: None)
    assert reading.failure is None, reading.failure
    return {score.text: [window.nats / window.tokens for window in score.windows] for score in reading.scores}


def gain(losses: Losses, base: Losses, texts: Sequence[str]) -> tuple[float, float]:
    """Return the relative change of the perplexity, the mean over texts, and its standard error."""
    found = []
    for text in texts:
        differences = [ours - theirs for ours, theirs in zip(losses[text], base[text], strict=True)]
        ratio = math.exp(fmean(differences))
        found.append((ratio - 1.0, ratio * stdev(differences) / math.sqrt(len(differences))))
    return fmean(mean for mean, _ in found), math.sqrt(sum(error**2 for _, error in found)) / len(found)


if __name__ == "__main__":
    main()
