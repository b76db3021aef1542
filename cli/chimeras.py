"""Chimeras: `organ compat`, `leaderboard`, `compose`, `purify` and `validate`.

`transplant` and `graft` work without a registry.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import structs

from organs.cli.arguments import (
    AFTER_HELP,
    OriginalSpellings,
    again,
    local_registry,
    print_more,
    print_notes,
    registry_address,
    selected_registry,
)
from organs.cli.composing import (
    ComposeOptions,
    make_chimera,
    print_architectures,
    print_composed,
    print_findings,
    print_measured,
    print_plan,
    print_quick_look,
    print_thetas,
    read_composition,
    refuse,
    refuse_recipe,
    result_of,
    take_quick_look,
)
from organs.cli.console import (
    plain,
    print_failure,
    print_hint,
    print_json,
    print_path,
    print_sentence,
    print_table,
    progress_bar,
    status_line,
    waiting,
)
from organs.cli.details import merge_command
from organs.cli.outputs import (
    SUFFIX,
    InputModels,
    OutputOptions,
    check_fits,
    check_folder_free,
    check_free,
    gguf_targets,
    is_file,
    one_source,
    output_option,
    write_files,
    write_text,
)
from organs.ingest.files import FileSource
from organs.registry.amounts import change_text, perplexity_text, size_text, weight_change_text
from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.catalog.cursor import PAGE_MAX
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.digest import Digest
from organs.registry.entities.chimera import ComposeResult, WrittenFile
from organs.registry.entities.finding import Severity
from organs.registry.entities.gain import MeasuredGraft
from organs.registry.entities.plan import Compatibility, FitCount, Screen, TypeCompatibility
from organs.registry.entities.verdict import RunReport, TextVerdict, VerdictReport
from organs.registry.errors import BadLock, BadRecipe, BadSource, NotFound
from organs.registry.names import parse_model_name
from organs.registry.settings import Settings
from organs.registry.validation.texts import ScoredText, built_in_texts, read_text

if TYPE_CHECKING:
    from organs.cli.composing import Builder, ComposeOptions
    from organs.ingest.transplant import FileLibrary, Transplant
    from organs.registry.compose.api import RecipeBuilder
    from organs.registry.compose.lock import Lock
    from organs.registry.compose.plan import Plan
    from organs.registry.compose.recipe import Recipe
    from organs.registry.interface import Registry
    from organs.registry.local import LocalRegistry
    from organs.registry.sandbox.process import Sandbox
    from organs.registry.validation.command import CommandRuntime
    from organs.registry.validation.comparison import RunnableModel, ValidationBudget, ValidationStep
    from organs.registry.validation.runtime import Runtime


_FIT_NUMBERS = ("fit", "of", "change")
SAME = "the same model"
"""Shown instead of the change of a model with the same organs as the base."""


@click.command()
@click.argument("base", metavar="BASE")
@click.argument("donor", required=False, metavar="[DONOR]")
@click.option(
    "--limit",
    default=50,
    metavar="N",
    show_default=True,
    type=click.IntRange(1, PAGE_MAX),
    help="List at most N models.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "-q", "--quiet", is_flag=True, help="Print only the types that fit completely, or without DONOR the models."
)
def compat(base: str, donor: str | None, limit: int, as_json: bool, quiet: bool) -> None:
    """Show which organs of DONOR fit into BASE, by type, and why others do not.

    Without DONOR, list the registered models with organs that fit, the most similar model first. A model with the same
    organs as BASE is listed as the same model. Organs of an unrelated model fit by their shape only: such a chimera is
    seldom useful.

    BASE and DONOR are names of registered models, or `sha256:` and a digest. With a DONOR, they can also be GGUF files
    and organ directories.
    """
    if donor is None:
        _print_fitting(base, limit, as_json=as_json, quiet=quiet)
        return
    result = _compatibility(base, donor, quiet=as_json or quiet)
    if as_json:
        print_json(result)
    elif quiet:
        for row in result.types:
            if row.fitting == row.total:
                click.echo(row.type)
    else:
        _print_compatibility(result)
        is_adapter = not result.types and all(finding.severity is not Severity.REFUSE for finding in result.findings)
        if is_adapter and not is_file(base) and not is_file(donor):
            print_hint("Merge it into the base", merge_command(base, donor))


def _compatibility(base: str, donor: str, *, quiet: bool) -> Compatibility:
    from organs.registry.compose.compatibility import check_compatibility

    are_files = [is_file(base), is_file(donor)]
    if not any(are_files):
        with selected_registry() as registry, waiting("compare", quiet=quiet):
            return registry.compatibility(base, donor)
    if registry_address() is not None and not all(are_files):
        raise click.UsageError("a remote registry cannot read your files: give the names of two models, or two files")
    with ExitStack() as opened, status_line("measure", quiet=quiet):
        models = InputModels(opened)
        return check_compatibility(models.parent(base), models.parent(donor))


def _print_compatibility(result: Compatibility) -> None:
    findings = print_architectures(result.findings)
    rows = [(row.type, row.fitting, row.total, *_relation(row.screen), _reasons(row)) for row in result.types]
    if rows:
        print_table(("type", "fit", "of", "relation", "change", "warnings"), rows, _FIT_NUMBERS)
        click.echo()
    print_findings(findings)
    refused = any(finding.severity is Severity.REFUSE for finding in result.findings)
    if refused and any(row.fitting for row in result.types):
        print_sentence("A refusal of one type does not affect the others.")


def _relation(screen: Screen | None) -> tuple[str, str]:
    """Return the relation of the organs that fit to those that they would replace, and their change."""
    if screen is None:
        return "–", "–"
    return screen.relation or "–", weight_change_text(screen.moved, screen.likeness)


def _reasons(row: TypeCompatibility) -> str:
    """Return the codes of the findings that prevent a type from fitting, refusals first."""
    codes = [finding.code for finding in row.findings if finding.severity is not Severity.INFO]
    return ", ".join(dict.fromkeys(codes)) or ("" if row.fitting == row.total else "see below")


def _print_fitting(base: str, limit: int, *, as_json: bool, quiet: bool) -> None:
    with selected_registry() as registry, waiting("compare", quiet=as_json or quiet):
        result = registry.fitting(base, limit=limit)
        is_empty = not result.items and not as_json and not quiet
        is_adapter = is_empty and bool(registry.models(f"model:{result.base} kind:adapter", limit=1).items)
    if as_json:
        print_json(result)
    elif quiet:
        for model in result.items:
            if not model.same:
                click.echo(model.model)
    elif not result.items:
        print_sentence(f"No registered model fits into {result.base}.", err=True)
        if is_adapter:
            print_hint("It is an adapter: name its base first", f"organ compat BASE {result.base}")
    else:
        fitting = {kind for model in result.items for kind, fit in model.types.items() if fit.fitting or fit.equal}
        kinds = list(dict.fromkeys(kind for model in result.items for kind in model.types if kind in fitting))
        rows = [
            (
                model.model,
                SAME if model.same else weight_change_text(model.change, model.likeness),
                *(_fit_text(model.types.get(kind)) for kind in kinds),
            )
            for model in result.items
        ]
        columns = ("model", "change", *kinds)
        print_table(columns, rows, columns[1:], leave_out=kinds[:1:-1])
        print_hint("Details", f"organ compat {result.base} MODEL")
    if result.more and not as_json:
        print_sentence("there may be more models: give a larger --limit", err=True)


def _fit_text(fit: FitCount | None) -> str:
    if fit is None:
        return "–"
    equal = "equal" if fit.equal == fit.total else f"{fit.equal} equal"
    return f"{fit.fitting + fit.equal}/{fit.total}" + (f" ({equal})" if fit.equal else "")


_ON = click.option(
    "--on",
    metavar="TEXTS",
    help="Only gains on these kinds of text, such as python,german, code or prose.",
)


@click.command()
@click.argument("base", required=False, metavar="[BASE]")
@_ON
@click.option(
    "--limit", default=20, metavar="N", show_default=True, type=click.IntRange(1, PAGE_MAX), help="Chimeras on a page."
)
@click.option("--after", metavar="NEXT", help=AFTER_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the page as JSON, with the gains on all texts.")
@click.option("-q", "--quiet", is_flag=True, help="Print the names of the chimeras only.")
def leaderboard(base: str | None, on: str | None, limit: int, after: str | None, as_json: bool, quiet: bool) -> None:
    """Rank validated chimeras by their gain over their bases, the largest gain first.

    With BASE, list the grafts on this model. The gain +5.7% means that `organ validate` measured a perplexity 5.7%
    lower than that of the base. A loss is a gain below 0. Only results whose interval of 95% excludes 0 are listed. The
    column `largest loss` has the lowest gain on any text.

    Repeat the best graft: organ compose --propose BASE --on code > recipe.yaml
    """
    with selected_registry() as registry, waiting("search", quiet=as_json or quiet):
        page = registry.leaderboard(base, on=on, limit=limit, after=after)
    print_notes(page.notes)
    if as_json:
        print_json(page)
        return
    if quiet:
        for graft in page:
            click.echo(graft.chimera)
    elif page.items:
        _print_measured(page.items, with_base=base is None)
    else:
        print_hint(_nothing_measured(base, on), "organ validate CHIMERA")
    if page.next is not None:
        options = [*(["--on", on] if on else []), *(["-q"] if quiet else []), "--limit", str(limit)]
        print_more("leaderboard", base or "", options, page.next)


def _nothing_measured(base: str | None, on: str | None) -> str:
    where = ("" if base is None else f" over {plain(base)}") + ("" if on is None else f" on {plain(on)}")
    return f"No validated chimera has a settled gain or loss{where}. Validate a chimera"


def _print_measured(grafts: Sequence[MeasuredGraft], *, with_base: bool) -> None:
    columns = ("gain", "on", "donor", "organs", *(["base"] if with_base else []), "change", "largest loss", "chimera")
    rows = [
        (
            graft.best.amount,
            graft.best.text,
            ", ".join(graft.donors) or "none",
            graft.grafted,
            *([graft.base] if with_base else []),
            weight_change_text(graft.change, graft.likeness),
            "–" if graft.worst is None else str(graft.worst),
            f"{graft.chimera} (a parent is not available)" if graft.unavailable_parents else graft.chimera,
        )
        for graft in grafts
    ]
    optional = ("change", "base", "organs", "largest loss", "donor")
    print_table(columns, rows, ("gain", "change"), leave_out=optional)


_FILE = click.Path(path_type=Path, dir_okay=False)
_QUICK_LOOK = click.option(
    "--quick-look",
    metavar="TIME",
    help="How long to measure the chimera in llama.cpp after it is made, such as 30s or 2m; 0 for not at all. With -q, "
    "it is not measured. [default: 30s, if llama.cpp is installed]",
)


@click.command()
@click.argument("recipe", required=False, metavar="[RECIPE]")
@output_option("OUT", "Also write the GGUF file OUT.")
@click.option(
    "--name", metavar="NAME", help="Register the chimera as NAMESPACE/NAME. [default: the name in the recipe]"
)
@click.option("--accept", multiple=True, metavar="CODE", help="Accept a warning by its code.")
@click.option("-y", "--yes", is_flag=True, help="Accept every warning. The stored recipe lists their codes.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and make nothing.")
@click.option("--lock", type=_FILE, metavar="FILE", help="Write the lock to FILE.")
@click.option(
    "--write-recipe", type=_FILE, metavar="FILE", help="Write the recipe to FILE, with the accepted warnings."
)
@click.option(
    "--from-lock",
    type=_FILE,
    metavar="LOCK",
    help="Write to OUT the GGUF file that LOCK describes. Needs -o; registers nothing.",
)
@click.option(
    "--propose",
    metavar="BASE",
    help="Print the recipe of the graft on BASE with the largest measured gain; makes nothing.",
)
@_ON
@_QUICK_LOOK
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan and the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the chimera's name only.")
def compose(
    recipe: str | None,
    output: Path | None,
    name: str | None,
    accept: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    lock: Path | None,
    write_recipe: Path | None,
    from_lock: Path | None,
    propose: str | None,
    on: str | None,
    quick_look: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make the chimera that RECIPE describes, and register it.

    RECIPE is a file in YAML or JSON, or - for stdin. The command first prints the plan: the refusals, the warnings, the
    changed organs, the size of the file, and what the weights say. A refusal stops the command. A warning stops it too,
    unless you accept its code with --accept or in the recipe.

    Then it takes a quick look: llama.cpp runs the chimera and its base on a few windows of a few texts, and the command
    prints the change of perplexity on each, with its error. `organ validate` measures more.

    With -o, the command also writes the GGUF file. Without -o, `organ assemble` and `organ serve` can write it later.

    --lock writes a lock: the digests of all organs and of the base. With --from-lock, the same lock gives the same file
    in every registry that has these organs and this base.

    --propose prints the recipe of the validated chimera with the largest gain over BASE. With --on, only the gains on
    these kinds of text count. Save the recipe, change it, and compose it.
    """
    if propose is not None:
        if any((recipe, output, name, accept, yes, dry_run, lock, write_recipe, from_lock, force)):
            raise click.UsageError("--propose takes only --on, --json and -q: it prints a recipe and makes nothing")
        _propose(propose, on, as_json=as_json, quiet=quiet)
        return
    if on is not None:
        raise click.UsageError("--on needs --propose BASE")
    if from_lock is not None:
        if recipe is not None or output is None or any((name, accept, yes, lock, write_recipe)):
            raise click.UsageError(
                "--from-lock takes -o OUT, and no RECIPE, name or accepted codes: the lock describes the whole file"
            )
        _from_lock(from_lock, OutputOptions(output, force, dry_run, as_json, quiet))
        return
    if recipe is None:
        raise click.UsageError("give a RECIPE, --from-lock LOCK or --propose BASE")
    seconds = _look_seconds(quick_look, quiet=quiet)
    options = ComposeOptions(output, force, dry_run, as_json, quiet, lock, write_recipe, yes, look_seconds=seconds)
    with selected_registry() as registry:
        result = make_chimera(
            registry, read_composition(registry.compose, recipe, name, accept, as_json=as_json), options
        )
        print_composed(registry, result, options)


