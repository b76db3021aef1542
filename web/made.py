"""What was made here, as files.

    /chimeras/<lock>/recipe.yaml    what was asked for
    /chimeras/<lock>/lock.json      what it is: a function of the digest that names it
    /chimeras/<lock>/card.md        what it was made of, what was found, predicted and shown
    /chimeras/<lock>/Modelfile      for runtimes that read these
    /jobs/<job>/files/<file>        what a job has left, for a day

The file of a chimera is that of any model: `/models/<namespace>/<name>@<version>.gguf`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from flask import Blueprint, Response

from organs.ingest.jobs.packs import pack_file
from organs.registry.catalog.queries.blobs import BlobRow
from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.queries.jobs import job_by_id
from organs.registry.chimera.layout import first_header
from organs.registry.compose.lock import lock_of
from organs.registry.digest import parse_prefix
from organs.registry.errors import NotFound, StoreError
from organs.registry.present.chimera import chimera_values
from organs.registry.present.jobs import PACK, job_result
from organs.web.answers import reading, registry, settings
from organs.web.asked import parsed_job
from organs.web.contents import FULL_DIGEST_LENGTH, literal_file, told_in_words
from organs.web.streams import ByteSource, Content, hand_out
from organs.web.writing import whose_jobs

made = Blueprint("made", __name__)

LOCK_FILE = "lock.json"
TEXTS = {"recipe.yaml": "recipe_yaml", "card.md": "card", "Modelfile": "modelfile"}
"""Files of a chimera, and which of its values each holds."""
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
            values = chimera_values(session, model)
            said = None if values is None else values[TEXTS[text]]
    if said is None:
        raise NotFound(f"{model.full_name} has no {text}")
    whole = text == LOCK_FILE and len(parse_prefix(lock)) == FULL_DIGEST_LENGTH
    return hand_out(literal_file(text, said.encode("utf-8"), immutable=whole))


@made.get("/jobs/<job>/files/<file>")
def job_file(job: str, file: str) -> Response:
    """A file that a job has left."""
    whose = whose_jobs()
    with reading(settings().search_seconds) as session:
        result = job_result(job_by_id(session, parsed_job(job), whose)[0]) or {}
    path = pack_file(registry().settings.home, result.get(PACK), result.get("file"))
    if path is None or result["file"] != file:
        raise NotFound(f"job {job} has no such file here: what a job leaves is kept for a day")
    size_bytes, sha256 = result["size_bytes"], result["sha256"]
    return hand_out(Content(file, size_bytes, sha256, lambda begin, end: _Stretch(path, begin, end), sha256))


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
