"""Tests of source files that change while they are read, are not regular files, or are larger than memory."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from organs.registry.catalog.tables import Ingest, ModelRow
from organs.registry.digest import digest_of
from organs.registry.errors import BadGguf, BadSource
from organs.registry.gguf import TensorSpec, dtype_by_name, encode_header
from organs.registry.local import LocalRegistry
from tests import postgres
from tests.faults.conftest import Organ
from tests.faults.failing import (
    SteppedCatalog,
    act_at_step,
    assert_no_orphans,
    blob_rows,
    files_below,
    ingest_path,
    model_bytes,
    model_names,
    verify_all,
    write_model,
)
from tests.small_models import assemble_model, row_counts

ROOT = Path(__file__).resolve().parents[2]
MEBI, GIBI = 1 << 20, 1 << 30
MEMORY_MAX_KIB = 400 * 1024
"""The limit of resident memory of an ingest of any file; the libraries alone use about 100 MB."""
MEASURED = (
    "import resource, subprocess, sys; status = subprocess.call(sys.argv[1:]);"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(status)"
)
"""Runs a command and prints its peak memory, in a new process, because the peak of a child begins with its parent's."""


@dataclass(slots=True)
class Once:
    """A progress callback that acts on the first call."""

    act: Callable[[], object]
    done: bool = False

    def __call__(self, _size_bytes: int) -> None:
        if not self.done:
            self.done = True
            self.act()


def overwrite_end(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(-4, os.SEEK_END)
        stream.write(b"1234")
    touch(path)  # two writes within one tick of the clock would have the same time


def touch(path: Path) -> None:
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))


def replace_by_the_same_bytes(path: Path) -> None:
    status = path.stat()
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "appended": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "shortened": lambda path: os.truncate(path, path.stat().st_size - 1),
    "emptied": lambda path: os.truncate(path, 0),
    "overwritten": overwrite_end,
    "touched": touch,
    "replaced by the same bytes": replace_by_the_same_bytes,
    "removed": lambda path: path.unlink(),
}


@pytest.mark.folder
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read_is_refused_and_nothing_is_stored(
    change: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "little.gguf")
    once = Once(lambda: CHANGES[change](path))
    with pytest.raises(BadSource, match=r"little\.gguf"):
        ingest_path(registry, path, once)
    assert once.done
    assert model_names(registry) == []
    assert_no_orphans(registry)
    with registry.catalog.reading() as session:
        (ingest,) = session.scalars(select(Ingest))
        assert (ingest.state, ingest.model_id) == ("failed", None)
    path.write_bytes(model_bytes())
    assert ingest_path(registry, path).created
    assert verify_all(registry).faults == []


def test_a_change_with_the_old_time_is_refused_or_ingested_completely(registry: LocalRegistry, tmp_path: Path) -> None:
    outcomes = set()
    for step in range(1, 11):
        path = write_model(tmp_path / "little.gguf", seed=step)
        status = path.stat()

        def rewrite(path: Path = path, status: os.stat_result = status, step: int = step) -> None:
            path.write_bytes(model_bytes(seed=100 + step))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

        watched = LocalRegistry(
            registry.settings, SteppedCatalog(registry.catalog, act_at_step(step, rewrite)), registry.blobs
        )
        known = len(model_names(registry))
        try:
            report = ingest_path(watched, path)
        except (BadSource, BadGguf):
            assert len(model_names(registry)) == known
            outcomes.add("refused")
        else:
            (back,) = assemble_model(registry, report.model, tmp_path / "back")
            assert digest_of(back.read_bytes()) == report.digest
            outcomes.add("taken")
        assert verify_all(registry).faults == []
    assert "taken" in outcomes, "before the first and after the last byte is read, nothing is wrong"


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)


def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


IRREGULAR: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a socket": make_socket,
    "a folder": Path.mkdir,
    "a link to zeros": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to a pipe": link_to_a_pipe,
}


