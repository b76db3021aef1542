"""Power cuts at every moment of the operations of a registry: each possible state of the disk is opened and checked.

There are two checks. The quick one compares, for every state, the files of the committed rows with the written bytes.
The thorough one creates the state in a folder and opens a registry on it: every committed model is assembled, verify
reads everything, the same files can be ingested again, and a sweep leaves nothing over. It is done once for states that
differ only in the bytes of files without a row, because these are never read. Of a repack it is done for some states.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from organs.ingest import pipeline
from organs.registry.assembly import place_file, plan_model
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.errors import OrganError
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName, parse_model_name
from organs.registry.store import files as store_files
from organs.registry.upkeep import sweep, verify
from tests.faults.crash_states import CrashState, Disk
from tests.faults.failing import (
    EVERYTHING,
    Crash,
    assert_comes_back,
    assert_sweeps_leave_no_rest,
    ingest_path,
    let_leases_expire,
    let_time_pass,
    litter,
    model_names,
    spoil_two,
    verify_all,
    without_syncing,
    write_model,
    write_relative,
)
from tests.faults.families import SWEEPS, repack_all
from tests.faults.hostile.harness import Arena, Case, Options, Suite
from tests.faults.journal import Acknowledged, Journal, JournalFiles, on_journal
from tests.related_models import blob_forms, family_files

MakeFiles = Callable[[Journal], JournalFiles]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The operations on a registry in `folder`/home, and the expected state after a power cut at any moment."""

    name: str
    journal: Journal
    sources: Mapping[str, Path]
    """Models by name, and their source files."""
    spoiled: frozenset[str] = frozenset()
    """Digests of blobs that were damaged on purpose, and may be faulty until they are repaired."""
    is_repacked: bool = False
    """Whether organs are stored by their difference to others, and are repacked after the power cut."""
    thorough_max: int | None = None
    """How many states are checked thoroughly at most, where this takes seconds each."""


@dataclass(slots=True)
class Findings:
    """The findings of one scenario."""

    scenario: str
    operations: int = 0
    states: int = 0
    thorough: int = 0
    violations: list[str] = field(default_factory=list)


