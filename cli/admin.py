"""`organ admin`: review submissions; yank and remove models; list events; check the installation."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from msgspec import structs

from organs.cli.console import (
    first_of,
    organ_command,
    output_options,
    print_commands,
    print_facts,
    print_hint,
    print_prose,
    print_remark,
    print_sentence,
    printed_for_programs,
    status_line,
)
from organs.cli.main import CommandGroup
from organs.cli.options import ID_MAX, after_option, flag, limit_option
from organs.cli.registries import local_registry, local_session
from organs.cli.tables import print_page, print_table
from organs.registry.amounts import count_text, plural_text, size_text, theta_text
from organs.registry.columns import CellKind, Column, for_people
from organs.registry.entities.server import EVENT_COLUMNS
from organs.registry.entities.submission import SubmissionReview, SubmittedModel
from organs.registry.errors import Conflict, NoSuchSubmission, NotFound
from organs.registry.names import LOCAL, parse_model_name
from organs.registry.sandbox.protections import kernel, protections
from organs.registry.settings import Settings

EXIT_FAILED = 1
NAMES_SHOWN = 10
_SUBMISSION = click.argument("submission", type=click.IntRange(1, ID_MAX))
_REASON = click.option("--reason", required=True, metavar="TEXT", help="The reason, which users of the model see.")


@click.group(cls=CommandGroup)
def admin() -> None:
    """Review submissions; yank, restore or remove models; list events; check the protections (doctor).

    These commands work on the registry's folder, not over the network.
    """


@admin.command()
@limit_option("Rows on a page.", 50)
@after_option
@output_options(json="Print the result as JSON.", quiet="Print ids only.")
def submissions(limit: int, after: str | None) -> None:
    """List the submissions that are held for review, oldest first."""
    from organs.registry.catalog.queries.administration import waiting_submissions

    with local_session() as session:
        page = waiting_submissions(session, limit, after)
    print_page(page, lambda submission: submission.id, _print_waiting, empty="No submissions to review.")


@admin.command("show")
@_SUBMISSION
@output_options(json="Print the result as JSON.")
def show_submission(submission: int) -> None:
    """Show a SUBMISSION: its model and its findings."""
    from organs.registry.catalog.queries.administration import submission_review

    with _known(submission), local_session() as session:
        review = submission_review(session, submission)
    if not printed_for_programs(review):
        model = review.model
        facts = {
            "submission": f"{review.id}, {review.state}{': ' + review.reason if review.reason else ''}",
            "contributor": f"{review.contributor}, {review.created_at:%Y-%m-%d %H:%M}",
            "model": review.name if model is None else model.name,
            "size": f"{size_text(review.size_bytes)}, {review.size_bytes:,} bytes",
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
        print_facts([*facts.items(), *((finding.severity, finding.sentence) for finding in review.findings)])
        print_prose((model and model.description) or "")


@admin.command()
@_SUBMISSION
def approve(submission: int) -> None:
    """Publish the model of a SUBMISSION that is held for review."""
    from organs.ingest.contributions.submissions import (
        approve_submission,  # with the relatives of models, which is numpy
    )

    with _known(submission), local_registry() as registry:
        approve_submission(registry, submission, LOCAL)
    print_remark(f"submission {submission} is published")


@admin.command()
@_SUBMISSION
@click.option("--reason", required=True, metavar="TEXT", help="The reason, which the contributor sees.")
def refuse(submission: int, reason: str) -> None:
    """Refuse a SUBMISSION that is held for review. The next two runs of `organ sweep -y` remove its bytes."""
    from organs.ingest.contributions.submissions import refuse_submission

    with _known(submission), local_registry() as registry:
        refuse_submission(registry, submission, reason, LOCAL)
    print_remark(f"submission {submission} is refused")


@admin.command("yank")
@click.argument("model")
@_REASON
def yank_model(model: str, reason: str) -> None:
    """Yank MODEL: hide it from searches and rankings. It can still be downloaded by exact name or digest."""
    from organs.registry.catalog.queries.administration import model_in_any_state
    from organs.registry.catalog.register.model_changes import hide_model

    with local_session(writes=True) as session:
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

    with local_session(writes=True) as session:
        row = model_in_any_state(session, parse_model_name(model))
        if row.state == "quarantined":
            raise Conflict(f"{row.full_name} is held for review: organ admin submissions lists it")
        publish_model(session, row, LOCAL)
        name = row.full_name
    print_remark(f"{name} is visible")


@admin.command("remove")
@click.argument("model")
@_REASON
@flag("-y", "--yes", "Remove it. Without -y, only print what would be removed.")
@output_options(json="Print the result as JSON.")
def remove(model: str, reason: str, yes: bool) -> None:
    """Remove MODEL permanently. Only its name, its digest, its sizes and the reason stay, for visitors of old links.

    Without -y, the command only prints what would be removed. The next two runs of `organ sweep -y` delete the bytes
    that nothing else needs. Chimeras that have tensors of MODEL keep these tensors.
    """
    from organs.registry.catalog.queries.administration import model_in_any_state, removal_of
    from organs.registry.catalog.register.model_changes import remove_model
    from organs.registry.relatives import relinking_children

    with status_line("remove"), local_session(writes=yes) as session:
        row = model_in_any_state(session, parse_model_name(model))
        removal = removal_of(session, row)
        if yes:
            with relinking_children(session, row):
                remove_model(session, row, reason, LOCAL)
            removal = structs.replace(removal, state=row.state, reason=row.state_reason)
    if not printed_for_programs(removal):
        result = "is removed" if yes else "would be removed"
        print_sentence(f"{removal.model}, {size_text(removal.size_bytes)}, {result}")
        places = plural_text(removal.places, "place", "places")
        print_sentence(f"{places}, {plural_text(removal.organs, 'tensor', 'tensors')} that no other model has")
        blobs = plural_text(removal.blobs, "blob", "blobs")
        print_sentence(f"{blobs} ({size_text(removal.stored_bytes)}) that two runs of organ sweep -y delete")
        if removal.parents:
            blobs = f"{plural_text(removal.parents, 'blob stays', 'blobs stay')} ({size_text(removal.parents_bytes)})"
            models = first_of(removal.dependants, NAMES_SHOWN)
            print_sentence(f"{blobs}, because tensors of other models are stored by their difference to them: {models}")
            if yes:
                names = removal.dependants if len(removal.dependants) <= NAMES_SHOWN else ()
                which = "these" if names else "all"
                purpose = f"store {which} models alone, so that sweeps delete these blobs too"
                print_commands([(organ_command("repack", "--alone", *names), purpose)])
        if removal.chimeras:
            is_single = len(removal.chimeras) == 1
            count = "1 chimera has" if is_single else f"{len(removal.chimeras)} chimeras have"
            chimeras = first_of(removal.chimeras, NAMES_SHOWN)
            print_sentence(f"{count} tensors of this model, and {'keeps' if is_single else 'keep'} them: {chimeras}")
    if not yes:
        print_remark("nothing was changed; repeat the command with -y to remove it")


@admin.command()
@limit_option("Rows on a page.", 50)
@after_option
@click.option("--by", default="", metavar="NAME", help="Only actions of this account.")
@click.option("--action", default="", metavar="WORDS", help="Only this action, such as 'set quota'.")
@output_options(json="Print the result as JSON.")
def events(limit: int, after: str | None, by: str, action: str) -> None:
    """List what accounts and administrators did, newest first."""
    from organs.registry.catalog.queries.events import newest_events

    with local_session() as session:
        page = newest_events(session, limit, after, by, action)

    columns = for_people(EVENT_COLUMNS, page.items)
    print_page(page, lambda event: event.text, columns, empty="No such events.")


@admin.command()
@output_options(json="Print the result as JSON.")
def doctor() -> int:
    """Check the installation: settings, folders, free space, database, bucket, clocks, and the protections.

    The protections are those of the processes that read untrusted data (uploads and llama.cpp). The exit status is 1 if
    a check failed, or if ORGAN_SANDBOX is `require` and a protection is missing. Warnings do not change it.
    """
    from organs import migrations
    from organs.registry.checkup import check_installation

    settings = Settings.from_environment(os.environ)
    current_kernel = kernel()
    confined = protections(current_kernel, writing=False, processes=False)
    log = logging.getLogger("organs.registry")
    level = log.level
    log.setLevel(logging.CRITICAL)  # the checks show the reasons
    try:
        checks = check_installation(settings, os.environ, migrations.HEAD)
    finally:
        log.setLevel(level)
    about = {"kernel": current_kernel, "sandbox": settings.sandbox, "protections": confined, "checks": checks}
    if not printed_for_programs(about):
        result = Column("sentence", "result", CellKind.PROSE)
        print_table((Column("name", "check"), Column("state"), result), checks)
        abi = f"Landlock ABI {current_kernel.landlock_abi}" if current_kernel.landlock_abi else "no Landlock"
        seccomp = "with" if current_kernel.has_seccomp else "without"
        click.echo(f"\n{abi}, {seccomp} seccomp, ORGAN_SANDBOX={settings.sandbox}\n")
        meaning = Column("sentence", "meaning", CellKind.PROSE)
        print_table((Column("name", "protection"), Column("is_there", "present"), meaning), confined)
    is_missing = any(not protection.is_there for protection in confined)
    has_failed = any(check.state == "failed" for check in checks)
    return EXIT_FAILED if (settings.requires_sandbox and is_missing) or has_failed else 0


@contextmanager
def _known(submission: int) -> Iterator[None]:
    """Raise NoSuchSubmission for a submission that does not exist."""
    try:
        yield
    except NotFound as error:
        raise NoSuchSubmission(f"there is no submission {submission}") from error


def _print_waiting(waiting: Sequence[SubmissionReview]) -> None:
    columns = (
        Column("id", kind=CellKind.FIGURE),
        Column("contributor", rank=1),
        Column("name", "model", CellKind.NAME),
        Column("kind", rank=4, shown=lambda one: one.model and _kind(one.model)),
        Column("size_bytes", "size", CellKind.SIZE, 2),
        Column("organs", "tensors", CellKind.COUNT, rank=5, shown=lambda one: one.model and one.model.organs),
        Column("new", kind=CellKind.COUNT, rank=6, shown=lambda one: one.model and one.model.organs_new),
        Column("created_at", "submitted", CellKind.MINUTE, 3),
    )
    print_table(columns, waiting)
    for submission in waiting:
        for finding in submission.findings:
            print_sentence(f"{finding.severity}: {finding.sentence}", f"{submission.id}: ")
    hint = "details: organ admin show ID; publish: organ admin approve ID; refuse: organ admin refuse ID --reason TEXT"
    print_remark(hint)


def _kind(model: SubmittedModel) -> str:
    return model.kind if model.complete else "partial model"
