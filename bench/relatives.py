"""Measure the milliseconds in which an ingest searches for relatives of a new model, among many models of its shapes.

    python -m bench.relatives                       1,000 models of 291 tensors, 16 of them related to the new one
    python -m bench.relatives --models 5000 --kin 5000

Rows are written directly: every model has organs and random fingerprints of its own; those of the related ones
correlate with the new model's by 0.2 to 0.99. The search runs in the transaction that writes, as in an ingest, so its
time is how much longer the write lock is held. The system's cache is warm; the database's is that of a new connection.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import insert
from sqlalchemy.orm import Session

from bench.generated import Architecture, specs
from organs.registry.anatomy import place_of
from organs.registry.catalog.register.counts import FacetKey, facet_ids
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.organs import shape_text
from organs.registry.catalog.tables import Blob, Fingerprint, ModelFileRow, ModelRow, OrganRow, Placement, now
from organs.registry.local import LocalRegistry
from organs.registry.relatives import record_relatives
from organs.registry.similarity import VALUES, fingerprint_of

SHAPE = Architecture(27, 1024, 2048, 1024, 3072, 151_936, 128)
TENSORS = 291
MODELS_AT_ONCE = 20
ROUNDS = 9

Tensors = list[tuple[str, str]]
"""Return the names and shapes of the tensors."""


class Rows(NamedTuple):
    """The rows of one tensor."""

    blob: dict[str, object]
    organ: dict[str, object]
    fingerprint: dict[str, object]
    placement: dict[str, object]
    facet: FacetKey


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000, help="number of registered models (default 1000)")
    parser.add_argument("--kin", type=int, default=16, help="number of them that are related to the new model")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LocalRegistry.open(folder) as registry:
        begun = time.perf_counter()
        newcomer = fill(registry, arguments.models, arguments.kin)
        filled = time.perf_counter() - begun
        relative_count, wall, processor = timed(registry, newcomer, arguments.rounds)
    if arguments.json:
        figures = {"models": arguments.models, "kin": arguments.kin}
        print(
            json.dumps(figures | {"found": relative_count, "milliseconds": wall, "processor_milliseconds": processor})
        )
        return
    print(f"{arguments.models} models of {TENSORS} tensors written in {filled:.0f} s; {arguments.kin} are related")
    print(f"{relative_count} found and recorded in {wall:.0f} ms, {processor:.0f} ms of them by the processor", end=" ")
    print(f"(medians of {arguments.rounds})")


def timed(registry: LocalRegistry, newcomer: int, rounds: int) -> tuple[int, float, float]:
    """Return the number of found relatives, and the median milliseconds of elapsed and of processor time.

    All changes are rolled back.
    """
    wall, processor = [], []
    relative_count = 0
    for _ in range(rounds):
        registry.catalog.writer.dispose()
        with Session(registry.catalog.writer) as session:
            model = session.get_one(ModelRow, newcomer)
            begun, busy = time.perf_counter(), time.process_time()
            relative_count = len(record_relatives(session, model))
            wall.append(1e3 * (time.perf_counter() - begun))
            processor.append(1e3 * (time.process_time() - busy))
            session.rollback()
    return relative_count, statistics.median(wall), statistics.median(processor)


def fill(registry: LocalRegistry, models: int, kin: int) -> int:
    """Write `models` models and then the new one; return its id."""
    tensors = [(spec.name, shape_text(spec.shape)) for spec in specs(SHAPE)][:TENSORS]
    assert len(tensors) == TENSORS
    random = np.random.default_rng(1)
    own = random.standard_normal((len(tensors), VALUES))
    kin_ids = set(range(1, models + 1, max(1, models // max(kin, 1)))[:kin])
    for first in range(1, models + 2, MODELS_AT_ONCE):
        with registry.catalog.writing() as session:
            for model_id in range(first, min(first + MODELS_AT_ONCE, models + 2)):
                share = random.uniform(0.2, 0.99) if model_id in kin_ids else 0.0
                values = share * own + np.sqrt(1 - share**2) * random.standard_normal(own.shape)
                write_model(session, model_id, tensors, own if model_id == models + 1 else values)
    return models + 1


def write_model(session: Session, model_id: int, tensors: Tensors, values: NDArray[np.float64]) -> None:
    """Write the rows of one model whose fingerprints are `values`, a row a tensor, in standard deviations."""
    prints = [fingerprint_of(row) for row in values]
    contributor = contributor_id(session, "local")
    session.execute(insert(ModelRow), [model_row(model_id, contributor, len(tensors))])
    digest = sha256(b"%d" % model_id).hexdigest()
    file = {"id": model_id, "model_id": model_id, "position": 0, "name": "m.gguf", "size_bytes": 1, "header_bytes": 1}
    session.execute(insert(ModelFileRow), [file | {"sha256": digest, "header_sha256": digest}])
    rows = list(organ_rows(model_id, tensors, prints))
    facets = facet_ids(session, (row.facet for row in rows))
    session.execute(insert(Blob), [row.blob for row in rows])
    session.execute(insert(OrganRow), [row.organ for row in rows])
    session.execute(insert(Fingerprint), [row.fingerprint for row in rows])
    session.execute(insert(Placement), [row.placement | {"facet_id": facets[row.facet]} for row in rows])


def model_row(model_id: int, contributor: int, tensors: int) -> dict[str, object]:
    return {
        "id": model_id,
        "namespace": "local",
        "name": f"m{model_id}",
        "version": 1,
        "digest": sha256(b"%d" % model_id).hexdigest(),
        "state": "visible",
        "kind": "model",
        "complete": True,
        "contributor_id": contributor,
        "architecture": "qwen3",
        "tags": "[]",
        "parameters": 600_000_000,
        "tensors": tensors,
        "size_bytes": 1_200_000_000,
        "flags": "[]",
        "unassemblable": "[]",
        "created_at": now(),
    }


def organ_rows(model_id: int, tensors: Tensors, prints: Sequence[bytes]) -> Iterator[Rows]:
    at = now()
    for position, (name, shape) in enumerate(tensors):
        organ_id = model_id * 1000 + position
        place = place_of(name)
        digest = sha256(b"%d" % organ_id).hexdigest()
        sizes = {"size_bytes": 1, "stored_bytes": 1, "codec": "raw", "codec_version": 1, "state": "present"}
        yield Rows(
            {"id": organ_id, "digest": digest, "created_at": at, "touched_at": at} | sizes,
            {"id": organ_id, "blob_id": organ_id, "dtype": "BF16", "shape": shape, "elements": 1},
            {"organ_id": organ_id, "values": prints[position]},
            {
                "model_id": model_id,
                "position": position,
                "file_id": model_id,
                "offset_bytes": position,
                "name": name,
                "type": place.type.value,
                "tower": place.tower.value,
                "block": place.block,
                "slot": place.slot,
                "organ_id": organ_id,
                "visible": True,
                "dtype": "BF16",
                "size_bytes": 1,
                "theta": 35.0,
            },
            FacetKey(place.type.value, place.tower.value, place.slot, "BF16", "qwen3", ""),
        )


if __name__ == "__main__":
    main()
