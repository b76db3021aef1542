"""How findings are printed: a line each, what refuses first; and the line that would accept the warnings."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence

import click
from rich.console import Console
from rich.text import Text

from organs.cli.console import plain
from organs.cli.prose import in_lines
from organs.registry.present.values import Values

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
