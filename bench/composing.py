"""Measure the seconds of composing: planning among a million organs, and writing a chimera of 1.2 GB beside `cp`.

    python -m bench.composing                       generates models and fills a catalog first: some minutes
    python -m bench.composing --home FOLDER         plans in a catalog that bench.search has kept there
    python -m bench.composing --only files --runs 5

Planning is timed in a warm process: with a donor, with a query over everything that fits, with an adapter and a
purification. The models of the zoo are added to the catalog for it, and variations of one of them compete for the
query. Writing is timed as commands in alternation, each in its own process: `cp`, `organ assemble` of a registered
chimera, and `organ compose` of a new one. Medians, maxima and ratios are printed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.generated import SMALL, write_model
from bench.populated import populated
from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.compose.api import Composition
from organs.registry.gguf import MemorySource, TensorSpec, carry_over, read_header, write_file
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName

ZOO = Path(__file__).parent.parent / "examples" / "zoo"
A, CODE, LORA = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16", "Zoo-A-2M-Code-LoRA-v1.0-F32"
VARIATIONS = 40
"""The number of models with A's shapes that a query finds besides the zoo's."""
RECIPE = """base: local/base
grafts:
  - from: local/donor
    type: organ
accept: [unrelated-lineage]
name: local/{name}
"""


def main() -> None:
    """Time the requested operations, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="a catalog that bench.search has filled; models are added to it")
    parser.add_argument("--placements", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=("plans", "files"))
    parser.add_argument("--folder", type=Path, help="where to work; by default a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="organ-bench-") as name:
        if options.only != "files":
            plans(options.home or Path(name, "catalog"), Path(name), options.placements, options.runs)
        if options.only != "plans":
            files(Path(name), options.runs)


def plans(home: Path, folder: Path, placements: int, runs: int) -> None:
    """Time planning among `placements` organs."""
    with populated(home, placements) as registry:
        add_zoo(registry, folder)
        count = registry.count("").total
        print(f"planning among {count:,} organs, seconds: median and slowest of {runs}\n")
        for what, composition in compositions(registry).items():
            seconds = [timed(composition.plan) for _ in range(runs)]
            plan = composition.plan()
            changed = sum(bool(part.acts) for part in plan.parts)
            refused = ", ".join(sorted({finding.code for finding in plan.plan.refusals}))
            print(f"  {what:<42} {statistics.median(seconds):6.3f} {max(seconds):6.3f}   {changed} organs {refused}")


def compositions(registry: LocalRegistry) -> dict[str, Composition]:
    """Return the compositions to plan."""
    base = registry.compose(A)
    return {
        "a donor's feed-forward": base.graft(CODE, type="organ"),
        "everything that fits best, by θ": base.graft(where="type:organ,skeleton sort:-theta"),
        "by θ and spectral signal, blocks 0-1": base.graft(where="type:organ theta>=30 sort:-spectral", blocks="0-1"),
        "a donor, an adapter, a purification": base.graft(CODE, type="organ")
        .adapter(LORA, 0.8)
        .purify("fractal", type="organ", where="theta>=20"),
    }


def add_zoo(registry: LocalRegistry, folder: Path) -> None:
    """Add the zoo, and variations of its model A, to the registry."""
    for name in (A, CODE, LORA):
        add(registry, ZOO / f"{name}.gguf", name)
    for number in range(VARIATIONS):
        path = folder / f"variation-{number}.gguf"
        vary(ZOO / f"{A}.gguf", path, number)
        add(registry, path, path.stem)
        path.unlink()


def add(registry: LocalRegistry, path: Path, name: str) -> None:
    """Ingest one file as `local/name`."""
    ingest_model(registry, find_sources([str(path)])[0], ModelName("local", name))


def vary(model: Path, path: Path, number: int) -> None:
    """Write `model` with its own noise on every matrix of F16."""
    source = MemorySource(model.read_bytes())
    header = read_header(source)
    random = np.random.default_rng(number)
    tensors = []
    for tensor in header.tensors:
        data = source.read_at(header.data_offset + tensor.offset, tensor.size_bytes)
        if tensor.dtype.name == "F16":
            values = np.frombuffer(data, "<f2").astype(np.float32)
            noise = np.float32(0.02 * (number + 1)) * values.std()
            values += noise * random.standard_normal(values.size, dtype=np.float32)
            data = values.astype("<f2").tobytes()
        tensors.append((TensorSpec(tensor.name, tensor.shape, tensor.dtype), data))
    with path.open("wb") as stream:
        write_file(stream, [carry_over(source, field) for field in header.fields], tensors, header.alignment)


def files(folder: Path, runs: int) -> None:
    """Time writing a chimera beside `cp`."""
    home = folder / "home"
    with LocalRegistry.open(home) as registry:
        for seed, name in enumerate(("base", "donor")):
            path = folder / f"{name}.gguf"
            write_model(path, SMALL, seed)
            add(registry, path, name)
            path.unlink()
    (folder / "recipe.yaml").write_text(RECIPE.format(name="made"))
    organ(home, "compose", folder / "recipe.yaml", "-o", folder / "made.gguf")
    size = (folder / "made.gguf").stat().st_size
    contenders = {
        "cp": lambda number: run("cp", folder / "made.gguf", folder / "out.gguf"),
        "organ assemble": lambda number: organ(home, "assemble", "made", "-o", folder / "out.gguf"),
        "organ compose": lambda number: compose(home, folder, number),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(runs):
        for name, contender in contenders.items():
            (folder / "out.gguf").unlink(missing_ok=True)
            seconds[name].append(timed(lambda contender=contender, number=number: contender(number)))
    copied = statistics.median(seconds["cp"])
    print(f"\nwriting a chimera of {size / 1e9:.2f} GB, seconds: median and slowest of {runs}, times cp\n")
    for name, durations in seconds.items():
        middle = statistics.median(durations)
        print(f"  {name:<16} {middle:6.2f} {max(durations):6.2f} {middle / copied:5.2f}")


def compose(home: Path, folder: Path, number: int) -> None:
    """Compose a chimera under its own name, so that it is registered as a new model."""
    recipe = folder / f"recipe-{number}.yaml"
    recipe.write_text(RECIPE.format(name=f"made-{number}"))
    organ(home, "compose", recipe, "-o", folder / "out.gguf")


def organ(home: Path, *arguments: object) -> None:
    """Run one command."""
    run(sys.executable, "-m", "organs.cli", "--home", home, *arguments)


def run(*command: object) -> None:
    """Run a program; exit with its status if it fails."""
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


def timed(work: Callable[[], object]) -> float:
    """Return the elapsed seconds of a call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
