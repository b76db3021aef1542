"""The tables with their constraints, in types that SQLite and PostgreSQL both store exactly.

The order is: common types; blobs and organs; models; facets, words and totals for searches; lineage and events;
chimeras; accounts; submissions; jobs; fleets.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from math import isnan
from typing import Any

from sqlalchemy import (
    REAL,
    TEXT,
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy import text as sql
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, validates
from sqlalchemy.types import TypeEngine

from organs.registry.catalog.vocabulary import (
    BLOB_STATES,
    CONTRIBUTOR_STATES,
    EVIDENCE,
    FLEET_UNIT_STATES,
    FLEET_WORK,
    INGEST_STATES,
    JOB_STATES,
    MODEL_KINDS,
    MODEL_STATES,
    ORGAN_TYPES,
    RELATIONS,
    RUNTIME_TEXT_KINDS,
    RUNTIME_TEXT_MAX,
    SUBMISSION_STATES,
    TEXT_MAX,
    TOWERS,
    UPLOAD_KINDS,
    UPLOAD_STATES,
    VERDICTS,
    WORD_MAX,
)
from organs.registry.measures import RANKED_MEASURES
from organs.registry.names import split_quantisation

TENSOR_NAME_MAX = 127
"""The limit of the reader of files: `NAME_MAX_BYTES`."""


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

# SQLite's tables are STRICT: they refuse a text in a column of numbers. Strict tables have only five types, so each
# type here names its type in SQLite.

Big = BigInteger().with_variant(Integer(), "sqlite")
"""A whole number of 64 bits. SQLite generates ids only in an INTEGER column."""


class Number(TypeDecorator[float]):
    """A float of 64 bits. NaN is stored as NULL, as SQLite does: PostgreSQL would sort it above all numbers."""

    impl = Float
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(REAL() if dialect.name == "sqlite" else Float(53))

    def bind_processor(self, dialect: Dialect) -> Callable[[float | None], float | None] | None:
        return super().bind_processor(dialect) if dialect.name == "sqlite" else _without_nan


def _without_nan(value: float | None) -> float | None:
    return None if value is None or isnan(value) else value


def text(length: int) -> String:
    """Return the type of texts of at most `length` characters. SQLite also needs the CHECK of `at_most`."""
    return String(length).with_variant(TEXT(), "sqlite")


class Flag(TypeDecorator[bool]):
    """A boolean, which SQLite stores as 0 or 1."""

    impl = Boolean
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Integer() if dialect.name == "sqlite" else Boolean())

    def process_result_value(self, value: Any, dialect: Dialect) -> bool | None:
        return None if value is None else bool(value)


class Timestamp(TypeDecorator[datetime]):
    """An aware UTC time. In SQLite it is a text that sorts like the time, with microseconds."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(TEXT() if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        assert value is None or value.tzinfo is not None, "times are aware"
        if value is None:
            return None
        universal = value.astimezone(UTC)
        return f"{universal:%Y-%m-%d %H:%M:%S.%f}" if dialect.name == "sqlite" else universal

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        return datetime.fromisoformat(value).replace(tzinfo=UTC) if isinstance(value, str) else value


class Base(DeclarativeBase):
    """Base of all tables. Migrations are compared with its metadata."""

    metadata = MetaData(naming_convention=NAMING)

    @classmethod
    def __table_cls__(cls, *arguments: Any, **options: Any) -> Table:
        return Table(*arguments, sqlite_strict=True, **options)


def one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    """Return a CHECK that `column` has one of `values`."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


def at_most(column: str, length: int) -> CheckConstraint:
    """Return a CHECK for the length of a text, because SQLite ignores the number in VARCHAR(n)."""
    return CheckConstraint(f"length({column}) <= {length}", name=f"{column}_length")


class Ingest(Base):
    """One ingest of one model. While it is `running` and before `lease_expires_at`, no sweep removes its blobs."""

    __tablename__ = "ingests"
    __table_args__ = (one_of("state", INGEST_STATES), at_most("source", TEXT_MAX))

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    source: Mapped[str] = mapped_column(text(TEXT_MAX))
    state: Mapped[str] = mapped_column(text(16))
    started_at: Mapped[datetime] = mapped_column(Timestamp)
    finished_at: Mapped[datetime | None] = mapped_column(Timestamp)
    lease_expires_at: Mapped[datetime] = mapped_column(Timestamp)
    model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    report: Mapped[str | None] = mapped_column(Text)
    """JSON: sizes, counts, seconds and MB/s per stage."""


class Blob(Base):
    """Stored bytes. `digest` and `size_bytes` describe the plain bytes; `file` is None for an inline blob.

    A blob of the codec `stack` has no stored bytes of its own: see BlobPart.
    """

    __tablename__ = "blobs"
    __table_args__ = (
        one_of("state", BLOB_STATES),
        CheckConstraint("length(digest) = 64", name="digest_length"),
        at_most("codec", 32),
        at_most("file", 128),
        CheckConstraint("size_bytes >= 0 AND stored_bytes >= 0", name="sizes_positive"),
        Index("ix_blobs_state_touched_at", "state", "touched_at"),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    digest: Mapped[str] = mapped_column(text(64), unique=True)
    size_bytes: Mapped[int] = mapped_column(Big)
    stored_bytes: Mapped[int] = mapped_column(Big)
    codec: Mapped[str] = mapped_column(text(32))
    codec_version: Mapped[int] = mapped_column(Integer)
    file: Mapped[str | None] = mapped_column(text(128), unique=True)
    state: Mapped[str] = mapped_column(text(16))
    depends_on: Mapped[int | None] = mapped_column(ForeignKey("blobs.id"), index=True)
    """Another blob that the codec needs to decode this blob."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    touched_at: Mapped[datetime] = mapped_column(Timestamp)
    """When a writer last used it. The grace period of the sweep begins at this time."""


