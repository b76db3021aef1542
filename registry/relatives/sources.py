"""From which model a quantisation was made: blocks of its relatives are encoded again and compared, byte by byte.

ggml's encoders see nothing but the values of a block. So a few blocks of some matrices are enough to find the source,
and those of the source are equal to the last byte. With an importance matrix they are not, until it is given. A proof
compares all blocks, and is recorded organ by organ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from organs.registry.amounts import percent_text
from organs.registry.anatomy import Slot
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_id
from organs.registry.catalog.queries.relatives import (
    ComparablePlacement,
    blobs_of_organs,
    comparable_organs,
    derivations,
    main_dtypes,
    measured_edge,
    measured_edges,
    models_by_id,
    organ_identities,
    organs_by_slot,
    other_end,
)
from organs.registry.catalog.register.lineage import record_derivations, record_matched
from organs.registry.catalog.tables import Derivation, ModelRow
from organs.registry.digest import Digest
from organs.registry.entities.comparison import (
    BY_IMPORTANCES,
    EXACT,
    NEAR,
    SAME,
    UNCHECKED,
    UNEXPLAINED,
    Proof,
    ProvedOrgan,
)
from organs.registry.errors import BadInput, Conflict, NotFound, StoreError
from organs.registry.gguf.importance import ImportanceMatrix
from organs.registry.gguf.quants import can_encode, can_weigh, decode, encode, encode_weighted, encoder_of, quantize
from organs.registry.gguf.types import DType, dtype_by_name
from organs.registry.progress import Progress, no_progress
from organs.registry.relatives.descent import FAR_QUANTISED, FLOATS, LIKELY_MIN, MATCHED_MIN, is_decoded
from organs.registry.similarity import ComparableOrgan, probes
from organs.registry.store import BlobStore, RangeReader

PLACES = 8
"""Matrices of which blocks are compared, spread over types and blocks of layers."""
SAMPLE_ELEMENTS = 4096
"""Consecutive values that are encoded of each of them."""
CANDIDATES_MAX = 4
"""The nearest relatives of a quantisation that are tried."""
QUANTISATIONS_MAX = 16
"""The nearest quantisations without a source for which a new model is tried."""
ENCODED_BYTES = 1 << 20
"""Values that are encoded at once by a complete proof."""

PLAIN_ENCODER = "rounding to nearest"
"""The encoder of types without blocks."""
LARGEST = np.float32(65504)
"""The largest weight that is encoded: encoders of hostile values may stop the program."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    """An organ of a quantisation, and the one at the same place of a possible source."""

    place: Slot
    name: str
    """Of the tensor in the quantisation, by which an importance matrix names it."""
    dtype: DType
    source_dtype: DType
    shape: tuple[int, ...]
    """Row length first."""
    blob: KnownBlob
    source: KnownBlob

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def matrix_elements(self) -> int:
        """The values of one matrix of a stack."""
        return math.prod(self.shape[:2])

    def pieces(self, begin: int, end: int, unit: int) -> Iterator[tuple[int, int]]:
        """Yield the first value and the number of values of pieces of whole units, each in one matrix."""
        most = max(1, ENCODED_BYTES // 4 // unit) * unit
        while begin < end:
            size = min(most, end - begin, self.matrix_elements - begin % self.matrix_elements)
            yield begin, size
            begin += size


@dataclass(frozen=True, slots=True)
class _Share:
    """How many blocks are equal, of all that were compared, and the digest of the importance matrix."""

    equal: int
    blocks: int
    importances: Digest | None = None

    @property
    def equal_share(self) -> float:
        return self.equal / self.blocks if self.blocks else 0.0


def settle_sources(catalog: Catalog, blobs: BlobStore, model_ids: Sequence[int]) -> int:
    """Try which relatives of the models are the sources of quantisations, and record it; return the number of tries.

    A relative was tried if it was tried once. Faulty blobs are left out. Nothing is tried without an encoder for the
    tensor types.
    """
    tried = 0
    for model_id in model_ids:
        with catalog.reading() as session:
            attempts = _attempts(session, model_id)
        shares = {}
        for edge_id, pairs in attempts.items():
            equal = blocks = 0
            for pair in pairs:
                with suppress(StoreError):
                    share = _compare(blobs, pair, SAMPLE_ELEMENTS)
                    equal, blocks = equal + share.equal, blocks + share.blocks
            if blocks:
                shares[edge_id] = equal / blocks
        if shares:
            with catalog.writing() as session:
                record_matched(session, shares)
        tried += len(shares)
    return tried


def likely_source(
    catalog: Catalog, blobs: BlobStore, model: ModelRow, importances: ImportanceMatrix | None = None
) -> ModelRow:
    """Return the relative of a quantisation whose sampled blocks, encoded again, are most often its own.

    Raises NotFound if no relative gives half of them, BadInput for a model that is not quantised, StoreError.
    """
    with catalog.reading() as session:
        main_dtype = main_dtypes(session, [model.id]).get(model.id, "")
        if main_dtype in FLOATS:
            raise BadInput(f"{model.full_name} is not quantised: most of its weights are {main_dtype}")
        edges = [edge for edge in measured_edges(session, model.id) if (edge.change or 0.0) <= FAR_QUANTISED]
        others = {other_end(edge, model.id): edge for edge in edges}
        dtypes = main_dtypes(session, others)
        near = sorted(
            (edge.change or 0.0, other)
            for other, edge in others.items()
            if dtypes.get(other) in FLOATS and not is_decoded(edge.change, dtypes[other])
        )
        placed = comparable_organs(session, model.id)
        own, names = {item.slot: item.organ for item in placed}, {item.slot: item.name for item in placed}
        tries = {
            other: _pairs(
                session,
                own,
                organs_by_slot(session, other),
                names=names,
                importances=importances,
                places=PLACES,
            )
            for _, other in near[:CANDIDATES_MAX]
        }
    shares = {}
    for other, pairs in tries.items():
        samples = [_compare(blobs, pair, SAMPLE_ELEMENTS, importances) for pair in pairs]
        shares[other] = _Share(sum(one.equal for one in samples), sum(one.blocks for one in samples)).equal_share
    best = max(shares, key=lambda other: shares[other], default=0)  # the nearest one of those with equal shares
    if not best:
        raise NotFound(
            f"no source of {model.full_name} is known here: register the model in F16, BF16 or F32 from which it was "
            "made, or name it with --from"
        )
    with catalog.reading() as session:
        found = models_by_id(session, [best])[best]
    if shares[best] < LIKELY_MIN:
        advice = "give the importance matrix with --imatrix if one was used" if importances is None else "try --from"
        raise NotFound(
            f"no source of {model.full_name} is found: encoding its nearest relatives gives at most "
            f"{percent_text(shares[best])} of its sampled blocks (those of {found.full_name}); {advice}"
        )
    return found


def prove_source(
    catalog: Catalog,
    blobs: BlobStore,
    model: ModelRow,
    source: ModelRow,
    importances: ImportanceMatrix | None = None,
    progress: Progress = no_progress,
) -> Proof:
    """Encode all organs of `source` in the types of a quantisation, compare all blocks, and record what is found.

    `progress` gets sizes in bytes. Raises BadInput if no organ can be encoded or the source was decoded from the
    quantisation, Conflict if one of the two was removed meanwhile, StoreError.
    """
    with catalog.reading() as session:
        placed = comparable_organs(session, model.id)
        own, sources = {item.slot: item.organ for item in placed}, organs_by_slot(session, source.id)
        names = {item.slot: item.name for item in placed}
        pairs = _pairs(session, own, sources, names=names, importances=importances)
        ids = {pair.place: (_id(own[pair.place]), _id(sources[pair.place])) for pair in pairs}
        identities = organ_identities(session, {organ_id for both in ids.values() for organ_id in both})
        main_dtype = main_dtypes(session, [source.id]).get(source.id, "")
        edge = measured_edge(session, model.id, source.id)
    if not pairs:
        reason = "no tensor is in another tensor type that is written here; most types need the extra quantize"
        raise BadInput(f"nothing of {source.full_name} can be encoded as {model.full_name} is: {reason}")
    if edge is not None and is_decoded(edge.change, main_dtype):
        raise BadInput(f"{source.full_name} has the values of {model.full_name}: it was decoded from it")
    rows = []
    for pair in pairs:
        share = _compare(blobs, pair, pair.elements, importances)
        organ_id, source_id = ids[pair.place]
        rows.append(
            Derivation(
                organ_id=organ_id,
                source_id=source_id,
                encoder=encoder_of(pair.dtype) or PLAIN_ENCODER,
                importances=share.importances,
                equal_blocks=share.equal,
                blocks=share.blocks,
            )
        )
        progress(pair.blob.size_bytes)
    with catalog.writing() as session:
        if organ_identities(session, identities) != identities:
            raise Conflict(f"{model.full_name} or {source.full_name} was removed meanwhile: nothing is recorded")
        equal, blocks = record_derivations(session, rows)
        if edge is not None:
            record_matched(session, {edge.id: equal / blocks})
        proof = proof_of(session, (model.full_name, placed), (source.full_name, sources))
    assert proof is not None
    return proof


def _id(organ: ComparableOrgan) -> int:
    assert isinstance(organ.identity, int)
    return organ.identity


def proof_of(
    session: Session,
    model: tuple[str, Sequence[ComparablePlacement]],
    source: tuple[str, Mapping[Slot, ComparableOrgan]],
) -> Proof | None:
    """Return what was proved of a quantisation and a source, both by name and organs; None if nothing was."""
    (name, placed), (source_name, sources) = model, source
    known = derivations(session, [item.organ.identity for item in placed if isinstance(item.organ.identity, int)])
    used, counts, others = list[Derivation](), Counter[str](), []
    for item in placed:
        other = sources.get(item.slot)
        row = None
        if other is not None and isinstance(item.organ.identity, int) and isinstance(other.identity, int):
            row = known.get((item.organ.identity, other.identity))
        result = _result(item.organ, other, row)
        counts[result] += 1
        used += [row] if row is not None else []
        if result not in (EXACT, BY_IMPORTANCES, SAME):
            equal, blocks = (row.equal_blocks, row.blocks) if row is not None else (0, 0)
            others.append(
                ProvedOrgan(name=item.name, dtype=item.organ.dtype, result=result, equal_blocks=equal, blocks=blocks)
            )
    if not used:
        return None
    return Proof(
        quantised=name,
        source=source_name,
        encoder=", ".join(sorted({row.encoder for row in used})),
        importances=next((Digest(row.importances) for row in used if row.importances), None),
        organs=len(placed),
        exact=counts[EXACT],
        by_importances=counts[BY_IMPORTANCES],
        same=counts[SAME],
        others=tuple(others),
    )


def _result(own: ComparableOrgan, source: ComparableOrgan | None, row: Derivation | None) -> str:
    """Return what is known of an organ and that of a possible source at the same place."""
    if source is None or own.shape != source.shape:
        return UNCHECKED
    if own.identity == source.identity:
        return SAME
    if row is None:
        return UNEXPLAINED if own.dtype == source.dtype else UNCHECKED
    if row.equal_blocks == row.blocks:
        return BY_IMPORTANCES if row.importances else EXACT
    return NEAR if row.equal_blocks >= MATCHED_MIN * row.blocks else UNEXPLAINED


def _attempts(session: Session, model_id: int) -> dict[int, list[_Encoded]]:
    """Return what is to be compared for each measured edge of a model that was not tried, by the edge's id."""
    edges = measured_edges(session, model_id)
    others = {edge.id: other_end(edge, model_id) for edge in edges}
    dtypes = main_dtypes(session, {model_id, *others.values()})
    is_quantised = dtypes.get(model_id, "") not in FLOATS
    open_edges = [
        edge
        for edge in edges
        if edge.matched is None
        and edge.change is not None
        and edge.change <= FAR_QUANTISED
        and (dtypes.get(others[edge.id], "") not in FLOATS) is not is_quantised
    ]
    open_edges.sort(key=lambda edge: (edge.change or 0.0, edge.id))
    if not is_quantised:
        open_edges = [
            edge
            for edge in open_edges
            if all((tried.matched or 0.0) < MATCHED_MIN for tried in measured_edges(session, others[edge.id]))
        ]
    attempts = {}
    for edge in open_edges[: CANDIDATES_MAX if is_quantised else QUANTISATIONS_MAX]:
        ends = (model_id, others[edge.id]) if is_quantised else (others[edge.id], model_id)
        own, sources = (organs_by_slot(session, end) for end in ends)
        attempts[edge.id] = _pairs(session, own, sources, places=PLACES)
    return attempts


