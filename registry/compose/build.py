"""Make a plan or a lock: compute organs, write or only hash the file, and register the chimera."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

from sqlalchemy.orm import Session
from threadpoolctl import threadpool_limits

from organs.registry.anatomy import place_of
from organs.registry.assembly import (
    FilePlan,
    check_readable,
    first_header,
    place_file,
    plan_new_file,
    stored_digest,
)
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries import model_contents
from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest, blobs_by_id
from organs.registry.catalog.queries.chimeras import chimera_of, computed_organs, names_of_lock
from organs.registry.catalog.queries.model_names import check_model_name, model_with_header, next_version
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
from organs.registry.catalog.register.model_changes import inherit_texts
from organs.registry.catalog.register.models import register_model
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
from organs.registry.compose.ingredients import ReadPart, Rows, stored_plain, transformation_of
from organs.registry.compose.lock import Lock, LockedTensor, checked_header, lock_of
from organs.registry.compose.parents import Part, parts_of
from organs.registry.compose.plan import (
    NOT_YET,
    Plan,
    PlannedComputation,
    chimera_name,
    origins_of,
)
from organs.registry.compose.quantisation import types_text
from organs.registry.compose.recipe import TEMPLATE_KEY, recipe_to_json
from organs.registry.compose.screen import screened
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.base import encode
from organs.registry.entities.finding import PLAN_CODES
from organs.registry.entities.lineage import QUANTIZED
from organs.registry.entities.plan import ADAPTER, GRAFTED, MERGED, PLACED, QUANTISED, MadeChimera, Reading
from organs.registry.errors import (
    BadOrgan,
    CorruptBlob,
    MissingBlob,
    NotAllowed,
    NotAssemblable,
    StoreUnwritable,
)
from organs.registry.experts import expert_count, expert_shape
from organs.registry.gguf import DType, Header, HeaderSource, TensorInfo, read_header
from organs.registry.gguf.header import around, field_type_text, field_value_text, large_values
from organs.registry.gguf.read import tags_of
from organs.registry.measure import Measurement, count_nonfinite_in, measure
from organs.registry.names import ModelName, name_from_text, parse_model_name
from organs.registry.relatives import record_relatives
from organs.registry.store import BlobStore, StoredBlob
from organs.registry.store.codec import codec_for
from organs.registry.store.files import (
    Files,
    check_room,
    placing_error,
    translating,
)
from organs.registry.transform import (
    Plain,
    computed,
    experts_copied,
)

SPOOLED_MAX_BYTES = 64 * 1024 * 1024
"""A result up to this size waits for its digest in memory, a larger one in a temporary file."""

SHARED_MIN_BYTES = 4096
"""The smallest part of a header that is not stored again if the base has it."""

PIECE_BYTES = 4 * 1024 * 1024
"""Bytes of one read when values that are NaN or infinite are counted."""


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
    source, dtype = computation.source, computation.dtype
    with ExitStack() as opened, threadpool_limits(1, "blas"):
        pieces = _computed_bytes(computation, partial(stored_plain, store, rows=rows, opened=opened))
        spool = opened.enter_context(tempfile.SpooledTemporaryFile(SPOOLED_MAX_BYTES))
        hashed, size_bytes = hashlib.sha256(), 0
        try:
            for piece in pieces:
                hashed.update(piece)
                spool.write(piece)
                size_bytes += len(piece)
        except OSError as error:  # from the temporary file: the store translates its own errors
            raise placing_error(error, Path(tempfile.gettempdir()) / source.name) from error
        digest, whole, result = Digest(hashed.hexdigest()), _Slice(spool, 0, size_bytes), computation.shape
        measurement = whole.measurement(result, dtype)
        count = expert_count(place_of(source.name), result, dtype)
        if not count or not rows[source.digest].parts:  # a stack above the limits of its file stays one blob
            return ComputedBlobs(digest, size_bytes, (whole.stored(store, digest, dtype),), measurement)
        experts = [_Slice(spool, number * size_bytes // count, size_bytes // count) for number in range(count)]
        parts, shape = tuple(expert.digest() for expert in experts), expert_shape(result)
        known = set(stored(set(parts)))
        blobs: list[StoredBlob] = []
        measured: dict[OrganKey, Measurement] = {}
        for part, expert in zip(parts, experts, strict=True):
            if part not in known:
                known.add(part)
                blobs.append(expert.stored(store, part, dtype))
                measured[part, dtype.name, shape_text(shape)] = expert.measurement(shape, dtype)
        return ComputedBlobs(digest, size_bytes, tuple(blobs), measurement, parts, measured)


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

    def measurement(self, shape: tuple[int, ...], dtype: DType) -> Measurement:
        """Return the measures of the organ that the slice is."""
        nonfinite = count_nonfinite_in(self.pieces(), dtype)
        return replace(measure(self.read, shape, dtype), nonfinite=nonfinite)

    def stored(self, store: BlobStore, digest: Digest, dtype: DType) -> StoredBlob:
        """Store the organ that the slice is, and return its blob."""
        self.spool.seek(self.begin)
        return store.put_organ(digest, self.size_bytes, codec_for(dtype.name), self.spool.read)


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
    proposed_name: str | None = None,
) -> MadeChimera:
    """Make the chimera of `plan` and register it for the contributor; with `path`, write its file there.

    If the name of the recipe has other bytes, a new version is made. Without a name in the recipe, a chimera of the
    contributor with the same lock is that chimera; a new one has `proposed_name`, or a name by the convention, which
    ends in digits of the lock if other bytes have it. Raises NotComposable for a plan that cannot be made, NotAllowed
    for a name in another namespace, BadOrgan, StoreError, DiskFull; then nothing is registered and `path` is unchanged.
    The file is written first: if the catalog fails after that, the file exists and is not registered.
    """
    name = chimera_name(plan.recipe, proposed_name or plan.stem, contributor)
    check_own(name, contributor)
    with catalog.reading() as session:
        check_model_name(session, name)
    plan.check()
    if path is not None:
        _check_place(path, plan.size_bytes)
    with recorded_ingest(catalog, f"composed as {name}") as ingest_id:
        build = _Build(catalog, store, ingest_id, progress or (lambda _action, _size_bytes: None))
        digests, computed = build.compute(plan.computations)
        lock = plan.lock(digests)
        data = plan.header(lock)
        header = read_header(HeaderSource(data, plan.size_bytes, plan.file_name))
        with catalog.reading() as session:
            shared = _shared_part(session, data, header, plan)
        pieces, header_parts = _header_parts(data, header, shared)
        rows = build.store_header(pieces, lock, shared)
        tensors = [tensor.spec for tensor in lock.tensors]
        blobs = [rows[tensor.digest] for tensor in lock.tensors]
        file = plan_new_file(plan.file_name, data, tensors, header.alignment, blobs)
        sha256 = build.write(file, path)
        file_record = FileRecord(
            name=plan.file_name,
            size_bytes=header.file_size_bytes,
            sha256=sha256,
            header_sha256=digest_of(data[: header.end]),
            header_bytes=header.end,
            parts=header_parts,
            placements=tuple(_placements(plan, lock, header, computed)),
        )
        with catalog.writing() as session:
            if plan.recipe.name is None:
                name = _unused_name(session, name, lock.id)
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
                files=(file_record,),
                tags=tuple(tags_of(HeaderSource(data, header.file_size_bytes), header)),
                complete=plan.base.complete,
                action=Action.COMPOSE,
                contributor=contributor,
                experts={key: reading for item in computed.values() for key, reading in item.experts.items()},
            )
            registered = register_model(session, record, keep_name=True)
            if chimera_of(session, registered.model.id) is None:
                _register_chimera(session, registered.model, plan, lock)
                inherit_texts(
                    session,
                    registered.model,
                    [parent.model_id for parent in plan.parents if parent.model_id is not None],
                    has_own_template=any(key.startswith(TEMPLATE_KEY) for key in plan.recipe.metadata),
                )
            if registered.created:
                record_relatives(session, registered.model)
            report = json.dumps({"lock": lock.id, "size_bytes": file.size_bytes})
            end_ingest(session, ingest_id, "finished", report, registered.model.id)
    return MadeChimera(
        model=registered.model.full_name,
        lock_id=lock.id,
        sha256=sha256,
        size_bytes=file.size_bytes,
        created=registered.created,
        computed={
            tensor: Reading(theta=item.measurement.theta, spectral_signal=item.measurement.spectral_signal)
            for tensor, item in computed.items()
        },
    )


OpenPart = Callable[[Part, ExitStack], Plain]
"""Returns the bytes of a tensor, until the stack closes."""


def write_unregistered(
    plan: Plan, open_part: OpenPart, path: Path, threads: int, progress: Progress | None = None
) -> None:
    """Write the file of a plan to `path`, with several threads; nothing is stored and registered.

    `open_part` gives its ingredients. Its header has a lock without the digests of computed organs. Raises
    NotComposable for a plan that cannot be made, BadOrgan, DiskFull, and the errors of `open_part`.
    """
    plan.check()
    _check_place(path, plan.size_bytes)
    data = plan.header(plan.lock(dict.fromkeys(plan.computations, NOT_YET)))
    header = read_header(HeaderSource(data, plan.size_bytes, plan.file_name))
    parts = {part.spec.name: part for part in plan.parts}
    with translating(path, placing_error), path.open("wb") as file:
        file.truncate(header.file_size_bytes)
        os.pwrite(file.fileno(), data, 0)

        def write_tensor(info: TensorInfo) -> None:
            part, offset = parts[info.name], header.data_offset + info.offset
            with ExitStack() as opened:
                if part.computation is not None:
                    pieces = _computed_bytes(part.computation, lambda one: open_part(one, opened))
                else:
                    plain = open_part(part.source, opened)
                    size = plain.size_bytes
                    starts = range(0, size, PIECE_BYTES)
                    pieces = (bytes(plain.read(start, min(PIECE_BYTES, size - start))) for start in starts)
                for piece in pieces:
                    os.pwrite(file.fileno(), piece, offset)
                    offset += len(piece)
            if progress is not None:
                progress("write", info.size_bytes)

        with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
            deque(pool.map(write_tensor, header.tensors), maxlen=0)


def _computed_bytes(computation: PlannedComputation, plain: ReadPart) -> Iterator[bytes]:
    """Yield the bytes of a computed organ. Raises BadOrgan with the tensor's name, and the errors of `plain`."""
    transformation = transformation_of(computation, plain)
    try:
        if computation.copies_experts:
            yield from experts_copied(transformation, computation.purified_experts)
        else:
            yield from computed(transformation)
    except BadOrgan as error:
        raise BadOrgan(f"{computation.source.name}: {error}") from error


