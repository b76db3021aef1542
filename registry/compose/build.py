"""Make a plan or a lock: compute organs, write or only hash the file, and register the chimera."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from sqlalchemy.orm import Session
from threadpoolctl import threadpool_limits

from organs.registry.anatomy import place_of
from organs.registry.assembly import (
    FilePlan,
    FileStream,
    check_readable,
    first_header,
    naming,
    place_file,
    plan_new_file,
)
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.chimeras import chimera_of, computed_organs, names_of_lock
from organs.registry.catalog.queries.model_names import check_model_name, model_with_header, next_version
from organs.registry.catalog.queries.organs import (
    KnownBlob,
    blobs_by_digest,
)
from organs.registry.catalog.records import (
    ChimeraRecord,
    ComputationRecord,
    FileRecord,
    ModelRecord,
    OrganKey,
    PartRecord,
    PlacementRecord,
)
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.chimeras import register_chimera
from organs.registry.catalog.register.models import Registered, register_model
from organs.registry.catalog.register.organs import (
    end_ingest,
    lease_blobs,
    record_blobs,
    record_stacks,
    recorded_ingest,
    shape_text,
)
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import Action
from organs.registry.compose.lock import Lock, checked_header, lock_of
from organs.registry.compose.parents import Part, parts_of
from organs.registry.compose.plan import (
    Plan,
    PlannedComputation,
    chimera_name,
)
from organs.registry.compose.planner import screened
from organs.registry.compose.recipe import recipe_to_json
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.base import encode
from organs.registry.entities.finding import PLAN_CODES
from organs.registry.entities.plan import MadeChimera, Reading, Screen
from organs.registry.errors import (
    BadOrgan,
    CorruptBlob,
    MissingBlob,
    NotAllowed,
    NotAssemblable,
    StoreUnwritable,
)
from organs.registry.experts import expert_count, expert_shape
from organs.registry.gguf import DType, Header, HeaderSource, read_header
from organs.registry.gguf.header import around, field_type_text, field_value_text, large_values
from organs.registry.gguf.read import tags_of
from organs.registry.measure import Measurement, count_nonfinite_in, measure
from organs.registry.names import ModelName, name_from_text
from organs.registry.relatives import record_relatives
from organs.registry.store import BlobStore, PlainReader, StoredBlob
from organs.registry.store.codec import codec_for
from organs.registry.store.files import (
    Files,
    check_room,
    placing_error,
)
from organs.registry.transform import Adapter, Computation, Plain, Purification, PurifyMethod, computed
from organs.registry.transform.values import Read

SPOOLED_MAX_BYTES = 64 * 1024 * 1024
"""A result up to this size waits for its digest in memory, a larger one in a temporary file."""

PIECE_BYTES = 4 * 1024 * 1024
"""Bytes of one read when values that are NaN or infinite are counted."""

Rows = Mapping[Digest, KnownBlob]


@dataclass(frozen=True, slots=True)
class ComputedBlobs:
    """A computed organ; its bytes are durable, its rows are not written yet."""

    digest: Digest
    size_bytes: int
    blobs: tuple[StoredBlob, ...]
    """The organ; of a stack, the experts that were not stored before."""
    measurement: Measurement
    parts: tuple[Digest, ...] = ()
    """The experts of a stack."""
    experts: Mapping[OrganKey, Measurement] = field(default_factory=dict)
    """The measurements of the experts that were not stored before."""


def compute_organ(
    store: BlobStore,
    computation: PlannedComputation,
    rows: Rows,
    stored: Callable[[Collection[Digest]], Collection[Digest]],
) -> ComputedBlobs:
    """Compute an organ from the blobs `rows` of its ingredients, and store it; a stack is stored as its experts.

    `stored` returns which of the given digests need not be stored. No rows are written. Raises BadOrgan with the
    tensor's name, StoreError; experts that were stored before an error have files without rows, which a sweep removes.
    """
    with ExitStack() as opened, threadpool_limits(1, "blas"):
        transformation = _transformation(store, computation, rows, opened)
        is_of_experts = computation.grafted or computation.purified_experts
        if is_of_experts and computation.changes_single_experts:
            pieces = _expert_pieces(transformation, computation.purified_experts)
        else:
            pieces = computed(transformation)
        spool = opened.enter_context(tempfile.SpooledTemporaryFile(SPOOLED_MAX_BYTES))
        digest, size_bytes = _write_spool(spool, pieces, computation.source.name)
        measurement = _measure(_Slice(spool, 0, size_bytes), computation.source.shape, computation.dtype)
        source = computation.source
        count = expert_count(place_of(source.name), source.shape, computation.dtype)
        if count and rows[source.digest].parts:  # a stack that is one blob, above the limits of its file, stays one
            experts = [_Slice(spool, number * size_bytes // count, size_bytes // count) for number in range(count)]
            return _store_stack(store, computation, experts, digest, measurement, stored)
        spool.seek(0)
        blob = store.put_organ(digest, size_bytes, codec_for(computation.dtype.name), spool.read)
    return ComputedBlobs(digest, size_bytes, (blob,), measurement)


@dataclass(frozen=True, slots=True)
class _Slice:
    """A range of the bytes of a computed organ."""

    spool: IO[bytes]
    begin: int
    size_bytes: int

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the slice."""
        self.spool.seek(self.begin + offset)
        return self.spool.read(size)

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes in order."""
        for offset in range(0, self.size_bytes, PIECE_BYTES):
            yield self.read(offset, min(PIECE_BYTES, self.size_bytes - offset))

    def digest(self) -> Digest:
        """Return the SHA-256 of all bytes."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return Digest(digest.hexdigest())


