"""The tables with their constraints, in types that SQLite and PostgreSQL both store exactly.

The order is: common types; blobs and organs; models; facets, words and totals for searches; lineage and events;
chimeras; accounts; submissions; jobs; fleets; evolutions. A table that has an entity of the same name is called after
its rows: `ModelRow`. `entity_of` in `rows` makes entities of rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from math import isnan
from typing import Annotated, Any, ClassVar

from sqlalchemy import (
    REAL,
    TEXT,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
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
    ANSWER_STATES,
    BLOB_STATES,
    CONTRIBUTOR_STATES,
    EVIDENCE,
    EVOLUTION_STATES,
    FLEET_UNIT_STATES,
    FLEET_WORK,
    INGEST_STATES,
    JOB_STATES,
    MODEL_KINDS,
    MODEL_STATES,
    ORGAN_TYPES,
    OUTSIDE_KINDS,
    OUTSIDE_STATES,
    RELATIONS,
    RUNTIME_TEXT_KINDS,
    RUNTIME_TEXT_MAX,
    SIZE_KINDS,
    SUBMISSION_STATES,
    TEXT_MAX,
    TOWERS,
    TRIAL_ROLES,
    TRIAL_STATES,
    UPLOAD_KINDS,
    UPLOAD_STATES,
    VERDICTS,
    WORD_MAX,
)
from organs.registry.entities.published import DESCRIPTION_MAX, IMAGE_FORMATS
from organs.registry.entities.query import LISTS
from organs.registry.measures import RANKED_MEASURES
from organs.registry.names import FULL_PRECISION, QUERY_NAME_MAX_LENGTH, plain_quantisation, split_quantisation
from organs.registry.upload_limits import CARD_IMAGE_NAME_MAX

SAVED_QUERY_MAX = 2000
"""The most characters of a saved query, which are those of any query."""
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


class Texts(TypeDecorator[tuple[str, ...]]):
    """A tuple of texts, which is stored as a JSON list."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: tuple[str, ...] | None, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> tuple[str, ...] | None:
        return None if value is None else tuple(json.loads(value))


