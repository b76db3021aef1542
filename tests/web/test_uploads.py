"""Uploads over the API: what a client may get wrong, and what it may not see."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import RawIOBase
from typing import Any

import pytest
from werkzeug.test import TestResponse

from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from organs.registry.store.files import Files
from organs.web.app import create_app
from organs.web.file_responses import allow_streams
from tests.faults.failing import with_files
from tests.web.api.document_checks import assert_refused, faults
from tests.web.upload_clients import OCTETS, UPLOADS, UploadClient, content_digest, new_contributor_token

DATA = bytes(range(256)) * 40
MEBIBYTE = 1024 * 1024


@pytest.fixture
def ada(registry: LocalRegistry) -> Iterator[UploadClient]:
    """A contributor who may upload."""
    with create_app(registry).test_client() as client:
        yield UploadClient(client, new_contributor_token(registry, "ada"))


@pytest.fixture
def bob(registry: LocalRegistry, ada: UploadClient) -> UploadClient:
    """Another one."""
    return UploadClient(ada.client, new_contributor_token(registry, "bob"))


def spooled(registry: LocalRegistry, upload: str) -> bytes:
    return (registry.settings.uploads / upload).read_bytes()


def test_a_piece_that_was_sent_in_chunks_is_known_afterwards(ada: UploadClient) -> None:
    def known() -> list[str]:
        return list(ada.ask("POST", "/lookup", {"digests": [digest_of(DATA), digest_of(b"never")]}).get_json()["known"])

    upload = ada.begin(DATA)
    for begin in range(0, len(DATA), 4000):
        assert ada.chunk(upload, DATA, begin, min(begin + 4000, len(DATA))).get_json()["state"] == "open"
    assert known() == []
    assert [one["id"] for one in ada.ask("GET").get_json()["items"]] == [upload]
    done = ada.finish(upload, f"?digest={digest_of(DATA)}").get_json()
    assert (done["state"], done["received_bytes"], done["digest"]) == ("complete", len(DATA), digest_of(DATA))
    assert done["chunk_bytes"] == {"least": 8 * MEBIBYTE, "most": 64 * MEBIBYTE}
    assert known() == [digest_of(DATA)]
    assert ada.ask("DELETE", f"/{upload}").get_json()["id"] == upload
    assert known() == []


def test_a_chunk_out_of_order_is_answered_with_the_expected_offset(ada: UploadClient) -> None:
    upload = ada.begin(DATA)
    answer = ada.chunk(upload, DATA, 100, 200)
    assert (answer.status_code, answer.headers.get("Range")) == (416, None)
    ada.chunk(upload, DATA, 0, 1000)
    answer = ada.chunk(upload, DATA, 1001, 2000)
    assert (answer.status_code, answer.headers["Range"]) == (416, "bytes=0-999")
    assert faults("UploadProblem", answer.get_json()) == []
    assert answer.get_json()["received_bytes"] == 1000
    assert answer.headers["Cache-Control"] == "no-store"


def test_a_chunk_whose_digest_does_not_match_is_refused_and_changes_nothing(ada: UploadClient) -> None:
    upload = ada.begin(DATA)
    answer = ada.chunk(upload, DATA, 0, 1000, Content_Digest=content_digest(b"other"))
    assert content_digest(DATA[:1000]) in assert_refused(answer, 400, None)
    assert ada.received(upload) == 0


HEADERS: list[tuple[dict[str, str], int, str | None]] = [
    ({"Content-Range": ""}, 400, "Content-Range"),
    ({"Content-Range": "bytes */10240"}, 400, "Content-Range"),
    ({"Content-Range": "bytes 99-0/10240"}, 400, "Content-Range"),
    ({"Content-Range": "bytes 0-99/99"}, 400, "Content-Range"),
    ({"Content-Range": "bytes 0-100/10240"}, 400, "Content-Range"),
    ({"Content-Range": "bytes 0-99/10241"}, 400, None),
    ({"Content-Range": f"bytes 0-{'9' * 40}/{'9' * 41}"}, 400, "Content-Range"),
    ({"Content-Range": "bytes ٠-٩٩/10240"}, 400, "Content-Range"),
    ({"Content-Digest": ""}, 400, "Content-Digest"),
    ({"Content-Digest": "md5=:AAAA:"}, 400, "Content-Digest"),
    ({"Content-Digest": f"sha-256=:{'A' * 42}B:"}, 400, "Content-Digest"),
    ({"Content-Type": "application/json"}, 415, None),
    ({"Content-Encoding": "gzip"}, 415, None),
    ({"Content-Encoding": "identity, gzip"}, 415, None),
    ({"Transfer-Encoding": "chunked"}, 411, None),
    ({"Content-Length": "67108865"}, 413, None),
    ({"Content-Length": "-1"}, 400, "Content-Range"),
    ({"Content-Length": "x"}, 400, "Content-Range"),
]


@pytest.mark.folder
def test_the_headers_of_a_chunk_are_checked_before_its_body_is_read(ada: UploadClient, registry: LocalRegistry) -> None:
    upload = ada.begin(DATA)
    for headers, status, field in HEADERS:
        answer = raw_chunk(ada, upload, Unread(), headers)
        assert_refused(answer, status, field)
    assert spooled(registry, upload) == b""
    both = f"sha-512=:{'A' * 86}==:, {content_digest(DATA[:100])}"
    assert ada.chunk(upload, DATA, 0, 100, Content_Digest=both).status_code == 202


BODIES: list[tuple[Any, str | None]] = [
    ({}, "kind"),
    *(({"kind": "file", "size_bytes": size}, "size_bytes") for size in (0, "1", True, 1 << 62)),
    ({"kind": "piece", "size_bytes": 1}, None),
    ({"kind": "piece", "size_bytes": 1, "digest": "0" * 63}, "digest"),
    *(
        ({"kind": "file", "size_bytes": 1, "name": name}, "name")
        for name in ("", "../a", "a\\b", "..", "a\r\nb", "a\0", "x" * 256, "\ud800", "a\u202eb")
    ),
    ({"kind": "file", "size_bytes": 1, "path": "/etc"}, "path"),
    ({"kind": "pack", "size_bytes": 1, "pieces": [[1, "x"]]}, "pieces[0].digest"),
]


def test_declared_values_are_checked_and_a_name_is_never_a_path(ada: UploadClient, registry: LocalRegistry) -> None:
    for body, field in BODIES:
        assert_refused(ada.ask("POST", body=body), 400, field)
    assert not registry.settings.uploads.exists()


def test_an_upload_of_another_account_is_answered_like_an_unknown_upload(ada: UploadClient, bob: UploadClient) -> None:
    upload, never = ada.begin(DATA), "n" * 22
    for method in ("GET", "PATCH", "PUT", "DELETE"):
        refused, absent = (
            bob.chunk(name, DATA, 0, 10) if method == "PATCH" else bob.ask(method, f"/{name}")
            for name in (upload, never)
        )
        assert (refused.status_code, absent.status_code) == (404, 404), method
        assert refused.text.replace(upload, never) == absent.text
    assert bob.ask("GET").get_json()["items"] == []
    assert bob.begin(DATA) != upload


def test_one_client_gets_at_most_half_of_the_places_for_upload_bodies(ada: UploadClient, bob: UploadClient) -> None:
    allow_streams(ada.client.application, 8)
    uploads = [ada.begin(DATA, kind="file", digest=None, name=str(number)) for number in range(3)]
    other = bob.begin(DATA)
    with paused_chunk(ada, uploads[0]), paused_chunk(ada, uploads[1]):
        answer = ada.chunk(uploads[2], DATA, 0, 10)
        assert_refused(answer, 503, None)
        assert answer.headers["Retry-After"] == "5"
        assert ada.client.get("/models").status_code == 200, "they hold no turn either"
        assert bob.chunk(other, DATA, 0, 10).status_code == 202
    assert ada.chunk(uploads[2], DATA, 0, 10).status_code == 202


@pytest.mark.folder
def test_a_full_disk_is_reported_as_temporary_and_without_its_path(registry: LocalRegistry) -> None:
    class Full(Files):
        def write_at(self, descriptor: int, pieces: Any, offset: int) -> int:
            raise OSError(28, "No space left on device")

    ada = UploadClient(create_app(with_files(registry, Full())).test_client(), new_contributor_token(registry, "ada"))
    answer = ada.chunk(ada.begin(DATA), DATA, 0, 10)
    assert "no free space" in assert_refused(answer, 503, None)
    assert str(registry.settings.home) not in answer.text


@pytest.mark.folder
def test_a_chunk_is_never_held_completely_in_memory(ada: UploadClient, registry: LocalRegistry) -> None:
    size = 24 * MEBIBYTE
    upload = ada.begin(b"", kind="file", digest=None, size_bytes=size)
    headers = {"Content-Range": f"bytes 0-{size - 1}/{size}", "Content-Length": str(size)}
    ada.client.get("/healthz")
    tracemalloc.start()
    try:
        assert raw_chunk(ada, upload, Zeros(), headers).status_code == 202
        assert tracemalloc.get_traced_memory()[1] < 8 * MEBIBYTE
    finally:
        tracemalloc.stop()
    assert (registry.settings.uploads / upload).stat().st_size == size


class Unread(RawIOBase):
    """A body that nobody may read."""

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: Any) -> int:
        raise AssertionError("the body was read")


class Zeros(RawIOBase):
    """A body without end."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        buffer[:] = bytes(len(buffer))
        return len(buffer)


