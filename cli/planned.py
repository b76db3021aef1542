"""How a plan is printed: parents, findings, what becomes of which organ, sizes, and the prediction."""

from __future__ import annotations

from pathlib import Path

import click

from organs.cli.console import plain, print_table
from organs.cli.findings import print_findings
from organs.cli.prose import print_sentence
from organs.registry.present.text import share_text, size_text, theta_text
from organs.registry.present.values import Values

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
