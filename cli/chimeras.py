"""How `organ show` prints a chimera, and how a computed organ was made."""

from __future__ import annotations

from collections.abc import Sequence

import click

from organs.cli.console import plain
from organs.cli.findings import print_findings
from organs.cli.planned import print_changes
from organs.cli.prose import print_sentence
from organs.registry.present.text import theta_text
from organs.registry.present.values import Values

VERDICTS_SHOWN = 3
COMPUTED_SHOWN = 12


def print_chimera(values: Values) -> None:
    """What is known of a model because it was composed here."""
    click.echo(f"\nA chimera, lock sha256:{values['lock_id']}")
    for parent in values["parents"]:
        given = ", ".join(parent["acts"]) or "its own organs"
        print_sentence(f"from {parent['model']}, {parent['license'] or 'licence not said'}: {given}")
    click.echo()
    print_changes(values["changes"])
    computed = values["computed"]
    if computed:
        click.echo()
        print_made(computed[:COMPUTED_SHOWN])
        if len(computed) > COMPUTED_SHOWN:
            click.echo(f"… and {len(computed) - COMPUTED_SHOWN} more, with --json")
    click.echo("\nRecipe\n")
    for line in values["recipe_yaml"].splitlines():
        click.echo(f"  {plain(line)}")
    click.echo()
    print_findings(values["findings"])
    print_sentence(f"predicted: {values['prediction']['sentence']}")
    for verdict in values["verdicts"][:VERDICTS_SHOWN]:
        when = verdict["created_at"][:16].replace("T", " ")
        print_sentence(f"{verdict['verdict']} in {verdict['runtime']} on {when}: {verdict['reason']}")
    if not values["verdicts"]:
        click.echo(f"not run yet: organ validate {values['model']}")


def print_made(computed: Sequence[Values]) -> None:
    """How organs were computed, a line each."""
    for one in computed:
        name = f"{one['name']}: " if "name" in one else ""
        before, source = theta_text(one["theta_before"]), one["source"]
        thetas = f"θ {before} → {theta_text(one['theta'])}" if "theta" in one else f"which has a θ of {before}"
        origin = f"from {source['digest'][:12]} ({source['dtype']})"
        print_sentence(f"{name}{' and '.join(_steps(one))}, {origin}, {thetas}")


def _steps(one: Values) -> list[str]:
    count = len(one["adapters"])
    scales = ", ".join(f"{adapter['scale']:g}" for adapter in one["adapters"])
    merged = [f"{count} adapter{'s' if count > 1 else ''} merged at {scales}"] if count else []
    keep = f", keeping {one['keep']:.0%} of the energy" if one["keep"] is not None else ""
    return [*merged, *([f"purified ({one['method']}{keep})"] if one["method"] else [])] or ["encoded again"]
