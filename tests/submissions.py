"""Submissions without a server: uploads are stored directly, and the inspector is a thread instead of a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

from sqlalchemy import func, select

from organs.ingest.contributions.inspection import (
    Inspection,
    InspectionStopped,
    StartInspector,
)
from organs.ingest.contributions.inspector import serve
from organs.ingest.contributions.manifest import parse_manifest
from organs.ingest.contributions.messages import Channel
from organs.ingest.contributions.submissions import process_submission, submit
from organs.ingest.contributions.uploads import spool_of
from organs.registry.catalog.queries.submissions import SubmissionWithJob, submission_by_id
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.submissions import add_upload, complete_upload, record_received
from organs.registry.catalog.tables import BlobLease, UploadRow
from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.small_models import row_counts


def put_upload(registry: LocalRegistry, contributor: str, pieces: Sequence[bytes], kind: str = "pack") -> str:
    """Create a finished upload of `pieces`, in sequence; return its id."""
    data, spool = b"".join(pieces), spool_of(registry)
    name = spool.make(len(data))
    with spool.locked(name) as upload:
        upload.write(data, 0)
        file = upload.sync()
    with registry.catalog.writing() as session:
        row = add_upload(
            session,
            contributor_id(session, contributor),
            name,
            kind=kind,
            size_bytes=len(data),
            digest=digest_of(data),
            name="sent.gguf" if kind == "file" else None,
            pieces=[] if kind == "file" else [(len(piece), digest_of(piece)) for piece in pieces],
        )
        record_received(session, row.id, 0, len(data), file)
        complete_upload(session, row.id, digest_of(data))
    return name


def whole_file(registry: LocalRegistry, contributor: str, data: bytes, name: str = "model.gguf") -> dict[str, Any]:
    """Upload a complete file, and return its entry of a manifest."""
    return {"name": name, "upload": put_upload(registry, contributor, [data], "file")}


def file_of_pieces(data: bytes, spans: Sequence[tuple[int, int]], name: str = "model.gguf") -> dict[str, Any]:
    """Return the entry of a manifest for a file of these pieces: offsets and sizes."""
    pieces = [[offset, size, digest_of(data[offset : offset + size])] for offset, size in spans]
    return {"name": name, "size_bytes": len(data), "sha256": digest_of(data), "pieces": pieces}


def submit_model(
    registry: LocalRegistry, name: str, files: Sequence[dict[str, Any]], *, publish: bool = True, **metadata: Any
) -> int:
    """Submit a model for the contributor of its namespace; return the id of the submission."""
    manifest = parse_manifest({"files": list(files), "metadata": metadata, "publish": publish})
    model = parse_model_name(name)
    return submit(registry, model.namespace, model, manifest)


@contextmanager
def inspector_thread(
    _size_bytes: int, _required: bool, serve: Callable[[Channel], None] = serve
) -> Iterator[Inspection]:
    """Run an inspector in a thread of this process, with the same pipes and messages as the confined one."""
    (its_reads, our_writes), (our_reads, its_writes) = os.pipe(), os.pipe()
    ours, theirs = Channel(our_reads, our_writes), Channel(its_reads, its_writes)

    def run() -> None:
        try:
            with suppress(OSError):
                serve(theirs)
        finally:
            theirs.close()

    thread = threading.Thread(target=run)
    thread.start()
    inspection = Inspection(ours, lambda: InspectionStopped("It ended.", is_limit=False), lambda: None)
    try:
        yield inspection
    finally:
        inspection.end()
        while thread.is_alive():  # like a killed process: all that it still sends is read
            with suppress(BlockingIOError):
                os.read(our_reads, 1 << 16)
            thread.join(0.001)
        thread.join()
        inspection.close()


def process_and_read(
    registry: LocalRegistry,
    submission_id: int,
    *,
    publish: bool = True,
    report_progress: Callable[[float, str], None] = lambda _share, _note: None,
    start_inspector: StartInspector = inspector_thread,
) -> SubmissionWithJob:
    """Run the job of a submission, and return the submission."""
    process_submission(registry, submission_id, report_progress, publish=publish, start_inspector=start_inspector)
    return submission_row(registry, submission_id)


def submit_and_process(
    registry: LocalRegistry, name: str, data: bytes, *, publish: bool = True, **options: Any
) -> SubmissionWithJob:
    """Submit the file `data` as a model, run its job with `options`, and return the submission."""
    sent = whole_file(registry, parse_model_name(name).namespace, data)
    return process_and_read(registry, submit_model(registry, name, [sent], publish=publish), publish=publish, **options)


def submission_row(registry: LocalRegistry, submission_id: int) -> SubmissionWithJob:
    with registry.catalog.reading() as session:
        return submission_by_id(session, submission_id)


def assert_no_upload_is_left(registry: LocalRegistry) -> None:
    """Assert that no upload has a row or a file, and that no blob is leased."""
    assert list(spool_of(registry).strays(inf)) == []
    with registry.catalog.reading() as session:
        for table in (UploadRow, BlobLease):
            assert session.scalar(select(func.count()).select_from(table)) == 0, table
    assert row_counts(registry)["upload_pieces"] == 0
