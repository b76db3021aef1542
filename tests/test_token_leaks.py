"""Tests of the watch for tokens: it finds one in an address, an answer, a log, or printed output."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask, Response, request

from organs.registry.tokens import new_page_token, new_token
from tests.token_leaks import Watch, check_command_output, check_log, watching

TOKENS = (new_token().text, new_page_token().text)


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Yield a separate watch, so that the watch of the run receives nothing of this test."""
    with watching() as own:
        yield own


@pytest.mark.parametrize("token", TOKENS, ids=["account", "page"])
def test_a_token_in_any_part_of_a_request_or_an_answer_is_detected_except_where_it_is_made(
    token: str, watch: Watch
) -> None:
    app = Flask("leaky")

    @app.route("/account/page-token", methods=["GET", "POST"])
    @app.route("/<way>", methods=["GET", "POST"])
    def answer(way: str = "shown") -> Response:
        pieces = {"shown": [token.encode()], "pieces": [b"x" * 5000, token[:20].encode(), token[20:].encode()]}
        headers = {"Location": f"/?next={token}"} if way == "elsewhere" else {}
        return Response(iter(pieces.get(way, [])), int(request.args.get("status", 200)), headers)

    def found(method: str, path: str, **headers: str) -> int:
        app.test_client().open(path, method=method, headers=headers).get_data()
        places, watch.found = watch.found, []
        assert token not in "".join(places)
        return len(places)

    escaped = token.replace("_", "%5F")
    for path in ("/shown", "/pieces", "/elsewhere", f"/x?token={token}", f"/{token}", f"/x?next=%2F{escaped}"):
        assert found("GET", path) == 1, path
    assert found("GET", "/x", Referer=f"http://localhost/?t={token}") == 1
    assert found("GET", "/x", Authorization=f"Bearer {token}") == 0
    assert found("POST", "/account/page-token") == 0
    assert found("GET", "/account/page-token") == found("POST", "/account/page-token?status=400") == 1


@pytest.mark.parametrize("token", TOKENS, ids=["account", "page"])
def test_a_token_in_a_log_or_in_the_output_of_a_command_is_detected(token: str, watch: Watch, tmp_path: Path) -> None:
    logging.getLogger("organs.web").warning("revoked %s", token[5:14])
    check_command_output(["--home", "x", "token", "create", "ada"], token, "shown once")
    watch.check()
    for name in ("organs.web.x", "urllib3.connectionpool"):
        logging.getLogger(name).debug("asked for %s", f"/?t={token}")
    try:
        raise ValueError(token)
    except ValueError:
        logging.getLogger("anything").exception("it went wrong")
    check_command_output(["token", "list"], token, "")
    check_command_output(["token", "create", "ada"], "", f"Error: {token}")
    (tmp_path / "log").write_text(f"GET / {token}\n")
    check_log(tmp_path / "log")
    assert len(watch.found) == 6
    with pytest.raises(AssertionError, match="a token gets out"):
        watch.check()
