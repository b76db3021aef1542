"""Chimeras: models that were composed here, how computed organs were made, and what a runtime said of them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from organs.registry.catalog.tables.base import Base, Big, Number, Timestamp, at_most, one_of, text
from organs.registry.catalog.vocabulary import TEXT_MAX, VERDICTS


class Chimera(Base):
    """What is known of a model because it was composed here. The lock itself stands in its header."""

    __tablename__ = "chimeras"
    __table_args__ = (at_most("lock_id", 64),)

    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), primary_key=True)
    lock_id: Mapped[str] = mapped_column(text(64), index=True)
    """SHA-256 of the lock's canonical JSON. Two models may have one: the same bytes under two names."""
    base_model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), index=True)
    recipe: Mapped[str] = mapped_column(Text)
    """JSON, as `registry.compose.recipe` keeps it."""
    findings: Mapped[str] = mapped_column(Text)
    """JSON list: what was found before it was made, accepted warnings among it."""
    prediction: Mapped[str] = mapped_column(Text)
    """JSON object: numbers known before it was made."""
    origins: Mapped[str] = mapped_column(Text)
    """JSON object: `parents`, a list of models, and `parts`, for each tensor that is not the base's the number of the
    parent that it comes from, and the acts."""


class Computation(Base):
    """How an organ was computed from others: what purifying, merging and encoding again are a function of."""

    __tablename__ = "computations"
    __table_args__ = (at_most("key", 64),)

    key: Mapped[str] = mapped_column(text(64), primary_key=True)
    """SHA-256 of `made`."""
    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"), index=True)
    made: Mapped[str] = mapped_column(Text)
    """Canonical JSON: the acts with their parameters, and the digests of the organs that went in."""


class Verdict(Base):
    """What a runtime showed of a chimera, beside its base, its donors and its control."""

    __tablename__ = "verdicts"
    __table_args__ = (one_of("verdict", VERDICTS), at_most("runtime", 256), at_most("reason", TEXT_MAX))

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), index=True)
    runtime: Mapped[str] = mapped_column(text(256))
    verdict: Mapped[str] = mapped_column(text(16))
    reason: Mapped[str] = mapped_column(text(TEXT_MAX))
    report: Mapped[str] = mapped_column(Text)
    """JSON: texts, perplexities with their standard errors, what was written, the end of the runtime's log."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)


class Score(Base):
    """The perplexity of a file on a text in a runtime, kept so that a base is measured once."""

    __tablename__ = "scores"
    __table_args__ = (
        UniqueConstraint("file_digest", "text_digest", "tokens", "runtime"),
        at_most("file_digest", 64),
        at_most("text_digest", 64),
        at_most("runtime", 256),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    file_digest: Mapped[str] = mapped_column(text(64))
    text_digest: Mapped[str] = mapped_column(text(64))
    tokens: Mapped[int] = mapped_column(Big)
    runtime: Mapped[str] = mapped_column(text(256))
    reading: Mapped[str] = mapped_column(Text)
    """JSON, as `registry.validation` reads it."""
    perplexity: Mapped[float | None] = mapped_column(Number)
    created_at: Mapped[datetime] = mapped_column(Timestamp)