class BlobPart(Base):
    """A part of a blob of the codec `stack`, whose plain bytes are those of its parts, one after another."""

    __tablename__ = "blob_parts"

    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    part_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"), index=True)


class InlineBlob(Base):
    """The stored bytes of a small blob, in the database instead of a file."""

    __tablename__ = "inline_blobs"

    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id", ondelete="CASCADE"), primary_key=True)
    stored: Mapped[bytes] = mapped_column(LargeBinary)


class BlobLease(Base):
    """A blob that a running ingest needs."""

    __tablename__ = "blob_leases"

    ingest_id: Mapped[int] = mapped_column(ForeignKey("ingests.id", ondelete="CASCADE"), primary_key=True)
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"), primary_key=True, index=True)


class Organ(Base):
    """The bytes of a tensor with dtype and shape. `shape` has the row length first: `192x512`."""

    __tablename__ = "organs"
    __table_args__ = (UniqueConstraint("blob_id", "dtype", "shape"), at_most("dtype", 16), at_most("shape", 96))

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"))
    dtype: Mapped[str] = mapped_column(text(16))
    shape: Mapped[str] = mapped_column(text(96))
    elements: Mapped[int] = mapped_column(Big)
    nonfinite: Mapped[int | None] = mapped_column(Big)
    """The number of NaN and infinite values; null if an older version registered the organ without counting them."""


class MeasureColumns:
    """A column for each measure in `registry.measures`; null if it was not measured."""

    theta: Mapped[float | None] = mapped_column(Number)
    magnitude: Mapped[float | None] = mapped_column(Number)
    signal: Mapped[float | None] = mapped_column(Number)
    spectral_signal: Mapped[float | None] = mapped_column(Number)
    stable_rank: Mapped[float | None] = mapped_column(Number)
    effective_rank: Mapped[float | None] = mapped_column(Number)


class Measurement(MeasureColumns, Base):
    """The results of one method for one organ.

    Values that the method does not compute are null. `reason` explains a measurement without values.
    """

    __tablename__ = "measurements"
    __table_args__ = (at_most("method", 16), at_most("reason", 256))

    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"), primary_key=True)
    method: Mapped[str] = mapped_column(text(16), primary_key=True)
    sample_size: Mapped[int] = mapped_column(Big)
    entropy: Mapped[float | None] = mapped_column(Number)
    kurtosis: Mapped[float | None] = mapped_column(Number)
    coherence: Mapped[float | None] = mapped_column(Number)
    mean: Mapped[float | None] = mapped_column(Number)
    standard_deviation: Mapped[float | None] = mapped_column(Number)
    minimum: Mapped[float | None] = mapped_column(Number)
    maximum: Mapped[float | None] = mapped_column(Number)
    nan_count: Mapped[int] = mapped_column(Big, default=0)
    infinite_count: Mapped[int] = mapped_column(Big, default=0)
    constant: Mapped[bool] = mapped_column(Flag, default=False)
    reason: Mapped[str | None] = mapped_column(text(256))


COARSE_FINGERPRINT_BYTES = 256
"""The size of fingerprints that versions before the change of weights wrote."""


