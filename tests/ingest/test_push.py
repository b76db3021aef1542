"""Tests of pushing: pieces of a file, sent bytes, and the report."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from organs.ingest.contributions import sending
from organs.ingest.contributions.sending import Memory, Misfit, SentSubmission, cut, distinct, loads, spans_of
from organs.ingest.dissect import dissect
from organs.registry.catalog.queries.accounts import PIECE_ROW_BYTES
from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.digest import digest_of
from organs.registry.errors import BadInput, BadName, BadReply, BadSource, NotAllowed, OverQuota
from organs.registry.gguf.header import Span
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from organs.registry.upload_limits import PACK_PIECE_MAX_BYTES
from tests.client.scripted_server import ReceivedRequest, as_problem
from tests.gguf_files import file_bytes, text
from tests.ingest.directory_cases import UP, gguf_bytes_of, small_directory
from tests.ingest.memory_registry import FakeRegistry, quota
from tests.ingest.push_cases import LARGE, TOKENS, RecordedProgress, large_model, run_push, write_model_file
from tests.small_models import block_metadata, block_tensors, ingest_file, small_model, small_shards, weight_tensor

# Pieces of a file.


def test_pieces_cover_a_file_except_zeros_and_never_overlap(tmp_path: Path) -> None:
    three = weight_tensor("odd.weight", (3,), dtype="F32")
    data = bytearray(file_bytes([*block_metadata(), TOKENS], [three, *block_tensors(), LARGE]))
    with FileSource(write_model_file(tmp_path, bytes(data))) as source:
        file = dissect(source)
        padding = file.tensor_span(file.header.tensors[0]).end
    data[padding : padding + 4] = b"odd!"
    with FileSource(write_model_file(tmp_path, bytes(data))) as source:
        (cut_file,) = cut([dissect(source)], Memory(None), lambda _size: None)
    position = 0
    for piece in cut_file.pieces:
        assert piece.size_bytes > 0
        assert not data[position : piece.offset].strip(b"\0")
        position = piece.offset + piece.size_bytes
        assert piece.digest == digest_of(data[piece.offset : position])
    assert not data[position:].strip(b"\0")
    assert padding in [piece.offset for piece in cut_file.pieces]


def test_pieces_are_the_blobs_of_an_ingest_except_the_runs_of_the_header(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    path = write_model_file(tmp_path, large_model())
    ingest_file(registry, path)
    with FileSource(path) as source:
        (file,) = cut([dissect(source)], Memory(None), lambda _size: None)
        runs = {span.offset for span in file.file.literals()}
    here = {piece.digest for piece in file.pieces if piece.offset not in runs}
    with registry.catalog.reading() as session:
        assert set(blobs_by_digest(session, here)) == here
    assert len(runs) == 2
    assert len(here) == len(file.pieces) - 2


def test_small_pieces_are_sent_in_packs_and_large_ones_alone(tmp_path: Path) -> None:
    with FileSource(write_model_file(tmp_path, large_model())) as source:
        pieces = distinct(cut([dissect(source)], Memory(None), lambda _size: None))
        large, *packs = loads(pieces.values())
        assert [piece.size_bytes for piece in large.pieces] == [LARGE[0].size_bytes]
        assert not large.is_pack
        assert all(piece.size_bytes <= PACK_PIECE_MAX_BYTES for pack in packs for piece in pack.pieces)
        assert sum(len(pack.pieces) for pack in packs) == len(pieces) - 1


# Sent bytes.


def test_a_pushed_model_is_published_and_a_second_push_sends_nothing(fake: FakeRegistry, tmp_path: Path) -> None:
    data = large_model()
    path = write_model_file(tmp_path, data)
    shown = RecordedProgress()
    metadata = {"license": "mit", "tags": ["little", "mine"]}
    report = run_push(fake, path, shown, metadata=metadata)
    assert fake.file() == data
    assert fake.manifests[0]["files"][0]["name"] == "Mine.gguf"
    assert (fake.manifests[0]["metadata"], fake.manifests[0].get("publish", True)) == (metadata, True)
    assert (report.state, report.model) == ("published", "me/Mine@1")
    assert report.address == f"{fake.connection.url}/models/me/Mine@1"
    assert report.bytes_sent == fake.received_bytes == sum(len(blob) for blob in fake.blobs.values())
    assert (report.pieces_sent, report.pieces_known, report.bytes_known) == (len(fake.blobs), 0, 0)
    assert [label for label, _ in shown.stages] == ["read", "look up", "send", "check"]
    assert shown.done_bytes["read"] == len(data)
    assert shown.done_bytes["send"] == report.bytes_sent
    assert shown.said == ["look, 50%"]
    again = run_push(fake, path)
    assert (again.state, again.model, again.bytes_sent, again.pieces_sent) == ("there", "me/Mine@1", 0, 0)
    assert (again.bytes_known, again.pieces_known) == (report.bytes_sent, report.pieces_sent)
    assert len(fake.manifests) == 1
    assert len(fake.requests_to("POST", "/uploads/lookup")) == 1


def test_a_split_set_is_pushed_as_its_files(fake: FakeRegistry, tmp_path: Path) -> None:
    shards = small_shards("Mine", 2)
    paths = [write_model_file(tmp_path, data, name) for name, data in shards.items()]
    assert run_push(fake, paths[1]).model == "me/Mine@1"
    assert [file["name"] for file in fake.manifests[0]["files"]] == list(shards)
    for index, data in enumerate(shards.values()):
        assert fake.file(index) == data


def test_an_organ_directory_is_pushed_as_its_file_with_the_edits(fake: FakeRegistry, tmp_path: Path) -> None:
    folder = small_directory(tmp_path)
    organ = folder / UP
    organ.write_bytes(organ.read_bytes()[:-4] + b"mine")
    report = run_push(fake, folder)
    (data,) = gguf_bytes_of(folder)
    assert fake.file() == data != small_model()
    assert any("edited" in note for note in report.notes)
    assert run_push(fake, folder).state == "there"


def test_a_name_of_another_namespace_or_with_a_version_is_refused_before_anything_is_sent(
    fake: FakeRegistry, tmp_path: Path
) -> None:
    path = write_model_file(tmp_path, small_model())
    with pytest.raises(NotAllowed, match="team is not your namespace: use me/other"):
        run_push(fake, path, name="team/other")
    with pytest.raises(BadName, match="leave out @version"):
        run_push(fake, path, name="me/other@2")
    assert not fake.sessions
    assert run_push(fake, path, name="other").name == "me/other"


def test_a_partial_model_needs_a_base(fake: FakeRegistry, tmp_path: Path) -> None:
    organs = [pair for pair in block_tensors() if "ffn" in pair[0].name]
    path = write_model_file(tmp_path, file_bytes(block_metadata("Part"), organs))
    with pytest.raises(BadInput, match="add --base"):
        run_push(fake, path)
    assert not fake.sessions
    run_push(fake, path, metadata={"base": "me/Whole"})
    assert fake.manifests[0]["metadata"] == {"base": "me/Whole"}
    named = file_bytes([*block_metadata("Part"), text("general.base_model.0.name", "Whole")], organs)
    assert run_push(fake, write_model_file(tmp_path, named)).state == "published"


# Quotas.


def test_a_push_over_the_quota_is_refused_before_a_byte_is_sent(fake: FakeRegistry, tmp_path: Path) -> None:
    path = write_model_file(tmp_path, large_model())
    size_bytes = path.stat().st_size
    for quota_values, why in (
        (
            quota(size_bytes),
            "^me/Mine has [0-9.]+ kB; that is [0-9.]+ [a-zB]+ more than your quota of 37[0-9.]* kB: nothing was sent",
        ),  # the rows of its packs count, too
        (quota(2 * size_bytes, used_bytes=size_bytes), "together with your other 37[0-9.]* kB"),
        (quota(2 * size_bytes, submitted_bytes=size_bytes + 1), "1 bytes more than"),
        (quota(9 * size_bytes, upload_max_bytes=size_bytes - 1), "http://.* takes at most .*: nothing was sent"),
    ):
        fake.quota = quota_values
        with pytest.raises(OverQuota, match=why):
            run_push(fake, path)
        with pytest.raises(OverQuota):
            run_push(fake, path, dry_run=True)
    for odd in ({}, quota(-1), quota(9 * size_bytes, upload_max_bytes=True)):
        fake.quota = odd
        with pytest.raises(BadReply, match=r"does not answer as a registry does: .*\$\.quota"):
            run_push(fake, path)
    assert (fake.sessions, fake.received_bytes) == ({}, 0)
    fake.quota = quota(size_bytes + PIECE_ROW_BYTES * 100)
    assert run_push(fake, path).state == "published"
    fake.quota = quota(0)
    assert run_push(fake, path).state == "there", "what sends nothing is for the registry to refuse"


def test_already_uploaded_bytes_are_not_counted_twice(fake: FakeRegistry, tmp_path: Path) -> None:
    path = write_model_file(tmp_path, large_model())
    fake.fails = lambda asked: (
        as_problem(403, "no") if asked.headers.get("Content-Range", "").startswith("bytes 200000-") else None
    )
    with pytest.raises(NotAllowed):
        run_push(fake, path)
    uploads = [session.request for session in fake.sessions.values()]
    assert LARGE[0].size_bytes in [declared["size_bytes"] for declared in uploads]
    lying_bytes = sum(
        declared["size_bytes"] + PIECE_ROW_BYTES * len(declared.get("pieces", ())) for declared in uploads
    )
    packed = len(spans_in(path)) - 1
    fake.fails = lambda _asked: None
    fake.quota = quota(
        path.stat().st_size + PIECE_ROW_BYTES * packed, used_bytes=lying_bytes, uploads_bytes=lying_bytes
    )
    assert run_push(fake, path).state == "published"


def spans_in(path: Path) -> list[Span]:
    with FileSource(path) as source:
        return spans_of(dissect(source))


# Outcomes.


def test_a_submission_that_waits_for_approval_is_not_submitted_again(fake: FakeRegistry, tmp_path: Path) -> None:
    fake.outcome = {"state": "quarantined"}
    path = write_model_file(tmp_path, small_model())
    first, again = run_push(fake, path), run_push(fake, path)
    assert first.state == again.state == "quarantined"
    assert (again.bytes_sent, again.bytes_known, again.pieces_known) == (0, first.bytes_sent, first.pieces_sent)
    assert first.address == again.address == f"{fake.connection.url}/submissions/{first.submission}"
    assert len(fake.manifests) == 1
    fake.submissions.clear()  # the registry no longer has the submission
    run_push(fake, path)
    assert len(fake.manifests) == 2


# Remembered digests and submissions.


def test_a_file_is_hashed_once(fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model_file(tmp_path, large_model())
    first = run_push(fake, path, dry_run=True)
    monkeypatch.setattr("organs.ingest.contributions.sending.FilePass", None)  # calling it would fail
    shown = RecordedProgress()
    assert run_push(fake, path, shown, dry_run=True) == first
    assert shown.done_bytes["read"] == path.stat().st_size


def test_a_file_that_was_written_to_is_hashed_again(fake: FakeRegistry, tmp_path: Path) -> None:
    path = write_model_file(tmp_path, small_model(seed=1))
    run_push(fake, path)
    run_push(fake, write_model_file(tmp_path, changed := small_model(seed=2)))
    assert fake.file() == changed


def test_a_change_with_the_same_date_and_size_is_found_by_the_registry(fake: FakeRegistry, tmp_path: Path) -> None:
    path = write_model_file(tmp_path, small_model(seed=1))
    run_push(fake, path, dry_run=True)
    before = path.stat()
    with path.open("r+b") as file:
        file.write(changed := small_model(seed=2))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(Misfit, match="another digest"):
        run_push(fake, path)
    assert not fake.manifests
    run_push(fake, path)
    assert fake.file() == changed


@pytest.mark.parametrize("content", ["", '{"file": 1}'])
def test_an_invalid_memory_entry_is_ignored(fake: FakeRegistry, tmp_path: Path, content: str) -> None:
    path = write_model_file(tmp_path, small_model())
    run_push(fake, path, dry_run=True)
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_text(content)
    assert run_push(fake, path).state == "published"


def test_the_oldest_memory_entries_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "ENTRIES_MAX", 8)
    memory = Memory(tmp_path / "cache")
    for number in range(11):
        memory.write(f"{number}.json", SentSubmission(submission=7))
    assert len(list((tmp_path / "cache").iterdir())) == 8
    assert memory.read("10.json", SentSubmission) == SentSubmission(submission=7)


def test_a_file_that_changes_while_it_is_sent_is_not_submitted(fake: FakeRegistry, tmp_path: Path) -> None:
    path = write_model_file(tmp_path, large_model())

    def change(asked: ReceivedRequest) -> None:
        if asked.method == "PATCH":
            os.utime(path)

    fake.fails = change
    with pytest.raises(BadSource, match="changed while it was read"):
        run_push(fake, path)
    assert not fake.manifests
