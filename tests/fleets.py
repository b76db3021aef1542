"""A run of a fleet in the ledger, for tests of what shows it."""

from __future__ import annotations

from datetime import timedelta

from organs.registry.catalog.register.fleet import NewUnit, claim_unit, finish_unit, set_dashboard, start_run
from organs.registry.catalog.tables import FleetUnit
from organs.registry.catalog.work import fail
from organs.registry.local import LocalRegistry


def put_run(registry: LocalRegistry, text: str = "not a GGUF file", name: str = "zoo", digest: str = "ab" * 32) -> int:
    """Add a run with a unit that is done, one that failed, and one that waits; `text` is in all texts of the second."""
    units = [NewUnit("ingest", source, 100) for source in ("/models/a.gguf", f"/models/{text}.gguf", "/models/c.gguf")]
    with registry.catalog.writing() as session:
        run, _ = start_run(session, name, digest, units)
        done, failed = (claim_unit(session, run, worker, "1, codecs 1") for worker in ("first-1", text[:96]))
        assert done is not None
        assert failed is not None
        finish_unit(session, done, "{}")
        fail(session, failed, text)
        ended = session.get_one(FleetUnit, failed.key)
        ended.finished_at += timedelta(minutes=1)  # else the clock may show both ends in one tick
        set_dashboard(session, run, "http://127.0.0.1:8787/status")
    return run