def check(scenario: Scenario, scratch: Path, thorough_max: int | None = None) -> Findings:
    """Check every state quickly; all of them thoroughly, or `thorough_max` spread over the scenario."""
    disk = Disk(scenario.journal)
    states = list(disk.states())
    findings = Findings(scenario.name, len(scenario.journal.operations), len(states))
    needed = {key: _needed(data, scenario.spoiled) for key, data in scenario.journal.databases.items()}
    whole = _every_whole_file(scenario.journal)
    different, lossy = {}, set()
    for state in states:
        read = _what_is_read(state, needed[state.database])
        lost = [f"quick: {reason}" for reason in _lost(state, needed[state.database], whole)]
        findings.violations += lost
        different[read] = state
        lossy |= {read} if lost else set()
    chosen = list(different.values())
    thorough_max = scenario.thorough_max if thorough_max is None else thorough_max
    if thorough_max is not None and len(chosen) > thorough_max:
        # The thorough check must detect every fault that the quick one detects.
        chosen = [different[read] for read in different if read in lossy] or chosen
        places = min(thorough_max, len(chosen))
        chosen = [chosen[place * len(chosen) // places] for place in range(places)]
    for state in chosen:
        findings.thorough += 1
        findings.violations += [f"thorough: {reason}" for reason in _tried(state, disk, scenario, scratch)]
    return findings


def _every_whole_file(journal: Journal) -> dict[str, str]:
    """Return the bytes of each path at its last naming: physical names are used once."""
    whole: dict[str, str] = {}
    disk = Disk(journal)
    whole.update(disk.whole())
    for operation in journal.operations:
        disk.play(operation)
        whole.update(disk.whole())
    return whole


def _needed(database: bytes, spoiled: frozenset[str]) -> frozenset[str]:
    """Return the physical names that rows need."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(_without_wal(database))
        rows = connection.execute("SELECT file, digest FROM blobs WHERE file IS NOT NULL AND state <> 'corrupt'")
        return frozenset(file for file, digest in rows if digest not in spoiled)


def _without_wal(database: bytes) -> bytes:
    """Return the database in a form without a log file, which a database in memory cannot have."""
    return database[:18] + b"\1\1" + database[20:]


def _lost(state: CrashState, needed: frozenset[str], whole: Mapping[str, str]) -> Iterator[str]:
    digests = dict(state.files)
    for file in needed:
        path = f"blobs/{file}"
        if digests.get(path) != whole.get(path):
            yield f"{file} has a row and {'other bytes' if path in digests else 'no file'}"


def _what_is_read(state: CrashState, needed: frozenset[str]) -> tuple[object, ...]:
    files = tuple((path, key if path.removeprefix("blobs/") in needed else "") for path, key in state.files)
    return state.database, files, state.folders


def _tried(state: CrashState, disk: Disk, scenario: Scenario, scratch: Path) -> Iterator[str]:
    folder = scratch / "state"
    shutil.rmtree(folder, ignore_errors=True)
    make_state(state, disk, scenario.journal, folder)
    try:
        _try(folder, scenario)
    except (AssertionError, OrganError) as error:
        yield f"{type(error).__name__}: {str(error)[:300]}"


def make_state(state: CrashState, disk: Disk, journal: Journal, folder: Path) -> None:
    """Create the files of a state, and the database as of its last commit."""
    folder.mkdir(parents=True)
    for name in state.folders:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, key in state.files:
        (folder / name).write_bytes(disk.contents[key])
    if state.database:
        (folder / "registry.sqlite3").write_bytes(journal.databases[state.database])


def _try(folder: Path, scenario: Scenario) -> None:
    with LocalRegistry.open(folder) as opened:
        registry = without_syncing(opened)
        faulty = {fault.digest for fault in verify_all(registry).faults}
        assert faulty <= scenario.spoiled, "verify finds faults"
        if not faulty:
            _assert_models_come_back(registry, scenario)
        for name, path in scenario.sources.items():
            ingest_path(registry, path, name=ModelName("local", name))
        assert sorted(model_names(registry)) == sorted(scenario.sources), "each model once"
        _assert_models_come_back(registry, scenario)
        let_leases_expire(registry)
        if scenario.is_repacked:
            repack_all(registry)
            assert repack_all(registry).repacked == 0, "a repeated repack finds more to do"
        assert_sweeps_leave_no_rest(registry, SWEEPS)
        _assert_models_come_back(registry, scenario)


def _assert_models_come_back(registry: LocalRegistry, scenario: Scenario) -> None:
    for name in model_names(registry):
        assert_comes_back(registry, scenario.sources[name])


# Scenarios.


@contextmanager
def a_commit_for_each_blob() -> Iterator[None]:
    """Let an ingest commit after nearly every blob inside the block, as for large models."""
    before, pipeline.BATCH_BYTES = pipeline.BATCH_BYTES, 12_000
    try:
        yield
    finally:
        pipeline.BATCH_BYTES = before


@contextmanager
def small_writes() -> Iterator[None]:
    """Let files be written in many small writes inside the block, as large files are in many large ones."""
    before, store_files.BUFFER_BYTES = store_files.BUFFER_BYTES, 4 * store_files.ALIGNMENT
    try:
        yield
    finally:
        store_files.BUFFER_BYTES = before


def begun(folder: Path, make_files: MakeFiles = JournalFiles) -> tuple[LocalRegistry, LocalRegistry]:
    """Return a registry in `folder`/home, and the same with a journal that begins now."""
    plain = without_syncing(LocalRegistry.open(folder / "home"))
    journal = Journal(folder / "home", folder / "home" / "registry.sqlite3")
    return plain, on_journal(plain, make_files(journal))


def journal_of(registry: LocalRegistry) -> Journal:
    files = registry.blobs.backend.files
    assert isinstance(files, JournalFiles)
    return files.journal


def two_ingests(folder: Path, make_files: MakeFiles = JournalFiles) -> Scenario:
    """Ingest two models that share organs into a new registry without any folders."""
    sources = _two_sources(folder)
    plain, journaled = begun(folder, make_files)
    with plain, a_commit_for_each_blob():
        for name, path in sources.items():
            ingest_path(journaled, path, name=ModelName("local", name))
    return Scenario("two ingests", journal_of(journaled), sources)


def killed_and_run_again(folder: Path, dies_at: int) -> Scenario:
    """Kill an ingest, continue with another one on unsynced data, and then cut the power."""
    sources = {"first": write_model(folder / "first.gguf")}
    plain, journaled = begun(folder)
    journal = journal_of(journaled)
    with plain, a_commit_for_each_blob():
        journal.die_at(dies_at)
        try:
            ingest_path(journaled, sources["first"], name=ModelName("local", "first"))
        except Crash:
            journal.revive()
        else:
            return Scenario("", journal, sources)
        again = on_journal(plain, JournalFiles(journal))
        ingest_path(again, sources["first"], name=ModelName("local", "first"))
    return Scenario(f"killed before operation {dies_at}, run again", journal, sources)


def a_sweep(folder: Path) -> Scenario:
    """Run two sweeps over unneeded blobs, orphans and temporary files, beside a model."""
    sources = {"first": write_model(folder / "first.gguf")}
    plain = without_syncing(LocalRegistry.open(folder / "home"))
    with plain:
        ingest_path(plain, sources["first"], name=ModelName("local", "first"))
        litter(plain)
        _, journaled = begun(folder)
        sweep(journaled.catalog, journaled.blobs, dry_run=False)
        let_time_pass(journaled)
        sweep(journaled.catalog, journaled.blobs, dry_run=False)
    return Scenario("two sweeps", journal_of(journaled), sources)


def a_repair(folder: Path) -> Scenario:
    """Damage a file and remove another; verify sets both aside, the model is ingested again, a sweep follows."""
    sources = {"first": write_model(folder / "first.gguf")}
    plain = without_syncing(LocalRegistry.open(folder / "home"))
    with plain:
        ingest_path(plain, sources["first"], name=ModelName("local", "first"))
        spoiled = frozenset(spoil_two(plain))
        _, journaled = begun(folder)
        verify(journaled.catalog, journaled.blobs, read_data=EVERYTHING, repair=True)
        ingest_path(journaled, sources["first"], name=ModelName("local", "first"))
        let_time_pass(journaled)
        sweep(journaled.catalog, journaled.blobs, dry_run=False)
    return Scenario("a repair", journal_of(journaled), sources, spoiled)


def a_repack(folder: Path) -> Scenario:
    """Repack models that were ingested before their better parents."""
    sources = _family(folder, "tuned-coarse", "coarse", "tuned", "base")
    plain = without_syncing(LocalRegistry.open(folder / "home"))
    with plain:
        for name, path in sources.items():
            ingest_path(plain, path, name=ModelName("local", name))
        _, journaled = begun(folder)
        assert repack_all(journaled).repacked > 8
    return Scenario("a repack", journal_of(journaled), sources, is_repacked=True, thorough_max=60)


def an_ingest_against_parents(folder: Path) -> Scenario:
    """Ingest models whose organs are stored by their difference to those of another."""
    sources = _family(folder, "base", "tuned", "tuned-coarse")
    plain = without_syncing(LocalRegistry.open(folder / "home"))
    with plain, a_commit_for_each_blob():
        ingest_path(plain, sources["base"], name=ModelName("local", "base"))
        _, journaled = begun(folder)
        for name in ("tuned", "tuned-coarse"):
            ingest_path(journaled, sources[name], name=ModelName("local", name))
        assert blob_forms(plain)["derive", 2, True] > 0
    return Scenario("an ingest against parents", journal_of(journaled), sources, is_repacked=True, thorough_max=60)


def _family(folder: Path, *names: str) -> dict[str, Path]:
    sources = {}
    for name, data in family_files(names).items():
        sources[name] = folder / f"{name}.gguf"
        sources[name].write_bytes(data)
    return sources


def _two_sources(folder: Path) -> dict[str, Path]:
    first = write_model(folder / "first.gguf")
    return {"first": first, "second": write_relative(folder / "second.gguf", first, 1, 4096)}


SCENARIOS: dict[str, Callable[[Path], Scenario]] = {
    "two": two_ingests,
    "sweep": a_sweep,
    "repair": a_repair,
    "repack": a_repack,
    "parents": an_ingest_against_parents,
}


def placed_file(folder: Path, make_files: MakeFiles = JournalFiles) -> tuple[Journal, bytes, bytes]:
    """Assemble a file over another one; return its journal, the old bytes and the new bytes."""
    source = write_model(folder / "first.gguf")
    (folder / "out").mkdir()
    (folder / "out" / "first.gguf").write_bytes(b"what was here before")
    with without_syncing(LocalRegistry.open(folder / "home")) as registry:
        ingest_path(registry, source, name=ModelName("local", "first"))
        with registry.catalog.reading() as session:
            (plan,) = plan_model(session, model_by_name(session, parse_model_name("local/first")))
        journal = Journal(folder / "out")
        with small_writes():
            place_file(registry.blobs, plan, folder / "out" / "first.gguf", files=make_files(journal))
        journal.note(Acknowledged())
    return journal, b"what was here before", source.read_bytes()


def check_placed(journal: Journal, before: bytes, after: bytes) -> Findings:
    """Check that the file is the complete old or new one, and the new one after success was reported."""
    disk = Disk(journal)
    findings = Findings("a file placed over another", len(journal.operations))
    for state in disk.states():
        findings.states += 1
        key = dict(state.files).get("first.gguf", "")
        if disk.contents.get(key) not in ((after,) if state.acknowledged else (before, after)):
            findings.violations.append("acknowledged and not there" if state.acknowledged else "neither old nor new")
    return findings


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[Iterator[Case]]:
    """Check every state of every scenario."""

    def act(number: int, make: Callable[[Path], Findings | None]) -> str:
        folder = arena.folder / str(number)
        folder.mkdir()
        found = make(folder)
        shutil.rmtree(folder)
        if found is None:
            return "ended before"
        figures = f"{found.operations} operations, {found.states} states, {found.thorough} of them tried"
        arena.report.figures.append(f"{found.scenario}: {figures}")
        assert not found.violations, f"{len(found.violations)} violations: {found.violations[:5]}"
        return "sound"

    def scenario(make: Callable[[Path], Scenario], folder: Path) -> Findings | None:
        made = make(folder)
        return check(made, folder, options.states or None) if made.name else None

    def cases() -> Iterator[Case]:
        for name, make in SCENARIOS.items():
            yield Case("power cuts", name, partial(act, len(arena.report.figures), partial(scenario, make)))
        yield Case("power cuts", "a file placed", lambda: act(-1, lambda folder: check_placed(*placed_file(folder))))
        for dies_at in count():
            make = partial(killed_and_run_again, dies_at=dies_at)
            yield Case("power cuts", f"killed before {dies_at}", partial(act, dies_at, partial(scenario, make)))
            if ("power cuts", "ended before") in arena.report.outcomes:
                return

    yield cases()


SUITE = Suite(opened, {"states": 0})
"""With `states`, at most so many states of each scenario are checked thoroughly."""
