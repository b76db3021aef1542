"""Tests of a push with a failing connection, a busy registry, refusals and invalid answers, and of its threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.ingest.contributions import sending
from organs.registry.errors import BadInput, BadReply, BadToken, OverQuota, TooMany, Unreachable
from tests.client.scripted_server import CUT, Answer, ReceivedRequest, as_json, as_problem
from tests.ingest.memory_registry import FakeRegistry, Session, upload_id
from tests.ingest.push_cases import large_model, run_push, write_model_file
from tests.small_models import small_model

# Failures of the connection and the registry.


class Cutting:
    """Cuts the connection at every second chunk: after the registry has received it, or before."""

    def __init__(self, fake: FakeRegistry) -> None:
        self.fake = fake
        self.chunks = self.cuts = 0

    def __call__(self, asked: ReceivedRequest) -> Answer | None:
        if asked.method != "PATCH":
            return None
        self.chunks += 1
        if self.chunks % 2:
            return None
        self.cuts += 1
        if self.cuts % 2:
            self.fake.fails = lambda _asked: None
            self.fake._answer(asked, asked.path.removeprefix("/api/v1"))
            self.fake.fails = self
        return CUT


UPLOAD = Session({"kind": "piece", "size_bytes": 1 << 30}).values(upload_id(1))
"""An upload without any received bytes."""


def test_a_push_over_a_failing_connection_arrives_identical(fake: FakeRegistry, tmp_path: Path) -> None:
    data = large_model()
    fake.fails = cutting = Cutting(fake)
    report = run_push(fake, write_model_file(tmp_path, data), chunk_bytes=30_000)
    assert fake.file() == data
    assert cutting.cuts > 3
    lost = cutting.cuts - (cutting.cuts + 1) // 2
    assert report.bytes_sent <= fake.received_bytes + lost * 30_000
    assert fake.received_bytes == sum(len(blob) for blob in fake.blobs.values())


def test_an_interrupted_push_continues_at_the_offset_of_the_registry(
    fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "PATIENCE_SECONDS", 0.0)
    path = write_model_file(tmp_path, large_model())
    fake.fails = lambda asked: CUT if asked.method == "PATCH" and fake.received_bytes > 100_000 else None
    with pytest.raises(Unreachable):
        run_push(fake, path)
    before = fake.received_bytes
    assert before > 100_000
    fake.fails = lambda _asked: None
    report = run_push(fake, path)
    assert report.bytes_sent == fake.received_bytes - before
    assert fake.received_bytes == sum(len(blob) for blob in fake.blobs.values())
    assert fake.file() == path.read_bytes()


def test_temporary_failures_are_retried(fake: FakeRegistry, tmp_path: Path) -> None:
    faults = {
        "/api/v1/uploads/u": [
            as_problem(409, "another client is at it"),
            as_problem(503, "too many wait", Retry_After="0"),
            as_problem(400, "the chunk has another digest than it declares"),
            as_problem(404, "no such upload"),
            Answer(502, b"<html>"),
        ],
        "/api/v1/submissions/": [as_problem(503, "it restarts", Retry_After="0"), CUT],
    }

    def fail(asked: ReceivedRequest) -> Answer | None:
        due = next((answers for path, answers in faults.items() if asked.path.startswith(path)), None)
        return due.pop() if due else None

    fake.fails = fail
    data = large_model()
    run_push(fake, write_model_file(tmp_path, data))
    assert not any(faults.values())
    assert fake.file() == data


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (as_problem(413, "the quota is used up"), OverQuota),
        (as_problem(401, "the token was revoked"), BadToken),
        (as_problem(400, "a piece is declared with its digest"), BadInput),
        (as_json(UPLOAD | {"received_bytes": -1}), BadReply),
        (as_json(UPLOAD | {"id": "../x"}), BadReply),
        (as_problem(429, "no more today", Retry_After="86400"), TooMany),
    ],
)
def test_a_permanent_error_ends_a_push_immediately(
    fake: FakeRegistry, tmp_path: Path, answer: Answer, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "PATIENCE_SECONDS", 0.05)
    fake.fails = lambda asked: answer if asked.path == "/api/v1/uploads" else None
    with pytest.raises(kind):
        run_push(fake, write_model_file(tmp_path, large_model()))
    assert not fake.manifests


def test_a_registry_that_accepts_no_bytes_is_an_error(fake: FakeRegistry, tmp_path: Path) -> None:
    stuck = as_json(UPLOAD, 202)
    fake.fails = lambda asked: stuck if asked.method == "PATCH" else None
    with pytest.raises(BadReply, match="refuses more bytes"):
        run_push(fake, write_model_file(tmp_path, small_model()))


# Threads.
