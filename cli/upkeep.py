"""`organ verify`, `organ repack` and `organ sweep`: check, pack and remove stored bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from organs.cli.console import (
    output_options,
    print_failure,
    print_remark,
    print_sentence,
    printed_for_programs,
    progress_bar,
    status_line,
)
from organs.cli.options import flag, seconds
from organs.cli.registries import local_registry
from organs.registry.amounts import plural_text, size_text
from organs.registry.errors import CorruptBlob, NotFound
from organs.registry.names import parse_model_name
from organs.registry.settings import GRACE

if TYPE_CHECKING:
    from organs.registry.upkeep import Fault, Share


def _share(text: str) -> Share:
    """Return a part of all blobs, such as 2/7."""
    from organs.registry.upkeep import Share

    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise click.BadParameter(f"{text!r} is not a part: write 2/7 for the second of seven parts")
    return Share(int(match[1]), int(match[2]))


@click.command()
@click.option(
    "--read-data",
    is_flag=False,
    flag_value="1/1",
    metavar="[N/T]",
    type=_share,
    help="Also read and check the bytes of all blobs. With N/T, check only one part: 2/7 checks the second of seven.",
)
@flag(
    "--repair",
    "Set faulty blobs aside, and correct wrong totals. To replace a faulty blob, ingest a file that contains it.",
)
@output_options(json="Print the report as JSON.")
def verify(read_data: Share | None, repair: bool) -> int:
    """Check that every blob exists, and that the running totals are right. The bytes of blobs are not read.

    With --read-data, the command also reads the bytes of blobs, and compares each blob with its digest. It lists each
    faulty blob with the tensors that need it, and prints how many models there are and how many bytes they take. The
    exit status is 7 for faulty blobs, 1 for wrong totals, 3 for a registry without models and blobs.
    """
    from organs.registry.upkeep import verify as run_verify

    with local_registry() as registry:
        with progress_bar("verify", registry.totals().size_bytes) as advance:
            report = run_verify(registry.catalog, registry.blobs, read_data=read_data, repair=repair, progress=advance)
        totals = registry.totals()  # again: --repair can have corrected them
        home = registry.settings.home
    # Perhaps another folder was meant, or a database was not restored.
    is_empty = not totals.models and not totals.blobs
    sizes = {"size_bytes": totals.size_bytes, "stored_bytes": totals.stored_bytes}
    about = {**asdict(report), "models": totals.models, **sizes}
    if not printed_for_programs(about):
        print_faults(report.faults)
        read = f", {size_text(report.read_bytes)} read and hashed" if report.read_bytes else ""
        state = f"{len(report.faults)} faulty" if report.faults else "all are sound"
        if not is_empty:
            models = plural_text(totals.models, "model", "models")
            print_sentence(f"{models}, {size_text(totals.stored_bytes)} stored, {size_text(totals.size_bytes)} plain")
            print_sentence(f"{plural_text(report.blobs, 'blob', 'blobs')} checked{read}: {state}")
        if report.quarantined:
            print_sentence(
                f"{plural_text(report.quarantined, 'blob', 'blobs')} set aside: to replace them, "
                "ingest the files of the models above again"
            )
        if report.recovered:
            done = "in use again" if repair else "the next read or organ verify --repair uses them again"
            print_sentence(f"{len(report.recovered)} blobs that were set aside have the right bytes again; {done}")
        if report.counted_organs:
            print_sentence(f"{report.counted_organs} tensors checked for weights that are NaN or infinite")
        for name, (total, counted) in report.miscounted.items():
            print_sentence(f"the running total of {name.replace('_', ' ')} is {total:,}, but the count is {counted:,}")
        if report.orphans:
            print_remark(
                f"{plural_text(report.orphans, 'file belongs', 'files belong')} to no blob; "
                "organ sweep removes them when they are a day old"
            )
            if not report.blobs:
                print_remark("if this registry is not new, its database is missing: restore it before a sweep")
    if report.faults:
        return CorruptBlob.exit_code
    if report.miscounted:
        return 1
    if is_empty:
        print_failure(f"no model is registered in {home}")
        return NotFound.exit_code
    return 0


def print_faults(faults: Sequence[Fault]) -> None:
    """Print faulty blobs, each with the tensors that need it."""
    for fault in faults:
        print_sentence(fault.reason)
        for name in fault.needed_by:
            print_sentence(name, "  needed by ")


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@flag("--all", "everything", "Examine all models, also those that were examined before.")
@flag("-n", "--dry-run", "Only estimate what would be saved. Nothing is changed.")
@flag("--alone", "Store the tensors of the MODELs, by default of all models, alone again.")
@output_options(json="Print the report as JSON.")
def repack(models: tuple[str, ...], everything: bool, dry_run: bool, alone: bool) -> None:
    """Store tensors of similar models by their differences. This saves space, and changes no model.

    An ingest stores new tensors by their difference to tensors that the registry has. If a better one arrives later,
    for example the base of a fine-tune, or the original of a quantisation, this command stores the tensors again. It
    examines the given MODELs, by default all models that it has not examined yet. You can interrupt and repeat it. A
    server does the same when it has no other work.

    With --alone it stores tensors alone again; the next repack may find other parents for them. With the setting
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
            raise click.UsageError("tensors that are to be stored alone cannot be estimated: leave out --dry-run")
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
    if not printed_for_programs(report):
        if not alone:
            if not ids:
                print_sentence("Nothing to do: no new models. Use --all to examine all models again.")
                return
            organs = plural_text(report.organs, "tensor", "tensors")
            print_sentence(f"{plural_text(len(ids), 'model', 'models')} examined: {organs} compared with similar ones")
        sizes = f"{size_text(report.before_bytes)} before, {size_text(report.after_bytes)}"
        repacked = plural_text(report.repacked, "tensor", "tensors")
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
            print_remark(f"{plural_text(report.skipped, 'tensor', 'tensors')} skipped: in use or faulty")


def _age(text: str) -> float:
    """Return the seconds of an age. A number without a unit is refused: it could be meant as hours or days."""
    if re.fullmatch("[0-9]{1,6}[smhd]", text) is None:
        raise click.BadParameter(f"{text!r} is not an age: write 90m, 24h or 3d")
    return seconds(text)


@click.command()
@flag("-y", "--yes", "Remove them. Without -y, only print what would be removed.")
@click.option(
    "--older-than",
    default=f"{GRACE // timedelta(hours=1)}h",
    show_default=True,
    metavar="AGE",
    type=_age,
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
    if not printed_for_programs({**asdict(report), "uploads": uploads}):
        would = "would be " if report.dry_run else ""
        print_sentence(f"{report.removed} marked blobs {would}removed ({size_text(report.removed_bytes)})")
        print_sentence(f"{report.doomed} unneeded blobs {would}marked ({size_text(report.doomed_bytes)})")
        if report.recent:
            recent = plural_text(report.recent, "unneeded blob is", "unneeded blobs are")
            sentence = f"{recent} too recent to be marked ({size_text(report.recent_bytes)})"
            print_sentence(f"{sentence}: run this again later, or with --older-than 0s")
        print_sentence(f"{report.stray_files} stray files {would}removed ({size_text(report.stray_bytes)})")
        if uploads.expired_uploads or uploads.stray_files:
            uploads_text = f"{uploads.expired_uploads} expired uploads and {uploads.stray_files} stray upload files"
            print_sentence(f"{uploads_text} {would}removed ({size_text(uploads.removed_bytes)})")
        if report.dry_run:
            print_remark("nothing was changed; organ sweep -y does this")
