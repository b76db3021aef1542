"""Whether a chimera's prediction comes true: grafts of the zoo, planned, made, and run in llama.cpp.

    python -m bench.prediction                  83 grafts, some minutes; needs the extra `validate`
    python -m bench.prediction --only adapter   those of one group; --json for all of it as JSON

A registry in a temporary folder gets the zoo. Each graft is a recipe (`bench.grafts`) that is planned, made and
validated by the same services that the commands use. *Usable* is a verdict of `gains` or `coherent`. Of every number
that is known beforehand (`bench.numbers`) the table has: the AUC, the chance that a usable graft has more of it than
one that is not; Spearman's rank correlation with the measured ln(p / p0) on the worst text; the lowest AUC when the
grafts of one donor are left out; and the share that a threshold judges rightly which was found without the donor.
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
from organs.registry.validation.texts import built_in_texts
from organs.registry.validation.verdict import TextScores, VerdictKind

ZOO = Path(__file__).resolve().parents[1] / "examples" / "zoo"
USABLE = (VerdictKind.GAINS, VerdictKind.COHERENT)
SAME_WEIGHTS = {"a-q8": "a"}
"""Donors that are left out together with another."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A graft, what was predicted and what came of it."""

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
        found = tried(registry, Path(folder), [one for one in trials() if options.only in (None, one.group)])
    decided = [one for one in found if one.verdict is not VerdictKind.UNDECIDED]
    table, left_out = table_of(decided), refitted(decided)
    if options.json:
        print(json.dumps({"grafts": [_values(one) for one in found], "numbers": table, "refitted": left_out}, indent=1))
        return
    print_grafts(found)
    print_table(found, decided, table, left_out)
    print(f"{time.monotonic() - begun:.0f} s")


def tried(registry: LocalRegistry, folder: Path, wanted: Sequence[Trial]) -> list[Tried]:
    """Try all of `wanted` in a registry that gets the zoo; figures of the base are measured once."""
    sources = find_sources([str(ZOO / f"{name}.gguf") for name in MODELS.values()])
    for source in sources:
        ingest_model(registry, source)
    runtime, cache = LlamaCpp(), MemoryCache()
    found = []
    for number, trial in enumerate(wanted, start=1):
        print(f"{number} of {len(wanted)}: {trial.name}", end="\033[K\r", file=sys.stderr, flush=True)
        found.append(try_one(registry, folder / "chimera.gguf", trial, runtime, cache))
    print(end="\033[K", file=sys.stderr)
    return found


