"""The report on a whole registry."""

from __future__ import annotations

from sqlalchemy.orm import Session

from organs.registry.amounts import size_text
from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.reports import (
    kinds_of_models,
    matrix_figures,
    running_totals,
    visible_bytes,
)
from organs.registry.catalog.search import CHIMERA
from organs.registry.entities.about import RegistryTotals
from organs.registry.entities.report import (
    ROWS_DEFAULT,
    CellKind,
    Report,
    ReportFigure,
    ReportFigures,
)
from organs.registry.reports.actions import actions_table
from organs.registry.reports.ingests import ingest_sections
from organs.registry.reports.sections import ranking_table, registry_tables, scale_tables, wells_table
from organs.registry.reports.words import CLOSING, OPENING


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
    ranking = ranking_table(session, matrices, models, limit)
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
    equal = max(0, files - totals.size_bytes)
    packed = max(0, totals.size_bytes - totals.stored_bytes)
    share = f"{saved / files:.0%}" if files else "0%"
    return {
        "saved_bytes": ReportFigure(
            "disk saved",
            saved,
            CellKind.SIZE,
            f"{share} of the {size_text(files)} of all files: {size_text(equal)} because equal parts are stored once "
            f"and chimeras share them, {size_text(packed)} by compression.",
        ),
        "stored_bytes": ReportFigure(
            "stored", totals.stored_bytes, CellKind.SIZE, "What the registry needs on the disk, without its database."
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
}