def _measure(organ: _Slice, shape: tuple[int, ...], dtype: DType) -> Measurement:
    nonfinite = count_nonfinite_in(organ.pieces(), dtype)
    return replace(measure(organ.read, shape, dtype), nonfinite=nonfinite)


def _store_stack(
    store: BlobStore,
    computation: PlannedComputation,
    experts: Sequence[_Slice],
    digest: Digest,
    measurement: Measurement,
    stored: Callable[[Collection[Digest]], Collection[Digest]],
) -> ComputedBlobs:
    """Store the experts of a stack that are not stored yet."""
    dtype, shape = computation.dtype, expert_shape(computation.source.shape)
    parts = tuple(expert.digest() for expert in experts)
    known = set(stored(set(parts)))
    blobs: list[StoredBlob] = []
    measured: dict[OrganKey, Measurement] = {}
    for part, expert in zip(parts, experts, strict=True):
        if part not in known:
            known.add(part)
            expert.spool.seek(expert.begin)
            blobs.append(store.put_organ(part, expert.size_bytes, codec_for(dtype.name), expert.spool.read))
            measured[part, dtype.name, shape_text(shape)] = _measure(expert, shape, dtype)
    size_bytes = sum(expert.size_bytes for expert in experts)
    return ComputedBlobs(digest, size_bytes, tuple(blobs), measurement, parts, measured)


def _expert_pieces(transformation: Computation, purified: Collection[int]) -> Iterator[bytes]:
    """Yield the experts of the source in order: those of `purified` purified, the bytes of the others as they are."""
    source = transformation.source
    size_bytes = source.size_bytes // source.shape[-1]
    for number in range(source.shape[-1]):
        begin = number * size_bytes
        if number in purified:
            expert = Plain(_shifted(source.read, begin), source.dtype, expert_shape(source.shape))
            yield from computed(replace(transformation, source=expert))
        else:
            for offset in range(begin, begin + size_bytes, PIECE_BYTES):
                yield bytes(source.read(offset, min(PIECE_BYTES, begin + size_bytes - offset)))


def _shifted(read: Read, begin: int) -> Read:
    return lambda offset, size: read(begin + offset, size)


