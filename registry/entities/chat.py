"""Prompts to models, and their answers."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from organs.registry.entities.base import Count, Entity, Items, ModelText, RequestBody, Text, Time, Word

MESSAGES_MAX = 64
MESSAGE_MAX_CHARACTERS = 65_536
TOKENS_DEFAULT, TOKENS_MAX = 256, 8192
TEMPERATURE_DEFAULT, TEMPERATURE_MAX = 0.7, 2.0
SEED_MAX = 2**32 - 1
USER: Final = "user"
ASSISTANT: Final = "assistant"
SYSTEM: Final = "system"
ANSWERING = ("queued", "running")
"""The states of an answer that is not complete."""


class ChatMessage(RequestBody):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Meta(max_length=MESSAGE_MAX_CHARACTERS)]


class PromptRequest(RequestBody):
    """A conversation that a model continues, and how."""

    model: Annotated[Text, Meta(description="The model: `namespace/name`, with or without `@version`.")]
    messages: Annotated[
        tuple[ChatMessage, ...],
        Meta(
            min_length=1,
            max_length=MESSAGES_MAX,
            description="The conversation. The last message is the prompt, of the role `user`.",
        ),
    ]
    beside: Annotated[Text, Meta(description="Another model that answers the same, beside it.")] | None = None
    base: Annotated[bool, Meta(description="Whether the base of a chimera answers the same, beside it.")] = False
    tokens: (
        Annotated[int, Meta(ge=1, le=TOKENS_MAX, description="The most tokens of an answer; by default 256.")] | None
    ) = None
    temperature: Annotated[
        float, Meta(ge=0.0, le=TEMPERATURE_MAX, description="0 always takes the most likely token.")
    ] = TEMPERATURE_DEFAULT
    seed: (
        Annotated[
            int,
            Meta(ge=0, le=SEED_MAX, description="The same seed gives the same text on one machine. By default random."),
        ]
        | None
    ) = None


class ModelReply(Entity):
    """What one model has answered so far."""

    model: ModelText
    text: Annotated[Text, Meta(description="The text so far.")] = ""
    tokens: Annotated[Count, Meta(description="Its tokens so far.")] = 0
    prompt_tokens: Annotated[Count, Meta(description="The tokens of the conversation before it.")] = 0
    ended: (
        Annotated[
            Word,
            Meta(
                description="Why the text ends: `end`, the model ended it; `tokens`, `seconds` or `context`, a limit; "
                "`failed`. Null while the model writes."
            ),
        ]
        | None
    ) = None
    problem: Annotated[Text, Meta(description="Why it failed, in one sentence.")] | None = None
    remark: Annotated[Text, Meta(description="How the prompt was written, if not in the model's chat template.")] = ""

    @property
    def is_too_long(self) -> bool:
        """Whether the conversation does not fit into the context of the model."""
        return self.ended == "context" and not self.tokens


class PromptArguments(Entity):
    """What waits in the queue: a checked request, the full names of its models, and the limits of the server."""

    request: PromptRequest
    models: Items[ModelText]
    seconds: float


class Replies(Entity):
    """What has been answered so far, in the queue."""

    replies: Items[ModelReply] = ()


class PromptAnswer(Entity):
    """The answer to a prompt, complete or in progress. It is deleted after a day."""

    key: Annotated[
        str,
        Meta(
            pattern="^[0-9a-f]{32}$",
            max_length=32,
            description="The secret address of the answer: who knows it can read it; that of an account, only the "
            "account.",
        ),
    ]
    state: Annotated[Word, Meta(description="`queued`, `running`, `finished` or `failed`.")]
    position: Annotated[Count, Meta(description="Its place in the queue, from 1. Null unless it waits.")] | None
    note: Annotated[Text, Meta(description="Why it failed or waits, in one sentence.")]
    messages: Annotated[tuple[ChatMessage, ...], Meta(max_length=MESSAGES_MAX)]
    replies: Annotated[Items[ModelReply], Meta(description="One for each model.")]
    temperature: float
    seed: Count
    tokens_max: Annotated[Count, Meta(description="The most tokens of each reply.")]
    created_at: Time

    @property
    def is_active(self) -> bool:
        """Whether it waits or is being written."""
        return self.state in ANSWERING
