"""Models written into the folders of other tools, and removed again.

Each file that this program writes there is recorded before it is written. So an uninstallation removes its own files
and no other, also after a kill, and a file that another program wrote or changed stays as it is. A shared file, named
by its bytes, stays while the tool still needs it.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import file_digest
from pathlib import Path

import msgspec
from sqlalchemy.orm import Session

from organs.ingest.sources import GGUF_SUFFIX
from organs.ingest.tools.layouts import LAYOUTS, ToolFile, ToolLayout, check_whole, folder_layout, is_needed
from organs.ingest.tools.places import Machine
from organs.registry.assembly import place_file
from organs.registry.catalog.queries.model_names import ids_of_name, model_by_text
from organs.registry.catalog.queries.outside import outside_files, outside_files_at, place_of_path
from organs.registry.catalog.queries.relatives import models_by_id
from organs.registry.catalog.register.outside import forget_file, move_to_batch, record_installed
from organs.registry.catalog.tables import OutsideFile
from organs.registry.catalog.vocabulary import CACHE, INSTALLED, LINK, MODEL_FILE, RECLAIMED, checked_text
from organs.registry.digest import digest_of
from organs.registry.errors import BadName, Busy, Conflict, NotFound
from organs.registry.input_files import stamp_text
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.progress import Progress, no_progress
from organs.registry.store.files import (
    PUBLIC_FILE,
    Files,
    check_room,
    folder_for_placing,
    lock_file,
    placed,
    placed_clone,
    placing_error,
    remove_temporaries,
    temporary_beside,
    translating,
)

WRITES_MAX = 3
"""How often the files of an installation are written, if another program removes them meanwhile."""
LOCK = "outside.lock"
WAIT_SECONDS, PAUSE_SECONDS = 600.0, 0.1
"""How long a command waits for another one that changes files outside of the registry, and between two looks."""
PATH_MAX = 4096
TOOLS_OF = {"hf": ("hf-cache",), "llama-cpp": ("llama-cpp", "hf-cache")}
"""The options of tools that a word of LAYOUTS means, where it is another one."""
SHARING = ("ollama", "hf-cache", "llama-cpp")
"""Tools with files that are named by their bytes."""


NEEDED = "stays: it is needed for another model"


class Installation(msgspec.Struct, frozen=True):
    """A model in the folder of a tool."""

    model: str
    tool: str
    """The option of the tool; empty for a plain folder."""
    name: str
    """The name of the model in the tool."""
    files: tuple[str, ...]
    """The paths of the files of models, links and manifests, in the order of writing."""
    size_bytes: int
    """The size of all files."""
    written_bytes: int
    """The size of the files that were not there."""
    replaced: str | None
    """The other model, or version, that was installed under this name and is removed from the tool."""
    command: str
    """The line that runs the model."""
    notes: tuple[str, ...] = ()
    """What is unusual about the model, in sentences: also what keeps llama.cpp from loading it."""


class Uninstallation(msgspec.Struct, frozen=True):
    """What an uninstallation did."""

    tool: str
    folder: str
    name: str
    removed: tuple[str, ...]
    freed_bytes: int
    kept: tuple[str, ...]
    """Why files are still there, in sentences."""


@contextmanager
def outside_lock(registry: LocalRegistry, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Return a context manager in which no other process changes files outside of this registry.

    Raises Busy if another process does so for longer than `wait_seconds`.
    """
    path = Path(registry.settings.home) / LOCK
    until = time.monotonic() + wait_seconds
    with translating(path):
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                lock_file(descriptor, path, Busy("another command installs, removes or restores files: try it later"))
            except Busy:
                if time.monotonic() > until:
                    raise
                time.sleep(PAUSE_SECONDS)
            else:
                break
        yield
    finally:
        os.close(descriptor)


