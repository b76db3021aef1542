"""`organ push` and `organ pull`: models to and from a remote registry."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, fields, replace
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click
import platformdirs

from organs.cli.arguments import named_remote
from organs.cli.console import exit_status, plain, print_json, print_json_line, print_path, progress_bar, status_line
from organs.cli.files import SUFFIX, check_fits, check_free, folder_of, gguf_targets
from organs.ingest.contributions.findings import MUST_ACKNOWLEDGE
from organs.registry.amounts import parse_size, size_text
from organs.registry.digest import Digest, looks_like_prefix, parse_prefix
from organs.registry.errors import BadInput, BadName, BadReply, BadSource, NotFound, OrganError, OverQuota
from organs.registry.names import ModelName
from organs.registry.present.values import Values
from organs.registry.settings import DEBUG_VARIABLE

if TYPE_CHECKING:
    from organs.cli.composing import Asked
    from organs.ingest.contributions.push import PushReport
    from organs.ingest.sources import ModelSource
    from organs.registry.client.fetching import FileToFetch
    from organs.registry.client.locked import LockedFile

    # import gone
    from organs.registry.client.remote import OwnFiles, RemoteRegistry
    from organs.registry.compose.lock import Lock
    from organs.registry.compose.recipe import Recipe


class Targets(Protocol):
    """Where files of these names go; raises BadSource for what is in the way."""

    def __call__(self, output: Path, names: Sequence[str], *, force: bool) -> list[Path]: ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that is here now, or would be."""

    path: Path
    size_bytes: int
    sha256: Digest | None
    """None where nothing was fetched and nobody knows it beforehand."""
    is_new: bool
    """Whether nobody has had these bytes before."""


def fetch_files(
    remote: RemoteRegistry,
    files: Sequence[tuple[str, FileToFetch]],
    output: Path,
    asked: Asked,
    targets_of: Targets = gguf_targets,
) -> list[Fetched]:
    """The files, each with its name. Of several, one that an attempt before has brought is left as it is."""
    from organs.registry.client.fetching import fetch  # with HTTP, which a folder needs not

    targets = targets_of(output, [name for name, _ in files], force=True)
    came = [len(files) > 1 and _is_there(target, file) for (_, file), target in zip(files, targets, strict=True)]
    for target, has_come in zip(targets, came, strict=True):
        check_free(target, force=asked.force or has_come)
    found = []
    with folder_of(targets, dry_run=asked.dry_run), _bar(sum(file.size_bytes for _, file in files), asked) as advance:
        for (_, file), target, has_come in zip(files, targets, came, strict=True):
            digest = file.sha256
            if has_come:
                advance(file.size_bytes)
            elif not asked.dry_run:
                digest = fetch(remote.connection, file, target, advance)
            found.append(Fetched(target, file.size_bytes, digest, file.sha256 is None))
    return found


def fetch_shards(
    remote: RemoteRegistry, model: str, file: FileToFetch, output: Path, size: str, asked: Asked
) -> list[Fetched]:
    """The model called `model`, which is `file`, in shards of at most `size` of tensors each."""
    from organs.registry.client.files import (
        fetch_in_shards,
        file_in_shards,
    )

    shard_bytes = shard_size(size)
    stem = output.name.removesuffix(SUFFIX) if output.name.endswith(SUFFIX) else model
    cut = file_in_shards(remote.connection, file, stem, shard_bytes)
    if cut is None:
        return fetch_files(remote, [(f"{stem}{SUFFIX}", file)], output, asked)
    targets = gguf_targets(output, [shard.name for shard in cut.shards], force=asked.force)
    digests: Sequence[Digest | None] = [None] * len(targets)
    with folder_of(targets, dry_run=asked.dry_run), _bar(cut.room_bytes, asked) as advance:
        if not asked.dry_run:
            digests = fetch_in_shards(remote.connection, cut, targets, advance)
    sizes = (shard.size_bytes for shard in cut.shards)
    return [Fetched(*one, is_new=True) for one in zip(targets, sizes, digests, strict=True)]


def fetch_with_its_base(
    remote: RemoteRegistry, recipe: Recipe, accept: Sequence[str], output: Path, asked: Asked
) -> Fetched:
    """A model that has only some organs, in its base: planned there, made here. Ends with a status of 1 if refused."""
    from organs.cli.composing import shown

    plan = remote.compose(recipe).accept(*accept).plan()
    target = gguf_targets(output, [plan.file_name], force=asked.force)[0]
    shown(plan, target, asked)
    if asked.dry_run:
        return Fetched(target, plan.size_bytes, None, is_new=True)
    return fetch_lock(remote, plan.lock(), target, asked)


