"""`organ`: the entry point. Commands are loaded when they are called, so that `organ --help` answers at once."""

from __future__ import annotations

import importlib
import os
import sys

import click

from organs.cli import fast_imports
from organs.registry.settings import DEBUG_VARIABLE, HOME_VARIABLE, REGISTRY_VARIABLE

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
"""numpy's BLAS starts its threads when it is imported. Without this they spin for 26 ms, each on a core of its own."""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

GROUPS = {
    "Try it": {
        "demo": "Try the main steps on the small models of the source.",
    },
    "On this machine": {
        "scan": "Show the models that Ollama and other tools keep here.",
        "install": "Put a model where Ollama or another tool finds it.",
        "uninstall": "Remove what install wrote.",
        "reclaim": "Free the disk: remove files that the registry has.",
        "restore": "Write the files again that reclaim removed.",
        "run": "Run a program with the file of a model.",
        "chat": "Talk to a model, or to a chimera beside its base.",
    },
    "Files": {
        "check": "Say whether llama.cpp loads a file, and what mends it.",
        "ingest": "Split GGUF files into tensors and register them.",
        "assemble": "Write a model or an organ directory as a GGUF file.",
        "extract": "Split a model into a folder with a file for each tensor.",
        "measure": "Measure GGUF files without registering them.",
    },
    "Catalog": {
        "models": "List the registered models.",
        "show": "Show a model or a tensor, and what you can do with it.",
        "search": "Find tensors by type, place, measures, model and likeness.",
        "compare": "Compare two models: their likeness, their differences.",
        "prove": "Prove from which model a quantisation was made.",
        "report": "Report on the registry: findings, families, measures.",
        "storage": "Show what is stored how, and how many bytes this saves.",
        "sbom": "Print the bill of materials of a model (CycloneDX).",
    },
    "Chimeras": {
        "compat": "Show which tensors fit into a model, and why others do not.",
        "compose": "Make the chimera that a recipe describes.",
        "validate": "Run a chimera in llama.cpp, and compare it with its base.",
        "evolve": "Search for the best chimera of a model by itself.",
        "evolutions": "List evolutions, show one, or print a trial's recipe.",
        "leaderboard": "Rank chimeras by their measured gain over their bases.",
        "purify": "Purify tensors of a model, and show θ before and after.",
        "extract-lora": "Extract a LoRA adapter from a fine-tune and its base.",
        "transplant": "Copy tensors between GGUF files, without a registry.",
        "graft": "Copy tensors between organ directories.",
    },
    "Any size": {
        "quantize": "Make the best file of a size, or one in a tensor type.",
        "memory": "Count the memory that llama.cpp takes for a model.",
        "imatrix": "Collect an importance matrix, by which to quantise.",
    },
    "Server": {
        "serve": "Serve the catalog for web browsers and programs.",
        "jobs": "List the jobs, show one, or cancel one.",
        "work": "Run the jobs in the queue.",
    },
    "Many models": {
        "fleet": "Ingest, measure, repack or validate with many processes.",
    },
    "Remote registries": {
        "push": "Send models, without the tensors that are there already.",
        "pull": "Download a model, a chimera or a tensor.",
    },
    "Accounts": {
        "login": "Store the token for a remote registry.",
        "token": "Create, list or revoke tokens.",
        "contributor": "Add, list or suspend the accounts of contributors.",
    },
    "Administration": {
        "verify": "Check that every stored blob exists and is right.",
        "backup": "Copy the registry, also while it is in use.",
        "migrate-store": "Move the registry to another database or bucket.",
        "repack": "Store tensors of similar models by their differences.",
        "sweep": "Remove stored bytes that no model needs.",
        "admin": "Review, yank and remove models; list events.",
    },
}
"""The commands of `organ --help`, by heading, with their summaries."""
COMMANDS = {name: summary for commands in GROUPS.values() for name, summary in commands.items()}
MODULES = {
    "extract-lora": "extract_lora",
    "evolutions": "evolve",
    "graft": "transplant",
    "work": "jobs",
    "migrate-store": "backup",
    "prove": "compare",
    "uninstall": "install",
    **dict.fromkeys(("restore", "run"), "reclaim"),
    **dict.fromkeys(("login", "token", "contributor"), "accounts"),
    **dict.fromkeys(("verify", "repack", "sweep"), "upkeep"),
}
"""The modules of commands that are not in a module of their own name."""

OTHER_WORDS = {
    "add": "ingest",
    "import": "ingest",
    "list": "models",
    "ls": "models",
    "chimeras": "models kind:chimera",
    "adapters": "models kind:adapter",
    "organs": "search",
    "recipe": "compose",
    "plan": "compose --dry-run",
    "gains": "leaderboard",
    "info": "show",
    "find": "search",
    "export": "assemble",
    "merge": "compose",
    "download": "pull",
    "upload": "push",
    "web": "serve",
    "gc": "sweep",
    **dict.fromkeys(("remove", "rm", "delete"), "admin remove"),
    "du": "storage",
    "size": "storage",
}
"""Words that people type instead of a command, with the command here and its arguments."""