def check_own(name: ModelName, contributor: str) -> None:
    """Raise NotAllowed for a namespace that is not the contributor's; `local` can use any namespace."""
    if contributor not in (LOCAL, name.namespace):
        raise NotAllowed(f"{name.namespace} is not your namespace: name the chimera {contributor}/{name.name}")


def _check_place(path: Path, size_bytes: int) -> None:
    """Raise the errors of writing the file that can be found before organs are computed."""
    with translating(path, placing_error):
        if path.is_dir():
            raise StoreUnwritable(f"{path} is a folder: give the path of a file")
        if not path.parent.is_dir():
            raise StoreUnwritable(f"{path.parent}: the folder does not exist")
        check_room(path.parent, size_bytes, Files())


@dataclass(frozen=True, slots=True)
class _Build:
    """Writes the blobs and the file of one plan."""

    catalog: Catalog
    store: BlobStore
    ingest_id: int
    progress: Progress

    def compute(
        self, computations: Mapping[str, PlannedComputation]
    ) -> tuple[dict[str, Digest], dict[str, ComputedBlobs]]:
        """Return the digests of all computed organs, and those that were computed now, by the names of the tensors."""
        with self.catalog.reading() as session:
            known = computed_organs(session, {item.key for item in computations.values()})
            rows = blobs_by_digest(
                session, {ingredient.digest for item in computations.values() for ingredient in item.ingredients}
            )
        if rows:
            with self.catalog.writing() as session:
                lease_blobs(session, self.ingest_id, [row.id for row in rows.values()])
        digests, computed = {}, {}
        done: dict[str, ComputedBlobs] = {}  # a block that is repeated has equal organs
        for tensor, computation in computations.items():
            if computation.key in known:
                digests[tensor] = known[computation.key]
                continue
            organ = done.get(computation.key)
            if organ is None:
                organ = done[computation.key] = compute_organ(self.store, computation, rows, self._stored)
                self._record(organ.blobs, {organ.digest: organ.parts} if organ.parts else {})
            digests[tensor], computed[tensor] = organ.digest, organ
            self.progress("compute", organ.size_bytes)
        return digests, computed

    def _stored(self, digests: Collection[Digest]) -> set[Digest]:
        """Return the digests whose bytes are stored, leased from now on."""
        with self.catalog.writing() as session:
            rows = blobs_by_digest(session, digests).values()
            stored = [row for row in rows if row.state != "corrupt" and not row.parts]
            lease_blobs(session, self.ingest_id, [row.id for row in stored])
        return {row.digest for row in stored}

    def store_header(self, pieces: Sequence[bytes], lock: Lock, shared: PartRecord | None) -> dict[Digest, KnownBlob]:
        """Store the header's pieces; return the rows of all tensors, leased as that of the `shared` part is."""
        self._record([self.store.put(piece) for piece in pieces if piece], {})
        digests = {tensor.digest for tensor in lock.tensors} | ({shared.digest} if shared else set())
        with self.catalog.writing() as session:
            rows = blobs_by_digest(session, digests)
            lease_blobs(session, self.ingest_id, [row.id for row in rows.values()])
        if shared is not None and shared.digest not in rows:
            raise MissingBlob(f"the header of the base ({shared.digest[:12]}) was removed: run the command again")
        for tensor in lock.tensors:
            if tensor.digest not in rows:
                raise MissingBlob(
                    f"{tensor.spec.name} ({tensor.digest[:12]}) was removed by a sweep: run the command again"
                )
            check_readable(self.store, rows[tensor.digest], tensor.spec.name)
        return rows

    def write(self, file: FilePlan, path: Path | None) -> Digest:
        """Write the file to `path`, or without a path only hash it; return its SHA-256."""
        if path is not None:
            return place_file(self.store, file, path, lambda size_bytes: self.progress("write", size_bytes))
        return stored_digest(self.store, file, lambda size_bytes: self.progress("hash", size_bytes))

    def _record(self, blobs: Sequence[StoredBlob], stacks: Mapping[Digest, Sequence[Digest]]) -> None:
        with self.catalog.writing() as session:
            unused = record_blobs(session, self.ingest_id, blobs)
            record_stacks(session, self.ingest_id, stacks)
        for file in unused:
            self.store.backend.remove(file)


