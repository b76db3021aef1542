"""Sections on single tensors of a model: the highest, the lowest, and those with something odd in them."""

from __future__ import annotations

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.dissections import count_odd_organs, odd_organs
from organs.registry.catalog.queries.reports import extreme_organs
from organs.registry.catalog.tables import Model
from organs.registry.reports.caution import caution
from organs.registry.reports.document import Column, Kind, Table
from organs.registry.reports.words import ANOMALIES, CAUTION, LISTED, NO_ANOMALIES


def organ_table(session: Session, model: Model, limit: int, *, key: str, title: str, after: str) -> Table:
    """The tensors of a model with the highest θ, or with the lowest where `key` is `wells`."""
    lowest = key == "wells"
    found = extreme_organs(session, model.id, limit, lowest=lowest)
    rows = (
        (
            *(one.name, one.type, one.dtype, shape, elements),
            *(one.theta, one.spectral_signal, caution(one.dtype, elements)),
        )
        for one, shape, elements, _ in found
    )
    order = "lowest" if lowest else "highest"
    return Table(
        key=key,
        title=title,
        columns=_COLUMNS,
        rows=tuple(rows),
        before=(f"The {order} first, at most {limit} of {model.tensors:,} tensors. {LISTED}",),
        after=(after, CAUTION),
        empty="No tensor of this model has a θ.",
    )


def odd_table(session: Session, model: Model, limit: int) -> Table:
    """Tensors with numbers that are none, with one value only, or without a θ."""
    found = odd_organs(session, model.id, limit)
    total = count_odd_organs(session, model.id)
    rows = (
        (name, dtype, sample_size, nan, infinite, "yes" if constant else "no", reason)
        for name, dtype, sample_size, nan, infinite, constant, reason in found
    )
    return Table(
        key="anomalies",
        title="Anomalies",
        columns=_ODD_COLUMNS,
        rows=tuple(rows),
        before=(f"{total:,} of {model.tensors:,} tensors; at most {limit} are listed. {_WHICH}",),
        after=(ANOMALIES,),
        empty=NO_ANOMALIES,
    )


_WHICH = "They have values that are no numbers (NaN) or infinite, hold one value only, or could not be measured."
_COLUMNS = (
    Column("tensor", "tensor", Kind.NAME),
    Column("type", "type", Kind.TEXT),
    Column("dtype", "format", Kind.TEXT),
    Column("shape", "shape", Kind.TEXT),
    Column("elements_count", "numbers", Kind.LARGE, data_only=True),
    Column("theta_degrees", "θ", Kind.DEGREES),
    Column("spectral_signal", "spectral", Kind.SHARE),
    Column("caution", "caution", Kind.TEXT),
)
_ODD_COLUMNS = (
    Column("tensor", "tensor", Kind.NAME),
    Column("dtype", "format", Kind.TEXT),
    Column("sample_count", "looked at", Kind.LARGE),
    Column("nan_count", "NaN", Kind.COUNT),
    Column("infinite_count", "infinite", Kind.COUNT),
    Column("constant", "one value", Kind.TEXT),
    Column("reason", "why not measured", Kind.TEXT),
)
