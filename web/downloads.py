"""Organs, models and what was made here, as files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from flask import Blueprint, Response, abort, request
from flask.blueprints import BlueprintSetupState

from organs.ingest.jobs.extract import pack_file
from organs.registry.catalog.queries.blobs import BlobRow
from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.queries.jobs import file_of_job
from organs.registry.catalog.queries.models import files_of, model_by_name
from organs.registry.chimera.layout import first_header
from organs.registry.compose.chimeras import chimera_of_model
from organs.registry.compose.lock import lock_of
from organs.registry.digest import parse_prefix
from organs.registry.errors import NotFound, StoreError
from organs.registry.names import parse_model_name
from organs.web.contents import (
    FULL_DIGEST_LENGTH,
    chosen_organ,
    literal_file,
    model_file,
    organ_file,
    organ_values,
    public_names,
    raw_organ,
    told_in_words,
    whole_model,
)
from organs.web.params import parsed_job
from organs.web.permissions import whose_jobs
from organs.web.responses import (
    reading,
    registry,
    settings,
)
from organs.web.streams import STREAMS_KEY, THREADS, ByteSource, Content, allow_streams, hand_out

downloads = Blueprint("downloads", __name__)

BODY_MAX_BYTES = 4096
"""What a request that asks to read may send along; nobody has a reason to send anything."""


@downloads.record_once
def _allow_streams(state: BlueprintSetupState) -> None:
    if STREAMS_KEY not in state.app.extensions:
        assert not isinstance(state.app, Blueprint)
        allow_streams(state.app, THREADS)  # type: ignore[arg-type]


@downloads.before_app_request
def _refuse_bodies() -> None:
    """Bodies where none belongs, and packed ones anywhere: how large they are when unpacked, nobody knows."""
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        abort(415, "A packed body is not accepted here: send it plain.")
    if request.method in ("GET", "HEAD", "OPTIONS"):
        chunked = "Transfer-Encoding" in request.headers
        if chunked or (request.content_length or 0) > BODY_MAX_BYTES:
            abort(413, "A request that reads has no body.")


@downloads.get("/organs/<digest>.<any(raw,bin,npy):form>")
def organ(digest: str, form: str) -> Response:
    """An organ as a file of one of three forms."""
    with reading() as session:
        chosen = chosen_organ(session, digest, request.args.get("dtype"), request.args.get("shape"))
        if form == "raw":
            content = raw_organ(chosen)
        elif form == "bin":
            content = organ_file(session, chosen, request.args.get("name"))
        else:
            content = organ_values(chosen)
    with told_in_words(content.name):
        return hand_out(content)


@downloads.get("/models/<namespace>/<name>.gguf")
def model(namespace: str, name: str) -> Response:
    """A model as one file: the one that came in, or its shards merged."""
    asked = parse_model_name(f"{namespace}/{name}")
    with told_in_words(str(asked)):
        with reading() as session:
            content = whole_model(session, model_by_name(session, asked), immutable=asked.version is not None)
        return hand_out(content)


@downloads.get("/models/<namespace>/<name>/files/<file>")
def file_of_model(namespace: str, name: str, file: str) -> Response:
    """A file of a model as it came in."""
    asked = parse_model_name(f"{namespace}/{name}")
    with reading() as session:
        row = model_by_name(session, asked)
        files = files_of(session, row.id)
        found = dict(zip(public_names([one.name for one in files]), files, strict=True)).get(file)
        if found is None:
            raise NotFound(f"{row.full_name} has no file of that name")
        content = model_file(row, found, file, immutable=asked.version is not None)
    with told_in_words(content.name):
        return hand_out(content)


made = Blueprint("made", __name__)

LOCK_FILE = "lock.json"
TEXTS = {"recipe.yaml": "recipe_yaml", "card.md": "card", "Modelfile": "modelfile"}
"""Files of a chimera, and the member that each holds."""
READ_BYTES = 256 * 1024


@made.get('/chimeras/<lock>/<any("recipe.yaml", "lock.json", "card.md", "Modelfile"):text>')
def chimera_text(lock: str, text: str) -> Response:
    """A text that belongs to a chimera. Only the lock can never be another one at the same address."""
    with reading(settings().search_seconds) as session, told_in_words(text):
        model = chimeras_by_lock(session, lock)[0]
        if text == LOCK_FILE:
            read = first_header(session, registry().blobs, model)
            found = lock_of(read.header, read.source)
            said = None if found is None else found.canonical()
        else:
            chimera = chimera_of_model(session, model)
            said = None if chimera is None else str(getattr(chimera, TEXTS[text]))
    if said is None:
        raise NotFound(f"{model.full_name} has no {text}")
    whole = text == LOCK_FILE and len(parse_prefix(lock)) == FULL_DIGEST_LENGTH
    return hand_out(literal_file(text, said.encode("utf-8"), immutable=whole))


@made.get("/jobs/<job>/files/<file>")
def job_file(job: str, file: str) -> Response:
    """A file that a job has left."""
    whose = whose_jobs()
    with reading(settings().search_seconds) as session:
        left = file_of_job(session, parsed_job(job), whose)
    path = None if left is None else pack_file(registry().settings.home, left.pack, left.name)
    if left is None or path is None or left.name != file:
        raise NotFound(f"job {job} has no such file here: what a job leaves is kept for a day")
    digest = left.sha256
    return hand_out(Content(file, left.size_bytes, digest, lambda begin, end: _Stretch(path, begin, end), digest))


class _Stretch:
    """The bytes of a file on the disk from one offset to before another (`web.streams.ByteSource`)."""

    def __init__(self, path: Path, begin: int, end: int) -> None:
        self.faults: list[BlobRow] = []
        self._path = path
        self._begin, self._end = begin, end
        self._descriptor: int | None = None

    def __enter__(self) -> ByteSource:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise NotFound("this file was removed just now: what a job leaves is kept for a day") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __iter__(self) -> Iterator[memoryview]:
        assert self._descriptor is not None
        offset = self._begin
        while offset < self._end:
            try:
                data = os.pread(self._descriptor, min(READ_BYTES, self._end - offset), offset)
            except OSError as error:
                raise StoreError(f"{self._path.name} cannot be read: {error.strerror}") from error
            if not data:
                raise StoreError(f"{self._path.name} ends at byte {offset}, {self._end} are due")
            offset += len(data)
            yield memoryview(data)
