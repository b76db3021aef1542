"""The tables. What must hold stands here as a constraint, in types that SQLite and PostgreSQL both keep.

    contributors   who adds models
    ingests        one row a dissection: its lease, its state, its report
    blobs          immutable stored bytes by digest; inline_blobs holds the small ones; blob_leases who needs them meanwhile
    organs         a tensor's bytes with dtype and shape
    measurements   an organ's numbers, a row a method; fingerprints what organs are compared by
    models         namespace/name@version; model_files, file_parts the exact bytes around the tensors; model_metadata for reading
    placements     an organ at its place in a model, with the rankable numbers copied
    lineage        who came from what, by which act, on what evidence
    events         append-only: who did what
    facets         counts over visible placements, kept by whoever registers
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from registry.catalog.vocabulary import (
    BLOB_STATES,
    EVIDENCE,
    INGEST_STATES,
    MODEL_KINDS,
    MODEL_STATES,
    ORGAN_TYPES,
    RELATIONS,
    TEXT_MAX,
    TOWERS,
)

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

Identity = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only in an INTEGER column; both are 64 bits wide."""


class Timestamp(TypeDecorator[datetime]):
    """An aware UTC time. SQLite has no time zones, so it is stored there without one and handed back with it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        assert value is None or value.tzinfo is not None, "times are aware"
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class Base(DeclarativeBase):
    """Holds the metadata that migrations are compared with."""

    metadata = MetaData(naming_convention=NAMING)


def one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    """A CHECK that `column` holds one of `values`."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


def at_most(column: str, length: int) -> CheckConstraint:
    """A CHECK on the length of a text: SQLite ignores the number in VARCHAR(n)."""
    return CheckConstraint(f"length({column}) <= {length}", name=f"{column}_length")


class Contributor(Base):
    """Somebody who adds models. `local` is whoever runs the command on this machine."""

    __tablename__ = "contributors"
    __table_args__ = (at_most("name", 96),)

    id: Mapped[int] = mapped_column(Identity, primary_key=True)
    name: Mapped[str] = mapped_column(String(96), unique=True)
    created_at: Mapped[datetime] = mapped_column(Timestamp)


class Ingest(Base):
    """One run over one model. While `running` and before `lease_expires_at`, its blobs are not swept."""

    __tablename__ = "ingests"
    __table_args__ = (one_of("state", INGEST_STATES), at_most("source", TEXT_MAX))

    id: Mapped[int] = mapped_column(Identity, primary_key=True)
    source: Mapped[str] = mapped_column(String(TEXT_MAX))
    state: Mapped[str] = mapped_column(String(16))
    started_at: Mapped[datetime] = mapped_column(Timestamp)
    finished_at: Mapped[datetime | None] = mapped_column(Timestamp)
    lease_expires_at: Mapped[datetime] = mapped_column(Timestamp)
    model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    report: Mapped[str | None] = mapped_column(Text)
    """JSON: sizes, counts, seconds and MB/s per stage."""