def try_one(registry: LocalRegistry, path: Path, trial: Trial, runtime: LlamaCpp, cache: MemoryCache) -> Tried:
    """Plan, make, run and judge one graft; its file goes away again."""
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
    return Tried(
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


def table_of(decided: Sequence[Tried]) -> dict[str, dict[str, float]]:
    """Of each number how well it separates and ranks."""
    return {name: _quality(decided, name) for name in decided[0].numbers}


def _quality(decided: Sequence[Tried], name: str) -> dict[str, float]:
    values = [one.numbers[name] for one in decided]
    lowest, right = 1.0, 0
    for donor in _donors(decided):
        others = [one for one in decided if donor not in one.donors]
        without = separated(others, [one.numbers[name] for one in others])
        lowest = lowest if math.isnan(without) else min(lowest, without)
        threshold = _threshold([(one.numbers[name], one.is_usable) for one in others])
        right += sum((one.numbers[name] >= threshold) == one.is_usable for one in decided if one.donors[0] == donor)
    return {
        "auc": separated(decided, values),
        "spearman": spearman(values, [-one.loss for one in decided]),
        "lowest_auc_without_a_donor": lowest,
        "right_without_the_donor": right / len(decided),
    }


def _threshold(known: Sequence[tuple[float, bool]]) -> float:
    """From where on `known` is called usable with the fewest mistakes."""
    return max(sorted({value for value, _ in known}), key=lambda cut: sum((v >= cut) == good for v, good in known))


def refitted(decided: Sequence[Tried]) -> dict[str, Any]:
    """How well the score does on each donor's grafts with its constants fitted to all others'."""
    scores = [[scored(one.groups, constants) for one in decided] for constants in GRID]
    values, chosen = [0.0] * len(decided), {}
    for donor in _donors(decided):
        others = [place for place, one in enumerate(decided) if donor not in one.donors]
        best = max(range(len(GRID)), key=lambda at: _fit([decided[i] for i in others], [scores[at][i] for i in others]))
        chosen[donor] = asdict(GRID[best])
        for place, one in enumerate(decided):
            if one.donors[0] == donor:
                values[place] = scores[best][place]
    right = fmean((value >= 1.0) == one.is_usable for value, one in zip(values, decided, strict=True))
    return {"auc": separated(decided, values), "right": right, "constants": chosen}


def _fit(known: Sequence[Tried], values: Sequence[float]) -> float:
    """What is made largest: the AUC, and the mean share of rightly judged among usable and others."""
    shares = [
        fmean((value >= 1.0) == kind for value, one in zip(values, known, strict=True) if one.is_usable is kind)
        for kind in (True, False)
        if any(one.is_usable is kind for one in known)
    ]
    found = separated(known, values)
    return (0.0 if math.isnan(found) else found) + fmean(shares)


def separated(known: Sequence[Tried], values: Sequence[float]) -> float:
    """The AUC of `values`."""
    both = [(value, one.is_usable) for value, one in zip(values, known, strict=True)]
    return auc([value for value, good in both if good], [value for value, good in both if not good])


def _donors(known: Sequence[Tried]) -> list[str]:
    return sorted({one.donors[0] for one in known})


def print_grafts(found: Sequence[Tried]) -> None:
    print("| graft | group | verdict | ln(p / p0) | predicted | recovered | score |")
    print("|---|---|---|---:|---:|---:|---:|")
    for one in found:
        figures = f"{one.loss:.3f} | {one.predicted_loss:.3f} | {one.predicted_recovered:.2f}"
        print(f"| {one.name} | {one.group} | {one.verdict} | {figures} | {one.numbers[SCORE]:.2f} |")


def print_table(
    found: Sequence[Tried], decided: Sequence[Tried], table: dict[str, dict[str, float]], left_out: dict[str, Any]
) -> None:
    kinds = Counter(str(one.verdict) for one in found)
    print(f"\n{len(found)} grafts: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}")
    print(f"{len(decided)} decided, {sum(one.is_usable for one in decided)} of them usable\n")
    print("| number | AUC | Spearman | lowest AUC without a donor | right without the donor |")
    print("|---|---:|---:|---:|---:|")
    for name, row in table.items():
        print(f"| {name} | {' | '.join(f'{value:.3f}' for value in row.values())} |")
    print(f"\nfitted without the donor: AUC {left_out['auc']:.3f}, {left_out['right']:.3f} right")
    wrong = [one for one in decided if (one.numbers[SCORE] >= 1.0) != one.is_usable]
    print(f"as shipped: {len(decided) - len(wrong)} of {len(decided)} right; wrong:")
    for one in sorted(wrong, key=lambda one: one.numbers[SCORE]):
        print(f"  {one.name}: {one.verdict}, ln(p / p0) {one.loss:.3f}; {one.predicted_loss:.3f} was predicted")


def _values(one: Tried) -> dict[str, Any]:
    """For JSON, which has no infinities."""
    texts = {
        text.text: {"p0": _finite(text.base), "p": _finite(text.chimera), "pz": _finite(text.control)}
        for text in one.texts
    }
    values = {name: value for name, value in asdict(one).items() if name != "groups"}
    return values | {"loss": _finite(one.loss), "texts": texts}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


if __name__ == "__main__":
    main()
