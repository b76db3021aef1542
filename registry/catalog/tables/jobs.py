"""Jobs: what was asked for and takes longer than a request."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from organs.registry.catalog.tables.base import Base, Big, Number, Timestamp, at_most, one_of, text
from organs.registry.catalog.vocabulary import JOB_STATES, TEXT_MAX


class Job(Base):
    """A piece of work in a queue. While `running` and before `lease_expires_at`, somebody is at it."""

    __tablename__ = "jobs"
    __table_args__ = (
        one_of("state", JOB_STATES),
        at_most("kind", 32),
        at_most("note", TEXT_MAX),
        Index("ix_jobs_state_kind", "state", "kind", "id"),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    kind: Mapped[str] = mapped_column(text(32))
    state: Mapped[str] = mapped_column(text(16))
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"), index=True)
    attempts: Mapped[int] = mapped_column(Big)
    """How often somebody took it up. The number also says who: whoever took it up before has lost it."""
    arguments: Mapped[str] = mapped_column(Text, deferred=True)
    """JSON object; up to a mebibyte, so it is read only where it is asked for."""
    progress: Mapped[float] = mapped_column(Number)
    """0 to 1."""
    note: Mapped[str] = mapped_column(text(TEXT_MAX))
    """What it is doing, or why it failed, in one sentence."""
    result: Mapped[str | None] = mapped_column(Text, deferred=True)
    """JSON object of a finished job; read only where it is asked for."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    started_at: Mapped[datetime | None] = mapped_column(Timestamp)
    finished_at: Mapped[datetime | None] = mapped_column(Timestamp)
    lease_expires_at: Mapped[datetime | None] = mapped_column(Timestamp)
    """Until when it counts as worked at. A cancelled job keeps it until its runner has let go."""