class Base(DeclarativeBase):
    """Base of all tables. Migrations are compared with its metadata."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        int: Big,
        float: Number,
        bool: Flag,
        datetime: Timestamp,
        str: Text,
        bytes: LargeBinary,
        tuple[str, ...]: Texts,
    }

    @classmethod
    def __table_cls__(cls, *arguments: Any, **options: Any) -> Table:
        """Make the table of a class: strict, and with the CHECKs that its columns have in their `info`.

        SQLAlchemy calls this for each class. Only now do the columns have names, which are parts of the CHECKs.
        """
        columns = [argument for argument in arguments if isinstance(argument, Column) and "check" in argument.info]
        checks = [
            CheckConstraint(column.info["check"].format(column.name), name=f"{column.name}_{column.info['name']}")
            for column in columns
        ]
        return Table(*arguments, *checks, sqlite_strict=True, **options)


def _checked(type_: TypeEngine[str], check: str, name: str, **options: Any) -> Any:
    """Return a column with a CHECK (see `Base.__table_cls__`), in which `{}` stands for the name of the column."""
    return mapped_column(type_, info={"check": check, "name": name}, **options)


def string(length: int, **options: Any) -> Any:
    """Return a column of texts of at most `length` characters. SQLite ignores the number in VARCHAR(n)."""
    return _checked(_text(length), f"length({{}}) <= {length}", "length", **options)


def exactly(length: int, **options: Any) -> Any:
    """Return a column of texts of exactly `length` characters."""
    return _checked(_text(length), f"length({{}}) = {length}", "length", **options)


def one_of(values: tuple[str, ...], **options: Any) -> Any:
    """Return a column that has one of `values`, of at most 16 characters."""
    listed = ", ".join(f"'{value}'" for value in values)
    return _checked(_text(16), f"{{}} IN ({listed})", "known", **options)


def _text(length: int) -> String:
    return String(length).with_variant(TEXT(), "sqlite")


Id = Annotated[int, mapped_column(primary_key=True)]
ModelId = Annotated[int, mapped_column(ForeignKey("models.id"))]
OrganId = Annotated[int, mapped_column(ForeignKey("organs.id"))]
BlobId = Annotated[int, mapped_column(ForeignKey("blobs.id"))]
ContributorId = Annotated[int, mapped_column(ForeignKey("contributors.id"))]


class Ingest(Base):
    """One ingest of one model. While it is `running` and before `lease_expires_at`, no sweep removes its blobs."""

    __tablename__ = "ingests"

    id: Mapped[Id]
    source: Mapped[str] = string(TEXT_MAX)
    state: Mapped[str] = one_of(INGEST_STATES)
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    lease_expires_at: Mapped[datetime]
    model_id: Mapped[ModelId | None] = mapped_column(index=True)
    report: Mapped[str | None]
    """JSON: sizes, counts, seconds and MB/s per stage."""


class Blob(Base):
    """Stored bytes. `digest` and `size_bytes` describe the plain bytes; `file` is None for an inline blob.

    A blob of the codec `stack` has no stored bytes of its own: see BlobPart.
    """

    __tablename__ = "blobs"
    __table_args__ = (
        CheckConstraint("size_bytes >= 0 AND stored_bytes >= 0", name="sizes_positive"),
        Index("ix_blobs_state_touched_at", "state", "touched_at"),
    )

    id: Mapped[Id]
    digest: Mapped[str] = exactly(64, unique=True)
    size_bytes: Mapped[int]
    stored_bytes: Mapped[int]
    codec: Mapped[str] = string(32)
    codec_version: Mapped[int] = mapped_column(Integer)
    file: Mapped[str | None] = string(128, unique=True)
    state: Mapped[str] = one_of(BLOB_STATES)
    depends_on: Mapped[BlobId | None] = mapped_column(index=True)
    """Another blob that the codec needs to decode this blob."""
    created_at: Mapped[datetime]
    touched_at: Mapped[datetime]
    """When a writer last used it. The grace period of the sweep begins at this time."""


class BlobPart(Base):
    """A part of a blob of the codec `stack`, whose plain bytes are those of its parts, one after another."""

    __tablename__ = "blob_parts"

    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    part_id: Mapped[BlobId] = mapped_column(index=True)


class InlineBlob(Base):
    """The stored bytes of a small blob, in the database instead of a file."""

    __tablename__ = "inline_blobs"

    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id", ondelete="CASCADE"), primary_key=True)
    stored: Mapped[bytes]


class BlobLease(Base):
    """A blob that a running ingest needs."""

    __tablename__ = "blob_leases"

    ingest_id: Mapped[int] = mapped_column(ForeignKey("ingests.id", ondelete="CASCADE"), primary_key=True)
    blob_id: Mapped[BlobId] = mapped_column(primary_key=True, index=True)


class OrganRow(Base):
    """The bytes of a tensor with dtype and shape. `shape` has the row length first: `192x512`."""

    __tablename__ = "organs"
    __table_args__ = (UniqueConstraint("blob_id", "dtype", "shape"),)

    id: Mapped[Id]
    blob_id: Mapped[BlobId]
    dtype: Mapped[str] = string(16)
    shape: Mapped[str] = string(96)
    elements: Mapped[int]
    nonfinite: Mapped[int | None]
    """The number of NaN and infinite values; null if an older version registered the organ without counting them."""


class MeasureColumns:
    """A column for each measure in `registry.measures`; null if it was not measured."""

    theta: Mapped[float | None]
    magnitude: Mapped[float | None]
    signal: Mapped[float | None]
    spectral_signal: Mapped[float | None]
    stable_rank: Mapped[float | None]
    effective_rank: Mapped[float | None]


class MeasurementRow(MeasureColumns, Base):
    """The results of one method for one organ.

    Values that the method does not compute are null. `reason` explains a measurement without values.
    """

    __tablename__ = "measurements"

    organ_id: Mapped[OrganId] = mapped_column(primary_key=True)
    method: Mapped[str] = string(16, primary_key=True)
    sample_size: Mapped[int]
    entropy: Mapped[float | None]
    kurtosis: Mapped[float | None]
    coherence: Mapped[float | None]
    mean: Mapped[float | None]
    standard_deviation: Mapped[float | None]
    minimum: Mapped[float | None]
    maximum: Mapped[float | None]
    nan_count: Mapped[int] = mapped_column(default=0)
    infinite_count: Mapped[int] = mapped_column(default=0)
    constant: Mapped[bool] = mapped_column(default=False)
    reason: Mapped[str | None] = string(256)


COARSE_FINGERPRINT_BYTES = 256
"""The size of fingerprints that versions before the change of weights wrote."""


class Fingerprint(Base):
    """The fingerprint (`registry.similarity`), to compare organs of the same shape."""

    __tablename__ = "fingerprints"

    organ_id: Mapped[OrganId] = mapped_column(primary_key=True)
    values: Mapped[bytes] = mapped_column(LargeBinary(536))


class Derivation(Base):
    """The blocks of a quantised organ, compared with those that encoding the organ `source_id` gives."""

    __tablename__ = "derivations"

    organ_id: Mapped[OrganId] = mapped_column(primary_key=True)
    source_id: Mapped[OrganId] = mapped_column(primary_key=True, index=True)
    encoder: Mapped[str] = string(96)
    """The package and its version."""
    importances: Mapped[str | None] = exactly(64)
    """SHA-256 of the importance matrix by which it was encoded; NULL if it was encoded without."""
    equal_blocks: Mapped[int]
    blocks: Mapped[int]


class ModelRow(Base):
    """A registered set of organs with its headers: `namespace/name@version`."""

    __tablename__ = "models"
    __table_args__ = (
        UniqueConstraint("namespace", "name", "version"),
        CheckConstraint("version >= 1", name="version_positive"),
        Index("ix_models_state_created_at", "state", "created_at"),
        Index("ix_models_state_mean_theta", "state", "mean_theta"),
        Index("ix_models_state_downloads", "state", "downloads"),
        Index("ix_models_state_grafts", "state", "grafts"),
        Index("ix_models_stem", "stem", "namespace"),
    )

    id: Mapped[Id]
    namespace: Mapped[str] = string(96)
    name: Mapped[str] = string(96)
    version: Mapped[int] = mapped_column(Integer)
    digest: Mapped[str] = string(64, index=True)
    """The SHA-256 of its single file, or of the SHA-256s of its files in order, one per line."""
    state: Mapped[str] = one_of(MODEL_STATES)
    kind: Mapped[str] = one_of(MODEL_KINDS)
    complete: Mapped[bool]
    """Whether the registry has all of its organs. Partial models name a base and are not in the rankings."""
    contributor_id: Mapped[ContributorId] = mapped_column(index=True)
    architecture: Mapped[str | None] = string(96)
    title: Mapped[str | None] = string(TEXT_MAX)
    description: Mapped[str | None] = string(DESCRIPTION_MAX)
    license: Mapped[str | None] = string(96)
    size_label: Mapped[str | None] = string(96)
    tags: Mapped[tuple[str, ...]]
    parameters: Mapped[int]
    tensors: Mapped[int]
    size_bytes: Mapped[int]
    mean_theta: Mapped[float | None]
    mean_signal: Mapped[float | None]
    flags: Mapped[tuple[str, ...]]
    """Sentences: unusual properties."""
    unassemblable: Mapped[tuple[str, ...]]
    """Sentences: the reasons why it cannot be assembled; empty for nearly all models."""
    created_at: Mapped[datetime]
    state_reason: Mapped[str | None] = string(TEXT_MAX)
    """The reason of a yank or a removal, in the words of the person who did it."""
    changed_at: Mapped[datetime | None]
    """When its state or its description was last changed."""
    downloads: Mapped[int] = mapped_column(server_default=sql("0"))
    """The sum of its daily downloads."""
    grafts: Mapped[int] = mapped_column(server_default=sql("0"))
    """The number of visible chimeras that have its organs, including those of its own contributor."""
    nonfinite_tensors: Mapped[int | None]
    """The number of tensors with NaN or infinite values; null until all tensors were counted."""
    shards: Mapped[int | None]
    """The number of shards of an incomplete split model; null for all other models."""
    stem: Mapped[str] = string(96, server_default=sql("''"))
    """The name without its quantisation. The models of a namespace with one stem are quantisations of one model."""
    repacked_at: Mapped[datetime | None] = mapped_column(index=True)
    """When a repack last examined its organs; null if none has."""
    quantisation: Mapped[str | None] = string(96)
    """The quantisation at the end of the name, in upper case, or else that of the tensors; null without matrices."""

    @validates("name")
    def _split_name(self, _key: str, name: str) -> str:
        self.stem, self.quantisation = split_quantisation(name)
        return name

    @property
    def full_name(self) -> str:
        """`namespace/name@version`."""
        return f"{self.namespace}/{self.name}@{self.version}"

    @property
    def is_rounded(self) -> bool:
        """Whether it is a quantisation, or a size, by its name or its file."""
        return plain_quantisation(self.quantisation or "F16") not in FULL_PRECISION

    @property
    def stem_of_sizes(self) -> str:
        """What the names of its sizes begin with: a source that is quantised itself keeps its quantisation in them."""
        return self.name if self.is_rounded else self.stem


class ModelFileRow(Base):
    """One GGUF file of a model. Its bytes are its parts and the organs of its placements; all other bytes are zero."""

    __tablename__ = "model_files"
    __table_args__ = (UniqueConstraint("model_id", "position"),)

    id: Mapped[Id]
    model_id: Mapped[ModelId]
    position: Mapped[int] = mapped_column(Integer)
    name: Mapped[str] = string(255)
    size_bytes: Mapped[int]
    sha256: Mapped[str] = string(64, index=True)
    header_sha256: Mapped[str] = string(64)
    header_bytes: Mapped[int]
    """Bytes from the magic to the last tensor info, without padding."""


class FilePart(Base):
    """A slice of a blob at `offset_bytes` of a file: parts of the header, metadata arrays, padding that is not zero."""

    __tablename__ = "file_parts"

    file_id: Mapped[int] = mapped_column(ForeignKey("model_files.id"), primary_key=True)
    offset_bytes: Mapped[int] = mapped_column(primary_key=True)
    size_bytes: Mapped[int]
    blob_id: Mapped[BlobId] = mapped_column(index=True)
    blob_offset_bytes: Mapped[int]


class ModelMetadata(Base):
    """The entries of a header in order, as text; the exact bytes are in the parts of the file."""

    __tablename__ = "model_metadata"

    model_id: Mapped[ModelId] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    key: Mapped[str] = string(TEXT_MAX)
    type: Mapped[str] = string(32)
    value: Mapped[str] = string(TEXT_MAX)


class RuntimeTextRow(Base):
    """A text that another tool keeps beside a model, exactly: a template, parameters, a system prompt, a license.

    A text of the kind `renderer` is JSON: the programs that Ollama uses for the model instead of a template.
    """

    __tablename__ = "runtime_texts"
    __table_args__ = (CheckConstraint(f"length(text) <= {RUNTIME_TEXT_MAX}", name="text_length"),)

    model_id: Mapped[ModelId] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    kind: Mapped[str] = one_of(RUNTIME_TEXT_KINDS)
    source: Mapped[str] = string(255)
    """The tool, and its name for the model."""
    text: Mapped[str]


class CardImageRow(Base):
    """An image of the card of a model, as the server has written it; `name` is the path by which the card names it."""

    __tablename__ = "card_images"
    __table_args__ = (CheckConstraint("width > 0 AND height > 0", name="sides_positive"),)

    model_id: Mapped[ModelId] = mapped_column(primary_key=True)
    name: Mapped[str] = string(CARD_IMAGE_NAME_MAX, primary_key=True)
    blob_id: Mapped[BlobId] = mapped_column(index=True)
    format: Mapped[str] = one_of(IMAGE_FORMATS)
    width: Mapped[int] = mapped_column(Integer)
    height: Mapped[int] = mapped_column(Integer)


class OutsideFile(Base):
    """A file of a model outside of the registry, on the disk of one machine, for another tool or in a plain folder.

    `installed`: this registry wrote it. `reclaimed`: it was stored and removed, and `organ restore` writes it again.
    """

    __tablename__ = "outside_files"
    __table_args__ = (UniqueConstraint("place", "batch", "machine"),)

    id: Mapped[Id]
    place: Mapped[str] = exactly(64)
    """The SHA-256 of the path."""
    machine: Mapped[str] = string(255)
    """The name of the machine; empty in the database of a home, which only one machine uses."""
    path: Mapped[str] = string(4096)
    folder: Mapped[str] = string(4096)
    """The folder of the tool, or the plain folder, in which it is."""
    batch: Mapped[str] = exactly(32, index=True)
    """The same for files that are written or removed together: a manifest and its layers."""
    state: Mapped[str] = one_of(OUTSIDE_STATES)
    tool: Mapped[str] = string(16)
    """The option of the tool; empty for a plain folder."""
    name: Mapped[str] = string(512)
    """The name of the model in the tool."""
    model_id: Mapped[ModelId] = mapped_column(index=True)
    kind: Mapped[str] = one_of(OUTSIDE_KINDS)
    size_bytes: Mapped[int]
    sha256: Mapped[str] = exactly(64)
    """Of the bytes; of a link, of its target."""
    content: Mapped[bytes | None]
    """The bytes of a text, or the target of a link; null for a file of a model, which has its bytes."""
    mode: Mapped[int] = mapped_column(Integer)
    """The permissions, as `stat` has them."""
    modified_ns: Mapped[int]
    """When it was last changed, in nanoseconds since the epoch; 0 for an installed file."""
    stamp: Mapped[str] = string(64)
    """Of the installed file, to recognise it; empty until it is written. Of a reclaimed file, before its removal."""
    created_at: Mapped[datetime]


class OtherName(Base):
    """A name of a model beside its own: its name before a renaming, or one under which an ingest met the same bytes.

    It leads to the model, unless a model has this name now. The versions of a name are numbered across both tables.
    """

    __tablename__ = "other_names"
    __table_args__ = (Index("ix_other_names_stem", "stem", "namespace"),)

    namespace: Mapped[str] = string(96, primary_key=True)
    name: Mapped[str] = string(96, primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    model_id: Mapped[ModelId] = mapped_column(index=True)
    stem: Mapped[str] = string(96)
    """The name without its quantisation."""

    @validates("name")
    def _split_name(self, _key: str, name: str) -> str:
        self.stem = split_quantisation(name)[0]
        return name


class KnownFile(Base):
    """A file on this machine that an ingest has read. The stamp changes when the file is written or replaced."""

    __tablename__ = "known_files"

    stamp: Mapped[str] = exactly(64, primary_key=True)
    """SHA-256 of inode, size, and the times of the last change of content and of attributes."""
    sha256: Mapped[str] = exactly(64)
    """SHA-256 of the bytes that were read."""


RANKED_COLUMNS = (*RANKED_MEASURES, "size_bytes")
"""The columns that searches sort by."""


def _rankings(table: str, equal: tuple[str, ...], tested: tuple[str, ...]) -> list[Index]:
    """Return the index of `table` for a sort by each of RANKED_COLUMNS.

    It has the columns that searches compare with one value, that of the sort, and all others that filters test.
    """
    return [
        Index(f"ix_{table}_{ranked}", *equal, ranked, *(name for name in tested if name != ranked))
        for ranked in RANKED_COLUMNS
    ]


class PlaceColumns(MeasureColumns):
    """An organ at a place of a model. The measures are copied here, so that one index serves a filter and a sort."""

    id: Mapped[Id]
    model_id: Mapped[ModelId]
    type: Mapped[str] = one_of(ORGAN_TYPES)
    tower: Mapped[str] = one_of(TOWERS)
    block: Mapped[int | None]
    slot: Mapped[str] = string(TENSOR_NAME_MAX)
    organ_id: Mapped[OrganId]
    visible: Mapped[bool]
    """Copied from the state of the model, so that searches test only this column."""
    facet_id: Mapped[int] = mapped_column(ForeignKey("facets.id"), index=True)
    """The facet of the tensor; an expert has that of its stack."""
    dtype: Mapped[str] = string(16)
    size_bytes: Mapped[int]


class Placement(PlaceColumns, Base):
    """A tensor of a model: an organ at its place."""

    __tablename__ = "placements"
    __table_args__ = (
        *_rankings("placements", ("visible", "type"), ("id", "facet_id", "block", "model_id", "theta")),
        Index("ix_placements_model", "model_id", "position", unique=True),
        Index("ix_placements_block", "block"),
        Index("ix_placements_organ", "organ_id", "visible", "model_id"),
        Index("ix_placements_place", "slot", "block", "tower", "organ_id", "model_id", "visible"),
    )

    position: Mapped[int]
    """The order over all files of the model."""
    file_id: Mapped[int] = mapped_column(ForeignKey("model_files.id"), index=True)
    offset_bytes: Mapped[int]
    """The offset of the tensor in its file."""
    name: Mapped[str] = string(TENSOR_NAME_MAX)


class Expert(PlaceColumns, Base):
    """One expert of a stack of experts: an organ at a number in the placement of its stack.

    Columns of the placement are copied here, so that searches read no other table. Searches find experts only if the
    query has the field `expert`.
    """

    __tablename__ = "experts"
    __table_args__ = (
        UniqueConstraint("placement_id", "expert"),
        *_rankings("experts", ("visible",), ("id", "expert", "facet_id", "block", "model_id", "theta")),
        Index("ix_experts_expert", "expert", "visible", "facet_id", "block", "model_id", "theta"),
        Index("ix_experts_model", "model_id", "placement_id", "expert"),
        Index("ix_experts_organ", "organ_id", "visible", "model_id"),
    )

    placement_id: Mapped[int] = mapped_column(ForeignKey("placements.id"))
    """The placement of the stack."""
    expert: Mapped[int] = mapped_column(Integer)
    """The number in the stack, from 0."""


class Facet(Base):
    """A combination of values that searches filter by. Every placement has a facet. There are some thousands.

    A missing architecture or license is the empty text.
    """

    __tablename__ = "facets"
    __table_args__ = (UniqueConstraint("type", "tower", "slot", "dtype", "architecture", "license"),)

    id: Mapped[Id]
    type: Mapped[str] = one_of(ORGAN_TYPES)
    tower: Mapped[str] = one_of(TOWERS)
    slot: Mapped[str] = string(TENSOR_NAME_MAX)
    dtype: Mapped[str] = string(16)
    architecture: Mapped[str] = string(96)
    license: Mapped[str] = string(96)


class FacetCount(Base):
    """The number of visible placements of a facet in a bin of θ (`registry.catalog.vocabulary`)."""

    __tablename__ = "facet_counts"

    facet_id: Mapped[int] = mapped_column(ForeignKey("facets.id"), primary_key=True)
    theta_bin: Mapped[int] = mapped_column(primary_key=True)
    placements: Mapped[int]


class ModelWord(Base):
    """A folded word of a model's names, title, tags or description, for words in queries."""

    __tablename__ = "model_words"
    word: Mapped[str] = string(WORD_MAX, primary_key=True)
    model_id: Mapped[ModelId] = mapped_column(primary_key=True, index=True)


