"""`organ repack`: store organs of similar models by their differences."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from organs.cli.console import (
    output_options,
    print_remark,
    print_result,
    print_sentence,
    status_line,
)
from organs.cli.options import flag
from organs.cli.registries import local_registry
from organs.registry.amounts import plural_text, size_text
from organs.registry.names import parse_model_name

if TYPE_CHECKING:
    from organs.registry.references import RepackReport


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@flag("--all", "everything", "Examine all models, also those that were examined before.")
@flag("-n", "--dry-run", "Only estimate what would be saved. Nothing is changed.")
@flag("--alone", "Store the organs of the MODELs, by default of all models, alone again.")
@output_options(json="Print the report as JSON.")
def repack(models: tuple[str, ...], everything: bool, dry_run: bool, alone: bool) -> None:
    """Store organs of similar models by their differences. This saves space, and changes no model.

    An ingest stores new organs by their difference to organs that the registry has. If a better one arrives later, for
    example the base of a fine-tune, or the original of a quantisation, this command stores the organs again. It
    examines the given MODELs, by default all models that it has not examined yet. You can interrupt and repeat it. A
    server does the same when it has no other work.

    With --alone it stores organs alone again; the next repack may find other parents for them. With the setting
    ORGAN_REFERENCES=off they stay alone.
    """
    from organs.registry.catalog.queries.administration import model_in_any_state
    from organs.registry.catalog.queries.relatives import models_to_repack
    from organs.registry.references import repack as run_repack
    from organs.registry.references import store_alone
    from organs.registry.relatives import settle_sources

    if models and everything:
        raise click.UsageError("give MODELs or --all, not both")
    with local_registry() as registry:
        alone = alone or not registry.settings.references
        if alone and dry_run:
            raise click.UsageError("organs that are to be stored alone cannot be estimated: leave out --dry-run")
        with registry.catalog.reading() as session:
            if models:
                ids = [model_in_any_state(session, parse_model_name(name)).id for name in models]
            else:
                ids = list(models_to_repack(session, everything=everything or alone))
        with status_line("repack"):
            if alone:
                report = store_alone(registry.catalog, registry.blobs, ids)
            else:
                if not dry_run:
                    settle_sources(registry.catalog, registry.blobs, ids)
                report = run_repack(registry.catalog, registry.blobs, ids, dry_run=dry_run)
    print_result(report, partial(_print_repack, models=len(ids), alone=alone))


def _print_repack(report: RepackReport, *, models: int, alone: bool) -> None:
    if not alone:
        if not models:
            print_sentence("Nothing to do: no new models. Use --all to examine all models again.")
            return
        organs = plural_text(report.organs, "organ", "organs")
        print_sentence(f"{plural_text(models, 'model', 'models')} examined: {organs} compared with similar ones")
    sizes = f"{size_text(report.before_bytes)} before, {size_text(report.after_bytes)}"
    repacked = plural_text(report.repacked, "organ", "organs")
    if report.dry_run:
        print_sentence(f"{repacked} would be stored again: {sizes} afterwards (estimated)")
    else:
        how = "stored alone" if alone else "stored again"
        print_sentence(f"{repacked} {how}: {sizes} now")
    if report.unneeded_bytes:
        needed = "would not be needed" if report.dry_run else "are not needed"
        print_sentence(
            f"{size_text(report.unneeded_bytes)} of removed models {needed} any more: organ sweep frees them"
        )
    if report.skipped:
        print_remark(f"{plural_text(report.skipped, 'organ', 'organs')} skipped: in use or faulty")
