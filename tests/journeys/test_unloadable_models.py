"""Models that would crash a loader: taken in and flagged, looked at, never written out again."""

from __future__ import annotations

from pathlib import Path

from organs.registry.gguf import KeyValue, ValueType
from tests.cli.in_process import OrganCommand
from tests.gguf_files import array
from tests.small_models import small_model, token_array

TOKENS = token_array([b"a", b"b", b"<0x0A>"])
BAD_TOKENS = token_array([b"a", b"<0x-1>"])
REASON = "1 byte tokens are not bytes, for example b'<0x-1>'"


def types(*numbers: int) -> KeyValue:
    return array("tokenizer.ggml.token_type", ValueType.INT32, numbers)


def test_a_dangerous_vocabulary_is_flagged_shown_and_never_assembled(organ: OrganCommand, tmp_path: Path) -> None:
    """tests/gguf/test_tokenizer.py has every kind of dangerous vocabulary."""
    (tmp_path / "bad.gguf").write_bytes(small_model(more=[BAD_TOKENS, types(1, 6)]))
    ingested = organ.done("ingest", tmp_path / "bad.gguf")
    assert f"note: {REASON}" in ingested.err
    shown = organ.done("show", "bad", "--json").values
    assert any(found.startswith(REASON) for found in shown["unassemblable"])
    organ.done("extract", tmp_path / "bad.gguf", "-o", tmp_path / "folder")
    out = tmp_path / "out.gguf"
    out.write_bytes(b"what was there")
    for words in (["bad"], ["bad", "--merge"], ["bad", "--shards", "10k"], ["bad", "--dry-run"], [tmp_path / "folder"]):
        ended = organ("assemble", *words, "--force", "-o", out)
        assert ended.status == 5
        assert f"cannot be assembled: {REASON}" in ended.err
    assert organ("extract", "bad", "-o", tmp_path / "again").status == 5
    assert out.read_bytes() == b"what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.gguf", "folder", "home", "out.gguf"]
    (tmp_path / "good.gguf").write_bytes(small_model())
    (line,) = organ.done("ingest", "--json", tmp_path / "good.gguf").lines
    assert '"new": 1' in line, "its tensors are available to other models"


def test_a_sound_vocabulary_passes_the_same_gate(organ: OrganCommand, tmp_path: Path) -> None:
    data = small_model(more=[TOKENS, types(1, 1, 6)])
    (tmp_path / "good.gguf").write_bytes(data)
    notes = organ.done("ingest", tmp_path / "good.gguf").err
    subject = "its embedding token_embd.weight has 96 rows"
    assert notes.startswith(f"  note: {subject}, but the vocabulary 3 tokens: runtimes refuse it; convert ")
    organ.done("assemble", "good", "-o", tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == data
