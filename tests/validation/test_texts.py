"""Tests of the scored texts."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from organs.registry.digest import digest_of
from organs.registry.errors import BadSource
from organs.registry.validation.texts import (
    CHAT,
    KINDS,
    SAMPLE_MAX_BYTES,
    built_in_texts,
    conversations,
    fitted_texts,
    read_text,
    spread_order,
)


def test_the_suite_has_kinds_of_text_of_at_least_8_kilobytes() -> None:
    texts = built_in_texts()
    assert tuple(text.name for text in texts) == KINDS
    assert len(KINDS) >= 6
    fitted = fitted_texts(texts, "{{ messages }}")
    assert len({text.digest for text in fitted}) == len(KINDS)
    assert fitted_texts(texts, None) == texts[1:], "without a chat template there is no chat"

    for text in texts:
        assert len(text.text.encode()) >= 8192
        assert text.digest == digest_of(text.text.encode())
    by_name = {text.name: text.text for text in texts}
    compile(by_name["python"], "python.txt", "exec")
    assert all(text.isascii() for name, text in by_name.items() if name not in ("german", "encyclopedic"))
    assert built_in_texts(("german",)) == texts[-1:]


def test_a_chat_has_conversations_of_two_roles() -> None:
    (chat,) = built_in_texts((CHAT,))
    found = conversations(chat.text)
    assert len(found) > 20
    assert all([role for role, _ in turns][:2] == ["user", "assistant"] for turns in found)
    assert conversations("User: a\nb\nAssistant: c: d\n\nnothing\n\nUser: e") == [
        [("user", "a\nb"), ("assistant", "c: d")],
        [("user", "e")],
    ]


@pytest.mark.parametrize("count", [1, 2, 5, 16, 23])
def test_the_first_windows_are_spread_over_the_whole_text(count: int) -> None:
    order = spread_order(count)
    assert sorted(order) == list(range(count))
    for size in (2, 4, 8):
        if size <= count:
            starts = sorted(order[:size])
            gaps = [second - first for first, second in itertools.pairwise([*starts, count])]
            assert max(gaps) <= 2 * count / size


def test_a_long_text_is_sampled_over_its_whole_length(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("".join(f"line {number:07} of a long text, with an ü in it\n" for number in range(100_000)))
    text = read_text(path).text
    assert SAMPLE_MAX_BYTES * 0.9 < len(text.encode()) <= SAMPLE_MAX_BYTES + 200
    numbers = [int(line[5:12]) for line in text.splitlines() if len(line) > 12]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert numbers[-1] > 98_000
    assert max(second - first for first, second in itertools.pairwise(numbers)) < 2000
    assert all(line.startswith("line ") for line in text.splitlines() if line)


def test_a_folder_is_one_text_of_all_text_files_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "book"
    (folder / "part 2").mkdir(parents=True)
    (folder / "part 2" / "a.txt").write_text("the second part has a few more words")
    (folder / "1.txt").write_text("the first part has some words")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\xff")
    (folder / ".hidden").write_text("hidden words")
    text = read_text(folder)
    assert text.name == "book"
    assert text.text == "the first part has some words\n\nthe second part has a few more words"
    many = tmp_path / "many"
    many.mkdir()
    for number in range(40):
        (many / f"{number:02}").write_text(f"file {number:02} " * 5000)
    sampled = read_text(many).text
    assert len(sampled) <= SAMPLE_MAX_BYTES + 200
    assert {f"file {number:02}" in sampled for number in range(40)} == {True}


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
        (b"one two three four five six seven \xff eight", "not UTF-8"),
        (b"one two three four five six seven \0 eight", "NUL"),
    ],
)
def test_an_unsuitable_text_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(BadSource, match=reason):
        read_text(path)


def test_a_text_is_a_regular_file_or_a_folder_with_text(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero"), tmp_path / "absent"):
        with pytest.raises(BadSource):
            read_text(path)
