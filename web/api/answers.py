"""Answers of models to prompts: ask, read, delete. The pages use the same functions.

A request only adds a row to the queue, or reads one: no thread waits for a model. `organ work` answers the prompts
(`ingest.answering`). Clients ask again until an answer is complete.
"""

from __future__ import annotations

import re

from flask import abort, g
from msgspec import structs

from organs.ingest.answering import settled_prompt
from organs.registry.amounts import size_text
from organs.registry.catalog.queries.answers import NO_ANSWER, answer_by_key
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.register.answers import Asker, enqueue_prompt, forget_answer
from organs.registry.endpoints import answers as endpoints
from organs.registry.entities.chat import TOKENS_DEFAULT, PromptAnswer, PromptArguments, PromptRequest
from organs.registry.errors import BadInput, NoSuchAnswer
from organs.registry.validation.chat import random_seed
from organs.web.api.operation import serves
from organs.web.auth import identity
from organs.web.client_address import client_address
from organs.web.permissions import check_anybody
from organs.web.rate_limits import Rate, rates
from organs.web.responses import reading, registry, searching, settings
from organs.web.settings import PromptLimits

OFF = "This server answers no prompts: its operator has not turned it on."
_KEY = re.compile(r"[0-9a-f]{32}", re.ASCII)


def prompt_limits() -> PromptLimits | None:
    """Return the limits of prompts; None if this server answers none."""
    return None if settings().read_only else settings().prompts


def asker() -> Asker:
    """Return who asks: the account of the request, the user of this machine, or the address."""
    client = identity()
    if client.account is not None:
        return Asker(str(client.account.contributor_id), has_account=True)
    if client.is_local:
        return Asker("local", has_account=True)
    return Asker(client_address(), has_account=False)


@serves(endpoints.ask)
def ask(body: PromptRequest) -> PromptAnswer:
    check_anybody()
    limits = prompt_limits() or abort(404, OFF)
    characters = sum(len(message.content) for message in body.messages)
    if characters > limits.characters_max:
        raise BadInput(
            f"the conversation has {characters:,} characters: this server takes up to {limits.characters_max:,}"
        )
    tokens = body.tokens or min(TOKENS_DEFAULT, limits.tokens_max)
    if tokens > limits.tokens_max:
        raise BadInput(f"an answer of {tokens:,} tokens is too long: this server writes up to {limits.tokens_max:,}")
    with searching() as session:
        models = settled_prompt(session, body)
        for name in models:
            check_size(name, model_by_text(session, name).size_bytes, limits)
    seed = random_seed() if body.seed is None else body.seed
    arguments = PromptArguments(
        request=structs.replace(body, tokens=tokens, seed=seed), models=models, seconds=limits.seconds
    )
    who = asker()
    with registry().catalog.counting() as session:
        key = enqueue_prompt(session, arguments, who)
        if not identity().is_local:  # a prompt that is refused is not queued
            rates().hit(Rate("prompt", limits.hourly, seconds=3600), who.digest, len(models))
    return answer(key)


def check_size(name: str, size_bytes: int, limits: PromptLimits) -> None:
    """Raise BadInput if a model is larger than those that answer here."""
    if size_bytes > limits.model_max_bytes:
        raise BadInput(
            f"{name} has {size_text(size_bytes)}: this server runs models of up to {size_text(limits.model_max_bytes)}"
        )


@serves(endpoints.answer)
def answer(key: str) -> PromptAnswer:
    g.not_cached = True  # it changes without a change of the catalog, and is private
    if prompt_limits() is None:
        abort(404, OFF)
    if not _KEY.fullmatch(key):
        raise NoSuchAnswer(NO_ANSWER)
    with reading() as session:
        return answer_by_key(session, key, asker().digest)


@serves(endpoints.forget)
def forget(key: str) -> PromptAnswer:
    check_anybody()
    found = answer(key)
    with registry().catalog.counting() as session:
        forget_answer(session, key, asker())
    return found
