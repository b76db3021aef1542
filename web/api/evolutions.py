"""Evolutions: begin, continue, list, get, remove; the recipe of a trial."""

from __future__ import annotations

from flask import g, request

from organs.ingest.jobs.kinds import continued_evolution
from organs.registry.catalog.queries.evolutions import evolution_summary, newest_evolutions
from organs.registry.catalog.queries.jobs import job_by_id
from organs.registry.compose.recipe import recipe_file
from organs.registry.endpoints import evolutions as endpoints
from organs.registry.entities.evolution import Evolution, EvolutionPage, EvolutionSummary
from organs.registry.entities.job import EVOLUTION_REQUEST_MAX_BYTES, EvolutionRequest, Job
from organs.registry.entities.plan import RecipeFile
from organs.registry.evolving.overview import evolution_of
from organs.registry.evolving.search import removed, standing_of
from organs.web.api.operation import queued, serves
from organs.web.api.uploads import current_contributor_id, receiving
from organs.web.permissions import whose_jobs
from organs.web.rate_limits import take_turn
from organs.web.responses import reading, registry, searching


@serves(endpoints.evolutions)
def evolutions(limit: int, after: str | None) -> EvolutionPage:
    whose = whose_jobs()
    with searching() as session:
        return newest_evolutions(session, limit, after, whose)


@serves(endpoints.evolution)
def evolution(evolution: int) -> Evolution:
    return shown_evolution(evolution).with_few_choices()


def shown_evolution(number: int) -> Evolution:
    """Return an evolution that the user may see. Raises NoSuchEvolution.

    The answer about one that is not over is not cached: its time goes on without a change of the catalog.
    """
    whose = whose_jobs()
    with searching() as session:
        found = evolution_of(session, number, whose)
    if not found.is_over:
        g.not_cached = True
    return found


@serves(endpoints.trial_recipe)
def trial_recipe(evolution: int, trial: int) -> RecipeFile:
    whose = whose_jobs()
    with searching() as session:
        evolution_summary(session, evolution, whose)
        return recipe_file(standing_of(session, evolution).recipe(trial))


def _receive_texts() -> None:
    """Read the body, which may be large, while one of the places for uploads is held."""
    request.max_content_length = EVOLUTION_REQUEST_MAX_BYTES
    with receiving(current_contributor_id()):
        request.get_data()  # it is kept for the reader of the body
        take_turn()


@serves(endpoints.evolve, receive=_receive_texts)
def evolve(body: EvolutionRequest) -> Job:
    return queued("evolve", body)


@serves(endpoints.remove_evolution)
def remove_evolution(evolution: int) -> EvolutionSummary:
    return removed(registry().catalog, evolution, whose_jobs())


@serves(endpoints.continue_evolution)
def continue_evolution(evolution: int) -> Job:
    job = continued(evolution)
    with reading() as session:
        return job_by_id(session, job)


def continued(evolution: int) -> int:
    """Return the job that does an evolution that the user may see, or a new one. Raises NoSuchEvolution."""
    return continued_evolution(registry(), evolution, whose_jobs())
