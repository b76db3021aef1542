"""Measure grafts and merges of a real pretrained family: what is said beforehand, and what is true.

    python -m bench.real_family FOLDER                        first: train the family
    python -m bench.real_models FOLDER                        compose and measure what has no row yet
    python -m bench.real_models FOLDER --minutes 60           begin no graft after so many minutes
    python -m bench.real_models FOLDER --only "LoRA x 3"      only the grafts with this text in their names
    python -m bench.real_models --table                       print the rows: bench/results/real-model.md
    python -m bench.real_models --table short                 a few of them: README.md

Needs the extra `validate` and the group `bench-real`. All are composed by the registry in FOLDER/home, as changes of
the base in F16. A row has four columns:

    screen   what the plan says before anything is made
    quick    a quick look of 30 seconds on the first quarter of each of the three texts
    verdict  a validation with its default budget on the built-in texts
    truth    -ln p for each token of each window, over 20,000 tokens of the other three quarters of each text, by
             another implementation: the network of the training, in float32 with PyTorch

The truth of the base is the row `base`. The change of a graft is the mean of its differences from the base, window by
window, and its error the standard error of that mean. The texts are held-out files (`bench.real_family`). With
`--columns`, only these columns are measured.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import msgspec

from bench.real_family import MODEL, decoded, network_of, window_losses
from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.amounts import change_text
from organs.registry.compose.api import Composition
from organs.registry.digest import digest_of
from organs.registry.entities.base import Entity, encode
from organs.registry.errors import NotComposedHere
from organs.registry.local import LocalRegistry
from organs.registry.validation.comparison import validate
from organs.registry.validation.decoder import opened
from organs.registry.validation.llama import LlamaCpp, usable_cores
from organs.registry.validation.quick import quick_look
from organs.registry.validation.run import CatalogScores, registered_candidate
from organs.registry.validation.runtime import WINDOW_TOKENS
from organs.registry.validation.texts import ScoredText, built_in_texts, read_text, spread_order

TABLE = Path(__file__).with_name("grafts.json")
TEXTS = ("code", "docs", "prose")
COLUMNS = ("truth", "quick", "verdict")
TRUTH_TOKENS = 20_000
TRUTH_BATCH = 4
BASE = f"local/{MODEL}-F16"
Row = dict[str, Any]
LOOK_SHARE = 0.25
"""The first part of each text is for the quick look, the rest for the truth."""
COUNTERPARTS = {"code": "python", "docs": "documentation", "prose": "encyclopedic"}
"""The built-in texts of the same kinds."""
LARGEST_NATS = 100.0
USABLE_PERCENT = 25.0
MODERATE_PERCENT = (10.0, 60.0)
COUNTED_PERCENT = 3.0
"""Verdicts must settle the changes beyond this."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A composition to measure: the steps of a recipe on the base."""

    kind: str
    name: str
    steps: Callable[[Composition], Composition]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="the folder of the family")
    parser.add_argument("--texts", type=Path, help="the folder of the texts (default: FOLDER/texts)")
    parser.add_argument("--json", type=Path, default=TABLE, help="the rows")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no graft after so many minutes")
    parser.add_argument("--tokens", type=int, default=TRUTH_TOKENS, help="tokens of each text for the truth")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS, help="the columns to measure")
    parser.add_argument("--only", nargs="+", default=[""], help="only grafts with one of these texts in their names")
    parser.add_argument(
        "--table", nargs="?", choices=("all", "short"), const="all", help="print the rows, measure nothing"
    )
    options = parser.parse_args()
    rows: list[Row] = json.loads(options.json.read_text()) if options.json.exists() else []
    if options.table or options.folder is None:
        print_table(rows, is_short=options.table == "short")
        return
    ends = time.monotonic() + 60.0 * options.minutes
    looks, rest = divided(options.texts or options.folder / "texts")
    columns: dict[str, Column] = {
        "truth": partial(truth_of, windows=windows_of(options.folder, rest, options.tokens)),
        "quick": partial(quick_of, texts=looks),
        "verdict": verdict_of,
    }
    columns = {name: column for name, column in columns.items() if name in options.columns}
    wanted = [trial for trial in in_order(trials()) if any(text in trial.name for text in options.only)]
    with LocalRegistry.open(options.folder / "home") as registry:
        for source in find_sources([str(path) for path in sorted(options.folder.glob("*.gguf"))]):
            ingest_model(registry, source)
        for row in measured(registry, wanted, {row["name"]: row for row in rows}, columns, ends):
            rows = [*(other for other in rows if other["name"] != row["name"]), row]
            write_rows(options.json, rows)