class PausedBody(RawIOBase):
    """DATA, of which the rest comes when a test says so."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._halves = [DATA[:10], DATA[10:]]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.begun.is_set():
            assert self.go_on.wait(60)
        self.begun.set()
        half = self._halves.pop(0) if self._halves else b""
        buffer[: len(half)] = half
        return len(half)


@contextmanager
def paused_chunk(sender: UploadClient, upload: str) -> Iterator[None]:
    """A chunk of DATA that is under way until the end of the block, and is stored then."""
    body = PausedBody()
    headers = {"Content-Range": f"bytes 0-{len(DATA) - 1}/{len(DATA)}", "Content-Length": str(len(DATA))}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(raw_chunk, sender, upload, body, headers)
        assert body.begun.wait(60)
        yield
        body.go_on.set()
        assert answer.result().status_code == 202


def raw_chunk(sender: UploadClient, upload: str, body: RawIOBase, headers: dict[str, str]) -> TestResponse:
    """Send a chunk that begins as one of 100 bytes, with `headers` for what it says of itself."""
    said = {"Content-Range": f"bytes 0-99/{len(DATA)}", "Authorization": f"Bearer {sender.token}", **headers}
    length = said.pop("Content-Length", "100" if "Transfer-Encoding" not in said else "")
    return sender.client.application.test_client().patch(
        f"{UPLOADS}/{upload}",
        content_type=said.pop("Content-Type", OCTETS),
        headers={name: value.encode().decode("latin-1") for name, value in said.items()},
        environ_overrides={"wsgi.input": body, "wsgi.input_terminated": True, "CONTENT_LENGTH": length},
    )