def _with_experts(stack: Plain, grafts: Sequence[tuple[Plain, Collection[int]]]) -> Plain:
    """Return `stack` with experts of other stacks of the same shape and dtype, at the same numbers."""
    if not grafts:
        return stack
    size_bytes = stack.size_bytes // stack.shape[-1]
    readers = [stack.read] * stack.shape[-1]
    for other, numbers in grafts:
        for number in numbers:
            readers[number] = other.read

    def read(offset: int, size: int) -> bytes:
        pieces = []
        while size:
            number, within = divmod(offset, size_bytes)
            step = min(size, size_bytes - within)
            pieces.append(bytes(readers[number](offset, step)))
            offset, size = offset + step, size - step
        return b"".join(pieces)

    return Plain(read, stack.dtype, stack.shape)


def _transformation(store: BlobStore, computation: PlannedComputation, rows: Rows, opened: ExitStack) -> Computation:
    def plain(ingredient: Part) -> Plain:
        row = rows.get(ingredient.digest)
        if row is None:
            raise MissingBlob(f"{ingredient.name} ({ingredient.digest[:12]}) is missing from the store")
        with naming(ingredient.name, ingredient.digest):
            reader = opened.enter_context(store.open(row))
        return Plain(_buffered(reader, ingredient), ingredient.dtype, ingredient.shape)

    adapters = tuple(
        Adapter(plain(addition.a), plain(addition.b), addition.alpha, addition.scale)
        for addition in computation.additions
    )
    purification = None
    if computation.method is not None:
        method = PurifyMethod(computation.method)
        purification = Purification(method) if computation.keep is None else Purification(method, computation.keep)
    grafts = [(plain(graft.after), graft.experts) for graft in computation.grafted]
    source = _with_experts(plain(computation.source), grafts)
    return Computation(source, computation.dtype, adapters, computation.is_token_embedding, purification)


def _buffered(reader: PlainReader, ingredient: Part) -> Callable[[int, int], bytes]:
    """Return a function that reads a blob. It caches the chunk that was decoded last, because reads are in order."""
    cached: list[tuple[int, bytes]] = []

    def read(offset: int, size: int) -> bytes:
        pieces = []
        for chunk in reader.chunks:
            begin, end = chunk.plain_offset_bytes, chunk.plain_offset_bytes + chunk.plain_size_bytes
            if begin < offset + size and end > offset:
                if not cached or cached[0][0] != begin:
                    plain = bytearray(chunk.plain_size_bytes)
                    with naming(ingredient.name, ingredient.digest):
                        reader.read_chunk(chunk, memoryview(plain))
                    cached[:] = [(begin, bytes(plain))]
                pieces.append(cached[0][1][max(0, offset - begin) : offset + size - begin])
        return b"".join(pieces)

    return read


def _write_spool(spool: IO[bytes], pieces: Iterator[bytes], name: str) -> tuple[Digest, int]:
    digest, size_bytes = hashlib.sha256(), 0
    try:
        for piece in pieces:
            digest.update(piece)
            spool.write(piece)
            size_bytes += len(piece)
    except BadOrgan as error:
        raise BadOrgan(f"{name}: {error}") from error
    except OSError as error:  # from the temporary file: the store translates its own errors
        raise placing_error(error, Path(tempfile.gettempdir()) / name) from error
    return Digest(digest.hexdigest()), size_bytes


@dataclass(frozen=True, slots=True)
class LockedGguf:
    """The file of a chimera, from its lock."""

    plan: Plan
    lock: Lock
    header_bytes: bytes
    """The header with its padding."""
    header: Header

    @classmethod
    def of(cls, plan: Plan, digests: Mapping[str, Digest]) -> LockedGguf:
        """Return the file of `plan`; `digests` has those of the computed organs."""
        lock = plan.lock(digests)
        header = plan.header(lock)
        return cls(plan, lock, header, read_header(HeaderSource(header, plan.size_bytes, plan.file_name)))

    @property
    def literal(self) -> bytes:
        """The header without its large values, which are separate blobs."""
        spans = around(large_values(self.header), self.header.end)
        return b"".join(self.header_bytes[span.offset : span.end] for span in spans)

    @property
    def values(self) -> list[bytes]:
        """The large values of the header, in file order."""
        return [self.header_bytes[span.offset : span.end] for span in large_values(self.header)]


