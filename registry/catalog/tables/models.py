"""Models: their files to the last byte, their metadata for reading, and the places of their organs."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    Text,
    UniqueConstraint,
)
from sqlalchemy import text as sql
from sqlalchemy.orm import Mapped, mapped_column

from organs.registry.catalog.tables.base import Base, Big, Flag, Number, Timestamp, at_most, one_of, text
from organs.registry.catalog.tables.organs import MeasureColumns
from organs.registry.catalog.vocabulary import (
    MODEL_KINDS,
    MODEL_STATES,
    ORGAN_TYPES,
    TEXT_MAX,
    TOWERS,
)
from organs.registry.measures import RANKED_MEASURES


class Model(Base):
    """A registered set of organs with its headers: `namespace/name@version`."""

    __tablename__ = "models"
    __table_args__ = (
        UniqueConstraint("namespace", "name", "version"),
        one_of("state", MODEL_STATES),
        one_of("kind", MODEL_KINDS),
        at_most("namespace", 96),
        at_most("name", 96),
        at_most("title", TEXT_MAX),
        at_most("description", TEXT_MAX),
        at_most("architecture", 96),
        at_most("license", 96),
        at_most("size_label", 96),
        at_most("digest", 64),
        CheckConstraint("version >= 1", name="version_positive"),
        Index("ix_models_state_created_at", "state", "created_at"),
        Index("ix_models_state_mean_theta", "state", "mean_theta"),
        Index("ix_models_state_downloads", "state", "downloads"),
        Index("ix_models_state_grafts", "state", "grafts"),
        at_most("state_reason", TEXT_MAX),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    namespace: Mapped[str] = mapped_column(text(96))
    name: Mapped[str] = mapped_column(text(96))
    version: Mapped[int] = mapped_column(Integer)
    digest: Mapped[str] = mapped_column(text(64), index=True)
    """Of its bytes: the SHA-256 of its one file, or of its files' SHA-256s in order, one a line."""
    state: Mapped[str] = mapped_column(text(16))
    kind: Mapped[str] = mapped_column(text(16))
    complete: Mapped[bool] = mapped_column(Flag)
    """Whether all of its organs are here; partial uploads name a base and stay out of the rankings."""
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"), index=True)
    architecture: Mapped[str | None] = mapped_column(text(96))
    title: Mapped[str | None] = mapped_column(text(TEXT_MAX))
    description: Mapped[str | None] = mapped_column(text(TEXT_MAX))
    license: Mapped[str | None] = mapped_column(text(96))
    size_label: Mapped[str | None] = mapped_column(text(96))
    tags: Mapped[str] = mapped_column(Text)
    """JSON list of texts."""
    parameters: Mapped[int] = mapped_column(Big)
    tensors: Mapped[int] = mapped_column(Big)
    size_bytes: Mapped[int] = mapped_column(Big)
    mean_theta: Mapped[float | None] = mapped_column(Number)
    mean_signal: Mapped[float | None] = mapped_column(Number)
    flags: Mapped[str] = mapped_column(Text)
    """JSON list of sentences: what is odd about it."""
    unassemblable: Mapped[str] = mapped_column(Text)
    """JSON list of sentences: why it is never written out again; empty for nearly all."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    state_reason: Mapped[str | None] = mapped_column(text(TEXT_MAX))
    """Why it was yanked or removed, in the words of whoever did it."""
    changed_at: Mapped[datetime | None] = mapped_column(Timestamp)
    """When its state, or what is said of it beside its bytes, was last changed."""
    downloads: Mapped[int] = mapped_column(Big, server_default=sql("0"))
    """The sum of its days."""
    grafts: Mapped[int] = mapped_column(Big, server_default=sql("0"))
    """Visible chimeras that have organs of it, its own contributor's among them."""
    nonfinite_tensors: Mapped[int | None] = mapped_column(Big)
    """Tensors that have values that are NaN or infinite; null while those of some tensor were not counted."""

    @property
    def full_name(self) -> str:
        """`namespace/name@version`."""
        return f"{self.namespace}/{self.name}@{self.version}"


