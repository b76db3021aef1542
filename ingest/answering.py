"""Models answer prompts: on this machine, and from the queue of a server.

The files of the models are kept while they are used, as those of `organ run`. Nothing of a prompt or an answer is in a
log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from organs.ingest.materialising import materialised
from organs.registry.catalog.queries.answers import is_prompt_due
from organs.registry.catalog.queries.model_names import model_by_name, model_by_text
from organs.registry.catalog.queries.reports import dtypes_of
from organs.registry.catalog.register.answers import PromptClaim, claim_prompt, write_replies
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import CHIMERA, PARTIAL
from organs.registry.catalog.work import RETRY_SECONDS, WorkCancelled, fail, finish, keeping, put_back, renew
from organs.registry.entities.base import encode
from organs.registry.entities.chat import ModelReply, PromptRequest, Replies
from organs.registry.entities.problem import INTERNAL
from organs.registry.errors import BadInput, OrganError
from organs.registry.gguf import dtype_by_name
from organs.registry.kinds import FileKind
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.progress import Progress, no_progress
from organs.registry.validation.chat import SECONDS, Show, check_conversation, converse
from organs.registry.validation.llama import usable_cores
from organs.registry.validation.run import compared_with

KEEP_BYTES = 20 * 10**9
"""Files of models that are kept for the next prompt."""
SHOW_SECONDS = 0.4
"""The shortest time between two writes of an unfinished answer."""
POLL_SECONDS = 0.25
AT_ONCE_MAX = 2
"""The most prompts that a runner answers at the same time; with less than four processors, one."""
HIDDEN = "the server failed; its log has the details"
"""Why an answer failed, for those who may not read the log."""

_log = logging.getLogger(__name__)


def silence_of(session: Session, model: ModelRow) -> str | None:
    """Return why a model cannot answer prompts, as a sentence; None if it can, as far as its header says."""
    if model.kind == FileKind.ADAPTER:
        return "An adapter answers only together with its base: merge it into its base, and try the chimera."
    if model.kind == PARTIAL:
        return "A part of a model cannot answer: graft it into its base, and try the chimera."
    if model.kind not in (FileKind.MODEL, CHIMERA):
        return "This file is no language model, and writes no text."
    if model.unassemblable or not model.complete:
        return "This model cannot be written as a complete file, so it cannot be run here."
    if any(dtype_by_name(row.dtype).is_foreign for row in dtypes_of(session, model.id)):
        return "The model has tensor types that the built-in llama.cpp cannot run."
    return None


def settled_prompt(session: Session, request: PromptRequest) -> tuple[str, ...]:
    """Check a request, and return the full names of the models that answer it: the model, and the one beside it.

    Raises NotFound, NotComposedHere for a model without a base, BadInput.
    """
    check_conversation(request.messages)
    model = model_by_text(session, request.model)
    rows = [model]
    if request.beside is not None:
        rows.append(model_by_text(session, request.beside))
    elif request.base:
        rows.append(compared_with(session, model)[0])
    for row in rows:
        reason = silence_of(session, row)
        if reason is not None:
            raise BadInput(f"{row.full_name}: {reason[0].lower()}{reason[1:].rstrip('.')}")
    return tuple(dict.fromkeys(row.full_name for row in rows))


def answer(
    registry: LocalRegistry,
    models: Sequence[str],
    request: PromptRequest,
    show: Show = lambda _replies: None,
    *,
    seconds: float = SECONDS,
    threads: int | None = None,
    keep_bytes: int = KEEP_BYTES,
    progress: Progress = no_progress,
    is_over: threading.Event | None = None,
) -> tuple[ModelReply, ...]:
    """Write the files of the models if they are not there, and let them answer; see `validation.chat.converse`."""
    with ExitStack() as opened:
        files = [opened.enter_context(materialised(registry, name, keep_bytes, progress)).path for name in models]
        return converse(
            list(zip(models, map(Path, files), strict=True)),
            request,
            show,
            seconds=seconds,
            threads=threads,
            requires_sandbox=registry.settings.requires_sandbox,
            is_over=is_over,
        )


def prompts_at_once() -> int:
    """Return how many prompts a runner on this machine answers at the same time."""
    return AT_ONCE_MAX if usable_cores() >= 2 * AT_ONCE_MAX else 1


@dataclass(slots=True)
class PromptRunner:
    """Answers the prompts in the queue of a registry, one at a time, until `stop` is set."""

    registry: LocalRegistry
    stop: threading.Event

    def run(self, *, once: bool = False) -> None:
        """Answer prompts until `stop` is set; with `once`, until none waits. A prompt that is interrupted waits again.

        Errors of prompts are stored; those of the database are logged, and it is tried again.
        """
        while not self.stop.is_set():
            claim = None
            try:
                with self.registry.catalog.reading() as session:
                    is_due = is_prompt_due(session)
                if is_due:
                    with self.registry.catalog.counting() as session:
                        claim = claim_prompt(session)
            except OrganError as error:
                if once:
                    raise
                _log.error("no prompt can be claimed: %s", error)
                self.stop.wait(RETRY_SECONDS)
                continue
            if claim is not None:
                self._answer(claim)
            elif once and not is_due:
                return
            else:
                self.stop.wait(POLL_SECONDS)

    def _answer(self, claim: PromptClaim) -> None:
        with keeping(
            self.registry.catalog, partial(renew, claim=claim), f"prompt {claim.key[0]} keeper", counts=True
        ) as lost:
            try:
                replies = self._replies(claim, lost)
            except WorkCancelled:
                with suppress(OrganError), self.registry.catalog.counting() as session:
                    put_back(session, claim, started_at=None)
                return
            except OrganError as error:
                failure = str(error)
                if error.status == INTERNAL:  # it may have paths of this machine
                    _log.error("prompt %d failed: %s", claim.key[0], error)
                    failure = HIDDEN
            except Exception as error:  # noqa: BLE001  # the next prompt must be answered after any error of this one
                _log.error("prompt %d broke: %s", claim.key[0], type(error).__name__)
                failure = f"an internal error ({type(error).__name__})"
            else:
                with suppress(OrganError), self.registry.catalog.counting() as session:
                    finish(session, claim, encode(Replies(replies=replies)).decode())
                return
            with suppress(OrganError), self.registry.catalog.counting() as session:
                fail(session, claim, failure)

    def _replies(self, claim: PromptClaim, lost: threading.Event) -> tuple[ModelReply, ...]:
        written_at = -SHOW_SECONDS

        def check(_count: int = 0) -> None:
            if self.stop.is_set() or lost.is_set():
                raise WorkCancelled

        def show(replies: tuple[ModelReply, ...]) -> None:
            nonlocal written_at
            check()
            if time.monotonic() - written_at < SHOW_SECONDS:
                return
            with suppress(OrganError), self.registry.catalog.counting() as session:  # the next piece is soon
                if not write_replies(session, claim, Replies(replies=replies)):
                    lost.set()
            written_at = time.monotonic()

        arguments = claim.arguments
        with self.registry.catalog.reading() as session:  # a model can be removed while its prompt waits
            for name in arguments.models:
                model_by_name(session, parse_model_name(name))
        replies = answer(
            self.registry,
            arguments.models,
            arguments.request,
            show,
            seconds=arguments.seconds,
            threads=max(1, (usable_cores() - 1) // prompts_at_once()),
            progress=check,
            is_over=self.stop,
        )
        check()
        return replies