class Fingerprint(Base):
    """The data of `registry.fingerprints`, used to compare organs of the same shape."""

    __tablename__ = "fingerprints"

    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"), primary_key=True)
    values: Mapped[bytes] = mapped_column(LargeBinary(536))


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
        Index("ix_models_stem", "stem", "namespace"),
        Index("ix_models_repacked_at", "repacked_at"),
        at_most("state_reason", TEXT_MAX),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    namespace: Mapped[str] = mapped_column(text(96))
    name: Mapped[str] = mapped_column(text(96))
    version: Mapped[int] = mapped_column(Integer)
    digest: Mapped[str] = mapped_column(text(64), index=True)
    """The SHA-256 of its single file, or of the SHA-256s of its files in order, one per line."""
    state: Mapped[str] = mapped_column(text(16))
    kind: Mapped[str] = mapped_column(text(16))
    complete: Mapped[bool] = mapped_column(Flag)
    """Whether the registry has all of its organs. Partial models name a base and are not in the rankings."""
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
    """JSON list of sentences: unusual properties."""
    unassemblable: Mapped[str] = mapped_column(Text)
    """JSON list of sentences: the reasons why it cannot be assembled; empty for nearly all models."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    state_reason: Mapped[str | None] = mapped_column(text(TEXT_MAX))
    """The reason of a yank or a removal, in the words of the person who did it."""
    changed_at: Mapped[datetime | None] = mapped_column(Timestamp)
    """When its state or its description was last changed."""
    downloads: Mapped[int] = mapped_column(Big, server_default=sql("0"))
    """The sum of its daily downloads."""
    grafts: Mapped[int] = mapped_column(Big, server_default=sql("0"))
    """The number of visible chimeras that have its organs, including those of its own contributor."""
    nonfinite_tensors: Mapped[int | None] = mapped_column(Big)
    """The number of tensors with NaN or infinite values; null until all tensors were counted."""
    shards: Mapped[int | None] = mapped_column(Big)
    """The number of shards of an incomplete split model; null for all other models."""
    stem: Mapped[str] = mapped_column(text(96), at_most("stem", 96), server_default=sql("''"))
    """The name without its quantisation. The models of a namespace with one stem are quantisations of one model."""
    repacked_at: Mapped[datetime | None] = mapped_column(Timestamp)
    """When a repack last examined its organs; null if none has."""
    quantisation: Mapped[str | None] = mapped_column(text(96), at_most("quantisation", 96))
    """The quantisation at the end of the name, in upper case, or else that of the tensors; null without matrices."""

    @validates("name")
    def _split_name(self, _key: str, name: str) -> str:
        self.stem, self.quantisation = split_quantisation(name)
        return name

    @property
    def full_name(self) -> str:
        """`namespace/name@version`."""
        return f"{self.namespace}/{self.name}@{self.version}"


class ModelFile(Base):
    """One GGUF file of a model. Its bytes are its parts and the organs of its placements; all other bytes are zero."""

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
    """Bytes from the magic to the last tensor info, without padding."""


class FilePart(Base):
    """A slice of a blob at `offset_bytes` of a file: parts of the header, metadata arrays, padding that is not zero."""

    __tablename__ = "file_parts"

    file_id: Mapped[int] = mapped_column(ForeignKey("model_files.id"), primary_key=True)
    offset_bytes: Mapped[int] = mapped_column(Big, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(Big)
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"), index=True)
    blob_offset_bytes: Mapped[int] = mapped_column(Big)


class ModelMetadata(Base):
    """The entries of a header in order, as text; the exact bytes are in the parts of the file."""

    __tablename__ = "model_metadata"
    __table_args__ = (at_most("key", TEXT_MAX), at_most("value", TEXT_MAX), at_most("type", 32))

    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    key: Mapped[str] = mapped_column(text(TEXT_MAX))
    type: Mapped[str] = mapped_column(text(32))
    value: Mapped[str] = mapped_column(text(TEXT_MAX))


class RuntimeText(Base):
    """A text that another tool keeps beside a model: a template, a system prompt, parameters, a license."""

    __tablename__ = "runtime_texts"
    __table_args__ = (
        one_of("kind", RUNTIME_TEXT_KINDS),
        at_most("source", 255),
        at_most("text", RUNTIME_TEXT_MAX),
    )

    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    kind: Mapped[str] = mapped_column(text(16))
    source: Mapped[str] = mapped_column(text(255))
    """The tool, and its name for the model."""
    text: Mapped[str] = mapped_column(Text)


class OtherName(Base):
    """A name of a model beside its own: its name before a renaming, or one under which an ingest met the same bytes.

    It leads to the model, unless a model has this name now. The versions of a name are numbered across both tables.
    """

    __tablename__ = "other_names"
    __table_args__ = (
        at_most("namespace", 96),
        at_most("name", 96),
        at_most("stem", 96),
        Index("ix_other_names_stem", "stem", "namespace"),
    )

    namespace: Mapped[str] = mapped_column(text(96), primary_key=True)
    name: Mapped[str] = mapped_column(text(96), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), index=True)
    stem: Mapped[str] = mapped_column(text(96))
    """The name without its quantisation."""

    @validates("name")
    def _split_name(self, _key: str, name: str) -> str:
        self.stem = split_quantisation(name)[0]
        return name


class KnownFile(Base):
    """A file on this machine that an ingest has read. The stamp changes when the file is written or replaced."""

    __tablename__ = "known_files"
    __table_args__ = (
        CheckConstraint("length(stamp) = 64", name="stamp_length"),
        CheckConstraint("length(sha256) = 64", name="sha256_length"),
    )

    stamp: Mapped[str] = mapped_column(text(64), primary_key=True)
    """SHA-256 of inode, size, and the times of the last change of content and of attributes."""
    sha256: Mapped[str] = mapped_column(text(64))
    """SHA-256 of the bytes that were read."""


RANKED_COLUMNS = (*RANKED_MEASURES, "size_bytes")
"""The columns that searches sort by."""


def _ranking(measure: str) -> Index:
    """Return the index for filters by type and a sort by `measure`. It has all columns that filters test."""
    columns = ("visible", "type", measure, "id", "facet_id", "block", "model_id", "theta")
    return Index(f"ix_placements_{measure}", *dict.fromkeys(columns))


class Placement(MeasureColumns, Base):
    """An organ at its place in a model. The measures are copied here, so that one index serves a filter and a sort."""

    __tablename__ = "placements"
    __table_args__ = (
        one_of("type", ORGAN_TYPES),
        one_of("tower", TOWERS),
        at_most("name", TENSOR_NAME_MAX),
        at_most("slot", TENSOR_NAME_MAX),
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
    """The order over all files of the model."""
    file_id: Mapped[int] = mapped_column(ForeignKey("model_files.id"), index=True)
    offset_bytes: Mapped[int] = mapped_column(Big)
    """The offset of the tensor in its file."""
    name: Mapped[str] = mapped_column(text(TENSOR_NAME_MAX))
    type: Mapped[str] = mapped_column(text(16))
    tower: Mapped[str] = mapped_column(text(16))
    block: Mapped[int | None] = mapped_column(Big)
    slot: Mapped[str] = mapped_column(text(TENSOR_NAME_MAX))
    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"))
    visible: Mapped[bool] = mapped_column(Flag)
    """Copied from the state of the model, so that searches test only this column."""
    facet_id: Mapped[int] = mapped_column(ForeignKey("facets.id"), index=True)
    dtype: Mapped[str] = mapped_column(text(16))
    size_bytes: Mapped[int] = mapped_column(Big)


def _expert_ranking(measure: str) -> Index:
    """Return the index for a sort of experts by `measure`. It has all columns that filters test."""
    columns = ("visible", measure, "id", "expert", "facet_id", "block", "model_id", "theta")
    return Index(f"ix_experts_{measure}", *dict.fromkeys(columns))


class Expert(MeasureColumns, Base):
    """One expert of a stack of experts: an organ at a number in the placement of its stack.

    Columns of the placement and the measures are copied here, so that searches read no other table. Searches find
    experts only if the query has the field `expert`.
    """

    __tablename__ = "experts"
    __table_args__ = (
        UniqueConstraint("placement_id", "expert"),
        one_of("type", ORGAN_TYPES),
        one_of("tower", TOWERS),
        at_most("slot", TENSOR_NAME_MAX),
        at_most("dtype", 16),
        *(_expert_ranking(measure) for measure in RANKED_COLUMNS),
        Index("ix_experts_expert", "expert", "visible", "facet_id", "block", "model_id", "theta"),
        Index("ix_experts_model", "model_id", "placement_id", "expert"),
        Index("ix_experts_organ", "organ_id", "visible", "model_id"),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    placement_id: Mapped[int] = mapped_column(ForeignKey("placements.id"))
    """The placement of the stack."""
    expert: Mapped[int] = mapped_column(Integer)
    """The number in the stack, from 0."""
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    type: Mapped[str] = mapped_column(text(16))
    tower: Mapped[str] = mapped_column(text(16))
    block: Mapped[int | None] = mapped_column(Big)
    slot: Mapped[str] = mapped_column(text(TENSOR_NAME_MAX))
    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"))
    visible: Mapped[bool] = mapped_column(Flag)
    facet_id: Mapped[int] = mapped_column(ForeignKey("facets.id"), index=True)
    """The facet of the stack."""
    dtype: Mapped[str] = mapped_column(text(16))
    size_bytes: Mapped[int] = mapped_column(Big)


class Facet(Base):
    """A combination of values that searches filter by. Every placement has a facet. There are some thousands.

    A missing architecture or license is the empty text.
    """

    __tablename__ = "facets"
    __table_args__ = (
        UniqueConstraint("type", "tower", "slot", "dtype", "architecture", "license"),
        one_of("type", ORGAN_TYPES),
        one_of("tower", TOWERS),
        at_most("slot", TENSOR_NAME_MAX),
        at_most("dtype", 16),
        at_most("architecture", 96),
        at_most("license", 96),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    type: Mapped[str] = mapped_column(text(16))
    tower: Mapped[str] = mapped_column(text(16))
    slot: Mapped[str] = mapped_column(text(TENSOR_NAME_MAX))
    dtype: Mapped[str] = mapped_column(text(16))
    architecture: Mapped[str] = mapped_column(text(96))
    license: Mapped[str] = mapped_column(text(96))


class FacetCount(Base):
    """The number of visible placements of a facet in a bin of θ (`registry.catalog.vocabulary`)."""

    __tablename__ = "facet_counts"

    facet_id: Mapped[int] = mapped_column(ForeignKey("facets.id"), primary_key=True)
    theta_bin: Mapped[int] = mapped_column(Big, primary_key=True)
    placements: Mapped[int] = mapped_column(Big)


class ModelWord(Base):
    """A folded word of a model's names, title, tags or description, for words in queries."""

    __tablename__ = "model_words"
    __table_args__ = (at_most("word", WORD_MAX), Index("ix_model_words_model_id", "model_id"))

    word: Mapped[str] = mapped_column(text(WORD_MAX), primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), primary_key=True)


