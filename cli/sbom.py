"""`organ sbom`: the software bill of materials of a model."""

from __future__ import annotations

from pathlib import Path

import click

from organs.cli.console import print_remark, status_line
from organs.cli.outputs import check_free, force_option, output_option, write_text
from organs.cli.registries import selected_registry
from organs.registry.errors import MissingExtra

EXTRA = "sbom"


@click.command()
@click.argument("model")
@output_option("FILE", "Write it to FILE instead of the terminal.")
@force_option("Replace an existing FILE.")
def sbom(model: str, output: Path | None) -> None:
    """Print the software bill of materials of a model: what it was made from, as CycloneDX 1.7 in JSON.

    It has the digests, the license, the architecture and the tensor types of the model, and the same of every ancestor
    that the registry knows. For a chimera it also has the recipe, the lock, the tensors that each parent gave, what was
    measured, and the findings about the licenses.

    The same registered data give the same bytes: the time in it is that of the registration.
    """
    try:
        from organs.registry.sbom import bill_of_materials
    except ModuleNotFoundError as error:
        message = f"a bill of materials needs cyclonedx-python-lib: pip install 'organ-registry[{EXTRA}]'"
        raise MissingExtra(message, EXTRA) from error
    if output is not None:
        check_free(output)
    with selected_registry() as registry, status_line("read"):
        text = bill_of_materials(registry, model)
    if output is None:
        click.echo(text, nl=False)
        return
    write_text(output, text)
    print_remark(f"written to {output}")
