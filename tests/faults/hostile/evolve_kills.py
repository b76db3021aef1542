"""Processes that share evolutions, and are killed at random moments, the one that makes the result too.

    python -m tests.faults.hostile evolve-kills                      # 20 evolutions, on SQLite that is locked at times
    python -m tests.faults.hostile evolve-kills --postgres           # on PostgreSQL, whose connections are cut at times
    python -m tests.faults.hostile evolve-kills --real --rounds 1    # `organ evolve`, with llama.cpp

A loaded process forks children, which work until SIGKILL; without `--real`, a runtime that scores files by their digest
replaces llama.cpp, and leases are short. The database writes down each change of a trial, and each child what it was
told to be recorded. At the end of an evolution, its trials have the numbers from 1 on; each one that is done has one
result, by the process that held it, which never changes; what was recorded is there; and the winner is made once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import or_, select, text

from organs.registry.catalog import engine, work
from organs.registry.catalog.queries.evolutions import trials_of
from organs.registry.catalog.tables import ModelRow
from organs.registry.errors import OUTAGES, Busy, OrganError
from organs.registry.evolving import search
from organs.registry.evolving.proposals import check_extra
from organs.registry.evolving.search import Evolver, begin_evolution, chosen_texts, evolve, work_until_done
from organs.registry.evolving.space import space_of_values
from organs.registry.local import LocalRegistry
from organs.registry.settings import DATABASE_VARIABLE, HOME_VARIABLE, Settings
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.runtime import RuntimeReading, Score, ScoringRequest, Window
from tests import postgres
from tests.faults.hostile.harness import Arena, Case, Options, Suite
from tests.registry_templates import ZOO_FILES
from tests.small_models import ingest_file

MODELS = ("Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16", "Zoo-A-2M-Code-LoRA-v1.0-F32")
ROLES = ("evolve", "evolve", "work", "work")
"""What the children do: all that `organ evolve` does, or what the units of a fleet do."""
LEASE, RENEW_SECONDS = timedelta(seconds=1.5), 0.3
PAUSE_SECONDS = (0.3, 2.5)
"""The time between two attacks."""
REAL_PAUSE_SECONDS = (2.0, 12.0)
CALM_SECONDS = 20.0
"""After so many seconds of an evolution attacks are half as frequent, so that it ends on a slow machine too."""
LOCKED_SECONDS = 0.4
TIMEOUT_SECONDS = 1800.0
TOKENS = 127
TABLE = """CREATE TABLE evolve_journal
(id {serial} PRIMARY KEY, evolution INT, number INT, old TEXT, new TEXT, holder TEXT, result TEXT)"""
INSERT = """INSERT INTO evolve_journal (evolution, number, old, new, holder, result)
VALUES (old.evolution_id, old.number, old.state, new.state, coalesce(old.holder, new.holder), new.result);"""
TRIGGER = "CREATE TRIGGER evolve_changes AFTER UPDATE ON evolution_trials"
JOURNAL = {
    "sqlite": (TABLE.format(serial="INTEGER"), f"{TRIGGER} WHEN old.state <> new.state BEGIN {INSERT} END"),
    "postgresql": (
        TABLE.format(serial="SERIAL"),
        f"CREATE FUNCTION evolve_change() RETURNS trigger AS $$ BEGIN {INSERT} RETURN new; END $$ LANGUAGE plpgsql",
        f"{TRIGGER} FOR EACH ROW WHEN (old.state <> new.state) EXECUTE FUNCTION evolve_change()",
    ),
}
"""The statements of a table that has each change of the state of a trial."""


class DigestRuntime(LlamaCpp):
    """A runtime without a model: each file has differences from all others that follow from its bytes."""

    @property
    def identity(self) -> str:
        return "digests, 1"

    @property
    def has_references(self) -> bool:
        return False

    def read(self, request: ScoringRequest, say: Any, is_enough: Any = None) -> RuntimeReading:
        seed = sha256(request.model.read_bytes()).hexdigest()
        level = 3.0 + random.Random(seed).uniform(-0.4, 0.2)
        scores: list[Score] = []
        for number, (own, ranks) in enumerate(zip(request.texts, request.ranks, strict=True)):
            windows: list[Window] = []
            scores.append(Score(own.name, (), 24, 24 * TOKENS))
            for rank in ranks:
                say(f"window {rank}", rank)
                if rank < 24:
                    noise = random.Random(f"{seed} {number} {rank}").gauss(0.0, 0.01)
                    windows.append(Window(TOKENS * (level + noise), TOKENS, f"{number} {rank}"))
                scores[-1] = Score(own.name, tuple(windows), 24, 24 * TOKENS)
                if is_enough is not None and is_enough(tuple(scores)):
                    return RuntimeReading(None, tuple(scores))
        return RuntimeReading(None, tuple(scores), "words" if request.writes else None)


@dataclass(slots=True)
class Attack:
    """The children of one evolution after the other, and what was done to them."""

    arena: Arena
    options: Options
    url: str | None
    """The database; None: SQLite in the home."""
    chance: random.Random = field(init=False)
    done: Counter[str] = field(default_factory=Counter)
    begun: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.options.seed)

    @property
    def log(self) -> Path:
        return self.arena.folder / "recorded"

    def open(self) -> LocalRegistry:
        """Open the registry; never in the parent while a child is forked."""
        environment = {**os.environ, HOME_VARIABLE: str(self.arena.home)}
        environment |= {} if self.url is None else {DATABASE_VARIABLE: self.url}
        return LocalRegistry.from_settings(Settings.from_environment(environment))

    @property
    def runtime(self) -> LlamaCpp:
        return LlamaCpp() if self.options.real else DigestRuntime()

    # What children do.

    def fill(self) -> None:
        with self.open() as registry:
            for path in ZOO_FILES:
                if path.stem in MODELS:
                    ingest_file(registry, path)
            with registry.catalog.writing() as session:
                for statement in JOURNAL[session.get_bind().dialect.name]:
                    session.execute(text(statement))

    def begin(self) -> None:
        """Begin an evolution, every second one with a name."""
        base, code, lora = MODELS
        values: dict[str, object] = {"base": base, "donors": [code, lora], "texts": ["python", "documentation"]}
        values |= {
            "blends": [{"weight": [0, 1.2], "depths": 2}],
            "adapters": [{"from": lora}],
            "limits": {"python": 50},
        }
        round_number = len(self.begun)
        values |= {"trials": self.options.trials, "seed": self.options.seed + round_number}
        values |= {"name": f"kills/best-{round_number}"} if round_number % 2 else {}
        with self.open() as registry:
            found = chosen_texts(space_of_values(values), Path())
            number = begin_evolution(registry.catalog, registry.blobs, *found, self.runtime)
            (self.arena.folder / "number").write_text(str(number))

    def work(self, role: str, number: int) -> None:
        """Do what `organ evolve` does, or a worker, and write down which results were recorded."""
        write_end = search.write_end

        def recording(catalog: Any, write: Any, *rest: Any) -> bool:
            is_recorded = write_end(catalog, write, *rest)
            if is_recorded and write.func is work.finish:
                line = json.dumps([number, write.keywords["claim"].number, write.keywords["claim"].holder])
                with self.log.open("a") as log:
                    log.write(line + "\n")
            return is_recorded

        search.write_end = recording
        with self.open() as registry:
            try:
                if role == "evolve":
                    evolve(registry.catalog, registry.blobs, number, self.runtime)
                else:
                    name = f"{role} {os.getpid()}"
                    with Evolver(registry.catalog, registry.blobs, number, self.runtime, name) as evolver:
                        work_until_done(evolver, time.sleep)
            except (*OUTAGES, Busy) as error:
                print(f"{role}: {type(error).__name__}: {error}", flush=True)
                os._exit(6)

    def lock(self) -> None:
        """Hold the lock of writers, longer than others wait for it."""
        with self.open() as registry, suppress(OrganError), registry.catalog.writing() as session:
            session.connection()
            time.sleep(LOCKED_SECONDS)

    def cut(self) -> None:
        """End the connections of all others to the database."""
        with self.open() as registry, suppress(OrganError), registry.catalog.writing() as session:
            own = "pid <> pg_backend_pid() AND datname = current_database()"
            session.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {own}"))

    # The parent.

    def fork(self, act: Callable[..., None], *arguments: object) -> int:
        child = os.fork()
        if child:
            return child
        status = 1
        try:
            output = os.open(self.arena.folder / "children.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            act(*arguments)
            status = 0
        except BaseException:  # after any exception, the child must not continue as the parent
            traceback.print_exc()
            raise
        finally:
            os._exit(status)

    def succeeds(self, act: Callable[..., None], *arguments: object) -> None:
        _, status = os.waitpid(self.fork(act, *arguments), 0)
        assert status == 0, (self.arena.folder / "children.log").read_text(errors="replace")[-4000:]

    def round(self) -> str:
        """Begin an evolution, and attack it until it is over."""
        self.succeeds(self.begin)
        number = int((self.arena.folder / "number").read_text())
        self.begun.append(number)
        children = dict.fromkeys(range(len(ROLES)), 0)
        begun, is_over = time.monotonic(), False
        pause = REAL_PAUSE_SECONDS if self.options.real else PAUSE_SECONDS
        try:
            while not is_over:
                age = time.monotonic() - begun
                assert age < TIMEOUT_SECONDS, "the evolution hangs"
                for place, child in children.items():
                    if child == 0:
                        children[place] = self.start(ROLES[place], number)
                time.sleep(self.chance.uniform(*pause) * (1.0 + age / CALM_SECONDS))
                is_over = self.look(children)
                if not is_over:
                    self.attack(children)
        finally:
            for child in children.values():
                if child:
                    self.kill(child)
        self.succeeds(self.check, number)
        return "over"

    def start(self, role: str, number: int) -> int:
        if not self.options.real:
            return self.fork(self.work, role, number)
        words = ["evolve", str(number)] + ([] if role == "evolve" else ["--workers", "2"])
        more = {"TMPDIR": str(self.arena.folder / "tmp"), HOME_VARIABLE: str(self.arena.home)}
        more |= {} if self.url is None else {DATABASE_VARIABLE: self.url}
        environment = self.arena.environment(**more)
        return self.arena.start(self.arena.client(*words), environment, self.arena.folder / "children.log").pid

    def look(self, children: dict[int, int]) -> bool:
        """Return whether the evolution is over; children that have ended are marked by 0."""
        for place, child in children.items():
            ended, status = os.waitpid(child, os.WNOHANG) if child else (0, 0)
            if not ended:
                continue
            children[place] = 0
            code = os.waitstatus_to_exitcode(status)
            if code == 0 and (ROLES[place] == "evolve" or self.options.real):
                return True
            self.done["ended without work" if code == 0 else f"ended with {code}"] += 1
            log = (self.arena.folder / "children.log").read_text(errors="replace")
            assert code in (0, 6), f"a child failed by itself, {code}: {log[-4000:]}"
        return False

    def attack(self, children: dict[int, int]) -> None:
        what = self.chance.choice(("kill", "kill", "kill", "kill all", "database", "stop"))
        alive = [place for place, child in children.items() if child]
        if what == "database":
            self.done["connections cut" if self.url else "database locked"] += 1
            self.succeeds(self.cut if self.url else self.lock)
        elif what == "stop" and alive and not self.options.real:  # a laptop that sleeps until its leases have expired
            victim = children[self.chance.choice(alive)]
            os.kill(victim, signal.SIGSTOP)
            time.sleep(LEASE.total_seconds() * 1.2)
            os.kill(victim, signal.SIGCONT)
            self.done["stopped for a while"] += 1
        else:
            for place in alive if what == "kill all" else [self.chance.choice(alive)] if alive else []:
                self.kill(children[place])
                children[place] = 0
                self.done["kills"] += 1

    def kill(self, child: int) -> None:
        """Send SIGKILL to a process and its descendants."""
        with suppress(psutil.NoSuchProcess):
            for one in [psutil.Process(child), *psutil.Process(child).children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        with suppress(ChildProcessError):
            os.waitpid(child, 0)

    def check(self, number: int) -> None:
        """Check the trials of an evolution that is over, and write its figures."""
        with self.open() as registry:
            found = registry.evolution(number)
            with registry.catalog.reading() as session:
                rows = trials_of(session, number)
                statement = text("SELECT * FROM evolve_journal WHERE evolution = :number ORDER BY id")
                changes = session.execute(statement, {"number": number}).all()
                own = (f"best-{self.begun.index(number)}", f"%-evolved-{number}")
                names = list(session.scalars(select(ModelRow.name).where(or_(*map(ModelRow.name.like, own)))))
        assert found.state == "finished", (found.state, found.note)
        assert [row.number for row in rows] == list(range(1, len(rows) + 1))
        roles = [row.role for row in rows]
        assert sum(role in ("start", "proposed") for role in roles) == self.options.trials
        order = {"start": 0, "proposed": 0, "check": 1, "without": 2}
        assert roles == sorted(roles, key=lambda role: order[role]), roles
        checked = [row.of_number for row in rows if row.role == "check"]
        omitted = [row.choices for row in rows if row.role == "without"]
        assert len(set(checked)) == len(checked), "each trial is checked once"
        assert len(set(omitted)) == len(omitted), "each part is left out once"
        assert {row.state for row in rows} <= {"done", "set_aside"}
        ends = {row.number: [one for one in changes if one.number == row.number and one.new == "done"] for row in rows}
        for row in rows:
            assert (row.result is not None) == (row.state == "done"), row.number
            assert row.state != "set_aside" or row.deaths == 3, row.number
            assert len(ends[row.number]) == (row.state == "done"), f"trial {row.number} ended several times"
        last = {}
        for change in changes:
            assert last.get(change.number) != "done", f"trial {change.number} was changed after its end"
            last[change.number] = change.new
            assert change.new != "done" or change.old == "running"
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            evolution, trial, holder = json.loads(line)
            if evolution == number:
                (end,) = ends[trial]
                row = rows[trial - 1]
                assert (end.holder, end.result) == (holder, row.result), f"the result of trial {trial} is another"
                assert row.state == "done"
        assert len(names) == (found.winner is not None), names
        assert (found.winner is None) == (found.verdict is None)
        trials = Counter(row.state for row in rows)
        figures = {"trials": len(rows), **trials, "attempts": sum(row.attempts for row in rows)}
        figures |= {"deaths": sum(row.deaths for row in rows), "winners": len(names)}
        with (self.arena.folder / "figures").open("a") as file:
            file.write(json.dumps(figures) + "\n")

    def figures(self) -> Iterator[str]:
        """Yield all figures, in words."""
        total = Counter[str]()
        for line in (self.arena.folder / "figures").read_text().splitlines():
            total.update(json.loads(line))
        yield f"{len(self.begun)} evolutions: " + ", ".join(f"{count} {name}" for name, count in total.items())
        yield ", ".join(f"{count} {name}" for name, count in sorted(self.done.items()))
        left = [path for path in (self.arena.folder / "tmp").iterdir() if path.name.startswith("organ-")]
        yield f"{len(left)} folders of killed trials are left in the temporary folder"


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[Iterator[Case]]:
    """Fill a registry, and let leases be short."""
    check_extra()
    import optuna  # noqa: F401  # once, for all children

    (arena.folder / "tmp").mkdir()
    with ExitStack() as stack:
        url = stack.enter_context(postgres.temporary_server()) if options.postgres else None
        tempfile.tempdir = str(arena.folder / "tmp")
        if not options.real:
            work.LEASE, work.RENEW_SECONDS, work.RETRY_SECONDS = LEASE, RENEW_SECONDS, 0.1
            search.OUTAGE_DELAY, search.WAIT_SECONDS, search.VERDICT_SECONDS = timedelta(seconds=0.2), 0.1, 1.0
            engine.BUSY_TIMEOUT_MS = 250
        attack = Attack(arena, options, url)
        attack.succeeds(attack.fill)

        def cases() -> Iterator[Case]:
            for number in range(options.rounds):
                if arena.report.faults:
                    return
                yield Case("evolutions", str(number), attack.round)

        yield cases()
        arena.report.figures += attack.figures()


SUITE = Suite(opened, {"rounds": 20, "trials": 12, "seed": 1, "postgres": False, "real": False})
"""`rounds` is the number of evolutions, each of so many `trials`."""