def _look_seconds(text: str | None, *, quiet: bool) -> float:
    """Return how long a quick look may take; 0 without one: by option, with -q, and where llama.cpp is missing."""
    from organs.registry.validation.llama import LlamaCpp
    from organs.registry.validation.quick import SECONDS, LookBudget

    if text is None:
        has_runtime = registry_address() is not None or LlamaCpp.is_installed()
        return SECONDS if has_runtime and not quiet else 0.0
    seconds = _seconds(text, "--quick-look")
    return LookBudget(seconds).seconds if seconds else 0.0  # refuses numbers out of range before anything is made


def _gaining(registry: Registry, base: str, on: str | None) -> Iterator[MeasuredGraft]:
    """Yield the grafts on `base` with a measured gain, the largest first."""
    after: str | None = None
    while True:
        page = registry.leaderboard(base, on=on, after=after)
        yield from takewhile(lambda graft: graft.best.percent > 0.0, page)
        after = page.next
        if after is None or page.items[-1].best.percent <= 0.0:
            return


def _propose(base: str, on: str | None, *, as_json: bool, quiet: bool) -> None:
    """Print the recipe of the graft on `base` with the largest gain, of those whose parents are all available."""
    from organs.registry.compose.recipe_io import recipe_of, recipe_yaml

    with selected_registry() as registry:
        best = next((graft for graft in _gaining(registry, base, on) if not graft.unavailable_parents), None)
    if best is None:
        where = f" on {on}" if on else ""
        raise NotFound(
            f"no graft on {base} has a measured gain{where} and parents that are all available; "
            f"see organ leaderboard {base} and organ compat {base}"
        )
    recipe = msgspec.structs.replace(best.recipe, name=None)
    if as_json:
        print_json(recipe)
        return
    if not quiet:
        loss = "" if best.worst is None else f" Largest loss: {best.worst}."
        click.echo(f"# Measured gain of {plain(best.chimera)}: {plain(str(best.best))}.{plain(loss)}")
        click.echo(f"# Grafted: {plain(best.grafted)}. Other measured grafts: organ leaderboard {plain(base)}")
    click.echo(recipe_yaml(recipe_of(recipe)), nl=False)