class ModelTag(Base):
    """A folded tag of a model, for `tag:` in queries. Without case, an exact name is found by the primary key."""

    __tablename__ = "model_tags"
    __table_args__ = (at_most("tag", 96), Index("ix_model_tags_model_id", "model_id"))

    tag: Mapped[str] = mapped_column(text(96), primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), primary_key=True)


TOTALS = ("models", "placements", "organs", "blobs", "size_bytes", "stored_bytes")
"""The visible models, their placements and distinct organs; the blobs that are not doomed, their plain bytes and their
stored bytes."""


class Total(Base):
    """A running total. A total without a row is 0."""

    __tablename__ = "totals"
    __table_args__ = (one_of("name", TOTALS),)

    name: Mapped[str] = mapped_column(text(16), primary_key=True)
    value: Mapped[int] = mapped_column(Big)


class CatalogVersion(Base):
    """The version of the catalog on PostgreSQL, in one row. SQLite counts commits by itself, so it stays 1 there."""

    __tablename__ = "catalog_version"

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    number: Mapped[int] = mapped_column(Big)
    """It grows with every transaction that changes anything."""


class NamedLease(Base):
    """A lock with a time limit, which a process of any machine holds, for work that only one may do."""

    __tablename__ = "named_leases"
    __table_args__ = (at_most("name", 32), at_most("holder", 32))

    name: Mapped[str] = mapped_column(text(32), primary_key=True)
    holder: Mapped[str] = mapped_column(text(32))
    """A random text of the process that holds it."""
    expires_at: Mapped[datetime] = mapped_column(Timestamp)


