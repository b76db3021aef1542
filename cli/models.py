"""`organ models`: list the registered models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import click

from organs.cli.console import (
    is_for_people,
    output_options,
    print_remark,
    status_line,
)
from organs.cli.options import QueryCommand, after_option, flag, limit_option
from organs.cli.registries import registry_address, selected_registry
from organs.cli.search import changes_saved, print_found, query_text, saving_options
from organs.cli.tables import print_page
from organs.registry.amounts import size_text
from organs.registry.catalog.vocabulary import CHIMERA
from organs.registry.entities.model import COLUMNS, ModelSummary
from organs.registry.entities.server import Figures
from organs.registry.errors import OrganError
from organs.registry.search.language import MODELS, Query, parse_query


@click.command(
    cls=QueryCommand,
    fields={field.name: field.meaning for field in MODELS.fields.values()}
    | {"sort": f"{', '.join(MODELS.sorts)}; -theta is the highest first"},
    epilog="Any other word is searched in names, titles, tags and descriptions.",
)
@click.argument("query", nargs=-1)
@flag("--rank", "List only complete models, the highest mean θ first.")
@limit_option("Models on a page.", 50)
@after_option
@saving_options
@output_options(json="Print the list as JSON.", quiet="Print names only.")
def models(
    query: tuple[str, ...],
    rank: bool,
    limit: int,
    after: str | None,
    save: str | None,
    forget: str | None,
    saved: bool,
) -> None:
    """List the registered models, newest first. With a QUERY, list only the models that match it.

    `kin:MODEL` lists a model and its kin with their change from it, the most similar first.

    The column θ is the mean θ of the model's tensors: the shape of the distribution of their weights. It does not tell
    how good the model is. `organ verify` prints how many bytes a local registry stores.

    `organ models --save NAME 'QUERY'` saves a query; then `organ models @NAME` runs it, alone or with further terms.
    """
    text = query_text("models", query)
    if changes_saved("models", text, save, forget, saved=saved):
        return
    parsed = parse_query(text, MODELS)  # a mistake is reported before a registry is opened, which may make its folder
    with selected_registry() as registry, status_line("search"):
        list_models = registry.ranked_models if rank else registry.models
        page = list_models(text, limit=limit, after=after)
        figures = None
        if not (text or rank) and is_for_people():
            with suppress(OrganError):  # the list is useful without the totals below it
                figures = registry.figures()
    print_page(page, lambda model: model.name, lambda models: _print_models(models, figures, parsed))


def _print_models(models: Sequence[ModelSummary], figures: Figures | None, parsed: Query) -> None:
    """Print a table of models, and below it the figures of the registry."""
    if not models:
        sentence = "Nothing matches. organ models --help lists the fields."
        if figures is not None and not figures.models:
            sentence = f"No models yet. Try: organ {'ingest' if registry_address() is None else 'push'} FILE.gguf"
        elif any(choice.values == (CHIMERA,) and not choice.negated for choice in parsed.choices("kind")):
            sentence = (
                "No chimera matches. To find donors for a model: organ compat BASE. To make one: organ compose RECIPE"
            )
        print_remark(sentence)
        return
    print_found(COLUMNS, models, parsed.wanted(MODELS.default_sort))
    if figures is not None:
        size = size_text(figures.size_bytes)
        models_text = "1 model" if figures.models == 1 else f"{figures.models:,} models"
        print_remark(f"{models_text} with {figures.organs:,} different tensors, {size}")
