"""Measure layers of a real model that are repeated and dropped, and what versions with another header cost.

    python -m bench.real_family FOLDER                        first: train the family, or use any folder with texts
    python -m bench.surgery layers FOLDER                     perplexities of the base in F16 with other layers
    python -m bench.surgery headers FILE.gguf...              set a new chat template in each, and count the bytes

`layers` composes each arrangement in a registry of its own, and takes a quick look at it, of six windows of each of the
texts code, docs and prose of the family. It checks that no organ is stored. `headers` ingests the files, sets a chat
template in each, and counts the stored bytes of the blobs and of the database before and after it, and the bytes that a
push of the new versions sends to a server that has the files.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import func, select

from bench.load import served
from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.amounts import change_text
from organs.registry.catalog.tables import Blob, OrganRow
from organs.registry.local import LocalRegistry
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.quick import LookBudget, quick_look
from organs.registry.validation.run import CatalogScores, registered_candidate

SECONDS, WINDOWS = 1800.0, 6
ARRANGEMENTS = {
    "blocks 7-10 a second time, after block 10": "0-10,7-29",
    "blocks 12-13 a second time": "0-13,12-29",
    "blocks 20-23 a second time": "0-23,20-29",
    "blocks 10-11 dropped": "0-9,12-29",
    "blocks 15-16 dropped": "0-14,17-29",
    "blocks 20-21 dropped": "0-19,22-29",
    "blocks 23-24 dropped": "0-22,25-29",
    "blocks 12 and 13 exchanged": "0-11,13,12,14-29",
}
TEMPLATE = (
    "{{ bos_token }}{%- for message in messages -%}\n"
    "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ message['content'] | trim }}<end_of_turn>\n{% endfor -%}\n"
    "{%- if add_generation_prompt -%}<start_of_turn>model\n{% endif -%}\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("layers", "headers"))
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.paths[0].parent) as folder:
        if options.what == "layers":
            measure_layers(options.paths[0], Path(folder))
        else:
            measure_headers(options.paths, Path(folder))


def ingest(registry: LocalRegistry, paths: list[Path]) -> list[str]:
    """Register files; return the names of their models."""
    names = []
    for source in find_sources([str(path) for path in paths]):
        ingest_model(registry, source)
        names.append(str(source.name))
    return names


def stored(registry: LocalRegistry) -> tuple[int, int, int]:
    """Return the number of organs, the stored bytes of all blobs, and the bytes of the database."""
    with registry.catalog.reading() as session:
        organs = session.scalar(select(func.count()).select_from(OrganRow)) or 0
        blobs = session.scalar(select(func.sum(Blob.stored_bytes))) or 0
        size = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return organs, blobs, session.connection().exec_driver_sql(size).scalar_one()


def measure_layers(family: Path, folder: Path) -> None:
    """Print a row for each arrangement."""
    from bench.real_models import BASE, divided  # needs torch

    looks, _ = divided(family / "texts")
    with LocalRegistry.open(folder / "home") as registry:
        ingest(registry, [family / f"{BASE.partition('/')[2]}.gguf"])
        organs = stored(registry)[0]
        print(
            "| blocks | " + " | ".join(text.name for text in looks) + " | blobs |\n" + "|---" * (len(looks) + 2) + "|"
        )
        for name, blocks in ARRANGEMENTS.items():
            before = stored(registry)[1]
            composition = registry.compose(BASE)
            for run in blocks.split(","):
                composition = composition.layers(run)
            made = composition.plan().accepting_all().register()
            assert stored(registry)[0] == organs, "an organ was stored"
            chimera, base = (
                registered_candidate(registry.catalog, registry.blobs, model) for model in (made.model, BASE)
            )
            scores = CatalogScores(registry.catalog)
            look = quick_look(chimera, base, looks, LlamaCpp(), scores, LookBudget(SECONDS, WINDOWS))
            cells = [
                f"{text.base_perplexity or 0.0:.1f} → {text.perplexity or 0.0:.1f}, "
                f"{change_text(text.ratio or 1.0, text.ratio_margin or 0.0)}"
                for text in look.texts
            ]
            print(f"| {name} | {' | '.join(cells)} | {stored(registry)[1] - before:,} B |", flush=True)


@contextmanager
def counted(port: int) -> Iterator[tuple[int, list[int]]]:
    """Pass connections on to a server; yield the port to connect to, and the count of bytes that were sent to it."""
    sent = [0]

    def passed(source: socket.socket, target: socket.socket, count: bool) -> None:
        while data := source.recv(65536):
            sent[0] += len(data) if count else 0
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed
                return
            server = socket.create_connection(("127.0.0.1", port))
            for arguments in ((client, server, True), (server, client, False)):
                threading.Thread(target=passed, args=arguments, daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1], sent


def measure_headers(files: list[Path], folder: Path) -> None:
    """Print what a new chat template in each file costs here, and what a push of the new versions sends."""
    home = folder / "home"
    with LocalRegistry.open(home) as registry:
        names = ingest(registry, files)
        _, blobs, database = stored(registry)
        start = time.perf_counter()
        made = [
            registry.compose(name).metadata("tokenizer.chat_template", TEMPLATE).named(f"local/chat-{number}")
            for number, name in enumerate(names)
        ]
        models = [composition.plan().register().model for composition in made]
        seconds = time.perf_counter() - start
        _, blobs_after, database_after = stored(registry)
    print(
        f"{len(names)} versions in {seconds:.1f} s: {blobs_after - blobs:,} B of blobs; "
        f"the database grows by {database_after - database:,} B, most of it rows of the catalog"
    )
    with served(folder / "server") as server, counted(server.port) as (port, sent):
        for what in (*map(str, files), *models):
            before = sent[0]
            address = f"http://127.0.0.1:{port if what in models else server.port}"
            command = [sys.executable, "-m", "organs.cli", "push", what]
            subprocess.run(
                command,
                check=True,
                env={**os.environ, "ORGAN_HOME": str(home), "ORGAN_REGISTRY": address},
                stdout=subprocess.DEVNULL,
            )
            if what in models:
                print(f"push of {what}: {sent[0] - before:,} B sent")


if __name__ == "__main__":
    main()