def _pairs(
    session: Session,
    own: Mapping[Slot, ComparableOrgan],
    sources: Mapping[Slot, ComparableOrgan],
    *,
    names: Mapping[Slot, str] | None = None,
    importances: ImportanceMatrix | None = None,
    places: int | None = None,
) -> list[_Encoded]:
    """Return the organs of a quantisation and of its source to compare: `places` matrices, or all that can be."""
    names = names or {}
    possible = {
        slot: organ
        for slot, organ in own.items()
        if _can_compare(organ, sources.get(slot), names.get(slot, ""), importances)
    }
    if places is not None:
        quantised = {slot: organ for slot, organ in possible.items() if organ.dtype not in FLOATS}
        chosen = probes(quantised, places)
    else:
        chosen = list(possible)
    organ_ids = [organs[slot].identity for slot in chosen for organs in (own, sources)]
    known = blobs_of_organs(session, [identity for identity in organ_ids if isinstance(identity, int)])
    blob_ids: dict[Hashable, int] = dict(known.items())
    rows = blobs_by_id(session, set(blob_ids.values()))
    pairs = []
    for slot in chosen:
        blob, source = (rows.get(blob_ids.get(organs[slot].identity, 0)) for organs in (own, sources))
        if blob is not None and source is not None:
            dtypes = (dtype_by_name(own[slot].dtype), dtype_by_name(sources[slot].dtype))
            pairs.append(_Encoded(slot, names.get(slot, ""), *dtypes, own[slot].shape, blob, source))
    return pairs


