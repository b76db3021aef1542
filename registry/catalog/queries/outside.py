"""Files of models outside of the registry, on the disk of one machine: installed for other tools, or reclaimed."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.registry.catalog.rows import scalars_among
from organs.registry.catalog.tables import OutsideFile
from organs.registry.catalog.vocabulary import CACHE, INSTALLED, RECLAIMED
from organs.registry.digest import digest_of


def machine_of(session: Session) -> str:
    """Return the name of this machine if several may use the database, else an empty text.

    The database in a home may be used under another name of its machine, and after a move to another one.
    """
    return "" if session.get_bind().dialect.name == "sqlite" else platform.node()[:255]


def place_of_path(path: Path) -> str:
    """Return the key of a path."""
    return digest_of(os.fsencode(os.path.abspath(path)))


def outside_files(session: Session, state: str, **values: str | int) -> list[OutsideFile]:
    """Return the files on this machine with a state and other `values` of columns, in the order of their writing."""
    own = {"machine": machine_of(session), "state": state, **values}
    return list(session.scalars(select(OutsideFile).filter_by(**own).order_by(OutsideFile.id)))


def outside_files_at(session: Session, paths: Collection[Path], state: str = INSTALLED) -> dict[Path, OutsideFile]:
    """Return the recorded files with a state at `paths` on this machine."""
    places = {place_of_path(path): path for path in paths}
    statement = select(OutsideFile).filter_by(machine=machine_of(session), state=state)
    rows = scalars_among(session, statement, OutsideFile.place, list(places))
    return {places[row.place]: row for row in rows}


def run_files_bytes(session: Session) -> int:
    """Return the size of the files on this machine that `organ run` keeps."""
    return sum(file.size_bytes for file in outside_files(session, INSTALLED, tool=CACHE))


def has_reclaimed_files(session: Session, model_id: int) -> bool:
    """Return whether a file of the model was removed from the disk of any machine, and can only come from here."""
    statement = select(OutsideFile.id).where(OutsideFile.model_id == model_id, OutsideFile.state == RECLAIMED)
    return session.scalar(statement.limit(1)) is not None