def record_chimera(
    session: Session,
    file: LockedGguf,
    name: ModelName,
    sha256: Digest,
    computed: Mapping[str, ComputedBlobs],
    contributor: str,
) -> Registered:
    """Register the chimera of `contributor` whose file has the digest `sha256`; all its blobs must have rows.

    `computed` has the organs that were computed in this run, by the names of their tensors.
    """
    header, plan = file.header, file.plan
    measured = {tensor: item.measurement for tensor, item in computed.items()}
    record = ModelRecord(
        name=name,
        digest=sha256,
        kind="model",
        architecture=header.architecture,
        title=header.text("general.name"),
        description=header.text("general.description"),
        license=header.text("general.license"),
        size_label=header.text("general.size_label"),
        metadata=tuple((item.key, field_type_text(item), field_value_text(item)) for item in header.fields),
        files=(
            FileRecord(
                name=plan.file_name,
                size_bytes=header.file_size_bytes,
                sha256=sha256,
                header_sha256=digest_of(file.header_bytes[: header.end]),
                header_bytes=header.end,
                parts=tuple(_parts(file)),
                placements=tuple(_placements(file, measured)),
            ),
        ),
        tags=tuple(tags_of(HeaderSource(file.header_bytes, header.file_size_bytes), header)),
        complete=plan.base.complete,
        action=Action.COMPOSE,
        contributor=contributor,
        experts={key: reading for item in computed.values() for key, reading in item.experts.items()},
    )
    registered = register_model(session, record, keep_name=True)
    if chimera_of(session, registered.model.id) is None:
        # Measurements of computed organs complete the plan's screen.
        computations = plan.computations
        results = {part.name: part for part in parts_of(session, registered.model.id) if part.name in computations}
        screen = screened(plan.parts, results) if computations else plan.screen
        register_chimera(session, registered.model, _chimera_record(file, screen))
    if registered.created:
        record_relatives(session, registered.model)
    return registered


def _parts(file: LockedGguf) -> Iterator[PartRecord]:
    literal, position = digest_of(file.literal), 0
    values = large_values(file.header)
    for span in around(values, file.header.end):
        if span.size_bytes:
            yield PartRecord(span.offset, span.size_bytes, literal, position)
        position += span.size_bytes
    for span, data in zip(values, file.values, strict=True):
        yield PartRecord(span.offset, span.size_bytes, digest_of(data), 0)


def _placements(file: LockedGguf, measured: Mapping[str, Measurement]) -> Iterator[PlacementRecord]:
    header = file.header
    for tensor, locked, planned in zip(header.tensors, file.lock.tensors, file.plan.parts, strict=True):
        measurement = measured.get(tensor.name)
        yield PlacementRecord(
            name=tensor.name,
            place=planned.before.place,
            digest=locked.digest,
            dtype=tensor.dtype.name,
            shape=tensor.shape,
            size_bytes=tensor.size_bytes,
            offset_bytes=header.data_offset + tensor.offset,
            measurement=measurement,
            nonfinite=None if measurement is None else measurement.nonfinite,
        )


def _chimera_record(file: LockedGguf, screen: Screen) -> ChimeraRecord:
    plan = file.plan
    assert plan.base.model_id is not None
    return ChimeraRecord(
        lock_id=file.lock.id,
        base_model_id=plan.base.model_id,
        recipe=recipe_to_json(plan.recipe),
        findings=encode([finding for finding in plan.findings if finding.code not in PLAN_CODES]).decode(),
        screen=encode(screen).decode(),
        origins=json.dumps(_origins(plan), ensure_ascii=False, separators=(",", ":"), allow_nan=False),
        parents=tuple(_acts(plan)),
        computations=tuple(_computations(file)),
    )


