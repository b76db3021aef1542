"""Uploads to a registry whose blobs are in a bucket: any machine receives, checks and removes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from obstore.exceptions import GenericError
from sqlalchemy import update

from organs.ingest.contributions import uploads as uploads_module
from organs.ingest.contributions.manifest import parse_manifest
from organs.ingest.contributions.submissions import submit
from organs.ingest.contributions.uploads import (
    BytesLost,
    Chunk,
    TidyReport,
    cancel,
    finish,
    look_up,
    open_upload,
    receive,
    spool_of,
    tidy_uploads,
)
from organs.ingest.jobs import packs
from organs.ingest.jobs.kinds import EXTRACT
from organs.ingest.jobs.packs import has_pack, open_pack, remove_old_objects
from organs.registry.catalog.queries.jobs import JobFile
from organs.registry.catalog.register.accounts import add_contributor
from organs.registry.catalog.tables import SubmissionRow, UploadRow, now
from organs.registry.digest import digest_of
from organs.registry.entities.job import ModelRequest
from organs.registry.entities.submission import UploadRequest
from organs.registry.errors import BadInput, Conflict, NotFound, StoreUnreachable
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.upload_limits import CHUNKS_MAX
from tests.memory_bucket import MemoryService, failing, serve_from_memory
from tests.small_models import small_model
from tests.submissions import process_and_read

URL = "s3://somewhere/organs"
DATA = small_model()
HALF = len(DATA) // 2


class Machines:
    """Two machines with one database and one bucket, and a contributor."""

    def __init__(self, registry: LocalRegistry, folder: Path, services: dict[str, MemoryService]) -> None:
        settings = replace(registry.settings, bucket=URL)
        self.one = LocalRegistry(settings, registry.catalog)
        self.two = LocalRegistry(replace(settings, home=folder / "two"), registry.catalog)
        self._services = services
        with registry.catalog.writing() as session:
            self.ada = add_contributor(session, "ada").id

    @property
    def chunks(self) -> MemoryService:
        """The service of the folder of the uploads."""
        return self._services[f"{URL}/uploads"]

    def begin(self, data: bytes = DATA) -> str:
        return open_upload(
            self.one, self.ada, UploadRequest(kind="file", size_bytes=len(data), name="m.gguf")
        ).public_id

    def send(self, registry: LocalRegistry, upload: str, begin: int, end: int, data: bytes = DATA) -> int:
        chunk = Chunk(begin, end, len(data))
        portions = (data[at : min(at + 7000, end)] for at in range(begin, end, 7000))
        return receive(registry, self.ada, upload, chunk, portions).received_bytes

    def publish(self, upload: str) -> SubmissionRow:
        """Submit a finished upload on one machine, and publish it on the other."""
        manifest = parse_manifest({"files": [{"name": "m.gguf", "upload": upload}], "publish": True})
        submission = submit(self.two, "ada", ModelName("ada", "m"), manifest)
        return process_and_read(self.one, submission, publish=True).row

    def sent(self) -> str:
        upload = self.begin()
        self.send(self.one, upload, 0, HALF)
        self.send(self.two, upload, HALF, len(DATA))
        return finish(self.two, self.ada, upload, digest_of(DATA)).public_id


@pytest.fixture
def machines(registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(registry, tmp_path, serve_from_memory(monkeypatch))


def test_an_upload_begins_on_one_machine_and_ends_on_another(machines: Machines) -> None:
    upload = machines.sent()
    assert look_up(machines.one, machines.ada, upload).state == "complete"
    assert not machines.one.settings.uploads.exists()
    assert [len(machines.chunks.stored(name)) for name in machines.chunks.names()] in (
        [HALF, len(DATA) - HALF],
        [len(DATA) - HALF, HALF],
    )
    assert machines.publish(upload).state == "published"
    assert machines.chunks.names() == []  # its organs are blobs now
    path = machines.two.settings.home / "back.gguf"
    machines.two.assemble("ada/m", path)
    assert path.read_bytes() == DATA


def test_of_two_chunks_with_the_same_offset_one_is_stored(machines: Machines) -> None:
    upload = machines.begin()

    def interrupted() -> Iterator[bytes]:
        yield DATA[:10]
        machines.send(machines.two, upload, 0, HALF)
        yield DATA[10:20]

    with pytest.raises(Conflict, match="another client uses this upload"):
        receive(machines.one, machines.ada, upload, Chunk(0, 20, len(DATA)), interrupted())
    assert look_up(machines.one, machines.ada, upload).received_bytes == HALF
    assert len(machines.chunks.names()) == 1
    assert machines.send(machines.one, upload, 5, 20) == HALF  # the same bytes again
    with pytest.raises(Conflict, match="other bytes"):
        machines.send(machines.one, upload, 5, 20, bytes(len(DATA)))
    machines.send(machines.one, upload, HALF, len(DATA))
    assert finish(machines.two, machines.ada, upload, digest_of(DATA)).state == "complete"
    assert finish(machines.one, machines.ada, upload).state == "complete"


def test_a_chunk_that_is_not_recorded_leaves_no_object(machines: Machines) -> None:
    upload = machines.begin()
    with pytest.raises(BadInput, match="ends after"):
        receive(machines.one, machines.ada, upload, Chunk(0, 20, len(DATA)), [b"x" * 10])
    assert machines.chunks.names() == []

    def cancelled() -> Iterator[bytes]:
        yield DATA[:10]
        cancel(machines.two, machines.ada, upload)
        yield DATA[10:20]

    machines.send(machines.one, upload, 0, HALF)
    with pytest.raises(Conflict, match="it has ended"):
        receive(machines.one, machines.ada, upload, Chunk(HALF, HALF + 20, len(DATA)), cancelled())
    assert machines.chunks.names() == []


def test_a_chunk_stays_if_its_row_may_have_been_written(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = machines.begin()

    def lost(*_: object) -> bool:
        raise StoreUnreachable("the answer to the commit is lost")

    with monkeypatch.context() as patch:
        patch.setattr(uploads_module, "record_received", lost)
        with pytest.raises(StoreUnreachable):
            machines.send(machines.one, upload, 0, HALF)
    assert len(machines.chunks.names()) == 1
    assert tidy_uploads(machines.two) == TidyReport()  # it is too young
    monkeypatch.setattr(uploads_module, "STRAY_AFTER_SECONDS", -60.0)
    machines.send(machines.one, upload, 0, HALF)
    assert tidy_uploads(machines.two, dry_run=True) == TidyReport(0, 1, HALF)
    assert tidy_uploads(machines.two) == TidyReport(0, 1, HALF)
    assert len(machines.chunks.names()) == 1


def test_expired_uploads_are_removed(machines: Machines) -> None:
    upload = machines.sent()
    with machines.one.catalog.writing() as session:
        session.execute(update(UploadRow).values(expires_at=now()))
    assert tidy_uploads(machines.two) == TidyReport(1, 0, len(DATA))
    assert machines.chunks.names() == []
    assert list(spool_of(machines.one).strays(inf)) == []
    with pytest.raises(NotFound):
        look_up(machines.one, machines.ada, upload)


def test_lost_bytes_are_reported_and_sent_again(machines: Machines) -> None:
    upload = machines.begin()
    machines.send(machines.one, upload, 0, len(DATA))
    (name,) = machines.chunks.names()
    machines.chunks.objects.delete(name)
    with pytest.raises(BytesLost):
        finish(machines.one, machines.ada, upload)
    cancel(machines.one, machines.ada, upload)
    whole = machines.sent()
    for name in machines.chunks.names():
        machines.chunks.objects.delete(name)
    assert "was removed; send it again" in machines.publish(whole).findings


@pytest.mark.folder
def test_an_upload_in_a_folder_is_lost_after_a_move_to_a_bucket(machines: Machines, registry: LocalRegistry) -> None:
    declared = UploadRequest(kind="file", size_bytes=len(DATA), name="m.gguf")
    former = open_upload(registry, machines.ada, declared).public_id
    machines.send(registry, former, 0, HALF)
    with pytest.raises(BytesLost):
        machines.send(machines.one, former, HALF, len(DATA))
    assert open_upload(machines.one, machines.ada, declared).public_id != former


def test_a_bucket_that_does_not_answer_loses_nothing(machines: Machines) -> None:
    upload = machines.begin()
    machines.send(machines.one, upload, 0, HALF)
    machines.chunks.before = failing(GenericError("no answer"), "put", "get")
    with pytest.raises(StoreUnreachable):
        machines.send(machines.one, upload, HALF, len(DATA))
    machines.chunks.before = failing(GenericError("no answer"))
    assert look_up(machines.two, machines.ada, upload).received_bytes == HALF
    machines.send(machines.two, upload, HALF, len(DATA))
    assert finish(machines.one, machines.ada, upload, digest_of(DATA)).state == "complete"


def test_an_upload_has_a_limited_number_of_chunks(machines: Machines) -> None:
    size_bytes = 3 * CHUNKS_MAX
    upload = open_upload(machines.one, machines.ada, UploadRequest(kind="file", size_bytes=size_bytes)).public_id
    with pytest.raises(BadInput, match="at least 3 bytes"):
        receive(machines.one, machines.ada, upload, Chunk(0, 2, size_bytes), [b"ab"])
    assert receive(machines.one, machines.ada, upload, Chunk(0, 3, size_bytes), [b"abc"]).received_bytes == 3


def test_the_file_of_a_job_is_sent_by_any_machine(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    machines.publish(machines.sent())
    result = EXTRACT.run(machines.one, ModelRequest(model="ada/m"), lambda *_: None, "ada")
    file = JobFile(result.pack, result.file, result.size_bytes, result.sha256)  # type: ignore[attr-defined]
    opened = open_pack(machines.two, file)
    assert opened is not None
    assert digest_of(opened.read_at(0, opened.size_bytes)) == file.sha256
    assert list((machines.one.settings.home / "jobs").iterdir()) == []
    remove_old_objects(machines.two)
    assert has_pack(machines.two, file)
    monkeypatch.setattr(packs, "KEPT_SECONDS", -60.0)
    remove_old_objects(machines.two)
    assert not has_pack(machines.one, file)
    assert open_pack(machines.one, file) is None
