"""Eight processes write to one registry with PostgreSQL and a bucket, and a random one is killed every ten seconds.

    python -m tests.faults.crowd_kills --minutes 10 --seed 1

Three processes ingest, two push, one runs jobs, one yanks and removes models, one sweeps without a grace period. Each
writes to a file what the registry has confirmed. At the end, all that was confirmed must be there, once, and all stored
bytes are read. `ORGAN_DATABASE_URL` and `ORGAN_BLOBS_URL` name other servers; without them both are started.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

from sqlalchemy import func, select

from organs.ingest.contributions.manifest import parse_manifest
from organs.ingest.contributions.submissions import submit
from organs.ingest.contributions.uploads import Chunk, finish, open_upload, receive
from organs.ingest.jobs.runner import Runner
from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import add_contributor
from organs.registry.catalog.register.model_changes import hide_model, remove_model, show_model
from organs.registry.catalog.tables import Blob, JobRow, ModelRow, OrganRow, SubmissionRow, UploadRow
from organs.registry.digest import digest_of
from organs.registry.entities.submission import UploadRequest
from organs.registry.errors import Busy, CatalogError, Conflict, NameTaken, NotFound, OrganError
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName, parse_model_name
from organs.registry.settings import BLOBS_VARIABLE, DATABASE_VARIABLE, HOME_VARIABLE, Settings
from organs.registry.upkeep import Share, sweep, verify
from tests import buckets, postgres
from tests.faults.failing import ingest_path
from tests.small_models import small_model

ROLES = ("ingest", "ingest", "ingest", "push", "push", "work", "hide", "sweep")
KILL_SECONDS = 10.0
MODELS = 30
NAMES = 12
"""Several models have one name, so that they become its versions."""
DRAIN_SECONDS = 240.0
"""A job of a killed runner runs again when its lease has expired."""


class Confirmed:
    """A file with a line for each thing that a process did, or is about to do."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, *words: str) -> None:
        self._file.write(" ".join(words) + "\n")


def content(seed: int) -> bytes:
    return small_model(f"Crowd {seed}", blocks=1 + seed % 3, seed=seed)


def ingest(registry: LocalRegistry, chance: random.Random, confirmed: Confirmed, folder: Path) -> None:
    seed = chance.randrange(MODELS)
    path = folder / "model.gguf"
    path.write_bytes(content(seed))
    report = ingest_path(registry, path, name=ModelName("crowd", f"m{seed % NAMES}"))
    confirmed.write("model", report.model, digest_of(content(seed)))


def push(registry: LocalRegistry, chance: random.Random, confirmed: Confirmed, owner: str) -> None:
    seed = 1000 + chance.randrange(MODELS)
    data = content(seed)
    with registry.catalog.reading() as session:
        owner_id = contributor_by_name(session, owner).id
    declared = UploadRequest(kind="file", size_bytes=len(data), digest=digest_of(data), name="m.gguf")
    upload = open_upload(registry, owner_id, declared)
    middle = len(data) // 2
    for begin, end in ((0, middle), (middle, len(data))):
        if upload.received_bytes <= begin:
            upload = receive(registry, owner_id, upload.public_id, Chunk(begin, end, len(data)), [data[begin:end]])
    finish(registry, owner_id, upload.public_id)
    files = [{"name": "m.gguf", "upload": upload.public_id}]
    name = ModelName(owner, f"p{seed % NAMES}")
    submission = submit(registry, owner, name, parse_manifest({"files": files, "publish": True}))
    confirmed.write("submission", str(submission), digest_of(data))
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with registry.catalog.reading() as session:
            if session.get_one(SubmissionRow, submission).state not in ("checking", "publishing"):
                return
        time.sleep(0.1)


def hide(registry: LocalRegistry, chance: random.Random, confirmed: Confirmed) -> None:
    with registry.catalog.reading() as session:
        models = session.execute(
            select(ModelRow.namespace, ModelRow.name, ModelRow.version).where(ModelRow.state.in_(("visible", "yanked")))
        ).all()
    if not models:
        return
    name = "{}/{}@{}".format(*chance.choice(models))
    act = chance.choice(("yank", "show", "remove"))
    if act == "remove":
        confirmed.write("removes", name)
    with registry.catalog.writing() as session:
        model = model_by_name(session, parse_model_name(name))
        if act == "yank":
            hide_model(session, model, "yanked", "a test", "local")
        elif act == "show":
            show_model(session, model, "local")
        else:
            remove_model(session, model, "a test", "local")
    time.sleep(0.3)


def worker(role: str, number: int, home: Path) -> None:
    """Do the work of a role until killed."""
    settings = Settings.from_environment({**os.environ, HOME_VARIABLE: str(home)})
    chance, confirmed = random.Random(time.time_ns()), Confirmed(home.parent / f"confirmed-{number}")
    with LocalRegistry.from_settings(settings) as registry, tempfile.TemporaryDirectory(dir=home.parent) as folder:
        if role == "work":
            Runner(registry, threading.Event()).run()
        while True:
            try:
                if role == "ingest":
                    ingest(registry, chance, confirmed, Path(folder))
                elif role == "push":
                    push(registry, chance, confirmed, f"pat{number}")
                elif role == "hide":
                    hide(registry, chance, confirmed)
                else:
                    sweep(registry.catalog, registry.blobs, grace=timedelta(0), dry_run=False)
                    time.sleep(0.5)
                confirmed.write("did", role)
            except CatalogError:
                raise
            except (Conflict, NotFound, NameTaken) as error:
                confirmed.write("refused", type(error).__name__)
            except OrganError as error:
                confirmed.write("refused", type(error).__name__)
                print(f"{role}: {type(error).__name__}: {error}", flush=True)
                time.sleep(0.2)


