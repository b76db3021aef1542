"""A worker of a fleet: it claims units in the ledger, does them, and records their results itself."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version

from sqlalchemy.orm import Session

from organs.ingest.dissect import DissectedFile
from organs.ingest.fleet.plan import source_of
from organs.ingest.jobs.kinds import MEASURE, VALIDATE
from organs.ingest.service import ingest_model
from organs.ingest.tools.facts import known_model
from organs.ingest.urls import Hub
from organs.registry.catalog.queries.fleet import count_unfinished, run_digest
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.fleet import claim_unit, finish_unit, postpone_unit
from organs.registry.catalog.work import RETRY_SECONDS, WorkCancelled, fail, keeping, put_back, renew, write_end
from organs.registry.digest import Digest
from organs.registry.entities.job import MeasureJobResult, ModelRequest, ValidationJobResult, ValidationRequest
from organs.registry.errors import OUTAGES, BadReply, Busy, NoSuchRun, OrganError, TooMany, Unreachable
from organs.registry.evolving.search import Evolver, work_until_done
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.quantizing.search import measure_band
from organs.registry.references import repack
from organs.registry.store.codec.planes import CODEC_VERSION
from organs.registry.validation.llama import LlamaCpp

POLL_SECONDS = 0.5
"""The time between two looks for units while others work on the last ones."""
OUTAGE_SECONDS = 600.0
"""The time for which processes of a fleet wait for a database or a scheduler that does not answer."""
REASON_MAX = 1000
TEMPORARY = (Busy, *OUTAGES, Unreachable, TooMany)
"""Errors after which the same unit may succeed later."""

_log = logging.getLogger(__name__)

Report = Callable[[], None]
"""Called often during the work; raises WorkCancelled when the work is to stop."""
Result = tuple[Mapping[str, object], int | None]
"""The result of a unit, and the bytes of its files if the plan does not know them."""
Work = Callable[[LocalRegistry, str, Report, Hub | None], Result]
"""Does the work for a source."""


class Outage:
    """Counts how long something does not answer."""

    def __init__(self) -> None:
        self._began: float | None = None

    def end(self) -> None:
        """Record that it answers."""
        self._began = None

    def go_on(self, error: OrganError) -> bool:
        """Return whether this is the first error; raise it if nothing has answered for OUTAGE_SECONDS."""
        if self._began is None:
            self._began = time.monotonic()
            return True
        if time.monotonic() - self._began > OUTAGE_SECONDS:
            raise error
        return False


@dataclass(slots=True)
class UnitWorker:
    """Does units of runs for one process, whose name is `name`. `hub` reads models at addresses."""

    registry: LocalRegistry
    name: str
    hub: Hub | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    """When it is set, the current unit returns to the queue."""
    version: str = field(default_factory=lambda: program_version())

    def check_run(self, run_id: int, digest: str) -> None:
        """Raise NoSuchRun if the run of the plan with this digest is not in the registry of this worker."""
        with self.registry.catalog.reading() as session:
            if run_digest(session, run_id) != digest:
                raise NoSuchRun(
                    f"the registry of the worker {self.name} does not have run {run_id}; the worker needs the "
                    "ORGAN_HOME, ORGAN_DATABASE_URL and ORGAN_BLOBS_URL of this command in its environment"
                )

    def work_on(self, run_id: int, number: int | None = None) -> bool:
        """Do the unit `number`, or the first one that waits; return whether there was anything to do.

        Errors of the unit are recorded, not raised. Raises errors of the database before the unit begins.
        """
        with self.registry.catalog.writing() as session:
            claim = claim_unit(session, run_id, self.name, self.version, number)
        if claim is None:
            return False
        write: Callable[[Session], bool]
        with keeping(self.registry.catalog, partial(renew, claim=claim), f"unit {claim.key[1]} keeper") as lost:

            def report() -> None:
                if self.stop.is_set() or lost.is_set():
                    raise WorkCancelled

            try:
                result, size_bytes = WORK[claim.work](self.registry, claim.source, report, self.hub)
                text = json.dumps(result, allow_nan=False)
                write = partial(finish_unit, claim=claim, result=text, size_bytes=size_bytes)
            except WorkCancelled:
                write = partial(put_back, claim=claim)
            except OrganError as error:
                if isinstance(error, TEMPORARY) and not isinstance(error, BadReply):
                    write = partial(postpone_unit, claim=claim, sentence=str(error))
                else:
                    sentence = str(error).removeprefix(f"{claim.source}: ")  # lists show the source beside the reason
                    write = partial(fail, claim=claim, sentence=sentence)
            except Exception as error:  # noqa: BLE001  # the next unit must run after any error of this one
                _log.error("unit %d of run %d broke", claim.key[1], run_id, exc_info=error)
                sentence = f"an internal error ({type(error).__name__}); the log of the worker has the details"
                write = partial(fail, claim=claim, sentence=sentence)
            write_end(self.registry.catalog, write, self.stop)
        return True

    def work_until_done(self, run_id: int) -> None:
        """Do units until none is left, or `stop` is set. Raises errors of the database that last too long."""
        outage = Outage()
        while not self.stop.is_set():
            try:
                if not self.work_on(run_id):
                    with self.registry.catalog.reading() as session:
                        if not count_unfinished(session, run_id):
                            return
                    self.stop.wait(POLL_SECONDS)
                outage.end()
            except TEMPORARY as error:
                outage.go_on(error)
                self.stop.wait(RETRY_SECONDS)


def program_version() -> str:
    """Return the versions of this program and of its codecs, as units record them."""
    try:
        number = package_version("organ-registry")
    except PackageNotFoundError:
        number = "0"
    return f"{number}, codecs {CODEC_VERSION}"


def _ingest(registry: LocalRegistry, source: str, report: Report, hub: Hub | None) -> Result:
    model = source_of(source, hub)
    if model.paths:
        with registry.catalog.reading() as session:
            if (known := known_model(session, model)) is not None:
                return {"model": known.full_name, "created": False}, None
    sizes: list[int] = []

    def record_size(file: DissectedFile, _model_id: int, _sha256: Digest) -> None:
        sizes.append(file.header.file_size_bytes)

    stored = record_size if model.remote else None
    done = ingest_model(registry, model, progress=lambda _size: report(), stored=stored)
    members = ("model", "created", "organs", "new_bytes", "known_bytes", "stored_bytes", "incomplete")
    return {name: getattr(done, name) for name in members}, sum(sizes) or done.size_bytes


def _repack(registry: LocalRegistry, names: str, report: Report, _hub: Hub | None) -> Result:
    with registry.catalog.reading() as session:
        models = [model_by_name(session, parse_model_name(name)) for name in names.split()]
        ids, size = [model.id for model in models], sum(model.size_bytes for model in models)
    done = repack(registry.catalog, registry.blobs, ids, progress=lambda _organs: report())
    members = ("organs", "repacked", "before_bytes", "after_bytes", "skipped")
    return {name: getattr(done, name) for name in members}, size


def _measure(registry: LocalRegistry, name: str, report: Report, _hub: Hub | None) -> Result:
    done = MEASURE.run(registry, ModelRequest(model=name), lambda _share, _step: report(), LOCAL)
    assert isinstance(done, MeasureJobResult)
    differences = {
        measure: None if difference is None else difference.difference
        for measure, difference in done.differences.items()
    }
    return {"model": done.model, "measured": done.measured, "differences": differences}, _size(registry, name)


def _validate(registry: LocalRegistry, name: str, report: Report, _hub: Hub | None) -> Result:
    arguments = VALIDATE.settled(registry, {"chimera": name}, LOCAL)
    assert isinstance(arguments, ValidationRequest)
    done = VALIDATE.run(registry, arguments, lambda _share, _step: report(), LOCAL)
    assert isinstance(done, ValidationJobResult)
    return {"model": done.model, "verdict": done.verdict, "reason": done.reason[:REASON_MAX]}, _size(registry, name)


def _sensitivity(registry: LocalRegistry, text: str, report: Report, _hub: Hub | None) -> Result:
    name, _, band = text.partition(" ")
    runtime = LlamaCpp(requires_sandbox=registry.settings.requires_sandbox)
    count = measure_band(registry.catalog, registry.blobs, name, band, runtime, lambda _share, _step: report())
    return {"model": name, "band": band, "measured": count}, _size(registry, name)


def _evolve(registry: LocalRegistry, source: str, report: Report, _hub: Hub | None) -> Result:
    evolution, _, slot = source.partition(" ")
    runtime = LlamaCpp(requires_sandbox=registry.settings.requires_sandbox)
    name = f"{socket.gethostname()[:64]}-{slot}"
    with Evolver(
        *(registry.catalog, registry.blobs, int(evolution), runtime, name), lambda _share, _step: report()
    ) as evolver:
        work_until_done(evolver, time.sleep)
    return {"evolution": int(evolution)}, None


def _size(registry: LocalRegistry, name: str) -> int:
    with registry.catalog.reading() as session:
        return model_by_name(session, parse_model_name(name)).size_bytes


WORK: Mapping[str, Work] = {
    "ingest": _ingest,
    "measure": _measure,
    "repack": _repack,
    "validate": _validate,
    "sensitivity": _sensitivity,
    "evolve": _evolve,
}
"""The function of each kind of work. All can be repeated: what is done already is found and not done again."""
