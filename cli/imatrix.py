"""`organ imatrix`: collect an importance matrix from a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from organs.cli.console import (
    output_options,
    print_remark,
    print_sentence,
    printed_for_programs,
    status_line,
)
from organs.cli.outputs import SUFFIX, force_option, gguf_targets, output_option
from organs.cli.registries import local_registry
from organs.registry.amounts import duration_text, names_text, plural_text
from organs.registry.names import name_from_text, parse_new_name
from organs.registry.settings import Settings
from organs.registry.validation.texts import built_in_texts, read_text

if TYPE_CHECKING:
    from organs.registry.local import LocalRegistry
    from organs.registry.validation.comparison import RunnableModel
    from organs.registry.validation.imatrix import CollectionPlan


CHUNKS_USUAL = 100
"""With fewer chunks, importances say more about the text than about the model."""


@click.command()
@click.argument("model", metavar="MODEL|FILE.gguf")
@click.option(
    "--text",
    "paths",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A file, or a folder of files, with a text, instead of the built-in texts. Repeatable.",
)
@click.option(
    "--minutes",
    type=float,
    metavar="M",
    help="Take at most so many minutes: parts of the texts that are evenly spread. [default: all of the texts]",
)
@click.option("--name", metavar="NAME", help="Register the result as NAMESPACE/NAME. [default: local/MODEL-imatrix]")
@output_option("OUT", "Also write the result to OUT. Needed for FILE without --name.")
@force_option("Replace an existing file.")
@output_options(json="Print the result as JSON.", quiet="Print the name or the path of the result only.")
def imatrix(model: str, paths: tuple[Path, ...], minutes: float | None, name: str | None, output: Path | None) -> None:
    """Collect an importance matrix: how large the inputs of each column of a model's weights are.

    Encoders of tensor types weigh errors by it: the weights that are multiplied with large values are kept more
    exactly. The command runs the model in llama.cpp over texts, in a confined process, and sums the squares of the
    inputs of every matrix, also of the output matrix, and of each expert. The file is that of llama-imatrix: chunks of
    512 tokens, in GGUF; llama-quantize reads it. Take texts like those that the model will read.

    MODEL is a registered model, best in F16 or BF16. The command registers the result.
    """
    from organs.registry.validation.imatrix import collect_importances

    is_path = model.endswith(SUFFIX) or Path(model).is_file()
    chosen = None if name is None else parse_new_name(name)
    if is_path and output is None and chosen is None:
        raise click.UsageError("the result for a FILE is not registered by itself: give -o OUT, or --name")
    if chosen is not None and chosen.version is not None:
        raise click.UsageError("--name takes no @version: the registry chooses the next free version")
    texts = [read_text(path) for path in paths] or built_in_texts()

    def planned(plan: CollectionPlan) -> None:
        chunks = plural_text(plan.chunks, "chunk", "chunks")
        limit = "" if minutes is None else f"; {minutes:g} min are allowed"
        few = f"; that is little, {CHUNKS_USUAL} are usual: take more text" if plan.chunks < CHUNKS_USUAL else ""
        print_remark(f"{chunks} of {plan.chunk_tokens:,} tokens: about {duration_text(plan.seconds)}{limit}{few}")

    with ExitStack() as stack:
        registry = None if is_path and chosen is None else stack.enter_context(local_registry())
        candidate = _candidate(registry, model, is_path=is_path)
        if chosen is None:
            stem = candidate.name.rpartition("/")[2].partition("@")[0].removesuffix(SUFFIX)
            chosen = parse_new_name(name_from_text(f"{stem}-imatrix"))
        path = stack.enter_context(_place(registry, output, chosen.name))
        with status_line("collect") as say:
            result = collect_importances(
                candidate,
                texts,
                path,
                seconds=None if minutes is None else 60.0 * minutes,
                planned=planned,
                progress=lambda share, step: say(f"{share:.0%} {step}"),
                requires_sandbox=Settings.from_environment(os.environ).requires_sandbox,
            )
        result = structs.replace(result, file=None if output is None else str(path))
        if registry is not None:
            from organs.ingest.add import add_model

            added = add_model(registry, path, name=str(chosen), new_version=True)
            result = structs.replace(result, model=added.model)
    names = [result.model] if result.model else [path]
    if printed_for_programs(result, names):
        return
    if result.unused:
        stacks = plural_text(len(result.unused), "stack", "stacks")
        print_remark(f"{stacks} with experts that no token used: {names_text(result.unused)}", "warning: ")
    print_sentence(result.sentence)
    if result.file is not None:
        print_sentence(f"{result.file}: written")
    if result.model is not None:
        print_sentence(f"{result.model}: registered")


def _candidate(registry: LocalRegistry | None, model: str, *, is_path: bool) -> RunnableModel:
    """Return the model in the file `model`, or the registered one."""
    if is_path or registry is None:
        from organs.registry.validation.comparison import file_candidate

        return file_candidate(Path(model))
    from organs.registry.validation.run import registered_candidate

    return registered_candidate(registry.catalog, registry.blobs, model)


@contextmanager
def _place(registry: LocalRegistry | None, output: Path | None, name: str) -> Iterator[Path]:
    """Return the path for the result: `output`, or a temporary file."""
    from organs.registry.store.files import temporary_folder

    if output is not None:
        yield gguf_targets(output, [f"{name}{SUFFIX}"])[0]
        return
    assert registry is not None
    with temporary_folder(registry.settings.spool) as folder:
        yield folder / f"{name}{SUFFIX}"