class ModelTag(Base):
    """A folded tag of a model, for `tag:` in queries. Without case, an exact name is found by the primary key."""

    __tablename__ = "model_tags"
    tag: Mapped[str] = string(96, primary_key=True)
    model_id: Mapped[ModelId] = mapped_column(primary_key=True, index=True)


TOTALS = ("models", "placements", "organs", "blobs", "size_bytes", "stored_bytes")
"""The visible models, their placements and distinct organs; the blobs that are not doomed, their plain bytes and their
stored bytes."""


class Total(Base):
    """A running total. A total without a row is 0."""

    __tablename__ = "totals"

    name: Mapped[str] = one_of(TOTALS, primary_key=True)
    value: Mapped[int]


class CatalogVersion(Base):
    """The version of the catalog on PostgreSQL, in one row. SQLite counts commits by itself, so it stays 1 there."""

    __tablename__ = "catalog_version"

    id: Mapped[Id]
    number: Mapped[int]
    """It grows with every transaction that changes anything."""


class NamedLease(Base):
    """A lock with a time limit, which a process of any machine holds, for work that only one may do."""

    __tablename__ = "named_leases"

    name: Mapped[str] = string(32, primary_key=True)
    holder: Mapped[str] = string(32)
    """A random text of the process that holds it."""
    expires_at: Mapped[datetime]


