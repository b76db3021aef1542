"""`organ leaderboard`: chimeras by their measured gain."""

from __future__ import annotations

from collections.abc import Sequence

import click

from organs.cli.console import output_options, print_page, status_line
from organs.cli.options import after_option, limit_option, on_option
from organs.cli.registries import selected_registry
from organs.cli.tables import print_table
from organs.registry.amounts import weight_change_text
from organs.registry.entities.gain import MeasuredGraft


@click.command()
@click.argument("base", required=False, metavar="[BASE]")
@on_option
@limit_option("Chimeras on a page.", 20)
@after_option
@output_options(
    json="Print the page as JSON, with the gains on all texts.", quiet="Print the names of the chimeras only."
)
def leaderboard(base: str | None, on: str | None, limit: int, after: str | None) -> None:
    """Rank validated chimeras by their gain over their bases, the largest gain first.

    With BASE, list the grafts on this model. The gain +5.7% means that `organ validate` measured a perplexity 5.7%
    lower than that of the base. A loss is a gain below 0. Only results whose interval of 95% excludes 0 are listed. The
    column `largest loss` has the lowest gain on any text.

    Repeat the best graft: organ compose --propose BASE --on code > recipe.yaml
    """

    def print_grafts(grafts: Sequence[MeasuredGraft]) -> None:
        bases = ["base"] if base is None else []
        columns = ("gain", "on", "donor", "organs", *bases, "change", "largest loss", "chimera")
        rows = [
            (
                graft.best.amount,
                graft.best.text,
                ", ".join(graft.donors) or "none",
                graft.grafted,
                *([graft.base] if bases else []),
                weight_change_text(graft.change, graft.likeness),
                "–" if graft.worst is None else str(graft.worst),
                f"{graft.chimera} (a parent is not available)" if graft.unavailable_parents else graft.chimera,
            )
            for graft in grafts
        ]
        optional = ("change", "base", "organs", "largest loss", "donor")
        print_table(columns, rows, ("gain", "change"), leave_out=optional)

    with selected_registry() as registry, status_line("search"):
        page = registry.leaderboard(base, on=on, limit=limit, after=after)
    where = ("" if base is None else f" over {base}") + ("" if on is None else f" on {on}")
    empty = f"No validated chimera has a settled gain or loss{where}. Validate a chimera: organ validate CHIMERA"
    print_page(page, lambda graft: graft.chimera, print_grafts, empty=empty)
