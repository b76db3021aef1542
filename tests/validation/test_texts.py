"""Tests of the scored texts."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from organs.registry.digest import digest_of
from organs.registry.errors import BadSource
from organs.registry.validation.texts import (
    CHAT,
    KINDS,
    PROVED_MAX_BYTES,
    SAMPLE_MAX_BYTES,
    SEARCHED_MAX_BYTES,
    ScoredText,
    built_in_texts,
    conversations,
    divided,
    fitted_texts,
    read_text,
    shortened,
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


def numbered(count: int, words: str = "of a text, with an ü in it") -> ScoredText:
    content = "".join(f"line {number:06} {words}\n" for number in range(count))
    return ScoredText("mine", content, digest_of(content.encode()))


@pytest.mark.parametrize("count", [300, 22_000])
def test_the_parts_of_a_divided_text_have_no_line_in_common_and_are_spread_over_it(count: int) -> None:
    text = numbered(count)
    searched, proved = divided(text)
    for part, limit in ((searched, SEARCHED_MAX_BYTES), (proved, PROVED_MAX_BYTES)):
        assert (part.name, part.is_chat, part.digest) == ("mine", False, digest_of(part.text.encode()))
        assert len(part.text.encode()) <= limit
        assert set(part.text.splitlines()) <= set(text.text.splitlines())
        numbers = [int(line[5:11]) for line in part.text.splitlines()]
        assert numbers == sorted(numbers)
        gaps = [second - first for first, second in itertools.pairwise([0, *numbers, count])]
        assert max(gaps) < count / 3 if count == 300 else max(gaps) < count / 20
    assert not set(searched.text.splitlines()) & set(proved.text.splitlines())
    if count == 300:
        assert len(searched.text) + len(proved.text) == len(text.text), "of a short text, all is kept"
        assert len(searched.text) < len(proved.text)
    else:
        assert len(searched.text.encode()) > 0.9 * SEARCHED_MAX_BYTES
        assert len(proved.text.encode()) > 0.9 * PROVED_MAX_BYTES


@pytest.mark.parametrize("words", ["of a text", 'with "quotation" marks', "mit üöä", "長い文章"])
def test_a_text_to_send_is_shortened_to_sections_that_are_spread_over_it(words: str) -> None:
    text = numbered(4000, words)
    short = shortened(text, 50_000)
    assert 25_000 < len(json.dumps(short.text, ensure_ascii=False).encode()) <= 50_000
    assert (short.digest, short.name) == (digest_of(short.text.encode()), "mine")
    numbers = [int(line[5:11]) for line in short.text.splitlines()[:-1]]
    assert max(second - first for first, second in itertools.pairwise([0, *numbers, 4000])) < 400
    assert shortened(short, 50_000) == short


def test_a_chat_is_divided_by_whole_conversations() -> None:
    (chat,) = built_in_texts((CHAT,))
    searched, proved = (conversations(part.text) for part in divided(chat))
    assert len(searched) > 5
    assert len(proved) > len(searched)
    assert sorted([*searched, *proved]) == sorted(conversations(chat.text))
    assert all(part.is_chat for part in divided(chat))


def test_very_long_lines_are_cut_so_that_they_are_divided_too() -> None:
    text = numbered(20_000)
    lines = [text.text.replace("\n", " "), text.text.replace("\n", "").replace(" ", "") + " and so on " * 9]
    for content in lines:
        searched, proved = divided(replace(text, text=content))
        assert len(searched.text.encode()) <= SEARCHED_MAX_BYTES
        assert 4 * SEARCHED_MAX_BYTES >= len(proved.text.encode()) > 2 * SEARCHED_MAX_BYTES
    whole = set(lines[0].split())
    found = [set(part.text.split()) for part in divided(replace(text, text=lines[0]))]
    assert all(own <= whole for own in found), "words stay whole"


@pytest.mark.parametrize("content", ["a few words, which are enough to be one text", "\n" * 100_000])
def test_a_text_that_is_too_short_for_two_parts_is_refused(content: str) -> None:
    with pytest.raises(BadSource, match="mine: too short to be divided into a part for the search and one for the"):
        divided(replace(numbered(1), text=content))
