"""Answers to prompts by their keys, and the order in which waiting prompts are answered.

Accounts and addresses without an account take turns; within each of the two, those who asked take turns. Who was served
longest ago is next. So a flood from one account, or from many addresses, delays the others by one answer at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import NamedTuple

from msgspec import json, structs
from sqlalchemy import func, select
from sqlalchemy.orm import Session, undefer

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.tables import AnswerRow
from organs.registry.catalog.work import is_lost, is_waiting
from organs.registry.entities.base import prepared
from organs.registry.entities.chat import TOKENS_DEFAULT, ModelReply, PromptAnswer, PromptArguments, Replies
from organs.registry.errors import NoSuchAnswer

KEPT = timedelta(days=1)
"""The time for which prompts and answers are kept."""
NO_ANSWER = "there is no answer at this address: it was deleted after a day, or another account asked for it"


class WaitingPrompt(NamedTuple):
    """A prompt that waits: its id, and who asked."""

    id: int
    asker: str
    has_account: bool


def turns(
    waiting: Sequence[WaitingPrompt], served: Mapping[str, datetime], last_had_account: bool | None = None
) -> list[int]:
    """Return the ids of all that wait, in the order in which they are answered.

    `served` has when an answer for an asker last began, and `last_had_account` whether the last of all had an account.
    """
    accounts, addresses = (
        _turns_of([prompt for prompt in waiting if prompt.has_account == has_account], served)
        for has_account in (True, False)
    )
    first, second = (addresses, accounts) if last_had_account else (accounts, addresses)
    return [number for pair in zip_longest(first, second) for number in pair if number is not None]


def _turns_of(waiting: Sequence[WaitingPrompt], served: Mapping[str, datetime]) -> Iterator[int]:
    """Yield the ids of the prompts: one of each asker, then the second one of each, and so on."""
    first: dict[str, int] = {}
    rounds: dict[str, int] = {}
    keyed = []
    for prompt in sorted(waiting):
        first.setdefault(prompt.asker, prompt.id)
        number = rounds[prompt.asker] = rounds.get(prompt.asker, 0) + 1
        last = served.get(prompt.asker)
        keyed.append((number, last is not None, 0.0 if last is None else last.timestamp(), first[prompt.asker], prompt))
    yield from (prompt.id for *_, prompt in sorted(keyed))


def waiting_turns(session: Session) -> list[int]:
    """Return the ids of the prompts that wait, in the order in which they are answered."""
    columns = (AnswerRow.id, AnswerRow.asker, AnswerRow.has_account)
    waiting = [WaitingPrompt(*row) for row in session.execute(select(*columns).where(is_waiting(session, AnswerRow)))]
    if len(waiting) < 2:
        return [prompt.id for prompt in waiting]
    began = func.max(AnswerRow.started_at)
    among = AnswerRow.asker.in_({prompt.asker for prompt in waiting})
    rows = session.execute(
        select(AnswerRow.asker, began).where(among, AnswerRow.started_at.is_not(None)).group_by(AnswerRow.asker)
    )
    served = {asker: moment for asker, moment in rows if moment is not None}
    newest = select(AnswerRow.has_account).where(AnswerRow.started_at.is_not(None))
    return turns(waiting, served, session.scalar(newest.order_by(AnswerRow.started_at.desc()).limit(1)))


def is_prompt_due(session: Session) -> bool:
    """Return whether a prompt waits, or has lost its runner."""
    due = is_waiting(session, AnswerRow) | is_lost(session, AnswerRow)
    return session.scalar(select(AnswerRow.id).where(due).limit(1)) is not None


def answer_by_key(session: Session, key: str, asker: str) -> PromptAnswer:
    """Return an answer. That of an account is only found by its own `asker`. Raises NoSuchAnswer."""
    row = session.scalar(
        select(AnswerRow)
        .options(undefer(AnswerRow.arguments), undefer(AnswerRow.result))
        .where(AnswerRow.key == key, AnswerRow.created_at > database_now(session) - KEPT)
    )
    if row is None or (row.has_account and row.asker != asker):
        raise NoSuchAnswer(NO_ANSWER)
    arguments = json.decode(row.arguments, type=prepared(PromptArguments))
    replies = tuple(ModelReply(model=name) for name in arguments.models)
    if row.result is not None:
        replies = json.decode(row.result, type=prepared(Replies)).replies
    if row.state == "failed":
        replies = tuple(
            reply if reply.ended else structs.replace(reply, ended="failed", problem=row.note) for reply in replies
        )
    order = waiting_turns(session) if row.state == "queued" else []
    request = arguments.request
    return PromptAnswer(
        key=row.key,
        state=row.state,
        position=order.index(row.id) + 1 if row.id in order else None,
        note=row.note,
        messages=request.messages,
        replies=replies,
        temperature=request.temperature,
        seed=request.seed or 0,
        tokens_max=request.tokens or TOKENS_DEFAULT,
        created_at=row.created_at,
    )
