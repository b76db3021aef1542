"""`organ verify`, `organ repack` and `organ sweep`."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import update

from organs.registry.amounts import size_text
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.catalog.tables import Base
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.cli.in_process import OrganCommand
from tests.faults.failing import flip_bit, overwrite
from tests.gguf_files import file_bytes
from tests.related_models import family_files
from tests.small_models import row_counts, weight_tensor

ORDER = ["tuned", "coarse", "base"]
"""The base comes last: a repack finds better parents."""


@pytest.fixture
def large(organ: OrganCommand, tmp_path: Path) -> OrganCommand:
    """The command with a model of three organs in files of their own."""
    tensors = [weight_tensor(f"blk.{block}.ffn_up.weight", (256, 200)) for block in range(3)]
    (tmp_path / "large.gguf").write_bytes(file_bytes([], tensors))
    organ.done("ingest", tmp_path / "large.gguf")
    return organ


def blob_files(registry: LocalRegistry) -> list[Path]:
    return sorted(registry.settings.blobs.glob("??/*"))


def test_a_sound_registry_is_sound(large: OrganCommand) -> None:
    values = large.done("verify", "--read-data", "--json").values
    assert (values["blobs"], values["faults"], values["orphans"]) == (4, [], 0)
    stored = f"1 model, {size_text(values['stored_bytes'])} stored, {size_text(values['size_bytes'])} plain"
    assert large.done("verify").lines == [stored, "4 blobs checked: all are sound"]
    assert large.done("verify", "--read-data").lines[-1].startswith("4 blobs checked, 307.")


def test_a_registry_without_models_is_no_sound_copy(tmp_path: Path) -> None:
    ended = OrganCommand(tmp_path / "empty")("verify", "--read-data")
    assert (ended.status, ended.out) == (3, "")
    assert f"no model is registered in {tmp_path / 'empty'}" in ended.err


@pytest.mark.folder
def test_reading_the_data_finds_a_corrupt_organ_and_the_models_that_need_it(
    large: OrganCommand, registry: LocalRegistry
) -> None:
    corrupt, *_ = blob_files(registry)
    overwrite(corrupt, flip_bit(corrupt.read_bytes(), 8 * (corrupt.stat().st_size - 200)))
    (corrupt.parent / f"{corrupt.name.partition('.')[0]}.{'0' * 16}").write_bytes(b"left by a crash")
    unread = large.done("verify")
    assert unread.err == "1 file belongs to no blob; organ sweep removes them when they are a day old\n"
    ends = [large("verify", f"--read-data={day}/2", "--json") for day in (1, 2)]
    assert sorted(ended.status for ended in ends) == [0, 7], "a share reads only its part"
    ended = large("verify", "--read-data")
    assert ended.status == 7
    digest, needed_by, _stored, summary = ended.lines
    assert digest.startswith(f"corrupt blob {corrupt.name.partition('.')[0]} chunk 0: ")
    assert needed_by.startswith("  needed by local/large@1: blk.")
    assert summary.endswith(": 1 faulty")


@pytest.mark.folder
def test_a_sweep_previews_then_marks_then_removes(large: OrganCommand, registry: LocalRegistry) -> None:
    needed = large.done("sweep", "-y", "--older-than", "0s").lines
    assert needed == [
        "0 marked blobs removed (0 bytes)",
        "0 unneeded blobs marked (0 bytes)",
        "0 stray files removed (0 bytes)",
    ]
    large.done("admin", "remove", "large", "--reason", "a test", "-y")
    assert large.done("sweep").lines[2].startswith("4 unneeded blobs are too recent to be marked (")
    preview = large.done("sweep", "--older-than", "0s")
    assert preview.lines[1].startswith("4 unneeded blobs would be marked (")
    assert preview.err == "nothing was changed; organ sweep -y does this\n"
    assert row_counts(registry)["blobs"] == 4
    first = large.done("sweep", "-y", "--older-than", "0s", "--json").values
    assert (first["doomed"], first["removed"], len(blob_files(registry))) == (4, 0, 3)
    second = large.done("sweep", "-y", "--older-than", "0s", "--json").values
    assert (second["doomed"], second["removed"], blob_files(registry)) == (0, 4, [])


def test_verify_finds_a_wrong_running_total_and_repairs_it(large: OrganCommand) -> None:
    totals = Base.metadata.tables["totals"]
    with LocalRegistry.open(large.home) as registry, registry.catalog.writing() as session:
        session.execute(update(totals).where(totals.c.name == "organs").values(value=7))
    found = large("verify")
    assert found.status == 1
    assert "the running total of organs is 7, but the count is 3" in found.out
    assert large("verify", "--repair").status == 1
    assert large("verify").status == 0


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
    assert backwards.done("repack", "base").lines[0].startswith("1 model examined: ")
    assert backwards.done("repack", "--all").lines[1].startswith("0 tensors stored again")
    backwards.done("verify", "--read-data")


def test_a_removed_parent_stays_until_its_dependants_are_stored_alone(backwards: OrganCommand) -> None:
    backwards.done("repack")
    size = backwards.done("storage", "--json").values["needed_bytes"]
    removed = backwards.done("admin", "remove", "local/base", "--reason", "a test", "--yes")
    line = next(line for line in removed.lines if "stored by their difference" in line)
    assert "because tensors of other models are stored by their difference to them: local/" in line
    command = next(line for line in removed.lines if "repack --alone" in line).split("repack --alone ")[1].split()
    assert backwards.done("storage", "--json").values["kept_bytes"] > 0
    names = [word for word in command if word.startswith("local/")]
    with LocalRegistry.open(backwards.home) as registry, registry.catalog.writing() as session:
        hide_model(session, model_by_name(session, parse_model_name(names[0])), "quarantined", "a test", "local")
    assert backwards.done("repack", "--alone", *names).lines[0].endswith(" now")
    after = backwards.done("storage", "--json").values
    assert after["kept_bytes"] == 0
    assert after["needed_bytes"] > size
    backwards.done("verify", "--read-data")
