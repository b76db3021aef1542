"""The command `organ demo`, which shows the main steps on the models that come with the source."""

from __future__ import annotations

import hashlib
import logging
import shlex
import socket
import sys
import tempfile
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.request import urlopen

import click
from werkzeug.serving import make_server

from organs.cli.console import print_sentence, progress_bar, status_line
from organs.cli.plans import print_changes, print_findings, print_quick_look, print_screen
from organs.cli.tables import print_table
from organs.registry.amounts import size_text
from organs.registry.columns import CellKind, Column
from organs.registry.entities.finding import Severity
from organs.registry.entities.lineage import EDGE_COLUMNS
from organs.registry.entities.model import COLUMNS as MODEL_COLUMNS
from organs.registry.entities.model import TYPE_COLUMNS
from organs.registry.entities.organ import COLUMNS as ORGAN_COLUMNS
from organs.registry.errors import BadSetting, BadSource, OrganError
from organs.registry.validation.runtime import NoRuntime
from organs.web.settings import PORT, ServerSettings

if TYPE_CHECKING:
    from organs.ingest.service import IngestReport
    from organs.registry.local import LocalRegistry

LOOPBACK = "127.0.0.1"
FETCH_SECONDS = 30
LOOK_SECONDS = 20.0
QUERY = "type:organ sort:-spectral"
ZOO = Path("examples", "zoo")
BASE, DONOR, STRANGER = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16", "Zoo-B-2M-v1.0-Q8_0"
NAME = "demo/coder"
"""The name of the chimera."""


@click.command()
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535), help="The port of the catalog.")
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    default=".demo",
    show_default=True,
    help="The folder of the demo's registry.",
)
def demo(home: Path, port: int) -> None:
    """Try the main steps on the small models that come with the source.

    The demo splits the models into tensors, prints their measures, searches them, assembles a model again, composes a
    chimera, and serves the web catalog. On a terminal, it serves the catalog until Ctrl-C. Without a terminal, it
    requests one page and ends.
    """
    from organs.registry.local import LocalRegistry

    source = Path(__file__).resolve().parents[1]
    zoo = next((folder for root in (source, Path()) if (folder := root / ZOO).is_dir()), None)
    if zoo is None:
        raise BadSource(f"no folder {ZOO} here: the models come with the source, so run the demo in its folder")
    with LocalRegistry.open(home) as registry:
        click.echo("1. Split the models of examples/zoo into tensors\n")
        reports = _ingest(registry, zoo)
        path, largest = max(reports.items(), key=lambda item: item[1].size_bytes)
        click.echo("\n2. Measures of the tensors\n")
        _show(registry, largest.model)
        click.echo("\n3. Find tensors, and related models\n")
        _find(registry, largest.model)
        click.echo("\n4. Assemble a model again\n")
        _assemble(registry, path, largest)
        click.echo("\n5. Compose a chimera: a model with the feed-forward parts of another\n")
        _compose(registry)
        click.echo("\nTry next\n")
        for line in (
            *(f"show {largest.model}", f"show {NAME}", f"assemble {NAME} -o coder.gguf", "ingest YOUR-MODEL.gguf"),
            *("report", "search --help", "compose --help", "serve -o"),
        ):
            click.echo(f"  .venv/bin/organ --home {shlex.quote(str(home))} {line}")
        click.echo("\n6. Open the catalog\n")
        if sys.stdin.isatty() and sys.stdout.isatty():
            _serve(registry, port)
        else:
            _fetch(registry)


def _serve(registry: LocalRegistry, port: int) -> None:
    """Serve the catalog in the foreground, on `port` or, if that is in use, on a free one."""
    from organs.cli.serve import check_port_free
    from organs.web.server.processes import serve_forever

    try:
        check_port_free(LOOPBACK, port)
    except BadSetting:
        with socket.create_server((LOOPBACK, 0)) as probe:
            port = probe.getsockname()[1]
    click.echo(f"The catalog is at http://{LOOPBACK}:{port}/ (Ctrl-C ends it)")
    registry.catalog.close()  # connections must not cross the fork
    serve_forever(registry, ServerSettings(port=port))


def _fetch(registry: LocalRegistry) -> None:
    """Request the first page from a real server, for a demo without a terminal."""
    from organs.web.app import create_app

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else it logs the request
    server = make_server(LOOPBACK, 0, create_app(registry), threaded=True)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://{LOOPBACK}:{server.server_port}/"
    try:
        with urlopen(address, timeout=FETCH_SECONDS) as answer:
            page = answer.read()
    finally:
        server.shutdown()
        server.server_close()
    click.echo(f"GET {address}: {answer.status}, {size_text(len(page))}.")
    print_sentence("There is no terminal, so the catalog stops here; on a terminal it is served until Ctrl-C.")


