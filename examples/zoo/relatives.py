"""The similarity of the zoo's models: by fingerprints, as in the registry, and by all weights.

    python examples/zoo/relatives.py

Prints the table of bench/results/relatives-zoo.md: every model that has matrices of Zoo A's shapes against Zoo A in
F16, and every other pair in one line. A row has the mean correlation of the matrices by type, by fingerprints and over
whole tensors.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from organs.registry.anatomy import Slot, place_of
from organs.registry.gguf import MemorySource, read_header
from organs.registry.gguf.quants import dequantize
from organs.registry.measure import measure
from organs.registry.similarity import ComparableOrgan, similarity

FOLDER = Path(__file__).parent
BASE = "Zoo-A-2M-v1.0-F16"
TYPES = ("embed", "skeleton", "organ")


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's organs in the form for comparison, and all values of each."""

    organs: dict[Slot, ComparableOrgan]
    values: dict[Slot, NDArray[np.float32]]


def main() -> None:
    """Compare and print."""
    models = {path.stem: read_weights(path) for path in sorted(FOLDER.glob("*.gguf"))}
    rows = [(name, BASE, compared(models[BASE], models[name])) for name in models if name != BASE]
    print("| model | embeddings | attention | feed-forward | all matrices |")
    print("|---|---:|---:|---:|---:|")
    for name, _, figures in rows:
        if figures:
            cells = " | ".join(f"{ours:.3f} / {whole:.3f}" for ours, whole in figures.values())
            print(f"| {name} | {cells} |")
    pairs = [compared(models[pair], models[other]) for pair, other in combinations(models, 2)]
    apart = [abs(ours - whole) for figures in pairs if figures for ours, whole in [figures["all"]]]
    sys.stdout.write(f"\n{len(apart)} pairs; fingerprints and whole tensors differ by {fmean(apart):.3f} in the mean, ")
    sys.stdout.write(f"{max(apart):.3f} at most\n")


def read_weights(path: Path) -> Weights:
    """Return every tensor of a file, measured as by an ingest, and its values."""
    source = MemorySource(path.read_bytes())
    header = read_header(source)
    weights = Weights({}, {})
    for tensor in header.tensors:
        data = source.read_at(header.data_offset + tensor.offset, tensor.size_bytes)
        place = place_of(tensor.name)
        slot = (place.tower.value, place.block, place.slot)
        fingerprint = measure(lambda at, size, data=data: data[at : at + size], tensor.shape, tensor.dtype).fingerprint
        weights.organs[slot] = ComparableOrgan(
            place.type.value, tensor.shape, tensor.dtype.name, fingerprint, bytes(data)
        )
        weights.values[slot] = dequantize(data, tensor.dtype)
    return weights


def compared(first: Weights, second: Weights) -> Mapping[str, tuple[float, float]]:
    """Return, by type and over all, the similarity by fingerprints and by whole tensors; empty if nothing is
    comparable.
    """
    ours = similarity(first.organs, second.organs)
    if ours.mean is None:
        return {}
    whole = {slot: float(np.corrcoef(first.values[slot], second.values[slot])[0, 1]) for slot in ours.by_organ}
    of_type = {kind: [whole[slot] for slot in whole if first.organs[slot].type == kind] for kind in TYPES}
    figures = {kind: (ours.by_type[kind], fmean(values)) for kind, values in of_type.items() if values}
    return figures | {"all": (ours.mean, fmean(whole.values()))}


if __name__ == "__main__":
    main()
