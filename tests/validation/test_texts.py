"""Tests of the scored texts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from organs.registry.digest import digest_of
from organs.registry.errors import BadSource
from organs.registry.validation.texts import TEXT_MAX_BYTES, built_in_texts, read_text


def test_the_built_in_texts_are_some_code_and_some_prose() -> None:
    code, prose = built_in_texts()
    assert (code.name, prose.name) == ("code", "prose")
    assert "def " in code.text
    assert len(prose.text.split()) > 200
    assert code.digest == digest_of(code.text.encode())


def test_a_file_is_a_text_named_after_it(tmp_path: Path) -> None:
    path = tmp_path / "poem.txt"
    path.write_text("Grüße an die Welt, in acht Wörtern oder mehr.", encoding="utf-8")
    assert read_text(path).name == "poem"
    assert read_text(path).text.startswith("Grüße")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "too short"),
        (b"only seven words are in this text", "too short"),
        (b"one two three four five six seven \xff eight", "not UTF-8 at byte 34"),
        (b"one two three four five six seven \0 eight", "NUL"),
        (b"a " * (TEXT_MAX_BYTES // 2) + b"a", "at most"),
    ],
)
def test_an_unsuitable_text_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(BadSource, match=reason):
        read_text(path)


def test_a_text_of_a_mebibyte_is_read(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"a " * (TEXT_MAX_BYTES // 2))
    assert len(read_text(path).text) == TEXT_MAX_BYTES


def test_a_text_must_be_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero"), tmp_path / "absent"):
        with pytest.raises(BadSource):
            read_text(path)
