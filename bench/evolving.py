"""Evolve chimeras of a real pretrained family, and measure the results on texts that no search saw.

    python -m bench.real_family FOLDER                     first: train the family
    python -m bench.evolving FOLDER                        five seeds, with the estimator and at random
    python -m bench.evolving FOLDER --seeds 1 2            only these
    python -m bench.evolving FOLDER --minutes 60           begin nothing after so many minutes
    python -m bench.evolving --table                       print the rows: bench/results/evolving.md

Needs the extra `evolve` and the group `bench-real`. An evolution has 30 minutes on two
processes; its donors are all relatives that the registry finds, and the adapter. The search at random has as many
trials as that of the same seed. The first quarter of each of three texts is for the evolutions, which divide it once
more; the guard is the built-in chat in the template of the base. The truth is measured on the other
three quarters, as in `bench.real_models`: -ln p of each window, by another implementation. The references are measured
in the same way: each donor, whole grafts, and plain means.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bench.real_family import MODEL
from bench.real_models import BASE, TEXTS, Row, Trial, change, divided, truth_of, windows_of, write_rows
from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.amounts import change_text
from organs.registry.compose.api import Composition
from organs.registry.local import LocalRegistry
from organs.registry.validation.intervals import student_quantile
from organs.registry.validation.texts import CHAT, ScoredText

TABLE = Path(__file__).with_name("evolutions.json")
SEEDS = (1, 2, 3, 4, 5)
MINUTES, WORKERS = 30, 2
TRUTH_TOKENS = 10_000
DONORS = ("Code-F16", "Docs-F16", "Drift-F16", "LoRA-F32")
SAMPLERS = ("tpe", "random")


def _name(relative: str) -> str:
    return f"local/{MODEL}-{relative}"


def _graft(base: Composition, *, donors: Mapping[str, str]) -> Composition:
    for types, donor in donors.items():
        base = base.graft(_name(donor), type=types)
    return base


def _mean(base: Composition, *, weights: Mapping[str, float]) -> Composition:
    return base.blend(models=[{"from": _name(donor), "weight": weight} for donor, weight in weights.items()])


def references() -> list[Trial]:
    """Return what the winners are compared with: donors as they are, whole grafts, plain means."""
    whole = [
        Trial("graft", f"{donor}, {what}", partial(_graft, donors={types: f"{donor}-F16"}))
        for donor in ("Code", "Docs", "Drift")
        for what, types in (("feed-forward", "organ"), ("attention", "skeleton"))
    ]
    mixed = [
        Trial("graft", f"{first} feed-forward, {second} attention", partial(_graft, donors=parts))
        for first, second in (("Code", "Docs"), ("Docs", "Code"))
        for parts in [{"organ": f"{first}-F16", "skeleton": f"{second}-F16"}]
    ]
    means = [
        Trial("mean", "0.5 Code + 0.5 Docs", partial(_mean, weights={"Code-F16": 0.5, "Docs-F16": 0.5})),
        Trial("mean", "1 Code + 1 Docs", partial(_mean, weights={"Code-F16": 1.0, "Docs-F16": 1.0})),
        Trial("mean", "mean of all", partial(_mean, weights=dict.fromkeys(DONORS[:3], 1.0 / 3.0))),
    ]
    lora = Trial("donor", "LoRA x 1", lambda base: base.adapter(_name("LoRA-F32"), 1.0))
    return [lora, *means, *mixed, *whole]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="the folder of the family")
    parser.add_argument("--json", type=Path, default=TABLE, help="the rows")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="the seeds of the evolutions")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=SAMPLERS, help="how trials are proposed")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after so many minutes")
    parser.add_argument("--table", action="store_true", help="print the rows, measure nothing")
    options = parser.parse_args()
    rows: list[Row] = json.loads(options.json.read_text()) if options.json.exists() else []
    if options.table or options.folder is None:
        print_table(rows)
        return
    ends = time.monotonic() + 60.0 * options.minutes
    looks, rest = divided(options.folder / "texts")
    truth = partial(truth_of, windows=windows_of(options.folder, rest, TRUTH_TOKENS))
    with LocalRegistry.open(options.folder / "home") as registry:
        for relative in ("F16", *DONORS):
            for source in find_sources([str(options.folder / f"{MODEL}-{relative}.gguf")]):
                ingest_model(registry, source)
        for row in measured(registry, rows, options, looks, truth):
            rows = [*(other for other in rows if other["name"] != row["name"]), row]
            write_rows(options.json, rows)
            if time.monotonic() > ends:
                return


def measured(
    registry: LocalRegistry,
    rows: Sequence[Row],
    options: argparse.Namespace,
    looks: Sequence[ScoredText],
    truth: Callable[[LocalRegistry, str], Any],
) -> Iterator[Row]:
    """Yield each row that is missing: evolutions first, then the references."""
    known = {row["name"]: row for row in rows}
    for seed in options.seeds:
        for sampler in options.samplers:
            name = f"{sampler} {seed}"
            if name in known:
                continue
            limit: Row = {"minutes": MINUTES}
            if sampler == "random":
                other = known.get(f"tpe {seed}")
                if other is None:
                    continue
                limit = {"trials": other["trials"]}
            found = evolved(options.folder, looks, {**limit, "seed": seed, "sampler": sampler})
            row = {"kind": "evolution", "name": name, "trials": found["trials"], "seconds": found["seconds"]}
            row |= {key: found[key] for key in ("winner", "parts", "recipe", "best")}
            row["verdict"] = found["verdict"] and found["verdict"]["texts"]
            row["changes"] = [trial["change"] for trial in found["history"] if trial["role"] in ("start", "proposed")]
            row["truth"] = truth(registry, found["winner"])
            known[name] = row
            yield row
    for name, model in (("base", BASE), *((donor, _name(donor)) for donor in DONORS[:3])):
        if name not in known:
            yield {"kind": "base" if name == "base" else "donor", "name": name, "truth": truth(registry, model)}
    for trial in references():
        if trial.name not in known:
            made = trial.steps(registry.compose(BASE)).plan().accepting_all().register()
            yield {"kind": trial.kind, "name": trial.name, "truth": truth(registry, made.model)}


def evolved(folder: Path, looks: Sequence[ScoredText], options: Row) -> Row:
    """Evolve as a user does, with the command, and return what it prints as JSON."""
    (folder / "looks").mkdir(exist_ok=True)
    for text in looks:
        (folder / "looks" / f"{text.name}.txt").write_text(text.text)
    donors = [f"kin:{BASE}", _name(DONORS[-1])]  # the adapter names no base, so a query does not find it
    space = {"base": BASE, "donors": donors, "texts": [f"looks/{name}.txt" for name in TEXTS], **options}
    path = folder / f"space-{options['sampler']}-{options['seed']}.yaml"
    path.write_text(json.dumps(space | {"limits": {CHAT: 5}}))
    command = [sys.executable, "-m", "organs.cli", "evolve", str(path), "--workers", str(WORKERS), "--json"]
    environment = os.environ | {"ORGAN_HOME": str(folder / "home")}
    result = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)  # our own words
    found: Row = json.loads(result.stdout)
    return found


def beside(row: Row, other: Row) -> tuple[float, float]:
    """Return the mean over the texts of the differences in nats for each token, paired by window, and its error."""
    means, variances = [], []
    for text in TEXTS:
        pairs = [ours - theirs for ours, theirs in zip(row["truth"][text], other["truth"][text], strict=True)]
        means.append(fmean(pairs))
        variances.append(stdev(pairs) ** 2 / len(pairs))
    return fmean(means), math.sqrt(math.fsum(variances)) / len(TEXTS)


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows as Markdown, and how the winners compare with the references and with the search at random."""
    known = {row["name"]: row for row in rows}
    base = known.get("base")
    if base is None:
        print("no rows yet")
        return
    print(f"| {MODEL} with | {' | '.join(TEXTS)} | mean | trials |\n|{'---|' * (len(TEXTS) + 3)}")
    for row in sorted((row for row in rows if row is not base), key=lambda row: beside(row, base)[0]):
        cells = [
            change_text(1.0 + percent / 100.0, error / 100.0)
            for percent, error in (change(row, base, text) for text in TEXTS)
        ]
        mean, error = beside(row, base)
        cells += [change_text(math.exp(mean), math.exp(mean) * error), str(row.get("trials", "–"))]
        print(f"| {row['name']} | {' | '.join(cells)} |")
    winners = [row for row in rows if row["kind"] == "evolution" and row["name"].startswith("tpe")]
    groups = {
        "every donor": [row for row in rows if row["kind"] == "donor"],
        "the best whole graft": [row for row in rows if row["kind"] == "graft"],
        "the plain means": [row for row in rows if row["kind"] == "mean"],
    }
    for what, group in groups.items():
        if group and winners:
            best = min(group, key=lambda row: beside(row, base)[0])
            differences = [beside(winner, best) for winner in winners]
            certain = sum(mean + 1.645 * error < 0.0 for mean, error in differences)
            listed = ", ".join(change_text(math.exp(mean), error) for mean, error in differences)
            print(f"\nBeside {what} ({best['name']}): {listed}; better in {certain} of {len(winners)}.")
    pairs = [(known.get(f"tpe {seed}"), known.get(f"random {seed}")) for seed in SEEDS]
    differences = [beside(one, other)[0] for one, other in pairs if one is not None and other is not None]
    if len(differences) > 1:
        error = stdev(differences) / math.sqrt(len(differences))
        bound = fmean(differences) + student_quantile(0.9, len(differences) - 1) * error
        listed = ", ".join(change_text(math.exp(one)) for one in differences)
        bounded = change_text(math.exp(bound))
        print(f"\nBeside the search at random with as many trials: {listed}; below {bounded} (one-sided, 90%).")
    chats = [text for winner in winners for text in winner["verdict"] or () if text["name"] == CHAT]
    listed = ", ".join(change_text(text["ratio"], text["ratio_margin"]) for text in chats)
    print(f"\nChat in the verdicts: {listed} (± 95%).")


if __name__ == "__main__":
    main()
