"""The program that runs llama.cpp in a confined child: a request as JSON on stdin, what was found as lines of JSON.

    {"model": PATH, "adapters": [[PATH, SCALE], ...], "texts": [TEXT, ...], "tokens": 128, "threads": 1,
     "chat": false, "wall_seconds": 600, "port": 40123}

The lines, as they come: `{"say": WORDS}` · `{"loaded": true}` · `{"surprises": [NUMBER, ...]}` for each text, in
order · `{"written": TEXT, "chat": BOOLEAN}` · `{"done": true}`. In place of what should follow: `{"missing": WORDS}`
where there is no `xllamacpp`, `{"refused": WORDS}` where llama.cpp said no.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from organs.registry.validation.session import Refused, Session

REQUEST_MAX_BYTES = 64 * 1024 * 1024

Tell = Callable[[dict[str, Any]], None]


def main() -> None:
    """Read one request, answer it, end."""
    request = json.loads(sys.stdin.buffer.read(REQUEST_MAX_BYTES))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the runtime itself prints is log

    def tell(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    try:
        _answer(request, tell)
    except ImportError as error:
        tell({"missing": str(error)})
    except (Refused, http.client.HTTPException, OSError, KeyError) as error:
        tell({"refused": str(error)})


def _answer(request: dict[str, Any], tell: Tell) -> None:
    tell({"say": "loading"})
    session, chat = _loaded(request)
    tell({"loaded": True})
    for number, text in enumerate(request["texts"], start=1):
        tell({"say": f"scoring text {number} of {len(request['texts'])}"})
        tokens = session.tokens(text)[: request["tokens"] + 1]
        if len(tokens) < 2:
            raise Refused(f"text {number} has too few tokens to score")
        tell({"surprises": session.surprises(tokens)})
    tell({"say": "writing"})
    tell(_written(session, chat=chat))
    session.close()
    tell({"done": True})


def _loaded(request: dict[str, Any]) -> tuple[Session, bool]:
    """The model, and whether with its chat template: a template that llama.cpp does not take is no fault of weights."""
    load = partial(
        Session,
        request["model"],
        request["adapters"],
        tokens=request["tokens"],
        threads=request["threads"],
        wall_seconds=request["wall_seconds"],
        port=request["port"],
    )
    if request["chat"]:
        try:
            return load(chat=True), True
        except Refused:
            sys.stderr.write("refused with the chat template; once more without\n")
    return load(chat=False), False


def _written(session: Session, *, chat: bool) -> dict[str, Any]:
    """What the model writes; without its chat template where llama.cpp refuses that."""
    if chat:
        try:
            return {"written": session.write(chat=True), "chat": True}
        except Refused as error:
            sys.stderr.write(f"the chat template was refused: {error}\n")
    return {"written": session.write(chat=False), "chat": False}


if __name__ == "__main__":
    main()
