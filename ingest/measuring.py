"""Measurement of the tensors of files without a registry. Nothing is stored, except in a journal.

The journal is that of a measurement that is not complete, because it was interrupted, or because shards are missing:
the next run with the same source continues after it.

A split set of which shards are missing is measured too. Its measurements stay in a journal in the user's cache folder,
until the last shard was measured in any later run. So a large model can be measured with room for one shard.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import platformdirs
from msgspec import Meta, Struct, field
from threadpoolctl import threadpool_limits

from organs.ingest.dissect import OpenGguf, check_tensor_sizes
from organs.ingest.sources import ModelSource, in_order, open_headers
from organs.registry.anatomy import Place, place_of
from organs.registry.digest import digest_of
from organs.registry.entities.base import prepared
from organs.registry.errors import BadSource, BadSplit, Busy, OrganError, StoreUnwritable
from organs.registry.experts import expert_count
from organs.registry.gguf import DType, TensorInfo, dtype_by_name
from organs.registry.gguf.split import (
    REASONS_MAX,
    SHARDS_MAX,
    SPLIT_COUNT_KEY,
    SPLIT_TENSORS_KEY,
    ShardName,
    check_shards,
    is_shard,
    parse_shard_name,
)
from organs.registry.gguf.types import SIZE_MAX
from organs.registry.input_files import FileIdentity, FileSource
from organs.registry.measure import MEASURED_TOGETHER, Measurable, Measurement, measure_together, required_reads
from organs.registry.measures import SPECTRAL_METHOD, THETA_METHOD
from organs.registry.names import ModelName, name_from_text
from organs.registry.progress import Progress, no_progress
from organs.registry.store.files import Files, lock_file

WAITING_THREADS = 2
"""Additional threads that wait for a server."""
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-4, 1e-4
"""Measurements of the same bytes on two machines differ by less."""
Quantity = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
ShardNumber = Annotated[int, Meta(ge=1, le=SHARDS_MAX)]
Wanted = Callable[[str, Place], bool]
"""Returns whether to measure the tensor of that name and place."""


class MeasuredTensor(Struct, frozen=True, kw_only=True):
    """A tensor, or an expert of a stack, with its measurement."""

    name: str = field(name="tensor")
    expert: int | None = None
    """The number of the expert in the tensor, from 0; None for the whole tensor."""
    dtype: str
    shape: tuple[int, ...]
    """Row length first; that of the expert if it is one."""
    measurement: Measurement
    foreign_bytes: int = 0
    """The size of a tensor of a foreign type, which does not follow from its shape; else 0."""

    @property
    def place(self) -> Place:
        """The place of the tensor in a model."""
        return place_of(self.name)

    @property
    def elements(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The size of the tensor or of the expert."""
        return self.foreign_bytes or dtype_by_name(self.dtype).size_bytes(self.elements)


class MeasuredFile(Struct, frozen=True, kw_only=True):
    """One file of a measured model, with its names in JSON."""

    location: str = field(name="file")
    shard: ShardNumber = 1
    """The number of the shard, from 1."""
    size_bytes: Quantity
    tensor_count: Quantity = field(name="tensors_count")
    """Number of all its tensors, selected or not."""
    selected_count: Quantity
    """Number of its tensors among those of the model."""
    parameters: Quantity = field(name="parameters_count")


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model with its selected tensors, in the order of the files."""

    architecture: str | None
    title: str | None
    files: tuple[MeasuredFile, ...]
    """The measured files, in their order."""
    tensors: tuple[MeasuredTensor, ...]
    experts: tuple[MeasuredTensor, ...] = ()
    """The experts of the stacks among `tensors`, if they were measured one by one."""
    shard_count: int = 1
    """Number of the shards of the complete model."""
    set_tensor_count: int | None = None
    """Number of the tensors of the complete model, as the header of a shard states it."""

    @property
    def size_bytes(self) -> int:
        """Size of all its files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def tensor_count(self) -> int:
        """Number of all its tensors, selected or not."""
        return sum(file.tensor_count for file in self.files)

    @property
    def parameters(self) -> int:
        """Number of values of all its tensors, selected or not."""
        return sum(file.parameters for file in self.files)

    @property
    def missing_shards(self) -> tuple[int, ...]:
        """The numbers of the shards that were not measured, from 1."""
        present = {file.shard for file in self.files}
        return tuple(number for number in range(1, self.shard_count + 1) if number not in present)


