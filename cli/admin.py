"""Administration: `organ verify`, `backup`, `migrate-store`, `repack`, `sweep` and `admin`."""

from __future__ import annotations

import logging
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from organs.cli.arguments import AFTER_HELP, local_registry, organ_words, print_more
from organs.cli.console import (
    plain,
    print_commands,
    print_facts,
    print_hint,
    print_json,
    print_prose,
    print_sentence,
    print_table,
    progress_bar,
    waiting,
)
from organs.cli.main import CommandGroup
from organs.registry.amounts import count_text, plural_text, size_text, theta_text
from organs.registry.catalog.cursor import PAGE_MAX
from organs.registry.entities.administration import Removal
from organs.registry.entities.submission import SubmissionReview, SubmittedModel
from organs.registry.errors import Conflict, CorruptBlob, NoSuchSubmission, NotFound
from organs.registry.names import parse_model_name
from organs.registry.sandbox.protections import kernel, protections
from organs.registry.settings import GRACE, TO_BLOBS_VARIABLE, TO_DATABASE_VARIABLE, Settings

if TYPE_CHECKING:
    from organs.ingest.contributions.uploads import TidyReport
    from organs.registry.backup import BackupReport
    from organs.registry.entities.about import RegistryTotals
    from organs.registry.references import RepackReport
    from organs.registry.relocation import RelocationReport
    from organs.registry.upkeep import Share, SweepReport, VerifyReport


EXIT_FAILED = 1
ID_MAX = 2**63 - 1
CHIMERAS_SHOWN = 10
_LIMIT = click.option(
    "--limit", metavar="N", default=50, show_default=True, type=click.IntRange(1, PAGE_MAX), help="Rows on a page."
)
_AFTER = click.option("--after", metavar="NEXT", help=AFTER_HELP)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_QUIET = click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
_REASON = click.option("--reason", required=True, metavar="TEXT", help="The reason, which users of the model see.")
_SUBMISSION = click.argument("submission", type=click.IntRange(1, ID_MAX))


@click.group(cls=CommandGroup)
def admin() -> None:
    """Review submissions; yank, restore or remove models; list events; check the protections (doctor).

    These commands work on the registry's folder, not over the network.
    """


@admin.command()
@_LIMIT
@_AFTER
@_JSON
@_QUIET
def submissions(limit: int, after: str | None, as_json: bool, quiet: bool) -> None:
    """List the submissions that are held for review, oldest first."""
    from organs.registry.catalog.queries.administration import waiting_submissions

    with local_registry() as registry, registry.catalog.reading() as session:
        page = waiting_submissions(session, limit, after)
    if as_json:
        print_json(page)
        return
    if quiet:
        for submission in page:
            click.echo(submission.id)
    else:
        _print_waiting(page.items)
    if page.next is not None:
        print_more("admin", "", ["submissions", *(["-q"] if quiet else []), "--limit", str(limit)], page.next)


@admin.command("show")
@_SUBMISSION
@_JSON
def show_submission(submission: int, as_json: bool) -> None:
    """Show a SUBMISSION: its model and its findings."""
    from organs.registry.catalog.queries.administration import submission_review

    with _known(submission), local_registry() as registry, registry.catalog.reading() as session:
        review = submission_review(session, submission)
    if as_json:
        print_json(review)
    else:
        _print_submission(review)


@admin.command()
@_SUBMISSION
def approve(submission: int) -> None:
    """Publish the model of a SUBMISSION that is held for review."""
    from organs.ingest.contributions.submissions import (
        approve_submission,  # with the relatives of models, which is numpy
    )
    from organs.registry.catalog.register.accounts import LOCAL

    with _known(submission), local_registry() as registry:
        approve_submission(registry, submission, LOCAL)
    print_sentence(f"submission {submission} is published", err=True)


@admin.command()
@_SUBMISSION
@click.option("--reason", required=True, metavar="TEXT", help="The reason, which the contributor sees.")
def refuse(submission: int, reason: str) -> None:
    """Refuse a SUBMISSION that is held for review. The next two runs of `organ sweep -y` remove its bytes."""
    from organs.ingest.contributions.submissions import refuse_submission
    from organs.registry.catalog.register.accounts import LOCAL

    with _known(submission), local_registry() as registry:
        refuse_submission(registry, submission, reason, LOCAL)
    print_sentence(f"submission {submission} is refused", err=True)