class ContributorRow(Base):
    """A person who adds models. `local` means the users of the command line on the registry's machine."""

    __tablename__ = "contributors"

    id: Mapped[Id]
    name: Mapped[str] = string(96, unique=True)
    created_at: Mapped[datetime]
    state: Mapped[str] = one_of(CONTRIBUTOR_STATES, server_default=sql("'active'"))
    """Suspended contributors cannot use their accounts; their published models stay."""
    quota_bytes: Mapped[int | None]
    """Bytes that they may store; None means the default of the server."""


class Lineage(Base):
    """An edge from a child to a parent, between models or organs. A parent that is only declared is stored by name."""

    __tablename__ = "lineage"
    __table_args__ = (CheckConstraint("(child_model_id IS NULL) <> (child_organ_id IS NULL)", name="one_child"),)

    id: Mapped[Id]
    child_model_id: Mapped[ModelId | None] = mapped_column(index=True)
    child_organ_id: Mapped[OrganId | None] = mapped_column(index=True)
    parent_model_id: Mapped[ModelId | None] = mapped_column(index=True)
    parent_organ_id: Mapped[OrganId | None] = mapped_column(index=True)
    parent_text: Mapped[str | None] = string(TEXT_MAX)
    relation: Mapped[str] = one_of(RELATIONS)
    evidence: Mapped[str] = one_of(EVIDENCE)
    score: Mapped[float | None]
    """The mean correlation of a measured edge, -1 to 1."""
    compared: Mapped[int | None]
    """The number of matrices in the mean."""
    change: Mapped[float | None]
    """The mean change of a measured edge; NULL if an organ has a coarse fingerprint."""
    matched: Mapped[float | None]
    """Of a measured edge between a quantisation and floats: the share of sampled blocks that encoding these gives."""
    created_at: Mapped[datetime]


