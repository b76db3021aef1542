"""The memory that `organ memory` counts, for some contexts, with every part.

    python -m bench.memory FILE.gguf ...

Each file is counted twice: itself, and as a file of which only the header is real. Needs the extra `validate`. Prints a
table as Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from organs.registry.entities.memory import MemoryCount
from organs.registry.validation.memory import MemoryRequest, counted_memory, write_hole
from organs.registry.validation.weights import Weights

CONTEXTS = (512, 2048, 8192)
MIB = 1024**2
HEADINGS = ("model", "context", "weights", "repacked", "cache", "compute", "total, MiB", "total with a hole, MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    print("| " + " | ".join(HEADINGS) + " |\n" + "|---" * len(HEADINGS) + "|")
    for path in parser.parse_args().files:
        for tokens in CONTEXTS:
            count, hole = counted_memory(path, MemoryRequest(tokens)), counted_hole(path, tokens)
            parts = (count.weights_bytes, count.repacked_bytes, count.cache_bytes, count.compute_bytes)
            figures = [f"{size / MIB:.2f}" for size in (*parts, count.total_bytes, hole.total_bytes)]
            print("| " + " | ".join([path.stem, f"{tokens:,}", *figures]) + " |", flush=True)


def counted_hole(path: Path, tokens: int) -> MemoryCount:
    """Return the count of a file with the header of `path`, and a hole in the place of its data."""
    with Weights(path) as weights, tempfile.TemporaryDirectory() as folder:
        (file,), (header,) = weights.files, weights.headers
        target = Path(folder) / "hole.gguf"
        write_hole(target, file.read_at(0, header.data_offset), file.size_bytes)
        return counted_memory(target, MemoryRequest(tokens))


if __name__ == "__main__":
    main()
