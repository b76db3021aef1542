"""`organ leaderboard`: chimeras by their measured gain."""

from __future__ import annotations

import click

from organs.cli.console import output_options, status_line
from organs.cli.options import after_option, limit_option, on_option
from organs.cli.registries import selected_registry
from organs.cli.tables import print_page
from organs.registry.columns import for_people
from organs.registry.entities.gain import COLUMNS


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

    with selected_registry() as registry, status_line("search"):
        page = registry.leaderboard(base, on=on, limit=limit, after=after)
    where = ("" if base is None else f" over {base}") + ("" if on is None else f" on {on}")
    empty = f"No validated chimera has a settled gain or loss{where}. Validate a chimera: organ validate CHIMERA"
    columns = [column for column in for_people(COLUMNS, page.items) if base is None or column.name != "base"]
    print_page(page, lambda graft: graft.chimera, columns, empty=empty)
