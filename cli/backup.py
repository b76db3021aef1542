"""`organ backup` and `organ migrate-store`: copy the registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.console import (
    output_options,
    plain,
    print_remark,
    print_sentence,
    printed_for_programs,
    progress_bar,
)
from organs.cli.options import flag
from organs.cli.registries import local_registry
from organs.cli.upkeep import print_faults
from organs.registry.amounts import plural_text, size_text
from organs.registry.errors import CorruptBlob
from organs.registry.settings import TO_BLOBS_VARIABLE, TO_DATABASE_VARIABLE

if TYPE_CHECKING:
    pass


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@flag("--verify", "read_back", "At the end, read all bytes of the copy and check them.")
@flag("--blobs-only", "Copy blobs but not the database. For PostgreSQL: run pg_dump first.")
@output_options(json="Print the report as JSON.")
def backup(folder: Path, read_back: bool, blobs_only: bool) -> int:
    """Copy the registry into FOLDER, also while it is in use. Later runs into the same FOLDER copy only new blobs.

    FOLDER is then a complete registry: `organ --home FOLDER verify --read-data` checks it. To restore the registry,
    put a copy of FOLDER in its place. Unfinished uploads are not copied. The exit status is 7 if blobs of the registry
    are missing or faulty.
    """
    from organs.registry.backup import back_up

    with local_registry() as registry, progress_bar("backup", registry.totals().stored_bytes) as advance:
        report = back_up(
            registry.catalog,
            registry.blobs,
            registry.settings,
            folder,
            read_back=read_back,
            blobs_only=blobs_only,
            progress=advance,
        )
        models = registry.totals().models
    if not printed_for_programs(report):
        print_faults(report.faults)
        print_sentence(f"{report.copied} files copied ({size_text(report.copied_bytes)}), {report.removed} removed")
        models_text = plural_text(models, "model", "models")
        database = (
            f"{models_text}, a database of {size_text(report.database_bytes)} and " if report.database_bytes else ""
        )
        read = f", {size_text(report.read_bytes)} read back and hashed" if report.read_bytes else ""
        print_sentence(f"{report.folder} has {database}{report.blobs} blobs{read}")
        if report.faults:
            print_remark(
                f"{len(report.faults)} blobs cannot be read, because they or their parents are faulty "
                "in the registry itself; organ verify lists them"
            )
    return CorruptBlob.exit_code if report.faults else 0


@click.command("migrate-store")
@click.option("--to-database", metavar="URL", envvar=TO_DATABASE_VARIABLE, help="The new database; it must be empty.")
@click.option("--to-blobs", metavar="URL", envvar=TO_BLOBS_VARIABLE, help="The new folder or bucket of the blobs.")
@output_options(json="Print the report as JSON.")
def migrate_store(to_database: str | None, to_blobs: str | None) -> int:
    """Copy the registry to another database, its blobs to another folder or bucket, or both.

    The registry can be used while the blobs are copied; writers wait while the rows are copied. Stop the servers
    before, because they would continue to use the old database. The rows are read again and compared. If the command is
    interrupted, run it again: it copies only blobs that are missing. Nothing of the old registry is changed or
    removed. A URL with a password can be in the variable ORGAN_TO_DATABASE_URL. The exit status is 7 if blobs of the
    registry are missing or faulty.
    """
    from sqlalchemy import make_url

    from organs.registry.local import LocalRegistry
    from organs.registry.relocation import relocate
    from organs.registry.settings import moved

    if not to_database and not to_blobs:
        raise click.UsageError(
            "name the new database (--to-database), the new place of the blobs (--to-blobs), or both"
        )
    with local_registry() as registry:
        settings = moved(registry.settings, to_database, to_blobs)
        moves_blobs = settings.blobs_location != registry.settings.blobs_location
        moves_database = settings.database_url != registry.settings.database_url
        if not moves_blobs and not moves_database:
            raise click.UsageError(
                "the registry is there already: name another database or another place of the blobs."
            )
        total_bytes = registry.totals().stored_bytes if moves_blobs else 0
        with LocalRegistry.from_settings(settings) as new, progress_bar("migrate-store", total_bytes) as advance:
            report = relocate(
                registry.catalog,
                registry.blobs,
                new_catalog=new.catalog if moves_database else None,
                new_blobs=new.blobs if moves_blobs else None,
                progress=advance,
            )
    if not printed_for_programs(report):
        for fault in report.faults:
            print_sentence(f"{fault.digest[:12]}: {fault.reason}")
        print_sentence(
            f"{report.copied} files copied ({size_text(report.copied_bytes)}), {report.files} in the new place; "
            f"{plural_text(report.rows, 'row', 'rows')} copied and compared"
        )
        print_sentence("From now on, run all commands and servers of this registry with these settings:")
        click.echo(f"  ORGAN_DATABASE_URL={plain(make_url(settings.database_url).render_as_string())}")
        click.echo(f"  ORGAN_BLOBS_URL={plain(settings.blobs_location)}")
    return CorruptBlob.exit_code if report.faults else 0
