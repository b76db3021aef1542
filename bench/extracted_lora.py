"""LoRA adapters extracted from real fine-tunes: their size, what they keep of the change, and of the gain.

    python -m bench.real_family FOLDER --dithered      first: train the family
    python -m bench.extracted_lora FOLDER              extract, merge and measure; print tables as Markdown

Needs the extra `validate`. `organ extract-lora` runs in a process of its own for each rank, of which time and peak
memory are taken. The adapter is merged back into the base by a recipe, in F16. The share of the change is computed a
second time, from the values of the merged file. A gain is the change of the perplexity from that of the base, by
llama.cpp, paired by windows. The last child is the base with a trained LoRA of rank 8 merged into it in F16.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from bench.merging import Losses, gain, scored
from bench.real_family import MODEL, decoded
from bench.real_models import divided
from organs.ingest.add import add_model
from organs.registry.entities.base import prepared
from organs.registry.entities.extraction import ExtractedAdapter
from organs.registry.local import LocalRegistry
from organs.registry.settings import HOME_VARIABLE

RANKS = (4, 16, 64, 576)
"""The last one is the width: nothing of a matrix is lost."""
CHILDREN = {"Code": "code", "Docs": "docs", "merged-LoRA": "code"}
"""The children, with the text for which each was trained."""
SHARES = (
    *("fine-tune", "rank", "size", "of the model", "seconds", "peak MB"),
    *("kept: attention", "feed-forward", "all matrices", "by the complete decomposition", "in the merged file"),
    "of everything that changed",
)
GAINS = ("fine-tune", "rank", "gain on its text", "of its gain", "gain on the other text")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the family")
    parser.add_argument("--windows", type=int, default=40, help="the windows of 512 tokens of each text")
    options = parser.parse_args()
    texts = [text for text in divided(options.folder / "texts")[1] if text.name != "prose"]
    base = options.folder / f"{MODEL}-F16.gguf"
    rows: dict[tuple[str, ...], list[list[str]]] = {SHARES: [], GAINS: []}
    with tempfile.TemporaryDirectory() as folder, LocalRegistry.open(Path(folder) / "home") as registry:
        place = Path(folder)
        paths = {name: options.folder / f"{MODEL}-{name}-F16.gguf" for name in CHILDREN}
        paths["merged-LoRA"] = place / f"{MODEL}-merged-LoRA-F16.gguf"
        for path in (base, options.folder / f"{MODEL}-LoRA-F32.gguf"):
            add_model(registry, path)
        merge(registry, f"{MODEL}-LoRA-F32", paths["merged-LoRA"])
        for path in paths.values():
            add_model(registry, path)
        losses = {path: scored(path, texts, options.windows) for path in (base, *paths.values())}
        for name, own in CHILDREN.items():
            other = next(text.name for text in texts if text.name != own)
            whole = gain(losses[paths[name]], losses[base], [own])[0]
            rows[GAINS].append([name, "itself", *gained(losses[paths[name]], losses[base], own, other, whole)])
            best = best_shares(base, paths[name])
            for rank in RANKS:
                adapter, merged = place / f"{name}-r{rank}.gguf", place / "merged.gguf"
                found, *cost = extracted(registry, paths[name].stem, rank, adapter)
                merge(registry, add_model(registry, adapter).model or "", merged)
                row = gained(scored(merged, texts, options.windows), losses[base], own, other, whole)
                rows[GAINS].append([name, str(rank), *row])
                kept = [*shares(found), f"{best[rank]:.2%}", f"{kept_by(base, paths[name], merged):.2%}"]
                sizes = [
                    f"{adapter.stat().st_size / 1e6:.1f} MB",
                    f"{adapter.stat().st_size / base.stat().st_size:.1%}",
                ]
                costs = [f"{figure:.0f}" for figure in cost]
                rows[SHARES].append([name, str(rank), *sizes, *costs, *kept, f"{found.kept:.1%}"])
                print(rows[SHARES][-1], rows[GAINS][-1], file=sys.stderr, flush=True)
                merged.unlink()
    for headings, lines in rows.items():
        print(
            "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *lines)), end="\n\n"
        )


def merge(registry: LocalRegistry, adapter: str, path: Path) -> None:
    """Write the base with an adapter merged into it, in F16."""
    registry.compose(f"{MODEL}-F16").adapter(adapter).plan().accepting_all().assemble(path)


def extracted(registry: LocalRegistry, child: str, rank: int, path: Path) -> tuple[ExtractedAdapter, float, float]:
    """Extract an adapter in a process of its own; return it with the seconds and the peak of memory in MB."""
    words = ["extract-lora", child, "--base", f"{MODEL}-F16", "--rank", str(rank), "-o", str(path), "--json"]
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "organs.cli", *words],
        stdout=subprocess.PIPE,
        env={**os.environ, HOME_VARIABLE: registry.location},
    )
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, words
    return msgspec.convert(json.loads(out), prepared(ExtractedAdapter)), time.monotonic() - begun, usage.ru_maxrss / 1e3


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


def gained(losses: Losses, base: Losses, own: str, other: str, whole: float) -> list[str]:
    """Return the gain on the own text, its share of `whole`, and the gain on the other text."""
    mean, error = gain(losses, base, [own])
    return [gain_text((mean, error)), f"{mean / whole:.0%}", gain_text(gain(losses, base, [other]))]


def gain_text(found: tuple[float, float]) -> str:
    return f"{100 * found[0]:+.2f}% ± {100 * found[1]:.2f}"


if __name__ == "__main__":
    main()
