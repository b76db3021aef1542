"""`organ assemble`: write a model, an organ directory or a recipe as a GGUF file."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli import fast_imports
from organs.cli.console import (
    output_options,
    print_remark,
    print_sentence,
    printed_for_programs,
    progress_bar,
)
from organs.cli.options import flag, original_spelling, size_bytes
from organs.cli.outputs import (
    SUFFIX,
    WrittenPath,
    folder_of,
    force_option,
    gguf_targets,
    output_option,
    print_beside_file,
    stem_of,
    write_files,
)
from organs.cli.registries import selected_registry
from organs.registry.amounts import size_text
from organs.registry.digest import Digest
from organs.registry.errors import BadSource, NotAssemblable

if TYPE_CHECKING:
    from organs.ingest.directory.opening import VirtualFile

RECIPE_SUFFIXES = (".yaml", ".yml", ".json")
IDENTICAL, AS_MADE, NEW_FILE, NOT_COMPARED = "identical", "as made", "new file", "not compared yet"
PROOFS = {
    IDENTICAL: "the original file, byte for byte",
    AS_MADE: "the composed chimera, byte for byte",
    NEW_FILE: "a new file",
    NOT_COMPARED: "compared with the original file",
}
"""What is known of a file, in JSON and for people."""
Proven = tuple[WrittenPath, str]
"""A file, and what is known of it: a key of PROOFS."""


@click.command()
@original_spelling("model", "--dir")
@click.argument("model", metavar="MODEL|DIR|RECIPE")
@output_option("OUT", "The file or folder to write.", required=True)
@click.option(
    "--shards",
    metavar="SIZE",
    type=size_bytes,
    help="Write shards with at most SIZE (2G, 500M) of tensors in each.",
)
@flag("--merge", "Write one file for a model that was ingested as shards.")
@click.option(
    "--accept",
    multiple=True,
    metavar="CODE",
    help="Accept the warning CODE of a RECIPE or a partial model. Repeatable.",
)
@flag("--partial", "Write the original file of a partial model, without its base.")
@force_option("Replace existing files.")
@flag("--dry-run", "Print what would be written, and write nothing.")
@output_options(json="Print the files as JSON.", quiet="Print the files' paths only.")
def assemble(
    model: str,
    output: Path,
    shards: int | None,
    merge: bool,
    accept: tuple[str, ...],
    partial: bool,
    dry_run: bool,
) -> None:
    """Write the GGUF file of a registered model, an organ directory or a recipe.

    MODEL is a registered model. The result is identical to the ingested file: the command checks every tensor, and the
    SHA-256 of the whole file. A model that was ingested as shards gives the same shards, in the folder OUT or with
    names that begin like the file OUT. --merge and --shards write new files with the same tensors. A chimera can also
    be named by `sha256:` and the digest of its lock.

    A partial model has only some tensors. The command grafts them into the base that the model names.

    DIR is an organ directory from `organ extract`. No registry is needed. The result is compared with the original
    file; edited tensors are listed.

    RECIPE is a file that ends in .yaml, .yml or .json. The chimera is composed and registered first, as by `organ
    compose`.

    If the command fails, it leaves no incomplete file.
    """
    with fast_imports():
        from organs.cli.compose import ComposeOptions, make_chimera, read_last_composition, write_partial
        from organs.ingest.directory.opening import is_organ_directory

    if shards and merge:
        raise click.UsageError("--shards and --merge exclude each other")
    is_directory = is_organ_directory(Path(model))
    is_recipe = model.endswith(RECIPE_SUFFIXES) and Path(model).is_file()
    if (shards or merge) and (is_directory or is_recipe):
        first = "organ ingest DIR" if is_directory else "organ compose RECIPE"
        raise click.UsageError(f"--shards and --merge are for registered models: {first} first")
    if is_directory:
        files = _from_directory(Path(model), output, dry_run=dry_run)
    elif is_recipe:
        with selected_registry() as registry:
            composition = read_last_composition(registry, model, None, accept, dry_run=dry_run)
            options = ComposeOptions(output, dry_run, shows_plan=False)
            result = make_chimera(registry, composition, options)
        assert result.out is not None
        assert result.out.file is not None
        assert result.plan is not None
        sha256 = None if result.made is None else result.made.sha256
        files = [(WrittenPath(Path(result.out.file), result.plan.size_bytes, sha256), NEW_FILE)]
    elif model.endswith(SUFFIX) and Path(model).is_file():
        raise BadSource(f"{model}: this is a GGUF file already; organ ingest, extract and transplant read it")
    else:
        with selected_registry() as registry:
            recipe = None if partial or shards or merge else registry.partial_recipe(model)
            if recipe is not None:
                files = [(write_partial(registry, recipe, accept, output, dry_run=dry_run), NEW_FILE)]
            elif accept:
                raise click.UsageError("--accept is only for a RECIPE or a partial model")
            else:
                # Not registry.assemble(): it always writes one file, while a model that came in shards gives its
                # shards here, and --dry-run, --force and --json need the names and sizes before anything is written.
                found = registry.files(model, merge=merge, shard_bytes=shards or None, stem=stem_of(output))
                print_beside_file(found.model)
                proof = AS_MADE if found.model is not None and found.model.is_chimera else IDENTICAL
                files = [
                    (file, NEW_FILE if file.is_new else proof) for file in write_files(found, output, dry_run=dry_run)
                ]
    values = {"items": [{**file.values, "proof": proof} for file, proof in files], "next": None}
    if not printed_for_programs(values, [file.path for file, _ in files]):
        for file, proof in files:
            digest = f", sha256:{file.sha256}" if file.sha256 else ""
            is_proven = f"{'would be' if dry_run else 'is'} {PROOFS[proof]}"
            print_sentence(f"{file.path}: {size_text(file.size_bytes)}{digest}; {is_proven}")


def _from_directory(path: Path, output: Path, *, dry_run: bool) -> list[Proven]:
    from organs.ingest.directory.opening import VirtualFile
    from organs.ingest.sources import directory_source, open_files
    from organs.ingest.transplant import place_virtual

    with ExitStack() as opened:
        dissected = open_files(opened, directory_source(path))
        if reasons := [reason for file in dissected for reason in file.front.unassemblable]:
            raise NotAssemblable(str(path), reasons)
        files = [file.source for file in dissected if isinstance(file.source, VirtualFile)]
        targets = gguf_targets(output, [file.path.name for file in files])
        results: list[Proven] = []
        if not dry_run:
            opened.enter_context(folder_of(targets))
        with progress_bar("write", 0 if dry_run else sum(file.size_bytes for file in files)) as advance:
            for file, target in zip(files, targets, strict=True):
                digest: Digest | None = None
                notes: Iterable[str] = file.remarks
                if not dry_run:
                    digest = place_virtual(file, target, advance)
                    # The search for edited organs reads every file again: only if needed.
                    notes = file.notes(digest, {} if digest == file.sha256 else file.organ_digests())
                results.append((WrittenPath(target, file.size_bytes, digest), _proof(file, digest)))
                for note in notes:
                    print_remark(note, "  note: ")
    return results


def _proof(file: VirtualFile, digest: Digest | None) -> str:
    from organs.registry.compose.lock import LOCK_KEY
    from organs.registry.gguf import read_header

    if digest is None and not file.remarks:
        return NOT_COMPARED
    if digest is None or digest != file.sha256:
        return NEW_FILE
    return IDENTICAL if read_header(file).field(LOCK_KEY) is None else AS_MADE
