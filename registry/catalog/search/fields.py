"""The fields of the query language: what organs and models can be asked for, by which words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.catalog.vocabulary import MODEL_KINDS, ORGAN_TYPES, TOWERS
from organs.registry.measures import MEASURES


class Kind(StrEnum):
    """What stands behind a field's colon."""

    CHOICE = "choice"
    """One of a few words that are always the same."""
    NAME = "name"
    """A word that depends on what is registered; `*` stands for any text in it."""
    MODEL = "model"
    """The name of one model, with a version or without."""
    NUMBER = "number"
    WHOLE = "whole"
    """A whole number."""
    SIZE = "size"
    """Bytes, with k, M or G behind the number if need be."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field, what it takes, and what it means, in a few words for people."""

    name: str
    kind: Kind
    meaning: str
    choices: tuple[str, ...] = ()

    example: str = ""
    """Of a number in a query."""
    values_max: int | None = None
    """In one query, where each costs more than a look at an index."""

    @property
    def is_numeric(self) -> bool:
        return self.kind in (Kind.NUMBER, Kind.WHOLE, Kind.SIZE)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What one kind of thing can be asked for."""

    what: str
    """In the plural, for people: organs."""
    fields: Mapping[str, Field]
    sorts: Mapping[str, str]
    """Words behind `sort:` and their meaning."""
    default_sort: str
    likeness: bool
    """Whether `like:` and `unique:` mean something."""


BASES_MAX = 10
"""Models behind `fits:` in one query: what is found is compared with each."""

PARTIAL = "partial"
"""The kind that is shown of a model of which only some organs are here."""
CHIMERA = "chimera"
"""The kind that is shown of a model that was composed here."""

ALIASES = {
    "architecture": "arch",
    "contributor": "by",
    "licence": "license",
    "parameters": "params",
    **{alias: one.field for one in MEASURES.values() for alias in (one.name, *one.aliases) if alias != one.field},
}

SORT_ALIASES = {"created": "new"}
"""Words behind `sort:` alone."""

SYNONYMS = {
    "attention": "skeleton",
    "attn": "skeleton",
    "embedding": "embed",
    "feed-forward": "organ",
    "feedforward": "organ",
    "ffn": "organ",
    "layernorm": "norm",
    "lora": "adapter",
    "mlp": "organ",
}
"""What the field calls our types: suggested, not taken."""

_ARCH = Field("arch", Kind.NAME, "the model's architecture: llama, qwen2")
_LICENSE = Field("license", Kind.NAME, "the model's licence; none where it states none")
_BY = Field("by", Kind.NAME, "who added the model")
_MODEL = Field("model", Kind.NAME, "the model: namespace/name, or acme/*")

YES, NO, UNKNOWN = "yes", "no", "unknown"
_NONFINITE = Field(
    "nonfinite",
    Kind.CHOICE,
    "whether some weights are NaN or infinite; unknown where an older version registered them",
    (YES, NO, UNKNOWN),
)


def _by_name(*fields: Field) -> dict[str, Field]:
    return {field.name: field for field in fields}


ORGANS = Vocabulary(
    what="organs",
    fields=_by_name(
        Field("type", Kind.CHOICE, "the system that it belongs to", ORGAN_TYPES),
        Field(
            "slot",
            Kind.NAME,
            f"the place in its block: {EXAMPLE_SLOTS[0]}; {EXAMPLE_SLOTS[0][:4]}* for all that begin so",
        ),
        Field("block", Kind.WHOLE, "the layer's number, from 0; none outside the blocks"),
        Field("tower", Kind.CHOICE, "the stack of blocks that it is in", TOWERS),
        *(Field(one.field, Kind.NUMBER, one.summary, example=one.example) for one in MEASURES.values()),
        Field("size", Kind.SIZE, "bytes in the file: size>=10M"),
        Field("dtype", Kind.NAME, "the type of its values: F16, Q8_0"),
        _ARCH,
        _MODEL,
        _LICENSE,
        _BY,
        Field(
            "fits",
            Kind.MODEL,
            "what can be grafted into this model, by architecture, place and shape; adapters never",
            values_max=BASES_MAX,
        ),
        _NONFINITE,
    ),
    sorts={one.field: one.summary for one in MEASURES.values()} | {"size": "bytes"},
    default_sort="-theta",
    likeness=True,
)

MODELS = Vocabulary(
    what="models",
    fields=_by_name(
        Field(
            "kind",
            Kind.CHOICE,
            "what was registered; partial where organs are missing, chimera what was composed here",
            (*MODEL_KINDS, PARTIAL, CHIMERA),
        ),
        _MODEL,
        _ARCH,
        _LICENSE,
        _BY,
        Field("theta", Kind.NUMBER, "mean θ over its tensors, in degrees", example="theta>=45 or theta:35-60"),
        Field("signal", Kind.NUMBER, "mean of sin θ over its tensors", example="signal>=0.6 or signal:0.5-0.7"),
        Field("params", Kind.SIZE, "parameters: params>=1M"),
        Field("tensors", Kind.WHOLE, "how many organs it has"),
        Field("size", Kind.SIZE, "bytes of its files"),
        Field("downloads", Kind.WHOLE, "how often it was fetched, whole or an organ of it"),
        Field("grafts", Kind.WHOLE, "chimeras here that have organs of it"),
        _NONFINITE,
    ),
    sorts={
        "new": "when it was registered",
        "theta": "mean θ",
        "signal": "mean signal",
        "params": "parameters",
        "tensors": "organs",
        "size": "bytes",
        "downloads": "downloads",
        "grafts": "chimeras that have organs of it",
    },
    default_sort="-new",
    likeness=False,
)
