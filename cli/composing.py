"""What `compose`, `purify` and `assemble` have in common: a recipe planned, shown, refused or made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from organs.cli.console import plain, print_json, progress_bar
from organs.cli.findings import print_refusal
from organs.cli.place import address
from organs.cli.planned import print_plan
from organs.cli.targets import check_fits, check_free, free_bytes, gguf_targets, write_text
from organs.ingest.files import FileSource
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.compose.builder import Composition
from organs.registry.compose.building import RecipeBuilder
from organs.registry.compose.document import TEXT_MAX_BYTES
from organs.registry.compose.making import Made, make
from organs.registry.compose.plan import Plan
from organs.registry.compose.reading import read_recipe, recipe_findings
from organs.registry.compose.recipe import Recipe
from organs.registry.compose.relock import lock_of_model
from organs.registry.compose.writing import recipe_yaml
from organs.registry.errors import BadRecipe
from organs.registry.names import parse_model_name
from organs.registry.present.changes import findings_values
from organs.registry.present.plan import plan_values
from organs.registry.present.text import size_text
from organs.registry.present.values import Values
from organs.registry.registry import Registry

Begun = TypeVar("Begun", bound=RecipeBuilder)
STDIN = "-"
EXIT_FAILED = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be done with a recipe, beside making it."""

    output: Path | None = None
    lock: Path | None = None
    write_recipe: Path | None = None
    accept_all: bool = False
    dry_run: bool = False
    force: bool = False
    as_json: bool = False
    quiet: bool = False
    shows_plan: bool = True
    called: str = ""
    """What people call the base, where its registry is a temporary one."""
    folder: Path | None = None
    """Where the caller writes an organ directory of it, instead of a GGUF at `output`."""

    @property
    def prints(self) -> bool:
        """Whether a person reads what is said."""
        return not (self.as_json or self.quiet)


@dataclass(frozen=True, slots=True)
class Composed:
    """What came of a recipe. `made` is None where it was only to be shown."""

    values: Values
    made: Made | None
    computed: Sequence[Values] = ()
    """The computed organs in runs of blocks; for people, so not among the values."""


def recipe_bytes(path: str) -> bytes:
    """The text of a recipe in a file, or on stdin where `path` is `-`; no more of it than shows that it is too long."""
    if path == STDIN:
        return sys.stdin.buffer.read(TEXT_MAX_BYTES + 1)
    with FileSource(Path(path)) as file:
        return file.read_at(0, min(file.size_bytes, TEXT_MAX_BYTES + 1))


def begun(
    compose: Callable[[Recipe], Begun], path: str, name: str | None, accept: Sequence[str], *, as_json: bool
) -> Begun:
    """The recipe at `path`, begun by `compose` of a registry, with what was said beside it.

    Ends with a status of 1 for one that means nothing.
    """
    try:
        composition = compose(read_recipe(recipe_bytes(path), path)).accept(*accept)
        return composition if name is None else composition.named(name)
    except BadRecipe as error:
        refuse_recipe(error, as_json=as_json)


def composed(registry: Registry, composition: Composition, asked: Asked) -> Composed:
    """Plan, show and make what `composition` describes; what was made is for the caller to print.

    Ends with a status of 1 where it is refused.
    """
    plan = composition.plan().plan
    if asked.accept_all and plan.unaccepted:
        codes = dict.fromkeys((*plan.recipe.accept, *(finding.code for finding in plan.unaccepted)))
        plan = replace(plan, recipe=replace(plan.recipe, accept=tuple(codes)))
    target = None if asked.output is None else gguf_targets(asked.output, [plan.file_name], force=asked.force)[0]
    for path in (asked.lock, asked.write_recipe):
        if path is not None:
            check_free(path, force=asked.force)
    values = plan_values(plan) | {"out": out_values(target or asked.folder), "made": None}
    if asked.called:
        values = _called(values | {"name": None}, plan.base.label, asked.called)
    if asked.prints and asked.shows_plan:
        print_plan(values, target or asked.folder)
    if target is not None and not plan.refusals:
        check_fits(target, plan.size_bytes)
    if not plan.can_be_made:
        if asked.as_json:
            print_json(values)
        refuse(values, told=asked.prints and asked.shows_plan)
    if asked.dry_run:
        return Composed(values, None)
    made = _made(registry, plan, target, asked)
    values["made"] = made_values(made, target)
    return Composed(values, made)


def print_composed(done: Composed, asked: Asked) -> None:
    """What came of it, as it was asked for."""
    if asked.as_json:
        print_json(done.values)
    elif done.made is not None and asked.quiet:
        click.echo(done.made.model)
    elif done.made is not None:
        _print_made(done.made, done.values["made"]["file"])


def refuse_recipe(error: BadRecipe, *, as_json: bool) -> NoReturn:
    """End with all that is wrong with the text of a recipe."""
    findings = findings_values(recipe_findings(error), ())
    values = {"can_be_made": False, "findings": findings, "unaccepted": [], "out": None, "made": None}
    if as_json:
        print_json(values)
    refuse(values, told=False)


def refuse(values: Values, *, told: bool) -> NoReturn:
    """End with what `print_refusal` says; `told` where the findings stand on the screen already."""
    print_refusal(values, told=told)
    raise click.exceptions.Exit(EXIT_FAILED)


def _called(value: Any, label: str, name: str) -> Any:
    """`value` with `name` where a text in it holds `label`, which means nothing outside a temporary registry."""
    if isinstance(value, dict):
        return {key: _called(one, label, name) for key, one in value.items()}
    if isinstance(value, list):
        return [_called(one, label, name) for one in value]
    return value.replace(label, name) if isinstance(value, str) else value


def out_values(target: Path | None) -> Values:
    """Where a file would be written, and how much room is left there."""
    if target is None:
        return {"file": None, "free_bytes": None}
    return {"file": str(target), "free_bytes": free_bytes(target.parent)}


def _made(registry: Registry, plan: Plan, target: Path | None, asked: Asked) -> Made:
    computed = sum(part.spec.size_bytes for part in plan.parts if part.computation is not None)
    with progress_bar("compose", plan.size_bytes + computed, quiet=not asked.prints) as advance:
        made = make(registry.catalog, registry.blobs, plan, path=target, progress=lambda _what, size: advance(size))
    if asked.lock is not None:
        with registry.catalog.reading() as session:
            model = model_by_name(session, parse_model_name(made.model))
            lock = lock_of_model(session, registry.blobs, model)
        assert lock is not None, "every chimera carries its lock"
        write_text(asked.lock, lock.canonical())
    if asked.write_recipe is not None:
        write_text(asked.write_recipe, recipe_yaml(plan.recipe))
    return made


def made_values(made: Made, target: Path | None) -> Values:
    """What came of it."""
    values = {key: value for key, value in asdict(made).items() if key != "computed"}
    return values | {"file": None if target is None else str(target)}


def _print_made(made: Made, file: str | None) -> None:
    """Its name, its lock, its digest and its file; where to look at it on stderr."""
    click.echo(f"\n{made.model}: {'registered' if made.created else 'registered already, the same bytes'}")
    click.echo(f"  lock  sha256:{made.lock_id}")
    where = f"{plain(file)}, " if file is not None else ""
    click.echo(f"  file  {where}{size_text(made.size_bytes)}, sha256:{made.sha256}")
    page = f"/models/{made.model.partition('@')[0]}"
    where = f"{page} in organ serve" if address() is None else f"{address()}{page}"
    click.echo(f"look at it: organ show {made.model}, or {plain(where)}", err=True)
