"""Output without control characters, strict JSON, and readable sizes."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.cli.console import plain, print_json, print_json_line, step_text
from organs.registry.amounts import count_text, share_text, size_text, theta_text
from tests.random_files import PATIENT

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b31m",
    "bell\a",
    "back\b\b\b",
    "return\rover",
    "two\nlines",
    "nul\0",
    "\u202eright to left",
    "\u2066isolate",
    "zero\u200bwidth",
    "\ufeffmark",
    "line\u2028separator",
    "\u061cmark",
    "soft\xadhyphen",
    "\udcff not UTF-8",
    "\x7fdelete",
]


def dangerous(text: str) -> list[str]:
    """The characters of `text` that a terminal would obey, or that nobody sees."""
    return [
        character for character in text if unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}
    ] + re.findall("[\xad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]", text)


@PATIENT
@given(st.text(st.characters(codec=None)))
def test_no_text_prints_control_characters(text: str) -> None:
    assert dangerous(plain(text)) == []
    plain(text).encode("utf-8")


@pytest.mark.parametrize("text", ["Grüße, 世界 🦴", "a\\b", "é", "", "[bold]not markup[/bold]"])
def test_ordinary_text_is_unchanged(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plain(text) == text
    print_json_line(text)
    assert capsys.readouterr().out == json.dumps(text, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_harmless_for_a_terminal_and_json_is_the_same_value(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_json({"name": text, text: 1})
    printed = capsys.readouterr().out
    assert dangerous(text)
    assert dangerous(plain(text)) == dangerous(printed.replace("\n", "")) == []
    assert "\\u" in plain(text)
    assert json.loads(printed) == {"name": text, text: 1}
    print_json_line([text])
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == [text]


def test_numbers_that_json_cannot_write_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("nan"), 1.5, (float("inf"), float("-inf"))], "b": {"c": float("nan")}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5, [None, None]], "b": {"c": None}}


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        ("35% chimera, loading", "━━━━━━━┈┈┈┈┈┈┈┈┈┈┈┈┈ 35% chimera, loading"),
        ("100% done", "━━━━━━━━━━━━━━━━━━━━ 100% done"),
        ("loading 35% of it", "loading 35% of it"),
        ("999% \x1b[2J", "━━━━━━━━━━━━━━━━━━━━ 999% ?[2J"),
    ],
)
def test_a_step_with_a_percentage_has_a_bar(step: str, shown: str) -> None:
    assert step_text(step).replace(plain("\x1b"), "?") == shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (size_text(999), "999 bytes"),
        (size_text(1_000), "1.0 kB"),
        (size_text(4_900_000), "4.9 MB"),
        (size_text(1_190_000_000), "1.2 GB"),
        (size_text(10**16), "10000.0 TB"),
        (count_text(999), "999"),
        (count_text(1_500), "1.5 k"),
        (count_text(2_100_000), "2.1 M"),
        (count_text(7 * 10**9), "7.0 G"),
        (theta_text(None), "–"),
        (theta_text(34.26), "34.3°"),
        (share_text(None), "–"),
        (share_text(0.5), "0.500"),
    ],
)
def test_amounts_are_formatted_for_people(text: str, expected: str) -> None:
    assert text == expected
