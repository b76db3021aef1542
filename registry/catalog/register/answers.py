"""Rows of prompts and their answers: queued within limits, claimed in turns, written piece by piece, and deleted.

All functions take a session of `Catalog.counting`: nothing that is cached depends on these rows.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256

from msgspec import json
from sqlalchemy import delete, false
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.answers import KEPT, NO_ANSWER, waiting_turns
from organs.registry.catalog.rows import count
from organs.registry.catalog.tables import AnswerRow
from organs.registry.catalog.work import ANSWERS, Claim, claim_next, claimed, recover
from organs.registry.entities.base import encode, prepared
from organs.registry.entities.chat import ANSWERING, PromptArguments, Replies
from organs.registry.errors import NoSuchAnswer, QueueFull, TooMany

QUEUED_PROMPTS_MAX = 100
"""The most waiting prompts of all accounts together, and of all addresses without an account together."""
PROMPTS_OF_ONE_MAX = 3
"""The most prompts of one account or address that wait or are answered."""
RETRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks: an account, or an address without one."""

    name: str
    has_account: bool

    @property
    def digest(self) -> str:
        """What is stored, so that no address can be read in the table; who has it can still test one."""
        return sha256(f"{'account' if self.has_account else 'address'}/{self.name}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PromptClaim(Claim):
    """A prompt that a runner has claimed."""

    arguments: PromptArguments


def enqueue_prompt(session: Session, arguments: PromptArguments, asker: Asker) -> str:
    """Add a prompt to the queue, and return the key of its answer. Prompts that are older than a day are deleted.

    Raises QueueFull, TooMany.
    """
    remove_old_answers(session)
    waiting = count(session, AnswerRow, AnswerRow.state == "queued", AnswerRow.has_account == asker.has_account)
    if waiting >= QUEUED_PROMPTS_MAX:
        raise QueueFull(waiting, f"{waiting} prompts wait already: try it again in a few minutes")
    own = count(session, AnswerRow, AnswerRow.asker == asker.digest, AnswerRow.state.in_(ANSWERING))
    if own >= PROMPTS_OF_ONE_MAX:
        raise TooMany(f"{own} of your prompts are not answered yet: wait until one is done", RETRY_SECONDS)
    row = AnswerRow(
        key=secrets.token_hex(16),
        asker=asker.digest,
        has_account=asker.has_account,
        state="queued",
        attempts=0,
        deaths=0,
        note="",
        arguments=encode(arguments).decode(),
        created_at=database_now(session),
    )
    session.add(row)
    session.flush()
    return row.key


def claim_prompt(session: Session) -> PromptClaim | None:
    """Claim the prompt whose turn it is; None if none waits."""
    recover(session, ANSWERS)
    order = waiting_turns(session)
    row = claim_next(session, ANSWERS, AnswerRow.id == order[0]) if order else None
    if row is None:
        return None
    assert row.holder is not None
    row.result, row.note = None, ""
    arguments = json.decode(row.arguments, type=prepared(PromptArguments))
    return PromptClaim(ANSWERS, (row.id,), row.holder, row.attempts, arguments=arguments)


def write_replies(session: Session, claim: PromptClaim, replies: Replies) -> bool:
    """Store what has been answered so far; return whether the prompt is still to be answered."""
    row = claimed(session, claim)
    if row is None or row.state != "running":
        return False
    row.result = encode(replies).decode()
    return True


def forget_answer(session: Session, key: str, asker: Asker) -> None:
    """Delete an answer; if it is being written, its runner stops. Raises NoSuchAnswer."""
    own = AnswerRow.has_account.is_(false()) | (AnswerRow.asker == asker.digest)
    found = session.execute(delete(AnswerRow).where(AnswerRow.key == key, own).returning(AnswerRow.id)).first()
    if found is None:
        raise NoSuchAnswer(NO_ANSWER)


def remove_old_answers(session: Session) -> None:
    """Delete the prompts and answers of which a day has passed."""
    session.execute(delete(AnswerRow).where(AnswerRow.created_at < database_now(session) - KEPT))
