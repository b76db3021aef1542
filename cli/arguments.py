"""Arguments of commands: the registry that they work on, queries, and the spellings of the original tools."""

from __future__ import annotations

import logging
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from organs.cli import fast_imports
from organs.cli.console import print_hint, print_sentence
from organs.registry.errors import BadSetting, DatabaseUnreachable, OrganError
from organs.registry.search.language import (
    ALIASES,
    MODELS,
    ORGANS,
)
from organs.registry.settings import REGISTRY_VARIABLE, TOKEN_VARIABLE, Settings

if TYPE_CHECKING:
    from organs.registry.client.remote import RemoteRegistry
    from organs.registry.interface import Registry
    from organs.registry.local import LocalRegistry


AFTER_HELP = "Print the page after this one; NEXT is its `next` value."
"""The help of `--after` of every list."""

REMOTE_ALTERNATIVES = {
    "ingest": "organ push FILE sends a model to a remote registry",
    "measure": "organ show MODEL prints the measures of a model in a remote registry",
    "verify": "organ pull MODEL checks every byte of a model that it downloads",
    "repack": "the server does it when it has no other work",
    "sweep": "the administrator of a remote registry runs it there",
    "backup": "organ pull MODEL downloads one model; the administrator of a remote registry runs organ backup there",
    "migrate-store": "the administrator of a remote registry runs organ migrate-store there",
    "admin": "use the page /admin of a remote registry",
    "fleet": "organ push FILE sends a model to a remote registry",
    "work": "a remote registry runs its own jobs; organ jobs lists them",
    "serve": "open the address of a remote registry in a browser",
}
"""By command, what to do instead with a remote registry."""


DATABASE_SECONDS = 60.0
"""How long a command that runs for long waits at its start for a database server."""
DATABASE_PAUSE_SECONDS = 0.5


def registry_address() -> str | None:
    """Return the address of the remote registry in --registry or the environment, if there is one."""
    return os.environ.get(REGISTRY_VARIABLE) or None


def local_registry(purpose: str | None = None, *, waits: bool = False) -> LocalRegistry:
    """Open the registry in the folder that --home or the environment names.

    Commands that run for long pass `waits`: they wait DATABASE_SECONDS for a database server that is starting. Raises
    BadSetting if a remote registry is selected. `purpose`, by default the command, begins the message.
    """
    with fast_imports():
        from organs.registry.local import LocalRegistry

    if registry_address() is not None:
        command = _command()
        alternative = REMOTE_ALTERNATIVES.get(command.partition(" ")[0])
        raise BadSetting(
            f"{purpose or f'organ {command}'} works on a local registry only: give --home FOLDER, or leave out "
            f"--registry and {REGISTRY_VARIABLE}" + (f"; {alternative}" if alternative else "")
        )
    if waits:
        _await_database()
    return LocalRegistry.open()


def _await_database() -> None:
    """Wait until the database server accepts connections; raises DatabaseUnreachable after DATABASE_SECONDS."""
    from organs.registry.catalog.engine import is_unavailable

    settings = Settings.from_environment(os.environ)
    until, is_first = time.monotonic() + DATABASE_SECONDS, True
    while is_unavailable(settings.database_url):
        if time.monotonic() >= until:
            message = f"the database server has not accepted connections for {DATABASE_SECONDS:.0f} s: is it running?"
            raise DatabaseUnreachable(message)
        if is_first:
            _say_in_log(f"The database does not answer yet: waiting for up to {DATABASE_SECONDS:.0f} s", settings.log)
        is_first = False
        time.sleep(DATABASE_PAUSE_SECONDS)


def _say_in_log(sentence: str, form: str) -> None:
    """Print a sentence before the log of the command begins; if the log is JSON, write a record."""
    if form == "json":
        from organs.web.logs import configure_logs

        configure_logs("json")
        logging.getLogger("organs.database").warning(sentence)
    else:
        print_sentence(sentence, err=True)


def remote_registry() -> RemoteRegistry:
    """Open the remote registry in --registry or the environment; raises BadSetting without one."""
    with fast_imports():
        from organs.registry.client.remote import RemoteRegistry  # loads HTTP, which local registries do not need

    url = registry_address()
    if url is None:
        command = f"organ --registry URL {_command()}"
        raise BadSetting(f"this command needs a remote registry: write {command}, or set {REGISTRY_VARIABLE}")
    return RemoteRegistry.open(url)


def selected_registry() -> Registry:
    """Open the registry that the options or the environment name, local or remote."""
    return local_registry() if registry_address() is None else remote_registry()


def anonymous_hint() -> str:
    """Return how to read without the token that was sent to the remote registry; empty if none was sent."""
    from organs.registry.client.address import parse_address
    from organs.registry.client.tokens import kept_token

    url = registry_address()
    if url is None:
        return ""
    if os.environ.get(TOKEN_VARIABLE):
        return f"; without {TOKEN_VARIABLE} you can read without an account"
    with suppress(OrganError):
        if kept_token(url) is not None:
            return f", or organ login --forget {parse_address(url)} to read without an account"
    return ""