def _origins(plan: Plan) -> dict[str, Any]:
    """Return the origins of all tensors that are not the base's own: `parents` (number 0 is the base) and `parts`.

    A part has the number of a model and the acts. The model is that of its organ, or of the source of its computation.
    `adapters` has the numbers of the adapters that were merged into a tensor; `experts` the grafted experts of stacks
    by the numbers of the models, `purified_experts` the purified ones.
    """
    labels = {parent.label: number for number, parent in enumerate(plan.parents)}
    grafts = {part.before.name: part.expert_grafts for part in plan.parts if part.expert_grafts}
    return {
        "adapters": {
            part.before.name: [labels[adapter.label] for adapter in part.adapters]
            for part in plan.parts
            if part.adapters
        },
        "experts": {
            name: [[labels[graft.donor.label], graft.experts] for graft in replacements]
            for name, replacements in grafts.items()
        },
        "purified_experts": {
            name: computation.purified_experts
            for name, computation in plan.computations.items()
            if computation.purified_experts
        },
        "parents": [parent.label for parent in plan.parents],
        "parts": {
            part.before.name: [labels[part.origin.label] if part.origin else 0, *part.acts]
            for part in plan.parts
            if part.acts
        },
    }


def _acts(plan: Plan) -> Iterator[tuple[int, str]]:
    """Yield the ids of the registered parents, each with an act by which the chimera uses the parent."""
    done = {act for part in plan.parts for act in part.acts}
    first = next(act for act in ("grafted", "adapter", "purified") if act in done)
    assert plan.base.model_id is not None
    yield plan.base.model_id, first
    for part in plan.parts:
        for donor in (part.donor, *(graft.donor for graft in part.expert_grafts)):
            if donor is not None and donor.model_id is not None:
                yield donor.model_id, "grafted"
        for adapter in part.adapters:
            if adapter.model_id is not None:
                yield adapter.model_id, "adapter"


def _computations(file: LockedGguf) -> Iterator[ComputationRecord]:
    for planned, locked in zip(file.plan.parts, file.lock.tensors, strict=True):
        computation = planned.computation
        if computation is not None:
            organ = (locked.digest, locked.spec.dtype.name, shape_text(locked.spec.shape))
            yield ComputationRecord(computation.key, computation.document(), organ, tuple(_sources(computation)))


def _sources(computation: PlannedComputation) -> Iterator[tuple[OrganKey, str]]:
    yield _key(computation.source), computation.acts[-1]
    for graft in computation.grafted:
        yield _key(graft.after), "grafted"
    for addition in computation.additions:
        yield _key(addition.a), "adapter"
        yield _key(addition.b), "adapter"


def _key(ingredient: Part) -> OrganKey:
    return ingredient.digest, ingredient.dtype.name, shape_text(ingredient.shape)


Progress = Callable[[str, int], None]
"""A callback with the current action and the number of bytes since the last call."""


def make(
    catalog: Catalog,
    store: BlobStore,
    plan: Plan,
    *,
    path: Path | None = None,
    progress: Progress | None = None,
    contributor: str = LOCAL,
) -> MadeChimera:
    """Make the chimera of `plan` and register it for the contributor; with `path`, write its file there.

    If the name of the recipe has other bytes, a new version is made. Without a name in the recipe, the name follows the
    convention, and ends in digits of the lock if other bytes have it. Raises NotComposable for a plan that cannot be
    made, NotAllowed for a name in another namespace, BadOrgan, StoreError, DiskFull; then nothing is registered and
    `path` is unchanged. The file is written first: if the catalog fails after that, the file exists and is not
    registered.
    """
    name = chimera_name(plan.recipe, plan.stem, contributor)
    check_own(name, contributor)
    with catalog.reading() as session:
        check_model_name(session, name)
    plan.check()
    if path is not None:
        _check_place(path, plan.size_bytes)
    with recorded_ingest(catalog, f"composed as {name}") as ingest_id:
        return _Build(
            catalog, store, plan, ingest_id, progress or (lambda _action, _size_bytes: None), contributor
        ).make(name, path)


def check_own(name: ModelName, contributor: str) -> None:
    """Raise NotAllowed for a namespace that is not the contributor's; `local` can use any namespace."""
    if contributor not in (LOCAL, name.namespace):
        raise NotAllowed(f"{name.namespace} is not your namespace: name the chimera {contributor}/{name.name}")


