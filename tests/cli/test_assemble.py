"""`organ assemble`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.faults.failing import flip_bit, overwrite
from tests.gguf_files import file_bytes
from tests.small_models import small_model, weight_tensor


def test_the_assembled_file_equals_the_ingested_file_and_is_verified(filled: OrganCommand, out: Path) -> None:
    ended = filled.done("assemble", "little", "-o", out / "copy.gguf")
    assert (out / "copy.gguf").read_bytes() == small_model()
    assert f"sha256:{digest_of(small_model())}" in ended.out
    assert "the original file, byte for byte" in ended.out
    assert ended.err == ""
    values = filled.done("assemble", "little", "-o", out / "a.gguf", "--merge", "--json").values
    item = {"size_bytes": len(small_model()), "sha256": digest_of(small_model()), "proof": "identical"}
    assert values == {"items": [{"file": str(out / "a.gguf"), **item}], "next": None}


def test_the_files_of_shards_are_planned_and_printed(filled: OrganCommand, out: Path) -> None:
    cut = ("assemble", "little", "--shards", "30k", "-o", out / "a.gguf")
    paths = [str(out / f"a-{number:05d}-of-00005.gguf") for number in range(1, 6)]
    planned = filled.done(*cut, "--dry-run").lines
    assert [line.partition(":")[0] for line in planned] == paths
    assert all(line.endswith("would be a new file") for line in planned)
    assert list(out.iterdir()) == []
    assert filled.done(*cut, "-q").lines == paths


@pytest.mark.parametrize(("size", "count"), [("30k", 5), ("30000", 5), ("30 kB", 5), ("1M", 1), ("1G", 1), ("1b", 10)])
def test_the_size_of_shards_accepts_units(size: str, count: int, filled: OrganCommand, out: Path) -> None:
    filled.done("assemble", "little", "-o", out / "a.gguf", "--shards", size)
    assert len(list(out.iterdir())) == count


@pytest.mark.folder
def test_a_corrupt_organ_leaves_the_old_file_and_gives_a_hint(
    organ: OrganCommand, registry: LocalRegistry, out: Path, tmp_path: Path
) -> None:
    data = file_bytes([], [weight_tensor(f"blk.{block}.ffn_up.weight", (256, 200)) for block in range(3)])
    (tmp_path / "large.gguf").write_bytes(data)
    organ.done("ingest", tmp_path / "large.gguf")
    (out / "a.gguf").write_bytes(b"the old file")
    path = max(registry.settings.blobs.glob("??/*"), key=lambda found: found.stat().st_size)
    overwrite(path, flip_bit(path.read_bytes(), 4 * path.stat().st_size))
    ended = organ("assemble", "large", "-o", out / "a.gguf", "--force")
    assert (ended.status, ended.out) == (7, "")
    error, hint = ended.err.splitlines()
    assert error.startswith("organ: corrupt blob ")
    assert hint == "       try: organ verify --read-data --repair, then ingest a file that has the tensor"
    assert organ("assemble", "large", "-o", out / "new" / "b.gguf").status == 7
    assert organ("extract", "large", "-o", out / "organs").status == 7
    assert [path.name for path in out.iterdir()] == ["a.gguf"], "a created folder is removed"
    assert (out / "a.gguf").read_bytes() == b"the old file"
    # And what helps, helps.
    assert organ("verify", "--read-data", "--repair").status == 7
    organ.done("ingest", tmp_path / "large.gguf")
    organ.done("assemble", "large", "-o", out / "a.gguf", "--force")
    assert (out / "a.gguf").read_bytes() == data


def test_an_output_name_that_is_not_utf_8_is_kept_and_printed_byte_for_byte(filled: OrganCommand, out: Path) -> None:
    target = out / "\udcff.gguf"
    ended = filled.done("assemble", "little", "-o", target, "-q")
    assert target.read_bytes() == small_model()
    assert ended.out == f"{target}\n"
    assert "\\udcff.gguf" in filled.done("assemble", "little", "-o", target, "--force").out


def test_missing_folders_of_an_output_are_created_and_named(filled: OrganCommand, out: Path) -> None:
    for given, path, created in (
        ("a/b/c.gguf", "a/b/c.gguf", f"created the folder {out / 'a'}\n"),
        ("d/", "d/little.gguf", ""),  # the output itself
        ("e/f/", "e/f/little.gguf", f"created the folder {out / 'e'}\n"),
    ):
        for option, written in (("--dry-run", False), ("--shards=0", False), ("-q", True), ("--force", True)):
            shutil.rmtree(out / given[0], ignore_errors=True)
            ended = filled("assemble", "little", option, "-o", f"{out}/{given}")
            assert ((out / path).exists(), (out / given[0]).exists()) == (written, written)
        assert ended.err == created
