"""Catalog: `organ search`, `models`, `show`, `compare`, `report` and `storage`."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs
from rich.cells import cell_len

from organs.cli.arguments import (
    AFTER_HELP,
    QueryCommand,
    local_registry,
    print_more,
    print_notes,
    registry_address,
    selected_registry,
)
from organs.cli.console import (
    NONFINITE_MARK,
    PIPED_WIDTH,
    continued,
    hint_for,
    in_lines,
    plain,
    print_facts,
    print_hint,
    print_json,
    print_lines,
    print_sentence,
    print_table,
    shortened,
    status_line,
    table_text,
    terminal_width,
    waiting,
)
from organs.cli.details import ShownParts, print_model, print_organ
from organs.cli.outputs import check_free, output_option, write_text
from organs.cli.storage import print_storage
from organs.registry.amounts import (
    CHANGE_LEGEND,
    count_text,
    share_text,
    size_text,
    theta_text,
    weight_change_text,
)
from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.catalog.cursor import PAGE_MAX
from organs.registry.catalog.vocabulary import BIN_DEGREES, CHIMERA
from organs.registry.digest import looks_like_prefix
from organs.registry.entities.gain import MeasuredGain
from organs.registry.entities.model import ModelSummary
from organs.registry.entities.organ import FacetCounts, Organ, PlacedOrgan
from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT, ReportTable
from organs.registry.entities.storage import ROWS_DEFAULT as STORAGE_ROWS_DEFAULT
from organs.registry.entities.storage import ROWS_MAX as STORAGE_ROWS_MAX
from organs.registry.errors import BadInput, BadName, BadSource, Incomplete, NotFound, OrganError
from organs.registry.measures import BY_FIELD, MEASURES, THETA_LEGEND
from organs.registry.search.language import GAIN, LIKENESS, MODELS, ORGANS, Query, parse_query

if TYPE_CHECKING:
    from organs.registry.entities.about import Figures
    from organs.registry.entities.comparison import (
        ComparedBlock,
        ComparedOrgan,
        ComparedStack,
        ComparedType,
        Comparison,
    )
    from organs.registry.entities.report import Report, ReportSection
    from organs.registry.interface import Registry
    from organs.registry.models import ModelDetails


CHANGE = "change"
_USUAL = ("theta", "spectral_signal")
"""Measures in every table. Another measure is the first column if the list is sorted by it."""
_SEARCH_NUMBERS = ("size", LIKENESS, CHANGE, *(measure.label for measure in MEASURES.values()))
_BAR_WIDTH = 40
GAIN_MEANING = "gain +5.7%: the perplexity of the chimera is 5.7% lower than that of its base; more is better"
_VALUES_SHOWN = 12


@click.command(
    cls=QueryCommand,
    fields={field.name: field.meaning for field in ORGANS.fields.values()},
    epilog="Any other word is searched in the names, titles, tags and descriptions of models.\n\n\b\n"
    f"  slot:{','.join(EXAMPLE_SLOTS)}   either value       -type:norm      exclude a value\n"
    "  block:5-20             a range            theta>=45       a bound\n"
    "  sort:-spectral         the highest first  unique:organ    each organ once\n"
    "  like:DIGEST            organs like this one, the most similar first",
)
@click.argument("query", nargs=-1)
@click.option(
    "--limit", metavar="N", default=20, show_default=True, type=click.IntRange(1, PAGE_MAX), help="Organs on a page."
)
@click.option("--after", metavar="NEXT", help=AFTER_HELP)
@click.option(
    "--facets", is_flag=True, help="Also count the results by type, slot, tensor type, architecture, license and θ."
)
@click.option("--json", "as_json", is_flag=True, help="Print the page as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print digests only.")
def search(query: tuple[str, ...], limit: int, after: str | None, facets: bool, as_json: bool, quiet: bool) -> None:
    """Find organs (tensors): `organ search type:organ theta:35-60 sort:-spectral`.

    Without a query, the feed-forward organs with the most structure are listed; with --json or -q, all organs.

    An organ is any tensor of a model; `type:organ` means only feed-forward tensors. Without `sort:`, the organs with
    the highest θ come first. θ is the shape of the distribution of an organ's weights: 0° uniform, about 34° Gaussian
    (also untrained), 90° heavy tails. It does not tell how good an organ is.

    With a base (`fits:MODEL` or `kin:MODEL`), the table has the change of each organ from the organ of the base at the
    same place, and without `sort:` the most similar organs come first: `organ search fits:acme/base likeness:0.5-0.99`.
    """
    begins = not (query or as_json or quiet)
    text = ORGANS.start if begins else " ".join(query)
    parsed = parse_query(text)
    with selected_registry() as registry, waiting("search", quiet=as_json or quiet):
        page = registry.search(text, limit=limit, after=after)
        shows_total = page.next is not None and parsed.like is None and not as_json  # "more of 238"
        counts = registry.count(text) if facets or shows_total else None
    print_notes(page.notes)
    if as_json:
        print_json(structs.replace(page, facets=counts))
        return
    if quiet:
        for organ in page:
            click.echo(organ.digest)
    else:
        _print_organs(page.items, parsed)
        if begins:
            print_hint("feed-forward organs first; all organs", "organ search sort:-theta")
        if facets and counts is not None:
            _print_counts(counts, parsed)
    if page.next is not None:
        total = counts.total if counts is not None and counts.exact and not parsed.unique else None
        print_more("search", text, [*(["-q"] if quiet else []), "--limit", str(limit)], page.next, total)


def _print_organs(organs: tuple[PlacedOrgan, ...], parsed: Query) -> None:
    if not organs:
        print_sentence("Nothing matches. organ search --help lists the fields.", err=True)
        return
    firsts = _first_columns(parsed)
    columns = ["organ", "model", "tensor", "type", "dtype", *(MEASURES[name].label for name in _USUAL), "size"]
    rows = [[*(_first(name, organ) for name in firsts), *_row(organ)] for organ in organs]
    optional = ("type", "size", "dtype", MEASURES["spectral_signal"].label)
    print_table([*firsts.values(), *columns], rows, _SEARCH_NUMBERS, digests=("organ",), leave_out=optional)
    if any(organ.theta_caution for organ in organs):
        print_sentence(THETA_LEGEND, err=True)
    if GAIN in firsts:
        print_sentence(GAIN_MEANING, err=True)
    if LIKENESS in firsts:
        print_sentence("likeness: 1 for the same weights, below 0.2 for unrelated weights", err=True)
    if CHANGE in firsts:
        print_sentence(CHANGE_LEGEND, err=True)


def _first_columns(parsed: Query) -> dict[str, str]:
    """Return the members that the table begins with, and their headings.

    They are the likeness to an organ or the change from a base, the measured gain if the query is about gains, and the
    member that the list is sorted by if no table shows it.
    """
    columns = {LIKENESS: LIKENESS} if parsed.like is not None else {CHANGE: CHANGE} if parsed.base is not None else {}
    columns |= {GAIN: GAIN} if parsed.mentions_gains else {}
    measure = None if parsed.like is not None else BY_FIELD.get(parsed.sort.field)
    return columns | ({measure.name: measure.label} if measure and measure.name not in _USUAL else {})


def _row(organ: PlacedOrgan) -> list[object]:
    numbers = [organ.theta_text, share_text(organ.spectral_signal), size_text(organ.size_bytes)]
    name = f"{organ.label} {NONFINITE_MARK}" if organ.nonfinite else organ.label
    return [organ.digest[:12], organ.model, name, organ.type, organ.dtype, *numbers]


def _first(name: str, item: PlacedOrgan | ModelSummary) -> str:
    """Return a member of a found organ or model as text."""
    value = getattr(item, name)
    if name == CHANGE:
        return weight_change_text(item.change, item.likeness)
    if isinstance(value, MeasuredGain) or name == GAIN:
        return "–" if value is None else plain(str(value))
    return MEASURES[name].text(value) if name in MEASURES else share_text(value)


def _print_counts(counts: FacetCounts, parsed: Query) -> None:
    about = "" if counts.exact else "about "
    total = "too many to count" if counts.total is None else f"{about}{counts.total:,} (each place of an organ counts)"
    click.echo(f"\nresults: {total}")
    if counts.uncounted:
        print_sentence(f"the counts below ignore these filters: {', '.join(counts.uncounted)}")
    facts = []
    for name, values in counts.fields.items():
        shown = list(values.items())[:_VALUES_SHOWN]
        more = f", and {len(values) - len(shown)} more" if len(values) > len(shown) else ""
        label = f"any {name}" if parsed.choices(name) else name  # its own filter is left out
        facts.append((f"{label}:", ", ".join(f"{value} {count:,}" for value, count in shown) + more))
    print_facts(facts)
    _print_histogram(counts, "any θ" if parsed.numbers("theta") or parsed.numbers("signal") else "θ")


def _print_histogram(counts: FacetCounts, label: str) -> None:
    by_bin = counts.theta_counts
    measured = [lower for lower, count in by_bin.items() if lower is not None and count]
    if measured:
        click.echo(f"{label}:")
    most = max(by_bin.values(), default=0)
    for lower in range(min(measured, default=0), max(measured, default=-1) + 1, BIN_DEGREES):
        count = by_bin.get(lower, 0)
        click.echo(
            f"{f'{lower}-{lower + BIN_DEGREES}°':>7} {'█' * round(_BAR_WIDTH * count / most):{_BAR_WIDTH}} {count:,}"
        )
    if unmeasured := by_bin.get(None):
        click.echo(f"   no θ {'█' * round(_BAR_WIDTH * unmeasured / most):{_BAR_WIDTH}} {unmeasured:,}")


_LIST_NUMBERS = (CHANGE, "tensors", "parameters", "size", "θ", "|Z|", "spectral", "rank", "block")


@click.command(
    cls=QueryCommand,
    fields={field.name: field.meaning for field in MODELS.fields.values()}
    | {"sort": f"{', '.join(MODELS.sorts)}; -theta is the highest first"},
    epilog="Any other word is searched in names, titles, tags and descriptions.",
)
@click.argument("query", nargs=-1)
@click.option("--rank", is_flag=True, help="List only complete models, the highest mean θ first.")
@click.option(
    "--limit", metavar="N", default=50, show_default=True, type=click.IntRange(1, PAGE_MAX), help="Models on a page."
)
@click.option("--after", metavar="NEXT", help=AFTER_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print names only.")
def models(query: tuple[str, ...], rank: bool, limit: int, after: str | None, as_json: bool, quiet: bool) -> None:
    """List the registered models, newest first. With a QUERY, list only the models that match it.

    `kin:MODEL` lists a model and its kin with their change from it, the most similar first.

    The column θ is the mean θ of the model's tensors: the shape of the distribution of their weights. It does not tell
    how good the model is. `organ verify` prints how many bytes a local registry stores.
    """
    text = " ".join(query)
    parse_query(text, MODELS)  # a mistake is reported before a registry is opened, which may make its folder
    with selected_registry() as registry, waiting("search", quiet=as_json or quiet):
        list_models = registry.ranked_models if rank else registry.models
        page = list_models(text, limit=limit, after=after)
        figures = None
        if not (text or rank or as_json or quiet):
            with suppress(OrganError):  # the list is useful without the totals below it
                figures = registry.figures()
    print_notes(page.notes)
    if as_json:
        print_json(page)
        return
    if quiet:
        for model in page:
            click.echo(model.name)
    else:
        _print_models(page.items, figures, parse_query(text, MODELS))
    if page.next is not None:
        options = [*(["--rank"] if rank else []), *(["-q"] if quiet else []), "--limit", str(limit)]
        print_more("models", text, options, page.next)


@click.command()
@click.argument("name", metavar="MODEL|DIGEST")
@click.option("--tensors", is_flag=True, help="Also print the tensors of the model, one line each.")
@click.option("--lineage", is_flag=True, help="Also print the models that it is related to, and the findings.")
@click.option("--recipe", is_flag=True, help="Also print the recipe, the screen and the verdicts of a chimera.")
@click.option("--measures", is_flag=True, help="Also print all measures of an organ, with their meanings.")
@click.option("--all", "everything", is_flag=True, help="Also print all of these.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def show(
    name: str, tensors: bool, lineage: bool, recipe: bool, measures: bool, everything: bool, as_json: bool
) -> None:
    """Show a model or an organ: what it is, its relatives, and what you can do with it.

    MODEL is NAMESPACE/NAME for the newest version, or NAMESPACE/NAME@VERSION. DIGEST is the SHA-256 of an organ; its
    first 8 characters are enough. With `sha256:` before it, DIGEST can also be that of a model's file or of a chimera's
    lock.

    For a computed organ, the command prints how the organ was computed.
    """
    with selected_registry() as registry, waiting("read", quiet=as_json):
        try:
            result = _model_or_organ(registry, name)
        except Incomplete as error:
            _print_incomplete(error, as_json=as_json)
            return
    parts = ShownParts(tensors or everything, lineage or everything, recipe or everything, measures or everything)
    if as_json:
        print_json(result)
    elif isinstance(result, Organ):
        print_organ(result, parts)
    else:
        print_model(result, parts)


def _print_incomplete(error: Incomplete, *, as_json: bool) -> None:
    if as_json:
        print_json({"name": error.name, "state": "incomplete", "shards": error.shards, "missing": error.missing})
    else:
        print_sentence(str(error))
        print_sentence(hint_for(error) or "", err=True)


def _model_or_organ(registry: Registry, name: str) -> ModelDetails | Organ:
    """Return the model or organ called `name`; of `sha256:` and a digest, an organ comes before a model."""
    if name.startswith("sha256:"):
        try:
            return registry.organ(name)
        except NotFound as no_organ:
            try:
                return _model_details(registry, name)
            except NotFound:
                raise NotFound(f"{no_organ}, nor that of a model, of its file or of its lock") from None
    try:
        return _model_details(registry, name)
    except Incomplete:
        raise
    except (BadName, NotFound):
        if not looks_like_prefix(name):
            raise
    return registry.organ(name)


def _model_details(registry: Registry, name: str) -> ModelDetails:
    from organs.registry.models import ModelDetails

    model = registry.model(name)
    others = registry.versions(model.name)
    return ModelDetails(
        **structs.asdict(model),
        versions=others.items,
        versions_left_out=others.left_out,
        chimera=None if model.lock_id is None else registry.chimera(model.lock_id),
    )


def _print_models(models: Sequence[ModelSummary], figures: Figures | None, parsed: Query) -> None:
    """Print a table of models, and below it the figures of the registry.

    The first columns are the change from the base of the query `parsed`, and the gain if it is about gains.
    """
    if not models:
        print_sentence(_no_models(parsed, is_empty=figures is not None and not figures.models), err=True)
        return
    columns = ("model", "kind", "architecture", "tensors", "parameters", "size", "θ", "license")
    firsts = [*([CHANGE] if parsed.base is not None else []), *([GAIN] if parsed.mentions_gains else [])]
    rows = [[*(_first(name, model) for name in firsts), *_model_row(model)] for model in models]
    optional = ("tensors", "architecture", "parameters", "kind", "license", "θ")
    print_table([*firsts, *columns], rows, _LIST_NUMBERS, leave_out=optional)
    if any(model.theta_caution for model in models):
        print_sentence(THETA_LEGEND, err=True)
    if CHANGE in firsts:
        print_sentence(CHANGE_LEGEND, err=True)
    if GAIN in firsts:
        print_sentence(GAIN_MEANING, err=True)
    if figures is not None:
        size = size_text(figures.size_bytes)
        models_text = "1 model" if figures.models == 1 else f"{figures.models:,} models"
        print_sentence(f"{models_text} with {figures.organs:,} different organs, {size}", err=True)


def _no_models(parsed: Query, *, is_empty: bool) -> str:
    """Return why a list of models is empty, and what to do next."""
    if is_empty:
        return f"No models yet. Try: organ {'ingest' if registry_address() is None else 'push'} FILE.gguf"
    if any(choice.values == (CHIMERA,) and not choice.negated for choice in parsed.choices("kind")):
        return "No chimera matches. To find donors for a model: organ compat BASE. To make one: organ compose RECIPE"
    return "Nothing matches. organ models --help lists the fields."


def _model_row(model: ModelSummary) -> tuple[object, ...]:
    return (
        model.name,
        f"{model.kind} {NONFINITE_MARK}" if model.nonfinite_tensors else model.kind,
        model.architecture or "–",
        model.tensors,
        *(count_text(model.parameters), size_text(model.size_bytes)),
        theta_text(model.mean_theta, model.theta_caution),
        model.license or "–",
    )


@click.command()
@click.option(
    "--limit",
    metavar="N",
    default=STORAGE_ROWS_DEFAULT,
    show_default=True,
    type=click.IntRange(1, STORAGE_ROWS_MAX),
    help="Print at most N families and N models.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def storage(limit: int, as_json: bool) -> None:
    """Show what the registry stores, how it is stored, and how many bytes this saves.

    Equal parts of models are stored once. A part is stored alone (compressed), by its difference to a parent of the
    same tensor type, or derived from a parent of a finer tensor type. Families and models with the most bytes on the
    disk come first. The column `own` has the bytes that only this model needs.

    On a server, this needs a token with the scope `admin`.
    """
    with selected_registry() as registry, waiting("storage", quiet=as_json):
        result = registry.storage(limit=limit)
    if as_json:
        print_json(result)
    else:
        print_storage(result)


ACTIONS = "actions"
PROSE_HEADINGS = ("meaning", "finding", "why not measured", "other members")
"""Last columns of report tables that have sentences."""
REPORT_LEAVES_OUT = (
    *(
        "parameters",
        "signal",
        "25%",
        "75%",
        "shape",
        "stored",
        "size",
        "caution",
        "deviation",
        "tensors",
        "type",
        "kind",
    ),
    *("elements", "new", "share", "median", "spectral", "matrix θ", "mean θ"),
)
"""Columns of report tables that a narrow terminal does without, the least important first."""
_FORMATS = ("text", "markdown", "json", "csv")
_BY_SUFFIX = {
    "": "text",
    ".txt": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
    ".csv": "csv",
}


@click.command()
@click.argument("model", required=False)
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), help="The format. [default: by the suffix of FILE, otherwise text]"
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--csv", "as_csv", is_flag=True, help="The same as --format csv: one table, chosen with --table.")
@click.option("--table", metavar="NAME", help="Print only this table. [default for CSV: ranking; for a MODEL, types]")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help=f"Print at most N rows of each list. [default: {ROWS_DEFAULT} models, {ORGANS_DEFAULT} tensors]",
)
@output_option("FILE", "Write the report to FILE.")
@click.option("--force", is_flag=True, help="Replace an existing FILE.")
def report(
    model: str | None,
    form: str | None,
    as_json: bool,
    as_csv: bool,
    table: str | None,
    limit: int | None,
    output: Path | None,
    force: bool,
) -> None:
    """Print a report on the registry or on one MODEL: tables of measures, with explanations.

    The report on the registry begins with the disk space that it saves, what you can do, and the families of models.
    Its tables are figures, actions, families, ranking, types, type_ranges, model_types, components, scale, wells,
    ingests and ingest_totals. The report on a model has model, notes, relatives, findings, dtypes, types, components,
    blocks, highest, wells, anomalies and methods.
    """
    forms = {*(["json"] if as_json else []), *(["csv"] if as_csv else []), *([form] if form else [])}
    if len(forms) > 1:
        raise click.UsageError("--json, --csv and --format exclude each other")
    output_form = forms.pop() if forms else _form_of(output)
    if output is not None:
        check_free(output, force=force)
    with selected_registry() as registry, waiting("report", quiet=output_form != "text"):
        result = registry.report(model, limit=limit)
    if table is not None:
        if table not in result.sections:
            raise click.UsageError(f"this report has no table {table!r}: it has {', '.join(result.sections)}")
        result = result.only(table)
    if output is None:
        _print(result, output_form)
        return
    with redirect_stdout(io.StringIO()) as printed:
        _print(result, output_form)
    write_text(output, printed.getvalue())
    print_sentence(f"written to {output}", err=True)


def _form_of(output: Path | None) -> str:
    """Return the format for the ending of the name of `output`; text without one."""
    suffix = output.suffix.lower() if output else ""
    if suffix not in _BY_SUFFIX:
        raise BadSource(
            f"{output}: a report is text (.txt), Markdown (.md), JSON (.json) or CSV (.csv); for another name, "
            "choose with --format"
        )
    return _BY_SUFFIX[suffix]


def _print(report: Report, form: str) -> None:
    from organs.registry.reports.formats import markdown, section_sheet, sheet

    if form == "json":
        print_json(report)
    elif form == "csv":
        keys, rows = section_sheet(report.sections[report.main])
        harmless = ([plain(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
        click.echo(sheet([plain(key) for key in keys], harmless), nl=False)
    elif form == "markdown":
        for line in markdown(report).splitlines():
            click.echo(plain(line))
    else:
        _print_text(report)


def _print_text(report: Report) -> None:
    _print_heading(report.title, "=")
    for key, section in report.sections.items():
        if key == report.main:
            _print_paragraphs(report.opening)
        click.echo()
        _print_heading(section.title, "-")
        if key == ACTIONS and isinstance(section, ReportTable) and section.items:
            _print_actions(section)
        else:
            _print_section(section)
    _print_paragraphs(report.closing)


def _print_heading(title: str, line: str) -> None:
    text = shortened(plain(title), terminal_width() or PIPED_WIDTH)
    click.echo(f"{text}\n{line * cell_len(text)}")


def _print_actions(section: ReportTable) -> None:
    """Print findings as sentences, each with its model and the command that helps."""
    _print_paragraphs(section.before)
    for row in section.items:
        about = "" if row["model"] is None else f"{row['model']}: "
        click.echo()
        print_sentence(f"{about}{row['finding']}", "- ")
        for line in continued(plain(row["command"]), terminal_width() or PIPED_WIDTH):
            click.echo(line)
    _print_paragraphs(section.after)


def _print_section(section: ReportSection) -> None:
    from organs.registry.reports.formats import grid
    from organs.registry.reports.words import explanations

    table = grid(section)
    headings = [plain(heading) for heading in table.headings]
    numbers = [heading for heading, right in zip(headings, table.right, strict=True) if right]
    prose = headings[-1] if headings[-1] in PROSE_HEADINGS else None
    optional = [heading for heading in REPORT_LEAVES_OUT if heading != headings[0]]  # the first one names the row
    lines, shown = table_text(headings, table.rows, numbers, prose=prose, leave_out=optional)
    left_out = set(headings) - set(shown)
    _print_paragraphs(explanations(section.before, left_out))
    if table.rows:
        click.echo()
        print_lines(lines)
    _print_paragraphs(explanations(section.after, left_out))


def _print_paragraphs(texts: Iterable[str]) -> None:
    for text in texts:
        click.echo("\n" + in_lines(plain(text)))


CHANGED_SHOWN = 10
EXPERTS_SHOWN = 8
NAMES_SHOWN = 10
BLOCKS_SHOWN = 100
_COMPARE_NUMBERS = ("θ first", "θ second", "difference", "likeness", "change", "compared", "block")


@click.command()
@click.argument("first", metavar="MODEL")
@click.argument("second", metavar="MODEL")
@click.option("--prove", is_flag=True, help="Also encode the source of a quantisation again, and compare all blocks.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole comparison as JSON, with every organ.")
def compare(first: str, second: str, prove: bool, as_json: bool) -> None:
    """Compare two models: the change of their weights by type and block, and their differences.

    The change is the energy of the difference of two matrices at the same place, as a share of their energy: 0 for the
    same weights, 1e-5 for a light fine-tune, 2 for unrelated models. The likeness is their correlation: 1 and 0. Both
    are estimated from 256 values of each organ, and do not tell which model is better.
    """
    from organs.registry.lineage import Kinship

    with selected_registry() as registry, waiting("compare", quiet=as_json):
        result = registry.compare(first, second)
    if prove:
        result = _proved(result)
    if as_json:
        print_json(result)
        return
    print_sentence(result.sentence if result.proof is None else result.proof.sentence)
    if result.is_comparable:
        _print_header(result)
        _print_types(result)
        _print_blocks(result)
        if result.kinship != Kinship.UNRELATED:  # otherwise neither was made from the other
            _print_changed(result)
            _print_experts(result)
        _print_left_out(result)
        _print_differences(result)


def _proved(result: Comparison) -> Comparison:
    """Return a comparison with the proof that one model is the quantisation of the other, or with other blocks."""
    with local_registry() as registry, status_line("prove", quiet=False) as say:
        done = 0

        def report(size: int) -> None:
            nonlocal done
            done += size
            say(f"{size_text(done)} compared")

        proof = registry.prove(result.first, result.second, report)
    if proof is None:
        reason = "neither is a quantisation of the other, or its tensor types need the extra quantize"
        raise BadInput(f"nothing can be proved of {result.first} and {result.second}: {reason}")
    return structs.replace(result, proof=proof)


def _print_header(result: Comparison) -> None:
    from organs.registry.lineage import CLOSE, RELATED

    organs = result.organs
    matrices = _both(organs.first_matrices, organs.second_matrices)
    print_sentence(
        f"Change: {weight_change_text(result.change, result.likeness)}, the energy of the difference as a share of "
        f"the energy of the weights, the mean over {organs.compared} of {matrices} matrices. 1e-5 is light tuning, "
        f"0.002 a rounding to 4 bits, 2 not related. Likeness: {share_text(result.likeness)}, the mean correlation: "
        f"{CLOSE} or more is close, below {RELATED} is not related."
    )
    if result.change is None:
        print_sentence(
            "A model was measured by an older version, so small changes are not resolved: organ measure --missing."
        )
    if not result.is_mostly_identical:  # otherwise the first sentence has the number
        print_sentence(
            f"Same to the last byte: {organs.identical} of {_both(organs.first, organs.second)} organs, with vectors."
        )


def _both(first: int, second: int) -> str:
    return str(first) if first == second else f"{first} and {second}"


def _print_types(result: Comparison) -> None:
    click.echo()
    print_sentence(
        f"By type: the mean θ of {result.first} and of {result.second}, and the likeness of their matrices. Vectors "
        "are not compared: unrelated models have similar ones."
    )
    rows = [
        (
            kind.type,
            theta_text(kind.first_theta, kind.first_caution),
            theta_text(kind.second_theta, kind.second_caution),
            "–" if kind.difference is None else f"{kind.difference:+.1f}°",
            *_likeness_and_change(kind),
            kind.compared,
        )
        for kind in result.types
    ]
    columns = ("type", "θ first", "θ second", "difference", "likeness", "change", "compared")
    print_table(columns, rows, _COMPARE_NUMBERS, leave_out=("compared", "difference"))
    if any(kind.first_caution or kind.second_caution for kind in result.types):
        print_sentence(THETA_LEGEND, err=True)


def _likeness_and_change(row: ComparedType | ComparedBlock | ComparedOrgan) -> tuple[str, str]:
    """Return the likeness, and the change between the two models: 0 for the same weights."""
    return share_text(row.likeness), weight_change_text(row.change, row.likeness)


def _print_blocks(result: Comparison) -> None:
    click.echo()
    print_sentence("By block: the mean over the block's matrices.")
    rows = [(block.label, *_likeness_and_change(block), block.compared) for block in result.blocks]
    print_table(("block", "likeness", "change", "compared"), rows[:BLOCKS_SHOWN], _COMPARE_NUMBERS)
    if len(rows) > BLOCKS_SHOWN:
        click.echo(f"… and {len(rows) - BLOCKS_SHOWN} more blocks, all of them with --json")


def _print_changed(result: Comparison) -> None:
    if not result.unequal:
        return
    click.echo()
    print_sentence(
        "Changed most: the matrices with the largest change. The change of a single organ is uncertain, by a tenth or "
        "more of it."
    )
    rows = [(organ.name, organ.type, *_likeness_and_change(organ)) for organ in result.unequal[:CHANGED_SHOWN]]
    print_table(("tensor", "type", "likeness", "change"), rows, _COMPARE_NUMBERS, leave_out=("type",))


def _print_experts(result: Comparison) -> None:
    if not result.stacks:
        return
    click.echo()
    print_sentence(f"Experts: {result.experts_sentence} With the change of each in brackets:")
    rows = [
        (stack.name, f"{stack.differ} of {stack.experts}", _expert_texts(stack))
        for stack in result.stacks[:CHANGED_SHOWN]
    ]
    print_table(("stack", "differ", "experts"), rows)
    if len(result.stacks) > CHANGED_SHOWN:
        click.echo(f"… and {len(result.stacks) - CHANGED_SHOWN} more stacks, all of them with --json")


def _expert_texts(stack: ComparedStack) -> str:
    shown = [
        f"{expert.expert} ({weight_change_text(expert.change, expert.likeness)})"
        for expert in stack.changed[:EXPERTS_SHOWN]
    ]
    more = [f"and {stack.differ - len(shown)} more"] if stack.differ > len(shown) else []
    return ", ".join([*shown, *more])


def _print_left_out(result: Comparison) -> None:
    _print_names(f"Only in {result.first}", result.only_first)
    _print_names(f"Only in {result.second}", result.only_second)
    differ = [f"{organ.name} ({_shape(organ.first)}, {_shape(organ.second)})" for organ in result.shapes_differ]
    _print_names("Other shapes", differ)


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _print_differences(result: Comparison) -> None:
    rows = [(row.what, row.first or "–", row.second or "–") for row in result.differs]
    if rows:
        click.echo()
        print_sentence("Other differences.")
        print_table(("property", "first", "second"), rows)


def _print_names(label: str, names: Sequence[str]) -> None:
    if names:
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        click.echo()
        print_sentence(f"{label}: {plain(', '.join(names[:NAMES_SHOWN]))}{more}")
