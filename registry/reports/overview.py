"""The report on a whole registry: its figures, what one can do, and its measures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from organs.registry.amounts import (
    CHANGE_MIN,
    COARSE_CHANGE_MIN,
    plural_text,
    share_text,
    size_text,
    weight_change,
    weight_change_text,
)
from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.model_lists import composed_among
from organs.registry.catalog.queries.model_names import incomplete_models
from organs.registry.catalog.queries.relatives import RelatedPair, StatedEdge, related_pairs, stated_edges
from organs.registry.catalog.queries.reports import (
    combined_models,
    equal_models,
    kinds_of_models,
    largest_gain,
    models_in_state,
    nonfinite_models,
    running_totals,
    tensor_figures,
    unlicensed_models,
    unrun_chimeras,
    visible_bytes,
)
from organs.registry.catalog.vocabulary import CHIMERA
from organs.registry.columns import CellKind
from organs.registry.entities.report import (
    ROWS_DEFAULT,
    Report,
    ReportColumn,
    ReportFigure,
    ReportFigures,
    ReportTable,
    table,
)
from organs.registry.relatives.lineage import stated_groups
from organs.registry.reports.groups import MODEL, MODELS
from organs.registry.reports.ingests import ingest_sections
from organs.registry.reports.ranking import ranking_tables, registry_tables, type_ranges, wells_table
from organs.registry.reports.scale import scale_tables
from organs.registry.reports.words import CLOSING, OPENING
from organs.registry.similarity import CLOSE


def current_report(session: Session, *, complete: bool) -> Report:
    """Return the report with the default number of rows, computed once for each state of the catalog."""
    return cached(session, ("registry report", complete), lambda: registry_report(session, complete=complete))


def registry_report(session: Session, limit: int = ROWS_DEFAULT, *, complete: bool = False) -> Report:
    """Return the report on all visible models; tables of models have at most `limit` rows, and say so.

    If `complete`, it has all data of all ingests, which only the owner of the registry may see.
    """
    of_tensors = tensor_figures(session)
    types, components = registry_tables(session, of_tensors)
    tensors = sum(int(row["tensors_count"] or 0) for row in types.items)
    counts = {(kind, complete): count for kind, complete, count in kinds_of_models(session)}
    models = sum(counts.get((kind, True), 0) for kind in ("model", CHIMERA))
    ranking, model_types = ranking_tables(session, of_tensors.matrices, models, limit)
    scale, families = scale_tables(session, of_tensors.matrices, limit)
    return Report(
        title="Report on the registry",
        main="ranking",
        opening=OPENING,
        sections={
            "figures": _figures(session, counts, tensors, complete=complete),
            "actions": actions_table(session, complete=complete),
            "families": families,
            "ranking": ranking,
            "types": types,
            "type_ranges": type_ranges(session, of_tensors.means),
            "model_types": model_types,
            "components": components,
            "scale": scale,
            "wells": wells_table(session, of_tensors.lowest, limit),
            **ingest_sections(session, limit, complete=complete),
        },
        closing=CLOSING,
    )


def _figures(session: Session, counts: dict[tuple[str, bool], int], tensors: int, *, complete: bool) -> ReportFigures:
    totals = running_totals(session)
    figures = {}
    if complete and counts:
        files = visible_bytes(session)
        saved = max(0, files - totals.stored_bytes)
        share = f"{saved / files:.0%}" if files else "0%"
        figures["saved_bytes"] = ReportFigure(
            "disk saved",
            saved,
            CellKind.SIZE,
            f"{share} of the {size_text(files)} of all files, by storing equal parts once, compression and storing "
            "differences: organ storage lists them.",
        )
        figures["stored_bytes"] = ReportFigure(
            "stored",
            totals.stored_bytes,
            CellKind.SIZE,
            "All parts on the disk, without the other data of the catalog.",
        )
    kinds = [
        f"{count} {singular if count == 1 else plural}"
        for key, (singular, plural) in _KIND_WORDS.items()
        if (count := counts.get(key, 0))
    ]
    figures |= {
        "models_count": ReportFigure(
            "models",
            sum(counts.values()),
            CellKind.COUNT,
            f"Registered files, or sets of files: {'; '.join(kinds) or 'none'}.",
        ),
        "tensors_count": ReportFigure(
            "tensors",
            tensors,
            CellKind.COUNT,
            "Counted in every model that has them, but not in chimeras, whose tensors come from these models.",
        ),
        "organs_count": ReportFigure(
            "distinct tensors",
            totals.organs,
            CellKind.COUNT,
            "Tensors that are identical to the last byte count once, and are stored once.",
        ),
        "size_bytes": ReportFigure(
            "size of the files",
            visible_bytes(session, chimeras=False),
            CellKind.SIZE,
            "The total of all files of these models without chimeras. Tensors that they share are stored only once.",
        ),
        "duplicates_count": ReportFigure(
            "duplicate tensors",
            max(0, tensors - totals.organs),
            CellKind.COUNT,
            "Tensors that need no space, because the same bytes are stored for another place.",
        ),
    }
    empty = () if counts else ("Nothing is registered yet. To begin: organ ingest FILE.gguf",)
    return ReportFigures(title="The registry in figures", before=empty, figures=figures, after=())


_KIND_WORDS = {
    ("model", True): ("complete model", "complete models"),
    ("chimera", True): ("chimera, composed in this registry", "chimeras, composed in this registry"),
    ("model", False): ("partial model", "partial models"),
    ("adapter", True): ("adapter, a small change of another model", "adapters, small changes of other models"),
    ("vocabulary", True): ("vocabulary, words without weights", "vocabularies, words without weights"),
    ("imatrix", True): ("importance matrix", "importance matrices"),
    ("control-vector", True): ("control vector", "control vectors"),
    ("projector", True): ("projector of images or sound", "projectors of images or sound"),
    ("image", True): ("model for images, video or sound", "models for images, video or sound"),
}


ACTIONS_EACH = 3
"""The most rows about one kind of finding."""
PAIRS_READ = 1000
"""The most similar pairs of models that are examined."""


class Advice(NamedTuple):
    """A finding, the first model that it is about, the number of models, and a command that helps."""

    finding: str
    model: str | None
    models_count: int
    command: str


def actions_table(session: Session, *, complete: bool) -> ReportTable:
    """Return what one can do with the registry; if `complete`, also what only its owner may see and do."""
    pairs = related_pairs(session, PAIRS_READ, CLOSE)
    stated = list(stated_edges(session)) if pairs else []
    return table(
        title="What you can do",
        columns=(
            ReportColumn("finding", "finding", CellKind.TEXT),
            *(MODEL, MODELS),
            ReportColumn("command", "command", CellKind.NAME),
        ),
        rows=[
            *(_of_owner(session) if complete else ()),
            *_gains(session),
            *_grafts(session, pairs, stated),
            *_copies(session, pairs, stated),
            *_doubtful(session),
        ],
        before=("Findings about the registered models, each with a command that shows more.",),
        after=(f"At most {ACTIONS_EACH} rows of each kind are listed.",),
        empty="There is nothing to do: no finding about the registered models.",
    )


def _of_owner(session: Session) -> Iterator[Advice]:
    """Yield what is held for review, hidden or incomplete."""
    held = models_in_state(session, "quarantined")
    if held.count:
        models = plural_text(held.count, "model is", "models are")
        yield Advice(f"{models} held for review.", None, held.count, "organ admin submissions")
    for error in incomplete_models(session)[:ACTIONS_EACH]:
        yield Advice(f"{error}.", None, 1, "organ ingest SHARD")
    yanked = models_in_state(session, "yanked")
    if yanked.count:
        sentence = f"{plural_text(yanked.count, 'model is', 'models are')} yanked: hidden from searches and lists."
        yield Advice(sentence, yanked.first, yanked.count, f"organ show {yanked.first}")


def _gains(session: Session) -> Iterator[Advice]:
    """Yield the largest gain, and the chimeras that were never validated."""
    best = largest_gain(session)
    if best is not None:
        name, percent, text = best
        sentence = f"The largest measured gain: +{percent:.1f}% on {text} (the perplexity is {percent:.1f}% lower)."
        yield Advice(sentence, name, 1, "organ leaderboard")
    unrun = unrun_chimeras(session)
    if unrun.count:
        sentence = f"{plural_text(unrun.count, 'chimera was', 'chimeras were')} never validated."
        yield Advice(sentence, unrun.first, unrun.count, f"organ validate {unrun.first}")


def _grafts(session: Session, close: Iterable[RelatedPair], stated: Iterable[StatedEdge]) -> Iterator[Advice]:
    """Yield those pairs in `close` that have the same shapes and are in no chimera yet.

    Pairs of the same quantisation come first, among them declared ones.
    The base of a pair is the model that the other one declares as its parent, else the one that was registered first.
    """
    pairs = [pair for pair in close if _can_be_combined(pair)]
    composed = composed_among(session, {model.id for pair in pairs for model in (pair.first, pair.second)})
    pairs = [pair for pair in pairs if not composed & {pair.first.id, pair.second.id}]
    declared = {(edge.child_id, edge.parent_id) for edge in stated}
    combined = combined_models(session, {model.id for pair in pairs for model in (pair.first, pair.second)})
    ordered = []
    for pair in pairs:
        base, donor = pair.first, pair.second  # the older one first
        if (base.id, donor.id) in declared:
            base, donor = donor, base
        ordered.append((base, donor, _change_text(pair)))
    ordered.sort(  # the most similar stay first
        key=lambda pair: (pair[0].quantisation != pair[1].quantisation, (pair[1].id, pair[0].id) not in declared)
    )
    seen: set[frozenset[tuple[str, str]]] = set()
    for base, donor, change in ordered:
        models = frozenset({(base.namespace, base.stem), (donor.namespace, donor.stem)})
        if frozenset({base.id, donor.id}) in combined or models in seen:
            continue
        seen.add(models)
        sentence = f"Tensors of {donor.full_name} fit ({change}); no chimera has both models yet."
        yield Advice(sentence, base.full_name, 2, f"organ compat {base.full_name} {donor.full_name}")
        if len(seen) == ACTIONS_EACH:
            return


def _change_text(pair: RelatedPair) -> str:
    """Return the change of a pair, or its likeness if the change is not known."""
    if pair.change is None:
        return f"likeness {share_text(pair.likeness)}"
    return f"change {weight_change_text(pair.change)}"


def _can_be_combined(pair: RelatedPair) -> bool:
    """Return whether two related models have the same shapes, and are not one model in two tensor types."""
    first, second = pair.first, pair.second
    least = COARSE_CHANGE_MIN if pair.change is None else CHANGE_MIN
    return (
        pair.relation != "quantized"
        and weight_change(pair.change, pair.likeness) >= least
        and {first.kind, second.kind} == {"model"}
        and (first.namespace, first.stem) != (second.namespace, second.stem)
        and (first.architecture, first.tensors, first.parameters)
        == (second.architecture, second.tensors, second.parameters)
    )


def _copies(session: Session, close: Sequence[RelatedPair], stated: Iterable[StatedEdge]) -> Iterator[Advice]:
    """Yield the models with the same file, and those pairs in `close` that have no declared reason."""
    for names in equal_models(session, ACTIONS_EACH):
        more = f" and {len(names) - ACTIONS_EACH} more" if len(names) > ACTIONS_EACH else ""
        sentence = f"The same file has {len(names)} names: {', '.join(names[:ACTIONS_EACH])}{more}."
        yield Advice(sentence, names[0], len(names), f"organ show {names[0]}")
    titles = {model.id: model.title for pair in close for model in (pair.first, pair.second)}
    groups = stated_groups(stated, titles)
    unexplained = [pair for pair in close if groups.leader(pair.first.id) != groups.leader(pair.second.id)]
    for pair in unexplained[:ACTIONS_EACH]:
        first_name, second_name, change = pair.first.full_name, pair.second.full_name, _change_text(pair)
        sentence = f"Almost identical ({change}) to {second_name}, but neither model names the other as its base."
        yield Advice(sentence, first_name, 2, f"organ compare {first_name} {second_name}")


def _doubtful(session: Session) -> Iterator[Advice]:
    """Yield the models without a license, and those with weights that are no numbers."""
    unlicensed = unlicensed_models(session)
    if unlicensed.count:
        sentence = f"{plural_text(unlicensed.count, 'model states', 'models state')} no license."
        yield Advice(sentence, unlicensed.first, unlicensed.count, "organ models license:none")
    nonfinite = nonfinite_models(session)
    if nonfinite.count:
        sentence = f"{plural_text(nonfinite.count, 'model has', 'models have')} weights that are NaN or infinite."
        command = f"organ report {nonfinite.first} --table anomalies"
        yield Advice(sentence, nonfinite.first, nonfinite.count, command)
