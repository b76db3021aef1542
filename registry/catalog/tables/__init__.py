"""The tables. What must hold stands here as a constraint, in types that SQLite and PostgreSQL both keep.

base         what all tables share
organs       organs, and what was measured of them
models       models: their files to the last byte, their metadata for reading
history      who did what, and who came from what
accounts     who may do what: tokens for programs, sessions for browsers
chimeras     chimeras: models that were composed here, how computed organs were made
jobs         jobs: what was asked for and takes longer than a request
blobs        stored bytes, who is bringing them in, and who needs them meanwhile
search       tables that answer searches beside the placements
submissions  what contributors send
"""

from organs.registry.catalog.tables.accounts import PageToken, Token, WebSession
from organs.registry.catalog.tables.base import Base, Timestamp
from organs.registry.catalog.tables.blobs import (
    Blob,
    BlobLease,
    Ingest,
    InlineBlob,
)
from organs.registry.catalog.tables.chimeras import Chimera, Computation, Score, Verdict
from organs.registry.catalog.tables.history import Contributor, DailyDownloads, Event, Lineage
from organs.registry.catalog.tables.jobs import Job
from organs.registry.catalog.tables.models import RANKED_COLUMNS, FilePart, Model, ModelFile, ModelMetadata, Placement
from organs.registry.catalog.tables.organs import Fingerprint, Measurement, Organ
from organs.registry.catalog.tables.search import (
    TOTALS,
    Facet,
    FacetCount,
    ModelWord,
    Total,
)
from organs.registry.catalog.tables.submissions import (
    Submission,
    Upload,
    UploadPiece,
)

__all__ = [
    "RANKED_COLUMNS",
    "TOTALS",
    "Base",
    "Blob",
    "BlobLease",
    "Chimera",
    "Computation",
    "Contributor",
    "DailyDownloads",
    "Event",
    "Facet",
    "FacetCount",
    "FilePart",
    "Fingerprint",
    "Ingest",
    "InlineBlob",
    "Job",
    "Lineage",
    "Measurement",
    "Model",
    "ModelFile",
    "ModelMetadata",
    "ModelWord",
    "Organ",
    "PageToken",
    "Placement",
    "Score",
    "Submission",
    "Timestamp",
    "Token",
    "Total",
    "Upload",
    "UploadPiece",
    "Verdict",
    "WebSession",
]
