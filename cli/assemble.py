"""`organ assemble` and `organ extract`: models written as GGUF files or as folders of organs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import (
    address,
    any_registry,
    folder_registry,
    named_remote,
    remote_registry,
)
from organs.cli.console import plain, print_json, print_path, progress_bar
from organs.cli.files import SUFFIX, folder_of, gguf_targets
from organs.ingest.files import FileSource
from organs.registry.amounts import size_text
from organs.registry.digest import Digest
from organs.registry.entities.chimera import ComposeResult
from organs.registry.errors import BadName, BadSource, NotAssemblable, NotFound
from organs.registry.names import ModelName, parse_model_name

if TYPE_CHECKING:
    from organs.cli.composing import Asked
    from organs.ingest.directory.extract import Content, ExtractReport
    from organs.ingest.directory.opening import VirtualFile
    from organs.registry.assembly import FilePlan
    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.compose.recipe import Recipe
    from organs.registry.local import LocalRegistry


@click.command()
@click.argument("what", metavar="FILE|MODEL")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The folder to be made."
)
@click.option("--force", is_flag=True, help="Replace an organ directory that is there, with all that is in it.")
@click.option("--json", "as_json", is_flag=True, help="What was written as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the folder's path only.")
def extract(what: str, output: Path, force: bool, as_json: bool, quiet: bool) -> None:
    """Take a model apart into the folder DIR: a file for each tensor, and manifest.json.

    FILE is a GGUF file or any shard of a split set, and need not be registered; MODEL is a registered model, every part
    of which is checked on its way. DIR appears whole or not at all. `organ assemble DIR` gives the identical GGUF back,
    and `organ ingest DIR` registers it, also after organs in it were edited.

    A model of a registry elsewhere, which --registry names, is fetched beside DIR first, and gone afterwards.
    """
    from organs.cli.composing import Asked
    from organs.ingest.directory.extract import extract as take_apart

    with ExitStack() as opened:
        contents = _contents(opened, what, output, Asked(force=force, as_json=as_json, quiet=quiet))
        total = sum(content.header.file_size_bytes for content in contents)
        with progress_bar("extract", total, quiet=quiet or as_json) as advance:
            report = take_apart(contents, output, force=force, progress=advance)
    _print_extracted(report, output, as_json=as_json, quiet=quiet)


def _contents(opened: ExitStack, what: str, output: Path, asked: Asked) -> list[Content]:
    from organs.ingest.directory.extract import file_contents
    from organs.ingest.sources import GGUF_SUFFIX, find_sources, open_files

    if not what.endswith(GGUF_SUFFIX) and not Path(what).is_file():
        return _registered(opened, what, output, asked)
    sources = find_sources([what], "extract")
    if len(sources) != 1:
        raise click.UsageError(f"one model at a time; {what} gives {len(sources)}")
    return file_contents(open_files(opened, sources[0]))


def _registered(opened: ExitStack, what: str, output: Path, asked: Asked) -> list[Content]:
    from organs.ingest.directory.extract import registered_contents
    from organs.ingest.directory.folder import is_organ_directory

    try:
        name = parse_model_name(what)
        remote = remote_registry()
        if remote is not None:
            return _extract_remote(opened, opened.enter_context(remote), name, output, asked)
        registry = opened.enter_context(folder_registry())
        return registered_contents(registry, name)
    except (BadName, NotFound) as error:
        path = Path(what)
        if not path.is_dir():
            raise
        if is_organ_directory(path):
            hint = f"taken apart already: organ assemble {what} gives its GGUF, organ ingest {what} registers it"
        else:
            hint = "a folder, and no model of that name is registered: give one of the GGUF files in it"
        raise BadSource(f"{what}: {hint}") from error


def _extract_remote(
    opened: ExitStack, remote: RemoteRegistry, name: ModelName, output: Path, asked: Asked
) -> list[Content]:
    """The files as they came in, each under its name; they lie beside `output` as long as `opened` is."""
    from organs.cli.remote import fetch_beside
    from organs.ingest.directory.extract import file_contents
    from organs.ingest.directory.folder import check_target
    from organs.ingest.dissect import dissect
    from organs.registry.gguf.split import check_split

    check_target(Path(os.path.abspath(output)), replace=asked.force)
    fetched = fetch_beside(opened, remote, str(name), output, asked)
    files = [dissect(opened.enter_context(FileSource(path))) for _, path in fetched]
    if len(files) > 1:
        check_split(str(name), [(told, file.header) for (told, _), file in zip(fetched, files, strict=True)])
    contents = zip(file_contents(files), fetched, strict=True)
    return [replace(content, name=told) for content, (told, _) in contents]


def _print_extracted(report: ExtractReport, output: Path, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        files = [{"name": name, "size_bytes": size, "sha256": sha256} for name, size, sha256 in report.files]
        values = {"directory": str(output), "tensors": report.tensors, "size_bytes": report.size_bytes, "files": files}
        print_json({"items": [values], "next": None})
    elif quiet:
        print_path(output)
    else:
        click.echo(f"{plain(output)}: {report.tensors} tensors, {size_text(report.size_bytes)}")
        for name, size, sha256 in report.files:
            click.echo(f"  {plain(name)}: {size_text(size)}, sha256:{sha256}")


RECIPE_SUFFIXES = (".yaml", ".yml", ".json")
_PROOFS = {
    "identical": "the file that came in, byte for byte",
    "as made": "the chimera as it was made, byte for byte",
    "new file": "a new file",
    "not compared yet": "compared with the file that the folder was made from",
}
_ACCEPT_MISPLACED = "--accept is for a RECIPE, and for a model that has only some organs"


@click.command()
@click.argument("model", metavar="MODEL|DIR|RECIPE")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="OUT", help="A file or a folder."
)
@click.option("--shards", metavar="SIZE", help="Cut into shards of at most SIZE (2G, 500M) of tensors each.")
@click.option("--merge", is_flag=True, help="One file from a model that came in shards.")
@click.option("--accept", multiple=True, metavar="CODE", help="Of a RECIPE or a partial model: accept a warning.")
@click.option("--partial", is_flag=True, help="Of a model with only some organs: the file that came in.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="The files as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the files' paths only.")
def assemble(
    model: str,
    output: Path,
    shards: str | None,
    merge: bool,
    accept: tuple[str, ...],
    partial: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a registered model as GGUF: the identical file that came in, or new shards, or one file from shards.

    Every organ is checked on its way, and the whole against the SHA-256 that the file came in with. OUT appears whole
    or not at all. A model that came in shards gives its own shards, into the folder OUT (made if need be) or named
    after the file OUT.

    MODEL may be a chimera, by its name or by sha256: and the digest of its lock. RECIPE is a file that ends in .yaml,
    .yml or .json: the chimera is made and registered first, as by `organ compose`. So is that of a model which has only
    some organs: they are grafted into the base that it names.

    DIR is an organ directory, as `organ extract` writes it: its GGUF is put together without a registry, and compared
    with the one that it was made from. Organs that were edited since are told, and make another file.
    """
    from organs.cli.composing import Asked, composed
    from organs.ingest.directory.folder import is_organ_directory
    from organs.ingest.sources import GGUF_SUFFIX

    if shards and merge:
        raise click.UsageError("--shards and --merge exclude each other")
    is_recipe = model.endswith(RECIPE_SUFFIXES) and Path(model).is_file()
    asked = Asked(output, force=force, dry_run=dry_run, as_json=as_json, quiet=quiet, shows_plan=False)
    if is_organ_directory(Path(model)):
        if shards or merge:
            raise click.UsageError("--shards and --merge are for registered models: organ ingest DIR first")
        results = _from_directory(Path(model), output, force=force, dry_run=dry_run, quiet=quiet or as_json)
    elif is_recipe:
        if shards or merge:
            raise click.UsageError("--shards and --merge are for registered models: organ compose RECIPE first")
        results = _from_recipe(model, accept, asked)
    elif model.endswith(GGUF_SUFFIX) and Path(model).is_file():
        raise BadSource(f"{model}: it is a GGUF file already; organ ingest, extract and transplant take it apart")
    elif address() is not None:
        results = _assemble_remote(model, output, shards, merge, None if partial else accept, asked)
    else:
        with folder_registry() as registry:
            recipe = None if partial or shards or merge else _with_its_base(registry, model)
            if recipe is None:
                if accept:
                    raise click.UsageError(_ACCEPT_MISPLACED)
                results = _from_registry(registry, _plans(registry, model, output, shards, merge), asked)
            else:
                results = _made(composed(registry, registry.compose(recipe).accept(*accept), asked))
    _print_assembled(results, dry_run=dry_run, as_json=as_json, quiet=quiet)


