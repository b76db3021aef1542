"""The report on one model: what it is made of, what it shares, how its organs read."""

from __future__ import annotations

import json

from sqlalchemy.orm import Session

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
from organs.registry.catalog.queries.shared_organs import shared_of
from organs.registry.catalog.tables import Model
from organs.registry.present.text import size_text
from organs.registry.reports.document import Cell, Column, Fact, Facts, Kind, Report, Table
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
ORGANS_DEFAULT = 10
"""Tensors in the lists of the highest, the lowest and the odd ones, unless told otherwise."""


def model_report(session: Session, model: Model, limit: int = ORGANS_DEFAULT) -> Report:
    """The dissection report on `model`; lists of single tensors have at most `limit` rows and say so."""
    title = f"Dissection of {model.full_name}"
    about = (_identity(session, model), _notes(model))
    if not model.tensors:
        return Report(title, (NO_TENSORS,), about, (NO_CONCLUSION,), main="model")
    readings = (
        *relatives_tables(session, model),
        _dtypes(session, model),
        types_table(session, model.id, before=f"All tensors of this {model.kind}.", empty=NO_TENSORS),
        *(() if model.kind == "adapter" else (_blocks(session, model),)),
        organ_table(session, model, limit, key="highest", title="Highest θ", after=HIGHEST),
        organ_table(session, model, limit, key="wells", title="Gravitational wells: lowest θ", after=WELLS),
        odd_table(session, model, limit),
        _methods(session, model),
    )
    return Report(title, OPENING, (*about, *readings), CLOSING, main="types")


def _identity(session: Session, model: Model) -> Facts:
    facts = [
        Fact("title", "title", model.title, Kind.TEXT, "What its file calls it."),
        Fact("kind", "kind", _kind(model), Kind.TEXT, _KIND_WORDS[model.kind]),
        Fact("architecture", "architecture", model.architecture, Kind.TEXT, "The blueprint, as its file names it."),
        *_sizes(model, stored_of(session, model.id)),
    ]
    if model.tensors:
        facts += (*_contents(session, model), *_sharing(session, model), *_readings(session, model))
    return Facts("model", "What it is", tuple(facts))


def _sizes(model: Model, stored: Stored) -> tuple[Fact, ...]:
    return (
        Fact("size_bytes", "size of its files", model.size_bytes, Kind.SIZE, "As they came in."),
        Fact(
            "stored_bytes",
            "stored size",
            stored.stored_bytes,
            Kind.SIZE,
            "What its different parts take on the disk, compressed; those that other models need too count in full.",
        ),
    )


def _contents(session: Session, model: Model) -> tuple[Fact, ...]:
    blocks = count_blocks(session, model.id)
    layers = "Layers of the other model that it changes." if model.kind == "adapter" else _LAYERS
    return (
        Fact("blocks_count", "blocks", blocks, Kind.COUNT, layers),
        Fact("parameters_count", "parameters", model.parameters, Kind.LARGE, "How many numbers its weights are."),
        Fact("tensors_count", "tensors", model.tensors, Kind.COUNT, "The tables that the weights stand in."),
    )


def _sharing(session: Session, model: Model) -> tuple[Fact, ...]:
    shared = shared_of(session, model.id)
    others = _models(shared.other_models, shared.is_least)
    return (
        Fact(
            "shared_organs_count",
            "tensors shared",
            shared.shared_organs,
            Kind.COUNT,
            f"Of its {shared.organs:,} different tensors; the same to the last byte in {others}.",
        ),
        Fact(
            "shared_bytes",
            "bytes shared",
            shared.shared_bytes,
            Kind.SIZE,
            f"Of {size_text(shared.size_bytes)} of different tensors. Vocabularies can be shared too and do not count.",
        ),
    )


