"""The meaning of `Range` and its conditions; no header causes much work or a wrong answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.web.file_responses import (
    HEADER_MAX_LENGTH,
    has_strong,
    has_weak,
    requested_span,
    still_holds,
)

SIZE = 1000
HUGE = str(2**200)


SPANS: dict[str | None, range | None] = {
    "bytes=0-0": range(1),
    "bytes=0-": range(SIZE),
    "bytes=10-19": range(10, 20),
    "bytes=999-": range(999, SIZE),
    "bytes=-5": range(995, SIZE),
    "bytes=-5000": range(SIZE),
    "bytes=990-2000": range(990, SIZE),
    f"bytes=0-{HUGE}": range(SIZE),
    f"bytes=-{HUGE}": range(SIZE),
    "Bytes=1-2": range(1, 3),
    " bytes=1-2\t": range(1, 3),
    **dict.fromkeys(("bytes=1000-", "bytes=1000-1001", f"bytes={HUGE}-", "bytes=-0"), range(0)),
    **dict.fromkeys((None, "", "bytes", "bytes=", "bytes=-", "bytes=5-1", "bytes=0-1,5-6", "bytes=a-b", "bytes=1 -2")),
    **dict.fromkeys(("bytes=+1-2", "bytes=0x1-2", "bytes=١-٢", "items=0-1", "bytes=0-0," * 20_000)),
    f"bytes={'0' * HEADER_MAX_LENGTH}-1": None,
}
"""Headers, and what they ask of a file of SIZE bytes; None is the whole file, and nothing is refused."""


@pytest.mark.parametrize("header", SPANS, ids=lambda header: str(header)[:30])
def test_one_range_of_bytes_is_a_span_and_anything_else_the_whole_file(header: str | None) -> None:
    assert requested_span(header, SIZE) == SPANS[header]


@pytest.mark.parametrize("header", ["bytes=0-", "bytes=0-0", "bytes=-1"])
def test_every_range_of_an_empty_file_is_refused(header: str) -> None:
    assert requested_span(header, 0) == range(0)


@given(st.text("bytes=-,0123456789 \t", max_size=40), st.integers(0, 100))
def test_a_span_always_lies_within_the_file(header: str, size: int) -> None:
    span = requested_span(f"bytes={header}", size)
    assert span is None or 0 <= span.start <= span.stop <= size


@pytest.mark.parametrize(
    ("if_range", "holds"),
    [(None, True), ('"tag"', True), ('W/"tag"', False), ('"other"', False), ("Sat, 21 Nov 2026 00:00:00 GMT", False)],
)
def test_if_range_matches_only_a_strong_tag(if_range: str | None, holds: bool) -> None:
    assert still_holds(if_range, "tag") is holds


@pytest.mark.parametrize(
    ("header", "strong", "weak"),
    [
        ("*", True, True),
        ('"tag"', True, True),
        ('"a", "tag"', True, True),
        ('W/"tag"', False, True),
        ('"a", W/"b"', False, False),
        ("tag", False, False),
        ("", False, False),
        ('"' * 8000, False, False),
    ],
)
def test_tags_are_compared_strongly_or_weakly(header: str, strong: bool, weak: bool) -> None:
    assert (has_strong(header, "tag"), has_weak(header, "tag")) == (strong, weak)
