"""`organ backup`: a copy of the registry that can be opened, made while it is served."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from organs.cli.console import plain, print_json, progress_bar
from organs.cli.place import folder_registry
from organs.registry.backup import BackupReport, back_up
from organs.registry.present.models import figures
from organs.registry.present.text import size_text


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--verify", "read_back", is_flag=True, help="Read all bytes of the copy and hash them before it counts.")
@click.option("--blobs-only", is_flag=True, help="Leave the database to pg_dump, which must have run before.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def backup(folder: Path, read_back: bool, blobs_only: bool, as_json: bool) -> int:
    """Copy the registry into FOLDER while it is served and written to. Run again, it copies what is new.

    FOLDER is then a registry itself: `organ --home FOLDER verify --read-data` checks it, and to restore is to copy it
    back. Uploads that are under way are left out. Exit status 1 when blobs are missing or faulty in the registry.
    """
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
    return 1 if report.faults else 0


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
