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
    receive,
    spool_of,
    tidy_uploads,
)
from organs.ingest.jobs import packs
from organs.ingest.jobs.kinds import EXTRACT
from organs.ingest.jobs.packs import has_pack, open_pack, remove_old_objects
from organs.registry.catalog.queries.jobs import JobFile
from organs.registry.catalog.tables import SubmissionRow, UploadRow, now
from organs.registry.digest import digest_of
from organs.registry.entities.job import ModelRequest
from organs.registry.entities.submission import UploadRequest
from organs.registry.errors import BadInput, Conflict, NotFound, StoreUnreachable
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.upload_limits import CHUNKS_MAX
from tests.ingest.upload_cases import Sender
from tests.memory_bucket import MemoryService, failing, serve_from_memory
from tests.small_models import small_model
from tests.submissions import process_and_read

URL = "s3://somewhere/organs"
DATA = small_model()
HALF = len(DATA) // 2


class Machines:
    """A contributor at two machines with one database and one bucket."""

    def __init__(self, registry: LocalRegistry, folder: Path, services: dict[str, MemoryService]) -> None:
        settings = replace(registry.settings, bucket=URL)
        self.one = Sender.named(LocalRegistry(settings, registry.catalog), "ada")
        self.two = self.one.on(LocalRegistry(replace(settings, home=folder / "two"), registry.catalog))
        self._services = services

    @property
    def chunks(self) -> MemoryService:
        """The service of the folder of the uploads."""
        return self._services[f"{URL}/uploads"]

    def begin(self) -> str:
        return self.one.begin(DATA, name="m.gguf")

    def publish(self, upload: str) -> SubmissionRow:
        """Submit a finished upload on one machine, and publish it on the other."""
        manifest = parse_manifest({"files": [{"name": "m.gguf", "upload": upload}], "publish": True})
        submission = submit(self.two.registry, "ada", ModelName("ada", "m"), manifest)
        return process_and_read(self.one.registry, submission, publish=True).row

    def sent(self) -> str:
        upload = self.begin()
        self.one.send(upload, 0, HALF, DATA)
        self.two.send(upload, HALF, len(DATA), DATA)
        return self.two.finish(upload, digest_of(DATA)).public_id


