"""Models answer a conversation in llama.cpp, in a confined child: several side by side, each in its own chat template.

A template is rendered by another confined process (`registry.chat_templates`), with marks in the place of messages. So
a template never sees what a person writes, and what a person writes is never read as a marker of the template.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from organs.registry.chat_templates import UnusableTemplate, conversation_frame
from organs.registry.entities.base import decode, encode
from organs.registry.entities.chat import SEED_MAX, SYSTEM, TOKENS_DEFAULT, USER, ChatMessage, ModelReply, PromptRequest
from organs.registry.errors import BadInput
from organs.registry.gguf import read_header
from organs.registry.input_files import FileSource
from organs.registry.sandbox.process import ProcessLimits, Sandbox, run_python
from organs.registry.validation.llama import (
    EXTRA,
    NOT_INSTALLED,
    THREADS_FROM_BYTES,
    LlamaCpp,
    failure_of,
    generous_limits,
    model_files,
    telling_line,
    usable_cores,
)
from organs.registry.validation.runtime import NoRuntime, short_reason
from organs.registry.validation.sampler import PromptPart, SampledModel, SampleLine, SampleOrder

LOADING_SECONDS = 120.0
"""The time to load the models, and to read the conversation."""
OUTPUT_PER_TOKEN_BYTES = 2048
CONTEXT_BYTES_PER_TOKEN = 1024 * 1024
"""Address space for the cache of a token; large models need about a third of it."""
TEXT_MAX_CHARACTERS = 256 * 1024
SECONDS = 600.0

Show = Callable[[tuple[ModelReply, ...]], None]


def check_conversation(messages: Sequence[ChatMessage]) -> None:
    """Raise BadInput unless the last of the messages is the prompt of a user, and only the first is of the system."""
    if messages[-1].role != USER or not messages[-1].content.strip():
        raise BadInput("the last message must be a prompt of the role user, and not be empty")
    if any(message.role == SYSTEM for message in messages[1:]):
        raise BadInput("only the first message may be of the role system")


def random_seed() -> int:
    """Return a seed for a conversation without one."""
    return secrets.randbelow(SEED_MAX + 1)


def converse(
    models: Sequence[tuple[str, Path]],
    request: PromptRequest,
    show: Show = lambda _replies: None,
    *,
    seconds: float = SECONDS,
    threads: int | None = None,
    requires_sandbox: bool = False,
    is_over: threading.Event | None = None,
) -> tuple[ModelReply, ...]:
    """Let the models, names and files, answer the conversation; return their replies.

    `show` is called with all replies for each new piece; an exception of it ends the answers. The texts of the replies
    come from outside. Raises NoRuntime, NoSandbox, BadInput.
    """
    check_conversation(request.messages)
    LlamaCpp()  # raises NoRuntime
    prompts = [_prompt(path, request.messages, requires_sandbox) for _, path in models]
    state = _Replies(
        [ModelReply(model=name, remark=remark) for (name, _), (_, remark) in zip(models, prompts, strict=True)]
    )
    files = [file for _, path in models for file in model_files(path)]
    size_bytes = sum(file.stat().st_size for file in files)
    tokens = request.tokens or TOKENS_DEFAULT
    order = SampleOrder(
        models=tuple(
            SampledModel(model=str(path.absolute()), parts=parts)
            for (_, path), (parts, _) in zip(models, prompts, strict=True)
        ),
        tokens=tokens,
        seconds=seconds,
        temperature=request.temperature,
        seed=random_seed() if request.seed is None else request.seed,
        threads=threads or (1 if size_bytes < THREADS_FROM_BYTES else usable_cores()),
    )
    context = tokens + sum(len(message.content.encode()) for message in request.messages)
    limits = generous_limits(ProcessLimits(wall_seconds=LOADING_SECONDS), size_bytes, len(models), seconds)
    limits = replace(
        limits,
        address_space_bytes=(limits.address_space_bytes or 0) + CONTEXT_BYTES_PER_TOKEN * context * len(models),
        output_max_bytes=OUTPUT_PER_TOKEN_BYTES * tokens * len(models) + limits.output_max_bytes,
    )

    def take(data: bytes) -> None:
        if state.take_line(data):
            show(tuple(state.replies))

    result = run_python(
        "organs.registry.validation.sampler",
        limits,
        Sandbox(read=tuple(files), required=requires_sandbox),
        encode(order),
        take,
        is_over=is_over,
    )
    if state.missing is not None:
        raise NoRuntime(f"{NOT_INSTALLED} ({state.missing})", EXTRA)
    line = telling_line(result.log)
    for number, reply in enumerate(state.replies):
        if reply.ended is None:
            failure = failure_of(result, is_loaded=number in state.loaded, refused=None)
            state.fail(number, failure.reason)
        elif reply.problem is not None and line and number not in state.loaded:
            state.fail(number, f"llama.cpp refused the model: {short_reason(line)}")
    return tuple(state.replies)


class _Replies:
    """What the child has printed so far; other lines than those of `sampler` are ignored."""

    def __init__(self, replies: list[ModelReply]) -> None:
        self.replies = replies
        self.loaded: set[int] = set()
        self.missing: str | None = None

    def take_line(self, data: bytes) -> bool:
        """Add a line; return whether a reply has changed."""
        try:
            line = decode(data, SampleLine)
        except ValueError:
            return False
        self.missing = line.missing or self.missing
        if not 0 <= line.model < len(self.replies) or self.replies[line.model].ended is not None:
            return False
        reply = self.replies[line.model]
        if line.loaded:
            self.loaded.add(line.model)
        if line.prompt_tokens is not None and line.prompt_tokens >= 0:
            reply = structs.replace(reply, prompt_tokens=line.prompt_tokens)
        if line.piece is not None and len(reply.text) < TEXT_MAX_CHARACTERS:
            reply = structs.replace(reply, text=reply.text + shown_text(line.piece), tokens=reply.tokens + 1)
        if line.ended in ("end", "tokens", "seconds", "context"):
            reply = structs.replace(reply, ended=line.ended)
            if reply.is_too_long:
                reply = structs.replace(reply, problem=_too_long(reply))
        self.replies[line.model] = reply
        if line.refused is not None:
            self.fail(line.model, f"llama.cpp refused the model: {short_reason(line.refused)}")
        return True

    def fail(self, number: int, reason: str) -> None:
        """End a reply with a problem, a sentence without its end."""
        self.replies[number] = structs.replace(self.replies[number], ended="failed", problem=f"{reason}.")


def _too_long(reply: ModelReply) -> str:
    return f"The conversation has {reply.prompt_tokens:,} tokens: more than the context of the model."


def shown_text(piece: str) -> str:
    """Return a piece of an answer without characters that control a terminal or hide text."""
    return "".join(letter for letter in piece if letter.isprintable() or letter in "\n\t" or letter in _JOINERS)


_JOINERS = "\u200c\u200d"
"""They are parts of words in some scripts, and of emoji."""
NO_TEMPLATE = "The model has no chat template: it continues the text."


def _prompt(path: Path, messages: Sequence[ChatMessage], required: bool) -> tuple[tuple[PromptPart, ...], str]:
    """Return the prompt of a conversation for a model, and a remark if it is not written in its chat template."""
    with FileSource(model_files(path)[0]) as source:
        header = read_header(source)
        remark = NO_TEMPLATE
        for tried in (messages, *_without_system(messages)):
            try:
                frame = conversation_frame(source, header, [message.role for message in tried], required=required)
            except UnusableTemplate as error:
                remark = f"The chat template of the model cannot be used ({error}): it continues the text."
                continue
            if frame is None:
                break
            return tuple(_part(part, tried) for part in frame), ""
    return (PromptPart(text="\n".join(message.content for message in messages)),), remark


def _part(part: str | int, messages: Sequence[ChatMessage]) -> PromptPart:
    if isinstance(part, str):
        return PromptPart(text=part, is_template=True)
    return PromptPart(text=messages[part].content)


def _without_system(messages: Sequence[ChatMessage]) -> Iterator[Sequence[ChatMessage]]:
    """Yield the messages with that of the system, if any, in the first of the user: some templates refuse it."""
    if messages[0].role == SYSTEM and len(messages) > 1 and messages[1].role == USER:
        first = structs.replace(messages[1], content=f"{messages[0].content}\n\n{messages[1].content}")
        yield [first, *messages[2:]]
