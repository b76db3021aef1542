"""The tables. What must hold stands here as a constraint, in types that SQLite and PostgreSQL both keep.

base      types and checks that all share
storage   ingests (one row a dissection), blobs, inline_blobs (the small ones' bytes), blob_leases
organs    organs, measurements (a row a method), fingerprints
models    models, model_files and file_parts (the exact bytes around the tensors), model_metadata, placements
finding   facets and facet_counts (visible placements by what searches narrow by), model_words
history   contributors, lineage, events (append-only), downloads a day
accounts  tokens, web_sessions, page_tokens: who may do what
uploads   uploads and upload_pieces (what is on its way), submissions (what is to come of it)
chimeras  chimeras, computations (how organs were made), verdicts and scores of runtimes
jobs      jobs (work in a queue)
totals    totals (the registry in numbers)
"""

from organs.registry.catalog.tables.accounts import PageToken, Token, WebSession
from organs.registry.catalog.tables.base import Base, Timestamp
from organs.registry.catalog.tables.chimeras import Chimera, Computation, Score, Verdict
from organs.registry.catalog.tables.finding import Facet, FacetCount, ModelWord
from organs.registry.catalog.tables.history import Contributor, DailyDownloads, Event, Lineage
from organs.registry.catalog.tables.jobs import Job
from organs.registry.catalog.tables.models import RANKED_MEASURES, FilePart, Model, ModelFile, ModelMetadata, Placement
from organs.registry.catalog.tables.organs import Fingerprint, Measurement, Organ
from organs.registry.catalog.tables.storage import Blob, BlobLease, Ingest, InlineBlob
from organs.registry.catalog.tables.totals import TOTALS, Total
from organs.registry.catalog.tables.uploads import Submission, Upload, UploadPiece

__all__ = [
    "RANKED_MEASURES",
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