def _from_recipe(path: str, accept: Sequence[str], asked: Asked) -> list[dict[str, object]]:
    from organs.cli.composing import begun, composed

    with any_registry() as registry:
        composition = begun(registry.compose, path, None, accept, as_json=asked.as_json)
        return _made(composed(registry, composition, asked))


def _made(result: ComposeResult) -> list[dict[str, object]]:
    assert result.out is not None
    assert result.out.file is not None
    assert result.plan is not None
    sha256 = None if result.made is None else result.made.sha256
    return [_result(Path(result.out.file), result.plan.size_bytes, sha256, "new file")]


def _with_its_base(registry: LocalRegistry, model: str) -> Recipe | None:
    """The base of a model that has only some organs, with these; None of any other model. Raises NotAssemblable."""
    from organs.registry.catalog.queries.composing import model_by_text
    from organs.registry.compose.models import (
        is_partial,
        partial_recipe,
    )

    with registry.catalog.reading() as session:
        row = model_by_text(session, model)
        return partial_recipe(session, row) if is_partial(session, row) else None


def _from_registry(
    registry: LocalRegistry, planned: tuple[list[FilePlan], str], asked: Asked
) -> list[dict[str, object]]:
    from organs.registry.assembly import place_file

    (plans, proof), output, force, dry_run = planned, asked.output, asked.force, asked.dry_run
    quiet = not asked.prints
    assert output is not None
    targets = gguf_targets(output, [plan.name for plan in plans], force=force)
    results = []
    total = sum(plan.size_bytes for plan in plans)
    with folder_of(targets, dry_run=dry_run), progress_bar("assemble", total, quiet=quiet or dry_run) as advance:
        for plan, target in zip(plans, targets, strict=True):
            digest = plan.sha256 if dry_run else place_file(registry.blobs, plan, target, advance)
            results.append(_result(target, plan.size_bytes, digest, "new file" if plan.sha256 is None else proof))
    return results


