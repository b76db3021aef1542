"""`organ chat`: a prompt to a model, or a conversation with it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
from msgspec import structs

from organs.cli import fast_imports
from organs.cli.console import output_options, plain, print_json, print_remark, prints_json, progress_bar, status_line
from organs.cli.options import flag
from organs.cli.outputs import SUFFIX
from organs.cli.registries import local_registry, registry_address, remote_registry
from organs.registry.amounts import size_text
from organs.registry.entities.chat import (
    ASSISTANT,
    MESSAGES_MAX,
    SEED_MAX,
    SYSTEM,
    TEMPERATURE_DEFAULT,
    TEMPERATURE_MAX,
    TOKENS_MAX,
    USER,
    ChatMessage,
    ModelReply,
    PromptRequest,
    Replies,
)
from organs.registry.errors import BadInput

TOKENS = 512
QUIT = ("/quit", "/exit", "/q")
Ask = Callable[[PromptRequest, Callable[[tuple[ModelReply, ...]], None]], tuple[ModelReply, ...]]


@click.command()
@click.argument("model", metavar="MODEL|FILE.gguf")
@click.argument("question", required=False, metavar="[PROMPT]")
@click.option("-p", "--prompt", metavar="TEXT", help="The same as PROMPT.")
@click.option("--system", metavar="TEXT", help="The instruction before the conversation.")
@click.option("--beside", metavar="MODEL", help="Let this model answer the same, below it.")
@flag("--base", "Let the base of a chimera, or the source of a quantisation, answer the same, below it.")
@click.option("--tokens", type=click.IntRange(1, TOKENS_MAX), help=f"The most tokens of an answer. [default: {TOKENS}]")
@click.option(
    "--temperature",
    type=click.FloatRange(0.0, TEMPERATURE_MAX),
    default=TEMPERATURE_DEFAULT,
    show_default=True,
    help="0 always takes the most likely token.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, SEED_MAX),
    help="The same seed gives the same text on one machine. [default: random]",
)
@output_options(json="With PROMPT: print the answers as JSON.")
def chat(
    model: str,
    question: str | None,
    prompt: str | None,
    system: str | None,
    beside: str | None,
    base: bool,
    tokens: int | None,
    temperature: float,
    seed: int | None,
) -> None:
    """Talk to a model in its own chat template, or let it continue a text if it has none.

    With PROMPT, it answers that, and exits. Without, each line that you type is a prompt; /quit or Ctrl-D ends the
    conversation. The oldest messages are left out when it is longer than the context of the model, or than the server
    takes. llama.cpp runs the model in a confined process.

    With a remote registry, its server answers, if its operator has turned this on.
    """
    if base and beside is not None:
        raise click.UsageError("--base and --beside exclude each other")
    if prompt is not None and question is not None:
        raise click.UsageError("give the prompt once: as PROMPT, or with --prompt")
    prompt = question if prompt is None else prompt
    if prints_json() and prompt is None:
        raise click.UsageError("--json needs PROMPT")
    opening = () if system is None else (ChatMessage(role=SYSTEM, content=system),)
    first = PromptRequest(
        model=model,
        messages=(*opening, ChatMessage(role=USER, content=prompt or "")),
        beside=beside,
        base=base,
        tokens=tokens if tokens is not None or registry_address() is not None else TOKENS,
        temperature=temperature,
        seed=seed,
    )
    with _asking(model) as ask:
        if prompt is not None:
            printer = _Printer()
            with ExitStack() as waiting:
                waiting.enter_context(status_line("answer", quiet=True if prints_json() else None))

                def show(replies: tuple[ModelReply, ...]) -> None:
                    waiting.close()  # the status line would be drawn over the text
                    printer.show(replies)

                replies = ask(first, (lambda _replies: None) if prints_json() else show)
            if prints_json():
                print_json(Replies(replies=replies))
            else:
                printer.end(replies)
            failed = [reply.problem for reply in replies if reply.problem is not None]
            if failed:
                from organs.registry.validation.runtime import RuntimeFailed

                raise RuntimeFailed(failed[0].rstrip("."))
        else:
            _converse(first, opening, ask)


def _converse(first: PromptRequest, opening: Sequence[ChatMessage], ask: Ask) -> None:
    """Ask for prompts until the end of the input. Each model remembers its own answers."""
    histories: dict[str, list[ChatMessage]] = {}
    for line in _lines():
        message = ChatMessage(role=USER, content=line)
        if not histories:
            requests = [structs.replace(first, messages=(*opening, message))]
        else:
            requests = [
                structs.replace(first, model=name, beside=None, base=False, messages=(*opening, *history, message))
                for name, history in histories.items()
            ]
        printer = _Printer(shows_names=len(histories) > 1)
        for request in requests:
            request, replies = _answered(request, len(opening), ask, printer)
            printer.end(replies)
            for reply in replies:
                if reply.problem is not None:
                    print_remark(reply.problem)
                exchange = [*request.messages[len(opening) :], ChatMessage(role=ASSISTANT, content=reply.text)]
                if reply.problem is None or reply.text:
                    histories[reply.model] = exchange


def _answered(
    request: PromptRequest, opening: int, ask: Ask, printer: _Printer
) -> tuple[PromptRequest, tuple[ModelReply, ...]]:
    """Return the answers, and the request without the oldest messages if the model or the server takes only fewer."""
    while True:
        is_shortest = len(request.messages) <= opening + 1
        if is_shortest or len(request.messages) <= MESSAGES_MAX:
            try:
                replies = ask(request, printer.show)
            except BadInput:  # a server limits the characters
                if is_shortest:
                    raise
            else:
                if is_shortest or not (replies and replies[0].is_too_long):
                    return request, replies
        messages = (*request.messages[:opening], *request.messages[opening + 2 :])
        request = structs.replace(request, messages=messages)


def _lines() -> Iterator[str]:
    """Yield the lines that are typed, until the end of the input or one of QUIT."""
    while True:
        if sys.stdin.isatty():
            click.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line or line.strip() in QUIT:
            return
        if line.strip():
            yield line.rstrip("\n")


@contextmanager
def _asking(model: str) -> Iterator[Ask]:
    """Open what answers: a file, a model of the local registry, or the server of a remote one."""
    if _is_file(model):
        with fast_imports():
            from organs.registry.validation.chat import converse

        def ask_files(request: PromptRequest, show: Callable[[tuple[ModelReply, ...]], None]) -> tuple[ModelReply, ...]:
            names = [name for name in (request.model, request.beside) if name is not None]
            if request.base or not all(map(_is_file, names)):
                raise BadInput("beside a file only another file can answer: give --beside FILE.gguf")
            return converse([(name, Path(name)) for name in names], request, show)

        yield ask_files
        return
    if registry_address() is not None:
        with remote_registry() as remote:
            yield remote.answer
        return
    with fast_imports():
        from organs.ingest.answering import answer, settled_prompt
    with local_registry() as registry:

        def ask(request: PromptRequest, show: Callable[[tuple[ModelReply, ...]], None]) -> tuple[ModelReply, ...]:
            with registry.catalog.reading() as session:
                models = settled_prompt(session, request)
            total = sum(file.size_bytes for name in models for file in registry.model(name).files)
            names = " and ".join(name.partition("@")[0] for name in models)
            is_announced = prints_json()
            with ExitStack() as writing:
                advance = writing.enter_context(progress_bar("write", total, quiet=True if prints_json() else None))

                def count(size_bytes: int) -> None:
                    nonlocal is_announced
                    if not is_announced:
                        is_announced = True
                        with advance.hidden():
                            print_remark(f"Writing {size_text(total)} for {names}: kept for the next time.")
                    advance(size_bytes)

                def show_text(replies: tuple[ModelReply, ...]) -> None:
                    writing.close()  # the bar would be drawn over the text
                    show(replies)

                return answer(registry, models, request, show_text, progress=count)

        yield ask


def _is_file(model: str) -> bool:
    return model.endswith(SUFFIX) or Path(model).is_file()


class _Printer:
    """Prints replies while they are written: the first at once, each other one below it when the one before is done."""

    def __init__(self, *, shows_names: bool = False) -> None:
        self._shows_names = shows_names
        self._named: list[str] = []
        self._length = 0

    def show(self, replies: tuple[ModelReply, ...]) -> None:
        """Print what is new."""
        for number, reply in enumerate(replies):
            is_current = reply.model == (self._named[-1] if self._named else None)
            if reply.model in self._named and not is_current:
                continue
            if not is_current and (reply.text or reply.ended):
                self._begin(reply, shows_name=self._shows_names or len(replies) > 1)
                is_current = True
            if is_current:
                click.echo(_shown(reply.text[self._length :]), nl=False)
                self._length = len(reply.text)
            if reply.ended is None or number + 1 == len(replies):
                return

    def end(self, replies: tuple[ModelReply, ...]) -> None:
        """Print the rest, and how each prompt was written if not in a chat template."""
        self.show(replies)
        if self._named:
            click.echo()
        for remark in dict.fromkeys(reply.remark for reply in replies if reply.remark):
            print_remark(plain(remark))

    def _begin(self, reply: ModelReply, *, shows_name: bool) -> None:
        if self._named and self._length:
            click.echo("\n")
        if shows_name:
            click.echo(f"{plain(reply.model)}:")
        self._named.append(reply.model)
        self._length = 0


def _shown(text: str) -> str:
    """Return the text of a model without what controls a terminal: a server may send anything."""
    return "".join(part if part in _WRITTEN else plain(part) for part in re.split(f"([{_WRITTEN}])", text))


_WRITTEN = "\n\t\u200c\u200d"
"""Characters that an answer may have: `validation.chat.shown_text`."""
