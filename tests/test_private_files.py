"""Tests that other users of the machine cannot read a registry, with any umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.ingest.contributions.uploads import (
    Chunk,
    open_upload,
    receive,
)
from organs.registry.backup import back_up
from organs.registry.catalog.register.accounts import add_contributor
from organs.registry.digest import digest_of
from organs.registry.entities.submission import UploadRequest
from organs.registry.local import LocalRegistry
from tests import postgres
from tests.faults.failing import ingest_path, write_model
from tests.small_models import assemble_model


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Return the paths in `folder`, with itself, that other users may read, write or enter, with their modes."""
    paths = [folder, *folder.rglob("*")]
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in paths}
    return [f"{path.relative_to(folder)} {mode:04o}" for path, mode in modes.items() if mode & 0o077]


@pytest.mark.folder
def test_only_the_owner_can_access_a_new_registry(tmp_path: Path) -> None:
    model, home = write_model(tmp_path / "little.gguf"), tmp_path / "home"
    with LocalRegistry.open(home) as registry:
        ingest_path(registry, model)
        with registry.catalog.writing() as session:
            contributor = add_contributor(session, "ada", "local").id
        upload = open_upload(
            registry, contributor, UploadRequest(kind="piece", size_bytes=10, digest=digest_of(b"0123456789"))
        )
        receive(registry, contributor, upload.public_id, Chunk(0, 10, 10), [b"0123456789"])
        with registry.blobs.backend.sweeping():
            database = [] if postgres.is_used() else ["registry.sqlite3-wal"]
            assert {path.name for path in home.iterdir()} >= {*database, "blobs", "uploads"}
            assert open_to_others(home) == []
        (written,) = assemble_model(registry, "little", tmp_path / "out")
    assert stat.S_IMODE(written.stat().st_mode) == 0o644, "what a person asks for is as any file of theirs"


@pytest.mark.sqlite
def test_only_the_owner_can_access_a_backup(filled: LocalRegistry, tmp_path: Path) -> None:
    back_up(filled.catalog, filled.blobs, filled.settings, tmp_path / "copy")
    assert [line for line in open_to_others(tmp_path / "copy") if not line.startswith("backup.json")] == []


@pytest.mark.folder
def test_files_are_private_from_their_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real_open, real_mkdir = os.open, os.mkdir

    def watched_open(path: str | Path, flags: int, mode: int = 0o777, **more: int) -> int:
        if flags & os.O_CREAT and not os.path.exists(path) and mode & 0o077:
            made.append(f"{path} {mode:04o}")
        return real_open(path, flags, mode, **more)

    def watched_mkdir(path: str | Path, mode: int = 0o777, **more: int) -> None:
        if mode & 0o077:
            made.append(f"{path} {mode:04o}")
        real_mkdir(path, mode, **more)

    monkeypatch.setattr(os, "open", watched_open)
    monkeypatch.setattr(os, "mkdir", watched_mkdir)
    model = write_model(tmp_path / "little.gguf")
    with LocalRegistry.open(tmp_path / "home") as registry:
        ingest_path(registry, model)
    assert [path for path in made if str(tmp_path / "home") in path] == []


@pytest.mark.sqlite
def test_an_existing_registry_keeps_its_file_modes(tmp_path: Path) -> None:
    with LocalRegistry.open(tmp_path / "home"):
        pass
    (tmp_path / "home").chmod(0o755)
    (tmp_path / "home" / "registry.sqlite3").chmod(0o644)
    with LocalRegistry.open(tmp_path / "home"):
        assert open_to_others(tmp_path / "home")[:1] == [". 0755"]