Column = Callable[[LocalRegistry, str], Any]
"""Return what JSON can hold of a registered model."""


def measured(
    registry: LocalRegistry,
    wanted: Sequence[Trial],
    known: Mapping[str, Row],
    columns: Mapping[str, Column],
    ends: float,
) -> Iterator[Row]:
    """Yield the row of the base, and of each trial, as soon as a column was missing and is measured."""
    if "base" not in known and "truth" in columns:
        yield {"name": "base", "kind": "base", "model": BASE, "truth": columns["truth"](registry, BASE)}
    for trial in wanted:
        row = dict(known.get(trial.name, {}))
        missing = [column for column in columns if row.get(column) is None]
        if not missing:
            continue
        if time.monotonic() > ends:
            return
        begun = time.monotonic()
        if not row:
            row = composed(registry, trial)
        row |= {column: columns[column](registry, row["model"]) for column in missing}
        print(f"{trial.kind}, {trial.name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        yield row


def composed(registry: LocalRegistry, trial: Trial) -> Row:
    """Compose a model and register it; return its row."""
    row: Row = {"name": trial.name, "kind": trial.kind} | dict.fromkeys(COLUMNS)
    plan = trial.steps(registry.compose(BASE)).plan().accepting_all()
    return row | {"model": plan.register().model, "screen": plan.screen.sentence}


def divided(folder: Path) -> tuple[tuple[ScoredText, ...], tuple[ScoredText, ...]]:
    """Return the texts for quick looks, and those for the truth: the same kinds, other parts."""
    read = [read_text(folder / f"{name}.txt") for name in TEXTS]
    ends = [text.text.index("\n", int(LOOK_SHARE * len(text.text))) for text in read]
    parts = [(text.text[:end], text.text[end:]) for text, end in zip(read, ends, strict=True)]
    looks, rest = (
        tuple(ScoredText(name, part, digest_of(part.encode())) for name, part in zip(TEXTS, half, strict=True))
        for half in zip(*parts, strict=True)
    )
    return looks, rest


def windows_of(folder: Path, texts: Sequence[ScoredText], tokens: int) -> dict[str, Any]:
    """Return windows that are spread over each text and have together `tokens` tokens: (windows, WINDOW_TOKENS).

    They are those that llama.cpp would score: each begins with the last token of the one before it.
    """
    import torch

    windows = {}
    with opened(str(folder / f"{MODEL}-F16.gguf")) as model:
        for text in texts:
            found = torch.tensor(model.tokens(text.text)).unfold(0, WINDOW_TOKENS, WINDOW_TOKENS - 1)
            windows[text.name] = found[spread_order(len(found))[: -(-tokens // (WINDOW_TOKENS - 1))]]
    return windows


def truth_of(registry: LocalRegistry, model: str, *, windows: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return for each text the nats for each token of its windows."""
    import torch

    with registered_candidate(registry.catalog, registry.blobs, model).placed() as path:
        network = network_of(decoded(path))
    torch.set_num_threads(1)

    def losses(batch: Any) -> list[float]:
        with torch.inference_mode():
            return [round(nats, 5) for nats in window_losses(network, batch).tolist()]

    with ThreadPoolExecutor(usable_cores()) as pool:  # threads of PyTorch would wait for each other
        return {text: list(chain(*pool.map(losses, rows.split(TRUTH_BATCH)))) for text, rows in windows.items()}


def quick_of(registry: LocalRegistry, model: str, *, texts: Sequence[ScoredText]) -> Row:
    """Return the quick look at a model beside the base."""
    chimera, base = (registered_candidate(registry.catalog, registry.blobs, name) for name in (model, BASE))
    return encoded(quick_look(chimera, base, texts, LlamaCpp(), CatalogScores(registry.catalog)))


def verdict_of(registry: LocalRegistry, model: str) -> Row:
    """Return the verdict on a model: by its grafts if it was composed, else as a file without known grafts."""
    try:
        report = registry.validate(model)
    except NotComposedHere:
        chimera, base = (registered_candidate(registry.catalog, registry.blobs, name) for name in (model, BASE))
        report = validate(chimera, base, [], (), built_in_texts(), LlamaCpp(), cache=CatalogScores(registry.catalog))
    chimera = msgspec.structs.replace(report.chimera, log="")
    return encoded(msgspec.structs.replace(report, chimera=chimera, zeroed=()))


def encoded(value: Entity) -> Row:
    """Return an entity as what JSON can hold."""
    row: Row = json.loads(encode(value))
    return row


def in_order(wanted: Sequence[Trial]) -> list[Trial]:
    """Return trials in an order of which each beginning has all kinds."""
    return [wanted[place] for place in spread_order(len(wanted))]


def trials() -> list[Trial]:
    """Return the compositions: of every kind, from harmless to broken."""
    return [
        *_whole(),
        *_parts(),
        *(_adapted(scale) for scale in (1.0, 2.0, 2.5, 3.0, 8.0, -1.0)),
        Trial("LoRA", "Code feed-forward + LoRA", lambda base: _from(base, "Code", "organ").adapter(_name("LoRA-F32"))),
        *_purified(),
        *(Trial("quantised", f"{name} feed-forward", partial(_from, donor=name, types="organ")) for name in QUANTISED),
        *_blended(),
    ]  # fmt: skip


QUANTISED = ("Code-Q4_K_M", "Q4_K_M")
BLENDS: tuple[dict[str, float], ...] = (
    {"Code": 0.5}, {"Code": 0.5, "Docs": 0.5}, {"Code": 0.7, "Docs": 0.7}, {"Code": 1.0, "Docs": 1.0}, {"Code": 2.0},
    {"Drift": 0.5}, {"Drift": 1.5}, {"Code": 0.5, "Drift": 0.5}, {"Code": 1.0, "Drift": 1.0},
    {"Code": 1.0, "Docs": 1.0, "Drift": 0.5}, {"Stranger": 0.05},
)  # fmt: skip
"""Multiples of the differences of relatives from the base, added to it."""
METHODS: Mapping[str, Mapping[str, float]] = {
    "ties": {"weight": 1.0, "density": 0.5},
    "dare_ties": {"weight": 1.0, "density": 0.5},
    "dare_linear": {"weight": 1.0, "density": 0.5},
    "della": {"weight": 1.0, "density": 0.5, "epsilon": 0.1},
    "breadcrumbs": {"weight": 1.0, "density": 0.9, "gamma": 0.01},
    "sce": {},
    "model_stock": {},
    "karcher": {},
    "nuslerp": {"weight": 0.5},
}
"""Other methods for Code and Docs together, with the parameters of both."""


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


def _blended() -> Iterator[Trial]:
    for weights in BLENDS:
        models = [{"from": _name(f"{name}-F16"), "weight": weight} for name, weight in weights.items()]
        name = " + ".join(f"{weight:g} {name}" for name, weight in weights.items())
        yield Trial("blend", name, partial(Composition.blend, models=models))
    for method, parameters in METHODS.items():
        models = [{"from": _name(f"{name}-F16"), **parameters} for name in ("Code", "Docs")]
        yield Trial("blend", f"{method} of Code and Docs", partial(Composition.blend, method=method, models=models))


def _purified() -> Iterator[Trial]:
    for what, types, blocks, keep in (
        ("feed-forward", "organ", None, 0.97),
        ("feed-forward", "organ", None, 0.99),
        ("feed-forward 0-9", "organ", "0-9", 0.98),
        ("feed-forward 15-19", "organ", "15-19", 0.95),
        ("attention", "skeleton", None, 0.99),
        ("attention 0-9", "skeleton", "0-9", 0.98),
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
    if not mean < LARGEST_NATS:  # NaN as well
        return math.inf, math.nan
    ratio = math.exp(mean)
    return 100.0 * (ratio - 1.0), 100.0 * ratio * stdev(differences) / math.sqrt(len(differences))


SHORT = {
    "Code feed-forward": "feed-forward of the fine-tune on code",
    "Code feed-forward, Docs attention": "feed-forward of code, attention of documentation",
    "0.5 Code + 0.5 Docs": "the mean of both fine-tunes",
    "LoRA x 1": "a LoRA trained on code, scale 1",
    "LoRA x 8": "the same LoRA, scale 8",
    "Drift all": "all of a fine-tune with ten times the learning rate",
    "feed-forward, keep 0.97": "own feed-forward, purified to 97% of its energy",
    "Stranger attention 20": "attention of an unrelated model in one block",
}
"""The grafts of the short table, in words."""


def print_table(rows: Sequence[Row], *, is_short: bool = False) -> None:
    """Print the rows as Markdown, with changes of perplexity in percent ± the standard error; then how good each is."""
    base = next((row for row in rows if row["name"] == "base"), None)
    grafts = sorted(
        (row for row in rows if row is not base and row.get("truth")), key=lambda row: (row["kind"], row["name"])
    )
    if base is None or not grafts:
        print("no rows yet")
        return
    titles = [f"true change: {TEXTS[0]}", *TEXTS[1:], "a quick look said"]
    lines = {row["name"]: [*_changes(row, base), row["quick"]["sentence"] if row["quick"] else "–"] for row in grafts}
    if is_short:
        _print_lines([f"{MODEL} with", *titles], [[SHORT[name], *lines[name]] for name in SHORT if name in lines])
        return
    has_verdicts = any(row["verdict"] for row in grafts)
    said = [
        [row["kind"], row["name"], *lines[row["name"]], (row["verdict"] or {}).get("verdict", "–")] for row in grafts
    ]
    count = 3 + len(titles) if has_verdicts else 2 + len(titles)
    _print_lines(["kind", f"{MODEL} with", *titles, "verdict"][:count], [line[:count] for line in said])
    _print_quick(grafts, base)
    _print_verdicts(grafts, base)


def _changes(row: Row, base: Row) -> list[str]:
    changes = (change(row, base, text) for text in TEXTS)
    return [change_text(1.0 + percent / 100.0, error / 100.0) for percent, error in changes]


def _print_lines(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")


def _print_quick(grafts: Sequence[Row], base: Row) -> None:
    looks = [row for row in grafts if row["quick"]]
    texts = [
        (text, change(row, base, text["name"])[0])
        for row in looks
        for text in row["quick"]["texts"]
        if text["ratio_margin"] is not None
    ]
    if not texts:
        return
    inside = [abs(text["ratio"] - (1.0 + true / 100.0)) <= text["ratio_margin"] for text, true in texts]
    worst = [max(change(row, base, text)[0] for text in TEXTS) for row in looks]
    clear = [
        (row["quick"]["usable"], loss < USABLE_PERCENT)
        for row, loss in zip(looks, worst, strict=True)
        if row["quick"]["usable"] is not None
    ]
    low, high = MODERATE_PERCENT
    print(
        f"\nQuick looks: {len(looks)}, with {len(texts)} changes. The intervals of 90% hold {fmean(inside):.0%} of the "
        f"true changes; the median half-width is {median(100.0 * text['ratio_margin'] for text, _ in texts):.1f} "
        f"points. {len(clear)} say usable or not, {sum(said == true for said, true in clear)} are right; "
        f"{sum(said and not true for said, true in clear)} say usable of a loss of more than {USABLE_PERCENT:g}%. "
        f"{sum(low <= loss <= high for loss in worst)} have a true loss of {low:g}% to {high:g}%. Median of "
        f"{median(row['quick']['seconds'] for row in looks):.0f} s and "
        f"{median(row['quick']['tokens_per_second'] or 0 for row in looks):.0f} tokens a second."
    )


def _print_verdicts(grafts: Sequence[Row], base: Row) -> None:
    runs = [row for row in grafts if row["verdict"]]
    if not runs:
        return
    settled = [sum(text["settled"] for text in row["verdict"]["texts"]) for row in runs]
    signs, large = [], []
    for row in runs:
        found = {text["name"]: text for text in row["verdict"]["texts"]}
        for name, kind in COUNTERPARTS.items():
            (true, _), text = change(row, base, name), found[kind]
            if abs(true) > COUNTED_PERCENT:
                large.append(text["settled"])
            if text["settled"] and text["ratio"] is None:  # it has no finite perplexity
                signs.append(true > 0)
            elif text["settled"] and abs(text["ratio"] - 1.0) > text["ratio_margin"]:
                signs.append((text["ratio"] > 1.0) == (true > 0))
    print(
        f"\nVerdicts: {len(runs)}, at least {min(settled)} of the texts settled, median {median(settled):g}. "
        f"{sum(large)} of {len(large)} true changes beyond {COUNTED_PERCENT:g}% are settled on the text of their kind; "
        f"{sum(signs)} of {len(signs)} settled signs are those of the truth. Median of "
        f"{median(row['verdict']['seconds'] for row in runs) / 60:.1f} minutes and "
        f"{median(row['verdict']['tokens_per_second'] or 0 for row in runs):.0f} tokens a second."
    )


if __name__ == "__main__":
    main()
