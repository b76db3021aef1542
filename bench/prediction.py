"""Compare predictions with measured perplexity: grafts of the zoo are planned, made and run in llama.cpp.

    python -m bench.prediction                  83 grafts, some minutes; needs the extra `validate`
    python -m bench.prediction --only adapter   one group; --json prints everything as JSON

A registry in a temporary folder gets the zoo. Each graft is a recipe (`bench.grafts`) that is planned, made and
validated by the same services that the commands use. *Usable* is a verdict of `gains` or `coherent`. For every number
that is known in advance (`bench.numbers`) the table shows: the AUC, the probability that a usable graft has a higher
value than an unusable one; Spearman's rank correlation with the measured ln(p / p0) on the worst text; the lowest AUC
when the grafts of one donor are left out; and the share of right decisions of a threshold that was fitted without that
donor.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.grafts import MODELS, Trial, trials
from bench.numbers import GRID, SCORE, numbers_of, scored
from bench.quality import auc, spearman
from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.compose.build import make
from organs.registry.compose.models import (
    RegisteredLibrary,
    parts_of,
)
from organs.registry.compose.planner import changes_of, plan_recipe
from organs.registry.compose.prediction import (
    Group,
    groups_of,
)
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.validation.comparison import MemoryCache, validate_files
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.runtime import perplexity_of
from organs.registry.validation.texts import built_in_texts
from organs.registry.validation.verdict import TextScores, VerdictKind

ZOO = Path(__file__).resolve().parents[1] / "examples" / "zoo"
USABLE = (VerdictKind.GAINS, VerdictKind.COHERENT)
SAME_WEIGHTS = {"a-q8": "a"}
"""Donors that are left out together with another."""


@dataclass(frozen=True, slots=True)
class GraftResult:
    """A graft, its prediction and its result."""

    name: str
    group: str
    donors: tuple[str, ...]
    verdict: VerdictKind
    loss: float
    """Measured: the largest ln(p / p0) over the texts."""
    predicted_loss: float
    predicted_recovered: float
    numbers: dict[str, float]
    texts: tuple[TextScores, ...]
    groups: tuple[Group, ...] = field(repr=False)

    @property
    def is_usable(self) -> bool:
        return self.verdict in USABLE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="a group of grafts: whole, type, blocks, adapter, purified, mixed")
    parser.add_argument("--json", action="store_true", help="everything as JSON")
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, LocalRegistry.open(folder) as registry:
        results = run_trials(
            registry, Path(folder), [trial for trial in trials() if options.only in (None, trial.group)]
        )
    decided = [graft for graft in results if graft.verdict is not VerdictKind.UNDECIDED]
    table, left_out = table_of(decided), refitted(decided)
    if options.json:
        print(
            json.dumps(
                {"grafts": [_values(graft) for graft in results], "numbers": table, "refitted": left_out}, indent=1
            )
        )
        return
    print_grafts(results)
    print_table(results, decided, table, left_out)
    print(f"{time.monotonic() - begun:.0f} s")


def run_trials(registry: LocalRegistry, folder: Path, wanted: Sequence[Trial]) -> list[GraftResult]:
    """Run all of `wanted` in a registry with the zoo; the figures of each base are measured once."""
    sources = find_sources([str(ZOO / f"{name}.gguf") for name in MODELS.values()])
    for source in sources:
        ingest_model(registry, source)
    runtime, cache = LlamaCpp(), MemoryCache()
    results = []
    for number, trial in enumerate(wanted, start=1):
        print(f"{number} of {len(wanted)}: {trial.name}", end="\033[K\r", file=sys.stderr, flush=True)
        results.append(run_trial(registry, folder / "chimera.gguf", trial, runtime, cache))
    print(end="\033[K", file=sys.stderr)
    return results


def run_trial(registry: LocalRegistry, path: Path, trial: Trial, runtime: LlamaCpp, cache: MemoryCache) -> GraftResult:
    """Plan, make, run and judge one graft; its file is removed afterwards."""
    with registry.catalog.reading() as session:
        plan = plan_recipe(trial.recipe, RegisteredLibrary(session, registry.blobs))
    made = make(registry.catalog, registry.blobs, plan, path=path)
    with registry.catalog.reading() as session:
        parts = parts_of(session, model_by_name(session, parse_model_name(made.model)).id)
    changes = changes_of(plan.parts, {part.name: part for part in parts if part.name in plan.computations})
    base = ZOO / f"{MODELS[trial.base]}.gguf"
    grafted = [part.before.name for part in plan.parts if "grafted" in part.acts]
    verdict = validate_files(path, base, [], grafted, built_in_texts(), runtime, cache=cache).verdict
    path.unlink()
    numbers = numbers_of(changes, sum(part.spec.elements for part in parts), plan.prediction)
    return GraftResult(
        trial.name,
        trial.group,
        tuple(SAME_WEIGHTS.get(donor, donor) for donor in trial.donors),
        verdict.kind,
        max(math.inf if text.ratio is None else math.log(text.ratio) for text in verdict.texts),
        -numbers["- predicted loss"],
        numbers["predicted share recovered"],
        numbers,
        verdict.texts,
        tuple(groups_of(changes)),
    )


def table_of(decided: Sequence[GraftResult]) -> dict[str, dict[str, float]]:
    """Return, for each number, how well it separates and ranks."""
    return {name: _quality(decided, name) for name in decided[0].numbers}


def _quality(decided: Sequence[GraftResult], name: str) -> dict[str, float]:
    values = [graft.numbers[name] for graft in decided]
    lowest, right = 1.0, 0
    for donor in _donors(decided):
        others = [graft for graft in decided if donor not in graft.donors]
        without = separated(others, [graft.numbers[name] for graft in others])
        lowest = lowest if math.isnan(without) else min(lowest, without)
        threshold = _threshold([(graft.numbers[name], graft.is_usable) for graft in others])
        right += sum(
            (graft.numbers[name] >= threshold) == graft.is_usable for graft in decided if graft.donors[0] == donor
        )
    return {
        "auc": separated(decided, values),
        "spearman": spearman(values, [-graft.loss for graft in decided]),
        "lowest_auc_without_a_donor": lowest,
        "right_without_the_donor": right / len(decided),
    }


def _threshold(known: Sequence[tuple[float, bool]]) -> float:
    """Return the threshold from which `known` is called usable with the fewest errors."""
    return max(sorted({value for value, _ in known}), key=lambda cut: sum((v >= cut) == good for v, good in known))


def refitted(decided: Sequence[GraftResult]) -> dict[str, Any]:
    """Return the quality of the score on each donor's grafts with its constants fitted to all others'."""
    scores = [[scored(graft.groups, constants) for graft in decided] for constants in GRID]
    values, chosen = [0.0] * len(decided), {}
    for donor in _donors(decided):
        others = [place for place, graft in enumerate(decided) if donor not in graft.donors]
        best = max(range(len(GRID)), key=lambda at: _fit([decided[i] for i in others], [scores[at][i] for i in others]))
        chosen[donor] = asdict(GRID[best])
        for place, graft in enumerate(decided):
            if graft.donors[0] == donor:
                values[place] = scores[best][place]
    right = fmean((value >= 1.0) == graft.is_usable for value, graft in zip(values, decided, strict=True))
    return {"auc": separated(decided, values), "right": right, "constants": chosen}


def _fit(known: Sequence[GraftResult], values: Sequence[float]) -> float:
    """Return the maximised value: the AUC, and the mean share of right decisions among usable and others."""
    shares = [
        fmean((value >= 1.0) == kind for value, graft in zip(values, known, strict=True) if graft.is_usable is kind)
        for kind in (True, False)
        if any(graft.is_usable is kind for graft in known)
    ]
    auc_value = separated(known, values)
    return (0.0 if math.isnan(auc_value) else auc_value) + fmean(shares)


def separated(known: Sequence[GraftResult], values: Sequence[float]) -> float:
    """Return the AUC of `values`."""
    both = [(value, graft.is_usable) for value, graft in zip(values, known, strict=True)]
    return auc([value for value, good in both if good], [value for value, good in both if not good])


def _donors(known: Sequence[GraftResult]) -> list[str]:
    return sorted({graft.donors[0] for graft in known})


def print_grafts(found: Sequence[GraftResult]) -> None:
    print("| graft | group | verdict | ln(p / p0) | predicted | recovered | score |")
    print("|---|---|---|---:|---:|---:|---:|")
    for graft in found:
        figures = f"{graft.loss:.3f} | {graft.predicted_loss:.3f} | {graft.predicted_recovered:.2f}"
        print(f"| {graft.name} | {graft.group} | {graft.verdict} | {figures} | {graft.numbers[SCORE]:.2f} |")


def print_table(
    found: Sequence[GraftResult],
    decided: Sequence[GraftResult],
    table: dict[str, dict[str, float]],
    left_out: dict[str, Any],
) -> None:
    kinds = Counter(str(graft.verdict) for graft in found)
    print(f"\n{len(found)} grafts: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}")
    print(f"{len(decided)} decided, {sum(graft.is_usable for graft in decided)} of them usable\n")
    print("| number | AUC | Spearman | lowest AUC without a donor | right decisions without the donor |")
    print("|---|---:|---:|---:|---:|")
    for name, row in table.items():
        print(f"| {name} | {' | '.join(f'{value:.3f}' for value in row.values())} |")
    print(f"\nfitted without the donor: AUC {left_out['auc']:.3f}, {left_out['right']:.3f} right")
    wrong = [graft for graft in decided if (graft.numbers[SCORE] >= 1.0) != graft.is_usable]
    print(f"as shipped: {len(decided) - len(wrong)} of {len(decided)} right; wrong:")
    for graft in sorted(wrong, key=lambda graft: graft.numbers[SCORE]):
        print(f"  {graft.name}: {graft.verdict}, ln(p / p0) {graft.loss:.3f}; {graft.predicted_loss:.3f} was predicted")


def _values(graft: GraftResult) -> dict[str, Any]:
    """Return the values for JSON, which has no infinities."""
    texts = {
        text.text: {
            name: _finite(perplexity_of(windows or ()))
            for name, windows in (("p0", text.base), ("p", text.chimera), ("pz", text.control))
        }
        for text in graft.texts
    }
    values = {name: value for name, value in asdict(graft).items() if name != "groups"}
    return values | {"loss": _finite(graft.loss), "texts": texts}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


if __name__ == "__main__":
    main()
