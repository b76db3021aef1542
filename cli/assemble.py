"""`organ assemble`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from cli.console import plain, print_json, print_path, progress_bar
from registry.catalog.queries.models import model_by_name
from registry.chimera.layout import plan_merged, plan_shards
from registry.chimera.place import place_file
from registry.chimera.plan import FilePlan, plan_model
from registry.errors import BadSource
from registry.gguf.split import parse_shard_name
from registry.names import parse_model_name
from registry.present.text import size_text
from registry.registry import Registry

SUFFIX = ".gguf"
_SIZE = re.compile(r"([0-9]{1,12})\s*([kMGT]?)B?", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@click.command()
@click.argument("model")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="OUT", help="A file or a folder."
)
@click.option("--shards", metavar="SIZE", help="Cut into shards of at most SIZE (2G, 500M) of tensors each.")
@click.option("--merge", is_flag=True, help="One file from a model that came in shards.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="The files as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the files' paths only.")
def assemble(
    model: str, output: Path, shards: str | None, merge: bool, force: bool, dry_run: bool, as_json: bool, quiet: bool
) -> None:
    """Write a registered model as GGUF: the identical file that came in, or new shards, or one file from shards.

    Every organ is checked on its way, and the whole against the SHA-256 that the file came in with. OUT appears whole
    or not at all. A model that came in shards gives its own shards, into the folder OUT or named after the file OUT.
    """
    if shards and merge:
        raise click.UsageError("--shards and --merge exclude each other")
    with Registry.open() as registry:
        plans = _plans(registry, model, output, shards, merge)
        targets = [_target(output, plan, len(plans)) for plan in plans]
        _check_targets(targets, force=force)
        results = []
        total = sum(plan.size_bytes for plan in plans)
        with progress_bar("assemble", total, quiet=quiet or as_json or dry_run) as advance:
            for plan, target in zip(plans, targets, strict=True):
                digest = plan.sha256 if dry_run else place_file(registry.blobs, plan, target, advance)
                proof = "identical" if plan.sha256 is not None else "new file"
                results.append({"file": str(target), "size_bytes": plan.size_bytes, "sha256": digest, "proof": proof})
    _print(results, dry_run=dry_run, as_json=as_json, quiet=quiet)


def _plans(registry: Registry, model: str, output: Path, shards: str | None, merge: bool) -> list[FilePlan]:
    name = parse_model_name(model)
    stem = output.name.removesuffix(SUFFIX) if output.name.endswith(SUFFIX) else name.name
    with registry.catalog.reading() as session:
        row = model_by_name(session, name)
        if merge:
            return plan_merged(session, registry.blobs, row, f"{stem}{SUFFIX}")
        if shards:
            return plan_shards(session, registry.blobs, row, stem, _parse_size(shards))
        return plan_model(session, row)


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise click.UsageError(f"{text!r} is no size: write 2G or 500M")
    return int(match[1]) * _UNITS[match[2].lower()]


def _target(output: Path, plan: FilePlan, count: int) -> Path:
    if output.is_dir() or not output.name.endswith(SUFFIX):
        return output / Path(plan.name).name
    if count == 1:
        return output
    shard = parse_shard_name(plan.name)
    suffix = plan.name if shard is None else f"-{shard.number:05d}-of-{shard.count:05d}{SUFFIX}"
    return output.with_name(output.name.removesuffix(SUFFIX) + suffix)


def _check_targets(targets: list[Path], *, force: bool) -> None:
    for target in targets:
        if target.is_dir():
            raise BadSource(f"{target}: a folder is there")
        if target.exists() and not force:
            raise BadSource(f"{target}: there already; --force replaces it")
        if not target.parent.is_dir():
            raise BadSource(f"{target.parent}: no such folder; a file's name ends in {SUFFIX}")


def _print(results: list[dict[str, object]], *, dry_run: bool, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json({"items": results, "next": None})
        return
    for result in results:
        if quiet:
            print_path(result["file"])
            continue
        size = result["size_bytes"]
        assert isinstance(size, int)
        verb = "would be" if dry_run else "is"
        proof = "the file that came in, byte for byte" if result["proof"] == "identical" else "a new file"
        digest = f", sha256:{result['sha256']}" if result["sha256"] else ""
        click.echo(f"{plain(result['file'])}: {size_text(size)}{digest}; {verb} {proof}")
