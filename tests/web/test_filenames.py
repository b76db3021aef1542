"""A file's name on somebody else's disk: never a path, a device, or a second header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.web.downloads import (
    public_names,
    whole_name,
)
from organs.web.file_responses import (
    NAME_MAX_LENGTH,
    attachment,
    is_plain_name,
    safe_name,
)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("Zoo-A-2M-v1.0-F16.gguf", "Zoo-A-2M-v1.0-F16.gguf"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("..", "download"),
        ("-rf", "rf"),
        ("CON.gguf", "_CON.gguf"),
        ("a\r\nSet-Cookie: x=1.gguf", "a_Set-Cookie_ x_1.gguf"),
        ('a"; filename="b.exe', "a_ filename_b.exe"),
        ("a\u202efugg.exe", "a_fugg.exe"),
        ("x" * 500 + ".gguf", "x" * (NAME_MAX_LENGTH - 5) + ".gguf"),
    ],
)
def test_a_name_is_made_harmless(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_a_name_beyond_ascii_is_sent_in_both_forms() -> None:
    assert attachment("Bär.gguf") == "attachment; filename=\"B_r.gguf\"; filename*=UTF-8''B%C3%A4r.gguf"


@given(st.text(max_size=400))
def test_a_name_cannot_escape_from_its_header_or_its_folder(name: str) -> None:
    header = attachment(name)
    assert header.isascii()
    assert header.isprintable()
    assert header.count('"') == 2
    assert not {"/", "\\", "\r", "\n"} & set(header)
    assert not safe_name(name).startswith((".", "-"))
    assert is_plain_name(safe_name(name))


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["Own-v1.0.gguf"], "Own-v1.0.gguf"),
        (["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"], "mine.gguf"),
        (["../x.gguf"], "mine.gguf"),
        (["sha256-0123"], "mine.gguf"),
    ],
)
def test_a_model_as_one_file_has_the_name_of_its_only_file_if_that_name_is_suitable(
    files: list[str], name: str
) -> None:
    assert whole_name("local/mine@3", files) == name


@given(st.lists(st.sampled_from(["a.gguf", "a/b", "..", "file-1.gguf", "file-2.gguf", "file-3.gguf"]), max_size=6))
def test_the_files_of_a_model_have_unique_names_and_keep_plain_names(own: list[str]) -> None:
    names = public_names(own)
    assert len(set(names)) == len(own)
    assert all(map(is_plain_name, names))
    assert {name for name in own if is_plain_name(name)} <= set(names)
