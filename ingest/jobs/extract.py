"""The kind `extract`: a registered model as an organ directory, packed as one uncompressed .tar to be downloaded."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from organs.ingest.directory.contents import registered_contents
from organs.ingest.directory.extract import extract
from organs.ingest.jobs.kind import WORK, JobKind, Tell, Values
from organs.ingest.jobs.measure import checked_model, settled_model
from organs.ingest.jobs.packs import new_pack, remove_old_packs
from organs.registry.digest import Digest
from organs.registry.names import parse_model_name
from organs.registry.registry import Registry
from organs.registry.store.placing import UnplacedFile, placed

READ_BYTES = 1024 * 1024
FILE_MODE, FOLDER_MODE = 0o644, 0o755

Advance = Callable[[int], None]
"""Told how many bytes have been dealt with since it was told last."""


def _run(registry: Registry, arguments: Values, tell: Tell, _contributor: str) -> Values:
    """Both halves of the work take each byte once: out of the store, and into the pack."""
    tell(0.0, "reading the headers")
    name = parse_model_name(arguments["model"])
    contents = registered_contents(registry, name)
    total, done = 2 * sum(content.header.file_size_bytes for content in contents), 0

    def advance(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        tell(min(done / max(total, 1), 1.0), "taking it apart" if 2 * done <= total else "packing")

    remove_old_packs(registry.settings.home)
    pack = new_pack(registry.settings.home)
    try:
        directory = pack / f"{name.name}.organs"
        extract(contents, directory, progress=advance)
        path = pack / f"{name.name}.tar"
        sha256, size_bytes = write_tar(directory, path, advance)
        shutil.rmtree(directory)
    except BaseException:
        shutil.rmtree(pack, ignore_errors=True)
        raise
    remove_old_packs(registry.settings.home)
    return {
        "model": arguments["model"],
        "pack": pack.name,
        "file": path.name,
        "size_bytes": size_bytes,
        "sha256": sha256,
    }


def write_tar(directory: Path, path: Path, advance: Advance) -> tuple[Digest, int]:
    """`directory` as the uncompressed tar `path`, with a fixed owner and time; its SHA-256 and size in bytes.

    Raises DiskFull, StoreUnwritable.
    """
    members = [(file, _head(directory, file)) for file in sorted(directory.rglob("*"))]
    content = sum(len(head) + _padded(file.stat().st_size if file.is_file() else 0) for file, head in members)
    size = -(-(content + 2 * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
    digest = hashlib.sha256()
    with placed(path, size) as target:
        offset = 0
        for piece in _pieces(members, size - content, advance):
            digest.update(piece)
            offset = _written(target, piece, offset)
    return Digest(digest.hexdigest()), size


def _written(target: UnplacedFile, piece: bytes, offset: int) -> int:
    target.write_at(piece, offset)
    return offset + len(piece)


def _pieces(members: list[tuple[Path, bytes]], end_bytes: int, advance: Advance) -> Iterator[bytes]:
    for file, head in members:
        yield head
        if file.is_file():
            size = 0
            with file.open("rb") as source:
                while piece := source.read(READ_BYTES):
                    size += len(piece)
                    yield piece
                    advance(len(piece))
            yield bytes(_padded(size) - size)
            file.unlink()  # so that the disk never has to hold two of it
    yield bytes(end_bytes)


def _head(directory: Path, file: Path) -> bytes:
    inside = f"{directory.name}/{file.relative_to(directory)}"
    info = tarfile.TarInfo(inside)
    info.mode = FILE_MODE
    if file.is_dir():
        info.type, info.mode = tarfile.DIRTYPE, FOLDER_MODE
    else:
        info.size = file.stat().st_size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8")


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


EXTRACT = JobKind("extract", WORK, checked_model, _run, settled_model)
"""Takes `model`; gives `file` in `pack`, which can be downloaded for a day, its `size_bytes` and `sha256`."""
