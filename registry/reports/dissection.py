"""The report on one model: its contents, what it shares, its relatives, and its measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from organs.registry.amounts import size_text
from organs.registry.anatomy import OrganType, Place, Tower
from organs.registry.catalog.queries.model_lists import composed_among, model_kind
from organs.registry.catalog.queries.organs import shared_of
from organs.registry.catalog.queries.reports import dtypes_of, methods_of, tensor_rows, unusual_organs
from organs.registry.catalog.queries.storage import sizes_of_models
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import CHIMERA, PARTIAL
from organs.registry.columns import CellKind
from organs.registry.entities.report import (
    ORGANS_DEFAULT,
    Cell,
    Report,
    ReportColumn,
    ReportFigure,
    ReportFigures,
    ReportSection,
    ReportTable,
    table,
)
from organs.registry.gguf import dtype_by_name
from organs.registry.kinds import KIND_NOTES
from organs.registry.measures import THETA_LEGEND, theta_caution
from organs.registry.relatives.lineage import lineage_of
from organs.registry.reports.groups import (
    CAUTION,
    DTYPE,
    MATRIX_THETA,
    MEAN_THETA,
    MODEL,
    SIZE,
    TENSORS,
    TensorReading,
    blocks_of,
    components_of,
    highest_of,
    matrix_theta,
    mean_of,
    types_of,
    wells_of,
)
from organs.registry.reports.words import (
    ALIKE,
    ANOMALIES,
    CLOSING,
    FORMATS,
    METHODS,
    NO_ANOMALIES,
    NO_CONCLUSION,
    NO_TENSORS,
    OPENING,
)

RELATIVES_MAX = 50
"""Relatives in the table; the most similar come first."""


def model_report(session: Session, model: ModelRow, limit: int = ORGANS_DEFAULT, *, complete: bool) -> Report:
    """Return the dissection report on `model`; tables of single tensors have at most `limit` rows, and say so.

    If `complete`, it has the stored size, which only the owner of the registry may see.
    """
    title = f"Dissection of {model.full_name}"
    readings = [reading_of(row) for row in tensor_rows(session, model.id)]
    kind = model_kind(model, composed=bool(composed_among(session, [model.id])))
    about: dict[str, ReportSection] = {
        "model": _identity(session, model, kind, readings, complete=complete),
        "notes": table(
            title="Notes on its files",
            columns=(ReportColumn("note", "note", CellKind.TEXT), ReportColumn("consequence", "kind", CellKind.TEXT)),
            rows=[
                *((reason, "cannot be assembled") for reason in model.unassemblable),
                *((flag, "unusual") for flag in model.flags),
            ],
            before=("Unusual properties of the files, not of the weights.",),
            after=('"Unusual" properties are stored exactly and do no harm.',),
            empty="Its files have no unusual properties.",
        ),
    }
    if not model.tensors:
        return Report(title=title, main="model", opening=(NO_TENSORS,), sections=about, closing=(NO_CONCLUSION,))
    relatives, findings = _relatives(session, model)
    every = f"All tensors of this {kind}."
    no_blocks = "No block has attention or feed-forward tensors or norms that were measured."
    sections: dict[str, ReportSection] = {
        "relatives": relatives,
        "findings": findings,
        "dtypes": _dtypes(session, model),
        "types": types_of(readings, before=every, empty=NO_TENSORS),
        "components": components_of(readings, before=every, empty=NO_TENSORS),
        **({} if model.kind == "adapter" else {"blocks": blocks_of(readings, empty=no_blocks)}),
        "highest": highest_of(readings, limit),
        "wells": wells_of(readings, limit),
        "anomalies": _anomalies(session, model, limit),
        "methods": _methods(session, model),
    }
    return Report(title=title, main="types", opening=OPENING, sections=about | sections, closing=CLOSING)


def reading_of(row: Any) -> TensorReading:
    """Return a tensor of `catalog.queries.reports`, with its measures."""
    return TensorReading(
        name=row.name,
        place=Place(OrganType(row.type), Tower(row.tower), row.block, row.slot),
        dtype=row.dtype,
        shape=row.shape,
        elements=row.elements,
        size_bytes=row.size_bytes,
        theta=row.theta,
        spectral_signal=row.spectral_signal,
    )


def _identity(
    session: Session, model: ModelRow, kind: str, readings: Sequence[TensorReading], *, complete: bool
) -> ReportFigures:
    figures = {
        "title": ReportFigure("title", model.title, CellKind.TEXT, "The title in its file."),
        "kind": ReportFigure("kind", kind, CellKind.TEXT, _KIND_WORDS[kind]),
        "architecture": ReportFigure(
            "architecture", model.architecture, CellKind.TEXT, "The architecture that its file names."
        ),
        "size_bytes": ReportFigure("size of its files", model.size_bytes, CellKind.SIZE, "The original files."),
    }
    if complete:
        figures["stored_bytes"] = ReportFigure(
            "stored size",
            sizes_of_models(session, [model.id]).stored_bytes,
            CellKind.SIZE,
            "The size of its distinct parts on the disk; parts that other models share count in full.",
        )
    if model.tensors:
        figures |= _contents(session, model, readings)
    return ReportFigures(title="The model", before=(), figures=figures, after=())


def _contents(session: Session, model: ModelRow, readings: Sequence[TensorReading]) -> dict[str, ReportFigure]:
    """Return the sizes of a model with tensors, what it shares with other models, and the means of its measures."""
    blocks = {(reading.place.tower, reading.place.block) for reading in readings if reading.place.block is not None}
    layers = "Layers of the same structure, one after another."
    if model.kind == "adapter":
        layers = "Layers of the base model that it changes."
    shared = shared_of(session, model.id)
    others = "1 other model" if shared.other_models == 1 else f"{shared.other_models or 'no'} other models"
    if shared.is_lower_bound:
        others = f"at least {shared.other_models:,} other models"
    count = sum(reading.is_matrix for reading in readings)
    lists = "" if count == model.tensors else " Short lists of numbers, such as norms, change it most."
    return {
        "blocks_count": ReportFigure("blocks", len(blocks), CellKind.COUNT, layers),
        "parameters_count": ReportFigure(
            "parameters", model.parameters, CellKind.LARGE, "The count of numbers in its weights."
        ),
        "tensors_count": ReportFigure("tensors", model.tensors, CellKind.COUNT, "The tables of the weights."),
        "shared_organs_count": ReportFigure(
            "tensors shared",
            shared.shared_organs,
            CellKind.COUNT,
            f"Of its {shared.organs:,} distinct tensors; identical to the last byte in {others}.",
        ),
        "shared_bytes": ReportFigure(
            "bytes shared",
            shared.shared_bytes,
            CellKind.SIZE,
            f"Of {size_text(shared.size_bytes)} of distinct tensors. Vocabularies can also be shared and do not count.",
        ),
        "mean_theta_degrees": ReportFigure(
            "mean θ", model.mean_theta, CellKind.DEGREES, f"The average over its tensors.{lists}"
        ),
        "matrix_mean_theta_degrees": ReportFigure(
            "matrix θ",
            matrix_theta(readings),
            CellKind.DEGREES,
            f"The average over its {count:,} matrices, the tensors with rows and columns.",
        ),
        "mean_signal": ReportFigure(
            "mean signal",
            model.mean_signal,
            CellKind.SHARE,
            "The sine of θ, from 0 to 1, averaged over its tensors. A higher value does not mean more useful content.",
        ),
        "mean_spectral_signal": ReportFigure(
            "mean spectral signal",
            mean_of(reading.spectral_signal for reading in readings),
            CellKind.SHARE,
            "Averaged over its matrices; random numbers give 0.000. More means more pattern, which is not necessarily "
            "useful.",
        ),
    }


_KIND_WORDS = {
    "model": "A model has weights of its own.",
    "adapter": "An adapter has small changes of the weights of another model and does nothing without it. Its measures "
    "are not comparable with those of complete models.",
    **KIND_NOTES,
    CHIMERA: "A chimera was composed in this registry from tensors of other models, or computed from them.",
    PARTIAL: "A partial model has only some tensors, for grafting into the base that it names.",
}


def _relatives(session: Session, model: ModelRow) -> tuple[ReportTable, ReportTable]:
    """Return the relatives of `model`, and the findings about them."""
    lineage = lineage_of(session, model)
    total = len(lineage.edges) + lineage.left_out
    shown = lineage.edges[:RELATIVES_MAX]
    cut = f" The first {len(shown)} of {total} are listed." if len(shown) < total else ""
    relatives = table(
        title="Relatives",
        columns=(
            ReportColumn("direction", "direction", CellKind.TEXT),
            MODEL,
            ReportColumn("relation", "relation", CellKind.TEXT),
            ReportColumn("evidence", "evidence", CellKind.TEXT),
            ReportColumn("change", "change", CellKind.NUMBER),
            ReportColumn("mean_correlation", "alike", CellKind.SHARE),
            ReportColumn("compared_count", "matrices", CellKind.COUNT),
        ),
        rows=[
            (
                *(edge.direction, edge.model or edge.text, edge.relation, edge.evidence),
                *(edge.change, edge.likeness, edge.compared or None),
            )
            for edge in shown
        ],
        before=(
            (
                "Parents that its file declares (declared), actions of this registry (recorded), and models with "
                f"similar weights at the same places (measured).{cut}"
            ),
        ),
        after=(ALIKE,),
        empty="No relatives are known.",
    )
    nothing = "None: its declarations agree with its weights."
    if model.kind == "adapter":
        nothing = "None. The weights of an adapter are not compared with those of its base."
    return relatives, table(
        title="Findings about its relatives",
        columns=(
            ReportColumn("severity", "kind", CellKind.TEXT),
            ReportColumn("code", "code", CellKind.TEXT, data_only=True),
            ReportColumn("sentence", "finding", CellKind.TEXT),
        ),
        rows=[(finding.severity.value, finding.code, finding.sentence) for finding in lineage.findings],
        before=("Places where its file and its weights disagree, or cannot be compared.",),
        after=("They are computed for every report, from the models that are registered at that time.",),
        empty=nothing,
    )


def _dtypes(session: Session, model: ModelRow) -> ReportTable:
    dtypes = dtypes_of(session, model.id)
    total = sum(size_bytes for _, _, size_bytes, *_ in dtypes)
    rows: list[tuple[Cell, ...]] = []
    for name, tensors, size_bytes, mean_theta, of_matrices in dtypes:
        dtype = dtype_by_name(name)
        bits = dtype.bits_per_value if dtype.is_sized else None
        elements = size_bytes // dtype.block_bytes * dtype.block_elements
        caution = theta_caution(mean_theta, name, elements // tensors)
        rows.append((name, bits, tensors, size_bytes, size_bytes / total, mean_theta, of_matrices, caution))
    return table(
        title="Tensor types",
        columns=(
            DTYPE,
            ReportColumn("bits_per_number", "bits", CellKind.NUMBER),
            *(TENSORS, SIZE),
            ReportColumn("size_share", "share", CellKind.PERCENT),
            *(MEAN_THETA, MATRIX_THETA, CAUTION),
        ),
        rows=rows,
        before=(
            "How the numbers are stored: the share of each tensor type in the bytes of the tensors, and its mean θ.",
        ),
        after=(FORMATS, THETA_LEGEND),
        empty=NO_TENSORS,
    )


def _anomalies(session: Session, model: ModelRow, limit: int) -> ReportTable:
    """Return the tensors with NaN or infinite values, with one value only, or without a θ."""
    unusual, total = unusual_organs(session, model.id, limit)
    return table(
        title="Anomalies",
        columns=(
            ReportColumn("tensor", "tensor", CellKind.NAME),
            DTYPE,
            ReportColumn("sample_count", "sampled", CellKind.LARGE),
            ReportColumn("nan_count", "NaN", CellKind.COUNT),
            ReportColumn("infinite_count", "infinite", CellKind.COUNT),
            ReportColumn("constant", "single value", CellKind.TEXT),
            ReportColumn("reason", "why not measured", CellKind.TEXT),
        ),
        rows=[
            (name, dtype, sample_size, nan, infinite, "yes" if constant else "no", reason)
            for name, dtype, sample_size, nan, infinite, constant, reason in unusual
        ],
        before=(
            (
                f"{total:,} of {model.tensors:,} tensors; at most {limit} are listed. They have NaN or infinite "
                "values, have only a single value, or could not be measured."
            ),
        ),
        after=(ANOMALIES,),
        empty=NO_ANOMALIES,
    )


def _methods(session: Session, model: ModelRow) -> ReportTable:
    gives = {"z1": "θ, |Z| and their parts", "mp1": "spectral signal and ranks"}
    return table(
        title="How it was measured",
        columns=(
            ReportColumn("method", "method", CellKind.TEXT),
            ReportColumn("gives", "gives", CellKind.TEXT),
            TENSORS,
            ReportColumn("sample_minimum_count", "least", CellKind.LARGE),
            ReportColumn("sample_maximum_count", "most", CellKind.LARGE),
            ReportColumn("sampled_share", "sampled", CellKind.PERCENT),
        ),
        rows=[
            (
                *(method, gives.get(method, "another measure"), tensors, least, most),
                int(sampled) / int(values) if values else None,
            )
            for method, tensors, least, most, sampled, values in methods_of(session, model.id)
        ],
        before=("The methods, the smallest and the largest sample of a tensor, and the share of all numbers.",),
        after=(METHODS,),
        empty=NO_TENSORS,
    )