def install(
    registry: LocalRegistry,
    model: str,
    target: str | Path,
    machine: Machine,
    called: str | None = None,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Installation:
    """Write a model into the folder of a tool, a word of LAYOUTS, or into a plain folder; return what was written.

    `called` is the name of the model in the tool. `progress` gets sizes in bytes. Raises NoInstallation and NoImage if
    the tool cannot run the model, Conflict if another file is in the way, DiskFull, StoreUnwritable, StoreError. After
    an error or a kill, the same call continues.
    """
    with outside_lock(registry):
        with registry.catalog.reading() as session:
            row = model_by_text(session, model)
            check_whole(row)
            layout = (
                folder_layout(session, row, _plain_folder(target), called)
                if isinstance(target, Path)
                else LAYOUTS[target](session, row, machine, called)
            )
            full_name, notes = row.full_name, row.flags
            heads = outside_files_at(session, [layout.parts[-1].path]).values()
            others = models_by_id(session, {head.model_id for head in heads} - {row.id}).values()
        missing = unwritten_parts(registry, layout.parts)
        replaced = next((other.full_name for other in others if layout.parts[-1] in missing), None)
        if not dry_run:
            write_layout(registry, layout, missing, progress)
    return Installation(
        model=full_name,
        tool=layout.tool,
        name=layout.name,
        files=tuple(str(part.path) for part in layout.parts),
        size_bytes=sum(part.size_bytes for part in layout.parts),
        written_bytes=sum(part.size_bytes for part in missing),
        replaced=replaced,
        command=layout.command,
        notes=notes,
    )


def _plain_folder(folder: Path) -> Path:
    """Return `folder` as it is recorded: absolute, without `..`."""
    return Path(os.path.realpath(folder)) if ".." in folder.parts else folder.absolute()


def unwritten_parts(registry: LocalRegistry, parts: Sequence[ToolFile]) -> list[ToolFile]:
    """Return the `parts` that are not at their paths. Raises Conflict if files of others are in the way."""
    with registry.catalog.reading() as session:
        recorded = outside_files_at(session, [part.path for part in parts])
    return [part for part in parts if _must_write(part, recorded.get(part.path))]


def _must_write(part: ToolFile, recorded: OutsideFile | None) -> bool:
    if not os.path.lexists(part.path):
        if part.is_reference and any(part.path.parent.parent.glob("snapshots/*")):
            raise _not_own(part.path.parent.parent)
        return True
    is_own = recorded is not None and is_unchanged(recorded)
    if recorded is not None and is_own and recorded.sha256 == part.sha256:
        return False
    if has_bytes(part.path, part.kind, part.sha256, part.size_bytes):
        return False
    if is_own:
        return True
    if part.is_shared and part.kind == MODEL_FILE:
        raise Conflict(f"{part.path} has other bytes than its name says: remove it, and run this again")
    raise _not_own(part.path)


def _not_own(path: Path) -> Conflict:
    return Conflict(f"{path} is there already, and is not from this registry: choose another name with --as")


def write_layout(registry: LocalRegistry, layout: ToolLayout, missing: list[ToolFile], progress: Progress) -> None:
    """Record and write the `missing` parts of a layout, and remove what an older version of the model had there."""
    batch = secrets.token_hex(16)

    def record(parts: Sequence[ToolFile]) -> None:
        stamps = [stamp_text(os.lstat(part.path)) if os.path.lexists(part.path) else "" for part in parts]
        rows = [outside_row(layout, part, batch, stamp) for part, stamp in zip(parts, stamps, strict=True)]
        with registry.catalog.writing() as session:
            record_installed(session, rows)

    write_parts(registry, layout.parts, missing, layout.folder, progress, record)
    with registry.catalog.writing() as session:
        for file in outside_files_at(session, [part.path for part in layout.parts]).values():
            move_to_batch(session, file, batch)
        installed = outside_files(session, INSTALLED, tool=layout.tool, folder=os.path.abspath(layout.folder))
    batches = {file.batch for file in installed}
    with_models = {file.batch for file in installed if not is_shared(file)}
    remove_installed(registry, [file for file in installed if file.batch in batches - with_models])


def outside_row(
    layout: ToolLayout, part: ToolFile, batch: str, stamp: str, modified_ns: int = 0, content: bytes | None = None
) -> dict[str, object]:
    """Return the values of the row of a file, which is, or will be, in the folder of a tool or was removed from it."""
    return {
        "place": place_of_path(part.path),
        "path": checked_text(os.path.abspath(part.path), "the path", PATH_MAX),
        "folder": checked_text(os.path.abspath(layout.folder), "the folder", PATH_MAX),
        "batch": batch,
        "tool": layout.tool,
        "name": layout.name,
        "model_id": part.model_id,
        "kind": part.kind,
        "size_bytes": part.size_bytes,
        "sha256": part.sha256,
        "content": content,
        "mode": part.mode,
        "modified_ns": modified_ns,
        "stamp": stamp,
    }


def write_parts(
    registry: LocalRegistry,
    parts: Sequence[ToolFile],
    missing: Sequence[ToolFile],
    root: Path,
    progress: Progress,
    record: Callable[[Sequence[ToolFile]], None] = lambda _: None,
) -> None:
    """Write those of the `parts` that are `missing`, in their order, and again what another program removes meanwhile.

    `record` gets files before they are written, and each one when it is. Raises DiskFull before anything is written,
    Conflict if others are in the way or are removed again and again.
    """
    for _ in range(WRITES_MAX):
        record([part for part in missing if not os.path.lexists(part.path)])
        with translating(root, placing_error):
            existing = next(folder for folder in (root, *root.parents) if folder.is_dir())
            check_room(existing, sum(part.size_bytes for part in missing), Files())
        for part in missing:
            is_there = os.path.lexists(part.path)  # before the look at whose it is: what comes later is not replaced
            if unwritten_parts(registry, [part]):  # another program may have written it by now
                write_part(registry, part, root, progress, replaces=is_there)
                record([part])  # with its stamp
        # Ollama removes blobs without a manifest when it starts: one that was there before may be gone by now.
        missing = [part for part in parts if not os.path.lexists(part.path)]
        if not missing:
            return
    raise Conflict(f"another program removes {missing[0].path} while it is written: stop it, and run this again")


def write_part(
    registry: LocalRegistry, part: ToolFile, root: Path, progress: Progress = no_progress, *, replaces: bool = False
) -> None:
    """Write a file or a link, and its folders; as root, give them to the owner of the tool's folder `root`.

    Unless it `replaces` what is at its path, it raises StoreError if another program wrote something there meanwhile.
    """
    with folder_for_placing(part.path.parent) as made:
        remove_temporaries(part.path.parent)
        if isinstance(part.content, str):
            temporary = temporary_beside(part.path)
            with translating(part.path, placing_error):
                os.symlink(part.content, temporary)
                (os.replace if replaces else Files().name_new)(temporary, part.path)
                Files().sync_folder(part.path.parent)
        elif isinstance(part.content, bytes):
            # Not beside it: Ollama reads every file among its manifests, and the hub's tools every one in `refs`.
            aside = part.path.parent.parent if part.is_reference else root
            remove_temporaries(aside)
            with placed(part.path, len(part.content), mode=part.mode, replaces=replaces, folder=aside) as file:
                file.write(part.content)
        elif replaces or not _is_cloned(registry, part):
            place_file(registry.blobs, part.content, part.path, progress, replaces=replaces, mode=part.mode)
        else:
            progress(part.size_bytes)
        if part.mode != PUBLIC_FILE and part.kind != LINK:
            os.chmod(part.path, part.mode)  # whatever the umask is
        if os.geteuid() == 0:
            owner = root.stat()
            for path in (*made, part.path):
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _is_cloned(registry: LocalRegistry, part: ToolFile) -> bool:
    """Place a file that shares its bytes with an installed one, if the file system can; return whether it did."""
    with registry.catalog.reading() as session:
        copies = outside_files(session, INSTALLED, kind=MODEL_FILE, sha256=part.sha256)
    paths = [Path(copy.path) for copy in copies if Path(copy.path) != part.path and os.path.isfile(copy.path)]
    return any(placed_clone(path, part.path, part.sha256, part.mode) for path in paths)


def uninstall(
    registry: LocalRegistry, model: str, target: str | Path | None = None, called: str | None = None
) -> list[Uninstallation]:
    """Remove the files that `install` wrote for a model: in one tool, or folder, or in all; return what was removed.

    Files that were changed since, and shared files that the tool still needs, stay. A name without a version means all
    versions. Raises NotFound if nothing of the model is installed there.
    """
    with outside_lock(registry):
        with registry.catalog.reading() as session:
            ids = ids_of(session, model)
            if not ids:
                model_by_text(session, model)  # raises NotFound with a similar name
            installed = outside_files(session, INSTALLED)
            batches: dict[str, list[OutsideFile]] = {}
            for file in installed:
                batches.setdefault(file.batch, []).append(file)
            wanted = [files for files in batches.values() if _is_wanted(files, ids, target, called)]
            removed = [file.path for file in installed if not os.path.lexists(file.path)]
            gone = outside_files_at(session, list(map(Path, removed)), RECLAIMED)
        if any(Path(file.path) in gone for files in wanted for file in files):
            raise Conflict(
                f"{model} was reclaimed there: organ restore {model} writes it again, and with --forget gives it up"
            )
        if not wanted:
            where = "" if target is None else f" in {target}"
            raise NotFound(f"{model} is not installed{where}; organ scan shows what is")
        removals = []
        for files in wanted:
            main = next(file for file in files if not is_shared(file))
            removals.append(Uninstallation(main.tool, main.folder, main.name, *remove_installed(registry, files)))
        return removals


def ids_of(session: Session, text: str) -> set[int]:
    """Return the ids of the versions that `text` names, also of removed ones; none if it is no name."""
    try:
        model = model_by_text(session, text)
        name = replace(parse_model_name(model.full_name), version=parse_model_name(text).version)
    except BadName:
        return set()
    except NotFound:
        name = parse_model_name(text)
    return ids_of_name(session, name)


def _is_wanted(
    files: Sequence[OutsideFile], ids: Collection[int], target: str | Path | None, called: str | None
) -> bool:
    own = [file for file in files if not is_shared(file)]
    names = (own[-1].name, f"{own[-1].name}{GGUF_SUFFIX}")
    if not any(file.model_id in ids for file in own) or (called is not None and called not in names):
        return False
    if own[-1].tool == CACHE:
        return False  # programs of `organ run` may use it
    if isinstance(target, Path):
        return own[-1].tool == "" and Path(own[-1].folder) == _plain_folder(target)
    return target is None or own[-1].tool in TOOLS_OF.get(target, (target,))


def remove_installed(
    registry: LocalRegistry, files: Sequence[OutsideFile]
) -> tuple[tuple[str, ...], int, tuple[str, ...]]:
    """Remove installed files: those that belong to one model first, in the reverse order of their writing.

    Returns the removed paths, the bytes that are free, and sentences about files that stay.
    """
    removed, kept, freed = list[str](), list[str](), 0
    for file in sorted(files, key=lambda file: (is_shared(file), -file.id)):
        path, folder = Path(file.path), Path(file.folder)
        remove_temporaries(path.parent)
        is_left = False
        if os.path.lexists(path):  # otherwise the tool, or a person, removed it
            if is_shared(file) and is_needed(file.tool, folder, path):
                is_left = _leave(registry, file, files)
                kept.append(f"{path} {NEEDED}")
            elif not is_unchanged(file):
                kept.append(f"{path} stays, and is yours from now on: it was changed after it was installed")
            else:
                with translating(path, placing_error):
                    os.unlink(path)
                    Files().sync_folder(path.parent)
                removed.append(str(path))
                freed += 0 if file.kind == LINK else file.size_bytes
        remove_empty_folders(path.parent, folder)
        if not is_left:
            with registry.catalog.writing() as session:
                forget_file(session, file)
    return tuple(removed), freed, tuple(kept)


def _leave(registry: LocalRegistry, file: OutsideFile, files: Sequence[OutsideFile]) -> bool:
    """Leave a shared file to another installation in the same folder, if there is one, which will remove it."""
    with registry.catalog.writing() as session:
        others = outside_files(session, INSTALLED, tool=file.tool, folder=file.folder)
        heir = next((other.batch for other in others if other.batch != file.batch and not is_shared(other)), None)
        if heir is not None:
            move_to_batch(session, file, heir)
    return heir is not None


def is_shared(file: OutsideFile) -> bool:
    """Return whether an installed file may belong to several models: a blob, or the reference of a repository."""
    *repository, folder = Path(file.path).relative_to(file.folder).parts[:-1] or ("",)
    return file.tool in SHARING and len(repository) <= 1 and folder in ("blobs", "refs")


def is_unchanged(file: OutsideFile) -> bool:
    """Return whether a recorded file is as it was written: by its stamp, else by its bytes."""
    path = Path(file.path)
    try:
        if file.stamp and stamp_text(os.lstat(path)) == file.stamp:
            return True
    except OSError:
        return False
    return has_bytes(path, file.kind, file.sha256, file.size_bytes)


def has_bytes(path: Path, kind: str, sha256: str, size_bytes: int) -> bool:
    """Return whether a regular file has exactly these bytes, or a link this target."""
    with translating(path, placing_error):
        status = os.lstat(path)
        if kind == LINK:
            return stat.S_ISLNK(status.st_mode) and digest_of(os.fsencode(os.readlink(path))) == sha256
        if not stat.S_ISREG(status.st_mode) or status.st_size != size_bytes:
            return False
        with path.open("rb") as data:
            return file_digest(data, "sha256").hexdigest() == sha256


def remove_empty_folders(path: Path, root: Path) -> None:
    """Remove `path` and its parents below `root` while they are empty."""
    while path != root and root in path.parents:
        try:
            path.rmdir()
        except OSError:
            return
        path = path.parent


class InstalledModel(msgspec.Struct, frozen=True, order=True):
    """A model that `install` wrote, and where."""

    model: str
    tool: str
    folder: str
    name: str


def installed_models(registry: LocalRegistry) -> list[InstalledModel]:
    """Return what is installed on this machine, in order; without what `organ run` keeps."""
    with registry.catalog.reading() as session:
        files = [file for file in outside_files(session, INSTALLED) if not is_shared(file)]
        models = models_by_id(session, {file.model_id for file in files})
    rows = {
        InstalledModel(models[file.model_id].full_name, file.tool, file.folder, file.name)
        for file in files
        if file.model_id in models and file.tool != CACHE and os.path.lexists(file.path)
    }
    return sorted(rows)
