"""`organ chat`."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from organs.registry.errors import BadInput
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.small_models import ingest_file
from tests.validation.changed_models import A_F16, LORA, A, with_chat_template

NAMES = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


@pytest.fixture
def organ(tmp_path: Path) -> OrganCommand:
    with LocalRegistry.open(tmp_path / "home") as registry:
        ingest_file(registry, A_F16, "me/zoo")
        ingest_file(registry, A, "me/small")
        ingest_file(registry, LORA, "me/lora")
    return OrganCommand(tmp_path / "home")


def test_one_prompt_is_answered_by_a_model_a_model_below_it_and_a_file(organ: OrganCommand) -> None:
    options = ("-p", "def ", "--tokens", 8, "--seed", 1)
    (reply,) = organ.done("chat", "me/zoo", *options, "--json").values["replies"]
    assert (reply["model"], reply["tokens"], reply["ended"]) == ("me/zoo@1", 8, "tokens")
    alone = organ.done("chat", A_F16, *options)
    assert organ.done("chat", A_F16, "def ", *options[2:]).out == alone.out
    assert alone.out == f"{reply['text']}\n"
    assert "has no chat template" in alone.err
    both = organ.done("chat", "me/zoo", *options, "--beside", "me/small")
    assert both.err.startswith("Writing 6.3 MB for me/zoo and me/small: kept for the next time.\n")
    assert "Writing" not in organ.done("chat", "me/zoo", *options, "--beside", "me/small").err
    assert both.out.startswith(f"me/zoo@1:\n{reply['text']}\n\nme/small@1:\n")


def test_what_cannot_answer_ends_with_a_sentence(organ: OrganCommand) -> None:
    assert "an adapter answers only together with its base" in organ("chat", "me/lora", "-p", "x").err
    assert "not composed here" in organ("chat", "me/zoo", "-p", "x", "--base").err
    assert "give the prompt once" in organ("chat", "me/zoo", "x", "-p", "x").err
    assert "--json needs PROMPT" in organ("chat", "me/zoo", "--json").err
    assert "only another file can answer" in organ("chat", A_F16, "-p", "x", "--beside", "me/zoo").err


def test_a_conversation_is_remembered_and_its_oldest_messages_are_left_out(
    organ: OrganCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_chat_template(A_F16, NAMES, tmp_path / "chat.gguf")
    lengths: list[int] = []
    from organs.registry.validation import chat

    usual = chat.converse

    def watched(models: object, request: object, *more: object) -> object:
        lengths.append(len(request.messages))  # type: ignore[attr-defined]
        if lengths[-1] == 5 and lengths.count(5) == 2:
            raise BadInput("the conversation has 500 characters: this server takes up to 400")
        return usual(models, request, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(chat, "converse", watched)
    lines = [*["word " * 100] * 4, "/quit", "never"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    ended = organ.done("chat", model, "--tokens", 4, "--temperature", 0)
    assert lengths == [1, 3, 5, 3, 5, 3]
    assert len(ended.out.splitlines()) >= 3
