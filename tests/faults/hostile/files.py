"""Three hundred hostile files and organ directories, by command line and by upload: `make hostile-files`.

Each file of `file_cases` is ingested by its own process and pushed to a running server. Every process must end within
SECONDS_MAX, stay below MEMORY_MAX_BYTES, print no traceback, and exit with 0, or with the status of an error and a
message. Afterwards a valid model must still be accepted, and `organ verify --read-data` must find no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from organs.registry.errors import ERRORS
from organs.registry.local import LocalRegistry
from organs.registry.upload_limits import OPEN_SUBMISSIONS_MAX
from tests.faults.hostile.file_cases import KINDS, Write
from tests.faults.hostile.harness import Arena, Case, Ended, Options, Suite
from tests.small_models import small_model
from tests.web.accounts import new_token

SECONDS_MAX = 10.0
MEMORY_MAX_BYTES = 600 * 1000**2
STATUSES = {0, *(kind.exit_code for kind in ERRORS.values())}
AFTERWARDS = (("verify", "--read-data"), ("models",), ("search", "sort:-theta"), ("report",))

Act = Callable[[Path, Path], Ended]
"""Runs a command on a file; the folder is its working directory."""


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[list[Case]]:
    """Open a registry for each way; afterwards check that it is sound and takes a valid model."""
    chosen = [(kind, *case) for kind, make in KINDS.items() if options.kind in ("", kind) for case in make()]
    with ExitStack() as stack:
        ways, cases = [], []
        for way, prepare in (("command", by_command), ("upload", by_upload)):
            if options.way in ("", way):
                (arena.folder / way).mkdir()
                ways.append(stack.enter_context(Arena(arena.folder / way, arena.report)))
                run = Run(ways[-1], prepare(ways[-1], len(chosen)))
                cases += [Case(f"{way}, {kind}", name, partial(run.act, name, write)) for kind, name, write in chosen]
                stack.callback(run.note)
        yield cases
        for one in ways:
            good = one.folder / "good.gguf"
            good.write_bytes(small_model("Good", seed=1))
            for words in (("ingest", good), *AFTERWARDS):
                ended = one.run(one.organ(*words))
                faults = [*faults_of(ended), *(["failed"] if ended.status else [])]
                arena.report.faults += [f"afterwards, organ {words[0]}: {fault}" for fault in faults]


def by_command(arena: Arena, _number: int) -> Act:
    """Return `organ ingest` in one common registry."""
    LocalRegistry.open(arena.home).close()
    return lambda path, place: arena.run(arena.organ("ingest", path), folder=place)


def by_upload(arena: Arena, number: int) -> Act:
    """Return `organ push` to a server, one after another, whose processes count for the memory."""
    with LocalRegistry.open(arena.home) as registry:  # a submission with warnings stays open, and counts for its owner
        owners = range(0, number, OPEN_SUBMISSIONS_MAX)
        tokens = [new_token(registry, f"eve{owner}") for owner in owners for _ in range(OPEN_SUBMISSIONS_MAX)]
    live, turn = arena.serve("--accounts", watch_seconds=0.02), Lock()

    def push(path: Path, place: Path) -> Ended:
        with turn:
            environment = arena.environment(ORGAN_REGISTRY=live.address, ORGAN_TOKEN=tokens.pop())
            command = arena.client("push", path, "--license", "mit")
            arena.peaks.clear()
            ended = arena.run(command, environment, place)
            return replace(ended, peak_bytes=max(ended.peak_bytes, *arena.peaks.values()))

    return push


@dataclass(slots=True)
class Run:
    """The cases of one way, and what took the most."""

    arena: Arena
    command: Act
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")

    def act(self, name: str, write: Write) -> str:
        """Write a case into its own folder, run the command on it, remove it."""
        with TemporaryDirectory(dir=self.arena.folder) as folder:
            write(Path(folder, "case"))
            (path,) = Path(folder).iterdir()
            place = Path(folder, "work")
            place.mkdir()
            ended = self.command(path, place)
        self.slowest = max(self.slowest, (ended.seconds, name))
        self.largest = max(self.largest, (ended.peak_bytes, name))
        faults = faults_of(ended)
        assert not faults, "; ".join(faults)
        return "accepted" if ended.status == 0 else "refused"

    def note(self) -> None:
        figures = f"slowest {self.slowest[0]:.1f} s ({self.slowest[1]}), largest {self.largest[0] / 1e6:.0f} MB"
        self.arena.report.figures.append(f"{self.arena.folder.name}: {figures} ({self.largest[1]})")


def faults_of(ended: Ended) -> list[str]:
    """Return what is wrong with the end of a command on a hostile file."""
    faults = {
        f"traceback: {ended.output[-600:]}": "Traceback" in ended.output,
        f"status {ended.status}: {ended.output[-300:]}": ended.status not in STATUSES,
        "failed without a sentence": ended.status != 0 and not ended.output.strip(),
        f"took {ended.seconds:.1f} s": ended.seconds > SECONDS_MAX,
        f"took {ended.peak_bytes / 1e6:.0f} MB": ended.peak_bytes > MEMORY_MAX_BYTES,
    }
    return [fault for fault, is_so in faults.items() if is_so]


SUITE = Suite(opened, {"kind": "", "way": ""}, lanes=2)