def _readings(session: Session, model: Model) -> tuple[Fact, ...]:
    figures = matrix_figures(session, model.id).get(model.id)
    count = 0 if figures is None else figures.matrices
    lists = "" if count == model.tensors else _MOVED_BY_LISTS
    theta, spectral = (None, None) if figures is None else (figures.mean_theta, figures.mean_spectral_signal)
    return (
        Fact("mean_theta_degrees", "mean θ", model.mean_theta, Kind.DEGREES, _MEAN_THETA + lists),
        Fact(
            "matrix_mean_theta_degrees",
            "matrix θ",
            theta,
            Kind.DEGREES,
            f"The average over its {count:,} matrices alone, the tensors with rows and columns.",
        ),
        Fact("mean_signal", "mean signal", model.mean_signal, Kind.SHARE, _MEAN_SIGNAL),
        Fact("mean_spectral_signal", "mean spectral signal", spectral, Kind.SHARE, _MEAN_SPECTRAL),
    )


def _models(count: int, is_least: bool) -> str:
    if is_least:
        return f"at least {count:,} other models"
    return "1 other model" if count == 1 else f"{count or 'no'} other models"


def _kind(model: Model) -> str:
    return model.kind if model.complete else f"{model.kind}, only a part"


def _notes(model: Model) -> Table:
    flags = [(str(flag), "odd") for flag in json.loads(model.flags)]
    reasons = [(str(reason), "never written out again") for reason in json.loads(model.unassemblable)]
    return Table(
        key="notes",
        title="Notes on its files",
        columns=(Column("note", "note", Kind.TEXT), Column("consequence", "kind", Kind.TEXT)),
        rows=tuple(reasons + flags),
        before=("What is unusual in the files themselves, not in the weights.",),
        after=('"Odd" is kept as it is and does no harm here.',),
        empty="Its files have nothing unusual about them.",
    )


def _dtypes(session: Session, model: Model) -> Table:
    found = dtypes_of(session, model.id)
    total = sum(one.size_bytes for one in found)
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        size = (one.size_bytes, one.size_bytes / total)
        rows.append((one.dtype, bits_of(one.dtype), one.tensors, *size, one.mean_theta, one.matrix_mean_theta))
    return Table(
        key="dtypes",
        title="Number formats",
        columns=_DTYPE_COLUMNS,
        rows=tuple(rows),
        before=("How the numbers are written down, each format's share of the tensors' bytes, and its mean θ.",),
        after=(FORMATS,),
        empty=NO_TENSORS,
    )


def _blocks(session: Session, model: Model) -> Table:
    rows = blocks_of(session, model.id, BLOCKS_MAX)
    read = any(value is not None for row in rows for value in _means(row))
    return Table(
        key="blocks",
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


def _methods(session: Session, model: Model) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for method, tensors, least, most, looked, values in methods_of(session, model.id):
        what = _METHOD_WORDS.get(method, "another reading")
        rows.append((method, what, tensors, least, most, int(looked) / int(values) if values else None))
    return Table(
        key="methods",
        title="How it was measured",
        columns=_METHOD_COLUMNS,
        rows=tuple(rows),
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
    Column("dtype", "format", Kind.TEXT),
    Column("bits_per_number", "bits", Kind.NUMBER),
    Column("tensors_count", "tensors", Kind.COUNT),
    Column("size_bytes", "size", Kind.SIZE),
    Column("size_share", "share", Kind.PERCENT),
    Column("mean_theta_degrees", "mean θ", Kind.DEGREES),
    Column("matrix_mean_theta_degrees", "matrix θ", Kind.DEGREES),
)
_BLOCK_COLUMNS = (
    Column("tower", "tower", Kind.TEXT),
    Column("block", "block", Kind.COUNT),
    Column("tensors_count", "tensors", Kind.COUNT),
    Column("skeleton_mean_theta_degrees", "θ skeleton", Kind.DEGREES),
    Column("organ_mean_theta_degrees", "θ organ", Kind.DEGREES),
    Column("skeleton_mean_spectral_signal", "spectral skeleton", Kind.SHARE),
    Column("organ_mean_spectral_signal", "spectral organ", Kind.SHARE),
)
_METHOD_COLUMNS = (
    Column("method", "method", Kind.TEXT),
    Column("gives", "gives", Kind.TEXT),
    Column("tensors_count", "tensors", Kind.COUNT),
    Column("sample_minimum_count", "least", Kind.LARGE),
    Column("sample_maximum_count", "most", Kind.LARGE),
    Column("sampled_share", "looked at", Kind.PERCENT),
)