@admin.command("yank")
@click.argument("model")
@_REASON
def yank_model(model: str, reason: str) -> None:
    """Yank MODEL: hide it from searches and rankings. It can still be downloaded by exact name or digest."""
    from organs.registry.catalog.queries.administration import model_in_any_state
    from organs.registry.catalog.register.accounts import LOCAL
    from organs.registry.catalog.register.models import hide_model

    with local_registry() as registry, registry.catalog.writing() as session:
        row = model_in_any_state(session, parse_model_name(model))
        hide_model(session, row, "yanked", reason, LOCAL)
        name = row.full_name
    print_hint(f"{name} is yanked; to undo", f"organ admin restore {name}")


@admin.command("restore")
@click.argument("model")
def restore_model(model: str) -> None:
    """Undo a yank: show MODEL in searches and rankings again."""
    from organs.ingest.service import publish_model
    from organs.registry.catalog.queries.administration import model_in_any_state
    from organs.registry.catalog.register.accounts import LOCAL

    with local_registry() as registry, registry.catalog.writing() as session:
        row = model_in_any_state(session, parse_model_name(model))
        if row.state == "quarantined":
            raise Conflict(f"{row.full_name} is held for review: organ admin submissions lists it")
        publish_model(session, row, LOCAL)
        name = row.full_name
    print_sentence(f"{plain(name)} is visible", err=True)


@admin.command("remove")
@click.argument("model")
@_REASON
@click.option("-y", "--yes", is_flag=True, help="Remove it. Without -y, only print what would be removed.")
@_JSON
def remove(model: str, reason: str, yes: bool, as_json: bool) -> None:
    """Remove MODEL permanently. Only its name, its digest, its sizes and the reason stay, for visitors of old links.

    Without -y, the command only prints what would be removed. The next two runs of `organ sweep -y` delete the bytes
    that nothing else needs. Chimeras that have organs of MODEL keep these organs.
    """
    from organs.registry.catalog.queries.administration import (
        model_in_any_state,
        removal_of,
    )
    from organs.registry.catalog.register.accounts import LOCAL
    from organs.registry.catalog.register.models import remove_model

    with local_registry() as registry, waiting("remove", quiet=as_json):
        transaction = registry.catalog.writing if yes else registry.catalog.reading
        with transaction() as session:
            row = model_in_any_state(session, parse_model_name(model))
            removal = removal_of(session, row)
            if yes:
                remove_model(session, row, reason, LOCAL)
                removal = structs.replace(removal, state=row.state, reason=row.state_reason)
    if as_json:
        print_json(removal)
    else:
        _print_removal(removal, done=yes)
    if not yes:
        print_sentence("nothing was changed; repeat the command with -y to remove it", err=True)


@admin.command()
@_LIMIT
@_AFTER
@click.option("--by", default="", metavar="NAME", help="Only actions of this account.")
@click.option("--action", default="", metavar="WORDS", help="Only this action, such as 'set quota'.")
@_JSON
def events(limit: int, after: str | None, by: str, action: str, as_json: bool) -> None:
    """List what accounts and administrators did, newest first."""
    from organs.registry.catalog.queries.events import newest_events

    with local_registry() as registry, registry.catalog.reading() as session:
        page = newest_events(session, limit, after, by, action)
    if as_json:
        print_json(page)
        return
    if not page.items:
        print_sentence("No such events.", err=True)
        return
    rows = [(f"{event.at:%Y-%m-%d %H:%M:%S}", event.contributor, event.action, event.text) for event in page]
    print_table(("time (UTC)", "account", "action", "object"), rows, leave_out=("account",))
    if page.next is not None:
        filters = [*(["--by", by] if by else []), *(["--action", action] if action else [])]
        print_more("admin", "", ["events", *filters, "--limit", str(limit)], page.next)


