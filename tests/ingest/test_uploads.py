"""Tests of uploads without the web: any order of events ends with the sent bytes or without an upload."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from organs.ingest.contributions.uploads import (
    STRAY_AFTER_SECONDS,
    BytesLost,
    TidyReport,
    WrongOffset,
    check_request,
    forget_uploads,
    receive,
    spool_of,
    tidy_uploads,
)
from organs.ingest.jobs.runner import Runner
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.submissions import (
    StoredPiece,
    finished_upload,
    known_digests,
    pieces_of,
)
from organs.registry.catalog.register.accounts import set_quota
from organs.registry.catalog.register.submissions import renew_uploads
from organs.registry.catalog.tables import Blob, FilePart, ModelRow, UploadRow, now
from organs.registry.digest import Digest, digest_of
from organs.registry.errors import BadInput, Conflict, DiskFull, NotFound, OverQuota, StoreError, TooMany
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.settings import Settings
from organs.registry.store.files import Files
from organs.registry.upload_limits import PACK_PIECES_MAX, UPLOAD_LIFETIME
from tests.cli.in_process import OrganCommand
from tests.faults.failing import SteppedFiles, failing_once, with_files
from tests.ingest.upload_cases import DATA, Sender, chunk_of, wanted
from tests.random_files import BESIDE_FIXTURES
from tests.small_models import ingest_file, small_model

HOLDER = (
    "import sys, pathlib; from organs.ingest.contributions.uploads import FolderSpool\n"
    "with FolderSpool(pathlib.Path(sys.argv[1]), None).locked(sys.argv[2]):\n"
    "    print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def ada(registry: LocalRegistry) -> Sender:
    return Sender.named(registry, "ada")


def lying(registry: LocalRegistry, upload: str) -> bytes:
    """Return all bytes of the file of the upload."""
    return (registry.settings.uploads / upload).read_bytes()


def let_expire(registry: LocalRegistry) -> None:
    with registry.catalog.writing() as session:
        session.execute(update(UploadRow).values(expires_at=now() - timedelta(seconds=1)))


STEPS = st.tuples(
    st.sampled_from(("next", "again", "ahead", "overlapping", "damaged", "short", "dying")), st.integers(1, 900)
)


@pytest.mark.folder
@pytest.mark.long
@settings(BESIDE_FIXTURES, max_examples=25)
@given(size=st.integers(1, 2500), steps=st.lists(STEPS, max_size=8), seed=st.integers(0, 255))
def test_any_interruptions_and_repeats_give_the_same_bytes(
    ada: Sender, size: int, steps: list[tuple[str, int]], seed: int
) -> None:
    data = bytes((index * 7 + seed) % 256 for index in range(size))
    upload = ada.begin(data)
    try:
        for step, length in steps:
            at = ada.received(upload)
            assert take(ada, upload, data, step, length, at) == ada.received(upload)
        at = ada.received(upload)
        if at < size:
            ada.send(upload, at, size, data)
        assert ada.finish(upload, digest_of(data)).digest == digest_of(data)
        assert lying(ada.registry, upload)[:size] == data
    finally:
        ada.cancel(upload)


def take(asker: Sender, upload: str, data: bytes, step: str, length: int, at: int) -> int:
    """Do one step of a client whose upload is at `at`; return the new offset."""
    end = min(at + length, len(data))
    if step == "again" and at:
        return asker.send(upload, max(0, at - length), at, data)
    if step in ("ahead", "overlapping") and end < len(data) and at:
        begin = at + 1 if step == "ahead" else at - 1
        with pytest.raises(WrongOffset):
            asker.send(upload, begin, end + 1, data)
    elif end == at:
        pass
    elif step == "next":
        return asker.send(upload, at, end, data)
    elif step == "dying":
        with (asker.registry.settings.uploads / upload).open("r+b") as file:
            file.seek(at)
            file.write(b"\xff" * (end - at))
    elif step in ("damaged", "short"):
        portions = [data[at : end - (step == "short")]]
        with pytest.raises(BadInput):
            receive(asker.registry, asker.id, upload, chunk_of(data, at, end, wrong=step == "damaged"), portions)
    return at


@pytest.mark.folder
def test_two_clients_cannot_write_one_upload_concurrently(registry: LocalRegistry, ada: Sender) -> None:
    upload, seen = ada.begin(), []

    def meanwhile() -> Sequence[bytes]:
        for act in (
            lambda: ada.send(upload, 0, 10),
            lambda: ada.finish(upload),
            lambda: ada.cancel(upload),
        ):
            with pytest.raises(Conflict, match="another client"):
                act()
            seen.append(act)
        yield DATA

    assert receive(registry, ada.id, upload, chunk_of(DATA, 0, len(DATA)), meanwhile()).received_bytes == len(DATA)
    assert len(seen) == 3
    assert ada.finish(upload).digest == digest_of(DATA)


@pytest.mark.folder
def test_a_killed_process_releases_its_upload(registry: LocalRegistry, ada: Sender) -> None:
    upload = ada.begin()
    command = [sys.executable, "-c", HOLDER, str(registry.settings.uploads), upload]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Conflict):
            ada.send(upload, 0, 10)
        let_expire(registry)
        assert tidy_uploads(registry) == TidyReport()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert tidy_uploads(registry).expired_uploads == 1


def test_a_repeated_chunk_conflicts_only_if_its_bytes_differ(registry: LocalRegistry, ada: Sender) -> None:
    upload = ada.begin()
    ada.send(upload, 0, 2000)
    assert ada.send(upload, 0, 2000) == 2000
    assert ada.send(upload, 700, 1300) == 2000, "also in other portions"
    for place in (0, 699, 700, 1999):
        other = DATA[:place] + bytes([DATA[place] ^ 1]) + DATA[place + 1 :]
        with pytest.raises(Conflict, match="other bytes were received"):
            ada.send(upload, 0, 2000, other)
    with pytest.raises(BadInput, match="ends after 10 of 2,000 bytes"):
        receive(registry, ada.id, upload, chunk_of(DATA, 0, 2000), [DATA[:10]])
    assert ada.send(upload, 2000, len(DATA)) == len(DATA)
    assert ada.finish(upload).digest == digest_of(DATA), "none of them changed what was stored"
    with pytest.raises(Conflict, match="other bytes"):
        ada.send(upload, 0, 2000, b"x" + DATA[1:])
    assert ada.send(upload, 0, 2000) == len(DATA), "a finished upload answers too"


@pytest.mark.folder
def test_an_upload_with_the_wrong_digest_stays_until_it_expires(registry: LocalRegistry, ada: Sender) -> None:
    upload = ada.begin(kind="piece")
    wrong = b"x" + DATA[1:]
    ada.send(upload, 0, 100, wrong)
    with pytest.raises(BadInput, match="100 of 10,240 bytes were received"):
        ada.finish(upload)
    ada.send(upload, 100, len(wrong), wrong)
    with pytest.raises(BadInput, match=digest_of(wrong)):
        ada.finish(upload)
    with pytest.raises(BadInput, match="declared with"):
        ada.finish(upload, digest_of(wrong))
    assert ada.look_up(upload).state == "open"
    assert lying(registry, upload) == wrong
    let_expire(registry)
    assert tidy_uploads(registry) == TidyReport(1, 0, len(wrong))
    assert list(registry.settings.uploads.iterdir()) == []


def test_every_piece_of_a_pack_is_checked_and_found_at_its_offset(registry: LocalRegistry, ada: Sender) -> None:
    pieces = [b"first", b"second" * 9, b"third" * 100]
    upload = ada.sent_pack(pieces)
    with registry.catalog.reading() as session:
        pieces_by_digest = pieces_of(session, ada.id, map(digest_of, pieces))
    assert [pieces_by_digest[digest_of(piece)] for piece in pieces] == [
        StoredPiece(upload, 0, 5),
        StoredPiece(upload, 5, 54),
        StoredPiece(upload, 59, 500),
    ]

    pack = wanted("pack", 559, pieces=[(len(piece), digest_of(piece)) for piece in pieces])
    other = ada.open(pack)
    wrong = b"first" + b"x" * 54 + b"third" * 100
    ada.send(other, 0, 559, wrong)
    with pytest.raises(BadInput, match=r"1 of its pieces .* at byte 5$"):
        ada.finish(other)


PIECE = (1, Digest("0" * 64))


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "file", "size_bytes": 0},
        {"kind": "piece", "size_bytes": 1},
        {"kind": "file", "size_bytes": 1, "pieces": (PIECE,)},
        {"kind": "pack", "size_bytes": 1},
        {"kind": "pack", "size_bytes": 2, "pieces": (PIECE,)},
        {"kind": "pack", "size_bytes": 1 << 16, "pieces": ((1 << 16, PIECE[1]),)},
        {"kind": "pack", "size_bytes": 0, "pieces": ((0, PIECE[1]),)},
        {"kind": "pack", "size_bytes": PACK_PIECES_MAX + 1, "pieces": (PIECE,) * (PACK_PIECES_MAX + 1)},
        {"kind": "pack", "size_bytes": 1200 * 65_535, "pieces": ((65_535, PIECE[1]),) * 1200},
    ],
    ids=str,
)
def test_an_invalid_declaration_is_refused(values: dict[str, object]) -> None:
    with pytest.raises((BadInput, msgspec.ValidationError)):
        check_request(wanted(**values))  # type: ignore[arg-type]


@pytest.mark.folder
def test_opening_the_same_upload_again_continues_it(registry: LocalRegistry, ada: Sender) -> None:
    first = ada.begin(name="a.gguf")
    ada.send(first, 0, 100)
    assert ada.begin(name="a.gguf") == first
    assert ada.received(first) == 100
    others = [
        wanted("file", len(DATA), name="b.gguf"),
        wanted("file", len(DATA) + 1, name="a.gguf"),
        wanted("piece", len(DATA), digest=digest_of(DATA)),
        wanted("pack", 3, pieces=((1, digest_of(b"a")), (2, digest_of(b"b")))),
        wanted("pack", 3, pieces=((2, digest_of(b"b")), (1, digest_of(b"a")))),
    ]
    names = {ada.open(other) for other in others}
    assert len(names | {first}) == len(others) + 1
    assert {ada.open(other) for other in others} == names
    assert Sender.named(registry, "bob").open(others[0]) not in names
    os.unlink(registry.settings.uploads / first)
    assert ada.begin(name="a.gguf") != first, "its bytes are lost"
    with pytest.raises(BytesLost):
        ada.send(first, 100, 200)
    assert ada.cancel(first).public_id == first


@pytest.mark.folder
def test_an_upload_over_a_limit_is_refused_before_a_file_is_created(
    registry: LocalRegistry, ada: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("organs.registry.catalog.register.submissions.OPEN_UPLOADS_MAX", 4)
    with registry.catalog.writing() as session:
        set_quota(session, "ada", 3 * len(DATA))
    ada.begin(name="a")
    ada.begin(name="b")
    with pytest.raises(OverQuota, match="10,240 of the quota of 30,720 bytes are left"):
        ada.begin(DATA + b"x")
    small = LocalRegistry(replace(registry.settings, upload_max_bytes=1000), registry.catalog)
    with pytest.raises(OverQuota, match="at most 1,000 are accepted"):
        ada.on(small).begin(b"x" * 1001)
    little = [ada.begin(b"x", name=f"{number}") for number in range(2)]
    with pytest.raises(TooMany, match="4 uploads are open"):
        ada.begin(b"x", name="one more")
    for upload in little:
        ada.send(upload, 0, 1, b"x")
        ada.finish(upload)
    monkeypatch.setattr("organs.registry.catalog.register.submissions.UPLOADS_MAX", 4)
    with pytest.raises(OverQuota, match="4 uploads are stored"):
        ada.begin(b"x", name="one more")
    assert len(list(registry.settings.uploads.iterdir())) == 4
    let_expire(registry)
    tidy_uploads(registry)
    assert list(registry.settings.uploads.iterdir()) == []
    ada.begin(b"x" * 3 * len(DATA))


@pytest.mark.folder
def test_bytes_are_synced_to_disk_before_the_row_counts_them(registry: LocalRegistry, ada: Sender) -> None:
    seen = []

    class Watched(Files):
        def sync(self, descriptor: int) -> None:
            seen.append((ada.received(upload), os.fstat(descriptor).st_size))
            super().sync(descriptor)

    upload = ada.begin()
    watched = with_files(registry, Watched())
    ada.on(watched).send(upload, 0, 1000)
    ada.on(watched).send(upload, 1000, 2500)
    assert seen == [(0, 1000), (1000, 2500)]


@pytest.mark.folder
def test_a_full_or_failing_disk_does_not_change_the_upload(registry: LocalRegistry, ada: Sender) -> None:
    counted = SteppedFiles(lambda _call, _name: None)
    upload = ada.begin()
    ada.on(with_files(registry, counted)).send(upload, 0, 2100)
    assert counted.calls == 4  # three writes, one sync
    for error, kind in ((errno.ENOSPC, DiskFull), (errno.EIO, StoreError)):
        for at in range(1, counted.calls + 1):
            with pytest.raises(kind):
                ada.on(with_files(registry, failing_once(at, error))).send(upload, 2100, 4200)
            assert ada.received(upload) == 2100
    ada.send(upload, 2100, len(DATA))
    with pytest.raises(StoreError):
        ada.on(with_files(registry, failing_once(1, errno.EIO))).finish(upload)
    assert ada.finish(upload).digest == digest_of(DATA)


def test_an_upload_is_refused_on_a_full_disk(registry: LocalRegistry, ada: Sender) -> None:
    class Tight(Files):
        def free_bytes(self, path: Path) -> int:
            return 70_000_000

    tight = with_files(registry, Tight())
    with pytest.raises(DiskFull):
        ada.on(tight).begin(b"x" * 3_000_000)
    for at in range(1, 12):
        broken = with_files(registry, failing_once(at, errno.ENOSPC))
        calls = broken.blobs.backend.files
        try:
            ada.cancel(ada.on(broken).begin())
        except DiskFull:
            assert list(registry.settings.uploads.glob("*")) == []
        assert isinstance(calls, SteppedFiles)
        if calls.calls < at:
            break
    else:
        pytest.fail("there are more calls than were tried")


@pytest.mark.folder
def test_files_are_private_and_a_name_is_never_a_path(registry: LocalRegistry, ada: Sender) -> None:
    upload = ada.begin()
    assert registry.settings.uploads.stat().st_mode & 0o777 == 0o700
    assert (registry.settings.uploads / upload).stat().st_mode & 0o777 == 0o600
    spool = spool_of(registry)
    for name in (
        "",
        "..",
        "../registry.sqlite3",
        "/etc/passwd",
        "a" * 21,
        "a" * 23,
        "a" * 21 + "/",
        "ü" * 22,
        upload + "\n",
    ):
        for act in (spool.path, spool.remove, lambda name: spool.locked(name).__enter__()):
            with pytest.raises(NotFound):
                act(name)
    os.symlink("/etc/passwd", registry.settings.uploads / ("l" * 22))
    with pytest.raises(StoreError), spool.locked("l" * 22):
        pass


@pytest.mark.folder
def test_an_old_file_without_a_row_is_removed(registry: LocalRegistry, ada: Sender) -> None:
    spool = spool_of(registry)
    upload, stray, fresh = ada.begin(), spool.make(1), spool.make(1)
    (registry.settings.uploads / stray).write_bytes(b"12345")
    (registry.settings.uploads / "README").write_bytes(b"not ours")
    old = now().timestamp() - STRAY_AFTER_SECONDS - 60
    for name in (upload, stray, "README"):
        os.utime(registry.settings.uploads / name, (old, old))
    assert tidy_uploads(registry, dry_run=True) == tidy_uploads(registry) == TidyReport(0, 1, 5)
    assert {path.name for path in registry.settings.uploads.iterdir()} == {upload, fresh, "README"}
    assert (
        tidy_uploads(LocalRegistry(Settings.in_folder(registry.settings.home / "none"), registry.catalog))
        == TidyReport()
    )


def test_a_runner_of_jobs_and_a_sweep_remove_expired_uploads(registry: LocalRegistry, ada: Sender) -> None:
    organ = OrganCommand(registry.settings.home)
    first, two = ada.begin(name="one"), ada.begin(name="two")
    ada.send(first, 0, 1500)
    with registry.catalog.writing() as session:
        session.execute(update(UploadRow).where(UploadRow.public_id == first).values(expires_at=now()))
    assert "1 expired uploads and 0 stray upload files would be removed (1.5 kB)" in organ("sweep").out
    report = organ.done("sweep", "-y", "--json").values
    assert report["uploads"] == {"expired_uploads": 1, "stray_files": 0, "removed_bytes": 1500}
    let_expire(registry)
    Runner(registry, Event(), lanes=()).run(once=True)  # without lanes it only cleans up
    assert not (registry.settings.uploads / two).exists()


@pytest.mark.folder
def test_only_the_finished_uploads_of_a_model_and_its_sender_are_forgotten(
    registry: LocalRegistry, ada: Sender
) -> None:
    bob = Sender.named(registry, "bob")
    one, two = ada.sent(b"one"), ada.sent(b"two")
    pack, mixed = ada.sent_pack([b"a", b"b"]), ada.sent_pack([b"c", b"needed elsewhere"])
    whole, under_way = ada.sent(b"whole", "file"), ada.begin(b"under way", "piece")
    theirs = bob.sent(b"one")
    used = [digest_of(data) for data in (b"one", b"a", b"b", b"c", b"under way")]
    assert forget_uploads(registry, ada.id, used, [whole, theirs, under_way]) == 3
    left = {path.name for path in registry.settings.uploads.iterdir()}
    assert left == {two, mixed, under_way, theirs}
    assert {one, pack, whole} & left == set()
    with registry.catalog.reading() as session:
        assert {row.public_id for row in session.scalars(select(UploadRow))} == left


def test_uploads_that_a_submission_needs_are_kept_longer(registry: LocalRegistry, ada: Sender) -> None:
    piece, other, whole = (
        ada.sent(b"piece"),
        ada.sent(b"other"),
        ada.sent(b"w", "file"),
    )
    soon = now() + timedelta(minutes=5)
    with registry.catalog.writing() as session:
        session.execute(update(UploadRow).values(expires_at=soon))
        assert known_digests(session, ada.id, [digest_of(b"piece")], now()) == set(), "it would be gone too soon"
        renew_uploads(session, ada.id, [digest_of(b"piece")], [whole])
    assert ada.look_up(other).expires_at == soon
    for name in (piece, whole):
        assert ada.look_up(name).expires_at > now() + UPLOAD_LIFETIME - timedelta(minutes=1)


def test_a_lookup_discloses_only_public_blobs_and_those_of_the_asker(
    registry: LocalRegistry, ada: Sender, tmp_path: Path
) -> None:
    bob = Sender.named(registry, "bob")
    (tmp_path / "a.gguf").write_bytes(small_model())
    ingest_file(registry, tmp_path / "a.gguf")
    with registry.catalog.reading() as session:
        everything = set(session.scalars(select(Blob.digest)))
        headers = set(session.scalars(select(Blob.digest).join(FilePart, FilePart.blob_id == Blob.id)))
    assert headers
    assert everything - headers

    def known(asker: int, state: str, owner: int) -> set[Digest]:
        with registry.catalog.writing() as session:
            model = model_by_name(session, parse_model_name("local/a"))
            session.execute(update(ModelRow).where(ModelRow.id == model.id).values(state=state, contributor_id=owner))
            found = known_digests(session, asker, [*everything, "0" * 64], now())
            session.rollback()
        return found

    for state, for_anybody, for_its_own in (
        ("visible", everything, everything),
        ("yanked", everything, everything),
        ("quarantined", set(), everything),
        ("removed", set(), set()),
    ):
        assert known(bob.id, state, ada.id) == for_anybody, state
        assert known(ada.id, state, ada.id) == for_its_own, state
    with registry.catalog.writing() as session:
        lost = next(iter(everything))
        session.execute(update(Blob).where(Blob.digest == lost).values(state="corrupt"))
    assert known(bob.id, "visible", ada.id) == everything - {lost}, "a corrupt part is sent again"


def test_a_lookup_discloses_finished_pieces_only_to_their_sender(registry: LocalRegistry, ada: Sender) -> None:
    bob = Sender.named(registry, "bob")
    piece = ada.sent(b"piece")
    ada.sent_pack([b"x", b"y"])
    ada.begin(b"under way", "piece")
    digests = [digest_of(data) for data in (b"piece", b"x", b"y", b"under way", b"never")]
    with registry.catalog.reading() as session:
        assert known_digests(session, ada.id, digests, now()) == set(digests[:3])
        assert known_digests(session, bob.id, digests, now()) == set()
        assert pieces_of(session, bob.id, digests) == {}
        with pytest.raises(NotFound):
            finished_upload(session, piece, bob.id)


@pytest.mark.folder
def test_finishing_a_large_upload_takes_little_memory(registry: LocalRegistry, ada: Sender) -> None:
    size = 48 * 1024 * 1024
    upload = ada.open(wanted("file", size))
    os.truncate(registry.settings.uploads / upload, size)
    with registry.catalog.writing() as session:
        session.execute(update(UploadRow).values(received_bytes=size))
    expected = hashlib.sha256(bytes(size)).hexdigest()
    tracemalloc.start()
    try:
        assert ada.finish(upload).digest == expected
        assert tracemalloc.get_traced_memory()[1] < 6 * 1024 * 1024
    finally:
        tracemalloc.stop()
