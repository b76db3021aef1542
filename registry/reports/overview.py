"""The report on a whole registry: its figures, what one can do, and its measures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
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
from organs.registry.catalog.queries.relatives import RelatedPair, related_pairs
from organs.registry.catalog.queries.reports import (
    combined_models,
    equal_models,
    kinds_of_models,
    largest_gain,
    matrix_figures,
    models_in_state,
    nonfinite_models,
    running_totals,
    stated_edges,
    unlicensed_models,
    unrun_chimeras,
    visible_bytes,
)
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import CHIMERA
from organs.registry.entities.about import RegistryTotals
from organs.registry.entities.report import (
    ROWS_DEFAULT,
    CellKind,
    Report,
    ReportColumn,
    ReportFigure,
    ReportFigures,
    ReportTable,
    table,
)
from organs.registry.relatives.lineage import DeclaredEdge, stated_groups
from organs.registry.reports.ingests import ingest_sections
from organs.registry.reports.sections import ranking_tables, registry_tables, scale_tables, type_ranges, wells_table
from organs.registry.reports.words import CLOSING, OPENING
from organs.registry.similarity import CLOSE


def current_report(session: Session, *, complete: bool = False) -> Report:
    """Return the report with the default number of rows, computed once for each state of the catalog."""
    return cached(session, ("registry report", complete), lambda: registry_report(session, complete=complete))


def registry_report(session: Session, limit: int = ROWS_DEFAULT, *, complete: bool = False) -> Report:
    """Return the report on all visible models; tables of models have at most `limit` rows, and say so.

    If `complete`, it has all data of all ingests, which only the owner of the registry may see.
    """
    types, components = registry_tables(session)
    tensors = sum(int(row["tensors_count"] or 0) for row in types.items)
    counts = {(kind, complete): count for kind, complete, count in kinds_of_models(session)}
    models = sum(counts.get((kind, True), 0) for kind in ("model", CHIMERA))
    matrices = matrix_figures(session)
    ranking, model_types = ranking_tables(session, matrices, models, limit)
    scale, families = scale_tables(session, matrices, limit)
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
            "type_ranges": type_ranges(session),
            "model_types": model_types,
            "components": components,
            "scale": scale,
            "wells": wells_table(session, limit),
            **ingest_sections(session, limit, complete=complete),
        },
        closing=CLOSING,
    )


def _figures(session: Session, counts: dict[tuple[str, bool], int], tensors: int, *, complete: bool) -> ReportFigures:
    totals = running_totals(session)
    figures = _saved(session, totals) if complete and counts else {}
    figures |= {
        "models_count": ReportFigure("models", sum(counts.values()), CellKind.COUNT, _kinds(counts)),
        "tensors_count": ReportFigure("tensors", tensors, CellKind.COUNT, _TENSORS),
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


def _saved(session: Session, totals: RegistryTotals) -> dict[str, ReportFigure]:
    """Return the space on the disk, and what the registry saves; only its owner may see it."""
    files = visible_bytes(session)
    saved = max(0, files - totals.stored_bytes)
    share = f"{saved / files:.0%}" if files else "0%"
    return {
        "saved_bytes": ReportFigure(
            "disk saved",
            saved,
            CellKind.SIZE,
            f"{share} of the {size_text(files)} of all files, by storing equal parts once, compression and storing "
            "differences: organ storage lists them.",
        ),
        "stored_bytes": ReportFigure(
            "stored",
            totals.stored_bytes,
            CellKind.SIZE,
            "All parts on the disk, without the other data of the catalog.",
        ),
    }


def _kinds(counts: dict[tuple[str, bool], int]) -> str:
    kinds = [
        f"{count} {singular if count == 1 else plural}"
        for (kind, complete), (singular, plural) in _KIND_WORDS.items()
        if (count := counts.get((kind, complete), 0))
    ]
    return f"Registered files, or sets of files: {'; '.join(kinds) or 'none'}."


_TENSORS = "Counted in every model that has them, but not in chimeras, whose tensors come from these models."
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


class Action(NamedTuple):
    """A finding, the first model that it is about, the number of models, and a command that helps."""

    finding: str
    model: str | None
    models_count: int
    command: str


StatedEdge = tuple[int, int | None, str]
"""The ids of a child and a parent, and the name of the parent as it is declared."""


def actions_table(session: Session, *, complete: bool) -> ReportTable:
    """Return what one can do with the registry; if `complete`, also what only its owner may see and do."""
    pairs = related_pairs(session, PAIRS_READ, CLOSE)
    stated = list(stated_edges(session)) if pairs else []
    found = (
        *(_of_owner(session) if complete else (), _gains(session)),
        *(_grafts(session, pairs, stated), _copies(session, pairs, stated), _doubtful(session)),
    )
    rows = [*chain(*found)]
    return table(
        title="What you can do",
        columns=_COLUMNS,
        rows=rows,
        before=("Findings about the registered models, each with a command that shows more.",),
        after=(f"At most {ACTIONS_EACH} rows of each kind are listed.",),
        empty="There is nothing to do: no finding about the registered models.",
    )


def _of_owner(session: Session) -> Iterator[Action]:
    """Yield what is held for review, hidden or incomplete."""
    held = models_in_state(session, "quarantined", 1)
    if held.count:
        models = plural_text(held.count, "model is", "models are")
        yield Action(f"{models} held for review.", None, held.count, "organ admin submissions")
    for error in incomplete_models(session)[:ACTIONS_EACH]:
        yield Action(f"{error}.", None, 1, "organ ingest SHARD")
    yanked = models_in_state(session, "yanked", 1)
    if yanked.count:
        sentence = f"{plural_text(yanked.count, 'model is', 'models are')} yanked: hidden from searches and lists."
        yield Action(sentence, yanked.names[0], yanked.count, f"organ show {yanked.names[0]}")


def _gains(session: Session) -> Iterator[Action]:
    """Yield the largest gain, and the chimeras that were never validated."""
    best = largest_gain(session)
    if best is not None:
        name, percent, text = best
        sentence = f"The largest measured gain: +{percent:.1f}% on {text} (the perplexity is {percent:.1f}% lower)."
        yield Action(sentence, name, 1, "organ leaderboard")
    unrun = unrun_chimeras(session, 1)
    if unrun.count:
        sentence = f"{plural_text(unrun.count, 'chimera was', 'chimeras were')} never validated."
        yield Action(sentence, unrun.names[0], unrun.count, f"organ validate {unrun.names[0]}")


def _grafts(session: Session, close: Iterable[RelatedPair], stated: Iterable[StatedEdge]) -> Iterator[Action]:
    """Yield those pairs in `close` that have the same shapes and are in no chimera yet.

    Pairs of the same quantisation come first, among them declared ones.
    The base of a pair is the model that the other one declares as its parent, else the one that was registered first.
    """
    pairs = [pair for pair in close if _can_be_combined(pair)]
    composed = composed_among(session, {model.id for pair in pairs for model in (pair.first, pair.second)})
    pairs = [pair for pair in pairs if not composed & {pair.first.id, pair.second.id}]
    declared = {(child, parent) for child, parent, _ in stated}
    combined = combined_models(session, {model.id for pair in pairs for model in (pair.first, pair.second)})
    ordered = [(*_base_first(pair.first, pair.second, declared), _change_text(pair)) for pair in pairs]
    ordered.sort(  # the most similar stay first
        key=lambda pair: (pair[0].quantisation != pair[1].quantisation, (pair[1].id, pair[0].id) not in declared)
    )
    seen: set[frozenset[tuple[str, str]]] = set()
    for base, donor, change in ordered:
        models = frozenset({(base.namespace, base.stem), (donor.namespace, donor.stem)})
        if frozenset({base.id, donor.id}) in combined or models in seen:
            continue
        seen.add(models)
        sentence = f"Organs of {donor.full_name} fit ({change}); no chimera has both models yet."
        yield Action(sentence, base.full_name, 2, f"organ compat {base.full_name} {donor.full_name}")
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


def _base_first(
    first: ModelRow, second: ModelRow, declared: Collection[tuple[int, int | None]]
) -> tuple[ModelRow, ModelRow]:
    if (first.id, second.id) in declared:
        return second, first
    if (second.id, first.id) in declared:
        return first, second
    return (first, second) if first.id < second.id else (second, first)


def _copies(session: Session, close: Sequence[RelatedPair], stated: Iterable[StatedEdge]) -> Iterator[Action]:
    """Yield the models with the same file, and those pairs in `close` that have no declared reason."""
    for names in equal_models(session, ACTIONS_EACH):
        sentence = f"The same file has {len(names)} names: {_listed(names)}."
        yield Action(sentence, names[0], len(names), f"organ show {names[0]}")
    titles = {model.id: model.title for pair in close for model in (pair.first, pair.second)}
    groups = stated_groups((DeclaredEdge(child, text, parent) for child, parent, text in stated), titles)
    unexplained = [pair for pair in close if groups.leader(pair.first.id) != groups.leader(pair.second.id)]
    for pair in unexplained[:ACTIONS_EACH]:
        first_name, second_name, change = pair.first.full_name, pair.second.full_name, _change_text(pair)
        sentence = f"Almost identical ({change}) to {second_name}, but neither model names the other as its base."
        yield Action(sentence, first_name, 2, f"organ compare {first_name} {second_name}")


def _doubtful(session: Session) -> Iterator[Action]:
    """Yield the models without a license, and those with weights that are no numbers."""
    unlicensed = unlicensed_models(session, 1)
    if unlicensed.count:
        sentence = f"{plural_text(unlicensed.count, 'model states', 'models state')} no license."
        yield Action(sentence, unlicensed.names[0], unlicensed.count, "organ models license:none")
    nonfinite = nonfinite_models(session, 1)
    if nonfinite.count:
        sentence = f"{plural_text(nonfinite.count, 'model has', 'models have')} weights that are NaN or infinite."
        command = f"organ report {nonfinite.names[0]} --table anomalies"
        yield Action(sentence, nonfinite.names[0], nonfinite.count, command)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - ACTIONS_EACH} more" if len(names) > ACTIONS_EACH else ""
    return ", ".join(names[:ACTIONS_EACH]) + more


_COLUMNS = (
    ReportColumn("finding", "finding", CellKind.TEXT),
    ReportColumn("model", "model", CellKind.NAME),
    ReportColumn("models_count", "models", CellKind.COUNT),
    ReportColumn("command", "command", CellKind.NAME),
)
