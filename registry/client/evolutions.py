"""Evolutions in a remote registry: the request, with the user's texts, which are read on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from organs.registry.entities.job import (
    EVOLUTION_REQUEST_MAX_BYTES,
    EVOLUTION_TEXT_MAX_BYTES,
    EVOLUTION_TEXTS_MAX,
    EvolutionRequest,
    EvolutionText,
    Job,
)
from organs.registry.errors import BadInput, BadReply
from organs.registry.evolving.search import chosen_texts
from organs.registry.evolving.space import SearchSpace, as_space, space_to_json
from organs.registry.validation.texts import ScoredText, built_in_texts, shortened

TEXTS_BYTES = EVOLUTION_REQUEST_MAX_BYTES * 7 // 8
"""The most bytes of the texts of one request together, as JSON."""


def evolution_request(
    space: SearchSpace | Mapping[str, object], texts: Sequence[ScoredText] | None
) -> EvolutionRequest:
    """Return the request for an evolution, with the content of texts that are not built-in ones.

    Of long texts, evenly spread sections are sent. Raises BadRecipe, BadSource, BadInput for too many texts.
    """
    named, found = (as_space(space), texts) if texts is not None else chosen_texts(as_space(space), Path())
    if len(found) > EVOLUTION_TEXTS_MAX:
        raise BadInput(f"{len(found)} texts: a registry takes at most {EVOLUTION_TEXTS_MAX}")
    built_in = {text.name: text.digest for text in built_in_texts()}
    own = [text for text in found if built_in.get(text.name) != text.digest]
    most_bytes = min(EVOLUTION_TEXT_MAX_BYTES, TEXTS_BYTES // max(1, len(own)))
    return EvolutionRequest(
        space=json.loads(space_to_json(named)),
        texts=tuple(
            EvolutionText(name=text.name, content=shortened(text, most_bytes).text if text in own else None)
            for text in found
        ),
    )


def evolution_of_job(job: Job) -> int:
    """Return the number of the evolution that a job does. Raises BadReply."""
    number = job.arguments.get("evolution")
    if type(number) is not int or number < 1:
        raise BadReply(f"job {job.id} does not say which evolution it does")
    return number
