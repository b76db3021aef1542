"""Eight processes write to one registry with PostgreSQL and a bucket, and a random one is killed every ten seconds.

Three processes ingest, two push, one runs jobs, one yanks and removes models, one sweeps without a grace period. Each
writes to a file what the registry has confirmed. At the end, all that was confirmed must be there, once, and all stored
bytes are read. `ORGAN_DATABASE_URL` and `ORGAN_BLOBS_URL` name other servers; without them both are started.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import count
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
from organs.registry.upkeep import sweep
from tests import buckets, postgres
from tests.faults.failing import ingest_path, verify_all
from tests.faults.hostile.harness import Arena, Case, Options, Suite
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


def worker(role: str, number: str, folder: str) -> None:
    """Do the work of a role until killed."""
    home = Path(folder)
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
    report = verify_all(registry)
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


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[Iterator[Case]]:
    """Start the services and all processes; afterwards run what is left, and check what was confirmed."""
    with ExitStack() as stack:
        if not os.environ.get(DATABASE_VARIABLE):
            os.environ[DATABASE_VARIABLE] = stack.enter_context(postgres.temporary_server())
        if not os.environ.get(BLOBS_VARIABLE):
            os.environ.update(buckets.CREDENTIALS, AWS_ENDPOINT_URL=stack.enter_context(buckets.memory_server()))
            os.environ[BLOBS_VARIABLE] = f"s3://{buckets.BUCKET}/crowd"
            buckets.create_bucket()
        registry = stack.enter_context(open_registry(arena.folder / "operator"))
        with registry.catalog.writing() as session:
            for number, role in enumerate(ROLES):
                if role == "push":
                    add_contributor(session, f"pat{number}")
        processes = [start(arena, number) for number in range(len(ROLES))]
        chance, until = random.Random(options.seed), time.monotonic() + 60 * options.minutes

        def kill() -> str:
            time.sleep(KILL_SECONDS)
            for number, process in enumerate(processes):
                log = (arena.folder / f"log-{number}").read_text(errors="replace")[-4000:]
                assert process.poll() is None, f"{ROLES[number]} ended by itself: {log}"
            number = chance.randrange(len(ROLES))
            arena.kill(processes[number])
            processes[number] = start(arena, number)
            return ROLES[number]

        def cases() -> Iterator[Case]:
            for number in count(1):
                if time.monotonic() > until or arena.report.faults:
                    return
                yield Case("kills", str(number), kill)

        yield cases()
        for process in processes:
            arena.kill(process)
        drain(registry)
        arena.report.figures.append(check(registry, arena.folder))


def start(arena: Arena, number: int) -> subprocess.Popen[str]:
    """Start the process of a role, each with a home of its own."""
    home = arena.folder / f"machine-{number}" / "home"
    home.parent.mkdir(exist_ok=True)
    work = f"import sys; from {__name__} import worker; worker(*sys.argv[1:])"
    command = [sys.executable, "-c", work, ROLES[number], str(number), str(home)]
    return arena.start(command, dict(os.environ), arena.folder / f"log-{number}")


SUITE = Suite(opened, {"minutes": 10.0, "seed": 1})
