"""Turns: one at a time, a few beside one that takes long, and nobody waits for ever."""

from __future__ import annotations

from threading import Event, Thread

import pytest
from flask.testing import FlaskClient

from registry.errors import Busy
from registry.registry import Registry
from web.app import create_app
from web.settings import WebSettings
from web.turns import BESIDE_MAX, TURNS_KEY, Turns


def test_the_next_waits_until_the_turn_is_given_back() -> None:
    turns = Turns(seconds=60, patience_seconds=60)
    first, came = turns.take(), Event()

    def second() -> None:
        turns.take().release()
        came.set()

    waiting = Thread(target=second)
    waiting.start()
    assert not came.wait(0.05)
    first.release()
    assert came.wait(60)
    waiting.join()


def test_a_slow_one_does_not_hold_up_all_others() -> None:
    turns = Turns(seconds=60, patience_seconds=0.01)
    slow = turns.take()
    beside = [turns.take() for _ in range(BESIDE_MAX)]
    assert slow not in beside
    for turn in beside:
        turn.release()
    turns.take().release()


def test_whose_turn_does_not_come_is_told_so() -> None:
    turns = Turns(seconds=0.01, patience_seconds=0.01)
    taken = [turns.take() for _ in range(1 + BESIDE_MAX)]
    with pytest.raises(Busy):
        turns.take()
    taken[0].release()
    turns.take().release()


def test_every_turn_is_given_back_whatever_becomes_of_the_request(registry: Registry) -> None:
    with create_app(registry, WebSettings(turn_seconds=0.0, remembered_bytes=0)).test_client() as client:
        for address in ["/organs", "/organs?q=thta:1", "/organs/zz", "/models/a/b", "/api/v1/organs", "/nowhere"] * 4:
            assert client.get(address).status_code != 503, address


def test_a_page_whose_turn_does_not_come_says_when_to_ask_again(registry: Registry) -> None:
    app = create_app(registry, WebSettings(turn_seconds=0.0))
    taken = [app.extensions[TURNS_KEY].take() for _ in range(1 + BESIDE_MAX)]
    client = app.test_client()
    for address in ("/organs", "/api/v1/organs", "/organs.json"):
        answer = client.get(address)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5"), address
    for address in ("/healthz", "/static/style.css", "/metrics"):
        with client.get(address) as answer:
            assert answer.status_code == 200, address
    taken[0].release()
    assert client.get("/organs").status_code == 200


def test_what_is_remembered_needs_no_turn(little: FlaskClient) -> None:
    little.get("/organs")
    taken = [little.application.extensions[TURNS_KEY].take() for _ in range(1 + BESIDE_MAX)]
    assert little.get("/organs").headers["X-Answered"] == "memory"
    for turn in taken:
        turn.release()
