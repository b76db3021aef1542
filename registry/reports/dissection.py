"""The report on one model: its contents, what it shares, and its measurements."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from organs.registry.amounts import size_text
from organs.registry.catalog.queries.model_lists import composed_among, model_kind
from organs.registry.catalog.queries.organs import shared_of
from organs.registry.catalog.queries.reports import dtypes_of, matrix_figures, methods_of
from organs.registry.catalog.queries.storage import sizes_of_models
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import CHIMERA, PARTIAL
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
from organs.registry.entities.storage import StoredSizes
from organs.registry.gguf import dtype_by_name
from organs.registry.kinds import KIND_NOTES
from organs.registry.measures import THETA_LEGEND, theta_caution
from organs.registry.reports.groups import (
    CAUTION_COLUMN,
    TensorReading,
    blocks_of,
    components_of,
    count_blocks,
    highest_of,
    types_of,
    wells_of,
)
from organs.registry.reports.sections import anomalies_table, readings_of, relatives_tables
from organs.registry.reports.words import (
    CLOSING,
    FORMATS,
    METHODS,
    NO_CONCLUSION,
    NO_TENSORS,
    OPENING,
)


def model_report(session: Session, model: ModelRow, limit: int = ORGANS_DEFAULT, *, complete: bool = False) -> Report:
    """Return the dissection report on `model`; tables of single tensors have at most `limit` rows, and say so.

    If `complete`, it has the stored size, which only the owner of the registry may see.
    """
    title = f"Dissection of {model.full_name}"
    readings = readings_of(session, model.id)
    about: dict[str, ReportSection] = {
        "model": _identity(session, model, readings, complete=complete),
        "notes": _notes(model),
    }
    if not model.tensors:
        return Report(title=title, main="model", opening=(NO_TENSORS,), sections=about, closing=(NO_CONCLUSION,))
    relatives, findings = relatives_tables(session, model)
    every = f"All tensors of this {_kind(session, model)}."
    blocks = {} if model.kind == "adapter" else {"blocks": blocks_of(readings, empty=_NO_BLOCKS)}
    sections: dict[str, ReportSection] = {
        "relatives": relatives,
        "findings": findings,
        "dtypes": _dtypes(session, model),
        "types": types_of(readings, before=every, empty=NO_TENSORS),
        "components": components_of(readings, before=every, empty=NO_TENSORS),
        **blocks,
        "highest": highest_of(readings, limit),
        "wells": wells_of(readings, limit),
        "anomalies": anomalies_table(session, model, limit),
        "methods": _methods(session, model),
    }
    return Report(title=title, main="types", opening=OPENING, sections=about | sections, closing=CLOSING)


def _identity(session: Session, model: ModelRow, readings: Sequence[TensorReading], *, complete: bool) -> ReportFigures:
    figures = {
        "title": ReportFigure("title", model.title, CellKind.TEXT, "The title in its file."),
        "kind": ReportFigure("kind", kind := _kind(session, model), CellKind.TEXT, _KIND_WORDS[kind]),
        "architecture": ReportFigure(
            "architecture", model.architecture, CellKind.TEXT, "The architecture that its file names."
        ),
        **_sizes(model, sizes_of_models(session, [model.id]) if complete else None),
    }
    if model.tensors:
        figures |= {**_contents(model, count_blocks(readings)), **_sharing(session, model), **_readings(session, model)}
    return ReportFigures(title="The model", before=(), figures=figures, after=())


def _sizes(model: ModelRow, stored: StoredSizes | None) -> dict[str, ReportFigure]:
    size = {"size_bytes": ReportFigure("size of its files", model.size_bytes, CellKind.SIZE, "The original files.")}
    if stored is None:
        return size
    return size | {
        "stored_bytes": ReportFigure(
            "stored size",
            stored.stored_bytes,
            CellKind.SIZE,
            "The size of its distinct parts on the disk; parts that other models share count in full.",
        ),
    }


def _contents(model: ModelRow, blocks: int) -> dict[str, ReportFigure]:
    layers = "Layers of the base model that it changes." if model.kind == "adapter" else _LAYERS
    return {
        "blocks_count": ReportFigure("blocks", blocks, CellKind.COUNT, layers),
        "parameters_count": ReportFigure(
            "parameters", model.parameters, CellKind.LARGE, "The count of numbers in its weights."
        ),
        "tensors_count": ReportFigure("tensors", model.tensors, CellKind.COUNT, "The tables of the weights."),
    }


def _sharing(session: Session, model: ModelRow) -> dict[str, ReportFigure]:
    shared = shared_of(session, model.id)
    others = _models(shared.other_models, shared.is_lower_bound)
    return {
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
    }


def _readings(session: Session, model: ModelRow) -> dict[str, ReportFigure]:
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
            f"The average over its {count:,} matrices, the tensors with rows and columns.",
        ),
        "mean_signal": ReportFigure("mean signal", model.mean_signal, CellKind.SHARE, _MEAN_SIGNAL),
        "mean_spectral_signal": ReportFigure("mean spectral signal", spectral, CellKind.SHARE, _MEAN_SPECTRAL),
    }


def _models(count: int, is_lower_bound: bool) -> str:
    if is_lower_bound:
        return f"at least {count:,} other models"
    return "1 other model" if count == 1 else f"{count or 'no'} other models"


def _kind(session: Session, model: ModelRow) -> str:
    return model_kind(model, composed=bool(composed_among(session, [model.id])))


def _notes(model: ModelRow) -> ReportTable:
    flags = [(flag, "unusual") for flag in model.flags]
    reasons = [(reason, "cannot be assembled") for reason in model.unassemblable]
    return table(
        title="Notes on its files",
        columns=(ReportColumn("note", "note", CellKind.TEXT), ReportColumn("consequence", "kind", CellKind.TEXT)),
        rows=tuple(reasons + flags),
        before=("Unusual properties of the files, not of the weights.",),
        after=('"Unusual" properties are stored exactly and do no harm.',),
        empty="Its files have no unusual properties.",
    )


def _dtypes(session: Session, model: ModelRow) -> ReportTable:
    dtypes = dtypes_of(session, model.id)
    total = sum(size_bytes for _, _, size_bytes, *_ in dtypes)
    rows: list[tuple[Cell, ...]] = []
    for name, tensors, size_bytes, mean_theta, matrix_theta in dtypes:
        dtype = dtype_by_name(name)
        bits = dtype.bits_per_value if dtype.is_sized else None
        elements = size_bytes // dtype.block_bytes * dtype.block_elements
        caution = theta_caution(mean_theta, name, elements // tensors)
        rows.append((name, bits, tensors, size_bytes, size_bytes / total, mean_theta, matrix_theta, caution))
    return table(
        title="Tensor types",
        columns=_DTYPE_COLUMNS,
        rows=rows,
        before=(
            "How the numbers are stored: the share of each tensor type in the bytes of the tensors, and its mean θ.",
        ),
        after=(FORMATS, THETA_LEGEND),
        empty=NO_TENSORS,
    )


def _methods(session: Session, model: ModelRow) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for method, tensors, least, most, sampled, values in methods_of(session, model.id):
        gives = _METHOD_WORDS.get(method, "another measure")
        rows.append((method, gives, tensors, least, most, int(sampled) / int(values) if values else None))
    return table(
        title="How it was measured",
        columns=_METHOD_COLUMNS,
        rows=rows,
        before=("The methods, the smallest and the largest sample of a tensor, and the share of all numbers.",),
        after=(METHODS,),
        empty=NO_TENSORS,
    )


_NO_BLOCKS = "No block has attention or feed-forward tensors or norms that were measured."
_LAYERS = "Layers of the same structure, one after another."
_MEAN_THETA = "The average over its tensors."
_MOVED_BY_LISTS = " Short lists of numbers, such as norms, change it most."
_MEAN_SIGNAL = (
    "The sine of θ, from 0 to 1, averaged over its tensors. A higher value does not mean more useful content."
)
_MEAN_SPECTRAL = (
    "Averaged over its matrices; random numbers give 0.000. More means more pattern, which is not necessarily useful."
)
_KIND_WORDS = {
    "model": "A model has weights of its own.",
    "adapter": "An adapter has small changes of the weights of another model and does nothing without it. Its measures "
    "are not comparable with those of complete models.",
    **KIND_NOTES,
    CHIMERA: "A chimera was composed in this registry from tensors of other models, or computed from them.",
    PARTIAL: "A partial model has only some tensors, for grafting into the base that it names.",
}
_METHOD_WORDS = {"z1": "θ, |Z| and their parts", "mp1": "spectral signal and ranks"}
_DTYPE_COLUMNS = (
    ReportColumn("dtype", "tensor type", CellKind.TEXT),
    ReportColumn("bits_per_number", "bits", CellKind.NUMBER),
    ReportColumn("tensors_count", "tensors", CellKind.COUNT),
    ReportColumn("size_bytes", "size", CellKind.SIZE),
    ReportColumn("size_share", "share", CellKind.PERCENT),
    ReportColumn("mean_theta_degrees", "mean θ", CellKind.DEGREES),
    ReportColumn("matrix_mean_theta_degrees", "matrix θ", CellKind.DEGREES),
    CAUTION_COLUMN,
)
_METHOD_COLUMNS = (
    ReportColumn("method", "method", CellKind.TEXT),
    ReportColumn("gives", "gives", CellKind.TEXT),
    ReportColumn("tensors_count", "tensors", CellKind.COUNT),
    ReportColumn("sample_minimum_count", "least", CellKind.LARGE),
    ReportColumn("sample_maximum_count", "most", CellKind.LARGE),
    ReportColumn("sampled_share", "sampled", CellKind.PERCENT),
)
