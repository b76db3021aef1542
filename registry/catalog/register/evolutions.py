"""Rows of evolutions and of their trials, which `registry.catalog.work` claims and ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.evolutions import has_living_trials
from organs.registry.catalog.queries.jobs import job_of_evolution
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.rows import insert_all, insert_missing
from organs.registry.catalog.tables import EvolutionRow, TrialRow
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.catalog.work import TRIALS, Claim, claim_next
from organs.registry.errors import Conflict


@dataclass(frozen=True, slots=True)
class TrialClaim(Claim):
    """A trial that a process has claimed."""

    number: int
    role: str
    of_number: int | None
    choices: str
    """JSON: the value of each parameter."""


@dataclass(frozen=True, slots=True)
class NewTrial:
    """A trial to add."""

    role: str
    choices: str
    """JSON: the value of each parameter."""
    of_number: int | None = None
    plan: str | None = None
    """The digest of its plan, if it is known."""


def start_evolution(
    session: Session,
    contributor: str,
    base_model_id: int,
    space: str,
    texts: str,
    blocks: int,
    runtime: str,
    starts: Iterable[NewTrial],
) -> int:
    """Add an evolution with its first trials; return its id. `space` and `texts` are JSON."""
    row = EvolutionRow(
        contributor_id=contributor_id(session, contributor),
        base_model_id=base_model_id,
        state="running",
        note="",
        space=space,
        texts=texts,
        blocks=blocks,
        runtime=shown_text(runtime, 256),
        created_at=database_now(session),
    )
    session.add(row)
    session.flush()
    add_trials(session, row.id, starts)
    return row.id


def add_trials(session: Session, evolution_id: int, trials: Iterable[NewTrial]) -> list[int]:
    """Queue trials behind all others; return their numbers."""
    last = session.scalar(select(func.max(TrialRow.number)).where(TrialRow.evolution_id == evolution_id)) or 0
    rows = [_values(session, evolution_id, number, trial) for number, trial in enumerate(trials, last + 1)]
    if rows:
        insert_all(session, TrialRow, rows)
    return [row["number"] for row in rows]  # type: ignore[misc]


def add_trial(session: Session, evolution_id: int, number: int, trial: NewTrial) -> bool:
    """Queue a trial under this number; return False if another process has added one with it."""
    before = session.scalar(select(func.max(TrialRow.number)).where(TrialRow.evolution_id == evolution_id)) or 0
    if before != number - 1:
        return False
    insert_missing(session, TrialRow, [_values(session, evolution_id, number, trial)])
    return True


def _values(session: Session, evolution_id: int, number: int, trial: NewTrial) -> dict[str, object]:
    return {
        "evolution_id": evolution_id,
        "number": number,
        "role": trial.role,
        "of_number": trial.of_number,
        "choices": trial.choices,
        "plan": trial.plan,
        "state": "queued",
        "attempts": 0,
        "deaths": 0,
        "note": "",
        "created_at": database_now(session),
    }


def claim_trial(session: Session, evolution_id: int, worker: str, number: int | None = None) -> TrialClaim | None:
    """Claim the trial `number`, by default the first one that waits; None if it is not to be done now."""
    among = [TrialRow.evolution_id == evolution_id]
    if number is not None:
        among.append(TrialRow.number == number)
    row = claim_next(session, TRIALS, *among)
    if row is None:
        return None
    assert row.holder is not None
    row.worker = shown_text(worker, 96)
    return TrialClaim(
        *(TRIALS, (evolution_id, row.number), row.holder, row.attempts),
        number=row.number,
        role=row.role,
        of_number=row.of_number,
        choices=row.choices,
    )


def record_plan(session: Session, claim: TrialClaim, plan: str) -> None:
    """Store the digest of the plan of a trial."""
    session.execute(
        update(TrialRow).where(TrialRow.evolution_id == claim.key[0], TrialRow.number == claim.number).values(plan=plan)
    )


def end_evolution(
    session: Session,
    evolution_id: int,
    state: str,
    note: str = "",
    winner: int | None = None,
    verdict: str | None = None,
) -> None:
    """Record that an evolution is over, with the model of its winner, and the verdict on it as JSON."""
    columns = {"state": state, "note": shown_text(note), "winner_model_id": winner, "verdict": verdict}
    values = columns | {"finished_at": database_now(session)}
    session.execute(update(EvolutionRow).where(EvolutionRow.id == evolution_id).values(values))


def remove_evolution(session: Session, evolution_id: int) -> None:
    """Remove an evolution with its trials and texts; its winner stays. Raises Conflict while something works on it."""
    job = job_of_evolution(session, evolution_id)
    if job is not None:
        raise Conflict(f"job {job.id} does evolution {evolution_id}: cancel it first")
    if has_living_trials(session, evolution_id):
        raise Conflict(
            f"a trial of evolution {evolution_id} still runs: stop its command, or try again a minute after it stopped"
        )
    session.execute(delete(EvolutionRow).where(EvolutionRow.id == evolution_id))
