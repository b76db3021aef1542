"""Who adds models."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import now
from organs.registry.catalog.tables import Contributor
from organs.registry.catalog.upsert import insert_missing
from organs.registry.catalog.vocabulary import checked_text


def contributor_id(session: Session, name: str) -> int:
    """The id of the contributor `name`, made on first use."""
    row = {"name": checked_text(name, "the contributor's name", 96), "created_at": now()}
    insert_missing(session, Contributor, [row])
    return session.scalars(select(Contributor.id).where(Contributor.name == name)).one()
