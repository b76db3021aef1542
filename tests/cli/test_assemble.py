"""`organ assemble`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.gguf_files import file_bytes
from tests.small_models import small_model, weight_tensor


def test_the_assembled_file_equals_the_ingested_file_and_is_verified(filled: OrganCommand, out: Path) -> None:
    ended = filled.done("assemble", "little", "-o", out / "copy.gguf")
    assert (out / "copy.gguf").read_bytes() == small_model()
    assert f"sha256:{digest_of(small_model())}" in ended.out
    assert "the original file, byte for byte" in ended.out
    assert ended.err == ""


def test_a_dry_run_prints_sizes_and_writes_nothing(filled: OrganCommand, out: Path) -> None:
    ended = filled.done("assemble", "little", "-o", out / "a.bin", "--dry-run")
    assert ended.out.startswith(f"{out / 'a.bin'}: ")
    assert ended.out.endswith("would be the original file, byte for byte\n")
    ended = filled.done("assemble", "little", "-o", out / "a.gguf", "--dry-run", "--shards", "30k")
    assert [line.partition(":")[0] for line in ended.lines] == [
        str(out / f"a-{number:05d}-of-00005.gguf") for number in range(1, 6)
    ]
    assert all(line.endswith("would be a new file") for line in ended.lines)
    assert list(out.iterdir()) == []


def test_json_and_quiet_print_the_files(filled: OrganCommand, out: Path) -> None:
    values = filled.done("assemble", "little", "-o", out / "a.gguf", "--json").values
    assert values == {
        "items": [
            {
                "file": str(out / "a.gguf"),
                "size_bytes": len(small_model()),
                "sha256": digest_of(small_model()),
                "proof": "identical",
            }
        ],
        "next": None,
    }
    ended = filled.done("assemble", "little", "-o", out / "b.gguf", "--shards", "30k", "-q")
    assert ended.lines == [str(out / f"b-{number:05d}-of-00005.gguf") for number in range(1, 6)]
    values = filled.done("assemble", "little", "-o", out / "c.gguf", "--merge", "--json").values
    (item,) = values["items"]
    assert (item["proof"], item["sha256"]) == ("identical", digest_of((out / "c.gguf").read_bytes()))


@pytest.mark.parametrize(("size", "count"), [("30k", 5), ("30000", 5), ("30 kB", 5), ("1M", 1), ("1G", 1), ("1b", 10)])
def test_the_size_of_shards_accepts_units(size: str, count: int, filled: OrganCommand, out: Path) -> None:
    filled.done("assemble", "little", "-o", out / "a.gguf", "--shards", size)
    assert len(list(out.iterdir())) == count


def corrupt_one(registry: LocalRegistry) -> None:
    path = max(registry.settings.blobs.glob("??/*"), key=lambda found: found.stat().st_size)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.folder
def test_a_corrupt_organ_leaves_the_old_file_and_gives_a_hint(
    organ: OrganCommand, registry: LocalRegistry, out: Path, tmp_path: Path
) -> None:
    data = file_bytes([], [weight_tensor(f"blk.{block}.ffn_up.weight", (256, 200)) for block in range(3)])
    (tmp_path / "large.gguf").write_bytes(data)
    organ.done("ingest", tmp_path / "large.gguf")
    (out / "a.gguf").write_bytes(b"the old file")
    corrupt_one(registry)
    ended = organ("assemble", "large", "-o", out / "a.gguf", "--force")
    assert (ended.status, ended.out) == (7, "")
    error, hint = ended.err.splitlines()
    assert error.startswith("organ: corrupt blob ")
    assert hint == "       try: organ verify --read-data --repair, then ingest a file that has the organ"
    assert [path.name for path in out.iterdir()] == ["a.gguf"]
    assert (out / "a.gguf").read_bytes() == b"the old file"
    # And what helps, helps.
    assert organ("verify", "--read-data", "--repair").status == 7
    organ.done("ingest", tmp_path / "large.gguf")
    organ.done("verify", "--read-data")
    organ.done("assemble", "large", "-o", out / "a.gguf", "--force")
    assert (out / "a.gguf").read_bytes() == data


def test_an_output_name_that_is_not_utf_8_is_kept_and_printed_byte_for_byte(filled: OrganCommand, out: Path) -> None:
    target = out / "\udcff.gguf"
    ended = filled.done("assemble", "little", "-o", target, "-q")
    assert target.read_bytes() == small_model()
    assert ended.out == f"{target}\n"
    assert "\\udcff.gguf" in filled.done("assemble", "little", "-o", target, "--force").out


def test_the_folder_for_several_files_is_created(filled: OrganCommand, out: Path) -> None:
    cut = ("assemble", "little", "--shards", "30k", "-o")
    assert "would be" in filled.done(*cut, out / "new", "--dry-run").out
    assert list(out.iterdir()) == []
    shards = filled.done(*cut, out / "new", "-q").lines
    assert sorted(map(str, (out / "new").iterdir())) == shards
    (out / "file").write_bytes(b"mine")
    ended = filled(*cut, out / "file")
    assert (ended.status, ended.out) == (1, "")
    assert "no such folder" in ended.err


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


@pytest.mark.folder
def test_a_created_folder_is_removed_after_a_failure(
    organ: OrganCommand, registry: LocalRegistry, out: Path, tmp_path: Path
) -> None:
    data = file_bytes([], [weight_tensor(f"blk.{block}.ffn_up.weight", (256, 200)) for block in range(3)])
    (tmp_path / "large.gguf").write_bytes(data)
    organ.done("ingest", tmp_path / "large.gguf")
    for path in registry.settings.blobs.glob("??/*"):
        path.unlink()
    ended = organ("assemble", "large", "--shards", "200k", "-o", out / "new")
    assert (ended.status, ended.out) == (7, "")
    assert list(out.iterdir()) == []
