"""A chimera into the catalog: a model like any other, and beside it what it was composed of and how."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.orm import Session

from organs.registry.catalog.actions import Action
from organs.registry.catalog.queries.composing import chimera_of
from organs.registry.catalog.records import (
    ChimeraRecord,
    ComputationRecord,
    FileRecord,
    ModelRecord,
    OrganKey,
    PartRecord,
    PlacementRecord,
)
from organs.registry.catalog.register.chimeras import register_chimera
from organs.registry.catalog.register.models import Registered, register_model
from organs.registry.catalog.register.organs import shape_text
from organs.registry.catalog.tables import Model
from organs.registry.compose.computation import Computation, Ingredient
from organs.registry.compose.keeping import kept_text
from organs.registry.compose.library import parts_of
from organs.registry.compose.lock import Lock
from organs.registry.compose.plan import Plan
from organs.registry.compose.predicting import predicted
from organs.registry.compose.prediction import Prediction
from organs.registry.digest import Digest, digest_of
from organs.registry.gguf import Header, HeaderSource, read_header
from organs.registry.gguf.pieces import around, large_values, shown_type, shown_value, tags_of
from organs.registry.measure import Measurement
from organs.registry.names import ModelName
from organs.registry.relatives import record_relatives


@dataclass(frozen=True, slots=True)
class LockedFile:
    """The one file of a chimera, as its lock gives it."""

    plan: Plan
    lock: Lock
    header_bytes: bytes
    """With the padding behind it."""
    header: Header

    @classmethod
    def of(cls, plan: Plan, digests: Mapping[str, Digest]) -> LockedFile:
        """The file of `plan`, now that the digest of each organ that had to be computed is known."""
        lock = plan.lock(digests)
        header = plan.header(lock)
        return cls(plan, lock, header, read_header(HeaderSource(header, plan.size_bytes, plan.file_name)))

    @property
    def literal(self) -> bytes:
        """The header without its large values, which are blobs of their own."""
        spans = around(large_values(self.header), self.header.end)
        return b"".join(self.header_bytes[span.offset : span.end] for span in spans)

    @property
    def values(self) -> list[bytes]:
        """The large values of the header, in file order."""
        return [self.header_bytes[span.offset : span.end] for span in large_values(self.header)]


def record_chimera(
    session: Session,
    file: LockedFile,
    name: ModelName,
    sha256: Digest,
    measured: Mapping[str, Measurement],
    contributor: str,
) -> Registered:
    """Register the chimera of `contributor` whose file has the digest `sha256`. All of its blobs have rows.

    `measured` has what was read of organs that were computed just now, by the names of their tensors.
    """
    header, plan = file.header, file.plan
    record = ModelRecord(
        name=name,
        digest=sha256,
        kind="model",
        architecture=header.architecture,
        title=header.text("general.name"),
        description=header.text("general.description"),
        license=header.text("general.license"),
        size_label=header.text("general.size_label"),
        metadata=tuple((one.key, shown_type(one), shown_value(one)) for one in header.fields),
        files=(_file_record(file, sha256, measured),),
        tags=tuple(tags_of(HeaderSource(file.header_bytes, header.file_size_bytes), header)),
        complete=plan.base.complete,
        action=Action.COMPOSE,
        contributor=contributor,
    )
    registered = register_model(session, record, keep_name=True)
    if chimera_of(session, registered.model.id) is None:
        register_chimera(session, registered.model, _chimera_record(file, _prediction(session, registered.model, file)))
    if registered.created:
        record_relatives(session, registered.model)
    return registered


def _file_record(file: LockedFile, sha256: Digest, measured: Mapping[str, Measurement]) -> FileRecord:
    header = file.header
    return FileRecord(
        name=file.plan.file_name,
        size_bytes=header.file_size_bytes,
        sha256=sha256,
        header_sha256=digest_of(file.header_bytes[: header.end]),
        header_bytes=header.end,
        parts=tuple(_parts(file)),
        placements=tuple(_placements(file, measured)),
    )


def _parts(file: LockedFile) -> Iterator[PartRecord]:
    literal, position = digest_of(file.literal), 0
    values = large_values(file.header)
    for span in around(values, file.header.end):
        if span.size_bytes:
            yield PartRecord(span.offset, span.size_bytes, literal, position)
        position += span.size_bytes
    for span, data in zip(values, file.values, strict=True):
        yield PartRecord(span.offset, span.size_bytes, digest_of(data), 0)


def _placements(file: LockedFile, measured: Mapping[str, Measurement]) -> Iterator[PlacementRecord]:
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


def _prediction(session: Session, model: Model, file: LockedFile) -> Prediction:
    """The plan's, made complete by what was measured of organs that were computed, now or before."""
    wanted = file.plan.computations
    if not wanted:
        return file.plan.prediction
    return predicted(file.plan.parts, {part.name: part for part in parts_of(session, model.id) if part.name in wanted})


def _chimera_record(file: LockedFile, prediction: Prediction) -> ChimeraRecord:
    plan = file.plan
    assert plan.base.model_id is not None
    return ChimeraRecord(
        lock_id=file.lock.id,
        base_model_id=plan.base.model_id,
        recipe=kept_text(plan.recipe),
        findings=_json([asdict(finding) for finding in plan.findings]),
        prediction=_json(prediction.values()),
        origins=_json(origins_of(plan)),
        parents=tuple(_acts(plan)),
        computations=tuple(_computations(file)),
    )


def origins_of(plan: Plan) -> dict[str, Any]:
    """Where each tensor comes from that is not the base's own: `parents` by number, the base being 0, and `parts`.

    A part is the number of the model whose organ stands there or was computed from, and the acts.
    """
    labels = {parent.label: number for number, parent in enumerate(plan.parents)}
    return {
        "parents": [parent.label for parent in plan.parents],
        "parts": {
            part.before.name: [labels[part.donor.label] if part.donor else 0, *part.acts]
            for part in plan.parts
            if part.acts
        },
    }


def _acts(plan: Plan) -> Iterator[tuple[int, str]]:
    """The parents that are registered models, each with the acts by which the chimera came from it."""
    done = {act for part in plan.parts for act in part.acts}
    first = next(act for act in ("grafted", "adapter", "purified") if act in done)
    assert plan.base.model_id is not None
    yield plan.base.model_id, first
    for part in plan.parts:
        if part.donor is not None and part.donor.model_id is not None:
            yield part.donor.model_id, "grafted"
        for adapter in part.adapters:
            if adapter.model_id is not None:
                yield adapter.model_id, "adapter"


def _computations(file: LockedFile) -> Iterator[ComputationRecord]:
    for planned, locked in zip(file.plan.parts, file.lock.tensors, strict=True):
        made = planned.computation
        if made is not None:
            organ = (locked.digest, locked.spec.dtype.name, shape_text(locked.spec.shape))
            yield ComputationRecord(made.key, made.made(), organ, tuple(_sources(made)))


def _sources(made: Computation) -> Iterator[tuple[OrganKey, str]]:
    yield _key(made.source), made.acts[-1]
    for one in made.additions:
        yield _key(one.a), "adapter"
        yield _key(one.b), "adapter"


def _key(one: Ingredient) -> OrganKey:
    return one.digest, one.dtype.name, shape_text(one.shape)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
