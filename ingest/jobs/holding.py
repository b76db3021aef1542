"""A job while it is worked at: its lease is renewed by a thread, its progress is told at most once a second."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from organs.ingest.jobs.kind import Cancelled
from organs.registry.catalog.queries.jobs import is_to_be_done
from organs.registry.catalog.register.jobs import Claim, renew_job, tell_progress
from organs.registry.errors import OrganError
from organs.registry.registry import Registry

RENEWED_SECONDS = 15.0
"""A quarter of the lease: three may fail before the job counts as left."""
TOLD_SECONDS = 1.0
"""Every write makes all that is kept in readers' memories old, so they are few."""


class Held:
    """A claimed job; a context manager, within which it is kept. `tell` is for any thread."""

    def __init__(
        self,
        registry: Registry,
        claim: Claim,
        stop: threading.Event,
        renewed_seconds: float = RENEWED_SECONDS,
        told_seconds: float = TOLD_SECONDS,
    ) -> None:
        self.claim = claim
        self._registry = registry
        self._stop = stop
        self._renewed_seconds = renewed_seconds
        self._told_seconds = told_seconds
        self._over = threading.Event()
        self._lost = threading.Event()
        self._lock = threading.Lock()
        self._told_at = -told_seconds
        self._told: tuple[float, str] | None = None
        self._keeper = threading.Thread(target=self._keep, name=f"job {claim.id} keeper", daemon=True)

    def __enter__(self) -> Held:
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._keeper.join()

    @property
    def is_lost(self) -> bool:
        """Whether it was cancelled, or somebody else has it."""
        return self._lost.is_set()

    def tell(self, progress: float, note: str = "") -> None:
        """How far it is, from 0 to 1, and what is being done.

        Raises Cancelled when it is cancelled, when somebody else has it, or when the runner ends. It may be called as
        often as one likes: what comes within a second of the last word is not written.
        """
        if self._stop.is_set() or self.is_lost:
            raise Cancelled
        with self._lock:
            if time.monotonic() - self._told_at < self._told_seconds:
                return
            # A database that is held by others just now is no reason to give the job up.
            with suppress(OrganError):
                self._write(min(max(progress, 0.0), 1.0), note)
            self._told_at = time.monotonic()
        if self.is_lost:
            raise Cancelled

    def _write(self, progress: float, note: str) -> None:
        said = (round(progress, 3), note)
        if said == self._told:  # nothing new to write, but somebody may have cancelled it
            with self._registry.catalog.reading() as session:
                mine = is_to_be_done(session, self.claim.id, self.claim.attempt)
        else:
            with self._registry.catalog.writing() as session:
                mine = tell_progress(session, self.claim, progress, note)
        self._told = said
        if not mine:
            self._lost.set()

    def _keep(self) -> None:
        while not self._over.wait(self._renewed_seconds):
            with suppress(OrganError), self._registry.catalog.writing() as session:
                if not renew_job(session, self.claim):
                    self._lost.set()
