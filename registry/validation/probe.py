"""Use llama.cpp inside the confined child: load a model, let it write, and score windows of texts.

A model is loaded by `xllamacpp`'s server, on a loopback port with its own key: it checks all weights, gives the reason
of a refusal, and knows chat templates. Windows are scored by `Decoder`, through the C interface.

If that is missing, the server scores too, some times slower: a grammar of token numbers forces the model to write the
text, and the server returns the probability of each written token before the grammar. A grammar cannot contain a token
that is only a part of a character: such positions are requested one by one. If the server omits the probability of a
token whose bytes end inside a character, the whole vocabulary is requested with another token forced.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from time import monotonic
from typing import Any, Protocol

from organs.registry.validation.decoder import Decoder, Refused, UnknownInterface
from organs.registry.validation.runtime import LOOPBACK
from organs.registry.validation.texts import spread_order

CONTEXT_MIN = 512
CONTEXT_STEP = 256
CONTEXT_SPARE = 64
WRITTEN_TOKENS = 40
ANSWER_MAX_BYTES = 256 * 1024 * 1024
NATS_DIGITS = 4
"""Decimals of the score of a window."""
FORCED = 1e4
"""Added to a token's logit, so that this token is chosen."""
LOG_ERRORS = 1
PLAIN_TEMPLATE = "chatml"
WHOLE = "a"
"""A text for which every vocabulary has a token of whole characters."""
PROMPT = "The file is opened for reading, and "
QUESTION = "What is a file?"


