"""`organ push` and `organ pull`: models to and from a remote registry."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import remote_registry
from organs.cli.console import (
    exit_status,
    plain,
    print_failure,
    print_json,
    print_json_line,
    print_path,
    print_sentence,
    progress_bar,
    status_line,
)
from organs.cli.outputs import (
    SUFFIX,
    OutputOptions,
    WrittenPath,
    check_fits,
    check_free,
    output_option,
    print_beside_file,
    shard_size,
    stem_of,
    with_bases,
    write_files,
    write_text,
)
from organs.ingest.contributions.findings import MUST_ACCEPT
from organs.registry.amounts import parse_size, size_text
from organs.registry.compose.licenses import NO_LICENSE
from organs.registry.digest import looks_like_prefix
from organs.registry.errors import BadInput, BadName, BadSource, NotFound, OrganError, OverQuota
from organs.registry.names import parse_model_name
from organs.registry.settings import DEBUG_VARIABLE, Settings

if TYPE_CHECKING:
    from organs.ingest.contributions.cut_files import Memory
    from organs.ingest.contributions.push import PushOptions, PushReport
    from organs.ingest.sources import ModelSource
    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.compose.recipe import Recipe
    from organs.registry.interface import Registry
    from organs.registry.store.files import OutputFiles


CHUNK_LEAST_BYTES, CHUNK_MOST_BYTES = 64 * 1000, 64 * 1024 * 1024
THERE, DRY_RUN, COMPOSED, WOULD_COMPOSE = "there", "dry run", "composed", "would compose"
VISIBLE = ("published", THERE, COMPOSED)
NOT_PUBLISHED = ("ready", "refused", "withdrawn")


def _chunk(_context: click.Context, _option: click.Parameter, text: str | None) -> int:
    from organs.ingest.contributions.sending import CHUNK_BYTES

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
@click.argument("paths", nargs=-1, metavar="FILE|MODEL...", required=True)
@click.option("--to", "to", metavar="hf://NS/NAME", help="Send the models to this repository of the Hugging Face hub.")
@click.option("--private", is_flag=True, help="With --to: if the repository is new, make it private.")
@click.option("-y", "--yes", is_flag=True, help="With --to: send without a question.")
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
@click.option("--base", metavar="MODEL", help="The model that this model was made from.")
@click.option("--tag", "tags", multiple=True, help="A word by which searches find the model. Repeatable.")
@click.option(
    "--chunk", "chunk_bytes", metavar="SIZE", callback=_chunk, help="The size of each upload request. [default: 8M]"
)
@click.option(
    "--accept",
    multiple=True,
    type=click.Choice(sorted(MUST_ACCEPT)),
    help="Publish the model although it has this finding. Repeatable.",
)
@click.option(
    "--no-wait", is_flag=True, help="Exit when everything is sent. The registry checks and publishes the model later."
)
@click.option("--dry-run", is_flag=True, help="Print what would be sent; send nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each model.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the address of each published model.")
def push(
    paths: tuple[str, ...],
    to: str | None,
    private: bool,
    yes: bool,
    name: str | None,
    title: str | None,
    license_name: str | None,
    description: str | None,
    base: str | None,
    tags: tuple[str, ...],
    chunk_bytes: int,
    accept: tuple[str, ...],
    no_wait: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Send models to a remote registry. Organs that the registry has already are not sent.

    FILE is a GGUF file, a folder of GGUF files, a quoted pattern, any shard of a split model, an organ directory, or a
    folder that PEFT saved (adapter_config.json and adapter_model.safetensors). It can be a whole model, a LoRA adapter,
    or a partial model (only some organs of a model).

    MODEL is the name of a model in your local registry. If it is a chimera and the server has its parents, the server
    composes it, and no organ is sent. --base can also be a GGUF file or a folder with config.json, if FILE is a PEFT
    folder.

    `organ login` stores the token that this command needs. To continue an interrupted push, run the same command again.

    For each model, the last line is the address of its page. If the model is not published yet (it is held for
    review, or you gave --no-wait), the line is the address of its submission.

    The exit status is 1 if a model is refused, or has a finding that you must accept first. If there is only
    one FILE and it cannot be sent, it is the status of the error, such as 5 for a full quota.

    With --to hf://NAMESPACE/NAME, the models go to a repository of the Hugging Face hub; a model of your registry is
    sent with its card. The command prints what it will send, and asks. It needs the extra `hub`, and a token of the
    hub: HF_TOKEN, or that of `hf auth login`. HF_ENDPOINT names another hub.
    """
    from organs.cli.hub import HubPushOptions, push_to_hub

    if to is not None:
        _refuse_options(name, title, license_name, description, base, tags, accept, no_wait)
        return push_to_hub(paths, to, HubPushOptions(private, yes, dry_run, as_json, quiet))
    if private or yes:
        raise click.UsageError("--private and -y are for a push with --to")
    from organs.ingest.contributions.push import PushOptions

    registry, sources = remote_registry(), _push_sources(paths)
    if name is not None and len(sources) > 1:
        raise click.UsageError(f"--name is for one model; {len(sources)} were found")
    sources, base = _based(registry, sources, base)
    stated = {"title": title, "license": license_name, "description": description, "base": base, "tags": list(tags)}
    metadata = {key: value for key, value in stated.items() if value}
    options = PushOptions(name, metadata, chunk_bytes, wait=not no_wait, dry_run=dry_run, accepted=accept)
    return _push_each(registry, sources, options, as_json=as_json, quiet=quiet)