class Contributor(Base):
    """A person who adds models. `local` means the users of the command line on the registry's machine."""

    __tablename__ = "contributors"
    __table_args__ = (at_most("name", 96), one_of("state", CONTRIBUTOR_STATES))

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    name: Mapped[str] = mapped_column(text(96), unique=True)
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    state: Mapped[str] = mapped_column(text(16), server_default=sql("'active'"))
    """Suspended contributors cannot use their accounts; their published models stay."""
    quota_bytes: Mapped[int | None] = mapped_column(Big)
    """Bytes that they may store; None means the default of the server."""


class Lineage(Base):
    """An edge from a child to a parent, between models or organs. A parent that is only declared is stored by name."""

    __tablename__ = "lineage"
    __table_args__ = (
        one_of("relation", RELATIONS),
        one_of("evidence", EVIDENCE),
        CheckConstraint("(child_model_id IS NULL) <> (child_organ_id IS NULL)", name="one_child"),
        at_most("parent_text", TEXT_MAX),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    child_model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    child_organ_id: Mapped[int | None] = mapped_column(ForeignKey("organs.id"), index=True)
    parent_model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    parent_organ_id: Mapped[int | None] = mapped_column(ForeignKey("organs.id"), index=True)
    parent_text: Mapped[str | None] = mapped_column(text(TEXT_MAX))
    relation: Mapped[str] = mapped_column(text(16))
    evidence: Mapped[str] = mapped_column(text(16))
    score: Mapped[float | None] = mapped_column(Number)
    """The mean correlation of a measured edge, -1 to 1."""
    compared: Mapped[int | None] = mapped_column(Big)
    """The number of matrices in the mean."""
    change: Mapped[float | None] = mapped_column(Number)
    """The mean change of a measured edge; NULL if an organ has a coarse fingerprint."""
    matched: Mapped[float | None] = mapped_column(Number)
    """Of a measured edge between a quantisation and floats: the share of sampled blocks that encoding these gives."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)


class Event(Base):
    """An action in the event log. Rows are added and never changed."""

    __tablename__ = "events"
    __table_args__ = (at_most("text", TEXT_MAX), at_most("action", 32))

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    at: Mapped[datetime] = mapped_column(Timestamp, index=True)
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"), index=True)
    action: Mapped[str] = mapped_column(text(32))
    model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    text: Mapped[str] = mapped_column(text(TEXT_MAX))


class DailyDownloads(Base):
    """Downloads of a model or of its organs on one day. They are counted in memory and added in batches."""

    __tablename__ = "daily_downloads"
    __table_args__ = (CheckConstraint("length(day) = 10", name="day_length"),)

    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), primary_key=True)
    day: Mapped[str] = mapped_column(text(10), primary_key=True)
    """YYYY-MM-DD, UTC."""
    downloads: Mapped[int] = mapped_column(Big)


class Chimera(Base):
    """The data of a model that was composed in this registry. Its lock is in the header of its file."""

    __tablename__ = "chimeras"
    __table_args__ = (at_most("lock_id", 64),)

    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), primary_key=True)
    lock_id: Mapped[str] = mapped_column(text(64), index=True)
    """SHA-256 of the lock's canonical JSON. Two models have the same lock if equal bytes have two names."""
    base_model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), index=True)
    recipe: Mapped[str] = mapped_column(Text)
    """JSON of `registry.compose.recipe`."""
    findings: Mapped[str] = mapped_column(Text)
    """JSON list: the findings before it was made, including accepted warnings."""
    screen: Mapped[str | None] = mapped_column(Text)
    """JSON object: what the weights said about its changes. None for chimeras of versions that had no screen."""
    origins: Mapped[str] = mapped_column(Text)
    """JSON object: `parents`, a list of models, and `parts`: for each tensor that is not from the base, the index of
    its parent and the acts."""
    quick_look: Mapped[str | None] = mapped_column(Text)
    """JSON of the entity `QuickLook`; None before the first."""


