"""Sizes of models, recorded without a runtime."""

from __future__ import annotations

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.register.sizes import record_size
from organs.registry.entities.sizes import CHOSEN, SizeReading
from organs.registry.local import LocalRegistry

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