def _check_place(path: Path, size_bytes: int) -> None:
    """Raise the errors of writing the file that can be found before organs are computed."""
    try:
        if path.is_dir():
            raise StoreUnwritable(f"{path} is a folder: give the path of a file")
        if not path.parent.is_dir():
            raise StoreUnwritable(f"{path.parent}: the folder does not exist")
        check_room(path.parent, size_bytes, Files())
    except OSError as error:
        raise placing_error(error, path) from error


@dataclass(slots=True)
class _Build:
    """The state of making one plan."""

    catalog: Catalog
    store: BlobStore
    plan: Plan
    ingest_id: int
    progress: Progress
    contributor: str
    computed: dict[str, ComputedBlobs] = field(default_factory=dict)
    """Organs that were computed in this run, by the names of their tensors."""
    known: dict[str, Digest] = field(default_factory=dict)
    """Digests of organs that an earlier run computed."""

    def make(self, name: ModelName, path: Path | None) -> MadeChimera:
        self._compute()
        file = LockedGguf.of(self.plan, self.known | {tensor: item.digest for tensor, item in self.computed.items()})
        rows = self._store_header([file.literal, *file.values], file.lock)
        tensors = [tensor.spec for tensor in file.lock.tensors]
        blobs = [rows[tensor.digest] for tensor in file.lock.tensors]
        planned = plan_new_file(self.plan.file_name, file.header_bytes, tensors, file.header.alignment, blobs)
        sha256 = self._write(planned, path)
        measured = {tensor: item.measurement for tensor, item in self.computed.items()}
        with self.catalog.writing() as session:
            if self.plan.recipe.name is None:
                name = _unused_name(session, name, file.lock.id)
            registered = record_chimera(session, file, name, sha256, self.computed, self.contributor)
            report = json.dumps({"lock": file.lock.id, "size_bytes": planned.size_bytes})
            end_ingest(session, self.ingest_id, "finished", report, registered.model.id)
        model = registered.model.full_name
        return MadeChimera(
            model=model,
            lock_id=file.lock.id,
            sha256=sha256,
            size_bytes=planned.size_bytes,
            created=registered.created,
            computed={
                name: Reading(theta=item.theta, spectral_signal=item.spectral_signal) for name, item in measured.items()
            },
        )

    def _compute(self) -> None:
        computations = self.plan.computations
        with self.catalog.reading() as session:
            known = computed_organs(session, {item.key for item in computations.values()})
            rows = blobs_by_digest(
                session, {ingredient.digest for item in computations.values() for ingredient in item.ingredients}
            )
        if rows:
            with self.catalog.writing() as session:
                lease_blobs(session, self.ingest_id, [row.id for row in rows.values()])
        for tensor, computation in computations.items():
            if computation.key in known:
                self.known[tensor] = known[computation.key]
                continue
            organ = compute_organ(self.store, computation, rows, self._stored)
            self.computed[tensor] = organ
            self._record(organ.blobs, {organ.digest: organ.parts} if organ.parts else {})
            self.progress("compute", organ.size_bytes)

    def _stored(self, digests: Collection[Digest]) -> set[Digest]:
        """Return the digests whose bytes are stored, leased from now on."""
        with self.catalog.writing() as session:
            rows = blobs_by_digest(session, digests).values()
            stored = [row for row in rows if row.state != "corrupt" and not row.parts]
            lease_blobs(session, self.ingest_id, [row.id for row in stored])
        return {row.digest for row in stored}

    def _store_header(self, pieces: Sequence[bytes], lock: Lock) -> dict[Digest, KnownBlob]:
        """Store the header's pieces; return the rows of all tensors, leased."""
        self._record([self.store.put(piece) for piece in pieces if piece])
        digests = {tensor.digest for tensor in lock.tensors}
        with self.catalog.writing() as session:
            rows = blobs_by_digest(session, digests)
            lease_blobs(session, self.ingest_id, [row.id for row in rows.values()])
        for tensor in lock.tensors:
            if tensor.digest not in rows:
                raise MissingBlob(
                    f"{tensor.spec.name} ({tensor.digest[:12]}) was removed by a sweep: run the command again"
                )
            check_readable(self.store, rows[tensor.digest], tensor.spec.name)
        return rows

    def _write(self, file: FilePlan, path: Path | None) -> Digest:
        if path is not None:
            return place_file(self.store, file, path, lambda size_bytes: self.progress("write", size_bytes))
        digest = hashlib.sha256()
        with FileStream(self.store, file) as stream:
            for view in stream:
                digest.update(view)
                self.progress("hash", len(view))
        return Digest(digest.hexdigest())

    def _record(self, blobs: Sequence[StoredBlob], stacks: Mapping[Digest, Sequence[Digest]] | None = None) -> None:
        with self.catalog.writing() as session:
            unused = record_blobs(session, self.ingest_id, blobs)
            record_stacks(session, self.ingest_id, stacks or {})
        for file in unused:
            self.store.backend.remove(file)


