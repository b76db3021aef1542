"""Organs, and what was measured of them."""

from __future__ import annotations

from sqlalchemy import (
    ForeignKey,
    LargeBinary,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from organs.registry.catalog.tables.base import Base, Big, Flag, Number, at_most, text


class Organ(Base):
    """A tensor's bytes with the dtype and shape that give them meaning. `shape` is row length first: `192x512`."""

    __tablename__ = "organs"
    __table_args__ = (UniqueConstraint("blob_id", "dtype", "shape"), at_most("dtype", 16), at_most("shape", 96))

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"))
    dtype: Mapped[str] = mapped_column(text(16))
    shape: Mapped[str] = mapped_column(text(96))
    elements: Mapped[int] = mapped_column(Big)
    nonfinite: Mapped[int | None] = mapped_column(Big)
    """How many of its values are NaN or infinite; null where they were not counted (registered by an older version)."""


class MeasureColumns:
    """A column for each measure of the table of measures (`registry.measures`); null where it was not measured."""

    theta: Mapped[float | None] = mapped_column(Number)
    magnitude: Mapped[float | None] = mapped_column(Number)
    signal: Mapped[float | None] = mapped_column(Number)
    spectral_signal: Mapped[float | None] = mapped_column(Number)
    stable_rank: Mapped[float | None] = mapped_column(Number)
    effective_rank: Mapped[float | None] = mapped_column(Number)


class Measurement(MeasureColumns, Base):
    """What one method read from one organ. What it does not give is null; `reason` says why it read nothing."""

    __tablename__ = "measurements"
    __table_args__ = (at_most("method", 16), at_most("reason", 256))

    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"), primary_key=True)
    method: Mapped[str] = mapped_column(text(16), primary_key=True)
    sample_size: Mapped[int] = mapped_column(Big)
    entropy: Mapped[float | None] = mapped_column(Number)
    kurtosis: Mapped[float | None] = mapped_column(Number)
    coherence: Mapped[float | None] = mapped_column(Number)
    mean: Mapped[float | None] = mapped_column(Number)
    standard_deviation: Mapped[float | None] = mapped_column(Number)
    minimum: Mapped[float | None] = mapped_column(Number)
    maximum: Mapped[float | None] = mapped_column(Number)
    nan_count: Mapped[int] = mapped_column(Big, default=0)
    infinite_count: Mapped[int] = mapped_column(Big, default=0)
    constant: Mapped[bool] = mapped_column(Flag, default=False)
    reason: Mapped[str | None] = mapped_column(text(256))


class Fingerprint(Base):
    """256 signed bytes by which organs of one shape are compared."""

    __tablename__ = "fingerprints"

    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"), primary_key=True)
    values: Mapped[bytes] = mapped_column(LargeBinary(256))
