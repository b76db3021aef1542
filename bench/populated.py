"""Fill a catalog of a given size with random rows, for timing searches. Its blobs have no bytes."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from organs.registry.anatomy import OrganType, Place, place_of
from organs.registry.catalog.register.counts import FacetKey, facet_ids, repair_totals
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.rows import insert_or_add
from organs.registry.catalog.tables import (
    Base,
    Blob,
    FacetCount,
    Fingerprint,
    ModelFileRow,
    ModelRow,
    ModelWord,
    OrganRow,
    Placement,
)
from organs.registry.catalog.vocabulary import theta_bin, unique_words
from organs.registry.local import LocalRegistry
from organs.registry.settings import DATABASE_VARIABLE, Settings
from organs.registry.similarity import VALUES

BLOCKS, WIDTH, HIDDEN, VOCABULARY = 32, 2048, 5632, 32_000
TENSORS = 3 + 9 * BLOCKS
"""291 tensors, as in a Llama of 7 billion parameters."""
ARCHITECTURES = {
    "llama": 0.4,
    "qwen2": 0.2,
    "mistral": 0.15,
    "gemma2": 0.1,
    "phi3": 0.08,
    "command-r": 0.05,
    "rare": 0.02,
}
LICENSES = {"apache-2.0": 0.45, "mit": 0.2, "llama3": 0.2, "cc-by-nc-4.0": 0.1, "": 0.05}
DTYPES = {"Q4_K": 0.35, "Q8_0": 0.25, "F16": 0.2, "BF16": 0.1, "Q6_K": 0.1}
SUBJECTS = ("coder", "farmer", "doctor", "lawyer", "poet", "teacher", "pilot", "baker", "sailor", "gardener")
CONTRIBUTORS = 50
THETA = {"norm": (79.0, 4.0), "skeleton": (47.0, 6.0), "organ": (43.0, 6.0), "embed": (36.0, 7.0)}
"""Mean and deviation of θ by type, in degrees: the known ranges of models of 1 to 14 billion parameters."""
MODELS_AT_ONCE = 200
"""The models whose rows are written in one transaction."""
SHARED = 0.4
"""The share of a model's organs that come from an older one."""
LARGE = (Blob, OrganRow, Fingerprint, Placement)
"""The tables with a row for each organ or placement, in the order of their foreign keys."""
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Slot:
    name: str
    shape: str
    elements: int
    place: Place


def populate(registry: LocalRegistry, placements: int, seed: int = 1) -> int:
    """Fill an empty registry with models of 291 tensors until it has `placements`; return the number of models.

    The indexes are created when all rows are there, which takes a fraction of the time.
    """
    with closing(registry.catalog.writer.raw_connection()) as connection:
        if isinstance(connection.driver_connection, sqlite3.Connection):
            connection.driver_connection.execute("PRAGMA synchronous = OFF")
    random = np.random.default_rng(seed)
    models = placements // TENSORS
    slots = list(_slots())
    rows = _Rows()
    indexes = [index for table in LARGE for index in Base.metadata.tables[table.__tablename__].indexes]
    with registry.catalog.writing() as session:
        for index in indexes:
            index.drop(session.connection())
    try:
        for first in range(0, models, MODELS_AT_ONCE):
            with registry.catalog.writing() as session:
                for number in range(first, min(first + MODELS_AT_ONCE, models)):
                    _add_model(session, number, slots, rows, random)
                rows.write(session)
    finally:
        with registry.catalog.writing() as session:
            for index in indexes:
                index.create(session.connection())
            repair_totals(session)
    return models


class _Rows:
    """The rows of organs and placements that are not written yet, and what is known of the organs drawn so far."""

    def __init__(self) -> None:
        self.organ_count = 0
        self.organs_by_place: dict[tuple[int, str], list[int]] = {}
        self.measures: dict[int, dict[str, float | None]] = {}
        """The measures of each organ."""
        self.blobs: list[dict[str, Any]] = []
        self.organs: list[dict[str, Any]] = []
        self.fingerprints: list[dict[str, Any]] = []
        self.placements: list[dict[str, Any]] = []
        self.facets: Counter[tuple[int, int]] = Counter()
        """The number of placements by facet and bin of θ."""

    def write(self, session: Session) -> None:
        """Insert the rows, and forget them."""
        lists = (self.blobs, self.organs, self.fingerprints, self.placements)
        for table, rows in zip(LARGE, lists, strict=True):
            if rows:
                session.execute(insert(Base.metadata.tables[table.__tablename__]), rows)
            rows.clear()
        count_facets(session, self.facets)
        self.facets.clear()


def _slots() -> Iterator[_Slot]:
    def slot(name: str, *shape: int) -> _Slot:
        return _Slot(name, "x".join(map(str, shape)), int(np.prod(shape)), place_of(name))

    yield slot("token_embd.weight", WIDTH, VOCABULARY)
    for block in range(BLOCKS):
        yield slot(f"blk.{block}.attn_norm.weight", WIDTH)
        for part in ("q", "k", "v", "output"):
            yield slot(f"blk.{block}.attn_{part}.weight", WIDTH, WIDTH)
        yield slot(f"blk.{block}.ffn_norm.weight", WIDTH)
        yield slot(f"blk.{block}.ffn_gate.weight", WIDTH, HIDDEN)
        yield slot(f"blk.{block}.ffn_up.weight", WIDTH, HIDDEN)
        yield slot(f"blk.{block}.ffn_down.weight", HIDDEN, WIDTH)
    yield slot("output_norm.weight", WIDTH)
    yield slot("output.weight", WIDTH, VOCABULARY)


def _pick(random: np.random.Generator, weights: dict[str, float]) -> str:
    return str(random.choice(list(weights), p=list(weights.values())))


