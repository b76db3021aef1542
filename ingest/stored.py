"""What is stored of registered models, in the form in which files are measured and checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from organs.ingest.checking import CheckedModel, checked_model
from organs.ingest.dissect import read_front
from organs.ingest.measuring import MeasuredFile, MeasuredModel, MeasuredTensor, Wanted
from organs.ingest.sources import ModelSource
from organs.registry.anatomy import place_of
from organs.registry.assembly import stored_header
from organs.registry.catalog.queries.model_contents import files_of, nonfinite_organs, parts_of
from organs.registry.catalog.queries.model_names import model_by_name, model_by_text
from organs.registry.catalog.queries.organs import measurements_in, shape_of
from organs.registry.catalog.tables import MeasurementRow, OrganRow
from organs.registry.gguf import dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.measure import Measurement
from organs.registry.measure.sample import spectral_patches
from organs.registry.measures import MEASURES, SPECTRAL_METHOD
from organs.registry.names import ModelName


def stored_model(
    registry: LocalRegistry, name: ModelName, wanted: Wanted | None = None
) -> tuple[ModelName, MeasuredModel]:
    """Return the full name of a registered model, and the values that `measure_model` returns for its files.

    They are the stored measurements, as if the model were one file. In addition, the number of NaN and infinite values
    in all the data of a tensor is known. Raises NotFound, Gone.
    """
    with registry.catalog.reading() as session:
        model = model_by_name(session, name)
        rows = measurements_in(session, model.id)
        tensors: list[MeasuredTensor] = []
        for _, group in groupby(rows, key=lambda row: row[0].position):
            (placement, organ, first, fingerprint), *others = group
            if wanted is None or wanted(placement.name, place_of(placement.name)):
                results = [row for row in (first, *(other[2] for other in others)) if row is not None]
                tensors.append(
                    MeasuredTensor(
                        name=placement.name,
                        dtype=organ.dtype,
                        shape=shape_of(organ.shape),
                        foreign_bytes=placement.size_bytes if dtype_by_name(organ.dtype).is_foreign else 0,
                        measurement=_measurement(results, organ, fingerprint),
                    )
                )
        whole = MeasuredFile(
            location=model.full_name,
            size_bytes=model.size_bytes,
            tensor_count=model.tensors,
            selected_count=len(tensors),
            parameters=model.parameters,
        )
        return ModelName(model.namespace, model.name, model.version), MeasuredModel(
            architecture=model.architecture,
            title=model.title,
            tensors=tuple(tensors),
            files=(whole,),
        )


def check_stored(registry: LocalRegistry, text: str, *, requires_sandbox: bool = False) -> CheckedModel:
    """Check a registered model as `check_model` checks its files; `text` is a name or a digest.

    The headers are read from the store. NaN and infinite values were counted when the model was ingested, and what only
    other bytes of its files show, such as a wrong length, was refused then. Raises NotFound, Gone.
    """
    with registry.catalog.reading() as session:
        model = model_by_text(session, text)
        fronts = []
        for file in files_of(session, model.id):
            source = stored_header(session, registry.blobs, file).source
            has_odd_padding = any(part.offset_bytes >= file.header_bytes for part in parts_of(session, file.id))
            fronts.append((source, read_front(source), has_odd_padding))
        nonfinite = nonfinite_organs(session, model.id)
    own = ModelSource((), ModelName(model.namespace, model.name, model.version))
    return checked_model(own, fronts, lambda: nonfinite, requires_sandbox=requires_sandbox)


_SAMPLE_COLUMNS = (
    *("sample_size", "entropy", "kurtosis", "coherence", "mean", "standard_deviation", "minimum", "maximum"),
    *("nan_count", "infinite_count", "constant", "reason"),
)


def _measurement(results: Iterable[MeasurementRow], organ: OrganRow, fingerprint: bytes | None) -> Measurement:
    """Return the measurement whose numbers are in the `results` of the methods."""
    measurement = Measurement(reason="it was not measured", fingerprint=fingerprint, nonfinite=organ.nonfinite)
    for row in results:
        values = {name: getattr(row, name) for name, measure in MEASURES.items() if measure.method == row.method}
        if row.method != SPECTRAL_METHOD:
            values |= {"method": row.method} | {name: getattr(row, name) for name in _SAMPLE_COLUMNS}
        else:
            values["spectral_method"] = SPECTRAL_METHOD
            patches = spectral_patches(shape_of(organ.shape))
            if patches is not None:  # the matrix that the method reads of a tensor of this shape
                values |= {"spectral_rows": len(patches.rows), "spectral_columns": patches.columns}
        measurement = replace(measurement, **values)
    return measurement
