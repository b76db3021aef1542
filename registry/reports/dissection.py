"""The report on one model: what it is made of, what it shares, how its organs read."""

from __future__ import annotations

import json

from sqlalchemy.orm import Session

from organs.registry.amounts import size_text
from organs.registry.catalog.queries.organs import shared_of
from organs.registry.catalog.queries.reports import (
    BlockMeans,
    Stored,
    blocks_of,
    count_blocks,
    dtypes_of,
    matrix_figures,
    methods_of,
    stored_of,
)
from organs.registry.catalog.tables import Model
from organs.registry.entities.report import (
    ORGANS_DEFAULT,
    Cell,
    CellKind,
    Report,
    ReportColumn,
    ReportFigure,
    ReportFigures,
    ReportSection,
    ReportTable,
    table,
)
from organs.registry.reports.sections import (
    odd_table,
    organ_table,
    relatives_tables,
    types_table,
)
from organs.registry.reports.words import (
    BLOCKS,
    CLOSING,
    FORMATS,
    HIGHEST,
    METHODS,
    NO_CONCLUSION,
    NO_TENSORS,
    OPENING,
    WELLS,
    bits_of,
)

BLOCKS_MAX = 1000
"""Blocks that are listed; the largest models of today have some hundreds."""


def model_report(session: Session, model: Model, limit: int = ORGANS_DEFAULT) -> Report:
    """Return the dissection report on `model`; lists of single tensors have at most `limit` rows and say so."""
    title = f"Dissection of {model.full_name}"
    about: dict[str, ReportSection] = {"model": _identity(session, model), "notes": _notes(model)}
    if not model.tensors:
        return Report(title=title, main="model", opening=(NO_TENSORS,), sections=about, closing=(NO_CONCLUSION,))
    relatives, findings = relatives_tables(session, model)
    blocks = {} if model.kind == "adapter" else {"blocks": _blocks(session, model)}
    sections: dict[str, ReportSection] = {
        "relatives": relatives,
        "findings": findings,
        "dtypes": _dtypes(session, model),
        "types": types_table(session, model.id, before=f"All tensors of this {model.kind}.", empty=NO_TENSORS),
        **blocks,
        "highest": organ_table(session, model, limit, title="Highest θ", after=HIGHEST),
        "wells": organ_table(session, model, limit, title="Gravitational wells: lowest θ", after=WELLS, lowest=True),
        "anomalies": odd_table(session, model, limit),
        "methods": _methods(session, model),
    }
    return Report(title=title, main="types", opening=OPENING, sections=about | sections, closing=CLOSING)


def _identity(session: Session, model: Model) -> ReportFigures:
    figures = {
        "title": ReportFigure("title", model.title, CellKind.TEXT, "What its file calls it."),
        "kind": ReportFigure("kind", _kind(model), CellKind.TEXT, _KIND_WORDS[model.kind]),
        "architecture": ReportFigure(
            "architecture", model.architecture, CellKind.TEXT, "The blueprint, as its file names it."
        ),
        **_sizes(model, stored_of(session, model.id)),
    }
    if model.tensors:
        figures |= {**_contents(session, model), **_sharing(session, model), **_readings(session, model)}
    return ReportFigures(title="What it is", before=(), figures=figures, after=())


def _sizes(model: Model, stored: Stored) -> dict[str, ReportFigure]:
    return {
        "size_bytes": ReportFigure("size of its files", model.size_bytes, CellKind.SIZE, "As they came in."),
        "stored_bytes": ReportFigure(
            "stored size",
            stored.stored_bytes,
            CellKind.SIZE,
            "What its different parts take on the disk, compressed; those that other models need too count in full.",
        ),
    }


def _contents(session: Session, model: Model) -> dict[str, ReportFigure]:
    blocks = count_blocks(session, model.id)
    layers = "Layers of the other model that it changes." if model.kind == "adapter" else _LAYERS
    return {
        "blocks_count": ReportFigure("blocks", blocks, CellKind.COUNT, layers),
        "parameters_count": ReportFigure(
            "parameters", model.parameters, CellKind.LARGE, "How many numbers its weights are."
        ),
        "tensors_count": ReportFigure(
            "tensors", model.tensors, CellKind.COUNT, "The tables that the weights stand in."
        ),
    }


def _sharing(session: Session, model: Model) -> dict[str, ReportFigure]:
    shared = shared_of(session, model.id)
    others = _models(shared.other_models, shared.is_least)
    return {
        "shared_organs_count": ReportFigure(
            "tensors shared",
            shared.shared_organs,
            CellKind.COUNT,
            f"Of its {shared.organs:,} different tensors; the same to the last byte in {others}.",
        ),
        "shared_bytes": ReportFigure(
            "bytes shared",
            shared.shared_bytes,
            CellKind.SIZE,
            f"Of {size_text(shared.size_bytes)} of different tensors. Vocabularies can be shared too and do not count.",
        ),
    }


def _readings(session: Session, model: Model) -> dict[str, ReportFigure]:
    figures = matrix_figures(session, model.id).get(model.id)
    count = 0 if figures is None else figures.matrices
    lists = "" if count == model.tensors else _MOVED_BY_LISTS
    theta, spectral = (None, None) if figures is None else (figures.mean_theta, figures.mean_spectral_signal)
    return {
        "mean_theta_degrees": ReportFigure("mean θ", model.mean_theta, CellKind.DEGREES, _MEAN_THETA + lists),
        "matrix_mean_theta_degrees": ReportFigure(
            "matrix θ",
            theta,
            CellKind.DEGREES,
            f"The average over its {count:,} matrices alone, the tensors with rows and columns.",
        ),
        "mean_signal": ReportFigure("mean signal", model.mean_signal, CellKind.SHARE, _MEAN_SIGNAL),
        "mean_spectral_signal": ReportFigure("mean spectral signal", spectral, CellKind.SHARE, _MEAN_SPECTRAL),
    }


