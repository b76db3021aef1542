"""`organ validate`: run a chimera beside its base, and print the perplexities and a verdict."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from organs.cli.console import (
    again,
    output_options,
    plain,
    print_failure,
    print_hint,
    print_sentence,
    printed_for_programs,
    status_line,
)
from organs.cli.options import flag, seconds
from organs.cli.outputs import SUFFIX
from organs.cli.plans import print_quick_look
from organs.cli.registries import local_registry, registry_address, selected_registry
from organs.cli.tables import print_table
from organs.registry.amounts import perplexity_text
from organs.registry.columns import CellKind, Column
from organs.registry.entities.plan import QUANTISED
from organs.registry.entities.validation import (
    CHANGE,
    DIVERGENCE_NOTES,
    RunReport,
    TextVerdict,
    VerdictReport,
    divergence_cells,
)
from organs.registry.settings import Settings
from organs.registry.validation.texts import ScoredText, built_in_texts, read_text

if TYPE_CHECKING:
    from organs.registry.entities.validation import QuickLook
    from organs.registry.validation.command import CommandRuntime
    from organs.registry.validation.comparison import RunnableModel, ValidationBudget
    from organs.registry.validation.llama import LlamaCpp


@click.command()
@click.argument("chimera", metavar="CHIMERA|QUANT|MODEL|FILE.gguf")
@click.option(
    "--base",
    metavar="MODEL|FILE.gguf",
    help="The model that it was made from. A FILE.gguf needs it; and a MODEL that was not composed here, unless it is "
    "a quantisation whose source is known.",
)
@click.option(
    "--donor",
    "donors",
    multiple=True,
    metavar="MODEL|FILE.gguf",
    help="A donor, to run beside it. Only with --base. Repeatable.",
)
@click.option(
    "--text",
    "paths",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A file, or a folder of files, with a text to score, instead of the built-in texts. Repeatable.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="TIME|TOKENS",
    help="How long to measure: a time such as 90s, 5m or 2h for all models, or a number such as 20000, the most tokens "
    "of each text. Can be given twice, once for each. [default: 10m]",
)
@click.option(
    "--runtime",
    "template",
    metavar="COMMAND",
    help="Run COMMAND instead of llama.cpp; it contains {model} and {text}, which become the paths of two files.",
)
@click.option(
    "--runtime-read",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Let COMMAND read this file or folder, and run programs in it. Repeatable.",
)
@click.option(
    "--runtime-write",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Let COMMAND read and write this file or folder. Repeatable.",
)
@flag("--runtime-processes", "Let COMMAND start other processes; a shell script needs this.")
@flag("--quick", "Take only a quick look: some seconds, no control, no verdict.")
@output_options(json="Print everything as JSON.", quiet="Print only the verdict, which is one word.")
def validate(
    chimera: str,
    base: str | None,
    donors: tuple[str, ...],
    paths: tuple[Path, ...],
    budgets: tuple[str, ...],
    template: str | None,
    runtime_read: tuple[Path, ...],
    runtime_write: tuple[Path, ...],
    runtime_processes: bool,
    quick: bool,
) -> int:
    """Run a chimera, its base, its donors and a control, and print the perplexity of each and a verdict.

    The verdict is one of: gains, coherent, degraded, inert, undecided, broken; for each kind of text and over all; or
    writes, for a runtime that only writes text. For a registered CHIMERA it is stored and shown in the catalog; with
    --base, nothing is stored. The exit status is 0 for every verdict, and 1 if no verdict was reached.

    All models score the same windows of 256 tokens, spread over each text. The command adds windows until each result
    is certain to 95%, or until the budget is spent.

    A QUANT, a quantisation of a registered model or of the base, is compared with its source token by token: its
    divergence from it comes first.

    The control is a copy of the chimera in which the grafted feed-forward tensors are replaced with zeros. If the
    chimera is no better than the control, its grafted tensors are useless. With --base, the feed-forward tensors that
    differ from the base count as grafted.

    The models run in llama.cpp. To install it, run pip install '.[validate]' in the project's folder. With
    --runtime, COMMAND runs instead, once for each window. Its last line must be a JSON object such as
    {"perplexity": 26.7}. With {prompt} instead of {text}, COMMAND writes a text, and the command checks the text;
    no perplexity is measured. The process is confined. If it crashes, the verdict is `broken`. COMMAND can read the
    model, the text, the files whose paths it contains, and the programs and libraries of the system. It can write
    only to $HOME, which is an empty folder. It has no network. The options --runtime-read, --runtime-write and
    --runtime-processes allow more.
    """
    from organs.registry.sandbox.process import ProcessLimits, Sandbox
    from organs.registry.validation.command import CommandRuntime
    from organs.registry.validation.runtime import NoVerdict

    texts = [read_text(path) for path in paths] or None
    if quick:
        if template is not None:
            raise click.UsageError("--quick compares token by token, which a COMMAND cannot do: leave out --runtime")
        if len(budgets) > 1 or donors:
            raise click.UsageError("--quick takes one --budget, a time, and no --donor: only the base is run beside it")
        look = _quick_look(chimera, base, texts, budgets[0] if budgets else None)
        if not printed_for_programs(look, [look.word]):
            print_quick_look(look)
        return 0
    if template is None and (runtime_read or runtime_write or runtime_processes):
        raise click.UsageError("--runtime-read, --runtime-write and --runtime-processes need --runtime COMMAND")
    required = Settings.from_environment(os.environ).requires_sandbox
    sandbox = Sandbox(read=runtime_read, write=runtime_write, processes=runtime_processes, required=required)
    runtime = None if template is None else CommandRuntime(template, ProcessLimits(), sandbox)
    try:
        report = _validated(chimera, base, donors, texts, runtime, _budget(budgets))
    except NoVerdict as error:
        options = [] if runtime is None else runtime.missing_options()
        if not options:
            raise
        print_failure(error)
        print_hint("to allow it", again(*options))
        return error.exit_code
    if not printed_for_programs(report, [report.verdict]):
        _print_verdict(report)
    return 0


def _validated(
    chimera: str,
    base: str | None,
    donors: Sequence[str],
    texts: Sequence[ScoredText] | None,
    runtime: CommandRuntime | None,
    budget: ValidationBudget | None,
) -> VerdictReport:
    """Return the verdict on a registered chimera, or on another model beside its base."""
    from organs.registry.interface import job_steps
    from organs.registry.validation.comparison import act_between
    from organs.registry.validation.comparison import validate as compare
    from organs.registry.validation.weights import grafted_organs

    if base is not None or chimera.endswith(SUFFIX):
        with status_line("validate") as progress, _beside_base(chimera, base, donors) as (own, other, *others):
            with own.placed() as path, other.placed() as base_path:
                grafted = grafted_organs(path, base_path)
            act = act_between(own, other)
            return compare(
                own,
                other,
                others,
                grafted,
                texts or list(built_in_texts()),
                runtime or _llama_cpp(),
                budget,
                job_steps(progress),
                act=act,
            )
    if donors:
        raise click.UsageError("--donor needs --base; the registry knows the base and the donors of a chimera")
    if registry_address() is not None and (texts is not None or runtime is not None):
        raise click.UsageError("--text and --runtime are for a local registry: a remote registry uses its own")
    with selected_registry() as registry:
        registry.versions(chimera, limit=1)  # a name that does not exist is reported before the runtime is loaded
        with status_line("validate") as progress:
            return registry.validate(chimera, budget=budget, texts=texts, runtime=runtime, progress=progress)


def _quick_look(chimera: str, base: str | None, texts: Sequence[ScoredText] | None, time: str | None) -> QuickLook:
    """Return a quick look at a registered chimera, or at another model beside its base."""
    from organs.registry.interface import job_steps
    from organs.registry.validation.comparison import act_between
    from organs.registry.validation.quick import KINDS, SECONDS, LookBudget, quick_look

    budget = LookBudget(SECONDS if time is None else seconds(time))
    with status_line("quick look") as progress:
        if base is not None or chimera.endswith(SUFFIX):
            with _beside_base(chimera, base, ()) as (own, other):
                look = quick_look(
                    own,
                    other,
                    texts or built_in_texts(KINDS),
                    _llama_cpp(),
                    {},
                    budget,
                    job_steps(progress),
                    is_quantised=act_between(own, other) == QUANTISED,
                )
            return structs.replace(look, model=own.name, base=base or "")
        with selected_registry() as registry:
            return registry.quick_look(chimera, budget=budget, texts=texts, progress=progress)


def _llama_cpp() -> LlamaCpp:
    from organs.registry.validation.llama import LlamaCpp

    return LlamaCpp(requires_sandbox=Settings.from_environment(os.environ).requires_sandbox)


def _budget(budgets: Sequence[str]) -> ValidationBudget | None:
    """Return the budget of the options; None for the default one. Raises BadInput for numbers out of range."""
    from organs.registry.validation.comparison import ValidationBudget  # loads NumPy, which the help does not need

    values: dict[str, Any] = {}
    for text in budgets:
        name, value = ("tokens", int(text)) if text.isdecimal() else ("seconds", seconds(text))
        if name in values:
            raise click.UsageError("--budget: give a time such as 90s, 5m or 2h, or a number of tokens, or both")
        values[name] = value
    return ValidationBudget(**values) if values else None


@contextmanager
def _beside_base(chimera: str, base: str | None, donors: Sequence[str]) -> Iterator[list[RunnableModel]]:
    """Open a model, its base and its donors, which are files or registered; without names, no registry is opened."""
    from organs.registry.validation.comparison import file_candidate
    from organs.registry.validation.run import registered_candidate

    if base is None:
        raise click.UsageError("give --base: the model that FILE.gguf was made from")
    names = [chimera, base, *donors]
    if all(name.endswith(SUFFIX) for name in names):
        yield [file_candidate(Path(name)) for name in names]
        return
    with local_registry() as registry:
        yield [
            file_candidate(Path(name))
            if name.endswith(SUFFIX)
            else registered_candidate(registry.catalog, registry.blobs, name)
            for name in names
        ]


def _print_verdict(report: VerdictReport) -> None:
    click.echo(f"{plain(report.model)}: {report.verdict}\n")
    print_sentence(report.reason)
    click.echo()
    if report.scored_texts:
        roles = ("base", "chimera") if report.from_source is None else ("source", "quantised")
        runs = list(zip(roles, (report.base, report.chimera), strict=True))
        runs += [("control", report.control)] if report.control else []
        donors = [
            (f"donor {number}" if number > 1 else "donor", run) for number, run in enumerate(report.donors, start=1)
        ]
        runs += donors
        columns = [
            Column("name", "text"),
            *(_divergence_columns(report) if report.from_source is not None else ()),
            *(
                Column(role, kind=CellKind.FIGURE, rank=max(0, number - 1), shown=partial(_figure, run))
                for number, (role, run) in enumerate(runs)  # the base and the chimera are never left out
            ),
            Column("change", CHANGE, CellKind.FIGURE, shown="change"),
            Column("verdict", shown=lambda text: text.verdict if text.counts else f"{text.verdict}, does not count"),
            Column("tokens", kind=CellKind.COUNT, rank=99, shown=lambda text: text.tokens or 0),
        ]
        print_table(columns, report.texts)
        click.echo()
        for role, run in runs:
            if run.failure is not None:
                print_sentence(f"{role}: {run.failure.reason}.")
        speed = f", {report.tokens_per_second:,.0f} tokens a second." if report.tokens_per_second else "."
        print_sentence(
            (
                "All numbers are perplexities: lower is better. The change is that of the chimera against its base, "
                "with its interval of 95%: −5% means a gain of 5%."
                if report.from_source is None
                else f"{DIVERGENCE_NOTES} That of the perplexity is the one of 95%."
            )
            + f" Base: {report.base.name}."
            + "".join(f" {role.capitalize()}: {run.name}." for role, run in donors)
            + (f" Control: {len(report.zeroed)} {report.zeroed_because} tensors zeroed." if report.control else "")
            + (f" {report.seconds:.0f} s in" if report.seconds is not None else " Run in")
            + f" {report.runtime}{speed}"
        )
    if written := report.chimera.written:
        click.echo("\nA text that it wrote:\n")
        click.echo("\n".join(f"    {plain(line)}" for line in written.splitlines()))


def _divergence_columns(report: VerdictReport) -> list[Column]:
    """Return the columns of a quantisation that lead: its divergence from the base."""

    def shown(heading: str, text: TextVerdict) -> str:
        return divergence_cells(text)[heading]

    headings = divergence_cells(report.texts[0])
    return [Column(heading, kind=CellKind.FIGURE, shown=partial(shown, heading)) for heading in headings]


def _figure(run: RunReport, text: TextVerdict) -> str:
    score = next((score for score in run.scores if score.text == text.name), None)
    if score is None or not score.tokens:
        return "–"
    return "none" if score.perplexity is None else perplexity_text(score.perplexity)