@dataclass(frozen=True, slots=True)
class MeasureOutcome:
    """The result for one source: a measured model, or the error."""

    source: ModelSource
    model: MeasuredModel | None
    error: OrganError | None


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """What is measured, and what a measurement does besides."""

    wanted: Wanted | None = None
    """Selects the tensors to measure; None selects all."""
    experts: bool = False
    """Also measure each expert of each stack of experts, as a matrix of its own."""
    delete_after: bool = False
    """Delete each local shard when all its measurements are durable in the journal."""
    on_delete: Callable[[Path], None] = lambda _path: None
    """Called for each deleted file."""
    progress: Progress = no_progress
    """Called with the number of newly processed bytes; their sum is the size of the source."""

    def has(self, name: str) -> bool:
        """Return whether the tensor `name` is to be measured."""
        return self.wanted is None or self.wanted(name, place_of(name))

    def items(self, file: OpenGguf) -> list[_SelectedTensor]:
        """Return the selected tensors of a file in order; after each stack, its experts if they are measured."""
        items = []
        for position, tensor in enumerate(file.header.tensors):
            if not self.has(tensor.name):
                continue
            experts = _experts_in(tensor) if self.experts else 0
            items.append(_SelectedTensor(file, tensor, position, None, 0 if experts else tensor.size_bytes))
            each = tensor.size_bytes // experts if experts else 0
            items += [_SelectedTensor(file, tensor, position, number, each) for number in range(experts)]
        return items


