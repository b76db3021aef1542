"""`organ sbom`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.in_process import OrganCommand


def test_it_is_printed_or_written_to_a_new_file(filled: OrganCommand, tmp_path: Path) -> None:
    printed = filled.done("sbom", "little")
    assert (printed.values["specVersion"], printed.err) == ("1.7", "")
    assert printed.values["metadata"]["component"]["name"] == "little"
    ended = filled.done("sbom", "little", "-o", tmp_path / "little.cdx.json")
    assert (ended.out, ended.err) == ("", f"written to {tmp_path / 'little.cdx.json'}\n")
    assert (tmp_path / "little.cdx.json").read_text("utf-8") == printed.out
    again = filled("sbom", "little", "-o", tmp_path / "little.cdx.json")
    assert again.status == 1
    assert "already exists; --force replaces it" in again.err
    filled.done("sbom", "little", "-o", tmp_path / "little.cdx.json", "--force")
    assert filled("sbom", "nobody").status == 3


def test_without_its_extra_the_error_says_how_to_install_it(
    filled: OrganCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cyclonedx", None)
    for name in [name for name in sys.modules if name.startswith("cyclonedx.") or name == "organs.registry.sbom"]:
        monkeypatch.delitem(sys.modules, name)
    ended = filled("sbom", "little")
    assert (ended.status, ended.out) == (1, "")
    error, hint = ended.err.splitlines()
    assert "a bill of materials needs cyclonedx-python-lib: pip install 'organ-registry[sbom]'" in error
    assert hint.startswith("       try: ")
    assert "[sbom]" in hint