def _can_compare(
    own: ComparableOrgan, source: ComparableOrgan | None, name: str, importances: ImportanceMatrix | None
) -> bool:
    """Return whether `own` may be written from `source`: rounded to blocks, or to narrower floats."""
    if source is None or own.shape != source.shape or source.dtype not in FLOATS or own.dtype == source.dtype:
        return False
    dtype = dtype_by_name(own.dtype)
    if own.dtype in FLOATS:
        return dtype.block_bytes <= dtype_by_name(source.dtype).block_bytes
    return can_encode(dtype) or (importances is not None and can_weigh(dtype) and importances.fits(name, own.shape))


def _is_plain(dtype: DType) -> bool:
    """Return whether a type is written without an importance matrix."""
    return dtype.name in FLOATS or can_encode(dtype)


def _compare(blobs: BlobStore, pair: _Encoded, elements: int, importances: ImportanceMatrix | None = None) -> _Share:
    """Compare `elements` values in the middle of an organ, or all values.

    It is encoded with the importance matrix if more blocks of a first sample are equal with it. Blocks with NaN or
    infinite values are never equal. Raises StoreError.
    """
    ways: list[ImportanceMatrix | None] = [None] if _is_plain(pair.dtype) else []
    if importances is not None and importances.fits(pair.name, pair.shape) and can_weigh(pair.dtype):
        ways.append(importances)
    best = ways[0]
    if len(ways) > 1:
        best = max(ways, key=lambda way: _compared(blobs, pair, SAMPLE_ELEMENTS, way).equal_share)
    return _compared(blobs, pair, elements, best)


