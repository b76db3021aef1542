"""`organ check`: will llama.cpp load these files, and if not, what mends them."""

from __future__ import annotations

import os
from itertools import zip_longest
from typing import TYPE_CHECKING

import click

from organs.cli import fast_imports
from organs.cli.console import is_quiet, output_options, print_json_line, print_sentence, prints_json, progress_bar
from organs.cli.options import flag
from organs.registry.errors import BadSource
from organs.registry.settings import Settings

if TYPE_CHECKING:
    from organs.ingest.checking import CheckedModel
    from organs.ingest.sources import ModelSource


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE|FOLDER...")
@flag("--quick", "Read only headers, vocabularies and chat templates, not the weights.")
@output_options(json="Print one line of JSON for each model.", quiet="Print only the files that do not load.")
def check(paths: tuple[str, ...], quick: bool) -> int:
    """Say whether llama.cpp will load GGUF files, what else is wrong with them, and what mends it.

    FILE is a GGUF file, any shard of a split model, or a quoted pattern; of a FOLDER, all models in it are checked.
    Nothing is stored, and no registry is needed.

    The command reads the header, compares the tensors with it, tries the chat templates with a sample conversation in a
    confined process, and reads all weights to find those that are NaN or infinite. --quick leaves out the weights.

    Findings are `refuse` (runtimes do not load the file), `warn` (they load it, but something is wrong) and `info`. The
    exit status is 1 if a file does not load.
    """
    with fast_imports():
        from organs.ingest.checking import check_model, unreadable
        from organs.ingest.sources import find_sources, source_size_bytes

    failed = False
    sources: dict[tuple[str, ...], ModelSource] = {}
    for path in paths:
        try:
            found = find_sources([path], "check")
        except BadSource as error:
            failed = True
            _print_checked(unreadable(path, error))
        else:
            sources.update((source.locations, source) for source in found)
    requires_sandbox = Settings.from_environment(os.environ).requires_sandbox
    total = 0 if quick else sum(map(source_size_bytes, sources.values()))
    with progress_bar("check", total) as advance:
        for source in sources.values():
            checked = check_model(source, reads_weights=not quick, requires_sandbox=requires_sandbox, progress=advance)
            failed |= not checked.loads
            with advance.hidden():
                _print_checked(checked)
    return int(failed)


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