def _shared_part(session: Session, data: bytes, header: Header, plan: Plan) -> PartRecord | None:
    """Return the list of tensors in the header `data` as a part of the base's header, if it is the same there.

    It is the largest part of a header besides the vocabulary and the lock. None if it is small, or not the same.
    """
    base = plan.base
    assert base.model_id is not None
    if not base.header.fields:
        return None
    last, own_last = header.fields[-1], base.header.fields[-1]
    begin, own_begin = last.offset + last.size_bytes, own_last.offset + own_last.size_bytes
    size_bytes = header.end - begin
    is_same = size_bytes >= SHARED_MIN_BYTES and size_bytes == base.header.end - own_begin
    if not is_same or base.source.read_at(own_begin, size_bytes) != data[begin : header.end]:
        return None
    (file, *_) = model_contents.files_of(session, base.model_id)
    for part in model_contents.parts_of(session, file.id):
        if part.offset_bytes <= own_begin and own_begin + size_bytes <= part.offset_bytes + part.size_bytes:
            position = part.blob_offset_bytes + own_begin - part.offset_bytes
            return PartRecord(begin, size_bytes, blobs_by_id(session, [part.blob_id])[part.blob_id].digest, position)
    return None


def _header_parts(data: bytes, header: Header, shared: PartRecord | None) -> tuple[list[bytes], tuple[PartRecord, ...]]:
    """Return the blobs of the header `data`, and their places in the file.

    The first is the header without its large values, which are separate blobs, and without the part that is `shared`
    with the base and ends it.
    """
    values = large_values(header)
    rest = list(around(values, header.end if shared is None else shared.offset_bytes))
    blobs = [b"".join(data[span.offset : span.end] for span in rest)]
    literal, position = digest_of(blobs[0]), 0
    parts = []
    for span in rest:
        if span.size_bytes:
            parts.append(PartRecord(span.offset, span.size_bytes, literal, position))
        position += span.size_bytes
    for span in values:
        blobs.append(data[span.offset : span.end])
        parts.append(PartRecord(span.offset, span.size_bytes, digest_of(blobs[-1]), 0))
    return blobs, (*parts, *([] if shared is None else [shared]))