class Computation(Base):
    """How an organ was computed from others by purifying, merging or encoding again."""

    __tablename__ = "computations"
    __table_args__ = (at_most("key", 64),)

    key: Mapped[str] = mapped_column(text(64), primary_key=True)
    """SHA-256 of `made`."""
    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"), index=True)
    made: Mapped[str] = mapped_column(Text)
    """Canonical JSON: the acts with their parameters, and the digests of the input organs."""


class Verdict(Base):
    """The result of a run of a chimera, compared with its base, its donors and its control."""

    __tablename__ = "verdicts"
    __table_args__ = (one_of("verdict", VERDICTS), at_most("runtime", 256), at_most("reason", TEXT_MAX))

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), index=True)
    runtime: Mapped[str] = mapped_column(text(256))
    verdict: Mapped[str] = mapped_column(text(16))
    reason: Mapped[str] = mapped_column(text(TEXT_MAX))
    report: Mapped[str] = mapped_column(Text)
    """JSON: texts, perplexities with their standard errors, generated text, the end of the runtime's log."""
    strength: Mapped[int] = mapped_column(Big, server_default="0")
    """How much was scored: the tokens of each text, up to a limit, together."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)


class Score(Base):
    """The scores of a file on the windows of a text in a runtime, stored so that a base is measured only once."""

    __tablename__ = "scores"
    __table_args__ = (
        UniqueConstraint("file_digest", "text_digest", "tokens", "runtime"),
        at_most("file_digest", 64),
        at_most("text_digest", 64),
        at_most("runtime", 256),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    file_digest: Mapped[str] = mapped_column(text(64))
    text_digest: Mapped[str] = mapped_column(text(64))
    tokens: Mapped[int] = mapped_column(Big)
    """Tokens of a window."""
    runtime: Mapped[str] = mapped_column(text(256))
    reading: Mapped[str] = mapped_column(Text)
    """JSON of `registry.validation`."""
    perplexity: Mapped[float | None] = mapped_column(Number)
    created_at: Mapped[datetime] = mapped_column(Timestamp)


class Gain(Base):
    """How much lower the perplexity of a validated chimera is than that of its base, on one text."""

    __tablename__ = "gains"
    __table_args__ = (
        UniqueConstraint("model_id", "text_digest"),
        at_most("text", 96),
        at_most("text_digest", 64),
        at_most("grafted", TEXT_MAX),
        Index("ix_gains_base_model_id_percent", "base_model_id", "percent"),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    """The chimera."""
    base_model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    donor_model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    """Its only donor; null if it has none or several, or if organs were also purified."""
    grafted: Mapped[str] = mapped_column(text(TEXT_MAX))
    """What differs from the base, as text: `feed-forward 0-3`."""
    text_digest: Mapped[str] = mapped_column(text(64))
    percent: Mapped[float] = mapped_column(Number)
    """The fall of the perplexity in percent of the base's: negative if the perplexity rose."""
    margin: Mapped[float] = mapped_column(Number)
    """Half of the interval of 95%, in percent."""
    tokens: Mapped[int] = mapped_column(Big)
    settled: Mapped[bool] = mapped_column(Flag)
    """Whether the interval excludes 0. Searches find only settled gains."""
    text: Mapped[str] = mapped_column(text(96))
    """The name of the text."""


class GainOrgan(Base):
    """An organ to which the gains of a chimera are attributed: one of those that its only donor gave, or a result."""

    __tablename__ = "gain_organs"

    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"), primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), primary_key=True, index=True)
    """The chimera."""


class Token(Base):
    """A token of a contributor. Only a digest of its secret is stored."""

    __tablename__ = "tokens"
    __table_args__ = (
        CheckConstraint("length(public_id) = 9", name="public_id_length"),
        CheckConstraint("length(secret_sha256) = 64", name="secret_sha256_length"),
        at_most("scopes", 64),
        at_most("label", 96),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"), index=True)
    public_id: Mapped[str] = mapped_column(text(9), unique=True)
    """The public part of the token, which identifies it."""
    secret_sha256: Mapped[str] = mapped_column(text(64))
    """SHA-256 of the complete token. It has 256 random bits, so no slow hash is needed."""
    scopes: Mapped[str] = mapped_column(text(64))
    """Scopes in the order of the vocabulary, separated by spaces."""
    label: Mapped[str] = mapped_column(text(96))
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    expires_at: Mapped[datetime | None] = mapped_column(Timestamp)
    revoked_at: Mapped[datetime | None] = mapped_column(Timestamp)
    last_used_at: Mapped[datetime | None] = mapped_column(Timestamp)
    """Exact to some minutes, so that not every request writes."""
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("tokens.id"), index=True)
    """The token that created this one; NULL if an administrator created it in the registry's folder."""