def _push_each(
    registry: RemoteRegistry, sources: Sequence[ModelSource], options: PushOptions, *, as_json: bool, quiet: bool
) -> int:
    """Push each model and print its result; return the exit status."""
    from organs.ingest.contributions.cut_files import user_memory
    from organs.ingest.contributions.push import push as push_model
    from organs.ingest.service import with_base

    memory, failures, unpublished = user_memory(), list[OrganError](), 0
    for source in sources:
        try:
            with _Shown(quiet=quiet or as_json) as shown:
                if source.is_registered:
                    report = _push_registered(registry, source, options, memory, shown)
                else:
                    report = push_model(registry.connection, with_base(registry, source), options, memory, shown)
        except (BadInput, OverQuota) as error:
            failures.append(error)
            _print_refused(source, error, as_json=as_json)
            continue
        unpublished += report.state in NOT_PUBLISHED
        if options.license is None and report.state not in NOT_PUBLISHED and not (quiet or as_json):
            _print_license(report)
        _print_pushed(source, report, as_json=as_json, quiet=quiet)
    return exit_status(failures, len(sources)) or int(unpublished > 0)


def _print_license(report: PushReport) -> None:
    """Print which license is sent if none was stated; after an upload, the registry itself warns if there is none."""
    if report.license is not None:
        sentence = f"the license is {report.license}, as the header of the file says; --license states another"
        print_sentence(sentence, "  note: ", err=True)
    elif report.state == DRY_RUN:
        print_sentence(NO_LICENSE, "  warn: ", err=True)


def _push_sources(paths: Sequence[str]) -> list[ModelSource]:
    """Return the models in files and folders, and the models of the local registry of which `paths` has the names."""
    from organs.ingest.sources import find_sources

    names = [path for path in paths if _may_be_registered(path)]
    files = [path for path in paths if path not in names]
    sources = find_sources(files, "push") if files else []
    return [*sources, *map(_registered_source, names)]


def _may_be_registered(path: str) -> bool:
    """Return whether `path` is no file, but the name of a model or a digest."""
    if os.path.lexists(path) or path.lower().endswith(SUFFIX):
        return False
    try:
        return path.startswith(DIGEST) or bool(parse_model_name(path))
    except BadName:
        return False


def _registered_source(name: str) -> ModelSource:
    """Return the model `name` of the local registry as a source without files."""
    from organs.ingest.sources import ModelSource
    from organs.registry.catalog.queries.models import model_by_text
    from organs.registry.local import LocalRegistry

    if not Settings.from_environment(os.environ).home.is_dir():
        raise BadSource(f"{name}: no such file or folder")
    with LocalRegistry.open() as registry, registry.catalog.reading() as session:
        try:
            model = model_by_text(session, name)
        except NotFound as error:
            raise BadSource(f"{name}: no such file or folder, and {error}") from error
        return ModelSource((), parse_model_name(model.full_name))