def _assemble_remote(
    model: str, output: Path, shards: str | None, merge: bool, accept: Sequence[str] | None, asked: Asked
) -> list[dict[str, object]]:
    """The model's own files, or one of all of them, or shards, or its base with its organs; None of `accept` means that
    a model with only some organs is wanted as it came in."""
    from organs.cli.remote import (
        fetch_files,
        fetch_shards,
        fetch_with_its_base,
    )

    with named_remote() as remote:
        recipe = None if accept is None or shards or merge else remote.with_its_base(model)
        if recipe is not None:
            found, proof = [fetch_with_its_base(remote, recipe, accept or (), output, asked)], "new file"
        else:
            if accept:
                raise click.UsageError(_ACCEPT_MISPLACED)
            own = remote.own_files(model)
            proof = "identical" if own.lock_id is None else "as made"
            if shards:
                found = fetch_shards(remote, own.model.name, remote.one_file(own), output, shards, asked)
            else:
                files = [(f"{own.model.name}{SUFFIX}", remote.one_file(own))] if merge else own.files
                found = fetch_files(remote, files, output, asked)
    return [_result(one.path, one.size_bytes, one.sha256, "new file" if one.is_new else proof) for one in found]


def _from_directory(path: Path, output: Path, *, force: bool, dry_run: bool, quiet: bool) -> list[dict[str, object]]:
    from organs.ingest.transplant import place_virtual

    results = []
    with ExitStack() as opened:
        files = _virtual_files(opened, path)
        targets = gguf_targets(output, [file.path.name for file in files], force=force)
        total = sum(file.size_bytes for file in files)
        with folder_of(targets, dry_run=dry_run), progress_bar("assemble", total, quiet=quiet or dry_run) as advance:
            for file, target in zip(files, targets, strict=True):
                digest = None if dry_run else place_virtual(file, target, advance)
                results.append(_result(target, file.size_bytes, digest, _proof(file, digest)))
                for note in _notes(file, digest):
                    click.echo(f"  note: {plain(note)}", err=True)
    return results


def _virtual_files(opened: ExitStack, path: Path) -> list[VirtualFile]:
    from organs.ingest.directory.opening import VirtualFile
    from organs.ingest.sources import directory_source, open_files

    files = open_files(opened, directory_source(path))
    if reasons := [reason for file in files for reason in file.unassemblable]:
        raise NotAssemblable(str(path), reasons)
    return [file.source for file in files if isinstance(file.source, VirtualFile)]


def _proof(file: VirtualFile, digest: Digest | None) -> str:
    from organs.registry.compose.lock import LOCK_KEY
    from organs.registry.gguf import read_header

    if digest is None and not file.remarks:
        return "not compared yet"
    if digest is None or digest != file.sha256:
        return "new file"
    return "identical" if read_header(file).field(LOCK_KEY) is None else "as made"


def _notes(file: VirtualFile, digest: Digest | None) -> Iterable[str]:
    """As an ingest tells them. Which organs were edited is looked for only when some were: it reads them again."""
    if digest is None:
        return file.remarks
    return file.notes(digest, {} if digest == file.sha256 else file.organ_digests())


def _result(target: Path, size_bytes: int, digest: Digest | None, proof: str) -> dict[str, object]:
    return {"file": str(target), "size_bytes": size_bytes, "sha256": digest, "proof": proof}


def _plans(
    registry: LocalRegistry, model: str, output: Path, shards: str | None, merge: bool
) -> tuple[list[FilePlan], str]:
    """The files, and what those are that are not new."""
    from organs.cli.remote import shard_size
    from organs.registry.assembly import (
        plan_merged,
        plan_model,
        plan_shards,
    )
    from organs.registry.catalog.queries.composing import chimera_of, model_by_text

    with registry.catalog.reading() as session:
        row = model_by_text(session, model)
        stem = output.name.removesuffix(SUFFIX) if output.name.endswith(SUFFIX) else row.name
        proof = "identical" if chimera_of(session, row.id) is None else "as made"
        if merge:
            return plan_merged(session, registry.blobs, row, f"{stem}{SUFFIX}"), proof
        if shards:
            return plan_shards(session, registry.blobs, row, stem, shard_size(shards)), proof
        return plan_model(session, row), proof


def _print_assembled(results: list[dict[str, object]], *, dry_run: bool, as_json: bool, quiet: bool) -> None:
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
        proof = _PROOFS[str(result["proof"])]
        digest = f", sha256:{result['sha256']}" if result["sha256"] else ""
        click.echo(f"{plain(result['file'])}: {size_text(size)}{digest}; {verb} {proof}")
