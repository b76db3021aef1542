"""`organ verify`, `organ sweep` and `organ backup`."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import folder_registry
from organs.cli.console import plain, print_json, progress_bar
from organs.registry.errors import CorruptBlob
from organs.registry.present.text import size_text
from organs.registry.settings import GRACE

if TYPE_CHECKING:
    from organs.ingest.contributions.uploads import TidyReport
    from organs.registry.backup import BackupReport
    from organs.registry.upkeep import Share, SweepReport, VerifyReport

_SHARE = re.compile(r"([0-9]{1,4})/([0-9]{1,4})", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.command()
@click.option(
    "--read-data",
    is_flag=False,
    flag_value="1/1",
    metavar="[N/T]",
    help="Read all bytes and hash them again, or the N-th of T parts of them.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Set faulty blobs aside, so that the next ingest of their bytes heals them, and put wrong totals right.",
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def verify(read_data: str | None, repair: bool, as_json: bool) -> int:
    """Check that every blob is there; with --read-data, that it still gives the bytes that its digest names.

    Exit status 7 for faulty blobs, each of which is named with the tensors that need it; 1 for wrong totals.
    """
    from organs.registry.present.models import figures
    from organs.registry.upkeep import verify as run_verify

    share = None if read_data is None else _parse_share(read_data)
    with folder_registry() as registry:
        with registry.catalog.reading() as session:
            total = figures(session)["size_bytes"]
        with progress_bar("verify", total, quiet=as_json) as advance:
            report = run_verify(registry.catalog, registry.blobs, read_data=share, repair=repair, progress=advance)
    if as_json:
        print_json(asdict(report))
    else:
        _print_verify(report, repair=repair)
    return CorruptBlob.exit_code if report.faults else int(bool(report.miscounted))


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Do it; without this, only say what would be done.")
@click.option(
    "--older-than", default="24h", show_default=True, metavar="AGE", help="Spare what was needed since (90m, 3d)."
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def sweep(yes: bool, older_than: str, as_json: bool) -> None:
    """Remove stored bytes that no model needs: what interrupted ingests and removed models have left behind.

    In two runs: the first dooms what nobody has needed for a day, a later one removes what is still doomed. Uploads
    that have expired go too, of which nobody made a model.
    """
    from organs.ingest.contributions.uploads import tidy_uploads
    from organs.registry.upkeep import sweep as run_sweep

    grace = _parse_age(older_than)
    with folder_registry() as registry:
        report = run_sweep(registry.catalog, registry.blobs, grace=grace, dry_run=not yes)
        uploads = tidy_uploads(registry, dry_run=not yes)
    if as_json:
        print_json({**asdict(report), "uploads": asdict(uploads)})
    else:
        _print_sweep(report, uploads)


def _print_verify(report: VerifyReport, *, repair: bool) -> None:
    for fault in report.faults:
        click.echo(plain(fault.reason))
        for name in fault.needed_by:
            click.echo(f"  needed by {plain(name)}")
    read = f", {size_text(report.read_bytes)} read and hashed" if report.read_bytes else ""
    wrong = f"{len(report.faults)} are faulty" if report.faults else "all are sound"
    looked = f"{report.blobs} blobs looked at{read}: {wrong}"
    click.echo(looked if report.blobs else "the database knows of no blobs")
    if report.quarantined:
        click.echo(f"{report.quarantined} set aside; ingest a file that has them to heal them")
    if report.recovered:
        done = "taken back" if repair else "the next read or organ verify --repair takes them back"
        click.echo(f"{len(report.recovered)} blobs that were set aside have the right bytes again: {done}")
    if report.counted_organs:
        click.echo(f"{report.counted_organs} organs checked for weights that are NaN or infinite")
    for name, (kept, counted) in report.miscounted.items():
        click.echo(f"the running total of {name.replace('_', ' ')} says {kept:,}, there are {counted:,}")
    if report.orphans:
        click.echo(
            f"{report.orphans} files belong to no blob; organ sweep removes them when they are a day old", err=True
        )
        if not report.blobs:
            click.echo("if this is not a new registry, its database is missing: restore it before you sweep", err=True)


def _print_sweep(report: SweepReport, uploads: TidyReport) -> None:
    would = "would be " if report.dry_run else ""
    click.echo(f"{report.removed} doomed blobs {would}removed ({size_text(report.removed_bytes)})")
    click.echo(f"{report.doomed} unneeded blobs {would}doomed ({size_text(report.doomed_bytes)})")
    click.echo(f"{report.stray_files} stray files {would}removed ({size_text(report.stray_bytes)})")
    if uploads.expired_uploads or uploads.stray_files:
        size = size_text(uploads.removed_bytes)
        click.echo(
            f"{uploads.expired_uploads} expired uploads and {uploads.stray_files} stray ones {would}removed ({size})"
        )
    if report.dry_run:
        click.echo("nothing was changed; organ sweep -y does it", err=True)


def _parse_share(text: str) -> Share:
    from organs.registry.upkeep import Share

    match = _SHARE.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise click.UsageError(f"{text!r} is no share: write 2/7 for the second of seven parts")
    return Share(int(match[1]), int(match[2]))


def _parse_age(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise click.UsageError(f"{text!r} is no age: write 90m, 24h or 3d")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


assert timedelta(hours=24) == GRACE  # the option's default says so


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--verify", "read_back", is_flag=True, help="Read all bytes of the copy and hash them before it counts.")
@click.option("--blobs-only", is_flag=True, help="Leave the database to pg_dump, which must have run before.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def backup(folder: Path, read_back: bool, blobs_only: bool, as_json: bool) -> int:
    """Copy the registry into FOLDER while it is served and written to. Run again, it copies what is new.

    FOLDER is then a registry itself: `organ --home FOLDER verify --read-data` checks it, and to restore is to copy it
    back. Uploads that are under way are left out. Exit status 7 when blobs of the registry are missing or faulty.
    """
    from organs.registry.backup import back_up
    from organs.registry.present.models import figures

    with folder_registry() as registry:
        with registry.catalog.reading() as session:
            total = figures(session)["stored_bytes"]
        with progress_bar("backup", total, quiet=as_json) as advance:
            report = back_up(
                registry.catalog,
                registry.blobs,
                registry.settings,
                folder,
                read_back=read_back,
                blobs_only=blobs_only,
                progress=advance,
            )
    if as_json:
        print_json(asdict(report))
    else:
        _print(report)
    return CorruptBlob.exit_code if report.faults else 0


def _print(report: BackupReport) -> None:
    for fault in report.faults:
        click.echo(plain(fault.reason))
        for name in fault.needed_by:
            click.echo(f"  needed by {plain(name)}")
    click.echo(f"{report.copied} files copied ({size_text(report.copied_bytes)}), {report.removed} removed")
    what = f"a database of {size_text(report.database_bytes)} and " if report.database_bytes else ""
    read = f", {size_text(report.read_bytes)} read back and hashed" if report.read_bytes else ""
    click.echo(f"{plain(report.folder)} has {what}{report.blobs} blobs{read}")
    if report.faults:
        click.echo(f"{len(report.faults)} blobs are faulty in the registry itself; organ verify says more", err=True)