def _push_registered(
    remote: RemoteRegistry, source: ModelSource, options: PushOptions, memory: Memory, shown: _Shown
) -> PushReport:
    """Push a model of the local registry: a chimera as its recipe if its parents are there, all others as a file."""
    from organs.ingest.contributions.push import push as push_model
    from organs.ingest.contributions.push import push_chimera
    from organs.ingest.sources import find_sources
    from organs.ingest.spool import temporary_folder
    from organs.registry.local import LocalRegistry

    with LocalRegistry.open() as registry:
        composed = push_chimera(remote, registry, source, options, shown)
        if not isinstance(composed, str):
            return composed
        files = registry.files(str(source.name))
        with temporary_folder(registry.settings.spool) as folder:
            check_fits(folder / SUFFIX, sum(file.size_bytes for file in files.files))
            write_files(files, folder, OutputOptions(quiet=True))
            (written,) = find_sources([str(folder)], "push")
            named = replace(written, name=replace(source.name, version=None))
            report = push_model(remote.connection, named, options, memory, shown)
    if not composed or report.state in (THERE, *NOT_PUBLISHED):
        return report
    note = f"sent as a file, so it has no recipe there, because the registry cannot compose it: {composed}"
    return replace(report, notes=(*report.notes, note))


def _based(registry: Registry, sources: list[ModelSource], base: str | None) -> tuple[list[ModelSource], str | None]:
    """Return `sources` with the base of their PEFT folders, and the base as the registry knows it.

    A base that is a path says what the conversion needs; the registry reads the name of the base in the adapter.
    """
    from organs.ingest.bases import chosen_base

    if base is None or all(source.adapter is None for source in sources):
        return sources, base
    with suppress(BadName, NotFound):  # else it is only a description of the base
        sources = with_bases(sources, chosen_base(registry, base))
    return sources, None if Path(base).exists() else base


def _refuse_options(*values: object) -> None:
    if any(values):
        raise click.UsageError("with --to, the options are --private, -y, --dry-run, --json and -q")


class _Shown:
    """Shows the stages of a push on stderr."""

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
        """Begin a stage, with a progress bar if it has bytes."""
        self._stage.close()
        self._advance = self._say = None
        if total_bytes is None:
            self._say = self._stage.enter_context(status_line(label, quiet=self._quiet))
        else:
            self._advance = self._stage.enter_context(progress_bar(label, total_bytes, quiet=self._quiet))

    def advance(self, size_bytes: int) -> None:
        """Advance the progress bar."""
        if self._advance is not None:
            self._advance(size_bytes)

    def say(self, text: str) -> None:
        """Show what the stage waits for."""
        if self._say is not None:
            self._say(text)


def _print_refused(source: ModelSource, error: OrganError, *, as_json: bool) -> None:
    if as_json:
        print_json_line({"file": source.locations[0], "model": None, "state": "refused", "error": str(error)})
    elif os.environ.get(DEBUG_VARIABLE):
        raise error
    else:
        print_failure(str(error))


