"""Models and organs in detail: what `organ show` prints. A summary comes first, then the parts that were requested."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import organ_words
from organs.cli.console import (
    NAME_MAX,
    NONFINITE_MARK,
    plain,
    print_commands,
    print_facts,
    print_prose,
    print_sentence,
    print_table,
    shown_name,
)
from organs.registry.amounts import (
    change_text,
    count_text,
    plural_text,
    ranges_text,
    share_text,
    size_text,
    theta_text,
    weight_change_text,
)
from organs.registry.anatomy import type_name
from organs.registry.catalog.vocabulary import CHIMERA, PARTIAL
from organs.registry.entities.lineage import RELATIVE, LineageEdge, merged_edges
from organs.registry.entities.model import Model
from organs.registry.entities.organ import MadeOrgan, Measurement, Organ, PlacedOrgan
from organs.registry.entities.storage import OrganStorage, Way
from organs.registry.kinds import KIND_NOTES
from organs.registry.measures import CAUTIONS, MEASURES, THETA_LEGEND, theta_caution
from organs.registry.names import LOCAL

if TYPE_CHECKING:
    from organs.registry.entities.chimera import Chimera
    from organs.registry.entities.verdict import TextVerdict
    from organs.registry.models import ModelDetails

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
PARTIAL_MODEL = "partial model"
DIGEST_SHOWN = 12
_NUMBERS = ("tensors", "size", "θ", "|Z|", "spectral", "value", "likeness", "change", "matrices")


@dataclass(frozen=True, slots=True)
class ShownParts:
    """The parts of a model or an organ that follow its summary."""

    tensors: bool = False
    lineage: bool = False
    recipe: bool = False
    measures: bool = False


def print_model(model: ModelDetails, parts: ShownParts) -> None:
    """Print the summary of a model, and the parts of it that were requested."""
    _print_model_summary(model)
    shown: tuple[str, ...] = ()
    if parts.recipe and model.chimera is not None:
        print_chimera(model.chimera)
        shown = tuple(finding.sentence for finding in model.chimera.findings)
    if parts.lineage:
        print_lineage(model, shown)
    if parts.tensors:
        _print_types(model)
        _print_tensors(model)


def _print_model_summary(model: ModelDetails) -> None:
    title = f"  {plain(model.title)}" if model.title else ""
    print_sentence(f"{model.name}{title}")
    _print_description(model.description or "")
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


def _print_description(text: str) -> None:
    lines = text.splitlines()
    print_prose("\n".join(lines[:DESCRIPTION_LINES]))
    if len(lines) > DESCRIPTION_LINES:
        print_prose(f"… ({len(lines) - DESCRIPTION_LINES} more lines, with --json)")


def _model_facts(model: ModelDetails) -> list[tuple[str, str]]:
    """Return the facts of the summary, the most important first."""
    kind = PARTIAL_MODEL if model.kind == PARTIAL else model.kind
    dtypes = model.facts.get("dtypes")
    content = f"{count_text(model.parameters)} parameters in {plural_text(model.tensors, 'tensor', 'tensors')}"
    experts = f", {model.experts:,} experts" if model.experts else ""
    facts = [
        (
            kind,
            f"{model.architecture or 'no architecture'}, {content}{experts}, {size_text(model.size_bytes)}"
            + (f" ({dtypes})" if dtypes else ""),
        ),
        *_stored(model),
        ("license", model.license or "not stated"),
        *_other_names(model),
        *_origins(model),
        *_relatives(model),
    ]
    facts += _verdict(model.chimera) if model.chimera is not None else []
    facts += [("used", used)] if (used := _use(model)) else []
    facts += [("version", text) for text in _versions(model)]
    vocabulary = ", ".join(model.facts[name] for name in ("vocabulary", "tokenizer") if name in model.facts)
    context = f"{model.facts['context length']} tokens" if "context length" in model.facts else ""
    facts += [("context", context)] if context else []
    facts += [("vocabulary", vocabulary)] if vocabulary else []
    if model.files:
        more = f", and {len(model.files) - 1} more files" if len(model.files) > 1 else ""
        facts.append(("file", f"{model.files[0].name}, sha256:{model.files[0].sha256[:12]}{more}"))
    facts += [(item.kind, f"{_beginning(item.text)} ({item.source})") for item in model.texts]
    return facts


def _stored(model: ModelDetails) -> Iterator[tuple[str, str]]:
    """Yield how the organs of a model are stored, and which models have their parents."""
    if model.storage is not None:
        yield "stored", model.storage.sentence
        for parent in model.storage.parents:
            organs = plural_text(parent.organs, "parent", "parents")
            yield "", f"{organs} in {parent.name}"


def _beginning(text: str) -> str:
    """Return the beginning of a text that another tool keeps beside a model; all of it is in the JSON."""
    line = " ".join(text.split())
    return line if len(line) <= TEXT_SHOWN else line[: TEXT_SHOWN - 1] + "…"


def _other_names(model: ModelDetails) -> Iterator[tuple[str, str]]:
    """Yield the other names that lead to a model, in one line."""
    if model.other_names:
        left_out = len(model.other_names) - OTHER_NAMES_SHOWN
        more = f" and {left_out} more, with --json" if left_out > 0 else ""
        yield "also known as", ", ".join(model.other_names[:OTHER_NAMES_SHOWN]) + more


def _type_words(kind: str) -> str:
    """Return the name of a type, with the word of queries if it differs: `feed-forward (type organ)`."""
    name = type_name(kind)
    return name if name == kind else f"{name} (type {kind})"


def _origins(model: ModelDetails) -> Iterator[tuple[str, str]]:
    """Yield the base and the donors of a model: those of a chimera, else those that its file declares."""
    if model.chimera is not None:
        base, *donors = model.chimera.parents
        alike = {edge.model: edge for edge in merged_edges(model.lineage)}
        yield "base", f"{base.model}{_alike_text(alike.get(base.model))}"
        for donor in donors[:NAMES_SHOWN]:
            changes = [
                change
                for change in model.chimera.changes
                if donor.model in (*change.givers, *(graft.model for graft in change.experts))
            ]
            types = ", ".join(dict.fromkeys(_type_words(change.type) for change in changes))
            organs = plural_text(sum(change.organs for change in changes), "organ", "organs")
            content = f"{organs}, {types}, {', '.join(donor.acts)}" if changes else "nothing differs from the base"
            yield "donor", f"{donor.model}{_alike_text(alike.get(donor.model))}: {content}"
        if len(donors) > NAMES_SHOWN:
            yield "donor", f"and {len(donors) - NAMES_SHOWN} more, with --recipe"
        return
    parents = [edge for edge in merged_edges(model.lineage) if edge.direction == "parent"]
    for edge in parents[:NAMES_SHOWN]:
        missing = "" if edge.model else ", not registered here"
        details = f"{edge.relation}, {edge.evidence}{_alike_text(edge)}{missing}"
        yield "base", f"{edge.model or edge.text} ({details})"
    if len(parents) > NAMES_SHOWN:
        yield "base", f"and {len(parents) - NAMES_SHOWN} more, with --lineage"


def _alike_text(edge: LineageEdge | None) -> str:
    if edge is None or edge.likeness is None:
        return ""
    return f", change {weight_change_text(edge.change, edge.likeness)}"


def _relatives(model: ModelDetails) -> Iterator[tuple[str, str]]:
    """Yield the nearest models with their change, and the models that were made from this one."""
    edges = merged_edges(model.lineage)
    alike = [edge for edge in edges if edge.direction == RELATIVE]
    if alike:
        listed = [
            f"{shown_name(edge.model or '')} {weight_change_text(edge.change, edge.likeness)}"
            for edge in alike[:NAMES_SHOWN]
        ]
        more = f" and {len(alike) - NAMES_SHOWN} more" if len(alike) > NAMES_SHOWN else ""
        yield "nearest", ", ".join(listed) + more
    children = [edge.model or edge.text or "" for edge in edges if edge.direction == "child"]
    if children:
        more = f" and {len(children) - NAMES_SHOWN} more" if len(children) > NAMES_SHOWN else ""
        yield "children", ", ".join(map(shown_name, children[:NAMES_SHOWN])) + more


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
    changes = [(text.name, change) for text in texts if (change := verdict_on_text(text))]
    yield "verdict", f"{best.verdict}, measured in {best.runtime} on {best.created_at:%Y-%m-%d}"
    yield from changes or [("reason", best.reason)]


def verdict_on_text(text: TextVerdict) -> str:
    """Return the change of the perplexity on a text, and its verdict; empty if there is no change."""
    if text.ratio is None or text.ratio_margin is None:
        return ""
    counts = "" if text.counts else ", does not count: the base cannot predict this text well"
    return f"perplexity {change_text(text.ratio, text.ratio_margin)}, {text.verdict}{counts}"


def _use(model: ModelDetails) -> str:
    downloads = [plural_text(model.downloads, "download", "downloads")] if model.downloads else []
    as_base, as_donor = max(0, model.chimeras - model.grafts), model.grafts
    roles = [("base", as_base), ("donor", as_donor)]
    uses = [f"{role} of {plural_text(count, 'chimera', 'chimeras')}" for role, count in roles if count]
    return ", ".join([*downloads, *uses])


def _versions(model: ModelDetails) -> Iterator[str]:
    """Yield the other versions of the name of a model."""
    others = [version for version in model.versions if version.name != model.name]
    for version in others[:VERSIONS_SHOWN]:
        state = "" if version.state == "visible" else f", {version.state}: {version.state_reason}"
        differ = "" if version.changes is None else f", {_differing(version.changes.changed)} from the version before"
        yield f"also {version.name}, {version.created_at:%Y-%m-%d}{differ}{state}"
    left_out = len(others[VERSIONS_SHOWN:]) + model.versions_left_out
    if left_out:
        yield f"and {plural_text(left_out, 'other version', 'other versions')}"


def _differing(count: int) -> str:
    return "1 organ differs" if count == 1 else f"{count} organs differ"


def _model_commands(model: ModelDetails) -> Iterator[tuple[str, str]]:
    """Yield what one can do with a model: commands, and what each does."""
    name = model.name.removeprefix(f"{LOCAL}/")
    name = name if len(model.versions) + model.versions_left_out > 1 else name.partition("@")[0]
    name = name if len(name) <= NAME_MAX else f"sha256:{model.digest[:DIGEST_SHOWN]}"
    organ = organ_words()
    if model.chimera is not None and not model.chimera.verdicts:
        yield shlex.join([*organ, "validate", name]), "run it, and measure the gain"
    if not model.unassemblable and model.state != "removed":
        yield shlex.join([*organ, "assemble", name, "-o", "."]), "write its file"
    if model.kind == "adapter":
        yield merge_command(_base_of(model), name), "merge it into its base"
    if model.kind in ("model", CHIMERA):
        yield shlex.join([*organ, "compat", name]), "list donors for it"
    if model.chimera is not None:
        yield shlex.join([*organ, "show", name, "--recipe"]), "recipe, screen and verdicts"
    if model.lineage:
        count = len(merged_edges(model.lineage)) + model.lineage_left_out
        yield shlex.join([*organ, "show", name, "--lineage"]), plural_text(count, "relation", "relations")
    if model.tensors:
        yield shlex.join([*organ, "show", name, "--tensors"]), plural_text(model.tensors, "tensor", "tensors")
    if model.experts:
        yield shlex.join([*organ, "search", f"expert>=0 model:{model.name}"]), f"{model.experts:,} experts"


def _base_of(model: ModelDetails) -> str:
    """Return the registered base of an adapter, or `BASE`."""
    parents = (edge.model for edge in model.lineage if edge.direction == "parent" and edge.model)
    return next((name.removeprefix(f"{LOCAL}/").partition("@")[0] for name in parents), "BASE")


def merge_command(base: str, adapter: str) -> str:
    """Return the command that makes a chimera of a model and an adapter."""
    recipe = json.dumps({"base": base, "adapters": [{"from": adapter}]})
    return f"echo {shlex.quote(recipe)} | {shlex.join([*organ_words(), 'compose', '-', '--name', 'merged'])}"


def _print_types(model: ModelDetails) -> None:
    click.echo()
    rows = [
        (
            kind.type,
            kind.tensors,
            size_text(kind.size_bytes),
            theta_text(kind.mean_theta, kind.theta_caution),
            share_text(kind.mean_spectral_signal),
        )
        for kind in model.types
    ]
    print_table(("type", "tensors", "size", "θ", "spectral"), rows, _NUMBERS)


def _print_tensors(model: ModelDetails) -> None:
    click.echo()
    columns = ("tensor", "type", "dtype", "shape", "θ", "|Z|", "spectral", "organ")
    rows = [_tensor_row(organ) for organ in model.organs]
    print_table(columns, rows, _NUMBERS, digests=("organ",), leave_out=("|Z|", "type", "shape"))
    if any(organ.theta_caution for organ in model.organs):
        print_sentence(THETA_LEGEND, err=True)


def _tensor_row(organ: PlacedOrgan) -> tuple[object, ...]:
    return (
        f"{organ.name} {NONFINITE_MARK}" if organ.nonfinite else organ.name,
        *(organ.type, organ.dtype, "x".join(map(str, organ.shape))),
        *(organ.theta_text, share_text(organ.magnitude), share_text(organ.spectral_signal)),
        organ.digest[:12],
    )


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
        rows = [
            (edge.direction, edge.model or edge.text, edge.relation, edge.evidence, *_likeness(edge))
            for edge in edges[:EDGES_SHOWN]
        ]
        columns = ("role", "model", "relation", "evidence", "change", "likeness", "matrices")
        print_table(columns, rows, _NUMBERS, leave_out=("matrices", "likeness", "evidence"))
        left_out = max(0, len(edges) - EDGES_SHOWN) + model.lineage_left_out
        if left_out > 0:
            click.echo(f"… and {left_out} more, with --json")
    for finding in (finding for finding in model.findings if finding.sentence not in shown):
        print_sentence(finding.sentence, f"{finding.severity}: ")


def _likeness(edge: LineageEdge) -> tuple[str, str, str]:
    change = weight_change_text(edge.change, edge.likeness)
    return change, share_text(edge.likeness), str(edge.compared or "–")


def print_chimera(chimera: Chimera) -> None:
    """Print the parents, the changes, the recipe, the verdicts and the screen of a chimera."""
    from organs.cli.composing import (
        print_changes,
        print_findings,
        print_quick_look,
        print_screen,
    )  # with the planner, which searches do not need

    click.echo()
    print_sentence(f"A chimera, lock sha256:{chimera.lock_id}")
    for parent in chimera.parents:
        acts = ", ".join(parent.acts) or "its own organs"
        print_sentence(f"{parent.model}, {parent.license or 'license unknown'}: {acts}", "from ")
    click.echo()
    print_changes(chimera.changes)
    if chimera.computed:
        click.echo()
        for organ in chimera.computed[:COMPUTED_SHOWN]:
            thetas = f"θ {theta_text(organ.theta_before)} → {theta_text(organ.theta)}"
            print_sentence(f"{organ.name}: {_how_made(organ)}, {thetas}")
        if len(chimera.computed) > COMPUTED_SHOWN:
            click.echo(f"… and {len(chimera.computed) - COMPUTED_SHOWN} more, with --json")
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
    count = len(organ.adapters)
    scales = ", ".join(f"{adapter.scale:g}" for adapter in organ.adapters)
    merged = [f"{plural_text(count, 'adapter', 'adapters')} merged at {scales}"] if count else []
    keep = f", keeping {organ.keep:.0%} of the energy" if organ.keep is not None else ""
    grafted = [f"{_experts_text(organ.experts)} grafted"] if organ.experts else []
    which = f"{_experts_text(organ.purified_experts)} " if organ.purified_experts else ""
    purified = [f"{which}purified ({organ.method}{keep})"] if organ.method else []
    steps = [*grafted, *merged, *purified] or ["encoded again"]
    return f"{' and '.join(steps)}, from {organ.source.digest[:12]} ({organ.source.dtype})"


def _experts_text(experts: Sequence[int]) -> str:
    return f"{'expert' if len(experts) == 1 else 'experts'} {ranges_text(experts)}"


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
_MEANINGS = {name: measure.summary for name, measure in MEASURES.items()} | {
    "sample_size": "number of values in the sample",
    "entropy": "how evenly the values fill their range; 0.95 or more for random noise",
    "kurtosis": "weight of the tails compared with a bell curve; from -1.2 to 1.2 for random noise",
    "coherence": "how unevenly the sorted values are spaced; 0.5 or less for random noise",
    "mean": "mean of the values in the sample; the next three are also of the sample",
    "nan_count": "values that are NaN",
    "infinite_count": "values that are infinite",
    "constant": "whether all values are the same",
}


def print_organ(organ: Organ, parts: ShownParts) -> None:
    """Print the summary of an organ: what it is, its main measures and its places; on request, all its measures."""
    first = organ.places[0] if organ.places else None
    what = f"{first.label} of {first.model}, {_KINDS.get(first.type, 'a tensor')}" if first else "An organ"
    print_sentence(what)
    click.echo(f"sha256:{organ.digest}")
    print_facts(_organ_facts(organ))
    for reading in organ.measurements if parts.measures else ():
        _print_reading(reading)
    if parts.measures and organ.measurements:
        click.echo()
        print_sentence("docs/numbers.md explains these numbers and their limits.")
    click.echo()
    print_table(
        ("model", "tensor", "type"), [(place.model, place.label, place.type) for place in organ.places[:PLACES_SHOWN]]
    )
    if len(organ.places) > PLACES_SHOWN:
        click.echo(f"… and {len(organ.places) - PLACES_SHOWN} more places, with --json")
    click.echo()
    print_commands(list(_organ_commands(organ, has_measures=parts.measures)))


def _organ_facts(organ: Organ) -> Iterator[tuple[str, str]]:
    shape = "x".join(map(str, organ.shape))
    yield "content", f"{organ.dtype} {shape}, {organ.elements} values, {size_text(organ.size_bytes)}, {organ.state}"
    if organ.storage is not None and organ.stored_bytes is not None:
        yield "stored", f"{size_text(organ.stored_bytes)} ({organ.codec}), {stored_of_text(organ.storage)}"
    measured = {
        name: value
        for reading in organ.measurements
        for name, value in reading.readings().items()
        if name in ("theta", "magnitude", "spectral_signal")
    }
    caution = theta_caution(organ.measured("theta"), organ.dtype, organ.elements)
    for name, value in measured.items():
        yield MEASURES[name].label, f"{_reading_text(name, value)}  {_MEANINGS[name]}"
        if name == "theta" and caution:
            yield "", f"uncertain: {CAUTIONS[caution]}"
    if organ.nonfinite != 0:
        counted = "not counted yet" if organ.nonfinite is None else f"{organ.nonfinite:,}"
        yield "NaN/inf", f"values that are NaN or infinite: {counted}"
    if organ.experts:
        yield "experts", f"a stack of {organ.experts} experts, each stored and measured as an organ of its own"
    for other in organ.also:
        yield "also", f"the same bytes are registered as {other.dtype} {'x'.join(map(str, other.shape))}"
    for made in organ.made:
        yield "computed", f"{_how_made(made)}, whose θ is {theta_text(made.theta_before)}"


def stored_of_text(storage: OrganStorage) -> str:
    """Return how an organ is stored, and of what: `by its difference to 0123456789ab (blk.0.ffn_up of acme/base@1)`."""
    text = _WAYS[storage.way]
    if storage.parent is not None:
        parent = storage.parent
        place = f"{parent.name} of {parent.model}" if parent.model else "in no model any more"
        text += f" {parent.digest[:DIGEST_SHOWN]} ({place})"
    if storage.children:
        text += f"; the parent of {plural_text(storage.children, 'other organ', 'other organs')}"
    return text


def _organ_commands(organ: Organ, *, has_measures: bool) -> Iterator[tuple[str, str]]:
    """Yield what one can do with an organ: commands, and what each does."""
    words, digest = organ_words(), organ.digest[:12]
    if organ.experts and organ.places:
        place = organ.places[0]
        terms = f"expert>=0 model:{place.model} block:{place.block} slot:{place.slot}"
        yield shlex.join([*words, "search", terms]), "its experts"
    yield shlex.join([*words, "search", f"like:{digest}"]), "the most similar organs"
    if organ.measurements and not has_measures:
        yield shlex.join([*words, "show", digest, "--measures"]), "all measures"


def _print_reading(reading: Measurement) -> None:
    method = plain(reading.method)
    click.echo()
    print_sentence(f"method {method}, {_METHODS[method]}" if method in _METHODS else f"method {method}")
    rows = [
        (name.replace("_", " "), _reading_text(name, value), _MEANINGS.get(name, ""))
        for name, value in reading.readings().items()
    ]
    print_table(("measure", "value", "meaning"), rows, _NUMBERS, prose="meaning")
    if reading.reason is not None:
        print_sentence(f"not measured: {reading.reason}")


def _reading_text(name: str, value: object) -> str:
    if name == "theta" and isinstance(value, float):
        return theta_text(value)
    return f"{value:.4f}" if isinstance(value, float) else str(value)
