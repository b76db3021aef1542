"""`organ extract`: split a model into a folder with a file for each tensor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.console import (
    INDENT,
    is_chosen,
    output_options,
    print_failure,
    print_sentence,
    printed_for_programs,
    prints_json,
    progress_bar,
)
from organs.cli.hints import exit_status
from organs.cli.inputs import one_source
from organs.cli.options import original_spelling
from organs.cli.outputs import SUFFIX, force_option, output_option
from organs.cli.registries import selected_registry
from organs.registry.amounts import size_text
from organs.registry.errors import BadName, BadSource, DiskFull, NotFound, OrganError, StoreUnwritable
from organs.registry.names import parse_model_name

if TYPE_CHECKING:
    from organs.ingest.directory.extract import ExtractReport, GgufContent
    from organs.ingest.sources import ModelSource


@click.command()
@original_spelling("model", "--model")
@original_spelling("output", "--dir")
@click.argument("model", metavar="FILE|FOLDER|MODEL")
@output_option("DIR", "The folder to create.", required=True)
@force_option("Replace an existing organ directory and all files in it.")
@output_options(json="Print a report as JSON.", quiet="Print the folder's path only.")
def extract(model: str, output: Path) -> int:
    """Split a model into the organ directory DIR: a manifest.json, and one file for each tensor.

    FILE is a GGUF file or any shard of a split model. It does not have to be registered. MODEL is a registered model;
    its bytes are checked while they are read. If the command fails, it leaves no incomplete DIR.

    Each model in FOLDER becomes an organ directory of its own in DIR, named after its file. If a model is refused, the
    command continues with the next, and the exit status is 1.

    You can edit the tensors in DIR. `organ assemble DIR` writes the GGUF file again; without edits it is identical to
    the original. `organ ingest DIR` registers it.

    A model of a remote registry is first downloaded to the folder that contains DIR. The downloaded files are deleted
    at the end.
    """
    sources = _models_in(model)
    if sources:
        return _extract_folder(sources, output)
    with ExitStack() as opened:
        report = _extracted(_contents(opened, model, output), output, "extract")
    _print_extracted([(output, report)])
    return 0


def _models_in(folder: str) -> list[ModelSource]:
    """Return the models in a folder, without organ directories; none if `folder` is something else."""
    from organs.ingest.directory.opening import is_organ_directory
    from organs.ingest.sources import find_sources, is_gguf_name

    path = Path(folder)
    if not path.is_dir() or is_organ_directory(path):
        return []
    with suppress(BadSource):  # a folder without models can have the name of a registered model
        return [source for source in find_sources([folder], "extract") if is_gguf_name(source.paths[0].name)]
    return []


def _extract_folder(sources: Sequence[ModelSource], output: Path) -> int:
    """Extract each of `sources` into its own folder in `output`: that of its name, with a number if that is taken."""
    from organs.ingest.directory.extract import file_contents
    from organs.ingest.directory.opening import is_organ_directory
    from organs.ingest.sources import open_files

    if is_organ_directory(output):
        raise BadSource(f"{output}: this is an organ directory; choose another folder for {len(sources)} of them")
    try:
        output.mkdir(exist_ok=True)
    except FileExistsError:
        raise BadSource(f"{output}: exists, and is not a folder") from None
    except OSError as error:
        raise StoreUnwritable(f"{output}: {error.strerror}") from error
    failures: list[OrganError] = []
    extracted: list[tuple[Path, ExtractReport]] = []
    taken: set[str] = set()
    for number, source in enumerate(sources, 1):
        name, copy = source.name.name, 1
        while name.lower() in taken:  # some file systems ignore the case
            copy += 1
            name = f"{source.name.name}-{copy}"
        taken.add(name.lower())
        target, label = output / name, f"extract {number}/{len(sources)}"
        try:
            with ExitStack() as opened:
                report = _extracted(file_contents(open_files(opened, source)), target, label)
        except (DiskFull, StoreUnwritable):
            raise
        except OrganError as error:
            failures.append(error)
            print_failure(error)
            continue
        extracted.append((target, report))
        if not prints_json():
            _print_extracted([(target, report)])
    if prints_json():
        _print_extracted(extracted)
    return exit_status(failures, len(sources))


def _extracted(contents: Sequence[GgufContent], target: Path, label: str) -> ExtractReport:
    from organs.ingest.directory.extract import extract as write_directory

    total = sum(content.header.file_size_bytes for content in contents)
    with progress_bar(label, total) as advance:
        return write_directory(contents, target, force=is_chosen("force"), progress=advance)


def _contents(opened: ExitStack, model: str, output: Path) -> list[GgufContent]:
    """Return the files of a GGUF file or of a registered model, which is downloaded from a remote registry."""
    from organs.ingest.directory.extract import file_contents, model_contents
    from organs.ingest.directory.opening import is_organ_directory
    from organs.ingest.sources import open_files

    path = Path(model)
    if model.endswith(SUFFIX) or path.is_file():
        return file_contents(open_files(opened, one_source(model, "extract")))
    try:
        name = parse_model_name(model)
        registry = opened.enter_context(selected_registry())
        show_download = partial(progress_bar, "download")
        return model_contents(opened, registry, name, output, replaces=is_chosen("force"), show_download=show_download)
    except (BadName, NotFound) as error:
        if not path.is_dir():
            raise
        hint = "this is a folder without GGUF files, and no registered model has this name"
        if is_organ_directory(path):
            hint = (
                f"this is an organ directory: organ assemble {model} writes its GGUF, organ ingest {model} registers it"
            )
        raise BadSource(f"{model}: {hint}") from error


def _print_extracted(extracted: Sequence[tuple[Path, ExtractReport]]) -> None:
    """Print the folders with their reports."""
    items = [
        {
            "directory": str(output),
            "tensors": report.tensors,
            "size_bytes": report.size_bytes,
            "files": [{"name": name, "size_bytes": size, "sha256": sha256} for name, size, sha256 in report.files],
        }
        for output, report in extracted
    ]
    if not printed_for_programs({"items": items, "next": None}, [output for output, _ in extracted]):
        for output, report in extracted:
            print_sentence(f"{output}: {report.tensors} tensors, {size_text(report.size_bytes)}")
            for name, size, sha256 in report.files:
                print_sentence(f"{name}: {size_text(size)}, sha256:{sha256}", INDENT)
