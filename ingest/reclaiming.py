"""Files of models whose bytes are stored: removed from the disk, and written again when they are needed.

A group is what must go together: the shards of a model; in Ollama, blobs with all manifests that need them; in the
cache of the Hugging Face tools, a blob with its links. Its removal has four steps: the files are ingested; their stored
bytes are read back and compared; what is needed to write each file again is recorded, durably; the files are removed,
those first by which a tool finds the others. A kill between any two steps loses nothing: the next `reclaim` first gives
back what was removed in part, and so does `restore`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import signal
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import file_digest
from pathlib import Path

import msgspec
from sqlalchemy.orm import Session

from organs.ingest.dissect import DissectedFile
from organs.ingest.service import ingest_model
from organs.ingest.sources import ModelSource
from organs.ingest.tools.facts import known_model, stamp_of
from organs.ingest.tools.findings import Findings
from organs.ingest.tools.folders import HUB_FOLDER
from organs.ingest.tools.installing import (
    SHARING,
    has_bytes,
    is_unchanged,
    outside_lock,
    outside_row,
    remove_empty_folders,
    write_parts,
)
from organs.ingest.tools.layouts import ToolFile, ToolLayout, is_needed
from organs.ingest.tools.ollama import TEXT_MAX_BYTES, blob_path, manifests_of
from organs.registry.assembly import FilePlan, plan_file, prove_file
from organs.registry.catalog.queries.model_contents import digests_by_stamp, files_of, has_damaged_blobs
from organs.registry.catalog.queries.model_names import (
    has_visible_model_of_size,
    model_by_text,
    visible_model_with_digest,
)
from organs.registry.catalog.queries.outside import outside_files, outside_files_at
from organs.registry.catalog.queries.relatives import models_by_id
from organs.registry.catalog.register.outside import forget_reclaimed, record_outside
from organs.registry.catalog.tables import ModelFileRow, ModelRow, OutsideFile
from organs.registry.catalog.vocabulary import LINK, MODEL_FILE, RECLAIMED
from organs.registry.digest import Digest, model_digest
from organs.registry.errors import BadSource, BadValue, Conflict, OrganError
from organs.registry.input_files import FileIdentity, FileSource, stamp_text
from organs.registry.local import LocalRegistry
from organs.registry.progress import Progress, no_progress
from organs.registry.store.files import (
    Files,
    check_room,
    placing_error,
    remove_temporaries,
    temporary_beside,
    translating,
)


@dataclass(slots=True)
class FileGroup:
    """Files that are removed and restored together."""

    tool: str
    """The option of the tool; empty for a plain folder."""
    folder: Path
    """The folder of the tool, or of the files."""
    sources: list[ModelSource] = field(default_factory=list)
    texts: dict[Path, None] = field(default_factory=dict)
    """Small files that belong to the models, such as templates."""
    heads: dict[Path, None] = field(default_factory=dict)
    """Manifests and links, by which the tool finds the other files."""

    @property
    def label(self) -> str:
        """The name of the group for messages."""
        names = [source.name.name if source.tool else source.label for source in self.sources]
        return " and ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")

    @property
    def files(self) -> dict[Path, None]:
        """The files of models, behind links."""
        return {path.resolve() if path.is_symlink() and self.heads else path: None for path in self.paths}

    @property
    def paths(self) -> list[Path]:
        """The paths by which the files of models were found."""
        return [path for source in self.sources for path in source.paths]

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files if path.is_file())

    @property
    def used_at(self) -> float:
        """When a file of a model was last read or written, in seconds since the epoch."""
        statuses = [path.stat() for path in self.files if path.is_file()]
        return max((max(status.st_atime, status.st_mtime) for status in statuses), default=0.0)


def groups_of(findings: Iterable[Findings]) -> list[FileGroup]:
    """Return the files in `findings` as groups, the largest first; each file once."""
    groups: list[FileGroup] = []
    known = set[Path]()
    for part in findings:
        if part.tool == "ollama":
            found = _groups_of_ollama(part)
        else:
            found = [_group_of(part, source) for source in part.sources]
        for group in found:
            if known.isdisjoint(group.files):
                groups.append(group)
            known.update(group.files)
    return sorted(groups, key=lambda group: -group.size_bytes)


def _groups_of_ollama(part: Findings) -> list[FileGroup]:
    """Return blobs with all manifests that need them; manifests with a blob in common are one group."""
    sources = {source.paths[0]: source for source in part.sources}
    groups: dict[Path, FileGroup] = {}
    for manifest, digests in manifests_of(part.folder).items():
        if digests is None:
            continue
        blobs = [blob_path(part.folder, digest) for digest in sorted(digests)]
        wanted = [blob for blob in blobs if blob in sources]
        joined = {id(groups[blob]): groups[blob] for blob in wanted if blob in groups}
        group = FileGroup("ollama", part.folder)
        for other in joined.values():
            group.sources += other.sources
            group.texts |= other.texts
            group.heads |= other.heads
        group.sources += [sources[blob] for blob in wanted if blob not in groups]
        group.texts |= dict.fromkeys(blob for blob in blobs if blob not in sources)
        group.heads[manifest] = None
        groups.update({source.paths[0]: group for source in group.sources})
    return list({id(group): group for group in groups.values()}.values())


def _group_of(part: Findings, source: ModelSource) -> FileGroup:
    """Return the files of one model; in the cache of the Hugging Face tools with all links to them."""
    path = source.paths[0]
    repository = next((folder for folder in path.parents if folder.name.startswith(HUB_FOLDER)), None)
    if repository is None or not path.is_symlink():
        return FileGroup(part.tool, part.folder if part.tool else path.parent, [source])
    group = FileGroup(part.tool, part.folder, [source])
    blobs = {path.resolve() for path in source.paths}
    links = (link for link in (repository / "snapshots").rglob("*") if link.is_symlink())
    group.heads = {link: None for link in sorted(links) if link.resolve() in blobs}
    return group


def split_by_use(groups: Sequence[FileGroup], keep_bytes: int) -> tuple[list[FileGroup], list[FileGroup]]:
    """Return the groups to remove, and the most recently used ones that stay, of at most `keep_bytes` in all."""
    left, kept = keep_bytes, list[FileGroup]()
    for group in sorted(groups, key=lambda group: -group.used_at):
        if group.size_bytes > left:
            break
        left -= group.size_bytes
        kept.append(group)
    return [group for group in groups if group not in kept], kept


def obstacle(registry: LocalRegistry, group: FileGroup) -> str | None:
    """Return why a group stays, as a sentence; None if its files can be removed."""
    if group.tool == "lmstudio" and group.folder.name == "bundled-models":
        return "it is a part of LM Studio"
    home = Path(registry.settings.home).resolve()
    linked = [path for path in group.paths if path.is_symlink() and path not in group.heads]
    if linked:
        return f"{linked[0]} is a symbolic link: name the file that it leads to"
    for path in (*group.files, *group.texts):
        try:
            status = path.lstat()
        except OSError as error:
            return f"{path}: {error.strerror}"
        if not stat.S_ISREG(status.st_mode):
            return f"{path} is not a file: only GGUF files are removed"
        if status.st_nlink > 1:
            return f"{path} has {status.st_nlink} names (hard links), so the removal of one would free nothing"
        if home in path.resolve().parents:
            return f"{path} is in the folder of this registry"
        if path in group.texts and status.st_size > TEXT_MAX_BYTES:
            return f"{path} belongs to it, and is no GGUF file and no text"
        if path in group.files and _is_being_written(path):
            return f"{path} is open for writing in another program"
    locked = (path.parent for path in (*group.files, *group.texts, *group.heads))
    folder = next((folder for folder in locked if not os.access(folder, os.W_OK | os.X_OK)), None)
    return None if folder is None else f"{folder}: no permission to remove files"


SET_SIGNAL = 10
"""The request of Linux that chooses the signal of a lease (`F_SETSIG`), which Python does not name."""


def _is_being_written(path: Path) -> bool:
    """Return whether a program has a file open for writing or can write it through memory, where the system tells."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    with path.open("rb") as file:
        try:
            fcntl.fcntl(file, SET_SIGNAL, signal.SIGCHLD)  # which is ignored; the usual one would end this process
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)  # it ends when the file is closed
        except OSError as error:
            return error.errno == errno.EAGAIN
    return False


