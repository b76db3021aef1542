"""`organ reclaim`, `organ restore`, `organ run`: files of models that are removed, and written when they are needed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from organs.cli import fast_imports
from organs.cli.console import (
    is_for_people,
    output_options,
    print_failure,
    print_json,
    print_path,
    print_remark,
    print_sentence,
    printed_for_programs,
    prints_json,
    progress_bar,
)
from organs.cli.inputs import chosen_tools, place_text, print_notes, print_problems, tool_options
from organs.cli.options import flag, size_bytes
from organs.cli.registries import local_registry
from organs.cli.tables import print_table
from organs.registry.amounts import names_text, plural_text, size_text
from organs.registry.columns import CellKind, Column
from organs.registry.errors import BadSource

if TYPE_CHECKING:
    from organs.ingest.reclaiming import FileGroup, Restored
    from organs.ingest.tools.findings import Findings
    from organs.registry.catalog.tables import OutsideFile
    from organs.registry.local import LocalRegistry

KEEP_DEFAULT = "20G"
DAY_SECONDS = 86_400


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@tool_options("Take the models of")
@click.option(
    "--keep", "keep_bytes", metavar="SIZE", type=size_bytes, default="", help="Leave the last used files, up to SIZE."
)
@flag("--yes", "goes_on", "Store, check and remove the files; otherwise they are only listed.")
@output_options(json="Print the files as JSON.")
def reclaim(paths: tuple[str, ...], keep_bytes: int, goes_on: bool) -> int:
    """Free the disk: remove GGUF files whose bytes the registry has. Without --yes, list what would be removed.

    PATH is a GGUF file or a folder with GGUF files. --ollama and the other options take the models of a tool: then the
    tool does not see them any more, because what names them there is removed too.

    With --yes, each file is stored in the registry first if it is not there yet; its stored bytes are read back and
    compared; and only then it is removed. `organ restore` writes every file again, identical to the last byte, with its
    place, time and permissions, and for Ollama and the Hugging Face tools with what names it. `organ run` uses a model
    without restoring it.

    Stays where it is: a symbolic link, a file with several names (hard links), a model that the registry refuses. With
    --keep 40GB, the models that were used last stay too.
    """
    with fast_imports():
        from organs.ingest.reclaiming import give_back, groups_of, reclaimed_batches, split_by_use
        from organs.ingest.tools import find_in_folder, find_tool_models
        from organs.ingest.tools.places import this_machine

    tools = chosen_tools()
    if not paths and not tools:
        raise click.UsageError("give a PATH, or a tool such as --ollama; organ scan shows what is on this machine")
    with local_registry() as registry:
        problems = give_back(registry) if goes_on else []
        findings: list[Findings] = list(find_tool_models(this_machine(), tools))
        for path in paths:
            try:
                findings.append(find_in_folder(path))
            except BadSource as error:  # perhaps an earlier run removed its files
                if not reclaimed_batches(registry, _wanted(registry, [path], ())):
                    raise
                print_remark(f"{error}: what was there is reclaimed already")
        stored = registry.totals().stored_bytes
        groups, kept = split_by_use(groups_of(findings), keep_bytes)
        rows = _reclaimed(registry, groups) if goes_on else _surveyed(registry, groups)
        free = sum(size for _, size, _, _ in rows)
        grown = registry.totals().stored_bytes - stored
        problems += [f"{group.label} stays: {reason}" for group, _, _, reason in rows if reason]
    if prints_json():
        done = [_values(*row) for row in rows if not row[3]]
        left = [*(_values(*row) for row in rows if row[3]), *(_values(group, 0, (), None) for group in kept)]
        print_json({"removed" if goes_on else "removable": done, "stays": left})
    else:
        _print_groups([row for row in rows if not row[3]], done=goes_on)
        verb = "were removed" if goes_on else "would be removed"
        grows = f"; the registry grew by {size_text(grown)}" if grown else ""
        print_sentence(f"{size_text(free)} {verb}{grows}.")
        if kept:
            size = size_text(sum(group.size_bytes for group in kept))
            print_sentence(f"{size} stay, because of --keep: {names_text([group.label for group in kept])}.")
        if not goes_on and free:
            print_remark("nothing was removed; --yes stores, checks and removes these files")
        elif goes_on and free:
            print_remark("organ restore writes them again; organ run MODEL COMMAND {} uses one without that")
    print_notes(findings)
    print_problems(findings, problems)
    return int(bool(problems) or any(part.problems for part in findings))


Row = tuple["FileGroup", int, Sequence[str], "str | None"]
"""A group, its size that is or would be free, its registered models, and why it stays."""


def _surveyed(registry: LocalRegistry, groups: Iterable[FileGroup]) -> list[Row]:
    from organs.ingest.reclaiming import obstacle, registered_names

    rows: list[Row] = []
    for group in groups:
        reason = obstacle(registry, group)
        rows.append((group, 0 if reason else group.size_bytes, registered_names(registry, group), reason))
    return rows


def _reclaimed(registry: LocalRegistry, groups: Sequence[FileGroup]) -> list[Row]:
    from organs.ingest.reclaiming import reclaim as reclaim_groups

    total = sum(group.size_bytes for group in groups)
    rows: list[Row] = []
    with progress_bar("store and check", 2 * total) as advance:
        rows += (
            (done.group, done.freed_bytes, done.models, done.kept) for done in reclaim_groups(registry, groups, advance)
        )
    return rows


def _values(group: FileGroup, size: int, models: Sequence[str], reason: str | None) -> dict[str, object]:
    return {
        "tool": group.tool,
        "files": [str(path) for path in group.files],
        "models": list(models),
        "size_bytes": size,
        "problem": reason,
    }


def _print_groups(rows: Sequence[Row], *, done: bool) -> None:
    if not rows:
        return
    cells = [
        {
            "file": group.label,
            "in": place_text(group.tool, group.folder),
            "size": size,
            "used": "" if done else _days_text(group.used_at),
            "model": ", ".join(models) or "not stored yet",
        }
        for group, size, models, _ in rows
    ]
    used = () if done else (Column("used", "last used"),)
    columns = (
        Column("file"),
        Column("in"),
        Column("size", kind=CellKind.SIZE),
        *used,
        Column("model", "registered as"),
    )
    print_table(columns, cells)


def _days_text(used_at: float) -> str:
    days = int(max(0.0, time.time() - used_at) // DAY_SECONDS)
    return "today" if days == 0 else f"{plural_text(days, 'day', 'days')} ago"


@click.command()
@click.argument("names", nargs=-1, metavar="[PATH|MODEL]...")
@tool_options("Restore the models of")
@flag("--dry-run", "Only list what was reclaimed.")
@flag("--forget", "forgets", "Do not write the files, and never do so; the models stay in the registry.")
@output_options(json="Print the files as JSON.", quiet="Print the restored paths only.")
def restore(names: tuple[str, ...], dry_run: bool, forgets: bool) -> int:
    """Write the files that `organ reclaim` removed again: all, or those of a PATH, of a MODEL or of a tool.

    Each file is identical to the last byte, and has its place, time and permissions. A file that is there already stays
    if it has the same bytes. If another file is in the way, it stays too, and the exit status is 1.
    """
    with fast_imports():
        from organs.ingest.reclaiming import forget, reclaimed_batches, restored_of
        from organs.ingest.reclaiming import restore as restore_files

    if forgets and not names:
        raise click.UsageError("--forget needs a PATH or a MODEL")

    done: list[Restored] = []
    with local_registry() as registry:
        for name in names:
            if not reclaimed_batches(registry, _wanted(registry, [name], ())):
                raise BadSource(f"{name[:200]}: nothing of it was reclaimed; organ restore --dry-run lists what was")
        wanted = _wanted(registry, names, chosen_tools())
        planned = [restored_of(files) for files in reclaimed_batches(registry, wanted)]
        if forgets and not dry_run:
            done += forget(registry, wanted)
        elif not dry_run:
            with progress_bar("restore", sum(one.size_bytes for one in planned)) as advance:
                done += restore_files(registry, wanted, advance)
    shown = planned if dry_run else done
    values = {"items": [structs.asdict(one) for one in shown], "next": None}
    if not printed_for_programs(values, [Path(path) for one in shown if not one.problem for path in one.paths]):
        _print_restored(shown, "reclaimed" if dry_run else "forgotten" if forgets else "restored")
    for one in shown:
        if one.problem:
            print_failure(f"{one.name}: {one.problem}")
    return int(any(one.problem for one in shown))


def _wanted(registry: LocalRegistry, names: Sequence[str], tools: Sequence[str]) -> Callable[[OutsideFile], bool]:
    """Return whether a removed file is in one of the paths, of one of the models, or of one of the tools."""
    from organs.ingest.reclaiming import every
    from organs.ingest.tools.installing import ids_of

    if not names and not tools:
        return every
    folders = [Path(os.path.abspath(Path(name).expanduser())) for name in names]
    with registry.catalog.reading() as session:
        ids = {model_id for name in names for model_id in ids_of(session, name)}

    def is_wanted(file: OutsideFile) -> bool:
        path = Path(file.path)
        return file.tool in tools or file.model_id in ids or any(path == one or one in path.parents for one in folders)

    return is_wanted


def _print_restored(shown: Sequence[Restored], verb: str) -> None:
    models = [one for one in shown if not one.problem]
    rows = [
        {
            "file": one.name if one.tool else one.paths[0],
            "in": place_text(one.tool, Path(one.paths[0]).parent),
            "size": one.size_bytes,
        }
        for one in models
    ]
    if rows:
        print_table((Column("file"), Column("in"), Column("size", kind=CellKind.SIZE)), rows)
    count = plural_text(len(models), "model was", "models were")
    print_sentence(f"{count} {verb}, {size_text(sum(one.size_bytes for one in models))}.")


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("model")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND]...")
@click.option(
    "--keep",
    "keep_bytes",
    metavar="SIZE",
    type=size_bytes,
    default=KEEP_DEFAULT,
    help=f"Keep the last used files, up to SIZE. [default: {KEEP_DEFAULT}B]",
)
def run(model: str, command: tuple[str, ...], keep_bytes: int) -> int:
    """Run COMMAND with the file of a registered model: {} in it becomes the path of the file.

    The file is written into the folder of the registry, and kept there for the next time. The files that were used
    longest ago are removed when all of them have more than --keep; the last one stays. Example:

    organ run me/coder llama-cli -m {} -p Hello

    Options of `organ run` come before MODEL. Without COMMAND, the path is printed. The exit status is that of COMMAND.
    """
    with fast_imports():
        from organs.ingest.materialising import materialised

    command = command[1:] if command[:1] == ("--",) else command
    if command and not any("{}" in word for word in command):
        raise click.UsageError("COMMAND has no {}, which becomes the path of the file")
    if command and shutil.which(command[0]) is None:
        raise BadSource(f"{command[0][:200]}: no such program")
    with local_registry() as registry, ExitStack() as opened:
        total = sum(file.size_bytes for file in registry.model(model).files)
        with progress_bar("write", total, quiet=None if is_for_people() else True) as advance:
            file = opened.enter_context(materialised(registry, model, keep_bytes, advance))
        if not command:
            print_path(file.path)
            return 0
        return _run([word.replace("{}", str(file.path)) for word in command], file.lock)


def _run(words: Sequence[str], lock: int) -> int:
    """Run a program in the foreground; return its exit status, as a shell does. It inherits the lock of its file."""
    try:
        process = subprocess.Popen(words, pass_fds=[lock])  # noqa: S603  # the command of the person who typed it
    except OSError as error:
        raise BadSource(f"{words[0]}: {error.strerror}") from error
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - status if status < 0 else status
