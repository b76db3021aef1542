"""Measure the seconds and the memory of ingesting and assembling a BF16 model, beside other programs.

python -m bench.ingest [--model FILE | --small] [--runs 5] [--beside CHECKOUT]

In alternation, each in its own process: `hashlib.sha256` over the file, `organ ingest` into a new registry, `borg
create` (zstd,3) and `restic backup` into new repositories, `organ assemble`, `cp`. Programs that are not installed are
left out. With `--beside`, the code in another checkout of the project does the same in the same run. Quote medians and
their ratios: the speed of one machine at one moment says little.

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
from pathlib import Path

from bench.generated import MEDIUM, SMALL, Architecture, write_model

SHA256 = (
    "import hashlib, sys\n"
    "digest = hashlib.sha256()\n"
    "with open(sys.argv[1], 'rb') as file:\n"
    "    while data := file.read(1 << 22):\n"
    "        digest.update(data)\n"
)
READ_BYTES = 1 << 24


@dataclass(slots=True)
class Figures:
    """The figures of the runs of one contender."""

    wall_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    stored_bytes: int | None = None

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
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--beside", type=Path, help="another checkout, for example of an older version")
    parser.add_argument("--folder", type=Path, help="where to work; by default a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="organ-bench-") as name:
        folder = Path(name)
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


def generate(folder: Path, shape: Architecture) -> Path:
    """Write a model with weight-like statistics."""
    path = folder / "generated.gguf"
    print(f"generating {path}", file=sys.stderr, flush=True)
    write_model(path, shape)
    return path


def available(folder: Path, model: Path) -> list[Contender]:
    """Return the contenders installed on this machine, in the order of their runs."""
    copy = folder / "copy.gguf"
    contenders = [
        Contender("sha256", nothing, [sys.executable, "-c", SHA256, str(model)], {}),
        *organ(folder, model),
        Contender("cp", lambda: copy.unlink(missing_ok=True), ["cp", str(model), str(copy)], {}),
    ]
    if shutil.which("borg"):
        contenders.append(borg(folder, model))
    if shutil.which("restic"):
        contenders.append(restic(folder, model))
    return contenders


def organ(folder: Path, model: Path, checkout: Path | None = None) -> list[Contender]:
    """Return the ingest and the assembly by this code, or by that of another checkout."""
    home, copy, version = folder / "registry", folder / "copy.gguf", f" {checkout.name}" if checkout else ""
    command = [sys.executable, "-m", "organs.cli", "--home", str(home)]
    ingest = [*command, "ingest", str(model), "--name", "bench/model", "--json"]
    assemble = [*command, "assemble", "bench/model", "-o", str(copy), "--quiet"]
    environment = {"PYTHONPATH": str(checkout / "src")} if checkout else {}
    folder.mkdir(exist_ok=True)
    return [
        Contender(
            f"organ ingest{version}", lambda: fresh(home, [*command, "models"], environment), ingest, environment, home
        ),
        Contender(f"organ assemble{version}", lambda: copy.unlink(missing_ok=True), assemble, environment),
    ]


def borg(folder: Path, model: Path) -> Contender:
    """Return Borg with `zstd,3`, without encryption."""
    repository = folder / "borg"
    environment = {"BORG_BASE_DIR": str(folder / "borg-home"), "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}
    create = ["borg", "create", "--compression", "zstd,3", f"{repository}::one", str(model)]
    init = ["borg", "init", "-e", "none", str(repository)]
    return Contender("borg create", lambda: fresh(repository, init, environment), create, environment, repository)


def restic(folder: Path, model: Path) -> Contender:
    """Return Restic with its defaults."""
    repository = folder / "restic"
    environment = {"RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": str(folder / "restic-cache")}
    backup = ["restic", "backup", "-r", str(repository), str(model)]
    init = ["restic", "init", "-r", str(repository)]
    return Contender("restic backup", lambda: fresh(repository, init, environment), backup, environment, repository)


def measure(contender: Contender, model: Path, figures: Figures) -> None:
    """Do one run, after the same preparation for all."""
    contender.prepare()
    os.sync()
    touch_memory(model)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])} | contender.environment
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
        figures.stored_bytes = folder_bytes(contender.store)


def touch_memory(model: Path) -> None:
    """Load the model into the page cache, and free pages that have been touched."""
    with model.open("rb") as file:
        while file.read(READ_BYTES):
            pass
    with tempfile.TemporaryFile(dir=model.parent) as scratch:
        block = bytes(READ_BYTES)
        for _ in range(model.stat().st_size // READ_BYTES + 1):
            scratch.write(block)


def fresh(folder: Path, command: list[str], environment: dict[str, str] | None = None) -> None:
    """Create the store again."""
    shutil.rmtree(folder, ignore_errors=True)
    everything = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])} | (environment or {})
    subprocess.run(command, env=everything, check=True, capture_output=True)


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
