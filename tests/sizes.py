"""Sizes of models, recorded without a runtime."""

from __future__ import annotations

from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.register.sizes import record_size
from organs.registry.digest import Digest
from organs.registry.entities.plan import MadeChimera
from organs.registry.entities.sizes import CHOSEN, QuantizationRequest, SizedModel, SizePoint, SizeReading
from organs.registry.local import LocalRegistry
from organs.registry.progress import StepProgress

TEXTS, RUNTIME = "ab" * 32, "llama.cpp, 1.0"


def reading(divergence: float | None = 0.01, bits: float = 4.5) -> SizeReading:
    """Return a measurement with that divergence."""
    if divergence is None:
        return SizeReading(bits=bits)
    return SizeReading(
        bits=bits,
        divergence=divergence,
        divergence_margin=divergence / 20,
        divergence_99=9 * divergence,
        same_top=0.93,
        ratio=1 + divergence,
        tokens=9000,
    )


def add_size(
    registry: LocalRegistry,
    source: str,
    tag: str,
    size_bytes: int,
    divergence: float | None = 0.01,
    model: str | None = None,
    kind: str = CHOSEN,
) -> None:
    """Record a size of the model `source`, as the search does; `model` is its registered file."""
    with registry.catalog.writing() as session:
        made = None if model is None else model_by_text(session, model).id
        measured = reading(divergence, bits=size_bytes / 1e6)
        own = model_by_text(session, source).id
        record_size(session, own, made, kind, tag, tag, size_bytes, measured, TEXTS, RUNTIME)


def sized(source: str, **more: float) -> SizedModel:
    """Return a result of the search for a size of `source`; `more` are members of its measurement."""
    made = MadeChimera(
        model="local/base-4bpw@1", lock_id=Digest("ab" * 32), sha256=Digest("cd" * 32), size_bytes=4, created=True
    )
    values = {"bits": 4.0} | more
    point = SizePoint(kind=CHOSEN, label="4 bits", tag="4bpw", size_bytes=4, model=made.model, **values)  # type: ignore[arg-type]
    return SizedModel(chimera=made, source=source, point=point, plain=None)


def search_without_runtime(
    catalog: Catalog, _blobs: object, request: QuantizationRequest, _runtime: object, progress: StepProgress, *_: str
) -> SizedModel:
    """Stand in the place of the search: return the request's bits as the measurement, and report one step."""
    progress(0.5, "measuring")
    with catalog.reading() as session:
        return sized(model_by_text(session, request.model).full_name, bits=request.bits or 0.0)
