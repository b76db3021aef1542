"""`organ push`: send models to a remote registry, or with --to to a repository of the Hugging Face hub."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.console import (
    is_confirmed,
    is_for_people,
    is_quiet,
    output_options,
    plain,
    print_failure,
    print_json_line,
    print_remark,
    print_sentence,
    printed_for_programs,
    prints_json,
    progress_bar,
    status_line,
)
from organs.cli.hints import exit_status
from organs.cli.inputs import hub_of_environment, is_file, may_be_registered, with_bases
from organs.cli.options import flag, size_bytes
from organs.cli.outputs import SUFFIX, check_fits, write_files
from organs.cli.registries import local_registry, remote_registry
from organs.ingest.contributions.findings import MUST_ACCEPT
from organs.registry.amounts import plural_text, size_text
from organs.registry.compose.licenses import NO_LICENSE
from organs.registry.errors import BadInput, BadName, BadSource, Conflict, NotFound, OrganError, OverQuota
from organs.registry.names import parse_model_name
from organs.registry.settings import DEBUG_VARIABLE, Settings

if TYPE_CHECKING:
    from organs.ingest.contributions.push import PushOptions, PushReport
    from organs.ingest.contributions.sending import Memory
    from organs.ingest.hub import HubUpload
    from organs.ingest.sources import ModelSource
    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.local import LocalRegistry
    from organs.registry.store.blobs import BlobStore

CHUNK_LEAST_BYTES, CHUNK_MOST_BYTES = 64 * 1000, 64 * 1024 * 1024
THERE, DRY_RUN, COMPOSED, WOULD_COMPOSE = "there", "dry run", "composed", "would compose"
VISIBLE = ("published", THERE, COMPOSED)
NOT_PUBLISHED = ("ready", "refused", "withdrawn")


def _chunk(text: str) -> int:
    size = size_bytes(text)
    if not CHUNK_LEAST_BYTES <= size <= CHUNK_MOST_BYTES:
        raise click.BadParameter(f"{text}: from {size_text(CHUNK_LEAST_BYTES)} to {size_text(CHUNK_MOST_BYTES)}")
    return size


@click.command("push")
@click.argument("paths", nargs=-1, metavar="FILE|MODEL...", required=True)
@click.option("--to", "to", metavar="hf://NS/NAME", help="Send the models to this repository of the Hugging Face hub.")
@flag("--private", "With --to: if the repository is new, make it private.")
@flag("-y", "--yes", "With --to: send without a question.")
@click.option(
    "--name",
    help="Publish the model as NAMESPACE/NAME; for one model only. [default: the file's name, in your namespace]",
)
@click.option("--title", help="The title on the model's page. [default: the title in the file]")
@click.option(
    "--license",
    "license_name",
    help="The license as an SPDX identifier: apache-2.0, mit, cc-by-4.0 ... [default: the license in the file]",
)
@click.option("--description", help="The description on the model's page, in Markdown.")
@click.option("--card", metavar="FILE", help="A Markdown file with the description, such as README.md, and its images.")
@click.option("--base", metavar="MODEL", help="The model that this model was made from.")
@click.option("--tag", "tags", multiple=True, help="A word by which searches find the model. Repeatable.")
@click.option(
    "--chunk", "chunk_bytes", metavar="SIZE", type=_chunk, help="The size of each upload request. [default: 8M]"
)
@click.option(
    "--accept",
    multiple=True,
    type=click.Choice(sorted(MUST_ACCEPT)),
    help="Publish the model although it has this finding. Repeatable.",
)
@flag("--no-wait", "Exit when everything is sent. The registry checks and publishes the model later.")
@flag("--dry-run", "Print what would be sent; send nothing.")
@output_options(json="Print one line of JSON for each model.", quiet="Print only the address of each published model.")
def push(
    paths: tuple[str, ...],
    to: str | None,
    private: bool,
    yes: bool,
    name: str | None,
    title: str | None,
    license_name: str | None,
    description: str | None,
    card: str | None,
    base: str | None,
    tags: tuple[str, ...],
    chunk_bytes: int | None,
    accept: tuple[str, ...],
    no_wait: bool,
    dry_run: bool,
) -> int:
    """Send models to a remote registry. Tensors that the registry has already are not sent.

    FILE is a GGUF file, a folder of GGUF files, a quoted pattern, any shard of a split model, an organ directory, or a
    folder with an adapter that PEFT or MLX saved (adapter_config.json and its weights). It can be a whole model, an
    adapter, or a partial model (only some tensors of a model).

    MODEL is the name of a model in your local registry. If it is a chimera, push its parents first: then the server
    composes it, and no tensor is sent. --base can also be a GGUF file or a folder with config.json, if FILE is a
    folder with an adapter.

    `organ login` stores the token that this command needs. To continue an interrupted push, run the same command again.

    For each model, the last line is the address of its page. If the model is not published yet (it is held for
    review, or you gave --no-wait), the line is the address of its submission.

    The exit status is 1 if a model is refused, or has a finding that you must accept first. If there is only
    one FILE and it cannot be sent, it is the status of the error, such as 5 for a full quota.

    With --to hf://NAMESPACE/NAME, the models go to a repository of the Hugging Face hub; a model of your registry is
    sent with its card. The command prints what it will send, and asks. It needs the extra `hub`, and a token of the
    hub: HF_TOKEN, or that of `hf auth login`. HF_ENDPOINT names another hub.
    """
    if to is not None:
        if any((name, title, license_name, description, card, base, tags, accept, no_wait)):
            raise click.UsageError("with --to, the options are --private, -y, --dry-run, --json and -q")
        return _push_to_hub(paths, to, private=private, yes=yes, dry_run=dry_run)
    if private or yes:
        raise click.UsageError("--private and -y are for a push with --to")
    from organs.ingest.adapted_base import chosen_base
    from organs.ingest.contributions.push import PushOptions
    from organs.ingest.contributions.sending import CHUNK_BYTES

    registry, sources = remote_registry(), _push_sources(paths)
    if name is not None and len(sources) > 1:
        raise click.UsageError(f"--name is for one model; {len(sources)} were found")
    if base is not None and any(source.adapter is not None for source in sources):
        with suppress(BadName, NotFound):  # else it is only a description of the base
            sources = with_bases(sources, chosen_base(registry, base))
        # A path says what the conversion needs; the registry reads the name of the base in the adapter.
        base = None if Path(base).exists() else base
    stated = {"title": title, "license": license_name, "description": description, "base": base, "tags": list(tags)}
    images, lacking = dict[str, bytes](), tuple[str, ...]()
    if card is not None:
        if description is not None:
            raise click.UsageError("--card and --description both give the description: use one")
        from organs.ingest.cards import read_card

        written = read_card(Path(card))
        stated = {key: value or getattr(written.edits, key) for key, value in stated.items()}
        images, lacking = written.images()
    metadata = {key: value for key, value in stated.items() if value}
    options = PushOptions(
        name,
        metadata,
        chunk_bytes or CHUNK_BYTES,
        wait=not no_wait,
        dry_run=dry_run,
        accepted=accept,
        images=images,
        lacking_images=lacking,
    )
    return _push_each(registry, sources, options)


def _push_each(registry: RemoteRegistry, sources: Sequence[ModelSource], options: PushOptions) -> int:
    """Push each model and print its result; return the exit status."""
    from organs.ingest.contributions.push import push as push_model
    from organs.ingest.contributions.sending import user_memory
    from organs.ingest.service import with_base

    memory, failures, unpublished = user_memory(), list[OrganError](), 0
    for source in sources:
        try:
            with ExitStack() as stages:
                shown = _Stages(stages)
                if source.is_registered:
                    report = _push_registered(registry, source, options, memory, shown)
                else:
                    report = push_model(registry.connection, with_base(registry, source), options, memory, shown)
        except (BadInput, Conflict, OverQuota) as error:
            failures.append(error)
            if prints_json():
                about = {"file": source.locations[0], "model": None, "state": "refused", "error": str(error)}
                print_json_line(about)
            elif os.environ.get(DEBUG_VARIABLE):
                raise
            else:
                print_failure(error)
            continue
        is_unpublished = report.state in NOT_PUBLISHED
        unpublished += is_unpublished
        if options.license is None and not is_unpublished and is_for_people():
            if report.license is not None:
                sentence = f"the license is {report.license}, as the header of the file says; --license states another"
                print_remark(sentence, "  note: ")
            elif report.state == DRY_RUN:  # after an upload, the registry itself warns
                print_remark(NO_LICENSE, "  warn: ")
        _print_pushed(source, report)
    return exit_status(failures, len(sources)) or int(unpublished > 0)


def _push_sources(paths: Sequence[str]) -> list[ModelSource]:
    """Return the models in files and folders, and the models of the local registry of which `paths` has the names.

    Models of the registry are sources without files.
    """
    from organs.ingest.sources import ModelSource, find_sources
    from organs.registry.catalog.queries.model_names import model_by_text
    from organs.registry.local import LocalRegistry

    names = [path for path in paths if may_be_registered(path, digests=True)]
    files = [path for path in paths if path not in names]
    sources = find_sources(files, "push") if files else []
    for name in names:
        if not Settings.from_environment(os.environ).home.is_dir():
            raise BadSource(f"{name}: no such file or folder")
        with LocalRegistry.open() as registry, registry.catalog.reading() as session:
            try:
                model = model_by_text(session, name)
            except NotFound as error:
                raise BadSource(f"{name}: no such file or folder, and {error}") from error
            sources.append(ModelSource((), parse_model_name(model.full_name)))
    return sources


def _push_registered(
    remote: RemoteRegistry, source: ModelSource, options: PushOptions, memory: Memory, shown: _Stages
) -> PushReport:
    """Push a model of the local registry: a chimera as its recipe, all others as a file.

    A chimera whose recipe cannot be used there is sent as a file too, with a note.
    """
    from organs.ingest.contributions.push import push as push_model
    from organs.ingest.contributions.push import push_chimera
    from organs.ingest.sources import find_sources
    from organs.registry.local import LocalRegistry
    from organs.registry.store.files import temporary_folder

    with LocalRegistry.open() as registry:
        composed = push_chimera(remote, registry, source, options, shown)
        if not isinstance(composed, str):
            return composed
        files = registry.files(str(source.name))
        with temporary_folder(registry.settings.spool) as folder:
            check_fits(folder / SUFFIX, sum(file.size_bytes for file in files.files))
            write_files(files, folder, quiet=True)
            (written,) = find_sources([str(folder)], "push")
            named = replace(written, name=replace(source.name, version=None))
            report = push_model(remote.connection, named, options, memory, shown)
    if not composed or report.state in (THERE, *NOT_PUBLISHED):
        return report
    note = f"sent as a file, so it has no recipe there, because the registry cannot compose it: {composed}"
    return replace(report, notes=(*report.notes, note))


class _Stages:
    """Shows the stages of a push on stderr; `opened` ends the last one."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self._advance: Callable[[int], None] | None = None
        self._say: Callable[[str], None] | None = None

    def stage(self, label: str, total_bytes: int | None) -> None:
        """Begin a stage, with a progress bar if it has bytes."""
        self._opened.close()
        self._advance = self._say = None
        if total_bytes is None:
            self._say = self._opened.enter_context(status_line(label))
        else:
            self._advance = self._opened.enter_context(progress_bar(label, total_bytes))

    def advance(self, size_bytes: int) -> None:
        """Advance the progress bar."""
        if self._advance is not None:
            self._advance(size_bytes)

    def say(self, text: str) -> None:
        """Show what the stage waits for."""
        if self._say is not None:
            self._say(text)


