"""`organ repack`."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.cli.in_process import OrganCommand
from tests.related_models import family_files

ORDER = ["tuned", "coarse", "base"]
"""The base comes last: a repack finds better parents."""


@pytest.fixture
def backwards(organ: OrganCommand, tmp_path: Path) -> OrganCommand:
    """Return the command of a registry with a small family."""
    sources = family_files(ORDER)
    for name in ORDER:
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(sources[name])
        organ.done("ingest", str(path))
    return organ


def test_a_dry_run_changes_nothing_and_a_run_says_what_it_saved(backwards: OrganCommand) -> None:
    planned = backwards.done("repack", "--dry-run", "--json").values
    assert planned["dry_run"] is True
    assert planned["repacked"] > 0
    done = backwards.done("repack", "--json").values
    assert done["repacked"] == planned["repacked"]
    assert done["after_bytes"] < done["before_bytes"]
    assert backwards.done("repack").lines[0].startswith("Nothing to do")
    assert backwards.done("repack", "--all").lines[1].startswith("0 organs stored again")
    assert backwards("repack", "--all", "base").status == 2
    backwards.done("verify", "--read-data")


def test_a_repack_of_one_model_examines_its_places(backwards: OrganCommand) -> None:
    assert backwards.done("repack", "base").lines[0].startswith("1 model examined: ")


def test_a_model_is_exported_whether_its_organs_have_parents_or_not(backwards: OrganCommand, tmp_path: Path) -> None:
    backwards.done("repack")
    assert backwards.done("storage", "--json").values["parents_bytes"] > 0
    for name in ORDER:
        backwards.done("extract", f"local/{name}", "-o", tmp_path / name)
        backwards.done("assemble", tmp_path / name, "-o", tmp_path / "back.gguf")
        assert (tmp_path / "back.gguf").read_bytes() == (tmp_path / f"{name}.gguf").read_bytes()
        (tmp_path / "back.gguf").unlink()


def test_a_model_that_does_not_exist_is_one_sentence(backwards: OrganCommand) -> None:
    ended = backwards("repack", "nothing-of-this-name")
    assert ended.status == 3
    assert "nothing-of-this-name" in ended.err


def test_with_references_off_everything_is_stored_alone(
    backwards: OrganCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORGAN_REFERENCES", "off")
    assert "stored alone" in backwards.done("repack").lines[0]
    assert backwards.done("storage", "--json").values["parents_bytes"] == 0
    assert backwards("repack", "--dry-run").status == 2


def test_a_removed_parent_stays_until_its_dependants_are_stored_alone(backwards: OrganCommand) -> None:
    backwards.done("repack")
    size = backwards.done("storage", "--json").values["needed_bytes"]
    removed = backwards.done("admin", "remove", "local/base", "--reason", "a test", "--yes")
    line = next(line for line in removed.lines if "stored by their difference" in line)
    assert "because organs of other models are stored by their difference to them: local/" in line
    command = next(line for line in removed.lines if "repack --alone" in line).split("repack --alone ")[1].split()
    assert backwards.done("storage", "--json").values["kept_bytes"] > 0
    names = [word for word in command if word.startswith("local/")]
    with LocalRegistry.open(backwards.home) as registry, registry.catalog.writing() as session:
        hide_model(session, model_by_name(session, parse_model_name(names[0])), "quarantined", "a test", "local")
    assert backwards.done("repack", "--alone", *names).lines[0].endswith(" now")
    after = backwards.done("storage", "--json").values
    assert after["kept_bytes"] == 0
    assert after["needed_bytes"] > size
    assert backwards("repack", "--alone", "--dry-run").status == 2
    backwards.done("verify", "--read-data")
