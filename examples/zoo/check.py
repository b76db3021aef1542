"""Check every file of the zoo and write the results: the cards and the tables of the README.

    python examples/zoo/check.py

Reads the GGUF files beside it, as they are shipped, and the held-out texts in the cache folder of `train.py`. In torch:
each model's perplexity, the correlation of its feed-forward organs with those of A, and the effect on A when they are
grafted into it. In llama.cpp (the package xllamacpp): that it loads each file, its generated text, and the perplexity
of the two samples.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cards
import plan
import torch
from network import FEED_FORWARD, Network
from torch import Tensor
from torch.nn import functional

from organs.registry.gguf import MemorySource, read_header
from organs.registry.gguf.quants import dequantize

FOLDER = Path(__file__).parent
KINDS = ("code", "prose")
ROWS = 64
ROWS_AT_ONCE = 16
START_ID = 0
RUNTIME_LIMIT_SECONDS = 300

Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Rows of start token and held-out text, (rows, context + 1), by kind."""

    rows: dict[str, Tensor]

    def perplexities(self, shipped: plan.Shipped, weights: Weights) -> dict[str, float]:
        """Return exp of the mean surprise over all rows, by kind."""
        run = plan.run_named(shipped.run)
        network = Network(run.shape, run.seed, run.adapter)
        network.load(weights)
        return {kind: _perplexity(network, rows) for kind, rows in self.rows.items()}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="Check the zoo.")
    cache = Path(tempfile.gettempdir()) / "organ-registry-zoo"
    parser.add_argument("--work", type=Path, default=cache, help="cache folder")
    work = parser.parse_args().work
    torch.set_num_threads(2)
    held_out = HeldOut({kind: _rows(torch.load(work / f"held_out_{kind}.pt")) for kind in KINDS})
    models = [(shipped, read_weights(FOLDER / shipped.file_name)) for shipped in plan.SHIPPED]
    figures = {
        "models": [_model_figures(shipped, weights, models, held_out, work) for shipped, weights in models],
        "grafts": _graft_figures({shipped.card: weights for shipped, weights in reversed(models)}, held_out),
        "texts": json.loads((work / "texts.json").read_text()),
    }
    (work / "figures.json").write_text(json.dumps(figures, indent=1))
    cards.write_all(figures, FOLDER)
    print(cards.tables(figures))


def read_weights(path: Path) -> Weights:
    """Return the values of every tensor of a GGUF by the names of `network`, (rows, columns)."""
    source = MemorySource(path.read_bytes())
    header = read_header(source)
    weights = {}
    for tensor in header.tensors:
        data = source.read_at(header.data_offset + tensor.offset, tensor.size_bytes)
        values = torch.tensor(dequantize(data, tensor.dtype))
        weights[tensor.name.replace(".weight", "")] = values.reshape(tuple(reversed(tensor.shape)))
    return weights


def correlations(weights: Weights, others: Weights) -> list[float]:
    """Return Pearson's correlation of each feed-forward organ with its counterpart, over the whole tensors."""
    names = [name for name in weights if name.endswith(FEED_FORWARD)]
    pairs = (torch.stack((weights[name].flatten().double(), others[name].flatten().double())) for name in names)
    return [float(torch.corrcoef(pair)[0, 1]) for pair in pairs]


def _rows(stream: Tensor) -> Tensor:
    """Return rows spread evenly over the stream."""
    starts = torch.linspace(0, len(stream) - plan.CONTEXT, ROWS).long().tolist()
    begin = torch.tensor([START_ID])
    return torch.stack([torch.cat((begin, stream[start : start + plan.CONTEXT].long())) for start in starts])


@torch.no_grad()
def _perplexity(network: Network, rows: Tensor) -> float:
    total = 0.0
    for part in torch.split(rows, ROWS_AT_ONCE):
        scores = network(part[:, :-1]).flatten(0, 1)
        total += float(functional.cross_entropy(scores, part[:, 1:].flatten(), reduction="sum"))
    return math.exp(total / rows[:, 1:].numel())


def _model_figures(
    shipped: plan.Shipped, weights: Weights, models: list[tuple[plan.Shipped, Weights]], held_out: HeldOut, work: Path
) -> dict[str, Any]:
    """Return the figures of one file; an adapter is measured on top of A."""
    run = plan.run_named(shipped.run)
    base = models[0][1]
    figures: dict[str, Any] = {"card": shipped.card, "file": shipped.file_name}
    figures["size_bytes"] = (FOLDER / shipped.file_name).stat().st_size
    figures["cpu_seconds"] = torch.load(work / f"{run.name}-state.pt", weights_only=False)["seconds"]
    figures["perplexity"] = held_out.perplexities(shipped, base | weights if run.adapter else weights)
    if run.shape == plan.BASE_SHAPE and not run.adapter:
        alike = correlations(weights, base)
        figures["correlation"] = {"mean": sum(alike) / len(alike), "least": min(alike), "most": max(alike)}
    files = [models[0][0].file_name, shipped.file_name] if run.adapter else [shipped.file_name]
    figures["runtime"] = _in_llama_cpp(files)
    return figures


def _in_llama_cpp(files: list[str]) -> Any:
    command = [sys.executable, str(FOLDER / "runtime.py"), *(str(FOLDER / name) for name in files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUNTIME_LIMIT_SECONDS, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _graft_figures(models: dict[str, Weights], held_out: HeldOut) -> list[dict[str, Any]]:
    """Return perplexities of A, or of another base, with the feed-forward organs of a donor in all blocks or in one."""
    everywhere = range(plan.BASE_SHAPE.blocks)
    donors = ["a-code", "a-prose", "a-step-270", "a-branch", "a-step-100", "b"]
    wanted: list[tuple[str, str, Iterable[int]]] = [("a", donor, everywhere) for donor in donors]
    wanted += [("a-code", "a-prose", everywhere), ("a-prose", "a-code", everywhere), ("a", "", everywhere)]
    wanted += [("a", donor, [block]) for block in everywhere for donor in ("b", "")]
    shipped = plan.SHIPPED[0]
    figures = []
    for base, donor, blocks in wanted:
        grafted = _grafted(models[base], models.get(donor), blocks)
        perplexity = held_out.perplexities(shipped, grafted)
        figures.append({"base": base, "donor": donor, "blocks": list(blocks), "perplexity": perplexity})
    return figures


def _grafted(base: Weights, donor: Weights | None, blocks: Iterable[int]) -> Weights:
    """Return `base` with the feed-forward organs of `donor` in `blocks`, or with zeros there if there is no donor."""
    names = [f"blk.{block}.{slot}" for block in blocks for slot in FEED_FORWARD]
    return base | {name: donor[name] if donor else torch.zeros_like(base[name]) for name in names}


if __name__ == "__main__":
    main()
