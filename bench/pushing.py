"""Measure the bytes and the seconds of a push: whole models, fine-tunes, some organs of one, and the same again.

    python -m bench.pushing
    python -m bench.pushing --only zoo

The server is `organ serve` over an empty registry on the same machine. The time includes hashing, the lookup of known
digests, sending, the server's inspection and ingest, until the page exists. A fine-tune differs from its base in the
feed-forward parts of its last blocks; the partial model has only these, and names its base.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.generated import SMALL, weights, write_model
from bench.load import served
from organs.ingest.contributions.push import (
    PushOptions,
    PushReport,
    SilentProgress,
    push,
)
from organs.ingest.contributions.sending import Memory
from organs.ingest.dissect import DissectedFile, dissect
from organs.ingest.sources import find_sources
from organs.registry.amounts import size_text
from organs.registry.anatomy import OrganType, Place, place_of
from organs.registry.client.connection import Connection
from organs.registry.gguf import TensorSpec, carry_over, write_file
from organs.registry.input_files import FileSource

ZOO = Path(__file__).parent.parent / "examples" / "zoo"
A, CODE = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16"
TUNED_BLOCKS = 4
"""The last blocks of the generated model, whose feed-forward parts the fine-tune changes."""


class Pusher:
    """Pushes to one server, and prints a line for each push."""

    def __init__(self, url: str, memory: Path) -> None:
        self._connection = Connection(url)
        self._memory = Memory(memory)

    def __call__(self, what: str, path: Path, base: str | None = None) -> PushReport:
        """Push the model at `path`, and print the figures."""
        (source,) = find_sources([str(path)], "push")
        options = PushOptions(metadata={} if base is None else {"base": base})
        begun = time.perf_counter()
        report = push(self._connection, source, options, self._memory, SilentProgress())
        seconds = time.perf_counter() - begun
        size_bytes = path.stat().st_size
        sent = f"{report.bytes_sent:>13,} bytes in {report.pieces_sent:>3} pieces"
        print(
            f"  {what:<44} {size_text(size_bytes):>8}  {sent}  {report.bytes_sent / size_bytes:7.2%}  "
            f"{seconds:6.1f} s  {report.state}",
            flush=True,
        )
        return report


def main() -> None:
    """Make the requested pushes, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("zoo", "generated"))
    parser.add_argument("--folder", type=Path, help="where to work; by default a temporary folder")
    options = parser.parse_args()
    print(f"  {'':<44} {'file':>8}  {'sent':>32}  {'of it':>7}  {'wall':>8}  outcome")
    for name, run in (("zoo", zoo), ("generated", generated)):
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(dir=options.folder, prefix="organ-bench-") as folder:
                home = Path(folder, "home")
                with served(home) as server:
                    run(Pusher(f"http://127.0.0.1:{server.port}", Path(folder, "cache")), Path(folder))


def zoo(pushes: Pusher, folder: Path) -> None:
    """Push a small model, its fine-tuned relative, the same again, and some of its organs."""
    pushes("the zoo's A, whole", ZOO / f"{A}.gguf")
    pushes("A-code, fine-tuned, where A is known", ZOO / f"{CODE}.gguf")
    pushes("A-code again", ZOO / f"{CODE}.gguf")
    part = folder / "A-code-organs.gguf"
    extract_part(ZOO / f"{CODE}.gguf", part, lambda place: place.type is OrganType.ORGAN)
    pushes("its feed-forward organs, where it is known", part, A)
    home = folder / "second"
    with served(home) as server:
        alone = Pusher(f"http://127.0.0.1:{server.port}", folder / "second-cache")
        alone("its feed-forward organs, where nothing is", part, A)


def generated(pushes: Pusher, folder: Path) -> None:
    """Push the same kinds with a model of 1.19 GB."""
    base, tuned, part = (folder / f"{name}.gguf" for name in ("Base", "Tuned", "Part"))
    write_model(base, SMALL)
    tune(base, tuned)
    pushes("generated, whole", base)
    pushes("fine-tuned, where its base is known", tuned)
    pushes("fine-tuned, again", tuned)
    extract_part(tuned, part, _is_tuned)
    pushes("its trained organs, where it is known", part, "local/Base")
    tune(base, folder / "Other.gguf", seed=2)
    extract_part(folder / "Other.gguf", part, _is_tuned)
    pushes("the trained organs of another", part, "local/Base")


def tune(base: Path, target: Path, seed: int = 1) -> None:
    """Write `base` to `target` with other feed-forward organs in its last blocks."""
    shutil.copyfile(base, target)
    with FileSource(base) as source, target.open("r+b") as stream:
        file = dissect(source)
        for index, tensor in enumerate(file.header.tensors):
            if _is_tuned(place_of(tensor.name)):
                stream.seek(file.tensor_span(tensor).offset)
                for piece in weights(tensor, np.random.default_rng([seed, index])):
                    stream.write(piece.data)


def extract_part(whole: Path, target: Path, wanted: Callable[[Place], bool]) -> None:
    """Write a GGUF file with the header of `whole` and those of its tensors whose places are `wanted`."""
    with FileSource(whole) as source, target.open("wb") as stream:
        file = dissect(source)
        chosen = [tensor for tensor in file.header.tensors if wanted(place_of(tensor.name))]
        tensors = [(tensor, _bytes(file, tensor.name)) for tensor in chosen]
        metadata = [carry_over(source, field) for field in file.header.fields]
        write_file(stream, metadata, [(TensorSpec(item.name, item.shape, item.dtype), data) for item, data in tensors])


def _bytes(file: DissectedFile, name: str) -> bytes:
    (tensor,) = (tensor for tensor in file.header.tensors if tensor.name == name)
    span = file.tensor_span(tensor)
    return file.source.read_at(span.offset, span.size_bytes)


def _is_tuned(place: Place) -> bool:
    return place.type is OrganType.ORGAN and place.block is not None and place.block >= SMALL.blocks - TUNED_BLOCKS


if __name__ == "__main__":
    main()
