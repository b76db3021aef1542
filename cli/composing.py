"""Planning and making a recipe for `compose`, `purify` and `assemble`: plans, findings and results are printed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from rich.console import Console
from rich.text import Text

from organs.cli.arguments import address
from organs.cli.console import in_lines, plain, print_json, print_sentence, print_table, progress_bar
from organs.cli.files import check_fits, check_free, free_bytes, gguf_targets, write_text
from organs.ingest.files import FileSource
from organs.registry.catalog.queries.composing import model_by_text
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.compose.api import Composition, RecipeBuilder
from organs.registry.compose.build import (
    Made,
    lock_of_model,
    make,
)
from organs.registry.compose.document import TEXT_MAX_BYTES
from organs.registry.compose.plan import Plan
from organs.registry.compose.recipe import Recipe
from organs.registry.compose.recipe_io import read_recipe, recipe_findings, recipe_yaml
from organs.registry.errors import BadRecipe, NotComposable
from organs.registry.names import parse_model_name
from organs.registry.present.changes import changes_values, findings_values
from organs.registry.present.chimera import chimera_values
from organs.registry.present.plan import plan_values
from organs.registry.present.text import share_text, size_text, theta_text
from organs.registry.present.values import Values
from organs.registry.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from organs.registry.client.composing import RemoteComposition, RemotePlan
    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.compose.build import Made


_STYLES = {"refuse": "bold red", "warn": "yellow", "info": "dim"}


def print_findings(findings: Iterable[Values], *, err: bool = False) -> None:
    """`findings` on stdout, or with `err` on stderr: severity, code, the field where there is one, the sentence."""
    console = Console(stderr=err, highlight=False)
    for finding in findings:
        severity = finding["severity"]
        code = f"{finding['code']} (accepted)" if finding["accepted"] else finding["code"]
        field = f" {finding['field']}:" if finding["field"] else ""
        line = plain(f"{severity} {code}:{field} {finding['sentence']}")
        text = Text(in_lines(line) if console.is_terminal else line)
        text.stylize(_STYLES[severity], 0, len(severity))
        console.print(text, soft_wrap=True)


def print_refusal(values: Values, *, told: bool) -> None:
    """On stderr why it is not made, and the command that makes it all the same; all findings too, unless `told`."""
    if not told:
        print_findings([one for one in values["findings"] if one["severity"] != "info"], err=True)
    refusals = sum(one["severity"] == "refuse" for one in values["findings"])
    if refusals:
        click.echo(f"organ: refused, for {refusals} reason{'s' if refusals > 1 else ''}; nothing was made", err=True)
        return
    codes: Sequence[str] = values["unaccepted"]
    click.echo(f"organ: not made: {', '.join(codes)} would have to be accepted", err=True)
    click.echo(f"       try: {plain(_accepting(codes))}", err=True)


def _accepting(codes: Sequence[str]) -> str:
    """The command that was given, with `codes` accepted."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    options = [word for code in codes for word in ("--accept", code)]
    return shlex.join(["organ", *words[:end], *options, *words[end:]])


ROWS_MAX = 12
"""Changed or computed organs that are listed one by one; more are folded to a line for each run of blocks."""
_NUMBERS = ("block", "blocks", "organs", "θ before", "θ", "spectral", "size")


def print_plan(values: Values, output: Path | None) -> None:
    """All of a plan's `values`; `output` is where its file would be written. Of what is refused, why, and no more."""
    parents = ", ".join(one["model"] for one in values["parents"][1:])
    if any(one["severity"] == "refuse" for one in values["findings"]):
        print_findings(one for one in values["findings"] if one["severity"] != "info")
        return
    print_sentence(f"{values['base']}{f' with {parents}' if parents else ''}; licences: {values['license']}")
    if values["findings"]:
        click.echo()
        print_findings(values["findings"])
    if values["parts"]:
        click.echo()
        _print_changes(values)
    click.echo()
    _print_sizes(values, output)
    print_sentence(values["prediction"]["sentence"])


def blocks_text(change: Values) -> str:
    """The blocks of a change: `3`, `5-20`, or a dash outside the blocks."""
    first, last = change["first_block"], change["last_block"]
    if first is None:
        return "–"
    return str(first) if first == last else f"{first}-{last}"


def print_changes(changes: list[Values]) -> None:
    """A table with a line for each run of blocks in which the same is done."""
    rows = [
        (
            blocks_text(one),
            one["type"],
            one["organs"],
            one["from"],
            _done(one),
            theta_text(one["theta_before"]),
            theta_text(one["theta"]),
            size_text(one["size_bytes"]),
        )
        for one in changes
    ]
    print_table(("blocks", "type", "organs", "from", "done", "θ before", "θ", "size"), rows, _NUMBERS)


def _print_changes(values: Values) -> None:
    parts = [part for part in values["parts"] if part["acts"]]
    if len(parts) > ROWS_MAX:
        print_changes(values["changes"])
        return
    rows = [
        (
            "–" if part["block"] is None else part["block"],
            part["slot"],
            part["from"],
            _done(part),
            _dtype(part),
            theta_text(part["theta_before"]),
            theta_text(part["theta"]),
            share_text(part["spectral_signal"]),
            size_text(part["size_bytes"]),
        )
        for part in parts
    ]
    headings = ("block", "slot", "from", "done", "dtype", "θ before", "θ", "spectral", "size")
    print_table(headings, rows, _NUMBERS)