NO_OPTIONS = MeasureOptions()


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What a measurement reads, besides the headers."""

    size_bytes: int
    """Size of all files of the model."""
    tensors: int
    """Number of the selected tensors."""
    known_tensors: int
    """Number of those that an interrupted run has measured."""
    reads: int
    """Number of reads, which are requests if the files are on a server."""
    read_bytes: int
    experts: int
    """Number of the experts that are measured one by one."""
    known_experts: int


def measure_model(source: ModelSource, options: MeasureOptions = NO_OPTIONS) -> MeasuredModel:
    """Measure the tensors of one model, in threads; raises BadInput for invalid files.

    Memory does not depend on the size of tensors: a limited sample of each is read. Measurements of files on a server
    are kept in a journal until all are done: after an interruption, the next call continues. Raises Unreachable,
    NotFound, NotAllowed for these.

    If shards are missing on the disk, those that are there are measured, and their measurements are kept. The result
    has all shards that were measured in this and in earlier calls. Raises BadSplit for shards of different models.
    """
    with ExitStack() as opened:
        files = open_headers(opened, _present(source))
        if options.delete_after:
            _check_deletable(source, files)
        path = set_journal_path(source)
        if path is not None and (options.delete_after or _lacks_shards(files)):
            return _measure_set(source, files, path, options)
        return _measure_files(opened, source, in_order(source.name.name, files), options)


def plan_reads(source: ModelSource, options: MeasureOptions = NO_OPTIONS) -> ReadPlan:
    """Return what `measure_model` would read of `source`; only the headers are read. Raises as `measure_model`."""
    with ExitStack() as opened:
        files = open_headers(opened, _present(source))
        path = set_journal_path(source)
        if path is None or not _lacks_shards(files):
            files = in_order(source.name.name, files)
            path = journal_path(source.locations) if source.remote else path if options.delete_after else None
        known: Mapping[Key, JournalEntry] = {}
        if path is not None:
            with suppress(OSError):  # there is no journal
                known = _read_lines(path)[0]
        items = [item for file in files for item in options.items(file)]
        missing = [item for item in items if item.key not in known]
        costs = [_read_cost(item.shape, item.tensor.dtype, bool(source.remote)) for item in missing]
        experts = sum(item.expert is not None for item in items)
        missing_experts = sum(item.expert is not None for item in missing)
        return ReadPlan(
            size_bytes=sum(file.header.file_size_bytes for file in files),
            tensors=len(items) - experts,
            known_tensors=len(items) - experts - len(missing) + missing_experts,
            reads=sum(reads for reads, _ in costs),
            read_bytes=sum(size for _, size in costs),
            experts=experts,
            known_experts=experts - missing_experts,
        )


@lru_cache(maxsize=4096)
def _read_cost(shape: tuple[int, ...], dtype: DType, is_remote: bool) -> tuple[int, int]:
    """Return the number of the reads of a measurement, and their size in bytes."""
    spans: Sequence[tuple[int, int]] = required_reads(shape, dtype)
    if is_remote:
        from organs.registry.client.ranges import merged  # with urllib3, which local files do not need

        spans = merged(spans)
    return len(spans), sum(size for _, size in spans)


def _experts_in(tensor: TensorInfo) -> int:
    """Return the number of experts of a stack; 0 for other tensors."""
    return expert_count(place_of(tensor.name), tensor.shape, tensor.dtype)


@dataclass(frozen=True, slots=True)
class _SelectedTensor:
    """A tensor or an expert to measure, with its file."""

    file: OpenGguf
    tensor: TensorInfo
    position: int
    """The place of the tensor in its file."""
    expert: int | None
    progress_bytes: int
    """The bytes that are processed when it is measured."""

    @property
    def key(self) -> Key:
        """The key of its measurement in the journal."""
        return Key(version_of(self.file), self.tensor.name, self.expert)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape if self.expert is None else self.tensor.shape[:2]

    def read(self) -> Measurable:
        """Read its sample, with all reads at once."""
        dtype = self.tensor.dtype
        begin = self.file.tensor_span(self.tensor).offset
        begin += (self.expert or 0) * dtype.size_bytes(math.prod(self.shape))
        spans = list(dict.fromkeys(required_reads(self.shape, dtype)))
        data = self.file.source.read_ranges([(begin + offset, size) for offset, size in spans])
        sample = dict(zip(spans, data, strict=True))
        return Measurable(lambda offset, size: sample[offset, size], self.shape, dtype)

    def entry(self, measurement: Measurement) -> JournalEntry:
        """Return its measurement as an entry of the journal."""
        dtype = self.tensor.dtype
        return JournalEntry(
            file=self.key.file,
            name=self.tensor.name,
            expert=self.expert,
            position=self.position,
            dtype=dtype.name,
            shape=self.shape,
            measurement=measurement,
            foreign_bytes=self.tensor.size_bytes if dtype.is_foreign else 0,
        )


def version_of(file: OpenGguf) -> str:
    """Return a digest that changes when the file is written."""
    source = file.source
    return digest_of(f"{source.name}\n{source.size_bytes}\n{source.version}".encode())


def _measure_files(
    opened: ExitStack,
    source: ModelSource,
    files: Sequence[OpenGguf],
    options: MeasureOptions,
) -> MeasuredModel:
    """Measure all files of a model."""
    journal = opened.enter_context(open_journal(journal_path(source.locations))) if source.remote else None
    selected = [options.items(file) for file in files]
    before = set() if journal is None else set(journal.known)
    entries = iter(list(_measure_in_threads([item for items in selected for item in items], journal, options.progress)))
    measured = [list(islice(entries, len(items))) for items in selected]
    for file, items in zip(files, selected, strict=True):
        _end_of_file(file, items, options.progress)
    if journal is not None and before <= {item.key for items in selected for item in items}:
        journal.delete()  # the journal of a larger selection stays for the run that continues it
    shards = [_shard_entry(file, number) for number, file in enumerate(files, 1)]
    return _model(list(zip(shards, measured, strict=True)))


def _model(shards: Sequence[tuple[ShardEntry, Sequence[JournalEntry]]]) -> MeasuredModel:
    """Return a model from its files in order, each with its measured tensors and experts in order."""
    tensors = [entry for _, entries in shards for entry in entries]
    files = tuple(
        MeasuredFile(
            location=shard.location,
            size_bytes=shard.size_bytes,
            tensor_count=shard.tensor_count,
            selected_count=sum(entry.expert is None for entry in entries),
            parameters=shard.parameters,
            shard=shard.number,
        )
        for shard, entries in shards
    )
    return MeasuredModel(
        architecture=next((shard.architecture for shard, _ in shards if shard.architecture is not None), None),
        title=next((shard.title for shard, _ in shards if shard.title is not None), None),
        tensors=tuple(tensor for tensor in tensors if tensor.expert is None),
        experts=tuple(tensor for tensor in tensors if tensor.expert is not None),
        files=files,
        shard_count=shards[0][0].shard_count if shards else 1,
        set_tensor_count=shards[0][0].set_tensor_count if shards else None,
    )


def _measure_in_threads(
    selected: Sequence[_SelectedTensor], journal: Journal | None, progress: Progress
) -> Iterator[JournalEntry]:
    """Yield the measured tensors in order. There is one thread for each processor, and more to wait for a server."""

    def measured(items: Sequence[_SelectedTensor]) -> list[JournalEntry]:
        known = {} if journal is None else journal.known
        missing = [item for item in items if item.key not in known]
        measurements = measure_together([item.read() for item in missing])
        new = {item.key: item.entry(found) for item, found in zip(missing, measurements, strict=True)}
        # Without a version of the file, a later run cannot know whether it is the same.
        if journal is not None:
            for item in missing:
                if item.file.source.version:
                    journal.add(new[item.key])
        return [new.get(item.key) or known[item.key] for item in items]

    # With a journal one by one, so that an interruption loses little.
    groups = list(_groups(selected, MEASURED_TOGETHER if journal is None else 1))
    threads = max(2, os.cpu_count() or 2) + (0 if journal is None else WAITING_THREADS)
    workers = ThreadPoolExecutor(threads, thread_name_prefix="measure")
    try:
        with threadpool_limits(1, "blas"):  # the threads of `workers` already use all processors
            for group, entries in zip(groups, workers.map(measured, groups), strict=True):
                for item, entry in zip(group, entries, strict=True):
                    progress(item.progress_bytes)
                    yield entry
    finally:
        workers.shutdown(cancel_futures=True)  # after Ctrl-C, tasks that have not begun are dropped


def _groups(selected: Iterable[_SelectedTensor], together: int) -> Iterator[list[_SelectedTensor]]:
    """Yield the tensors in order, at most so many `together`, until one is a stack of matrices."""
    group: list[_SelectedTensor] = []
    for item in selected:
        group.append(item)
        if len(group) == together or len(item.shape) > 2:
            yield group
            group = []
    if group:
        yield group


def _end_of_file(file: OpenGguf, items: Iterable[_SelectedTensor], progress: Progress) -> None:
    """Check that a file was not changed while its `items` were measured; report its other bytes."""
    file.source.check_unchanged()
    progress(max(file.header.file_size_bytes - sum(item.progress_bytes for item in items), 0))


def set_journal_path(source: ModelSource) -> Path | None:
    """Return the path of the journal for the shards of `source`, if they are some of a split set on the disk, or None.

    The shards of a set in one folder share a journal. A shard whose file name is not that of a shard has its own.
    """
    if source.remote or not source.paths or source.paths[0].is_dir():
        return None
    path = source.paths[0]
    shard = parse_shard_name(path.name) or ShardName(path.name, 1, 1)
    return journal_path(["set", str(path.parent.resolve() / shard.stem), str(shard.count)])


def find_measured_set(argument: str) -> ModelSource | None:
    """Return the split set to which the deleted shard `argument` belongs, if it has a journal; else None."""
    path = Path(argument)
    if os.path.lexists(path):
        return None
    shard = parse_shard_name(path.name)
    paths: tuple[Path, ...] = (path,)
    if shard is not None:
        numbers = range(1, min(shard.count, SHARDS_MAX) + 1)
        shards = (path.with_name(str(replace(shard, number=number))) for number in numbers)
        paths = tuple(other for other in shards if other.is_file()) or paths
    source = ModelSource(paths, ModelName("local", name_from_text(path.stem if shard is None else shard.stem)))
    journal = set_journal_path(source)
    return source if journal is not None and journal.is_file() else None


def _present(source: ModelSource) -> ModelSource:
    """Return a source without the shards that are not on the disk, if measurements of its set are in a journal."""
    journal = set_journal_path(source)
    if journal is None or not journal.is_file():
        return source
    return replace(source, paths=tuple(path for path in source.paths if os.path.lexists(path)))


def _lacks_shards(files: Sequence[OpenGguf]) -> bool:
    """Return whether the files are some of the shards of a model."""
    return not files or (is_shard(files[0].header) and len(files) < (files[0].header.integer(SPLIT_COUNT_KEY) or 0))


def _shard_entry(file: OpenGguf, number: int) -> ShardEntry:
    """Return what is known of a file from its header; `number` is that of the shard, from 1."""
    header = file.header
    table = "\n".join(f"{tensor.name} {tensor.dtype.name} {tensor.shape}" for tensor in header.tensors)
    return ShardEntry(
        file=version_of(file),
        location=file.source.name,
        number=number,
        shard_count=(header.integer(SPLIT_COUNT_KEY) or 1) if is_shard(header) else 1,
        set_tensor_count=header.integer(SPLIT_TENSORS_KEY) if is_shard(header) else None,
        tensors_sha256=digest_of(table.encode("utf-8", "surrogateescape")),
        tensor_count=len(header.tensors),
        expert_count=sum(map(_experts_in, header.tensors)),
        parameters=sum(tensor.elements for tensor in header.tensors),
        size_bytes=header.file_size_bytes,
        architecture=header.architecture,
        title=header.text("general.name"),
    )


def _measure_set(
    source: ModelSource,
    files: Sequence[OpenGguf],
    path: Path,
    options: MeasureOptions,
) -> MeasuredModel:
    """Measure the shards that are on the disk, one after another; return all that were measured in any run."""
    name = source.name.name
    check_tensor_sizes(name, (tensor.size_bytes for file in files for tensor in file.header.tensors))
    order = check_shards(name, [(file.source.path.name, file.header) for file in files])
    if order.count > SHARDS_MAX:
        raise BadSplit(name, [f"it has {order.count:,} shards; at most {SHARDS_MAX:,} are measured"])
    present = {number + 1: files[index] for number, index in order.shards}
    with open_journal(path, is_kept=True) as journal:
        earlier = dict(journal.shards)
        new = {number: _shard_entry(file, number) for number, file in present.items()}
        _check_set(name, journal, new)
        measured: dict[int, list[JournalEntry]] = {}
        for number, file in present.items():
            items = options.items(file)
            measured[number] = list(_measure_in_threads(items, journal, options.progress))
            _end_of_file(file, items, options.progress)
            _check_repeated(name, file, measured[number], earlier.get(number), journal)
            if earlier.get(number) != new[number]:
                journal.add_shard(new[number])
            all_items = replace(options, wanted=None).items(file)
            if options.delete_after and all(item.key in journal.known for item in all_items):
                journal.sync()
                _delete(file)
                options.on_delete(Path(file.source.path))
        for number, shard in earlier.items():
            if number not in present and (entries := _kept_entries(shard, options, journal)) is not None:
                measured[number] = entries
        if not measured:
            raise BadSource(f"{source.label}: no shard is on the disk, and none was measured completely before")
        model = _model([(journal.shards[number], measured[number]) for number in sorted(measured)])
    if not model.missing_shards and model.set_tensor_count not in (None, model.tensor_count):
        raise _mixed(name, path, f"{model.set_tensor_count} tensors announced, but there are {model.tensor_count}")
    return model


def _check_set(name: str, journal: Journal, new: Mapping[int, ShardEntry]) -> None:
    """Raise BadSplit if the shards, with those of earlier runs, cannot be of one model."""
    shards = [shard for number, shard in journal.shards.items() if number not in new]
    reasons = []
    for number, shard in new.items():
        before = journal.shards.get(number)
        difference = next(filter(None, (_difference(shard, other) for other in shards)), None)
        if difference is not None:
            reasons.append(f"{shard.location} {difference}")
        elif before is not None and before.tensors_sha256 != shard.tensors_sha256:
            reasons.append(f"{shard.location} has other tensors than shard {number} had when it was measured before")
        shards.append(shard)
    if reasons:
        raise _mixed(name, journal.path, *reasons[:REASONS_MAX])


def _difference(shard: ShardEntry, other: ShardEntry) -> str | None:
    """Return the first difference of a shard from another one of its set, as the end of a sentence."""
    other_says = f"but {other.location} says"
    if shard.shard_count != other.shard_count:
        return f"says {shard.shard_count} for {SPLIT_COUNT_KEY}, {other_says} {other.shard_count}"
    if shard.set_tensor_count != other.set_tensor_count:
        return f"says {shard.set_tensor_count} for {SPLIT_TENSORS_KEY}, {other_says} {other.set_tensor_count}"
    if None not in (shard.architecture, other.architecture) and shard.architecture != other.architecture:
        return f"says {shard.architecture} for the architecture, {other_says} {other.architecture}"
    return None


def _mixed(name: str, journal: Path, *reasons: str) -> BadSplit:
    return BadSplit(
        name, [*reasons, f"to forget the earlier measurements, delete {journal}"], "not shards of one model"
    )


def _check_repeated(
    name: str, file: OpenGguf, entries: Sequence[JournalEntry], earlier: ShardEntry | None, journal: Journal
) -> None:
    """Raise BadSplit if another version of a shard was measured before, and its measurements were others."""
    if earlier is None:
        return
    for entry in entries:
        before = journal.known.get(Key(earlier.file, entry.name, entry.expert))
        if before is not None and not is_equal(before.measurement, entry.measurement):
            reason = f"has other values in its samples than shard {earlier.number} had when it was measured before"
            raise _mixed(name, journal.path, f"{file.source.name} {reason}")


def is_equal(one: Measurement, other: Measurement) -> bool:
    """Return whether two measurements can be of the same bytes: equal up to the differences between machines."""
    for member in fields(Measurement):
        first, second = getattr(one, member.name), getattr(other, member.name)
        if member.name == "nonfinite" and None in (first, second):
            continue  # only the measurement of all data has it
        if isinstance(first, float) and isinstance(second, float):
            if not math.isclose(first, second, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE):
                return False
        elif first != second:
            return False
    return True


def _kept_entries(shard: ShardEntry, options: MeasureOptions, journal: Journal) -> list[JournalEntry] | None:
    """Return the selected measurements of a shard that is not on the disk; None if it was not measured completely."""
    entries = [entry for entry in journal.known.values() if entry.file == shard.file]
    experts = sum(entry.expert is not None for entry in entries)
    if len(entries) - experts != shard.tensor_count or (options.experts and experts != shard.expert_count):
        return None
    entries.sort(key=lambda entry: (entry.position, -1 if entry.expert is None else entry.expert))
    return [entry for entry in entries if options.has(entry.name) and (entry.expert is None or options.experts)]


def _check_deletable(source: ModelSource, files: Sequence[OpenGguf]) -> None:
    """Raise BadSource unless the `files` of `source` are regular files, and shards by their headers."""
    if source.remote:
        raise BadSource(f"{source.label}: only files on this machine can be deleted after their measurement")
    for file in files:
        path = file.source.path
        if file.header.integer(SPLIT_COUNT_KEY) is None:
            raise BadSource(f"{path}: not a shard of a split model; only shards are deleted after their measurement")
        try:
            is_regular = stat.S_ISREG(os.lstat(path).st_mode)
        except OSError as error:
            raise BadSource(f"{path}: {error.strerror}") from error
        if not is_regular:
            raise BadSource(f"{path}: not a regular file, so it would not be deleted; nothing was measured")


def _delete(file: OpenGguf) -> None:
    """Delete a shard, if its path still is the file that was measured, and release its space."""
    source = file.source
    assert isinstance(source, FileSource), "_check_deletable accepts regular files only"
    try:
        if FileIdentity.of(os.lstat(source.path)) != source.identity:
            raise BadSource(f"{source.path}: changed while it was measured; it was not deleted")
        os.unlink(source.path)
    except OSError as error:
        raise StoreUnwritable(f"{source.path}: cannot be deleted: {error.strerror}") from error
    source.close()  # the space is free when no process has the file open


LINE_MAX_BYTES = 1024 * 1024
_FORMAT = f"organ measure 2 {THETA_METHOD} {SPECTRAL_METHOD}"


class Key(NamedTuple):
    """The key of a measurement."""

    file: str
    """The version of a file (see `version_of`)."""
    tensor: str
    expert: int | None = None
    """The number of an expert in the tensor, from 0; None for the whole tensor."""


class JournalEntry(MeasuredTensor, frozen=True, kw_only=True, tag="tensor"):
    """A measured tensor, or a measured expert of it, in a journal."""

    file: str
    """The version of its file."""
    position: int
    """The place of the tensor in its file, from 0."""

    @property
    def key(self) -> Key:
        return Key(self.file, self.name, self.expert)


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True, tag="shard"):
    """A shard of which measurements are in the journal; the shard itself may be deleted."""

    file: str
    """The version of the file."""
    location: str
    number: int
    """From 1."""
    shard_count: int
    """The number of shards of the complete set."""
    set_tensor_count: int | None
    """The number of tensors in the complete set, as the header states it."""
    tensors_sha256: str
    """A digest of the names, types and shapes of its tensors."""
    tensor_count: int
    expert_count: int
    """The number of experts in its stacks of experts."""
    parameters: int
    size_bytes: int
    architecture: str | None
    title: str | None


def journal_path(sources: Sequence[str]) -> Path:
    """Return the path of the journal for the files with these addresses, in the user's cache folder."""
    name = digest_of("\n".join(sources).encode())[:32]
    return Path(platformdirs.user_cache_dir("organ-registry")) / "measure" / f"{name}.jsonl"


