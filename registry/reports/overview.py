"""The report on a whole registry."""

from __future__ import annotations

from sqlalchemy.orm import Session

from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.reports import (
    extreme_organs,
    kinds_of_models,
    lowest_thetas_of_models,
    matrix_figures,
    running_totals,
    visible_bytes,
)
from organs.registry.entities.report import (
    ROWS_DEFAULT,
    Cell,
    CellKind,
    Report,
    ReportColumn,
    ReportFigure,
    ReportFigures,
    ReportTable,
    table,
)
from organs.registry.reports.sections import ranking_table, scale_tables, types_table
from organs.registry.reports.words import CAUTION, CLOSING, LISTED, OPENING, WELLS, caution


def current_report(session: Session) -> Report:
    """Return the report with the default number of rows, computed once for each state of the catalog."""
    return cached(session, "registry report", lambda: registry_report(session))


def registry_report(session: Session, limit: int = ROWS_DEFAULT) -> Report:
    """Return the report on all visible models; tables of models have at most `limit` rows, and say so."""
    types = types_table(
        session,
        None,
        before="All tensors of all models: a tensor that three models share counts three times.",
        empty="There are no tensors.",
    )
    tensors = sum(int(row["tensors_count"] or 0) for row in types.items)
    counts = {(kind, complete): count for kind, complete, count in kinds_of_models(session)}
    matrices = matrix_figures(session)
    ranking = ranking_table(session, matrices, counts.get(("model", True), 0), limit)
    scale, families = scale_tables(session, matrices, limit)
    return Report(
        title="Report on the registry",
        main="ranking",
        opening=OPENING,
        sections={
            "figures": _figures(session, counts, tensors),
            "ranking": ranking,
            "types": types,
            "scale": scale,
            "families": families,
            "wells": _wells(session, limit),
        },
        closing=CLOSING,
    )


def _figures(session: Session, counts: dict[tuple[str, bool], int], tensors: int) -> ReportFigures:
    totals = running_totals(session)
    figures = {
        "models_count": ReportFigure("models", sum(counts.values()), CellKind.COUNT, _kinds(counts)),
        "tensors_count": ReportFigure("tensors", tensors, CellKind.COUNT, "Counted in every model that has them."),
        "organs_count": ReportFigure(
            "distinct tensors",
            totals.organs,
            CellKind.COUNT,
            "Tensors that are identical to the last byte count once, and are stored once.",
        ),
        "size_bytes": ReportFigure(
            "size of the files",
            visible_bytes(session),
            CellKind.SIZE,
            "The total of all files of these models. Tensors that they share are stored only once.",
        ),
    }
    empty = () if counts else ("Nothing is registered yet. To begin: organ ingest FILE.gguf",)
    return ReportFigures(title="The registry in figures", before=empty, figures=figures, after=())


def _kinds(counts: dict[tuple[str, bool], int]) -> str:
    kinds = [
        f"{count} {singular if count == 1 else plural}"
        for (kind, complete), (singular, plural) in _KIND_WORDS.items()
        if (count := counts.get((kind, complete), 0))
    ]
    return f"Registered files, or sets of files: {'; '.join(kinds) or 'none'}."


def _wells(session: Session, limit: int) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for model_id, _ in lowest_thetas_of_models(session, limit):
        ((organ, shape, elements, model),) = extreme_organs(session, model_id, 1, lowest=True)
        place = (model.full_name, organ.name, organ.type, organ.dtype, shape, elements)
        rows.append((*place, organ.theta, caution(organ.dtype, elements)))
    return table(
        title="Gravitational wells",
        columns=_WELL_COLUMNS,
        rows=rows,
        before=(f"The tensor with the lowest θ of each model, the lowest first; at most {limit} models. {LISTED}",),
        after=(WELLS, CAUTION),
        empty="No tensor has a θ.",
    )


_KIND_WORDS = {
    ("model", True): ("complete model", "complete models"),
    ("chimera", True): ("chimera, composed in this registry", "chimeras, composed in this registry"),
    ("model", False): ("incomplete model", "incomplete models"),
    ("adapter", True): ("adapter, a small change of another model", "adapters, small changes of other models"),
    ("vocabulary", True): ("vocabulary, words without weights", "vocabularies, words without weights"),
}
_WELL_COLUMNS = (
    ReportColumn("model", "model", CellKind.NAME),
    ReportColumn("tensor", "tensor", CellKind.NAME),
    ReportColumn("type", "type", CellKind.TEXT),
    ReportColumn("dtype", "tensor type", CellKind.TEXT),
    ReportColumn("shape", "shape", CellKind.TEXT),
    ReportColumn("elements_count", "numbers", CellKind.LARGE, data_only=True),
    ReportColumn("theta_degrees", "θ", CellKind.DEGREES),
    ReportColumn("caution", "caution", CellKind.TEXT),
)