def _print_pushed(source: ModelSource, report: PushReport) -> None:
    if prints_json():
        print_json_line({"file": source.locations[0]} | asdict(report) | {"error": None})
        return
    for note in report.notes:
        print_remark(note, "  note: ")
    for finding in report.findings:
        print_remark(f"{finding.sentence} ({finding.code})", f"  {finding.severity}: ")
    failed, dry, quiet = report.state in NOT_PUBLISHED, report.state in (DRY_RUN, WOULD_COMPOSE), is_quiet()
    message = f"{'organ: ' if failed else ''}{plain(report.model or report.name)}: {_outcome(report)}"
    if not quiet or failed or report.state not in (*VISIBLE, DRY_RUN, WOULD_COMPOSE):
        print_sentence(message, err=quiet or failed)
    if quiet and dry:
        click.echo(plain(report.name))
    if report.address and not failed:
        click.echo(plain(report.address))


def _outcome(report: PushReport) -> str:
    """Return the result of a push, in one line."""
    known = f"{size_text(report.bytes_known)} in {plural_text(report.pieces_known, 'piece', 'pieces')} already there"
    sent = f"{size_text(report.bytes_sent)} in {plural_text(report.pieces_sent, 'piece', 'pieces')}"
    accepted = " ".join(f"--accept {item.code}" for item in report.findings if item.code in MUST_ACCEPT)
    outcomes = {
        THERE: "already registered there, nothing was sent",
        COMPOSED: "composed there from its parents, no tensor was sent",
        WOULD_COMPOSE: "would be composed there from its parents",
        DRY_RUN: f"would send {sent}, {known}",
        "published": f"published; {sent} sent, {known}",
        "quarantined": f"held for review by an administrator; {sent} sent, {known}",
        "refused": f"refused: {plain(report.reason or 'see the findings')}; {sent} sent, {known}",
        "withdrawn": f"withdrawn; {sent} sent, {known}",
        "ready": f"not published; to publish it, push it again with {accepted}; {sent} sent, {known}",
    }
    return outcomes.get(report.state, f"submitted, being checked; {sent} sent, {known}")


