"""`organ push`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click
import platformdirs

from organs.cli.arguments import named_remote
from organs.cli.console import exit_status, plain, print_json_line, progress_bar, status_line
from organs.ingest.contributions.findings import MUST_ACKNOWLEDGE
from organs.registry.amounts import parse_size, size_text
from organs.registry.errors import BadInput, OrganError, OverQuota
from organs.registry.settings import DEBUG_VARIABLE

if TYPE_CHECKING:
    from organs.ingest.contributions.push import PushReport
    from organs.ingest.sources import ModelSource

CHUNK_LEAST_BYTES, CHUNK_MOST_BYTES = 64 * 1000, 64 * 1024 * 1024
THERE, DRY_RUN = "there", "dry run"
VISIBLE = ("published", THERE)
NOT_PUBLISHED = ("ready", "refused", "withdrawn")


def _chunk(_context: click.Context, _option: click.Parameter, text: str | None) -> int:
    from organs.ingest.contributions.push import CHUNK_BYTES

    if text is None:
        return CHUNK_BYTES
    try:
        size = parse_size(text)
    except BadInput as error:
        raise click.BadParameter(str(error)) from error
    if not CHUNK_LEAST_BYTES <= size <= CHUNK_MOST_BYTES:
        raise click.BadParameter(f"{text}: from {size_text(CHUNK_LEAST_BYTES)} to {size_text(CHUNK_MOST_BYTES)}")
    return size


@click.command("push")
@click.argument("paths", nargs=-1, metavar="FILE...", required=True)
@click.option("--name", help="NAMESPACE/NAME for a single model; by default the file's name in your namespace.")
@click.option("--title", help="What the model is called on its page, instead of what the file says.")
@click.option("--license", "license_name", help="The licence, as SPDX: apache-2.0, mit, cc-by-4.0 ...")
@click.option("--description", help="What it is, in Markdown.")
@click.option("--base", metavar="MODEL", help="The model that it was made from, or that its organs belong into.")
@click.option("--tag", "tags", multiple=True, help="A word to find it by; more than once for several.")
@click.option("--chunk", "chunk_bytes", metavar="SIZE", callback=_chunk, help="What is sent at once; 8M by default.")
@click.option(
    "--acknowledge",
    "acknowledged",
    multiple=True,
    type=click.Choice(sorted(MUST_ACKNOWLEDGE)),
    help="Publish it although it has this finding.",
)
@click.option("--no-wait", is_flag=True, help="Hand it in, and do not wait until it was checked.")
@click.option("--dry-run", is_flag=True, help="Say what would travel, and send nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a model, a line each.")
@click.option("-q", "--quiet", is_flag=True, help="Print addresses only: a model's once it is published.")
def push(
    paths: tuple[str, ...],
    name: str | None,
    title: str | None,
    license_name: str | None,
    description: str | None,
    base: str | None,
    tags: tuple[str, ...],
    chunk_bytes: int,
    acknowledged: tuple[str, ...],
    no_wait: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Send models to a registry elsewhere: only what it lacks.

    FILE is a GGUF file, one with only some organs of a model, a folder, a pattern, any shard of a split set, an organ
    directory, or a LoRA adapter. A push that was cut goes on where it was when it is run again, and a model that is
    there already sends nothing. `organ login` keeps the token. The address of the model's page comes last; of a model
    that is not published yet, because it waits for an administrator or nobody waits for it (--no-wait), that of its
    submission, below /submissions/. The exit status is 1 when a model is refused or has a finding that must be
    acknowledged first; of a single FILE that is not accepted, that of the error, such as 5 for too little quota.
    """
    from organs.ingest.contributions.loads import Memory
    from organs.ingest.contributions.push import PushOptions
    from organs.ingest.contributions.push import push as push_model
    from organs.ingest.sources import find_sources

    sources = find_sources(paths, "push")
    if name is not None and len(sources) > 1:
        raise click.UsageError(f"--name is for one model; {len(sources)} were found")
    said = {"title": title, "license": license_name, "description": description, "base": base, "tags": list(tags)}
    metadata = {key: value for key, value in said.items() if value}
    options = PushOptions(name, metadata, chunk_bytes, wait=not no_wait, dry_run=dry_run, acknowledged=acknowledged)
    memory = Memory(Path(platformdirs.user_cache_dir("organ-registry")) / "push")
    connection, failures, unpublished = named_remote().connection, list[OrganError](), 0
    for source in sources:
        try:
            with _Shown(quiet=quiet or as_json) as shown:
                report = push_model(connection, source, options, memory, shown)
        except (BadInput, OverQuota) as error:
            failures.append(error)
            _print_refused(source, error, as_json=as_json)
            continue
        unpublished += report.state in NOT_PUBLISHED
        _print(source, report, as_json=as_json, quiet=quiet)
    return exit_status(failures, len(sources)) or int(unpublished > 0)


