"""Uploads that one contributor opens at the same time never exceed the quota together, whichever process takes them."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from organs.registry.catalog.queries.accounts import contributor_by_name, quota_of
from organs.registry.catalog.tables import UploadRow
from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from tests.web.live_server import running_server
from tests.web.upload_clients import UPLOADS, new_contributor_token

SIZE_BYTES, FITTING = 1000, 10
QUOTA_BYTES = SIZE_BYTES * FITTING + SIZE_BYTES // 2
REQUESTS, THREADS = 60, 20
BUSY, TRIES = 503, 50
"""A server that has too much to do says so, and is asked again."""


def body(number: int) -> dict[str, Any]:
    """A request for an upload: of a file or of a piece."""
    if number % 2:
        return {"kind": "piece", "size_bytes": SIZE_BYTES, "digest": digest_of(str(number).encode())}
    return {"kind": "file", "size_bytes": SIZE_BYTES, "name": f"{number}.gguf"}


@pytest.mark.long
def test_uploads_opened_in_parallel_do_not_exceed_the_quota_together(tmp_path: Path) -> None:
    with LocalRegistry.open(tmp_path / "home") as registry:
        token = new_contributor_token(registry, "ada", quota=QUOTA_BYTES)
    options = ("--accounts", "--workers", "3")
    with running_server(tmp_path / "home", tmp_path / "log", options=options) as live:

        def opened(number: int) -> int:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            address = f"http://127.0.0.1:{live.port}{UPLOADS}"
            request = Request(address, json.dumps(body(number)).encode(), headers)  # our own server
            for _ in range(TRIES):
                try:
                    with urlopen(request, timeout=60) as answer:
                        return int(answer.status)
                except HTTPError as refused:
                    if refused.code != BUSY:
                        return refused.code
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
