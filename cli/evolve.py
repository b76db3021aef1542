"""`organ evolve` and `organ evolutions`: search for the best chimera of a base."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from organs.cli.console import (
    is_for_people,
    organ_command,
    output_options,
    plain,
    print_commands,
    print_facts,
    print_hint,
    print_remark,
    print_sentence,
    printed_for_programs,
    status_line,
)
from organs.cli.fleet import WORKERS_MAX, do_run, scheduler_address
from organs.cli.inputs import is_file
from organs.cli.options import ID_MAX, accept_option, after_option, flag, limit_option
from organs.cli.registries import local_registry, registry_address, remote_registry, selected_registry
from organs.cli.tables import print_page, print_table
from organs.registry.columns import CellKind, Column
from organs.registry.entities.evolution import EVOLUTION_COLUMNS, TRIAL_COLUMNS, Evolution
from organs.registry.errors import NoSuchEvolution
from organs.registry.input_files import FileSource

if TYPE_CHECKING:
    from organs.registry.evolving.space import SearchSpace
    from organs.registry.interface import Registry
    from organs.registry.local import LocalRegistry

SHOWN_TRIALS = 10
"""The best trials that are printed."""
SHOWN_PARTS = 12


@click.command()
@click.argument("space", required=False, metavar="SPACE.yaml|EVOLUTION")
@click.option("--base", metavar="MODEL", help="Instead of a SPACE.yaml: the model that is to become better.")
@click.option(
    "--donors",
    multiple=True,
    metavar="MODEL|QUERY",
    help="With --base: what may give parts. Repeatable. [default: kin:BASE]",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    metavar="FILE|FOLDER|NAME",
    help="With --base: a text on which it is to become better, or the name of a built-in one, such as documentation. "
    "Repeatable. [default: python, documentation, encyclopedic]",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="TEXT=PERCENT",
    help="By how much a text may become worse. Repeatable. [default: chat=5 if the base has a chat template]",
)
@click.option("--minutes", type=float, metavar="N", help="The time, with the checks and the result. [default: 30]")
@click.option("--trials", type=int, metavar="N", help="The number of trials, instead of a time.")
@click.option("--seed", type=int, metavar="N", help="Other seeds try other chimeras. [default: 0]")
@click.option("--name", metavar="NAME", help="Register the result as NAMESPACE/NAME.")
@accept_option
@flag("-y", "--yes", "Accept every warning.")
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    help="The number of processes on this machine that do trials. [default: 1]",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    type=scheduler_address,
    help="Use the workers of a Dask scheduler, such as "
    "tcp://HOST:8786, as many trials at a time as --workers says. [default: 8]",
)
@output_options(json="Print the evolution as JSON.", quiet="Print the name of the result only.")
def evolve(
    space: str | None,
    base: str | None,
    donors: tuple[str, ...],
    texts: tuple[str, ...],
    limits: tuple[str, ...],
    minutes: float | None,
    trials: int | None,
    seed: int | None,
    name: str | None,
    accept: tuple[str, ...],
    yes: bool,
    workers: int | None,
    scheduler: str | None,
) -> int:
    """Search for the chimera of a base that is best on your texts, make it, and measure it.

    The command tries chimeras: how much of each donor, for each type of tensors and along the depth. Each trial is
    written to a temporary file, run in llama.cpp on some windows of the texts beside the base, and removed; one that is
    probably worse than the best is stopped early. What is tried next follows from the trials so far.

    At the end the best trials are measured again on further windows. The best one is made and registered, and gets a
    verdict on parts of the texts that no trial used.

    Every trial is stored when it is done. To continue after an interruption, give the number of the EVOLUTION.

    A remote registry does the trials itself, for at most 240 minutes. It gets the texts, at most 1 MiB of them.
    """
    if registry_address() is not None and (workers or scheduler):
        raise click.UsageError("--workers and --scheduler are for a local registry; a server does its own trials")
    with local_registry(waits=True) if registry_address() is None else remote_registry() as registry:
        options: dict[str, object] = {"base": base, "donors": donors, "texts": texts, "name": name}
        options |= {"minutes": minutes, "trials": trials, "seed": seed, "accept": _accepted(accept, yes=yes)}
        settings = {key: value for key, value in options.items() if value not in (None, ())}
        if limits:
            settings["limits"] = dict(map(_limit, limits))
        if space is not None and space.isascii() and space.isdigit() and not is_file(space):
            if settings:
                raise click.UsageError("an evolution that has begun keeps its space: leave out the other options")
            if len(space) > len(str(ID_MAX)) or int(space) > ID_MAX:
                raise NoSuchEvolution(f"there is no evolution {space}")
            number = int(space)
        else:
            number = _begin(registry, *_space_of(space, settings))
        own = [] if workers is None else ["--workers", str(workers)]
        own += [] if scheduler is None else ["--scheduler", scheduler]
        again = organ_command("evolve", str(number), *own)
        if is_for_people() and space != str(number):
            print_remark(f"evolution {number} begins; to continue it after an interruption: {again}")
        try:
            found = _work(registry, number, workers, scheduler)
        except KeyboardInterrupt:
            action = "to continue" if registry_address() is None else "the server goes on; to follow it"
            raise KeyboardInterrupt(f"interrupted; {action}: {again}") from None
    if not printed_for_programs(found, [found.winner or ""]):
        _print_evolution(found)
    return int(found.state != "finished")


def _accepted(codes: tuple[str, ...], *, yes: bool) -> tuple[str, ...]:
    from organs.registry.compose.recipe import WARNINGS

    return tuple(WARNINGS) if yes else codes


def _limit(text: str) -> tuple[str, float]:
    name, _, percent = text.rpartition("=")
    with suppress(ValueError):
        if name:
            return name, float(percent.removesuffix("%"))
    raise click.UsageError(f"--limit {text}: write a text and a number of percent, such as chat=5")


def _space_of(path: str | None, settings: dict[str, object]) -> tuple[SearchSpace, Path]:
    """Return the space of the file, with what the options say, and the folder in which the paths of its texts begin."""
    from organs.registry.compose.recipe import RECIPE_LIMITS
    from organs.registry.evolving.space import read_space, space_of_values, space_to_json

    if path is None:
        if "base" not in settings:
            raise click.UsageError("give a SPACE.yaml, or --base MODEL")
        return space_of_values(settings), Path()
    file = Path(path)
    with FileSource(file) as source:
        text = source.read_at(0, min(source.size_bytes, RECIPE_LIMITS.size_bytes + 1))
    space = read_space(text, path)
    if settings:
        space = space_of_values({**msgspec.json.decode(space_to_json(space)), **settings}, path)
    return space, file.parent


def _begin(registry: Registry, space: SearchSpace, folder: Path) -> int:
    from organs.registry.evolving.search import chosen_texts

    named, texts = chosen_texts(space, folder)
    with status_line("evolve") as say:
        say("measuring the base" if registry_address() is None else "sending the texts")
        return registry.begin_evolution(named, texts=texts)


def _work(registry: Registry, number: int, workers: int | None, scheduler: str | None) -> Evolution:
    """Do the trials of an evolution and its result."""
    from organs.registry.local import LocalRegistry

    is_shared = scheduler is not None or (workers or 1) > 1
    if is_shared and isinstance(registry, LocalRegistry) and registry.evolution(number).state == "running":
        _share(registry, number, workers or (8 if scheduler else 1), scheduler)
    with status_line("evolve") as say:
        return registry.continue_evolution(number, progress=say)


def _share(registry: LocalRegistry, number: int, count: int, scheduler: str | None) -> None:
    """Do the trials of an evolution with several processes."""
    from organs.registry.catalog.register.fleet import NewUnit, start_run
    from organs.registry.digest import digest_of

    units = [NewUnit("evolve", f"{number} {slot}") for slot in range(1, count + 1)]
    digest = digest_of(f"evolution {number} {secrets.token_hex(8)}".encode())  # each call is a new run
    do_run(
        registry,
        lambda session: start_run(session, f"evolution {number}", digest, units),
        None if scheduler else count,
        scheduler,
        retry=False,
        is_printed=False,
    )


@click.command()
@click.argument("evolution", required=False, type=click.IntRange(1, ID_MAX))
@limit_option("Evolutions on a page.", 50)
@after_option
@flag("--recipe", "Print the recipe of the best trial of EVOLUTION, or of --trial.")
@flag("--space", "Print the space of EVOLUTION, with the names of all models and texts.")
@click.option("--trial", type=click.IntRange(1, ID_MAX), metavar="N", help="With --recipe: the number of a trial.")
@flag("--remove", "Remove EVOLUTION with its trials and its texts. Its result stays.")
@output_options(json="Print as JSON.", quiet="Print numbers only.")
def evolutions(
    evolution: int | None,
    limit: int,
    after: str | None,
    recipe: bool,
    space: bool,
    trial: int | None,
    remove: bool,
) -> None:
    """List the evolutions, newest first, or show EVOLUTION: its best trials, what matters, and its result."""
    if evolution is None and (recipe or space or remove):
        raise click.UsageError("give the number of an evolution")
    if sum((recipe, space, remove)) > 1 or (trial is not None and not recipe):
        raise click.UsageError("give one of --recipe, --space and --remove; --trial is for --recipe")
    with selected_registry() as registry:
        if evolution is None:
            page = registry.evolutions(limit=limit, after=after)
            print_page(page, lambda one: one.id, EVOLUTION_COLUMNS, empty="No evolutions. To begin one: organ evolve")
            return
        if remove:
            gone = registry.remove_evolution(evolution)
            if not printed_for_programs(gone, [gone.id]):
                print_remark(f"evolution {evolution} removed")
            return
        if recipe:
            from organs.registry.compose.recipe import recipe_yaml

            click.echo(recipe_yaml(registry.trial_recipe(evolution, trial)), nl=False)
            return
        found = registry.evolution(evolution)
    if space:
        click.echo(found.space, nl=False)
    elif not printed_for_programs(found, [found.id]):
        _print_evolution(found)


def _print_evolution(found: Evolution) -> None:
    """Print an evolution for people: its best trials, the parts of the best one, and its result."""
    facts = [("evolution", f"{found.id} of {found.base}"), ("donors", ", ".join(found.donors))]
    facts += [("state", f"{found.state_text}, {found.progress}")]
    facts += [("note", found.note)] if found.note else []
    print_facts(facts)
    ranked = [trial for trial in found.tried if not found.front or trial.number in found.front]
    if ranked:
        click.echo()
        columns = [column for column in TRIAL_COLUMNS if not column.data_only and column.name != "state"]
        print_table(columns, ranked[:SHOWN_TRIALS])
        if len(ranked) > SHOWN_TRIALS:
            print_hint(f"{len(ranked) - SHOWN_TRIALS} more", organ_command("evolutions", str(found.id), "--json"))
    if found.parts:
        click.echo()
        print_sentence("Without a part of the best trial, its mean perplexity would change by:")
        print_table((Column("part"), Column("amount", "change", CellKind.FIGURE)), found.parts[:SHOWN_PARTS])
    click.echo()
    if found.verdict is not None and found.winner is not None:
        texts = ", ".join(f"{text.name} {text.change}" for text in found.verdict.texts)
        print_sentence(f"{plain(found.winner)} on parts of the texts that no trial used: {plain(texts)}.")
        print_sentence(f"Verdict: {found.verdict.verdict}. {plain(found.verdict.reason)}")
        commands = [(organ_command("assemble", found.winner, "-o", "."), "write its file")]
        commands += [(organ_command("chat", found.winner), "talk to it beside its base")]
        print_commands([*commands, (organ_command("evolutions", str(found.id), "--recipe"), "print its recipe")])
    elif found.state == "running":
        print_commands([(organ_command("evolve", str(found.id)), "continue it")])
