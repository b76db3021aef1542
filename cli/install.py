"""`organ install`, `organ uninstall`: registered models in the folders of other tools."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from organs.cli import fast_imports
from organs.cli.console import (
    INDENT,
    output_options,
    print_failure,
    print_remark,
    print_sentence,
    printed_for_programs,
    progress_bar,
)
from organs.cli.inputs import place_text
from organs.cli.options import flag
from organs.cli.registries import local_registry
from organs.registry.amounts import plural_text, size_text
from organs.registry.errors import StoreUnwritable
from organs.registry.names import parse_model_name

if TYPE_CHECKING:
    from organs.ingest.tools.installing import Installation, Uninstallation

PLACES = ("ollama", "lmstudio", "llama-cpp", "hf")
"""The words for tools in --to and --from."""
SERVICE_HINT = (
    "if Ollama runs as a service of the system, let it fetch the model itself: organ serve in one terminal, then "
    "ollama pull --insecure 127.0.0.1:8935/{} in another"
)


@click.command()
@click.argument("model")
@click.option(
    "--to", "place", required=True, metavar="TOOL|FOLDER", help="ollama, lmstudio, llama-cpp, hf, or a folder."
)
@click.option("--as", "called", metavar="NAME", help="The name in the tool. [default: as here]")
@flag("--dry-run", "Print what would be written, and write nothing.")
@output_options(json="Print the installation as JSON.", quiet="Print the files' paths only.")
def install(model: str, place: str, called: str | None, dry_run: bool) -> None:
    """Put a registered model where another tool finds it: Ollama, LM Studio, llama.cpp, the Hugging Face cache.

    FOLDER is any other folder: one that exists, or a path that ends in /.

    In Ollama the model gets its template, its parameters, its system prompt and its licenses. A chimera has those of
    its base. An adapter becomes a layer on its base: Ollama applies it, and nothing is merged.

    Every byte is checked. The tool sees the model only when all of its files are complete. A file that another program
    wrote is never replaced. For a newer version of the model, run the same command again.

    `organ scan` shows what is installed, `organ uninstall` removes it.
    """
    with fast_imports():
        from organs.ingest.tools.installing import install as install_model
        from organs.ingest.tools.places import this_machine

    target = _target(place, is_new=True)
    with local_registry() as registry:
        try:
            planned = install_model(registry, model, target, this_machine(), called, dry_run=True)
            if not dry_run:
                with progress_bar("install", planned.written_bytes) as advance:
                    planned = install_model(registry, model, target, this_machine(), called, progress=advance)
        except StoreUnwritable:
            if place == "ollama":
                print_remark(SERVICE_HINT.format(parse_model_name(model)), "hint: ")
            raise
    if not printed_for_programs(planned, [Path(file) for file in planned.files]):
        _print_installation(planned, dry_run=dry_run)


def _target(place: str, *, is_new: bool) -> str | Path:
    """Return the word of a tool, or a folder. Raises UsageError for a new folder that may be meant as a tool."""
    word = {"hf-cache": "hf", "lm-studio": "lmstudio", "llama.cpp": "llama-cpp"}.get(place.lower(), place.lower())
    if word in PLACES:
        return word
    folder = Path(place).expanduser()
    if is_new and not folder.is_dir() and not place.endswith(os.sep):
        raise click.UsageError(
            f"{place[:200]!r} is no tool and no folder; tools are {', '.join(PLACES)}; to create the folder, write "
            f"{place[:200]}{os.sep}"
        )
    return folder


def _print_installation(done: Installation, *, dry_run: bool) -> None:
    folder = str(Path(done.files[-1]).parent)
    name = f" as {done.name}" if done.tool else ""
    if dry_run:
        for file in done.files:
            print_sentence(file, INDENT)
        size = f"{size_text(done.written_bytes)} of {size_text(done.size_bytes)}"
        place = f", in place of {done.replaced}" if done.replaced else ""
        print_sentence(
            f"{done.model}: would be in {place_text(done.tool, folder)}{name}; {size} would be written{place}"
        )
        return
    new = "nothing was written, it is there already"
    if done.written_bytes:
        new = f"{size_text(done.written_bytes)} written"
    if done.replaced:
        new += f", in place of {done.replaced}"
    print_sentence(f"{done.model}: in {place_text(done.tool, folder)}{name}, {new}")
    for note in done.notes:
        print_remark(note, "note: ")
    print_remark(done.command, "run it: ")


@click.command()
@click.argument("model")
@click.option(
    "--from", "place", metavar="TOOL|FOLDER", help="ollama, lmstudio, llama-cpp, hf, or a folder. [default: all]"
)
@click.option("--as", "called", metavar="NAME", help="Only under this name in the tool.")
@output_options(json="Print the removals as JSON.", quiet="Print the removed paths only.")
def uninstall(model: str, place: str | None, called: str | None) -> None:
    """Remove what `organ install` wrote for a model. The model stays in the registry.

    A file that was changed since, and a blob that the tool still needs for another model, stay where they are.
    """
    with fast_imports():
        from organs.ingest.tools.installing import uninstall as uninstall_model

    with local_registry() as registry:
        removals = uninstall_model(registry, model, None if place is None else _target(place, is_new=False), called)
    values = {"items": [structs.asdict(one) for one in removals], "next": None}
    if not printed_for_programs(values, [Path(path) for one in removals for path in one.removed]):
        for removal in removals:
            _print_removal(removal)


def _print_removal(removal: Uninstallation) -> None:
    from organs.ingest.tools.installing import NEEDED

    files = plural_text(len(removal.removed), "file", "files")
    where = place_text(removal.tool, removal.folder)
    if removal.removed or removal.kept:
        print_sentence(f"{removal.name}: {files} removed from {where}, {size_text(removal.freed_bytes)} free")
    else:
        print_sentence(f"{removal.name}: its files are not in {where} any more; it is no longer listed")
    needed = [sentence for sentence in removal.kept if sentence.endswith(NEEDED)]
    if needed:
        count = plural_text(len(needed), "shared file stays", "shared files stay")
        print_remark(f"{count}: needed for another model")
    for sentence in removal.kept:
        if sentence not in needed:
            print_failure(sentence)
