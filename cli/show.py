"""`organ models` and `organ show`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import (
    QueryCommand,
    any_registry,
    folder_registry,
    print_more,
    remote_registry,
)
from organs.cli.composing import print_changes, print_findings
from organs.cli.console import (
    NONFINITE_MARK,
    plain,
    print_json,
    print_prose,
    print_sentence,
    print_table,
)
from organs.cli.elsewhere import values_there
from organs.registry.catalog.search import MODELS, parse_query
from organs.registry.catalog.search.cursor import PAGE_MAX
from organs.registry.catalog.search.fields import PARTIAL
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import looks_like_prefix
from organs.registry.entities.chimera import Chimera
from organs.registry.entities.model import ModelPage, ModelSummary
from organs.registry.entities.organ import MadeOrgan, Measurement, Organ, PlacedOrgan
from organs.registry.entities.published import ModelVersion
from organs.registry.errors import BadName, NotFound
from organs.registry.measures import MEASURES
from organs.registry.names import parse_model_name
from organs.registry.present.text import count_text, share_text, size_text, theta_text
from organs.registry.present.values import Values

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from organs.registry.catalog.tables import Model

VERDICTS_SHOWN = 3
COMPUTED_SHOWN = 12


def print_chimera(chimera: Chimera) -> None:
    """Print what is known of a model because it was composed here."""
    click.echo(f"\nA chimera, lock sha256:{chimera.lock_id}")
    for parent in chimera.parents:
        given = ", ".join(parent.acts) or "its own organs"
        print_sentence(f"from {parent.model}, {parent.license or 'licence not said'}: {given}")
    click.echo()
    print_changes(chimera.changes)
    if chimera.computed:
        click.echo()
        for one in chimera.computed[:COMPUTED_SHOWN]:
            thetas = f"θ {theta_text(one.theta_before)} → {theta_text(one.theta)}"
            print_sentence(f"{one.name}: {_how_made(one)}, {thetas}")
        if len(chimera.computed) > COMPUTED_SHOWN:
            click.echo(f"… and {len(chimera.computed) - COMPUTED_SHOWN} more, with --json")
    click.echo("\nRecipe\n")
    for line in chimera.recipe_yaml.splitlines():
        click.echo(f"  {plain(line)}")
    click.echo()
    print_findings(chimera.findings)
    print_sentence(f"predicted: {chimera.prediction.sentence}")
    for verdict in chimera.verdicts[:VERDICTS_SHOWN]:
        when = f"{verdict.created_at:%Y-%m-%d %H:%M}"
        print_sentence(f"{verdict.verdict} in {verdict.runtime} on {when}: {verdict.reason}")
    if not chimera.verdicts:
        click.echo(f"not run yet: organ validate {chimera.model}")


def print_made(organs: Sequence[MadeOrgan]) -> None:
    """Print how organs were computed, a line each."""
    for one in organs:
        print_sentence(f"{_how_made(one)}, which has a θ of {theta_text(one.theta_before)}")


def _how_made(one: MadeOrgan) -> str:
    count = len(one.adapters)
    scales = ", ".join(f"{adapter.scale:g}" for adapter in one.adapters)
    merged = [f"{count} adapter{'s' if count > 1 else ''} merged at {scales}"] if count else []
    keep = f", keeping {one.keep:.0%} of the energy" if one.keep is not None else ""
    steps = [*merged, *([f"purified ({one.method}{keep})"] if one.method else [])] or ["encoded again"]
    return f"{' and '.join(steps)}, from {one.source.digest[:12]} ({one.source.dtype})"


FILES_SHOWN = 4
EDGES_SHOWN = 12
PARTIAL_MODEL = "partial model"
FACTS_SHOWN = ("licence", "context length", "vocabulary", "tokenizer")
_NUMBERS = ("tensors", "size", "θ", "|Z|", "spectral", "value")

_METHODS = {
    "z1": "the Z-measure: what the distribution of the weights looks like",
    "mp1": "the spectral reading: how far the matrix is from a random one",
}
_MEANINGS = {name: one.summary for name, one in MEASURES.items()} | {
    "sample_size": "values that were looked at",
    "entropy": "how evenly the values fill their range; noise has 0.95 and more",
    "kurtosis": "what sits in the tails beyond a bell curve; noise is within ±1.2",
    "coherence": "how unevenly the sorted values are spaced; noise has 0.5 and less",
    "mean": "of the values that were looked at, as are the next three",
    "nan_count": "values that are no number",
    "infinite_count": "values beyond all numbers",
    "constant": "whether all values are one",
}


def print_model(values: Values) -> None:
    """A model page: what it is, its types, its lineage, and a line an organ."""
    click.echo(f"{values['name']}  {plain(values['title'] or '')}".rstrip())
    if values["description"]:
        print_prose(values["description"])
    size = size_text(values["size_bytes"])
    content = f"{count_text(values['parameters'])} parameters in {values['tensors']} tensors, {size}"
    kind = PARTIAL_MODEL if values["kind"] == PARTIAL else values["kind"]
    click.echo(f"{kind}, {plain(values['architecture'] or 'no architecture')}, {content}")
    for note in (*values["flags"], *values["unassemblable"]):
        print_sentence(f"note: {note}")
    _print_facts(values)
    _print_state(values)
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
    columns = ("tensor", "type", "dtype", "shape", "θ", "|Z|", "spectral", "organ")
    print_table(columns, [_organ_row(organ) for organ in values["organs"]], _NUMBERS)


def _print_state(values: Values) -> None:
    """What became of it since it was published: its state, its use, and the other versions of its name."""
    if values["state"] != "visible":
        print_sentence(f"{values['state']} on {(values['changed_at'] or '')[:10]}: {values['state_reason'] or ''}")
    click.echo(f"{values['downloads']} downloads, grafted into {values['grafts']} chimeras")
    others: list[ModelVersion] = [one for one in values["versions"] if one.name != values["name"]]
    for one in others:
        state = "" if one.state == "visible" else f", {one.state}: {one.state_reason}"
        differ = "" if one.changes is None else f", {_differing(one.changes.changed)} from the one before"
        print_sentence(f"also {one.name}, {one.created_at:%Y-%m-%d}{differ}{state}")
    if values["versions_left_out"]:
        click.echo(f"and {values['versions_left_out']} older versions")


def _differing(count: int) -> str:
    return "1 organ differs" if count == 1 else f"{count} organs differ"


def print_organ(organ: Organ) -> None:
    """An organ: what it is, what was measured, and where it sits."""
    click.echo(f"sha256:{organ.digest}")
    gain = f"{size_text(organ.size_bytes)}, stored in {size_text(organ.stored_bytes)} by {plain(organ.codec)}"
    shape = "x".join(map(str, organ.shape))
    click.echo(f"{plain(organ.dtype)} {shape}, {organ.elements} values, {gain}, {plain(organ.state)}")
    if organ.nonfinite != 0:
        counted = "not counted yet" if organ.nonfinite is None else f"{organ.nonfinite:,}"
        click.echo(f"values that are NaN or infinite: {counted}")
    for other in organ.also:
        click.echo(f"the same bytes also stand as {plain(other.dtype)} {'x'.join(map(str, other.shape))}")
    for reading in organ.measurements:
        _print_reading(reading)
    if organ.measurements:
        click.echo()
        print_sentence("What these numbers do not say is in the documentation, under 'What the numbers mean'.")
    click.echo()
    print_table(("model", "tensor", "type"), [(place.model, place.name, place.type) for place in organ.places])
    print_made(organ.made)


def _print_facts(values: Values) -> None:
    """The licence, what a user of the model asks first, and its files; all metadata is in the JSON."""
    facts = [(name, values["facts"][name]) for name in FACTS_SHOWN if name in values["facts"]]
    facts += [
        ("file", f"{file['name']}, {size_text(file['size_bytes'])}, sha256:{file['sha256'][:12]}")
        for file in values["files"][:FILES_SHOWN]
    ]
    for name, text in facts:
        click.echo(f"{name:14}  {plain(text)}")
    if len(values["files"]) > FILES_SHOWN:
        click.echo(f"… and {len(values['files']) - FILES_SHOWN} more files, with --json")


def _organ_row(organ: PlacedOrgan) -> tuple[object, ...]:
    return (
        f"{organ.name} {NONFINITE_MARK}" if organ.nonfinite else organ.name,
        *(organ.type, organ.dtype, "x".join(map(str, organ.shape))),
        *(theta_text(organ.theta), share_text(organ.magnitude), share_text(organ.spectral_signal)),
        organ.digest[:12],
    )


def _print_reading(reading: Measurement) -> None:
    method = plain(reading.method)
    click.echo(f"\nmethod {method}, {_METHODS[method]}" if method in _METHODS else f"\nmethod {method}")
    rows = [
        (name.replace("_", " "), _reading_text(name, value), _MEANINGS.get(name, ""))
        for name, value in reading.readings().items()
    ]
    print_table(("number", "value", "what it is"), rows, _NUMBERS)
    if reading.reason is not None:
        print_sentence(f"not measured: {reading.reason}")


def _reading_text(name: str, value: object) -> str:
    if name == "theta" and isinstance(value, float):
        return theta_text(value)
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def print_lineage(values: Values) -> None:
    """The lineage and the findings of a model page, if there are any."""
    edges = values["lineage"]
    if edges:
        click.echo()
        print_sentence(
            "Lineage. Alike is the mean correlation of the weights at the same places: 1 the same, 0 strangers. What "
            "was measured has no direction."
        )
        rows = [
            (edge["direction"], edge["model"] or edge["text"], edge["relation"], edge["evidence"], *_alike(edge))
            for edge in edges[:EDGES_SHOWN]
        ]
        print_table(("kin", "model", "relation", "evidence", "alike", "matrices"), rows, ("alike", "matrices"))
        left_out = len(edges) - EDGES_SHOWN + values["lineage_left_out"]
        if left_out > 0:
            click.echo(f"… and {left_out} more, with --json")
    for finding in values["findings"]:
        print_sentence(f"{finding['severity']}: {finding['sentence']}")


def _alike(edge: Values) -> tuple[str, str]:
    return share_text(edge["likeness"]), str(edge["compared"] or "–")


VERSIONS_SHOWN = 10
_LIST_NUMBERS = ("tensors", "parameters", "size", "θ", "|Z|", "spectral", "rank", "block")


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
    parse_query(text, MODELS)
    page, numbers = _listed(text, rank=rank, limit=limit, after=after)
    for note in page.notes:
        click.echo(f"note: {plain(note)}", err=True)
    if as_json:
        print_json(page)
        return
    if quiet:
        for model in page:
            click.echo(model.name)
    else:
        _print_models(page.items, None if text or rank else numbers)
    if page.next is not None:
        options = [*(["--rank"] if rank else []), *(["-q"] if quiet else []), "--limit", str(limit)]
        print_more("models", text, options, page.next)


@click.command()
@click.argument("what", metavar="MODEL|DIGEST")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON.")
def show(what: str, as_json: bool) -> None:
    """Show a model (namespace/name, with @version if need be), or an organ by 8 or more characters of its digest.

    A chimera is also found by sha256: and the digest of its lock, any model by that of its file. Of a chimera the
    recipe is shown, what was found and predicted, and the verdicts; of a computed organ, how it was made.
    """
    from organs.registry.catalog.queries.organs import organ_detail

    values: Organ | Values
    remote = remote_registry()
    if remote is not None:
        with remote:
            values = values_there(remote, what, VERSIONS_SHOWN)
    else:
        with folder_registry() as registry, registry.catalog.reading() as session:
            model = _model(session, what)
            values = organ_detail(session, what) if model is None else _model_values(session, model)
    if as_json:
        print_json(values)
    elif isinstance(values, Organ):
        print_organ(values)
    else:
        print_model(values)
        if values["chimera"] is not None:
            print_chimera(values["chimera"])


def _listed(text: str, *, rank: bool, limit: int, after: str | None) -> tuple[ModelPage, Values | None]:
    """A page of models, and the figures of the whole registry where they are known."""
    from organs.registry.present.models import figures
    from organs.registry.registry import Registry

    with any_registry() as registry:
        list_models = registry.ranked_models if rank else registry.models
        page = list_models(text, limit=limit, after=after)
        if isinstance(registry, Registry):
            with registry.catalog.reading() as session:
                return page, figures(session)
        return page, None


def _model(session: Session, what: str) -> Model | None:
    """The model that `what` means; None where it can only be an organ."""
    from organs.registry.catalog.queries.models import model_by_name

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
    from organs.registry.catalog.queries.composing import model_by_digest
    from organs.registry.catalog.queries.organs import organs_by_prefix

    try:
        organs_by_prefix(session, what)
    except NotFound as no_organ:
        try:
            return model_by_digest(session, what)
        except NotFound:
            raise NotFound(f"{no_organ}, nor that of a model, of its file or of its lock") from None
    return None


def _model_values(session: Session, model: Model) -> Values:
    from organs.registry.catalog.queries.organs import organs_of_model
    from organs.registry.catalog.queries.published import versions
    from organs.registry.compose.chimeras import chimera_of_model
    from organs.registry.present.models import model_page

    others = versions(session, model, REACHABLE_STATES, VERSIONS_SHOWN)
    since = {"versions": others.items, "versions_left_out": others.left_out}
    return (
        model_page(session, model)
        | {"organs": organs_of_model(session, model)}
        | since
        | {"chimera": chimera_of_model(session, model)}
    )


def _print_models(found: Sequence[ModelSummary], numbers: Values | None) -> None:
    """The table, and below it the registry's `numbers` where all of it was asked for."""
    if not found:
        empty = numbers is not None and not numbers["models"]
        click.echo("No models yet. Try: organ ingest FILE.gguf" if empty else "Nothing matches.", err=True)
        return
    columns = ("model", "kind", "architecture", "tensors", "parameters", "size", "θ", "license")
    print_table(columns, [_model_row(model) for model in found], _LIST_NUMBERS)
    if numbers is not None:
        plain_size, stored = size_text(numbers["size_bytes"]), size_text(numbers["stored_bytes"])
        click.echo(f"{numbers['models']} models; {numbers['blobs']} blobs, {plain_size} stored in {stored}", err=True)


def _model_row(model: ModelSummary) -> tuple[object, ...]:
    return (
        model.name,
        f"{model.kind} {NONFINITE_MARK}" if model.nonfinite_tensors else model.kind,
        model.architecture or "–",
        model.tensors,
        *(count_text(model.parameters), size_text(model.size_bytes), theta_text(model.mean_theta)),
        model.license or "–",
    )
