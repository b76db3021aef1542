"""Catalogs of the most expensive shapes, and the work of the database for each step on them.

Three shapes are built: a model of very many different tensors, one organ at very many places of one model, and one
organ in very many models. The cost of a step is counted in steps of SQLite's virtual machine, which depend neither on
the machine nor on its load. PostgreSQL has no such count; there only the seconds are limited.

`TEST_DATABASE_URL` names another, empty database; without it a new SQLite file is used, and every step is taken
twice, before and after ANALYZE, which changes the order in which SQLite joins.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from sqlite3 import dbapi2
from threading import Event
from typing import Any
from unittest.mock import patch

import numpy as np
from flask.testing import FlaskClient
from sqlalchemy import event, insert, select, text
from sqlalchemy.orm import Session

from organs.ingest import dissect
from organs.ingest.jobs.runner import Runner, add_job
from organs.ingest.service import Intake, ingest_files, publish_model
from organs.ingest.sources import find_sources, open_files
from organs.registry.catalog.queries.administration import removal_of
from organs.registry.catalog.queries.blobs import names_of_blob
from organs.registry.catalog.queries.model_contents import files_of
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.organs import (
    models_in_common,
    models_with_most_organs_of,
    organ_counts,
    reachable_digests,
    reachable_organs,
    shared_of,
)
from organs.registry.catalog.queries.submissions import known_digests
from organs.registry.catalog.records import Edits, ModelRecord, ParentRecord
from organs.registry.catalog.register.model_changes import edit_model, hide_model, remove_model
from organs.registry.catalog.register.models import register_model
from organs.registry.catalog.tables import Blob, JobRow, Lineage, ModelRow, OrganRow, Placement, now
from organs.registry.compose.lock import LOCK_KEY
from organs.registry.digest import Digest, digest_of
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName, parse_model_name
from organs.registry.relatives import find_relatives, record_relatives, resolve_declared
from organs.registry.relatives.lineage import lineage_of
from organs.registry.settings import Settings
from organs.registry.upkeep import sweep, verify
from organs.web.api import plans
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.faults.hostile.harness import Arena, Case, Options, Suite
from tests.related_models import model_file, related_tensors
from tests.small_models import Tensors, ingest_file
from tests.submissions import process_and_read, submit_model, whole_file
from tests.web.good_requests import PLAIN_ARGUMENTS

TICK_STEPS = 100
"""Steps of the virtual machine between two counts. The steps after the last count of a statement are not counted."""
MATRIX = (16, 16)
"""The smallest matrix with a fingerprint."""
SLOTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_norm_2")
SHOWN = 25
"""The number of printed steps, the most expensive first."""
URL_VARIABLE = "TEST_DATABASE_URL"
EDGES_EACH = 32
"""Measured relatives of each of many models: as many as an ingest records."""
F16 = dtype_by_name("F16")


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the shapes are."""

    tensors: int = 65_536
    """The tensors of the model of many different tensors."""
    repeats: int = 50_000
    """Places of one organ in one model."""
    models: int = 10_000
    """Models with one common organ."""


class Counting(sqlite3.Connection):
    """A connection that counts the steps of SQLite's virtual machine, over all connections of the process."""

    steps = 0
    statements = 0
    """Executed statements on the counted engines, with any database."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._inner: Callable[[], int] | None = None
        super().set_progress_handler(self._tick, TICK_STEPS)

    def set_progress_handler(self, handler: Callable[[], int] | None, steps: int) -> None:  # type: ignore[override]
        """Call `handler` as well, every TICK_STEPS steps, which stops a slow statement."""
        self._inner = handler

    def _tick(self) -> int:
        Counting.steps += TICK_STEPS
        return 0 if self._inner is None else self._inner()


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one step."""

    name: str
    seconds: float
    """Seconds of processor time of this process, so that other load does not count; with another database, elapsed
    time.
    """
    steps: int
    statements: int
    answer_bytes: int


@dataclass(slots=True)
class Costs:
    """The costs of steps, in their order."""

    taken: list[Cost] = field(default_factory=list)

    @contextmanager
    def of(self, name: str) -> Iterator[list[int]]:
        """Count the cost of the block; a size in bytes that it appends to the list is the size of its answer."""
        sizes: list[int] = []
        clock = time.monotonic if URL_VARIABLE in os.environ else time.process_time
        begun, steps, statements = clock(), Counting.steps, Counting.statements
        yield sizes
        seconds = clock() - begun
        counted = Counting.steps - steps, Counting.statements - statements
        self.taken.append(Cost(name, seconds, *counted, sum(sizes)))