def _from_lock(path: Path, options: OutputOptions) -> None:
    assert options.output is not None
    lock = _read_lock(path)
    (target,) = gguf_targets(options.output, [f"{lock.id}{SUFFIX}"], force=options.force)
    with selected_registry() as registry:
        files = registry.lock_files(lock)
        check_fits(target, files.work_bytes)
        (written,) = write_files(files, target, options)
    sha256 = None if options.dry_run else written.sha256
    if options.as_json:
        file = WrittenFile(file=str(target), size_bytes=written.size_bytes, sha256=sha256, lock_id=lock.id)
        print_json({"items": [file], "next": None})
    elif options.quiet:
        print_path(target)
    else:
        result = f", sha256:{sha256}" if sha256 else "; nothing was written"
        print_sentence(f"{target}: {size_text(written.size_bytes)}{result}")
        click.echo(f"  lock  sha256:{lock.id}")


def _read_lock(path: Path) -> Lock:
    from organs.registry.compose.lock import LOCK_MAX_BYTES, parse_lock

    with FileSource(path) as file:
        data = file.read_at(0, min(file.size_bytes, LOCK_MAX_BYTES + 1))
    try:
        return parse_lock(data.decode("ascii").removesuffix("\n"))
    except UnicodeDecodeError as error:
        raise BadLock(f"{path}: this is not a lock: it has bytes that are not ASCII") from error
    except BadLock as error:
        raise BadLock(f"{path}: {error}") from error


