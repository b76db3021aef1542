"""`organ models` and `organ show`: look at what is registered."""

from __future__ import annotations

import shlex

import click

from cli.console import plain, print_json, print_table
from cli.querying import QueryCommand
from cli.relatives import print_lineage
from registry.catalog.queries.model_search import search_models
from registry.catalog.queries.models import model_by_name
from registry.catalog.queries.search import PAGE_MAX
from registry.catalog.search import MODELS, parse_query
from registry.digest import looks_like_prefix
from registry.errors import BadName, NotFound
from registry.names import parse_model_name
from registry.present.models import figures, model_page, model_summary
from registry.present.organs import organ_page
from registry.present.text import count_text, share_text, size_text, theta_text
from registry.present.values import Values
from registry.registry import Registry

_NUMBERS = ("tensors", "parameters", "size", "θ", "|Z|", "spectral", "rank", "block")


def _fields_help() -> str:
    return "\n".join(f"  {field.name + ':':10} {field.meaning}" for field in MODELS.fields.values())


@click.command(
    cls=QueryCommand,
    epilog="\b\nFields\n"
    + _fields_help()
    + f"\n  sort:      {', '.join(MODELS.sorts)}; -theta is the highest first\n\n"
    "Any other word is looked for in names, titles, tags and descriptions.",
)
@click.argument("query", nargs=-1)
@click.option("--rank", is_flag=True, help="Complete models only, by falling mean θ.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, PAGE_MAX), help="Models on a page.")
@click.option("--after", metavar="PLACE", help="Go on behind a page: its `next`.")
@click.option("--json", "as_json", is_flag=True, help="The list as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print names only.")
def models(query: tuple[str, ...], rank: bool, limit: int, after: str | None, as_json: bool, quiet: bool) -> None:
    """List the registered models, newest first, or those that a query finds.

    θ is the mean over the model's tensors: the shape of its weights' distributions between noise (0°) and signal
    (90°). It does not say how good the model is.
    """
    text = " ".join(query)
    with Registry.open() as registry, registry.catalog.reading() as session:
        asked = parse_query(text if not rank or "sort:" in text else f"{text} sort:-theta", MODELS)
        page = search_models(session, asked, limit, after, ranked=rank)
        found = [model_summary(model) for model in page.items]
        numbers = figures(session)
    for note in page.notes:
        click.echo(f"note: {plain(note)}", err=True)
    if as_json:
        print_json({"items": found, "next": page.next, "notes": list(page.notes)})
        return
    if quiet:
        for model in found:
            click.echo(model["name"])
    else:
        _print_models(found, numbers)
    if page.next is not None:
        words = " ".join([*(["--rank"] if rank else []), *([shlex.quote(text)] if text else [])])
        click.echo(f"more: organ models {words} --limit {limit} --after {page.next}".replace("  ", " "), err=True)


@click.command()
@click.argument("what", metavar="MODEL|DIGEST")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
def show(what: str, as_json: bool) -> None:
    """Show a model (namespace/name, with @version if need be), or an organ by 8 or more characters of its digest."""
    with Registry.open() as registry, registry.catalog.reading() as session:
        model = None
        if not what.startswith("sha256:"):
            try:
                model = model_by_name(session, parse_model_name(what))
            except (BadName, NotFound):
                if not looks_like_prefix(what):
                    raise
        values = organ_page(session, what) if model is None else model_page(session, model)
    if as_json:
        print_json(values)
    elif model is None:
        _print_organ(values)
    else:
        _print_model(values)


def _print_models(found: list[Values], numbers: Values) -> None:
    if not numbers["models"]:
        click.echo("No models yet. Try: organ ingest FILE.gguf", err=True)
        return
    columns = ("model", "kind", "architecture", "tensors", "parameters", "size", "θ", "license")
    print_table(columns, [_model_row(model) for model in found], _NUMBERS)
    plain_size, stored = size_text(numbers["size_bytes"]), size_text(numbers["stored_bytes"])
    click.echo(f"{numbers['models']} models; {numbers['blobs']} blobs, {plain_size} stored in {stored}", err=True)


def _model_row(model: Values) -> tuple[object, ...]:
    return (
        model["name"],
        model["kind"] if model["complete"] else "partial",
        model["architecture"] or "–",
        model["tensors"],
        count_text(model["parameters"]),
        size_text(model["size_bytes"]),
        theta_text(model["mean_theta"]),
        model["license"] or "–",
    )


def _print_model(values: Values) -> None:
    click.echo(f"{values['name']}  {plain(values['title'] or '')}".rstrip())
    if values["description"]:
        click.echo(plain(values["description"]))
    size = size_text(values["size_bytes"])
    content = f"{count_text(values['parameters'])} parameters in {values['tensors']} tensors, {size}"
    click.echo(f"{values['kind']}, {plain(values['architecture'] or 'no architecture')}, {content}")
    for note in (*values["flags"], *values["unassemblable"]):
        click.echo(f"note: {plain(note)}")
    click.echo()
    rows = [
        (
            kind["type"],
            kind["tensors"],
            size_text(kind["size_bytes"]),
            theta_text(kind["mean_theta"]),
            share_text(kind["mean_spectral_signal"]),
        )
        for kind in values["types"]
    ]
    print_table(("type", "tensors", "size", "θ", "spectral"), rows, _NUMBERS)
    print_lineage(values)
    click.echo()
    organs = [_placement_row(placement) for placement in values["placements"]]
    print_table(("tensor", "type", "dtype", "shape", "θ", "|Z|", "spectral", "organ"), organs, _NUMBERS)


def _placement_row(placement: Values) -> tuple[object, ...]:
    return (
        placement["name"],
        placement["type"],
        placement["dtype"],
        placement["shape"],
        theta_text(placement["theta"]),
        share_text(placement["magnitude"]),
        share_text(placement["spectral_signal"]),
        placement["digest"][:12],
    )


def _print_organ(values: Values) -> None:
    click.echo(f"sha256:{values['digest']}")
    gain = f"{size_text(values['size_bytes'])}, stored in {size_text(values['stored_bytes'])} by {values['codec']}"
    click.echo(f"{values['dtype']} {values['shape']}, {values['elements']} values, {gain}, {values['state']}")
    for other in values["also"]:
        click.echo(f"the same bytes also stand as {other['dtype']} {other['shape']}")
    for reading in values["measurements"]:
        click.echo(f"\n{reading.pop('method')}")
        for name, value in reading.items():
            shown = f"{value:.4f}" if isinstance(value, float) else value
            click.echo(f"  {name.replace('_', ' '):20} {shown}")
    click.echo()
    rows = [(place["model"], place["name"], place["type"]) for place in values["places"]]
    print_table(("model", "tensor", "type"), rows)
