"""`organ pull`: download from a remote registry, or from the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.console import (
    is_for_people,
    output_options,
    print_remark,
    print_sentence,
    printed_for_programs,
    progress_bar,
)
from organs.cli.inputs import hub_of_environment
from organs.cli.options import flag, size_bytes
from organs.cli.outputs import (
    SUFFIX,
    WrittenPath,
    check_free,
    folder_of,
    force_option,
    gguf_targets,
    output_option,
    print_beside_file,
    stem_of,
    write_files,
    write_text,
)
from organs.cli.registries import remote_registry
from organs.registry.amounts import size_text
from organs.registry.digest import looks_like_prefix
from organs.registry.errors import BadName, BadSource, NotFound
from organs.registry.names import parse_model_name

if TYPE_CHECKING:
    from organs.registry.client.ranges import RangeClient
    from organs.registry.interface import Registry
    from organs.registry.output_files import OutputFiles

HUB_SCHEME = "hf://"
_PAGE_ADDRESS = re.compile(r"(?P<origin>https?://[^/@\s]{1,300})/models/(?P<model>[^\s?#]{1,300})")
"""The address of the page of a model."""


@click.command()
@click.argument("name", metavar="MODEL|DIGEST|hf://NS/NAME")
@output_option("OUT", "The file or folder to write. [default: the current folder]")
@click.option(
    "--shards",
    metavar="SIZE",
    type=size_bytes,
    help="Write a model as shards with at most SIZE (2G, 500M) of tensors in each.",
)
@flag("--partial", "Download the original file of a partial model, without its base.")
@click.option("--accept", multiple=True, metavar="CODE", help="Accept the warning CODE of a partial model. Repeatable.")
@flag("--ingest", "ingests", "Also register the model in your local registry.")
@force_option("Replace existing files.")
@output_options(json="Print the files as JSON.", quiet="Print the files' paths only.")
def pull(
    name: str,
    output: Path | None,
    shards: int | None,
    partial: bool,
    accept: tuple[str, ...],
    ingests: bool,
) -> None:
    """Download a model, a chimera or a tensor from the remote registry in --registry, and check every byte.

    MODEL is NAMESPACE/NAME for the newest version, or NAMESPACE/NAME@VERSION. DIGEST is the SHA-256 of a tensor; its
    first 8 characters are enough. With `sha256:` before it, DIGEST can also be that of a model's file or of a chimera's
    lock.

    A model is written as a GGUF file, a tensor as its plain bytes. A file gets its name only when it is complete. To
    continue an interrupted download, run the same command again.

    The bytes of a file never change. If its header does not have the license that is stated for the model, or if the
    model or a model that it was made from was yanked or removed, the command also writes the model's card beside it, as
    OUT.card.md.

    A partial model has only some tensors. The command grafts them into the base that the model names, like `organ
    assemble`. With --partial, or if you give a digest, it downloads the original file of the partial model.

    hf://NAMESPACE/NAME[/FILE][@REVISION] is a GGUF file of the Hugging Face hub; this needs no registry. HF_TOKEN and
    HF_ENDPOINT are used as by `hf`.
    """
    from organs.cli.compose import write_partial

    folder = output or Path()
    if name.lower().startswith(HUB_SCHEME):
        if shards or partial or accept or ingests:
            raise click.UsageError(
                "with hf://, the options are -o, --force, --json and -q; see also `organ ingest hf://`"
            )
        _pull_from_hub(name, folder)
        return
    if (address := _PAGE_ADDRESS.fullmatch(name)) is not None:
        raise click.UsageError(f"write: organ --registry {address['origin']} pull {address['model']}")
    with remote_registry() as registry:
        recipe, card, ingested = None, None, None
        files = _find(registry, name, folder, shards)
        model = files.model
        if model is None and (ingests or shards):
            raise click.UsageError("--ingest and --shards are for a model, not for a single tensor")
        if model is not None and not (partial or shards or name.startswith("sha256:")):
            recipe = registry.partial_recipe(model.name)
        if accept and recipe is None:
            raise click.UsageError("--accept is only for a partial model")
        if ingests and recipe is not None:
            raise click.UsageError("--ingest registers the original file of a partial model: give --partial too")
        print_beside_file(model)
        if recipe is not None:
            written = [write_partial(registry, recipe, accept, folder)]
        elif model is None:
            target = folder / files.files[0].name if folder.is_dir() else folder
            if not target.parent.is_dir():
                raise BadSource(f"{target.parent}: no such folder")
            written = write_files(files, folder, targets=[target])
        else:
            card = _card_target(model.name, folder) if model.needs_card else None
            written = write_files(files, folder)
            if card is not None:
                write_text(card, registry.card(model.name))
    if ingests and model is not None:
        from organs.ingest.add import add_model
        from organs.registry.local import LocalRegistry

        local_name = replace(parse_model_name(model.name), version=None)
        with LocalRegistry.open() as local:
            ingested = add_model(local, written[0].path, name=str(local_name), new_version=True).model
    _print_files(written, model=model and model.name, ingested=ingested, card=None if card is None else str(card))
    if card is not None and is_for_people():
        print_sentence(f"{card}: the model's card, with facts that its file does not contain")
    if ingested is not None and is_for_people():
        print_remark(f"{ingested} is registered in your local registry")


def _find(registry: Registry, name: str, output: Path, shards: int | None) -> OutputFiles:
    """Return the files of a model or a tensor. A model comes before a tensor, unlike in `organ show`."""
    try:
        return registry.files(name, shard_bytes=shards or None, stem=stem_of(output))
    except (BadName, NotFound):
        if not looks_like_prefix(name):
            raise
        return registry.organ_files(name)


def _card_target(model: str, output: Path) -> Path:
    """Return where the card of a model is written, beside its file."""
    is_file = output.name.endswith(SUFFIX) and not output.is_dir()
    stem = output.with_suffix("") if is_file else output / parse_model_name(model).name
    target = stem.with_name(f"{stem.name}.card.md")
    check_free(target)
    return target


def _print_files(written: Sequence[WrittenPath], **about: object) -> None:
    """Print files with their digests, as JSON also `about`."""
    values = {"items": [file.values for file in written], "next": None, **about}
    if not printed_for_programs(values, [file.path for file in written]):
        for file in written:
            checked = f"sha256:{file.sha256}" if file.sha256 else "the server states no SHA-256"
            print_sentence(f"{file.path}: {size_text(file.size_bytes)}, {checked}")


def _pull_from_hub(address: str, output: Path) -> None:
    """Download the GGUF file, or all shards, of the model at `address`."""
    from organs.ingest.hub import pull_from_hub
    from organs.ingest.urls import find_remote

    written: list[WrittenPath] = []
    with hub_of_environment() as hub:
        files = find_remote(address, hub).files
        targets = gguf_targets(output, [file.name for file in files])
        with folder_of(targets):
            for remote, target in zip(files, targets, strict=True):
                file = remote.open()
                with progress_bar(remote.name, file.size_bytes) as bar:
                    sha256 = pull_from_hub(remote, file, target, _received(hub.client, bar))
                written.append(WrittenPath(target, file.size_bytes, sha256))
    _print_files(written)


def _received(client: RangeClient, advance: Callable[[int], None]) -> Callable[[int], None]:
    """Return a function that calls `advance` with the bytes that `client` has received since the last call."""
    counted = client.received_bytes

    def report(_size_bytes: int) -> None:
        nonlocal counted
        received = client.received_bytes
        advance(received - counted)
        counted = received

    return report