def registered_names(registry: LocalRegistry, group: FileGroup) -> tuple[str, ...]:
    """Return the registered models of files that were read before, or installed, and are unchanged."""
    with registry.catalog.reading() as session:
        installed = outside_files_at(session, list(group.files))
        ids = {file.model_id for file in installed.values() if is_unchanged(file)}
        models = [known_model(session, source) for source in group.sources] + list(models_by_id(session, ids).values())
        return tuple(dict.fromkeys(model.full_name for model in models if model is not None))


def _is_stored(registry: LocalRegistry, group: FileGroup) -> bool:
    with registry.catalog.reading() as session:
        return all(known_model(session, source) is not None for source in group.sources)


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What became of a group."""

    group: FileGroup
    models: tuple[str, ...]
    """The registered models of its files."""
    freed_bytes: int
    kept: str | None
    """Why it stays, as a sentence; None if its files are removed."""


def reclaim(
    registry: LocalRegistry, groups: Iterable[FileGroup], progress: Progress = no_progress
) -> Iterator[Reclaimed]:
    """Store, read back, record and remove each group; yield what became of it.

    What is stored already, and what is small, comes first, because it makes room for the others. `progress` gets the
    sizes of the files, as they are read and then as they are read back.
    """
    for group in sorted(groups, key=lambda group: (not _is_stored(registry, group), group.size_bytes)):
        models = dict[int, str]()
        freed = 0
        with outside_lock(registry):
            reason = obstacle(registry, group)
            try:
                if reason is None:
                    stored = _stored_files(registry, group, models, progress)
                    plans = _prove(registry, stored, progress)
                    freed = _remove(registry, _record(registry, group, stored, plans))
            except (BadSource, BadValue, Conflict) as error:
                reason = str(error)
            except OrganError as error:
                reason = f"{group.label}: {error}"
        yield Reclaimed(group, tuple(models.values()), freed, reason)


def give_back(registry: LocalRegistry) -> list[str]:
    """Write the missing files again of groups that a killed `reclaim` has removed in part, and forget their removal.

    Return why some cannot be written, in sentences. Then a user's own `reclaim` finds them whole.
    """
    problems = []
    with outside_lock(registry):
        for folder in {Path(file.path).parent for files in reclaimed_batches(registry) for file in files}:
            remove_temporaries(folder)
        for files in reclaimed_batches(registry, _is_recorded):
            try:
                _restore_batch(registry, files)
            except OrganError as error:
                problems.append(f"{files[0].name}: {error}")
    return problems


@dataclass(frozen=True, slots=True)
class _ReadFile:
    """A file of a model that was read, with its stamp at that time: it is removed only as long as it has this stamp."""

    row: ModelFileRow
    stamp: str


def _stored_files(
    registry: LocalRegistry, group: FileGroup, models: dict[int, str], progress: Progress
) -> dict[Path, _ReadFile]:
    """Return the stored file of each path of a group, after an ingest of what is not stored; fill `models`.

    Raises BadSource for a file that was changed, the errors of an ingest.
    """
    files: dict[Path, _ReadFile] = {}
    for source in group.sources:
        name, read = _recognised(registry, source, progress) or _ingested(registry, source, progress)
        with registry.catalog.reading() as session:
            model = model_by_text(session, name)
            models[model.id] = model.full_name
            rows = {row.sha256: row for row in files_of(session, model.id)}
        for path, (digest, stamp) in read.items():
            files[path.resolve() if group.heads else path] = _ReadFile(rows[digest], stamp)
    return files


Read = dict[Path, tuple[Digest, str]]
"""The SHA-256 of files, and their stamps when they were read."""


def _recognised(registry: LocalRegistry, source: ModelSource, progress: Progress) -> tuple[str, Read] | None:
    """Return the name of the registered model of a source, and its files, which are hashed if their stamps are unknown.

    None if the model is not registered, or if some of its bytes are damaged: an ingest repairs it.
    """
    size_bytes = sum(path.stat().st_size for path in source.paths)
    with registry.catalog.reading() as session:
        if not has_visible_model_of_size(session, size_bytes):
            return None
        stamps = {path: stamp_of(path) or "" for path in source.paths}
        known = digests_by_stamp(session, list(stamps.values()))
    read: Read = {}
    for path, stamp in stamps.items():
        if stamp in known:
            read[path] = known[stamp], stamp
            continue
        with FileSource(path) as file, open(file.descriptor, "rb", closefd=False) as data:
            digest = Digest(file_digest(data, "sha256").hexdigest())
            file.check_unchanged()
            if file.stamp is None:
                return None
            read[path] = digest, file.stamp
    with registry.catalog.reading() as session:
        model = visible_model_with_digest(session, model_digest([digest for digest, _ in read.values()]), None)
        if model is None or has_damaged_blobs(session, model.id):
            return None
        progress(size_bytes)
        return model.full_name, read


def _ingested(registry: LocalRegistry, source: ModelSource, progress: Progress) -> tuple[str, Read]:
    """Ingest a model; return its name and its files.

    Raises BadSource if a file is missing or was changed.
    """
    read: Read = {}
    fresh: list[Path] = []

    def note(file: DissectedFile, _model_id: int, sha256: Digest) -> None:
        if isinstance(file.source, FileSource) and (stamp := file.source.stamp) is not None:
            read[file.source.path] = sha256, stamp
        else:
            fresh.append(file.source.path)

    report = ingest_model(registry, source, progress=progress, stored=note)
    if report.incomplete:
        raise BadSource(f"{source.label}: {report.incomplete}, so nothing of it is removed")
    for path in source.paths:
        if path in fresh:
            raise BadSource(f"{path} was written a moment ago: run this again")
        if path not in read or stamp_of(path) != read[path][1]:
            raise BadSource(f"{path} was changed while it was read")
    return report.model, {path: read[path] for path in source.paths}


def _prove(registry: LocalRegistry, files: dict[Path, _ReadFile], progress: Progress) -> dict[str, FilePlan]:
    """Read the stored bytes of files back and compare their SHA-256; return their plans by it. Raises StoreError."""
    plans: dict[str, FilePlan] = {}
    for row in {file.row.sha256: file.row for file in files.values()}.values():
        with registry.catalog.reading() as session:
            plans[row.sha256] = plan_file(session, row)
        prove_file(registry.blobs, plans[row.sha256])
        progress(row.size_bytes)
    return plans


def _record(
    registry: LocalRegistry, group: FileGroup, files: dict[Path, _ReadFile], plans: Mapping[str, FilePlan]
) -> list[OutsideFile]:
    """Record what is needed to write all files of a group again, in the order of their writing."""
    layout = ToolLayout(group.tool, group.folder, group.label[:512], (), "")
    batch = secrets.token_hex(16)
    model_id = next(iter(files.values())).row.model_id
    rows = []
    for path in (*files, *group.texts, *group.heads):
        status, file = path.lstat(), files.get(path)  # before its bytes are read
        content = plans[file.row.sha256] if file else _small_content(path)
        owner, stamp = (file.row.model_id, file.stamp) if file else (model_id, stamp_text(status))
        part = ToolFile(path, content, owner, mode=stat.S_IMODE(status.st_mode))
        rows.append(outside_row(layout, part, batch, stamp, status.st_mtime_ns, part.data))
    with registry.catalog.writing() as session:
        # A file that a killed `restore` wrote does not have its old time yet.
        earlier = {
            file.place: file
            for file in outside_files_at(session, [*files, *group.texts, *group.heads], RECLAIMED).values()
        }
        for row in rows:
            before = earlier.get(str(row["place"]))
            if before is not None and before.sha256 == row["sha256"]:
                row |= {"modified_ns": before.modified_ns, "mode": before.mode}
        for number in {file.row.model_id for file in files.values()}:
            model = session.get_one(ModelRow, number, with_for_update=True)  # `remove_model` waits, and sees the rows
            if model.state == "removed":
                raise BadSource(f"{model.full_name} was removed from the registry meanwhile")
        return record_outside(session, RECLAIMED, rows)


def _remove(registry: LocalRegistry, files: Sequence[OutsideFile]) -> int:
    """Remove all recorded files of a group, the last first; return the bytes that are free.

    Raises BadSource if a file was changed since it was recorded, StoreError if one cannot be removed; then the others
    are written again.
    """
    freed = 0
    manifests: Mapping[Path, Collection[str] | None] | None = None
    for file in reversed(files):
        path, folder = Path(file.path), Path(file.folder)
        if file.tool in SHARING and path.parent.name == "blobs":
            if manifests is None and file.tool == "ollama":
                manifests = manifests_of(folder)  # without those of this group, which were removed before
            if is_needed(file.tool, folder, path, manifests):
                continue
        try:
            with translating(path, placing_error):
                is_removed = _unlink(file)
        except OrganError:
            _restore_batch(registry, files)
            raise
        if not is_removed:
            _restore_batch(registry, files, as_it_is=path)
            raise BadSource(f"{path} was changed while it was stored: nothing was removed")
        freed += 0 if file.kind == LINK else file.size_bytes
        if file.tool:
            remove_empty_folders(path.parent, folder)
    return freed


def _is_recorded(file: OutsideFile) -> bool:
    """Return whether the very file that was recorded is at its path, unchanged."""
    try:
        return stamp_text(os.lstat(file.path)) == file.stamp
    except OSError:
        return False


def _unlink(file: OutsideFile) -> bool:
    """Remove the very file that was recorded; return whether it did. Another file at its path stays. Raises OSError.

    It gets another name first, so that no file is removed that came to its path after the last look.
    """
    path = Path(file.path)
    before = os.lstat(path)
    if stamp_text(before) != file.stamp or (file.kind == MODEL_FILE and _is_being_written(path)):
        return False
    aside = temporary_beside(path)
    os.rename(path, aside)
    now = os.lstat(aside)
    if FileIdentity.of(now) != FileIdentity.of(before):
        Files().name_new(aside, path)
        return False
    os.unlink(aside)
    Files().sync_folder(path.parent)
    return True


def _small_content(path: Path) -> bytes | str:
    """Return the bytes of a text, or the target of a link."""
    with translating(path):
        if path.is_symlink():
            return os.readlink(path)
        with path.open("rb") as file:
            data = file.read(TEXT_MAX_BYTES + 1)
    if len(data) > TEXT_MAX_BYTES:
        raise BadSource(f"{path} has more than {TEXT_MAX_BYTES:,} bytes")
    return data


class Restored(msgspec.Struct, frozen=True):
    """A group that was removed, and what became of it."""

    name: str
    tool: str
    paths: tuple[str, ...]
    """The files of models."""
    size_bytes: int
    problem: str | None = None
    """Why it was not restored, as a sentence."""


def every(_file: OutsideFile) -> bool:
    """Return True: every file is wanted."""
    return True


def reclaimed_batches(
    registry: LocalRegistry, wanted: Callable[[OutsideFile], bool] = every
) -> list[list[OutsideFile]]:
    """Return the removed groups on this machine of which a file is `wanted`, the oldest first."""
    batches: dict[str, list[OutsideFile]] = {}
    with registry.catalog.reading() as session:
        for file in outside_files(session, RECLAIMED):
            batches.setdefault(file.batch, []).append(file)
    return [files for files in batches.values() if any(map(wanted, files))]


def restored_of(files: Sequence[OutsideFile], problem: str | None = None) -> Restored:
    """Return a removed group for a person."""
    models = [file for file in files if file.kind == MODEL_FILE]
    size_bytes = sum(file.size_bytes for file in models)
    return Restored(files[0].name, files[0].tool, tuple(file.path for file in models), size_bytes, problem)


def restore(
    registry: LocalRegistry, wanted: Callable[[OutsideFile], bool] = every, progress: Progress = no_progress
) -> Iterator[Restored]:
    """Write each removed group of which a file is `wanted` again, with its names, bytes, modes and times.

    A group of which something else is in the way stays recorded. Raises DiskFull before anything is written.
    """
    batches = reclaimed_batches(registry, wanted)
    for folder in {Path(file.path).parent for files in batches for file in files}:
        remove_temporaries(folder)
    needed: dict[Path, int] = {}
    for files in batches:
        folder = _existing_folder(Path(files[0].folder))
        missing = (file.size_bytes for file in files if not os.path.lexists(file.path))
        needed[folder] = needed.get(folder, 0) + sum(missing)
    for folder, size_bytes in needed.items():
        with translating(folder, placing_error):
            check_room(folder, size_bytes, Files())
    for files in batches:
        problem = None
        try:
            with outside_lock(registry):
                _restore_batch(registry, files, progress)
        except OrganError as error:
            problem = str(error)
        yield restored_of(files, problem)


def forget(registry: LocalRegistry, wanted: Callable[[OutsideFile], bool]) -> list[Restored]:
    """Forget that groups with a `wanted` file were removed: nothing restores them, and their models stay registered."""
    with outside_lock(registry):
        batches = reclaimed_batches(registry, wanted)
        with registry.catalog.writing() as session:
            for files in batches:
                forget_reclaimed(session, files)
    return [restored_of(files) for files in batches]


def _existing_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _restore_batch(
    registry: LocalRegistry,
    files: Sequence[OutsideFile],
    progress: Progress = no_progress,
    *,
    as_it_is: Path | None = None,
) -> None:
    """Write the files of a group, in their order, and forget that they were removed. Raises Conflict, StoreError.

    The file `as_it_is` was changed before it was removed, and stays.
    """
    for file in files:
        path = Path(file.path)
        if path != as_it_is and os.path.lexists(path) and not has_bytes(path, file.kind, file.sha256, file.size_bytes):
            raise Conflict(
                f"{path} is another file now: move it away (organ uninstall, if organ install wrote it), and run organ "
                "restore again"
            )
    with registry.catalog.reading() as session:
        parts = [ToolFile(Path(file.path), _content(session, file), file.model_id, mode=file.mode) for file in files]
    missing = [part for part in parts if not os.path.lexists(part.path)]
    write_parts(registry, parts, missing, _existing_folder(Path(files[0].folder)), progress)
    for file in files:  # last: Ollama removes old blobs without a manifest when it starts
        if Path(file.path) != as_it_is:
            with suppress(OSError, NotImplementedError):
                os.utime(file.path, ns=(file.modified_ns, file.modified_ns), follow_symlinks=False)
    with registry.catalog.writing() as session:
        forget_reclaimed(session, files)


def _content(session: Session, file: OutsideFile) -> FilePlan | bytes | str:
    if file.kind == MODEL_FILE:
        row = next(row for row in files_of(session, file.model_id) if row.sha256 == file.sha256)
        return plan_file(session, row)
    assert file.content is not None, "texts and links are recorded with their bytes"
    return os.fsdecode(file.content) if file.kind == LINK else file.content