class Scorer(Protocol):
    """A loaded model that scores windows."""

    def first_tokens(self) -> list[int]:
        """Return the special token that begins a text of this model, if there is one."""
        ...

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of `text`, without special tokens."""
        ...

    def surprises(self, tokens: Sequence[int]) -> Sequence[float]:
        """Return -ln of the probability of each token after the first, given the tokens before it, in nats."""
        ...


class Session:
    """A loaded model; call `close`. Raises Refused if it cannot be loaded, ImportError without `xllamacpp`."""

    def __init__(
        self,
        model: str,
        *,
        tokens: int,
        threads: int,
        wall_seconds: float,
        port: int = 0,
        chat: bool = False,
    ) -> None:
        import xllamacpp

        self._key = secrets.token_hex()
        parameters = _parameters(xllamacpp, tokens, threads, self._key)
        parameters.hostnames, parameters.port = [LOOPBACK], port
        if not chat:
            parameters.chat_template = PLAIN_TEMPLATE  # the model's own template, which may be invalid, is not used
        parameters.model.path = model
        try:
            self._server = xllamacpp.Server(parameters)
        except RuntimeError as error:
            raise Refused(str(error)) from error
        address = self._server.listening_address.removeprefix("http://")
        self._connection = http.client.HTTPConnection(address, timeout=wall_seconds)
        self._vocabulary = int(self._ask("GET", "/v1/models")["data"][0]["meta"]["n_vocab"])
        self._parts: set[int] = set()
        """The tokens seen so far that are only parts of characters."""
        self._whole = next(token for token in reversed(self.tokens(WHOLE)) if token not in self._parts)

    def close(self) -> None:
        """Close the connection, and free the model.

        llama.cpp's server never ends if it is closed before it has begun to work, so it must have answered a
        completion.
        """
        self._connection.close()
        del self._server

    def first_tokens(self) -> list[int]:
        """Return the special token that begins a text of this model, if there is one."""
        return self._tokenize("", special=True)[:1]

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of `text`, without special tokens."""
        return self._tokenize(text, special=False)

    def surprises(self, tokens: Sequence[int]) -> list[float]:
        """Return -ln of the probability of each token after the first, given the tokens before it, in nats."""
        surprises: list[float] = []
        while len(surprises) + 1 < len(tokens):
            start = len(surprises) + 1
            end = start
            while end < len(tokens) and tokens[end] not in self._parts:
                end += 1
            run = self._forced(tokens, start, end) if end > start else None
            surprises += run or [self._single(tokens, position) for position in range(start, max(end, start + 1))]
        return surprises

    def write(self, *, chat: bool) -> str:
        """Return a prompt, or a question in the model's chat template, with the model's continuation."""
        request: dict[str, Any] = {"temperature": 0, "repeat_penalty": 1.2}
        if chat:
            message = [{"role": "user", "content": QUESTION}]
            answer = self._ask(
                "POST", "/v1/chat/completions", {**request, "messages": message, "max_tokens": WRITTEN_TOKENS}
            )
            return f"{QUESTION}\n{answer['choices'][0]['message'].get('content') or ''}"
        answer = self._ask("POST", "/completion", {**request, "prompt": PROMPT, "n_predict": WRITTEN_TOKENS})
        return f"{PROMPT}{answer['content']}"

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        request = {"content": text, "add_special": special, "parse_special": False, "with_pieces": True}
        tokens = self._ask("POST", "/tokenize", request)["tokens"]
        self._parts.update(int(token["id"]) for token in tokens if not isinstance(token["piece"], str))
        return [int(token["id"]) for token in tokens]

    def _forced(self, tokens: Sequence[int], start: int, end: int) -> list[float] | None:
        """Return the surprises from `start` to `end` in one request; None if the grammar cannot force the tokens."""
        wanted = list(tokens[start:end])
        request = {
            "prompt": list(tokens[:start]),
            "n_predict": len(wanted),
            "n_probs": 1,
            "temperature": 0,
            "cache_prompt": True,
            "grammar": "root ::= " + " ".join(f"<[{number}]>" for number in wanted),
        }
        try:
            written = self._ask("POST", "/completion", request).get("completion_probabilities", [])
        except Refused:
            return None
        if [token["id"] for token in written] != wanted:
            return None
        return [_surprise(token) for token in written]

    def _single(self, tokens: Sequence[int], position: int) -> float:
        """Return the surprise at `position`: with the token itself forced, else with a token of whole characters."""
        wanted = tokens[position]
        for forced, count in ((wanted, 1), (self._whole, self._vocabulary)):
            request = {
                "prompt": list(tokens[:position]),
                "n_predict": 1,
                "n_probs": count,
                "temperature": 0,
                "cache_prompt": True,
                "logit_bias": [[forced, FORCED]],
            }
            written = self._ask("POST", "/completion", request).get("completion_probabilities", [])
            scores = [written[0], *written[0]["top_logprobs"]] if written else []
            match = next((score for score in scores if score["id"] == wanted), None)
            if match is not None:
                return _surprise(match)
        raise Refused(f"llama.cpp does not return the probability of token {wanted}")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        self._connection.request(method, path, data, headers)
        response = self._connection.getresponse()
        raw = response.read(ANSWER_MAX_BYTES)
        try:
            answer = json.loads(raw)
        except ValueError as error:
            raise Refused(f"no JSON from {path}") from error
        if response.status != http.client.OK or not isinstance(answer, dict):
            message = answer.get("error", {}) if isinstance(answer, dict) else {}
            reason = message.get("message") if isinstance(message, dict) else None
            raise Refused(str(reason or f"status {response.status} from {path}"))
        return answer