def _placements(
    plan: Plan, lock: Lock, header: Header, computed: Mapping[str, ComputedBlobs]
) -> Iterator[PlacementRecord]:
    for tensor, locked, planned in zip(header.tensors, lock.tensors, plan.parts, strict=True):
        measurement = computed[tensor.name].measurement if tensor.name in computed else None
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


def _register_chimera(session: Session, model: ModelRow, plan: Plan, lock: Lock) -> None:
    """Write the rows of the chimera of `plan` beside those of its model."""
    computations, base = plan.computations, plan.base
    # Measurements of computed organs complete the plan's screen.
    measured = {part.name: part for part in parts_of(session, model.id) if part.name in computations}
    quantised = types_text(plan.parts, plan.recipe, base.label)
    screen = screened(plan.parts, measured, layers=plan.layers, quantised=quantised) if computations else plan.screen
    assert base.model_id is not None
    parents = [(base.model_id, _relation(plan.acts[0]))]
    placed = plan.layers.blocks if plan.layers else ()
    parents += [(giver.model_id, PLACED) for giver, _ in placed if giver is not None and giver.model_id is not None]
    for part in plan.parts:
        donors = (part.donor if part.from_block is None else None, *(graft.donor for graft in part.expert_grafts))
        parents += [(donor.model_id, GRAFTED) for donor in donors if donor is not None and donor.model_id is not None]
        parents += [(model.model_id, MERGED) for model in part.merged if model.model_id is not None]
        parents += [(adapter.model_id, ADAPTER) for adapter in part.adapters if adapter.model_id is not None]
        sources = part.computation.source_models if part.computation else ()
        parents += [(model.model_id, QUANTIZED) for model in sources if model.model_id is not None]
    record = ChimeraRecord(
        lock_id=lock.id,
        base_model_id=base.model_id,
        recipe=recipe_to_json(plan.recipe),
        findings=encode([finding for finding in plan.findings if finding.code not in PLAN_CODES]).decode(),
        screen=encode(screen).decode(),
        origins=encode(origins_of(plan)).decode(),
        parents=tuple(parents),
        computations=tuple(
            ComputationRecord(
                computation.key,
                computation.document(),
                (locked.digest, locked.spec.dtype.name, shape_text(locked.spec.shape)),
                tuple(_sources(computation)),
            )
            for locked in lock.tensors
            if (computation := computations.get(locked.spec.name)) is not None
        ),
    )
    register_chimera(session, model, record)


