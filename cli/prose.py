"""Prose on stdout: broken between words, never inside one."""

from __future__ import annotations

import shutil
import sys
import textwrap

import click

from organs.cli.console import plain

INDENT = "  "
WIDTH_MAX = 100
"""Columns; longer lines are hard to read, however wide the terminal is."""


def in_lines(text: str, indent: str = "") -> str:
    """Prose in lines of the terminal's width, 80 without one, 100 at most."""
    width = min(WIDTH_MAX, shutil.get_terminal_size().columns)
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_prose(text: str) -> None:
    """`text` of several lines, set in so that none of them looks like a line of the command's own."""
    for line in text.splitlines():
        shown = plain(line.expandtabs(4))
        click.echo((in_lines(shown, INDENT) if sys.stdout.isatty() else INDENT + shown).rstrip())


def print_sentence(text: str) -> None:
    """`text` without what a terminal would obey, in lines on a terminal; in a pipe it stays one line, for scripts."""
    shown = plain(text)
    click.echo(in_lines(shown) if sys.stdout.isatty() else shown)
