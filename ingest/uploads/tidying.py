"""What is left of uploads goes: expired ones, files that a crash left without a row, bytes that became a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.ingest.uploads.spool import BytesLost, Spool, spool_of
from organs.registry.catalog.clock import now
from organs.registry.catalog.queries.uploads import expired_uploads, upload_names, uploads_within
from organs.registry.catalog.register.uploads import remove_expired_upload, remove_upload
from organs.registry.errors import Conflict
from organs.registry.registry import Registry

STRAY_AFTER_SECONDS = 3600.0
"""A file without a row may be one whose row is about to be written."""
AT_ONCE = 500

RemoveRow = Callable[[Session, int], bool]
"""Forgets an upload by its id, unless it is to stay: then False."""


@dataclass(slots=True)
class TidyReport:
    """What was removed, or with `dry_run` would be."""

    expired_uploads: int = 0
    stray_files: int = 0
    removed_bytes: int = 0


def tidy_uploads(registry: Registry, *, dry_run: bool = False) -> TidyReport:
    """Remove uploads whose time is over, and files of the spool that no row has. What a client is at is left alone."""
    report, after_id = TidyReport(), 0
    sizes = {file.name: file.size_bytes for file in spool_of(registry).walk()}
    while True:
        with registry.catalog.reading() as session:
            expired = expired_uploads(session, now(), after_id, AT_ONCE)
        if not expired:
            break
        after_id = expired[-1][0]
        for name in [name for _, name in expired] if dry_run else _removed(registry, expired, remove_expired_upload):
            report.expired_uploads += 1
            report.removed_bytes += sizes.get(name, 0)
    _remove_strays(registry, report, dry_run)
    return report


def forget_uploads(
    registry: Registry,
    contributor_id: int,
    digests: Collection[str],
    public_ids: Collection[str] = (),
    remove: RemoveRow = remove_upload,
) -> int:
    """Remove the contributor's finished uploads all of whose pieces are in `digests`, and those called by `public_ids`:
    a model was made of them, or will not be. How many.

    Whoever still needs one of the pieces for another model leaves its digest out; `remove`, which looks again in the
    transaction that removes, leaves an upload by answering False.
    """
    with registry.catalog.reading() as session:
        wanted = uploads_within(session, contributor_id, digests, public_ids)
    return len(_removed(registry, wanted, remove))


def _removed(registry: Registry, uploads: Sequence[tuple[int, str]], remove: RemoveRow) -> list[str]:
    """Remove `uploads`, ids and names, but those that a client is at, and those that `remove` leaves; the names of
    those that went.
    """
    spool = spool_of(registry)
    return [name for upload_id, name in uploads if _remove(registry, spool, upload_id, name, remove)]


def _remove(registry: Registry, spool: Spool, upload_id: int, name: str, remove: RemoveRow) -> bool:
    try:
        with spool.locked(name):
            return _forget(registry, spool, upload_id, name, remove)
    except BytesLost:
        return _forget(registry, spool, upload_id, name, remove)
    except Conflict:
        return False


def _forget(registry: Registry, spool: Spool, upload_id: int, name: str, remove: RemoveRow) -> bool:
    """The row first: what dies in between leaves a stray file, not a row without one."""
    with registry.catalog.writing() as session:
        is_gone = remove(session, upload_id)
    if is_gone:
        spool.remove(name)
    return is_gone


def _remove_strays(registry: Registry, report: TidyReport, dry_run: bool) -> None:
    spool, limit = spool_of(registry), time.time() - STRAY_AFTER_SECONDS
    old = [file for file in spool.walk() if file.modified_at < limit]
    if not old:
        return
    with registry.catalog.reading() as session:
        known = upload_names(session)
    for file in old:
        if file.name not in known:
            if not dry_run:
                spool.remove(file.name)
            report.stray_files += 1
            report.removed_bytes += file.size_bytes