def _relation(act: str) -> str:
    """Return the relation of a model or an organ to the one on which an act was done, as the catalog calls it."""
    return QUANTIZED if act == QUANTISED else act


def _sources(computation: PlannedComputation) -> Iterator[tuple[OrganKey, str]]:
    """Yield the inputs of a computation, each with the act that used it."""
    inputs = [
        (computation.source, _relation(computation.acts[-1])),
        *((graft.after, GRAFTED) for graft in computation.grafted),
        *((item.part, MERGED) for item in (computation.blend.parts if computation.blend else ())),
        *((part, ADAPTER) for addition in computation.added for part in addition.parts),
        *((part, _relation(QUANTISED)) for part in (computation.importances.parts if computation.importances else ())),
    ]
    for part, act in inputs:
        yield (part.digest, part.dtype.name, shape_text(part.shape)), act


LOCK_DIGITS, STEM_MAX_LENGTH = 6, 88
"""The digits of a lock in a name, and the most characters before them."""


def _unused_name(session: Session, name: ModelName, lock_id: str) -> ModelName:
    """Return the name in the namespace of `name` that has this lock, or else `name` if it is new in this registry, or
    else `name` and the first digits of the lock."""
    same = [parse_model_name(full_name) for full_name in names_of_lock(session, lock_id)]
    own = [replace(one, version=None) for one in same if one.namespace == name.namespace]
    if own or next_version(session, name) == 1:
        return name if not own or name in own else own[0]
    return replace(name, name=name_from_text(f"{name.name[:STEM_MAX_LENGTH]}-{lock_id[:LOCK_DIGITS]}"))


MISSING_SHOWN = 5
"""Missing organs in the message."""


def plan_lock(session: Session, store: BlobStore, lock: Lock, name: str) -> FilePlan:
    """Return the file that `lock` describes, called `name`. Nothing is registered.

    Raises NotAssemblable with all missing parts, BadLock for a lock that describes no valid file, StoreError.
    """
    base = model_with_header(session, lock.header)
    rows = blobs_by_digest(session, {tensor.digest for tensor in lock.tensors})
    missing = [] if base is not None else [f"no model in this registry has the header {lock.header[:12]} of its base"]
    unusable = [reason for tensor in lock.tensors if (reason := _unusable(store, tensor, rows)) is not None]
    more = len(unusable) - MISSING_SHOWN
    missing += unusable[:MISSING_SHOWN] + ([f"and {more} more"] if more > 0 else [])
    if unusable and base is not None:
        missing.append("tensors that are computed must be here: compose the recipe of the lock in this registry first")
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


def _unusable(store: BlobStore, tensor: LockedTensor, rows: Mapping[Digest, KnownBlob]) -> str | None:
    """Return why the organ of `tensor` is missing, damaged or of another size; None if it is stored."""
    row, digest, name = rows.get(tensor.digest), tensor.digest[:12], tensor.spec.name
    if row is None:
        return f"the tensor {digest} of {name} is missing"
    try:
        check_readable(store, row, "tensor")
    except (CorruptBlob, MissingBlob):
        return f"the tensor {digest} of {name} is damaged"
    return (
        None
        if row.size_bytes == tensor.spec.size_bytes
        else f"{digest} is not {tensor.spec.dtype.name} of the shape of {name}"
    )
