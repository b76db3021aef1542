"""Use llama.cpp inside the confined child: load a model, let it write, and score windows of texts.

A model that writes is loaded by `xllamacpp`'s server, on a loopback port with its own key: it checks all weights, gives
the reason of a refusal, and knows chat templates. Windows are scored by decoders, through the C interface: one on each
processor, each with the next window.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import os
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from organs.registry.validation.decoder import Decoder, LoadedModel, Refused, UnknownInterface, opened
from organs.registry.validation.likelihood import Likelihoods, compared, joined, surprises
from organs.registry.validation.runtime import LOOPBACK
from organs.registry.validation.texts import conversations, spread_order

CONTEXT_MIN = 512
CONTEXT_STEP = 256
CONTEXT_SPARE = 64
WRITTEN_TOKENS = 40
ANSWER_MAX_BYTES = 256 * 1024 * 1024
NATS_DIGITS = 4
"""Decimals of the score of a window."""
LOG_ERRORS = 1
PLAIN_TEMPLATE = "chatml"
PROMPT = "The file is opened for reading, and "
QUESTION = "What is a file?"


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

    def close(self) -> None:
        """Close the connection, and free the model.

        llama.cpp's server never ends if it is closed before it has begun to work, so it must have answered a
        completion.
        """
        self._connection.close()
        del self._server

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
    except _Incomparable as error:
        tell({"incomparable": str(error)})
    except (ImportError, UnknownInterface) as error:
        tell({"missing": str(error)})
    except (Refused, http.client.HTTPException, OSError, KeyError) as error:
        tell({"refused": str(error)})


class _Incomparable(Exception):
    """There is no reference to compare with; the message is the reason."""


def _answer(request: dict[str, Any], tell: Tell) -> None:
    tell({"say": "loading"})
    if request["writes"]:
        session, chat = _loaded(request)
        with closing(session):
            tell({"loaded": True})
            tell({"say": "writing"})
            tell(_written(session, chat=chat))
    with ExitStack() as stack:
        model = stack.enter_context(opened(request["model"]))
        tell({"loaded": True})
        reference = stack.enter_context(_reference(request["reference"], model)) if request["reference"] else None
        _score(model, reference, request, tell)
    tell({"done": True})


@contextmanager
def _reference(path: str, model: LoadedModel) -> Iterator[LoadedModel]:
    """Load the reference of a model. Raises _Incomparable."""
    with ExitStack() as stack:
        try:
            reference = stack.enter_context(opened(path))
        except Refused as error:
            raise _Incomparable(f"llama.cpp refused the base: {error}") from error
        if reference.vocabulary_size != model.vocabulary_size:
            raise _Incomparable(
                f"the vocabulary of the chimera has {model.vocabulary_size:,} tokens, that of its base "
                f"{reference.vocabulary_size:,}: no comparison"
            )
        yield reference


@dataclass(frozen=True, slots=True)
class _Window:
    """A window to score: its text, its rank, its tokens, and the models that score it."""

    text: int
    rank: int
    tokens: Sequence[int]
    by_model: bool
    by_reference: bool


def _score(model: LoadedModel, reference: LoadedModel | None, request: Mapping[str, Any], tell: Tell) -> None:
    """Score the requested windows: first the windows of rank 0 of all texts, then those of rank 1, and so on.

    Tells the number of windows and of tokens of each text, the score of each window, and how fast it was. No window is
    begun after `seconds`, except the first.
    """
    windows = _requested_windows(model, request, tell)
    queue, lock, begun = iter(enumerate(windows)), threading.Lock(), monotonic()

    def next_window() -> _Window | None:
        with lock:
            number, window = next(queue, (0, None))
            if number and request["seconds"] is not None and monotonic() - begun > request["seconds"]:
                return None
            if window is not None:
                tell({"say": f"window {number + 1} of {len(windows)}"})
            return window

    def work(own: Decoder, other: Decoder | None) -> int:
        scored = 0
        try:
            while (window := next_window()) is not None:
                lines = list(_lines(window, own, other))
                with lock:
                    for line in lines:
                        tell(line)
                scored += len(lines) * (len(window.tokens) - 1)
        except Refused:
            with lock:
                deque(queue, maxlen=0)  # the other decoders begin no other window
            raise
        return scored

    with ExitStack() as stack:

        def decoder(loaded: LoadedModel) -> Decoder:
            return stack.enter_context(closing(Decoder(loaded, request["window_tokens"])))

        count = max(1, min(request["decoders"], len(windows)))
        decoders = [(decoder(model), None if reference is None else decoder(reference)) for _ in range(count)]
        pool = stack.enter_context(ThreadPoolExecutor(count))
        begun = monotonic()
        scored = sum(pool.map(lambda pair: work(*pair), decoders))
        tell({"rate": [scored, round(monotonic() - begun, 3)]})


def _requested_windows(model: LoadedModel, request: Mapping[str, Any], tell: Tell) -> list[_Window]:
    """Return the windows to score, in order. A window of a model without a first token begins one token earlier.

    So a window has as many scored tokens with a first token as without one. Only a text of fewer tokens than a window
    has a shorter one.
    """
    first, size = model.first_tokens(), request["window_tokens"]
    step = size - 1
    windows = []
    ranges = zip(request["texts"], request["ranks"], request["reference_ranks"], strict=True)
    for number, (text, ranks, reference_ranks) in enumerate(ranges):
        tokens = _tokens(model, text)
        cut = [[*first, *tokens[start : start + size - len(first)]] for start in range(0, len(tokens), step)]
        kept = [window for window in cut if len(window) == size] or cut[:1]
        tell({"text": [number, len(kept), len(tokens)]})
        for rank, place in enumerate(spread_order(len(kept))):
            by_model, by_reference = ranks[0] <= rank < ranks[1], rank in reference_ranks
            if by_model or by_reference:
                windows.append(_Window(number, rank, kept[place], by_model, by_reference))
    return sorted(windows, key=lambda window: (window.rank, window.text))


def _tokens(model: LoadedModel, text: Mapping[str, str]) -> list[int]:
    """Return the tokens of a text, or of its conversations in a chat template; none if llama.cpp does not know it."""
    if not text["template"]:
        return model.tokens(text["text"])
    written = [model.chat_text(text["template"], conversation) for conversation in conversations(text["text"])]
    return [token for part in written if part is not None for token in model.tokens(part, parse_special=True)]


def _lines(window: _Window, own: Decoder, other: Decoder | None) -> Iterator[dict[str, Any]]:
    """Yield the scores of a window by the reference and by the model."""
    if len(window.tokens) < 2:
        raise Refused(f"text {window.text + 1} has too few tokens to score")
    digest = hashlib.sha256(repr(list(window.tokens)).encode()).hexdigest()[:16]
    by_reference, by_model = _likelihoods(window, own, other)
    for key, scores in (("reference", by_reference), ("window", by_model)):
        if scores is not None:
            divergence = None if scores.divergences is None else _nats(scores.divergences)
            same = None if scores.same_top is None else int(scores.same_top.sum())
            yield {
                key: [
                    window.text, window.rank, _nats(scores.surprises), len(scores.surprises), digest, divergence, same
                ]
            }  # fmt: skip


def _likelihoods(window: _Window, own: Decoder, other: Decoder | None) -> tuple[Likelihoods | None, Likelihoods | None]:
    """Return the likelihoods by the reference and by the model, of those that score this window."""
    tokens, place = window.tokens, 1
    pairs: list[tuple[Likelihoods | None, Likelihoods | None]] = []
    if window.by_model and window.by_reference and other is not None:
        for theirs, ours in zip(other.logits(tokens), own.logits(tokens), strict=True):
            pairs.append(compared(theirs, ours, tokens[place : place + len(ours)]))
            place += len(ours)
    else:
        scorer = own if window.by_model or other is None else other
        for logits in scorer.logits(tokens):
            scores = surprises(logits, tokens[place : place + len(logits)])
            pairs.append((None, scores) if scorer is own else (scores, None))
            place += len(logits)
    by_reference, by_model = zip(*pairs, strict=True)
    return _joined(by_reference), _joined(by_model)


def _joined(parts: Sequence[Likelihoods | None]) -> Likelihoods | None:
    known = [part for part in parts if part is not None]
    return joined(known) if known else None


def _nats(values: NDArray[np.float64]) -> float:
    """Return the sum of the values, infinite if one is not finite."""
    total = math.fsum(value if value == value else math.inf for value in values)
    return round(total, NATS_DIGITS) if math.isfinite(total) else math.inf


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
