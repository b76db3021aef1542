"""Measure the seconds and the memory of ingesting and assembling models, beside other programs.

python -m bench.ingest [--model FILE | --small] [--runs 5] [--beside CHECKOUT]
python -m bench.ingest --sizes [tiny small large] [--runs 5] [--beside CHECKOUT]

Without `--sizes`: one BF16 model. In alternation, each in its own process: `hashlib.sha256` over the file, `organ
ingest` into a new registry, `borg create` (zstd,3) and `restic backup` into new repositories, `organ assemble`, `cp`.
Programs that are not installed are left out. With `--beside`, the code in another checkout of the project does the same
in the same run. Quote medians and their ratios: the speed of one machine at one moment says little.

With `--sizes`: a table of ingests only, of a new model, of a fine-tune of a stored one, and of its quantisation to
Q8_0, in three sizes (0.27 GB in F16, 1.19 and 2.45 GB in BF16). The base of a relative is stored before each run; its
stored size is what the run adds. The largest size needs 20 GB of disk, the others half of this.

Each checkout ingests a small model first, so that its modules are compiled, as those of an installed program are.

The file is read once before each run, so that every program finds it in the page cache. As much memory as a run writes
is touched and released first: on a virtual machine the first touch of a page can cost more than writing it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from bench.generated import LARGE, MEDIUM, SMALL, TINY, Architecture, write_model, write_relative

SHA256 = (
    "import hashlib, sys\n"
    "digest = hashlib.sha256()\n"
    "with open(sys.argv[1], 'rb') as file:\n"
    "    while data := file.read(1 << 22):\n"
    "        digest.update(data)\n"
)
READ_BYTES = 1 << 24
SIZES = {"tiny": (TINY, "F16"), "small": (SMALL, "BF16"), "large": (LARGE, "BF16")}
ROOT = Path(__file__).parents[1]
FIRST = ROOT / "examples" / "zoo" / "Zoo-A-2M-Code-v1.0-F16.gguf"
"""The model that compiles the modules of a checkout."""


@dataclass(slots=True)
class Figures:
    """The figures of the runs of one contender."""

    wall_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    stored_bytes: int | None = None
    """The bytes that the run added to the store."""

    @property
    def wall(self) -> float:
        return statistics.median(self.wall_seconds)


@dataclass(frozen=True, slots=True)
class Contender:
    """A command, its preparation before each run, and the folder in which it stores."""

    name: str
    prepare: Callable[[], None]
    command: list[str]
    environment: dict[str, str]
    store: Path | None = None


def main() -> None:
    """Run everything in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a BF16 GGUF; by default one is generated")
    parser.add_argument("--small", action="store_true", help="generate 1.19 GB instead of 3.44 GB")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, help="the table of new models and relatives, in all sizes")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--beside", type=Path, help="another checkout, for example of an older version")
    parser.add_argument("--folder", type=Path, help="where to work; by default a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="organ-bench-") as name:
        folder = Path(name)
        if arguments.sizes is not None:
            print(f"{'':32}  wall s     min     max   cpu s  cpu s/GB  peak MB  stored")
            for size in arguments.sizes or SIZES:
                compare_sizes(folder, size, arguments.runs, arguments.beside)
            return
        model = arguments.model or generate(folder, SMALL if arguments.small else MEDIUM)
        contenders = available(folder, model)
        if arguments.beside:
            contenders += organ(folder / "beside", model, arguments.beside)
        figures = {contender.name: Figures() for contender in contenders}
        for number in range(arguments.runs):
            for contender in contenders:
                measure(contender, model, figures[contender.name])
            print(f"run {number + 1} of {arguments.runs} done", file=sys.stderr, flush=True)
        report(model, figures)
        stages(folder)


def compare_sizes(folder: Path, size: str, runs: int, beside: Path | None) -> None:
    """Print the rows of one size; only the store of the program that runs is on the disk."""
    base, relative = generate(folder, *SIZES[size]), folder / "relative.gguf"
    for kind, dtype in (("new", None), ("fine-tune", None), ("Q8_0", "Q8_0")):
        if kind != "new":
            in_process(write_relative, base, relative, dtype)
        model, stored = (base, None) if kind == "new" else (relative, base)
        contenders = [organ(folder, model, None, stored)[0]]
        if beside is not None:
            contenders += organ(folder / "beside", model, beside, stored)[:1]
        contenders += peers(folder, model, stored)
        figures = {contender.name: Figures() for contender in contenders}
        for _ in range(runs):
            for contender in contenders:
                measure(contender, model, figures[contender.name])
                assert contender.store is not None
                shutil.rmtree(contender.store)
        gigabytes = model.stat().st_size / 1e9
        print(f"{kind}, {gigabytes:.2f} GB")
        for name, own in figures.items():
            assert own.stored_bytes is not None
            times = f"{own.wall:7.2f} {min(own.wall_seconds):7.2f} {max(own.wall_seconds):7.2f}"
            cpu, peak = statistics.median(own.cpu_seconds), max(own.peak_bytes) / 1e6
            rest = f"{cpu:7.2f} {cpu / gigabytes:9.2f} {peak:8.0f} {own.stored_bytes / gigabytes / 1e9:7.4f}"
            print(f"  {name:30} {times} {rest}", flush=True)
    base.unlink()
    relative.unlink()


def generate(folder: Path, shape: Architecture, dtype: str = "BF16") -> Path:
    """Write a model with weight-like statistics."""
    path = folder / "generated.gguf"
    print(f"generating {path}", file=sys.stderr, flush=True)
    in_process(write_model, path, shape, 0, dtype)
    return path


def in_process(function: Callable[..., object], *arguments: object) -> None:
    """Call `function` in another process: the peak memory of a child is never reported below that of its parent."""
    process = get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{function.__name__} failed")


def available(folder: Path, model: Path) -> list[Contender]:
    """Return the contenders installed on this machine, in the order of their runs."""
    copy = folder / "copy.gguf"
    return [
        Contender("sha256", nothing, [sys.executable, "-c", SHA256, str(model)], {}),
        *organ(folder, model),
        Contender("cp", lambda: copy.unlink(missing_ok=True), ["cp", str(model), str(copy)], {}),
        *peers(folder, model),
    ]


def peers(folder: Path, model: Path, base: Path | None = None) -> list[Contender]:
    """Return the other programs that store models and are installed; with `base`, they have stored it before."""
    found = {"borg": borg, "restic": restic}
    return [contender(folder, model, base) for name, contender in found.items() if shutil.which(name)]


def organ(folder: Path, model: Path, checkout: Path | None = None, base: Path | None = None) -> list[Contender]:
    """Return the ingest and the assembly by this code, or by that of another checkout."""
    home, copy, version = folder / "registry", folder / "copy.gguf", f" {checkout.name}" if checkout else ""
    command = [sys.executable, "-m", "organs.cli", "--home", str(home)]
    ingest = [*command, "ingest", str(model), "--name", "bench/model", "--json"]
    assemble = [*command, "assemble", "bench/model", "-o", str(copy), "--quiet"]
    environment = {"PYTHONPATH": str((checkout or ROOT) / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    folder.mkdir(exist_ok=True)
    prepared(home, [[*command, "ingest", str(FIRST)]], environment)()  # which compiles the modules
    first = [*command, "ingest", str(base), "--name", "bench/base"] if base else [*command, "models"]
    return [
        Contender(f"organ ingest{version}", prepared(home, [first], environment), ingest, environment, home),
        Contender(f"organ assemble{version}", lambda: copy.unlink(missing_ok=True), assemble, environment),
    ]


def borg(folder: Path, model: Path, base: Path | None = None) -> Contender:
    """Return Borg with `zstd,3`, without encryption."""
    state = folder / "borg"
    repository = state / "repository"
    environment = {"BORG_BASE_DIR": str(state / "home"), "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}
    create = ["borg", "create", "--compression", "zstd,3"]
    first = [["borg", "init", "-e", "none", str(repository)]]
    if base is not None:
        first.append([*create, f"{repository}::base", str(base)])
    command = [*create, f"{repository}::one", str(model)]
    return Contender("borg create", prepared(state, first, environment), command, environment, repository)


def restic(folder: Path, model: Path, base: Path | None = None) -> Contender:
    """Return Restic with its defaults."""
    state = folder / "restic"
    repository = state / "repository"
    environment = {"RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": str(state / "cache")}
    backup = ["restic", "backup", "-r", str(repository)]
    first = [["restic", "init", "-r", str(repository)]]
    if base is not None:
        first.append([*backup, str(base)])
    command = [*backup, str(model)]
    return Contender("restic backup", prepared(state, first, environment), command, environment, repository)


def measure(contender: Contender, model: Path, figures: Figures) -> None:
    """Do one run, after the same preparation for all."""
    contender.prepare()
    before_bytes = 0 if contender.store is None else folder_bytes(contender.store)
    os.sync()
    touch_memory(model)
    environment = os.environ | contender.environment
    with tempfile.TemporaryFile() as output:
        begun = time.perf_counter()
        process = subprocess.Popen(contender.command, env=environment, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        figures.wall_seconds.append(time.perf_counter() - begun)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        log = output.read()
    if process.returncode:
        raise SystemExit(f"{contender.name} failed: {log.decode()[-500:]}")
    figures.cpu_seconds.append(usage.ru_utime + usage.ru_stime)
    figures.peak_bytes.append(usage.ru_maxrss * 1024)
    if contender.name == "organ ingest" and contender.store is not None:
        contender.store.joinpath("report.json").write_bytes(log)
    if contender.store is not None:
        figures.stored_bytes = folder_bytes(contender.store) - before_bytes


def touch_memory(model: Path) -> None:
    """Load the model into the page cache, and free pages that have been touched."""
    with model.open("rb") as file:
        while file.read(READ_BYTES):
            pass
    with tempfile.TemporaryFile(dir=model.parent) as scratch:
        block = bytes(READ_BYTES)
        for _ in range(model.stat().st_size // READ_BYTES + 1):
            scratch.write(block)


def prepared(folder: Path, commands: list[list[str]], environment: dict[str, str]) -> Callable[[], None]:
    """Return a function that leaves `folder` as `commands` do, and in the page cache none of its files.

    The commands run once; their result is copied after that.
    """
    first = folder.with_name(f"{folder.name}-first")
    shutil.rmtree(first, ignore_errors=True)

    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        if not first.exists():
            folder.mkdir()
            for command in commands:
                subprocess.run(command, env=os.environ | environment, check=True, capture_output=True)
            shutil.copytree(folder, first)
        else:
            shutil.copytree(first, folder)
        for path in filter(Path.is_file, folder.rglob("*")):
            with path.open("rb") as file:
                os.fsync(file)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    return prepare


def nothing() -> None:
    """Prepare nothing."""


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def report(model: Path, figures: dict[str, Figures]) -> None:
    """Print the table: wall seconds, ratio to sha256, processor seconds, stored share."""
    size = model.stat().st_size
    base = figures["sha256"].wall
    print(f"{size / 1e9:.2f} GB")
    print(f"{'':22}  wall s     min     max  x sha256   cpu s   MB/s  peak MB  stored")
    for name, own in figures.items():
        stored = "" if own.stored_bytes is None else f"{own.stored_bytes / size:.4f}"
        times = f"{own.wall:7.2f} {min(own.wall_seconds):7.2f} {max(own.wall_seconds):7.2f} {own.wall / base:9.2f}"
        cpu, peak = statistics.median(own.cpu_seconds), max(own.peak_bytes) / 1e6
        print(f"{name:22} {times} {cpu:7.2f} {size / own.wall / 1e6:6.0f} {peak:8.0f} {stored:>7}")
    if "cp" in figures:
        print(f"assemble / cp: {figures['organ assemble'].wall / figures['cp'].wall:.2f}")
    for peer in ("borg create", "restic backup"):
        if peer in figures:
            print(f"{peer} / organ ingest: {figures[peer].wall / figures['organ ingest'].wall:.2f}")


def stages(folder: Path) -> None:
    """Print the time of the stages of the last ingest: seconds of threads, which run in parallel."""
    found = json.loads((folder / "registry" / "report.json").read_text())
    print("\nlast ingest, seconds of threads by stage (MB/s of one thread)")
    for name, stage in found["stages"].items():
        print(f"  {name:14} {stage['seconds']:7.2f} {stage.get('mb_per_second', ''):>8}")


if __name__ == "__main__":
    main()