@admin.command()
@_JSON
def doctor(as_json: bool) -> int:
    """Check the installation: settings, folders, free space, database, bucket, clocks, and the protections.

    The protections are those of the processes that read untrusted data (uploads and llama.cpp). The exit status is 1 if
    a check failed, or if ORGAN_SANDBOX is `require` and a protection is missing. Warnings do not change it.
    """
    from organs import migrations
    from organs.registry.checkup import check_installation

    settings = Settings.from_environment(os.environ)
    current_kernel = kernel()
    confined = protections(current_kernel, writing=False, processes=False)
    with _without_log():  # the checks show the reasons
        checks = check_installation(settings, os.environ, migrations.HEAD)
    if as_json:
        print_json(
            {
                "kernel": asdict(current_kernel),
                "sandbox": settings.sandbox,
                "protections": [asdict(protection) for protection in confined],
                "checks": [asdict(check) for check in checks],
            }
        )
    else:
        cells = [(check.name, check.state, check.sentence) for check in checks]
        print_table(("check", "state", "result"), cells, prose="result")
        abi = f"Landlock ABI {current_kernel.landlock_abi}" if current_kernel.landlock_abi else "no Landlock"
        seccomp = "with" if current_kernel.has_seccomp else "without"
        click.echo(f"\n{abi}, {seccomp} seccomp, ORGAN_SANDBOX={settings.sandbox}\n")
        rows = [(item.name, "yes" if item.is_there else "no", item.sentence) for item in confined]
        print_table(("protection", "present", "meaning"), rows, prose="meaning")
    missing = [protection for protection in confined if not protection.is_there]
    has_failed = any(check.state == "failed" for check in checks)
    return EXIT_FAILED if (settings.requires_sandbox and missing) or has_failed else 0


@contextmanager
def _without_log() -> Iterator[None]:
    log = logging.getLogger("organs.registry")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _known(submission: int) -> Iterator[None]:
    """Raise NoSuchSubmission for a submission that does not exist."""
    try:
        yield
    except NotFound as error:
        raise NoSuchSubmission(f"there is no submission {submission}") from error


def _print_waiting(waiting: Sequence[SubmissionReview]) -> None:
    if not waiting:
        print_sentence("No submissions to review.", err=True)
        return
    columns = ("id", "contributor", "model", "kind", "size", "organs", "new", "submitted")
    rows = [_waiting_row(submission) for submission in waiting]
    optional = ("new", "organs", "kind", "submitted", "size", "contributor")
    print_table(columns, rows, ("id", "size", "organs", "new"), leave_out=optional)
    for submission in waiting:
        for finding in submission.findings:
            print_sentence(f"{finding.severity}: {finding.sentence}", f"{submission.id}: ")
    hint = "details: organ admin show ID; publish: organ admin approve ID; refuse: organ admin refuse ID --reason TEXT"
    print_sentence(hint, err=True)


def _waiting_row(submission: SubmissionReview) -> tuple[object, ...]:
    model = submission.model
    return (
        *(
            submission.id,
            submission.contributor,
            submission.name,
            "–" if model is None else _kind(model),
            size_text(submission.size_bytes),
        ),
        *(
            _number(None if model is None else model.organs),
            _number(None if model is None else model.organs_new),
            f"{submission.created_at:%Y-%m-%d %H:%M}",
        ),
    )


def _print_submission(submission: SubmissionReview) -> None:
    model = submission.model
    facts = {
        "submission": f"{submission.id}, {submission.state}{': ' + submission.reason if submission.reason else ''}",
        "contributor": f"{submission.contributor}, {submission.created_at:%Y-%m-%d %H:%M}",
        "model": submission.name if model is None else model.name,
        "size": f"{size_text(submission.size_bytes)}, {submission.size_bytes:,} bytes",
    }
    if model is not None:
        facts |= {
            "kind": f"{_kind(model)}{', ' + model.architecture if model.architecture else ''}",
            "tensors": f"{model.tensors:,}, {count_text(model.parameters)} parameters",
            "organs": f"{model.organs:,}, {model.organs_new:,} of them new in this registry",
            "mean θ": theta_text(model.mean_theta),
            "title": model.title or "–",
            "license": model.license or "not stated",
            "base": model.base or "not stated",
            "tags": ", ".join(model.tags) or "–",
        }
    print_facts([*facts.items(), *((finding.severity, finding.sentence) for finding in submission.findings)])
    print_prose((model and model.description) or "")