def _compared(blobs: BlobStore, pair: _Encoded, elements: int, importances: ImportanceMatrix | None) -> _Share:
    """Compare an organ as `_compare` does, with or without the importance matrix."""
    block = pair.dtype.block_elements
    unit = block if importances is None else pair.shape[0]
    count = min(max(elements, unit), pair.elements) // unit * unit
    begin = (pair.elements - count) // 2 // unit * unit
    equal = 0
    with ExitStack() as opened:
        own, source = (RangeReader(opened.enter_context(blobs.open(row))) for row in (pair.blob, pair.source))
        for start, size in pair.pieces(begin, begin + count, unit):
            stored = own.read(pair.dtype.size_bytes(start), pair.dtype.size_bytes(size))
            values = source.read(pair.source_dtype.size_bytes(start), pair.source_dtype.size_bytes(size))
            floats = decode(values, pair.source_dtype).astype(np.float32)
            usable = np.abs(floats) <= LARGEST
            floats = np.where(usable, floats, np.float32(0))
            if importances is not None:
                weights = importances.of(pair.name, pair.shape[0], start // pair.matrix_elements)
                encoded = encode_weighted(floats.reshape(-1, pair.shape[0]), pair.dtype, weights)
            else:
                encoded = encode(floats, pair.dtype) if block > 1 else quantize(floats, pair.dtype)
            rows = [np.frombuffer(data, np.uint8).reshape(-1, pair.dtype.block_bytes) for data in (stored, encoded)]
            is_equal = (rows[0] == rows[1]).all(axis=1) & usable.reshape(-1, block).all(axis=1)
            equal += int(np.count_nonzero(is_equal))
    return _Share(equal, count // block, None if importances is None else importances.digest)