def _print_sizes(values: Values, output: Path | None) -> None:
    changed = f"{values['changed']} of {values['organs']} organs change"
    made = f", {values['to_compute']} of them computed" if values["to_compute"] else ""
    size = f"{size_text(values['size_bytes'])} ({values['size_bytes']:,} bytes), the base {_base_size(values)}"
    name = values["file"] if output is None else str(output)
    free = values["out"]["free_bytes"]
    room = f"; {size_text(free)} free there" if free is not None else ""
    click.echo(f"{plain(name)}: {size}{room}; {changed}{made}")


def _base_size(values: Values) -> str:
    return size_text(values["base_size_bytes"])


def _done(row: Values) -> str:
    return ", ".join(row["acts"])


def _dtype(part: Values) -> str:
    before, after = part["dtype_before"], part["dtype"]
    return str(after) if before == after else f"{before} → {after}"


_COMPUTED_NUMBERS = ("block", "blocks", "organs", "θ before", "θ")


def with_thetas(registry: Registry, done: Composed) -> Composed:
    """`done` with `computed`, the organs that were computed with θ before and after; as it is if nothing was made."""
    if done.made is None:
        return done
    with registry.catalog.reading() as session:
        values = chimera_values(session, model_by_text(session, done.made.model))
    assert values is not None
    return with_thetas_of(values, done)


def with_thetas_of(values: Values, done: Composed) -> Composed:
    """The same by the chimera's own `values`."""
    computed = {one["name"]: one for one in values["computed"]}
    rows = [part | {"theta_before": _before(computed, part)} for part in values["parts"] if part["name"] in computed]
    return replace(done, values={**done.values, "computed": values["computed"]}, computed=changes_values(rows))


def print_thetas(done: Composed, asked: Asked) -> None:
    """What `with_thetas` found, for people; nothing where nothing was computed."""
    if done.made is None or not asked.prints or not done.values["computed"]:
        return
    click.echo()
    organs = done.values["computed"]
    if len(organs) > ROWS_MAX:
        rows = [(blocks_text(run), run["type"], run["organs"], *_thetas(run)) for run in done.computed]
        print_table(("blocks", "type", "organs", "θ before", "θ"), rows, _COMPUTED_NUMBERS)
    else:
        rows = [
            ("–" if one["block"] is None else one["block"], one["slot"], one["dtype"], *_thetas(one)) for one in organs
        ]
        print_table(("block", "slot", "dtype", "θ before", "θ"), rows, _COMPUTED_NUMBERS)


def _before(computed: dict[str, Values], part: Values) -> float | None:
    """Of what it was computed from, which need not be the base's."""
    theta: float | None = computed[part["name"]]["theta_before"]
    return theta


def _thetas(row: Values) -> tuple[str, str]:
    return theta_text(row["theta_before"]), theta_text(row["theta"])


Begun = TypeVar("Begun", bound=RecipeBuilder)
STDIN = "-"


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

    Ends with the exit status of NotComposable where it is refused.
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
    refuse(values, told=False, exit_code=BadRecipe.exit_code)


def refuse(values: Values, *, told: bool, exit_code: int = NotComposable.exit_code) -> NoReturn:
    """End with what `print_refusal` says; `told` where the findings stand on the screen already."""
    print_refusal(values, told=told)
    raise click.exceptions.Exit(exit_code)


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


def composed_there(remote: RemoteRegistry, composition: RemoteComposition, asked: Asked) -> Composed:
    """Plan, show and make what `composition` describes; what was made is for the caller to print.

    Ends with a status of 1 where it is refused, as `cli.composing.composed` does.
    """
    from organs.registry.client.names import told_file
    from organs.registry.client.shown import lock_text, shown_chimera

    plan = composition.plan()
    if asked.accept_all and plan.values["unaccepted"]:
        plan = composition.accept(*plan.values["unaccepted"]).plan()
    names = [told_file(plan.file_name)]
    target = None if asked.output is None else gguf_targets(asked.output, names, force=asked.force)[0]
    for path in (asked.lock, asked.write_recipe):
        if path is not None:
            check_free(path, force=asked.force)
    values = shown_there(plan, target, asked)
    if target is not None:
        check_fits(target, plan.size_bytes)
    if asked.dry_run:
        return Composed(values, None)
    made = _made_remotely(plan, target, asked)
    values["made"] = made_values(made, target)
    if asked.lock is not None:
        write_text(asked.lock, lock_text(remote.connection, made.lock_id))
    if asked.write_recipe is not None:
        write_text(asked.write_recipe, recipe_yaml(plan.recipe))
    return with_thetas_of(shown_chimera(remote.connection, made.lock_id), Composed(values, made))


def shown_there(plan: RemotePlan, target: Path | None, asked: Asked) -> Values:
    """The plan's values, shown to whoever reads; ends here where it cannot be made."""
    parts = [part for part in plan.values["parts"] if part["acts"]]
    values = {**plan.values, "parts": parts, "out": out_values(target), "made": None}
    told = asked.prints and asked.shows_plan
    if told:
        print_plan(values, target)
    if not plan.can_be_made:
        if asked.as_json:
            print_json(values)
        refuse(values, told=told)
    return values


def _made_remotely(plan: RemotePlan, target: Path | None, asked: Asked) -> Made:
    """It is made there, then fetched where a file is wanted: each is as long as the file."""
    total = plan.size_bytes * (1 if target is None else 2)
    with progress_bar("compose", total, quiet=not asked.prints) as advance:
        if target is None:
            return plan.register(lambda _what, size: advance(size))
        return plan.assemble(target, lambda _what, size: advance(size))