def _kind(model: SubmittedModel) -> str:
    return model.kind if model.complete else "partial model"


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _print_removal(removal: Removal, *, done: bool) -> None:
    result = "is removed" if done else "would be removed"
    print_sentence(f"{removal.model}, {size_text(removal.size_bytes)}, {result}")
    places = plural_text(removal.places, "place", "places")
    print_sentence(f"{places}, {plural_text(removal.organs, 'organ', 'organs')} that no other model has")
    blobs = plural_text(removal.blobs, "blob", "blobs")
    print_sentence(f"{blobs} ({size_text(removal.stored_bytes)}) that the next two sweeps delete")
    if removal.parents:
        print_sentence(
            f"{plural_text(removal.parents, 'blob stays', 'blobs stay')} ({size_text(removal.parents_bytes)}), because "
            f"organs of other models are stored by their difference to them: {_some(removal.dependants)}"
        )
        if done:
            names = removal.dependants if len(removal.dependants) <= CHIMERAS_SHOWN else ()
            command = shlex.join([*organ_words(), "repack", "--alone", *names])
            which = "these" if names else "all"
            print_commands([(command, f"store {which} models alone, so that sweeps delete these blobs too")])
    chimeras = removal.chimeras
    if chimeras:
        is_single = len(chimeras) == 1
        count = "1 chimera has" if is_single else f"{len(chimeras)} chimeras have"
        print_sentence(f"{count} organs of this model, and {'keeps' if is_single else 'keep'} them: {_some(chimeras)}")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - CHIMERAS_SHOWN} more" if len(names) > CHIMERAS_SHOWN else ""
    return ", ".join(plain(name) for name in names[:CHIMERAS_SHOWN]) + more


