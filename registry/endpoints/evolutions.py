"""Evolutions: begin, continue, list, get, remove; the recipe of a trial."""

from __future__ import annotations

import json
from typing import Annotated

from organs.registry.endpoints.chimeras import EXAMPLE_DONOR
from organs.registry.endpoints.declaration import ACCEPTED, Group
from organs.registry.endpoints.parameters import EXAMPLE_BASE, LIMIT_DEFAULT, After, Limit, number_note
from organs.registry.entities.evolution import Evolution, EvolutionPage, EvolutionSummary
from organs.registry.entities.job import EvolutionRequest, Job
from organs.registry.entities.plan import RecipeFile

GROUP = Group("Evolutions", "Searches for the best chimera of a base, by trials on texts.")
EvolutionNumber = Annotated[int, number_note("evolution")]
TrialNumber = Annotated[int, number_note("trial")]
EVOLUTION_EXAMPLE = json.dumps(
    {"space": {"base": EXAMPLE_BASE, "donors": [EXAMPLE_DONOR], "texts": ["python"], "trials": 20}}
)


@GROUP.get("/evolutions", "List evolutions", example="limit=1", refusals=(404,))
def evolutions(limit: Limit = LIMIT_DEFAULT, after: After | None = None) -> EvolutionPage:
    """Return your evolutions, newest first. Administrators see all. 404 without an account, and on a read-only
    server.
    """


@GROUP.get("/evolutions/{evolution}", "Get an evolution", refusals=(404,))
def evolution(evolution: EvolutionNumber) -> Evolution:
    """Return how far an evolution is, its trials, the best one and what was made of it. 404 for evolutions of other
    contributors, and on a read-only server. At most 200 trials have their `choice`.
    """


@GROUP.get("/evolutions/{evolution}/trials/{trial}/recipe", "Get the recipe of a trial", refusals=(404,))
def trial_recipe(evolution: EvolutionNumber, trial: TrialNumber) -> RecipeFile:
    """Return the recipe of the chimera that a trial was, with the tensor types of the result."""


@GROUP.write(
    "post",
    "/evolutions",
    "Begin an evolution",
    status=ACCEPTED,
    example=EVOLUTION_EXAMPLE,
    refusals=(404, 409, 410),
)
def evolve(body: EvolutionRequest) -> Job:
    """Start a job that tries chimeras of a base for at most 240 minutes, makes the best one in your namespace, and
    measures it on parts of the texts that no trial used. Its arguments have the number of the evolution. Texts are
    built-in ones, or sent with the request: at most 1 MiB together.
    """


@GROUP.write(
    "post", "/evolutions/{evolution}/continue", "Continue an evolution", status=ACCEPTED, refusals=(404, 409, 410)
)
def continue_evolution(evolution: EvolutionNumber) -> Job:
    """Return the job that does an evolution, or start one that continues it, for example after it was cancelled. The
    trials that are done are kept.
    """


@GROUP.write("delete", "/evolutions/{evolution}", "Remove an evolution", refusals=(404, 409))
def remove_evolution(evolution: Annotated[int, number_note("evolution", "2")]) -> EvolutionSummary:
    """Remove an evolution with its trials and its texts, and return it. The chimera that it made stays. Refused while a
    job or another process works on it.
    """