def _command() -> str:
    """Return the words of the current command after `organ`."""
    words: list[str] = []
    context = click.get_current_context(silent=True)
    while context is not None and context.parent is not None:
        words.insert(0, context.info_name or "")
        context = context.parent
    return " ".join(words)


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
    fields = [word for word in words if _is_number_field(word)]
    file = _redirected() if fields else None
    if file is not None:
        bound = file if file.startswith("=") else f"={file}"
        raise click.UsageError(
            f"{fields[-1]!r} has no bound: the shell read > as a redirection and created the file {file!r}. "
            f"Delete that file, and quote the query: '{fields[-1]}>{bound}'"
        )
    has_separate_bound = any(word[:1] in "<>=≥≤" for word in words if word)  # the parser reports that
    for name in () if has_separate_bound else fields:
        print_sentence(
            f"{name} is used as a search word; to filter by {name}, write a bound in quotes: '{name}>=35'",
            "note: ",
            err=True,
        )


def _is_number_field(word: str) -> bool:
    name = ALIASES.get(word.lower(), word.lower())
    return any(name in table.fields and table.fields[name].is_numeric for table in (ORGANS, MODELS))


def _redirected() -> str | None:
    """Return the newest empty file in this folder that a shell made from a bound such as `>=35`, if there is one."""
    with suppress(OSError), os.scandir() as entries:
        files = [entry for entry in entries if _BOUND.fullmatch(entry.name) and entry.is_file()]
        empty = [file for file in files if file.stat().st_size == 0]
        return max(empty, key=lambda file: file.stat().st_mtime).name if empty else None
    return None


class OriginalSpellings(click.Command):
    """A command that also takes its arguments as the options of the original tools, such as `--dir DIR`.

    `spellings` has the name of the parameter that each option replaces. The options are not in the help;
    docs/original-tools.md lists them. They stand for all arguments of the command: a mix with arguments is refused.
    """

    def __init__(self, *args: Any, spellings: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._spellings = dict(spellings)
        self.params += [
            click.Option([spelling, _hidden_name(spelling)], multiple=True, hidden=True, expose_value=False)
            for spelling in spellings
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parsed, _, _ = self.make_parser(ctx).parse_args([*args])
        values: dict[str, list[str]] = {}
        for spelling, name in self._spellings.items():
            values.setdefault(name, []).extend(parsed.get(_hidden_name(spelling)) or ())
        if any(values.values()):
            args = self._with_arguments(ctx, args, parsed, values)
        return super().parse_args(ctx, args)

    def _with_arguments(
        self, ctx: click.Context, args: list[str], parsed: Mapping[str, Any], values: Mapping[str, list[str]]
    ) -> list[str]:
        """Return `args` with what the spellings in them stand for."""
        options, arguments = [], []
        replaces_arguments = any(values.get(param.name or "") for param in self.params if _is_argument(param))
        for param in self.params:
            inputs = list(dict.fromkeys(values.get(param.name or "", ())))
            own = parsed.get(param.name or "")
            is_twice = replaces_arguments if _is_argument(param) else bool(inputs)
            if isinstance(own, str | tuple) and own and is_twice:
                raise click.UsageError(f"{_label(param)} is given twice: {self._replaced()}", ctx)
            if param.nargs == 1 and len(inputs) > 1:
                raise click.UsageError(f"give one {_label(param)}, not {len(inputs)}: {self._replaced()}", ctx)
            if replaces_arguments and _is_argument(param) and param.required and not inputs:
                raise click.UsageError(f"{_label(param)} is missing: {self._replaced()}", ctx)
            if _is_argument(param):
                arguments += inputs
            elif inputs:
                options += [param.opts[-1], *inputs]
        if not replaces_arguments:
            return [*options, *args]
        end = args.index("--") if "--" in args else len(args)
        return [*args[:end], *options, "--", *arguments]

    def _replaced(self) -> str:
        """Return which option stands for what."""
        labels = {param.name: _label(param) for param in self.params}
        return ", ".join(f"{spelling} stands for {labels[name]}" for spelling, name in self._spellings.items())


def _is_argument(param: click.Parameter) -> bool:
    return isinstance(param, click.Argument)


def _label(param: click.Parameter) -> str:
    """Return what the usage line calls an argument, or the short name of an option."""
    return param.human_readable_name.strip("[].") if _is_argument(param) else param.opts[0]


def _hidden_name(spelling: str) -> str:
    return f"original_{spelling.strip('-')}"


def print_notes(notes: Sequence[str]) -> None:
    """Print the notes on a page on stderr."""
    for note in notes:
        print_sentence(note, "note: ", err=True)


def print_more(command: str, query: str, options: Sequence[str], place: str, total: int | None = None) -> None:
    """Print the command that shows the next page on stderr."""
    words = [*organ_words(), command, *options, "--after", place, *([query] if query else [])]
    of = "" if total is None else f" of {total:,}"
    print_hint(f"more{of}", shlex.join(words))


def again(options: Sequence[str]) -> str:
    """Return the command that is running with more options, for the user to copy."""
    context = click.get_current_context()
    words = [*organ_words(), *context.command_path.split()[1:]]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if context.get_parameter_source(parameter.name or "") is not click.core.ParameterSource.COMMANDLINE:
            continue
        flag = parameter.opts[:1] if isinstance(parameter, click.Option) else []
        has_value = not (isinstance(parameter, click.Option) and parameter.is_flag)
        for one in value if isinstance(value, tuple) else (value,):
            words += [*flag, *([str(one)] if has_value else [])]
    return shlex.join([*words, *options])


def organ_words() -> list[str]:
    """Return the beginning of a command for the user to copy: `organ` and the options that select the registry."""
    context = click.get_current_context(silent=True)
    params = {} if context is None else context.find_root().params
    return [
        "organ",
        *(word for name in ("home", "registry") if params.get(name) for word in (f"--{name}", params[name])),
    ]
