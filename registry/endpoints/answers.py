"""Answers of models to prompts: ask, read, delete."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.endpoints.declaration import ACCEPTED, Group
from organs.registry.endpoints.parameters import EXAMPLE_BASE
from organs.registry.entities.chat import PromptAnswer, PromptRequest

GROUP = Group("Prompts", "Try a model: it answers a prompt, if the operator of the server has turned it on.")
EXAMPLE_KEY = "0123456789abcdef0123456789abcdef"
AnswerKey = Annotated[
    str,
    Meta(
        pattern="^[0-9a-f]{32}$",
        max_length=32,
        description="The key of the answer.",
        examples=[EXAMPLE_KEY],
    ),
]


@GROUP.declare(
    "post",
    "/answers",
    "Ask a model",
    example=f'{{"model": "{EXAMPLE_BASE}", "messages": [{{"role": "user", "content": "def read("}}], "seed": 1}}',
    status=ACCEPTED,
    refusals=(403, 404, 409),
)
def ask(body: PromptRequest) -> PromptAnswer:
    """Put a prompt into the queue, and return its answer, which is empty at first: read it again until it is complete.
    Accounts and addresses take turns. 404 if this server answers no prompts, 429 if your prompts of the last hour, or
    those that wait, are too many. Prompts and answers are deleted after a day. No account is needed."""


@GROUP.get("/answers/{key}", "Get an answer", refusals=(404,))
def answer(key: AnswerKey) -> PromptAnswer:
    """Return what has been answered so far. Only the account that asked can read its answer; without an account, who
    knows the key. 404 after a day."""


@GROUP.declare("delete", "/answers/{key}", "Delete an answer", refusals=(403, 404))
def forget(key: AnswerKey) -> PromptAnswer:
    """Delete a prompt and its answer, and return it. If it waits or is being written, it ends."""