def _push_to_hub(models: Sequence[str], address: str, *, private: bool, yes: bool, dry_run: bool) -> int:
    """Send files, or models of the local registry, to the repository at `address`; print what is sent before.

    Return the exit status: 1 if the user did not agree.
    """
    from organs.ingest.hub import README, HubRepository, hub_target

    with hub_of_environment() as hub, ExitStack() as opened:
        target = hub_target(address, hub)
        shows_progress = all(map(is_file, models)) and sys.stderr.isatty() and is_for_people()
        repository = HubRepository(hub, target, shows_progress=shows_progress)
        uploads, store = _uploads(opened, models)
        present = repository.content()
        if private and present is not None and not present.is_private:
            raise Conflict(f"{target.name} exists and is public: make it private on the hub, or leave out --private")
        there = () if present is None else present.files
        if README in there:
            uploads = [upload for upload in uploads if upload.path != README]
        if is_for_people():
            is_private = private if present is None else present.is_private
            kind = f"{'private' if is_private else 'public'} repository"
            state = f"a new {kind}" if present is None else f"{kind} with {plural_text(len(there), 'file', 'files')}"
            click.echo(f"to {plain(hub.endpoint)}/{target.name}, branch {plain(target.branch)}, {state}:", err=True)
            for upload in uploads:
                replaces = ", replaces the file there" if upload.path in there else ""
                click.echo(f"  {plain(upload.path)}  {size_text(upload.size_bytes)}{replaces}", err=True)
        if dry_run:
            return 0
        if not yes and not (sys.stdin.isatty() and is_confirmed("Send this?")):
            click.echo("nothing was sent; -y sends it without a question", err=True)
            return 1
        planned = sum(upload.size_bytes for upload in uploads if not isinstance(upload.content, Path | bytes))
        with progress_bar("send", 0 if shows_progress else 2 * planned) as advance:
            pushed = repository.push(uploads, store, private=private, advance=advance)
    files = [{"file": upload.path, "size_bytes": upload.size_bytes} for upload in uploads]
    values = {"items": files, "next": None, "commit": pushed.commit, "address": pushed.address}
    if not printed_for_programs(values, [pushed.address]):
        click.echo(plain(pushed.address))
    return 0


