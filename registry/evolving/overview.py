"""An evolution as an entity: its trials, the best one, and what was made of it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec.structs import asdict
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.evolutions import evolution_row, evolution_summary
from organs.registry.compose.recipe import recipe_file
from organs.registry.entities.base import prepared
from organs.registry.entities.evolution import Evolution, EvolutionTrial, PartEffect
from organs.registry.entities.validation import VerdictReport
from organs.registry.evolving.objectives import effect_of, front_of, text_changes
from organs.registry.evolving.search import OVER, Standing, Tried, standing_of
from organs.registry.evolving.space import space_yaml


def evolution_of(session: Session, evolution_id: int, contributor: str | None = None) -> Evolution:
    """Return an evolution with all its trials; with `contributor`, those of others are not found.

    Raises NoSuchEvolution.
    """
    summary, standing = evolution_summary(session, evolution_id, contributor), standing_of(session, evolution_id)
    row, best = evolution_row(session, evolution_id), standing.best
    verdict = None if row.verdict is None else msgspec.json.decode(row.verdict, type=prepared(VerdictReport))
    measured = [trial for trial in standing.searched if not Standing.result(trial).is_stopped]
    points = {trial.row.number: standing.values(trial) for trial in measured if _is_allowed(standing, trial)}
    return Evolution(
        **asdict(summary),
        phase=standing.phase if summary.state == "running" else OVER,
        donors=standing.choices.models,
        goal=standing.space.goal,
        space=space_yaml(standing.space),
        labels={one.key: one.label for one in standing.choices.parameters},
        texts=tuple(dict.fromkeys([*standing.objective.weights, *standing.objective.limits])),
        seconds=round(standing.seconds, 1),
        seconds_allowed=standing.space.allowed_seconds,
        trials_allowed=standing.space.trials,
        best=None if best is None else _trial(standing, best, with_checks=True),
        front=front_of(points) if standing.objective.is_front else (),
        parts=_parts(standing),
        recipe=None if best is None else recipe_file(standing.recipe()),
        verdict=verdict,
        history=tuple(_trial(standing, trial) for trial in standing.trials),
    )


def _is_allowed(standing: Standing, trial: Tried) -> bool:
    return standing.objective.is_allowed(Standing.result(trial).differences)


def _trial(standing: Standing, trial: Tried, *, with_checks: bool = False) -> EvolutionTrial:
    result, row, objective = trial.result, trial.row, standing.objective
    known = EvolutionTrial(
        number=row.number,
        role=row.role,
        of_number=row.of_number,
        state=row.state,
        note=row.note,
        start=standing.starts.get(row.choices, "") if row.role == "start" else "",
        choice=trial.values,
    )
    if result is None or not any(result.differences.values()):
        return known
    differences = standing.differences(trial) if with_checks else result.differences
    change = objective.change(differences)
    if result.is_stopped and standing.best is not None:
        (change,) = replace(objective, is_front=False).estimated(
            result.differences, Standing.result(standing.best).differences
        )
    return msgspec.structs.replace(
        known,
        change=change,
        is_allowed=objective.is_allowed(differences),
        is_stopped=result.is_stopped,
        texts=text_changes(objective, differences),
        same_as=result.same_as,
        seconds=result.seconds,
    )


def _parts(standing: Standing) -> tuple[PartEffect, ...]:
    """Return the effects of the parts of the best trial that were left out, the largest first."""
    best = standing.best
    check = None if best is None else standing.checks.get(best.row.number)
    if best is None or check is None:
        return ()
    own = {trial.row.choices: trial for trial in standing.done("without") if trial.row.of_number == best.row.number}
    by_values = {tuple(sorted(trial.values.items())): trial for trial in own.values()}
    found = []
    for part, values in standing.choices.without(best.values).items():
        trial = by_values.get(tuple(sorted(values.items())))
        if trial is not None:
            without = Standing.result(trial).differences
            found.append(effect_of(standing.objective, part, without, Standing.result(check).differences))
    return tuple(sorted(found, key=lambda effect: effect.change, reverse=True))