@pytest.fixture
def machines(registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(registry, tmp_path, serve_from_memory(monkeypatch))


def test_an_upload_begins_on_one_machine_and_ends_on_another(machines: Machines) -> None:
    upload = machines.sent()
    assert machines.one.look_up(upload).state == "complete"
    assert not machines.one.registry.settings.uploads.exists()
    assert [len(machines.chunks.stored(name)) for name in machines.chunks.names()] in (
        [HALF, len(DATA) - HALF],
        [len(DATA) - HALF, HALF],
    )
    assert machines.publish(upload).state == "published"
    assert machines.chunks.names() == []  # its organs are blobs now
    path = machines.two.registry.settings.home / "back.gguf"
    machines.two.registry.assemble("ada/m", path)
    assert path.read_bytes() == DATA


def test_of_two_chunks_with_the_same_offset_one_is_stored(machines: Machines) -> None:
    upload = machines.begin()

    def interrupted() -> Iterator[bytes]:
        yield DATA[:10]
        machines.two.send(upload, 0, HALF, DATA)
        yield DATA[10:20]

    with pytest.raises(Conflict, match="another client uses this upload"):
        receive(machines.one.registry, machines.one.id, upload, Chunk(0, 20, len(DATA)), interrupted())
    assert machines.one.look_up(upload).received_bytes == HALF
    assert len(machines.chunks.names()) == 1
    assert machines.one.send(upload, 5, 20, DATA) == HALF  # the same bytes again
    with pytest.raises(Conflict, match="other bytes"):
        machines.one.send(upload, 5, 20, bytes(len(DATA)))
    machines.one.send(upload, HALF, len(DATA), DATA)
    assert machines.two.finish(upload, digest_of(DATA)).state == "complete"
    assert machines.one.finish(upload).state == "complete"


def test_a_chunk_that_is_not_recorded_leaves_no_object(machines: Machines) -> None:
    upload = machines.begin()
    with pytest.raises(BadInput, match="ends after"):
        receive(machines.one.registry, machines.one.id, upload, Chunk(0, 20, len(DATA)), [b"x" * 10])
    assert machines.chunks.names() == []

    def cancelled() -> Iterator[bytes]:
        yield DATA[:10]
        machines.two.cancel(upload)
        yield DATA[10:20]

    machines.one.send(upload, 0, HALF, DATA)
    with pytest.raises(Conflict, match="it has ended"):
        receive(machines.one.registry, machines.one.id, upload, Chunk(HALF, HALF + 20, len(DATA)), cancelled())
    assert machines.chunks.names() == []


def test_a_chunk_stays_if_its_row_may_have_been_written(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = machines.begin()

    def lost(*_: object) -> bool:
        raise StoreUnreachable("the answer to the commit is lost")

    with monkeypatch.context() as patch:
        patch.setattr(uploads_module, "record_received", lost)
        with pytest.raises(StoreUnreachable):
            machines.one.send(upload, 0, HALF, DATA)
    assert len(machines.chunks.names()) == 1
    assert tidy_uploads(machines.two.registry) == TidyReport()  # it is too young
    monkeypatch.setattr(uploads_module, "STRAY_AFTER_SECONDS", -60.0)
    machines.one.send(upload, 0, HALF, DATA)
    assert tidy_uploads(machines.two.registry, dry_run=True) == TidyReport(0, 1, HALF)
    assert tidy_uploads(machines.two.registry) == TidyReport(0, 1, HALF)
    assert len(machines.chunks.names()) == 1


def test_expired_uploads_are_removed(machines: Machines) -> None:
    upload = machines.sent()
    with machines.one.registry.catalog.writing() as session:
        session.execute(update(UploadRow).values(expires_at=now()))
    assert tidy_uploads(machines.two.registry) == TidyReport(1, 0, len(DATA))
    assert machines.chunks.names() == []
    assert list(spool_of(machines.one.registry).strays(inf)) == []
    with pytest.raises(NotFound):
        machines.one.look_up(upload)


def test_lost_bytes_are_reported_and_sent_again(machines: Machines) -> None:
    upload = machines.begin()
    machines.one.send(upload, 0, len(DATA), DATA)
    (name,) = machines.chunks.names()
    machines.chunks.objects.delete(name)
    with pytest.raises(BytesLost):
        machines.one.finish(upload)
    machines.one.cancel(upload)
    whole = machines.sent()
    for name in machines.chunks.names():
        machines.chunks.objects.delete(name)
    assert "was removed; send it again" in machines.publish(whole).findings


@pytest.mark.folder
def test_an_upload_in_a_folder_is_lost_after_a_move_to_a_bucket(machines: Machines, registry: LocalRegistry) -> None:
    former = machines.one.on(registry).begin(DATA, name="m.gguf")
    machines.one.on(registry).send(former, 0, HALF, DATA)
    with pytest.raises(BytesLost):
        machines.one.send(former, HALF, len(DATA), DATA)
    assert machines.begin() != former


def test_a_bucket_that_does_not_answer_loses_nothing(machines: Machines) -> None:
    upload = machines.begin()
    machines.one.send(upload, 0, HALF, DATA)
    machines.chunks.before = failing(GenericError("no answer"), "put", "get")
    with pytest.raises(StoreUnreachable):
        machines.one.send(upload, HALF, len(DATA), DATA)
    machines.chunks.before = failing(GenericError("no answer"))
    assert machines.two.look_up(upload).received_bytes == HALF
    machines.two.send(upload, HALF, len(DATA), DATA)
    assert machines.one.finish(upload, digest_of(DATA)).state == "complete"


def test_an_upload_has_a_limited_number_of_chunks(machines: Machines) -> None:
    size_bytes = 3 * CHUNKS_MAX
    upload = machines.one.open(UploadRequest(kind="file", size_bytes=size_bytes))
    with pytest.raises(BadInput, match="at least 3 bytes"):
        receive(machines.one.registry, machines.one.id, upload, Chunk(0, 2, size_bytes), [b"ab"])
    assert (
        receive(machines.one.registry, machines.one.id, upload, Chunk(0, 3, size_bytes), [b"abc"]).received_bytes == 3
    )


def test_the_file_of_a_job_is_sent_by_any_machine(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    machines.publish(machines.sent())
    result = EXTRACT.run(machines.one.registry, ModelRequest(model="ada/m"), lambda *_: None, "ada")
    file = JobFile(result.pack, result.file, result.size_bytes, result.sha256)  # type: ignore[attr-defined]
    opened = open_pack(machines.two.registry, file)
    assert opened is not None
    assert digest_of(opened.read_at(0, opened.size_bytes)) == file.sha256
    assert list((machines.one.registry.settings.home / "jobs").iterdir()) == []
    remove_old_objects(machines.two.registry)
    assert has_pack(machines.two.registry, file)
    monkeypatch.setattr(packs, "KEPT_SECONDS", -60.0)
    remove_old_objects(machines.two.registry)
    assert not has_pack(machines.one.registry, file)
    assert open_pack(machines.one.registry, file) is None
