"""LoRA adapters extracted from fine-tunes: the factors of the difference of two models, matrix by matrix.

The difference of each changed matrix is approximated by a product of low rank (`transform.lowrank`). All factors have
one alpha, the wanted rank, so the scale of a matrix of this rank is 1. Runtimes divide the alpha by the rank of each
matrix: where that is lower, its B is multiplied by the quotient of both.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from sqlalchemy.orm import Session
from threadpoolctl import threadpool_limits

from organs.registry.amounts import names_text, percent_text
from organs.registry.anatomy import (
    COMPANIONS,
    LORA_SUFFIXES,
    OUTPUT_MATRIX,
    TOKEN_EMBEDDING,
    companion_slot,
    is_expert_stack,
    is_multiplied,
)
from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.compose.compatibility import TYPES
from organs.registry.compose.ingredients import stored_plain
from organs.registry.compose.licenses import license_expression
from organs.registry.compose.parents import Parent, Part, RegisteredLibrary, effective_shape, shape_text
from organs.registry.entities.extraction import (
    ExtractedAdapter,
    ExtractedOrgan,
    ExtractedType,
    LeftOutOrgans,
    RankShare,
)
from organs.registry.errors import BadInput, BadOrgan
from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_name, encode_header, padded
from organs.registry.gguf.types import ALIGNMENT_DEFAULT
from organs.registry.kinds import ADAPTER_TYPE_KEY, ALPHA_KEY, LORA_TYPE, FileKind
from organs.registry.progress import Progress, no_progress
from organs.registry.similarity import Kinship, similarity
from organs.registry.store import BlobStore
from organs.registry.store.files import placed, placing_error
from organs.registry.transform import Plain
from organs.registry.transform.compute import FACTOR_MAX_ELEMENTS, RANK_MAX, misfit
from organs.registry.transform.lowrank import SKETCH_MAX_ELEMENTS, LowRank, difference_energy, followed, low_rank
from organs.registry.transform.values import holds_weights

RANK_DEFAULT = 16
WORKERS_MAX = 4
"""Matrices that are decomposed at once; each needs the memory of `low_rank`."""
FACTORS_MAX_ELEMENTS = 1 << 28
"""The limit for the factors of a stack of experts, which are in memory together: 1 GiB."""
SPOOLED_MAX_BYTES = 64 * 1024 * 1024
PIECE_BYTES = 4 * 1024 * 1024

TIED = "the base uses one matrix for embeddings and output, and an adapter would change only one of the two uses"
VECTOR = "norms, biases and other vectors have no rank, and no LoRA changes them"
SCALED = "the base stores them divided by a scale, and what an adapter adds would not be divided"
UNUSUAL = "runtimes do not apply adapters to tensors of this kind"


@dataclass(frozen=True, slots=True)
class ReadableModel:
    """A model whose weights can be read."""

    parent: Parent
    plain: Callable[[Part, ExitStack], Plain]
    """Returns the bytes of a tensor, which can be read until the stack closes; called from several threads."""
    source: str | None = None
    """The model from which a quantised one is proved to be made."""


def registered_model(session: Session, store: BlobStore, name: str) -> ReadableModel:
    """Return a registered model; raises the errors of `RegisteredLibrary.parent`."""
    library = RegisteredLibrary(session, store)
    parent = library.parent(name)
    proved = library.source_of(parent)
    rows = blobs_by_digest(session, {part.digest for part in parent.parts})
    source = None if proved is None else proved.model.label
    return ReadableModel(parent, lambda part, opened: stored_plain(store, part, rows, opened), source)


def extract_adapter(
    child: ReadableModel,
    base: ReadableModel,
    ranks: Sequence[int] = (RANK_DEFAULT,),
    *,
    keep: float | None = None,
    target: Path | None = None,
    progress: Progress = no_progress,
) -> ExtractedAdapter:
    """Return what LoRA adapters of `ranks` keep of the difference of two models; write that of the largest rank.

    With `keep`, each matrix gets the smallest rank that keeps this share of its change, at most the largest of `ranks`.
    The adapter is written to `target` as a GGUF file, completely or not at all; without `target`, nothing is written.
    `progress` gets sizes of tensors in bytes. Raises BadInput with all reasons if the models do not have the same
    tensors, if nothing differs, and for ranks and sizes above the limits; BadOrgan, StoreError, DiskFull.
    """
    if not ranks or not all(1 <= rank <= RANK_MAX for rank in ranks):
        raise BadInput(f"a rank is from 1 to {RANK_MAX:,}")
    if keep is not None and not 0.0 < keep <= 1.0:
        raise BadInput(f"the share to keep is {keep}; it is above 0 and at most 1")
    if keep is not None and len(ranks) > 1:
        raise BadInput("a share to keep is for one rank, which is the largest")
    wanted = max(ranks)
    changed = _changed(child.parent, base.parent, wanted)
    with tempfile.SpooledTemporaryFile(SPOOLED_MAX_BYTES) as spool:
        run = _Extraction(child, base, wanted, keep, None if target is None else spool)
        found = []
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(min(WORKERS_MAX, os.cpu_count() or 1)) as workers:
            for item in workers.map(run.extract, changed):
                found.append(item)
                progress(item.after.size_bytes)
        if not any(item.matrices for item in found):
            left_out = _left_out(found, sum(item.energy for item in found))
            reasons = [f"{names_text(item.organs)}: {item.reason}" for item in left_out] or ["all values are the same"]
            sentence = f"{child.parent.label} differs from {base.parent.label} in nothing that a LoRA can change"
            raise BadInput(f"{sentence}: {'; '.join(reasons)}", reasons=reasons)
        result = _result(child, base, sorted(set(ranks)), found)
        if target is not None:
            run.write(target, result, found)
    return result


def _changed(child: Parent, base: Parent, rank: int) -> list[tuple[Part, Part]]:
    """Return the tensors of both models at the places where they differ; raises BadInput with all reasons."""
    reasons = []
    for model in (child, base):
        if model.kind != FileKind.MODEL or not model.complete:
            kind = model.kind if model.kind != FileKind.MODEL else "incomplete model"
            reasons.append(f"{model.label} is of the kind {kind}: give complete models")
    if child.header.architecture != base.header.architecture:
        architectures = [str(model.header.architecture)[:40] for model in (child, base)]
        reasons.append(f"{child.label} has the architecture {architectures[0]}, {base.label} has {architectures[1]}")
    for model, other in ((child, base), (base, child)):
        if lacking := [part.name for part in other.parts if part.slot not in model.by_slot]:
            reasons.append(f"{model.label} has no {names_text(lacking)}")
    pairs = [(part, child.by_slot[part.slot]) for part in base.parts if part.slot in child.by_slot]
    unlike = [(one, two) for one, two in pairs if effective_shape(one.shape) != effective_shape(two.shape)]
    if unlike:
        texts = [f"{one.name} ({shape_text(two.shape)}, not {shape_text(one.shape)})" for one, two in unlike]
        reasons.append(f"{child.label} has other shapes at {names_text(texts)}")
    changed = [(one, two) for one, two in pairs if (one.digest, one.dtype) != (two.digest, two.dtype)]
    undecoded = [part.name for pair in changed for part in pair if not holds_weights(part.dtype)]
    if undecoded:
        reasons.append(f"the values of {names_text(sorted(set(undecoded)))} cannot be decoded here, or are no weights")
    large = [part.name for part, _ in changed if _obstacle(base, part) is None and _exceeds(part.shape, rank)]
    if large:
        reasons.append(f"a rank of {rank} is too large for {names_text(large)}: choose a lower one")
    if reasons:
        raise BadInput(f"no LoRA can be extracted: {'; '.join(reasons)}", reasons=reasons)
    if not changed:
        raise BadInput(f"{child.label} has the same weights as {base.label}: there is no change to extract")
    return changed


def _exceeds(shape: tuple[int, ...], rank: int) -> bool:
    """Return whether the factors of a matrix or stack of `shape` are above a limit."""
    row, rows, stack, *_ = *shape, 1, 1
    count = min(rank, row, rows)
    return (
        followed((row, rows), rank) * (row + rows) > SKETCH_MAX_ELEMENTS
        or count * (row + rows) * stack > FACTORS_MAX_ELEMENTS
        or count * row > FACTOR_MAX_ELEMENTS  # recipes would not merge it
    )


def _obstacle(base: Parent, part: Part) -> str | None:
    """Return why an adapter cannot change a tensor of the base; None if one can."""
    if not part.organ.is_matrix:
        return VECTOR
    if part.place in (TOKEN_EMBEDDING, OUTPUT_MATRIX):
        return None if any(other.place == OUTPUT_MATRIX for other in base.parts) else TIED
    if any(companion.is_factor and companion_slot(part.slot, companion) in base.by_slot for companion in COMPANIONS):
        return SCALED
    row, rows, *stack = effective_shape(part.shape)
    if not is_multiplied(part.place) or (stack and not is_expert_stack(part.place)):
        return UNUSUAL
    return misfit(part.shape, (row, 1, *stack), (1, rows, *stack))


@dataclass(frozen=True, slots=True)
class _Found:
    """A changed tensor with the energy of its change, and its factors if an adapter can change it."""

    before: Part
    after: Part
    energy: float
    obstacle: str | None = None
    matrices: int = 0
    """Of a stack, its experts; 0 without factors."""
    kept: Sequence[float] = ()
    """The energy that factors of each rank keep, from 1 on."""
    rank: int = 0
    offset: int = 0
    """Where A is in the spool; B follows."""

    def kept_at(self, rank: int) -> float:
        """Return the energy that factors of this rank keep."""
        return self.kept[min(rank, len(self.kept)) - 1] if self.kept else 0.0

    def specs(self, rank: int | None = None) -> tuple[TensorSpec, TensorSpec]:
        """Return the tensors A and B of a rank, or of that of the factors."""
        row, rows, *stack = effective_shape(self.before.shape)
        count = self.rank if rank is None else min(rank, len(self.kept))
        shapes: tuple[tuple[int, ...], ...]
        if self.before.place == TOKEN_EMBEDDING:
            shapes = (count, rows), (count, row)
        else:
            shapes = (row, count, *stack), (count, rows, *stack)
        names = (self.before.name + suffix for suffix in LORA_SUFFIXES)
        first, second = (
            TensorSpec(name, shape, dtype_by_name("F32")) for name, shape in zip(names, shapes, strict=True)
        )
        return first, second

    @property
    def size_bytes(self) -> int:
        return sum(spec.size_bytes for spec in self.specs()) if self.matrices else 0


class _Extraction:
    """The extraction of one adapter. Factors wait in the spool, if there is one, until the file is written."""

    def __init__(
        self, child: ReadableModel, base: ReadableModel, rank: int, keep: float | None, spool: IO[bytes] | None
    ) -> None:
        self._child, self._base, self._rank, self._keep, self._spool = child, base, rank, keep, spool
        self._lock = threading.Lock()

    def extract(self, pair: tuple[Part, Part]) -> _Found:
        """Decompose the difference of a tensor; raises BadOrgan with its name."""
        before, after = pair
        obstacle = _obstacle(self._base.parent, before)
        with ExitStack() as opened:
            origin, target = self._base.plain(before, opened), self._child.plain(after, opened)
            try:
                if obstacle is not None:
                    return _Found(before, after, difference_energy(target, origin), obstacle)
                row, rows, stack, *_ = *before.shape, 1, 1
                factors = [
                    low_rank(
                        target.part(number * row * rows, (row, rows)),
                        origin.part(number * row * rows, (row, rows)),
                        self._rank,
                    )
                    for number in range(stack)
                ]
            except BadOrgan as error:
                raise BadOrgan(f"{before.name}: {error}") from error
        return self._stored(before, after, factors)

    def _stored(self, before: Part, after: Part, factors: Sequence[LowRank]) -> _Found:
        """Put the factors of a matrix, or of the experts of a stack, into the spool."""
        energy = sum(one.energy for one in factors)
        if not energy:  # the same values in other types
            return _Found(before, after, energy)
        whole = len(factors[0].energies)
        kept = [sum(one.kept(rank) for one in factors) for rank in range(1, whole + 1)]
        rank = whole
        if self._keep is not None:
            rank = next((number for number, value in enumerate(kept, 1) if value >= self._keep * energy), whole)
        offset = 0
        if self._spool is not None:
            a = np.stack([one.a[:rank] for one in factors])
            b = np.stack([one.b[:, :rank] for one in factors]) * np.float32(rank / self._rank)
            if before.place == TOKEN_EMBEDDING:
                a, b = b[0], a[0].T
            with self._lock:
                try:
                    offset = self._spool.seek(0, os.SEEK_END)
                    for factor in (a, b):
                        self._spool.write(np.ascontiguousarray(factor, "<f4").tobytes())
                except OSError as error:
                    raise placing_error(error, Path(tempfile.gettempdir()) / before.name) from error
        return _Found(before, after, energy, None, len(factors), kept, rank, offset)

    def write(self, target: Path, result: ExtractedAdapter, found: Sequence[_Found]) -> None:
        """Write the adapter as a GGUF file."""
        assert self._spool is not None
        adapted = [item for item in found if item.matrices]
        specs = [spec for item in adapted for spec in item.specs()]
        header = encode_header(_metadata(self._child.parent, self._base.parent, result, self._rank), specs)
        size_bytes = len(header) + sum(padded(spec.size_bytes, ALIGNMENT_DEFAULT) for spec in specs)
        with placed(target, size_bytes) as file:
            file.write(header)
            for item in adapted:
                self._spool.seek(item.offset)
                for spec in item.specs():
                    for begin in range(0, spec.size_bytes, PIECE_BYTES):
                        file.write(self._spool.read(min(PIECE_BYTES, spec.size_bytes - begin)))
                    file.write(bytes(padded(spec.size_bytes, ALIGNMENT_DEFAULT) - spec.size_bytes))


def _metadata(child: Parent, base: Parent, result: ExtractedAdapter, alpha: int) -> Iterator[KeyValue]:
    def line(key: str, value: str) -> KeyValue:
        return KeyValue(key, ValueType.STRING, value)

    yield line("general.architecture", base.header.architecture or "")
    yield line("general.type", "adapter")
    yield line("general.name", f"{_own_name(child)} LoRA")
    description = f"extracted from {child.label}: it keeps {percent_text(result.kept)} of the change from {base.label}"
    yield line("general.description", description)
    license = license_expression({parent.label: parent.license for parent in (base, child)}) or base.license
    if license is not None:
        yield line("general.license", license)
    yield KeyValue("general.base_model.count", ValueType.UINT32, 1)
    for key in ("name", "version", "organization", "repo_url"):
        text = base.header.text(f"general.{key}") or (_own_name(base) if key == "name" else "")
        if text:
            yield line(f"general.base_model.0.{key}", text)
    yield KeyValue("general.file_type", ValueType.UINT32, 0)
    yield line(ADAPTER_TYPE_KEY, LORA_TYPE)
    yield KeyValue(ALPHA_KEY, ValueType.FLOAT32, float(alpha))


def _own_name(model: Parent) -> str:
    """Return the title of a model, else the last part of its name or path."""
    return model.header.text("general.name") or model.label.rpartition("/")[2].partition("@")[0].removesuffix(".gguf")


def _result(
    child: ReadableModel, base: ReadableModel, ranks: Sequence[int], found: Sequence[_Found]
) -> ExtractedAdapter:
    change = sum(item.energy for item in found)
    adapted = [item for item in found if item.matrices]

    def kept_at(rank: int | None, items: Sequence[_Found], whole: float = change) -> float:
        return _share(sum(item.kept_at(item.rank if rank is None else rank) for item in items), whole)

    types = []
    for kind in TYPES:
        own = [item for item in adapted if item.before.place.type is kind]
        if own:
            energy = sum(item.energy for item in own)
            types.append(
                ExtractedType(
                    type=kind.value,
                    matrices=sum(item.matrices for item in own),
                    least_rank=min(item.rank for item in own),
                    largest_rank=max(item.rank for item in own),
                    of_change=_share(energy, change),
                    kept=kept_at(None, own, energy),
                    size_bytes=sum(item.size_bytes for item in own),
                )
            )
    organs = [
        ExtractedOrgan(
            name=item.before.name,
            type=item.before.place.type.value,
            rank=item.rank,
            of_change=_share(item.energy, change),
            kept=kept_at(None, [item], item.energy),
            size_bytes=item.size_bytes,
        )
        for item in adapted
    ]
    sizes = {rank: sum(spec.size_bytes for item in adapted for spec in item.specs(rank)) for rank in ranks}
    return ExtractedAdapter(
        child=child.parent.label,
        base=base.parent.label,
        rank=max(item.rank for item in adapted),
        kept=kept_at(None, adapted),
        size_bytes=sum(item.size_bytes for item in adapted),
        types=tuple(types),
        ranks=tuple(RankShare(rank=rank, kept=kept_at(rank, adapted), size_bytes=sizes[rank]) for rank in ranks),
        organs=tuple(organs),
        left_out=_left_out(found, change),
        unchanged=len(base.parent.parts) - sum(item.energy > 0.0 for item in found),
        notes=tuple(_notes(child, base, adapted)),
    )


def _share(energy: float, whole: float) -> float:
    return min(1.0, energy / whole) if whole else 0.0


def _left_out(found: Sequence[_Found], change: float) -> tuple[LeftOutOrgans, ...]:
    """Return the changed organs that have no factors, by reason, the largest share of the change first."""
    groups: dict[str, list[_Found]] = {}
    for item in found:
        if item.obstacle is not None and item.energy:
            groups.setdefault(item.obstacle, []).append(item)
    left_out = [
        LeftOutOrgans(
            reason=reason,
            organs=tuple(item.before.name for item in items),
            of_change=_share(sum(item.energy for item in items), change),
        )
        for reason, items in groups.items()
    ]
    return tuple(sorted(left_out, key=lambda item: -item.of_change))


def _notes(child: ReadableModel, base: ReadableModel, adapted: Sequence[_Found]) -> Iterator[str]:
    """Yield sentences on what the difference has beside the training, and on models that are not related."""
    for model, parts in ((child, [item.after for item in adapted]), (base, [item.before for item in adapted])):
        rounded = sorted({part.dtype.name for part in parts if part.dtype.block_elements > 1})
        if rounded:
            better = "Extract from models in F16, BF16 or F32 if you have them"
            if model.source is not None:
                better = f"It is proved to be made from {model.source}: extract from that model"
            yield (
                f"{model.parent.label} is quantised ({names_text(rounded)}): the difference has the errors of its "
                f"rounding, which no low rank keeps. {better}."
            )
    parents = base.parent, child.parent
    likeness = similarity(*({part.slot: part.organ for part in parent.parts} for parent in parents))
    if likeness.kinship is Kinship.UNRELATED:
        yield (
            f"{child.parent.label} and {base.parent.label} are unrelated: their matrices have a mean correlation of "
            f"{likeness.mean or 0.0:.2f}. Their difference is no training, and a low rank keeps little of it."
        )
    yield from dict.fromkeys(finding.sentence for parent in parents for finding in parent.withdrawn)
