"""Tests of stored text: shown text is cut and escaped, invalid names are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.organs import begin_ingest
from organs.registry.catalog.tables import ContributorRow, Ingest
from organs.registry.catalog.vocabulary import TEXT_MAX, checked_text, shown_text
from organs.registry.errors import BadInput, BadValue
from organs.registry.local import LocalRegistry
from tests.random_files import PATIENT


def test_a_nul_in_shown_text_becomes_visible() -> None:
    assert shown_text("a\0b") == "a␀b"


def test_text_that_fits_is_shown_unchanged() -> None:
    assert shown_text("Grüße, 世界\n\x1b[31m") == "Grüße, 世界\n\x1b[31m"
    assert shown_text("x" * 10, 10) == "x" * 10


def test_over_long_text_is_cut_with_an_ellipsis() -> None:
    assert shown_text("x" * 11, 10) == "x" * 9 + "…"
    assert len(shown_text("x" * 100_000)) == TEXT_MAX


def test_a_file_name_that_is_not_utf_8_is_shown_with_escapes() -> None:
    assert shown_text(b"\xff.gguf".decode("utf-8", "surrogateescape")) == "\\udcff.gguf"


@PATIENT
@given(st.text(st.characters(codec=None), max_size=50), st.integers(1, 40))
def test_shown_text_can_always_be_stored(text: str, limit: int) -> None:
    shown = shown_text(text, limit)
    assert len(shown) <= limit
    assert "\0" not in shown.encode("utf-8").decode("utf-8")


def test_a_name_that_is_too_long_is_refused_and_not_cut() -> None:
    assert checked_text("x" * 96, "the name", 96) == "x" * 96
    with pytest.raises(BadValue, match="the name has 97 characters; 96 are allowed"):
        checked_text("x" * 97, "the name", 96)


@pytest.mark.parametrize("text", ["a\0b", "\0", "\udcff", "a\ud800"])
def test_a_name_that_a_database_cannot_store_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        checked_text(text, "the name")


def test_bad_value_is_a_kind_of_bad_input() -> None:
    assert issubclass(BadValue, BadInput)


@pytest.mark.parametrize("name", ["a\0b", "x" * 97])
def test_a_refused_name_leaves_no_row(name: str, registry: LocalRegistry) -> None:
    def add_both() -> None:
        with registry.catalog.writing() as session:
            contributor_id(session, "first")
            contributor_id(session, name)

    with pytest.raises(BadValue):
        add_both()
    with registry.catalog.reading() as session:
        assert session.scalars(select(ContributorRow)).all() == []


@pytest.mark.parametrize("label", ["a\0b.gguf", "x" * 100_000, "\udcff.gguf"])
def test_a_hostile_source_is_recorded(label: str, registry: LocalRegistry) -> None:
    with registry.catalog.writing() as session:
        begin_ingest(session, label)
    with registry.catalog.reading() as session:
        assert session.scalars(select(Ingest.source)).one() == shown_text(label)
