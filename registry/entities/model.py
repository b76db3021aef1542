"""Models: as lines of lists, and with their organs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry import notebook
from organs.registry.amounts import count_text, size_text, theta_text
from organs.registry.entities.base import Count, Digest, Entity, ModelText, Page, Share, Text, Theta, Time, Word

TITLE_SHOWN = 40
"""Characters of a title in tables."""
_COLUMNS = ("model", "title", "architecture", "licence", "parameters", "tensors", "mean θ", "size")
_NUMBERS = ("parameters", "tensors", "mean θ", "size")


class ModelSummary(Entity, frozen=True, kw_only=True):
    """A model as a line of a list."""

    name: ModelText
    title: Annotated[str, Meta(description="What its file calls it, as text from outside.")] | None
    kind: Annotated[
        str,
        Meta(
            max_length=64,
            description="model, adapter or vocabulary; partial where organs are missing, chimera if composed here.",
        ),
    ]
    architecture: Text | None
    parameters: Annotated[int, Meta(ge=0, description="How many numbers its weights are.")]
    tensors: Annotated[int, Meta(ge=0, description="How many organs it has.")]
    size_bytes: Annotated[int, Meta(ge=0, description="Bytes of its files.")]
    mean_theta: Annotated[Theta, Meta(description="Mean θ over its tensors, in degrees. It is not a grade.")] | None
    mean_signal: Share | None
    license: Text | None
    complete: Annotated[bool, Meta(description="Whether all of its organs are registered.")]
    digest: Annotated[Digest, Meta(description="SHA-256 of its one file, or of the digests of its files in order.")]
    created_at: Annotated[Time, Meta(description="When it was registered, in UTC.")]
    state: Annotated[Word, Meta(description="visible, or yanked: shown only to those who name it.")]
    downloads: Annotated[int, Meta(ge=0, description="How often it was fetched, whole or an organ of it.")]
    grafts: Annotated[int, Meta(ge=0, description="Visible chimeras that have organs of it.")]
    nonfinite_tensors: (
        Annotated[Count, Meta(description="Tensors with NaN or infinite values; null if some were not counted.")] | None
    ) = None

    def __repr__(self) -> str:
        size, theta = size_text(self.size_bytes), theta_text(self.mean_theta)
        return f"<{self.name}: {self.kind}, {count_text(self.parameters)} parameters, {size}, mean θ {theta}>"


class ModelPage(Page[ModelSummary], frozen=True, kw_only=True):
    """One page of models. Iterating gives them."""

    def __repr__(self) -> str:
        return f"<{self.summary('model')}>"

    def _repr_html_(self) -> str:
        rows = [_row(model) for model in self.items]
        return notebook.document(notebook.table(_COLUMNS, rows, _NUMBERS), *self.below())


def _row(model: ModelSummary) -> tuple[notebook.Cell, ...]:
    return (
        *(model.name, model.title and model.title[:TITLE_SHOWN], model.architecture, model.license),
        *(count_text(model.parameters), model.tensors, theta_text(model.mean_theta), size_text(model.size_bytes)),
    )
