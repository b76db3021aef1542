"""The queue of prompts: whose turn it is, how many wait, and what is left of them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import update

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.answers import WaitingPrompt, answer_by_key, turns
from organs.registry.catalog.register import answers
from organs.registry.catalog.register.answers import (
    PROMPTS_OF_ONE_MAX,
    Asker,
    claim_prompt,
    enqueue_prompt,
    forget_answer,
    remove_old_answers,
    write_replies,
)
from organs.registry.catalog.tables import AnswerRow
from organs.registry.catalog.work import finish
from organs.registry.entities.base import encode
from organs.registry.entities.chat import ChatMessage, ModelReply, PromptArguments, PromptRequest, Replies
from organs.registry.errors import NoSuchAnswer, QueueFull, TooMany
from organs.registry.local import LocalRegistry

ADA, BOB = Asker("1", has_account=True), Asker("2", has_account=True)
NEAR, FAR = Asker("203.0.113.5", has_account=False), Asker("2001:db8::/64", has_account=False)
REPLIES = Replies(replies=(ModelReply(model="me/a@1", text="Hello", tokens=1),))


def prompt(registry: LocalRegistry, asker: Asker, text: str = "Hi") -> str:
    request = PromptRequest(model="me/a", messages=(ChatMessage(role="user", content=text),), seed=1, tokens=5)
    arguments = PromptArguments(request=request, models=("me/a@1",), seconds=9.0)
    with registry.catalog.counting() as session:
        return enqueue_prompt(session, arguments, asker)


def test_accounts_and_addresses_take_turns_and_so_do_those_who_ask() -> None:
    moment = datetime(2026, 1, 1)  # noqa: DTZ001  # only the order counts
    flood = [WaitingPrompt(number, f"bot{number % 50}", False) for number in range(100)]
    many = [WaitingPrompt(100 + number, "ada", True) for number in range(3)]
    late = WaitingPrompt(200, "bob", True)
    order = turns([*flood, *many, late], {})
    assert order[:8] == [100, 0, 200, 1, 101, 2, 102, 3]
    assert turns([*flood, *many, late], {}, last_had_account=True)[:4] == [0, 100, 1, 200]
    assert sorted(order) == sorted(prompt.id for prompt in (*flood, *many, late))
    served = {"ada": moment + timedelta(seconds=1), "bob": moment}
    assert turns([*many, late], served) == [200, 100, 101, 102]


def test_prompts_are_claimed_in_turns_and_each_has_its_place_in_the_queue(registry: LocalRegistry) -> None:
    keys = {prompt(registry, asker, f"{number}"): asker for number in range(3) for asker in (ADA,)}
    keys |= {prompt(registry, asker): asker for asker in (NEAR, NEAR, FAR, BOB)}
    with registry.catalog.reading() as session:
        places = {key: answer_by_key(session, key, asker.digest).position for key, asker in keys.items()}
    claimed = []
    for _ in keys:
        with registry.catalog.counting() as session:
            claim = claim_prompt(session)
            assert claim is not None
            row = session.get_one(AnswerRow, claim.key[0])
            claimed.append(row.key)
            assert finish(session, claim, encode(REPLIES).decode())
    assert [places[key] for key in claimed] == [1, 2, 3, 4, 5, 6, 7]
    assert [keys[key] for key in claimed] == [ADA, NEAR, BOB, FAR, ADA, NEAR, ADA]
    with registry.catalog.reading() as session:
        found = answer_by_key(session, claimed[0], ADA.digest)
    assert (found.state, found.position, found.replies) == ("finished", None, REPLIES.replies)


def test_few_prompts_of_one_wait_and_a_flood_of_addresses_leaves_room_for_accounts(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "QUEUED_PROMPTS_MAX", 4)
    for _ in range(PROMPTS_OF_ONE_MAX):
        prompt(registry, NEAR)
    with pytest.raises(TooMany, match="3 of your prompts"):
        prompt(registry, NEAR)
    prompt(registry, FAR)
    with pytest.raises(QueueFull, match="4 prompts wait already"):
        prompt(registry, Asker("198.51.100.7", has_account=False))
    prompt(registry, ADA)


def test_an_answer_is_for_its_account_grows_without_a_new_version_and_is_deleted(registry: LocalRegistry) -> None:
    version = registry.catalog.version()
    own, open_to_all = prompt(registry, ADA), prompt(registry, NEAR)
    with registry.catalog.counting() as session:
        claim = claim_prompt(session)
        assert claim is not None
        assert write_replies(session, claim, REPLIES)
    assert registry.catalog.version() == version
    with registry.catalog.reading() as session:
        assert answer_by_key(session, own, ADA.digest).replies[0].text == "Hello"
        assert answer_by_key(session, open_to_all, FAR.digest).state == "queued"
        for asker in (BOB, NEAR):
            with pytest.raises(NoSuchAnswer):
                answer_by_key(session, own, asker.digest)
    with registry.catalog.counting() as session, pytest.raises(NoSuchAnswer):
        forget_answer(session, own, BOB)
    with registry.catalog.counting() as session:
        forget_answer(session, own, ADA)
        assert not write_replies(session, claim, REPLIES)
        earlier = database_now(session) - timedelta(days=1)
        session.execute(update(AnswerRow).values(created_at=earlier))
    with registry.catalog.reading() as session, pytest.raises(NoSuchAnswer):
        answer_by_key(session, open_to_all, NEAR.digest)
    with registry.catalog.counting() as session:
        remove_old_answers(session)
        assert session.query(AnswerRow).count() == 0
