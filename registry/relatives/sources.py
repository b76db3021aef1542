"""From which model a quantisation was made: blocks of its relatives are encoded again and compared, byte by byte.

ggml's encoders see nothing but the values of a block. So a few blocks of some matrices are enough, and those of the
source are equal to the last byte. With an importance matrix they are not: then nothing is said.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from organs.registry.anatomy import Slot
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_id
from organs.registry.catalog.queries.relatives import (
    blobs_of_organs,
    main_dtypes,
    measured_edges,
    organs_by_slot,
    other_end,
)
from organs.registry.catalog.register.lineage import record_matched
from organs.registry.catalog.tables import ModelRow
from organs.registry.entities.comparison import Proof
from organs.registry.errors import StoreError
from organs.registry.gguf.quants import can_encode, decode, encode
from organs.registry.gguf.types import DType, dtype_by_name
from organs.registry.progress import Progress, no_progress
from organs.registry.relatives.descent import FAR_QUANTISED, FLOATS, MATCHED_MIN
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

LARGEST = np.float32(65504)
"""The largest weight that is encoded: encoders of hostile values may stop the program."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A matrix of a quantisation, and the one at the same place of a possible source."""

    place: Slot
    dtype: DType
    source_dtype: DType
    elements: int
    blob: KnownBlob
    source: KnownBlob


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
                    own_equal, own_blocks = _compare(blobs, pair, SAMPLE_ELEMENTS)
                    equal, blocks = equal + own_equal, blocks + own_blocks
            if blocks:
                shares[edge_id] = equal / blocks
        if shares:
            with catalog.writing() as session:
                record_matched(session, shares)
        tried += len(shares)
    return tried


def prove_source(
    catalog: Catalog, blobs: BlobStore, first: ModelRow, second: ModelRow, progress: Progress = no_progress
) -> Proof | None:
    """Encode all matrices of the source of a quantisation, and compare all blocks; compare other organs by identity.

    Return None if none of the two models is a quantisation of which the other one may be the source, or if there is no
    encoder for its tensor types. `progress` gets sizes in bytes. Raises StoreError.
    """
    with catalog.reading() as session:
        dtypes = main_dtypes(session, [first.id, second.id])
        floating = [model for model in (first, second) if dtypes.get(model.id) in FLOATS]
        quantised = [model for model in (first, second) if dtypes.get(model.id, "F32") not in FLOATS]
        if not len(floating) == len(quantised) == 1:
            return None
        own, sources = (organs_by_slot(session, model.id) for model in (*quantised, *floating))
        pairs = _pairs(session, own, sources, None)
    if not pairs:
        return None
    equal_blocks = blocks = exact = 0
    differing = []
    for pair in pairs:
        own_equal, own_blocks = _compare(blobs, pair, pair.elements)
        equal_blocks, blocks = equal_blocks + own_equal, blocks + own_blocks
        if own_equal == own_blocks:
            exact += 1
        else:
            differing.append(_name(pair.place))
        progress(pair.blob.size_bytes)
    identical, unequal, unchecked = _compare_others(own, sources, {pair.place for pair in pairs})
    return Proof(
        quantised=quantised[0].full_name,
        source=floating[0].full_name,
        exact=exact,
        organs=len(pairs),
        equal_blocks=equal_blocks,
        blocks=blocks,
        differing=tuple(differing),
        identical=identical,
        unequal=tuple(map(_name, unequal)),
        unchecked=tuple(map(_name, unchecked)),
    )


def _compare_others(
    own: Mapping[Slot, ComparableOrgan], sources: Mapping[Slot, ComparableOrgan], encoded: Collection[Slot]
) -> tuple[int, list[Slot], list[Slot]]:
    """Compare the organs of two models but those at the places `encoded` by their bytes.

    Return the number of equal ones, the places of those that differ, and of those that cannot be compared: in different
    tensor types, or only in one of the models.
    """
    identical, unequal, unchecked = 0, list[Slot](), list[Slot]()
    for place in {**own, **sources}:
        first, second = own.get(place), sources.get(place)
        if place in encoded:
            continue
        if first is None or second is None:
            unchecked.append(place)
        elif first.identity == second.identity:
            identical += 1
        elif first.dtype == second.dtype or first.shape != second.shape:
            unequal.append(place)
        else:
            unchecked.append(place)
    return identical, unequal, unchecked


def _name(place: Slot) -> str:
    tower, block, slot = place
    where = "" if block is None else f"block {block} "
    return f"{where}{slot}" if tower == "text" else f"{tower} {where}{slot}"


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
        attempts[edge.id] = _pairs(session, own, sources, PLACES)
    return attempts


def _pairs(
    session: Session, own: Mapping[Slot, ComparableOrgan], sources: Mapping[Slot, ComparableOrgan], places: int | None
) -> list[_Encoded]:
    """Return the matrices of a quantisation and of its source to compare: `places` of them, or all of them."""
    possible = {slot: organ for slot, organ in own.items() if _can_compare(organ, sources.get(slot))}
    chosen = probes(possible, places) if places is not None else list(possible)
    organ_ids = [organs[slot].identity for slot in chosen for organs in (own, sources)]
    known = blobs_of_organs(session, [identity for identity in organ_ids if isinstance(identity, int)])
    blob_ids: dict[Hashable, int] = dict(known.items())
    rows = blobs_by_id(session, set(blob_ids.values()))
    pairs = []
    for slot in chosen:
        blob, source = (rows.get(blob_ids.get(organs[slot].identity, 0)) for organs in (own, sources))
        if blob is not None and source is not None:
            dtype = dtype_by_name(own[slot].dtype)
            elements = blob.size_bytes // dtype.block_bytes * dtype.block_elements
            pairs.append(_Encoded(slot, dtype, dtype_by_name(sources[slot].dtype), elements, blob, source))
    return pairs


def _can_compare(own: ComparableOrgan, source: ComparableOrgan | None) -> bool:
    return (
        source is not None
        and own.shape == source.shape
        and own.is_matrix
        and own.dtype not in FLOATS
        and source.dtype in FLOATS
        and can_encode(dtype_by_name(own.dtype))
    )


def _compare(blobs: BlobStore, pair: _Encoded, elements: int) -> tuple[int, int]:
    """Compare `elements` values in the middle of a matrix, or all values; return equal blocks, and all of them.

    Blocks with NaN or infinite values are never equal. Raises StoreError.
    """
    unit = ENCODED_BYTES // 4
    block = pair.dtype.block_elements
    count = min(elements, pair.elements) // block * block
    begin = (pair.elements - count) // 2 // block * block
    equal = 0
    with ExitStack() as opened:
        own, source = (RangeReader(opened.enter_context(blobs.open(row))) for row in (pair.blob, pair.source))
        for start in range(begin, begin + count, unit):
            size = min(unit, begin + count - start)
            stored = own.read(pair.dtype.size_bytes(start), pair.dtype.size_bytes(size))
            values = source.read(pair.source_dtype.size_bytes(start), pair.source_dtype.size_bytes(size))
            floats = decode(values, pair.source_dtype).astype(np.float32)
            usable = np.abs(floats) <= LARGEST
            encoded = encode(np.where(usable, floats, np.float32(0)), pair.dtype)
            rows = [np.frombuffer(data, np.uint8).reshape(-1, pair.dtype.block_bytes) for data in (stored, encoded)]
            is_equal = (rows[0] == rows[1]).all(axis=1) & usable.reshape(-1, block).all(axis=1)
            equal += int(np.count_nonzero(is_equal))
    return equal, count // block
