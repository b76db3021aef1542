"""An importance matrix that was collected from a model: of how much text, and where it is."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.amounts import plural_text
from organs.registry.entities.base import Bytes, Count, Entity, ModelText, Text, Texts


class CollectedImportances(Entity):
    """How large the inputs of a model's weights were, over some texts."""

    source: Annotated[Text, Meta(description="The model that was run.")]
    weights: Annotated[Count, Meta(description="The matrices and stacks of which the inputs were summed.")]
    unused: Annotated[Texts, Meta(description="Stacks with experts that no token used.")]
    texts: Texts
    chunks: Annotated[Count, Meta(description="The parts of the texts that were evaluated.")]
    all_chunks: Annotated[Count, Meta(description="The parts of all texts.")]
    chunk_tokens: Count
    tokens_per_second: float
    size_bytes: Bytes
    runtime: Text
    model: Annotated[ModelText | None, Meta(description="The importance matrix, if it was registered.")] = None
    file: Annotated[Text | None, Meta(description="The file that was written.")] = None

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        weights = plural_text(self.weights, "weight", "weights")
        of_all = "" if self.chunks == self.all_chunks else f" of {self.all_chunks:,}"
        return (
            f"The inputs of {weights} of {self.source}, over {self.chunks:,}{of_all} chunks of {self.chunk_tokens:,} "
            f"tokens, {self.tokens_per_second:,.0f} tokens a second."
        )
