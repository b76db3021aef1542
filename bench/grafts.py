"""Measure grafts between models of families: the table `bench/grafts.json`, to which the prediction is fitted.

    python examples/zoo/train.py --family deep          first, for each family (about half an hour each)
    python -m bench.grafts zoo FOLDER... --json FILE    about a hundred grafts of each family, 5 to 10 seconds each

Needs the extra `validate`. A registry in a temporary folder gets the models of a family. Each graft is a recipe that is
planned and made by the services that the commands use, and then run in llama.cpp beside its base and its control, on
6,144 tokens of each of the two long texts of `bench.verdicts`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.verdicts import ACCEPTED, ZOO, ingested, long_texts
from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.anatomy import OrganType
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.compose.build import make
from organs.registry.compose.models import RegisteredLibrary, parts_of
from organs.registry.compose.plan import mean_of
from organs.registry.compose.planner import changes_of, plan_recipe
from organs.registry.compose.prediction import LOSS_LIMIT, RECOVERED_LIMIT, BaseShape, Change, Group, groups_of
from organs.registry.compose.recipe import AdapterMerge, Graft, Purification, PurifyMethod, Recipe, Selection
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.validation.comparison import Budget, MemoryCache, file_candidate, validate
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.verdict import WEAK_BELOW, TextScores

TABLE = Path(__file__).with_name("grafts.json")
TOKENS = 6144
GRAFTS_MAX = 120
"""Of each family, in a random order that is always the same."""
ZOO_MODELS = {
    "Base": "Zoo-A-2M-v1.0-F16",
    "Q8": "Zoo-A-2M-v1.0-Q8_0",
    "Code": "Zoo-A-2M-Code-v1.0-F16",
    "Prose": "Zoo-A-2M-Prose-v1.0-Q8_0",
    "Step250": "Zoo-A-2M-v0.3-Q8_0",
    "Step100": "Zoo-A-2M-v0.1-Q8_0",
    "Branch": "Zoo-A-2M-Branch-v1.0-Q8_0",
    "Other": "Zoo-B-2M-v1.0-Q8_0",
    "LoRA": "Zoo-A-2M-Code-LoRA-v1.0-F32",
}
"""The models of the zoo by the names of their counterparts in the other families."""
PAIRS = (
    ("Code", "Base"), ("Code", "Prose"), ("Code", "Branch"), ("Code", "Step250"), ("Prose", "Far"), ("Prose", "Code"),
    ("Branch", "Base"), ("Branch", "Code"), ("Branch", "Step250"), ("Branch", "Other"), ("Step250", "Base"),
    ("Step250", "Branch"), ("Step600", "Base"), ("Step600", "Step250"), ("Other", "Base"), ("Other", "Branch"),
)  # fmt: skip
"""Grafts of all feed-forward organs into other models than the base: the model that receives, and the donor."""
PARTIAL_DONORS = ("Step100", "Step250", "Code", "Prose", "Far", "Branch", "Other")
BLOCK_DONORS = ("Step100", "Step250", "Far", "Branch", "Other")
SCALES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, -1.0, -2.0, -4.0)
KEPT = {
    "organ": (0.99, 0.95, 0.9, 0.7, 0.5, 0.3, 0.1),
    "skeleton": (0.95, 0.9, 0.7, 0.5, 0.3, 0.1),
    "embed": (0.99, 0.95, 0.9, 0.7, 0.5),
}
"""The shares of energy that purifications keep, by the type of organ."""

KINDS = ("whole", "blocks", "one block", "embeddings", "norms", "LoRA", "purified", "mixed")


@dataclass(frozen=True, slots=True)
class Trial:
    """A graft to measure; `kind` is one of KINDS."""

    name: str
    kind: str
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class MeasuredGraft:
    """A graft with what the prediction knows of it, and what was measured."""

    family: str
    name: str
    kind: str
    base: BaseShape
    groups: tuple[Group, ...]
    python: float | None
    """The change ln(p / p0) on the long text of Python; None if it is not finite."""
    documentation: float | None
    recovered: float | None
    """The recovered share of what the control lost, on the text where it is larger; None without a control."""
    is_weak: bool
    """Whether zeroing the grafted organs costs too little to decide whether they work."""
    theta: float | None
    """Mean θ of the grafted organs; None if nothing is grafted."""
    theta_replaced: float | None
    spectral_signal: float | None

    @property
    def loss(self) -> float:
        """The change on the worst text, in nats for each token."""
        return max(math.inf if value is None else value for value in (self.python, self.documentation))

    @property
    def is_usable(self) -> bool | None:
        """Whether the graft works by the limits of verdicts; None if that cannot be decided."""
        if self.loss > LOSS_LIMIT:
            return False
        if self.is_weak:
            return None
        return self.recovered is None or self.recovered >= RECOVERED_LIMIT


def read_table(path: Path = TABLE) -> list[MeasuredGraft]:
    """Return the measured grafts in a file that `write_table` wrote."""
    return [_from_row(row) for row in json.loads(path.read_text())]


def write_table(path: Path, grafts: list[MeasuredGraft]) -> None:
    """Write grafts as JSON, one to a line."""
    rows = ",\n".join(json.dumps(_to_row(graft), separators=(",", ":")) for graft in grafts)
    path.write_text(f"[\n{rows}\n]\n")


def _to_row(graft: MeasuredGraft) -> dict[str, Any]:
    groups = [
        [str(value) if isinstance(value, OrganType) else _rounded(value) for value in asdict(group).values()]
        for group in graft.groups
    ]
    values = {name: _rounded(value) for name, value in asdict(graft).items() if name not in ("base", "groups")}
    return values | {"base": list(asdict(graft.base).values()), "groups": groups}


def _from_row(row: dict[str, Any]) -> MeasuredGraft:
    groups = tuple(Group(OrganType(kind), *values) for kind, *values in row["groups"])
    return MeasuredGraft(**row | {"base": BaseShape(*row["base"]), "groups": groups})


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", help="`zoo`, or folders with the GGUF files of families")
    parser.add_argument("--json", type=Path, required=True, help="the table to write")
    options = parser.parse_args()
    grafts: list[MeasuredGraft] = []
    for folder in options.folders:
        for graft in measured_grafts(folder):
            grafts.append(graft)
            write_table(options.json, grafts)


def measured_grafts(folder: str) -> Iterator[MeasuredGraft]:
    """Measure the grafts of one family."""
    texts = tuple(long_texts())
    runtime, cache = LlamaCpp(), MemoryCache()
    budget = Budget(seconds=36_000.0, tokens=TOKENS, enough_tokens=TOKENS)
    with tempfile.TemporaryDirectory() as home, LocalRegistry.open(home) as registry:
        path = ZOO if folder == "zoo" else Path(folder)
        names = _ingested_zoo(registry) if folder == "zoo" else ingested(registry, path)
        with registry.catalog.reading() as session:
            base = BaseShape.of(parts_of(session, model_by_name(session, parse_model_name(names["Base"])).id))
        wanted = list(trials(names, base))
        random.Random(1).shuffle(wanted)
        for number, trial in enumerate(wanted[:GRAFTS_MAX], start=1):
            begun = time.monotonic()
            chimera = Path(home, "chimera.gguf")
            with registry.catalog.reading() as session:
                plan = plan_recipe(trial.recipe, RegisteredLibrary(session, registry.blobs))
            made = make(registry.catalog, registry.blobs, plan, path=chimera)
            with registry.catalog.reading() as session:
                parts = parts_of(session, model_by_name(session, parse_model_name(made.model)).id)
            computed = {part.name: part for part in parts if part.name in plan.computations}
            grafted = [part.before.name for part in plan.parts if "grafted" in part.acts]
            models = (file_candidate(chimera), file_candidate(path / f"{trial.recipe.base}.gguf"))
            scores = validate(*models, [], grafted, texts, runtime, budget, cache=cache).verdict.texts
            chimera.unlink()
            graft = _measured(path.name, trial, base, changes_of(plan.parts, computed), scores)
            yield graft
            seconds = time.monotonic() - begun
            print(
                f"{path.name} {number}: {trial.kind}, {trial.name}: {graft.loss:+.3f}, {seconds:.0f} s", file=sys.stderr
            )


def _ingested_zoo(registry: LocalRegistry) -> dict[str, str]:
    for source in find_sources([str(ZOO / f"{name}.gguf") for name in ZOO_MODELS.values()]):
        ingest_model(registry, source)
    return ZOO_MODELS


def _measured(
    family: str, trial: Trial, base: BaseShape, changes: Sequence[Change], scores: tuple[TextScores, ...]
) -> MeasuredGraft:
    losses = {score.text: None if score.change is None else score.change.mean for score in scores}
    grafted = [change for change in changes if change.is_grafted]
    weights = [score for score in scores if score.weight is not None]
    heavy = [score.recovered for score in weights if score.weight and score.weight.mean > math.log(WEAK_BELOW)]
    known = [recovered for recovered in heavy if recovered is not None]
    return MeasuredGraft(
        family,
        trial.name,
        trial.kind,
        base,
        tuple(groups_of(changes)),
        losses["python"],
        losses["documentation"],
        max(known, default=None),
        bool(weights) and not heavy,
        mean_of([change.source.theta for change in grafted]),
        mean_of([change.before.theta for change in grafted]),
        mean_of([change.source.spectral_signal for change in grafted]),
    )


def trials(names: dict[str, str], base: BaseShape) -> Iterator[Trial]:
    """Return the grafts of a family, from a step apart to strangers, weak and strong; `names` are by part of name."""
    donors = [name for name in names if name not in ("Base", "LoRA")]
    yield from _of_types(names, donors, base)
    yield from _of_blocks(names, [name for name in donors if name in PARTIAL_DONORS], base.blocks)
    for onto, donor in PAIRS:
        if onto in names and donor in names:
            yield _graft(names, "whole", donor, "feed-forward", ("organ",), onto=onto)
    for onto in ("Base", "Code", "Branch", "Other", "Step250"):
        for scale in SCALES if onto == "Base" else (1.0, 4.0):
            recipe = Recipe(names[onto], (), (AdapterMerge(names["LoRA"], scale),), accept=ACCEPTED)
            yield Trial(f"{onto} + {scale:g} LoRA", "LoRA", recipe)
    yield from _purified(names, base.blocks)
    yield from _mixed(names, base.blocks)


def _graft(
    names: dict[str, str],
    kind: str,
    donor: str,
    what: str,
    types: tuple[str, ...],
    slots: tuple[str, ...] = (),
    blocks: tuple[tuple[int, int], ...] = (),
    onto: str = "Base",
) -> Trial:
    recipe = Recipe(names[onto], (Graft(Selection(types, slots, blocks), donor=names[donor]),), accept=ACCEPTED)
    return Trial(f"{onto} <- {donor} {what}", kind, recipe)


def _of_types(names: dict[str, str], donors: list[str], base: BaseShape) -> Iterator[Trial]:
    for donor in donors:
        yield _graft(names, "whole", donor, "feed-forward", ("organ",))
        yield _graft(names, "whole", donor, "attention", ("skeleton",))
        if donor not in ("Q8", "Near"):
            yield _graft(names, "whole", donor, "feed-forward and attention", ("organ", "skeleton"))
        yield _graft(names, "embeddings", donor, "embeddings", ("embed",))
        if base.has_output and donor not in ("Q8", "Step600", "Near"):
            yield _graft(names, "embeddings", donor, "token embeddings", ("embed",), ("token_embd",))
            yield _graft(names, "embeddings", donor, "output matrix", ("embed",), ("output",))


def _of_blocks(names: dict[str, str], donors: list[str], blocks: int) -> Iterator[Trial]:
    middle, last = blocks // 2, blocks - 1
    for donor in donors:
        for begin, end in ((0, middle - 1), (middle, last)):
            yield _graft(names, "blocks", donor, f"feed-forward {begin}-{end}", ("organ",), (), ((begin, end),))
        yield _graft(names, "blocks", donor, f"attention 1-{last}", ("skeleton",), (), ((1, last),))
        if donor in BLOCK_DONORS:
            for block in (0, middle, last):
                yield _graft(names, "one block", donor, f"feed-forward {block}", ("organ",), (), ((block, block),))
        if donor in BLOCK_DONORS[1:]:
            at = ((middle, middle),)
            yield _graft(names, "one block", donor, "attention 0", ("skeleton",), (), ((0, 0),))
            yield _graft(names, "one block", donor, f"attention {middle}", ("skeleton",), (), at)
            yield _graft(names, "one block", donor, f"gate of {middle}", ("organ",), ("ffn_gate",), at)
            yield _graft(names, "one block", donor, f"all of block {middle}", ("organ", "skeleton"), (), at)
            yield _graft(names, "norms", donor, "norms", ("norm",))


def _purified(names: dict[str, str], blocks: int) -> Iterator[Trial]:
    def purified(what: str, selection: Selection, keep: float | None, onto: str = "Base") -> Trial:
        method = PurifyMethod.FRACTAL if keep is None else PurifyMethod.SPECTRAL
        name = f"{onto} {what} {'fractal' if keep is None else f'keep {keep:g}'}"
        step = Purification(selection, method, keep=keep)
        return Trial(name, "purified", Recipe(names[onto], (), (), (step,), accept=ACCEPTED))

    for kind, keeps in KEPT.items():
        for keep in keeps:
            yield purified(kind, Selection(types=(kind,)), keep)
    for keep in (0.9, 0.5):
        for block in (0, blocks - 1):
            yield purified(f"organ {block}", Selection(types=("organ",), blocks=((block, block),)), keep)
        yield purified("organ and skeleton", Selection(types=("organ", "skeleton")), keep)
        yield purified("organ", Selection(types=("organ",)), keep, "Branch")
    for kind in ("organ", "skeleton"):
        yield purified(kind, Selection(types=(kind,)), None)


def _mixed(names: dict[str, str], blocks: int) -> Iterator[Trial]:
    middle, last, base = blocks // 2, blocks - 1, names["Base"]
    for first, second in (("Code", "Prose"), ("Code", "Branch"), ("Prose", "Other")):
        halves = (
            Graft(Selection(types=("organ",), blocks=(part,)), donor=names[donor])
            for donor, part in ((first, (0, middle - 1)), (second, (middle, last)))
        )
        yield Trial(f"Base <- {first}, {second}", "mixed", Recipe(base, tuple(halves), accept=ACCEPTED))
    for donor in ("Code", "Branch"):
        graft = (Graft(Selection(types=("organ",)), donor=names[donor]),)
        merge = (AdapterMerge(names["LoRA"]),)
        yield Trial(f"Base <- {donor} + LoRA", "mixed", Recipe(base, graft, merge, accept=ACCEPTED))
        step = (Purification(Selection(types=("organ",)), PurifyMethod.SPECTRAL, keep=0.9),)
        yield Trial(f"Base <- {donor} keep 0.9", "mixed", Recipe(base, graft, (), step, accept=ACCEPTED))


if __name__ == "__main__":
    main()