_SHARE = re.compile(r"([0-9]{1,4})/([0-9]{1,4})", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.command()
@click.option(
    "--read-data",
    is_flag=False,
    flag_value="1/1",
    metavar="[N/T]",
    help="Also read and check the bytes of all blobs. With N/T, check only one part: 2/7 checks the second of seven.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Set faulty blobs aside, and correct wrong totals. To replace a faulty blob, ingest a file that contains it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def verify(read_data: str | None, repair: bool, as_json: bool) -> int:
    """Check that every blob exists, and that the running totals are right. The bytes of blobs are not read.

    With --read-data, the command also reads the bytes of blobs, and compares each blob with its digest. It lists each
    faulty blob with the tensors that need it, and prints how many bytes the registry stores. The exit status is 7 for
    faulty blobs, 1 for wrong totals.
    """
    from organs.registry.catalog.queries.reports import running_totals
    from organs.registry.upkeep import verify as run_verify

    share = None if read_data is None else _parse_share(read_data)
    with local_registry() as registry:
        with registry.catalog.reading() as session:
            total = running_totals(session).size_bytes
        with progress_bar("verify", total, quiet=as_json) as advance:
            report = run_verify(registry.catalog, registry.blobs, read_data=share, repair=repair, progress=advance)
        with registry.catalog.reading() as session:
            totals = running_totals(session)  # again: --repair can have corrected them
    if as_json:
        print_json({**asdict(report), "size_bytes": totals.size_bytes, "stored_bytes": totals.stored_bytes})
    else:
        _print_verify(report, totals, repair=repair)
    return CorruptBlob.exit_code if report.faults else int(bool(report.miscounted))


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Remove them. Without -y, only print what would be removed.")
@click.option(
    "--older-than",
    default="24h",
    show_default=True,
    metavar="AGE",
    help="Mark only bytes that nothing has needed for this time (90m, 24h, 3d).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def sweep(yes: bool, older_than: str, as_json: bool) -> None:
    """Remove stored bytes that no model needs. Interrupted ingests and removed models leave them.

    This takes two runs of `organ sweep -y`. The first run marks the blobs that nothing has needed for AGE. A later run
    removes the marked blobs that are still not needed. Each run also removes expired uploads, and files that belong to
    no blob.
    """
    from organs.ingest.contributions.uploads import tidy_uploads
    from organs.registry.upkeep import sweep as run_sweep

    grace = _parse_age(older_than)
    with local_registry() as registry, waiting("sweep", quiet=as_json):
        report = run_sweep(registry.catalog, registry.blobs, grace=grace, dry_run=not yes)
        uploads = tidy_uploads(registry, dry_run=not yes)
    if as_json:
        print_json({**asdict(report), "uploads": asdict(uploads)})
    else:
        _print_sweep(report, uploads)


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--all", "everything", is_flag=True, help="Examine all models, also those that were examined before.")
@click.option("-n", "--dry-run", is_flag=True, help="Only estimate what would be saved. Nothing is changed.")
@click.option("--alone", is_flag=True, help="Store the organs of the MODELs, by default of all models, alone again.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def repack(models: tuple[str, ...], everything: bool, dry_run: bool, alone: bool, as_json: bool) -> None:
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
        with waiting("repack", quiet=as_json):
            if alone:
                report = store_alone(registry.catalog, registry.blobs, ids)
            else:
                if not dry_run:
                    settle_sources(registry.catalog, registry.blobs, ids)
                report = run_repack(registry.catalog, registry.blobs, ids, dry_run=dry_run)
    if as_json:
        print_json(asdict(report))
    else:
        _print_repack(report, len(ids), alone=alone)


def _print_repack(report: RepackReport, models: int, *, alone: bool) -> None:
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
        print_sentence(f"{plural_text(report.skipped, 'organ', 'organs')} skipped: in use or faulty", err=True)


def _print_verify(report: VerifyReport, totals: RegistryTotals, *, repair: bool) -> None:
    for fault in report.faults:
        print_sentence(fault.reason)
        for name in fault.needed_by:
            print_sentence(name, "  needed by ")
    read = f", {size_text(report.read_bytes)} read and hashed" if report.read_bytes else ""
    state = f"{len(report.faults)} faulty" if report.faults else "all are sound"
    summary = f"{plural_text(report.blobs, 'blob', 'blobs')} checked{read}: {state}"
    if report.blobs:
        print_sentence(f"{size_text(totals.stored_bytes)} stored, {size_text(totals.size_bytes)} plain")
    print_sentence(summary if report.blobs else "the registry has no blobs")
    if report.quarantined:
        print_sentence(
            f"{plural_text(report.quarantined, 'blob', 'blobs')} set aside: to replace them, "
            "ingest the files of the models above again"
        )
    if report.recovered:
        done = "in use again" if repair else "the next read or organ verify --repair uses them again"
        print_sentence(f"{len(report.recovered)} blobs that were set aside have the right bytes again; {done}")
    if report.counted_organs:
        print_sentence(f"{report.counted_organs} organs checked for weights that are NaN or infinite")
    for name, (total, counted) in report.miscounted.items():
        print_sentence(f"the running total of {name.replace('_', ' ')} is {total:,}, but the count is {counted:,}")
    if report.orphans:
        print_sentence(
            f"{plural_text(report.orphans, 'file belongs', 'files belong')} to no blob; "
            "organ sweep removes them when they are a day old",
            err=True,
        )
        if not report.blobs:
            print_sentence("if this registry is not new, its database is missing: restore it before a sweep", err=True)


def _print_sweep(report: SweepReport, uploads: TidyReport) -> None:
    would = "would be " if report.dry_run else ""
    print_sentence(f"{report.removed} marked blobs {would}removed ({size_text(report.removed_bytes)})")
    print_sentence(f"{report.doomed} unneeded blobs {would}marked ({size_text(report.doomed_bytes)})")
    print_sentence(f"{report.stray_files} stray files {would}removed ({size_text(report.stray_bytes)})")
    if uploads.expired_uploads or uploads.stray_files:
        uploads_text = f"{uploads.expired_uploads} expired uploads and {uploads.stray_files} stray upload files"
        print_sentence(f"{uploads_text} {would}removed ({size_text(uploads.removed_bytes)})")
    if report.dry_run:
        print_sentence("nothing was changed; organ sweep -y removes them", err=True)


def _parse_share(text: str) -> Share:
    from organs.registry.upkeep import Share

    match = _SHARE.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise click.UsageError(f"{text!r} is not a part: write 2/7 for the second of seven parts")
    return Share(int(match[1]), int(match[2]))


def _parse_age(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise click.UsageError(f"{text!r} is not an age: write 90m, 24h or 3d")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


assert timedelta(hours=24) == GRACE  # the option's default says so


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--verify", "read_back", is_flag=True, help="At the end, read all bytes of the copy and check them.")
@click.option("--blobs-only", is_flag=True, help="Copy blobs but not the database. For PostgreSQL: run pg_dump first.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def backup(folder: Path, read_back: bool, blobs_only: bool, as_json: bool) -> int:
    """Copy the registry into FOLDER, also while it is in use. Later runs into the same FOLDER copy only new blobs.

    FOLDER is then a complete registry: `organ --home FOLDER verify --read-data` checks it. To restore the registry,
    put a copy of FOLDER in its place. Unfinished uploads are not copied. The exit status is 7 if blobs of the registry
    are missing or faulty.
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


@click.command("migrate-store")
@click.option("--to-database", metavar="URL", envvar=TO_DATABASE_VARIABLE, help="The new database; it must be empty.")
@click.option("--to-blobs", metavar="URL", envvar=TO_BLOBS_VARIABLE, help="The new folder or bucket of the blobs.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def migrate_store(to_database: str | None, to_blobs: str | None, as_json: bool) -> int:
    """Copy the registry to another database, its blobs to another folder or bucket, or both.

    The registry can be used while the blobs are copied; writers wait while the rows are copied. Stop the servers
    before, because they would continue to use the old database. The rows are read again and compared. If the command is
    interrupted, run it again: it copies only blobs that are missing. Nothing of the old registry is changed or
    removed. A URL with a password can be in the variable ORGAN_TO_DATABASE_URL. The exit status is 7 if blobs of the
    registry are missing or faulty.
    """
    from organs.registry.catalog.queries.reports import running_totals
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
        with registry.catalog.reading() as session:
            total_bytes = running_totals(session).stored_bytes
        with (
            LocalRegistry.from_settings(settings) as new,
            progress_bar("migrate-store", total_bytes, quiet=as_json or not moves_blobs) as advance,
        ):
            report = relocate(
                registry.catalog,
                registry.blobs,
                new_catalog=new.catalog if moves_database else None,
                new_blobs=new.blobs if moves_blobs else None,
                progress=advance,
            )
    if as_json:
        print_json(asdict(report))
    else:
        _print_relocation(report, settings)
    return CorruptBlob.exit_code if report.faults else 0


def _print_relocation(report: RelocationReport, settings: Settings) -> None:
    from sqlalchemy import make_url

    for fault in report.faults:
        print_sentence(f"{fault.digest[:12]}: {fault.reason}")
    print_sentence(
        f"{report.copied} files copied ({size_text(report.copied_bytes)}), {report.files} in the new place; "
        f"{plural_text(report.rows, 'row', 'rows')} copied and compared"
    )
    print_sentence("From now on, run all commands and servers of this registry with these settings:")
    click.echo(f"  ORGAN_DATABASE_URL={plain(make_url(settings.database_url).render_as_string())}")
    click.echo(f"  ORGAN_BLOBS_URL={plain(settings.blobs_location)}")


def _print(report: BackupReport) -> None:
    for fault in report.faults:
        print_sentence(fault.reason)
        for name in fault.needed_by:
            print_sentence(name, "  needed by ")
    print_sentence(f"{report.copied} files copied ({size_text(report.copied_bytes)}), {report.removed} removed")
    database = f"a database of {size_text(report.database_bytes)} and " if report.database_bytes else ""
    read = f", {size_text(report.read_bytes)} read back and hashed" if report.read_bytes else ""
    print_sentence(f"{report.folder} has {database}{report.blobs} blobs{read}")
    if report.faults:
        print_sentence(
            f"{len(report.faults)} blobs cannot be read, because they or their parents are faulty "
            "in the registry itself; organ verify lists them",
            err=True,
        )
