"""`organ push --to hf://NAMESPACE/NAME` and `organ pull hf://NAMESPACE/NAME`: models of the Hugging Face hub."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import local_registry
from organs.cli.console import plain, print_json, print_path, progress_bar
from organs.cli.files import hub_of_environment
from organs.cli.outputs import folder_of, gguf_targets, is_file
from organs.registry.amounts import plural_text, size_text
from organs.registry.errors import Conflict

if TYPE_CHECKING:
    from organs.ingest.hub import HubContent, HubTarget, HubUpload
    from organs.registry.client.ranges import RangeClient
    from organs.registry.local import LocalRegistry
    from organs.registry.store.blobs import BlobStore

SCHEME = "hf://"


def is_hub_address(text: str) -> bool:
    """Return whether `text` names a repository of a hub."""
    return text.lower().startswith(SCHEME)


@dataclass(frozen=True, slots=True)
class HubPushOptions:
    """The options of a push to a hub."""

    private: bool
    yes: bool
    dry_run: bool
    as_json: bool
    quiet: bool


def push_to_hub(models: Sequence[str], address: str, options: HubPushOptions) -> int:
    """Send files, or models of the local registry, to the repository at `address`; print what is sent before.

    Return the exit status: 1 if the user did not agree.
    """
    from organs.ingest.hub import HubRepository, hub_target

    with hub_of_environment() as hub, ExitStack() as opened:
        target = hub_target(address, hub)
        shows_progress = all(map(is_file, models)) and sys.stderr.isatty() and not options.quiet and not options.as_json
        repository = HubRepository(hub, target, shows_progress=shows_progress)
        uploads, store = _uploads(opened, models)
        present = repository.content()
        if options.private and present is not None and not present.is_private:
            raise Conflict(f"{target.name} exists and is public: make it private on the hub, or leave out --private")
        if present is not None and "README.md" in present.files:
            uploads = [upload for upload in uploads if upload.path != "README.md"]
        if not options.as_json and not options.quiet:
            _print_plan(target, hub.endpoint, uploads, present, private=options.private)
        if options.dry_run:
            return 0
        if not options.yes and not _agrees():
            click.echo("nothing was sent; -y sends it without a question", err=True)
            return 1
        planned = sum(upload.size_bytes for upload in uploads if not isinstance(upload.content, Path | bytes))
        is_quiet = options.quiet or options.as_json or shows_progress
        with progress_bar("send", 2 * planned, quiet=is_quiet) as advance:
            pushed = repository.push(uploads, store, private=options.private, advance=advance)
    if options.as_json:
        files = [{"file": upload.path, "size_bytes": upload.size_bytes} for upload in uploads]
        print_json({"items": files, "next": None, "commit": pushed.commit, "address": pushed.address})
    else:
        click.echo(plain(pushed.address))
    return 0


def _agrees() -> bool:
    return sys.stdin.isatty() and click.confirm("Send this?", default=False, err=True)


def _print_plan(
    target: HubTarget, endpoint: str, uploads: Sequence[HubUpload], present: HubContent | None, *, private: bool
) -> None:
    is_private = private if present is None else present.is_private
    kind = f"{'a new ' if present is None else ''}{'private' if is_private else 'public'} repository"
    state = kind if present is None else f"{kind} with {plural_text(len(present.files), 'file', 'files')}"
    click.echo(f"to {plain(endpoint)}/{target.name}, branch {plain(target.branch)}, {state}:", err=True)
    for upload in uploads:
        replaces = ", replaces the file there" if present is not None and upload.path in present.files else ""
        click.echo(f"  {plain(upload.path)}  {size_text(upload.size_bytes)}{replaces}", err=True)


def _uploads(opened: ExitStack, models: Sequence[str]) -> tuple[list[HubUpload], BlobStore | None]:
    """Return the files to send, with the card of the first registered model, and the store of their organs."""
    from organs.ingest.hub import README, HubUpload

    uploads: list[HubUpload] = []
    cards: list[HubUpload] = []
    registry: LocalRegistry | None = None
    for text in models:
        if is_file(text):
            path = Path(text)
            uploads.append(HubUpload(path.name, path.stat().st_size, path))
            continue
        registry = registry or opened.enter_context(local_registry())
        uploads += _registered_files(registry, text)
        card = registry.card(text).encode()
        cards.append(HubUpload(README, len(card), card))
    names = [upload.path for upload in uploads]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise click.UsageError(f"two of the models have a file {double}; push them one after the other")
    return [*uploads, *cards[:1]], None if registry is None else registry.blobs


def _registered_files(registry: LocalRegistry, name: str) -> list[HubUpload]:
    """Return the original files of a registered model. Clients find a single file by the name of the model."""
    from organs.ingest.hub import HubUpload
    from organs.registry.assembly import plan_model
    from organs.registry.catalog.queries.models import model_by_text
    from organs.registry.compose.models import refuse_partial

    with registry.catalog.reading() as session:
        model = model_by_text(session, name)
        refuse_partial(session, model)
        plans = plan_model(session, model)
    if len(plans) == 1:
        plans = [replace(plans[0], name=f"{model.name}.gguf")]
    return [HubUpload(plan.name, plan.size_bytes, plan) for plan in plans]


@dataclass(frozen=True, slots=True)
class HubPullOptions:
    """The options of a pull from a hub."""

    output: Path
    force: bool
    as_json: bool
    quiet: bool


def pull_hub(address: str, options: HubPullOptions) -> None:
    """Download the GGUF file, or all shards, of the model at `address`."""
    from organs.ingest.hub import pull_from_hub
    from organs.ingest.urls import find_remote

    with hub_of_environment() as hub:
        files = find_remote(address, hub).files
        targets = gguf_targets(options.output, [file.name for file in files], force=options.force)
        written = []
        with folder_of(targets, dry_run=False):
            for remote, target in zip(files, targets, strict=True):
                file = remote.open()
                with progress_bar(remote.name, file.size_bytes, quiet=options.quiet or options.as_json) as bar:
                    sha256 = pull_from_hub(remote, file, target, _Received(hub.client, bar))
                written.append((target, file.size_bytes, sha256))
    if options.as_json:
        items = [{"file": str(target), "size_bytes": size, "sha256": sha256} for target, size, sha256 in written]
        print_json({"items": items, "next": None})
        return
    for target, size, sha256 in written:
        if options.quiet:
            print_path(target)
        else:
            checked = f"sha256:{sha256}" if sha256 else "the server states no SHA-256"
            click.echo(f"{plain(target)}: {size_text(size)}, {checked}")


class _Received:
    """Advances a progress bar by the bytes that a client has received since the last call."""

    def __init__(self, client: RangeClient, advance: Callable[[int], None]) -> None:
        self._client, self._advance = client, advance
        self._counted = client.received_bytes

    def __call__(self, _size_bytes: int) -> None:
        received = self._client.received_bytes
        self._advance(received - self._counted)
        self._counted = received
