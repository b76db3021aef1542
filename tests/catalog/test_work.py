"""Tests of leases of names and of ingests: one holder, takeover, renewal. They also pass on PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from organs.registry.catalog import work
from organs.registry.catalog.engine import database_now
from organs.registry.catalog.register import organs
from organs.registry.catalog.register.organs import end_ingest, recorded_ingest
from organs.registry.catalog.tables import Ingest, NamedLease
from organs.registry.catalog.work import LEASE, WorkCancelled, exclusive, is_alive
from organs.registry.errors import Busy, DatabaseUnreachable
from organs.registry.local import LocalRegistry

ROOT = Path(__file__).resolve().parents[2]


def holders(registry: LocalRegistry) -> dict[str, str]:
    """Return the holder of each lease."""
    with registry.catalog.reading() as session:
        return {lease.name: lease.holder for lease in session.scalars(select(NamedLease))}


def let_expire(registry: LocalRegistry, name: str) -> None:
    with registry.catalog.writing() as session:
        past = database_now(session) - timedelta(seconds=1)
        session.execute(update(NamedLease).where(NamedLease.name == name).values(expires_at=past))


def seconds_left(registry: LocalRegistry, name: str) -> float:
    with registry.catalog.reading() as session:
        expires_at = session.scalars(select(NamedLease.expires_at).where(NamedLease.name == name)).one()
        return (expires_at - database_now(session)).total_seconds()


def lease_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lease ")]


def test_a_lease_excludes_a_second_holder_until_the_first_one_ends(registry: LocalRegistry) -> None:
    with LocalRegistry.open(registry.settings.home) as other:
        with exclusive(registry.catalog, "sweep"):
            assert lease_threads() == ["lease sweep"]
            for catalog in (registry.catalog, other.catalog):
                with pytest.raises(Busy, match="another process holds the lease 'sweep'"), exclusive(catalog, "sweep"):
                    pytest.fail("two holders at once")
            assert list(holders(registry)) == ["sweep"]
        assert (holders(registry), lease_threads()) == ({}, [])
        with exclusive(other.catalog, "sweep"), exclusive(registry.catalog, "another name"):
            assert sorted(holders(registry)) == ["another name", "sweep"]


def test_a_lease_ends_also_after_an_exception(registry: LocalRegistry) -> None:
    with pytest.raises(ZeroDivisionError), exclusive(registry.catalog, "sweep"):
        raise ZeroDivisionError
    assert (holders(registry), lease_threads()) == ({}, [])


def test_a_new_lease_lasts_for_its_time(registry: LocalRegistry) -> None:
    with exclusive(registry.catalog, "sweep"):
        assert 0 < seconds_left(registry, "sweep") <= LEASE.total_seconds()
        assert seconds_left(registry, "sweep") > LEASE.total_seconds() - 30
    assert LEASE.total_seconds() >= 3 * work.RENEW_SECONDS, "two renewals may fail"


def test_an_expired_lease_is_taken_over_and_not_released_by_its_former_holder(registry: LocalRegistry) -> None:
    first = exclusive(registry.catalog, "sweep")
    first.__enter__()
    held = set(holders(registry).values())
    let_expire(registry, "sweep")
    with exclusive(registry.catalog, "sweep"):
        before = holders(registry)
        assert set(before.values()) != held
        assert seconds_left(registry, "sweep") > 0
        first.__exit__(None, None, None)
        assert holders(registry) == before
        with pytest.raises(Busy), exclusive(registry.catalog, "sweep"):
            pytest.fail("two holders at once")
    assert holders(registry) == {}


def wait_until_renewed(registry: LocalRegistry, name: str) -> bool:
    """Return whether an expired lease has time left again within some seconds."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if seconds_left(registry, name) > 0:
            return True
        time.sleep(0.01)
    return False