@pytest.mark.parametrize("kind", IRREGULAR)
def test_a_path_that_is_not_a_file_is_refused_before_it_is_opened(
    kind: str, registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, organ: Organ
) -> None:
    monkeypatch.chdir(tmp_path)  # the address of a socket must be short
    path = tmp_path / "bad.gguf"
    IRREGULAR[kind](path)
    opened: list[str] = []
    real = os.open

    def recorded(target: Any, *arguments: Any, **options: Any) -> int:
        opened.append(str(target))
        return real(target, *arguments, **options)

    monkeypatch.setattr(os, "open", recorded)
    with pytest.raises(BadSource, match=r"bad\.gguf"):
        ingest_path(registry, path)
    result = organ("ingest", path, write_model(tmp_path / "good.gguf"))
    assert result.status == 1
    assert "bad.gguf" in result.err
    assert "Traceback" not in result.err
    assert str(path) not in opened
    if kind != "a folder":  # a folder without GGUF files is an error of the whole command
        assert model_names(registry) == ["good"]


def test_a_device_is_refused_before_it_is_opened(registry: LocalRegistry, organ: Organ) -> None:
    for device in ("/dev/zero", "/dev/null", "/dev/tty"):
        with pytest.raises(BadSource, match="not a regular file"):
            ingest_path(registry, Path(device))
        assert organ("ingest", device).status == 1
    assert row_counts(registry)["ingests"] == 0


def test_a_link_to_a_file_is_followed(registry: LocalRegistry, tmp_path: Path) -> None:
    write_model(tmp_path / "blob-of-a-cache")
    (tmp_path / "little.gguf").symlink_to("blob-of-a-cache")
    assert ingest_path(registry, tmp_path / "little.gguf").created


@pytest.mark.parametrize("size_bytes", [256 * MEBI, pytest.param(16 * GIBI, marks=pytest.mark.slow)])
def test_a_sparse_file_takes_bounded_memory_and_is_stored_once(size_bytes: int, tmp_path: Path) -> None:
    path, home = tmp_path / "zeros.gguf", tmp_path / "home"
    tensors = [zeros(f"blk.{index}.ffn_up.weight", size_bytes // 4) for index in range(4)]
    with path.open("wb") as stream:
        header = stream.write(encode_header([], tensors))
        stream.truncate(header + 4 * (size_bytes // 4))
    assert path.stat().st_blocks * 512 < MEBI
    command = [sys.executable, "-m", "organs.cli", "--home", str(home), "ingest", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command],
        cwd=ROOT,
        env=os.environ | postgres.environment(home),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer, peak_kib = done.stdout.splitlines()
    report = json.loads(answer)
    assert int(peak_kib) < MEMORY_MAX_KIB
    assert report["new_blobs"] == 2, "one for the zeros, one for the header"
    assert report["known_bytes"] == size_bytes // 4 * 3
    assert sum(file.stat().st_size for file in (home / "blobs").rglob("*")) < size_bytes / 500


def zeros(name: str, size_bytes: int) -> TensorSpec:
    return TensorSpec(name, (4096, size_bytes // 8192), dtype_by_name("F16"))


REFUSED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _data: b"",
    "another kind": lambda data: b"PK\3\4" + data[4:],
    "one byte short": lambda data: data[:-1],
    "trailing bytes": lambda data: data + b"PK\5\6" + bytes(100),
    "half": lambda data: data[: len(data) // 2],
    "header only": lambda data: data[:40],
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_file_leaves_no_row_and_no_file(
    why: str, registry: LocalRegistry, tmp_path: Path, organ: Organ
) -> None:
    path = tmp_path / f"{why}.gguf"
    path.write_bytes(REFUSED[why](model_bytes()))
    with pytest.raises(BadGguf):
        ingest_path(registry, path)
    result = organ("ingest", path)
    assert result.status == 1
    assert path.name in result.err
    assert sum(row_counts(registry).values()) == 0
    assert files_below(registry) == []


@pytest.mark.folder
def test_a_refused_file_does_not_stop_the_others(registry: LocalRegistry, tmp_path: Path, organ: Organ) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    write_model(tmp_path / "b.gguf", seed=1)
    (tmp_path / "c.gguf").write_bytes(model_bytes()[:-1])
    write_model(tmp_path / "d.gguf", seed=2)
    result = organ("ingest", "--json", tmp_path)
    assert result.status == 1
    answers = [json.loads(line) for line in result.out.splitlines()]
    assert [answer["error"] is None for answer in answers] == [False, True, False, True]
    with registry.catalog.reading() as session:
        assert sorted(session.scalars(select(ModelRow.name))) == ["b", "d"]
    assert len(blob_rows(registry)) > 5
    assert_no_orphans(registry)
