"""Models that would crash a loader: taken in and flagged, looked at, never written out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.gguf import KeyValue, ValueType
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.gguf_files import array
from tests.small_models import small_model, token_array

TOKENS = token_array([b"a", b"b", b"<0x0A>"])


def types(*numbers: int) -> KeyValue:
    return array("tokenizer.ggml.token_type", ValueType.INT32, numbers)


REFUSED = {
    "INT8 token types": (
        [TOKENS, array("tokenizer.ggml.token_type", ValueType.INT8, [1, 1, 6])],
        "tokenizer.ggml.token_type has INT8 instead of INT32",
    ),
    "INT8 scores": (
        [TOKENS, types(1, 1, 6), array("tokenizer.ggml.scores", ValueType.INT8, [0, 0, 0])],
        "tokenizer.ggml.scores has INT8 instead of FLOAT32",
    ),
    "fewer types than tokens": (
        [TOKENS, types(1, 1)],
        "tokenizer.ggml.token_type has 2 elements for 3 tokens",
    ),
    "a negative byte": (
        [token_array([b"a", b"<0x-1>"]), types(1, 6)],
        "1 byte tokens are not bytes, for example b'<0x-1>'",
    ),
    "a byte of three digits": (
        [token_array([b"<0x100>", b"<0x41>"]), types(6, 6)],
        "1 byte tokens are not bytes, for example b'<0x100>'",
    ),
}


@pytest.fixture
def organ(registry: LocalRegistry) -> OrganCommand:
    return OrganCommand(registry.settings.home)


@pytest.mark.parametrize(("entries", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_a_dangerous_vocabulary_is_flagged_shown_and_never_assembled(
    entries: list[KeyValue], reason: str, organ: OrganCommand, tmp_path: Path
) -> None:
    (tmp_path / "bad.gguf").write_bytes(small_model(more=entries))
    ingested = organ.done("ingest", tmp_path / "bad.gguf")
    assert f"note: {reason}" in ingested.err
    shown = organ.done("show", "bad", "--json").values
    assert any(found.startswith(reason) for found in shown["unassemblable"])
    out = tmp_path / "out.gguf"
    out.write_bytes(b"what was there")
    for options in ([], ["--merge"], ["--shards", "10k"], ["--dry-run"]):
        ended = organ("assemble", "bad", "--force", "-o", out, *options)
        assert ended.status == 5
        assert ended.err.startswith(f"organ: local/bad cannot be assembled: {reason}")
    assert out.read_bytes() == b"what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.gguf", "home", "out.gguf"]


def test_a_sound_vocabulary_passes_the_same_gate(organ: OrganCommand, tmp_path: Path) -> None:
    data = small_model(more=[TOKENS, types(1, 1, 6)])
    (tmp_path / "good.gguf").write_bytes(data)
    notes = organ.done("ingest", tmp_path / "good.gguf").err
    subject = "its embedding token_embd.weight has 96 rows"
    assert notes == f"  note: {subject}, but the vocabulary 3 tokens: runtimes refuse it\n"
    organ.done("assemble", "good", "-o", tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == data


def test_the_organs_of_a_refused_model_are_available_to_other_models(organ: OrganCommand, tmp_path: Path) -> None:
    entries, _ = REFUSED["a negative byte"]
    (tmp_path / "bad.gguf").write_bytes(small_model(more=entries))
    (tmp_path / "good.gguf").write_bytes(small_model())
    organ.done("ingest", tmp_path / "bad.gguf")
    (line,) = organ.done("ingest", "--json", tmp_path / "good.gguf").lines
    assert '"new": 1' in line
    organ.done("assemble", "good", "-o", tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == small_model()
