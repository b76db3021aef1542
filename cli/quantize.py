"""`organ quantize`: write a model in other tensor types."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.compose import ComposeOptions, look_seconds, make_chimera, print_composed
from organs.cli.console import is_for_people, output_options, print_remark
from organs.cli.inputs import is_file
from organs.cli.options import accept_option, flag, quick_look_option
from organs.cli.outputs import SUFFIX, force_option, output_option
from organs.cli.plans import refuse_recipe
from organs.cli.registries import selected_registry
from organs.registry.errors import BadRecipe, BadSource
from organs.registry.input_files import FileSource
from organs.registry.names import name_from_text

if TYPE_CHECKING:
    from organs.registry.interface import Registry


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--type",
    "dtype",
    required=True,
    metavar="TYPE",
    help="A mix of llama.cpp, such as Q4_K_M, or a tensor type for all matrices, such as Q4_K.",
)
@click.option(
    "--imatrix",
    "importances",
    metavar="FILE or MODEL",
    help="Weigh errors by this importance matrix: a file, which is registered first, or a registered one.",
)
@click.option("--name", metavar="NAME", help="Register the result as NAMESPACE/NAME. [default: that of the file]")
@output_option("OUT", "Also write the GGUF file OUT.")
@accept_option
@flag("-y", "--yes", "Accept every warning.")
@flag("--dry-run", "Print the plan, and make nothing.")
@quick_look_option
@force_option("Replace an existing file.")
@output_options(json="Print the plan and the result as JSON.", quiet="Print the new model's name only.")
def quantize(
    model: str,
    dtype: str,
    importances: str | None,
    name: str | None,
    output: Path | None,
    accept: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    quick_look: float | None,
) -> None:
    """Write MODEL in other tensor types, and register the result.

    --type names a mix of llama.cpp: the result has the types, and with the same encoder the bytes, that llama-quantize
    gives. If MODEL is quantised already and `organ prove` has found the model in F16 that it was made from, the result
    is computed from that one; otherwise the command warns that MODEL is rounded twice.

    The command makes a chimera: `organ show` prints its recipe, and `organ compose` can change it.
    """
    if is_file(model):
        raise click.UsageError(f"{model} is a file: register it first (organ ingest), then give its name")
    options = ComposeOptions(output, dry_run, accept_all=yes, look_seconds=look_seconds(quick_look))
    with selected_registry() as registry:
        try:
            composition = registry.compose(model).quantize(dtype).accept(*accept)
            if importances is not None:
                composition = composition.imatrix(registered_importances(registry, importances))
            composition = composition if name is None else composition.named(name)
        except BadRecipe as error:
            refuse_recipe(error)
        print_composed(registry, make_chimera(registry, composition, options), options)


def registered_importances(registry: Registry, text: str) -> str:
    """Return the name of a registered importance matrix: `text`, or that of the file, which is registered now."""
    from organs.ingest.add import add_model
    from organs.registry.gguf.importance import gguf_of_records, is_of_records

    path = Path(text)
    if not path.is_file():
        return text
    with ExitStack() as opened, FileSource(path) as file:
        if is_of_records(file):
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="organ-")))
            path = folder / f"{name_from_text(path.stem)}{SUFFIX}"
            path.write_bytes(gguf_of_records(file))
        elif file.size_bytes < 4 or file.read_at(0, 4) != b"GGUF":
            raise BadSource(f"{text}: this is no importance matrix")
        added = add_model(registry, path, new_version=True)
    if added.model is None:
        raise BadSource(f"{text} is not published: {'; '.join(added.reasons) or added.state}")
    if is_for_people() and added.created:
        print_remark(f"{text} is registered as {added.model}.")
    return added.model
