"""A recipe planned and made in a registry elsewhere; its file, lock and text are fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from organs.cli.composing import Asked, Composed, made_values, out_values, refuse
from organs.cli.computed import with_thetas_of
from organs.cli.console import print_json, progress_bar
from organs.cli.planned import print_plan
from organs.cli.targets import check_fits, check_free, gguf_targets, write_text
from organs.registry.compose.writing import recipe_yaml
from organs.registry.present.values import Values

if TYPE_CHECKING:
    from pathlib import Path

    from organs.registry.client.composing import RemoteComposition, RemotePlan
    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.compose.making import Made


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
    made = _made(plan, target, asked)
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


def _made(plan: RemotePlan, target: Path | None, asked: Asked) -> Made:
    """It is made there, then fetched where a file is wanted: each is as long as the file."""
    total = plan.size_bytes * (1 if target is None else 2)
    with progress_bar("compose", total, quiet=not asked.prints) as advance:
        if target is None:
            return plan.register(lambda _what, size: advance(size))
        return plan.assemble(target, lambda _what, size: advance(size))