class WebSession(Base):
    """A browser that is logged in with a token, as long as this token is valid."""

    __tablename__ = "web_sessions"
    __table_args__ = (CheckConstraint("length(secret_sha256) = 64", name="secret_sha256_length"),)

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    secret_sha256: Mapped[str] = mapped_column(text(64), unique=True)
    """SHA-256 of the secret in the cookie."""
    token_id: Mapped[int] = mapped_column(ForeignKey("tokens.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    expires_at: Mapped[datetime] = mapped_column(Timestamp, index=True)


class PageToken(Base):
    """A token that a page keeps in memory to call the API. It has few scopes and a short life."""

    __tablename__ = "page_tokens"
    __table_args__ = (
        CheckConstraint("length(secret_sha256) = 64", name="secret_sha256_length"),
        at_most("scopes", 64),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    secret_sha256: Mapped[str] = mapped_column(text(64), unique=True)
    session_id: Mapped[int] = mapped_column(ForeignKey("web_sessions.id", ondelete="CASCADE"), index=True)
    scopes: Mapped[str] = mapped_column(text(64))
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    expires_at: Mapped[datetime] = mapped_column(Timestamp)


class Upload(Base):
    """Bytes that arrive in chunks, stored in a file of the folder for uploads, or in a bucket as the objects of
    UploadChunk. Only their sender can see them."""

    __tablename__ = "uploads"
    __table_args__ = (
        CheckConstraint("length(public_id) = 22", name="public_id_length"),
        one_of("kind", UPLOAD_KINDS),
        one_of("state", UPLOAD_STATES),
        at_most("name", 255),
        at_most("digest", 64),
        CheckConstraint("received_bytes BETWEEN 0 AND size_bytes", name="received_within_size"),
        Index("ix_uploads_contributor_id_state", "contributor_id", "state"),
        Index("ix_uploads_state_expires_at", "state", "expires_at"),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    public_id: Mapped[str] = mapped_column(text(22), unique=True)
    """A random text: the end of the upload's URL, and the name of its file."""
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"))
    kind: Mapped[str] = mapped_column(text(16))
    name: Mapped[str | None] = mapped_column(text(255))
    """The name that the sender gave to a complete file. It is never used as a path."""
    digest: Mapped[str | None] = mapped_column(text(64))
    """SHA-256 of all bytes; for a complete file it may be unknown until all have arrived."""
    size_bytes: Mapped[int] = mapped_column(Big)
    received_bytes: Mapped[int] = mapped_column(Big)
    """Durable bytes. Further bytes in the file are overwritten."""
    state: Mapped[str] = mapped_column(text(16))
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    expires_at: Mapped[datetime] = mapped_column(Timestamp)


class UploadChunk(Base):
    """A chunk of an upload that is an object in the bucket. In a folder, an upload has no chunks."""

    __tablename__ = "upload_chunks"
    __table_args__ = (at_most("file", 128), CheckConstraint("size_bytes > 0", name="size_positive"))

    upload_id: Mapped[int] = mapped_column(ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True)
    offset_bytes: Mapped[int] = mapped_column(Big, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(Big)
    file: Mapped[str] = mapped_column(text(128), unique=True)
    """The name of the object."""


class RateCount(Base):
    """A count of requests of a client, which all servers of a registry share."""

    __tablename__ = "rate_counts"
    __table_args__ = (CheckConstraint("length(key) = 32", name="key_length"),)

    key: Mapped[str] = mapped_column(text(32), primary_key=True)
    """A digest of the rate and the client."""
    expires_at: Mapped[datetime] = mapped_column(Timestamp, index=True)
    count: Mapped[int] = mapped_column(Big)


class UploadPiece(Base):
    """A piece of a file of a model, at an offset of a finished upload."""

    __tablename__ = "upload_pieces"
    __table_args__ = (CheckConstraint("length(digest) = 64", name="digest_length"),)

    upload_id: Mapped[int] = mapped_column(ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True)
    offset_bytes: Mapped[int] = mapped_column(Big, primary_key=True)
    digest: Mapped[str] = mapped_column(text(64), index=True)
    size_bytes: Mapped[int] = mapped_column(Big)


class Submission(Base):
    """A model that a contributor wants to publish, from the upload to the decision."""

    __tablename__ = "submissions"
    __table_args__ = (
        one_of("state", SUBMISSION_STATES),
        at_most("namespace", 96),
        at_most("name", 96),
        at_most("reason", TEXT_MAX),
        Index("ix_submissions_contributor_id_id", "contributor_id", "id"),
        Index("ix_submissions_state_id", "state", "id"),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"))
    namespace: Mapped[str] = mapped_column(text(96))
    name: Mapped[str] = mapped_column(text(96))
    state: Mapped[str] = mapped_column(text(16))
    manifest: Mapped[str] = mapped_column(Text, deferred=True)
    """JSON object: the files and their pieces; up to some mebibytes."""
    metadata_given: Mapped[str] = mapped_column(Text)
    """JSON object: the contributor's description of the model, beside its header."""
    findings: Mapped[str] = mapped_column(Text)
    """JSON list."""
    size_bytes: Mapped[int] = mapped_column(Big)
    job_id: Mapped[int | None] = mapped_column(Big)
    """The job that checks it. No foreign key: jobs are removed after a while, submissions are not."""
    model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    decided_by: Mapped[int | None] = mapped_column(ForeignKey("contributors.id"))
    reason: Mapped[str | None] = mapped_column(text(TEXT_MAX))
    """The reason of a refusal, for the contributor."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    changed_at: Mapped[datetime] = mapped_column(Timestamp)


class WorkColumns:
    """The columns of a row that one process at a time works on: see `registry.catalog.work`."""

    state: Mapped[str] = mapped_column(text(16))
    attempts: Mapped[int] = mapped_column(Big)
    """The number of times that it was claimed, without those that were interrupted on purpose."""
    deaths: Mapped[int] = mapped_column(Big)
    """The number of processes that died while they did it."""
    holder: Mapped[str | None] = mapped_column(text(32))
    """A random text that identifies the present claim; older claims are invalid."""
    lease_expires_at: Mapped[datetime | None] = mapped_column(Timestamp)
    """When the process of running work counts as dead; for queued work, when it may be claimed, if not at once."""
    note: Mapped[str] = mapped_column(text(TEXT_MAX))
    """The current step, or why it failed or waits, in one sentence."""
    result: Mapped[str | None] = mapped_column(Text, deferred=True)
    """JSON object of work that is done; loaded only on access."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    started_at: Mapped[datetime | None] = mapped_column(Timestamp)
    finished_at: Mapped[datetime | None] = mapped_column(Timestamp)
    """When it ended, in any state."""


class JobRow(WorkColumns, Base):
    """A piece of work in a queue. A cancelled job has a holder until its runner has stopped."""

    __tablename__ = "jobs"
    __table_args__ = (
        one_of("state", JOB_STATES),
        at_most("kind", 32),
        at_most("holder", 32),
        at_most("note", TEXT_MAX),
        Index("ix_jobs_state_kind", "state", "kind", "id"),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    kind: Mapped[str] = mapped_column(text(32))
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"), index=True)
    deaths: Mapped[int] = mapped_column(Big, server_default=sql("0"))
    arguments: Mapped[str] = mapped_column(Text, deferred=True)
    """JSON object of up to a mebibyte; loaded only on access."""
    progress: Mapped[float] = mapped_column(Number)
    """0 to 1."""
    problem: Mapped[str | None] = mapped_column(Text, deferred=True)
    """JSON object: the problem document of a failed job; loaded only on access."""


class FleetRunRow(Base):
    """A plan of work for many processes. Its units are in FleetUnit."""

    __tablename__ = "fleet_runs"
    __table_args__ = (
        CheckConstraint("length(digest) = 64", name="digest_length"),
        at_most("name", 96),
        at_most("dashboard", 256),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    name: Mapped[str] = mapped_column(text(96))
    digest: Mapped[str] = mapped_column(text(64), unique=True)
    """SHA-256 of the name, all units, and the sizes and times of their files. The same plan continues the same run."""
    dashboard: Mapped[str | None] = mapped_column(text(256))
    """The address of Dask's page about the work, if a driver stated one."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)


class FleetUnit(WorkColumns, Base):
    """A piece of work of a run."""

    __tablename__ = "fleet_units"
    __table_args__ = (
        one_of("work", FLEET_WORK),
        one_of("state", FLEET_UNIT_STATES),
        CheckConstraint("attempts >= 0 AND deaths >= 0", name="counts_positive"),
        at_most("source", TEXT_MAX),
        at_most("holder", 32),
        at_most("worker", 96),
        at_most("version", 96),
        at_most("note", TEXT_MAX),
        Index("ix_fleet_units_run_id_state", "run_id", "state", "number"),
        Index("ix_fleet_units_run_id_finished_at", "run_id", "finished_at"),
    )

    run_id: Mapped[int] = mapped_column(ForeignKey("fleet_runs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Its place in the plan, from 1."""
    work: Mapped[str] = mapped_column(text(16))
    source: Mapped[str] = mapped_column(text(TEXT_MAX))
    """A path, an address without credentials, or names of models, separated by spaces."""
    worker: Mapped[str | None] = mapped_column(text(96))
    """The name of the process that claimed it last."""
    version: Mapped[str | None] = mapped_column(text(96))
    """The versions of the program and of its codecs in that process."""
    size_bytes: Mapped[int | None] = mapped_column(Big)
    """The bytes of the files of the unit; null if they are not known yet."""
