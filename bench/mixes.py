"""Mixes beside llama.cpp: which organs of a quantisation are those of llama-quantize, byte by byte.

    python -m bench.mixes MODEL.gguf … [--mixes Q4_K_M,IQ4_XS] [--imatrix WEIGHTS.gguf]

Without a model it generates a mixture of experts, with importances that are drawn. The other quantiser is llama.cpp's
own, of the npm package @node-llama-cpp/linux-x64 (`make clients` installs it). Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.generated import Mixture, mixture_metadata, mixture_tensors
from organs.registry.gguf import Header, TensorInfo, read_header, write_file
from organs.registry.gguf.importance import ImportanceMatrix, read_importances
from organs.registry.gguf.mixes import MIXES, is_quantised, mixed_dtypes, traits_of, wants_importances
from organs.registry.gguf.types import DType
from organs.registry.input_files import FileSource
from organs.registry.transform import Computation, Plain, computed
from tests.gguf_files import importance_file
from tests.llama_quantizer import is_installed, quantised

WIDE = Mixture(blocks=4, width=256, experts=8, used=2, units=256, unused=0, rank=256)
"""Rows of whole blocks of all types, and experts whose number llama.cpp treats apart."""
UNWEIGHED = ("F32", "F16", "BF16", "Q8_0")


def main() -> None:
    """Compare all files, and print a line for each mix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--imatrix", type=Path)
    options = parser.parse_args()
    if not is_installed():
        raise SystemExit("the package of llama.cpp is missing: make clients")
    with tempfile.TemporaryDirectory() as folder:
        models, imatrix = options.models, options.imatrix
        if not models:
            models, imatrix = [Path(folder) / "mixture.gguf"], Path(folder) / "importances.gguf"
            write_generated(models[0], imatrix)
        print("| model | mix | importances | organs | equal | differ |\n|---|---|---|---:|---:|---|")
        for model in models:
            for mix in options.mixes.split(","):
                for matrix in dict.fromkeys((None, imatrix)):
                    print(compared(model, mix, matrix, Path(folder) / "theirs.gguf"), flush=True)


def write_generated(path: Path, imatrix: Path) -> None:
    """Write a mixture of experts, and an importance matrix for it."""
    tensors = mixture_tensors(WIDE)
    with path.open("wb") as stream:
        write_file(stream, mixture_metadata(WIDE), tensors)
    random = np.random.default_rng(0)
    specs = [spec for spec, _ in tensors if is_quantised(spec) and not spec.name.startswith("token_embd")]
    sizes = {spec.name: (spec.shape[2] if len(spec.shape) == 3 else 1, spec.shape[0]) for spec in specs}
    matrix = {name: random.exponential(size=size).astype(np.float32) for name, size in sizes.items()}
    imatrix.write_bytes(importance_file(matrix))


def compared(model: Path, mix: str, imatrix: Path | None, theirs: Path) -> str:
    """Return the line of a mix: how many organs are equal, and of the others the types and differing blocks."""
    theirs.unlink(missing_ok=True)
    with ExitStack() as opened:
        source = opened.enter_context(FileSource(model))
        header, matrix = read_header(source), None
        if imatrix is not None:
            with FileSource(imatrix) as file:
                matrix = read_importances(file)
        traits = replace(traits_of(header, source), by_importances=matrix is not None)
        title = f"| {model.stem} | {mix} | {'yes' if matrix else 'no'} |"
        types = mixed_dtypes(mix, header.tensors, traits)
        lacking = [name for name, dtype in types.items() if matrix is None and wants_importances(name, dtype, mix)]
        reason = quantised(model, theirs, MIXES[mix].file_type, imatrix)
        if reason or lacking:
            verdict = "both refuse" if reason and lacking else "**only one refuses**"
            return f"{title} – | – | {verdict} without an importance matrix |"
        other = opened.enter_context(FileSource(theirs))
        found = read_header(other)
        equal, differ = Counter[str](), list[str]()
        stored = {tensor.name: tensor for tensor in found.tensors}
        for tensor in header.tensors:
            own = stored[tensor.name]
            begin, dtype = found.data_offset + own.offset, types.get(tensor.name, tensor.dtype)
            if own.dtype != dtype:
                differ.append(f"{tensor.name}: {dtype.name}, not {own.dtype.name}")
                continue
            blocks = differing(pieces(source, header, tensor, dtype, matrix), other, begin, dtype)
            equal["yes" if not blocks else "no"] += 1
            differ += [f"{tensor.name} ({dtype.name}): {blocks:,} blocks"] if blocks else []
    return f"{title} {len(stored)} | {equal['yes']} | {'; '.join(differ) or '–'} |"


def pieces(
    source: FileSource, header: Header, tensor: TensorInfo, dtype: DType, matrix: ImportanceMatrix | None
) -> Iterator[bytes]:
    """Yield the bytes of a tensor in another type, as a recipe computes them."""
    begin = header.data_offset + tensor.offset
    plain = Plain(lambda offset, size: source.read_at(begin + offset, size), tensor.dtype, tensor.shape)
    if dtype == tensor.dtype:
        yield from (plain.read(at, min(1 << 22, plain.size_bytes - at)) for at in range(0, plain.size_bytes, 1 << 22))
        return
    weights = None
    if matrix is not None and dtype.name not in UNWEIGHED and matrix.fits(tensor.name, tensor.shape):
        weights = matrix.by_tensor[tensor.name]
    yield from computed(Computation(plain, dtype, importances=weights))


def differing(own: Iterator[bytes], other: FileSource, begin: int, dtype: DType) -> int:
    """Return how many blocks of a tensor differ from those in a file from `begin`."""
    count = 0
    for piece in own:
        stored = other.read_at(begin, len(piece))
        begin += len(piece)
        if piece != stored:
            rows = [np.frombuffer(data, np.uint8).reshape(-1, dtype.block_bytes) for data in (piece, stored)]
            count += int((rows[0] != rows[1]).any(axis=1).sum())
    return count


if __name__ == "__main__":
    main()
