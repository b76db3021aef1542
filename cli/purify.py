"""`organ purify`: purify tensors of a model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from organs.cli.compose import (
    Builder,
    ComposeOptions,
    look_seconds,
    make_chimera,
    print_composed,
    print_measured,
    take_quick_look,
)
from organs.cli.console import (
    is_chosen,
    is_for_people,
    is_quiet,
    output_options,
    print_path,
    print_sentence,
    prints_json,
    progress_bar,
)
from organs.cli.inputs import is_file, one_source
from organs.cli.options import accept_option, flag, original_spelling, quick_look_option
from organs.cli.outputs import SUFFIX, check_fits, check_folder_free, force_option, gguf_targets, output_option
from organs.cli.plans import print_thetas, refuse_recipe
from organs.cli.registries import selected_registry
from organs.registry.amounts import size_text
from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.errors import BadRecipe, BadSource
from organs.registry.names import parse_model_name

if TYPE_CHECKING:
    from organs.registry.local import LocalRegistry

METHODS = ("spectral", "fractal")
"""The values of `PurifyMethod`, which loads numpy; a test compares them."""


@click.command()
@original_spelling("model", "--model", "--dir")
@click.argument("model", metavar="MODEL|FILE|DIR")
@click.option(
    "--method", required=True, type=click.Choice(METHODS), help="How to purify; docs/recipes.md explains both methods."
)
@click.option(
    "--keep",
    type=float,
    metavar="SHARE",
    help="For spectral: the share of each matrix's energy to keep, from 0 to 1. [default: 0.9]",
)
@click.option(
    "--type", "kinds", multiple=True, type=click.Choice(GRAFTED_TYPES), help="Only tensors of this type. Repeatable."
)
@click.option("--blocks", "--layers", "blocks", metavar="BLOCKS", help="Only tensors of these blocks, such as 5-20.")
@click.option(
    "--slot",
    "slots",
    multiple=True,
    metavar="SLOT",
    help=f"Only tensors in this slot, such as {EXAMPLE_SLOTS[0]}; * stands for any text. Repeatable.",
)
@click.option(
    "--experts",
    multiple=True,
    metavar="EXPERTS",
    help="Only these experts of stacks of experts, such as 5,17 or 0-3. Repeatable.",
)
@click.option("--where", metavar="QUERY", help="Only tensors that match QUERY, such as 'theta<38'.")
@click.option("--name", metavar="NAME", help="Register the result as NAMESPACE/NAME; for a registered MODEL only.")
@output_option("OUT", "Also write the result to OUT; needed for FILE and DIR.")
@accept_option
@flag("-y", "--yes", "Accept every warning.")
@flag("--dry-run", "Print the plan, and make nothing.")
@quick_look_option
@force_option("Replace an existing file or organ directory.")
@output_options(json="Print the plan and the result as JSON.", quiet="Print the new model's name only.")
def purify(
    model: str,
    method: str,
    keep: float | None,
    kinds: tuple[str, ...],
    blocks: str | None,
    slots: tuple[str, ...],
    experts: tuple[str, ...],
    where: str | None,
    name: str | None,
    output: Path | None,
    accept: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    quick_look: float | None,
) -> None:
    """Purify tensors of a model, and print θ of each tensor before and after.

    Purifying usually raises the perplexity, which is worse: on a real model, all feed-forward tensors at keep 0.97 gave
    +320% on Python. The command first prints the plan. To compute nothing, give --dry-run.

    MODEL is a registered model. The command registers the result as a new model. Without --type, --slot and --where, it
    purifies the feed-forward tensors.

    FILE is a GGUF file, and DIR is an organ directory. For these, the command does not use your registry: it writes the
    result to OUT, as a GGUF file if OUT ends in .gguf, otherwise as an organ directory. It needs free space beside OUT
    for a temporary registry.
    """
    options = ComposeOptions(output, dry_run, accept_all=yes, look_seconds=look_seconds(quick_look))

    def composition(compose: Callable[[str], Builder], base: str) -> Builder:
        try:
            accepting = compose(base).accept(*accept)
            step = accepting.purify(
                method,
                where=where or "",
                type=kinds or None,
                slot=slots or None,
                blocks=blocks,
                experts=",".join(experts) if experts else None,
                keep=keep,
            )
            return step if name is None else step.named(name)
        except BadRecipe as error:
            refuse_recipe(error)

    if not is_file(model):
        with selected_registry() as registry:
            result = make_chimera(registry, composition(registry.compose, model), options)
            print_composed(registry, result, options)
        return
    if output is None or name is not None:
        raise click.UsageError("the result for a FILE or DIR is written and not registered: give -o OUT, and no --name")
    options = replace(options, base_label=model)
    if output.suffix != SUFFIX:
        options = replace(options, output=None, folder=output)
    with _temporary_registry(model, output) as (temporary, base):
        result = make_chimera(temporary, composition(temporary.compose, base), options)
        made, look = result.made, None
        if made is not None:
            if options.folder is not None:
                from organs.ingest.directory.extract import extract, registered_contents

                contents = registered_contents(temporary, parse_model_name(made.model or ""))
                with progress_bar("write", sum(content.header.file_size_bytes for content in contents)) as advance:
                    extract(contents, output, force=is_chosen("force"), progress=advance)
            made = structs.replace(made, file=str(output), created=None)
            if is_quiet() and not prints_json():
                print_path(output)
            elif is_for_people():
                click.echo()
                print_sentence(f"{output}: {size_text(made.size_bytes)}, sha256:{made.sha256}")
                print_thetas(result)
            look = take_quick_look(temporary, made.model, options.look_seconds)
            if look is not None:  # without the names in the temporary registry
                look = structs.replace(look, model=str(output), base=model)
            result = structs.replace(result, made=structs.replace(made, model=None))
        print_measured(result, look)


@contextmanager
def _temporary_registry(model: str, output: Path) -> Iterator[tuple[LocalRegistry, str]]:
    """Open a temporary registry with only the model in the files `model`, and return it with the model's name."""
    from organs.ingest.service import ingest_model
    from organs.ingest.sources import source_size_bytes
    from organs.registry.local import LocalRegistry

    source = one_source(model, "purify")
    size_bytes = source_size_bytes(source)
    if output.suffix == SUFFIX:
        gguf_targets(output, [output.name])
    else:
        check_folder_free(output)
    parent = output.absolute().parent
    if not parent.is_dir():
        raise BadSource(f"{parent}: no such folder")
    check_fits(output.absolute(), 2 * size_bytes)
    folder = tempfile.TemporaryDirectory(prefix=".organ-", dir=parent)
    with folder as home, LocalRegistry.open(home) as registry:
        with progress_bar("ingest", size_bytes) as advance:
            name = ingest_model(registry, source, None, advance).model
        yield registry, name