@contextmanager
def counting(registry: LocalRegistry) -> Iterator[Costs]:
    """Count statements and the steps of the virtual machine on every connection of `registry` inside the block."""
    engines = (registry.catalog.reader, registry.catalog.writer)
    with ExitStack() as undone:
        undone.enter_context(patch.object(dbapi2, "connect", partial(dbapi2.connect, factory=Counting)))
        for engine in engines:
            engine.dispose()  # so that every connection is new, and counts
            event.listen(engine, "before_cursor_execute", _count_statement)
            undone.callback(engine.dispose)
            undone.callback(event.remove, engine, "before_cursor_execute", _count_statement)
        yield Costs()


def _count_statement(*_: Any) -> None:
    Counting.statements += 1


def build(registry: LocalRegistry, folder: Path, scale: Scale) -> None:
    """Fill an empty `registry` with the shapes; `folder` takes files meanwhile.

    `many/model` and `many/twin` have `scale.tensors` different organs, `repeats/model` and `repeats/twin` have one
    organ at `scale.repeats` places, and `common/m0` and so on have that organ and those of a small model.
    """
    with patch.object(dissect, "FREE_TENSORS", 2**20):  # earlier homes have models like these
        _build(registry, folder, scale)


def _build(registry: LocalRegistry, folder: Path, scale: Scale) -> None:
    organ = _matrix(0)
    for owner, tensors in (
        ("many", [(_spec(number), _matrix(number + 1)) for number in range(scale.tensors)]),
        ("repeats", [(_spec(number), organ) for number in range(scale.repeats)]),
    ):
        record = _ingested(registry, folder, ModelName(owner, "model"), model_file(owner.capitalize(), tensors))
        _register_copy(registry, record, ModelName(owner, "twin"))
    small: Tensors = [*related_tensors(blocks=1), (_spec(1), organ)]
    record = _ingested(registry, folder, ModelName("common", "m0"), model_file("Common", small))
    for number in range(1, scale.models):
        parents = (ParentRecord(f"nobody/Common base {number % 7}", "finetune"),) if number % 2 else ()
        _register_copy(registry, replace(record, parents=parents), ModelName("common", f"m{number}"))
    _relate(registry)
    (folder / "base.gguf").write_bytes(model_file("Base", related_tensors(seed=7)))
    (folder / "donor.gguf").write_bytes(model_file("Donor", related_tensors(seed=7, correlation=0.99)))
    for name in ("base", "donor"):
        ingest_file(registry, folder / f"{name}.gguf", f"plain/{name}")


