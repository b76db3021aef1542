"""`organ extract-lora`: extract a LoRA adapter from a fine-tune and its base."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from organs.cli.console import (
    is_chosen,
    merge_command,
    output_options,
    print_hint,
    print_remark,
    print_sentence,
    printed_for_programs,
    status_line,
)
from organs.cli.inputs import is_file, one_source
from organs.cli.options import flag
from organs.cli.outputs import SUFFIX, force_option, gguf_targets, output_option
from organs.cli.registries import local_registry
from organs.cli.tables import print_table
from organs.registry.amounts import size_text
from organs.registry.entities.extraction import EXTRACTED_COLUMNS, RANK_COLUMNS, ExtractedAdapter
from organs.registry.names import name_from_text, parse_new_name

if TYPE_CHECKING:
    from organs.ingest.adapted_base import AdaptedBase
    from organs.registry.compose.extraction import ReadableModel
    from organs.registry.local import LocalRegistry

RANKS_MAX = 16


def rank_numbers(text: str) -> tuple[int, ...]:
    """Return the ranks in a text such as 16 or 4,16,64, as the type of an option."""
    words = text.split(",")
    if len(words) > RANKS_MAX or not all(word.isascii() and word.isdecimal() and len(word) < 6 for word in words):
        raise click.BadParameter(f"{text[:80]}: give a number such as 16, or up to {RANKS_MAX} such as 4,16,64")
    return tuple(map(int, words))


@click.command()
@click.argument("child", metavar="MODEL|FILE")
@click.option("--base", required=True, metavar="MODEL|FILE", help="The model from which MODEL was fine-tuned.")
@click.option(
    "--rank",
    "ranks",
    type=rank_numbers,
    metavar="N",
    default="16",
    show_default=True,
    help="The rank of the factors. With --dry-run, several such as 4,16,64.",
)
@click.option(
    "--keep",
    type=float,
    metavar="SHARE",
    help="Give each matrix the smallest rank that keeps this share of its change, from 0 to 1, at most --rank.",
)
@click.option("--name", metavar="NAME", help="Register the adapter as NAMESPACE/NAME. [default: local/MODEL-LoRA-rN]")
@output_option("OUT", "Also write the adapter: OUT.gguf, or else a folder for PEFT. Needed for FILE.")
@flag("--dry-run", "Print which share of the change is kept, and make nothing.")
@force_option("Replace an existing file or PEFT folder.")
@output_options(json="Print the result as JSON, with every matrix.", quiet="Print the adapter's name or path only.")
def extract_lora(
    child: str,
    base: str,
    ranks: tuple[int, ...],
    keep: float | None,
    name: str | None,
    output: Path | None,
    dry_run: bool,
) -> None:
    """Extract a LoRA adapter from a fine-tune, and print which share of its change the adapter keeps.

    The difference of each changed matrix of attention and feed-forward is approximated by two factors of a low rank,
    and so is that of token embedding and output matrix if the base has both. All other changes are left out, and the
    command says how much that is. The share is computed from all values. It is not a share of the gain: validate what
    you merge.

    MODEL and the base are registered models. The command registers the adapter as a new model.

    FILE is a GGUF file. If one of the two is a file, the adapter is written to OUT, and is not registered.
    """
    uses_files = is_file(child) or is_file(base)
    if len(ranks) > 1 and not dry_run:
        raise click.UsageError("several ranks are compared: give --dry-run, or one --rank")
    if uses_files and not dry_run and (output is None or name is not None):
        raise click.UsageError("the adapter of a FILE is written and not registered: give -o OUT, and no --name")
    chosen = None if name is None else parse_new_name(name)
    if chosen is not None and chosen.version is not None:
        raise click.UsageError("--name takes no @version: the registry chooses the next free version")
    with ExitStack() as opened:
        registry = None if is_file(child) and is_file(base) else opened.enter_context(local_registry())
        models = [_readable(opened, registry, text) for text in (child, base)]
        if dry_run:
            _print(_extracted(models, ranks, keep, None))
            return
        if chosen is None:
            stem = models[0].parent.label.rpartition("/")[2].partition("@")[0].removesuffix(SUFFIX)
            chosen = parse_new_name(name_from_text(f"{stem}-LoRA-r{ranks[0]}"))
        path = opened.enter_context(_place(registry, output, chosen.name))
        facts = _facts(*models) if output is not None and output.suffix != SUFFIX else None
        result = _extracted(models, ranks, keep, path)
        if facts is not None and output is not None:
            _write_folder(path, facts, output)
        result = structs.replace(result, file=None if output is None else str(output))
        if registry is not None and not uses_files:
            from organs.ingest.add import add_model

            with status_line("register"):
                added = add_model(registry, path, name=str(chosen), new_version=True)
            result = structs.replace(result, model=added.model)
        _print(result)


def _readable(opened: ExitStack, registry: LocalRegistry | None, text: str) -> ReadableModel:
    """Return the model in the files `text`, or the registered one."""
    if registry is not None and not is_file(text):
        from organs.registry.compose.extraction import registered_model

        with registry.catalog.reading() as session:
            return registered_model(session, registry.blobs, text)
    from organs.ingest.transplant import FileLibrary

    with status_line(f"measure {text}"):
        return FileLibrary(opened, {text: one_source(text, "extract a LoRA from")}).readable(text)


@contextmanager
def _place(registry: LocalRegistry | None, output: Path | None, name: str) -> Iterator[Path]:
    """Return the path for the adapter in GGUF: `output`, or a temporary file if that is none or a PEFT folder."""
    import tempfile

    from organs.ingest.directory.extract import check_target
    from organs.ingest.peft import is_adapter_folder
    from organs.registry.store.files import temporary_folder

    if output is not None and output.suffix == SUFFIX:
        yield gguf_targets(output, [output.name])[0]
        return
    if output is not None:
        check_target(output, replace=is_chosen("force"), is_replaceable=is_adapter_folder)
    if registry is not None:
        with temporary_folder(registry.settings.spool) as folder:
            yield folder / f"{name}{SUFFIX}"
        return
    assert output is not None
    with tempfile.TemporaryDirectory(prefix=".organ-", dir=output.absolute().parent) as beside:
        yield Path(beside) / f"{name}{SUFFIX}"


def _extracted(
    models: Sequence[ReadableModel], ranks: Sequence[int], keep: float | None, path: Path | None
) -> ExtractedAdapter:
    from organs.registry.compose.extraction import extract_adapter

    done = 0
    with status_line("extract") as say:

        def report(size: int) -> None:
            nonlocal done
            done += size
            say(f"{size_text(done)} decomposed")

        return extract_adapter(models[0], models[1], ranks, keep=keep, target=path, progress=report)


def _facts(child: ReadableModel, base: ReadableModel) -> AdaptedBase:
    """Return the facts about the base that a PEFT folder needs; raises BadInput if PEFT has no names for a change."""
    from organs.ingest.adapted_base import base_of_header
    from organs.ingest.peft_export import check_exportable
    from organs.registry.anatomy import is_multiplied

    parent, after = base.parent, child.parent.by_slot
    facts = base_of_header(parent.header, {part.name: part.shape for part in parent.parts}, parent.label)
    matrices = [part for part in parent.parts if part.organ.is_matrix and is_multiplied(part.place)]
    changed = [part for part in matrices if part.slot in after and after[part.slot].digest != part.digest]
    check_exportable(facts, [part.name for part in changed])
    return facts


def _write_folder(path: Path, facts: AdaptedBase, output: Path) -> None:
    """Write the adapter in the GGUF file `path` as a PEFT folder."""
    from organs.ingest.peft_export import export_adapter
    from organs.registry.input_files import FileSource

    with FileSource(path) as adapter:
        export_adapter(adapter, facts, output, replace=is_chosen("force"))


def _print(result: ExtractedAdapter) -> None:
    names = [result.model] if result.model else [Path(result.file)] if result.file else []
    if printed_for_programs(result, names):
        return
    for note in result.notes:
        print_remark(note, "warning: ")
    print_sentence(result.sentence)
    print_table([column for column in EXTRACTED_COLUMNS if not column.data_only], result.types)
    for left_out in result.left_out:
        print_sentence(left_out.sentence)
    if len(result.ranks) > 1:
        click.echo()
        print_sentence("By rank, of all that changed:")
        print_table(RANK_COLUMNS, result.ranks)
    if result.file is not None:
        print_sentence(f"{result.file}: written")
    if result.model is not None:
        print_sentence(f"{result.model}: registered")
        print_hint("merge it", merge_command(result.base, result.model))
