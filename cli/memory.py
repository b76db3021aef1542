"""`organ memory`: count the memory that llama.cpp takes for a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from organs.cli.console import output_options, plain, print_sentence, printed_for_programs, status_line
from organs.cli.outputs import SUFFIX
from organs.cli.registries import local_registry
from organs.cli.tables import print_table
from organs.registry.entities.memory import MEMORY_COLUMNS
from organs.registry.settings import Settings

CONTEXTS_MAX = 16


@click.command()
@click.argument("model", metavar="MODEL|FILE.gguf")
@click.option(
    "--context",
    "contexts",
    multiple=True,
    type=int,
    metavar="TOKENS",
    help="The tokens of the context. Repeatable. [default: 4096, or the context of the model if it is smaller]",
)
@click.option(
    "--cache-type",
    metavar="TYPE",
    default="f16",
    show_default=True,
    help="The type of keys and values in the cache, as in llama.cpp: f16, q8_0, q4_0 …",
)
@click.option(
    "--micro-batch",
    type=int,
    metavar="TOKENS",
    default=512,
    show_default=True,
    help="The most tokens that are computed at once (-ub of llama.cpp).",
)
@click.option(
    "--flash-attention", metavar="auto|on|off", default="auto", show_default=True, help="As -fa of llama.cpp."
)
@click.option(
    "--device", metavar="DEVICE", default="cpu", show_default=True, help="Where it runs. Only cpu can be counted."
)
@output_options(json="Print the counts as JSON, with every buffer.", quiet="Print only the total of each, in bytes.")
def memory(
    model: str, contexts: tuple[int, ...], cache_type: str, micro_batch: int, flash_attention: str, device: str
) -> None:
    """Count the memory that llama.cpp takes for a model and its context.

    The numbers are those of llama.cpp itself: it loads the header, creates the context in a confined process, and logs
    each buffer. Weights are mapped from the file; some are copied a second time, in an order that suits the processor
    (repacked). The cache has the keys and values of one conversation. Compute is for intermediate results and outputs.
    Vocabulary and program take some ten megabytes more.

    MODEL is a registered model. Its file is not written: only its header is needed.
    """
    from organs.registry.validation.memory import MemoryRequest, counted_memory

    if len(contexts) > CONTEXTS_MAX:
        raise click.UsageError(f"at most {CONTEXTS_MAX} contexts")
    wanted = [
        MemoryRequest(tokens, cache_type.lower(), micro_batch, flash_attention, device) for tokens in contexts or [None]
    ]
    required = Settings.from_environment(os.environ).requires_sandbox
    with _placed(model) as (name, path), status_line("count") as say:
        counts = []
        for request in wanted:
            if request.context_tokens is not None:
                say(f"{request.context_tokens:,} tokens")
            counts.append(counted_memory(path, request, name=name, requires_sandbox=required))
    if printed_for_programs(counts, [count.total_bytes for count in counts]):
        return
    print_table([column for column in MEMORY_COLUMNS if not column.data_only], counts)
    click.echo()
    print_sentence(
        f"{plain(counts[0].model)}, one conversation, cache in {counts[0].cache_type}: as counted by "
        f"{counts[0].runtime}."
    )


@contextmanager
def _placed(model: str) -> Iterator[tuple[str, Path]]:
    """Open the file `model`, or one with the header of the registered model."""
    if model.endswith(SUFFIX) or Path(model).is_file():
        yield Path(model).name, Path(model)
        return
    from organs.registry.validation.run import registered_hole

    with local_registry() as registry, registered_hole(registry.catalog, registry.blobs, model) as placed:
        yield placed