class EventRow(Base):
    """An action in the event log. Rows are added and never changed."""

    __tablename__ = "events"

    id: Mapped[Id]
    at: Mapped[datetime] = mapped_column(index=True)
    contributor_id: Mapped[ContributorId] = mapped_column(index=True)
    action: Mapped[str] = string(32)
    model_id: Mapped[ModelId | None] = mapped_column(index=True)
    text: Mapped[str] = string(TEXT_MAX)


class DailyDownloads(Base):
    """Downloads of a model or of its organs on one day. They are counted in memory and added in batches."""

    __tablename__ = "daily_downloads"

    model_id: Mapped[ModelId] = mapped_column(primary_key=True)
    day: Mapped[str] = exactly(10, primary_key=True)
    """YYYY-MM-DD, UTC."""
    downloads: Mapped[int]


class ChimeraRow(Base):
    """The data of a model that was composed in this registry. Its lock is in the header of its file."""

    __tablename__ = "chimeras"

    model_id: Mapped[ModelId] = mapped_column(primary_key=True)
    lock_id: Mapped[str] = string(64, index=True)
    """SHA-256 of the lock's canonical JSON. Two models have the same lock if equal bytes have two names."""
    base_model_id: Mapped[ModelId] = mapped_column(index=True)
    recipe: Mapped[str]
    """JSON of `registry.compose.recipe`."""
    findings: Mapped[str]
    """JSON list: the findings before it was made, including accepted warnings."""
    screen: Mapped[str | None]
    """JSON object: what the weights said about its changes. None for chimeras of versions that had no screen."""
    origins: Mapped[str]
    """JSON object: `parents`, a list of models, and `parts`: for each tensor that is not from the base, the index of
    its parent and the acts."""
    quick_look: Mapped[str | None]
    """JSON of the entity `QuickLook`; None before the first."""