def _print_pushed(source: ModelSource, report: PushReport, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json_line(_values(source, report))
        return
    for note in report.notes:
        print_sentence(note, "  note: ", err=True)
    for finding in report.findings:
        print_sentence(f"{finding.sentence} ({finding.code})", f"  {plain(finding.severity)}: ", err=True)
    failed, dry = report.state in NOT_PUBLISHED, report.state in (DRY_RUN, WOULD_COMPOSE)
    message = f"{'organ: ' if failed else ''}{plain(report.model or report.name)}: {_outcome(report)}"
    if not quiet or failed or report.state not in (*VISIBLE, DRY_RUN, WOULD_COMPOSE):
        print_sentence(message, err=quiet or failed)
    if quiet and dry:
        click.echo(plain(report.name))
    if report.address and not failed:
        click.echo(plain(report.address))


def _outcome(report: PushReport) -> str:
    """Return the result of a push, in one line."""
    known = f"{size_text(report.bytes_known)} in {_pieces(report.pieces_known)} already there"
    sent = f"{size_text(report.bytes_sent)} in {_pieces(report.pieces_sent)}"
    if report.state == THERE:
        return "already registered there, nothing was sent"
    if report.state == COMPOSED:
        return "composed there from its parents, nothing was sent"
    if report.state == WOULD_COMPOSE:
        return "would be composed there from its parents"
    if report.state == DRY_RUN:
        return f"would send {sent}, {known}"
    outcomes = {
        "published": "published",
        "quarantined": "held for review by an administrator",
        "refused": f"refused: {plain(report.reason or 'see the findings')}",
        "withdrawn": "withdrawn",
        "ready": f"not published; to publish it, push it again with {_accept_options(report)}",
    }
    return f"{outcomes.get(report.state, 'submitted, being checked')}; {sent} sent, {known}"


def _accept_options(report: PushReport) -> str:
    return " ".join(f"--accept {item.code}" for item in report.findings if item.code in MUST_ACCEPT)


def _pieces(count: int) -> str:
    return "1 piece" if count == 1 else f"{count:,} pieces"


def _values(source: ModelSource, report: PushReport) -> dict[str, object]:
    members = {member.name: getattr(report, member.name) for member in fields(report)}
    return {"file": source.locations[0]} | members | {"error": None}


DIGEST = "sha256:"


_PAGE_ADDRESS = re.compile(r"(?P<origin>https?://[^/@\s]{1,300})/models/(?P<model>[^\s?#]{1,300})")
"""The address of the page of a model."""


@dataclass(frozen=True, slots=True)
class _Pulled:
    """The files of a model or of an organ, to be downloaded."""

    files: OutputFiles
    recipe: Recipe | None = None
    """For a partial model, the recipe that grafts it into its base."""


@click.command()
@click.argument("name", metavar="MODEL|DIGEST|hf://NS/NAME")
@output_option("OUT", "The file or folder to write. [default: the current folder]")
@click.option(
    "--shards", metavar="SIZE", help="Write a model as shards with at most SIZE (2G, 500M) of tensors in each."
)
@click.option("--partial", is_flag=True, help="Download the original file of a partial model, without its base.")
@click.option("--accept", multiple=True, metavar="CODE", help="Accept the warning CODE of a partial model. Repeatable.")
@click.option("--ingest", "ingests", is_flag=True, help="Also register the model in your local registry.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("--json", "as_json", is_flag=True, help="Print the files as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the files' paths only.")
def pull(
    name: str,
    output: Path | None,
    shards: str | None,
    partial: bool,
    accept: tuple[str, ...],
    ingests: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Download a model, a chimera or an organ from the remote registry in --registry, and check every byte.

    MODEL is NAMESPACE/NAME for the newest version, or NAMESPACE/NAME@VERSION. DIGEST is the SHA-256 of an organ; its
    first 8 characters are enough. With `sha256:` before it, DIGEST can also be that of a model's file or of a chimera's
    lock.

    A model is written as a GGUF file, an organ as its plain bytes. A file gets its name only when it is complete. To
    continue an interrupted download, run the same command again.

    The bytes of a file never change. If its header does not have the license that is stated for the model, or if the
    model or a model that it was made from was yanked or removed, the command also writes the model's card beside it, as
    OUT.card.md.

    A partial model has only some organs. The command grafts them into the base that the model names, like `organ
    assemble`. With --partial, or if you give a digest, it downloads the original file of the partial model.

    hf://NAMESPACE/NAME[/FILE][@REVISION] is a GGUF file of the Hugging Face hub; this needs no registry. HF_TOKEN and
    HF_ENDPOINT are used as by `hf`.
    """
    from organs.cli.composing import ComposeOptions, write_partial
    from organs.cli.hub import HubPullOptions, is_hub_address, pull_hub

    if is_hub_address(name):
        if shards or partial or accept or ingests:
            raise click.UsageError(
                "with hf://, the options are -o, --force, --json and -q; see also `organ ingest hf://`"
            )
        pull_hub(name, HubPullOptions(output or Path(), force, as_json, quiet))
        return

    if (address := _PAGE_ADDRESS.fullmatch(name)) is not None:
        raise click.UsageError(f"write: organ --registry {address['origin']} pull {address['model']}")
    options = ComposeOptions(output, force, False, as_json, quiet, shows_plan=False)
    folder = output or Path()
    with remote_registry() as registry:
        source = _find(registry, name, folder, shards, partial=partial)
        model = source.files.model
        if model is None and (ingests or shards):
            raise click.UsageError("--ingest and --shards are for a model, not for a single organ")
        if accept and source.recipe is None:
            raise click.UsageError("--accept is only for a partial model")
        if ingests and source.recipe is not None:
            raise click.UsageError("--ingest registers the original file of a partial model: give --partial too")
        print_beside_file(model)
        card_path = _card_target(source, folder, force=force)
        if source.recipe is not None:
            written = [write_partial(registry, source.recipe, accept, folder, options)]
        else:
            written = write_files(source.files, folder, options, _organ_targets if model is None else None)
        if card_path is not None and model is not None:
            write_text(card_path, registry.card(model.name))
    ingested = _ingest(model.name, written[0].path) if ingests and model is not None else None
    if as_json:
        items = [{"file": str(file.path), "size_bytes": file.size_bytes, "sha256": file.sha256} for file in written]
        card = None if card_path is None else str(card_path)
        print_json({"items": items, "next": None, "model": model and model.name, "ingested": ingested, "card": card})
    else:
        _print_pulled(written, ingested, card_path, quiet=quiet)


def _find(registry: Registry, name: str, output: Path, shards: str | None, *, partial: bool) -> _Pulled:
    """Return the model or organ called `name`. A model comes before an organ, unlike in `organ show`."""
    try:
        files = registry.files(name, shard_bytes=shard_size(shards), stem=stem_of(output))
    except (BadName, NotFound):
        if not looks_like_prefix(name):
            raise
        return _Pulled(registry.organ_files(name))
    assert files.model is not None, "files of a registered model"
    keeps_file = partial or shards or name.startswith(DIGEST)
    return _Pulled(files, None if keeps_file else registry.partial_recipe(files.model.name))


def _card_target(source: _Pulled, output: Path, *, force: bool) -> Path | None:
    """Return where the card is written, beside the file; None if the file has all facts, or is composed of parts."""
    model = source.files.model
    if model is None or source.recipe is not None or not model.needs_card:
        return None
    single = output.name.endswith(SUFFIX) and not output.is_dir()
    stem = output.name.removesuffix(SUFFIX) if single else parse_model_name(model.name).name
    target = (output.parent if single else output) / f"{stem}.card.md"
    check_free(target, force=force)
    return target


def _organ_targets(output: Path, names: Sequence[str], force: bool) -> list[Path]:
    target = output / names[0] if output.is_dir() else output
    check_free(target, force=force)
    if not target.parent.is_dir():
        raise BadSource(f"{target.parent}: no such folder")
    return [target]


def _ingest(model: str, file: Path) -> str:
    """Register a file in the local registry, and return the model's full name there."""
    from organs.ingest.add import add_model
    from organs.registry.local import LocalRegistry

    name = replace(parse_model_name(model), version=None)
    with LocalRegistry.open() as registry:
        return str(add_model(registry, file, name=str(name), new_version=True).model)


def _print_pulled(written: Sequence[WrittenPath], ingested: str | None, card_path: Path | None, *, quiet: bool) -> None:
    for file in written:
        if quiet:
            print_path(file.path)
        else:
            print_sentence(f"{file.path}: {size_text(file.size_bytes)}, sha256:{file.sha256}")
    if card_path is not None and not quiet:
        print_sentence(f"{card_path}: the model's card, with facts that its file does not contain")
    if ingested is not None and not quiet:
        print_sentence(f"{ingested} is registered in your local registry", err=True)
