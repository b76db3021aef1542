"""`organ models` and `organ show`: look at what is registered."""

from __future__ import annotations

import click
from sqlalchemy.orm import Session

from organs.cli.chimeras import print_chimera, print_made
from organs.cli.console import plain, print_json, print_table
from organs.cli.elsewhere import values_there
from organs.cli.place import folder_registry, remote_registry
from organs.cli.querying import QueryCommand, print_more
from organs.cli.shown import print_model, print_organ
from organs.cli.tables import NONFINITE_MARK
from organs.registry.catalog.queries.composing import model_by_digest
from organs.registry.catalog.queries.model_search import search_models
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.catalog.queries.organs import organs_by_prefix
from organs.registry.catalog.queries.published import versions
from organs.registry.catalog.search import MODELS, Query, parse_query
from organs.registry.catalog.search.cursor import PAGE_MAX
from organs.registry.catalog.tables import Model
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import looks_like_prefix
from organs.registry.errors import BadName, NotFound
from organs.registry.names import parse_model_name
from organs.registry.present.chimera import chimera_values
from organs.registry.present.models import figures, model_page, models_values
from organs.registry.present.organs import organ_page
from organs.registry.present.published import versions_values
from organs.registry.present.text import count_text, size_text, theta_text
from organs.registry.present.values import Values

VERSIONS_SHOWN = 10
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
    asked = parse_query(text, MODELS, "-theta" if rank else None)
    values, numbers = _listed(text, asked, rank=rank, limit=limit, after=after)
    for note in values["notes"]:
        click.echo(f"note: {plain(note)}", err=True)
    if as_json:
        print_json(values)
        return
    if quiet:
        for model in values["items"]:
            click.echo(model["name"])
    else:
        _print_models(values["items"], None if text or rank else numbers)
    if values["next"] is not None:
        options = [*(["--rank"] if rank else []), *(["-q"] if quiet else []), "--limit", str(limit)]
        print_more("models", text, options, values["next"])


@click.command()
@click.argument("what", metavar="MODEL|DIGEST")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
def show(what: str, as_json: bool) -> None:
    """Show a model (namespace/name, with @version if need be), or an organ by 8 or more characters of its digest.

    A chimera is also found by sha256: and the digest of its lock, any model by that of its file. Of a chimera the
    recipe is shown, what was found and predicted, and the verdicts; of a computed organ, how it was made.
    """
    remote = remote_registry()
    if remote is not None:
        with remote:
            values = values_there(remote, what, VERSIONS_SHOWN)
    else:
        with folder_registry() as registry, registry.catalog.reading() as session:
            model = _model(session, what)
            values = organ_page(session, what) if model is None else _model_values(session, model)
    if as_json:
        print_json(values)
    elif "placements" not in values:
        print_organ(values)
        print_made(values["made"])
    else:
        print_model(values)
        if values["chimera"] is not None:
            print_chimera(values["chimera"])


def _listed(text: str, asked: Query, *, rank: bool, limit: int, after: str | None) -> tuple[Values, Values | None]:
    """A page of models, and the figures of the whole registry where they are known."""
    remote = remote_registry()
    if remote is not None:
        with remote:
            return remote.models_values(text, limit=limit, after=after, ranked=rank), None
    with folder_registry() as registry, registry.catalog.reading() as session:
        return models_values(search_models(session, asked, limit, after, ranked=rank)), figures(session)


def _model(session: Session, what: str) -> Model | None:
    """The model that `what` means; None where it can only be an organ."""
    if what.startswith("sha256:"):
        return _model_by_digest(session, what)
    try:
        return model_by_name(session, parse_model_name(what))
    except (BadName, NotFound):
        if not looks_like_prefix(what):
            raise
    return None


def _model_by_digest(session: Session, what: str) -> Model | None:
    """An organ comes first."""
    try:
        organs_by_prefix(session, what)
    except NotFound as no_organ:
        try:
            return model_by_digest(session, what)
        except NotFound:
            raise NotFound(f"{no_organ}, nor that of a model, of its file or of its lock") from None
    return None


def _model_values(session: Session, model: Model) -> Values:
    others = versions_values(versions(session, model, REACHABLE_STATES, VERSIONS_SHOWN))
    since = {"versions": others["items"], "versions_left_out": others["left_out"]}
    return model_page(session, model) | since | {"chimera": chimera_values(session, model)}


def _print_models(found: list[Values], numbers: Values | None) -> None:
    """The table, and below it the registry's `numbers` where all of it was asked for."""
    if not found:
        empty = numbers is not None and not numbers["models"]
        click.echo("No models yet. Try: organ ingest FILE.gguf" if empty else "Nothing matches.", err=True)
        return
    columns = ("model", "kind", "architecture", "tensors", "parameters", "size", "θ", "license")
    print_table(columns, [_model_row(model) for model in found], _NUMBERS)
    if numbers is not None:
        plain_size, stored = size_text(numbers["size_bytes"]), size_text(numbers["stored_bytes"])
        click.echo(f"{numbers['models']} models; {numbers['blobs']} blobs, {plain_size} stored in {stored}", err=True)


def _model_row(model: Values) -> tuple[object, ...]:
    kind = model["kind"] if model["complete"] else "partial"
    return (
        model["name"],
        f"{kind} {NONFINITE_MARK}" if model["nonfinite_tensors"] else kind,
        model["architecture"] or "–",
        model["tensors"],
        count_text(model["parameters"]),
        size_text(model["size_bytes"]),
        theta_text(model["mean_theta"]),
        model["license"] or "–",
    )