def _spec(number: int) -> TensorSpec:
    """Return a tensor's name and shape: in blocks if the slot repeats, and outside blocks otherwise."""
    block, slot = divmod(number // 2, len(SLOTS))
    name = f"t{number}" if number % 2 else f"blk.{block}.{SLOTS[slot]}.weight"
    return TensorSpec(name, MATRIX, F16)


def _matrix(seed: int) -> bytes:
    return (0.05 * np.random.default_rng(seed).standard_normal(MATRIX)).astype(np.float16).tobytes()


def _ingested(registry: LocalRegistry, folder: Path, name: ModelName, data: bytes) -> ModelRecord:
    """Ingest a file; return its record."""
    records: list[ModelRecord] = []

    def keep(record: ModelRecord) -> ModelRecord:
        records.append(record)
        return record

    path = folder / f"{name.namespace}.gguf"
    path.write_bytes(data)
    with ExitStack() as opened:
        (source,) = find_sources([str(path)])
        ingest_files(registry, open_files(opened, source), Intake(source.label, name, settle=keep))
    return records[0]


def _register_copy(registry: LocalRegistry, record: ModelRecord, name: ModelName) -> None:
    """Register the same organs once more as another model, without looking for its relatives."""
    with registry.catalog.writing() as session:
        copied = replace(record, name=name, digest=digest_of(str(name).encode()), contributor=name.namespace)
        register_model(session, copied, keep_name=True)


def _relate(registry: LocalRegistry) -> None:
    """Let the many models be measured relatives of the oldest of them."""
    with registry.catalog.writing() as session:
        ids = session.scalars(select(ModelRow.id).where(ModelRow.namespace == "common").order_by(ModelRow.id)).all()
        edge = {"relation": "relative", "evidence": "measured", "score": 0.99, "compared": 5, "created_at": now()}
        rows = [
            edge | {"child_model_id": child, "parent_model_id": parent}
            for number, child in enumerate(ids)
            for parent in ids[: min(number, EDGES_EACH)]
        ]
        session.execute(insert(Lineage), rows)


STEPS_MAX = 60_000_000
"""The limit of steps of the virtual machine for one step at the full scale: about 100 a row, nine times over all rows
of the largest model. Quadratic steps take billions."""
STATEMENTS_MAX = 5000
SECONDS_MAX = 120.0
"""The most expensive step, extracting the largest model into 65,536 files, takes half of it; the next one a sixth."""
ANSWER_MAX_BYTES = 8_000_000
"""The size of an answer that is not a file."""

# The steps.

MODELS = ("many/model", "repeats/model", "common/m0")
"""One model of each shape."""
QUERIES: dict[str, tuple[str, ...]] = {
    "/organs": (
        "q=like:{digest}",
        "q=unique:organ",
        "q=unique:organ model:{model}",
        "q=unique:organ sort:-theta model:{twin}",
        "q=model:{model} sort:-spectral",
        "q=fits:{model}",
        "q=fits:{model} unique:organ sort:spectral",
        "q=fits:plain/base model:{model}",
    ),
    "/api/v1/facets": ("q=model:{model}", "q=fits:{model}"),
    "/models": ("q=model", "q=by:{owner}"),
    "/models/<namespace>/<name>": ("by=change&against={twin}", "by=size&against={twin}"),
    "/compare": ("first={model}&second={twin}", "first={model}&second=plain/base"),
    "/api/v1/compare": ("first={model}&second={twin}",),
    "/api/v1/compatibility": ("base={model}&donor={twin}",),
    "/api/v1/models/lookup": ("name={model}",),
    "/compose": ("base={model}", "base={model}&cell=organ:0", "base=plain/base&graft=from:{model}"),
    "/compose/fits": ("base={model}&donor={twin}", "base=plain/base&donor={model}"),
    "/api/v1/fitting": ("base={model}",),
    "/lineage": ("model={model}",),
}
"""More forms of a page, by its rule without `.json` and `.csv`."""
LEFT_OUT = ("static",)
STOPPED_SECONDS = 600.0
"""The time limit of a search or a plan here: the suite measures the full cost, not the part within a usual limit."""


def steps_of_pages(registry: LocalRegistry) -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield every GET route for each shape: its address, and a call that returns the size of the body in bytes."""
    client = create_app(registry, WebSettings(personal=True, search_seconds=STOPPED_SECONDS)).test_client()
    seen = set()
    for known in _arguments(registry, client):
        for rule in client.application.url_map.iter_rules():
            if "GET" not in (rule.methods or ()) or rule.endpoint in LEFT_OUT:
                continue
            built = rule.build({name: known[name] for name in rule.arguments})
            assert built is not None
            page = re.sub(r"\.(json|csv)$", "", rule.rule)
            queries = [query.format(**known) for query in QUERIES.get(page, ())]
            for address in (built[1], *(f"{built[1]}?{query}" for query in queries)):
                if address not in seen:
                    seen.add(address)
                    yield address, partial(_size_of, client, address)


def _size_of(client: FlaskClient, address: str) -> int:
    with client.get(address, buffered=False) as answer:
        size = sum(len(part) for part in answer.iter_encoded())
        assert answer.status_code < 500, (address, answer.status)
    return size


def _arguments(registry: LocalRegistry, client: FlaskClient) -> Iterator[dict[str, str]]:
    """Return, for each shape, the values of the names in the rules and in QUERIES."""
    chimera = registry.compose("plain/base").graft("plain/donor", type="organ")
    chimera = chimera.accept(*{finding.code for finding in chimera.plan().findings if finding.severity == "warn"})
    made = chimera.plan().register()
    add_job(registry, "report", {"model": "plain/base"})
    Runner(registry, Event()).run(once=True)
    header = client.get(f"/chimeras/{made.lock_id}/lock.json").get_json(force=True)["header"]
    for name in MODELS:
        owner, _, own = name.partition("/")
        with registry.catalog.reading() as session:
            model = model_by_name(session, parse_model_name(name))
            digest = session.scalars(
                select(Blob.digest)
                .join(OrganRow, OrganRow.blob_id == Blob.id)
                .join(Placement, Placement.organ_id == OrganRow.id)
                .where(Placement.model_id == model.id, Placement.name == "t1")
            ).one()
            (file,) = files_of(session, model.id)
        yield {
            **PLAIN_ARGUMENTS,
            "model": name,
            "twin": f"{owner}/m1" if owner == "common" else f"{owner}/twin",
            "owner": owner,
            "lock": made.lock_id,
            "header": header,
            "namespace": owner,
            "contributor": owner,
            "upload": "nobodySentAnythingHere",
            "name": own,
            "short": own,
            "digest": digest,
            "filename": file.name,
            "file": file.name,
            "rev": "main",
            "path": file.name,
            "user": owner,
            "repo": own,
            "job": "1",
            "submission": "1",
        }


Work = Callable[[Session, ModelRow], Any]

READS: dict[str, Work] = {
    "models with most of its tensors": lambda session, model: models_with_most_organs_of(session, model, LOCK_KEY),
    "what it shares": lambda session, model: shared_of(session, model.id),
    "new tensors for administrators": lambda session, model: organ_counts(session, [model.id]),
    "tensors at the same places": lambda session, model: models_in_common(session, model.id),
    "what its removal takes": removal_of,
    "relatives by weights": find_relatives,
    "lineage": lineage_of,
    "reachable digests": lambda session, model: reachable_digests(session, _digests_of(session, model)),
    "reachable tensors": lambda session, model: reachable_organs(session, _digests_of(session, model), 1000),
    "digests that need not be sent": lambda session, model: known_digests(
        session, 1, _digests_of(session, model), now()
    ),
    "names of a blob": lambda session, model: names_of_blob(session, _blob_of(session, model)),
}
"""The requests about one model, besides pages."""
WRITES: dict[str, Work] = {
    "change the license": lambda session, model: edit_model(session, model, Edits(license="MIT"), "local"),
    "change the base": lambda session, model: edit_model(session, model, Edits(base="common/m3"), "local"),
    "record relatives": record_relatives,
    "resolve declared parents": resolve_declared,
    "yank": lambda session, model: hide_model(session, model, "yanked", "a reason", "local"),
    "publish again": lambda session, model: publish_model(session, model, "local"),
}
"""The changes of one model, in this order."""
JOBS = ("measure", "report", "extract")


def steps_of_services(registry: LocalRegistry) -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield the steps of intake, jobs and administration: the name of each step, and a call that returns 0."""
    for name, tensors in (
        ("different", related_tensors(seed=3)),
        ("with the repeated tensor", [*related_tensors(seed=4), (_spec(1), _matrix(0))]),
        ("alike the many", [*related_tensors(blocks=1, correlation=0.99), (_spec(1), _matrix(0))]),
    ):
        yield f"submit a small model, {name}", partial(_submit, registry, name, model_file("Small", tensors))
    for name in MODELS:
        for what, query in READS.items():
            yield f"{name}: {what}", partial(_read, registry, name, query)
    for name in MODELS:
        for what, change in WRITES.items():
            yield f"{name}: {what}", partial(_write, registry, name, change)
    for kind in JOBS:
        for name in MODELS:
            yield f"{name}: job {kind}", partial(_run_job, registry, kind, name)
    yield "verify", partial(_discard, lambda: verify(registry.catalog, registry.blobs))
    yield "sweep", partial(_discard, lambda: sweep(registry.catalog, registry.blobs, dry_run=False))
    for name in ("many/twin", "repeats/twin", "common/m1"):
        remove = partial(_write, registry, name, lambda session, model: remove_model(session, model, "why", "local"))
        yield f"{name}: remove", remove


def _submit(registry: LocalRegistry, name: str, data: bytes) -> int:
    owner = "".join(name.split())
    after = process_and_read(registry, submit_model(registry, f"{owner}/small", [whole_file(registry, owner, data)]))
    assert after.row.state == "published", after.row.reason
    return 0


def _read(registry: LocalRegistry, name: str, query: Work) -> int:
    with registry.catalog.reading() as session:
        query(session, model_by_name(session, parse_model_name(name)))
    return 0


def _write(registry: LocalRegistry, name: str, change: Work) -> int:
    with registry.catalog.writing() as session:
        change(session, model_by_name(session, parse_model_name(name)))
    return 0


def _digests_of(session: Session, model: ModelRow) -> list[Digest]:
    """Return up to a thousand organs of a model, as many as one request may name."""
    digests = (
        select(Blob.digest)
        .join(OrganRow, OrganRow.blob_id == Blob.id)
        .join(Placement, Placement.organ_id == OrganRow.id)
    )
    found = session.scalars(digests.where(Placement.model_id == model.id).limit(1000))
    return [Digest(digest) for digest in set(found)]


def _blob_of(session: Session, model: ModelRow) -> int:
    organs = select(OrganRow.blob_id).join(Placement, Placement.organ_id == OrganRow.id)
    return session.scalars(organs.where(Placement.model_id == model.id).limit(1)).one()


def _run_job(registry: LocalRegistry, kind: str, model: str) -> int:
    job = add_job(registry, kind, {"model": model})
    Runner(registry, Event()).run(once=True)
    with registry.catalog.reading() as session:
        assert session.get_one(JobRow, job).state == "finished", session.get_one(JobRow, job).note
    return 0


def _discard(call: Callable[[], Any]) -> int:
    call()
    return 0


def is_over(cost: Cost, steps: int = STEPS_MAX) -> bool:
    """Return whether a step costs more than a bound."""
    is_file = any(part in cost.name for part in ("/resolve/", ".gguf", "/files/"))
    return (
        cost.steps > steps
        or cost.statements > STATEMENTS_MAX
        or cost.seconds > SECONDS_MAX
        or (cost.answer_bytes > ANSWER_MAX_BYTES and not is_file)
    )


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[Iterator[Case]]:
    """Build the shapes; each step is a case, taken before and after ANALYZE. Afterwards print the most expensive."""
    scale = Scale(options.tensors, options.repeats, options.models)
    url = os.environ.get(URL_VARIABLE)
    taken: list[tuple[str, Cost]] = []

    def settings(home: Path) -> Settings:
        plain = Settings.in_folder(home)
        return replace(plain, database_url=url) if url else plain

    with LocalRegistry.from_settings(settings(arena.home)) as registry:
        build(registry, arena.folder, scale)

    def take(costs: Costs, run: str, name: str, call: Callable[[], int]) -> str:
        with costs.of(name) as sizes:
            sizes.append(call())
        taken.append((run, costs.taken[-1]))
        assert not is_over(costs.taken[-1]), f"over a bound: {costs.taken[-1]}"
        return "within the bounds"

    def cases() -> Iterator[Case]:
        for run in ("plain",) if url else ("plain", "analyzed"):
            home = arena.folder / run
            if url is None:
                shutil.copytree(arena.home, home)
            with (
                LocalRegistry.from_settings(settings(arena.home if url else home)) as registry,
                counting(registry) as costs,
                patch.object(plans, "PLAN_SECONDS", STOPPED_SECONDS),
            ):
                if run == "analyzed":
                    with registry.catalog.writing() as session:
                        session.execute(text("ANALYZE"))
                for name, call in chain(steps_of_pages(registry), steps_of_services(registry)):
                    if options.only in name:
                        yield Case(run, name, partial(take, costs, run, name, call))

    yield cases()
    dearest = sorted(taken, key=lambda one: (is_over(one[1]), one[1].steps, one[1].seconds), reverse=True)
    print(f"{'VM steps':>14} {'statements':>10} {'seconds':>8} {'bytes':>11}")
    for run, cost in dearest[:SHOWN]:
        figures = f"{cost.steps:14,} {cost.statements:10,} {cost.seconds:8.2f} {cost.answer_bytes:11,}"
        print(f"{figures}  {run}: {cost.name}{'  OVER' if is_over(cost) else ''}")


SUITE = Suite(opened, {**asdict(Scale()), "only": ""})
"""`only` chooses the steps whose names contain it."""
