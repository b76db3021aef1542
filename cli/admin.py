"""`organ admin`: review, models yanked, restored and removed, the event log, a check of the protections (doctor)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from msgspec import structs

from organs.cli.arguments import folder_registry, print_more
from organs.cli.console import plain, print_json, print_table
from organs.cli.main import CommandGroup
from organs.registry.catalog.search.cursor import PAGE_MAX
from organs.registry.entities.administration import Removal
from organs.registry.entities.submission import SubmissionReview, SubmittedModel
from organs.registry.errors import Conflict, NoSuchSubmission, NotFound
from organs.registry.names import parse_model_name
from organs.registry.present.text import count_text, size_text, theta_text
from organs.registry.sandbox.protections import Protection, kernel, protections
from organs.registry.settings import Settings

EXIT_FAILED = 1
ID_MAX = 2**63 - 1
CHIMERAS_SHOWN = 10
_LIMIT = click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, PAGE_MAX), help="Rows on a page."
)
_AFTER = click.option("--after", metavar="PLACE", help="Continue after this page (its `next` value).")
_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")
_QUIET = click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
_REASON = click.option("--reason", required=True, metavar="TEXT", help="Why: people who use the model will read it.")
_SUBMISSION = click.argument("submission", type=click.IntRange(1, ID_MAX))


@click.group(cls=CommandGroup)
def admin() -> None:
    """Look after a registry: what waits for review; yank, restore, remove; events; check the protections (doctor).

    These work on the registry's own folder, not over the network.
    """


@admin.command()
@_LIMIT
@_AFTER
@_JSON
@_QUIET
def quarantine(limit: int, after: str | None, as_json: bool, quiet: bool) -> None:
    """List the submissions that wait for review, the longest waiting first."""
    from organs.registry.catalog.queries.administration import waiting_submissions

    with folder_registry() as registry, registry.catalog.reading() as session:
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

    with _known(submission), folder_registry() as registry, registry.catalog.reading() as session:
        found = submission_review(session, submission)
    if as_json:
        print_json(found)
    else:
        _print_submission(found)


@admin.command()
@_SUBMISSION
def approve(submission: int) -> None:
    """Publish what waits: its model is visible from now on."""
    from organs.ingest.contributions.submissions import (
        approve_submission,  # with the relatives of models, which is numpy
    )
    from organs.registry.catalog.register.accounts import LOCAL

    with _known(submission), folder_registry() as registry:
        approve_submission(registry, submission, LOCAL)
    click.echo(f"submission {submission} is published", err=True)


@admin.command()
@_SUBMISSION
@click.option("--reason", required=True, metavar="TEXT", help="Why: its contributor will read it.")
def refuse(submission: int, reason: str) -> None:
    """Refuse what waits; its bytes go with the next sweeps."""
    from organs.ingest.contributions.submissions import refuse_submission
    from organs.registry.catalog.register.accounts import LOCAL

    with _known(submission), folder_registry() as registry:
        refuse_submission(registry, submission, reason, LOCAL)
    click.echo(f"submission {submission} is refused", err=True)


@admin.command("yank")
@click.argument("model")
@_REASON
def yank_model(model: str, reason: str) -> None:
    """Take MODEL out of searches and rankings. Who knows its name and version, or its digest, still gets it."""
    from organs.registry.catalog.queries.removing import model_in_any_state
    from organs.registry.catalog.register.accounts import LOCAL
    from organs.registry.catalog.register.states import hide_model

    with folder_registry() as registry, registry.catalog.writing() as session:
        found = model_in_any_state(session, parse_model_name(model))
        hide_model(session, found, "yanked", reason, LOCAL)
        name = found.full_name
    click.echo(f"{plain(name)} is yanked; organ admin restore {plain(name)} shows it again", err=True)


@admin.command("restore")
@click.argument("model")
def restore_model(model: str) -> None:
    """Show MODEL again, which was yanked."""
    from organs.ingest.service import publish_model
    from organs.registry.catalog.queries.removing import model_in_any_state
    from organs.registry.catalog.register.accounts import LOCAL

    with folder_registry() as registry, registry.catalog.writing() as session:
        found = model_in_any_state(session, parse_model_name(model))
        if found.state == "quarantined":
            raise Conflict(f"{found.full_name} waits for review: organ admin quarantine lists it")
        publish_model(session, found, LOCAL)
        name = found.full_name
    click.echo(f"{plain(name)} is visible", err=True)


@admin.command("remove")
@click.argument("model")
@_REASON
@click.option("-y", "--yes", is_flag=True, help="Do it; without this, only say what would go.")
@_JSON
def remove(model: str, reason: str, yes: bool, as_json: bool) -> None:
    """Remove MODEL for good. Its name, its digest and the reason stay, so that links say what became of it.

    Without -y it says what would go. The bytes that nothing else needs go with the next two runs of organ sweep;
    chimeras keep the organs that they have of it.
    """
    from organs.registry.catalog.queries.removing import model_in_any_state, removal_of
    from organs.registry.catalog.register.accounts import LOCAL
    from organs.registry.catalog.register.states import remove_model

    with folder_registry() as registry:
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
@click.option("--by", default="", metavar="NAME", help="Only what that contributor did.")
@click.option("--action", default="", metavar="WORDS", help="Only that action, as the list calls it.")
@_JSON
def events(limit: int, after: str | None, by: str, action: str, as_json: bool) -> None:
    """List who did what, newest first."""
    from organs.registry.catalog.queries.events import newest_events

    with folder_registry() as registry, registry.catalog.reading() as session:
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
    """Check what protects the registry here: how processes that read untrusted data are confined, and its folder.

    Exit status 1 where ORGAN_SANDBOX=require refuses to run one of these processes, or the folder is open to others.
    """
    settings = Settings.from_environment(os.environ)
    here = kernel()
    confined = {
        "uploads": protections(here, port=False, writing=False, processes=False),
        "llama.cpp": protections(here, port=True, writing=False, processes=False),
    }
    folder = _folder_protection(settings.home)
    if as_json:
        values = {who: [asdict(one) for one in found] for who, found in confined.items()}
        print_json(
            {
                "kernel": asdict(here),
                "sandbox": settings.sandbox,
                "processes": values,
                "folder": asdict(folder),
            }
        )
    else:
        abi = f"Landlock ABI {here.landlock_abi}" if here.landlock_abi else "no Landlock"
        click.echo(f"{abi}, {'with' if here.has_seccomp else 'without'} seccomp, ORGAN_SANDBOX={settings.sandbox}\n")
        rows = [(who, one) for who, found in confined.items() for one in found]
        rows.append(("the registry", folder))
        cells = [(who, one.name, "yes" if one.is_there else "no", one.sentence) for who, one in rows]
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
            "licence": model.license or "none is stated",
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
