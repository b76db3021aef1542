"""`organ validate`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import local_registry, selected_registry
from organs.cli.console import plain, print_json, print_sentence, print_table, status_line
from organs.registry.entities.verdict import RunReport, TextVerdict, VerdictReport
from organs.registry.sandbox.process import Limits, Sandbox
from organs.registry.settings import Settings
from organs.registry.validation.command import CommandRuntime
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.runtime import (
    TOKENS_DEFAULT,
    TOKENS_MAX,
    TOKENS_MIN,
    Runtime,
)
from organs.registry.validation.texts import Text, built_in_texts, read_text
from organs.registry.validation.verdict import (
    change_text,
    figure,
    lengths_text,
)

if TYPE_CHECKING:
    from organs.registry.validation.comparison import Candidate, Event

SECONDS_DEFAULT = 600
SECONDS_MAX = 24 * 3600


@click.command()
@click.argument("chimera", metavar="CHIMERA|FILE.gguf")
@click.option("--base", metavar="MODEL|FILE.gguf", help="What FILE.gguf was made from. A registered chimera knows it.")
@click.option("--donor", "donors", multiple=True, metavar="MODEL|FILE.gguf", help="To stand beside FILE.gguf.")
@click.option("--text", "paths", multiple=True, type=click.Path(path_type=Path), help="A text, not the built-in ones.")
@click.option(
    "--tokens",
    type=click.IntRange(TOKENS_MIN, TOKENS_MAX),
    default=TOKENS_DEFAULT,
    show_default=True,
    help="Tokens of each text that are scored.",
)
@click.option("--runtime", "template", metavar="COMMAND", help="Another runtime: a command with {model} and {text}.")
@click.option(
    "--runtime-read", multiple=True, type=click.Path(path_type=Path), help="A file or folder that COMMAND may read."
)
@click.option("--runtime-write", multiple=True, type=click.Path(path_type=Path), help="The same, to read and write.")
@click.option("--runtime-processes", is_flag=True, help="COMMAND may start processes, as a shell script does.")
@click.option(
    "--seconds",
    type=click.IntRange(1, SECONDS_MAX),
    help=f"How long one model may take. [default: {SECONDS_DEFAULT}]",
)
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict's word only.")
def validate(
    chimera: str,
    base: str | None,
    donors: tuple[str, ...],
    paths: tuple[Path, ...],
    tokens: int,
    template: str | None,
    runtime_read: tuple[Path, ...],
    runtime_write: tuple[Path, ...],
    runtime_processes: bool,
    seconds: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a chimera in a real runtime, beside its base, its donors and a control, and say what it is worth.

    The runtime is llama.cpp, by the extra `validate` (pip install '.[validate]' in the project's folder), or a
    COMMAND that prints {"perplexity": 26.7} as its last line. It runs in a confined process: a crash is a verdict,
    `broken`. COMMAND reads the model, the text, the files that it names, and the system's programs and libraries; it
    writes only into $HOME, an empty folder, and has no network. --runtime-read, --runtime-write and --runtime-processes
    grant more.
    The control is the chimera with the grafted feed-forward organs zeroed (of a FILE.gguf, those that are not its
    base's); without it, a graft that carries nothing would pass.

    The verdict on a registered CHIMERA is kept and shown in the catalog. It is one of: gains, coherent, degraded,
    inert, undecided, broken. Exit status 0 whatever the verdict; 1 when there is none.
    """
    from organs.ingest.sources import GGUF_SUFFIX

    texts = [read_text(path) for path in paths] or None
    granted = Sandbox(read=runtime_read, write=runtime_write, processes=runtime_processes)
    runtime = _runtime(template, seconds, granted)
    with status_line("validate", quiet=quiet or as_json) as say:
        if chimera.endswith(GGUF_SUFFIX):
            report = _validate_file(Path(chimera), base, donors, texts, runtime, tokens, say)
        elif base or donors:
            raise click.UsageError("--base and --donor are for a FILE.gguf: a registered chimera knows its own")
        else:
            with selected_registry() as registry:
                report = registry.validate(chimera, tokens=tokens, texts=texts, runtime=runtime, progress=say)
    _print(report, as_json=as_json, quiet=quiet)