class _Shown:
    """The progress of a push on stderr, one stage after another."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._stage = ExitStack()
        self._advance: Callable[[int], None] | None = None
        self._say: Callable[[str], None] | None = None

    def __enter__(self) -> _Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self._stage.close()

    def stage(self, label: str, total_bytes: int | None) -> None:
        """Show `label`, with a bar where there are bytes to be dealt with."""
        self._stage.close()
        self._advance = self._say = None
        if total_bytes is None:
            self._say = self._stage.enter_context(status_line(label, quiet=self._quiet))
        else:
            self._advance = self._stage.enter_context(progress_bar(label, total_bytes, quiet=self._quiet))

    def advance(self, size_bytes: int) -> None:
        """Bytes of the stage have been dealt with."""
        if self._advance is not None:
            self._advance(size_bytes)

    def say(self, text: str) -> None:
        """What the stage waits for."""
        if self._say is not None:
            self._say(text)


def _print_refused(source: ModelSource, error: OrganError, *, as_json: bool) -> None:
    if as_json:
        print_json_line({"file": str(source.paths[0]), "model": None, "state": "refused", "error": str(error)})
    elif os.environ.get(DEBUG_VARIABLE):
        raise error
    else:
        click.echo(f"organ: {plain(error)}", err=True)


def _print(source: ModelSource, report: PushReport, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json_line(_values(source, report))
        return
    for note in report.notes:
        click.echo(f"  note: {plain(note)}", err=True)
    for finding in report.findings:
        click.echo(f"  {plain(finding.severity)}: {plain(finding.sentence)} ({plain(finding.code)})", err=True)
    failed, dry = report.state in NOT_PUBLISHED, report.state == DRY_RUN
    said = f"{'organ: ' if failed else ''}{plain(report.model or report.name)}: {_outcome(report)}"
    if not quiet or failed or report.state not in (*VISIBLE, DRY_RUN):
        click.echo(said, err=quiet or failed)
    if quiet and dry:
        click.echo(plain(report.name))
    if report.address and not failed:
        click.echo(plain(report.address))


def _outcome(report: PushReport) -> str:
    """What came of it, in a line."""
    known = f"{size_text(report.bytes_known)} in {_pieces(report.pieces_known)} known there"
    sent = f"{size_text(report.bytes_sent)} in {_pieces(report.pieces_sent)}"
    if report.state == THERE:
        return "it is there already, nothing was sent"
    if report.state == DRY_RUN:
        return f"would send {sent}, {known}"
    ended = {
        "published": "published",
        "quarantined": "it waits for an administrator's approval",
        "refused": f"refused: {plain(report.reason or 'see the findings')}",
        "withdrawn": "withdrawn",
        "ready": f"not published; to publish it all the same, push it again with {_acknowledgements(report)}",
    }
    return f"{ended.get(report.state, 'handed in, being checked')}; {sent} sent, {known}"


def _acknowledgements(report: PushReport) -> str:
    return " ".join(f"--acknowledge {one.code}" for one in report.findings if one.code in MUST_ACKNOWLEDGE)


def _pieces(count: int) -> str:
    return "1 piece" if count == 1 else f"{count:,} pieces"


def _values(source: ModelSource, report: PushReport) -> dict[str, object]:
    members = {member.name: getattr(report, member.name) for member in fields(report)}
    return {"file": str(source.paths[0])} | members | {"error": None}
