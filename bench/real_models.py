"""Measure grafts and merges of a real pretrained family: what is said beforehand, and what is true.

    python -m bench.real_family FOLDER                        first: train the family
    python -m bench.real_models FOLDER                        compose and measure what has no row yet, 4 minutes each
    python -m bench.real_models FOLDER --minutes 60           begin no graft after so many minutes
    python -m bench.real_models FOLDER --only "LoRA x 3"      only the grafts with these words in their names
    python -m bench.real_models --table                       print the rows as a table

Needs the extra `validate` and the group `bench-real`. Grafts are composed by the registry in FOLDER/home; blends are
computed here, written as F16 and ingested. All are changes of the base in F16. A row has four columns:

    screen   what the plan says before anything is made; blends have no plan
    quick    the quick look, and
    verdict  the verdict, each by its function in COLUMNS
    truth    -ln p for each token of each window, over 20,000 tokens of each of the three texts

The truth of the base is the row `base`. The change of a graft is the mean of its differences from the base, window by
window, and its error the standard error of that mean. The texts are held-out files (`bench.real_family`), and no
window of them is in the built-in texts that quick look and verdict use.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bench.real_family import MODEL, Tensors, decoded, write_model
from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.compose.api import Composition
from organs.registry.local import LocalRegistry
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.runtime import WINDOW_TOKENS, Request
from organs.registry.validation.texts import read_text, spread_order

TABLE = Path(__file__).with_name("grafts_real.json")
TEXTS = ("code", "docs", "prose")
TRUTH_TOKENS = 20_000
TRUTH_SECONDS = 7200.0
BASE = f"{MODEL}-F16"
Row = dict[str, Any]
Column = Callable[[LocalRegistry, str, str], Any]
COLUMNS: dict[str, Column] = {}
"""The columns `quick` and `verdict`: each a function of the registry and the names of a composed model and its base,
which returns what JSON can hold."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A composition to measure: the steps of a recipe on the base, or a blend.

    A blend is the base plus, for each relative, its weight times its difference from the base.
    """

    kind: str
    name: str
    steps: Callable[[Composition], Composition] = lambda composition: composition
    blend: Mapping[str, float] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="the folder of the family")
    parser.add_argument("--texts", type=Path, help="the folder of the texts (default: FOLDER/texts)")
    parser.add_argument("--json", type=Path, default=TABLE, help="the rows")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no graft after so many minutes")
    parser.add_argument("--tokens", type=int, default=TRUTH_TOKENS, help="tokens of each text for the truth")
    parser.add_argument("--only", help="only grafts with these words in their names")
    parser.add_argument("--table", action="store_true", help="print the rows as a table, and measure nothing")
    options = parser.parse_args()
    rows: list[Row] = json.loads(options.json.read_text()) if options.json.exists() else []
    if options.table or options.folder is None:
        print_table(rows)
        return
    ends = time.monotonic() + 60.0 * options.minutes
    texts = options.texts or options.folder / "texts"
    truth = partial(truth_of, texts=texts, tokens=options.tokens)
    wanted = [trial for trial in in_order(trials()) if options.only is None or options.only in trial.name]
    with LocalRegistry.open(options.folder / "home") as registry:
        for source in find_sources([str(path) for path in sorted(options.folder.glob("*.gguf"))]):
            ingest_model(registry, source)
        for row in measured(registry, options.folder, wanted, {row["name"]: row for row in rows}, truth, ends):
            rows = [*(other for other in rows if other["name"] != row["name"]), row]
            write_rows(options.json, rows)


def measured(
    registry: LocalRegistry,
    folder: Path,
    wanted: Sequence[Trial],
    known: Mapping[str, Row],
    truth: Callable[[Path], Row],
    ends: float,
) -> Iterator[Row]:
    """Yield the row of the base, and of each trial, as soon as a column was missing and is measured."""
    if "base" not in known:
        yield {"name": "base", "kind": "base", "model": f"local/{BASE}", "truth": truth(folder / f"{BASE}.gguf")}
    for trial in wanted:
        if time.monotonic() > ends:
            return
        row = dict(known.get(trial.name, {}))
        missing = [column for column in COLUMNS if row.get(column) is None]
        begun = time.monotonic()
        if not row:
            with composed(registry, folder, trial) as (path, row):
                row["truth"] = truth(path)
        elif not missing:
            continue
        row |= {column: COLUMNS[column](registry, row["model"], f"local/{BASE}") for column in missing}
        print(f"{trial.kind}, {trial.name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        yield row


@contextmanager
def composed(registry: LocalRegistry, folder: Path, trial: Trial) -> Iterator[tuple[Path, Row]]:
    """Compose a model and register it; yield its file, which is then removed, and its row."""
    row: Row = {"name": trial.name, "kind": trial.kind, "quick": None, "verdict": None}
    with tempfile.TemporaryDirectory(prefix="real-", dir=folder) as place:
        path = Path(place, f"{'-'.join(trial.name.replace('.', '_').split())}.gguf")
        if trial.blend:
            values = blended(folder, trial.blend)
            write_model(folder / f"{BASE}.gguf", path, f"{MODEL} {trial.name}", values, "F16", {})
            (source,) = find_sources([str(path)])
            yield path, row | {"model": ingest_model(registry, source).model, "screen": None}
        else:
            plan = trial.steps(registry.compose(f"local/{BASE}")).plan().accepting_all()
            made = plan.assemble(path)
            said = plan.screen if hasattr(plan, "screen") else plan.prediction
            yield path, row | {"model": made.model, "screen": said.sentence}


def blended(folder: Path, weights: Mapping[str, float]) -> Tensors:
    """Return the base plus the weighted differences of relatives from it."""
    base = decoded(folder / f"{BASE}.gguf")
    total = {name: values.copy() for name, values in base.items()}
    for relative, weight in weights.items():
        for name, values in decoded(folder / f"{MODEL}-{relative}-F16.gguf").items():
            total[name] += weight * (values - base[name])
    return total


def truth_of(path: Path, *, texts: Path, tokens: int) -> dict[str, list[float]]:
    """Return for each text the nats for each token of windows that are spread over it, together `tokens` tokens."""
    read = tuple(read_text(texts / f"{name}.txt") for name in TEXTS)
    ranks = (range(-(-tokens // (WINDOW_TOKENS - 1))),) * len(read)
    reading = LlamaCpp().read(Request(path, read, ranks, seconds=TRUTH_SECONDS), lambda text, done: None)
    if reading.failure is not None:
        raise RuntimeError(f"{path.name}: {reading.failure.reason}")
    return {score.text: [round(window.nats / window.tokens, 5) for window in score.windows] for score in reading.scores}


def in_order(wanted: Sequence[Trial]) -> list[Trial]:
    """Return trials in an order of which each beginning has all kinds."""
    return [wanted[place] for place in spread_order(len(wanted))]


def trials() -> list[Trial]:
    """Return the compositions: of every kind, from harmless to broken."""
    return [
        *_whole(),
        *_parts(),
        *(_adapted(scale) for scale in (1.0, 2.0, 3.0, 8.0, -1.0)),
        Trial("LoRA", "Code feed-forward + LoRA", lambda base: _from(base, "Code", "organ").adapter(_name("LoRA-F32"))),
        *_purified(),
        *(Trial("quantised", f"{name} feed-forward", partial(_from, donor=name, types="organ")) for name in QUANTISED),
        *(Trial("blend", " + ".join(f"{weight:g} {name}" for name, weight in blend.items()), blend=blend)
          for blend in BLENDS),
    ]  # fmt: skip


QUANTISED = ("Code-Q4_K_M", "Q4_K_M")
BLENDS: tuple[dict[str, float], ...] = (
    {"Code": 0.5}, {"Code": 0.5, "Docs": 0.5}, {"Code": 1.0, "Docs": 1.0}, {"Code": 2.0}, {"Drift": 0.5},
    {"Code": 0.5, "Drift": 0.5}, {"Code": 1.0, "Docs": 1.0, "Drift": 0.5}, {"Stranger": 0.05},
)  # fmt: skip


def _name(relative: str) -> str:
    return f"local/{MODEL}-{relative}"


def _from(base: Composition, donor: str, types: str | None = None, blocks: str | None = None) -> Composition:
    """Graft organs of a relative, in F16 unless its name has an encoding."""
    encoded = donor if donor.endswith("Q4_K_M") else f"{donor}-F16"
    return base.graft(_name(encoded), type=types, blocks=blocks)


def _whole() -> Iterator[Trial]:
    for donor in ("Code", "Docs", "Drift"):
        for what, types in (("all", None), ("feed-forward", "organ"), ("attention", "skeleton")):
            yield Trial("whole", f"{donor} {what}", partial(_from, donor=donor, types=types))
    for donor, kind, types in (
        ("Code", "embeddings", "embed"),
        ("Drift", "embeddings", "embed"),
        ("Drift", "norms", "norm"),
    ):
        yield Trial(kind, f"{donor} {kind}", partial(_from, donor=donor, types=types))
    for first, second in (("Code", "Docs"), ("Docs", "Code")):
        yield Trial(
            "mixed",
            f"{first} feed-forward, {second} attention",
            lambda base, first=first, second=second: _from(_from(base, first, "organ"), second, "skeleton"),  # type: ignore[misc]
        )


def _parts() -> Iterator[Trial]:
    for donor, what, types, blocks in (
        ("Code", "blocks 0-14", "organ,skeleton", "0-14"),
        ("Docs", "feed-forward 15-29", "organ", "15-29"),
        ("Drift", "blocks 0-9", "organ,skeleton", "0-9"),
        ("Drift", "block 15", "organ,skeleton", "15"),
        ("Stranger", "attention 20", "skeleton", "20"),
        ("Stranger", "attention 8", "skeleton", "8"),
        ("Stranger", "feed-forward 20", "organ", "20"),
        ("Stranger", "feed-forward 8", "organ", "8"),
        ("Stranger", "feed-forward 20-23", "organ", "20-23"),
    ):
        kind = "blocks" if "-" in blocks else "one block"
        yield Trial(kind, f"{donor} {what}", partial(_from, donor=donor, types=types, blocks=blocks))


def _adapted(scale: float) -> Trial:
    return Trial("LoRA", f"LoRA x {scale:g}", lambda base: base.adapter(_name("LoRA-F32"), scale))


def _purified() -> Iterator[Trial]:
    for what, types, blocks, keep in (
        ("feed-forward", "organ", None, 0.97),
        ("feed-forward", "organ", None, 0.99),
        ("feed-forward 15-19", "organ", "15-19", 0.95),
        ("attention", "skeleton", None, 0.99),
    ):
        step = partial(Composition.purify, method="spectral", type=types, blocks=blocks, keep=keep)
        yield Trial("purified", f"{what}, keep {keep:g}", step)
    step = partial(Composition.purify, method="fractal", type="organ", blocks="20")
    yield Trial("purified", "feed-forward 20, fractal", step)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as JSON, one to a line; the file is replaced as a whole."""
    part = path.with_suffix(".part")
    part.write_text(
        "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows) + "\n]\n"
    )
    part.rename(path)


def change(row: Row, base: Row, text: str) -> tuple[float, float]:
    """Return the change of the perplexity of a text in percent, and its standard error in percent."""
    differences = [ours - theirs for ours, theirs in zip(row["truth"][text], base["truth"][text], strict=True)]
    mean = fmean(differences)
    if not math.isfinite(mean):
        return math.inf, math.nan
    ratio = math.exp(mean)
    return 100.0 * (ratio - 1.0), 100.0 * ratio * stdev(differences) / math.sqrt(len(differences))


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows as Markdown: changes of perplexity in percent ± the standard error."""
    base = next((row for row in rows if row["name"] == "base"), None)
    if base is None:
        print("no rows yet")
        return
    titles = ["kind", f"{MODEL} with", *TEXTS, "screen", "quick look", "verdict"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for row in sorted((row for row in rows if row is not base), key=lambda row: (row["kind"], row["name"])):
        truth = [f"{mean:+.1f} ± {error:.1f}" for mean, error in (change(row, base, text) for text in TEXTS)]
        columns = [str(row[column] or "–") for column in ("screen", "quick", "verdict")]
        print(f"| {' | '.join([row['kind'], row['name'], *truth, *columns])} |")


if __name__ == "__main__":
    main()
