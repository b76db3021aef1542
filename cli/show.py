"""`organ show`: a model or a tensor in detail. A summary comes first, then the parts that were requested."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import click
from msgspec import structs

from organs.cli.console import (
    first_of,
    merge_command,
    organ_command,
    output_options,
    plain,
    print_commands,
    print_facts,
    print_json,
    print_left_out,
    print_prose,
    print_remark,
    print_sentence,
    prints_json,
    shortened,
    status_line,
    terminal_width,
)
from organs.cli.hints import hint_for
from organs.cli.options import flag
from organs.cli.plans import print_changes, print_findings, print_quick_look, print_screen
from organs.cli.registries import selected_registry
from organs.cli.tables import print_table
from organs.registry.amounts import (
    count_text,
    plural_text,
    ranges_text,
    size_text,
    theta_text,
    weight_change_text,
)
from organs.registry.anatomy import type_name
from organs.registry.catalog.vocabulary import CHIMERA, PARTIAL
from organs.registry.columns import CellKind, Column, for_people
from organs.registry.digest import looks_like_prefix
from organs.registry.entities.lineage import EDGE_COLUMNS, RELATIVE, LineageEdge, merged_edges
from organs.registry.entities.model import TYPE_COLUMNS, Model
from organs.registry.entities.organ import COLUMNS, MadeOrgan, Organ, OrganMeasurement
from organs.registry.entities.storage import OrganStorage, Way
from organs.registry.errors import BadName, Incomplete, NotFound
from organs.registry.kinds import INVOCATION_KEY, KIND_NOTES
from organs.registry.measures import CAUTIONS, MEASURES, THETA_LEGEND, THETA_SCORES, theta_caution
from organs.registry.names import LOCAL

if TYPE_CHECKING:
    from organs.registry.entities.chimera import Chimera
    from organs.registry.entities.validation import TextVerdict
    from organs.registry.interface import Registry
    from organs.registry.models import ModelDetails

NAME_MAX = 48
"""Columns of a name in a sentence on a terminal."""
DESCRIPTION_LINES = 3
TEXT_SHOWN = 100
"""The most characters of a template, or another text of another tool, in the summary."""
NAMES_SHOWN = 2
OTHER_NAMES_SHOWN = 5
NOTES_SHOWN = 2
VERSIONS_SHOWN = 2
VERDICTS_SHOWN = 3
COMPUTED_SHOWN = 12
EDGES_SHOWN = 12
PLACES_SHOWN = 10
DIGEST_SHOWN = 12
_KINDS = {
    "skeleton": "an attention tensor (type:skeleton)",
    "organ": "a feed-forward tensor (type:organ)",
    "embed": "an embedding (type:embed)",
    "norm": "a norm (type:norm)",
    "adapter": "a matrix of an adapter (type:adapter)",
}
_WAYS = {
    Way.ALONE: "alone",
    Way.DIFFERENCE: "by its difference to",
    Way.DERIVED: "derived from",
    Way.EXPERTS: "as its experts",
}
_METHODS = {
    "z1": "the Z-measure: the shape of the distribution of the weights",
    "mp1": "the spectral measures: how far the matrix is from a random one",
}
_MEANINGS = {name: measure.summary for name, measure in MEASURES.items()}
_MEANINGS |= {score.name: score.explained for score in THETA_SCORES}
_MEANINGS |= {
    "sample_size": "number of values in the sample",
    "mean": "mean of the values in the sample; the next three are also of the sample",
    "nan_count": "values that are NaN",
    "infinite_count": "values that are infinite",
    "constant": "whether all values are the same",
}


@click.command()
@click.argument("name", metavar="MODEL|DIGEST")
@flag("--tensors", "Also print the tensors of the model, one line each.")
@flag("--lineage", "Also print the models that it is related to, and the findings.")
@flag("--recipe", "Also print the recipe, the screen and the verdicts of a chimera.")
@flag("--measures", "Also print all measures of a tensor, with their meanings.")
@flag("--all", "everything", "Also print all of these.")
@output_options(json="Print everything as JSON.")
def show(name: str, tensors: bool, lineage: bool, recipe: bool, measures: bool, everything: bool) -> None:
    """Show a model or a tensor: what it is, its relatives, and what you can do with it.

    MODEL is NAMESPACE/NAME for the newest version, or NAMESPACE/NAME@VERSION. DIGEST is the SHA-256 of a tensor; its
    first 8 characters are enough. With `sha256:` before it, DIGEST can also be that of a model's file or of a chimera's
    lock.

    For a computed tensor, the command prints how the tensor was computed.
    """
    with selected_registry() as registry, status_line("read"):
        try:
            result = _model_or_organ(registry, name)
        except Incomplete as error:
            if prints_json():
                about = {"name": error.name, "state": "incomplete", "shards": error.shards, "missing": error.missing}
                print_json(about)
            else:
                print_sentence(error)
                print_remark(hint_for(error) or "")
            return
    if prints_json():
        print_json(result)
    elif isinstance(result, Organ):
        print_organ(result, with_measures=measures or everything)
    else:
        shown: tuple[str, ...] = ()
        _print_model(result)
        if (recipe or everything) and result.chimera is not None:
            print_chimera(result.chimera)
            shown = tuple(finding.sentence for finding in result.chimera.findings)
        if lineage or everything:
            print_lineage(result, shown)
        if tensors or everything:
            _print_tensors(result)


def _model_or_organ(registry: Registry, name: str) -> ModelDetails | Organ:
    """Return the model or tensor called `name`; of `sha256:` and a digest, a tensor comes before a model."""
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


def _print_model(model: ModelDetails) -> None:
    """Print the summary of a model."""
    title = f"  {plain(model.title)}" if model.title else ""
    print_sentence(f"{model.name}{title}")
    lines = (model.description or "").splitlines()
    print_prose("\n".join(lines[:DESCRIPTION_LINES]))
    if len(lines) > DESCRIPTION_LINES:
        print_prose(f"… ({len(lines) - DESCRIPTION_LINES} more lines, with --json)")
    if model.state != "visible":
        day = "" if model.changed_at is None else f" on {model.changed_at:%Y-%m-%d}"
        print_sentence(f"{model.state}{day}: {model.state_reason or ''}")
    if model.kind in KIND_NOTES:
        print_sentence(KIND_NOTES[model.kind])
    print_facts(_model_facts(model))
    shown = [finding for finding in model.findings if finding.severity.value != "info"]
    for finding in shown[:NOTES_SHOWN]:
        print_sentence(finding.sentence, f"{finding.severity.value}: ")
    notes = (*model.unassemblable, *model.flags)
    for note in notes[:NOTES_SHOWN]:
        print_sentence(note, "note: ")
    more = max(0, len(shown) - NOTES_SHOWN) + max(0, len(notes) - NOTES_SHOWN)
    if more:
        click.echo(f"and {plural_text(more, 'more finding or note', 'more findings and notes')}, with --json")
    click.echo()
    print_commands(list(_model_commands(model)))


def _model_facts(model: ModelDetails) -> Iterator[tuple[str, str]]:
    """Yield the facts of the summary, the most important first."""
    content = f"{count_text(model.parameters)} parameters in {plural_text(model.tensors, 'tensor', 'tensors')}"
    experts = f", {model.experts:,} experts" if model.experts else ""
    dtypes = f" ({model.facts['dtypes']})" if model.facts.get("dtypes") else ""
    yield (
        "partial model" if model.kind == PARTIAL else model.kind,
        f"{model.architecture or 'no architecture'}, {content}{experts}, {size_text(model.size_bytes)}{dtypes}",
    )
    if model.storage is not None:
        yield "stored", model.storage.sentence
        for parent in model.storage.parents:
            yield "", f"{plural_text(parent.organs, 'parent', 'parents')} in {parent.name}"
    yield "license", model.license or "not stated"
    if model.other_names:
        how = ", with --json" if len(model.other_names) > OTHER_NAMES_SHOWN else ""
        yield "also known as", first_of(model.other_names, OTHER_NAMES_SHOWN) + how
    yield from _origins(model)
    yield from _relatives(model)
    if model.from_source is not None and (model.chimera is None or model.chimera.verdicts):
        yield "quantised", model.from_source.sentence
    if model.chimera is not None:
        yield from _verdict(model.chimera)
    uses = [plural_text(model.downloads, "download", "downloads")] if model.downloads else []
    for role, count in (("base", max(0, model.chimeras - model.grafts)), ("donor", model.grafts)):
        uses += [f"{role} of {plural_text(count, 'chimera', 'chimeras')}"] if count else []
    if uses:
        yield "used", ", ".join(uses)
    yield from _versions(model)
    if "context length" in model.facts:
        yield "context", f"{model.facts['context length']} tokens"
    vocabulary = [model.facts[name] for name in ("vocabulary", "tokenizer") if name in model.facts]
    if vocabulary:
        yield "vocabulary", ", ".join(vocabulary)
    if model.files:
        more = f", and {len(model.files) - 1} more files" if len(model.files) > 1 else ""
        yield "file", f"{model.files[0].name}, sha256:{model.files[0].sha256[:12]}{more}"
    for item in model.texts:  # texts that another tool keeps beside the model; all of them are in the JSON
        line = " ".join(item.text.split())
        beginning = line if len(line) <= TEXT_SHOWN else line[: TEXT_SHOWN - 1] + "…"
        yield item.kind, f"{beginning} ({item.source})"


def _origins(model: ModelDetails) -> Iterator[tuple[str, str]]:
    """Yield the base and the donors of a model: those of a chimera, else those that its file declares."""

    def alike_text(edge: LineageEdge | None) -> str:
        if edge is None or edge.likeness is None:
            return ""
        return f", change {weight_change_text(edge.change, edge.likeness)}"

    edges = merged_edges(model.lineage)
    if model.chimera is None:
        parents = [edge for edge in edges if edge.direction == "parent"]
        for edge in parents[:NAMES_SHOWN]:
            missing = "" if edge.model else ", not registered here"
            details = f"{edge.relation}, {edge.evidence}{alike_text(edge)}{missing}"
            yield "base", f"{edge.model or edge.text} ({details})"
        if len(parents) > NAMES_SHOWN:
            yield "base", f"and {len(parents) - NAMES_SHOWN} more, with --lineage"
        return
    base, *others = model.chimera.parents
    donors = [parent for parent in others if not parent.is_source]
    alike = {edge.model: edge for edge in edges}
    role = "base" if model.chimera.quantised_from is None else "quantised from"
    yield role, f"{base.model}{alike_text(alike.get(base.model))}"
    for donor in donors[:NAMES_SHOWN]:
        changes = [
            change
            for change in model.chimera.changes
            if donor.model in (*change.givers, *(graft.model for graft in change.experts))
        ]
        kinds = dict.fromkeys(change.type for change in changes)  # with the word of queries, if it differs
        types = ", ".join(kind if type_name(kind) == kind else f"{type_name(kind)} (type {kind})" for kind in kinds)
        organs = plural_text(sum(change.organs for change in changes), "tensor", "tensors")
        content = f"{organs}, {types}, {', '.join(donor.acts)}" if changes else "nothing differs from the base"
        yield "donor", f"{donor.model}{alike_text(alike.get(donor.model))}: {content}"
    if len(donors) > NAMES_SHOWN:
        yield "donor", f"and {len(donors) - NAMES_SHOWN} more, with --recipe"
    sources = [_shown_name(parent.model) for parent in others if parent.is_source]
    if sources:
        yield "sources", f"{first_of(sources, NAMES_SHOWN)}, in the place of what was quantised from them"


def _relatives(model: ModelDetails) -> Iterator[tuple[str, str]]:
    """Yield the nearest models with their change, and the models that were made from this one."""

    edges = merged_edges(model.lineage)
    alike = [
        f"{_shown_name(edge.model or '')} {weight_change_text(edge.change, edge.likeness)}"
        for edge in edges
        if edge.direction == RELATIVE
    ]
    if alike:
        yield "nearest", first_of(alike, NAMES_SHOWN)
    children = [_shown_name(edge.model or edge.text or "") for edge in edges if edge.direction == "child"]
    if children:
        yield "children", first_of(children, NAMES_SHOWN)


def _shown_name(name: str) -> str:
    """Return a name as part of a sentence: on a terminal, a very long one loses its middle."""
    return plain(name) if terminal_width() is None else shortened(plain(name), NAME_MAX)


def _verdict(chimera: Chimera) -> Iterator[tuple[str, str]]:
    """Yield the strongest verdict with a line for each kind of text; without one the quick look, or the screen."""
    if not chimera.verdicts:
        if chimera.quick_look is not None:
            yield "measured", chimera.quick_look.sentence
            return
        yield "verdict", "not run yet"
        if chimera.screen is not None:
            yield "screen", chimera.screen.sentence
        return
    best = chimera.verdicts[0]
    texts = () if best.report is None else best.report.texts
    changes = [(text.name, change) for text in texts if (change := _verdict_on_text(text))]
    yield "verdict", f"{best.verdict}, measured in {best.runtime} on {best.created_at:%Y-%m-%d}"
    yield from changes or [("reason", best.reason)]


def _verdict_on_text(text: TextVerdict) -> str:
    """Return the change of the perplexity on a text, and its verdict; empty if there is no change."""
    if text.ratio is None or text.ratio_margin is None:
        return ""
    counts = "" if text.counts else ", does not count: the base cannot predict this text well"
    return f"perplexity {text.change}, {text.verdict}{counts}"


def _versions(model: ModelDetails) -> Iterator[tuple[str, str]]:
    """Yield the other versions of the name of a model."""
    others = [version for version in model.versions if version.name != model.name]
    for version in others[:VERSIONS_SHOWN]:
        state = "" if version.state == "visible" else f", {version.state}: {version.state_reason}"
        differ = ""
        if version.changes is not None:
            organs = plural_text(version.changes.changed, "tensor differs", "tensors differ")
            differ = f", {organs} from the version before"
        yield "version", f"also {version.name}, {version.created_at:%Y-%m-%d}{differ}{state}"
    left_out = len(others[VERSIONS_SHOWN:]) + model.versions_left_out
    if left_out:
        yield "version", f"and {plural_text(left_out, 'other version', 'other versions')}"


def _model_commands(model: ModelDetails) -> Iterator[tuple[str, str]]:
    """Yield what one can do with a model: commands, and what each does."""
    name = model.name.removeprefix(f"{LOCAL}/")
    name = name if len(model.versions) + model.versions_left_out > 1 else name.partition("@")[0]
    name = name if len(name) <= NAME_MAX else f"sha256:{model.digest[:DIGEST_SHOWN]}"
    if model.chimera is not None and not model.chimera.verdicts:
        yield organ_command("validate", name), "run it, and measure the gain"
    if not model.unassemblable and model.state != "removed":
        yield organ_command("assemble", name, "-o", "."), "write its file"
    if _can_answer(model):
        yield organ_command("chat", name, "Hello"), "ask it something"
    if model.kind == "adapter" and all(entry.key != INVOCATION_KEY for entry in model.metadata):
        parents = [edge.model for edge in model.lineage if edge.direction == "parent" and edge.model]
        base = parents[0].removeprefix(f"{LOCAL}/").partition("@")[0] if parents else "BASE"
        yield merge_command(base, name), "merge it into its base"
    if model.kind in ("model", CHIMERA):
        yield organ_command("compat", name), "list donors for it"
    if model.chimera is not None:
        yield organ_command("show", name, "--recipe"), "recipe, screen and verdicts"
    if model.lineage:
        count = len(merged_edges(model.lineage)) + model.lineage_left_out
        yield organ_command("show", name, "--lineage"), plural_text(count, "relation", "relations")
    if model.tensors:
        yield organ_command("show", name, "--tensors"), plural_text(model.tensors, "tensor", "tensors")
    if model.experts:
        yield organ_command("search", f"expert>=0 model:{model.name}"), f"{model.experts:,} experts"


def _can_answer(model: ModelDetails) -> bool:
    """Return whether a model answers prompts, as far as its header says."""
    from organs.registry.gguf import dtype_by_name

    if model.kind not in ("model", CHIMERA) or model.state == "removed" or model.unassemblable or not model.complete:
        return False
    return not any(dtype_by_name(organ.dtype).is_foreign for organ in model.organs)


def _print_tensors(model: ModelDetails) -> None:
    """Print the types of the tensors of a model, then the tensors."""
    click.echo()
    print_table(TYPE_COLUMNS, model.types)
    click.echo()
    print_table([column for column in for_people(COLUMNS, model.organs) if column.name != "model"], model.organs)
    if any(organ.theta_caution for organ in model.organs):
        print_remark(THETA_LEGEND)


def print_lineage(model: Model, shown: Collection[str] = ()) -> None:
    """Print the lineage and the findings of a model, if there are any, without the sentences in `shown`."""
    edges = merged_edges(model.lineage)
    if edges:
        click.echo()
        print_sentence(
            "Lineage. The change is the energy of the difference of the weights at the same places, as a share of "
            "their energy: 0 for the same weights, 1e-5 for a light fine-tune, 2 for unrelated models. The likeness is "
            "their correlation."
        )
        print_table(EDGE_COLUMNS, edges[:EDGES_SHOWN])
        left_out = max(0, len(edges) - EDGES_SHOWN) + model.lineage_left_out
        print_left_out(left_out, ", with --json")
    for finding in (finding for finding in model.findings if finding.sentence not in shown):
        print_sentence(finding.sentence, f"{finding.severity}: ")


def print_chimera(chimera: Chimera) -> None:
    """Print the parents, the changes, the recipe, the verdicts and the screen of a chimera."""
    click.echo()
    what = "A chimera" if chimera.quantised_from is None else f"Quantised from {chimera.quantised_from}"
    print_sentence(f"{what}, lock sha256:{chimera.lock_id}")
    for parent in chimera.parents:
        acts = ", ".join(parent.acts) or "its own tensors"
        print_sentence(f"{parent.model}, {parent.license or 'license unknown'}: {acts}", "from ")
    click.echo()
    print_changes(chimera.changes)
    if chimera.computed:
        click.echo()
        for organ in chimera.computed[:COMPUTED_SHOWN]:
            thetas = f"θ {theta_text(organ.theta_before)} → {theta_text(organ.theta)}"
            print_sentence(f"{organ.name}: {_how_made(organ)}, {thetas}")
        print_left_out(len(chimera.computed) - COMPUTED_SHOWN, ", with --json")
    click.echo("\nRecipe\n")
    for line in chimera.recipe_yaml.splitlines():
        click.echo(f"  {plain(line)}")
    click.echo()
    print_findings(chimera.findings)
    for verdict in chimera.verdicts[:VERDICTS_SHOWN]:
        when = f"{verdict.created_at:%Y-%m-%d %H:%M}"
        print_sentence(f"{verdict.verdict} in {verdict.runtime} on {when}: {verdict.reason}")
    if chimera.quick_look is not None:
        print_quick_look(chimera.quick_look)
    elif not chimera.verdicts:
        click.echo("not run yet")
    if chimera.screen is not None:
        print_screen(chimera.screen)


def _how_made(organ: MadeOrgan) -> str:
    def experts_text(experts: Sequence[int]) -> str:
        return f"{'expert' if len(experts) == 1 else 'experts'} {ranges_text(experts)}"

    count = len(organ.adapters)
    scales = ", ".join(f"{adapter.scale:g}" for adapter in organ.adapters)
    steps = [f"{experts_text(organ.experts)} grafted"] if organ.experts else []
    others = plural_text(len(organ.blended), "tensor", "tensors")
    steps += [f"blended ({organ.blend}) with {others}"] if organ.blend else []
    steps += [f"{plural_text(count, 'adapter', 'adapters')} merged at {scales}"] if count else []
    if organ.method:
        which = f"{experts_text(organ.purified_experts)} " if organ.purified_experts else ""
        keep = f", keeping {organ.keep:.0%} of the energy" if organ.keep is not None else ""
        steps.append(f"{which}purified ({organ.method}{keep})")
    if organ.kept_experts:
        steps.append(f"pruned to {plural_text(len(organ.kept_experts), 'expert', 'experts')}")
    how = " and ".join(steps or [f"quantised as {organ.dtype}" if "quantised" in organ.acts else "encoded again"])
    return f"{how}, from {organ.source.digest[:12]} ({organ.source.dtype})"


def print_organ(organ: Organ, *, with_measures: bool) -> None:
    """Print the summary of a tensor: what it is, its main measures and its places; on request, all its measures."""
    first = organ.places[0] if organ.places else None
    what = f"{first.label} of {first.model}, {_KINDS.get(first.type, 'a tensor')}" if first else "A tensor"
    print_sentence(what)
    click.echo(f"sha256:{organ.digest}")
    print_facts(_organ_facts(organ))
    if with_measures and organ.measurements:
        for measured in organ.measurements:
            _print_measurement(measured)
        click.echo()
        print_sentence("docs/numbers.md explains these numbers and their limits.")
    click.echo()
    columns = (Column("model", kind=CellKind.NAME), Column("label", "tensor", CellKind.NAME), Column("type"))
    print_table(columns, organ.places[:PLACES_SHOWN])
    print_left_out(len(organ.places) - PLACES_SHOWN, " places, with --json")
    click.echo()
    commands, digest = [], organ.digest[:12]
    if organ.experts and first is not None:
        terms = f"expert>=0 model:{first.model} block:{first.block} slot:{first.slot}"
        commands.append((organ_command("search", terms), "its experts"))
    commands.append((organ_command("search", f"like:{digest}"), "the most similar tensors"))
    if organ.measurements and not with_measures:
        commands.append((organ_command("show", digest, "--measures"), "all measures"))
    print_commands(commands)


def _organ_facts(organ: Organ) -> Iterator[tuple[str, str]]:
    shape = "x".join(map(str, organ.shape))
    yield "content", f"{organ.dtype} {shape}, {organ.elements} values, {size_text(organ.size_bytes)}, {organ.state}"
    if organ.storage is not None and organ.stored_bytes is not None:
        yield "stored", f"{size_text(organ.stored_bytes)} ({organ.codec}), {_stored_of_text(organ.storage)}"
    measured = {name: value for one in organ.measurements for name, value in one.readings().items()}
    caution = theta_caution(organ.measured("theta"), organ.dtype, organ.elements)
    for name in (name for name in measured if name in ("theta", "magnitude", "spectral_signal")):
        yield MEASURES[name].label, f"{_reading_text(name, measured[name])}  {_MEANINGS[name]}"
        if name == "theta" and caution:
            yield "", f"uncertain: {CAUTIONS[caution]}"
    if organ.nonfinite != 0:
        counted = "not counted yet" if organ.nonfinite is None else f"{organ.nonfinite:,}"
        yield "NaN/inf", f"values that are NaN or infinite: {counted}"
    if organ.experts:
        yield "experts", f"a stack of {organ.experts} experts, each stored and measured as a tensor of its own"
    for other in organ.also:
        yield "also", f"the same bytes are registered as {other.dtype} {'x'.join(map(str, other.shape))}"
    for made in organ.made:
        yield "computed", f"{_how_made(made)}, whose θ is {theta_text(made.theta_before)}"


def _stored_of_text(storage: OrganStorage) -> str:
    """Return how a tensor is stored, and of what: `by its difference to 0123456789ab (blk.0.ffn_up of acme/base@1)`."""
    text = _WAYS[storage.way]
    if storage.parent is not None:
        parent = storage.parent
        place = f"{parent.name} of {parent.model}" if parent.model else "in no model any more"
        text += f" {parent.digest[:DIGEST_SHOWN]} ({place})"
    if storage.children:
        text += f"; the parent of {plural_text(storage.children, 'other tensor', 'other tensors')}"
    return text


def _print_measurement(measured: OrganMeasurement) -> None:
    method = plain(measured.method)
    click.echo()
    print_sentence(f"method {method}, {_METHODS[method]}" if method in _METHODS else f"method {method}")
    rows = [
        {"measure": name.replace("_", " "), "value": _reading_text(name, value), "meaning": _MEANINGS.get(name, "")}
        for name, value in measured.readings().items()
    ]
    columns = (Column("measure"), Column("value", kind=CellKind.FIGURE), Column("meaning", kind=CellKind.PROSE))
    print_table(columns, rows)
    if measured.reason is not None:
        print_sentence(f"not measured: {measured.reason}")


def _reading_text(name: str, value: object) -> str:
    if name == "theta" and isinstance(value, float):
        return theta_text(value)
    return f"{value:.4f}" if isinstance(value, float) else str(value)