def _ingest(registry: LocalRegistry, zoo: Path) -> dict[Path, IngestReport]:
    from organs.ingest.service import ingest_all
    from organs.ingest.sources import find_sources, source_size_bytes

    sources = find_sources([str(zoo)])
    reports: dict[Path, IngestReport] = {}
    with progress_bar("ingest", sum(map(source_size_bytes, sources))) as advance:
        for outcome in ingest_all(registry, sources, None, advance):
            if outcome.report is None:
                raise outcome.error or OrganError("an ingest gave neither a report nor an error")
            reports[outcome.source.paths[0]] = outcome.report
    print_table(
        (
            Column("model", kind=CellKind.NAME),
            Column("organs", "tensors", CellKind.COUNT),
            Column("size_bytes", "size", CellKind.SIZE),
            Column("new", kind=CellKind.SIZE, shown=lambda one: one.new_bytes if one.created else "known already"),
            Column("stored", kind=CellKind.SIZE, shown=lambda one: one.stored_bytes if one.created else None),
            Column("seconds", "took", CellKind.SECONDS),
        ),
        reports.values(),
    )
    totals = registry.totals()
    total_size = sum(report.size_bytes for report in reports.values())
    click.echo()
    print_sentence(
        f"{len(reports)} files of {size_text(total_size)} contain {totals.blobs} different parts. "
        f"They take {size_text(totals.stored_bytes)} on the disk."
    )
    return reports


def _show(registry: LocalRegistry, name: str) -> None:
    columns = [column for column in MODEL_COLUMNS if column.name in ("name", "tensors", "mean_theta")]
    print_table(columns, registry.ranked_models())
    click.echo("(complete models only: adapters are not ranked)")
    click.echo(f"\n{name}, by type:\n")
    print_table(TYPE_COLUMNS, registry.model(name).types)
    click.echo()
    print_sentence(
        "θ is the shape of the distribution of weights: 0° uniform, about 34° Gaussian (also untrained), "
        "90° heavy tails."
    )
    print_sentence(
        "The spectral signal is the part of a matrix's energy beyond that of random weights: 0 for random weights."
    )
    print_sentence("Neither tells how good a model is.")


def _find(registry: LocalRegistry, name: str) -> None:
    click.echo(f"organ search {shlex.quote(QUERY)}\n")
    shown = ("model", "name", "dtype", "theta", "spectral_signal")
    organs = registry.search(QUERY, limit=3)
    print_table([column for column in ORGAN_COLUMNS if column.name in shown], organs)
    measured = [edge for edge in registry.model(name).lineage if edge.evidence == "measured"]
    click.echo()
    print_sentence(f"Models like {name}, by their weights alone (change 0: the same, 2: unrelated):")
    click.echo()
    print_table([column for column in EDGE_COLUMNS if column.name in ("model", "change")], measured)


def _assemble(registry: LocalRegistry, path: Path, report: IngestReport) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assembled = Path(folder) / path.name
        registry.assemble(report.model, assembled)
        before, after = (hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, assembled))
    click.echo(f"SHA-256\noriginal   {before}\nassembled  {after}")
    if before != after:
        raise OrganError(f"{path.name} came back different; please report this")
    click.echo(f"{path.name}: identical to the last byte, {size_text(report.size_bytes)}")


def _compose(registry: LocalRegistry) -> None:
    """Graft tensors of another model into a model: print the screen and the result, and take a quick look at it."""
    from organs.registry.validation.quick import LookBudget

    composition = registry.compose(BASE).graft(DONOR, type="organ").named(NAME)
    click.echo("The recipe:\n")
    click.echo("\n".join(f"    {line}" for line in composition.yaml().splitlines()))
    click.echo()
    plan = composition.plan()
    print_changes(plan.chimera.changes)
    click.echo()
    print_screen(plan.screen)
    click.echo()
    print_sentence(f"The same tensors of {STRANGER}, an unrelated model, give a warning before anything is made:")
    click.echo()
    warned = registry.compose(BASE).graft(STRANGER, type="organ").plan()
    print_findings(finding for finding in warned.findings if finding.severity is Severity.WARN)
    chimera = plan.register()
    click.echo()
    print_sentence(f"{chimera.model}: {size_text(chimera.size_bytes)}, lock sha256:{chimera.lock_id}")
    click.echo()
    try:
        with status_line("quick look") as say:
            look = registry.quick_look(chimera.model or NAME, budget=LookBudget(LOOK_SECONDS), progress=say)
    except NoRuntime as error:
        print_sentence(f"Not measured: {error}.")
    else:
        print_quick_look(look)
