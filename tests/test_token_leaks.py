"""Tests of the watch for tokens: it finds one in an address, an answer, a log, or printed output."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask, Response, request

from organs.registry.tokens import new_page_token, new_token
from tests.token_leaks import Watch, check_command_output, check_log, current_watch, watching

TOKENS = (new_token().text, new_page_token().text)


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Yield a separate watch, so that the watch of the run receives nothing of this test."""
    outer = current_watch()
    with watching() as own:
        yield own
    assert outer is current_watch()
    assert outer.found == []


@pytest.fixture
def leaky() -> Flask:
    """Return an application that shows the received token in every possible part of an answer."""
    app = Flask("leaky")

    @app.route("/<way>", methods=["GET", "POST"])
    def answer(way: str) -> Response:
        token = request.headers.get("X-Token", "")
        if way == "pieces":
            return Response(iter([b"x" * 5000, token[:20].encode(), token[20:].encode()]))
        if way == "raised":
            raise ValueError(token)
        if way == "elsewhere":
            return Response(headers={"Location": f"/?next={token}"}, status=303)
        return Response(token if way == "shown" else "")

    @app.route("/account/page-token", methods=["GET", "POST"])
    def page_token() -> Response:
        return Response(request.headers["X-Token"], status=int(request.args.get("status", 200)))

    return app


def test_a_token_in_any_part_of_an_answer_is_detected(leaky: Flask, watch: Watch) -> None:
    client = leaky.test_client()
    for token in TOKENS:
        for path in ("/shown", "/pieces", "/elsewhere", "/raised"):
            client.get(path, headers={"X-Token": token}).get_data()
            with pytest.raises(AssertionError, match="a token gets out") as failure:
                watch.check()
            assert token not in str(failure.value)
        client.get("/nothing", headers={"X-Token": token, "Authorization": f"Bearer {token}"}).get_data()
        watch.check()


def test_a_token_in_the_address_of_a_request_is_detected(leaky: Flask, watch: Watch) -> None:
    client = leaky.test_client()
    for token in TOKENS:
        for path in (f"/x?token={token}", f"/{token}", f"/x?next=%2F{token.replace('_', '%5F')}"):
            client.get(path).get_data()
            assert len(watch.found) == 1, path
            assert token not in watch.found.pop()
        client.get("/x", headers={"Referer": f"http://localhost/?t={token}"}).get_data()
        assert len(watch.found) == 1
        watch.found.clear()


def test_a_new_token_may_be_in_the_answer_that_creates_it_only(leaky: Flask, watch: Watch) -> None:
    client, sent = leaky.test_client(), {"X-Token": TOKENS[1]}
    client.post("/account/page-token", headers=sent).get_data()
    assert watch.found == []
    client.get("/account/page-token", headers=sent).get_data()
    client.post("/account/page-token?status=400", headers=sent).get_data()
    assert len(watch.found) == 2
    watch.found.clear()


def test_a_token_in_a_log_record_or_its_traceback_is_detected(watch: Watch) -> None:
    for number, token in enumerate(TOKENS, 1):
        for name in ("organs.web.x", "urllib3.connectionpool", "organs.registry.client.connection"):
            logging.getLogger(name).debug("asked for %s", f"/?t={token}")
        try:
            raise ValueError(token)
        except ValueError:
            logging.getLogger("anything").exception("it went wrong")
        assert len(watch.found) == 4, number
        watch.found.clear()
    logging.getLogger("organs.web").warning("revoked %s", TOKENS[0][5:14])
    watch.check()


def test_a_token_in_the_output_of_a_command_is_detected(watch: Watch) -> None:
    check_command_output(["token", "create", "ada"], TOKENS[0], "shown once")
    check_command_output(["--home", "x", "token", "create", "ada"], TOKENS[0], "")
    watch.check()
    check_command_output(["token", "list"], TOKENS[0], "")
    check_command_output(["token", "create", "ada"], "", f"Error: {TOKENS[0]}")
    assert len(watch.found) == 2
    watch.found.clear()


def test_a_token_in_the_log_of_a_server_is_detected(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"GET / {TOKENS[0]}\n")
    check_log(tmp_path / "log")
    assert len(watch.found) == 1
    watch.found.clear()
