"""The running totals: every transaction that changes what they count adds its share to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Protocol

from sqlalchemy import delete, insert
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.totals import Totals, counted_totals, running_totals
from organs.registry.catalog.tables import Total
from organs.registry.catalog.upsert import insert_or_add


class Sized(Protocol):
    """What of a blob is counted."""

    @property
    def size_bytes(self) -> int:
        """Plain."""

    @property
    def stored_bytes(self) -> int:
        """Stored."""


def add_to_totals(session: Session, changes: Mapping[str, int]) -> None:
    """Add `changes`, by the name of the total; what is negative is taken away."""
    # In one order for everybody, so that two writers never wait in a ring.
    rows = [{"name": name, "value": change} for name, change in sorted(changes.items()) if change]
    insert_or_add(session, Total, ["name"], "value", rows)


def blob_changes(came: Iterable[Sized], went: Iterable[Sized] = ()) -> Counter[str]:
    """What the totals change by when the blobs `came` count from now on, and those that `went` no longer do."""
    changes: Counter[str] = Counter()
    for sign, blobs in ((1, came), (-1, went)):
        for blob in blobs:
            changes["blobs"] += sign
            changes["size_bytes"] += sign * blob.size_bytes
            changes["stored_bytes"] += sign * blob.stored_bytes
    return changes


def is_counted(state: str) -> bool:
    """Whether a blob in `state` counts: all but those that are doomed."""
    return state != "doomed"


def repair_totals(session: Session) -> dict[str, tuple[int, int]]:
    """Count everything and write it down; for each total that was wrong, what was kept and what is right."""
    counted = counted_totals(session)
    wrong = differences(running_totals(session), counted)
    if wrong:
        session.execute(delete(Total))
        session.execute(insert(Total), [{"name": name, "value": value} for name, value in asdict(counted).items()])
    return wrong


def differences(kept: Totals, counted: Totals) -> dict[str, tuple[int, int]]:
    """The totals that differ, by name: as they are kept, and as they should be."""
    right = asdict(counted)
    return {name: (value, right[name]) for name, value in asdict(kept).items() if value != right[name]}
