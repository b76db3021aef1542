"""`organ scan`: the models that other tools keep on this machine, without an ingest."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from organs.cli import fast_imports
from organs.cli.console import output_options, plain, print_json, print_sentence, prints_json, progress_bar, status_line
from organs.cli.inputs import TOOL_NAMES, chosen_tools, place_text, print_notes, print_problems, tool_options
from organs.cli.options import flag
from organs.cli.registries import local_registry, registry_address
from organs.cli.tables import print_table
from organs.registry.amounts import count_text, plural_text, size_text
from organs.registry.columns import CellKind, Column
from organs.registry.errors import BadSource
from organs.registry.settings import Settings

if TYPE_CHECKING:
    from organs.ingest.inventory import Inventory, LocalFamily
    from organs.ingest.tools.findings import Findings


@click.command()
@click.argument("folders", nargs=-1, metavar="[FOLDER]...")
@tool_options("Show only the models of")
@flag("--read", "reads", "Read all bytes, and count those of equal tensors.")
@output_options(json="Print everything as JSON.")
def scan(folders: tuple[str, ...], reads: bool) -> int:
    """Show the models that Ollama, LM Studio, llama.cpp, the Hugging Face tools and GPT4All keep on this machine.

    With FOLDER, show the GGUF files in it and in its subfolders instead, or the single file FOLDER.

    Models are listed by family, with their quantisations under their name. A family is what the headers of the files
    say: models with the same base name, and models that name one as their base. After an ingest, the registry finds
    families by the weights.

    Only headers and samples are read, and nothing is stored. Files that are equal in size, header and samples, and
    whose tools state no different SHA-256, count as copies. --read reads all bytes, and tells how many the registry
    would have to store. The last line is the command that ingests what was found.
    """
    with fast_imports():
        from organs.ingest import tools as known_tools
        from organs.ingest.sources import source_size_bytes
        from organs.ingest.tools import find_tool_models, sources_of
        from organs.ingest.tools.places import this_machine

    findings: list[Findings] = []
    empty: list[BadSource] = []
    wanted = chosen_tools() or (() if folders else tuple(TOOL_NAMES))
    for part in chain(_found_in(folders, empty), find_tool_models(this_machine(), wanted)):
        findings.append(part)
        if not prints_json() and part.is_there:
            name = f"{known_tools.TOOL_NAMES[part.tool]}: " if part.tool else ""
            click.echo(f"{name}{plural_text(len(part.sources), 'model', 'models')} in {plain(part.folder)}")
            sys.stdout.flush()
    if empty and not sources_of(findings):
        raise empty[0]
    with fast_imports():
        from organs.ingest.inventory import take_inventory  # loads the database, so the folders are printed before
        from organs.ingest.reclaiming import reclaimed_batches, restored_of
        from organs.ingest.tools.installing import installed_models

    sources = sources_of(findings)
    total = sum(map(source_size_bytes, sources)) if reads else 0
    with ExitStack() as opened:
        registry = None
        has_home = os.path.isdir(Settings.from_environment(os.environ).home)  # a scan does not make it
        if registry_address() is None and has_home:
            registry = opened.enter_context(local_registry())
        say = opened.enter_context(status_line("headers", quiet=True if reads else None))
        advance = opened.enter_context(progress_bar("read", total))
        inventory = take_inventory(sources, registry, say, advance if reads else None)
        installed = [] if registry is None else installed_models(registry)
        removed = [] if registry is None else [restored_of(files) for files in reclaimed_batches(registry)]
    if prints_json():
        places = [
            {
                "tool": part.tool,
                "folder": str(part.folder),
                "exists": part.is_there,
                "models": len(part.sources),
                "problems": list(part.problems),
                "notes": list(part.notes),
            }
            for part in findings
        ]
        written = [structs.asdict(one) for one in installed]
        reclaimed = [structs.asdict(one) for one in removed]
        print_json({"folders": places, **structs.asdict(inventory), "installed": written, "reclaimed": reclaimed})
    else:
        _print_inventory(inventory)
        if installed:
            click.echo("\nInstalled from this registry; organ uninstall MODEL removes them:")
            rows = [
                {"model": f"  {one.model}", "in": place_text(one.tool, one.folder), "as": one.name} for one in installed
            ]
            print_table((Column("model", "  model"), Column("in"), Column("as")), rows)
        if removed:
            size = size_text(sum(one.size_bytes for one in removed))
            models = plural_text(len(removed), "model was", "models were")
            click.echo()
            print_sentence(f"{models} reclaimed, {size}; organ restore writes the files again.")
    print_problems(findings, [*map(str, empty), *inventory.problems])
    if not prints_json():
        _print_next(findings, inventory)
    return int(bool(empty))


def _found_in(folders: Iterable[str], empty: list[BadSource]) -> Iterator[Findings]:
    """Yield the GGUF files in each folder; add why some have none to `empty`."""
    from organs.ingest.tools import find_in_folder

    for folder in folders:
        try:
            yield find_in_folder(folder)
        except BadSource as error:
            empty.append(error)


def _print_inventory(inventory: Inventory) -> None:
    for family in inventory.families:
        click.echo()
        _print_family(family, with_registered=inventory.registered > 0)
    if not inventory.files:
        return
    click.echo()
    files = plural_text(inventory.files, "file", "files")
    copies = "no second copies"
    if inventory.duplicate_bytes > 0:
        copies = f"{size_text(inventory.duplicate_bytes)} of them are second copies"
    links = inventory.size_bytes - inventory.disk_bytes
    linked = f"; links to the same bytes save {size_text(links)}" if links else ""
    print_sentence(f"{files}, {size_text(inventory.disk_bytes)} on the disk, {copies}{linked}.")
    if inventory.distinct_bytes is not None:
        print_sentence(
            f"Different tensors: {size_text(inventory.distinct_bytes)}, before the registry compresses them."
        )
    if inventory.registered:
        count = sum(1 for _ in inventory.models)
        print_sentence(f"Registered already: {inventory.registered} of {count} different models.")


def _print_family(family: LocalFamily, *, with_registered: bool) -> None:
    models = plural_text(len(family.models), "model", "models")
    about = ", ".join([family.architecture or "no architecture", models, size_text(family.size_bytes)])
    click.echo(click.style(plain(f"{family.name}: {about}"), bold=True))
    rows = [
        {
            "model": f"  {folded.name}" if number == 0 else "",
            "type": ("" if variant.kind == "model" else f"{variant.kind} ")
            + (variant.quantisation or f"{count_text(variant.parameters)} parameters"),
            "size": variant.size_bytes,
            "in": ", ".join(dict.fromkeys(copy.tool or str(Path(copy.paths[0]).parent) for copy in variant.copies)),
            "registered": variant.registered,
        }
        for folded in family.models
        for number, variant in enumerate(folded.variants)
    ]
    columns = (Column("model", "  model"), Column("type"), Column("size", kind=CellKind.SIZE), Column("in"))
    print_table((*columns, Column("registered")) if with_registered else columns, rows)


def _print_next(findings: Sequence[Findings], inventory: Inventory) -> None:
    """Print the command that ingests what was found, and where models were searched if there are none."""
    print_notes(findings)
    tools = [tool for tool in TOOL_NAMES if any(part.tool == tool and part.sources for part in findings)]
    folders = [str(part.folder) for part in findings if not part.tool]
    if not tools and not folders:
        click.echo("No model of these tools was found. Searched:")
        for part in findings:
            click.echo(f"  {plain(part.folder)}")
        click.echo("\nFor any other folder: organ scan FOLDER, organ ingest FOLDER.")
        return
    if inventory.registered < sum(1 for _ in inventory.models):
        options = " ".join(f"--{tool}" for tool in tools)
        commands = [f"organ ingest {words}" for words in (plain(shlex.join(folders)), options) if words]
        click.echo(f"\nTo register them: {'; '.join(commands)}")
