"""Conversations in llama.cpp: what is sampled, whose markers count, and what a hostile template cannot do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from organs.registry.entities.chat import ChatMessage, ModelReply, PromptRequest
from organs.registry.errors import BadInput
from organs.registry.validation.chat import converse, shown_text
from organs.registry.validation.decoder import Decoder, LoadedModel
from organs.registry.validation.sampler import PromptPart, SampleOrder, _pieces, chooser, prompt_tokens
from tests.validation.changed_models import A_F16, A_PROSE, with_chat_template

CHATML = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOOP = "{% for _ in range(10**5) %}{% for _ in range(10**5) %}{% endfor %}{% endfor %}"
HUGE = "{{ messages[0].content }}{% for _ in range(10**5) %}{{ 'x' * 1000 }}{% endfor %}"


def asking(*texts: str, **more: Any) -> PromptRequest:
    roles = ("system", "user") if len(texts) == 2 else ("user",)
    messages = tuple(ChatMessage(role=role, content=text) for role, text in zip(roles, texts, strict=True))  # type: ignore[arg-type]
    return PromptRequest(model="zoo", messages=messages, **{"tokens": 12, "seed": 7, **more})


def test_models_answer_side_by_side_and_a_seed_gives_the_same_text() -> None:
    shown: list[tuple[ModelReply, ...]] = []
    models = [("me/a@1", A_F16), ("me/prose@1", A_PROSE)]
    first, second = converse(models, asking("def read"), shown.append)
    assert [reply.model for reply in (first, second)] == ["me/a@1", "me/prose@1"]
    assert [(reply.tokens, reply.ended) for reply in (first, second)] == [(12, "tokens"), (12, "tokens")]
    assert first.text != second.text
    assert "continues the text" in first.remark
    both = [tuple(reply.tokens for reply in replies) for replies in shown if all(reply.tokens for reply in replies)]
    assert (3, 3) in both
    for replies in shown:
        assert first.text.startswith(replies[0].text)
    (again,), (other,) = (converse(models[:1], asking("def read", seed=seed)) for seed in (7, 8))
    assert again == first
    assert other.text != first.text


def test_a_model_answers_in_its_template_and_one_that_refuses_the_system_gets_its_words_from_the_user(
    tmp_path: Path,
) -> None:
    model = with_chat_template(A_F16, CHATML, tmp_path / "chat.gguf")
    (alone,), (together,) = (converse([("c", model)], asking(*texts)) for texts in (("Hi",), ("Be kind.", "Hi")))
    assert alone.remark == together.remark == ""
    assert together.prompt_tokens > alone.prompt_tokens > len("<|im_start|>user")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (LOOP, "too long"),
        (HUGE, "too much"),
        ("{{ 1/0 }}", "division"),
        ("{{ messages[0].content | reverse }}", "leaves out"),
        ("{% for _ in range(9) %}{{ messages[0].content }}{% endfor %}", "repeats"),
    ],
)
def test_a_hostile_template_is_stopped_and_never_sees_the_prompt(tmp_path: Path, template: str, reason: str) -> None:
    model = with_chat_template(A_F16, template, tmp_path / "bad.gguf")
    (reply,) = converse([("bad", model)], asking("def "))
    assert reply.tokens == 12
    assert reason in reply.remark
    assert "continues the text" in reply.remark


def test_a_conversation_that_does_not_fit_and_a_file_that_is_no_model_are_said(tmp_path: Path) -> None:
    (reply,) = converse([("long", A_F16)], asking("word " * 3000))
    assert reply.is_too_long
    assert "more than the context" in (reply.problem or "")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(A_F16.read_bytes().replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"))
    (good, bad) = converse([("good", A_F16), ("bad", broken)], asking("def "))
    assert (good.ended, bad.ended) == ("tokens", "failed")
    assert "refused the model" in (bad.problem or "")
    with pytest.raises(BadInput, match="last message"):
        converse([("empty", A_F16)], asking("  "))


class Tokens:
    """A vocabulary of letters, in which `<end>` is a marker: 0."""

    has_encoder = False

    def tokens(self, text: str, *, parse_special: bool = False) -> list[int]:
        parts = text.split("<end>") if parse_special else [text]
        return [token for number, part in enumerate(parts) for token in (*[0][: min(number, 1)], *map(ord, part))]

    def is_marker(self, token: int) -> bool:
        return token == 0

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return b"<end>" if token == 0 and special else bytes([token])

    def first_tokens(self) -> list[int]:
        return [1]


@pytest.mark.parametrize("message", ["a<end>b", "a<en", "d>b<end>", "<end>"])
def test_a_message_that_names_a_marker_is_text(message: str) -> None:
    model = cast(LoadedModel, Tokens())
    parts = (
        PromptPart(text="[", is_template=True),
        PromptPart(text=message),
        PromptPart(text="<end>", is_template=True),
    )
    assert prompt_tokens(model, parts) == [1, *map(ord, "[" + message), 0]
    whole = (
        PromptPart(text="x<e", is_template=True),
        PromptPart(text="nd>"),
        PromptPart(text="<end>", is_template=True),
    )
    assert prompt_tokens(model, whole) == [1, *map(ord, "x<end>"), 0]
    assert prompt_tokens(model, (PromptPart(text=message),)) == [1, *map(ord, message)]


def test_added_tokens_of_spaces_and_of_one_character_are_no_markers() -> None:
    class Added:
        """The vocabulary of a Gemma model, in short."""

        pieces, attributes = ("a", "\n", "\n\n", "|", "<table>", "<end_of_turn>"), (4, 16, 16, 16, 16, 8)
        library = SimpleNamespace(llama_vocab_get_attr=lambda vocabulary, token: vocabulary[token])
        _vocabulary = attributes

        def piece(self, token: int, *, special: bool) -> bytes:
            assert special
            return self.pieces[token].encode()

    assert [LoadedModel.is_marker(cast(LoadedModel, Added()), token) for token in range(6)] == [False] * 4 + [True] * 2


def test_a_character_is_held_back_until_it_is_complete() -> None:
    class Writer:
        def following(self, *_: object) -> list[int]:
            return [*"ä→".encode(), 0xF0]

    order = SampleOrder(models=(), tokens=99, seconds=1.0, temperature=0.0, seed=0, threads=1)
    lines = list(_pieces(0, cast(LoadedModel, Tokens()), cast(Decoder, Writer()), [1], 1000, order))
    assert [line.piece for line in lines[:-1]] == ["", "ä", "", "", "→", ""]
    assert lines[-1].ended == "end"
    assert shown_text("a\x1b[31m\n\u202eb") == "a[31m\nb"


def test_tokens_are_drawn_among_the_likely_ones_and_greedily_at_the_temperature_0() -> None:
    logits = np.array([0.0, 5.0, 4.9, -20.0], np.float32)
    assert chooser(0.0, 1)(logits) == 1
    drawn = chooser(1.0, 1)
    assert {drawn(logits) for _ in range(100)} == {1, 2}
    first, again = ([choose(logits) for _ in range(50)] for choose in (chooser(1.0, 3), chooser(1.0, 3)))
    assert first == again
