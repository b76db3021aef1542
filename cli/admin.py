"""Administration: `organ verify`, `backup`, `sweep` and `admin`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from organs.cli.arguments import local_registry, print_more
from organs.cli.console import plain, print_json, print_table, progress_bar
from organs.cli.main import CommandGroup
from organs.registry.amounts import count_text, size_text, theta_text
from organs.registry.catalog.cursor import PAGE_MAX
from organs.registry.entities.administration import Removal
from organs.registry.entities.submission import SubmissionReview, SubmittedModel
from organs.registry.errors import Conflict, CorruptBlob, NoSuchSubmission, NotFound
from organs.registry.names import parse_model_name
from organs.registry.sandbox.protections import Protection, kernel, protections
from organs.registry.settings import GRACE, Settings

if TYPE_CHECKING:
    from organs.ingest.contributions.uploads import TidyReport
    from organs.registry.backup import BackupReport
    from organs.registry.upkeep import Share, SweepReport, VerifyReport


EXIT_FAILED = 1
ID_MAX = 2**63 - 1
CHIMERAS_SHOWN = 10
_LIMIT = click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, PAGE_MAX), help="Rows on a page."
)
_AFTER = click.option("--after", metavar="PLACE", help="Continue after this page (its `next` value).")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_QUIET = click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
_REASON = click.option("--reason", required=True, metavar="TEXT", help="The reason, for the users of the model.")
_SUBMISSION = click.argument("submission", type=click.IntRange(1, ID_MAX))


@click.group(cls=CommandGroup)
def admin() -> None:
    """Review submissions; yank, restore and remove models; list events; check the protections (doctor).

    These commands work on the registry's folder, not over the network.
    """


@admin.command()
@_LIMIT
@_AFTER
@_JSON
@_QUIET
def quarantine(limit: int, after: str | None, as_json: bool, quiet: bool) -> None:
    """List the submissions to review, the oldest first."""
    from organs.registry.catalog.queries.administration import waiting_submissions

    with local_registry() as registry, registry.catalog.reading() as session:
        page = waiting_submissions(session, limit, after)
    if as_json:
        print_json(page)
        return
    if quiet:
        for one in page:
            click.echo(one.id)
    else:
        _print_waiting(page.items)
    if page.next is not None:
        print_more("admin", "", ["quarantine", *(["-q"] if quiet else []), "--limit", str(limit)], page.next)


@admin.command("show")
@_SUBMISSION
@_JSON
def show_submission(submission: int, as_json: bool) -> None:
    """Show a submission with its findings and its model."""
    from organs.registry.catalog.queries.administration import submission_review

    with _known(submission), local_registry() as registry, registry.catalog.reading() as session:
        found = submission_review(session, submission)
    if as_json:
        print_json(found)
    else:
        _print_submission(found)


@admin.command()
@_SUBMISSION
def approve(submission: int) -> None:
    """Publish a submission: its model is visible from now on."""
    from organs.ingest.contributions.submissions import (
        approve_submission,  # with the relatives of models, which is numpy
    )
    from organs.registry.catalog.register.accounts import LOCAL

    with _known(submission), local_registry() as registry:
        approve_submission(registry, submission, LOCAL)
    click.echo(f"submission {submission} is published", err=True)


@admin.command()
@_SUBMISSION
@click.option("--reason", required=True, metavar="TEXT", help="The reason, for its contributor.")
def refuse(submission: int, reason: str) -> None:
    """Refuse a submission; the next sweeps remove its bytes."""
    from organs.ingest.contributions.submissions import refuse_submission
    from organs.registry.catalog.register.accounts import LOCAL

    with _known(submission), local_registry() as registry:
        refuse_submission(registry, submission, reason, LOCAL)
    click.echo(f"submission {submission} is refused", err=True)


@admin.command("yank")
@click.argument("model")
@_REASON
def yank_model(model: str, reason: str) -> None:
    """Hide MODEL from searches and rankings. It can still be downloaded by its exact name or its digest."""
    from organs.registry.catalog.queries.administration import model_in_any_state
    from organs.registry.catalog.register.accounts import LOCAL
    from organs.registry.catalog.register.models import hide_model

    with local_registry() as registry, registry.catalog.writing() as session:
        found = model_in_any_state(session, parse_model_name(model))
        hide_model(session, found, "yanked", reason, LOCAL)
        name = found.full_name
    click.echo(f"{plain(name)} is yanked; organ admin restore {plain(name)} shows it again", err=True)


@admin.command("restore")
@click.argument("model")
def restore_model(model: str) -> None:
    """Show a yanked MODEL again."""
    from organs.ingest.service import publish_model
    from organs.registry.catalog.queries.administration import model_in_any_state
    from organs.registry.catalog.register.accounts import LOCAL

    with local_registry() as registry, registry.catalog.writing() as session:
        found = model_in_any_state(session, parse_model_name(model))
        if found.state == "quarantined":
            raise Conflict(f"{found.full_name} waits for review: organ admin quarantine lists it")
        publish_model(session, found, LOCAL)
        name = found.full_name
    click.echo(f"{plain(name)} is visible", err=True)


@admin.command("remove")
@click.argument("model")
@_REASON
@click.option("-y", "--yes", is_flag=True, help="Remove it; without this, only print what would be removed.")
@_JSON
def remove(model: str, reason: str, yes: bool, as_json: bool) -> None:
    """Remove MODEL permanently. Its name, its digest and the reason stay, for links to it.

    Without -y, print what would be removed. The next two runs of organ sweep remove the bytes that nothing else needs.
    Chimeras keep the organs that they have from it.
    """
    from organs.registry.catalog.queries.administration import (
        model_in_any_state,
        removal_of,
    )
    from organs.registry.catalog.register.accounts import LOCAL
    from organs.registry.catalog.register.models import remove_model

    with local_registry() as registry:
        opened = registry.catalog.writing if yes else registry.catalog.reading
        with opened() as session:
            found = model_in_any_state(session, parse_model_name(model))
            going = removal_of(session, found)
            if yes:
                remove_model(session, found, reason, LOCAL)
                going = structs.replace(going, state=found.state, reason=found.state_reason)
    if as_json:
        print_json(going)
    else:
        _print_removal(going, done=yes)
    if not yes:
        click.echo("nothing was changed; -y does it", err=True)


@admin.command()
@_LIMIT
@_AFTER
@click.option("--by", default="", metavar="NAME", help="Only actions of this contributor.")
@click.option("--action", default="", metavar="WORDS", help="Only this action, as in the list.")
@_JSON
def events(limit: int, after: str | None, by: str, action: str, as_json: bool) -> None:
    """List who did what, newest first."""
    from organs.registry.catalog.queries.events import newest_events

    with local_registry() as registry, registry.catalog.reading() as session:
        page = newest_events(session, limit, after, by, action)
    if as_json:
        print_json(page)
        return
    if not page.items:
        click.echo("No such events.", err=True)
        return
    rows = [(f"{event.at:%Y-%m-%d %H:%M:%S}", event.contributor, event.action, event.text) for event in page]
    print_table(("at (UTC)", "who", "did", "to"), rows)
    if page.next is not None:
        narrowed = [*(["--by", by] if by else []), *(["--action", action] if action else [])]
        print_more("admin", "", ["events", *narrowed, "--limit", str(limit)], page.next)


@admin.command()
@_JSON
def doctor(as_json: bool) -> int:
    """Check the protections of the registry: the sandbox of processes that read untrusted data, and its folder.

    The exit status is 1 if ORGAN_SANDBOX=require refuses one of these processes, or if other users can read the folder.
    """
    settings = Settings.from_environment(os.environ)
    current_kernel = kernel()
    confined = {
        "uploads": protections(current_kernel, port=False, writing=False, processes=False),
        "llama.cpp": protections(current_kernel, port=True, writing=False, processes=False),
    }
    folder = _folder_protection(settings.home)
    if as_json:
        values = {program: [asdict(one) for one in found] for program, found in confined.items()}
        print_json(
            {
                "kernel": asdict(current_kernel),
                "sandbox": settings.sandbox,
                "processes": values,
                "folder": asdict(folder),
            }
        )
    else:
        abi = f"Landlock ABI {current_kernel.landlock_abi}" if current_kernel.landlock_abi else "no Landlock"
        seccomp = "with" if current_kernel.has_seccomp else "without"
        click.echo(f"{abi}, {seccomp} seccomp, ORGAN_SANDBOX={settings.sandbox}\n")
        rows = [(program, one) for program, found in confined.items() for one in found]
        rows.append(("the registry", folder))
        cells = [(program, one.name, "yes" if one.is_there else "no", one.sentence) for program, one in rows]
        print_table(("process", "protection", "here", "what follows"), cells)
    missing = [one for found in confined.values() for one in found if not one.is_there]
    return EXIT_FAILED if (settings.requires_sandbox and missing) or not folder.is_there else 0


def _folder_protection(home: Path) -> Protection:
    """Whether other users of this machine are kept out of the registry's folder."""
    try:
        mode = home.stat().st_mode & 0o777
    except OSError as error:
        return Protection("folder", True, f"{home}: {error.strerror}; it is made when something is stored.")
    if mode & 0o077:
        sentence = (
            f"{home} has mode {mode:04o}: other users of this machine can look into it. chmod 700 keeps them out."
        )
        return Protection("folder", False, sentence)
    return Protection("folder", True, f"{home} has mode {mode:04o}: other users of this machine cannot look into it.")


