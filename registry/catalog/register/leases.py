"""Locks with a time limit that exclude processes on all machines with the same database."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import database_now
from organs.registry.catalog.engine import Catalog, insert_missing
from organs.registry.catalog.tables import NamedLease
from organs.registry.errors import Busy, OrganError

LEASE = timedelta(seconds=90)
"""A holder that has not renewed its lease for this time counts as dead."""
RENEW_SECONDS = 20.0


@contextmanager
def exclusive(catalog: Catalog, name: str) -> Iterator[None]:
    """Hold the lease `name` during the block; a thread renews it. Raises Busy if another process holds it."""
    holder = secrets.token_hex(16)
    with catalog.writing() as session:
        if not _take(session, name, holder):
            raise Busy(f"another process holds the lease {name!r}: wait until it ends")
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(catalog, name, holder, ended), daemon=True, name=f"lease {name}")
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        with suppress(OrganError), catalog.writing() as session:  # otherwise it expires
            session.execute(delete(NamedLease).where(NamedLease.name == name, NamedLease.holder == holder))


def _take(session: Session, name: str, holder: str) -> bool:
    moment = database_now(session)
    insert_missing(session, NamedLease, [{"name": name, "holder": holder, "expires_at": moment + LEASE}])
    takeover = update(NamedLease).where(NamedLease.name == name, NamedLease.expires_at < moment)
    session.execute(takeover.values(holder=holder, expires_at=moment + LEASE))
    return session.scalar(select(NamedLease.holder).where(NamedLease.name == name)) == holder


def _renew(catalog: Catalog, name: str, holder: str, ended: threading.Event) -> None:
    while not ended.wait(RENEW_SECONDS):
        with suppress(OrganError), catalog.writing() as session:  # the next attempt may succeed in time
            own = update(NamedLease).where(NamedLease.name == name, NamedLease.holder == holder)
            session.execute(own.values(expires_at=database_now(session) + LEASE))