def fetch_lock(remote: RemoteRegistry, lock: Lock, target: Path, asked: Asked) -> Fetched:
    """The file of `lock`, to `target`."""
    from organs.registry.client.locked import fetch_locked, locked_file

    file: FileToFetch | LockedFile = locked_file(remote, lock)
    check_fits(target, file.size_bytes)
    digest = None
    if not asked.dry_run:
        with _bar(file.size_bytes, asked) as advance:
            digest = fetch_locked(remote.connection, file, target, advance)
    return Fetched(target, file.size_bytes, digest, is_new=True)


def fetch_beside(
    opened: ExitStack, remote: RemoteRegistry, model: str, output: Path, asked: Asked
) -> list[tuple[str, Path]]:
    """The files of `model` as they came in, whole and checked, each with its name and where it is: beside `output`.

    There must be room for them and for as much again. They are gone when `opened` is closed; what a lost line, or an
    error behind it, has left is gone on with by the next call.
    """
    from organs.registry.client.fetching import check_all_fits, fetched

    own = remote.own_files(model)
    files = [file for _, file in own.files]
    target = Path(os.path.abspath(output))
    place = target.parent / f".{target.name}"  # nothing gets this name: `output` itself may be a folder
    size_bytes = sum(file.size_bytes for file in files)
    check_all_fits(remote.url, files, place, 2 * size_bytes)
    with _bar(size_bytes, asked) as advance:
        paths = [opened.enter_context(fetched(remote.connection, file, place, advance)) for file in files]
    return [(name, path) for (name, _), path in zip(own.files, paths, strict=True)]


def shard_size(text: str) -> int:
    """The bytes that `text` after --shards stands for."""
    try:
        return parse_size(text)
    except BadInput as error:
        raise click.UsageError(str(error)) from error


def _is_there(target: Path, file: FileToFetch) -> bool:
    """Whether the whole of `file`, to the last byte, is at `target`."""
    if file.sha256 is None or file.check is not None or not target.is_file() or target.is_symlink():
        return False
    with target.open("rb") as found:
        return (
            os.fstat(found.fileno()).st_size == file.size_bytes
            and file_digest(found, "sha256").hexdigest() == file.sha256
        )


def _bar(total_bytes: int, asked: Asked) -> AbstractContextManager[Callable[[int], None]]:
    return progress_bar("fetch", total_bytes, quiet=asked.dry_run or not asked.prints)


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
        _print_pushed(source, report, as_json=as_json, quiet=quiet)
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


def _print_pushed(source: ModelSource, report: PushReport, *, as_json: bool, quiet: bool) -> None:
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


DIGEST = "sha256:"
RAW = ".raw"


@dataclass(frozen=True, slots=True)
class _Found:
    """What is to be pulled."""

    model: ModelName | None
    """With its version; None for an organ."""
    files: Sequence[tuple[str, FileToFetch]]
    recipe: Recipe | None = None
    """Of a model with only some organs, what it is with its base."""


