"""Tables that answer searches beside the placements: facets with counts, words, running totals."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from organs.registry.catalog.tables.base import Base, Big, at_most, one_of, text
from organs.registry.catalog.vocabulary import ORGAN_TYPES, TOWERS, WORD_MAX


class Facet(Base):
    """A combination of what searches are narrowed by. Every placement has one; there are some thousands.

    An architecture or a licence that is not stated is the empty text.
    """

    __tablename__ = "facets"
    __table_args__ = (
        UniqueConstraint("type", "tower", "slot", "dtype", "architecture", "license"),
        one_of("type", ORGAN_TYPES),
        one_of("tower", TOWERS),
        at_most("slot", 64),
        at_most("dtype", 16),
        at_most("architecture", 96),
        at_most("license", 96),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    type: Mapped[str] = mapped_column(text(16))
    tower: Mapped[str] = mapped_column(text(16))
    slot: Mapped[str] = mapped_column(text(64))
    dtype: Mapped[str] = mapped_column(text(16))
    architecture: Mapped[str] = mapped_column(text(96))
    license: Mapped[str] = mapped_column(text(96))


class FacetCount(Base):
    """How many visible placements of a facet lie in a bin of θ (`registry.catalog.vocabulary`)."""

    __tablename__ = "facet_counts"

    facet_id: Mapped[int] = mapped_column(ForeignKey("facets.id"), primary_key=True)
    theta_bin: Mapped[int] = mapped_column(Big, primary_key=True)
    placements: Mapped[int] = mapped_column(Big)


class ModelWord(Base):
    """A word of a model's name, title, tags or description, folded: what bare words in a query find."""

    __tablename__ = "model_words"
    __table_args__ = (at_most("word", WORD_MAX), Index("ix_model_words_model_id", "model_id"))

    word: Mapped[str] = mapped_column(text(WORD_MAX), primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), primary_key=True)


TOTALS = ("models", "placements", "organs", "blobs", "size_bytes", "stored_bytes")
"""Visible models, their placements, the different organs at those; blobs that are not doomed, their plain bytes and
their stored bytes."""


class Total(Base):
    """One of the running totals. One that has no row is 0."""

    __tablename__ = "totals"
    __table_args__ = (one_of("name", TOTALS),)

    name: Mapped[str] = mapped_column(text(16), primary_key=True)
    value: Mapped[int] = mapped_column(Big)