@dataclass(slots=True)
class Journal:
    """The measurements of a run so far. Each is written at once, so a run that is killed loses at most one."""

    known: dict[Key, JournalEntry]
    """The measurements of earlier runs and of this run."""
    shards: dict[int, ShardEntry]
    """The shards by number; of several versions of one shard, the last."""
    path: Path
    _descriptor: int

    def add(self, entry: JournalEntry) -> None:
        """Write a measurement; raises StoreUnwritable. Several threads may call it."""
        self._write(entry)
        self.known[entry.key] = entry

    def add_shard(self, entry: ShardEntry) -> None:
        """Write a shard; raises StoreUnwritable."""
        self._write(entry)
        self.shards[entry.number] = entry

    def sync(self) -> None:
        """Make all that was written durable; raises StoreUnwritable."""
        try:
            os.fsync(self._descriptor)
            Files().sync_folder(self.path.parent)
        except OSError as error:
            raise StoreUnwritable(f"{self.path}: {error.strerror}") from error

    def delete(self) -> None:
        """Delete the journal: all its measurements were used."""
        with suppress(OSError):
            self.path.unlink()

    def _write(self, entry: JournalEntry | ShardEntry) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            raise StoreUnwritable(f"the journal cannot be written: {error.strerror}") from error
        if written < len(line):
            raise StoreUnwritable("the journal cannot be written: the disk is full")


