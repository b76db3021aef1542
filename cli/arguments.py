"""What commands take: the registry that they work on, and queries."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from organs.registry.catalog.search import (
    ALIASES,
    MODELS,
    ORGANS,
)
from organs.registry.errors import BadSetting, OrganError
from organs.registry.settings import REGISTRY_VARIABLE, TOKEN_VARIABLE

if TYPE_CHECKING:
    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.local import LocalRegistry


INSTEAD = {
    "ingest": "organ push FILE sends a model to the registry there",
    "verify": "of a registry elsewhere organ pull MODEL checks every byte that comes",
    "sweep": "a registry elsewhere is swept by whoever runs it",
    "backup": "of a registry elsewhere organ pull MODEL keeps a model; whoever runs it backs it all up",
    "admin": "administrators of a registry elsewhere have its page /admin",
    "work": "a registry elsewhere does its jobs itself, and organ jobs lists them",
    "serve": "a registry elsewhere is served already: open its address in a browser",
}
"""What does it there, or who."""


def address() -> str | None:
    """The address of the registry elsewhere that --registry or the environment names, if one does."""
    return os.environ.get(REGISTRY_VARIABLE) or None


def folder_registry(what: str | None = None) -> LocalRegistry:
    """The registry in the folder that the environment names, open.

    Raises BadSetting where a registry elsewhere is named, for `what` (the command, unless told otherwise) asks more
    than one can answer.
    """
    from organs.registry.local import LocalRegistry

    if address() is not None:
        command = _command()
        instead = INSTEAD.get(command.partition(" ")[0])
        raise BadSetting(
            f"{what or f'organ {command}'} works on a registry's folder only: give --home FOLDER, or leave out "
            f"--registry and {REGISTRY_VARIABLE}" + (f"; {instead}" if instead else "")
        )
    return LocalRegistry.open()


def remote_registry() -> RemoteRegistry | None:
    """The registry elsewhere that is named; None where a folder is meant. Raises BadSetting for what is no address."""
    url = address()
    if url is None:
        return None
    from organs.registry.client.remote import RemoteRegistry  # with HTTP, which a folder needs not

    return RemoteRegistry.open(url)


def named_remote() -> RemoteRegistry:
    """The registry elsewhere that must be named; raises BadSetting."""
    remote = remote_registry()
    if remote is None:
        raise BadSetting(f"which registry? give --registry URL, or set {REGISTRY_VARIABLE}")
    return remote


def any_registry() -> LocalRegistry | RemoteRegistry:
    """Whichever is named, open."""
    return remote_registry() or folder_registry()


def reading_on() -> str:
    """How to go on without the token that was sent to the registry elsewhere; empty where none was."""
    from organs.registry.client.address import parse_address
    from organs.registry.client.tokens import kept_token

    url = address()
    if url is None:
        return ""
    if os.environ.get(TOKEN_VARIABLE):
        return f"; without {TOKEN_VARIABLE} reading goes on, without an account"
    with suppress(OrganError):
        if kept_token(url) is not None:
            return f", or organ login --forget {parse_address(url)}, which goes on reading without an account"
    return ""


def _command() -> str:
    """The words of the command that runs, behind `organ`."""
    words: list[str] = []
    context = click.get_current_context(silent=True)
    while context is not None and context.parent is not None:
        words.insert(0, context.info_name or "")
        context = context.parent
    return " ".join(words)


_MINUS_TERM = re.compile(r"-[^\W\d_]\w.*|-[^\W\d_][:<>=].*|-\d.*", re.DOTALL)
"""More than a letter, which is an option's; options have no digits, words of models do: `-7b`."""


_BOUND = re.compile(r"=?-?\d+(?:\.\d+)?[kMG]?")
"""What stands behind a `>` that was meant as a comparison."""


class QueryCommand(click.Command):
    """A command whose arguments may begin with a minus: `-type:norm` is a term, not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        terms = [word for word in args if _MINUS_TERM.fullmatch(word)]
        others = [word for word in args if not _MINUS_TERM.fullmatch(word)]
        check_quoted(args)
        return super().parse_args(ctx, [*others, *([] if "--" in others else ["--"]), *terms])


def check_quoted(words: Sequence[str]) -> None:
    """Raise UsageError if the shell took a bound away: of `theta>=35` it leaves `theta` and writes to a file `=35`."""
    fields = [word for word in words if _is_number_field(word)]
    made = _redirected() if fields else None
    if made is not None:
        bound = made if made.startswith("=") else f"={made}"
        raise click.UsageError(
            f"{fields[-1]!r} has no bound: the shell took > for a redirection and made the file {made!r} here. "
            f"Remove it, and quote the query: '{fields[-1]}>{bound}'"
        )
    is_loose = any(word[:1] in "<>=≥≤" for word in words if word)  # the parser says what is wrong with that
    for name in () if is_loose else fields:
        click.echo(f"note: {name} is a word here; a bound needs quotes: '{name}>=35'", err=True)


def _is_number_field(word: str) -> bool:
    name = ALIASES.get(word.lower(), word.lower())
    return any(name in one.fields and one.fields[name].is_numeric for one in (ORGANS, MODELS))


def _redirected() -> str | None:
    """The name of an empty file in this folder that a shell made of a bound such as `>=35`, newest first."""
    with suppress(OSError), os.scandir() as found:
        made = [one for one in found if _BOUND.fullmatch(one.name) and one.is_file() and one.stat().st_size == 0]
        return max(made, key=lambda one: one.stat().st_mtime).name if made else None
    return None


def print_more(command: str, query: str, options: Sequence[str], place: str, total: int | None = None) -> None:
    """On stderr: the command that shows what comes behind a page."""
    given = click.get_current_context().find_root().params
    words = [
        "organ",
        *(word for name in ("home", "registry") if given.get(name) for word in (f"--{name}", given[name])),
        command,
        *options,
        "--after",
        place,
        *([query] if query else []),
    ]
    of = "" if total is None else f" of {total:,}"
    click.echo(f"more{of}: {shlex.join(words)}", err=True)
