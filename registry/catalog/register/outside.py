"""Rows of files outside of the registry: recorded before they are written or removed, and forgotten afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.outside import machine_of, outside_files
from organs.registry.catalog.rows import insert_missing
from organs.registry.catalog.tables import OutsideFile, now
from organs.registry.catalog.vocabulary import INSTALLED


def record_installed(session: Session, rows: Sequence[Mapping[str, object]]) -> None:
    """Record that files at the places of `rows` are, or will be, files of this registry, in place of earlier rows."""
    own = OutsideFile.machine == machine_of(session), OutsideFile.state == INSTALLED
    session.execute(delete(OutsideFile).where(OutsideFile.place.in_([row["place"] for row in rows]), *own))
    record_outside(session, INSTALLED, rows)


def record_outside(session: Session, state: str, rows: Sequence[Mapping[str, object]]) -> list[OutsideFile]:
    """Record files with a state and one `batch`; return the rows of this batch, in order."""
    common = {"machine": machine_of(session), "state": state, "created_at": now()}
    insert_missing(session, OutsideFile, [common | dict(row) for row in rows])
    return outside_files(session, state, batch=str(rows[0]["batch"])) if rows else []


def forget_file(session: Session, file: OutsideFile) -> None:
    """Delete the row of a file."""
    session.execute(delete(OutsideFile).where(OutsideFile.id == file.id))


def forget_reclaimed(session: Session, files: Sequence[OutsideFile]) -> None:
    """Delete the rows of files that were removed together and are restored.

    A file that was installed at the path of one of them later is the user's own file again.
    """
    for file in files:
        own = OutsideFile.machine == file.machine, OutsideFile.place == file.place, OutsideFile.id > file.id
        session.execute(delete(OutsideFile).where(*own, OutsideFile.state == INSTALLED))
    session.execute(delete(OutsideFile).where(OutsideFile.batch == files[0].batch))


def move_to_batch(session: Session, file: OutsideFile, batch: str) -> None:
    """Let a file belong to another batch, with which it will be removed."""
    session.execute(update(OutsideFile).where(OutsideFile.id == file.id).values(batch=batch))