def _add_model(session: Session, number: int, slots: list[_Slot], rows: _Rows, random: np.random.Generator) -> None:
    architecture, license_, dtype = (_pick(random, item) for item in (ARCHITECTURES, LICENSES, DTYPES))
    subject = SUBJECTS[int(random.integers(len(SUBJECTS)))]
    owner = contributor_id(session, f"contributor-{int(random.integers(CONTRIBUTORS))}")
    name = f"{architecture}-{subject}-{number}"
    model = ModelRow(
        namespace=f"lab-{number % 97}", name=name, version=1, digest=digest_of("model", number), state="visible",
        kind="model", complete=True, contributor_id=owner, architecture=architecture, title=f"{subject} {number}",
        description=f"A {subject}'s model, tuned on letters and reports", license=license_ or None, tags=(),
        parameters=sum(slot.elements for slot in slots), tensors=len(slots), size_bytes=4_000_000_000, mean_theta=45.0,
        mean_signal=0.7, flags=(), unassemblable=(), created_at=NOW + timedelta(minutes=number), repacked_at=NOW,
    )  # fmt: skip
    session.add(model)
    session.flush()
    file = ModelFileRow(
        model_id=model.id, position=0, name=f"{name}.gguf", size_bytes=model.size_bytes, sha256=model.digest,
        header_sha256=model.digest, header_bytes=1000,
    )  # fmt: skip
    session.add(file)
    session.flush()
    words = unique_words([model.namespace, model.name, model.title, model.description])
    session.execute(insert(ModelWord), [{"word": word, "model_id": model.id} for word in words])
    keys = [_facet_key(model, slot, dtype) for slot in slots]
    ids = facet_ids(session, keys)
    for position, (slot, key) in enumerate(zip(slots, keys, strict=True)):
        organ_id = _draw_organ(rows, random, position, slot, key)
        measures = rows.measures[organ_id]
        rows.facets[ids[key], theta_bin(measures["theta"])] += 1
        rows.placements.append(
            {
                "model_id": model.id, "position": position, "file_id": file.id, "offset_bytes": 32 * position,
                "name": slot.name, "type": key.type, "tower": key.tower, "block": slot.place.block,
                "slot": key.slot, "organ_id": organ_id, "facet_id": ids[key], "visible": True, "dtype": key.dtype,
                "size_bytes": slot.elements, **measures,
            }
        )  # fmt: skip


def _facet_key(model: ModelRow, slot: _Slot, dtype: str) -> FacetKey:
    place = slot.place
    own = "F32" if place.type is OrganType.NORM else dtype
    return FacetKey(place.type.value, place.tower.value, place.slot, own, model.architecture or "", model.license or "")


def _draw_organ(rows: _Rows, random: np.random.Generator, position: int, slot: _Slot, key: FacetKey) -> int:
    """Return an organ of an earlier model at this place, or a new one."""
    known = rows.organs_by_place.setdefault((position, key.dtype), [])
    if known and random.random() < SHARED:
        return known[int(random.integers(len(known)))]
    rows.organ_count += 1
    number = rows.organ_count
    known.append(number)
    rows.measures[number] = drawn_measures(random, key.type)
    rows.blobs.append(blob_row(number))
    rows.organs.append(
        {"id": number, "blob_id": number, "dtype": key.dtype, "shape": slot.shape, "elements": slot.elements}
    )
    rows.fingerprints.append({"organ_id": number, "values": drawn_fingerprint(random)})
    return number


def count_facets(session: Session, counts: Counter[tuple[int, int]]) -> None:
    rows = [{"facet_id": facet, "theta_bin": lower, "placements": number} for (facet, lower), number in counts.items()]
    insert_or_add(session, FacetCount, ["facet_id", "theta_bin"], "placements", rows)


def drawn_fingerprint(random: np.random.Generator) -> bytes:
    """Return a fingerprint of random values."""
    return struct.pack("<3d", 0.0, 1e-6, 0.02) + random.bytes(2 * VALUES)


def drawn_measures(random: np.random.Generator, kind: str) -> dict[str, float | None]:
    mean, deviation = THETA[kind]
    theta = float(np.clip(random.normal(mean, deviation), 0.0, 90.0))
    matrix = kind != "norm"
    return {
        "theta": theta,
        "magnitude": float(random.normal(0.98, 0.02)),
        "signal": float(np.sin(np.radians(theta))),
        "spectral_signal": float(np.clip(random.normal(0.35, 0.12), 0, 1)) if matrix else None,
        "stable_rank": float(random.uniform(5, 200)) if matrix else None,
    }


def blob_row(number: int) -> dict[str, Any]:
    return {
        "id": number, "digest": digest_of("organ", number), "size_bytes": 1, "stored_bytes": 1, "codec": "bytes",
        "codec_version": 1, "file": None, "state": "present", "created_at": NOW, "touched_at": NOW,
    }  # fmt: skip


def digest_of(kind: str, number: int) -> str:
    return hashlib.sha256(f"{kind} {number}".encode()).hexdigest()


def populated(home: Path, placements: int, database: str | None = None) -> LocalRegistry:
    """Open the registry in `home`, or the one in `database`, filled if it has no models."""
    settings = Settings.in_folder(home)
    registry = LocalRegistry.from_settings(replace(settings, database_url=database) if database else settings)
    with registry.catalog.reading() as session:
        is_empty = session.scalar(select(ModelRow.id).limit(1)) is None
    if is_empty:
        populate(registry, placements)
    return registry


def environment_with(database: str | None) -> dict[str, str]:
    """Return the environment of a command that uses the registry in `database`."""
    return os.environ | ({DATABASE_VARIABLE: database} if database else {})
