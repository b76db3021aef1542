"""Options and arguments that commands share: pages of lists, queries, and the spellings of the original tools."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from organs.cli.console import F, print_remark
from organs.registry.amounts import parse_size
from organs.registry.catalog.cursor import PAGE_MAX
from organs.registry.errors import BadInput
from organs.registry.search.language import ALIASES, MODELS, ORGANS

ID_MAX = 2**63 - 1
"""The largest id of a row."""


def flag(*names_and_help: str) -> Callable[[F], F]:
    """Return an option without a value: `flag("-y", "--yes", "Accept every warning.")`."""
    *names, help_text = names_and_help
    return click.option(*names, is_flag=True, help=help_text)


def size_bytes(text: str) -> int:
    """Return the bytes of a size such as 2G or 500M, as the type of an option; 0 for an empty text."""
    try:
        return parse_size(text) if text else 0
    except BadInput as error:
        raise click.BadParameter(str(error)) from error


_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd]?)", re.ASCII)
_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """Return the seconds of a time such as 90s, 5m, 2h or 3d, or of a number of seconds, as the type of an option."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text}: give a time such as 90s, 5m or 2h")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def limit_option(rows: str, default: int, most: int = PAGE_MAX) -> Callable[[F], F]:
    """Return the option --limit of a command that lists `rows`, such as `Models on a page.`"""
    return click.option(
        "--limit", metavar="N", default=default, show_default=True, type=click.IntRange(1, most), help=rows
    )


after_option = click.option("--after", metavar="NEXT", help="Print the page after this one; NEXT is its `next` value.")

accept_option = click.option("--accept", multiple=True, metavar="CODE", help="Accept a warning by its code.")


FILE = click.Path(path_type=Path, dir_okay=False)

lock_option = click.option("--lock", type=FILE, metavar="FILE", help="Write the lock to FILE.")

on_option = click.option(
    "--on", metavar="TEXTS", help="Only gains on these kinds of text, such as python,german, code or prose."
)

quick_look_option = click.option(
    "--quick-look",
    metavar="TIME",
    type=seconds,
    help="How long to measure the chimera in llama.cpp after it is made, such as 30s or 2m; 0 for not at all. With -q, "
    "it is not measured. [default: 30s, if llama.cpp is installed]",
)

_MINUS_TERM = re.compile(r"-[^\W\d_]\w.*|-[^\W\d_][:<>=].*|-\d.*", re.DOTALL)
"""An excluded term: more than one letter, which would be an option, or a digit, which options do not have: `-7b`."""


_BOUND = re.compile(r"=?-?\d+(?:\.\d+)?[kMG]?")
"""The text after a `>` that was meant as a comparison."""


class QueryCommand(click.Command):
    """A command with arguments that may begin with a minus: `-type:norm` is a term, not an option.

    Its help ends with the `fields` of queries and their meanings, and the epilog.
    """

    def __init__(self, *args: Any, fields: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._fields = dict(fields)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Fields"):
            formatter.write_dl([(f"{name}:", meaning) for name, meaning in self._fields.items()])
        super().format_epilog(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        terms = [word for word in args if _MINUS_TERM.fullmatch(word)]
        others = [word for word in args if not _MINUS_TERM.fullmatch(word)]
        check_quoted(args)
        return super().parse_args(ctx, [*others, *([] if "--" in others else ["--"]), *terms])


def check_quoted(words: Sequence[str]) -> None:
    """Raise UsageError if the shell redirected a bound: `theta>=35` becomes the word `theta` and the file `=35`."""
    tables = (ORGANS, MODELS)
    names = [(word, ALIASES.get(word.lower(), word.lower())) for word in words]
    fields = [
        word for word, name in names if any(name in table.fields and table.fields[name].is_numeric for table in tables)
    ]
    if not fields:
        return
    file = _redirected()
    if file is not None:
        bound = file if file.startswith("=") else f"={file}"
        raise click.UsageError(
            f"{fields[-1]!r} has no bound: the shell read > as a redirection and created the file {file!r}. "
            f"Delete that file, and quote the query: '{fields[-1]}>{bound}'"
        )
    if any(word.startswith(("<", ">", "=", "≥", "≤")) for word in words):  # the parser reports that
        return
    for name in fields:
        sentence = f"{name} is used as a search word; to filter by {name}, write a bound in quotes: '{name}>=35'"
        print_remark(sentence, "note: ")


def _redirected() -> str | None:
    """Return the newest empty file in this folder that a shell made from a bound such as `>=35`, if there is one."""
    with suppress(OSError), os.scandir() as entries:
        files = [entry for entry in entries if _BOUND.fullmatch(entry.name) and entry.is_file()]
        empty = [file for file in files if file.stat().st_size == 0]
        return max(empty, key=lambda file: file.stat().st_mtime).name if empty else None
    return None


def original_spelling(replaces: str, *spellings: str) -> Callable[[F], F]:
    """Return hidden options of the original tools that stand for the parameter `replaces`, such as `--dir DIR`.

    docs/original-tools.md lists them. They stand for all arguments of the command: a mix with arguments is refused.
    """
    name = f"original_{replaces}"
    return click.option(*spellings, name, cls=_Spelling, replaces=replaces, multiple=True, hidden=True, is_eager=True)


class _Spelling(click.Option):
    """An option that is read before the parameter that it stands for, and gives it its value."""

    def __init__(self, *args: Any, replaces: str, **attributes: Any) -> None:
        super().__init__(*args, expose_value=False, **attributes)
        self.replaces = replaces

    def parameter(self, ctx: click.Context) -> tuple[click.Parameter, str]:
        """Return the parameter that it stands for, and its label in messages."""
        found = next(param for param in ctx.command.params if param.name == self.replaces)
        return found, found.human_readable_name.strip("[].") if isinstance(found, click.Argument) else found.opts[0]

    def handle_parse_result(self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]) -> Any:
        assert isinstance(opts, dict), "the values of this parse"
        spellings = [param for param in ctx.command.params if isinstance(param, _Spelling)]
        replaced = [spelling.parameter(ctx)[0] for spelling in spellings if opts.get(spelling.name)]
        parameter, label = self.parameter(ctx)
        replaces_arguments = any(isinstance(param, click.Argument) for param in replaced)
        if parameter in replaced or (replaces_arguments and isinstance(parameter, click.Argument)):
            own, texts = opts.get(self.replaces), list(dict.fromkeys(opts.get(self.name) or ()))
            fault = None
            if isinstance(own, str | tuple) and own:
                fault = f"{label} is given twice"
            elif parameter.nargs == 1 and len(texts) > 1:
                fault = f"give one {label}, not {len(texts)}"
            elif parameter.required and not texts:
                fault = f"{label} is missing"
            if fault is not None:
                words = [f"{word} stands for {one.parameter(ctx)[1]}" for one in spellings for word in one.opts]
                raise click.UsageError(f"{fault}: {', '.join(words)}", ctx)
            opts[self.replaces] = texts[0] if parameter.nargs == 1 else tuple(texts)
        return super().handle_parse_result(ctx, opts, args)
