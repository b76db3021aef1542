"""Computed organs of what was just made: θ before and after, a line each, or folded to runs of blocks."""

from __future__ import annotations

from dataclasses import replace

import click

from organs.cli.composing import Asked, Composed
from organs.cli.console import print_table
from organs.cli.planned import ROWS_MAX, blocks_text
from organs.registry.catalog.queries.composing import model_by_text
from organs.registry.present.changes import changes_values
from organs.registry.present.chimera import chimera_values
from organs.registry.present.text import theta_text
from organs.registry.present.values import Values
from organs.registry.registry import Registry

_NUMBERS = ("block", "blocks", "organs", "θ before", "θ")


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
        print_table(("blocks", "type", "organs", "θ before", "θ"), rows, _NUMBERS)
    else:
        rows = [
            ("–" if one["block"] is None else one["block"], one["slot"], one["dtype"], *_thetas(one)) for one in organs
        ]
        print_table(("block", "slot", "dtype", "θ before", "θ"), rows, _NUMBERS)


def _before(computed: dict[str, Values], part: Values) -> float | None:
    """Of what it was computed from, which need not be the base's."""
    theta: float | None = computed[part["name"]]["theta_before"]
    return theta


def _thetas(row: Values) -> tuple[str, str]:
    return theta_text(row["theta_before"]), theta_text(row["theta"])
