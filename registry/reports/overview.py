"""The report on a whole registry."""

from __future__ import annotations

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.reports import (
    extreme_organs,
    kinds_of_models,
    lowest_thetas_of_models,
    matrix_figures,
    running_totals,
    visible_bytes,
)
from organs.registry.reports.document import Cell, Column, Fact, Facts, Kind, Report, Table
from organs.registry.reports.sections import ranking_table, scale_tables, types_table
from organs.registry.reports.words import CAUTION, CLOSING, LISTED, OPENING, WELLS, caution

ROWS_DEFAULT = 50
"""Rows of a table of models, unless told otherwise."""


def registry_report(session: Session, limit: int = ROWS_DEFAULT) -> Report:
    """The report on all visible models; tables of models have at most `limit` rows and say so."""
    types = types_table(
        session,
        None,
        before="All tensors of all models, counted at every place that they have: one that three models share counts "
        "three times.",
        empty="There are no tensors.",
    )
    tensors = sum(figures["tensors_count"] for figures in types.values()["items"])
    counts = {(kind, complete): count for kind, complete, count in kinds_of_models(session)}
    matrices = matrix_figures(session)
    ranking = ranking_table(session, matrices, counts.get(("model", True), 0), limit)
    return Report(
        title="Report on the registry",
        opening=OPENING,
        sections=(
            _figures(session, counts, tensors),
            ranking,
            types,
            *scale_tables(session, matrices, limit),
            _wells(session, limit),
        ),
        closing=CLOSING,
        main="ranking",
    )


def _figures(session: Session, counts: dict[tuple[str, bool], int], tensors: int) -> Facts:
    totals = running_totals(session)
    facts = (
        Fact("models_count", "models", sum(counts.values()), Kind.COUNT, _kinds(counts)),
        Fact("tensors_count", "tensors", tensors, Kind.COUNT, "Counted at every place that they have in a model."),
        Fact(
            "organs_count",
            "different tensors",
            totals.organs,
            Kind.COUNT,
            "Tensors that are the same to the last byte are one, and are kept once.",
        ),
        Fact(
            "size_bytes",
            "size of the files",
            visible_bytes(session),
            Kind.SIZE,
            "All files of these models together. `organ storage` says how much room they take here.",
        ),
    )
    empty = () if counts else ("Nothing is registered yet. To begin: organ ingest FILE.gguf",)
    return Facts("figures", "The registry in figures", facts, empty)


def _kinds(counts: dict[tuple[str, bool], int]) -> str:
    found = [
        f"{count} {one if count == 1 else many}"
        for (kind, complete), (one, many) in _KIND_WORDS.items()
        if (count := counts.get((kind, complete), 0))
    ]
    return f"Files, or sets of files, that were taken in: {'; '.join(found) or 'none'}."


def _wells(session: Session, limit: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for model_id, _ in lowest_thetas_of_models(session, limit):
        ((organ, shape, elements, model),) = extreme_organs(session, model_id, 1, lowest=True)
        place = (model.full_name, organ.name, organ.type, organ.dtype, shape, elements)
        rows.append((*place, organ.theta, caution(organ.dtype, elements)))
    return Table(
        key="wells",
        title="Gravitational wells",
        columns=_WELL_COLUMNS,
        rows=tuple(rows),
        before=(f"The tensor with the lowest θ of each model, the lowest first; at most {limit} models. {LISTED}",),
        after=(WELLS, CAUTION),
        empty="No tensor has a θ.",
    )


_KIND_WORDS = {
    ("model", True): ("complete model", "complete models"),
    ("chimera", True): ("chimera, composed here", "chimeras, composed here"),
    ("model", False): ("model of which only a part is here", "models of which only a part is here"),
    ("adapter", True): ("adapter, a small change to another model", "adapters, small changes to other models"),
    ("vocabulary", True): ("vocabulary, words without weights", "vocabularies, words without weights"),
}
_WELL_COLUMNS = (
    Column("model", "model", Kind.NAME),
    Column("tensor", "tensor", Kind.NAME),
    Column("type", "type", Kind.TEXT),
    Column("dtype", "format", Kind.TEXT),
    Column("shape", "shape", Kind.TEXT),
    Column("elements_count", "numbers", Kind.LARGE, data_only=True),
    Column("theta_degrees", "θ", Kind.DEGREES),
    Column("caution", "caution", Kind.TEXT),
)
