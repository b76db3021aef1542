"""How the lineage of a model is printed: a line an edge, a line a finding."""

from __future__ import annotations

import click

from cli.console import print_table
from cli.prose import print_sentence
from registry.present.text import share_text
from registry.present.values import Values

EDGES_SHOWN = 12


def print_lineage(values: Values) -> None:
    """The lineage and the findings of a model page, if there are any."""
    edges = values["lineage"]
    if edges:
        click.echo()
        print_sentence(
            "Lineage. Alike is the mean correlation of the weights at the same places: 1 the same, 0 strangers. What "
            "was measured has no direction."
        )
        rows = [
            (edge["direction"], edge["model"] or edge["text"], edge["relation"], edge["evidence"], *_alike(edge))
            for edge in edges[:EDGES_SHOWN]
        ]
        print_table(("kin", "model", "relation", "evidence", "alike", "matrices"), rows, ("alike", "matrices"))
        left_out = len(edges) - EDGES_SHOWN + values["lineage_left_out"]
        if left_out > 0:
            click.echo(f"… and {left_out} more, with --json")
    for finding in values["findings"]:
        print_sentence(f"{finding['severity']}: {finding['sentence']}")


def _alike(edge: Values) -> tuple[str, str]:
    return share_text(edge["score"]), str(edge["compared"] or "–")