def _uploads(opened: ExitStack, models: Sequence[str]) -> tuple[list[HubUpload], BlobStore | None]:
    """Return the files to send, with the card of the first registered model, and the store of their tensors."""
    from organs.ingest.hub import README, HubUpload
    from organs.registry.assembly import plan_model
    from organs.registry.catalog.queries.model_names import model_by_text
    from organs.registry.compose.parents import refuse_partial

    uploads: list[HubUpload] = []
    cards: list[HubUpload] = []
    registry: LocalRegistry | None = None
    for text in models:
        if is_file(text):
            path = Path(text)
            uploads.append(HubUpload(path.name, path.stat().st_size, path))
            continue
        registry = registry or opened.enter_context(local_registry())
        with registry.catalog.reading() as session:
            model = model_by_text(session, text)
            refuse_partial(session, model)
            plans = plan_model(session, model)
        if len(plans) == 1:  # clients find a single file by the name of the model
            plans = [replace(plans[0], name=f"{model.name}.gguf")]
        uploads += [HubUpload(plan.name, plan.size_bytes, plan) for plan in plans]
        card = registry.card(text).encode()
        cards.append(HubUpload(README, len(card), card))
    names = [upload.path for upload in uploads]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise click.UsageError(f"two of the models have a file {double}; push them one after the other")
    return [*uploads, *cards[:1]], None if registry is None else registry.blobs