def test_a_lease_is_renewed_while_it_is_held_also_after_a_renewal_that_fails(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()
    real = database_now

    def failing_once(session: object) -> object:
        if threading.current_thread().name == "lease sweep" and not failed.is_set():
            failed.set()
            raise DatabaseUnreachable("the database does not answer: try again later")
        return real(session)  # type: ignore[arg-type]

    monkeypatch.setattr(work, "RENEW_SECONDS", 0.02)
    monkeypatch.setattr(work, "database_now", failing_once)
    with exclusive(registry.catalog, "sweep"):
        assert failed.wait(20)
        let_expire(registry, "sweep")
        assert wait_until_renewed(registry, "sweep")
        with pytest.raises(Busy), exclusive(registry.catalog, "sweep"):
            pytest.fail("two holders at once")


def test_a_lost_lease_is_not_taken_back_by_renewals(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = threading.Event()
    real = database_now

    def noticed(session: object) -> object:
        if threading.current_thread().name == "lease sweep":
            renewed.set()
        return real(session)  # type: ignore[arg-type]

    monkeypatch.setattr(work, "database_now", noticed)
    monkeypatch.setattr(work, "RENEW_SECONDS", 0.02)
    with exclusive(registry.catalog, "sweep"):
        with registry.catalog.writing() as session:
            session.execute(update(NamedLease).values(holder="somebody else", expires_at=database_now(session)))
            renewed.clear()
        assert renewed.wait(20)
        renewed.clear()
        assert renewed.wait(20), "the first renewal has ended"
        assert holders(registry) == {"sweep": "somebody else"}
        assert seconds_left(registry, "sweep") <= 0
    assert holders(registry) == {"sweep": "somebody else"}


def test_of_many_threads_one_gets_the_lease(registry: LocalRegistry) -> None:
    together, results = threading.Barrier(6), []

    def compete() -> None:
        together.wait()
        try:
            with exclusive(registry.catalog, "sweep"):
                results.append("held")
                refused.wait(30)
        except Busy:
            results.append("busy")
            if results.count("busy") == 5:
                refused.set()

    refused = threading.Event()
    threads = [threading.Thread(target=compete) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [*5 * ["busy"], "held"]
    assert holders(registry) == {}


HOLD = """
import sys
from organs.registry.catalog.work import exclusive
from organs.registry.local import LocalRegistry
from organs.registry.settings import Settings
from dataclasses import replace
from pathlib import Path
settings = replace(Settings.in_folder(Path(sys.argv[1])), database_url=sys.argv[2])
with LocalRegistry.from_settings(settings) as registry, exclusive(registry.catalog, "sweep"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.long
def test_a_lease_of_a_killed_process_holds_until_it_expires(registry: LocalRegistry) -> None:
    command = [sys.executable, "-c", HOLD, str(registry.settings.home), registry.settings.database_url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Busy), exclusive(registry.catalog, "sweep"):
            pytest.fail("two holders at once")
        holder.kill()
    with pytest.raises(Busy), exclusive(registry.catalog, "sweep"):
        pytest.fail("two holders at once")
    let_expire(registry, "sweep")
    with exclusive(registry.catalog, "sweep"):
        assert len(holders(registry)) == 1


def is_ingest_alive(registry: LocalRegistry, ingest_id: int) -> bool:
    with registry.catalog.reading() as session:
        alive = select(Ingest.id).where(Ingest.id == ingest_id, is_alive(session, Ingest))
        return session.scalar(alive) is not None


def test_the_lease_of_an_ingest_is_renewed_while_it_runs(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(organs, "LEASE", timedelta(seconds=0.8))
    with recorded_ingest(registry.catalog, "a slow upload") as ingest_id:
        for _ in range(3):
            with registry.catalog.writing() as session:
                past = database_now(session) - timedelta(seconds=1)
                session.execute(update(Ingest).values(lease_expires_at=past))
            until = time.monotonic() + 20
            while not is_ingest_alive(registry, ingest_id):
                assert time.monotonic() < until
                time.sleep(0.01)
        with registry.catalog.writing() as session:
            end_ingest(session, ingest_id, "finished")
    assert not is_ingest_alive(registry, ingest_id)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("ingest ")] == []


@pytest.mark.parametrize(
    ("error", "state"),
    [(ValueError("odd"), "failed"), (KeyboardInterrupt(), "interrupted"), (WorkCancelled(), "interrupted")],
)
def test_the_error_of_an_ingest_is_recorded(error: BaseException, state: str, registry: LocalRegistry) -> None:
    with pytest.raises(type(error)), recorded_ingest(registry.catalog, "a test"):
        raise error
    with registry.catalog.reading() as session:
        row = session.scalars(select(Ingest)).one()
    assert (row.state, row.report) == (state, f'{{"error": "{error}"}}')
