"""Uploads to servers that run: a client that vanishes, and many that share one quota."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from organs.registry.catalog.queries.accounts import contributor_by_name, quota_of
from organs.registry.catalog.tables import UploadRow
from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from tests.web.accounts import authorization
from tests.web.live_server import HURRIED, LiveServer, running_server, wait_until
from tests.web.upload_clients import OCTETS, UPLOADS, content_digest, new_contributor_token

DATA = bytes(range(256)) * 4000
SIZE_BYTES, FITTING = 1000, 10
QUOTA_BYTES = SIZE_BYTES * FITTING + SIZE_BYTES // 2
REQUESTS, THREADS = 60, 20
BUSY, TRIES = 503, 50
"""A server that has too much to do says so, and is asked again."""


def ask(
    live: LiveServer, token: str, method: str, path: str, data: bytes = b"", **headers: str
) -> tuple[int, dict[str, Any]]:
    """Send `data`, JSON unless told otherwise; return the status and the JSON of the answer."""
    connection = HTTPConnection("127.0.0.1", live.port, timeout=60)
    try:
        connection.request(method, path, data, {"Content-Type": "application/json", **authorization(token), **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def chunk_headers(begin: int, end: int) -> dict[str, str]:
    """The headers of a chunk of DATA."""
    return {
        "Content-Type": OCTETS,
        "Content-Range": f"bytes {begin}-{end - 1}/{len(DATA)}",
        "Content-Digest": content_digest(DATA[begin:end]),
    }


def test_a_client_that_vanished_continues_after_its_last_chunk(tmp_path: Path) -> None:
    first = 200_000
    with LocalRegistry.open(tmp_path / "home") as registry:
        token = new_contributor_token(registry, "ada")
    with running_server(tmp_path / "home", tmp_path / "log", HURRIED) as live:
        request = json.dumps({"kind": "file", "size_bytes": len(DATA), "name": "vanishing"}).encode()
        upload = f"{UPLOADS}/{ask(live, token, 'POST', UPLOADS, request)[1]['id']}"

        def send(begin: int, end: int) -> int:
            return ask(live, token, "PATCH", upload, DATA[begin:end], **chunk_headers(begin, end))[0]

        assert send(0, first) == 202
        vanishing = HTTPConnection("127.0.0.1", live.port)
        headers = chunk_headers(first, len(DATA)) | authorization(token) | {"Content-Length": str(len(DATA) - first)}
        vanishing.request("PATCH", upload, DATA[first : 2 * first], headers)
        vanishing.close()
        assert ask(live, token, "GET", upload)[1]["received_bytes"] == first
        wait_until(lambda: send(first, len(DATA)) == 202)  # 409 until the server has seen that the other is gone
        assert ask(live, token, "PUT", upload)[1]["digest"] == digest_of(DATA)


@pytest.mark.long
def test_uploads_opened_in_parallel_do_not_exceed_the_quota_together(tmp_path: Path) -> None:
    with LocalRegistry.open(tmp_path / "home") as registry:
        token = new_contributor_token(registry, "ada", quota=QUOTA_BYTES)
    options = ("--accounts", "--workers", "3")
    with running_server(tmp_path / "home", tmp_path / "log", options=options) as live:

        def opened(number: int) -> int:
            piece = {"kind": "piece", "digest": digest_of(str(number).encode())}
            wanted = piece if number % 2 else {"kind": "file", "name": f"{number}.gguf"}
            data = json.dumps({"size_bytes": SIZE_BYTES, **wanted}).encode()
            for _ in range(TRIES):
                status, _ = ask(live, token, "POST", UPLOADS, data)
                if status != BUSY:
                    return status
                time.sleep(0.2)
            return BUSY

        with ThreadPoolExecutor(THREADS) as threads:
            statuses = Counter(threads.map(opened, range(REQUESTS)))
    with LocalRegistry.open(tmp_path / "home") as registry, registry.catalog.reading() as session:
        ada = contributor_by_name(session, "ada")
        rows = session.query(UploadRow).filter_by(contributor_id=ada.id).count()
        used = quota_of(session, ada, 100).used_bytes
    assert set(statuses) <= {202, 413, BUSY}, statuses
    assert 1 <= rows == statuses[202] <= FITTING
    assert used == SIZE_BYTES * rows <= QUOTA_BYTES
