"""`organ check`: will llama.cpp load these models, and if not, what mends them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING

import click

from organs.cli import fast_imports
from organs.cli.console import (
    is_quiet,
    output_options,
    print_failure,
    print_json_line,
    print_sentence,
    prints_json,
    progress_bar,
)
from organs.cli.inputs import chosen_tools, may_be_registered, tool_models, tool_options
from organs.cli.options import flag
from organs.cli.registries import local_registry, registry_address
from organs.registry.errors import BadSource, NotFound, OrganError
from organs.registry.settings import Settings

if TYPE_CHECKING:
    from organs.ingest.checking import CheckedModel
    from organs.ingest.sources import ModelSource


@click.command()
@click.argument("paths", nargs=-1, metavar="[FILE|FOLDER|MODEL]...")
@tool_options("Check the models of")
@flag("--quick", "Read only headers, vocabularies and chat templates, not the weights.")
@output_options(json="Print one line of JSON for each model.", quiet="Print only the models that do not load.")
def check(paths: tuple[str, ...], quick: bool) -> int:
    """Say whether llama.cpp will load GGUF files, what else is wrong with them, and what mends it.

    FILE is a GGUF file, any shard of a split model, or a quoted pattern; of a FOLDER, all models in it are checked.
    --ollama and the other options check all models of a tool, by their names. Nothing is stored, and no registry is
    needed. MODEL is the name of a registered model, or `sha256:` and at least 8 digits of its digest.

    The command reads the header, compares the tensors with it, tries the chat templates with a sample conversation in a
    confined process, and reads all weights to find those that are NaN or infinite. --quick leaves out the weights. The
    weights of a registered model were read when it was ingested.

    Findings are `refuse` (runtimes do not load the file), `warn` (they load it, but something is wrong) and `info`. The
    exit status is 1 if a model does not load.
    """
    with fast_imports():
        from organs.ingest.checking import check_model, unreadable
        from organs.ingest.sources import find_sources, source_size_bytes

    tools = chosen_tools()
    if not paths and not tools:
        raise click.UsageError("give a FILE, a FOLDER, a MODEL, or a tool such as --ollama")
    failed = False
    names: list[str] = []
    sources: dict[tuple[str, ...], ModelSource] = {}
    settings = Settings.from_environment(os.environ)
    has_registry = os.path.isdir(settings.home) or registry_address() is not None  # a check does not make one
    for path in paths:
        if has_registry and may_be_registered(path, digests=True):
            names.append(path)
            continue
        try:
            found = find_sources([path], "check")
        except BadSource as error:
            failed = True
            _print_checked(unreadable(path, error))
        else:
            sources.update((source.locations, source) for source in found)
    if tools:
        found, has_problems = tool_models(tools, required=not paths)
        failed |= has_problems
        sources.update((source.locations, source) for source in found)
    if names:
        failed |= not _check_registered(dict.fromkeys(names))
    total = 0 if quick else sum(map(source_size_bytes, sources.values()))
    with progress_bar("check", total) as advance:
        for source in sources.values():
            checked = check_model(
                source, reads_weights=not quick, requires_sandbox=settings.requires_sandbox, progress=advance
            )
            failed |= not checked.loads
            with advance.hidden():
                _print_checked(checked)
    return int(failed)


def _check_registered(names: Iterable[str]) -> bool:
    """Check registered models, and print what was found; return whether all are registered and load."""
    from organs.ingest.stored import check_stored

    all_load = True
    with local_registry() as registry:
        for name in names:
            try:
                checked = check_stored(registry, name, requires_sandbox=registry.settings.requires_sandbox)
            except OrganError as error:
                is_unknown = isinstance(error, NotFound)
                print_failure(f"{name}: no such file or folder, and {error}" if is_unknown else error)
                all_load = False
            else:
                _print_checked(checked)
                all_load &= checked.loads
    return all_load


def _print_checked(checked: CheckedModel) -> None:
    from msgspec import structs, to_builtins

    if prints_json():
        print_json_line({**to_builtins(structs.asdict(checked)), "verdict": checked.verdict})
        return
    if is_quiet():
        if not checked.loads:
            print_sentence(f"{checked.label}: {checked.verdict}")
        return
    print_sentence(f"{checked.label}: {checked.verdict}")
    for found, after in zip_longest(checked.findings, checked.findings[1:]):
        print_sentence(f"{found.code}: {found.sentence}", f"  {found.severity.value} ")
        if found.mend and (after is None or after.mend != found.mend):
            print_sentence(found.mend, "    mend: ")
