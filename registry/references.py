"""Which organs are stored by their difference to which others, their parents: at ingest, and again by `repack`.

A registry has the same weights many times: fine-tunes of one base, and quantisations of each. Fingerprints at equal
places (`registry.similarity`) say which organs are alike. Whether a parent saves bytes is tried on a sample of them.

At most two references lead from an organ to one that is stored alone. Everybody may see a parent: the stored size of an
organ must not say what else the registry has.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.registry.amounts import weight_change
from organs.registry.anatomy import Slot
from organs.registry.catalog.engine import Catalog, database_now
from organs.registry.catalog.queries.blobs import (
    DEPTH_MAX,
    KnownBlob,
    blobs_by_id,
    heights_of_blobs,
    parents_in_no_model,
)
from organs.registry.catalog.queries.events import last_change_of_parents
from organs.registry.catalog.queries.relatives import (
    ExpertPlace,
    RelatedOrgan,
    blob_ids_of_models,
    models_with_blobs,
    organs_by_slot,
    organs_of_models,
    places_of,
    related_organs_at,
)
from organs.registry.catalog.register.organs import (
    forget_ingest,
    is_leased,
    leased_ingest,
    mark_repacked,
    replace_stored_bytes,
)
from organs.registry.catalog.rows import batches
from organs.registry.errors import Busy, CorruptBlob, EncodingFault, MissingBlob, StoreError
from organs.registry.gguf.types import DType, dtype_by_name
from organs.registry.progress import Progress, no_progress
from organs.registry.relatives.measured import PROBES_MAX, probe_scores
from organs.registry.similarity import ComparableOrgan, changes, correlations, probes
from organs.registry.store import BlobStore, ParentCandidate, RangeReader, StoredBlob
from organs.registry.store.blobs import sample_range
from organs.registry.store.codec import (
    BYTES_CODEC,
    Codec,
    can_derive,
    codec_for,
    encode_chunk,
    head_size_bytes,
    is_dequantised,
)

ALIKE_MIN = 0.9
"""The smallest correlation of the fingerprints of an organ and its parent."""
DEQUANTISED_CHANGE_MAX = 1e-5
"""Dequantised weights have no larger change from their quantisation: rounding to BF16 has 2.4e-6."""
ORGAN_MIN_BYTES = 4096
"""Smaller organs are stored alone: the name of a parent is 32 bytes."""
RELATED_MODELS_MAX = 6
RELATED_ORGANS_MAX = 20_000
"""Organs of related models that an ingest keeps in memory and protects from the sweep."""
RELATED_INLINE_MAX_BYTES = 64 * 1024 * 1024
"""An ingest loads no more related organs when those that it has loaded have this many inline bytes."""
CANDIDATES_MAX = 3


class ParentSearch:
    """The organs of the models that are most like a new one, by place: candidates for parents of its organs."""

    def __init__(self, organs: Mapping[ExpertPlace, Sequence[RelatedOrgan]], blobs: Mapping[int, KnownBlob]) -> None:
        self._organs = organs
        self._blobs = blobs

    @property
    def blob_ids(self) -> set[int]:
        """The blobs that an ingest must lease: the candidates, and the parents of these."""
        parents = {row.parent.id for row in self._blobs.values() if row.parent is not None}
        return parents | set(self._blobs)

    def refreshed(self, session: Session) -> ParentSearch:
        """Return the search with the present rows of its blobs."""
        rows = blobs_by_id(session, self._blobs)
        return ParentSearch(self._organs, {row.id: row for row in rows.values() if is_possible_parent(row)})

    def has_candidates_at(self, place: ExpertPlace) -> bool:
        """Return whether a related model has an organ at `place`."""
        return place in self._organs

    def candidates(
        self, place: ExpertPlace, shape: tuple[int, ...], dtype: DType, fingerprint: bytes | None
    ) -> list[ParentCandidate]:
        """Return up to CANDIDATES_MAX organs that may be parents of a new organ, the most promising first."""
        organs = [
            organ for organ in self._organs.get(place, ()) if organ.shape == shape and organ.blob_id in self._blobs
        ]
        if fingerprint is None or not organs:
            return []
        distances = _distances(fingerprint, [organ.fingerprint for organ in organs])
        alike = [(distance, organ) for distance, organ in zip(distances, organs, strict=True) if distance is not None]
        alike.sort(key=lambda pair: (pair[0], pair[1].blob_id))
        same = [organ for _, organ in alike if organ.dtype == dtype.name]
        other = []
        for distance, organ in alike:
            source = dtype_by_name(organ.dtype)
            if distance <= DEQUANTISED_CHANGE_MAX if is_dequantised(source, dtype) else can_derive(source, dtype):
                other.append(organ)
        chosen = [*other[:2], *same[:1], *other[2:], *same[1:]]
        return [
            ParentCandidate(self._blobs[organ.blob_id], dtype_by_name(organ.dtype)) for organ in chosen[:CANDIDATES_MAX]
        ]


def _distances(own: bytes, others: Sequence[bytes]) -> list[float | None]:
    """Return the change between an organ and each of `others`; None for those that are not alike."""
    values, exact = correlations(own, others), changes([(own, other) for other in others])
    return [
        None if (value or 0.0) < ALIKE_MIN else weight_change(change, value)
        for value, change in zip(values, exact, strict=True)
    ]


def probe_places(tensors: Mapping[Slot, ComparableOrgan]) -> list[Slot]:
    """Return the places whose fingerprints `search_parents` needs; the organs of `tensors` need none."""
    return probes(tensors, PROBES_MAX)


def search_parents(session: Session, probed: Mapping[Slot, ComparableOrgan], declared: Sequence[int]) -> ParentSearch:
    """Return the candidates for the organs of a model that has the organs `probed` at some of its places.

    `declared` has the registered models that it names as its parents.
    """
    order = list(dict.fromkeys([*declared, *_most_alike(session, probed)]))[:RELATED_MODELS_MAX]
    organs: dict[ExpertPlace, list[RelatedOrgan]] = {}
    ids: dict[int, None] = {}
    for place, organ in organs_of_models(session, order):
        if len(ids) >= RELATED_ORGANS_MAX:
            break
        organs.setdefault(place, []).append(organ)
        ids[organ.blob_id] = None
    usable: dict[int, KnownBlob] = {}
    inline_bytes = 0
    for batch in batches(list(ids)):
        for row in blobs_by_id(session, batch).values():
            if is_possible_parent(row):
                usable[row.id] = row
            inline_bytes += sum(len(above.inline or b"") for above in row.lineage)
        if inline_bytes >= RELATED_INLINE_MAX_BYTES:
            break
    return ParentSearch(organs, usable)


def _most_alike(session: Session, organs: Mapping[Slot, ComparableOrgan]) -> list[int]:
    """Return the models that are like a model with these organs, the most similar first."""
    scores = probe_scores(session, organs)
    return sorted(scores, key=lambda model: (-scores[model], model))


def is_possible_parent(row: KnownBlob) -> bool:
    """Return whether a blob may become the parent of another one, by its row."""
    return row.state == "present" and not row.parts and row.depth < DEPTH_MAX and row.size_bytes >= ORGAN_MIN_BYTES


# Repack: the parents of organs that are registered already are chosen again.

PROBED_MAX = 32
"""The most models of a repack whose relatives are searched; a larger repack compares the organs of all models."""
COMPARED_MODELS_MAX = 500
"""The most relatives of a model whose organs a repack compares; also the most models with the same organs."""
FAMILY_MAX = 48
"""Organs among which parents are chosen together."""
ROOTS_MAX = 3
"""Organs of a family that are tried as the one that is stored alone."""
NEAREST_MAX = 3
"""Candidates of each organ beside the roots, of its own and of finer tensor types each."""
CHANGE_MIN = 0.005
"""The smallest share of the size of a family that is worth storing organs again."""


@dataclass(slots=True)
class RepackReport:
    """The result of a repack; with `dry_run`, an estimate of it."""

    dry_run: bool
    organs: int = 0
    """Organs that were examined."""
    repacked: int = 0
    before_bytes: int = 0
    """The stored size of the repacked organs before and after."""
    after_bytes: int = 0
    unneeded_bytes: int = 0
    """The stored size of parents of removed models that nothing needs any more: sweeps remove them."""
    skipped: int = 0
    """Organs that another process used or changed, or whose bytes are faulty: they stay as they are."""

    def add(self, before_bytes: int, after_bytes: int) -> None:
        """Count an organ that was stored again."""
        self.repacked += 1
        self.before_bytes += before_bytes
        self.after_bytes += after_bytes

    def merge(self, other: RepackReport) -> None:
        """Add the numbers of another report."""
        for name in ("organs", "repacked", "before_bytes", "after_bytes", "unneeded_bytes", "skipped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def repack(
    catalog: Catalog,
    blobs: BlobStore,
    model_ids: Sequence[int],
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> RepackReport:
    """Store the organs of these models, and those that are like them, by their differences, where this is smaller.

    A run can be interrupted and repeated at any time: a row points at the new stored bytes after these are durable, and
    the old ones are removed last. `progress` gets the number of examined organs. The next repack examines again all
    models with organs that a running ingest used, and these models if one was removed or a blob was healed meanwhile.
    """
    report = RepackReport(dry_run)
    seen: set[int] = set()
    with catalog.reading() as session:
        last_event = last_change_of_parents(session)
        places = places_of(session, model_ids)
        own = blob_ids_of_models(session, model_ids)
        related: list[int] | None = None  # all models
        if len(model_ids) <= PROBED_MAX:
            # The newest models that have a blob of `own`, and those that are most similar.
            found = {*model_ids, *sorted(models_with_blobs(session, own))[-COMPARED_MODELS_MAX:]}
            for model_id in model_ids:
                found.update(_most_alike(session, organs_by_slot(session, model_id))[:COMPARED_MODELS_MAX])
            related = sorted(found)
    with _Rewriter(catalog, blobs, report) as rewriter:
        for place in places:
            for family in _families_at(catalog, blobs, place, related, own, seen):
                report.organs += len(family.members)
                parents, unneeded_bytes = family.best_parents()
                skipped = report.skipped
                _repack_family(rewriter, family, parents)
                report.unneeded_bytes += unneeded_bytes if report.skipped == skipped else 0
                progress(len(family.members))
    if not dry_run:
        with catalog.writing() as session:
            if last_change_of_parents(session) == last_event:
                mark_repacked(session, model_ids, database_now(session))
            mark_repacked(session, sorted(models_with_blobs(session, rewriter.postponed)), None)
    return report


def store_alone(catalog: Catalog, blobs: BlobStore, model_ids: Sequence[int]) -> RepackReport:
    """Store every organ of these models alone again. The next repack examines these models."""
    report = RepackReport(dry_run=False)
    with catalog.writing() as session:
        mark_repacked(session, model_ids, None)
    with catalog.reading() as session:
        own = sorted(blob_ids_of_models(session, model_ids))
    with _Rewriter(catalog, blobs, report) as rewriter:
        for batch in batches(own):
            with catalog.reading() as session:
                rows = blobs_by_id(session, batch)
            for row in rows.values():
                if row.parent is None:
                    continue
                report.organs += 1
                try:
                    with blobs.reader(row) as reader:
                        codec = BYTES_CODEC if reader.dtype is None else codec_for(reader.dtype.name)
                except (CorruptBlob, MissingBlob):
                    report.skipped += 1
                else:
                    rewriter.store(row, codec, None)
    return report


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """An organ of a family, with a sample of its bytes."""

    blob: KnownBlob
    dtype: DType
    fingerprint: bytes
    is_public: bool
    sample: bytes

    @property
    def codec(self) -> Codec:
        """The codec that stores it alone."""
        return codec_for(self.dtype.name)


Parents = dict[int, int | None]
"""The parent of each member of a family, by their numbers; None for a member that is stored alone."""


class _Family:
    """Organs with similar weights and as many values, and estimates of their stored sizes with other parents."""

    def __init__(
        self,
        members: Sequence[_Member],
        alike: Mapping[tuple[int, int], float],
        heights: Mapping[int, int],
        kept: Mapping[int, KnownBlob],
    ) -> None:
        self.members = members
        self._alike = alike
        """The distance of pairs of members that are alike."""
        self._heights = [heights[member.blob.id] for member in members]
        """The longest chain of references that ends at each member, from organs that are not in the family."""
        self._alone = [_stored_size(member, None) for member in members]
        self._sizes: list[dict[int, float]] = [{} for _ in members]
        """The estimated stored size of each member with each possible parent, if it saves enough."""
        numbers = {member.blob.id: number for number, member in enumerate(members)}
        self.present: Parents = {}
        self.outside: dict[int, tuple[float, int]] = {}
        """The stored size of members that keep a parent that is not in the family, and the depth of that parent."""
        self._kept_bytes = sum(row.stored_bytes for row in kept.values())
        """The stored size of parents that no model has, and that only these members need."""
        self._kept_children: set[int] = set()
        """The members with such a parent."""
        for number, member in enumerate(members):
            parent = member.blob.parent
            self.present[number] = None if parent is None else numbers.get(parent.id)
            if parent is not None and parent.id not in numbers:
                self.outside[number] = (float(member.blob.stored_bytes), parent.depth + 1)
                if parent.id in kept:
                    self._kept_children.add(number)
        self._roots = self._likely_roots()
        for number in range(len(members)):
            self._try_parents(number)

    def best_parents(self) -> tuple[Parents, int]:
        """Return the parents with the smallest estimated size; the present ones if others save too little.

        The number is the stored size of parents that are not needed any more, and that no model has.
        """
        present_size = self._size(self.present) + self._kept_bytes
        best, best_size = self._best_of_starts()
        best_size += self._kept_bytes
        unneeded_bytes = 0
        if self._kept_children:
            outside = self.outside
            self.outside = {number: kept for number, kept in outside.items() if number not in self._kept_children}
            parents, size = self._best_of_starts()
            if size < min(best_size, (1 - CHANGE_MIN) * present_size):
                best, best_size, unneeded_bytes = parents, size, self._kept_bytes
            else:
                self.outside = outside
        return (best, unneeded_bytes) if best_size < (1 - CHANGE_MIN) * present_size else (self.present, 0)

    def _best_of_starts(self) -> tuple[Parents, float]:
        best = self._improved(dict(self.present))
        best_size = self._size(best)
        for root in self._roots:
            parents: Parents = dict.fromkeys(range(len(self.members)))
            for number, sizes in enumerate(self._sizes):
                if root in sizes and self._is_allowed(parents, number, root):
                    parents[number] = root
            parents = self._improved(parents)
            if self._size(parents) < best_size:
                best, best_size = parents, self._size(parents)
        return best, best_size

    def estimated_size(self, number: int, parent: int | None) -> float:
        """Return the estimated stored size of a member with a parent."""
        if parent is not None:
            return self._sizes[number].get(parent, float(self.members[number].blob.stored_bytes))
        if number in self.outside and self.present[number] is None:
            return self.outside[number][0]
        return self._alone[number]

    def height(self, parents: Parents, number: int) -> int:
        """Return the longest chain of references that ends at a member if the members have these parents."""
        children = (child for child, parent in parents.items() if parent == number)
        return max((self._heights[number], *(1 + self.height(parents, child) for child in children)))

    def _size(self, parents: Parents) -> float:
        return sum(self.estimated_size(number, parent) for number, parent in parents.items())

    def _likely_roots(self) -> list[int]:
        """Return the members that are most like the others, first those of the finest tensor types."""
        total: dict[int, float] = {}
        for (first, second), distance in self._alike.items():
            for child, parent in ((first, second), (second, first)):
                if self._codec(child, parent) is not None:
                    total[parent] = total.get(parent, 0.0) + 1.0 - distance
        return sorted(total, key=lambda number: -total[number])[:ROOTS_MAX]

    def _try_parents(self, number: int) -> None:
        near = sorted(
            (
                (distance, first + second - number)
                for (first, second), distance in self._alike.items()
                if number in (first, second)
            )
        )
        chosen: list[int] = [*self._roots]
        for is_same in (True, False):
            same = [other for _, other in near if (self.members[other].dtype == self.members[number].dtype) is is_same]
            usable = [other for other in same if self._codec(number, other) is not None]
            chosen += usable[:NEAREST_MAX]
        present = self.present[number]
        chosen += [] if present is None else [present]
        alike = {other for _, other in near}
        for other in dict.fromkeys(chosen):
            codec = self._codec(number, other)
            if codec is None or other not in alike:
                continue
            size = _stored_size(self.members[number], self.members[other])
            candidate = ParentCandidate(self.members[other].blob, self.members[other].dtype)
            if size <= (1 - candidate.gain_min(self.members[number].dtype)) * self._alone[number]:
                self._sizes[number][other] = size

    def _codec(self, child: int, parent: int) -> Codec | None:
        """Return the codec of `child` with this parent; None if it cannot be its parent."""
        own, other = self.members[child], self.members[parent]
        distance = self._alike.get((min(child, parent), max(child, parent)), math.inf)
        is_far = is_dequantised(other.dtype, own.dtype) and distance > DEQUANTISED_CHANGE_MAX
        if child == parent or not other.is_public or is_far:
            return None
        return ParentCandidate(other.blob, other.dtype).codec(own.dtype, own.blob.size_bytes)

    def _improved(self, parents: Parents) -> Parents:
        """Give single members other parents as long as this saves bytes."""
        while True:
            best_gain, best = 0.5, None
            for number, present in parents.items():
                size = self.estimated_size(number, present)
                for parent in (None, *self._sizes[number]):
                    gain = size - self.estimated_size(number, parent)
                    if parent != present and gain > best_gain and self._is_allowed(parents, number, parent):
                        best_gain, best = gain, (number, parent)
            if best is None:
                return parents
            parents[best[0]] = best[1]

    def _is_allowed(self, parents: Parents, number: int, parent: int | None) -> bool:
        if parent is None:
            return True
        depth, above = 1, parent
        while (next_above := parents[above]) is not None:
            if above == number:
                return False
            depth, above = depth + 1, next_above
        if above in self.outside and self.present[above] is None:
            depth += self.outside[above][1]
        return above != number and depth + self.height(parents, number) <= DEPTH_MAX


def _stored_size(member: _Member, parent: _Member | None) -> float:
    """Return the estimated stored size of an organ with a parent, from samples; None for one that is stored alone."""
    codec, values, size_bytes = member.codec, None, member.blob.size_bytes
    if parent is not None:
        codec = _codec_with(parent.dtype, parent.blob, member.dtype, size_bytes)
        values = memoryview(parent.sample)
    chunk = encode_chunk(codec, member.sample, values)
    return min(1.0, chunk.stored_size_bytes / len(member.sample)) * size_bytes + head_size_bytes(codec, size_bytes)


def _families_at(
    catalog: Catalog,
    blobs: BlobStore,
    place: ExpertPlace,
    related: Collection[int] | None,
    own: Collection[int],
    seen: set[int],
) -> Iterator[_Family]:
    """Yield groups of organs of the models `related` at a place that are alike, each with an organ of the blobs `own`.

    Adds their blobs to `seen`, and leaves out those in it.
    """
    with catalog.reading() as session:
        organs = related_organs_at(session, place, related)
    by_shape: dict[tuple[int, ...], list[RelatedOrgan]] = {}
    for organ in organs:
        if organ.blob_id not in seen:
            by_shape.setdefault(organ.shape, []).append(organ)
    for group in by_shape.values():
        rest = sorted(group, key=lambda organ: organ.blob_id not in own)
        while rest and rest[0].blob_id in own:
            distances = _distances(rest[0].fingerprint, [organ.fingerprint for organ in rest])
            order = sorted(
                (distance, index) for index, distance in enumerate(distances) if index and distance is not None
            )
            near = [index for _, index in order[: FAMILY_MAX - 1]]
            alike = [rest[0], *(rest[index] for index in near)]
            seen.update(organ.blob_id for organ in alike)
            family = _family(catalog, blobs, alike)
            if family is not None:
                yield family
            chosen = {0, *near}
            rest = [organ for index, organ in enumerate(rest) if index not in chosen]


def _family(catalog: Catalog, blobs: BlobStore, organs: Sequence[RelatedOrgan]) -> _Family | None:
    """Return the family of `organs` whose bytes can be read; None if there is nothing to choose."""
    with catalog.reading() as session:
        rows = blobs_by_id(session, [organ.blob_id for organ in organs])
    if len(organs) == 1 and all(row.parent is None for row in rows.values()):
        return None
    by_blob: dict[int, _Member] = {}
    for organ in organs:
        row, dtype = rows.get(organ.blob_id), dtype_by_name(organ.dtype)
        if row is None or row.state != "present" or row.parts or row.size_bytes < ORGAN_MIN_BYTES:
            continue
        with suppress(StoreError):
            with blobs.reader(row) as reader:
                sample = bytes(RangeReader(reader).read(*sample_range(dtype, row.size_bytes)))
                is_stored_type = reader.dtype == dtype
            if row.id not in by_blob or is_stored_type:  # the same bytes can be organs of several tensor types
                by_blob[row.id] = _Member(row, dtype, organ.fingerprint, organ.is_public, sample)
    members = list(by_blob.values())
    alike: dict[tuple[int, int], float] = {}
    for number, member in enumerate(members):
        others = [other.fingerprint for other in members[number + 1 :]]
        for offset, distance in enumerate(_distances(member.fingerprint, others)):
            if distance is not None:
                alike[number, number + 1 + offset] = distance
    with catalog.reading() as session:
        kept = parents_in_no_model(session, {member.blob.id: member.blob for member in members})
        if not alike and not kept:
            return None
        heights = heights_of_blobs(session, [member.blob.id for member in members], outside_only=True)
    return _Family(members, alike, heights, kept)


def _repack_family(rewriter: _Rewriter, family: _Family, parents: Parents) -> None:
    """Give the members of a family their `parents`, one after another, each when its parent has its final form."""
    report, members, present = rewriter.report, family.members, dict(family.present)
    rows = [member.blob for member in members]

    def differs(number: int, parent: int | None) -> bool:
        if parent is None:
            return rows[number].parent is not None and number not in family.outside
        return present[number] != parent

    def is_ready(number: int) -> bool:
        parent = parents[number]
        if parent is None:
            return True
        return parent not in pending and 1 + rows[parent].depth + family.height(present, number) <= DEPTH_MAX

    pending = [number for number, parent in parents.items() if differs(number, parent)]
    if report.dry_run:
        for number in pending:
            report.add(rows[number].stored_bytes, round(family.estimated_size(number, parents[number])))
        return
    while pending:
        ready = [number for number in pending if is_ready(number)]
        waiting = [number for number in pending if rows[number].parent is not None]
        if ready:
            number, parent = ready[0], parents[ready[0]]
        elif waiting:  # members wait for each other: one of them is stored alone for some time
            number, parent = waiting[0], None
        else:  # they wait for a member that stays as it is
            report.skipped += len(pending)
            return
        member, codec, address = members[number], members[number].codec, None
        if parent is not None:
            address = rows[parent]
            codec = _codec_with(members[parent].dtype, address, member.dtype, rows[number].size_bytes)
        is_stored = rewriter.store(rows[number], codec, address)
        if is_stored:
            with rewriter.catalog.reading() as session:
                after = blobs_by_id(session, [row.id for row in rows])
            rows = [after.get(row.id, row) for row in rows]
            present[number] = parent
        if ready or not is_stored:
            pending.remove(number)


def _codec_with(parent_dtype: DType, parent: KnownBlob, dtype: DType, size_bytes: int) -> Codec:
    """Return the codec of an organ with a parent that was found to be possible."""
    codec = ParentCandidate(parent, parent_dtype).codec(dtype, size_bytes)
    assert codec is not None
    return codec


class _Rewriter:
    """Stores blobs again with other codecs. A context manager.

    While it runs, sweeps spare its files, whose rows follow later, as they spare those of a running ingest. After a
    kill, they spare new files until its lease expires.
    """

    def __init__(self, catalog: Catalog, blobs: BlobStore, report: RepackReport) -> None:
        self.catalog = catalog
        self.report = report
        self._blobs = blobs
        self._ingest_id: int | None = None
        self._announced = ExitStack()
        self._stored_bytes: dict[int, int] = {}
        """The stored size of each blob that was stored again; one may be stored twice."""
        self.postponed: set[int] = set()
        """The ids of blobs that stayed as they were because a running ingest used them."""

    def __enter__(self) -> _Rewriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._announced.close()
        if self._ingest_id is not None:
            with self.catalog.writing() as session:
                forget_ingest(session, self._ingest_id)

    def store(self, before: KnownBlob, codec: Codec, parent: KnownBlob | None) -> bool:
        """Store a blob with another codec; return False if it stays as it is."""
        if self._ingest_id is None:
            self._ingest_id = self._announced.enter_context(leased_ingest(self.catalog, "repack"))
        try:
            stored = self._encoded(before, codec, parent)
        except (CorruptBlob, MissingBlob, EncodingFault):
            self.report.skipped += 1
            return False
        # If the commit fails, both files stay: nobody knows which of them the row names. A sweep removes the other one.
        with self.catalog.writing() as session:
            is_replaced = replace_stored_bytes(session, before, stored)
            if not is_replaced and is_leased(session, before.id):
                self.postponed.add(before.id)
        if is_replaced:
            if before.id in self._stored_bytes:
                self.report.after_bytes += stored.stored_bytes - self._stored_bytes[before.id]
            else:
                self.report.add(before.stored_bytes, stored.stored_bytes)
            self._stored_bytes[before.id] = stored.stored_bytes
        else:
            self.report.skipped += 1
        unused = before.file if is_replaced else stored.file
        if unused:
            # A backup may be copying the file: then a later sweep removes it.
            with suppress(Busy, StoreError), self._blobs.backend.sweeping():
                self._blobs.backend.remove(unused)
        return is_replaced

    def _encoded(self, row: KnownBlob, codec: Codec, parent: KnownBlob | None) -> StoredBlob:
        with self._blobs.reader(row) as reader:
            ranges, position = RangeReader(reader), 0

            def read(size: int) -> memoryview:
                nonlocal position
                position += size
                return ranges.read(position - size, size)

            return self._blobs.put_organ(row.digest, row.size_bytes, codec, read, parent)