class ModelFile(Base):
    """One GGUF file of a model. Its bytes are zeros, overlaid by its parts and by its placements' organs."""

    __tablename__ = "model_files"
    __table_args__ = (
        UniqueConstraint("model_id", "position"),
        at_most("name", 255),
        at_most("sha256", 64),
        at_most("header_sha256", 64),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    position: Mapped[int] = mapped_column(Integer)
    name: Mapped[str] = mapped_column(text(255))
    size_bytes: Mapped[int] = mapped_column(Big)
    sha256: Mapped[str] = mapped_column(text(64), index=True)
    header_sha256: Mapped[str] = mapped_column(text(64))
    header_bytes: Mapped[int] = mapped_column(Big)
    """From the magic to the last tensor info, padding not included."""


class FilePart(Base):
    """A slice of a blob at `offset_bytes` of a file: header runs, metadata arrays, padding that is not zero."""

    __tablename__ = "file_parts"

    file_id: Mapped[int] = mapped_column(ForeignKey("model_files.id"), primary_key=True)
    offset_bytes: Mapped[int] = mapped_column(Big, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(Big)
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"), index=True)
    blob_offset_bytes: Mapped[int] = mapped_column(Big)


class ModelMetadata(Base):
    """A header's entries in order, as text to read and search; the exact bytes are in the file's parts."""

    __tablename__ = "model_metadata"
    __table_args__ = (at_most("key", TEXT_MAX), at_most("value", TEXT_MAX), at_most("type", 32))

    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    key: Mapped[str] = mapped_column(text(TEXT_MAX))
    type: Mapped[str] = mapped_column(text(32))
    value: Mapped[str] = mapped_column(text(TEXT_MAX))


RANKED_COLUMNS = (*RANKED_MEASURES, "size_bytes")
"""What searches sort by."""


def _ranking(measure: str) -> Index:
    """Answers a filter by type with a sort by `measure`. What stands behind the id is tested without the row."""
    columns = ("visible", "type", measure, "id", "facet_id", "block", "model_id", "theta")
    return Index(f"ix_placements_{measure}", *dict.fromkeys(columns))


class Placement(MeasureColumns, Base):
    """An organ at its place in a model. Measures are copied here, so that one index answers a filter and a sort."""

    __tablename__ = "placements"
    __table_args__ = (
        one_of("type", ORGAN_TYPES),
        one_of("tower", TOWERS),
        at_most("name", 64),
        at_most("slot", 64),
        at_most("dtype", 16),
        *(_ranking(measure) for measure in RANKED_COLUMNS),
        Index("ix_placements_model", "model_id", "position", unique=True),
        Index("ix_placements_block", "block"),
        Index("ix_placements_organ", "organ_id", "visible", "model_id"),
        Index("ix_placements_place", "slot", "block", "tower", "organ_id", "model_id", "visible"),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    position: Mapped[int] = mapped_column(Big)
    """The order over all of the model's files."""
    file_id: Mapped[int] = mapped_column(ForeignKey("model_files.id"), index=True)
    offset_bytes: Mapped[int] = mapped_column(Big)
    """Where the tensor begins in its file."""
    name: Mapped[str] = mapped_column(text(64))
    type: Mapped[str] = mapped_column(text(16))
    tower: Mapped[str] = mapped_column(text(16))
    block: Mapped[int | None] = mapped_column(Big)
    slot: Mapped[str] = mapped_column(text(64))
    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"))
    visible: Mapped[bool] = mapped_column(Flag)
    """Copied from the model's state: searches look at nothing else."""
    facet_id: Mapped[int] = mapped_column(ForeignKey("facets.id"), index=True)
    dtype: Mapped[str] = mapped_column(text(16))
    size_bytes: Mapped[int] = mapped_column(Big)
