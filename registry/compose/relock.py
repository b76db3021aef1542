"""From a lock back to its file, where the base's header and all of its organs are registered here."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import BlobRow, blobs_by_digest
from organs.registry.catalog.queries.composing import model_with_header
from organs.registry.catalog.tables import Model
from organs.registry.chimera.layout import first_header, plan_new_file
from organs.registry.chimera.plan import FilePlan, check_readable
from organs.registry.compose.lock import Lock, lock_of
from organs.registry.compose.locked import sound_header
from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob, MissingBlob, NotAssemblable
from organs.registry.store import BlobStore

MISSING_SHOWN = 20
"""Tensors without an organ that are named."""


def plan_lock(session: Session, store: BlobStore, lock: Lock, name: str) -> FilePlan:
    """The file that `lock` describes, called `name`. Nothing is registered.

    Raises NotAssemblable with all that is missing here, BadLock for a lock that describes no sound file, StoreError.
    """
    base = model_with_header(session, lock.header)
    rows = blobs_by_digest(session, {one.digest for one in lock.tensors})
    missing = [] if base is not None else [f"no model here has the header {lock.header[:12]} of its base"]
    missing += _missing(store, lock, rows)
    if missing or base is None:
        raise NotAssemblable(f"the lock {lock.id[:12]}", missing)
    read = first_header(session, store, base)
    data, _ = sound_header(read.header, read.source, lock)
    tensors = [one.spec for one in lock.tensors]
    return plan_new_file(name, data, tensors, read.header.alignment, [rows[one.digest] for one in lock.tensors])


def lock_of_model(session: Session, store: BlobStore, model: Model) -> Lock | None:
    """The lock that stands in the header of `model`; None where there is none."""
    read = first_header(session, store, model)
    return lock_of(read.header, read.source)


def _missing(store: BlobStore, lock: Lock, rows: Mapping[Digest, BlobRow]) -> list[str]:
    """One sentence for each tensor that has no organ here, of the right size and sound, up to a limit."""
    reasons = []
    for one in lock.tensors:
        row = rows.get(one.digest)
        if row is None:
            reasons.append(f"the organ {one.digest[:12]} of {one.spec.name} is not here")
        elif not _is_readable(store, row):
            reasons.append(f"the organ {one.digest[:12]} of {one.spec.name} is damaged")
        elif row.size_bytes != one.spec.size_bytes:
            reasons.append(f"{one.digest[:12]} is no {one.spec.dtype.name} of the shape of {one.spec.name}")
    more = len(reasons) - MISSING_SHOWN
    return reasons[:MISSING_SHOWN] + ([f"and {more} more"] if more > 0 else [])


def _is_readable(store: BlobStore, row: BlobRow) -> bool:
    try:
        check_readable(store, row, "organ")
    except (CorruptBlob, MissingBlob):
        return False
    return True
