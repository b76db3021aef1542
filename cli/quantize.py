"""`organ quantize`: write a model in other tensor types."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from organs.cli.compose import ComposeOptions, look_seconds, make_chimera, print_composed
from organs.cli.console import (
    is_for_people,
    output_options,
    plain,
    print_remark,
    print_sentence,
    printed_for_programs,
    status_line,
)
from organs.cli.inputs import is_file
from organs.cli.options import accept_option, flag, quick_look_option, size_bytes
from organs.cli.outputs import SUFFIX, force_option, gguf_targets, output_option
from organs.cli.plans import refuse_recipe
from organs.cli.registries import selected_registry
from organs.cli.tables import print_table
from organs.registry.amounts import size_text
from organs.registry.entities.sizes import COLUMNS, MINUTES_LEAST, MINUTES_MAX, QuantizationRequest, SizedModel
from organs.registry.errors import BadRecipe, BadSource
from organs.registry.input_files import FileSource
from organs.registry.names import name_from_text, parse_model_name

if TYPE_CHECKING:
    from organs.registry.interface import Registry


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--type",
    "dtype",
    metavar="TYPE",
    help="A mix of llama.cpp, such as Q4_K_M, or a tensor type for all matrices, such as Q4_K. Nothing is measured.",
)
@click.option("--size", type=size_bytes, metavar="SIZE", help="The best file of at most this size: 4GB, 90MB.")
@click.option("--bpw", type=float, metavar="BITS", help="The best file of at most so many bits for each weight: 4.5.")
@click.option("--like", metavar="MIX or MODEL", help="The best file of the size of this mix, such as Q4_K_M, or model.")
@click.option(
    "--fits", type=size_bytes, metavar="SIZE", help="The best file with which llama.cpp takes at most this memory: 8GB."
)
@click.option("--context", type=click.IntRange(1), metavar="TOKENS", help="With --fits: the tokens of the context.")
@click.option("--cache-type", metavar="TYPE", default="f16", help="With --fits: the type of the cache. [default: f16]")
@click.option(
    "--micro-batch", metavar="TOKENS", type=int, default=512, help="With --fits: -ub of llama.cpp. [default: 512]"
)
@click.option("--flash-attention", metavar="auto|on|off", default="auto", help="With --fits: -fa of llama.cpp.")
@click.option(
    "--minutes",
    type=click.FloatRange(MINUTES_LEAST, MINUTES_MAX),
    metavar="N",
    help="The time for measurements; rounding and writing come on top. [default: 10]",
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
@flag("--dry-run", "With --type: print the plan, and make nothing.")
@quick_look_option
@force_option("Replace an existing file.")
@output_options(json="Print the plan and the result as JSON.", quiet="Print the new model's name only.")
def quantize(
    model: str,
    dtype: str | None,
    importances: str | None,
    name: str | None,
    output: Path | None,
    accept: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    quick_look: float | None,
    minutes: float | None,
    **wanted: Any,
) -> None:
    """Write MODEL in other tensor types, and register the result.

    With --size, --bpw, --like or --fits, the command looks for the mix of tensor types that differs least from MODEL.
    It measures how sensitive groups of tensors are to rounding, as finely as --minutes allows, and prints how far the
    result and the largest plain mix within the limit are from MODEL, on texts that the search did not use. What was
    measured is stored: after an interruption, and for the next size, it is not measured again.

    --type names a mix of llama.cpp: the result has the types, and with the same encoder the bytes, that llama-quantize
    gives.

    If MODEL is quantised already and `organ prove` has found the model in F16 that it was made from, the result is
    computed from that one; otherwise MODEL is rounded twice.

    The command makes a chimera: `organ show` prints its recipe, and `organ compose` can change it.
    """
    if is_file(model):
        raise click.UsageError(f"{model} is a file: register it first (organ ingest), then give its name")
    limits = [key for key in ("size", "bpw", "like", "fits") if wanted[key] is not None]
    if len(limits) + (dtype is not None) != 1:
        raise click.UsageError("give one of --type, --size, --bpw, --like and --fits")
    if limits and dry_run:
        raise click.UsageError("--dry-run is for --type")
    if wanted["context"] is not None and wanted["fits"] is None:
        raise click.UsageError("--context is for --fits")
    if minutes is not None and not limits:
        raise click.UsageError("--minutes is not for --type, with which nothing is measured before the file is made")
    with selected_registry() as registry:
        matrix = None if importances is None else registered_importances(registry, importances)
        if dtype is None:
            from organs.registry.compose.recipe import WARNINGS

            request = QuantizationRequest(
                model=model,
                size_bytes=wanted["size"],
                bits=wanted["bpw"],
                like=wanted["like"],
                memory_bytes=wanted["fits"],
                context=wanted["context"],
                cache_type=wanted["cache_type"],
                micro_batch=wanted["micro_batch"],
                flash_attention=wanted["flash_attention"],
                imatrix=matrix,
                name=name,
                accept=tuple(WARNINGS) if yes else accept,
                minutes=minutes,
            )
            if output is not None:
                gguf_targets(output, [SUFFIX])  # before the work, which takes minutes
            with status_line("quantize") as say:
                sized = registry.quantize(request, say)
            if output is not None:
                made = parse_model_name(sized.chimera.model).name
                [output] = gguf_targets(output, [f"{made}{SUFFIX}"])
                registry.assemble(sized.chimera.model, output)
            print_sized(sized, output)
            return
        options = ComposeOptions(output, dry_run, accept_all=yes, look_seconds=look_seconds(quick_look))
        try:
            composition = registry.compose(model).quantize(dtype).accept(*accept)
            composition = composition if matrix is None else composition.imatrix(matrix)
            composition = composition if name is None else composition.named(name)
        except BadRecipe as error:
            refuse_recipe(error)
        print_composed(registry, make_chimera(registry, composition, options), options)


def print_sized(sized: SizedModel, output: Path | None) -> None:
    """Print a made size, and how far it and the plain mix are from the source."""
    if printed_for_programs(sized, [sized.chimera.model]):
        return
    points = [sized.point, *([] if sized.plain is None else [sized.plain])]
    print_table([column for column in COLUMNS if not column.data_only], points)
    click.echo()
    if sized.plain is not None and sized.plain.divergence and sized.point.divergence is not None:
        share = sized.point.divergence / sized.plain.divergence
        print_sentence(f"Its divergence from {plain(sized.source)} is {share:.2f} times that of {sized.plain.label}.")
    if sized.plain is None:
        print_sentence("None of the mixes Q2_K to Q8_0 is so small.")
    if sized.memory is not None:
        memory = sized.memory
        again = f", {size_text(memory.repacked_bytes)} of them a second time" if memory.repacked_bytes else ""
        print_sentence(
            f"llama.cpp takes {size_text(memory.total_bytes)} for it with {memory.context_tokens:,} tokens, by its own "
            f"count: {size_text(memory.weights_bytes)} weights{again}, {size_text(memory.cache_bytes)} cache, "
            f"{size_text(memory.compute_bytes)} compute."
        )
    made = plain(sized.chimera.model)
    where = "" if output is None else f", written to {plain(str(output))}"
    print_sentence(f"{made}: {size_text(sized.chimera.size_bytes)}{where}")
    if output is None:
        print_sentence(f"organ assemble {made} -o . writes its file.")


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
