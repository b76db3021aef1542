"""`organ assemble` and `organ extract`: models written as GGUF files or as folders of organs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial as bind
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import selected_registry
from organs.cli.console import plain, print_json, print_path, progress_bar
from organs.cli.outputs import WrittenPath, folder_of, gguf_targets, shard_size, stem_of, write_files
from organs.registry.amounts import size_text
from organs.registry.digest import Digest
from organs.registry.errors import BadName, BadSource, NotAssemblable, NotFound
from organs.registry.names import parse_model_name

if TYPE_CHECKING:
    from organs.cli.composing import ComposeOptions
    from organs.ingest.directory.extract import Content, ExtractReport
    from organs.ingest.directory.opening import VirtualFile


@click.command()
@click.argument("what", metavar="FILE|MODEL")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The folder to create."
)
@click.option("--force", is_flag=True, help="Replace an organ directory that exists, with everything in it.")
@click.option("--json", "as_json", is_flag=True, help="Print a report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the folder's path only.")
def extract(what: str, output: Path, force: bool, as_json: bool, quiet: bool) -> None:
    """Split a model into the folder DIR: one file for each tensor, and manifest.json.

    FILE is a GGUF file or any shard of a split set; it need not be registered. MODEL is a registered model; each part
    is checked while it is read. DIR appears complete or not at all. `organ assemble DIR` gives the identical GGUF back,
    and `organ ingest DIR` registers it, also after you edited organs in it.

    A model of a remote registry is first downloaded beside DIR; these files are deleted afterwards.
    """
    from organs.ingest.directory.extract import extract as write_directory

    quiet_bars = quiet or as_json
    with ExitStack() as opened:
        contents = _contents(opened, what, output, force=force, quiet=quiet_bars)
        total = sum(content.header.file_size_bytes for content in contents)
        with progress_bar("extract", total, quiet=quiet_bars) as advance:
            report = write_directory(contents, output, force=force, progress=advance)
    _print_extracted(report, output, as_json=as_json, quiet=quiet)


def _contents(opened: ExitStack, what: str, output: Path, *, force: bool, quiet: bool) -> list[Content]:
    from organs.ingest.directory.extract import file_contents
    from organs.ingest.sources import GGUF_SUFFIX, find_sources, open_files

    if not what.endswith(GGUF_SUFFIX) and not Path(what).is_file():
        return _registered_contents(opened, what, output, force=force, quiet=quiet)
    sources = find_sources([what], "extract")
    if len(sources) != 1:
        raise click.UsageError(f"one model at a time; {what} gives {len(sources)}")
    return file_contents(open_files(opened, sources[0]))


def _registered_contents(opened: ExitStack, what: str, output: Path, *, force: bool, quiet: bool) -> list[Content]:
    from organs.ingest.directory.extract import model_contents
    from organs.ingest.directory.folder import is_organ_directory

    try:
        name = parse_model_name(what)
        registry = opened.enter_context(selected_registry())
        show_download = bind(progress_bar, "download", quiet=quiet)
        return model_contents(opened, registry, name, output, replaces=force, show_download=show_download)
    except (BadName, NotFound) as error:
        path = Path(what)
        if not path.is_dir():
            raise
        if is_organ_directory(path):
            hint = f"an organ directory already: organ assemble {what} gives its GGUF, organ ingest {what} registers it"
        else:
            hint = "a folder, and no model of that name is registered: give one of the GGUF files in it"
        raise BadSource(f"{what}: {hint}") from error


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
    "identical": "the original file, byte for byte",
    "as made": "the chimera as it was made, byte for byte",
    "new file": "a new file",
    "not compared yet": "compared with the file that the folder was made from",
}
_ACCEPT_MISPLACED = "--accept is for a RECIPE, and for a model that has only some organs"


@dataclass(frozen=True, slots=True)
class _ModelFiles:
    """Which files of a registered model are written."""

    merge: bool
    shards: str | None
    partial: bool
    accept: tuple[str, ...]


@click.command()
@click.argument("model", metavar="MODEL|DIR|RECIPE")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="OUT", help="A file or a folder."
)
@click.option("--shards", metavar="SIZE", help="Split into shards with at most SIZE (2G, 500M) of tensors each.")
@click.option("--merge", is_flag=True, help="Write one file from a model that came in shards.")
@click.option("--accept", multiple=True, metavar="CODE", help="Accept a warning about a RECIPE or a partial model.")
@click.option("--partial", is_flag=True, help="Write the original file of a model that has only some organs.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("--dry-run", is_flag=True, help="Print what would be written, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the files as JSON.")
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
    """Write a registered model as GGUF: the identical original file, or new shards, or one file from shards.

    Every organ is checked while it is read, and the file against the SHA-256 of the original. OUT appears complete or
    not at all. A model that came in shards gives its own shards, in the folder OUT (created if necessary) or named
    after the file OUT.

    MODEL may be a chimera, by its name or by sha256: and the digest of its lock. RECIPE is a file that ends in .yaml,
    .yml or .json: the chimera is made and registered first, as `organ compose` does. A model that has only some organs
    is grafted into the base that it names.

    DIR is an organ directory, as `organ extract` writes it: its GGUF is assembled without a registry, and compared with
    the one that it was made from. Organs that were edited since are reported, and give another file.
    """
    from organs.cli.composing import ComposeOptions
    from organs.ingest.directory.folder import is_organ_directory
    from organs.ingest.sources import GGUF_SUFFIX

    if shards and merge:
        raise click.UsageError("--shards and --merge exclude each other")
    is_recipe = model.endswith(RECIPE_SUFFIXES) and Path(model).is_file()
    options = ComposeOptions(output, force, dry_run, as_json, quiet, shows_plan=False)
    if is_organ_directory(Path(model)):
        if shards or merge:
            raise click.UsageError("--shards and --merge are for registered models: organ ingest DIR first")
        results = _from_directory(Path(model), output, options)
    elif is_recipe:
        if shards or merge:
            raise click.UsageError("--shards and --merge are for registered models: organ compose RECIPE first")
        results = _from_recipe(model, accept, options)
    elif model.endswith(GGUF_SUFFIX) and Path(model).is_file():
        raise BadSource(f"{model}: it is a GGUF file already; organ ingest, extract and transplant read it")
    else:
        results = _from_registry(model, _ModelFiles(merge, shards, partial, accept), output, options)
    _print_assembled(results, dry_run=dry_run, as_json=as_json, quiet=quiet)


def _from_recipe(path: str, accept: Sequence[str], options: ComposeOptions) -> list[dict[str, object]]:
    from organs.cli.composing import make_chimera, read_composition

    with selected_registry() as registry:
        composition = read_composition(registry.compose, path, None, accept, as_json=options.as_json)
        result = make_chimera(registry, composition, options)
    assert result.out is not None
    assert result.out.file is not None
    assert result.plan is not None
    sha256 = None if result.made is None else result.made.sha256
    return [_result(Path(result.out.file), result.plan.size_bytes, sha256, "new file")]


def _from_registry(model: str, wanted: _ModelFiles, output: Path, options: ComposeOptions) -> list[dict[str, object]]:
    from organs.cli.composing import write_partial

    proof = "new file"
    written: list[WrittenPath]
    with selected_registry() as registry:
        as_it_is = wanted.partial or wanted.shards or wanted.merge
        recipe = None if as_it_is else registry.partial_recipe(model)
        if recipe is not None:
            written = [write_partial(registry, recipe, wanted.accept, output, options)]
        else:
            if wanted.accept:
                raise click.UsageError(_ACCEPT_MISPLACED)
            shard_bytes = shard_size(wanted.shards)
            files = registry.files(model, merge=wanted.merge, shard_bytes=shard_bytes, stem=stem_of(output))
            proof = "as made" if files.model is not None and files.model.is_chimera else "identical"
            written = write_files(files, output, options)
    return [_result(file.path, file.size_bytes, file.sha256, "new file" if file.is_new else proof) for file in written]


def _from_directory(path: Path, output: Path, options: ComposeOptions) -> list[dict[str, object]]:
    from organs.ingest.transplant import place_virtual

    results = []
    with ExitStack() as opened:
        files = _virtual_files(opened, path)
        targets = gguf_targets(output, [file.path.name for file in files], force=options.force)
        total = sum(file.size_bytes for file in files)
        quiet = options.dry_run or not options.prints
        with folder_of(targets, dry_run=options.dry_run), progress_bar("write", total, quiet=quiet) as advance:
            for file, target in zip(files, targets, strict=True):
                digest = None if options.dry_run else place_virtual(file, target, advance)
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
    """Return the notes that an ingest gives. Edited organs are searched only if there are some: it reads all again."""
    if digest is None:
        return file.remarks
    return file.notes(digest, {} if digest == file.sha256 else file.organ_digests())


def _result(target: Path, size_bytes: int, digest: Digest | None, proof: str) -> dict[str, object]:
    return {"file": str(target), "size_bytes": size_bytes, "sha256": digest, "proof": proof}


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
