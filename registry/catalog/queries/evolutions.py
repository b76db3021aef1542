"""Evolutions and their trials.

With a `contributor`, evolutions of others are not found; None means those of all contributors.
"""

from __future__ import annotations

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, undefer

from organs.registry.catalog.rows import count, entity_of, page_of_rows
from organs.registry.catalog.tables import ContributorRow, EvolutionRow, ModelRow, TrialRow
from organs.registry.catalog.work import is_alive
from organs.registry.entities.evolution import EvolutionPage, EvolutionSummary
from organs.registry.errors import NoSuchEvolution

OPEN = ("queued", "running")


def newest_evolutions(
    session: Session, limit: int, after: str | None = None, contributor: str | None = None
) -> EvolutionPage:
    """Return the next `limit` evolutions after the cursor `after`, newest first. Raises BadQuery."""
    rows, following = page_of_rows(session, _evolutions(contributor), "evolutions", limit, after)
    return EvolutionPage(items=tuple(_summary(session, row, name) for row, name in rows), next=following)


def evolution_row(session: Session, evolution_id: int, contributor: str | None = None) -> EvolutionRow:
    """Return the row of an evolution; its texts are loaded on access. Raises NoSuchEvolution."""
    found = session.execute(_evolutions(contributor).where(EvolutionRow.id == evolution_id)).one_or_none()
    if found is None:
        raise NoSuchEvolution(f"there is no evolution {evolution_id}")
    return found[0]


def evolution_summary(session: Session, evolution_id: int, contributor: str | None = None) -> EvolutionSummary:
    """Return an evolution as a line of a list. Raises NoSuchEvolution."""
    row = evolution_row(session, evolution_id, contributor)
    return _summary(session, row, session.get_one(ContributorRow, row.contributor_id).name)


def trials_of(session: Session, evolution_id: int) -> list[TrialRow]:
    """Return all trials of an evolution with their results, in order."""
    statement = select(TrialRow).options(undefer(TrialRow.result)).where(TrialRow.evolution_id == evolution_id)
    return list(session.scalars(statement.order_by(TrialRow.number)))


def ended_trials(session: Session, evolution_id: int) -> int:
    """Return how many trials of an evolution have ended, with checks and failures."""
    return count(session, TrialRow, TrialRow.evolution_id == evolution_id, TrialRow.state.not_in(OPEN))


def evolution_of_winner(session: Session, model_id: int, contributor: str | None = None) -> int | None:
    """Return the newest evolution that made a model; None if there is none, or it is another contributor's."""
    found = _evolutions(contributor).where(EvolutionRow.winner_model_id == model_id).order_by(EvolutionRow.id.desc())
    row = session.execute(found.limit(1)).first()
    return None if row is None else row[0].id


def has_living_trials(session: Session, evolution_id: int) -> bool:
    """Return whether a process that renews its lease does a trial."""
    among = (TrialRow.evolution_id == evolution_id, is_alive(session, TrialRow))
    return session.scalar(select(TrialRow.number).where(*among).limit(1)) is not None


def _evolutions(contributor: str | None) -> Select[EvolutionRow, str]:
    columns = (EvolutionRow, ContributorRow.name)
    statement = select(*columns).join(ContributorRow, ContributorRow.id == EvolutionRow.contributor_id)
    return statement if contributor is None else statement.where(ContributorRow.name == contributor)


def _summary(session: Session, row: EvolutionRow, contributor: str) -> EvolutionSummary:
    winner = None if row.winner_model_id is None else session.get_one(ModelRow, row.winner_model_id).full_name
    return entity_of(
        EvolutionSummary,
        row,
        base=session.get_one(ModelRow, row.base_model_id).full_name,
        contributor=contributor,
        trials=count(
            session,
            TrialRow,
            *(TrialRow.evolution_id == row.id, TrialRow.state == "done", TrialRow.role.in_(("start", "proposed"))),
        ),
        winner=winner,
    )