_METHODS = ("spectral", "fractal")
"""The values of `PurifyMethod`, which loads numpy; a test compares them."""


@click.command(cls=OriginalSpellings, spellings={"--model": "model", "--dir": "model"})
@click.argument("model", metavar="MODEL|FILE|DIR")
@click.option(
    "--method", required=True, type=click.Choice(_METHODS), help="How to purify; docs/recipes.md explains both methods."
)
@click.option(
    "--keep",
    type=float,
    metavar="SHARE",
    help="For spectral: the share of each matrix's energy to keep, from 0 to 1. [default: 0.9]",
)
@click.option(
    "--type", "kinds", multiple=True, type=click.Choice(GRAFTED_TYPES), help="Only organs of this type. Repeatable."
)
@click.option("--blocks", "--layers", "blocks", metavar="BLOCKS", help="Only organs of these blocks, such as 5-20.")
@click.option(
    "--slot",
    "slots",
    multiple=True,
    metavar="SLOT",
    help=f"Only organs in this slot, such as {EXAMPLE_SLOTS[0]}; * stands for any text. Repeatable.",
)
@click.option(
    "--experts",
    multiple=True,
    metavar="EXPERTS",
    help="Only these experts of stacks of experts, such as 5,17 or 0-3. Repeatable.",
)
@click.option("--where", metavar="QUERY", help="Only organs that match QUERY, such as 'theta<38'.")
@click.option("--name", metavar="NAME", help="Register the result as NAMESPACE/NAME; for a registered MODEL only.")
@output_option("OUT", "Also write the result to OUT; needed for FILE and DIR.")
@click.option("--accept", multiple=True, metavar="CODE", help="Accept a warning by its code.")
@click.option("-y", "--yes", is_flag=True, help="Accept every warning.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and make nothing.")
@_QUICK_LOOK
@click.option("--force", is_flag=True, help="Replace an existing file or organ directory.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan and the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the new model's name only.")
def purify(
    model: str,
    method: str,
    keep: float | None,
    kinds: tuple[str, ...],
    blocks: str | None,
    slots: tuple[str, ...],
    experts: tuple[str, ...],
    where: str | None,
    name: str | None,
    output: Path | None,
    accept: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    quick_look: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Purify organs of a model, and print θ of each organ before and after.

    Purifying usually raises the perplexity, which is worse: on a real model, all feed-forward organs at keep 0.97 gave
    +320% on Python. The command first prints the plan. To compute nothing, give --dry-run.

    MODEL is a registered model. The command registers the result as a new model. Without --type, --slot and --where, it
    purifies the feed-forward organs.

    FILE is a GGUF file, and DIR is an organ directory. For these, the command does not use your registry: it writes the
    result to OUT, as a GGUF file if OUT ends in .gguf, otherwise as an organ directory. It needs free space beside OUT
    for a temporary registry.
    """
    seconds = _look_seconds(quick_look, quiet=quiet)
    options = ComposeOptions(output, force, dry_run, as_json, quiet, accept_all=yes, look_seconds=seconds)

    def composition(compose: Callable[[str], Builder], base: str) -> Builder:
        try:
            accepting = compose(base).accept(*accept)
            step = accepting.purify(
                method,
                where=where or "",
                type=kinds or None,
                slot=slots or None,
                blocks=blocks,
                experts=",".join(experts) if experts else None,
                keep=keep,
            )
            return step if name is None else step.named(name)
        except BadRecipe as error:
            refuse_recipe(error, as_json=as_json)

    if not is_file(model):
        with selected_registry() as registry:
            result = make_chimera(registry, composition(registry.compose, model), options)
            print_composed(registry, result, options)
        return
    if output is None or name is not None:
        raise click.UsageError("the result for a FILE or DIR is written and not registered: give -o OUT, and no --name")
    with _temporary_registry(model, output, options) as (registry, base):
        result = _make_from_file(
            registry, composition(registry.compose, base), replace(options, base_label=model), output
        )
        _print_written(registry, result, options, model)


def _make_from_file(
    registry: LocalRegistry, composition: RecipeBuilder, options: ComposeOptions, output: Path
) -> ComposeResult:
    """Make a GGUF or an organ directory from a file; `registry` is a temporary one."""
    from organs.ingest.directory.extract import extract, registered_contents

    if output.suffix == SUFFIX:
        result = make_chimera(registry, composition, options)
    else:
        result = make_chimera(registry, composition, replace(options, output=None, folder=output))
        if result.made is not None:
            contents = registered_contents(registry, parse_model_name(result.made.model or ""))
            with progress_bar("write", result.made.size_bytes, quiet=not options.prints) as advance:
                extract(contents, output, force=options.force, progress=advance)
    if result.made is None:
        return result
    return msgspec.structs.replace(result, made=msgspec.structs.replace(result.made, file=str(output), created=None))


def _print_written(registry: LocalRegistry, result: ComposeResult, options: ComposeOptions, base: str) -> None:
    """Print a new file, measure it in its temporary registry, and print the result without the names there."""
    chimera, look = result.made, None
    if chimera is not None:
        if options.quiet and not options.as_json:
            print_path(chimera.file)
        elif options.prints:
            click.echo()
            print_sentence(f"{chimera.file}: {size_text(chimera.size_bytes)}, sha256:{chimera.sha256}")
            print_thetas(result, options)
        look = take_quick_look(registry, chimera.model, options)
        if look is not None:
            look = msgspec.structs.replace(look, model=chimera.file or "", base=base)
        result = msgspec.structs.replace(result, made=msgspec.structs.replace(chimera, model=None))
    print_measured(result, look, options)


@contextmanager
def _temporary_registry(model: str, output: Path, options: ComposeOptions) -> Iterator[tuple[LocalRegistry, str]]:
    """Open a temporary registry with only the model in the files `model`, and return it with the model's name."""
    from organs.ingest.service import ingest_model
    from organs.ingest.sources import source_size_bytes
    from organs.registry.local import LocalRegistry

    source = one_source(model, "purify")
    size_bytes = source_size_bytes(source)
    if output.suffix == SUFFIX:
        gguf_targets(output, [output.name], force=options.force)
    else:
        check_folder_free(output, force=options.force)
    if not output.absolute().parent.is_dir():
        raise BadSource(f"{output.absolute().parent}: no such folder")
    check_fits(output.absolute(), 2 * size_bytes)
    folder = tempfile.TemporaryDirectory(prefix=".organ-", dir=output.absolute().parent)
    with folder as home, LocalRegistry.open(home) as registry:
        with progress_bar("ingest", size_bytes, quiet=not options.prints) as advance:
            name = ingest_model(registry, source, None, advance).model
        yield registry, name


_BUDGET = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,3})?)(?P<unit>[smh]?)", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@click.command()
@click.argument("chimera", metavar="CHIMERA|FILE.gguf")
@click.option(
    "--base",
    metavar="MODEL|FILE.gguf",
    help="The model that FILE.gguf was made from. Only for a FILE.gguf, which needs it.",
)
@click.option(
    "--donor",
    "donors",
    multiple=True,
    metavar="MODEL|FILE.gguf",
    help="A donor of FILE.gguf, to run beside it. Repeatable.",
)
@click.option(
    "--text",
    "paths",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A file, or a folder of files, with a text to score, instead of the built-in texts. Repeatable.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="TIME|TOKENS",
    help="How long to measure: a time such as 90s, 5m or 2h for all models, or a number such as 20000, the most tokens "
    "of each text. Can be given twice, once for each. [default: 10m]",
)
@click.option(
    "--runtime",
    "template",
    metavar="COMMAND",
    help="Run COMMAND instead of llama.cpp; it contains {model} and {text}, which become the paths of two files.",
)
@click.option(
    "--runtime-read",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Let COMMAND read this file or folder, and run programs in it. Repeatable.",
)
@click.option(
    "--runtime-write",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Let COMMAND read and write this file or folder. Repeatable.",
)
@click.option("--runtime-processes", is_flag=True, help="Let COMMAND start other processes; a shell script needs this.")
@click.option("--quick", is_flag=True, help="Take only a quick look: some seconds, no control, no verdict.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the verdict, which is one word.")
def validate(
    chimera: str,
    base: str | None,
    donors: tuple[str, ...],
    paths: tuple[Path, ...],
    budgets: tuple[str, ...],
    template: str | None,
    runtime_read: tuple[Path, ...],
    runtime_write: tuple[Path, ...],
    runtime_processes: bool,
    quick: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run a chimera, its base, its donors and a control, and print the perplexity of each and a verdict.

    The verdict is one of: gains, coherent, degraded, inert, undecided, broken; for each kind of text and over all; or
    writes, for a runtime that only writes text. For a registered CHIMERA it is stored and shown in the catalog. The
    exit status is 0 for every verdict, and 1 if no verdict was reached.

    All models score the same windows of 256 tokens, spread over each text. The command adds windows until each result
    is certain to 95%, or until the budget is spent.

    The control is a copy of the chimera in which the grafted feed-forward organs are replaced with zeros. If the
    chimera is no better than the control, its grafted organs are useless. In a FILE.gguf, the feed-forward organs that
    differ from the base count as grafted.

    The models run in llama.cpp. To install it, run pip install '.[validate]' in the project's folder. With
    --runtime, COMMAND runs instead, once for each window. Its last line must be a JSON object such as
    {"perplexity": 26.7}. With {prompt} instead of {text}, COMMAND writes a text, and the command checks the text;
    no perplexity is measured. The process is confined. If it crashes, the verdict is `broken`. COMMAND can read the
    model, the text, the files whose paths it contains, and the programs and libraries of the system. It can write
    only to $HOME, which is an empty folder. It has no network. The options --runtime-read, --runtime-write and
    --runtime-processes allow more.
    """
    from organs.registry.sandbox.process import Sandbox
    from organs.registry.validation.runtime import NoVerdict

    texts = [read_text(path) for path in paths] or None
    if quick:
        if template is not None:
            raise click.UsageError("--quick compares token by token, which a COMMAND cannot do: leave out --runtime")
        _look(chimera, base, donors, texts, budgets, as_json=as_json, quiet=quiet)
        return 0
    granted = Sandbox(read=runtime_read, write=runtime_write, processes=runtime_processes)
    runtime = _runtime(template, granted)
    try:
        report = _validated(chimera, base, donors, texts, runtime, _budget(budgets), quiet=quiet or as_json)
    except NoVerdict as error:
        options = [] if runtime is None else runtime.missing_options()
        if not options:
            raise
        print_failure(str(error))
        print_hint("to allow it", again(options))
        return error.exit_code
    _print_verdict(report, as_json=as_json, quiet=quiet)
    return 0


def _validated(
    chimera: str,
    base: str | None,
    donors: Sequence[str],
    texts: Sequence[ScoredText] | None,
    runtime: CommandRuntime | None,
    budget: ValidationBudget | None,
    *,
    quiet: bool,
) -> VerdictReport:
    """Return the verdict on a registered chimera, or on a FILE.gguf beside its base."""
    from organs.ingest.sources import GGUF_SUFFIX

    if chimera.endswith(GGUF_SUFFIX):
        with status_line("validate", quiet=quiet) as progress:
            return _validate_file(Path(chimera), base, donors, texts, runtime, budget, progress)
    if base or donors:
        raise click.UsageError(
            "--base and --donor are for a FILE.gguf; the registry knows the base and the donors of a chimera"
        )
    if registry_address() is not None and (texts is not None or runtime is not None):
        raise click.UsageError("--text and --runtime are for a local registry: a remote registry uses its own")
    with selected_registry() as registry:
        registry.versions(chimera, limit=1)  # a name that does not exist is reported before the runtime is loaded
        with status_line("validate", quiet=quiet) as progress:
            return registry.validate(chimera, budget=budget, texts=texts, runtime=runtime, progress=progress)


def _look(
    chimera: str,
    base: str | None,
    donors: Sequence[str],
    texts: Sequence[ScoredText] | None,
    budgets: Sequence[str],
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Take a quick look at a registered chimera, or at a FILE.gguf beside its base, and print it."""
    from organs.ingest.sources import GGUF_SUFFIX
    from organs.registry.validation.comparison import MemoryCache, file_candidate
    from organs.registry.validation.llama import LlamaCpp
    from organs.registry.validation.quick import KINDS, SECONDS, LookBudget, quick_look

    if len(budgets) > 1 or donors:
        raise click.UsageError("--quick takes one --budget, a time, and no --donor: only the base is run beside it")
    budget = LookBudget(_seconds(budgets[0], "--budget") if budgets else SECONDS)
    with status_line("quick look", quiet=quiet or as_json) as progress:
        if chimera.endswith(GGUF_SUFFIX):
            if base is None:
                raise click.UsageError("give --base: the model that FILE.gguf was made from")
            runtime = LlamaCpp(requires_sandbox=Settings.from_environment(os.environ).requires_sandbox)
            with _candidates([base]) as (other,):
                own, scored = file_candidate(Path(chimera)), texts or built_in_texts(KINDS)
                look = quick_look(
                    own,
                    other,
                    scored,
                    runtime,
                    MemoryCache(),
                    budget,
                    lambda share, step: progress(f"{share:.0%} {step}"),
                )
            look = msgspec.structs.replace(look, model=Path(chimera).name, base=base)
        elif base is not None:
            raise click.UsageError("--base is for a FILE.gguf; the registry knows the base of a chimera")
        else:
            with selected_registry() as registry:
                look = registry.quick_look(chimera, budget=budget, texts=texts, progress=progress)
    if as_json:
        print_json(look)
    elif quiet:
        click.echo(look.word)
    else:
        print_quick_look(look)


def _seconds(text: str, option: str) -> float:
    """Return the seconds of a time such as 90s, 5m or 2h, or of a number of seconds."""
    match = _BUDGET.fullmatch(text)
    if match is None:
        raise click.UsageError(f"{option} {text}: give a time such as 30s or 2m")
    return float(match["number"]) * _SECONDS.get(match["unit"], 1.0)


def _budget(budgets: Sequence[str]) -> ValidationBudget | None:
    """Return the budget of the options; None for the default one. Raises BadInput for numbers out of range."""
    from organs.registry.validation.comparison import ValidationBudget  # loads NumPy, which the help does not need

    values: dict[str, Any] = {}
    for text in budgets:
        match = _BUDGET.fullmatch(text)
        name = "tokens" if match is not None and not match["unit"] else "seconds"
        if match is None or name in values or (name == "tokens" and "." in text):
            raise click.UsageError(
                f"--budget {text}: give a time such as 90s, 5m or 2h, or a number of tokens, or both"
            )
        values[name] = int(text) if name == "tokens" else float(match["number"]) * _SECONDS[match["unit"]]
    return ValidationBudget(**values) if values else None


def _runtime(template: str | None, granted: Sandbox) -> CommandRuntime | None:
    """Return the runtime of the options; None for the default one."""
    from organs.registry.sandbox.process import Limits, Sandbox
    from organs.registry.validation.command import CommandRuntime  # loads HTTP, which composing does not need

    if template is not None:
        required = Settings.from_environment(os.environ).requires_sandbox
        return CommandRuntime(template, Limits(), replace(granted, required=required))
    if granted != Sandbox():
        raise click.UsageError("--runtime-read, --runtime-write and --runtime-processes need --runtime COMMAND")
    return None


def _validate_file(
    path: Path,
    base: str | None,
    donors: Sequence[str],
    texts: Sequence[ScoredText] | None,
    runtime: Runtime | None,
    budget: ValidationBudget | None,
    progress: Callable[[str], None],
) -> VerdictReport:
    from organs.registry.validation.comparison import CHANGED, file_candidate
    from organs.registry.validation.comparison import validate as compare
    from organs.registry.validation.llama import LlamaCpp
    from organs.registry.validation.run import verdict_report
    from organs.registry.validation.weights import grafted_organs

    def report_step(event: ValidationStep) -> None:
        progress(f"{event.share:.0%} {event}")

    if base is None:
        raise click.UsageError("give --base: the model that FILE.gguf was made from")
    if runtime is None:
        runtime = LlamaCpp(requires_sandbox=Settings.from_environment(os.environ).requires_sandbox)
    with _candidates([base, *donors]) as others:
        own = file_candidate(path)
        with others[0].placed() as base_path:
            grafted = grafted_organs(path, base_path)
        scored = texts or list(built_in_texts())
        validation = compare(own, others[0], others[1:], grafted, scored, runtime, budget, report_step, act=CHANGED)
    return verdict_report(validation)


@contextmanager
def _candidates(names: Sequence[str]) -> Iterator[list[RunnableModel]]:
    """Open files and registered models; a registry is opened only if a model is named."""
    from organs.ingest.sources import GGUF_SUFFIX
    from organs.registry.validation.comparison import file_candidate
    from organs.registry.validation.run import registered_candidate

    if all(name.endswith(GGUF_SUFFIX) for name in names):
        yield [file_candidate(Path(name)) for name in names]
        return
    with local_registry() as registry:
        yield [
            file_candidate(Path(name))
            if name.endswith(GGUF_SUFFIX)
            else registered_candidate(registry.catalog, registry.blobs, name)
            for name in names
        ]


def _print_verdict(report: VerdictReport, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(report)
    elif quiet:
        click.echo(report.verdict)
    else:
        click.echo(f"{plain(report.model)}: {report.verdict}\n")
        print_sentence(report.reason)
        click.echo()
        if report.scored_texts:
            _print_scores(report)
        if written := report.chimera.written:
            click.echo("\nA text that the chimera wrote:\n")
            click.echo("\n".join(f"    {plain(line)}" for line in written.splitlines()))


def _print_scores(report: VerdictReport) -> None:
    runs = [("base", report.base), ("chimera", report.chimera)]
    runs += [("control", report.control)] if report.control else []
    runs += [(f"donor {number}" if number > 1 else "donor", run) for number, run in enumerate(report.donors, start=1)]
    columns = ["text", *(role for role, _ in runs), CHANGE, "verdict", "tokens"]
    rows = [
        [
            text.name,
            *(_figure(run, text.name) for _, run in runs),
            _change(text),
            text.verdict if text.counts else f"{text.verdict}, does not count",
            f"{text.tokens or 0:,}",
        ]
        for text in report.texts
    ]
    roles = [role for role, _ in runs if role.startswith("donor")]
    print_table(columns, rows, [*columns[1:-2], "tokens"], leave_out=("tokens", *reversed(roles), "control"))
    click.echo()
    for role, run in runs:
        if run.failure is not None:
            print_sentence(f"{role}: {run.failure.reason}.")
    print_sentence(
        f"All numbers are perplexities: lower is better. The change is that of the chimera against its base, with its "
        f"interval of 95%: −5% means a gain of 5%. Base: "
        f"{report.base.name}."
        + "".join(f" {role.capitalize()}: {run.name}." for role, run in runs if role.startswith("donor"))
        + (f" Control: {len(report.zeroed)} {report.zeroed_because} organs zeroed." if report.control else "")
        + (f" {report.seconds:.0f} s in" if report.seconds is not None else " Run in")
        + f" {report.runtime}"
        + (f", {report.tokens_per_second:,.0f} tokens a second." if report.tokens_per_second else ".")
    )


def _figure(run: RunReport, text: str) -> str:
    score = next((score for score in run.scores if score.text == text), None)
    if score is None or not score.tokens:
        return "–"
    return "none" if score.perplexity is None else perplexity_text(score.perplexity)


def _change(text: TextVerdict) -> str:
    """Return the change of the chimera against its base, with the margin of 95%."""
    return "–" if text.ratio is None or text.ratio_margin is None else change_text(text.ratio, text.ratio_margin)


CHANGE = "change of perplexity"
"""The heading of the measured changes."""
TYPE_DEFAULT = "organ"

Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class _TransplantOptions:
    """The parameters of `transplant` and `graft`."""

    models: tuple[str, ...]
    """The base, followed by the donors."""
    output: Path
    layers: tuple[str, ...]
    kinds: tuple[str, ...]
    slots: tuple[str, ...]
    experts: tuple[str, ...]
    accept: tuple[str, ...]
    yes: bool
    lock: Path | None
    dry_run: bool
    force: bool
    as_json: bool
    quiet: bool


_DONOR_AND_BASE = {"--source": "donors", "--target": "base"}
"""The source is where organs come from; the target receives them, and stays as it is."""


def _transplant_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments and options of both commands."""

    decorators = [
        click.argument("base", metavar="BASE"),
        click.argument("donors", nargs=-1, required=True, metavar="DONOR..."),
        click.option(
            "--layers", "--blocks", "layers", multiple=True, metavar="BLOCKS",
            help="Copy only organs of these blocks (layers), such as 5-20 or 0,4-7. Give it once, or once "
            "for each donor in order. [default: all]",
        ),
        click.option(
            "--type", "kinds", multiple=True, type=click.Choice(GRAFTED_TYPES),
            help="Copy only organs of this type. Repeatable. [default: organ (feed-forward), unless --slot is given]",
        ),
        click.option(
            "--slot", "slots", multiple=True, metavar="SLOT",
            help=f"Copy only organs in this slot, such as {EXAMPLE_SLOTS[0]}; * stands for any text. Repeatable.",
        ),
        click.option(
            "--experts", multiple=True, metavar="EXPERTS",
            help="Copy only these experts of stacks of experts, such as 5,17 or 0-3. Repeatable. "
            "[default: whole stacks]",
        ),
        click.option("--accept", multiple=True, metavar="CODE", help="Accept a warning by its code."),
        click.option("-y", "--yes", is_flag=True, help="Accept every warning."),
        click.option("--lock", type=_FILE, metavar="FILE", help="Write the lock to FILE."),
        click.option("--dry-run", is_flag=True, help="Print the plan; write nothing."),
        click.option("--force", is_flag=True, help="Replace an existing file or organ directory."),
        click.option("--json", "as_json", is_flag=True, help="Print the plan and the result as JSON."),
        click.option("-q", "--quiet", is_flag=True, help="Print the path only."),
    ]  # fmt: skip
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


@click.command(cls=OriginalSpellings, spellings=_DONOR_AND_BASE)
@output_option("OUT", "The GGUF file to write.", required=True)
@_transplant_options
def transplant(base: str, donors: tuple[str, ...], output: Path, **params: Any) -> None:
    """Write a GGUF file: BASE with organs of each DONOR.

    BASE and DONOR are GGUF files, any shard of a split model, or organ directories. The command opens no registry. It
    prints the same findings as `organ compose`, and writes the same lock and the same bytes.
    """
    from organs.ingest.transplant import place_virtual

    _check_blocks(params["layers"], donors)
    options = _TransplantOptions(models=(base, *donors), output=output, **params)

    def write(done: Transplant, advance: Callable[[int], None]) -> Digest:
        return place_virtual(done.file, done.file.path, advance)

    _transplant(options, lambda name: gguf_targets(output, [name], force=options.force)[0], write)


@click.command(cls=OriginalSpellings, spellings=_DONOR_AND_BASE)
@output_option("DIR", "The folder to create.", required=True)
@_transplant_options
def graft(base: str, donors: tuple[str, ...], output: Path, **params: Any) -> None:
    """Write an organ directory: BASE with organs of each DONOR.

    BASE and DONOR are organ directories from `organ extract`, or GGUF files. The command opens no registry. If it
    fails, it leaves no incomplete DIR. `organ assemble DIR` writes the same GGUF file as `organ transplant`.
    """
    from organs.ingest.directory.extract import extract, file_contents
    from organs.ingest.dissect import dissect

    _check_blocks(params["layers"], donors)
    options = _TransplantOptions(models=(base, *donors), output=output, **params)

    def target(_name: str) -> Path:
        check_folder_free(output, force=options.force)
        return output

    def write(done: Transplant, advance: Callable[[int], None]) -> Digest:
        named = done.file.placed_at(output / done.plan.file_name)
        contents = file_contents([dissect(named)])
        return extract(contents, output, force=options.force, progress=advance).files[0][2]

    _transplant(options, target, write)


def _check_blocks(layers: Sequence[str], donors: Sequence[str]) -> None:
    if len(layers) not in (0, 1, len(donors)):
        raise click.UsageError(f"give --layers once, or once for each of the {len(donors)} donors")


def _transplant(
    options: _TransplantOptions,
    target_of: Callable[[str], Path],
    write: Callable[[Transplant, Callable[[int], None]], Digest],
) -> None:
    from organs.ingest.transplant import FileLibrary
    from organs.ingest.transplant import transplant as composed_of_files
    from organs.registry.compose.plan import planned_recipe

    prints = not (options.as_json or options.quiet)
    with ExitStack() as opened:
        library = FileLibrary(opened, {text: one_source(_check_is_file(text), "transplant") for text in options.models})
        plan = _plan_transplant(options, library, quiet=not prints)
        target = target_of(plan.file_name)
        if options.lock is not None:
            check_free(options.lock, force=options.force)
        result = result_of(planned_recipe(plan), target)
        if prints:
            print_plan(result, target)
        if not plan.refusals:
            check_fits(target, plan.size_bytes)
        if plan.can_be_made and not options.dry_run:
            done = composed_of_files(plan.recipe, library, target)
            with progress_bar("write", done.file.size_bytes, quiet=not prints) as advance:
                digest = write(done, advance)
            if options.lock is not None:
                write_text(options.lock, done.lock.canonical())
            file = WrittenFile(file=str(target), size_bytes=done.file.size_bytes, sha256=digest, lock_id=done.lock.id)
            result = msgspec.structs.replace(result, made=file)
    _print_transplanted(result, options)
    if not plan.can_be_made:
        refuse(result, shown=prints)


def _check_is_file(text: str) -> str:
    if not is_file(text):
        raise BadSource(f"{text}: not a GGUF file or an organ directory; for registered models use organ compose")
    return text


def _plan_transplant(options: _TransplantOptions, library: FileLibrary, *, quiet: bool) -> Plan:
    from organs.ingest.sources import source_size_bytes
    from organs.registry.compose.planner import plan_recipe

    try:
        recipe = _transplant_recipe(options)
    except BadRecipe as error:
        refuse_recipe(error, as_json=options.as_json)
    sizes = {text: source_size_bytes(source) for text, source in library.sources.items()}
    with progress_bar("measure", sum(sizes.values()), quiet=quiet) as advance:
        for text, size_bytes in sizes.items():
            library.parent(text)
            advance(size_bytes)
    with waiting("plan", quiet=quiet):
        plan = plan_recipe(recipe, library)
    if options.yes and plan.unaccepted:
        codes = dict.fromkeys((*recipe.accept, *(finding.code for finding in plan.unaccepted)))
        plan = replace(plan, recipe=structs.replace(recipe, accept=tuple(codes)))
    return plan


def _transplant_recipe(options: _TransplantOptions) -> Recipe:
    """Return the recipe of the options. It is read with short names, then gets the paths, which may be any text."""
    from organs.registry.compose.recipe_io import parse_blocks, read_recipe

    base, *donors = options.models
    experts = [word.strip() for text in options.experts for word in text.split(",")]
    kinds = options.kinds or (() if options.slots else (TYPE_DEFAULT,))
    layers = options.layers * len(donors) if len(options.layers) == 1 else options.layers or ("",) * len(donors)
    grafts = [
        {
            "from": "donor",
            **({"type": [*kinds]} if kinds else {}),
            **({"slot": [*options.slots]} if options.slots else {}),
            **({"experts": [*experts]} if experts else {}),
        }
        for _ in donors
    ]
    text = json.dumps({"base": "base", "grafts": grafts, "accept": list(dict.fromkeys(options.accept))})
    recipe = read_recipe(text, "options")
    named = [
        structs.replace(graft, donor=donor, blocks=parse_blocks(blocks) if blocks else ())
        for graft, donor, blocks in zip(recipe.grafts, donors, layers, strict=True)
    ]
    return structs.replace(recipe, base=base, grafts=tuple(named))


def _print_transplanted(result: ComposeResult, options: _TransplantOptions) -> None:
    chimera = result.made
    if options.as_json:
        print_json(result)
    elif chimera is not None and options.quiet:
        print_path(chimera.file)
    elif chimera is not None:
        click.echo()
        print_sentence(f"{chimera.file}: {size_text(chimera.size_bytes)}, sha256:{chimera.sha256}")
        click.echo(f"  lock  sha256:{chimera.lock_id}")
