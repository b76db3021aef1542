"""Evolutions in a catalog, recorded without a runtime: their trials have numbers that were not measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.evolutions import NewTrial, add_trials, claim_trial, end_evolution
from organs.registry.catalog.work import fail, finish
from organs.registry.digest import digest_of
from organs.registry.entities.base import encode
from organs.registry.entities.validation import VerdictReport
from organs.registry.evolving.objectives import TrialResult
from organs.registry.evolving.search import checked_evolution, standing_of
from organs.registry.evolving.space import SearchSpace
from organs.registry.local import LocalRegistry
from organs.registry.progress import StepProgress
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.texts import ScoredText

LINES = "".join(f"The boat number {number} lay in the harbour and waited for the tide.\n" for number in range(80))
RUNTIME = "even 1"
SHARES = (0.0, 0.01, -0.01, 0.02, -0.02, 0.0)
"""What the windows of a trial differ by, besides its mean."""


class NoRuntimeYet(LlamaCpp):
    """A runtime that has a name and runs nothing."""

    def __init__(self) -> None:
        pass

    @property
    def identity(self) -> str:
        return RUNTIME


def text_of(name: str) -> ScoredText:
    """Return a text with a name."""
    return ScoredText(name, LINES, digest_of(LINES.encode()))


def add_evolution(
    registry: LocalRegistry,
    base: str,
    donors: Sequence[str],
    means: Sequence[float | None] = (-0.01, 0.02, -0.06, None),
    *,
    names: Sequence[str] = ("first", "second"),
    contributor: str = LOCAL,
    winner: str | None = None,
    verdict: VerdictReport | None = None,
    state: str = "finished",
    note: str = "",
    accept: Sequence[str] = (),
) -> int:
    """Add an evolution whose trials have these mean changes in nats, and fail for None, and its parts; return its id.

    The first trials are the starting points. The goal is a front: the second text changes the other way.
    """
    space = SearchSpace(
        base,
        tuple(donors),
        texts=tuple(names),
        goal="front" if len(names) > 1 else "mean",
        limits={},
        accept=tuple(accept),
        trials=len(means),
    )
    new = checked_evolution(registry.catalog, registry.blobs, space, [text_of(name) for name in names], NoRuntimeYet())
    with registry.catalog.writing() as session:
        number = replace(new, contributor=contributor).add(session)
        more = len(means) - len(new.starts)
        add_trials(session, number, [NewTrial("proposed", new.starts[0].choices)] * more)
        for mean in means:
            _end_trial(session, number, names, mean)
        best = standing_of(session, number).best
        if best is not None and state == "finished":
            choices = standing_of(session, number).choices.without(best.values)
            add_trials(session, number, [NewTrial("check", best.row.choices, best.row.number)])
            _end_trial(session, number, names, -0.02)
            for values in choices.values():
                add_trials(session, number, [NewTrial("without", json.dumps(values), best.row.number)])
                _end_trial(session, number, names, 0.01)
        if state != "running":
            made = None if winner is None else model_by_text(session, winner).id
            report = None if verdict is None else encode(verdict).decode()
            end_evolution(session, number, state, note, made, report)
    return number


def _end_trial(session: Session, number: int, names: Sequence[str], mean: float | None) -> None:
    """End the trial that waits: with a mean change, or failed."""
    claim = claim_trial(session, number, "test")
    assert claim is not None
    if mean is None:
        fail(session, claim, "the file cannot be written")
        return
    means = (mean, -mean / 2, mean / 3)
    differences = {
        name: tuple(means[place % len(means)] + share for share in SHARES) for place, name in enumerate(names)
    }
    finish(session, claim, encode(TrialResult(differences=differences, seconds=1.5)).decode())


def evolve_without_runtime(
    catalog: Catalog, _blobs: object, number: int, _runtime: object, progress: StepProgress, *_: object
) -> None:
    """Stand in the place of the trials: report one step, and end the evolution without a result."""
    progress(0.5, "trial 1, python")
    with catalog.writing() as session:
        end_evolution(session, number, "finished", "no trial is better than the base")