@contextmanager
def _known(submission: int) -> Iterator[None]:
    """Raise NoSuchSubmission for a submission that does not exist."""
    try:
        yield
    except NotFound as error:
        raise NoSuchSubmission(f"there is no submission {submission}") from error


def _print_waiting(waiting: Sequence[SubmissionReview]) -> None:
    if not waiting:
        click.echo("No submissions wait.", err=True)
        return
    columns = ("id", "who", "model", "kind", "size", "organs", "new", "sent")
    print_table(columns, [_waiting_row(one) for one in waiting], ("id", "size", "organs", "new"))
    for one in waiting:
        for finding in one.findings:
            click.echo(f"{one.id}: {plain(finding.severity)}: {plain(finding.sentence)}")
    hint = "organ admin show ID says more; approve ID publishes one, refuse ID --reason TEXT refuses it"
    click.echo(hint, err=True)


def _waiting_row(one: SubmissionReview) -> tuple[object, ...]:
    model = one.model
    return (
        *(one.id, one.contributor, one.name, "–" if model is None else _kind(model), size_text(one.size_bytes)),
        *(
            _number(None if model is None else model.organs),
            _number(None if model is None else model.organs_new),
            f"{one.created_at:%Y-%m-%d %H:%M}",
        ),
    )


def _print_submission(one: SubmissionReview) -> None:
    model = one.model
    facts = {
        "submission": f"{one.id}, {one.state}{': ' + one.reason if one.reason else ''}",
        "sent by": f"{one.contributor}, {one.created_at:%Y-%m-%d %H:%M}",
        "model": one.name if model is None else model.name,
        "size": f"{size_text(one.size_bytes)}, {one.size_bytes:,} bytes",
    }
    if model is not None:
        facts |= {
            "kind": f"{_kind(model)}{', ' + model.architecture if model.architecture else ''}",
            "tensors": f"{model.tensors:,}, {count_text(model.parameters)} parameters",
            "organs": f"{model.organs:,}, {model.organs_new:,} of them new here",
            "mean θ": theta_text(model.mean_theta),
            "title": model.title or "–",
            "license": model.license or "none is stated",
            "base": model.base or "none is named",
            "tags": ", ".join(model.tags) or "–",
        }
    for name, text in facts.items():
        click.echo(f"{name:<12}{plain(text)}")
    for finding in one.findings:
        click.echo(f"{plain(finding.severity):<12}{plain(finding.sentence)}")
    for line in ((model and model.description) or "").splitlines():
        click.echo(f"  {plain(line)}".rstrip())