class CommandGroup(click.Group):
    """A group that suggests the nearest command for one that does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            from difflib import get_close_matches  # not for commands that exist

            other = OTHER_WORDS.get(name, "")
            usual = [other] if other.partition(" ")[0] in known else []
            close = [*usual, *get_close_matches(name, known, n=1)]
            ctx.fail(f"no such command: {name[:100]!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)


HELP_OPTIONS = ["-h", "--help"]
GLOBAL_OPTIONS = {"--registry": "URL", "--home": "FOLDER"}
"""The options that all commands share, with the words for their values."""


class LazyGroup(CommandGroup):
    """A group that imports a command only when the command runs or prints its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with fast_imports():
            module = importlib.import_module(f"organs.cli.{MODULES.get(cmd_name, cmd_name)}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        command.context_settings.setdefault("help_option_names", HELP_OPTIONS)  # also where it has no parent context
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                width = max(map(len, COMMANDS))  # the same in all groups
                formatter.write_dl([(name.ljust(width), summary) for name, summary in commands.items()])


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
    1: "failed: a file, query or setting is not valid, or some files failed",
    2: "wrong options or arguments",
    3: "no such model, tensor, job or account",
    4: "not allowed, or no valid token",
    5: "conflict: the name is taken, the quota is full, or a model is refused",
    6: "try again later: busy, too many requests, unreachable",
    7: "stored data are damaged",
}
"""The meaning of each exit status. `registry.errors` has the status of each error."""
_HELP = """A registry for the parts of language models.

Splits GGUF files into their tensors, stores each one once, measures it, and assembles models again, identical to the
last byte.
"""
_EXIT_STATUS = "\b\nExit status:\n" + "".join(f"  {number}  {meaning}\n" for number, meaning in EXIT_CODES.items())


_FIRST_STEPS = """Usage: organ COMMAND [OPTIONS]

A registry for the parts of language models.

  organ demo                       try the main steps on small models
  organ ingest FILE.gguf           split a model into tensors and register it
  organ models                     list the registered models
  organ show MODEL                 what it is, and what you can do with it
  organ chat MODEL 'Hello'         ask it something
  organ search 'type:organ'        find tensors by type, place, measures
  organ compat BASE                list models whose tensors fit into BASE
  organ compose RECIPE.yaml        make a chimera
  organ serve -o                   open the catalog in a browser

organ --help lists all commands; organ COMMAND --help explains one.
"""


@click.group(
    cls=LazyGroup,
    help=_HELP,
    epilog=_EXIT_STATUS,
    context_settings={"help_option_names": HELP_OPTIONS},
    invoke_without_command=True,
    no_args_is_help=False,
)
@click.pass_context
@click.option(
    "--home", metavar="FOLDER", help="The folder of a local registry. [default: $ORGAN_HOME, or your data folder]"
)
@click.option("--registry", metavar="URL", help="The address of a remote registry. [default: $ORGAN_REGISTRY, or none]")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def organ(context: click.Context, home: str | None, registry: str | None) -> None:
    """Apply the options that all commands share. Without a command, print the first steps."""
    if context.invoked_subcommand is None:
        click.echo(_FIRST_STEPS, nl=False, err=True)
        context.exit(EXIT_USAGE)
    if home is not None:
        os.environ[HOME_VARIABLE] = home
        os.environ.pop(REGISTRY_VARIABLE, None)  # an option comes before the environment
    if registry is not None:
        os.environ[REGISTRY_VARIABLE] = registry


def main() -> None:
    """Run the command. A failure prints one line with a hint; ORGAN_DEBUG=1 prints the traceback."""
    from organs.registry.errors import OrganError

    try:
        status = organ.main(prog_name="organ", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        from organs.cli.console import print_failure

        reason = str(error.__cause__ or error)
        print_failure(reason or "interrupted; nothing is incomplete: run the same command again to continue")
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
        _print_misuse(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of the pipe has closed it. Python would report that again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except (OrganError, OSError) as error:  # OSError: the system refuses a path of the user
        if os.environ.get(DEBUG_VARIABLE):
            raise
        from organs.cli.hints import print_error

        print_error(error)
        sys.exit(error.exit_code if isinstance(error, OrganError) else EXIT_FAILED)


def _print_misuse(error: click.ClickException) -> None:
    """Print the usage and the error; on a terminal, the error is wrapped between words."""
    from organs.cli.console import print_remark, terminal_width

    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption) and context and error.option_name in GLOBAL_OPTIONS:
        command = context.command_path.removeprefix("organ ")
        line = f"organ {error.option_name} {GLOBAL_OPTIONS[error.option_name]} {command}"
        error = click.UsageError(f"write {error.option_name} before the command: {line}", context)
    if context is None or isinstance(error, click.exceptions.NoArgsIsHelpError) or terminal_width(err=True) is None:
        error.show()
        return
    click.echo(f"{context.get_usage()}\nTry '{context.command_path} --help' for help.\n", err=True)
    first, *others = error.format_message().splitlines() or [""]
    print_remark(first, "Error: ")
    for line in others:
        print_remark(line.strip(), " " * len("Error: "))