LOCK_DIGITS, STEM_MAX_LENGTH = 6, 88
"""The digits of a lock in a name, and the most characters before them."""


def _unused_name(session: Session, name: ModelName, lock_id: str) -> ModelName:
    """Return `name` if it is new in this registry or has this lock, else `name` and the first digits of the lock."""
    same = {full_name.partition("@")[0] for full_name in names_of_lock(session, lock_id)}
    if str(name) in same or next_version(session, name) == 1:
        return name
    return replace(name, name=name_from_text(f"{name.name[:STEM_MAX_LENGTH]}-{lock_id[:LOCK_DIGITS]}"))


MISSING_SHOWN = 20
"""Missing organs in the message."""


def plan_lock(session: Session, store: BlobStore, lock: Lock, name: str) -> FilePlan:
    """Return the file that `lock` describes, called `name`. Nothing is registered.

    Raises NotAssemblable with all missing parts, BadLock for a lock that describes no valid file, StoreError.
    """
    base = model_with_header(session, lock.header)
    rows = blobs_by_digest(session, {tensor.digest for tensor in lock.tensors})
    missing = [] if base is not None else [f"no model in this registry has the header {lock.header[:12]} of its base"]
    missing += _missing(store, lock, rows)
    if missing or base is None:
        raise NotAssemblable(f"the lock {lock.id[:12]}", missing)
    read = first_header(session, store, base)
    data, _ = checked_header(read.header, read.source, lock)
    tensors = [tensor.spec for tensor in lock.tensors]
    return plan_new_file(name, data, tensors, read.header.alignment, [rows[tensor.digest] for tensor in lock.tensors])


def lock_of_model(session: Session, store: BlobStore, model: ModelRow) -> Lock | None:
    """Return the lock in the header of `model`; None without a lock."""
    read = first_header(session, store, model)
    return lock_of(read.header, read.source)


def _missing(store: BlobStore, lock: Lock, rows: Mapping[Digest, KnownBlob]) -> list[str]:
    """Return a reason for each tensor whose organ is missing, damaged or of another size, up to a limit."""
    reasons = []
    for tensor in lock.tensors:
        row = rows.get(tensor.digest)
        if row is None:
            reasons.append(f"the organ {tensor.digest[:12]} of {tensor.spec.name} is missing")
        elif not _is_readable(store, row):
            reasons.append(f"the organ {tensor.digest[:12]} of {tensor.spec.name} is damaged")
        elif row.size_bytes != tensor.spec.size_bytes:
            reasons.append(f"{tensor.digest[:12]} is not {tensor.spec.dtype.name} of the shape of {tensor.spec.name}")
    more = len(reasons) - MISSING_SHOWN
    return reasons[:MISSING_SHOWN] + ([f"and {more} more"] if more > 0 else [])


def _is_readable(store: BlobStore, row: KnownBlob) -> bool:
    try:
        check_readable(store, row, "organ")
    except (CorruptBlob, MissingBlob):
        return False
    return True
