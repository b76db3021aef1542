"""Organs, and what was measured of them."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Float,
    ForeignKey,
    LargeBinary,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from registry.catalog.tables.base import Base, Identity, at_most


class Organ(Base):
    """A tensor's bytes with the dtype and shape that give them meaning. `shape` is row length first: `192x512`."""

    __tablename__ = "organs"
    __table_args__ = (UniqueConstraint("blob_id", "dtype", "shape"), at_most("dtype", 16), at_most("shape", 96))

    id: Mapped[int] = mapped_column(Identity, primary_key=True)
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"))
    dtype: Mapped[str] = mapped_column(String(16))
    shape: Mapped[str] = mapped_column(String(96))
    elements: Mapped[int] = mapped_column(BigInteger)


class Measurement(Base):
    """What one method read from one organ. What it does not give is null; `reason` says why it read nothing."""

    __tablename__ = "measurements"

    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"), primary_key=True)
    method: Mapped[str] = mapped_column(String(16), primary_key=True)
    sample_size: Mapped[int] = mapped_column(BigInteger)
    theta: Mapped[float | None] = mapped_column(Float(53))
    """Degrees, 0 noise to 90 signal."""
    magnitude: Mapped[float | None] = mapped_column(Float(53))
    signal: Mapped[float | None] = mapped_column(Float(53))
    entropy: Mapped[float | None] = mapped_column(Float(53))
    kurtosis: Mapped[float | None] = mapped_column(Float(53))
    coherence: Mapped[float | None] = mapped_column(Float(53))
    mean: Mapped[float | None] = mapped_column(Float(53))
    standard_deviation: Mapped[float | None] = mapped_column(Float(53))
    minimum: Mapped[float | None] = mapped_column(Float(53))
    maximum: Mapped[float | None] = mapped_column(Float(53))
    nan_count: Mapped[int] = mapped_column(BigInteger, default=0)
    infinite_count: Mapped[int] = mapped_column(BigInteger, default=0)
    constant: Mapped[bool] = mapped_column(default=False)
    spectral_signal: Mapped[float | None] = mapped_column(Float(53))
    stable_rank: Mapped[float | None] = mapped_column(Float(53))
    reason: Mapped[str | None] = mapped_column(String(256))


class Fingerprint(Base):
    """256 signed bytes by which organs of one shape are compared."""

    __tablename__ = "fingerprints"

    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"), primary_key=True)
    values: Mapped[bytes] = mapped_column(LargeBinary(256))