def _kind(model: SubmittedModel) -> str:
    return model.kind if model.complete else "partial model"


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _print_removal(going: Removal, *, done: bool) -> None:
    became = "is removed" if done else "would be removed"
    click.echo(f"{plain(going.model)}, {size_text(going.size_bytes)}, {became}")
    click.echo(f"{going.places} places, {going.organs} organs that no other model has")
    click.echo(f"{going.blobs} blobs ({size_text(going.stored_bytes)}) that the next two sweeps take")
    chimeras = going.chimeras
    if chimeras:
        shown = ", ".join(plain(name) for name in chimeras[:CHIMERAS_SHOWN])
        more = f" and {len(chimeras) - CHIMERAS_SHOWN} more" if len(chimeras) > CHIMERAS_SHOWN else ""
        one = len(chimeras) == 1
        which = "1 chimera has" if one else f"{len(chimeras)} chimeras have"
        click.echo(f"{which} organs of it, and {'keeps' if one else 'keep'} them: {shown}{more}")


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
    help="Set faulty blobs aside, so that the next ingest of their bytes replaces them; correct wrong totals.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def verify(read_data: str | None, repair: bool, as_json: bool) -> int:
    """Check that every blob exists; with --read-data, that its bytes have the right digest.

    Faulty blobs are listed with the tensors that need them. The exit status is 7 for faulty blobs, 1 for wrong totals.
    """
    from organs.registry.catalog.queries.reports import running_totals
    from organs.registry.upkeep import verify as run_verify

    share = None if read_data is None else _parse_share(read_data)
    with local_registry() as registry:
        with registry.catalog.reading() as session:
            total = running_totals(session).size_bytes
        with progress_bar("verify", total, quiet=as_json) as advance:
            report = run_verify(registry.catalog, registry.blobs, read_data=share, repair=repair, progress=advance)
    if as_json:
        print_json(asdict(report))
    else:
        _print_verify(report, repair=repair)
    return CorruptBlob.exit_code if report.faults else int(bool(report.miscounted))


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Remove them; without this, only print what would be removed.")
@click.option(
    "--older-than", default="24h", show_default=True, metavar="AGE", help="Keep what was needed since then (90m, 3d)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def sweep(yes: bool, older_than: str, as_json: bool) -> None:
    """Remove stored bytes that no model needs, from interrupted ingests and removed models.

    This takes two runs: the first marks blobs that were not needed for a day as doomed, a later one removes those that
    are still doomed. Expired uploads are removed too.
    """
    from organs.ingest.contributions.uploads import tidy_uploads
    from organs.registry.upkeep import sweep as run_sweep

    grace = _parse_age(older_than)
    with local_registry() as registry:
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
    looked = f"{report.blobs} blobs checked{read}: {wrong}"
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
@click.option("--verify", "read_back", is_flag=True, help="Read and hash all bytes of the copy at the end.")
@click.option("--blobs-only", is_flag=True, help="Do not copy the database: pg_dump must have run before.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def backup(folder: Path, read_back: bool, blobs_only: bool, as_json: bool) -> int:
    """Copy the registry into FOLDER, also while it is in use. The next run copies only what is new.

    FOLDER is a registry too: `organ --home FOLDER verify --read-data` checks it. To restore, copy it back. Unfinished
    uploads are not copied. The exit status is 7 if blobs of the registry are missing or faulty.
    """
    from organs.registry.backup import back_up
    from organs.registry.catalog.queries.reports import running_totals

    with local_registry() as registry:
        with registry.catalog.reading() as session:
            total = running_totals(session).stored_bytes
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
