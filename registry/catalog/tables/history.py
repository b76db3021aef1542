"""Who did what, and who came from what."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
)
from sqlalchemy import text as sql
from sqlalchemy.orm import Mapped, mapped_column

from organs.registry.catalog.tables.base import Base, Big, Number, Timestamp, at_most, one_of, text
from organs.registry.catalog.vocabulary import (
    CONTRIBUTOR_STATES,
    EVIDENCE,
    RELATIONS,
    TEXT_MAX,
)


class Contributor(Base):
    """Somebody who adds models. `local` is whoever runs the command on this machine."""

    __tablename__ = "contributors"
    __table_args__ = (at_most("name", 96), one_of("state", CONTRIBUTOR_STATES))

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    name: Mapped[str] = mapped_column(text(96), unique=True)
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    state: Mapped[str] = mapped_column(text(16), server_default=sql("'active'"))
    """Who is suspended can do nothing that needs an account; what was published stays."""
    quota_bytes: Mapped[int | None] = mapped_column(Big)
    """What may be kept for them; None is what the server gives to everybody."""


class Lineage(Base):
    """An edge from a child to a parent, models or organs. A parent that is declared only is kept by its name."""

    __tablename__ = "lineage"
    __table_args__ = (
        one_of("relation", RELATIONS),
        one_of("evidence", EVIDENCE),
        CheckConstraint("(child_model_id IS NULL) <> (child_organ_id IS NULL)", name="one_child"),
        at_most("parent_text", TEXT_MAX),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    child_model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    child_organ_id: Mapped[int | None] = mapped_column(ForeignKey("organs.id"), index=True)
    parent_model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    parent_organ_id: Mapped[int | None] = mapped_column(ForeignKey("organs.id"), index=True)
    parent_text: Mapped[str | None] = mapped_column(text(TEXT_MAX))
    relation: Mapped[str] = mapped_column(text(16))
    evidence: Mapped[str] = mapped_column(text(16))
    score: Mapped[float | None] = mapped_column(Number)
    """For measured edges: the mean correlation, -1 to 1."""
    compared: Mapped[int | None] = mapped_column(Big)
    """Of how many matrices it is the mean."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)


class Event(Base):
    """Something that was done. Rows are added, never changed."""

    __tablename__ = "events"
    __table_args__ = (at_most("text", TEXT_MAX), at_most("action", 32))

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    at: Mapped[datetime] = mapped_column(Timestamp, index=True)
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"), index=True)
    action: Mapped[str] = mapped_column(text(32))
    model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    text: Mapped[str] = mapped_column(text(TEXT_MAX))


class DailyDownloads(Base):
    """How often a model was fetched on a day, whole or an organ of it. Counted in memory and added in batches."""

    __tablename__ = "daily_downloads"
    __table_args__ = (CheckConstraint("length(day) = 10", name="day_length"),)

    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), primary_key=True)
    day: Mapped[str] = mapped_column(text(10), primary_key=True)
    """YYYY-MM-DD, UTC."""
    downloads: Mapped[int] = mapped_column(Big)
