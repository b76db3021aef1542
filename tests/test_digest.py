"""Tests of digests and prefixes of digests; any other text is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.digest import digest_of, looks_like_prefix, parse_digest, parse_prefix
from organs.registry.errors import BadDigest
from tests.random_files import PATIENT

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_the_digest_of_bytes_is_their_sha_256() -> None:
    assert digest_of(b"") == EMPTY
    assert digest_of(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_every_kind_of_bytes_has_the_same_digest() -> None:
    assert digest_of(b"abc") == digest_of(bytearray(b"abc")) == digest_of(memoryview(b"xabcx")[1:4])


@PATIENT
@given(st.binary())
def test_a_digest_is_parsed_with_and_without_its_algorithm(data: bytes) -> None:
    digest = digest_of(data)
    assert parse_digest(digest) == parse_digest(f"sha256:{digest}") == digest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:",
        "../" + EMPTY[3:],
        EMPTY.upper(),
        EMPTY[:-1],
        EMPTY + "0",
        EMPTY + "\n",
        "\n" + EMPTY,
        " " + EMPTY,
        EMPTY[:-1] + "g",
        EMPTY[:-1] + "\uff10",
        EMPTY[:-1] + "\u0660",
        EMPTY[:-1] + "\0",
        "sha512:" + EMPTY,
        "SHA256:" + EMPTY,
        "sha256:sha256:" + EMPTY,
        "sha256:../../etc/passwd",
    ],
)
def test_any_other_text_is_not_a_digest(text: str) -> None:
    with pytest.raises(BadDigest):
        parse_digest(text)


@pytest.mark.parametrize("length", [8, 9, 63, 64])
def test_eight_or_more_characters_are_a_prefix_in_any_case(length: int) -> None:
    prefix = EMPTY[:length]
    assert parse_prefix(prefix) == parse_prefix(prefix.upper()) == parse_prefix(f"sha256:{prefix}") == prefix
    assert looks_like_prefix(prefix)


@pytest.mark.parametrize(
    "text", ["", EMPTY[:7], EMPTY + "0", "sha256:" + EMPTY[:7], "e3b0c44%", "e3b0c44_", EMPTY[:8] + "\n"]
)
def test_any_other_text_is_not_a_prefix(text: str) -> None:
    assert not looks_like_prefix(text)
    with pytest.raises(BadDigest):
        parse_prefix(text)


@PATIENT
@given(st.text())
def test_any_text_is_a_digest_or_refused(text: str) -> None:
    if looks_like_prefix(text):
        assert text.lower().removeprefix("sha256:").startswith(parse_prefix(text))
    else:
        with pytest.raises(BadDigest):
            parse_digest(text)