@click.command()
@click.argument("what", metavar="MODEL|DIGEST")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT", help="A file or a folder; else here.")
@click.option("--shards", metavar="SIZE", help="Cut a model into shards of at most SIZE (2G, 500M) of tensors each.")
@click.option("--partial", is_flag=True, help="Of a model with only some organs: the file that came in.")
@click.option("--accept", multiple=True, metavar="CODE", help="Of a model with only some organs: accept a warning.")
@click.option("--ingest", "ingests", is_flag=True, help="Register the model in your own registry too.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@click.option("--json", "as_json", is_flag=True, help="The files as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the files' paths only.")
def pull(
    what: str,
    output: Path | None,
    shards: str | None,
    partial: bool,
    accept: tuple[str, ...],
    ingests: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fetch a model, a chimera or an organ from a registry elsewhere, which --registry names.

    A model is named NAMESPACE/NAME, with @VERSION if need be, or by sha256: and a digest: of its file, or of the lock
    of a chimera, whose file is then checked against that lock. 8 or more characters of an organ's digest give its plain
    bytes. Every byte is checked; what was cut goes on where it was when it is run again, and appears under its name
    whole or not at all.

    A model that has only some organs comes with all others of the base that it names, as `organ assemble` makes it;
    with --partial, and by a digest of it, as the file that it is.
    """
    from organs.cli.composing import Asked

    asked = Asked(force=force, as_json=as_json, quiet=quiet, shows_plan=False)
    with named_remote() as remote:
        found = _found(remote, what, with_base=not (partial or shards))
        _check_use(found, shards, accept, ingests=ingests)
        fetched = _fetched(remote, found, output or Path(), shards, accept, asked)
    files = [{"file": str(one.path), "size_bytes": one.size_bytes, "sha256": one.sha256} for one in fetched]
    ingested = _ingested(found.model, [one.path for one in fetched]) if ingests and found.model is not None else None
    model = None if found.model is None else str(found.model)
    _print_pulled({"items": files, "next": None, "model": model, "ingested": ingested}, as_json=as_json, quiet=quiet)


def _check_use(found: _Found, shards: str | None, accept: Sequence[str], *, ingests: bool) -> None:
    if found.model is None and (ingests or shards):
        raise click.UsageError("--ingest and --shards are for a model: an organ alone has no place in one")
    if accept and found.recipe is None:
        raise click.UsageError("--accept is for a model that has only some organs")
    if ingests and found.recipe is not None:
        raise click.UsageError("--ingest registers the file of a model with only some organs: give --partial too")


def _fetched(
    remote: RemoteRegistry, found: _Found, output: Path, shards: str | None, accept: Sequence[str], asked: Asked
) -> list[Fetched]:
    # import gone

    if found.recipe is not None:
        return [fetch_with_its_base(remote, found.recipe, accept, output, asked)]
    if found.model is None:
        return fetch_files(remote, found.files, output, asked, _organ_targets)
    if shards is None:
        return fetch_files(remote, found.files, output, asked)
    whole = found.files[0][1] if len(found.files) == 1 else remote.whole_file(str(found.model))
    return fetch_shards(remote, found.model.name, whole, output, shards, asked)


def _found(remote: RemoteRegistry, what: str, *, with_base: bool) -> _Found:
    """The model that `what` means, or the organ; as `organ show` understands it, but that a model comes first."""
    try:
        own = remote.own_files(what)
        if own.yanked is not None:
            click.echo(f"{plain(own.model)} was yanked: {plain(own.yanked)}", err=True)
    except (BadName, NotFound):
        if not looks_like_prefix(what):
            raise
        file = remote.organ_file(what)
        return _Found(None, [(f"{file.sha256}{RAW}", file)])
    if not what.startswith(DIGEST):
        return _Found(own.model, own.files, remote.with_its_base(str(own.model)) if with_base else None)
    return _Found(own.model, _proven(own, parse_prefix(what)))


def _proven(own: OwnFiles, prefix: str) -> Sequence[tuple[str, FileToFetch]]:
    """The files of the model that was asked for by a digest, which is held against what comes."""
    from organs.registry.client.files import check_lock

    if own.lock_id is not None and own.lock_id.startswith(prefix):
        return [(name, replace(file, check=check_lock(own.lock_id))) for name, file in own.files]
    if not any(digest.startswith(prefix) for digest in (own.digest, *(str(file.sha256) for _, file in own.files))):
        raise BadReply(f"the registry gives {own.model} for {prefix}, which is no digest of it")
    return own.files


def _organ_targets(output: Path, names: Sequence[str], *, force: bool) -> list[Path]:
    target = output / names[0] if output.is_dir() else output
    check_free(target, force=force)
    if not target.parent.is_dir():
        raise BadSource(f"{target.parent}: no such folder")
    return [target]


def _ingested(model: ModelName, files: Sequence[Path]) -> str:
    """The name under which one's own registry has it now."""
    from organs.ingest.service import always, ingest_model
    from organs.ingest.sources import find_sources
    from organs.registry.local import LocalRegistry

    (source,) = find_sources([str(files[0])])
    with LocalRegistry.open() as registry:
        return ingest_model(registry, source, replace(model, version=None), new_version=always).model


def _print_pulled(values: Values, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(values)
        return
    for file in values["items"]:
        if quiet:
            print_path(file["file"])
        else:
            click.echo(f"{plain(file['file'])}: {size_text(file['size_bytes'])}, sha256:{file['sha256']}")
    if values["ingested"] is not None and not quiet:
        click.echo(f"{values['ingested']} is in your own registry", err=True)