class ComputationRow(Base):
    """How an organ was computed from others by purifying, merging or encoding again."""

    __tablename__ = "computations"

    key: Mapped[str] = string(64, primary_key=True)
    """SHA-256 of `made`."""
    organ_id: Mapped[OrganId] = mapped_column(index=True)
    made: Mapped[str]
    """Canonical JSON: the acts with their parameters, and the digests of the input organs."""


class VerdictRow(Base):
    """The result of a run of a chimera, compared with its base, its donors and its control."""

    __tablename__ = "verdicts"

    id: Mapped[Id]
    model_id: Mapped[ModelId] = mapped_column(index=True)
    runtime: Mapped[str] = string(256)
    verdict: Mapped[str] = one_of(VERDICTS)
    reason: Mapped[str] = string(TEXT_MAX)
    report: Mapped[str]
    """JSON: texts, perplexities with their standard errors, generated text, the end of the runtime's log."""
    strength: Mapped[int] = mapped_column(server_default="0")
    """How much was scored: the tokens of each text, up to a limit, together."""
    created_at: Mapped[datetime]


class ScoreRow(Base):
    """The scores of a file on the windows of a text in a runtime, stored so that a base is measured only once."""

    __tablename__ = "scores"
    __table_args__ = (UniqueConstraint("file_digest", "text_digest", "tokens", "runtime"),)

    id: Mapped[Id]
    file_digest: Mapped[str] = string(64)
    text_digest: Mapped[str] = string(64)
    tokens: Mapped[int]
    """Tokens of a window."""
    runtime: Mapped[str] = string(256)
    reading: Mapped[str]
    """JSON of `registry.validation`."""
    perplexity: Mapped[float | None]
    created_at: Mapped[datetime]


class GainRow(Base):
    """How much lower the perplexity of a validated chimera is than that of its base, on one text."""

    __tablename__ = "gains"
    __table_args__ = (
        UniqueConstraint("model_id", "text_digest"),
        Index("ix_gains_base_model_id_percent", "base_model_id", "percent"),
    )

    id: Mapped[Id]
    model_id: Mapped[ModelId]
    """The chimera."""
    base_model_id: Mapped[ModelId]
    donor_model_id: Mapped[ModelId | None] = mapped_column(index=True)
    """Its only donor; null if it has none or several, or if organs were also purified."""
    grafted: Mapped[str] = string(TEXT_MAX)
    """What differs from the base, as text: `feed-forward 0-3`."""
    text_digest: Mapped[str] = string(64)
    percent: Mapped[float]
    """The fall of the perplexity in percent of the base's: negative if the perplexity rose."""
    margin: Mapped[float]
    """Half of the interval of 95%, in percent."""
    tokens: Mapped[int]
    settled: Mapped[bool]
    """Whether the interval excludes 0. Searches find only settled gains."""
    text: Mapped[str] = string(96)
    """The name of the text."""


class GainOrgan(Base):
    """An organ to which the gains of a chimera are attributed: one of those that its only donor gave, or a result."""

    __tablename__ = "gain_organs"

    organ_id: Mapped[OrganId] = mapped_column(primary_key=True)
    model_id: Mapped[ModelId] = mapped_column(primary_key=True, index=True)
    """The chimera."""


class SensitivityRow(Base):
    """What a coarser tensor type of one group of organs does to a file, measured once in a runtime."""

    __tablename__ = "sensitivities"
    __table_args__ = (
        UniqueConstraint(
            *("file_digest", "organs", "dtype", "importances", "texts", "tokens", "runtime"),
            name="uq_sensitivities_measured",  # PostgreSQL cuts longer names
        ),
    )

    id: Mapped[Id]
    file_digest: Mapped[str] = string(64)
    organs: Mapped[str] = string(255)
    """The key of the group of organs that had the tensor type `dtype`."""
    dtype: Mapped[str] = string(16)
    importances: Mapped[str] = string(64)
    """The digest of the importance matrix by which organs were encoded; empty without one."""
    texts: Mapped[str] = string(64)
    """The digest of the texts."""
    tokens: Mapped[int]
    """Tokens of a window."""
    runtime: Mapped[str] = string(256)
    reading: Mapped[str]
    """JSON of `registry.quantizing`."""
    created_at: Mapped[datetime]


class SizeRow(Base):
    """A measured size of a model: its file with a mix of tensor types, and how far this mix is from the source."""

    __tablename__ = "sizes"
    __table_args__ = (UniqueConstraint("source_model_id", "tag"),)

    id: Mapped[Id]
    source_model_id: Mapped[ModelId]
    model_id: Mapped[ModelId | None] = mapped_column(index=True)
    """The model with this mix; null if only the measurement is stored."""
    kind: Mapped[str] = one_of(SIZE_KINDS)
    label: Mapped[str] = string(96)
    tag: Mapped[str] = string(96)
    size_bytes: Mapped[int]
    reading: Mapped[str]
    """JSON of the entity `SizeReading`."""
    texts: Mapped[str] = string(64)
    runtime: Mapped[str] = string(256)
    created_at: Mapped[datetime]


class Token(Base):
    """A token of a contributor. Only a digest of its secret is stored."""

    __tablename__ = "tokens"

    id: Mapped[Id]
    contributor_id: Mapped[ContributorId] = mapped_column(index=True)
    public_id: Mapped[str] = exactly(9, unique=True)
    """The public part of the token, which identifies it."""
    secret_sha256: Mapped[str] = exactly(64)
    """SHA-256 of the complete token. It has 256 random bits, so no slow hash is needed."""
    scopes: Mapped[str] = string(64)
    """Scopes in the order of the vocabulary, separated by spaces."""
    label: Mapped[str] = string(96)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    """Exact to some minutes, so that not every request writes."""
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("tokens.id"), index=True)
    """The token that created this one; NULL if an administrator created it in the registry's folder."""


