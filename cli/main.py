"""`organ`: the entry point. Commands are loaded when they are called, so that `organ --help` answers at once."""

from __future__ import annotations

import gc
import importlib
import os
import sys

import click

from organs.registry.settings import DEBUG_VARIABLE, HOME_VARIABLE, REGISTRY_VARIABLE

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

_COMMANDS = {
    "ingest": ("organs.cli.ingest", "Take GGUF files apart and register them."),
    "search": ("organs.cli.show", "Find organs by type, place, measure, model and likeness."),
    "models": ("organs.cli.show", "List the registered models."),
    "show": ("organs.cli.show", "Show a model or an organ."),
    "compare": ("organs.cli.compare", "Two models side by side: how alike they are, and what changed."),
    "report": ("organs.cli.show", "The registry, or one model, in figures that are explained."),
    "measure": ("organs.cli.ingest", "Measure GGUF files without registering them."),
    "extract": ("organs.cli.assemble", "Take a model apart into a folder of organ files."),
    "assemble": ("organs.cli.assemble", "Write a registered model, or a folder of organ files, as a GGUF file again."),
    "compat": ("organs.cli.compare", "What fits into a model, and why not."),
    "compose": ("organs.cli.compose", "Make a chimera of what a recipe says."),
    "purify": ("organs.cli.compose", "Purify organs of a model."),
    "transplant": ("organs.cli.transplant", "Put organs of GGUF files into another, without a registry."),
    "graft": ("organs.cli.transplant", "The same between folders of organ files."),
    "validate": ("organs.cli.validate", "Run a chimera in a real runtime and say what it is worth."),
    "verify": ("organs.cli.admin", "Check that every blob is there and gives its bytes."),
    "sweep": ("organs.cli.admin", "Remove stored bytes that nothing needs."),
    "login": ("organs.cli.accounts", "Remember the token for a registry elsewhere."),
    "push": ("organs.cli.remote", "Send models to a registry elsewhere: only what it lacks."),
    "pull": ("organs.cli.remote", "Fetch a model, a chimera or an organ from a registry elsewhere."),
    "contributor": ("organs.cli.accounts", "Add, list or suspend contributors of this registry."),
    "token": ("organs.cli.accounts", "Create, list or revoke tokens."),
    "admin": ("organs.cli.admin", "Reviews, yanks, events; check the protections (doctor)."),
    "backup": ("organs.cli.admin", "A copy of the registry that can be opened, while it is served."),
    "work": ("organs.cli.serve", "Do the jobs that wait in the queue."),
    "jobs": ("organs.cli.serve", "List the jobs, or cancel one."),
    "serve": ("organs.cli.serve", "Browse the registry in a web browser."),
    "demo": ("organs.cli.demo", "The whole journey on the models that come with the source."),
}


OTHER_NAMES = {
    "add": "ingest",
    "import": "ingest",
    "list": "models",
    "ls": "models",
    "info": "show",
    "find": "search",
    "export": "assemble",
    "merge": "compose",
    "download": "pull",
    "upload": "push",
    "web": "serve",
    "gc": "sweep",
    "check": "verify",
}
"""Commands under the names that other programs give them."""


class CommandGroup(click.Group):
    """A group that suggests the nearest command for one that does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            from difflib import get_close_matches  # not for commands that exist

            usual = [OTHER_NAMES[name]] if OTHER_NAMES.get(name) in known else []
            close = [*usual, *get_close_matches(name, known, n=1)]
            ctx.fail(f"no such command: {name[:100]!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)


HELP_OPTIONS = ["-h", "--help"]


class LazyGroup(CommandGroup):
    """Knows its commands by name and summary; imports one only when it is called or its own help is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        gc.disable()  # it would look through the same new classes again and again: a fifth of the time of the imports
        module = importlib.import_module(_COMMANDS[cmd_name][0])
        gc.enable()
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        command.context_settings.setdefault("help_option_names", HELP_OPTIONS)  # also where it has no parent context
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"organ, version {version('organ-registry')}")
    except PackageNotFoundError:
        click.echo("organ, run from its source without being installed")
    context.exit()


EXIT_CODES = {
    0: "done",
    1: "failed, or one of several files failed",
    2: "wrong usage of the command",
    3: "not found",
    4: "not allowed, or no valid token",
    5: "conflict: name taken, quota, cannot be composed or assembled",
    6: "try again later: busy, too many requests, unreachable",
    7: "stored data are damaged",
}
"""What the exit status of a command means. `registry.errors` has that of each error."""
_HELP = """A registry for the parts of language models.

Takes GGUF files apart into organs (tensors), stores each once, measures it, and puts models together again to the
last byte.

\b
Exit status:
""" + "".join(f"  {number}  {meaning}\n" for number, meaning in EXIT_CODES.items())


@click.group(cls=LazyGroup, help=_HELP, context_settings={"help_option_names": HELP_OPTIONS})
@click.option("--home", metavar="FOLDER", help="The registry's folder, instead of $ORGAN_HOME or your data folder.")
@click.option("--registry", metavar="URL", help="A registry elsewhere, instead of $ORGAN_REGISTRY or a folder.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def organ(home: str | None, registry: str | None) -> None:
    """Apply the options that all commands share."""
    if home is not None:
        os.environ[HOME_VARIABLE] = home
        os.environ.pop(REGISTRY_VARIABLE, None)  # what is said here goes before what was said long ago
    if registry is not None:
        os.environ[REGISTRY_VARIABLE] = registry


def main() -> None:
    """Run the command; every failure is one line that says what to do, a traceback only with ORGAN_DEBUG=1."""
    from organs.registry.errors import OrganError

    try:
        status = organ.main(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.Abort:
        _interrupted()
    except KeyboardInterrupt:
        _interrupted()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read us has seen enough. Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except (OrganError, OSError) as error:  # OSError: a path given by hand that the system itself refuses
        if os.environ.get(DEBUG_VARIABLE):
            raise
        _failed(error)


def _failed(error: Exception) -> None:
    from organs.cli.console import hint_for, plain
    from organs.registry.errors import OrganError

    click.echo(f"organ: {plain(error)}", err=True)
    if hint := hint_for(error):
        click.echo(f"       {hint}", err=True)
    sys.exit(error.exit_code if isinstance(error, OrganError) else EXIT_FAILED)


def _interrupted() -> None:
    click.echo("organ: interrupted; nothing is left half done, run the same command again", err=True)
    sys.exit(EXIT_INTERRUPTED)