def run(minutes: float, seed: int, folder: Path) -> None:
    """Start the processes, kill, and check."""
    chance = random.Random(seed)
    homes = [folder / f"machine-{number}" / "home" for number in range(len(ROLES))]
    for home in homes:
        home.parent.mkdir()
    with open_registry(folder / "operator") as registry, registry.catalog.writing() as session:
        for number, role in enumerate(ROLES):
            if role == "push":
                add_contributor(session, f"pat{number}")

    def start(number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.faults.crowd_kills", "--role", ROLES[number], "--number", str(number)]
        log = (folder / f"log-{number}").open("ab")
        return subprocess.Popen([*command, "--home", str(homes[number])], stdout=log, stderr=log)

    processes = [start(number) for number in range(len(ROLES))]
    killed: Counter[str] = Counter()
    begun = time.monotonic()
    try:
        while time.monotonic() - begun < 60 * minutes:
            time.sleep(KILL_SECONDS)
            broken = [ROLES[number] for number, process in enumerate(processes) if process.poll() is not None]
            assert not broken, f"{broken} ended by themselves: see {folder}"
            number = chance.randrange(len(ROLES))
            processes[number].send_signal(signal.SIGKILL)
            processes[number].wait()
            killed[ROLES[number]] += 1
            processes[number] = start(number)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    with open_registry(folder / "operator") as registry:
        drain(registry)
        print(f"killed {sum(killed.values())}: {dict(killed)}; {check(registry, folder)}")


def open_registry(home: Path) -> LocalRegistry:
    return LocalRegistry.from_settings(Settings.from_environment({**os.environ, HOME_VARIABLE: str(home)}))


def drain(registry: LocalRegistry) -> None:
    """Run the jobs that are left, also those of killed runners."""
    until = time.monotonic() + DRAIN_SECONDS
    while True:
        Runner(registry, threading.Event()).run(once=True)
        with registry.catalog.reading() as session:
            left = session.scalar(select(func.count()).where(JobRow.state.in_(("queued", "running"))))
        if not left:
            return
        assert time.monotonic() < until, f"{left} jobs are left"
        time.sleep(2)


def check(registry: LocalRegistry, folder: Path) -> str:
    """Check that all that was confirmed is there, once; return it in numbers."""
    lines = [line.split() for path in folder.glob("machine-*/confirmed-*") for line in path.read_text().splitlines()]
    removed = {words[1] for words in lines if words[0] == "removes"}
    done = Counter(words[1] for words in lines if words[0] == "did")
    refused = Counter(words[1] for words in lines if words[0] == "refused")
    expected = {words[1]: words[2] for words in lines if words[0] == "model"}
    with registry.catalog.reading() as session:
        for columns in (
            (ModelRow.namespace, ModelRow.name, ModelRow.version),
            (Blob.digest,),
            (OrganRow.blob_id, OrganRow.dtype, OrganRow.shape),
        ):
            assert not session.execute(select(*columns).group_by(*columns).having(func.count() > 1)).all(), columns
        states = Counter(session.scalars(select(SubmissionRow.state)))
        for words in lines:
            if words[0] == "submission":
                row = session.get_one(SubmissionRow, int(words[1]))
                assert row.state in ("published", "quarantined", "refused"), (words, row.state, row.reason)
                if row.state == "published" and row.model_id is not None:
                    model = session.get_one(ModelRow, row.model_id)
                    if model.state != "removed":
                        expected[model.full_name] = words[2]
        refusals = Counter(session.scalars(select(SubmissionRow.reason).where(SubmissionRow.state == "refused")))
        uploads = session.scalar(select(func.count()).select_from(UploadRow).where(UploadRow.state == "complete"))
    whole = 0
    for name, digest in expected.items():
        if name in removed:
            continue
        path = folder / "back.gguf"
        registry.assemble(name, path)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest, name
        whole += 1
    for _ in range(2):
        sweep_alone(registry)
    report = verify(registry.catalog, registry.blobs, read_data=Share(1, 1))
    assert (report.faults, report.miscounted) == ([], {}), report
    return (
        f"done {dict(done)}, refused {dict(refused)}, submissions {dict(states)} {dict(refusals)}, {whole} models came "
        f"back, {report.blobs} blobs read, {report.orphans} files without a row, {uploads} finished uploads are left"
    )


def sweep_alone(registry: LocalRegistry) -> None:
    """Sweep as soon as the lease of a killed sweep has expired."""
    until = time.monotonic() + DRAIN_SECONDS
    while True:
        try:
            sweep(registry.catalog, registry.blobs, grace=timedelta(0), dry_run=False)
        except Busy:
            assert time.monotonic() < until
            time.sleep(1)
        else:
            return


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.crowd_kills", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role is not None:
        worker(chosen.role, chosen.number, chosen.home)
        return
    with ExitStack() as stack:
        if not os.environ.get(DATABASE_VARIABLE):
            os.environ[DATABASE_VARIABLE] = stack.enter_context(postgres.temporary_server())
        if not os.environ.get(BLOBS_VARIABLE):
            os.environ.update(buckets.CREDENTIALS, AWS_ENDPOINT_URL=stack.enter_context(buckets.memory_server()))
            os.environ[BLOBS_VARIABLE] = f"s3://{buckets.BUCKET}/crowd"
            buckets.create_bucket()
        folder = Path(tempfile.mkdtemp(prefix="organ-crowd-"))
        run(chosen.minutes, chosen.seed, folder)
        with suppress(OSError):
            subprocess.run(["rm", "-rf", str(folder)], check=False)


if __name__ == "__main__":
    main()