def _models(count: int, is_least: bool) -> str:
    if is_least:
        return f"at least {count:,} other models"
    return "1 other model" if count == 1 else f"{count or 'no'} other models"


def _kind(model: Model) -> str:
    return model.kind if model.complete else f"{model.kind}, only a part"


def _notes(model: Model) -> ReportTable:
    flags = [(str(flag), "odd") for flag in json.loads(model.flags)]
    reasons = [(str(reason), "never written out again") for reason in json.loads(model.unassemblable)]
    return table(
        title="Notes on its files",
        columns=(ReportColumn("note", "note", CellKind.TEXT), ReportColumn("consequence", "kind", CellKind.TEXT)),
        rows=tuple(reasons + flags),
        before=("What is unusual in the files themselves, not in the weights.",),
        after=('"Odd" is kept as it is and does no harm here.',),
        empty="Its files have nothing unusual about them.",
    )


def _dtypes(session: Session, model: Model) -> ReportTable:
    found = dtypes_of(session, model.id)
    total = sum(one.size_bytes for one in found)
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        size = (one.size_bytes, one.size_bytes / total)
        rows.append((one.dtype, bits_of(one.dtype), one.tensors, *size, one.mean_theta, one.matrix_mean_theta))
    return table(
        title="Number formats",
        columns=_DTYPE_COLUMNS,
        rows=rows,
        before=("How the numbers are written down, each format's share of the tensors' bytes, and its mean θ.",),
        after=(FORMATS,),
        empty=NO_TENSORS,
    )


def _blocks(session: Session, model: Model) -> ReportTable:
    rows = blocks_of(session, model.id, BLOCKS_MAX)
    read = any(value is not None for row in rows for value in _means(row))
    return table(
        title="Block by block",
        columns=_BLOCK_COLUMNS,
        rows=tuple((row.tower, row.block, row.tensors, *_means(row)) for row in rows) if read else (),
        before=(
            "Means over the attention tensors (skeleton) and the feed-forward tensors (organ) of each block, from the "
            "first block that the input passes to the last."
            + (f" The first {BLOCKS_MAX} are listed." if len(rows) == BLOCKS_MAX else ""),
        ),
        after=(BLOCKS,),
        empty="No block has attention or feed-forward tensors that were measured.",
    )


def _means(row: BlockMeans) -> tuple[float | None, ...]:
    return row.skeleton_theta, row.organ_theta, row.skeleton_spectral_signal, row.organ_spectral_signal


def _methods(session: Session, model: Model) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for method, tensors, least, most, looked, values in methods_of(session, model.id):
        what = _METHOD_WORDS.get(method, "another reading")
        rows.append((method, what, tensors, least, most, int(looked) / int(values) if values else None))
    return table(
        title="How it was measured",
        columns=_METHOD_COLUMNS,
        rows=rows,
        before=("The methods, the least and the most numbers of a tensor that each looked at, and the share of all.",),
        after=(METHODS,),
        empty=NO_TENSORS,
    )


_LAYERS = "Layers of the same build, one after the other."
_MEAN_THETA = "The plain average over its tensors."
_MOVED_BY_LISTS = " Short lists of numbers, such as norms, move it most."
_MEAN_SIGNAL = "The sine of θ, from 0 to 1, averaged over its tensors. A higher value is not more useful content."
_MEAN_SPECTRAL = (
    "Averaged over its matrices; 0.000 is what random numbers give. More is more pattern, which need not be of use."
)
_KIND_WORDS = {
    "model": "A model has weights of its own.",
    "adapter": "An adapter has small changes to the weights of another model and does nothing without it. Its readings "
    "are not comparable with those of whole models.",
    "vocabulary": "A vocabulary has words and no weights.",
}
_METHOD_WORDS = {"z1": "θ, |Z| and what they are made of", "mp1": "spectral signal and stable rank"}
_DTYPE_COLUMNS = (
    ReportColumn("dtype", "format", CellKind.TEXT),
    ReportColumn("bits_per_number", "bits", CellKind.NUMBER),
    ReportColumn("tensors_count", "tensors", CellKind.COUNT),
    ReportColumn("size_bytes", "size", CellKind.SIZE),
    ReportColumn("size_share", "share", CellKind.PERCENT),
    ReportColumn("mean_theta_degrees", "mean θ", CellKind.DEGREES),
    ReportColumn("matrix_mean_theta_degrees", "matrix θ", CellKind.DEGREES),
)
_BLOCK_COLUMNS = (
    ReportColumn("tower", "tower", CellKind.TEXT),
    ReportColumn("block", "block", CellKind.COUNT),
    ReportColumn("tensors_count", "tensors", CellKind.COUNT),
    ReportColumn("skeleton_mean_theta_degrees", "θ skeleton", CellKind.DEGREES),
    ReportColumn("organ_mean_theta_degrees", "θ organ", CellKind.DEGREES),
    ReportColumn("skeleton_mean_spectral_signal", "spectral skeleton", CellKind.SHARE),
    ReportColumn("organ_mean_spectral_signal", "spectral organ", CellKind.SHARE),
)
_METHOD_COLUMNS = (
    ReportColumn("method", "method", CellKind.TEXT),
    ReportColumn("gives", "gives", CellKind.TEXT),
    ReportColumn("tensors_count", "tensors", CellKind.COUNT),
    ReportColumn("sample_minimum_count", "least", CellKind.LARGE),
    ReportColumn("sample_maximum_count", "most", CellKind.LARGE),
    ReportColumn("sampled_share", "looked at", CellKind.PERCENT),
)
