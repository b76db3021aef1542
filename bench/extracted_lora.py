"""LoRA adapters extracted from real fine-tunes: their size, what they keep of the change, and of the gain.

    python -m bench.real_family FOLDER --dithered      first: train the family
    python -m bench.extracted_lora FOLDER              extract, merge and measure; print tables as Markdown

Needs the extra `validate`. `organ extract-lora` runs in a process of its own for each rank, of which processor time
and peak memory are taken; both include the registration. The adapter is merged back into the base by a recipe, in F16.
The share of the change is computed a
second time, from the values of the merged file. A gain is the change of the perplexity from that of the base, by
llama.cpp, paired by windows. The last child is the base with a trained LoRA of rank 8 merged into it in F16.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from threadpoolctl import threadpool_limits

from bench.merging import gain, scored
from bench.real_family import MODEL, decoded
from bench.real_models import divided
from organs.ingest.add import add_model
from organs.registry.entities.base import prepared
from organs.registry.entities.extraction import ExtractedAdapter
from organs.registry.local import LocalRegistry
from organs.registry.settings import HOME_VARIABLE
from organs.registry.validation.texts import ScoredText

RANKS = (4, 16, 64, 576)
"""The last one is the width: nothing of a matrix is lost."""
CHILDREN = {"Code": "code", "Docs": "docs", "merged-LoRA": "code"}
"""The children, with the text for which each was trained."""
HEADINGS = (
    *("fine-tune", "rank", "size", "of the model", "processor, s", "peak MB"),
    *("kept: attention", "feed-forward", "all matrices", "by the complete decomposition", "in the merged file"),
    *("of everything that changed", "gain", "of its gain"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the family")
    parser.add_argument("children", nargs="*", default=list(CHILDREN), help="the fine-tunes, by default all")
    parser.add_argument("--windows", type=int, default=40, help="the windows of 512 tokens of the text; 0: no gains")
    options = parser.parse_args()
    texts = {text.name: text for text in divided(options.folder / "texts")[1]}
    base = options.folder / f"{MODEL}-F16.gguf"
    threadpool_limits(1)  # threads of the BLAS wait actively, which takes minutes on a busy machine
    with tempfile.TemporaryDirectory() as folder, LocalRegistry.open(Path(folder) / "home") as registry:
        place = Path(folder)
        for path in (base, options.folder / f"{MODEL}-LoRA-F32.gguf"):
            add_model(registry, path)
        for cells in (HEADINGS, ["---"] * len(HEADINGS)):
            print(f"| {' | '.join(cells)} |")
        for name in options.children:
            child = options.folder / f"{MODEL}-{name}-F16.gguf"
            if not child.exists():
                child = place / child.name
                merge(registry, f"{MODEL}-LoRA-F32", child)
            add_model(registry, child)
            gains = _Gains(texts[CHILDREN[name]], options.windows, base, child)
            cells = [name, "itself", f"{child.stat().st_size / 1e6:.1f} MB", *[""] * 9, *gains.of(child)]
            print(f"| {' | '.join(cells)} |", flush=True)
            best = best_shares(base, child)
            for rank in RANKS:
                adapter, merged = place / f"{name}-r{rank}.gguf", place / "merged.gguf"
                found, *cost = extracted(registry, child.stem, rank, adapter)
                merge(registry, add_model(registry, adapter).model or "", merged)
                size = adapter.stat().st_size
                cells = [name, str(rank), f"{size / 1e6:.1f} MB", f"{size / base.stat().st_size:.1%}"]
                cells += [f"{figure:.0f}" for figure in cost]
                cells += [*shares(found), f"{best[rank]:.2%}", f"{kept_by(base, child, merged):.2%}"]
                print(f"| {' | '.join([*cells, f'{found.kept:.1%}', *gains.of(merged)])} |", flush=True)
                merged.unlink()


class _Gains:
    """The gains of models on the text of a fine-tune."""

    def __init__(self, text: ScoredText, windows: int, base: Path, child: Path) -> None:
        self.text, self.windows, self.whole = text, windows, 0.0
        if windows:
            self.base = scored(base, [text], windows)
            self.child = child, scored(child, [text], windows)
            self.whole = gain(self.child[1], self.base, [text.name])[0]

    def of(self, path: Path) -> list[str]:
        """Return the gain of a model with its error, and its share of that of the fine-tune."""
        if not self.windows:
            return ["", ""]
        losses = self.child[1] if path == self.child[0] else scored(path, [self.text], self.windows)
        mean, error = gain(losses, self.base, [self.text.name])
        return [f"{100 * mean:+.2f}% ± {100 * error:.2f}", f"{mean / self.whole:.0%}"]


PROGRAM = """
import atexit
import re
import sys
from pathlib import Path

from organs.cli.main import main

status = Path("/proc/self/status")
atexit.register(lambda: print(re.search("VmHWM:[^0-9]*([0-9]+)", status.read_text())[1], file=sys.stderr))
main()
"""
"""`organ`, which prints at its end the peak of its memory in KiB: that of a child would be at least its parent's."""


def merge(registry: LocalRegistry, adapter: str, path: Path) -> None:
    """Write the base with an adapter merged into it, in F16."""
    registry.compose(f"{MODEL}-F16").adapter(adapter).plan().accepting_all().assemble(path)


def extracted(registry: LocalRegistry, child: str, rank: int, path: Path) -> tuple[ExtractedAdapter, float, float]:
    """Extract an adapter in a process of its own; return it with the processor's seconds and the peak memory in MB."""
    words = ["extract-lora", child, "--base", f"{MODEL}-F16", "--rank", str(rank), "-o", str(path), "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True,
        env={**os.environ, HOME_VARIABLE: registry.location},
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = msgspec.convert(json.loads(done.stdout), prepared(ExtractedAdapter))
    return found, seconds, int(done.stderr.split()[-1]) * 1024 / 1e6


def shares(found: ExtractedAdapter) -> list[str]:
    """Return what is kept of attention, of feed-forward, and of both."""
    kept = {kind.type: kind.kept for kind in found.types}
    whole = sum(kind.of_change for kind in found.types)
    return [f"{kept['skeleton']:.1%}", f"{kept['organ']:.1%}", f"{found.kept / whole:.2%}"]


def best_shares(base: Path, child: Path) -> dict[int, float]:
    """Return what the complete decomposition of each matrix keeps of the change of all matrices, by rank."""
    ours, theirs = decoded(base), decoded(child)
    whole, kept = 0.0, dict.fromkeys(RANKS, 0.0)
    for name in (name for name, values in ours.items() if values.ndim == 2 and name.startswith("blk.")):
        squares = np.linalg.svd(theirs[name].astype(np.float64) - ours[name], compute_uv=False) ** 2
        whole += squares.sum()
        for rank in RANKS:
            kept[rank] += squares[:rank].sum()
    return {rank: value / whole for rank, value in kept.items()}


def kept_by(base: Path, child: Path, merged: Path) -> float:
    """Return the share of the change of the matrices in a merged file: 1 − ‖child − merged‖² / ‖child − base‖²."""
    before, wanted, found = (decoded(path) for path in (base, child, merged))
    rest = whole = 0.0
    for name in (name for name, values in before.items() if values.ndim == 2 and name.startswith("blk.")):
        whole += float(((wanted[name] - before[name].astype(np.float64)) ** 2).sum())
        rest += float(((wanted[name] - found[name].astype(np.float64)) ** 2).sum())
    return 1.0 - rest / whole


if __name__ == "__main__":
    main()