class Blob(Base):
    """Stored bytes. `digest` and `size_bytes` are of the plain bytes; `file` is None for an inline blob."""

    __tablename__ = "blobs"
    __table_args__ = (
        one_of("state", BLOB_STATES),
        CheckConstraint("length(digest) = 64", name="digest_length"),
        CheckConstraint("size_bytes >= 0 AND stored_bytes >= 0", name="sizes_positive"),
        Index("ix_blobs_state_touched_at", "state", "touched_at"),
    )

    id: Mapped[int] = mapped_column(Identity, primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    stored_bytes: Mapped[int] = mapped_column(BigInteger)
    codec: Mapped[str] = mapped_column(String(32))
    codec_version: Mapped[int] = mapped_column(Integer)
    file: Mapped[str | None] = mapped_column(String(128), unique=True)
    state: Mapped[str] = mapped_column(String(16))
    depends_on: Mapped[int | None] = mapped_column(ForeignKey("blobs.id"), index=True)
    """The blob that this one is encoded against, for codecs that need one."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    touched_at: Mapped[datetime] = mapped_column(Timestamp)
    """Last time a writer needed it; the sweep's grace counts from here."""


class InlineBlob(Base):
    """The stored bytes of a small blob, in the database instead of a file."""

    __tablename__ = "inline_blobs"

    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id", ondelete="CASCADE"), primary_key=True)
    stored: Mapped[bytes] = mapped_column(LargeBinary)


class BlobLease(Base):
    """A blob that a running ingest will need."""

    __tablename__ = "blob_leases"

    ingest_id: Mapped[int] = mapped_column(ForeignKey("ingests.id", ondelete="CASCADE"), primary_key=True)
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"), primary_key=True, index=True)


class Organ(Base):
    """A tensor's bytes with the dtype and shape that give them meaning. `shape` is row length first: `192x512`."""

    __tablename__ = "organs"
    __table_args__ = (UniqueConstraint("blob_id", "dtype", "shape"),)

    id: Mapped[int] = mapped_column(Identity, primary_key=True)
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"))
    dtype: Mapped[str] = mapped_column(String(16))
    shape: Mapped[str] = mapped_column(String(96))
    elements: Mapped[int] = mapped_column(BigInteger)


class Measurement(Base):
    """What one method read from one organ. Columns that a method does not give are null; `reason` says why it read nothing."""

    __tablename__ = "measurements"

    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"), primary_key=True)
    method: Mapped[str] = mapped_column(String(16), primary_key=True)
    sample_size: Mapped[int] = mapped_column(BigInteger)
    theta: Mapped[float | None] = mapped_column(Float(53))
    """Degrees, 0 noise to 90 signal."""
    magnitude: Mapped[float | None] = mapped_column(Float(53))
    signal: Mapped[float | None] = mapped_column(Float(53))
    entropy: Mapped[float | None] = mapped_column(Float(53))
    kurtosis: Mapped[float | None] = mapped_column(Float(53))
    coherence: Mapped[float | None] = mapped_column(Float(53))
    mean: Mapped[float | None] = mapped_column(Float(53))
    standard_deviation: Mapped[float | None] = mapped_column(Float(53))
    minimum: Mapped[float | None] = mapped_column(Float(53))
    maximum: Mapped[float | None] = mapped_column(Float(53))
    nan_count: Mapped[int] = mapped_column(BigInteger, default=0)
    infinite_count: Mapped[int] = mapped_column(BigInteger, default=0)
    constant: Mapped[bool] = mapped_column(default=False)
    spectral_signal: Mapped[float | None] = mapped_column(Float(53))
    stable_rank: Mapped[float | None] = mapped_column(Float(53))
    reason: Mapped[str | None] = mapped_column(String(256))


class Fingerprint(Base):
    """256 signed bytes by which organs of one shape are compared."""

    __tablename__ = "fingerprints"

    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"), primary_key=True)
    values: Mapped[bytes] = mapped_column(LargeBinary(256))


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
        CheckConstraint("version >= 1", name="version_positive"),
        Index("ix_models_state_created_at", "state", "created_at"),
    )

    id: Mapped[int] = mapped_column(Identity, primary_key=True)
    namespace: Mapped[str] = mapped_column(String(96))
    name: Mapped[str] = mapped_column(String(96))
    version: Mapped[int] = mapped_column(Integer)
    digest: Mapped[str] = mapped_column(String(64), index=True)
    """Of its bytes: the SHA-256 of its one file, or of its files' SHA-256s in order, one a line."""
    state: Mapped[str] = mapped_column(String(16))
    kind: Mapped[str] = mapped_column(String(16))
    complete: Mapped[bool]
    """Whether all of its organs are here; partial uploads name a base and stay out of the rankings."""
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"), index=True)
    architecture: Mapped[str | None] = mapped_column(String(96))
    title: Mapped[str | None] = mapped_column(String(TEXT_MAX))
    description: Mapped[str | None] = mapped_column(String(TEXT_MAX))
    license: Mapped[str | None] = mapped_column(String(96))
    size_label: Mapped[str | None] = mapped_column(String(96))
    parameters: Mapped[int] = mapped_column(BigInteger)
    tensors: Mapped[int] = mapped_column(BigInteger)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    mean_theta: Mapped[float | None] = mapped_column(Float(53))
    mean_signal: Mapped[float | None] = mapped_column(Float(53))
    flags: Mapped[str] = mapped_column(Text)
    """JSON list of sentences: what is odd about it."""
    unassemblable: Mapped[str] = mapped_column(Text)
    """JSON list of sentences: why it is never written out again; empty for nearly all."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)


class ModelFile(Base):
    """One GGUF file of a model. Its bytes are zeros, overlaid by its parts and by its placements' organs."""

    __tablename__ = "model_files"
    __table_args__ = (UniqueConstraint("model_id", "position"), at_most("name", 255))

    id: Mapped[int] = mapped_column(Identity, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    position: Mapped[int] = mapped_column(Integer)
    name: Mapped[str] = mapped_column(String(255))
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    header_sha256: Mapped[str] = mapped_column(String(64))
    header_bytes: Mapped[int] = mapped_column(BigInteger)
    """From the magic to the last tensor info, padding not included."""


class FilePart(Base):
    """A slice of a blob that stands at `offset_bytes` of a file: header runs, metadata arrays, padding that is not zero."""

    __tablename__ = "file_parts"

    file_id: Mapped[int] = mapped_column(ForeignKey("model_files.id"), primary_key=True)
    offset_bytes: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"), index=True)
    blob_offset_bytes: Mapped[int] = mapped_column(BigInteger)


class ModelMetadata(Base):
    """A header's entries in order, as text to read and search; the exact bytes are in the file's parts."""

    __tablename__ = "model_metadata"
    __table_args__ = (at_most("key", TEXT_MAX), at_most("value", TEXT_MAX))

    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    key: Mapped[str] = mapped_column(String(TEXT_MAX))
    type: Mapped[str] = mapped_column(String(32))
    value: Mapped[str] = mapped_column(String(TEXT_MAX))


class Placement(Base):
    """An organ at its place in a model. Measures are copied here, so that one index answers a filter and a sort."""

    __tablename__ = "placements"
    __table_args__ = (
        UniqueConstraint("model_id", "position"),
        one_of("type", ORGAN_TYPES),
        one_of("tower", TOWERS),
        Index("ix_placements_type_theta", "visible", "type", "theta", "id"),
    )

    id: Mapped[int] = mapped_column(Identity, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    position: Mapped[int] = mapped_column(BigInteger)
    """The order over all of the model's files."""
    file_id: Mapped[int] = mapped_column(ForeignKey("model_files.id"), index=True)
    offset_bytes: Mapped[int] = mapped_column(BigInteger)
    """Where the tensor begins in its file."""
    name: Mapped[str] = mapped_column(String(64))
    type: Mapped[str] = mapped_column(String(16))
    tower: Mapped[str] = mapped_column(String(16))
    block: Mapped[int | None] = mapped_column(BigInteger)
    slot: Mapped[str] = mapped_column(String(64))
    organ_id: Mapped[int] = mapped_column(ForeignKey("organs.id"), index=True)
    visible: Mapped[bool]
    """Copied from the model's state: searches look at nothing else."""
    dtype: Mapped[str] = mapped_column(String(16))
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    theta: Mapped[float | None] = mapped_column(Float(53))
    magnitude: Mapped[float | None] = mapped_column(Float(53))
    signal: Mapped[float | None] = mapped_column(Float(53))
    spectral_signal: Mapped[float | None] = mapped_column(Float(53))
    stable_rank: Mapped[float | None] = mapped_column(Float(53))


class Lineage(Base):
    """An edge from a child to a parent, models or organs. A declared parent that is not registered is kept by its name."""

    __tablename__ = "lineage"
    __table_args__ = (
        one_of("relation", RELATIONS),
        one_of("evidence", EVIDENCE),
        CheckConstraint("(child_model_id IS NULL) <> (child_organ_id IS NULL)", name="one_child"),
        at_most("parent_text", TEXT_MAX),
    )

    id: Mapped[int] = mapped_column(Identity, primary_key=True)
    child_model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    child_organ_id: Mapped[int | None] = mapped_column(ForeignKey("organs.id"), index=True)
    parent_model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    parent_organ_id: Mapped[int | None] = mapped_column(ForeignKey("organs.id"), index=True)
    parent_text: Mapped[str | None] = mapped_column(String(TEXT_MAX))
    relation: Mapped[str] = mapped_column(String(16))
    evidence: Mapped[str] = mapped_column(String(16))
    score: Mapped[float | None] = mapped_column(Float(53))
    """For measured edges: the mean correlation, -1 to 1."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)


class Event(Base):
    """Something that was done. Rows are added, never changed."""

    __tablename__ = "events"
    __table_args__ = (at_most("text", TEXT_MAX),)

    id: Mapped[int] = mapped_column(Identity, primary_key=True)
    at: Mapped[datetime] = mapped_column(Timestamp, index=True)
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"), index=True)
    action: Mapped[str] = mapped_column(String(32))
    model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    text: Mapped[str] = mapped_column(String(TEXT_MAX))


class Facet(Base):
    """How many visible placements have `value` in `field`; θ is counted in bins of 5 degrees."""

    __tablename__ = "facets"

    field: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[str] = mapped_column(String(96), primary_key=True)
    placements: Mapped[int] = mapped_column(BigInteger)
