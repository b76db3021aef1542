"""Reports of measured models: read from the JSON of `organ measure --json`, and merged.

The reports are of different shards of one model, or of the same files on different machines.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice
from math import prod
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, structs

from organs.ingest.measuring import MeasuredFile, MeasuredModel, MeasuredTensor, Quantity, ShardNumber, is_equal
from organs.registry.entities.base import prepared
from organs.registry.errors import BadSource, UnsupportedDType
from organs.registry.gguf import dtype_by_name
from organs.registry.gguf.types import NAME_MAX_BYTES, SIZE_MAX
from organs.registry.measure import Measurement
from organs.registry.similarity import FINGERPRINT_PATTERN

JSON_NAMES: Mapping[str, str] = {"theta": "theta_degrees", "sample_size": "sample_count"}
"""Members of a measurement that have another name in JSON and CSV."""
REPORT_MAX_BYTES = 512 * 1024 * 1024
"""The largest file of reports."""
_SHAPE = re.compile(r"[0-9]{1,19}(x[0-9]{1,19}){0,3}", re.ASCII)


class _Report(msgspec.Struct, frozen=True):
    error: str | None = None
    architecture: str | None = None
    title: str | None = None
    shards_count: ShardNumber = 1
    set_tensors_count: Quantity | None = None
    shards: tuple[MeasuredFile, ...] = ()
    tensors: list[msgspec.Raw] = []
    experts: list[msgspec.Raw] = []


class _Row(msgspec.Struct, frozen=True):
    tensor: Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES)]
    dtype: str
    shape: str
    size_bytes: Quantity = 0
    expert: Quantity | None = None
    fingerprint: Annotated[str, Meta(pattern=FINGERPRINT_PATTERN)] | None = None


def read_reports(path: Path) -> list[MeasuredModel]:
    """Return the models in a file that has the output of `organ measure --json`, one on each line.

    Raises BadSource for a file that cannot be read, that is too large, or that has something else.
    """
    try:
        with path.open("rb") as file:
            data = file.read(REPORT_MAX_BYTES + 1)
    except OSError as error:
        raise BadSource(f"{path}: {error.strerror}") from error
    if len(data) > REPORT_MAX_BYTES:
        raise BadSource(f"{path}: larger than {REPORT_MAX_BYTES:,} bytes")
    lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    if not lines:
        raise BadSource(f"{path}: the file is empty")
    models = []
    for number, line in lines:
        try:
            models.append(_model(line))
        except (msgspec.DecodeError, ValueError, UnsupportedDType) as error:
            problem = f"line {number} is not a report of organ measure --json"
            raise BadSource(f"{path}: {problem}: {str(error)[:200]}") from error
    return models


def _model(line: bytes) -> MeasuredModel:
    """Return the model of a line; raises ValueError."""
    report = msgspec.json.decode(line, type=prepared(_Report))
    if report.error is not None:
        raise ValueError("the measurement failed")
    if not report.shards:
        raise ValueError("it does not list the measured files; measure them again")
    if sum(file.selected_count for file in report.shards) != len(report.tensors):
        raise ValueError("the number of its tensors is wrong")
    if any(file.shard > report.shards_count for file in report.shards):
        raise ValueError("the number of a shard is wrong")
    return MeasuredModel(
        architecture=report.architecture,
        title=report.title,
        files=report.shards,
        tensors=tuple(map(_tensor, report.tensors)),
        experts=tuple(map(_tensor, report.experts)),
        shard_count=report.shards_count,
        set_tensor_count=report.set_tensors_count,
    )


def _tensor(raw: msgspec.Raw) -> MeasuredTensor:
    row = msgspec.json.decode(raw, type=prepared(_Row))
    dtype = dtype_by_name(row.dtype)
    if not _SHAPE.fullmatch(row.shape):
        raise ValueError(f"{row.shape[:80]} is not a shape")
    shape = tuple(map(int, row.shape.split("x")))
    elements = prod(shape)
    if elements > SIZE_MAX or elements % dtype.block_elements:
        raise ValueError(f"{row.shape} is not a shape of {dtype.name}")
    values = msgspec.json.decode(raw)
    members = {
        member.name: values[name]
        for member in fields(Measurement)
        if member.name != "fingerprint" and (name := JSON_NAMES.get(member.name, member.name)) in values
    }
    measurement = msgspec.convert(members, prepared(Measurement))
    if row.fingerprint is not None:
        measurement = replace(measurement, fingerprint=bytes.fromhex(row.fingerprint))
    return MeasuredTensor(
        name=row.tensor,
        dtype=dtype.name,
        shape=shape,
        foreign_bytes=row.size_bytes if dtype.is_foreign else 0,
        measurement=measurement,
        expert=row.expert,
    )


_Key = tuple[str, int | None]
"""The name of a tensor, and the number of an expert or None."""


def merge_models(reports: Sequence[tuple[str, MeasuredModel]]) -> MeasuredModel:
    """Return one model with the files and the tensors of all of `reports`, each with its name for messages.

    Raises BadSource if they are of different models, or if a tensor has other measures in another report.
    """
    first_name, first = reports[0]
    files: dict[int, MeasuredFile] = {}
    tensors: dict[int, dict[_Key, MeasuredTensor]] = {}
    shard_of: dict[str, int] = {}
    for name, model in reports:
        if what := _difference(first, model):
            raise BadSource(f"{name}: it is of another model than {first_name}: {what}")
        for file, rows in _by_file(model):
            known = files.setdefault(file.shard, file)
            if (known.size_bytes, known.tensor_count, known.parameters) != (
                *(file.size_bytes, file.tensor_count, file.parameters),
            ):
                raise BadSource(f"{name}: shard {file.shard} is not the same file as in another report")
            _add_rows(name, file.shard, rows, tensors.setdefault(file.shard, {}), shard_of)
    numbers = sorted(files)
    whole = {number: [row for row in tensors[number].values() if row.expert is None] for number in numbers}
    total = sum(files[number].tensor_count for number in numbers)
    if len(numbers) == first.shard_count and first.set_tensor_count not in (None, total):
        raise BadSource(f"{first_name}: it announces {first.set_tensor_count} tensors, but the shards have {total}")
    return replace(
        first,
        architecture=next((model.architecture for _, model in reports if model.architecture is not None), None),
        title=next((model.title for _, model in reports if model.title is not None), None),
        tensors=tuple(row for number in numbers for row in whole[number]),
        experts=tuple(expert for number in numbers for expert in _experts(tensors[number].values())),
        files=tuple(structs.replace(files[number], selected_count=len(whole[number])) for number in numbers),
    )


def _difference(one: MeasuredModel, other: MeasuredModel) -> str | None:
    """Return why two reports cannot be of one model; None if they can."""
    if one.shard_count != other.shard_count:
        return f"{other.shard_count} shards instead of {one.shard_count}"
    if one.set_tensor_count != other.set_tensor_count:
        return f"{other.set_tensor_count} tensors instead of {one.set_tensor_count}"
    for first, second in ((one.architecture, other.architecture), (one.title, other.title)):
        if None not in (first, second) and first != second:
            return f"{second} instead of {first}"
    return None


def _by_file(model: MeasuredModel) -> Iterator[tuple[MeasuredFile, list[MeasuredTensor]]]:
    """Yield each file of a model with its tensors and their experts."""
    experts: dict[str, list[MeasuredTensor]] = {}
    for expert in model.experts:
        experts.setdefault(expert.name, []).append(expert)
    remaining = iter(model.tensors)
    for file in model.files:
        tensors = list(islice(remaining, file.selected_count))
        yield file, [row for tensor in tensors for row in (tensor, *experts.get(tensor.name, ()))]


def _add_rows(
    name: str,
    shard: int,
    rows: Sequence[MeasuredTensor],
    known: dict[_Key, MeasuredTensor],
    shard_of: dict[str, int],
) -> None:
    """Add the rows of one file in one report to `known`; raises BadSource for a contradiction."""
    for row in rows:
        if shard_of.setdefault(row.name, shard) != shard:
            raise BadSource(f"{name}: {row.name} is in shard {shard}, but in another report in {shard_of[row.name]}")
        before = known.setdefault((row.name, row.expert), row)
        if (before.dtype, before.shape) != (row.dtype, row.shape):
            raise BadSource(f"{name}: {row.name} has another type or shape than in another report")
        if not is_equal(before.measurement, row.measurement):
            raise BadSource(f"{name}: {row.name} has other measures than in another report")


def _experts(rows: Collection[MeasuredTensor]) -> list[MeasuredTensor]:
    """Return the experts among the rows of one file: by the order of their tensors, then by number."""
    positions: dict[str, int] = {}
    for row in rows:
        positions.setdefault(row.name, len(positions))
    experts = (row for row in rows if row.expert is not None)
    return sorted(experts, key=lambda row: (positions[row.name], row.expert or 0))
