"""The first table of the report on a registry: what one can do, such as to compare models that are almost identical."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy.orm import Session

from organs.registry.amounts import plural_text
from organs.registry.catalog.queries.models import incomplete_models
from organs.registry.catalog.queries.reports import (
    NamedModels,
    close_models,
    equal_models,
    largest_gain,
    models_in_state,
    nonfinite_models,
    stated_edges,
    unlicensed_models,
    unrun_chimeras,
)
from organs.registry.entities.report import CellKind, ReportColumn, ReportTable, table
from organs.registry.lineage import CLOSE
from organs.registry.relatives.lineage import DeclaredEdge, stated_groups

ACTIONS_EACH = 3
"""The most rows about one kind of finding."""
PAIRS_READ = 1000
"""The most similar pairs of models that are examined."""


class Action(NamedTuple):
    """A finding, the first model that it is about, the number of models, and a command that helps."""

    finding: str
    model: str | None
    models_count: int
    command: str


def actions_table(session: Session, *, complete: bool) -> ReportTable:
    """Return what one can do with the registry; if `complete`, also what only its owner may see and do."""
    rows = [*(_of_owner(session) if complete else ()), *_gains(session), *_copies(session), *_doubtful(session)]
    return table(
        title="What you can do",
        columns=_COLUMNS,
        rows=rows,
        before=("Findings about the registered models, each with a command that shows more.",),
        after=(f"At most {ACTIONS_EACH} rows of each kind are listed.",),
        empty="There is nothing to do: no finding about the registered models.",
    )


def _of_owner(session: Session) -> Iterator[Action]:
    """Yield what is held for review, hidden or incomplete."""
    held = models_in_state(session, "quarantined", 1)
    if held.count:
        models = plural_text(held.count, "model is", "models are")
        yield Action(f"{models} held for review.", None, held.count, "organ admin submissions")
    for error in incomplete_models(session)[:ACTIONS_EACH]:
        yield Action(f"{error}.", None, 1, "organ ingest SHARD")
    yanked = models_in_state(session, "yanked", 1)
    if yanked.count:
        sentence = f"{plural_text(yanked.count, 'model is', 'models are')} yanked: hidden from searches and lists."
        yield Action(sentence, yanked.names[0], yanked.count, f"organ show {yanked.names[0]}")


def _gains(session: Session) -> Iterator[Action]:
    """Yield the largest gain, and the chimeras that were never run."""
    best = largest_gain(session)
    if best is not None:
        name, percent, text = best
        yield Action(f"The largest measured gain: {percent:.1f}% on {text}.", name, 1, "organ leaderboard")
    unrun = unrun_chimeras(session, 1)
    if unrun.count:
        sentence = f"{plural_text(unrun.count, 'chimera was', 'chimeras were')} never run."
        yield Action(sentence, unrun.names[0], unrun.count, f"organ validate {unrun.names[0]}")


def _copies(session: Session) -> Iterator[Action]:
    """Yield the models with the same file, and pairs that are almost identical for no declared reason."""
    for names in equal_models(session, ACTIONS_EACH):
        sentence = f"The same file has {len(names)} names: {_listed(names)}."
        yield Action(sentence, names[0], len(names), f"organ show {names[0]}")
    pairs = close_models(session, CLOSE, PAIRS_READ)
    if not pairs:
        return
    titles = {model.id: model.title for first, second, _ in pairs for model in (first, second)}
    groups = stated_groups((DeclaredEdge(child, text, parent) for child, parent, text in stated_edges(session)), titles)
    unexplained = [pair for pair in pairs if groups.leader(pair[0].id) != groups.leader(pair[1].id)]
    for first, second, likeness in unexplained[:ACTIONS_EACH]:
        first_name, second_name = first.full_name, second.full_name
        sentence = f"Almost identical ({likeness:.3f}) to {second_name}, but neither model names the other as its base."
        yield Action(sentence, first_name, 2, f"organ compare {first_name} {second_name}")


def _doubtful(session: Session) -> Iterator[Action]:
    """Yield the models without a license, and those with weights that are no numbers."""
    unlicensed = unlicensed_models(session, 1)
    if unlicensed.count:
        sentence = f"{plural_text(unlicensed.count, 'model states', 'models state')} no license."
        yield Action(sentence, unlicensed.names[0], unlicensed.count, "organ models license:none")
    nonfinite: NamedModels = nonfinite_models(session, 1)
    if nonfinite.count:
        sentence = f"{plural_text(nonfinite.count, 'model has', 'models have')} weights that are NaN or infinite."
        command = f"organ report {nonfinite.names[0]} --table anomalies"
        yield Action(sentence, nonfinite.names[0], nonfinite.count, command)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - ACTIONS_EACH} more" if len(names) > ACTIONS_EACH else ""
    return ", ".join(names[:ACTIONS_EACH]) + more


_COLUMNS = (
    ReportColumn("finding", "finding", CellKind.TEXT),
    ReportColumn("model", "model", CellKind.NAME),
    ReportColumn("models_count", "models", CellKind.COUNT),
    ReportColumn("command", "command", CellKind.NAME),
)