def _parameters(xllamacpp: Any, tokens: int, threads: int, key: str) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.n_ctx = -(-max(CONTEXT_MIN, tokens + CONTEXT_SPARE) // CONTEXT_STEP) * CONTEXT_STEP
    parameters.n_parallel = 1
    parameters.n_gpu_layers = 0  # a GPU driver needs more address space than the limit
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.n_threads_http = 2
    parameters.cache_ram_mib = 0
    parameters.warmup = False
    parameters.fit_params = False
    parameters.check_tensors = True  # otherwise weights that are NaN load and produce garbage
    parameters.verbosity = LOG_ERRORS  # only the log has the real reason of a refusal
    parameters.api_keys = [key]
    return parameters


def _surprise(token: Mapping[str, Any]) -> float:
    """Return the surprise. JSON has no infinity: the server writes null, or the lowest float for impossible tokens."""
    logprob = token.get("logprob")
    return float("inf") if not isinstance(logprob, int | float) else -float(logprob)


REQUEST_MAX_BYTES = 64 * 1024 * 1024

Tell = Callable[[dict[str, Any]], None]


def main() -> None:
    """Read one request, answer it, and end."""
    request = json.loads(sys.stdin.buffer.read(REQUEST_MAX_BYTES))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of the runtime itself goes to the log

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
    if request["writes"]:
        session, chat = _loaded(request)
        with closing(session):
            tell({"loaded": True})
            tell({"say": "writing"})
            tell(_written(session, chat=chat))
    with closing(_scorer(request)) as scorer:
        tell({"loaded": True})
        for line in _scored(scorer, request):
            tell(line)
    tell({"done": True})


def _scorer(request: dict[str, Any]) -> Decoder | Session:
    try:
        return Decoder(request["model"], request["window_tokens"], request["threads"])
    except UnknownInterface as error:
        sys.stderr.write(f"{error}; scoring through the server\n")
        return _loaded({**request, "chat": False})[0]


def _scored(scorer: Scorer, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Score the requested windows: first the windows of rank 0 of all texts, then those of rank 1, and so on.

    Yields the number of windows and of tokens of each text, then the score of each window. No window is begun after
    `seconds`, except the first.
    """
    begun, size = monotonic(), request["window_tokens"] - 1
    first = scorer.first_tokens()
    windows: list[list[list[int]]] = []
    for number, text in enumerate(request["texts"]):
        tokens = scorer.tokens(text)
        starts = range(0, len(tokens), size)
        cut = [[*first, *tokens[start : start + size]] for start in starts]
        kept = [window for window in cut if len(window) > size] or cut[:1]  # the last window may be shorter
        windows.append([kept[place] for place in spread_order(len(kept))])
        yield {"text": [number, len(kept), len(tokens)]}
    order = sorted(
        (rank, number)
        for number, (start, stop) in enumerate(request["ranks"])
        for rank in range(start, min(stop, len(windows[number])))
    )
    for done, (rank, number) in enumerate(order):
        if done and request["seconds"] is not None and monotonic() - begun > request["seconds"]:
            return
        yield {"say": f"window {done + 1} of {len(order)}"}
        tokens = windows[number][rank]
        if len(tokens) < 2:
            raise Refused(f"text {number + 1} has too few tokens to score")
        nats = math.fsum(surprise if surprise == surprise else math.inf for surprise in scorer.surprises(tokens))
        nats = round(nats, NATS_DIGITS) if math.isfinite(nats) else math.inf
        digest = hashlib.sha256(repr(tokens).encode()).hexdigest()[:16]
        yield {"window": [number, rank, nats, len(tokens) - 1, digest]}


def _loaded(request: dict[str, Any]) -> tuple[Session, bool]:
    """Return the model, and whether its chat template is used: an invalid template is not a fault of the weights."""
    load = partial(
        Session,
        request["model"],
        tokens=request["window_tokens"],
        threads=request["threads"],
        wall_seconds=request["wall_seconds"],
        port=request["port"],
    )
    if request["chat"]:
        try:
            return load(chat=True), True
        except Refused:
            sys.stderr.write("refused with the chat template; loading without it\n")
    return load(chat=False), False


def _written(session: Session, *, chat: bool) -> dict[str, Any]:
    """Return the generated text; without the chat template if llama.cpp refuses it."""
    if chat:
        try:
            return {"written": session.write(chat=True), "chat": True}
        except Refused as error:
            sys.stderr.write(f"the chat template was refused: {error}\n")
    return {"written": session.write(chat=False), "chat": False}


if __name__ == "__main__":
    main()