@contextmanager
def open_journal(path: Path, *, is_kept: bool = False) -> Iterator[Journal]:
    """Open the journal at `path`, or create it.

    An incomplete last line is discarded, and a journal of other methods too; if `is_kept`, such a journal raises
    BadSource, because the measured files may be deleted. Raises Busy if another process measures the same source,
    StoreUnwritable.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreUnwritable(f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb+", buffering=0) as file:
        lock_file(descriptor, path, Busy("another process measures this source: wait until it is done"))
        known, shards, size_bytes = _read_lines(path)
        if is_kept and not size_bytes and os.fstat(descriptor).st_size > len(_FORMAT) + 1:
            raise BadSource(f"{path}: this journal is of another version of the program; move it away to start again")
        file.truncate(size_bytes)
        if not size_bytes:
            file.write(_FORMAT.encode() + b"\n")
        yield Journal(known, shards, path, descriptor)


def _read_lines(path: Path) -> tuple[dict[Key, JournalEntry], dict[int, ShardEntry], int]:
    """Return the entries in the valid lines at the beginning of a journal, and the size of these lines in bytes."""
    known: dict[Key, JournalEntry] = {}
    shards: dict[int, ShardEntry] = {}
    decoder = msgspec.json.Decoder(prepared(JournalEntry | ShardEntry))
    with path.open("rb") as file:
        first = file.readline(LINE_MAX_BYTES)
        if first != _FORMAT.encode() + b"\n":
            return {}, {}, 0
        size_bytes = len(first)
        while (line := file.readline(LINE_MAX_BYTES)).endswith(b"\n"):
            try:
                entry = decoder.decode(line)
            except msgspec.DecodeError:
                break
            if isinstance(entry, ShardEntry):
                shards[entry.number] = entry
            else:
                known[entry.key] = entry
            size_bytes += len(line)
    return known, shards, size_bytes
