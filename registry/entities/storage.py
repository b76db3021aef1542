"""How tensors are stored, and how many bytes this saves: by encoding, by family and by model.

Stored sizes are for the owner of a registry and for administrators. To others they would tell which bytes the registry
has already.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from organs.registry.amounts import percent_text, size_text
from organs.registry.columns import CellKind, Column, data_only
from organs.registry.entities.base import Bytes, Count, Digest, Entity, Items, ModelText, Text, Word

ROWS_DEFAULT = 20
"""Families, and models, in a list by default."""
ROWS_MAX = 1000


class Way(StrEnum):
    """How the bytes of a tensor are stored."""

    ALONE = "alone"
    """Compressed, without another tensor."""
    DIFFERENCE = "difference"
    """By its difference to its parent, a tensor with the same tensor type."""
    DERIVED = "derived"
    """Derived from its parent, a tensor with a finer tensor type: only what the parent does not determine is stored."""
    EXPERTS = "experts"
    """As its experts, each of which is a tensor of its own."""

    @property
    def label(self) -> str:
        """The way as the heading of a row."""
        return _LABELS[self]

    @property
    def meaning(self) -> str:
        """The way as a sentence."""
        return _MEANINGS[self]


_LABELS = {Way.ALONE: "alone", Way.DIFFERENCE: "by difference", Way.DERIVED: "derived", Way.EXPERTS: "as experts"}
_MEANINGS = {
    Way.ALONE: "Compressed, without another part.",
    Way.DIFFERENCE: "Only the difference to a similar part of the same tensor type, its parent, is stored.",
    Way.DERIVED: "A similar part of a finer tensor type, its parent, predicts it. Only what differs is stored.",
    Way.EXPERTS: "As its experts, each of which is a part of its own.",
}


_WAY_OF_MANY = {
    Way.ALONE: "alone",
    Way.DIFFERENCE: "by their difference to others",
    Way.DERIVED: "derived from others",
    Way.EXPERTS: "as their experts",
}


class ParentOrgan(Entity):
    """The tensor that another tensor needs to be decoded, with one of its places."""

    digest: Digest
    model: ModelText | None
    """Null if no model has this tensor any more."""
    name: Text | None


class OrganStorage(Entity):
    """How a tensor is stored."""

    way: Annotated[Way, Meta(description="`alone`, `difference`, `derived` or `experts`.")]
    parent: Annotated[ParentOrgan, Meta(description="Null for a tensor that is stored alone.")] | None
    children: Annotated[
        Count, Meta(description="Tensors that are stored by their difference to it, or derived from it.")
    ]


class StoredSizes(Entity):
    """The sizes of a group of tensors, headers and vocabularies. Equal ones count once."""

    parts: Annotated[Count, Meta(description="Different tensors, headers and vocabularies.")]
    size_bytes: Annotated[Bytes, Meta(description="Their plain bytes.")]
    stored_bytes: Annotated[Bytes, Meta(description="Their bytes on the disk.")]
    saved_bytes: Annotated[Bytes, Meta(description="The difference of both sizes, or 0.")]

    @property
    def share(self) -> float | None:
        """The stored size as a share of the plain size; None without bytes."""
        return self.stored_bytes / self.size_bytes if self.size_bytes else None


class StoredFiles(StoredSizes):
    """The sizes of everything in the files of some models."""

    files_bytes: Annotated[Bytes, Meta(description="Bytes of the files.")]

    @property
    def share(self) -> float | None:
        """The stored size as a share of the size of the files; None without files."""
        return self.stored_bytes / self.files_bytes if self.files_bytes else None


class StoredWay(StoredSizes):
    """The tensors that are stored in one way."""

    way: Way


class ParentHolder(Entity):
    """A model that has parents of tensors of another model."""

    name: ModelText
    organs: Annotated[Count, Meta(description="Tensors that have their parent there.")]


class ModelStorage(StoredSizes):
    """How the tensors of one model are stored. A tensor that other models have too counts in full."""

    ways: Annotated[tuple[StoredWay, ...], Meta(max_length=len(Way), description="The largest stored size first.")]
    parents: Annotated[Items[ParentHolder], Meta(description="The models with most of the parents.")]

    @property
    def sentence(self) -> str:
        """The summary for people: `2.7 MB (8.6%): 74 parts by their difference to others, 4 alone`."""
        ways = [f"{row.parts:,} {_WAY_OF_MANY[row.way]}" for row in self.ways]
        if ways:
            ways[0] = ways[0].replace(" ", " parts " if self.ways[0].parts != 1 else " part ", 1)
        return f"{size_text(self.stored_bytes)} ({percent_text(self.share)}): {', '.join(ways) or 'no parts'}"


class StoredEncoding(StoredSizes):
    """The tensors of one tensor type that are stored in one way."""

    way: Way
    dtype: Annotated[Word, Meta(description="Null for headers and vocabularies.")] | None


class StoredModel(StoredFiles):
    """A model in the list by stored size."""

    name: ModelText
    state: Annotated[Word, Meta(description="`visible`, `quarantined`, `yanked` or `incomplete`.")]
    own_bytes: Annotated[
        Bytes,
        Meta(
            description="Bytes on the disk that only this model needs: no other model has or depends on these tensors."
        ),
    ]

    @property
    def marked_name(self) -> str:
        """The name as text for people, with the state if it is not visible."""
        return self.name if self.state == "visible" else f"{self.name} ({self.state})"


class StoredFamily(StoredFiles):
    """A family of models in the list by stored size. A tensor that several of its models have counts once."""

    name: Text
    member: Annotated[ModelText, Meta(description="A model of the family.")]
    models: Count


_FILES = Column("files_bytes", "files", CellKind.SIZE, 3)
_STORED = Column("stored_bytes", "on disk", CellKind.SIZE)
SHARE = Column("share", kind=CellKind.RATIO)
"""The last column for people. CSV files do not have it."""
MODEL_COLUMNS = (
    Column("name", "model", CellKind.NAME, shown="marked_name"),
    *data_only("state"),
    _FILES,
    *data_only("parts", "size_bytes"),
    _STORED,
    *data_only("saved_bytes"),
    Column("own_bytes", "own", CellKind.SIZE, 4),
)
FAMILY_COLUMNS = (
    Column("name", "family", CellKind.NAME),
    *data_only("member"),
    Column("models", kind=CellKind.COUNT, rank=4),
    _FILES,
    *data_only("parts"),
    Column("size_bytes", "different parts", CellKind.SIZE, 5),
    _STORED,
    *data_only("saved_bytes"),
)
ENCODING_COLUMNS = (
    Column("way", "stored", rank=3, shown="way.label"),
    Column("dtype", "tensor type", shown=lambda row: row.dtype or "headers, vocabularies"),
    Column("parts", kind=CellKind.COUNT, rank=5),
    Column("size_bytes", "plain", CellKind.SIZE, 4),
    _STORED,
    Column("saved_bytes", "saved", CellKind.SIZE, 6),
)
"""Columns of the tables of stored sizes, in the order of their CSV files."""


class Storage(StoredFiles):
    """What a registry stores how, and what this saves.

    `files_bytes` is the sum of `once_bytes`, `compression_bytes`, `parents_bytes` and `needed_bytes`, without
    `kept_bytes`.
    """

    models_count: Annotated[Count, Meta(description="Models that have tensors, in any state.")]
    once_bytes: Annotated[Bytes, Meta(description="Saved because equal tensors are stored once.")]
    compression_bytes: Annotated[Bytes, Meta(description="Saved by compression of tensors that are stored alone.")]
    parents_bytes: Annotated[
        Bytes, Meta(description="Saved on tensors that are stored by their difference to a parent, or derived from it.")
    ]
    needed_bytes: Annotated[
        Bytes, Meta(description="Bytes on the disk that models need: their tensors, and the parents of these.")
    ]
    kept_bytes: Annotated[
        Bytes, Meta(description="Bytes on the disk of parents that no model has any more. They are needed bytes.")
    ]
    unneeded_bytes: Annotated[
        Bytes,
        Meta(
            description="Bytes on the disk that no model needs; sweeps remove them. They are part of `parts`, "
            "`size_bytes`, `stored_bytes` and `encodings`."
        ),
    ]
    run_files_bytes: Annotated[
        Bytes, Meta(description="Bytes of files that `organ run` keeps on this machine. No other number has them.")
    ] = 0
    families: Annotated[
        tuple[StoredFamily, ...], Meta(max_length=ROWS_MAX, description="The largest stored size first.")
    ]
    families_left_out: Count
    models: Annotated[tuple[StoredModel, ...], Meta(max_length=ROWS_MAX, description="The largest stored size first.")]
    models_left_out: Count
    encodings: Annotated[Items[StoredEncoding], Meta(description="The largest stored size first.")]

    @property
    def share(self) -> float | None:
        """The bytes that models need as a share of the size of their files; None without files."""
        return self.needed_bytes / self.files_bytes if self.files_bytes else None

    def way(self, way: Way) -> StoredWay:
        """Return the sums over all encodings of one way."""
        rows = [row for row in self.encodings if row.way == way]
        return StoredWay(
            way=way,
            parts=sum(row.parts for row in rows),
            size_bytes=sum(row.size_bytes for row in rows),
            stored_bytes=sum(row.stored_bytes for row in rows),
            saved_bytes=sum(row.saved_bytes for row in rows),
        )
