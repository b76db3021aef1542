"""What a user can do about an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.cli.hints import hint_for
from organs.registry.errors import (
    BadName,
    BadQuery,
    BadSource,
    CatalogError,
    CorruptBlob,
    DiskFull,
    MissingBlob,
    NoRegistry,
    NotFound,
    SchemaTooNew,
    StoreUnwritable,
    TooLittleTime,
    Unreachable,
)
from organs.registry.input_files import FileSource


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (SchemaTooNew("x"), "pip install --upgrade"),
        (CorruptBlob("x", "y"), "organ verify --read-data --repair"),
        (MissingBlob("x"), "organ verify --repair"),
        (DiskFull("x"), "free some space"),
        (StoreUnwritable("x"), "permissions"),
        (NotFound("x"), "organ models"),
        (CatalogError("x"), "ORGAN_DATABASE_URL"),
        (Unreachable("x"), "that the server runs"),
        (NoRegistry("x"), "the address is that of an organ registry"),
        (BadQuery("after", "this is not a cursor"), "leave out --after"),
        (TooLittleTime("x", 12), "--minutes 12, or --type"),
        (BadName("no"), ""),
    ],
)
def test_an_error_names_the_command_that_helps(error: Exception, hint: str) -> None:
    assert hint in (hint_for(error) or "")


def test_a_missing_file_has_a_hint_about_its_path(tmp_path: Path) -> None:
    with pytest.raises(BadSource) as raised, FileSource(tmp_path / "nothing.yaml"):
        pass
    assert "check the path" in (hint_for(raised.value) or "")