class WebSession(Base):
    """A browser that is logged in with a token, as long as this token is valid."""

    __tablename__ = "web_sessions"

    id: Mapped[Id]
    secret_sha256: Mapped[str] = exactly(64, unique=True)
    """SHA-256 of the secret in the cookie."""
    token_id: Mapped[int] = mapped_column(ForeignKey("tokens.id"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class PageToken(Base):
    """A token that a page keeps in memory to call the API. It has few scopes and a short life."""

    __tablename__ = "page_tokens"

    id: Mapped[Id]
    secret_sha256: Mapped[str] = exactly(64, unique=True)
    session_id: Mapped[int] = mapped_column(ForeignKey("web_sessions.id", ondelete="CASCADE"), index=True)
    scopes: Mapped[str] = string(64)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class SavedQueryRow(Base):
    """A query that an account has saved under a name."""

    __tablename__ = "saved_queries"

    contributor_id: Mapped[ContributorId] = mapped_column(primary_key=True)
    kind: Mapped[str] = one_of(LISTS, primary_key=True)
    """The list that it is for."""
    name: Mapped[str] = string(QUERY_NAME_MAX_LENGTH, primary_key=True)
    query: Mapped[str] = string(SAVED_QUERY_MAX)
    created_at: Mapped[datetime]


class UploadRow(Base):
    """Bytes that arrive in chunks, stored in a file of the folder for uploads, or in a bucket as the objects of
    UploadChunk. Only their sender can see them."""

    __tablename__ = "uploads"
    __table_args__ = (
        CheckConstraint("received_bytes BETWEEN 0 AND size_bytes", name="received_within_size"),
        Index("ix_uploads_contributor_id_state", "contributor_id", "state"),
        Index("ix_uploads_state_expires_at", "state", "expires_at"),
    )

    id: Mapped[Id]
    public_id: Mapped[str] = exactly(22, unique=True)
    """A random text: the end of the upload's URL, and the name of its file."""
    contributor_id: Mapped[ContributorId]
    kind: Mapped[str] = one_of(UPLOAD_KINDS)
    name: Mapped[str | None] = string(255)
    """The name that the sender gave to a complete file. It is never used as a path."""
    digest: Mapped[str | None] = string(64)
    """SHA-256 of all bytes; for a complete file it may be unknown until all have arrived."""
    size_bytes: Mapped[int]
    received_bytes: Mapped[int]
    """Durable bytes. Further bytes in the file are overwritten."""
    state: Mapped[str] = one_of(UPLOAD_STATES)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class UploadChunk(Base):
    """A chunk of an upload that is an object in the bucket. In a folder, an upload has no chunks."""

    __tablename__ = "upload_chunks"
    __table_args__ = (CheckConstraint("size_bytes > 0", name="size_positive"),)

    upload_id: Mapped[int] = mapped_column(ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True)
    offset_bytes: Mapped[int] = mapped_column(primary_key=True)
    size_bytes: Mapped[int]
    file: Mapped[str] = string(128, unique=True)
    """The name of the object."""

    @property
    def end_bytes(self) -> int:
        """The offset of the first byte after it."""
        return self.offset_bytes + self.size_bytes


class RateCount(Base):
    """A count of requests of a client, which all servers of a registry share."""

    __tablename__ = "rate_counts"

    key: Mapped[str] = exactly(32, primary_key=True)
    """A digest of the rate and the client."""
    expires_at: Mapped[datetime] = mapped_column(index=True)
    count: Mapped[int]


class UploadPiece(Base):
    """A piece of a file of a model, at an offset of a finished upload."""

    __tablename__ = "upload_pieces"

    upload_id: Mapped[int] = mapped_column(ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True)
    offset_bytes: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = exactly(64, index=True)
    size_bytes: Mapped[int]


class SubmissionRow(Base):
    """A model that a contributor wants to publish, from the upload to the decision."""

    __tablename__ = "submissions"
    __table_args__ = (
        Index("ix_submissions_contributor_id_id", "contributor_id", "id"),
        Index("ix_submissions_state_id", "state", "id"),
    )

    id: Mapped[Id]
    contributor_id: Mapped[ContributorId]
    namespace: Mapped[str] = string(96)
    name: Mapped[str] = string(96)
    state: Mapped[str] = one_of(SUBMISSION_STATES)
    manifest: Mapped[str] = mapped_column(deferred=True)
    """JSON object: the files and their pieces; up to some mebibytes."""
    metadata_given: Mapped[str]
    """JSON object: the contributor's description of the model, beside its header."""
    findings: Mapped[str]
    """JSON list."""
    size_bytes: Mapped[int]
    job_id: Mapped[int | None]
    """The job that checks it. No foreign key: jobs are removed after a while, submissions are not."""
    model_id: Mapped[ModelId | None] = mapped_column(index=True)
    decided_by: Mapped[ContributorId | None]
    reason: Mapped[str | None] = string(TEXT_MAX)
    """The reason of a refusal, for the contributor."""
    created_at: Mapped[datetime]
    changed_at: Mapped[datetime]


class WorkColumns:
    """The columns of a row that one process at a time works on: see `registry.catalog.work`."""

    state: Mapped[str]
    attempts: Mapped[int]
    """The number of times that it was claimed, without those that were interrupted on purpose."""
    deaths: Mapped[int]
    """The number of processes that died while they did it."""
    holder: Mapped[str | None] = string(32)
    """A random text that identifies the present claim; older claims are invalid."""
    lease_expires_at: Mapped[datetime | None]
    """When the process of running work counts as dead; for queued work, when it may be claimed, if not at once."""
    note: Mapped[str] = string(TEXT_MAX)
    """The current step, or why it failed or waits, in one sentence."""
    result: Mapped[str | None] = mapped_column(deferred=True)
    """JSON object of work that is done; loaded only on access."""
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    """When it ended, in any state."""


class JobRow(WorkColumns, Base):
    """A piece of work in a queue. A cancelled job has a holder until its runner has stopped."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_state_kind", "state", "kind", "id"),)

    id: Mapped[Id]
    kind: Mapped[str] = string(32)
    state: Mapped[str] = one_of(JOB_STATES)
    contributor_id: Mapped[ContributorId] = mapped_column(index=True)
    deaths: Mapped[int] = mapped_column(server_default=sql("0"))
    arguments: Mapped[str] = mapped_column(deferred=True)
    """JSON object of up to a mebibyte; loaded only on access."""
    progress: Mapped[float]
    """0 to 1."""
    problem: Mapped[str | None] = mapped_column(deferred=True)
    """JSON object: the problem document of a failed job; loaded only on access."""


class AnswerRow(WorkColumns, Base):
    """A prompt and what models have answered so far, as a piece of work in a queue. It is deleted after a day.

    No cached answer of the server may depend on these rows: they change without a new version of the catalog.
    """

    __tablename__ = "answers"
    __table_args__ = (Index("ix_answers_state", "state", "id"), Index("ix_answers_asker", "asker", "started_at"))

    id: Mapped[Id]
    key: Mapped[str] = exactly(32, unique=True)
    """A random text: the address of the answer."""
    asker: Mapped[str] = exactly(64)
    """A digest of the account or the address that asked."""
    has_account: Mapped[bool]
    state: Mapped[str] = one_of(ANSWER_STATES)
    arguments: Mapped[str] = mapped_column(deferred=True)
    """JSON object; loaded only on access. `result` has the replies, also while they are written."""
    created_at: Mapped[datetime] = mapped_column(index=True)
    started_at: Mapped[datetime | None] = mapped_column(index=True)


class FleetRunRow(Base):
    """A plan of work for many processes. Its units are in FleetUnit."""

    __tablename__ = "fleet_runs"

    id: Mapped[Id]
    name: Mapped[str] = string(96)
    digest: Mapped[str] = exactly(64, unique=True)
    """SHA-256 of the name, all units, and the sizes and times of their files. The same plan continues the same run."""
    dashboard: Mapped[str | None] = string(256)
    """The address of Dask's page about the work, if a driver stated one."""
    created_at: Mapped[datetime]


class FleetUnit(WorkColumns, Base):
    """A piece of work of a run."""

    __tablename__ = "fleet_units"
    __table_args__ = (
        CheckConstraint("attempts >= 0 AND deaths >= 0", name="counts_positive"),
        Index("ix_fleet_units_run_id_state", "run_id", "state", "number"),
        Index("ix_fleet_units_run_id_finished_at", "run_id", "finished_at"),
    )

    run_id: Mapped[int] = mapped_column(ForeignKey("fleet_runs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Its place in the plan, from 1."""
    work: Mapped[str] = one_of(FLEET_WORK)
    source: Mapped[str] = string(TEXT_MAX)
    """A path, an address without credentials, or names of models, separated by spaces."""
    state: Mapped[str] = one_of(FLEET_UNIT_STATES)
    worker: Mapped[str | None] = string(96)
    """The name of the process that claimed it last."""
    version: Mapped[str | None] = string(96)
    """The versions of the program and of its codecs in that process."""
    size_bytes: Mapped[int | None]
    """The bytes of the files of the unit; null if they are not known yet."""


class EvolutionRow(Base):
    """A search for the best chimera of a base. Its trials are in TrialRow."""

    __tablename__ = "evolutions"
    __table_args__ = ({"sqlite_autoincrement": True},)
    """The number of a removed evolution is not used again: jobs name it."""

    id: Mapped[Id]
    contributor_id: Mapped[ContributorId] = mapped_column(index=True)
    base_model_id: Mapped[ModelId] = mapped_column(index=True)
    state: Mapped[str] = one_of(EVOLUTION_STATES)
    note: Mapped[str] = string(TEXT_MAX)
    """Why it failed or has no winner, in one sentence."""
    space: Mapped[str]
    """JSON of `registry.evolving.space`: what is searched, with the full names of all models."""
    texts: Mapped[str] = mapped_column(deferred=True)
    """JSON: the texts, each in a part for the search and one for the result; loaded only on access."""
    blocks: Mapped[int] = mapped_column(Integer)
    """Of the base."""
    runtime: Mapped[str] = string(256)
    winner_model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    """The chimera that was made of the best trial."""
    verdict: Mapped[str | None] = mapped_column(deferred=True)
    """JSON of the entity VerdictReport: the winner on parts of the texts that no trial used."""
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class TrialRow(WorkColumns, Base):
    """A trial of an evolution: one chimera that is written, measured and removed. `result` has what was measured."""

    __tablename__ = "evolution_trials"
    __table_args__ = (
        CheckConstraint("attempts >= 0 AND deaths >= 0", name="counts_positive"),
        Index("ix_evolution_trials_state", "evolution_id", "state", "number"),
        Index("ix_evolution_trials_plan", "evolution_id", "plan"),
    )

    evolution_id: Mapped[int] = mapped_column(ForeignKey("evolutions.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    """From 1, in the order in which they were begun."""
    role: Mapped[str] = one_of(TRIAL_ROLES)
    of_number: Mapped[int | None] = mapped_column(Integer)
    """The trial that is measured again, or whose part is left out; null for others."""
    choices: Mapped[str]
    """JSON object: the value of each parameter of the space."""
    plan: Mapped[str | None] = string(64)
    """The digest of its plan: trials with the same one are the same model."""
    state: Mapped[str] = one_of(TRIAL_STATES)
    worker: Mapped[str | None] = string(96)
    """The name of the process that claimed it last."""
