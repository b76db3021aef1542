"""The registry in numbers, kept by whoever changes it, so that no page counts the catalog."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from organs.registry.catalog.tables.base import Base, Big, one_of, text

TOTALS = ("models", "placements", "organs", "blobs", "size_bytes", "stored_bytes")
"""Visible models, their placements, the different organs at those; blobs that are not doomed, their plain bytes and
their stored bytes."""


class Total(Base):
    """One of the running totals. One that has no row is 0."""

    __tablename__ = "totals"
    __table_args__ = (one_of("name", TOTALS),)

    name: Mapped[str] = mapped_column(text(16), primary_key=True)
    value: Mapped[int] = mapped_column(Big)