def _runtime(template: str | None, seconds: int | None, granted: Sandbox) -> Runtime | None:
    """Return the runtime of the options; None for the default one."""
    if template is None and seconds is None and granted == Sandbox():
        return None
    limits = Limits(wall_seconds=float(SECONDS_DEFAULT if seconds is None else seconds))
    required = Settings.from_environment(os.environ).requires_sandbox
    if template is not None:
        return CommandRuntime(template, limits, replace(granted, required=required))
    if granted != Sandbox():
        raise click.UsageError("--runtime-read, --runtime-write and --runtime-processes belong to --runtime")
    return LlamaCpp(limits, requires_sandbox=required)


def _validate_file(
    path: Path,
    base: str | None,
    donors: Sequence[str],
    texts: Sequence[Text] | None,
    runtime: Runtime | None,
    tokens: int,
    say: Callable[[str], None],
) -> VerdictReport:
    from organs.registry.validation.comparison import CHANGED, file_candidate
    from organs.registry.validation.comparison import validate as compare
    from organs.registry.validation.run import RunResult, verdict_report
    from organs.registry.validation.weights import grafted_organs

    def report_step(event: Event) -> None:
        say(f"{event.role}, {event.action}")

    if base is None:
        raise click.UsageError("--base is needed: what was FILE.gguf made from?")
    if runtime is None:
        runtime = LlamaCpp(requires_sandbox=Settings.from_environment(os.environ).requires_sandbox)
    with _candidates([base, *donors]) as others:
        own = file_candidate(path)
        with others[0].placed() as base_path:
            grafted = grafted_organs(path, base_path)
        scored = texts or list(built_in_texts())
        validation = compare(own, others[0], others[1:], grafted, scored, runtime, tokens, report_step, act=CHANGED)
    return verdict_report(RunResult(path.name, base, tuple(donors), validation))


@contextmanager
def _candidates(names: Sequence[str]) -> Iterator[list[Candidate]]:
    """Files, and models of the registry, which is opened only if one is named."""
    from organs.ingest.sources import GGUF_SUFFIX
    from organs.registry.validation.comparison import file_candidate
    from organs.registry.validation.run import registered_candidate

    if all(name.endswith(GGUF_SUFFIX) for name in names):
        yield [file_candidate(Path(name)) for name in names]
        return
    with local_registry() as registry:
        yield [
            file_candidate(Path(name))
            if name.endswith(GGUF_SUFFIX)
            else registered_candidate(registry.catalog, registry.blobs, name)
            for name in names
        ]


def _print(report: VerdictReport, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(report)
    elif quiet:
        click.echo(report.verdict)
    else:
        click.echo(f"{plain(report.model)}: {report.verdict}\n")
        print_sentence(report.reason)
        click.echo()
        _print_scores(report)
        if written := report.chimera.written:
            click.echo("\nIt wrote:\n")
            click.echo("\n".join(f"    {plain(line)}" for line in written.splitlines()))


def _print_scores(report: VerdictReport) -> None:
    texts = [text.name for text in report.texts]
    rows = []
    for role, one in (("base", report.base), *(("donor", one) for one in report.donors)):
        rows.append([role, one.name, *_figures(one, texts)])
    rows.append(["chimera", report.model, *_figures(report.chimera, texts)])
    if report.control:
        zeroed = f"{len(report.zeroed)} {report.zeroed_because} organs zeroed"
        rows.append(["control", zeroed, *_figures(report.control, texts)])
    if any(text.ratio_error is not None for text in report.texts):
        rows.append(["difference", "chimera against base", *map(_difference, report.texts)])
    print_table(["", "model", *texts], rows, texts)
    lengths = lengths_text([(plain(text.name), text.tokens) for text in report.texts], report.tokens)
    click.echo(f"\nPerplexity and its standard error over {lengths}; {plain(report.runtime)}.")
    if report.tokens_remark:
        print_sentence(report.tokens_remark)


def _figures(one: RunReport, texts: Sequence[str]) -> Iterator[str]:
    scores = {score.text: score for score in one.scores}
    for text in texts:
        score = scores.get(text)
        if score is None:
            yield "does not run" if one.failure else "–"
        elif score.perplexity is None:
            yield "none"
        else:
            error = score.standard_error
            yield figure(score.perplexity) + (f" ± {figure(error)}" if error is not None else "")


def _difference(text: TextVerdict) -> str:
    """Return how far the chimera is from its base, with the paired standard error of that."""
    if text.ratio is None or text.ratio_error is None:
        return "–"
    return change_text(text.ratio, text.ratio_error)
