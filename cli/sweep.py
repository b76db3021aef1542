"""`organ sweep`: remove stored bytes that no model needs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

import click

from organs.cli.console import output_options, print_json, print_remark, print_sentence, prints_json, status_line
from organs.cli.options import flag, seconds
from organs.cli.registries import local_registry
from organs.registry.amounts import size_text
from organs.registry.settings import GRACE

AGE_DEFAULT = f"{GRACE // timedelta(hours=1)}h"


@click.command()
@flag("-y", "--yes", "Remove them. Without -y, only print what would be removed.")
@click.option(
    "--older-than",
    default=AGE_DEFAULT,
    show_default=True,
    metavar="AGE",
    type=seconds,
    help="Mark only bytes that nothing has needed for this time (90m, 24h, 3d).",
)
@output_options(json="Print the report as JSON.")
def sweep(yes: bool, older_than: float) -> None:
    """Remove stored bytes that no model needs. Interrupted ingests and removed models leave them.

    This takes two runs of `organ sweep -y`. The first run marks the blobs that nothing has needed for AGE. A later run
    removes the marked blobs that are still not needed. Each run also removes expired uploads, and files that belong to
    no blob.
    """
    from organs.ingest.contributions.uploads import tidy_uploads
    from organs.registry.upkeep import sweep as run_sweep

    with local_registry() as registry, status_line("sweep"):
        report = run_sweep(registry.catalog, registry.blobs, grace=timedelta(seconds=older_than), dry_run=not yes)
        uploads = tidy_uploads(registry, dry_run=not yes)
    if prints_json():
        print_json({**asdict(report), "uploads": asdict(uploads)})
        return
    would = "would be " if report.dry_run else ""
    print_sentence(f"{report.removed} marked blobs {would}removed ({size_text(report.removed_bytes)})")
    print_sentence(f"{report.doomed} unneeded blobs {would}marked ({size_text(report.doomed_bytes)})")
    print_sentence(f"{report.stray_files} stray files {would}removed ({size_text(report.stray_bytes)})")
    if uploads.expired_uploads or uploads.stray_files:
        uploads_text = f"{uploads.expired_uploads} expired uploads and {uploads.stray_files} stray upload files"
        print_sentence(f"{uploads_text} {would}removed ({size_text(uploads.removed_bytes)})")
    if report.dry_run:
        print_remark("nothing was changed; organ sweep -y removes them")
